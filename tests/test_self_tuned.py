"""Self-tuning: its rules retyped, its statistics against exact ones, each rule where it belongs, runs that go on."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.algorithms import FedAvg, FedOpt, FedProx, LocalSGD, MinibatchSGD, Scaffold, guarded
from sojourn.algorithms.base import Algorithm
from sojourn.algorithms.self_tuned import SelfTuned, sketch
from sojourn.algorithms.tuner import Limits, Reason, Statistics, Tuner, decide, in_words
from sojourn.config import validate
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from sojourn.experiment import check_config, run_config
from sojourn.report.runs import split
from sojourn.report.tuning import tuning_html
from sojourn.tuning import starting_step
from test_contract import quick_compilation

NUMBERS = ["loss", "tuned_step_size", "tuned_local_steps", "tuning_reason"]


@pytest.fixture(autouse=True)
def quick() -> Any:
    with quick_compilation():
        yield


def quadratics(turned: float = 0.0, apart: float = 0.0, noise: float = 0.0, condition: float = 10.0) -> Federation:
    """Four clients in six dimensions; `turned` mixes in Hessians of their own, `apart` moves their optima."""
    rng = np.random.default_rng(0)
    spectrum = np.geomspace(1 / condition, 1, 6)
    bases = [np.linalg.qr(rng.normal(size=(6, 6)))[0] for _ in range(5)]
    shared, *own = ((q * spectrum) @ q.T for q in bases)
    hessians = np.stack([(1 - turned) * shared + turned * mine for mine in own])
    return sj.problems.quadratic(hessians, 1 + apart * rng.normal(size=(4, 6)), noise=noise)


def run(federation: Federation, algorithm: Algorithm, rounds: int, **how: Any) -> Any:
    return sj.run(federation, algorithm, rounds, progress=False, eval_every=1, **how)


def reasons(history: Any) -> list[int]:
    return [int(code) for code in history.table["tuning_reason"].dropna()]


# --- the rules --------------------------------------------------------------------------------------------------------


def retyped(state: dict[str, Any], s: dict[str, float], extrapolated: bool, most: int, patience: int) -> bool:
    """The rules once more, as statements; changes the state, says whether the model goes back."""
    eta, k = state["step"], state["steps"]
    noise = 2 * eta**2 * s["noise"] * k
    excess = s["consensus"] - noise if s["consensus"] > 1.5 * noise else 0.0
    excess = excess if excess > 1e-6 * s["move"] else 0.0
    drift = min(excess / max(s["move"], 2 * noise), 1e6) if k > 1 else 0.0
    slope = s["slope"] if s["consensus"] > 1e-6 * s["move"] else math.nan
    reference = state["reference"]
    error = math.hypot(s["loss_error"], state["reference_error"])
    bad = math.isfinite(reference) and s["loss"] > reference + 3 * error + 1e-6 * abs(reference)
    up = s["loss"] > state["last_loss"]
    if up and state["rises"] == 0:
        state["rise_from"] = state["last_loss"]
    state["rises"] = state["rises"] + 1 if up else 0
    rising = state["rises"] >= 3 and s["loss"] > state["rise_from"] + 2 * s["loss_error"]
    doubled = s["consensus"] > 2 * state["consensus"] and state["grew"] == 0
    state["growths"] = state["growths"] + 1 if doubled else 0
    state["turns"] = state["turns"] + 1 if s["cosine"] < -0.2 and s["noise"] > 0 else 0
    fell = s["loss"] < state["last_loss"] + s["loss_error"]
    state["noisy"] = state["noisy"] + 1 if 0.5 <= slope <= 1.5 and drift <= 0.5 and fell else 0
    state["calm"] = state["calm"] + 1 if drift < 0.1 and fell else 0
    state["window"].append((s["loss"], s["loss_error"]))
    full = len(state["window"]) == 8
    mean, spread = (np.mean([a for a, _ in state["window"]]), sum(b**2 for _, b in state["window"]) / 64)
    stagnates = full and not state["before"][0] - mean > 2 * math.sqrt(spread + state["before"][1]) + 1e-5 * abs(mean)
    poor = s["loss"] > state["last_loss"] - state["promised"] + s["loss_error"]
    biased = s["gradient"] > 4 * s["gradient_error"]
    double = 2 * k <= state["steps_ceiling"]
    longer = s["loss"] < state["last_loss"] - s["loss_error"] and state["calm"] >= patience
    longer = longer and 2 * eta <= state["step_ceiling"] and (2 * k > most or k == 1)
    wait = patience if state["troubled"] else 1
    if s["failed"]:
        reason = Reason.FAILED
    elif bad:
        reason = Reason.RESTART if extrapolated else Reason.LOSS
    elif rising or state["growths"] >= 3:
        reason = Reason.RISING
    elif slope < 0.5 and drift >= 0.1 and poor and not extrapolated and k >= 4:
        reason = Reason.SATURATED
    elif drift > 1 and poor and not extrapolated and k > 1:
        reason = Reason.DRIFT
    elif stagnates and biased and k > 1:
        reason = Reason.BIAS
    elif stagnates and state["floored"] == 1:
        reason = Reason.UNDONE
    elif ((stagnates and state["floored"] == 0) or state["turns"] >= 3) and not biased:
        reason = Reason.FLOOR
    elif state["noisy"] >= wait and double:
        reason = Reason.NOISE
    elif state["calm"] >= wait and (double or longer):
        reason = Reason.CALM
    else:
        reason = Reason.KEPT
    if full and not stagnates and state["floored"] == 1:
        state["floored"] = 0
    if reason is Reason.FLOOR and stagnates:
        state["floored"] = 1
    if reason is Reason.UNDONE:
        state["floored"] = 2
    state["quiet"] += 1
    state["quiet_steps"] += 1
    if state["quiet"] >= 40:
        state["quiet"] = 0
        state["step_ceiling"] *= 2
        state["floored"] = 0
    if state["quiet_steps"] >= 20:
        state["quiet_steps"] = 0
        state["steps_ceiling"] = min(2 * state["steps_ceiling"], most)
    lower = higher = False
    blamed = reason in (Reason.FAILED, Reason.LOSS, Reason.RISING)
    if reason in (Reason.DRIFT, Reason.SATURATED, Reason.BIAS) or (blamed and state["grew"] == 1 and k > 1):
        state["steps"] = state["steps_ceiling"] = max(1, k // 2)
        state["quiet_steps"] = 0
        lower = True
    elif blamed or reason is Reason.FLOOR:
        state["step"] = state["step_ceiling"] = eta / 2
        state["quiet"] = 0
        lower = True
    elif reason in (Reason.NOISE, Reason.CALM) and double:
        state["steps"], state["grew"], higher = 2 * k, 1, True
    elif reason in (Reason.CALM, Reason.UNDONE):
        state["step"], state["grew"], higher = 2 * eta, 2, True
    back = reason in (Reason.RESTART, Reason.LOSS) or (reason is Reason.FAILED and bad)
    fresh = lower or higher or back
    if lower:
        state["grew"], state["troubled"] = 0, True
        if state["floored"] != 1:
            state["before"] = (math.inf, state["before"][1])
    if full and not fresh:
        state["before"] = (mean, spread)
    if full or fresh:
        state["window"] = []
    for name in ("calm", "noisy", "rises", "turns", "growths") if fresh else ():
        state[name] = 0
    state["consensus"] = math.inf if fresh else s["consensus"]
    state["promised"] = 0.0 if fresh or s["failed"] else eta * max(s["gradient"], 0.0) / 2
    state["last_loss"] = reference if back else s["loss"]
    if not bad:
        state["reference"], state["reference_error"] = s["loss"], s["loss_error"]
    state["reason"] = int(reason)
    return back


def test_the_rules_are_those_retyped_as_statements() -> None:
    """On random statistics, with every reason met; in float64, so that no comparison hangs on rounding."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        limits = Limits(64, 3, True, True)
        step = jax.jit(lambda t, s, e: decide(t, s, e, limits))
        met: set[int] = set()
        for noisy, course in ((0.0, "falls"), (0.03, "falls"), (1.0, "falls"), (0.0, "rests"), (0.2, "rises")):
            tuner = Tuner.start(0.1, 8, 64)
            state: dict[str, Any] = {
                "step": 0.1, "steps": 8, "step_ceiling": math.inf, "steps_ceiling": 64, "quiet": 0,
                "quiet_steps": 0, "calm": 0,
                "noisy": 0, "rises": 0, "rise_from": math.inf, "turns": 0, "growths": 0, "consensus": math.inf,
                "grew": 0, "reference": math.inf, "reference_error": 0.0, "last_loss": math.inf, "window": [],
                "before": (math.inf, 0.0), "floored": 0, "troubled": False, "reason": 0,
                "promised": 0.0,
            }  # fmt: skip
            for number in range(250):
                drawn = {
                    "loss": {
                        "falls": 1 + math.exp(-number / 40) + rng.normal() * 0.02 * (rng.random() < 0.5),
                        "rests": 1.0, "rises": 1 + 0.01 * number,
                    }[course],
                    "loss_error": noisy * 0.05,
                    "consensus": float(rng.choice([0.0, 0.01] if course == "rests" else [0.01, 0.3, 3])) * rng.random(),
                    "slope": float(rng.choice([0.1, 1.0, 2.0, math.nan])), "move": 1.0, "noise": noisy,
                    "gradient": rng.normal(), "gradient_error": 0.1, "cosine": rng.uniform(-1, 0.2),
                    "failed": bool(rng.random() < 0.01),
                }  # fmt: skip
                extrapolated = bool(rng.random() < 0.3)
                seen = Statistics(**{name: jnp.asarray(value) for name, value in drawn.items()})
                tuner, back = step(tuner, seen, extrapolated)
                assert bool(back) == retyped(state, drawn, extrapolated, 64, 3), number
                told = {name: float(getattr(tuner, name)) for name in ("step", "steps", "reason", "step_ceiling")}
                assert told == {name: float(state[name]) for name in told}, number
                met.add(state["reason"])
        assert met == {int(reason) for reason in Reason}


def test_a_decision_is_told_in_words() -> None:
    told = in_words(12, (0.1, 8), (0.1, 16), Reason.NOISE, 1.1, 0.0)
    assert told == "round 12: K 8 -> 16, the consensus error grows like noise (slope 1.1)"


# --- the statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [LocalSGD, FedAvg, FedProx, Scaffold, FedOpt])
def test_with_nothing_tuned_it_is_the_method_inside(method: Any) -> None:
    """To the last bits: a walk of a traced length is compiled differently."""
    federation = quadratics(0.3, 1.0, noise=0.3)
    plain = method(step_size=0.1, num_local_steps=5)
    expected = run(federation, plain, 12).table["loss"]
    found = run(federation, sj.self_tuned(plain, tuned=()), 12).table["loss"]
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    other = run(federation, sj.self_tuned(method(step_size=0.1, num_local_steps=6), tuned=()), 12).table["loss"]
    assert abs(other.iloc[-1] / expected.iloc[-1] - 1) > 1e-4  # negative control: one step more shows


def test_the_slope_and_the_drift_ratio_are_those_of_the_consensus_error() -> None:
    """Sketches of six coordinates are exact; a decision rests on the round before."""
    federation = quadratics(0.5, 1.0)
    method = sj.self_tuned(LocalSGD(step_size=0.2, num_local_steps=8), tuned=("step_size",), max_local_steps=8)
    table = run(federation, method, 4, record=["consensus_inside"], seed=3).table
    before, after = table.iloc[1], table.iloc[2]
    inside = [before[f"consensus_inside.{k}"] for k in (2, 8)]
    np.testing.assert_allclose(after["consensus_slope"], math.log(inside[1] / inside[0]) / math.log(4), rtol=1e-4)
    start = np.zeros(6)
    hessians, optima = federation.facts.hessians, federation.facts.optima
    assert hessians is not None and optima is not None
    ends = []
    for a, x in zip(hessians, optima, strict=True):
        y = start
        for _ in range(8):
            y = y - 0.2 * a @ (y - x)
        ends.append(y)
    moved = np.mean(ends, axis=0)
    ratio = 2 * np.mean(np.sum((np.array(ends) - moved) ** 2, axis=1)) / np.sum(moved**2)
    np.testing.assert_allclose(after["drift_ratio"], ratio, rtol=1e-4)


def test_a_sketch_is_linear_and_keeps_lengths_on_average() -> None:
    rng = np.random.default_rng(0)
    vec = lambda: Vec({"a": jnp.asarray(rng.normal(size=(30, 40))), "b": jnp.asarray(rng.normal(size=7))})  # noqa: E731
    x, y, salt = vec(), vec(), jnp.asarray(3)
    np.testing.assert_allclose(sketch(x + 2 * y, salt), sketch(x, salt) + 2 * sketch(y, salt), rtol=1e-4, atol=1e-4)
    length = float(sum(jnp.sum(a**2) for a in jax.tree.leaves(x)))
    found = [float(jnp.sum(sketch(x, jnp.asarray(salt)) ** 2)) / length for salt in range(200)]
    # a ratio has variance 2/64; the mean of 200 is within four of its deviations
    assert abs(np.mean(found) - 1) < 4 * math.sqrt(2 / 64 / 200)
    assert 0.5 < np.var(found) / (2 / 64) < 2


def test_what_is_sent_is_counted() -> None:
    federation = quadratics(noise=0.1)
    plain = LocalSGD(step_size=0.1, num_local_steps=5)
    ours, theirs = (run(federation, m, 2).table.iloc[-1] for m in (sj.self_tuned(plain, tuned=()), plain))
    # down: the step and three numbers for the reader (the number of steps is no float)
    # up: three sketches of six, and eight numbers; computed: two batches of both kinds
    assert ours["floats_down"] - theirs["floats_down"] == 4 * 4
    assert ours["floats_up"] - theirs["floats_up"] == 4 * (3 * 6 + 8)
    assert ours["calls_grad"] - theirs["calls_grad"] == 4 * 2
    assert ours["calls_value"] == 4 * 2


def test_the_first_step_is_one_over_the_largest_curvature() -> None:
    federation = quadratics(0.7, condition=30)
    assert federation.facts.hessians is not None
    largest = np.linalg.eigvalsh(federation.facts.hessians).max()
    found = starting_step(federation)
    assert 0.9 * largest < found.curvature < largest * (1 + 1e-5)  # a lower bound
    assert found.value == pytest.approx(1 / found.curvature)
    assert starting_step(federation) == found


# --- each rule where it belongs ---------------------------------------------------------------------------------------


def test_noise_alone_doubles_the_local_steps_and_far_optima_do_not() -> None:
    method = sj.self_tuned(LocalSGD(step_size=0.02, num_local_steps=4), tuned="num_local_steps")
    alone = run(quadratics(noise=1.0, condition=2), method, 6)
    assert Reason.NOISE in reasons(alone) and alone.last("tuned_local_steps") > 4
    far = run(quadratics(apart=10.0, condition=2), method, 6)
    assert Reason.NOISE not in reasons(far) and far.last("tuned_local_steps") == 4


def test_drift_halves_the_local_steps_and_clients_alike_do_not() -> None:
    method = sj.self_tuned(LocalSGD(step_size=0.5, num_local_steps=16))
    apart = run(quadratics(0.5, 3.0), method, 20)
    assert Reason.DRIFT in reasons(apart) and apart.last("tuned_local_steps") < 16
    alike = run(quadratics(), method, 12)
    assert not {Reason.DRIFT, Reason.SATURATED} & set(reasons(alike))


def test_clients_at_their_own_optima_halve_the_local_steps() -> None:
    method = sj.self_tuned(LocalSGD(step_size=0.9, num_local_steps=64), tuned="num_local_steps", momentum="none")
    found = run(quadratics(0.5, 1.0, condition=2), method, 6)
    assert Reason.SATURATED in reasons(found) and found.last("tuned_local_steps") < 64
    growing = sj.self_tuned(LocalSGD(step_size=0.005, num_local_steps=64), tuned="num_local_steps", momentum="none")
    assert Reason.SATURATED not in reasons(run(quadratics(0.5, 1.0, condition=2), growing, 6))


@pytest.mark.parametrize("method", [LocalSGD, Scaffold])
def test_a_divergent_start_recovers_where_the_method_alone_diverges(method: Any) -> None:
    wild = method(step_size=8.0, num_local_steps=8)
    federation = quadratics(0.3)
    alone = run(federation, wild, 60)
    assert alone.status == "diverged"
    tuned = run(federation, sj.self_tuned(wild), 60)
    assert tuned.status == "ok" and {Reason.FAILED, Reason.LOSS} & set(reasons(tuned))
    assert tuned.last("tuned_step_size") < 4
    assert tuned.last("loss") < 1e-3 * tuned.table["loss"].iloc[0]


def test_at_the_floor_of_the_noise_the_step_is_halved() -> None:
    federation = quadratics(noise=1.0, condition=2)
    long = LocalSGD(step_size=0.9, num_local_steps=16)
    tuned = run(federation, sj.self_tuned(long), 60)
    assert Reason.FLOOR in reasons(tuned) and tuned.last("tuned_step_size") < 0.3
    fixed = run(federation, long, 60)
    gap = lambda h: float(h.table["loss"].tail(10).mean())  # noqa: E731
    assert gap(tuned) < gap(fixed) / 3
    assert Reason.FLOOR not in reasons(run(quadratics(condition=2), sj.self_tuned(long), 20))


# --- a method like any other ------------------------------------------------------------------------------------------

TUNED = sj.self_tuned(Scaffold(step_size=1.0, num_local_steps=8))


def test_a_resumed_run_is_the_run(tmp_path: Path) -> None:
    federation = quadratics(0.3, 1.0, noise=0.2)
    run(federation, TUNED, 7, out=tmp_path)
    resumed = run(federation, TUNED, 20, out=tmp_path, resume=True)
    whole = run(federation, TUNED, 20)
    assert len(set(whole.table["tuned_local_steps"].dropna())) > 1
    columns = [*NUMBERS, "consensus_slope", "drift_ratio"]
    pd.testing.assert_frame_equal(resumed.table[columns], whole.table[columns], check_exact=True)
    assert resumed.decisions() == whole.decisions() != []


def test_a_sweep_is_its_single_runs() -> None:
    federation = quadratics(0.3, 1.0, noise=0.2)
    make = lambda eta: sj.self_tuned(LocalSGD(step_size=eta, num_local_steps=4))  # noqa: E731
    swept = sj.sweep(federation, make, [0.1, 1.0], 10, seeds=[0, 1], name="step_size", eval_every=1, progress=False)
    for (eta, seed), rows in swept.table.groupby(["step_size", "seed"]):
        alone = run(federation, make(eta), 10, seed=int(seed)).table
        np.testing.assert_array_equal(rows["tuning_reason"], alone["tuning_reason"])
        np.testing.assert_allclose(rows[NUMBERS[:3]].iloc[1:], alone[NUMBERS[:3]].iloc[1:], rtol=1e-4)


def test_the_reference_engine_finds_the_same() -> None:
    federation = quadratics(0.3, 1.0, noise=0.2)
    compiled, reference = (run(federation, TUNED, 8, engine=name, participation=3).table for name in
                           ("compiled", "reference"))  # fmt: skip
    np.testing.assert_array_equal(compiled["tuning_reason"], reference["tuning_reason"])
    np.testing.assert_allclose(compiled[NUMBERS[:3]], reference[NUMBERS[:3]], rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sj.self_tuned(MinibatchSGD(step_size=0.1)), "MinibatchSGD cannot be self-tuned"),
        (lambda: sj.self_tuned(TUNED), "tunes itself already"),
        (lambda: sj.self_tuned(LocalSGD(step_size=0.1, output="uniform")), "averaged output"),
        (lambda: sj.self_tuned(FedProx(step_size=0.1, min_local_steps=2)), "leave min_local_steps out"),
        (lambda: sj.self_tuned(LocalSGD(step_size=0.1), tuned="momentum"), "step_size, num_local_steps"),
        (lambda: sj.self_tuned(LocalSGD(step_size=0.1), max_local_steps=4), "more than max_local_steps"),
        (lambda: guarded(TUNED, clip=1.0), "no guard covers"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(SojournError, match=words):
        make()


# --- configs and pages ------------------------------------------------------------------------------------------------


def tables(**algorithm: Any) -> dict[str, Any]:
    return {
        "problem": {"name": "quadratic", "num_clients": 4, "dimension": 5},
        "algorithm": {"name": "scaffold", "step_size": "auto", "num_local_steps": "auto", **algorithm},
        "run": {"rounds": 8},
    }


def test_a_config_asks_for_it_and_the_manifest_says_where_it_began(tmp_path: Path) -> None:
    config = validate(tables())
    check_config(config)
    (history,) = run_config(config, tmp_path / "run", progress=False)
    told = history.manifest["self_tuning"]
    assert told["tuned"] == ["step_size", "num_local_steps"]
    assert history.table["tuned_step_size"].iloc[1] == pytest.approx(told["first_step"])
    assert history.table["tuned_local_steps"].iloc[1] == 8
    assert history.decisions()
    page = tuning_html(split([history]))
    assert "K 8 -&gt; " in page and "<ol>" in page
    (plain,) = run_config(validate(tables(step_size=0.1, num_local_steps=3)), tmp_path / "plain", progress=False)
    assert tuning_html(split([plain])) == "" and plain.decisions() == []


def test_only_one_of_the_two_can_be_left_to_the_run() -> None:
    from sojourn.parts import build_algorithm

    made = build_algorithm(validate(tables(step_size=0.25)).algorithms[0])
    assert isinstance(made, SelfTuned) and made.tuned == ("num_local_steps",)
    history = run(quadratics(noise=0.5), dataclasses.replace(made), 6)
    assert set(history.table["tuned_step_size"].dropna()) == {0.25}


def test_where_the_local_steps_are_given_the_step_pays_for_drift_and_bias() -> None:
    """Clients that differ, exact gradients: a walk of 16 given steps has a bias that only a smaller step removes."""
    far = sj.run(quadratics(), LocalSGD(0.2, 16), 150, progress=False).last("distance")
    method = sj.self_tuned(LocalSGD(0.2, 16), tuned="step_size")
    history = sj.run(quadratics(), method, 150, progress=False)
    assert set(history.table["tuned_local_steps"].dropna()) == {16}
    assert history.last("distance") < 0.1 * far
    shrunk = history.table[history.table["tuning_reason"].isin([Reason.DRIFT, Reason.SATURATED, Reason.BIAS])]
    assert len(shrunk) > 0 and all("eta" in line for line in history.decisions())


def test_where_the_step_is_given_no_decision_is_told_that_changes_nothing() -> None:
    method = sj.self_tuned(LocalSGD(0.2, 16), tuned="num_local_steps")
    history = sj.run(quadratics(noise=0.5), method, 150, progress=False)
    assert Reason.FLOOR not in set(history.table["tuning_reason"].dropna())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": {"name": "minibatch-sgd", "step_size": "auto"}}, "cannot tune itself"),
        ({"algorithm": {"name": "local-sgd", "step_size": "theory", "num_local_steps": "auto"}}, "theory gives"),
        ({"aggregation": {"name": "median"}}, "which no guard covers"),
    ],
)
def test_a_config_that_cannot_be_tuned_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SojournError, match=words):
        validate({**tables(), **change})


def test_unequal_weights_are_noisier_than_equal_ones() -> None:
    """One client weighs nearly all: the mean of the answers is as noisy as that client, and errors must say so."""
    made = lambda weights: sj.problems.quadratic(  # noqa: E731
        np.stack([np.eye(2)] * 20), np.ones((20, 2)), noise=0.5, weights=weights
    )
    method = sj.self_tuned(LocalSGD(0.3, 4), momentum="none")
    lonely = sj.run(made([1e3] + [1e-3] * 19), method, 60, progress=False).table
    # a quarter at most: that client's own error is itself guessed from two batches; counted as twenty, it was 47
    assert (lonely["tuning_reason"] == Reason.LOSS).sum() <= 15
    assert lonely["tuned_step_size"].iloc[-1] > 1e-5
