"""Minibatch SGD against equation 2.6 of the thesis retyped in NumPy."""

import jax
import numpy as np

from sojourn.algorithms import MinibatchSGD
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from test_local_sgd import Retyped, client_key, close, far, local_sgd, play, run, uneven_quadratics


def minibatch_sgd(world: Retyped, beta: float, K: int, R: int, equal_shares: bool = False) -> np.ndarray:
    """x = x - (beta / M) sum_{m,k} g_m(x; z_{m,k}): beta multiplies the sum over a client's K gradients."""
    x = world.x0
    for r in range(R):
        ids = world.cohort(r)
        sums = np.array([sum(world.grad(m, x) + z for z in world.noise(r, m, K)) for m in ids])
        x = x - beta * ((sums.mean(axis=0)) if equal_shares else world.shares(ids) @ sums)
    return x


def test_a_noisy_run_with_unequal_weights_and_a_sampled_cohort_is_the_rule_of_the_thesis(x64: None) -> None:
    federation = uneven_quadratics()
    found = run(federation, MinibatchSGD(step_size=0.2, num_local_steps=4), 5, participation=3).params
    world = Retyped(federation, participation=3)
    close(found, minibatch_sgd(world, 0.2 / 4, 4, 5))  # step_size is beta K, the step on the mean gradient
    far(found, minibatch_sgd(world, 0.2, 4, 5))  # beta itself taken for step_size
    far(found, minibatch_sgd(world, 0.2 / 4, 4, 5, equal_shares=True))  # without the weights
    far(found, local_sgd(world, 0.2 / 4, 4, 5)[0])  # the same gradients, taken at local iterates


def test_with_exact_gradients_it_is_gradient_descent_and_ends_at_the_optimum(quadratics: Federation) -> None:
    # Contracts by at most 1 - 0.2 mu < 0.8 a round, mu >= 1: 1e-14 of the starting distance after 150.
    x = play(quadratics, MinibatchSGD(step_size=0.2, num_local_steps=4), 150).server.x.tree
    close(x, quadratics.facts.x_star)


def test_the_gradient_of_a_pooled_sample_is_the_mean_of_the_gradients_of_its_parts(
    noisy_quadratics: Federation,
) -> None:
    world = Retyped(noisy_quadratics)
    x = np.array([1.0, -1.0, 2.0, 0.5])
    oracle = noisy_quadratics.clients.oracle(np.int32(2))
    pooled = oracle.grad(Vec(jax.numpy.asarray(x)), oracle.draw(client_key(0, 5, 2), 4)).tree
    each = [world.grad(2, x) + z for z in world.noise(5, 2, 4)]
    close(pooled, np.mean(each, axis=0))
    far(pooled, each[0])


def test_a_round_costs_one_model_each_way_and_k_gradients_per_participant(x64: None) -> None:
    table = (
        run(uneven_quadratics(), MinibatchSGD(step_size=0.2, num_local_steps=4), 2, participation=3).frame().iloc[1:]
    )
    assert (table[["floats_down", "floats_up"]] == 3 * 4).all(axis=None)
    assert (table["calls_grad"] == 3 * 4).all()
    assert (table["local_steps"] == 0).all()
