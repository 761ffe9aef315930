"""Figure 5.1: what is measured is what NumPy measures, and every judge can say no."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD
from sojourn.history import History
from sojourn.problems.caps import cap_regression_parameters, regression_hessians
from sojourn.recipes import RECIPES, Bench, Claim
from sojourn.recipes import thesis_5_1 as figure
from sojourn.recipes.thesis_5_1 import STEP_SIZES, Cells, Rounds, judge_cells, judge_rounds
from sojourn.recipes.trends import all_grow, interval, spearman
from sojourn.sweeping import Setting, sweep_settings

K, ROUNDS = figure.NUM_LOCAL_STEPS, figure.ROUNDS


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


@pytest.fixture(scope="module")
def cells() -> Cells:
    scale = {"optima_spreads": (0, 0.75, 1.5), "mean_spreads": (0, 1, 3, 5, 7), "trials": range(12)}
    return figure.measure_cells(Bench(scale, progress=False))


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    scale = {"mean_spreads": (0, 1, 2, 3, 4, 6, 7, 10), "trials": range(8), "draws": range(1)}
    return figure.measure_rounds(Bench(scale, progress=False))


def numpy_local_sgd(
    optima: np.ndarray, means: np.ndarray, eta: float, seed: int, repeats: int, num_steps: int = K
) -> np.ndarray:
    """Independent Local SGD on fresh samples, many repetitions at once: the final models (repeats, d)."""
    rng = np.random.default_rng(seed)
    num_clients, d = optima.shape
    x = np.zeros((repeats, d))
    for _ in range(ROUNDS):
        local = np.repeat(x[:, None], num_clients, 1)
        for _ in range(num_steps):
            a = means + rng.standard_normal((repeats, num_clients, d))
            y = (a * optima).sum(-1) + figure.NOISE_STD * rng.standard_normal((repeats, num_clients))
            local = local - eta * ((a * local).sum(-1) - y)[..., None] * a
        x = local.mean(1)
    return x


# --- what is measured --------------------------------------------------------------------------------------------


def test_errors_have_the_mean_of_an_independent_simulation() -> None:
    """At one step size; both means have standard errors of about 2 %."""
    home, eta, repeats = figure.world(1.0, 4.0, 3), STEP_SIZES[2], 300
    settings = [Setting(LocalSGD(eta, K), seed, {}, home) for seed in range(repeats)]
    measured = sweep_settings(None, settings, ROUNDS, eval_every=ROUNDS, progress=False).params
    optima, means = np.asarray(home.facts.optima), np.asarray(home.clients.objective.means)  # type: ignore[attr-defined]
    own = numpy_local_sgd(optima, means, eta, 0, repeats)
    far, near = (np.linalg.norm(np.asarray(x) - home.facts.x_star, axis=1) for x in (measured, own))
    error = np.hypot(far.std(), near.std()) / np.sqrt(repeats)
    assert abs(far.mean() - near.mean()) < 4 * error
    fewer = np.linalg.norm(numpy_local_sgd(optima, means, eta, 0, repeats, num_steps=K - 1) - home.facts.x_star, axis=1)
    assert abs(far.mean() - fewer.mean()) > 4 * error  # a local step less would be seen


def test_the_best_of_all_step_sizes_is_taken_to_either_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """With exact gradients the whole measurement is a few lines of NumPy."""
    made = figure.world

    def exact(*which: Any) -> Any:
        home = made(*which)
        return dataclasses.replace(home, clients=dataclasses.replace(home.clients, batch_size=None))

    monkeypatch.setattr(figure, "world", exact)
    scale = {"optima_spreads": (0.5, 1.0), "mean_spreads": (3, 6), "trials": (0, 4)}
    cells = figure.measure_cells(Bench(scale, progress=False))
    for t, trial in enumerate(scale["trials"]):
        for i, zeta in enumerate(scale["optima_spreads"]):
            for j, tau in enumerate(scale["mean_spreads"]):
                optima, means = cap_regression_parameters(
                    20, 5, zeta, tau, rng=np.random.default_rng([0, 0]), mean_rng=np.random.default_rng([1, trial])
                )
                hessians, x_star = regression_hessians(means), made(zeta, tau, trial).facts.x_star
                ends = []
                for eta in STEP_SIZES:
                    left = np.linalg.matrix_power(np.eye(5) - eta * hessians, K)
                    x = np.zeros(5)
                    for _ in range(ROUNDS):
                        x = (optima + np.einsum("mij,mj->mi", left, x - optima)).mean(0)
                    ends.append(x)
                best = [min(np.linalg.norm(x - centre) for x in ends) for centre in (x_star, optima.mean(0))]
                found = cells.to_optimum[t, i, j], cells.to_mean_optimum[t, i, j]
                np.testing.assert_allclose(found, best, rtol=2e-4, atol=2e-6)
                assert abs(best[0] - best[1]) > 1e-3  # and the two are not the same


def test_a_run_that_diverged_is_infinitely_far() -> None:
    models = np.ones((len(STEP_SIZES), 5))
    models[3] = 0.0  # seems to be at the optimum, but diverged
    models[4] = np.nan
    lost = np.arange(len(STEP_SIZES)) == 3
    table = pd.DataFrame({"setting": np.arange(len(STEP_SIZES)), "diverged": lost})
    best = figure._best_error(History(table, {}, params=models), np.zeros((1, 5)))
    np.testing.assert_allclose(best, np.sqrt(5))
    kept = table.assign(diverged=False)
    assert figure._best_error(History(kept, {}, params=models), np.zeros((1, 5))) == 0


def test_the_recorded_distance_can_be_to_the_mean_of_the_optima() -> None:
    home = figure.world(1.0, 6.0, 0)
    history = sj.run(figure.towards_mean_optimum(home), LocalSGD(0.01, K), 3, progress=False)
    model, optima = np.asarray(history.params), np.asarray(home.facts.optima)
    assert history.last("distance") == pytest.approx(np.linalg.norm(model - optima.mean(0)), rel=1e-5)
    assert history.last("distance") != pytest.approx(np.linalg.norm(model - home.facts.x_star), rel=1e-2)
    same = sj.run(home, LocalSGD(0.01, K), 3, progress=False)
    np.testing.assert_array_equal(model, np.asarray(same.params))  # nothing else changed


def test_rounds_to_target_is_the_first_round_of_the_best_step_size() -> None:
    rows = [(s, r, 1.0) for s in range(2 * len(STEP_SIZES)) for r in range(4)]
    table = pd.DataFrame(rows, columns=["setting", "round", "distance"])
    table.loc[(table["setting"] == 2) & (table["round"] >= 2), "distance"] = 0.03
    table.loc[(table["setting"] == 5) & (table["round"] == 1), "distance"] = 0.04  # passing by counts
    found = figure._rounds_to_target(History(table, {}), 2 * len(STEP_SIZES))
    np.testing.assert_array_equal(found, [1, figure.MAX_ROUNDS])  # the second world never gets there


def test_trials_are_paired() -> None:
    one, other = figure.world(1.0, 3.0, 0).facts, figure.world(1.0, 6.0, 7).facts
    np.testing.assert_array_equal(one.optima, other.optima)
    assert not np.allclose(one.optima, figure.world(1.0, 3.0, 0, draw=1).facts.optima)  # type: ignore[arg-type]
    assert not np.allclose(one.hessians, figure.world(1.0, 3.0, 1).facts.hessians)  # type: ignore[arg-type]


# --- the claims of 5.1a ------------------------------------------------------------------------------------------


def test_claims_of_5_1a(cells: Cells) -> None:
    claims = judge_cells(cells)
    found = {claim.id: claim.holds for claim in claims}
    assert found.pop("labels-are-distances") is False
    assert found.pop("mean-of-optima-tau") is not False  # twelve trials need not decide it
    assert set(found.values()) == {True}, found


@pytest.mark.parametrize("name", ["smallest-where-both-are-small", "only-when-both-are-small"])
def test_reversed_labels_refute(cells: Cells, name: str) -> None:
    turned = dataclasses.replace(cells, to_optimum=cells.to_optimum[:, ::-1, ::-1])
    assert by_id(judge_cells(turned))[name].holds is False


@pytest.mark.parametrize(
    ("name", "field", "axis"),
    [
        ("grows-with-tau", "to_optimum", 2), ("grows-with-zeta", "to_optimum", 1), ("feed-each-other", "to_optimum", 1),
        ("mean-of-optima-tau", "to_mean_optimum", 2), ("mean-of-optima-zeta", "to_mean_optimum", 1),
    ],
)  # fmt: skip
def test_a_reversed_axis_refutes_and_a_shuffled_one_does_not_hold(
    cells: Cells, name: str, field: str, axis: int
) -> None:
    errors = getattr(cells, field)
    turned = dataclasses.replace(cells, **{field: np.flip(errors, axis)})
    assert by_id(judge_cells(turned))[name].holds is False
    rng = np.random.default_rng(0)
    shuffled = dataclasses.replace(cells, **{field: rng.permuted(errors, axis=axis)})
    assert by_id(judge_cells(shuffled))[name].holds is not True


def test_labels_that_were_distances_would_hold(cells: Cells) -> None:
    as_labelled = dataclasses.replace(
        cells,
        mean_distances=np.tile(np.array(cells.mean_spreads, float), (cells.num_trials, 1)),
        optima_distances=np.array(cells.optima_spreads, float),
    )
    assert by_id(judge_cells(as_labelled))["labels-are-distances"].holds is True


# --- the claims of 5.1b ------------------------------------------------------------------------------------------


def test_claims_of_5_1b(rounds: Rounds) -> None:
    found = {claim.id: claim.holds for claim in judge_rounds(rounds)}
    assert found["grows-to-6"] is True and found["clients-stay-as-hard"] is True
    assert found["conditioning-stays"] is False
    assert found["monotone-to-the-optimum"] is not True
    assert found["monotone-as-printed"] is not False and found["flat-beyond-7"] is not False  # eight trials are few


def synthetic(curve: Any, spread: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.asarray(curve, float) + spread * rng.standard_normal((20, len(curve)))


def made(to_optimum: Any, to_mean: Any = None, other: Any = None) -> Rounds:
    up = synthetic(to_optimum)
    constant = np.full(up.shape, 26.0)
    mean = up if to_mean is None else synthetic(to_mean)
    draws = np.zeros((0, *up.shape)) if other is None else synthetic(other)[None]
    return Rounds(range(11), up, mean, draws, constant, constant, 0.0)


UP, HUMP = 5 * np.arange(11), np.minimum(5 * np.arange(11), 30)


def test_each_judge_of_5_1b_can_say_yes_and_no() -> None:
    growing = by_id(judge_rounds(made(UP, UP, UP)))
    assert {name: claim.holds for name, claim in growing.items()} == {
        "grows-to-6": True, "flat-beyond-7": False, "monotone-to-the-optimum": True, "monotone-as-printed": True,
        "clients-stay-as-hard": True, "conditioning-stays": True, "grows-to-6-on-other-draws": True,
    }  # fmt: skip
    falling = by_id(judge_rounds(made(UP[::-1], UP[::-1], UP[::-1])))
    for name in ("grows-to-6", "monotone-to-the-optimum", "monotone-as-printed", "grows-to-6-on-other-draws"):
        assert falling[name].holds is False
    assert by_id(judge_rounds(made(HUMP)))["flat-beyond-7"].holds is True
    bent = dataclasses.replace(made(UP), client_error=1e-3, conditions=synthetic(UP))
    assert by_id(judge_rounds(bent))["clients-stay-as-hard"].holds is False
    assert by_id(judge_rounds(bent))["conditioning-stays"].holds is False
    assert "grows-to-6-on-other-draws" not in by_id(judge_rounds(made(UP)))


def test_noise_decides_nothing() -> None:
    noise = np.random.default_rng(0).standard_normal((20, 11))
    assert all_grow({"noise": noise}, 0.8)[0] is not True
    assert all_grow({"noise": noise + 0.3 * np.arange(11)}, 0.8)[0] is True
    assert all_grow({"noise": noise + 0.3 * np.arange(11), "other": noise}, 0.8)[0] is not True


def test_spearman_is_scipys() -> None:
    from scipy.stats import spearmanr

    curves = np.random.default_rng(0).integers(0, 4, (5, 9)).astype(float)
    own = [spearmanr(np.arange(9), curve).statistic for curve in curves]
    np.testing.assert_allclose(spearman(curves), own, atol=1e-12)
    np.testing.assert_array_equal(spearman(np.ones((1, 4))), [0.0])


def test_bootstrap_interval_is_about_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).standard_normal(400)
    mean, low, high = interval(values)
    assert mean == pytest.approx(values.mean())
    assert (high - low) / (2 * 1.96 * values.std() / 20) == pytest.approx(1, abs=0.1)


def test_the_full_scale_is_the_papers() -> None:
    scale = RECIPES["thesis-5.1a"].scales["full"]
    cells = len(scale["optima_spreads"]) * len(scale["mean_spreads"])
    assert (len(STEP_SIZES), len(scale["trials"]), cells) == (10, 20, 56)
    assert len(RECIPES["thesis-5.1b"].scales["full"]["trials"]) == 20
