"""Minibatch STORM: momentum-based variance reduction at the server, without local steps.

Thesis Theorem 27, after Cutkosky and Orabona, NeurIPS 2019. It is CE-LSGD whose clients take one local step.
Paper to code: beta -> momentum; eta -> step_size; K -> num_local_steps (batches per client and round); b_0 ->
first_batches, in batches (left out: K); first = "exact" has clients answer with all their data, which costs less
where b_0 is more than they have.
"""

from sojourn.algorithms.base import Exchange
from sojourn.algorithms.recursive_estimate import StormEstimate, then_step


class MBSTORM(StormEstimate):
    """Large batches with momentum-based variance reduction: the centralized optimum."""

    def opening(self) -> tuple[Exchange, ...]:
        return (then_step(self.begin(), self.step_size),)

    def exchanges(self) -> tuple[Exchange, ...]:
        return (then_step(self.estimate(), self.step_size),)
