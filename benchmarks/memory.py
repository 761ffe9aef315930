"""Peak memory while rounds are played, relative to what a run must hold: its data and three models.

Taken off is what a process needs that plays the same job with sizes as small as can be: Python, JAX, compiling.
Building the federation is not counted: for a moment the data exist as the user's arrays, put together, and as JAX's.
Linux only, as no other system forgets a peak on request.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sojourn as sj
from contender import network_loss
from sojourn.engine import Compiled

INPUTS, CLASSES, CLIENTS, COHORT = 784, 10, 20, 10
TOY = {"hidden": 4, "points": 2}
SIZES = {"wide layer": {"hidden": 20_000, "points": 200}, "many points": {"hidden": 1000, "points": 10_000}}


def build(hidden: int, points: int) -> tuple[sj.Federation, int]:
    """The federation, and the bytes that it must hold: its data and three models."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((CLIENTS, points, INPUTS), dtype=np.float32)
    labels = rng.integers(CLASSES, size=(CLIENTS, points)).astype(np.int32)
    layers = [
        (0.01 * rng.standard_normal(shape, dtype=np.float32), np.zeros(shape[1], np.float32))
        for shape in ((INPUTS, hidden), (hidden, CLASSES))
    ]
    model = sum(w.nbytes + b.nbytes for w, b in layers)
    federation = sj.federation(network_loss, layers, list(zip(features, labels, strict=True)), batch_size=10)
    return federation, features.nbytes + labels.nbytes + 3 * model


def play(placement: str, hidden: int, points: int) -> dict[str, int]:
    federation, must = build(hidden, points)
    method = sj.algorithms.LocalSGD(step_size=0.01, num_local_steps=10)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    sj.run(federation, method, 2, participation=COHORT, engine=Compiled(placement), progress=False)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"peak": 1024 * int(peak.split()[1]), "must": must}


def measured(placement: str, hidden: int, points: int) -> dict[str, int]:
    """The same in a process of its own, which compiles: a program from the cache would take less in one of the two."""
    command = [sys.executable, __file__, "--play", placement, str(hidden), str(points)]
    environment = {**os.environ, "SOJOURN_COMPILATION_CACHE": "off"}
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def ratio(placement: str, hidden: int, points: int) -> float:
    """Peak memory beyond that of the toy, relative to the data and three models."""
    whole = measured(placement, hidden, points)
    return (whole["peak"] - toy_peak()) / whole["must"]


@functools.cache
def toy_peak() -> int:
    return measured("scan", **TOY)["peak"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--play", nargs=3, metavar=("PLACEMENT", "HIDDEN", "POINTS"), help="one run, in this process")
    chosen = parser.parse_args()
    if chosen.play:
        placement, hidden, points = chosen.play
        print(json.dumps(play(placement, int(hidden), int(points))))
        return
    found: dict[str, Any] = {}
    for name, sizes in SIZES.items():
        found[name] = {placement: ratio(placement, **sizes) for placement in ("scan", "vmap")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
