"""One round of any algorithm, as a pure function: broadcast, visit those taking part, reduce, aggregate.

Engines differ in how they loop over rounds and clients; what a round *is* stands here once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Who
from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import purpose_key, server_key
from sojourn.core.oracle import KINDS
from sojourn.core.vec import Vec, norm
from sojourn.diagnostics.round_probes import Seen, Trail, measure_round, new_tape, trail_of
from sojourn.engine.participation import members


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static side of a run: it shapes the program."""

    cohort: int
    width: int  # clients that work side by side (vmap); groups of them follow one another (scan)
    record: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None  # of a sweep: (algorithms, worlds), see `over_grid`
    stacked: tuple[bool, ...] = ()  # of a sweep over federations: which leaves of the clients have an axis of worlds
    opening: bool = False  # a round that the method opens with, where those differ
    row_size: int = 0  # how many numbers the vectors in a row hold, where probes record vectors

    def exchanges(self, algorithm: Algorithm) -> tuple[Exchange, ...]:
        return algorithm.opening() if self.opening else algorithm.exchanges()


class InThisProcess:
    """Of engines that need no other process."""

    def close(self) -> None:
        """Nothing stays behind."""


class RunState(eqx.Module):
    """All that is needed to go on: saved as one tree. A state given to an engine is used up by it."""

    server: Any
    memory: Any  # (clients, ...) stacked, () when clients keep nothing
    round: jax.Array  # rounds finished; in virtual time, uploads applied
    root: jax.Array  # the run's root key
    buffers: Any = ()  # in virtual time: what was sent to those under way, by slot


class Row(eqx.Module):
    """What one round leaves behind for the reader."""

    answers: jax.Array  # (exchanges,)
    calls: jax.Array  # (KINDS,)
    info: Info
    diverged: jax.Array


def over_grid(
    function: Callable[[Algorithm, Clients, RunState], Any], plan: Plan
) -> Callable[[Algorithm, Clients, RunState], Any]:
    """The function for one run as it is, or for all runs of a sweep's grid: states have axes (worlds, algorithms).

    A world is a seed, or a federation and a seed. Runs of one world draw the same clients and samples, so these are
    drawn once for all algorithms, and the products of one sample with many models become one large product.
    """
    if plan.grid is None:
        return function
    if plan.grid == (1, 1):
        return _alone(function)

    def everywhere(algorithm: Algorithm, clients: Clients, state: RunState) -> Any:
        leaves, structure = jax.tree.flatten(clients)
        apply = lambda a, c, s: function(a, jax.tree.unflatten(structure, c), s)  # noqa: E731
        in_one_world = jax.vmap(apply, in_axes=(0, None, RunState(0, 0, None, None)))  # type: ignore[arg-type]
        axes = [0 if own else None for own in plan.stacked] or None
        in_all = jax.vmap(in_one_world, in_axes=(None, axes, RunState(0, 0, None, 0)))  # type: ignore[arg-type]
        return in_all(algorithm, leaves, state)

    return everywhere


def _alone(
    function: Callable[[Algorithm, Clients, RunState], Any],
) -> Callable[[Algorithm, Clients, RunState], Any]:
    """The function for a grid of a single run: the same program as without a grid."""

    def there(algorithm: Algorithm, clients: Clients, state: RunState) -> Any:
        one = jax.tree.map(lambda a: a[0], algorithm)
        server, memory = jax.tree.map(lambda a: a.reshape(a.shape[2:]), (state.server, state.memory))
        found = function(one, clients, RunState(server, memory, state.round, state.root[0]))
        return jax.tree.map(lambda a: a[None, None], found)

    return there


class Rows(eqx.Module):
    """A chunk's rows: Row and the metrics, with a leading axis of rounds (then those of the grid, in a sweep)."""

    row: Row
    metrics: dict[str, jax.Array]  # NaN in rounds that were not evaluated


class Course(eqx.Module):
    """The numbers that steer a chunk; traced, so they never recompile."""

    num_rounds: jax.Array  # to play now
    last_round: jax.Array  # of the whole run: it is always evaluated
    eval_every: jax.Array
    limit: jax.Array  # beyond this norm the run has diverged

    def evaluates(self, round: Any) -> Any:
        return (round % self.eval_every == 0) | (round == self.last_round)


def start(algorithm: Algorithm, federation: Federation, root: jax.Array) -> RunState:
    """A fresh state. Every leaf is a copy with a strong type: it will be donated, and must not recompile chunk two."""
    x0 = federation.x0
    number = federation.num_clients
    memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (number, *a.shape)), algorithm.init_client(x0))
    state = RunState(algorithm.init_server(x0), memory, jnp.zeros((), jnp.int32), root)
    return jax.tree.map(_fresh, state)


def _fresh(leaf: jax.Array) -> jax.Array:
    return jnp.copy(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.array(leaf, leaf.dtype, copy=True)


def play_round(algorithm: Algorithm, clients: Clients, plan: Plan, state: RunState, limit: Any) -> tuple[RunState, Row]:
    """One round: every exchange in turn."""
    server, memory, row = play_exchanges(algorithm, plan.exchanges(algorithm), clients, plan, state, plan.record)
    reach = norm(algorithm.model(server))
    diverged = ~(reach <= limit)  # also when it is not a number
    row = dataclasses.replace(row, diverged=diverged)
    return RunState(server, memory, state.round + 1, state.root), row


def play_exchanges(
    algorithm: Algorithm, exchanges: tuple[Exchange, ...], clients: Clients, plan: Plan, state: RunState,
    record: tuple[str, ...] = (),
) -> tuple[Any, Any, Row]:  # fmt: skip
    """Every exchange in turn; `record` names the probes that read what the clients do."""
    server, memory = state.server, state.memory
    round_key = jax.random.fold_in(state.root, state.round)
    clients = clients.in_round(round_key)
    calls = jnp.zeros(len(KINDS), jnp.int32)
    answers: list[int] = []
    info: Info = {}
    seen: list[Seen] = []
    for number, exchange in enumerate(exchanges):
        ids = members(exchange.who, round_key, clients.num_clients, plan.cohort, exchange.purpose)
        weights = shares(algorithm, clients, ids)
        visit = visitor(exchange, clients, exchange.broadcast(server), round_key, record)
        up, memory, news, used, trail = visit_all(visit, exchange, memory, ids, weights, plan.width)
        context = context_of(algorithm, exchange, clients, ids, weights, state.round, round_key, number)
        server = exchange.aggregate(server, up, context)
        calls, info = calls + used, {**info, **news}
        answers.append(len(ids))
        seen += [] if trail is None else [Seen(trail, ids, clients.num_clients)]
    info = info | measure_round(record, seen)
    row = Row(jnp.asarray(answers, jnp.int32), calls, info, jnp.zeros((), bool))
    return server, memory, row


def shares(algorithm: Algorithm, clients: Clients, ids: jax.Array) -> jax.Array:
    """The weights of the answers, summing to one over those taking part."""
    given, number = clients.counted(algorithm.weighting), len(ids)
    if given is None or number == 1:
        return jnp.full(number, 1 / number, jnp.result_type(float))
    taken = given[ids]
    return taken / jnp.sum(taken)


def context_of(
    algorithm: Algorithm, exchange: Exchange, clients: Clients, ids: jax.Array, weights: jax.Array, round: jax.Array,
    round_key: jax.Array, place: int = 0,
) -> Context:  # fmt: skip
    """What the server knows of an exchange's answers; `place` is the exchange's in its round."""
    given, number = clients.counted(algorithm.weighting), len(ids)
    everyone = number == clients.num_clients
    share = number / clients.num_clients if given is None or everyone else jnp.sum(given[ids]) / jnp.sum(given)
    stacked = weights if exchange.reduce == "stack" else None
    evenness = 1.0 if given is None else 1 / (number * jnp.sum(weights**2))
    key = server_key(round_key, exchange.purpose, place)
    return Context(round, clients.num_clients, number, share, weights=stacked, key=key, evenness=evenness)


Visit = Callable[[jax.Array, Any], tuple[Any, Any, Info, jax.Array, Trail | None]]


def visitor(
    exchange: Exchange, clients: Clients, down: Any, round_key: jax.Array, record: tuple[str, ...] = ()
) -> Visit:
    """A client's whole work in an exchange: (its id, its memory) -> (Up, memory, info, calls, trail if recorded)."""

    def visit(client: jax.Array, memory: Any) -> tuple[Any, Any, Info, jax.Array, Trail | None]:
        key = purpose_key(jax.random.fold_in(round_key, client), exchange.purpose)
        tape = new_tape(record)
        oracle = clients.oracle(client, tape)
        up, memory, info = exchange.local(down, memory, oracle, key)
        info = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in info.items()}
        return up, memory, info, oracle.ledger.totals(), trail_of(tape, up)

    return visit


def visit_all(
    visit: Visit, exchange: Exchange, memory: Any, ids: jax.Array, weights: jax.Array, width: int
) -> tuple[Any, Any, Info, jax.Array, Trail | None]:
    """Visits everyone, `width` at a time, and reduces: (mean or stack of the Ups, memory, mean info, sum of calls,
    stack of the trails)."""
    number = len(ids)
    width = divisor_at_most(number, width)
    keep_stack = exchange.reduce == "stack"
    together = _together(visit, exchange, width)

    def group(memory: Any, ids: jax.Array, weights: jax.Array) -> tuple[Any, Any, Info, jax.Array, Trail | None]:
        mine = jax.tree.map(lambda a: a.at[ids].get(mode="promise_in_bounds"), memory)
        up, mine, info, calls, trails = together(ids, mine, weights)
        memory = jax.tree.map(lambda a, new: a.at[ids].set(new, unique_indices=True), memory, mine)
        info = jax.tree.map(lambda a: jnp.sum(a, 0) / number, info)
        return up, memory, info, jnp.sum(calls, 0, dtype=jnp.int32), trails

    if width == number:
        return group(memory, ids, weights)

    def fold(carry: Any, group_of: Any) -> Any:
        memory, sums = carry
        up, memory, info, calls, trails = group(memory, *group_of)
        kept, summed = ((up, trails), (info, calls)) if keep_stack else ((None, trails), (up, info, calls))
        return (memory, jax.tree.map(jnp.add, sums, summed)), kept

    groups = ids.reshape(-1, width), weights.reshape(-1, width)
    shapes = jax.eval_shape(group, memory, groups[0][0], groups[1][0])
    summed_shapes = (shapes[2], shapes[3]) if keep_stack else (shapes[0], shapes[2], shapes[3])
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), summed_shapes)
    (memory, sums), kept = jax.lax.scan(fold, (memory, zeros), groups)
    ups, trails = jax.tree.map(lambda a: a.reshape(number, *a.shape[2:]), kept)
    if keep_stack:
        return ups, memory, *sums, trails
    return sums[0], memory, sums[1], sums[2], trails


def visit_some(
    visit: Visit, exchange: Exchange, memory: Any, ids: jax.Array, weights: jax.Array, width: int, count: jax.Array,
    total: int,
) -> tuple[Any, Any, Info, jax.Array, Trail | None]:  # fmt: skip
    """Visits the first `count` of these ids, at least one, for an exchange of `total` members that several visit.

    As `visit_all`, but `memory` holds the rows of these ids, in their order, and weights and info are shares of the
    whole exchange, so that what several have found just adds up. Of a stack, of memories and of trails the first
    `count` entries mean something. One program serves all counts: it visits whole groups and counts no more than
    was asked for.
    """
    capacity = len(ids)
    width = divisor_at_most(capacity, width)
    keep_stack = exchange.reduce == "stack"
    together = _together(visit, exchange, width)

    def group(first: Any) -> tuple[Any, Any]:
        """What is summed and what is kept of the `width` members from `first` on."""
        cut = lambda a: jax.lax.dynamic_slice_in_dim(a, first, width)  # noqa: E731
        up, mine, info, calls, trails = together(cut(ids), jax.tree.map(cut, memory), cut(weights))
        asked = first + jnp.arange(width) < count
        those = lambda a: jnp.where(asked.reshape(-1, *[1] * (a.ndim - 1)), a, 0)  # noqa: E731
        info = jax.tree.map(lambda a: jnp.sum(those(a), 0) / total, info)
        calls = jnp.sum(those(calls), 0, dtype=jnp.int32)
        return ((info, calls), (mine, trails, up)) if keep_stack else ((info, calls, up), (mine, trails))

    def fold(number: jax.Array, carry: Any) -> Any:
        sums, kept = carry
        more, new = group(number * width)
        put = lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, number * width, 0)  # noqa: E731
        return jax.tree.map(jnp.add, sums, more), jax.tree.map(put, kept, new)

    if width == capacity:
        sums, kept = group(0)
    else:
        summed, rows = jax.eval_shape(group, jnp.zeros((), jnp.int32))
        zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), summed)
        empty = jax.tree.map(lambda a: jnp.zeros((capacity, *a.shape[1:]), a.dtype), rows)
        sums, kept = jax.lax.fori_loop(0, (count + width - 1) // width, fold, (zeros, empty))
    up = kept[2] if keep_stack else sums[2]
    return up, kept[0], sums[0], sums[1], kept[1]


def _together(visit: Visit, exchange: Exchange, width: int) -> Callable[[jax.Array, Any, jax.Array], Any]:
    """The visit of a group side by side: (ids, memories, weights) -> what `visit` gives, stacked; the Ups are summed by
    their weights unless the exchange keeps them all."""
    side_by_side = _visit_alone(visit) if width == 1 else jax.vmap(visit)

    def group(ids: jax.Array, memory: Any, weights: jax.Array) -> Any:
        ups, *rest = side_by_side(ids, memory)
        if exchange.reduce == "stack":
            return ups, *rest
        return jax.tree.map(lambda a: jnp.tensordot(weights.astype(a.dtype), a, axes=1), ups), *rest

    return group


def _visit_alone(visit: Visit) -> Visit:
    """A group of one without vmap: with an axis of length one XLA does not turn products around, and makes a transposed
    copy of every gradient instead (a wide layer then takes nearly twice as long)."""

    def of_group(ids: jax.Array, memory: Any) -> Any:
        return jax.tree.map(lambda a: a[None], visit(ids[0], jax.tree.map(lambda a: a[0], memory)))

    return of_group


def divisor_at_most(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`: groups without padding."""
    return next(width for width in range(min(number, max(1, limit)), 0, -1) if number % width == 0)


def evaluate(algorithm: Algorithm, clients: Clients, plan: Plan, state: RunState) -> dict[str, jax.Array]:
    """Metrics of what the method would return if it stopped now."""
    x = answer(algorithm, clients, plan, state)
    found = clients.metrics(x)
    found = found | {name: probe(algorithm, clients, x, found) for name, probe in clients.probes.items()}
    return {name: jnp.asarray(value, jnp.result_type(float)) for name, value in found.items()}


def lost(metrics: dict[str, jax.Array], evaluated: Any) -> jax.Array:
    """Whether the loss was evaluated and is not a finite number."""
    return evaluated & ~jnp.isfinite(metrics["loss"])


def answer(algorithm: Algorithm, clients: Clients, plan: Plan, state: RunState) -> Vec:
    """The method's answer at this state: its closing exchanges run on a copy, uncounted."""
    closing = algorithm.closing()
    server = play_exchanges(algorithm, closing, clients, plan, state)[0] if closing else state.server
    return algorithm.answer(server)


def divergence_limit(x0: Vec) -> jax.Array:
    """A run has diverged when its model is farther from zero than this."""
    return 1e6 * (1 + norm(x0))


def phase(algorithm: Algorithm, round: int) -> tuple[bool, float]:
    """Whether this round (they count from 0) is an opening, and how many rounds from it on are played alike."""
    if not algorithm.opening():
        return False, math.inf
    every = algorithm.reopens_every() or math.inf
    since = round % every
    return (True, 1) if since == 0 else (False, every - since)


def may_know(exchanges: Sequence[Exchange], number: int, num_clients: int, cohort: int) -> bool:
    """Whether all who take part in an exchange surely hold what was sent before, in this round or in the last."""
    everyone = lambda who: who is Who.ALL or (who is Who.COHORT and cohort == num_clients)  # noqa: E731
    who, earlier = exchanges[number].who, [exchange.who for exchange in exchanges[:number]]
    if everyone(who) or who is Who.FIRST or any(everyone(other) for other in earlier):
        return True
    return who is Who.COHORT and Who.COHORT in earlier  # one draw serves the whole round


def vector_size(algorithm: Algorithm, federation: Federation, plan: Plan) -> int:
    """How many numbers the vectors in a row hold. A round is traced for it, so what a probe cannot read is refused."""
    if new_tape(plan.record) is None:
        return 0
    one = jax.tree.map(lambda leaf: leaf[0], algorithm) if plan.grid else algorithm

    def info(exchanges: tuple[Exchange, ...], root: jax.Array) -> Info:
        state = start(one, federation, root)
        return play_exchanges(one, exchanges, federation.clients, plan, state, plan.record)[2].info

    kinds = [several for several in (one.opening(), one.exchanges()) if several]
    found = [jax.eval_shape(functools.partial(info, several), jax.random.key(0)) for several in kinds]
    return max(sum(value.size for value in row.values() if value.ndim) for row in found)
