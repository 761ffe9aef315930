"""Labels in, one list of sample indices per client out. One more scheme is one more file and one more line here.

Every scheme is called as scheme(labels, num_clients, seed=..., options): it uses a sample at most once, leaves no
client empty, and depends on nothing but its arguments. The options' ranges and descriptions are in its signature.
`redealt` makes of any partition one whose samples change hands in every round. Texts are dealt by TEXT_PARTITIONS,
called as scheme(tokens, num_clients).
"""

from collections.abc import Callable

import numpy as np

from sojourn.partition.classes import classes
from sojourn.partition.contiguous import contiguous
from sojourn.partition.counts import label_counts
from sojourn.partition.dirichlet import dirichlet
from sojourn.partition.iid import iid
from sojourn.partition.mixed import mixed
from sojourn.partition.one_class import one_class
from sojourn.partition.q_share import q_share
from sojourn.partition.redealt import Redeal, Redealt, redealt
from sojourn.partition.shards import shards

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "one-class": one_class,
    "mixed": mixed,
    "q-share": q_share,
    "dirichlet": dirichlet,
}
TEXT_PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {"contiguous": contiguous}

__all__ = [
    "PARTITIONS", "TEXT_PARTITIONS", "Redeal", "Redealt", "classes", "contiguous", "dirichlet", "iid", "label_counts",
    "mixed", "one_class", "q_share", "redealt", "shards",
]  # fmt: skip
