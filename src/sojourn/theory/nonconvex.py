"""Bounds on E|grad F|^2 of CE-LSGD, CE-LGD and minibatch STORM (thesis, chapter 6), their steps and momenta.

The thesis leaves the constants C, C', C'' of the steps open; here they are filled in. e_r = E|v_r - grad F(x_r)|^2 is
the error of the server's estimate, D_k that of the client's, G_k = E|grad F(w_k)|^2; D and G are means over a round's K
steps.

1. (E.7) D_k <= (1 + 1/K) D_{k-1} + (H^2/b + (1+K) tau^2) E|w_k - w_{k-1}|^2 with |w_k - w_{k-1}|^2 = eta^2 |v|^2 and
   D_1 = e_r, so D <= e e_r + A (D + G) in means, A = 2 e eta^2 K (H^2/b + (1+K) tau^2). A <= 1/7 gives
   D <= (7/6) e e_r + G/6. The pairwise tau of assumption 11 bounds Hess F_j - Hess F too, where the text has 2 tau.
2. (E.9) With eta <= 1/(4H), summed over a round: K G <= (4/eta) (F_r - F_{r+1}) + 12 e K e_r.
3. (E.13) sum e_r <= (2 H^2/(beta M K b)) sum E|x_{r+1} - x_r|^2 + 2 beta R sigma^2/(M K b) + sigma^2/(beta M b_0), and
   |x_{r+1} - x_r|^2 <= eta^2 K sum |v_k|^2 <= eta^2 K^2 (4 e e_r + (7/3) G).
4. With q = 2 (H eta K)^2/(beta M K b) <= 2/361 the gradients in 3. cost less than half of those in 2.

Algorithm 1 takes one step in its first round, so the output is one of N = 1 + (R-1) K iterates, not of R K: the sums
above stay, and are divided by N. Paper to code: Delta -> start_gap, beta -> momentum, b_0 -> first_batches times
batch_size (first_batches None: K, as the methods have it), eps -> target. `noise` is sigma_2 of one sample; facts hold
that of one call, for which b = 1.
"""

import math
from typing import Any

import numpy as np

from sojourn.problems.chain_facts import split_length, whole_length
from sojourn.theory.statement import Predicts, statement
from sojourn.theory.tuning import largest, quotient, smallest

_TEST = "test_theory_nonconvex.py::"
_E = math.e
_SHORT, _LONG, _EXACT = (25, 103), (13, 19), 9  # the constants of 1/(K tau) and of sqrt(beta M K b)/(H K)
_BATCHES = "first_batches is None or np.all(first_batches >= 1)"
_SAMPLED = ("momentum > 0", "momentum <= 1", "batch_size >= 1", _BATCHES)


def _permitted(tau_factor: int, noise_factor: int) -> tuple[str, ...]:
    """What E.17 requires of the step."""
    return (
        "4 * step_size * smoothness <= 1 + 1e-9",
        f"{tau_factor} * step_size * num_local_steps * hessian_heterogeneity <= 1 + 1e-9",
        "9 * step_size * smoothness * num_local_steps**0.5 <= (1 + 1e-9) * batch_size**0.5",
        f"{noise_factor} * step_size * smoothness * num_local_steps**0.5 <= "
        "(1 + 1e-9) * (momentum * num_clients * batch_size)**0.5",
    )


def _longest(factors: tuple[int, int], H: Any, tau: Any, M: Any, K: Any, b: Any, beta: Any) -> Any:
    estimate = (beta * M * b / K) ** 0.5 / (factors[1] * H)
    return smallest(1 / (4 * H), quotient(1, factors[0] * K * tau), (b / K) ** 0.5 / (9 * H), estimate)


def _first_batch(first_batches: Any, K: Any, b: Any) -> Any:
    """b_0 in samples."""
    return (K if first_batches is None else first_batches) * b


@statement(
    "Equation E.17 (Theorems 14, 16 and 26)",
    kind="upper bound",
    status="corrected",
    printed="E|grad F(x~)|^2 <= 8 Delta/(R K eta) + 96 e beta sigma^2/(M K b) + 48 e sigma^2/(beta R M b_0), eta <= "
    "min{1/(4H), 1/(C K tau), sqrt(b)/(C' sqrt(K) H), sqrt(beta M K b)/(C'' H K)}",
    corrected="C = 25, C' = 9, C'' = 103, for R >= 3",
    why="The constants are left open; and as the first round has one step, the output is one of 1 + (R-1) K iterates: "
    "for R = 1 it is x_0, whatever K.",
    requires=(*_SAMPLED, "rounds >= 3", *_permitted(*_SHORT)),
    test=_TEST + "test_e17_stands_above_ce_lsgd",
)
def theorem_26(
    *, step_size: Any, num_local_steps: Any, rounds: Any, momentum: Any, smoothness: Any, hessian_heterogeneity: Any,
    noise: Any, start_gap: Any, num_clients: Any, first_batches: Any = None, batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The squared gradient norm of a local iterate of CE-LSGD drawn uniformly. Longer steps: `ce_lsgd_gradient`."""
    K, b, M = num_local_steps, batch_size, num_clients
    start = 8 * start_gap / (rounds * K * step_size)
    first = 48 * _E * noise**2 / (momentum * rounds * M * _first_batch(first_batches, K, b))
    return start + 96 * _E * momentum * noise**2 / (M * K * b) + first


@statement(
    "derived, E.17 with longer steps",
    kind="upper bound",
    printed="E|grad F(x~)|^2 <= [8 Delta/eta + 48 e beta R sigma^2/(M b) + 24 e K sigma^2/(beta M b_0)]/(1 + (R-1) K), "
    "eta <= min{1/(4H), 1/(13 K tau), sqrt(b)/(9 sqrt(K) H), sqrt(beta M K b)/(19 H K)}",
    requires=(*_SAMPLED, "rounds >= 1", "noise > 0", *_permitted(*_LONG)),
    test=_TEST + "test_e17_stands_above_ce_lsgd",
    predicts=(Predicts("CELSGD", "grad_norm", squared=True, options={"output": "uniform"}),),
)
def ce_lsgd_gradient(
    *, step_size: Any, num_local_steps: Any, rounds: Any, momentum: Any, smoothness: Any, hessian_heterogeneity: Any,
    noise: Any, start_gap: Any, num_clients: Any, first_batches: Any = None, batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The squared gradient norm of a local iterate of CE-LSGD drawn uniformly; without noise take `theorem_26_exact`.

    4. in numbers: with C'' = 19 the sum of G is at most 4 Delta/eta + 0.449 of itself + 12 e/0.939 K (noise of 3.).
    """
    K, b, M = num_local_steps, batch_size, num_clients
    first = 24 * _E * K * noise**2 / (momentum * M * _first_batch(first_batches, K, b))
    total = 8 * start_gap / step_size + 48 * _E * momentum * rounds * noise**2 / (M * b) + first
    return total / (1 + (rounds - 1) * K)


@statement(
    "Theorem 26 (b), with constants",
    kind="upper bound",
    status="corrected",
    printed="exact gradients, beta = 1: E|grad F(x~)|^2 <= 4 Delta/(R K eta), eta <= min{1/(4H), 1/(C K tau)}",
    corrected="E|grad F(x~)|^2 <= 4 Delta/((1 + (R-1) K) eta), C = 9",
    why="The constant is left open, and the first round has one step.",
    requires=(
        "rounds >= 1",
        "4 * step_size * smoothness <= 1 + 1e-9",
        f"{_EXACT} * step_size * num_local_steps * hessian_heterogeneity <= 1 + 1e-9",
    ),
    test=_TEST + "test_the_exact_bound_stands_above_ce_lgd",
)
def theorem_26_exact(
    *, step_size: Any, num_local_steps: Any, rounds: Any, smoothness: Any, hessian_heterogeneity: Any, start_gap: Any
) -> Any:
    """The mean squared gradient norm of the local iterates of CE-LGD, for every choice of the clients that walk.

    e_r = 0 in 1. and 2.; A = 4 e (eta K tau)^2 <= 1/7 at C = 9.
    """
    return 4 * start_gap / ((1 + (rounds - 1) * num_local_steps) * step_size)


@statement(
    "Theorem 27, with constants",
    kind="upper bound",
    status="corrected",
    printed="MB-STORM is E.17 with K -> 1, b -> K; eta = min{1/H, sqrt(beta M)/(H sqrt(K))}",
    corrected="E|grad F(x~)|^2 <= 4 Delta/(R eta) + 12 beta sigma^2/(M K b) + 6 sigma^2/(beta R M b_0), eta <= "
    "min{1/(4H), sqrt(beta M K b)/(6 H)}",
    why="K -> 1 and b -> K in the step of Theorem 26 give sqrt(beta M K)/H. Without local steps 3. reads |x_{r+1} - "
    "x_r|^2 <= 2 eta^2 (e_r + G_r), hence the smaller constants.",
    requires=(
        *_SAMPLED,
        "rounds >= 1",
        "4 * step_size * smoothness <= 1 + 1e-9",
        "6 * step_size * smoothness <= (1 + 1e-9) * (momentum * num_clients * num_local_steps * batch_size)**0.5",
    ),
    test=_TEST + "test_theorem_27_stands_above_minibatch_storm",
)
def theorem_27(
    *, step_size: Any, num_local_steps: Any, rounds: Any, momentum: Any, smoothness: Any, noise: Any, start_gap: Any,
    num_clients: Any, first_batches: Any = None, batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The mean squared gradient norm of the models x_0 .. x_{R-1} of minibatch STORM."""
    K, b, M = num_local_steps, batch_size, num_clients
    first = 6 * noise**2 / (momentum * rounds * M * _first_batch(first_batches, K, b))
    return 4 * start_gap / (rounds * step_size) + 12 * momentum * noise**2 / (M * K * b) + first


@statement(
    "Theorems 14, 16 and 26, the step",
    kind="step size",
    status="corrected",
    printed="eta = c min{1/H, 1/(K tau), sqrt(b)/(sqrt(K) H), sqrt(beta M K b)/(H K)}",
    corrected="eta = min{1/(4H), 1/(25 K tau), sqrt(b)/(9 sqrt(K) H), sqrt(beta M K b)/(103 H K)}",
    why="The constants are filled in; Theorem 14 leaves out the third entry, which its proof needs.",
    requires=("momentum > 0", "momentum <= 1", "batch_size >= 1"),
    test=_TEST + "test_steps_are_the_longest_permitted",
)
def theorem_26_step_size(
    *, num_local_steps: Any, momentum: Any, smoothness: Any, hessian_heterogeneity: Any, num_clients: Any,
    batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The longest step of E.17."""
    return _longest(
        _SHORT, smoothness, hessian_heterogeneity, num_clients, num_local_steps, batch_size, momentum
    )  # fmt: skip


@statement(
    "derived, the longer step of CE-LSGD",
    kind="step size",
    printed="eta = min{1/(4H), 1/(13 K tau), sqrt(b)/(9 sqrt(K) H), sqrt(beta M K b)/(19 H K)}",
    requires=("momentum > 0", "momentum <= 1", "batch_size >= 1"),
    test=_TEST + "test_steps_are_the_longest_permitted",
)
def ce_lsgd_step_size(
    *, num_local_steps: Any, momentum: Any, smoothness: Any, hessian_heterogeneity: Any, num_clients: Any,
    batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """The longest step of `ce_lsgd_gradient`."""
    return _longest(_LONG, smoothness, hessian_heterogeneity, num_clients, num_local_steps, batch_size, momentum)


@statement(
    "Theorem 26 (b), the step",
    kind="step size",
    status="corrected",
    printed="eta = min{1/H, 1/(K tau)}",
    corrected="eta = min{1/(4H), 1/(9 K tau)}",
    why="Its proof requires 1/(4H), and leaves the other constant open.",
    test=_TEST + "test_steps_are_the_longest_permitted",
)
def theorem_26_exact_step_size(*, num_local_steps: Any, smoothness: Any, hessian_heterogeneity: Any) -> Any:
    """The longest step of `theorem_26_exact`."""
    return smallest(1 / (4 * smoothness), quotient(1, _EXACT * num_local_steps * hessian_heterogeneity))


@statement(
    "Theorem 27, the step",
    kind="step size",
    status="corrected",
    printed="eta = min{1/H, sqrt(beta M)/(H sqrt(K))}",
    corrected="eta = min{1/(4H), sqrt(beta M K b)/(6 H)}",
    why="K -> 1 and b -> K in Theorem 26's: the printed step shrinks with the batch.",
    requires=("momentum > 0", "momentum <= 1", "batch_size >= 1"),
    test=_TEST + "test_steps_are_the_longest_permitted",
)
def theorem_27_step_size(
    *, num_local_steps: Any, momentum: Any, smoothness: Any, num_clients: Any, batch_size: Any = 1.0
) -> Any:
    """The longest step of `theorem_27`."""
    estimate = (momentum * num_clients * num_local_steps * batch_size) ** 0.5 / (6 * smoothness)
    return smallest(1 / (4 * smoothness), estimate)


@statement(
    "Theorems 14, 16, 26 and 27, the momentum",
    kind="step size",
    status="corrected",
    printed="beta = max{1/R, (Delta H)^(2/3) (M K b)^(1/3)/(sigma^(4/3) R^(2/3))}, Delta H/R <= sigma^2/sqrt(M K b)",
    corrected="the same, at most 1",
    why="Where the condition fails, beta = 1 is allowed, and the gradients need no memory.",
    requires=("rounds >= 1", "batch_size >= 1"),
    test=_TEST + "test_momentum_and_first_batch_balance_the_bound",
)
def theorem_26_momentum(
    *, num_local_steps: Any, rounds: Any, smoothness: Any, noise: Any, start_gap: Any, num_clients: Any,
    batch_size: Any = 1.0,
) -> Any:  # fmt: skip
    """beta of CE-LSGD and minibatch STORM for a run of R rounds; 1 with exact gradients."""
    top = (start_gap * smoothness) ** 2 * num_clients * num_local_steps * batch_size
    return smallest(1.0, largest(1 / rounds, np.cbrt(quotient(top, noise**4 * rounds**2))))


@statement(
    "Theorem 26, the first batch",
    kind="step size",
    status="corrected",
    printed="b_0 = K R",
    corrected="b_0 = K b R, first_batches = K R",
    why="With b_0 = K R the last term of E.17 is sigma^2/(M K R), not sigma^2/(M K b R); Theorem 16 has it right.",
    requires=("rounds >= 1",),
    test=_TEST + "test_momentum_and_first_batch_balance_the_bound",
)
def theorem_26_first_batches(*, num_local_steps: Any, rounds: Any) -> Any:
    """b_0/b of CE-LSGD."""
    return num_local_steps * rounds


@statement(
    "Theorem 27, the first batch",
    kind="step size",
    printed="b_0 = min{sigma^(4/3) (R K)^(2/3)/((Delta H)^(2/3) M^(1/3)), sigma^(8/3) (K R)^(1/3)/((Delta H)^(4/3) "
    "M^(2/3))} = (K/beta) min{1, 1/(beta R)}",
    requires=("rounds >= 1", "momentum > 0", "momentum <= 1"),
    test=_TEST + "test_momentum_and_first_batch_balance_the_bound",
)
def theorem_27_first_batches(*, num_local_steps: Any, rounds: Any, momentum: Any) -> Any:
    """b_0/b of minibatch STORM, for the momentum of the theorem; rounded up."""
    return np.ceil(num_local_steps / momentum * smallest(1.0, 1 / (momentum * rounds)) - 1e-9)


@statement(
    "Theorem 22",
    kind="lower bound",
    status="corrected",
    printed="R >= tau Delta/(8 * 12 * 152 eps)",
    corrected="R >= floor(tau Delta/(24 * 152 eps))",
    why="There is an instance; Lemma 47 holds for F_1 + F_2, which E.1 halves, and the Hessians' difference needs a "
    "factor 2, not 4. R >= d, as fewer coordinates than d leave a large gradient.",
    requires=("target > 0",),
    test=_TEST + "test_rounds_of_lower_bounds_are_lengths_of_chains",
)
def theorem_22(*, hessian_heterogeneity: Any, start_gap: Any, target: Any) -> Any:
    """Rounds that a zero-respecting method needs to |grad F|^2 <= eps on `problems.theorem22`, whatever K."""
    return split_length(1.0, hessian_heterogeneity, np.inf, start_gap, target)


@statement(
    "Theorem 23",
    kind="lower bound",
    status="corrected",
    printed="R >= H^2 zeta^2/(2 * 12 * 152 eps)",
    corrected="R >= floor(min{H^2 zeta^2/46^2, H Delta/(24 * 152)}/eps)",
    why="With Lemma 47 as it holds the clients' gradients differ by up to 2 * 23 sqrt(eps d); and the printed scale "
    "H^2 zeta^2/Delta must not exceed H.",
    requires=("target > 0",),
    test=_TEST + "test_rounds_of_lower_bounds_are_lengths_of_chains",
)
def theorem_23(*, smoothness: Any, gradient_heterogeneity: Any, start_gap: Any, target: Any) -> Any:
    """Rounds that a zero-respecting method needs to |grad F|^2 <= eps on `problems.theorem23`, whatever K."""
    return split_length(smoothness, smoothness, gradient_heterogeneity, start_gap, target)


@statement(
    "Theorems 13 and 25, first term",
    kind="lower bound",
    status="corrected",
    printed="R >= c Delta H/eps",
    corrected="R >= floor(Delta H/(12 * 152 eps))",
    why="The print gives no constant.",
    requires=("target > 0",),
    test=_TEST + "test_rounds_of_lower_bounds_are_lengths_of_chains",
)
def theorem_25_floor(*, smoothness: Any, start_gap: Any, target: Any) -> Any:
    """Rounds with gradients at one point each that `problems.theorem13` takes to |grad F|^2 <= eps."""
    return whole_length(smoothness, start_gap, target)
