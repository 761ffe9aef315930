"""Virtual time, in plain Python: one upload after another, each trained when it arrives. The yardstick of `replay`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Context
from sojourn.core.federation import Clients
from sojourn.core.keys import server_key
from sojourn.core.vec import norm
from sojourn.engine.reference import Reference
from sojourn.engine.rounds import Course, Plan, Row, Rows, RunState, lost, visitor
from sojourn.traces.trace import Trace


@dataclasses.dataclass(frozen=True)
class OneByOne(Reference):
    """The reference engine for asynchronous methods."""

    trace: Trace

    def begin(self, algorithm: Algorithm, state: RunState) -> RunState:
        down = algorithm.exchanges()[0].broadcast(state.server)
        return dataclasses.replace(state, buffers=tuple([down] * self.trace.num_slots))

    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        uploads, rows = self.trace.uploads, []
        server, memory, slots = state.server, state.memory, list(state.buffers)
        first = int(state.round)
        shapes = jax.eval_shape(lambda s: self.measure(algorithm, clients, s, plan), state)
        unseen = {name: jnp.full(shape.shape, jnp.nan, shape.dtype) for name, shape in shapes.items()}
        for number in range(first, first + int(course.num_rounds)):
            client = int(uploads.client[number])
            mine = jax.tree.map(lambda a: a[client], memory)  # noqa: B023
            up, mine, info, calls = _visit(
                algorithm, clients, slots[uploads.read[number]], jnp.asarray(client), mine, state.root,
                jnp.asarray(int(uploads.task[number])),
            )  # fmt: skip
            memory = jax.tree.map(lambda a, new: a.at[client].set(new), memory, mine)  # noqa: B023
            key = server_key(jax.random.fold_in(state.root, number), algorithm.exchanges()[0].purpose)
            context = Context(
                jnp.asarray(number), clients.num_clients, 1, 1 / clients.num_clients,
                jnp.asarray(int(uploads.staleness[number])), key=key,
            )  # fmt: skip
            server, told = _apply(algorithm, server, up, context)
            if self.trace.writes[number + 1] < self.trace.num_slots:
                slots[self.trace.writes[number + 1]] = algorithm.exchanges()[0].broadcast(server)
            evaluated = bool(course.evaluates(number + 1))
            here = dataclasses.replace(state, server=server, buffers=())
            measured = self.measure(algorithm, clients, here, plan) if evaluated else unseen
            gone = ~(norm(algorithm.model(server)) <= course.limit) | lost(measured, evaluated)
            rows.append(Rows(Row(jnp.ones(1, jnp.int32), calls, {**info, **told}, gone), measured))
            if bool(gone):
                break
        state = RunState(server, memory, jnp.asarray(first + len(rows), jnp.int32), state.root, tuple(slots))
        return state, jax.tree.map(lambda *a: np.stack(a), *rows), jnp.asarray(len(rows))


@jax.jit
def _visit(
    algorithm: Algorithm, clients: Clients, down: Any, client: jax.Array, memory: Any, root: jax.Array, task: jax.Array
) -> Any:
    (exchange,) = algorithm.exchanges()
    return visitor(exchange, clients, down, jax.random.fold_in(root, task))(client, memory)[:4]


@jax.jit
def _apply(algorithm: Algorithm, server: Any, up: Any, context: Context) -> Any:
    (exchange,) = algorithm.exchanges()
    return exchange.aggregate(server, up, context), algorithm.told(context)
