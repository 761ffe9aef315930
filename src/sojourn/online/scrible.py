"""SCRiBLE: bandit linear optimization with a self-concordant barrier, on each machine alone.

Abernethy, Hazan and Rakhlin, COLT 2008, Algorithm 1, on the ball of radius B with the barrier R(x) = -ln(1 -
|x|^2/B^2), whose parameter is 1. The thesis only cites it. How sure: the rule (follow the regularized leader, a play at
an end of a principal axis of the Dikin ellipsoid, the estimate, eta = sqrt(ln T)/(4 d sqrt T) for costs of at most 1)
is retold from knowledge of that paper, without its text at hand; that plays stay in the ball, that the estimate is
unbiased and that x minimises eta <s, x> + R(x) is tested. eta is divided by G B, the largest cost, to free it of units.

s, the sum of past estimates, is the iterate that the protocol carries. Minimising gives x = -s/|s| r with r = (sqrt(1 +
(eta |s| B)^2) - 1)/(eta |s|); the Hessian there has the eigenvalue 2 (B^2 + r^2)/(B^2 - r^2)^2 along x and 2/(B^2 -
r^2) across. The axes across x are those of the Householder reflection that takes the unit vector of its largest
coordinate to it.
"""

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError
from sojourn.core.options import positive
from sojourn.online.method import Feedback, Game, Method, constrained_field, filled, need


class SCRiBLE(Method):
    """Bandit linear optimization with a barrier, on every machine alone (Abernethy, Hazan and Rakhlin)."""

    feedback: ClassVar[Feedback] = "one value"
    collaborative: ClassVar[bool] = False
    linear_costs: ClassVar[bool] = True

    step_size: Any = positive(None, symbol="eta", optional=True)
    constrained: bool = constrained_field()  # its plays stay in the ball either way

    def tuned(self, game: Game) -> Self:
        if self.step_size is not None:
            return self
        if game.steps < 2:
            raise SojournError("SCRiBLE's step size by theory has ln T; give at least 2 steps, or a step_size.")
        largest_cost = need(self, game, "lipschitz") * game.radius
        log = float(jnp.log(game.steps)) ** 0.5
        return filled(self, step_size=log / (4 * game.dimension * largest_cost * game.steps**0.5))

    def width(self, dimension: int) -> int:
        return 2

    def query(self, x: jax.Array, radius: jax.Array, draws: jax.Array) -> tuple[jax.Array, Any]:
        leader, room = follow(x, self.step_size, radius)
        share = jax.scipy.special.ndtr(draws[0])  # uniform on 0 .. 1
        number = jnp.minimum((share * x.shape[0]).astype(jnp.int32), x.shape[0] - 1)
        sign = jnp.where(draws[1] < 0, -1.0, 1.0)
        # room = B^2 - r^2; r^2 = B^2 - room
        along, across = jnp.sqrt(2 * (2 * radius**2 - room)) / room, jnp.sqrt(2 / room)
        scale = sign * jnp.where(number == 0, along, across)  # eps sqrt(lambda_i)
        direction = axis(leader, number)
        return (leader + direction / scale)[None], direction * scale

    def estimate(self, aim: Any, answer: jax.Array) -> jax.Array:
        return aim.shape[0] * answer[0] * aim

    def move(self, x: jax.Array, estimate: jax.Array) -> jax.Array:
        return x + estimate


def follow(total: jax.Array, step_size: Any, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The minimiser x of eta <s, x> + R(x), and B^2 - |x|^2, both without cancellation."""
    length = jnp.linalg.norm(total)
    root = 1 + jnp.sqrt(1 + (step_size * length * radius) ** 2)
    return -step_size * radius**2 / root * total, 2 * radius**2 / root


def axis(x: jax.Array, number: jax.Array) -> jax.Array:
    """The axis of this number of an orthonormal basis whose first is x/|x| up to a sign; the standard one if x = 0."""
    length = jnp.linalg.norm(x)
    toward = jnp.where(length > 0, x / jnp.where(length > 0, length, 1.0), jnp.zeros_like(x).at[0].set(1.0))
    pivot = jnp.argmax(jnp.abs(toward))
    standard = lambda i: jnp.zeros_like(x).at[i].set(1.0)  # noqa: E731
    mirror = toward + jnp.sign(toward[pivot]) * standard(pivot)  # never short
    coordinate = jnp.where(number == 0, pivot, jnp.where(number == pivot, 0, number))
    return standard(coordinate) - 2 * (mirror[coordinate] / (mirror @ mirror)) * mirror
