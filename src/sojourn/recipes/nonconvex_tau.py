"""What tau costs a non-convex problem: rounds to a gradient norm against tau, local steps against minibatches.

The clients are `problems.nonconvex.cosines`: tau is exact, and the mean objective, the start and the noise are the same
for every tau. Methods that only see means over the clients cannot feel it; CE-LSGD's local steps must.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from sojourn.algorithms import CELSGD, MBSTORM, MinibatchSGD
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from sojourn.problems.nonconvex import cosines
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, above
from sojourn.recipes.charts import banded, lines
from sojourn.recipes.trends import all_grow, all_hold
from sojourn.sweeping import Setting

NUM_CLIENTS, DIMENSION, CONDITION, SPREAD, NOISE, START = 8, 20, 20.0, 1.0, 1.0, 2.5
NUM_LOCAL_STEPS, MOMENTUM, TARGET = 16, 0.3, 0.1  # the target is on |grad F|
STEP_SIZES = tuple(float(2 ** (1.5 - j / 2)) for j in range(13))  # one grid for all methods, in units of 1/a
LOCAL, STORM, MINIBATCH = "CE-LSGD", "MB-STORM", "MB-SGD"
EXCHANGES = {LOCAL: 2, STORM: 1, MINIBATCH: 1}  # rounds of communication in an iteration


def world(tau: float) -> Federation:
    return cosines(
        NUM_CLIENTS, DIMENSION, tau, condition=CONDITION, gradient_spread=SPREAD, noise=NOISE, start=START
    )  # fmt: skip


METHODS: Mapping[str, Callable[[float], Algorithm]] = {
    LOCAL: lambda eta: CELSGD(eta, num_local_steps=NUM_LOCAL_STEPS, momentum=MOMENTUM),
    STORM: lambda eta: MBSTORM(eta, num_local_steps=NUM_LOCAL_STEPS, momentum=MOMENTUM),
    MINIBATCH: lambda eta: MinibatchSGD(eta, num_local_steps=NUM_LOCAL_STEPS),
}


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Rounds of communication to the target, (seed, tau), on seeds that took no part in tuning; the cap if missed."""

    taus: list[float]
    by_method: Mapping[str, np.ndarray]
    steps: Mapping[str, np.ndarray]  # the tuned step sizes, by tau
    most: int  # iterations

    @property
    def num_seeds(self) -> int:
        return len(self.by_method[LOCAL])


def measure(bench: Bench) -> Rounds:
    """Every method with the same step sizes, seeds and samples per iteration; the step of the lowest mean on the first
    half of the seeds is judged on the second half."""
    taus, seeds, most = list(bench.scale["taus"]), list(bench.scale["seeds"]), int(bench.scale["max_iterations"])
    homes = [world(tau) for tau in taus]
    rounds, chosen = {}, {}
    for name, make in METHODS.items():
        settings = [
            Setting(make(eta), seed, {"method": name, "tau": tau, "step_size": eta}, home)
            for tau, home in zip(taus, homes, strict=True)
            for eta in STEP_SIZES
            for seed in seeds
        ]
        table = bench.sweep(name, settings, most, eval_every=1).table
        there = table[(table["grad_norm"] <= TARGET) & (table["round"] > 0)].groupby("setting")["round"].min()
        first = np.full(len(settings), float(most))
        first[there.index] = there
        picked = [_tuned(runs) for runs in first.reshape(len(taus), len(STEP_SIZES), len(seeds))]
        rounds[name] = EXCHANGES[name] * np.stack([found for _, found in picked], axis=1)
        chosen[name] = np.array([STEP_SIZES[best] for best, _ in picked])
    return Rounds(taus, rounds, chosen, most)


def _tuned(runs: np.ndarray) -> tuple[int, np.ndarray]:
    """Of rounds (step size, seed): the best step on the first half of the seeds, and the second half with it."""
    half = runs.shape[1] // 2
    best = int(runs[:, :half].mean(axis=1).argmin())
    return best, runs[best, half:]


def judge(rounds: Rounds) -> list[Claim]:
    local, n = rounds.by_method[LOCAL], rounds.num_seeds
    grows, text = all_grow({LOCAL: local}, 0.9)
    rise = above(local[:, -1] / local[:, 0], 2.0)
    low, high = rounds.taus[0], rounds.taus[-1]
    flat = [rounds.by_method[name] for name in (STORM, MINIBATCH)]
    saved = {name: above(rounds.by_method[name][:, 0] - local[:, 0], 0.0) for name in (STORM, MINIBATCH)}
    lost = {name: above(local[:, -1] - rounds.by_method[name][:, -1], 0.0) for name in (STORM, MINIBATCH)}
    told = lambda found: "; ".join(f"{name} by {entry[1]}" for name, entry in found.items())  # noqa: E731
    return [
        Claim(
            "local-rounds-grow", "CE-LSGD's rounds grow with tau.", grows, f"{text}; {_shown(rounds, LOCAL)}",
            "Spearman coefficient of the mean over seeds, bootstrap over seeds", "interval above 0.9", n,
        ),
        Claim(
            "local-rounds-multiply", f"From tau = {low:g} to {high:g} they more than double.", rise[0],
            f"R({high:g}) / R({low:g}): {rise[1]}", "t-interval over seeds", "above 2", n, "check",
        ),
        Claim(
            "minibatch-rounds-do-not", "Those of MB-STORM and MB-SGD do not depend on tau.",
            all(bool((found == found[:, :1]).all()) for found in flat),
            f"{STORM} {_shown(rounds, STORM)}; {MINIBATCH} {_shown(rounds, MINIBATCH)}",
            "rounds of every seed, at every tau", "equal", n, "check",
        ),
        Claim(
            "local-steps-win-when-alike", f"At tau = {low:g} CE-LSGD needs fewer rounds than either, two counted for "
            "each of its iterations.",
            all_hold(*(found[0] for found in saved.values())), f"fewer than {told(saved)}",
            "paired differences over seeds, t-interval", "above 0", n,
        ),
        Claim(
            "local-steps-lose-when-not", f"At tau = {high:g}, where the mean's curvature is at most 1, it needs more "
            "than either.",
            all_hold(*(found[0] for found in lost.values())), f"more than {told(lost)}",
            "paired differences over seeds, t-interval", "above 0", n, "check",
        ),
        _inside(rounds),
    ]  # fmt: skip


def _inside(rounds: Rounds) -> Claim:
    ends = {name: (float(found.min()), float(found.max())) for name, found in rounds.steps.items()}
    return Claim(
        "steps-inside-the-grid", "No tuned step lies at an end of the grid.",
        all(min(STEP_SIZES) < low and high < max(STEP_SIZES) for low, high in ends.values()),
        "; ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in ends.items()),
        f"the best of {min(STEP_SIZES):.3g} to {max(STEP_SIZES):.3g}, at every tau", "inside", by="check",
    )  # fmt: skip


def _shown(rounds: Rounds, name: str) -> str:
    means = rounds.by_method[name].mean(axis=0)
    return ", ".join(f"{mean:.1f} at {tau:g}" for tau, mean in zip(rounds.taus, means, strict=True))


def _carry_out(bench: Bench) -> Findings:
    rounds = measure(bench)
    claims = judge(rounds)
    rows = [row for name, found in rounds.by_method.items() for row in banded(name, rounds.taus, found)]
    spec = lines(rows, x="tau", y=f"rounds until |grad F| = {TARGET}", log_y=True, dashed=(STORM, MINIBATCH))
    note = (
        f"Mean over {rounds.num_seeds} seeds that took no part in tuning; bands are 95% bootstrap intervals. An "
        f"iteration of CE-LSGD counts as two rounds; every iteration has {NUM_LOCAL_STEPS} samples per client for the "
        f"estimate, and {NUM_LOCAL_STEPS - 1} more of one client in CE-LSGD. The cap is {rounds.most} iterations."
    )
    return Findings(claims, [Figure("Rounds to the target", spec, note, tuple(claim.id for claim in claims))])


RECIPE = Recipe(
    name="nonconvex-tau",
    title="Local steps on a non-convex problem save rounds while Hessians are close",
    source="thesis, theorems 13, 14 and 27 and table 6.1",
    about=f"{NUM_CLIENTS} clients in {DIMENSION} dimensions, sums of cosines with curvatures from 1 to "
    f"1/{CONDITION:g}, clients' gradients {SPREAD:g} apart at zero, noise {NOISE:g}, started where the objective is "
    f"concave; K = {NUM_LOCAL_STEPS}, momentum {MOMENTUM}. The thesis has no such experiment. Each method's step size "
    f"is tuned on the same {len(STEP_SIZES)} values, a factor of root two apart.",
    scales={
        "quick": {"taus": (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0), "seeds": range(16), "max_iterations": 80},
        "full": {"taus": (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0), "seeds": range(48),
                 "max_iterations": 120},
    },
    carry_out=_carry_out,
)  # fmt: skip
