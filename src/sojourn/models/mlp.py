"""A multilayer perceptron."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.models.layers import Dropout, keys_for
from sojourn.models.wide_start import IdentityScale, SecondVariance, wide_matrices

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


@options_checked
def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    hidden: Annotated[list[Width], Field(description="units of each hidden layer")] = [64],  # noqa: B006
    activation: Annotated[Literal["relu", "tanh", "softplus", "gelu"], Field(description="between layers")] = "relu",
    dropout: DropoutRate = 0.0,
    start: Annotated[
        Literal["pytorch", "wide"],
        Field(description="law of the first weights; wide is that of the wide layer's paper"),
    ] = "pytorch",
    second_variance: SecondVariance = None,
    identity_scale: IdentityScale = None,
) -> Any:
    """A multilayer perceptron; PyTorch's initial weights (uniform within 1/sqrt(fan in)), or the wide start's.

    The wide start: W_1 ~ N(0, 1/inputs^2), W_2 ~ N(0, second_variance), later ones identity_scale [I; 0], biases 0.
    """
    if start == "pytorch" and not (second_variance is None and identity_scale is None):
        raise SojournError('second_variance and identity_scale shape the wide start; set start = "wide" with them.')
    if start == "wide" and not hidden:
        raise SojournError('start = "wide" needs a hidden layer; hidden is empty.')
    sizes = [int(np.prod(input_shape)), *hidden, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    if start == "wide":
        weights = wide_matrices(sizes, key, second_variance, identity_scale)
        layers = tuple(_linear(layer, weight) for layer, weight in zip(layers, weights, strict=True))
    return MLP(layers, ACTIVATIONS[activation], Dropout(dropout))


def _linear(layer: eqx.nn.Linear, weight: jax.Array) -> eqx.nn.Linear:
    """The layer with this matrix (inputs, outputs) and no bias to begin with."""
    return eqx.tree_at(lambda it: (it.weight, it.bias), layer, (weight.T, jnp.zeros(weight.shape[1])))
