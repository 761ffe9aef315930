"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sojourn.core.errors import SojournError


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file, then renames over it: a reader, or a kill, sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        with open(beside, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise SojournError(f"cannot write {path}: {error.strerror or error}; choose another --out.") from error
    finally:
        with contextlib.suppress(OSError):  # it may be gone, or never have had a place
            beside.unlink()
