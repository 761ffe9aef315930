"""What a broker brings back when it was killed, and a server that was killed before it had begun."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from sojourn.algorithms import Scaffold
from sojourn.deploy import worker
from sojourn.deploy.book import read_log
from sojourn.deploy.broker import connected, lasting, upload_subject
from sojourn.deploy.replay import difference
from sojourn.deploy.server import Server
from sojourn.deploy.streams import UPLOADS_INBOX, deliver_uploads, make_streams
from sojourn.deploy.worker import Client
from test_deploy_network import Home, federation, together
from test_deploy_network import home as home  # a fixture


def test_many_kills_of_the_broker_in_a_row_stop_nothing(home: Home) -> None:
    """Killed at such times, a broker brings back what was acknowledged, and counts from an earlier number."""
    method = Scaffold(0.01, 2)
    server = home.server(10**6, method)

    async def made() -> str:
        return str((await lasting(server.stream.consumer_info, "uploads", "server")).created)

    async def killer() -> int:
        rng, last = np.random.default_rng(0), -1
        for _ in range(3):
            while server.book.done <= last:  # it goes on after every kill
                await asyncio.sleep(0.02)
            await asyncio.sleep(rng.uniform(0.0, 0.4))
            last, before = server.book.done, await made()
            assert home.broker.pid is not None
            os.kill(home.broker.pid, signal.SIGKILL)
            while home.broker.running:
                await asyncio.sleep(0.05)
            home.broker.start()
            async with asyncio.timeout(20.0):
                while await made() == before:  # who delivers is made anew
                    await asyncio.sleep(0.1)
        while server.book.done <= last + 2:
            await asyncio.sleep(0.02)
        server.book.of = server.book.done + 1
        return 0

    asyncio.run(together(home, server, [*(home.worker(number, method) for number in range(4)), killer()]))
    numbers = [row["number"] for row in read_log(server.book.place) if row["event"] == "applied"]
    assert len(numbers) == len(set(numbers)) == server.book.applied and server.book.given_up == 0


def test_what_a_consumer_believes_acknowledged_is_delivered_when_the_broker_is_back(home: Home) -> None:
    """The state that such a kill leaves, made by hand: messages in the queue that its consumer will never deliver."""

    async def made() -> tuple[int, int]:
        await home.broker.wait_until_up()
        connection = await connected(home.url, "server", home.ring.server.seed, None, 5.0)
        stream = connection.jetstream()
        await make_streams(stream)
        await deliver_uploads(stream, 4)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        await connection.subscribe(UPLOADS_INBOX, cb=queue.put)
        await stream.publish(upload_subject("ada"), b"old")
        await asyncio.wait_for(queue.get(), 5.0)  # delivered and not acknowledged: it will not come for a while
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 1.0)
        await deliver_uploads(stream, 4)
        again = await asyncio.wait_for(queue.get(), 5.0)
        await again.ack()
        await connection.flush()
        left = (await stream.stream_info("uploads")).state.messages
        await connection.close()
        return len(again.data), left

    assert asyncio.run(made()) == (3, 0)


class Counting(Client):
    """Takes its time, and counts what it did."""

    tasks: ClassVar[list[int]] = []

    def do(self, task: int, *rest: Any) -> Any:
        self.tasks.append(task)
        time.sleep(0.02)
        return super().do(task, *rest)


def test_a_task_that_is_delivered_again_is_done_once_and_an_old_one_ends_nobody(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost acknowledgement: twice while it is in hand, and long after its memory was forgotten."""
    method, bodies, send = Scaffold(0.05, 3), list[tuple[Any, bytes]](), Server._send

    async def repeat(self: Server, task: Any, body: bytes) -> None:
        bodies.append((task, body))
        await send(self, task, body)
        await send(self, task, body)
        if task.round == 5:
            for old, former in bodies:
                if old.client == task.client and old.memory >= 0 and old.round == 1:
                    await send(self, old, former)

    monkeypatch.setattr(Server, "_send", repeat)
    monkeypatch.setattr(Counting, "tasks", [])
    server = home.server(8, method)
    asyncio.run(together(home, server, [home.worker(number, method, kind=Counting) for number in range(4)]))
    # a second delivery that comes after the upload was sent is of the newest task, and done again: the same answer
    assert server.book.done == 8 and set(Counting.tasks) == {task.number for task, _ in bodies}
    assert difference(server.book, federation(*range(4))) < 1e-6


def test_a_worker_that_starts_anew_skips_a_task_whose_memory_was_replaced(tmp_path: Path) -> None:
    method = Scaffold(0.05, 3)
    alone = federation(0)
    client = Client(alone, method, tmp_path)
    down = jax.tree.leaves(method.exchanges()[0].broadcast(method.init_server(alone.x0)))
    key, start = np.zeros(2, np.uint32), jax.tree.leaves(alone.x0)
    for task, memory in ((0, -1), (1, 0), (2, 1)):
        client.do(task, "steady.0", memory, key, [*down, *(start if memory < 0 else ())])
    fresh = Client(alone, method, tmp_path)
    assert fresh.is_past(0) and not fresh.is_past(1) and not fresh.is_past(2) and not fresh.is_past(-1)
    assert not Client(alone, method, tmp_path / "empty").is_past(0)  # that one has lost what it needs, and says so


def test_a_server_that_was_killed_while_it_waited_knows_its_workers_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PATIENCE", 0.3)

    async def two_servers() -> Server:
        await home.broker.wait_until_up()
        early = [asyncio.create_task(home.worker(number)) for number in range(2)]
        first = home.server(20)
        running = asyncio.create_task(first.run(home.url, home.ring.server.seed))
        while sum(number is not None for number in first.book.samples) < 2 or first.book.unsaved:
            await asyncio.sleep(0.05)
        running.cancel()  # as a kill: nothing more is written
        await asyncio.gather(running, return_exceptions=True)
        kept = home.server(20).book.samples
        assert kept == [20, 20, None, None]  # on disk before any task
        (home.place / "book" / "book").unlink()  # and even if it had been killed before that
        second = home.server(20)
        await together(home, second, [*early, *(home.worker(number) for number in (2, 3))])
        return second

    assert asyncio.run(two_servers()).book.done == 20
