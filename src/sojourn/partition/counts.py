"""How a partition spreads the labels, for heat maps and reports."""

from collections.abc import Sequence

import numpy as np


def label_counts(labels: np.ndarray, clients: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """A (clients, classes) table: how many samples of each class every client holds."""
    return np.stack([np.bincount(np.asarray(labels)[part], minlength=num_classes) for part in clients])
