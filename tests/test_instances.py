"""The thesis's hard instances, run with local GD typed out in NumPy, and the closed forms and floors they promise."""

import itertools

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.problems.instances import (
    Instance,
    proposition1,
    theorem1,
    theorem2,
    theorem3,
    three_coordinates,
    two_coordinates,
)


def local_gd(instance, eta, beta, num_steps, rounds):
    """x_R of equation 2.4 without noise, from zero; eta and beta may be arrays, which run side by side."""
    eta, beta = np.broadcast_arrays(np.asarray(eta, float), np.asarray(beta, float))
    x = np.zeros((*eta.shape, instance.x_star.size))
    for _ in range(rounds):
        y = np.repeat(x[..., None, :], len(instance.optima), axis=-2)
        for _ in range(num_steps):
            y = y - eta[..., None, None] * np.einsum("mij,...mj->...mi", instance.hessians, y - instance.optima)
        x = x + beta[..., None] * (y.mean(axis=-2) - x)
    return x


def errors(instance, xs):
    return np.array([instance.suboptimality(x) for x in xs.reshape(-1, instance.x_star.size)])


def best_over_a_grid(instance, smoothness, rounds):
    """The smallest F(x_R) - F* over inner steps, outer steps and numbers of local steps."""
    eta, beta = np.meshgrid(np.geomspace(1e-3, 2.2, 25) / smoothness, np.geomspace(0.05, 20, 41))
    runs = [errors(instance, local_gd(instance, eta, beta, num_steps, rounds)) for num_steps in (1, 2, 7)]
    return min(run.min() for run in runs)


# --- equations 2.7 and 3.10 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta, beta, num_steps, rounds", [(0.1, 1.0, 5, 7), (0.3, 2.0, 3, 4), (0.45, 0.7, 20, 9)])
def test_equation_2_7_is_local_gd(eta, beta, num_steps, rounds):
    smoothness, x_star = 2.0, np.array([1.5, -0.5])
    instance = two_coordinates(smoothness, x_star)
    left = 1 - beta / 2 * (1 - (1 - eta * smoothness) ** num_steps)
    np.testing.assert_allclose(
        local_gd(instance, eta, beta, num_steps, rounds), x_star * (1 - left**rounds), atol=1e-12
    )


def test_outer_step_two_solves_the_two_coordinates_in_one_round():
    instance = two_coordinates(1.0, np.array([1.0, 1.0]))
    assert instance.suboptimality(local_gd(instance, 0.9, 2.0, 50, 1)) < 1e-30
    assert instance.suboptimality(local_gd(instance, 0.9, 1.0, 50, 1)) == pytest.approx(1 / 8, rel=1e-12)


def test_two_coordinates_share_the_optimum_and_differ_by_all_of_the_smoothness():
    facts = two_coordinates(3.0, np.array([1.0, 2.0])).facts()
    assert (facts.optima_heterogeneity, facts.optima_distance) == pytest.approx((0, 0), abs=1e-14)
    assert (facts.smoothness, facts.hessian_heterogeneity, facts.strong_convexity) == (3.0, 3.0, 0.0)


@pytest.mark.parametrize("eta, beta, num_steps, rounds", [(0.1, 1.0, 5, 7), (0.3, 1.6, 3, 4), (0.2, 0.7, 20, 9)])
def test_equation_3_10_is_local_gd(eta, beta, num_steps, rounds):
    smoothness, tau, x_star = 2.0, 0.5, np.array([1.5, -0.5, 0.8])
    instance = three_coordinates(smoothness, tau, x_star)
    a = (1 - beta / 2 * (1 - (1 - eta * tau) ** num_steps)) ** rounds
    b = (1 - beta * (1 - (1 - eta * smoothness) ** num_steps)) ** rounds
    x = local_gd(instance, eta, beta, num_steps, rounds)
    np.testing.assert_allclose(x, x_star * (1 - np.array([a, a, b])), atol=1e-12)
    error = tau / 4 * (x_star[0] ** 2 + x_star[1] ** 2) * a**2 + smoothness / 2 * x_star[2] ** 2 * b**2
    assert instance.suboptimality(x) == pytest.approx(error, abs=1e-12)


def test_three_coordinates_are_as_heterogeneous_as_asked():
    facts = three_coordinates(2.0, 0.5, np.ones(3)).facts()
    assert (facts.smoothness, facts.hessian_heterogeneity, facts.optima_distance) == pytest.approx(
        (2, 0.5, 0), abs=1e-14
    )


# --- theorem 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [2, 3, 4, 7])
@pytest.mark.parametrize("rounds", [1, 5, 100])
def test_theorem_1_has_the_spectrum_of_the_text(num_clients, rounds):
    smoothness, radius = 3.0, 2.0
    instance = theorem1(num_clients, rounds, smoothness, radius)
    values = np.linalg.eigvalsh(instance.hessians.mean(0)) / smoothness
    np.testing.assert_allclose(values, [1 / (12 * rounds + 1), 12 * rounds / (12 * rounds + 1)], rtol=1e-10)
    # lambda = 1/2 -+ sqrt(1/4 - (a - a^2)(1 - alpha^2)), alpha the overlap of the two directions
    a = 0.5 if num_clients % 2 == 0 else (num_clients + 1) / (2 * num_clients)
    alpha2 = instance.hessians[0, 0, 0] / smoothness
    root = np.sqrt(0.25 - (a - a**2) * (1 - alpha2))
    np.testing.assert_allclose(values, [0.5 - root, 0.5 + root], rtol=1e-10)
    if num_clients % 2 == 0:
        assert np.sqrt(alpha2) == pytest.approx((12 * rounds - 1) / (12 * rounds + 1), rel=1e-12)
    assert np.linalg.norm(instance.x_star) == pytest.approx(radius, rel=1e-14)
    assert instance.bound == pytest.approx(values[1] * smoothness * radius**2 / (96 * rounds), rel=1e-12)
    facts = instance.facts()
    assert facts.smoothness == pytest.approx(smoothness, rel=1e-12)
    assert (facts.optima_heterogeneity, facts.optima_distance) == pytest.approx((0, 0), abs=1e-12)


def test_on_theorem_1_local_gd_is_gd_on_the_mean():
    instance = theorem1(5, 4, 2.0, 1.0)
    eta, beta, num_steps = 0.3, 1.7, 6
    x, step = np.zeros(2), beta * (1 - (1 - eta * 2.0) ** num_steps) / 2.0
    for _ in range(4):
        x = x - step * instance.hessians.mean(0) @ (x - instance.x_star)
    np.testing.assert_allclose(local_gd(instance, eta, beta, num_steps, 4), x, atol=1e-14)


@pytest.mark.parametrize("num_clients, rounds", [(2, 1), (2, 10), (3, 5), (8, 3), (5, 20)])
def test_theorem_1_bounds_local_gd_for_all_step_sizes(num_clients, rounds):
    smoothness, radius = 3.0, 2.0
    instance = theorem1(num_clients, rounds, smoothness, radius)
    best = best_over_a_grid(instance, smoothness, rounds)
    assert best >= instance.bound
    # not vacuous: the best step sizes come within a factor two of the floor (0.0150 to 0.0175 against 0.0104)
    assert best <= 2 * smoothness * radius**2 / (96 * rounds)
    # negative control: the constant 1/8 printed in lemma 1 does not hold
    assert best < smoothness * radius**2 / (8 * rounds) / 5


def test_without_the_rotation_of_theorem_1_the_bound_fails():
    """Negative control: the plain example 3.8 is solved by the outer step 2, so the grid goes below the floor."""
    rotated = theorem1(2, 10, 1.0, 1.0)
    plain = two_coordinates(1.0, rotated.x_star)
    assert best_over_a_grid(plain, 1.0, 10) < 1e-3 * rotated.bound


# --- theorem 2 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [2, 3, 10, 50])
def test_theorem_2_no_point_on_the_first_coordinates_beats_the_bound(rounds):
    smoothness, radius = 3.0, 2.0
    instance = theorem2(rounds, smoothness, radius)
    mean = instance.hessians.mean(0)
    best = np.zeros(5 * rounds)
    best[:rounds] = np.linalg.solve(mean[:rounds, :rounds], (mean @ instance.x_star)[:rounds])
    error = instance.suboptimality(best)
    assert error >= instance.bound
    # the rate H B^2 / R^2: 0.0288, 0.0446, 0.0680, 0.0762 of it for these rounds, growing to a limit
    assert 0.028 <= error * rounds**2 / (smoothness * radius**2) <= 0.08
    assert instance.bound * rounds**2 / (smoothness * radius**2) >= 0.012


@pytest.mark.parametrize("rounds, num_clients", [(4, 2), (7, 4)])
def test_theorem_2_clients_are_the_chains_of_the_text(rounds, num_clients):
    """Links B.1 and B.2 typed out, numbered from one, at random points; x_star is optimal for every client."""
    smoothness, d = 3.0, 5 * rounds
    instance = theorem2(rounds, smoothness, 2.0, num_clients=num_clients)
    q = 1 - 1 / rounds
    scale = smoothness / (1 + q**2)
    x = np.concatenate([[np.nan], np.random.default_rng(0).standard_normal(d)])
    first = instance.x_star[0]
    even = (q**2 + 1) * (first - x[1]) ** 2 + sum(
        (q * x[2 * i] - x[2 * i + 1]) ** 2 for i in range(1, (d - 1) // 2 + 1)
    )
    odd = sum((q * x[2 * i - 1] - x[2 * i]) ** 2 for i in range(1, d // 2 + 1))
    gaps = x[1:] - instance.optima
    values = np.einsum("mi,mij,mj->m", gaps, instance.hessians, gaps) / 2
    np.testing.assert_allclose(values, np.tile([scale / 2 * odd, scale / 2 * even], num_clients // 2), rtol=1e-12)
    np.testing.assert_allclose(instance.x_star[1:] / instance.x_star[:-1], q, rtol=1e-12)
    facts = instance.facts()
    assert facts.smoothness == pytest.approx(smoothness, rel=1e-12)
    assert facts.optima_distance == pytest.approx(0, abs=1e-12)
    assert np.linalg.eigvalsh(instance.hessians.mean(0))[0] >= scale / 2 * (1 - q) ** 2


def test_theorem_2_reveals_exactly_one_coordinate_a_round():
    rounds = 6
    instance = theorem2(rounds, 1.0)
    for r in range(1, rounds + 1):
        x = local_gd(instance, 0.5, 1.0, 10, r)
        assert np.abs(x[:r]).min() > 1e-4
        np.testing.assert_allclose(x[r:], 0, atol=1e-15)  # A (x - x_star) cancels to rounding, not to zero
    assert instance.suboptimality(x) >= instance.bound


def test_theorem_2_needs_the_chain_to_be_split():
    """Negative control: were every client to hold the whole chain, local steps would reveal it within a round."""
    instance = theorem2(6, 1.0)
    whole = Instance(np.tile(instance.hessians.mean(0), (2, 1, 1)), instance.optima, instance.x_star)
    assert np.count_nonzero(np.abs(local_gd(whole, 0.5, 1.0, 10, 1)) > 1e-12) == 10


# --- theorem 3 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [2, 3, 4, 9])
def test_theorem_3_has_the_spectra_of_the_text(num_clients):
    rounds, smoothness, tau, radius = 5, 4.0, 0.5, 2.0
    instance = theorem3(num_clients, rounds, smoothness, tau, radius)
    for hessian in instance.hessians:
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian), [0, tau, smoothness], atol=1e-14)
    alpha2 = instance.hessians[0, 0, 0] / tau
    m = num_clients
    root = np.sqrt(alpha2) if m % 2 == 0 else np.sqrt(1 - alpha2 + m**2 * alpha2) / m
    values = np.linalg.eigvalsh(instance.hessians.mean(0))
    np.testing.assert_allclose(values, [tau / 2 * (1 - root), tau / 2 * (1 + root), smoothness], rtol=1e-10)
    assert values[1] / values[0] == pytest.approx(12 * rounds, rel=1e-10)
    assert instance.bound == pytest.approx(values[1] * radius**2 / (96 * rounds), rel=1e-12)
    assert instance.bound >= tau * radius**2 / (192 * rounds)


def test_theorem_3_is_less_heterogeneous_than_its_scale():
    """||A_1 - A_2|| is tau sqrt(1 - alpha^2), which vanishes like R^(-1/2): the scale is only an upper bound."""
    for rounds in (1, 10, 100):
        facts = theorem3(4, rounds, 4.0, 0.5, 1.0).facts()
        gap = 0.5 * np.sqrt(48 * rounds) / (12 * rounds + 1)
        assert facts.hessian_heterogeneity == pytest.approx(gap, rel=1e-10)
        assert facts.smoothness == pytest.approx(4.0, rel=1e-14)


@pytest.mark.parametrize("num_clients, rounds, tau", [(2, 5, 1.0), (3, 5, 0.1), (4, 12, 0.4)])
def test_theorem_3_bounds_local_gd_for_all_step_sizes(num_clients, rounds, tau):
    smoothness, radius = 1.0, 2.0
    best = best_over_a_grid(instance := theorem3(num_clients, rounds, smoothness, tau, radius), smoothness, rounds)
    assert best >= instance.bound
    # the third axis starts at its optimum, so H costs nothing and the error scales with tau alone: within a factor 2;
    # for tau = 0.1 the grid's step beta (1 - (1 - eta tau)^K) reaches 16, and about 2 is best
    assert best <= 2 * tau * radius**2 / (96 * rounds)


# --- proposition 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [2, 4, 8, 16, 64])
def test_proposition_1_moves_the_optimum_of_the_mean_far_from_all_optima(num_clients):
    instance = proposition1(num_clients, 1.5)
    np.testing.assert_allclose(instance.x_star, np.tile([-0.5, 0.5], num_clients // 2), atol=1e-12)
    assert np.linalg.norm(instance.x_star) == pytest.approx(np.sqrt(num_clients) * 1.5 / 3, rel=1e-12)
    np.testing.assert_array_equal(np.linalg.norm(instance.optima, axis=1), 1.5)


def test_proposition_1_clients_are_f_and_g_of_the_text():
    b, x = 1.5, np.random.default_rng(0).standard_normal(4)
    instance = proposition1(4, b)

    def f(x, y):
        return 2 * (x + b) ** 2 + (x + y + b) ** 2

    def g(x, y):
        return (x - b) ** 2 + (x + y - b) ** 2

    gaps = x - instance.optima
    values = np.einsum("mi,mij,mj->m", gaps, instance.hessians, gaps) / 2
    np.testing.assert_allclose(values, [f(*x[:2]), g(*x[:2]), f(*x[2:]), g(*x[2:])], rtol=1e-12)


def test_proposition_1_as_printed_holds_for_two_clients_only():
    """Negative control: with the unit regularisers of the text, x_star shrinks as clients are added."""
    norms = [np.linalg.norm(proposition1(m, regulariser=1.0).x_star) for m in (2, 4, 8, 16, 64)]
    assert norms[0] == pytest.approx(np.sqrt(2) / 3, rel=1e-12)
    assert all(later < earlier for earlier, later in itertools.pairwise(norms))
    np.testing.assert_allclose(norms[1:], [0.364, 0.299, 0.251, 0.158], atol=5e-4)


def test_a_tiny_regulariser_keeps_proposition_1_and_gives_remark_9():
    """Unique optima at pairwise distance at most 2 b, yet phi_* grows like sqrt(M) / 3."""
    for m in (16, 36):
        facts = proposition1(m, regulariser=1e-3 / m).facts()
        assert facts.strong_convexity > 0
        assert np.linalg.norm(facts.x_star) == pytest.approx(np.sqrt(m) / 3, rel=1e-2)
        assert facts.optima_heterogeneity <= 2
        assert facts.optima_distance >= 0.99 * np.sqrt(m) / 3


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: two_coordinates(0.0, np.ones(2)), "smoothness = 0.0 must be positive"),
        (lambda: two_coordinates(1.0, np.ones(3)), "expected 2 finite numbers"),
        (lambda: three_coordinates(1.0, 2.0, np.ones(3)), "hessian_heterogeneity = 2.0 must be at most smoothness"),
        (lambda: theorem1(1, 3, 1.0, 1.0), "num_clients = 1 must be at least 2"),
        (lambda: theorem1(2, 0, 1.0, 1.0), "rounds = 0 must be at least 1"),
        (lambda: theorem1(2, 3, 1.0, np.nan), "radius = nan must be positive"),
        (lambda: theorem2(1, 1.0), "rounds = 1 must be at least 2"),
        (lambda: theorem2(5, 1.0, dimension=5), "dimension = 5 must be at least 6"),
        (lambda: theorem2(5, 1.0, num_clients=3), "num_clients = 3 must be even"),
        (lambda: theorem3(2, 3, 1.0, 2.0, 1.0), "must be at most smoothness"),
        (lambda: proposition1(5), "num_clients = 5 must be even for this instance; use 6"),
        (lambda: proposition1(4, regulariser=-1.0), "regulariser = -1.0 must be finite and not negative"),
    ],
)
def test_impossible_instances_are_refused_with_their_reason(build, message):
    with pytest.raises(SojournError, match=message):
        build()
