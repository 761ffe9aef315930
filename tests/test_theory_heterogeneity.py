"""The inequalities between measures of heterogeneity, on random quadratics."""

import functools

import numpy as np
import pytest

from random_quadratics import Batch, batches, within
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.instances import proposition1
from sojourn.problems.quadratic_facts import quadratic_facts
from sojourn.theory.heterogeneity import proposition_3, remark_8, remark_9, remark_9_gap, remark_11, remark_20


@functools.cache
def instances() -> list[Batch]:
    found = list(batches(seed=1))
    assert sum(len(batch.x0) for batch in found) >= 1000
    return found


def singular_federations(number):
    """Clients of rank one or two in three dimensions, whose optima are lines and planes."""
    rng = np.random.default_rng(7)
    for _ in range(number):
        factors = rng.normal(size=(int(rng.integers(1, 5)), 3, int(rng.integers(1, 3))))
        yield factors @ np.swapaxes(factors, 1, 2), rng.normal(size=(len(factors), 3)) * 3


def gradients(hessians, optima, x):
    return np.einsum("...mij,...mj->...mi", hessians, x[..., None, :] - optima)


def test_remark_8():
    for batch in instances():
        measured = np.mean(np.sum(gradients(batch.hessians, batch.optima, batch.x_star) ** 2, axis=2), axis=1)
        assert within(measured, remark_8(**batch.numbers("smoothness", "optima_distance"))).all()


def test_remark_8_with_singular_hessians():
    for hessians, optima in singular_federations(200):
        facts = quadratic_facts(hessians, optima)
        measured = np.mean(np.sum(gradients(hessians, optima, facts.x_star) ** 2, axis=1))
        assert within(measured, remark_8(facts), scale=np.sum(optima**2) * facts.smoothness**2)


def test_remark_8_is_tight_and_no_equality():
    equal = quadratic_facts(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]))
    assert remark_8(equal) == pytest.approx(1.0)  # both gradients are 1: a bound any smaller would fail
    spread = quadratic_facts(np.ones((3, 1, 1)), np.array([[2.0], [-1.0], [-1.0]]))
    assert remark_8(spread) > 2.0 + 0.1  # the mean squared gradient is 2


def test_remark_9():
    for batch in instances():
        assert within(batch.optima_heterogeneity, remark_9(optima_distance=batch.optima_distance)).all()


def test_remark_9_with_sets_of_optima():
    for hessians, optima in singular_federations(200):
        facts = quadratic_facts(hessians, optima)
        assert facts.optima_heterogeneity <= remark_9(facts) * (1 + 1e-9) + 1e-9


def test_remark_9_fails_without_its_factor():
    ratios = np.concatenate([b.optima_heterogeneity / np.maximum(b.optima_distance, 1e-9) for b in instances()])
    assert ratios.max() > 1.6


@pytest.mark.parametrize("num_clients", [2, 4, 16, 64])
def test_remark_9_gap(num_clients):
    facts = proposition1(num_clients, 1.5, regulariser=1e-3 / num_clients).facts()
    gap = remark_9_gap(num_clients=num_clients, mean_optima_distance=1.5)
    assert facts.optima_distance >= gap
    assert facts.optima_heterogeneity <= 2 * 1.5
    if num_clients > 20:
        printed = proposition1(num_clients, 1.5, regulariser=1.0).facts()
        assert printed.optima_distance < gap


def test_remark_11():
    names = ("optima_heterogeneity", "hessian_heterogeneity", "strong_convexity")
    for batch in instances():
        assert within(batch.optima_distance, remark_11(**batch.numbers(*names))).all()


def test_remark_20():
    names = ("mean_optima_distance", "optima_heterogeneity", "hessian_heterogeneity", "strong_convexity")
    for batch in instances():
        measured = np.linalg.norm(batch.x_star - batch.x0, axis=1)
        assert within(measured, remark_20(**batch.numbers(*names))).all()


def test_remarks_11_and_20_need_the_difference_of_hessians():
    assert any((b.optima_distance > 1.5 * b.optima_heterogeneity).any() for b in instances())
    far = [np.linalg.norm(b.x_star - b.x0, axis=1) > 1.5 * b.mean_optima_distance for b in instances()]
    assert any(batch.any() for batch in far)


def largest_differences(hessians, optima, x0, radius, rng):
    """(n, M, M): of gradients, over random points of the ball and those where a difference of Hessians acts most."""
    differences = hessians[:, :, None] - hessians[:, None]
    steepest = np.linalg.eigh(differences @ differences)[1][..., -1].reshape(len(x0), -1, x0.shape[1])
    random = rng.normal(size=(len(x0), 20, x0.shape[1]))
    random /= np.linalg.norm(random, axis=2, keepdims=True)
    directions = np.concatenate([np.zeros_like(x0)[:, None], random, steepest, -steepest], axis=1)
    points = x0[:, None] + radius[:, None, None] * directions
    found = gradients(hessians[:, None], optima[:, None], points)
    return np.linalg.norm(found[:, :, :, None] - found[:, :, None], axis=-1).max(axis=1)


def test_proposition_3():
    rng = np.random.default_rng(5)
    names = ("smoothness", "strong_convexity", "hessian_heterogeneity", "mean_optima_distance", "optima")
    for batch in instances():
        radius = rng.choice([0.0, 0.5, 20.0], size=len(batch.x0))
        bound = proposition_3(**batch.numbers(*names), radius=radius)
        measured = largest_differences(batch.hessians, batch.optima, batch.x0, radius, rng)
        assert bound.shape == measured.shape
        assert within(measured, bound, scale=batch.smoothness[:, None, None]).all()


def test_proposition_3_needs_both_terms_and_unique_optima():
    rng = np.random.default_rng(5)
    names = ("smoothness", "strong_convexity", "hessian_heterogeneity", "mean_optima_distance", "optima")
    for left_out in ({"hessian_heterogeneity": 0.0}, {"optima": np.zeros((50, 5, 2))}):
        batch = next(b for b in instances() if b.optima.shape[1:] == (5, 2) and b.num_local_steps == 4)
        radius = np.full(len(batch.x0), 20.0)
        measured = largest_differences(batch.hessians, batch.optima, batch.x0, radius, rng)
        assert not within(measured, proposition_3(**batch.numbers(*names) | left_out, radius=radius)).all()
    # Two rank-one clients with lines of optima at distance 1 from zero, on either side of it: the lines meet far away,
    # so zeta_* = 0, and tau is small, but the gradients at zero are opposite.
    angle = 0.01
    u, v = np.array([np.cos(angle), np.sin(angle)]), np.array([np.cos(angle), -np.sin(angle)])
    facts = quadratic_facts(np.stack([np.outer(u, u), np.outer(v, v)]), np.stack([u, -v]))
    first, second = gradients(facts.hessians, facts.optima, np.zeros(2))
    assert facts.optima_heterogeneity == pytest.approx(0, abs=1e-12)
    assert facts.hessian_heterogeneity == pytest.approx(np.sin(2 * angle))
    assert np.linalg.norm(first - second) > 1.99 > 90 * facts.hessian_heterogeneity * (0 + 1)  # D = 0, B-bar = 1
    with pytest.raises(SojournError, match="strong_convexity > 0"):
        proposition_3(facts, radius=0.0, mean_optima_distance=1.0)


def test_one_client_is_homogeneous():
    facts = quadratic_facts(np.eye(2)[None], np.array([[1.0, 2.0]]))
    assert (remark_8(facts), remark_9(facts), remark_11(facts)) == pytest.approx((0, 0, 0), abs=1e-12)
    assert remark_20(facts, mean_optima_distance=5**0.5) == pytest.approx(5**0.5)
    assert proposition_3(facts, radius=3.0, mean_optima_distance=1.0).tolist() == [[0.0]]


def test_what_is_wrong_is_said():
    with pytest.raises(SojournError, match="strong_convexity > 0; got strong_convexity = 0"):
        remark_11(optima_heterogeneity=1.0, hessian_heterogeneity=1.0, strong_convexity=0.0)
    with pytest.raises(SojournError, match=r"Remark 8 needs optima_distance \(phi_\*\), which this federation"):
        remark_8(Facts(smoothness=1.0))
    with pytest.raises(SojournError, match="third_order_smoothness == 0"):
        remark_11(
            Facts(third_order_smoothness=1.0), optima_heterogeneity=1, hessian_heterogeneity=1, strong_convexity=1
        )
    with pytest.raises(SojournError, match="num_clients % 2 == 0"):
        remark_9_gap(num_clients=3, mean_optima_distance=1.0)
    with pytest.raises(SojournError, match="expected \\(clients, d\\)"):
        proposition_3(
            optima=np.ones(3),
            radius=1,
            smoothness=1,
            strong_convexity=1,
            hessian_heterogeneity=1,
            mean_optima_distance=1,
        )
