"""Local SGD on quadratics (thesis, chapter 4): how far the iterates are from the fixed point, and it from the optimum.

Paper to code: x_inf -> the fixed point, C_m = I - (I - eta A_m)^K, l = 1 - (1 - eta mu)^K.
"""

from typing import Any

from sojourn.theory.statement import Predicts, statement

_LAST = {"output": "last"}


@statement(
    "Lemma 2",
    kind="upper bound",
    printed="E|x_R - x_inf|^2 <= (1 - beta l)^(2R) |x_0 - x_inf|^2 + eta beta (1 - (1 - beta l)^R) sigma^2 / (mu M)",
    requires=(
        "strong_convexity > 0",
        "step_size * smoothness < 1",
        "outer_step_size * (1 - (1 - step_size * smoothness) ** num_local_steps) <= 1",
    ),
    test="test_theory_quadratics.py::test_lemma_2",
    predicts=(Predicts("LocalSGD", "distance_to_fixed_point", squared=True, options=_LAST, quadratic=True),),
)
def lemma_2(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, fixed_point_distance: Any, outer_step_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The squared distance to the fixed point after R rounds, in expectation."""
    kept = 1 - outer_step_size * (1 - (1 - step_size * strong_convexity) ** num_local_steps)
    floor = step_size * outer_step_size * noise**2 / (strong_convexity * num_clients)
    return kept ** (2 * rounds) * fixed_point_distance**2 + floor * (1 - kept**rounds)
