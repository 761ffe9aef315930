"""Minibatch STORM: momentum-based variance reduction at the server, without local steps.

Thesis Theorem 27, after Cutkosky and Orabona, NeurIPS 2019. It is CE-LSGD whose clients take one local step.
Paper to code: beta -> momentum; eta -> step_size; K -> num_local_steps (batches per client and round); b_0 ->
first_batches, in batches (left out: K).
"""

from typing import Any

import jax

from sojourn.algorithms.base import Exchange
from sojourn.algorithms.recursive_estimate import RecursiveEstimate, then_step
from sojourn.core.options import count, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class MBSTORM(RecursiveEstimate):
    """Large batches with momentum-based variance reduction: the centralized optimum."""

    momentum: Any = real(0.3, symbol="beta", low=0.0, high=1.0)
    first_batches: int | None = count(None, symbol="b_0", optional=True)

    def forgetting(self) -> Any:
        return self.momentum

    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        return oracle.mean_grad(x, key, self.first_batches or self.num_local_steps)

    def opening(self) -> tuple[Exchange, ...]:
        return (then_step(self.begin(), self.step_size),)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (then_step(self.estimate(), self.step_size),)
