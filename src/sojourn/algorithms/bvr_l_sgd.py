"""BVR-L-SGD: CE-LSGD's ancestor, whose estimate begins anew with a heavy batch at every stage.

Murata and Suzuki, ICML 2021, as thesis section 6.2.1 uses it. Within a stage the estimate is corrected by differences
only; the local walk and the choice of one client are CE-LSGD's. The rule was compared with a public transcription of
the paper's; there every client walks and one end is drawn, which gives the same iterates.
Paper to code: eta -> step_size; K -> num_local_steps; b -> the federation's batch size; b_max -> heavy_batches, in
batches per client (left out: the exact gradient); T -> stage_length, in iterations.
"""

from typing import Any

import jax

from sojourn.algorithms.base import Exchange
from sojourn.algorithms.one_client_walks import OneClientWalks
from sojourn.core.options import count
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


class BVRLSGD(OneClientWalks):
    """Bias-variance reduced local SGD: heavy batches at every stage, local steps on one client."""

    stage_length: int = count(10, symbol="T")
    heavy_batches: int | None = count(None, symbol="b_max", optional=True)

    def forgetting(self) -> Any:
        return 0.0

    def first_gradient(self, x: Vec, oracle: Oracle, key: jax.Array) -> Vec:
        return oracle.full_grad(x) if self.heavy_batches is None else oracle.mean_grad(x, key, self.heavy_batches)

    def reopens_every(self) -> int:
        return self.stage_length

    def opening(self) -> tuple[Exchange, ...]:
        return self.begin(), self.walk(self.num_local_steps)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.estimate(), self.walk(self.num_local_steps)
