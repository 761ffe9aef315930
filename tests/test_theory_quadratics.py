"""The bounds of chapter 4 on random quadratics whose exact errors are computed step by step."""

import functools

import numpy as np
import pytest

from random_quadratics import Batch, batches, within
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.quadratic_facts import quadratic_facts
from sojourn.theory.quadratics import (
    lemma_2,
    lemma_3,
    lemma_4,
    lemma_4_rigorous,
    lemma_13,
    lemma_13_safe,
    proposition_4,
    proposition_4_step_size,
    remark_22,
    theorem_4,
)

STEPS = ("step_size", "num_local_steps")
CURVED = ("smoothness", "strong_convexity")
HETEROGENEOUS = ("hessian_heterogeneity", "optima_heterogeneity")
NOISY = ("rounds", "noise", "num_clients")
BARE = {"step_size": 0.1, "num_local_steps": 4, "smoothness": 2.0, "strong_convexity": 0.5}
FULL = {
    **BARE, "rounds": 3, "noise": 1.0, "num_clients": 4, "hessian_heterogeneity": 1.0, "optima_heterogeneity": 1.0,
    "mean_optima_distance": 2.0,
}  # fmt: skip


@functools.cache
def instances() -> list[Batch]:
    found = list(batches(seed=0))
    assert sum(len(batch.x0) for batch in found) >= 1000
    return found


def norm(x):
    return np.linalg.norm(x, axis=-1)


def scale(batch):
    return norm(batch.optima).max(axis=1) + norm(batch.x0)


def outer_steps(batch):
    """From small to the largest one that lemma 2 allows."""
    top = 1 - (1 - batch.step_size * batch.smoothness) ** batch.num_local_steps
    return np.linspace(0.1, 1.0, len(top)) / top


@pytest.mark.parametrize("largest", [False, True], ids=["outer step 1", "outer steps up to the limit"])
def test_lemma_2(largest):
    for batch in instances():
        x_inf = batch.fixed_point()
        beta = outer_steps(batch) if largest else 1.0
        numbers = batch.numbers(*STEPS, *CURVED, *NOISY)
        bound = lemma_2(**numbers, fixed_point_distance=norm(batch.x0 - x_inf), outer_step_size=beta)
        assert within(batch.error(x_inf, beta), bound, scale(batch) ** 2).all()


def test_lemma_2_needs_its_noise_term():
    numbers = [batch.numbers(*STEPS, *CURVED, *NOISY) | {"noise": 0.0} for batch in instances()]
    assert any(
        not within(b.error(b.fixed_point()), lemma_2(**n, fixed_point_distance=norm(b.x0 - b.fixed_point()))).all()
        for b, n in zip(instances(), numbers, strict=True)
    )


def test_lemma_3():
    for batch in instances():
        bound = lemma_3(**batch.numbers(*STEPS, *CURVED, *HETEROGENEOUS, "mean_optima_distance"))
        assert within(norm(batch.x0 - batch.fixed_point()), bound, scale(batch)).all()


def printed_first_branch(batch):
    drift = batch.step_size * batch.hessian_heterogeneity * batch.num_local_steps * batch.optima_heterogeneity
    return batch.mean_optima_distance + drift * batch.smoothness / batch.strong_convexity


def test_the_printed_first_branch_of_lemma_3_fails():
    ratios = [norm(b.x0 - b.fixed_point()) / printed_first_branch(b) for b in instances()]
    assert max(ratio.max() for ratio in ratios) > 1.5


def test_proposition_4():
    for batch in instances():
        bound = proposition_4(**batch.numbers(*STEPS, *CURVED, *NOISY, *HETEROGENEOUS, "mean_optima_distance"))
        assert within(batch.error(batch.fixed_point()), bound, scale(batch) ** 2).all()


def test_the_printed_first_branch_of_proposition_4_fails():
    """Two clients whose optimum is far from both: a million tiny rounds hardly move, and the print forgets tau."""
    hessians = np.array([[[6.0, 2.0], [2.0, 2.0]], [[4.0, 2.0], [2.0, 2.0]]])[None] - 0.72 * np.eye(2)
    batch = Batch(hessians, np.array([[[-1.0, 0], [1, 0]]]), np.zeros((1, 2)), np.array([1e-9]), np.zeros(1), 1, 10**6)
    moved = np.linalg.matrix_power(np.eye(2) - 1e-9 * hessians[0].mean(axis=0), 10**6)
    measured = np.sum((moved @ batch.x_star[0]) ** 2)  # K = 1: GD, and the fixed point is the optimum
    drift = batch.hessian_heterogeneity * batch.optima_heterogeneity * batch.smoothness / batch.strong_convexity**2
    kept = np.exp(-2 * batch.step_size * batch.strong_convexity * 10**6)
    assert measured > 1.25 * ((drift / 10**6) ** 2 + 2 * batch.mean_optima_distance**2 * kept)
    assert measured <= proposition_4(**batch.numbers(*STEPS, *CURVED, *HETEROGENEOUS, *NOISY, "mean_optima_distance"))


def test_each_branch_of_proposition_4_is_sometimes_the_smaller():
    far = {**FULL, "smoothness": 100.0, "step_size": 1e-3, "noise": 0.0, "rounds": 0}
    assert proposition_4(**far) == pytest.approx(2 * (2.0**2 + 2.0**2))  # tau zeta_* / mu = 2
    assert proposition_4(**far | {"hessian_heterogeneity": 1e4}) == pytest.approx((200 * 2.0) ** 2)


def test_proposition_4_step_size():
    for batch in instances():
        numbers = batch.numbers(*CURVED, *NOISY, "num_local_steps", "mean_optima_distance")
        eta = proposition_4_step_size(**numbers)
        assert np.all((eta > 0) & (eta <= 1 / (2 * batch.smoothness)))
        signal = (batch.mean_optima_distance * batch.strong_convexity) ** 2 * batch.num_clients
        total = batch.num_local_steps * batch.rounds
        noisy = batch.noise > 0
        ratio = np.maximum(np.e, signal[noisy] * total / batch.noise[noisy] ** 2)
        expected = np.minimum(
            1 / (2 * batch.smoothness[noisy]), np.log(ratio) / (batch.strong_convexity[noisy] * total)
        )
        np.testing.assert_allclose(eta[noisy], expected, rtol=1e-12)
        np.testing.assert_array_equal(eta[~noisy], 1 / (2 * batch.smoothness[~noisy]))


def test_the_tuned_step_of_proposition_4_is_near_the_best_one():
    """Within the logarithm it pays: the bound at the tuned step against the smallest over a grid."""
    long = {**FULL, "rounds": 10_000, "num_local_steps": 10, "noise": 3.0}
    tuned = proposition_4_step_size(**{k: v for k, v in long.items() if k not in ("step_size", *HETEROGENEOUS)})
    best = proposition_4(**long | {"step_size": np.geomspace(1e-6, 0.249, 400)}).min()
    at_tuned = proposition_4(**long | {"step_size": tuned})
    assert best <= at_tuned <= 3 * best
    assert proposition_4(**long | {"step_size": tuned * 20}) > 3 * best  # the check can fail


def assert_that_lemma_4_holds(form):
    for batch in instances():
        bound = form(**batch.numbers(*STEPS, *CURVED, *HETEROGENEOUS))
        condition = 1e-12 * batch.smoothness / batch.strong_convexity  # both points come from linear systems
        slack = scale(batch) * (1 + condition)
        assert within(norm(batch.x_star - batch.fixed_point()), bound, slack).all()


def test_lemma_4():
    assert_that_lemma_4_holds(lemma_4)


def test_lemma_4_rigorous():
    assert_that_lemma_4_holds(lemma_4_rigorous)
    numbers = {**{k: FULL[k] for k in (*CURVED, *HETEROGENEOUS)}, "step_size": np.geomspace(1e-9, 0.499, 50)}
    for steps in (1, 2, 3, 30, 1e6):
        printed, proven = (form(**numbers, num_local_steps=steps) for form in (lemma_4, lemma_4_rigorous))
        assert np.all(printed <= proven * (1 + 1e-12)) and np.all(proven <= 2 * printed * (1 + 1e-12))


def test_lemma_4_is_not_true_of_a_tenth_of_it():
    """The negative control: some instance comes within a factor ten of the bound."""
    assert any(
        not within(norm(b.x_star - b.fixed_point()), lemma_4(**b.numbers(*STEPS, *CURVED, *HETEROGENEOUS)) / 10).all()
        for b in instances()
    )


def test_limits_of_lemma_4():
    numbers = {"smoothness": 2.0, "strong_convexity": 0.5, "hessian_heterogeneity": 1.5, "optima_heterogeneity": 1.0}
    unit = 3.0  # tau zeta_* / mu
    for form in (lemma_4, lemma_4_rigorous):
        assert form(**numbers, step_size=0.3, num_local_steps=1) == 0.0
        assert form(**numbers, step_size=1e-300, num_local_steps=10) == pytest.approx(0, abs=1e-290)
        assert form(**numbers, step_size=0.3, num_local_steps=10**6) == pytest.approx(unit)
        c = 1.7
        curve = 1 + c * 0.5 / np.expm1(c * 0.5)
        assert form(**numbers, step_size=c / 1e7, num_local_steps=1e7) == pytest.approx(unit * curve, rel=1e-6)
        # eta = 1e-12: b1 is (K - 1) eta (H^2 / mu + 2 H) / 2 to first order, of the order of 1e-11.
        tiny = unit * 9e-12 * (2.0**2 / 0.5 + 2 * 2.0) / 2
        assert form(**numbers, step_size=1e-12, num_local_steps=10) == pytest.approx(tiny, rel=1e-9, abs=0)


# --- Lemma 13 -----------------------------------------------------------------------------------------------------

PAIR_10 = np.array([[[0.979, -0.085], [-0.085, 0.008]], [[0.968, -0.068], [-0.068, 0.019]]])
PAIR_100 = np.array([[[0.574, 0.460], [0.460, 0.388]], [[0.593, 0.467], [0.467, 0.369]]])


def residual(matrix, eta, steps):
    local = np.eye(len(matrix)) - eta * matrix
    return np.eye(len(matrix)) - np.linalg.matrix_power(local, steps) - eta * steps * matrix


def lipschitz(pair, eta, steps):
    one, two = (residual(matrix, eta, steps) for matrix in pair)
    return np.linalg.norm(one - two, 2) / np.linalg.norm(pair[0] - pair[1], 2)


@pytest.mark.parametrize("pair, eta, steps, excess", [(PAIR_10, 0.999, 10, 1.07), (PAIR_100, 0.3, 100, 1.10)])
def test_lemma_13_is_refuted(pair, eta, steps, excess):
    values = np.linalg.eigvalsh(pair)
    assert values.min() > 0 and values.max() < 1  # positive definite, H = 1
    numbers = {"step_size": eta, "num_local_steps": steps, "smoothness": 1.0}
    assert lipschitz(pair, eta, steps) > excess * lemma_13(**numbers)
    assert lipschitz(pair, eta, steps) <= lemma_13_safe(**numbers) <= 2 * lemma_13(**numbers)


def test_lemma_13_holds_for_numbers_and_its_safe_form_for_matrices():
    rng = np.random.default_rng(3)
    for _ in range(1000):
        d, steps, eta = rng.integers(2, 5), int(rng.integers(1, 60)), rng.uniform(0.01, 0.999)
        rotations = np.linalg.qr(rng.normal(size=(2, d, d)))[0]
        pair = rotations * (rng.random((2, 1, d)) ** 3) @ np.swapaxes(rotations, 1, 2)
        numbers = {"step_size": eta, "num_local_steps": steps, "smoothness": 1.0}
        assert lipschitz(pair, eta, steps) <= lemma_13_safe(**numbers) + 1e-9
        diagonal = rng.random((2, 1, 1))
        assert lipschitz(diagonal, eta, steps) <= lemma_13(**numbers) + 1e-9


# --- Theorem 4 ----------------------------------------------------------------------------------------------------


def test_theorem_4():
    for batch in instances():
        bound = theorem_4(**batch.numbers(*STEPS, *CURVED, *NOISY, *HETEROGENEOUS, "mean_optima_distance"))
        assert within(batch.error(batch.x_star), bound, scale(batch) ** 2).all()


def test_theorem_4_without_the_discrepancy_fails():
    failed = 0
    for batch in instances():
        numbers = batch.numbers(*STEPS, *CURVED, *NOISY, *HETEROGENEOUS, "mean_optima_distance")
        failed += np.sum(~within(batch.error(batch.x_star), 2 * proposition_4(**numbers), scale(batch) ** 2))
    assert failed > 10


def test_theorem_4_takes_the_facts_of_a_federation():
    hessians, optima = instances()[12].hessians[0], instances()[12].optima[0]
    facts = quadratic_facts(hessians, optima, noise=0.5)
    numbers = {"num_clients": 3, "mean_optima_distance": np.linalg.norm(optima, axis=1).mean()}
    steps = {"step_size": 0.5 / facts.smoothness, "num_local_steps": 5, "rounds": np.arange(4)}
    curve = theorem_4(facts, **numbers, **steps)
    assert curve.shape == (4,) and np.all(np.diff(curve) < 0)


def test_the_bounds_are_their_formulas():
    """Retyped from the corrected print, so that a term cannot grow unnoticed."""
    eta, K, H, mu, R, sigma, M, tau, zeta, b_bar = 0.1, 4, 2.0, 0.5, 3, 1.0, 4, 1.0, 1.0, 2.0
    ell = 1 - (1 - eta * mu) ** K
    at = {"fixed_point_distance": 3.0, "outer_step_size": 0.7}
    kept = 1 - 0.7 * ell
    expected = kept ** (2 * R) * 9 + eta * 0.7 * (1 - kept**R) * sigma**2 / (mu * M)
    assert lemma_2(**{k: FULL[k] for k in (*BARE, *NOISY)}, **at) == pytest.approx(expected, rel=1e-12)
    share = eta * mu * K * (1 - eta * mu) ** (K - 1) / ell
    at_3 = {k: FULL[k] for k in (*BARE, *HETEROGENEOUS, "mean_optima_distance")}
    assert lemma_3(**at_3) == pytest.approx(b_bar + tau * zeta / mu * share, rel=1e-12)
    assert lemma_3(**at_3 | {"hessian_heterogeneity": 90.0}) == pytest.approx(H / mu * b_bar, rel=1e-12)
    start = 2 * (b_bar**2 + (tau * zeta / mu) ** 2)
    to_fixed_point = start * np.exp(-2 * eta * mu * K * R) + eta * sigma**2 / (mu * M)
    assert proposition_4(**FULL) == pytest.approx(to_fixed_point, rel=1e-12)
    base = (1 - eta * H) ** K - 1 + eta * H * K
    printed = (base + eta * mu * K * (1 - (1 - eta * H) ** (K - 1))) / ell
    proven = (base + 2 * eta * mu * (K - (1 - (1 - eta * H) ** K) / (eta * H))) / ell
    at_4 = {k: FULL[k] for k in (*BARE, *HETEROGENEOUS)}
    assert printed < proven < 1 + share
    assert lemma_4(**at_4) == pytest.approx(tau * zeta / mu * printed, rel=1e-12)
    assert lemma_4_rigorous(**at_4) == pytest.approx(tau * zeta / mu * proven, rel=1e-12)
    assert theorem_4(**FULL) == pytest.approx(2 * to_fixed_point + 2 * (tau * zeta / mu * proven) ** 2, rel=1e-12)


# --- ends of the ranges -------------------------------------------------------------------------------------------


def test_one_client_without_noise_goes_to_its_own_optimum():
    lone = {**FULL, "num_clients": 1, "noise": 0.0, "hessian_heterogeneity": 0.0, "optima_heterogeneity": 0.0}
    assert lemma_4(**{k: lone[k] for k in (*BARE, *HETEROGENEOUS)}) == 0
    assert lemma_3(**{k: lone[k] for k in (*BARE, *HETEROGENEOUS, "mean_optima_distance")}) == 2.0
    assert theorem_4(**lone | {"rounds": 10_000}) == pytest.approx(0, abs=1e-30)


def test_bounds_are_numbers_from_tiny_to_huge_steps():
    for eta in (1e-300, 1e-12, 0.4999999999):
        for steps in (1, 1e6, 1e300):
            values = theorem_4(**{**FULL, "step_size": eta, "num_local_steps": steps, "strong_convexity": 1e-8})
            assert np.isfinite(values) and values >= 0


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"step_size": 0.5}, "step_size \\* smoothness < 1"),
        ({"strong_convexity": 0.0}, "strong_convexity > 0"),
        ({"strong_convexity": 3.0}, "strong_convexity <= smoothness"),
        ({"num_local_steps": 0}, "num_local_steps = 0 is out of range"),
        ({"noise": -1.0}, "noise = -1 is out of range"),
        ({"third_order_smoothness": 0.1}, "third_order_smoothness == 0"),
        ({"smoothness": np.nan}, "smoothness = nan is out of range"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, told):
    with pytest.raises(SojournError, match=told):
        theorem_4(**FULL | wrong)


def test_lemma_2_refuses_long_outer_steps():
    numbers = {**BARE, "rounds": 3, "noise": 1.0, "num_clients": 4, "fixed_point_distance": 1.0}
    with pytest.raises(SojournError, match="outer_step_size"):
        lemma_2(**numbers, outer_step_size=3.0)


def test_a_missing_fact_is_named():
    unknown = Facts(smoothness=2.0, strong_convexity=None, hessian_heterogeneity=1.0, optima_heterogeneity=1.0)
    with pytest.raises(
        SojournError, match=r"Lemma 4 needs strong_convexity \(mu\), which this federation does not know"
    ):
        lemma_4(unknown, step_size=0.1, num_local_steps=4)


def test_remark_22() -> None:
    """The limit of Lemma 4's second branch as eta K -> c; the printed 2 is right only for c -> 0."""
    facts = {"strong_convexity": 0.7, "hessian_heterogeneity": 0.4, "optima_heterogeneity": 1.5}
    scale = 0.4 * 1.5 / 0.7
    for local_time in (1e-3, 0.1, 1.0, 10.0):
        K = 10_000_000
        bound = lemma_4(step_size=local_time / K, num_local_steps=K, smoothness=1e3 / local_time, **facts)
        assert remark_22(local_time=local_time, **facts) == pytest.approx(bound, rel=1e-4)
    assert remark_22(local_time=0.0, **facts) == pytest.approx(2 * scale)
    assert remark_22(local_time=1e6, **facts) == pytest.approx(scale)  # printed: twice that
    assert remark_22(local_time=5.0, **facts) < 1.2 * scale
