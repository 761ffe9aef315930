"""Schedules: who is given work when. Each makes a trace.

`busy` is a server that keeps up to `concurrency` clients at work; `uniform_staleness` is the protocol of Xie et al.,
whose clients start from models of random age; `from_file` reads what happened elsewhere.
"""

import dataclasses
import hashlib
import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.traces.availability import Always, Availability, Presence
from sojourn.traces.clocks import Clock, Constant, Draw
from sojourn.traces.trace import ACCEPTED, LOST, STALE, TIMED_OUT, UNFINISHED, Trace, read_trace

_AT_LEAST = 256  # uploads that every trace has, so that what is decided by looking at it does not hang on its length
_FRUITLESS = 1000  # instants in a row, for each client at work, at which nothing is accepted: then nothing will be


def _check_count(name: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        raise SojournError(f"{name} = {number!r} is out of range; give a whole number of at least 1.")


@dataclasses.dataclass(frozen=True)
class Devices:
    """The clients' machines: how long a local step takes, how long a message, and when they are there."""

    clock: Clock = dataclasses.field(default_factory=Constant)  # of a local step
    delay: Clock = dataclasses.field(default_factory=lambda: Constant(0.0))  # of a message, either way
    availability: Availability = dataclasses.field(default_factory=Always)

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if not hasattr(part, "prepare"):
                raise SojournError(
                    f"devices.{name} is {part!r}; give one such as traces.Lognormal() or traces.Always()."
                )

    def identity(self) -> str:
        """What they are made of, with the contents of files."""
        parts = [part for part in vars(self).values() if hasattr(part, "path")]
        return "; ".join([repr(self), *(_digest(part.path) for part in parts)])

    def prepare(self, num_clients: int, seed: int) -> "Machines":
        streams = np.random.default_rng([seed, 1]).spawn(4)
        return Machines(
            self.clock.prepare(num_clients, streams[0]), self.delay.prepare(num_clients, streams[1]),
            self.availability.prepare(num_clients, streams[2]), streams[3],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Machines:
    """Devices, drawn."""

    step: Draw
    message: Draw
    presence: Presence
    rng: np.random.Generator  # for whoever hands out work

    def visit(self, client: int, steps: int) -> tuple[float, float]:
        """Seconds until the work is done, and until its upload is there."""
        down = self.message(client)
        done = down + sum(self.step(client) for _ in range(steps))
        arrives = done + self.message(client)
        if not 0 <= done <= arrives < np.inf or arrives == 0:
            raise SojournError(f"a visit of client {client} takes {arrives:g} seconds; give a clock of positive times.")
        return done, arrives


@dataclasses.dataclass(frozen=True)
class Work:
    """What a method makes of tasks: their length, and how many of them make a new model."""

    steps: int = 1  # local steps of a task
    uploads_per_update: int = 1
    weights: np.ndarray | None = None  # of the clients, for a weighted choice

    def __post_init__(self) -> None:
        for name in ("steps", "uploads_per_update"):
            _check_count(name, getattr(self, name))


Staleness = Annotated[int | None, Field(ge=0, description="uploads that are staler are thrown away; none if left out")]


@options_checked
def busy(
    num_clients: int,
    uploads: int,
    devices: Devices | None = None,
    work: Work = Work(),  # noqa: B008
    *,
    concurrency: Annotated[int | None, Field(ge=1, description="clients at work at once, at most; ten or all")] = None,
    choice: Annotated[
        Literal["uniform", "round-robin", "weighted"],
        Field(description="whom of the idle to ask; weighted: by size"),
    ] = "uniform",
    max_staleness: Staleness = None,
    timeout: Annotated[float | None, Field(gt=0, description="virtual seconds after which a task is given up")] = None,
    dropout: Annotated[float, Field(ge=0, lt=1, description="probability that a task's upload never arrives")] = 0.0,
    server_seconds: Annotated[float, Field(ge=0, description="of the server for an upload, one at a time")] = 0.0,
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the schedule's random numbers")] = 0,
) -> Trace:
    """Up to `concurrency` clients at work; whoever comes back makes room for another, drawn from the idle ones."""
    _check_count("num_clients", num_clients)
    _check_count("uploads", uploads)
    devices = devices or Devices()
    if not isinstance(devices, Devices):
        raise SojournError(f"{devices!r} are no devices; write traces.Devices(clock=…).")
    concurrency = min(10, num_clients) if concurrency is None else concurrency
    if concurrency > num_clients:
        raise SojournError(
            f"concurrency = {concurrency} is more than the {num_clients} clients there are; lower it, or leave it out."
        )
    if choice == "weighted":
        work = dataclasses.replace(work, weights=_checked_weights(work.weights, num_clients))
    simulation = _Busy(
        num_clients, devices.prepare(num_clients, seed), work, concurrency, choice, max_staleness, timeout, dropout,
        server_seconds,
    )  # fmt: skip
    rows = simulation.run(max(uploads, _AT_LEAST) + concurrency + 1)  # who starts after the last one must be known too
    shares = _digest_of(np.asarray(work.weights).tobytes()) if choice == "weighted" else None
    about = {
        "schedule": "busy", "devices": devices.identity(), "seed": seed, "concurrency": concurrency, "choice": choice,
        "max_staleness": max_staleness, "timeout": timeout, "dropout": dropout, "server_seconds": server_seconds,
        "steps": work.steps, "weights": shares,
    }  # fmt: skip
    bound = concurrency if server_seconds == 0 else None
    trace = Trace(pd.DataFrame(rows), num_clients, work.uploads_per_update, bound, about, warranted=True)
    return trace.until(len(trace))


class _Busy:
    """The events of a server that keeps clients at work, on a heap of times."""

    def __init__(
        self, num_clients: int, machines: Machines, work: Work, concurrency: int, choice: str,
        max_staleness: int | None, timeout: float | None, dropout: float, server_seconds: float,
    ) -> None:  # fmt: skip
        self.machines, self.work, self.concurrency, self.choice = machines, work, concurrency, choice
        self.max_staleness, self.timeout, self.dropout = max_staleness, timeout, dropout
        self.server_seconds = server_seconds
        self.idle = np.ones(num_clients, bool)
        self.turn = 0  # of the round robin
        self.busy = 0
        self.events: list[tuple[float, int, str]] = []  # (time, task, what)
        self.working_until = 0.0
        self.applied = 0
        self.rows: dict[str, list[Any]] = {n: [] for n in ("client", "dispatched", "arrived", "applied", "fate")}
        self.version: list[int] = []

    def run(self, uploads: int) -> Mapping[str, list[Any]]:
        """Until so many uploads are accepted: the table of tasks."""
        now, fruitless = 0.0, 0
        while self.applied < uploads:
            self._fill(now)
            if not self.events:
                wake = self._next_opening(now)
                if not np.isfinite(wake):
                    raise SojournError(
                        f"after {self.applied} uploads nobody is there any more; give longer windows or fewer rounds."
                    )
                now = wake
                continue
            wake = self._next_opening(now, asleep=True) if self.busy < self.concurrency else np.inf
            if wake < self.events[0][0]:
                now = wake
                continue
            before = self.applied
            now = self._next_instant(uploads)
            fruitless = 0 if self.applied > before else fruitless + 1
            if fruitless > _FRUITLESS * self.concurrency:
                fates = [fate for fate in self.rows["fate"][-1000:] if fate != UNFINISHED]
                raise SojournError(
                    f"after {self.applied} uploads none is accepted any more; of the last tasks most were "
                    f"{max(set(fates), key=fates.count)}."
                )
        return self.rows

    def _next_instant(self, uploads: int) -> float:
        """All that happens at the next point in time; then work is handed out again."""
        now = self.events[0][0]
        while self.events and self.events[0][0] == now and self.applied < uploads:
            _, task, what = heapq.heappop(self.events)
            if what == "applied":
                self._apply(task, now)
            else:
                self.idle[self.rows["client"][task]] = True
                self.busy -= 1
                if self.rows["fate"][task] == UNFINISHED:
                    self._arrive(task, now)
        return now

    def _arrive(self, task: int, now: float) -> None:
        if self.server_seconds == 0:
            self._apply(task, now)
            return
        self.working_until = max(self.working_until, now) + self.server_seconds
        self.rows["applied"][task] = self.working_until
        heapq.heappush(self.events, (self.working_until, task, "applied"))

    def _apply(self, task: int, now: float) -> None:
        staleness = self.applied // self.work.uploads_per_update - self.version[task]
        stale = self.max_staleness is not None and staleness > self.max_staleness
        self.rows["fate"][task] = STALE if stale else ACCEPTED
        self.rows["applied"][task] = now
        self.applied += not stale

    def _fill(self, now: float) -> None:
        while self.busy < self.concurrency:
            idle = np.flatnonzero(self.idle)
            there = idle[self.machines.presence.opens(idle, now) <= now]
            if not len(there):
                return
            self._hand_out(self._choose(there), now)

    def _choose(self, there: np.ndarray) -> int:
        if self.choice == "round-robin":
            client = int(there[np.searchsorted(there, self.turn) % len(there)])
            self.turn = (client + 1) % len(self.idle)
            return client
        if self.choice == "weighted":
            assert self.work.weights is not None
            shares = np.cumsum(self.work.weights[there])
            return int(there[np.searchsorted(shares, shares[-1] * self.machines.rng.random(), side="right")])
        return int(there[self.machines.rng.integers(len(there))])

    def _hand_out(self, client: int, now: float) -> None:
        done, arrives = self.machines.visit(client, self.work.steps)
        fate, end = UNFINISHED, now + arrives
        if self.machines.rng.random() < self.dropout:
            fate = LOST
        if now + done > self.machines.presence.closes(client, now):
            fate, end = LOST, self.machines.presence.closes(client, now)
        if self.timeout is not None and end > now + self.timeout:
            fate, end = TIMED_OUT, now + self.timeout
        if end <= now:
            raise SojournError(
                f"at {now:g} virtual seconds a task of {arrives:g} is lost in rounding; give clocks with lighter tails."
            )
        task = len(self.version)
        for name, value in zip(self.rows, (client, now, end, end, fate), strict=True):
            self.rows[name].append(value)
        self.version.append(self.applied // self.work.uploads_per_update)
        self.idle[client] = False
        self.busy += 1
        heapq.heappush(self.events, (end, task, "arrived"))

    def _next_opening(self, now: float, asleep: bool = False) -> float:
        """When the next idle client comes; with `asleep`, of those that are not there now."""
        opens = self.machines.presence.opens(np.flatnonzero(self.idle), now)
        return float(np.min(opens[opens > now] if asleep else opens, initial=np.inf))


@options_checked
def uniform_staleness(
    num_clients: int,
    uploads: int,
    devices: Devices | None = None,
    work: Work = Work(),  # noqa: B008
    *,
    max_staleness: Annotated[int, Field(ge=0, description="S, the largest age of a start")] = 4,
    min_staleness: Annotated[int, Field(ge=0, description="the smallest age of a start")] = 0,
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the schedule's random numbers")] = 0,
) -> Trace:
    """Xie et al.: every second some client's model arrives, trained from one that is uniformly many versions old.

    Clients are drawn uniformly whether or not they are at work already: this is a law of ages, not of machines. With
    several uploads to an update ages are still counted in uploads.
    """
    _check_count("num_clients", num_clients)
    _check_count("uploads", uploads)
    if min_staleness > max_staleness:
        raise SojournError(f"min_staleness = {min_staleness} is above max_staleness = {max_staleness}; swap them.")
    # tasks whose uploads come after the last one asked for are needed too: their starts must be kept
    number = max(uploads, _AT_LEAST) + max_staleness + 1
    clients_rng, ages_rng = np.random.default_rng([seed, 2]).spawn(2)
    clients, ages = clients_rng.integers(num_clients, size=number), ages_rng.integers(
        min_staleness, max_staleness + 1, size=number
    )  # fmt: skip
    ends = np.arange(1, number + 1)
    starts = ends - 1 - np.minimum(ages, ends - 1)
    order = np.argsort(starts, kind="stable")
    tasks = pd.DataFrame({"client": clients, "dispatched": starts.astype(float), "applied": ends.astype(float)})
    tasks = tasks.iloc[order].reset_index(drop=True).assign(fate=ACCEPTED)
    about = {"schedule": "uniform-staleness", "seed": seed, "from": min_staleness, "to": max_staleness}
    return Trace(tasks, num_clients, work.uploads_per_update, max_staleness + 2, about, warranted=True)


@options_checked
def from_file(
    num_clients: int,
    uploads: int,
    devices: Devices | None = None,
    work: Work = Work(),  # noqa: B008
    *,
    path: Annotated[str, Field(description="of a trace: client, dispatched, applied and, if not all arrive, fate")],
) -> Trace:
    """A trace that was saved, or that was recorded on real machines."""
    trace = read_trace(path, num_clients, work.uploads_per_update)
    if len(trace) < uploads:
        raise SojournError(f"{path} has {len(trace)} accepted uploads, fewer than the {uploads} asked for.")
    return dataclasses.replace(trace, about={"schedule": "file", "content": _digest(path)}, warranted=True)


def _checked_weights(weights: Any, num_clients: int) -> np.ndarray:
    found = np.zeros(0) if weights is None else np.asarray(weights, float)
    if found.shape != (num_clients,) or not (found > 0).all() or not np.isfinite(found).all():
        raise SojournError('choice = "weighted" needs a positive weight for every client, in Work(weights=…).')
    return found


def _digest(path: str) -> str:
    return _digest_of(Path(path).expanduser().read_bytes())


def _digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


SCHEDULES: dict[str, Callable[..., Trace]] = {"busy": busy, "uniform-staleness": uniform_staleness, "file": from_file}
