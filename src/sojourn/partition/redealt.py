"""Samples that change hands in every round: a partition says how many a client has, a round's key says which."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sojourn.core.errors import unknown_name

Redeal = Literal["never", "all", "class"]
WAYS = ("never", "all", "class")


class Redealt(Sequence[np.ndarray]):
    """Clients' index lists whose samples are dealt anew in every round, each among those of its group."""

    def __init__(self, clients: Sequence[np.ndarray], groups: np.ndarray, keeps_labels: bool) -> None:
        self.clients, self.groups, self.keeps_labels = list(clients), groups, keeps_labels

    def __getitem__(self, number: Any) -> Any:
        return self.clients[number]

    def __len__(self) -> int:
        return len(self.clients)


def redealt(clients: Sequence[np.ndarray], labels: np.ndarray, redeal: Redeal) -> Sequence[np.ndarray]:
    """The clients with their samples dealt anew in every round, or as they are.

    "all": any sample may come to any client, whose number of samples stays. "class": samples change hands inside their
    class, so that a client keeps its labels and their numbers too.
    """
    if redeal not in WAYS:
        raise unknown_name("partition.redeal", redeal, WAYS)
    if redeal == "never":
        return clients
    labels = np.asarray(labels)
    by_class = redeal == "class"
    return Redealt(clients, labels if by_class else np.zeros_like(labels), keeps_labels=by_class)
