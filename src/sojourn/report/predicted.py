"""Predicted beside measured: the bounds of theory that apply to a run, and whether what was measured respects them.

A bound speaks of a mean over the noise, of the square of the column where its statement says so. With exact gradients a
single run must stay below it. With noise it takes several seeds to say anything of a mean: a run is flagged when its
mean over the seeds, less four standard errors, lies above the bound; one or two seeds are flagged only far above it.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import markupsafe
import numpy as np

from sojourn.core.facts import Facts
from sojourn.looks.words import metric_title, number
from sojourn.report.runs import Run
from sojourn.theory.forecast import Forecast, forecasts

_FEW_SEEDS = 5  # below this many a mean is not judged
_FAR = 1000.0  # times the bound on a mean: by Markov's inequality one run in a thousand
_ROUND_OFF = 1e-4  # relative: measured in float32
_TARGETS = (0.1, 0.01, 0.001)  # of the start


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What theory says of one column of one run, and how it fared."""

    run: Run
    bounds: Sequence[Forecast]  # the tightest first
    violated_at: int | None  # the first round at which the measured lies above the tightest bound
    judged: bool  # whether the seeds suffice to tell

    @property
    def tightest(self) -> Forecast:
        return self.bounds[0]


def predictions(runs: Sequence[Run], column: str) -> dict[str, Prediction]:
    """By the run's name, for the runs of which theory says something about the column."""
    found = {run.name: _predict(run, column) for run in runs if column in run.metrics}
    return {name: prediction for name, prediction in found.items() if prediction is not None}


def floors(runs: Sequence[Run], column: str) -> dict[str, float]:
    """By the run's name, how far from x* the fixed point of its local steps lies."""
    if column != "distance":
        return {}
    found = {run.name: _described(run).get("fixed_point_bias") for run in runs}
    return {name: float(bias) for name, bias in found.items() if bias is not None}


def _predict(run: Run, column: str) -> Prediction | None:
    curve = run.curve(column)
    manifest = run.manifest
    whole = manifest.get("cohort") == manifest.get("num_clients") and manifest.get("equal_weights", False)
    if not whole or not len(curve) or not manifest.get("facts"):
        return None
    names = {field.name for field in dataclasses.fields(Facts)}
    facts = Facts(**{key: value for key, value in manifest["facts"].items() if key in names})
    bounds = [f for f in forecasts(facts, _described(run), curve["round"].to_numpy()) if f.column == column]
    if not bounds:
        return None
    exact = facts.noise == 0
    at = _above(run, column, bounds[0], exact)
    return Prediction(run, bounds, at, exact or run.num_seeds >= _FEW_SEEDS)


def _described(run: Run) -> Mapping[str, Any]:
    """The run's algorithm, its options and landmarks, as theory takes them."""
    return {**run.entry.get("algorithm", {}), **run.entry.get("landmarks", {})}


def _above(run: Run, column: str, forecast: Forecast, exact: bool) -> int | None:
    """The first round at which the measured lies above the bound for certain."""
    power = 2 if forecast.squared else 1
    grid = run.frame.pivot(index="round", columns="seed", values=column).loc[forecast.rounds.astype(int)]
    values = grid.to_numpy(float) ** power
    bound = forecast.bound**power
    mean = values.mean(axis=1)
    if exact:
        slack = _ROUND_OFF * (bound + mean[0])
        over = values.max(axis=1) > bound + slack
    elif values.shape[1] >= _FEW_SEEDS:
        error = values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
        over = mean - 4 * error > bound * (1 + _ROUND_OFF)
    else:
        over = values.max(axis=1) > _FAR * bound
    where = np.flatnonzero(over & np.isfinite(bound))
    return int(forecast.rounds[where[0]]) if len(where) else None


def section_html(runs: Sequence[Run], columns: Sequence[str]) -> tuple[str, list[str]]:
    """The table of predictions, and the names of the runs that lie above a bound; ("", []) where nothing applies."""
    rows, broken = [], []
    for column in columns:
        ends = floors(runs, column)
        for name, prediction in predictions(runs, column).items():
            rows.append(_row(name, column, prediction, ends.get(name)))
            if prediction.violated_at is not None:
                broken.append(name)
    if not rows:
        return "", []
    head = (
        '<div class="scroll"><table><thead><tr><th>Run</th><th class="left">Bound respected</th>'
        '<th class="left">Tightest bound</th>'
        "<th>Measured<small>at the end</small></th><th>Bound<small>at the end</small></th>"
        "<th>Fixed point<small>distance to x*</small></th>"
        '<th class="left">Rounds to a share of the start<small>measured, promised</small></th></tr></thead><tbody>'
    )
    return head + "".join(rows) + "</tbody></table></div>", list(dict.fromkeys(broken))


def _row(name: str, column: str, prediction: Prediction, floor: float | None) -> str:
    run, bound = prediction.run, prediction.tightest
    others = ", ".join(dict.fromkeys(f.source for f in prediction.bounds[1:]))
    also = f"<small>also {markupsafe.escape(others)}</small>" if others else ""
    if prediction.violated_at is not None:
        verdict, mark = f"above the bound from round {prediction.violated_at} on", ' class="diverged"'
    else:
        verdict, mark = (
            ("yes" if prediction.judged else f"not decided<small>needs {_FEW_SEEDS} seeds</small>"),
            "",
        )
    cells = [
        f"<td>{number(run.final(column))}</td><td>{number(float(bound.bound[-1]))}</td>",
        f"<td>{'–' if floor is None else number(floor)}</td>",
        f'<td class="left">{_rounds_text(run, column, bound)}</td>',
    ]
    first = f'<th scope="row">{markupsafe.escape(name)}<br><small class="soft">{metric_title(column)}</small></th>'
    source = f'<td class="left wrap">{markupsafe.escape(bound.source)}{also}</td>'
    return f'<tr{mark}>{first}<td class="left">{verdict}</td>{source}{"".join(cells)}</tr>'


def _rounds_text(run: Run, column: str, bound: Forecast) -> str:
    """When a tenth, a hundredth, a thousandth of the start was reached, and by when it is promised."""
    curve = run.curve(column)
    start = float(curve["value"].iloc[0])
    lines = []
    for share, promised in zip(_TARGETS, bound.first_below([share * start for share in _TARGETS]), strict=True):
        reached = curve.loc[curve["value"] <= share * start, "round"]
        if len(reached):
            told = f"at most {promised:,}" if promised is not None else "not within ten times the run"
            lines.append(f"{share:g} after {int(reached.iloc[0])}, {told}")
    return "<br>".join(lines) or "–"


@functools.cache
def overlay_note() -> str:
    return (
        "Dashed lines are upper bounds of theory on the mean, dotted lines the distance of the fixed point of local "
        "steps to x*."
    )
