"""Minibatch SARAH: a recursive gradient estimate that begins anew with a heavy batch from time to time.

Nguyen et al., ICML 2017 (a baseline of thesis figure 6.3, which cites it without a rule). Between restarts the estimate
is corrected by differences only: v <- v + mean of g(x; z) - g(x before; z), then x <- x - eta v. The recursion is the
original's; there the outer loop also restarts at an iterate drawn at random, here it goes on from the last, as usual in
practice.
Paper to code: eta -> step_size; K -> num_local_steps (batches per client and round); the outer loop's length ->
restart_every, in rounds; its gradient -> heavy_batches, in batches (left out: the exact gradient).
"""

from typing import Any

import jax

from sojourn.algorithms.base import Exchange
from sojourn.algorithms.recursive_estimate import RecursiveEstimate, then_step
from sojourn.core.options import count
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class MBSARAH(RecursiveEstimate):
    """Large batches with a recursive estimate and heavy restarts."""

    restart_every: int | None = count(20, symbol="q", optional=True)
    heavy_batches: int | None = count(None, symbol="b_max", optional=True)

    def forgetting(self) -> Any:
        return 0.0

    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        return oracle.full_grad(x) if self.heavy_batches is None else oracle.mean_grad(x, key, self.heavy_batches)

    def reopens_every(self) -> int:
        return self.restart_every or 0

    def opening(self) -> tuple[Exchange, ...]:
        return (then_step(self.begin(), self.step_size),)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (then_step(self.estimate(), self.step_size),)
