"""Vectors that probes recorded in every round, as maps: rounds from left to right, components from bottom to top."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sojourn.diagnostics.probes import vector_of
from sojourn.looks.charts import CONFIG, Spec
from sojourn.looks.words import metric_title
from sojourn.report.figure import records, tooltip, wants_log
from sojourn.report.runs import Run

MAX_MAPS = 4  # runs per probe
MAX_COLUMNS, MAX_LINES = 80, 40  # cells of a map; finer tables are averaged into them


def vector_charts(runs: Sequence[Run]) -> list[tuple[str, Spec]]:
    """(title, specification) of a map for every vector probe and each of the first runs that have it.

    The maps of a probe share their colours, so that runs can be compared. Where nobody ever moved there is no map.
    """
    names = list(dict.fromkeys(found[0] for run in runs for column in run.vectors if (found := vector_of(column))))
    charts = []
    for name in names:
        cells = {run.name: cells_of(run, name) for run in runs}
        shown = {run: rows for run, rows in cells.items() if (rows["value"].fillna(0) != 0).any()}
        shown = dict(list(shown.items())[:MAX_MAPS])
        values = np.concatenate([rows["value"].to_numpy(dtype=float) for rows in shown.values()] or [np.zeros(0)])
        for run, rows in shown.items():
            title = f"{metric_title(name)} ({run})" if len(runs) > 1 else metric_title(name)
            charts.append((title, map_spec(rows, name, values)))
    return charts


def cells_of(run: Run, name: str) -> pd.DataFrame:
    """The cells of a map: `left`, `right`, `low`, `high`, `value`, the mean over seeds and over what a cell covers."""
    columns = {found[1]: column for column in run.vectors if (found := vector_of(column)) and found[0] == name}
    frame = run.frame.loc[run.frame["round"] > 0, ["round", *columns.values()]]
    mean = frame.groupby("round", sort=True).mean()  # over seeds; of a client, over those in which it took part
    if not len(mean) or not columns:
        return pd.DataFrame({key: pd.Series(dtype=float) for key in ("left", "right", "low", "high", "value")})
    rounds, parts = mean.index.to_numpy(), np.array(list(columns))
    wide, tall = -(-len(rounds) // MAX_COLUMNS), -(-len(parts) // MAX_LINES)
    across, up = np.arange(len(rounds)) // wide, np.arange(len(parts)) // tall
    table = mean.to_numpy(dtype=float)
    rows = []
    for i in range(across.max() + 1):
        for j in range(up.max() + 1):
            block = table[np.ix_(across == i, up == j)]
            there = block[np.isfinite(block)]
            edges = (rounds[across == i][[0, -1]] + [-0.5, 0.5], parts[up == j][[0, -1]] + [-0.5, 0.5])
            rows.append([*edges[0], *edges[1], there.mean() if len(there) else np.nan])
    return pd.DataFrame(rows, columns=["left", "right", "low", "high", "value"])


def map_spec(rows: pd.DataFrame, name: str, values: np.ndarray) -> Spec:
    """A map on the colour scale of `values`; cells without a value stay empty."""
    log = wants_log(values, name)
    usable = values[np.isfinite(values) & ((values > 0) | (not log))]
    domain = [float(f"{usable.min():.6g}"), float(f"{usable.max():.6g}")]
    rows = rows[np.isfinite(rows["value"]) & ((rows["value"] > 0) | (not log))]
    part = "Client" if name == "client_drift" else "Local step"
    span = "(datum.{0} + 0.5 < datum.{1} - 0.5 ? (datum.{0} + 0.5) + ' to ' : '') + (datum.{1} - 0.5)"
    lines = {part.lower(): span.format("low", "high"), "round": span.format("left", "right")}
    tip = tooltip("format(datum.value, '.4~g')", lines)
    axis = {"format": ",~r", "tickMinStep": 1, "grid": False}
    flat = {"type": "quantitative", "scale": {"nice": False, "zero": False}}
    scale = {"scheme": "viridis", "type": "log" if log else "linear", "domain": domain}
    legend = {"format": ".3~g", "gradientLength": 150, "tickCount": 4}
    return {
        "description": f"{metric_title(name)} over rounds and components.",
        "data": {"values": records(rows)},
        "mark": {"type": "rect", "tooltip": tip},
        "encoding": {
            "x": {"field": "left", **flat, "title": "Communication rounds", "axis": {**axis, "tickCount": 6}},
            "x2": {"field": "right"},
            "y": {"field": "low", **flat, "title": part, "axis": {**axis, "tickCount": 5}},
            "y2": {"field": "high"},
            "color": {"field": "value", "type": "quantitative", "title": None, "scale": scale, "legend": legend},
        },
        "width": "container",
        "height": 260,
        "config": CONFIG,
    }
