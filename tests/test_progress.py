"""The progress line: nothing where nobody looks, nothing before two seconds, then a line with the headline numbers."""

import sys
import time

import pytest

from sojourn import progress
from sojourn.progress import Display

METRICS = {"loss": 0.25, "test_accuracy": 0.5, "seconds": 3.0}


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes standard error for a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def shown_after(clock: Clock, seconds: float, enabled: bool | None, capsys: pytest.CaptureFixture[str]) -> str:
    with Display("a run", 100, enabled) as display:
        display.update(1, METRICS)
        clock.now += seconds
        display.update(42, METRICS)
    written = capsys.readouterr()
    assert written.out == ""  # results go to standard output, progress never does
    return written.err


def test_a_short_run_shows_nothing_on_a_terminal(
    clock: Clock, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown_after(clock, 1.9, None, capsys) == ""
    assert shown_after(clock, 1.9, True, capsys) == ""


def test_after_two_seconds_a_terminal_shows_how_far_the_run_is(
    clock: Clock, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_after(clock, 2.1, None, capsys)
    assert "a run" in shown
    assert "42/100" in shown
    assert "loss 0.25" in shown
    assert "test_accuracy 0.5" in shown
    assert "seconds 3" not in shown


def test_nothing_is_shown_where_nobody_looks(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    assert shown_after(clock, 60.0, None, capsys) == ""


def test_the_line_can_be_switched_off_and_on(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown_after(clock, 60.0, False, capsys) == ""
    assert "42/100" in shown_after(clock, 60.0, True, capsys)


def test_a_run_that_fails_takes_its_line_away(clock: Clock, terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="boom"), Display("a run", 100, True) as display:
        clock.now += 3
        display.update(42, METRICS)
        raise ValueError("boom")
    assert "\x1b[?25h" in capsys.readouterr().err  # the cursor is back


def test_a_run_that_only_compiles_shows_that_it_does(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Display("a run", 100, True, patience=0.05):
        time.sleep(0.5)  # ten times as long; nothing reports meanwhile
    assert "compiling" in capsys.readouterr().err
    with Display("a run", 100, True, patience=60.0):
        pass
    assert capsys.readouterr().err == ""
