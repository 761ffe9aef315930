"""Labels in, one list of sample indices per client out. One more scheme is one more file and one more line here.

Every scheme is called as scheme(labels, num_clients, seed=..., options): it uses a sample at most once, leaves no
client empty, and depends on nothing but its arguments. The options' ranges and descriptions are in its signature.
"""

from collections.abc import Callable

import numpy as np

from sojourn.partition.classes import classes
from sojourn.partition.counts import label_counts
from sojourn.partition.dirichlet import dirichlet
from sojourn.partition.iid import iid
from sojourn.partition.shards import shards

PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
}

__all__ = ["PARTITIONS", "classes", "dirichlet", "iid", "label_counts", "shards"]
