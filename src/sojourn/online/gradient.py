"""Online gradient descent with gradients: on each machine alone, and averaged every K steps.

Thesis, chapter 7, Algorithm 1 (non-collaborative OGD); FedOGD is its local-SGD form, the baseline that theorems 17 and
18 say is not better. eta -> step_size. Plays are x itself, unprojected as printed; constrained: its projection on the
ball, with x moving on unprojected (lazily).
"""

from typing import Any, ClassVar, Self

import jax

from sojourn.core.options import positive
from sojourn.online.method import Feedback, Game, Method, constrained_field, filled, need, onto_ball
from sojourn.theory.online import theorem_17_step_size, theorem_18_step_size


class _GradientDescent(Method):
    feedback: ClassVar[Feedback] = "gradient"

    step_size: Any = positive(None, symbol="eta", optional=True)
    constrained: bool = constrained_field()

    def tuned(self, game: Game) -> Self:
        """Theorem 17's step where G is known, theorem 18's where H and F_* are."""
        if self.step_size is not None:
            return self
        known = game.known
        if known.lipschitz is None and known.smoothness and known.optimal_value is not None:
            eta = theorem_18_step_size(
                steps=game.steps, smoothness=known.smoothness, optimal_value=known.optimal_value, radius=game.radius
            )
        else:
            G = need(self, game, "lipschitz")
            eta = theorem_17_step_size(steps=game.steps, lipschitz=G, radius=game.radius)
        return filled(self, step_size=eta)

    def query(self, x: jax.Array, radius: jax.Array, draws: jax.Array) -> tuple[jax.Array, Any]:
        return (onto_ball(x, radius) if self.constrained else x)[None], ()

    def estimate(self, aim: Any, answer: jax.Array) -> jax.Array:
        return answer


class OGD(_GradientDescent):
    """Online gradient descent on every machine alone (thesis, chapter 7, algorithm 1)."""

    collaborative: ClassVar[bool] = False


class FedOGD(_GradientDescent):
    """Online gradient descent whose iterates are averaged every K steps."""

    collaborative: ClassVar[bool] = True
