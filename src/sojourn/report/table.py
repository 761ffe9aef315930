"""Numbers in words, and runs as a table: for pandas, for the terminal, and rows for the page."""

import math
from collections.abc import Sequence

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sojourn.report.runs import History, Run, higher_is_better, main_metric, metric_title, metrics_of, ranked, split

SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
TABLE_METRICS = 3  # more do not fit on a laptop beside the costs
NONE = "–"


def number(value: float, digits: int = 4) -> str:
    """Four significant digits: 0.01235, 1.5e−7, 1235."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else ("∞" if value > 0 else "−∞")
    text = f"{value:.{digits}g}"
    if "e+" in text and abs(value) < 1e6:  # 12345 rather than 1.235e+04
        return f"{value:.0f}"
    return text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-").replace("-", "−")


def si(value: float) -> str:
    """Three significant digits with a suffix: 12.3 M. Whole numbers below 1000 stay as they are."""
    if not math.isfinite(value):
        return number(value)
    for size, suffix in SI:
        # 999 600 rounds to 1.00 M, not to 1000 k
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled) * 1.0005)))}f} {suffix}"
    return f"{value:.0f}" if value == round(value) else number(value, 3)


def duration(seconds: float) -> str:
    """85 ms, 12.3 s, 4.1 min, 2.5 h."""
    if not math.isfinite(seconds):
        return NONE
    for size, unit in ((7200.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{number(seconds / (3600 if unit == 'h' else 60), 3)} {unit}"
    return f"{number(seconds, 3)} s" if seconds >= 1 or seconds == 0 else f"{number(seconds * 1e3, 3)} ms"


def metric_value(metric: str, value: float) -> str:
    """A metric as a reader expects it: accuracies in per cent."""
    if higher_is_better(metric) and math.isfinite(value) and abs(value) <= 1:
        return f"{100 * value:.2f} %"
    return number(value)


def table_metrics(runs: Sequence[Run]) -> list[str]:
    """The metrics that get a column: the deciding one first."""
    first = main_metric(runs)
    return [first, *[metric for metric in metrics_of(runs) if metric != first]][:TABLE_METRICS]


def has_clocks(runs: Sequence[Run]) -> bool:
    """Whether runs took virtual time, which then gets a column."""
    return any(run.total("virtual_seconds") > 0 for run in runs)


def has_privacy(runs: Sequence[Run]) -> bool:
    """Whether a run was private, and epsilon gets a column."""
    return any("privacy" in run.entry for run in runs)


def epsilon_text(run: Run) -> str:
    """What a private run gave away: 3.214 at 1e−5."""
    spent = run.entry.get("privacy")
    return NONE if spent is None else f"{number(spent['epsilon'])} at {number(spent['delta'])}"


def summary_frame(histories: Sequence[History]) -> pd.DataFrame:
    """One row per run (per setting of a sweep) with raw numbers; `final_…` and `best_…` per metric, totals of costs.

    Over seeds: metrics are those of the median curve, costs are medians.
    """
    return runs_frame(split(histories))


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """`summary_frame` for runs already split."""
    rows = []
    for run in runs:
        row: dict[str, object] = {"label": run.name, "status": run.status, "seeds": run.num_seeds, **run.setting}
        row["rounds"] = int(run.frame["round"].max())
        for metric in metrics_of(runs):
            best, at = run.best(metric)
            row |= {f"final_{metric}": run.final(metric), f"best_{metric}": best, f"best_round_{metric}": at}
        if "privacy" in run.entry:
            row |= {name: run.entry["privacy"][name] for name in ("epsilon", "delta")}
        row |= {name: run.total(name) for name in ("floats", "calls", "local_steps", "seconds")}
        rows.append(row | {"compile_seconds": run.compile_seconds})
    return pd.DataFrame(rows)


def status_text(run: Run) -> str:
    """The status, with the number of lost seeds where there are several."""
    several = run.diverged and run.lost_seeds and run.num_seeds > 1
    return f"{run.status} ({run.lost_seeds} of {run.num_seeds} seeds)" if several else run.status


def rich_table(histories: Sequence[History], width: int = 80) -> Table:
    """The table for a terminal of this width; the best final value is bold, diverged runs are red.

    Metrics beyond the deciding one give way until every number and name stands whole: half a number misleads.
    """
    runs = split(histories)
    metrics = table_metrics(runs)
    tables = [_rich_table(runs, metrics[:number]) for number in range(len(metrics), 0, -1)]
    console = Console(width=10_000)
    return next((table for table in tables if console.measure(table).maximum <= width), tables[-1])


def _rich_table(runs: Sequence[Run], shown: Sequence[str]) -> Table:
    best = {metric: next(iter(ranked(runs, metric)), None) for metric in shown}
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")  # the only column that may break
    table.add_column("status", no_wrap=True)
    titles = [metric_title(metric).lower().replace(" ", "\n") for metric in shown]
    virtual = ["virtual\ntime"] * has_clocks(runs)
    private = ["epsilon\nat delta"] * has_privacy(runs)
    for heading in ["rounds", *titles, *private, "floats\nsent", "oracle\ncalls", *virtual, "time"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        finals = [
            Text(metric_value(metric, run.final(metric)), style="bold" if run is best[metric] and len(runs) > 1 else "")
            for metric in shown
        ]
        times = [run.total("virtual_seconds")] * len(virtual) + [run.total("seconds")]
        costs = [si(run.total("floats")), si(run.total("calls")), *map(duration, times)]
        # Text, not str: a label such as "[red]" is a label, not markup
        cells = [Text(run.name), Text(status_text(run)), Text(str(int(run.frame["round"].max()))), *finals]
        table.add_row(*cells, *([epsilon_text(run)] if private else []), *costs, style="red" if run.diverged else None)
    return table
