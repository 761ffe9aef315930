"""The reference engine: plain Python loops over rounds and clients, one client at a time.

Slow and easy to believe; every other engine is tested against it. It shares with them what a message, a key and a
weight are, not how rounds are put together.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.oracle import KINDS
from sojourn.core.vec import norm
from sojourn.diagnostics.round_probes import Seen, measure_round
from sojourn.engine.participation import members
from sojourn.engine.round_by_round import round_by_round
from sojourn.engine.rounds import (
    Course,
    InThisProcess,
    Plan,
    Row,
    Rows,
    RunState,
    context_of,
    evaluate,
    shares,
    visitor,
)


@dataclasses.dataclass(frozen=True)
class Reference(InThisProcess):
    """Plain Python loops, one client at a time: slow, simple, the yardstick of the others."""

    sweeps: ClassVar[bool] = False

    def width(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        return 1

    def settings_in_turn(self, federation: Federation) -> bool:
        return True

    def capacity(self, plan: Plan) -> int:
        return 64

    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        if plan.grid is not None:
            raise SojournError('engine "reference" runs one setting at a time; use engine "compiled" for a sweep.')
        play = functools.partial(play_one, algorithm, clients, plan, limit=course.limit)
        measure = functools.partial(self.measure, algorithm, clients, plan=plan)
        return round_by_round(state, course, play, measure, jax.eval_shape(measure, state))

    def warm_up(self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan) -> RunState:
        return state

    def measure(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> dict[str, jax.Array]:
        return _evaluate(algorithm, clients, state, plan=plan)


def play_one(
    algorithm: Algorithm, clients: Clients, plan: Plan, state: RunState, limit: Any,
    asked: Callable[[int], jax.Array] | None = None,
) -> tuple[RunState, Row]:  # fmt: skip
    """One round. `asked` gives those who take part in its exchanges, by number, where they are not to be drawn."""
    server, memory = state.server, state.memory
    round_key = jax.random.fold_in(state.root, state.round)
    clients = clients.in_round(round_key)
    calls = np.zeros(len(KINDS), np.int64)
    answers: list[int] = []
    info: dict[str, Any] = {}
    seen: list[Seen] = []
    for number, exchange in enumerate(plan.exchanges(algorithm)):
        drawn = members(exchange.who, round_key, clients.num_clients, plan.cohort, exchange.purpose)
        ids = drawn if asked is None else asked(number)
        weights = shares(algorithm, clients, ids)
        down = exchange.broadcast(server)
        ups, news, trails = [], [], []
        for client in ids:
            mine = jax.tree.map(lambda a: a[client], memory)  # noqa: B023
            up, mine, told, used, trail = _visit(
                algorithm, clients, down, client, mine, round_key, number=number, plan=plan
            )
            memory = jax.tree.map(lambda a, new: a.at[client].set(new), memory, mine)  # noqa: B023
            ups.append(up)
            news.append(told)
            trails.append(trail)
            calls += np.asarray(used)
        up = jax.tree.map(lambda *a: jnp.stack(a), *ups)
        if exchange.reduce == "mean":
            up = jax.tree.map(functools.partial(_weighted_sum, weights), up)
        context = context_of(algorithm, exchange, clients, ids, weights, state.round, round_key, number)
        server = exchange.aggregate(server, up, context)
        answers.append(len(ids))
        info |= jax.tree.map(lambda *a: sum(a) / len(a), *news)
        trail = jax.tree.map(lambda *a: jnp.stack(a), *trails)
        seen += [] if trail is None else [Seen(trail, ids, clients.num_clients)]
    info |= measure_round(plan.record, seen)
    diverged = ~(norm(algorithm.model(server)) <= limit)
    row = Row(jnp.asarray(answers, jnp.int32), jnp.asarray(calls, jnp.int32), info, diverged)
    return RunState(server, memory, state.round + 1, state.root), row


def _weighted_sum(weights: jax.Array, stacked: jax.Array) -> jax.Array:
    return jnp.asarray(sum(w.astype(stacked.dtype) * row for w, row in zip(weights, stacked, strict=True)))


@functools.partial(jax.jit, static_argnames=("number", "plan"))
def _visit(
    algorithm: Algorithm,
    clients: Clients,
    down: Any,
    client: jax.Array,
    memory: Any,
    round_key: jax.Array,
    *,
    number: int,
    plan: Plan,
) -> Any:
    return visitor(plan.exchanges(algorithm)[number], clients, down, round_key, plan.record)(client, memory)


@functools.partial(jax.jit, static_argnames="plan")
def _evaluate(algorithm: Algorithm, clients: Clients, state: RunState, *, plan: Plan) -> dict[str, jax.Array]:
    return evaluate(algorithm, clients, plan, state)
