"""FedJAX: its own federated averaging over its jit for_each_client backend, as its documentation builds it.

Batches come from its `shuffle_repeat_batch`, which draws without replacement within a pass over a client's points.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from workloads import WORKLOADS, Workload, arguments, initial_model, make_data, mean_loss, report, timed


def build_model(workload: Workload) -> fedjax.Model:
    def forward(batch: dict) -> jax.Array:
        return hk.nets.MLP(workload.layer_sizes[1:])(batch["x"])

    example = {"x": jnp.zeros((1, workload.layer_sizes[0])), "y": jnp.zeros((1,), jnp.int32)}
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(forward),
        sample_batch=example,
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
        eval_metrics={},
    )


def starting_params(workload: Workload) -> dict:
    layers = enumerate(initial_model(workload))
    return {f"mlp/~/linear_{i}": {"w": jnp.asarray(w), "b": jnp.asarray(b)} for i, (w, b) in layers}


def main() -> None:
    chosen = arguments(__doc__, rounds=100)
    workload = WORKLOADS[chosen.workload]
    features, labels = make_data(workload)
    data = fedjax.InMemoryFederatedData(
        {i: {"x": x, "y": y} for i, (x, y) in enumerate(zip(features, labels, strict=False))}
    )
    model = build_model(workload)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn=fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(learning_rate=workload.step_size),
        server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch_size, num_epochs=None, num_steps=workload.num_local_steps
        ),
    )
    state = None

    def run_rounds() -> None:
        nonlocal state
        sampler = fedjax.client_samplers.UniformGetClientSampler(data, num_clients=workload.cohort_size, seed=0)
        state = algorithm.init(starting_params(workload))
        for _ in range(chosen.rounds):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    with fedjax.for_each_client_backend("jit"):
        timings = timed(run_rounds, chosen.rounds, chosen.repeats)
    names = [f"mlp/~/linear_{i}" for i in range(len(workload.layer_sizes) - 1)]
    loss = mean_loss([(state.params[name]["w"], state.params[name]["b"]) for name in names], features, labels)
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")}
    report("fedjax_sim", workload.name, chosen.rounds, timings, loss, versions, backend="jit")


if __name__ == "__main__":
    main()
