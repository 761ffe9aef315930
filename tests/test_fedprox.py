"""FedProx against Algorithm 2 of its paper retyped in NumPy, with even and uneven amounts of local work."""

import jax
import numpy as np
import pytest

from sojourn.algorithms import FedProx
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key
from test_local_sgd import Retyped, client_key, close, far, play, run, uneven_quadratics


def amount_of_work(world: Retyped, round: int, client: int, least: int, most: int) -> int:
    """The number of steps that the engine draws for a straggler, uniform on least..most."""
    key = purpose_key(client_key(world.seed, round, client), "amount of work")
    return int(jax.random.randint(key, (), least, most + 1, np.int32))


def fedprox(
    world: Retyped, eta: float, K: int, R: int, mu: float, least: int | None = None, equal_shares: bool = False
) -> tuple[np.ndarray, list[int]]:
    """x_R and the number of local steps of every round: steps on F_m(y) + (mu/2) ||y - x||^2 from y = x."""
    x, work = world.x0, []
    for r in range(R):
        ids = world.cohort(r)
        steps = [K if least is None else amount_of_work(world, r, m, least, K) for m in ids]
        ends = []
        for m, number in zip(ids, steps, strict=True):
            y = x
            for z in world.noise(r, m, number):
                y = y - eta * (world.grad(m, y) + z + mu * (y - x))
            ends.append(y)
        x = np.mean(ends, axis=0) if equal_shares else world.shares(ids) @ np.array(ends)
        work.append(sum(steps))
    return x, work


def test_a_noisy_run_with_unequal_weights_and_a_sampled_cohort_is_the_papers_rule(x64: None) -> None:
    federation = uneven_quadratics()
    history = run(federation, FedProx(step_size=0.1, num_local_steps=3, proximal_weight=1.5), 5, participation=3)
    world = Retyped(federation, participation=3)
    close(history.params, fedprox(world, 0.1, 3, 5, 1.5)[0])
    far(history.params, fedprox(world, 0.1, 3, 5, 0.0)[0])  # without the proximal term
    far(history.params, fedprox(world, 0.1, 3, 5, 1.5, equal_shares=True)[0])  # without the weights
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 3 * 4).all(axis=None)


def test_stragglers_do_the_work_they_drew_and_it_is_kept(noisy_quadratics: Federation) -> None:
    algorithm = FedProx(step_size=0.1, num_local_steps=6, proximal_weight=0.5, min_local_steps=1)
    history = run(noisy_quadratics, algorithm, 4, participation=3)
    world = Retyped(noisy_quadratics, participation=3)
    x, work = fedprox(world, 0.1, 6, 4, 0.5, least=1)
    close(history.params, x)
    far(history.params, fedprox(world, 0.1, 6, 4, 0.5)[0])  # everyone doing all the steps
    assert history.frame()["local_steps"].tolist()[1:] == work
    assert history.frame()["calls_grad"].tolist()[1:] == work


def test_amounts_of_work_reach_both_ends_and_nothing_else(x64: None) -> None:
    world = Retyped(uneven_quadratics())
    amounts = {amount_of_work(world, r, m, 2, 4) for r in range(10) for m in range(6)}
    assert amounts == {2, 3, 4}  # sixty draws miss one of three with probability 1e-10


def test_many_local_steps_solve_the_proximal_problem(quadratics: Federation) -> None:
    """In the limit each client answers argmin F_m(y) + (mu/2) ||y - x||^2 = (A_m + mu)^-1 (A_m x_m + mu x)."""
    # Contracts by 1 - 0.15 (1 + 2) at least: 1e-16 after sixty steps.
    x = play(quadratics, FedProx(step_size=0.15, num_local_steps=60, proximal_weight=2.0), 2).server.x.tree
    world = Retyped(quadratics)
    expected = world.x0
    for _ in range(2):
        right = np.einsum("mij,mj->mi", world.hessians, world.optima) + 2.0 * expected
        expected = np.linalg.solve(world.hessians + 2.0 * np.eye(4), right[..., None])[..., 0].mean(axis=0)
    close(x, expected)


def test_more_minimal_than_maximal_steps_are_refused() -> None:
    with pytest.raises(SojournError, match="min_local_steps = 4"):
        FedProx(step_size=0.1, num_local_steps=3, min_local_steps=4)
