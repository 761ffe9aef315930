"""Engines run rounds. They know nothing of the method, only its contract."""

from typing import Any, ClassVar, Protocol

import jax

from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Clients, Federation
from sojourn.engine.compiled import Compiled
from sojourn.engine.one_by_one import OneByOne
from sojourn.engine.reference import Reference
from sojourn.engine.replay import Replay
from sojourn.engine.rounds import Course, Plan, Rows, RunState
from sojourn.traces.trace import Trace


class Engine(Protocol):
    """What a driver needs of an engine."""

    sweeps: ClassVar[bool]

    def width(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        """How many clients work side by side; of a cohort, a divisor."""
        ...

    def settings_in_turn(self, federation: Federation) -> bool: ...
    def capacity(self, plan: Plan) -> int: ...
    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]: ...
    def warm_up(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> RunState: ...
    def measure(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> dict[str, jax.Array]: ...


ENGINES: dict[str, Any] = {"compiled": Compiled, "reference": Reference}


def in_virtual_time(engine: Engine, trace: Trace) -> Replay | OneByOne:
    """The engine that replays a trace as this one plays rounds."""
    if isinstance(engine, (Replay, OneByOne)):
        return engine
    return Replay(trace, engine) if isinstance(engine, Compiled) else OneByOne(trace)


__all__ = ["ENGINES", "Compiled", "Engine", "OneByOne", "Reference", "Replay", "in_virtual_time"]
