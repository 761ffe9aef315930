"""FedAsync replayed in virtual time, against rounds of the compiled engine and against one upload at a time in Python.

W1: ten local steps on batches of ten, softmax regression, a hundred clients. Synchronous rounds are FedProx, whose
local problem is the same, and ask ten clients; the trace keeps `busy` of them at work with lognormal times. Cost is per
local gradient, without evaluation and compilation.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import sojourn as sj
from contender import build
from sojourn import traces
from workloads import WORKLOADS

UPLOADS, FEW, PASSES = 4000, 150, 5


def seconds(history: Any, gradients: int) -> float:
    return history.manifest["seconds"] / gradients


def measure(name: str, busy: int, uploads: int) -> dict[str, float]:
    workload = WORKLOADS[name]
    federation, steps = build(workload, "best"), workload.num_local_steps
    devices = traces.Devices(traces.Lognormal())
    trace = traces.busy(workload.num_clients, uploads, devices, traces.Work(steps), concurrency=busy)
    local = {"step_size": workload.step_size, "num_local_steps": steps, "proximal_weight": 0.005}
    fedasync, fedprox = sj.algorithms.FedAsync(**local), sj.algorithms.FedProx(**local)
    quiet: dict[str, Any] = {"eval_every": uploads, "progress": False}
    rounds, cohort = uploads // workload.cohort_size, workload.cohort_size

    def replay() -> float:
        return seconds(sj.run(federation, fedasync, uploads, trace=trace, **quiet), uploads * steps)

    def in_rounds() -> float:
        history = sj.run(federation, fedprox, rounds, participation=cohort, **quiet)
        return seconds(history, uploads * steps)

    def one_by_one() -> float:
        return seconds(sj.run(federation, fedasync, FEW, trace=trace, engine="reference", **quiet), FEW * steps)

    replay(), in_rounds(), one_by_one()
    triples = [(replay(), in_rounds(), one_by_one()) for _ in range(PASSES)]
    return {
        "microseconds": 1e6 * statistics.median(a for a, _, _ in triples),
        "to_rounds": statistics.median(a / b for a, b, _ in triples),
        "one_by_one": statistics.median(c / a for a, _, c in triples),
    }


def main() -> None:
    jobs = [("W1", 50, UPLOADS), ("W1", 10, UPLOADS), ("W2-32", 50, UPLOADS // 5)]
    print(json.dumps({f"{name}, {busy} at work": measure(name, busy, uploads) for name, busy, uploads in jobs}))


if __name__ == "__main__":
    main()
