"""The map of labels per client: kept with a run, read back, drawn once for all runs that share it."""

import dataclasses
from pathlib import Path
from typing import Any

import altair
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.federation import Federation
from sojourn.experiment import sweep_config
from sojourn.history import LABELS, History, labels_entry, load_history
from sojourn.report import render
from sojourn.report.figure import for_file
from sojourn.report.labels import MAX_COLUMNS, label_charts, label_spec, label_table

COUNTS = np.array([[3, 0, 1], [0, 5, 0]])


def rows(federation_name: str = "f", counts: np.ndarray | None = COUNTS) -> Federation:
    federation = sj.problems.quadratic(np.stack([np.eye(2)] * 2), np.ones((2, 2)), name=federation_name)
    return dataclasses.replace(federation, label_counts=counts)


def played(label: str, counts: np.ndarray | None = COUNTS, **options: Any) -> History:
    return sj.run(rows(counts=counts), sj.algorithms.LocalSGD(step_size=0.1), rounds=2, label=label, **options)


def test_a_run_keeps_the_labels_and_a_page_read_from_disk_draws_them(tmp_path: Path) -> None:
    played("a", out=tmp_path / "run")
    history = load_history(tmp_path / "run")
    assert history.manifest[LABELS] == ["3 0 1", "0 5 0"]
    np.testing.assert_array_equal(label_table(history.manifest), COUNTS)
    page = render([history], tmp_path / "page").read_text()
    assert "<h2>Labels per client</h2>" in page
    assert "labels_per_client" not in page  # it is drawn, not printed
    without = render([played("a", counts=None)], tmp_path / "other").read_text()
    assert "Labels per client" not in without


def test_a_table_too_large_is_left_out() -> None:
    assert labels_entry(None) == {}
    assert len(labels_entry(np.ones((2000, 10), int))[LABELS]) == 2000
    assert labels_entry(np.ones((2001, 10), int)) == {}


def test_runs_on_the_same_deal_share_a_map_and_others_have_their_own() -> None:
    one, two, three = played("one"), played("two"), played("three", counts=COUNTS[::-1])
    assert [title for title, _ in label_charts([one, two])] == ["Samples by client and class"]
    titles = [title for title, _ in label_charts([one, three, two])]
    assert titles == ["Samples by client and class: one, two", "Samples by client and class: three"]


def test_the_map_shows_every_count_and_leaves_nothing_blank_that_is_held() -> None:
    spec = label_spec(COUNTS)
    cells = {(cell["client"], cell["label"]): cell["count"] for cell in spec["data"]["values"]}
    assert cells == {(0, 0): 3, (0, 2): 1, (1, 1): 5}
    assert spec["encoding"]["y"]["scale"]["domain"] == [0, 1, 2]  # a class that nobody holds has a row all the same
    altair.Chart.from_dict(for_file(spec, "labels"))  # checks it against the schema


def test_of_many_clients_evenly_spaced_ones_are_drawn() -> None:
    counts = np.arange(1, 1001)[:, None]
    shown = label_spec(counts)["encoding"]["x"]["scale"]["domain"]
    assert len(shown) == MAX_COLUMNS and shown[0] == 0 and shown[-1] == 999
    assert np.ptp(np.diff(shown)) <= 1
    ((title, _),) = label_charts([played("a", counts=counts)])
    assert title == "Samples by client and class (200 of 1000 clients)"


@pytest.mark.parametrize("damaged", [3, "3 0", ["3 x"], ["3 0", "1"], [], ["-1 2"], [[1, 2]], None])
def test_a_damaged_entry_draws_nothing(damaged: Any) -> None:
    assert label_table({LABELS: damaged}) is None


def test_a_sweep_keeps_the_labels_of_its_federation_and_none_of_several(tmp_path: Path) -> None:
    make = lambda lr: sj.algorithms.LocalSGD(step_size=lr)  # noqa: E731
    swept = sj.sweep(rows(), make, np.array([0.1, 0.2]), rounds=2)
    assert swept.manifest[LABELS] == ["3 0 1", "0 5 0"]
    tables = {
        "problem": {"name": "least-squares"},
        "partition": {"name": "dirichlet", "num_clients": 3},
        "algorithm": {"name": "local-sgd", "step_size": 0.01},
        "run": {"rounds": 1},
    }
    (several,) = sweep_config(tables, ["partition.seed=0,1"], tmp_path / "several")
    assert LABELS not in several.manifest
    (one,) = sweep_config(tables, ["algorithm.step_size=0.01,0.1"], tmp_path / "one")
    assert len(one.manifest[LABELS]) == 3
