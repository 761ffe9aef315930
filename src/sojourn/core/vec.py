"""A pytree of arrays that adds and scales like a vector."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class Vec:
    """A model, a gradient, a direction. Scalars are cast to each leaf's type, so a model keeps its precision."""

    tree: Any

    __array_ufunc__ = None  # np.float64(2) * vec must reach Vec.__rmul__

    def __add__(self, other: "Vec") -> "Vec":
        return Vec(jax.tree.map(jnp.add, self.tree, other.tree))

    def __sub__(self, other: "Vec") -> "Vec":
        return Vec(jax.tree.map(jnp.subtract, self.tree, other.tree))

    def __neg__(self) -> "Vec":
        return Vec(jax.tree.map(jnp.negative, self.tree))

    def __mul__(self, scalar: Any) -> "Vec":
        return Vec(jax.tree.map(lambda leaf: leaf * jnp.asarray(scalar).astype(leaf.dtype), self.tree))

    __rmul__ = __mul__

    def __truediv__(self, scalar: Any) -> "Vec":
        return Vec(jax.tree.map(lambda leaf: leaf / jnp.asarray(scalar).astype(leaf.dtype), self.tree))

    def zeros(self) -> "Vec":
        return Vec(jax.tree.map(jnp.zeros_like, self.tree))


def inner(a: Vec, b: Vec) -> jax.Array:
    parts = jax.tree.map(lambda x, y: jnp.sum(x * y), a.tree, b.tree)
    return jnp.asarray(sum(jax.tree.leaves(parts)))


def norm(a: Vec) -> jax.Array:
    return jnp.sqrt(inner(a, a))


def size(tree: Any) -> int:
    """How many numbers a tree of arrays (or of their shapes) holds."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def vecs(tree: Any) -> list[Vec]:
    """The vectors in a tree, in its order."""
    is_vec = lambda node: isinstance(node, Vec)  # noqa: E731
    return [part for part in jax.tree.leaves(tree, is_leaf=is_vec) if is_vec(part)]
