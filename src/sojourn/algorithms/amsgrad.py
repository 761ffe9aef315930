"""What Fed-AMS and Fed-LAMB share: clients with moments of their gradients, a server that keeps the denominators.

AMSGrad: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, x = x - alpha m / (sqrt(vhat) + eps), vhat the largest v so
far. Here vhat is the server's: the elementwise maximum over rounds of the mean of the clients' v.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Context, Exchange
from sojourn.core.errors import SojournError
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class ModelAndMoment(eqx.Module):
    """The server's state and what it sends; clients answer with the change of x and their own v."""

    x: Vec
    v: Vec
    step_size: jax.Array | None = None  # of the coming round; only there when it changes


class Moments(eqx.Module):
    """A client's moments, uncorrected, and how many gradients are in them."""

    m: Vec
    v: Vec
    num_updates: jax.Array

    @staticmethod
    def empty(x: Vec) -> "Moments":
        return Moments(x.zeros(), x.zeros(), jnp.zeros((), jnp.int32))

    def update(self, gradient: Vec, b1: Any, b2: Any) -> "Moments":
        # as m + (1 - b)(g - m): a b close to one would be lost in narrow types
        m, v = self.m + (1 - b1) * (gradient - self.m), self.v + (1 - b2) * (square(gradient) - self.v)
        return Moments(m, v, self.num_updates + 1)

    def estimates(self, b1: Any, b2: Any, bias_correction: str) -> tuple[Vec, Vec]:
        """m and v as steps use them; "updates" corrects copies by the number of updates, never what is carried on."""
        if bias_correction == "none":
            return self.m, self.v
        return self.m / (1 - b1**self.num_updates), self.v / (1 - b2**self.num_updates)


Move = Callable[[Vec, Vec, Vec], Vec]  # (iterate, m, v) -> the next iterate


def walk_with_moments(
    algorithm: Any, move: Move, oracle: Oracle, start: Vec, memory: Any, key: jax.Array
) -> tuple[Vec, Vec, Any]:
    """A client's steps: its last iterate, the v that it sends, and its memory."""
    moments = memory if algorithm.moments == "carry" else Moments.empty(start)
    decays = algorithm.momentum, algorithm.second_moment
    printed = algorithm.gradients == "once"
    first = oracle.grad(start, oracle.draw(key)) if printed else start.zeros()

    def step(state: tuple[Vec, Moments], z: Any, k: jax.Array) -> tuple[Vec, Moments]:
        y, moments = state
        moments = moments.update(first if printed else oracle.grad(y, z), *decays)
        return move(y, *moments.estimates(*decays, algorithm.bias_correction)), moments

    y, moments = oracle.walk(step, (start, moments), algorithm.num_local_steps, key)
    _, v = moments.estimates(*decays, algorithm.bias_correction)
    return y, v, moments if algorithm.moments == "carry" else ()


def start_server(algorithm: Any, x0: Vec) -> ModelAndMoment:
    v = jax.tree.map(lambda a: jnp.full_like(a, algorithm.initial_second_moment.astype(a.dtype)), x0)
    return ModelAndMoment(x0, v, None if algorithm.step_decay == "none" else algorithm.step_size)


def combine(algorithm: Any, server: ModelAndMoment, up: ModelAndMoment, context: Context) -> ModelAndMoment:
    """x moves by the clients' mean change, vhat never decreases, and round r + 1 has the step alpha / sqrt(r + 1)."""
    if server.step_size is None:
        decayed = None
    else:  # in the step's precision: the root of an int32 would be a float32
        decayed = algorithm.step_size / jnp.sqrt(jnp.asarray(context.round + 2, server.step_size.dtype))
    return ModelAndMoment(server.x + up.x, maximum(server.v, up.v), decayed)


def warm_start(algorithm: Any) -> tuple[Exchange, ...]:
    """Before the first round: vhat starts at the mean of the clients' squared gradients, where these are larger."""
    if algorithm.warm_start == "none":
        return ()

    def local(x: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, dict[str, jax.Array]]:
        return square(oracle.grad(x, oracle.draw(key))), memory, {}

    def aggregate(server: ModelAndMoment, up: Vec, context: Context) -> ModelAndMoment:
        return ModelAndMoment(server.x, maximum(server.v, up), server.step_size)

    return (Exchange(lambda server: server.x, local, aggregate, purpose="warm start"), *algorithm.exchanges())


def check_decays(algorithm: Any) -> None:
    """A moment that forgets nothing would stay zero."""
    for name in ("momentum", "second_moment"):
        value = getattr(algorithm, name)
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and bool(jnp.any(value == 1)):
            raise SojournError(f"{name} = 1 keeps the moment at zero forever; give less than 1.")


def ratio(m: Vec, v: Vec, epsilon: Any) -> Vec:
    """m / (sqrt(v) + epsilon), elementwise."""
    return Vec(jax.tree.map(lambda a, b: a / (jnp.sqrt(b) + epsilon.astype(b.dtype)), m.tree, v.tree))


def square(a: Vec) -> Vec:
    return jax.tree.map(jnp.square, a)


def maximum(a: Vec, b: Vec) -> Vec:
    return jax.tree.map(jnp.maximum, a, b)
