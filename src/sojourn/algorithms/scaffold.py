"""SCAFFOLD: local gradient steps corrected by control variates.

Karimireddy et al., ICML 2020, Algorithm 1.
Paper to code: x, c -> ServerState; c_i -> a client's memory; eta_l -> step_size; eta_g -> outer_step_size; K ->
num_local_steps. `control` is the paper's option: "I" sets c_i to the exact gradient of the client at x, "II" to the
mean of the gradients of its own steps. With everyone taking part, c is the mean of the c_i at all times.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax

from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.algorithms.descent import descend
from sojourn.core.options import choice, count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class ModelAndControl(eqx.Module):
    """The server's state, what it sends, and what a client answers (as changes)."""

    x: Vec
    c: Vec


class Scaffold(Algorithm):
    """Control variates against client drift."""

    step_size: Any = positive(symbol="eta_l")
    num_local_steps: int = count(10, symbol="K")
    outer_step_size: Any = positive(1.0, symbol="eta_g")
    control: str = choice("II", ("I", "II"))

    tunable: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> ModelAndControl:
        return ModelAndControl(x0, x0.zeros())

    def init_client(self, x0: Vec) -> Vec:
        return x0.zeros()

    def broadcast(self, server: ModelAndControl) -> ModelAndControl:
        return server

    def local(
        self, down: ModelAndControl, c_i: Vec, oracle: Oracle, key: jax.Array
    ) -> tuple[ModelAndControl, Vec, Info]:
        correction = down.c - c_i
        y = descend(oracle, down.x, self.step_size, self.num_local_steps, key, lambda g, y: g + correction)
        if self.control == "I":
            c_new = oracle.full_grad(down.x)
        else:
            c_new = (down.x - y) / (self.num_local_steps * self.step_size) - correction
        return ModelAndControl(y - down.x, c_new - c_i), c_new, {"drift": norm(y - down.x)}

    def aggregate(self, server: ModelAndControl, up: ModelAndControl, context: Context) -> ModelAndControl:
        # The paper's |S|/N; with unequal weights, the share that the cohort holds of them.
        return ModelAndControl(server.x + self.outer_step_size * up.x, server.c + context.share * up.c)
