"""The status of a run: read from its directory, put into words, shown in a terminal of any width."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import sojourn as sj
from run_snapshots import HOSTILE, NOW, snapshot, worker
from sojourn.core.errors import SojournError
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.rules import Rules
from sojourn.deploy.snapshot import Tally, Worker, snapshot_of
from sojourn.deploy.status import STATUS_FILE, describe, read_status, status_renderable, write_status


def shown(told: dict[str, Any], width: int = 80, now: float = NOW) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(status_renderable(told, now))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_status(tmp_path, snapshot())
    assert read_status(tmp_path) == snapshot()


def test_a_loss_that_is_no_number_is_written_as_nothing_and_shown_as_a_dash(tmp_path: Path) -> None:
    told = snapshot(status="diverged", metrics=[{"done": 1, "seconds": 1.0, "loss": float("nan")}])
    write_status(tmp_path, told)
    json.loads((tmp_path / STATUS_FILE).read_text(), parse_constant=pytest.fail)  # plain JSON, for any reader
    found = read_status(tmp_path)
    assert found["metrics"][0]["loss"] is None
    assert "training loss –" in shown(found) and "The run diverged" in shown(found)


def test_a_missing_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SojournError, match=r"^there is no run in .*nowhere: no such directory\.$"):
        read_status(tmp_path / "nowhere")
    with pytest.raises(SojournError, match=r"holds no run of a server; `sojourn serve` starts one\.$"):
        read_status(tmp_path)


def without(*path: str) -> dict[str, Any]:
    told = snapshot()
    inner = told
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return told


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "3", '{"format": 0}', '{"format": 1}', "\x00\x01",
        json.dumps(without("run", "now")), json.dumps(without("queue")),
        json.dumps(snapshot(status="dancing")), json.dumps(snapshot(workers=[3])), json.dumps(snapshot(version="many")),
        json.dumps(snapshot(workers=[worker("ada", 0, "flying")])), json.dumps(snapshot(staleness=[[1]])),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE).write_text(content)
    with pytest.raises(SojournError, match=r"status\.json is damaged; a server that runs writes it anew"):
        read_status(tmp_path)


def test_bytes_that_are_no_text_are_damage_and_a_newer_format_is_said(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SojournError, match="damaged"):
        read_status(tmp_path)
    (tmp_path / STATUS_FILE).write_text(json.dumps(snapshot() | {"format": 2}))
    with pytest.raises(SojournError, match="newer sojourn"):
        read_status(tmp_path)


def test_a_server_that_stopped_writing_is_said_to_be_gone_unless_its_run_has_ended() -> None:
    assert "last heard of" not in shown(snapshot(), now=NOW + 2)
    assert "The server is not running: last heard of 3 min ago." in shown(snapshot(), now=NOW + 180)
    assert "last heard of" not in shown(snapshot(status="over"), now=NOW + 180)


@pytest.mark.parametrize("width", [80, 200])
def test_the_terminal_shows_progress_losses_staleness_queue_and_every_worker(width: int) -> None:
    text = shown(snapshot(), width)
    words = " ".join(text.split())
    for piece in ("fedasync FedAsync, asynchronous", "Running: two are at work", "120 of 600 uploads", "version 120",
                  "time 5 min", "uploads per second 0.25", "queue 3", "training loss 0.3149", "test accuracy 12.00 %",
                  "rejected 4", "duplicates 5", "given up 6"):  # fmt: skip
        assert piece in words, piece
    # (0·40 + 1·60 + 4·20) / 120
    assert "staleness 1.17 (≤ 4)" in words
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "task 17" in rows["ada"] and "12 s" in rows["ada"]
    assert "silent" in rows["ben"] and "4 min" in rows["ben"]
    assert "asked no more" in rows["cleo"] and "rejected: its" in rows["cleo"]
    assert "not here yet" in rows["dot"]
    assert max(map(len, text.splitlines())) <= width


def test_a_long_name_and_a_long_remark_leave_the_numbers_whole() -> None:
    told = snapshot(workers=[worker("n" * 64, 0, applied=123_456, last="rejected: " + "very " * 100)])
    text = shown(told)
    assert "123,456" in text and "task 17" in text and "12 s" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_hostile_name_neither_steers_the_terminal_nor_is_taken_for_markup() -> None:
    text = shown(snapshot(workers=[worker(HOSTILE, 0, last=HOSTILE)], phase=HOSTILE), 400)
    assert "\x1b" not in text and "\u202e" not in text
    assert text.count("[red]·[2J·</script>") == 3


def test_rounds_have_no_staleness_and_a_private_run_says_what_it_gave_away() -> None:
    told = snapshot(mode="rounds", unit="rounds", staleness=[], queue=None, privacy={"epsilon": 2.5, "delta": 1e-5})
    facts = dict(describe(told)["facts"])
    assert facts == {
        "Version": "120", "Time": "5 min", "Uploads per second": "0.25", "Privacy": "ε = 2.5, δ = 1e−5",
    }  # fmt: skip


def test_the_rate_is_of_the_last_minute_and_not_of_a_stretch_that_happened_to_be_empty() -> None:
    short = [[seconds / 5, rate] for seconds, rate in enumerate([0.0, 10.0] * 29 + [10.0, 0.0], 1)]  # 12 s in all
    long = [[60.0 * minute, rate] for minute, rate in enumerate([9.0] * 59 + [0.5], 1)]
    for throughput, rate in ((short, "5"), (long, "0.5")):
        assert dict(describe(snapshot(throughput=throughput))["facts"])["Uploads per second"] == rate


@pytest.mark.parametrize(
    ("known", "doing"),
    [
        ({}, "not here yet"), ({"joined": True}, "silent"), ({"joined": True, "seen": NOW}, "idle"),
        ({"quarantined": True}, "asked no more"), ({"revoked": True}, "revoked"),
        ({"joined": True, "seen": NOW, "revoked": True}, "revoked"),
        ({"joined": True, "quarantined": True, "revoked": True}, "asked no more"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_worker_before_it_was_heard_and_after(
    known: dict[str, Any], doing: str, tmp_path: Path
) -> None:
    federation = sj.problems.quadratic([[[1.0]]], [[0.0]])
    book = OneByOne(federation, sj.algorithms.FedAsync(0.1, 1, mixing=0.5), tmp_path, Rules(), of=2)
    told = snapshot_of(book, [Worker("ada", 0, **known)], Tally("a", NOW), "running", NOW)
    assert describe(told)["workers"][0]["doing"] == doing


def test_before_anything_happened_there_is_nothing_to_show_and_nothing_breaks() -> None:
    told = snapshot(0, status="waiting", metrics=[], workers=[], staleness=[], throughput=[], phase="")
    text = shown(told)
    assert "uploads per second –" in text and "staleness –" in text
    assert [name for name, _ in describe(told)["facts"]] == [name for name, _ in describe(snapshot())["facts"]]
    assert "Waiting." in text and "No worker is expected." in text and "loss" not in text
