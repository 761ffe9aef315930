"""FedProx: local SGD on the client's loss plus a pull towards the server's model, with uneven amounts of local work.

Li et al., MLSys 2020, Algorithm 2, with the inexact local solver taken to be gradient steps, as in the authors' runs.
Paper to code: mu -> proximal_weight; local problem F_m(y) + (mu/2) ||y - x||^2. `min_local_steps` below
`num_local_steps` lets every client do a uniformly drawn number of steps between the two: the paper's stragglers, whose
partial work is kept.
"""

from typing import Any, ClassVar

import jax

from sojourn.algorithms.base import Algorithm, Context, Info, ModelState
from sojourn.algorithms.descent import check_amounts, descend_pulled_back
from sojourn.core.options import count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class FedProx(Algorithm):
    """Proximal local problems; clients may do different amounts of work."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")
    proximal_weight: Any = real(0.01, symbol="mu", low=0.0)
    min_local_steps: int | None = count(None, optional=True)

    tunable: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_amounts(self)

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend_pulled_back(self, oracle, down, key)
        return y - down, memory, {"drift": norm(y - down)}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(server.x + up)
