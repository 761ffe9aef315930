"""The server of an asynchronous run: hands out tasks, takes uploads in the order of the broker's queue, keeps the book.

After every batch of uploads: apply, hand out, commit to disk, publish the new tasks, acknowledge the uploads. A kill
between any two of these loses nothing: what was not committed is delivered again, what was committed and delivered again
is known as a duplicate, and tasks that were committed and not published are the ones made since the last upload, whose
model is the one in the book.
"""

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import nats
import nats.errors
import numpy as np
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from sojourn.core.federation import Federation
from sojourn.deploy.broker import TASKS, TROUBLE, UPLOADS, inbox, task_subject
from sojourn.deploy.coordinator import APPLIED, Coordinator, Task
from sojourn.deploy.wire import Rejected, Schema, check_numbers, decode, encode
from sojourn.deploy.worker import UPLOAD_WORDS
from sojourn.engine.accounting import message_shapes, one_memory

_BATCH = 64  # uploads that are applied before the book is written
_LOST_AFTER = 15.0  # seconds without a sign of life
_AGAIN_AFTER = 10.0  # seconds until the broker delivers again what was not acknowledged
_SERVER = "server"


@dataclasses.dataclass
class Worker:
    """What the server knows of a worker."""

    name: str
    client: int
    seen: float = 0.0  # the last sign of life
    tasks: int = 0
    rejected: int = 0
    last: str = ""
    quarantined: bool = False


@dataclasses.dataclass(frozen=True)
class Rules:
    """How the run is conducted."""

    uploads: int
    concurrency: int | None = None  # None: all workers
    timeout: float = 600.0  # seconds until a task is given up
    max_norm: float | None = None
    max_rejected: int = 3  # uploads of a worker before it is asked no more


class Server:
    """One asynchronous run."""

    def __init__(
        self, federation: Federation, book: Coordinator, workers: list[str], rules: Rules, welcome: Mapping[str, Any],
        progress: Callable[["Server"], None] = lambda server: None,
    ) -> None:  # fmt: skip
        self.book, self.rules, self.welcome, self.progress = book, rules, dict(welcome), progress
        self.workers = {name: Worker(name, number) for number, name in enumerate(workers)}
        self.by_client = {worker.client: worker for worker in self.workers.values()}
        (exchange,) = book.algorithm.exchanges()
        shapes = message_shapes(exchange, federation.clients, book.server, one_memory(book.algorithm, federation.x0))
        self._up_shape, self._schema = shapes[1], Schema.of(shapes[1])
        self.duplicates = self.rejected = 0
        self.ready = False  # whether streams are there and uploads are taken

    @property
    def over(self) -> bool:
        return self.book.applied >= self.rules.uploads

    async def run(self, url: str, seed: str, tls: Any = None) -> None:
        connection = await nats.connect(
            url, nkeys_seed_str=seed, inbox_prefix=inbox(_SERVER), tls=tls, max_reconnect_attempts=-1,
            reconnect_time_wait=0.2, name=_SERVER, error_cb=_quiet,
        )  # fmt: skip
        try:
            await connection.subscribe("sojourn.hello.*", cb=self._on_hello)
            await connection.subscribe("sojourn.alive.*", cb=self._on_alive)
            stream = connection.jetstream()
            await _persist(lambda: self._make_streams(stream))
            queue: asyncio.Queue[Any] = asyncio.Queue()
            config = (await stream.consumer_info(UPLOADS, _SERVER)).config
            await stream.subscribe_bind(UPLOADS, config, _SERVER, cb=queue.put, manual_ack=True)
            await self._publish(stream, self._unpublished())
            self.ready = True
            while not self.over:
                await self._step(stream, queue)
            await asyncio.sleep(0)
        finally:
            await connection.close()

    async def _make_streams(self, stream: Any) -> None:
        for name, subject in ((TASKS, "sojourn.task.*"), (UPLOADS, "sojourn.upload.*")):
            config = StreamConfig(
                name=name, subjects=[subject], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE,
                duplicate_window=120,
            )  # fmt: skip
            try:
                await stream.stream_info(name)
            except NotFoundError:
                await stream.add_stream(config)
        await _consumer(stream, UPLOADS, _SERVER, None, f"{inbox(_SERVER)}.{UPLOADS}")
        for worker in self.workers:
            await _consumer(stream, TASKS, worker, task_subject(worker))

    def _unpublished(self) -> list[Task]:
        """Tasks that may not have reached the broker: those made since the last upload."""
        return [task for task in self.book.out.values() if task.applied == self.book.applied]

    async def _step(self, stream: Any, queue: asyncio.Queue[Any]) -> None:
        messages = await _waiting(queue)
        for message in messages:
            if not self.over:
                self._take(message)
        self._give_up()
        new = [] if self.over else self._hand_out()
        if messages or new:
            await asyncio.to_thread(self.book.commit)
        await self._publish(stream, new)
        for message in messages:
            with contextlib.suppress(*TROUBLE):
                await message.ack()
        self.progress(self)

    def _take(self, message: Any) -> None:
        worker = self.workers.get(message.subject.rsplit(".", 1)[-1])
        if worker is None:
            return
        worker.seen = time.time()
        try:
            words, arrays = decode(message.data, "upload", UPLOAD_WORDS, self._schema)
            if not words["task"].isdecimal():
                raise Rejected("its task is no number")
            check_numbers(arrays, self.rules.max_norm)
        except Rejected as why:
            self.rejected += 1
            worker.rejected += 1
            worker.last = f"rejected: {why}"
            worker.quarantined = worker.rejected >= self.rules.max_rejected
            return
        up = jax.tree.unflatten(jax.tree.structure(self._up_shape), [jnp.asarray(a) for a in arrays])
        verdict = self.book.take(int(words["task"]), worker.client, up)
        worker.last = verdict
        worker.tasks += verdict == APPLIED
        self.duplicates += verdict == "duplicate"

    def _give_up(self) -> None:
        """Tasks whose worker is silent, too slow, or no longer trusted."""
        now = time.time()
        for task in list(self.book.out.values()):
            worker = self.by_client[task.client]
            silent = now - max(worker.seen, task.handed_out) > _LOST_AFTER
            if worker.quarantined or silent or now - task.handed_out > self.rules.timeout:
                self.book.give_up(task.number)

    def _hand_out(self) -> list[Task]:
        """One task for every idle worker that gave a sign of life, those first that did the least."""
        now, busy = time.time(), {task.client for task in self.book.out.values()}
        room = (self.rules.concurrency or len(self.workers)) - len(busy)
        idle = [
            worker for worker in sorted(self.workers.values(), key=lambda w: (w.tasks, w.client))
            if worker.client not in busy and not worker.quarantined and now - worker.seen < _LOST_AFTER
        ]  # fmt: skip
        return [self.book.hand_out(worker.client, now) for worker in idle[: max(0, room)]]

    async def _publish(self, stream: Any, tasks: list[Task]) -> None:
        """All of them have reached the broker's disk before anything else is applied."""
        if not tasks:
            return
        down = jax.tree.map(np.asarray, self.book.down())
        for task in tasks:
            words = {"task": str(task.number), "exchange": "0", "memory": str(task.memory)}
            body = encode("task", words, (self.book.key(task), down))
            name = self.by_client[task.client].name
            await _persist(
                lambda name=name, body=body, number=task.number: stream.publish(
                    task_subject(name), body, headers={"Nats-Msg-Id": f"task-{number}"}
                )
            )

    async def _on_hello(self, message: Any) -> None:
        worker = self.workers.get(message.subject.rsplit(".", 1)[-1])
        if worker is None:
            return
        worker.seen = time.time()
        answer = {**self.welcome, "client": worker.client, "over": self.over}
        await message.respond(json.dumps(answer).encode())

    async def _on_alive(self, message: Any) -> None:
        worker = self.workers.get(message.subject.rsplit(".", 1)[-1])
        if worker is not None:
            worker.seen = time.time()


async def _waiting(queue: asyncio.Queue[Any]) -> list[Any]:
    """What has arrived, at most a batch; nothing if nothing comes for a while."""
    try:
        found = [await asyncio.wait_for(queue.get(), 0.5)]
    except TimeoutError:
        return []
    while len(found) < _BATCH and not queue.empty():
        found.append(queue.get_nowait())
    return found


async def _consumer(stream: Any, name: str, durable: str, subject: str | None, deliver_to: str | None = None) -> None:
    config = ConsumerConfig(
        durable_name=durable, filter_subject=subject, ack_policy=AckPolicy.EXPLICIT, ack_wait=_AGAIN_AFTER,
        max_ack_pending=2 * _BATCH, deliver_subject=deliver_to,
    )  # fmt: skip
    await stream.add_consumer(name, config)


async def _persist(call: Callable[[], Any]) -> Any:
    """Until it works: a broker that is down comes back."""
    while True:
        try:
            return await call()
        except TROUBLE:
            await asyncio.sleep(0.2)


async def _quiet(error: Exception) -> None:
    """Lost connections are retried; what fails for good is told where it matters."""
