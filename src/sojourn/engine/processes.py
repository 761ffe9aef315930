"""One machine's cores: worker processes that each visit a share of every exchange's members on one core.

Arrays lie in shared memory that has no name, so nothing is left behind however a run ends; orders go through a socket
whose other end closes when this process dies, and a worker that sees it closed goes. Workers are started as programs of
their own (`worker.py`), so a script needs no guard around its main part, and stay for the next run of this process.
"""

import atexit
import contextlib
import dataclasses
import itertools
import math
import mmap
import multiprocessing.connection
import multiprocessing.reduction
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import FieldsChecked
from sojourn.engine import worker
from sojourn.engine.sharded import Baggage, Blocks, Sharded
from sojourn.engine.worker import Place, Task, Which, views

_LIVES = 3  # how often a worker is replaced in one exchange before the run is given up
_ALIGNED = 64  # bytes: JAX then uses an array where it lies
_SHARED = Path("/dev/shm")


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available() -> bool:
    """Whether this system can hand memory from process to process."""
    return hasattr(socket, "send_fds")


@dataclasses.dataclass(frozen=True)
class Processes(FieldsChecked, Sharded):
    """Worker processes, one for every core, that share the memory of this one."""

    workers: Annotated[int | None, Field(ge=1, le=1024, description="processes; one for every core if left out")] = None

    name: ClassVar[str] = "processes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not available():
            raise SojournError('engine "processes" needs Linux or macOS; use engine "compiled" here.')

    def blocks(self, num_clients: int) -> "Everyone":
        return Everyone(num_clients, min(num_clients, self.workers or cores()))

    def team(self, baggage: Baggage, blocks: Blocks, num_clients: int) -> "Crew":
        assert isinstance(blocks, Everyone)
        return Crew(baggage, blocks)


@dataclasses.dataclass(frozen=True)
class Everyone:
    """All workers see all data, so an exchange's members are divided evenly, whoever they are."""

    size: int
    workers: int
    firsts: tuple[int, ...] = (0,)

    def capacity(self, total: int) -> int:
        return self.typical(total)

    def typical(self, total: int) -> int:
        return math.ceil(total / self.workers)

    def bounds(self, total: int) -> list[tuple[int, int]]:
        """Where the shards begin and end; those without members are left out."""
        ends = [total * number // self.workers for number in range(self.workers + 1)]
        return [(low, high) for low, high in itertools.pairwise(ends) if low < high]


class Arena:
    """Memory that several processes share: a file without a name."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, shapes: Iterable[Any]) -> list[Place]:
        """Places for arrays of these shapes, to be asked for before the arena is opened."""
        places = []
        for shape in shapes:
            places.append((self.num_bytes, tuple(shape.shape), np.dtype(shape.dtype).name))
            size = math.prod(shape.shape) * np.dtype(shape.dtype).itemsize
            self.num_bytes += -(-max(1, size) // _ALIGNED) * _ALIGNED
        return places

    def overlaid(self, several: Mapping[Which, Sequence[Any]]) -> dict[Which, list[Place]]:
        """Places for lists of arrays of which one at a time is in use."""
        start, places = self.num_bytes, {}
        end = start
        for which, shapes in several.items():
            self.num_bytes = start
            places[which] = self.add(shapes)
            end = max(end, self.num_bytes)
        self.num_bytes = end
        return places

    def open(self) -> None:
        for place in [_SHARED, None] if _SHARED.is_dir() else [None]:  # containers may have little shared memory
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                file = stack.enter_context(tempfile.TemporaryFile(dir=place))
                self._reserve(file.fileno())
                self.memory, self.file = mmap.mmap(file.fileno(), self.num_bytes), file
                stack.pop_all()  # open as long as the arena
                return
        raise SojournError(
            f'there is no room for {self.num_bytes / 2**20:,.0f} MiB of shared memory; use engine "compiled".'
        )

    def _reserve(self, file: int) -> None:
        """All of it now: memory that is found missing later would end the process."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, self.num_bytes)
        else:
            os.ftruncate(file, self.num_bytes)

    def close(self) -> None:
        self.file.close()  # the memory goes with its last view


class Worker:
    """A worker process, and what it must be told again if it dies."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        flags = f"{os.environ.get('XLA_FLAGS', '')} {worker.ONE_THREAD}".strip()
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(worker.__file__)), str(there.fileno())],  # our files are no modules
                pass_fds=[there.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C is for the parent, also while a worker is still starting
            )  # fmt: skip
        self._connection: Any = multiprocessing.connection.Connection(here.detach())
        self.owes = False  # an answer: whoever is told something else first would take the old one for the new

    def tell(self, *order: Any, handle: int | None = None) -> None:
        self.owes = True
        self._connection.send(order)
        if handle is not None:
            multiprocessing.reduction.send_handle(self._connection, handle, self.process.pid)

    def hear(self) -> str:
        """What went wrong; an empty text if nothing did. EOFError or OSError: it is gone."""
        said = str(self._connection.recv())
        self.owes = False
        return said

    def answers_within(self, seconds: float) -> bool:
        return bool(self._connection.poll(seconds))

    def dismiss(self) -> None:
        self._connection.close()
        self.process.kill()
        self.process.wait()


_idle: list[Worker] = []  # between runs: they stay while this process does, or until they have waited too long


@atexit.register
def dismiss_idle() -> None:
    while _idle:
        _idle.pop().dismiss()


def _noticed_later() -> contextlib.suppress:
    """An order that a dead worker cannot be given: its death is noticed when the answer is waited for."""
    return contextlib.suppress(BrokenPipeError, ConnectionError)


class Crew:
    """The workers of a run. A worker that dies is replaced, and does its shard again: it owns nothing."""

    def __init__(self, baggage: Baggage, blocks: Everyone) -> None:
        self._blocks = blocks
        self._lay_out(baggage)
        self._table = views(self._arena.memory, self._tasks[0]["table"])
        self._letters = {which: views(self._arena.memory, p) for which, p in self._tasks[0]["letters"].items()}
        self._answers = [
            {which: views(self._arena.memory, p) for which, p in task["answers"].items()} for task in self._tasks
        ]
        for place, array in zip(
            views(self._arena.memory, self._tasks[0]["constants"]), baggage.constants[0], strict=True
        ):
            place[...] = array
        self._crew: list[Worker] = []
        try:
            self._hire(blocks.workers)
            for number in range(blocks.workers):
                with _noticed_later():
                    self._begin(number)
            for number in range(blocks.workers):
                self._heard(number, ())
        except BaseException:
            self.close()
            raise

    def _hire(self, number: int) -> None:
        try:
            while len(self._crew) < number:
                self._crew.append(_idle.pop() if _idle else Worker())
        except OSError as error:
            raise SojournError(
                f'worker process {len(self._crew)} does not start ({error}); take fewer workers, or engine "compiled".'
            ) from error

    def _lay_out(self, baggage: Baggage) -> None:
        self._arena = Arena()
        constants = self._arena.add(baggage.constants[0])
        table = self._arena.add(baggage.memory.shapes)
        letters = self._arena.overlaid({which: visit.letter for which, visit in baggage.visits.items()})
        answers = {which: visit.answer for which, visit in baggage.visits.items()}
        several = [self._arena.overlaid(answers) for _ in range(self._blocks.workers)]
        self._arena.open()
        self._tasks = [
            Task(
                settings=baggage.settings,
                programs=baggage.programs(),
                num_bytes=self._arena.num_bytes,
                constants=constants,
                table=table,
                letters=letters,
                answers=own,
            )
            for own in several
        ]

    def prepare(self, which: Which) -> None:
        self._all(("prepare", which))

    def remember(self, memory: list[np.ndarray]) -> None:
        for rows, new in zip(self._table, memory, strict=True):
            rows[...] = new

    def memory(self) -> list[np.ndarray]:
        return self._table

    def play(
        self, which: Which, key: np.ndarray, ids: np.ndarray, weights: np.ndarray, down: list[np.ndarray]
    ) -> list[tuple[int, list[np.ndarray]]]:
        for place, array in zip(self._letters[which], [key, ids, weights, *down], strict=True):
            place[...] = array
        bounds = self._blocks.bounds(len(ids))
        for number, (low, high) in enumerate(bounds):
            with _noticed_later():
                self._crew[number].tell("play", which, low, high)
        found = []
        for number, (low, high) in enumerate(bounds):
            self._heard(number, ("play", which, low, high))
        for number, (low, high) in enumerate(bounds):
            answers = self._answers[number][which]
            for rows, new in zip(self._table, answers, strict=False):  # memories come first
                rows[ids[low:high]] = new[: high - low]
            found.append((high - low, answers[len(self._table) :]))
        return found

    def close(self) -> None:
        for one in self._crew:
            done = not one.owes  # one that is in the middle of something is not worth waiting for
            if done:
                try:
                    one.tell("end")
                    done = one.answers_within(1.0) and not one.hear()
                except (EOFError, OSError):
                    done = False
            if done:
                _idle.append(one)
            else:
                one.dismiss()
        self._crew = []
        self._arena.close()

    def _all(self, order: tuple[Any, ...]) -> None:
        for one in self._crew:
            with _noticed_later():
                one.tell(*order)
        for number in range(len(self._crew)):
            self._heard(number, order)

    def _begin(self, number: int) -> None:
        self._crew[number].tell("begin", self._tasks[number], handle=self._arena.file.fileno())

    def _heard(self, number: int, order: tuple[Any, ...]) -> None:
        """Waits for a worker's answer to its last order; one that has died is replaced and given it again."""
        for life in range(_LIVES + 1):
            try:
                if life:
                    self._crew[number].dismiss()
                    self._crew[number] = Worker()
                    self._begin(number)
                    self._fine(self._crew[number].hear())
                    if order:
                        self._crew[number].tell(*order)
                        self._fine(self._crew[number].hear())
                else:
                    self._fine(self._crew[number].hear())
                return
            except (EOFError, OSError):
                continue
        code = self._crew[number].process.wait()
        raise SojournError(
            f"worker process {number} died {_LIVES + 1} times at the same work (last with code {code}; -9 is a kill, "
            'perhaps for lack of memory); take fewer workers, or engine "compiled".'
        )

    @staticmethod
    def _fine(said: str) -> None:
        if said:
            raise SojournError(f'a worker process failed, which engine "compiled" may not: {said.splitlines()[0]}')
