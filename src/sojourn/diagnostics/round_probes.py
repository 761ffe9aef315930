"""Round probes: what the clients did in a round, read off the iterates of their local steps.

`consensus` is the thesis's C(t) = 1/n^2 sum_{m,k} |y_m - y_k|^2 over the n members of the round, which is twice their
mean squared distance to their mean; `consensus4` is the same with fourth powers. Distances are between points less
their mean, so nothing cancels when the clients are close together and far from zero.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Info
from sojourn.core.errors import SojournError
from sojourn.core.oracle import Tape
from sojourn.core.vec import Vec, vecs

MAX_COMPONENTS = 1000  # of a vector that is recorded in every round: each is a column of the table


class Trail(eqx.Module):
    """What one client did in an exchange; of all members, with a leading axis."""

    start: Vec | None  # None, as the next: it took no local steps
    points: Vec | None  # (steps, ...) its iterates after them, or (1, ...) the last alone
    answer: Vec | None  # of a client that took none: the first vector of its answer

    @property
    def walked(self) -> bool:
        return self.points is not None


def trail_of(tape: Tape | None, up: object) -> Trail | None:
    """What a tape kept of a visit that was answered by `up`; None without a tape."""
    if tape is None:
        return None
    return Trail(tape.start, tape.points, next(iter(vecs(up)), None) if tape.points is None else None)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What all members of an exchange did."""

    trail: Trail
    ids: jax.Array  # (members,)
    num_clients: int


def consensus(seen: Seen) -> jax.Array:
    """Mean squared distance between two members' last local iterates."""
    return _at_the_end(_second_moments(_points(seen, last=True)))


def consensus4(seen: Seen) -> jax.Array:
    """Mean fourth power of the distance between two members' last local iterates."""
    return _at_the_end(_fourth_moments(_points(seen, last=True)))


def consensus_inside(seen: Seen) -> jax.Array:
    """The consensus error after every local step, a vector over the steps."""
    return _second_moments(_points(seen))


def consensus4_inside(seen: Seen) -> jax.Array:
    """Its fourth moment after every local step, a vector over the steps."""
    return _fourth_moments(_points(seen))


def client_drift(seen: Seen) -> jax.Array:
    """How far each client moved in its local steps, a vector over all clients; empty where one took no part."""
    moved = jnp.sqrt(sum((jnp.sum(a**2, axis=1) for a in _moves(seen)), jnp.zeros(len(seen.ids))))
    moved = moved if seen.trail.walked else jnp.zeros_like(moved)
    return jnp.full(seen.num_clients, jnp.nan, moved.dtype).at[seen.ids].set(moved)


def cosine(seen: Seen) -> jax.Array:
    """Mean cosine between the updates of two members: their displacements, or gradients if they do not move."""
    cosines, valid = _cosines(seen)
    return jnp.sum(jnp.where(valid, cosines, 0)) / jnp.sum(valid)  # 0/0: not a number, as no pair has an angle


def cosine_min(seen: Seen) -> jax.Array:
    """The least cosine between the updates of two members."""
    cosines, valid = _cosines(seen)
    return jnp.where(jnp.any(valid), jnp.min(jnp.where(valid, cosines, 1), initial=1), jnp.nan)


@dataclasses.dataclass(frozen=True)
class RoundProbe:
    """A number, or a vector, of every round."""

    measure: Callable[[Seen], jax.Array]
    whole: bool = False  # reads the iterates of all steps, not of the last alone
    first_component: int | None = None  # of a vector: how its first component is numbered

    def describe(self) -> str:
        return (self.measure.__doc__ or "").split("\n")[0]


ROUND_PROBES: dict[str, RoundProbe] = {
    "consensus": RoundProbe(consensus),
    "consensus4": RoundProbe(consensus4),
    "consensus_inside": RoundProbe(consensus_inside, whole=True, first_component=1),
    "consensus4_inside": RoundProbe(consensus4_inside, whole=True, first_component=1),
    "client_drift": RoundProbe(client_drift, first_component=0),
    "cosine": RoundProbe(cosine),
    "cosine_min": RoundProbe(cosine_min),
}


def new_tape(names: Sequence[str]) -> Tape | None:
    """A tape that keeps what these probes need; None when they need none."""
    wanted = [ROUND_PROBES[name] for name in names if name in ROUND_PROBES]
    return Tape(whole=any(probe.whole for probe in wanted)) if wanted else None


def measure_round(names: Sequence[str], exchanges: Sequence[Seen]) -> Info:
    """What the probes say of a round: of its last exchange in which clients took local steps, or simply its last."""
    if not exchanges:
        return {}
    seen = next((seen for seen in reversed(exchanges) if seen.trail.walked), exchanges[-1])
    real = jnp.result_type(float)
    found = {name: ROUND_PROBES[name].measure(seen).astype(real) for name in names if name in ROUND_PROBES}
    for name, value in found.items():
        if value.ndim and len(value) > MAX_COMPONENTS:
            raise SojournError(
                f'record = "{name}" would write {len(value):,} columns; at most {MAX_COMPONENTS:,} are taken.'
            )
    return found


def _points(seen: Seen, last: bool = False) -> list[jax.Array]:
    """The members' iterates less their mean, (members, steps, numbers) for every array of the model; none if they took
    no steps."""
    points = [a[:, -1:] if last else a for a in jax.tree.leaves(seen.trail.points)]
    near = [a - jnp.mean(a, axis=0) for a in (_rows(a, 2) for a in points)]
    return [a - jnp.mean(a, axis=0) for a in near]  # far from zero the first mean is only right to rounding


def _second_moments(points: list[jax.Array]) -> jax.Array:
    """(steps,) of points less their mean: no pair need be looked at."""
    return 2 * sum((jnp.sum(a**2, axis=(0, 2)) / len(a) for a in points), _no_steps(points))


def _fourth_moments(points: list[jax.Array]) -> jax.Array:
    """(steps,) through the products of all pairs, without an array of their differences."""
    products = sum((_products(jnp.moveaxis(a, 1, 0)) for a in points), _no_steps(points)[:, None, None])
    squares = jnp.diagonal(products, axis1=1, axis2=2)
    apart = jnp.maximum(squares[:, :, None] + squares[:, None, :] - 2 * products, 0)
    return jnp.sum(apart**2, axis=(1, 2)) / max(1, apart.shape[1]) ** 2


def _cosines(seen: Seen) -> tuple[jax.Array, jax.Array]:
    """The cosines of all pairs (members, members), and which of them are pairs of two that both moved."""
    number = len(seen.ids)
    products = sum(map(_products, _moves(seen)), jnp.zeros((number, number)))
    lengths = jnp.sqrt(jnp.diagonal(products))
    valid = (lengths[:, None] > 0) & (lengths[None, :] > 0) & ~jnp.eye(number, dtype=bool)
    scale = jnp.where(valid, lengths[:, None] * lengths[None, :], 1)
    return jnp.clip(products / scale, -1, 1), valid


def _moves(seen: Seen) -> list[jax.Array]:
    """The members' updates, (members, numbers) for every array of the model."""
    if seen.trail.points is None:
        return [_rows(a, 1) for a in jax.tree.leaves(seen.trail.answer)]
    ends = [a[:, -1] for a in jax.tree.leaves(seen.trail.points)]
    starts = jax.tree.leaves(seen.trail.start)
    return [_rows(end, 1) - _rows(start, 1) for end, start in zip(ends, starts, strict=True)]


def _products(rows: jax.Array) -> jax.Array:
    """The inner products of all rows: (..., members, numbers) -> (..., members, members)."""
    return jnp.matmul(rows, jnp.swapaxes(rows, -1, -2), precision=jax.lax.Precision.HIGHEST)


def _rows(a: jax.Array, axes: int) -> jax.Array:
    """All but the leading axes in one, as real numbers of the session's precision."""
    return a.reshape(*a.shape[:axes], math.prod(a.shape[axes:])).astype(jnp.result_type(float))


def _no_steps(points: list[jax.Array]) -> jax.Array:
    return jnp.zeros(points[0].shape[1] if points else 0)


def _at_the_end(moments: jax.Array) -> jax.Array:
    return moments[-1] if len(moments) else jnp.zeros(())
