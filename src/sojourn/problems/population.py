"""A population too large to hold: every client's data are generated from its key whenever it is visited."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation, build
from sojourn.core.keys import root_key, uniform_index
from sojourn.core.oracle import Objective
from sojourn.core.vec import size
from sojourn.problems.finite import Loss, check_loss


class Generated(Objective):
    """F_m = mean of `loss` over the rows that `make_client` generates from client m's key."""

    key: jax.Array
    loss: Loss = eqx.field(static=True)
    make_client: Callable[[jax.Array], Any] = eqx.field(static=True)
    num_clients: int = eqx.field(static=True)
    panel: int = eqx.field(static=True)  # how many clients, evenly spaced, stand for all when the loss is evaluated

    def open(self, client: jax.Array) -> Any:
        return self.make_client(jax.random.fold_in(self.key, client))

    def num_samples(self, view: Any) -> int:
        return len(jax.tree.leaves(view)[0])

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        chosen = uniform_index(key, (num_batches, batch_size), self.num_samples(view))
        return jax.tree.map(lambda rows: rows[chosen], view)

    def value(self, x: Any, view: Any, z: Any) -> jax.Array:
        return self.loss(x, z)

    def full_value(self, x: Any, view: Any) -> jax.Array:
        return self.loss(x, view)

    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        ids = jnp.arange(self.panel, dtype=jnp.int32) * (self.num_clients // self.panel)
        return {"loss": jnp.mean(jax.lax.map(lambda client: self.full_value(x, self.open(client)), ids))}


def population(
    loss: Loss,
    params: Any,
    make_client: Callable[[jax.Array], Any],
    num_clients: int,
    *,
    batch_size: int | None = None,
    panel: int | None = None,
    seed: int = 0,
    name: str = "population",
) -> Federation:
    """A federation of generated clients: `make_client(key)` returns a tree of arrays, a client's rows.

    Memory depends on the cohort, not on the number of clients. The loss is evaluated on a panel of clients (at most
    100 unless `panel` says), the same in every round; `params` are float arrays.
    """
    panel = min(100, num_clients) if panel is None else panel
    if not 1 <= panel <= num_clients:
        raise SojournError(f"panel = {panel} is out of range; give from 1 to the {num_clients} clients.")
    shapes = jax.eval_shape(make_client, root_key(0))
    if size(shapes) == 0 or len({leaf.shape[:1] for leaf in jax.tree.leaves(shapes)}) != 1:
        raise SojournError("make_client must return arrays that share their leading axis and hold at least one row.")
    check_loss(loss, params, shapes)
    objective = Generated(root_key(seed), loss, make_client, num_clients, panel)
    return build(objective, params, num_clients, batch_size=batch_size, name=name)
