"""A sweep of 200 settings of W1 (20 step sizes x 10 seeds) against the same 200 runs, one after another, warm."""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

import sojourn as sj
from contender import build, method
from workloads import WORKLOADS

ROUNDS = 100


def main() -> None:
    workload = WORKLOADS["W1"]
    federation = build(workload, "best")
    steps, seeds = np.geomspace(0.01, 1.0, 20), range(10)
    how = {"participation": workload.cohort_size, "eval_every": ROUNDS, "progress": False}

    def together() -> float:
        since = time.perf_counter()
        sj.sweep(federation, lambda step: method(workload, step), steps, ROUNDS, seeds=seeds, **how)
        return time.perf_counter() - since

    def one_by_one(number: int) -> float:
        """The first `number` of the 200 runs, scaled to all of them."""
        settings = [(step, seed) for step in steps for seed in seeds][:number]
        since = time.perf_counter()
        for step, seed in settings:
            sj.run(federation, method(workload, step), ROUNDS, seed=seed, **how)
        return (time.perf_counter() - since) * 200 / number

    together(), one_by_one(1)
    pairs = [(together(), one_by_one(40)) for _ in range(5)]
    print(json.dumps({
        "sweep_seconds": statistics.median(sweep for sweep, _ in pairs),
        "runs_seconds": statistics.median(runs for _, runs in pairs),
        "ratio": statistics.median(runs / sweep for sweep, runs in pairs),
        "ratios": [runs / sweep for sweep, runs in pairs],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
