"""Where the clients' optima lie: zeta_*, phi_*, and the distances and the gap from the start.

Thesis, assumptions 9 and 10, fourth-power means. Every client goes on alone from the best common model until its
gradient is a hundredth of what it was there; where optima form sets, that finds the near ones, as it should. For convex
clients a Newton step from the same model is a second opinion. Remark 8 gives the cheapest: gradients over H.
"""

from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from sojourn.diagnosis.asking import NotFiniteError
from sojourn.diagnosis.case import Case
from sojourn.diagnosis.path import minimise
from sojourn.diagnosis.spectra import fourth_mean, pair_squares

_DROP = 100.0  # of a client's gradient, when it goes on alone
_NEWTON_PRODUCTS = 20
_FAR = "measured from the warm-up's end, which may be far from the optimum"
_VANISHED = 1e-2  # of the clients' own gradients: a mean that is smaller is taken for none


def proxy(case: Case) -> None:
    """phi_* from the clients' gradients at the best model: over H from below, over mu from above."""
    asking = case.asking
    slopes = np.linalg.norm(case.at(case.best, case.best_name), axis=1)
    asking.sent(up=1)
    top, bottom = case.value("smoothness"), case.value("strong_convexity")
    if not top:
        return
    value = float(np.sqrt(asking.weights @ slopes**2)) / top
    high = fourth_mean(slopes, asking.weights) / bottom if bottom else None
    how = "root mean squared gradient over H (Remark 8); above, over mu"
    kind, low, note = ("lower bound", value, "") if _near_the_optimum(case) else ("estimate", 0.0, _FAR)
    case.tell("optima_distance_proxy", value, kind, case.best_name, how, low=low, high=high, note=note)


def alone(case: Case) -> None:
    """zeta_*, phi_* and B-bar by local continuation."""
    names = ("optima_heterogeneity", "optima_distance", "mean_optima_distance")
    if case.known(*names):
        return
    asking = case.asking
    case.visit(case.best)
    reached, found, left = 0, [], []
    for client in range(len(asking)):
        point, drop, rest = _continue(case, client)
        reached += drop >= _DROP
        found.append(point)
        left.append(rest)
    case.optima = np.stack(found)
    note = "" if reached == len(asking) else f"{reached} of {len(asking)} clients' gradients fell {_DROP:g}-fold"
    bottom = case.value("strong_convexity") or 0.0
    doubt = fourth_mean(np.array(left) / bottom, asking.weights) if bottom > 0 else None
    off = _from_the_optimum(case)
    about = None if doubt is None or off is None else doubt + off
    beside = note if _near_the_optimum(case) else "; ".join(text for text in (note, _FAR) if text)
    how, at = f"clients alone until their gradients fall {_DROP:g}-fold", case.best_name
    away = np.linalg.norm(case.optima - case.best, axis=1)
    asking.sent(up=2)
    if case.facts.optima_distance is None:
        _told(case, "optima_distance", fourth_mean(away, asking.weights), at, how, about, beside)
    if case.facts.mean_optima_distance is None:
        far = float(asking.weights @ np.linalg.norm(case.optima - case.start, axis=1))
        _told(case, "mean_optima_distance", far, "the start", how, doubt, note)
    if case.facts.optima_heterogeneity is not None:
        return
    if case.scalars_only:
        phi = case.measures["optima_distance"]
        high = None if phi.high is None else 2 * phi.high
        how = "twice phi_* (Remark 9), as no optimum was sent"
        case.tell("optima_heterogeneity", 2 * phi.value, "upper bound", at, how, high=high)
        return
    asking.sent(up=asking.dimension)
    pairs = np.sqrt(pair_squares(case.optima))
    twice = None if doubt is None else 2 * doubt
    _told(case, "optima_heterogeneity", fourth_mean(pairs, asking.weights), at, how, twice, note)


def _near_the_optimum(case: Case) -> bool:
    """Whether distances from the best model are distances from the optimum: it is known, or was searched for."""
    return case.facts.x_star is not None or not case.scalars_only


def _from_the_optimum(case: Case) -> float | None:
    """How far the best model may be from x*: the mean gradient there, of which scalars know the clients' norms, over
    mu."""
    if case.facts.x_star is not None:
        return 0.0
    bottom, slopes, w = case.value("strong_convexity"), case.at(case.best, case.best_name), case.asking.weights
    if not bottom:
        return None
    mean = w @ np.linalg.norm(slopes, axis=1) if case.scalars_only else np.linalg.norm(w @ slopes)
    return float(mean) / bottom


def _told(case: Case, name: str, value: float, at: str, how: str, doubt: float | None, note: str) -> None:
    low, high = (None, None) if doubt is None else (max(0.0, value - doubt), value + doubt)
    case.tell(name, value, "estimate", at, how, low=low, high=high, note=note)


def _continue(case: Case, client: int) -> tuple[np.ndarray, float, float]:
    """Where a client ends, how far its gradient fell, and what is left of it."""
    function, norms = case.asking.loss_and_gradient(client), list[float]()

    def kept(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = function(x)
        norms.append(float(np.linalg.norm(slope)))
        return value, slope

    def enough(_: Any) -> None:
        if norms[-1] * _DROP <= norms[0]:
            raise StopIteration

    point = minimise(kept, case.best, case.num_evaluations, enough)
    return point, norms[0] / max(norms[-1], 1e-300), norms[-1]


def newton(case: Case) -> None:
    """zeta_* and phi_* by one Newton step of each client, its system solved by conjugate gradients."""
    if case.known("optima_heterogeneity", "optima_distance"):
        return
    if case.edge is None or case.edge[0] < 0 or case.asking.reach is not None:
        return  # where a client may curve downward, or by steps, such a step means nothing
    asking, slopes, found = case.asking, case.at(case.best, case.best_name), []
    for client in range(len(asking)):
        shape = (asking.dimension, asking.dimension)
        multiply = lambda v, c=client: asking.products(case.best, np.ravel(v), [c])[0]  # noqa: E731
        hessian = LinearOperator(shape, matvec=multiply, dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):  # a direction without curvature
            step, _ = cg(hessian, slopes[client], rtol=1e-2, maxiter=_NEWTON_PRODUCTS)
        if not np.isfinite(step).all():
            raise NotFiniteError
        found.append(case.best - step)
    points, at, how = np.stack(found), case.best_name, f"one Newton step each, at most {_NEWTON_PRODUCTS} products"
    asking.sent(up=1)
    phi = fourth_mean(np.linalg.norm(points - case.best, axis=1), asking.weights)
    case.tell("optima_distance_newton", phi, "estimate", at, how)
    if not case.scalars_only:
        asking.sent(up=asking.dimension)
        zeta = fourth_mean(np.sqrt(pair_squares(points)), asking.weights)
        case.tell("optima_heterogeneity_newton", zeta, "estimate", at, how)


def start(case: Case) -> None:
    """B and Delta: how far the best model known is from the start, and how much lower."""
    asking = case.asking
    if case.known("start_distance", "start_gap"):
        return
    if "f_star" not in case.measures or _nothing_better(case):
        absent = [name for name in ("start_distance", "start_gap") if name not in case.measures]
        return case.warn(f"No model better than the start is known, so {' and '.join(absent)} cannot be told.")
    if case.facts.start_distance is None:
        bottom, doubt = case.value("strong_convexity"), None
        if bottom and not case.scalars_only:
            left = asking.weights @ case.at(case.best, case.best_name)
            doubt = float(np.linalg.norm(left)) / bottom
        value = float(np.linalg.norm(case.best - case.start))
        _told(case, "start_distance", value, "the start", "distance to the best model known", doubt, "")
    if case.facts.start_gap is not None:
        return
    first = float(asking.weights @ asking.losses(case.start))
    asking.sent(up=1)
    exact = case.facts.f_star is not None and asking.whole
    gap = max(0.0, first - case.measures["f_star"].value)
    kind, how = ("exact", "loss at the start less F*") if exact else ("lower bound", "fall of the loss so far")
    case.tell("start_gap", gap, kind, "the start", how, low=gap)


def _nothing_better(case: Case) -> bool:
    """Whether the search ended where it began though gradients do not say that this is the best."""
    if case.facts.x_star is not None or not np.array_equal(case.best, case.start):
        return False
    slopes = case.at(case.best, case.best_name)
    own = float(np.sqrt(case.asking.weights @ np.sum(slopes**2, axis=1)))
    return float(np.linalg.norm(case.asking.weights @ slopes)) > _VANISHED * own
