"""Where a federation sits: how its optima differ against how its curvature does, and where local steps pay there.

The region compares the rounds of local SGD at its best K with those of minibatch SGD and AC-SA. Where the diagnosis has
a miniature, they are rehearsed on it, with the clients' curvatures and optima drawn together or apart around their
means, all else as it was. Without one they are the bounds' for this federation's other constants: a worst case, in
orders of magnitude.
"""

import dataclasses
from typing import Any

import numpy as np

from sojourn.advice.asked import Budget, Target
from sojourn.advice.bounds import bound, constants_of, error_asked
from sojourn.advice.contest import quickest, scene_of
from sojourn.advice.variations import CURVATURE, OPTIMA, varied
from sojourn.core.facts import Facts
from sojourn.diagnosis.findings import Diagnosis
from sojourn.theory.statement import stated

_CELLS, _REHEARSED_CELLS = 48, 9
_LONGEST = 400  # rounds of a rehearsal for the map
_ROUNDS = np.geomspace(1.0, 1e10, 321)
BEATS = ("beats AC-SA", "beats minibatch SGD only", "does not pay")


@dataclasses.dataclass(frozen=True)
class Map:
    """Cells of the plane, and the federation's own place with its uncertainty."""

    curvature: np.ndarray  # (n,) tau/H
    optima: np.ndarray  # (n,) phi_*/B
    beats: np.ndarray  # (n, n) 0, 1 or 2: an index into BEATS; rows are `optima`
    here: tuple[float, float]  # tau/H and phi_*/B as measured
    spread: tuple[float, float, float, float]  # low and high of both
    rehearsed: bool  # or by bounds
    others: tuple[tuple[float, float], ...] = ()  # where it is by other points visited, and other ways of measuring


def map_of(diagnosis: Diagnosis, target: Target, budget: Budget) -> Map | None:
    """None where clients do not differ, or where there is neither a miniature nor a bound."""
    facts = constants_of(diagnosis, safe=False)
    H, B = facts.smoothness, facts.start_distance
    if not H or not B or not facts.hessian_heterogeneity or not facts.optima_distance:
        return None
    here = facts.hessian_heterogeneity / H, facts.optima_distance / B
    spread = (*_range(diagnosis, "hessian_heterogeneity", H), *_range(diagnosis, "optima_distance", B))
    cells = _CELLS if diagnosis.miniature is None else _REHEARSED_CELLS
    # farther apart than four times, clients' Hessians would have to be bent back, and be other clients
    curvature, optima = _axis(here[0], min(2.0, 4 * here[0]), cells), _axis(here[1], 10.0, cells)
    if diagnosis.miniature is not None:
        beats = _rehearsed(diagnosis, target, budget, curvature / here[0], optima / here[1])
    else:
        beats = _bounded(diagnosis, target, budget, facts, curvature * H, optima * B)
    if beats is None:
        return None
    rehearsed = diagnosis.miniature is not None
    return Map(curvature, optima, beats, here, spread, rehearsed, _seen_otherwise(diagnosis, here, H, B))


def _seen_otherwise(
    diagnosis: Diagnosis, here: tuple[float, float], H: float, B: float
) -> tuple[tuple[float, float], ...]:
    """One of the two by its other estimates, the other as it is."""
    told = lambda names, unit: [value / unit for name in names if (value := diagnosis.value(name))]  # noqa: E731
    across = told(("hessian_heterogeneity_rms", "hessian_heterogeneity_path"), H)
    across += [tau / H for tau in diagnosis.details.get("tau_at", {}).values()]
    up = told(("optima_distance_proxy", "optima_distance_newton"), B)
    return (*((tau, here[1]) for tau in across), *((here[0], phi) for phi in up))


def _rehearsed(
    diagnosis: Diagnosis, target: Target, budget: Budget, curvature: np.ndarray, optima: np.ndarray
) -> np.ndarray | None:
    """Both as multiples of what was measured. Methods that know the mean objective alone do not mind the optima."""
    beats = np.full((len(optima), len(curvature)), 2)
    for j, bent in enumerate(curvature):
        column = varied(diagnosis, CURVATURE, float(bent))
        scene = None if column is None else scene_of(column[0], target, budget)
        if column is None or scene is None or scene.picture.metric(scene.kind, scene.picture.start) <= scene.target:
            return None
        dense = [quickest(scene, name, _LONGEST) for name in ("ac-sa", "minibatch-sgd")]
        longest = int(min(max(dense), _LONGEST))
        for i, apart in enumerate(optima):
            moved = varied(column[0], OPTIMA, float(apart))
            there = None if moved is None else scene_of(moved[0], target, budget)
            if there is not None:
                local = quickest(there, "local-sgd", longest, least_steps=2)
                beats[i, j] = 0 if local < min(dense) else 1 if local < dense[1] else 2
    return beats


def _bounded(
    diagnosis: Diagnosis, target: Target, budget: Budget, facts: Facts, tau: np.ndarray, phi: np.ndarray
) -> np.ndarray | None:
    """The theory of strongly convex clients."""
    error = error_asked(diagnosis.setting, target.kind, target.value, facts)
    if diagnosis.setting != "strongly convex" or not facts.strong_convexity or not error > 0:
        return None
    most = budget.steps_to_try()
    dense = [bound(name, diagnosis.setting, facts, most[-1], error) for name in ("ac-sa", "minibatch-sgd")]
    limits = [np.inf if found is None else found.rounds for found in dense]
    local = _local_rounds(facts, tau, phi, most[1:] or most, error)
    return np.select([local < limits[0], local < limits[1]], [0, 1], 2)


def _axis(here: float, most: float, cells: int) -> np.ndarray:
    low = 10 ** np.floor(np.log10(max(here, 1e-6) / 30))
    high = 10 ** np.ceil(np.log10(max(min(here * 30, most), 30 * low)))
    return np.geomspace(low, min(high, most) if most > low * 10 else high, cells)


def _local_rounds(facts: Facts, tau: np.ndarray, phi: np.ndarray, steps: tuple[int, ...], error: float) -> np.ndarray:
    """(phi, tau): the fewest rounds over K; zeta_* keeps its ratio to phi_*."""
    ratio = 1.0
    if facts.optima_distance and facts.optima_heterogeneity is not None:
        ratio = facts.optima_heterogeneity / facts.optima_distance
    gentle = (facts.third_order_smoothness or 0.0) == 0
    name, least = ("rate_theorem_7", "rounds_5_3") if gentle else ("rate_theorem_5", "rounds_5_2")
    apart = {"optima_distance": phi[:, None, None], "optima_heterogeneity": ratio * phi[:, None, None]}
    best = np.full((len(phi), len(tau)), np.inf)
    for K in steps:
        terms = stated(
            name, facts, **apart, hessian_heterogeneity=tau[None, :, None], num_local_steps=K,
            rounds=_ROUNDS[None, None, :],
        )  # fmt: skip
        below = np.broadcast_to(terms["sum"], (*best.shape, len(_ROUNDS))) <= error
        best = np.minimum(best, np.where(below.any(-1), _ROUNDS[below.argmax(-1)], np.inf))
    floor = stated(
        least, facts, hessian_heterogeneity=tau, optima_distance=0.0, optima_heterogeneity=0.0, target=error
    )["least"]
    return np.asarray(np.maximum(best, floor[None, :]))


def _range(diagnosis: Diagnosis, name: str, scale: float) -> tuple[float, float]:
    found: Any = diagnosis.measures.get(name)
    if found is None:
        return 0.0, 0.0
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    if found.high is None and found.kind == "lower bound":
        high = 2 * found.value
    return low / scale, high / scale
