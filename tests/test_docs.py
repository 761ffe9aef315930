"""Documents are true: their programs run, their configs validate, their links exist."""

import itertools
import re
import tomllib
from pathlib import Path

import equinox as eqx
import pytest

from sojourn.config import validate
from sojourn.core.keys import root_key
from sojourn.core.vec import size
from sojourn.models import MODELS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [(f"{page.name}:{i}", text) for page in PAGES for i, text in enumerate(pattern.findall(page.read_text()))]


@pytest.mark.parametrize(("name", "program"), blocks("python"))
def test_a_program_in_the_documents_runs(name: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("name", "text"), blocks("toml"))
def test_a_config_in_the_documents_is_valid(name: str, text: str) -> None:
    assert validate(tomllib.loads(text)).algorithms


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_in_the_documents_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in asked}
    explained = set(re.findall(r"[\w-]+", (ROOT / "docs" / "dependencies.md").read_text()))
    assert names - explained == set()


def test_the_counts_of_weights_are_those_of_the_models() -> None:
    page = (ROOT / "docs" / "networks.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    told = {}
    for names, _, shape, counts in rows:
        numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d", counts)]
        for name, number in zip(re.findall(r"`([\w-]+)`", names), numbers, strict=True):
            told[name] = ((28, 28, 1) if "any" in shape else tuple(map(int, re.findall(r"\d+", shape))), number)
    assert set(told) == set(MODELS)
    for name, (shape, number) in told.items():
        build = getattr(MODELS[name], "outline", MODELS[name])  # one that asks clients has an outline
        model = eqx.filter_eval_shape(lambda b=build, s=shape: b(s, 10, root_key(0)))
        assert size(eqx.filter(model, lambda leaf: hasattr(leaf, "shape"))) == number, name
