"""Label-sorted shards (McMahan et al., AISTATS 2017): a client sees only the few labels its shards happen to hold."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.partition.checks import check_at_least, check_request


def shards(
    labels: np.ndarray,
    num_clients: int,
    *,
    seed: int = 0,
    shards_per_client: Annotated[int, Field(ge=1, description="label-sorted shards dealt to every client")] = 2,
) -> list[np.ndarray]:
    """Sort by label, cut into num_clients * shards_per_client shards of equal size (up to one), deal them at random."""
    labels = check_request(labels, num_clients)
    check_at_least("shards_per_client", shards_per_client, 1)
    num_shards = num_clients * shards_per_client
    if num_shards > len(labels):
        raise SojournError(
            f"shards_per_client = {shards_per_client} for {num_clients} clients needs {num_shards} samples but there "
            f"are {len(labels)}; use at most {len(labels) // num_clients} shards per client or fewer clients."
        )
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))  # so that which samples of a label meet in a shard is random
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], num_shards)
    hands = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return [np.sort(np.concatenate([pieces[i] for i in hand])) for hand in hands]
