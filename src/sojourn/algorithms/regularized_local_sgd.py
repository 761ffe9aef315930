"""The regularized reduction: local SGD on F_m(x) + (lambda/2) ||x - x0||^2, for convex objectives.

Thesis Theorem 12 and Lemma 33: strong convexity is bought with a bias; the answer is the mean of the ghost iterates,
weighted by (1 - eta lambda/2)^(T-1-t). Paper to code: eta -> step_size, K -> num_local_steps, lambda = mu_reg ->
regularization. The theorem's lambda, max{(2/(eta K R)) ln(2 eta H K R), sqrt(2 Phi')/B}, needs the run's R and facts.
Smoothness becomes H + lambda, which the text ignores: keep eta <= 1/(4H).
Clients remember x0, the model of the first round, so it is sent once and then known; everyone must take part.
"""

from typing import Any

import equinox as eqx
import jax

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Known
from sojourn.algorithms.descent import IterateSum, closing_with, descend_and_sum
from sojourn.core.options import count, positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class ServerState(eqx.Module):
    x: Vec
    x0: Vec
    average: Vec


class Down(eqx.Module):
    x: Vec
    x0: Known


class RegularizedLocalSGD(Algorithm):
    """Local SGD on a regularised objective, with an exponentially weighted answer."""

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")
    regularization: Any = positive(0.01, symbol="mu_reg")

    def needs_everyone(self) -> bool:
        return True

    def init_server(self, x0: Vec) -> ServerState:
        return ServerState(x0, x0, x0)

    def init_client(self, x0: Vec) -> IterateSum:
        return IterateSum.empty(x0)

    def broadcast(self, server: ServerState) -> Down:
        return Down(server.x, Known(server.x0))

    def local(self, down: Down, memory: IterateSum, oracle: Oracle, key: jax.Array) -> tuple[Vec, IterateSum, Info]:
        anchor = down.x0.content
        decay = 1 - self.step_size * self.regularization / 2
        y, memory = descend_and_sum(
            oracle, down.x, self.step_size, self.num_local_steps, key, memory, decay,
            lambda gradient, y: gradient + self.regularization * (y - anchor),
        )  # fmt: skip
        return y - down.x, memory, {"drift": norm(y - down.x)}

    def aggregate(self, server: ServerState, up: Vec, context: Context) -> ServerState:
        return ServerState(server.x + up, server.x0, server.average)

    def closing(self) -> tuple[Exchange, ...]:
        return (closing_with(self._take_sum),)

    def answer(self, server: ServerState) -> Vec:
        return server.average

    def _take_sum(self, server: ServerState, up: IterateSum, context: Context) -> ServerState:
        return ServerState(server.x, server.x0, up.mean(otherwise=server.x))
