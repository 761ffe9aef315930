"""Every client gets a random sample of the data: the homogeneous case."""

import numpy as np

from sojourn.partition.checks import check_request


def iid(labels: np.ndarray, num_clients: int, *, seed: int = 0) -> list[np.ndarray]:
    """Shuffle and cut into parts whose sizes differ by at most one."""
    labels = check_request(labels, num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, num_clients)]
