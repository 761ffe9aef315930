"""Closed forms against local GD and local SGD run step by step in NumPy."""

import math
from fractions import Fraction

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.instances import three_coordinates, two_coordinates
from sojourn.problems.quadratic_facts import quadratic_facts
from sojourn.theory.contraction import excess, last_share, left, lost
from sojourn.theory.identities import (
    equation_2_7,
    equation_3_10,
    equation_3_10_suboptimality,
    expected_squared_distance,
    fixed_point_limit,
    local_sgd_fixed_point,
    local_sgd_moments,
    proposition_2,
    proposition_5_divergence,
)

RUNS = [(0.1, 1.0, 5, 7), (0.3, 2.0, 3, 4), (0.45, 0.7, 20, 9), (0.2, 1.0, 1, 1), (0.7, 1.3, 3, 5), (0.3, 1.0, 2, 0)]


def local_gd(hessians, optima, eta, beta, steps, rounds, x0=None):
    x = np.zeros(optima.shape[1]) if x0 is None else x0
    for _ in range(rounds):
        ends = []
        for hessian, optimum in zip(hessians, optima, strict=True):
            y = x
            for _ in range(steps):
                y = y - eta * hessian @ (y - optimum)
            ends.append(y)
        x = x + beta * (np.mean(ends, axis=0) - x)
    return x


def federation(seed, num_clients=4, d=3, ranks=None):
    """Random clients with H = 2; with ranks, singular ones."""
    rng = np.random.default_rng(seed)
    hessians = np.zeros((num_clients, d, d))
    for m in range(num_clients):
        factor = rng.normal(size=(d, d if ranks is None else ranks[m]))
        hessians[m] = factor @ factor.T + (0.3 * np.eye(d) if ranks is None else 0.0)
    return 2 * hessians / np.linalg.eigvalsh(hessians).max(), 3 * rng.normal(size=(num_clients, d))


# --- equations 2.7 and 3.10 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta, beta, steps, rounds", RUNS)
def test_equation_2_7(eta, beta, steps, rounds):
    instance = two_coordinates(2.0, np.array([1.5, -0.5]))
    numbers = {
        "x_star": instance.x_star,
        "smoothness": 2.0,
        "step_size": eta,
        "num_local_steps": steps,
        "rounds": rounds,
    }
    x = local_gd(instance.hessians, instance.optima, eta, beta, steps, rounds)
    np.testing.assert_allclose(equation_2_7(**numbers, outer_step_size=beta), x, rtol=1e-10, atol=1e-12)
    if rounds:
        assert not np.allclose(equation_2_7(**numbers, outer_step_size=2 * beta), x, rtol=1e-3)


@pytest.mark.parametrize("eta, beta, steps, rounds", RUNS)
def test_equation_3_10(eta, beta, steps, rounds):
    instance = three_coordinates(2.0, 0.5, np.array([1.5, -0.5, 0.8]))
    numbers = {
        "x_star": instance.x_star, "smoothness": 2.0, "hessian_heterogeneity": 0.5, "step_size": eta,
        "num_local_steps": steps, "rounds": rounds, "outer_step_size": beta,
    }  # fmt: skip
    x = local_gd(instance.hessians, instance.optima, eta, beta, steps, rounds)
    np.testing.assert_allclose(equation_3_10(**numbers), x, rtol=1e-10, atol=1e-12)
    error = instance.suboptimality(x)
    assert equation_3_10_suboptimality(**numbers) == pytest.approx(error, rel=1e-10, abs=1e-14)
    if rounds:
        assert not np.allclose(equation_3_10(**numbers | {"hessian_heterogeneity": 0.4}), x, rtol=1e-3)


def test_the_iterates_take_arrays_and_never_give_nan():
    steps = np.array([[0.1], [0.3]])
    rounds = np.arange(4)
    numbers = {"smoothness": 1.0, "step_size": steps, "num_local_steps": 3, "rounds": rounds}
    path = equation_2_7(**numbers, x_star=np.array([1.0, 0.0]))
    assert path.shape == (2, 4, 2)
    assert path[1, 3].tolist() == equation_2_7(**numbers | {"step_size": 0.3, "rounds": 3}, x_star=[1.0, 0.0]).tolist()
    assert equation_3_10(**numbers, x_star=np.ones(3), hessian_heterogeneity=0.5).shape == (2, 4, 3)
    far = {"smoothness": 1.0, "step_size": 1e3, "num_local_steps": 1000, "rounds": 10}
    assert equation_2_7(**far, x_star=np.array([1.0, 0.0])).tolist() == [-np.inf, 0.0]
    error = equation_3_10_suboptimality(**far, x_star=np.array([0.0, 0.0, 1.0]), hessian_heterogeneity=0.5)
    assert error == np.inf


def test_outer_step_two_solves_equation_2_7_in_one_round():
    """Remark 10."""
    numbers = {"x_star": [1.0, -2.0], "smoothness": 1.0, "step_size": 0.9, "num_local_steps": 1e3, "rounds": 1}
    np.testing.assert_allclose(equation_2_7(**numbers, outer_step_size=2.0), [1.0, -2.0], rtol=1e-14)


# --- the fixed point ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [None, (1, 2, 1, 3), (1, 1, 1, 1), (2, 1, 0, 1), (1, 0, 0, 0)])
@pytest.mark.parametrize("eta, beta, steps", [(0.05, 1.0, 1), (0.2, 1.0, 3), (0.499, 0.6, 10), (0.3, 1.0, 100)])
def test_local_sgd_fixed_point(ranks, eta, beta, steps):
    """Where local GD ends after so many rounds that nothing moves any more, from zero and from elsewhere."""
    hessians, optima = federation(0, ranks=ranks)
    for x0 in (None, np.array([1.0, -2.0, 0.5])):
        found = local_sgd_fixed_point(hessians=hessians, optima=optima, step_size=eta, num_local_steps=steps, x0=x0)
        c_m = np.eye(3) - np.linalg.matrix_power(np.eye(3) - eta * hessians, steps)
        keep, pull = np.eye(3) - beta * c_m.mean(axis=0), beta * np.einsum("mij,mj->i", c_m, optima) / 4
        x = np.zeros(3) if x0 is None else x0
        np.testing.assert_allclose(keep @ x + pull, local_gd(hessians, optima, eta, beta, steps, 1, x0), atol=1e-12)
        for _ in range(
            17
        ):  # doubling gives the map of 2^17 rounds; many more would blow up rounding on flat directions
            keep, pull = keep @ keep, keep @ pull + pull
        np.testing.assert_allclose(keep @ x + pull, found, rtol=1e-10, atol=1e-10)


def test_the_fixed_point_is_the_optimum_for_one_step_and_not_for_two():
    hessians, optima = federation(1)
    x_star = quadratic_facts(hessians, optima).x_star
    one, two = (
        local_sgd_fixed_point(hessians=hessians, optima=optima, step_size=0.4, num_local_steps=k) for k in (1, 2)
    )
    np.testing.assert_allclose(one, x_star, rtol=1e-10)
    assert np.linalg.norm(two - x_star) > 1e-2


def test_the_fixed_point_weighs_clients():
    hessians, optima = federation(2)
    numbers = {"step_size": 0.2, "num_local_steps": 4}
    doubled = local_sgd_fixed_point(hessians=hessians[[0, 0, 1, 2, 3]], optima=optima[[0, 0, 1, 2, 3]], **numbers)
    weighed = local_sgd_fixed_point(hessians=hessians, optima=optima, weights=[2, 1, 1, 1], **numbers)
    np.testing.assert_allclose(weighed, doubled, rtol=1e-12)
    alone = local_sgd_fixed_point(hessians=hessians, optima=optima, weights=[0, 0, 1, 0], **numbers)
    np.testing.assert_allclose(alone, optima[2], rtol=1e-10)


def test_the_fixed_point_is_right_for_tiny_steps_and_many_of_them():
    """Against the limits eta K -> 0 and -> c, from which it differs by less than eta K and eta."""
    hessians, optima = federation(3)
    call = {"hessians": hessians, "optima": optima}
    x_star = quadratic_facts(hessians, optima).x_star
    np.testing.assert_allclose(local_sgd_fixed_point(**call, step_size=1e-12, num_local_steps=10), x_star, rtol=1e-9)
    np.testing.assert_allclose(local_sgd_fixed_point(**call, step_size=1e-300, num_local_steps=3.5), x_star, rtol=1e-12)
    for steps in (1e6, 10**6):
        between = local_sgd_fixed_point(**call, step_size=1e-6, num_local_steps=steps)
        np.testing.assert_allclose(between, fixed_point_limit(**call, c=1.0), rtol=1e-4)
    far = local_sgd_fixed_point(**call, step_size=0.4, num_local_steps=1e6)
    np.testing.assert_allclose(far, optima.mean(axis=0), rtol=1e-12)
    naive = np.eye(3) - np.linalg.matrix_power(np.eye(3) - 1e-15 * hessians, 10)  # what cancellation does
    lost_digits = np.linalg.solve(naive.sum(axis=0), np.einsum("mij,mj->i", naive, optima))
    assert not np.allclose(lost_digits, x_star, rtol=1e-6)


@pytest.mark.parametrize("ranks", [None, (1, 2, 1, 3), (1, 1, 1, 1)])
def test_fixed_point_limit(ranks):
    hessians, optima = federation(4, ranks=ranks)
    call = {"hessians": hessians, "optima": optima, "x0": np.array([0.3, 1.0, -1.0])}
    for c, eta in ((0.0, 1e-9), (0.7, 1e-7), (20.0, 1e-6)):
        near = local_sgd_fixed_point(**call, step_size=eta, num_local_steps=max(1.0, c / eta))
        np.testing.assert_allclose(near, fixed_point_limit(**call, c=c), rtol=1e-5, atol=1e-5)
    ends = [fixed_point_limit(**call, c=c) for c in (0.0, 1e-9, 0.7, 1e9, math.inf)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)
    np.testing.assert_allclose(ends[3], ends[4], rtol=1e-6)
    assert np.linalg.norm(ends[0] - ends[2]) > 1e-3 and np.linalg.norm(ends[2] - ends[4]) > 1e-3
    np.testing.assert_allclose(ends[0], quadratic_facts(hessians, optima, x0=call["x0"]).x_star, rtol=1e-9)
    if ranks is None:
        np.testing.assert_allclose(ends[4], optima.mean(axis=0), rtol=1e-10)
    else:
        ranges = np.stack([np.linalg.pinv(a, rcond=1e-10) @ a for a in hessians])
        stationary = np.einsum("mij,mj->i", ranges, ends[4] - optima)
        np.testing.assert_allclose(stationary, 0, atol=1e-10)
        assert np.linalg.norm(ends[4] - optima.mean(axis=0)) > 1e-2  # the printed limit is for regular Hessians


def test_proposition_5_always_converges():
    """The part of c outside im(C), by least squares and as the function computes it: none, in any of 1000 cases."""
    rng = np.random.default_rng(6)
    for seed in range(1000):
        ranks = rng.integers(0, 3, size=3)
        ranks[0] = 1
        hessians, optima = federation(seed, 3, 4, ranks)
        eta, steps = rng.uniform(0.05, 0.499), int(rng.integers(1, 20))
        call = {"hessians": hessians, "optima": optima, "step_size": eta, "num_local_steps": steps}
        c_m = np.eye(4) - np.linalg.matrix_power(np.eye(4) - eta * hessians, steps)
        mean, pull = c_m.mean(axis=0), np.einsum("mij,mj->i", c_m, optima) / 3
        solution = np.linalg.lstsq(mean, pull, rcond=1e-10)[0]
        assert np.linalg.norm(mean @ solution - pull) < 1e-8 * np.linalg.norm(pull)
        assert proposition_5_divergence(**call) < 1e-8
    other, mean = rng.normal(size=4), federation(0, 3, 4, (1, 1, 0))[0].mean(axis=0)
    # A vector that is not such a mean does leave the image of a singular matrix.
    assert np.linalg.norm(mean @ np.linalg.lstsq(mean, other, rcond=1e-10)[0] - other) > 1e-3


# --- mean and covariance ------------------------------------------------------------------------------------------


def noise_covariances(seed, num_clients=3, d=2):
    factors = np.random.default_rng(seed).normal(size=(num_clients, d, d))
    return factors @ np.swapaxes(factors, 1, 2)


def joint_propagation(hessians, optima, noise, eta, beta, steps, rounds, x0):
    """Mean and covariance of all clients' iterates stacked into one vector, one step at a time."""
    num_clients, d = optima.shape
    size = num_clients * d
    local, fresh = np.eye(size), np.zeros((size, size))
    for m in range(num_clients):
        block = slice(m * d, m * d + d)
        local[block, block] -= eta * hessians[m]
        fresh[block, block] = eta**2 * noise[m]
    copy, mean_of = np.tile(np.eye(d), (num_clients, 1)), np.tile(np.eye(d), (1, num_clients)) / num_clients
    x, cov, flat = x0, np.zeros((d, d)), optima.ravel()
    for _ in range(rounds):
        # state = (x at the start of the round, iterates of the clients)
        y, spread, cross = copy @ x, copy @ cov @ copy.T, cov @ copy.T
        for _ in range(steps):
            y, spread, cross = flat + local @ (y - flat), local @ spread @ local.T + fresh, cross @ local.T
        x = x + beta * (mean_of @ y - x)
        mixed = cross @ mean_of.T
        cov = (1 - beta) ** 2 * cov + beta * (1 - beta) * (mixed + mixed.T) + beta**2 * mean_of @ spread @ mean_of.T
    return x, cov


@pytest.mark.parametrize("ranks", [None, (1, 2, 0)])
@pytest.mark.parametrize("eta, beta, steps, rounds", [*RUNS, (0.9, 1.0, 3, 2)])
def test_local_sgd_moments(ranks, eta, beta, steps, rounds):
    hessians, optima = federation(5, 3, 2, ranks)
    noise, x0 = noise_covariances(8), np.array([1.0, -3.0])
    means, covariances = local_sgd_moments(
        hessians=hessians, optima=optima, noise_covariance=noise, step_size=eta, num_local_steps=steps, rounds=rounds,
        outer_step_size=beta, x0=x0,
    )  # fmt: skip
    assert means.shape == (rounds + 1, 2) and covariances.shape == (rounds + 1, 2, 2)
    for r in range(rounds + 1):
        x, cov = joint_propagation(hessians, optima, noise, eta, beta, steps, r, x0)
        np.testing.assert_allclose(means[r], x, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(covariances[r], cov, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        means[-1], local_gd(hessians, optima, eta, beta, steps, rounds, x0), rtol=1e-10, atol=1e-10
    )


def test_local_sgd_moments_are_those_of_a_simulation():
    """40,000 runs: the standard error of a mean is 1/200 and of a variance 1/140 of its size; 5 of them are allowed."""
    hessians, optima = federation(5, 3, 2)
    noise, eta, beta, steps, rounds, runs = noise_covariances(8), 0.3, 1.2, 4, 5, 40_000
    rng = np.random.default_rng(9)
    factors = np.linalg.cholesky(noise)
    x = np.zeros((runs, 2))
    for _ in range(rounds):
        y = np.repeat(x[:, None], 3, axis=1)
        for _ in range(steps):
            xi = np.einsum("mij,nmj->nmi", factors, rng.normal(size=(runs, 3, 2)))
            y = y - eta * (np.einsum("mij,nmj->nmi", hessians, y - optima) + xi)
        x = x + beta * (y.mean(axis=1) - x)
    call = {
        "hessians": hessians, "optima": optima, "step_size": eta, "num_local_steps": steps, "rounds": rounds,
        "outer_step_size": beta,
    }  # fmt: skip
    means, covariances = local_sgd_moments(**call, noise_covariance=noise)
    size = np.trace(covariances[-1])
    assert np.abs(x.mean(axis=0) - means[-1]).max() < 5 * np.sqrt(size / runs)
    assert np.abs(np.cov(x.T) - covariances[-1]).max() < 5 * np.sqrt(2 / runs) * size
    uniform = local_sgd_moments(**call, noise_covariance=noise[0])[1][-1]  # one client's noise on all would be seen
    assert np.abs(np.cov(x.T) - uniform).max() > 5 * np.sqrt(2 / runs) * size


def test_expected_squared_distance():
    hessians, optima = federation(5, 3, 2)
    noise, point = noise_covariances(8), np.array([0.5, 2.0])
    call = {"hessians": hessians, "optima": optima, "step_size": 0.3, "num_local_steps": 4, "rounds": 5}
    found = expected_squared_distance(**call, noise_covariance=noise, x=point)
    for r in range(6):
        mean, cov = joint_propagation(hessians, optima, noise, 0.3, 1.0, 4, r, np.zeros(2))
        assert found[r] == pytest.approx(np.sum((mean - point) ** 2) + np.trace(cov), rel=1e-10)
    quiet = expected_squared_distance(**call, noise_covariance=0.0, x=point)
    np.testing.assert_allclose(quiet[-1], np.sum((local_gd(hessians, optima, 0.3, 1, 4, 5) - point) ** 2), rtol=1e-10)
    assert np.all(found[1:] > quiet[1:] + 1e-3)


def test_moments_of_weighed_clients_and_of_runs_that_diverge():
    hessians, optima = federation(5, 3, 2)
    call = {"hessians": hessians, "optima": optima, "step_size": 0.3, "num_local_steps": 4, "rounds": 2}
    _, alone = local_sgd_moments(**call, noise_covariance=1.0, weights=[1, 0, 0])
    _, single = local_sgd_moments(**call | {"hessians": hessians[:1], "optima": optima[:1]}, noise_covariance=np.eye(2))
    np.testing.assert_allclose(alone, single, rtol=1e-12)
    assert np.trace(alone[-1]) > 2 * np.trace(local_sgd_moments(**call, noise_covariance=1.0)[1][-1])
    for values in local_sgd_moments(**call | {"step_size": 1e3, "rounds": 200}, noise_covariance=1.0):
        assert not np.isnan(values).any() and np.isinf(values[-1]).any()


# --- proposition 2 ------------------------------------------------------------------------------------------------


def test_proposition_2():
    hessians, optima = federation(7)
    same = np.repeat(hessians[:1], 4, axis=0)
    zeta = proposition_2(hessians=same, optima=optima)
    smoothness = np.linalg.eigvalsh(same).max()
    rng = np.random.default_rng(0)
    for x in (np.zeros(3), 1e6 * rng.normal(size=3)):
        gradients = np.einsum("mij,mj->mi", same, x - optima)
        gaps = np.linalg.norm(gradients[:, None] - gradients[None], axis=-1)
        assert gaps.max() == pytest.approx(smoothness * zeta, rel=1e-6)
    assert proposition_2(hessians=hessians, optima=optima) == np.inf
    for far in (1e2, 1e4):  # and indeed the differences grow without end
        gradients = np.einsum("mij,mj->mi", hessians, far * np.ones(3) - optima)
        assert np.linalg.norm(gradients[0] - gradients[1]) > 0.01 * far
    assert proposition_2(hessians=hessians[:1], optima=optima[:1]) == 0.0
    assert quadratic_facts(same, optima).gradient_heterogeneity == pytest.approx(zeta, rel=1e-12)


# --- contractions, and bad input ----------------------------------------------------------------------------------


def test_contractions_keep_their_digits():
    for x, n in [(1e-12, 10), (1e-3, 7), (0.011, 9), (0.0999, 1), (0.3, 40), (0.999, 5), (1e-9, 9000), (1e-15, 3)]:
        exact = Fraction(x)
        # exact arithmetic; for many steps the binomial series, of which eight terms are plenty at n x = 1e-5
        kept = (1 - exact) ** n if n < 100 else sum(math.comb(n, j) * (-exact) ** j for j in range(8))
        assert left(x, n) == pytest.approx(float(kept), rel=1e-13, abs=0)
        assert lost(x, n) == pytest.approx(float(1 - kept), rel=1e-13, abs=0)
        assert excess(x, n) == pytest.approx(float(n * exact - 1 + kept), rel=1e-12, abs=0)
        share = n * exact * kept / (1 - exact) / (1 - kept)
        assert last_share(x, n) == pytest.approx(float(share), rel=1e-13, abs=0)
    assert (left(2.0, 3), lost(1.0, 2), excess(0.0, 5), last_share(0.0, 5)) == (-1.0, 1.0, 0.0, 1.0)
    plain = 1e-12 * 10 - (1 - (1 - 1e-12) ** 10)  # which is 45e-24
    assert abs(plain - 45e-24) > 1e-24


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"step_size": 0.5}, r"step_size \* H < 1"),
        ({"num_local_steps": 0.5}, "num_local_steps = 0.5 is out of range"),
        ({"hessians": np.eye(2)}, "have shapes"),
        ({"hessians": np.array([[[1.0, 0.5], [0.0, 1.0]]] * 3)}, "not symmetric"),
        ({"hessians": -np.repeat(np.eye(2)[None], 3, axis=0)}, "negative eigenvalue"),
        ({"hessians": np.full((3, 2, 2), np.nan)}, "expected finite numbers"),
        ({"x0": np.zeros(3)}, "2 dimensions"),
        ({"weights": [1.0, 1.0]}, "3 numbers"),
        ({"outer": 1.0}, "has no outer"),
    ],
)
def test_what_is_wrong_with_a_fixed_point_is_said(wrong, told):
    hessians, optima = federation(5, 3, 2)
    call = {"hessians": hessians, "optima": optima, "step_size": 0.1, "num_local_steps": 4}
    with pytest.raises(SojournError, match=told):
        local_sgd_fixed_point(**call | wrong)


def test_what_else_is_wrong_is_said():
    hessians, optima = federation(5, 3, 2)
    with pytest.raises(SojournError, match="needs hessians, which this federation does not know"):
        local_sgd_fixed_point(Facts(smoothness=1.0), step_size=0.1, num_local_steps=3)
    call = {"hessians": hessians, "optima": optima, "step_size": 0.1, "num_local_steps": 4, "rounds": 3}
    with pytest.raises(SojournError, match="noise_covariance has shape"):
        local_sgd_moments(**call, noise_covariance=np.ones(5))
    with pytest.raises(SojournError, match="negative eigenvalue"):
        local_sgd_moments(**call, noise_covariance=-np.eye(2))
    with pytest.raises(SojournError, match=r"num_local_steps == np\.floor"):
        local_sgd_moments(**call | {"num_local_steps": 2.5}, noise_covariance=1.0)
    with pytest.raises(SojournError, match='c = "late" is not a number'):
        fixed_point_limit(hessians=hessians, optima=optima, c="late")
    with pytest.raises(SojournError, match="2 coordinates"):
        equation_2_7(x_star=np.ones(3), smoothness=1.0, step_size=0.1, num_local_steps=2, rounds=2)


def test_flat_clients_stay_where_they_start():
    call = {"hessians": np.zeros((2, 2, 2)), "optima": np.ones((2, 2)), "x0": np.array([3.0, 4.0])}
    assert local_sgd_fixed_point(**call, step_size=0.1, num_local_steps=3).tolist() == [3.0, 4.0]
    assert fixed_point_limit(**call, c=math.inf).tolist() == [3.0, 4.0]
