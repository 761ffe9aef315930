"""What one step of Local SGD does to the errors (thesis, chapter 5 and appendix D.2.2 and D.3): right-hand sides.

Paper to code: A(t) = E|x_t - x*|^2 -> distance_sq, B(t) the fourth moment -> distance4, C(t) and D(t), the mean over
all pairs of clients of E|x_t^m - x_t^n|^2 and ^4 -> consensus_sq and consensus4. The main text measures clients from
their mean x_t instead: (1/M) sum_m E|x_t - x_t^m|^2 = C(t)/2 exactly -> centred_sq, and ^4 (at most D(t)) -> centred4.
k steps on client m alone, from x_delta: E|x_delta - x_m*|^2 -> client_distance_sq, ^4 -> client_distance4.
A round form takes the moments of all K steps of the round along the last axis.
`quadratic` is for constant Hessians: the error of the mean gradient is then (1/M) sum_m (A_m - A)(x_t - x_t^m), so
Q = 0 and no square of a sum needs splitting.
"""

from typing import Any

import numpy as np

from sojourn.theory.statement import statement

_SMALL = ("strong_convexity > 0", "strong_convexity <= smoothness", "step_size < 1 / smoothness")
_HALF = ("strong_convexity > 0", "strong_convexity <= smoothness", "step_size <= 1 / (2 * smoothness)")
_TEST = "test_theory_one_step.py::"


@statement(
    "Lemma 18", kind="upper bound", printed="E|xi_t|^2 <= sigma_2^2 / M",
    test=_TEST + "test_noise_of_the_mean_and_of_differences",
)  # fmt: skip
def lemma_18(*, noise: Any, num_clients: Any) -> Any:
    """The second moment of the mean of the clients' noise."""
    return _mean_noise(noise, num_clients)


@statement(
    "Lemma 19", kind="upper bound", printed="E|xi_t|^4 <= 3 sigma_4^4 / M^2",
    test=_TEST + "test_noise_of_the_mean_and_of_differences",
)  # fmt: skip
def lemma_19(*, noise4: Any, num_clients: Any) -> Any:
    """The fourth moment of the mean of the clients' noise."""
    return 3 * noise4**4 / num_clients**2


@statement(
    "Lemma 20", kind="upper bound", printed="E|xi_t|^3 <= sqrt(3) sigma_4^2 sigma_2 / M^(3/2)",
    test=_TEST + "test_noise_of_the_mean_and_of_differences",
)  # fmt: skip
def lemma_20(*, noise: Any, noise4: Any, num_clients: Any) -> Any:
    """The third moment of the mean of the clients' noise."""
    return np.sqrt(3) * noise4**2 * noise / num_clients**1.5


@statement(
    "Lemma 21", kind="upper bound", printed="E|xi_t^m - xi_t^n|^2 <= 2 sigma_2^2",
    test=_TEST + "test_noise_of_the_mean_and_of_differences",
)  # fmt: skip
def lemma_21(*, noise: Any) -> Any:
    """The second moment of the difference of two clients' noise."""
    return 2 * noise**2


@statement(
    "Lemma 22", kind="upper bound", printed="E|xi_t^m - xi_t^n|^4 <= 8 sigma_4^4",
    test=_TEST + "test_noise_of_the_mean_and_of_differences",
)  # fmt: skip
def lemma_22(*, noise4: Any) -> Any:
    """The fourth moment of the difference of two clients' noise."""
    return 8 * noise4**4


@statement(
    "Lemma 5",
    kind="upper bound",
    printed="A(t+1) <= (1 - eta mu) A(t) + (eta H^2 / mu) (1/M) sum_m E|x_t - x_t^m|^2 + eta^2 sigma_2^2 / M",
    requires=_SMALL,
    test=_TEST + "test_distance_after_one_step",
)
def lemma_5(
    *, distance_sq: Any, centred_sq: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """The squared distance to x* after one more step, from smoothness alone."""
    drift = step_size * smoothness**2 / strong_convexity * centred_sq
    return (1 - step_size * strong_convexity) * distance_sq + drift + step_size**2 * _mean_noise(noise, num_clients)


@statement(
    "Lemma 7",
    kind="upper bound",
    printed="A(t+1) <= (1 - eta mu) A(t) + eta^2 sigma_2^2 / M + (2 eta Q^2 / mu) (1/M) sum_m E|x_t - x_t^m|^4"
    " + (2 eta tau^2 / mu) (1/M) sum_m E|x_t - x_t^m|^2",
    requires=_SMALL,
    test=_TEST + "test_distance_after_one_step",
)
def lemma_7(
    *, distance_sq: Any, centred_sq: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, hessian_heterogeneity: Any, third_order_smoothness: Any = 0.0, centred4: Any = 0.0,
    quadratic: bool = False,
) -> Any:  # fmt: skip
    """The same from the heterogeneity of the Hessians; quadratics need tau^2 once, not twice, and no Q."""
    tau_sq = hessian_heterogeneity**2 * centred_sq
    drift = tau_sq if quadratic else 2 * tau_sq + 2 * third_order_smoothness**2 * centred4
    kept = (1 - step_size * strong_convexity) * distance_sq
    return kept + step_size / strong_convexity * drift + step_size**2 * _mean_noise(noise, num_clients)


@statement(
    "Lemma 23",
    kind="upper bound",
    printed="A(t+1) <= (1 - eta mu) A(t) + (eta/mu) min{2 Q^2 D(t) + 2 tau^2 C(t), H^2 C(t)} + eta^2 sigma_2^2 / M",
    requires=_SMALL,
    test=_TEST + "test_distance_after_one_step",
)
def lemma_23(
    *, distance_sq: Any, consensus_sq: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, hessian_heterogeneity: Any = None, third_order_smoothness: Any = None, consensus4: Any = None,
    quadratic: bool = False,
) -> Any:  # fmt: skip
    """Lemmas 5 and 7 in the moments over pairs; tau, Q or D unknown leave H^2 C. Quadratics: min{tau^2, H^2} C."""
    drift = _drift(smoothness, hessian_heterogeneity, third_order_smoothness, consensus_sq, consensus4, quadratic)
    kept = (1 - step_size * strong_convexity) * distance_sq
    return kept + step_size / strong_convexity * drift + step_size**2 * _mean_noise(noise, num_clients)


@statement(
    "Lemma 23, a round",
    kind="upper bound",
    printed="A(Kr) <= (1 - eta mu)^K A(K(r-1)) + (1 - (1 - eta mu)^K) eta sigma_2^2 / (mu M)"
    " + (eta/mu) sum_j (1 - eta mu)^(Kr-1-j) min{2 Q^2 D(j) + 2 tau^2 C(j), H^2 C(j)}",
    requires=_SMALL,
    test=_TEST + "test_round_forms",
)
def lemma_23_round(
    *, distance_sq: Any, consensus_sq: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, hessian_heterogeneity: Any = None, third_order_smoothness: Any = None, consensus4: Any = None,
    quadratic: bool = False,
) -> Any:  # fmt: skip
    """Lemma 23 over a round; the consensus errors of its K steps are along the last axis."""
    consensus_sq = np.atleast_1d(consensus_sq)  # a round of one step may be given as a number
    H, tau, Q = (_per_step(v) for v in (smoothness, hessian_heterogeneity, third_order_smoothness))
    drift = _drift(H, tau, Q, consensus_sq, consensus4, quadratic)
    kept = 1 - step_size * strong_convexity
    all_kept = kept ** np.shape(consensus_sq)[-1]
    floor = (1 - all_kept) * step_size / strong_convexity * _mean_noise(noise, num_clients)
    return all_kept * distance_sq + floor + step_size / strong_convexity * _unrolled(kept, drift)


@statement(
    "Lemma 24",
    kind="upper bound",
    status="corrected",
    printed="E|x_{delta+k}^m - x*|^2 <= (1 - eta mu)^(2k) E|x_delta - x_m*|^2"
    " + (1 - (1 - eta mu)^(2k)) eta sigma_2^2 / mu",
    corrected="E|x_{delta+k}^m - x_m*|^2 <= the same",
    why="A client alone goes to its own optimum: the left side prints x* for x_m*.",
    requires=_SMALL,
    test=_TEST + "test_a_client_alone",
)
def lemma_24(
    *, client_distance_sq: Any, steps_since: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise: Any,
) -> Any:  # fmt: skip
    """The squared distance of a client to its own optimum, k steps after the last communication."""
    kept = (1 - step_size * strong_convexity) ** (2 * steps_since)
    return kept * client_distance_sq + (1 - kept) * step_size * noise**2 / strong_convexity


@statement(
    "Lemma 25",
    kind="upper bound",
    printed="B(t+1) <= (1 - eta mu) B(t) + (eta H^4/mu^3 + 16 eta^3 sigma_2^2 Q^2/(mu M)) D(t)"
    " + 8 eta^2 sigma_2^2 (1 - eta mu) A(t) / M + 16 eta^3 sigma_2^2 tau^2 C(t) / (mu M) + 9 eta^4 sigma_4^4 / M^2",
    requires=_SMALL,
    test=_TEST + "test_fourth_moment_after_one_step",
)
def lemma_25(
    *, distance4: Any, distance_sq: Any, consensus_sq: Any, consensus4: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, noise4: Any, num_clients: Any, hessian_heterogeneity: Any,
    third_order_smoothness: Any,
) -> Any:  # fmt: skip
    """The fourth power of the distance to x* after one more step."""
    kept, drift = _fourth(
        step_size, smoothness, strong_convexity, noise, num_clients, hessian_heterogeneity, third_order_smoothness,
        distance_sq, consensus_sq, consensus4,
    )  # fmt: skip
    return kept * distance4 + drift + 9 * (step_size * noise4) ** 4 / num_clients**2


@statement(
    "Lemma 25, a round",
    kind="upper bound",
    status="corrected",
    printed="B(Kr) <= (1 - eta mu)^K B(K(r-1)) + (eta H^4/mu^3 + 16 eta^3 sigma_2^2 Q^2/(mu M)) sum_j k_j D(j)"
    " + (8 eta^2 sigma_2^2/M) sum_j (1 - eta mu) k_j A(j) + (16 eta^3 sigma_2^2 tau^2/(mu M)) sum_j k_j C(j)"
    " + 9 eta^4 sigma_4^4/(mu M^2), k_j = (1 - eta mu)^(Kr-1-j)",
    corrected="the last term is 9 eta^3 sigma_4^4 / (mu M^2)",
    why="The sum of the weights is at most 1/(eta mu), which takes one power of eta from the last term.",
    requires=_SMALL,
    test=_TEST + "test_round_forms",
)
def lemma_25_round(
    *, distance4: Any, distance_sq: Any, consensus_sq: Any, consensus4: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, noise4: Any, num_clients: Any, hessian_heterogeneity: Any,
    third_order_smoothness: Any,
) -> Any:  # fmt: skip
    """Lemma 25 over a round: distance4 at its start, the other moments of its K steps along the last axis."""
    consensus_sq = np.atleast_1d(consensus_sq)
    eta, H, mu, sigma, M, tau, Q = (
        _per_step(value)
        for value in (
            step_size, smoothness, strong_convexity, noise, num_clients, hessian_heterogeneity, third_order_smoothness
        )
    )  # fmt: skip
    _, drift = _fourth(eta, H, mu, sigma, M, tau, Q, distance_sq, consensus_sq, consensus4)
    kept = 1 - step_size * strong_convexity
    floor = 9 * step_size**3 * noise4**4 / (strong_convexity * num_clients**2)
    return kept ** np.shape(consensus_sq)[-1] * distance4 + _unrolled(kept, drift) + floor


@statement(
    "Lemma 26",
    kind="upper bound",
    status="corrected",
    printed="E|x_{delta+k}^m - x*|^4 <= (1 - eta mu)^(4k) E|x_delta - x_m*|^4"
    " + 8 eta^2 sigma_2^2 k (1 - eta mu)^(2k) E|x_delta - x_m*|^2 + 11 eta^2 sigma_4^4 / mu^2",
    corrected="E|x_{delta+k}^m - x_m*|^4 <= the same",
    why="A client alone goes to its own optimum: the left side prints x* for x_m*.",
    requires=_SMALL,
    test=_TEST + "test_a_client_alone",
)
def lemma_26(
    *, client_distance_sq: Any, client_distance4: Any, steps_since: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, noise4: Any,
) -> Any:  # fmt: skip
    """The fourth power of the distance of a client to its own optimum, k steps after the last communication."""
    kept = (1 - step_size * strong_convexity) ** (2 * steps_since)
    mixed = 8 * (step_size * noise) ** 2 * steps_since * kept * client_distance_sq
    return kept**2 * client_distance4 + mixed + 11 * step_size**2 * noise4**4 / strong_convexity**2


@statement(
    "Lemma 26, simpler",
    kind="upper bound",
    status="corrected",
    printed="E|x_{delta+k}^m - x*|^4 <= (1 - eta mu)^(3k) E|x_delta - x_m*|^4 + 16 eta sigma_4^4 / mu^3",
    corrected="E|x_{delta+k}^m - x_m*|^4 <= the same",
    why="A client alone goes to its own optimum: the left side prints x* for x_m*.",
    requires=_SMALL,
    test=_TEST + "test_a_client_alone",
)
def lemma_26_simple(
    *, client_distance4: Any, steps_since: Any, step_size: Any, smoothness: Any, strong_convexity: Any, noise4: Any,
) -> Any:  # fmt: skip
    """The same without the second moment."""
    kept = (1 - step_size * strong_convexity) ** (3 * steps_since)
    return kept * client_distance4 + 16 * step_size * noise4**4 / strong_convexity**3


@statement(
    "Lemma 8",
    kind="upper bound",
    printed="E(t) <= (1/eta - mu/2) A(t) - A(t+1)/eta + eta sigma_2^2/M"
    " + (8 tau^2/mu) (1/M) sum_m E|x_t - x_t^m|^2 + (2 Q^2/mu) (1/M) sum_m E|x_t - x_t^m|^4",
    why="The appendix proves Lemma 27 instead, for eta <= 1/(2H). This form is true too, for eta < 1/H: use"
    " <grad F(x), x - x*> >= F(x) - F* + |grad F(x) - mu (x - x*)|^2 / (2 (H - mu)) + mu |x - x*|^2 / 2, and the 1/2 of"
    " Taylor's remainder.",
    requires=_SMALL,
    test=_TEST + "test_function_value_of_one_step",
)
def lemma_8(
    *, distance_sq: Any, next_distance_sq: Any, centred_sq: Any, centred4: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, num_clients: Any, hessian_heterogeneity: Any, third_order_smoothness: Any,
) -> Any:  # fmt: skip
    """The suboptimality of the mean iterate before a step, from the distances before and after it."""
    drift = 8 * hessian_heterogeneity**2 * centred_sq + 2 * third_order_smoothness**2 * centred4
    progress = (1 / step_size - strong_convexity / 2) * distance_sq - next_distance_sq / step_size
    return progress + drift / strong_convexity + step_size * _mean_noise(noise, num_clients)


@statement(
    "Lemma 27",
    kind="upper bound",
    printed="E(t) <= (1/eta - mu/2) A(t) - A(t+1)/eta + (6 tau^2/mu) C(t) + (6 Q^2/mu) D(t) + eta sigma_2^2/M",
    requires=_HALF,
    test=_TEST + "test_function_value_of_one_step",
)
def lemma_27(
    *, distance_sq: Any, next_distance_sq: Any, consensus_sq: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, num_clients: Any, hessian_heterogeneity: Any,
    third_order_smoothness: Any = 0.0, consensus4: Any = 0.0, quadratic: bool = False,
) -> Any:  # fmt: skip
    """Lemma 8 in the moments over pairs. Quadratics: (3 tau^2/mu) times the centred moment, so (3/2) tau^2 C/mu."""
    tau_sq = hessian_heterogeneity**2 * consensus_sq
    drift = 1.5 * tau_sq if quadratic else 6 * tau_sq + 6 * third_order_smoothness**2 * consensus4
    progress = (1 / step_size - strong_convexity / 2) * distance_sq - next_distance_sq / step_size
    return progress + drift / strong_convexity + step_size * _mean_noise(noise, num_clients)


@statement(
    "Lemma 28",
    kind="upper bound",
    printed="E(t) <= (1/eta - mu) A(t) - A(t+1)/eta + 2 H C(t) + 3 eta sigma_2^2/M",
    requires=("strong_convexity <= smoothness", "step_size <= 1 / (10 * smoothness)"),
    test=_TEST + "test_function_value_of_one_step",
)
def lemma_28(
    *, distance_sq: Any, next_distance_sq: Any, consensus_sq: Any, step_size: Any, smoothness: Any,
    strong_convexity: Any, noise: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The same from smoothness alone, also without strong convexity."""
    progress = (1 / step_size - strong_convexity) * distance_sq - next_distance_sq / step_size
    return progress + 2 * smoothness * consensus_sq + 3 * step_size * _mean_noise(noise, num_clients)


def _mean_noise(noise: Any, num_clients: Any) -> Any:
    """Lemma 18."""
    return noise**2 / num_clients


def _drift(H: Any, tau: Any, Q: Any, consensus_sq: Any, consensus4: Any, quadratic: bool) -> Any:
    """min{2 Q^2 D + 2 tau^2 C, H^2 C}, the first as far as its constants are known."""
    if quadratic and tau is not None:
        return np.minimum(tau, H) ** 2 * consensus_sq
    if tau is None or Q is None:
        return H**2 * consensus_sq
    fourth = np.where(Q == 0, 0.0, np.inf) if consensus4 is None else 2 * Q**2 * consensus4
    return np.minimum(fourth + 2 * tau**2 * consensus_sq, H**2 * consensus_sq)


def _fourth(
    eta: Any, H: Any, mu: Any, noise: Any, M: Any, tau: Any, Q: Any, distance_sq: Any, consensus_sq: Any,
    consensus4: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """1 - eta mu, and what Lemma 25 adds to (1 - eta mu) B but for its last term."""
    kept = 1 - eta * mu
    spread = (eta * H**4 / mu**3 + 16 * eta**3 * noise**2 * Q**2 / (mu * M)) * consensus4
    mixed = 8 * (eta * noise) ** 2 * kept / M * distance_sq
    return kept, spread + mixed + 16 * eta**3 * noise**2 * tau**2 / (mu * M) * consensus_sq


def _per_step(value: Any) -> Any:
    """A number per instance, beside moments with one more axis."""
    return value if value is None else np.asarray(value)[..., None]


def _unrolled(kept: Any, steps: Any) -> Any:
    """sum_j kept^(K-1-j) steps[..., j]."""
    last = np.shape(steps)[-1] - 1
    return (_per_step(kept) ** (last - np.arange(last + 1)) * steps).sum(-1)
