"""Local SGD against equations 2.4 and 2.5 retyped in NumPy, its four outputs, and its fixed point.

`Retyped` and the functions after it serve the test files of the other methods too.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn import History
from sojourn.algorithms import ALGORITHMS, LocalSGD
from sojourn.algorithms.base import Algorithm, Who
from sojourn.algorithms.descent import descend
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.oracle import Objective
from sojourn.driver import make_job
from sojourn.engine.participation import members
from sojourn.engine.rounds import RunState, start

# Both sides work in float64 on numbers of order one, for some ten rounds of a few steps of a contraction: they differ
# by rounding, a few 1e-16 per operation.
ROUNDING = 1e-12


def client_key(seed: int, round: int, client: int, purpose: str = "local") -> jax.Array:
    """The key of a client in a round, folded as the engine's contract says: by round, by client, by purpose."""
    return purpose_key(jax.random.fold_in(jax.random.fold_in(root_key(seed), round), client), purpose)


@jax.jit
def _noise_of_eight_steps(objective: Objective, client: jax.Array, key: jax.Array) -> jax.Array:
    """The steps of a visit draw together with fold_in(key, 0). Always eight of them, so that this compiles once."""
    return objective.draw(client, jax.random.fold_in(key, 0), 8, 1)


@functools.partial(jax.jit, static_argnames=("num_clients", "size"))
def _cohort(round_key: jax.Array, num_clients: int, size: int) -> jax.Array:
    return members(Who.COHORT, round_key, num_clients, size, "local")


def cohort_of(seed: int, round: int, num_clients: int, participation: int | None) -> list[int]:
    """The clients that the engine asks in a round."""
    round_key = jax.random.fold_in(root_key(seed), round)
    return np.asarray(_cohort(round_key, num_clients, participation or num_clients)).tolist()


class Retyped:
    """What a rerun in NumPy needs: the clients' quadratics, and the very cohorts and noise that the engine draws."""

    def __init__(self, federation: Federation, *, seed: int = 0, participation: int | None = None) -> None:
        clients = federation.clients
        number = clients.num_clients
        self.objective, self.seed, self.num_clients = clients.objective, seed, number
        self.participation = participation
        self.noisy = clients.batch_size is not None
        self.hessians, self.optima = np.asarray(self.objective.hessians), np.asarray(self.objective.optima)
        self.weights = np.full(number, 1 / number) if clients.weights is None else np.asarray(clients.weights)
        self.x0 = np.asarray(federation.x0.tree)

    def cohort(self, round: int) -> list[int]:
        return cohort_of(self.seed, round, self.num_clients, self.participation)

    def shares(self, ids: list[int]) -> np.ndarray:
        """The cohort's weights in the objective, summing to one."""
        return self.weights[ids] / self.weights[ids].sum()

    def one(self, round: int, purpose: str) -> int:
        """The client that an exchange of one client asks."""
        return int(members(Who.ONE, jax.random.fold_in(root_key(self.seed), round), self.num_clients, 1, purpose)[0])

    def noise(self, round: int, client: int, num_steps: int, purpose: str = "local") -> np.ndarray:
        """(num_steps, d): what is added to the client's exact gradients in its steps of the round."""
        if not self.noisy:
            return np.zeros((num_steps, len(self.x0)))
        drawn = _noise_of_eight_steps(self.objective, client, client_key(self.seed, round, client, purpose))
        return np.asarray(drawn)[:num_steps]

    def grad(self, client: int, x: np.ndarray) -> np.ndarray:
        return self.hessians[client] @ (x - self.optima[client])


def uneven_quadratics(noise: float = 0.5) -> Federation:
    """Six noisy quadratics with unequal weights, started away from zero."""
    start = np.array([1.0, -2.0, 0.5, 3.0])
    return sj.problems.quadratic(*random_quadratics(), noise=noise, weights=[1, 2, 3, 4, 5, 6], x0=start)


def run(federation: Federation, algorithm: Algorithm, rounds: int, **rest: object) -> History:
    return sj.run(federation, algorithm, rounds, progress=False, **rest)


def play(federation: Federation, algorithm: Algorithm, rounds: int, *, participation: int | None = None) -> RunState:
    """The state of a run with seed 0 after some rounds: what `run` does not return."""
    job = make_job(
        federation, algorithm, rounds, engine="compiled", participation=participation, eval_every=rounds, record=()
    )
    state = start(algorithm, federation, root_key(0))
    return job.engine.advance(algorithm, federation.clients, state, job.course(rounds), job.plan)[0]


def close(found: object, expected: object, atol: float = ROUNDING) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=atol)


def far(found: object, other: object) -> None:
    """Negative control: the two differ by more than a thousand times what rounding could do, in fact visibly."""
    assert np.abs(np.asarray(found) - np.asarray(other)).max() > 1e-3


# The method, retyped.


def local_iterates(world: Retyped, round: int, client: int, x: np.ndarray, eta: float, K: int) -> np.ndarray:
    """(K + 1, d): the client's iterates of the round, the first being the server's model."""
    path = [x]
    for z in world.noise(round, client, K):
        path.append(path[-1] - eta * (world.grad(client, path[-1]) + z))
    return np.array(path)


def local_sgd(
    world: Retyped, eta: float, K: int, R: int, beta: float = 1.0, equal_shares: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """x_R, and the ghost iterates x_0, ..., x_{KR-1}: means over those taking part of their iterates before a step."""
    x, ghosts = world.x0, []
    for r in range(R):
        ids = world.cohort(r)
        shares = np.full(len(ids), 1 / len(ids)) if equal_shares else world.shares(ids)
        paths = np.array([local_iterates(world, r, m, x, eta, K) for m in ids])
        ghosts.extend(np.tensordot(shares, paths[:, :K], axes=1))
        x = x + beta * shares @ (paths[:, K] - x)
    return x, np.array(ghosts)


def test_local_gd_is_the_rule_of_the_thesis(quadratics: Federation) -> None:
    found = run(quadratics, LocalSGD(step_size=0.2, num_local_steps=3, outer_step_size=1.3), 5).params
    close(found, local_sgd(Retyped(quadratics), 0.2, 3, 5, beta=1.3)[0])


def test_a_noisy_run_with_unequal_weights_and_a_sampled_cohort_is_the_rule_of_the_thesis(x64: None) -> None:
    federation = uneven_quadratics()
    algorithm = LocalSGD(step_size=0.1, num_local_steps=3, outer_step_size=1.5)
    found = run(federation, algorithm, 6, seed=7, participation=3).params
    world = Retyped(federation, seed=7, participation=3)
    close(found, local_sgd(world, 0.1, 3, 6, beta=1.5)[0])
    far(found, local_sgd(world, 0.1, 3, 6, beta=1.0)[0])  # without the outer step
    far(found, local_sgd(world, 0.1, 3, 6, beta=1.5, equal_shares=True)[0])  # without the weights
    far(found, local_sgd(Retyped(federation, seed=8, participation=3), 0.1, 3, 6, beta=1.5)[0])  # other noise


def test_a_round_costs_one_model_each_way_and_k_gradients_per_participant(x64: None) -> None:
    table = run(uneven_quadratics(), LocalSGD(step_size=0.1, num_local_steps=3), 2, participation=3).frame().iloc[1:]
    assert (table[["floats_down", "floats_up"]] == 3 * 4).all(axis=None)
    assert (table["calls_grad"] == 3 * 3).all()


# Outputs: weights of the ghost iterates, spec section 1.1 (b) to (d).

ETA, K, R = 0.1, 3, 5
MU, H, TAU = 1.0, 4.0, 3.0


def output_weights(output: str) -> np.ndarray:
    t = np.arange(K * R)
    if output == "uniform":
        return np.ones(K * R)
    if output == "exp":
        return (1 - ETA * MU / 2) ** (K * R - 1 - t)
    kept = (1 - ETA * MU) ** K
    rho4 = kept + (1 - kept) * (8 * ETA**2 * H * TAU**2 * K**2 / MU) * (1 - ETA * MU) ** (K - 2)
    return rho4 ** (R - 1 - t // K) * (1 - ETA * MU) ** (K - 1 - t % K)


def with_output(output: str) -> LocalSGD:
    return LocalSGD(
        step_size=ETA, num_local_steps=K, output=output,
        strong_convexity=MU, smoothness=H, hessian_heterogeneity=TAU,
    )  # fmt: skip


OUTPUTS = ("uniform", "exp", "coupled")


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs_are_the_weighted_means_of_all_ghost_iterates(x64: None, output: str) -> None:
    federation = uneven_quadratics(noise=0)
    found = run(federation, with_output(output), R).params
    ghosts = local_sgd(Retyped(federation), ETA, K, R)[1]
    close(found, np.average(ghosts, axis=0, weights=output_weights(output)))
    for other in set(OUTPUTS) - {output}:
        far(found, np.average(ghosts, axis=0, weights=output_weights(other)))


def test_the_uniform_output_of_sampled_cohorts_is_the_mean_of_their_ghost_iterates(quadratics: Federation) -> None:
    found = run(quadratics, with_output("uniform"), R, participation=3).params
    ghosts = local_sgd(Retyped(quadratics, participation=3), ETA, K, R)[1]
    close(found, np.average(ghosts, axis=0, weights=output_weights("uniform")))


@pytest.mark.parametrize("output", ["exp", "coupled"])
def test_decaying_outputs_of_sampled_cohorts_are_refused(quadratics: Federation, output: str) -> None:
    """A client could only decay its sum by visit, where the theorems' weights decay by round."""
    with pytest.raises(SojournError, match="everyone"):
        run(quadratics, with_output(output), R, participation=3)


def test_before_the_first_round_an_averaging_output_is_the_starting_point(x64: None) -> None:
    federation = uneven_quadratics(noise=0)
    table = run(federation, with_output("uniform"), R).frame()
    world = Retyped(federation)
    away = world.x0 - world.optima
    expected = world.weights @ np.einsum("mi,mij,mj->m", away, world.hessians, away) / 2
    close(table["loss"].iloc[0], expected)


def test_averaging_outputs_send_one_more_vector_and_its_weight_in_the_last_round_only(x64: None) -> None:
    table = run(uneven_quadratics(noise=0), with_output("uniform"), R).frame().iloc[1:]
    assert (table["floats_down"] == 6 * 4).all()
    assert table["floats_up"].tolist() == [6 * 4] * (R - 1) + [6 * 4 + 6 * (4 + 1)]


def test_the_coupled_output_without_strong_convexity_is_refused() -> None:
    """Its weights divide by mu."""
    with pytest.raises(SojournError, match="strong_convexity"):
        LocalSGD(step_size=0.1, output="coupled")


# Where it ends: theory T3.


def fixed_point(world: Retyped, eta: float, K: int) -> np.ndarray:
    """x_inf = C^-1 mean(C_m x_m*), C_m = I - (I - eta A_m)^K."""
    identity = np.eye(len(world.x0))
    C_m = np.array([identity - np.linalg.matrix_power(identity - eta * A, K) for A in world.hessians])
    mean_of_targets = np.einsum("m,mij,mj->i", world.weights, C_m, world.optima)
    return np.linalg.solve(np.tensordot(world.weights, C_m, axes=1), mean_of_targets)


@pytest.mark.parametrize("outer_step_size", [0.7, 1.0, 1.1])
def test_local_gd_ends_at_its_fixed_point_whatever_the_outer_step(
    quadratics: Federation, outer_step_size: float
) -> None:
    # The slowest direction contracts by 1 - 0.7 (1 - 0.8^3) = 0.66 a round: 1e-18 after a hundred.
    x = play(quadratics, LocalSGD(step_size=0.2, num_local_steps=3, outer_step_size=outer_step_size), 100).server.x.tree
    close(x, fixed_point(Retyped(quadratics), 0.2, 3))
    far(x, quadratics.facts.x_star)  # the bias of local steps on clients that differ


def test_with_one_local_step_the_fixed_point_is_the_optimum(quadratics: Federation) -> None:
    close(play(quadratics, LocalSGD(step_size=0.2, num_local_steps=1), 150).server.x.tree, quadratics.facts.x_star)


# Names of the registry that are local SGD with something settled.


def test_one_shot_averaging_is_the_mean_of_the_clients_own_runs(quadratics: Federation) -> None:
    method = ALGORITHMS["one-shot-averaging"]
    assert method.max_rounds == 1
    x = play(quadratics, method.cls(step_size=0.1, num_local_steps=3, **method.settled), 1).server.x.tree
    world = Retyped(quadratics)
    close(x, np.mean([local_iterates(world, 0, m, world.x0, 0.1, 3)[-1] for m in range(6)], axis=0))


def test_synchronous_sgd_is_gradient_descent_on_the_mean_of_the_clients(quadratics: Federation) -> None:
    method = ALGORITHMS["synchronous-sgd"]
    found = play(quadratics, method.cls(step_size=0.1, **method.settled), 4).server.x.tree
    world = Retyped(quadratics)
    x = world.x0
    for _ in range(4):
        x = x - 0.1 * np.mean([world.grad(m, x) for m in range(6)], axis=0)
    close(found, x)


# grad_scale: the constant before Deng and Mahdavi's gradients.


@pytest.mark.parametrize("output", ["last", *OUTPUTS])
def test_scaled_gradients_are_a_scaled_step(x64: None, output: str) -> None:
    federation = uneven_quadratics()

    def end(step_size: float, **scale: float) -> np.ndarray:
        algorithm = LocalSGD(
            step_size=step_size, num_local_steps=K, output=output,
            strong_convexity=MU, smoothness=H, hessian_heterogeneity=TAU, **scale,
        )  # fmt: skip
        return np.asarray(run(federation, algorithm, R).params)

    close(end(0.02, grad_scale=5.0), end(0.1))
    far(end(0.02, grad_scale=5.0), end(0.02))


def test_gradients_are_multiplied_as_the_paper_writes_it(quadratics: Federation) -> None:
    """W_i = W_i - eta (c grad), with c = 5 in place of a client's number of samples."""
    world = Retyped(quadratics)
    x = world.x0
    for _ in range(4):
        ends = []
        for m in range(6):
            y = x
            for _ in range(3):
                y = y - 0.02 * (5 * world.grad(m, y))
            ends.append(y)
        x = np.mean(ends, axis=0)
    close(run(quadratics, LocalSGD(step_size=0.02, num_local_steps=3, grad_scale=5.0), 4).params, x)


def test_a_scale_of_one_costs_nothing_in_the_local_loop(quadratics: Federation) -> None:
    """The product with the step is taken once per visit, so a step has as many multiplications as plain descent."""
    oracle = quadratics.clients.oracle(jnp.zeros((), jnp.int32))
    key = jax.random.key(0)

    def products(work: Callable[..., Any]) -> int:
        """Multiplications in the body of the loop."""
        (loop,) = (e for e in jax.make_jaxpr(work)(quadratics.x0).eqns if e.primitive.name == "scan")
        return sum(e.primitive.name == "mul" for e in loop.params["jaxpr"].eqns)

    algorithm = LocalSGD(step_size=0.1, num_local_steps=3)
    mine = products(lambda x: algorithm.local(x, (), oracle, key)[0])
    plain = products(lambda x: descend(oracle, x, algorithm.step_size, 3, key))
    every = products(lambda x: descend(oracle, x, algorithm.step_size, 3, key, lambda g, y: algorithm.grad_scale * g))
    assert 0 < mine == plain < every
