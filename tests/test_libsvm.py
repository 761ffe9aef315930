"""The LIBSVM sets: small files of the same form run the code of the large ones."""

import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.data import libsvm
from sojourn.data.libsvm import libsvm_source, load_libsvm, parse_libsvm

ROWS = 40


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))


def text(labels: tuple[int, int] = (-1, 1), rows: int = ROWS) -> bytes:
    """Row i has feature 1 + i mod 5, and its number as the last feature; three of four are of the first label."""
    lines = [f"{labels[i % 4 == 3]:+d} {1 + i % 5}:1 6:{i}" for i in range(rows)]
    return ("\n".join(lines) + "\n").encode()


def tiny(*contents: bytes) -> libsvm.Source:
    return libsvm_source("tiny", tuple(hashlib.sha256(c).hexdigest() for c in contents), "http://127.0.0.1:9")


@pytest.mark.parametrize("folder", ["tiny", "libsvm", "."])
@pytest.mark.parametrize("packed", [False, True])
def test_features_and_labels_are_those_of_the_file(folder: str, packed: bool, tmp_path: Path) -> None:
    train, test = text(), text(rows=8)
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, content in (("tiny", train), ("tiny.t", test)):
        path = tmp_path / folder / (name + ".xz" * packed)
        path.write_bytes(lzma.compress(content) if packed else content)
    data = load_libsvm(tiny(train, test), 6, 0.0, None, None, 0)
    expected = np.zeros((ROWS, 6), np.float32)
    expected[np.arange(ROWS), np.arange(ROWS) % 5] = 1
    expected[:, 5] = np.arange(ROWS)
    np.testing.assert_array_equal(data.x_train, expected)
    np.testing.assert_array_equal(data.y_train, np.arange(ROWS) % 4 == 3)
    np.testing.assert_array_equal(data.x_test, expected[:8])


def test_a_set_of_one_file_holds_out_a_share_of_every_class_by_its_seed(tmp_path: Path) -> None:
    content = text((1, 2))
    (tmp_path / "tiny").write_bytes(content)
    first, again, other = (load_libsvm(tiny(content), 6, 0.2, None, None, seed) for seed in (0, 0, 1))
    numbers = np.concatenate([first.x_train[:, 5], first.x_test[:, 5]])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(ROWS))  # every row once
    np.testing.assert_array_equal(np.bincount(first.y_test), [6, 2])
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)
    assert len(load_libsvm(tiny(content), 6, 0.2, 8, 4, 0).y_train) == 8
    with pytest.raises(SojournError, match="test_share = 0 must lie between"):
        load_libsvm(tiny(content), 6, 0, None, None, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>gone</html>", "no LIBSVM text of 6 features"),
        (b"1 7:1\n2 1:1\n", "no LIBSVM text of 6 features"),
        (b"1 1:1\n2 1:1\n3 1:1\n", "3 different labels"),
    ],
)
def test_what_is_not_such_a_text_is_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(SojournError, match=message) as caught:
        parse_libsvm(content, 6, "tiny's file")
    assert "\n" not in str(caught.value)


def test_the_collection_is_declared_with_both_files_of_a9a() -> None:
    assert [file.names[0] for file in libsvm.A9A.files] == ["a9a", "a9a.t"]
    for source in (libsvm.A9A, libsvm.W8A, libsvm.MUSHROOMS):
        assert [r.name for r in source.needed(source.files)] == [f.names[0] for f in source.files]
        assert all(r.mirrors[0].startswith("https://www.csie.ntu.edu.tw/") for r in source.remotes)
