"""Not waiting for the slowest (Xie et al.): FedAsync, rehearsed on the miniature with the stragglers that were stated.

Who comes when is a trace of virtual time, drawn three times; a setting takes as long as in the worst of them, and is
there when two looks in a row, a cohort's worth of uploads apart, find the target. Late answers count by their rules:
from a staleness of about 8 on by a hinge (slope 10, threshold 4), before that all alike. The proximal weight is 0.005,
or the weak-convexity constant where that was measured. A visit of K steps from x ends at x + phi(A + rho) (A x + g), as
in `rehearsal`.

It comes first only if it gets there in less virtual time than every method that waits. Without a miniature its bias is
not known, and a rule of thumb does not compete.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.advice.answer import REHEARSED, RULE, Contender
from sojourn.advice.asked import Budget
from sojourn.advice.contest import Scene, priced, scores
from sojourn.advice.rehearsal import Grid, Picture, Rehearsed, Stage, picture_of
from sojourn.advice.stragglers import trace_of
from sojourn.diagnosis.findings import Diagnosis
from sojourn.traces import Trace

LATE = 8  # staleness from which answers are weighed by it
_SEEDS = 3
_MOST_UPLOADS = 6000
_MIXINGS = (0.05, 0.15, 0.3, 0.6, 0.9)
_STEPS = 2.0 ** np.arange(-7.0, 1.0)  # times 1/H
_LIMIT = 1e6


def with_stragglers(
    found: list[Contender], budget: Budget, diagnosis: Diagnosis, scene: Scene | None, tried: bool
) -> list[Contender]:
    """FedAsync among the contenders where stragglers or staleness are given; first where waiting takes longer."""
    if (budget.staleness is None and budget.slowest is None) or diagnosis.num_clients == 1:
        return found
    if scene is None or diagnosis.miniature is None:
        return [*found, _by_rule(found, budget, diagnosis)]
    made, seconds = _rehearsed(scene, budget, diagnosis)
    others = [(c.seconds, c.title) for c in found if c.fits and c.reaches and c.seconds is not None]
    least, who = min(others, default=(math.inf, ""))
    if budget.slowest is None or not made.reaches:
        return [*found, made]
    told = f"{seconds:.3g} virtual seconds, one being the median client's gradient"
    told += f"; {who}, which waits, takes {least:.3g}" if who else ""
    made = dataclasses.replace(made, note=f"{made.note}; {told}")
    first = seconds < least and made.fits and not tried
    return [made, *found] if first else [*found, made]


def _by_rule(found: list[Contender], budget: Budget, diagnosis: Diagnosis) -> Contender:
    """Listed, and not taken."""
    H = diagnosis.value("smoothness") or 1.0
    options = _options(1 / (2 * H), found[0].num_local_steps, 0.6, _age(budget, diagnosis), diagnosis)
    why = "where its bias leaves it is not known without a miniature"
    made = Contender("fedasync", options, math.inf, 0.0, 0.0, RULE, False, why, ruled_out=True)
    return priced(made, dataclasses.replace(budget, participation=None), diagnosis.num_clients, diagnosis.dimension)


def _age(budget: Budget, diagnosis: Diagnosis) -> int:
    """The staleness that is to be expected; as many as there are clients where it is not given."""
    return diagnosis.num_clients if budget.staleness is None else budget.staleness


def _options(step: float, K: int, mixing: float, age: int, diagnosis: Diagnosis) -> dict[str, Any]:
    bend = diagnosis.value("weak_convexity", 0.0) or 0.0
    late = {"staleness_weight": "hinge", "slope": 10.0, "threshold": 4.0} if age >= LATE else {}
    rounded = float(f"{step:.6g}")
    proximal = max(0.005, float(f"{bend:.6g}"))
    return {"step_size": rounded, "num_local_steps": K, "mixing": mixing, "proximal_weight": proximal, **late}


def _rehearsed(scene: Scene, budget: Budget, diagnosis: Diagnosis) -> tuple[Contender, float]:
    """The setting that takes the least virtual time, and that time; inf where none gets there."""
    assert diagnosis.miniature is not None
    clients = len(diagnosis.miniature.weights)
    # every upload is one client's, with its own noise, however many there are
    picture = picture_of(diagnosis.miniature, clients, convexify=True)
    age = _age(budget, diagnosis)
    grid = _grid(scene, budget)
    proximal = _options(1.0, 1, 0.6, age, diagnosis)["proximal_weight"]
    uploads = min(_MOST_UPLOADS, clients * scene.max_rounds)
    rounds, low, ends = np.zeros(len(grid.steps)), np.full(len(grid.steps), -np.inf), []
    for seed in range(_SEEDS):
        trace = trace_of(budget, clients, uploads, scene.seed + seed)
        played = _Play(picture, scene, grid, trace, proximal, age >= LATE, scene.seed + seed).to_the_end(uploads)
        rounds, low = np.maximum(rounds, played[0]), np.maximum(low, played[1])
        ends.append(trace.uploads.time)
    seconds = np.array([_seconds(ends, clients, r, K) for r, K in zip(rounds, grid.local_steps, strict=True)])
    chosen = int(np.argmin(scores(Rehearsed(grid, seconds, low, seconds), scene.exact)))
    options = _options(grid.steps[chosen], int(grid.local_steps[chosen]), float(grid.outer[chosen]), age, diagnosis)
    note = "rounds are a cohort's worth of uploads"
    made = Contender(
        "fedasync", options, float(rounds[chosen]), 0.0, 0.0, REHEARSED, True, lowest=float(low[chosen]), note=note
    )
    everyone = dataclasses.replace(budget, participation=None)
    made = priced(made, everyone, diagnosis.num_clients, diagnosis.dimension)
    taken = float(seconds[chosen])
    return dataclasses.replace(made, seconds=None if budget.slowest is None else taken), taken


def _seconds(ends: list[np.ndarray], clients: int, rounds: float, K: int) -> float:
    if not math.isfinite(rounds):
        return math.inf
    return max(float(K * end[int(rounds) * clients - 1]) for end in ends)


def _grid(scene: Scene, budget: Budget) -> Grid:
    steps = [K for number, K in enumerate(budget.steps_to_try()) if number % 2 == 0]
    sizes = _STEPS / scene.smoothness
    points = [(size, K, mixing) for K in steps for mixing in _MIXINGS for size in sizes]
    return Grid("fedasync", *(np.array(column) for column in zip(*points, strict=True)))


class _Play:
    """All settings side by side on one trace."""

    def __init__(
        self, picture: Picture, scene: Scene, grid: Grid, trace: Trace, proximal: float, late: bool, seed: int
    ) -> None:
        self.picture, self.scene, self.grid, self.uploads = picture, scene, grid, trace.uploads
        with np.errstate(all="ignore"):
            self.stage = Stage(picture, grid, 1, len(picture.weights), seed)
            self.drift, self.jitter = self.stage.walk(picture.values + proximal)
        self.weights = _by_age(self.uploads.staleness, late)

    def models(self, number: int) -> Iterable[np.ndarray]:
        """The server's, after every upload."""
        x = self.stage.models()[..., 0]
        kept = {0: x}
        oldest = int(self.uploads.staleness.max()) + 1
        for i in range(number):
            y = self._visit(int(self.uploads.client[i]), kept[i - int(self.uploads.staleness[i])])
            weight = self.weights[i] * self.grid.outer
            x = (1 - weight) * x + weight * y
            kept[i + 1] = x
            kept.pop(i - oldest, None)
            yield x

    def _visit(self, client: int, x: np.ndarray) -> np.ndarray:
        inside = self.stage.inward[client] @ x
        pull = self.picture.values[client][:, None] * inside + self.stage.pull[client, :, :, 0]
        moved = self.drift[client, :, :, 0] * pull
        if self.picture.noisy:
            moved = moved + self.jitter[client, :, :, 0] * self.stage.rng.standard_normal((len(moved), 1))
        return np.asarray(x + self.picture.vectors[client] @ moved)

    def to_the_end(self, uploads: int) -> tuple[np.ndarray, np.ndarray]:
        """Rounds to the target of every setting, inf where it does not get there, and the lowest value on the way."""
        clients, kind = len(self.picture.weights), self.scene.kind
        low = np.asarray(self.picture.metric(kind, self.stage.models()[..., 0]))
        limit = _LIMIT * max(float(np.abs(low).max()), 1e-300)
        rounds, below = np.full(len(low), np.inf), np.zeros(len(low), bool)
        with np.errstate(all="ignore"), threadpool_limits(1, "blas"):
            for number, x in enumerate(self.models(min(uploads, len(self.uploads.client))), 1):
                if number % clients:
                    continue
                value = np.asarray(self.picture.metric(kind, x))
                fine = value <= self.scene.target
                rounds = np.where(np.isinf(rounds) & fine & below, number // clients, rounds)
                low, below = np.where(np.abs(value) < limit, np.fmin(low, value), low), fine
                if number // clients >= 2 * np.min(rounds * self.grid.local_steps):
                    break  # even with K = 1 nobody would be quicker now
        return rounds, low


def _by_age(staleness: np.ndarray, late: bool) -> np.ndarray:
    """What uploads count: as algorithms/staleness.py, a hinge of slope 10 from 4 on, or all alike."""
    age = np.asarray(staleness, float)
    return np.where(age <= 4, 1.0, 1 / (10 * np.maximum(age - 4, 0) + 1)) if late else np.ones_like(age)
