"""FedAvg: local SGD whose server averages the clients' models by their numbers of samples.

McMahan et al. 2017, Algorithm 1; Song et al., Algorithm 1. With a sampled cohort the weights are N_k over the sum of
the cohort's N_k (the paper gives no formula for this case).
Paper to code: eta -> step_size, r -> num_local_steps, N_k -> the federation's sizes.
"""

from typing import Any, ClassVar

import jax

from sojourn.algorithms.base import Algorithm, Context, Info, ModelState
from sojourn.algorithms.descent import descend
from sojourn.core.options import count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class FedAvg(Algorithm):
    """Federated averaging with data-size weights."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="r")

    weighting: ClassVar[str] = "size"
    plain_descent: ClassVar[bool] = True
    tunable: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend(oracle, down, self.step_size, self.num_local_steps, key)
        return y - down, memory, {"drift": norm(y - down)}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(server.x + up)
