"""CE-LSGD and CE-LGD: an estimate of the gradient from everyone, then local steps on one client.

Thesis chapter 6, Algorithm 1 and Theorems 14 and 16. An iteration is two exchanges: all clients correct the server's
estimate v, on K batches each (recursive_estimate.py); one client drawn at random walks K steps from it
(one_client_walks.py). The very first iteration takes one step, from a batch of its own size.
Paper to code: eta -> step_size; P = K -> num_local_steps; beta -> momentum; b -> the federation's batch size; b_0 ->
first_batches, in batches (left out: K, as in figure 6.2); first = "exact" asks for all data once instead. For the
estimate the thesis prints a batch of Q samples; its proof uses K b, and so does this.
With unequal weights the estimate is the weighted mean, and the client that walks is still drawn uniformly.
CE-LGD has exact gradients and beta = 1, so that v is the gradient at x.
"""

from typing import Any

import jax

from sojourn.algorithms.base import Exchange
from sojourn.algorithms.one_client_walks import OneClientWalks
from sojourn.algorithms.recursive_estimate import StormEstimate
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class CELSGD(StormEstimate, OneClientWalks):
    """Variance-reduced local steps on one client at a time: few rounds where clients are alike in curvature."""

    def opening(self) -> tuple[Exchange, ...]:
        return self.begin(), self.walk(1)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.estimate(), self.walk(self.num_local_steps)


class CELGD(OneClientWalks):
    """CE-LSGD with exact gradients."""

    def forgetting(self) -> Any:
        return 1.0

    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        return oracle.full_grad(x)

    def local_grad(self, oracle: Oracle, x: Vec, z: Any) -> Vec:
        return oracle.full_grad(x)

    def opening(self) -> tuple[Exchange, ...]:
        return self.begin(), self.walk(1)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.begin(), self.walk(self.num_local_steps)
