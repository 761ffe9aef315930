"""What every partition scheme asks of its input."""

import numpy as np

from sojourn.core.errors import SojournError


def check_request(labels: np.ndarray, num_clients: int, min_samples: int = 1) -> np.ndarray:
    """The labels as an array, provided that every client can get min_samples of them."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.size == 0:
        found = f"shape {labels.shape} and type {labels.dtype}"
        raise SojournError(f"labels have {found}; expected a non-empty list of integers, one per sample.")
    if num_clients < 1:
        raise SojournError(f"num_clients = {num_clients} must be at least 1.")
    if num_clients * min_samples > len(labels):
        raise SojournError(
            f"num_clients = {num_clients} with at least {min_samples} samples each needs {num_clients * min_samples} "
            f"samples but there are {len(labels)}; use at most {len(labels) // min_samples} clients."
        )
    return labels


def check_at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise SojournError(f"{name} = {value} must be at least {low}.")


def check_classes(labels: np.ndarray) -> np.ndarray:
    """How often each class occurs, provided that none is missing below the last."""
    if labels.min() < 0:
        raise SojournError(f"labels hold {labels.min()}; classes are numbered from 0.")
    counts = np.bincount(labels)
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        raise SojournError(f"class {missing[0]} is missing from the data; renumber the labels or take other samples.")
    return counts
