"""Minibatch SGD: one server step per round along the mean of all gradients taken at the server's model.

Thesis equation 2.6. The thesis's step beta multiplies the *sum* over the K gradients of a client; `step_size` here is
the step on their mean, beta K, which is the one that theory bounds by 1/(2H).
Paper to code: beta K -> step_size; K -> num_local_steps (gradients per client and round).
"""

from typing import Any

import jax

from sojourn.algorithms.base import Algorithm, Context, Info, ModelState
from sojourn.core.options import count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class MinibatchSGD(Algorithm):
    """Large-batch synchronous SGD: the baseline without local steps."""

    step_size: Any = positive(symbol="beta K")
    num_local_steps: int = count(10, symbol="K")

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return oracle.grad(down, oracle.draw(key, self.num_local_steps)), memory, {}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(server.x - self.step_size * up)
