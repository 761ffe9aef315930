"""Where things are measured: the start, the end of a short warm-up run, and the best model that a few more rounds find.

Hessians of networks at their initialisation say little, so a few rounds of local SGD are played first, by the package's
own engine, with the step 1/(2H) for the curvature H met at the start; if the loss rises, with a quarter of it.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.optimize import minimize

from sojourn.algorithms import LocalSGD
from sojourn.core.vec import Vec
from sojourn.diagnosis.asking import NotFiniteError, unflat
from sojourn.diagnosis.case import Case, vector_of
from sojourn.diagnosis.findings import Cost
from sojourn.driver import run
from sojourn.engine import Compiled

LEGS = 3
_LOCAL_STEPS = 5
_TRIES = 6


def warm_up(case: Case, rounds: int) -> None:
    """Walks from the start, in legs, whose ends are the path."""
    case.visit(case.start)
    step = 0.5 / (case.value("smoothness") or 50.0)
    per_leg, played, loss = max(1, rounds // LEGS), 0, _mean_loss(case, case.start)
    if not np.isfinite(loss):
        raise NotFiniteError  # a run from there is no descent
    first, before = step, loss
    for leg in range(LEGS):
        for _ in range(_TRIES):
            point, cost = _leg(case, step, per_leg, (case.seed + leg) % 2**32)
            case.asking.spent += cost
            reached = _mean_loss(case, point) if np.isfinite(point).all() else np.inf
            if reached <= loss + 1e-6 * abs(loss) + _slack(case, loss):
                break
            step /= 4
        else:
            case.warn("The warm-up run does not lower the loss with any step that was tried; it stays where it was.")
            break
        loss, played = reached, played + per_leg
        case.path.append(point)
        case.here, case.here_name = point, f"after {played} rounds"
    if played and step < first:
        case.warn(f"The warm-up run took the step {step:.3g} instead of {first:.3g}, with which the loss rose.")
    case.best, case.best_name = case.here, case.here_name
    how = f"local SGD with {_LOCAL_STEPS} steps of {step:.3g}"
    case.tell("warm_up", played, "exact", "the start", how, note=f"the loss went from {before:.4g} to {loss:.4g}")


def go_to(case: Case, point: np.ndarray) -> None:
    """A model that was given takes the place of the warm-up's end."""
    case.visit(point)
    case.path.append(point)
    case.here = case.best = point
    case.here_name = case.best_name = "the given model"


def _leg(case: Case, step: float, rounds: int, seed: int) -> tuple[np.ndarray, Cost]:
    x = Vec(unflat(case.asking.template, np.asarray(case.here, case.asking.dtype)))
    home = dataclasses.replace(case.federation, x0=x, rebuild=_as_it_is)
    some = len(case.asking) if len(case.asking) < home.num_clients else None
    method = LocalSGD(step_size=step, num_local_steps=_LOCAL_STEPS)
    history = run(
        home, method, rounds, seed=seed, engine=Compiled(), eval_every=rounds, progress=False, participation=some
    )
    table = history.table
    sums = {name: int(table[name].sum()) for name in ("floats_down", "floats_up", "samples")}
    gradients = int(table["calls_grad"].sum() + table["calls_full_grad"].sum())
    cost = Cost(gradients, sums["samples"], 0, sums["floats_down"], sums["floats_up"], rounds)
    failed = history.status == "diverged"
    return np.full_like(case.start, np.nan) if failed else vector_of(history.params), cost


def _as_it_is(tree: Any) -> Any:
    return tree


def _mean_loss(case: Case, point: np.ndarray) -> float:
    case.asking.sent(up=1, rounds=0)
    try:
        return float(case.asking.weights @ case.asking.losses(point))
    except NotFiniteError:
        return np.inf


def _slack(case: Case, loss: float) -> float:
    """Near the optimum noise may lift the loss a little; that is no divergence."""
    return 0.0 if case.asking.clients.batch_size is None else 0.1 * abs(loss) + 1e-6


def find_best(case: Case) -> None:
    """Full gradients to the optimum of the mean, or as near as a budget of rounds comes; known where facts know it."""
    facts, asking = case.facts, case.asking
    if facts.x_star is not None:
        case.best, case.best_name = vector_of(facts.x_star), "the optimum"
    elif not case.scalars_only:
        _descend_together(case)
    case.book("the best model")
    case.visit(case.best)
    if case.known("f_star"):
        return
    losses = asking.losses(case.best)
    asking.sent(up=1)
    how = "the loss of the best model found"
    case.tell("f_star", float(asking.weights @ losses), "upper bound", case.best_name, how)


def _descend_together(case: Case) -> None:
    asking = case.asking
    seen: dict[str, float] = {}

    def mean(x: np.ndarray) -> tuple[float, np.ndarray]:
        asking.sent(down=asking.dimension, up=asking.dimension + 1)
        slopes = asking.gradients(x)
        mean = asking.weights @ slopes
        seen["now"] = float(np.linalg.norm(mean))
        seen.setdefault("first", seen["now"])
        # the clients' own gradients set the scale: a mean far below them is as good as none for their distances
        seen["own"] = float(np.sqrt(asking.weights @ np.sum(slopes**2, axis=1)))
        return float(asking.weights @ asking.losses(x)), mean

    def enough(_: Any) -> None:
        if seen["now"] <= max(1e-2 * seen["own"] if seen["own"] > 2 * seen["now"] else 0.0, 1e-3 * seen["first"]):
            raise StopIteration

    point = minimise(mean, case.here, case.num_evaluations, enough)
    case.best, case.best_name = point, "the best model found"


def minimise(function: Any, start: np.ndarray, num_evaluations: int, enough: Any) -> np.ndarray:
    """L-BFGS from a point, until `enough` stops it or the budget is spent."""
    options = {"maxfun": num_evaluations, "maxiter": num_evaluations, "ftol": 0.0, "gtol": 0.0}
    found = minimize(function, start, jac=True, method="L-BFGS-B", callback=enough, options=options)
    return np.asarray(found.x, float)
