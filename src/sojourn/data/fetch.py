"""Downloads: checked, written whole or not at all, with a progress line on a terminal for what takes a while."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sojourn.data.remote import Remote

_PATIENCE_SECONDS = 2.0  # as for runs
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
_CHUNK_BYTES = 1 << 16


def fetch(remotes: Sequence[Remote], folder: Path) -> str:
    """Fetches every file into the folder, from the first mirror that has it; returns what went wrong, or nothing.

    A file appears under its name only when it is complete and its checksum is right.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in remotes:
            reason = _from_any_mirror(remote, folder)
            if reason:
                return reason
    except OSError as error:
        return f"cannot write to {folder}: {error.strerror or error}"
    return ""


def _from_any_mirror(remote: Remote, folder: Path) -> str:
    reasons = []
    for address in remote.mirrors:
        bar = Bar(remote.name)
        try:
            with bar, _quiet():
                pooch.retrieve(
                    address, remote.checksum, fname=remote.name, path=folder,
                    downloader=pooch.HTTPDownloader(
                        progressbar=bar, chunk_size=_CHUNK_BYTES, timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                        headers={"Accept-Encoding": "identity"},  # the very bytes: they may be packed themselves
                    ),
                )  # fmt: skip
            return ""
        except requests.HTTPError as error:
            status = "an error" if error.response is None else error.response.status_code
            reasons.append(f"{urlsplit(address).netloc} answers {status} for {remote.name}")
        except (requests.ConnectionError, requests.Timeout):
            reasons.append(f"{urlsplit(address).netloc} cannot be reached")
        except requests.RequestException:
            reasons.append(f"{urlsplit(address).netloc} broke off in {remote.name}")
        except ValueError:  # pooch's word for a wrong checksum
            reasons.append(f"{urlsplit(address).netloc} gives a {remote.name} with a wrong checksum")
    return "; ".join(reasons)


class Bar:
    """What pooch asks of a progress bar; it is drawn from the third second on, and only on a terminal."""

    def __init__(self, label: str, enabled: bool | None = None, patience: float = _PATIENCE_SECONDS) -> None:
        self.total = 0  # bytes, told by pooch once they are known
        self._label, self._patience = label, patience
        self._console = Console(stderr=True, force_terminal=enabled or None)
        self._enabled = self._console.is_terminal if enabled is None else enabled
        self._since, self._done = time.monotonic(), 0
        self._progress: Progress | None = None
        self._task: Any = None

    def update(self, number: int) -> None:
        self._done = min(self._done + number, self.total) if self.total else self._done + number
        if not self._enabled or (self._progress is None and time.monotonic() - self._since < self._patience):
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                TimeRemainingColumn(), console=self._console, transient=True,
            )  # fmt: skip
            self._task = self._progress.add_task(self._label, total=self.total or None)
            self._progress.start()
        self._progress.update(self._task, completed=self._done)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without pooch's own lines about what it does: the bar says so."""
    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
