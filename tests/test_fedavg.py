"""FedAvg against Algorithm 1 of its papers retyped in NumPy: least squares on clients of different sizes."""

import jax
import jax.numpy as jnp
import numpy as np

import sojourn as sj
from sojourn.algorithms import FedAvg
from sojourn.core.federation import Federation
from test_local_sgd import Retyped, client_key, close, cohort_of, far, local_sgd, play, run, uneven_quadratics

SIZES = [3, 8, 20, 5, 13, 1]


def half_mean_square(theta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    features, targets = batch
    return jnp.mean((features @ theta - targets) ** 2) / 2


def client_data() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in SIZES]


def ragged(batch_size: int | None = None) -> Federation:
    return sj.federation(half_mean_square, np.zeros(4), client_data(), batch_size=batch_size, weights="size")


def gradient(theta: np.ndarray, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of (1 / 2m) ||X theta - y||^2 over the m rows given."""
    return features.T @ (features @ theta - targets) / len(targets)


def drawn_batch(federation: Federation, round: int, client: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that the engine draws in a step with seed 0, out of those of the client."""
    objective = federation.clients.objective
    key = jax.random.fold_in(client_key(0, round, client), 0)
    drawn = objective.draw(objective.open(jnp.asarray(client)), key, step + 1, federation.clients.batch_size)
    features, targets = (np.asarray(part)[step] for part in drawn)
    assert set(targets) <= set(client_data()[client][1])
    return features, targets


def fedavg(
    federation: Federation, eta: float, r: int, T: int, participation: int | None = None,
    equal_shares: bool = False, all_rows: bool = False,
) -> np.ndarray:  # fmt: skip
    """theta_bar = sum_k (N_k / N) theta_k over those taking part, each after r steps of its own."""
    theta_bar, data, sizes = np.zeros(4), client_data(), np.array(SIZES, float)
    all_rows = all_rows or federation.clients.batch_size is None
    for t in range(T):
        ids, ends = cohort_of(0, t, len(SIZES), participation), []
        for k in ids:
            theta = theta_bar
            for v in range(r):
                batch = data[k] if all_rows else drawn_batch(federation, t, k, v)
                theta = theta - eta * gradient(theta, *batch)
            ends.append(theta)
        shares = np.full(len(ids), 1 / len(ids)) if equal_shares else sizes[ids] / sizes[ids].sum()
        theta_bar = shares @ np.array(ends)
    return theta_bar


def test_fedavg_gd_averages_models_by_numbers_of_samples(x64: None) -> None:
    federation = ragged()
    found = run(federation, FedAvg(step_size=0.1, num_local_steps=3), 4).params
    close(found, fedavg(federation, 0.1, 3, 4))
    far(found, fedavg(federation, 0.1, 3, 4, equal_shares=True))


def test_fedavg_sgd_on_a_sampled_cohort_weighs_by_the_cohorts_samples(x64: None) -> None:
    federation = ragged(batch_size=2)
    found = run(federation, FedAvg(step_size=0.1, num_local_steps=2), 3, participation=3).params
    close(found, fedavg(federation, 0.1, 2, 3, participation=3))
    far(found, fedavg(federation, 0.1, 2, 3, participation=3, equal_shares=True))
    far(found, fedavg(federation, 0.1, 2, 3, participation=3, all_rows=True))


def test_one_local_step_is_gradient_descent_on_the_pooled_least_squares(x64: None) -> None:
    found = play(ragged(), FedAvg(step_size=0.1, num_local_steps=1), 5).server.x.tree
    features, targets = (np.concatenate(parts) for parts in zip(*client_data(), strict=True))
    theta = np.zeros(4)
    for _ in range(5):
        theta = theta - 0.1 * gradient(theta, features, targets)
    close(found, theta)


def test_clients_of_equal_size_are_averaged_equally_whatever_their_weight_in_the_objective(x64: None) -> None:
    """FedAvg weighs by samples; the objective's weights are local SGD's."""
    federation = uneven_quadratics(noise=0)
    found = play(federation, FedAvg(step_size=0.1, num_local_steps=3), 4).server.x.tree
    close(found, local_sgd(Retyped(federation), 0.1, 3, 4, equal_shares=True)[0])
    far(found, local_sgd(Retyped(federation), 0.1, 3, 4)[0])


def test_a_round_costs_one_model_each_way_and_r_batches_per_participant(x64: None) -> None:
    table = run(ragged(batch_size=2), FedAvg(step_size=0.1, num_local_steps=2), 2, participation=3).frame().iloc[1:]
    assert (table[["floats_down", "floats_up"]] == 3 * 4).all(axis=None)
    assert (table["calls_grad"] == 3 * 2).all()
    assert (table["samples"] == 3 * 2 * 2).all()
