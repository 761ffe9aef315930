"""One self-contained page: summary, table, curves, sweeps, further sections, and how every run was made.

The page loads nothing: Vega is bundled once (about 0.9 MB) and a content policy forbids the network. It holds no date
and no path, so the same histories give the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import markupsafe
import numpy as np

from sojourn.core.errors import unknown_name
from sojourn.core.files import write_atomically
from sojourn.history import LABELS
from sojourn.looks.charts import CONFIG, Spec
from sojourn.looks.pages import bundle, json_block, style, template
from sojourn.looks.words import NONE, duration, higher_is_better, metric_title, metric_value, si
from sojourn.report import figure, table
from sojourn.report.guards import guards_html, guards_note
from sojourn.report.labels import label_charts
from sojourn.report.predicted import overlay_note, section_html
from sojourn.report.runs import History, Run, main_metric, metrics_of, ranked, shown_runs, split
from sojourn.report.start import redeal_note, start_html
from sojourn.report.sweep import sweep_charts
from sojourn.report.timeline import time_charts, time_html
from sojourn.report.tuning import tuning_html
from sojourn.report.vectors import vector_charts

MAX_DIFFERENCES = 15  # rows of the table of settings that differ


class Chart(Protocol):
    """An Altair chart, or anything that gives a Vega-Lite specification."""

    def to_dict(self) -> Any: ...


@dataclass(frozen=True)
class Section:
    """A further part of the page: HTML, which is trusted and put in as it is, or a chart."""

    title: str
    body: str | Chart | Mapping[str, Any]
    note: str = ""
    aside: str = ""  # trusted HTML that stands beside a chart


@dataclass(frozen=True)
class _Figure:
    """A chart in its place on the page."""

    key: str  # id of its element, stem of its file
    title: str
    spec: Spec
    is_curve: bool = False  # follows the controls of the page
    loggable: bool = False


def render(
    histories: Sequence[History],
    out: Path,
    *,
    title: str = "sojourn report",
    figures: Sequence[str] = (),
    sections: Sequence[Section] = (),
    lead: str = "",
    verdict: str = "",
) -> Path:
    """Write `report.html` into the folder `out` (or to `out` itself if it ends in .html) and return its path.

    `figures` names formats ("png", "svg", "pdf") in which every chart is also written beside the page. With a `lead`,
    the page is about its sections: they come first, under that sentence and the `verdict`, and runs need not be given.
    """
    for form in figures:
        if form not in figure.FORMATS:  # before anything is written
            raise unknown_name("figures", form, figure.FORMATS)
    path = Path(out) if Path(out).suffix == ".html" else Path(out) / "report.html"
    runs = split(histories) if histories or not lead else []
    shown = shown_runs(runs)
    curves, vectors, sweeps = (_curves(shown), _vectors(shown), _sweeps(runs)) if runs else ([], [], [])
    labels = [_Figure(f"labels-{i}", title, spec) for i, (title, spec) in enumerate(label_charts(histories))]
    times = [_Figure(f"time-{i}", title, spec) for i, (title, spec) in enumerate(time_charts(histories))]
    theory, broken = section_html(shown, metrics_of(shown)) if runs else ("", [])
    own = [*_theory(theory, broken), *_guards(shown), *_tuning(shown), *_beginnings(histories)]
    extra = [_section(number, section) for number, section in enumerate([*own, *sections])]
    charts = [*curves, *vectors, *sweeps, *labels, *times, *(entry["figure"] for entry in extra if entry["figure"])]
    html = template("report", "page.html.jinja").render(
        style=markupsafe.Markup(style()),
        title=title,
        summary=_summary(runs) if runs else "",
        lead=lead,
        verdict=verdict,
        lists=_tables(runs, shown) if runs else None,
        strokes=figure.strokes(shown),
        band_text=figure.band_text(shown),
        any_diverged=any(run.diverged for run in shown),
        curves=curves,
        vectors=vectors,
        sweeps=sweeps,
        labels=labels,
        times=times,
        time_table=markupsafe.Markup(time_html(histories)),
        sections=extra,
        differences=_differences(histories),
        origins=_origins(histories),
        axes=figure.x_axes(shown),
        data=json_block({"axes": figure.x_axes(shown), "charts": [_for_browser(chart) for chart in charts]}),
        bundle=markupsafe.Markup(bundle()),
    )
    figure.write_figures({chart.key: (chart.title, chart.spec) for chart in charts}, path.parent, figures)
    write_atomically(path, lambda beside: beside.write_bytes(html.encode()))
    return path


def _theory(table_html: str, broken: Sequence[str]) -> list[Section]:
    """What theory promised of the runs; a promise that was broken is said first."""
    if not table_html:
        return []
    flag = f"Above a bound that should hold: {', '.join(broken)}. " if broken else ""
    return [Section("Predicted and measured", table_html, flag + overlay_note())]


def _guards(shown: Sequence[Run]) -> list[Section]:
    """What stood around the methods, and what that promises."""
    made = guards_html(shown)
    return [Section("Guards and privacy", made, guards_note(shown))] if made else []


def _tuning(shown: Sequence[Run]) -> list[Section]:
    """What self-tuned runs decided."""
    made = tuning_html(shown)
    note = "A round is played with the numbers that were decided after the one before it."
    return [Section("What the runs tuned", made, note)] if made else []


def _beginnings(histories: Sequence[History]) -> list[Section]:
    """What happened before the first round, and what happens before every one."""
    made, dealt = start_html(histories), redeal_note(histories)
    note = "Numbers are over all clients. A start is certified only where the corrected conditions of its theorem hold."
    return [
        *([Section("The start, made with the clients", made, note)] if made else []),
        *([Section("How samples change hands", f"<p>{dealt}</p>")] if dealt else []),
    ]


def _curves(shown: Sequence[Run]) -> list[_Figure]:
    drawn = figure.strokes(shown)
    found = []
    for metric in metrics_of(shown):
        spec = None if metric == "tuning_reason" else figure.curve_spec(shown, metric, drawn)  # a code: told in words
        if spec is not None:
            positive = any(row["value"] > 0 for row in spec["data"]["values"])
            loggable = positive and not higher_is_better(metric)
            found.append(_Figure(f"curve-{metric}", metric_title(metric), spec, is_curve=True, loggable=loggable))
    return found


def _vectors(shown: Sequence[Run]) -> list[_Figure]:
    return [_Figure(f"vector-{number}", title, spec) for number, (title, spec) in enumerate(vector_charts(shown))]


def _sweeps(runs: Sequence[Run]) -> list[_Figure]:
    charts = sweep_charts(runs, main_metric(runs))
    return [_Figure(f"sweep-{number}", title, spec) for number, (title, spec) in enumerate(charts)]


def _section(number: int, section: Section) -> dict[str, Any]:
    if isinstance(section.body, str):
        html = markupsafe.Markup(section.body)
        return {"title": section.title, "note": section.note, "html": html, "figure": None, "aside": ""}
    spec = dict(section.body) if isinstance(section.body, Mapping) else section.body.to_dict()
    chart = _Figure(f"section-{number}", section.title, spec)
    aside = markupsafe.Markup(section.aside)
    return {"title": section.title, "note": section.note, "html": "", "figure": chart, "aside": aside}


def _summary(runs: Sequence[Run]) -> str:
    """One line: what was compared, for how long, who won, who fell."""
    labels = list(dict.fromkeys(run.label for run in runs))
    named = [*labels[:5], f"{len(labels) - 5} more"] if len(labels) > 6 else labels
    what = f"{len(runs)} settings" if len(runs) > len(labels) else f"{len(runs)} runs"
    rounds = max(int(run.frame["round"].max()) for run in runs)
    start = f"{labels[0]}, {rounds} rounds." if len(runs) == 1 else f"{what}, {rounds} rounds: {_listed(named)}."
    metric = main_metric(runs)
    order = ranked(runs, metric)
    title = metric_title(metric)[0].lower() + metric_title(metric)[1:]
    parts = [start]
    if order and len(runs) == 1:
        parts.append(f"Final {title}: {metric_value(metric, order[0].final(metric))}.")
    elif order:
        # second is the best of another method: the next setting of the same sweep is no rival
        rivals = [run for run in order[1:] if run.label != order[0].label][:1]
        places = [f"{run.name} with {metric_value(metric, run.final(metric))}" for run in [order[0], *rivals]]
        word = "Highest" if higher_is_better(metric) else "Lowest"
        tied = len(places) == 2 and places[0].rsplit(" with ", 1)[1] == places[1].rsplit(" with ", 1)[1]
        parts.append(f"{word} final {title}: {(', level with ' if tied else ', ahead of ').join(places)}.")
    lost = [run for run in runs if run.diverged]
    if len(lost) > 3 or any(run.setting for run in lost):
        parts.append(f"{len(lost)} of {len(runs)} diverged.")
    elif lost:
        parts.append(f"Diverged: {_listed([run.name for run in lost])}.")
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _tables(runs: Sequence[Run], shown: Sequence[Run]) -> dict[str, Any]:
    """The rows of the main table, and of one with every setting where the main one leaves some out."""
    metrics = table.table_metrics(runs)
    colors = {stroke.name: stroke for stroke in figure.strokes(shown)}
    order = ranked(runs, metrics[0])
    rest = [*order, *[run for run in runs if run not in order]] if len(runs) > len(shown) else []
    headings = [metric_title(metric) for metric in metrics]
    main, every = _rows(shown, metrics, colors), _rows(rest, metrics, colors)
    told = {"compiled": any(run.compile_seconds for run in runs), "clocks": table.has_clocks(runs)}
    return {"headings": headings, "main": main, "every": every, **told}


def _rows(runs: Sequence[Run], metrics: Sequence[str], colors: Mapping[str, figure.Stroke]) -> list[dict[str, Any]]:
    best = {metric: next(iter(ranked(runs, metric)), None) for metric in metrics}
    rows = []
    for run in runs:
        cells = []
        for metric in metrics:
            value, at = run.best(metric)
            text = f"best {metric_value(metric, value)} at {at}" if at >= 0 else ""
            won = len(runs) > 1 and run is best[metric]
            cells.append({"final": metric_value(metric, run.final(metric)), "best": text, "won": won})
        rows.append(
            {
                "name": run.name,
                "stroke": colors.get(run.name),
                "status": run.status,
                "seeds": f"{run.lost_seeds} of {run.num_seeds} seeds" if run.diverged else f"{run.num_seeds} seeds",
                "several": run.num_seeds > 1,
                "rounds": int(run.frame["round"].max()),
                "cells": cells,
                "costs": [si(run.total(name)) for name in ("floats", "calls", "local_steps")],
                "seconds": duration(run.total("seconds")),
                "virtual": duration(run.total("virtual_seconds")),
                "compile": duration(run.compile_seconds),
            }
        )
    return rows


def _origins(histories: Sequence[History]) -> list[dict[str, str]]:
    """How each run was made: a line of the most asked for, and the whole as text."""
    found = []
    for history in histories:
        manifest = history.manifest
        versions = manifest.get("versions") or {}
        first = [f"{key} {manifest[key]}" for key in ("seed", "device") if manifest.get(key) is not None]
        if manifest.get("commit"):
            first.append(f"commit {str(manifest['commit'])[:10]}")
        line = [*first, *(f"{name} {version}" for name, version in versions.items())]
        config = toml_text(history.config) if history.config else ""
        texts = {"line": " · ".join(line), "config": config, "manifest": toml_text(_for_reading(manifest))}
        found.append({"label": history.label or "run", **texts})
    return found


def _for_reading(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Without the table of labels, which is drawn."""
    return {key: value for key, value in manifest.items() if key != LABELS}


def _differences(histories: Sequence[History]) -> dict[str, Any] | None:
    """The settings in which the runs differ, one column per run; None where there is nothing to compare."""
    flat = [(history.label or "run", _flatten(history.config)) for history in histories if history.config]
    keys = list(dict.fromkeys(key for _, values in flat for key in values))
    rows = []
    for key in keys:
        values = [_toml_value(entries[key]) if key in entries else NONE for _, entries in flat]
        if len(set(values)) > 1:
            rows.append({"key": key, "values": values})
    if not rows or len(rows) > MAX_DIFFERENCES:
        return None
    return {"labels": [label for label, _ in flat], "rows": rows}


def toml_text(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Nested tables as TOML-like text: for reading, not for parsing back. What is unset is a comment."""
    lines = []
    for key, value in tables.items():
        if value is None:
            lines.append(f"# {key} is not set")
        elif not isinstance(value, Mapping):
            lines.append(f"{key} = {_toml_value(value)}")
    blocks = ["\n".join(lines)] if lines else []
    for key, value in tables.items():
        if isinstance(value, Mapping):
            body = toml_text(value, f"{prefix}{key}.")
            plain = any(not isinstance(entry, Mapping) for entry in value.values()) or not value
            blocks.append(f"[{prefix}{key}]\n{body}".rstrip() if plain else body)
    return "\n\n".join(blocks)


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _toml_value(value: Any) -> str:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {_toml_value(entry)}' for key, entry in value.items())}}}"
    return str(value)


def _for_browser(chart: _Figure) -> dict[str, Any]:
    spec = {key: value for key, value in chart.spec.items() if key != "$schema"}  # no address on the page
    # a chart from elsewhere gets the looks of the page, also when that is dark
    spec.setdefault("background", "transparent")
    spec["config"] = {**CONFIG, "text": {"color": "currentColor"}, **spec.get("config", {})}
    return {"id": chart.key, "curve": chart.is_curve, "loggable": chart.loggable, "spec": spec}
