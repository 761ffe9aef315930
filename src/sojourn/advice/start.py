"""What is asked, held against the start and the least loss: met already, out of reach, or finer than the arithmetic."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.advice.asked import Target
from sojourn.advice.contest import Scene
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec, norm
from sojourn.diagnosis.findings import Diagnosis

_SHARE = 0.01  # of the way from the floor up to the start, that stands in for what lies below the floor
_WORDS = {"loss": "loss", "grad": "gradient", "distance": "distance to x*"}


def check_start(federation: Federation) -> None:
    """A loss that is no number cannot come down, and would pass for a target that is met."""
    loss = float(federation.clients.metrics(federation.x0)["loss"])
    if not math.isfinite(loss):
        raise SojournError(f"the loss at the start is {loss:g}, not a number to come down from; start elsewhere.")


def gradient_at_start(federation: Federation) -> Vec:
    """Of the mean objective, exact."""
    clients = federation.clients
    return Vec(jax.grad(lambda tree: clients.objective.metrics(tree, clients.weights)["loss"])(federation.x0.tree))


def met_at_start(
    federation: Federation | None, diagnosis: Diagnosis, scene: Scene | None, target: Target
) -> str | None:
    """A sentence that says so, and how it is known; None where the target is still to be reached."""
    value, how = _value_at_start(federation, diagnosis, scene, target)
    if value is None or not value <= target.value:
        return None
    return f"The start has {target.words()} or less already{how}: no round is needed."


def _value_at_start(
    federation: Federation | None, diagnosis: Diagnosis, scene: Scene | None, target: Target
) -> tuple[float | None, str]:
    """Exact where the federation can be asked; else by the diagnosis, and that is said."""
    if federation is not None:
        there = federation.clients.metrics(federation.x0)
        if target.column in there:
            return float(there[target.column]), ""
        if target.kind == "grad":
            return float(norm(gradient_at_start(federation))), ""
    if target.kind == "distance" and diagnosis.value("start_distance") is not None:
        found = diagnosis["start_distance"]
        return found.value, "" if found.kind == "exact" else f" by the diagnosis ({found.kind}: {found.how})"
    if scene is None:
        return None, ""
    how = "" if scene.exact else ", as far as the federation in miniature shows it"
    wanted = scene.picture.metric(scene.kind, scene.picture.start)
    # on a picture that is not the federation the target has moved with it
    return float(wanted) - scene.target + target.value, how


@dataclasses.dataclass(frozen=True)
class Floor:
    """A target that lies below the least loss that is known, and what stands in for it."""

    least: float
    kind: str  # of that measure
    asked: Target
    stand_in: Target | None  # a hundredth of the way up to the start; None where the start is not known

    def words(self) -> str:
        if self.kind == "exact":
            return f"The least loss is {self.least:.4g} (exact), and the target {self.asked.value:.4g} is below it."
        return (
            f"The best loss found is {self.least:.4g} ({self.kind}), and the target {self.asked.value:.4g} is below "
            "it: whether it can be reached is not known."
        )


def floor_of(diagnosis: Diagnosis, target: Target) -> Floor | None:
    """None where the target is not a loss below the least one known.

    Of an objective that is not convex the best found says little of what training finds, unless it is exact.
    """
    found = diagnosis.measures.get("f_star")
    if target.kind != "loss" or found is None or target.value >= found.value:
        return None
    if found.kind != "exact" and diagnosis.setting == "non-convex" and diagnosis.miniature is not None:
        return None
    gap = diagnosis.value("start_gap")
    if gap is None and diagnosis.miniature is not None:
        mini = diagnosis.miniature
        pulled = mini.losses + mini.gradients @ mini.start
        curved = np.einsum("i,mij,j->m", mini.start, mini.hessians, mini.start) / 2
        gap = float(mini.weights @ (pulled + curved)) - found.value
    stand_in = Target("loss", found.value + _SHARE * gap) if gap and gap > 0 else None
    return Floor(found.value, found.kind, target, stand_in)


def precision_warning(federation: Federation | None, diagnosis: Diagnosis, target: Target) -> str | None:
    """Where the target is finer than the numbers of the run can show."""
    if federation is None:
        return None
    leaves = [leaf for leaf in jax.tree.leaves(federation.x0.tree) if hasattr(leaf, "dtype")]
    eps = max(float(jnp.finfo(leaf.dtype).eps) for leaf in leaves)
    reach = diagnosis.value("start_distance") or 1.0
    scale = {
        "distance": max(reach, float(norm(federation.x0))),
        "grad": (diagnosis.value("smoothness") or 1.0) * reach,
        "loss": abs(target.value),
    }[target.kind]
    wanted = target.value - (diagnosis.value("f_star") or 0.0) if target.kind == "loss" else target.value
    if not 0 < wanted < eps * scale:
        return None
    name = leaves[0].dtype.name
    return (
        f"The run computes in {name}, which tells a {_WORDS[target.kind]} apart to about {eps * scale:.1g} here, more "
        'than the target asks: take precision = "float64" in [run].'
    )
