"""Chapter 7: average regret of online and bandit methods, as explicit bounds, and the step sizes they ask for.

Letters beyond those of `statement`: steps T = K R, num_clients M machines, dimension d, lipschitz G, radius B of the
comparator's ball, cost_heterogeneity zeta-hat (assumption 18), optimal_value F_*, exploration delta. s^2 is the second
moment of a gradient estimate about its mean, I is 1 where machines can differ (K > 1 and M > 1) and 0 otherwise.

All explicit bounds rest on one line. The mean iterate y moves by the mean estimate, so for every x* in the ball
mean_m E f_t^m(x_t^m) - f_t^m(x*) <= (E|y_t - x*|^2 - E|y_{t+1} - x*|^2)/(2 eta) + eta/2 (G^2 + s^2/M) + I D, where
D = E mean_m <x^m - y, grad f^m(x^m)> is what drifting apart costs. It is at most G a, and a (H a + zeta-hat) where
costs are H-smooth, for a the root of mean_m E|x^m - y|^2, bounded by `consensus_distance`.
"""

from typing import Any

import numpy as np

from sojourn.theory.statement import statement
from sojourn.theory.tuning import drifting, largest, quotient, smallest

_TEST = "test_theory_online.py::"
_SIZES = ("steps >= 1", "lipschitz > 0", "radius > 0")
_BANDIT = (*_SIZES, "dimension >= 1")
_APART = (*_BANDIT, "cost_heterogeneity <= 2 * lipschitz")


# --- gradients ---------------------------------------------------------------------------------------------------


@statement(
    "Theorem 17, upper bound before tuning",
    kind="upper bound",
    printed="regret <= B^2/(2 eta T) + eta G^2/2, on every path, for every M; at eta = B/(G sqrt T): G B/sqrt T",
    requires=_SIZES,
    test=_TEST + "test_theorem_17_holds_on_every_path",
)
def theorem_17(*, step_size: Any, steps: Any, lipschitz: Any, radius: Any) -> Any:
    """The average regret of online gradient descent on each machine alone, unprojected, for convex G-Lipschitz costs.

    |x_{t+1} - x*|^2 = |x_t - x*|^2 - 2 eta <g_t, x_t - x*> + eta^2 |g_t|^2, summed; a common x* is only worse for each.
    """
    return radius**2 / (2 * step_size * steps) + step_size * lipschitz**2 / 2


@statement(
    "Theorem 17, lower bound",
    kind="lower bound",
    printed="E regret >= G B/(2 sqrt T) for coordinated Rademacher costs and every method",
    corrected="E regret = (B/T) E|sum_t beta_t| >= G B/sqrt(2 T), and at most G B/sqrt T",
    status="corrected",
    why="The print is true; Khintchine's inequality with Szarek's constant gives 1/sqrt 2 for its 1/2. The expected "
    "cost of every play is 0, so that all methods have this same regret.",
    requires=_SIZES,
    test=_TEST + "test_every_method_has_the_regret_of_rademacher_costs",
)
def theorem_17_lower_bound(*, steps: Any, lipschitz: Any, radius: Any) -> Any:
    """What no method with gradients can get below, however many machines play."""
    return lipschitz * radius / (2 * steps) ** 0.5


@statement(
    "Theorem 17, tuned",
    kind="step size",
    printed="eta = B/(G sqrt T)",
    requires=_SIZES,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def theorem_17_step_size(*, steps: Any, lipschitz: Any, radius: Any) -> Any:
    """The minimum of theorem 17's bound."""
    return radius / (lipschitz * steps**0.5)


@statement(
    "Theorem 18, before tuning",
    kind="upper bound",
    status="corrected",
    printed="regret = O(H B^2/T + sqrt(H F_* B)/sqrt T)",
    corrected="regret <= [B^2/(2 eta T) + eta H F_*]/(1 - eta H), eta < 1/H; tuned: <= 2 H B^2/T + 2 sqrt(2 H F_*) "
    "B/sqrt T",
    why="The printed root covers B; only sqrt(H F_*) B has the dimension of a cost.",
    requires=("steps >= 1", "radius > 0", "step_size * smoothness < 1"),
    test=_TEST + "test_theorem_18_holds_on_every_path",
)
def theorem_18(*, step_size: Any, steps: Any, smoothness: Any, optimal_value: Any, radius: Any) -> Any:
    """The same for non-negative H-smooth costs whose mean value at the comparator is F_*.

    |grad f|^2 <= 2 H f for such f, so eta/2 sum |g_t|^2 <= eta H sum f_t(x_t), which goes to the left.
    """
    top = radius**2 / (2 * step_size * steps) + step_size * smoothness * optimal_value
    return top / (1 - step_size * smoothness)


@statement(
    "Theorem 18, tuned",
    kind="step size",
    printed="eta = min{1/(2H), B/sqrt(2 H F_* T)}",
    requires=("steps >= 1", "radius > 0"),
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def theorem_18_step_size(*, steps: Any, smoothness: Any, optimal_value: Any, radius: Any) -> Any:
    """Balances B^2/(2 eta T) and eta H F_* below 1/(2H)."""
    return smallest(1 / (2 * smoothness), quotient(radius, (2 * smoothness * optimal_value * steps) ** 0.5))


# --- estimates and drifting apart --------------------------------------------------------------------------------


@statement(
    "derived, for equation 7.4",
    kind="identity",
    printed="E|g|^2 = d^2 <beta, w>^2/delta^2 + d |beta|^2 for g = (d/delta) <beta, w + delta u> u",
    requires=("dimension >= 1", "exploration > 0"),
    test=_TEST + "test_second_moments_of_the_estimates",
)
def one_point_second_moment(*, cost: Any, lipschitz: Any, dimension: Any, exploration: Any) -> Any:
    """The second moment of the one-point estimate of a linear cost: `cost` is |<beta, w>|, `lipschitz` |beta|.

    |u| = 1, E u u^T = I/d, and odd moments vanish.
    """
    return (dimension * cost / exploration) ** 2 + dimension * lipschitz**2


@statement(
    "Equation 7.4",
    kind="upper bound",
    printed="E|g - grad f|^2 <= c (d |beta| (|w| + delta)/delta)^2; with delta = B >= |w|: 4 c d^2 G^2",
    corrected="<= d^2 |beta|^2 (|w|/delta)^2 + (d - 1) |beta|^2; with delta = B: (d^2 + d - 1) G^2",
    status="corrected",
    why="The print is true with c = 1, and four times too large in high dimensions.",
    requires=("dimension >= 1", "exploration > 0"),
    test=_TEST + "test_second_moments_of_the_estimates",
)
def equation_7_4(*, lipschitz: Any, dimension: Any, exploration: Any, point_norm: Any) -> Any:
    """The variance of the one-point estimate at a point of norm |w|."""
    return lipschitz**2 * ((dimension * point_norm / exploration) ** 2 + dimension - 1)


@statement(
    "section 7.5, variance of the two-point estimate",
    kind="upper bound",
    status="corrected",
    printed="E g = grad of E_u f(x + delta u), E|g - E g|^2 <= d G^2, u on the sphere",
    corrected="E g = grad of E_v f(x + delta v), v in the ball; E|g|^2 <= d^2/(d-1) G^2 for d > 1, G^2 for d = 1; "
    "linear costs: d |beta|^2",
    why="Stokes' theorem turns a mean over the sphere into the gradient of a mean over the ball. f(x + delta u) - "
    "f(x - delta u) has mean 0 and is 2 delta G-Lipschitz on the sphere, whose Poincare constant is 1/(d - 1).",
    requires=("dimension >= 1", "lipschitz > 0"),
    test=_TEST + "test_second_moments_of_the_estimates",
)
def two_point_second_moment(*, lipschitz: Any, dimension: Any) -> Any:
    """The second moment of g = d (f(x + delta u) - f(x - delta u))/(2 delta) u for a G-Lipschitz cost."""
    d = np.asarray(dimension, float)
    return lipschitz**2 * np.where(d > 1, d**2 / np.maximum(d - 1, 1), 1.0)


@statement(
    "derived, for (F.6) and (F.14)",
    kind="upper bound",
    printed="(mean_m E|x^m - y|^2)^(1/2) <= eta (s sqrt(K-1) + min{zeta-hat, G} (K-1)) I; zeta-hat for linear "
    "costs, and for smooth ones with eta <= 2/H",
    requires=("cost_heterogeneity <= 2 * lipschitz",),
    test=_TEST + "test_machines_drift_apart_as_slowly_as_stated",
)
def consensus_distance(
    *, step_size: Any, num_local_steps: Any, num_clients: Any, noise: Any, cost_heterogeneity: Any, lipschitz: Any
) -> Any:
    """How far machines are from their mean, in the root of the mean square, just before they average.

    Noise is a martingale difference, so K steps of it grow like sqrt K with or without smoothness; (F.6) has 2 (s + G)
    K eta. Gradients of norm G differ from their mean by at most G in the mean square. For smooth costs, x - eta grad
    f^m does not expand, so a_{j+1}^2 <= (a_j + eta zeta-hat)^2 + eta^2 s^2, which eta (s sqrt j + zeta-hat j) solves.
    """
    drift = smallest(cost_heterogeneity, lipschitz)
    apart = num_local_steps - 1
    return step_size * (noise * apart**0.5 + drift * apart) * drifting(num_local_steps, num_clients)


@statement(
    "derived, for section 7.2.2 (adaptive adversaries)",
    kind="upper bound",
    printed="the bounds below are against an x* that does not depend on the machines' random numbers; against the best "
    "point after the fact, where the adversary reacts to plays, add B s/sqrt(M T)",
    why="The proofs of theorem 19 and lemmas 48 and 49 drop E <noise, x*>, which is 0 only if x* is independent of the "
    "noise. It is at most B E|mean of the noise|; the rates have this term already.",
    requires=("steps >= 1",),
    test=_TEST + "test_theorem_19_holds",
)
def adaptive_comparator(*, steps: Any, num_clients: Any, radius: Any, noise: Any) -> Any:
    """What the best point in hindsight gains where costs depend on the noise of earlier plays."""
    return radius * noise / (num_clients * steps) ** 0.5


# --- one value ---------------------------------------------------------------------------------------------------


@statement(
    "Theorem 19, before tuning",
    kind="upper bound",
    status="corrected",
    printed="regret <= B^2/(2 eta T) + eta [G^2 + s^2/M + I 2 G (s sqrt K + zeta-hat K)], s = 2 d G, delta = B",
    corrected="regret <= B^2/(2 eta T) + eta (G^2 + s^2/M) + G a, s^2 = (d^2 + d - 1) G^2, a the consensus distance",
    why="The print holds in the proof's form and is loose: a second moment that counts |w| + delta for the root of "
    "|w|^2 + delta^2, and a factor 2 on the consensus distance.",
    requires=_APART,
    test=_TEST + "test_theorem_19_holds",
)
def theorem_19(
    *, step_size: Any, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any,
) -> Any:  # fmt: skip
    """FedPOSGD's expected regret at its plays, for linear costs; M = 1, K = 1 is the one-point method alone."""
    variance = equation_7_4(lipschitz=lipschitz, dimension=dimension, exploration=radius, point_norm=radius)
    apart = consensus_distance(
        step_size=step_size, num_local_steps=num_local_steps, num_clients=num_clients, noise=variance**0.5,
        cost_heterogeneity=cost_heterogeneity, lipschitz=lipschitz,
    )  # fmt: skip
    own = step_size * (lipschitz**2 + variance / num_clients)
    return radius**2 / (2 * step_size * steps) + own + lipschitz * apart


@statement(
    "Theorem 19, tuned",
    kind="step size",
    status="corrected",
    printed="eta = B/(G sqrt T) min{1, sqrt M/(d B), I 1/(sqrt(d B) K^(1/4)), I sqrt G/sqrt(zeta-hat K)}",
    corrected="eta = B/(G sqrt T) min{1, sqrt M/(2d), I 1/(sqrt(2d) K^(1/4)), I sqrt(G/(zeta-hat K))}",
    why="The proof's s = 2 d G has no B; with it, regret/(G B) depends on the unit of length.",
    requires=_APART,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def theorem_19_step_size(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any, shrinking: Any = 1.0,
) -> Any:  # fmt: skip
    """FedPOSGD's step; with M = K = 1 that of the one-point method alone.

    shrinking is B/delta: for another exploration than delta = B the 2 of s = 2 d G is 1 + B/delta, as in equation 7.4.
    """
    apart = drifting(num_local_steps, num_clients)
    spread = dimension * (1 + shrinking)  # s/G
    shrink = smallest(
        1.0,
        num_clients**0.5 / spread,
        quotient(1.0, apart * spread**0.5 * num_local_steps**0.25),
        quotient(1.0, apart * (cost_heterogeneity * num_local_steps / lipschitz) ** 0.5),
    )
    return radius / (lipschitz * steps**0.5) * shrink


@statement(
    "Theorem 19, rate",
    kind="scaling law",
    status="scaling only",
    printed="G B/sqrt(K R) + G B d/sqrt(M K R) + I [G B sqrt d/(K^(1/4) sqrt R) + sqrt(G zeta-hat B)/sqrt R]",
    why="The last root must not cover B. FedPOSGD beats the baseline G B d/sqrt(K R) for d >= c sqrt K, not d = O(sqrt "
    "K) as the text has it, and is faster by sqrt M for d >= c M sqrt K.",
    requires=_APART,
    test=_TEST + "test_the_rates_cross_where_they_should",
)
def rate_theorem_19(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any,
) -> Any:  # fmt: skip
    """FedPOSGD's regret up to a constant; the baseline alone is M = K = 1 at the same T."""
    unit, apart = lipschitz * radius / steps**0.5, drifting(num_local_steps, num_clients)
    drift = dimension**0.5 * num_local_steps**0.25 + (cost_heterogeneity * num_local_steps / lipschitz) ** 0.5
    return unit * (1 + dimension / num_clients**0.5 + apart * drift)


# --- two values --------------------------------------------------------------------------------------------------


@statement(
    "Lemma 48 and Theorem 20, before tuning",
    kind="upper bound",
    status="corrected",
    printed="regret <= B^2/(2 eta T) + (eta/2) (G^2 + s^2/M) + I 2 G (s + G) K eta + 2 G delta, s^2 = c d G^2",
    corrected="regret <= B^2/(2 eta T) + (eta/2) (G^2 + s^2/M) + G a + G delta, a the consensus distance",
    why="The print holds; noise drifts like sqrt K, not K, also without smoothness. The mean play costs the mean of f "
    "over a sphere, at most G delta/(d+1) above that over the ball, which is at most G delta d/(d+1) above f(x*).",
    requires=(*_BANDIT,),
    test=_TEST + "test_theorem_20_holds",
)
def theorem_20(
    *, step_size: Any, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    exploration: Any,
) -> Any:  # fmt: skip
    """FedOSGD's expected regret at its plays, for convex G-Lipschitz costs, whatever their heterogeneity."""
    moment = two_point_second_moment(lipschitz=lipschitz, dimension=dimension)
    apart = consensus_distance(
        step_size=step_size, num_local_steps=num_local_steps, num_clients=num_clients, noise=moment**0.5,
        cost_heterogeneity=2 * lipschitz, lipschitz=lipschitz,
    )  # fmt: skip
    return _together(step_size, steps, num_clients, lipschitz, radius, moment) + lipschitz * (apart + exploration)


@statement(
    "Theorem 20, tuned",
    kind="step size",
    status="corrected",
    printed="eta = B/(G sqrt T) min{1, sqrt M/sqrt d, I 1/sqrt(K d^(1/4))}",
    corrected="eta = B/(G sqrt T) min{1, sqrt(M/d), I 1/(sqrt K d^(1/4))}",
    why="The printed root covers d^(1/4); the proof has sqrt(G/(s K)) with s = sqrt d G.",
    requires=_BANDIT,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def theorem_20_step_size(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any
) -> Any:
    """FedOSGD's step by the thesis, for its looser bound."""
    apart = drifting(num_local_steps, num_clients)
    shrink = smallest(
        1.0, (num_clients / dimension) ** 0.5, quotient(1.0, apart * num_local_steps**0.5 * dimension**0.25)
    )
    return radius / (lipschitz * steps**0.5) * shrink


@statement(
    "derived, Theorem 20 sharpened and tuned",
    kind="step size",
    printed="eta = B/(G sqrt T) min{1, sqrt(M/d), I 1/(d K)^(1/4), I 1/sqrt K}; regret = O(G B/sqrt T + G B sqrt d/"
    "sqrt(M T) + I [G B (d K)^(1/4)/sqrt T + G B sqrt K/sqrt T])",
    requires=_BANDIT,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def two_point_step_size(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any
) -> Any:
    """FedOSGD's step for the bound that holds: it beats the baseline alone from d = K on, where the print says K^2."""
    apart = drifting(num_local_steps, num_clients)
    shrink = smallest(
        1.0,
        (num_clients / dimension) ** 0.5,
        quotient(1.0, apart * (dimension * num_local_steps) ** 0.25),
        quotient(1.0, apart * num_local_steps**0.5),
    )
    return radius / (lipschitz * steps**0.5) * shrink


@statement(
    "Theorem 20, exploration",
    kind="step size",
    status="corrected",
    printed="delta = (B d^(1/4)/sqrt R) (1 + d^(1/4)/sqrt(M K))",
    corrected="delta = min{printed, (B/sqrt T) (1 + sqrt(d/M))}",
    why="At K = 1 the printed delta costs G B d^(1/4)/sqrt R, a term that the bound does not have there. A smaller "
    "delta is always fine; below 1e-6 B differences of costs drown in rounding.",
    requires=(*_BANDIT,),
    test=_TEST + "test_exploration_costs_no_more_than_the_rest",
)
def theorem_20_exploration(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, radius: Any, lipschitz: Any = 1.0
) -> Any:
    """How far from its iterate FedOSGD plays."""
    root, M = (num_local_steps / steps) ** 0.5, num_clients
    printed = radius * dimension**0.25 * root * (1 + dimension**0.25 / (M * num_local_steps) ** 0.5)
    return smallest(printed, radius / steps**0.5 * (1 + (dimension / M) ** 0.5))


@statement(
    "Lemma 49 and Theorem 21, before tuning",
    kind="upper bound",
    status="corrected",
    printed="regret = O(... + I eta^2 H (s^2 K + zeta-hat^2 K^2) + eta zeta-hat (s sqrt K + zeta-hat K)), (F.13)",
    corrected="regret <= B^2/(2 eta T) + (eta/2) (G^2 + s^2/M) + min{G a, a (H a + zeta-hat)} + G delta, eta <= 2/H",
    why="The constants, derived. (F.12) asks for a mean of gradients at different points; Minkowski's inequality "
    "needs none.",
    requires=(*_APART, "step_size * smoothness <= 2"),
    test=_TEST + "test_lemma_49_holds",
)
def lemma_49(
    *, step_size: Any, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any, smoothness: Any, exploration: Any,
) -> Any:  # fmt: skip
    """FedOSGD's expected regret at its plays, for convex G-Lipschitz H-smooth costs that differ by zeta-hat."""
    moment = two_point_second_moment(lipschitz=lipschitz, dimension=dimension)
    apart = consensus_distance(
        step_size=step_size, num_local_steps=num_local_steps, num_clients=num_clients, noise=moment**0.5,
        cost_heterogeneity=cost_heterogeneity, lipschitz=lipschitz,
    )  # fmt: skip
    drift = smallest(lipschitz * apart, apart * (smoothness * apart + cost_heterogeneity))
    return _together(step_size, steps, num_clients, lipschitz, radius, moment) + drift + lipschitz * exploration


@statement(
    "Lemma 49 and Theorem 21, tuned",
    kind="step size",
    status="corrected",
    printed="a broken display in the proof of lemma 49",
    corrected="eta = min{1/(2H), B sqrt M/(s sqrt T), max{B/(G sqrt T), B/sqrt(H F_* T)}, I max{min{B^(2/3)/(H^(1/3) "
    "s^(2/3) K^(2/3) R^(1/3)), B^(2/3)/(H^(1/3) zeta-hat^(2/3) K R^(1/3)), B/(K^(3/4) sqrt(zeta-hat s R)), B/(zeta-hat "
    "K sqrt R)}, min{B/(K^(3/4) sqrt(G s R)), B/(K sqrt(zeta-hat G R))}}}, s = G sqrt d",
    why="A brace is missing and a root covers B; each entry balances B^2/(eta T) with a term of the bound.",
    requires=_APART,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def theorem_21_step_size(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any, smoothness: Any, optimal_value: Any = None,
) -> Any:  # fmt: skip
    """FedOSGD's step for smooth costs; F_* only where costs are non-negative."""
    T, K, M, B, G, H, zeta = steps, num_local_steps, num_clients, radius, lipschitz, smoothness, cost_heterogeneity
    s, rounds = G * dimension**0.5, T / K
    own = B / (G * T**0.5)
    if optimal_value is not None:
        own = largest(own, quotient(B, (H * optimal_value * T) ** 0.5))
    cube = B ** (2 / 3) / (H * rounds) ** (1 / 3)
    by_curvature = smallest(
        cube / (s * K) ** (2 / 3),
        quotient(cube, zeta ** (2 / 3) * K),
        quotient(B, K**0.75 * (zeta * s * rounds) ** 0.5),
        quotient(B, zeta * K * rounds**0.5),
    )
    by_slope = smallest(B / (K**0.75 * (G * s * rounds) ** 0.5), quotient(B, K * (zeta * G * rounds) ** 0.5))
    drift = np.where(drifting(K, M) > 0, largest(by_curvature, by_slope), np.inf)
    return smallest(1 / (2 * H), B * M**0.5 / (s * T**0.5), own, drift)


@statement(
    "Corollary 1, before tuning",
    kind="upper bound",
    status="corrected",
    printed="regret = O(G B/sqrt(K R) + G B sqrt d/sqrt(M K R) + I [sqrt(G zeta-hat B) d^(1/4)/(K^(1/4) sqrt R) + "
    "zeta-hat B/sqrt R])",
    corrected="regret <= B^2/(2 eta T) + (eta/2) (G^2 + d G^2/M) + zeta-hat a; the root must not cover B",
    why="Linear costs: H = 0, their smoothed versions are themselves, delta does not matter, and s^2 = d G^2 exactly.",
    requires=_APART,
    test=_TEST + "test_corollary_1_holds",
)
def corollary_1(
    *, step_size: Any, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any,
) -> Any:  # fmt: skip
    """FedOSGD's expected regret for linear costs; without heterogeneity local steps cost nothing."""
    apart = consensus_distance(
        step_size=step_size, num_local_steps=num_local_steps, num_clients=num_clients,
        noise=lipschitz * dimension**0.5, cost_heterogeneity=cost_heterogeneity, lipschitz=lipschitz,
    )  # fmt: skip
    own = _together(step_size, steps, num_clients, lipschitz, radius, lipschitz**2 * dimension)
    return own + smallest(cost_heterogeneity, lipschitz) * apart


@statement(
    "Corollary 1, tuned",
    kind="step size",
    printed="theorem 21's with H = 0: eta = B/(G sqrt T) min{1, sqrt(M/d), I sqrt(G/zeta-hat)/(d K)^(1/4), I "
    "G/(zeta-hat sqrt K)}",
    requires=_APART,
    test=_TEST + "test_tuned_steps_are_near_the_best",
)
def corollary_1_step_size(
    *, num_local_steps: Any, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any,
    cost_heterogeneity: Any,
) -> Any:  # fmt: skip
    """FedOSGD's step for linear costs."""
    differ = drifting(num_local_steps, num_clients) * cost_heterogeneity / lipschitz
    shrink = smallest(
        1.0,
        (num_clients / dimension) ** 0.5,
        quotient(1.0, differ**0.5 * (dimension * num_local_steps) ** 0.25),
        quotient(1.0, differ * num_local_steps**0.5),
    )
    return radius / (lipschitz * steps**0.5) * shrink


@statement(
    "Corollary 1, local steps for free",
    kind="remark",
    status="corrected",
    printed="K <= (G^2/zeta-hat^2) min{1/d, d/M^2} keeps the optimal rate",
    corrected="K <= (G^2/zeta-hat^2) max{1/d, d/M^2} does",
    why="The terms of heterogeneity need only stay below the larger of G B/sqrt T and G B sqrt d/sqrt(M T); the print "
    "is sufficient.",
    requires=("dimension >= 1", "lipschitz > 0", "cost_heterogeneity > 0"),
    test=_TEST + "test_local_steps_are_free_up_to_the_stated_number",
)
def corollary_1_local_steps(*, num_clients: Any, dimension: Any, lipschitz: Any, cost_heterogeneity: Any) -> Any:
    """The number of local steps up to which FedOSGD's rate for linear costs is that of K = 1."""
    return (lipschitz / cost_heterogeneity) ** 2 * largest(1 / dimension, dimension / num_clients**2)


@statement(
    "(F.15), lower bound with two values",
    kind="scaling law",
    status="scaling only",
    printed="G B/sqrt(K R) + G B sqrt d/sqrt(M K R)",
    requires=_BANDIT,
    test=_TEST + "test_local_steps_are_free_up_to_the_stated_number",
)
def two_point_lower_bound(*, steps: Any, num_clients: Any, dimension: Any, lipschitz: Any, radius: Any) -> Any:
    """What no method with two values per step can get below, up to a constant."""
    return lipschitz * radius / steps**0.5 * (1 + (dimension / num_clients) ** 0.5)


def _together(step_size: Any, steps: Any, num_clients: Any, lipschitz: Any, radius: Any, moment: Any) -> Any:
    """What machines that are always at one point pay: B^2/(2 eta T) + (eta/2) (G^2 + s^2/M)."""
    return radius**2 / (2 * step_size * steps) + step_size / 2 * (lipschitz**2 + moment / num_clients)
