"""What there is, in words: the registries' names, summaries and options, for `sojourn list` and the documentation."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.algorithms import ALGORITHMS
from sojourn.algorithms.aggregators import AGGREGATORS
from sojourn.config import options_table
from sojourn.data import DATASETS, TEXTS
from sojourn.diagnostics.probes import PROBES
from sojourn.engine import ENGINES
from sojourn.models import LANGUAGE_MODELS, MODELS
from sojourn.partition import PARTITIONS, TEXT_PARTITIONS
from sojourn.problems import PROBLEMS
from sojourn.recipes import RECIPES
from sojourn.traces import AVAILABILITIES, CLOCKS, SCHEDULES

ROOMS = (
    "algorithms", "problems", "partitions", "models", "datasets", "texts", "engines", "clocks", "availabilities",
    "schedules", "aggregators", "probes", "recipes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    options: list[str]


def entries(room: str) -> list[Entry]:
    """The entries of a room in the order of its registry."""
    if room == "recipes":
        configs = [
            Entry(name, f"{_first_comment(path)} sojourn run {name}", []) for name, path in recipe_files().items()
        ]
        claims = [Entry(name, f"{recipe.describe()}. sojourn reproduce {name}", []) for name, recipe in RECIPES.items()]
        return configs + claims
    registries: dict[str, dict[str, Any]] = {
        "algorithms": ALGORITHMS, "problems": PROBLEMS, "partitions": PARTITIONS | TEXT_PARTITIONS,
        "models": MODELS | LANGUAGE_MODELS, "datasets": DATASETS, "texts": TEXTS, "engines": ENGINES,
        "clocks": CLOCKS, "availabilities": AVAILABILITIES, "schedules": SCHEDULES, "aggregators": AGGREGATORS,
        "probes": PROBES,
    }  # fmt: skip
    registry = registries[room]
    return [Entry(name, _summary(entry), options_table(room, name)) for name, entry in registry.items()]


def _summary(entry: Any) -> str:
    describe: Callable[[], str] | None = getattr(entry, "describe", None)
    return describe() if describe else (entry.__doc__ or "").split("\n")[0]


def recipe_files() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.toml"))}


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n")[0].lstrip("# ")
