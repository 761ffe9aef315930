"""A multilayer perceptron."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import numpy as np
from pydantic import Field

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu, "tanh": jax.numpy.tanh, "softplus": jax.nn.softplus, "gelu": jax.nn.gelu,
}  # fmt: skip


class MLP(eqx.Module):
    """Linear layers with an activation between them; one input in, class scores out."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


Width = Annotated[int, Field(ge=1)]


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    hidden: Annotated[list[Width], Field(description="units of each hidden layer")] = [64],  # noqa: B006
    activation: Annotated[Literal["relu", "tanh", "softplus", "gelu"], Field(description="between layers")] = "relu",
) -> Any:
    """A multilayer perceptron."""
    sizes = [int(np.prod(input_shape)), *hidden, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    return MLP(layers, ACTIVATIONS[activation])
