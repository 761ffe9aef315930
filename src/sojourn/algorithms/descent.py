"""Local gradient descent, the inner loop that most methods share, and running sums of its iterates."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Context, Exchange, Info, Who
from sojourn.core.errors import SojournError
from sojourn.core.keys import purpose_key
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


def check_amounts(algorithm: Any) -> None:
    """For methods whose clients may do less than `num_local_steps`, `min_local_steps` at least."""
    least, most = algorithm.min_local_steps, algorithm.num_local_steps
    if least is not None and least > most:
        raise SojournError(f"min_local_steps = {least} is more than num_local_steps = {most}.")


def descend_pulled_back(algorithm: Any, oracle: Oracle, start: Vec, key: jax.Array) -> Vec:
    """Steps on f(y) + (proximal_weight / 2) ||y - start||^2: a number between the two, drawn uniformly."""
    number = algorithm.num_local_steps
    if algorithm.min_local_steps is not None:
        work_key = purpose_key(key, "amount of work")
        number = jax.random.randint(work_key, (), algorithm.min_local_steps, algorithm.num_local_steps + 1, jnp.int32)
    pulled = lambda gradient, y: gradient + algorithm.proximal_weight * (y - start)  # noqa: E731
    return descend(oracle, start, algorithm.step_size, number, key, pulled, algorithm.num_local_steps)


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


def closing_with(aggregate: Callable[[Any, IterateSum, Context], Any]) -> Exchange:
    """The exchange at the end in which all clients only send the sums that they kept."""

    def send_memory(down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        return memory, memory, {}

    return Exchange(lambda server: (), send_memory, aggregate, Who.ALL, purpose="closing", origin="unknown")
