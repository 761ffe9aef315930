"""A share of the clients is skewed, with few classes each, the others are random samples (Song et al., 2023)."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_at_least, check_request
from sojourn.partition.classes import classes
from sojourn.partition.iid import iid


def mixed(
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int = 0,
    skewed_share: Annotated[float, Field(ge=0, le=1, description="share of the clients with few classes")] = 0.7,
    classes_per_client: Annotated[int, Field(ge=1, description="different labels held by a skewed client")] = 2,
) -> list[np.ndarray]:
    """The first round(skewed_share * num_clients) clients hold classes_per_client labels each, the others are iid.

    Both kinds divide a random part of the data in proportion to their numbers, as the schemes `classes` and `iid` do.
    """
    labels = check_request(labels, num_clients)
    check_at_least("classes_per_client", classes_per_client, 1)
    if not 0 <= skewed_share <= 1:
        raise SojournError(f"skewed_share = {skewed_share} must lie between 0 and 1; 0.7 skews seven clients of ten.")
    num_skewed = round(skewed_share * num_clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = round(len(labels) * num_skewed / num_clients)
    skewed, even = np.sort(order[:cut]), np.sort(order[cut:])
    parts: list[np.ndarray] = []
    if num_skewed:
        hands = classes(labels[skewed], num_skewed, seed=seed, classes_per_client=classes_per_client)
        parts += [skewed[hand] for hand in hands]
    if num_skewed < num_clients:
        parts += [even[hand] for hand in iid(labels[even], num_clients - num_skewed, seed=seed)]
    return parts
