"""Statements of theory as functions that know what they say: source, assumptions, printed and corrected form, test.

A statement takes plain numbers by name, arrays of them too, and, first, the `Facts` of a federation to fill in what it
knows: `lemma_2(federation.facts, step_size=0.1, num_local_steps=10, rounds=100)`. What it requires is checked and is
part of its metadata, so that the ledger, the error message and the check are the same words.

Names of arguments, and the letters of the thesis: smoothness H, strong_convexity mu, third_order_smoothness Q,
hessian_heterogeneity tau, optima_heterogeneity zeta_*, optima_distance phi_*, gradient_heterogeneity zeta,
noise sigma_2, noise4 sigma_4, start_distance B, mean_optima_distance B-bar, num_clients M, step_size eta,
outer_step_size beta, num_local_steps K, rounds R; of chapter 6, start_gap Delta, momentum beta, batch_size b.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Literal

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts

Kind = Literal["identity", "upper bound", "lower bound", "step size", "scaling law", "remark"]
Status = Literal["holds", "corrected", "scaling only", "refuted"]

LETTERS = {
    "smoothness": "H", "strong_convexity": "mu", "third_order_smoothness": "Q", "hessian_heterogeneity": "tau",
    "optima_heterogeneity": "zeta_*", "optima_distance": "phi_*", "gradient_heterogeneity": "zeta", "noise": "sigma_2",
    "noise4": "sigma_4", "start_distance": "B", "mean_optima_distance": "B-bar", "num_clients": "M",
    "step_size": "eta", "outer_step_size": "beta", "num_local_steps": "K", "rounds": "R", "start_gap": "Delta",
    "momentum": "beta", "batch_size": "b", "steps": "T", "lipschitz": "G", "radius": "B", "dimension": "d",
    "cost_heterogeneity": "zeta-hat", "exploration": "delta", "optimal_value": "F_*",
}  # fmt: skip

_COUNTS = ("num_local_steps", "num_clients")  # at least 1; other numbers are at least 0
_POSITIVE = ("smoothness", "step_size", "outer_step_size")
_ARRAYS = ("hessians", "optima", "x_star", "x0", "noise_covariance", "x")  # any sign, shapes of their own


@dataclasses.dataclass(frozen=True)
class Predicts:
    """Which measured column of which method an upper bound stands above, so that reports can draw it."""

    method: str  # the class of the algorithm
    column: str  # of the history
    squared: bool = False  # the bound is on the column's square
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # that the method must have
    quadratic: bool = False  # only where the Hessians are constant


@dataclasses.dataclass(frozen=True)
class Statement:
    """What is said, where, and how far it is true. Formulas are in the letters of the source."""

    name: str  # of the function
    source: str  # "Lemma 2"
    kind: Kind
    status: Status
    printed: str
    corrected: str  # "" where the print is right
    why: str  # the print is wrong or incomplete
    requires: tuple[str, ...]  # expressions in the arguments
    test: str  # file::function
    predicts: tuple[Predicts, ...]
    function: Callable[..., Any]
    call: Callable[..., Any]  # the same with facts filled in and requirements checked

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)


STATEMENTS: dict[str, Statement] = {}


def statement(
    source: str, *, kind: Kind, status: Status = "holds", printed: str, corrected: str = "", why: str = "",
    requires: tuple[str, ...] = (), test: str, predicts: tuple[Predicts, ...] = (), quadratic: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Registers a function of keyword-only numbers and wraps it: facts fill in, ranges are checked, never NaN.

    quadratic: only for constant Hessians; facts that say otherwise are refused.
    """
    conditions = {text: compile(text, source, "eval") for text in requires}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **numbers: Any) -> Any:
            facts, named = _by_name(source, function, given, numbers)
            if quadratic and facts is not None and facts.third_order_smoothness not in (0, None):
                found = facts.third_order_smoothness
                raise SojournError(
                    f"{source} is for quadratics, third_order_smoothness == 0; these facts say {found:g}."
                )
            complete = _complete(source, function, facts, named)
            values = {key: _number(source, key, value) for key, value in complete.items()}
            try:
                for text, code in conditions.items():
                    _require(source, text, code, values)
                with np.errstate(over="ignore", under="ignore"):
                    return _plain(function(**values))
            except ValueError as error:
                if "broadcast" not in str(error):
                    raise
                raise SojournError(
                    f"{source}: these arrays do not go together: {_shapes(values)}; give equal lengths."
                ) from None

        needs = (*requires, "third_order_smoothness == 0") if quadratic else requires
        found = Statement(
            function.__name__, source, kind, status, printed, corrected, why, needs, test, predicts, function, call
        )
        STATEMENTS[function.__name__] = found
        call.statement = found  # type: ignore[attr-defined]
        call.__doc__ = _documented(found)
        call.__signature__ = _signature(function)  # type: ignore[attr-defined]
        return call

    return register


def stated(name: str, facts: Facts | None = None, /, **numbers: Any) -> Any:
    """A statement by its name: its facts filled in, its requirements checked."""
    return STATEMENTS[name].call(facts, **numbers)


def missing_facts(name: str, facts: Facts, numbers: Mapping[str, Any]) -> list[str]:
    """The arguments of a statement that neither the numbers nor the facts give."""
    parameters = inspect.signature(STATEMENTS[name].function).parameters.values()
    return [
        p.name
        for p in parameters
        if p.default is p.empty and numbers.get(p.name) is None and getattr(facts, p.name, None) is None
    ]


def _documented(found: Statement) -> str:
    """What `help` shows: the meaning, the source, the inequality and what it requires."""
    said = {
        "holds": "",
        "corrected": " The print is wrong; the function computes what holds.",
        "refuted": " It is false.",
    }
    status = said.get(found.status, " A scaling law only: its constants are unknown.")
    lines = [found.function.__doc__ or "", "", f"{found.source}, {found.kind}.{status}", f"    {found.printed}"]
    if found.corrected:
        lines += ["What holds instead:", f"    {found.corrected}"]
    if found.requires:
        lines.append(f"Requires {', '.join(found.requires)}.")
    return "\n".join([*lines, "First, if you like, the facts of a federation to fill in numbers that are not given."])


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The function's own, with the facts in front."""
    own = inspect.signature(function)
    first = inspect.Parameter("facts", inspect.Parameter.POSITIONAL_ONLY, default=None, annotation=Facts | None)
    return own.replace(parameters=[first, *own.parameters.values()])


def _by_name(
    source: str, function: Callable[..., Any], given: tuple[Any, ...], numbers: dict[str, Any]
) -> tuple[Facts | None, dict[str, Any]]:
    """Facts, or a federation that has them, may come first; what follows is taken in the order of the arguments."""
    facts: Facts | None = None
    rest = list(given)
    if rest and (rest[0] is None or isinstance(rest[0], Facts) or isinstance(getattr(rest[0], "facts", None), Facts)):
        first = rest.pop(0)
        facts = first if first is None or isinstance(first, Facts) else first.facts
    names = list(inspect.signature(function).parameters)
    twice = [name for name in names[: len(rest)] if name in numbers]
    if len(rest) > len(names) or twice:
        raise SojournError(f"{source} takes {', '.join(names)}; give each once, best by name.")
    return facts, {**dict(zip(names, rest, strict=False)), **numbers}


def _shapes(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {np.shape(value)}" for key, value in values.items() if np.ndim(value))


def _complete(
    source: str, function: Callable[..., Any], facts: Facts | None, numbers: dict[str, Any]
) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    for key in numbers:
        if key not in parameters:
            raise SojournError(f"{source} has no {key}; it takes {', '.join(parameters)}.")
    given = {key: value for key, value in numbers.items() if value is not None or parameters[key].default is None}
    for key, parameter in parameters.items():
        if key not in given and getattr(facts, key, None) is not None:
            given[key] = getattr(facts, key)
        elif key not in given and parameter.default is not parameter.empty:
            given[key] = parameter.default
        elif key not in given:
            letter = f" ({LETTERS[key]})" if key in LETTERS else ""
            where = (
                "which this federation does not know; give it" if facts is not None else "which was not given; give it"
            )
            kind = "an array" if key in _ARRAYS else "a number"
            raise SojournError(f"{source} needs {key}{letter}, {where} as {kind}.")
    return given


def _number(source: str, key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and key == "c"):
        return value
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise SojournError(f"{source}: {key} = {value!r} is not a number; give one.") from None
    low = 1.0 if key in _COUNTS else 0.0
    fits = np.isfinite(array).all()
    if key not in _ARRAYS:
        fits = fits and bool((array >= low).all()) and not (key in _POSITIVE and bool((array == 0).any()))
    if not fits:
        shown = f"{array:g}" if array.ndim == 0 else "an array with other values"
        low_text = "above 0" if key in _POSITIVE else f"at least {low:g}"
        wanted = "finite numbers" if key in _ARRAYS else f"{low_text} and finite"
        raise SojournError(f"{source}: {key} = {shown} is out of range; expected {wanted}.")
    return array if array.ndim else np.float64(array)  # whose powers overflow to inf, not to an error


def _require(source: str, text: str, code: CodeType, values: Mapping[str, Any]) -> None:
    if not np.all(eval(code, {"np": np, "max": np.maximum, "min": np.minimum}, dict(values))):
        shown = [
            f"{key} = {values[key]:g}" for key in code.co_names if np.ndim(values.get(key, "")) == 0 and key in values
        ]
        raise SojournError(f"{source} needs {text}; got {', '.join(shown) or 'arrays where it does not hold'}.")


def _plain(result: Any) -> Any:
    """Floats for numbers, arrays for arrays, also inside a tuple or a dict."""
    if isinstance(result, tuple):
        return tuple(_plain(entry) for entry in result)
    if isinstance(result, dict):
        return {key: _plain(entry) for key, entry in result.items()}
    if isinstance(result, str | bool) or result is None:
        return result
    array = np.asarray(result)
    return array if array.ndim else float(array)
