"""A study of regret: 20 seeds, 8 numbers of machines and 8 dimensions at T = 4096, in a process that compiled nothing.

FedPOSGD with its step by theory against an adversary that reacts to plays, K = 16; then the same once more, compiled.
"""

from __future__ import annotations

import json
import time
from typing import Any

import sojourn as sj

STEPS, LOCAL_STEPS, SEEDS = 4096, 16, range(20)
MACHINES = (1, 2, 4, 6, 8, 12, 16, 32)
DIMENSIONS = (2, 4, 8, 16, 24, 32, 48, 64)


def games() -> list[dict[str, Any]]:
    return [
        {
            "stream": sj.online.Adaptive(dimension), "method": sj.online.FedPOSGD(), "steps": STEPS,
            "num_machines": machines, "num_local_steps": LOCAL_STEPS, "seeds": SEEDS,
        }
        for dimension in reversed(DIMENSIONS)
        for machines in reversed(MACHINES)
    ]  # fmt: skip


def seconds() -> float:
    since = time.perf_counter()
    assert all(len(found.regret) == len(SEEDS) for found in sj.online.study(games()))
    return time.perf_counter() - since


def main() -> None:
    cold = seconds()
    print(json.dumps({"cold_seconds": cold, "warm_seconds": seconds(), "num_plays": len(games()) * len(SEEDS)}))


if __name__ == "__main__":
    main()
