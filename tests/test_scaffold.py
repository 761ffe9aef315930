"""SCAFFOLD against Algorithm 1 of its paper retyped in NumPy, its invariant, and where it ends."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import Scaffold
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, close, far, local_sgd, play, run, uneven_quadratics


def scaffold(
    world: Retyped, eta_l: float, K: int, R: int, option: str = "II", eta_g: float = 1.0,
    corrected: bool = True, scaled: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """x, c and all c_i after R rounds; for negative controls, without the correction or without |S|/N."""
    N = world.num_clients
    x, c, c_i = world.x0, np.zeros_like(world.x0), np.zeros_like(world.optima)
    for r in range(R):
        S = world.cohort(r)
        dy, dc = [], []
        for i in S:
            y = x
            for z in world.noise(r, i, K):
                y = y - eta_l * (world.grad(i, y) + z + (c - c_i[i] if corrected else 0))
            new = world.grad(i, x) if option == "I" else c_i[i] - c + (x - y) / (K * eta_l)
            dy.append(y - x)
            dc.append(new - c_i[i])
            c_i[i] = new
        shares = world.shares(S)
        x = x + eta_g * shares @ np.array(dy)
        c = c + (len(S) / N if scaled else 1.0) * shares @ np.array(dc)
    return x, c, c_i


def test_option_two_with_noise_and_a_sampled_cohort_is_the_papers_rule(noisy_quadratics: Federation) -> None:
    algorithm = Scaffold(step_size=0.1, num_local_steps=3, outer_step_size=0.8)
    state = play(noisy_quadratics, algorithm, 6, participation=3)
    world = Retyped(noisy_quadratics, participation=3)
    x, c, c_i = scaffold(world, 0.1, 3, 6, eta_g=0.8)
    close(state.server.x.tree, x)
    close(state.server.c.tree, c)
    close(state.memory.tree, c_i)
    far(state.server.x.tree, scaffold(world, 0.1, 3, 6, eta_g=0.8, scaled=False)[0])  # without |S|/N
    far(state.server.x.tree, scaffold(world, 0.1, 3, 6, eta_g=0.8, corrected=False)[0])
    far(state.server.x.tree, scaffold(world, 0.1, 3, 6, eta_g=1.0)[0])


def test_option_one_with_unequal_weights_is_the_papers_rule(x64: None) -> None:
    federation = uneven_quadratics()
    history = run(federation, Scaffold(step_size=0.1, num_local_steps=3, control="I"), 5)
    close(history.params, scaffold(Retyped(federation), 0.1, 3, 5, option="I")[0])
    far(history.params, scaffold(Retyped(federation), 0.1, 3, 5, option="II")[0])
    table = history.frame().iloc[1:]
    assert (table["calls_grad"] == 6 * 3).all()
    assert (table["calls_full_grad"] == 6).all()  # the exact gradient at x, which option II saves


def test_two_vectors_travel_each_way(noisy_quadratics: Federation) -> None:
    history = run(noisy_quadratics, Scaffold(step_size=0.1, num_local_steps=3), 2, participation=3)
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 3 * 2 * 4).all(axis=None)


@pytest.mark.parametrize("participation", [None, 3])
def test_the_servers_control_is_the_mean_of_the_clients(quadratics: Federation, participation: int | None) -> None:
    state = play(quadratics, Scaffold(step_size=0.1, num_local_steps=3), 7, participation=participation)
    close(state.server.c.tree, np.asarray(state.memory.tree).mean(axis=0))
    c, c_i = scaffold(Retyped(quadratics, participation=3), 0.1, 3, 7, scaled=False)[1:]
    far(c, c_i.mean(axis=0))  # negative control: without |S|/N a sampled cohort breaks it


@pytest.mark.parametrize("participation", [None, 3])
def test_it_ends_at_the_optimum_of_clients_that_differ(quadratics: Federation, participation: int | None) -> None:
    # A full round contracts by about 1 - eta K mu = 0.7 and a half cohort refreshes half the controls: 400 is plenty.
    state = play(quadratics, Scaffold(step_size=0.1, num_local_steps=3), 400, participation=participation)
    close(state.server.x.tree, quadratics.facts.x_star)
    far(local_sgd(Retyped(quadratics), 0.1, 3, 100)[0], quadratics.facts.x_star)  # negative control: no correction


@pytest.mark.parametrize("participation", [None, 3])
def test_it_ends_at_the_optimum_of_an_objective_with_unequal_weights(x64: None, participation: int | None) -> None:
    """Needs c to stay sum_i w_i c_i: what a cohort S adds is sum over S of w_i dc_i, which is |S|/N only on average."""
    federation = uneven_quadratics(noise=0)
    state = play(federation, Scaffold(step_size=0.1, num_local_steps=3), 400, participation=participation)
    close(state.server.c.tree, Retyped(federation).weights @ np.asarray(state.memory.tree))
    close(state.server.x.tree, federation.facts.x_star)


def test_at_the_optimum_the_controls_are_the_clients_gradients(quadratics: Federation) -> None:
    world = Retyped(quadratics)
    state = play(quadratics, Scaffold(step_size=0.1, num_local_steps=3), 400)
    close(state.memory.tree, [world.grad(m, quadratics.facts.x_star) for m in range(6)])
    close(state.server.c.tree, np.zeros(4))


def test_one_client_alone_is_never_corrected(x64: None) -> None:
    """c equals its own c_i, so it is gradient descent with K R steps."""
    hessian, optimum = np.diag([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 2.0])
    federation = sj.problems.quadratic(hessian[None], optimum[None])
    x = np.asarray(play(federation, Scaffold(step_size=0.1, num_local_steps=3), 4).server.x.tree)
    close(x, optimum - (1 - 0.1 * np.diag(hessian)) ** 12 * optimum)
