"""Engines run rounds. They know nothing of the method, only its contract."""

import dataclasses
from typing import Any, ClassVar, Protocol

import jax

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.engine.choice import Auto
from sojourn.engine.compiled import Compiled
from sojourn.engine.one_by_one import OneByOne
from sojourn.engine.processes import Processes
from sojourn.engine.ray_cluster import Ray
from sojourn.engine.reference import Reference
from sojourn.engine.replay import Replay
from sojourn.engine.rounds import Course, Plan, Rows, RunState
from sojourn.engine.sharded import Sharded
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
    def close(self) -> None:
        """A run is over: what it kept outside this process goes."""
        ...


ENGINES: dict[str, Any] = {
    "auto": Auto,
    "compiled": Compiled,
    "processes": Processes,
    "ray": Ray,
    "reference": Reference,
}


def in_virtual_time(engine: Engine, trace: Trace) -> Replay | OneByOne:
    """The engine that replays a trace as this one plays rounds."""
    if isinstance(engine, (Replay, OneByOne)):
        return engine
    if isinstance(engine, Sharded):
        raise SojournError(f'engine "{engine.name}" plays rounds; for virtual time use engine "compiled".')
    if isinstance(engine, Auto):
        engine = Compiled(engine.placement)
    return Replay(trace, engine) if isinstance(engine, Compiled) else OneByOne(trace)


def engine_entry(engine: Engine, why: str) -> dict[str, Any]:
    """An engine for the manifest: its name, its options, and why it was taken."""
    inner: Any = engine.engine if isinstance(engine, Replay) else engine
    name = next((name for name, kind in ENGINES.items() if type(inner) is kind), type(inner).__name__)
    options = {field.name: getattr(inner, field.name) for field in dataclasses.fields(inner)} if name in ENGINES else {}
    return {"name": name, **options, "why": why}


__all__ = [
    "ENGINES",
    "Auto",
    "Compiled",
    "Engine",
    "OneByOne",
    "Processes",
    "Ray",
    "Reference",
    "Replay",
    "engine_entry",
    "in_virtual_time",
]
