"""The papers' convolutional networks. Each draws PyTorch's default weights: uniform within 1/sqrt(fan in)."""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
from pydantic import Field

from sojourn.core.signature import options_checked
from sojourn.models.convolution import Conv2d, max_pool, pooled_size
from sojourn.models.layers import Dropout, GroupNorm, as_image, image_shape, keys_for
from sojourn.models.mlp import DropoutRate

Groups = Annotated[int, Field(ge=1, description="groups of channels of the normalisations")]
WidthShare = Annotated[
    float, Field(gt=0, le=4, description="channels and units as a share of the network's own, at least one each")
]

_KEEP = Dropout(0.0)  # drops nothing


class Block(eqx.Module):
    """Convolution, relu, perhaps a normalisation, perhaps 2 x 2 max pooling, dropout."""

    conv: Conv2d
    norm: GroupNorm | None
    dropout: Dropout
    pools: bool = eqx.field(static=True)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        if self.norm is None:  # relu and pooling commute, and after the pooling it is a quarter of the work
            x = jax.nn.relu(self.conv.max_pool(x) if self.pools else self.conv(x))
        else:
            x = self.norm(jax.nn.relu(self.conv(x)))
            x = max_pool(x) if self.pools else x
        return self.dropout(x, key)


class CNN(eqx.Module):
    """Blocks of convolutions, then linear layers with relu and dropout between them."""

    blocks: tuple[Block, ...]
    dense: tuple[eqx.nn.Linear, ...]
    dropout: Dropout

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        x = as_image(x)
        keys = keys_for(key, len(self.blocks) + len(self.dense) - 1)
        for block, mine in zip(self.blocks, keys, strict=False):
            x = block(x, mine)
        x = x.reshape(-1)
        for layer, mine in zip(self.dense[:-1], keys[len(self.blocks) :], strict=True):
            x = self.dropout(jax.nn.relu(layer(x)), mine)
        return self.dense[-1](x)


@options_checked
def mnist_cnn(input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, dropout: DropoutRate = 0.5) -> Any:
    """Fed-LAMB's CNN for MNIST: 5 x 5 convolutions of 10 and 20 channels, pooled; channels dropped; 50 units."""
    return _cnn(
        "mnist-cnn", input_shape, num_classes, key, channels=(10, 20), kernel=5, units=(50,),
        block_dropouts=(_KEEP, Dropout(dropout, whole_channels=True)),
    )  # fmt: skip


@options_checked
def cifar_cnn_small(
    input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, width_share: WidthShare = 1.0
) -> Any:
    """The small CNN of FedAvg on small and large nets: 5 x 5 convolutions of 6 and 16 channels, 120 and 84 units."""
    channels, units = _scaled((6, 16), width_share), _scaled((120, 84), width_share)
    return _cnn("cifar-cnn-small", input_shape, num_classes, key, channels=channels, kernel=5, units=units)


@options_checked
def cifar_cnn_large(
    input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, width_share: WidthShare = 1.0
) -> Any:
    """The large CNN of FedAvg on small and large nets: three 3 x 3 convolutions of 128 channels, each pooled."""
    channels = _scaled((128, 128, 128), width_share)
    return _cnn("cifar-cnn-large", input_shape, num_classes, key, channels=channels, kernel=3, units=())


@options_checked
def cifar_cnn_async(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    *,
    dropout: DropoutRate = 0.25,
    groups: Groups = 32,
) -> Any:
    """FedAsync's CNN (its Table 2: 64, 64, 128, 128 channels, 512 units), with GroupNorm in place of BatchNorm."""
    drop = Dropout(dropout)
    return _cnn(
        "cifar-cnn-async", input_shape, num_classes, key, channels=(64, 64, 128, 128), kernel=3, padding=1,
        units=(512,), pools=(False, True, False, True), block_dropouts=(_KEEP, drop, _KEEP, drop),
        dropout=drop, groups=groups,
    )  # fmt: skip


def cifar_cnn_lamb(input_shape: tuple[int, ...], num_classes: int, key: jax.Array) -> Any:
    """Fed-LAMB's CNN for CIFAR: 3 x 3 convolutions of 32, 64, 64 channels, padded and pooled (our sizes); 512 units."""
    return _cnn(
        "cifar-cnn-lamb", input_shape, num_classes, key, channels=(32, 64, 64), kernel=3, padding=1, units=(512,)
    )  # fmt: skip


def _scaled(sizes: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(max(1, round(share * size)) for size in sizes)


def _cnn(
    name: str, input_shape: tuple[int, ...], num_classes: int, key: jax.Array, *, channels: Sequence[int], kernel: int,
    units: Sequence[int], padding: int = 0, pools: Sequence[bool] | None = None,
    block_dropouts: Sequence[Dropout] | None = None, dropout: Dropout = _KEEP, groups: int | None = None,
) -> CNN:  # fmt: skip
    height, width, inputs = image_shape(input_shape, name)
    keys = iter(jax.random.split(key, len(channels) + len(units) + 1))
    blocks = []
    for number, outputs in enumerate(channels):
        pooled = pools is None or pools[number]
        height, width = (pooled_size(side, kernel, padding, 2 if pooled else 1, name=name) for side in (height, width))
        conv = Conv2d(inputs, outputs, kernel, padding=padding, key=next(keys))
        norm = None if groups is None else GroupNorm(outputs, groups)
        blocks.append(Block(conv, norm, block_dropouts[number] if block_dropouts else _KEEP, pooled))
        inputs = outputs
    sizes = [height * width * inputs, *units, num_classes]
    dense = tuple(eqx.nn.Linear(a, b, key=next(keys)) for a, b in itertools.pairwise(sizes))
    return CNN(tuple(blocks), dense, dropout)
