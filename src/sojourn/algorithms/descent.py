"""Local gradient descent, the inner loop that most methods share, and running sums of its iterates."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec

Direction = Callable[[Vec, Vec], Vec]  # (gradient, iterate) -> the direction to step against


def descend(
    oracle: Oracle,
    start: Vec,
    step_size: Any,
    num_steps: int | jax.Array,
    key: jax.Array,
    direction: Direction = lambda gradient, y: gradient,
    max_steps: int | None = None,
) -> Vec:
    """y <- y - step_size * direction(g(y; z), y), num_steps times from start, with fresh samples z."""

    def step(y: Vec, z: Any, k: jax.Array) -> Vec:
        return y - step_size * direction(oracle.grad(y, z), y)

    return oracle.walk(step, start, num_steps, key, max_steps)


class IterateSum(eqx.Module):
    """Weighted sum of a client's iterates and of the weights, kept between its visits."""

    total: Vec
    weight: jax.Array

    @staticmethod
    def empty(x: Vec) -> "IterateSum":
        return IterateSum(x.zeros(), jnp.zeros((), jnp.result_type(float)))

    def decayed(self, factor: Any) -> "IterateSum":
        return IterateSum(self.total * factor, self.weight * factor)

    def add(self, x: Vec) -> "IterateSum":
        return IterateSum(self.total + x, self.weight + 1)

    def mean(self, otherwise: Vec) -> Vec:
        """The weighted mean; `otherwise` while nothing has been added."""
        empty = self.weight == 0
        mean = self.total / jnp.where(empty, 1, self.weight)
        return Vec(jax.tree.map(lambda a, b: jnp.where(empty, a, b), otherwise.tree, mean.tree))


def descend_and_sum(
    oracle: Oracle,
    start: Vec,
    step_size: Any,
    num_steps: int,
    key: jax.Array,
    iterates: IterateSum,
    step_decay: Any,
    direction: Direction = lambda gradient, y: gradient,
) -> tuple[Vec, IterateSum]:
    """`descend`, adding every iterate before its step to a sum whose older terms decay by `step_decay`."""

    def step(state: tuple[Vec, IterateSum], z: Any, k: jax.Array) -> tuple[Vec, IterateSum]:
        y, seen = state
        return y - step_size * direction(oracle.grad(y, z), y), seen.decayed(step_decay).add(y)

    return oracle.walk(step, (start, iterates), num_steps, key)


def send_memory(down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, dict[str, jax.Array]]:
    """The local work of an exchange in which clients only send what they remember."""
    return memory, memory, {}
