"""The study of advice: its arithmetic on curves made by hand, its federations as declared, and all of it in small."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.algorithms import CELSGD, FedAvg
from sojourn.core.errors import SojournError
from sojourn.recipes import advise_study, kept
from sojourn.recipes.advise_federations import FEDERATIONS, Declared
from sojourn.recipes.advise_grid import (
    Aim,
    Limits,
    aim_at,
    arrival,
    best,
    contestants,
    first_at,
    losses_of,
    question,
    race,
    smoothed,
    swept,
    trips,
)
from sojourn.recipes.advise_strategies import ADVICE, STRATEGIES, TUNED, Choice, follow
from sojourn.recipes.advise_study import (
    DEFAULT,
    Case,
    chart,
    cost_table,
    judge,
    regret_table,
    study,
    summarise,
    worst_table,
)
from sojourn.recipes.base import Bench
from sojourn.recipes.controlled_quadratics import controlled_quadratic
from sojourn.report.figure import static

EASY = Declared("quadratic", 0, {"smoothness": 2.0, "condition": 5, "tau": 0.1, "zeta_star": 0.5})
NOISY = Declared("quadratic", 100, {"smoothness": 1.0, "condition": 5, "tau": 0.1, "zeta_star": 0.2, "noise": 0.5})
DIGITS = Declared("logistic", 101, {}, "digits", "one-class", None, 0.1)
LIMITS = Limits({"quadratic": 40, "logistic": 40, "network": 20})


# --- curves ------------------------------------------------------------------------------------------------------


def test_the_target_is_reached_in_the_first_round_not_above_it() -> None:
    assert first_at(np.array([3.0, 2.0, 1.0, 2.0, 0.5]), 1.0) == 2
    assert first_at(np.array([3.0, np.inf, 1.5]), 1.0) is None
    assert first_at(np.array([1.0]), 1.0) == 0


def test_noisy_losses_are_averaged_over_seeds_and_networks_take_the_median_of_the_last_five() -> None:
    two = np.array([[4.0, 2.0, 0.0], [2.0, 2.0, 1.0]])
    np.testing.assert_array_equal(smoothed(two, "quadratic"), [3.0, 2.0, 0.5])
    one = np.array([[9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 4.0]])
    got = smoothed(one, "network")
    assert np.isinf(got[:2]).all()  # fewer than three of the five are there: nobody arrives by luck
    np.testing.assert_array_equal(got[4:], [7.0, 6.0, 5.0])
    # a single dip does not count: without the median, round 3 would be the first
    assert first_at(one[0], 5.0) == 3 and first_at(got, 5.0) == 6


def test_a_run_that_diverged_has_no_loss_from_there_on() -> None:
    aim = aim_at(EASY, LIMITS)
    history = swept(aim, [FedAvg(0.1, 2), FedAvg(1e6, 2)], 12)
    losses = losses_of(history, 2, 12)
    assert losses.shape == (2, 13) and np.isfinite(losses[0]).all() and np.isinf(losses[1, -1])


def test_rounds_are_trips_of_messages_and_too_many_are_never() -> None:
    aim = Aim(EASY, EASY.build(), target=1.0, max_rounds=6)
    curve = np.array([[3.0, 2.0, 2.0, 1.0, 0.5]])  # there in its third round
    plain, double = FedAvg(0.1, 4), CELSGD(0.1, 4)
    assert trips(plain, 3) == 3 and trips(double, 3) == 6 and trips(double, 0) == 0
    found = arrival("a", plain, curve, 100.0, aim)
    assert (found.rounds, found.floats) == (3.0, 300.0)
    assert arrival("b", double, curve, 100.0, aim).rounds == 6.0
    late = arrival("c", double, curve, 100.0, dataclasses.replace(aim, max_rounds=5))
    assert not late.reached and late.rounds == np.inf


# --- regret ------------------------------------------------------------------------------------------------------


def case(
    mine: float, least: float = 4.0, default: float = 8.0, declared: Declared = NOISY, strategy: str = ADVICE
) -> Case:
    def told(rounds: float) -> dict[str, Any]:
        return {"label": "a method", "rounds": rounds, "floats": 10 * rounds, "spent": 3.0}

    grid = {"best": told(least), "fewest_floats": {**told(least), "floats": 5 * least}, "default": told(default)}
    return Case(declared, grid, {strategy: told(mine)})


def test_regret_is_rounds_over_the_best_and_floats_over_the_fewest() -> None:
    one = case(6.0)
    assert one.regret(ADVICE) == 1.5 and one.regret(ADVICE, "floats") == 3.0 and one.regret(DEFAULT) == 2.0
    assert one.against_default(ADVICE) == 0.75
    assert case(6.0, default=np.inf).against_default(ADVICE) == 0.0
    assert case(np.inf, default=np.inf).against_default(ADVICE) == 1.0


def test_summaries_are_those_of_the_ordered_regrets_and_never_is_worse_than_any() -> None:
    # regrets 1, 1.25, 1.5, 6 and never
    cases = [case(rounds) for rounds in (4.0, 5.0, 6.0, 24.0, np.inf)]
    found = summarise(cases, ADVICE)
    assert (found.number, found.median, found.ninth, found.never) == (5, 1.5, np.inf, 1)
    assert found.bad == pytest.approx(2 / 5) and found.beats == pytest.approx(3 / 5) and found.versus == 0.75
    assert summarise(cases, DEFAULT).median == 2.0 and summarise(cases, DEFAULT).beats == 0.0


def test_good_advice_holds_and_bad_advice_is_refuted() -> None:
    """The negative control: the same judge, with regrets above every limit."""
    good, bad = ([case(r) for _ in range(20)] for r in (5.0, 30.0))
    assert [claim.holds for claim in judge(good, [ADVICE])] == [True, True, True]
    assert [claim.holds for claim in judge(bad, [ADVICE])] == [False, False, False]
    one_in_twenty = [case(5.0) for _ in range(19)] + [case(np.inf)]
    assert [claim.holds for claim in judge(one_in_twenty, [ADVICE])] == [True, True, True]
    two = [case(5.0) for _ in range(18)] + [case(np.inf), case(21.0)]
    assert [claim.holds for claim in judge(two, [ADVICE])] == [True, False, True]


def test_claims_are_about_federations_held_out_and_open_without_any() -> None:
    developed = [case(4.0, declared=EASY)] * 9
    assert [claim.holds for claim in judge(developed, [ADVICE])] == [None, None, None]
    assert judge([*developed, case(40.0)], [ADVICE])[0].holds is False
    assert {claim.id for claim in judge([case(4.0, strategy=TUNED)], [TUNED])} == {
        "self-tuned-median", "self-tuned-seldom-bad", "self-tuned-beats-default"
    }  # fmt: skip


def test_tables_show_the_parts_apart_and_the_worst_first() -> None:
    cases = [case(4.0, declared=EASY), case(8.0), case(np.inf, declared=DIGITS)]
    rows = [row[:4] for row in regret_table(cases, [ADVICE], "rounds").rows if row[1] == ADVICE]
    assert ("all, held out", ADVICE, "2", "2") in rows and ("quadratic, development", ADVICE, "1", "1") in rows
    worst = worst_table(cases, ADVICE).rows
    assert [row[2] for row in worst] == ["inf", "2", "1"] and worst[0][0] == DIGITS.name


def test_the_chart_and_the_costs_show_every_case() -> None:
    cases = [case(4.0, declared=EASY), case(8.0), case(np.inf, declared=DIGITS)]
    figure = chart(cases, [ADVICE], [])
    heights = [row["y"] for row in figure.spec["data"]["values"] if row["x"] == ADVICE]
    assert heights == [1.0, 2.0, 10.0]  # never is drawn on top, at twice the limit of 5
    assert static(figure.spec, "svg").startswith(b"<svg")
    # choosing took 3 rounds: (3 + 8) / 4 is the median
    assert cost_table(cases, [ADVICE]).rows == [(ADVICE, "3", "3", "2.75")]


# --- the federations ---------------------------------------------------------------------------------------------


def test_the_table_has_what_it_promises() -> None:
    held, developed = ([f for f in FEDERATIONS if f.held_out is part] for part in (True, False))
    assert len(FEDERATIONS) >= 70 and len(held) >= 25
    assert len({f.name for f in FEDERATIONS}) == len(FEDERATIONS)
    assert all(f.seed < 10 for f in developed) and all(f.seed >= 100 for f in held)
    assert {f.partition for f in held} - {f.partition for f in developed} >= {"classes", "mixed"}
    number = {(f.family, f.held_out): 0 for f in FEDERATIONS}
    for f in FEDERATIONS:
        number[f.family, f.held_out] += 1
    assert number["quadratic", False] >= 24 and number["quadratic", True] >= 16
    assert sum(f.family == "logistic" for f in FEDERATIONS) >= 20
    assert sum(f.family == "network" for f in FEDERATIONS) >= 8
    assert {f.data for f in FEDERATIONS if f.family == "logistic"} == {"a9a", "w8a", "mushrooms", "digits"}
    for family, part in number:  # the quick scale sees every kind, and enough of what is judged on
        assert any(f.quick for f in FEDERATIONS if (f.family, f.held_out) == (family, part))


def fourth_mean(distances: list[float]) -> float:
    return float(np.mean(np.array(distances) ** 4) ** 0.25)


@pytest.mark.parametrize("declared", [f for f in FEDERATIONS if f.family == "quadratic"][::4], ids=lambda f: f.name)
def test_quadratics_have_the_constants_that_they_declare(declared: Declared) -> None:
    """By definitions, pair by pair, from what the clients hold; not by the facts that the maker bisects on."""
    told = dict(declared.options)
    federation = declared.build()
    objective = federation.clients.objective
    a, optima = np.asarray(objective.hessians, float), np.asarray(objective.optima, float)
    values = np.linalg.eigvalsh(a)
    close = {"rtol": 1e-4, "atol": 2e-5}  # stored as float32
    np.testing.assert_allclose(values.max(), told["smoothness"], **close)
    np.testing.assert_allclose(values.min(), told["smoothness"] / told["condition"], **close)
    tau = max((np.linalg.norm(x - y, 2) for x, y in itertools.combinations(a, 2)), default=0.0)
    np.testing.assert_allclose(tau, told["tau"] * told["smoothness"], **close)
    zeta = fourth_mean([float(np.linalg.norm(x - y)) for x in optima for y in optima])
    np.testing.assert_allclose(zeta, told["zeta_star"], **close)
    x_star = np.linalg.solve(a.mean(0), np.einsum("mij,mj->i", a, optima) / len(a))
    phi = fourth_mean([float(np.linalg.norm(x_star - x)) for x in optima])
    if "phi_star" in told:
        np.testing.assert_allclose(phi, told["phi_star"], rtol=1e-3)
    root = objective.noise_root
    sigma = 0.0 if root is None else float(np.sqrt(np.trace(np.asarray(root) @ np.asarray(root))))
    np.testing.assert_allclose(sigma, told.get("noise", 0.0), **close)
    assert declared.noisy is (sigma > 0)


def test_what_no_dial_reaches_is_one_sentence() -> None:
    with pytest.raises(SojournError, match="tau = 5 is out of reach"):
        controlled_quadratic(seed=0, tau=5.0)
    with pytest.raises(SojournError, match="phi_star = 50 is out of reach"):
        controlled_quadratic(seed=0, tau=0.5, zeta_star=1.0, phi_star=50.0)


def test_targets_follow_their_rule() -> None:
    aim = aim_at(EASY, LIMITS)
    facts = aim.federation.facts
    start = float(aim.federation.clients.metrics(aim.federation.x0)["loss"])
    assert facts.f_star is not None and aim.gap is not None
    assert aim.gap == pytest.approx(1e-4 * (start - facts.f_star), rel=1e-4) and aim.seeds == (0,)
    assert aim_at(NOISY, LIMITS).seeds == (0, 1, 2)


# --- the race ----------------------------------------------------------------------------------------------------


def test_a_race_in_heats_finds_the_best_of_all_runs_played_to_the_end() -> None:
    aim = aim_at(EASY, LIMITS)
    groups = {name: group for name, group in contestants(aim, (4,)).items() if not name.startswith("FedAc")}
    quick, whole = (best(race(aim, groups, first_heat)) for first_heat in (0.2, 1.0))
    assert quick.reached and (quick.label, quick.rounds, quick.floats) == (whole.label, whole.rounds, whole.floats)
    impossible = dataclasses.replace(aim, target=-1.0)
    assert not best(race(impossible, dict(list(groups.items())[:1]), 0.2)).reached


# --- all of it, in small -----------------------------------------------------------------------------------------


def small(out: Path | None, resume: bool = False, strategies: tuple[str, ...] = ("AC-SA by the constants",)) -> Bench:
    scale = {"rounds": LIMITS.rounds, "local_steps": (4,), "strategies": strategies}
    return Bench(scale, out, resume, progress=False)


def test_a_small_study_runs_is_kept_and_goes_on_without_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("AC-SA by the constants", "FedAvg, K = 10, step 1/H")
    three = [EASY, dataclasses.replace(EASY, seed=1), NOISY]
    cases, missing = study(small(tmp_path, strategies=names), three)
    assert not missing and [one.declared for one in cases] == three
    for one in cases:
        assert one.solved and one.regret(DEFAULT) >= 1 and one.regret(DEFAULT, "floats") >= 1
        # the tuned default has the steps of 1/H and others
        assert one.by_strategy["FedAvg, K = 10, step 1/H"]["rounds"] >= one.grid["default"]["rounds"]
    monkeypatch.setattr(advise_study, "oracle", pytest.fail)
    monkeypatch.setattr(advise_study, "follow", pytest.fail)
    again, _ = study(small(tmp_path, resume=True, strategies=names), three)
    assert [one.grid for one in again] == [one.grid for one in cases]
    other = dataclasses.replace(EASY, seed=1)
    assert question(other, LIMITS) != question(EASY, LIMITS)  # another federation is another question


def test_a_strategy_that_chooses_badly_is_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a step a thousand times too small never arrives; one that refuses does not either."""
    aim = aim_at(EASY, LIMITS)
    lazy = follow(aim, lambda aim: Choice(FedAvg(1e-3 / aim.smoothness, 4), "too small", spent=2.0))
    assert np.isinf(lazy["rounds"]) and lazy["spent"] == 2.0
    sound = follow(aim, STRATEGIES["AC-SA by the constants"])
    assert np.isfinite(sound["rounds"])

    def refuses(aim: Aim) -> Choice:
        raise SojournError("no")

    assert follow(aim, refuses)["label"] == "refused: no" and np.isinf(follow(aim, refuses)["rounds"])


def test_data_that_cannot_be_had_are_left_out_by_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Aim:
        raise SojournError('data "a9a" is not on this machine and could not be fetched (no network): put it there.')

    monkeypatch.setattr(advise_study, "aim_at", gone)
    cases, missing = study(small(None), [DIGITS])
    assert not cases and len(missing) == 1 and missing[0].startswith(f"{DIGITS.name} is left out: data")


def test_what_was_kept_for_another_question_is_found_anew(tmp_path: Path) -> None:
    ask = lambda asked, found: kept.kept(small(tmp_path, True), "grid", "a name", asked, lambda: {"n": found})  # noqa: E731
    assert ask({"seed": 0}, 1) == {"n": 1} and ask({"seed": 0}, 2) == {"n": 1} and ask({"seed": 1}, 3) == {"n": 3}
