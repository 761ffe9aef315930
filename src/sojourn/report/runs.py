"""From histories to runs: one run is one history, or one setting of a swept history, over all its seeds.

A history of a sweep carries its settings as columns, named in its manifest under "axes" or with a dot in their name
(`algorithm.step_size`), and its repetitions as `seed`. All that tables and figures say of a metric comes from
`Run.curve`, so they cannot disagree.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from sojourn.core.errors import SojournError
from sojourn.diagnostics.probes import vector_of
from sojourn.looks.words import METRIC_TITLES, higher_is_better

# What a curve can be drawn against; all but `round` accumulate.
X_COLUMNS = ("round", "floats", "calls", "seconds", "virtual_seconds")
# The order in which metrics decide who won: what was not trained on, then what theory speaks of, then the rest.
PREFERENCE = ("test_accuracy", "test_loss", "suboptimality", "distance", "accuracy", "loss")
COUNTS = ("participants", "samples", "local_steps", "seconds")
# of every upload in virtual time: shown in pictures of their own
OF_UPLOADS = ("virtual_seconds", "client", "staleness", "queue", "dropped", "lost", "mixing_weight")
COUNT_PREFIXES = ("floats_", "bytes_", "calls_")
MAX_SETTINGS = 12  # a sweep with more settings shows only its best one among the curves
MAX_CURVES = 24
FEW_SEEDS = 10  # below this many seeds a 10 % quantile is an interpolation, so the band is the whole range


class History(Protocol):
    """What a report needs of `sojourn.history.History`."""

    @property
    def label(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def config(self) -> Mapping[str, Any] | None: ...
    def frame(self) -> pd.DataFrame: ...


@dataclass(frozen=True, eq=False)
class Run:
    """One line of the table and one curve of the figures."""

    name: str  # unique within a report
    label: str  # unique per history
    setting: dict[str, Any]  # swept axis -> value; empty without a sweep
    status: str  # "ok" | "diverged" | "stopped"
    lost_seeds: int
    frame: pd.DataFrame  # `round`, `seed`, running totals named as in X_COLUMNS, metrics
    metrics: tuple[str, ...]
    compile_seconds: float
    manifest: Mapping[str, Any]  # of its history
    vectors: tuple[str, ...] = ()  # columns that are components of vectors, `client_drift.0`: no curves of their own

    @property
    def diverged(self) -> bool:
        return self.status == "diverged"

    @functools.cached_property
    def entry(self) -> Mapping[str, Any]:
        """What the manifest says of this run; of a sweep, of its setting ({} where there are too many to describe)."""
        settings = self.manifest.get("settings")
        if settings is None:
            return self.manifest
        mine = lambda entry: all(entry["labels"].get(axis) == value for axis, value in self.setting.items())  # noqa: E731
        return next(filter(mine, settings), {})

    @functools.cached_property
    def num_seeds(self) -> int:
        return int(self.frame["seed"].nunique())

    def total(self, column: str) -> float:
        """The running total at the end, the median over seeds."""
        return float(self.frame.groupby("seed", sort=True)[column].last().median())

    @functools.cached_property
    def _curves(self) -> dict[str, pd.DataFrame]:
        return {}

    @functools.cached_property
    def _totals(self) -> dict[str, np.ndarray]:
        return {column: _grid(self.frame, column) for column in X_COLUMNS[1:]}

    def curve(self, metric: str) -> pd.DataFrame:
        """Rows (X_COLUMNS, value, lo, hi) at the evaluated rounds: median and band over seeds.

        The curve stops before the first round at which a seed has no finite value: the median of those who survive
        would look better than the method is.
        """
        if metric not in self._curves:
            self._curves[metric] = _curve(self.frame, metric, self._totals)
        return self._curves[metric]

    def final(self, metric: str) -> float:
        """The last value of the curve, NaN where there is none."""
        values = self.curve(metric)["value"] if metric in self.metrics else pd.Series(dtype=float)
        return float(values.iloc[-1]) if len(values) else float("nan")

    def best(self, metric: str) -> tuple[float, int]:
        """The best value of the curve and its round."""
        rows = self.curve(metric) if metric in self.metrics else pd.DataFrame()
        if not len(rows):
            return float("nan"), -1
        values = rows["value"].to_numpy()
        at = int(np.argmax(values) if higher_is_better(metric) else np.argmin(values))
        return float(values[at]), int(rows["round"].iloc[at])


def axis_name(axis: str) -> str:
    """`algorithm.step_size` -> `step_size`."""
    return axis.rpartition(".")[2]


def is_number(value: object) -> bool:
    """Whether a swept value has a place on an axis."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and not np.isnan(float(value))


def setting_text(setting: Mapping[str, Any]) -> str:
    """`step_size = 0.1, num_local_steps = 5`."""
    return ", ".join(f"{axis_name(axis)} = {_plain(value)}" for axis, value in setting.items())


def split(histories: Sequence[History]) -> list[Run]:
    """All runs of all histories, in the order given; settings of a sweep in ascending order where they are numbers."""
    if not histories:
        raise SojournError("a report needs at least one history; none was given.")
    labels = _unique([history.label or "run" for history in histories])
    return [run for label, history in zip(labels, histories, strict=True) for run in _split_one(label, history, labels)]


def shown_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs drawn as curves: all of them, or of every large sweep the best setting."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    limit = MAX_SETTINGS if len(runs) <= MAX_CURVES else 1
    metric = main_metric(runs)
    return [run for group in by_label.values() for run in (group if len(group) <= limit else [winner(group, metric)])]


def swept_groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label -> runs, for the histories that swept something."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.setting:
            groups.setdefault(run.label, []).append(run)
    return groups


def metrics_of(runs: Sequence[Run]) -> list[str]:
    """Every metric that some run has, those that decide first."""
    found = {metric for run in runs for metric in run.metrics}
    known = [metric for metric in METRIC_TITLES if metric in found]
    return known + sorted(found.difference(known))


def main_metric(runs: Sequence[Run]) -> str:
    """The metric by which runs are compared: the first of PREFERENCE that all of them have."""
    shared = [metric for metric in PREFERENCE if all(metric in run.metrics for run in runs)]
    return (shared or metrics_of(runs) or ["loss"])[0]


def ranked(runs: Sequence[Run], metric: str) -> list[Run]:
    """Runs that did not diverge and have the metric, best final value first."""
    sign = -1.0 if higher_is_better(metric) else 1.0
    healthy = [run for run in runs if not run.diverged and np.isfinite(run.final(metric))]
    return sorted(healthy, key=lambda run: sign * run.final(metric))


def winner(runs: Sequence[Run], metric: str) -> Run:
    """The best run, or the first where all diverged."""
    return (ranked(runs, metric) or list(runs))[0]


def band_quantiles(num_seeds: int) -> tuple[float, float]:
    """The quantiles of a band over that many seeds."""
    return (0.0, 1.0) if num_seeds < FEW_SEEDS else (0.1, 0.9)


def _split_one(label: str, history: History, labels: Sequence[str]) -> list[Run]:
    raw = history.frame()
    vectors = tuple(str(name) for name in raw.columns if vector_of(str(name)) is not None)
    swept = [str(name) for name in raw.columns if "." in str(name) or name in (history.manifest.get("axes") or {})]
    named = [name for name in swept if name not in vectors]
    axes = [name for name in named if raw[name].nunique(dropna=False) > 1]
    others = {*named, *vectors}
    metrics = tuple(str(name) for name in raw.columns if name not in others and _is_metric(raw, str(name)))
    frame = _running(raw, axes, (*metrics, *vectors))
    compile_seconds = float(history.manifest.get("compile_seconds") or 0.0)
    last_round = _last_finite(frame)
    parts = list(frame.groupby(axes, sort=False, dropna=False)) if axes else [((), frame)]
    if all(is_number(value) for values, _ in parts for value in values):
        parts.sort(key=lambda part: part[0])
    runs = []
    for values, part in parts:
        setting = dict(zip(axes, values, strict=True)) if axes else {}
        lost = sum(_is_lost(rows, last_round) for _, rows in part.groupby("seed"))
        text = setting_text(setting)
        name = f"{label} ({text})" if setting and len(labels) > 1 else text or label
        status = _status(history.status, part, lost, swept=bool(axes))
        runs.append(
            Run(name, label, setting, status, int(lost), part, metrics, compile_seconds, history.manifest, vectors)
        )
    return runs


def _running(raw: pd.DataFrame, axes: Sequence[str], measured: Sequence[str]) -> pd.DataFrame:
    """The table with running totals in place of counts per round."""
    keys = pd.DataFrame({name: raw[name] for name in ["round", *axes]})
    keys["seed"] = raw.get("seed", 0)
    counts = pd.DataFrame(index=raw.index)
    sums = {"floats": ["floats_down", "floats_up"], "seconds": ["seconds"], "local_steps": ["local_steps"]}
    sums["calls"] = [str(name) for name in raw.columns if str(name).startswith("calls_")]
    for total, parts in sums.items():
        counts[total] = sum((raw[part].fillna(0) for part in parts if part in raw), pd.Series(0, index=raw.index))
    told = raw["virtual_seconds"] if "virtual_seconds" in raw else pd.Series(0.0, index=raw.index)  # a time, no count
    frame = pd.concat([keys, counts, told.rename("virtual_seconds"), raw[list(measured)]], axis=1)
    if "diverged" in raw:
        frame["diverged"] = raw["diverged"].fillna(False).astype(bool)
    frame = frame.sort_values("round", kind="stable", ignore_index=True)
    frame[list(sums)] = frame.groupby([*axes, "seed"], sort=False, dropna=False)[list(sums)].cumsum()
    return frame


def _is_metric(raw: pd.DataFrame, name: str) -> bool:
    if name in ("round", "seed", "setting", "diverged", *COUNTS, *OF_UPLOADS) or name.startswith(COUNT_PREFIXES):
        return False
    return bool(pd.api.types.is_numeric_dtype(raw[name]) and raw[name].notna().any())


def _grid(frame: pd.DataFrame, column: str) -> np.ndarray:
    """A column as (rounds, seeds); NaN where a seed has no such round."""
    grid: np.ndarray = frame.pivot(index="round", columns="seed", values=column).to_numpy(dtype=float)
    return grid


def _curve(frame: pd.DataFrame, metric: str, totals: Mapping[str, np.ndarray]) -> pd.DataFrame:
    values = _grid(frame, metric)
    evaluated = ~np.isnan(values).all(axis=1)
    # cumprod: once a seed is lost the curve is over, even if a later value should be finite again
    alive = np.cumprod(np.isfinite(values[evaluated]).all(axis=1)).astype(bool)
    rounds = np.sort(frame["round"].unique())
    rows = {"round": rounds[evaluated][alive]}
    for column, total in totals.items():
        rows[column] = np.median(total[evaluated][alive], axis=1)
    kept = values[evaluated][alive]
    low, high = band_quantiles(values.shape[1])
    rows["value"] = np.median(kept, axis=1)
    rows["lo"], rows["hi"] = np.quantile(kept, low, axis=1), np.quantile(kept, high, axis=1)
    return pd.DataFrame(rows)


def _last_finite(frame: pd.DataFrame) -> int:
    """The last round with a finite loss, -1 without one."""
    if "loss" not in frame:
        return int(frame["round"].max())
    finite = frame.loc[np.isfinite(frame["loss"].to_numpy(dtype=float)), "round"]
    return int(finite.max()) if len(finite) else -1


def _is_lost(rows: pd.DataFrame, last_round: int) -> bool:
    """Whether one seed of one setting diverged: it says so, or it has no loss where others have one."""
    return bool(rows["diverged"].any()) if "diverged" in rows else _last_finite(rows) < last_round


def _status(history_status: str, part: pd.DataFrame, lost: int, *, swept: bool) -> str:
    """The status of one setting; that of a swept history says nothing of a single one unless it was stopped."""
    if not swept:
        return "diverged" if lost and "diverged" in part else history_status
    if lost and ("diverged" in part or history_status != "stopped"):
        return "diverged"
    return "stopped" if history_status == "stopped" else "ok"


def _unique(labels: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    names = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        names.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return names


def _plain(value: Any) -> str:
    return f"{float(value):.4g}" if is_number(value) else str(value)
