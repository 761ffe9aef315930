"""Every client sees a single class: the most that labels can differ."""

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_classes, check_request


def one_class(labels: np.ndarray, num_clients: int, *, seed: int = 0) -> list[np.ndarray]:
    """Client i gets class i mod C, divided evenly among its holders; every class needs a client."""
    labels = check_request(labels, num_clients)
    counts = check_classes(labels)
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = [np.empty(0, np.int64)] * num_clients
    if num_clients < len(counts):
        raise SojournError(
            f"num_clients = {num_clients} with one class each leaves {len(counts) - num_clients} of {len(counts)} "
            "classes to nobody; use at least as many clients as classes."
        )
    for name in range(len(counts)):
        holders = np.arange(name, num_clients, len(counts))
        if len(holders) > counts[name]:
            raise SojournError(
                f"class {name} has {counts[name]} samples for the {len(holders)} clients that would hold it; "
                "use fewer clients."
            )
        members = rng.permutation(np.flatnonzero(labels == name))
        for client, piece in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[client] = np.sort(piece)
    return parts
