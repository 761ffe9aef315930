"""A file of two places that take turns: whatever a kill leaves of a write, the last whole content is found."""

import os
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.deploy import turns
from sojourn.deploy.turns import Turns


def read(path: Path) -> bytes | None:
    fresh = Turns(path)
    found = fresh.read()
    fresh.close()
    return None if found is None else bytes(found)


def test_the_last_content_is_found_by_another_process(tmp_path: Path) -> None:
    pages, rng = Turns(tmp_path / "book"), np.random.default_rng(0)
    for number in range(30):
        content = [rng.bytes(int(rng.integers(0, 40_000))) for _ in range(3)]  # it outgrows its room now and then
        pages.write(content)
        assert read(pages.path) == b"".join(content), number


def test_whoever_reads_goes_on_writing_where_the_last_one_was(tmp_path: Path) -> None:
    Turns(tmp_path / "book").write([b"one"])
    for word in (b"two", b"three", b"four"):
        pages = Turns(tmp_path / "book")
        pages.read()
        pages.write([word])
        assert read(pages.path) == word


@pytest.mark.parametrize("cut", [0, 1, 8, 31, 32, 33, 500, 1031])
def test_a_write_that_was_cut_off_leaves_the_one_before(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Turns(tmp_path / "book")
    for word in (b"a", b"b", b"c"):
        pages.write([word * 1000])
    left, write = [cut], os.pwrite  # bytes that still get through

    def cut_off(file: int, data: memoryview, offset: int) -> int:
        part = data[: left[0]]
        left[0] -= len(part)
        if len(part) < len(data):
            write(file, part, offset)
            raise KeyboardInterrupt
        return write(file, part, offset)

    monkeypatch.setattr(turns.os, "pwrite", cut_off)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pages.write([b"d" * 1000])
    monkeypatch.undo()
    assert read(pages.path) == b"c" * 1000
    again = Turns(pages.path)
    again.read()
    again.write([b"e"])
    assert read(pages.path) == b"e"


def test_a_flipped_bit_is_never_taken_for_content(tmp_path: Path) -> None:
    pages, rng = Turns(tmp_path / "book"), np.random.default_rng(0)
    pages.write([b"x" * 3000])
    pages.write([b"y" * 3000])
    whole = pages.path.read_bytes()
    for _ in range(300):
        spoilt = bytearray(whole)
        spoilt[rng.integers(len(spoilt))] ^= 1 << rng.integers(8)
        pages.path.write_bytes(spoilt)
        assert read(pages.path) in (b"x" * 3000, b"y" * 3000)
    pages.path.write_bytes(whole[:100])
    assert read(pages.path) is None
    pages.path.write_bytes(b"")
    assert read(pages.path) is None


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*about: object) -> int:
        raise OSError(28, "No space left on device")

    pages = Turns(tmp_path / "book")
    pages.write([b"a"])
    monkeypatch.setattr(turns.os, "pwrite", full)
    for _ in range(2):  # whoever tries again must not spoil what is whole
        with pytest.raises(SojournError, match=r"cannot write .*book: No space left"):
            pages.write([b"b"])
    assert read(pages.path) == b"a"
