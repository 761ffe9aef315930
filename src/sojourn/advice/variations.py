"""The federation in miniature with one thing about it made larger or smaller, everything else as it was."""

import dataclasses

import numpy as np

from sojourn.diagnosis.findings import Diagnosis, Miniature


@dataclasses.dataclass(frozen=True)
class Variation:
    name: str  # of the measure in `facts`
    symbol: str


CURVATURE = Variation("hessian_heterogeneity", "tau")
OPTIMA = Variation("optima_heterogeneity", "zeta_*")
NOISE = Variation("noise", "sigma")
VARIATIONS = (CURVATURE, OPTIMA, NOISE)


def varied(diagnosis: Diagnosis, variation: Variation, factor: float) -> tuple[Diagnosis, float] | None:
    """The diagnosis of such a federation, and what its noise is multiplied by; None where nothing would change."""
    mini = diagnosis.miniature
    if mini is None:
        return None
    if variation is NOISE:
        return (diagnosis, factor) if mini.noise.any() else None
    if len(mini.weights) == 1:
        return None
    changed = _curvature(mini, factor) if variation is CURVATURE else _optima(mini, factor)
    return dataclasses.replace(diagnosis, miniature=changed), 1.0


def _curvature(mini: Miniature, factor: float) -> Miniature:
    """A_m = A + factor (A_m - A), the gradients at the optimum as they were."""
    mean = np.einsum("m,mij->ij", mini.weights, mini.hessians)
    hessians = mean + factor * (mini.hessians - mean)
    values, vectors = np.linalg.eigh(hessians)
    hessians = np.einsum("mik,mk,mjk->mij", vectors, np.abs(values), vectors)
    best = _optimum(mini)
    there = mini.gradients + mini.hessians @ best
    # the mean objective keeps its optimum, and each client its gradient and its loss there
    losses = _losses(mini, hessians, there, best)
    return dataclasses.replace(mini, hessians=hessians, gradients=there - hessians @ best, losses=losses)


def _losses(mini: Miniature, hessians: np.ndarray, there: np.ndarray, best: np.ndarray) -> np.ndarray:
    """At y = 0, so that the losses at the optimum stay what they were."""
    at_best = mini.losses + mini.gradients @ best + np.einsum("i,mij,j->m", best, mini.hessians, best) / 2
    return np.asarray(at_best - there @ best + np.einsum("i,mij,j->m", best, hessians, best) / 2)


def _optima(mini: Miniature, factor: float) -> Miniature:
    """The clients' gradients at the optimum multiplied: their own optima move away from it."""
    best = _optimum(mini)
    there = mini.gradients + mini.hessians @ best
    more = (factor - 1) * there
    return dataclasses.replace(mini, gradients=mini.gradients + more, losses=mini.losses - more @ best)


def _optimum(mini: Miniature) -> np.ndarray:
    mean = np.einsum("m,mij->ij", mini.weights, mini.hessians)
    return np.asarray(-np.linalg.pinv(mean, rcond=1e-9, hermitian=True) @ (mini.weights @ mini.gradients))
