"""The advisor's answer: ranked contenders, the one to take, what it rests on, and what would change it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sojourn.advice.asked import Budget, Target
from sojourn.advice.bounds import Bound
from sojourn.advice.methods import build, title, trips
from sojourn.advice.stragglers import time_tables
from sojourn.algorithms import Algorithm
from sojourn.core.errors import SojournError
from sojourn.diagnosis.findings import Diagnosis

MOST_BY_BOUND = 1000  # rounds to run for where only a bound is known, which is far too careful
REHEARSED, BOUND, TRIED, RULE = "rehearsed", "bound (order of magnitude)", "tried", "rule of thumb"
GUESS = "not predicted"
_SYMBOLS = {
    "step_size": "step", "num_local_steps": "K", "outer_step_size": "outer step", "smoothness": "L",
    "strong_convexity": "mu",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Contender:
    """A method with its options, and what it is predicted to take."""

    name: str  # in ALGORITHMS
    options: Mapping[str, Any]
    rounds: float  # trips of messages to the target; inf: it does not get there
    floats: float  # sent in all, both ways, over all clients
    gradients: float  # of one batch, of every client, in all
    basis: str  # of the prediction
    fits: bool  # the budget
    why_not: str = ""  # it does not fit
    bound: Bound | None = None  # what theory says of the method, at its best K
    bound_steps: int | None = None  # that K
    lowest: float | None = None  # value of the target's metric that the rehearsal saw
    settled: float | None = None  # the round from which that hardly fell
    note: str = ""
    seconds: float | None = None  # virtual, where stragglers were stated: one is the median client's gradient
    ruled_out: bool = False  # whatever it would cost

    @property
    def title(self) -> str:
        return title(self.name)

    @property
    def reaches(self) -> bool:
        return math.isfinite(self.rounds)

    @property
    def iterations(self) -> float:
        """Rounds of a history; each may have several trips of messages."""
        return self.rounds / trips(self.name, self.options)

    @property
    def num_local_steps(self) -> int:
        return int(self.options.get("num_local_steps", 1))

    def words(self) -> str:
        """With its numbers: "local SGD with K = 16, eta = 0.5"."""
        plain = (("outer_step_size", 1.0), ("strong_convexity", 0.0))
        shown = [
            f"{_SYMBOLS.get(key, key)} = {value:.4g}"
            if isinstance(value, float)
            else f"{_SYMBOLS.get(key, key)} = {value}"
            for key, value in self.options.items()
            if (key, value) not in plain
        ]
        return f"{self.title} with {', '.join(shown)}" if shown else self.title

    def plain(self) -> dict[str, Any]:
        found = {**dataclasses.asdict(self), "options": dict(self.options)}
        return {key: _finite(value) for key, value in found.items()}


@dataclasses.dataclass(frozen=True)
class Change:
    """What another measurement would have advised."""

    name: str  # of the measure
    symbol: str
    factor: float
    leader: Contender

    def words(self) -> str:
        size = f"{self.factor:g} times larger" if self.factor > 1 else f"{1 / self.factor:g} times smaller"
        return f"If {self.symbol} were {size}, {self.leader.title} with K = {self.leader.num_local_steps} would lead."


@dataclasses.dataclass(frozen=True)
class Advice:
    """What to run, and why."""

    diagnosis: Diagnosis
    setting: str
    target: Target
    budget: Budget
    contenders: tuple[Contender, ...]  # the best first
    best: Contender | None  # None: the target is met at the start
    fallback: Contender | None
    changes: tuple[Change, ...] = ()
    falsified_by: str = ""  # the diagnostic that would show the advice to be wrong
    sentences: tuple[str, ...] = ()
    reachable: bool = True
    trial: Mapping[str, Any] | None = None  # what a trial on the federation itself cost and showed
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Of a history, to run for: the prediction, half as many again, and what the budget allows."""
        best, budget = self.best, self.budget
        if best is None:
            return 0
        most = math.inf if budget.rounds is None else max(1, budget.rounds // trips(best.name, best.options))
        if not best.reaches:
            return int(min(500, most)) if budget.rounds is None else int(most)
        for allowed, used in ((budget.floats, best.floats), (budget.gradients, best.gradients)):
            if allowed is not None and used > 0:
                most = min(most, max(1, int(allowed * best.iterations / used)))
        most = min(most, MOST_BY_BOUND) if best.basis == BOUND else most
        return int(min(math.ceil(1.5 * best.iterations) + 2, most))

    @property
    def algorithm(self) -> Algorithm:
        """The method to take, ready to run."""
        return build(self._chosen.name, self._chosen.options)

    @property
    def _chosen(self) -> Contender:
        if self.best is None:
            raise SojournError("the start meets the target already; there is nothing to run.")
        return self.best

    def tables(self) -> dict[str, Any]:
        """[algorithm] and [run] of a config; for an asynchronous method also the clock and the schedule."""
        run: dict[str, Any] = {"rounds": self.rounds, "eval_every": max(1, self.rounds // 200)}
        if self.budget.participation is not None:
            run["participation"] = self.budget.participation
        tables: dict[str, Any] = {"algorithm": {"name": self._chosen.name, **self._chosen.options}, "run": run}
        if self.algorithm.asynchronous:
            run["uploads"] = self.rounds * self.diagnosis.num_clients
            tables |= time_tables(self.budget, self.diagnosis.num_clients)
        return tables

    def to_json(self) -> dict[str, Any]:
        """Plain values: numbers that are not finite are None."""
        return {
            "federation": self.diagnosis.name,
            "setting": self.setting,
            "target": dataclasses.asdict(self.target),
            "budget": dataclasses.asdict(self.budget),
            "best": None if self.best is None else self.best.plain(),
            "fallback": None if self.fallback is None else self.fallback.plain(),
            "rounds_to_run": self.rounds,
            "reachable": self.reachable,
            "contenders": [contender.plain() for contender in self.contenders],
            "changes": [{"measure": c.name, "factor": c.factor, "leader": c.leader.plain()} for c in self.changes],
            "falsified_by": self.falsified_by,
            "sentences": list(self.sentences),
            "trial": None if self.trial is None else dict(self.trial),
            "measures": {name: dataclasses.asdict(found) for name, found in self.diagnosis.measures.items()},
        }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
