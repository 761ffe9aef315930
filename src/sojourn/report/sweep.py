"""What a sweep found: the final metric against each swept axis, and a map over two of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sojourn.looks.charts import CONFIG, PALETTE, Spec
from sojourn.looks.words import higher_is_better, metric_title
from sojourn.report.figure import CROSS, LEGEND, records, spread_text, tooltip, wants_log, y_axis
from sojourn.report.runs import MAX_SETTINGS, Run, axis_name, is_number, swept_groups, winner

MAX_LABELLED = 80  # cells of a map that still have room for a number
LOG_AXIS_SPAN = 10.0  # a swept number spanning more than this is drawn on a log axis


def sweep_charts(runs: Sequence[Run], metric: str) -> list[tuple[str, Spec]]:
    """(title, specification) of every chart about sweeps; empty where nothing was swept over three values or more."""
    groups = swept_groups(runs)
    axes = list(dict.fromkeys(axis for group in groups.values() for axis in group[0].setting))
    charts = []
    for axis in axes:
        members = {label: group for label, group in groups.items() if axis in group[0].setting}
        if max(len({run.setting[axis] for run in group}) for group in members.values()) < 3:
            continue
        rest = any(len(group[0].setting) > 1 for group in members.values())
        others = ", at the best of the other axes" if rest else ""
        title = f"Final {_lower(metric)} against {axis_name(axis)}{others}"
        charts.append((title, profile_spec(members, axis, metric)))
    for label, group in groups.items():
        if len(group[0].setting) == 2:
            charts.append((f"Final {_lower(metric)} of {label}", map_spec(group, metric)))
    return charts


def profile_rows(groups: dict[str, list[Run]], axis: str, metric: str) -> pd.DataFrame:
    """Per history and value of the axis, the end of the best run there: median and band over seeds."""
    rows: list[dict[str, Any]] = []
    for label, group in groups.items():
        for value in dict.fromkeys(run.setting[axis] for run in group):
            run = winner([run for run in group if run.setting[axis] == value], metric)
            end = run.curve(metric).iloc[-1:]
            shown = not run.diverged and len(end) == 1
            numbers = {name: float(end[name].iloc[0]) if shown else None for name in ("value", "lo", "hi")}
            note = "" if not run.diverged else f"diverged ({run.lost_seeds or 1} of {run.num_seeds} seeds)"
            rows.append({"run": label, "at": value, "name": run.name, "note": note, "seeds": run.num_seeds, **numbers})
    return pd.DataFrame(rows)


def profile_spec(groups: dict[str, list[Run]], axis: str, metric: str) -> Spec:
    """Final metric against one swept axis, a line per history; a cross at the edge where runs diverged."""
    rows = profile_rows(groups, axis, metric)
    labels = list(groups)
    values = rows["value"].to_numpy(dtype=float)
    scale = {"type": "log"} if wants_log(values, metric) else {"type": "linear", "zero": False}
    y = {"type": "quantitative", "scale": scale, "title": None, "axis": y_axis(metric)}
    color = {"domain": labels, "range": [PALETTE[i % len(PALETTE)] for i in range(len(labels))]}
    tip = tooltip("datum.name", {f"final {_lower(metric)}": spread_text(metric), "seeds": "datum.seeds"})
    legend = {"title": None, "orient": "top", "labelLimit": 300, **LEGEND} if len(labels) > 1 else None
    return {
        "description": f"Final {metric_title(metric)} against {axis}.",
        "data": {"values": records(rows)},
        "encoding": {
            "x": _axis_encoding(rows["at"].tolist(), axis),
            "color": {"field": "run", "type": "nominal", "scale": color, "legend": legend},
        },
        "layer": [
            {"mark": {"type": "area", "opacity": 0.18}, "encoding": {"y": {**y, "field": "lo"}, "y2": {"field": "hi"}}},
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"y": {**y, "field": "value"}}},
            {
                "mark": {"type": "point", "size": 45, "filled": True, "opacity": 1, "tooltip": tip},
                "encoding": {"y": {**y, "field": "value"}},
            },
            *([_lost(higher_is_better(metric))] if (rows["note"] != "").any() else []),
        ],
        "width": "container",
        "height": 260,
        "config": CONFIG,
    }


def map_spec(group: Sequence[Run], metric: str) -> Spec:
    """Final metric over two swept axes; brighter is better, diverged cells are crossed out."""
    first, second = group[0].setting
    rows = pd.DataFrame(
        {
            "x": [run.setting[first] for run in group],
            "y": [run.setting[second] for run in group],
            "value": [np.nan if run.diverged else run.final(metric) for run in group],
            "name": [run.name for run in group],
        }
    )
    values = rows["value"].to_numpy(dtype=float)
    log = wants_log(values, metric)
    rows["bright"] = _brightness(values, log, metric) > 0.55
    layers = [_cells(metric, log)]
    if len(rows) <= MAX_LABELLED:
        layers.append(_numbers(metric))
    if np.isnan(values).any():
        mark = {**CROSS, "color": "#c0392b", "tooltip": tooltip("datum.name", {"": "'diverged'"})}
        layers.append({"transform": [{"filter": "!isValid(datum.value)"}], "mark": mark})
    return {
        "description": f"Final {metric_title(metric)} over {first} and {second}.",
        "data": {"values": records(rows)},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": axis_name(first), "axis": {"labelAngle": 0}},
            "y": {"field": "y", "type": "ordinal", "title": axis_name(second), "sort": "descending"},
        },
        "layer": layers,
        "width": "container",
        "height": max(160, 34 * rows["y"].nunique()),
        "config": CONFIG,
    }


def _cells(metric: str, log: bool) -> Spec:
    scale = {"scheme": "viridis", "reverse": not higher_is_better(metric), "type": "log" if log else "linear"}
    legend = {"format": ".3~%" if higher_is_better(metric) else ".3~g", "gradientLength": 150, "tickCount": 4}
    color = {"field": "value", "type": "quantitative", "title": None, "scale": scale, "legend": legend}
    tip = tooltip("datum.name", {f"final {_lower(metric)}": f"format(datum.value, '{_cell_format(metric)}')"})
    return {
        "mark": {"type": "rect", "stroke": "#8884", "strokeWidth": 1, "tooltip": tip},
        "encoding": {"color": color},
    }


def _numbers(metric: str) -> Spec:
    ink = {"condition": {"test": "datum.bright", "value": "#111"}, "value": "#fff"}
    text = {"field": "value", "type": "quantitative", "format": _cell_format(metric)}
    return {
        "transform": [{"filter": "isValid(datum.value)"}],
        "mark": {"type": "text", "fontSize": 11, "tooltip": None},
        "encoding": {"text": text, "color": ink},
    }


def _cell_format(metric: str) -> str:
    return ".1%" if higher_is_better(metric) else ".3~g"


def _axis_encoding(values: list[Any], axis: str) -> Spec:
    encoding: Spec = {"field": "at", "type": "quantitative", "title": axis_name(axis)}
    if not all(is_number(value) for value in values):
        return encoding | {"type": "ordinal", "sort": None, "axis": {"labelAngle": 0}}
    numbers = np.array(values, dtype=float)
    log = numbers.min() > 0 and numbers.max() / numbers.min() > LOG_AXIS_SPAN
    scale: Spec = {"type": "log"} if log else {"type": "linear", "zero": False}
    scale |= {"nice": False, "padding": 12}
    tried = sorted(set(numbers.tolist()))
    ticks: Spec = {"values": tried} if len(tried) <= MAX_SETTINGS else {"tickCount": 6}
    return encoding | {"scale": scale, "axis": {"format": ".3~g", "grid": False, **ticks}}


def _lost(higher: bool) -> Spec:
    """Crosses at the bad edge of the frame."""
    edge: Any = {"expr": "height - 6"} if higher else 6
    return {
        "transform": [{"filter": "datum.note !== ''"}],
        "mark": {**CROSS, "y": edge, "tooltip": tooltip("datum.name", {"": "datum.note"})},
    }


def _brightness(values: np.ndarray, log: bool, metric: str) -> np.ndarray:
    """Where each value falls on the colour scale, 0 dark to 1 bright."""
    placed = np.log(np.where(values > 0, values, np.nan)) if log else values
    if not np.isfinite(placed).any():
        return np.zeros_like(values)
    low, high = np.nanmin(placed), np.nanmax(placed)
    share = (placed - low) / (high - low) if high > low else np.ones_like(placed)
    return share if higher_is_better(metric) else 1 - share


def _lower(metric: str) -> str:
    title = metric_title(metric)
    return title[0].lower() + title[1:]
