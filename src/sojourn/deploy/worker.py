"""A worker: fetches a task, trains on data that stay with it, sends what comes of it, and forgets nothing it must keep.

A task may come twice (the server or the broker was killed meanwhile): done again it gives the same upload, as its
randomness came with it. What a client remembers between visits (SCAFFOLD's control variate) is kept on its disk by the
number of the task it came from, and a task says which of them to start from: that of the last upload that was applied.
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import nats.errors
import numpy as np

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from sojourn.deploy import parcels
from sojourn.deploy.book import Trips
from sojourn.deploy.broker import TASKS, TROUBLE, alive_subject, connected, hello_subject, lasting, upload_subject
from sojourn.deploy.keys import Credentials, Pair, is_sealed
from sojourn.deploy.wire import FORMAT, Rejected, Schema, decode, encode, pieces, whole, words_of
from sojourn.engine.checkpoint import load_state, save_state

TASK_WORDS = frozenset({"task", "exchange", "memory", "parcel", "digest", "start"})
UPLOAD_WORDS = frozenset({"task", "exchange", "parcel", "digest"})
OVER = "over"  # the kind of the server's last word
START = "start"  # the parcel of the starting point
_BEAT_SECONDS = 2.0
_PATIENCE = 5.0  # seconds to wait for a task before asking whether there will be any


class Client:
    """The private side: one client's data behind its oracle, and its memory on disk."""

    def __init__(self, federation: Federation, algorithm: Algorithm, place: Path) -> None:
        if federation.num_clients != 1:
            raise SojournError(f"a worker is one client; its data make {federation.num_clients}.")
        self.federation, self.algorithm, self.place = federation, algorithm, place
        self.trips = Trips(algorithm, federation.clients, federation.x0)
        self._visit = jax.jit(self._work, static_argnames="name")

    def _work(self, algorithm: Algorithm, clients: Any, down: Any, memory: Any, key: Any, *, name: str) -> Any:
        oracle = clients.oracle(jnp.zeros((), jnp.int32))
        exchange = Trips.of(algorithm)[name]
        up, memory, _ = exchange.local(down, memory, oracle, jax.random.wrap_key_data(key))
        return up, memory

    def parts(self, name: str, memory: int) -> tuple[Any, ...]:
        """The shapes of what a task must bring: what was sent down and, for a client's first memory, the start."""
        start = (jax.eval_shape(lambda: self.federation.x0),) if self.trips.remembers and memory < 0 else ()
        return (self.trips.shapes[name][0], *start)

    def do(self, task: int, name: str, memory: int, key: np.ndarray, leaves: list[np.ndarray]) -> Any:
        """The answer to a task; what is to be remembered of it is on disk before it is returned."""
        shapes = self.parts(name, memory)
        down, *start = jax.tree.unflatten(jax.tree.structure(shapes), [jnp.asarray(leaf) for leaf in leaves])
        mine = self._remembered(memory, *start)
        up, after = self._visit(
            self.algorithm, self.federation.clients, down, mine, jnp.asarray(key), name=name
        )  # fmt: skip
        if self.trips.remembers:
            save_state(self._file(task), after, str(task))
            self._forget(memory)
        return up

    def _remembered(self, task: int, start: Vec | None = None) -> Any:
        if not self.trips.remembers:
            return ()
        if start is not None:
            return self.algorithm.init_client(start)
        if not self._file(task).exists():
            raise SojournError(f"what this worker remembered of task {task} is gone; it cannot go on in this run.")
        return load_state(self._file(task), self.algorithm.init_client(self.federation.x0), str(task))

    def _file(self, task: int) -> Path:
        return self.place / f"memory-{task:09d}.npz"

    def _forget(self, last_applied: int) -> None:
        """Memories from before the last applied task are of no use to anybody."""
        for path in self.place.glob("memory-*.npz"):
            if int(path.stem.split("-")[1]) < last_applied:
                path.unlink()


class Post:
    """A worker's connection: says hello, shows that it is alive, fetches tasks and sends uploads."""

    def __init__(self, url: str, creds: Credentials, tls: ssl.SSLContext | None, patience: float) -> None:
        self.url, self.creds, self.name, self.tls, self.patience = url, creds, creds.name, tls, patience
        self.pair = Pair.of(creds.seed)
        self._connection: Any = None

    async def __aenter__(self) -> "Post":
        self._connection = await connected(self.url, self.name, self.creds.seed, self.tls, self.patience)
        self.stream = self._connection.jetstream()
        self._beats = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beats
        with contextlib.suppress(*TROUBLE):
            await self._connection.close()

    async def hello(self, samples: int | None = None, patience: float | None = None) -> dict[str, Any]:
        """What the server says to a worker: its number, the run's tables, and whether the run is over."""
        told = {"format": FORMAT} | ({} if samples is None else {"samples": samples})
        until = time.monotonic() + (self.patience if patience is None else patience)
        while True:
            try:
                answer = await self._connection.request(hello_subject(self.name), json.dumps(told).encode(), timeout=5)
                found = json.loads(answer.data)
                if not found.get("later") or time.monotonic() > until:
                    break
                await asyncio.sleep(1.0)
            except TROUBLE:
                if time.monotonic() > until:
                    raise SojournError(
                        f"the server at {self.url} does not answer; is `sojourn serve` running?"
                    ) from None
                await asyncio.sleep(0.5)
        refused = found.get("refused") or found.get("later")
        if refused:
            raise SojournError(str(refused))
        assert isinstance(found, dict)
        return found

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(*TROUBLE):
                await self._connection.publish(alive_subject(self.name), b"")
            await asyncio.sleep(_BEAT_SECONDS)

    async def tasks(self) -> Any:
        return await self.stream.pull_subscribe_bind(consumer=self.name, stream=TASKS)


async def work(post: Post, client: Client, told: Callable[[int, str], None] = lambda done, what: None) -> int:
    """Works until the server says that the run is over; returns how many tasks were done."""
    tasks, done = await post.tasks(), 0
    while True:
        told(done, "waiting for a task")
        try:
            (message,) = await tasks.fetch(1, timeout=_PATIENCE)
        except nats.errors.ConnectionClosedError:
            raise SojournError("the broker closed the connection; the invitation may have been revoked.") from None
        except TROUBLE:
            if await _is_over(post):
                return done
            continue
        if not is_sealed(post.creds.server, message):  # not from the server
            await lasting(message.ack)
            continue
        with contextlib.suppress(Rejected):
            words_of(message.data, OVER, frozenset())
            await lasting(message.ack, patience=post.patience)
            return done
        told(done, "training")
        await _carry_out(post, client, message)
        done += 1


async def _carry_out(post: Post, client: Client, message: Any) -> None:
    pending = asyncio.ensure_future(_answered(post, client, message))
    while not (await asyncio.wait([pending], timeout=_BEAT_SECONDS))[0]:  # so that nobody else is given the task
        with contextlib.suppress(*TROUBLE):
            await message.in_progress()
    await pending


async def _answered(post: Post, client: Client, message: Any) -> None:
    try:
        words, key, leaves = await _read(post, client, message.data)
    except parcels.Gone:  # the task is no longer wanted: its model was taken away
        await lasting(message.ack, patience=post.patience)
        return
    except Rejected as why:
        raise SojournError(f"the server's task cannot be read: {why}.") from None
    name, number = words["exchange"], whole(words, "task")
    up = await asyncio.to_thread(client.do, number, name, whole(words, "memory"), key, leaves)
    told = {"task": words["task"], "exchange": name, "parcel": "", "digest": ""}
    up = jax.tree.map(np.asarray, up)
    if client.trips.upload_schema(name).num_bytes > parcels.INLINE_BYTES:
        content = pieces("upload", told, up)
        told |= {"parcel": f"task-{number}", "digest": parcels.digest_of(content)}
        await parcels.put(post.stream, parcels.uploads_bucket(post.name), told["parcel"], content)
        del content
        up = ()
    body, subject = encode("upload", told, up), upload_subject(post.name)
    headers = post.pair.seal(subject, body)
    await lasting(post.stream.publish, subject, body, headers=headers, patience=post.patience)
    await lasting(message.ack, patience=post.patience)


async def _read(post: Post, client: Client, data: bytes) -> tuple[Mapping[str, str], np.ndarray, list[np.ndarray]]:
    words = words_of(data, "task", TASK_WORDS)
    name, memory = words["exchange"], whole(words, "memory")
    if name not in client.trips.exchanges:
        raise Rejected("it is of an exchange that the method does not have")
    parts, key = client.parts(name, memory), np.zeros(2, np.uint32)
    if not words["parcel"]:
        _, (drawn, *leaves) = decode(data, "task", TASK_WORDS, Schema.of((key, *parts)))
        return words, drawn, leaves
    _, (drawn,) = decode(data, "task", TASK_WORDS, Schema.of((key,)))
    leaves = []
    asked = ((words["parcel"], words["digest"]), (START, words["start"]))
    for (parcel, digest), part in zip(asked, parts, strict=False):
        schema = Schema.of(part)
        limit = schema.num_bytes + parcels.INLINE_BYTES
        content = await lasting(parcels.get, post.stream, parcels.MODELS, parcel, limit, digest, patience=post.patience)
        leaves += decode(content, "model", frozenset(), schema)[1]
    return words, drawn, leaves


async def _is_over(post: Post) -> bool:
    return bool((await post.hello()).get("over"))
