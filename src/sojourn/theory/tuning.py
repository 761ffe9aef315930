"""The logarithms and minima that tuned step sizes and rates are made of, with their limits where an error is absent."""

from typing import Any

import numpy as np


def log_ratio(top: Any, bottom: Any, least: float = np.e) -> Any:
    """ln(max(top/bottom, least)), infinite where bottom is 0: with nothing to balance, the longest step is best."""
    top, bottom = np.broadcast_arrays(np.asarray(top, float), np.asarray(bottom, float))
    present = bottom > 0
    with np.errstate(over="ignore"):
        ratio = top / np.where(present, bottom, 1.0)
    return np.where(present, np.log(np.maximum(ratio, least)), np.inf)


def smallest(*candidates: Any) -> Any:
    """The least of several step sizes."""
    return _fold(np.minimum, candidates)


def largest(*candidates: Any) -> Any:
    return _fold(np.maximum, candidates)


def quotient(top: Any, bottom: Any) -> Any:
    """top/bottom, infinite where bottom is 0: a candidate that an absent error does not ask for."""
    top, bottom = np.broadcast_arrays(np.asarray(top, float), np.asarray(bottom, float))
    with np.errstate(over="ignore"):
        return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), np.inf)


def drifting(num_local_steps: Any, num_clients: Any) -> Any:
    """1 where clients can differ before they are averaged, 0 at K = 1 or M = 1: there the consensus error is 0."""
    return ((np.asarray(num_local_steps) > 1) & (np.asarray(num_clients) > 1)).astype(float)


def with_sum(**terms: Any) -> dict[str, Any]:
    """The terms of a rate, and their sum."""
    total = np.asarray(0.0)
    for term in terms.values():
        total = total + term
    return {**terms, "sum": total}


def _fold(choose: Any, candidates: tuple[Any, ...]) -> Any:
    found = np.asarray(candidates[0], float)
    for candidate in candidates[1:]:
        found = choose(found, candidate)
    return found
