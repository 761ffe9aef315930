"""The recipes of the deep ReLU paper: its figures, and its lemmas along Local GD."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from sojourn import run
from sojourn.algorithms import LocalSGD
from sojourn.core.errors import SojournError
from sojourn.core.frozen import Frozen
from sojourn.models.deep_relu import DeepReLU
from sojourn.problems.finite import federation
from sojourn.recipes import Bench, relu_figures, relu_theory
from sojourn.recipes.contest import Curves
from sojourn.recipes.relu_figures import CROSS_ENTROPY, IID, NON_IID, SQUARED, Case, Results
from sojourn.recipes.relu_theory import PRINTED, Course

SEEDS = np.arange(5)
NOISE = 0.002 * np.array([1.0, -1.0, 0.5, -0.5, 0.0])


def verdicts(claims: Any) -> dict[str, bool | None]:
    return {claim.id: claim.holds for claim in claims}


def curves(loss: Any, accuracy: Any = 0.5, rounds: Any = (0, 8), caveat: str = "", turn: int = 0) -> Curves:
    """Made-up courses of five seeds; the last column is the end. Other turns have other noise, of mean 0."""
    ends = lambda values: np.atleast_1d(values)[None, :] + np.zeros((5, len(rounds)))  # noqa: E731
    metrics = {name: ends(accuracy) for name in ("accuracy", "test_accuracy")} | {"loss": ends(loss)}
    metrics |= {"test_loss": metrics["loss"]}
    metrics = {name: values + np.roll(NOISE, turn)[:, None] for name, values in metrics.items()}
    at = np.array(rounds, float)
    return Curves("x", 0.1, caveat, at, at, at, metrics)


# --- the figures -------------------------------------------------------------------------------------------------


def widths(accuracies: dict[str, tuple[float, float]], loss: str = CROSS_ENTROPY, caveat: str = "") -> Results:
    return Results(
        {
            Case(loss, split, width=m): curves(1 - value, value, caveat=caveat, turn=i + j)
            for j, (split, pair) in enumerate(accuracies.items())
            for i, (m, value) in enumerate(zip((50, 1000), pair, strict=True))
        },
        "made up",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ({IID: (0.8, 0.85), NON_IID: (0.6, 0.8)}, (True, True, True)),
        ({IID: (0.8, 0.75), NON_IID: (0.6, 0.8)}, (False, True, True)),
        ({IID: (0.7, 0.85), NON_IID: (0.7, 0.75)}, (True, True, False)),
        ({IID: (0.8, 0.8), NON_IID: (0.7, 0.8)}, (None, True, True)),
    ],
)
def test_width_is_judged_in_both_directions(accuracies: Any, expected: Any) -> None:
    found = verdicts(relu_figures.judge_width(widths(accuracies)))
    names = "iid", "non-iid"
    assert [found[f"accuracy-{name}"] for name in names] == list(expected[:2])
    assert [found[f"loss-{name}"] for name in names] == list(expected[:2])
    assert found["more-in-non-iid"] is expected[2]


def test_the_squared_loss_is_ours_and_edges_are_said() -> None:
    claims = relu_figures.judge_width(
        widths({IID: (0.8, 0.85), NON_IID: (0.6, 0.8)}, SQUARED, caveat="best step on the edge of the grid")
    )
    assert {claim.by for claim in claims} == {"check"} and all(claim.id.endswith("-squared") for claim in claims)
    assert all("edge of the grid" in claim.evidence for claim in claims)


def gaps(iid: tuple[float, float], non_iid: tuple[float, float], early: float) -> Results:
    found = {}
    for split, (few, many) in {IID: iid, NON_IID: non_iid}.items():
        found[Case(CROSS_ENTROPY, split, tau=1)] = curves((2.3, early, few), rounds=(0, 8, 400))
        found[Case(CROSS_ENTROPY, split, tau=50)] = curves((2.3, many), rounds=(0, 8), turn=1)
    return Results(found, "made up")


def test_gap_is_judged_at_equal_iterations_and_rounds() -> None:
    found = verdicts(relu_figures.judge_gap(gaps((0.2, 0.25), (0.2, 0.6), early=1.8)))
    assert set(found.values()) == {True} and len(found) == 4, found
    # The end of tau = 1 is below that of tau = 50, and its eighth round is not: the claims must not be confused.
    found = verdicts(relu_figures.judge_gap(gaps((0.25, 0.2), (0.6, 0.2), early=0.1)))
    assert set(found.values()) == {False}, found
    # A larger difference of losses is not a larger slowdown: the ratio counts.
    found = verdicts(relu_figures.judge_gap(gaps((0.1, 0.3), (1.0, 1.5), early=1.8)))
    assert found["slower-iid"] is found["slower-non-iid"] is True and found["slowdown-larger-in-non-iid"] is False


def depths(shallow: float, *deep: float) -> Results:
    found = {}
    for split in (IID, NON_IID):
        found[Case(CROSS_ENTROPY, split, 1, 50)] = curves(0.1, shallow)
        for i, (m, value) in enumerate(zip((10, 50, 100), deep, strict=True)):
            found[Case(CROSS_ENTROPY, split, 5, m)] = curves(0.1, value, turn=i + 1)
    return Results(found, "made up")


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.9, 0.6, 0.85, 0.905), (True, True, True)),
        ((0.9, 0.895, 0.91, 0.95), (False, True, False)),
        ((0.9, 0.88, 0.85, 0.92), (None, False, None)),
        ((0.9, 0.6, 0.8, 0.8), (True, None, False)),
    ],
)
def test_depth_is_judged_in_both_directions(accuracies: Any, expected: Any) -> None:
    found = verdicts(relu_figures.judge_depth(depths(*accuracies)))
    for split in ("iid", "non-iid"):
        names = f"as-many-neurons-{split}", f"width-helps-{split}", f"wide-is-equal-{split}"
        got = [found[name] for name in names]
        assert got == list(expected), got


def test_counts_are_the_papers() -> None:
    assert (relu_figures.num_weights(100, 5), relu_figures.num_weights(50, 1)) == (119_400, 39_700)
    assert verdicts(relu_figures.judge_depth(depths(0.9, 0.6, 0.8, 0.9)))["parameter-counts"] is True


def test_evaluations_meet_at_the_shortest_runs_end() -> None:
    for rounds in (40, 100, 200, 400, 2000):
        every = relu_figures._every(rounds, 20, 40)
        assert 40 % every == 0 and rounds // every >= 20


TINY = {"data": {"name": "digits"}, "num_clients": 4, "iterations": 20, "tuning_iterations": 5, "evaluations": 2,
        "seeds": range(2)}  # fmt: skip


def test_the_gap_runs_with_one_step_for_all() -> None:
    findings = relu_figures.GAP.carry_out(Bench({**TINY, "taus": (1, 10), "squared_taus": ()}, progress=False))
    assert set(verdicts(findings.claims)) == {
        "slower-iid", "slower-non-iid", "slowdown-larger-in-non-iid", "faster-per-round"
    }  # fmt: skip
    titles = [figure.title for figure in findings.figures]
    assert all(any(f"by {axis}" in title for title in titles) for axis in ("iterations", "rounds", "floats"))
    assert sorted(i for figure in findings.figures for i in figure.claims) == sorted(verdicts(findings.claims))
    (table,) = findings.tables
    assert len({row[1] for row in table.rows}) == 1 and len(table.rows) == 4
    sent = {row[0]: float(row[-1]) for row in table.rows}
    assert sent["tau = 1, IID"] == pytest.approx(10 * sent["tau = 10, IID"], rel=0.01)


# --- the lemmas --------------------------------------------------------------------------------------------------


def test_samples_are_as_the_assumption_wants_them() -> None:
    given = relu_theory.samples(5, 0)
    assert given.x.shape == (5, 5, 64) and given.y.shape == (5, 5, 10)
    np.testing.assert_allclose(np.linalg.norm(given.x, axis=-1), 1, rtol=1e-5)
    assert given.separation >= relu_theory.CLOSEST - 1e-6
    assert [sorted(set(labels)) for labels in given.y.argmax(-1)] == [[2 * i, 2 * i + 1] for i in range(5)]
    with pytest.raises(SojournError, match="ask for fewer"):
        relu_theory.samples(400, 0)


def test_the_loop_is_local_sgd_with_exact_gradients() -> None:
    given = relu_theory.samples(4, 0)
    weights, top = relu_theory.network(16, 2, 0)
    end, found = relu_theory.local_gd(weights, top, given.x, given.y, 0.05, tau=3, rounds=4)
    home = federation(
        lambda model, batch: relu_theory.loss(model.weights, model.top(), *batch), DeepReLU(weights, Frozen(top)),
        list(zip(given.x, given.y, strict=True)),
    )  # fmt: skip
    history = run(home, LocalSGD(step_size=0.05, num_local_steps=3), 4, eval_every=1, progress=False)
    np.testing.assert_allclose(history.table["loss"].to_numpy()[:-1], found["loss"], rtol=1e-4)
    for mine, theirs in zip(jax.tree.leaves(end), jax.tree.leaves(history.params), strict=False):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    other, _ = relu_theory.local_gd(weights, top, given.x, given.y, 0.05, tau=2, rounds=4)
    assert not np.allclose(other[0], end[0], atol=1e-4)


@pytest.fixture(scope="module")
def courses() -> dict[int, list[Course]]:
    given = relu_theory.samples(4, 0)
    return {m: [relu_theory.course(m, 1, 3, 60, given, seed) for seed in (0, 1)] for m in (64, 512)}


def test_lemmas_hold_along_a_run_and_fail_without_their_factors(courses: dict[int, list[Course]]) -> None:
    given = relu_theory.samples(4, 0)
    printed = [relu_theory.course(64, 1, 3, 2, given, 0, PRINTED)]
    assert set(verdicts(relu_theory.judge_monotone(1, courses, printed)).values()) == {True}
    swapped = verdicts(relu_theory.judge_monotone(1, {64: printed}, courses[64]))
    assert set(swapped.values()) == {False}
    at_start = {m: [run.gradient[0] for run in some] for m, some in courses.items()}
    assert set(verdicts(relu_theory.judge_gradient(1, at_start, courses)).values()) == {True}
    # without the factor m the same quantities leave the band
    bare = {
        m: [dataclasses.replace(run, gradient=run.gradient * m, deviation=run.deviation * m) for run in some]
        for m, some in courses.items()
    }
    at_start = {m: [run.gradient[0] for run in some] for m, some in bare.items()}
    assert set(verdicts(relu_theory.judge_gradient(1, at_start, bare)).values()) == {False}
    taus = {3: courses[64], 6: courses[64]}
    assert set(verdicts(relu_theory.judge_deviation(1, courses, taus, {4: courses[64]})).values()) == {True}
    grows = {3: courses[64], 6: [dataclasses.replace(run, deviation=6 * run.deviation) for run in courses[64]]}
    assert set(verdicts(relu_theory.judge_deviation(1, bare, grows, {4: courses[64]})).values()) == {False}


def decaying(base: Course, losses: np.ndarray) -> Course:
    return dataclasses.replace(base, loss=losses)


def test_rates_are_told_from_powers(courses: dict[int, list[Course]]) -> None:
    base, rounds = courses[64][0], np.arange(200)
    line = lambda rate: [decaying(base, np.exp(-rate * rounds))]  # noqa: E731
    good = relu_theory.judge_rate(1, {64: line(0.01), 128: line(0.012)}, {4: line(0.02), 12: line(0.01)})
    assert set(verdicts(good).values()) == {True}
    power = [decaying(base, (1.0 + rounds) ** -2)]
    bad = verdicts(relu_theory.judge_rate(1, {64: line(0.001), 128: power}, {4: line(0.01), 12: line(0.01)}))
    assert bad == {
        "every-round-l1": True,
        "linear-l1": False,
        "rate-free-of-m-l1": False,
        "rate-depends-on-n-l1": False,
    }
    rising = [decaying(base, 1 + np.sin(rounds))]
    assert verdicts(relu_theory.judge_rate(1, {64: rising}, {4: line(1)}))["every-round-l1"] is False


def test_semi_lipschitz_and_the_start() -> None:
    changes = lambda growth, alone: {  # noqa: E731
        (m, w): [(growth ** (m // 128), (0.1 / w) ** alone)] for m in (64, 128) for w in relu_theory.OMEGAS
    }
    assert set(verdicts(relu_theory.judge_lipschitz(1, changes(1.5, 1))).values()) == {True}
    assert set(verdicts(relu_theory.judge_lipschitz(1, changes(5.0, 0))).values()) == {False}
    assert relu_theory.judge_start(1, {64: [1.0], 4096: [2.0]}).holds is True
    assert relu_theory.judge_start(1, {64: [1.0], 4096: [math.exp(2.0)]}).holds is False


def test_the_printed_step_exceeds_what_the_proof_allows() -> None:
    assert relu_theory.judge_step({(1, 4): (25.0, 0.4)}).holds is True
    assert relu_theory.judge_step({(1, 4): (25.0, 0.4), (3, 4): (0.9, 0.4)}).holds is False
    given = relu_theory.samples(4, 0)
    ratio = relu_theory.step_size(PRINTED, 64, 3, 5, given) / relu_theory.step_size("corrected", 64, 3, 5, given)
    assert ratio == pytest.approx(4**2 * 3**2 / given.separation)
    # For one layer the loss is quadratic while no unit switches: C'' is half the curvature along the gradient.
    assert 0.05 < relu_theory.curvature(1024, 1, given, 0) < 0.5


def test_all_lemmas_are_carried_out() -> None:
    scale = {"num_each": 4, "num_more": 6, "tau": 2, "taus": (2,), "seeds": (0, 1), "rounds": 12,
             "depths": {2: {"widths": (16,), "start_widths": (16,)}}}  # fmt: skip
    findings = relu_theory.RECIPE.carry_out(Bench(scale, progress=False))
    assert len(findings.claims) == 16 and len(findings.tables[0].rows) == 1
    assert verdicts(findings.claims)["monotone-l2"] is True and verdicts(findings.claims)["printed-step"] is True
