"""The recipes of thesis figures 6.2 and 6.3: their claims can hold and fail, and tiny ones are carried out."""

from collections.abc import Callable

import numpy as np
import pytest

from sojourn.recipes import RECIPES, thesis_6_2, thesis_6_3
from sojourn.recipes.base import Bench
from sojourn.recipes.contest import Curves
from sojourn.recipes.thesis_6_2 import BVR, CE
from sojourn.recipes.thesis_6_3 import AVG, SARAH, SCAFFOLD, SGD
from test_contract import quick_compilation

AT = np.arange(0, 101, 5)


def course(rate: float, level: float = 0.1, trips: int = 2, seeds: int = 6) -> Curves:
    """A loss that falls exponentially to a level, a little differently for every seed."""
    wobble = 1 + 0.003 * np.random.default_rng(3).normal(size=(seeds, 1))
    losses = (level + (2.3 - level) * np.exp(-rate * AT)) * wobble
    nothing = np.zeros(len(AT))
    made = Curves("", 0.1, "", AT, nothing, nothing, {"loss": losses})
    return thesis_6_2.with_trips(made, trips)


def verdicts_62(**changed: Curves) -> dict[str, bool | None]:
    courses = {(CE, 4): course(0.1), (BVR, 4): course(0.1, trips=3)}
    courses |= {(CE, 16): course(0.2, 0.05), (BVR, 16): course(0.2, 0.05, trips=3)}
    names = {"ce4": (CE, 4), "bvr4": (BVR, 4), "ce16": (CE, 16), "bvr16": (BVR, 16)}
    courses |= {names[name]: changed_course for name, changed_course in changed.items()}
    return {claim.id: claim.holds for claim in thesis_6_2.judge(courses)}


def test_all_claims_of_figure_6_2_can_hold() -> None:
    assert set(verdicts_62().values()) == {True}


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({"bvr4": course(0.2)}, "no-later-4"),
        ({"bvr4": course(0.07)}, "level-by-iterations-4"),
        ({"bvr16": course(0.2, 0.1)}, "same-end-16"),
        ({"ce16": course(0.2, 0.3)}, "more-steps-help-ce-lsgd"),
        ({"bvr16": course(0.2, 0.3)}, "more-steps-help-bvr-l-sgd"),
    ],
)
def test_each_claim_of_figure_6_2_can_fail(changed: dict[str, Curves], claim: str) -> None:
    assert verdicts_62(**changed)[claim] is False


def test_heavy_batches_cost_rounds() -> None:
    made = thesis_6_2.with_trips(course(0.1), 2, heavy_every=10, heavy_trips=5)
    # ten iterations of two rounds, and one of them with a heavy batch that takes five in place of one
    assert made.trips[AT == 10] == 10 * 2 + 4 and made.trips[-1] == 10 * (10 * 2 + 4) and made.trips[0] == 0


def test_rounds_to_a_level_lie_between_evaluations() -> None:
    line = Curves("", 0.1, "", np.array([0, 10]), np.zeros(2), np.zeros(2), {"loss": np.array([[2.0, 1.0]])})
    line = thesis_6_2.with_trips(line, 2)
    found = thesis_6_2.reached(line, np.array([[2.0, 1.5, 1.0, 0.9]]))
    np.testing.assert_allclose(found, [[0, 10, 20, np.inf]])


def verdicts_63(change: Callable[[str, float], float | None] = lambda name, q: None) -> dict[str, bool | None]:
    shares = (0.1, 0.85)
    levels = {CE: 0.1, BVR: 0.1, AVG: 0.3, SCAFFOLD: 0.3, SARAH: 0.4, SGD: 0.5}
    courses = {
        (name, q): course(0.5, change(name, q) or (level * (3 if name == AVG and q == 0.85 else 1)))
        for name, level in levels.items()
        for q in shares
    }
    return {claim.id: claim.holds for claim in thesis_6_3.judge(courses)}


def test_all_claims_of_figure_6_3_can_hold() -> None:
    assert set(verdicts_63().values()) == {True}


@pytest.mark.parametrize(
    ("name", "q", "level", "claim"),
    [
        (BVR, 0.1, 0.15, "ce-is-bvr"),
        (SARAH, 0.85, 0.05, "below-the-others"),
        (AVG, 0.1, 1.5, "gap-grows"),  # a lead that shrinks
        (AVG, 0.85, 0.09, "gap-grows"),  # and none at all
        (AVG, 0.85, 0.2, "fedavg-worsens"),
        (SGD, 0.85, 0.9, "centralized-insensitive"),
    ],
)
def test_each_claim_of_figure_6_3_can_fail(name: str, q: float, level: float, claim: str) -> None:
    changed = verdicts_63(lambda of, at: level if (of, at) == (name, q) else None)
    assert changed[claim] is False


TINY = {
    "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [4]}, "num_clients": 10, "batch_size": 2,
    "heavy_samples": 16, "step_sizes": (0.1,), "iterations": 11, "tuning_iterations": 11, "eval_every": 5,
    "seeds": range(2),
}  # fmt: skip


def test_tiny_figures_are_carried_out() -> None:
    with quick_compilation():
        two = RECIPES["thesis-6.2"].carry_out(Bench({**TINY, "local_steps": (2,)}, progress=False))
        scale = {**TINY, "num_local_steps": 2, "own_shares": (0.8,)}
        three = RECIPES["thesis-6.3"].carry_out(Bench(scale, progress=False))
    assert len(two.claims) == 5 and len(two.figures) == 2
    assert len(three.claims) == 5 and len(three.figures) == 2 and len(three.tables[0].rows) == 6
