"""The advice as one self-contained page: where the federation sits, what the contenders cost, what was measured.

Charts are drawn here, as SVG; the page has no script and loads nothing, and follows light and dark by its style.
"""

import json
import math
from pathlib import Path
from typing import Any

import markupsafe
import vl_convert

from sojourn.advice.answer import BOUND, GUESS, REHEARSED, RULE, TRIED, Advice, Contender
from sojourn.advice.map import BEATS, Map, map_of
from sojourn.advice.sentences import alike
from sojourn.core.files import write_atomically
from sojourn.diagnosis.table import price
from sojourn.looks.charts import CONFIG, PALETTE, Spec
from sojourn.looks.pages import style, template
from sojourn.looks.words import NONE, number, si

PAGE_FILE = "advice.html"
_WIDTH, _HEIGHT = 420, 300
_BANDS = ("#009E73", "#E69F00", "#8C8C8C")  # of BEATS
_BASES = {TRIED: PALETTE[2], REHEARSED: PALETTE[0], BOUND: "#B0B0B0", RULE: "#D0D0D0", GUESS: "#D0D0D0"}


def write_page(advice: Advice, out: Path) -> Path:
    """Writes the page into the folder `out`, or to `out` itself if it ends in .html, and returns its path."""
    path = Path(out) if Path(out).suffix == ".html" else Path(out) / PAGE_FILE
    first, *rest = advice.sentences
    placed = _placed(advice)
    html = template("advice", "page.html.jinja").render(
        style=markupsafe.Markup(style()),
        title=f"Advice for {advice.diagnosis.name}",
        verdict=first,
        lead=_lead(advice),
        sentences=rest,
        charts=[{**chart, "svg": markupsafe.Markup(_svg(chart["spec"]))} for chart in _charts(advice, placed)],
        nowhere=unplaced(advice) if placed is None and advice.best is not None else None,
        contenders=[contender_row(contender) for contender in advice.contenders],
        taken=None if advice.best is None else advice.best.words(),
        measures=measure_rows(advice),
        warnings=advice.diagnosis.warnings,
    )
    write_atomically(path, lambda beside: beside.write_bytes(html.encode()))
    return path


def _lead(advice: Advice) -> str:
    d = advice.diagnosis
    batch = "exact gradients" if d.batch_size is None else f"batches of {d.batch_size}"
    return f"{d.num_clients} clients, a model of {si(d.dimension)} numbers, {batch}, {advice.setting}."


def contender_row(contender: Contender) -> dict[str, str]:
    """A row of the table, in words; the terminal's too."""
    bound = contender.bound
    return {
        "words": contender.words(),
        "rounds": _predicted(contender),
        "floats": NONE if not contender.reaches else _count(contender.floats),
        "gradients": NONE if not contender.reaches else _count(contender.gradients),
        "basis": contender.basis,
        "bound": NONE if bound is None or not bound.met else _count(bound.rounds),
        "term": "" if bound is None else bound.words(),
        "remarks": "; ".join(text for text in (contender.why_not, contender.note) if text),
    }


def _predicted(contender: Contender) -> str:
    if contender.ruled_out:
        return NONE
    return GUESS if contender.basis == GUESS and not contender.reaches else _count(contender.rounds)


def measure_rows(advice: Advice) -> list[dict[str, str]]:
    rows = []
    for found in advice.diagnosis.measures.values():
        rows.append(
            {
                "name": found.name.replace("_", " "),
                "symbol": found.symbol,
                "value": number(found.value),
                "between": _between(found.low, found.high),
                "kind": found.kind,
                "at": found.at,
                "how": f"{found.how}; {found.note}" if found.note else found.how,
                "cost": price(found.cost),
            }
        )
    return rows


def _between(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"{number(low)} … {number(high)}"
    if low is not None:
        return f"at least {number(low)}"
    return NONE if high is None else f"at most {number(high)}"


def _count(value: float) -> str:
    return "not reached" if not math.isfinite(value) else si(math.ceil(value) if value < 1e5 else value)


def _svg(spec: Spec) -> str:
    return str(vl_convert.vegalite_to_svg(json.dumps({**spec, "config": CONFIG})))


def _charts(advice: Advice, placed: Map | None) -> list[dict[str, Any]]:
    found = []
    if placed is not None:
        basis = (
            "Where local SGD needs the fewest rounds to the target, rehearsed with the clients drawn together or apart."
            if placed.rehearsed
            else "Where theory's worst case lets local SGD win, for this federation's other constants."
        )
        note = (
            f"{basis} The cross is where it was measured to be, with its uncertainty; dots are what single points and "
            "other ways of measuring say: tau at the start and after the warm-up, on the path and as a mean (tau_rms), "
            "phi_* from gradients and by Newton steps."
        )
        found.append({"title": "Where this federation sits", "note": note, "spec": map_spec(placed)})
    rows = [c for c in advice.contenders if c.reaches]
    if rows:
        note = (
            "To the target, as predicted; rounds are trips of messages. Colours say what a prediction rests on: a "
            "bound is an order of magnitude, and not to be compared with the others. Pale: it does not fit."
        )
        found.append({"title": "What the contenders cost", "note": note, "spec": cost_spec(rows, advice.best)})
    return found


def _placed(advice: Advice) -> Map | None:
    return map_of(advice.diagnosis, advice.details.get("played", advice.target), advice.budget)


def unplaced(advice: Advice) -> str:
    """Why the page does not show where the federation sits."""
    diagnosis = advice.diagnosis
    if diagnosis.num_clients == 1:
        return "There is one client, which differs from nobody: there is no place to show."
    if alike(diagnosis):
        return "The clients are alike as far as was measured: local steps leave no bias, whatever their number."
    known = (diagnosis.value(name) for name in ("hessian_heterogeneity", "optima_distance"))
    if any(value is not None and value == 0 for value in known):
        return (
            "The clients differ in one way only, tau or phi_* being 0 as measured: there is no plane to place them in."
        )
    return "It is not shown, as neither a rehearsal nor a bound says where local steps would pay."


def map_spec(placed: Map) -> Spec:
    """The plane of curvature and optima as cells, and the federation in it."""
    x, y = placed.curvature, placed.optima
    dx, dy = (x[1] / x[0]) ** 0.5, (y[1] / y[0]) ** 0.5
    cells = [
        {"x": a / dx, "x2": a * dx, "y": b / dy, "y2": b * dy, "local SGD": BEATS[placed.beats[i, j]]}
        for i, b in enumerate(y)
        for j, a in enumerate(x)
    ]
    low_x, high_x, low_y, high_y = placed.spread
    clip = lambda v, axis: float(min(max(v, axis[0]), axis[-1]))  # noqa: E731
    here = {"x": clip(placed.here[0], x), "y": clip(placed.here[1], y), "x1": clip(low_x, x), "x2": clip(high_x, x),
            "y1": clip(low_y, y), "y2": clip(high_y, y)}  # fmt: skip
    log = lambda field, name, axis: {  # noqa: E731
        "field": field, "type": "quantitative", "title": name,
        "scale": {"type": "log", "domain": [float(axis[0]), float(axis[-1])], "nice": False, "clamp": True},
        "axis": {"format": "~g", "tickCount": 5, "grid": False},
    }  # fmt: skip
    across = log("x", "Differing curvature, tau / H", x)
    up = log("y", "Differing optima, phi* / B", y)
    colour = {
        "field": "local SGD", "type": "nominal", "scale": {"domain": list(BEATS), "range": list(_BANDS)},
        "legend": {"orient": "bottom", "title": "Local SGD", "columns": 1, "symbolOpacity": 0.55},
    }  # fmt: skip
    rule = {"type": "rule", "strokeWidth": 2, "color": PALETTE[1]}
    cross = {"type": "point", "shape": "cross", "size": 140, "filled": True, "color": PALETTE[1]}
    dot = {"type": "point", "shape": "circle", "size": 40, "filled": True, "color": PALETTE[1], "clip": True}
    others = [{"x": float(a), "y": float(b)} for a, b in placed.others if x[0] <= a <= x[-1] and y[0] <= b <= y[-1]]
    return {
        "width": _WIDTH, "height": _HEIGHT,
        "layer": [
            {"data": {"values": cells}, "mark": {"type": "rect", "opacity": 0.55, "clip": True},
             "encoding": {"x": across, "x2": {"field": "x2"}, "y": up, "y2": {"field": "y2"}, "color": colour}},
            {"data": {"values": [here]}, "mark": rule,
             "encoding": {"x": {**across, "field": "x1"}, "x2": {"field": "x2"}, "y": up}},
            {"data": {"values": [here]}, "mark": rule,
             "encoding": {"x": across, "y": {**up, "field": "y1"}, "y2": {"field": "y2"}}},
            {"data": {"values": others}, "mark": dot, "encoding": {"x": across, "y": up}},
            {"data": {"values": [here]}, "mark": cross, "encoding": {"x": across, "y": up}},
        ],
    }  # fmt: skip


def cost_spec(contenders: list[Contender], best: Contender | None = None) -> Spec:
    """Rounds, floats, local work and, where it was asked for, virtual time, as bars on log scales."""
    fields = {
        "seconds": "Virtual seconds",
        "rounds": "Rounds",
        "floats": "Floats sent",
        "gradients": "Gradients of a client",
    }
    timed = any(c.seconds is not None for c in contenders)
    parts = [_bars(contenders, best, field, name) for field, name in fields.items() if timed or field != "seconds"]
    return {"vconcat": parts}


def _bars(contenders: list[Contender], best: Contender | None, field: str, name: str) -> Spec:
    told = [(c, getattr(c, field)) for c in contenders if getattr(c, field) is not None]
    rows: list[dict[str, Any]] = [
        {"method": c.title, "value": max(value, 1.0), "fits": c.fits, "basis": c.basis,
         "text": _count(value) + (" · to take" if c == best else "")}
        for c, value in told
    ]  # fmt: skip
    values = [row["value"] for row in rows]
    low = 0.8 if min(values) < 10 else min(values) / 4
    across = {
        "field": "value", "type": "quantitative", "title": name, "axis": {"format": "~s", "tickCount": 4},
        "scale": {"type": "log", "domain": [low, max(values) * 10], "nice": False},
    }  # fmt: skip
    rest = {"ticks": False, "domain": False, "labelLimit": 200, "minExtent": 110}
    up = {"field": "method", "type": "nominal", "sort": [c.title for c, _ in told], "title": None, "axis": rest}
    shade = {"condition": {"test": "datum.fits", "value": 1.0}, "value": 0.35}
    bases = [basis for basis in _BASES if any(c.basis == basis for c in contenders)]
    legend = None if len(bases) == 1 else {"orient": "bottom", "title": None, "columns": 1}
    colour = {
        "field": "basis", "type": "nominal", "scale": {"domain": bases, "range": [_BASES[basis] for basis in bases]},
        "legend": legend,
    }  # fmt: skip
    # a bar on a log scale has no zero to start from
    start = {"datum": low}
    bar = {
        "mark": {"type": "bar", "height": 12},
        "encoding": {"x": across, "x2": start, "y": up, "opacity": shade, "color": colour},
    }
    label = {
        "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11},
        "encoding": {"x": across, "y": up, "text": {"field": "text"}},
    }
    return {"data": {"values": rows}, "width": _WIDTH - 100, "height": 20 * len(rows), "layer": [bar, label]}
