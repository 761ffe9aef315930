"""The deep ReLU network of Deng and Mahdavi, "On the convergence of Local (S)GD on deep ReLU networks".

f(x) = V relu(W_L … relu(W_1 x)) without biases; W_l has independent entries N(0, 2/m) and V entries N(0, 1/d), d the
number of outputs. The theory trains W alone; the figures' counts of weights (39,700 and 119,400) include V. The
derivative of relu at 0 is 1, as the paper's indicator has it.
Paper to code: m -> width, L -> depth, V -> top.
"""

import math
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.frozen import Frozen
from sojourn.core.signature import options_checked


class DeepReLU(eqx.Module):
    """`weights` are (units, inputs) matrices; `top` is frozen unless it is a plain array."""

    weights: tuple[jax.Array, ...]
    top: Frozen | jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for weight in self.weights:
            x = weight @ x
            x = jnp.where(x >= 0, x, 0)
        return (self.top() if isinstance(self.top, Frozen) else self.top) @ x


@options_checked
def deep_relu(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    width: Annotated[int, Field(ge=1, description="m, units of every hidden layer")] = 50,
    depth: Annotated[int, Field(ge=1, le=1000, description="L, the number of hidden layers")] = 1,
    train_top: Annotated[bool, Field(description="whether the last layer is trained too")] = False,
) -> Any:
    """Deep ReLU network, no biases, entries N(0, 2/width), top layer N(0, 1/classes) and fixed (local SGD's theory)."""
    sizes = [int(np.prod(input_shape)), *[width] * depth]
    *keys, top_key = jax.random.split(key, depth + 1)
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    weights = tuple(_normal(k, shape, math.sqrt(2 / width)) for k, shape in zip(keys, shapes, strict=True))
    top = _normal(top_key, (num_classes, width), math.sqrt(1 / num_classes))
    return DeepReLU(weights, top if train_top else Frozen(top))


def _normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    return std * jax.random.normal(key, shape, jnp.result_type(float))
