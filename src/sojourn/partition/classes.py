"""Every client holds a fixed number of classes; every class is divided among the clients that hold it."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_at_least, check_request


def classes(
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int = 0,
    classes_per_client: Annotated[int, Field(ge=1, description="different labels held by every client")] = 2,
) -> list[np.ndarray]:
    """Exactly classes_per_client labels on every client, and at least one sample of each.

    Holders go where they are needed most (see `_assign`), so with equally frequent classes their numbers differ by at
    most one. All samples are used when num_clients * classes_per_client is at least the number of classes; with
    fewer places, the classes nobody holds are left out.
    """
    labels = check_request(labels, num_clients)
    check_at_least("classes_per_client", classes_per_client, 1)
    names, sizes = np.unique(labels, return_counts=True)
    if classes_per_client > len(names):
        raise SojournError(
            f"classes_per_client = {classes_per_client} is more than the {len(names)} classes present; use fewer."
        )
    rng = np.random.default_rng(seed)
    holds = _assign(sizes, num_clients, classes_per_client, rng)
    _check_enough(names, sizes, holds)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for column, name in enumerate(names):
        holders = rng.permutation(np.flatnonzero(holds[:, column]))  # who gets the odd sample is random
        members = rng.permutation(np.flatnonzero(labels == name))
        pieces = np.array_split(members, len(holders)) if len(holders) else []
        for client, piece in zip(holders, pieces, strict=True):
            parts[client].append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def _assign(sizes: np.ndarray, num_clients: int, per_client: int, rng: np.random.Generator) -> np.ndarray:
    """A (clients, classes) mask. Each client in turn takes the classes with the most samples per holder so far.

    A class without a holder comes first (Adams' rule of apportionment); ties go to the larger class, then to chance.
    """
    holds = np.zeros((num_clients, len(sizes)), dtype=bool)
    for client in range(num_clients):
        holders = holds.sum(axis=0)
        share = np.where(holders > 0, sizes / np.maximum(holders, 1), np.inf)
        order = np.lexsort((rng.random(len(sizes)), -sizes, -share))  # the last key counts first
        holds[client, order[:per_client]] = True
    return holds


def _check_enough(names: np.ndarray, sizes: np.ndarray, holds: np.ndarray) -> None:
    holders = holds.sum(axis=0)
    short = np.flatnonzero(holders > sizes)
    if short.size:
        k = short[0]
        raise SojournError(
            f"class {names[k]} has {sizes[k]} samples for the {holders[k]} clients that would hold it; "
            "use fewer clients or fewer classes_per_client."
        )
