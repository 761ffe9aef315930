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
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.threads import aside
from sojourn.core.vec import Vec
from sojourn.deploy import parcels
from sojourn.deploy.book import Trips
from sojourn.deploy.broker import (
    TROUBLE,
    alive_subject,
    closed,
    connected,
    hello_subject,
    lasting,
    tasks_inbox,
    upload_subject,
)
from sojourn.deploy.keys import Credentials, Pair, is_sealed
from sojourn.deploy.wire import FORMAT, Rejected, Schema, decode, encode, pieces, whole, words_of
from sojourn.engine.checkpoint import load_state, save_state

TASK_WORDS = frozenset({"task", "exchange", "memory", "parcel", "digest", "start"})
UPLOAD_WORDS = frozenset({"task", "exchange", "parcel", "digest"})
OVER = encode("over", {})  # the server's last word
START = "start"  # the parcel of the starting point
_BEAT_SECONDS = 2.0
_CLOSE_SECONDS = 5.0  # a broker that is gone says no farewell
_SHORT = 0.002  # seconds of a task that is done at once, not in a thread
IN_HAND = 8  # tasks at most: what the broker keeps of a worker's uploads
_KNOWN = 1000  # tasks that a worker knows to be answered
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
        return jax.device_get(up)  # waited for here, in the thread of whoever trains

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

    def is_past(self, memory: int) -> bool:
        """Whether a task is to start from a memory that a later one has replaced: it was answered, or given up."""
        kept = self._kept() if self.trips.remembers and memory >= 0 else {}
        return memory not in kept and any(task > memory for task in kept)

    def _forget(self, last_applied: int) -> None:
        """Memories from before the last applied task are of no use to anybody."""
        for task, path in self._kept().items():
            if task < last_applied:
                path.unlink()

    def _kept(self) -> dict[int, Path]:
        return {int(path.stem.split("-")[1]): path for path in self.place.glob("memory-*.npz")}


class Post:
    """A worker's connection: says hello, shows that it is alive, fetches tasks and sends uploads."""

    def __init__(self, url: str, creds: Credentials, tls: ssl.SSLContext | None, patience: float) -> None:
        self.url, self.creds, self.name, self.tls, self.patience = url, creds, creds.name, tls, patience
        self.pair = Pair.of(creds.seed)
        self.samples: int | None = None  # that the client has; told with every hello, as a server may have forgotten
        self.in_hand: dict[int, list[Any]] = {}  # tasks that are worked on, and all messages that brought them
        self._connection: Any = None

    async def __aenter__(self) -> "Post":
        self._connection = await connected(self.url, self.name, self.creds.seed, self.tls, self.patience)
        self.stream = self._connection.jetstream()
        self._beats = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._beats.cancel()
        with contextlib.suppress(asyncio.CancelledError, SojournError):  # of a connection that ended: it was told
            await self._beats
        with contextlib.suppress(*TROUBLE):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._connection.close()

    async def hello(self, samples: int | None = None, patience: float | None = None) -> dict[str, Any]:
        """What the server says to a worker: its number, the run's tables, and whether the run is over."""
        self.samples = self.samples if samples is None else samples
        told = {"format": FORMAT} | ({} if self.samples is None else {"samples": self.samples})
        until = time.monotonic() + (self.patience if patience is None else patience)
        while True:
            try:
                answer = await self._connection.request(hello_subject(self.name), json.dumps(told).encode(), timeout=5)
                found = json.loads(answer.data)
                if not found.get("later") or time.monotonic() > until:
                    break
                await asyncio.sleep(1.0)
            except TROUBLE:
                if self.closed:
                    raise closed(self._connection) from None
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
        """Says that it is alive, and which tasks are in hand: the broker would deliver them again."""
        while True:
            with contextlib.suppress(*TROUBLE):
                await self._connection.publish(alive_subject(self.name), b"")
            for message in [message for several in self.in_hand.values() for message in several]:
                with contextlib.suppress(*TROUBLE):
                    await message.in_progress()
            await asyncio.sleep(_BEAT_SECONDS)

    async def tasks(self) -> "asyncio.Queue[Any]":
        """Where tasks arrive: the broker sends as many as may be in hand, and the next for each that is done."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        await self._connection.subscribe(tasks_inbox(self.name), cb=queue.put)
        return queue

    @property
    def closed(self) -> bool:
        return bool(self._connection.is_closed)


async def work(post: Post, client: Client, told: Callable[[int, str], None] = lambda done, what: None) -> int:
    """Works until the server says that the run is over; returns how many tasks were done."""
    desk = Desk(post, client, told)
    try:
        async with asyncio.TaskGroup() as at_work:
            await desk.until_over(at_work)
    except BaseExceptionGroup as several:  # the first task that failed ended the others
        raise several.exceptions[0] from None
    return desk.done


class Desk:
    """A worker's tasks: one is trained on, some wait for it, and of some the uploads are on their way."""

    def __init__(self, post: Post, client: Client, told: Callable[[int, str], None]) -> None:
        self.post, self.client, self.told = post, client, told
        self.done = 0
        self._sent: deque[int] = deque(maxlen=_KNOWN)  # tasks whose uploads are on the broker's disk
        self._seconds: dict[str, float] = {}  # that the last task of an exchange took
        self._training, self._writing = asyncio.Lock(), asyncio.Lock()

    async def until_over(self, at_work: asyncio.TaskGroup) -> None:
        tasks = await self.post.tasks()
        self.told(0, "waiting for a task")
        while (message := await self._next(tasks)) is not None:
            number, in_hand = _number(message), self.post.in_hand
            if number in self._sent and number < max(self._sent):  # a broker that was killed brings old ones back
                with contextlib.suppress(*TROUBLE):
                    await message.ack()
                continue
            in_hand.setdefault(number, []).append(message)
            if len(in_hand[number]) == 1:
                at_work.create_task(self._carry_out(number))

    async def _next(self, tasks: "asyncio.Queue[Any]") -> Any:
        """The next task of the server; None when there will be none."""
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    message = await tasks.get()
            except TimeoutError:
                if self.post.closed:
                    raise closed(self.post._connection) from None
                if not self.post.in_hand and await _is_over(self.post):
                    return None
                continue
            if not is_sealed(self.post.creds.server, message):  # not from the server, maybe not even from its queue
                with contextlib.suppress(*TROUBLE):
                    await message.ack()
                continue
            if message.data != OVER:
                return message
            await lasting(message.ack, patience=self.post.patience)
            return None

    async def _carry_out(self, number: int) -> None:
        try:
            answer = await self._answer(number, self.post.in_hand[number][0].data)
            if answer is not None:
                subject = upload_subject(self.post.name)
                headers = self.post.pair.seal(subject, answer)
                publish, patience = self.post.stream.publish, self.post.patience
                await lasting(publish, subject, answer, headers=headers, patience=patience)
                self._sent.append(number)
            for message in list(self.post.in_hand[number]):
                await lasting(message.ack, patience=self.post.patience)
        finally:
            del self.post.in_hand[number]

    async def _answer(self, number: int, data: bytes) -> bytes | None:
        """What is to be sent for a task; None if nobody wants it any more."""
        post, client = self.post, self.client
        try:
            async with self._training:
                self.told(self.done, "training")
                words, key, leaves = await _read(post, client, data)
                name, memory = words["exchange"], whole(words, "memory")
                if client.is_past(memory):
                    return None
                up = await self._trained(number, name, memory, key, leaves)
                self.done += 1
                self.told(self.done, "waiting for a task")
        except parcels.Gone:  # the task is no longer wanted: its model was taken away
            return None
        except Rejected as why:
            raise _unreadable(why) from None
        told = {"task": words["task"], "exchange": name, "parcel": "", "digest": ""}
        if client.trips.upload_schemas[name].num_bytes > parcels.INLINE_BYTES:
            content = pieces("upload", told, up)
            told |= {"parcel": parcels.upload_name(number), "digest": parcels.digest_of(content)}
            async with self._writing:  # what else is half written would be taken for a rest
                await parcels.put(post.stream, parcels.uploads_bucket(post.name), told["parcel"], content)
            del content
            up = ()
        return encode("upload", told, up)

    async def _trained(self, number: int, name: str, *rest: Any) -> Any:
        """In a thread, so that signs of life are sent meanwhile; at once where that takes longer than the work."""
        since = time.monotonic()
        if self._seconds.get(name, _SHORT) < _SHORT:
            up = self.client.do(number, name, *rest)
        else:
            up = await aside(self.client.do, number, name, *rest)
        self._seconds[name] = time.monotonic() - since
        return up


def _number(message: Any) -> int:
    try:
        return whole(words_of(message.data, "task", TASK_WORDS), "task")
    except Rejected as why:
        raise _unreadable(why) from None


def _unreadable(why: Rejected) -> SojournError:
    return SojournError(f"the server's task cannot be read: {why}.")


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
