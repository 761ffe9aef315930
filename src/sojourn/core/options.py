"""Options of an algorithm: fields that know their range, are traced when they are real numbers and static otherwise.

A traced field is a strongly typed float array, so that new values never recompile and a sweep is one program; counts
and choices shape the program and are static.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError, unknown_name

REQUIRED: Any = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """What a value may be; the config reads it too."""

    kind: str  # "float" | "int" | "choice"
    symbol: str = ""  # the paper's letter
    low: float | None = None
    high: float | None = None
    open_low: bool = False  # whether `low` itself is excluded
    choices: tuple[str, ...] = ()
    optional: bool = False  # None is allowed
    or_function: bool = False  # from Python, a function may stand for a choice

    def check(self, name: str, value: Any) -> None:
        """Raises a sentence if the value lies outside the range. Traced and stacked values were checked when made."""
        if value is None and self.optional:
            return
        if self.kind == "choice":
            if value not in self.choices and not (self.or_function and callable(value)):
                raise unknown_name(name, value, self.choices)
            return
        if isinstance(value, jax.core.Tracer) or getattr(value, "ndim", 0) > 0:
            return
        noun, kinds = ("a whole number", int) if self.kind == "int" else ("a number", (int, float, jax.Array))
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise SojournError(f"{name} = {value!r} is not {noun}; expected {self.range_text()}.")
        number = float(value)
        below = self.low is not None and (number <= self.low if self.open_low else number < self.low)
        above = self.high is not None and number > self.high
        if not math.isfinite(number) or below or above:
            raise SojournError(f"{name} = {number:g} is out of range; expected {self.range_text()}.")

    def range_text(self) -> str:
        noun = "a whole number" if self.kind == "int" else "a finite number"
        low = "" if self.low is None else f" {'above' if self.open_low else 'of at least'} {self.low:g}"
        high = "" if self.high is None else f"{' and' if low else ''} at most {self.high:g}"
        return noun + low + high


def _to_float(value: Any) -> Any:
    if value is None or (not isinstance(value, (int, float, jax.Array)) and not hasattr(value, "__array__")):
        return value  # left for Option.check or for tree surgery with placeholder leaves
    return jnp.asarray(value, dtype=jnp.result_type(float))


def _to_int(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value


def real(default: Any = REQUIRED, *, symbol: str = "", low: float | None = None, high: float | None = None,
         open_low: bool = False, optional: bool = False) -> Any:  # fmt: skip
    """A real hyperparameter: traced."""
    option = Option("float", symbol, low, high, open_low, optional=optional)
    return eqx.field(default=default, converter=_to_float, metadata={"option": option})


def positive(default: Any = REQUIRED, *, symbol: str = "", optional: bool = False) -> Any:
    return real(default, symbol=symbol, low=0.0, open_low=True, optional=optional)


def count(default: Any = REQUIRED, *, symbol: str = "", low: int = 1, optional: bool = False) -> Any:
    """A whole number that shapes the program: static."""
    option = Option("int", symbol, low, optional=optional)
    return eqx.field(default=default, static=True, converter=_to_int, metadata={"option": option})


def choice(default: str, choices: tuple[str, ...], *, or_function: bool = False) -> Any:
    option = Option("choice", choices=choices, or_function=or_function)
    return eqx.field(default=default, static=True, metadata={"option": option})


def options_of(cls: type) -> dict[str, tuple[Option, Any]]:
    """The options of an algorithm class by name, each with its default (REQUIRED when there is none)."""
    return {f.name: (f.metadata["option"], f.default) for f in dataclasses.fields(cls) if "option" in f.metadata}
