"""The non-convex problems: constants that hold everywhere and are attained, noise as told, chains revealed slowly."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.vec import Vec
from sojourn.problems import chain_facts
from sojourn.problems import nonconvex_chains as chains
from sojourn.problems.nonconvex import cosines
from sojourn.problems.nonconvex_chains import split_chain, whole_chain


@eqx.filter_jit
def _gradients(objective, points, client):
    return jax.vmap(lambda x: objective.full_grad(x, client))(points)


@eqx.filter_jit
def _hessians(objective, points, client):
    return jax.vmap(jax.hessian(lambda x: objective.full_value(x, client)))(points)


def gradients(federation, points):
    """Of every client (M, points, d)."""
    of = federation.clients.objective
    return np.stack([_gradients(of, jnp.asarray(points), jnp.asarray(m)) for m in range(federation.num_clients)])


def hessians(federation, points):
    """Of every client (M, points, d, d)."""
    of = federation.clients.objective
    return np.stack([_hessians(of, jnp.asarray(points), jnp.asarray(m)) for m in range(federation.num_clients)])


def spectral(matrices):
    return np.linalg.norm(matrices, 2, axis=(-2, -1))


# --- cosines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_clients", [2, 5])
def test_tau_is_the_difference_of_hessians_everywhere(x64, num_clients):
    federation = cosines(num_clients, 4, 0.7, condition=5.0, gradient_spread=2.0)
    found = hessians(federation, np.random.default_rng(0).normal(size=(5, 4)) * 3)
    gaps = spectral(found[:, None] - found[None]).max(axis=(0, 1))
    np.testing.assert_allclose(gaps, 0.7, rtol=1e-12)
    assert federation.facts.hessian_heterogeneity == 0.7


def test_smoothness_holds_and_is_attained(x64):
    federation = cosines(3, 4, 0.7, mean_smoothness=2.0, condition=5.0)
    points = np.random.default_rng(1).normal(size=(50, 4)) * 3
    found = hessians(federation, [*points, np.zeros(4)])
    assert spectral(found).max() == pytest.approx(federation.facts.smoothness) == spectral(found)[0, -1]
    assert np.linalg.eigvalsh(found).min() < -0.5  # it is not convex


def test_the_mean_objective_does_not_know_tau_or_the_spread(x64):
    x = np.array([0.3, -2.0, 1.0, 4.0])
    near, far = cosines(4, 4, 0.0), cosines(4, 4, 1.9, gradient_spread=3.0)
    for federation in (near, far):
        np.testing.assert_allclose(gradients(federation, x[None]).mean(axis=0)[0], np.sin(x), atol=1e-14)
        metrics = federation.clients.metrics(Vec(jnp.asarray(x)))
        assert float(metrics["suboptimality"]) == pytest.approx(np.sum(1 - np.cos(x)), rel=1e-12)
        assert float(metrics["grad_norm"]) == pytest.approx(np.linalg.norm(np.sin(x)), rel=1e-12)
    assert far.facts.start_gap == pytest.approx(float(far.clients.metrics(far.x0)["suboptimality"]))
    one, other = gradients(far, np.zeros((1, 4)))[:2, 0]
    assert np.linalg.norm(one - other) == pytest.approx(3.0)


def test_gradients_are_derivatives_of_values(x64):
    federation = cosines(3, 4, 0.7, condition=2.0, gradient_spread=1.0, noise=2.0, batch_size=3)
    of = federation.clients.objective
    z = of.draw(0, jax.random.key(0), 1, 3)[0]
    for x in np.random.default_rng(2).normal(size=(3, 4)):
        x = jnp.asarray(x)
        np.testing.assert_allclose(of.grad(x, 1, z), jax.grad(of.value)(x, 1, z), atol=1e-13)
        np.testing.assert_allclose(of.full_grad(x, 1), jax.grad(of.full_value)(x, 1), atol=1e-13)


@pytest.mark.parametrize("noise", [0.3, 5.0])
def test_noise_is_unbiased_and_largest_where_the_sines_vanish(x64, noise):
    """The intervals are five standard errors of 40,000 samples; an unamplified wave would be biased beyond them."""
    federation = cosines(2, 3, 0.5, condition=3.0, noise=noise)
    of, n = federation.clients.objective, 40_000
    zs = of.draw(0, jax.random.key(1), n, 1)
    variances = []
    for x in (np.zeros(3), np.array([0.4, -2.0, 1.3]), np.full(3, np.pi / 2)):
        x = jnp.asarray(x)
        samples = np.asarray(jax.vmap(lambda z, x=x: of.grad(x, 0, z))(zs))
        error = samples - np.asarray(of.full_grad(x, 0))
        assert (np.abs(error.mean(axis=0)) <= 5 * samples.std(axis=0) / n**0.5).all()
        squares = (error**2).sum(axis=1)
        variances.append((squares.mean(), 5 * squares.std() / n**0.5))
        values = np.asarray(jax.vmap(lambda z, x=x: of.value(x, 0, z))(zs))
        assert abs(values.mean() - float(of.full_value(x, 0))) <= 5 * values.std() / n**0.5
    assert abs(variances[0][0] - noise**2) <= variances[0][1]
    assert variances[1][0] < noise**2 and variances[2][0] < noise**2
    plain = np.asarray(jnp.sin(1.0 + zs).mean(axis=(0, 1)))  # negative control: without the factor exp(s^2 / 2)
    assert (np.abs(plain - np.sin(1.0)) > 5 / n**0.5 * np.asarray(jnp.sin(1.0 + zs).std(axis=(0, 1)))).all()


def test_samples_are_smooth_with_the_same_constant(x64):
    federation = cosines(2, 3, 0.5, noise=4.0)
    of, rng = federation.clients.objective, np.random.default_rng(3)
    zs = of.draw(0, jax.random.key(2), 500, 1)
    ratio = 0.0
    for _ in range(20):
        x, step = rng.normal(size=3), rng.normal(size=3) * 10.0 ** rng.uniform(-3, 0)
        change = jax.vmap(lambda z, x=x, y=x + step: of.grad(y, 0, z) - of.grad(x, 0, z))(zs)
        ratio = max(ratio, float(jnp.linalg.norm(change, axis=1).max() / np.linalg.norm(step)))
    assert 0.8 * federation.facts.smoothness < ratio <= federation.facts.smoothness


def test_a_pool_of_batches_is_their_mean_and_a_call_has_the_noise_of_its_batch(x64):
    federation = cosines(2, 3, 0.5, noise=2.0, batch_size=4)
    assert federation.facts.noise == 1.0
    of = federation.clients.objective
    zs = of.draw(0, jax.random.key(3), 5, 4)
    x = jnp.asarray([0.1, 0.2, 0.3])
    apart = jnp.mean(jax.vmap(lambda z: of.grad(x, 1, z))(zs), axis=0)
    np.testing.assert_allclose(of.grad(x, 1, of.pool(zs)), apart, atol=1e-14)


def test_cosines_refuse_what_has_no_meaning():
    with pytest.raises(SojournError, match="differs from nobody"):
        cosines(1, 3, 0.5)
    with pytest.raises(SojournError, match="start = 4 is out of range"):
        cosines(2, 3, 0.5, start=4.0)
    assert cosines(1, 3).facts.hessian_heterogeneity == 0


# --- chains ------------------------------------------------------------------------------------------------------


def links_of(x, numbers):
    """E.2 and E.3 retyped: the sum of the links of these numbers, x_0 = 1."""
    psi = lambda t: math.exp(1 - 1 / (2 * t - 1) ** 2) if t > 0.5 else 0.0  # noqa: E731
    phi = lambda t: math.sqrt(math.e) * math.sqrt(math.pi / 2) * (1 + math.erf(t / math.sqrt(2)))  # noqa: E731
    y = [1.0, *x]
    return sum(psi(-y[i - 1]) * phi(-y[i]) - psi(y[i - 1]) * phi(y[i]) for i in numbers)


HOMES = {
    "whole": lambda target: whole_chain(2, 1.0, 1.0, target),
    "split": lambda target: split_chain(4, 1.0, 0.5, 1.0, target),
    "gradients": lambda target: split_chain(2, 1.0, 1.0, 1.0, target, gradient_heterogeneity=0.3),
}
TARGETS = {"whole": 1e-4, "split": 2e-5, "gradients": 8e-6}


@pytest.fixture(params=HOMES)
def chain(request, x64):
    federation = HOMES[request.param](TARGETS[request.param])
    return federation, TARGETS[request.param]


def scaled_points(federation, number, seed=0):
    """Points whose coordinates lie where the links bend."""
    of, rng = federation.clients.objective, np.random.default_rng(seed)
    d = of.links.shape[1]
    return float(of.width) * rng.uniform(-2.5, 2.5, size=(number, d + 1))


def test_values_are_the_printed_links_with_psi_of_one(x64):
    federation = split_chain(2, 1.0, 0.5, 1.0, 2e-5)
    of = federation.clients.objective
    d, width = of.links.shape[1], float(of.width)
    for x in scaled_points(federation, 5):
        for client, first in ((0, 1), (1, 2)):
            told = 2 * links_of(x[:-1] / width, range(first, d + 1, 2))
            expected = float(of.scale) * width**2 * told + x[-1] ** 2 / 2
            assert float(of.full_value(jnp.asarray(x), client)) == pytest.approx(expected, rel=1e-12)


def test_the_length_is_as_told(x64):
    assert split_chain(2, 1.0, 0.5, 1.0, 2e-5).x0.tree.size - 1 == math.floor(0.5 / (24 * 152 * 2e-5))
    assert whole_chain(2, 2.0, 1.0, 1e-4).x0.tree.size - 1 == math.floor(2 / (12 * 152 * 1e-4))
    short = split_chain(2, 1.0, 1.0, 1.0, 8e-6, gradient_heterogeneity=0.3)
    assert short.x0.tree.size - 1 == math.floor(0.09 / (46**2 * 8e-6))


def test_the_constants_hold(chain):
    federation, _ = chain
    facts, points = federation.facts, scaled_points(federation, 60)
    curved, slopes = hessians(federation, points)[:2], gradients(federation, points)[:2]
    assert spectral(curved).max() == pytest.approx(facts.smoothness)  # the last coordinate attains it
    tau = spectral(curved[0] - curved[1]).max()
    zeta = np.linalg.norm(slopes[0] - slopes[1], axis=-1).max() / facts.smoothness
    assert tau <= facts.hessian_heterogeneity and zeta <= facts.gradient_heterogeneity
    if facts.hessian_heterogeneity:
        assert tau > 0.3 * facts.hessian_heterogeneity and zeta > 0.1 * facts.gradient_heterogeneity


def test_the_gap_is_the_distance_to_the_infimum(chain):
    federation, _ = chain
    gap = jax.jit(lambda x: federation.clients.metrics(Vec(x))["suboptimality"])
    far = jnp.full(federation.x0.tree.size, 50 * float(federation.clients.objective.width)).at[-1].set(0.0)
    assert float(gap(federation.x0.tree)) == pytest.approx(federation.facts.start_gap, rel=1e-9)
    assert federation.facts.start_gap <= 1.0  # as was asked
    assert abs(float(gap(far))) < 2e-3 * federation.facts.start_gap  # psi(50) = e (1 - 1e-4)
    assert min(float(gap(jnp.asarray(x))) for x in scaled_points(federation, 50)) > 0


def test_a_point_on_too_few_coordinates_has_a_large_gradient(chain):
    federation, target = chain
    d = federation.x0.tree.size - 1
    rng = np.random.default_rng(4)
    points = scaled_points(federation, 300)
    for x in points:
        x[rng.integers(0, d) :] = 0.0  # supported on the first k < d coordinates
    points[-1] = 6.0 * float(federation.clients.objective.width)
    points[-1, -1] = 0.0
    squares = np.sum(gradients(federation, points).mean(axis=0) ** 2, axis=-1)
    assert squares[:-1].min() > target
    assert squares[-1] < target  # negative control: on all coordinates it can be small


def test_gradients_reveal_one_coordinate_and_split_clients_only_their_own(chain):
    """The first client's links reveal coordinates 1, 3, ..., the second's 2, 4, ...; a whole chain reveals any."""
    federation, _ = chain
    d = federation.x0.tree.size - 1
    split = bool(federation.facts.hessian_heterogeneity)
    points = scaled_points(federation, d)
    for k, x in enumerate(points):
        x[k:] = 0.0
        if k:
            x[k - 1] = 2.0 * float(federation.clients.objective.width)  # where the next link is awake
    found = gradients(federation, points)
    for client in (0, 1):
        for k in range(d):
            support = np.flatnonzero(found[client, k])
            if not split or k % 2 == client:
                assert support.max() == k
            else:
                assert support.max(initial=-1) < k


def test_local_steps_do_not_go_faster_through_a_split_chain(x64):
    """Lemma 45 on a run: whatever the steps, after R rounds the coordinates from R + 1 on are zero."""
    federation = split_chain(2, 1.0, 1.0, 1.0, 2e-5)
    d = federation.x0.tree.size - 1
    method = sj.algorithms.LocalSGD(step_size=1.0, num_local_steps=800, outer_step_size=2.0)
    for rounds in (1, 3, 5):
        end = np.asarray(sj.run(federation, method, rounds, progress=False).params)
        assert end[rounds - 1] != 0 and not end[rounds:].any() and rounds < d
    whole = np.asarray(sj.run(whole_chain(2, 1.0, 1.0, 2e-5), method, 1, progress=False).params)
    assert np.flatnonzero(whole).max() > 1  # negative control: on the whole chain local steps do


def test_bounds_of_links_are_those_of_the_text(x64):
    """Rows of the Hessian of f, F_1, F_2 and F_1 - F_2 add to at most l_1, partial derivatives to at most 23."""
    t = jnp.linspace(0.5, 3, 20_001)
    derivative = jax.vmap(jax.grad(chains._psi)), jax.vmap(jax.grad(jax.grad(chains._psi)))
    psi = [float(jnp.abs(f(t)).max()) for f in (chains._psi, *derivative)]
    psi[0] = math.e  # its limit
    phi = [chains._HIGHEST, math.sqrt(math.e), 1.0]  # phi, phi', phi''
    assert psi[2] * phi[0] + psi[0] * phi[2] + 2 * psi[1] * phi[1] <= chain_facts.SMOOTHNESS
    assert psi[1] * phi[0] + psi[0] * phi[1] <= chain_facts.SLOPE


def test_chains_refuse_targets_that_leave_none(x64):
    with pytest.raises(SojournError, match="leaves no chain"):
        whole_chain(2, 1.0, 1.0, 1.0)
    with pytest.raises(SojournError, match="makes a chain of"):
        whole_chain(2, 1.0, 1.0, 1e-9)
    with pytest.raises(SojournError, match="must be even"):
        split_chain(3, 1.0, 0.5, 1.0, 1e-5)
    with pytest.raises(SojournError, match="at most smoothness"):
        split_chain(2, 1.0, 1.5, 1.0, 1e-5)
