"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sojourn.core.errors import SojournError


def _sync(directory: Path) -> None:
    """That a file was renamed is known to the disk only once its directory is."""
    with contextlib.suppress(OSError):  # some systems do not know this of directories
        place = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file, then renames over it: a reader, or a kill, sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        with open(beside, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(beside, path)
        _sync(path.parent)
    except OSError as error:
        raise SojournError(f"cannot write {path}: {error.strerror or error}; choose another --out.") from error
    finally:
        with contextlib.suppress(OSError):  # it may be gone, or never have had a place
            beside.unlink()


def write_secret(path: Path, content: str) -> None:
    """A file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(content)
