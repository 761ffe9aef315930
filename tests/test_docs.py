"""Documents are true: their programs run, their configs validate, their links exist."""

import re
import tomllib
from pathlib import Path

import pytest

from sojourn.config import validate

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
    names = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    explained = set(re.findall(r"[\w-]+", (ROOT / "docs" / "dependencies.md").read_text()))
    assert names - explained == set()
