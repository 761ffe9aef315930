"""Bandit methods: gradients estimated from one value (FedPOSGD) or two (FedOSGD), and the same on each machine alone.

Thesis, chapter 7, Algorithms 2 and 3. eta -> step_size, delta -> exploration, u -> direction, w -> the play's centre.
Algorithm 2 projects for the play only, the iterate moves on unprojected. Departures, by docs/departures.md: step sizes
and delta are the corrected ones. With delta = B, as printed, plays of algorithm 2 reach norm 2B, outside the ball, so
costs must be defined there; the history shows their norms. Where delta is not B the step is tuned with
s = d G (1 + B/delta), as equation 7.4 has it; theorem 19's bound is for delta = B alone. Constrained plays are centred
in the ball of radius B - delta, with delta = min(B/2, B sqrt(d)/(M T)^(1/4)) unless given, which balances what the
smaller ball loses, G delta, with the noise, (B/delta) G B d/sqrt(M T); that rate is no longer theorem 19's.

The baselines are the same rules without communication: Flaxman et al.'s estimate, and Shamir's.
"""

import abc
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError
from sojourn.core.options import positive
from sojourn.online.method import Feedback, Game, Method, constrained_field, filled, need, on_sphere, onto_ball
from sojourn.theory.online import (
    corollary_1_step_size,
    theorem_19_step_size,
    theorem_20_exploration,
    theorem_21_step_size,
    two_point_step_size,
)


class _Bandit(Method):
    step_size: Any = positive(None, symbol="eta", optional=True)
    exploration: Any = positive(None, symbol="delta", optional=True)
    constrained: bool = constrained_field()

    def tuned(self, game: Game) -> Self:
        seen = game if self.collaborative else game.alone()
        delta = self.exploration if self.exploration is not None else self.distance(seen)
        if self.constrained and float(delta) >= game.radius:
            raise SojournError(
                f"exploration = {float(delta):g} leaves no room in a ball of radius {game.radius:g}; constrained plays "
                "need a smaller one."
            )
        eta = self.step_size if self.step_size is not None else self.step(seen, delta)
        return filled(self, step_size=eta, exploration=delta)

    @abc.abstractmethod
    def distance(self, game: Game) -> Any:
        """delta by theory."""

    @abc.abstractmethod
    def step(self, game: Game, delta: Any) -> Any:
        """eta by theory, for plays at this distance."""

    def width(self, dimension: int) -> int:
        return dimension

    def centre(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """The middle of the plays."""
        return onto_ball(x, radius - self.exploration) if self.constrained else x


class _OnePoint(_Bandit):
    """Plays w + delta u and takes g = (d/delta) f(w + delta u) u."""

    feedback: ClassVar[Feedback] = "one value"
    linear_costs: ClassVar[bool] = True

    def distance(self, game: Game) -> Any:
        if not self.constrained:
            return game.radius
        return game.radius * min(0.5, game.dimension**0.5 / (game.num_machines * game.steps) ** 0.25)

    def step(self, game: Game, delta: Any) -> Any:
        need(self, game, "lipschitz")
        apart = need(self, game, "heterogeneity") if game.num_machines > 1 and game.num_local_steps > 1 else 0.0
        return theorem_19_step_size(**game.numbers(), cost_heterogeneity=apart, shrinking=game.radius / delta)

    def centre(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        return super().centre(x, radius) if self.constrained else onto_ball(x, radius)

    def query(self, x: jax.Array, radius: jax.Array, draws: jax.Array) -> tuple[jax.Array, Any]:
        direction = on_sphere(draws)
        return (self.centre(x, radius) + self.exploration * direction)[None], direction

    def estimate(self, aim: Any, answer: jax.Array) -> jax.Array:
        return aim.shape[0] / self.exploration * answer[0] * aim


class FedPOSGD(_OnePoint):
    """Bandit descent from one value, averaged every K steps (thesis, chapter 7, algorithm 2)."""

    collaborative: ClassVar[bool] = True


class OnePointOGD(_OnePoint):
    """Bandit descent from one value on every machine alone."""

    collaborative: ClassVar[bool] = False


class _TwoPoint(_Bandit):
    """Plays x + delta u and x - delta u and takes g = d (f(x + delta u) - f(x - delta u))/(2 delta) u."""

    feedback: ClassVar[Feedback] = "two values"

    def distance(self, game: Game) -> Any:
        numbers = {name: value for name, value in game.numbers().items() if name != "lipschitz"}
        delta = theorem_20_exploration(**numbers)
        return min(delta, 0.5 * game.radius) if self.constrained else delta

    def step(self, game: Game, delta: Any) -> Any:
        """Corollary 1's for linear costs, theorem 21's for smooth ones, and theorem 20's, sharpened, for others."""
        need(self, game, "lipschitz")
        known, numbers = game.known, game.numbers()
        if known.smoothness is None or known.heterogeneity is None:
            return two_point_step_size(**numbers)
        if known.smoothness == 0:
            return corollary_1_step_size(**numbers, cost_heterogeneity=known.heterogeneity)
        return theorem_21_step_size(
            **numbers, cost_heterogeneity=known.heterogeneity, smoothness=known.smoothness,
            optimal_value=known.optimal_value,
        )  # fmt: skip

    def query(self, x: jax.Array, radius: jax.Array, draws: jax.Array) -> tuple[jax.Array, Any]:
        direction = on_sphere(draws)
        middle = self.centre(x, radius)
        return jnp.stack([middle + self.exploration * direction, middle - self.exploration * direction]), direction

    def estimate(self, aim: Any, answer: jax.Array) -> jax.Array:
        return aim.shape[0] * (answer[0] - answer[1]) / (2 * self.exploration) * aim


class FedOSGD(_TwoPoint):
    """Bandit descent from two values, averaged every K steps (thesis, chapter 7, algorithm 3)."""

    collaborative: ClassVar[bool] = True


class TwoPointOGD(_TwoPoint):
    """Bandit descent from two values on every machine alone."""

    collaborative: ClassVar[bool] = False
