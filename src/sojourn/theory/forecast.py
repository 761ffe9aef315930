"""What theory says of a run before it is made: the bounds that apply, and where local steps lead.

A method is known here by the name of its class and its options, as a manifest holds them; a bound applies where its
statement says so (`predicts`), its facts are known and what it requires holds.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory.identities import local_sgd_fixed_point
from sojourn.theory.statement import STATEMENTS, Predicts, Statement, missing_facts, stated

Curve = Callable[[np.ndarray], np.ndarray]
_WEIGHED = {
    "exp": ("strong_convexity",),
    "coupled": ("strong_convexity", "smoothness", "hessian_heterogeneity"),
}
_MAX_PROMISED = 20_000  # rounds that a promise is looked for in; some bounds are worked out round by round
_MAX_DIMENSION = 300  # of a fixed point that is worked out beside every run


@dataclasses.dataclass(frozen=True)
class Forecast:
    """An upper bound on a column of a history, round by round; inf where it says nothing."""

    source: str  # "Theorem 7"
    statement: str  # the function's name
    column: str
    rounds: np.ndarray
    bound: np.ndarray  # on the column itself: the root, where the statement bounds its square
    squared: bool  # whether the statement bounds the mean of the square
    at: Callable[[np.ndarray], np.ndarray]  # the bound at other rounds

    def first_below(self, targets: Sequence[float]) -> list[int | None]:
        """The first round by which the column is promised to have come down to each target; None: not within ten times
        the run."""
        last = max(float(self.rounds[-1]), 10.0)
        later = np.unique(np.round(np.geomspace(last, min(10 * last, _MAX_PROMISED), 50)))
        rounds = np.unique(np.concatenate([self.rounds[self.rounds > 0], later]))
        bound = self.at(rounds)
        reached = [rounds[bound <= target] for target in targets]
        return [int(found[0]) if len(found) else None for found in reached]


def forecasts(facts: Facts, algorithm: Mapping[str, Any], rounds: Any) -> list[Forecast]:
    """Every bound that applies to a run with equal weights and everyone taking part, the tightest at the end first."""
    found = []
    at = np.asarray(rounds, float)
    if algorithm.get("class") == "FedAvg":  # with equal weights it is local SGD
        algorithm = {"output": "last", "outer_step_size": 1.0, **algorithm, "class": "LocalSGD"}
    own = {field.name for field in dataclasses.fields(Facts)}
    given = {key: value for key, value in _effective(algorithm).items() if isinstance(value, (int, float))}
    # a method may hold its own idea of the federation's constants: AC-SA steps by the smoothness it is given
    numbers = {f"step_{key}" if key in own else key: value for key, value in given.items()}
    for statement in STATEMENTS.values():
        for predicts in statement.predicts:
            if _speaks_of(predicts, algorithm, facts):
                curve = functools.partial(_bound, statement, facts, numbers, predicts.squared)
                found += _forecast(statement, predicts.column, predicts.squared, at, curve)
                if predicts.column == "distance" and predicts.squared and facts.smoothness:
                    # F - F* <= H/2 |x - x*|^2
                    gap = functools.partial(_half_squared, facts.smoothness, curve)
                    found += _forecast(statement, "suboptimality", False, at, gap, " and smoothness")
    return sorted(found, key=lambda forecast: float(forecast.bound[-1]))


def _forecast(
    statement: Statement, column: str, squared: bool, at: np.ndarray, curve: Curve, also: str = ""
) -> list[Forecast]:
    """The forecast, or none where the statement says nothing."""
    bound = curve(at)
    if not np.isfinite(bound).any():
        return []
    return [Forecast(statement.source + also, statement.name, column, at, bound, squared, curve)]


def _half_squared(smoothness: float, curve: Curve, rounds: np.ndarray) -> np.ndarray:
    return np.asarray(smoothness / 2 * curve(rounds) ** 2)


def _speaks_of(predicts: Predicts, algorithm: Mapping[str, Any], facts: Facts) -> bool:
    if predicts.method != algorithm.get("class") or (predicts.quadratic and facts.third_order_smoothness != 0):
        return False
    if algorithm.get("output") in _WEIGHED and not all(
        _equal(algorithm.get(name), getattr(facts, name)) for name in _WEIGHED[algorithm["output"]]
    ):
        return False  # the output is weighed with other constants than the bound's
    return all(_equal(algorithm.get(name), value) for name, value in predicts.options.items())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _bound(
    statement: Statement, facts: Facts, numbers: Mapping[str, Any], squared: bool, rounds: np.ndarray
) -> np.ndarray:
    """The bound on the column over the rounds; inf where it does not apply, and at the start."""
    curve = np.full(len(rounds), np.inf)
    known = {name: numbers[name] for name in statement.arguments if name in numbers}
    positive = rounds > 0
    if positive.any() and not missing_facts(statement.name, facts, {**known, "rounds": 1}):
        # a step size or a constant may lie outside what the statement requires
        with contextlib.suppress(SojournError):
            curve[positive] = stated(statement.name, facts, rounds=rounds[positive], **known)
    return np.sqrt(curve) if squared else curve


def _effective(algorithm: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with the step that theory speaks of: scaled gradients are a scaled step."""
    if not isinstance(algorithm.get("step_size"), float):
        return algorithm
    return {**algorithm, "step_size": algorithm["step_size"] * algorithm.get("grad_scale", 1.0)}


def landmarks(facts: Facts, algorithm: Mapping[str, Any], x0: np.ndarray) -> dict[str, float]:
    """Where local SGD on quadratics ends: the distances of its fixed point to x* and to the start."""
    algorithm = _effective(algorithm)
    step, steps = algorithm.get("step_size"), algorithm.get("num_local_steps")
    wanted = algorithm.get("class") in ("LocalSGD", "FedAvg") and isinstance(step, float) and isinstance(steps, int)
    if not wanted or facts.hessians is None or facts.optima is None or facts.hessians.shape[1] > _MAX_DIMENSION:
        return {}
    if not facts.smoothness or float(step or 0) * facts.smoothness >= 1:
        return {}  # beyond what the closed form covers
    end = local_sgd_fixed_point(
        hessians=facts.hessians, optima=facts.optima, step_size=step, num_local_steps=steps, x0=x0
    )
    return {
        "fixed_point_bias": float(np.linalg.norm(end - np.asarray(facts.x_star))),
        "fixed_point_distance": float(np.linalg.norm(end - x0)),
    }
