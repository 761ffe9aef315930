"""Traces: what no schedule may do, on random ones; laws of clocks; files; slots; and mistakes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sojourn import traces
from sojourn.core.errors import SojournError
from sojourn.traces.trace import ACCEPTED, FATES, STALE, UNFINISHED


def some_devices(number: int) -> traces.Devices:
    clocks = [
        traces.Constant(),
        traces.Uniform(),
        traces.Lognormal(sigma=1.0, client_spread=0.5),
        traces.Exponential(),
        traces.Pareto(tail=1.1),
        traces.SpeedClasses(),
    ]
    delays = [traces.Constant(0.0), traces.Exponential(0.2)]
    nights = [traces.DayNight(period=30.0, share=0.6), traces.DayNight(period=11.0, share=0.5, spread=0.0)]
    presences = [traces.Always(), *nights]
    return traces.Devices(clocks[number % 6], delays[number % 2], presences[number % 3])


def some_trace(number: int, uploads: int = 300) -> traces.Trace:
    rng = np.random.default_rng(number)
    clients = int(rng.integers(2, 30))
    options: dict[str, Any] = {
        "concurrency": int(rng.integers(1, clients + 1)), "seed": number, "dropout": 0.3 * (number % 4 == 0),
        "choice": ("uniform", "round-robin", "weighted")[number % 3],
        "max_staleness": 6 if number % 5 == 0 else None, "timeout": 9.0 if number % 7 == 0 else None,
        "server_seconds": 0.05 if number % 2 else 0.0,
    }  # fmt: skip
    work = traces.Work(int(rng.integers(1, 4)), 1 + 2 * (number % 3 == 1), rng.random(clients) + 0.1)
    return traces.busy(clients, uploads, some_devices(number), work, **options)


@pytest.mark.parametrize("number", range(24))
def test_no_schedule_does_what_cannot_be(number: int) -> None:
    trace = some_trace(number)
    tasks, uploads = trace.tasks, trace.uploads
    traces.Trace(tasks, trace.num_clients)  # checks
    assert len(trace) > 300 and set(tasks["fate"]) <= set(FATES)
    for _, own in tasks.groupby("client"):  # in one place at a time: it works from when it is asked until it is back
        assert (own["dispatched"].to_numpy()[1:] >= own["arrived"].to_numpy()[:-1]).all()
    times = np.concatenate([tasks["dispatched"], tasks["arrived"]])
    change = np.concatenate([np.ones(len(tasks)), -np.ones(len(tasks))])
    at_work = np.cumsum(change[np.lexsort((change, times))])
    assert at_work.max() <= trace.about["concurrency"]
    assert (uploads.staleness >= 0).all(), "no version from the future"
    for name in ("task", "client"):
        np.testing.assert_array_equal(
            getattr(uploads, name), tasks[name][uploads.task] if name == "client" else trace.order
        )
    assert (np.diff(uploads.time) >= 0).all() and (uploads.queue >= 0).all()
    if trace.about["max_staleness"] is not None:
        assert uploads.staleness.max() <= trace.about["max_staleness"]
    if trace.about["timeout"] is not None:
        assert (tasks["arrived"] - tasks["dispatched"] <= trace.about["timeout"] + 1e-9).all()
    finished = tasks[tasks["fate"] != UNFINISHED]
    last = uploads.time[-1]
    counted = uploads.handed_out.sum(), uploads.dropped.sum(), uploads.lost.sum()
    started = (tasks["dispatched"] < last).sum()
    assert counted[0] == started
    assert counted[1] == (finished["fate"] == STALE).sum()
    assert len(finished) == len(trace) + counted[1] + counted[2], "every start has an arrival or a recorded loss"


def live_versions(trace: traces.Trace) -> tuple[np.ndarray, np.ndarray]:
    """Staleness, and the uploads applied before each start, by walking through all instants one by one."""
    tasks = trace.tasks
    applied, staleness, started = 0, [], {}
    instants = sorted({*tasks["dispatched"], *tasks["applied"]})
    for now in instants:
        for task in np.flatnonzero((tasks["applied"] == now) & (tasks["fate"] == ACCEPTED)):
            staleness.append(applied // trace.uploads_per_update - started[task] // trace.uploads_per_update)
            applied += 1
        for task in np.flatnonzero(tasks["dispatched"] == now):
            started[task] = applied
    return np.array(staleness), np.array([started[task] for task in range(len(tasks))])


@pytest.mark.parametrize("number", range(6))
def test_versions_slots_and_waves_are_what_a_walk_through_time_finds(number: int) -> None:
    trace = some_trace(number, 150).until(150)
    staleness, started = live_versions(trace)
    np.testing.assert_array_equal(trace.uploads.staleness, staleness)
    np.testing.assert_array_equal(trace.versions, started // trace.uploads_per_update)
    slots: dict[int, int] = {int(trace.writes[0]): 0}  # slot -> version
    for upload in range(len(trace)):
        assert slots[int(trace.uploads.read[upload])] == trace.versions[trace.uploads.task[upload]]
        assert trace.uploads.ready[upload] <= upload
        if trace.writes[upload + 1] < trace.num_slots:
            slots[int(trace.writes[upload + 1])] = (upload + 1) // trace.uploads_per_update
    if trace.about["server_seconds"] == 0:
        assert trace.num_slots <= trace.about["concurrency"], "a model for each client at work, whatever the staleness"


@pytest.mark.parametrize("make", [traces.busy, traces.uniform_staleness])
def test_a_longer_trace_begins_with_the_shorter(make: Any) -> None:
    options = {"seed": 3}
    short, long = make(12, 280, **options), make(12, 500, **options)
    assert short.identity == long.identity and short.num_slots == long.num_slots
    for name in ("client", "task", "time", "staleness", "read", "ready", "handed_out"):
        np.testing.assert_array_equal(getattr(short.uploads, name)[:280], getattr(long.uploads, name)[:280])
    np.testing.assert_array_equal(short.writes[:281], long.writes[:281])
    assert make(12, 280, seed=4).identity != short.identity


def test_the_papers_protocol_draws_ages_uniformly() -> None:
    trace = traces.uniform_staleness(100, 4000, max_staleness=4)
    ages = trace.uploads.staleness[4:4000]
    assert stats.chisquare(np.bincount(ages, minlength=5)).pvalue > 1e-3 and ages.max() == 4
    assert (trace.uploads.staleness[:4] <= np.arange(4)).all(), "nothing is older than the run"
    assert trace.num_slots <= 6
    old = traces.uniform_staleness(100, 300, max_staleness=4, min_staleness=4).uploads.staleness
    assert (old[4:] == 4).all()


@pytest.mark.parametrize(
    ("clock", "law"),
    [
        (traces.Uniform(1.0, 3.0), stats.uniform(1, 2)),
        (traces.Lognormal(2.0, 0.7), stats.lognorm(0.7, scale=2)),
        (traces.Exponential(0.5), stats.expon(scale=0.5)),
        (traces.Pareto(1.5, 2.5), stats.pareto(2.5, scale=1.5)),
        (traces.Constant(1.0, client_spread=0.8), stats.lognorm(0.8)),
    ],
)
def test_clocks_have_their_laws(clock: Any, law: Any) -> None:
    draw = clock.prepare(2000, np.random.default_rng(0))
    found = [draw(client) for client in range(2000)]
    assert stats.kstest(found, law.cdf).pvalue > 1e-3
    assert stats.kstest(found, stats.norm(law.mean(), law.std()).cdf).pvalue < 1e-3, "another law would be noticed"


def test_speed_classes_stay_with_their_clients() -> None:
    draw = traces.SpeedClasses([1.0, 5.0], [3.0, 1.0]).prepare(40, np.random.default_rng(0))
    first, second = ([draw(client) for client in range(40)] for _ in range(2))
    assert first == second and sorted(first) == [1.0] * 30 + [5.0] * 10


def test_a_day_has_a_night() -> None:
    presence = traces.DayNight(period=10.0, share=0.3).prepare(5, np.random.default_rng(0))
    for client in range(5):
        times = np.linspace(0, 40, 4001)
        there = np.array([presence.opens(np.array([client]), t)[0] == t for t in times])
        assert there.mean() == pytest.approx(0.3, abs=0.01)
        asleep = times[np.flatnonzero(~there)[0]]
        wakes = presence.opens(np.array([client]), asleep)[0]
        assert wakes - asleep <= 7 and presence.closes(client, wakes + 1e-9) == pytest.approx(wakes + 3)


def test_files_say_how_long_and_when(tmp_path: Path) -> None:
    clock, windows = tmp_path / "clock.csv", tmp_path / "windows.csv"
    clock.write_text("client,seconds\n0,1\n1,2\n0,3\n")
    draw = traces.FromFile(str(clock)).prepare(2, np.random.default_rng(0))
    assert [draw(0), draw(0), draw(0), draw(1)] == [1.0, 3.0, 1.0, 2.0]
    windows.write_text("client,start,end\n0,0,4\n1,2,5\n0,3,6\n0,9,12\n")
    presence = traces.WindowsFromFile(str(windows)).prepare(2, np.random.default_rng(0))
    assert [presence.opens(np.array([0, 1]), t).tolist() for t in (0, 5, 7)] == [[0, 2], [5, math.inf], [9, math.inf]]
    assert presence.closes(0, 1.0) == 6


def test_a_trace_is_saved_and_read_back(tmp_path: Path) -> None:
    trace = some_trace(4, 50).until(50)
    for name in ("trace.csv", "trace.parquet"):
        trace.save(tmp_path / name)
        back = traces.read_trace(tmp_path / name, trace.num_clients, trace.uploads_per_update)
        np.testing.assert_array_equal(back.uploads.task, trace.uploads.task)
        np.testing.assert_array_equal(back.uploads.staleness, trace.uploads.staleness)
        np.testing.assert_array_equal(back.uploads.lost, trace.uploads.lost)
    found = traces.from_file(trace.num_clients, 50, path=str(tmp_path / "trace.csv"))
    assert found.identity != traces.busy(5, 50, concurrency=2).identity


def test_the_share_of_work_is_that_of_the_tasks() -> None:
    alone = traces.busy(4, 300, traces.Devices(traces.Constant(2.0)), concurrency=1, choice="round-robin")
    np.testing.assert_allclose(alone.busy(), 0.25, atol=0.01)
    np.testing.assert_allclose(traces.busy(4, 300, concurrency=4).busy(), 1.0)
    assert traces.uniform_staleness(2, 100, max_staleness=16).busy().max() <= 1, "who is in two places works once"


def test_a_busy_server_makes_uploads_wait() -> None:
    quick, slow = (traces.busy(10, 300, traces.Devices(traces.Exponential()), server_seconds=s) for s in (0.0, 0.3))
    assert quick.uploads.queue.max() == 0 < slow.uploads.queue.max()
    assert np.diff(slow.uploads.time).min() >= 0.3 - 1e-9


def test_synchronous_rounds_wait_for_the_slowest() -> None:
    devices = traces.Devices(traces.SpeedClasses([1.0, 5.0], [1.0, 1.0]), traces.Constant(0.5))
    kinds = traces.SpeedClasses([1.0, 5.0], [1.0, 1.0])
    clock = traces.RoundClock(devices, 4, 0)
    step = devices.prepare(4, 0).step
    assert kinds and clock.play([np.array([0, 1])], [3]) == pytest.approx(max(3 * step(0), 3 * step(1)) + 1.0)
    before = clock.now
    assert clock.play([np.array([2]), np.array([3])], [1, 2]) == pytest.approx(before + step(2) + 2 * step(3) + 2.0)
    away = traces.RoundClock(traces.Devices(traces.Constant(2.0), availability=traces.DayNight(10.0, 0.5)), 3, 1)
    assert away.play([np.arange(3)], [1]) > 2.0, "whoever is away is waited for"
    never = traces.RoundClock(traces.Devices(traces.Constant(6.0), availability=traces.DayNight(10.0, 0.5)), 3, 1)
    with pytest.raises(SojournError, match="client 0 is never there long enough for its 1 steps"):
        never.play([np.arange(3)], [1])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: traces.busy(10, 5, concurrency=0), "concurrency = 0 does not fit; expected a whole number at least 1"),
        (
            lambda: traces.busy(10, 5, concurrency=11),
            "is more than the 10 clients there are; lower it",
        ),
        (lambda: traces.busy(10, 5, dropout=1.0), "dropout = 1.0"),
        (lambda: traces.busy(10, 5, timeout=0.0), "timeout = 0.0"),
        (lambda: traces.busy(10, 5, timeout=0.5), "none is accepted any more; of the last tasks most were timed out"),
        (lambda: traces.busy(10, 5, traces.Devices(traces.Pareto(tail=0.05))), "lost in rounding"),
        (lambda: traces.busy(10, 5, choice="weighted"), "a positive weight for every client"),
        (lambda: traces.busy(0, 5), "num_clients = 0 is out of range"),
        (lambda: traces.busy(10, "5"), "uploads = '5' is out of range"),
        (lambda: traces.busy(10, 5, traces.Pareto()), "are no devices"),
        (lambda: traces.Devices(2.0), "devices.clock is 2.0"),
        (lambda: traces.Constant(-1.0), "Constant.seconds = -1.0 does not fit"),
        (lambda: traces.DayNight(share=-1.0), "DayNight.share = -1.0"),
        (lambda: traces.Pareto(tail=0.0), "Pareto.tail = 0.0"),
        (lambda: traces.Work(1, 0), "uploads_per_update = 0 is out of range"),
        (lambda: traces.busy(5, 5).until(0), "not 0; make a longer one"),
        (lambda: traces.busy(5, 5).save("trace.json"), "does not end in .csv or .parquet"),
        (lambda: traces.Trace(tasks(applied=[1.0, math.inf]), 3), "column applied holds what is no finite number"),
        (lambda: traces.Trace(tasks(client=["a", "b"]), 3), "column client holds what is no finite number"),
        (lambda: traces.Trace(tasks(arrived=[1.0, 5.0]), 3), "task 1 starts at 0.5"),
        (lambda: traces.busy(10, 5, traces.Devices(traces.Constant(0.0))), "give a clock of positive times"),
        (lambda: traces.busy(10, 5, traces.Devices(traces.Uniform(3.0, 1.0))), "runs backwards"),
        (
            lambda: traces.busy(10, 5, traces.Devices(traces.SpeedClasses([1.0], [0.5, 0.5]))),
            "and 2 shares",
        ),
        (lambda: traces.uniform_staleness(5, 5, max_staleness=1, min_staleness=2), "is above max_staleness"),
        (
            lambda: traces.Trace(tasks(applied=[1.0, 0.5]), 3),
            "starts at 0.5 and ends at 0.5; time must not go back",
        ),
        (lambda: traces.Trace(tasks(client=[0, 3]), 3), "the trace names client 3; there are clients 0 to 2"),
        (lambda: traces.Trace(tasks(dispatched=[0.0, -1.0]), 3), "task 1 starts at -1"),
        (lambda: traces.Trace(tasks(dispatched=[0.7, 0.5]), 3), "in the order of their starts"),
        (lambda: traces.Trace(tasks(fate=["accepted", "eaten"]), 3), "a task's fate is 'eaten'"),
        (lambda: traces.Trace(tasks(fate=["lost", "lost"]), 3), "nothing would be learned"),
        (lambda: traces.Trace(tasks().drop(columns="fate"), 3), "has no column fate"),
        (lambda: traces.busy(10, 5).until(9999), "not 9999; make a longer one"),
        (lambda: traces.FromFile("/nowhere.csv").prepare(1, np.random.default_rng(0)), "does not exist"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        make()


def tasks(**changes: Any) -> pd.DataFrame:
    good = {"client": [0, 1], "dispatched": [0.0, 0.5], "applied": [1.0, 2.0], "fate": ["accepted", "accepted"]}
    return pd.DataFrame({**good, **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,seconds\n0,-1\n", "negative"),
        ("client,seconds\n7,1\n", "names client 7; there are clients 0 to 1"),
        ("client,seconds\n0,1\n", "says nothing of client 1"),
        ("client,hours\n0,1\n", "no column seconds"),
        ("client,seconds\n0,long\n", "what is no number"),
        ("client,seconds\n", "no rows"),
    ],
)
def test_a_file_of_durations_is_checked(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "clock.csv"
    path.write_text(text)
    with pytest.raises(SojournError, match=sentence):
        traces.FromFile(str(path)).prepare(2, np.random.default_rng(0))


def test_a_window_that_ends_before_it_starts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_text("client,start,end\n0,3,2\n")
    with pytest.raises(SojournError, match="time must not go backwards"):
        traces.WindowsFromFile(str(path)).prepare(1, np.random.default_rng(0))
    path.write_text("client,start,end\n0,0,2\n")
    with pytest.raises(SojournError, match="nobody is there any more"):
        traces.busy(1, 5, traces.Devices(availability=traces.WindowsFromFile(str(path))), concurrency=1)
