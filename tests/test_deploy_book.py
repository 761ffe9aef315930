"""The server's book: every upload counts once, whatever is killed, and the simulator replays it to the same bits."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import FedAsync, FedBuff, LocalSGD
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.deploy.asynchronous import OneByOne, trace_of
from sojourn.deploy.book import DUPLICATE, TOO_STALE, read_log
from sojourn.deploy.rules import Rules

CLIENTS = 5


@pytest.fixture
def federation(x64: None) -> Federation:
    return sj.problems.random_quadratic(num_clients=CLIENTS, dimension=4, noise=0.3)


def book_of(federation: Federation, method: Any, place: Path, max_staleness: int = 6) -> OneByOne:
    return OneByOne(federation, method, place, Rules(max_staleness=max_staleness), of=1000, seed=3)


def played(federation: Federation, method: Any, place: Path, uploads: int, killed: float) -> OneByOne:
    """A run in which tasks end in any order, some never, and the server is killed between commits.

    The next one may drop what is less stale: that is in the log.
    """
    rng, downs = np.random.default_rng(0), dict[int, Any]()
    book = book_of(federation, method, place)
    local = jax.jit(
        lambda down, client, key: method.exchanges()[0].local(
            down, (), federation.clients.oracle(client), jax.random.wrap_key_data(key)
        )[0]
    )

    def hand_out(client: int) -> None:
        (task,) = book.assign([client], 0.0)
        downs[task.number] = book.down(task.exchange)

    for client in range(CLIENTS):
        hand_out(client)
    book.commit()
    while book.applied < uploads:
        task = book.out[rng.choice(list(book.out))]
        if rng.random() < 0.1:
            book.give_up(task.number, "lost")
        else:
            up = local(downs[task.number], task.client, book.key(task))
            book.take(task.number, task.client, up)
            assert book.take(task.number, task.client, up) == DUPLICATE
        hand_out(task.client)
        if rng.random() < 0.5:
            book.commit()
        if rng.random() < killed:
            book = book_of(federation, method, place, max_staleness=int(rng.integers(2, 8)))
    book.commit()
    return book


@pytest.mark.parametrize("killed", [0.0, 0.2])
@pytest.mark.parametrize(
    "method", [FedAsync(0.05, 3, mixing=0.5), FedBuff(0.05, 3, buffer_size=3)], ids=["async", "buff"]
)
def test_the_log_replays_to_the_same_model(federation: Federation, method: Any, killed: float, tmp_path: Path) -> None:
    book = played(federation, method, tmp_path, 40, killed)
    trace = trace_of(read_log(tmp_path), CLIENTS, method.uploads_per_update())
    assert len(trace) == book.applied
    assert not killed or TOO_STALE in {row["event"] for row in read_log(tmp_path)}
    history = sj.run(federation, method, book.applied, trace=trace, seed=3, progress=False)
    np.testing.assert_allclose(np.asarray(history.params), np.asarray(book.server.x.tree), rtol=1e-12)


def test_a_log_that_lost_a_line_does_not_replay_to_it(federation: Federation, tmp_path: Path) -> None:
    """Negative control of the audit."""
    method = FedAsync(0.05, 3, mixing=0.5)
    book = played(federation, method, tmp_path, 20, 0.0)
    log = read_log(tmp_path)
    first = next(i for i, row in enumerate(log) if row["event"] == "applied")
    number = log[first]["number"]
    short = [row for i, row in enumerate(log) if i != first and row.get("number") != number]
    for row in short:
        row["number"] -= row["number"] > number
    history = sj.run(federation, method, book.applied - 1, trace=trace_of(short, CLIENTS, 1), seed=3, progress=False)
    assert np.abs(np.asarray(history.params) - np.asarray(book.server.x.tree)).max() > 1e-3


def test_stale_and_forged_uploads_change_nothing(federation: Federation, tmp_path: Path) -> None:
    method = FedAsync(0.05, 3, mixing=0.5)
    book = book_of(federation, method, tmp_path)
    (task,) = book.assign([0], 0.0)
    up = federation.x0
    assert book.take(task.number, 1, up) == DUPLICATE and book.take(99, 0, up) == DUPLICATE
    assert book.applied == 0 and task.number in book.out
    for client in (1, 2, 3, 4, 1, 2, 3):
        (other,) = book.assign([client], 0.0)
        assert book.take(other.number, client, up) == "applied"
    before = np.asarray(book.server.x.tree)
    assert book.take(task.number, 0, up) == TOO_STALE
    np.testing.assert_array_equal(before, np.asarray(book.server.x.tree))


def test_a_book_of_another_run_is_refused(federation: Federation, tmp_path: Path) -> None:
    book_of(federation, FedAsync(0.05, 3, mixing=0.5), tmp_path).commit()
    with pytest.raises(SojournError, match="another run"):
        book_of(federation, FedAsync(0.05, 3, mixing=0.4), tmp_path)
    with pytest.raises(SojournError, match="in rounds"):
        book_of(federation, LocalSGD(0.05), tmp_path)


def test_a_book_of_an_earlier_sojourn_is_not_begun_anew(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "book.npz").write_bytes(b"what it was")
    with pytest.raises(SojournError, match="an earlier sojourn"):
        book_of(federation, FedAsync(0.1, 1), tmp_path)
    assert (tmp_path / "book.npz").read_bytes() == b"what it was"


def test_a_log_without_a_book_is_of_nothing_that_was_kept(federation: Federation, tmp_path: Path) -> None:
    book_of(federation, FedAsync(0.1, 1), tmp_path)
    (tmp_path / "applied.jsonl").write_text(
        '{"event": "handed out", "number": 0}\n'
    )  # killed before the book was there
    book = book_of(federation, FedAsync(0.1, 1), tmp_path)
    book.assign([0], 0.0)
    book.commit()
    assert [row["event"] for row in read_log(tmp_path)] == ["handed out"]
