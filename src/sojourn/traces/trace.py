"""A trace: the whole schedule of an asynchronous run, known before it starts.

How long clients take does not depend on the model, so who starts when, from which version, and who arrives when can be
worked out first. A trace is a table of tasks; all else is read off it. Uploads are applied in the order of their times,
those of one instant in the order of their tasks; a task that is handed out at an instant starts from the model after
all uploads of that instant.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically
from sojourn.traces.clocks import check_clients, read_table

ACCEPTED, STALE, LOST, TIMED_OUT, UNFINISHED = FATES = ("accepted", "too stale", "lost", "timed out", "unfinished")
COLUMNS = ("client", "dispatched", "applied", "fate")


@dataclasses.dataclass(frozen=True, eq=False)
class Uploads:
    """What is applied, in order; arrays over the uploads."""

    client: np.ndarray
    task: np.ndarray
    time: np.ndarray
    staleness: np.ndarray  # versions made since the task was handed out
    read: np.ndarray  # the slot that holds the model the task started from
    ready: np.ndarray  # how many uploads were applied before that slot was written
    queue: np.ndarray  # uploads that wait behind it
    handed_out: np.ndarray  # tasks since the upload before
    dropped: np.ndarray  # uploads since then that were too stale
    lost: np.ndarray  # tasks since then that never came back


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Tasks in the order in which they were handed out, and how many clients and versions there are.

    `tasks` has the columns client, dispatched (handed out), applied (or given up) and fate; a schedule adds `arrived`,
    when an upload reached the server. `slots` is an upper bound on the models in flight.
    """

    tasks: pd.DataFrame
    num_clients: int
    uploads_per_update: int = 1
    slots: int | None = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # how it was made; traces made alike are alike
    warranted: bool = False  # made here, so that it need not be checked

    def __post_init__(self) -> None:
        if not self.warranted:
            check_tasks(self.tasks, self.num_clients)

    def __len__(self) -> int:
        """How many uploads are applied."""
        return int((self.tasks["fate"] == ACCEPTED).sum())

    @functools.cached_property
    def identity(self) -> str:
        """Of what it was made from, so that a longer trace of the same schedule is the same; else of its tasks."""
        if self.about:
            return json.dumps(dict(self.about), sort_keys=True)
        content = self.tasks[list(COLUMNS)].to_csv(index=False).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @functools.cached_property
    def versions(self) -> np.ndarray:
        """The version of the model that every task starts from."""
        return self._applied_before(self.tasks["dispatched"].to_numpy()) // self.uploads_per_update

    def _applied_before(self, times: np.ndarray) -> np.ndarray:
        applied = np.sort(self.tasks.loc[self.tasks["fate"] == ACCEPTED, "applied"].to_numpy())
        return np.searchsorted(applied, times, side="right")

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The tasks whose uploads are applied, in order."""
        accepted = np.flatnonzero(self.tasks["fate"] == ACCEPTED)
        return accepted[np.argsort(self.tasks["applied"].to_numpy()[accepted], kind="stable")]

    @functools.cached_property
    def _plan(self) -> tuple[Uploads, np.ndarray, int]:
        """The uploads, which slot to write after so many of them (`slots` for none), and how many slots there are."""
        tasks, order = self.tasks, self.order
        when = tasks["applied"].to_numpy()
        starts = self._applied_before(tasks["dispatched"].to_numpy())
        read, ready, writes = _slots(tasks, starts, self.versions, len(order))
        number = int(read.max(initial=0)) + 1
        if self.slots is not None:
            if number > self.slots:
                raise SojournError(f"the trace holds {number} models at once, more than its {self.slots} slots.")
            number = self.slots
        writes[writes < 0] = number
        times = when[order]
        arrived = np.sort((tasks["arrived"] if "arrived" in tasks else tasks["applied"]).to_numpy()[order])
        counted = lambda of: np.diff(np.searchsorted(np.sort(of), times, side="right"), prepend=0)  # noqa: E731
        fates = tasks["fate"].to_numpy()
        # a task that is handed out at the instant of an upload, and after it, belongs to the next
        out = np.searchsorted(np.sort(tasks["dispatched"].to_numpy()), times, side="left")
        staleness = np.arange(len(order)) // self.uploads_per_update - self.versions[order]
        uploads = Uploads(
            client=tasks["client"].to_numpy()[order], task=order, time=times, staleness=staleness, read=read[order],
            ready=ready[order], queue=np.searchsorted(arrived, times, side="right") - np.arange(1, len(order) + 1),
            handed_out=np.diff(out, prepend=0), dropped=counted(when[fates == STALE]),
            lost=counted(when[(fates == LOST) | (fates == TIMED_OUT)]),
        )  # fmt: skip
        return uploads, writes, number

    @property
    def uploads(self) -> Uploads:
        return self._plan[0]

    @property
    def writes(self) -> np.ndarray:
        """(uploads + 1,): the slot that takes the model once so many uploads are applied; `num_slots` for none."""
        return self._plan[1]

    @property
    def num_slots(self) -> int:
        return self._plan[2]

    def until(self, uploads: int) -> "Trace":
        """The trace as it stands after so many uploads, one at least: later ones are under way."""
        if not 1 <= uploads <= len(self):
            raise SojournError(f"the trace has {len(self)} uploads, not {uploads}; make a longer one.")
        end = float(self.tasks["applied"].to_numpy()[self.order[uploads - 1]])
        fates = self.tasks["fate"].to_numpy(copy=True)
        fates[self.order[uploads:]] = UNFINISHED
        fates[self.tasks["applied"].to_numpy() > end] = UNFINISHED
        tasks = self.tasks.assign(fate=fates)
        return dataclasses.replace(self, tasks=tasks[tasks["dispatched"] <= end], warranted=True)

    def busy(self) -> np.ndarray:
        """The share of the time, up to the last upload, in which each client was at work."""
        return busy_shares(self.tasks, self.num_clients)

    def save(self, path: Path | str) -> None:
        """As CSV or as Parquet, by the ending of the name."""
        path = Path(path)
        if path.suffix not in (".csv", ".parquet"):
            raise SojournError(f"{path} does not end in .csv or .parquet; a trace is saved as one of them.")
        if path.suffix == ".parquet":
            write_atomically(path, lambda beside: self.tasks.to_parquet(beside, index=False))
        else:
            write_atomically(path, lambda beside: self.tasks.to_csv(beside, index=False))


def read_trace(path: Path | str, num_clients: int, uploads_per_update: int = 1) -> Trace:
    """A trace from a file: CSV, or Parquet as a run keeps it. Needed are client, dispatched, applied; a fate if not
    all arrive."""
    path = Path(path).expanduser()
    if path.suffix == ".parquet":
        try:
            tasks = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise SojournError(f"{path} cannot be read as a trace ({type(error).__name__}).") from error
    else:
        tasks = read_table(str(path), ("client", "dispatched", "applied"), num_clients)
    if "fate" not in tasks:
        tasks["fate"] = ACCEPTED
    try:
        return Trace(tasks, num_clients, uploads_per_update)
    except SojournError as error:
        raise SojournError(f"{path}: {error}") from None


def check_tasks(tasks: pd.DataFrame, num_clients: int) -> None:
    """A sentence on the first thing that no schedule could have made."""
    missing = [name for name in COLUMNS if name not in tasks]
    if missing:
        raise SojournError(f"the trace has no column {missing[0]}; it needs {', '.join(COLUMNS)}.")
    times = [name for name in ("dispatched", "arrived", "applied") if name in tasks]
    for name in ("client", *times):
        if not pd.api.types.is_numeric_dtype(tasks[name]) or not np.isfinite(tasks[name].to_numpy(float)).all():
            raise SojournError(f"the trace's column {name} holds what is no finite number.")
    check_clients("the trace", tasks["client"].to_numpy(float), num_clients)
    start, end = tasks["dispatched"].to_numpy(float), tasks["applied"].to_numpy(float)
    arrived = tasks["arrived"].to_numpy(float) if "arrived" in tasks else end
    backwards = np.flatnonzero(~((end > start) & (arrived >= start) & (arrived <= end)))
    if backwards.size:
        where = backwards[0]
        raise SojournError(
            f"task {where} starts at {start[where]:g} and ends at {end[where]:g}; time must not go backwards."
        )
    if (start < 0).any() or (np.diff(start) < 0).any():
        where = int(np.argmax((start < 0) | (np.diff(start, prepend=start[0]) < 0)))
        raise SojournError(f"task {where} starts at {start[where]:g}; tasks are in the order of their starts, from 0.")
    odd = set(tasks["fate"]) - set(FATES)
    if odd:
        raise SojournError(f"a task's fate is {sorted(map(str, odd))[0]!r}; it is one of {', '.join(FATES)}.")
    if not (tasks["fate"] == ACCEPTED).any():
        raise SojournError("no task's upload is accepted, so nothing would be learned; make the trace longer.")


def busy_shares(tasks: pd.DataFrame, num_clients: int) -> np.ndarray:
    """The share of the time, up to the last upload, in which each client was at work; one task or several at once."""
    end = float(tasks.loc[tasks["fate"] == ACCEPTED, "applied"].max())
    ends = np.minimum((tasks["arrived"] if "arrived" in tasks else tasks["applied"]).to_numpy(), end)
    spent, until = np.zeros(num_clients), np.zeros(num_clients)
    for client, begins, ended in zip(tasks["client"], tasks["dispatched"], ends, strict=True):
        spent[client] += max(0.0, ended - max(begins, until[client]))
        until[client] = max(until[client], ended)
    return spent / end


@dataclasses.dataclass
class _Held:
    """A version of the model that tasks started from."""

    slot: int
    written: int  # uploads applied before it was put there
    holders: int = 0  # tasks under way


def _slots(
    tasks: pd.DataFrame, starts: np.ndarray, versions: np.ndarray, num_uploads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every task the slot of its model and when that was written; for every number of uploads the slot to write.

    A version takes the first free slot when a task first starts from it. It gives it back when no task holds it any
    more and one starts from another version. That only looks back, so a longer trace begins with the same slots.
    """
    ends, dispatched = tasks["applied"].to_numpy(), tasks["dispatched"].to_numpy()
    by_end, done = np.argsort(ends, kind="stable"), 0
    read, ready = np.zeros(len(tasks), int), np.zeros(len(tasks), int)
    writes = np.full(num_uploads + 1, -1)
    held: dict[int, _Held] = {}
    for task, version in enumerate(versions.tolist()):
        while ends[by_end[done]] <= dispatched[task]:
            held[int(versions[by_end[done]])].holders -= 1
            done += 1
        held = {v: one for v, one in held.items() if one.holders or v == version}
        if version not in held:
            taken = {one.slot for one in held.values()}
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
            held[version] = _Held(slot, int(starts[task]))
            writes[starts[task]] = slot
        held[version].holders += 1
        read[task], ready[task] = held[version].slot, held[version].written
    return read, ready, writes
