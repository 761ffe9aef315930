"""STEM: momentum-based variance reduction in every local step, and at the server.

Khanduri et al., NeurIPS 2021, Algorithm 1. Every client keeps an estimate d of the gradient at its own model,
d <- g(x; z) + (1 - a) (d - g(x before; z)), and steps along it; every K steps models and estimates are averaged, and
the next step is taken from the two means. The rule is from memory of the paper, whose text was looked for and not
found: sure of both averages and of the server's step along the mean estimate; after averaging, the model before is here
the mean one, where a client could also use its own. The paper's steps kappa / (w + sigma^2 t)^(1/3) and its a = c eta^2
are constants here.
Paper to code: eta -> step_size; I -> num_local_steps; a -> momentum; the first estimate takes I batches at x_0.
The server keeps the means before that step, so its model is the mean less step_size times the estimate.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info
from sojourn.algorithms.recursive_estimate import recursion
from sojourn.core.options import count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class ModelAndEstimate(eqx.Module):
    """The server's state, what it sends and what a client answers."""

    x: Vec
    d: Vec


class STEM(Algorithm):
    """Variance reduction on both sides: clients average their models and their estimates."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="I")
    momentum: Any = real(0.3, symbol="a", low=0.0, high=1.0)

    sends_models: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> ModelAndEstimate:
        return ModelAndEstimate(x0, x0.zeros())

    def broadcast(self, server: ModelAndEstimate) -> ModelAndEstimate:
        return server

    def model(self, server: ModelAndEstimate) -> Vec:
        return server.x - self.step_size * server.d

    def first(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return oracle.mean_grad(down, key, self.num_local_steps), memory, {}

    def opening(self) -> tuple[Exchange, ...]:
        begin = Exchange(lambda s: s.x, self.first, lambda s, d, _: ModelAndEstimate(s.x, d), purpose="estimate")
        return begin, *self.exchanges()

    def local(
        self, down: ModelAndEstimate, memory: Any, oracle: Oracle, key: jax.Array
    ) -> tuple[ModelAndEstimate, Any, Info]:
        step = recursion(oracle.grad, self.step_size, self.momentum)
        y, d = oracle.walk(step, (down.x, down.d), self.num_local_steps, key)
        return ModelAndEstimate(y, d), memory, {"drift": norm(y - down.x)}

    def aggregate(self, server: ModelAndEstimate, up: ModelAndEstimate, context: Context) -> ModelAndEstimate:
        return up
