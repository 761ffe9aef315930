"""Curves as Vega-Lite specifications, for the page and for files.

A specification is a plain dictionary: the page changes its x-axis and scales in the browser, so the place of every
key matters here. `altair.Chart.from_dict` turns one into an Altair chart.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import vl_convert

from sojourn.core.errors import unknown_name
from sojourn.core.files import write_atomically
from sojourn.looks.charts import CONFIG, LOG_SPAN, PALETTE, Spec
from sojourn.looks.words import higher_is_better, metric_title
from sojourn.report.predicted import floors, predictions
from sojourn.report.runs import FEW_SEEDS, X_COLUMNS, Run, is_number, swept_groups

MAX_POINTS = 400  # per curve
MAX_ROWS = 3200  # per chart, so that a page with many runs still answers at once
MAX_HOVER = 1000  # points per chart that answer to the pointer; each costs the browser a Voronoi cell
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
RAMP = ("#4F6BD8", "#22A884", "#E0A400")  # for an ordered sweep; its lightness rises and blue to yellow is safe
FORMATS = ("png", "svg", "pdf")
X_TITLES = {
    "round": "Communication rounds",
    "floats": "Floats sent (up and down, all clients)",
    "calls": "Oracle calls (all clients)",
    "seconds": "Seconds (without compilation)",
    "virtual_seconds": "Virtual seconds",
}
X_FORMATS = {"round": ",~r", "floats": "~s", "calls": "~s", "seconds": ",~r", "virtual_seconds": ",~r"}


@dataclass(frozen=True)
class Stroke:
    """How one run is drawn, the same in every chart and in the legend."""

    name: str
    color: str
    dash: tuple[int, ...]
    note: str = ""  # "diverged" and the like, for the legend


def strokes(runs: Sequence[Run]) -> list[Stroke]:
    """A colour per run; past the palette the dashes change. A single sweep over one number gets an ordered ramp."""
    if len(runs) > 2 and len(swept_groups(runs)) == 1 and all(_one_number(run) for run in runs):
        return [Stroke(run.name, _ramp(i / (len(runs) - 1)), DASHES[0], _note(run)) for i, run in enumerate(runs)]
    return [
        Stroke(run.name, PALETTE[i % len(PALETTE)], DASHES[i // len(PALETTE) % len(DASHES)], _note(run))
        for i, run in enumerate(runs)
    ]


def x_axes(runs: Sequence[Run]) -> dict[str, Spec]:
    """The x-axes a reader may choose from, as encodings; one along which nothing was counted is left out."""
    usable = [name for name in X_COLUMNS if name == "round" or any(run.total(name) > 0 for run in runs)]
    if any(run.total("virtual_seconds") == 0 for run in runs):  # those without clocks would stand at 0
        usable = [name for name in usable if name != "virtual_seconds"]
    usable.sort(key=lambda name: name != "virtual_seconds")  # the first choice: rounds and uploads do not compare
    return {name: _x_encoding(name) for name in usable}


def band_text(runs: Sequence[Run]) -> str:
    """What lines and bands mean; empty without seeds."""
    seeds = sorted({run.num_seeds for run in runs if run.num_seeds > 1})
    if not seeds:
        return ""
    counts = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    kinds = {"minimum to maximum" if count < FEW_SEEDS else "10 % to 90 % quantile" for count in seeds}
    return f"Lines are medians over {counts} seeds, bands reach from {' or '.join(sorted(kinds))}."


def curve_rows(runs: Sequence[Run], metric: str) -> pd.DataFrame:
    """The rows drawn for one metric: the curves of all runs, thinned to MAX_POINTS each or fewer.

    `hit` marks the points that answer to the pointer, `end` the last point of a diverged run; `bound` and `floor` are
    what theory says of the run there.
    """
    parts = []
    above = {name: found.tightest for name, found in predictions(runs, metric).items()}
    below = floors(runs, metric)
    limit = max(MAX_POINTS // 4, min(MAX_POINTS, MAX_ROWS // len(runs)))
    hover = max(2, min(100, MAX_HOVER // len(runs)))
    for run in runs:
        rows = run.curve(metric) if metric in run.metrics else pd.DataFrame()
        if not len(rows):
            continue
        rows = rows.iloc[thin(rows["value"].to_numpy(), limit)].copy()
        rows.insert(0, "run", run.name)
        rows["seeds"] = run.num_seeds
        last = np.arange(len(rows)) == len(rows) - 1
        rows["end"] = last & run.diverged
        if run.name in above:
            bound = dict(zip(above[run.name].rounds, above[run.name].bound, strict=True))
            rows["bound"] = [bound.get(at, np.inf) for at in rows["round"]]
        if run.name in below:
            rows["floor"] = below[run.name]
        rows["hit"] = last | (np.arange(len(rows)) % math.ceil(len(rows) / hover) == 0)
        parts.append(rows)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"run": [], "value": [], "lo": [], "hi": []})


def thin(values: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` indices: the ends, and per bucket the least and the greatest value, so that spikes survive."""
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(1, len(values) - 1, (limit - 2) // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in itertools.pairwise(edges):
        kept |= {start + int(np.argmin(values[start:stop])), start + int(np.argmax(values[start:stop]))}
    return np.array(sorted(kept))


def curve_spec(runs: Sequence[Run], metric: str, drawn: Sequence[Stroke]) -> Spec | None:
    """One metric against rounds, a line per run and a band where there are seeds; None without a finite value."""
    rows = curve_rows(runs, metric)
    if not len(rows):
        return None
    y = _y_encoding(rows, runs, metric)
    names = [stroke.name for stroke in drawn]
    color = {"domain": names, "range": [stroke.color for stroke in drawn]}
    dash = {"domain": names, "range": [list(stroke.dash) for stroke in drawn]}
    log = y["scale"]["type"] == "log"
    return {
        "description": f"{metric_title(metric)} of {len(names)} runs.",
        "data": {"values": records(rows)},
        # runs hidden by the legend, the run under the pointer there, and whether y is on a log scale
        "params": [{"name": "off", "value": []}, {"name": "hot", "value": None}, {"name": "logy", "value": log}],
        # zeros and round-off below zero have no place on a log scale
        "transform": [{"filter": "indexof(off, datum.run) < 0"}, {"filter": "!logy || datum.value > 0"}],
        "encoding": {
            "x": next(iter(x_axes(runs).values())),
            "color": {"field": "run", "type": "nominal", "scale": color, "legend": None},
        },
        "layer": [*_band(rows, y), _line(y, dash), *_theory(rows, y), *_crosses(rows, y), _hover(y, metric)],
        "width": "container",
        "height": 260,
        "config": CONFIG,
    }


def for_file(spec: Mapping[str, Any], title: str) -> Spec:
    """The same chart on its own: with a title, a legend and a fixed size."""
    alone = {**spec, "title": title, "background": "white"}
    if alone.get("width") == "container":
        alone |= {"width": 520, "height": 320}
    color = spec.get("encoding", {}).get("color", {})
    if "legend" in color and color["legend"] is None and "layer" in spec:
        legend = {"title": None, "labelLimit": 400, **LEGEND}
        alone["encoding"] = {**spec["encoding"], "color": {**color, "legend": legend}}
        alone["layer"] = [_with_dash_legend(layer, legend) for layer in spec["layer"]]
    return alone


def _with_dash_legend(layer: Spec, legend: Spec) -> Spec:
    """Past the palette runs differ by their dashes: the legend must show them. Vega-Lite merges it with the colours."""
    encoding = layer.get("encoding", {})
    if "strokeDash" not in encoding:
        return layer
    return {**layer, "encoding": {**encoding, "strokeDash": {**encoding["strokeDash"], "legend": legend}}}


def write_figures(charts: Mapping[str, tuple[str, Spec]], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write `figure-<name>.<format>` for every chart (name -> (title, specification)); no browser is needed."""
    for form in formats:
        if form not in FORMATS:
            raise unknown_name("figures", form, FORMATS)
    written = []
    for name, (title, spec) in charts.items():
        alone = for_file(spec, title)
        for form in formats:
            path = folder / f"figure-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.{form}"
            write_atomically(path, functools.partial(Path.write_bytes, data=static(alone, form)))
            written.append(path)
    return written


def wants_log(values: np.ndarray, metric: str) -> bool:
    """Whether positive values span more than two decades; accuracies never, nor data that are often not positive."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if higher_is_better(metric) or len(positive) < 0.9 * len(finite) or not len(positive):
        return False
    return bool(positive.max() / positive.min() > LOG_SPAN)


def y_axis(metric: str) -> Spec:
    """The axis of a metric; between the labelled lines of a log scale lie fainter ones."""
    faint = {"condition": {"test": "datum.label === ''", "value": 0.35}, "value": 1}
    return {"format": ".3~%" if higher_is_better(metric) else ".3~g", "tickCount": 5, "gridOpacity": faint}


def records(rows: pd.DataFrame) -> list[Spec]:
    """Rows as JSON objects: whole numbers exact, others to six digits, what is not finite as null."""
    columns = {str(name): [_cell(value) for value in rows[name]] for name in rows.columns}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def tooltip(title: str, lines: Mapping[str, str]) -> Spec:
    """A tooltip from expressions; as an expression because Vega-Lite loses nominal fields under `nearest`."""
    return {"expr": f"{{title: {title}, {', '.join(f'{json.dumps(key)}: {value}' for key, value in lines.items())}}}"}


def spread_text(metric: str, at: str = "datum") -> str:
    """An expression for a value and, over seeds, its band: 0.35 (0.31 to 0.42)."""
    form = ".2%" if higher_is_better(metric) else ".4~g"
    band = f"' (' + format({at}.lo, '{form}') + ' to ' + format({at}.hi, '{form}') + ')'"
    return f"format({at}.value, '{form}') + ({at}.seeds > 1 ? {band} : '')"


LEGEND: Spec = {"symbolType": "stroke", "symbolSize": 300, "symbolOpacity": 1, "symbolStrokeWidth": 2.5}
CROSS: Spec = {
    "type": "point",
    "shape": "M-.7,-.7L.7,.7M-.7,.7L.7,-.7",
    "size": 90,
    "strokeWidth": 2.5,
    "filled": False,
    "opacity": 1,
}
_DIMMED = "hot !== null && hot !== datum.run"


def static(spec: Spec, form: str) -> bytes:
    if form == "png":
        return vl_convert.vegalite_to_png(spec, scale=2)
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(spec)
    return vl_convert.vegalite_to_svg(spec).encode()


def _x_encoding(name: str) -> Spec:
    bare = "datum.value === 0 ? '0' : datum.label"  # not 0M
    axis = {"format": X_FORMATS[name], "labelExpr": bare, "tickCount": 6, "grid": False}
    return {
        "field": name,
        "type": "quantitative",
        "title": X_TITLES[name],
        "axis": axis,
        "scale": {"nice": False, "zero": True},
    }


def _y_encoding(rows: pd.DataFrame, runs: Sequence[Run], metric: str) -> Spec:
    """The y-axis, untitled because the title of the chart says what it is.

    A diverged run may leave the frame: else it would press all others into one line.
    """
    wild = rows["run"].isin([run.name for run in runs if run.diverged])
    framed = rows
    if wild.any() and not wild.all() and not higher_is_better(metric):
        # the start of every run stays in sight, and so does all that the others do
        framed = rows.loc[~wild | (rows["round"] == 0)]
    log = wants_log(framed["value"].to_numpy(), metric)
    scale: Spec = {"type": "log", "nice": False} if log else {"type": "linear", "nice": True, "zero": False}
    low, high = float(framed["lo"].min()), float(framed["hi"].max())
    bounds = rows["bound"][np.isfinite(rows["bound"])] if "bound" in rows else pd.Series(dtype=float)
    if len(bounds) and (framed.loc[framed["bound"].notna(), "value"] > 0).all() and bounds.max() > 2 * high:
        log = True  # a bound may lie far above, and both should be seen
        scale = {"type": "log", "nice": False}
    top = high * (1e4 if len(bounds) else 3) if log else high + 0.25 * (high - low)
    if max(rows["hi"].max(), bounds.max() if len(bounds) else 0) > top:
        scale |= {"domainMax": _cell(top), "nice": False}
    return {"field": "value", "type": "quantitative", "title": None, "axis": y_axis(metric), "scale": scale}


def _band(rows: pd.DataFrame, y: Spec) -> list[Spec]:
    if not (rows["seeds"] > 1).any():
        return []
    positive = rows.loc[rows["lo"] > 0, "lo"]
    floor = _cell(float(positive.min())) if len(positive) else 1e-12
    # on a log scale a band that reaches zero goes down to the least positive value
    low = f"logy && datum.lo <= 0 ? {floor} : datum.lo"
    return [
        {
            "transform": [{"filter": "datum.seeds > 1"}, {"calculate": low, "as": "low"}],
            "mark": {"type": "area", "clip": True},
            "encoding": {
                "y": {**y, "field": "low"},
                "y2": {"field": "hi"},
                "opacity": {"condition": {"test": _DIMMED, "value": 0.04}, "value": 0.18},
            },
        }
    ]


def _line(y: Spec, dash: Spec) -> Spec:
    return {
        "mark": {"type": "line", "strokeWidth": 2, "clip": True, "strokeJoin": "round"},
        "encoding": {
            "y": y,
            "strokeDash": {"field": "run", "type": "nominal", "scale": dash, "legend": None},
            "opacity": {"condition": {"test": _DIMMED, "value": 0.12}, "value": 1},
        },
    }


def _theory(rows: pd.DataFrame, y: Spec) -> list[Spec]:
    """The bound above a run, dashed, and the fixed point below it, dotted, in the run's colour."""
    layers: list[Spec] = []
    for column, dash in (("bound", [7, 5]), ("floor", [2, 4])):
        if column in rows and rows[column].notna().any():
            layers.append(
                {
                    "transform": [{"filter": f"isValid(datum.{column}) && (!logy || datum.{column} > 0)"}],
                    "mark": {"type": "line", "strokeWidth": 1.5, "strokeDash": dash, "clip": True},
                    "encoding": {
                        "y": {**y, "field": column},
                        "opacity": {"condition": {"test": _DIMMED, "value": 0.08}, "value": 0.8},
                    },
                }
            )
    return layers


def _crosses(rows: pd.DataFrame, y: Spec) -> list[Spec]:
    """A cross where a diverged run ends; at the upper edge if it left the frame."""
    if not rows["end"].any():
        return []
    top = y["scale"].get("domainMax")
    height = "datum.value" if top is None else f"min(datum.value, {top})"
    return [
        {
            "transform": [{"filter": "datum.end"}, {"calculate": height, "as": "height"}],
            "mark": {**CROSS, "yOffset": 0 if top is None else 6},
            "encoding": {"y": {**y, "field": "height"}},
        }
    ]


def _hover(y: Spec, metric: str) -> Spec:
    at = "(datum.datum || datum)"  # under the pointer is the Voronoi cell of a point, and its datum is the point
    lines = {
        metric_title(metric): spread_text(metric, at),
        "round": f"format({at}.round, ',')",
        "floats sent": f"format({at}.floats, '.3s')",
        "oracle calls": f"format({at}.calls, '.3s')",
        "seconds": f"format({at}.seconds, '.3~g')",
    }
    select = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    tip = tooltip(f"{at}.run", lines)
    return {
        "transform": [{"filter": "datum.hit"}],
        "params": [{"name": "near", "select": select}],
        "mark": {"type": "point", "filled": True, "size": 60, "clip": True, "tooltip": tip},
        "encoding": {"y": y, "opacity": {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}},
    }


def _cell(value: Any) -> Any:
    if isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(f"{value:.6g}")


def _one_number(run: Run) -> bool:
    return len(run.setting) == 1 and all(is_number(value) for value in run.setting.values())


def _ramp(position: float) -> str:
    """A colour on RAMP, 0 to 1."""
    stops = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in RAMP]
    mixed = [np.interp(position * (len(RAMP) - 1), range(len(RAMP)), channel) for channel in zip(*stops, strict=True)]
    return "#" + "".join(f"{round(float(channel)):02x}" for channel in mixed)


def _note(run: Run) -> str:
    return "" if run.status == "ok" else run.status
