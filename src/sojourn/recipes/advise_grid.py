"""What is asked of a federation, and the fewest rounds in which a declared grid of methods gives it.

The target, fixed by rule before anything is run: where the optimum is known, a share of the gap F(x_0) - F(x_*); for
networks, the lowest training loss of minibatch SGD over the grid's steps after a given number of rounds. It is reached
in the first round whose loss is not above it, the mean over seeds where gradients are noisy, for networks the median of
the last five rounds. Rounds are trips of messages: a CE-LSGD iteration has two.

The grid is raced: all settings run for a few rounds first, and go on only if none is there. The best is exact, as
whoever is left behind would have been later.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.algorithms import ACSA, CELSGD, FedAc, FedAvg, MinibatchSGD, Scaffold
from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.history import History
from sojourn.recipes.advise_federations import Declared
from sojourn.sweeping import Setting, sweep_settings

EXPONENTS = (-4, -3, -2, -1, 0, 1)  # step sizes are 2^j / H; for networks 2^j
LOCAL_STEPS = (1, 4, 16, 64)
DEFAULT_STEPS = 10
GAP_SHARE, NOISY_GAP_SHARE = 1e-4, 1e-2
SEEDS, NOISY_SEEDS = (0,), (0, 1, 2)
MOMENTUM = 0.3  # CE-LSGD's
MEDIAN_OF = 5
REFERENCE_STEPS, REFERENCE_ROUNDS = 16, 60


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long is waited: rounds, by family, and the share of them that the first heat of a race has."""

    rounds: Mapping[str, int]
    first_heat: float = 0.2


@dataclasses.dataclass(frozen=True)
class Aim:
    """A federation with its target."""

    declared: Declared
    federation: Federation
    target: float  # of the training loss
    max_rounds: int

    @property
    def seeds(self) -> Sequence[int]:
        return NOISY_SEEDS if self.declared.noisy and self.declared.family != "network" else SEEDS

    @property
    def gap(self) -> float | None:
        """The target as F - F(x_*), where that is known."""
        known = self.federation.facts.f_star
        return None if known is None else self.target - known

    @property
    def smoothness(self) -> float:
        """H, by which steps are scaled; 1 where it is not known."""
        return self.federation.facts.smoothness or 1.0


@dataclasses.dataclass(frozen=True)
class Arrival:
    """When a method reached the target, if it did: rounds of communication, and numbers sent and received by all."""

    label: str
    rounds: float  # infinite: never
    floats: float

    @property
    def reached(self) -> bool:
        return bool(np.isfinite(self.rounds))


def never(label: str) -> Arrival:
    return Arrival(label, np.inf, np.inf)


# --- curves ------------------------------------------------------------------------------------------------------


def losses_of(history: History, num_settings: int, rounds: int) -> np.ndarray:
    """The training loss (setting, round) from the start on; infinite from where a run has none or has diverged."""
    table = history.table
    number = table["setting"] if "setting" in table else np.zeros(len(table), int)
    found = np.full((num_settings, rounds + 1), np.inf)
    fine = np.isfinite(table["loss"]) & ~table["diverged"].astype(bool)
    found[number[fine], table["round"][fine]] = table["loss"][fine]
    return found


def smoothed(losses: np.ndarray, family: str) -> np.ndarray:
    """One curve out of several seeds' (seed, round): their mean, or for networks the running median of the last."""
    curve = losses.mean(axis=0)
    if family != "network":
        return np.asarray(curve)
    padded = np.concatenate([np.full(MEDIAN_OF - 1, np.inf), curve])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_OF), axis=1))


def first_at(curve: np.ndarray, target: float) -> int | None:
    """The first round whose loss is not above the target."""
    there = np.flatnonzero(curve <= target)
    return int(there[0]) if len(there) else None


def trips(algorithm: Algorithm, rounds: int) -> int:
    """Rounds of communication in so many rounds of a method; the first may open with others."""
    steady, opening = len(algorithm.exchanges()), len(algorithm.opening())
    return rounds * steady + ((opening - steady) if opening and rounds else 0)


def arrival(label: str, algorithm: Algorithm, losses: np.ndarray, floats: float, aim: Aim) -> Arrival:
    """From losses (seed, round) and the numbers that a round sends and brings."""
    at = first_at(smoothed(losses, aim.declared.family), aim.target)
    if at is None or trips(algorithm, at) > aim.max_rounds:
        return never(label)
    return Arrival(label, float(trips(algorithm, at)), floats * at)


def floats_per_round(history: History) -> dict[int, float]:
    """By setting: the mean over rounds of what all clients send and receive."""
    table = history.table[history.table["round"] > 0]
    sums = table["floats_down"] + table["floats_up"]
    by = table["setting"] if "setting" in table else np.zeros(len(table), int)
    return {int(k): float(v) for k, v in sums.groupby(by).mean().items()}


# --- the target --------------------------------------------------------------------------------------------------


def aim_at(declared: Declared, limits: Limits) -> Aim:
    """The federation and its target, by the rule above."""
    federation = declared.build()
    rounds = limits.rounds[declared.family]
    blank = Aim(declared, federation, np.inf, rounds)
    if declared.family == "network":
        methods = [MinibatchSGD(step, REFERENCE_STEPS) for step in steps(blank)]
        history = swept(blank, methods, REFERENCE_ROUNDS)
        curves = losses_of(history, len(methods), REFERENCE_ROUNDS)
        ends = [smoothed(curve[None], declared.family)[-1] for curve in curves]
        return dataclasses.replace(blank, target=float(np.min(ends)))
    f_star = federation.facts.f_star
    if f_star is None:
        raise SojournError(f"{declared.name} has no known optimum, so no target by its gap.")
    start = federation.clients.metrics(federation.x0)
    share = NOISY_GAP_SHARE if declared.noisy else GAP_SHARE
    return dataclasses.replace(blank, target=f_star + share * (float(start["loss"]) - f_star))


# --- the grid ----------------------------------------------------------------------------------------------------


def steps(aim: Aim) -> list[float]:
    return [2.0**j / aim.smoothness for j in EXPONENTS]


def contestants(aim: Aim, local_steps: Sequence[int] = LOCAL_STEPS) -> dict[str, list[Algorithm]]:
    """By method and K: the algorithms that differ in real numbers alone, which share a program."""
    mu = aim.federation.facts.strong_convexity or 0.0
    pooled = local_steps if aim.declared.noisy else (1,)  # exact gradients do not get better by asking twice
    slopes = sorted({0.0, mu})
    found: dict[str, list[Algorithm]] = {}
    for k in pooled:
        found[f"MB-SGD, K = {k}"] = [MinibatchSGD(eta, k) for eta in steps(aim)]
        found[f"AC-SA, K = {k}"] = [ACSA(1 / eta, slope, k) for eta in steps(aim) for slope in slopes]
    for k in local_steps:
        if k == 1:
            continue  # one local step is minibatch SGD
        found[f"FedAvg, K = {k}"] = [FedAvg(eta, k) for eta in steps(aim)]
        found[f"SCAFFOLD, K = {k}"] = [Scaffold(eta, k) for eta in steps(aim)]
        if mu > 0:
            found[f"FedAc, K = {k}"] = [FedAc(eta, mu, k) for eta in steps(aim)]
        if aim.declared.family == "network":
            found[f"CE-LSGD, K = {k}"] = [CELSGD(eta, k, momentum=MOMENTUM) for eta in steps(aim)]
    return found


def default_contestants(aim: Aim) -> dict[str, list[Algorithm]]:
    """FedAvg as it is found: K = 10, and a step that somebody tuned."""
    return {f"FedAvg, K = {DEFAULT_STEPS}": [FedAvg(eta, DEFAULT_STEPS) for eta in steps(aim)]}


def race(aim: Aim, groups: Mapping[str, Sequence[Algorithm]], first_heat: float) -> list[Arrival]:
    """Everyone's arrival, in heats; the quickest is exact, one that is not there by the last heat run is never."""
    heats = sorted({max(1, round(first_heat * aim.max_rounds)), aim.max_rounds})
    arrivals: list[Arrival] = []
    for rounds in heats:
        arrivals = [found for label, group in groups.items() for found in _heat(aim, label, group, rounds)]
        if any(one.rounds <= rounds for one in arrivals):
            break
    return arrivals


def _heat(aim: Aim, label: str, group: Sequence[Algorithm], rounds: int) -> list[Arrival]:
    iterations = max(1, rounds // len(group[0].exchanges()))
    history = swept(aim, group, iterations)
    seeds = len(aim.seeds)
    losses = losses_of(history, len(group) * seeds, iterations).reshape(len(group), seeds, -1)
    floats = floats_per_round(history)
    return [
        arrival(f"{label}, {numbers(algorithm)}", algorithm, losses[i], floats[i * seeds], aim)
        for i, algorithm in enumerate(group)
    ]


def numbers(algorithm: Algorithm) -> str:
    """A method's step size as tables show it."""
    told = algorithm.describe()
    if "step_size" in told:
        return f"step {told['step_size']:.3g}"
    return f"L {told['smoothness']:.3g}" + (f", mu {told['strong_convexity']:.2g}" if told["strong_convexity"] else "")


def swept(aim: Aim, group: Sequence[Algorithm], rounds: int) -> History:
    settings = [Setting(method, seed, {"method": i}) for i, method in enumerate(group) for seed in aim.seeds]
    history = sweep_settings(aim.federation, settings, rounds, eval_every=1, progress=False)
    if history.status == "stopped":
        raise KeyboardInterrupt
    return history


def best(arrivals: Iterable[Arrival], by: str = "rounds") -> Arrival:
    """The first to arrive, in rounds or in floats; of equals the one that sent less."""
    return min(arrivals, key=lambda one: (getattr(one, by), one.floats))


def oracle(aim: Aim, limits: Limits, local_steps: Sequence[int] = LOCAL_STEPS) -> dict[str, Any]:
    """The best of the grid and the tuned default, as plain values that can be kept."""
    raced = functools.partial(race, aim, first_heat=limits.first_heat)
    grid = raced(contestants(aim, local_steps))
    found = {
        "best": best(grid),
        "fewest_floats": best(grid, "floats"),
        "default": best(raced(default_contestants(aim))),
    }
    return {"target": aim.target, **{name: dataclasses.asdict(one) for name, one in found.items()}}


def question(declared: Declared, limits: Limits, local_steps: Sequence[int] = LOCAL_STEPS) -> dict[str, Any]:
    """All that an oracle's answer depends on."""
    rules = [EXPONENTS, local_steps, DEFAULT_STEPS, GAP_SHARE, NOISY_GAP_SHARE, SEEDS, NOISY_SEEDS, MOMENTUM, MEDIAN_OF,
             REFERENCE_STEPS, REFERENCE_ROUNDS, limits.rounds[declared.family], limits.first_heat]  # fmt: skip
    return {"declared": dataclasses.asdict(declared) | {"quick": None}, "rules": rules}
