"""A recurrent language model: every word or character is guessed from those before it in its window.

Hochreiter and Schmidhuber's long short-term memory with forget gates, in the usual arrangement of word language models:
embedding, layers, scores of all tokens, with dropout before every layer and before the scores.
"""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.models.layers import Dropout, keys_for
from sojourn.models.mlp import DropoutRate

_EDGE = 0.1  # embedding and scores begin uniform within this

Units = Annotated[int, Field(ge=1, le=100_000, description="of every layer")]
Layers = Annotated[int, Field(ge=1, le=100, description="one above the other")]
Embedding = Annotated[int | None, Field(ge=1, le=100_000, description="numbers per token; as many as units")]
Tied = Annotated[bool, Field(description="whether the scores use the embedding's matrix")]


class LSTMLayer(eqx.Module):
    """(i, f, g, o) = [x, h] W + b; c <- s(f) c + s(i) tanh(g); h <- s(o) tanh(c), from h = c = 0; s the logistic."""

    weight: jax.Array  # (inputs + units, 4 units)
    bias: jax.Array  # (4 units,)

    def __call__(self, x: jax.Array) -> jax.Array:
        """All of a sequence's inputs (length, inputs) to all outputs (length, units)."""
        inputs = x.shape[-1]
        recurrent = self.weight[inputs:]
        given = x @ self.weight[:inputs] + self.bias  # one product for all times; only the recurrent one has to wait

        def step(state: tuple[jax.Array, jax.Array], given: jax.Array) -> tuple[Any, jax.Array]:
            h, c = state
            i, f, g, o = jnp.split(given + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros(len(recurrent), given.dtype)
        return jax.lax.scan(step, (zero, zero), given)[1]


class Table(eqx.Module):
    """One row of numbers per token."""

    weight: jax.Array  # (vocabulary, size)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.weight.at[tokens].get(mode="promise_in_bounds")


class Decoder(eqx.Module):
    """A score for every token; without a matrix of its own it is given the embedding's."""

    weight: jax.Array | None  # (vocabulary, units)
    bias: jax.Array  # (vocabulary,)

    def __call__(self, x: jax.Array, tied: jax.Array) -> jax.Array:
        return x @ (tied if self.weight is None else self.weight).T + self.bias


class LSTM(eqx.Module):
    """Token numbers (length,) in; for each, scores (length, vocabulary) of the token that follows."""

    embedding: Table
    layers: tuple[LSTMLayer, ...]
    decoder: Decoder
    dropout: Dropout

    def __call__(self, tokens: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        first, *others = keys_for(key, len(self.layers) + 1)
        x = self.dropout(self.embedding(tokens), first)
        for layer, mine in zip(self.layers, others, strict=True):
            x = self.dropout(layer(x), mine)
        return self.decoder(x, self.embedding.weight)


@options_checked
def lstm(
    vocabulary_size: int,
    key: jax.Array,
    *,
    units: Units = 200,
    layers: Layers = 2,
    embedding: Embedding = None,
    dropout: DropoutRate = 0.0,
    tied: Tied = False,
) -> Any:
    """A language model of LSTM layers, for texts.

    It begins uniform within 0.1 (embedding, scores), zero (the scores' bias) and uniform within 1/sqrt(units) (layers).
    """
    width = units if embedding is None else embedding
    if tied and width != units:
        raise SojournError(
            f"model.embedding = {width} and model.units = {units} differ, so the scores cannot use the embedding's "
            "matrix; make them equal, or set tied = false."
        )
    kind = jnp.result_type(float)
    first, last, *keys = jax.random.split(key, layers + 2)

    def uniform(key: jax.Array, shape: tuple[int, ...], edge: float) -> jax.Array:
        return jax.random.uniform(key, shape, kind, -edge, edge)

    def layer(key: jax.Array, inputs: int) -> LSTMLayer:
        of_weight, of_bias = jax.random.split(key)
        edge = units**-0.5
        return LSTMLayer(uniform(of_weight, (inputs + units, 4 * units), edge), uniform(of_bias, (4 * units,), edge))

    matrix = None if tied else uniform(last, (vocabulary_size, units), _EDGE)
    return LSTM(
        Table(uniform(first, (vocabulary_size, width), _EDGE)),
        tuple(layer(k, width if number == 0 else units) for number, k in enumerate(keys)),
        Decoder(matrix, jnp.zeros(vocabulary_size, kind)),
        Dropout(dropout),
    )
