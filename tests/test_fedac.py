"""FedAc against Yuan and Ma's Algorithm 1 retyped in NumPy, both versions, and without its acceleration."""

from typing import Any

import numpy as np
import pytest

from sojourn.algorithms import FedAc
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, close, far, local_sgd, play, run, uneven_quadratics

Numbers = tuple[float, float, float]


def numbers(version: str, eta: float, mu: float, K: int) -> Numbers:
    """alpha, beta, gamma."""
    gamma = max(np.sqrt(eta / (mu * K)), eta)
    if version == "I":
        alpha = 1 / (gamma * mu)
        return alpha, alpha + 1, gamma
    alpha = 3 / (2 * gamma * mu) - 1 / 2
    return alpha, (2 * alpha**2 - 1) / (alpha - 1), gamma


def fedac(world: Retyped, eta: float, K: int, R: int, given: Numbers) -> tuple[np.ndarray, np.ndarray]:
    alpha, beta, gamma = given
    w = w_ag = world.x0
    for r in range(R):
        ids, ends = world.cohort(r), []
        for m in ids:
            v, v_ag = w, w_ag
            for z in world.noise(r, m, K):
                v_md = v / beta + (1 - 1 / beta) * v_ag
                g = world.grad(m, v_md) + z
                v_ag = v_md - eta * g
                v = (1 - 1 / alpha) * v + v_md / alpha - gamma * g
            ends.append((v, v_ag))
        w, w_ag = np.tensordot(world.shares(ids), np.array(ends), axes=1)
    return w, w_ag


@pytest.mark.parametrize(("version", "noise"), [("I", 0.5), ("II", 0.0)])
def test_a_run_with_unequal_weights_and_a_sampled_cohort_is_the_papers_rule(
    x64: None, version: str, noise: float
) -> None:
    federation = uneven_quadratics(noise)
    algorithm = FedAc(step_size=0.1, strong_convexity=0.5, num_local_steps=3, version=version)
    server = play(federation, algorithm, 4, participation=3).server
    world = Retyped(federation, participation=3)
    w, w_ag = fedac(world, 0.1, 3, 4, numbers(version, 0.1, 0.5, 3))
    close(server.w.tree, w)
    close(server.w_ag.tree, w_ag)
    far(server.w_ag.tree, fedac(world, 0.1, 3, 4, numbers({"I": "II", "II": "I"}[version], 0.1, 0.5, 3))[1])
    far(server.w_ag.tree, local_sgd(world, 0.1, 3, 4)[0])  # without acceleration


def test_the_answer_is_the_aggregate_and_two_models_travel_each_way(quadratics: Federation) -> None:
    history = run(quadratics, FedAc(step_size=0.1, strong_convexity=1.0, num_local_steps=3), 5)
    close(history.params, fedac(Retyped(quadratics), 0.1, 3, 5, numbers("I", 0.1, 1.0, 3))[1])
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 6 * 2 * 4).all(axis=None)


def test_gamma_is_never_below_the_step_size(quadratics: Federation) -> None:
    """sqrt(eta / (mu K)) < eta from eta mu K > 1 on; version II still has alpha > 1 then."""
    algorithm = FedAc(step_size=0.4, strong_convexity=1.0, num_local_steps=3, version="II")
    server = play(quadratics, algorithm, 3).server
    close(server.w_ag.tree, fedac(Retyped(quadratics), 0.4, 3, 3, numbers("II", 0.4, 1.0, 3))[1])
    assert numbers("II", 0.4, 1.0, 3)[2] == 0.4


def test_with_alpha_and_beta_one_and_gamma_eta_it_is_local_sgd(
    quadratics: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unaccelerated(FedAc):
        def parameters(self) -> tuple[Any, Any, Any]:
            return 1.0, 1.0, self.step_size

    monkeypatch.delattr(FedAc, "__check_init__")  # it asks for alpha > 1
    server = play(quadratics, Unaccelerated(step_size=0.1, strong_convexity=1.0, num_local_steps=3), 4).server
    expected = local_sgd(Retyped(quadratics), 0.1, 3, 4)[0]
    close(server.w.tree, expected)
    close(server.w_ag.tree, expected)


def test_numbers_that_leave_no_room_for_acceleration_are_refused() -> None:
    with pytest.raises(SojournError, match="alpha > 1"):
        FedAc(step_size=1.0, strong_convexity=1.0, num_local_steps=1)
