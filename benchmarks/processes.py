"""Worker processes, one for every core, against the compiled engine: with its own threads, and held to one core.

All are kept ready, and play a few rounds in turn, many times, so that whoever else uses the machine disturbs all
alike. Rounds alone are timed: no compiling, no start of workers, no evaluation. The medians are of these turns; the
least of them is what a machine without others would show.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

if sys.argv[1:2] == ["--alone"]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX counts the cores

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


class Alone:
    """The compiled engine in a process that may use one core, which plays when it is asked."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--alone", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> float:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def alone(name: str) -> None:
    play, _ = player(name, build(WORKLOADS[name], "best"), "compiled", JOBS[name])
    for _ in sys.stdin:
        print(play(), flush=True)


def measure(name: str, rounds: int) -> dict[str, float]:
    federation = build(WORKLOADS[name], "best")
    compiled, _ = player(name, federation, "compiled", rounds)
    processes, engine = player(name, federation, "processes", rounds)
    one_core = Alone(name)
    contenders = (compiled, processes, one_core)
    for play in contenders:
        play()
    turns = [[play() for play in contenders] for _ in range(TURNS)]
    engine.close()
    one_core.close()
    threads, shared, single = zip(*turns, strict=True)
    return {
        "compiled": 1e3 * statistics.median(threads),
        "processes": 1e3 * statistics.median(shared),
        "one_core": 1e3 * statistics.median(single),
        "faster": statistics.median(a / b for a, b, _ in turns),
        "faster_at_best": min(threads) / min(shared),
        "than_one_core": statistics.median(c / b for _, b, c in turns),
    }


def main() -> None:
    if sys.argv[1:2] == ["--alone"]:
        alone(sys.argv[2])
        return
    chosen: Any = sys.argv[1:] or JOBS
    print(json.dumps({name: measure(name, JOBS[name]) for name in chosen}))


if __name__ == "__main__":
    main()
