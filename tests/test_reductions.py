"""Methods that are the same method: spec section 7; and what every registered method sends: spec section 8."""

from typing import Any

import jax
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import (
    ACSA,
    ALGORITHMS,
    FedAMS,
    FedAvg,
    FedOpt,
    FedProx,
    LocalACSA,
    LocalSGD,
    MinibatchSGD,
    RegularizedLocalSGD,
    Scaffold,
    SingleMachineSGD,
)
from sojourn.algorithms.base import Algorithm, Exchange, Who
from sojourn.core.federation import Federation
from sojourn.core.options import REQUIRED, options_of
from sojourn.engine.accounting import Wire, one_memory, wire_of
from test_local_sgd import close, far, play, run

# Both sides do the same arithmetic on numbers of order one in another order: a few units in the last place of float64.
SAME = 1e-14


def last_model(federation: Federation, algorithm: Algorithm, rounds: int = 4, **rest: Any) -> np.ndarray:
    return np.asarray(algorithm.model(play(federation, algorithm, rounds, **rest).server).tree)


@pytest.fixture
def local(quadratics: Federation) -> np.ndarray:
    """Local SGD with a sampled cohort."""
    return last_model(quadratics, LocalSGD(step_size=0.1, num_local_steps=3), participation=3)


def test_fedprox_without_its_term_is_local_sgd(quadratics: Federation, local: np.ndarray) -> None:
    def proximal(weight: float) -> np.ndarray:
        algorithm = FedProx(step_size=0.1, num_local_steps=3, proximal_weight=weight)
        return last_model(quadratics, algorithm, participation=3)

    close(proximal(0.0), local, SAME)
    far(proximal(0.5), local)


def test_fedavg_on_clients_of_equal_size_is_local_sgd(quadratics: Federation, local: np.ndarray) -> None:
    close(last_model(quadratics, FedAvg(step_size=0.1, num_local_steps=3), participation=3), local, SAME)


def test_fedopt_with_plain_sgd_of_step_one_is_local_sgd(quadratics: Federation, local: np.ndarray) -> None:
    def at_server(momentum: float) -> np.ndarray:
        algorithm = FedOpt(
            step_size=0.1, num_local_steps=3, optimizer="sgd", server_step_size=1.0, momentum=momentum
        )  # fmt: skip
        return last_model(quadratics, algorithm, participation=3)

    close(at_server(0.0), local, SAME)
    far(at_server(0.5), local)


def test_fed_ams_without_momentum_and_with_a_denominator_that_nothing_reaches_is_local_sgd(
    quadratics: Federation, local: np.ndarray
) -> None:
    def adaptive(momentum: float, floor: float) -> np.ndarray:
        algorithm = FedAMS(
            step_size=0.1 * floor**0.5, num_local_steps=3, momentum=momentum, initial_second_moment=floor, epsilon=1e-30
        )
        return last_model(quadratics, algorithm, participation=3)

    close(adaptive(0.0, 1e4), local, SAME)
    far(adaptive(0.5, 1e4), local)
    far(adaptive(0.0, 1e-4), local)


def test_local_sgd_with_one_step_is_minibatch_sgd_with_one_gradient_per_client(noisy_quadratics: Federation) -> None:
    def minibatch(step_size: float) -> np.ndarray:
        algorithm = MinibatchSGD(step_size=step_size, num_local_steps=1)
        return last_model(noisy_quadratics, algorithm, participation=3)

    one_step = last_model(noisy_quadratics, LocalSGD(step_size=0.1, num_local_steps=1), participation=3)
    close(minibatch(0.1), one_step, SAME)
    far(minibatch(0.2), one_step)


def test_local_ac_sa_with_one_step_is_ac_sa_with_one_gradient_per_client(quadratics: Federation) -> None:
    numbers = {"smoothness": 8.0, "strong_convexity": 1.0, "num_local_steps": 1}
    close(last_model(quadratics, LocalACSA(**numbers)), last_model(quadratics, ACSA(**numbers)), SAME)


def test_scaffold_on_identical_clients_with_exact_gradients_is_local_gd(quadratics: Federation) -> None:
    hessians, optima = random_quadratics(num_clients=1)
    identical = sj.problems.quadratic(np.repeat(hessians, 6, axis=0), np.repeat(optima, 6, axis=0))
    numbers = {"step_size": 0.1, "num_local_steps": 3}
    # the controls are differences of models over eta K: their rounding is three times larger
    close(last_model(identical, Scaffold(**numbers)), last_model(identical, LocalSGD(**numbers)), 4 * SAME)
    far(last_model(quadratics, Scaffold(**numbers)), last_model(quadratics, LocalSGD(**numbers)))


def test_the_regularized_reduction_is_local_sgd_on_the_regularized_clients(x64: None) -> None:
    """F_m + (lam/2) ||x - x0||^2 is again a quadratic: Hessian A_m + lam, optimum (A_m + lam)^-1 (A_m x_m + lam x0)."""
    lam, x0 = 0.8, np.array([1.0, -2.0, 0.5, 3.0])
    hessians, optima = random_quadratics()
    shifted = hessians + lam * np.eye(4)
    targets = np.linalg.solve(shifted, (np.einsum("mij,mj->mi", hessians, optima) + lam * x0)[..., None])[..., 0]
    by_hand = sj.problems.quadratic(shifted, targets, x0=x0)
    own = sj.problems.quadratic(hessians, optima, x0=x0)
    steps = {"step_size": 0.1, "num_local_steps": 3}
    found = run(own, RegularizedLocalSGD(**steps, regularization=lam), 4).params
    expected = run(by_hand, LocalSGD(**steps, output="exp", strong_convexity=lam), 4).params
    close(found, expected)  # the solved targets carry rounding of their own
    far(found, run(own, LocalSGD(**steps, output="exp", strong_convexity=lam), 4).params)


def test_local_sgd_of_one_client_is_single_machine_sgd(quadratics: Federation, local: np.ndarray) -> None:
    hessians, optima = random_quadratics()
    alone = sj.problems.quadratic(hessians[:1], optima[:1])
    numbers = {"step_size": 0.1, "num_local_steps": 3}
    found = last_model(quadratics, SingleMachineSGD(**numbers))
    close(found, last_model(alone, LocalSGD(**numbers)), SAME)
    far(found, local)


# What travels.

NEEDED = {"step_size": 0.05, "smoothness": 8.0, "strong_convexity": 1.0}

# Vectors of the model's size down to and up from every participant, for each exchange of a round: spec section 8.
VECTORS = {
    "local-sgd": [(1, 1)],
    "fedavg": [(1, 1)],
    "minibatch-sgd": [(1, 1)],
    "single-machine-sgd": [(0, 0)],
    "one-shot-averaging": [(1, 1)],
    "synchronous-sgd": [(1, 1)],
    "ac-sa": [(1, 1)],
    "fedac": [(2, 2)],
    "local-ac-sa": [(2, 2)],
    "regularized-local-sgd": [(1, 1)],
    "fedprox": [(1, 1)],
    "scaffold": [(2, 2)],
    "fedopt": [(1, 1)],
    "fedavgm": [(1, 1)],
    "fedadam": [(1, 1)],
    "fedyogi": [(1, 1)],
    "fedadagrad": [(1, 1)],
    "fed-ams": [(2, 2)],
    "fed-lamb": [(2, 2)],
    "ce-lsgd": [(1, 1), (1, 1)],
    "ce-lgd": [(1, 1), (1, 1)],
    "mb-storm": [(1, 1)],
    "mb-sarah": [(1, 1)],
    "bvr-l-sgd": [(1, 1), (1, 1)],
    "stem": [(2, 2)],
    "mime-mvr": [(2, 2), (2, 1)],
    "mime-lite": [(3, 3)],
    "fedasync": [(1, 1)],
    "fedbuff": [(1, 1)],
    "asynchronous-fedavg": [(1, 1)],
}


def registered(name: str) -> Algorithm:
    """The method with its defaults, and numbers for the options that have none."""
    method = ALGORITHMS[name]
    options = options_of(method.cls)
    missing = {name: NEEDED[name] for name, (_, default) in options.items() if default is REQUIRED}
    return method.cls(**{**missing, **method.settled})


def wires(algorithm: Algorithm, federation: Federation) -> list[Wire]:
    server = jax.eval_shape(algorithm.init_server, federation.x0)
    memory = one_memory(algorithm, federation.x0)
    return [wire_of(exchange, federation.clients, server, memory) for exchange in algorithm.exchanges()]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_floats_of_a_round_are_those_of_the_specification(name: str) -> None:
    assert name in VECTORS, f"give {name}'s row of spec section 8"
    federation = sj.problems.quadratic(*random_quadratics(dimension=7), noise=0.5)
    counted = [(wire.floats_down, wire.floats_up) for wire in wires(registered(name), federation)]
    assert counted == [(7 * down, 7 * up) for down, up in VECTORS[name]]


def test_a_message_that_carries_more_is_counted() -> None:
    """Negative control of the table: local SGD that also sends its model back and forth."""

    class Chatty(LocalSGD):
        def exchanges(self) -> tuple[Exchange, ...]:
            def local(down: Any, memory: Any, oracle: Any, key: Any) -> Any:
                up, memory, info = self.local(down[0], memory, oracle, key)
                return (up, down[0]), memory, info

            return (Exchange(lambda s: (s.x, s.x), local, lambda s, up, c: self.aggregate(s, up[0], c), Who.COHORT),)

    federation = sj.problems.quadratic(*random_quadratics(dimension=7), noise=0.5)
    (wire,) = wires(Chatty(step_size=0.1), federation)
    assert (wire.floats_down, wire.floats_up) == (14, 14)
