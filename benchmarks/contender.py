"""sojourn itself, on the same jobs and with the same command line as its opponents.

Through the public interface: a problem, LocalSGD, `sojourn.run`, less the evaluation at its end. Softmax regression is
the package's own `logistic_regression`; `--variant user-loss` gives it as a plain loss to `sojourn.federation`, as a
user's problem would be. The networks are plain loss functions, the convolutional one is the package's own model.
"""

from __future__ import annotations

import platform
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sojourn as sj
from sojourn.data.dataset import Dataset
from sojourn.models.cnn import cifar_cnn_small
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
    if workload.image is not None:
        return convolutional(workload, features, labels)
    return sj.federation(network_loss, layers, list(zip(features, labels, strict=True)), batch_size=workload.batch_size)


def convolutional(workload: Workload, features: np.ndarray, labels: np.ndarray) -> sj.Federation:
    """`cifar_cnn_small` from the common starting point; its linear layers keep their weights transposed."""
    network = cifar_cnn_small(workload.input_shape, workload.num_classes, jax.random.key(0))
    mine = arrays_of(network)
    start = [a for w, b in initial_model(workload) for a in (w if w.ndim == 4 else w.T, b)]
    assert [a.shape for a in mine] == [a.shape for a in start]
    network = eqx.tree_at(arrays_of, network, [jnp.asarray(a) for a in start])
    images, numbers = features.reshape(-1, *workload.input_shape), labels.reshape(-1)
    data = Dataset(workload.name, images, numbers, images[:1], numbers[:1], workload.num_classes)
    clients = np.arange(len(images)).reshape(workload.num_clients, -1)
    return sj.problems.classification(data, list(clients), network, batch_size=workload.batch_size)


def parts(network: Any) -> list[Any]:
    return [*(block.conv for block in network.blocks), *network.dense]


def arrays_of(network: Any) -> list[Any]:
    return [array for part in parts(network) for array in (part.weight, part.bias)]


def layers_of(final: Any) -> list[tuple[Any, Any]]:
    """The trained model as every contender gives it to the judge."""
    if isinstance(final, dict):
        return [(final["weight"].T, final["bias"])]
    if hasattr(final, "blocks"):
        return [(p.weight if p.weight.ndim == 4 else p.weight.T, p.bias) for p in parts(final)]
    return final


def method(workload: Workload, step_size: float | None = None) -> sj.algorithms.LocalSGD:
    return sj.algorithms.LocalSGD(step_size=step_size or workload.step_size, num_local_steps=workload.num_local_steps)


def main() -> None:
    chosen = arguments(__doc__, rounds=100, variants=("user-loss",))
    workload = WORKLOADS[chosen.workload]
    federation = build(workload, chosen.variant)

    def play(rounds: int) -> tuple[sj.History, float]:
        since = time.process_time()
        history = sj.run(
            federation, method(workload), rounds, participation=workload.cohort_size, eval_every=rounds, progress=False
        )
        return history, time.process_time() - since

    # A run ends with an evaluation on all data, which the opponents do not make: the difference of two runs has none.
    few = max(1, chosen.rounds // 5)
    play(few)
    timings = []
    for _ in range(chosen.repeats):
        (short, short_cpu), (history, cpu) = play(few), play(few + chosen.rounds)
        seconds = history.manifest["seconds"] - short.manifest["seconds"]
        timings.append(Timing(seconds / chosen.rounds, (cpu - short_cpu) / chosen.rounds))
    loss = mean_loss(layers_of(history.params), *make_data(workload))
    versions = {"python": platform.python_version(), "jax": jax.__version__, "sojourn": "this tree"}
    width = history.manifest["clients_side_by_side"]
    report("sojourn", workload.name, chosen.rounds, timings, loss, versions, side_by_side=width)


if __name__ == "__main__":
    main()
