"""What the recipes of online optimization share: games by setting, slopes of regret, and their charts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.online import study
from sojourn.recipes.base import Claim, Figure, Maker
from sojourn.recipes.charts import banded, lines
from sojourn.recipes.trends import interval

Regrets = Mapping[Any, np.ndarray]  # by setting, one number per seed


def regrets(games: Mapping[Any, Mapping[str, Any]], column: str = "regret") -> dict[Any, np.ndarray]:
    """The last average regret of every game, by its key."""
    return {key: found.last(column) for key, found in zip(games, study(games.values()), strict=True)}


def slope_of(x: Sequence[float]) -> Any:
    """The slope of log y over log x by least squares, for stacks of curves; NaN where a mean is not positive."""
    at = np.log(np.asarray(x, float))
    at = at - at.mean()

    def slope(curves: np.ndarray) -> np.ndarray:
        positive = np.where(curves > 0, curves, np.nan)
        return np.asarray(np.log(positive) @ at / (at @ at))

    return slope


def slope(x: Sequence[float], found: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """The fitted slope of the mean regret, and its bootstrap interval over seeds."""
    return interval(np.stack(found, axis=1), slope_of(x))


def slope_claim(
    name: str, text: str, x: Sequence[float], found: Sequence[np.ndarray], low: float, high: float,
    by: Maker = "paper", of: str = "M",
) -> Claim:  # fmt: skip
    """Whether the slope of log regret over log x lies between two numbers: its interval decides."""
    value, least, most = slope(x, found)
    holds = True if low < least and most < high else False if most < low or least > high else None
    means = ", ".join(f"{values.mean():.4g} at {of} = {at:g}" for at, values in zip(x, found, strict=True))
    evidence = f"slope {value:.3f} (95% interval {least:.3f} to {most:.3f}); {means}"
    rule = f"slope of log mean regret over log {of}, bootstrap interval over seeds"
    return Claim(name, text, holds, evidence, rule, f"between {low:g} and {high:g}", len(found[0]), by)


def crossing(
    dims: Sequence[int], together: Sequence[np.ndarray], alone: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """The dimension from which averaging gains, by linear interpolation of log gain over log d, with its interval."""
    both = np.stack([np.stack(alone, axis=1), np.stack(together, axis=1)], axis=1)  # (seeds, 2, dimensions)
    at = np.log(np.asarray(dims, float))

    def where(means: np.ndarray) -> np.ndarray:
        gains = np.log(np.maximum(means[:, 0], 1e-12) / np.maximum(means[:, 1], 1e-12))
        return np.array([np.exp(_root(at, gain)) for gain in gains])

    return interval(both, where)


def near_to(expected: float, least: float, most: float) -> bool | None:
    """Whether an interval lies within a factor of 2 of a number."""
    if expected / 2 < least and most < 2 * expected:
        return True
    return False if most < expected / 2 or least > 2 * expected else None


def _root(x: np.ndarray, y: np.ndarray) -> float:
    """Where a curve first rises above 0; an end of the range where it does not."""
    for i in range(len(x) - 1):
        if y[i] <= 0 < y[i + 1]:
            return float(x[i] - y[i] * (x[i + 1] - x[i]) / (y[i + 1] - y[i]))
    return float(x[0] if y[0] > 0 else x[-1])


def curves(
    title: str, x_title: str, families: Mapping[str, tuple[Sequence[float], Sequence[np.ndarray]]],
    claims: Sequence[str], *, note: str = "",
    guides: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
) -> Figure:  # fmt: skip
    """Mean regrets with bootstrap bands, both axes logarithmic; guides are drawn dashed."""
    rows = []
    for name, (x, found) in families.items():
        rows += banded(name, x, np.stack(found, axis=1))
    for name, (x, values) in (guides or {}).items():
        rows += [{"x": float(at), "y": float(value), "line": name} for at, value in zip(x, values, strict=True)]
    spec = lines(rows, x=x_title, y="average regret / (G B)", log_x=True, log_y=True, dashed=tuple(guides or ()))
    bands_are = "Means over seeds; bands are 95% bootstrap intervals."
    return Figure(title, spec, f"{note} {bands_are}".strip(), tuple(claims))
