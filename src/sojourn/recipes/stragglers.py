"""Two questions of our own about asynchrony: what heavy tails cost, and how much the choice of alpha matters."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.algorithms import FedAsync, FedAvg, FedBuff
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, Table, above
from sojourn.recipes.contest import Contender, Contest, Curves, chart, results, world
from sojourn.recipes.fedasync import CONST, HINGE, POLY, WEIGHTINGS, Kind, play_async, profile
from sojourn.recipes.trends import all_hold
from sojourn.traces import Devices, Pareto, Work, busy

DIGITS: dict[str, Any] = {
    "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}, "devices": 50, "batch_size": 10,
    "concentration": 0.3,
}  # fmt: skip
AVG, ASYNC, BUFF = "FedAvg", "FedAsync", "FedBuff"


def _home(scale: Mapping[str, Any], devices: int, seed: int) -> Federation:
    partition = {"name": "dirichlet", "num_clients": devices, "concentration": scale["concentration"], "min_samples": 5}
    return world(seed, scale["data"], partition, scale["model"], batch_size=scale["batch_size"])


# --- tails -------------------------------------------------------------------------------------------------------


def _methods(scale: Mapping[str, Any]) -> dict[str, Any]:
    steps = scale["num_local_steps"]
    return {
        AVG: lambda step: FedAvg(step, steps),
        ASYNC: lambda step: FedAsync(step, steps, mixing=0.6, staleness_weight="polynomial", proximal_weight=0.0),
        BUFF: lambda step: FedBuff(step, steps, buffer_size=scale["buffer_size"]),
    }


def play(bench: Bench, tail: float) -> dict[str, Curves]:
    """All methods on machines whose times have this tail; as many clients at work as FedAvg asks in a round."""
    scale = bench.scale
    cohort, steps = scale["cohort"], scale["num_local_steps"]
    devices = Devices(Pareto(1.0, tail))
    uploads = scale["rounds"] * cohort
    found = {}
    for name, make in _methods(scale).items():

        def time(seed: int, method: Algorithm) -> Mapping[str, Any]:
            if not method.asynchronous:
                return {"devices": devices}
            work = Work(steps, method.uploads_per_update())
            trace = busy(scale["devices"], uploads, devices, work, concurrency=cohort, seed=seed)
            return {"trace": trace, "participation": None}

        rounds = scale["rounds"] if name == AVG else uploads
        home = functools.partial(_home, scale, scale["devices"])
        contender = Contender(f"{name}, tail {tail:g}", make, home, scale["step_sizes"], rounds, time)
        contest = Contest(
            bench, scale["seeds"], cohort if name == AVG else None, scale["evaluations"],
            tuning_seeds=scale["tuning_seeds"],
        )  # fmt: skip
        course = contest.play(contender)
        found[name] = dataclasses.replace(course, label=name)
    return found


def time_to(course: Curves, accuracy: float) -> tuple[np.ndarray, np.ndarray]:
    """Virtual seconds until the test accuracy is first reached, for every seed, and whether it ever is; if not, all."""
    above_it = course.metrics["test_accuracy"] >= accuracy
    reached = np.asarray(above_it.any(axis=1))
    first = np.where(reached, np.argmax(above_it, axis=1), -1)
    return course.times[np.arange(len(first)), first], reached


Times = Mapping[float, Mapping[str, tuple[np.ndarray, np.ndarray]]]  # by tail and method


def judge(by_tail: Times, accuracy: float) -> list[Claim]:
    """A smaller exponent is a heavier tail. Where FedAvg never gets there, its whole run stands for its time."""
    tails = sorted(by_tail, reverse=True)
    light, heavy = tails[0], tails[-1]
    n = len(by_tail[light][AVG][0])
    gain = {(tail, name): _log_ratio(by_tail[tail], name) for tail in tails for name in (ASYNC, BUFF)}
    rule = f"log of virtual seconds to {accuracy:.0%} test accuracy, paired seeds, t-interval"

    def told(name: str) -> str:
        return ", ".join(f"{_times(gain[tail, name])} at tail {tail:g}" for tail in tails)

    claims = []
    for name in (ASYNC, BUFF):
        holds, text = above(gain[heavy, name], 0.0)
        grows, by = above(gain[heavy, name] - gain[light, name], 0.0)
        claims += [
            Claim(f"{name.lower()}-sooner", f"With the heaviest tail {name} is there sooner than FedAvg.", holds,
                  f"FedAvg takes {told(name)} as long; {text}", rule, "above 0", n, "check"),
            Claim(f"{name.lower()}-gains-with-the-tail", f"What {name} gains on FedAvg grows from the lightest tail to "
                  "the heaviest.", grows, f"FedAvg takes {told(name)} as long; difference {by}", rule, "above 0", n,
                  "check"),
        ]  # fmt: skip
    return claims


def _times(gains: np.ndarray) -> str:
    reached = gains[~np.isnan(gains)]
    text = f"{np.exp(reached.mean()):.2f} times" if len(reached) else "no times"
    return text if len(reached) == len(gains) else f"{text} ({len(reached)} of {len(gains)} runs reach it)"


def _log_ratio(times: Mapping[str, tuple[np.ndarray, np.ndarray]], name: str) -> np.ndarray:
    """How much longer FedAvg takes, at least; no number where the other never gets there."""
    (slow, _), (quick, reached) = times[AVG], times[name]
    return np.where(reached, np.log(slow / quick), np.nan)


def _carry_out_tails(bench: Bench) -> Findings:
    accuracy = bench.scale["accuracy"]
    courses = {tail: play(bench, tail) for tail in bench.scale["tails"]}
    times = {tail: {name: time_to(c, accuracy) for name, c in found.items()} for tail, found in courses.items()}
    claims = judge(times, accuracy)
    figures = [
        chart(f"Tail {tail:g}: test accuracy by virtual seconds", list(found.values()), "test_accuracy", "seconds",
              claims=[claim.id for claim in claims] if tail == min(courses) else (), log_x=True)
        for tail, found in courses.items()
    ]  # fmt: skip
    rows = [
        (f"{tail:g}", name, f"{np.median(values):.4g}", f"{int(reached.sum())} of {len(values)}")
        for tail, found in times.items()
        for name, (values, reached) in found.items()
    ]
    columns = ("tail", "method", f"median virtual seconds to {accuracy:.0%}", "seeds that reached it")
    tables = [Table("Time to accuracy", columns, rows)]
    tables += [results(f"Ends of the runs, tail {tail:g}", list(found.values())) for tail, found in courses.items()]
    return Findings(claims, figures, tables=tables)


TAILS = Recipe(
    name="straggler-tails",
    title="Time to accuracy under stragglers",
    source="a question of ours",
    about="FedAvg waits for the slowest of ten clients in every round; FedAsync and FedBuff (a buffer of ten) keep ten "
    "at work. A local step takes Pareto times with a minimum of 1 and tails 5, 2.5, 1.5 and 1.2 (at 1 the mean is "
    "infinite). 8 x 8 digits over 50 clients by a Dirichlet law, five local steps, batches of 10; each method's step "
    "is the best of five by the mean training loss of five runs at equal numbers of gradients, on seeds of their own. "
    "Full: more seeds and rounds.",
    scales={
        name: {
            **DIGITS, "cohort": 10, "num_local_steps": 5, "buffer_size": 10, "accuracy": 0.85,
            "step_sizes": (0.03, 0.1, 0.3, 1.0, 3.0), "tails": (5.0, 2.5, 1.5, 1.2), "rounds": rounds,
            "evaluations": 50, "seeds": range(seeds), "tuning_seeds": range(1000, 1005),
        }
        for name, rounds, seeds in (("quick", 100, 5), ("full", 300, 20))
    },
    carry_out=_carry_out_tails,
)  # fmt: skip


# --- alpha -------------------------------------------------------------------------------------------------------


def judge_mixing(ends: Mapping[tuple[str, int, float], np.ndarray]) -> list[Claim]:
    """Final accuracies (seed,) by weighting, largest staleness and alpha."""
    ages, mixings = sorted({s for _, s, _ in ends}), sorted({a for *_, a in ends})
    few, many = ages[0], ages[-1]
    n = len(next(iter(ends.values())))
    rule = "paired seeds, t-interval"
    spread = {w: np.ptp(np.stack([ends[w, many, a] for a in mixings]), axis=0) for w in WEIGHTINGS}
    calmer = {w: above(spread[CONST] - spread[w], 0.0) for w in (POLY, HINGE)}
    best = {s: np.array(mixings)[np.argmax(np.stack([ends[CONST, s, a] for a in mixings]), axis=0)] for s in ages}
    smaller, text = above(best[few] - best[many], 0.0)
    top = mixings[-1]
    helps = {w: above(ends[w, many, top] - ends[CONST, many, top], 0.0) for w in (POLY, HINGE)}
    told = lambda verdicts: "; ".join(f"{name}: {words}" for name, (_, words) in verdicts.items())  # noqa: E731
    all_of = lambda verdicts: all_hold(*(holds for holds, _ in verdicts.values()))  # noqa: E731
    return [
        Claim("smaller-alpha-when-stale", f"Without adaptation the best alpha is smaller for staleness up to {many} "
              f"than up to {few}.", smaller, f"best on average {best[few].mean():.2f} and {best[many].mean():.2f}; "
              f"difference {text}", f"alpha of the highest final accuracy of each seed, {rule}", "above 0", n),
        Claim("adaptation-forgives", f"With staleness up to {many} Poly and Hinge depend less on alpha than Const.",
              all_of(calmer), "; ".join(f"{w} {spread[w].mean():.3f}" for w in WEIGHTINGS) + f"; {told(calmer)}",
              f"range of final accuracies over alpha, Const less the other, {rule}", "above 0 for both", n, "check"),
        Claim("adaptation-helps-at-the-top", f"At alpha = {top:g} and staleness up to {many} Poly and Hinge end above "
              "Const.", all_of(helps), told(helps), rule, "above 0 for both", n, "check"),
    ]  # fmt: skip


def _carry_out_mixing(bench: Bench) -> Findings:
    scale = bench.scale
    kind = Kind("", functools.partial(_home, scale))
    courses = {
        (w, s, a): play_async(bench, kind, w, s, a)
        for w in WEIGHTINGS for s in scale["staleness"] for a in scale["mixings"]
    }  # fmt: skip
    ends = {key: kind.score(course) for key, course in courses.items()}
    claims = judge_mixing(ends)
    figures = [
        profile(
            f"Final test accuracy by alpha, staleness up to {s}", "alpha", scale["mixings"],
            {w: np.stack([ends[w, s, a] for a in scale["mixings"]], axis=1) for w in WEIGHTINGS},
            [claim.id for claim in claims] if s == max(scale["staleness"]) else (),
        )
        for s in scale["staleness"]
    ]  # fmt: skip
    rows = [dataclasses.replace(course, label=f"{w}, S = {s}, alpha = {a:g}") for (w, s, a), course in courses.items()]
    return Findings(claims, figures, tables=[results("Ends of the runs", rows)])


MIXING = Recipe(
    name="fedasync-alpha",
    title="FedAsync's alpha, with and without adaptation",
    source="a question of ours, and the text of Xie et al.'s section 6",
    about="The protocol of figure 2 on 8 x 8 digits over 50 clients by a Dirichlet law: alpha from 0.2 to 1, staleness "
    "up to 4 and up to 32, with Const, Poly (a = 0.5) and Hinge (a = 10, b = 4). Step 0.1, 10 local steps. Full: more "
    "seeds and gradients.",
    scales={
        name: {
            **DIGITS, "num_local_steps": 10, "step_size": 0.1, "proximal_weight": 0.005, "threshold": 4.0,
            "staleness": (4, 32), "mixings": (0.2, 0.4, 0.6, 0.8, 1.0), "gradients": gradients, "evaluations": 30,
            "seeds": range(seeds),
        }
        for name, gradients, seeds in (("quick", 4000, 5), ("full", 20_000, 20))
    },
    carry_out=_carry_out_mixing,
)  # fmt: skip
