"""Virtual time through configs: the tables, one config for synchronous and asynchronous methods, sweeps, the page."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.catalogue import entries
from sojourn.config import validate
from sojourn.core.errors import SojournError
from sojourn.experiment import run_config, sweep_config
from sojourn.history import load_history
from sojourn.report import render

TABLES: dict[str, Any] = {
    "problem": {"name": "quadratic", "num_clients": 6, "dimension": 3},
    "algorithm": [
        {"name": "fedavg", "step_size": 0.05, "num_local_steps": 3},
        {"name": "fedasync", "step_size": 0.05, "num_local_steps": 3, "staleness_weight": "hinge"},
        {"name": "fedbuff", "step_size": 0.05, "num_local_steps": 3, "buffer_size": 2},
    ],
    "clock": {"name": "classes", "seconds": [1.0, 4.0], "shares": [0.5, 0.5]},
    "schedule": {"concurrency": 3, "max_staleness": 20},
    "run": {"rounds": 10, "participation": 3, "eval_every": 5},
}


def test_one_config_compares_methods_by_virtual_seconds(tmp_path: Path) -> None:
    config = validate(TABLES)
    assert config.tables["delay"] == {"name": "constant", "seconds": 0.0, "client_spread": 0.0}
    assert validate(config.tables).tables == config.tables, "what is saved says the same again"
    histories = run_config(config, tmp_path / "run", progress=False)
    rounds, uploads, buffered = (history.frame() for history in histories)
    assert len(rounds) == 11 and len(uploads) == len(buffered) == 31, "as many visits to clients"
    assert rounds["calls_full_grad"].sum() == uploads["calls_full_grad"].sum() == 90, "and as many gradients"
    assert list(uploads["round"][uploads["loss"].notna()]) == [0, 15, 30]
    assert set(np.diff(rounds["virtual_seconds"])) <= {3.0, 12.0}
    assert (buffered["staleness"][1:] <= uploads["staleness"][1:]).all(), "counted in versions of two uploads"
    page = render([load_history(tmp_path / "run" / name) for name in ("fedavg", "fedasync", "fedbuff")], tmp_path / "p")
    text = page.read_text()
    assert "Who worked when (fedasync)" in text and "Virtual seconds" in text and "Uploads a second" in text
    assert '<th scope="col">Virtual time</th>' in text
    other = validate({**TABLES, "run": {**TABLES["run"], "seed": 1}})
    again = run_config(other, tmp_path / "again", progress=False)[1].frame()
    assert not np.array_equal(again["client"], uploads["client"]), "another seed is another schedule"


def test_a_sweep_runs_every_seed_on_its_own_schedule(tmp_path: Path) -> None:
    tables = {**TABLES, "algorithm": TABLES["algorithm"][1]}
    history = sweep_config(tables, ["algorithm.mixing=0.3,0.6", "run.seed=0:2"], tmp_path / "sweep", progress=False)[0]
    frame = history.frame()
    assert frame.groupby(["algorithm.mixing", "seed"]).ngroups == 4
    clients = frame.pivot(index="round", columns=["algorithm.mixing", "seed"], values="client")
    np.testing.assert_array_equal(clients[0.3, 0], clients[0.6, 0])
    assert not np.array_equal(clients[0.3, 0], clients[0.3, 1])
    alone = run_config(validate({**tables, "algorithm": {**tables["algorithm"], "mixing": 0.6}}), tmp_path / "one",
                       progress=False)[0].frame()  # fmt: skip
    swept = frame[(frame["algorithm.mixing"] == 0.6) & (frame["seed"] == 0)]
    np.testing.assert_array_equal(alone["loss"], swept["loss"])
    render([history], tmp_path / "page")


def test_a_trace_can_be_shared(tmp_path: Path) -> None:
    tables = {**TABLES, "algorithm": TABLES["algorithm"][1]}
    first = run_config(validate(tables), tmp_path / "first", progress=False)[0].frame()
    load_history(tmp_path / "first").trace.to_csv(tmp_path / "trace.csv", index=False)
    shared = copy.deepcopy(tables)
    shared["schedule"] = {"name": "file", "path": str(tmp_path / "trace.csv")}
    del shared["clock"]
    second = run_config(validate(shared), tmp_path / "second", progress=False)[0].frame()
    for column in ("client", "staleness", "virtual_seconds"):
        np.testing.assert_array_equal(first[column], second[column])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schedule": {"concurrency": 0}}, "schedule.concurrency = 0 does not fit; expected a whole number at least 1"),
        ({"schedule": {"seed": 3}}, "seed"),
        ({"schedule": {"name": "uniform-staleness"}}, r"\[clock\] has no meaning with schedule.name"),
        ({"schedule": {"name": "busi"}, "clock": {}}, 'did you mean "busy"'),
        ({"clock": {"name": "lognormal", "median": -1.0}}, "clock.median = -1.0 does not fit"),
        ({"delay": {"seconds": -0.5}}, "delay.seconds = -0.5 does not fit"),
        ({"availability": {"name": "day-night", "share": 0.0}}, "availability.share = 0.0"),
        ({"algorithm": TABLES["algorithm"][0]}, r"\[schedule\] is for methods that take uploads as they come"),
        ({"algorithm": {"name": "fedasync", "step_size": 0.1, "mixing": 1.5}}, "algorithm.mixing = 1.5"),
        ({"algorithm": {"name": "fedasync", "step_size": 0.1, "mixing": 0.0}}, "algorithm.mixing = 0.0"),
    ],
)
def test_tables_that_make_no_sense_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        validate({**TABLES, **change})


def test_mistakes_that_only_the_federation_shows_leave_nothing_behind(tmp_path: Path) -> None:
    for schedule, sentence in (
        ({"concurrency": 7}, "concurrency = 7 is more than the 6 clients"),
        ({"name": "file", "path": str(tmp_path / "none.csv")}, "does not exist"),
    ):
        tables = {**TABLES, "schedule": schedule}
        if "name" in schedule:
            del tables["clock"]  # a file has times of its own
        with pytest.raises(SojournError, match=sentence):
            run_config(validate(tables), tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())
    with pytest.raises(SojournError, match=r"run.uploads is for methods"):
        synchronous = {key: value for key, value in TABLES.items() if key != "schedule"}
        validate({**synchronous, "algorithm": TABLES["algorithm"][0], "run": {"uploads": 5}})


def test_the_catalogue_lists_clocks_and_schedules() -> None:
    assert {entry.name for entry in entries("clocks")} >= {"lognormal", "pareto", "classes", "file"}
    assert "seconds ([1.0, 2.0, 10.0])" in next(entry for entry in entries("clocks") if entry.name == "classes").options
    assert "concurrency (None)" in next(entry for entry in entries("schedules") if entry.name == "busy").options
    assert all(entry.summary for room in ("clocks", "availabilities", "schedules") for entry in entries(room))
