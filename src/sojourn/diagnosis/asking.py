"""Questions to the clients: gradients, losses, products with their Hessians. Every one is counted, and every message.

A client answers on all its data, or, where it holds more points than `rows`, on as many of them, drawn once and then
kept, so that all answers of a client belong to one function. Products are exact derivatives of gradients; with
`reach` they are central differences over that distance instead, which also see kinks.

Vectors are flat here: NumPy arrays in float64 on this side, the federation's own types on the clients'.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import purpose_key
from sojourn.diagnosis.findings import Cost


class NotFiniteError(Exception):
    """An answer that holds NaN or infinity: what was being measured is left out."""


class Batches(NamedTuple):
    """What the gradients of several batches, of one client each row, say of their noise."""

    squares: np.ndarray  # (M, J): squared distances of the batches' gradients from their mean, times J / (J - 1)
    parts: np.ndarray  # (M, PARTS, d): means over a part of the batches each, independent of each other
    inside: np.ndarray  # (M, k, k): covariance in given directions


PARTS = 4


class Asking:
    """The clients that are asked, and what that has cost so far."""

    def __init__(
        self, federation: Federation, who: np.ndarray, rows: int, key: jax.Array, num_directions: int = 0
    ) -> None:
        self.clients = federation.clients.in_round(purpose_key(key, "deal"))
        self.who = who
        shares = self.clients.weights
        weights = np.ones(len(who)) if shares is None else np.asarray(shares, float)[who]
        self.weights = weights / weights.sum()
        self.template = federation.x0.tree
        self.dimension = sum(leaf.size for leaf in jax.tree.leaves(self.template))
        self.dtype = jnp.result_type(*jax.tree.leaves(self.template))
        self.key = purpose_key(key, "excerpt")
        held = np.broadcast_to(_held(self.clients, jnp.asarray(who, jnp.int32)), who.shape)
        self.held = np.asarray(held, int)
        self.rows = rows if int(self.held.max()) > rows else None
        self.looked_at = np.minimum(self.held, rows)  # by one exact answer
        self.num_directions = min(num_directions, self.dimension)  # of a miniature: one program for all noise
        self.reach: float | None = None
        self.spent = Cost()
        self._told: set[bytes] = set()

    @property
    def whole(self) -> bool:
        """Whether everyone is asked, about all points: only then is an exact answer one of the federation."""
        return self.rows is None and len(self) == self.clients.num_clients

    def __len__(self) -> int:
        return len(self.who)

    # -- what it costs --

    def take(self) -> Cost:
        """What was spent since this was last asked."""
        spent, self.spent = self.spent, Cost()
        return spent

    def sent(self, *, down: int = 0, up: int = 0, rounds: int = 1, by: int | None = None) -> None:
        """Floats that each of the clients (or of so many) receives and sends."""
        number = len(self) if by is None else by
        self.spent += Cost(floats_down=down * number, floats_up=up * number, rounds=rounds)

    def visit(self, point: np.ndarray) -> None:
        """Clients are told of a model once, on the trip of the first question about it."""
        name = np.asarray(point, self.dtype).tobytes()
        if name not in self._told:
            self._told.add(name)
            self.sent(down=self.dimension, rounds=0)

    def _count(self, kind: str, which: np.ndarray, times: int = 1) -> None:
        number = len(which) * times if kind else 0
        samples = int(self.looked_at[which].sum()) * times
        self.spent += Cost(**({kind: number} if kind else {}), samples=samples)

    # -- what they answer --

    def gradients(self, points: np.ndarray, which: Any = None) -> np.ndarray:
        """(M, d): every client's gradient, all at one point (d,) or each at its own (M, d)."""
        which = self._all(which)
        points = np.broadcast_to(points, (len(which), self.dimension))
        self._count("gradients", which)
        return self._finite(
            _gradients(self.clients, self.template, self._ids(which), self._send(points), *self._part())
        )

    def products(self, point: np.ndarray, vectors: np.ndarray, which: Any = None) -> np.ndarray:
        """(M, d): every client's Hessian at the point times one vector (d,) or its own (M, d)."""
        which = self._all(which)
        vectors = np.broadcast_to(vectors, (len(which), self.dimension))
        if self.reach is not None:
            return self._differences(point, vectors, which)
        self._count("products", which)
        at, ids, sent = self._send(point), self._ids(which), self._send(vectors)
        # all together or one by one: two programs, whatever the number
        groups = [slice(None)] if len(which) == len(self) else [slice(i, i + 1) for i in range(len(which))]
        ask = functools.partial(_products, self.clients, self.template)
        return self._finite(np.concatenate([ask(ids[g], at, sent[g], *self._part()) for g in groups]))

    def _differences(self, point: np.ndarray, vectors: np.ndarray, which: np.ndarray) -> np.ndarray:
        assert self.reach is not None
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
        step = self.reach * vectors / lengths
        there, back = self.gradients(point + step, which), self.gradients(point - step, which)
        return (there - back) * lengths / (2 * self.reach)

    def losses(self, point: np.ndarray) -> np.ndarray:
        which = self._all(None)
        self._count("", which)
        return self._finite(_losses(self.clients, self.template, self._ids(which), self._send(point), *self._part()))

    def loss_and_gradient(self, client: int) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """One client's function, for a minimiser that it runs at home."""
        which = np.array([client])
        ids = self._ids(which)[0]

        def at(point: np.ndarray) -> tuple[float, np.ndarray]:
            self._count("gradients", which)
            value, slope = _both(self.clients, self.template, ids, self._send(point), *self._part())
            return float(self._finite(value)), self._finite(slope)

        return at

    def batches(self, point: np.ndarray, purpose: str, directions: np.ndarray | None = None) -> Batches:
        """The noise of one call, from the gradients of `num_batches` fresh batches of every client."""
        assert self.clients.batch_size is not None
        basis = np.zeros((self.dimension, self.num_directions)) if directions is None else directions
        number, which = self.num_batches, self._all(None)
        key = purpose_key(self.key, purpose)
        answer = _batches(
            self.clients, self.template, self._ids(which), self._send(point), self._send(basis), key, number
        )
        samples = len(which) * number * self.clients.batch_size
        self.spent += Cost(gradients=len(which) * number, samples=samples)
        return Batches(*(self._finite(part) for part in answer))

    @property
    def num_batches(self) -> int:
        """Of one look at the noise; fewer where a model is so large that their gradients would not fit."""
        return int(np.clip((1 << 25) // self.dimension, 2, 8)) * PARTS

    # -- how they are reached --

    def _all(self, which: Any) -> np.ndarray:
        return np.arange(len(self)) if which is None else np.asarray(which)

    def _ids(self, which: np.ndarray) -> jax.Array:
        return jnp.asarray(self.who[which], jnp.int32)

    def _send(self, array: np.ndarray) -> jax.Array:
        return jnp.asarray(array, self.dtype)

    def _part(self) -> tuple[jax.Array, int | None]:
        return self.key, self.rows

    def _finite(self, answer: Any) -> np.ndarray:
        found = np.asarray(answer, float)
        if not np.isfinite(found).all():
            raise NotFiniteError
        return found


def flat(tree: Any) -> jax.Array:
    leaves = jax.tree.leaves(tree)
    real = jnp.result_type(*leaves)
    return jnp.concatenate([jnp.ravel(leaf).astype(real) for leaf in leaves])


def unflat(template: Any, vector: Any) -> Any:
    leaves, structure = jax.tree.flatten(template)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = jnp.split(jnp.asarray(vector), [int(end) for end in ends])
    shaped = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


@jax.jit
def _held(clients: Clients, ids: jax.Array) -> jax.Array:
    objective = clients.objective
    return jax.lax.map(lambda i: jnp.asarray(objective.num_samples(objective.open(i)), jnp.int32), ids)


class _Client:
    """One client's function: of all its points, or of a drawn part of them."""

    def __init__(self, clients: Clients, client: jax.Array, key: jax.Array, rows: int | None) -> None:
        self.objective = clients.objective
        self.view = clients.objective.open(client)
        self.excerpt = None
        if rows is not None:
            drawn = clients.objective.draw(self.view, jax.random.fold_in(key, client), 1, rows)
            self.excerpt = clients.objective.still(jax.tree.map(lambda a: a[0], drawn))
            self.large = jnp.asarray(clients.objective.num_samples(self.view)) > rows

    def value(self, x: Any) -> jax.Array:
        exact = lambda x: self.objective.full_value(x, self.view)  # noqa: E731
        if self.excerpt is None:
            return exact(x)
        return jax.lax.cond(self.large, lambda x: self.objective.value(x, self.view, self.excerpt), exact, x)

    def grad(self, x: Any) -> Any:
        exact = lambda x: self.objective.full_grad(x, self.view)  # noqa: E731
        if self.excerpt is None:
            return exact(x)
        return jax.lax.cond(self.large, lambda x: self.objective.grad(x, self.view, self.excerpt), exact, x)


@functools.partial(jax.jit, static_argnames="rows")
def _gradients(clients: Clients, template: Any, ids: Any, xs: Any, key: Any, rows: int | None) -> jax.Array:
    def of(at: Any) -> jax.Array:
        return flat(_Client(clients, at[0], key, rows).grad(unflat(template, at[1])))

    return jax.lax.map(of, (ids, xs))


@functools.partial(jax.jit, static_argnames="rows")
def _products(clients: Clients, template: Any, ids: Any, x: Any, vs: Any, key: Any, rows: int | None) -> jax.Array:
    def of(at: Any) -> jax.Array:
        client = _Client(clients, at[0], key, rows)
        return flat(jax.jvp(client.grad, (unflat(template, x),), (unflat(template, at[1]),))[1])

    return jax.lax.map(of, (ids, vs))


@functools.partial(jax.jit, static_argnames="rows")
def _losses(clients: Clients, template: Any, ids: Any, x: Any, key: Any, rows: int | None) -> jax.Array:
    return jax.lax.map(lambda i: _Client(clients, i, key, rows).value(unflat(template, x)), ids)


@functools.partial(jax.jit, static_argnames="rows")
def _both(clients: Clients, template: Any, client: Any, x: Any, key: Any, rows: int | None) -> Any:
    asked, point = _Client(clients, client, key, rows), unflat(template, x)
    return asked.value(point), flat(asked.grad(point))


@functools.partial(jax.jit, static_argnames="number")
def _batches(clients: Clients, template: Any, ids: Any, x: Any, basis: Any, key: Any, number: int) -> Any:
    objective, point, batch_size = clients.objective, unflat(template, x), clients.batch_size or 1

    def of(client: jax.Array) -> Any:
        view = objective.open(client)
        zs = objective.draw(view, jax.random.fold_in(key, client), number, batch_size)
        gradients = jax.lax.map(lambda z: flat(objective.grad(point, view, z)), zs)
        away = gradients - jnp.mean(gradients, axis=0)
        parts = jnp.mean(gradients.reshape(PARTS, -1, gradients.shape[-1]), axis=1)
        seen = away @ basis
        return jnp.sum(away**2, axis=1) * (number / (number - 1)), parts, seen.T @ seen / (number - 1)

    return jax.lax.map(of, ids)
