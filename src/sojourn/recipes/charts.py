"""Charts that recipes share, as Vega-Lite specifications: level sets in the plane, lines, heat maps, boxes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.recipes.trends import bands

Spec = dict[str, Any]
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_LEGEND = {"orient": "top", "columns": 4, "symbolOpacity": 1, "labelLimit": 300}


def level_sets(
    center: np.ndarray, hessian: np.ndarray, name: str, levels: Sequence[float], *, of: Any = ""
) -> list[Spec]:
    """Points of the ellipses 1/2 (x - c)^T A (x - c) = level, in order; `of` tells objectives of one name apart."""
    values, vectors = np.linalg.eigh(hessian)
    angles = np.linspace(0, 2 * np.pi, 97)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    rows = []
    for level in levels:
        ring = center[:, None] + vectors @ (circle * np.sqrt(2 * level / values)[:, None])
        rows += [
            {"x": round(float(x), 5), "y": round(float(y), 5), "of": name, "ring": f"{name} {of} {level}", "at": i}
            for i, (x, y) in enumerate(ring.T)
        ]
    return rows


def planar(
    rings: Sequence[list[Spec]],
    points: Sequence[tuple[str, np.ndarray]],
    *,
    paths: Sequence[Spec] = (),
    segment: tuple[np.ndarray, np.ndarray] | None = None,
    domain: tuple[tuple[float, float], tuple[float, float]] | None = None,
) -> Spec:
    """Level sets, named points and paths (rows with x, y, of, at) in a plane with equal units."""
    names = list(
        dict.fromkeys([r["of"] for ring in rings for r in ring[:1]] + [n for n, _ in points] + [p["of"] for p in paths])
    )
    color = {"field": "of", "type": "nominal", "title": None, "scale": _colors(names), "legend": _LEGEND}
    every = np.array(
        [[r["x"], r["y"]] for ring in rings for r in ring] + [[p["x"], p["y"]] for p in paths] + [p for _, p in points]
    )
    (left, right), (low, high) = domain or tuple((float(every[:, i].min()), float(every[:, i].max())) for i in (0, 1))
    x = {
        "field": "x",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [left, right], "nice": False},
        "axis": {"tickCount": 8},
    }
    y = {"field": "y", "type": "quantitative", "title": None, "scale": {"domain": [low, high], "nice": False}}
    layers: list[Spec] = [
        {
            "data": {"values": [row for ring in rings for row in ring]},
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.45, "clip": True},
            "encoding": {"x": x, "y": y, "color": color, "detail": {"field": "ring"}, "order": {"field": "at"}},
        }
    ]
    if segment is not None:
        ends = [{"x": float(p[0]), "y": float(p[1]), "at": i} for i, p in enumerate(segment)]
        dash = {"type": "line", "strokeDash": [5, 4], "color": "#888"}
        layers.append({"data": {"values": ends}, "mark": dash, "encoding": {"x": x, "y": y, "order": {"field": "at"}}})
    if paths:
        mark = {"type": "line", "strokeWidth": 2, "point": {"size": 28, "filled": True}, "clip": True, "tooltip": True}
        layers.append(
            {
                "data": {"values": list(paths)},
                "mark": mark,
                "encoding": {"x": x, "y": y, "color": color, "order": {"field": "at"}},
            }
        )
    dots = [{"x": float(p[0]), "y": float(p[1]), "of": name} for name, p in points]
    mark = {"type": "point", "filled": True, "size": 110, "opacity": 1, "tooltip": True, "stroke": "white"}
    layers.append({"data": {"values": dots}, "mark": mark, "encoding": {"x": x, "y": y, "color": color}})
    width = 460
    height = int(np.clip(width * (high - low) / max(right - left, 1e-12), 180, 620))
    return {"layer": layers, "width": width, "height": height}


def banded(name: str, x: Iterable[Any], repetitions: np.ndarray) -> list[dict[str, Any]]:
    """Rows for `lines`: the mean of repetitions (n, points) at every x, with the ends of its bootstrap interval."""
    return [
        {"x": float(at), "y": float(mean), "lo": float(low), "hi": float(high), "line": name}
        for at, mean, low, high in zip(x, *bands(repetitions), strict=True)
    ]


def lines(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    dashed: Sequence[str] = (),
    points: bool = True,
) -> Spec:
    """One line per `line` of the rows (x, y, line; lo and hi for a band); `dashed` lines are bounds or guides.

    Rows that have an `of` as well are coloured and named by it, so that a line and its bound share a colour.
    """
    names = list(dict.fromkeys(row["line"] for row in rows))
    hue = "of" if any("of" in row for row in rows) else "line"
    hues = list(dict.fromkeys(row[hue] for row in rows))
    kind = lambda log: {"type": "log", "nice": False} if log else {"zero": False}  # noqa: E731
    dash = {"domain": names, "range": [[5, 4] if name in dashed else [1, 0] for name in names]}
    encoding: Spec = {
        "x": {"field": "x", "type": "quantitative", "title": x, "scale": kind(log_x), "axis": {"grid": False}},
        "detail": {"field": "line"},
        "color": {"field": hue, "type": "nominal", "title": None, "scale": _colors(hues),
                  "legend": {**_LEGEND, "columns": 3, "symbolType": "stroke", "symbolStrokeWidth": 2}},
    }  # fmt: skip
    height: Spec = {"type": "quantitative", "title": y, "scale": kind(log_y), "axis": {"format": "~g"}}
    layers: list[Spec] = []
    if any("lo" in row for row in rows):
        layers.append({
            "transform": [{"filter": "isValid(datum.lo)"}], "mark": {"type": "area", "opacity": 0.18},
            "encoding": {"y": {**height, "field": "lo"}, "y2": {"field": "hi"}},
        })  # fmt: skip
    mark: Spec = {"type": "line", "strokeWidth": 2, "tooltip": True}
    if points:
        mark["point"] = {"size": 28, "filled": True}
    layers.append({
        "mark": mark,
        "encoding": {"y": {**height, "field": "y"}, "strokeDash": {"field": "line", "scale": dash, "legend": None}},
    })  # fmt: skip
    return {"data": {"values": [dict(row) for row in rows]}, "encoding": encoding, "layer": layers,
            "width": "container", "height": 320}  # fmt: skip


def heat_map(rows: Sequence[Mapping[str, Any]], *, x: str, y: str, value: str, log: bool = False) -> Spec:
    """A map of the rows (x, y, value), the values written into the cells; dark is low."""
    values = np.array([row["value"] for row in rows], float)
    placed = np.log(np.maximum(values, 1e-300)) if log else values
    middle = float(placed.min() + 0.55 * np.ptp(placed))
    marked = [{**row, "ink": bool(p > middle)} for row, p in zip(rows, placed, strict=True)]
    scale = {"scheme": "viridis", "type": "log" if log else "linear"}
    ink = {"condition": {"test": "datum.ink", "value": "#111"}, "value": "#fff"}
    return {
        "data": {"values": marked},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}},
            "y": {"field": "y", "type": "ordinal", "title": y, "sort": "descending"},
        },
        "layer": [
            {"mark": {"type": "rect", "tooltip": True},
             "encoding": {"color": {"field": "value", "type": "quantitative", "title": value, "scale": scale}}},
            {"mark": {"type": "text", "fontSize": 10},
             "encoding": {"text": {"field": "value", "type": "quantitative", "format": ".2~g"}, "color": ink}},
        ],
        "width": "container",
        "height": max(180, 34 * len({row["y"] for row in rows})),
    }  # fmt: skip


def boxes(rows: Sequence[Mapping[str, Any]], *, x: str, y: str) -> Spec:
    """Boxes of the rows' y (quartiles, median, whiskers to the extremes) by x, side by side for every `of`."""
    places, hues = (list(dict.fromkeys(row[name] for row in rows)) for name in ("x", "of"))
    value = {"field": "y", "type": "quantitative", "title": y, "scale": {"zero": False}}
    return {
        "data": {"values": [dict(row) for row in rows]},
        "encoding": {
            "x": {"field": "x", "type": "nominal", "title": x, "sort": places, "axis": {"labelAngle": 0}},
            "xOffset": {"field": "of", "sort": hues},
            "y": value,
            "color": {"field": "of", "type": "nominal", "title": None, "scale": _colors(hues), "legend": _LEGEND},
        },
        "layer": [
            {"mark": {"type": "boxplot", "extent": "min-max", "size": 28, "opacity": 0.5}},
            {"mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.9, "tooltip": True}},
        ],
        "width": "container",
        "height": 320,
    }


def dots(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: str, guides: Sequence[float] = (), log_y: bool = False
) -> Spec:
    """A dot for every row (x, y, of, what), side by side by x and coloured by `of`; `hollow` ones are outlined."""
    places, hues = (list(dict.fromkeys(row[name] for row in rows)) for name in ("x", "of"))
    height = {"type": "quantitative", "title": y, "scale": {"type": "log", "nice": False} if log_y else {"zero": False}}
    color = {"field": "of", "type": "nominal", "title": None, "scale": _colors(hues), "legend": _LEGEND}
    across = {"field": "x", "type": "nominal", "title": x or None, "sort": places,
              "axis": {"labelAngle": 0, "labelLimit": 110, "labelExpr": "split(datum.label, ', ')"}}  # fmt: skip
    tip = [{"field": "what", "title": "federation"}, {"field": "of"}, {"field": "y", "type": "quantitative"}]
    filled = {"condition": {"test": "datum.hollow", "value": 0.0}, "value": 0.7}
    return {
        "data": {"values": [{**row, "aside": (0.618 * i) % 1 - 0.5} for i, row in enumerate(rows)]},
        "layer": [
            {"data": {"values": [{"at": guide} for guide in guides]}, "mark": {"type": "rule", "strokeDash": [4, 4],
             "color": "#888"}, "encoding": {"y": {**height, "field": "at"}}},
            {"mark": {"type": "circle", "size": 34, "stroke": None, "tooltip": True},
             "encoding": {"x": across, "xOffset": {"field": "aside", "type": "quantitative"},
                          "y": {**height, "field": "y"}, "color": color, "fillOpacity": filled,
                          "stroke": {**color, "legend": None}, "tooltip": tip}},
        ],
        "width": "container",
        "height": 360,
    }  # fmt: skip


def _colors(names: Sequence[str]) -> Spec:
    return {"domain": list(names), "range": [PALETTE[i % len(PALETTE)] for i in range(len(names))]}
