"""What crosses the wire: the sizes of the messages, read off their shapes, times the number of answers."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Exchange, Known
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients
from sojourn.core.options import options_of


@dataclasses.dataclass(frozen=True)
class Wire:
    """What one client receives and sends in one exchange."""

    floats_down: int
    floats_up: int
    bytes_down: int
    bytes_up: int


COLUMNS = tuple(field.name for field in dataclasses.fields(Wire))


def travelling(message: Any) -> list[Any]:
    """The leaves of a message that cross the wire: all but those the receiver is known to hold."""
    return [
        leaf
        for leaf in jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Known))
        if not isinstance(leaf, Known)
    ]


def has_known(message: Any) -> bool:
    leaves = jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Known))
    return any(isinstance(leaf, Known) for leaf in leaves)


def kept(memory: Any, first: Sequence[tuple[Any, Any]]) -> int:
    """Floats that a client keeps from round to round: its memory, and what a round's first message counts on."""
    known = [_floats_of(down) - _floats(down) for down, _ in first]
    return _floats_of(memory) + max(known, default=0)


def all_floats(message: Any) -> bool:
    return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(message))


def _floats(message: Any) -> int:
    return _floats_of(travelling(message))


def _floats_of(tree: Any) -> int:
    return sum(int(np.prod(a.shape)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating))


def _bytes(message: Any) -> int:
    return sum(int(np.prod(a.shape)) * a.dtype.itemsize for a in travelling(message))


def check_messages(algorithm: Algorithm, exchange: Exchange, messages: tuple[Any, Any], may_know: bool) -> None:
    """Refuses answers that cannot be averaged, and messages that count on what not all who take part can hold."""
    if exchange.reduce == "mean" and not all_floats(messages[1]):
        raise SojournError(
            f"{algorithm.title} answers with whole numbers, which have no weighted mean; "
            'send floats, or declare reduce = "stack".'
        )
    if has_known(messages) and not may_know:
        printed = ', or choose messages = "printed"' if "messages" in options_of(type(algorithm.plain())) else ""
        raise SojournError(
            f"{algorithm.title} relies on what clients remember from the round before, so everyone "
            f"must take part: leave participation out{printed}."
        )


def message_shapes(exchange: Exchange, clients: Clients, server: Any, memory: Any) -> tuple[Any, Any]:
    """The shapes of one client's Down and Up; nothing is computed. `memory` is one client's."""

    def visit(server: Any, memory: Any, key: jax.Array) -> tuple[Any, Any]:
        down = exchange.broadcast(server)
        up, _, _ = exchange.local(down, memory, clients.oracle(jnp.zeros((), jnp.int32)), key)
        return down, up

    return jax.eval_shape(visit, server, memory, jax.random.key(0))


def gradients_of(exchange: Exchange, clients: Clients, server: Any, memory: Any) -> int | None:
    """How many gradients a client computes in an exchange; None where it differs from visit to visit.

    An exact gradient counts as the batches that its samples would fill, on average over the clients.
    """
    found: list[Any] = []
    exact = 1 if clients.batch_size is None else math.ceil(_mean_size(clients) / clients.batch_size)

    def visit(server: Any, memory: Any, key: jax.Array) -> None:
        oracle = clients.oracle(jnp.zeros((), jnp.int32))
        exchange.local(exchange.broadcast(server), memory, oracle, key)
        found.append(oracle.ledger.number("grad") + exact * oracle.ledger.number("full_grad"))

    jax.eval_shape(visit, server, memory, jax.random.key(0))
    return found[0] if isinstance(found[0], int) else None


def _mean_size(clients: Clients) -> float:
    if clients.sizes is not None:
        return float(jnp.mean(clients.sizes))
    return float(clients.objective.num_samples(clients.objective.open(jnp.zeros((), jnp.int32))))


def wire_of(exchange: Exchange, clients: Clients, server: Any, memory: Any) -> Wire:
    down, up = message_shapes(exchange, clients, server, memory)
    return Wire(_floats(down), _floats(up), _bytes(down), _bytes(up))


def one_memory(algorithm: Algorithm, x0: Any) -> Any:
    return jax.eval_shape(algorithm.init_client, x0)
