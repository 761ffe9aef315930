"""Recursive gradient estimates, which the variance-reduced methods share.

The server keeps v, an estimate of the gradient at its model x. Every round the clients compute gradients at x and at
the model before, on the same samples, and v <- a + (1 - rho) (v - p), with a and p the means of the two: rho = 1
forgets everything, rho = 0 corrects v by differences alone (SARAH), in between it is STORM's momentum.

`messages` says what travels: "printed", as the thesis prints its Algorithm 1, sends both models and both gradients;
"lean" sends the model and a - (1 - rho) p, which is all the server needs. Lean clients keep one model, the one they
were sent last; it is declared as `Known`, and not counted. So everyone must take part.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Known
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class Tracked(eqx.Module):
    """The server's state: its model, the one before, and the estimate of the gradient."""

    x: Vec
    x_before: Vec
    v: Vec


class Two(eqx.Module):
    """Two models that are sent, or two gradients that come back: at the model and at the one before."""

    now: Vec
    before: Any


class RecursiveEstimate(Algorithm):
    """The estimate's two exchanges. A method says how much is forgotten, how it begins, and what is done with v."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")
    messages: str = choice("lean", ("lean", "printed"))

    @abc.abstractmethod
    def forgetting(self) -> Any:
        """rho."""

    @abc.abstractmethod
    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        """A client's gradient for an estimate that begins anew."""

    def gradients(self, x: Vec, before: Vec, oracle: Oracle, key: jax.Array) -> Two:
        """A client's gradients at both models, on one sample that pools its K batches."""
        z = oracle.draw(key, self.num_local_steps)
        return Two(oracle.grad(x, z), oracle.grad(before, z))

    def init_server(self, x0: Vec) -> Tracked:
        return Tracked(x0, x0, x0.zeros())

    def begin(self) -> Exchange:
        """v <- mean of the first gradients."""

        def local(x: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
            return self.first_gradient(x, oracle, key), memory, {}

        def aggregate(server: Tracked, up: Vec, context: Context) -> Tracked:
            return dataclasses.replace(server, v=up)

        return Exchange(self.model, local, aggregate, purpose="estimate")

    def estimate(self) -> Exchange:
        """v <- a + (1 - rho) (v - p)."""
        kept = 1 - self.forgetting()
        lean = self.messages == "lean"

        def broadcast(server: Tracked) -> Two:
            return Two(server.x, Known(server.x_before) if lean else server.x_before)

        def local(down: Two, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
            found = self.gradients(down.now, down.before.content if lean else down.before, oracle, key)
            return (found.now - kept * found.before if lean else found), memory, {}

        def aggregate(server: Tracked, up: Any, context: Context) -> Tracked:
            fresh = up if lean else up.now - kept * up.before
            return dataclasses.replace(server, v=fresh + kept * server.v)

        return Exchange(broadcast, local, aggregate, purpose="estimate")


class StormEstimate(RecursiveEstimate):
    """STORM's momentum, and a first estimate from a batch of its own, or exact."""

    momentum: Any = real(0.3, symbol="beta", low=0.0, high=1.0)
    first_batches: int | None = count(None, symbol="b_0", optional=True)
    first: str = choice("batches", ("batches", "exact"))

    def forgetting(self) -> Any:
        return self.momentum

    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        if self.first == "exact":
            return oracle.full_grad(x)
        return oracle.mean_grad(x, key, self.first_batches or self.num_local_steps)


def then_step(exchange: Exchange, step_size: Any) -> Exchange:
    """The exchange, after which the server steps along its estimate."""

    def aggregate(server: Tracked, up: Any, context: Context) -> Tracked:
        server = exchange.aggregate(server, up, context)
        return dataclasses.replace(server, x=server.x - step_size * server.v, x_before=server.x)

    return dataclasses.replace(exchange, aggregate=aggregate)


def recursion(grad: Callable[[Vec, Any], Vec], step_size: Any, forgetting: Any = 0.0) -> Callable[..., Any]:
    """A step of a client's own estimate: w <- w - step_size u, then u <- g(w; z) + (1 - rho) (u - g(w before; z))."""

    def step(state: tuple[Vec, Vec], z: Any, k: jax.Array) -> tuple[Vec, Vec]:
        w, u = state
        moved = w - step_size * u
        return moved, grad(moved, z) + (1 - forgetting) * (u - grad(w, z))

    return step
