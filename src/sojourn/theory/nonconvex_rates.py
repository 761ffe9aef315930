"""Rates of the thesis's chapter 6, all up to constants: table 6.1, its lower bounds, and the regimes of figure 6.1.

Paper to code: Delta -> start_gap, beta -> momentum, b_0 -> first_batch (in samples), eps -> target, a bound on
E|grad F|^2, N -> samples. The table's L is H.
"""

from typing import Any

import numpy as np

from sojourn.theory.statement import statement
from sojourn.theory.tuning import largest, quotient, with_sum

_TEST = "test_theory_nonconvex.py::"
_ROUNDS = ("rounds >= 1",)


@statement(
    "Theorems 13 and 25 (table 6.1)", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 >= c (Delta H/R + sigma^2/(M K R) + (sigma Delta H/(M K R))^(2/3)), centralized methods",
    why="for every problem in print; read: there is one, in every class",
    requires=_ROUNDS, test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_theorem_13(
    *, smoothness: Any, noise: Any, start_gap: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """What no method does better whose clients answer at one point per round; tau does not enter."""
    return with_sum(
        optimization=start_gap * smoothness / rounds,
        **_sampled(smoothness, noise, start_gap, num_clients * num_local_steps * rounds),
    )


@statement(
    "Theorems 15 and 24 (table 6.1)", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 >= c (min{Delta tau, H^2 zeta^2}/R + Delta H/(K R) + sigma^2/(M K R) + "
    "(sigma Delta H/(M K R))^(2/3))",
    why="for every problem in print; read: there is one, in every class",
    requires=_ROUNDS, test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_theorem_15(
    *, smoothness: Any, hessian_heterogeneity: Any, gradient_heterogeneity: Any, noise: Any, start_gap: Any,
    num_clients: Any, num_local_steps: Any, rounds: Any,
) -> Any:  # fmt: skip
    """What no zero-respecting method does better."""
    apart = np.minimum(start_gap * hessian_heterogeneity, (smoothness * gradient_heterogeneity) ** 2)
    return with_sum(
        heterogeneity=apart / rounds,
        optimization=start_gap * smoothness / (num_local_steps * rounds),
        **_sampled(smoothness, noise, start_gap, num_clients * num_local_steps * rounds),
    )


@statement(
    "Theorems 14 (a), 16 and 26 (a) (table 6.1)", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 <= c (Delta tau/R + Delta H/(K R) + Delta H/(R sqrt(K b)) + (sigma Delta H/(M K b R))^(2/3) + "
    "sigma^2/(M K b R))",
    why="Theorem 14 and the table print sqrt(K R) for sqrt(K) R (remark 34)",
    requires=(*_ROUNDS, "batch_size >= 1"), test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_theorem_26(
    *, smoothness: Any, hessian_heterogeneity: Any, noise: Any, start_gap: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any, batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """CE-LSGD, tuned; BVR-L-SGD has the same, with more and heavier batches (`heavy_batches`)."""
    exact = start_gap * smoothness / rounds
    return with_sum(
        heterogeneity=start_gap * hessian_heterogeneity / rounds,
        optimization=exact / num_local_steps,
        local_noise=exact / (num_local_steps * batch_size) ** 0.5,
        **_sampled(smoothness, noise, start_gap, num_clients * num_local_steps * batch_size * rounds),
    )


@statement(
    "Theorems 14 (b) and 26 (b) (table 6.1)", kind="scaling law", status="scaling only",
    printed="exact gradients: |grad F|^2 <= c (Delta tau/R + Delta H/(K R))",
    requires=_ROUNDS, test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_theorem_26_exact(
    *, smoothness: Any, hessian_heterogeneity: Any, start_gap: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """CE-LGD, tuned: as the lower bound says, where Delta tau <= H^2 zeta^2."""
    return with_sum(
        heterogeneity=start_gap * hessian_heterogeneity / rounds,
        optimization=start_gap * smoothness / (num_local_steps * rounds),
    )


@statement(
    "Table 6.1, SCAFFOLD and minibatch SGD", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 <= c (Delta H/R + (sigma^2 Delta L/(M K R))^(1/2))",
    requires=_ROUNDS, test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_minibatch_sgd_nonconvex(
    *, smoothness: Any, noise: Any, start_gap: Any, num_clients: Any, num_local_steps: Any, rounds: Any
) -> Any:
    """Without variance reduction. Minibatch STORM (Theorem 27) has the rate of `rate_theorem_13`."""
    exact = start_gap * smoothness / rounds
    return with_sum(optimization=exact, noise=(noise**2 * exact / (num_clients * num_local_steps)) ** 0.5)


@statement(
    "Table 6.1, STEM", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 <= c (Delta H + sigma^2 + H^2 zeta^2) (1/R + 1/(M K R)^(2/3))",
    requires=_ROUNDS, test=_TEST + "test_rates_of_table_6_1",
)  # fmt: skip
def rate_stem(
    *, smoothness: Any, gradient_heterogeneity: Any, noise: Any, start_gap: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any,
) -> Any:  # fmt: skip
    """All clients walk and are averaged: zeta for tau."""
    front = start_gap * smoothness + noise**2 + (smoothness * gradient_heterogeneity) ** 2
    steps = num_clients * num_local_steps * rounds
    return with_sum(rounds=front / rounds, samples=front / np.cbrt(steps) ** 2)


@statement(
    "Equation E.18", kind="scaling law", status="scaling only",
    printed="E|grad F|^2 <= c (Delta tau/R + Delta H/(K R) + Delta H/(R sqrt(K b)) + Delta H/(R sqrt(beta M K b)) + "
    "beta sigma^2/(M K b) + sigma^2/(beta R M b_0))",
    requires=(*_ROUNDS, "batch_size >= 1", "momentum > 0", "momentum <= 1", "first_batch >= 1"),
    test=_TEST + "test_regimes_reach_the_target_up_to_a_constant",
)  # fmt: skip
def rate_equation_e18(
    *, smoothness: Any, hessian_heterogeneity: Any, noise: Any, start_gap: Any, num_clients: Any, num_local_steps: Any,
    rounds: Any, momentum: Any, first_batch: Any, batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """CE-LSGD with the longest step, for any momentum and first batch."""
    exact, steps = start_gap * smoothness / rounds, num_local_steps * batch_size
    return with_sum(
        heterogeneity=start_gap * hessian_heterogeneity / rounds,
        optimization=exact / num_local_steps,
        local_noise=exact / steps**0.5,
        estimate=exact / (momentum * num_clients * steps) ** 0.5,
        noise=momentum * noise**2 / (num_clients * steps),
        first=noise**2 / (momentum * rounds * num_clients * first_batch),
    )


@statement(
    "Theorem 26, figure 6.1", kind="scaling law", status="scaling only",
    printed="green, sqrt(eps) <= sigma tau/(H M): R = Delta tau/eps, N = Delta H sigma/eps^(3/2), K = sigma H/(M tau "
    "sqrt(eps)), b_0 = sigma^3/(H Delta M sqrt(eps)), beta = H sqrt(eps)/(sigma tau); orange: R the same, N = M H^2 "
    "Delta/(tau eps), K = H^2/tau^2, b_0 = sigma^2/(Delta tau), beta = 1/M; red, eps >= Delta tau: R = 1, N >= M H^2 "
    "Delta^2/eps^2",
    corrected="R, K and b_0 rounded up, beta within [1/R, 1]; red has K = (H Delta/eps)^2, beta = 1, b_0 = "
    "sigma^2/(M eps)",
    why="E.25 prints max for min; the figure does not say what red chooses, and M sqrt(eps) <= sigma^3/(H Delta) only "
    "keeps b_0 from being below 1, which rounding does",
    requires=("target > 0", "start_gap > 0", "hessian_heterogeneity <= smoothness",
              "target * noise**2 <= (start_gap * smoothness)**2"),
    test=_TEST + "test_regimes_reach_the_target_up_to_a_constant",
)  # fmt: skip
def regime(
    *, smoothness: Any, hessian_heterogeneity: Any, noise: Any, start_gap: Any, num_clients: Any, target: Any
) -> Any:
    """The regime of an accuracy, and what CE-LSGD with b = 1 takes to it, up to constants.

    `samples` is the N of the figure, `samples_spent` what the rounded numbers add to, M K R + K + M b_0. The first
    iteration of Algorithm 1 makes a single step, so a run in red has one iteration more.
    """
    H, tau, sigma, Delta, M, eps = smoothness, hessian_heterogeneity, noise, start_gap, num_clients, target
    red = eps >= Delta * tau
    green = ~red & (eps**0.5 * H * M <= sigma * tau)
    which = [np.asarray(red), np.asarray(green)]
    R = np.ceil(largest(1.0, Delta * tau / eps * (1 - 1e-12)))
    steps = _select(which, (H * Delta / eps) ** 2, quotient(sigma * H, M * tau * eps**0.5), quotient(H**2, tau**2))
    momentum = _select(which, 1.0, quotient(H * eps**0.5, sigma * tau), 1 / M)
    first = _select(which, sigma**2 / (M * eps), sigma**3 / (H * Delta * M * eps**0.5), quotient(sigma**2, Delta * tau))
    samples = _select(
        which, M * (H * Delta / eps) ** 2, Delta * H * sigma / eps**1.5, quotient(M * H**2 * Delta, tau * eps)
    )
    K, first = (np.ceil(largest(1.0, found * (1 - 1e-12))) for found in (steps, first))
    name = np.select(which, ["red", "green"], "orange")
    return {
        "regime": name if name.ndim else str(name), "rounds": R, "num_local_steps": K,
        "first_batch": first, "momentum": np.clip(momentum, 1 / R, 1.0), "samples": samples,
        "samples_spent": M * K * R + K + M * first,
    }  # fmt: skip


@statement(
    "Section 6.2.1, heavy batches", kind="scaling law", status="scaling only",
    printed="in green: b_max/K = sigma tau/(H sqrt(eps)) in H Delta/(sigma sqrt(eps)) rounds of BVR-L-SGD; b_0/K = "
    "sigma^2 tau/(H^2 Delta) once in CE-LSGD; their ratio is sigma sqrt(eps)/(H Delta) <= 1",
    requires=("target > 0", "start_gap > 0", "noise > 0", "target * noise**2 <= (start_gap * smoothness)**2"),
    test=_TEST + "test_heavy_batches_are_fewer_and_lighter",
)  # fmt: skip
def heavy_batches(*, smoothness: Any, hessian_heterogeneity: Any, noise: Any, start_gap: Any, target: Any) -> Any:
    """How heavy the batches for variance reduction are, in units of a round's K, and how often BVR-L-SGD needs one."""
    return {
        "ce_lsgd": noise**2 * hessian_heterogeneity / (smoothness**2 * start_gap),
        "bvr_l_sgd": noise * hessian_heterogeneity / (smoothness * target**0.5),
        "bvr_l_sgd_rounds": smoothness * start_gap / (noise * target**0.5),
    }


def _sampled(smoothness: Any, noise: Any, start_gap: Any, samples: Any) -> dict[str, Any]:
    return {"noise": noise**2 / samples, "oracle": np.cbrt(noise * start_gap * smoothness / samples) ** 2}


def _select(which: list[Any], red: Any, green: Any, orange: Any) -> Any:
    return np.select(which, [red, green], orange)
