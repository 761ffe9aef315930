"""Recipes and `sojourn reproduce`: verdicts that are true, nothing hidden that fails, nothing touched by mistake."""

import dataclasses
import functools
import html
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms.local_sgd import LocalSGD
from sojourn.core.errors import SojournError
from sojourn.recipes import RECIPES, Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.base import above, carry_out, summary
from sojourn.recipes.charts import lines
from sojourn.recipes.kept import kept
from sojourn.sweeping import Setting
from test_cli import Command, config_file, content

HOLDS = Claim("good", "One is less than two.", True, "1 < 2", "comparison", "below", 3)
FAILS = Claim("bad", "Two is < one & so on.", False, "2 - 1 = 1", by="paper")
OPEN = Claim("open", "It may be.", None, "0.1 (95% interval -1 to 1)", by="check")
KEYS = {"id", "text", "holds", "evidence"}
EXTRA = {"statistic", "threshold", "seeds", "by", "scaled", "verdict"}


def tiny(*claims: Claim, figure: tuple[str, ...] = (), name: str = "tiny") -> Recipe:
    """A recipe with these claims, a figure beside some of them, and a sweep of two settings that is kept."""

    def run(bench: Bench) -> Findings:
        home = sj.problems.quadratic(np.stack([np.eye(2), 2 * np.eye(2)]), np.eye(2))
        settings = [Setting(LocalSGD(step_size=0.1, num_local_steps=2), seed, {"of": "tiny"}, home) for seed in (0, 1)]
        history = bench.sweep("runs", settings, bench.scale["rounds"])
        spec = lines([{"x": 1, "y": 1.0, "line": "a"}, {"x": 2, "y": 2.0, "line": "a"}], x="x", y="y")
        return Findings(claims, [Figure("A chart", spec, "A note.", figure)], [history])

    return Recipe(
        name, "A tiny recipe", "nowhere, figure 0", "About.", {"quick": {"rounds": 2}, "full": {"rounds": 3}}, run
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    return lambda recipe: monkeypatch.setitem(RECIPES, recipe.name, recipe)


# --- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "code"),
    [([HOLDS], 0), ([HOLDS, FAILS], 4), ([HOLDS, OPEN], 4), ([FAILS], 4), ([OPEN], 4)],
)
def test_the_exit_code_is_0_only_if_every_claim_holds(
    claims: list[Claim], code: int, command: Command, add: Callable[[Recipe], None]
) -> None:
    add(tiny(*claims))
    answer = command("reproduce", "tiny")
    assert answer.code == code
    for claim in claims:
        assert claim.verdict in answer.out and claim.text in answer.out and claim.evidence in answer.out
    assert summary(claims) in answer.out
    assert "report: runs/tiny-quick/report.html" in answer.out


def test_json_is_all_that_is_printed_and_has_the_keys(command: Command, add: Callable[[Recipe], None]) -> None:
    add(tiny(HOLDS, FAILS, OPEN, figure=("good",)))
    answer = command("reproduce", "tiny", "--scale", "full", "--out", "here", "--json")
    assert (answer.code, answer.err) == (4, "")
    told = json.loads(answer.out)
    assert set(told) == {"recipe", "scale", "claims", "seconds"}
    assert (told["recipe"], told["scale"]) == ("tiny", "full")
    assert isinstance(told["seconds"], float) and told["seconds"] > 0
    assert all(set(claim) == KEYS | EXTRA for claim in told["claims"])
    assert [claim["holds"] for claim in told["claims"]] == [True, False, None]
    assert [claim["verdict"] for claim in told["claims"]] == ["holds", "fails", "not decided"]
    assert told["claims"][0] | {"verdict": ""} == {
        "id": "good", "text": HOLDS.text, "holds": True, "evidence": "1 < 2", "statistic": "comparison",
        "threshold": "below", "seeds": 3, "by": "paper", "scaled": "", "verdict": "",
    }  # fmt: skip
    assert json.loads(Path("here/claims.json").read_text(encoding="utf-8")) == told


@pytest.mark.parametrize("figure", [(), ("good", "bad", "open")])
def test_a_refuted_claim_stays_in_the_file_and_on_the_page(figure: tuple[str, ...], tmp_path: Path) -> None:
    done = carry_out(tiny(HOLDS, FAILS, OPEN, figure=figure), out=tmp_path)
    assert not done.holds
    kept = {
        claim["id"]: claim for claim in json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"]
    }
    assert kept["bad"]["holds"] is False and kept["open"]["holds"] is None
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for claim, style in ((HOLDS, "holds"), (FAILS, "fails"), (OPEN, "not-decided")):
        assert f'<li class="claim {style}">' in page
        assert html.escape(claim.text) in page and html.escape(claim.evidence) in page
    assert "1 of 3 claims hold. Fails: bad. Not decided: open." in page
    assert ("Further claims" in page) == (figure == ())


def test_what_a_reproduction_took_before_it_was_cut_off_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("sojourn.recipes.base.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_by(seconds: float) -> dict[str, float]:
        now[0] += seconds
        return {}

    def work(bench: Bench, cut_off: bool) -> Findings:
        for part, seconds in (("first", 100.0), ("second", 10.0)):
            kept(bench, "parts", part, part, functools.partial(pass_by, seconds))
            if cut_off:
                raise KeyboardInterrupt
        return Findings([HOLDS], [])

    cut, whole = (
        dataclasses.replace(tiny(HOLDS), carry_out=lambda bench, cut=cut: work(bench, cut)) for cut in (True, False)
    )
    with pytest.raises(KeyboardInterrupt):
        carry_out(cut, out=tmp_path)
    assert carry_out(whole, out=tmp_path, resume=True).seconds == 110.0  # the first part took its time before
    assert carry_out(whole, out=tmp_path, resume=True).seconds == 110.0  # and nothing is left to do
    assert carry_out(whole, out=tmp_path).seconds == 110.0  # done anew


def test_a_recipe_that_names_claims_twice_or_shows_unknown_ones_is_refused() -> None:
    with pytest.raises(SojournError, match="named twice"):
        carry_out(tiny(HOLDS, HOLDS))
    with pytest.raises(SojournError, match=r"unknown ones.*nothing"):
        carry_out(tiny(HOLDS, figure=("nothing",)))


def test_a_truth_of_numpy_is_a_truth() -> None:
    claim = Claim("a", "b", np.float64(1) < np.float64(2), "c")
    assert claim.holds is True and json.dumps(claim.holds) == "true"


def test_above_decides_by_its_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(1.0, 1.0, 40)  # mean 1 with a standard error of 0.16
    assert above(values, 0.5)[0] is True
    assert above(values, 1.6)[0] is False
    assert above(values, float(values.mean()) - 0.01)[0] is None  # the mean alone would decide
    assert above(values, float(values.mean()) + 0.01)[0] is None
    assert above(values[:3], 0.5)[0] is None  # three of them do not tell what forty do
    assert above(np.array([2.0, 2.0, 2.0]), 1.0)[0] is True
    assert above(np.array([1.0, np.nan, 2.0]), 0.0)[0] is None
    assert "n = 40" in above(values, 0.5)[1]


def test_above_is_right_as_often_as_it_says() -> None:
    """At the true mean it may decide wrongly in one of twenty cases."""
    rng = np.random.default_rng(1)
    decided = [above(rng.normal(size=8), 0.0)[0] is not None for _ in range(2000)]
    assert abs(np.mean(decided) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000)


# --- mistakes, and what is in a directory ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tinny"], 'did you mean "tiny"?'),
        (["digits"], "use sojourn run digits"),
        (["tiny", "--out", "full"], "full is not empty and holds no result of tiny"),
        (["tiny", "--out", "other"], "other is not empty and holds no result of tiny"),
        (["tiny", "--out", "run"], "run is not empty and holds no result of tiny"),
        (["tiny", "--out", "small.toml"], "small.toml is a file"),
        (["tiny", "--out", "full", "--resume"], "full is not empty"),
        (["tiny", "--out", "/proc/nowhere"], "cannot write"),
    ],
)
def test_a_mistake_is_one_sentence_and_touches_nothing(
    words: list[str], expected: str, command: Command, add: Callable[[Recipe], None]
) -> None:
    add(tiny(HOLDS))
    add(tiny(HOLDS, name="other-one"))
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("years of work")
    command("run", config_file(), "--out", "run")
    command("reproduce", "other-one", "--out", "other")
    before = content(Path())
    assert expected in command.refused("reproduce", *words)
    assert content(Path()) == before
    assert not Path("runs").exists()


def test_an_unknown_scale_is_refused(command: Command, add: Callable[[Recipe], None]) -> None:
    add(tiny(HOLDS))
    answer = command("reproduce", "tiny", "--scale", "huge")
    assert answer.code == 2 and answer.out == "" and "quick" in answer.err
    assert not content(Path())
    with pytest.raises(SojournError, match="quick"):
        sj.reproduce("tiny", "huge")
    with pytest.raises(SojournError, match="did you mean"):
        sj.reproduce("tinny")


def test_a_rerun_replaces_its_own_earlier_result(command: Command, add: Callable[[Recipe], None]) -> None:
    add(tiny(HOLDS))
    assert command("reproduce", "tiny").code == 0
    first = content(Path("runs/tiny-quick"))
    assert {"claims.json", "report.html", "recipe.txt"} <= set(first)
    assert any(name.startswith("runs/") for name in first)
    add(tiny(FAILS))
    assert command("reproduce", "tiny").code == 4
    second = content(Path("runs/tiny-quick"))
    assert set(second) == set(first)
    assert b'"id": "bad"' in second["claims.json"] and b'"id": "good"' not in second["claims.json"]


def test_a_rerun_leaves_alone_what_someone_has_put_there(command: Command, add: Callable[[Recipe], None]) -> None:
    add(tiny(HOLDS))
    command("reproduce", "tiny")
    Path("runs/tiny-quick/notes.md").write_text("what I learned")
    before = content(Path())
    assert "notes.md" in command.refused("reproduce", "tiny")
    assert content(Path()) == before


def test_resume_goes_on_with_a_result_and_changes_no_number(command: Command, add: Callable[[Recipe], None]) -> None:
    add(tiny(HOLDS))
    command("reproduce", "tiny")
    tables = {name: data for name, data in content(Path("runs")).items() if name.endswith(".parquet")}
    assert tables
    assert command("reproduce", "tiny", "--resume").code == 0
    assert {name: data for name, data in content(Path("runs")).items() if name.endswith(".parquet")} == tables


# --- every recipe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_found_and_says_what_it_does(name: str, command: Command) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name and set(recipe.scales) == {"quick", "full"}
    assert recipe.title and recipe.source and recipe.about.endswith(".")
    assert name in command("list", "recipes").out
    assert f"use sojourn reproduce {name}" in command.refused("run", name)
