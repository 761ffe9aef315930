"""Sweeps from the command line: axes, the table they make, and that a setting of a sweep is the run of that setting."""

import copy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from sojourn.config import validate
from sojourn.core.errors import SojournError
from sojourn.experiment import find_runs, parse_axis, run_config, sweep_config
from sojourn.history import History, load_history
from sojourn.report import render, summary_frame

Tables = dict[str, Any]


def tables(algorithm: Any = None, **run: Any) -> Tables:
    problem = {"name": "quadratic", "num_clients": 4, "dimension": 3, "noise": 0.5}
    algorithm = algorithm or {"name": "local-sgd", "step_size": 0.01, "num_local_steps": 3}
    return {"problem": problem, "algorithm": algorithm, "run": {"rounds": 8, "eval_every": 2, **run}}


def assert_is_the_run(sweep: pd.DataFrame, run: History) -> None:
    """A setting's rows are the rows of its own run: counts exactly, numbers up to the order of sums under vmap."""
    names = [name for name in run.table.columns if name != "seconds"]
    mine = sweep[names].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, run.table[names], check_exact=False, rtol=1e-5, atol=1e-6)


def rows(history: History, **labels: Any) -> pd.DataFrame:
    table = history.table
    for name, value in labels.items():
        table = table[np.isclose(table[name], value)]
    return table


# --- axes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("run.seed=0:4", [0, 1, 2, 3]),
        ("run.seed=2:10:3", [2, 5, 8]),
        ("run.seed= 5 : 2 : -1", [5, 4, 3]),
        ("algorithm.x=-2:1", [-2, -1, 0]),
        ("algorithm.step_size=0.01,0.1,1", [0.01, 0.1, 1]),
        ("algorithm.step_size = 1e-3, 1e-2", [1e-3, 1e-2]),
        ("algorithm.step_size=0.5", [0.5]),
        ("partition.name=iid,classes", ["iid", "classes"]),
        ("partition.name='iid',\"classes\"", ["iid", "classes"]),
        ("model.hidden=[8],[8, 8]", [[8], [8, 8]]),
        ("algorithm.a.step_size=1,2", [1, 2]),
        ("x.flag=true,false", [True, False]),
        ("x.time=1:2:3:4", ["1:2:3:4"]),
    ],
)
def test_an_axis_is_a_range_or_a_list_of_values(text: str, values: list[Any]) -> None:
    key, found = parse_axis(text)
    assert key == text.partition("=")[0].strip()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.seed", "is not of the form"),
        ("seed=1,2", "is not of the form"),
        ("run.seed=", "is not of the form"),
        ("run.=1,2", "is not of the form"),
        ("a.b.c.d=1", "is not of the form"),
        ("run.seed=3:3", "holds no values"),
        ("run.seed=0:10:0", "is not a range"),
        ("run.seed=0:1000000000000", "is not a range of at most"),
        ("run.seed=1,1", "names a value twice"),
        ("algorithm.step_size=1,1.0", "names a value twice"),
        ("algorithm.name=fedavg,scaffold", "cannot be an axis"),
        ("algorithm.label=a,b", "cannot be an axis"),
    ],
)
def test_an_axis_that_makes_no_sense_is_one_sentence(text: str, expected: str) -> None:
    with pytest.raises(SojournError, match=expected) as caught:
        parse_axis(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["run.seed=--1:2", "run.seed=²:3", "run.seed=0:9999999999999999999999"])
def test_what_only_looks_like_a_range_is_refused_as_a_value(text: str, tmp_path: Path) -> None:
    with pytest.raises(SojournError, match=r"run\.seed"):
        sweep_config(tables(), [text], tmp_path / "out")


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (["algorithm.stepsize=1,2"], "did you mean"),
        (["algorithm.step_size=0.1,-1"], "algorithm.step_size = -1 does not fit"),
        (["run.participation=2,5"], "the federation has only 4"),
        (["run.seed=0:2", "run.seed=4:6"], "given twice"),
        (["run.seed=0:1000", "algorithm.num_local_steps=1:1000"], "a sweep takes at most"),
        (["algorithm.nobody.step_size=1,2"], "names no algorithm"),
    ],
)
def test_every_combination_is_checked_before_anything_runs(axes: list[str], expected: str, tmp_path: Path) -> None:
    with pytest.raises(SojournError, match=expected):
        sweep_config(tables(), axes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the table ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Floats and seeds run stacked, counts as programs of their own, problems as federations of their own."""
    axes = ["algorithm.step_size=0.01,0.03", "run.seed=3:5", "algorithm.num_local_steps=4,1", "problem.seed=10,9"]
    (history,) = sweep_config(tables(participation=2), axes, tmp_path_factory.mktemp("swept"))
    return history


def test_a_sweep_has_one_row_per_setting_and_round(swept: History) -> None:
    labels = ["algorithm.step_size", "algorithm.num_local_steps", "problem.seed", "seed"]
    assert list(swept.table.columns[:5]) == [*labels, "setting"]
    assert len(swept.table) == 2 * 2 * 2 * 2 * 9  # round 0 is the start
    assert not swept.table.duplicated([*labels, "round"]).any()
    assert swept.table.groupby("setting")[labels].nunique().to_numpy().max() == 1
    assert swept.manifest["num_settings"] == 16
    assert swept.manifest["seed"] == [3, 4]


def test_the_order_of_the_values_is_the_users(swept: History) -> None:
    assert swept.manifest["axes"] == {
        "algorithm.step_size": [0.01, 0.03],
        "algorithm.num_local_steps": [4, 1],
        "problem.seed": [10, 9],
    }


@pytest.mark.parametrize(("step", "seed", "count", "problem"), [(0.01, 4, 4, 9), (0.03, 3, 1, 10)])
def test_a_setting_of_a_sweep_is_the_run_of_that_setting(
    step: float, seed: int, count: int, problem: int, swept: History, tmp_path: Path
) -> None:
    alone = tables(participation=2, seed=seed)
    alone["algorithm"] |= {"step_size": step, "num_local_steps": count}
    alone["problem"] |= {"seed": problem}
    (run,) = run_config(validate(alone), tmp_path)
    mine = {"algorithm.step_size": step, "seed": seed, "algorithm.num_local_steps": count, "problem.seed": problem}
    assert_is_the_run(rows(swept, **mine), run)
    for name, other in {"algorithm.step_size": 0.04 - step, "seed": 7 - seed, "problem.seed": 19 - problem}.items():
        with pytest.raises(AssertionError):  # a negative control: a neighbour is not equal within the tolerance
            assert_is_the_run(rows(swept, **{**mine, name: other}), run)


def test_the_models_of_a_sweep_are_stacked_by_setting(tmp_path: Path) -> None:
    (history,) = sweep_config(tables(), ["algorithm.step_size=0.01,0.02,0.04", "run.seed=3:5"], tmp_path)
    (models,) = jax.tree.leaves(history.params)
    assert models.shape == (6, 3)
    settings = history.table.groupby("setting")[["algorithm.step_size", "seed"]].first()
    assert [tuple(pair) for pair in settings.to_numpy()] == [(s, k) for s in (0.01, 0.02, 0.04) for k in (3, 4)]


def test_every_method_of_a_config_is_swept_and_a_label_limits_an_axis(tmp_path: Path) -> None:
    methods = [{"name": "fedavg", "step_size": 0.01}, {"name": "fedavg", "label": "other", "step_size": 0.01}]
    given = tables(methods, rounds=2)
    both = sweep_config(given, ["algorithm.step_size=0.01,0.02"], tmp_path / "both")
    assert [history.label for history in both] == ["fedavg", "other"]
    assert [len(history.table) for history in both] == [6, 6]
    np.testing.assert_array_equal(both[0].table["loss"], both[1].table["loss"])
    one = sweep_config(given, ["algorithm.other.step_size=0.01,0.02"], tmp_path / "one")
    still, moving = (h.table[h.table["round"] == 2]["loss"].to_numpy() for h in one)
    assert still[0] == still[1]
    assert moving[0] != moving[1]
    assert [history.label for history in find_runs(tmp_path / "both")] == ["fedavg", "other"]


def test_values_that_the_precision_cannot_tell_apart_are_still_settings_of_their_own(tmp_path: Path) -> None:
    (history,) = sweep_config(tables(rounds=1), ["algorithm.step_size=0.01,0.0100000000001", "run.seed=0:2"], tmp_path)
    assert len(history.table) == 4 * 2
    assert jax.tree.leaves(history.params)[0].shape == (4, 3)


def test_axes_of_words_and_of_lists_are_labels_too(tmp_path: Path) -> None:
    given = tables({"name": "scaffold", "step_size": 0.01}, rounds=2)
    (history,) = sweep_config(given, ["algorithm.control=I,II", "run.record=[],['model_norm']"], tmp_path)
    assert set(history.table["algorithm.control"]) == {"I", "II"}
    assert len(history.table) == 4 * 3


def test_the_reference_engine_sweeps_one_by_one_and_agrees(tmp_path: Path) -> None:
    axes = ["algorithm.step_size=0.01,0.03", "run.seed=0:2"]
    given = tables(rounds=3)
    (compiled,) = sweep_config(given, axes, tmp_path / "compiled")
    (reference,) = sweep_config({**given, "engine": {"name": "reference"}}, axes, tmp_path / "reference")
    assert len(reference.table) == len(compiled.table)
    names = ["algorithm.step_size", "seed", "round", "floats_up", "calls_grad", "loss"]
    pd.testing.assert_frame_equal(reference.table[names], compiled.table[names], check_exact=False, rtol=1e-5)


def test_a_sweep_is_ok_unless_every_setting_diverged(tmp_path: Path) -> None:
    (some,) = sweep_config(tables(rounds=40), ["algorithm.step_size=0.01,9.0"], tmp_path / "some")
    assert (some.status, some.manifest["num_diverged"]) == ("ok", 1)
    lost = rows(some, **{"algorithm.step_size": 9.0})
    assert lost["diverged"].sum() == 1 and bool(lost["diverged"].iloc[-1])
    assert len(lost) < 41  # its rows end where it was lost
    assert len(rows(some, **{"algorithm.step_size": 0.01})) == 41
    (every,) = sweep_config(tables(rounds=40), ["algorithm.step_size=8.0,9.0"], tmp_path / "every")
    assert (every.status, every.manifest["num_diverged"]) == ("diverged", 2)


def test_a_sweep_read_back_is_the_sweep_and_can_be_reported(tmp_path: Path) -> None:
    axes = ["algorithm.step_size=0.01,0.02", "run.seed=0:2", "problem.seed=0,1"]
    given = tables(rounds=2)
    before = copy.deepcopy(given)
    (history,) = sweep_config(given, axes, tmp_path)
    assert given == before
    back = load_history(tmp_path)
    pd.testing.assert_frame_equal(back.table, history.table, check_exact=True)
    assert back.manifest == history.manifest
    assert back.config is not None
    assert back.config["sweep"]["algorithm.step_size"] == [0.01, 0.02]
    summary = summary_frame([back])
    assert len(summary) == 4  # seeds are repetitions, not settings
    assert set(summary["seeds"]) == {2}
    page = render([back], tmp_path, title="a sweep")
    assert page.stat().st_size > 10_000


def test_words_and_numbers_can_stand_in_one_axis(tmp_path: Path) -> None:
    """A run that tunes itself against steps by hand; the table then has words."""
    (history,) = sweep_config(tables(), ["algorithm.step_size=auto,0.02"], tmp_path / "w", progress=False)
    again = load_history(next((tmp_path / "w").rglob("history.parquet")).parent)
    assert set(again.table["algorithm.step_size"]) == {"auto", "0.02"} == set(history.table["algorithm.step_size"])
    assert set(history.manifest["axes"]["algorithm.step_size"]) == {"auto", "0.02"}
    (numbers,) = sweep_config(tables(), ["algorithm.step_size=0.01,0.02"], tmp_path / "n", progress=False)
    assert numbers.table["algorithm.step_size"].dtype == float
