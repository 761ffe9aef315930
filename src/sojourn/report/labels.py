"""Who holds which labels: one map, clients by classes, for every way in which the runs' data were dealt."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sojourn.history import LABELS
from sojourn.looks.charts import CONFIG, Spec
from sojourn.report.figure import records, tooltip
from sojourn.report.runs import History

MAX_COLUMNS = 200  # clients that a map shows; of more, evenly spaced ones


def label_charts(histories: Sequence[History]) -> list[tuple[str, Spec]]:
    """(title, specification) of a map for every different table of labels; runs on the same one share it."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for history in histories:
        counts = label_table(history.manifest)
        if counts is not None:
            owners.setdefault(tuple(history.manifest[LABELS]), []).append(history.label or "run")
    tables = {key: label_table({LABELS: list(key)}) for key in owners}
    return [
        (_title(owners[key] if len(tables) > 1 else [], len(counts)), label_spec(counts))
        for key, counts in tables.items()
        if counts is not None
    ]


def label_table(manifest: Mapping[str, Any]) -> np.ndarray | None:
    """The (clients, classes) counts of a manifest; None where it has none that can be read."""
    try:
        table = np.array([[int(number) for number in line.split()] for line in manifest.get(LABELS) or []])
    except (AttributeError, TypeError, ValueError):
        return None
    return table if table.ndim == 2 and table.size and table.min() >= 0 else None


def label_spec(counts: np.ndarray) -> Spec:
    """Samples of each class (rows) on each client (columns); darker is more, nothing is blank."""
    shown = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MAX_COLUMNS)).astype(int))
    client, label = np.meshgrid(shown, np.arange(counts.shape[1]), indexing="ij")
    rows = pd.DataFrame({"client": client.ravel(), "label": label.ravel(), "count": counts[shown].ravel()})
    rows = rows[rows["count"] > 0]
    tip = tooltip("'client ' + datum.client", {"class": "datum.label", "samples": "format(datum.count, ',')"})
    top = int(counts.max())
    ticks = [int(c) for c in shown] if len(shown) <= 30 else [int(c) for c in shown[:: -(-len(shown) // 20)]]
    return {
        "description": f"Samples of {counts.shape[1]} classes on {len(counts)} clients.",
        "data": {"values": records(rows)},
        "mark": {"type": "rect", "tooltip": tip},
        "encoding": {
            "x": {
                "field": "client", "type": "ordinal", "title": "Client",
                "scale": {"domain": [int(c) for c in shown], "paddingInner": 0.08 if len(shown) <= 60 else 0},
                "axis": {"labelAngle": 0, "values": ticks, "ticks": False, "domain": False},
            },
            "y": {
                "field": "label", "type": "ordinal", "title": "Class",
                "scale": {"domain": list(range(counts.shape[1])), "paddingInner": 0.08},
                "axis": {"ticks": False, "domain": False},
            },
            "color": {
                "field": "count", "type": "quantitative", "title": "Samples",
                "scale": {"scheme": "blues", "domain": [0, top]},
                "legend": {"format": ",~r", "gradientLength": 150, "tickCount": 4, "tickMinStep": 1},
            },
        },
        "width": "container",
        "height": int(np.clip(18 * counts.shape[1], 120, 400)),
        "config": CONFIG,
    }  # fmt: skip


def _title(owners: Sequence[str], num_clients: int) -> str:
    rest = "" if num_clients <= MAX_COLUMNS else f" ({MAX_COLUMNS} of {num_clients} clients)"
    named = [*owners[:3], f"{len(owners) - 3} more"] if len(owners) > 4 else owners
    return f"Samples by client and class{': ' + ', '.join(named) if named else ''}{rest}"
