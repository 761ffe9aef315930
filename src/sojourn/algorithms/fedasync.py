"""FedAsync: the server mixes every model that arrives into its own, the less the older its start.

Xie, Koyejo and Gupta, "Asynchronous federated optimization", Algorithm 1. A client that was sent x_tau takes H steps
    y = y - gamma (grad f(y; z) + rho (y - x_tau)),
and the server makes x_t = (1 - alpha_t) x_{t-1} + alpha_t y with alpha_t = alpha s((t - 1) - tau).
Paper to code: gamma -> step_size; alpha -> mixing; H -> num_local_steps (H_min -> min_local_steps: a task then draws
its number between the two, and clocks count the larger); rho -> proximal_weight; s -> staleness_weight, see
`staleness`.

The text counts staleness as t - tau and wants s(0) = 1, but a model trained from the newest version has t - tau = 1;
here it is (t - 1) - tau. Figure 4 begins with alpha = 0.9, which hints at a decay that is not given: `halve_at` halves
it once, at that upload.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Info, ModelState
from sojourn.algorithms.descent import check_amounts, descend_pulled_back
from sojourn.algorithms.staleness import KINDS, staleness_weight
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class FedAsync(Algorithm):
    """Asynchronous: every arriving model is mixed in at once, weighted by how old its start is."""

    step_size: Any = positive(symbol="gamma")
    num_local_steps: int = count(10, symbol="H")
    mixing: Any = real(0.6, symbol="alpha", low=0.0, high=1.0, open_low=True)
    proximal_weight: Any = real(0.005, symbol="rho", low=0.0)
    staleness_weight: str = choice("constant", KINDS)
    exponent: Any = real(0.5, symbol="a of the polynomial", low=0.0)
    slope: Any = real(10.0, symbol="a of the hinge", low=0.0)
    threshold: Any = real(4.0, symbol="b of the hinge", low=0.0)
    halve_at: int | None = count(None, optional=True)
    min_local_steps: int | None = count(None, optional=True)

    asynchronous: ClassVar[bool] = True
    sends_models: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_amounts(self)

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend_pulled_back(self, oracle, down, key)
        return y, memory, {"drift": norm(y - down)}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        weight = self._weight(context)
        return ModelState((1 - weight) * server.x + weight * up)

    def told(self, context: Context) -> Info:
        return {"mixing_weight": self._weight(context)}

    def _weight(self, context: Context) -> jax.Array:
        weight = self.mixing * staleness_weight(
            self.staleness_weight, context.staleness, self.exponent, self.slope, self.threshold
        )
        return weight if self.halve_at is None else jnp.where(context.round >= self.halve_at, weight / 2, weight)
