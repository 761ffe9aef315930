"""How a run is at a moment, for people: plain values that the status on disk, the terminal and the page are made of."""

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sojourn.deploy.book import Book, Task
from sojourn.deploy.rounds import InRounds

LOST_AFTER = 15.0  # seconds without a sign of life
_EVALUATIONS = 300  # that are told at most
_STRETCHES = 60  # of the time that is remembered


@dataclasses.dataclass
class Worker:
    """What the server knows of a worker."""

    name: str
    client: int
    seen: float = 0.0  # the last sign of life
    joined: bool = False
    applied: int = 0
    rejected: int = 0
    last: str = ""
    staleness: int | None = None
    quarantined: bool = False  # it sent too much that could not be used
    revoked: bool = False  # its invitation was taken back

    @property
    def trusted(self) -> bool:
        return not (self.quarantined or self.revoked)

    def present(self, now: float) -> bool:
        return self.joined and self.trusted and now - self.seen < LOST_AFTER


@dataclasses.dataclass
class Tally:
    """What a server counts for people; it is not what the run depends on."""

    label: str
    started: float
    queue: int = 0  # uploads that wait at the broker
    duplicates: int = 0
    staleness: Counter[int] = dataclasses.field(default_factory=Counter)
    arrivals: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=4096))
    privacy: dict[str, Any] | None = None


def snapshot_of(book: Book, workers: Sequence[Worker], tally: Tally, status: str, now: float) -> dict[str, Any]:
    over = book.over
    busy = {} if over else {task.client: task for task in book.out.values() if not book.has_answered(task.client)}
    return {
        "format": 1,
        "run": {
            "label": tally.label, "algorithm": book.algorithm.title,
            "mode": "rounds" if isinstance(book, InRounds) else "asynchronous", "status": status,
            "done": book.done, "of": book.of, "unit": book.unit, "version": book.version, "started": tally.started,
            "now": now, "phase": _phase(book, workers, status, now),
        },
        "metrics": book.metrics[:: max(1, len(book.metrics) // _EVALUATIONS)],
        "workers": [_told_of(worker, busy.get(worker.client), now) for worker in workers],
        "staleness": sorted(tally.staleness.items()),
        "throughput": _throughput(tally.arrivals, tally.started, now),
        "queue": 0 if over else tally.queue, "rejected": sum(book.rejected),
        "duplicates": tally.duplicates,
        "given_up": book.given_up, "privacy": tally.privacy,
    }  # fmt: skip


def _phase(book: Book, workers: Sequence[Worker], status: str, now: float) -> str:
    if book.over or status == "stopped":
        return f"{book.done:,} of {book.of:,} {book.unit} are in the model"
    there = sum(worker.present(now) for worker in workers)
    if book.next_task == 0:
        return f"waiting for workers: {there} of {book.rules.min_workers or book.num_clients} are there"
    if isinstance(book, InRounds):
        return f"round {book.round + 1}: {book.reported} of {book.wanted} answers, {there} workers there"
    return f"{len(book.out)} tasks are out, {there} workers there"


def _told_of(worker: Worker, task: Task | None, now: float) -> dict[str, Any]:
    return {
        "name": worker.name, "client": worker.client, "state": _state(worker, task, now),
        "task": task.number if task else None,
        "since": task.handed_out if task else None, "seen": worker.seen or None, "applied": worker.applied,
        "rejected": worker.rejected, "last": worker.last, "staleness": worker.staleness,
    }  # fmt: skip


def _state(worker: Worker, task: Task | None, now: float) -> str:
    """What is known from before counts first: of these two nobody will hear again."""
    if not worker.trusted:
        return "quarantined" if worker.quarantined else "revoked"
    if worker.present(now):
        return "idle" if task is None else "working"
    return "silent" if worker.joined else "expected"


def _throughput(arrivals: Iterable[float], started: float, now: float) -> list[list[float]]:
    """Uploads per second, stretch by stretch."""
    times = list(arrivals)
    if not times:
        return []
    edges = np.linspace(times[0], max(now, times[0] + 1), _STRETCHES + 1)
    rates = np.histogram(times, edges)[0] / (edges[1] - edges[0])
    return [[round(float(t - started), 2), round(float(r), 3)] for t, r in zip(edges[1:], rates, strict=True)]
