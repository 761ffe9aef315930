"""Worker processes, one for every core, against the compiled engine with its own threads; interleaved, medians.

Both play the same rounds of the same job; what a run costs beyond its rounds (compiling, starting workers, evaluation)
is left out by the difference of a long and a short run.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import sojourn as sj
from contender import build, method
from workloads import WORKLOADS

PASSES = 5
JOBS = {"W2-32": 150, "W2-200": 100, "W2-1000": 20, "W3": 12}  # rounds


def measure(name: str, rounds: int) -> dict[str, float]:
    workload = WORKLOADS[name]
    federation, few = build(workload, "best"), max(1, rounds // 5)

    def play(engine: str, number: int) -> float:
        history = sj.run(
            federation, method(workload), number, participation=workload.cohort_size, eval_every=few + rounds + 1,
            engine=engine, progress=False,
        )  # fmt: skip
        return float(history.manifest["seconds"])

    def seconds(engine: str) -> float:
        return (play(engine, few + rounds) - play(engine, few)) / rounds

    play("compiled", 2), play("processes", 2)
    pairs = [(seconds("compiled"), seconds("processes")) for _ in range(PASSES)]
    return {
        "compiled": 1e3 * statistics.median(a for a, _ in pairs),
        "processes": 1e3 * statistics.median(b for _, b in pairs),
        "faster": statistics.median(a / b for a, b in pairs),
    }


def main() -> None:
    chosen: Any = sys.argv[1:] or JOBS
    print(json.dumps({name: measure(name, JOBS[name]) for name in chosen}))


if __name__ == "__main__":
    main()
