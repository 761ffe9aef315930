"""Contests: the step size is the grid's best on seeds of its own, and curves are those of the runs."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD
from sojourn.recipes.base import Bench, above
from sojourn.recipes.contest import TUNING_SEEDS, Contender, Contest, Curves, chart, results, world

GRID = (0.001, 0.1, 300.0)  # too small, right, and one that diverges
ROUNDS, STEPS = 6, 3


def home(seed: int, partition: str = "iid") -> sj.Federation:
    model = {"name": "mlp", "hidden": [8]}
    return world(seed, {"name": "digits"}, {"name": partition, "num_clients": 4}, model, batch_size=8)


@pytest.fixture(scope="module")
def curves() -> Curves:
    contest = Contest(Bench({}, progress=False), seeds=(0, 1, 2), evaluations=3)
    return contest.play(Contender("local SGD", lambda step: LocalSGD(step, STEPS), home, GRID, ROUNDS))


def test_the_chosen_step_has_the_lowest_training_loss_on_the_tuning_seeds(curves: Curves) -> None:
    ends = [
        np.mean([_end(step, seed) for seed in TUNING_SEEDS])
        for step in GRID[:2]
    ]  # fmt: skip
    assert curves.step_size == GRID[int(np.argmin(ends))] == 0.1
    assert curves.caveat == ""
    assert not set(TUNING_SEEDS) & {0, 1, 2}


def _end(step: float, seed: int) -> float:
    history = sj.run(home(seed), LocalSGD(step, STEPS), ROUNDS, seed=seed, eval_every=2, progress=False)
    return float(history.table["loss"].dropna().iloc[-1])


def test_a_best_step_on_the_edge_of_the_grid_is_told(curves: Curves) -> None:
    contest = Contest(Bench({}, progress=False), seeds=(0,), evaluations=3)
    contender = Contender("local SGD", lambda step: LocalSGD(step, STEPS), home, (0.001, 0.01), ROUNDS)
    assert contest.tune(contender) == (0.01, "best step on the edge of the grid")


def test_curves_are_those_of_single_runs(curves: Curves) -> None:
    for row, seed in enumerate((0, 1, 2)):
        table = sj.run(home(seed), LocalSGD(0.1, STEPS), ROUNDS, seed=seed, eval_every=2, progress=False).table
        seen = table[table["loss"].notna()]
        assert list(curves.rounds) == list(seen["round"]) == [0, 2, 4, 6]
        for name in ("loss", "test_accuracy"):
            np.testing.assert_allclose(curves.metrics[name][row], seen[name], rtol=2e-5)
    parameters = 64 * 8 + 8 + 8 * 10 + 10
    np.testing.assert_array_equal(curves.floats, 2 * 4 * parameters * curves.rounds)
    np.testing.assert_array_equal(curves.steps, STEPS * curves.rounds)


def test_seeds_differ_in_start_and_deal() -> None:
    first, second, again = home(0), home(1), home(0)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), first.x0, again.x0)
    assert all(jax.tree.leaves(same))
    other = jax.tree.map(lambda a, b: bool((a == b).all()), first.x0, second.x0)
    assert not any(jax.tree.leaves(other))
    deals = [jax.tree.leaves(f.clients)[0] for f in (first, second)]
    assert not np.array_equal(*deals)


def test_areas_and_ends_are_means_over_their_evaluations() -> None:
    made = Curves(
        "made", 0.1, "best step on the edge of the grid", np.array([0, 1, 2, 3, 4]), np.arange(5.0), np.arange(5.0),
        {"test_accuracy": np.array([[9.0, 1, 2, 3, 5], [9.0, 0, 0, 0, 2]]), "loss": np.ones((2, 5))},
    )  # fmt: skip
    np.testing.assert_array_equal(made.final("test_accuracy"), [5, 2])
    np.testing.assert_array_equal(made.final("test_accuracy", last=2), [4, 1])
    np.testing.assert_array_equal(made.area("test_accuracy", 0.5), [1.5, 0])  # rounds 1 and 2, the start left out
    assert above(made.final("test_accuracy"), 100)[0] is False
    assert "0.1 (best step on the edge of the grid)" in results("Ends", [made]).rows[0]


def test_a_chart_leaves_out_what_is_not_a_number(curves: Curves) -> None:
    broken = functools.partial(np.where, curves.rounds > 2, np.nan)
    lost = Curves(*(getattr(curves, f) for f in ("label", "step_size", "caveat", "rounds", "floats", "steps")),
                  {name: broken(values) for name, values in curves.metrics.items()})  # fmt: skip
    assert [row["x"] for row in chart("t", [lost], "loss").spec["data"]["values"]] == [0, 2]
    assert len(chart("t", [curves], "loss", "floats").spec["data"]["values"]) == 4


def test_a_diverged_seed_does_not_hide_the_others() -> None:
    """A run that diverges may end early; the curves keep their shape, and no verdict is drawn from what is lost."""

    def sometimes(seed: int) -> sj.Federation:
        good = home(seed)
        return good if seed == 1 else dataclasses.replace(good, x0=jax.tree.map(lambda a: a * 1e30, good.x0))

    contest = Contest(Bench({}, progress=False), seeds=(0, 1, 2), evaluations=3, one_by_one=True)
    lost = contest.play(Contender("local SGD", lambda step: LocalSGD(step, STEPS), sometimes, GRID, ROUNDS), 0.1)
    assert list(lost.rounds) == [0, 2, 4, 6]
    assert lost.metrics["loss"].shape == (3, 4)
    np.testing.assert_array_equal(np.isfinite(lost.final("loss")), [False, True, False])
    assert above(lost.final("loss"), 0.0)[0] is None


def test_where_every_seed_diverges_at_once_the_end_is_not_the_start() -> None:
    contest = Contest(Bench({}, progress=False), seeds=(0, 1), evaluations=2)
    lost = contest.play(Contender("local SGD", lambda step: LocalSGD(step, STEPS), home, GRID, 7), 1e30)
    assert list(lost.rounds) == [0, 3, 6, 7]
    assert np.isfinite(lost.metrics["loss"][:, 0]).all() and not np.isfinite(lost.final("loss")).any()


def test_one_program_for_all_gives_the_same_curves(curves: Curves) -> None:
    contest = Contest(Bench({}, progress=False), seeds=(0, 1, 2), evaluations=3, one_by_one=True)
    apart = contest.play(Contender("local SGD", lambda step: LocalSGD(step, STEPS), home, GRID, ROUNDS))
    assert (apart.step_size, apart.caveat) == (curves.step_size, curves.caveat)
    for name, values in curves.metrics.items():
        np.testing.assert_allclose(apart.metrics[name], values, rtol=2e-5)
    np.testing.assert_array_equal(apart.floats, curves.floats)


def test_a_step_that_diverges_has_an_infinite_loss() -> None:
    contest = Contest(Bench({}, progress=False), seeds=(0,), evaluations=3)
    losses = contest.losses(Contender("local SGD", lambda step: LocalSGD(step, STEPS), home, GRID, ROUNDS))
    assert np.isfinite(losses[:2]).all() and losses[1] < losses[0]
