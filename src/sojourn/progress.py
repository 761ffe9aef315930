"""A progress line for anything that takes longer than two seconds, on a terminal only."""

import sys
import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_PATIENCE_SECONDS = 2.0


class Display:
    """Shows how far a run is. Silent until it has lasted two seconds, and where nobody looks."""

    def __init__(
        self, label: str, total: int, enabled: bool | None = None, patience: float = _PATIENCE_SECONDS,
        words: str = "compiling",
    ) -> None:  # fmt: skip
        console = Console(stderr=True, force_terminal=enabled or None)  # rich shows nothing elsewhere
        self._enabled = console.is_terminal if enabled is None else enabled
        self._label, self._total, self._words = label, total, words
        self._since = time.monotonic()
        self._patience = patience
        self._bar: Progress | None = None
        self._console = console
        self._task: Any = None
        self._lock, self._closed = threading.Lock(), False
        # A run that compiles does not report: the clock opens the line then.
        self._timer = threading.Timer(patience, self._open)
        self._timer.daemon = True

    def update(self, done: int, metrics: dict[str, float], total: int | None = None) -> None:
        if not self._enabled:
            return
        if self._bar is None and time.monotonic() - self._since < self._patience:
            return
        if self._bar is None:
            self._open()
        assert self._bar is not None
        shown = _headline(metrics) or self._words
        self._bar.update(self._task, completed=done, metrics=shown, total=total or self._total)

    def _open(self) -> None:
        with self._lock:
            if self._bar is not None or self._closed:
                return
            bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[metrics]}"), console=self._console, transient=True,
            )  # fmt: skip
            self._task = bar.add_task(self._label, total=self._total, metrics=self._words)
            bar.start()
            self._bar = bar

    def __enter__(self) -> "Display":
        if self._enabled:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()
                sys.stderr.flush()


class Line:
    """One line on what somebody is doing now, on a terminal only."""

    def __init__(self, label: str) -> None:
        self._label, self._status = label, Console(stderr=True).status(label)

    def tell(self, done: int, what: str) -> None:
        self._status.update(f"{self._label}: {done} tasks done, {what}")

    def __enter__(self) -> "Line":
        if self._status.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()


def _headline(metrics: dict[str, float]) -> str:
    wanted = ("loss", "test_accuracy", "accuracy", "distance")
    return "  ".join(f"{name} {metrics[name]:.4g}" for name in wanted if name in metrics)
