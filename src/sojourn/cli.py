"""The command line. It prints, asks and exits; all work is done by `sojourn.experiment` and `sojourn.report`."""

import enum
import importlib.metadata
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sojourn.history import History
    from sojourn.recipes import Claim

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

    path = _config_file(file)
    config = load_config(path, set_ or [])
    place = _place(path, out, resume, force)
    _show(run_config(config, place, resume=resume), place, path.stem)


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

    path = _config_file(file)
    tables = with_changes(read_tables(path), set_ or [])
    place = _place(path, out, resume, force, suffix="-sweep")
    _show(sweep_config(tables, axes, place, resume=resume), place, f"{path.stem} sweep")


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
        _say(f"{summary(done.claims)} {done.seconds:.1f} s")
        _say(f"report: {place / 'report.html'}")
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
    _say(f"report: {page}")


Run = Annotated[
    Path | None, typer.Option("--run", help="Directory of the deployment. Default: the only one under runs/.")
]


@app.command("serve")
def serve_command(
    file: File,
    out: Out = None,
    set_: Changes = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the broker listens.")] = "127.0.0.1:4222",
    host: Annotated[
        list[str] | None, typer.Option(help="A further name by which workers reach it, for its certificate.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="A broker that runs elsewhere, as nats://HOST:PORT.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="Your own certificate, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its secret key.")] = None,
    authority: Annotated[
        Path | None, typer.Option(help="The authority that signed it, or the certificate of --broker.")
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Show a live page of the run.")] = False,
    ui_listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the page is shown.")] = "127.0.0.1:8080",
) -> None:
    """Conduct a run on real machines: workers that `join` train on data that stay with them.

    Starts a broker of its own, whose storage is in the run's directory. If the server is killed, the same command goes
    on: every upload counts once. Beyond this machine all is encrypted, with a certificate that is made here or yours.

    Examples: `sojourn serve my.toml --ui`, `sojourn serve my.toml --listen 0.0.0.0:4222 --host fed.example.org`
    """
    _needs_deployment()
    from sojourn.config import load_config
    from sojourn.progress import Display
    from sojourn.serving import Place, serve, tls_files

    path = _config_file(file)
    config = load_config(path, set_ or [])
    run = out or Path("runs") / path.stem
    tls = tls_files(certificate, key, authority)
    where = Place(listen, broker, ui_listen if ui else None, tuple(host or ()), tls, authority)
    with Display(config.algorithms[0].label, config.run.rounds, words="waiting for workers") as display:
        history = serve(config, run, where, told=lambda s: display.update(*s.progress()), say=_say)
    _show([history], run, path.stem, again="the same command")


@app.command("invite")
def invite_command(
    name: Annotated[str, typer.Argument(help="The worker's name: letters, digits, - and _.")],
    out: Annotated[Path | None, typer.Option(help="Its credentials. Default: NAME.creds.", show_default=False)] = None,
    run: Run = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            help="The authority of your own certificate, or of a broker that runs elsewhere.", show_default=False
        ),
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take the invitation back instead.")] = False,
    users: Annotated[
        Path | None, typer.Option(help="Also write the users of a broker that runs elsewhere.", show_default=False)
    ] = None,
) -> None:
    """Make one worker's credentials. Give the file to the worker, over a safe way, and to nobody else.

    Examples: `sojourn invite ada --out ada.creds`, `sojourn invite ada --revoke`
    """
    _needs_deployment()
    from sojourn.serving import find_run, invite, write_users
    from sojourn.serving import revoke as take_back

    place = find_run(run)
    if revoke:
        take_back(name, place)
        _say(f"{name} may not come in any more")
    else:
        file = out or Path(f"{name}.creds")
        invite(name, place, file, authority)
        _say(f"{file}: with it, {name} joins by sojourn join URL --creds {file} --data MODULE:FUNCTION")
    if users is not None:
        write_users(place, users)
        _say(f"{users}: include it in the broker's configuration and reload it")


@app.command("join")
def join_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the broker: nats://HOST:PORT or tls://HOST:PORT.")],
    creds: Annotated[Path, typer.Option(metavar="FILE", help="Credentials made by sojourn invite.")],
    data: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="Returns this worker's features and labels.")],
    memory: Annotated[
        Path | None, typer.Option(help="Where to keep what must be remembered. Default: beside the credentials.")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a server that does not answer.")] = 600.0,
) -> None:
    """Take part in a run with private data, which never leave this machine; only uploads do.

    The function returns (features, labels), or a sojourn federation of one client; if it takes an argument, that is the
    worker's name. Ends with 0 when the run is over.

    Example: `sojourn join nats://127.0.0.1:4222 --creds ada.creds --data my_data:load`
    """
    _needs_deployment()
    from sojourn.deploy.keys import Credentials
    from sojourn.progress import Line
    from sojourn.serving import join, memory_place

    who = Credentials.load(creds)
    try:
        with Line(who.name) as line:
            done = join(url, who, data, memory or memory_place(creds), patience=patience, told=line.tell)
    except KeyboardInterrupt:
        print(f"sojourn: {who.name} left; the same command joins again", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    _say(f"{who.name}: the run is over; {done} tasks done")


@app.command("status")
def status_command(
    run: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Of the deployment. Default: the only one under runs/.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until Ctrl-C or the run is over.")] = False,
) -> None:
    """Show a deployment: workers and what each is doing, versions, staleness, queue, last losses."""
    _needs_deployment()
    from rich.live import Live

    from sojourn.deploy.status import read_status, status_renderable
    from sojourn.serving import find_run

    place = find_run(run)
    found = read_status(place)
    if not watch:
        Console().print(status_renderable(found))
        return
    with Live(status_renderable(found), refresh_per_second=2) as live:
        while found["run"]["status"] in ("waiting", "running"):
            time.sleep(1.0)
            found = read_status(place)
            live.update(status_renderable(found))


def _needs_deployment() -> None:
    """What only a deployment needs is installed apart."""
    from sojourn.core.errors import SojournError

    missing = [name for name in ("nats", "nkeys", "nacl", "cryptography", "aiohttp") if not find_spec(name)]
    if missing:
        raise SojournError(f"deployment needs {missing[0]}; install it with: pip install 'sojourn[deploy]'")


@app.command()
def check(file: File, set_: Changes = None) -> None:
    """Validate a config without running it: its words, its data, and whether its methods fit."""
    from sojourn.config import load_config
    from sojourn.experiment import check_config, tuned

    config = load_config(_config_file(file), set_ or [])
    federation = check_config(config)
    for part in config.algorithms:
        for line in _rules(part.label, [tuned(part, federation, config)[1]]):
            _say(line)
    labels = ", ".join(part.label for part in config.algorithms)
    _say(f"{file} is valid: {config.problem.name}, {labels}, {config.run.rounds} rounds.")


Room = Literal[
    "algorithms", "problems", "partitions", "models", "datasets", "texts", "engines", "clocks", "availabilities",
    "schedules", "aggregators", "probes", "recipes",
]  # fmt: skip


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


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"sojourn {importlib.metadata.version('sojourn')}")
        raise typer.Exit


def _config_file(name: str) -> Path:
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


def _place(path: Path, out: Path | None, resume: bool, force: bool, suffix: str = "") -> Path:
    from sojourn.core.errors import SojournError
    from sojourn.experiment import discard

    place = out or Path("runs") / f"{path.stem}{suffix}"
    if resume and force:
        raise SojournError("--resume goes on with a run and --force replaces it; give one of them.")
    if force:
        discard(place)
    return place


def _show(histories: "list[History]", place: Path, title: str, again: str = "--resume") -> None:
    """The table of results, the report, and the exit code that is true."""
    from sojourn.report import render, rich_table

    console = Console()
    console.print(rich_table(histories, console.width))
    for history in histories:
        entries = [history.manifest, *history.manifest.get("settings", [])]
        for line in [*_rules(history.label, entries), *_setups(history.label, entries)]:
            _say(line)
    page = render(histories, place, title=title)
    _say(f"report: {page}")
    statuses = {history.status for history in histories}
    if "stopped" in statuses:
        _say(f"stopped; go on with {again}")
        raise typer.Exit(STOPPED)
    if "diverged" in statuses:
        names = ", ".join(h.label for h in histories if h.status == "diverged")
        _say(f"diverged: {names}; the histories up to there are kept. A smaller step size may help.")
        raise typer.Exit(DIVERGED)


def _setups(label: str, entries: "Sequence[Mapping[str, Any]]") -> list[str]:
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


def _rules(label: str, entries: "Sequence[Mapping[str, Any]]") -> list[str]:
    """The steps that theory chose, and the conditions that do not hold; of a sweep the first few."""
    lines = []
    for entry in [e for e in entries if "step_rule" in e][:5]:
        rule = entry["step_rule"]
        failing = [text for text, holds in rule["conditions"] if not holds]
        caution = f"; its conditions do not hold: needs {', '.join(failing)}" if failing else ""
        where = _where(entry)
        lines.append(f"{label}{where}: {rule['option']} = {rule['value']:.4g} by {rule['rule']}{caution}")
    return lines


def _say(text: str) -> None:
    """A line as it is: brackets in a path are no markup, and a long one is not broken."""
    Console().print(text, markup=False, soft_wrap=True)


def main() -> None:
    """Errors a user can mend become one sentence and exit code 2."""
    from sojourn.core.errors import SojournError

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, also while nothing is running yet
    try:
        app()
    except SojournError as error:
        print(f"sojourn: {error}", file=sys.stderr)
        sys.exit(WRONG)
    except KeyboardInterrupt:
        print("sojourn: stopped", file=sys.stderr)
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.exit(WRONG)
    except OSError as error:  # a disk that is full, a path too long, a directory that may not be entered
        print(f"sojourn: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        sys.exit(WRONG)
