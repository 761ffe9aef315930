"""AC-SA: accelerated minibatch SGD, and Local AC-SA, where every client accelerates on its own between averages.

Ghadimi and Lan 2012 (AC-SA); the thesis cites it for equation 3.4. Local AC-SA: Woodworth et al. 2020, equation 3.3.
Paper to code: L (step parameter) -> smoothness, mu -> strong_convexity, K -> num_local_steps; x, x_ag -> the state.
In step t = 1, 2, …: alpha = 2/(t+1), gamma = 4 L/(t(t+1)). The answer is x_ag. With mu > 0 it is the one-stage method.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.core.options import count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class AcceleratedState(eqx.Module):
    x: Vec
    x_ag: Vec
    t: jax.Array  # steps taken


def _middle(state: AcceleratedState, smoothness: Any, mu: Any) -> Vec:
    """x_md, where the next gradient is taken."""
    alpha, gamma = _weights(state.t, smoothness)
    towards_ag = (1 - alpha) * (mu + gamma) * state.x_ag
    towards_x = alpha * ((1 - alpha) * mu + gamma) * state.x
    return (towards_ag + towards_x) / (gamma + (1 - alpha**2) * mu)


def _next(state: AcceleratedState, x_md: Vec, gradient: Vec, smoothness: Any, mu: Any) -> AcceleratedState:
    alpha, gamma = _weights(state.t, smoothness)
    x = (alpha * mu * x_md + ((1 - alpha) * mu + gamma) * state.x - alpha * gradient) / (mu + gamma)
    return AcceleratedState(x, alpha * x + (1 - alpha) * state.x_ag, state.t + 1)


def _weights(steps: jax.Array, smoothness: Any) -> tuple[jax.Array, jax.Array]:
    t = (steps + 1).astype(jnp.result_type(float))
    return 2 / (t + 1), 4 * smoothness / (t * (t + 1))


class ACSA(Algorithm):
    """Accelerated minibatch SGD."""

    smoothness: Any = positive(symbol="L")
    strong_convexity: Any = real(0.0, symbol="mu", low=0.0)
    num_local_steps: int = count(10, symbol="K")

    def init_server(self, x0: Vec) -> AcceleratedState:
        return AcceleratedState(x0, x0, jnp.zeros((), jnp.int32))

    def broadcast(self, server: AcceleratedState) -> Vec:
        return _middle(server, self.smoothness, self.strong_convexity)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return oracle.grad(down, oracle.draw(key, self.num_local_steps)), memory, {}

    def aggregate(self, server: AcceleratedState, up: Vec, context: Context) -> AcceleratedState:
        x_md = _middle(server, self.smoothness, self.strong_convexity)
        return _next(server, x_md, up, self.smoothness, self.strong_convexity)

    def model(self, server: AcceleratedState) -> Vec:
        return server.x_ag


class ModelPair(eqx.Module):
    """What Local AC-SA sends both ways."""

    x: Vec
    x_ag: Vec


class LocalACSA(Algorithm):
    """AC-SA on every client; x and x_ag are averaged at the end of a round."""

    smoothness: Any = positive(symbol="L")
    strong_convexity: Any = real(0.0, symbol="mu", low=0.0)
    num_local_steps: int = count(10, symbol="K")

    sends_models: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> AcceleratedState:
        return AcceleratedState(x0, x0, jnp.zeros((), jnp.int32))

    def broadcast(self, server: AcceleratedState) -> AcceleratedState:
        return server

    def local(self, down: AcceleratedState, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[ModelPair, Any, Info]:
        def step(state: AcceleratedState, z: Any, k: jax.Array) -> AcceleratedState:
            x_md = _middle(state, self.smoothness, self.strong_convexity)
            return _next(state, x_md, oracle.grad(x_md, z), self.smoothness, self.strong_convexity)

        end = oracle.walk(step, down, self.num_local_steps, key, iterate=lambda state: state.x_ag)
        return ModelPair(end.x, end.x_ag), memory, {"drift": norm(end.x_ag - down.x_ag)}

    def unchanged(self, down: AcceleratedState) -> ModelPair:
        return ModelPair(down.x, down.x_ag)

    def aggregate(self, server: AcceleratedState, up: ModelPair, context: Context) -> AcceleratedState:
        return AcceleratedState(up.x, up.x_ag, server.t + self.num_local_steps)

    def model(self, server: AcceleratedState) -> Vec:
        return server.x_ag
