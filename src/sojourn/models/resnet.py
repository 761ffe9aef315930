"""Residual networks for small images, with GroupNorm in place of BatchNorm (the numbers of parameters are equal).

ResNet-18 and -50 are those of He et al. with the usual first layer for 32 x 32 images: a 3 x 3 convolution of stride 1
and no pooling, instead of 7 x 7, stride 2 and pooling. ResNet-50 strides in the 3 x 3 convolutions. The 9-layer network
has no original; it is the one of the DAWNBench entries: eight convolutions of which four are in two residual blocks,
and a linear layer. Convolutions have no bias and He's normal weights (variance 2 / (kernel^2 outputs)).
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.models.cnn import Groups
from sojourn.models.convolution import Conv2d, max_pool, mean_pool
from sojourn.models.layers import GroupNorm, as_image, image_shape

FirstWidth = Annotated[int, Field(ge=1, description="channels of the first stage, doubled at every further one")]


class NormedConv(eqx.Module):
    """A convolution without bias, and a normalisation."""

    conv: Conv2d
    norm: GroupNorm

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int, key: jax.Array, stride: int = 1) -> None:
        self.conv = Conv2d(
            inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False, init="he", key=key
        )  # fmt: skip
        self.norm = GroupNorm(outputs, groups)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Residual(eqx.Module):
    """x + branch(x), with relu between the branch's layers and after the sum; the shortcut adapts x where needed."""

    branch: tuple[NormedConv, ...]
    shortcut: NormedConv | None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x
        for layer in self.branch[:-1]:
            y = jax.nn.relu(layer(y))
        return jax.nn.relu(self.branch[-1](y) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(eqx.Module):
    """A first layer, residual blocks, the mean over all places, a linear layer."""

    first: NormedConv
    blocks: tuple[Residual, ...]
    last: eqx.nn.Linear

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        x = jax.nn.relu(self.first(as_image(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(mean_pool(x))


class Skip(eqx.Module):
    """x + the outcome of two layers of the same shape, with relu after each."""

    layers: tuple[NormedConv, NormedConv]

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jax.nn.relu(self.layers[1](jax.nn.relu(self.layers[0](x))))


class ResNet9(eqx.Module):
    """Four layers, the last three pooled, with a block that is skipped over after the second and the fourth."""

    layers: tuple[NormedConv, ...]
    blocks: tuple[Skip, Skip]
    last: eqx.nn.Linear

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        first, second, third, fourth = self.layers
        x = jax.nn.relu(first(as_image(x)))
        x = self.blocks[0](jax.nn.relu(max_pool(second(x))))
        x = jax.nn.relu(max_pool(third(x)))
        x = self.blocks[1](jax.nn.relu(max_pool(fourth(x))))
        return self.last(x.max((0, 1)))


@options_checked
def resnet9(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    groups: Groups = 32,
    width: Annotated[int, Field(ge=1, description="channels of the first convolution, an eighth of the last's")] = 64,
) -> Any:
    """ResNet-9 with GroupNorm: convolutions of 64, 128, 256, 512 channels and two residual blocks."""
    rows, columns, inputs = image_shape(input_shape, "resnet9")
    if min(rows, columns) < 8:
        raise SojournError(
            f'model "resnet9" halves an image three times; {rows} x {columns} pixels are too few, take at least 8 x 8.'
        )
    keys = iter(jax.random.split(key, 9))
    sizes = (inputs, width, 2 * width, 4 * width, 8 * width)
    layers = tuple(NormedConv(a, b, 3, groups, next(keys)) for a, b in itertools.pairwise(sizes))
    pair = lambda c: (NormedConv(c, c, 3, groups, next(keys)), NormedConv(c, c, 3, groups, next(keys)))  # noqa: E731
    blocks = Skip(pair(2 * width)), Skip(pair(8 * width))
    return ResNet9(layers, blocks, eqx.nn.Linear(8 * width, num_classes, key=next(keys)))


@options_checked
def resnet18(
    input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, groups: Groups = 32, width: FirstWidth = 64
) -> Any:
    """ResNet-18 for small images, with GroupNorm."""
    return _resnet("resnet18", input_shape, num_classes, key, width, (2, 2, 2, 2), groups, bottleneck=False)


@options_checked
def resnet50(
    input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, groups: Groups = 32, width: FirstWidth = 64
) -> Any:
    """ResNet-50 for small images, with GroupNorm."""
    return _resnet("resnet50", input_shape, num_classes, key, width, (3, 4, 6, 3), groups, bottleneck=True)


def _resnet(
    name: str, input_shape: tuple[int, ...], num_classes: int, key: jax.Array, width: int,
    depths: Sequence[int], groups: int, *, bottleneck: bool,
) -> ResNet:  # fmt: skip
    inputs = image_shape(input_shape, name)[2]
    first_key, last_key, *keys = jax.random.split(key, 2 + sum(depths))
    first = NormedConv(inputs, width, 3, groups, first_key)
    blocks, inputs, rest = [], width, iter(keys)
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            make = _bottleneck if bottleneck else _basic
            blocks.append(make(inputs, width * 2**stage, stride, groups, next(rest)))
            inputs = width * 2**stage * (4 if bottleneck else 1)
    return ResNet(first, tuple(blocks), eqx.nn.Linear(inputs, num_classes, key=last_key))


def _basic(inputs: int, channels: int, stride: int, groups: int, key: jax.Array) -> Residual:
    a, b, c = jax.random.split(key, 3)
    branch = NormedConv(inputs, channels, 3, groups, a, stride), NormedConv(channels, channels, 3, groups, b)
    return Residual(branch, _shortcut(inputs, channels, stride, groups, c))


def _bottleneck(inputs: int, channels: int, stride: int, groups: int, key: jax.Array) -> Residual:
    a, b, c, d = jax.random.split(key, 4)
    branch = (
        NormedConv(inputs, channels, 1, groups, a),
        NormedConv(channels, channels, 3, groups, b, stride),
        NormedConv(channels, 4 * channels, 1, groups, c),
    )
    return Residual(branch, _shortcut(inputs, 4 * channels, stride, groups, d))


def _shortcut(inputs: int, outputs: int, stride: int, groups: int, key: jax.Array) -> NormedConv | None:
    return None if stride == 1 and inputs == outputs else NormedConv(inputs, outputs, 1, groups, key, stride)
