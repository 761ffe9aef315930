"""FedAc: accelerated local SGD, versions I and II.

Yuan and Ma, NeurIPS 2020, Algorithm 1 with the parameters of its sections on FedAc-I and FedAc-II.
Paper to code: w, w_ag -> ModelPair; eta -> step_size; mu -> strong_convexity; K -> num_local_steps; alpha, beta, gamma
are derived: gamma = max(sqrt(eta/(mu K)), eta); I: alpha = 1/(gamma mu), beta = alpha + 1;
II: alpha = 3/(2 gamma mu) - 1/2, beta = (2 alpha^2 - 1)/(alpha - 1) (the authors' code has 2 alpha^2 there).
Both need alpha > 1. On a convex objective give the mu of a regularised one.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.core.errors import SojournError
from sojourn.core.options import choice, count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class ModelPair(eqx.Module):
    """The server's state and what is sent both ways."""

    w: Vec
    w_ag: Vec


class FedAc(Algorithm):
    """Accelerated local SGD."""

    step_size: Any = positive(symbol="eta")
    strong_convexity: Any = positive(symbol="mu")
    num_local_steps: int = count(10, symbol="K")
    version: str = choice("I", ("I", "II"))

    sends_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        numbers = (self.step_size, self.strong_convexity)
        if any(isinstance(n, jax.core.Tracer) or jnp.ndim(n) or not n > 0 for n in numbers):
            return  # checked when they were made, or refused by their own ranges
        alpha = float(self.parameters()[0])
        if not alpha > 1:
            raise SojournError(
                f"FedAc needs alpha > 1 and got {alpha:.3g}; take a smaller step_size or strong_convexity."
            )

    def parameters(self) -> tuple[Any, Any, Any]:
        """alpha, beta, gamma."""
        eta, mu = self.step_size, self.strong_convexity
        gamma = jnp.maximum(jnp.sqrt(eta / (mu * self.num_local_steps)), eta)
        if self.version == "I":
            alpha = 1 / (gamma * mu)
            return alpha, alpha + 1, gamma
        alpha = 3 / (2 * gamma * mu) - 0.5
        return alpha, (2 * alpha**2 - 1) / (alpha - 1), gamma

    def init_server(self, x0: Vec) -> ModelPair:
        return ModelPair(x0, x0)

    def broadcast(self, server: ModelPair) -> ModelPair:
        return server

    def local(self, down: ModelPair, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[ModelPair, Any, Info]:
        alpha, beta, gamma = self.parameters()

        def step(state: ModelPair, z: Any, k: jax.Array) -> ModelPair:
            w_md = state.w / beta + (1 - 1 / beta) * state.w_ag
            gradient = oracle.grad(w_md, z)
            w = (1 - 1 / alpha) * state.w + w_md / alpha - gamma * gradient
            return ModelPair(w, w_md - self.step_size * gradient)

        end = oracle.walk(step, down, self.num_local_steps, key, iterate=lambda state: state.w_ag)
        return end, memory, {"drift": norm(end.w_ag - down.w_ag)}

    def aggregate(self, server: ModelPair, up: ModelPair, context: Context) -> ModelPair:
        return up

    def model(self, server: ModelPair) -> Vec:
        return server.w_ag
