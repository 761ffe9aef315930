"""A config's named components, and the method that one of them names: numbers given, or left to theory or the run."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from sojourn.algorithms import ALGORITHMS, Algorithm, self_tuned
from sojourn.algorithms.self_tuned import FIRST_LOCAL_STEPS, TUNABLE
from sojourn.core.options import options_of

THEORY: Literal["theory"] = "theory"  # as a step size: the one that theory recommends for the federation's facts
AUTO: Literal["auto"] = "auto"  # as a step size or a number of local steps: the run tunes it itself


@dataclasses.dataclass(frozen=True)
class Part:
    """A named component with its options, all of them."""

    name: str
    options: Mapping[str, Any]
    label: str = ""


def tuned_option(method: str) -> str:
    """The option that may be "theory": the step size, or the smoothness from which accelerated methods take theirs."""
    return "step_size" if "step_size" in options_of(ALGORITHMS[method].cls) else "smoothness"


def asks_theory(part: Part) -> bool:
    """Whether a method's step is left to theory: it is known once the federation is."""
    return part.options.get(tuned_option(part.name)) == THEORY


def asks_auto(part: Part) -> tuple[str, ...]:
    """The options that a run tunes itself."""
    return tuple(name for name in TUNABLE if part.options.get(name) == AUTO)


def build_algorithm(part: Part, first_step: float = 1.0) -> Algorithm:
    """The method that a config names, with its numbers; one that tunes its step begins with the one given here."""
    method, auto = ALGORITHMS[part.name], asks_auto(part)
    first = {name: value for name, value in zip(TUNABLE, (first_step, FIRST_LOCAL_STEPS), strict=True) if name in auto}
    made = method.cls(**{**part.options, **first, **method.settled})
    return self_tuned(made, tuned=auto) if auto else made
