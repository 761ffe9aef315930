"""`diagnose`: from a federation to what it is like, in one pass from cheap to dear."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.core.compilation import use_compilation_cache
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation
from sojourn.core.frozen import is_frozen
from sojourn.core.keys import root_key
from sojourn.diagnosis import curvature, holdings, optima, path, slopes
from sojourn.diagnosis.asking import Asking, NotFiniteError
from sojourn.diagnosis.case import SYMBOLS, Case, vector_of
from sojourn.diagnosis.findings import Cost, Diagnosis, Measure, Miniature
from sojourn.diagnosis.miniature import NUM_DIRECTIONS, make_miniature
from sojourn.progress import Display

_LARGE = 20_000  # numbers in a model: from here on fewer products and evaluations
_BETWEEN = (
    "hessian_heterogeneity", "hessian_heterogeneity_frobenius", "hessian_heterogeneity_rms", "optima_heterogeneity",
    "optima_distance", "gradient_heterogeneity", "gradient_gap",
)  # fmt: skip


def diagnose(
    federation: Federation,
    params: Any = None,
    *,
    seed: int = 0,
    scalars_only: bool = False,
    facts: bool = True,
    rounds: int = 12,
    rows: int = 512,
    max_clients: int = 32,
    num_directions: int = NUM_DIRECTIONS,
    progress: bool | None = None,
) -> Diagnosis:
    """Measures what a federation is like: its curvature, its noise, how its clients differ; and what that cost.

    params: a model to measure at, as `federation.x0` or as a run returns it; by default the end of a warm-up run.
    scalars_only: no vectors are sent beyond the model itself; what would need them is left out, or bounded.
    facts: take what the problem knows exactly as it is; False to estimate all.
    rounds: of the warm-up run. rows: the most points of a client that an exact answer looks at.
    max_clients: beyond so many, a sample of them is asked. num_directions: of the miniature, 0 for none.
    """
    limits = {"rows": rows, "max_clients": max_clients, "rounds": rounds, "num_directions": num_directions}
    case = _open(federation, facts, seed, scalars_only, limits)
    use_compilation_cache()
    stages = [
        ("holdings", "holdings", holdings.holdings),
        ("curvature at the start", "curvature at the start", curvature.spectrum),
        (
            "how they differ at the start",
            "Hessian heterogeneity at the start",
            _if_several(_if_small(curvature.heterogeneity)),
        ),
        ("warm-up", "the warm-up run", _walk(federation, params, rounds)),
        ("the best model", "the best model", path.find_best),
        ("kinks", "kinks", curvature.find_kinks),
        ("curvature", "curvature", curvature.spectrum),
        ("how they differ", "Hessian heterogeneity", _if_several(curvature.heterogeneity)),
        ("along the path", "Hessian heterogeneity on the path", _if_vectors(_if_several(curvature.along_the_path))),
        ("third order", "third-order smoothness", curvature.third_order),
        ("smoothness on the way", "smoothness between visited models", curvature.between_models),
        ("noise", "noise", slopes.noise),
        ("distance of optima", "the distance of optima from gradients", _if_several(optima.proxy)),
        ("optima", "the clients' optima", optima.alone),
        ("Newton steps", "the clients' optima by Newton steps", _if_several(optima.newton)),
        ("the start", "distance and gap of the start", optima.start),
        ("gradients", "gradient heterogeneity", _if_vectors(_if_several(slopes.heterogeneity))),
    ]
    miniature = None
    showing = Display("diagnosis", len(stages) + 1, progress, words="asking the clients")
    with showing as display, threadpool_limits(1, "blas"):  # the clients need the cores
        for number, (entry, what, measure) in enumerate(stages):
            case.attempt(entry, what, measure)
            display.update(number + 1, {})
        if num_directions and not scalars_only:
            miniature = _miniature(case, num_directions)
    _say_what_is_missing(case)
    return _close(case, miniature)


def _open(federation: Any, facts: bool, seed: int, scalars_only: bool, limits: Mapping[str, int]) -> Case:
    if not isinstance(federation, Federation):
        raise SojournError(f"diagnose takes a federation, got {type(federation).__name__}.")
    for name, value in limits.items():
        least = 0 if name == "num_directions" else 1
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise SojournError(f"{name} = {value!r} is out of range; give a whole number of at least {least}.")
    rows, max_clients, number = limits["rows"], limits["max_clients"], federation.num_clients
    if max_clients < min(2, number):
        raise SojournError("max_clients = 1 would tell nothing of how clients differ; give at least 2.")
    key = root_key(seed)
    who = np.arange(number)
    if number > max_clients:
        who = np.sort(np.random.default_rng([seed, 0]).choice(number, max_clients, replace=False))
    asking = Asking(federation, who, rows, key, 0 if scalars_only else limits["num_directions"])
    large = asking.dimension > _LARGE
    known = federation.facts if facts else Facts()
    case = Case(
        federation, asking, known, scalars_only, seed, 12 if large else 30, 20 if large else 80,
        vector_of(federation.x0.tree),
    )  # fmt: skip
    if len(who) < number:
        case.warn(f"{len(who)} of {number} clients were asked, drawn at random; the others may differ more.")
    if asking.rows is not None:
        case.warn(f"Clients that hold more than {rows} points answered on {rows} of them, drawn at random.")
    if federation.clients.in_round(key) is not federation.clients:
        case.warn("Rows change hands every round; this is one deal of them.")
    return case


def _walk(federation: Federation, params: Any, rounds: int) -> Any:
    def walk(case: Case) -> None:
        if params is None:
            path.warm_up(case, rounds)
        else:
            path.go_to(case, _point(federation, params))

    return walk


def _point(federation: Federation, params: Any) -> np.ndarray:
    arrays, _ = eqx.partition(params, eqx.is_inexact_array, is_leaf=is_frozen)
    tree = arrays.tree if hasattr(arrays, "tree") else arrays
    shapes = [jax.tree.flatten(jax.tree.map(np.shape, model)) for model in (tree, federation.x0.tree)]
    if shapes[0] != shapes[1]:
        raise SojournError(
            "params do not have the shapes of the federation's model; give a model that was trained on it."
        )
    point = vector_of(tree)
    if not np.isfinite(point).all():
        raise SojournError("params hold values that are not finite.")
    return point


def _if_several(measure: Any) -> Any:
    """A single client differs from nobody."""
    return lambda case: measure(case) if len(case.asking) > 1 else None


def _if_small(measure: Any) -> Any:
    """Of a large network the Hessians at its initialisation are not worth their price."""
    return lambda case: measure(case) if case.asking.dimension <= _LARGE else None


def _if_vectors(measure: Any) -> Any:
    return lambda case: None if case.scalars_only else measure(case)


def _miniature(case: Case, num_directions: int) -> Miniature | None:
    try:
        return make_miniature(case, num_directions)
    except NotFiniteError:
        case.left_out.append("the miniature")
        case.book("miniature")
        return None


def _say_what_is_missing(case: Case) -> None:
    if case.left_out:
        absent = ", ".join(case.left_out)
        case.warn(f"The clients' answers are not finite for {absent}; what these would tell is left out.")
    if case.federation.num_clients == 1:
        case.warn("There is one client, which differs from nobody: all measures of heterogeneity are 0.")
        for name in _BETWEEN:
            at, how = "everywhere", "a single client"
            spent = case.measures[name].cost if name in case.measures else Cost()
            case.measures[name] = Measure(name, SYMBOLS[name], 0.0, "exact", at, how, spent)
    if case.scalars_only:
        case.warn(
            "Only scalars were sent beyond the model: gradient heterogeneity, the gap of gradients, tau by probes and "
            "along the path, feature shift and the miniature need vectors and are left out; zeta_* and tau are bounded."
        )


def _close(case: Case, miniature: Miniature | None) -> Diagnosis:
    federation, counts = case.federation, case.federation.label_counts
    details = {
        "clients_asked": [int(client) for client in case.asking.who],
        "whole": case.asking.whole,
        "points_held": [int(number) for number in case.asking.held],
        "label_counts": None if counts is None else np.asarray(counts).tolist(),
        "tau_at": dict(case.taus),
    }
    return Diagnosis(
        federation.name, federation.num_clients, case.asking.dimension, federation.clients.batch_size,
        curvature.setting(case), dict(case.measures), miniature, tuple(case.warnings), case.seed, details,
        dict(case.shared),
    )  # fmt: skip
