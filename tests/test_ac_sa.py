"""AC-SA and Local AC-SA against Ghadimi and Lan's rule retyped in NumPy, and the rate that acceleration is for."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import ACSA, LocalACSA, MinibatchSGD
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, close, far, play, run, uneven_quadratics

Pair = tuple[np.ndarray, np.ndarray]


def middle(x: np.ndarray, x_ag: np.ndarray, t: int, L: float, mu: float) -> np.ndarray:
    a, gam = 2 / (t + 1), 4 * L / (t * (t + 1))
    return ((1 - a) * (mu + gam) * x_ag + a * ((1 - a) * mu + gam) * x) / (gam + (1 - a**2) * mu)


def step(x: np.ndarray, x_ag: np.ndarray, x_md: np.ndarray, G: np.ndarray, t: int, L: float, mu: float) -> Pair:
    a, gam = 2 / (t + 1), 4 * L / (t * (t + 1))
    x = (a * mu * x_md + ((1 - a) * mu + gam) * x - a * G) / (mu + gam)
    return x, a * x + (1 - a) * x_ag


def ac_sa(world: Retyped, L: float, mu: float, K: int, R: int) -> Pair:
    x = x_ag = world.x0
    for r in range(R):
        ids = world.cohort(r)
        x_md = middle(x, x_ag, r + 1, L, mu)
        G = world.shares(ids) @ np.array([world.grad(m, x_md) + world.noise(r, m, K).mean(axis=0) for m in ids])
        x, x_ag = step(x, x_ag, x_md, G, r + 1, L, mu)
    return x, x_ag


def plain_ac_sa(world: Retyped, L: float, R: int) -> Pair:
    """The form for mu = 0 and exact gradients: x = x - (t / 2L) G."""
    x = x_ag = world.x0
    for t in range(1, R + 1):
        a = 2 / (t + 1)
        x_md = (1 - a) * x_ag + a * x
        x = x - t / (2 * L) * world.weights @ np.array([world.grad(m, x_md) for m in range(6)])
        x_ag = (1 - a) * x_ag + a * x
    return x, x_ag


def local_ac_sa(world: Retyped, L: float, mu: float, K: int, R: int, restart: bool = False) -> Pair:
    """Clients count on through the rounds: step k of round r is t = rK + k + 1."""
    x = x_ag = world.x0
    for r in range(R):
        ids, ends = world.cohort(r), []
        for m in ids:
            mine = x, x_ag
            for k, z in enumerate(world.noise(r, m, K)):
                t = k + 1 if restart else r * K + k + 1
                x_md = middle(*mine, t, L, mu)
                mine = step(*mine, x_md, world.grad(m, x_md) + z, t, L, mu)
            ends.append(mine)
        x, x_ag = np.tensordot(world.shares(ids), np.array(ends), axes=1)
    return x, x_ag


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_ac_sa_with_noise_unequal_weights_and_a_sampled_cohort_is_the_papers_rule(x64: None, mu: float) -> None:
    federation = uneven_quadratics()
    history = run(federation, ACSA(smoothness=8.0, strong_convexity=mu, num_local_steps=3), 6, participation=3)
    world = Retyped(federation, participation=3)
    x, x_ag = ac_sa(world, 8.0, mu, 3, 6)
    close(history.params, x_ag)
    far(history.params, x)
    far(history.params, ac_sa(world, 8.0, 1.0 - mu, 3, 6)[1])  # the other mu
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 3 * 4).all(axis=None)


def test_without_strong_convexity_it_is_the_short_form(quadratics: Federation) -> None:
    server = play(quadratics, ACSA(smoothness=8.0, num_local_steps=3), 6).server
    x, x_ag = plain_ac_sa(Retyped(quadratics), 8.0, 6)
    close(server.x.tree, x)
    close(server.x_ag.tree, x_ag)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_local_ac_sa_accelerates_on_every_client_and_averages_both_sequences(x64: None, mu: float) -> None:
    federation = uneven_quadratics()
    algorithm = LocalACSA(smoothness=8.0, strong_convexity=mu, num_local_steps=3)
    server = play(federation, algorithm, 4, participation=3).server
    world = Retyped(federation, participation=3)
    x, x_ag = local_ac_sa(world, 8.0, mu, 3, 4)
    close(server.x.tree, x)
    close(server.x_ag.tree, x_ag)
    far(server.x_ag.tree, local_ac_sa(world, 8.0, mu, 3, 4, restart=True)[1])  # acceleration restarted every round


def test_local_ac_sa_sends_two_models_each_way_and_answers_the_aggregate(x64: None) -> None:
    federation = uneven_quadratics()
    history = run(federation, LocalACSA(smoothness=8.0, num_local_steps=3), 4, participation=3)
    close(history.params, local_ac_sa(Retyped(federation, participation=3), 8.0, 0.0, 3, 4)[1])
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 3 * 2 * 4).all(axis=None)


# The rate, on the quadratic that is hardest for first-order methods: Nesterov's chain (H = 4, start at zero).

DIMENSION, NUM_ROUNDS = 63, 300


def chain() -> Federation:
    hessian = 2 * np.eye(DIMENSION) - np.eye(DIMENSION, k=1) - np.eye(DIMENSION, k=-1)
    optimum = 1 - np.arange(1, DIMENSION + 1) / (DIMENSION + 1)
    return sj.problems.quadratic(np.array([hessian, hessian]), np.array([optimum, optimum]))


def gaps_over_bound(algorithm: Algorithm) -> np.ndarray:
    """F(x_R) - F* over AC-SA's bound for exact gradients, 4 L V / (R (R + 1)) with V = ||x0 - x*||^2 / 2."""
    federation = chain()
    gaps = run(federation, algorithm, NUM_ROUNDS, eval_every=1).frame()["suboptimality"].to_numpy()[1:]
    rounds = np.arange(1, NUM_ROUNDS + 1)
    return gaps / (4 * 4.0 * np.sum(federation.facts.x_star**2) / 2 / (rounds * (rounds + 1)))


def test_with_exact_gradients_the_error_decays_like_one_over_r_squared(x64: None) -> None:
    ratios = gaps_over_bound(ACSA(smoothness=4.0))
    assert (ratios <= 1).all()
    # No method is faster on the chain at R = (d - 1) / 2: 3 L ||x0 - x*||^2 / (32 (R + 1)^2) (Nesterov, Theorem 2.1.7).
    assert ratios[30] >= 3 / 64 * 31 / 32


def test_gradient_descent_breaks_the_bound_that_acceleration_keeps(x64: None) -> None:
    """Negative control of the rate."""
    assert gaps_over_bound(MinibatchSGD(step_size=0.25))[-1] > 2
