"""The commands that run something and show what came of it: run, sweep, reproduce, report."""

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sojourn.cli.console import (
    REFUTED,
    STOPPED,
    Changes,
    File,
    Force,
    Out,
    Resume,
    app,
    config_file,
    run_directory,
    say,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.recipes import Claim


class FigureFormat(enum.StrEnum):
    PNG = "png"
    SVG = "svg"


@app.command("run")
def run_command(
    file: File, out: Out = None, set_: Changes = None, resume: Resume = False, force: Force = False
) -> None:
    """Run the methods of a config, and write their histories and a report.

    Examples: `sojourn run digits`, `sojourn run my.toml --out runs/a --set run.seed=1`, `sojourn run my.toml --resume`.
    """
    from sojourn.config import load_config
    from sojourn.experiment import run_config

    path = config_file(file)
    config = load_config(path, set_ or [])
    place = run_directory(path, out, resume, force)
    show(run_config(config, place, resume=resume), place, path.stem)


@app.command()
def sweep(
    file: File,
    axes: Annotated[list[str], typer.Argument(metavar="TABLE.KEY=VALUES", help="e.g. run.seed=0:20 or x.y=0.1,1")],
    out: Out = None,
    set_: Changes = None,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Run a config for every combination of values; step sizes and seeds run together as one program.

    Example: `sojourn sweep my.toml algorithm.step_size=0.01,0.1,1 run.seed=0:20`
    """
    from sojourn.config import read_tables, with_changes
    from sojourn.experiment import sweep_config

    path = config_file(file)
    tables = with_changes(read_tables(path), set_ or [])
    place = run_directory(path, out, resume, force, suffix="-sweep")
    show(sweep_config(tables, axes, place, resume=resume), place, f"{path.stem} sweep")


class Scale(enum.StrEnum):
    QUICK = "quick"
    FULL = "full"


@app.command("reproduce")
def reproduce_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Its name; `sojourn list recipes` shows them.")],
    scale: Annotated[Scale, typer.Option(help="quick: a minute or a few; full: the size of the paper.")] = Scale.QUICK,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the result. Default: runs/RECIPE-SCALE.", show_default=False)
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the claims as JSON, and nothing else.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a reproduction that was stopped.")] = False,
    publish: Annotated[
        Path | None,
        typer.Option(help="Also write a Markdown page with figures here, and an index.", show_default=False),
    ] = None,
) -> None:
    """Repeat a figure of a paper and judge what the paper claims of it.

    Exits with 0 only if every claim holds; one that fails, or that the data do not decide, is shown with its evidence.

    Examples: `sojourn reproduce thesis-5.1a`, `sojourn reproduce thesis-4.2 --scale full --json`
    """
    from sojourn.core.errors import SojournError
    from sojourn.recipes import reproduce
    from sojourn.recipes.base import CLAIMS_FILE, summary
    from sojourn.recipes.publish import publish as write_page

    place = out or Path("runs") / f"{recipe}-{scale.value}"
    if publish is not None and publish.exists() and not publish.is_dir():
        raise SojournError(f"{publish} is a file; give a directory as --publish.")
    _make_room(recipe, scale.value, place, resume)
    try:
        done = reproduce(recipe, scale.value, out=place, resume=resume)
    except KeyboardInterrupt:
        print("sojourn: stopped; go on with --resume", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    if publish is not None:
        write_page(done, publish)
    if json_:
        print((place / CLAIMS_FILE).read_text(encoding="utf-8"), end="")
    else:
        Console().print(_claims_table(done.claims))
        say(f"{summary(done.claims)} {done.seconds:.1f} s")
        say(f"report: {place / 'report.html'}")
    if not done.holds:
        raise typer.Exit(REFUTED)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Directories of runs or sweeps.")],
    out: Annotated[Path | None, typer.Option(help="Where to write report.html. Default: the first DIR.")] = None,
    figures: Annotated[list[FigureFormat] | None, typer.Option(help="Also write the figures. May be repeated.")] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "sojourn report",
) -> None:
    """Compare runs on one page: curves, tables, configs.

    Example: `sojourn report runs/a runs/b --out compared --figures svg`
    """
    from sojourn.experiment import find_runs
    from sojourn.report import render

    histories = [history for directory in directories for history in find_runs(directory)]
    page = render(histories, out or directories[0], title=title, figures=[form.value for form in figures or []])
    say(f"report: {page}")


def _claims_table(claims: "Sequence[Claim]") -> Table:
    """Verdicts on the left; the claim, its evidence, and how it was judged on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for claim in claims:
        style = {True: "bold green", False: "bold red", None: "bold yellow"}[claim.holds]
        table.add_row(Text(claim.verdict, style=style), Text(f"{claim.id}: {claim.text}"))
        table.add_row("", Text(claim.evidence))
        table.add_row("", Text(" · ".join(claim.rule()), style="dim"))
    return table


def _make_room(recipe: str, scale: str, place: Path, resume: bool) -> None:
    """A new directory, or that of the same recipe, whose earlier result gives way; a mistaken name touches nothing."""
    from sojourn.catalogue import recipe_files
    from sojourn.core.errors import SojournError, unknown_name
    from sojourn.experiment import claim_for_recipe
    from sojourn.recipes import RECIPES

    if recipe in recipe_files():
        raise SojournError(f"{recipe} is a config without claims; use sojourn run {recipe}.")
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    claim_for_recipe(place, f"{recipe} {scale}", resume)
