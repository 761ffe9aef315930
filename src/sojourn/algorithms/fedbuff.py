"""FedBuff: clients work without waiting for each other, and the server steps once it has collected a few updates.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022. A client that was sent x_tau
answers y - x_tau after Q local steps; the server adds s(staleness) times it to a buffer, and after `buffer_size` of
them makes x + eta_g (sum / buffer_size) its new model. Staleness counts versions of the model, so it stays 0 while a
buffer fills. Paper to code: K -> buffer_size; eta_l -> step_size; eta_g -> server_step_size; s = (1 + staleness)^-1/2.
With a buffer of one it is asynchronous FedAvg: every delayed update is applied as it comes.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.algorithms.descent import descend
from sojourn.algorithms.staleness import KINDS, staleness_weight
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class Buffer(eqx.Module):
    """The model, and what has been collected since it was made."""

    x: Vec
    total: Vec
    number: jax.Array


class FedBuff(Algorithm):
    """Asynchronous with a buffer: a step of the server for every few updates that arrive."""

    step_size: Any = positive(symbol="eta_l")
    num_local_steps: int = count(10, symbol="Q")
    buffer_size: int = count(10, symbol="K")
    server_step_size: Any = positive(1.0, symbol="eta_g")
    staleness_weight: str = choice("polynomial", KINDS)
    exponent: Any = real(0.5, symbol="a of the polynomial", low=0.0)
    slope: Any = real(10.0, symbol="a of the hinge", low=0.0)
    threshold: Any = real(4.0, symbol="b of the hinge", low=0.0)

    asynchronous: ClassVar[bool] = True

    def uploads_per_update(self) -> int:
        return self.buffer_size

    def init_server(self, x0: Vec) -> Buffer:
        return Buffer(x0, x0.zeros(), jnp.zeros((), jnp.int32))

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend(oracle, down, self.step_size, self.num_local_steps, key)
        return y - down, memory, {"drift": norm(y - down)}

    def aggregate(self, server: Buffer, up: Vec, context: Context) -> Buffer:
        total = server.total + self._weight(context) * up
        full = server.number + 1 == self.buffer_size
        moved = server.x + (self.server_step_size / self.buffer_size) * total
        either = lambda a, b: Vec(jax.tree.map(lambda p, q: jnp.where(full, p, q), a.tree, b.tree))  # noqa: E731
        return Buffer(either(moved, server.x), either(total.zeros(), total), jnp.where(full, 0, server.number + 1))

    def told(self, context: Context) -> Info:
        return {"mixing_weight": self._weight(context) * self.server_step_size / self.buffer_size}

    def _weight(self, context: Context) -> jax.Array:
        return staleness_weight(self.staleness_weight, context.staleness, self.exponent, self.slope, self.threshold)
