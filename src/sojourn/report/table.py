"""Runs as a table: for pandas, for the terminal, and rows for the page."""

from collections.abc import Sequence

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sojourn.looks.words import NONE, duration, metric_title, metric_value, number, si
from sojourn.report.runs import History, Run, main_metric, metrics_of, ranked, split

TABLE_METRICS = 3  # more do not fit on a laptop beside the costs


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
