"""The best point's mean cost after the fact: known beforehand, exact from summaries, or by a solver.

A solver needs all costs. Where they are alike for all seeds and plays the stream tells them once more, and what was
found is remembered for as long as the stream lives: it is the same for every method, K and seed.
"""

import functools
import operator
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.online.costs import Cost, ExactCost, least_by_solver
from sojourn.online.stream import Stream

_FOUND: dict[int, dict[tuple[int, int], tuple[float, float]]] = {}  # by stream, then by time and machines


def one_step(stream: Stream, num_machines: int) -> Cost:
    """The costs of a step as shapes."""
    return eqx.filter_eval_shape(lambda: _told(stream, num_machines, jnp.asarray(0)))


def comparators(
    stream: Stream, kind: Cost, totals: Any, kept: Any, times: np.ndarray, num_seeds: int, num_machines: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best point's mean cost (seeds, records), and how far above the truth it may lie."""
    shape, radius = (num_seeds, len(times)), float(stream.radius)
    known = stream.least_value()
    if known is not None:
        return np.full(shape, known), np.zeros(shape)
    if isinstance(kind, ExactCost):
        mean = lambda i, r: jax.tree.map(lambda part: part[i, r] / times[r], totals)  # noqa: E731
        least = [[type(kind).least(mean(i, r), radius) for r in range(len(times))] for i in range(num_seeds)]
        return np.array(least), np.zeros(shape)
    if stream.random:
        found = np.array([_solved(jax.tree.map(operator.itemgetter(i), kept), stream, times) for i in range(num_seeds)])
    else:
        found = np.array([_remembered(stream, times, num_machines)])
    both = np.broadcast_to(found, (num_seeds, len(times), 2))
    return both[..., 0], both[..., 1]


def _remembered(stream: Stream, times: np.ndarray, num_machines: int) -> list[tuple[float, float]]:
    if id(stream) not in _FOUND:
        _FOUND[id(stream)] = {}
        weakref.finalize(stream, _FOUND.pop, id(stream), None)
    found = _FOUND[id(stream)]
    missing = np.array([t for t in times if (int(t), num_machines) not in found], int)
    if len(missing):
        costs = jax.vmap(lambda t: _told(stream, num_machines, t))(jnp.arange(missing[-1]))
        for t, best in zip(missing, _solved(costs, stream, missing), strict=True):
            found[int(t), num_machines] = best
    return [found[int(t), num_machines] for t in times]


def _told(stream: Stream, num_machines: int, step: jax.Array) -> Cost:
    at_start, of_step = stream.widths(num_machines)
    return stream.costs(stream.start(jnp.zeros(at_start), num_machines), step, jnp.zeros(of_step), num_machines)


def _solved(costs: Any, stream: Stream, times: np.ndarray) -> list[tuple[float, float]]:
    with jax.enable_x64(True):
        wide = jax.tree.map(_wide, costs)
        ask = lambda t: functools.partial(_mean_cost, wide, jnp.asarray(t))  # noqa: E731
        return [least_by_solver(ask(int(t)), stream.size, float(stream.radius)) for t in times]


def _wide(leaf: Any) -> Any:
    found = np.asarray(leaf)
    return jnp.asarray(found, float) if np.issubdtype(found.dtype, np.floating) else jnp.asarray(found)


@eqx.filter_jit
def _mean_cost(costs: Any, upto: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def mean(at: jax.Array) -> jax.Array:
        values = jax.vmap(jax.vmap(lambda cost: cost.value(at)))(costs).mean(1)  # of the steps
        return jnp.where(jnp.arange(len(values)) < upto, values, 0.0).sum() / upto

    return jax.value_and_grad(mean)(x)
