"""Every way of running gives the numbers of the simplest one: engines, placements, chunks, sweeps."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn import driver
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.driver import make_job
from sojourn.engine import Compiled, compiled
from sojourn.engine.accounting import one_memory, wire_of
from sojourn.engine.rounds import RunState, start
from sojourn.history import History, table_of
from test_contract import IN_ROUNDS, bits, make, phases, quick_compilation

# Sums in another order: a few units in the last place of float64 (2e-16) per operation on numbers of order one, for a
# few rounds of a contraction. Measured: below 1e-14.
ROUNDING = 1e-12

run = functools.partial(sj.run, progress=False)
_GUARDS: list[dict[str, Any]] = [
    {"aggregator": "median"},
    {"aggregator": "krum", "attackers": 1, "keep": 2},
    {"clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-3},
]
GUARDS = pytest.mark.parametrize(
    "guard", [{"weights": "equal", **guard} for guard in _GUARDS], ids=["median", "krum", "private"]
)


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


QUICK = pytest.mark.usefixtures("quick")  # tests of the driver's logic; the others run fully optimized programs


def play(
    federation: Federation, algorithm: Algorithm, engine: Any, rounds: int = 3, participation: int | None = None
) -> tuple[RunState, pd.DataFrame]:
    """The last state and the table of an engine alone, without the driver's own programs, which cost compilations."""
    how: dict[str, Any] = {"participation": participation, "eval_every": 2, "record": ("model_norm",)}
    job = make_job(federation, algorithm, rounds, engine=engine, **how)
    clients, state, tables = job.federation.clients, start(algorithm, federation, root_key(0)), []
    server, memory = jax.eval_shape(algorithm.init_server, federation.x0), one_memory(algorithm, federation.x0)
    for plan in phases(algorithm, job.plan):
        wires = [wire_of(exchange, clients, server, memory) for exchange in plan.exchanges(algorithm)]
        first = int(state.round)
        length = 1 if plan.opening else rounds - first
        if length == 0:
            continue  # an opening was all
        state, rows, done = job.engine.advance(algorithm, clients, state, job.course(length), plan)
        rows = jax.tree.map(lambda a, done=done: np.asarray(a)[: int(done)], rows)
        tables.append(table_of(rows, wires, first + 1, 0.0))
    return state, pd.concat(tables, ignore_index=True)


def assert_same_table(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """All columns but the seconds; counts exactly, measurements to rounding."""
    found, expected = found.drop(columns="seconds"), expected.drop(columns="seconds")
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=0, atol=ROUNDING)
    whole = expected.select_dtypes(["integer", "bool"]).columns
    pd.testing.assert_frame_equal(found[whole], expected[whole])


def assert_same_state(found: RunState, expected: RunState, atol: float = ROUNDING) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    parts = [(found.server, expected.server), (found.memory, expected.memory)]
    for a, b in zip(*(jax.tree.leaves(side) for side in zip(*parts, strict=True)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=atol)


def noisy(num_clients: int = 5) -> Federation:
    """With noise and unequal weights."""
    weights = np.arange(1, num_clients + 1)
    return sj.problems.quadratic(*random_quadratics(num_clients, 3), noise=0.5, weights=weights)


def assert_like_compiled(engine: Any, algorithm: Algorithm, num_clients: int, participation: int | None) -> None:
    """An engine's state and table are the compiled engine's."""
    expected, expected_table = play(noisy(num_clients), algorithm, "compiled", participation=participation)
    found, found_table = play(noisy(num_clients), algorithm, engine, participation=participation)
    assert_same_state(found, expected)
    assert_same_table(found_table, expected_table)


@QUICK
@IN_ROUNDS
def test_the_compiled_engine_gives_the_numbers_of_the_reference_engine(name: str, x64: None) -> None:
    """Noise, unequal weights, and a sampled cohort where the method allows one."""
    federation = sj.problems.quadratic(*random_quadratics(5, 3), noise=0.5, weights=[1, 2, 3, 4, 5])
    algorithm = make(name)
    participation = None if algorithm.needs_everyone() else 3
    simple, simple_table = play(federation, algorithm, "reference", participation=participation)
    fast, fast_table = play(federation, algorithm, "compiled", participation=participation)
    assert_same_state(fast, simple)
    assert_same_table(fast_table, simple_table)
    assert np.isfinite(fast_table["loss"]).sum() == 2  # rounds 2 and 3, and these alone


@QUICK
def test_the_comparison_sees_another_seed(x64: None) -> None:
    """Negative control: with other samples the two tables would not pass for equal."""
    federation = sj.problems.quadratic(*random_quadratics(5, 3), noise=0.5)
    histories = [run(federation, LocalSGD(step_size=0.05), 3, engine="reference", seed=seed) for seed in (0, 1)]
    with pytest.raises(AssertionError):
        assert_same_table(histories[0].frame(), histories[1].frame())


@dataclasses.dataclass(frozen=True)
class Groups(Compiled):
    """So many clients side by side."""

    number: int = 1

    def width(self, *about: Any) -> int:
        return self.number


@pytest.mark.parametrize("engine", [Compiled("scan"), Compiled("auto"), Groups(number=2), Groups(number=5)])
def test_clients_may_be_placed_side_by_side_or_one_after_another(engine: Compiled, x64: None) -> None:
    """With client memory, weights and information for the reader; six clients in groups of one, six, two and three."""
    federation = sj.problems.quadratic(*random_quadratics(), weights=[1, 2, 3, 4, 5, 6])
    algorithm = Scaffold(step_size=0.1, num_local_steps=3)
    expected, expected_table = play(federation, algorithm, Compiled("vmap"))
    found, found_table = play(federation, algorithm, engine)
    assert_same_state(found, expected)
    assert_same_table(found_table, expected_table)


def test_placement_follows_from_the_size_of_the_model() -> None:
    small = sj.problems.quadratic(*random_quadratics())
    assert Compiled("auto").width(small, 6) == Compiled("vmap").width(small, 6) == 6
    assert Compiled("scan").width(small, 6) == 1
    large = sj.federation(lambda x, rows: x[:1] @ rows[0], np.zeros(300_000), [np.ones((1, 1))] * 8)
    assert 1 <= Compiled("auto").width(large, 8) < 8
    assert Compiled("vmap").width(large, 8) == 8


def test_chunks_of_any_length_give_the_same_bits(noisy_quadratics: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = Scaffold(step_size=0.05, num_local_steps=2)
    lengths: list[int] = []
    chunk = driver.Running._chunk

    def watched(self: driver.Running, length: int, opening: bool) -> tuple[float, bool]:
        lengths.append(length)
        return chunk(self, length, opening)

    def table(seconds: float) -> tuple[pd.DataFrame, list[int]]:
        lengths.clear()
        monkeypatch.setattr(driver, "_CHUNK_SECONDS", seconds)
        history = run(noisy_quadratics, algorithm, 13, participation=3, eval_every=4)
        return history.frame().drop(columns="seconds").assign(x=float(history.params.sum())), list(lengths)

    monkeypatch.setattr(driver.Running, "_chunk", watched)
    programs = compiled._advance._cache_size()
    short, ones = table(0.0)
    long, growing = table(1e9)
    assert ones == [1] * 13 and sum(growing) == 13 and max(growing) > 2
    pd.testing.assert_frame_equal(short, long, check_exact=True)
    assert compiled._advance._cache_size() == programs + 1  # and they share one program


@QUICK
def test_how_many_rounds_a_chunk_can_report_does_not_change_them(quadratics: Federation) -> None:
    class Short(Compiled):
        def capacity(self, *about: Any) -> int:
            return 2

    algorithm = LocalSGD(step_size=0.05, num_local_steps=2)
    short, long = (run(quadratics, algorithm, 5, engine=engine) for engine in (Short(), Compiled()))
    columns = ["seconds"]
    pd.testing.assert_frame_equal(short.frame().drop(columns=columns), long.frame().drop(columns=columns))
    assert bits(short.params) == bits(long.params)


def rows_of(history: History, **chosen: Any) -> pd.DataFrame:
    table = history.frame()
    for column, value in chosen.items():
        table = table[table[column] == value]
    return table.drop(columns=["setting", "seed", *chosen], errors="ignore").reset_index(drop=True)


def test_a_sweep_gives_the_numbers_of_separate_runs(noisy_quadratics: Federation) -> None:
    """Steps and seeds are stacked; cohorts and samples of a setting follow from its seed alone. Measured: 4e-16."""
    build = lambda step: LocalSGD(step_size=step, num_local_steps=2)  # noqa: E731
    how: dict[str, Any] = {"participation": 3, "eval_every": 2}
    swept = sj.sweep(noisy_quadratics, build, [0.02, 0.05], 4, seeds=[0, 5], progress=False, **how)
    assert swept.manifest["num_settings"] == 4 and swept.status == "ok"
    for number, (step, seed) in enumerate([(0.02, 0), (0.02, 5), (0.05, 0), (0.05, 5)]):
        alone = run(noisy_quadratics, build(step), 4, seed=seed, **how)
        assert_same_table(rows_of(swept, value=step, seed=seed), alone.frame())
        np.testing.assert_allclose(swept.params[number], alone.params, rtol=0, atol=ROUNDING)
    assert np.abs(np.diff(np.asarray(swept.params), axis=0)).max(axis=1).min() > 1e-3  # all of them differ


@QUICK
def test_a_sweep_over_counts_and_with_client_memory_gives_the_numbers_of_separate_runs(quadratics: Federation) -> None:
    """Settings with different numbers of local steps are different programs: the sweep groups them, and puts its rows
    and models back in order."""
    values = [(0.05, 2), (0.1, 1), (0.1, 2)]
    build = lambda value: Scaffold(step_size=value[0], num_local_steps=value[1])  # noqa: E731
    swept = sj.sweep(quadratics, build, values, 3, name="pair", progress=False)
    assert swept.frame()["pair"].unique().tolist() == [str(value) for value in values]
    for number, value in enumerate(values):
        alone = run(quadratics, build(value), 3)
        assert_same_table(rows_of(swept, pair=str(value)), alone.frame())
        np.testing.assert_allclose(swept.params[number], alone.params, rtol=0, atol=ROUNDING)


@QUICK
def test_a_sweep_cut_into_blocks_is_the_same_sweep(quadratics: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """One setting at a time, as when the memories of many do not fit."""
    sweep = lambda: sj.sweep(quadratics, LocalSGD, [0.05, 0.1], 3, progress=False)  # noqa: E731
    whole = sweep()
    monkeypatch.setattr("sojourn.sweeping._BLOCK_BYTES", 1)
    cut = sweep()
    assert_same_table(cut.frame(), whole.frame())
    np.testing.assert_allclose(cut.params, whole.params, rtol=0, atol=ROUNDING)


@QUICK
def test_the_reference_engine_sweeps_one_by_one(quadratics: Federation) -> None:
    sweep = functools.partial(sj.sweep, quadratics, LocalSGD, [0.05, 0.1], 3, seeds=[0, 1], progress=False)
    stacked = sweep().frame()
    assert_same_table(sweep(engine="reference").frame()[stacked.columns], stacked)


@QUICK
@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_run_that_diverges_ends_early_and_says_so(quadratics: Federation, engine: str) -> None:
    """Eigenvalues up to about six, ten local steps of one: each round multiplies by more than a thousand."""
    history = run(quadratics, LocalSGD(step_size=1.0), 50, engine=engine)
    table = history.frame()
    assert history.status == "diverged"
    assert 1 < len(table) < 10 and table["diverged"].tolist() == [False] * (len(table) - 1) + [True]
    assert history.manifest["rounds"] == table["round"].iloc[-1]
    assert np.isfinite(table["loss"].iloc[0])


@QUICK
def test_in_a_sweep_diverged_settings_end_early_and_the_others_do_not_notice(quadratics: Federation) -> None:
    swept = sj.sweep(quadratics, LocalSGD, [1.0, 0.05, 0.9], 8, progress=False)
    ends = swept.frame().groupby("value")["round"].max()
    assert ends[0.05] == 8 and ends[1.0] < 8 and ends[0.9] < 8
    assert swept.status == "ok" and swept.manifest["num_diverged"] == 2
    for step in (0.05, 1.0):
        alone = run(quadratics, LocalSGD(step_size=step), 8).frame()
        pd.testing.assert_frame_equal(
            rows_of(swept, value=step).drop(columns="seconds"), alone.drop(columns="seconds"), rtol=1e-9
        )


@QUICK
def test_a_sweep_in_which_all_diverge_stops_and_says_so(quadratics: Federation) -> None:
    swept = sj.sweep(quadratics, LocalSGD, [1.0, 0.9], 60, progress=False)
    assert swept.status == "diverged" and swept.frame()["round"].max() < 20
