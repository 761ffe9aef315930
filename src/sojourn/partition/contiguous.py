"""Every client gets a stretch of a text, as a device holds what its own user wrote."""

import numpy as np

from sojourn.core.errors import SojournError


def contiguous(tokens: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Stretches of equal length, one after another; what does not go up, fewer tokens than clients, is left out."""
    if num_clients < 1:
        raise SojournError(f"num_clients = {num_clients} must be at least 1.")
    length = len(tokens) // num_clients
    if length < 2:  # a token and the one that follows
        raise SojournError(
            f"partition.num_clients = {num_clients} is too many for a text of {len(tokens)} tokens; use at most "
            f"{len(tokens) // 2}."
        )
    return [np.arange(start, start + length) for start in range(0, num_clients * length, length)]
