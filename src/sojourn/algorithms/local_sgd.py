"""Local SGD: clients take gradient steps on their own, the server moves by the mean of their displacements.

Thesis section 2.4, equations 2.4 and 2.5 (the gradient is at the client's own iterate; the print drops its index).
Paper to code: eta -> step_size, beta -> outer_step_size, K -> num_local_steps, R -> the run's rounds.

`output` names the iterate a theorem speaks of: the last server model, or a mean of the ghost iterates x_t (the mean
over clients of their iterates before step t) with weights w_t proportional to rho^(R-1-floor(t/K)) a^(K-1-(t mod K)):
uniform: a = rho = 1; exp: a = 1 - eta mu/2, rho = a^K (Lemma 32); coupled: a = 1 - eta mu, rho = rho_4 (Lemma 41).
Clients keep the sum of their own iterates and send it once, in the closing exchange.

`grad_scale` multiplies every gradient, which is the same as multiplying eta. It is for step sizes copied from a paper
that scales its gradients: Deng and Mahdavi's Algorithm 1 prints G_i = n grad l for one of a client's n samples
(grad_scale = n), where its text and proofs need G_i = grad l (1, the default). Never n together with a step size from
elsewhere.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Context, Exchange, Info
from sojourn.algorithms.descent import IterateSum, closing_with, descend, descend_and_sum
from sojourn.core.errors import SojournError
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class ServerState(eqx.Module):
    x: Vec
    average: Vec | None = None  # the output, once the clients have sent their sums


class LocalSGD(Algorithm):
    """Local (S)GD with inner and outer steps."""

    plain_descent: ClassVar[bool] = True
    tunable: ClassVar[bool] = True

    step_size: Any = positive(symbol="eta")
    num_local_steps: int = count(10, symbol="K")
    outer_step_size: Any = positive(1.0, symbol="beta")
    grad_scale: Any = positive(1.0, symbol="c")
    output: str = choice("last", ("last", "uniform", "exp", "coupled"))
    strong_convexity: Any = real(0.0, symbol="mu", low=0.0)  # this and the next two only weigh the output
    smoothness: Any = real(0.0, symbol="H", low=0.0)
    hessian_heterogeneity: Any = real(0.0, symbol="tau", low=0.0)

    def __check_init__(self) -> None:
        known = isinstance(self.strong_convexity, jax.core.Tracer) or bool(jnp.all(self.strong_convexity > 0))
        if self.output in ("exp", "coupled") and not known:
            raise SojournError(f'output = "{self.output}" weighs by strong_convexity, which is 0; give it.')

    def needs_everyone(self) -> bool:
        return self.output in ("exp", "coupled")  # their weights decay from round to round, not from visit to visit

    def init_server(self, x0: Vec) -> ServerState:
        return ServerState(x0, None if self.output == "last" else x0)

    def init_client(self, x0: Vec) -> Any:
        return () if self.output == "last" else IterateSum.empty(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        if self.output == "last":
            y = descend(oracle, down, self._step(), self.num_local_steps, key)
        else:
            step_decay, round_decay = self._decays()
            # The walk decays the sum K times by a; what a round should take away is rho in all.
            older = memory.decayed(round_decay)
            y, newer = descend_and_sum(
                oracle, down, self._step(), self.num_local_steps, key, IterateSum.empty(down), step_decay
            )
            memory = IterateSum(older.total + newer.total, older.weight + newer.weight)
        return y - down, memory, {"drift": norm(y - down)}

    def aggregate(self, server: ServerState, up: Vec, context: Context) -> ServerState:
        return ServerState(server.x + self.outer_step_size * up, server.average)

    def closing(self) -> tuple[Exchange, ...]:
        if self.output == "last":
            return ()
        return (closing_with(self._take_sum),)

    def answer(self, server: ServerState) -> Vec:
        return server.x if server.average is None else server.average

    def _take_sum(self, server: ServerState, up: IterateSum, context: Context) -> ServerState:
        return ServerState(server.x, up.mean(otherwise=server.x))

    def _step(self) -> Any:
        return self.grad_scale * self.step_size  # one product of numbers per visit, instead of one per gradient

    def _decays(self) -> tuple[Any, Any]:
        eta, mu, steps = self._step(), self.strong_convexity, self.num_local_steps
        if self.output == "uniform":
            return 1.0, 1.0
        if self.output == "exp":
            return 1 - eta * mu / 2, (1 - eta * mu / 2) ** steps
        kept = (1 - eta * mu) ** steps
        excess = 8 * eta**2 * self.smoothness * self.hessian_heterogeneity**2 * steps**2 / mu
        return 1 - eta * mu, kept + (1 - kept) * excess * (1 - eta * mu) ** (steps - 2)
