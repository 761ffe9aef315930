"""Reproductions as Markdown: every claim with its verdict, figures that are pictures, an index that follows."""

import json
from collections.abc import Callable
from pathlib import Path

from sojourn.recipes import RECIPES, Bench, Findings, Recipe
from sojourn.recipes.base import SECONDS_FILE, Table
from test_cli import Command
from test_recipes import FAILS, HOLDS, OPEN, add, command, tiny  # noqa: F401

Add = Callable[[Recipe], None]


def test_a_page_shows_every_claim_figure_and_table(command: Command, add: Add) -> None:  # noqa: F811
    plain = tiny(HOLDS, FAILS, OPEN, figure=("bad",))

    def with_table(bench: Bench) -> Findings:
        found = plain.carry_out(bench)
        return Findings(found.claims, found.figures, found.histories, [Table("Ends", ("who", "what"), [("a|b", "1")])])

    add(Recipe(plain.name, plain.title, plain.source, plain.about, plain.scales, with_table))
    assert command("reproduce", "tiny", "--out", "here", "--publish", "pages").code == 4
    page = Path("pages/tiny-quick/README.md").read_text(encoding="utf-8")
    for claim in (HOLDS, FAILS, OPEN):
        assert f"| **{claim.verdict}** | {claim.text} | {claim.evidence} |" in page
    assert "## Ends" in page and "| a\\|b | 1 |" in page
    assert Path("pages/tiny-quick/figure-1.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "![A chart](figure-1.svg)" in page
    index = Path("pages/README.md").read_text(encoding="utf-8")
    assert "[tiny, quick](tiny-quick/README.md)" in index and "| 1 of 3 | bad |" in index
    assert "Ends" in Path("here/report.html").read_text(encoding="utf-8")


def test_the_index_follows_what_lies_there(command: Command, add: Add) -> None:  # noqa: F811
    add(tiny(HOLDS))
    add(tiny(FAILS, name="other"))
    command("reproduce", "tiny", "--out", "a", "--publish", "pages")
    Path("pages/tiny-quick/figure-7.svg").write_text("of an earlier version")
    Path("pages/foreign").mkdir()
    Path("pages/foreign/claims.json").write_text("{}")  # somebody else's
    command("reproduce", "other", "--out", "b", "--publish", "pages")
    command("reproduce", "tiny", "--out", "a", "--publish", "pages")
    assert not Path("pages/tiny-quick/figure-7.svg").exists()
    index = Path("pages/README.md").read_text(encoding="utf-8")
    assert "| 1 of 1 | none |" in index and "| 0 of 1 | bad |" in index


def test_a_file_in_the_way_is_named_and_left(command: Command, add: Add) -> None:  # noqa: F811
    add(tiny(HOLDS))
    Path("pages").write_text("mine")
    assert "pages is a file" in command.refused("reproduce", "tiny", "--out", "here", "--publish", "pages")
    assert Path("pages").read_text() == "mine" and not Path("here").exists()


def test_committed_pages_are_of_recipes_that_exist() -> None:
    folder = Path(__file__).parent.parent / "docs" / "reproductions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    kept = sorted(folder.glob("*/claims.json"))
    assert kept
    for path in kept:
        told = json.loads(path.read_text(encoding="utf-8"))
        assert told["recipe"] in RECIPES and f"({path.parent.name}/README.md)" in index


def test_claims_at_a_smaller_scale_are_marked_so_everywhere(command: Command, add: Add) -> None:  # noqa: F811
    plain = tiny(HOLDS)
    scales = {"quick": {"rounds": 2, "scaled": "a <pond> for the sea"}, "full": {"rounds": 3}}
    add(Recipe(plain.name, plain.title, plain.source, plain.about, scales, plain.carry_out))
    answer = command("reproduce", "tiny", "--out", "here", "--publish", "pages")
    assert "scaled: a <pond> for the sea" in answer.out
    assert "scaled: a <pond> for the sea" in Path("pages/tiny-quick/README.md").read_text(encoding="utf-8")
    assert "scaled: a &lt;pond&gt; for the sea" in Path("here/report.html").read_text(encoding="utf-8")
    assert json.loads(Path("here/claims.json").read_text())["claims"][0]["scaled"] == "a <pond> for the sea"
    full = command("reproduce", "tiny", "--scale", "full", "--out", "there", "--publish", "pages")
    assert "scaled" not in full.out


def test_seconds_go_on_when_a_reproduction_is_taken_up_again(command: Command, add: Add) -> None:  # noqa: F811
    add(tiny(HOLDS))
    command("reproduce", "tiny", "--out", "here")
    Path("here", SECONDS_FILE).write_text("1000.0\n", encoding="utf-8")
    command("reproduce", "tiny", "--out", "here", "--resume")
    assert 1000 < json.loads(Path("here/claims.json").read_text(encoding="utf-8"))["seconds"] < 2000
    command("reproduce", "tiny", "--out", "anew")
    assert json.loads(Path("anew/claims.json").read_text(encoding="utf-8"))["seconds"] < 1000


def test_the_results_in_the_documents_are_those_of_the_recipes_as_they_are() -> None:
    """What a page says of its experiment, and which claims it judged, must not lag behind the recipe."""
    folder = Path(__file__).parent.parent / "docs" / "reproductions"
    pages = sorted(folder.glob("*/claims.json"))
    assert len(pages) >= 18
    index = (folder / "README.md").read_text(encoding="utf-8")
    for path in pages:
        told = json.loads(path.read_text(encoding="utf-8"))
        recipe = RECIPES[told["recipe"]]
        assert recipe.about in (path.parent / "README.md").read_text(encoding="utf-8"), path.parent.name
        assert told["title"] == recipe.title and f"({path.parent.name}/README.md)" in index
        scaled = recipe.scales[told["scale"]].get("scaled", "")
        assert {claim["scaled"] for claim in told["claims"]} == {scaled}, path.parent.name
