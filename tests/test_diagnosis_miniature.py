"""The miniature: exact where nothing is left out, close to gradient descent where it is not, and fit for a sweep."""

import dataclasses

import numpy as np
import pytest

import sojourn as sj
from sojourn.diagnosis import as_federation
from sojourn.diagnosis.findings import Miniature
from test_diagnosis import CLIENTS, exact, made, parts


def test_the_miniature_of_small_quadratics_is_the_federation() -> None:
    hessians, optima = parts()
    found = sj.diagnose(made(hessians, optima, 0.0), facts=False, progress=False)
    assert found.miniature is not None and found.miniature.missed == 0.0
    small = as_federation(found.miniature)
    method = sj.algorithms.LocalSGD(step_size=0.1, num_local_steps=3)
    for number in (1, 5):
        here = sj.run(small, method, number, progress=False)
        there = sj.run(made(hessians, optima, 0.0), method, number, progress=False)
        moved = np.asarray(there.params) - 2.0
        np.testing.assert_allclose(np.asarray(here.params) - found.miniature.start, moved, atol=1e-4)
    assert small.facts.hessian_heterogeneity == pytest.approx(exact()["hessian_heterogeneity"], rel=1e-4)
    wrong = as_federation(dataclasses.replace(found.miniature, gradients=0 * found.miniature.gradients))
    far = np.asarray(sj.run(wrong, method, 5, progress=False).params) - found.miniature.start
    assert np.linalg.norm(far - moved) > 100 * 1e-4  # negative control: a hundred times what was allowed above


def test_a_miniature_in_few_directions_follows_gradient_descent() -> None:
    rng = np.random.default_rng(5)
    d = 60
    raw = rng.standard_normal((CLIENTS, d, 20))
    hessians = raw @ raw.transpose(0, 2, 1) / 20 + 0.5 * np.eye(d)
    fed = sj.problems.quadratic(hessians, rng.standard_normal((CLIENTS, d)), 0.3, x0=np.full(d, 1.0))
    found = sj.diagnose(fed, facts=False, progress=False)
    assert found.miniature is not None and found.miniature.hessians.shape == (CLIENTS, 24, 24)
    small = as_federation(found.miniature)
    method = sj.algorithms.MinibatchSGD(step_size=0.05, num_local_steps=50)
    losses = [sj.run(home, method, 20, progress=False).table["loss"].to_numpy() for home in (fed, small)]
    falls = [loss[0] - loss for loss in losses]
    np.testing.assert_allclose(falls[1][1:], falls[0][1:], rtol=0.05)
    inside = np.trace(found.miniature.noise)
    assert inside + found.miniature.noise_outside == pytest.approx(0.09, rel=0.1)
    assert inside == pytest.approx(0.09 * 24 / d, rel=0.15)


def test_a_direction_that_curves_down_is_bent_up_and_gradients_stay() -> None:
    hessians = np.array([np.diag([2.0, -1.0, 0.0]), np.diag([1.0, 1.0, 1.0])])
    gradients = np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]])
    small = Miniature(
        hessians, gradients, np.zeros(2), np.array([0.25, 0.75]), np.ones(3), 0.1 * np.eye(3), 0.0, 0.0
    )  # fmt: skip
    made = as_federation(small)
    np.testing.assert_allclose(made.facts.hessians[0], np.diag([2.0, 1.0, 2e-5]), atol=1e-12)
    np.testing.assert_allclose(
        np.einsum("mij,mj->mi", made.facts.hessians, -made.facts.optima), gradients, rtol=1e-9, atol=1e-9
    )
    swept = sj.sweep(
        made, lambda step: sj.algorithms.LocalSGD(step_size=step, num_local_steps=2), [0.01, 0.1], 3, progress=False
    )
    assert np.isfinite(swept.table["suboptimality"]).all()
