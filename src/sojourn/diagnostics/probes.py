"""Probes: what a run records beside its metrics when asked with `record`. They only read, and cost nothing when off.

Model probes speak of the model in rounds that are evaluated, round probes of what the clients did in every round.
"""

import dataclasses
import re
from collections.abc import Iterable

import jax

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.federation import Federation
from sojourn.diagnostics.model_probes import MODEL_PROBES, ModelProbe
from sojourn.diagnostics.round_probes import MAX_COMPONENTS, ROUND_PROBES, RoundProbe

PROBES: dict[str, type[ModelProbe] | RoundProbe] = {**MODEL_PROBES, **ROUND_PROBES}

_FACTS_IN_WORDS = {
    "f_star": "the minimum of the objective",
    "x_star": "the minimiser of the objective",
    "optima": "the clients' own optima",
    "hessians": "the clients' constant Hessians",
}


def check_probes(names: Iterable[str]) -> None:
    for name in names:
        if name not in PROBES:
            raise unknown_name("record", name, PROBES)


def with_probes(federation: Federation, algorithm: Algorithm, names: Iterable[str]) -> Federation:
    """The federation whose clients carry the model probes among `names`, prepared from its facts.

    What the objective's own metrics say already is left to them. A fact that is missing is an error.
    """
    names = tuple(names)
    if "client_drift" in names and federation.num_clients > MAX_COMPONENTS:
        raise SojournError(
            f'record = "client_drift" takes at most {MAX_COMPONENTS:,} clients, a column each, and the federation has '
            f'{federation.num_clients:,}; record "consensus", or read the mean in the column "drift".'
        )
    wanted = [name for name in names if name in MODEL_PROBES]
    if not wanted:
        return federation
    there = jax.eval_shape(federation.clients.metrics, federation.x0)
    prepared = {}
    for name in wanted:
        if name == "distance_to_fixed_point" and not algorithm.plain_descent:
            continue  # another method's fixed point is another; it gets no such column
        if name not in there:
            _check_known(name, MODEL_PROBES[name], federation, algorithm)
            prepared[name] = MODEL_PROBES[name].prepare(federation)
    return dataclasses.replace(federation, clients=dataclasses.replace(federation.clients, probes=prepared))


def vector_of(column: str) -> tuple[str, int] | None:
    """The vector probe that a column of the table belongs to and the component it holds; None for other columns."""
    name, _, number = column.rpartition(".")
    probe = ROUND_PROBES.get(name)
    if probe is None or probe.first_component is None or not re.fullmatch(r"\d+", number):
        return None
    return name, int(number)


def _check_known(name: str, probe: type[ModelProbe], federation: Federation, algorithm: Algorithm) -> None:
    for fact in probe.facts:
        if getattr(federation.facts, fact) is None:
            raise SojournError(
                f'record = "{name}" needs {_FACTS_IN_WORDS[fact]} (facts.{fact}), which is not known of the federation '
                f'"{federation.name}"; take it out, or give the fact.'
            )
    for option in probe.options:
        if not hasattr(algorithm.plain(), option):
            raise SojournError(
                f'record = "{name}" needs a method with {option}, which {algorithm.title} does not have; take it out.'
            )
