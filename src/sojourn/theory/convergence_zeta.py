"""Convergence of local SGD in terms of zeta, tau and Q: Theorems 10 to 12 (thesis, chapter 5 and appendix D.4).

zeta bounds the difference of the clients' gradients everywhere. On quadratics it is finite only where their Hessians
are equal (Proposition 2). Theorem 12 is for convex objectives: local SGD on F_m(x) + (lambda/2)|x - x0|^2.
The consensus error is 0 at K = 1 and at M = 1: there its terms are left out.
"""

from typing import Any

import numpy as np

from sojourn.theory.contraction import left, lost
from sojourn.theory.statement import Predicts, statement
from sojourn.theory.tuning import drifting, largest, log_ratio, quotient, smallest

_TEST = "test_theory_convergence_zeta.py::"
_CONVEX = ("strong_convexity > 0", "strong_convexity <= smoothness")
_SHORT = "2 * step_size * smoothness <= 1 + 1e-12"


@statement(
    "Theorem 10 (Lemma 31)",
    kind="upper bound",
    printed="eta <= 1/(2H): E|x_KR - x*|^2 <= (1-eta mu)^(KR) B^2 + [5240 Q^2 (eta K H zeta)^4 + 10000 Q^2 eta^4 K^2 "
    "sigma_2^4 + 640 Q^2 eta^4 K sigma_4^4 + 6 tau^2 (eta K H zeta)^2 + 12 tau^2 eta^2 K sigma_2^2]/mu^2 + eta "
    "sigma_2^2"
    "/(mu M)",
    requires=(*_CONVEX, _SHORT),
    test=_TEST + "test_theorem_10",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options={"output": "last", "outer_step_size": 1.0}),),
)
def theorem_10(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    third_order_smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any,
    start_distance: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The squared distance of the last model to x*."""
    drift = _drift(
        step_size, num_local_steps, num_clients, hessian_heterogeneity, third_order_smoothness,
        smoothness * gradient_heterogeneity, noise, noise4,
    )  # fmt: skip
    kept = left(step_size * strong_convexity, num_local_steps * rounds) * start_distance**2
    return kept + 2 * drift / strong_convexity**2 + step_size * noise**2 / (strong_convexity * num_clients)


@statement(
    "Theorem 11 (Lemma 32)",
    kind="upper bound",
    status="corrected",
    printed="eta <= 1/(2H): E F(xhat) - F* <= 2 mu B^2 e^(-eta mu T/2) + Phi, T = K R, Phi = (6 tau^2/mu)(3 (eta K H "
    "zeta)^2 + 6 K eta^2 sigma_2^2) + (6 Q^2/mu)(2620 (eta K H zeta)^4 + 5000 eta^4 K^2 sigma_2^4 + 320 eta^4 K "
    "sigma_4^4) + eta sigma_2^2/M, weights (1-eta mu/2)^(T-1-t)",
    corrected="E F(xhat) - F* <= (mu/2) B^2 (1-eta mu/2)^(T-1)/(1 - (1-eta mu/2)^T) + Phi for every T",
    why="the print holds only where e^(-eta mu T/2) <= 1/2; the form before its last step holds for every T and is "
    "below it there",
    requires=(*_CONVEX, _SHORT),
    test=_TEST + "test_theorem_11",
    predicts=(Predicts("LocalSGD", "suboptimality", options={"output": "exp", "outer_step_size": 1.0}),),
)
def theorem_11(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    third_order_smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any,
    start_distance: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The suboptimality of the weighted mean of ghost iterates (local SGD's output "exp")."""
    drift = _drift(
        step_size, num_local_steps, num_clients, hessian_heterogeneity, third_order_smoothness,
        smoothness * gradient_heterogeneity, noise, noise4,
    )  # fmt: skip
    return _weighted_mean(
        step_size, num_local_steps * rounds, strong_convexity, drift, noise, num_clients, start_distance
    )


@statement(
    "Theorem 12 (Lemma 33), any regularizer",
    kind="upper bound",
    printed="F(x) - F* <= F_lambda(x) - min F_lambda + (lambda/2) B^2, with Lemma 32 for F_lambda = F + (lambda/2) "
    "|x - x0|^2",
    requires=("regularization > 0", "2 * step_size * (smoothness + regularization) <= 1 + 1e-12"),
    test=_TEST + "test_theorem_12",
    predicts=(Predicts("RegularizedLocalSGD", "suboptimality"),),
)
def theorem_12_regularized(
    *, step_size: Any, num_local_steps: Any, rounds: Any, regularization: Any, smoothness: Any,
    third_order_smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any,
    start_distance: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The suboptimality of regularized local SGD for convex clients, with whatever regularizer it was run."""
    drift = _drift(
        step_size, num_local_steps, num_clients, hessian_heterogeneity, third_order_smoothness,
        smoothness * gradient_heterogeneity, noise, noise4,
    )  # fmt: skip
    total = num_local_steps * rounds
    gap = _weighted_mean(step_size, total, regularization, drift, noise, num_clients, start_distance)
    return gap + regularization / 2 * start_distance**2


@statement(
    "Theorem 12 (Lemma 33)",
    kind="upper bound",
    status="corrected",
    printed="eta <= 1/(2H): E F(xhat) - F* <= (B^2/(eta K R))(1 + ln(2 eta H K R)) + 6 eta tau K H zeta B + 12 eta tau "
    "sqrt(K) sigma_2 B + 178 eta^2 Q B K^2 H^2 zeta^2 + 245 eta^2 Q B K sigma_2^2 + 62 eta^2 Q B sqrt(K) sigma_4^2 + "
    "eta sigma_2^2/M with the regularizer mu_reg",
    corrected="the same for 2/(H K R) <= eta <= 1/(2 (H + mu_reg))",
    why="the regularized objective is (H + mu_reg)-smooth, so eta <= 1/(2H) is not short enough for Lemma 32",
    requires=("start_distance > 0", _SHORT),
    test=_TEST + "test_theorem_12",
)
def theorem_12(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, third_order_smoothness: Any,
    hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """Theorem 12 with its own regularizer; inf where the step is too short or too long for it to speak."""
    eta, K, H, Q, B = step_size, num_local_steps, smoothness, third_order_smoothness, start_distance
    slope = H * gradient_heterogeneity
    drift = _drift(eta, K, num_clients, hessian_heterogeneity, Q, slope, noise, noise4)
    strength = _regularization(eta * K * rounds, H, drift, B)
    speaks = (eta * H * K * rounds >= 2 - 1e-12) & (2 * eta * (H + strength) <= 1 + 1e-12)
    product = np.where(speaks, eta * K * rounds, 1.0)
    second = eta * hessian_heterogeneity * B * (6 * K * slope + 12 * K**0.5 * noise)
    third = eta**2 * Q * B * (178 * (K * slope) ** 2 + 245 * K * noise**2 + 62 * K**0.5 * noise4**2)
    start = B**2 / product * (1 + np.log(np.maximum(2 * H * product, 1.0)))
    bound = start + drifting(K, num_clients) * (second + third) + eta * noise**2 / num_clients
    return np.where(speaks, bound, np.inf)


@statement(
    "Theorem 12 (Lemma 33), regularizer",
    kind="step size",
    printed="mu_reg = max{(2/(eta K R)) ln(2 eta H K R), sqrt(2 Phi')/B}, Phi' = 6 tau^2 (3 (eta K H zeta)^2 + 6 K "
    "eta^2 "
    "sigma_2^2) + 6 Q^2 (2620 (eta K H zeta)^4 + 5000 eta^4 K^2 sigma_2^4 + 320 eta^4 K sigma_4^4)",
    requires=("start_distance > 0", "step_size * smoothness * num_local_steps * rounds >= 2 - 1e-12"),
    test=_TEST + "test_theorem_12",
)
def theorem_12_regularization(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, third_order_smoothness: Any,
    hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """The regularizer that balances its own bias against what it buys."""
    drift = _drift(
        step_size, num_local_steps, num_clients, hessian_heterogeneity, third_order_smoothness,
        smoothness * gradient_heterogeneity, noise, noise4,
    )  # fmt: skip
    return _regularization(step_size * num_local_steps * rounds, smoothness, drift, start_distance)


@statement(
    "Theorem 10 (Lemma 31), tuned",
    kind="step size",
    printed="eta = min{1/(2H), ln(B^2/eps)/(mu K R)}, eps = max{5240 Q^2 H^4 zeta^4/(mu^6 R^4), 10000 Q^2 sigma_2^4/"
    "(mu^6 K^2 R^4), 640 Q^2 sigma_4^4/(mu^6 K^3 R^4), 6 tau^2 H^2 zeta^2/(mu^4 R^2), 12 tau^2 sigma_2^2/(mu^4 K R^2), "
    "sigma_2^2/(mu^2 M K R), target}",
    requires=(*_CONVEX, "rounds >= 1"),
    test=_TEST + "test_theorem_10_tuned",
)
def theorem_10_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, third_order_smoothness: Any,
    hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any,
    num_clients: Any, target: Any = 0.0,
) -> Any:  # fmt: skip
    """The tuned step; the logarithm is at least 1. The bound needs no number of rounds."""
    K, R, mu, tau, Q = num_local_steps, rounds, strong_convexity, hessian_heterogeneity, third_order_smoothness
    slope, drift = smoothness * gradient_heterogeneity, drifting(num_local_steps, num_clients)
    floor = largest(
        drift * 5240 * Q**2 * slope**4 / (mu**6 * R**4),
        drift * 10000 * Q**2 * noise**4 / (mu**6 * K**2 * R**4),
        drift * 640 * Q**2 * noise4**4 / (mu**6 * K**3 * R**4),
        drift * 6 * (tau * slope) ** 2 / (mu**4 * R**2),
        drift * 12 * (tau * noise) ** 2 / (mu**4 * K * R**2),
        noise**2 / (mu**2 * num_clients * K * R),
        target,
    )
    return smallest(1 / (2 * smoothness), log_ratio(start_distance**2, floor) / (mu * K * R))


@statement(
    "Theorem 11 (Lemma 32), tuned",
    kind="step size",
    printed="eta = min{1/(2H), (2/(mu K R)) ln(mu B^2/eps)}, eps = max{Phi at eta = 1/(mu K R), target} <= mu B^2/2",
    requires=(*_CONVEX, "rounds >= 1"),
    test=_TEST + "test_theorem_11_tuned",
)
def theorem_11_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, third_order_smoothness: Any,
    hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any,
    num_clients: Any, target: Any = 0.0,
) -> Any:  # fmt: skip
    """The tuned step; the logarithm is at least 1, which is what eps <= mu B^2/2 is for."""
    K, R, mu = num_local_steps, rounds, strong_convexity
    slope = smoothness * gradient_heterogeneity
    drift = _drift(
        1 / (mu * K * R), K, num_clients, hessian_heterogeneity, third_order_smoothness, slope, noise, noise4
    )
    floor = largest(6 * drift / mu + noise**2 / (mu * num_clients * K * R), target)
    return smallest(1 / (2 * smoothness), 2 * log_ratio(mu * start_distance**2, floor) / (mu * K * R))


@statement(
    "Theorem 11 (Lemma 32), rounds",
    kind="step size",
    printed="K R >= 4 kappa ln 2",
    requires=(*_CONVEX, _SHORT),
    test=_TEST + "test_theorem_11_tuned",
)
def theorem_11_needs_rounds(*, step_size: Any, num_local_steps: Any, smoothness: Any, strong_convexity: Any) -> Any:
    """The rounds from which e^(-eta mu K R/2) <= 1/2, so that the printed form holds too; at 1/(2H) as printed."""
    return 2 * np.log(2) / (step_size * strong_convexity * num_local_steps)


@statement(
    "Theorem 12 (Lemma 33), tuned",
    kind="step size",
    status="corrected",
    printed="eta = min{1/(2H), sqrt(B/(tau K^2 R H zeta)), sqrt(B/(tau K^(3/2) R sigma_2)), (B/(Q K^3 R H^2 "
    "zeta^2))^(1/3),"
    " (B/(Q K^2 R sigma_2^2))^(1/3), (B/(Q K^(3/2) R sigma_4^2))^(1/3), sqrt(B^2 M/(sigma_2^2 K R))}",
    corrected="half of it",
    why="the regularized objective is (H + mu_reg)-smooth; half the step leaves room for mu_reg <= H",
    requires=("start_distance > 0", "rounds >= 1"),
    test=_TEST + "test_theorem_12_tuned",
)
def theorem_12_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, third_order_smoothness: Any, hessian_heterogeneity: Any,
    gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any, num_clients: Any, halved: bool = True,
) -> Any:  # fmt: skip
    """The tuned step for convex clients; `halved=False` gives the printed one."""
    K, R, B = num_local_steps, rounds, start_distance
    drift = drifting(K, num_clients)
    tau, Q = drift * hessian_heterogeneity, drift * third_order_smoothness
    slope = smoothness * gradient_heterogeneity
    printed = smallest(
        1 / (2 * smoothness),
        quotient(B, tau * K**2 * R * slope) ** 0.5,
        quotient(B, tau * K**1.5 * R * noise) ** 0.5,
        quotient(B, Q * K**3 * R * slope**2) ** (1 / 3),
        quotient(B, Q * K**2 * R * noise**2) ** (1 / 3),
        quotient(B, Q * K**1.5 * R * noise4**2) ** (1 / 3),
        B * quotient(num_clients, noise**2 * K * R) ** 0.5,
    )
    return printed / 2 if halved else printed


@statement(
    "Theorem 12 (Lemma 33), rounds",
    kind="step size",
    status="corrected",
    printed="R >= max{4/K, 4 tau zeta/(B H), tau sigma_2/(4 H^2 B sqrt(K)), Q zeta^2/(8 H B), sigma_2 sqrt(Q)/(sqrt(8 "
    "B K) "
    "H^(3/2)), sqrt(Q) sigma_4/(sqrt(8 B) H^(3/2) K^(3/4)), sigma_2^2/(4 H^2 B^2 M K)}",
    corrected="R >= max{4/K, 4 tau zeta/(B H), 4 tau sigma_2/(H^2 B sqrt(K)), sqrt(8 Q zeta^2/(H B)), sqrt(8 Q/(B K)) "
    "sigma_2/H^(3/2), sqrt(8 Q/B) sigma_4/(H^(3/2) K^(3/4)), 4 sigma_2^2/(H^2 B^2 M K)}; for the halved step 8/K for "
    "4/K, 16 for the other 4 and 64 for 8",
    why="these are what eta >= 2/(H K R) asks of each candidate; the print has the reciprocals of 4 and 8 and lacks a "
    "root",
    requires=("start_distance > 0",),
    test=_TEST + "test_theorem_12_tuned",
)
def theorem_12_needs_rounds(
    *, num_local_steps: Any, smoothness: Any, third_order_smoothness: Any, hessian_heterogeneity: Any,
    gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any, num_clients: Any, halved: bool = True,
) -> Any:  # fmt: skip
    """The rounds from which the tuned step is at least 2/(H K R), below which Theorem 12 does not speak."""
    K, H, B = num_local_steps, smoothness, start_distance
    drift = drifting(K, num_clients)
    tau, root = drift * hessian_heterogeneity, (drift * third_order_smoothness / B) ** 0.5
    times = 4.0 if halved else 2.0  # the unhalved step must reach times/(H K R)
    return largest(
        2 * times / K,
        times**2 * tau * gradient_heterogeneity / (H * B),
        times**2 * tau * noise / (H**2 * B * K**0.5),
        times**1.5 * root * gradient_heterogeneity / H**0.5,
        times**1.5 * root * noise / (H**1.5 * K**0.5),
        times**1.5 * root * noise4 / (H**1.5 * K**0.75),
        times**2 * noise**2 / ((H * B) ** 2 * num_clients * K),
    )


def _drift(eta: Any, K: Any, M: Any, tau: Any, Q: Any, slope: Any, sigma2: Any, sigma4: Any) -> Any:
    """tau^2 C + Q^2 D with Lemmas 29 and 30 for the second and fourth moment of the consensus error; slope = H zeta."""
    second = 3 * (eta * K * slope) ** 2 + 6 * K * (eta * sigma2) ** 2
    fourth = 2620 * (eta * K * slope) ** 4 + 5000 * (eta * sigma2) ** 4 * K**2 + 320 * (eta * sigma4) ** 4 * K
    return drifting(K, M) * (tau**2 * second + Q**2 * fourth)


def _weighted_mean(eta: Any, T: Any, mu: Any, drift: Any, sigma: Any, M: Any, B: Any) -> Any:
    gone = lost(eta * mu / 2, T)
    kept = mu / 2 * left(eta * mu / 2, T - 1) / np.where(gone > 0, gone, 1.0) * B**2
    return np.where(gone > 0, kept + 6 * drift / mu + eta * sigma**2 / M, np.inf)


def _regularization(product: Any, H: Any, drift: Any, B: Any) -> Any:
    product = np.where(np.asarray(product) > 0, product, 1.0)  # after no round nothing is said
    return largest(2 / product * np.log(np.maximum(2 * H * product, 1.0)), (12 * drift) ** 0.5 / B)
