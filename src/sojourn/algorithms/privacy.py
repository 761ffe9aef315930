"""What a private run gives away: the Gaussian mechanism added up over rounds, in Rényi divergences.

Two federations are neighbours where one client, with all its data, its memory and its answers, was replaced by another.
Answers are clipped to length C and summed, and the sum is given noise of deviation z C in every coordinate. Replacing a
client moves the sum by up to 2 C, so the mechanism's own multiplier, deviation over sensitivity, is z / 2.

- The exchanges of a round that ask the same clients look at one sample several times: k of them are as private as one
  with multiplier z / (2 sqrt(k)).
- A cohort is drawn in every round without replacement, n of N clients, which helps: Wang, Balle and Kasiviswanathan
  (AISTATS 2019, Theorem 27), as dp-accounting computes it. Their bound can be worse than that of the mechanism without
  sampling, which holds too (Rényi divergence is quasi-convex); the smaller of both counts, order by order.
- Divergences of rounds add up; the translation to (epsilon, delta) loses a little: for a single round with everyone the
  exact epsilon is `core.gaussian_mechanism.epsilon_of(z / 2, delta)`, and this one lies a few per cent above it.
"""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
from scipy.optimize import brentq

from sojourn.algorithms.base import Algorithm, Exchange, Who
from sojourn.core.errors import SojournError

COVERS = (
    "all that the server sends and the final model, against anyone who sees these and does not know who was asked. "
    "Not: columns of the table, which are exact; answers on their way to the server; anyone who knows the run's seed, "
    "from which noise and cohorts are drawn. Epsilons of several runs on the same clients add up."
)
_SENSITIVITY = 2.0  # of the sum, in units of the clip, when a client is replaced
# Rényi orders: large ones matter for small epsilons, small ones for large. Each is a bound, so leaving some out only
# loses a little: those between 64 and 256, which take dp-accounting a second each, once for every size of noise.
_ORDERS = (
    *(1 + x / 10 for x in range(1, 40)),
    *(5 + x / 2 for x in range(10)),
    *range(10, 24, 2),
    28,
    32,
    48,
    64,
    300,
    512,
    1024,
)
_MOST_NOISE = 1e6


def accounting() -> Any:
    """dp-accounting, or a sentence on how to get it."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise SojournError(
            "client-level privacy is added up by dp-accounting, which is not installed: pip install 'sojourn[privacy]'."
        ) from None
    return dp_accounting


def releases(
    algorithm: Algorithm, num_clients: int, cohort: int, rounds: int, *, drawn: bool = True
) -> Counter[tuple[int, int, int]]:
    """How often which sample is looked at: (its size, out of how many, looks at the same sample) -> times."""
    opens = _openings(algorithm, rounds)
    found: Counter[tuple[int, int, int]] = Counter()
    kinds = (algorithm.opening(), opens), (algorithm.exchanges(), rounds - opens), (algorithm.closing(), 1)
    for exchanges, times in kinds:
        looks = Counter(_sample(exchange, num_clients, cohort, drawn) for exchange in exchanges)
        for (size, population, _), number in looks.items():
            found[size, population, number] += times
    return +found


def _sample(exchange: Exchange, num_clients: int, cohort: int, drawn: bool) -> tuple[int, int, str]:
    """Who is looked at: a sample's size, the population it is drawn from, and which draw it is."""
    who = exchange.who
    size = who.number(num_clients, cohort)
    population = num_clients if drawn and who is not Who.FIRST else size  # where nobody is drawn, nothing is gained
    # the cohort is one draw for a whole round, and ONE is one for every purpose
    return size, population, exchange.purpose if who is Who.ONE else who.value


def _openings(algorithm: Algorithm, rounds: int) -> int:
    if not algorithm.opening():
        return 0
    every = algorithm.reopens_every()
    return math.ceil(rounds / every) if every else min(1, rounds)


def epsilon_spent(looks: Counter[tuple[int, int, int]], noise_multiplier: float, delta: float) -> float:
    """Epsilon of all releases together."""
    if not looks:
        return 0.0
    divergences = sum(
        times * _divergences(size, population, noise_multiplier / _SENSITIVITY / math.sqrt(number))
        for (size, population, number), times in looks.items()
    )
    epsilon, _ = accounting().rdp.compute_epsilon(np.array(_ORDERS), divergences, delta)
    return float(epsilon)


@functools.lru_cache(maxsize=256)
def _divergences(size: int, population: int, multiplier: float) -> np.ndarray:
    """Of one look at a sample, by order."""
    library = accounting()
    gaussian = library.GaussianDpEvent(multiplier)
    events = [gaussian]
    if size < population and multiplier < _MOST_NOISE:  # beyond, their formulas run out of digits
        events.append(library.SampledWithoutReplacementDpEvent(population, size, gaussian))
    found = []
    for event in events:
        accountant = library.rdp.RdpAccountant(_ORDERS, library.NeighboringRelation.REPLACE_ONE)
        accountant.compose(event)
        found.append(accountant.rdp)
    return np.min(found, axis=0)


def noise_for(
    algorithm: Algorithm, epsilon: float, delta: float, *, num_clients: int, rounds: int, cohort: int | None = None,
    drawn: bool = True,
) -> float:  # fmt: skip
    """The least noise multiplier, to a thousandth, with which so many rounds are (epsilon, delta) private."""
    looks = releases(algorithm, num_clients, cohort or num_clients, rounds, drawn=drawn)
    spent = lambda multiplier: epsilon_spent(looks, multiplier, delta)  # noqa: E731
    high = 1.0
    while spent(high) > epsilon:
        high *= 4
        if high > _MOST_NOISE:
            raise SojournError(f"no noise makes {rounds} rounds private with epsilon = {epsilon:g}; ask for more.")
    low = high / 4
    while spent(low) <= epsilon:
        high, low = low, low / 4
        if low < 1 / _MOST_NOISE:
            raise SojournError(f"epsilon = {epsilon:g} asks for no noise at all; give less, or leave privacy out.")
    root = brentq(lambda z: math.log(spent(math.exp(z)) / epsilon), math.log(low), math.log(high), xtol=3e-4)
    return 1.001 * math.exp(root)  # a root lies on either side of the true one
