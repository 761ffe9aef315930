"""sojourn itself, on the same jobs and with the same command line as its opponents.

Through the public interface: a problem, LocalSGD, `sojourn.run`, less the evaluation at its end. Softmax regression is
the package's own `logistic_regression`; `--variant user-loss` gives it as a plain loss to `sojourn.federation`, as a
user's problem would be. The networks are always plain loss functions.
"""

from __future__ import annotations

import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sojourn as sj
from sojourn.data.dataset import Dataset
from workloads import WORKLOADS, Timing, Workload, arguments, initial_model, make_data, mean_loss, report


def network_loss(layers: Any, batch: Any) -> jax.Array:
    x, labels = batch
    for weights, bias in layers[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    scores = x @ layers[-1][0] + layers[-1][1]
    chosen = jnp.sum(scores * jax.nn.one_hot(labels, scores.shape[-1]), -1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - chosen)


def build(workload: Workload, variant: str) -> sj.Federation:
    features, labels = make_data(workload)
    if len(workload.layer_sizes) == 2 and variant != "user-loss":
        rows = features.reshape(-1, features.shape[-1])
        data = Dataset(workload.name, rows, labels.reshape(-1), rows[:1], labels.reshape(-1)[:1], workload.num_classes)
        clients = np.arange(len(rows)).reshape(workload.num_clients, -1)
        return sj.problems.logistic_regression(data, list(clients), l2=0.0, batch_size=workload.batch_size)
    layers = initial_model(workload)
    return sj.federation(network_loss, layers, list(zip(features, labels, strict=True)), batch_size=workload.batch_size)


def method(workload: Workload, step_size: float | None = None) -> sj.algorithms.LocalSGD:
    return sj.algorithms.LocalSGD(step_size=step_size or workload.step_size, num_local_steps=workload.num_local_steps)


def main() -> None:
    chosen = arguments(__doc__, rounds=100, variants=("user-loss",))
    workload = WORKLOADS[chosen.workload]
    federation = build(workload, chosen.variant)

    def play(rounds: int) -> sj.History:
        return sj.run(
            federation, method(workload), rounds, participation=workload.cohort_size, eval_every=rounds, progress=False
        )

    # A run ends with an evaluation on all data, which the opponents do not make: the difference of two runs has none.
    few = max(1, chosen.rounds // 5)
    play(few)
    timings = []
    for _ in range(chosen.repeats):
        short, history = play(few), play(few + chosen.rounds)
        seconds = history.manifest["seconds"] - short.manifest["seconds"]
        timings.append(Timing(seconds / chosen.rounds, None))
    final = history.params
    layers = [(final["weight"].T, final["bias"])] if isinstance(final, dict) else final
    loss = mean_loss(layers, *make_data(workload))
    versions = {"python": platform.python_version(), "jax": jax.__version__, "sojourn": "this tree"}
    width = history.manifest["clients_side_by_side"]
    report("sojourn", workload.name, chosen.rounds, timings, loss, versions, side_by_side=width)


if __name__ == "__main__":
    main()
