"""How the measures of heterogeneity bound each other (thesis, section 2.5 and remarks 20 and 25).

Paper to code: zeta_* -> optima_heterogeneity, phi_* -> optima_distance, tau -> hessian_heterogeneity; B ->
start_distance and B-bar -> mean_optima_distance, both from x0.
"""

from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.theory.statement import statement

_TEST = "test_theory_heterogeneity.py::"
_QUADRATIC = ("third_order_smoothness == 0", "strong_convexity > 0")


@statement(
    "Remark 8",
    kind="upper bound",
    printed="mean_m |grad F_m(x*)|^2 <= H^2 phi_*^2",
    why="The last sign of the derivation is <=, not =, as phi_* is a fourth-power mean; the conclusion stands.",
    test=_TEST + "test_remark_8",
)
def remark_8(*, smoothness: Any, optima_distance: Any) -> Any:
    """The mean squared gradient of the clients at the optimum of their mean; convex clients suffice."""
    return (smoothness * optima_distance) ** 2


@statement(
    "Remark 9",
    kind="upper bound",
    printed="With unique optima zeta_* <= 2 phi_*",
    why="True, and unique optima are not needed: distances between sets obey it too.",
    test=_TEST + "test_remark_9",
)
def remark_9(*, optima_distance: Any) -> Any:
    """zeta_*, the distance between the clients' optima."""
    return 2 * np.asarray(optima_distance)


@statement(
    "Remark 9, second half",
    kind="lower bound",
    status="corrected",
    printed="There are quadratics with zeta_* <= 2 B-bar and phi_* >= sqrt(M B-bar) / 3",
    corrected="There are quadratics with zeta_* <= 2 B-bar and phi_* >= sqrt(M) B-bar / 3",
    why="The root should end at M, and the instance is that of Proposition 1 with regularisers of at most 1e-3 / M.",
    requires=("num_clients % 2 == 0",),
    test=_TEST + "test_remark_9_gap",
)
def remark_9_gap(*, num_clients: Any, mean_optima_distance: Any) -> Any:
    """A phi_* that some federation reaches although its zeta_* is at most 2 B-bar; no bound on a given one."""
    return np.sqrt(num_clients) * mean_optima_distance / 3


@statement(
    "Remarks 11 and 25",
    kind="upper bound",
    printed="For strongly convex quadratics phi_* <= zeta_* (1 + tau / mu)",
    requires=_QUADRATIC,
    test=_TEST + "test_remark_11",
)
def remark_11(
    *, optima_heterogeneity: Any, hessian_heterogeneity: Any, strong_convexity: Any, third_order_smoothness: Any = 0.0
) -> Any:
    """phi_*, the distance from the optimum to the clients' own."""
    return optima_heterogeneity * (1 + hessian_heterogeneity / strong_convexity)


@statement(
    "Remark 20",
    kind="upper bound",
    printed="For strongly convex quadratics |x_0 - x*| <= B-bar + tau zeta_* / mu",
    requires=_QUADRATIC,
    test=_TEST + "test_remark_20",
)
def remark_20(
    *, mean_optima_distance: Any, optima_heterogeneity: Any, hessian_heterogeneity: Any, strong_convexity: Any,
    third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """B, the distance from the start to the optimum; remark 11 implies it."""
    return mean_optima_distance + hessian_heterogeneity * optima_heterogeneity / strong_convexity


@statement(
    "Proposition 3",
    kind="upper bound",
    status="corrected",
    printed="Convex clients, |x - x_0| <= D: |grad F_m(x) - grad F_n(x)| <= H (zeta_*,m + zeta_*,n) + tau (D + B-bar)",
    corrected="the same for clients with unique optima (mu > 0)",
    why="With sets of optima the pairwise distances zeta_*,mn need not be those of any choice of one optimum each: two "
    "rank-one clients have zeta_* = 0, a small tau and opposite gradients. It uses assumption 9, not the cited 10.",
    requires=("strong_convexity > 0",),
    test=_TEST + "test_proposition_3",
)
def proposition_3(
    *, optima: Any, radius: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    mean_optima_distance: Any,
) -> Any:  # fmt: skip
    """(M, M): a bound on the difference of gradients of every pair of clients within the distance radius (D) of x0."""
    if np.ndim(optima) < 2:
        raise SojournError(f"optima have shape {np.shape(optima)}; expected (clients, d).")
    gaps = np.linalg.norm(optima[..., :, None, :] - optima[..., None, :, :], axis=-1).mean(axis=-1)  # zeta_*,m
    pairs = gaps[..., :, None] + gaps[..., None, :]
    reach = np.asarray(hessian_heterogeneity * (radius + mean_optima_distance))
    return np.asarray(smoothness)[..., None, None] * pairs + reach[..., None, None]
