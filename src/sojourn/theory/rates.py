"""Rates of the thesis whose constants are unknown (chapters 3 and 5): scaling laws, to compare methods and terms.

Each returns its terms by name and, under "sum", their sum; logarithms are dropped as in the source. `dominant` says
which term is the largest. `target` is the error to reach; for the rounds of (5.2) and (5.3) it is a squared distance.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.theory.statement import statement
from sojourn.theory.tuning import drifting, with_sum

_TEST = "test_theory_rates.py::"
_STRONG = ("strong_convexity > 0", "rounds > 0")
_RUN = ("rounds > 0",)
_ROUNDS = ("strong_convexity > 0", "target > 0")


def dominant(terms: Mapping[str, Any]) -> str:
    """The name of the largest term of a rate at one point."""
    return max((name for name in terms if name != "sum"), key=lambda name: float(terms[name]))


@statement(
    "Equation 3.1", kind="scaling law", status="scaling only",
    printed="H B^2/(K R) + sigma B/sqrt(M K R)  (local SGD, identical quadratics)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_1(
    *, smoothness: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of local SGD on identical convex quadratics."""
    return _convex(smoothness * start_distance**2, num_local_steps * rounds, 1, noise * start_distance, num_clients)


@statement(
    "Equation 3.2 (minibatch SGD)", kind="scaling law", status="scaling only",
    printed="H B^2/R + sigma B/sqrt(M K R)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_2_minibatch(
    *, smoothness: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of minibatch SGD."""
    samples = num_clients * num_local_steps
    return _convex(smoothness * start_distance**2, rounds, 1, noise * start_distance, samples)


@statement(
    "Equation 3.2 (single machine)", kind="scaling law", status="scaling only",
    printed="H B^2/(K R) + sigma B/sqrt(K R)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_2_single_machine(
    *, smoothness: Any, start_distance: Any, noise: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of SGD on one machine, identical clients."""
    return _convex(smoothness * start_distance**2, num_local_steps * rounds, 1, noise * start_distance, 1)


@statement(
    "Equation 3.3", kind="scaling law", status="scaling only",
    printed="H B^2/(K R)^2 + sigma B/sqrt(M K R)  (accelerated local SGD, identical quadratics)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_3(
    *, smoothness: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of accelerated local SGD on identical convex quadratics; no method does better there."""
    return _convex(smoothness * start_distance**2, num_local_steps * rounds, 2, noise * start_distance, num_clients)


@statement(
    "Equation 3.4 (minibatch SGD)", kind="scaling law", status="scaling only",
    printed="H B^2/R^2 + sigma B/sqrt(M K R)  (accelerated)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_4_minibatch(
    *, smoothness: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of accelerated minibatch SGD."""
    samples = num_clients * num_local_steps
    return _convex(smoothness * start_distance**2, rounds, 2, noise * start_distance, samples)


@statement(
    "Equation 3.4 (single machine)", kind="scaling law", status="scaling only",
    printed="H B^2/(K R)^2 + sigma B/sqrt(K R)  (accelerated)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_4_single_machine(
    *, smoothness: Any, start_distance: Any, noise: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The gap of accelerated SGD on one machine, identical clients."""
    return _convex(smoothness * start_distance**2, num_local_steps * rounds, 2, noise * start_distance, 1)


@statement(
    "Equation 3.5", kind="scaling law", status="scaling only",
    printed="H B^2/(K R) + sigma B/sqrt(M K R) + Q^(1/3) sigma_4^(2/3) B^(5/3)/(K^(1/3) R^(2/3))  (local SGD)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_5(
    *, smoothness: Any, start_distance: Any, noise: Any, noise4: Any, third_order_smoothness: Any, num_clients: Any,
    num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The gap of local SGD on identical convex clients."""
    curvature = (third_order_smoothness * noise4**2 * start_distance**5) ** (1 / 3)
    return with_sum(
        optimization=smoothness * start_distance**2 / (num_local_steps * rounds),
        noise=noise * start_distance / (num_clients * num_local_steps * rounds) ** 0.5,
        curvature=curvature / (num_local_steps * rounds**2) ** (1 / 3),
    )


@statement(
    "Equation 3.6", kind="scaling law", status="scaling only",
    printed="H B^2/(K R^2) + sigma B/sqrt(M K R) + H^(1/3) sigma^(2/3) B^(4/3)/(M^(1/3) K^(1/3) R) + "
    "Q^(1/3) sigma_4^(2/3) B^(5/3)/(K^(1/3) R^(4/3))  (FedAc)",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_6(
    *, smoothness: Any, start_distance: Any, noise: Any, noise4: Any, third_order_smoothness: Any, num_clients: Any,
    num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The gap of FedAc on identical convex clients."""
    H, B, M, K, R = smoothness, start_distance, num_clients, num_local_steps, rounds
    return with_sum(
        optimization=H * B**2 / (K * R**2),
        noise=noise * B / (M * K * R) ** 0.5,
        drift=(H * noise**2 * B**4 / (M * K)) ** (1 / 3) / R,
        curvature=(third_order_smoothness * noise4**2 * B**5 / K) ** (1 / 3) / R ** (4 / 3),
    )


@statement(
    "Equation 3.7", kind="scaling law", status="scaling only",
    printed="H B^2/(K R)^2 + min{sigma B/sqrt(M K R), H B^2} + min{H B^2/R^2, sqrt(Q) sigma B^2/(K^(1/4) R^2), "
    "sigma B/sqrt(K R)}  (a lower bound for any method)",
    corrected="sqrt(Q sigma) B^2 for sqrt(Q) sigma B^2",
    why="only sqrt(Q sigma) has the dimension of the other terms",
    requires=_RUN, test=_TEST + "test_rates_of_chapter_3",
)  # fmt: skip
def rate_3_7(
    *, smoothness: Any, start_distance: Any, noise: Any, third_order_smoothness: Any, num_clients: Any,
    num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """What no method can beat on identical convex clients."""
    B, K, R, gap = start_distance, num_local_steps, rounds, smoothness * start_distance**2
    bent = (third_order_smoothness * noise) ** 0.5 * B**2 / (K**0.25 * R**2)
    return with_sum(
        optimization=gap / (K * R) ** 2,
        noise=np.minimum(noise * B / (num_clients * K * R) ** 0.5, gap),
        communication=np.minimum(np.minimum(gap / R**2, bent), noise * B / (K * R) ** 0.5),
    )


@statement(
    "Minibatch SGD, strongly convex", kind="scaling law", status="scaling only",
    printed="E|x - x*|^2: e^(-mu R/(2H)) B^2 + sigma^2/(mu^2 M K R)  (below Theorem 5)",
    requires=_STRONG, test=_TEST + "test_strongly_convex_rates",
)  # fmt: skip
def rate_minibatch(
    *, smoothness: Any, strong_convexity: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any,
) -> Any:  # fmt: skip
    """The squared distance of minibatch SGD."""
    samples = num_clients * num_local_steps * rounds
    return with_sum(
        optimization=np.exp(-strong_convexity * rounds / (2 * smoothness)) * start_distance**2,
        noise=(noise / strong_convexity) ** 2 / samples,
    )


@statement(
    "Local SGD, identical strongly convex quadratics", kind="scaling law", status="scaling only",
    printed="E|x - x*|^2: e^(-mu K R/(2H)) B^2 + sigma^2/(mu^2 M K R)  (Theorem 7 at tau = 0)",
    requires=_STRONG, test=_TEST + "test_strongly_convex_rates",
)  # fmt: skip
def rate_local(
    *, smoothness: Any, strong_convexity: Any, start_distance: Any, noise: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any,
) -> Any:  # fmt: skip
    """The squared distance of local SGD where local steps cost nothing."""
    return with_sum(**_start_and_noise(
        1.0, 2.0, smoothness, strong_convexity, start_distance, noise, num_clients, num_local_steps * rounds
    ))  # fmt: skip


@statement(
    "Single machine, strongly convex", kind="scaling law", status="scaling only",
    printed="E|x - x*|^2: e^(-mu K R/(2H)) B^2 + sigma^2/(mu^2 K R)  (identical clients)",
    requires=_STRONG, test=_TEST + "test_strongly_convex_rates",
)  # fmt: skip
def rate_single_machine(
    *, smoothness: Any, strong_convexity: Any, start_distance: Any, noise: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """The squared distance of SGD on one machine."""
    return with_sum(**_start_and_noise(
        1.0, 2.0, smoothness, strong_convexity, start_distance, noise, 1.0, num_local_steps * rounds
    ))  # fmt: skip


@statement(
    "Theorem 5, rate", kind="scaling law", status="scaling only",
    printed="e^(-mu K R/(2H)) B^2 + sigma^2/(mu^2 M K R) + tau^2 H^2 phi_*^2/(mu^4 R^2) + H^4 zeta_*^2/(mu^4 R^2) + "
    "H^2 tau^2 sigma^2/(mu^6 K R^3) + H^2 sigma^2/(mu^4 K R^2)",
    requires=_STRONG, test=_TEST + "test_rates_of_theorems_5_to_8",
)  # fmt: skip
def rate_theorem_5(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The squared distance of local SGD."""
    return _star_rate(
        1.0, 2.0, smoothness / strong_convexity, smoothness, strong_convexity, hessian_heterogeneity,
        optima_heterogeneity, optima_distance, noise, start_distance, num_clients, num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 7, rate", quadratic=True, kind="scaling law", status="scaling only",
    printed="e^(-mu K R/(2H)) B^2 + sigma^2/(mu^2 M K R) + tau^4 phi_*^2/(mu^4 R^2) + tau^2 H^2 zeta_*^2/(mu^4 R^2) + "
    "tau^4 sigma^2/(mu^6 K R^3) + tau^2 sigma^2/(mu^4 K R^2)  (quadratics)",
    requires=_STRONG, test=_TEST + "test_rates_of_theorems_5_to_8",
)  # fmt: skip
def rate_theorem_7(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The squared distance of local SGD on quadratics."""
    return _star_rate(
        1.0, 2.0, hessian_heterogeneity / strong_convexity, smoothness, strong_convexity, hessian_heterogeneity,
        optima_heterogeneity, optima_distance, noise, start_distance, num_clients, num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 6, rate", kind="scaling law", status="scaling only",
    printed="e^(-mu K R/(2H)) mu B^2 + sigma^2/(mu M K R) + tau^2 H phi_*^2/(mu^2 R^2) + H^3 zeta_*^2/(mu^2 R^2) + "
    "H tau^2 sigma^2/(mu^4 K R^3) + H sigma^2/(mu^2 K R^2)",
    corrected="e^(-mu K R/(10H)) mu B^2 in the first term",
    why="the longest step is 1/(10H), not 1/(2H)",
    requires=_STRONG, test=_TEST + "test_rates_of_theorems_5_to_8",
)  # fmt: skip
def rate_theorem_6(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The gap of local SGD's weighted mean."""
    return _star_rate(
        strong_convexity, 10.0, (smoothness / strong_convexity) ** 0.5, smoothness, strong_convexity,
        hessian_heterogeneity, optima_heterogeneity, optima_distance, noise, start_distance, num_clients,
        num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 8, rate", quadratic=True, kind="scaling law", status="scaling only",
    printed="e^(-mu K R/(2H)) mu B^2 + sigma^2/(mu M K R) + tau^4 phi_*^2/(mu^3 R^2) + tau^2 H^2 zeta_*^2/(mu^3 R^2) + "
    "tau^4 sigma^2/(mu^5 K R^3) + tau^2 sigma^2/(mu^3 K R^2)  (quadratics)",
    corrected="e^(-mu K R/(4H)) mu B^2 in the first term",
    why="the corrected bound contracts by 1 - eta mu/2",
    requires=_STRONG, test=_TEST + "test_rates_of_theorems_5_to_8",
)  # fmt: skip
def rate_theorem_8(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The gap of local SGD's weighted mean on quadratics."""
    return _star_rate(
        strong_convexity, 4.0, hessian_heterogeneity / strong_convexity, smoothness, strong_convexity,
        hessian_heterogeneity, optima_heterogeneity, optima_distance, noise, start_distance, num_clients,
        num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 9, rate", kind="scaling law", status="scaling only",
    printed="e^(-K R/kappa) B^2 + sigma_2^2/(mu^2 M K R) + sigma_4^4/(mu^4 K^3 R^3 M^2 B^2) + kappa' {tau^2 phi_*^2/"
    "(mu^2 R^2) + tau^4 sigma_4^2 phi_*^2/(mu^6 K R^5 B^2) + sigma_2^2 tau^2 phi_*^2/(mu^4 K R^4 B^2) + tau^4 phi_*^4/"
    "(mu^4 B^2 R^4) + H^2 zeta_*^2/(mu^2 R^2) + tau^2 sigma_2^2/(mu^4 K R^3) + sigma_2^2 ln(K)/(mu^2 K R^2) + H^4 "
    "zeta_*^4"
    "/(mu^4 R^3 B^2) + tau^4 sigma_4^4/(mu^8 K^2 R^5 B^2) + sigma_2^2 H^2 zeta_*^2/(mu^4 B^2 R^4) + tau^2 "
    "sigma_2^4/(mu^6 "
    "K R^5 B^2) + sigma_4^4 ln(K)/(mu^4 K B^2 R^4)}, kappa' = 2 + 4 Q^2 B^2/mu^2 + 6 H^4/mu^4",
    why="the proof takes the spectral norms of lower triangular matrices for their diagonals, so no constant is sure",
    requires=(*_STRONG, "start_distance > 0"), test=_TEST + "test_theorem_9",
)  # fmt: skip
def rate_theorem_9(
    *, smoothness: Any, strong_convexity: Any, third_order_smoothness: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, optima_distance: Any, noise: Any, noise4: Any, start_distance: Any, num_clients: Any,
    num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """Of E|x - x*|^2 + E|x - x*|^4/B^2. Lengths: s, s4, t, z and p are noise, tau phi and so on over mu."""
    H, mu, B, M, K, R = smoothness, strong_convexity, start_distance, num_clients, num_local_steps, rounds
    s, s4, t = noise / mu, noise4 / mu, hessian_heterogeneity / mu
    p, z = optima_distance, H * optima_heterogeneity / mu
    stiff = drifting(K, M) * (2 + 4 * (third_order_smoothness * B / mu) ** 2 + 6 * (H / mu) ** 4)
    far = t**2 / R**2 + t**4 * s4**2 / (K * R**5 * B**2) + (s * t / B) ** 2 / (K * R**4)
    log = 1 + np.log(K)
    local = (t * s) ** 2 / (K * R**3) + s**2 * log / (K * R**2) + (t * s4) ** 4 / (K**2 * R**5 * B**2)
    local = local + t**2 * s**4 / (K * R**5 * B**2) + s4**4 * log / (K * R**4 * B**2)
    apart = (z / R) ** 2 + z**4 / (R**3 * B**2) + (s * z / B) ** 2 / R**4
    return with_sum(
        optimization=np.exp(-mu * K * R / H) * B**2,
        noise=s**2 / (M * K * R) + s4**4 / ((K * R) ** 3 * (M * B) ** 2),
        optima_distance=stiff * (far * p**2 + (t * p / R) ** 4 / B**2),
        optima_heterogeneity=stiff * apart,
        local_noise=stiff * local,
    )


@statement(
    "Theorem 10, rate", kind="scaling law", status="scaling only",
    printed="e^(-K R/(2 kappa)) B^2 + Q^2 H^4 zeta^4/(mu^6 R^4) + Q^2 sigma_2^4/(mu^6 K^2 R^4) + Q^2 sigma_4^4/(mu^6 "
    "K^3 "
    "R^4) + tau^2 H^2 zeta^2/(mu^4 R^2) + tau^2 sigma_2^2/(mu^4 K R^2) + sigma_2^2/(mu^2 M K R)",
    requires=_STRONG, test=_TEST + "test_rates_with_zeta",
)  # fmt: skip
def rate_theorem_10(
    *, smoothness: Any, strong_convexity: Any, third_order_smoothness: Any, hessian_heterogeneity: Any,
    gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any,
) -> Any:  # fmt: skip
    """The squared distance of local SGD, by zeta, tau and Q."""
    return _zeta_rate(
        1.0, 2.0, smoothness, strong_convexity, third_order_smoothness, hessian_heterogeneity,
        smoothness * gradient_heterogeneity, noise, noise4, start_distance, num_clients, num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 11, rate", kind="scaling law", status="scaling only",
    printed="mu B^2 e^(-K R/(4 kappa)) + mu times the other terms of Theorem 10's rate",
    requires=_STRONG, test=_TEST + "test_rates_with_zeta",
)  # fmt: skip
def rate_theorem_11(
    *, smoothness: Any, strong_convexity: Any, third_order_smoothness: Any, hessian_heterogeneity: Any,
    gradient_heterogeneity: Any, noise: Any, noise4: Any, start_distance: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any,
) -> Any:  # fmt: skip
    """The gap of local SGD's weighted mean, by zeta, tau and Q."""
    return _zeta_rate(
        strong_convexity, 4.0, smoothness, strong_convexity, third_order_smoothness, hessian_heterogeneity,
        smoothness * gradient_heterogeneity, noise, noise4, start_distance, num_clients, num_local_steps, rounds,
    )  # fmt: skip


@statement(
    "Theorem 12, rate", kind="scaling law", status="scaling only",
    printed="H B^2/(K R) + sqrt(tau H zeta) B^(3/2)/sqrt(R) + sqrt(tau sigma_2) B^(3/2)/(K^(1/4) sqrt(R)) + Q^(1/3) "
    "B^(5/3) "
    "[(H zeta)^(2/3)/R^(2/3) + sigma_2^(2/3)/(K^(1/3) R^(2/3)) + sigma_4^(2/3)/(K^(1/2) R^(2/3))] + sigma_2 B/sqrt(M "
    "K R)",
    requires=_RUN, test=_TEST + "test_rates_with_zeta",
)  # fmt: skip
def rate_theorem_12(
    *, smoothness: Any, third_order_smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any,
    noise: Any, noise4: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """The gap of regularized local SGD on convex clients."""
    B, K, R, drift = start_distance, num_local_steps, rounds, drifting(num_local_steps, num_clients)
    slope = smoothness * gradient_heterogeneity
    bent = drift * (third_order_smoothness * B**5 / R**2) ** (1 / 3)
    return with_sum(
        optimization=smoothness * B**2 / (K * R),
        noise=noise * B / (num_clients * K * R) ** 0.5,
        hessian_heterogeneity=drift * (hessian_heterogeneity * slope * B**3 / R) ** 0.5,
        hessian_noise=drift * (hessian_heterogeneity * noise * B**3 / R) ** 0.5 / K**0.25,
        curvature=bent * slope ** (2 / 3),
        curvature_noise=bent * ((noise**2 / K) ** (1 / 3) + noise4 ** (2 / 3) / K**0.5),
    )


@statement(
    "Equation 5.2", kind="scaling law", status="scaling only",
    printed="R(eps) ~ H tau/mu^2 + tau H phi_*/(mu^2 sqrt(eps)) + H^2 zeta_*/(mu^2 sqrt(eps)), E|x - x*| <= eps",
    corrected="the same for E|x - x*|^2 <= eps",
    why="sqrt(eps) follows from the rate for the squared distance; the footnote says the distance",
    requires=_ROUNDS, test=_TEST + "test_rounds_to_a_target",
)  # fmt: skip
def rounds_5_2(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, target: Any,
) -> Any:  # fmt: skip
    """Rounds of local SGD to a squared distance, for many local steps."""
    scale = smoothness / strong_convexity**2
    return with_sum(
        least=scale * hessian_heterogeneity,
        optima_distance=scale * hessian_heterogeneity * optima_distance / target**0.5,
        optima_heterogeneity=scale * smoothness * optima_heterogeneity / target**0.5,
    )


@statement(
    "Equation 5.3", quadratic=True, kind="scaling law", status="scaling only",
    printed="R(eps) ~ tau^2/mu^2 + tau^2 phi_*/(mu^2 sqrt(eps)) + tau H zeta_*/(mu^2 sqrt(eps))  (quadratics)",
    requires=_ROUNDS, test=_TEST + "test_rounds_to_a_target",
)  # fmt: skip
def rounds_5_3(
    *, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any,
    optima_distance: Any, target: Any,
) -> Any:  # fmt: skip
    """As (5.2), on quadratics."""
    scale = hessian_heterogeneity / strong_convexity**2
    return with_sum(
        least=scale * hessian_heterogeneity,
        optima_distance=scale * hessian_heterogeneity * optima_distance / target**0.5,
        optima_heterogeneity=scale * smoothness * optima_heterogeneity / target**0.5,
    )


@statement(
    "Remark 30", kind="scaling law", status="scaling only",
    printed="R(eps) ~ tau zeta/(H B) + Q zeta^2/(H B) + tau H zeta B^3/eps^2 + Q^(1/2) B^(5/2) H zeta/eps^(3/2)",
    corrected="sqrt(Q zeta^2/(H B)) for the second term",
    why="a root is missing: in Lemma 33 it is R^2 that must exceed a multiple of Q zeta^2/(H B)",
    requires=("start_distance > 0", "target > 0"), test=_TEST + "test_rounds_to_a_target",
)  # fmt: skip
def rounds_remark_30(
    *, smoothness: Any, third_order_smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any,
    start_distance: Any, target: Any,
) -> Any:  # fmt: skip
    """Rounds of regularized local SGD to a suboptimality, for many local steps and convex clients."""
    H, B, Q, zeta = smoothness, start_distance, third_order_smoothness, gradient_heterogeneity
    return with_sum(
        least=hessian_heterogeneity * zeta / (H * B),
        least_curvature=zeta * (Q / (H * B)) ** 0.5,
        hessian_heterogeneity=hessian_heterogeneity * H * zeta * B**3 / target**2,
        curvature=Q**0.5 * B**2.5 * H * zeta / target**1.5,
    )


def _convex(gap: Any, steps: Any, power: int, noise: Any, samples: Any) -> dict[str, Any]:
    return with_sum(optimization=gap / steps**power, noise=noise / (samples * steps) ** 0.5)


def _start_and_noise(scale: Any, slow: float, H: Any, mu: Any, B: Any, sigma: Any, M: Any, T: Any) -> dict[str, Any]:
    return {
        "optimization": scale * np.exp(-mu * T / (slow * H)) * B**2,
        "noise": scale * (sigma / mu) ** 2 / (M * T),
    }


def _star_rate(
    scale: Any, slow: float, weight: Any, H: Any, mu: Any, tau: Any, zeta: Any, phi: Any, sigma: Any, B: Any, M: Any,
    K: Any, R: Any,
) -> dict[str, Any]:  # fmt: skip
    """Theorems 5 to 8: weight^2 (H/mu, tau/mu or sqrt(H/mu)) stands before the squared consensus error."""
    drift = drifting(K, M) * scale * weight**2
    return with_sum(
        **_start_and_noise(scale, slow, H, mu, B, sigma, M, K * R),
        optima_distance=drift * (tau * phi / (mu * R)) ** 2,
        optima_heterogeneity=drift * (H * zeta / (mu * R)) ** 2,
        hessian_noise=drift * (tau * sigma) ** 2 / (mu**4 * K * R**3),
        local_noise=drift * sigma**2 / (mu**2 * K * R**2),
    )


def _zeta_rate(
    scale: Any,
    slow: Any,
    H: Any,
    mu: Any,
    Q: Any,
    tau: Any,
    slope: Any,
    s2: Any,
    s4: Any,
    B: Any,
    M: Any,
    K: Any,
    R: Any,
) -> dict[str, Any]:
    drift = drifting(K, M) * scale
    return with_sum(
        optimization=scale * np.exp(-mu * K * R / (slow * H)) * B**2,
        noise=scale * (s2 / mu) ** 2 / (M * K * R),
        hessian_heterogeneity=drift * (tau * slope) ** 2 / (mu**4 * R**2),
        hessian_noise=drift * (tau * s2) ** 2 / (mu**4 * K * R**2),
        curvature=drift * Q**2 * slope**4 / (mu**6 * R**4),
        curvature_noise=drift * Q**2 * (s2**4 / K**2 + s4**4 / K**3) / (mu**6 * R**4),
    )
