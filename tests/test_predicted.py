"""Predicted beside measured: bounds that apply are drawn, fixed points too, and a curve above a bound is flagged."""

import dataclasses
import json

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import FedProx, LocalSGD
from sojourn.core.facts import Facts
from sojourn.history import History
from sojourn.report import render
from sojourn.report.figure import curve_spec, strokes
from sojourn.report.predicted import floors, predictions, section_html
from sojourn.report.runs import split
from sojourn.sweeping import Setting, sweep_settings
from sojourn.theory import theorem_7
from sojourn.theory.forecast import forecasts
from sojourn.theory.identities import local_sgd_fixed_point


def near(noise: float = 0.0, spread: float = 0.3, num_clients: int = 4) -> sj.Federation:
    """Clients that differ little, so that the theorems say something."""
    rng = np.random.default_rng(0)
    base = np.diag([1.0, 2.0, 4.0])
    tilt = rng.normal(size=(num_clients, 3, 3))
    hessians = base + 0.02 * (tilt + tilt.transpose(0, 2, 1))
    return sj.problems.quadratic(hessians, 2 + spread * rng.normal(size=(num_clients, 3)), noise=noise)


def seeds(federation: sj.Federation, algorithm: object, number: int, rounds: int = 40) -> History:
    settings = [Setting(algorithm, seed, {}, federation) for seed in range(number)]
    return sweep_settings(None, settings, rounds, eval_every=1, label="local-sgd")


STEP = LocalSGD(step_size=0.02, num_local_steps=4)


def test_the_bounds_of_a_run_are_those_whose_statements_apply() -> None:
    federation = near(noise=0.1)
    history = seeds(federation, STEP, 8)
    [run] = split([history])
    found = predictions([run], "distance")[run.name]
    names = {bound.statement for bound in found.bounds}
    assert {"theorem_4", "theorem_5", "theorem_7", "recursion_distance_quadratic"} <= names
    assert "theorem_10" not in names  # the gradients of quadratics with different Hessians differ without limit
    for bound in found.bounds:
        if bound.statement == "theorem_7":
            numbers = {"step_size": float(STEP.step_size), "num_local_steps": 4}
            exact = theorem_7(federation.facts, rounds=40, **numbers)
            assert bound.bound[-1] == pytest.approx(np.sqrt(exact), rel=1e-6)
            assert np.isinf(bound.bound[0])  # nothing is promised of the start
    ends = [bound.bound[-1] for bound in found.bounds]
    assert ends == sorted(ends)
    assert found.violated_at is None and found.judged


def test_a_curve_above_a_bound_is_flagged_on_the_page(tmp_path) -> None:
    history = seeds(near(), STEP, 1)
    assert section_html(split([history]), ["distance"])[1] == []
    history.manifest["facts"]["start_distance"] /= 10  # a lie: the bounds now start ten times too low
    html, broken = section_html(split([history]), ["distance"])
    assert broken == ["local-sgd"] and "above the bound from round 1 on" in html
    page = render([history], tmp_path).read_text(encoding="utf-8")
    assert "Above a bound that should hold: local-sgd" in page


def test_with_noise_only_a_mean_over_seeds_can_break_a_bound() -> None:
    few, many = (seeds(near(noise=0.5), STEP, number) for number in (2, 12))
    for history in (few, many):
        history.manifest["facts"]["start_distance"] /= 10
    assert predictions(split([few]), "distance")["local-sgd"].violated_at is None
    assert not predictions(split([few]), "distance")["local-sgd"].judged
    assert predictions(split([many]), "distance")["local-sgd"].violated_at == 1
    few.manifest["facts"]["start_distance"] /= 1e4  # even one run in a thousand does not lie so far above a mean
    few.manifest["facts"]["noise"] = 1e-6
    few.manifest["facts"]["optima_heterogeneity"] = few.manifest["facts"]["optima_distance"] = 0.0
    assert predictions(split([few]), "distance")["local-sgd"].violated_at is not None


def test_the_floor_is_the_fixed_point_and_the_run_ends_there() -> None:
    federation = near(spread=2.0)
    history = sj.run(federation, LocalSGD(step_size=0.2, num_local_steps=20), 80, eval_every=1)
    facts = federation.facts
    end = local_sgd_fixed_point(hessians=facts.hessians, optima=facts.optima, step_size=0.2, num_local_steps=20)
    bias = float(np.linalg.norm(end - facts.x_star))
    [run] = split([history])
    assert floors([run], "distance")[run.name] == pytest.approx(bias, rel=1e-5)
    assert history.last("distance") == pytest.approx(bias, rel=1e-3) and bias > 1e-3
    assert floors([run], "loss") == {}


def test_the_chart_has_the_bound_and_the_floor() -> None:
    runs = split([seeds(near(), STEP, 1)])
    spec = curve_spec(runs, "distance", strokes(runs))
    assert spec is not None
    fields = [layer["encoding"]["y"]["field"] for layer in spec["layer"]]
    assert {"bound", "floor"} <= set(fields)
    rows = spec["data"]["values"]
    assert rows[0]["bound"] is None and all(row["bound"] > row["value"] for row in rows[1:])
    plain = curve_spec(runs, "loss", strokes(runs))
    assert plain is not None and "bound" not in json.dumps(plain)


@pytest.mark.parametrize(
    "history",
    [
        lambda: sj.run(near(), FedProx(step_size=0.02, proximal_weight=0.1), 5),  # no bound for it
        lambda: sj.run(near(), STEP, 5, participation=2),  # theory is for everyone
        lambda: sj.run(near(), LocalSGD(step_size=1.5, num_local_steps=2), 2),  # beyond what theorems require
    ],
    ids=["no-bound", "sampled", "too-long-a-step"],
)
def test_where_no_bound_applies_none_is_shown(history) -> None:
    runs = split([history()])
    assert predictions(runs, "distance") == {}
    assert section_html(runs, ["distance"]) == ("", [])


def test_fedavg_with_equal_weights_is_local_sgd_and_minibatch_has_its_own() -> None:
    rounds = np.arange(1, 20)
    facts = near(noise=0.1).facts
    options = {"step_size": 0.02, "num_local_steps": 4}
    local = {"class": "LocalSGD", "output": "last", "outer_step_size": 1.0, **options}
    theirs = [f.statement for f in forecasts(facts, {"class": "FedAvg", **options}, rounds)]
    assert theirs == [f.statement for f in forecasts(facts, local, rounds)] and theirs
    batch = forecasts(facts, {"class": "MinibatchSGD", **options}, rounds)
    assert {(f.statement, f.column) for f in batch} == {
        ("minibatch_sgd_distance", "distance"),
        ("minibatch_sgd_distance", "suboptimality"),
    }
    by_column = {f.column: f for f in batch}
    gap = facts.smoothness / 2 * by_column["distance"].bound ** 2
    np.testing.assert_allclose(by_column["suboptimality"].bound, gap)  # by smoothness
    start = facts.start_distance
    promised = by_column["distance"].first_below([0.9 * start, 0.0])
    assert promised[0] is not None and promised[1] is None  # noise leaves a floor
    at = by_column["distance"].at(np.array([promised[0] - 1.0, promised[0]]))
    assert at[1] <= 0.9 * start < at[0]
    assert forecasts(Facts(), local, rounds) == []  # nothing known, nothing said
    other = dataclasses.replace(facts, third_order_smoothness=1.0)
    assert "theorem_7" not in [f.statement for f in forecasts(other, local, rounds)]


def test_an_output_weighed_with_other_constants_has_no_bound() -> None:
    facts = near().facts
    mine = {
        "class": "LocalSGD", "output": "coupled", "outer_step_size": 1.0, "step_size": 0.01, "num_local_steps": 2,
        "strong_convexity": facts.strong_convexity, "smoothness": facts.smoothness,
        "hessian_heterogeneity": facts.hessian_heterogeneity,
    }  # fmt: skip
    assert [f.statement for f in forecasts(facts, mine, np.arange(1, 50))] == ["theorem_6"]
    assert forecasts(facts, {**mine, "strong_convexity": 0.1}, np.arange(1, 50)) == []
