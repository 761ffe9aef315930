"""A calculator of convergence: the one-step lemmas and Lemma 34 iterated in numbers, no closed form needed.

Within a round every error is affine in A(delta), the squared distance to x* at its start, with coefficients that are
the same in all rounds: A(delta + n) <= p_n A(delta) + q_n, C(delta + n) <= c_n + s_n A(delta). So a round costs K steps
once, and one multiplication after that. The steps are those of Lemma 5, or of Lemma 7 for quadratics, with the centred
consensus error, which is C/2.

Paper to code: T = K R, a = 1 - eta mu/2, w_t = a^(T-1-t). A bound that grows without limit becomes inf.
"""

import dataclasses
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.theory.consensus import coupled_consensus
from sojourn.theory.statement import Predicts, statement

_SMALL = ("strong_convexity > 0", "strong_convexity <= smoothness", "step_size < 1 / smoothness")
_WHOLE = ("num_local_steps % 1 == 0", "rounds % 1 == 0")
_TEST = "test_theory_recursion.py::"
_LAST = {"output": "last", "outer_step_size": 1.0}
_EXP = {"output": "exp", "outer_step_size": 1.0}
_ITERATED = "A(t+1) <= (1 - eta mu) A(t) + (eta/mu) {} C(t)/2 + eta^2 sigma_2^2/M, C(t) by Lemma 34, A(0) = B^2"
_WHY = "Lemma 34 with 1 + ln n; the centred consensus error is C/2."


@dataclasses.dataclass(frozen=True)
class _Instance:
    """The constants of a run, each a number or an array of them."""

    eta: Any
    H: Any
    mu: Any
    tau: Any
    zeta_star: Any
    phi_star: Any
    noise: Any
    M: Any
    quadratic: bool

    def consensus(self, n: Any) -> tuple[Any, Any]:
        return coupled_consensus(
            n, self.eta, self.H, self.mu, self.tau, self.zeta_star, self.phi_star, self.noise, self.M
        )

    def step(self, n: int, slope: Any, constant: Any) -> tuple[Any, Any]:
        """p_{n+1}, q_{n+1} from p_n, q_n: Lemma 5 or 7."""
        drift = self.eta / self.mu * self._curvature() / 2
        floor, coupled = self.consensus(n)
        kept = 1 - self.eta * self.mu
        return kept * slope + drift * coupled, kept * constant + drift * floor + self.eta**2 * self.noise**2 / self.M

    def _curvature(self) -> Any:
        return np.minimum(self.tau, self.H) ** 2 if self.quadratic else self.H**2


@statement(
    "Lemmas 5 and 34, iterated",
    kind="upper bound",
    status="corrected",
    printed=_ITERATED.format("H^2"),
    corrected="the same",
    why=_WHY,
    requires=(*_SMALL, *_WHOLE),
    test=_TEST + "test_distance_stays_below_the_recursion",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options=_LAST),),
)
def recursion_distance(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any, quadratic: bool = False,
) -> Any:  # fmt: skip
    """The squared distance to x* after R rounds, in expectation."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, quadratic,
    )  # fmt: skip
    return _distance(instance, num_local_steps, rounds, start_distance)


@statement(
    "Lemmas 7 and 34, iterated",
    quadratic=True,
    kind="upper bound",
    status="corrected",
    printed=_ITERATED.format("min{tau^2, H^2}"),
    corrected="the same",
    why=_WHY,
    requires=(*_SMALL, *_WHOLE),
    test=_TEST + "test_distance_stays_below_the_recursion",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options=_LAST, quadratic=True),),
)
def recursion_distance_quadratic(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any,
) -> Any:  # fmt: skip
    """The same for quadratics, as recursion_distance with quadratic = True."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, True,
    )  # fmt: skip
    return _distance(instance, num_local_steps, rounds, start_distance)


@statement(
    "Lemmas 5, 28 and 34, iterated",
    kind="upper bound",
    status="corrected",
    printed="sum_t w_t E(t) / sum_t w_t <= (a^T B^2/eta + sum_t w_t (2 H C(t) + 3 eta sigma_2^2/M)) / sum_t w_t",
    corrected="the same, C(t) by Lemma 34 and A(t) by Lemma 5",
    why=_WHY,
    requires=("strong_convexity > 0", "strong_convexity <= smoothness", "step_size <= 1 / (10 * smoothness)", *_WHOLE),
    test=_TEST + "test_suboptimality_stays_below_the_recursion",
    predicts=(Predicts("LocalSGD", "suboptimality", options=_EXP),),
)
def recursion_suboptimality(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any,
) -> Any:  # fmt: skip
    """The weighted mean of the suboptimality of the iterates, and so that of their weighted mean, in expectation."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, False,
    )  # fmt: skip
    noisy = 3 * step_size * noise**2 / num_clients
    return _suboptimality(instance, num_local_steps, rounds, start_distance, 2 * smoothness, noisy)


@statement(
    "Lemmas 7, 27 and 34, iterated",
    quadratic=True,
    kind="upper bound",
    status="corrected",
    printed="sum_t w_t E(t) / sum_t w_t <= (a^T B^2/eta + sum_t w_t ((6 tau^2/mu) C(t) + eta sigma_2^2/M)) / sum_t w_t",
    corrected="3/2 in place of 6, C(t) by Lemma 34 and A(t) by Lemma 7 for quadratics",
    why="Quadratics need no square of a sum split (a factor 2), and the centred consensus error is C/2 (another 2).",
    requires=("strong_convexity > 0", "strong_convexity <= smoothness", "step_size <= 1 / (2 * smoothness)", *_WHOLE),
    test=_TEST + "test_suboptimality_stays_below_the_recursion",
    predicts=(Predicts("LocalSGD", "suboptimality", options=_EXP, quadratic=True),),
)
def recursion_suboptimality_quadratic(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any,
) -> Any:  # fmt: skip
    """The same for quadratics."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, True,
    )  # fmt: skip
    weight = 1.5 * hessian_heterogeneity**2 / strong_convexity
    return _suboptimality(instance, num_local_steps, rounds, start_distance, weight, step_size * noise**2 / num_clients)


@statement(
    "Lemma 34 along the recursion",
    quadratic=True,
    kind="upper bound",
    status="corrected",
    printed="C(t) <= 2 eta^2 H^2 n^2 zeta_*^2 + 2 eta^3 tau^2 n^2 sigma_2^2/mu + 2 eta^2 sigma_2^2 n ln n"
    " + 4 eta^2 tau^2 n^2 (1 - eta mu)^(2(n-1)) (A(delta) + phi_*^2), n = t - delta",
    corrected="the same with 1 + ln n, at n = K, with A(delta) of the round's start by Lemma 7 iterated",
    why="With ln n the noise of a single step is lost.",
    requires=(*_SMALL, *_WHOLE, "rounds >= 1"),
    test=_TEST + "test_consensus_stays_below_the_recursion",
    predicts=(Predicts("LocalSGD", "consensus", options=_LAST, quadratic=True),),
)
def recursion_consensus(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any,
) -> Any:  # fmt: skip
    """The consensus error of the clients' last iterates in round R, before they are averaged, in expectation."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, True,
    )  # fmt: skip
    floor, coupled = instance.consensus(num_local_steps)
    return floor + _product(coupled, _distance(instance, num_local_steps, rounds - 1, start_distance))


@statement(
    "Lemmas 5 and 34, the whole curve",
    kind="upper bound",
    status="corrected",
    printed=_ITERATED.format("H^2"),
    corrected="the same",
    why=_WHY,
    requires=(*_SMALL, *_WHOLE),
    test=_TEST + "test_the_curve_holds_at_every_step",
)
def recursion_curve(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, num_clients: Any,
    start_distance: Any, quadratic: bool = False,
) -> Any:  # fmt: skip
    """A(t) and C(t) for t = 0 .. KR, and A at the ends of rounds 0 .. R; of one run, so all arguments are numbers."""
    instance = _Instance(
        step_size, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, optima_distance, noise,
        num_clients, quadratic,
    )  # fmt: skip
    given = [*dataclasses.asdict(instance).values(), num_local_steps, rounds, start_distance]
    if any(np.ndim(value) for value in given):
        raise SojournError("A curve is that of one run; give numbers, or call recursion_distance with arrays.")
    K, R = int(num_local_steps), int(rounds)
    slopes, constants = np.zeros(K + 1), np.zeros(K + 1)
    slopes[0] = 1.0
    for n in range(K):
        slopes[n + 1], constants[n + 1] = instance.step(n, slopes[n], constants[n])
    at_rounds = np.empty(R + 1)
    at_rounds[0] = start_distance**2
    for r in range(R):
        at_rounds[r + 1] = slopes[K] * at_rounds[r] + constants[K]
    floors, coupled = instance.consensus(np.arange(K))
    distances = at_rounds[:R, None] * slopes[:K] + constants[:K]
    consensus = _product(at_rounds[:R, None], coupled) + floors
    return {
        "steps": np.arange(K * R + 1),
        "distance_sq": np.append(distances, at_rounds[-1]),
        "consensus_sq": np.append(consensus, 0.0),
        "round_distance_sq": at_rounds,
    }


def _distance(instance: _Instance, K: Any, R: Any, start_distance: Any) -> Any:
    """A(KR), for as many instances at once as the arguments hold."""
    slope: Any = 1.0
    constant: Any = 0.0
    for n in range(int(np.max(K))):
        more = instance.step(n, slope, constant)
        slope, constant = np.where(n < K, more[0], slope), np.where(n < K, more[1], constant)
    distance: Any = start_distance**2
    for r in range(int(np.max(R))):
        distance = np.where(r < R, slope * distance + constant, distance)
    return distance


def _suboptimality(instance: _Instance, K: Any, R: Any, start_distance: Any, weight: Any, noisy: Any) -> Any:
    """The weighted mean of E(t) <= (A(t) a - A(t+1))/eta + weight C(t) + noisy, whose first part telescopes."""
    eta_mu = instance.eta * instance.mu
    a = 1 - eta_mu / 2
    slope: Any = 1.0
    constant: Any = 0.0
    coupled_sum: Any = 0.0  # of a round, weighed by a^(K-1-n); the next too
    floor_sum: Any = 0.0
    for n in range(int(np.max(K))):
        floor, coupled = instance.consensus(n)
        coupled_sum = np.where(n < K, a * coupled_sum + weight * coupled, coupled_sum)
        floor_sum = np.where(n < K, a * floor_sum + weight * floor + noisy, floor_sum)
        more = instance.step(n, slope, constant)
        slope, constant = np.where(n < K, more[0], slope), np.where(n < K, more[1], constant)
    distance: Any = start_distance**2
    total: Any = 0.0
    for r in range(int(np.max(R))):
        total = np.where(r < R, a**K * total + _product(coupled_sum, distance) + floor_sum, total)
        distance = np.where(r < R, slope * distance + constant, distance)
    weights = -np.expm1(K * R * np.log1p(-eta_mu / 2)) / (eta_mu / 2)
    start = start_distance**2
    bound = (a ** (K * R) * start / instance.eta + total) / np.where(weights > 0, weights, 1.0)
    return np.where(np.asarray(R) > 0, bound, instance.H * start / 2)  # before the first round the answer is x0


def _product(slope: Any, distance: Any) -> Any:
    """Their product, 0 where either is 0 even if the other is infinite."""
    with np.errstate(invalid="ignore"):
        return np.where((np.asarray(slope) == 0) | (np.asarray(distance) == 0), 0.0, slope * distance)
