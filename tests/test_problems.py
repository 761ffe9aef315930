"""Problems keep their word: unbiased samples, exact gradients, and facts that other libraries confirm."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import LocalSGD
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import Vec
from sojourn.data.dataset import Dataset
from sojourn.data.digits import load_digits
from sojourn.problems import PROBLEMS
from sojourn.problems.logistic_facts import logistic_facts
from sojourn.problems.quadratic_facts import quadratic_facts
from test_contract import quick_compilation

# Sums of some hundred float64 numbers of order one, in another order.
ROUNDING = 1e-12


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def samples(federation: Federation, client: int, number: int) -> Any:
    """So many samples z of a client, stacked."""
    objective = federation.clients.objective
    assert federation.clients.batch_size is not None
    return objective.draw(objective.open(jnp.asarray(client)), root_key(0), number, federation.clients.batch_size)


def sampled_gradients(federation: Federation, client: int, x: np.ndarray, number: int) -> np.ndarray:
    objective = federation.clients.objective
    view = objective.open(jnp.asarray(client))
    return np.asarray(jax.vmap(lambda z: objective.grad(jnp.asarray(x), view, z))(samples(federation, client, number)))


def assert_mean_is(found: np.ndarray, expected: np.ndarray) -> None:
    """Every coordinate of the mean within five of its standard deviations: a right law fails once in a million."""
    error = np.abs(found.mean(axis=0) - expected)
    assert (error < 5 * found.std(axis=0) / np.sqrt(len(found))).all()


@pytest.fixture
def regression(x64: None) -> Federation:
    """Two clients with different optima and different feature means."""
    return sj.problems.gaussian_regression([[1.0, 2.0], [-1.0, 0.5]], [[0.5, 0.0], [2.0, -1.0]], 0.3, batch_size=2)


@pytest.mark.parametrize("client", [0, 1])
def test_gradients_of_gaussian_regression_are_unbiased(regression: Federation, client: int) -> None:
    x = np.array([0.3, -0.7])
    found = sampled_gradients(regression, client, x, 20_000)
    mean = np.array([[0.5, 0.0], [2.0, -1.0]])[client]
    optimum = np.array([[1.0, 2.0], [-1.0, 0.5]])[client]
    exact = (np.outer(mean, mean) + np.eye(2)) @ (x - optimum)  # E[a a^T] (x - x_m)
    assert_mean_is(found, exact)
    full = regression.clients.oracle(jnp.asarray(client)).full_grad(Vec(jnp.asarray(x))).tree
    np.testing.assert_allclose(full, exact, rtol=0, atol=ROUNDING)
    with pytest.raises(AssertionError):
        assert_mean_is(found, x - optimum)  # the features' means left out


def test_values_of_gaussian_regression_are_unbiased(regression: Federation) -> None:
    objective, x = regression.clients.objective, jnp.asarray([0.3, -0.7])
    zs = samples(regression, 1, 20_000)
    values = np.asarray(jax.vmap(lambda z: objective.value(x, jnp.asarray(1), z))(zs))
    assert_mean_is(values[:, None], np.asarray(objective.full_value(x, jnp.asarray(1)))[None])


def test_the_gradient_noise_of_gaussian_regression_is_its_fact(regression: Federation) -> None:
    """sigma^2 is the mean squared distance to the exact gradient of one call at x*, of the noisiest client."""
    x_star = np.asarray(regression.facts.x_star)
    second = []
    for client in range(2):
        noise = sampled_gradients(regression, client, x_star, 20_000)
        noise = noise - np.asarray(regression.clients.objective.full_grad(x_star, client))
        second.append(np.mean(np.sum(noise**2, axis=1)))
    # Products of Gaussians have heavy tails: the mean of 20,000 squares is right to about three per cent.
    np.testing.assert_allclose(max(second), regression.facts.noise_at_optimum**2, rtol=0.15)


def test_the_noise_of_a_quadratic_has_the_covariance_asked_for(x64: None) -> None:
    hessians, optima = random_quadratics(2, 3)
    covariances = np.stack([np.diag([1.0, 4.0, 0.0]), [[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]]])
    federation = sj.problems.quadratic(hessians, optima, noise_covariance=covariances)
    x = np.array([1.0, -1.0, 0.5])
    for client in range(2):
        gradients = sampled_gradients(federation, client, x, 40_000)
        exact = hessians[client] @ (x - optima[client])
        noise = gradients - exact
        assert (np.abs(noise.mean(axis=0)) < 5 * np.sqrt(np.diag(covariances[client]) / 40_000) + 1e-12).all()
        # An entry of the empirical covariance has standard deviation at most sqrt(2) 4 / sqrt(40,000).
        np.testing.assert_allclose(np.cov(noise.T), covariances[client], rtol=0, atol=5 * np.sqrt(2) * 4 / 200)
    np.testing.assert_allclose(federation.facts.noise**2, 6.0, rtol=1e-12)  # the larger trace


def test_scalar_noise_is_the_root_mean_squared_norm(noisy_quadratics: Federation) -> None:
    noise = np.asarray(samples(noisy_quadratics, 0, 20_000))
    # The squared norm, 0.25 on average, has relative deviation sqrt(2/4): five of them over sqrt(20,000).
    np.testing.assert_allclose(np.mean(np.sum(noise**2, axis=1)), 0.25, rtol=5 * np.sqrt(0.5 / 20_000))


def test_pooling_batches_averages_their_noise(noisy_quadratics: Federation) -> None:
    x = Vec(jnp.asarray([1.0, -2.0, 0.5, 3.0]))
    oracle = noisy_quadratics.clients.oracle(jnp.asarray(2))
    pooled = np.asarray(oracle.grad(x, oracle.draw(root_key(3), 8)).tree)
    each = oracle.walk(
        lambda total, z, k: total + oracle.grad(x, z), Vec(jnp.zeros(4)), 8, root_key(3)
    )  # the same eight, one at a time
    np.testing.assert_allclose(pooled, np.asarray(each.tree) / 8, rtol=0, atol=ROUNDING)


def blobs(num_classes: int = 3, size: int = 60) -> Dataset:
    """Overlapping classes, so that the optimum is finite and the problem well conditioned."""
    rng = np.random.default_rng(0)
    labels = np.arange(size) % num_classes
    features = rng.normal(size=(size, 4)) + rng.normal(size=(num_classes, 4))[labels]
    return Dataset("blobs", features, labels, features[:6], labels[:6], num_classes)


PARTS = [np.arange(0, 10), np.arange(10, 60)]  # ten and fifty samples


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_the_facts_of_logistic_regression_are_scikit_learns_optimum(weights: str, x64: None) -> None:
    """Scikit-learn minimises C sum_i s_i loss_i + ||w||^2 / 2 without penalising an intercept: hence the column of
    ones, C = 1 / l2, and the samples' shares of our mean as weights."""
    data, l2 = blobs(), 0.05
    federation = sj.problems.logistic_regression(data, PARTS, l2=l2, weights=weights)
    share = {"equal": [0.5 / 10, 0.5 / 50], "size": [1 / 60, 1 / 60]}[weights]
    per_sample = np.concatenate([np.full(10, share[0]), np.full(50, share[1])])
    rows = np.hstack([data.x_train.astype(float), np.ones((60, 1))])
    model = LogisticRegression(C=1 / l2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(rows, data.y_train, sample_weight=per_sample)
    scores = rows @ model.coef_.T
    chosen = scores[np.arange(60), data.y_train]
    best = per_sample @ (np.log(np.exp(scores).sum(axis=1)) - chosen) + 0.5 * l2 * np.sum(model.coef_**2)
    # A value is second order in the error of its point: gradients of 1e-7 and l2 = 0.05 leave 1e-12 at most.
    np.testing.assert_allclose(federation.facts.f_star, best, rtol=0, atol=1e-9)
    found = np.hstack([federation.facts.x_star["weight"], np.asarray(federation.facts.x_star["bias"])[:, None]])
    np.testing.assert_allclose(found, model.coef_, rtol=0, atol=1e-5)  # the solver's own accuracy


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_at_its_optimum_logistic_regression_has_no_gradient_and_its_loss_is_f_star(weights: str, x64: None) -> None:
    federation = sj.problems.logistic_regression(blobs(), PARTS, l2=0.05, weights=weights)
    x_star = federation.clients.x_star
    value, gradient = jax.jit(jax.value_and_grad(lambda x: federation.clients.metrics(x)["loss"]))(x_star)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < 1e-9  # promised: a norm below 1e-10
    np.testing.assert_allclose(value, federation.facts.f_star, rtol=0, atol=ROUNDING)
    assert float(federation.clients.metrics(federation.x0)["loss"]) > federation.facts.f_star + 0.1


def test_the_gradient_of_logistic_regression_by_hand_is_the_derivative_of_its_loss(x64: None) -> None:
    federation = sj.problems.logistic_regression(blobs(), PARTS, l2=0.05, batch_size=7)
    objective = federation.clients.objective
    x = jax.tree.map(lambda a: jax.random.normal(root_key(1), a.shape), federation.x0.tree)
    z = jax.tree.map(lambda a: a[0], samples(federation, 1, 1))
    by_hand, derived = jax.jit(lambda: (objective.grad(x, 1, z), jax.grad(objective.value)(x, 1, z)))()
    for a, b in zip(jax.tree.leaves(by_hand), jax.tree.leaves(derived), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING)


def test_the_constants_of_logistic_regression_bound_its_hessians(x64: None) -> None:
    """The Hessian of a row a is (diag p - p p^T) x a a^T, with the class probabilities p."""
    facts = sj.problems.logistic_regression(blobs(), PARTS, l2=0.05).facts
    rng = np.random.default_rng(2)
    largest = 0.0
    for scale in (0.0, 1.0, 10.0):
        x = scale * rng.normal(size=(5, 3))
        for part in PARTS:
            rows = np.hstack([blobs().x_train[part].astype(float), np.ones((len(part), 1))])
            p = softmax(rows @ x, axis=1)
            spread = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
            hessian = np.einsum("nij,na,nb->iajb", spread, rows, rows).reshape(15, 15) / len(part)
            values = np.linalg.eigvalsh(hessian + 0.05 * np.eye(15))
            assert facts.strong_convexity - 1e-9 <= values.min() and values.max() <= facts.smoothness + 1e-9
            largest = max(largest, values.max())
    assert largest > facts.smoothness / 2  # the bound is not idle: (diag p - p p^T) reaches 1/3 of at most 1/2


def test_without_regularization_the_optimum_of_logistic_regression_stays_unknown() -> None:
    facts = sj.problems.logistic_regression(blobs(), PARTS, l2=0.0).facts
    assert facts.x_star is None and facts.f_star is None and facts.strong_convexity == 0


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_the_facts_of_least_squares_are_numpys_solution(weights: str, x64: None) -> None:
    data = blobs()
    federation = sj.problems.least_squares(data, PARTS, weights=weights)
    share = {"equal": [0.5 / 10, 0.5 / 50], "size": [1 / 60, 1 / 60]}[weights]
    root = np.sqrt(np.concatenate([np.full(10, share[0]), np.full(50, share[1])]))[:, None]
    rows = np.hstack([data.x_train.astype(float), np.ones((60, 1))])
    targets = np.eye(3)[data.y_train]
    solution, *_ = np.linalg.lstsq(root * rows, root * targets, rcond=None)
    x_star = federation.facts.x_star
    np.testing.assert_allclose(np.vstack([np.asarray(x_star["weight"]).T, x_star["bias"]]), solution, atol=1e-10)
    value = 0.5 * np.sum((root * (rows @ solution - targets)) ** 2)
    np.testing.assert_allclose(federation.facts.f_star, value, rtol=0, atol=1e-10)
    loss = federation.clients.metrics(federation.clients.x_star)["loss"]
    np.testing.assert_allclose(float(loss), value, rtol=0, atol=1e-10)


def test_the_facts_of_least_squares_are_those_of_its_quadratics(x64: None) -> None:
    """All classes side by side: a block-diagonal Hessian with the same block for every class."""
    data, l2 = blobs(), 0.1
    facts = sj.problems.least_squares(data, PARTS, l2=l2).facts
    hessians, optima = [], []
    for part in PARTS:
        rows = np.hstack([data.x_train[part].astype(float), np.ones((len(part), 1))])
        block = rows.T @ rows / len(part) + l2 * np.eye(5)
        hessians.append(np.kron(np.eye(3), block))
        optima.append(np.linalg.solve(block, rows.T @ np.eye(3)[data.y_train[part]] / len(part)).T.reshape(-1))
    expected = quadratic_facts(np.stack(hessians), np.stack(optima))
    names = ("smoothness", "strong_convexity", "hessian_heterogeneity", "optima_heterogeneity", "optima_distance")
    for name in names:
        np.testing.assert_allclose(getattr(facts, name), getattr(expected, name), rtol=1e-9)
    found = np.hstack([facts.x_star["weight"], np.asarray(facts.x_star["bias"])[:, None]]).reshape(-1)
    np.testing.assert_allclose(found, expected.x_star, rtol=0, atol=1e-10)


def test_newtons_method_keeps_its_promise_on_real_data() -> None:
    """Ten classes of digits in two uneven clients with the default l2: a gradient norm below 1e-10."""
    data = load_digits()
    parts = [np.arange(200), np.arange(200, len(data.y_train))]
    facts = logistic_facts(
        [data.x_train[part] for part in parts], [data.y_train[part] for part in parts], 10, 1e-3, np.array([0.5, 0.5])
    )
    x = np.vstack([np.asarray(facts.x_star["weight"]).T, facts.x_star["bias"]])
    gradient = 1e-3 * x
    for part in parts:
        rows = np.hstack([data.x_train[part].astype(float), np.ones((len(part), 1))])
        gradient += 0.5 / len(part) * rows.T @ (softmax(rows @ x, axis=1) - np.eye(10)[data.y_train[part]])
    assert np.linalg.norm(gradient) < 2e-10  # ours sums in another order


def test_a_quadratic_is_minimal_where_its_facts_say(quadratics: Federation) -> None:
    hessians, optima = random_quadratics()

    def mean_loss(x: np.ndarray) -> float:
        return float(np.mean([0.5 * (x - b) @ a @ (x - b) for a, b in zip(hessians, optima, strict=True)]))

    found = optimize.minimize(mean_loss, np.zeros(4), tol=1e-12)
    np.testing.assert_allclose(quadratics.facts.x_star, found.x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(quadratics.facts.f_star, found.fun, rtol=0, atol=1e-9)
    x = np.array([1.0, 2.0, -1.0, 0.0])
    metrics = quadratics.clients.metrics(Vec(jnp.asarray(x)))
    np.testing.assert_allclose(float(metrics["loss"]), mean_loss(x), rtol=1e-12)
    np.testing.assert_allclose(float(metrics["suboptimality"]), mean_loss(x) - found.fun, rtol=1e-8)


FREE = [name for name, problem in PROBLEMS.items() if not problem.takes_data and name != "own"]


@pytest.mark.parametrize("name", FREE)
def test_every_problem_without_data_builds_with_its_defaults_and_runs(name: str) -> None:
    federation = PROBLEMS[name].build()
    step = 0.1 / (federation.facts.smoothness or 10.0)
    run = functools.partial(sj.run, engine="reference", participation=2, progress=False)
    history = run(federation, LocalSGD(step_size=step, num_local_steps=2), 2)
    assert history.status == "ok" and np.isfinite(history.frame()["loss"]).all()
    assert federation.name in (name, "quadratic", "generated-regression")


@pytest.mark.parametrize("name", FREE)
def test_the_loss_of_every_known_optimum_is_the_known_value(name: str, x64: None) -> None:
    federation = PROBLEMS[name].build()
    if federation.facts.x_star is None:
        assert federation.facts.f_star is None
        return
    metrics = federation.clients.metrics(federation.clients.x_star)
    np.testing.assert_allclose(float(metrics["loss"]), federation.facts.f_star, rtol=1e-9, atol=1e-12)
    assert float(metrics["distance"]) == 0


def test_squared_loss_of_a_network_is_half_the_squared_distance_to_one_hot_labels(x64: None) -> None:
    data = load_digits()
    model = sj.models.deep_relu((64,), 10, root_key(0), width=7)
    parts = [np.arange(30), np.arange(30, 90)]
    federation = sj.problems.classification(data, parts, model, loss="squared", weights="size")
    first, top = np.asarray(model.weights[0]), np.asarray(model.top())
    x, y = np.asarray(data.x_train[:90], float), np.eye(10)[data.y_train[:90]]
    hidden = x @ first.T
    error = np.maximum(hidden, 0) @ top.T - y
    history = sj.run(federation, LocalSGD(0.01, 1), 1, progress=False)
    np.testing.assert_allclose(history.table["loss"].iloc[0], 0.5 * np.mean(np.sum(error**2, 1)), rtol=1e-12)
    gradient = ((error @ top) * (hidden >= 0)).T @ x / 90
    np.testing.assert_allclose(history.params.weights[0], first - 0.01 * gradient, rtol=0, atol=1e-13)
    with pytest.raises(sj.SojournError, match='did you mean "squared"'):
        sj.problems.classification(data, parts, model, loss="square")


def of_somebody() -> Federation:
    return PROBLEMS["two-coordinates"].build()


def test_a_problem_of_ones_own_is_what_its_function_returns() -> None:
    assert PROBLEMS["own"].build(function=f"{__name__}:of_somebody").num_clients == 2
    with pytest.raises(SojournError, match="expected a sojourn federation"):
        PROBLEMS["own"].build(function="builtins:dict")
    for name, why in {
        "json": "MODULE:FUNCTION",
        "no_such:f": "cannot be imported",
        "json:no": "has no function",
    }.items():
        with pytest.raises(SojournError, match=why):
            PROBLEMS["own"].build(function=name)
