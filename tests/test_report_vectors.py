"""Vectors of every round in a report: a map each, no curves, no swept axes."""

from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from sojourn.report import summary_frame
from sojourn.report.runs import split
from sojourn.report.vectors import MAX_COLUMNS, MAX_LINES, MAX_MAPS, cells_of, vector_charts
from test_report import FakeHistory, make_table, over_seeds, page_of


def with_vectors(table: pd.DataFrame, steps: int = 3, scale: float = 1.0) -> pd.DataFrame:
    """consensus_inside.k = scale * k * round * (1 + seed), of which round 0 has none."""
    there = table["round"].where(table["round"] > 0)
    seed = table.get("seed", 0)
    vectors = {f"consensus_inside.{k}": scale * k * there * (1 + seed) for k in range(1, steps + 1)}
    return pd.concat([table, pd.DataFrame(vectors)], axis=1)


def test_components_become_one_map_and_no_curve(tmp_path: Path) -> None:
    plain_page, plain = page_of(tmp_path, FakeHistory("a", make_table()))
    page, charts = page_of(tmp_path, FakeHistory("a", with_vectors(make_table())))
    assert set(charts) == set(plain) | {"vector-0"}
    assert all(charts[name] == plain[name] for name in plain)
    assert "Inside the rounds" in page and "Inside the rounds" not in plain_page
    assert not [name for name in summary_frame([FakeHistory("a", with_vectors(make_table()))]) if "inside" in name]
    alt.Chart.from_dict(charts["vector-0"])  # a valid specification


def test_a_column_with_a_dot_that_is_no_vector_is_still_a_swept_axis() -> None:
    tables = [with_vectors(make_table(rate=rate)).assign(**{"algorithm.0": rate}) for rate in (0.1, 0.2)]
    runs = split([FakeHistory("a", pd.concat(tables, ignore_index=True))])
    assert [run.setting for run in runs] == [{"algorithm.0": 0.1}, {"algorithm.0": 0.2}]
    assert all(run.vectors == tuple(f"consensus_inside.{k}" for k in (1, 2, 3)) for run in runs)


def test_a_cell_is_the_mean_over_seeds_where_there_is_a_value() -> None:
    table = with_vectors(over_seeds(3))
    table.loc[(table["round"] == 4) & (table["seed"] == 2), "consensus_inside.2"] = np.nan
    (run,) = split([FakeHistory("a", table)])
    cells = cells_of(run, "consensus_inside").set_index(["left", "low"])["value"]
    assert len(cells) == 20 * 3  # without round 0
    assert cells[(6.5, 2.5)] == pytest.approx(3 * 7 * 2.0)  # step 3 of round 7; seeds weigh 1, 2, 3
    assert cells[(3.5, 1.5)] == pytest.approx(2 * 4 * 1.5)  # of the two seeds that have it
    assert cells[(3.5, 2.5)] == pytest.approx(3 * 4 * 2.0)


def test_a_large_table_is_averaged_into_a_map_of_bounded_size() -> None:
    (run,) = split([FakeHistory("a", with_vectors(make_table(rounds=1000), steps=130))])
    cells = cells_of(run, "consensus_inside")
    assert len(cells) <= MAX_COLUMNS * MAX_LINES
    assert cells[["left", "right"]].stack().agg(["min", "max"]).tolist() == [0.5, 1000.5]
    assert cells[["low", "high"]].stack().agg(["min", "max"]).tolist() == [0.5, 130.5]
    first = cells.iloc[0]
    covered = np.outer(np.arange(first["left"] + 0.5, first["right"]), np.arange(first["low"] + 0.5, first["high"]))
    assert covered.size > 20 and first["value"] == pytest.approx(covered.mean())


def scales(*histories: FakeHistory) -> list[Any]:
    return [spec["encoding"]["color"]["scale"] for _, spec in vector_charts(split(histories))]


def test_maps_share_their_colours_and_are_logarithmic_over_two_decades() -> None:
    a, b = (FakeHistory(name, with_vectors(make_table(), scale=scale)) for name, scale in (("a", 1.0), ("b", 100.0)))
    alone, both = scales(a), scales(a, b)
    assert [scale["type"] for scale in alone + both] == ["linear", "log", "log"]
    assert alone[0]["domain"] == [1, 60] and both[0] == both[1] and both[0]["domain"] == [1, 6000]


def test_only_the_first_runs_that_moved_have_maps() -> None:
    still = FakeHistory("still", with_vectors(make_table(), scale=0.0))
    without = FakeHistory("without", make_table())
    many = [FakeHistory(f"run {i}", with_vectors(make_table())) for i in range(6)]
    titles = [title for title, _ in vector_charts(split([still, without, *many]))]
    assert titles == [f"Consensus error inside the rounds (run {i})" for i in range(MAX_MAPS)]
