"""pfl-research: FederatedAveraging on its SimulatedBackend through its PyTorch bridge, without evaluation.

pfl walks a user's data in order, so the fresh batches of a round are drawn where it builds the user's data set.
Its first iteration always evaluates; rounds are therefore timed from the end of the first by a callback.
"""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from torch_network import build_network, layers_of, tensors
from workloads import WORKLOADS, Timing, Workload, arguments, make_data, mean_loss, report


class Network(nn.Module):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.stack = build_network(workload)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {"loss": Weighted(nn.functional.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Stopwatch(TrainingProcessCallback):
    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []  # wall and processor time

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append((time.perf_counter(), time.process_time()))
        return False, Metrics()

    def timing(self) -> Timing:
        num_rounds = len(self.ends) - 1
        return Timing(*((late - early) / num_rounds for early, late in zip(self.ends[0], self.ends[-1], strict=False)))


def cohort_sampler(workload: Workload, rng: np.random.Generator) -> Callable[[], int]:
    """pfl asks for one user at a time; a fresh cohort without replacement every `cohort_size` calls."""
    waiting: list[int] = []

    def next_user() -> int:
        if not waiting:
            waiting.extend(rng.permutation(workload.num_clients)[: workload.cohort_size].tolist())
        return waiting.pop()

    return next_user


def simulate(workload: Workload, x: torch.Tensor, y: torch.Tensor, rounds: int) -> tuple[Network, Timing]:
    num_points = workload.num_local_steps * workload.batch_size

    def user_data(user: int) -> PyTorchTensorDataset:
        points = torch.randint(workload.points_per_client, (num_points,))
        return PyTorchTensorDataset((x[user, points], y[user, points]), user_id=str(user))

    torch.manual_seed(0)
    network, stopwatch = Network(workload), Stopwatch()
    data = FederatedDataset(user_data, cohort_sampler(workload, np.random.default_rng(0)))
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=workload.cohort_size,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=workload.num_local_steps,
            local_learning_rate=workload.step_size,
            local_batch_size=workload.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[stopwatch],
        send_metrics_to_platform=False,  # its platform prints a table per round
    )
    return network, stopwatch.timing()


def main() -> None:
    logging.disable(logging.WARNING)  # it reports every iteration; a benchmark should not time a terminal
    chosen = arguments(__doc__, rounds=100, threads=1)
    torch.set_num_threads(chosen.threads)
    workload = WORKLOADS[chosen.workload]
    if chosen.rounds < 2:
        sys.exit(f"--rounds = {chosen.rounds} leaves nothing to time; take at least 2, the first is not timed")
    features, labels = make_data(workload)
    x, y = tensors(features, labels)
    simulate(workload, x, y, chosen.rounds)  # warm-up
    runs = [simulate(workload, x, y, chosen.rounds) for _ in range(chosen.repeats)]
    loss = mean_loss(layers_of(runs[-1][0].stack), features, labels)
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("pfl", "torch", "numpy")}
    timings = [timing for _, timing in runs]
    report("pfl_sim", workload.name, chosen.rounds, timings, loss, versions, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
