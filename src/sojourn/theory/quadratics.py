"""Local SGD on quadratics (thesis, chapter 4): how far the iterates are from the fixed point, and it from the optimum.

Paper to code: x_inf -> the fixed point, C_m = I - (I - eta A_m)^K, l = 1 - (1 - eta mu)^K, kappa = H / mu. All clients
are strongly convex and count equally. B-bar and |x_inf| are distances from the start x_0, which the thesis puts at 0.
"""

from typing import Any

import numpy as np

from sojourn.theory.contraction import excess, last_share, left, lost
from sojourn.theory.statement import Predicts, statement

_TEST = "test_theory_quadratics.py::"
_LAST = {"output": "last"}
_PLAIN = {"output": "last", "outer_step_size": 1.0}
_STRONG = ("third_order_smoothness == 0", "strong_convexity > 0", "strong_convexity <= smoothness")
_SHORT = (*_STRONG, "step_size * smoothness < 1")


@statement(
    "Lemma 2",
    kind="upper bound",
    printed="E|x_R - x_inf|^2 <= (1 - beta l)^(2R) |x_0 - x_inf|^2 + eta beta (1 - (1 - beta l)^R) sigma^2 / (mu M)",
    requires=(
        *_SHORT,
        "outer_step_size * (1 - (1 - step_size * smoothness) ** num_local_steps) <= 1 + 1e-12",
    ),
    test=_TEST + "test_lemma_2",
    predicts=(Predicts("LocalSGD", "distance_to_fixed_point", squared=True, options=_LAST, quadratic=True),),
)
def lemma_2(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, fixed_point_distance: Any, outer_step_size: Any = 1.0, third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The squared distance to the fixed point after R rounds, in expectation."""
    taken = np.minimum(outer_step_size * lost(step_size * strong_convexity, num_local_steps), 1.0)
    floor = step_size * outer_step_size * noise**2 / (strong_convexity * num_clients)
    return left(taken, 2 * rounds) * fixed_point_distance**2 + floor * lost(taken, rounds)


@statement(
    "Lemma 3",
    kind="upper bound",
    status="corrected",
    printed="|x_0 - x_inf| <= min{B-bar + eta tau K kappa zeta_*, kappa B-bar}",
    corrected="|x_0 - x_inf| <= min{B-bar + (tau zeta_* / mu) eta mu K (1 - eta mu)^(K-1) / l, kappa B-bar}",
    why="The first branch bounds |C_m - C_n| by eta tau K (1 - (1 - eta H)^(K-1)), where Lemma 11 gives "
    "eta tau K (1 - eta mu)^(K-1); at K = 1 and eta -> 0 it would put x* within B-bar of the start.",
    requires=_SHORT,
    test=_TEST + "test_lemma_3",
)
def lemma_3(
    *, step_size: Any, num_local_steps: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, mean_optima_distance: Any, third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The distance from the start to the fixed point."""
    drift = hessian_heterogeneity * optima_heterogeneity / strong_convexity
    drift = drift * last_share(step_size * strong_convexity, num_local_steps)
    return np.minimum(mean_optima_distance + drift, smoothness / strong_convexity * mean_optima_distance)


@statement(
    "Proposition 4",
    kind="upper bound",
    status="corrected",
    printed="E|x_R - x_inf|^2 <= min{tau^2 H^2 zeta_*^2 / (mu^4 R^2) + 2 B-bar^2 e^(-2 eta mu K R), "
    "kappa^2 B-bar^2 e^(-2 eta mu K R)} + eta sigma^2 / (mu M)",
    corrected="E|x_R - x_inf|^2 <= min{2 (B-bar^2 + tau^2 zeta_*^2 / mu^2), kappa^2 B-bar^2} e^(-2 eta mu K R) "
    "+ eta sigma^2 / (mu M)",
    why="The first branch rests on the first branch of Lemma 3 as printed; it fails for many rounds with tiny steps.",
    requires=_SHORT,
    test=_TEST + "test_proposition_4",
    predicts=(Predicts("LocalSGD", "distance_to_fixed_point", squared=True, options=_PLAIN, quadratic=True),),
)
def proposition_4(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any, mean_optima_distance: Any,
    third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The squared distance to the fixed point after R rounds, in expectation, for outer step 1."""
    drift = hessian_heterogeneity * optima_heterogeneity / strong_convexity
    start = np.minimum(
        2 * (mean_optima_distance**2 + drift**2), (smoothness / strong_convexity * mean_optima_distance) ** 2
    )
    kept = np.exp(-2 * step_size * strong_convexity * num_local_steps * rounds)
    return start * kept + step_size * noise**2 / (strong_convexity * num_clients)


@statement(
    "Proposition 4, step size",
    kind="step size",
    status="corrected",
    printed="eta = min{1 / (2H), ln(B-bar^2 mu^2 M K R / sigma^2) / (mu K R)}",
    corrected="eta = min{1 / (2H), ln(max(e, B-bar^2 mu^2 M K R / sigma^2)) / (mu K R)}",
    why="The logarithm is not positive where the noise is large.",
    requires=(*_STRONG, "rounds >= 1"),
    test=_TEST + "test_proposition_4_step_size",
)
def proposition_4_step_size(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any, num_clients: Any,
    mean_optima_distance: Any, third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The step that balances the two terms of proposition 4; without noise the largest one, 1 / (2H)."""
    total = num_local_steps * rounds
    noisy = np.asarray(noise) > 0
    signal = (mean_optima_distance * strong_convexity / np.where(noisy, noise, 1.0)) ** 2 * num_clients * total
    tuned = np.log(np.maximum(np.e, signal)) / (strong_convexity * total)
    return np.minimum(1 / (2 * smoothness), np.where(noisy, tuned, np.inf))


@statement(
    "Lemma 4",
    kind="upper bound",
    printed="|x* - x_inf| <= (tau zeta_* / mu) min{b1, b2}, b1 = [(1 - eta H)^K - 1 + eta H K "
    "+ eta mu K (1 - (1 - eta H)^(K-1))] / l, b2 = 1 + eta mu K (1 - eta mu)^(K-1) / l",
    why="No counterexample is known, but the proof of b1 uses Lemma 13, which is false; see the next form.",
    requires=_SHORT,
    test=_TEST + "test_lemma_4",
)
def lemma_4(
    *, step_size: Any, num_local_steps: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The distance from the fixed point to the optimum, as printed."""
    x = step_size * smoothness
    curved = step_size * strong_convexity * num_local_steps * lost(x, num_local_steps - 1.0)
    factor = _discrepancy(excess(x, num_local_steps) + curved, step_size * strong_convexity, num_local_steps)
    return hessian_heterogeneity * optima_heterogeneity / strong_convexity * factor


@statement(
    "Lemma 4, proven form",
    kind="upper bound",
    status="corrected",
    printed="b1 with the summand eta mu K (1 - (1 - eta H)^(K-1))",
    corrected="b1 with the summand 2 eta mu (K - (1 - (1 - eta H)^K) / (eta H))",
    why="The printed summand is the constant of Lemma 13; this one follows from Lemma 11 and is at most twice it.",
    requires=_SHORT,
    test=_TEST + "test_lemma_4_rigorous",
)
def lemma_4_rigorous(
    *, step_size: Any, num_local_steps: Any, smoothness: Any, strong_convexity: Any, hessian_heterogeneity: Any,
    optima_heterogeneity: Any, third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The distance from the fixed point to the optimum, with a proof that does not need Lemma 13."""
    curved = (1 + 2 * strong_convexity / smoothness) * excess(step_size * smoothness, num_local_steps)
    factor = _discrepancy(curved, step_size * strong_convexity, num_local_steps)
    return hessian_heterogeneity * optima_heterogeneity / strong_convexity * factor


@statement(
    "Remark 22",
    kind="upper bound",
    status="corrected",
    printed="for eta = Omega(1/K) the bound of Lemma 4 tends to 2 tau zeta_* / mu as K grows",
    corrected="as eta K -> c it is at most (1 + c mu / (e^(c mu) - 1)) tau zeta_* / mu, which falls to tau zeta_* / mu",
    why="the second summand of b2 falls from 1 at c = 0 to 0, so 2 is the limit of small eta K, not of large.",
    requires=("strong_convexity > 0",),
    test=_TEST + "test_remark_22",
)
def remark_22(
    *, local_time: Any, strong_convexity: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any
) -> Any:  # fmt: skip
    """What b2 of Lemma 4 leaves of the distance to the optimum when eta K -> c, the local time."""
    x = np.asarray(local_time * strong_convexity, float)
    share = np.where(x == 0, 1.0, x / np.expm1(np.where(x == 0, 1.0, np.minimum(x, 700.0))))
    return hessian_heterogeneity * optima_heterogeneity / strong_convexity * (1 + share)


@statement(
    "Lemma 13",
    kind="upper bound",
    status="refuted",
    printed="|R(A_m) - R(A_n)| <= L |A_m - A_n|, R(X) = I - (I - eta X)^K - eta K X, L = eta K (1 - (1 - eta H)^(K-1))",
    why="-R is not operator monotone (at K = 2 it is (eta X)^2), so matrices need not obey the scalar constant; "
    "two of size 2 exceed it by 10 % at K = 100.",
    requires=("step_size * smoothness < 1",),
    test=_TEST + "test_lemma_13_is_refuted",
)
def lemma_13(*, step_size: Any, num_local_steps: Any, smoothness: Any) -> Any:
    """The constant of the print, which holds for matrices that commute only."""
    return step_size * num_local_steps * lost(step_size * smoothness, num_local_steps - 1.0)


@statement(
    "Lemma 13, proven form",
    kind="upper bound",
    status="corrected",
    printed="L = eta K (1 - (1 - eta H)^(K-1))",
    corrected="2 eta (K - (1 - (1 - eta H)^K) / (eta H)), which is between L and 2 L",
    why="Lemma 11 writes R(A_m) - R(A_n) as a sum of K terms D - X^a D Y^b, to which the triangle inequality applies.",
    requires=("step_size * smoothness < 1",),
    test=_TEST + "test_lemma_13_is_refuted",
)
def lemma_13_safe(*, step_size: Any, num_local_steps: Any, smoothness: Any) -> Any:
    """A Lipschitz constant of R that holds for all symmetric matrices with spectra in [0, H]."""
    return 2 * excess(step_size * smoothness, num_local_steps) / smoothness


@statement(
    "Theorem 4",
    kind="upper bound",
    status="corrected",
    printed="E|x_R - x*|^2 <= c_9 (the bound of Proposition 4 + the square of the bound of Lemma 4)",
    corrected="E|x_R - x*|^2 <= 2 (Proposition 4, corrected) + 2 (Lemma 4, proven form)^2",
    why="Inherits the first branch of Proposition 4 and the gap of Lemma 4; the constant is 2.",
    requires=_SHORT,
    test=_TEST + "test_theorem_4",
    predicts=(Predicts("LocalSGD", "distance", squared=True, options=_PLAIN, quadratic=True),),
)
def theorem_4(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, strong_convexity: Any, noise: Any,
    num_clients: Any, hessian_heterogeneity: Any, optima_heterogeneity: Any, mean_optima_distance: Any,
    third_order_smoothness: Any = 0.0,
) -> Any:  # fmt: skip
    """The squared distance to the optimum after R rounds, in expectation, for outer step 1."""
    shared = {
        "step_size": step_size, "num_local_steps": num_local_steps, "smoothness": smoothness,
        "strong_convexity": strong_convexity, "hessian_heterogeneity": hessian_heterogeneity,
        "optima_heterogeneity": optima_heterogeneity,
    }  # fmt: skip
    to_fixed_point = proposition_4(
        rounds=rounds, noise=noise, num_clients=num_clients, mean_optima_distance=mean_optima_distance, **shared
    )
    return 2 * to_fixed_point + 2 * lemma_4_rigorous(**shared) ** 2


def _discrepancy(curved: Any, y: Any, num_local_steps: Any) -> Any:
    """min{b1, b2} with the numerator of b1 and y = eta mu; b2 alone where y is too small to divide by."""
    taken = lost(y, num_local_steps)
    first = np.where(taken > 0, curved / np.where(taken > 0, taken, 1.0), np.inf)
    return np.minimum(first, 1 + last_share(y, num_local_steps))
