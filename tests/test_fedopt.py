"""FedOpt against an Optax optimizer run by hand on the mean displacement, and against the papers' own rules."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sojourn.algorithms import ALGORITHMS, FedOpt
from sojourn.algorithms.base import Context
from sojourn.algorithms.fedopt import OPTIMIZERS
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from test_local_sgd import Retyped, close, far, local_iterates, play, run, uneven_quadratics

SERVER = {"server_step_size": 0.2, "momentum": 0.8, "second_moment": 0.95, "epsilon": 0.01}
OPTAX = {
    "fedavgm": lambda: optax.sgd(0.2, momentum=0.8),
    "fedadam": lambda: optax.adam(0.2, b1=0.8, b2=0.95, eps=0.01),
    "fedyogi": lambda: optax.yogi(0.2, b1=0.8, b2=0.95, eps=0.01),
    "fedadagrad": lambda: optax.adagrad(0.2, initial_accumulator_value=0.01**2, eps=0.01),
}


def mean_displacement(world: Retyped, round: int, x: np.ndarray, eta: float, K: int) -> np.ndarray:
    ids = world.cohort(round)
    ends = np.array([local_iterates(world, round, m, x, eta, K)[-1] for m in ids])
    return world.shares(ids) @ (ends - x)


def with_optax(
    world: Retyped, eta: float, K: int, R: int, optimizer: optax.GradientTransformation, sign: int = -1
) -> np.ndarray:
    """The optimizer on the pseudo-gradient, which is minus the mean displacement."""
    x = jnp.asarray(world.x0)
    state = optimizer.init(x)
    for r in range(R):
        change, state = optimizer.update(
            sign * jnp.asarray(mean_displacement(world, r, np.asarray(x), eta, K)), state, x
        )
        x = x + change
    return np.asarray(x)


def named(name: str, **options: float) -> FedOpt:
    method = ALGORITHMS[name]
    return method.cls(step_size=0.1, num_local_steps=3, **method.settled, **options)


@pytest.mark.parametrize("name", OPTAX)
def test_the_server_takes_the_optax_step_on_the_pseudo_gradient(quadratics: Federation, name: str) -> None:
    found = play(quadratics, named(name, **SERVER), 6).server.x.tree
    world = Retyped(quadratics)
    close(found, with_optax(world, 0.1, 3, 6, OPTAX[name]()))
    far(found, with_optax(world, 0.1, 3, 6, OPTAX[name](), sign=1))  # the displacement itself taken for the gradient
    for other in set(OPTAX) - {name}:
        far(found, with_optax(world, 0.1, 3, 6, OPTAX[other]()))


def test_a_noisy_run_with_unequal_weights_and_a_sampled_cohort_takes_the_same_steps(x64: None) -> None:
    federation = uneven_quadratics()
    history = run(federation, named("fedadam", **SERVER), 5, participation=3)
    close(history.params, with_optax(Retyped(federation, participation=3), 0.1, 3, 5, OPTAX["fedadam"]()))
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 3 * 4).all(axis=None)


def clipped(step_size: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(step_size, momentum=0.5, nesterov=True))


def test_a_users_function_of_the_step_size_is_an_optimizer(quadratics: Federation) -> None:
    algorithm = FedOpt(step_size=0.1, num_local_steps=3, optimizer=clipped, server_step_size=0.7)
    found = play(quadratics, algorithm, 6).server.x.tree
    close(found, with_optax(Retyped(quadratics), 0.1, 3, 6, clipped(0.7)))
    far(found, with_optax(Retyped(quadratics), 0.1, 3, 6, optax.sgd(0.7)))


def by_hand(world: Retyped, R: int, step: Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
    x, state = world.x0, {}
    for r in range(R):
        x = x + step(mean_displacement(world, r, x, 0.1, 3), state)
    return x


def test_fedavgm_is_hsus_server_momentum(quadratics: Federation) -> None:
    """v = beta v + delta, x = x + eta v."""

    def step(delta: np.ndarray, state: dict[str, np.ndarray]) -> np.ndarray:
        state["v"] = 0.8 * state.get("v", 0) + delta
        return 0.2 * state["v"]

    close(play(quadratics, named("fedavgm", **SERVER), 6).server.x.tree, by_hand(Retyped(quadratics), 6, step))


def test_fedadam_is_reddis_rule_with_bias_corrected_moments(quadratics: Federation) -> None:
    def step(delta: np.ndarray, state: dict[str, np.ndarray], corrected: bool = True) -> np.ndarray:
        t = state["t"] = state.get("t", 0) + 1
        state["m"] = 0.8 * state.get("m", 0) + 0.2 * delta
        state["v"] = 0.95 * state.get("v", 0) + 0.05 * delta**2
        m, v = (state["m"] / (1 - 0.8**t), state["v"] / (1 - 0.95**t)) if corrected else (state["m"], state["v"])
        return 0.2 * m / (np.sqrt(v) + 0.01)

    found = play(quadratics, named("fedadam", **SERVER), 6).server.x.tree
    close(found, by_hand(Retyped(quadratics), 6, step))
    far(found, by_hand(Retyped(quadratics), 6, lambda delta, state: step(delta, state, corrected=False)))


def test_fedadagrad_has_tau_inside_the_root_as_optax_has_and_reddis_rule_has_not(quadratics: Federation) -> None:
    """v starts at tau^2; v = v + delta^2; x = x + eta delta / sqrt(v + tau), where the paper has sqrt(v) + tau."""

    def step(delta: np.ndarray, state: dict[str, np.ndarray], inside: bool = True) -> np.ndarray:
        v = state["v"] = state.get("v", 0.01**2) + delta**2
        return 0.2 * delta / (np.sqrt(v + 0.01) if inside else np.sqrt(v) + 0.01)

    found = play(quadratics, named("fedadagrad", **SERVER), 6).server.x.tree
    close(found, by_hand(Retyped(quadratics), 6, step))
    far(found, by_hand(Retyped(quadratics), 6, lambda delta, state: step(delta, state, inside=False)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_named_optimizer_moves_the_server_with_its_clients(x64: None, optimizer: str) -> None:
    algorithm = FedOpt(step_size=0.1, optimizer=optimizer)
    displacement = np.array([1.0, -2.0, 3.0, 0.5])
    server = algorithm.init_server(Vec(jnp.ones(4)))
    for _ in range(2):  # some optimizers only gather in their first step
        server = algorithm.aggregate(server, Vec(jnp.asarray(displacement)), Context(jnp.asarray(0), 1))
    assert (np.asarray(server.x.tree) - 1) @ displacement > 0
