"""Federated optimization with local updates: methods, problems, a compiled engine, reports."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sojourn import algorithms, data, models, online, partition, problems, theory, traces
    from sojourn.advice import Budget, Target, advise, advise_online
    from sojourn.algorithms import guarded, self_tuned
    from sojourn.core.errors import SojournError
    from sojourn.core.facts import Facts
    from sojourn.core.federation import Federation
    from sojourn.diagnosis import diagnose
    from sojourn.driver import run
    from sojourn.history import History, load_history
    from sojourn.problems import federation, population
    from sojourn.recipes import reproduce
    from sojourn.report import render
    from sojourn.sweeping import sweep

__all__ = [
    "Budget", "Facts", "Federation", "History", "SojournError", "Target", "advise", "advise_online", "algorithms",
    "data", "diagnose", "federation", "guarded", "load_history", "models", "online", "partition", "population",
    "problems", "render", "reproduce", "run", "self_tuned", "sweep", "theory", "traces",
]  # fmt: skip

_HOMES = {
    "Budget": "advice", "Target": "advice", "advise": "advice", "advise_online": "advice",
    "Facts": "core.facts", "Federation": "core.federation", "History": "history", "SojournError": "core.errors",
    "diagnose": "diagnosis", "federation": "problems", "guarded": "algorithms", "load_history": "history",
    "population": "problems", "render": "report", "reproduce": "recipes", "run": "driver", "self_tuned": "algorithms",
    "sweep": "sweeping",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are fetched when first used: `sojourn --help` should not wait for JAX."""
    if name in ("algorithms", "data", "models", "online", "partition", "problems", "theory", "traces"):
        return importlib.import_module(f"sojourn.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"sojourn.{_HOMES[name]}"), name)
    if name == "__version__":
        return importlib.metadata.version("sojourn")
    raise AttributeError(f"module 'sojourn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
