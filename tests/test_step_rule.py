"""`step_size = "theory"`: the rule is found, used, recorded; what it lacks is said before anything runs."""

import json

import numpy as np
import pytest

from sojourn.config import validate
from sojourn.core.errors import SojournError
from sojourn.experiment import build_federation, check_config, run_config, sweep_config
from sojourn.theory import theorem_7_step_size
from sojourn.theory.step_sizes import step_size_rule

TABLES = {
    "problem": {"name": "quadratic", "num_clients": 4, "dimension": 3, "rotation": 0.05, "noise": 0.3},
    "algorithm": {"name": "local-sgd", "step_size": "theory", "num_local_steps": 4},
    "run": {"rounds": 30},
}


def changed(**tables: dict) -> dict:
    return {name: {**TABLES.get(name, {}), **tables.get(name, {})} for name in {**TABLES, **tables}}


def test_the_rule_is_used_and_recorded(tmp_path) -> None:
    config = validate(TABLES)
    [history] = run_config(config, tmp_path / "run")
    rule = history.manifest["step_rule"]
    facts = build_federation(config).facts
    assert rule["rule"].startswith("Theorem 7") and rule["option"] == "step_size"
    assert rule["value"] == pytest.approx(theorem_7_step_size(facts, rounds=30, num_local_steps=4))
    assert history.manifest["algorithm"]["step_size"] == pytest.approx(rule["value"], rel=1e-6)
    assert rule["used"]["noise"] == pytest.approx(0.3)
    kept = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert kept["step_rule"]["value"] == rule["value"]
    assert history.config["algorithm"]["step_size"] == "theory"  # the config stays what was asked for
    [again] = run_config(config, tmp_path / "run", resume=True)
    assert again.last() == history.last()


def test_more_rounds_or_noise_change_the_step(tmp_path) -> None:
    def step(tables: dict) -> float:
        config = validate(tables)
        part = config.algorithms[0]
        return step_size_rule(part.name, build_federation(config).facts, part.options, config.run.rounds).value

    few, many = step(changed(run={"rounds": 200})), step(changed(run={"rounds": 20_000}))
    assert many < few
    assert step(changed(run={"rounds": 20_000}, problem={"noise": 3.0})) < many


def test_a_sweep_finds_the_rule_at_every_point(tmp_path) -> None:
    [history] = sweep_config(TABLES, ["algorithm.num_local_steps=1,4,16", "run.seed=0:2"], tmp_path / "sweep")
    values = [entry["step_rule"]["value"] for entry in history.manifest["settings"]]
    assert len(values) == 3 and len(set(values)) > 1
    assert np.all(np.isfinite(history.table["loss"]))


@pytest.mark.parametrize(
    "tables, message",
    [
        (changed(run={"participation": 2}), "every client takes part"),
        (changed(algorithm={"outer_step_size": 2.0}), "outer_step_size"),
        (changed(algorithm={"name": "fedprox"}), 'no rule for "fedprox"'),
        (
            {**TABLES, "problem": {"name": "classification"}, "partition": {"num_clients": 7}},
            r"needs.*strong_convexity \(mu\)|count equally",
        ),
    ],
)
def test_what_theory_lacks_is_said_before_anything_runs(tables: dict, message: str) -> None:
    with pytest.raises(SojournError, match=message):
        check_config(validate(tables))


def test_accelerated_methods_take_their_smoothness_from_theory(tmp_path) -> None:
    tables = changed(algorithm={"name": "ac-sa", "smoothness": "theory"})
    del tables["algorithm"]["step_size"]
    [history] = run_config(validate(tables), tmp_path / "run")
    assert history.manifest["step_rule"]["option"] == "smoothness"
    assert history.status == "ok" and history.last("distance") < history.table["distance"].iloc[0]
