"""Exact facts of quadratics, against definitions written out one pair at a time and against the thesis's remarks."""

import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.errors import SojournError
from sojourn.problems.instances import proposition1
from sojourn.problems.quadratic_facts import optima_distances, quadratic_facts


def random_clients(seed, num_clients=4, d=5, ranks=None):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((d, d if ranks is None else ranks[m])) for m in range(num_clients)]
    shift = 0.3 * np.eye(d) if ranks is None else 0.0
    return np.stack([g @ g.T + shift for g in factors]), rng.standard_normal((num_clients, d))


def slow_distance(a, b, x, y):
    """The distance of x + ker a and y + ker b by least squares over both kernels."""
    kernels = np.hstack([scipy.linalg.null_space(a, rcond=1e-10), scipy.linalg.null_space(b, rcond=1e-10)])
    if kernels.shape[1] == 0:
        return np.linalg.norm(x - y)
    return np.linalg.norm(x - y - kernels @ np.linalg.lstsq(kernels, x - y, rcond=1e-9)[0])


def test_definitions_written_out_for_regular_hessians():
    hessians, optima = random_clients(0)
    facts = quadratic_facts(hessians, optima)
    values = np.array([np.linalg.eigvalsh(a) for a in hessians])
    pairs = list(itertools.product(range(4), repeat=2))
    assert facts.smoothness == pytest.approx(values.max(), rel=1e-12)
    assert facts.strong_convexity == pytest.approx(values.min(), rel=1e-12)
    assert facts.third_order_smoothness == 0.0
    tau = max(np.linalg.norm(hessians[m] - hessians[n], 2) for m, n in pairs)
    assert facts.hessian_heterogeneity == pytest.approx(tau, rel=1e-12)
    zeta4 = np.mean([np.linalg.norm(optima[m] - optima[n]) ** 4 for m, n in pairs])  # the pairs m = n count
    assert facts.optima_heterogeneity == pytest.approx(zeta4**0.25, rel=1e-12)
    x_star = np.linalg.solve(hessians.mean(0), np.mean([a @ x for a, x in zip(hessians, optima, strict=True)], axis=0))
    np.testing.assert_allclose(facts.x_star, x_star, rtol=1e-11)
    phi4 = np.mean([np.linalg.norm(x_star - x) ** 4 for x in optima])
    assert facts.optima_distance == pytest.approx(phi4**0.25, rel=1e-11)
    f_star = np.mean([(x_star - x) @ a @ (x_star - x) / 2 for a, x in zip(hessians, optima, strict=True)])
    assert facts.f_star == pytest.approx(f_star, rel=1e-11)


def test_fourth_powers_are_not_second_powers():
    """Negative control: the power of the mean in assumption 9 is visible in the result."""
    optima = np.array([[0.0], [0.0], [0.0], [1.0]])
    facts = quadratic_facts(np.ones((4, 1, 1)), optima)
    assert facts.optima_heterogeneity == pytest.approx((6 / 16) ** 0.25, rel=1e-14)  # six of 16 ordered pairs
    assert abs(facts.optima_heterogeneity - (6 / 16) ** 0.5) > 0.1
    assert abs(facts.optima_heterogeneity - (6 / 12) ** 0.25) > 0.05  # leaving out m = n would show as well


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6), ranks=st.lists(st.integers(0, 6), min_size=2, max_size=5))
def test_distances_of_affine_sets_of_optima_are_exact(seed, ranks):
    hessians, optima = random_clients(seed, len(ranks), 6, ranks)
    hessians = np.concatenate([hessians, 3 * hessians[:1], hessians[:1] + hessians[1:2]])  # shared and nested kernels
    optima = np.concatenate([optima, optima[::-1][:2]])
    distances = optima_distances(hessians, optima)
    for m, n in itertools.product(range(len(optima)), repeat=2):
        slow = slow_distance(hessians[m], hessians[n], optima[m], optima[n])
        # kernels of a random Gram matrix are known to about 1e-16 times its condition number, at worst 1e6 here
        assert distances[m, n] == pytest.approx(slow, abs=1e-8)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_singular_clients_have_no_strong_convexity_and_set_distances(rank):
    hessians, optima = random_clients(2, 3, 6, [rank] * 3)
    facts = quadratic_facts(hessians, optima)
    assert facts.strong_convexity == 0.0
    slow = [slow_distance(a, np.eye(6), x, facts.x_star) for a, x in zip(hessians, optima, strict=True)]
    assert facts.optima_distance == pytest.approx(np.mean(np.power(slow, 4)) ** 0.25, rel=1e-9, abs=1e-12)


def test_minimiser_is_the_one_nearest_to_the_start():
    hessians = np.stack([np.diag([1.0, 0.0, 0.0]), np.diag([0.0, 2.0, 0.0])])
    optima = np.array([[1.0, 5.0, 5.0], [5.0, 2.0, 5.0]])
    facts = quadratic_facts(hessians, optima, x0=np.array([9.0, 9.0, 9.0]))
    np.testing.assert_allclose(facts.x_star, [1.0, 2.0, 9.0], atol=1e-14)
    np.testing.assert_allclose(quadratic_facts(hessians, optima).x_star, [1.0, 2.0, 0.0], atol=1e-14)
    assert facts.f_star == pytest.approx(0.0, abs=1e-28)
    assert facts.optima_heterogeneity == pytest.approx(0.0, abs=1e-14)  # the planes x1 = 1 and x2 = 2 meet


def test_weights_act_as_copies_of_clients():
    hessians, optima = random_clients(3, 2)
    weighted = quadratic_facts(hessians, optima, weights=np.array([3.0, 1.0]))
    copies = quadratic_facts(hessians[[0, 0, 0, 1]], optima[[0, 0, 0, 1]])
    assert weighted.known() == pytest.approx(copies.known(), rel=1e-12)
    np.testing.assert_allclose(weighted.x_star, copies.x_star, rtol=1e-12)
    plain = quadratic_facts(hessians, optima)
    assert np.linalg.norm(weighted.x_star - plain.x_star) > 1e-2  # the weights did something


def test_gaussian_noise_moments_match_samples():
    rng = np.random.default_rng(5)
    root = rng.standard_normal((3, 3))
    facts = quadratic_facts(*random_clients(0, d=3), noise_covariance=root @ root.T)
    squared = np.sum((rng.standard_normal((400_000, 3)) @ root.T) ** 2, axis=1)
    # relative standard errors: about 0.2 % for the second and 0.8 % for the fourth moment, below 0.25 % after roots
    assert facts.noise == pytest.approx(np.mean(squared) ** 0.5, rel=0.01)
    assert facts.noise4 == pytest.approx(np.mean(squared**2) ** 0.25, rel=0.01)
    assert facts.noise4 > 1.05 * facts.noise  # the two are different numbers


def test_scalar_noise_is_isotropic_and_the_noisiest_client_counts():
    clients = random_clients(0, num_clients=2, d=4)
    facts = quadratic_facts(*clients, noise=3.0)
    assert facts.noise == pytest.approx(3.0, rel=1e-14)
    assert facts.noise4 == pytest.approx(3.0 * 1.5**0.25, rel=1e-14)
    per_client = quadratic_facts(*clients, noise_covariance=np.stack([np.eye(4), 9 / 4 * np.eye(4)]))
    assert (per_client.noise, per_client.noise4) == pytest.approx((facts.noise, facts.noise4), rel=1e-14)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6), num_clients=st.integers(1, 6), d=st.integers(1, 5))
def test_remarks_8_9_and_11_of_the_thesis(seed, num_clients, d):
    hessians, optima = random_clients(seed, num_clients, d)
    facts = quadratic_facts(hessians, optima)
    zeta, phi = facts.optima_heterogeneity, facts.optima_distance
    tau_over_mu = facts.hessian_heterogeneity / facts.strong_convexity
    gradients = np.einsum("mij,mj->mi", hessians, facts.x_star - optima)
    slack = 1 + 1e-9
    np.testing.assert_allclose(gradients.mean(axis=0), 0, atol=1e-10)
    assert np.mean(np.sum(gradients**2, axis=1)) <= facts.smoothness**2 * phi**2 * slack + 1e-18
    assert zeta <= 2 * phi * slack + 1e-9
    assert phi <= zeta * (1 + tau_over_mu) * slack + 1e-9
    mean_norm = np.linalg.norm(optima, axis=1).mean()
    assert np.linalg.norm(facts.x_star) <= (mean_norm + tau_over_mu * zeta) * slack + 1e-9


def test_singular_clients_escape_remark_9():
    """Remark 9 needs unique optima: with the affine optima of proposition 1, phi_* stays put while |x_star| grows."""
    for num_clients in (4, 16, 36):
        facts = proposition1(num_clients).facts()
        assert facts.optima_distance == pytest.approx((157 / 81) ** 0.25, rel=1e-12)
        assert facts.optima_heterogeneity == pytest.approx(2 * num_clients**-0.25, rel=1e-12)


@pytest.mark.parametrize("rank", [4, 12, 20])
def test_facts_do_not_depend_on_the_axes(rank):
    rng = np.random.default_rng(0)
    hessians, optima = random_clients(1, 30, 20, [rank] * 30)
    turn = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    facts = quadratic_facts(hessians, optima)
    turned = quadratic_facts(turn @ hessians @ turn.T, optima @ turn.T)
    assert turned.known() == pytest.approx(facts.known(), rel=1e-9)
    np.testing.assert_allclose(turned.x_star, turn @ facts.x_star, atol=1e-9)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(hessians=np.ones((2, 3, 2))), "expected \\(clients, d, d\\)"),
        (dict(optima=np.full((2, 2), np.nan)), "not finite"),
        (dict(hessians=np.full((2, 2, 2), np.inf)), "not finite"),
        (dict(hessians=np.array([np.eye(2), [[1, 2], [0, 1]]])), r"hessians\[1\] is not symmetric"),
        (dict(hessians=np.array([np.eye(2), np.diag([1, -1])])), r"hessians\[1\] has the negative eigenvalue -1"),
        (dict(weights=np.array([1.0, 0.0])), "2 positive numbers"),
        (dict(weights=np.ones(3)), "2 positive numbers"),
        (dict(x0=np.zeros(3)), "expected 2 finite numbers"),
        (dict(noise=-1.0), "noise = -1.0 must be finite and not negative"),
        (dict(noise=1.0, noise_covariance=np.eye(2)), "give one of them"),
        (dict(noise_covariance=np.eye(3)), "noise_covariance has shape"),
        (dict(noise_covariance=np.diag([1.0, -1.0])), "negative eigenvalue"),
    ],
)
def test_bad_quadratics_are_refused_with_their_reason(changes, message):
    arguments = dict(hessians=np.stack([np.eye(2), 2 * np.eye(2)]), optima=np.zeros((2, 2))) | changes
    with pytest.raises(SojournError, match=message):
        quadratic_facts(arguments.pop("hessians"), arguments.pop("optima"), **arguments)
