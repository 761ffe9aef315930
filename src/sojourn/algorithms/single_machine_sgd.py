"""Single-machine SGD: client 0 works alone; nothing is ever sent.

Thesis section 3.1. The other clients only matter in that the objective is the average over all of them: on clients that
differ the error may stay of the order of H B^2 (equation 3.8).
Paper to code: eta -> step_size, K -> num_local_steps (steps per round, so that T = K R).
"""

from typing import Any, ClassVar

import jax

from sojourn.algorithms.base import Algorithm, Context, Info, Known, ModelState, Who
from sojourn.algorithms.descent import descend
from sojourn.core.options import count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class SingleMachineSGD(Algorithm):
    """One client alone: the baseline without communication."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")

    who: ClassVar[Who] = Who.FIRST
    sends_models: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def broadcast(self, server: ModelState) -> Known:
        return Known(server.x)  # server and client are one machine: the model does not travel

    def local(self, down: Known, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Known, Any, Info]:
        y = descend(oracle, down.content, self.step_size, self.num_local_steps, key)
        return Known(y), memory, {"drift": norm(y - down.content)}

    def aggregate(self, server: ModelState, up: Known, context: Context) -> ModelState:
        return ModelState(up.content)
