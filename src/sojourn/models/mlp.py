"""A multilayer perceptron."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import numpy as np
from pydantic import Field

from sojourn.models.layers import Dropout, keys_for

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu, "tanh": jax.numpy.tanh, "softplus": jax.nn.softplus, "gelu": jax.nn.gelu,
}  # fmt: skip


class MLP(eqx.Module):
    """Linear layers with an activation between them, then dropout; one input in, class scores out."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[jax.Array], jax.Array]
    dropout: Dropout = Dropout(0.0)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        x = x.reshape(-1)
        for layer, drop in zip(self.layers[:-1], keys_for(key, len(self.layers) - 1), strict=True):
            x = self.dropout(self.activation(layer(x)), drop)
        return self.layers[-1](x)


Width = Annotated[int, Field(ge=1)]
DropoutRate = Annotated[float, Field(ge=0, lt=1, description="share of a layer that a training step leaves out")]


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    hidden: Annotated[list[Width], Field(description="units of each hidden layer")] = [64],  # noqa: B006
    activation: Annotated[Literal["relu", "tanh", "softplus", "gelu"], Field(description="between layers")] = "relu",
    dropout: DropoutRate = 0.0,
) -> Any:
    """A multilayer perceptron; PyTorch's initial weights (uniform within 1/sqrt(fan in))."""
    sizes = [int(np.prod(input_shape)), *hidden, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    return MLP(layers, ACTIVATIONS[activation], Dropout(dropout))
