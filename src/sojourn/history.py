"""What a run leaves behind: one table (round by column), one manifest, the answer; in memory and in a directory."""

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from sojourn.algorithms.tuner import in_words
from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically
from sojourn.core.oracle import KINDS
from sojourn.diagnostics.round_probes import ROUND_PROBES
from sojourn.engine.accounting import COLUMNS as WIRE_COLUMNS
from sojourn.engine.accounting import Wire
from sojourn.engine.rounds import Rows

STATE_FILE, TABLE_FILE, MANIFEST_FILE, CONFIG_FILE = "state.npz", "history.parquet", "manifest.json", "config.toml"
TRACE_FILE = "trace.parquet"

LABELS = "labels_per_client"  # in the manifest
_MAX_LABEL_CELLS = 20_000  # of the table of labels per client that a manifest carries

_DECIDED = ["round", "tuned_step_size", "tuned_local_steps", "tuning_reason", "consensus_slope", "drift_ratio"]
_CALL_COLUMNS = tuple(
    kind if kind == "samples" else "local_steps" if kind == "steps" else f"calls_{kind}" for kind in KINDS
)


@dataclasses.dataclass
class History:
    """The record of a run, or of a sweep: then the table has columns for the setting and the seed."""

    table: pd.DataFrame
    manifest: dict[str, Any]
    params: Any = None  # the final model, in the user's own form; stacked over settings in a sweep
    label: str = ""
    config: dict[str, Any] | None = None
    trace: pd.DataFrame | None = None  # the tasks of an asynchronous run

    @property
    def status(self) -> str:
        """ "ok", "diverged" or "stopped"; of a sweep: "ok" unless it was stopped or every setting diverged."""
        return self.manifest["status"]

    def frame(self) -> pd.DataFrame:
        """The table: one row per round (0 is the start); counts are of that round alone, seconds too."""
        return self.table.copy()

    def last(self, column: str = "loss") -> float:
        """The last recorded value of a column."""
        values = self.table[column].dropna()
        return float(values.iloc[-1]) if len(values) else float("nan")

    def decisions(self) -> list[str]:
        """What a self-tuned run changed, round by round, and why; of a sweep setting by setting."""
        if "setting" not in self.table:
            return decisions_in(self.table)
        return [
            f"setting {number}, {line}" for number, rows in self.table.groupby("setting") for line in decisions_in(rows)
        ]

    def save(self, directory: Path) -> None:
        """Table, manifest and, of an asynchronous run, its tasks; each is replaced whole."""
        write_atomically(directory / TABLE_FILE, lambda path: self.table.to_parquet(path, index=False))
        if self.trace is not None:
            tasks = self.trace
            write_atomically(directory / TRACE_FILE, lambda path: tasks.to_parquet(path, index=False))
        text = json.dumps(self.manifest, indent=2)  # in its own order: a page of a run read back has the same bytes
        write_atomically(directory / MANIFEST_FILE, lambda path: path.write_text(text))


def decisions_in(table: pd.DataFrame) -> list[str]:
    """The decisions of one self-tuned run as sentences; none where the run tuned nothing."""
    if not set(_DECIDED) <= set(table.columns):
        return []
    numbers = table[_DECIDED].to_numpy(float)
    return [
        in_words(int(now[0]), (before[1], before[2]), (now[1], now[2]), round(now[3]), now[4], now[5])
        for before, now in itertools.pairwise(numbers)
        if now[3] > 0
    ]


def table_of(rows: Rows, wires: list[Wire], first_round: int, seconds: float) -> pd.DataFrame:
    """The table of a chunk of rows that are on the host already. A sweep's rows come setting by setting."""
    answers = np.asarray(rows.row.answers)  # (rounds, [settings,] exchanges)
    length, settings = answers.shape[0], answers.shape[1:-1]
    columns: dict[str, Any] = {}
    if settings:
        columns["setting"] = np.broadcast_to(np.arange(settings[0]), (length, *settings))
    grid = (length, *settings)
    rounds = np.arange(first_round, first_round + length).reshape(-1, *([1] * len(settings)))
    columns["round"] = np.broadcast_to(rounds, grid)
    columns["participants"] = answers.sum(-1)
    for name in WIRE_COLUMNS:
        columns[name] = answers.astype(np.int64) @ np.array([getattr(wire, name) for wire in wires], np.int64)
    for number, name in enumerate(_CALL_COLUMNS):
        columns[name] = np.asarray(rows.row.calls)[..., number].astype(np.int64)
    columns["seconds"] = np.full(grid, seconds / max(1, length))
    for name, value in {**rows.metrics, **rows.row.info}.items():
        columns |= _components(name, np.asarray(value, float), len(grid))
    columns["diverged"] = np.asarray(rows.row.diverged)
    return pd.DataFrame({name: np.moveaxis(value, 0, -1).reshape(-1) for name, value in columns.items()})


def _components(name: str, value: np.ndarray, axes: int) -> dict[str, np.ndarray]:
    """A value of every row under its name; a vector of every row as one column per component."""
    if value.ndim == axes:
        return {name: value}
    probe = ROUND_PROBES.get(name)
    first = 0 if probe is None else probe.first_component or 0
    return {f"{name}.{first + number}": value[..., number] for number in range(value.shape[-1])}


def first_rows(
    metrics: dict[str, Any], like_settings: tuple[int, ...], sent: Mapping[str, int] | None = None
) -> pd.DataFrame:
    """Round 0: the starting point; `sent` is what it took to make it, where clients had a part in that."""
    counts = {
        name: np.full(like_settings, (sent or {}).get(name, 0), np.int64)
        for name in ("round", "participants", *WIRE_COLUMNS, *_CALL_COLUMNS)
    }
    columns = {**counts, "seconds": np.zeros(like_settings), **metrics, "diverged": np.zeros(like_settings, bool)}
    if like_settings:
        columns = {"setting": np.arange(like_settings[0]), **columns}
    return pd.DataFrame({name: np.asarray(value).reshape(-1) for name, value in columns.items()})


def until_divergence(table: pd.DataFrame) -> pd.DataFrame:
    """Each setting's rows up to and including the first that diverged."""
    if "setting" not in table:
        gone = table["diverged"].cumsum() - table["diverged"]
    else:
        table = table.sort_values(["setting", "round"], kind="stable", ignore_index=True)
        gone = table.groupby("setting")["diverged"].cumsum() - table["diverged"]
    return table[gone == 0].reset_index(drop=True)


def labels_entry(counts: np.ndarray | None) -> dict[str, list[str]]:
    """A federation's labels per client as an entry of the manifest: a client is one line of counts, class by class."""
    if counts is None or counts.size > _MAX_LABEL_CELLS:
        return {}
    return {LABELS: [" ".join(map(str, row)) for row in counts.tolist()]}


@functools.cache
def environment() -> dict[str, Any]:
    """What a reader needs to repeat a run: versions, device, commit."""
    packages = ("sojourn", "jax", "jaxlib", "equinox", "optax", "numpy")
    device = jax.devices()[0]
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "device": f"{device.platform} ({getattr(device, 'device_kind', '')})",
        "machine": f"{platform.system()} {platform.machine()}",
        "commit": _commit(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """The commit of the source tree that is running, if it is one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def load_history(directory: Path | str) -> History:
    """A finished or unfinished run, read back from its directory; without the final model."""
    import tomllib

    directory = Path(directory)
    manifest_path, config_path = directory / MANIFEST_FILE, directory / CONFIG_FILE
    if not manifest_path.is_file():
        raise SojournError(
            f"{directory} holds no run: {MANIFEST_FILE} is missing; give a directory made by sojourn run."
        )
    try:
        manifest = json.loads(manifest_path.read_text())
        table = pd.read_parquet(directory / TABLE_FILE)
        config = tomllib.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else None
        trace = directory / TRACE_FILE
        tasks = pd.read_parquet(trace) if trace.is_file() else None
        if not {"label", "status"} <= set(manifest) or not {"round", "diverged"} <= set(table.columns):
            raise ValueError("its files are not those of a run")
    except Exception as error:  # any damage of any of the three files is the same sentence to a reader
        reason = " ".join(str(error).split())[:200]
        raise SojournError(f"the run in {directory} cannot be read: {type(error).__name__}: {reason}.") from error
    return History(table, manifest, label=manifest.get("label", directory.name), config=config, trace=tasks)


def read_table(path: Path, rounds: int) -> pd.DataFrame:
    """The saved rows up to the saved state's round."""
    try:
        table = pd.read_parquet(path)
    except Exception as error:
        raise SojournError(
            f"the table {path} cannot be read ({type(error).__name__}); it was left as it is: "
            "restore it from a copy, or start again in another --out."
        ) from error
    if not {"round", "seconds", "diverged"} <= set(table.columns):
        raise SojournError(f"the table {path} is not that of a run; restore it from a copy.")
    table = table[table["round"] <= rounds].reset_index(drop=True)
    if len(table) == 0 or (int(table["round"].max()) != rounds and not all_diverged(table)):
        raise SojournError(f"the table {path} ends before round {rounds} of the checkpoint; restore it from a copy.")
    return table


def all_diverged(table: pd.DataFrame) -> bool:
    """Whether every setting's last row has diverged."""
    settings = table["setting"] if "setting" in table else np.zeros(len(table))
    return bool(table.groupby(settings)["diverged"].last().all())


def read_manifest(path: Path) -> dict[str, Any]:
    """A kept manifest; one that is damaged is as good as none, since a run writes it anew."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
