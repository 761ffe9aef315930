"""Convolution and pooling of one image, channels last: (height, width, channels).

XLA's convolutions are slow inside loops on CPU (up to thirty times slower than the same sum as matrix products), so on
CPU a convolution is written as products, in one of three ways that were measured forward and backward. On other
backends it is XLA's own.

- many input channels: one product for every place of the kernel, summed; no patches are stored.
- few output channels: pixels are put together to cells of 2 x 2, whose channels are all their values. The kernel
  becomes a wider one over cells with four times as many outputs, some of its entries zero: a few more multiplications,
  but a third of the memory moved and products wide enough for the processor. The 2 x 2 pooling that follows is then a
  maximum over four neighbouring groups of channels.
- else: patches side by side, and one product.
"""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError

_MANY_INPUTS = 48  # channels; from here on a product per place of the kernel is faster than patches
_FEW_OUTPUTS = 24  # channels; up to here cells are faster than patches

Form = Literal["native", "places", "cells", "patches"]


class Conv2d(eqx.Module):
    """A convolution with the same padding on all sides; `weight` is (height, width, inputs, outputs)."""

    weight: jax.Array
    bias: jax.Array | None
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)
    form: Form | None = eqx.field(static=True)  # None: the fastest for this backend

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, key: jax.Array, stride: int = 1, padding: int = 0,
        bias: bool = True, init: Literal["uniform", "he"] = "uniform", form: Form | None = None,
    ) -> None:  # fmt: skip
        """`uniform`: weight and bias uniform within 1/sqrt(fan in), PyTorch's default. `he`: normal weights with
        variance 2 / (kernel^2 outputs), as the residual networks have them, and no bias.
        """
        shape, dtype = (kernel, kernel, inputs, outputs), jnp.result_type(float)
        weight_key, bias_key = jax.random.split(key)
        limit = 1 / math.sqrt(kernel * kernel * inputs)
        if init == "he":
            self.weight = jax.random.normal(weight_key, shape, dtype) * math.sqrt(2 / (kernel * kernel * outputs))
        else:
            self.weight = jax.random.uniform(weight_key, shape, dtype, -limit, limit)
        self.bias = jax.random.uniform(bias_key, (outputs,), dtype, -limit, limit) if bias else None
        self.stride, self.padding, self.form = stride, padding, form

    def __call__(self, x: jax.Array) -> jax.Array:
        form = self._form()
        if form == "native":
            return self._with_bias(_native(x, self.weight, self.stride, self.padding))
        x = _padded(x, self.padding)
        if form == "cells":
            y = _cells(x, self.weight)
            rows, columns, _, _, outputs = y.shape
            y = jnp.swapaxes(y, 1, 2).reshape(2 * rows, 2 * columns, outputs)
            height, width = self._extent(x)
            return self._with_bias(y[:height, :width])
        return self._with_bias((_places if form == "places" else _patches)(x, self.weight, self.stride))

    def max_pool(self, x: jax.Array) -> jax.Array:
        """The convolution and 2 x 2 max pooling in one; a monotone activation may as well come after the pooling."""
        if self._form() != "cells":
            return max_pool(self(x))
        x = _padded(x, self.padding)
        height, width = self._extent(x)
        y = _cells(x, self.weight)[: height // 2, : width // 2]
        return self._with_bias(_largest(y[:, :, 0, 0], y[:, :, 0, 1], y[:, :, 1, 0], y[:, :, 1, 1]))

    def _form(self) -> Form:
        if self.form is not None:
            return self.form
        if jax.default_backend() != "cpu":
            return "native"
        kernel, _, inputs, outputs = self.weight.shape
        if kernel > 1 and self.stride == 1 and outputs <= _FEW_OUTPUTS:
            return "cells"
        return "places" if inputs >= _MANY_INPUTS else "patches"

    def _extent(self, padded: jax.Array) -> tuple[int, int]:
        return padded.shape[0] - self.weight.shape[0] + 1, padded.shape[1] - self.weight.shape[1] + 1

    def _with_bias(self, y: jax.Array) -> jax.Array:
        return y if self.bias is None else y + self.bias


def max_pool(x: jax.Array, size: int = 2) -> jax.Array:
    """Largest value of every size x size square; what is left over at the far edges is dropped."""
    rows, columns = x.shape[0] // size, x.shape[1] // size
    squares = x[: rows * size, : columns * size].reshape(rows, size, columns, size, x.shape[2])
    # pairwise maxima: their gradient is a comparison each, that of a reduction compares, counts and divides
    return _largest(*(squares[:, i, :, j] for i in range(size) for j in range(size)))


def mean_pool(x: jax.Array) -> jax.Array:
    """The mean over all places: (channels,)."""
    return jnp.mean(x, (0, 1))


def pooled_size(extent: int, kernel: int, padding: int = 0, pool: int = 2, *, name: str) -> int:
    """The side of an image after a convolution and pooling, or a sentence if nothing would be left of it."""
    after = (extent + 2 * padding - kernel + 1) // pool
    if after < 1:
        raise SojournError(
            f'model "{name}" has a {kernel} x {kernel} convolution and {pool} x {pool} pooling where only {extent} '
            "pixels are left of the image; take larger images or another model."
        )
    return after


def _padded(x: jax.Array, padding: int) -> jax.Array:
    return jnp.pad(x, ((padding, padding), (padding, padding), (0, 0))) if padding else x


def _native(x: jax.Array, weight: jax.Array, stride: int, padding: int) -> jax.Array:
    sides = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(
        x[None], weight, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]


def _shifted(x: jax.Array, weight: jax.Array, stride: int) -> list[jax.Array]:
    """For every place of the kernel, what it sees: (rows, columns, inputs)."""
    rows, columns = x.shape[0] - weight.shape[0] + 1, x.shape[1] - weight.shape[1] + 1
    return [
        x[i : i + rows : stride, j : j + columns : stride]
        for i in range(weight.shape[0])
        for j in range(weight.shape[1])
    ]


def _places(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    matrices = weight.reshape(-1, *weight.shape[2:])
    first, *others = (seen @ matrices[n] for n, seen in enumerate(_shifted(x, weight, stride)))
    return sum(others, start=first)


def _patches(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    return jnp.concatenate(_shifted(x, weight, stride), -1) @ weight.reshape(-1, weight.shape[-1])


def _cells(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The convolution with stride 1 as (rows / 2, columns / 2, 2, 2, outputs), rounded up at the far edges."""
    kernel, _, inputs, outputs = weight.shape
    rows, columns = (-(-(extent - kernel + 1) // 2) for extent in x.shape[:2])
    reach = kernel // 2 + 1  # cells that a window of kernel + 1 pixels covers
    height, width = 2 * (rows + reach - 1), 2 * (columns + reach - 1)
    x = jnp.pad(x, ((0, max(0, height - x.shape[0])), (0, max(0, width - x.shape[1])), (0, 0)))[:height, :width]
    cells = jnp.swapaxes(x.reshape(height // 2, 2, width // 2, 2, inputs), 1, 2)
    cells = cells.reshape(height // 2, width // 2, 4 * inputs)
    seen = [cells[i : i + rows, j : j + columns] for i in range(reach) for j in range(reach)]
    spare = 2 * reach - kernel
    banded = jnp.stack(  # the kernel moved by 0 and 1 in each direction, one group of outputs each
        [
            jnp.pad(weight, ((i, spare - i), (j, spare - j), (0, 0), (0, 0)))
            for i in range(2)
            for j in range(2)
        ],
        axis=3,
    )  # fmt: skip
    banded = banded.reshape(reach, 2, reach, 2, inputs, 4 * outputs).transpose(0, 2, 1, 3, 4, 5)
    y = jnp.concatenate(seen, -1) @ banded.reshape(-1, 4 * outputs)
    return y.reshape(rows, columns, 2, 2, outputs)


def _largest(first: jax.Array, *others: jax.Array) -> jax.Array:
    for other in others:
        first = jnp.maximum(first, other)
    return first
