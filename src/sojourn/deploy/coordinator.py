"""The server's book: which tasks are out, which uploads were applied, and the model that contains them.

Pure of any network, so that it can be tested by itself. An upload is applied at most once: the book knows the tasks that
are out, takes an answer to one of them, and strikes it off; any other answer is a duplicate, too late or forged. `commit`
makes all that was taken since the last one durable, the log first and then the state, in one file that is replaced
whole: after a kill the book is as it was at a commit, and what was taken since is asked for again or delivered again.

A task is numbered, and its randomness depends on that number and its client alone: done twice it gives the same upload.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm, Context
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.vec import norm
from sojourn.engine.checkpoint import fingerprint, load_state, save_state
from sojourn.traces.trace import ACCEPTED, LOST, STALE, TIMED_OUT, UNFINISHED, Trace

LOG_FILE, BOOK_FILE = "applied.jsonl", "book.npz"
HANDED_OUT, APPLIED, DUPLICATE, TOO_STALE = "handed out", "applied", "duplicate", "too stale"


@dataclasses.dataclass(frozen=True)
class Task:
    """Work that was handed out."""

    number: int
    client: int
    version: int  # of the model it starts from
    applied: int  # uploads when it was handed out
    memory: int  # the task after which the client's memory is to be taken up; -1: it has none yet
    handed_out: float  # seconds since the epoch


class Coordinator:
    """The book of an asynchronous run."""

    def __init__(
        self, federation: Federation, algorithm: Algorithm, place: Path, *, seed: int = 0,
        max_staleness: int | None = None,
    ) -> None:  # fmt: skip
        if not algorithm.asynchronous:
            raise SojournError(f"{type(algorithm).__name__} takes its answers in rounds, not one by one as they come.")
        self.algorithm, self.place, self.max_staleness = algorithm, place, max_staleness
        self.num_clients = federation.num_clients
        (self._exchange,) = algorithm.exchanges()
        self._root = root_key(seed)
        self.server = algorithm.init_server(federation.x0)
        self.applied, self.next_task = 0, 0
        self.out: dict[int, Task] = {}
        self.memories = [-1] * self.num_clients  # the last task of each client that was applied
        self._fresh: list[dict[str, Any]] = []  # rows of the log since the last commit
        self._identity = fingerprint(algorithm, federation.x0, self._root, (self.num_clients, max_staleness))
        self._aggregate = jax.jit(lambda a, server, up, context: a.exchanges()[0].aggregate(server, up, context))
        place.mkdir(parents=True, exist_ok=True)
        if (place / BOOK_FILE).exists():
            self._load()

    @property
    def version(self) -> int:
        return self.applied // self.algorithm.uploads_per_update()

    # --- tasks ---------------------------------------------------------------------------------------------------

    def hand_out(self, client: int, now: float) -> Task:
        """A new task for a client that has none, from the newest model."""
        if not 0 <= client < self.num_clients:
            raise SojournError(f"client {client} does not exist; the federation has {self.num_clients}.")
        if any(task.client == client for task in self.out.values()):
            raise SojournError(f"client {client} is at work already.")
        task = Task(self.next_task, client, self.version, self.applied, self.memories[client], now)
        self.out[task.number] = task
        self.next_task += 1
        self._fresh.append({"event": HANDED_OUT, **dataclasses.asdict(task)})
        return task

    def down(self) -> Any:
        """What a task that is handed out now starts from."""
        return self._exchange.broadcast(self.server)

    def key(self, task: Task) -> np.ndarray:
        """The numbers of the key that the client draws from, folded as every engine does."""
        key = jax.random.fold_in(jax.random.fold_in(self._root, task.number), task.client)
        return np.asarray(jax.random.key_data(purpose_key(key, self._exchange.purpose)))

    def give_up(self, number: int, why: str = TIMED_OUT) -> None:
        """Strikes a task off: its worker was lost or too slow, and what it may still send is a duplicate."""
        task = self.out.pop(number)
        self._fresh.append({"event": why, "number": number, "client": task.client, "applied": self.applied})

    # --- uploads -------------------------------------------------------------------------------------------------

    def take(self, number: int, client: int, up: Any) -> str:
        """Applies an upload, if its task is out: says what became of it."""
        task = self.out.get(number)
        if task is None or task.client != client:
            return DUPLICATE
        del self.out[number]
        staleness = self.version - task.version
        row = {"number": number, "client": client, "version": task.version, "staleness": staleness}
        if self.max_staleness is not None and staleness > self.max_staleness:
            self._fresh.append({"event": TOO_STALE, **row, "applied": self.applied})
            return TOO_STALE
        context = Context(
            jnp.asarray(self.applied), self.num_clients, 1, 1 / self.num_clients, jnp.asarray(staleness)
        )  # fmt: skip
        before = self.algorithm.model(self.server)
        self.server = self._aggregate(self.algorithm, self.server, up, context)
        self.applied += 1
        self.memories[client] = number
        told = {name: float(value) for name, value in self.algorithm.told(context).items()}
        moved = float(norm(self.algorithm.model(self.server) - before))
        self._fresh.append({"event": APPLIED, **row, "applied": self.applied, "moved": moved, **told})
        return APPLIED

    # --- the disk ------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """All that was taken and handed out so far survives a kill from here on."""
        lines = "".join(json.dumps(row) + "\n" for row in self._fresh).encode()
        with open(self.place / LOG_FILE, "ab") as stream:
            stream.write(lines)
            stream.flush()
            os.fsync(stream.fileno())
            length = stream.tell()
        self._fresh = []
        save_state(self.place / BOOK_FILE, (self.server, self._book(length)), self._identity)

    def _book(self, length: int) -> np.ndarray:
        book = {
            "applied": self.applied, "next_task": self.next_task, "memories": self.memories, "log": length,
            "out": [dataclasses.asdict(task) for task in self.out.values()],
        }  # fmt: skip
        return np.frombuffer(json.dumps(book).encode(), np.uint8)

    def _load(self) -> None:
        template = (self.server, jnp.zeros(0, jnp.uint8))
        self.server, raw = load_state(self.place / BOOK_FILE, template, self._identity)
        book = json.loads(np.asarray(raw, np.uint8).tobytes())
        self.applied, self.next_task, self.memories = book["applied"], book["next_task"], book["memories"]
        self.out = {entry["number"]: Task(**entry) for entry in book["out"]}
        with open(self.place / LOG_FILE, "rb+") as stream:  # rows after the last commit never happened
            stream.truncate(book["log"])


def read_log(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / LOG_FILE).read_text().splitlines()]


def trace_of(log: Sequence[dict[str, Any]], num_clients: int, uploads_per_update: int) -> Trace:
    """The log as a trace, in which time is the number of events: the simulator can play it again."""
    fates = {APPLIED: ACCEPTED, TOO_STALE: STALE, TIMED_OUT: TIMED_OUT, LOST: LOST}
    tasks: dict[int, dict[str, Any]] = {}
    for time, row in enumerate(log):
        if row["event"] == HANDED_OUT:
            tasks[row["number"]] = {
                "client": row["client"], "dispatched": float(time), "applied": float(len(log)), "fate": UNFINISHED,
            }  # fmt: skip
        else:
            tasks[row["number"]] |= {"applied": float(time), "fate": fates[row["event"]]}
    return Trace(pd.DataFrame([tasks[number] for number in sorted(tasks)]), num_clients, uploads_per_update)
