"""A trial: a short race of a few settings on the federation itself, the weaker half leaving at every stage.

Worth its cost where a quadratic picture says little, as for networks. The settings are the rehearsal's best, and steps
four times longer and shorter; all that is sent and computed on the way is counted.
"""

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np

from sojourn.advice.answer import BOUND, REHEARSED, TRIED, Contender
from sojourn.advice.asked import Budget, Target
from sojourn.advice.contest import priced
from sojourn.advice.methods import build, price, trips
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import size
from sojourn.diagnosis.findings import Diagnosis
from sojourn.sweeping import Setting, sweep_settings

_STAGES = 3
_FACTORS = (1.0, 4.0, 0.25)
_METHODS = 5  # that enter


@dataclasses.dataclass(frozen=True)
class Runner:
    """A setting in the race, and what it did."""

    contender: Contender
    values: np.ndarray  # of the target's metric, round by round from the start
    diverged: np.ndarray

    def expected(self, rounds: int, target: Target) -> float:
        """Trips to the target: seen, or by going on as in the second half so far; inf where it does not fall."""
        length = self.iterations(rounds)
        values = self.values[: length + 1]
        reached = np.flatnonzero(values <= target.value)
        if len(reached):
            return float(self.trips * reached[0])
        if self.diverged[: length + 1].any() or len(values) < 3 or not (np.isfinite(values) & (values > 0)).all():
            return np.inf
        half = len(values) // 2
        slope = (np.log(values[half]) - np.log(values[-1])) / (len(values) - 1 - half)
        if slope <= 0 or target.value <= 0:
            return np.inf
        return float(self.trips * (len(values) - 1 + (np.log(values[-1]) - np.log(target.value)) / slope))

    @property
    def trips(self) -> int:
        """Of messages in an iteration."""
        return trips(self.contender.name, self.contender.options)

    def iterations(self, rounds: int) -> int:
        """In so many trips, and two at least: fewer show no slope."""
        return min(len(self.values) - 1, max(2, rounds // self.trips))


@dataclasses.dataclass(frozen=True)
class Trial:
    """How a race went."""

    finished: tuple[Contender, ...]  # the best first
    rounds: int  # trips of messages, in all
    floats: float
    gradients: float
    settings: int

    def told(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "floats": self.floats, "gradients": self.gradients, "settings": self.settings}

    def merged(self, found: list[Contender], budget: Budget, diagnosis: Diagnosis) -> list[Contender]:
        """Those that finished first, in the race's order and with its numbers; the others as they were."""
        tried: dict[str, Contender] = {}
        for contender in self.finished:
            tried.setdefault(contender.name, contender)
        made = [priced(c, budget, diagnosis.num_clients, diagnosis.dimension) for c in tried.values()]
        left = [c for c in found if c.name not in tried]
        early = "left the trial early"
        entered = {c.name for c in entrants(found)}
        return [*made, *(dataclasses.replace(c, note=c.note or early) if c.name in entered else c for c in left)]


def race(
    federation: Federation, target: Target, budget: Budget, found: list[Contender], rounds: int, seed: int
) -> Trial | None:
    """Stages of a quarter, a half and all of the rounds; only those that are still in it go on, and are counted.

    None where the target's metric is not recorded, or nobody gets anywhere.
    """
    record = () if target.column in federation.clients.metrics(federation.x0) else (target.column,)
    if target.kind == "distance" and record:
        return None  # x* is not known
    runners = _played(federation, entrants(found), rounds, target, budget, record, seed)
    lasted: dict[int, int] = {}  # by the runner's place at the start
    settings, still = len(runners), list(range(len(runners)))
    for stage in range(_STAGES):
        length = min(rounds, max(2, rounds >> (_STAGES - 1 - stage)))
        lasted |= {number: runners[number].iterations(length) for number in still}
        expected = {number: runners[number].expected(length, target) for number in still}
        order = sorted((n for n in still if expected[n] < np.inf), key=lambda n: (expected[n], n))
        still = order if stage == _STAGES - 1 else order[: max(2, math.ceil(len(order) / 3))]
    if not still:
        return None
    done = [dataclasses.replace(runners[n].contender, rounds=expected[n], basis=TRIED) for n in still]
    prices = {n: price(runners[n].contender.name, runners[n].contender.options, federation.num_clients) for n in lasted}
    each = size(federation.x0) * budget.cohort(federation.num_clients)
    floats = sum(length * prices[n].vectors * each for n, length in lasted.items())
    share = budget.cohort(federation.num_clients) / federation.num_clients
    gradients = share * sum(length * prices[n].gradients for n, length in lasted.items())
    rounds = sum(length * runners[n].trips for n, length in lasted.items())
    return Trial(tuple(done), rounds, floats, gradients, settings)


def entrants(found: list[Contender]) -> list[Contender]:
    """The contenders that fit, the best first, with their steps, and steps four times longer and shorter."""
    chosen = []
    basis = REHEARSED if any(c.basis == REHEARSED for c in found) else BOUND
    for contender in [c for c in found if c.fits and c.basis == basis][:_METHODS]:
        for factor in _FACTORS:
            name = "smoothness" if contender.name == "ac-sa" else "step_size"
            value = contender.options[name] * (1 / factor if name == "smoothness" else factor)
            with contextlib.suppress(SojournError):  # FedAc refuses some
                build(contender.name, {**contender.options, name: value})
                chosen.append(dataclasses.replace(contender, options={**contender.options, name: value}))
    return chosen


def _played(
    federation: Federation, entered: list[Contender], rounds: int, target: Target, budget: Budget,
    record: tuple[str, ...], seed: int,
) -> list[Runner]:  # fmt: skip
    """All of them to the end, in few programs: who leaves early is only counted so far."""
    settings = [
        Setting(build(contender.name, contender.options), seed, {"runner": number})
        for number, contender in enumerate(entered)
    ]
    if not settings:
        return []
    how: dict[str, Any] = {"eval_every": 1, "record": record, "participation": budget.participation, "progress": False}
    table = sweep_settings(federation, settings, rounds, **how).table
    values = [table[table["runner"] == number] for number in range(len(entered))]
    return [
        Runner(contender, own[target.column].to_numpy(float), own["diverged"].to_numpy(bool))
        for contender, own in zip(entered, values, strict=True)
    ]
