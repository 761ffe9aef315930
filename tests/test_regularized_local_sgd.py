"""The regularized reduction: local SGD on F_m + (lambda/2) ||x - x0||^2, retyped in NumPy."""

import numpy as np
import pytest

from sojourn.algorithms import RegularizedLocalSGD
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, close, far, play, run, uneven_quadratics

ETA, K, R, LAM = 0.1, 3, 5, 0.8


def regularized(
    world: Retyped, lam: float = LAM, anchor: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x_R, the answer, and the plain mean of the ghost iterates. The answer's weights are (1 - eta lam / 2)^(T-1-t)."""
    x, ghosts = world.x0, []
    anchor = world.x0 if anchor is None else anchor
    for r in range(R):
        iterates = np.array([x] * world.num_clients)
        noise = np.array([world.noise(r, m, K) for m in range(world.num_clients)])
        for k in range(K):
            ghosts.append(world.weights @ iterates)
            gradients = np.array([world.grad(m, y) for m, y in enumerate(iterates)]) + noise[:, k]
            iterates = iterates - ETA * (gradients + lam * (iterates - anchor))
        x = world.weights @ iterates
    weights = (1 - ETA * LAM / 2) ** np.arange(K * R - 1, -1, -1)
    return x, np.average(ghosts, axis=0, weights=weights), np.mean(ghosts, axis=0)


ALGORITHM = {"step_size": ETA, "num_local_steps": K, "regularization": LAM}


def test_a_noisy_run_with_unequal_weights_is_the_rule_of_the_thesis(x64: None) -> None:
    federation = uneven_quadratics()
    found = run(federation, RegularizedLocalSGD(**ALGORITHM), R).params
    world = Retyped(federation)
    x, answer, plain_mean = regularized(world)
    close(found, answer)
    far(found, x)
    far(found, plain_mean)
    far(found, regularized(world, lam=0.0)[1])  # without the regularizer
    far(found, regularized(world, anchor=np.zeros(4))[1])  # pulled towards zero instead of the start


def test_the_servers_model_is_the_last_mean_of_the_clients(x64: None) -> None:
    federation = uneven_quadratics()
    close(play(federation, RegularizedLocalSGD(**ALGORITHM), R).server.x.tree, regularized(Retyped(federation))[0])


def test_a_round_costs_one_model_each_way_and_the_last_one_the_sums(x64: None) -> None:
    """The anchor is the first model, which clients hold already."""
    table = run(uneven_quadratics(), RegularizedLocalSGD(**ALGORITHM), R).frame().iloc[1:]
    assert (table["floats_down"] == 6 * 4).all()
    assert table["floats_up"].tolist() == [6 * 4] * (R - 1) + [6 * 4 + 6 * (4 + 1)]


def test_before_the_first_round_the_answer_is_the_starting_point(x64: None) -> None:
    federation = uneven_quadratics()
    table = run(federation, RegularizedLocalSGD(**ALGORITHM), R).frame()
    close(table["distance"].iloc[0], np.linalg.norm(Retyped(federation).x0 - federation.facts.x_star))


def test_a_sampled_cohort_is_refused(quadratics: Federation) -> None:
    """Its clients remember x0 and their sums, so all must take part; asking for fewer must not be passed over."""
    with pytest.raises(SojournError, match="everyone takes part"):
        run(quadratics, RegularizedLocalSGD(**ALGORITHM), 1, participation=3)
