"""The commands that help to choose what to run: diagnose, advise, check, list."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from sojourn.cli.console import Changes, File, app, config_file, rules, say


@app.command("diagnose")
def diagnose_command(
    file: File,
    set_: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of diagnosis.json. Default: runs/NAME-diagnosis.", show_default=False)
    ] = None,
    scalars_only: Annotated[
        bool, typer.Option("--scalars-only", help="Send no vectors beyond the model itself.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON, and nothing else.")] = False,
) -> None:
    """Measure what the clients of a config are like: curvature, noise, how they differ; and what it took to know.

    Examples: `sojourn diagnose digits`, `sojourn diagnose my.toml --scalars-only --json`
    """
    from sojourn.config import load_config
    from sojourn.diagnosis import diagnose, save_diagnosis
    from sojourn.diagnosis.findings import DIAGNOSIS_FILE
    from sojourn.diagnosis.table import diagnosis_table
    from sojourn.experiment import build_federation, precision

    path = config_file(file)
    config = load_config(path, set_ or [])
    place = (out or Path("runs") / f"{path.stem}-diagnosis") / DIAGNOSIS_FILE
    with precision(config):
        found = diagnose(build_federation(config), seed=seed, scalars_only=scalars_only)
    save_diagnosis(found, place)
    if json_:
        print(json.dumps(found.to_json(), indent=1))
    else:
        Console().print(diagnosis_table(found))
        say(f"diagnosis: {place}")


@app.command("advise")
def advise_command(
    file: File,
    target: Annotated[str, typer.Option(metavar="KIND=VALUE", help="loss=0.1, grad=1e-3 or distance=0.01.")],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="rounds, floats, gradients, local_steps, client_vectors, participation, staleness or slowest; "
            "repeatable.",
        ),
    ] = None,
    set_: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of what is written. Default: runs/NAME-advice.", show_default=False)
    ] = None,
    scalars_only: Annotated[
        bool, typer.Option("--scalars-only", help="Diagnose without sending vectors; bounds alone decide then.")
    ] = False,
    trial: Annotated[
        int | None, typer.Option(help="Rounds of a trial on the federation; 0: none.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
) -> None:
    """Diagnose the federation of a config, and advise what to run on it to reach a target.

    Writes advice.json, advice.html and a run.toml that is ready to run.
    Example: `sojourn advise my.toml --target loss=0.1 --budget rounds=200`
    """
    from sojourn.advice.asked import parse_budget, parse_target
    from sojourn.advice.table import advice_table
    from sojourn.advising import advise_config
    from sojourn.config import load_config

    path = config_file(file)
    config = load_config(path, set_ or [])
    place = out or Path("runs") / f"{path.stem}-advice"
    advice = advise_config(
        config, place, target=parse_target(target), budget=parse_budget(budget or []), trial_rounds=trial, seed=seed,
        scalars_only=scalars_only,
    )  # fmt: skip
    Console().print(advice_table(advice))
    say(f"advice: {place / 'advice.html'}")
    if advice.best is not None:
        say(f"to run it: sojourn run {place / 'run.toml'}")


@app.command()
def check(file: File, set_: Changes = None) -> None:
    """Validate a config without running it: its words, its data, and whether its methods fit."""
    from sojourn.config import load_config
    from sojourn.experiment import check_config
    from sojourn.tuning import tuned

    config = load_config(config_file(file), set_ or [])
    federation = check_config(config)
    for part in config.algorithms:
        for line in rules(part.label, [tuned(part, federation, config)[1]]):
            say(line)
    labels = ", ".join(part.label for part in config.algorithms)
    say(f"{file} is valid: {config.problem.name}, {labels}, {config.run.rounds} rounds.")


Room = Literal[
    "algorithms", "problems", "partitions", "models", "datasets", "texts", "engines", "clocks", "availabilities",
    "schedules", "aggregators", "probes", "recipes",
]  # fmt: skip  # fmt: skip


@app.command("list")
def list_command(
    room: Annotated[Room | None, typer.Argument(help="What to list; everything if left out.")] = None,
) -> None:
    """List what a config can name, with options and defaults."""
    from sojourn.catalogue import ROOMS, entries

    console = Console()
    for name in [room] if room else ROOMS:
        table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("name", style="bold", no_wrap=True)
        table.add_column("what it is")
        table.add_column("options (default)", style="dim")
        for entry in entries(name):
            table.add_row(entry.name, entry.summary, ", ".join(entry.options))
        console.print(table)
        console.print()
