"""The compiled engine: whole rounds, many of them, in one program; one program for all step sizes and seeds.

A chunk is a loop whose length is an argument, so chunks of any length share one compilation and give the same bits.
Rounds, clients and local steps never return to Python. Evaluation happens inside the loop, in rounds that ask for it.
A sweep runs the same loop with every round vmapped over the settings, as long as their models are small.
"""

import dataclasses
import functools
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from pydantic import Field

from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Clients, Federation
from sojourn.engine.rounds import (
    Course,
    InThisProcess,
    Plan,
    Rows,
    RunState,
    answer,
    divisor_at_most,
    evaluate,
    lost,
    over_grid,
    play_round,
)

# What those that work side by side hold, clients times settings: on a processor it should stay in cache; an accelerator
# wants wide operations, and only its memory is a limit.
_SIDE_BY_SIDE_BYTES = 1 << 22
_SIDE_BY_SIDE_BYTES_ON_ACCELERATOR = 1 << 26
_FEW = 8  # settings: where not even so many fit side by side, one after another is faster


@dataclasses.dataclass(frozen=True)
class Compiled(InThisProcess):
    """Whole rounds as one compiled program, in this process."""

    placement: Annotated[
        Literal["auto", "vmap", "scan"],
        Field(description="vmap: a cohort side by side; scan: one client after another; auto: by the model's size"),
    ] = "auto"

    sweeps: ClassVar[bool] = True

    def width(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        """How many clients work side by side, each with its models of all settings."""
        if self.placement == "scan":
            return 1
        if self.placement == "vmap":
            return cohort
        return divisor_at_most(cohort, self.side_by_side(federation, cohort, num_settings))

    def side_by_side(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        """How many clients are fastest together."""
        if self.placement != "auto":
            return 1 if self.placement == "scan" else cohort
        clients = federation.clients
        if clients.sizes is not None and clients.batch_size is None and _uneven(clients.sizes):
            return 1  # exact answers of unequal clients: side by side, all would wait for the largest
        return max(1, min(cohort, _budget() // (num_settings * _held_by(federation))))

    def settings_in_turn(self, federation: Federation) -> bool:
        """Whether a sweep's settings are faster one after another: a single model keeps the processor busy.

        Operations that many settings share save calls, which matter for small models. Large ones gain nothing and lose
        the cache, and a setting that has diverged still costs its full share.
        """
        return self.placement != "vmap" and _FEW * _held_by(federation) > _budget()

    def capacity(self, plan: Plan) -> int:
        """How many rounds one chunk can report on."""
        settings = 1 if plan.grid is None else plan.grid[0] * plan.grid[1]
        size = settings * (1 + plan.row_size // 16)  # a row has some sixteen numbers without vectors
        return max(8, min(1024, 2 ** max(0, 16 - (size - 1).bit_length())))

    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        capacity = self.capacity(plan)
        return _advance(algorithm, clients, state, course, plan=plan, capacity=capacity)

    def warm_up(self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan) -> RunState:
        """Compiles by playing no rounds at all, so that the first chunk's seconds are those of its work."""
        nothing = dataclasses.replace(course, num_rounds=jnp.zeros((), jnp.int32))
        return self.advance(algorithm, clients, state, nothing, plan)[0]

    def measure(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> dict[str, jax.Array]:
        return _measure(algorithm, clients, state, plan=plan)


def _metrics(algorithm: Algorithm, clients: Clients, plan: Plan, state: RunState) -> dict[str, jax.Array]:
    return over_grid(lambda a, c, s: evaluate(a, c, plan, s), plan)(algorithm, clients, state)


def _budget() -> int:
    return _SIDE_BY_SIDE_BYTES if jax.default_backend() == "cpu" else _SIDE_BY_SIDE_BYTES_ON_ACCELERATOR


def _held_by(federation: Federation) -> int:
    """Bytes in a client's hands at a local step: weights, gradient, new weights; the largest array made of its batch
    and that array's gradient (of convolutions they are far larger than the weights)."""
    leaves = jax.tree.leaves(federation.x0)
    clients = federation.clients
    made = clients.objective.largest_array(clients.batch_size) * max(leaf.dtype.itemsize for leaf in leaves)
    return 3 * sum(leaf.nbytes for leaf in leaves) + 2 * made


def _uneven(sizes: jax.Array) -> bool:
    return bool(jnp.max(sizes) > 2 * jnp.mean(sizes))


@functools.partial(jax.jit, static_argnames=("plan", "capacity"), donate_argnames="state")
def _advance(
    algorithm: Algorithm, clients: Clients, state: RunState, course: Course, *, plan: Plan, capacity: int
) -> tuple[RunState, Rows, jax.Array]:
    """Plays up to `course.num_rounds` rounds, fewer if all have diverged; returns the state, the rows and how many."""

    def one(algorithm: Algorithm, clients: Clients, state: RunState) -> Any:
        state, row = play_round(algorithm, clients, plan, state, course.limit)
        return state.server, state.memory, row

    def play(state: RunState) -> tuple[RunState, Rows]:
        server, memory, row = over_grid(one, plan)(algorithm, clients, state)
        state = RunState(server, memory, state.round + 1, state.root)
        unseen = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), metric_shapes)
        evaluated = course.evaluates(state.round)
        measured = jax.lax.cond(evaluated, lambda s: _metrics(algorithm, clients, plan, s), lambda s: unseen, state)
        return state, Rows(dataclasses.replace(row, diverged=row.diverged | lost(measured, evaluated)), measured)

    def body(carry: Any) -> Any:
        done, state, rows, _ = carry
        state, new = play(state)
        rows = jax.tree.map(lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, done, 0), rows, new)
        return done + 1, state, rows, jnp.all(new.row.diverged)

    metric_shapes = jax.eval_shape(lambda s: _metrics(algorithm, clients, plan, s), state)
    row_shapes = jax.eval_shape(play, state)[1]
    rows = jax.tree.map(lambda a: jnp.zeros((capacity, *a.shape), a.dtype), row_shapes)
    going = lambda carry: (carry[0] < course.num_rounds) & ~carry[3]  # noqa: E731
    first = (jnp.zeros((), jnp.int32), state, rows, jnp.zeros((), bool))
    done, state, rows, _ = jax.lax.while_loop(going, body, first)
    return state, rows, done


@functools.partial(jax.jit, static_argnames="plan")
def _measure(algorithm: Algorithm, clients: Clients, state: RunState, *, plan: Plan) -> dict[str, jax.Array]:
    return _metrics(algorithm, clients, plan, state)


@functools.partial(jax.jit, static_argnames="plan")
def final_answer(algorithm: Algorithm, clients: Clients, state: RunState, *, plan: Plan) -> Any:
    """What the method returns at this state."""
    return over_grid(lambda a, c, s: answer(a, c, plan, s), plan)(algorithm, clients, state)
