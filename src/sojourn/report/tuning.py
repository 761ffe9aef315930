"""What self-tuned runs decided, round by round, and why. A section of the page."""

from collections.abc import Sequence

import markupsafe

from sojourn.history import decisions_in
from sojourn.report.runs import Run

_SHOWN = 40  # decisions of a run; the table of the run has them all


def tuning_html(runs: Sequence[Run]) -> str:
    """A list of decisions for every self-tuned run, of its first seed; "" where there is none."""
    parts = []
    for run in runs:
        if run.entry.get("algorithm", {}).get("class") != "SelfTuned":
            continue
        frame = run.frame
        if "seed" in frame:
            frame = frame[frame["seed"] == frame["seed"].iloc[0]]
        told = decisions_in(frame)
        rows = [f"<li>{markupsafe.escape(line)}</li>" for line in told[:_SHOWN]]
        rest = f"<p>and {len(told) - _SHOWN} more</p>" if len(told) > _SHOWN else ""
        body = f"<ol>{''.join(rows)}</ol>{rest}" if rows else "<p>nothing was changed</p>"
        parts.append(f"<h3>{markupsafe.escape(run.name)}</h3>{body}")
    return "".join(parts)
