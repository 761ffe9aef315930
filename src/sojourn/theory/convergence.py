"""Convergence of local SGD in terms of zeta_*, phi_* and tau: Theorems 5 to 8 (thesis, chapter 5 and appendix D.6).

Each bound is a function of the step size; beside it are the tuned step size and the rounds from which the tuned form is
sure. Paper to code: rho = 1 - (1 - (1 - eta mu)^K) (1 - x), where x couples the rounds through the consensus error, so
rho < 1 where x < 1 and (1 - (1 - eta mu)^K)/(1 - rho) = 1/(1 - x). Above that the bound says nothing and is inf.
The consensus error is 0 at K = 1 and at M = 1: there its terms are left out.

All need outer_step_size = 1, clients that count equally and take part in every round, and noise independent of theirs.
"""

from typing import Any

import numpy as np

from sojourn.theory.contraction import left, lost
from sojourn.theory.statement import Predicts, statement
from sojourn.theory.tuning import drifting, largest, log_ratio, smallest

_TEST = "test_theory_convergence.py::"
_CONVEX = ("strong_convexity > 0", "strong_convexity <= smoothness")
_TUNED = (*_CONVEX, "rounds >= 1")
_LAST = {"output": "last", "outer_step_size": 1.0}
_LN_K = (
    "K ln K rests on Lemma 34, whose noise term n ln n is 0 after one step where the truth is 2 eta^2 sigma^2 (1-1/M)"
)


@statement(
    "Theorem 5 (Lemma 37)",
    kind="upper bound",
    status="corrected",
    printed="E|x_KR - x*|^2 <= rho1^R B^2 + (1-k)/(1-rho1) {eta sigma^2/(mu M) + 4 eta^2 tau^2 H^2 K^2 (1-eta "
    "mu)^(K-2) "
    "phi_*^2/mu^2 + 2 eta^2 H^4 K^2 zeta_*^2/mu^2 + 2 eta^3 H^2 tau^2 K^2 sigma^2/mu^3 + 2 eta^2 H^2 sigma^2 K ln(K)"
    "/mu^2}, k = (1-eta mu)^K, rho1 = k + (1-k) 4 eta^2 H^2 tau^2 K^2 (1-eta mu)^(K-2)/mu^2",
    corrected="ln K -> 1 + ln K; at K = 1 or M = 1 only rho1^R B^2 and eta sigma^2/(mu M) are left, with rho1 = k",
    why=_LN_K,
    requires=(*_CONVEX, "step_size * smoothness < 1"),
    test=_TEST + "test_theorem_5",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options=_LAST),),
)
def theorem_5(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """The squared distance of the last model to x*, for strongly convex clients."""
    consensus = _consensus(
        step_size, num_local_steps, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, noise
    )
    return _iterate_bound(
        smoothness, consensus, step_size, num_local_steps, rounds, strong_convexity, hessian_heterogeneity,
        optima_distance, noise, start_distance, num_clients,
    )  # fmt: skip


@statement(
    "Theorem 7 (Lemma 39)",
    quadratic=True,
    kind="upper bound",
    status="corrected",
    printed="E|x_KR - x*|^2 <= rho2^R B^2 + (1-k)/(1-rho2) {eta sigma^2/(mu M) + 4 eta^2 tau^4 K^2 (1-eta mu)^(K-2) "
    "phi_*^2/mu^2 + 2 eta^2 H^2 tau^2 K^2 zeta_*^2/mu^2 + 2 eta^3 tau^4 K^2 sigma^2/mu^3 + 2 eta^2 tau^2 sigma^2 K "
    "ln(K)"
    "/mu^2}, k = (1-eta mu)^K, rho2 = k + (1-k) 4 eta^2 tau^4 K^2 (1-eta mu)^(K-2)/mu^2",
    corrected="ln K -> 1 + ln K; at K = 1 or M = 1 only rho2^R B^2 and eta sigma^2/(mu M) are left, with rho2 = k",
    why=_LN_K,
    requires=(*_CONVEX, "step_size * smoothness < 1"),
    test=_TEST + "test_theorem_7",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options=_LAST, quadratic=True),),
)
def theorem_7(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """Theorem 5 for quadratics: tau stands where H stood, so at tau = 0 local steps are as good as common ones."""
    consensus = _consensus(
        step_size, num_local_steps, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity, noise
    )
    return _iterate_bound(
        hessian_heterogeneity, consensus, step_size, num_local_steps, rounds, strong_convexity, hessian_heterogeneity,
        optima_distance, noise, start_distance, num_clients,
    )  # fmt: skip


@statement(
    "Theorem 6 (Lemma 41)",
    kind="upper bound",
    status="corrected",
    printed="eta <= 1/(2H): E F(xhat) - F* <= rho4^R/(1-rho4^R) (1-rho4)/(1-k) mu B^2 + 4 eta^2 H^3 K^2 zeta_*^2 + "
    "4 eta^3 H tau^2 K^2 sigma^2/mu + 4 eta^2 H sigma^2 K ln(K) + 8 eta^2 H tau^2 K^2 phi_*^2 + 3 eta sigma^2/M, "
    "weights "
    "rho4^(R-1-floor(t/K)) (1-eta mu)^(K-1-(t mod K)), rho4 = k + (1-k) 8 eta^2 H tau^2 K^2 (1-eta mu)^(K-2)/mu",
    corrected="eta <= 1/(10H) and 1 + ln K; at K = 1 or M = 1 the terms of the consensus error are left out",
    why="the one-step inequality it sums, Lemma 28, is proved for eta <= 1/(10H) only; " + _LN_K,
    requires=(*_CONVEX, "10 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_6",
    predicts=(Predicts("LocalSGD", "suboptimality", options={"output": "coupled", "outer_step_size": 1.0}),),
)
def theorem_6(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """The suboptimality of the weighted mean of ghost iterates (local SGD's output "coupled")."""
    eta, K, tau = step_size, num_local_steps, hessian_heterogeneity
    spread = 8 * (eta * tau * K) ** 2 * smoothness  # times phi_*^2: what far optima add
    coupling = spread / strong_convexity * left(eta * strong_convexity, K - 2)  # also at K = 1: the weights have it
    consensus = _consensus(eta, K, smoothness, strong_convexity, tau, optima_heterogeneity, noise)
    drift = drifting(K, num_clients) * (2 * smoothness * consensus + spread * optima_distance**2)
    floor = drift + 3 * eta * noise**2 / num_clients
    lead = strong_convexity * start_distance**2
    return _value_bound(lead, coupling, floor, lost(eta * strong_convexity, K), rounds)


@statement(
    "Theorem 8 (Lemma 42)",
    quadratic=True,
    kind="upper bound",
    status="corrected",
    printed="as Theorem 6 with rho4 = k + (1-k) 8 eta^2 tau^4 K^2 (1-eta mu)^(K-2)/mu^2, k = (1-eta mu)^K, and floor "
    "4 eta^2 tau^2 H^2 K^2 zeta_*^2/mu + 4 eta^3 tau^4 K^2 sigma^2/mu^2 + 4 eta^2 tau^2 sigma^2 K ln(K)/mu + "
    "8 eta^2 tau^4 K^2 phi_*^2/mu + 3 eta sigma^2/M",
    corrected="eta <= 1/(2H), a = 1 - eta mu/2: E F(xhat) - F* <= rho5^R/(1-rho5^R) (1-rho5)/(1-a^K) (mu/2) B^2 + "
    "(6 tau^2/mu) (2 eta^2 H^2 K^2 zeta_*^2 + 2 eta^3 tau^2 K^2 sigma^2/mu + 2 eta^2 sigma^2 K (1+ln K)) + "
    "24 eta^2 tau^4 K^2 phi_*^2/mu + eta sigma^2/M, weights rho5^(R-1-floor(t/K)) a^(K-1-(t mod K)), "
    "rho5 = a^K + (1-a^K) 48 eta^2 tau^4 K^2 a^(K-2)/mu^2; at K = 1 or M = 1 without the consensus error",
    why="the proof puts Lemma 27 in the place of Lemma 28 but keeps the factor 1 - eta mu; Lemma 27 contracts by "
    "1 - eta mu/2 only and has 6 tau^2/mu before the consensus error",
    requires=(*_CONVEX, "2 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_8",
)
def theorem_8(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any,
    num_clients: Any,
) -> Any:  # fmt: skip
    """Theorem 6 for quadratics. Its weights are no output of local SGD: "coupled" has those of Theorem 6."""
    eta, K, mu, tau = step_size, num_local_steps, strong_convexity, hessian_heterogeneity
    drift = drifting(K, num_clients)
    spread = drift * 24 * (eta * tau**2 * K) ** 2 / mu
    coupling = 2 * spread / mu * left(eta * mu / 2, K - 2)
    consensus = drift * _consensus(eta, K, smoothness, mu, tau, optima_heterogeneity, noise)
    floor = 6 * tau**2 / mu * consensus + spread * optima_distance**2 + eta * noise**2 / num_clients
    return _value_bound(mu / 2 * start_distance**2, coupling, floor, lost(eta * mu / 2, K), rounds)


@statement(
    "Theorem 5 (Lemma 38), tuned",
    kind="step size",
    status="corrected",
    printed="eta = min{1/(2H), ln(B^2/eps)/(mu K R)}, eps = max{2 sigma^2/(mu^2 M K R), 8 tau^2 H^2 phi_*^2/(mu^4 "
    "R^2), "
    "4 H^4 zeta_*^2/(mu^4 R^2), 4 H^2 tau^2 sigma^2/(mu^6 K R^3), 4 H^2 sigma^2 ln(K)/(mu^4 K R^2), target}",
    corrected="ln K -> 1 + ln K, and the outer logarithm is at least 1",
    why=_LN_K,
    requires=_TUNED,
    test=_TEST + "test_theorem_5_tuned",
)
def theorem_5_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any,
    target: Any = 0.0,
) -> Any:  # fmt: skip
    """The step that balances what is left of the start against the floor; `target` is an error that is small enough."""
    floor = _iterate_floor(
        smoothness, num_local_steps, rounds, smoothness, strong_convexity, hessian_heterogeneity, optima_heterogeneity,
        optima_distance, noise, num_clients, target,
    )  # fmt: skip
    log = log_ratio(start_distance**2, floor)
    return smallest(1 / (2 * smoothness), log / (strong_convexity * num_local_steps * rounds))


@statement(
    "Theorem 7 (Lemma 40), tuned",
    quadratic=True,
    kind="step size",
    status="corrected",
    printed="eta = min{1/(2H), ln(B^2/eps)/(mu K R)}, eps = max{2 sigma^2/(mu^2 M K R), 8 tau^4 phi_*^2/(mu^4 R^2), "
    "4 tau^2 H^2 zeta_*^2/(mu^4 R^2), 4 tau^4 sigma^2/(mu^6 K R^3), 4 tau^2 sigma^2 ln(K)/(mu^4 K R^2), target}",
    corrected="ln K -> 1 + ln K, and the outer logarithm is at least 1",
    why=_LN_K,
    requires=_TUNED,
    test=_TEST + "test_theorem_7_tuned",
)
def theorem_7_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any,
    target: Any = 0.0,
) -> Any:  # fmt: skip
    """As Theorem 5's, for quadratics."""
    floor = _iterate_floor(
        hessian_heterogeneity, num_local_steps, rounds, smoothness, strong_convexity, hessian_heterogeneity,
        optima_heterogeneity, optima_distance, noise, num_clients, target,
    )  # fmt: skip
    log = log_ratio(start_distance**2, floor)
    return smallest(1 / (2 * smoothness), log / (strong_convexity * num_local_steps * rounds))


@statement(
    "Theorem 6 (Lemma 41), tuned",
    kind="step size",
    status="corrected",
    printed="eta = min{1/(2H), ln(mu B^2/eps)/(mu K R)}, eps = min{max{4 H^3 zeta_*^2/(mu^2 R^2), 4 H tau^2 sigma^2/"
    "(mu^4 K R^3), 4 H sigma^2 ln(K)/(mu^2 K R^2), 8 H tau^2 phi_*^2/(mu^2 R^2), 3 sigma^2/(mu M K R), target}, mu "
    "B^2/6}",
    corrected="1/(2H) -> 1/(10H), ln K -> 1 + ln K",
    why="Lemma 28 needs eta <= 1/(10H); " + _LN_K,
    requires=_TUNED,
    test=_TEST + "test_theorem_6_tuned",
)
def theorem_6_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any,
    target: Any = 0.0,
) -> Any:  # fmt: skip
    """The step for the suboptimality of the weighted mean."""
    K, R, H, mu, tau = num_local_steps, rounds, smoothness, strong_convexity, hessian_heterogeneity
    drift = drifting(K, num_clients)
    floor = largest(
        drift * 4 * H**3 * optima_heterogeneity**2 / (mu * R) ** 2,
        drift * 4 * H * (tau * noise) ** 2 / (mu**4 * K * R**3),
        drift * 4 * H * noise**2 * (1 + np.log(K)) / (mu**2 * K * R**2),
        drift * 8 * H * (tau * optima_distance) ** 2 / (mu * R) ** 2,
        3 * noise**2 / (mu * num_clients * K * R),
        target,
    )
    return smallest(1 / (10 * H), log_ratio(mu * start_distance**2, floor, least=6) / (mu * K * R))


@statement(
    "Theorem 8 (Lemma 42), tuned",
    quadratic=True,
    kind="step size",
    status="corrected",
    printed="eta = min{1/(2H), ln(mu B^2/eps)/(mu K R)}, eps = min{max{4 tau^2 H^2 zeta_*^2/(mu^3 R^2), 4 tau^4 "
    "sigma^2/"
    "(mu^5 K R^3), 4 tau^2 sigma^2 ln(K)/(mu^3 K R^2), 8 tau^4 phi_*^2/(mu^3 R^2), 3 sigma^2/(mu M K R), target}, "
    "mu B^2/6}",
    corrected="eta = min{1/(2H), 2 ln(mu B^2/eps)/(mu K R)}, eps of the terms of the corrected bound at eta = 1/(mu K "
    "R)",
    why="the corrected bound contracts by 1 - eta mu/2, so the step for the same logarithm is twice as long",
    requires=_TUNED,
    test=_TEST + "test_theorem_8_tuned",
)
def theorem_8_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, optima_distance: Any, noise: Any, start_distance: Any, num_clients: Any,
    target: Any = 0.0,
) -> Any:  # fmt: skip
    """As Theorem 6's, for quadratics."""
    K, R, H, mu, tau = num_local_steps, rounds, smoothness, strong_convexity, hessian_heterogeneity
    drift = drifting(K, num_clients)
    floor = largest(
        drift * 12 * (tau * H * optima_heterogeneity) ** 2 / (mu**3 * R**2),
        drift * 12 * (tau**2 * noise) ** 2 / (mu**5 * K * R**3),
        drift * 12 * (tau * noise) ** 2 * (1 + np.log(K)) / (mu**3 * K * R**2),
        drift * 24 * (tau**2 * optima_distance) ** 2 / (mu**3 * R**2),
        noise**2 / (mu * num_clients * K * R),
        target,
    )
    return smallest(1 / (2 * H), 2 * log_ratio(mu * start_distance**2, floor, least=6) / (mu * K * R))


@statement(
    "Theorem 5 (Lemma 38), rounds",
    kind="step size",
    status="corrected",
    printed="R >= max{3 H tau/mu^2 ln(B^2/eps), 2 H tau/mu^2 ln^(3/2)(B^2/eps)} and K >= 4",
    corrected="R >= 4 H tau/mu^2 max{l, l^(3/2)}, l = eta mu K R <= ln(B^2/eps), any K, for eta <= 1/(2H): then "
    "rho1^R <= e^(1-l) and (1-k)/(1-rho1) <= 2",
    why="the print bounds rho1^R by e^(1-l/2), which is sqrt(eps)/B and not the eps/B^2 that the rate needs",
    requires=(*_CONVEX, "2 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_5_tuned",
)
def theorem_5_needs_rounds(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The number that `rounds` must reach for the tuned form of Theorem 5 at this step."""
    log = step_size * strong_convexity * num_local_steps * rounds
    scale = drifting(num_local_steps, num_clients) * 4 * smoothness * hessian_heterogeneity / strong_convexity**2
    return scale * largest(log, log**1.5)


@statement(
    "Theorem 7 (Lemma 40), rounds",
    quadratic=True,
    kind="step size",
    status="corrected",
    printed="R >= max{3 tau^2/mu^2 ln(B^2/eps), 2 tau^2/mu^2 ln^(3/2)(B^2/eps)} and K >= 4",
    corrected="R >= 4 tau^2/mu^2 max{l, l^(3/2)}, l = eta mu K R <= ln(B^2/eps), any K, for eta <= 1/(2H)",
    why="as in Theorem 5, the print's bound on rho2^R is the root of the one that the rate needs",
    requires=(*_CONVEX, "2 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_7_tuned",
)
def theorem_7_needs_rounds(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The number that `rounds` must reach for the tuned form of Theorem 7 at this step."""
    log = step_size * strong_convexity * num_local_steps * rounds
    scale = drifting(num_local_steps, num_clients) * 4 * (hessian_heterogeneity / strong_convexity) ** 2
    return scale * largest(log, log**1.5)


@statement(
    "Theorem 6 (Lemma 41), rounds",
    kind="step size",
    status="corrected",
    printed="R >= (4 tau sqrt(kappa)/mu) max{ln(mu B^2/eps), sqrt(2/3) ln^3(mu B^2/eps)} and K R >= 4 kappa",
    corrected="R >= (4 tau sqrt(kappa)/mu) max{l, sqrt(2/3) l^(3/2)}, l = eta mu K R, and l >= 1 + ln 2 (K R >= 17 "
    "kappa "
    "at eta = 1/(10H)): then rho4^R/(1-rho4^R) <= 6 e^(-l)",
    why="the root covers ln^3, and 4 kappa is for eta = 1/(2H), where the constant under the root would be 32, not "
    "32/3",
    requires=(*_CONVEX, "10 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_6_tuned",
)
def theorem_6_needs_rounds(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The number that `rounds` must reach for the tuned form of Theorem 6 at this step."""
    per_round = step_size * strong_convexity * num_local_steps
    log = per_round * rounds
    root = (smoothness / strong_convexity) ** 0.5
    scale = drifting(num_local_steps, num_clients) * 4 * hessian_heterogeneity * root / strong_convexity
    return largest(scale * largest(log, (2 / 3) ** 0.5 * log**1.5), (1 + np.log(2)) / per_round)


@statement(
    "Theorem 8 (Lemma 42), rounds",
    quadratic=True,
    kind="step size",
    status="corrected",
    printed="R >= (4 tau^2/mu^2) max{ln(mu B^2/eps), sqrt(2/3) ln^3(mu B^2/eps)} and K R >= 4 kappa",
    corrected="R >= (19 tau^2/mu^2) max{h, h^(3/2)}, h = eta mu K R/2, and h >= 1 + ln 2: then rho5^R/(1-rho5^R) <= "
    "6 e^(-h)",
    why="the constants of the corrected bound: 48 for 8 in rho5, and half the contraction",
    requires=(*_CONVEX, "2 * step_size * smoothness <= 1 + 1e-12"),
    test=_TEST + "test_theorem_8_tuned",
)
def theorem_8_needs_rounds(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any,
    hessian_heterogeneity: Any, num_clients: Any,
) -> Any:  # fmt: skip
    """The number that `rounds` must reach for the tuned form of Theorem 8 at this step."""
    per_round = step_size * strong_convexity * num_local_steps / 2
    half = per_round * rounds
    scale = drifting(num_local_steps, num_clients) * 19 * (hessian_heterogeneity / strong_convexity) ** 2
    return largest(scale * largest(half, half**1.5), (1 + np.log(2)) / per_round)


def _consensus(eta: Any, K: Any, H: Any, mu: Any, tau: Any, zeta: Any, sigma: Any) -> Any:
    """What Lemma 34 bounds the consensus error by, without its part that the last round's error feeds."""
    noise = eta**3 * (tau * K * sigma) ** 2 / mu + eta**2 * sigma**2 * K * (1 + np.log(K))
    return 2 * (eta * H * K * zeta) ** 2 + 2 * noise


def _iterate_bound(
    weight: Any, consensus: Any, eta: Any, K: Any, R: Any, mu: Any, tau: Any, phi: Any, sigma: Any, B: Any, M: Any
) -> Any:
    """One-step lemma with (eta/mu) weight^2 before the consensus error, summed over rounds."""
    drift = drifting(K, M)
    coupling = drift * (2 * eta * weight * tau * K / mu) ** 2 * left(eta * mu, K - 2)
    contracts = coupling < 1
    coupling = np.where(contracts, coupling, 0.0)
    floor = eta * sigma**2 / (mu * M) + coupling * phi**2 + drift * (weight / mu) ** 2 * consensus
    bound = left(lost(eta * mu, K) * (1 - coupling), R) * B**2 + floor / (1 - coupling)
    return np.where(contracts, bound, np.inf)


def _value_bound(lead: Any, coupling: Any, floor: Any, taken: Any, R: Any) -> Any:
    """rho^R/(1 - rho^R) (1 - coupling) lead + floor, where 1 - rho = taken (1 - coupling)."""
    contracts = coupling < 1
    coupling = np.where(contracts, coupling, 0.0)
    gone = lost(taken * (1 - coupling), R)
    speaks = contracts & (gone > 0)
    kept = left(taken * (1 - coupling), R) / np.where(speaks, gone, 1.0) * (1 - coupling) * lead
    return np.where(speaks, kept + floor, np.inf)


def _iterate_floor(
    weight: Any, K: Any, R: Any, H: Any, mu: Any, tau: Any, zeta: Any, phi: Any, sigma: Any, M: Any, target: Any
) -> Any:
    """eps of Lemmas 38 and 40: twice the terms of the floor at eta = 1/(mu K R)."""
    drift = drifting(K, M)
    return largest(
        2 * sigma**2 / (mu**2 * M * K * R),
        drift * 8 * (weight * tau * phi) ** 2 / (mu**4 * R**2),
        drift * 4 * (weight * H * zeta) ** 2 / (mu**4 * R**2),
        drift * 4 * (weight * tau * sigma) ** 2 / (mu**6 * K * R**3),
        drift * 4 * (weight * sigma) ** 2 * (1 + np.log(K)) / (mu**4 * K * R**2),
        target,
    )
