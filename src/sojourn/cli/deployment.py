"""The commands of a deployment: serve, invite, join, status."""

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sojourn.cli.console import STOPPED, Changes, File, Out, app, config_file, say, show

Run = Annotated[
    Path | None, typer.Option("--run", help="Directory of the deployment. Default: the only one under runs/.")
]


@app.command("serve")
def serve_command(
    file: File,
    out: Out = None,
    set_: Changes = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the broker listens. Default: 127.0.0.1:4222.")
    ] = None,
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
    ui_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where it is shown, if not on 127.0.0.1:8080.")
    ] = None,
) -> None:
    """Conduct a run on real machines: workers that `join` train on data that stay with them.

    Starts a broker of its own, whose storage is in the run's directory. If the server is killed, the same command goes
    on: every upload counts once. Beyond this machine all is encrypted, with a certificate that is made here or yours.

    Examples: `sojourn serve my.toml --ui`, `sojourn serve my.toml --listen 0.0.0.0:4222 --host fed.example.org`
    """
    _needs_deployment()
    from sojourn.config import load_config
    from sojourn.deploy.place import PAGE, Place, tls_files
    from sojourn.progress import Display
    from sojourn.serving import serve

    path = config_file(file)
    config = load_config(path, set_ or [])
    run = out or Path("runs") / path.stem
    tls = tls_files(certificate, key, authority)
    page = ui_listen or (PAGE if ui else None)
    where = Place(listen, broker, page, tuple(host or ()), tls, authority)
    with Display(config.algorithms[0].label, config.run.rounds, words="waiting for workers") as display:
        history = serve(config, run, where, told=lambda s: display.update(*s.progress()), say=say)
    show([history], run, path.stem, again="the same command")


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
    from sojourn.deploy.invitations import find_run, invite, write_users
    from sojourn.deploy.invitations import revoke as take_back

    place = find_run(run)
    if revoke:
        take_back(name, place)
        say(f"{name} may not come in any more")
    else:
        file = out or Path(f"{name}.creds")
        invite(name, place, file, authority)
        say(f"{file}: with it, {name} joins by sojourn join URL --creds {file} --data MODULE:FUNCTION")
    if users is not None:
        write_users(place, users)
        say(f"{users}: include it in the broker's configuration and reload it")


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
    say(f"{who.name}: the run is over; {done} tasks done")


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

    from sojourn.deploy.invitations import find_run
    from sojourn.deploy.status import read_status, status_renderable

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
