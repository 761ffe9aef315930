"""The other side of a sharded engine: a process, or an actor, that visits its members by programs it was sent.

It gets programs, not code: what a client does in an exchange was traced where the method and the loss are known, and
arrives as StableHLO with the arrays that it works on. So this file knows nothing of the package, is run as a script
that imports JAX alone, and a loss defined in a notebook needs no pickling.
"""

import contextlib
import mmap
import multiprocessing.connection
import multiprocessing.reduction
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

Which = tuple[bool, int]  # an exchange: whether the opening's, and its number

# A worker has one core: threads of its own would fight with the other workers for theirs.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
IDLE_SECONDS = 60.0  # after so long without a job a worker goes; the next run starts another


# What is sent are plain tuples and dicts, which need no import to be read.
# the visit of a shard's members, how many it can visit in one call, and which of its results have a row for each
Program = tuple[bytes, int, list[bool]]
Place = tuple[int, tuple[int, ...], str]  # where an array lies in shared memory: offset, shape, type


class Task(TypedDict):
    """All that a worker process needs for a run; the arrays lie in shared memory."""

    settings: dict[str, Any]  # of JAX: precision, cache
    programs: dict[Which, Program]
    num_bytes: int
    constants: list[Place]
    table: list[Place]  # what clients remember, (clients, ...)
    letters: dict[Which, list[Place]]  # key, ids, weights, then what the server sends
    answers: dict[Which, list[Place]]


class Shard:
    """The programs of a run, compiled here, with the arrays that stay the same from call to call."""

    def __init__(self, settings: dict[str, Any], programs: dict[Which, Program], constants: Sequence[np.ndarray]):
        import jax

        for name, value in settings.items():
            jax.config.update(name, value)
        self._programs = programs
        self._constants = [jax.device_put(array) for array in constants]
        self._compiled: dict[Which, Any] = {}

    def prepare(self, which: Which) -> None:
        import jax
        import jax.export

        if which not in self._compiled:
            program = pickle.loads(self._programs[which][0])
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
            # arguments that a method does not look at are dropped when a program is compiled: keep all
            self._compiled[which] = jax.jit(program.call, keep_unused=True).lower(*shapes).compile()

    def play(
        self, which: Which, key: np.ndarray, ids: np.ndarray, weights: np.ndarray, down: Sequence[np.ndarray],
        table: Sequence[np.ndarray], first: int = 0,
    ) -> list[np.ndarray]:  # fmt: skip
        """Visits these members; the table's row 0 is client `first`'s. New memories come first in what is returned."""
        self.prepare(which)
        number = len(ids)
        _, capacity, by_member = self._programs[which]
        pad = capacity - number
        ids = np.concatenate([ids, np.repeat(ids[-1:], pad)])  # weighed zero, and visited only to fill a group
        weights = np.concatenate([weights, np.zeros(pad, weights.dtype)])
        memories = [rows[ids - first] for rows in table]
        count = np.asarray(number, np.int32)
        found = self._compiled[which](*self._constants, *down, *memories, ids, weights, count, key)
        return [np.asarray(a)[:number] if rows else np.asarray(a) for a, rows in zip(found, by_member, strict=True)]


class Actor:
    """A block of clients on a cluster: their data, what they remember, and the programs that visit them."""

    def __init__(self) -> None:
        _one_thread()

    def begin(
        self, settings: dict[str, Any], programs: dict[Which, Program], constants: list[np.ndarray], first: int
    ) -> None:
        self._shard: Shard | None = Shard(settings, programs, constants)
        self._first = first
        self._table: list[np.ndarray] = []

    def end(self) -> None:
        self._shard, self._table = None, []
        _forget()

    def where(self) -> tuple[int, str]:
        """Its process, and the node that it is on."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    def prepare(self, which: Which) -> None:
        assert self._shard is not None
        self._shard.prepare(which)

    def remember(self, memory: list[np.ndarray]) -> None:
        self._table = [np.array(rows) for rows in memory]

    def memory(self) -> list[np.ndarray]:
        return self._table

    def play(
        self, which: Which, key: np.ndarray, ids: np.ndarray, weights: np.ndarray, down: list[np.ndarray]
    ) -> list[np.ndarray]:
        assert self._shard is not None
        found = self._shard.play(which, key, ids, weights, down, self._table, self._first)
        for rows, new in zip(self._table, found, strict=False):  # memories come first
            rows[ids - self._first] = new
        return found[len(self._table) :]


def views(memory: Any, places: Sequence[Place]) -> list[np.ndarray]:
    """The arrays that lie at these places."""
    import ml_dtypes  # noqa: F401 -- gives NumPy the names of JAX's own types

    return [np.ndarray(shape, np.dtype(dtype), memory, offset) for offset, shape, dtype in places]


class _Bench:
    """A worker process between two messages."""

    def __init__(self, task: Task, handle: int):
        with os.fdopen(handle, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), task["num_bytes"])
        self._task = task
        self._table = views(self._memory, task["table"])
        self.shard = Shard(task["settings"], task["programs"], views(self._memory, task["constants"]))

    def play(self, which: Which, low: int, high: int) -> None:
        key, ids, weights, *down = views(self._memory, self._task["letters"][which])
        found = self.shard.play(which, key, ids[low:high], weights[low:high], down, self._table)
        for place, array in zip(views(self._memory, self._task["answers"][which]), found, strict=True):
            place[tuple(map(slice, array.shape))] = array  # of a stack the first rows


def serve(connection: Any) -> None:
    """Does what it is told until the other end is gone, which is also how it notices that its parent was killed."""
    bench: _Bench | None = None
    while bench is not None or connection.poll(IDLE_SECONDS):
        word, *rest = connection.recv()
        try:
            if word == "begin":
                bench = _Bench(rest[0], multiprocessing.reduction.recv_handle(connection))
            elif word == "end":
                bench = None
                _forget()
            elif word == "prepare" and bench is not None:
                bench.shard.prepare(*rest)
            elif word == "play" and bench is not None:
                bench.play(*rest)
            connection.send("")
        except Exception as error:  # whatever a program does: the parent says it
            connection.send(f"{type(error).__name__}: {error}")


def _forget() -> None:
    import jax

    jax.clear_caches()


def _one_thread() -> None:
    """Starts JAX as if there were one core, so that it makes no threads to share work with; then all may be used."""
    if not hasattr(os, "sched_setaffinity"):
        return
    import jax

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    jax.devices()
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), allowed)


def main() -> None:
    _one_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends a run in good order
    connection = multiprocessing.connection.Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):
        serve(connection)


if __name__ == "__main__":
    main()
