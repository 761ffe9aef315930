"""Over a real broker: a run that replays to the same bits, uploads that are garbage, and what a worker may not do."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import nats
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import FedAsync
from sojourn.core.federation import Federation
from sojourn.deploy.broker import Broker, configuration, inbox, upload_subject
from sojourn.deploy.coordinator import Coordinator, read_log, trace_of
from sojourn.deploy.keys import Credentials, Ring
from sojourn.deploy.server import Rules, Server
from sojourn.deploy.worker import Client, work

NAMES = ["ada", "ben", "cleo", "dot"]
METHOD = FedAsync(0.05, 3, mixing=0.5)


def _square(x: Any, batch: Any) -> Any:
    features, targets = batch
    return jnp.mean((features @ x - targets) ** 2)


def data(client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(client)
    return rng.normal(size=(20, 3)).astype("f"), rng.normal(size=20).astype("f")


def federation(*clients: int) -> Federation:
    return sj.federation(_square, np.zeros(3, "f"), [data(client) for client in clients], batch_size=4)


class Home:
    """A broker with keys for everyone."""

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.place, self.ring = place, Ring(place)
        self.creds: dict[str, Credentials] = {name: self.ring.invite(name) for name in NAMES}
        self.broker = Broker(place / "broker", "127.0.0.1", self.port)
        self.broker.configure(
            configuration("127.0.0.1", self.port, place / "store", self.ring.server.public, self.ring.workers, None, 1 << 22)
        )
        self.broker.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def server(self, uploads: int, **rules: Any) -> Server:
        book = Coordinator(federation(*range(len(NAMES))), METHOD, self.place / "book", seed=3)
        return Server(federation(*range(len(NAMES))), book, NAMES, Rules(uploads, **rules), {})

    def worker(self, number: int) -> Any:
        name = NAMES[number]
        client = Client(federation(number), METHOD, self.place / name)
        return work(self.url, name, self.creds[name].seed, client)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.broker.stop()


async def together(home: Home, server: Server, workers: list[int], seconds: float = 60.0) -> None:
    await home.broker.wait_until_up()
    working = [asyncio.create_task(home.worker(number)) for number in workers]
    try:
        await asyncio.wait_for(server.run(home.url, home.ring.server.seed), seconds)
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


def test_a_run_over_the_broker_replays_to_the_same_model(home: Home) -> None:
    server = home.server(40)
    asyncio.run(together(home, server, [0, 1, 2, 3]))
    assert server.book.applied >= 40
    trace = trace_of(read_log(home.place / "book"), len(NAMES), 1)
    history = sj.run(federation(*range(4)), METHOD, server.book.applied, trace=trace, seed=3, progress=False)
    np.testing.assert_allclose(np.asarray(history.params), np.asarray(server.book.server.x.tree), rtol=1e-6)


def test_a_worker_that_sends_garbage_is_asked_no_more_and_the_run_goes_on(home: Home) -> None:
    async def vandal() -> None:
        connection = await nats.connect(
            home.url, nkeys_seed_str=home.creds["dot"].seed, inbox_prefix=inbox("dot"), name="dot"
        )
        for number in range(5):
            await connection.publish("sojourn.alive.dot", b"")
            await connection.jetstream().publish(upload_subject("dot"), bytes([number]) * 50)
            await asyncio.sleep(0.05)
        await connection.close()

    async def all_of_it(server: Server) -> None:
        await home.broker.wait_until_up()
        running = asyncio.create_task(together(home, server, [0, 1, 2]))
        while not server.ready:
            await asyncio.sleep(0.05)
        await vandal()
        await running

    server = home.server(30)
    asyncio.run(all_of_it(server))
    assert server.rejected >= 3 and server.workers["dot"].quarantined
    assert server.book.applied >= 30


FORBIDDEN = [
    "sojourn.upload.ben", "sojourn.task.ada", "sojourn.task.ben", "sojourn.hello.ben", "sojourn.alive.ben",
    "$JS.API.STREAM.DELETE.tasks", "$JS.API.STREAM.PURGE.uploads", "$JS.API.STREAM.NAMES", "$JS.API.INFO",
    "$JS.API.CONSUMER.CREATE.tasks", "$JS.API.CONSUMER.MSG.NEXT.tasks.ben", "$JS.API.STREAM.MSG.GET.tasks",
    "$JS.ACK.tasks.ben.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "anything",
]  # fmt: skip


def test_everything_else_is_refused_by_the_broker(home: Home) -> None:
    async def attempts() -> tuple[list[str], list[str]]:
        await home.broker.wait_until_up()
        told: list[str] = []

        async def heard(error: Exception) -> None:
            told.append(str(error))

        connection = await nats.connect(
            home.url, nkeys_seed_str=home.creds["ada"].seed, inbox_prefix=inbox("ada"), error_cb=heard
        )
        for subject in FORBIDDEN:
            await connection.publish(subject, b"x")
        for subject in ("sojourn.task.ben", "sojourn.upload.*", "_INBOX_ben.>", ">"):
            await connection.subscribe(subject)
        await connection.flush()
        await asyncio.sleep(0.3)
        refused = list(told)
        told.clear()
        await connection.publish("sojourn.alive.ada", b"")
        await connection.flush()
        await asyncio.sleep(0.1)
        await connection.close()
        return refused, told

    refused, after = asyncio.run(attempts())
    assert len(refused) == len(FORBIDDEN) + 4 and all("permissions violation" in word.lower() for word in refused)
    assert after == []


def test_a_stranger_is_not_let_in(home: Home) -> None:
    async def knock() -> None:
        await home.broker.wait_until_up()
        stranger = Ring(home.place / "elsewhere").server
        await nats.connect(home.url, nkeys_seed_str=stranger.seed, allow_reconnect=False, connect_timeout=2)

    with pytest.raises(Exception, match="(?i)authorization"):
        asyncio.run(knock())
