"""Edges of spectra from a few products, of many matrices side by side, and distances of all pairs at once.

Lanczos' iteration is our own, as the libraries' run to convergence of one matrix at a time: here the number of products
is a budget, and what they have not settled is told by residuals. Its values always lie within the spectrum: the largest
is a lower bound on the largest eigenvalue, the smallest an upper bound on the smallest.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_FEWEST = 5  # products before an iteration may count as settled: a start can lie beside the largest direction


class Edges(NamedTuple):
    """Of B symmetric matrices each; there is an eigenvalue within the doubt of every value."""

    smallest: np.ndarray  # (B,)
    largest: np.ndarray
    smallest_doubt: np.ndarray
    largest_doubt: np.ndarray
    directions: np.ndarray  # (B, d) of the edge that is larger in size
    others: np.ndarray  # (B, d) of the other edge

    @property
    def norms(self) -> np.ndarray:
        """Lower bounds on the spectral norms."""
        return np.maximum(np.abs(self.smallest), np.abs(self.largest))


def lanczos(
    multiply: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, num_products: int, settled: float = 0.0
) -> Edges:
    """Edges of matrices that are known by their products: (B, d) vectors in, (B, d) out, every row its own matrix.

    settled: ends before the products do, once the edges larger in size have residuals below this share of their own.
    """
    number, d = starts.shape
    steps = min(num_products, d)
    basis = np.zeros((number, steps + 1, d))
    basis[:, 0] = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    diagonal, beside = np.zeros((number, steps)), np.zeros((number, steps))
    lengths = np.full(number, steps)
    for j in range(steps):
        answer = multiply(basis[:, j])
        diagonal[:, j] = np.sum(basis[:, j] * answer, axis=1)
        done = basis[:, : j + 1]
        for _ in range(2):  # twice is enough: all earlier directions are taken out, not the last two alone
            answer = answer - np.einsum("bjd,bj->bd", done, np.einsum("bjd,bd->bj", done, answer))
        beside[:, j] = np.linalg.norm(answer, axis=1)
        scale = np.abs(diagonal[:, : j + 1]).max(axis=1) + beside[:, : j + 1].max(axis=1)
        ended = beside[:, j] <= 1e-10 * scale
        lengths = np.where(ended, np.minimum(lengths, j + 1), lengths)
        beside[ended, j] = 0.0
        if j + 1 == d:
            beside[:, j] = 0.0  # the whole space: what is left is rounding
        if (lengths <= j + 1).all() or (settled and j + 1 >= _FEWEST and _settled(diagonal, beside, j + 1, settled)):
            lengths = np.minimum(lengths, j + 1)
            break
        basis[:, j + 1] = np.where(ended[:, None], 0.0, answer / np.where(ended, 1.0, beside[:, j])[:, None])
    return _edges(basis, diagonal, beside, lengths)


def _inner(diagonal: np.ndarray, beside: np.ndarray) -> np.ndarray:
    return np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)


def _settled(diagonal: np.ndarray, beside: np.ndarray, n: int, share: float) -> bool:
    for own, next_to in zip(diagonal[:, :n], beside[:, :n], strict=True):
        values, vectors = np.linalg.eigh(_inner(own, next_to))
        far = int(np.argmax(np.abs(values)))
        if next_to[-1] * abs(vectors[-1, far]) > share * abs(values[far]):
            return False
    return True


def _edges(basis: np.ndarray, diagonal: np.ndarray, beside: np.ndarray, lengths: np.ndarray) -> Edges:
    rows = []
    for b, n in enumerate(lengths):
        values, vectors = np.linalg.eigh(_inner(diagonal[b, :n], beside[b, :n]))
        doubts = beside[b, n - 1] * np.abs(vectors[-1])
        far = -1 if abs(values[-1]) >= abs(values[0]) else 0
        ends = [vectors[:, edge] @ basis[b, :n] for edge in (far, -1 - far)]  # -1 and 0, or 0 and -1
        rows.append((values[0], values[-1], doubts[0], doubts[-1], *ends))
    return Edges(*(np.array(column) for column in zip(*rows, strict=True)))


def pair_squares(vectors: np.ndarray) -> np.ndarray:
    """(M, M): squared distances of all pairs of rows."""
    centred = vectors - vectors.mean(axis=0)
    products = centred @ centred.T
    lengths = np.diag(products)
    return np.maximum(lengths[:, None] + lengths[None, :] - 2 * products, 0.0)


def worst_pair(values: np.ndarray) -> tuple[int, int]:
    m, n = np.unravel_index(int(np.argmax(values)), values.shape)
    return (int(min(m, n)), int(max(m, n))) if m != n else (0, min(1, len(values) - 1))


def fourth_mean(distances: np.ndarray, weights: np.ndarray) -> float:
    """The fourth-power mean of assumptions 9 and 10; of a matrix over all ordered pairs, the diagonal included."""
    if distances.ndim == 2:
        return float((weights @ distances**4 @ weights) ** 0.25)
    return float((weights @ distances**4) ** 0.25)
