"""What stood around the methods: how answers were combined and clipped, what was given away. A section of the page."""

from collections.abc import Sequence

import markupsafe
import numpy as np

from sojourn.looks.words import NONE, number
from sojourn.report.runs import Run
from sojourn.report.table import epsilon_text

_COLUMNS = ("Combined by", "Clip", "Answers clipped", "Noise multiplier", "Epsilon at delta")


def guards_html(runs: Sequence[Run]) -> str:
    """A table of the guarded runs; "" where there are none."""
    guarded = [run for run in runs if run.entry.get("algorithm", {}).get("class") == "Guarded"]
    if not guarded:
        return ""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return (
        f'<div class="scroll"><table><thead><tr><th>Run</th>{head}</tr></thead>'
        f"<tbody>{''.join(map(_row, guarded))}</tbody></table></div>"
    )


def guards_note(runs: Sequence[Run]) -> str:
    """What epsilon is about, as the manifests say it."""
    private = [run.entry["privacy"] for run in runs if "privacy" in run.entry]
    told = [f"Neighbours: {spent['neighbours']}. Epsilon covers {spent['covers']}" for spent in private]
    return " ".join(dict.fromkeys(told))


def _row(run: Run) -> str:
    guard = run.entry["algorithm"]
    options = ", ".join(f"{key} = {guard[key]}" for key in ("trim", "attackers", "keep") if key in guard)
    combined = guard["aggregator"] + (f" ({options})" if options else "")
    shown = [number(guard[key]) if key in guard else NONE for key in ("clip", "noise_multiplier")]
    cells = [combined, shown[0], _share_clipped(run), shown[1], epsilon_text(run)]
    body = "".join(f"<td>{markupsafe.escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{markupsafe.escape(run.name)}</th>{body}</tr>'


def _share_clipped(run: Run) -> str:
    """Of all answers, over rounds and seeds; one share for each exchange."""
    columns = [name for name in run.metrics if name == "clipped" or name.startswith("clipped_")]
    means = {name: float(np.nanmean(run.frame[name].to_numpy(float))) for name in columns}
    told = [f"{name.removeprefix('clipped').strip('_')} {100 * mean:.3g} %".strip() for name, mean in means.items()]
    return ", ".join(told) or NONE
