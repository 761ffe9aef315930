"""Virtual time, compiled: replays a trace as waves of clients that do not wait for each other.

A trace says beforehand which model every upload started from, so models are kept in slots only as long as someone is
under way with them. Uploads a … b - 1 form a wave if all their starting models exist once `a` uploads are applied (and,
where clients have a memory, no client is among them twice): their local work is done side by side, and what comes of it
is applied in the order of arrival. The number of lanes is fixed for a run, so a result does not depend on how uploads
fall into waves.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Context
from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import server_key
from sojourn.core.vec import norm
from sojourn.engine.compiled import Compiled
from sojourn.engine.rounds import Course, InThisProcess, Plan, Row, Rows, RunState, evaluate, lost, visitor
from sojourn.traces.trace import Trace, Uploads

_CAPACITY = 1024  # uploads that a chunk can report on
_FULL_ENOUGH = 0.85  # of the lanes, on average: empty ones are computed too
_LOOKED_AT = 256  # uploads by which the number of lanes is chosen: no more, so that a longer run has the same


class Waves(eqx.Module):
    """Uploads by (wave, lane)."""

    client: jax.Array
    task: jax.Array
    staleness: jax.Array
    read: jax.Array  # slot of the model that the task started from
    write: jax.Array  # slot for the model once the upload is applied
    number: jax.Array  # of the upload, from 0; -1 in an empty lane


@dataclasses.dataclass(frozen=True)
class Replay(InThisProcess):
    """The compiled engine for asynchronous methods."""

    trace: Trace
    engine: Compiled = dataclasses.field(default_factory=Compiled)
    lanes: int | None = None  # None: chosen

    sweeps: ClassVar[bool] = False

    def width(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        """How many clients work side by side: as many as the waves of this trace fill."""
        if self.lanes is not None:
            return self.lanes
        most = self.engine.side_by_side(federation, self.trace.num_slots, num_settings)
        widths = [2**power for power in range(most.bit_length())]
        return max(width for width in widths if width == 1 or self._filled(width) >= _FULL_ENOUGH)

    def _filled(self, width: int) -> float:
        number = min(_LOOKED_AT, len(self.trace))
        return number / (width * len(wavefronts(self.trace.uploads, 0, number, width)))

    def settings_in_turn(self, federation: Federation) -> bool:
        return True

    def capacity(self, plan: Plan) -> int:
        return _CAPACITY

    def begin(self, algorithm: Algorithm, state: RunState) -> RunState:
        """The first model in every slot, and in a spare one that takes what nobody will read."""
        down = algorithm.exchanges()[0].broadcast(state.server)
        number = self.trace.num_slots + 1
        buffers = jax.tree.map(lambda a: jnp.array(jnp.broadcast_to(a, (number, *jnp.shape(a))), copy=True), down)
        return dataclasses.replace(state, buffers=buffers)

    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        first = int(state.round)
        memory = bool(jax.tree.leaves(state.memory))
        bounds = wavefronts(self.trace.uploads, first, first + int(course.num_rounds), plan.width, apart=memory)
        waves = _columns(self.trace, bounds, plan.width, _CAPACITY)
        return _replay(algorithm, clients, state, course, waves, jnp.asarray(len(bounds)), plan=plan)

    def warm_up(self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan) -> RunState:
        nothing = dataclasses.replace(course, num_rounds=jnp.zeros((), jnp.int32))
        return self.advance(algorithm, clients, state, nothing, plan)[0]

    def measure(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> dict[str, jax.Array]:
        return self.engine.measure(algorithm, clients, state, plan)


def wavefronts(uploads: Uploads, first: int, last: int, width: int, apart: bool = False) -> list[tuple[int, int]]:
    """The uploads first … last - 1 as waves [a, b), as long as they can be; with `apart`, no client is in one twice."""
    waves: list[tuple[int, int]] = []
    start, seen = first, set[int]()
    for number in range(first, last):
        client = int(uploads.client[number])
        if number - start == width or uploads.ready[number] > start or (apart and client in seen):
            waves.append((start, number))
            start, seen = number, set()
        seen.add(client)
    return [*waves, (start, last)] if last > start else waves


def _columns(trace: Trace, bounds: list[tuple[int, int]], width: int, capacity: int) -> Waves:
    """The waves as arrays of a fixed size; an empty lane visits client 0 and leaves no trace."""
    number = np.full((capacity, width), -1, np.int32)
    for row, (start, end) in enumerate(bounds):
        number[row, : end - start] = np.arange(start, end)
    empty, uploads = number < 0, trace.uploads
    column = lambda values, otherwise: jnp.asarray(np.where(empty, otherwise, values[number]), jnp.int32)  # noqa: E731
    return Waves(
        client=column(uploads.client, 0), task=column(uploads.task, 0), staleness=column(uploads.staleness, 0),
        read=column(uploads.read, 0), write=column(trace.writes[1:], trace.num_slots), number=jnp.asarray(number),
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="state")
def _replay(
    algorithm: Algorithm, clients: Clients, state: RunState, course: Course, waves: Waves, num_waves: jax.Array, *,
    plan: Plan,
) -> tuple[RunState, Rows, jax.Array]:  # fmt: skip
    """Plays the waves, fewer if the model has diverged; returns the state, the rows and how many uploads they are."""
    (exchange,) = algorithm.exchanges()
    first = state.round

    def work(client: jax.Array, task: jax.Array, down: Any, memory: Any) -> Any:
        return visitor(exchange, clients, down, jax.random.fold_in(state.root, task))(client, memory)

    def apply(evaluating: bool, carry: Any, lane: Any) -> Any:
        server, buffers, gone = carry
        up, info, calls, wave = lane
        real = wave.number >= 0
        key = server_key(jax.random.fold_in(state.root, wave.number), exchange.purpose)
        context = Context(wave.number, clients.num_clients, 1, 1 / clients.num_clients, wave.staleness, key=key)
        server = _either(real & ~gone, exchange.aggregate(server, up, context), server)  # one that diverged stays
        put = lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, wave.write, 0)  # noqa: E731
        buffers = jax.tree.map(put, buffers, exchange.broadcast(server))
        measured, evaluated = unseen, real & course.evaluates(wave.number + 1)
        if evaluating:
            measured = jax.lax.cond(evaluated, metrics, lambda s: unseen, server)
        gone = gone | (real & (~(norm(algorithm.model(server)) <= course.limit) | lost(measured, evaluated)))
        row = Row(jnp.ones(1, jnp.int32), calls, {**info, **algorithm.told(context)}, gone)
        return (server, buffers, gone), Rows(row, measured)

    def metrics(server: Any) -> dict[str, jax.Array]:
        return evaluate(algorithm, clients, plan, dataclasses.replace(state, server=server, buffers=()))

    def play(number: jax.Array, server: Any, memory: Any, buffers: Any) -> Any:
        wave = jax.tree.map(lambda a: a[number], waves)
        downs = jax.tree.map(lambda a: a[wave.read], buffers)
        mine = jax.tree.map(lambda a: a[wave.client], memory)
        if plan.width == 1:
            one = jax.tree.map(lambda a: a[0], (wave.client, wave.task, downs, mine))
            found = jax.tree.map(lambda a: a[None], work(*one))
        else:
            found = jax.vmap(work)(wave.client, wave.task, downs, mine)
        ups, mine, info, calls, _ = found
        home = jnp.where(wave.number >= 0, wave.client, clients.num_clients)
        memory = jax.tree.map(lambda a, new: a.at[home].set(new, mode="drop"), memory, mine)
        # most waves evaluate nothing: these run without asking lane by lane
        wanted = jnp.any((wave.number >= 0) & course.evaluates(wave.number + 1))
        through = lambda evaluating: lambda *given: jax.lax.scan(functools.partial(apply, evaluating), *given)  # noqa: E731
        carry = server, buffers, jnp.zeros((), bool)
        (server, buffers, gone), rows = jax.lax.cond(
            wanted, through(True), through(False), carry, (ups, info, calls, wave)
        )
        return server, memory, buffers, rows, wave.number, gone

    def body(carry: Any) -> Any:
        number, server, memory, buffers, rows, done, _ = carry
        server, memory, buffers, new, lanes, gone = play(number, server, memory, buffers)
        # the rows of empty lanes are those of the next wave, which writes over them
        rows = jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, done, 0), rows, new)
        return number + 1, server, memory, buffers, rows, done + jnp.sum(lanes >= 0, dtype=jnp.int32), gone

    shapes = jax.eval_shape(metrics, state.server)
    unseen = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), shapes)
    zero = jnp.zeros((), jnp.int32)
    row_shapes = jax.eval_shape(play, zero, state.server, state.memory, state.buffers)[3]
    rows = jax.tree.map(lambda a: jnp.zeros((_CAPACITY + plan.width, *a.shape[1:]), a.dtype), row_shapes)
    going = lambda carry: (carry[0] < num_waves) & ~carry[-1]  # noqa: E731
    start = (zero, state.server, state.memory, state.buffers, rows, zero, jnp.zeros((), bool))
    _, server, memory, buffers, rows, done, _ = jax.lax.while_loop(going, body, start)
    state = RunState(server, memory, first + done, state.root, buffers)
    return state, jax.tree.map(lambda a: a[:_CAPACITY], rows), done


def _either(chosen: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda p, q: jnp.where(chosen, p, q), a, b)
