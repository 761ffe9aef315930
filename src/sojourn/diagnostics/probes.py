"""Probes: numbers read off the model in rounds that are evaluated, when asked for with `record`. They only read."""

from collections.abc import Callable

import jax

from sojourn.core.errors import unknown_name
from sojourn.core.federation import Clients
from sojourn.core.vec import Vec, norm

Probe = Callable[[Clients, Vec], jax.Array]


def grad_norm(clients: Clients, x: Vec) -> jax.Array:
    """Norm of the objective's exact gradient at the model."""
    loss = lambda tree: clients.objective.metrics(tree, clients.weights)["loss"]  # noqa: E731
    return norm(Vec(jax.grad(loss)(x.tree)))


def model_norm(clients: Clients, x: Vec) -> jax.Array:
    """Norm of the model."""
    return norm(x)


PROBES: dict[str, Probe] = {"grad_norm": grad_norm, "model_norm": model_norm}


def check_probes(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in PROBES:
            raise unknown_name("record", name, PROBES)
