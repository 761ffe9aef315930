"""Flower: run_simulation on its Ray backend with a NumPyClient and FedAvg, one client per core, no evaluation.

The client takes the NumPy steps of `numpy_blas.py`, the cheapest ones at hand, so that what is seen is Flower.
The first round is not timed: it starts the workers, and each of them makes the data once.
"""

from __future__ import annotations

import os

# Read when Flower and Ray are imported, and inherited by the Ray workers.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DEDUP_LOGS"] = "0"

import contextlib
import functools
import logging
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    sys.path.insert(0, str(folder))

import itertools

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from numpy_blas import step

from workloads import WORKLOADS, Timing, arguments, initial_model, make_data, mean_loss, report

WORKLOAD_VARIABLE = "SOJOURN_BENCHMARK_WORKLOAD"  # how the workers learn the job


@functools.cache
def client_data() -> tuple[np.ndarray, np.ndarray]:
    """Features and one-hot labels, made once per worker process."""
    workload = WORKLOADS[os.environ[WORKLOAD_VARIABLE]]
    features, labels = make_data(workload)
    return features, np.eye(workload.num_classes, dtype=np.float32)[labels]


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
        workload = WORKLOADS[os.environ[WORKLOAD_VARIABLE]]
        features, onehot = client_data()
        x, targets = features[self.number], onehot[self.number]
        flat = [parameter.copy() for parameter in parameters]
        layers = list(zip(flat[::2], flat[1::2], strict=False))
        rng = np.random.default_rng((self.number, int(config["round"])))
        scale = np.float32(workload.step_size / workload.batch_size)
        draws = (workload.num_local_steps, workload.batch_size)
        for batch in rng.integers(workload.points_per_client, size=draws):
            step(layers, x[batch], targets[batch], scale)
        return flat, len(x), {}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round ended and keeps the model after round `keep`."""

    def __init__(self, keep: int, **settings) -> None:
        super().__init__(**settings)
        self.keep = keep
        self.ends: list[float] = []
        self.kept: list[np.ndarray] = []

    def aggregate_fit(self, server_round, results, failures):
        if failures:
            raise RuntimeError(f"round {server_round}: {len(failures)} clients failed, first: {failures[0]}")
        aggregated = super().aggregate_fit(server_round, results, failures)
        if server_round == self.keep:
            self.kept = parameters_to_ndarrays(aggregated[0])
        self.ends.append(time.perf_counter())
        return aggregated


def main() -> None:
    # Imported under its own name, so that workers find the client by reference and keep their data between rounds.
    import flower_sim

    chosen = arguments(__doc__, rounds=10, repeats=3)
    workload = WORKLOADS[chosen.workload]
    os.environ[WORKLOAD_VARIABLE] = workload.name
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (HERE, HERE.parent)))
    logging.getLogger("flwr").setLevel(logging.ERROR)

    start = [array for layer in initial_model(workload) for array in layer]
    strategy = TimedFedAvg(
        keep=chosen.rounds,
        fraction_fit=workload.cohort_size / workload.num_clients,
        fraction_evaluate=0.0,
        min_available_clients=workload.num_clients,
        initial_parameters=ndarrays_to_parameters(start),
        on_fit_config_fn=lambda server_round: {"round": server_round},
    )
    num_rounds = 1 + chosen.rounds * chosen.repeats
    components = ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=num_rounds))
    with contextlib.redirect_stdout(sys.stderr):  # the one line on standard output is ours
        run_simulation(
            server_app=ServerApp(server_fn=lambda context: components),
            client_app=ClientApp(client_fn=flower_sim.client_fn),
            num_supernodes=workload.num_clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    marks = strategy.ends[:: chosen.rounds]
    # No processor time: the work is done in processes that are not ours to measure.
    timings = [Timing((late - early) / chosen.rounds, None) for early, late in itertools.pairwise(marks)]
    features, labels = make_data(workload)
    loss = mean_loss(list(zip(strategy.kept[::2], strategy.kept[1::2], strict=False)), features, labels)
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("flwr", "ray", "numpy")}
    report("flower_sim", workload.name, chosen.rounds, timings, loss, versions, workers=os.cpu_count())


if __name__ == "__main__":
    main()
