"""Explicit bounds for the methods that local SGD is compared with, and their tuned steps.

The thesis gives rates for them without constants (equations 3.2 and 3.4 and below Theorem 5); here the constants are
derived, in a few lines each. s^2 is the variance of the gradient that a step uses: sigma^2/(MK) for minibatches of all
clients, sigma^2 for one machine. E_r = E F(x_r) - F*, A_r = E|x_r - x*|^2.
"""

from typing import Any

import numpy as np

from sojourn.theory.contraction import left, lost
from sojourn.theory.statement import Predicts, statement
from sojourn.theory.tuning import log_ratio, quotient, smallest

_TEST = "test_theory_baselines.py::"
_CONVEX = ("strong_convexity > 0", "strong_convexity <= smoothness")
_CONTRACTS = "step_size * (smoothness + strong_convexity) <= 2 + 1e-12"
_DENSE = {"num_local_steps": 1, "outer_step_size": 1.0}  # local SGD with one step per round is minibatch SGD


@statement(
    "derived, for the strongly convex rate of minibatch SGD",
    kind="upper bound",
    printed="E|x_R - x*|^2 <= (1-g mu)^(2R) B^2 + (1 - (1-g mu)^(2R)) g sigma^2/(mu (2 - g mu) M K), g <= 2/(H + mu)",
    requires=(*_CONVEX, _CONTRACTS),
    test=_TEST + "test_minibatch_sgd_distance",
    predicts=(
        Predicts("MinibatchSGD", "distance", squared=True),
        Predicts("LocalSGD", "distance", squared=True, options={**_DENSE, "output": "last"}),
    ),
)
def minibatch_sgd_distance(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    start_distance: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The squared distance of the last model to x*; attained where the Hessian is mu times the identity.

    For g <= 2/(H + mu) the map x -> x - g grad F(x) contracts by 1 - g mu, and the noise is independent of x:
    A_{r+1} <= (1 - g mu)^2 A_r + g^2 s^2. Sum the geometric series.
    """
    return _distance(
        step_size * strong_convexity, rounds, start_distance, step_size * noise**2 / (num_clients * num_local_steps),
        strong_convexity,
    )  # fmt: skip


@statement(
    "derived, for equation 3.2 (minibatch SGD)",
    kind="upper bound",
    printed="E F(mean of x_0 .. x_{R-1}) - F* <= [B^2/(g R) + g sigma^2/(M K)]/(2 (1 - g H)), g < 1/H",
    requires=("step_size * smoothness < 1",),
    test=_TEST + "test_minibatch_sgd_suboptimality",
    predicts=(Predicts("LocalSGD", "suboptimality", options={**_DENSE, "output": "uniform"}),),
)
def minibatch_sgd_suboptimality(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """The suboptimality of the mean model for a convex objective; at g = 1/(2H) it is B^2/(g R) + g sigma^2/(M K).

    |grad F|^2 <= 2 H (F - F*) for convex smooth F, so A_{r+1} <= A_r - 2 g (1 - g H) E_r + g^2 s^2. Sum over r and use
    Jensen's inequality.
    """
    variance = noise**2 / (num_clients * num_local_steps)
    return _mean_gap(step_size, rounds, smoothness, start_distance, variance)


@statement(
    "derived, for the strongly convex rate of SGD on one machine",
    kind="upper bound",
    printed="E|x_T - x*|^2 <= (V^(1/2) + D)^2, T = K R, D = M^(1/4) phi_*, V = (1-eta mu)^(2T) (B + D)^2 + "
    "(1 - (1-eta mu)^(2T)) eta sigma^2/(mu (2 - eta mu)), eta <= 2/(H + mu)",
    requires=(*_CONVEX, _CONTRACTS),
    test=_TEST + "test_single_machine_sgd_distance",
    predicts=(Predicts("SingleMachineSGD", "distance", squared=True),),
)
def single_machine_sgd_distance(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    start_distance: Any, num_clients: Any, optima_distance: Any,
) -> Any:  # fmt: skip
    """The squared distance of one client's last model to the optimum of all.

    As for minibatch SGD, around the client's own optimum, which is at most D from x*: phi_*^4 is a mean over M clients,
    so none is further than M^(1/4) phi_*. Then the triangle inequality, in the root of the mean square.
    """
    off = num_clients**0.25 * optima_distance
    own = _distance(
        step_size * strong_convexity, num_local_steps * rounds, start_distance + off, step_size * noise**2,
        strong_convexity,
    )  # fmt: skip
    return (own**0.5 + off) ** 2


@statement(
    "derived, for equation 3.2 (SGD on one machine)",
    kind="upper bound",
    printed="identical clients: E F(mean of x_0 .. x_{T-1}) - F* <= [B^2/(eta T) + eta sigma^2]/(2 (1 - eta H)), T = "
    "K R",
    requires=("step_size * smoothness < 1",),
    test=_TEST + "test_minibatch_sgd_suboptimality",
)
def single_machine_sgd_suboptimality(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any, start_distance: Any
) -> Any:  # fmt: skip
    """The suboptimality of the mean model of one machine for a convex objective that all clients share."""
    return _mean_gap(step_size, num_local_steps * rounds, smoothness, start_distance, noise**2)


@statement(
    "derived, for equation 3.4 (AC-SA)",
    kind="upper bound",
    printed="E F(x_ag) - F* <= 2 L B^2/(R (R+1)) + sigma^2/(M K) min{2/(m (R+1)), (2R+1)/(12 (L - H R/(R+1)))}, L >= "
    "H and "
    "m <= mu the method's constants",
    requires=("step_smoothness >= smoothness", "step_strong_convexity >= 0"),
    test=_TEST + "test_ac_sa_suboptimality",
    predicts=(Predicts("ACSA", "suboptimality"),),
)
def ac_sa_suboptimality(
    *, step_smoothness: Any, step_strong_convexity: Any, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any,
    start_distance: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The suboptimality of accelerated minibatch SGD. L and m are its options `smoothness` and `strong_convexity`.

    With a = 2/(t+1), c = 4 L/(t(t+1)) and y the point that x_t is a gradient step from, x_ag - x_md = a (x_t - y), so
    smoothness, strong convexity and the minimality of x_t give E_t <= (1-a) E_{t-1} + ((1-a) m + c) A_{t-1}/2 -
    (m + c) A_t/2 + a^2 s^2/(2 (m + c - H a^2)). Divide by 2/(t(t+1)) and sum: A telescopes to L B^2, and the noise is
    at most sum t^2 s^2/(4 (L - H R/(R+1))), and at most sum s^2/m.
    """
    R = np.where(np.asarray(rounds) > 0, rounds, 1.0)
    room = step_smoothness - smoothness * R / (R + 1)
    per_noise = smallest(quotient(2, step_strong_convexity * (R + 1)), (2 * R + 1) / (12 * room))
    bound = 2 * step_smoothness * start_distance**2 / (R * (R + 1))
    bound = bound + per_noise * noise**2 / (num_clients * num_local_steps)
    return np.where(np.asarray(rounds) > 0, bound, np.inf)


@statement(
    "derived, minibatch SGD tuned, strongly convex",
    kind="step size",
    printed="g = min{1/H, ln(max(e, 2 mu^2 B^2 M K R/sigma^2))/(2 mu R)}",
    requires=(*_CONVEX, "rounds >= 1"),
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def minibatch_sgd_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """Where (1-g mu)^(2R) B^2 meets the floor at g = 1/(2 mu R). With one client and K = T/R it is SGD's own."""
    top = 2 * (strong_convexity * start_distance) ** 2 * num_clients * num_local_steps * rounds
    return smallest(1 / smoothness, log_ratio(top, noise**2) / (2 * strong_convexity * rounds))


@statement(
    "derived, minibatch SGD tuned, convex",
    kind="step size",
    printed="g = min{1/(2H), (B/sigma) sqrt(M K/R)}",
    requires=("rounds >= 1", "start_distance > 0"),
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def minibatch_sgd_convex_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any, start_distance: Any, num_clients: Any
) -> Any:  # fmt: skip
    """The minimum of B^2/(g R) + g sigma^2/(M K) on g <= 1/(2H)."""
    balanced = quotient(start_distance * (num_clients * num_local_steps / rounds) ** 0.5, noise)
    return smallest(1 / (2 * smoothness), balanced)


@statement(
    "derived, AC-SA tuned",
    kind="step size",
    printed="L = H + (sigma/B) sqrt(R (R+1) (2R+1)/(24 M K)) for m = 0; L = H for m > 0",
    requires=("rounds >= 1", "start_distance > 0"),
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def ac_sa_step_smoothness(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any, start_distance: Any, num_clients: Any,
    step_strong_convexity: Any = 0.0,
) -> Any:  # fmt: skip
    """The least of 2 L B^2/(R (R+1)) + (2R+1) sigma^2/(12 (L - H) M K) over L; without noise the method takes L = H."""
    R = rounds
    room = noise / start_distance * (R * (R + 1) * (2 * R + 1) / (24 * num_clients * num_local_steps)) ** 0.5
    return smoothness + np.where(np.asarray(step_strong_convexity) > 0, 0.0, room)


def _distance(rate: Any, steps: Any, start: Any, floor: Any, mu: Any) -> Any:
    """floor = g s^2; the map contracts by 1 - rate, rate = g mu <= 1."""
    rate = np.minimum(rate, 1.0)
    return left(rate, 2 * steps) * start**2 + lost(rate, 2 * steps) * floor / (mu * (2 - rate))


def _mean_gap(step: Any, steps: Any, H: Any, start: Any, variance: Any) -> Any:
    return (quotient(start**2, step * steps) + step * variance) / (2 * (1 - step * H))
