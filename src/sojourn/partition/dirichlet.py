"""Dirichlet label skew (Hsu, Qi and Brown, 2019): a dial from one client per class (0) to equal shares (infinity)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_at_least, check_request


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int = 0,
    concentration: Annotated[float, Field(gt=0, description="small: few clients share a class; large: all do")] = 0.5,
    min_samples: Annotated[int, Field(ge=1, description="samples that every client has at least")] = 1,
) -> list[np.ndarray]:
    """For every class draw the clients' shares from a symmetric Dirichlet law and cut the class accordingly.

    Clients left with fewer than min_samples are then given random samples of the clients that have most.
    """
    check_at_least("min_samples", min_samples, 1)
    labels = check_request(labels, num_clients, min_samples)
    if not 0 < concentration < np.inf:
        raise SojournError(
            f"concentration = {concentration} must be positive and finite; 0.1 is skewed, 100 almost even."
        )
    rng = np.random.default_rng(seed)
    owner = np.empty(len(labels), dtype=np.int64)
    for name in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == name))
        shares = rng.dirichlet(np.full(num_clients, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            owner[piece] = client
    _top_up(owner, num_clients, min_samples, rng)
    return [np.flatnonzero(owner == client) for client in range(num_clients)]


def _top_up(owner: np.ndarray, num_clients: int, min_samples: int, rng: np.random.Generator) -> None:
    """Move one sample at a time, in place, from the largest client to the smallest until none has too few."""
    sizes = np.bincount(owner, minlength=num_clients)
    while sizes.min() < min_samples:
        donor, receiver = int(sizes.argmax()), int(sizes.argmin())
        owner[rng.choice(np.flatnonzero(owner == donor))] = receiver
        sizes[donor] -= 1
        sizes[receiver] += 1
