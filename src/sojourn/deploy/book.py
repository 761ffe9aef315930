"""The server's book: which tasks are out, which uploads were applied, and the model that contains them.

Pure of any network, so that it can be tested by itself. An upload is applied at most once: the book knows the tasks
that are out, takes an answer to one of them, and strikes it off; any other answer is a duplicate, too late or forged.
`commit` makes all that was applied since the last one durable, in one file (see `turns`): the state, and the last rows
of the log, which is synced itself only now and then. After a kill the book is as it was at a commit, its
log with it, and what came since is delivered again.

A task is numbered, and its randomness depends on the task, or on its round, and its client alone: done twice it gives
the same upload. Two books follow this one: `asynchronous` takes uploads one by one, `rounds` many at a time.
"""

import abc
import contextlib
import dataclasses
import functools
import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Exchange
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.files import write_atomically, write_secret
from sojourn.core.keys import root_key
from sojourn.core.vec import norm
from sojourn.deploy.rules import Rules
from sojourn.deploy.turns import Turns
from sojourn.deploy.wire import Schema
from sojourn.driver import world_of
from sojourn.engine.accounting import message_shapes, one_memory
from sojourn.engine.checkpoint import another_run, arrays_of, damage, fingerprint, state_of
from sojourn.engine.rounds import divergence_limit

LOG_FILE, BOOK_FILE, SECRET_FILE = "applied.jsonl", "book", "root.secret"
_FORMER_FILE = "book.npz"
_LENGTH = 8  # bytes that say how long the words of a book are
_TAIL = 1 << 14  # characters of the log that the book carries before it is synced
HANDED_OUT, APPLIED, DUPLICATE, TOO_STALE = "handed out", "applied", "duplicate", "too stale"
REJECTED = "rejected"
HELD, AGAIN = "held", "again"  # of rounds: taken, and in the model once the round closes; delivered a second time


@dataclasses.dataclass(frozen=True)
class Task:
    """Work that was handed out."""

    number: int
    client: int
    exchange: str  # "steady.0": a phase and the place of the exchange in it
    round: int
    version: int  # of the model it starts from
    applied: int  # uploads when it was handed out
    memory: int  # the task after which the client's memory is to be taken up; -1: it has none yet
    handed_out: float  # seconds since the epoch


class Trips:
    """The exchanges of a method by name, with the shapes of their messages."""

    def __init__(self, algorithm: Algorithm, clients: Clients, x0: Any) -> None:
        self.exchanges = self.of(algorithm)
        server, memory = jax.eval_shape(algorithm.init_server, x0), one_memory(algorithm, x0)
        self.shapes = {name: message_shapes(e, clients, server, memory) for name, e in self.exchanges.items()}
        self.remembers = bool(jax.tree.leaves(memory))

    @staticmethod
    def of(algorithm: Algorithm) -> dict[str, Exchange]:
        phases = {"opening": algorithm.opening(), "steady": algorithm.exchanges(), "closing": algorithm.closing()}
        return {f"{phase}.{number}": e for phase, several in phases.items() for number, e in enumerate(several)}

    @functools.cached_property
    def upload_schemas(self) -> dict[str, Schema]:
        return {name: Schema.of(up) for name, (_, up, *_) in self.shapes.items()}

    def phase(self, name: str) -> list[str]:
        return [exchange for exchange in self.exchanges if exchange.startswith(f"{name}.")]


class Book(abc.ABC):
    """What both kinds of book keep, and how it survives."""

    unit: str
    kept: ClassVar[tuple[str, ...]] = (
        "applied", "next_task", "memories", "seconds", "metrics", "diverged", "given_up", "rejected", "samples",
        "names", "asked",
    )  # fmt: skip

    def __init__(
        self, federation: Federation, algorithm: Algorithm, place: Path, rules: Rules, *, of: int, seed: int = 0
    ) -> None:
        self.algorithm, self.place, self.rules, self.of = algorithm, place, rules, of
        self.federation, self.clients, self.x0 = federation, federation.clients, federation.x0
        self.num_clients = federation.num_clients
        self.trips = Trips(algorithm, federation.clients, federation.x0)
        self.seed, self.root = seed, secret_root(place) if algorithm.private else root_key(seed)
        self.server = algorithm.init_server(federation.x0)
        self.applied = self.next_task = self.given_up = 0
        self.out: dict[int, Task] = {}
        self.memories = [-1] * self.num_clients  # the last task of each client that was applied
        self.rejected = [0] * self.num_clients  # uploads of each that could not be used
        self.samples: list[int | None] = [None] * self.num_clients  # as the workers told them
        self.names: list[str | None] = [None] * self.num_clients  # of the workers that the clients are
        self.asked = [False] * self.num_clients  # whether a task was ever handed out to each
        self.excluded: set[int] = set()  # those who take part no more
        self.seconds = 0.0  # of all servers of this run together
        self.metrics: list[dict[str, float]] = []
        self.diverged = False
        self.unsaved = False  # whether workers told something that is not on disk
        self.limit = float(divergence_limit(federation.x0))
        self._fresh: list[dict[str, Any]] = []  # rows of the log since the last commit
        self._synced, self._tail = 0, ""  # bytes of the log that are surely on disk, and its lines after them
        self._identity = fingerprint(algorithm, federation.x0, self.root, (self.num_clients, self._settled()))
        place.mkdir(parents=True, exist_ok=True)
        self._pages = Turns(place / BOOK_FILE)
        if self._pages.path.exists():
            self._load()
        elif (place / _FORMER_FILE).exists():
            raise SojournError(
                f"{place / _FORMER_FILE} was written by an earlier sojourn, which this one cannot continue; take that "
                "one, or start in another --out."
            )
        else:
            (place / LOG_FILE).unlink(missing_ok=True)  # of a server that was killed before its first commit

    def _settled(self) -> Any:
        """What must not change from one server of a run to the next, beside the method and where it starts."""
        return None

    def told_samples(self, client: int, number: int) -> None:
        """How many samples a client has: it weighs as many, where the method or the objective weighs by them.

        Told once and for all: a weight that changes between an answer and its round's end would spoil the mean.
        """
        if self.samples[client] == number:
            return
        if self.samples[client] is not None:
            raise SojournError(f"this worker had {self.samples[client]} samples before; a run needs data that stay.")
        told = [number if place == client else known for place, known in enumerate(self.samples)]
        met = dataclasses.replace(self.federation, clients=self._with_samples(told))
        self.algorithm.check(world_of(met, self.algorithm, self.num_clients))  # it may not take unequal weights
        self.samples, self.clients, self.unsaved = told, met.clients, True

    def _with_samples(self, told: list[int | None]) -> Clients:
        """The clients by what was told; those who were not heard yet are thought to have as many as the others."""
        known = [number for number in told if number is not None]
        if not known:
            return self.federation.clients
        sizes = np.array([np.mean(known) if number is None else number for number in told], float)
        given, kind = self.federation.clients, jnp.result_type(float)
        weights = None if given.weights is None else jnp.asarray(sizes / sizes.sum(), given.weights.dtype)
        return dataclasses.replace(given, sizes=jnp.asarray(sizes, kind), weights=weights)

    # --- how far it is -------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def done(self) -> int: ...

    @property
    @abc.abstractmethod
    def version(self) -> int: ...

    @property
    def over(self) -> bool:
        return self.done >= self.of or self.diverged

    @property
    def holding(self) -> bool:
        """Whether uploads were taken that the model does not contain yet."""
        return False

    @property
    def models_in_use(self) -> int:
        """How many different models the tasks that are out can start from."""
        return 1

    def exclude(self, client: int) -> None:
        """A worker that takes part no more: its answers are not waited for."""
        self.excluded.add(client)

    def readmit(self, client: int) -> None:
        """A worker that was excluded and is asked again."""
        self.excluded.discard(client)

    def place_of(self, name: str) -> int | None:
        """The client that a worker is: the one it was, else the first that nobody is; None if there is none."""
        if name not in self.names and None in self.names:
            client = self.names.index(None)
            self.names[client] = name
            self.readmit(client)
        return self.names.index(name) if name in self.names else None

    def vacate(self, client: int) -> None:
        """Another worker may be this client, which was never handed a task; until then the others go on without it."""
        self.names[client], self.samples[client], self.rejected[client] = None, None, 0
        self.clients, self.unsaved = self._with_samples(self.samples), True
        if self.next_task:
            with contextlib.suppress(SojournError):  # a method that cannot do without it waits
                self.exclude(client)

    def has_answered(self, client: int) -> bool:
        """Whether a client's answer was taken and waits for the others."""
        return False

    # --- tasks ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def assign(self, present: Sequence[int], now: float) -> list[Task]:
        """New tasks for clients that are there; `present` is in the order in which they should be preferred."""

    def _hand_out(self, client: int, exchange: str, round: int, now: float) -> Task:
        task = Task(self.next_task, client, exchange, round, self.version, self.applied, self.memories[client], now)
        self.out[task.number], self.asked[client] = task, True
        self.next_task += 1
        self._fresh.append({"event": HANDED_OUT, **vars(task)})
        return task

    def busy(self) -> set[int]:
        return {task.client for task in self.out.values()}

    def down(self, exchange: str) -> Any:
        """What a task that is handed out now starts from."""
        return self.trips.exchanges[exchange].broadcast(self.server)

    @abc.abstractmethod
    def key(self, task: Task) -> np.ndarray:
        """The numbers of the key that the client draws from, folded as every engine does."""

    @abc.abstractmethod
    def unpublished(self) -> list[Task]:
        """After a restart: tasks that may not have reached the broker; their model is the one in the book."""

    def give_up(self, number: int, why: str) -> None:
        """Strikes a task off: its worker was lost or too slow, and what it may still send is a duplicate."""
        task = self.out.pop(number)
        self.given_up += 1
        self._fresh.append({"event": why, "number": number, "client": task.client, "applied": self.applied})

    # --- uploads -------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def take(self, number: int, client: int, up: Any, size: float = 0.0, worker: str = "") -> str:
        """Takes an upload if its task is out: says what became of it. `size` is its norm, for the log."""

    def reject(self, client: int, why: str, worker: str = "") -> int:
        """Notes an upload that cannot be used; returns how many there were of this client."""
        self.rejected[client] += 1
        self._fresh.append({"event": REJECTED, "client": client, "worker": worker, "why": why})
        return self.rejected[client]

    def close(self, now: float) -> bool:
        """Rounds: makes the next model if all that is waited for has come."""
        return False

    def _moved(self, reach: Any, moved: Any) -> float:
        """How far a new state's model is from the last; a run whose model leaves all bounds has diverged."""
        self.diverged = not (math.isfinite(float(reach)) and float(reach) <= self.limit)
        return float(moved)

    # --- the disk ------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """All that was applied and handed out so far survives a kill from here on."""
        self.unsaved = False
        lines = "".join(json.dumps(row) + "\n" for row in self._fresh)
        self._fresh, self._tail = [], self._tail + lines
        with open(self.place / LOG_FILE, "ab") as stream:
            stream.write(lines.encode())
            if len(self._tail) > _TAIL:
                stream.flush()
                os.fsync(stream.fileno())
                self._synced, self._tail = stream.tell(), ""
        book = {**self._book(), "log": self._synced, "rows": self._tail, "identity": self._identity}
        text = json.dumps(book).encode()
        arrays = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays_of(self.server))
        self._pages.write([len(text).to_bytes(_LENGTH, "little"), text, *arrays])

    def _book(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.kept}
        return {**plain, "excluded": sorted(self.excluded), "out": [vars(task) for task in self.out.values()]}

    def _load(self) -> None:
        content = self._pages.read()
        if content is None:
            raise damage(self._pages.path, "no whole content in it")
        start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
        book, like = json.loads(bytes(content[_LENGTH:start])), arrays_of(self.server)
        if book["identity"] != self._identity or start + sum(array.nbytes for array in like) != len(content):
            raise another_run(self._pages.path)
        arrays = []
        for array in like:
            arrays.append(np.frombuffer(content, array.dtype, array.size, start).reshape(array.shape))
            start += array.nbytes
        self.server = state_of(arrays, self.server)
        self._open(book)

    def _open(self, book: dict[str, Any]) -> None:
        former = {"names": self.names, "asked": [True] * self.num_clients}  # that an earlier sojourn did not keep
        for name, value in (former | book).items():
            if name in self.kept:
                setattr(self, name, value)
        self.excluded = set(book["excluded"])
        self.clients = self._with_samples(self.samples)
        self.out = {entry["number"]: Task(**entry) for entry in book["out"]}
        self._synced, self._tail = book["log"], book["rows"]
        with open(self.place / LOG_FILE, "rb+") as stream:  # rows after the last commit never happened
            stream.truncate(self._synced)
            stream.seek(self._synced)
            stream.write(self._tail.encode())


@jax.jit
def reach_and_move(algorithm: Algorithm, before: Any, after: Any) -> tuple[jax.Array, jax.Array]:
    """The norm of a new state's model, and of its difference from the last; compiled, so nothing is made for it."""
    model = algorithm.model(after)
    return norm(model), norm(model - algorithm.model(before))


def secret_root(place: Path) -> jax.Array:
    """The root of a private run: drawn once and kept here, as whoever knows it can take the noise away again."""
    path = place / SECRET_FILE
    if not path.exists():
        write_atomically(path, lambda beside: write_secret(beside, secrets.token_hex(8)))
    numbers = np.frombuffer(bytes.fromhex(path.read_text()), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl="threefry2x32")


def read_log(place: Path) -> list[dict[str, Any]]:
    """The rows of a book's log; there are none before its first commit."""
    path = place / LOG_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
