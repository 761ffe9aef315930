"""A cluster, by Ray: actors that each own a block of clients, with their data and what they remember.

A broadcast travels once to every machine, a partial sum comes back from every actor that has members, and a client's
model never leaves its actor. Memories come back at the end of a chunk, for the checkpoint. Ray restarts nothing here:
an actor that is lost is made anew with the memory that its block had, and does again what was asked of it since.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import logging
import math
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import FieldsChecked
from sojourn.engine import worker
from sojourn.engine.processes import cores
from sojourn.engine.sharded import Baggage, Blocks, Sharded
from sojourn.engine.worker import ONE_THREAD, Which

_LIVES = 3  # how often an actor is replaced for one answer before the run is given up
_LOG_BYTES = 1 << 28  # of broadcasts that are kept for an actor to repeat; then all memories are fetched instead
_SECONDS_TO_START = 120.0  # for all actors: long enough to import JAX on a busy machine
_SECONDS_TO_ANSWER = 10.0  # for a cluster's address
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

Letter = tuple[Which, np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]  # exchange, key, ids, weights, Down


@dataclasses.dataclass(frozen=True)
class Ray(FieldsChecked, Sharded):
    """Actors of a Ray cluster, each with a block of clients; a local one is started if no address is given."""

    address: Annotated[
        str | None, Field(description='of a cluster, as host:port, or "auto" for one that runs here; else a local one')
    ] = None
    actors: Annotated[int | None, Field(ge=1, le=100_000, description="one for every processor if left out")] = None

    name: ClassVar[str] = "ray"

    def __post_init__(self) -> None:
        super().__post_init__()
        if importlib.util.find_spec("ray") is None:
            raise SojournError('engine "ray" needs Ray; install it with pip install "sojourn[ray]".')

    def blocks(self, num_clients: int) -> "Owned":
        actors = self.actors
        if actors is None:
            actors = cores() if self.address is None else _processors(self._connected())
        size = math.ceil(num_clients / min(actors, num_clients))
        return Owned(num_clients, size)

    def team(self, baggage: Baggage, blocks: Blocks, num_clients: int) -> "Cast":
        assert isinstance(blocks, Owned)
        return Cast(self._connected(len(blocks.firsts)), baggage, blocks)

    def _connected(self, actors: int = 1) -> Any:
        """Ray, connected; one that this program was connected to already is used as it is."""
        ray = _ray()
        if ray.is_initialized():
            self._check_connected(ray)
        else:
            local = {"address": "local", "num_cpus": max(actors, cores()), "include_dashboard": False}
            where = local if self.address is None else {"address": self.address}
            try:
                _check_someone_listens(self.address)
                with _ray_warnings():
                    ray.init(**where, logging_level=logging.ERROR, log_to_driver=False)
            except (OSError, ValueError, RuntimeError) as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                if self.address is None:
                    raise SojournError(f"a local Ray cluster does not start: {why}") from error
                raise SojournError(
                    f'there is no Ray cluster at address = "{self.address}" ({why}); start one with ray start --head.'
                ) from error
        if _processors(ray) < actors:
            raise SojournError(
                f"{actors} actors need as many processors, and the cluster has {_processors(ray)}; ask for fewer "
                "actors, or add nodes with ray start."
            )
        return ray

    def _check_connected(self, ray: Any) -> None:
        """A program has one cluster at a time."""
        connected = ray.get_runtime_context().gcs_address
        if self.address not in (None, "auto") and self.address.rpartition("://")[2] != connected:
            raise SojournError(
                f'this program is connected to the Ray cluster at {connected}, and address = "{self.address}" is '
                "another; leave address out, or call ray.shutdown() first."
            )


def _check_someone_listens(address: str | None) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()


def _ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)  # nothing is reported to anyone
    with _ray_warnings():
        import ray
    return ray


@contextlib.contextmanager
def _ray_warnings() -> Iterator[None]:
    """Without Ray's remarks on its own future."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"ray\.|google\.")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\.")
        # Ray forks only to start other programs at once, which no thread of JAX can disturb
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


def _processors(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", 0))


@dataclasses.dataclass(frozen=True)
class Owned:
    """Blocks of equal size; the last owns what is left, and its data begin earlier, so that all have one shape."""

    num_clients: int
    size: int

    @property
    def starts(self) -> list[int]:
        return list(range(0, self.num_clients, self.size))

    @property
    def firsts(self) -> list[int]:
        return [min(start, self.num_clients - self.size) for start in self.starts]

    def capacity(self, total: int) -> int:
        return min(total, self.size)

    def typical(self, total: int) -> int:
        return math.ceil(total / len(self.starts))

    def bounds(self, ids: np.ndarray) -> list[tuple[int, int]]:
        """Where each block's members begin and end among sorted ids."""
        ends = np.searchsorted(ids, [*self.starts, self.num_clients])
        return [(int(low), int(high)) for low, high in itertools.pairwise(ends)]


_idle: dict[str, list[Any]] = {}  # between runs, by Ray's name of this program: to start an actor takes seconds


def _hired(ray: Any) -> Any:
    """A new actor. Its class is sent as it is, so a machine of the cluster needs Ray and JAX, and not this package."""
    ray.cloudpickle.register_pickle_by_value(worker)
    environment = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip(), "JAX_PLATFORMS": "cpu"}
    kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", runtime_env={"env_vars": environment})(worker.Actor)
    return kind.remote()


class Cast:
    """The actors of a run."""

    def __init__(self, ray: Any, baggage: Baggage, blocks: Owned) -> None:
        self._ray, self._baggage, self._blocks = ray, baggage, blocks
        self._programs = ray.put(baggage.programs())
        self._held: list[list[np.ndarray]] = [[] for _ in blocks.starts]  # every block's memory when the log begins
        self._log: list[Letter] = []
        self._logged = 0
        waiting = _idle.pop(ray.get_runtime_context().get_job_id(), [])
        self.actors = [waiting.pop() if waiting else _hired(ray) for _ in blocks.starts]
        for actor in waiting:
            ray.kill(actor)
        self._everywhere("begin", [self._task(number) for number in range(len(self.actors))])

    def _task(self, number: int) -> tuple[Any, ...]:
        baggage = self._baggage
        return baggage.settings, self._programs, baggage.constants[number], self._blocks.starts[number]

    def prepare(self, which: Which) -> None:
        self._everywhere("prepare", [(which,)] * len(self.actors))

    def remember(self, memory: list[np.ndarray]) -> None:
        starts, size = self._blocks.starts, self._blocks.size
        self._held = [[rows[start : start + size] for rows in memory] for start in starts]
        self._log, self._logged = [], 0
        if memory:
            self._everywhere("remember", [(block,) for block in self._held])

    def memory(self) -> list[np.ndarray]:
        if not self._held[0]:
            return []
        self._held = self._everywhere("memory", [()] * len(self.actors))
        self._log, self._logged = [], 0
        return [np.concatenate(rows) for rows in zip(*self._held, strict=True)]

    def play(
        self, which: Which, key: np.ndarray, ids: np.ndarray, weights: np.ndarray, down: list[np.ndarray]
    ) -> list[tuple[int, list[np.ndarray]]]:
        bounds = self._blocks.bounds(ids)
        sent = self._ray.put(down)  # once for every machine
        orders = [None if low == high else (which, key, ids[low:high], weights[low:high], sent) for low, high in bounds]
        found = self._everywhere("play", orders)
        if self._held[0]:
            self._log.append((which, key, ids, weights, down))
            self._logged += sum(leaf.nbytes for leaf in down)
            if self._logged > _LOG_BYTES:
                self.memory()
        return [(high - low, one) for (low, high), one in zip(bounds, found, strict=True) if one is not None]

    def close(self) -> None:
        ray = self._ray
        if ray.is_initialized() and self.actors:
            for actor in self.actors:
                actor.end.remote()
            _idle[ray.get_runtime_context().get_job_id()] = self.actors
        self.actors = []

    def _everywhere(self, what: str, orders: list[Any]) -> list[Any]:
        """What all actors answer to their orders, None for those without one."""
        waiting = [None if order is None else self._asked(number, what, order) for number, order in enumerate(orders)]
        return [
            None if order is None else self._answer(number, what, order, waiting[number])
            for number, order in enumerate(orders)
        ]

    def _asked(self, number: int, what: str, order: tuple[Any, ...]) -> Any:
        return getattr(self.actors[number], what).remote(*order)

    def _answer(self, number: int, what: str, order: tuple[Any, ...], waiting: Any) -> Any:
        exceptions, patience = self._ray.exceptions, _SECONDS_TO_START if what == "begin" else None
        lost = exceptions.RayActorError, exceptions.ObjectLostError, exceptions.NodeDiedError
        for life in range(_LIVES + 1):
            try:
                if life:
                    self._revive(number, what)
                    waiting = self._asked(number, what, order)
                return self._ray.get(waiting, timeout=patience)
            except lost:
                continue
            except exceptions.GetTimeoutError:
                self._ray.kill(self.actors[number])  # the next run is not to wait for it
                raise SojournError(
                    f"actor {number} has not started in {_SECONDS_TO_START:g} s; the processors of the Ray cluster "
                    "may be in use, or a node was lost: ask for fewer actors, or wait."
                ) from None
            except exceptions.RayError as error:
                why = (str(error).strip().splitlines() or [""])[-1]  # of a traceback what it ends with
                raise SojournError(
                    f"actor {number} of the Ray cluster failed ({type(error).__name__}): {why}"
                ) from error
        raise SojournError(
            f"actor {number} of the Ray cluster was lost {_LIVES + 1} times at the same work; see the cluster's logs."
        )

    def _revive(self, number: int, what: str) -> None:
        """A new actor for a block, brought to where the lost one was: its memory, then every broadcast since."""
        self._ray.kill(self.actors[number])  # it may be out of reach only, and would hold a processor
        self.actors[number] = _hired(self._ray)
        if what == "begin":
            return
        self._ray.get(self._asked(number, "begin", self._task(number)), timeout=_SECONDS_TO_START)
        if not self._held[number]:
            return
        self._asked(number, "remember", (self._held[number],))
        for which, key, ids, weights, down in self._log:
            low, high = self._blocks.bounds(ids)[number]
            if low < high:
                self._asked(number, "play", (which, key, ids[low:high], weights[low:high], down))
