"""Spherical caps, and the regression of figure 5.1 built on them."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from sojourn.core.errors import SojournError
from sojourn.problems.caps import (
    cap_regression_parameters,
    regression_facts,
    regression_hessians,
    regression_noise,
    sample_cap,
)


def axis_of(d, seed=0):
    v = np.random.default_rng(seed).standard_normal(d)
    return v / np.linalg.norm(v)


def angles_to(axis, points):
    """Accurate for small angles as well, where the arc cosine is not."""
    across = points - np.outer(points @ axis, axis)
    return np.arctan2(np.linalg.norm(across, axis=1), points @ axis)


def angle_law(half_angle, d):
    """The distribution of the angle, by quadrature of sin^(d-2)."""
    grid = np.linspace(0, half_angle, 4001)
    mass = integrate.cumulative_simpson(np.sin(grid) ** (d - 2), x=grid, initial=0)
    return lambda angle: np.interp(angle, grid, mass / mass[-1])


@pytest.mark.parametrize("d", [2, 3, 5, 50])
@pytest.mark.parametrize("half_angle", [0.1, 0.5, np.pi / 2, 2.5, np.pi])
def test_cap_points_are_uniform_in_the_cap(d, half_angle):
    axis = axis_of(d)
    points = sample_cap(axis, half_angle, 20_000, np.random.default_rng(1))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=1e-12)
    angles = angles_to(axis, points)
    assert angles.max() <= half_angle + 1e-7
    # twenty tests with fixed seeds: a correct sampler has all p-values above 1e-3 with probability 0.98
    assert stats.kstest(angles, angle_law(half_angle, d)).pvalue > 1e-3


def test_the_angle_is_not_itself_uniform():
    """Negative control: angles drawn uniformly on [0, half_angle] are told apart by the same test."""
    wrong = np.random.default_rng(1).uniform(0, 0.5, 20_000)
    assert stats.kstest(wrong, angle_law(0.5, 5)).pvalue < 1e-6


def test_cap_points_have_no_preferred_side():
    axis = axis_of(5)
    points = sample_cap(axis, 1.0, 40_000, np.random.default_rng(2))
    across = points - np.outer(points @ axis, axis)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    # uniform on the unit sphere of the 4-dimensional complement: mean 0, covariance 1/4 of its projection;
    # entries have standard deviation at most 0.5 / 200
    assert np.abs(across.mean(axis=0)).max() < 5 * 0.5 / 200
    np.testing.assert_allclose(across.T @ across / 40_000, (np.eye(5) - np.outer(axis, axis)) / 4, atol=5 * 0.5 / 200)


def test_a_cap_of_no_angle_is_its_axis():
    axis = axis_of(4)
    np.testing.assert_allclose(sample_cap(axis, 0.0, 10, np.random.default_rng(0)), np.tile(axis, (10, 1)), atol=1e-15)


def test_a_cap_whose_mass_underflows_is_a_flat_ball():
    axis = axis_of(60)
    points = sample_cap(axis, 1e-6, 5_000, np.random.default_rng(0))  # mass about 1e-354
    scaled = angles_to(axis, points) / 1e-6
    assert stats.kstest(scaled, lambda t: np.clip(t, 0, 1) ** 59).pvalue > 1e-3


def test_one_seed_gives_caps_that_widen_together():
    """Paired settings: the same directions around the axis, and angles that grow with the cap."""
    axis = axis_of(5)
    caps = [sample_cap(axis, angle, 100, np.random.default_rng(3)) for angle in (0.2, 0.7, 1.5)]
    angles = np.array([angles_to(axis, points) for points in caps])
    assert (np.diff(angles, axis=0) > 0).all()
    across = [points - np.outer(points @ axis, axis) for points in caps]
    units = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in across]
    np.testing.assert_allclose(units[0], units[2], atol=1e-10)


@pytest.mark.parametrize("optima_spread, mean_spread", [(0.0, 0.0), (1.0, 4.0), (1.5, 7.0), (2.0, 10.0)])
def test_regression_parameters_have_the_norms_and_chords_of_figure_5_1(optima_spread, mean_spread):
    optima, means = cap_regression_parameters(20, 5, optima_spread, mean_spread, rng=np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(optima, axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 5, atol=1e-12)
    for points, spread in ((optima, optima_spread), (means, mean_spread)):
        chords = np.linalg.norm(points[:, None] - points[None], axis=2)
        assert chords.max() <= spread + 1e-9
        if spread:
            assert chords.max() >= 0.6 * spread  # twenty points fill a good part of the cap, but never all of it


def test_regression_facts_keep_the_condition_number_whatever_the_spread():
    """H = 26 and mu = 1 throughout, and tau is 25 times the sine of the widest angle, at most 25."""
    for mean_spread in (0.0, 2.0, 7.0, 9.0):
        optima, means = cap_regression_parameters(20, 5, 1.0, mean_spread, rng=np.random.default_rng(1))
        facts = regression_facts(optima, means, noise_std=0.1)
        assert (facts.smoothness, facts.strong_convexity) == pytest.approx((26, 1), rel=1e-12)
        pairs = itertools.combinations(means / 5, 2)
        sines = [np.linalg.norm(u - (u @ v) * v) for u, v in pairs]
        assert facts.hessian_heterogeneity == pytest.approx(25 * max(sines), rel=1e-9, abs=1e-9)
        half = np.arcsin(mean_spread / 10)
        assert facts.hessian_heterogeneity <= 25 * np.sin(min(2 * half, np.pi / 2)) + 1e-9


def test_fresh_means_keep_the_optima():
    def draw(trial):
        return cap_regression_parameters(
            20, 5, 1.0, 4.0, rng=np.random.default_rng(0), mean_rng=np.random.default_rng(trial)
        )

    (optima, means), (same, other) = draw(1), draw(2)
    np.testing.assert_array_equal(optima, same)
    assert np.abs(means - other).max() > 0.1


def sampled_gradients(x, optimum, mean, noise_std, num_samples, rng):
    a = mean + rng.standard_normal((num_samples, len(mean)))
    residual = a @ x - (a @ optimum + noise_std * rng.standard_normal(num_samples))
    return residual[:, None] * a, residual**2 / 2


def test_regression_noise_value_and_gradient_match_samples():
    rng = np.random.default_rng(4)
    optima, means = cap_regression_parameters(3, 4, 1.0, 2.0, rng=rng, mean_norm=1.5)
    x, noise_std = -optima[0], 0.4  # opposite to the optima, so that the gaps are along the means
    sigmas = regression_noise(x, optima, means, noise_std)
    hessians = regression_hessians(means)
    for m in range(3):
        gradients, losses = sampled_gradients(x, optima[m], means[m], noise_std, 400_000, rng)
        gap = x - optima[m]
        exact = hessians[m] @ gap
        squared = np.sum((gradients - exact) ** 2, axis=1)
        error = squared.std() / np.sqrt(len(squared))
        assert error < 0.01 * squared.mean()  # the sample is large enough to mean something
        assert abs(squared.mean() - sigmas[m] ** 2) < 4 * error
        np.testing.assert_allclose(gradients.mean(axis=0), exact, atol=5 * sigmas[m] / np.sqrt(400_000))
        value = gap @ exact / 2 + noise_std**2 / 2
        assert abs(losses.mean() - value) < 4 * losses.std() / np.sqrt(400_000)
        # negative control: without the correction for the mean being non-zero the formula misses by far
        wrong = sigmas[m] ** 2 + 2 * means[m] @ means[m] * (means[m] @ gap) ** 2
        assert abs(squared.mean() - wrong) > 8 * error


def test_regression_facts_count_the_noise_at_the_optimum_and_add_it_to_the_value():
    optima, means = cap_regression_parameters(20, 5, 1.0, 4.0, rng=np.random.default_rng(0))
    facts = regression_facts(optima, means, noise_std=0.1)
    assert facts.noise is None and facts.noise4 is None  # no finite supremum
    assert facts.noise_at_optimum == regression_noise(facts.x_star, optima, means, 0.1).max()
    assert 0 < facts.noise_at_optimum < regression_noise(np.zeros(5), optima, means, 0.1).max()
    pooled = regression_facts(optima, means, noise_std=0.1, batch_size=4)
    assert pooled.noise_at_optimum == pytest.approx(facts.noise_at_optimum / 2)
    quiet = regression_facts(optima, means, noise_std=0.0)
    assert facts.f_star == pytest.approx(quiet.f_star + 0.005, rel=1e-12)
    same = regression_facts(np.tile(optima[0], (20, 1)), means, noise_std=0.1)
    assert same.noise_at_optimum == pytest.approx(0.1 * np.sqrt(5 + 25), rel=1e-6)  # at a common optimum: s^2 tr A
    assert same.optima_heterogeneity == 0.0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda rng: sample_cap(np.ones(3), 0.1, 5, rng), "must be a vector of length 1"),
        (lambda rng: sample_cap(np.ones(1), 0.1, 5, rng), "at least two dimensions"),
        (lambda rng: sample_cap(axis_of(3), 4.0, 5, rng), "half_angle = 4.0 must lie between 0 and pi"),
        (lambda rng: sample_cap(axis_of(3), 1.0, 0, rng), "expected at least 1"),
        (lambda rng: cap_regression_parameters(5, 1, 1.0, 1.0, rng=rng), "dimension = 1 must be at least 2"),
        (
            lambda rng: cap_regression_parameters(5, 3, 2.1, 1.0, rng=rng),
            "optima_spread = 2.1 must lie between 0 and 2",
        ),
        (
            lambda rng: cap_regression_parameters(5, 3, 1.0, 11.0, rng=rng),
            "mean_spread = 11.0 must lie between 0 and 10",
        ),
        (lambda rng: cap_regression_parameters(5, 3, 1.0, np.nan, rng=rng), "mean_spread = nan"),
        (lambda rng: cap_regression_parameters(5, 3, 1.0, 1.0, rng=rng, mean_norm=0.0), "mean_norm = 0.0"),
        (lambda rng: regression_facts(np.ones((2, 2)), np.ones((2, 2)), noise_std=-1.0), "noise_std = -1.0"),
    ],
)
def test_impossible_caps_are_refused_with_their_reason(call, message):
    with pytest.raises(SojournError, match=message):
        call(np.random.default_rng(0))
