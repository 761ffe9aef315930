"""Every client owns a class and holds the fraction q of it; the rest of the class is spread over the other clients.

Thesis, section 6.3 (ten clients, ten classes): q = 0.1 is homogeneous there, q = 1 gives every client one class.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_classes, check_request


def q_share(
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int = 0,
    own_share: Annotated[
        float, Field(ge=0, le=1, description="q, the fraction of a class that goes to its owner")
    ] = 0.5,
) -> list[np.ndarray]:
    """Client m owns class m mod C: it gets the fraction q of it, and an even part of what others leave of theirs.

    All classes are first cut to the size of the smallest, at random. Several owners of a class divide its fraction
    evenly; a class without an owner, or without anyone else, goes to all evenly.
    """
    labels = check_request(labels, num_clients)
    if not 0 <= own_share <= 1:
        raise SojournError(f"own_share = {own_share} must lie between 0 and 1; 0.1 is even for ten clients.")
    counts = check_classes(labels)
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    owns = np.arange(num_clients) % len(counts)
    for name in range(len(counts)):
        members = rng.permutation(np.flatnonzero(labels == name))[: counts.min()]
        owners, others = np.flatnonzero(owns == name), np.flatnonzero(owns != name)
        cut = round(own_share * len(members)) if len(owners) and len(others) else len(members) * (len(owners) > 0)
        for holders, piece in ((owners, members[:cut]), (others, members[cut:])):
            if len(holders):
                dealt = np.array_split(piece, len(holders))
                for client, hand in zip(rng.permutation(holders), dealt, strict=True):  # the odd sample goes anywhere
                    parts[client].append(hand)
    found = [np.sort(np.concatenate(part)) for part in parts]
    empty = next((client for client, part in enumerate(found) if len(part) == 0), None)
    if empty is not None:
        raise SojournError(f"own_share = {own_share:g} leaves client {empty} without samples; use fewer clients.")
    return found
