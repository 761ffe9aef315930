"""A file that is written over and over, and is never found half written: two places in it take turns.

Before its content each place has a number that grows, the content's length and a checksum. A kill in the middle of a
write spoils the place that was older; the other one still holds what was written last. As nothing is created or
renamed, the disk has the content to write and no more, which takes it a quarter of the time of a new file.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically

_HEAD = struct.Struct("<8sQQQ")  # a name, the turn, the length of the content, the checksum of all that
_NAME = b"sojourn1"
_BLOCK = 1 << 12
_ZEROS = bytes(1 << 20)
_synced = getattr(os, "fdatasync", os.fsync)  # not known to every system
Piece = bytes | bytearray | memoryview


class Turns:
    """One such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._room = self._turn = 0

    def write(self, content: Sequence[Piece]) -> None:
        """Replaces what was written last; it is on disk on return. After a failure the same place is tried again."""
        turn = self._turn + 1
        content = [_head(turn, content), *content]
        size = sum(map(len, content))
        try:
            if self._file is None or size > self._room:
                self._make(turn, size, content)
            else:
                _write(self._file, turn % 2 * self._room, content)
                _synced(self._file)
        except OSError as error:
            raise SojournError(f"cannot write {self.path}: {error.strerror or error}.") from error
        self._turn = turn

    def read(self) -> memoryview | None:
        """What was written last; None if neither place holds anything whole."""
        self._open()
        assert self._file is not None
        heads = [(_HEAD.unpack(_read(self._file, place * self._room, _HEAD.size)), place) for place in range(2)]
        for (name, turn, length, _), place in sorted(heads, key=lambda one: -one[0][1]):
            if name == _NAME and length <= self._room - _HEAD.size:
                found = _read(self._file, place * self._room, _HEAD.size + length)
                if found[: _HEAD.size] == _head(turn, [found[_HEAD.size :]]):
                    self._turn = turn
                    return found[_HEAD.size :]
        return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _make(self, turn: int, size: int, content: Sequence[Piece]) -> None:
        """A file with room to spare; every byte is written once, so that the disk need find no place for it later."""
        room = -(-(size + size // 4 + _BLOCK) // _BLOCK) * _BLOCK

        def fill(beside: Path) -> None:
            with open(beside, "wb") as stream:
                for first in range(0, 2 * room, len(_ZEROS)):
                    stream.write(_ZEROS[: 2 * room - first])
                stream.flush()
                _write(stream.fileno(), turn % 2 * room, content)

        write_atomically(self.path, fill)
        self._open()

    def _open(self) -> None:
        self.close()
        self._file = os.open(self.path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        self._room = max(_HEAD.size, os.fstat(self._file).st_size // 2)


def _head(turn: int, content: Sequence[Piece]) -> bytes:
    length = sum(map(len, content))
    checksum = zlib.crc32(_HEAD.pack(_NAME, turn, length, 0))
    for piece in content:
        checksum = zlib.crc32(piece, checksum)
    return _HEAD.pack(_NAME, turn, length, checksum)


def _write(file: int, offset: int, content: Sequence[Piece]) -> None:
    for piece in content:
        view = memoryview(piece)
        while view:
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written


def _read(file: int, offset: int, length: int) -> memoryview:
    found, end = memoryview(bytearray(length)), 0
    while end < length and (got := os.preadv(file, [found[end:]], offset + end)):
        end += got
    return found
