"""The rehearsal plays what the engine plays: closed forms of K local steps against the methods themselves."""

import dataclasses

import jax
import numpy as np
import pytest

import sojourn as sj
from small_diagnoses import (
    diagnosis_of,
    family,
    miniature_of,
)
from sojourn.advice.rehearsal import PLAYS, Grid, Picture, Stage, fedac_walk, picture_of, rehearse
from sojourn.advice.variations import VARIATIONS, varied
from sojourn.problems.quadratic_facts import hessian_gap

STEP, K, ROUNDS = 0.7, 7, 12
METHODS = {  # the method, and what stands in its grid's last column
    "minibatch-sgd": (lambda mu: sj.algorithms.MinibatchSGD(step_size=STEP, num_local_steps=K), 1.0),
    "ac-sa": (lambda mu: sj.algorithms.ACSA(smoothness=1 / STEP, strong_convexity=mu, num_local_steps=K), None),
    "local-sgd": (lambda mu: sj.algorithms.LocalSGD(step_size=STEP, num_local_steps=K, outer_step_size=1.2), 1.2),
    "scaffold": (lambda mu: sj.algorithms.Scaffold(step_size=STEP, num_local_steps=K, outer_step_size=1.2), 1.2),
    "fedac": (lambda mu: sj.algorithms.FedAc(step_size=STEP, strong_convexity=mu, num_local_steps=K), None),
    "ce-lsgd": (lambda mu: sj.algorithms.CELSGD(step_size=STEP, num_local_steps=K, momentum=0.6), 0.6),
}


def one(name: str, outer: float, step: float = STEP, steps: int = K) -> Grid:
    return Grid(name, np.array([step]), np.array([steps]), np.array([outer]))


def played(picture: Picture, grid: Grid, rounds: int = ROUNDS) -> np.ndarray:
    stage = Stage(picture, grid, 1, len(picture.weights))
    return np.stack([x[:, 0, 0] for _, x in zip(range(rounds), PLAYS[grid.name](stage), strict=False)], 1)


@pytest.mark.parametrize("name", METHODS)
def test_a_rehearsal_is_the_run_itself_where_the_miniature_is_the_federation(name: str) -> None:
    """Clients differ in optima and in curvature; for CE-LSGD only in optima, as it draws who walks."""
    make, outer = METHODS[name]
    with jax.enable_x64(True):
        federation = family(0.0 if name == "ce-lsgd" else 0.2, 0.5)
        mu = federation.facts.strong_convexity
        table = sj.run(federation, make(mu), ROUNDS, eval_every=1, progress=False).table
    picture = picture_of(miniature_of(federation), federation.num_clients)
    models = played(picture, one(name, mu if outer is None else outer))
    for kind, column in (("loss", "loss"), ("grad", "grad_norm"), ("distance", "distance")):
        np.testing.assert_allclose(picture.metric(kind, models), table[column].to_numpy()[1:], rtol=1e-9, atol=1e-12)
    other = played(picture, one(name, mu if outer is None else outer, step=0.69))
    assert not np.allclose(picture.metric("loss", other), table["loss"].to_numpy()[1:], rtol=1e-5)  # negative control


def test_the_first_round_at_the_target_is_the_run_s() -> None:
    with jax.enable_x64(True):
        federation = family(0.2, 0.5)
        method = sj.algorithms.Scaffold(step_size=STEP, num_local_steps=K)
        table = sj.run(federation, method, 80, eval_every=1, progress=False).table
    first = int(table[table["distance"] <= 0.05]["round"].iloc[0])
    picture = picture_of(miniature_of(federation), federation.num_clients)
    found = rehearse(picture, one("scaffold", 1.0), "distance", 0.05, 80)
    assert first > 3 and found.rounds[0] == first
    assert rehearse(picture, one("scaffold", 1.0), "distance", 0.05, first - 1).rounds[0] == np.inf
    assert np.isnan(rehearse(picture, one("scaffold", 1.0, step=50.0), "distance", 0.05, 80).rounds[0])  # diverges


def test_the_noise_of_a_walk_is_that_of_its_steps() -> None:
    """Variances by the recursion of a single step, K times, typed out."""
    federation = family(0.2, 0.5, noise=0.3)
    picture = picture_of(miniature_of(federation), federation.num_clients)
    spread = 0.3 / np.sqrt(8)
    np.testing.assert_allclose(picture.spread, spread, rtol=1e-5)
    np.testing.assert_allclose(picture.mean_root, np.eye(8) * spread / np.sqrt(6), atol=1e-7)
    variance = np.zeros_like(picture.values)
    for _ in range(K):
        variance = (1 - STEP * picture.values) ** 2 * variance + (STEP * spread) ** 2
    stage = Stage(picture, one("local-sgd", 1.0), 1, 6)
    np.testing.assert_allclose(stage.jitter[:, :, 0, 0], np.sqrt(variance), rtol=1e-6)
    assert not np.allclose(stage.jitter[:, :, 0, 0], STEP * spread * np.sqrt(K), rtol=0.05)  # as if flat


def test_the_noise_of_fedac_s_walk_is_that_of_its_steps() -> None:
    federation = family(0.2, 0.5, noise=0.3)
    picture = picture_of(miniature_of(federation), federation.num_clients)
    mu = 0.02
    _, root = fedac_walk(Stage(picture, one("fedac", mu), 1, 6))
    gamma = max(np.sqrt(STEP / (mu * K)), STEP)
    alpha = 1 / (gamma * mu)
    beta = alpha + 1
    a = picture.values[2, 3]
    middle = np.array([1 / beta, 1 - 1 / beta])
    step = np.stack([np.array([1 - 1 / alpha, 0]) + middle / alpha - gamma * a * middle, middle - STEP * a * middle])
    fresh, covariance = np.outer([gamma, STEP], [gamma, STEP]) * 0.3**2 / 8, np.zeros((2, 2))
    for _ in range(K):
        covariance = step @ covariance @ step.T + fresh
    found = root[2, 3, 0, 0] @ root[2, 3, 0, 0].T
    np.testing.assert_allclose(found, covariance, rtol=1e-5)
    assert not np.allclose(found, fresh * K, rtol=0.05)


def test_fewer_clients_in_the_miniature_than_take_part_do_not_change_the_noise_of_the_mean() -> None:
    mini = miniature_of(family(0.2, 0.5, noise=0.3))
    few, many = picture_of(mini, 6), picture_of(mini, 600)
    np.testing.assert_allclose(many.mean_root * 10, few.mean_root, rtol=1e-9)
    np.testing.assert_allclose(many.spread * 10, few.spread, rtol=1e-9)


def test_negative_curvature_is_folded_up_and_said() -> None:
    mini = miniature_of(family(0.0, 0.1))
    bent = mini.hessians.copy()
    bent[:, 0, 0] *= -1
    import dataclasses

    picture = picture_of(dataclasses.replace(mini, hessians=bent), 6, convexify=True)
    assert picture.convexified and picture.values.min() > 0
    assert not picture_of(mini, 6, convexify=True).convexified


@pytest.mark.parametrize("variation", VARIATIONS, ids=lambda v: v.name)
def test_a_variation_changes_one_thing(variation) -> None:
    diagnosis = diagnosis_of(family(0.02, 0.5, noise=0.1, kappa=5.0))
    found = varied(diagnosis, variation, 3.0)
    assert found is not None
    before, after = diagnosis.miniature, found[0].miniature
    assert before is not None and after is not None
    one_picture, other = picture_of(before, 6), picture_of(after, 6, noise_scale=found[1])
    np.testing.assert_allclose(one_picture.optimum, other.optimum, atol=1e-9)
    np.testing.assert_allclose(one_picture.least, other.least, rtol=1e-9)
    factors = {
        "hessian_heterogeneity": hessian_gap(after.hessians) / hessian_gap(before.hessians),
        "optima_heterogeneity": _slopes(other) / _slopes(one_picture),
        "noise": other.spread[0, 0] / one_picture.spread[0, 0],
    }
    expected = {name: 3.0 if name == variation.name else 1.0 for name in factors}
    assert factors == pytest.approx(expected, rel=1e-6)


def _slopes(picture: Picture) -> float:
    """Root mean square of the clients' gradients at the optimum."""
    hessians = np.einsum("mik,mk,mjk->mij", picture.vectors, picture.values, picture.vectors)
    return float(np.sqrt(np.mean(np.sum((picture.gradients + hessians @ picture.optimum) ** 2, axis=1))))


def test_the_noise_of_a_mean_follows_the_weights() -> None:
    """sum w^2 of one call's; a client's own is what was measured of it."""
    rng = np.random.default_rng(0)
    mini = dataclasses.replace(miniature_of(family(0.1)), noise=np.eye(miniature_of(family(0.1)).start.size))
    number = len(mini.weights)
    weights = rng.dirichlet(np.full(number, 0.3))
    picture = picture_of(dataclasses.replace(mini, weights=weights), number)
    np.testing.assert_allclose(picture.spread, 1.0)
    np.testing.assert_allclose(picture.mean_root @ picture.mean_root.T, np.eye(len(mini.start)) * (weights**2).sum())
    half = picture_of(dataclasses.replace(mini, weights=weights), 2 * number)  # twice as many take part
    np.testing.assert_allclose(half.spread**2, 0.5)


def test_in_noise_a_setting_is_there_when_most_of_its_runs_are() -> None:
    """By the rounds rehearsed about five runs in six are there; by the first touch of the mean, few more than half."""
    federation = family(0.2, 0.5, noise=0.5)
    picture = picture_of(miniature_of(federation), federation.num_clients)
    gap = float(picture.metric("loss", picture.start)) - picture.least
    target, grid = picture.least + 0.01 * gap, one("local-sgd", 1.0, step=0.02, steps=16)
    rounds = int(rehearse(picture, grid, "loss", target, 300, num_seeds=400).rounds[0])
    stage = Stage(picture, grid, 400, len(picture.weights))
    models = zip(range(300), PLAYS["local-sgd"](stage), strict=False)
    curves = np.stack([picture.metric("loss", x)[0] for _, x in models])
    touched = int(np.argmax(curves.mean(1) <= target)) + 1
    method = sj.algorithms.LocalSGD(step_size=0.02, num_local_steps=16)
    table = sj.sweep(federation, lambda _: method, [0.0], rounds=rounds, seeds=range(100), eval_every=1).table
    there = lambda at: float((table[table["round"] == at]["loss"] <= target).mean())  # noqa: E731
    assert touched < rounds and there(rounds) > 0.7 > there(touched)
