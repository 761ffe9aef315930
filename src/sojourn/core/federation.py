"""A federation: the clients behind their oracles, their weights, the starting point, and what is known exactly."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.keys import purpose_key
from sojourn.core.oracle import Objective, Oracle, Tape
from sojourn.core.setup import Setup
from sojourn.core.vec import Vec, norm


class Clients(eqx.Module):
    """The part of a federation that compiled code sees."""

    objective: Objective
    weights: jax.Array | None  # (M,), summing to one; None: equal, so that a huge population needs no array
    sizes: jax.Array | None  # (M,) numbers of samples; None: equal
    x_star: Vec | None
    num_clients: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(static=True)
    probes: dict[str, Any] = eqx.field(default_factory=dict)  # name -> a model probe, prepared from the facts

    def in_round(self, round_key: jax.Array) -> "Clients":
        """The clients as one round finds them: the same, unless their data are dealt anew every round."""
        objective = self.objective.in_round(purpose_key(round_key, "deal"))
        return self if objective is self.objective else dataclasses.replace(self, objective=objective)

    def oracle(self, client: jax.Array, tape: Tape | None = None) -> Oracle:
        return Oracle(self.objective, client, self.batch_size, tape)

    def counted(self, weighting: str) -> jax.Array | None:
        """What answers are weighed by, up to a factor; None: all alike."""
        return {"size": self.sizes, "equal": None}.get(weighting, self.weights)

    def counts_alike(self, weighting: str) -> bool:
        """Whether all answers weigh the same in a method's mean, whatever the objective says."""
        given = self.counted(weighting)
        return given is None or bool(jnp.ptp(given) == 0)

    def weighs_equally(self, weighting: str = "objective") -> bool:
        """Whether every client counts alike, as theory assumes, in the objective and in the method's mean."""
        counted = (self.weights, self.sizes) if weighting == "size" else (self.weights,)
        return all(given is None or bool(jnp.ptp(given) == 0) for given in counted)

    def metrics(self, x: Vec) -> dict[str, jax.Array]:
        found = self.objective.metrics(x.tree, self.weights)
        return found if self.x_star is None else {**found, "distance": norm(x - self.x_star)}


@dataclasses.dataclass(frozen=True)
class Federation:
    """What a run needs to know of the world. Make one with `sojourn.federation` or a function of `sojourn.problems`."""

    clients: Clients
    x0: Vec
    facts: Facts = dataclasses.field(default_factory=Facts)
    name: str = "federation"
    rebuild: Callable[[Any], Any] = lambda tree: tree  # from the trained arrays to the user's own model
    label_counts: np.ndarray | None = None  # (clients, classes), for pictures
    setup: Setup | None = None  # what was sent to make x0

    @property
    def num_clients(self) -> int:
        return self.clients.num_clients


def build(
    objective: Objective,
    x0: Any,
    num_clients: int,
    *,
    weights: Any = None,
    sizes: Any = None,
    batch_size: int | None = None,
    facts: Facts | None = None,
    **rest: Any,
) -> Federation:
    """A federation out of its parts, checked."""
    if num_clients < 1:
        raise SojournError(f"a federation needs at least one client, got {num_clients}.")
    if batch_size is not None and batch_size < 1:
        raise SojournError(f"batch_size = {batch_size} is out of range; give at least 1, or None for exact gradients.")
    x0 = Vec(jax.tree.map(jnp.asarray, x0))
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(x0)):
        raise SojournError("the starting point holds arrays that are not floating point; give float parameters only.")
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(x0)):
        raise SojournError("the starting point holds values that are not finite.")
    facts = _with_start(facts or Facts(), x0, num_clients)
    if batch_size is None:
        facts = dataclasses.replace(facts, noise=0.0, noise4=0.0)  # exact answers
    x_star = None if facts.x_star is None else _like(x0, facts.x_star)
    clients = Clients(objective, _normalised(weights, num_clients), _sizes(sizes), x_star, num_clients, batch_size)
    return Federation(clients, x0, facts, **rest)


def _with_start(facts: Facts, x0: Vec, num_clients: int) -> Facts:
    """The facts with those that speak of the starting point and the number of clients."""
    flat = lambda tree: np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(tree)])  # noqa: E731
    start = flat(x0)
    reach = None if facts.x_star is None else float(np.linalg.norm(flat(facts.x_star) - start))
    optima = None if facts.optima is None else float(np.linalg.norm(facts.optima - start, axis=1).mean())
    return dataclasses.replace(facts, num_clients=num_clients, start_distance=reach, mean_optima_distance=optima)


def _like(x0: Vec, tree: Any) -> Vec:
    return Vec(jax.tree.map(lambda leaf, value: jnp.asarray(value, leaf.dtype), x0.tree, tree))


def _sizes(sizes: Any) -> jax.Array | None:
    return None if sizes is None else jnp.asarray(sizes, jnp.result_type(float))


def _normalised(weights: Any, num_clients: int) -> jax.Array | None:
    if weights is None:
        return None
    w = np.asarray(weights, float)
    if w.shape != (num_clients,) or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise SojournError(f"weights must be {num_clients} numbers that are not negative and not all zero.")
    return jnp.asarray(w / w.sum(), jnp.result_type(float))
