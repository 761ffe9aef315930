"""How long the chains of `nonconvex_chains` are: the rounds that the lower bounds of the thesis's chapter 6 speak of.

f is the chain of Carmon et al. of length d; a client's part of a split one is F_1 or F_2, twice. See there for symbols.
"""

from typing import Any

import numpy as np

SMOOTHNESS, SLOPE, GAP = 152.0, 23.0, 12.0  # l_1, the largest partial derivative, Delta_0: f(0) - inf f <= 12 d


def whole_length(smoothness: Any, start_gap: Any, target: Any) -> Any:
    """The longest with f(0) - inf f <= Delta at scale H/l_1: H Delta/(12 l_1 eps)."""
    return _whole_number(smoothness * start_gap / (GAP * SMOOTHNESS), target)


def split_length(
    smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any, start_gap: Any, target: Any
) -> Any:
    """The longest at scale tau/(2 l_1) whose clients' gradients differ by 2 * 23 sqrt(eps d) <= H zeta as well."""
    by_gap = hessian_heterogeneity * start_gap / (2 * GAP * SMOOTHNESS)
    by_slope = (smoothness * gradient_heterogeneity / (2 * SLOPE)) ** 2
    return _whole_number(np.minimum(by_gap, by_slope), target)


def _whole_number(room: Any, target: Any) -> Any:
    return np.floor(room / target * (1 + 1e-12))  # up to round-off
