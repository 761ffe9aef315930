"""Virtual time on the page: who worked when and from which version, how old uploads were, who sat idle."""

from collections.abc import Sequence
from typing import Any

import markupsafe
import numpy as np
import pandas as pd

from sojourn.looks.charts import CONFIG, PALETTE, Spec
from sojourn.looks.words import number
from sojourn.report.figure import records, tooltip
from sojourn.report.runs import History
from sojourn.traces.trace import busy_shares

MAX_RUNS = 4  # whose pictures are shown
MAX_CLIENTS, MAX_TASKS = 30, 400  # of a timeline
MAX_BARS, MAX_POINTS = 40, 400
_COLUMNS = (
    "Virtual seconds", "Uploads a second", "Updates a second", "Staleness", "Thrown away", "Lost", "Models kept",
)  # fmt: skip
_FATES = {"accepted": 1.0, "unfinished": 0.55, "too stale": 0.4, "lost": 0.25, "timed out": 0.25}


def time_charts(histories: Sequence[History]) -> list[tuple[str, Spec]]:
    """(title, specification) of the pictures of every run that followed a trace."""
    traced = [history for history in histories if _tasks(history) is not None][:MAX_RUNS]
    charts: list[tuple[str, Spec]] = []
    for history in traced:
        tasks, ending = _tasks(history), f" ({history.label})" if len(traced) > 1 else ""
        assert tasks is not None
        rows = history.frame().query("round > 0")
        charts.append((f"Who worked when{ending}", timeline_spec(tasks)))
        charts.append((f"Staleness of the uploads{ending}", histogram_spec(rows["staleness"].to_numpy())))
        charts.append((f"Share of the time at work{ending}", busy_spec(tasks, int(history.manifest["num_clients"]))))
        if "mixing_weight" in rows:
            charts.append((f"Weight of each upload{ending}", points_spec(rows, "mixing_weight", "Weight")))
        if rows["queue"].max() > 0:
            charts.append((f"Uploads that wait at the server{ending}", points_spec(rows, "queue", "Uploads")))
    return charts


def time_html(histories: Sequence[History]) -> str:
    """A table of the runs that followed a trace; "" where there are none."""
    rows = ""
    for history in histories:
        told = history.manifest.get("trace")
        if not told:
            continue
        cells = (
            number(told["virtual_seconds"]), number(told["uploads_per_virtual_second"] or 0.0),
            number(told["updates_per_virtual_second"] or 0.0),
            f"{told['mean_staleness']:.3g}<small>at most {told['largest_staleness']}</small>", f"{told['dropped']:,}",
            f"{told['lost']:,}", f"{told['models_kept']:,}",
        )  # fmt: skip
        body = "".join(f"<td>{cell}</td>" for cell in cells)
        rows += f'<tr><th scope="row">{markupsafe.escape(history.label)}</th>{body}</tr>'
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    table = f'<div class="scroll"><table><thead><tr><th>Run</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return table if rows else ""


def _tasks(history: History) -> pd.DataFrame | None:
    found: pd.DataFrame | None = getattr(history, "trace", None)
    return found


def timeline_spec(tasks: pd.DataFrame) -> Spec:
    """Bars from when a task was handed out until its upload was there; the darker, the newer its model."""
    applied = np.sort(tasks.loc[tasks["fate"] == "accepted", "applied"].to_numpy())
    shown = tasks.assign(version=np.searchsorted(applied, tasks["dispatched"], side="right"))
    clients = np.unique(shown["client"])
    some = clients[np.unique(np.linspace(0, len(clients) - 1, min(len(clients), MAX_CLIENTS)).astype(int))]
    shown = shown[shown["client"].isin(some)].head(MAX_TASKS)
    end = shown["arrived"] if "arrived" in shown else shown["applied"]
    rows = shown[["client", "dispatched", "fate", "version"]].assign(end=end)
    about = {
        "from": "format(datum.dispatched, ',.4~r')", "until": "format(datum.end, ',.4~r')",
        "model after uploads": "datum.version", "fate": "datum.fate",
    }  # fmt: skip
    seconds = {"type": "quantitative", "title": "Virtual seconds", "axis": {"grid": False, "tickCount": 6}}
    return {
        "description": "Who worked when, and from which version of the model.",
        "data": {"values": records(rows)},
        "mark": {"type": "bar", "height": {"band": 0.7}, "tooltip": tooltip("'client ' + datum.client", about)},
        "encoding": {
            "x": {"field": "dispatched", **seconds, "scale": {"nice": False}},
            "x2": {"field": "end"},
            "y": {"field": "client", "type": "ordinal", "title": "Client", "axis": {"ticks": False, "domain": False}},
            "color": {
                "field": "version", "type": "quantitative", "title": "Model after uploads",
                "scale": {"scheme": "blues"}, "legend": {"tickMinStep": 1, "format": ",~r", "gradientLength": 150},
            },
            "opacity": {
                "field": "fate", "type": "nominal", "legend": None,
                "scale": {"domain": list(_FATES), "range": list(_FATES.values())},
            },
        },
        "width": "container", "height": int(np.clip(14 * len(some), 120, 420)), "config": CONFIG,
    }  # fmt: skip


def histogram_spec(staleness: np.ndarray) -> Spec:
    """How many uploads were how stale; long tails in bins."""
    width = max(1, -(-int(staleness.max() + 1) // MAX_BARS))
    counts = np.bincount((staleness // width).astype(int))
    rows = pd.DataFrame({"low": width * np.arange(len(counts)), "count": counts})
    rows["high"] = rows["low"] + width
    words = "'staleness ' + datum.low" + ("" if width == 1 else " + ' to ' + (datum.high - 1)")
    return _bars(rows, "low", "high", "count", "Staleness, in versions", "Uploads", words)


def busy_spec(tasks: pd.DataFrame, num_clients: int) -> Spec:
    """The share of the time that every client worked, the busiest first."""
    shares = busy_shares(tasks, num_clients)
    order = np.argsort(-shares, kind="stable")
    wide = max(1, -(-len(shares) // MAX_POINTS))
    rows = pd.DataFrame({"low": np.arange(0, len(shares), wide), "client": order[::wide]})
    rows = rows.assign(high=rows["low"] + wide, count=shares[order][::wide])
    words = "'client ' + datum.client"
    return _bars(rows, "low", "high", "count", "Clients, the busiest first", "Share", words, ".0%")


def points_spec(rows: pd.DataFrame, column: str, title: str) -> Spec:
    """A number of every upload against virtual time, thinned."""
    thin = rows.iloc[:: max(1, len(rows) // MAX_POINTS)]
    points = pd.DataFrame({"x": thin["virtual_seconds"], "y": thin[column]})
    axis = {"grid": False, "tickCount": 6}
    return {
        "description": f"{title} by virtual time.",
        "data": {"values": records(points)},
        "mark": {"type": "point", "filled": True, "size": 12, "color": PALETTE[0], "opacity": 0.6},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": "Virtual seconds", "axis": axis},
            "y": {"field": "y", "type": "quantitative", "title": None, "scale": {"zero": True}},
        },
        "width": "container", "height": 200, "config": CONFIG,
    }  # fmt: skip


def _bars(rows: pd.DataFrame, low: str, high: str, height: str, x: str, y: str, words: str, form: str = ",~r") -> Spec:
    tip: Any = tooltip(words, {y.lower(): f"format(datum.{height}, '{form}')"})
    return {
        "description": f"{y} by {x}.",
        "data": {"values": records(rows)},
        "mark": {"type": "rect", "color": PALETTE[0], "tooltip": tip},
        "encoding": {
            "x": {"field": low, "type": "quantitative", "title": x, "axis": {"grid": False, "tickMinStep": 1}},
            "x2": {"field": high},
            "y": {"field": height, "type": "quantitative", "title": y, "axis": {"format": form}},
            "y2": {"datum": 0},
        },
        "width": "container", "height": 200, "config": CONFIG,
    }  # fmt: skip
