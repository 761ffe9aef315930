"""Answers of bounded length: what lies farther from the answer that changes nothing is pulled back onto the sphere.

The bound holds whatever arrives: an answer with an infinity or something that is not a number in it counts as one that
changes nothing. One within the bound is left as it is, bit for bit. The bound is that of real numbers; rounding can
exceed it by a few units in the last place.
"""

from typing import Any

import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError


def clipped(up: Any, origin: Any, bound: Any) -> tuple[Any, jax.Array]:
    """The answer with a distance of at most `bound` to the origin, and whether it had to be changed."""
    moved = jax.tree.map(jnp.subtract, up, origin)
    length = length_of(moved)
    within = length <= bound  # not so where it is not a number
    factor = jnp.where(jnp.isfinite(length), bound / jnp.where(length > 0, length, 1), 0)

    def pulled(whole: jax.Array, start: jax.Array, step: jax.Array) -> jax.Array:
        short = jnp.where(jnp.isfinite(length), step * factor.astype(step.dtype), 0)
        return jnp.where(within, whole, start + short)

    return jax.tree.map(pulled, up, origin, moved), ~within


def length_of(tree: Any) -> jax.Array:
    """The Euclidean norm of all numbers in a tree, in single precision at least; large squares do not overflow."""
    leaves = [a.astype(jnp.promote_types(a.dtype, jnp.float32)) for a in jax.tree.leaves(tree)]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(a), initial=0).astype(jnp.result_type(float)) for a in leaves]))
    # its inverse must be a number too: a compiler multiplies by it, and would take the largest answers for none
    low = float(jnp.finfo(largest.dtype).tiny) ** 0.75
    scale = jnp.clip(largest, low, 1 / low)
    return scale * jnp.sqrt(sum((jnp.sum((a / scale) ** 2) for a in leaves), jnp.zeros((), jnp.result_type(float))))


def check_floats(title: str, up: Any) -> None:
    """Whole numbers have neither a length nor a mean."""
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(up)):
        raise SojournError(
            f"{title} answers with whole numbers, which can be neither clipped nor averaged; send floats."
        )


def noise_like(key: jax.Array, tree: Any, deviation: Any) -> Any:
    """Independent normal numbers in the shape of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(1, len(leaves)))

    def draw(key: jax.Array, leaf: jax.Array) -> jax.Array:
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        return (jnp.asarray(deviation, wide) * jax.random.normal(key, leaf.shape, wide)).astype(leaf.dtype)

    return jax.tree.unflatten(structure, [draw(k, leaf) for k, leaf in zip(keys, leaves, strict=True)])
