"""Clients with finite data: any loss, any pytree of parameters, clients of any sizes.

All rows lie in one array, client after client, so clients whose sizes differ a hundredfold cost what they hold: batches
gather rows, exact answers loop over a client's own blocks, the global loss is one pass over all rows. Where rows change
hands every round, a client keeps its places in that array and a round's permutation says which rows lie there.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.code import code_of
from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation, build
from sojourn.core.frozen import is_frozen
from sojourn.core.keys import purpose_key, root_key, uniform_index
from sojourn.core.oracle import Block, Objective, entries

Loss = Callable[..., jax.Array]  # (params, batch) -> mean loss over the batch's rows; stochastic: (…, keys) too
Metrics = Callable[[Any, Any], dict[str, jax.Array]]  # (params, batch) -> means over the batch's rows

_BLOCK_ROWS = 128  # of an exact answer of a ragged client: the most rows that are computed and thrown away
_WHOLE_ROWS = 4096  # of an exact answer of a client among equals: the most that are computed at once
_WHOLE_NUMBERS = 1 << 24  # of any array that it then makes: convolutional networks take fewer rows at once
_EVALUATION_ROWS = 512  # of one block of the global pass: its rows, cut out of all, should still be in cache when used
_EVALUATION_NUMBERS = 1 << 20  # and so should any array that it makes of them


class Redeal(eqx.Module):
    """Rows change hands every round, each with rows of its own group; a client keeps the number of each group."""

    groups: jax.Array  # (rows,) int32, from 0
    places: jax.Array  # (rows,) all places, group after group

    def draw(self, key: jax.Array) -> jax.Array:
        """A round's permutation: the row at each place."""
        lots = jax.random.bits(key, self.places.shape, jnp.uint32)
        _, _, rows = jax.lax.sort((self.groups[self.places], lots, self.places), num_keys=2)
        return jnp.zeros_like(rows).at[self.places].set(rows, unique_indices=True)

    def mean(self, scale: jax.Array) -> jax.Array:
        """What a row weighs over all deals: the mean of the places of its group."""
        total, number = (jnp.zeros_like(scale).at[self.groups].add(a) for a in (scale, jnp.ones_like(scale)))
        return (total / number)[self.groups]


class FiniteData(Objective):
    """F_m = mean of `loss` over the rows of client m."""

    rows: Any  # tree of arrays, leading axis = all rows of all clients
    offsets: jax.Array | None  # (M,) first row of each client; None when all have `equal_size` rows
    sizes: jax.Array | None
    test_rows: Any
    row_weights: jax.Array  # (rows,) 1 / size of the row's client
    row_clients: jax.Array | None  # (rows,) the client of a row; None when sizes are equal
    loss: Loss = eqx.field(static=True)
    gradient: Callable[[Any, Any], Any] | None = eqx.field(static=True)
    measure: Metrics | None = eqx.field(static=True)
    equal_size: int | None = eqx.field(static=True)
    stochastic: bool = eqx.field(static=True, default=False)  # whether a drawn row comes with a key for the loss
    evaluation_rows: int = eqx.field(static=True, default=_EVALUATION_ROWS)  # of one block of the global pass
    whole_rows: int = eqx.field(static=True, default=_WHOLE_ROWS)  # the most that an exact answer takes at once
    numbers_of_a_row: int = eqx.field(static=True, default=0)  # in the largest array that the loss makes of a row
    redeal: Redeal | None = None  # whether rows change hands every round
    order: jax.Array | None = None  # (rows,) in a round of such a federation: the row that lies at each place

    def in_round(self, key: jax.Array) -> "FiniteData":
        return self if self.redeal is None else dataclasses.replace(self, order=self.redeal.draw(key))

    def cut(self, firsts: Sequence[int], size: int) -> Sequence[Objective]:
        if self.redeal is not None:
            return [self] * len(firsts)  # in some round a client may hold any row
        return [Block(self._part(first, size, self._rows_of(firsts, size)), np.int32(first)) for first in firsts]

    def _rows_of(self, firsts: Sequence[int], size: int) -> int:
        """The most rows that one of these blocks holds."""
        ends = np.append(np.asarray(self._offsets()), len(self.row_weights))
        return int(max(ends[first + size] - ends[first] for first in firsts))

    def _offsets(self) -> np.ndarray:
        """(M,) every client's first row."""
        if self.equal_size is not None:
            return np.arange(self.num_clients, dtype=np.int64) * self.equal_size
        return np.asarray(self.offsets)

    def _part(self, first: int, size: int, num_rows: int) -> "FiniteData":
        """`size` clients from this one on, without what metrics need; the rows are views, nothing is copied."""
        offsets = self._offsets()[first : first + size]
        start = int(min(offsets[0], len(self.row_weights) - num_rows))
        ragged = self.equal_size is None
        return dataclasses.replace(
            self,
            rows=jax.tree.map(lambda a: entries(a, start, num_rows), self.rows),
            offsets=entries(offsets.astype(np.int32) - np.int32(start), 0, size) if ragged else None,
            sizes=entries(self.sizes, first, size) if ragged else None,
            test_rows=None,
            row_weights=entries(self.row_weights, 0, 0),
            row_clients=None,
        )

    def open(self, client: jax.Array) -> Any:
        if self.equal_size is not None:
            return client * self.equal_size, self.equal_size
        assert self.offsets is not None and self.sizes is not None
        return self.offsets[client], self.sizes[client]

    def num_samples(self, view: Any) -> jax.Array | int:
        return view[1]

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        offset, length = view
        rows = self._rows_at(offset + uniform_index(key, (num_batches, batch_size), length))
        if not self.stochastic:
            return rows
        # a key for each row: the same sample at two points drops the same, and pooled batches keep their own
        return rows, jax.random.split(purpose_key(key, "loss"), (num_batches, batch_size))

    def value(self, x: Any, view: Any, z: Any) -> jax.Array:
        return self.loss(x, *self._arguments(z))

    def grad(self, x: Any, view: Any, z: Any) -> Any:
        return (jax.grad(self.loss) if self.gradient is None else self.gradient)(x, *self._arguments(z))

    def _arguments(self, z: Any) -> tuple[Any, ...]:
        return z if self.stochastic else (z,)

    def still(self, z: Any) -> Any:
        return z[:1] if self.stochastic else z

    def moments(self, view: Any) -> tuple[jax.Array, jax.Array] | None:
        """Rows that are a sequence begin with features, as those of the supervised problems do."""
        if not isinstance(self.rows, Sequence) or len(jax.tree.leaves(self.rows)) < 2:
            return None
        features = jax.tree.leaves(self.rows)[0]
        if features.ndim < 2:
            return None
        offset, length = view

        def add(place: jax.Array, sums: Any) -> Any:
            row = _take(features, offset + place if self.order is None else _take(self.order, offset + place))
            row = jnp.ravel(row).astype(jnp.result_type(float))
            return sums[0] + row, sums[1] + row**2

        zero = jnp.zeros(int(np.prod(features.shape[1:])), jnp.result_type(float))
        first, second = jax.lax.fori_loop(0, length, add, (zero, zero))
        return first / length, second / length

    def full_value(self, x: Any, view: Any) -> jax.Array:
        offset, length = view
        if self._whole and self.order is not None:
            return self.loss(x, self._rows_at(offset + jnp.arange(length, dtype=jnp.int32)))
        if self._whole:
            return self.loss(x, jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, offset, length), self.rows))
        blocks = self._blocks(view)
        return jax.lax.fori_loop(0, blocks, lambda b, s: s + self._block_value(x, view, b), self._zero(x))

    def full_grad(self, x: Any, view: Any) -> Any:
        if self._whole:
            return jax.grad(self.full_value)(x, view)
        gradient = jax.grad(self._block_value)  # block by block: a loop of traced length has no reverse mode
        zero = jax.tree.map(jnp.zeros_like, x)
        return jax.lax.fori_loop(
            0, self._blocks(view), lambda b, s: jax.tree.map(jnp.add, s, gradient(x, view, b)), zero
        )

    @property
    def _whole(self) -> bool:
        """Whether an exact answer takes all of a client's rows at once."""
        return self.equal_size is not None and self.equal_size <= self.whole_rows

    def largest_array(self, batch_size: int | None) -> int:
        exact = self.equal_size if self._whole else _BLOCK_ROWS
        return self.numbers_of_a_row * (batch_size or exact or 1)

    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        loss, measured = self._in_one_pass(x, self.rows, self._scale(weights))
        found = {"loss": loss, **measured}
        if self.test_rows is not None:
            loss, measured = self._in_one_pass(x, self.test_rows, None)
            found |= {"test_loss": loss, **{f"test_{name}": value for name, value in measured.items()}}
        return found

    def _in_one_pass(self, x: Any, rows: Any, scale: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss and the means of what is measured: they share the model's answers, which are most of the work."""

        def of_row(row: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            return self.loss(x, one_row(row)), {} if self.measure is None else self.measure(x, one_row(row))

        return blockwise(of_row, rows, scale, self.evaluation_rows)

    def _rows_at(self, places: jax.Array) -> Any:
        return _take(self.rows, places if self.order is None else _take(self.order, places))

    def _row_loss(self, x: Any) -> Callable[[Any], jax.Array]:
        return lambda row: self.loss(x, one_row(row))

    def _scale(self, weights: jax.Array | None) -> jax.Array:
        """What each row weighs in the objective."""
        if weights is None:
            scale = self.row_weights / self.num_clients
        else:
            scale = self.row_weights * weights[self._clients_of_rows()]
        return scale if self.redeal is None else self.redeal.mean(scale)

    def _clients_of_rows(self) -> jax.Array:
        if self.row_clients is not None:
            return self.row_clients
        assert self.equal_size is not None
        return jnp.arange(len(self.row_weights)) // self.equal_size

    @property
    def num_clients(self) -> int:
        if self.sizes is not None:
            return len(self.sizes)
        assert self.equal_size is not None
        return len(self.row_weights) // self.equal_size

    def _blocks(self, view: Any) -> jax.Array:
        return (view[1] + _BLOCK_ROWS - 1) // _BLOCK_ROWS

    def _block_value(self, x: Any, view: Any, block: jax.Array) -> jax.Array:
        offset, length = view
        places = block * _BLOCK_ROWS + jnp.arange(_BLOCK_ROWS, dtype=jnp.int32)
        inside = places < length
        rows = self._rows_at(offset + jnp.where(inside, places, 0))
        losses = jax.vmap(self._row_loss(x))(rows)
        return jnp.sum(jnp.where(inside, losses, 0)) / length

    def _zero(self, x: Any) -> jax.Array:
        return jnp.zeros((), jax.eval_shape(self._row_loss(x), jax.tree.map(lambda a: a[0], self.rows)).dtype)


def _take(rows: Any, index: jax.Array) -> Any:
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), rows)


def one_row(row: Any) -> Any:
    return jax.tree.map(lambda a: a[None], row)


def blockwise(row_values: Callable[[Any], Any], rows: Any, scale: jax.Array | None, block_rows: int) -> Any:
    """The means of (first, others) over all rows, block by block; with a scale, the sum of scale * first instead."""
    total = len(jax.tree.leaves(rows)[0])

    def block_sums(block: Any) -> Any:
        rows, scale = block
        first, others = jax.vmap(row_values)(rows)
        return jnp.sum(first) if scale is None else jnp.vdot(scale, first), jax.tree.map(jnp.sum, others)

    def sums_from(start: jax.Array) -> Any:
        cut = lambda a: jax.lax.dynamic_slice_in_dim(a, start, block_rows)  # noqa: E731
        return block_sums(jax.tree.map(cut, (rows, scale)))  # cut out one at a time: never a second copy of all rows

    main = total - total % block_rows
    sums = block_sums(jax.tree.map(lambda a: a[main:], (rows, scale)))
    if main:
        blocks = jax.lax.map(sums_from, jnp.arange(0, main, block_rows, dtype=jnp.int32))
        sums = jax.tree.map(lambda a, b: a + jnp.sum(b), sums, blocks)
    first, others = sums  # dividing last keeps a perfect accuracy at exactly one
    return first / total if scale is None else first, jax.tree.map(lambda a: a / total, others)


def federation(
    loss: Loss,
    params: Any,
    clients: Sequence[Any],
    *,
    batch_size: int | None = None,
    weights: Any = None,
    test: Any = None,
    metrics: Metrics | None = None,
    gradient: Callable[[Any, Any], Any] | None = None,
    facts: Facts | None = None,
    redeal: bool | Sequence[Any] = False,
    stochastic: bool = False,
    name: str = "federation",
    **rest: Any,
) -> Federation:
    """Your own problem: `loss(params, batch)` is the mean over the batch's rows, `clients` a list of trees of arrays.

    Each client's arrays share their leading axis, its rows. `params` is any pytree (an Equinox model too: what is not a
    float array, or is wrapped in `sojourn.core.frozen.Frozen`, stays fixed). `batch_size=None` makes every gradient
    exact. `weights` are the clients' shares of the objective, by default equal; `"size"` takes their numbers of rows.
    `metrics(params, batch)` may return `accuracy`.
    `gradient(arrays, batch)` is the loss's gradient in the float arrays, where you have a faster one than jax.grad.
    `redeal=True` deals all rows to the clients anew in every round, sizes kept; a list of whole numbers per client, one
    for each row, lets a row change hands only with rows of the same number. With `stochastic=True` the loss is
    `loss(params, batch, keys)` on drawn samples, one random key per row (dropout), and `loss(params, batch)` without
    randomness in evaluation and in exact answers.
    """
    trees = [jax.tree.map(np.asarray, client) for client in clients]
    sizes = _check_clients(trees)
    rows = jax.tree.map(lambda *parts: np.concatenate(parts), *trees)
    groups = None if redeal is False else _groups(redeal, sizes)
    return federation_of_rows(
        loss, params, rows, sizes, batch_size=batch_size, weights=weights, test=test, metrics=metrics,
        gradient=gradient, facts=facts, groups=groups, stochastic=stochastic, name=name, **rest,
    )  # fmt: skip


def federation_of_rows(
    loss: Loss, params: Any, rows: Any, sizes: np.ndarray, *, batch_size: int | None, weights: Any, test: Any,
    metrics: Metrics | None, gradient: Callable[[Any, Any], Any] | None, facts: Facts | None,
    groups: np.ndarray | None, stochastic: bool = False, name: str, **rest: Any,
) -> Federation:  # fmt: skip
    """The same from finite rows that lie together, client after client, so that large data are not copied again."""
    test_leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(test)]
    if any(len(leaf) == 0 for leaf in test_leaves):
        raise SojournError("the test data hold no rows; give some, or leave test out.")
    if not all(np.isfinite(leaf).all() for leaf in test_leaves if np.issubdtype(leaf.dtype, np.floating)):
        raise SojournError("the test data hold values that are not finite (NaN or infinity); clean them.")
    arrays, rest_of_model = eqx.partition(params, eqx.is_inexact_array, is_leaf=is_frozen)
    arrays = jax.tree.map(jnp.asarray, arrays)
    if not jax.tree.leaves(arrays):
        raise SojournError("params hold no float array, so there is nothing to train; give arrays of floats.")
    rebuild = _Rebuild(rest_of_model)
    if stochastic and batch_size is None:
        raise SojournError("the loss is random (the model has dropout), but exact gradients have none; set batch_size.")
    on_model, sample = _OnModel(loss, rebuild), jax.tree.map(lambda a: _default_precision(a[:1]), rows)
    check_loss(on_model, arrays, sample)
    if stochastic:
        check_loss(on_model, arrays, sample, jax.random.split(root_key(0), 1))
    numbers = _numbers_of_a_row(on_model, arrays, sample)
    equal = bool((sizes == sizes[0]).all())
    objective = FiniteData(
        rows=jax.tree.map(lambda a: jnp.asarray(_default_precision(a)), rows),
        offsets=None if equal else jnp.asarray(np.concatenate([[0], np.cumsum(sizes)[:-1]]), jnp.int32),
        sizes=None if equal else jnp.asarray(sizes, jnp.int32),
        test_rows=jax.tree.map(lambda a: jnp.asarray(_default_precision(np.asarray(a))), test),
        row_weights=jnp.asarray(np.repeat(1.0 / sizes, sizes), jnp.result_type(float)),
        row_clients=None if equal else jnp.asarray(np.repeat(np.arange(len(sizes)), sizes), jnp.int32),
        loss=on_model,
        gradient=gradient,
        measure=None if metrics is None else _OnModel(metrics, rebuild),
        equal_size=int(sizes[0]) if equal else None,
        stochastic=stochastic,
        evaluation_rows=rows_within(_EVALUATION_ROWS, _EVALUATION_NUMBERS, numbers),
        whole_rows=rows_within(_WHOLE_ROWS, _WHOLE_NUMBERS, numbers),
        numbers_of_a_row=numbers,
        redeal=None if groups is None else _redeal(groups),
    )
    if isinstance(weights, str):
        if weights != "size":
            raise unknown_name("weights", weights, ("size",))
        weights = sizes
    return build(
        objective, arrays, len(sizes), weights=weights, sizes=None if equal else sizes,
        batch_size=batch_size, facts=facts, name=name, rebuild=rebuild, **rest,
    )  # fmt: skip


def _groups(redeal: bool | Sequence[Any], sizes: np.ndarray) -> np.ndarray:
    """The group of every row."""
    if redeal is True:
        return np.zeros(int(sizes.sum()), np.int32)
    parts = [np.asarray(part) for part in redeal] if isinstance(redeal, Sequence) else []
    if [part.shape for part in parts] != [(size,) for size in sizes]:
        raise SojournError("redeal must be True, False, or one list of whole numbers per client, one for each row.")
    groups = np.concatenate(parts)
    if not np.issubdtype(groups.dtype, np.integer):
        raise SojournError(f"redeal holds numbers of type {groups.dtype}; a row's group is a whole number.")
    return groups


def _redeal(groups: np.ndarray) -> Redeal:
    _, numbered = np.unique(groups, return_inverse=True)
    places = np.argsort(numbered, kind="stable")
    return Redeal(jnp.asarray(numbered, jnp.int32), jnp.asarray(places, jnp.int32))


def check_loss(loss: Loss, arrays: Any, *batch: Any) -> None:
    """The loss must take a batch and give one float; better said now than by a program that broadcasts."""
    try:
        value = jax.eval_shape(loss, arrays, *batch)
    except Exception as error:
        first_line = str(error).split("\n")[0]
        raise SojournError(f"the loss fails on a batch of one row: {type(error).__name__}: {first_line}") from error
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise SojournError(f"the loss gives {value}, not one float; return the mean over the rows of the batch.")


def _numbers_of_a_row(loss: Loss, arrays: Any, row: Any) -> int:
    """The size of the largest array that the loss makes of one row; 0 where that is not clear."""

    def sizes(number: int) -> list[int]:
        rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct((number, *a.shape[1:]), a.dtype), row)
        return _sizes_in(jax.make_jaxpr(loss)(arrays, rows).jaxpr)

    two, three = sizes(2), sizes(3)
    if len(two) != len(three):
        return 0  # a loss that does other things for other numbers of rows
    # what grows from two rows to three is made of rows; what does not is made of the parameters alone
    return max((more - less for less, more in zip(two, three, strict=True)), default=0)


def rows_within(most: int, numbers: int, numbers_of_a_row: int) -> int:
    """How many rows may be looked at together: a power of two, `most` unless their largest array would be too large."""
    return min(most, 1 << max(0, (numbers // max(1, numbers_of_a_row)).bit_length() - 1))


def _sizes_in(jaxpr: Any) -> list[int]:
    """The size of every array that a program makes, in order."""
    found = []
    for equation in jaxpr.eqns:
        found += [getattr(variable.aval, "size", 0) for variable in equation.outvars]
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            found += _sizes_in(inner) if hasattr(inner, "eqns") else []
    return found


class _Rebuild:
    """Puts trained arrays back into the user's model. Compared by content, so that equal models share one program."""

    def __init__(self, rest_of_model: Any) -> None:
        self.rest = rest_of_model
        leaves, structure = jax.tree.flatten(rest_of_model)
        self._identity = structure, tuple(_identity(leaf) for leaf in leaves)

    def __call__(self, arrays: Any) -> Any:
        return eqx.combine(arrays, self.rest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rebuild) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@dataclasses.dataclass(frozen=True)
class _OnModel:
    """The user's function, applied to trained arrays."""

    function: Callable[..., Any]
    rebuild: _Rebuild

    def __repr__(self) -> str:  # goes into a checkpoint's fingerprint: another loss is another run
        return f"{code_of(self.function)} on {self.rebuild.rest}"

    def __call__(self, arrays: Any, *batch: Any) -> Any:
        return self.function(self.rebuild(arrays), *batch)


def _identity(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)):
        array = np.asarray(leaf)
        return array.shape, str(array.dtype), array.tobytes()
    return leaf


def _default_precision(array: np.ndarray) -> np.ndarray:
    """Floats in the precision of the run, whole numbers as they are."""
    return array.astype(jnp.result_type(float), copy=False) if np.issubdtype(array.dtype, np.floating) else array


def _check_clients(trees: Sequence[Any]) -> np.ndarray:
    """The clients' sizes, once every client is known to hold finite rows of one and the same shape."""
    if not trees:
        raise SojournError("a federation needs at least one client; the list of clients is empty.")
    shapes = jax.tree.map(lambda a: (a.shape[1:], a.dtype), trees[0])
    sizes = []
    for number, tree in enumerate(trees):
        leaves = jax.tree.leaves(tree)
        lengths = {len(leaf) if leaf.ndim else 0 for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise SojournError(f"client {number} is empty or its arrays differ in length; give every client some rows.")
        if jax.tree.map(lambda a: (a.shape[1:], a.dtype), tree) != shapes:
            raise SojournError(f"client {number}'s rows differ in shape or type from client 0's.")
        if not all(np.isfinite(leaf).all() for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)):
            raise SojournError(f"client {number}'s data hold values that are not finite (NaN or infinity); clean them.")
        sizes.append(lengths.pop())
    return np.asarray(sizes)
