"""Reports: the numbers on the page are those of the histories, and the page stands alone."""

import io
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from sojourn.core.errors import SojournError
from sojourn.looks.words import duration, number, si
from sojourn.report import Section, render, rich_table, summary_frame
from sojourn.report.figure import MAX_POINTS, thin, wants_log
from sojourn.report.page import toml_text
from sojourn.report.runs import MAX_SETTINGS


@dataclass
class FakeHistory:
    """The protocol a report needs, without running anything."""

    label: str
    table: pd.DataFrame
    status: str = "ok"
    manifest: dict[str, Any] = field(default_factory=lambda: {"seed": 0, "versions": {"jax": "0.1"}, "commit": "abc"})
    config: dict[str, Any] | None = None

    def frame(self) -> pd.DataFrame:
        return self.table


def make_table(rounds: int = 20, every: int = 2, seed: int = 0, rate: float = 0.1) -> pd.DataFrame:
    """Rounds 0 to `rounds`, evaluated every second one, with counts that differ from round to round."""
    rng = np.random.default_rng(seed)
    count = np.arange(rounds + 1)
    on = (count > 0).astype(int)
    loss = np.exp(-rate * count) + 0.01 * rng.random(rounds + 1)
    evaluated = count % every == 0
    return pd.DataFrame(
        {
            "round": count,
            "participants": 3 * on,
            "floats_down": on * rng.integers(100, 200, rounds + 1),
            "floats_up": on * rng.integers(100, 200, rounds + 1),
            "calls_grad": on * rng.integers(5, 9, rounds + 1),
            "calls_value": on,
            "calls_full_grad": 0,
            "calls_full_value": 0,
            "local_steps": 5 * on,
            "seconds": on * rng.random(rounds + 1),
            "loss": np.where(evaluated, loss, np.nan),
            "test_accuracy": np.where(evaluated, 1 - loss / 1.2, np.nan),
        }
    )


def over_seeds(num_seeds: int, **options: Any) -> pd.DataFrame:
    return pd.concat([make_table(seed=s, **options).assign(seed=s) for s in range(num_seeds)], ignore_index=True)


def diverging_table() -> pd.DataFrame:
    table = make_table(rounds=6, every=1)
    table["loss"] = 10.0 ** table["round"]
    table.loc[6, "loss"] = np.inf
    return table


def page_of(tmp_path: Path, *histories: FakeHistory, **options: Any) -> tuple[str, dict[str, dict[str, Any]]]:
    """The text of the page and its charts by name."""
    html = render(histories, tmp_path, **options).read_text("utf-8")
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])  # type: ignore[index]
    return html, {chart["id"]: chart["spec"] for chart in data["charts"]}


def rows_of(spec: dict[str, Any], run: str) -> pd.DataFrame:
    rows = pd.DataFrame(spec["data"]["values"])
    return rows[rows["run"] == run].reset_index(drop=True)


def test_curves_are_drawn_against_running_totals(tmp_path: Path) -> None:
    table = make_table()
    _, charts = page_of(tmp_path, FakeHistory("fedavg", table))
    rows = rows_of(charts["curve-loss"], "fedavg")
    kept = table["loss"].notna()
    floats = np.cumsum(table["floats_up"].to_numpy() + table["floats_down"].to_numpy())[kept]
    calls = np.cumsum(table["calls_grad"].to_numpy() + table["calls_value"].to_numpy())[kept]
    assert rows["round"].tolist() == table["round"][kept].tolist()
    assert rows["floats"].tolist() == floats.tolist()
    assert rows["calls"].tolist() == calls.tolist()
    np.testing.assert_allclose(rows["seconds"], np.cumsum(table["seconds"].to_numpy())[kept], rtol=1e-5)
    np.testing.assert_allclose(rows["value"], table["loss"][kept], rtol=1e-5)


# few seeds: the whole range; many: the 10 % and 90 % quantiles
@pytest.mark.parametrize(("num_seeds", "low", "high", "words"), [(5, 0, 100, "minimum"), (12, 10, 90, "quantile")])
def test_bands_are_those_of_numpy(tmp_path: Path, num_seeds: int, low: int, high: int, words: str) -> None:
    table = over_seeds(num_seeds).sample(frac=1, random_state=0)  # the order of rows must not matter
    html, charts = page_of(tmp_path, FakeHistory("fedavg", table))
    rows = rows_of(charts["curve-loss"], "fedavg")
    losses = np.stack([make_table(seed=s)["loss"].dropna().to_numpy() for s in range(num_seeds)])
    np.testing.assert_allclose(rows["value"], np.median(losses, axis=0), rtol=1e-5)
    np.testing.assert_allclose(rows["lo"], np.percentile(losses, low, axis=0), rtol=1e-5)
    np.testing.assert_allclose(rows["hi"], np.percentile(losses, high, axis=0), rtol=1e-5)
    assert words in html


def test_a_curve_stops_where_its_first_seed_is_lost(tmp_path: Path) -> None:
    table = over_seeds(3)
    table = table[~((table["seed"] == 1) & (table["round"] > 8))]
    table["diverged"] = (table["seed"] == 1) & (table["round"] == 8)
    html, charts = page_of(tmp_path, FakeHistory("fedavg", table, status="diverged"))
    rows = rows_of(charts["curve-loss"], "fedavg")
    assert rows["round"].max() == 8
    assert rows["end"].tolist() == [False] * (len(rows) - 1) + [True]
    assert "1 of 3 seeds" in html


class Addresses(HTMLParser):
    """Every address an element of the page would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_loads_nothing_and_forbids_the_network(tmp_path: Path) -> None:
    chart = alt.Chart(pd.DataFrame({"a": [1, 2]})).mark_bar().encode(x="a:O")
    html, charts = page_of(tmp_path, FakeHistory("fedavg", make_table()), sections=[Section("Bars", chart)])
    found = Addresses()
    found.feed(html)
    assert found.addresses == []
    assert not re.search(r"@import|url\(", html.split("</style>")[0])
    assert "default-src 'none'" in html
    assert "http" not in json.dumps(charts)
    assert html.count("window.vegaEmbed") == 1  # one bundle for all charts


def test_a_diverged_run_is_marked_and_cannot_win(tmp_path: Path) -> None:
    lost = diverging_table()
    lost["test_accuracy"] = 1.0
    html, charts = page_of(tmp_path, FakeHistory("calm", make_table()), FakeHistory("wild", lost, status="diverged"))
    assert '<tr class="diverged">' in html and 'class="badge diverged"' in html
    assert "Highest final test accuracy: calm" in html and "Diverged: wild." in html
    rows = rows_of(charts["curve-loss"], "wild")
    assert rows["value"].max() == 1e5  # the infinite one is not drawn
    assert rows.loc[rows["end"], "round"].tolist() == [5]
    # it may leave the frame, the other run may not
    top = charts["curve-loss"]["layer"][0]["encoding"]["y"]["scale"]["domainMax"]
    assert rows_of(charts["curve-loss"], "calm")["value"].max() < top < 1e5


def test_a_run_that_never_had_a_finite_value_is_listed(tmp_path: Path) -> None:
    table = make_table(rounds=1, every=1).assign(loss=np.nan, test_accuracy=np.nan)
    html, charts = page_of(tmp_path, FakeHistory("lost", table, status="diverged"))
    assert "Diverged: lost." in html and charts == {}


def test_what_users_write_is_escaped(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    table = make_table().rename(columns={"test_accuracy": f"{evil}metric"})
    manifest = {"seed": evil, "versions": {evil: evil}, "commit": evil, "compile_seconds": 1.0}
    first = FakeHistory(evil, table, manifest=manifest, config={"algorithm": {"name": evil, evil: 1}})
    second = FakeHistory("b", table, config={"algorithm": {"name": "b"}})
    html, charts = page_of(tmp_path, first, second, title=evil)
    assert "<script>alert" not in html and "</script><script>" not in html
    assert rows_of(charts["curve-loss"], evil).shape[0] == 11  # and yet the label arrives whole


def test_rendering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    histories = [FakeHistory("fedavg", over_seeds(3), config={"a": {"b": 1}}), FakeHistory("scaffold", make_table())]
    first, second = render(histories, tmp_path / "a"), render(histories, tmp_path / "b" / "page.html")
    assert first == tmp_path / "a" / "report.html" and second == tmp_path / "b" / "page.html"
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == ["report.html"]  # nothing temporary is left


def test_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    table = make_table()[["round", "floats_up", "loss"]]
    render([FakeHistory("fedavg", table)], tmp_path, figures=("png", "svg"))
    assert (tmp_path / "figure-curve-loss.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "figure-curve-loss.svg").read_text()
    assert "Training loss" in svg and "fedavg" in svg  # on its own it needs a title and a legend
    with pytest.raises(SojournError, match='did you mean "png"'):
        render([FakeHistory("fedavg", table)], tmp_path, figures=("pmg",))


def swept(settings: list[float], num_seeds: int = 2) -> pd.DataFrame:
    tables = [over_seeds(num_seeds, rate=value).assign(**{"algorithm.step_size": value}) for value in settings]
    return pd.concat(tables, ignore_index=True)


def test_a_small_sweep_has_a_curve_per_setting(tmp_path: Path) -> None:
    _, charts = page_of(tmp_path, FakeHistory("fedavg", swept([0.3, 0.01, 0.1])))
    names = charts["curve-loss"]["encoding"]["color"]["scale"]["domain"]
    assert names == ["step_size = 0.01", "step_size = 0.1", "step_size = 0.3"]
    for name, rate in zip(names, (0.01, 0.1, 0.3), strict=True):
        losses = [make_table(seed=s, rate=rate)["loss"].dropna() for s in range(2)]
        np.testing.assert_allclose(rows_of(charts["curve-loss"], name)["value"], np.median(losses, axis=0), rtol=1e-5)


def test_a_large_sweep_shows_its_best_setting_and_a_profile(tmp_path: Path) -> None:
    rates = np.geomspace(0.01, 1, MAX_SETTINGS + 3).tolist()
    _, charts = page_of(tmp_path, FakeHistory("fedavg", swept(rates, num_seeds=3)))
    finals = {r: [make_table(seed=s, rate=r)["test_accuracy"].iloc[-1] for s in range(3)] for r in rates}
    best = max(rates, key=lambda rate: np.median(finals[rate]))
    assert charts["curve-loss"]["encoding"]["color"]["scale"]["domain"] == [f"step_size = {best:.4g}"]
    profile = pd.DataFrame(charts["sweep-0"]["data"]["values"])
    assert charts["sweep-0"]["encoding"]["x"]["scale"]["type"] == "log"
    np.testing.assert_allclose(profile["at"], rates, rtol=1e-5)
    np.testing.assert_allclose(profile["value"], [np.median(finals[rate]) for rate in rates], rtol=1e-5)
    np.testing.assert_allclose(profile["hi"], [np.max(finals[rate]) for rate in rates], rtol=1e-5)


def test_two_swept_axes_make_a_map_with_lost_cells(tmp_path: Path) -> None:
    tables = [swept([0.1, 0.2, 0.3]).assign(local_steps_swept=k) for k in (1, 5)]
    table = pd.concat(tables, ignore_index=True).drop(columns="test_accuracy")
    table["diverged"] = (table["algorithm.step_size"] == 0.3) & (table["local_steps_swept"] == 5)
    history = FakeHistory("fedavg", table, manifest={"axes": {"local_steps_swept": [1, 5]}})  # an axis without a dot
    _, charts = page_of(tmp_path, history)
    cells = pd.DataFrame(charts["sweep-1"]["data"]["values"]).set_index(["x", "y"])["value"]
    assert len(cells) == 6
    assert cells.isna().sum() == 1
    expected = np.median([make_table(seed=s, rate=0.2)["loss"].iloc[-1] for s in range(2)])
    np.testing.assert_allclose(cells.to_numpy()[cells.index.map(lambda at: 0.2 in at)], expected, rtol=1e-5)


def test_specifications_are_valid_vega_lite(tmp_path: Path) -> None:
    table = pd.concat([swept([0.1, 0.2, 3.0]).assign(**{"algorithm.k": k}) for k in (1, 5)], ignore_index=True)
    table["diverged"] = table["algorithm.step_size"] == 3.0
    _, charts = page_of(tmp_path, FakeHistory("fedavg", table))
    assert {name.split("-")[0] for name in charts} == {"curve", "sweep"}
    for spec in charts.values():
        alt.Chart.from_dict(spec)  # validates against the schema


def test_long_curves_are_thinned_and_keep_their_spikes() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    values[12_345] = 1e3
    kept = thin(values, MAX_POINTS)
    assert len(kept) <= MAX_POINTS
    assert {0, 12_345, 19_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


def test_log_scales_are_for_positive_data_over_two_decades() -> None:
    assert wants_log(np.array([1e-3, 1.0]), "loss")
    assert not wants_log(np.array([1e-3, 1.0]), "test_accuracy")
    assert not wants_log(np.array([0.5, 1.0]), "loss")
    assert not wants_log(np.array([-1.0, 1e-3, 1.0]), "loss")
    assert wants_log(np.array([0.0, *np.geomspace(1e-9, 1, 50)]), "suboptimality")  # one value below rounding


def test_sections_and_the_differences_of_configurations_appear(tmp_path: Path) -> None:
    first = FakeHistory("a", make_table(), config={"data": {"name": "mnist"}, "algorithm": {"step_size": 0.1}})
    second = FakeHistory("b", make_table(), config={"data": {"name": "mnist"}, "algorithm": {"step_size": 0.2}})
    html, _ = page_of(tmp_path, first, second, sections=[Section("Extra", "<p>more <b>words</b></p>", "why")])
    assert "<h2>Extra</h2>" in html and "<p>more <b>words</b></p>" in html
    differences = re.search(r"Settings that differ.*?</table>", html, re.S)
    assert differences is not None and "step_size" in differences[0] and "mnist" not in differences[0]


def test_summary_frame_has_the_last_and_the_best_values() -> None:
    table = make_table()
    table.loc[10, "loss"] = 0.001  # the best is not the last
    row = summary_frame([FakeHistory("a", table), FakeHistory("a", over_seeds(3))]).iloc[0]
    assert row["final_loss"] == table["loss"].iloc[20]
    assert (row["best_loss"], row["best_round_loss"]) == (0.001, 10)
    assert row["floats"] == table["floats_up"].sum() + table["floats_down"].sum()
    assert row["local_steps"] == 100 and row["rounds"] == 20
    assert summary_frame([FakeHistory("a", table), FakeHistory("a", table)])["label"].tolist() == ["a", "a (2)"]


def test_terminal_table_names_runs_and_costs() -> None:
    histories = [FakeHistory("[red]fedavg", make_table()), FakeHistory("wild", diverging_table(), status="diverged")]
    console = Console(width=160, file=io.StringIO())
    console.print(rich_table(histories, 160))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]fedavg" in text and "diverged" in text and "accuracy" in text
    assert si(float(summary_frame(histories)["floats"].iloc[0])) in text
    assert "virtual" not in text


def test_terminal_table_tells_virtual_time_where_there_are_clocks() -> None:
    table = make_table()
    clocked = FakeHistory("slow", table.assign(virtual_seconds=60.0 * table["round"]))
    console = Console(width=160, file=io.StringIO())
    console.print(rich_table([clocked], 160))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "virtual" in text and f"{table['round'].max()} min" in text


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SojournError, match="at least one history"):
        render([], tmp_path)


def test_numbers_are_short() -> None:
    assert [si(v) for v in (0, 7, 999, 1000, 12_345_678, 999_600, 1.5e12)] == [
        "0", "7", "999", "1.00 k", "12.3 M", "1.00 M", "1.50 T",
    ]  # fmt: skip
    assert [number(v) for v in (0.0123456, 1.5e-7, 12345.6, 2.5e9)] == ["0.01235", "1.5e−7", "12346", "2.5e9"]
    assert [number(v) for v in (float("nan"), float("inf"))] == ["–", "∞"]
    assert [duration(v) for v in (0.0123, 12.34, 240, 9000)] == ["12.3 ms", "12.3 s", "4 min", "2.5 h"]


def test_configurations_read_like_toml() -> None:
    text = toml_text(
        {"name": "x", "off": None, "a": {"flag": True, "list": [1, "b"], "deep": {"rate": np.float64(0.1)}}}
    )
    assert text == 'name = "x"\n# off is not set\n\n[a]\nflag = true\nlist = [1, "b"]\n\n[a.deep]\nrate = 0.1'
