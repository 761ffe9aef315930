"""What the clients hold: sizes, labels, features. No model is needed for these."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.federation import Clients
from sojourn.diagnosis.case import Case


def label_shift(counts: np.ndarray) -> float:
    """Mean over clients of the total variation between their labels and all labels."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    everyone = counts.sum(axis=0) / counts.sum()
    return float(np.abs(shares - everyone).sum(axis=1).mean() / 2)


def feature_shift(sizes: np.ndarray, means: np.ndarray, squares: np.ndarray) -> float:
    """Mean distance of the clients' mean features from that of all, over the root of the pooled variance."""
    shares = sizes / sizes.sum()
    centre = shares @ means
    pooled = float(np.sum(np.maximum(shares @ (squares - means**2), 0.0)))
    return float(np.linalg.norm(means - centre, axis=1).mean() / pooled**0.5) if pooled > 0 else 0.0


def holdings(case: Case) -> None:
    asking, counts = case.asking, case.federation.label_counts
    if int(asking.held.max()) > 1:
        everyone = case.federation.clients.sizes
        sizes = asking.held if everyone is None else np.asarray(everyone)
        asking.sent(up=1)
        kind = "exact" if len(sizes) == case.federation.num_clients else "estimate"
        case.tell("smallest_client", float(sizes.min()), kind, "the data", "points held")
        case.tell("largest_client", float(sizes.max()), kind, "the data", "points held")
    if counts is not None:
        asking.sent(up=counts.shape[1], by=len(counts))
        how = "mean total variation between a client's labels and all"
        case.tell("label_shift", label_shift(np.asarray(counts, float)), "exact", "the data", how)
    ids = jnp.asarray(asking.who, jnp.int32)
    if case.scalars_only or jax.eval_shape(_moments, asking.clients, ids) is None:
        return
    means, squares = (np.asarray(a, float) for a in _moments(asking.clients, ids))
    asking.sent(up=2 * means.shape[1])
    how = "mean distance of a client's mean features from all, over the pooled deviation"
    kind = "exact" if len(asking) == case.federation.num_clients else "estimate"
    case.tell("feature_shift", feature_shift(asking.held.astype(float), means, squares), kind, "the data", how)


@jax.jit
def _moments(clients: Clients, ids: jax.Array) -> Any:
    objective = clients.objective
    return jax.lax.map(lambda i: objective.moments(objective.open(i)), ids)
