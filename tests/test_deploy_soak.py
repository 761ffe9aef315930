"""Server, broker and workers are killed again and again; then the log is played again by the simulator."""

from pathlib import Path

import pytest

from fieldwork import EXAMPLES, Fieldwork

KINDS = pytest.mark.parametrize(
    ("config", "endless"),
    [("digits.toml", "run.uploads=1000000"), ("scaffold.toml", "run.rounds=1000000")],
    ids=["asynchronous", "rounds"],
)


def soak(place: Path, config: str, endless: str, seconds: float, seed: int) -> None:
    # Answers of a round are added as they come. In float32 that order alone moves this network by 1e-3 (its ReLUs
    # turn a last bit into another path), as much as a lost upload would; in float64 by far less than the bound.
    work = Fieldwork(place, [endless, "run.eval_every=50", "run.precision=float64"], EXAMPLES / config)
    try:
        work.start_all()
        work.wait_for(2, 120.0)
        killed = work.torment(seconds, seed, told=lambda text: print(text, flush=True))
        work.wait_for(work.done() + 2, 120.0)  # it goes on
        work.wait_for_everyone(60.0)
        assert work.end("server") == 130, work.logs()
        book, apart = work.audit()
    finally:
        work.close()
    print(f"{killed}: {book.applied} uploads of {book.next_task} tasks, {book.given_up} given up, apart {apart:.1e}")
    assert sum(killed.values()) > seconds / 30  # each waits until what was killed is back, on whatever machine
    assert book.applied > 10 and apart < 1e-7


@KINDS
def test_a_minute_of_kills(config: str, endless: str, tmp_path: Path) -> None:
    soak(tmp_path, config, endless, 60.0, seed=1)


@pytest.mark.slow
@KINDS
def test_ten_minutes_of_kills(config: str, endless: str, tmp_path: Path) -> None:
    soak(tmp_path, config, endless, 600.0, seed=2)
