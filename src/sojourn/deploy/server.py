"""The server: hands out tasks, takes uploads in the order of the broker's queue, keeps the book, says how it is.

After every batch of uploads: take, close what is complete, hand out, commit to disk, publish the new tasks,
acknowledge the uploads that the model on disk contains. A kill between any two of these loses nothing: what was not
committed is delivered again, what was committed and is delivered again is known as a duplicate, and tasks that were
committed and not published start from the model in the book. While the broker writes the new tasks to its disk, the
next batch is taken; it is not committed before they are there.
"""

import asyncio
import contextlib
import dataclasses
import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.threads import aside, unless
from sojourn.deploy import parcels
from sojourn.deploy.book import AGAIN, APPLIED, DUPLICATE, HELD, REJECTED, Book, Task, read_log
from sojourn.deploy.broker import (
    MAX_PAYLOAD,
    SERVER,
    TASKS,
    TROUBLE,
    UPLOADS,
    connected,
    inbox,
    lasting,
    task_subject,
)
from sojourn.deploy.keys import Pair, is_sealed
from sojourn.deploy.models import Models, start_of
from sojourn.deploy.snapshot import LOST_AFTER, Tally, Worker, snapshot_of
from sojourn.deploy.status import ENDED
from sojourn.deploy.streams import BATCH, UPLOADS_INBOX, deliver_tasks, deliver_uploads, make_streams
from sojourn.deploy.wire import FORMAT, Rejected, Schema, check_numbers, decode, encode, whole, words_of
from sojourn.deploy.worker import OVER, UPLOAD_WORDS
from sojourn.traces.trace import LOST, TIMED_OUT

IGNORED = "ignored"  # a message that its sender did not seal
_AT_ONCE = 16  # tasks on their way to the broker's disk
_LOOK_SECONDS = 1.0  # how often new invitations are looked for
_HOLD_SECONDS = 4.0  # how often the broker is told that held uploads are in good hands
_FAREWELL_SECONDS = 60.0  # those who train hear it when they are through
_MAX_HELLO = 1 << 12  # bytes


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What is left of an upload that was taken: enough to acknowledge it, not its numbers."""

    message: Any
    worker: str
    parcel: str | None = None


class Server:
    """One run."""

    def __init__(
        self, book: Book, workers: Mapping[str, str | None], welcome: Mapping[str, Any], *, label: str = "",
        evaluate: Callable[[Any], dict[str, float]] | None = None, eval_every: int = 1,
        spent: Callable[[int], dict[str, Any] | None] = lambda done: None,
        roster: Callable[[], Mapping[str, str | None]] | None = None,
        told: Callable[["Server"], None] = lambda server: None,
    ) -> None:  # fmt: skip
        self.book, self.rules, self.welcome = book, book.rules, dict(welcome)
        self.models = Models(book)
        self.workers: dict[str, Worker] = {}
        self.by_client: dict[int, Worker] = {}
        self.keys: dict[str, str | None] = {}  # public ones of those who were invited; None of those who were revoked
        if book.next_task and not any(book.names):  # of a sojourn that did not keep them: they were in this order
            book.names = [*workers, *book.names][: book.num_clients]
        self._heed(workers)
        self._evaluate, self._eval_every, self._roster, self._told = evaluate, eval_every, roster, told
        self.tally = Tally(label, time.time(), privacy=spent(book.done))
        self._unmeasured = False  # whether a signal came before the model was measured
        self.ready = False  # whether streams are there and uploads are taken
        self.stopping, self._broker_is_back = asyncio.Event(), asyncio.Event()
        self._came: set[str] = set()  # who said hello since this was looked at
        self._held: list[Receipt] = []  # uploads that were taken and are not in a model on disk yet
        self._sending: asyncio.Future[Any] | None = None  # tasks on their way to the broker's disk
        self._ended: float | None = None
        self._spent = spent
        self._recall()

    def _recall(self) -> None:
        """What servers before this one have counted."""
        for row in read_log(self.book.place):
            worker = self.by_client.get(row.get("client", -1))
            if row["event"] == APPLIED and worker is not None:
                worker.applied += 1
                worker.staleness = row["staleness"]
                self.tally.staleness[row["staleness"]] += 1

    @property
    def rejected(self) -> int:
        return sum(self.book.rejected)

    def _heed(self, invited: Mapping[str, str | None]) -> list[str]:
        """Invitations that were taken back, which may leave places, and new ones; returns who was not here before."""
        self.keys = dict(invited)
        for name in [name for name in self.book.names if name is not None and name not in self.workers]:
            self._enlist(name)  # by a server before this one
        for worker in list(self.workers.values()):
            if (self.keys.get(worker.name) is None) != worker.revoked:
                self._revoke(worker, not worker.revoked)
        new = [name for name, key in self.keys.items() if key is not None and name not in self.workers]
        return [name for name in new if self._enlist(name)]

    def _enlist(self, name: str) -> bool:
        """Gives a worker its place; False if there is none left."""
        client = self.book.place_of(name)
        if client is None:
            return False
        worker = Worker(name, client)
        worker.rejected = self.book.rejected[client]
        worker.quarantined = worker.rejected >= self.rules.max_rejected
        worker.revoked = client in self.book.excluded and not worker.quarantined
        self.workers[name] = self.by_client[client] = worker
        return True

    @property
    def status(self) -> str:
        if self.book.diverged:
            return "diverged"
        if self.book.over and not self._unmeasured:
            return "over"
        if self.stopping.is_set():
            return "stopped"
        return "running" if self.book.next_task else "waiting"

    # --- the loop ------------------------------------------------------------------------------------------------

    async def run(self, url: str, seed: str, tls: ssl.SSLContext | None = None, patience: float = 30.0) -> None:
        self._pair = Pair.of(seed)
        connection = await connected(url, SERVER, seed, tls, patience, self._broker_is_back.set)
        try:
            if connection.max_payload < MAX_PAYLOAD:
                raise SojournError(
                    f"the broker takes messages of {connection.max_payload} bytes; set its max_payload to "
                    f"{MAX_PAYLOAD}."
                )
            self.stream = connection.jetstream()
            await lasting(self._make_streams)
            queue: asyncio.Queue[Any] = asyncio.Queue()
            await connection.subscribe(UPLOADS_INBOX, cb=queue.put)
            await lasting(self._make_consumers)
            await connection.subscribe("sojourn.hello.*", cb=self._on_hello)
            await connection.subscribe("sojourn.alive.*", cb=self._on_alive)
            await self._measure()
            await self._publish(self.book.unpublished())
            self.ready = True
            await self._until_over(queue)
            await self._published()
            await self._farewell()
        finally:
            with contextlib.suppress(*TROUBLE):
                await connection.close()

    async def _until_over(self, queue: "asyncio.Queue[Any]") -> None:
        since = held_at = looked_at = time.monotonic()
        while not self.book.over and not self.stopping.is_set():
            await self._take_up()
            await self._step(queue)
            self.book.seconds += time.monotonic() - since
            since = time.monotonic()
            if since - looked_at > _LOOK_SECONDS:
                looked_at = since
                await self._look_around()
            if since - held_at > _HOLD_SECONDS:
                held_at = since
                await self._keep_held()
            self._told(self)

    async def _step(self, queue: "asyncio.Queue[Any]") -> None:
        messages, done, closed, changed = await _waiting(queue), self.book.done, False, False
        settled: list[Receipt] = []
        for message in messages:
            verdict, receipt = await self._take(message)
            message.data = b""
            (self._held if verdict in (HELD, AGAIN) else settled).append(receipt)
            changed = changed or verdict not in (HELD, AGAIN, DUPLICATE, IGNORED)
            closed = self.book.close(time.time()) or closed
        closed = self.book.close(time.time()) or closed
        given_up = self._give_up()
        new = self._assign()
        if self.book.done // self._eval_every > done // self._eval_every or self.book.over:
            await self._measure()
        if changed or closed or given_up or new or self.book.unsaved:
            await self._published()
            await asyncio.to_thread(self.book.commit)
        await self._publish(new)
        if not self.book.holding:
            settled, self._held = settled + self._held, []
        for receipt in settled:
            await self._acknowledge(receipt)

    def _assign(self) -> list[Task]:
        now = time.time()
        ready = [w for w in self.workers.values() if w.present(now)]
        if self.book.next_task == 0 and len(ready) < (self.rules.min_workers or self.book.num_clients):
            return []
        if not self.models.have_room:
            return []
        ready.sort(key=lambda w: (w.applied, w.client))  # those first that did the least
        return self.book.assign([worker.client for worker in ready], now)

    def _give_up(self) -> bool:
        """Tasks whose worker is silent, too slow, or no longer trusted; whether there were any."""
        now, gone = time.time(), False
        for task in list(self.book.out.values()):
            worker = self.by_client.get(task.client)
            silent = worker is None or now - max(worker.seen, task.handed_out, self.tally.started) > LOST_AFTER
            late = now - task.handed_out > self.rules.timeout
            untrusted = worker is not None and not worker.trusted
            if (silent or late or untrusted) and not self.book.has_answered(task.client):
                self.book.give_up(task.number, TIMED_OUT if late else LOST)
                gone = True
        return gone

    # --- uploads -------------------------------------------------------------------------------------------------

    async def _take(self, message: Any) -> tuple[str, Receipt]:
        name = message.subject.rsplit(".", 1)[-1]
        worker, receipt = self.workers.get(name), Receipt(message, name)
        if worker is None or not worker.trusted or not is_sealed(self.keys.get(name), message):
            return IGNORED, receipt  # nobody is to blame: the broker can be made to put its replies here
        worker.seen, number = time.time(), -1
        try:
            words = words_of(message.data, "upload", UPLOAD_WORDS)
            number = whole(words, "task")
            if words["parcel"]:
                receipt = dataclasses.replace(receipt, parcel=parcels.upload_name(number))
            if self.book.has_answered(worker.client) and number in self.book.out:
                return AGAIN, receipt
            up, size = await self._checked(worker, message.data, number, words)
        except Rejected as why:
            self._reject(worker, number, str(why))
            return REJECTED, receipt
        task = self.book.out.get(number)
        verdict = DUPLICATE if task is None else self.book.take(number, worker.client, up, size, worker.name)
        worker.last = verdict
        if task is not None and verdict in (APPLIED, HELD):
            worker.applied += 1
            worker.staleness = self.book.version - task.version - (verdict == APPLIED)
            self.tally.staleness[worker.staleness] += 1
            self.tally.arrivals.append(time.time())
        self.tally.duplicates += verdict == DUPLICATE
        return verdict, receipt

    async def _checked(self, worker: Worker, data: bytes, number: int, words: Mapping[str, str]) -> tuple[Any, float]:
        """The answer and its norm, if it is what it should be; nothing of an answer that is not waited for."""
        name, task = words["exchange"], self.book.out.get(number)
        if name not in self.book.trips.exchanges:
            raise Rejected("it is of an exchange that the method does not have")
        schema = self.book.trips.upload_schemas[name]
        if task is not None and task.exchange != name:
            raise Rejected("it answers another exchange than its task")
        if words["parcel"]:
            decode(data, "upload", UPLOAD_WORDS, Schema(()))
            if task is None:
                return None, 0.0  # its parcel may be gone
            bucket, limit = parcels.uploads_bucket(worker.name), schema.num_bytes + parcels.INLINE_BYTES
            data = await lasting(parcels.get, self.stream, bucket, parcels.upload_name(number), limit, words["digest"])
        inner, arrays = decode(data, "upload", UPLOAD_WORDS, schema)
        if (inner["task"], inner["exchange"]) != (words["task"], name):
            raise Rejected("its parcel answers another task")
        size = check_numbers(arrays, min(self.rules.max_norm or np.inf, self.book.limit))
        shape = self.book.trips.shapes[name][1]
        return jax.tree.unflatten(jax.tree.structure(shape), arrays), size

    def _reject(self, worker: Worker, number: int, why: str) -> None:
        """Notes an upload that cannot be used; its task is given up, and who sends too many is asked no more."""
        worker.rejected = self.book.reject(worker.client, why, worker.name)
        worker.last = f"rejected: {why}"
        task = self.book.out.get(number)
        if task is not None and task.client == worker.client and not self.book.has_answered(worker.client):
            self.book.give_up(number, LOST)
        if worker.rejected >= self.rules.max_rejected and not worker.quarantined:
            worker.quarantined = True
            self.book.exclude(worker.client)

    def _revoke(self, worker: Worker, revoked: bool) -> None:
        """An invitation was taken back, or given anew."""
        worker.revoked = revoked
        if revoked and not self.book.asked[worker.client]:
            self.book.vacate(worker.client)
            del self.workers[worker.name], self.by_client[worker.client]
        elif not worker.quarantined:
            (self.book.exclude if revoked else self.book.readmit)(worker.client)

    async def _acknowledge(self, receipt: Receipt) -> None:
        with contextlib.suppress(*TROUBLE):  # it comes again, is known as a duplicate and acknowledged then
            if receipt.parcel is not None:
                await parcels.drop(self.stream, parcels.uploads_bucket(receipt.worker), receipt.parcel)
            await receipt.message.ack()

    async def _keep_held(self) -> None:
        for receipt in self._held:
            with contextlib.suppress(*TROUBLE):
                await receipt.message.in_progress()

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def _publish(self, tasks: list[Task]) -> None:
        """Sends tasks of the model as it is now. The last few may be on their way: `_published` waits for them."""
        downs: dict[str, Any] = {}
        for first in range(0, len(tasks), _AT_ONCE):
            bodies = []
            for task in tasks[first : first + _AT_ONCE]:
                if task.exchange not in downs:
                    downs[task.exchange] = jax.tree.map(np.asarray, self.book.down(task.exchange))
                bodies.append((task, await self._body(task, downs[task.exchange])))
            await self._published()
            self._sending = asyncio.gather(*(self._send(task, body) for task, body in bodies))

    async def _published(self) -> None:
        """All tasks that were handed out have reached the broker's disk."""
        if self._sending is not None:
            await self._sending
            self._sending = None

    async def _body(self, task: Task, down: Any) -> bytes:
        words = {"task": str(task.number), "exchange": task.exchange, "memory": str(task.memory), "parcel": "",
                 "digest": "", "start": ""}  # fmt: skip
        start = start_of(self.book, task)
        if Schema.of((down, *start)).num_bytes <= parcels.INLINE_BYTES:
            return encode("task", words, (self.book.key(task), down, *start))
        words |= await self.models.put(self.stream, task, down, start)
        return encode("task", words, (self.book.key(task),))

    async def _send(self, task: Task, body: bytes) -> None:
        await self._tell(self.by_client[task.client].name, body)

    async def _tell(self, worker: str, body: bytes) -> None:
        subject = task_subject(worker)
        await lasting(self.stream.publish, subject, body, headers=self._pair.seal(subject, body))

    # --- streams and people --------------------------------------------------------------------------------------

    async def _make_streams(self) -> None:
        await make_streams(self.stream)
        await self.models.make_bucket(self.stream)

    async def _make_consumers(self) -> None:
        await deliver_uploads(self.stream, self.book.num_clients)
        for worker in self.workers:
            await self._make_way(worker)

    async def _take_up(self) -> None:
        """Goes on with a broker that was away."""
        if self._broker_is_back.is_set():
            self._broker_is_back.clear()
            await lasting(self._make_consumers)

    async def _make_way(self, worker: str) -> None:
        await deliver_tasks(self.stream, worker)
        if self._largest() > parcels.INLINE_BYTES:
            await parcels.make_bucket(self.stream, parcels.uploads_bucket(worker), 2 * self._largest() + (64 << 20))
        await self._tidy(worker)

    async def _tidy(self, worker: str) -> None:
        """Takes away a worker's parcels of tasks that are not out: it was killed before it could send word of them.

        Between steps alone, when the book on disk has the same tasks out: its next server would ask for others again.
        """
        if self._largest() > parcels.INLINE_BYTES:
            wanted = [parcels.upload_name(number) for number in self.book.out]
            await parcels.tidy(self.stream, parcels.uploads_bucket(worker), wanted)

    def _largest(self) -> int:
        shapes = self.book.trips.shapes.values()
        return max(Schema.of(message).num_bytes for pair in shapes for message in pair)

    async def _look_around(self) -> None:
        """New invitations, who has come anew, and how many uploads wait at the broker."""
        while self._came:
            await lasting(self._tidy, self._came.pop())
        for name in self._heed(self._roster()) if self._roster else ():
            await lasting(self._make_way, name)
        with contextlib.suppress(*TROUBLE):
            info = await self.stream.consumer_info(UPLOADS, SERVER)
            self.tally.queue = (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def _on_hello(self, message: Any) -> None:
        name = message.subject.rsplit(".", 1)[-1]
        worker = self.workers.get(name)
        answer: dict[str, Any]
        if not message.reply.startswith(f"{inbox(name)}."):
            return  # it would be sent in the server's name to somebody else
        if worker is None and name in self.keys and None not in self.book.names:
            answer = {"refused": self._full()}
        elif worker is None:
            answer = {"later": "the server does not know this worker."}
        elif worker.quarantined:
            answer = {"refused": f"{worker.name} sent what could not be used and is asked no more."}
        else:
            refused = self._greet(worker, message.data)
            answer = refused or {**self.welcome, "client": worker.client, "over": self.book.over}
        with contextlib.suppress(*TROUBLE):
            await message.respond(json.dumps(answer).encode())

    def _full(self) -> str:
        held = sum(worker.revoked for worker in self.workers.values())
        why = f"; {held} of them by workers that were revoked after their first task, who can be invited anew"
        return f"all {self.book.num_clients} places of this run are taken{why if held else ''}."

    def _greet(self, worker: Worker, data: bytes) -> dict[str, str]:
        """Notes what a worker says of itself; a refusal if it makes no sense."""
        try:
            told = json.loads(data) if len(data) <= _MAX_HELLO else None
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            return {"refused": "this worker speaks another version of the protocol; install the server's sojourn."}
        worker.seen = time.time()
        samples = told.get("samples")
        if samples is not None:
            if type(samples) is not int or not 1 <= samples <= 2**31:
                return {"refused": "a worker needs at least one sample."}
            try:
                self.book.told_samples(worker.client, samples)
            except SojournError as error:
                return {"refused": str(error)}
            worker.joined = True
            self._came.add(worker.name)
        return {}

    async def _on_alive(self, message: Any) -> None:
        worker = self.workers.get(message.subject.rsplit(".", 1)[-1])
        if worker is not None:
            worker.seen = time.time()
            worker.joined = worker.joined or self.book.samples[worker.client] is not None  # of a server before

    async def _farewell(self) -> None:
        """Tells everyone that it is over, and waits a little until those who are there have heard."""
        if not self.book.over:
            return
        for name in self.workers:
            await self._tell(name, OVER)
        until = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < until:
            await self._take_up()
            self._told(self)
            there = [worker.name for worker in self.workers.values() if worker.present(time.time())]
            infos = [await lasting(self.stream.consumer_info, TASKS, name) for name in there]
            if not any((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos):
                return
            await asyncio.sleep(0.2)

    # --- what is told --------------------------------------------------------------------------------------------

    async def _measure(self) -> None:
        """The metrics of the model, unless it was measured already."""
        if self._evaluate is None or (self.book.metrics and self.book.metrics[-1]["done"] >= self.book.done):
            return
        found = await unless(self.stopping, aside(self._evaluate, self.book.server))
        self._unmeasured = found is None  # the next server of the run does it
        if found is None:
            return
        self.tally.privacy = self._spent(self.book.done)
        self.book.metrics.append({"done": self.book.done, "seconds": round(self.book.seconds, 3), **found})
        if not np.isfinite(found.get("loss", 0.0)):
            self.book.diverged = True

    def progress(self) -> tuple[int, dict[str, float], int]:
        """How much is done, the last metrics, and how much there is to do."""
        return self.book.done, self.book.metrics[-1] if self.book.metrics else {}, self.book.of

    def snapshot(self) -> dict[str, Any]:
        """How the run is, for people: plain values."""
        if self._ended is None and self.status in ENDED:
            self._ended = time.time()
        return snapshot_of(self.book, list(self.workers.values()), self.tally, self.status, self._ended or time.time())


async def _waiting(queue: "asyncio.Queue[Any]") -> list[Any]:
    """What has arrived, at most a batch; nothing if nothing comes for a while."""
    try:
        found = [await asyncio.wait_for(queue.get(), 0.25)]
    except TimeoutError:
        return []
    while len(found) < BATCH and not queue.empty():
        found.append(queue.get_nowait())
    return found
