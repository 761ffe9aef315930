"""What a server makes of several answers: their mean, or something that a few wrong ones cannot move far.

Each takes the stack of the answers, a tree whose leaves have a leading axis of them, and returns one answer.

- mean: the weighted mean, which a single answer can put anywhere.
- median, trimmed_mean: coordinate by coordinate (Yin et al., "Byzantine-robust distributed learning", ICML 2018,
  definitions 1 and 2, with beta -> trim). The number trimmed at each end is the whole part of trim times n.
- krum: the answer with the least sum of squared distances to its n - f - 2 nearest others (Blanchard et al., "Machine
  learning with adversaries", NeurIPS 2017; f -> attackers); with keep = m the mean of the m best (their Multi-Krum),
  at most n - f - 2 of them (El Mhamdi et al., ICML 2018).

Only the mean knows weights: a claimed number of samples is one more thing that an attacker can make up, and none of the
papers has any. What is not a number counts as infinite: it is sorted to the end, and no answer is near it.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from pydantic import Field

from sojourn.core.errors import SojournError

Combine = Callable[..., Any]  # (stack, weights of the answers, **options) -> an answer


def mean(ups: Any, weights: jax.Array) -> Any:
    """The weighted mean."""
    return jax.tree.map(lambda a: jnp.tensordot(weights.astype(a.dtype), a, axes=1), ups)


def median(ups: Any, weights: jax.Array) -> Any:
    """The median of every coordinate: right while fewer than half of the answers are wrong."""

    def middle(a: jax.Array) -> jax.Array:
        ordered = jnp.sort(a, axis=0)
        low, high = ordered[(len(a) - 1) // 2], ordered[len(a) // 2]
        return jnp.where(low == high, low, low / 2 + high / 2)  # the sum of both could overflow

    return jax.tree.map(middle, ups)


def trimmed_mean(
    ups: Any,
    weights: jax.Array,
    *,
    trim: Annotated[float, Field(gt=0, lt=0.5, description="share of the answers left out at each end")] = 0.2,
) -> Any:
    """The mean of every coordinate without its largest and its smallest values."""

    def inside(a: jax.Array) -> jax.Array:
        cut = _trimmed(trim, len(a))
        return jnp.mean(jnp.sort(a, axis=0)[cut : len(a) - cut], axis=0)

    return jax.tree.map(inside, ups)


def krum(
    ups: Any,
    weights: jax.Array,
    *,
    attackers: Annotated[int, Field(ge=1, description="wrong answers to be borne, the paper's f")] = 1,
    keep: Annotated[int, Field(ge=1, description="answers whose mean is taken, the paper's m")] = 1,
) -> Any:
    """The answer in the densest neighbourhood of others."""
    leaves = jax.tree.leaves(ups)
    number = len(leaves[0])
    apart = jax.lax.map(lambda one: _squared_distances(leaves, one), jnp.arange(number))
    others = jnp.where(jnp.eye(number, dtype=bool), jnp.inf, apart)
    scores = jnp.sum(jnp.sort(others, axis=1)[:, : number - attackers - 2], axis=1)
    chosen = jnp.argsort(scores, stable=True)[:keep]  # ties go to the first, as in the paper
    return jax.tree.map(lambda a: jnp.mean(a[chosen], axis=0), ups)


def _squared_distances(leaves: list[jax.Array], one: jax.Array) -> jax.Array:
    """(answers,) from one of them; infinite where something is not a number."""
    wide = [a.astype(jnp.promote_types(a.dtype, jnp.float32)).reshape(len(a), -1) for a in leaves]
    found = sum((jnp.sum((a - a[one]) ** 2, axis=1) for a in wide), jnp.zeros(len(leaves[0])))
    return jnp.where(jnp.isnan(found), jnp.inf, found)


def _trimmed(trim: float, number: int) -> int:
    """Answers left out at each end; 0.29 of 100 are 29, whatever floating point makes of the product."""
    return int(trim * number + 1e-9)


@dataclasses.dataclass(frozen=True)
class Aggregator:
    """A way to combine answers, and what it asks for."""

    combine: Combine
    weighted: bool = False
    shortage: Callable[..., str] = lambda number: ""  # why so many answers are too few; "" where they are enough

    def describe(self) -> str:
        return (self.combine.__doc__ or "").split("\n")[0]

    def check(self, number: int, **options: Any) -> None:
        """Refuses a number of answers from which it would protect against nobody."""
        why = self.shortage(number, **options)
        if why:
            raise SojournError(f"{number} answer{'s' if number > 1 else ''} at a time are too few: {why}.")


def _too_few_for_median(number: int) -> str:
    return "" if number >= 3 else "the middle of fewer than 3 protects against none of them"


def _too_few_to_trim(number: int, trim: float = 0.2) -> str:
    return "" if _trimmed(trim, number) else f"trim = {trim:g} of them is less than one at each end"


def _too_few_for_krum(number: int, attackers: int = 1, keep: int = 1) -> str:
    if number < 2 * attackers + 3:
        return f"krum needs 2 * attackers + 3 = {2 * attackers + 3}"
    most = number - attackers - 2
    return (
        "" if keep <= most else f"keep = {keep} is more than the {most} that can be trusted (answers - attackers - 2)"
    )


AGGREGATORS: dict[str, Aggregator] = {
    "mean": Aggregator(mean, weighted=True),
    "median": Aggregator(median, shortage=_too_few_for_median),
    "trimmed-mean": Aggregator(trimmed_mean, shortage=_too_few_to_trim),
    "krum": Aggregator(krum, shortage=_too_few_for_krum),
}
