"""A worker: fetches a task, trains on data that stay with it, sends what comes of it, and forgets nothing it must keep.

A task may come twice (the server or the broker was killed meanwhile): done again it gives the same upload, as its
randomness came with it. What a client remembers between visits (SCAFFOLD's control variate) is kept on its disk by the
number of the task it came from, and a task says which of them to start from: that of the last upload that was applied.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import nats
import nats.errors
import numpy as np

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.deploy.broker import TASKS, TROUBLE, alive_subject, hello_subject, inbox, task_subject, upload_subject
from sojourn.deploy.wire import Rejected, Schema, decode, encode
from sojourn.engine.accounting import message_shapes
from sojourn.engine.checkpoint import load_state, save_state

TASK_WORDS = frozenset({"task", "exchange", "memory"})
UPLOAD_WORDS = frozenset({"task", "exchange"})
_BEAT_SECONDS = 2.0
_PATIENCE = 5.0  # seconds to wait for a task before asking again


class Client:
    """The private side: one client's data behind its oracle, and its memory on disk."""

    def __init__(self, federation: Federation, algorithm: Algorithm, place: Path) -> None:
        if federation.num_clients != 1:
            raise SojournError(f"a worker is one client; its data make {federation.num_clients}.")
        self.federation, self.algorithm, self.place = federation, algorithm, place
        self.exchanges = (*algorithm.exchanges(),)
        server = jax.eval_shape(algorithm.init_server, federation.x0)
        memory = jax.eval_shape(algorithm.init_client, federation.x0)
        self.shapes = [message_shapes(exchange, federation.clients, server, memory) for exchange in self.exchanges]
        self._visit = jax.jit(self._work, static_argnames="number")

    def _work(self, algorithm: Algorithm, clients: Any, down: Any, memory: Any, key: Any, *, number: int) -> Any:
        oracle = clients.oracle(jnp.zeros((), jnp.int32))
        up, memory, _ = algorithm.exchanges()[number].local(down, memory, oracle, jax.random.wrap_key_data(key))
        return up, memory

    def task_schema(self, exchange: int) -> Schema:
        return Schema.of((np.zeros(2, np.uint32), self.shapes[exchange][0]))

    def do(self, task: int, exchange: int, memory: int, arrays: list[np.ndarray]) -> Any:
        """The answer to a task; what is to be remembered of it is on disk before it is returned."""
        key, leaves = arrays[0], arrays[1:]
        down = jax.tree.unflatten(jax.tree.structure(self.shapes[exchange][0]), [jnp.asarray(a) for a in leaves])
        up, after = self._visit(
            self.algorithm, self.federation.clients, down, self._remembered(memory), jnp.asarray(key), number=exchange
        )
        if jax.tree.leaves(after):
            save_state(self._file(task), after, str(task))
            self._forget(memory)
        return up

    def _remembered(self, task: int) -> Any:
        fresh = self.algorithm.init_client(self.federation.x0)
        if task < 0 or not jax.tree.leaves(fresh):
            return fresh
        if not self._file(task).exists():
            raise SojournError(f"what this worker remembered of task {task} is gone; it cannot go on in this run.")
        return load_state(self._file(task), fresh, str(task))

    def _file(self, task: int) -> Path:
        return self.place / f"memory-{task:09d}.npz"

    def _forget(self, last_applied: int) -> None:
        """Memories from before the last applied task are of no use to anybody."""
        for path in self.place.glob("memory-*.npz"):
            if int(path.stem.split("-")[1]) < last_applied:
                path.unlink()


async def work(url: str, name: str, seed: str, client: Client, tls: Any = None) -> int:
    """Works until the server says that the run is over; returns how many tasks were done."""
    connection = await nats.connect(
        url, nkeys_seed_str=seed, inbox_prefix=inbox(name), tls=tls, max_reconnect_attempts=-1, reconnect_time_wait=0.5,
        name=name, error_cb=_quiet, allow_reconnect=True,
    )  # fmt: skip
    beats = asyncio.create_task(_beat(connection, name))
    done = 0
    try:
        stream = connection.jetstream()
        tasks = await stream.pull_subscribe_bind(consumer=name, stream=TASKS)
        while not await _is_over(connection, name):
            with contextlib.suppress(*TROUBLE):
                for message in await tasks.fetch(1, timeout=_PATIENCE):
                    words, body = await _at_work(message, asyncio.to_thread(_answer, client, message.data))
                    await stream.publish(
                        upload_subject(name), body, headers={"Nats-Msg-Id": f"{name}-{words['task']}-{words['exchange']}"}
                    )
                    await message.ack()
                    done += 1
    finally:
        beats.cancel()
        await connection.close()
    return done


async def _at_work(message: Any, answer: Any) -> Any:
    """Waits for the answer and tells the broker meanwhile that it comes, so that nobody else is given the task."""
    pending = asyncio.ensure_future(answer)
    while not (await asyncio.wait([pending], timeout=_BEAT_SECONDS))[0]:
        with contextlib.suppress(*TROUBLE):
            await message.in_progress()
    return await pending


def _answer(client: Client, data: bytes) -> tuple[dict[str, str], bytes]:
    number = _exchange_of(data)
    if not 0 <= number < len(client.exchanges):
        raise SojournError("the server sent a task that this version does not know.")
    try:
        words, arrays = decode(data, "task", TASK_WORDS, client.task_schema(number))
    except Rejected as why:
        raise SojournError(f"the server's task cannot be read: {why}.") from None
    up = client.do(int(words["task"]), number, int(words["memory"]), arrays)
    told = {"task": words["task"], "exchange": words["exchange"]}
    return told, encode("upload", told, jax.tree.map(np.asarray, up))


def _exchange_of(data: bytes) -> int:
    """Which exchange a task is of: its header is read first, as the arrays depend on it."""
    try:
        length = int.from_bytes(data[:8], "little")
        return int(json.loads(data[8 : 8 + length])["__metadata__"]["exchange"])
    except (ValueError, KeyError, TypeError):
        return -1


async def hello(url: str, name: str, seed: str, tls: Any = None) -> dict[str, Any]:
    """What the server says to a worker that joins: its number and the run's tables."""
    connection = await nats.connect(
        url, nkeys_seed_str=seed, inbox_prefix=inbox(name), tls=tls, name=name, error_cb=_quiet
    )
    try:
        answer = await connection.request(hello_subject(name), b"", timeout=10)
        found = json.loads(answer.data)
        assert isinstance(found, dict)
        return found
    except TROUBLE as error:
        raise SojournError(f"the server does not answer ({type(error).__name__}); is it running?") from None
    finally:
        await connection.close()


async def _is_over(connection: Any, name: str) -> bool:
    with contextlib.suppress(*TROUBLE):
        answer = await connection.request(hello_subject(name), b"", timeout=2)
        return bool(json.loads(answer.data).get("over"))
    return False


async def _beat(connection: Any, name: str) -> None:
    while True:
        with contextlib.suppress(*TROUBLE):
            await connection.publish(alive_subject(name), b"")
        await asyncio.sleep(_BEAT_SECONDS)


async def _quiet(error: Exception) -> None:
    """The client's library reports every lost connection; ours are retried, and told where they matter."""
