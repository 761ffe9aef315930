"""MimeMVR and its lite form: local steps that mimic centralized momentum-based variance reduction.

Karimireddy et al., "Mime", NeurIPS 2021, with the optimizer MVR. The server keeps m, an estimate of the gradient at its
model before, x'. Clients hold it fixed and step along a g + (1 - a) (m + g_m(y; z) - g_m(x'; z)), where g is their own
gradient g_m(y; z) in the lite form and g_m(y; z) - g_m(x; z) + c in MimeMVR, c being the mean of all exact gradients at
x. Then x <- mean of y and m <- c + (1 - a) (m - c'), with c' the mean at x'.
The framework (fixed statistics, SVRG correction, exact gradients for the server's update) is the paper's; that MVR's
step is put into it in this manner is a reconstruction, which the original could not be found to confirm. The first
estimate is the exact gradient at x_0.
Paper to code: eta -> step_size; K -> num_local_steps; a -> momentum.
"""

from typing import Any

import equinox as eqx
import jax

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Known
from sojourn.core.options import count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class Mimicked(eqx.Module):
    """The server's state: its model and the one before, the estimate at that one, the mean gradients at both."""

    x: Vec
    x_before: Vec
    m: Vec
    c: Vec
    c_before: Vec


class _Mime(Algorithm):
    """What both forms share."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")
    momentum: Any = real(0.3, symbol="a", low=0.0, high=1.0)

    def init_server(self, x0: Vec) -> Mimicked:
        return Mimicked(x0, x0, *[x0.zeros()] * 3)

    def begin(self) -> Exchange:
        """The exact gradient at the first model stands for all that came before."""

        def local(x: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
            return oracle.full_grad(x), memory, {}

        def aggregate(server: Mimicked, c: Vec, context: Context) -> Mimicked:
            return Mimicked(server.x, server.x, c, c, c)

        return Exchange(self.model, local, aggregate, purpose="gradients")

    def opening(self) -> tuple[Exchange, ...]:
        return self.begin(), self.exchanges()[-1]

    def moved(self, server: Mimicked, y: Vec, c: Vec, c_before: Vec) -> Mimicked:
        m = c + (1 - self.momentum) * (server.m - c_before)
        return Mimicked(y, server.x, m, c, c_before)


class MimeLite(_Mime):
    """MimeMVR without the control variate: one trip per round."""

    def exchanges(self) -> tuple[Exchange, ...]:
        origin = lambda down: (down[0], down[0].zeros(), down[0].zeros())  # noqa: E731
        return (Exchange(lambda s: (s.x, s.x_before, s.m), self.local, self.aggregate, origin=origin),)

    def local(self, down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        x, x_before, m = down
        kept = 1 - self.momentum

        def step(y: Vec, z: Any, k: jax.Array) -> Vec:
            return y - self.step_size * (oracle.grad(y, z) + kept * (m - oracle.grad(x_before, z)))

        y = oracle.walk(step, x, self.num_local_steps, key)
        return (y, oracle.full_grad(x), oracle.full_grad(x_before)), memory, {"drift": norm(y - x)}

    def aggregate(self, server: Mimicked, up: tuple[Vec, Vec, Vec], context: Context) -> Mimicked:
        return self.moved(server, *up)


class MimeMVR(_Mime):
    """Local steps that mimic centralized variance reduction: two trips per round."""

    def exchanges(self) -> tuple[Exchange, ...]:
        gradients = Exchange(lambda s: (s.x, s.x_before), self.both_gradients, self.keep_gradients, purpose="gradients")
        # x and the model before were sent in the first exchange
        sent = lambda s: (Known(s.x), Known(s.x_before), s.m, s.c)  # noqa: E731
        walk = Exchange(sent, self.local, self.aggregate, origin=lambda down: down[0].content)
        return gradients, walk

    def both_gradients(
        self, down: tuple[Vec, Vec], memory: Any, oracle: Oracle, key: jax.Array
    ) -> tuple[tuple[Vec, Vec], Any, Info]:
        return (oracle.full_grad(down[0]), oracle.full_grad(down[1])), memory, {}

    def keep_gradients(self, server: Mimicked, up: tuple[Vec, Vec], context: Context) -> Mimicked:
        return Mimicked(server.x, server.x_before, server.m, *up)

    def local(self, down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        x, x_before, m, c = down[0].content, down[1].content, down[2], down[3]
        a = self.momentum

        def step(y: Vec, z: Any, k: jax.Array) -> Vec:
            g = oracle.grad(y, z)
            corrected = a * (g - oracle.grad(x, z) + c) + (1 - a) * (m + g - oracle.grad(x_before, z))
            return y - self.step_size * corrected

        y = oracle.walk(step, x, self.num_local_steps, key)
        return y, memory, {"drift": norm(y - x)}

    def aggregate(self, server: Mimicked, up: Vec, context: Context) -> Mimicked:
        return self.moved(server, up, server.c, server.c_before)
