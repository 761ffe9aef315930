"""The Gaussian mechanism: what noise of a given size promises of a sum's privacy.

A query whose value changes by at most s when one sample is replaced, plus noise N(0, (z s)^2), is (epsilon, delta)
differentially private exactly when delta >= Phi(1/(2z) - epsilon z) - e^epsilon Phi(-1/(2z) - epsilon z)
(Balle and Wang, ICML 2018, Theorem 8). Here z is the noise multiplier. Nothing is said about attacks through rounding.
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr  # those of scipy.stats take half a second to import

from sojourn.core.errors import SojournError


def delta_of(epsilon: float, noise_multiplier: float) -> float:
    """The smallest delta for which the mechanism is (epsilon, delta) private."""
    half, slope = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return float(ndtr(half - slope) - math.exp(epsilon + log_ndtr(-half - slope)))


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """The smallest epsilon for which the mechanism is (epsilon, delta) private."""
    if not (noise_multiplier > 0 and 0 < delta < 1):
        raise SojournError(
            f"a privacy statement needs a positive noise multiplier and a delta between 0 and 1; got "
            f"{noise_multiplier:g} and {delta:g}."
        )
    if delta_of(0.0, noise_multiplier) <= delta:
        return 0.0
    high = 1.0
    while delta_of(high, noise_multiplier) > delta:
        high *= 2
    return float(brentq(lambda e: delta_of(e, noise_multiplier) - delta, 0.0, high, xtol=1e-12))


def of_several(noise_multiplier: float, queries: int) -> float:
    """The multiplier of a release of several queries, each with that multiplier of its own sensitivity."""
    return noise_multiplier / math.sqrt(queries)
