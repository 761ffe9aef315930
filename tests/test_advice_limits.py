"""Advice where it could say too much: assumptions that do not hold, targets out of reach, losses without curvature."""

import dataclasses
import io
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sojourn as sj
from small_diagnoses import changed, diagnosis_of, family
from sojourn.advice import write_page
from sojourn.advice.advisor import _other_leader
from sojourn.advice.answer import BOUND, MOST_BY_BOUND
from sojourn.advice.asked import Target, parse_target
from sojourn.advice.bounds import RULES, surely_alike
from sojourn.advice.contest import priced, replayed, scene_of
from sojourn.advice.fallbacks import safe_choice
from sojourn.advice.methods import price, trips
from sojourn.advice.sentences import sentences_of
from sojourn.advice.stragglers import trace_of
from sojourn.advice.table import advice_table
from sojourn.advising import advise_config
from sojourn.cli import app
from sojourn.config import load_config
from sojourn.core.errors import SojournError
from sojourn.diagnosis import Cost
from sojourn.experiment import run_config

FEW = sj.Budget(local_steps=16)


def apart():
    """Three clients whose curvatures have little in common."""
    sides = [np.diag(np.roll([1.0, 0.1, 0.05], turn)) for turn in range(3)]
    return sj.problems.quadratic(np.stack(sides), 3 * np.eye(3))


def kept(advice, name: str):
    return {c.name: c for c in advice.contenders}[name]


# --- bounds, and what they assume


def test_a_bound_for_identical_clients_is_no_prediction_for_others() -> None:
    federation = apart()
    found = sj.diagnose(federation, scalars_only=True, progress=False)
    advice = sj.advise(federation, target=("distance", 0.05), diagnosis=found)
    fedac = kept(advice, "fedac")
    assert not fedac.fits and not fedac.reaches and fedac.why_not == "its assumption, identical clients, is not met"
    assert advice.best.name != "fedac"
    history = sj.run(federation, advice.algorithm, advice.rounds, eval_every=1, progress=False)
    assert history.table["distance"].min() <= 0.05


def test_clients_are_alike_only_by_the_upper_end() -> None:
    same = diagnosis_of(family(0.0, 0.0))
    assert surely_alike(same) and not surely_alike(diagnosis_of(family()))
    for change in ({"high": 0.3}, {"kind": "lower bound"}):
        tau = dataclasses.replace(same["hessian_heterogeneity"], value=0.0, **change)
        assert not surely_alike(dataclasses.replace(same, measures={**same.measures, tau.name: tau}))


def test_bounds_say_that_they_count_on_everyone() -> None:
    diagnosis = diagnosis_of(family())
    some = sj.advise(diagnosis, target=("distance", 0.05), budget=sj.Budget(local_steps=4, participation=3))
    assert any("3 of 6 clients" in sentence for sentence in some.sentences)
    tau = dataclasses.replace(diagnosis["hessian_heterogeneity"], kind="lower bound")
    one = dataclasses.replace(diagnosis, measures={**diagnosis.measures, tau.name: tau})
    advice = sj.advise(one, target=("distance", 0.05), budget=FEW)
    assert any("is a lower bound of the true constant and was" in sentence for sentence in advice.sentences)
    assert not any("clients do" in sentence for sentence in advice.sentences)


# --- trips


def test_rounds_are_trips_of_messages() -> None:
    numbers = {"step_size": 0.1, "num_local_steps": 4}
    assert trips("ce-lsgd", numbers) == 2 and trips("scaffold", numbers) == 1
    assert all(rules["ce-lsgd"].trips == 2 for rules in RULES.values())
    advice = sj.advise(diagnosis_of(family(0.1, 0.3)), target=("distance", 0.05), budget=FEW)
    walked = kept(advice, "ce-lsgd")
    assert walked.rounds == 2 * walked.iterations
    history = sj.run(family(0.1, 0.3), sj.algorithms.CELSGD(**walked.options), 3, eval_every=1, progress=False)
    steady = history.table.iloc[-1]
    assert walked.floats == pytest.approx(walked.iterations * (steady["floats_down"] + steady["floats_up"]))
    tight = priced(walked, sj.Budget(rounds=int(walked.rounds) - 1), 6, 8)
    assert not tight.fits and priced(walked, sj.Budget(rounds=int(walked.rounds)), 6, 8).fits
    taken = dataclasses.replace(advice, best=walked, budget=sj.Budget(rounds=int(walked.rounds)))
    assert taken.rounds == walked.iterations  # of a history


def test_a_budget_of_gradients_counts() -> None:
    diagnosis = diagnosis_of(family(0.1, 0.3))
    free = sj.advise(diagnosis, target=("distance", 0.05), budget=FEW)
    limits = sj.Budget(local_steps=16, gradients=free.best.gradients / 2)
    short = sj.advise(diagnosis, target=("distance", 0.05), budget=limits)
    assert not kept(short, free.best.name).fits and "gradients" in kept(short, free.best.name).why_not
    same = dataclasses.replace(free, budget=sj.Budget(gradients=1.05 * free.best.gradients))
    assert same.rounds * free.best.gradients / free.best.iterations <= 1.05 * free.best.gradients < free.rounds * 1e9


# --- stragglers


def test_not_waiting_is_advised_where_it_is_quicker_and_gets_there(tmp_path: Path) -> None:
    """Clients that differ a little: the rehearsal's rounds are the engine's, on traces it has not seen."""
    federation, budget = family(0.02, 0.02), sj.Budget(local_steps=16, slowest=20.0, staleness=10)
    advice = sj.advise(diagnosis_of(federation), target=("distance", 0.05), budget=budget)
    assert advice.best.name == "fedasync" and any("virtual seconds" in sentence for sentence in advice.sentences)
    uploads = 6 * advice.rounds
    trace = trace_of(budget, 6, uploads, seed=7)
    history = sj.run(federation, advice.algorithm, uploads, trace=trace, eval_every=6, progress=False)
    there = history.table[history.table["distance"] <= 0.05]["round"].iloc[0] / 6
    assert there == pytest.approx(advice.best.rounds, rel=0.1)
    assert history.table["virtual_seconds"].iloc[-1] < 760  # what AC-SA takes, which waits
    tables = advice.tables()
    assert tables["clock"]["seconds"] == [1.0, 20.0] and tables["schedule"]["max_staleness"] == 10
    assert tables["run"]["uploads"] == uploads


@pytest.mark.parametrize("slowest", [5.0, 20.0])
def test_not_waiting_is_not_advised_where_its_bias_stands_in_the_way(slowest: float) -> None:
    budget = sj.Budget(local_steps=16, slowest=slowest, staleness=10)
    advice = sj.advise(diagnosis_of(apart()), target=("distance", 0.01), budget=budget)
    assert advice.best.name != "fedasync" and not kept(advice, "fedasync").reaches
    history = sj.run(apart(), advice.algorithm, advice.rounds, eval_every=1, progress=False)
    assert history.table["distance"].min() <= 0.01


def test_a_rule_of_thumb_is_never_taken() -> None:
    diagnosis = dataclasses.replace(diagnosis_of(family(0.0, 0.0)), miniature=None)
    advice = sj.advise(diagnosis, target=("distance", 0.05), budget=sj.Budget(slowest=100.0))
    assert advice.best.name != "fedasync" and not kept(advice, "fedasync").fits


# --- targets


def test_a_target_below_the_least_loss_is_said() -> None:
    federation = family(0.1, 0.5)
    diagnosis = diagnosis_of(federation)
    least = federation.facts.f_star
    advice = sj.advise(diagnosis, target=("loss", least - 1), budget=FEW)
    assert not advice.reachable and f"The least loss is {least:.4g} (exact)" in advice.sentences[0]
    history = sj.run(federation, advice.algorithm, advice.rounds, eval_every=1, progress=False)
    start = history.table["loss"].iloc[0]
    assert history.table["loss"].min() <= least + 0.0101 * (start - least)
    found = dataclasses.replace(diagnosis["f_star"], kind="upper bound")
    guessed = dataclasses.replace(diagnosis, measures={**diagnosis.measures, "f_star": found})
    assert "best loss found" in sj.advise(guessed, target=("loss", least - 1), budget=FEW).sentences[0]
    blind = dataclasses.replace(guessed, miniature=None)
    said = sj.advise(family(0.1, 0.5), target=("loss", least - 1), budget=FEW, diagnosis=blind).sentences[0]
    assert "best loss found" in said


def test_nothing_is_claimed_of_what_was_not_examined() -> None:
    short = sj.advise(diagnosis_of(family(0.3, 0.5)), target=("distance", 1e-6), budget=sj.Budget(rounds=2))
    text = " ".join(short.sentences)
    assert "stays the same" not in text and "was not examined" in text
    quiet = sj.advise(diagnosis_of(family(0.0, 0.0)), target=("distance", 0.05), budget=FEW)
    assert not any("sigma" in sentence for sentence in quiet.sentences if "stays" in sentence)  # there is no noise


def test_a_target_finer_than_the_arithmetic_is_said() -> None:
    federation = family()
    advice = sj.advise(federation, target=("distance", 1e-12), budget=FEW, diagnosis=diagnosis_of(federation))
    assert any("float64" in sentence for sentence in advice.sentences)
    coarse = sj.advise(federation, target=("distance", 0.05), budget=FEW, diagnosis=diagnosis_of(federation))
    assert not any("float64" in sentence for sentence in coarse.sentences)


def test_met_at_the_start_is_measured_or_says_how_it_is_known() -> None:
    federation = family()
    advice = sj.advise(federation, target=("grad", 100.0), diagnosis=diagnosis_of(federation))
    assert advice.best is None and "miniature" not in advice.sentences[0]
    about = changed(diagnosis_of(federation), start_distance=1e-3)
    found = dataclasses.replace(about["start_distance"], kind="estimate")
    about = dataclasses.replace(about, measures={**about.measures, "start_distance": found})
    assert "by the diagnosis (estimate" in sj.advise(about, target=("distance", 0.1)).sentences[0]


# --- losses that theory does not know


def losses_of(loss, start):
    x = np.linspace(-1, 1, 12).reshape(2, 6, 1) + 0.3
    y = 2.0 * x[..., 0] + 0.1
    return sj.federation(loss, jnp.asarray(start, jnp.float32), [(x[0], y[0]), (x[1], y[1])])


def test_a_loss_without_curvature_gets_a_guarded_step() -> None:
    federation = losses_of(lambda p, rows: jnp.mean(jnp.abs(rows[0] @ p - rows[1])), [0.0])
    diagnosis = dataclasses.replace(sj.diagnose(federation, progress=False), miniature=None)
    flat = dataclasses.replace(diagnosis["smoothness"], value=0.0) if "smoothness" in diagnosis.measures else None
    measures = {**diagnosis.measures, **({} if flat is None else {"smoothness": flat})}
    advice = sj.advise(federation, target=("loss", 0.2), diagnosis=dataclasses.replace(diagnosis, measures=measures))
    assert "Nothing can be predicted" in advice.sentences[0] and advice.best.basis == "not predicted"
    history = sj.run(federation, advice.algorithm, 200, eval_every=1, progress=False)
    assert history.table["loss"].min() <= 0.2
    Console(file=io.StringIO()).print(advice_table(advice))


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_a_loss_that_is_no_number_is_not_a_target_met(value: float) -> None:
    federation = losses_of(lambda p, rows: jnp.mean(rows[0] @ p) + value, [0.0])
    with pytest.raises(SojournError, match="not a number"):
        sj.advise(federation, target=("loss", 0.2))


# --- the fallback, one client, the page


def test_the_fallback_is_cautious_and_gets_there() -> None:
    federation = family(0.1, 0.3)
    advice = sj.advise(diagnosis_of(federation), target=("distance", 0.3), budget=FEW)
    fallback, H = advice.fallback, federation.facts.smoothness
    assert fallback.name == "minibatch-sgd" and fallback.options["step_size"] == pytest.approx(1 / (2 * H), rel=1e-4)
    weak = diagnosis_of(federation)
    found = dataclasses.replace(weak["smoothness"], kind="lower bound")
    weak = dataclasses.replace(weak, measures={**weak.measures, "smoothness": found})
    careful = sj.advise(weak, target=("distance", 0.3), budget=FEW)
    assert careful.fallback.options["step_size"] == pytest.approx(1 / (4 * H), rel=1e-4)
    assert any("It is safe" in sentence for sentence in careful.sentences)


def test_one_client_is_advised_what_its_table_shows(tmp_path: Path) -> None:
    advice = sj.advise(diagnosis_of(family(clients=1)), target=("distance", 0.05), budget=FEW)
    assert advice.best in advice.contenders and "SCAFFOLD" not in advice.falsified_by
    text = write_page(advice, tmp_path).read_text(encoding="utf-8")
    assert "There is one client, which differs from nobody" in text


def test_identical_clients_are_told_why_they_are_nowhere(tmp_path: Path) -> None:
    advice = sj.advise(diagnosis_of(family(0.0, 0.0)), target=("distance", 0.05), budget=FEW)
    assert "local steps leave no bias" in write_page(advice, tmp_path).read_text(encoding="utf-8")


def test_what_the_diagnosis_cost_is_said() -> None:
    diagnosis = diagnosis_of(family())
    dear = dataclasses.replace(diagnosis["smoothness"], cost=Cost(gradients=7, rounds=12))
    dear = dataclasses.replace(diagnosis, measures={**diagnosis.measures, "smoothness": dear})
    advice = sj.advise(dear, target=("distance", 0.05), budget=sj.Budget(local_steps=2))
    assert "The diagnosis took 12 trips" in advice.sentences[-1]


# --- from configs

CONFIG = """
[problem]
name = "quadratic"
num_clients = 3
dimension = 10
{more}
[algorithm]
name = "fedavg"
step_size = 0.01
"""


def config_of(tmp_path: Path, more: str = "", head: str = ""):
    (tmp_path / "mine.toml").write_text(CONFIG.format(more=head) + more)
    return load_config(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    "guard", ["[privacy]\nclip = 1.0\nnoise_multiplier = 1.0\ndelta = 1e-3\n", '[aggregation]\nname = "median"\n']
)
def test_guards_are_not_in_the_prediction(tmp_path: Path, guard: str) -> None:
    with pytest.raises(SojournError, match="predicts runs without"):
        advise_config(config_of(tmp_path, guard), tmp_path, target=sj.Target("loss", 1.0), budget=FEW)


def test_a_budget_of_floats_is_told_the_model_s_size(tmp_path: Path) -> None:
    with pytest.raises(SojournError, match="a model of 10 numbers: 60"):
        advise_config(config_of(tmp_path), tmp_path, target=sj.Target("loss", 1.0), budget=sj.Budget(floats=10))


def test_a_target_met_leaves_no_config_of_an_earlier_question(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.toml").write_text("old")
    advise_config(config_of(tmp_path), tmp_path / "out", target=sj.Target("distance", 1e6), budget=FEW)
    assert not (tmp_path / "out" / "run.toml").exists()


def test_stragglers_are_written_into_the_config(tmp_path: Path) -> None:
    config = config_of(tmp_path, head="rotation = 0.0\noptima_spread = 0.0\n")
    budget = sj.Budget(local_steps=4, slowest=30.0)
    advice = advise_config(config, tmp_path / "out", target=sj.Target("distance", 0.05), budget=budget)
    assert advice.best.name == "fedasync"
    ready = load_config(tmp_path / "out" / "run.toml")
    assert ready.clock.name == "classes" and ready.schedule.name == "busy"
    (history,) = run_config(ready, tmp_path / "run", progress=False)
    assert history.table["distance"].min() <= 0.05 and "virtual_seconds" in history.table


def test_the_command_line_diagnoses_by_scalars_and_records_the_target(tmp_path: Path) -> None:
    parts = {"problem": "logistic-regression", "data": "digits", "partition": "iid", "algorithm": "fedavg"}
    text = "".join(f'[{table}]\nname = "{name}"\n' for table, name in parts.items())
    (tmp_path / "mine.toml").write_text(f"{text}step_size = 0.1\n")
    out = tmp_path / "out"
    asked = ["advise", str(tmp_path / "mine.toml"), "--target", "grad=0.01", "--scalars-only", "--out", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    ready = load_config(out / "run.toml")
    assert ready.run.record == ["grad_norm"]
    assert '"miniature": null' in (out / "diagnosis.json").read_text()


def test_ac_sa_is_not_advised_with_less_than_the_mean_curvature() -> None:
    """With L = H/sqrt(2) it comes below a noisy target early in a rehearsal, and its run diverges."""
    rng = np.random.default_rng(0)
    hessians = np.stack([np.diag(np.geomspace(1.0, 1 / 500, 20))] * 10)
    fed = sj.problems.quadratic(hessians, rng.normal(size=(10, 20)) * 0.1, 3.0, x0=np.ones(20))
    found = sj.diagnose(fed, facts=False, progress=False)
    start = float(fed.clients.metrics(fed.x0)["loss"])
    advice = sj.advise(found, target=("loss", start / 50), budget=sj.Budget(rounds=300))
    (accelerated,) = (c for c in advice.contenders if c.name == "ac-sa")
    assert accelerated.options["smoothness"] >= 0.999


# --- what is compared with what


def test_with_a_budget_of_gradients_less_local_work_competes() -> None:
    """By rounds alone K = 16 wins, and breaks a budget that smaller K keep."""
    diagnosis = diagnosis_of(family(0.02, 0.02, kappa=20.0))
    free = sj.advise(diagnosis, target=("distance", 0.05), budget=FEW)
    limits = sj.Budget(local_steps=16, gradients=free.best.gradients * 0.8)
    found = sj.advise(diagnosis, target=("distance", 0.05), budget=limits)
    assert found.best.fits and found.best.reaches and found.best.gradients <= limits.gradients
    assert found.best.rounds >= free.best.rounds


def test_stragglers_rank_by_virtual_time() -> None:
    budget = sj.Budget(local_steps=16, slowest=5.0)
    advice = sj.advise(diagnosis_of(family(0.1, 0.1)), target=("distance", 0.05), budget=budget)
    there = [c for c in advice.contenders if c.reaches and c.fits]
    assert [c.seconds for c in there] == sorted(c.seconds for c in there)
    waits = next(c for c in there if c.name != "fedasync")
    each = price(waits.name, waits.options, 6).gradients
    assert waits.seconds == pytest.approx(waits.iterations * each * 5.0)
    free = sj.advise(diagnosis_of(family(0.1, 0.1)), target=("distance", 0.05), budget=FEW)
    assert all(c.seconds is None for c in free.contenders)
    same = next(c for c in free.contenders if c.name == "local-sgd")
    assert kept(advice, "local-sgd").gradients <= same.gradients


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.3])
def test_what_would_change_the_advice_is_another_choice(tau: float) -> None:
    """Never the choice itself, with as many local steps."""
    advice = sj.advise(diagnosis_of(family(tau, 0.3, noise=0.3)), target=("distance", 0.3), budget=FEW)
    for change in advice.changes:
        near = 0.25 < change.leader.num_local_steps / advice.best.num_local_steps < 4
        assert change.leader.name != advice.best.name or not near


def test_another_leads_only_if_it_beats_the_choice_itself() -> None:
    """The choice is played again on the changed scene with its own setting, which a coarser contest may not have."""
    diagnosis = diagnosis_of(family(0.1, 0.3))
    scene = scene_of(diagnosis, Target("distance", 0.05), FEW)
    best = sj.advise(diagnosis, target=("distance", 0.05), budget=FEW).best
    again = replayed(scene, best, 500)
    assert again.rounds == best.rounds and again.options == best.options
    assert _other_leader(scene, best, 500.0) is None  # where nothing changed, nobody else leads
    slow = dataclasses.replace(best, name="minibatch-sgd", options={"step_size": 0.01, "num_local_steps": 1})
    assert _other_leader(scene, slow, 500.0) is not None


def test_every_choice_says_what_theory_and_other_measures_say_of_it() -> None:
    diagnosis = diagnosis_of(family(0.3, 0.5))
    bounds_only = dataclasses.replace(diagnosis, miniature=None)
    advice = sj.advise(bounds_only, target=("distance", 0.05), budget=FEW)
    text = " ".join(advice.sentences)
    assert "was not examined: there is no miniature" in text and "--trial" in text
    assert advice.best.basis == BOUND and advice.rounds <= MOST_BY_BOUND
    digits = advice.sentences[0].partition(" in ")[2].partition(" rounds")[0].replace(",", "").rstrip("0")
    assert len(digits) == 1 or "e" in digits  # an order of magnitude has one
    unmet = dataclasses.replace(advice.best.bound, met=False, assumption="identical clients")
    said = sentences_of(dataclasses.replace(advice, best=dataclasses.replace(advice.best, bound=unmet)))
    assert any("says nothing here: its assumption, identical clients, is not met" in line for line in said)
    said = sentences_of(dataclasses.replace(advice, best=dataclasses.replace(advice.best, bound=None)))
    assert any("no bound stands behind it" in line for line in said)


def test_the_fallback_says_where_its_step_comes_from() -> None:
    advice = sj.advise(diagnosis_of(family(0.3, 0.5)), target=("distance", 0.05), budget=FEW)
    slow = dataclasses.replace(advice.best, name="minibatch-sgd", options={"step_size": 0.01, "num_local_steps": 1})
    safe = safe_choice(advice.diagnosis, FEW, None, slow)
    assert safe.options["step_size"] == 0.005 and "half of the choice's" in safe.note
    assert "1/(2H)" in safe_choice(advice.diagnosis, FEW, None, advice.best).note


def test_a_convex_loss_is_not_called_otherwise() -> None:
    advice = sj.advise(diagnosis_of(family(0.1, 0.3)), target=("distance", 0.05), budget=FEW)
    bent = dataclasses.replace(advice, details={**advice.details, "convexified": True})
    assert not any("not convex" in line for line in sentences_of(bent))
    assert any("not convex" in line for line in sentences_of(dataclasses.replace(bent, setting="non-convex")))


def test_targets_are_read_in_capitals_too() -> None:
    assert parse_target("LOSS=0.1") == Target("loss", 0.1)
