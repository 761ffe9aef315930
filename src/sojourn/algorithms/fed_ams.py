"""Fed-AMS: local AMSGrad steps with the server's denominators.

Chen, Li and Li, FODS 2020 (Local AMSGrad); the baseline of the Fed-LAMB paper. Its other baseline, Fed-SGD, is
`local-sgd` with equal weights (`fedavg` where clients hold equally much).
Paper to code: alpha -> step_size; T -> num_local_steps; beta_1 -> momentum; beta_2 -> second_moment; theta, vhat -> the
server's x, v; m_i, v_i -> a client's memory; vhat_0 -> initial_second_moment. Model and second moment travel both ways:
two vectors down, two up. A local epoch is samples per client / batch size steps.

What print leaves open, here and in Fed-LAMB, and the option (or the one reading that is kept):
- gradients: "fresh" at every local step; "once" takes the round's first gradient for all steps, as line 6 is printed.
- moments: "carry" m_i and v_i from visit to visit, or "reset" them to zero at each. They start at zero.
- bias_correction: "none" (Chen et al.), or by the number of "updates" in the moments: copies are corrected, and the
  corrected v is sent. As printed the moments are overwritten by their corrected values with t counting from one in
  every round, which multiplies v by 1000 at the first step and by 500 at the second: not offered.
- The denominator is the server's vhat of the last round, never the client's own v. It never decreases.
- Means are over those taking part, with the objective's weights (print: 1/n, though only some answer).
- initial_second_moment is apart from epsilon. At 1e-8 the steps of round one would be 1e4 alpha m, so it is 1e-4;
  warm_start = "gradients" measures it in one more exchange before round one (a vector each way): vhat_0 is then the
  mean of the clients' squared minibatch gradients, or initial_second_moment where that is larger.
- step_decay: "none", or "sqrt" for alpha / sqrt(r) in round r, a number that is sent along.
"""

from typing import Any

import jax

from sojourn.algorithms.amsgrad import (
    ModelAndMoment,
    Moments,
    check_decays,
    combine,
    ratio,
    start_server,
    walk_with_moments,
    warm_start,
)
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class FedAMS(Algorithm):
    """Local AMSGrad whose denominators the server keeps."""

    step_size: Any = positive(symbol="alpha")
    num_local_steps: int = count(10, symbol="T")
    momentum: Any = real(0.9, symbol="beta_1", low=0.0, high=1.0)
    second_moment: Any = real(0.999, symbol="beta_2", low=0.0, high=1.0)
    epsilon: Any = positive(1e-8, symbol="epsilon")
    initial_second_moment: Any = positive(1e-4, symbol="vhat_0")
    warm_start: str = choice("none", ("none", "gradients"))
    moments: str = choice("carry", ("carry", "reset"))
    bias_correction: str = choice("none", ("none", "updates"))
    gradients: str = choice("fresh", ("fresh", "once"))
    step_decay: str = choice("none", ("none", "sqrt"))

    def __check_init__(self) -> None:
        check_decays(self)

    def init_server(self, x0: Vec) -> ModelAndMoment:
        return start_server(self, x0)

    def init_client(self, x0: Vec) -> Any:
        return Moments.empty(x0) if self.moments == "carry" else ()

    def opening(self) -> tuple[Exchange, ...]:
        return warm_start(self)

    def broadcast(self, server: ModelAndMoment) -> ModelAndMoment:
        return server

    def local(
        self, down: ModelAndMoment, memory: Any, oracle: Oracle, key: jax.Array
    ) -> tuple[ModelAndMoment, Any, Info]:
        alpha = self.step_size if down.step_size is None else down.step_size

        def move(y: Vec, m: Vec, v: Vec) -> Vec:
            return y - alpha * ratio(m, down.v, self.epsilon)

        y, v, memory = walk_with_moments(self, move, oracle, down.x, memory, key)
        return ModelAndMoment(y - down.x, v), memory, {"drift": norm(y - down.x)}

    def aggregate(self, server: ModelAndMoment, up: ModelAndMoment, context: Context) -> ModelAndMoment:
        return combine(self, server, up, context)
