"""What can be known of multiclass logistic regression: its optimum by Newton's method, its constants by bounds."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax, softmax

from sojourn.core.facts import Facts

_LARGEST = 2000  # parameters: beyond this the dense Newton system is not worth its cubes, and x_star stays unknown


def logistic_facts(
    features: Sequence[np.ndarray], labels: Sequence[np.ndarray], num_classes: int, l2: float, shares: np.ndarray
) -> Facts:
    """H = l2 + lambda_max(mean of a a^T)/2 bounds every client's Hessian; mu = l2; x_star is solved for if l2 > 0.

    The optimum's gradient norm is below 1e-10; the parameters are weight (classes, d) and bias (classes,).
    """
    rows = [with_ones(x) for x in features]
    smoothness = l2 + max(np.linalg.eigvalsh(a.T @ a / len(a)).max() for a in rows) / 2
    facts = Facts(smoothness=float(smoothness), strong_convexity=float(l2))
    if l2 == 0 or rows[0].shape[1] * num_classes > _LARGEST:
        return facts
    all_rows, all_labels = np.concatenate(rows), np.concatenate(labels)
    scale = np.concatenate([np.full(len(a), s / len(a)) for a, s in zip(rows, shares, strict=True)])
    x, value = _newton(all_rows, np.eye(num_classes)[all_labels], scale, l2)
    return dataclasses.replace(facts, x_star={"weight": x[:-1].T, "bias": x[-1]}, f_star=value)


def with_ones(x: np.ndarray) -> np.ndarray:
    """Features as float64 rows with a one for the bias."""
    flat = np.asarray(x, float).reshape(len(x), -1)
    return np.hstack([flat, np.ones((len(flat), 1))])


def _newton(rows: np.ndarray, targets: np.ndarray, scale: np.ndarray, l2: float) -> tuple[np.ndarray, float]:
    """Damped Newton on sum of scale * cross-entropy + (l2/2) ||x||^2; x is (features, classes)."""
    x = np.zeros((rows.shape[1], targets.shape[1]))
    for _ in range(50):
        gradient = rows.T @ (scale[:, None] * (softmax(rows @ x, axis=1) - targets)) + l2 * x
        if np.linalg.norm(gradient) < 1e-10:
            break
        direction = np.linalg.solve(_hessian(rows, x, scale, l2), gradient.reshape(-1)).reshape(x.shape)
        slope, value, step = float(np.sum(gradient * direction)), _value(rows, targets, scale, l2, x), 1.0
        while step > 1e-6 and _value(rows, targets, scale, l2, x - step * direction) > value - 0.1 * step * slope:
            step /= 2
        x = x - step * direction
    return x, _value(rows, targets, scale, l2, x)


def _value(rows: np.ndarray, targets: np.ndarray, scale: np.ndarray, l2: float, x: np.ndarray) -> float:
    return float(-np.sum(scale[:, None] * targets * log_softmax(rows @ x, axis=1)) + 0.5 * l2 * np.sum(x**2))


def _hessian(rows: np.ndarray, x: np.ndarray, scale: np.ndarray, l2: float) -> np.ndarray:
    """Block (i, j): rows^T diag(scale p_i (delta_ij - p_j)) rows, laid out as x.reshape(-1)."""
    p = softmax(rows @ x, axis=1)
    d, classes = x.shape
    hessian = np.empty((d, classes, d, classes))
    for i in range(classes):
        for j in range(i + 1):
            block = rows.T @ ((scale * p[:, i] * ((i == j) - p[:, j]))[:, None] * rows)
            hessian[:, i, :, j] = hessian[:, j, :, i] = block
    return hessian.reshape(d * classes, -1) + l2 * np.eye(d * classes)
