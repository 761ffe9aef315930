"""Contests on neural federations: contenders that share data, starts and random numbers, seed by seed.

A contender's step size is the best of one declared grid, by the training loss at the end, on seeds that take no part in
the verdict. Test data choose nothing.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm
from sojourn.config import validate
from sojourn.core.federation import Federation
from sojourn.experiment import build_federation
from sojourn.recipes.base import Bench, Figure, Table
from sojourn.recipes.charts import banded, lines
from sojourn.sweeping import Setting

TUNING_SEEDS = (1000,)
METRICS = ("loss", "accuracy", "test_loss", "test_accuracy", "test_perplexity")  # those that the problem has
Metric = Literal["loss", "accuracy", "test_loss", "test_accuracy", "test_perplexity"]
Axis = Literal["rounds", "trips", "floats", "steps", "gradients", "seconds"]
_AXES = {"rounds": "round", "trips": "rounds of communication",
         "floats": "numbers sent and received, all clients", "steps": "local steps of a client",
         "gradients": "gradients, all clients", "seconds": "virtual seconds"}  # fmt: skip
_WORDS = {"loss": "training loss", "accuracy": "training accuracy", "test_loss": "test loss",
          "test_accuracy": "test accuracy", "test_perplexity": "test perplexity"}  # fmt: skip


def world(
    seed: int, data: Mapping[str, Any], partition: Mapping[str, Any], model: Mapping[str, Any], **problem: Any
) -> Federation:
    """A classification problem from tables as a config has them; the seed deals the samples and draws the start."""
    tables = {
        "problem": {"name": "classification", **problem},
        "data": dict(data),
        "partition": {**partition, "seed": seed},
        "model": {**model, "seed": seed},
        "algorithm": {"name": "fedavg", "step_size": 1.0},
        "run": {"rounds": 1},
    }
    return build_federation(validate(tables))


@dataclasses.dataclass(frozen=True)
class Contender:
    """A method on a kind of federation, and the step sizes it may choose from."""

    label: str
    make: Callable[[float], Algorithm]  # from a step size
    home: Callable[[int], Federation]  # from a seed
    step_sizes: Sequence[float]
    rounds: int  # of an asynchronous method, uploads
    time: Callable[[int, Algorithm], Mapping[str, Any]] = lambda seed, method: {}  # a trace or devices, from a seed


@dataclasses.dataclass(frozen=True)
class Curves:
    """A contender's course: metrics (seed, evaluation) at its best step size."""

    label: str
    step_size: float
    caveat: str  # what is to be known of the choice of the step size; mostly nothing
    rounds: np.ndarray  # (evaluation,)
    floats: np.ndarray
    steps: np.ndarray
    metrics: Mapping[str, np.ndarray]
    gradients: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    times: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))  # (seed, evaluation), virtual
    trips: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # where a round has several exchanges

    @property
    def seconds(self) -> np.ndarray:
        """Virtual seconds, the mean over seeds."""
        return np.asarray(self.times.mean(axis=0))

    def final(self, metric: Metric, last: int = 1) -> np.ndarray:
        """The mean over the last evaluations, for every seed."""
        return np.asarray(self.metrics[metric][:, -last:].mean(axis=1))

    def area(self, metric: Metric, share: float) -> np.ndarray:
        """The mean over evaluations in the first share of the rounds, the start left out, for every seed."""
        early = (self.rounds > 0) & (self.rounds <= share * self.rounds[-1])
        return np.asarray(self.metrics[metric][:, early].mean(axis=1))


@dataclasses.dataclass(frozen=True)
class Contest:
    """How contenders are played: on which seeds, with how many clients a round, and how often they are evaluated."""

    bench: Bench
    seeds: Sequence[int]
    participation: int | float | None = None
    evaluations: int = 20
    eval_every: int | None = None  # in place of a number of evaluations
    tuning_rounds: int | None = None  # None: as many as are played in the end
    tuning_seeds: Sequence[int] = TUNING_SEEDS
    one_by_one: bool = False  # one program for tuning and all seeds: for networks whose compilation outlasts their runs

    def play(self, contender: Contender, step_size: float | None = None) -> Curves:
        """Chooses the step size, unless it is given, and plays all seeds with it."""
        caveat = ""
        if step_size is None:
            step_size, caveat = self.tune(contender)
        settings = _settings(contender, [step_size], self.seeds)
        table = self._sweep(contender.label, settings, contender.rounds)
        sums = table[["setting", "floats_down", "floats_up"]].groupby("setting").cumsum()
        table["floats"] = sums["floats_down"] + sums["floats_up"]
        each = table["local_steps"] / table["participants"].clip(lower=1)  # of one client, in a round
        table["steps"] = each.groupby(table["setting"]).cumsum()
        table["gradients"] = table["local_steps"].groupby(table["setting"]).cumsum()
        table["virtual_seconds"] = table.get("virtual_seconds", 0.0)
        seen = table[table["loss"].notna()]  # a run that diverged may have ended early: its rest is nan
        rounds = np.unique([*range(0, contender.rounds, self._every(contender.rounds)), contender.rounds])
        by_seed = {
            name: seen.pivot(index="setting", columns="round", values=name).reindex(
                range(len(settings)), columns=rounds
            )
            for name in (*METRICS, "floats", "steps", "gradients", "virtual_seconds")
            if name in seen
        }
        metrics = {name: by_seed[name].to_numpy() for name in METRICS if name in by_seed}
        # alike in all seeds, but for what was thrown away or lost in virtual time
        floats, steps, gradients = (by_seed[name].max().to_numpy() for name in ("floats", "steps", "gradients"))
        times = by_seed["virtual_seconds"].to_numpy()
        return Curves(contender.label, step_size, caveat, rounds, floats, steps, metrics, gradients, times)

    def tune(self, contender: Contender) -> tuple[float, str]:
        """The step size of the lowest training loss at the end, with a caveat."""
        grid = list(contender.step_sizes)
        if len(grid) == 1:
            return grid[0], ""
        losses = self.losses(contender)
        return grid[int(losses.argmin())], caveat_of(losses)

    def losses(self, contender: Contender) -> np.ndarray:
        """The training loss at the end of the tuning rounds for every step size; infinite where a run diverged."""
        settings = _settings(contender, contender.step_sizes, self.tuning_seeds)
        rounds = min(contender.rounds, self.tuning_rounds or contender.rounds)
        table = self._sweep(f"{contender.label} tuning", settings, rounds)
        ends = table[table["round"] == table.groupby("setting")["round"].transform("max")]
        losses = ends["loss"].where(~ends["diverged"] & np.isfinite(ends["loss"]), np.inf).to_numpy()
        return np.asarray(losses.reshape(len(contender.step_sizes), -1).mean(axis=1))

    def _every(self, rounds: int) -> int:
        return self.eval_every or max(1, rounds // self.evaluations)

    def _sweep(self, label: str, settings: Sequence[Setting], rounds: int) -> Any:
        how = {"participation": self.participation, "eval_every": self._every(rounds)}
        if not self.one_by_one:
            return self.bench.sweep(label, settings, rounds, **how).table.copy()
        each = [self.bench.sweep(f"{label}-{i}", [one], rounds, **how).table for i, one in enumerate(settings)]
        return pd.concat([table.assign(setting=i) for i, table in enumerate(each)], ignore_index=True)


def _settings(contender: Contender, step_sizes: Sequence[float], seeds: Sequence[int]) -> list[Setting]:
    """Every step size on every seed, all on one federation per seed."""
    homes = {seed: contender.home(seed) for seed in seeds}
    made = {step: contender.make(step) for step in step_sizes}
    return [
        Setting(made[step], seed, {"step_size": step}, homes[seed], time=contender.time(seed, made[step]))
        for step in step_sizes
        for seed in seeds
    ]


def caveat_of(losses: np.ndarray) -> str:
    """What is to be known of the choice of the lowest of these losses, one for every step size of a grid."""
    if not np.isfinite(losses).any():
        return "every step of the grid diverged"
    return "best step on the edge of the grid" if losses.argmin() in (0, len(losses) - 1) else ""


def caveats(curves: Iterable[Curves]) -> str:
    """An ending of evidence that names the contenders whose step sizes have a caveat."""
    by_kind: dict[str, list[str]] = {}
    for course in curves:
        by_kind.setdefault(course.caveat, []).append(course.label)
    return "".join(f"; {caveat}: {', '.join(labels)}" for caveat, labels in by_kind.items() if caveat)


def chart(
    title: str, curves: Sequence[Curves], metric: Metric, axis: Axis = "rounds", *, claims: Sequence[str] = (),
    log_x: bool = False, log_y: bool = False, note: str = "",
) -> Figure:  # fmt: skip
    """A metric against rounds, floats or local steps: means over seeds with bands of 95 %.

    A logarithmic axis leaves the start out.
    """
    rows = []
    for course in curves:
        found = banded(course.label, getattr(course, axis), course.metrics[metric])
        rows += [row for row in found if np.isfinite(row["y"]) and (row["x"] > 0 or not log_x)]
    spec = lines(rows, x=_AXES[axis], y=_WORDS[metric], log_x=log_x, log_y=log_y, points=False)
    seeds = len(curves[0].metrics[metric])
    note = note or f"Means over {seeds} seeds; bands are 95 % bootstrap intervals over them."
    return Figure(title, spec, note, tuple(claims))


def step_shown(course: Curves) -> str:
    return f"{course.step_size:g}{f' ({course.caveat})' if course.caveat else ''}"


def results(title: str, curves: Sequence[Curves]) -> Table:
    """The ends of all contenders: step size, losses, accuracies and what was sent."""
    columns = ("contender", "step size", "training loss", "test accuracy", "its spread over seeds", "numbers sent")
    rows = [
        (
            course.label, step_shown(course),
            f"{course.final('loss').mean():.4g}", f"{course.final('test_accuracy').mean():.4f}",
            f"{course.final('test_accuracy').std(ddof=1) if len(course.final('loss')) > 1 else 0:.4f}",
            f"{course.floats[-1]:.3g}",
        )
        for course in curves
    ]  # fmt: skip
    return Table(title, columns, rows)
