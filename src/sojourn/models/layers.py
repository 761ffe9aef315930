"""Parts that several networks share: dropout, group normalisation, the shape of an image."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError


class Dropout(eqx.Module):
    """Zeroes each number, or each channel (last axis) as a whole, with probability `rate`; scales what is left.

    Without a key it does nothing: that is evaluation. The draws are float32 in every precision, so they are the same.
    """

    rate: float = eqx.field(static=True)
    whole_channels: bool = eqx.field(static=True, default=False)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        if key is None or self.rate == 0:
            return x
        shape = x.shape[-1:] if self.whole_channels else x.shape
        kept = jax.random.uniform(key, shape, jnp.float32) >= self.rate
        return jnp.where(kept, x / (1 - self.rate), 0)


class GroupNorm(eqx.Module):
    """Normalises an image (height, width, channels) over places and groups of channels; scale and shift by channel.

    It takes the place of batch normalisation: no statistics of other samples, so nothing of a client's data is mixed,
    and a model is its parameters alone.
    """

    weight: jax.Array
    bias: jax.Array
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, groups: int) -> None:
        if channels % groups:
            fitting = math.gcd(channels, groups)
            raise SojournError(
                f"model.groups = {groups} does not divide a layer's {channels} channels; take {fitting}, or another "
                "number that does."
            )
        self.weight = jnp.ones(channels, jnp.result_type(float))
        self.bias = jnp.zeros(channels, jnp.result_type(float))
        self.groups = groups

    def __call__(self, x: jax.Array) -> jax.Array:
        grouped = x.reshape(*x.shape[:2], self.groups, -1)
        mean = jnp.mean(grouped, (0, 1, 3), keepdims=True)
        centred = grouped - mean
        scale = jax.lax.rsqrt(jnp.mean(centred**2, (0, 1, 3), keepdims=True) + 1e-5)
        return (centred * scale).reshape(x.shape) * self.weight + self.bias


def has_dropout(model: Any) -> bool:
    """Whether a call of the model may take a key: some part of it is a dropout that drops."""
    nodes = jax.tree.leaves(model, is_leaf=_is_dropout)
    return any(_is_dropout(node) and _rate(node) > 0 for node in nodes)


def _is_dropout(node: Any) -> bool:
    return isinstance(node, (Dropout, eqx.nn.Dropout))


def _rate(node: Any) -> float:
    return float(node.rate if isinstance(node, Dropout) else 0 if node.inference else node.p)


def keys_for(key: jax.Array | None, number: int) -> list[Any]:
    """A key for each of several dropouts; None for each in evaluation."""
    return [None] * number if key is None else list(jax.random.split(key, number))


def image_shape(input_shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """(height, width, channels); a plain (height, width) has one channel."""
    if len(input_shape) == 2:
        return (*input_shape, 1)
    if len(input_shape) != 3:
        raise SojournError(
            f'model "{name}" takes images (height, width, channels), but a sample has shape {tuple(input_shape)}; '
            'take data of images, or model "mlp".'
        )
    return input_shape


def as_image(x: jax.Array) -> jax.Array:
    return x[..., None] if x.ndim == 2 else x
