"""The jobs every contender runs, and the data they run on. NumPy only: it is imported in every environment.

Federated averaging: each round draws `cohort_size` of `num_clients` clients without replacement; each takes
`num_local_steps` plain SGD steps on batches drawn with replacement from its own points; the server takes the
unweighted mean of their models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KERNEL = 5  # of all convolutions
JUDGED_IMAGES = 10  # of each client, as the judge's convolution is slow


@dataclass(frozen=True)
class Workload:
    """One job. `layer_sizes` of two numbers is softmax regression, of more a ReLU network.

    With `channels`, images first go through 5 x 5 convolutions of so many channels, each with ReLU and 2 x 2 max
    pooling; what they leave, as (height, width, channels), is the input of the first layer.
    """

    name: str
    layer_sizes: tuple[int, ...]
    points_per_client: int
    num_clients: int = 100
    cohort_size: int = 10
    batch_size: int = 10
    num_local_steps: int = 10
    step_size: float = 0.1
    num_classes: int = 10
    image: tuple[int, int, int] | None = None  # (height, width, channels)
    channels: tuple[int, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.image or self.layer_sizes[:1]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", (60, 10), points_per_client=100),
        Workload("W2-32", (784, 32, 10), points_per_client=600),
        Workload("W2-200", (784, 200, 10), points_per_client=600),
        Workload("W2-1000", (784, 1000, 10), points_per_client=600),
        Workload(
            "W3",
            (400, 120, 84, 10),
            points_per_client=500,
            batch_size=32,
            num_local_steps=5,
            step_size=0.05,
            image=(32, 32, 3),
            channels=(6, 16),
        ),
    )
}


def make_data(workload: Workload, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (clients, points, ...) float32 and labels (clients, points) int32, from a random linear teacher."""
    rng = np.random.default_rng(seed)
    num_inputs = int(np.prod(workload.input_shape))
    shape = (workload.num_clients, workload.points_per_client, num_inputs)
    features = rng.standard_normal(shape, dtype=np.float32)
    teacher = rng.standard_normal((num_inputs, workload.num_classes), dtype=np.float32)
    labels = np.argmax(features @ teacher, axis=-1).astype(np.int32)
    return features.reshape(*shape[:2], *workload.input_shape), labels


def initial_model(workload: Workload, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weights, bias) per layer, float32: zero for softmax regression, else He normal.

    Weights are (inputs, outputs), those of a convolution (height, width, inputs, outputs).
    """
    rng = np.random.default_rng(seed)
    depths = () if workload.image is None else (workload.image[-1], *workload.channels)
    shapes: list[tuple[int, ...]] = [(KERNEL, KERNEL, *pair) for pair in itertools.pairwise(depths)]
    layers = []
    for shape in [*shapes, *itertools.pairwise(workload.layer_sizes)]:
        scale = 0.0 if len(workload.layer_sizes) == 2 else (2.0 / np.prod(shape[:-1])) ** 0.5
        weights = scale * rng.standard_normal(shape, dtype=np.float32)
        layers.append((weights.astype(np.float32), np.zeros(shape[-1], np.float32)))
    return layers


def mean_loss(layers: Sequence[tuple[np.ndarray, np.ndarray]], features: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy over every point of every client; one judge for all contenders. Of images, the first few."""
    if features.ndim > 3:
        features, labels = features[:, :JUDGED_IMAGES], labels[:, :JUDGED_IMAGES]
    hidden = np.asarray(features).reshape(-1, *features.shape[2:])
    for weights, bias in layers[:-1]:
        weights = np.asarray(weights)
        if weights.ndim == 4:
            hidden = np.maximum(convolved_and_pooled(hidden, weights) + np.asarray(bias), 0.0)
        else:
            hidden = np.maximum(hidden.reshape(len(hidden), -1) @ weights + np.asarray(bias), 0.0)
    weights, bias = layers[-1]
    logits = (hidden @ np.asarray(weights) + np.asarray(bias)).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(logits)), np.asarray(labels).reshape(-1)]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - picked))


def convolved_and_pooled(images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(rows, height, width, inputs), (kernel, kernel, inputs, outputs) -> the largest of every 2 x 2 square."""
    windows = np.lib.stride_tricks.sliding_window_view(images, weights.shape[:2], axis=(1, 2))
    y = np.tensordot(windows, weights, axes=((4, 5, 3), (0, 1, 2)))
    rows, columns = y.shape[1] // 2, y.shape[2] // 2
    return y[:, : 2 * rows, : 2 * columns].reshape(len(y), rows, 2, columns, 2, -1).max((2, 4))


def arguments(
    description: str | None,
    rounds: int = 100,
    repeats: int = 5,
    variants: Sequence[str] = (),
    threads: int | None = None,
) -> argparse.Namespace:
    """The command line every contender understands; `variants` and `threads` only where there is such a choice."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="W1")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds in each timed repeat")
    parser.add_argument("--repeats", type=int, default=repeats)
    if variants:
        parser.add_argument("--variant", choices=("best", *variants), default="best")
    if threads is not None:
        parser.add_argument("--threads", type=int, default=threads)
    return parser.parse_args()


class Timing(NamedTuple):
    """Of one repeat. The processor time (all threads) still means something when others use the machine."""

    seconds_per_round: float
    cpu_seconds_per_round: float | None


def timed(run_rounds: Callable[[], object], rounds: int, repeats: int) -> list[Timing]:
    """One timing per repeat, after one repeat that is not counted (compilation, caches, allocators)."""
    run_rounds()
    timings = []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        run_rounds()
        end, cpu_end = time.perf_counter(), time.process_time()
        timings.append(Timing((end - start) / rounds, (cpu_end - cpu_start) / rounds))
    return timings


def report(
    opponent: str, workload: str, rounds: int, timings: Sequence[Timing], final_loss: float, versions: dict, **more
) -> None:
    """The one line that a contender prints."""
    seconds = [timing.seconds_per_round for timing in timings]
    cpu = [timing.cpu_seconds_per_round for timing in timings if timing.cpu_seconds_per_round is not None]
    line = {
        "opponent": opponent,
        "workload": workload,
        "seconds_per_round": statistics.median(seconds),
        "seconds_per_round_all": seconds,
        "cpu_seconds_per_round": statistics.median(cpu) if cpu else None,
        "rounds": rounds,
        "final_loss": final_loss,
        "versions": versions,
        **more,
    }
    print(json.dumps(line), flush=True)
