"""Single-machine SGD: T = K R steps of client 0 alone, retyped in NumPy."""

import numpy as np

from sojourn.algorithms import SingleMachineSGD
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, close, far, play, run, uneven_quadratics


def sgd(world: Retyped, client: int, eta: float, K: int, R: int) -> np.ndarray:
    x = world.x0
    for r in range(R):
        for z in world.noise(r, client, K):
            x = x - eta * (world.grad(client, x) + z)
    return x


def test_it_is_sgd_on_the_first_client_alone(x64: None) -> None:
    federation = uneven_quadratics()
    history = run(federation, SingleMachineSGD(step_size=0.1, num_local_steps=3), 4)
    world = Retyped(federation)
    close(history.params, sgd(world, 0, 0.1, 3, 4))
    far(history.params, sgd(world, 1, 0.1, 3, 4))


def test_nothing_is_ever_sent(x64: None) -> None:
    table = run(uneven_quadratics(), SingleMachineSGD(step_size=0.1, num_local_steps=3), 4).frame().iloc[1:]
    assert (table[["floats_down", "floats_up", "bytes_down", "bytes_up"]] == 0).all(axis=None)
    assert (table["calls_grad"] == 3).all()


def test_on_clients_that_differ_it_ends_at_its_own_optimum_and_not_at_the_common_one(quadratics: Federation) -> None:
    # Contracts by at most (1 - 0.2)^3 a round, as every eigenvalue is at least one: 1e-17 after sixty.
    x = play(quadratics, SingleMachineSGD(step_size=0.2, num_local_steps=3), 60).server.x.tree
    close(x, Retyped(quadratics).optima[0])
    far(x, quadratics.facts.x_star)
