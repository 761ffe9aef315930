"""What theory says of a run before it is made: the bounds that apply, and where local steps lead.

A method is known here by the name of its class and its options, as a manifest holds them; a bound applies where its
statement says so (`predicts`), its facts are known and what it requires holds.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory.identities import local_sgd_fixed_point
from sojourn.theory.statement import STATEMENTS, Predicts, Statement, missing_facts, stated

_WEIGHED = {
    "exp": ("strong_convexity",),
    "coupled": ("strong_convexity", "smoothness", "hessian_heterogeneity"),
}
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

    def first_below(self, target: float) -> int | None:
        """The first round by which the column is promised to have come down to the target."""
        reached = self.rounds[self.bound <= target]
        return int(reached[0]) if len(reached) else None


def forecasts(facts: Facts, algorithm: Mapping[str, Any], rounds: Any) -> list[Forecast]:
    """Every bound that applies to a run with equal weights and everyone taking part, the tightest at the end first."""
    found = []
    at = np.asarray(rounds, float)
    if algorithm.get("class") == "FedAvg":  # with equal weights it is local SGD
        algorithm = {"output": "last", "outer_step_size": 1.0, **algorithm, "class": "LocalSGD"}
    own = {field.name for field in dataclasses.fields(Facts)}
    given = {key: value for key, value in algorithm.items() if isinstance(value, (int, float))}
    # a method may hold its own idea of the federation's constants: AC-SA steps by the smoothness it is given
    numbers = {f"step_{key}" if key in own else key: value for key, value in given.items()}
    for statement in STATEMENTS.values():
        for predicts in statement.predicts:
            if _speaks_of(predicts, algorithm, facts):
                bound = _bound(statement, facts, numbers, at)
                if bound is not None:
                    value = np.sqrt(bound) if predicts.squared else bound
                    found.append(
                        Forecast(statement.source, statement.name, predicts.column, at, value, predicts.squared)
                    )
    return sorted(found, key=lambda forecast: float(forecast.bound[-1]))


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


def _bound(statement: Statement, facts: Facts, numbers: Mapping[str, Any], rounds: np.ndarray) -> np.ndarray | None:
    """The statement's curve over the rounds; None where it does not apply."""
    known = {name: numbers[name] for name in statement.arguments if name in numbers}
    if missing_facts(statement.name, facts, {**known, "rounds": 1}):
        return None
    try:
        positive = rounds > 0
        curve = np.full(len(rounds), np.inf)
        if positive.any():
            curve[positive] = stated(statement.name, facts, rounds=rounds[positive], **known)
        return curve if np.isfinite(curve).any() else None
    except SojournError:
        return None  # the step size or a constant lies outside what the statement requires


def landmarks(facts: Facts, algorithm: Mapping[str, Any], x0: np.ndarray) -> dict[str, float]:
    """Where local SGD on quadratics ends: the distances of its fixed point to x* and to the start."""
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
