"""A stream of costs from a real data set: handwritten digits that arrive in changing order."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.signature import options_checked
from sojourn.data import load_digits
from sojourn.online.stream import Recorded, stream


def logistic(sample: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """log(1 + exp(-y <a, x>))."""
    features, label = sample
    return jnp.logaddexp(0.0, -label * (features @ x))


@options_checked
def digits(
    *,
    num_machines: Annotated[int, Field(ge=1, description="that each get a stream of their own")] = 4,
    steps: Annotated[int, Field(ge=1, description="of the stream; digits are drawn with replacement")] = 1024,
    radius: Annotated[float, Field(gt=0, description="B, of the comparator's ball")] = 1.0,
    order: Annotated[
        Literal["shuffled", "changing", "sorted"],
        Field(description="at random; the frequent classes change over time; class by class"),
    ] = "changing",
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the order")] = 0,
) -> Recorded:
    """Is the digit five or more? Logistic loss on 8 x 8 pixels of norm 1, one digit per step and machine.

    Pixels are scaled to length 1, so that G = 1 and H = 1/4. "changing" gives class c the weight exp(2 cos(2 pi (t/T -
    c/10))) at time t: what is frequent goes round once.
    """
    data = load_digits()
    features = data.x_train / np.linalg.norm(data.x_train, axis=1, keepdims=True)
    labels = data.y_train
    rng = np.random.default_rng(seed)
    chosen = np.stack([_order(labels, steps, order, rng) for _ in range(num_machines)], axis=1)  # (steps, machines)
    signs = np.where(labels >= 5, 1.0, -1.0)
    return stream(
        logistic, (features[chosen], signs[chosen]), radius=radius, dimension=features.shape[1], lipschitz=1.0,
        smoothness=0.25, heterogeneity=1.0,
    )  # fmt: skip


def _order(labels: np.ndarray, steps: int, order: str, rng: np.random.Generator) -> np.ndarray:
    times = np.arange(steps) / steps
    classes = np.arange(10)
    if order == "shuffled":
        return rng.integers(0, len(labels), steps)
    if order == "sorted":
        wanted = np.minimum((times * 10).astype(int), 9)
    else:
        weights = np.exp(2 * np.cos(2 * np.pi * (times[:, None] - classes / 10)))
        bounds = np.cumsum(weights / weights.sum(1, keepdims=True), axis=1)
        wanted = np.minimum((rng.random(steps)[:, None] > bounds).sum(1), 9)
    found = np.empty(steps, int)
    for label in classes:
        at = np.flatnonzero(wanted == label)
        found[at] = rng.choice(np.flatnonzero(labels == label), len(at))
    return found
