"""The federation in miniature: quadratic clients in a few directions, to rehearse methods on.

The directions are what training near here sees: the way to the start, the mean gradients, the leading deviations of the
clients' gradients, and what the mean Hessian makes of them (a block Krylov space). A client sends V^T A_m V, V^T grad
F_m, its loss and its noise in V: numbers, not vectors. With as many directions as the model has numbers, nothing is
left out, and for quadratic clients the miniature is the federation.
"""

import numpy as np

from sojourn.core.federation import Federation
from sojourn.diagnosis.case import Case
from sojourn.diagnosis.findings import Miniature
from sojourn.problems.quadratic import quadratic

NUM_DIRECTIONS = 24
_DEVIATIONS = 3
_FLAT = 1e-5  # of the largest curvature: smaller ones are raised to it, that every client has an optimum

_MUCH = 0.25  # share of the noise


def make_miniature(case: Case, num_directions: int = NUM_DIRECTIONS) -> Miniature:
    """Asks for it at the end of the warm-up."""
    asking, d = case.asking, case.asking.dimension
    here = case.at(case.here, case.here_name)
    first = asking.weights @ case.at(case.start, "the start")
    hessians, basis = _krylov(case, here, first, min(num_directions, d))
    k = basis.shape[1]
    asking.sent(up=k, rounds=0)  # on one trip with the noise and the losses
    noise, outside = _noise(case, basis)
    share = outside / max(outside + float(np.trace(noise)), 1e-300)
    if share > _MUCH:
        case.warn(
            f"{share:.0%} of the noise lies outside the miniature's {k} directions, and a rehearsal on it leaves that "
            "out: where noise is what stops a run, it promises lower floors than the federation has."
        )
    losses = asking.losses(case.here)
    asking.sent(up=1)
    missed = float(np.sum((first - basis @ (basis.T @ first)) ** 2) / max(float(first @ first), 1e-300))
    how = "Krylov directions of the mean Hessian" if k < d else "all directions"
    case.tell("miniature", k, "exact", case.here_name, how, note=f"misses {missed:.1%} of the first mean gradient")
    start = basis.T @ (case.start - case.here)
    return Miniature(hessians, here @ basis, losses, asking.weights, start, noise, outside, missed)


def _krylov(case: Case, here: np.ndarray, first: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, k, k) the clients' Hessians in a basis (d, k), which grows while they are multiplied: k products each."""
    asking, w = case.asking, case.asking.weights
    d, whole = asking.dimension, size == asking.dimension
    mean = w @ here
    away = (here - mean) * np.sqrt(w)[:, None]
    _, _, leading = np.linalg.svd(away, full_matrices=False)
    waiting = [*np.eye(d)] if whole else [case.start - case.here, mean, first, *leading[:_DEVIATIONS]]
    spare = case.rng(8)
    basis, k = np.zeros((d, size)), 0
    hessians = np.zeros((len(asking), size, size))
    while k < size:  # all that wait go on one trip; what comes back waits for the next
        first_new = k
        for vector in waiting or [spare.standard_normal(d)]:
            unit = _beyond(basis[:, :k], vector) if k < size else None
            if unit is not None:
                basis[:, k], k = unit, k + 1
        waiting = []
        for j in range(first_new, k):
            answers = asking.products(case.here, basis[:, j])
            hessians[:, j, : j + 1] = hessians[:, : j + 1, j] = answers @ basis[:, : j + 1]
            waiting += [] if whole else [w @ answers]
        down, numbers = d * (k - first_new), sum(range(first_new + 1, k + 1))
        asking.sent(down=down, up=numbers + (0 if whole else down), rounds=int(k > first_new))
    return hessians, basis


def _beyond(basis: np.ndarray, vector: np.ndarray) -> np.ndarray | None:
    """The unit vector of what a vector adds to a basis; None where that is no more than rounding."""
    length = float(np.linalg.norm(vector))
    for _ in range(2):
        vector = vector - basis @ (basis.T @ vector)
    rest = float(np.linalg.norm(vector))
    return None if rest <= 1e-4 * length or rest == 0 else vector / rest


def _noise(case: Case, basis: np.ndarray) -> tuple[np.ndarray, float]:
    """The covariance of one call's noise in the basis, and the trace of the rest; means over clients."""
    asking, k = case.asking, basis.shape[1]
    if asking.clients.batch_size is None:
        return np.zeros((k, k)), 0.0
    found = asking.batches(case.here, "noise in miniature", basis)
    asking.sent(up=k * (k + 1) // 2 + 1, rounds=0)
    inside = np.tensordot(asking.weights, found.inside, 1)
    total = float(asking.weights @ found.squares.mean(axis=1))
    return (inside + inside.T) / 2, max(0.0, total - float(np.trace(inside)))


def as_federation(miniature: Miniature, name: str = "miniature") -> Federation:
    """Quadratic clients that a run or a sweep can rehearse on; their x is y, the way from the centre.

    A direction in which a client curves downward is bent up, and one that is flat a little, so that every client has an
    optimum; gradients at the centre stay what they are. Losses are counted from each client's own lowest.
    """
    values, vectors = np.linalg.eigh(miniature.hessians)
    floor = _FLAT * float(np.abs(values).max(initial=0.0)) or 1.0
    values = np.maximum(np.abs(values), floor)
    hessians = np.einsum("mik,mk,mjk->mij", vectors, values, vectors)
    turned = np.einsum("mik,mi->mk", vectors, miniature.gradients)
    optima = -np.einsum("mik,mk->mi", vectors, turned / values)
    noisy = float(np.trace(miniature.noise)) > 0
    return quadratic(
        (hessians + hessians.transpose(0, 2, 1)) / 2, optima, x0=miniature.start, weights=miniature.weights,
        noise_covariance=miniature.noise if noisy else None, name=name,
    )  # fmt: skip
