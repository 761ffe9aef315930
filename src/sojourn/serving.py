"""From a config to a deployment: `serve` conducts a run on real machines, `join` takes part in one.

A run has one directory: the config, keys, the broker's files and storage, the book and its log, the status; a server
that was killed is started again with the same command and goes on. A worker needs its credentials and a function that
returns its data; the method, its numbers and the model come from the server as names and numbers, never as code.
"""

import asyncio
import contextlib
import fcntl
import inspect
import signal
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms import ALGORITHMS, Algorithm
from sojourn.config import Config, build_algorithm, guard, read_tables, simulated, to_toml, validate
from sojourn.core.compilation import use_compilation_cache
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.files import write_atomically
from sojourn.core.plug import called, function_named
from sojourn.core.threads import aside, unless
from sojourn.data.dataset import Dataset, Pixels
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.book import Book
from sojourn.deploy.broker import MAX_PAYLOAD, Broker, Tls, check_url, configuration
from sojourn.deploy.certificates import client_context, is_loopback, own_certificates
from sojourn.deploy.keys import Credentials, Ring, ring_of
from sojourn.deploy.place import Place, host_and_port
from sojourn.deploy.record import history_of
from sojourn.deploy.rounds import InRounds
from sojourn.deploy.server import Server
from sojourn.deploy.status import write_status
from sojourn.deploy.supervision import supervised
from sojourn.deploy.wire import Schema
from sojourn.deploy.worker import Client, Post, work
from sojourn.driver import world_of
from sojourn.engine.participation import cohort_size
from sojourn.experiment import build_federation, federation_on, load_data, method_of
from sojourn.history import CONFIG_FILE, History
from sojourn.models import MODELS
from sojourn.problems import PROBLEMS

_STATUS_SECONDS = 0.5
_GRACE_SECONDS = 10.0  # for a server to end its step when it is told to stop


# --- the server ------------------------------------------------------------------------------------------------------


def serve(
    config: Config, run: Path, where: Place, *, told: Callable[[Server], None] = lambda server: None,
    say: Callable[[str], None] = lambda text: None,
) -> History:  # fmt: skip
    """Conducts a run until it is over or stopped, and writes its history; what is in the directory goes on."""
    _use_precision(config)
    where.check()
    federation, algorithm, notes = _prepared(config)
    with _alone_in(run):
        _check_config(config, run)
        book = _book(config, federation, algorithm, run)
        _keep_config(config, run)
        with ring_of(run) as ring:
            invited = dict(ring.places)
        server = Server(
            book, invited, _welcome(config, federation, algorithm), label=config.algorithms[0].label,
            evaluate=_evaluation(federation, algorithm), eval_every=_eval_every(config, book),
            spent=lambda done: _spent(federation, algorithm, min(done + 1, book.of)).get("privacy"),
            roster=lambda: Ring(run).places, told=told if book.over else _telling(run, told),
        )  # fmt: skip
        _until_it_ends(server, run, _conduct(server, ring, run, where, say))
        about = {"label": server.tally.label, "seed": config.run.seed, "algorithm": algorithm.describe(), **notes}
        about |= _spent(federation, algorithm, book.done + (not book.over))  # the round under way has begun to tell
        status = {"over": "ok", "diverged": "diverged"}.get(server.status, "stopped")
        history = history_of(book, status, about, config.tables)
        history.params = federation.rebuild(algorithm.answer(book.server).tree)
        history.save(run)
        return history


def _until_it_ends(server: Server, run: Path, conducting: Coroutine[Any, Any, None]) -> None:
    """Tells how it ended; nothing of a server that could not start, nor of one whose run was over before."""
    worth_telling = not server.book.over
    try:
        asyncio.run(conducting)
    except BaseException:
        worth_telling = worth_telling and server.ready
        server.stopping.set()  # for nobody will write that it runs
        raise
    finally:
        if worth_telling:
            write_status(run, server.snapshot())


def _use_precision(config: Config) -> None:
    use_compilation_cache()
    jax.config.update("jax_enable_x64", config.run.precision == "float64")  # for all threads, unlike the context


def _prepared(config: Config) -> tuple[Federation, Algorithm, dict[str, Any]]:
    """The federation as the server sees it and the method, or a reason why they cannot be deployed."""
    if len(config.algorithms) != 1:
        raise SojournError(f"a deployment runs one method; the config has {len(config.algorithms)}.")
    part, mode = config.algorithms[0], config.deploy.mode
    asynchronous = ALGORITHMS[part.name].cls.asynchronous
    if mode != "auto" and (mode == "asynchronous") != asynchronous:
        needs = (
            "takes uploads one by one as they come" if asynchronous else "needs the answers of a whole round at once"
        )
        raise SojournError(f'deploy.mode = "{mode}" does not fit "{part.name}", which {needs}; leave it out.')
    for name in (
        ("min_reports", "deadline", "over_selection") if asynchronous else ("concurrency", "ahead", "max_staleness")
    ):
        if getattr(config.deploy, name):
            kind = "rounds" if asynchronous else "methods that take uploads as they come"
            raise SojournError(f'deploy.{name} is for {kind}; "{part.name}" is not: take it out.')
    if config.partition is not None and config.partition.options.get("redeal", "never") != "never":
        raise SojournError("samples cannot change hands between machines; leave partition.redeal out.")
    if config.model is not None and hasattr(MODELS.get(config.model.name), "outline"):
        raise SojournError(
            f'model "{config.model.name}" makes its start together with the clients, which a deployment '
            "does not do; take another model."
        )
    if simulated(config):
        raise SojournError(
            f"{simulated(config)[0]} says how a run is simulated, which means nothing on real machines; take it out."
        )
    federation = build_federation(config)
    method, notes = method_of(part, federation, config, drawn=False)
    method.check(world_of(federation, method, federation.num_clients))
    if config.deploy.min_workers is not None and config.deploy.min_workers > federation.num_clients:
        raise SojournError(
            f"deploy.min_workers = {config.deploy.min_workers} is out of range; there are {federation.num_clients}."
        )
    return federation, method, notes


@contextlib.contextmanager
def _alone_in(run: Path) -> Iterator[None]:
    """One server per run: two would each count what the other handed out."""
    run.mkdir(parents=True, exist_ok=True)
    with open(run / ".serve.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SojournError(f"a server is at work in {run} already; `sojourn status {run}` shows it.") from None
        yield


def _check_config(config: Config, run: Path) -> None:
    """How the run is conducted may change from one server to the next, so that one that waits in vain can be helped."""
    path = run / CONFIG_FILE
    if path.exists() and _lasting_tables(read_tables(path)) != _lasting_tables(config.tables):
        raise SojournError(f"{run} holds a run with another config; go on with {path}, or give another --out.")


def _keep_config(config: Config, run: Path) -> None:
    """Once its book was opened: a server that is refused must not change by what the next one starts."""
    text = to_toml(config.tables)
    write_atomically(run / CONFIG_FILE, lambda beside: beside.write_text(text, encoding="utf-8"))


def _lasting_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if name != "deploy"}


def _book(config: Config, federation: Federation, algorithm: Algorithm, run: Path) -> Book:
    place, seed = run / "book", config.run.seed
    if algorithm.asynchronous:
        uploads = config.run.uploads or config.run.rounds * cohort_size(
            config.run.participation, federation.num_clients
        )  # as many as the rounds of another method would bring
        return OneByOne(federation, algorithm, place, config.deploy, of=uploads, seed=seed)
    return InRounds(
        federation, algorithm, place, config.deploy, of=config.run.rounds, seed=seed,
        participation=config.run.participation,
    )  # fmt: skip


def _eval_every(config: Config, book: Book) -> int:
    every = config.run.eval_every or max(1, config.run.rounds // 100)
    return every * max(1, book.of // config.run.rounds) if isinstance(book, OneByOne) else every


def _evaluation(federation: Federation, algorithm: Algorithm) -> Callable[[Any], dict[str, float]]:
    """The metrics of a server's model on the server's own data."""
    of_model = bool(algorithm.closing())  # its answer needs the clients once more, at the end

    @jax.jit
    def measured(clients: Any, server: Any) -> Any:
        return clients.metrics(algorithm.model(server) if of_model else algorithm.answer(server))

    return lambda server: {name: float(value) for name, value in measured(federation.clients, server).items()}


def _spent(federation: Federation, algorithm: Algorithm, rounds: int) -> dict[str, Any]:
    """What a private method has given away: those are asked who are there, so no draw hides anybody."""
    world = world_of(federation, algorithm, federation.num_clients, drawn=False)
    return algorithm.account(world, rounds) if rounds else {}


def _telling(run: Path, told: Callable[[Server], None]) -> Callable[[Server], None]:
    last = 0.0

    def tell(server: Server) -> None:
        nonlocal last
        told(server)
        if time.monotonic() - last > _STATUS_SECONDS:
            last = time.monotonic()
            write_status(run, server.snapshot())

    return tell


def _welcome(config: Config, federation: Federation, algorithm: Algorithm) -> dict[str, Any]:
    """What a worker is told: names and numbers, from which it builds the same method and model on its own data."""
    part, sent = config.algorithms[0], ("problem", "model", "data", "run", "aggregation", "privacy")
    options = {name: value for name, value in algorithm.plain().describe().items() if name in part.options}
    tables = {name: dict(table) for name, table in config.tables.items() if name in sent}
    tables["run"].pop("seed", None)  # tasks bring their keys, and a seed would tell the server's own draws
    if tables.get("privacy", {}).pop("epsilon", None) is not None:
        tables["privacy"]["noise_multiplier"] = algorithm.describe()["noise_multiplier"]
    tables["algorithm"] = {
        "name": part.name,
        "label": part.label,
        **{k: v for k, v in options.items() if v is not None},
    }
    shape: dict[str, Any] = {}
    if PROBLEMS[config.problem.name].takes_data and not PROBLEMS[config.problem.name].takes_text:
        data = load_data(config)
        shape = {"inputs": list(data.x_train.shape[1:]), "classes": data.num_classes}
        if data.pixels is not None:
            shape |= {"mean": list(data.pixels.mean), "std": list(data.pixels.std)}
    return {"tables": tables, "shape": shape, "start": Schema.of(federation.x0).shapes}


# --- the broker ------------------------------------------------------------------------------------------------------


async def _conduct(server: Server, ring: Ring, run: Path, where: Place, say: Callable[[str], None]) -> None:
    hurry = _on_signals(server.stopping)
    async with contextlib.AsyncExitStack() as stack:
        tls: ssl.SSLContext | None
        if where.broker is None:
            url, tls = await stack.enter_async_context(_own_broker(ring, run, where, say))
            say(f"the broker listens on {url}; `sojourn invite NAME --run {run}` lets a worker in")
        else:
            url, tls = where.broker, _trusted(where.broker, where.authority.read_text() if where.authority else None)
        if where.page is not None:
            from sojourn.deploy.page import new_token, serve_page

            host, port = host_and_port(where.page, "--ui-listen")
            token = None if is_loopback(host) else new_token()
            page = await stack.enter_async_context(serve_page(server.snapshot, host, port, token))
            say(f"status page: {page}")
        await unless(server.stopping, server.run(url, ring.server.seed, tls), _GRACE_SECONDS, hurry)


def _on_signals(event: asyncio.Event) -> asyncio.Event:
    """The first signal sets the event, a second one the event that is returned: somebody does not want to wait."""
    again = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: (again if event.is_set() else event).set())
    return again


def _trusted(url: str, authority: str | None) -> Any:
    """TLS unless the broker is on this machine."""
    found = urllib.parse.urlsplit(url)
    return None if found.scheme == "nats" and is_loopback(found.hostname or "") else client_context(authority)


@contextlib.asynccontextmanager
async def _own_broker(ring: Ring, run: Path, where: Place, say: Callable[[str], None]) -> Any:
    """A broker that is started, told of new invitations, started again if it dies, and stopped in the end."""
    host, port = where.listens_on
    tls = where.tls
    if tls is None and not is_loopback(host):
        tls = own_certificates(run / "certificates", [*_names(host), *where.hosts])
    broker = Broker(run / "broker", "127.0.0.1" if host in ("0.0.0.0", "::") else host, port)
    broker.stop_earlier()
    _check_free(host, port)
    write = lambda: broker.configure(  # noqa: E731
        configuration(host, port, run / "broker" / "storage", ring.server.public, Ring(run).workers, tls, MAX_PAYLOAD)
    )
    known = Ring(run).changed
    write()
    broker.start()
    try:
        await broker.wait_until_up()
        async with supervised(broker, ring, write, known, say):
            scheme = "nats" if tls is None else "tls"
            yield f"{scheme}://{_bracketed(broker.host)}:{port}", None if tls is None else _at_home(tls)
    finally:
        broker.stop()


def _at_home(tls: Tls) -> ssl.SSLContext:
    """The server calls its own broker by an address that a certificate need not name."""
    context = client_context(tls.authority.read_text())
    context.check_hostname = False
    return context


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _names(host: str) -> list[str]:
    """By which workers elsewhere may call a broker that listens on all of its machine's addresses."""
    return [socket.gethostname(), socket.getfqdn()] if host in ("0.0.0.0", "::") else [host]


def _check_free(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        raise SojournError(f"cannot listen on {host}:{port}: {error.strerror}; give another --listen.") from None


# --- the worker ------------------------------------------------------------------------------------------------------


def join(
    url: str, creds: Credentials, data: str, place: Path, *, patience: float = 60.0,
    told: Callable[[int, str], None] = lambda done, what: None,
) -> int:  # fmt: skip
    """Takes part in a run until it is over; returns how many tasks were done."""
    check_url(url)
    if not patience > 0:
        raise SojournError(f"--patience {patience:g} is no time to wait; give a positive number of seconds.")
    function_named(data)  # mistakes are told before anybody is called
    return asyncio.run(_take_part(url, creds, data, place, patience, told))


async def _take_part(
    url: str, creds: Credentials, data: str, place: Path, patience: float, told: Callable[[int, str], None]
) -> int:
    leave = asyncio.Event()
    _on_signals(leave)
    done = await unless(leave, _worked(Post(url, creds, _trusted(url, creds.authority), patience), data, place, told))
    if done is None:
        raise KeyboardInterrupt
    return int(done)


async def _worked(post: Post, data: str, place: Path, told: Callable[[int, str], None]) -> int:
    async with post:
        told(0, "saying hello")
        welcome = await post.hello()
        if welcome["over"]:
            return 0
        client = await aside(_client, welcome, post.name, data, place)
        await post.hello(samples=_samples(client))
        return await work(post, client, told)


def _samples(client: Client) -> int:
    objective = client.federation.clients.objective
    return max(1, int(objective.num_samples(objective.open(jnp.zeros((), jnp.int32)))))


def _client(welcome: Mapping[str, Any], name: str, data: str, place: Path) -> Client:
    """The client that a worker is: the server's names and numbers, its own data."""
    config = validate(welcome["tables"])
    _use_precision(config)
    given = called(data, name) if _takes_name(data) else called(data)
    federation = given if isinstance(given, Federation) else _federation_of(config, welcome["shape"], given, data)
    expected = Schema(tuple((kind, tuple(shape)) for kind, shape in welcome["start"]))
    if Schema.of(federation.x0) != expected:
        raise SojournError(
            f"what {data} returns makes a model of {Schema.of(federation.x0).num_bytes} bytes in other arrays than the "
            f"server's of {expected.num_bytes}; give the server's model the same data shapes."
        )
    noise = None if config.privacy is None else config.privacy.noise_multiplier
    return Client(federation, guard(config, build_algorithm(config.algorithms[0]), noise), place)


def _takes_name(data: str) -> bool:
    try:
        return bool(inspect.signature(function_named(data)).parameters)
    except ValueError:  # some that are built in do not tell
        return True


def _federation_of(config: Config, shape: Mapping[str, Any], given: Any, data: str) -> Federation:
    """The config's problem on one client's arrays."""
    if not shape:
        raise SojournError(
            f'problem "{config.problem.name}" has no arrays; {data} must return a sojourn federation of one client.'
        )
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise SojournError(f"{data} returns a {type(given).__name__}; expected features and labels, or a federation.")
    x, y = (_array(part, what, data) for part, what in zip(given, ("features", "labels"), strict=True))
    if list(x.shape[1:]) != shape["inputs"]:
        raise SojournError(
            f"{data} returns samples of shape {x.shape[1:]}; the server's have {tuple(shape['inputs'])}."
        )
    pixels = Pixels(tuple(shape["mean"]), tuple(shape["std"])) if "mean" in shape and x.dtype == np.uint8 else None
    private = Dataset(data, x, y, x[:1], y[:1], shape["classes"], pixels, complete=False)
    return federation_on(config, private, [np.arange(len(private.y_train))])


def _array(part: Any, what: str, data: str) -> np.ndarray:
    try:
        found = np.asarray(part)
        if found.dtype.kind not in "biuf":
            raise TypeError
    except (ValueError, TypeError):
        raise SojournError(
            f"{data} returns {what} that are no array of numbers; are all rows of the same length?"
        ) from None
    return found


def memory_place(creds: Path) -> Path:
    """Where a worker keeps what it remembers: beside its credentials."""
    return creds.with_name(f"{creds.stem}-memory")
