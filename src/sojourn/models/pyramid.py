"""The pyramidal network with one wide layer of Song et al., "FedAvg converges to zero training loss linearly …".

F_l = sigma(F_{l-1} W_l), the last layer linear, no biases, W_l of shape (n_{l-1}, n_l). The theory wants a first layer
at least as wide as there are samples, widths that do not grow after the second, and an activation with
sigma' in [gamma, 1], |sigma(x)| <= |x| and a beta-Lipschitz derivative; the paper names none. Here
sigma(x) = gamma x + (1 - gamma) (log(1 + exp(c x)) - log 2) / c, for which beta = (1 - gamma) c / 4.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.models.mlp import Width


class SmoothLeaky(eqx.Module):
    """sigma above: between the line of slope gamma and that of slope 1; `sharpness` is c."""

    gamma: float = eqx.field(static=True)
    sharpness: float = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        bend = (jax.nn.softplus(self.sharpness * x) - math.log(2)) / self.sharpness
        return self.gamma * x + (1 - self.gamma) * bend

    @property
    def beta(self) -> float:
        """The Lipschitz constant of the derivative."""
        return (1 - self.gamma) * self.sharpness / 4


class Pyramid(eqx.Module):
    """`weights` in the paper's orientation, rows are inputs."""

    weights: tuple[jax.Array, ...]
    activation: SmoothLeaky

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(-1)
        for weight in self.weights[:-1]:
            x = self.activation(x @ weight)
        return x @ self.weights[-1]


def pyramid_of(weights: Sequence[jax.Array], gamma: float = 0.5, sharpness: float = 1.0) -> Pyramid:
    """A pyramid with given matrices W_1 … W_L, for initialisations of one's own."""
    shapes = [np.shape(weight) for weight in weights]
    fits = bool(shapes) and all(len(shape) == 2 for shape in shapes)
    if not fits or any(a[1] != b[0] for a, b in itertools.pairwise(shapes)):
        raise SojournError(f"the matrices of a pyramid have shapes {shapes}; each must take what the one before gives.")
    _check_widths([shape[1] for shape in shapes])
    return Pyramid(tuple(jnp.asarray(w, jnp.result_type(float)) for w in weights), SmoothLeaky(gamma, sharpness))


@options_checked
def pyramid(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    widths: Annotated[list[Width], Field(min_length=1, description="units of each hidden layer, the first wide")] = [  # noqa: B006
        256,
        32,
    ],
    gamma: Annotated[float, Field(gt=0, lt=1, description="smallest slope of the activation")] = 0.5,
    sharpness: Annotated[float, Field(gt=0, le=1e6, description="of the activation's bend")] = 1.0,
) -> Any:
    """Pyramidal network with one wide layer and a smooth activation; plain random weights N(0, 1/fan in), no biases."""
    sizes = [int(np.prod(input_shape)), *widths, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = itertools.pairwise(sizes)
    draw = lambda k, a, b: jax.random.normal(k, (a, b), jnp.result_type(float)) / math.sqrt(a)  # noqa: E731
    return pyramid_of([draw(k, a, b) for k, (a, b) in zip(keys, shapes, strict=True)], gamma, sharpness)


def _check_widths(widths: list[int]) -> None:
    """n_2 >= n_3 >= … >= n_L; the first is free, as how wide it should be depends on the data."""
    if any(a < b for a, b in itertools.pairwise(widths[1:])):
        raise SojournError(
            f"model.widths make layers of {widths} units, outputs included; after the second, none may be wider than "
            "the one before."
        )
