"""What n steps with contraction 1 - x leave and take, computed so that tiny x and huge n lose no digits.

x = eta lambda for a step size eta along an eigenvalue lambda, n = K. Where x < 1 n may be any real number; elsewhere
it must be a whole one.
"""

from typing import Any

import numpy as np

_SERIES = 14  # terms of the binomial series below n x = 0.1; what is left out is below 1e-16 of the sum


def left(x: Any, n: Any) -> Any:
    """(1 - x)^n."""
    x, n = np.broadcast_arrays(np.asarray(x, float), np.asarray(n, float))
    usual = x < 1
    with np.errstate(over="ignore", under="ignore"):  # too large is inf, too small is 0
        smooth = np.exp(n * np.log1p(-np.where(usual, x, 0.0)))
        return np.where(usual, smooth, np.where(usual, 1.0, 1 - x) ** np.where(usual, 1.0, n))


def lost(x: Any, n: Any) -> Any:
    """1 - (1 - x)^n."""
    x, n = np.broadcast_arrays(np.asarray(x, float), np.asarray(n, float))
    usual = x < 1
    with np.errstate(over="ignore", under="ignore"):
        return np.where(usual, -np.expm1(n * np.log1p(-np.where(usual, x, 0.0))), 1 - left(x, n))


def excess(x: Any, n: Any) -> Any:
    """n x - (1 - (1 - x)^n) for 0 <= x < 1 and n >= 1: how far n steps fall short of one that is n times as long."""
    x, n = np.broadcast_arrays(np.asarray(x, float), np.asarray(n, float))
    with np.errstate(under="ignore"):
        small = n * x < 0.1  # there the difference cancels: sum over j >= 2 of (-1)^j binomial(n, j) x^j instead
        term = n * np.where(small, x, 0.0)
        series = np.zeros(term.shape)
        for j in range(1, _SERIES):
            term = -term * (n - j) / (j + 1) * np.where(small, x, 0.0)
            series = series - term
    return np.where(n == 1, 0.0, np.where(small, series, n * x - lost(x, n)))


def last_share(x: Any, n: Any) -> Any:
    """n x (1 - x)^(n - 1) / (1 - (1 - x)^n) for 0 <= x < 1 and n >= 1: 1 in the limit x -> 0, and never above."""
    taken = lost(x, n)
    with np.errstate(under="ignore"):
        share = n * x * left(x, n - 1.0) / np.where(taken > 0, taken, 1.0)
    return np.where(taken > 0, np.minimum(share, 1.0), 1.0)
