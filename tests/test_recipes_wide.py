"""FedAvg on small and large networks, and its start: made-up runs are judged rightly, tiny ones carried out."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from sojourn.data.cifar10 import shrunk
from sojourn.models import MODELS
from sojourn.recipes import RECIPES, Bench, wide, wide_3
from sojourn.recipes.base import above
from sojourn.recipes.charts import boxes
from sojourn.recipes.contest import Curves, chart
from sojourn.recipes.trends import log_variance_ratio
from sojourn.recipes.wide import IID, LARGE, MIXED, SMALL
from sojourn.recipes.wide_3 import PROPOSED, RANDOM

RUNS, POINTS = 10, 8


def course(label: str, loss: float, accuracy: float, spread: float, seed: int, caveat: str = "") -> Curves:
    """Runs whose accuracies lie around a mean with a given deviation."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((RUNS, POINTS))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0, ddof=1)
    rounds = np.arange(POINTS) * 10
    metrics = {
        "loss": loss + 1e-3 * noise,
        "accuracy": accuracy + spread * noise,
        "test_loss": loss + 1e-3 * noise,
        "test_accuracy": accuracy + spread * noise,
    }
    return Curves(label, 0.1, caveat, rounds, rounds * 7.0, rounds * 2, metrics)


def as_printed(**changed: tuple[float, float, float]) -> dict[Any, Curves]:
    """Runs of which all claims hold, but for what is changed: (loss, accuracy, deviation)."""
    cells = {
        "small_iid": (0.5, 0.80, 0.004), "small_mixed": (0.6, 0.75, 0.04),
        "large_iid": (0.3, 0.90, 0.001), "large_mixed": (0.4, 0.85, 0.01),
    } | changed  # fmt: skip
    names = {"small": SMALL, "large": LARGE, "iid": IID, "mixed": MIXED}
    return {
        tuple(names[part] for part in cell.split("_")): course(cell, *numbers, seed=i)
        for i, (cell, numbers) in enumerate(cells.items())
    }


def verdicts(curves: dict[Any, Curves]) -> dict[str, bool | None]:
    return {claim.id.removeprefix("digits-"): claim.holds for claim in wide.judge(curves, "digits")}


def test_all_claims_hold_where_runs_are_as_the_paper_prints_them() -> None:
    assert set(verdicts(as_printed()).values()) == {True}


@pytest.mark.parametrize(
    ("changed", "claim", "verdict"),
    [
        ({"large_mixed": (0.7, 0.85, 0.01)}, "lower-loss", False),
        ({"large_mixed": (0.6, 0.85, 0.01)}, "lower-loss", None),
        ({"large_iid": (0.3, 0.70, 0.001)}, "higher-accuracy", False),
        ({"large_iid": (0.3, 0.80, 0.001)}, "higher-accuracy", None),
        ({"small_iid": (0.5, 0.80, 0.4)}, "iid-steadier", False),
        ({"small_iid": (0.5, 0.80, 0.04)}, "iid-steadier", None),
        ({"large_mixed": (0.4, 0.85, 0.4)}, "large-steadier", False),
        ({"large_mixed": (0.4, 0.85, 0.04)}, "large-steadier", None),
    ],
)
def test_one_cell_that_is_otherwise_turns_its_claim(changed: Any, claim: str, verdict: bool | None) -> None:
    assert verdicts(as_printed(**changed))[claim] is verdict


def test_claims_say_which_steps_lie_on_the_edge() -> None:
    curves = as_printed()
    curves[LARGE, IID] = course("large, iid", 0.3, 0.9, 0.001, 2, caveat="best step on the edge of the grid")
    for claim in wide.judge(curves, "digits"):
        assert claim.by == "paper"
        assert "edge of the grid: large, iid" in claim.evidence
    assert not any("edge" in claim.evidence for claim in wide.judge(as_printed(), "digits"))


@pytest.mark.parametrize(("gap", "spread", "verdict"), [(0.0, 1e-3, True), (0.02, 1e-3, False), (-0.02, 1e-3, False),
                                                       (0.0, 0.1, None), (0.01, 1e-3, None)])  # fmt: skip
def test_starts_are_equal_only_within_a_point_on_both_sides(gap: float, spread: float, verdict: bool | None) -> None:
    curves = {
        (start, split): course(start, 0.1, 0.9 + (gap if (start, split) == (PROPOSED, MIXED) else 0.0), spread, seed)
        for seed, (start, split) in enumerate((a, b) for a in (RANDOM, PROPOSED) for b in (IID, MIXED))
    }
    assert wide_3.judge(curves, "digits").holds is verdict


# --- the interval of a ratio of variances ------------------------------------------------------------------------


def test_interval_of_a_variance_ratio_covers_it() -> None:
    """400 samples of ten pairs with log ratio log 4: nominally 95 %; within four deviations of a count at 90 %."""
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((400, 2, 10)) * np.array([2.0, 1.0])[:, None]
    misses = {truth: 0 for truth in (np.log(4), 0.0)}
    for first, second in pairs:
        values = log_variance_ratio(first, second)
        for truth in misses:
            misses[truth] += above(values, truth)[0] is not None
    assert misses[np.log(4)] < 400 * 0.1 + 4 * np.sqrt(400 * 0.1 * 0.9)
    # and it is not merely wide: a ratio of one is refuted half as often as by the F-test, which knows of normality
    low, high = stats.f.ppf([0.025, 0.975], 9, 9)
    power = stats.f.sf(high / 4, 9, 9) + stats.f.cdf(low / 4, 9, 9)
    assert misses[0.0] > 400 * power / 2 > 4 * 400 * 0.05


def test_variance_ratio_of_runs_without_spread_or_too_few_is_not_decided() -> None:
    some = np.array([1.0, 2.0, 4.0])
    assert np.isnan(log_variance_ratio(some, np.ones(3))).all()
    assert np.isnan(log_variance_ratio(some[:2], some[:2])).all()
    assert above(log_variance_ratio(some, np.ones(3)), 0.0)[0] is None
    np.testing.assert_allclose(log_variance_ratio(3 * some, some), np.log(9))


# --- what the recipes are made of --------------------------------------------------------------------------------


def tiny(name: str) -> Bench:
    quick = RECIPES[name].scales["quick"]
    models = {key: {**model, "hidden": [4 if key == SMALL else 16]} for key, model in quick["models"].items()}
    return Bench({**quick, "models": models, "rounds": 4, "tuning_rounds": 2, "repeats": 3, "evaluations": 2})


def test_tiny_contest_of_sizes_is_carried_out() -> None:
    found = RECIPES["wide-4"].carry_out(tiny("wide-4"))
    assert [claim.id for claim in found.claims] == [
        "digits-lower-loss", "digits-higher-accuracy", "digits-iid-steadier", "digits-large-steadier"
    ]  # fmt: skip
    assert {claim for figure in found.figures for claim in figure.claims} == {claim.id for claim in found.claims}
    assert all("(digits)" in claim.text and claim.seeds == 3 for claim in found.claims)
    assert len(found.tables[0].rows) == 4
    sent = {row[0]: float(row[-1]) for row in found.tables[0].rows}
    assert sent["large, iid"] / sent["small, iid"] == pytest.approx((75 * 16 + 10) / (75 * 4 + 10), rel=0.01)


def test_tiny_contest_of_starts_is_carried_out() -> None:
    found = RECIPES["wide-3"].carry_out(tiny("wide-3"))
    assert [claim.id for claim in found.claims] == ["digits-starts-equal"]
    assert {row[0] for row in found.tables[0].rows} == {f"{a}, {b}" for a in (RANDOM, PROPOSED) for b in (IID, MIXED)}


@pytest.mark.parametrize("name", ["wide-1", "wide-2", "wide-3", "wide-4"])
def test_full_scale_is_the_papers(name: str) -> None:
    recipe = RECIPES[name]
    full, quick = recipe.scales["full"], recipe.scales["quick"]
    assert (full["num_clients"], full["cohort"]) == (100, 10)
    assert (full["batch_size"], full["num_local_steps"]) == ((32, 5) if name in ("wide-1", "wide-2") else (10, 10))
    assert full["skewed_share"] == (0.2 if name in ("wide-1", "wide-2") else 0.7)
    assert not full.get("scaled") and quick["scaled"]
    assert all(set(model) <= {"name", "hidden", "start"} for model in full["models"].values())  # no width is cut


@pytest.mark.parametrize("name", ["wide-1", "wide-2"])
def test_quick_networks_keep_the_ratio_of_parameters(name: str) -> None:
    import equinox as eqx
    import jax

    from sojourn.core.vec import size

    def parameters(scale: str, which: str) -> int:
        table = dict(RECIPES[name].scales[scale]["models"][which])
        make = MODELS[table.pop("name")]
        return int(size(eqx.filter(eqx.filter_eval_shape(make, (32, 32, 3), 10, jax.random.key(0), **table),
                                   lambda leaf: hasattr(leaf, "shape"))))  # fmt: skip

    ratios = {scale: parameters(scale, LARGE) / parameters(scale, SMALL) for scale in ("quick", "full")}
    assert ratios["quick"] == pytest.approx(ratios["full"], rel=0.1)
    assert ratios["full"] > 2


def test_shrunk_images_are_means_of_squares() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    small = shrunk(images, 4)
    assert small.shape == (3, 8, 8, 3) and small.dtype == np.uint8
    assert small[1, 2, 5, 0] == round(float(images[1, 8:12, 20:24, 0].mean()))
    assert small[1, 2, 5, 0] != small[1, 5, 2, 0]
    assert shrunk(images, 1) is images


def test_boxes_show_every_run_and_a_logarithmic_axis_leaves_the_start_out() -> None:
    rows = [{"x": IID, "y": 0.1, "of": SMALL}, {"x": MIXED, "y": 0.2, "of": LARGE}]
    spec = boxes(rows, x="split", y="accuracy")
    assert spec["data"]["values"] == rows
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["boxplot", "point"]
    curves = list(as_printed().values())
    shown = {log: chart("a", curves, "loss", "floats", log_x=log).spec["data"]["values"] for log in (True, False)}
    assert {row["x"] for row in shown[False]} - {row["x"] for row in shown[True]} == {0.0}
