"""The application, the options that several commands take, and how results are shown."""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sojourn.history import History

OK, WRONG, DIVERGED, REFUTED, STOPPED = 0, 2, 3, 4, 130


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated optimization with local updates.\n\n"
    "Start with `sojourn run digits`, a comparison of four methods on real data; `sojourn list` shows what a config "
    "can name, `sojourn reproduce thesis-5.1a` repeats a figure of a paper and judges its claims.\n\n"
    "Exit codes: 0 done, 2 a mistake in what was asked, 3 a run diverged, 4 a claim of a recipe does not hold, "
    "130 stopped by a signal.",
)


Out = Annotated[Path | None, typer.Option(help="Directory of the run. Default: runs/NAME.", show_default=False)]


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="Change the config, e.g. --set run.rounds=50. May be repeated."
    ),
]


Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the directory, or start it.")]


Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run in the directory.")]


File = Annotated[str, typer.Argument(metavar="FILE.toml", help="A config, or the name of a recipe.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"sojourn {importlib.metadata.version('sojourn')}")
        raise typer.Exit


def config_file(name: str) -> Path:
    """A path, or the name of a config that comes with the package."""
    from sojourn.catalogue import recipe_files
    from sojourn.core.errors import SojournError, unknown_name

    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        from sojourn.recipes import RECIPES

        if name in RECIPES:
            raise SojournError(f"{name} is a recipe with claims, not a config; use sojourn reproduce {name}.")
    if path.suffix != ".toml" and not path.exists():
        recipes = recipe_files()
        if name not in recipes:
            raise unknown_name("file or recipe", name, recipes)
        return recipes[name]
    return path


def run_directory(path: Path, out: Path | None, resume: bool, force: bool, suffix: str = "") -> Path:
    from sojourn.core.errors import SojournError
    from sojourn.experiment import discard

    place = out or Path("runs") / f"{path.stem}{suffix}"
    if resume and force:
        raise SojournError("--resume goes on with a run and --force replaces it; give one of them.")
    if force:
        discard(place)
    return place


def show(histories: "list[History]", place: Path, title: str, again: str = "--resume") -> None:
    """The table of results, the report, and the exit code that is true."""
    from sojourn.report import render, rich_table

    console = Console()
    console.print(rich_table(histories, console.width))
    for history in histories:
        entries = [history.manifest, *history.manifest.get("settings", [])]
        for line in [*rules(history.label, entries), *setups(history.label, entries)]:
            say(line)
    page = render(histories, place, title=title)
    say(f"report: {page}")
    statuses = {history.status for history in histories}
    if "stopped" in statuses:
        say(f"stopped; go on with {again}")
        raise typer.Exit(STOPPED)
    if "diverged" in statuses:
        names = ", ".join(h.label for h in histories if h.status == "diverged")
        say(f"diverged: {names}; the histories up to there are kept. A smaller step size may help.")
        raise typer.Exit(DIVERGED)


def setups(label: str, entries: "Sequence[Mapping[str, Any]]") -> list[str]:
    """What the start took, and what theory says of it; of a sweep the first few."""
    lines = []
    for entry in [e for e in entries if "setup" in e][:5]:
        setup, where = entry["setup"], _where(entry)
        verdict = setup.get("checked", {}).get("verdict")
        sent = f"before round 1 the start took {setup['floats_down']:,} numbers down and {setup['floats_up']:,} up"
        lines.append(f"{label}{where}: {sent}" + (f"; its conditions: {verdict}" if verdict else ""))
    return lines


def _where(entry: "Mapping[str, Any]") -> str:
    return "".join(f", {key} = {value}" for key, value in entry.get("labels", {}).items())


def rules(label: str, entries: "Sequence[Mapping[str, Any]]") -> list[str]:
    """What a run tunes itself, the steps that theory chose, and the conditions that do not hold; of a sweep the first
    few."""
    lines = []
    for entry in [e for e in entries if "self_tuning" in e][:5]:
        tuning = entry["self_tuning"]
        first = f", the first step is {tuning['first_step']:.4g}" if "first_step" in tuning else ""
        lines.append(f"{label}{_where(entry)}: the run tunes {' and '.join(tuning['tuned'])} itself{first}")
    for entry in [e for e in entries if "step_rule" in e][:5]:
        rule = entry["step_rule"]
        failing = [text for text, holds in rule["conditions"] if not holds]
        caution = f"; its conditions do not hold: needs {', '.join(failing)}" if failing else ""
        where = _where(entry)
        lines.append(f"{label}{where}: {rule['option']} = {rule['value']:.4g} by {rule['rule']}{caution}")
    return lines


def say(text: str) -> None:
    """A line as it is: brackets in a path are no markup, and a long one is not broken."""
    Console().print(text, markup=False, soft_wrap=True)
