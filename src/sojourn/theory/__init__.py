"""Theory that runs: every statement is a function of numbers or of a federation's facts; see docs/theory-ledger.md."""

import importlib
import pkgutil
from typing import Any

from sojourn.theory.statement import STATEMENTS, Statement

ROOMS = (
    "identities", "heterogeneity", "lower_bounds", "quadratics", "one_step", "consensus", "recursion", "convergence",
    "convergence_zeta", "baselines", "rates", "nonconvex", "nonconvex_rates", "online", "wide_layer",
)  # fmt: skip  # in the order of the thesis, then the papers
for _room in ROOMS:
    importlib.import_module(f"sojourn.theory.{_room}")


def __getattr__(name: str) -> Any:
    """A statement, by the name of its function."""
    if name in STATEMENTS:
        return getattr(importlib.import_module(STATEMENTS[name].function.__module__), name)
    if name in {module.name for module in pkgutil.iter_modules(__path__)}:
        return importlib.import_module(f"sojourn.theory.{name}")
    raise AttributeError(f"module 'sojourn.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*STATEMENTS, "STATEMENTS", "Statement"]


__all__ = ["ROOMS", "STATEMENTS", "Statement"]
