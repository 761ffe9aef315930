"""Guards by config: one sentence for every mistake, around every method, through runs, sweeps and the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import Guarded
from sojourn.algorithms.privacy import epsilon_spent, releases
from sojourn.catalogue import entries
from sojourn.config import build_algorithm, guard, validate
from sojourn.core.errors import SojournError
from sojourn.experiment import check_config, run_config, sweep_config
from sojourn.report.runs import split
from test_config import assert_one_sentence, classification, quadratic, sentence

PRIVACY: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-3}
ASYNCHRONOUS = {"name": "fedasync", "step_size": 0.1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"aggregation": {"name": "medain"}}, 'did you mean "median"?'),
        ({"aggregation": {"name": "median", "trim": 0.1}}, "aggregation.trim is not known"),
        ({"aggregation": {"name": "trimmed-mean", "trim": 0.5}}, "below 0.5"),
        ({"aggregation": {"name": "krum", "attackers": 1.5}}, "a whole number"),
        ({"aggregation": {"clip": 0.0}}, "above 0"),
        ({"aggregation": {"clip": 1e-40}}, "out of range"),
        ({"aggregation": {"clip": 1.0, "weights": "even"}}, 'one of "method", "equal"'),
        ({"aggregation": 3}, "aggregation = 3 is not a table"),
        ({"privacy": {"clip": 1.0, "delta": 1e-5}}, "give one of them"),
        ({"privacy": {**PRIVACY, "epsilon": 3.0}}, "give one of them"),
        ({"privacy": {"noise_multiplier": 1.0, "delta": 1e-5}}, "privacy.clip is missing"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "privacy.delta is missing"),
        ({"privacy": {**PRIVACY, "delta": 1.0}}, "below 1"),
        ({"privacy": {**PRIVACY, "sigma": 1.0}}, "privacy.sigma is not known"),
        ({"privacy": {**PRIVACY, "noise_multiplier": 1e300}}, "out of range"),
        ({"privacy": PRIVACY, "aggregation": {"clip": 1.0}}, "take aggregation.clip out"),
        ({"privacy": PRIVACY, "aggregation": {"name": "median"}}, "the noise is that of a mean"),
        ({"aggregation": {"name": "krum"}, "algorithm": ASYNCHRONOUS}, "needs several answers at once"),
        ({"privacy": PRIVACY, "algorithm": ASYNCHRONOUS}, "hide one among many"),
        ({"privacy": PRIVACY, "algorithm": {"name": "local-sgd", "step_size": "theory"}}, "give a number"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], expected: str) -> None:
    found = sentence(quadratic(**changes))
    assert_one_sentence(found)
    assert expected in found


def test_guards_stand_around_every_method_and_are_written_out() -> None:
    methods = [{"name": "fedavg", "step_size": 0.1}, {"name": "scaffold", "step_size": 0.1}]
    config = validate(quadratic(algorithm=methods, aggregation={"name": "krum"}))
    for part in config.algorithms:
        made = guard(config, build_algorithm(part), None)
        assert isinstance(made, Guarded) and dict(made.options) == {"attackers": 1, "keep": 1}
    assert config.tables["aggregation"] == {"name": "krum", "attackers": 1, "keep": 1, "weights": "method"}
    assert validate(config.tables).tables == config.tables
    plain = validate(quadratic(aggregation={"name": "mean"}))
    assert not isinstance(guard(plain, build_algorithm(plain.algorithms[0]), None), Guarded)


def test_what_only_shows_with_the_federation_is_refused_by_check() -> None:
    uneven = classification(partition={"name": "dirichlet", "num_clients": 4}, aggregation={"name": "median"})
    uneven["algorithm"] = {"name": "fedavg", "step_size": 0.1}
    with pytest.raises(SojournError, match='weights = "equal"'):
        check_config(validate(uneven))
    uneven["aggregation"]["weights"] = "equal"
    check_config(validate(uneven))


def test_an_epsilon_finds_its_noise_and_the_manifest_says_so(tmp_path: Path) -> None:
    tables = quadratic(privacy={"clip": 0.5, "epsilon": 5.0, "delta": 1e-3}, run={"rounds": 8, "participation": 2})
    tables["problem"]["num_clients"] = 6
    (history,) = run_config(validate(tables), tmp_path / "run", progress=False)
    told = history.manifest["privacy"]
    assert 4.95 < told["epsilon"] <= 5.0
    method = build_algorithm(validate(tables).algorithms[0])
    assert told["epsilon"] == epsilon_spent(releases(method, 6, 2, 8), told["noise_multiplier"], 1e-3)
    page = sj.render([history], tmp_path / "run").read_text()
    assert "Guards and privacy" in page and "Epsilon covers" in page


def test_guards_can_be_swept(tmp_path: Path) -> None:
    tables = quadratic(privacy=dict(PRIVACY), run={"rounds": 4})
    history = sweep_config(tables, ["privacy.noise_multiplier=1.0,4.0"], tmp_path / "sweep", progress=False)[0]
    found = [entry["privacy"]["epsilon"] for entry in history.manifest["settings"]]
    assert found[0] > 2 * found[1]
    ends = history.frame().groupby("privacy.noise_multiplier")["distance"].last()
    assert np.isfinite(ends).all() and ends.nunique() == 2
    lengths = sweep_config(tables, ["run.rounds=2,8"], tmp_path / "lengths", progress=False)
    told = [run.entry["privacy"]["epsilon"] for run in split(lengths)]
    assert told[1] > 1.5 * told[0]
    rules = sweep_config(
        quadratic(problem={"name": "quadratic", "num_clients": 6}, run={"rounds": 4}),
        ["aggregation.name=mean,median,krum"], tmp_path / "rules", progress=False,
    )[0]  # fmt: skip
    assert rules.frame().groupby("aggregation.name")["distance"].last().nunique() == 3


def test_aggregators_are_listed_with_their_options() -> None:
    listed = {entry.name: entry for entry in entries("aggregators")}
    assert list(listed) == ["mean", "median", "trimmed-mean", "krum"]
    assert "attackers (1)" in listed["krum"].options and "clip (None)" in listed["mean"].options
