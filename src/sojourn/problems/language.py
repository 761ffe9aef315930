"""Language modelling: devices that each hold a stretch of a text learn to guess its next token.

A sample is a window of `bptt` tokens and those that follow them. Its start is drawn uniformly from the places of the
client's stretch where a whole window fits, and the model's memory is empty there. So gradients reach back at most
`bptt` tokens, as in truncated backpropagation, but nothing is carried from one window into the next: an oracle's
samples are independent, and a window that continued the one before would not be. Exact answers and all metrics look at
the windows that begin at every `bptt`-th token, each token but the first guessed once; what is left at the end, fewer
than `bptt` tokens, they leave out.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, uniform_index
from sojourn.core.oracle import entries
from sojourn.core.vec import Vec, norm
from sojourn.data.text import Text
from sojourn.models.layers import has_dropout
from sojourn.problems.finite import FiniteData, blockwise, federation_of_rows, one_row, rows_within

_WINDOWS_AT_ONCE = 64  # of one block of a pass: enough for the products of each step to be worth their call
_NUMBERS_AT_ONCE = 1 << 23  # and in their scores

WindowsPerGradient = Annotated[
    int | None, Field(ge=1, description="windows per gradient; leave it out for exact gradients")
]
Window = Annotated[int, Field(ge=1, le=100_000, description="tokens that a gradient reaches back")]
Clip = Annotated[float, Field(ge=0, description="largest norm of a client's gradient; 0 for any")]


def language_model(
    text: Text,
    clients: Sequence[np.ndarray],
    model: Any,
    *,
    bptt: Window = 35,
    batch_size: WindowsPerGradient = None,
    clip: Clip = 0.25,
) -> Federation:
    """Cross-entropy of the next token, for a text in stretches; perplexity is its exponential.

    `clients` are the places of each client's tokens, as `sojourn.partition.contiguous` gives them. The model maps token
    numbers (length,) to scores (length, vocabulary); one with dropout takes `key=…`, in training only. A gradient
    longer than `clip` is shortened to it, an exact one too, and one of several batches together as a whole.
    """
    stretches = _stretches(text, clients, bptt)
    _check_model(model, len(text.vocabulary), bptt)
    test = text.test[None]
    if test.size <= bptt:
        raise SojournError(f"text {text.name!r} has {test.size} tokens to test on; a window takes {bptt + 1}.")
    if not (np.isfinite(clip) and clip >= 0):
        raise SojournError(f"problem.clip = {clip} is out of range; give a norm above 0, or 0 for no clipping.")
    rows = _windows(stretches, bptt)
    made = federation_of_rows(
        _loss, model, rows, np.full(len(stretches), len(rows) // len(stretches)), batch_size=batch_size, weights=None,
        test=_windows(test, bptt), metrics=_measured, gradient=None, facts=None, groups=None,
        stochastic=has_dropout(model), name="language-model",
    )  # fmt: skip
    finite = made.clients.objective
    assert isinstance(finite, FiniteData)
    fields = {field.name: getattr(finite, field.name) for field in dataclasses.fields(finite)}
    together = rows_within(_WINDOWS_AT_ONCE, _NUMBERS_AT_ONCE, finite.numbers_of_a_row)
    objective = Stretches(
        **{**fields, "evaluation_rows": together, "whole_rows": together},
        tokens=jnp.asarray(stretches),
        clip=jnp.asarray(clip, jnp.result_type(float)) if clip else None,
    )
    return dataclasses.replace(made, clients=dataclasses.replace(made.clients, objective=objective))


class Stretches(FiniteData):
    """Clients with a stretch of a text each: the rows are the windows of exact answers, draws begin anywhere."""

    tokens: jax.Array = eqx.field(kw_only=True)  # (clients, length)
    clip: jax.Array | None = eqx.field(kw_only=True)  # None: gradients as they are

    def _part(self, first: int, size: int, num_rows: int) -> "Stretches":
        part = super()._part(first, size, num_rows)
        assert isinstance(part, Stretches)
        return dataclasses.replace(part, tokens=entries(self.tokens, first, size))

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        window, length = self.rows.shape[1], self.tokens.shape[1]
        assert self.equal_size is not None
        first = view[0] // self.equal_size * length  # of the client's stretch among all tokens
        shape, choices = (num_batches, batch_size, 1), length - window + 1
        if choices < 2**16:
            starts = first + uniform_index(key, shape, choices)
        else:  # float32 has too few bits to choose among so many
            starts = first + jax.random.randint(key, shape, 0, choices, jnp.int32)
        places = starts + jnp.arange(window, dtype=jnp.int32)
        windows = self.tokens.reshape(-1).at[places].get(mode="promise_in_bounds")
        if not self.stochastic:
            return windows
        return windows, jax.random.split(purpose_key(key, "loss"), (num_batches, batch_size))

    def grad(self, x: Any, view: Any, z: Any) -> Any:
        return self._clipped(super().grad(x, view, z))

    def full_grad(self, x: Any, view: Any) -> Any:
        return self._clipped(super().full_grad(x, view))

    def _clipped(self, gradient: Any) -> Any:
        if self.clip is None:
            return gradient
        length = norm(Vec(gradient))
        return (Vec(gradient) * jnp.where(length > self.clip, self.clip / length, 1)).tree

    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        found = super().metrics(x, weights)
        return found | {name.replace("loss", "perplexity"): jnp.exp(found[name]) for name in ("loss", "test_loss")}

    def largest_array(self, batch_size: int | None) -> int:
        return self.numbers_of_a_row * (batch_size or min(self.whole_rows, self.equal_size or 1))

    def _in_one_pass(self, x: Any, rows: Any, scale: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """All from one answer of the model: two equal loops over time would not be merged by the compiler."""

        def of_row(row: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            assert self.measure is not None
            measured = dict(self.measure(x, one_row(row)))
            return measured.pop("loss"), measured

        return blockwise(of_row, rows, scale, self.evaluation_rows)

    def _blocks(self, view: Any) -> jax.Array:
        return (view[1] + self.whole_rows - 1) // self.whole_rows

    def _block_value(self, x: Any, view: Any, block: jax.Array) -> jax.Array:
        """As of any finite data, with blocks that are small enough for a large vocabulary."""
        offset, length = view
        places = block * self.whole_rows + jnp.arange(self.whole_rows, dtype=jnp.int32)
        inside = places < length
        losses = jax.vmap(self._row_loss(x))(self._rows_at(offset + jnp.where(inside, places, 0)))
        return jnp.sum(jnp.where(inside, losses, 0)) / length


def _loss(model: Any, windows: jax.Array, keys: jax.Array | None = None) -> jax.Array:
    losses, _ = _losses(_scores(model, windows, keys), windows)
    return jnp.mean(losses)


def _measured(model: Any, windows: jax.Array) -> dict[str, jax.Array]:
    scores = _scores(model, windows, None)
    losses, chosen = _losses(scores, windows)
    # a largest score is found for the loss anyway; to look for its place would cost more than all but the products
    return {"loss": jnp.mean(losses), "accuracy": jnp.mean(chosen >= jnp.max(scores, -1), dtype=losses.dtype)}


def _scores(model: Any, windows: jax.Array, keys: jax.Array | None) -> jax.Array:
    tokens = windows[:, :-1]
    if keys is None:
        return jax.vmap(eqx.nn.inference_mode(model))(tokens)
    return jax.vmap(lambda row, key: model(row, key=key))(tokens, keys)


def _losses(scores: jax.Array, windows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(windows, bptt): the cross-entropy of each next token, and its score."""
    chosen = jnp.take_along_axis(scores, windows[:, 1:, None], -1, mode="promise_in_bounds")[..., 0]
    return jax.nn.logsumexp(scores, -1) - chosen, chosen


def _windows(stretches: np.ndarray, bptt: int) -> np.ndarray:
    """(all windows, bptt + 1): those of each stretch, one after another; the last token of one begins the next."""
    number = (stretches.shape[1] - 1) // bptt
    places = np.arange(number)[:, None] * bptt + np.arange(bptt + 1)
    return stretches[:, places].reshape(-1, bptt + 1)


def _stretches(text: Text, clients: Sequence[np.ndarray], bptt: int) -> np.ndarray:
    """(clients, length) the tokens of each client."""
    if not isinstance(text, Text):
        raise SojournError(f"a language model is trained on a text, not on a {type(text).__name__}.")
    if bptt < 1:
        raise SojournError(f"problem.bptt = {bptt} is out of range; give at least 1.")
    places = [np.asarray(part) for part in clients]
    if not places or any(part.ndim != 1 or not np.issubdtype(part.dtype, np.integer) for part in places):
        raise SojournError("the clients of a text are lists of places in it, at least one; deal it by contiguous.")
    lengths = {len(part) for part in places}
    if len(lengths) != 1:
        raise SojournError(f"clients hold {min(lengths)} to {max(lengths)} tokens; all stretches must be equally long.")
    length = lengths.pop()
    if length <= bptt:
        raise SojournError(
            f"each of {len(places)} clients gets {length} tokens of text {text.name!r}, and a window takes {bptt + 1}; "
            "take fewer clients, more of the text or a smaller problem.bptt."
        )
    together = np.stack(places)
    if (np.diff(together) != 1).any() or together.min() < 0 or together.max() >= len(text.train):
        raise SojournError(f"a client's places must follow one another, from 0 to {len(text.train) - 1}.")
    return text.train[together]


def _check_model(model: Any, vocabulary_size: int, bptt: int) -> None:
    if not callable(model):
        raise SojournError(f"the model is a {type(model).__name__}; expected one that maps tokens to scores.")
    try:
        scores = jax.eval_shape(eqx.nn.inference_mode(model), jax.ShapeDtypeStruct((bptt,), jnp.int32))
    except Exception as error:  # whatever a user's model does with tokens
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SojournError(f"the model does not take {bptt} tokens: {why}") from error
    found = getattr(scores, "shape", type(scores).__name__)
    if found != (bptt, vocabulary_size):
        raise SojournError(
            f"the model gives scores of shape {found} for {bptt} tokens; the text has {vocabulary_size} different ones."
        )
