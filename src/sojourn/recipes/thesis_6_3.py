"""Thesis figure 6.3: six methods at equal iterations as clients become more different (q = 0.1 to 0.85)."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sojourn.algorithms import BVRLSGD, CELSGD, MBSARAH, FedAvg, MinibatchSGD, Scaffold
from sojourn.algorithms.base import Algorithm
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, above, within
from sojourn.recipes.contest import Axis, Contender, Curves, caveats, chart, results
from sojourn.recipes.thesis_6_2 import BVR, CE, FINER, MOMENTUM, STAGE, STEP_SIZES, contest, ends, home, with_trips
from sojourn.recipes.trends import all_hold

AVG, SCAFFOLD, SARAH, SGD = "FedAvg", "SCAFFOLD", "MB-SARAH", "MB-SGD"
AXES: dict[Axis, str] = {"rounds": "iterations", "trips": "rounds of communication"}
SAME, SPREAD = 0.05, 0.1  # of a loss: what "like" and "insensitive" are taken to mean


def methods(scale: Mapping[str, Any]) -> dict[str, Callable[[float], Algorithm]]:
    """From a step size, with K local steps or K batches each."""
    heavy = math.ceil(scale["heavy_samples"] / scale["batch_size"])
    k = {"num_local_steps": scale["num_local_steps"]}
    return {
        CE: functools.partial(CELSGD, momentum=MOMENTUM, **k),
        BVR: functools.partial(BVRLSGD, stage_length=STAGE, heavy_batches=heavy, **k),
        AVG: functools.partial(FedAvg, **k),
        SCAFFOLD: functools.partial(Scaffold, **k),
        SARAH: functools.partial(MBSARAH, restart_every=STAGE, heavy_batches=heavy, **k),
        SGD: functools.partial(MinibatchSGD, **k),
    }


def judge(courses: Mapping[tuple[str, float], Curves]) -> list[Claim]:
    """The figure's claims, from the courses by method and q."""
    shares = sorted({q for _, q in courses})
    even, skewed = shares[0], shares[-1]
    loss = {key: ends(course) for key, course in courses.items()}
    n = len(loss[CE, even])
    rule = "log ratio of the last losses at equal iterations, paired seeds, t-interval"
    told = lambda verdicts: "; ".join(f"q = {q:g}: {words}" for q, (_, words) in verdicts.items())  # noqa: E731
    alike = {q: within(np.log(loss[CE, q] / loss[BVR, q]), SAME) for q in shares}
    others = (AVG, SCAFFOLD, SARAH, SGD)
    best = {q: np.min([loss[name, q] for name in others], axis=0) for q in shares}
    below = {q: above(np.log(best[q] / np.maximum(loss[CE, q], loss[BVR, q])), 0.0) for q in shares}
    gap = {q: np.log(loss[AVG, q] / loss[CE, q]) for q in shares}
    grows, growth = above(gap[skewed] - gap[even], 0.0)
    ahead, lead = above(gap[skewed], 0.0)
    worse, by = above(np.log(loss[AVG, skewed] / loss[AVG, even]), 0.0)
    spread = {
        name: np.ptp([loss[name, q] for q in shares], axis=0) / np.mean([loss[name, q] for q in shares], axis=0)
        for name in (SARAH, SGD)
    }
    flat = {name: above(SPREAD - values, 0.0)[0] for name, values in spread.items()}
    note = caveats(courses.values())
    return [
        Claim("ce-is-bvr", "CE-LSGD ends like BVR-L-SGD, whatever q.", all_hold(*(v for v, _ in alike.values())),
              told(alike) + note, rule, f"within {SAME} for all q", n),
        Claim("below-the-others", "Both end below the other four, whatever q.",
              all_hold(*(v for v, _ in below.values())),
              f"log ratio of the best other to the worse of them: {told(below)}{note}", rule, "above 0 for all q", n),
        Claim("gap-grows", "CE-LSGD ends below FedAvg, the more so the larger q is.", all_hold(grows, ahead),
              f"log ratio {gap[even].mean():.3f} at q = {even:g}; at {skewed:g}: {lead}; difference {growth}{note}",
              rule, "above 0 at the largest q, and the difference too", n),
        Claim("fedavg-worsens", "FedAvg ends higher as q grows.", worse, f"log ratio {by}{note}", rule, "above 0", n),
        Claim("centralized-insensitive", "MB-SGD and MB-SARAH hardly depend on q.", all_hold(*flat.values()),
              "; ".join(f"{name} {values.mean():.1%}" for name, values in spread.items()) + note,
              "range over q, relative to the mean, of each seed, t-interval", f"below {SPREAD:.0%} for both", n),
    ]  # fmt: skip


def carry_out(bench: Bench) -> Findings:
    scale = bench.scale
    k, heavy = scale["num_local_steps"], math.ceil(scale["heavy_samples"] / scale["batch_size"])
    trips = {CE: (2, 0, 1), BVR: (2, STAGE, math.ceil(heavy / k)), SARAH: (1, STAGE, math.ceil(heavy / k))}
    courses = {}
    for q in scale["own_shares"]:
        for name, make in methods(scale).items():
            there = functools.partial(home, scale, q)
            contender = Contender(f"{name}, q = {q:g}", make, there, scale["step_sizes"], scale["iterations"])
            courses[name, q] = with_trips(contest(bench).play(contender), *trips.get(name, (1, 0, 1)))
    claims = judge(courses)
    of = lambda q: [courses[name, q] for name in methods(scale)]  # noqa: E731
    first = scale["own_shares"][0]
    shown = [claim.id for claim in claims]
    figures = [
        chart(f"q = {q:g}: training loss by {words}", of(q), "loss", axis, log_y=True,
              claims=shown if q == first and axis == "rounds" else ())
        for q in scale["own_shares"] for axis, words in AXES.items()
    ]  # fmt: skip
    return Findings(claims, figures, tables=[results("Ends of the runs", list(courses.values()))])


RECIPE = Recipe(
    name="thesis-6.3",
    title="Six methods as clients become more different",
    source="thesis, figure 6.3",
    about="A network of two layers on ten clients; client m holds the fraction q of class m, and the rest is spread "
    "evenly, q = 0.1, 0.35, 0.6, 0.85. K = 32 steps or batches of 16 for every method, all for as many iterations, "
    "each tuned for every q on the thesis's grid of steps. CE-LSGD and BVR-L-SGD make two rounds an iteration, so "
    "there are two axes. Filled in: 100 ReLU units, 150 iterations, stages of ten for BVR-L-SGD and MB-SARAH with "
    "heavy batches of 5000. Quick: digits, 32 units, K = 16 batches of 4, heavy batches of 144, and a finer grid. "
    "Full: three hours on one core; it was not run.",
    scales={
        "quick": {
            "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}, "num_clients": 10, "batch_size": 4,
            "heavy_samples": 144, "num_local_steps": 16, "own_shares": (0.1, 0.35, 0.6, 0.85),
            "step_sizes": FINER, "iterations": 150, "tuning_iterations": 150, "eval_every": 3,
            "seeds": range(10),
            "scaled": "a smaller network on 8 x 8 digits and smaller batches, in place of CIFAR-10",
        },
        "full": {
            "data": {"name": "cifar10", "normalise": True}, "model": {"name": "mlp", "hidden": [100]},
            "num_clients": 10, "batch_size": 16, "heavy_samples": 5000, "num_local_steps": 32,
            "own_shares": (0.1, 0.35, 0.6, 0.85), "step_sizes": STEP_SIZES, "iterations": 150,
            "tuning_iterations": 50, "eval_every": 5, "seeds": range(3),
        },
    },
    carry_out=carry_out,
)  # fmt: skip
