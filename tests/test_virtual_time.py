"""Asynchronous runs: the compiled replay against an event loop in plain Python, reductions, resuming, mistakes."""

import heapq
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn import traces
from sojourn.algorithms import FedAsync, FedAvg, FedBuff, LocalSGD
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.driver import make_job
from sojourn.engine import replay
from sojourn.engine.replay import Replay, wavefronts
from sojourn.virtual_time import gradients_per_visit

DEVICES = traces.Devices(traces.Lognormal(sigma=1.0, client_spread=0.5), traces.Exponential(0.3))


def params(history: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(history.params, eqx.is_array))])


def play(federation: Federation, method: Any, trace: traces.Trace, uploads: int = 120, **how: Any) -> Any:
    return sj.run(federation, method, uploads, trace=trace, progress=False, **how)


def trace_of(method: Any, uploads: int = 120, **options: Any) -> traces.Trace:
    work = traces.Work(method.num_local_steps, method.uploads_per_update())
    return traces.busy(6, uploads, DEVICES, work, **{"concurrency": 4, "seed": 5, **options})


def live(trace: traces.Trace, method: Any, uploads: int, weigh: Any) -> np.ndarray:
    """One client at a time, as a server would live it: events on a heap, a copy of the model with everyone under way.

    Quadratics with exact gradients, in NumPy; it knows neither slots nor versions nor waves.
    """
    hessians, optima = random_quadratics()
    x, total, applied, version = np.zeros(optima.shape[1]), 0.0, 0, 0
    tasks = trace.tasks
    # at one instant uploads come first, in the order of their tasks
    events = [(row.applied, 0, task) for task, row in enumerate(tasks.itertuples()) if row.fate == "accepted"]
    events += [(row.dispatched, 1, task) for task, row in enumerate(tasks.itertuples())]
    heapq.heapify(events)
    carried: dict[int, tuple[np.ndarray, int]] = {}
    while events and applied < uploads:
        _, kind, task = heapq.heappop(events)
        if kind == 1:
            carried[task] = (x.copy(), version)
            continue
        start, born = carried.pop(task)
        client, y = int(tasks["client"].iloc[task]), start.copy()
        for _ in range(method.num_local_steps):
            pull = float(getattr(method, "proximal_weight", 0.0)) * (y - start)
            y = y - float(method.step_size) * (hessians[client] @ (y - optima[client]) + pull)
        applied += 1
        if isinstance(method, FedAsync):
            alpha = float(method.mixing) * weigh(version - born)
            x, version = (1 - alpha) * x + alpha * y, version + 1
        else:
            total = total + weigh(version - born) * (y - start)
            if applied % method.buffer_size == 0:
                x, total, version = x + float(method.server_step_size) * total / method.buffer_size, 0.0, version + 1
    return x


METHODS: dict[str, tuple[Any, Any]] = {  # each made in the test's own precision
    "constant": (lambda: FedAsync(0.1, 3, mixing=0.5, proximal_weight=0.2), lambda s: 1.0),
    "polynomial": (lambda: FedAsync(0.1, 3, staleness_weight="polynomial", exponent=0.7), lambda s: (s + 1) ** -0.7),
    "hinge": (
        lambda: FedAsync(0.1, 3, staleness_weight="hinge", slope=2.0, threshold=1.0),
        lambda s: 1.0 if s <= 1 else 1 / (2.0 * (s - 1) + 1),
    ),
    "buffer": (lambda: FedBuff(0.1, 3, buffer_size=4, server_step_size=1.3), lambda s: (s + 1) ** -0.5),
    "delayed": (lambda: FedBuff(0.1, 2, buffer_size=1, staleness_weight="constant"), lambda s: 1.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_replay_is_what_a_server_would_live(name: str, quadratics: Federation) -> None:
    method, weigh = METHODS[name][0](), METHODS[name][1]
    for seed, options in enumerate(
        [{}, {"concurrency": 6, "dropout": 0.2}, {"server_seconds": 0.4}, {"max_staleness": 3}, {"concurrency": 1}]
    ):
        trace = trace_of(method, seed=seed, **options)
        expected = live(trace, method, 120, weigh)
        np.testing.assert_allclose(params(play(quadratics, method, trace)), expected, rtol=1e-9, atol=1e-11)
    found, wrong = play(quadratics, method, trace_of(method)), live(trace_of(method), method, 120, lambda s: 0.5)
    assert abs(wrong - params(found)).max() > 1e-4
    uniform = traces.uniform_staleness(6, 120, max_staleness=5)
    if method.uploads_per_update() == 1:
        expected = live(uniform, method, 120, weigh)
        np.testing.assert_allclose(params(play(quadratics, method, uniform)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["polynomial", "buffer"])
def test_waves_chunks_and_engines_do_not_change_the_result(name: str, noisy_quadratics: Federation) -> None:
    method = METHODS[name][0]()
    trace = trace_of(method, concurrency=6)
    reference = play(noisy_quadratics, method, trace, engine="reference")
    wide = [play(noisy_quadratics, method, trace, engine=Replay(trace, lanes=lanes)) for lanes in (1, 2, 4, 8)]
    for history in wide:
        np.testing.assert_allclose(params(history), params(reference), rtol=1e-12, atol=1e-13)
    columns = ["virtual_seconds", "staleness", "client", "mixing_weight", "floats_down", "floats_up", "calls_grad"]
    for column in columns:
        np.testing.assert_allclose(wide[2].table[column], reference.table[column], rtol=1e-12)
    assert len(wavefronts(trace.uploads, 0, 120, 4)) < 80, "waves are waves"


def test_other_waves_with_the_same_lanes_give_the_same_bits(noisy_quadratics: Federation, monkeypatch: Any) -> None:
    method = METHODS["polynomial"][0]()
    trace = trace_of(method, concurrency=6)
    whole = play(noisy_quadratics, method, trace, engine=Replay(trace, lanes=4))
    monkeypatch.setattr("sojourn.engine.replay.wavefronts", _ragged)
    ragged = play(noisy_quadratics, method, trace, engine=Replay(trace, lanes=4))
    np.testing.assert_array_equal(params(whole), params(ragged))
    monkeypatch.setattr("sojourn.engine.replay.wavefronts", _too_early)
    wrong = play(noisy_quadratics, method, trace, engine=Replay(trace, lanes=4))
    assert abs(params(wrong) - params(whole)).max() > 1e-3, "waves that ignore who started from what would be noticed"


def _ragged(uploads: Any, first: int, last: int, width: int, apart: bool = False) -> list[tuple[int, int]]:
    """The same waves, some of them cut in two."""
    cut = []
    for a, b in wavefronts(uploads, first, last, width, apart):
        middle = a + 1 if a % 3 == 0 and b - a > 1 else b
        cut += [(a, middle), (middle, b)] if middle < b else [(a, b)]
    return cut


def _too_early(uploads: Any, first: int, last: int, width: int, apart: bool = False) -> list[tuple[int, int]]:
    return [(a, min(a + width, last)) for a in range(first, last, width)]


# --- reductions --------------------------------------------------------------------------------------------------


def test_one_fresh_client_with_full_mixing_is_sgd(x64: None) -> None:
    hessians, optima = random_quadratics(num_clients=1)
    alone = sj.problems.quadratic(hessians, optima)
    trace = traces.busy(1, 30, work=traces.Work(4), concurrency=1)
    assert (trace.uploads.staleness == 0).all()
    found = play(alone, FedAsync(0.1, 4, mixing=1.0, proximal_weight=0.0), trace, 30)
    plain = sj.run(alone, LocalSGD(0.1, 4), 30, progress=False)
    np.testing.assert_allclose(params(found), params(plain), rtol=1e-13)
    pulled = play(alone, FedAsync(0.1, 4, mixing=1.0, proximal_weight=0.5), trace, 3)
    assert (
        abs(params(pulled) - params(play(alone, FedAsync(0.1, 4, mixing=1.0, proximal_weight=0.0), trace, 3))).max()
        > 1e-3
    )


def test_a_buffer_of_all_clients_without_staleness_is_fedavg(quadratics: Federation) -> None:
    method = FedBuff(0.1, 5, buffer_size=6)
    trace = traces.busy(6, 60, traces.Devices(traces.Constant()), traces.Work(5, 6), concurrency=6)
    assert (trace.uploads.staleness == 0).all(), "all come back at once, and are sent away together"
    found, plain = play(quadratics, method, trace, 60), sj.run(quadratics, FedAvg(0.1, 5), 10, progress=False)
    np.testing.assert_allclose(params(found), params(plain), rtol=1e-12)
    uneven = traces.busy(6, 60, DEVICES, traces.Work(5, 6), concurrency=6)
    assert abs(params(play(quadratics, method, uneven, 60)) - params(plain)).max() > 1e-4


def test_constant_and_hinge_are_the_same_up_to_the_threshold(noisy_quadratics: Federation) -> None:
    """The exact claim of the paper's figure 2: maximum staleness 4, b = 4."""
    fresh, old = (traces.uniform_staleness(6, 200, max_staleness=s) for s in (4, 16))
    constant, hinge = FedAsync(0.05, 3), FedAsync(0.05, 3, staleness_weight="hinge", threshold=4.0)
    loss = lambda method, trace: play(noisy_quadratics, method, trace, 200).table["loss"].to_numpy()  # noqa: E731
    np.testing.assert_allclose(loss(constant, fresh), loss(hinge, fresh), rtol=1e-13)  # two programs, one rule
    assert not np.allclose(loss(constant, old), loss(hinge, old), rtol=1e-3, equal_nan=True)


def test_mixing_is_a_convex_combination_and_may_be_halved(quadratics: Federation) -> None:
    trace = traces.busy(6, 40, work=traces.Work(2), concurrency=3)
    table = play(quadratics, FedAsync(0.1, 2, mixing=0.8, halve_at=10), trace, 40).table
    np.testing.assert_allclose(table["mixing_weight"][1:11], 0.8)
    np.testing.assert_allclose(table["mixing_weight"][11:], 0.4)


def test_tasks_may_differ_in_length(noisy_quadratics: Federation) -> None:
    trace = traces.busy(6, 40, work=traces.Work(5), concurrency=3)
    method = FedAsync(0.1, 5, min_local_steps=2)
    wide, reference = (play(noisy_quadratics, method, trace, 40, engine=e) for e in ("compiled", "reference"))
    np.testing.assert_allclose(params(wide), params(reference), rtol=1e-11)
    assert set(wide.table["local_steps"][1:]) == {2, 3, 4, 5}


# --- the run -----------------------------------------------------------------------------------------------------


def test_a_stopped_run_goes_on_to_the_same_bits(noisy_quadratics: Federation, tmp_path: Path) -> None:
    method = METHODS["polynomial"][0]()
    whole = play(noisy_quadratics, method, trace_of(method, 300), 300, out=tmp_path / "whole")
    play(noisy_quadratics, method, trace_of(method, 110), 110, out=tmp_path / "parts")
    longer = trace_of(method, 300)
    parts = play(noisy_quadratics, method, longer, 300, out=tmp_path / "parts", resume=True)
    np.testing.assert_array_equal(params(parts), params(whole))
    kept = traces.read_trace(tmp_path / "parts" / "trace.parquet", 6)
    assert len(kept) == 300 and parts.manifest["trace"] == whole.manifest["trace"]
    with pytest.raises(SojournError):
        play(noisy_quadratics, method, trace_of(method, 400, seed=6), 400, out=tmp_path / "parts", resume=True)


def test_a_queue_that_grew_cannot_be_resumed_unnoticed(noisy_quadratics: Federation, tmp_path: Path) -> None:
    """Uploads that wait hold their models, so a longer trace may need more slots than were saved."""
    method = METHODS["polynomial"][0]()
    short, long = (trace_of(method, n, server_seconds=1.5, concurrency=6) for n in (60, 900))
    assert short.num_slots < long.num_slots
    play(noisy_quadratics, method, short, 60, out=tmp_path / "run")
    with pytest.raises(SojournError):
        play(noisy_quadratics, method, long, 900, out=tmp_path / "run", resume=True)


def test_a_clock_file_that_changed_is_another_run(quadratics: Federation, tmp_path: Path) -> None:
    clock = tmp_path / "clock.csv"
    clock.write_text("client,seconds\n" + "".join(f"{client},9\n" for client in range(6)))
    devices = traces.Devices(traces.FromFile(str(clock)))
    how = {"devices": devices, "progress": False, "out": tmp_path / "run"}
    sj.run(quadratics, FedAvg(0.1, 2), 3, **how)
    clock.write_text(clock.read_text().replace("9", "2"))
    with pytest.raises(SojournError):
        sj.run(quadratics, FedAvg(0.1, 2), 6, **how, resume=True)


def test_a_first_round_of_another_kind_is_timed_as_it_is(quadratics: Federation) -> None:
    devices = traces.Devices(traces.Constant(1.0))
    method = sj.algorithms.FedAMS(0.01, 4, warm_start="gradients")
    times = sj.run(quadratics, method, 3, devices=devices, progress=False).table["virtual_seconds"].to_numpy()
    opening = sum(gradients_per_visit(quadratics, method, opening=True))
    assert np.diff(times).tolist() == [opening, 4.0, 4.0] and opening != 4


def test_a_sweep_in_python_takes_a_trace(quadratics: Federation) -> None:
    trace = traces.busy(6, 40, work=traces.Work(2), concurrency=3)
    history = sj.sweep(quadratics, lambda a: FedAsync(0.1, 2, mixing=a), [0.3, 0.6], 40, trace=trace, progress=False)
    alone = play(quadratics, FedAsync(0.1, 2, mixing=0.6), trace, 40).table
    found = history.table[history.table["value"] == 0.6]
    np.testing.assert_array_equal(found["loss"], alone["loss"])
    assert "trace" not in history.manifest


def test_what_is_sent_counts_everyone_who_was_asked(quadratics: Federation) -> None:
    method = FedAsync(0.05, 2)
    trace = trace_of(method, 120, dropout=0.3, max_staleness=4)
    table = play(quadratics, method, trace).table
    uploads = trace.uploads
    assert table["floats_down"].sum() == 4 * uploads.handed_out[:120].sum() > 4 * 120
    assert table["floats_up"].sum() == 4 * (120 + uploads.dropped[:120].sum())
    assert table["lost"].sum() == uploads.lost[:120].sum() > 0 < table["dropped"].sum()
    assert (table["local_steps"][1:] == 2).all() and table["virtual_seconds"].is_monotonic_increasing


def test_synchronous_rounds_take_as_long_as_their_slowest(quadratics: Federation, tmp_path: Path) -> None:
    devices = traces.Devices(traces.SpeedClasses([1.0, 7.0], [0.5, 0.5]), traces.Constant(0.25))
    history = sj.run(quadratics, FedAvg(0.1, 3), 20, devices=devices, progress=False)
    np.testing.assert_allclose(np.diff(history.table["virtual_seconds"]), 3 * 7.0 + 0.5)
    plain = sj.run(quadratics, FedAvg(0.1, 3), 20, progress=False)
    np.testing.assert_array_equal(params(history), params(plain)), "clocks only watch"
    assert "virtual_seconds" not in plain.table
    some = sj.run(quadratics, FedAvg(0.1, 3), 40, devices=devices, participation=1, progress=False)
    assert set(np.round(np.diff(some.table["virtual_seconds"]), 6)) == {3.5, 21.5}
    first = {"devices": devices, "participation": 1, "progress": False, "out": tmp_path / "run"}
    sj.run(quadratics, FedAvg(0.1, 3), 15, **first)
    resumed = sj.run(quadratics, FedAvg(0.1, 3), 40, **first, resume=True)
    np.testing.assert_array_equal(resumed.table["virtual_seconds"], some.table["virtual_seconds"])


def test_clocks_count_the_gradients_of_an_exchange(quadratics: Federation, noisy_quadratics: Federation) -> None:
    assert gradients_per_visit(quadratics, FedAvg(0.1, 7)) == [7]
    minibatch = sj.algorithms.MinibatchSGD(0.1, num_local_steps=5)
    assert gradients_per_visit(quadratics, minibatch) == [1], "an exact gradient is one"
    assert gradients_per_visit(noisy_quadratics, minibatch) == [5]
    assert gradients_per_visit(quadratics, FedAsync(0.1, 6, min_local_steps=2)) == [6]


@pytest.mark.parametrize("name", METHODS)
def test_other_numbers_seeds_and_traces_do_not_compile(name: str, noisy_quadratics: Federation) -> None:
    make = METHODS[name][0]
    play(noisy_quadratics, make(), trace_of(make()), seed=0)
    programs = replay._replay._cache_size()
    other = eqx.tree_at(lambda m: m.step_size, make(), jnp.asarray(0.03, jnp.float64))
    play(noisy_quadratics, other, trace_of(make(), seed=9, concurrency=4), seed=1)
    assert replay._replay._cache_size() == programs
    play(noisy_quadratics, make(), trace_of(make(), concurrency=5))
    assert replay._replay._cache_size() == programs + 1, "more slots are another program"


def test_a_network_learns_from_real_digits_without_rounds() -> None:
    data = sj.data.load("digits")
    clients = sj.partition.shards(data.y_train, 20)
    federation = sj.problems.classification(data, clients, sj.models.mlp((64,), 10, jax.random.key(0)), batch_size=10)
    trace = traces.busy(20, 300, DEVICES, traces.Work(5), concurrency=8)
    method = FedAsync(0.2, 5, staleness_weight="polynomial")
    found, plain = (play(federation, method, trace, 300, eval_every=100, engine=e) for e in ("compiled", "reference"))
    np.testing.assert_allclose(params(found), params(plain), atol=2e-5)
    assert found.table["test_accuracy"].iloc[-1] > 0.6


def test_lanes_are_filled_or_not_opened(quadratics: Federation) -> None:
    def lanes(trace: traces.Trace) -> int:
        how = {"engine": "compiled", "participation": None, "eval_every": None, "record": ()}
        return make_job(quadratics, FedAsync(0.1), 100, trace=trace, **how).plan.width

    assert lanes(traces.busy(6, 100, work=traces.Work(10), concurrency=1)) == 1
    assert lanes(traces.busy(6, 100, work=traces.Work(10), concurrency=6)) >= 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trace": None}, "takes uploads one by one"),
        ({"method": FedAvg(0.1)}, "works in rounds and follows no trace"),
        ({"participation": 3}, "leave participation out"),
        ({"devices": traces.Devices()}, "leave devices out"),
        (
            {"trace": traces.busy(7, 100, concurrency=2)},
            "is of 7 clients, the federation has 6",
        ),
        ({"method": FedBuff(0.1)}, "makes a version of every 10 uploads, the trace of every 1"),
        ({"rounds": 10_000}, "fewer than the 10000 asked for"),
        ({"record": ("consensus",)}, "compares the clients of a round"),
        ({"method": FedAsync(0.1, 3)}, r"computes 3 gradients in a task, and the trace was made for tasks of 10"),
        ({"trace": "trace.csv"}, "a trace is made by sojourn.traces.busy or read_trace"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(change: dict, sentence: str, quadratics: Federation) -> None:
    given: dict[str, Any] = {
        "method": FedAsync(0.1),
        "rounds": 50,
        "trace": traces.busy(6, 100, work=traces.Work(10), concurrency=2),
        **change,
    }
    with pytest.raises(SojournError, match=sentence):
        sj.run(quadratics, given.pop("method"), given.pop("rounds"), progress=False, **given)


@pytest.mark.parametrize("mixing", [0.0, 1.2, -0.1, float("nan")])
def test_alpha_outside_its_range_is_refused(mixing: float) -> None:
    with pytest.raises(SojournError, match="mixing"):
        FedAsync(0.1, mixing=mixing)


def test_samples_that_change_hands_need_rounds() -> None:
    data = sj.data.load("digits")
    dealt = sj.partition.redealt(sj.partition.iid(data.y_train, 6), data.y_train, "all")
    federation = sj.problems.classification(data, dealt, sj.models.mlp((64,), 10, jax.random.key(0)), batch_size=4)
    with pytest.raises(SojournError, match="need rounds; leave redeal out"):
        play(federation, FedAsync(0.1), traces.busy(6, 100, concurrency=2), 10)
