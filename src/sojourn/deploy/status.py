"""How a run stands: the server's snapshot on disk, in words, and for the terminal.

A snapshot is a plain dictionary of `FORMAT`: `run`, `metrics`, `workers`, `staleness`, `throughput` and counts. What it
says is put into words here once, for the terminal and for the status page. Names and remarks came over the network:
characters that could steer a terminal or turn the direction of the text are replaced.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically
from sojourn.looks.words import METRIC_TITLES, NONE, duration, metric_title, metric_value, number

STATUS_FILE, FORMAT = "status.json", 1
ENDED = frozenset({"over", "stopped", "diverged"})  # of a run that the server is through with
QUIET_AFTER = 10.0  # seconds after which a server that writes every second is not running
_MAX_TEXT = 160  # characters of a remark
_MAX_METRICS = 3
_RECENT_SECONDS = 60.0
_STATUSES = {
    "waiting": "Waiting", "running": "Running", "over": "The run is over", "stopped": "The run was stopped",
    "diverged": "The run diverged",
}  # fmt: skip
_COLUMNS = {"doing": "doing", "span": "for", "applied": "applied", "rejected": "rejected", "staleness": "stale"}
_COLORS = {
    "working": "green", "silent": "yellow", "quarantined": "red", "revoked": "red", "diverged": "red",
    "stopped": "yellow",
}  # fmt: skip


def write_status(run_dir: Path, snapshot: Mapping[str, Any]) -> None:
    content = json.dumps(finite(snapshot), allow_nan=False)
    write_atomically(run_dir / STATUS_FILE, lambda beside: beside.write_text(content, encoding="utf-8"))


def read_status(run_dir: Path) -> dict[str, Any]:
    """The last snapshot of the run in this directory."""
    path = run_dir / STATUS_FILE
    if not run_dir.is_dir():
        raise SojournError(f"there is no run in {run_dir}: no such directory.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SojournError(f"{run_dir} holds no run of a server; `sojourn serve` starts one.") from None
    except OSError as error:
        raise SojournError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError:
        raise _damaged(path) from None
    if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
        raise SojournError(f"{path} was written by a newer sojourn; use that one to read it.")
    try:
        if found["format"] != FORMAT:
            raise ValueError
        describe(found)  # all that will be shown can be shown
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise _damaged(path) from None
    return dict(found)


def _damaged(path: Path) -> SojournError:
    return SojournError(f"{path} is damaged; a server that runs writes it anew within a second.")


def finite(value: Any) -> Any:
    """The same with null for what JSON cannot say: a loss that is not a number."""
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- in words --------------------------------------------------------------------------------------------------------


def describe(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot in words: headings, facts as (name, value), and a row for every worker."""
    run = snapshot["run"]
    phase = printable(run["phase"])
    status = _STATUSES[run["status"]]
    return {
        "label": printable(run["label"]),
        "method": f"{printable(run['algorithm'])}, {'in rounds' if run['mode'] == 'rounds' else run['mode']}",
        "status": run["status"],
        "banner": f"{status}: {phase}" if phase else f"{status}.",
        "progress": f"{int(run['done']):,} of {int(run['of']):,} {run['unit']}",
        "share": min(1.0, run["done"] / max(1, run["of"])),
        "metrics": _last_metrics(snapshot),
        "facts": _facts(snapshot),
        "counts": [[name, f"{int(snapshot[key]):,}"] for name, key in _COUNTS],
        "workers": [_worker(worker, run["now"]) for worker in snapshot["workers"]],
    }


_COUNTS = (("Rejected", "rejected"), ("Duplicates", "duplicates"), ("Given up", "given_up"))


def _facts(snapshot: Mapping[str, Any]) -> list[list[str]]:
    """The same ones from the start, so that nothing moves when the first numbers come."""
    run, queue, privacy = snapshot["run"], snapshot["queue"], snapshot["privacy"]
    facts = [
        ["Version", f"{int(run['version']):,}"],
        ["Time", duration(_whole(run["now"] - run["started"]))],
        ["Uploads per second", number(_rate(snapshot["throughput"]), 3)],
    ]
    if run["mode"] != "rounds":
        facts.append(["Staleness", _staleness(snapshot["staleness"])])
    if queue is not None:
        facts.append(["Queue", f"{int(queue):,}"])
    if privacy is not None:
        facts.append(["Privacy", f"ε = {number(_number(privacy['epsilon']), 3)}, δ = {number(privacy['delta'], 2)}"])
    return facts


def _rate(throughput: Sequence[Sequence[float]]) -> float:
    """Of the last minute, or of the last stretch of time if that is longer; one stretch of a short run may be empty."""
    recent = [rate for seconds, rate in throughput if seconds > throughput[-1][0] - _RECENT_SECONDS]
    return sum(recent) / len(recent) if recent else float("nan")


def _staleness(counts: Sequence[Sequence[int]]) -> str:
    """The mean over uploads, and the most."""
    total = sum(count for _, count in counts)
    if not total:
        return NONE
    mean = sum(late * count for late, count in counts) / total
    return f"{number(mean, 3)} (≤ {max(late for late, count in counts if count)})"


def _last_metrics(snapshot: Mapping[str, Any]) -> list[list[str]]:
    if not snapshot["metrics"]:
        return []
    last = snapshot["metrics"][-1]
    known = [name for name in ("loss", *METRIC_TITLES) if name in last]
    names = list(dict.fromkeys([*known, *sorted(set(last) - {"done", "seconds"})]))[:_MAX_METRICS]
    return [[metric_title(name), metric_value(name, _number(last[name]))] for name in names]


def _worker(worker: Mapping[str, Any], now: float) -> dict[str, str]:
    """What a worker is doing, and for how long, on the server's clock."""
    state, task = worker["state"], worker["task"]
    doing = {
        "working": "working" if task is None else f"task {task}", "idle": "idle", "silent": "silent",
        "quarantined": "asked no more", "revoked": "revoked", "expected": "not here yet",
    }[state]  # fmt: skip
    since = worker["seen"] if state == "silent" else worker["since"]
    return {
        "name": printable(worker["name"]), "client": str(int(worker["client"])), "state": state, "doing": doing,
        "span": NONE if since is None else duration(_whole(now - since)), "applied": f"{int(worker['applied']):,}",
        "rejected": f"{int(worker['rejected']):,}", "last": printable(worker["last"]) or NONE,
        "staleness": NONE if worker["staleness"] is None else str(int(worker["staleness"])),
    }  # fmt: skip


def printable(text: Any) -> str:
    """Text that only says something: what steers a terminal, or is not to be seen, is a dot, and long text is cut."""
    shown = "".join(character if character.isprintable() else "·" for character in str(text or ""))
    return shown if len(shown) <= _MAX_TEXT else shown[: _MAX_TEXT - 1] + "…"


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _whole(seconds: float) -> float:
    """Whole seconds, which do not flicker; clocks may differ by a little."""
    return float(max(0, round(seconds)))


# --- for the terminal ------------------------------------------------------------------------------------------------


def status_renderable(snapshot: Mapping[str, Any], now: float | None = None) -> RenderableType:
    """The snapshot for a terminal of any width from 80 columns up; `now` tells whether the server still writes."""
    words = describe(snapshot)
    parts: list[RenderableType] = [
        Text.assemble((words["label"], "bold"), f"  {words['method']}", overflow="fold"),
        Text(words["banner"], style=_COLORS.get(words["status"], "")),
    ]
    silence = (time.time() if now is None else now) - snapshot["run"]["now"]
    if silence > QUIET_AFTER and words["status"] not in ENDED:
        heard = f"The server is not running: last heard of {duration(_whole(silence))} ago."
        parts.append(Text(heard, style="bold yellow"))
    bar = Table.grid(padding=(0, 2, 0, 0))
    bar.add_row(ProgressBar(total=1.0, completed=words["share"], width=32), Text(words["progress"]))
    lines = [words["facts"], words["metrics"], words["counts"]]
    parts += [Text(), bar, *(_line(facts) for facts in lines if facts)]
    if words["workers"]:
        parts += [Text(), _workers_table(words["workers"])]
    else:
        parts.append(Text("\nNo worker is expected.", style="dim"))
    return Group(*parts)


def _line(facts: list[list[str]]) -> RenderableType:
    """Facts beside each other; where the terminal is too narrow the line breaks between them."""
    return Columns([Text.assemble((f"{name.lower()} ", "dim"), value) for name, value in facts], padding=(0, 3))


def _workers_table(workers: list[dict[str, str]]) -> Table:
    """Half a number misleads, so on a narrow terminal only long names and remarks give way."""
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("worker", overflow="fold")
    for key, heading in _COLUMNS.items():
        table.add_column(heading, justify="left" if key == "doing" else "right", no_wrap=True)
    table.add_column("last", overflow="fold")
    for row in workers:
        # Text, not str: a name such as "[red]" is a name, not markup
        cells = [row[key] for key in ("name", *_COLUMNS, "last")]
        table.add_row(*map(Text, cells), style=_COLORS.get(row["state"], "dim"))
    return table
