"""Worker processes, one for every core, against the compiled engine with its own threads.

Both are kept ready, and play a few rounds in turn, many times, so that whoever else uses the machine disturbs both
alike. Rounds alone are timed: no compiling, no start of workers, no evaluation. The medians are of these turns; the
least of them is what a machine without others would show.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from contender import build, method
from sojourn.core.keys import root_key
from sojourn.driver import make_job
from sojourn.engine.rounds import start
from workloads import WORKLOADS

TURNS = 25
JOBS = {"W2-32": 30, "W2-200": 15, "W2-1000": 4, "W3": 2}  # rounds in a turn
NEVER = 1_000_000  # in so many rounds something is evaluated


def player(name: str, federation: Any, engine: str, rounds: int) -> tuple[Callable[[], float], Any]:
    """A function that plays some rounds and says how many seconds one took."""
    workload = WORKLOADS[name]
    algorithm, how = method(workload), {"participation": workload.cohort_size, "eval_every": NEVER, "record": ()}
    job = make_job(federation, algorithm, NEVER, engine=engine, **how)
    state = job.engine.warm_up(
        algorithm, job.clients, start(algorithm, federation, root_key(0)), job.course(0), job.plan
    )

    def play() -> float:
        nonlocal state
        since = time.perf_counter()
        state, _, done = job.engine.advance(algorithm, job.clients, state, job.course(rounds), job.plan)
        jax.block_until_ready(state)
        return (time.perf_counter() - since) / int(done)

    return play, job.engine


def measure(name: str, rounds: int) -> dict[str, float]:
    federation = build(WORKLOADS[name], "best")
    compiled, _ = player(name, federation, "compiled", rounds)
    processes, engine = player(name, federation, "processes", rounds)
    compiled(), processes()
    pairs = [(compiled(), processes()) for _ in range(TURNS)]
    engine.close()
    ones, others = zip(*pairs, strict=True)
    return {
        "compiled": 1e3 * statistics.median(ones),
        "processes": 1e3 * statistics.median(others),
        "faster": statistics.median(a / b for a, b in pairs),
        "faster_at_best": min(ones) / min(others),
    }


def main() -> None:
    chosen: Any = sys.argv[1:] or JOBS
    print(json.dumps({name: measure(name, JOBS[name]) for name in chosen}))


if __name__ == "__main__":
    main()
