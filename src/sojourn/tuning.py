"""From the numbers of a config to a method: steps left to theory, and the first step of a run that tunes its own.

The first step is one over the largest curvature that a client has at the start.

Clients find it alone, by power iteration with products of their Hessians and vectors (derivatives of their gradients
along a direction, no finite differences), and send one number each. It is a lower bound of the true curvature, and near
the start only: the run's own rules do the rest.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from sojourn.algorithms import ALGORITHMS, Algorithm
from sojourn.algorithms.privacy import noise_for
from sojourn.config import Config, guard
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.options import options_of
from sojourn.core.vec import Vec, norm
from sojourn.engine.participation import cohort_size
from sojourn.parts import Part, asks_auto, asks_theory, build_algorithm
from sojourn.theory.step_sizes import step_size_rule

_PRODUCTS = 20
_CLIENTS = 32  # that are asked at most
_SAMPLES = 256  # of a client's, about as many, where gradients are of batches


@dataclasses.dataclass(frozen=True)
class StartingStep:
    """The step and what finding it took, for the manifest."""

    value: float
    curvature: float
    clients: int  # that were asked
    products: int  # of a Hessian and a vector, by each of them
    batches: int  # that each product looks at; 0: all samples

    def describe(self) -> dict[str, Any]:
        counted = {key: value for key, value in dataclasses.asdict(self).items() if key != "value"}
        return {**counted, "floats_up": self.clients}


def starting_step(federation: Federation, seed: int = 0) -> StartingStep:
    """One over the largest curvature at the start, among all clients or 32 of them."""
    clients, key = federation.clients, purpose_key(root_key(seed), "starting step")
    number = min(_CLIENTS, federation.num_clients)
    chosen = jax.random.choice(key, federation.num_clients, (number,), replace=False)
    batches = 0 if clients.batch_size is None else max(1, _SAMPLES // clients.batch_size)
    largest = float(jnp.max(_curvatures(clients, federation.x0, chosen, key, batches=batches)))
    if not 0 < largest < float("inf"):
        raise SojournError(
            f'step_size = "auto" begins with one over the curvature at the start, which is {largest:g}; give a number.'
        )
    return StartingStep(1 / largest, largest, number, _PRODUCTS, batches)


@functools.partial(jax.jit, static_argnames="batches")
def _curvatures(clients: Clients, x0: Vec, chosen: jax.Array, key: jax.Array, *, batches: int) -> jax.Array:
    objective = clients.in_round(key).objective

    def of_client(client: jax.Array) -> jax.Array:
        own, view = jax.random.fold_in(key, client), objective.open(client)
        if batches:
            assert clients.batch_size is not None
            z = objective.pool(objective.draw(view, own, batches, clients.batch_size))
            gradient = lambda x: objective.grad(x, view, z)  # noqa: E731
        else:
            gradient = lambda x: objective.full_grad(x, view)  # noqa: E731

        def product(_: Any, pair: tuple[Vec, jax.Array]) -> tuple[Vec, jax.Array]:
            image = Vec(jax.jvp(gradient, (x0.tree,), (pair[0].tree,))[1])
            length = norm(image)
            return image / jnp.where(length > 0, length, 1), length

        leaves, structure = jax.tree.flatten(x0.tree)
        keys = jax.random.split(purpose_key(own, "direction"), len(leaves))
        parts = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
        direction = Vec(jax.tree.unflatten(structure, parts))
        first = direction / norm(direction), jnp.zeros((), leaves[0].dtype)
        return jax.lax.fori_loop(0, _PRODUCTS, product, first)[1]

    return jax.lax.map(of_client, chosen)


def method_of(
    part: Part, federation: Federation, config: Config, *, drawn: bool = True
) -> tuple[Algorithm, dict[str, Any]]:
    """A config's method, its step tuned and its guards around it, and notes for the manifest.

    Cohorts that are not `drawn` at random, as where those are asked who are there, hide nobody.
    """
    settled, notes = tuned(part, federation, config)
    first = notes.get("self_tuning", {}).get("first_step", 1.0)
    method, private = build_algorithm(settled, first), config.privacy
    noise = None if private is None else private.noise_multiplier
    if private is not None and private.epsilon is not None:
        cohort = cohort_size(config.run.participation if drawn else None, federation.num_clients)
        noise = noise_for(
            method, private.epsilon, private.delta, num_clients=federation.num_clients, rounds=config.run.rounds,
            cohort=cohort, drawn=drawn,
        )  # fmt: skip
    return guard(config, method, noise), notes


def tuned(part: Part, federation: Federation, config: Config) -> tuple[Part, dict[str, Any]]:
    """The method with the step that theory recommends, where that was asked for, and notes for the manifest: the rule,
    or what the run tunes itself and where it begins."""
    if auto := asks_auto(part):
        found = starting_step(federation, config.run.seed) if "step_size" in auto else None
        told = {} if found is None else {"first_step": found.value, **found.describe()}
        return part, {"self_tuning": {"tuned": list(auto), **told}}
    if not asks_theory(part):
        return part, {}
    cohort = cohort_size(config.run.participation, federation.num_clients)
    equally = federation.clients.weighs_equally(ALGORITHMS[part.name].cls.weighting)
    rule = step_size_rule(
        part.name, federation.facts, {**part.options, **ALGORITHMS[part.name].settled}, config.run.rounds,
        everyone=cohort == federation.num_clients, equal_weights=equally,
    )  # fmt: skip
    defaults = {name: default for name, (_, default) in options_of(ALGORITHMS[part.name].cls).items()}
    companions = {k: v for k, v in rule.companions.items() if part.options.get(k) == defaults.get(k)}
    options = {**part.options, **companions, rule.option: rule.value}
    return dataclasses.replace(part, options=options), {"step_rule": dataclasses.asdict(rule)}
