"""The recipe of Song et al.'s theory: what it measures is what it says, and every claim can come out either way."""

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from sojourn.models.wide_exchange import smallest_singular_value
from sojourn.recipes import RECIPES
from sojourn.recipes.base import Bench, Claim, Findings
from sojourn.recipes.wide_runs import (
    IID,
    SAMPLES,
    STEP_SIZE,
    STEPS,
    WIDTHS,
    ZETA,
    Course,
    follow,
    lemma_4_margins,
    movement,
    pessimism,
    samples,
    splits,
    squared_error,
    within,
    world,
)
from sojourn.recipes.wide_theory import (
    judge_conditions,
    judge_decay,
    judge_guarantee,
    judge_inside,
    judge_narrow,
    judge_zeta,
)

TINY = {"seeds": 2, "rounds": 60, "stops": 2}
IDS = {"linear", "rate", "lemma-4", "range", "zeta", "guarantee", "certified", "conditions-22-23", "conditions-72-73",
       "narrow"}  # fmt: skip


@pytest.fixture(scope="module")
def findings() -> Findings:
    return RECIPES["wide-theory"].carry_out(Bench(TINY, progress=False))


@pytest.fixture(scope="module")
def course() -> Course:
    with jax.enable_x64(True):
        return follow(Bench({"rounds": 40}, progress=False), "iid", [world(s, IID) for s in (0, 1)], STEP_SIZE, 2)


def made_up(course: Course, losses: Any, rounds: int = 400) -> Course:
    """The course with other losses: (seeds, evaluations)."""
    losses = np.asarray(losses, float)
    return dataclasses.replace(course, rounds=np.linspace(0, rounds, losses.shape[1]).astype(int), losses=losses)


def test_all_claims_are_judged_and_shown(findings: Findings) -> None:
    assert {claim.id for claim in findings.claims} == IDS
    assert len(findings.figures) == 3 and len(findings.tables) == 1
    by_id = {claim.id: claim for claim in findings.claims}
    assert by_id["lemma-4"].holds and by_id["guarantee"].holds and by_id["narrow"].holds
    assert by_id["conditions-22-23"].holds is False and by_id["conditions-72-73"].holds
    assert all(row for figure in findings.figures for row in figure.spec["data"]["values"])
    assert findings.tables[0].rows[0][2:5] == ("1,024", "2,124", "776")  # 4 * 8 * 32; 4 * (528 + 3); 24 * 32 + 8


def test_every_split_deals_all_samples_once() -> None:
    for parts in splits(3).values():
        assert sorted(np.concatenate(parts)) == list(range(SAMPLES))
    _, targets = samples(3)
    firsts = [targets[rows, 0] for rows in splits(3)["sorted by target"]]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(firsts))


def test_a_course_is_fedavg_whatever_its_stops(course: Course) -> None:
    """One round by hand, and the losses of models that were looked at."""
    with jax.enable_x64(True):
        one, gradient = world(0, IID), jax.jit(jax.grad(squared_error))
        mean = None
        for x, y in one.parts:
            model = one.start.model
            for _ in range(STEPS):
                slope = gradient(model, (x, y))
                model = jax.tree.map(lambda a, g: a - STEP_SIZE * g, model, slope)
            mean = model if mean is None else jax.tree.map(lambda a, b: a + b, mean, model)
        mean = jax.tree.map(lambda a: a / len(one.parts), mean)  # of equal sizes
        whole = tuple(np.concatenate(both) for both in zip(*one.parts, strict=True))
        assert float(squared_error(mean, whole)) == pytest.approx(course.losses[0, 1], rel=1e-10)
        assert float(squared_error(one.start.model, whole)) == pytest.approx(course.losses[0, 0], rel=1e-10)
    np.testing.assert_array_equal(course.rounds, np.arange(41))
    assert list(course.stops) == [0, 20, 40] and len(course.models) == 3
    assert (np.diff(course.losses) < 0).all()


def test_decay_is_judged_by_line_and_rate(course: Course) -> None:
    rng = np.random.default_rng(0)
    at = np.linspace(0, 400, 41)
    falling = [np.exp(-slope * at) for slope in (0.01, 0.0101)]
    noisy = np.exp(rng.normal(size=(2, 41)))
    flat = 1 + 1e-3 * np.cos(at[None] * np.array([[0.5], [0.7]]))

    def verdicts(**by_split: Any) -> tuple[bool | None, bool | None]:
        linear, rate = judge_decay({name: made_up(course, losses) for name, losses in by_split.items()})
        return linear.holds, rate.holds

    assert verdicts(a=falling, b=falling) == (True, True)
    assert verdicts(a=falling, b=np.stack(falling)[:, ::-1])[1] is False, "a split on which the loss grows"
    assert verdicts(a=falling, b=flat)[0] is not True
    assert verdicts(a=falling, b=noisy)[1] is None
    bent = np.stack([np.where(at < 300, 1.0, np.exp(-0.5 * (at - 300))), np.where(at < 310, 1.0, np.exp(310 - at))])
    assert verdicts(a=bent)[0] is not True, "a sudden fall is no line"
    deep = np.stack([np.maximum(np.exp(-slope * at), 1e-30) + 1e-30 * rng.random(41) for slope in (0.5, 0.51)])
    assert verdicts(a=deep) == (True, True), "what rounding leaves at the end is not looked at"
    assert made_up(course, falling).rises() == 0 and 0.3 < made_up(course, noisy).rises() < 0.7


def test_lemma_4_is_looked_at_where_the_models_are(course: Course) -> None:
    with jax.enable_x64(True):
        margins = lemma_4_margins(course)
        assert set(margins) == {"(27)", "(28)", "(29)", "(30)"} and all(0 < share <= 1 for share in margins.values())
    held = judge_inside(margins, {"iid": movement(course)}, 2)
    assert held[0].holds
    assert judge_inside({**margins, "(29)": 1.01}, {"iid": movement(course)}, 2)[0].holds is False


def test_movement_is_in_shares_of_the_start(course: Course) -> None:
    moved = movement(course)
    assert moved.shape == (3, 2, 4)
    np.testing.assert_allclose(moved[0, :, 1:], 1)
    doubled = dataclasses.replace(course, models=[course.models[0], [[w, v, 0.4 * u] for w, v, u in course.models[0]]])
    np.testing.assert_allclose(movement(doubled)[1, :, 1], 0.4)
    assert within(movement(doubled)[:1]) and not within(movement(doubled))
    wide = dataclasses.replace(course, models=[course.models[0], [[w, v, 1.6 * u] for w, v, u in course.models[0]]])
    assert not within(movement(wide))
    verdicts = [judge_inside({}, {"iid": movement(found)}, 2)[1].holds for found in (doubled, wide)]
    assert verdicts == [False, False]
    assert judge_inside({}, {"iid": movement(doubled)[:1]}, 2)[1].holds


def test_the_promise_can_be_broken(course: Course) -> None:
    kept, times = pessimism(course, ZETA)
    assert kept and times > 1000
    assert judge_guarantee({IID: course}, None, None)[0].holds
    rising = made_up(course, np.linspace(1, 2, 20)[None].repeat(2, axis=0))
    assert pessimism(rising, ZETA)[0] is False
    assert judge_guarantee({IID: rising}, None, None)[0].holds is False
    out_of_range = dataclasses.replace(
        course, models=[course.models[0], [[w, v, 9 * u] for w, v, u in course.models[0]]]
    )
    assert [claim.holds for claim in judge_guarantee({IID: course}, course, 2.0)] == [True, True]
    assert judge_guarantee({IID: course}, out_of_range, 2.0)[1].holds is False


def test_zetas_are_compared_while_they_are_stable(course: Course) -> None:
    ends = lambda *last: made_up(course, [[1, value] for value in last])  # noqa: E731
    unstable = made_up(course, np.full((2, 2), np.inf))

    def verdict(*courses: Course) -> Claim:
        return judge_zeta(dict(zip((1.0, 2.0, 5.0), courses, strict=False)), 2)

    assert verdict(ends(0.5, 0.4), ends(0.05, 0.041), ends(0.005, 0.0042)).holds
    assert verdict(ends(0.5, 0.4), ends(0.05, 0.041), unstable).holds
    assert "diverged: 5" in verdict(ends(0.5, 0.4), ends(0.05, 0.041), unstable).evidence
    assert verdict(ends(0.05, 0.041), ends(0.5, 0.4)).holds is False
    assert verdict(ends(0.05, 0.5), ends(0.5, 0.05)).holds is None
    assert verdict(ends(0.5, 0.4), unstable).holds is None, "nothing to compare"


def test_conditions_are_those_of_the_exchange() -> None:
    with jax.enable_x64(True):
        worlds = {power: [world(seed, IID, 10.0**power) for seed in (0, 1)] for power in (0, 14)}
    minibatch, exact = judge_conditions(worlds)
    assert minibatch.holds is False and exact.holds and "met from zeta = 1e14" in exact.evidence
    assert judge_conditions({0: worlds[0]})[1].holds is False
    easy = [_with_conditions(one) for one in worlds[0]]
    assert judge_conditions({0: easy})[0].holds, "they can hold"


def _with_conditions(one: Any) -> Any:
    told = {"condition": "(67)", "corrected": False, "left_log10": -1.0, "right_log10": 0.0, "holds": True}
    checked = lambda use: {"conditions": [told, {**told, "corrected": True}]}  # noqa: E731
    start = dataclasses.replace(one.start, setup=dataclasses.replace(one.start.setup, check=checked))
    return dataclasses.replace(one, start=start)


def test_the_control_is_narrow(course: Course) -> None:
    assert judge_narrow(course).holds is False, "the wide network has an a_0"
    with jax.enable_x64(True):
        narrow = dataclasses.replace(course, worlds=[world(seed, IID, width=12) for seed in (0, 1)])
    assert judge_narrow(narrow).holds and "R^2" in judge_narrow(narrow).evidence
    assert smallest_singular_value(np.ones((3, 2))) == 0 and WIDTHS[0] >= SAMPLES
