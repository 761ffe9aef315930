"""Thesis figure 6.2: CE-LSGD against BVR-L-SGD by rounds of communication, for several numbers of local steps.

An iteration of either is two rounds. In the intermittent communication model a client answers K queries between two
rounds, so that a heavy batch of BVR-L-SGD takes as many rounds as it holds batches of K queries.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sojourn.algorithms import BVRLSGD, CELSGD
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, above, within
from sojourn.recipes.contest import Contender, Contest, Curves, caveats, chart, results, world
from sojourn.recipes.trends import all_hold

CE, BVR = "CE-LSGD", "BVR-L-SGD"
MOMENTUM, STAGE = 0.3, 10  # beta of the thesis; how many iterations a stage of BVR-L-SGD has
TUNING_SEEDS = (1000, 1001, 1002)  # a walk at the edge of what is stable goes wrong on some seeds only
SLACK = 0.05  # of a logarithm: what "no more rounds" and "the same loss" are taken to mean
LEVELS = (0.5, 0.8, 0.95)  # of the way from the first loss to the higher of the two ends


def home(scale: Mapping[str, Any], own_share: float, seed: int) -> Federation:
    partition = {"name": "q-share", "num_clients": scale["num_clients"], "own_share": own_share}
    return world(seed, scale["data"], partition, scale["model"], batch_size=scale["batch_size"])


def contest(bench: Bench) -> Contest:
    scale = bench.scale
    return Contest(
        bench, scale["seeds"], eval_every=scale["eval_every"], tuning_rounds=scale["tuning_iterations"],
        tuning_seeds=TUNING_SEEDS,
    )  # fmt: skip


def with_trips(course: Curves, per_iteration: int, heavy_every: int = 0, heavy_trips: int = 1) -> Curves:
    """The course with its rounds of communication: a heavy estimate takes `heavy_trips` of them in place of one."""
    number = np.arange(course.rounds[-1])
    heavy = number % heavy_every == 0 if heavy_every else np.zeros(len(number), bool)
    done = np.concatenate([[0], np.cumsum(per_iteration + heavy * (heavy_trips - 1))])
    return dataclasses.replace(course, trips=done[course.rounds])


def ends(course: Curves) -> np.ndarray:
    """The training loss at the end, for every seed: the mean over the last three evaluations."""
    return course.final("loss", 3)


def reached(course: Curves, levels: np.ndarray) -> np.ndarray:
    """Rounds of communication until the loss is first at a level, (seed, level), between evaluations by a line."""
    found = np.full(levels.shape, np.inf)
    for seed, losses in enumerate(course.metrics["loss"]):
        for i, level in enumerate(levels[seed]):
            at = int(np.argmax(losses <= level))
            if losses[at] <= level:
                before = max(at - 1, 0)
                fall = losses[before] - losses[at]
                part = (losses[before] - level) / fall if fall > 0 else 1.0
                found[seed, i] = course.trips[before] + part * (course.trips[at] - course.trips[before])
    return found


def judge(courses: Mapping[tuple[str, int], Curves]) -> list[Claim]:
    """The figure's claims, from the courses by method and K."""
    counts = sorted({k for _, k in courses})
    n = len(ends(courses[CE, counts[0]]))
    claims = []
    for k in counts:
        ce, bvr = courses[CE, k], courses[BVR, k]
        first, worse = ce.metrics["loss"][:, 0], np.maximum(ends(ce), ends(bvr))
        levels = first[:, None] - np.array(LEVELS) * (first - worse)[:, None]
        ratios = np.log(reached(bvr, levels) / np.maximum(reached(ce, levels), 1.0))
        sooner = {share: above(ratios[:, i], -SLACK) for i, share in enumerate(LEVELS)}
        even = {name: dataclasses.replace(course, trips=course.rounds) for name, course in (("ce", ce), ("bvr", bvr))}
        level, by_iteration = within(
            np.log(reached(even["bvr"], levels) / np.maximum(reached(even["ce"], levels), 1.0))[:, -1], SLACK
        )
        same, text = within(np.log(ends(ce) / ends(bvr)), SLACK)
        note = caveats([ce, bvr])
        claims += [
            Claim(f"no-later-{k}", f"With K = {k} CE-LSGD needs no more rounds than BVR-L-SGD for any loss.",
                  all_hold(*(v for v, _ in sooner.values())),
                  "log of BVR-L-SGD's rounds to CE-LSGD's: " + "; ".join(
                      f"{share:.0%} of the way: {words}" for share, (_, words) in sooner.items()) + note,
                  "log ratio, paired seeds, t-interval", f"above {-SLACK} at all three levels", n),
            Claim(f"same-end-{k}", f"With K = {k} both end at the same loss.", same,
                  f"log ratio of CE-LSGD's to BVR-L-SGD's {text}{note}", "log ratio of the last losses, paired seeds, "
                  "t-interval", f"within {SLACK}", n),
            Claim(f"level-by-iterations-{k}", f"With K = {k} both need as many iterations: what CE-LSGD saves are the "
                  "rounds of heavy batches.", level, f"log of BVR-L-SGD's iterations to CE-LSGD's, {LEVELS[-1]:.0%} of "
                  f"the way: {by_iteration}{note}", "log ratio, paired seeds, t-interval", f"within {SLACK}", n,
                  "check"),
        ]  # fmt: skip
    few, many = counts[0], counts[-1]
    for name in (CE, BVR):
        better, text = above(np.log(ends(courses[name, few]) / ends(courses[name, many])), 0.0)
        claims.append(
            Claim(f"more-steps-help-{name.lower()}", f"{name} ends lower with K = {many} than with K = {few}.", better,
                  f"log ratio {text}", "log ratio of the last losses at equal iterations, paired seeds, t-interval",
                  "above 0", n)
        )  # fmt: skip
    return claims


def carry_out(bench: Bench) -> Findings:
    scale = bench.scale
    courses = {}
    for k in scale["local_steps"]:
        heavy = math.ceil(scale["heavy_samples"] / scale["batch_size"])
        methods: dict[str, Callable[[float], Algorithm]] = {
            CE: functools.partial(CELSGD, num_local_steps=k, momentum=MOMENTUM),
            BVR: functools.partial(BVRLSGD, num_local_steps=k, stage_length=STAGE, heavy_batches=heavy),
        }
        for name, make in methods.items():
            there = functools.partial(home, scale, 1 / scale["num_clients"])
            contender = Contender(f"{name}, K = {k}", make, there, scale["step_sizes"], scale["iterations"])
            heavy_every, heavy_trips = (0, 1) if name == CE else (STAGE, math.ceil(heavy / k))
            courses[name, k] = with_trips(contest(bench).play(contender), 2, heavy_every, heavy_trips)
    claims = judge(courses)
    by_k = {k: [courses[name, k] for name in (CE, BVR)] for k in scale["local_steps"]}
    figures = [
        chart(f"K = {k}: training loss by rounds of communication", curves, "loss", "trips", log_y=True,
              claims=[f"no-later-{k}", f"same-end-{k}", f"level-by-iterations-{k}"])
        for k, curves in by_k.items()
    ]  # fmt: skip
    helps = [f"more-steps-help-{name.lower()}" for name in (CE, BVR)]
    figures.append(
        chart("All, by iterations", [c for curves in by_k.values() for c in curves], "loss", log_y=True, claims=helps)
    )
    return Findings(claims, figures, tables=[results("Ends of the runs", list(courses.values()))])


STEP_SIZES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5)  # the thesis's
FINER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
RECIPE = Recipe(
    name="thesis-6.2",
    title="CE-LSGD against BVR-L-SGD",
    source="thesis, figure 6.2",
    about="A network of two layers on ten clients that hold a tenth of every class each (q = 0.1), batches of 16, the "
    "thesis's grid of steps, beta = 0.3, a first batch as large as any other. Filled in, as the thesis is silent: K = "
    "16, 32, 64, 100 ReLU units, cross-entropy, 150 iterations of two rounds, stages of ten iterations for BVR-L-SGD; "
    "its heavy batch of 5000 takes as many rounds as it has batches of K queries. Quick: digits, 32 units, batches of "
    "4, K = 4, 8, 16, a heavy batch of 144, a client's whole data as 5000 are on CIFAR-10, and a finer grid. Full: "
    "about an hour on one core; it was not run.",
    scales={
        "quick": {
            "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}, "num_clients": 10, "batch_size": 4,
            "heavy_samples": 144, "local_steps": (4, 8, 16), "step_sizes": FINER, "iterations": 150,
            "tuning_iterations": 150, "eval_every": 1, "seeds": range(10),
            "scaled": "a smaller network on 8 x 8 digits and smaller batches, in place of CIFAR-10",
        },
        "full": {
            "data": {"name": "cifar10", "normalise": True}, "model": {"name": "mlp", "hidden": [100]},
            "num_clients": 10, "batch_size": 16, "heavy_samples": 5000, "local_steps": (16, 32, 64),
            "step_sizes": STEP_SIZES, "iterations": 150, "tuning_iterations": 50, "eval_every": 5, "seeds": range(3),
        },
    },
    carry_out=carry_out,
)  # fmt: skip
