"""Data sets in standard files: found, fetched, checked. Small files run the code of the large ones.

Tests of the large sets themselves want $SOJOURN_DATA to point to them, and say so when they are skipped.
"""

import contextlib
import gzip
import hashlib
import http.server
import io
import lzma
import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.data import DATASETS, TEXTS, Pixels, load, load_mnist, load_text
from sojourn.data import cifar10 as cifar10_file
from sojourn.data import mnist as mnist_file
from sojourn.data.cifar10 import load_batches, parse_batch
from sojourn.data.fetch import Bar, fetch
from sojourn.data.mnist import idx_source, load_idx, parse_idx
from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, cache_directory
from sojourn.data.tinyshakespeare import load_characters
from sojourn.data.wikitext2 import load_words

PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
REAL = os.environ.get("SOJOURN_DATA")  # before tests move it


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no SOJOURN_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SOJOURN_DATA", raising=False)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny_contents(num_train: int = 60, num_test: int = 20) -> list[bytes]:
    """Four idx files: every class equally often, an image's first pixel its number."""
    contents = []
    for number in (num_train, num_test):
        images = np.zeros((number, 28, 28), np.uint8)
        images[:, 0, 0] = np.arange(number)
        images[:, 0, 1] = 255
        contents += [idx(images), idx((np.arange(number) % 10).astype(np.uint8))]
    return contents


def tiny_source(contents: list[bytes], mirrors: tuple[str, ...] = ("http://127.0.0.1:9",)) -> Source:
    """As `sojourn.data.mnist` describes MNIST, with other checksums."""
    packed = [gzip.compress(content, mtime=0) for content in contents]
    return idx_source("tiny", tuple(map(sha256, contents)), tuple(map(sha256, packed)), mirrors)


def put(folder: Path, contents: list[bytes], names: tuple[str, ...] = PARTS, suffix: str = ".gz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pack = {".gz": lambda c: gzip.compress(c, mtime=0), ".xz": lzma.compress, "": bytes}[suffix]
    for name, content in zip(names, contents, strict=True):
        (folder / f"{name}{suffix}").write_bytes(pack(content))
    return folder


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A mirror on this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def tiny(source: Source, **options: int) -> sj.data.Dataset:
    return load_idx(source, Pixels(), options.get("num_train"), options.get("num_test"), options.get("seed", 0))


# --- where files are found ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".gz", ".xz", ""])
@pytest.mark.parametrize("layout", ["folder", "flat", "cache", "second of two"])
def test_files_are_found_wherever_they_may_lie(
    layout: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = tiny_contents()
    source = tiny_source(contents)
    root = tmp_path / "data"
    root.mkdir()
    place = {"folder": root / "tiny", "flat": root, "cache": cache_directory(source), "second of two": root / "tiny"}
    put(place[layout], contents, suffix=suffix)
    if layout != "cache":
        other = tmp_path / "other"
        other.mkdir()
        roots = [other, root] if layout == "second of two" else [root]
        monkeypatch.setenv("SOJOURN_DATA", os.pathsep.join(map(str, roots)))
    data = tiny(source)
    assert data.x_train.shape == (60, 28, 28, 1) and data.x_test.shape == (20, 28, 28, 1)
    assert data.x_train.dtype == np.uint8
    np.testing.assert_array_equal(data.y_train, np.arange(60) % 10)
    assert data.read(data.x_train).max() == 1.0


def test_the_other_spelling_of_idx_files_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = tiny_contents()
    put(tmp_path / "tiny", contents, names=tuple(part.replace("-idx", ".idx") for part in PARTS), suffix="")
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    assert len(tiny(tiny_source(contents)).y_test) == 20


def test_another_sets_files_in_a_flat_directory_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MNIST and Fashion-MNIST have the same file names: only the checksum tells them apart."""
    mine, others = tiny_contents(), tiny_contents(num_train=70)
    put(tmp_path / "flat", others)
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "flat"))
    put(cache_directory(tiny_source(mine)), mine)
    assert len(tiny(tiny_source(mine)).y_train) == 60
    assert len(tiny(tiny_source(others)).y_train) == 70


def test_a_directory_that_is_none_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SojournError, match=r"SOJOURN_DATA names .*nowhere, which is not a directory"):
        tiny(tiny_source(tiny_contents()))


# --- damage ------------------------------------------------------------------------------------------------------


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes((content[-1] ^ 1,))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed, content: gzip.compress(flipped(content)), "its checksum differs"),
        (lambda packed, content: packed[: len(packed) // 2], "cannot be read"),
        (lambda packed, content: b"", "its checksum differs"),
        (lambda packed, content: b"<html>not found</html>", "cannot be read"),
    ],
)
def test_a_damaged_file_in_its_own_folder_is_one_sentence(
    damage: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = tiny_contents()
    folder = put(tmp_path / "tiny", contents)
    path = folder / f"{PARTS[1]}.gz"
    path.write_bytes(damage(path.read_bytes(), contents[1]))  # type: ignore[operator]
    before = path.read_bytes()
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    with pytest.raises(SojournError, match=message) as caught:
        tiny(tiny_source(contents))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before and not cache_directory(tiny_source(contents)).exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((2, 3, 3), np.uint8))[:-1], "truncated"),
        (idx(np.zeros((2, 3, 3), np.uint8))[:9], "truncated"),
        (idx(np.zeros(4, np.uint8)), "begins with 00 00 08 01, not 00 00 08 03"),
        (b"", "begins with"),
        (bytes((0, 0, 13, 3)) + bytes(12), "begins with 00 00 0d 03"),  # floats
    ],
)
def test_an_idx_file_that_is_not_whole_is_one_sentence(content: bytes, message: str) -> None:
    with pytest.raises(SojournError, match=message):
        parse_idx(content, 3, "tiny's images")
    assert parse_idx(idx(np.ones((2, 3, 3), np.uint8)), 3, "").shape == (2, 3, 3)  # the check passes what is right


def test_a_batch_that_is_not_whole_is_one_sentence() -> None:
    record = bytes(3073)
    for content, message in [
        (record[:-1], "no whole records"),
        (b"", "no whole records"),
        (b"\x0a" + record[1:], "10"),
    ]:
        with pytest.raises(SojournError, match=message):
            parse_batch(content, "a batch")
    assert parse_batch(record, "")[1].shape == (1, 32, 32, 3)


# --- fetching ----------------------------------------------------------------------------------------------------


def test_missing_files_are_fetched_once_and_kept(tmp_path: Path) -> None:
    contents = tiny_contents()
    folder = put(tmp_path / "mirror", contents)
    with served(folder) as mirror:
        source = tiny_source(contents, (mirror,))
        assert len(tiny(source).y_train) == 60
    assert sorted(path.name for path in cache_directory(source).iterdir()) == sorted(f"{part}.gz" for part in PARTS)
    assert len(tiny(source).y_train) == 60  # the mirror is gone


def test_only_what_is_missing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = tiny_contents()
    folder = put(tmp_path / "mirror", contents)
    put(tmp_path / "data" / "tiny", contents[:3], names=PARTS[:3])
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "data"))
    with served(folder) as mirror:
        source = tiny_source(contents, (mirror,))
        assert len(tiny(source).y_test) == 20
    assert [path.name for path in cache_directory(source).iterdir()] == [f"{PARTS[3]}.gz"]


def test_the_second_mirror_helps_where_the_first_fails(tmp_path: Path) -> None:
    contents = tiny_contents()
    bad = put(tmp_path / "bad", [flipped(content) for content in contents])
    good = put(tmp_path / "good", contents)
    with served(bad) as first, served(good) as second:
        assert len(tiny(tiny_source(contents, ("http://127.0.0.1:9", first, second))).y_train) == 60


@pytest.mark.parametrize(("mirror", "reason"), [("empty", "answers 404"), ("bad", "wrong checksum")])
def test_a_fetch_that_fails_leaves_nothing_and_says_what_to_put_where(
    mirror: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = tiny_contents()
    (tmp_path / "empty").mkdir()
    put(tmp_path / "bad", [flipped(content) for content in contents])
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "empty"))
    with served(tmp_path / mirror) as address:
        source = tiny_source(contents, (address,))
        with pytest.raises(SojournError, match=reason) as caught:
            tiny(source)
    message = str(caught.value)
    assert all(f"{part}.gz" in message for part in PARTS)
    assert str(tmp_path / "empty" / "tiny") in message and "\n" not in message
    assert list(cache_directory(source).iterdir()) == []


def test_offline_and_missing_is_one_sentence() -> None:
    with pytest.raises(
        SojournError, match=r'data "tiny" is not on this machine .* cannot be reached\): put train'
    ) as e:
        tiny(tiny_source(tiny_contents()))
    assert "SOJOURN_DATA to a directory with a folder tiny" in str(e.value)


def test_a_transfer_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    content = os.urandom(200_000)

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:100_000])

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/file"
        reason = fetch([Remote("file", f"sha256:{sha256(content)}", (address,))], tmp_path / "cache")
        thread.join()
    assert "127.0.0.1" in reason
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SojournError, match="cannot write to"):
        tiny(tiny_source(tiny_contents()))


def test_the_bar_waits_and_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    for enabled, patience, expected in ((None, 0.0, False), (True, 60.0, False), (True, 0.0, True)):
        with Bar("a file", enabled=enabled, patience=patience) as bar:
            bar.total = 100
            bar.update(60)
            bar.update(60)
        assert ("a file" in capsys.readouterr().err) == expected


# --- CIFAR-10, texts ---------------------------------------------------------------------------------------------


def tiny_batches() -> list[bytes]:
    """Six batches of ten records; the planes hold 1, 2, 3 plus the record's number times ten."""
    batches = []
    for batch in range(6):
        records = [bytes((k,)) + b"".join(bytes((10 * k + plane,)) * 1024 for plane in (1, 2, 3)) for k in range(10)]
        batches.append(b"".join(records) + (b"" if batch < 5 else records[3]))
    return batches


def batch_source(contents: list[bytes], archive: bytes = b"", mirror: str = "http://127.0.0.1:9") -> Source:
    files = tuple(File(f.names, sha256(c)) for f, c in zip(cifar10_file.CIFAR10.files, contents, strict=True))
    name = cifar10_file.CIFAR10.archive
    remote = Remote(name, f"md5:{hashlib.md5(archive).hexdigest()}", (f"{mirror}/{name}",))
    return Source("tiny-cifar", files, (remote,), folder=cifar10_file.CIFAR10.folder, archive=name)


def packed_batches(contents: list[bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for file, content in zip(cifar10_file.CIFAR10.files, contents, strict=True):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{file.names[0]}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize("form", ["batches", "archive's folder", "archive", "fetched"])
def test_cifar_is_read_from_batches_and_from_the_archive(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = tiny_batches()
    archive = packed_batches(contents)
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    if form in ("archive", "fetched"):
        ((tmp_path if form == "archive" else mirror) / "cifar-10-binary.tar.gz").write_bytes(archive)
    else:
        folder = tmp_path / "tiny-cifar" if form == "batches" else tmp_path / "cifar-10-batches-bin"
        put(folder, contents, names=tuple(f.names[0] for f in cifar10_file.CIFAR10.files), suffix="")
    with served(mirror) as address:
        data = load_batches(batch_source(contents, archive, address), Pixels(), None, None, 0)
    assert data.x_train.shape == (50, 32, 32, 3) and data.x_test.shape == (11, 32, 32, 3)
    assert data.x_train.flags.c_contiguous
    assert data.x_train[12, 5, 7].tolist() == [21, 22, 23]  # channels last
    assert data.y_test.tolist() == [*range(10), 3]


def test_an_archive_with_a_wrong_or_missing_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = tiny_batches()
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(packed_batches([*contents[:2], flipped(contents[2]), *contents[3:]]))
    with pytest.raises(SojournError, match=r"does not hold the standard data_batch_3\.bin"):
        load_batches(batch_source(contents), Pixels(), None, None, 0)
    for damaged in (packed_batches(contents)[:400], b"no archive at all"):
        path.write_bytes(damaged)
        with pytest.raises(SojournError, match="cannot be read") as caught:
            load_batches(batch_source(contents), Pixels(), None, None, 0)
        assert "\n" not in str(caught.value), "one sentence"


def text_source(contents: dict[str, bytes]) -> Source:
    files = tuple(File((f"{s}.txt", f"{s}.tokens", f"wiki.{s}.tokens"), sha256(c)) for s, c in contents.items())
    return Source("tiny-text", files, ())


@pytest.mark.parametrize("names", ["{}.txt", "{}.tokens", "wiki.{}.tokens"])
def test_words_are_numbered_as_they_come_and_lines_end_in_eos(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"train": b" \n = A b = \n", "valid": b" b c \n", "test": "é A".encode()}
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    put(tmp_path / "tiny-text", list(contents.values()), names=tuple(map(names.format, contents)), suffix=".xz")
    text = load_words(text_source(contents))
    assert text.vocabulary == ("<eos>", "=", "A", "b", "c", "é")
    assert [part.tolist() for part in (text.train, text.valid, text.test)] == [[0, 1, 2, 3, 1, 0], [3, 4, 0], [5, 2, 0]]
    assert text.train.dtype == np.int32
    assert text.decode(text.test) == "é A <eos>"
    assert text.encode(["A", "c"]).tolist() == [2, 4]
    with pytest.raises(SojournError, match="'d' is not in the vocabulary"):
        text.encode(["d"])


def test_characters_are_split_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ("ab\n" * 20).encode()
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path))
    put(tmp_path, [content], names=("input.txt",), suffix="")
    source = Source("tiny-play", (File(("input.txt",), sha256(content)),), ())
    text = load_characters(source, 0.1, 0.2)
    assert (len(text.train), len(text.valid), len(text.test)) == (42, 6, 12)
    assert text.vocabulary == ("\n", "a", "b")
    assert text.decode(np.concatenate([text.train, text.valid, text.test])) == content.decode()
    with pytest.raises(SojournError, match=r"valid_share \+ test_share = 1"):
        load_characters(source, 0.5, 0.5)


def test_a_text_checks_its_tokens() -> None:
    good = dict(train=np.arange(2), valid=np.arange(1), test=np.arange(2), vocabulary=("a", "b"))
    assert sj.data.Text("t", **good).decode([1, 0]) == "b a"
    for change, message in [
        (dict(train=np.array([2])), "token 2; expected 0 to 1"),
        (dict(test=np.zeros(0, int)), "at least one whole number"),
        (dict(valid=np.zeros((1, 1), int)), "expected a list"),
    ]:
        with pytest.raises(SojournError, match=message):
            sj.data.Text("t", **(good | change))


def test_an_unknown_text_names_the_nearest() -> None:
    with pytest.raises(SojournError, match='did you mean "wikitext-2"'):
        load_text("wikitext2")


# --- subsets, and the way into a federation ----------------------------------------------------------------------


def test_a_subset_keeps_the_classes_shares_and_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = tiny_contents(200, 50)
    source = tiny_source(contents)
    put(cache_directory(source), contents)
    few = tiny(source, num_train=45, num_test=10)
    assert (len(few.y_train), len(few.y_test)) == (45, 10)
    assert set(np.bincount(few.y_train)) == {4, 5} and set(np.bincount(few.y_test)) == {1}
    again, other = tiny(source, num_train=45, num_test=10), tiny(source, num_train=45, num_test=10, seed=1)
    np.testing.assert_array_equal(few.x_train, again.x_train)
    assert not np.array_equal(few.x_train, other.x_train)
    drawn = few.x_train[:, 0, 0, 0]
    assert len(np.unique(drawn)) == 45 and (drawn % 10 == few.y_train).all()  # labels go with their images
    for number, message in ((201, "more than the 200 samples"), (9, "leaves a class without samples")):
        with pytest.raises(SojournError, match=message):
            tiny(source, num_train=number)


def test_a_config_can_name_a_set_and_learns_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the registry's own loader, whose checksums are replaced by those of the small files."""
    contents = tiny_contents(200, 50)
    source = tiny_source(contents)
    put(cache_directory(source), contents)
    monkeypatch.setattr(mnist_file, "MNIST", source)
    tables = {
        "problem": {"name": "classification", "batch_size": 5},
        "data": {"name": "mnist", "num_train": 100, "normalise": True},
        "partition": {"name": "one-class", "redeal": "class"},
        "algorithm": {"name": "fedavg", "step_size": 0.01},
        "run": {"rounds": 2},
    }
    from sojourn.config import validate
    from sojourn.experiment import run_config

    (history,) = run_config(validate(tables), tmp_path / "run")
    assert history.status == "ok" and np.isfinite(history.last("test_loss"))
    assert history.manifest["labels_per_client"][3] == "0 0 0 10 0 0 0 0 0 0"


def test_bytes_and_floats_give_the_same_run() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 4, 4, 3), dtype=np.uint8), rng.integers(0, 3, 60)
    pixels = Pixels((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    as_bytes = sj.data.Dataset("b", x, y, x[:9], y[:9], 3, pixels=pixels)
    as_floats = sj.data.Dataset("f", pixels(x), y, pixels(x[:9]), y[:9], 3)
    parts = sj.partition.iid(y, 4)
    method = sj.algorithms.LocalSGD(step_size=0.1, num_local_steps=3)
    federations = [sj.problems.logistic_regression(data, parts, batch_size=5) for data in (as_bytes, as_floats)]
    ends = [sj.run(federation, method, rounds=4).table for federation in federations]
    for column in ("loss", "test_loss", "test_accuracy", "distance"):
        np.testing.assert_allclose(ends[0][column], ends[1][column], rtol=1e-5)
    held = federations[0].clients.objective
    assert held.rows[0].dtype == np.uint8 and held.test_rows[0].dtype == np.uint8  # a quarter of the memory


# --- the large sets themselves -----------------------------------------------------------------------------------


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    if REAL:
        monkeypatch.setenv("SOJOURN_DATA", REAL)


def wanted(name: str) -> None:
    """Skips, visibly, where $SOJOURN_DATA does not hold the set; never fetches it."""
    if not REAL:
        pytest.skip(f"needs the files of {name}: point SOJOURN_DATA to them")
    roots = [Path(root) for root in REAL.split(os.pathsep)]
    known = {"cifar10": "test_batch.bin"}
    if not any((root / name).is_dir() or (root / known.get(name, name)).exists() for root in roots):
        pytest.skip(f"needs the files of {name}: SOJOURN_DATA does not hold them")


MOMENTS = {
    "mnist": ((0.1307,), (0.3081,), (60_000, 28, 28, 1)),
    "fashion-mnist": ((0.2860,), (0.3530,), (60_000, 28, 28, 1)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), (50_000, 32, 32, 3)),
}
LIBSVM = {
    "a9a": (32_561, 16_281, 123, 7_841),
    "w8a": (39_799, 9_950, 300, 1_183),
    "mushrooms": (6_499, 1_625, 112, 3_366),
}
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", *LIBSVM}))
def test_a_large_set_is_what_it_is_known_to_be(name: str, real: None) -> None:
    wanted(name)
    data = load(name)
    mean, std, shape = MOMENTS[name]
    assert data.name == name and data.x_train.shape == shape and data.x_test.shape == (10_000, *shape[1:])
    counts = np.bincount(data.y_train).tolist()
    assert counts == (MNIST_COUNTS if name == "mnist" else [shape[0] // 10] * 10)
    each = data.x_train.reshape(-1, shape[-1])
    histogram = np.stack([np.bincount(each[:, c], minlength=256) for c in range(shape[-1])]) / len(each)
    levels = np.arange(256) / 255
    found = histogram @ levels
    np.testing.assert_allclose(found, mean, atol=6e-5)
    np.testing.assert_allclose(np.sqrt(histogram @ levels**2 - found**2), std, atol=6e-5)


@pytest.mark.parametrize("name", LIBSVM)
def test_a_libsvm_set_has_the_rows_that_it_is_known_for(name: str, real: None) -> None:
    wanted("libsvm")
    data = load(name)
    train, test, dimension, ones = LIBSVM[name]
    assert data.x_train.shape == (train, dimension) and data.x_test.shape == (test, dimension)
    assert int(data.y_train.sum()) == ones and set(np.unique(data.x_train)) == {0.0, 1.0}


def test_a_normalised_set_has_mean_zero_and_deviation_one(real: None) -> None:
    wanted("mnist")
    data = load_mnist(normalise=True, num_train=20_000)
    numbers = data.read(data.x_train)
    assert abs(numbers.mean()) < 0.02 and abs(numbers.std() - 1) < 0.02


@pytest.mark.parametrize(
    ("name", "sizes", "vocabulary"),
    [("tinyshakespeare", (1_003_855, 55_769, 55_770), 65), ("wikitext-2", (2_088_628, 217_646, 245_569), 33_278)],
)
def test_a_large_text_is_what_it_is_known_to_be(name: str, sizes: tuple[int, ...], vocabulary: int, real: None) -> None:
    wanted(name)
    text = load_text(name)
    assert (len(text.train), len(text.valid), len(text.test)) == sizes
    assert len(text.vocabulary) == vocabulary
    start = {"tinyshakespeare": "First Citizen:", "wikitext-2": "<eos> = Valkyria Chronicles III = <eos>"}[name]
    assert text.decode(text.train[:20]).startswith(start)


def test_the_federation_of_a_large_set_holds_its_rows_once(real: None) -> None:
    wanted("mnist")
    data = load("mnist")
    model = sj.models.mlp((28, 28, 1), 10, sj.core.keys.root_key(0), hidden=[8])
    federation = sj.problems.classification(data, sj.partition.iid(data.y_train, 100), model, batch_size=10)
    import jax

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(federation.clients))
    assert held < 1.15 * (data.x_train.nbytes + data.x_test.nbytes)  # labels, weights and nothing like another copy


def test_the_tests_above_know_every_set() -> None:
    libsvm = {"a9a", "w8a", "mushrooms"}  # tests/test_libsvm.py
    assert set(DATASETS) == {"digits", *MOMENTS, *libsvm} and set(TEXTS) == {"tinyshakespeare", "wikitext-2"}
