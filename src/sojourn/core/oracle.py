"""What an algorithm may ask of a client: draw a sample, then gradients and values at it. Every question is counted.

The thesis writes g_m(x; z): the gradient of client m at x on a sample z. So does this interface: `z = oracle.draw(key)`
and `oracle.grad(x, z)`; the same z at two points is the two-point oracle of the variance-reduced methods.
"""

import abc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.vec import Vec, size, vecs

KINDS = ("grad", "value", "full_grad", "full_value", "samples", "steps")

# The samples of a block of steps are drawn together, as one call of the generator costs far less than many; a block
# holds at most this many numbers, and at least one step.
_DRAW_TOGETHER = 1 << 18
# Two steps at a time are a tenth faster and take no longer to compile, up to so many numbers in the state; for large
# models they are slower, and hold one model more.
_UNROLLED_NUMBERS = 1 << 15
_MAX_COUNT = 1 << 31  # counts of a round are 32-bit numbers


class Objective(eqx.Module):
    """The clients' functions. Holds the data; an algorithm never sees it. `view` is one client, made by `open`."""

    @abc.abstractmethod
    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        """Fresh samples, stacked: `num_batches` of them, each of `batch_size` independent points of the client.

        The first ones must not depend on how many are drawn: use one random call with `num_batches` as leading axis.
        """

    @abc.abstractmethod
    def value(self, x: Any, view: Any, z: Any) -> jax.Array:
        """The client's loss at the parameters x (a plain tree) on the sample z."""

    @abc.abstractmethod
    def full_value(self, x: Any, view: Any) -> jax.Array:
        """The client's exact loss."""

    @abc.abstractmethod
    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        """Numbers for the reader: at least `loss`, the objective over all clients with these weights (None: equal)."""

    def in_round(self, key: jax.Array) -> "Objective":
        """The objective as clients meet it in one round; another one where data are dealt anew, by the round's key."""
        return self

    def cut(self, firsts: Sequence[int], size: int) -> Sequence["Objective"]:
        """What is needed to visit `size` clients from each of `firsts` on: parts of one shape, so that one program
        serves all, which know the clients by their own numbers (see `Block`) and need no metrics. By default the whole.
        """
        return [self] * len(firsts)

    def open(self, client: jax.Array) -> Any:
        """One client's view, made once per visit: an index, an offset, or its data generated from a key."""
        return client

    def pool(self, zs: Any) -> Any:
        """One sample out of several stacked ones: its gradient is the mean of theirs."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), zs)

    def grad(self, x: Any, view: Any, z: Any) -> Any:
        return jax.grad(self.value)(x, view, z)

    def full_grad(self, x: Any, view: Any) -> Any:
        return jax.grad(self.full_value)(x, view)

    def num_samples(self, view: Any) -> jax.Array | int:
        """How many points an exact answer looks at; 1 where the client is a formula."""
        return 1

    def still(self, z: Any) -> Any:
        """A sample without the randomness that its loss has in training alone: dropout is off."""
        return z

    def moments(self, view: Any) -> tuple[jax.Array, jax.Array] | None:
        """The mean and the mean square of every feature of the client's points; None where there are no features."""
        return None

    def largest_array(self, batch_size: int | None) -> int:
        """Numbers in the largest array that a gradient makes of its batch (None: of an exact answer's), if known."""
        return 0


class Block(Objective):
    """Some clients of an objective, `first` and those after it, under the numbers that they have in the whole."""

    inside: Objective  # where they count from 0
    first: Any

    def open(self, client: jax.Array) -> Any:
        return self.inside.open(client - self.first)

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        return self.inside.draw(view, key, num_batches, batch_size)

    def value(self, x: Any, view: Any, z: Any) -> jax.Array:
        return self.inside.value(x, view, z)

    def grad(self, x: Any, view: Any, z: Any) -> Any:
        return self.inside.grad(x, view, z)

    def full_value(self, x: Any, view: Any) -> jax.Array:
        return self.inside.full_value(x, view)

    def full_grad(self, x: Any, view: Any) -> Any:
        return self.inside.full_grad(x, view)

    def pool(self, zs: Any) -> Any:
        return self.inside.pool(zs)

    def num_samples(self, view: Any) -> jax.Array | int:
        return self.inside.num_samples(view)

    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        raise SojournError("a block of clients has no metrics of its own; ask the whole objective.")


def entries(array: Any, first: int, size: int) -> Any:
    """Some entries of an array's leading axis, as a view on the host: nothing is copied."""
    return np.asarray(array)[first : first + size]


class Ledger:
    """Counts the calls while a client's work is traced. Loops push a page, and multiply it by their length."""

    def __init__(self, points: Any = 0) -> None:
        self._points = points  # that an exact answer looks at; kept out of the pages, as it may be traced
        self._pages: list[Counter[str]] = [Counter()]

    def add(self, kind: str, number: Any = 1) -> None:
        self._pages[-1][kind] += number

    def open_page(self) -> None:
        self._pages.append(Counter())

    def close_page(self) -> Counter[str]:
        return self._pages.pop()

    def add_page(self, page: Counter[str], times: Any) -> None:
        for kind, number in page.items():
            self.add(kind, number * times)

    def number(self, kind: str) -> Any:
        """How many calls of a kind there were; traced where loops have traced lengths."""
        return self._pages[0][kind]

    def totals(self) -> jax.Array:
        """The counts in the order of KINDS."""
        counts = Counter(self._pages[0])
        counts["samples"] += (counts["full_grad"] + counts["full_value"]) * self._points
        return jnp.stack([jnp.asarray(counts[kind], jnp.int32) for kind in KINDS])


class Sample(eqx.Module):
    """A drawn sample z and how many batches it pools."""

    content: Any
    num_batches: int = eqx.field(static=True)


class Tape:
    """Keeps a client's walk for a probe: where it began, and the iterate after every step or after the last alone.

    Of several walks in a visit the last is kept; a walk inside a step of another is part of that step.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.start: Vec | None = None  # None: the client did not walk
        self.points: Vec | None = None  # with a leading axis: of all steps, or of one point


class Oracle:
    """One client during one visit. With a tape, its walk is kept; without, no such code is traced."""

    def __init__(
        self, objective: Objective, client: jax.Array, batch_size: int | None, tape: Tape | None = None
    ) -> None:
        self._tape = tape
        self._objective = objective
        self._view = objective.open(client)
        self._batch_size = batch_size
        self.ledger = Ledger(objective.num_samples(self._view))

    def draw(self, key: jax.Array, num_batches: int = 1) -> Any:
        """A sample z; with several batches, one that pools those of the first steps of a walk with this key."""
        if self._batch_size is None:
            return None
        return Sample(self._objective.pool(self._draw_block(key, 0, num_batches)), num_batches)

    def grad(self, x: Vec, z: Any) -> Vec:
        """The gradient at x on the sample z; the exact one when the federation has no batch size (z is None)."""
        if z is None:
            return self.full_grad(x)
        self._count("grad", z.num_batches)
        return Vec(self._objective.grad(x.tree, self._view, z.content))

    def mean_grad(self, x: Vec, key: jax.Array, num_batches: int) -> Vec:
        """The mean gradient at x over so many fresh batches, drawn in blocks: memory does not grow with them."""
        if self._batch_size is None:
            return self.full_grad(x)
        if num_batches * self._batch_size >= _MAX_COUNT:
            raise SojournError(
                f"{num_batches:,} batches of {self._batch_size} are more samples than can be counted; take fewer."
            )
        block = min(num_batches, self._block_length(key))
        whole, rest = divmod(num_batches, block)

        def of_block(number: jax.Array | int, length: int) -> Vec:
            z = self._objective.pool(self._draw_block(key, number, length))
            return (length / num_batches) * Vec(self._objective.grad(x.tree, self._view, z))

        total = of_block(0, block)
        if whole > 1:
            total = jax.lax.fori_loop(1, whole, lambda number, sum_: sum_ + of_block(number, block), total)
        self._count("grad", num_batches)
        return total + of_block(whole, rest) if rest else total

    def value(self, x: Vec, z: Any) -> jax.Array:
        if z is None:
            return self.full_value(x)
        self._count("value", z.num_batches)
        return self._objective.value(x.tree, self._view, z.content)

    def full_grad(self, x: Vec) -> Vec:
        """The client's exact gradient."""
        self.ledger.add("full_grad")
        return Vec(self._objective.full_grad(x.tree, self._view))

    def full_value(self, x: Vec) -> jax.Array:
        self.ledger.add("full_value")
        return self._objective.full_value(x.tree, self._view)

    def walk(
        self,
        step: Callable[[Any, Any, jax.Array], Any],
        start: Any,
        num_steps: int | jax.Array,
        key: jax.Array,
        max_steps: int | None = None,
        iterate: Callable[[Any], Vec] | None = None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Applies `state = step(state, z, k)` for k = 0, 1, … with a fresh sample z each time; returns the last state.

        Use it for every local loop: it is how calls inside the loop are counted. `num_steps` may be traced (clients
        that do different amounts of work); say then how many there are at most. `iterate` says which part of the state
        is the client's model, for probes; by default the first vector in it. `finish` is a last step that takes no
        sample.
        """
        pages: list[Counter[str]] = []
        tape, self._tape = self._tape, None
        read = iterate or _first_vec
        whole = tape is not None and tape.whole

        def counted(state: Any, z: Any, k: jax.Array) -> Any:
            self.ledger.open_page()
            try:
                self.ledger.add("steps")
                return step(state, z, k)
            finally:
                pages.append(self.ledger.close_page())  # a body may be traced twice: the last page counts

        def body(state: Any, zk: Any) -> Any:
            state = counted(state, _one_batch(zk[0]), zk[1])
            return state, read(state) if whole else None

        block = self._block_length(key)
        if isinstance(num_steps, int) and num_steps <= block:
            zs, ks = self._draw_block(key, 0, num_steps), jnp.arange(num_steps, dtype=jnp.int32)
            unroll = 2 if size(start) <= _UNROLLED_NUMBERS else 1
            end, path = jax.lax.scan(body, start, (zs, ks), unroll=unroll)
        else:
            at_most = num_steps if isinstance(num_steps, int) else max_steps
            first, kept = _with_path(start, counted, read, at_most) if whole else (start, counted)
            end = self._walk_in_blocks(kept, first, num_steps, key, min(block, max_steps or block))
            end, path = (end[0], _filled(end[1], num_steps, read(end[0]))) if whole else (end, None)
        self.ledger.add_page(pages[-1], num_steps)
        if finish is not None:
            end = finish(end)
            self.ledger.add("steps")
            path = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), path, read(end)) if whole else path
        if tape is not None:
            tape.start = read(start)
            tape.points = path if whole else jax.tree.map(lambda a: a[None], read(end))
            self._tape = tape
        return end

    def _walk_in_blocks(self, step: Any, start: Any, num_steps: Any, key: jax.Array, block: int) -> Any:
        def one_block(number: jax.Array, state: Any) -> Any:
            zs, first = self._draw_block(key, number, block), number * block

            def one_step(k: jax.Array, state: Any) -> Any:
                return step(state, _one_batch(jax.tree.map(lambda a: a[k], zs)), first + k)

            return jax.lax.fori_loop(0, jnp.minimum(block, num_steps - first), one_step, state)

        return jax.lax.fori_loop(0, (num_steps + block - 1) // block, one_block, start)

    def _draw_block(self, key: jax.Array, number: jax.Array | int, length: int) -> Any:
        if self._batch_size is None:
            return None
        block_key = jax.random.fold_in(key, jnp.asarray(number, jnp.uint32))
        return self._objective.draw(self._view, block_key, length, self._batch_size)

    def _block_length(self, key: jax.Array) -> int:
        if self._batch_size is None:
            return _DRAW_TOGETHER
        return max(1, _DRAW_TOGETHER // max(1, size(jax.eval_shape(lambda k: self._draw_block(k, 0, 1), key))))

    def _count(self, kind: str, num_batches: int) -> None:
        self.ledger.add(kind, num_batches)
        self.ledger.add("samples", num_batches * (self._batch_size or 0))


def _one_batch(content: Any) -> Sample | None:
    return None if content is None else Sample(content, 1)


def _first_vec(state: Any) -> Vec:
    found = vecs(state)
    if not found:
        raise SojournError(
            "a probe wants the clients' iterates, and the state of this method's walk holds no Vec; "
            "give walk its iterate."
        )
    return found[0]


def _with_path(start: Any, step: Any, read: Callable[[Any], Vec], length: int | None) -> tuple[Any, Any]:
    """A walk's start and step, with the iterates after every step beside the state."""
    if length is None:
        raise SojournError(
            "a probe wants the clients' iterates of all steps, and this method's walk does not say how many there are "
            "at most; give walk its max_steps."
        )
    path = jax.tree.map(lambda a: jnp.zeros((length, *a.shape), a.dtype), read(start))

    def step_and_keep(pair: Any, z: Any, k: jax.Array) -> Any:
        state = step(pair[0], z, k)
        put = lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, k, 0)  # noqa: E731
        return state, jax.tree.map(put, pair[1], read(state))

    return (start, path), step_and_keep


def _filled(path: Vec, num_steps: Any, last: Vec) -> Vec:
    """A path whose client stopped earlier stays where it stopped."""

    def fill(a: jax.Array, b: jax.Array) -> jax.Array:
        walked = jnp.arange(len(a)) < num_steps
        return jnp.where(walked.reshape(-1, *[1] * b.ndim), a, b)

    return jax.tree.map(fill, path, last)
