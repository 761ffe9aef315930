"""The same local steps as a NumPy loop over BLAS on one core, with gradients by hand."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # read when NumPy loads its BLAS, hence before the import

import platform
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from workloads import WORKLOADS, Workload, arguments, initial_model, make_data, mean_loss, report, timed

Layers = list[tuple[np.ndarray, np.ndarray]]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def step(layers: Layers, x: np.ndarray, onehot: np.ndarray, scale: np.float32) -> None:
    """One SGD step in place; `scale` is the step size over the batch size."""
    w, b = layers[-1]
    if len(layers) == 1:
        h = x
    else:
        w1, b1 = layers[0]
        h = np.maximum(x @ w1 + b1, 0.0)
    e = (softmax(h @ w + b) - onehot) * scale
    if len(layers) == 2:
        d = (e @ w.T) * (h > 0.0)
        w1 -= x.T @ d
        b1 -= d.sum(axis=0)
    w -= h.T @ e
    b -= e.sum(axis=0)


def simulate(workload: Workload, x: np.ndarray, onehot: np.ndarray, layers: Layers, rounds: int) -> Layers:
    rng = np.random.default_rng(0)
    scale = np.float32(workload.step_size / workload.batch_size)
    draws = (workload.cohort_size, workload.num_local_steps, workload.batch_size)
    for _ in range(rounds):
        cohort = rng.permutation(workload.num_clients)[: workload.cohort_size]
        points = rng.integers(workload.points_per_client, size=draws)
        total = [(np.zeros_like(w), np.zeros_like(b)) for w, b in layers]
        for client, batches in zip(cohort, points, strict=False):
            local = [(w.copy(), b.copy()) for w, b in layers]
            for batch in batches:
                step(local, x[client][batch], onehot[client][batch], scale)
            for (w_sum, b_sum), (w, b) in zip(total, local, strict=False):
                w_sum += w
                b_sum += b
        layers = [(w / np.float32(workload.cohort_size), b / np.float32(workload.cohort_size)) for w, b in total]
    return layers


def main() -> None:
    chosen = arguments(__doc__, rounds=100)
    workload = WORKLOADS[chosen.workload]
    x, labels = make_data(workload)
    onehot = np.eye(workload.num_classes, dtype=np.float32)[labels]
    final: Layers = []

    def run_rounds() -> None:
        nonlocal final
        final = simulate(workload, x, onehot, initial_model(workload), chosen.rounds)

    timings = timed(run_rounds, chosen.rounds, chosen.repeats)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    loss = mean_loss(final, x, labels)
    report("numpy_blas", workload.name, chosen.rounds, timings, loss, versions, threads=1, dtype=str(final[0][0].dtype))


if __name__ == "__main__":
    main()
