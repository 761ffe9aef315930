"""The recipes beyond the thesis's figures: lower-bound instances, the crossover in K, the outer step."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from sojourn.problems.instances import Instance, theorem1, theorem3, three_coordinates
from sojourn.recipes import Bench, Claim, crossover, lower_bounds, outer_step
from sojourn.recipes.crossover import MAX_ROUNDS, Rounds


def by_id(claims: Any) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def verdicts(claims: Any) -> dict[str, bool | None]:
    return {claim.id: claim.holds for claim in claims}


def slow_local_gd(instance: Instance, eta: float, num_steps: int, beta: float, rounds: int) -> float:
    """F(x_R) - F*, one gradient step after the other."""
    x = np.zeros(instance.x_star.shape)
    for _ in range(rounds):
        moved = []
        for hessian in instance.hessians:
            y = x.copy()
            for _ in range(num_steps):
                y -= eta * hessian @ (y - instance.x_star)
            moved.append(y - x)
        x = x + beta * np.mean(moved, axis=0)
    return instance.suboptimality(x)


# --- theorem-instances -------------------------------------------------------------------------------------------

ROUNDS, STEPS, TAUS = (1, 5, 40), (1, 8), (0.05, 0.4, 1.0)


@pytest.mark.parametrize(
    "instance",
    [theorem1(2, 7, 1.0, 1.0), theorem1(3, 7, 1.0, 1.0), theorem3(2, 7, 1.0, 0.3, 1.0),
     three_coordinates(1.0, 0.4, np.array([1.0, -2.0, 0.5]))],
)  # fmt: skip
def test_closed_form_is_local_gd_step_by_step(instance: Instance) -> None:
    betas = np.array([0.3, 1.0, 1.9])
    found = lower_bounds.suboptimality(instance, 0.35, 4, betas, 7)
    np.testing.assert_allclose(found, [slow_local_gd(instance, 0.35, 4, beta, 7) for beta in betas], rtol=1e-10)
    assert not np.allclose(found, [slow_local_gd(instance, 0.35, 3, beta, 7) for beta in betas], rtol=1e-3)


@pytest.mark.parametrize(("rounds", "best"), [(1, 0.0161), (100, 0.0151), (1000, 0.0150)])
def test_the_best_step_is_that_of_the_specification(rounds: int, best: float) -> None:
    assert rounds * lower_bounds.best_step(theorem1(2, rounds, 1.0, 1.0), rounds) == pytest.approx(best, abs=5e-5)


def measured() -> dict[str, Any]:
    instances = {r: theorem1(2, r, 1.0, 1.0) for r in ROUNDS}
    return {
        "instances": instances,
        "table": {(r, k): lower_bounds.best_on_grid(instances[r], k, r) for r in ROUNDS for k in STEPS},
        "exact": {r: lower_bounds.best_step(instances[r], r) for r in ROUNDS},
        "by_tau": {(r, t): lower_bounds.best_step(theorem3(2, r, 1.0, t, 1.0), r) for r in ROUNDS for t in TAUS},
    }


def test_claims_of_theorem_instances() -> None:
    scale = {"rounds": ROUNDS, "num_local_steps": STEPS, "hessian_heterogeneity": TAUS, "engine_rounds": 5}
    found = verdicts(lower_bounds.RECIPE.carry_out(Bench(scale, progress=False)).claims)
    assert found.pop("printed-floor") is False
    assert set(found.values()) == {True} and "closed-form" in found, found


def test_judges_of_theorem_instances_can_say_no_and_yes() -> None:
    given = measured()
    scaled = lambda factor, which=STEPS: {  # noqa: E731
        (r, k): dataclasses.replace(best, value=best.value * (factor if k in which else 1))
        for (r, k), best in given["table"].items()
    }
    judge = lambda **changes: verdicts(lower_bounds.judge(**{**given, **changes}))  # noqa: E731
    half = judge(table=scaled(0.5))
    assert half["floor-holds"] is False and half["flat-line"] is False and half["grid-is-fine"] is False
    assert judge(table=scaled(2.0))["flat-line"] is False
    assert judge(table=scaled(20.0))["printed-floor"] is True
    assert judge(table=scaled(0.9, which=(8,)))["no-number-of-steps-helps"] is False
    squared = {(r, tau): tau**2 / r for r in ROUNDS for tau in TAUS}
    assert judge(by_tau=squared)["proportional-to-tau"] is False


def test_the_engine_check_sees_a_wrong_closed_form() -> None:
    given, bench = measured(), Bench({"engine_rounds": 5}, progress=False)
    assert lower_bounds._engine_agrees(bench, given["instances"], given["table"]).holds is True
    wrong = {key: dataclasses.replace(best, value=best.value * (1 + 1e-6)) for key, best in given["table"].items()}
    assert lower_bounds._engine_agrees(bench, given["instances"], wrong).holds is False


# --- outer-step --------------------------------------------------------------------------------------------------


def test_claims_of_outer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    judge = outer_step.judge
    monkeypatch.setattr(outer_step, "judge", lambda *all_of: given.update(all=all_of) or judge(*all_of))
    scale = {"rounds": 12, "spacing": 0.1, "num_local_steps": (1, 8)}
    found = verdicts(outer_step.RECIPE.carry_out(Bench(scale, progress=False)).claims)
    assert len(found) == 5 and set(found.values()) == {True}, found
    betas, rounds, instances, errors, anywhere = given["all"]
    beta = int(np.abs(betas - 1.5).argmin())
    slow = [slow_local_gd(instances[name], 1.0, 1, betas[beta], rounds) for name in errors]
    np.testing.assert_allclose([errors[name][beta, rounds] for name in errors], slow, rtol=1e-9)

    bad = lambda **changed: verdicts(judge(betas, rounds, instances, {**errors, **changed}, anywhere))  # noqa: E731
    crossed, rotated = errors[outer_step.CROSSED], errors[outer_step.ROTATED]
    off = bad(**{outer_step.CROSSED: crossed + 1e-9})
    assert off["two-solves-it"] is False and off["equation-2.7"] is False
    off = bad(**{outer_step.ROTATED: 0.5 * rotated})
    assert off["no-outer-step-helps"] is False and off["closed-form"] is False
    helped = rotated.copy()
    helped[-1] *= 0.0  # as if one outer step solved it
    off = bad(**{outer_step.ROTATED: helped})
    assert off["no-outer-step-helps"] is False and off["little-to-gain"] is False
    low = verdicts(judge(betas, rounds, instances, errors, 0.5 * anywhere))
    assert low["no-outer-step-helps"] is False and low["little-to-gain"] is False


def test_an_outer_step_that_diverges_is_shown_as_such() -> None:
    scale = {"rounds": 100, "spacing": 0.2, "num_local_steps": (1,)}  # rows end where a run diverged
    claims = by_id(outer_step.RECIPE.carry_out(Bench(scale, progress=False)).claims)
    assert claims["closed-form"].holds is True


# --- local-steps-crossover ---------------------------------------------------------------------------------------


def numpy_rounds(method: str, tau: float, num_steps: int, eta: float) -> int:
    """Rounds to the target without noise, retyped: Local GD, GD on the mean, and AC-SA with mu = 0 and L = 1/eta."""
    facts = crossover.world(tau).facts
    hessians, optima = np.asarray(facts.hessians), np.asarray(facts.optima)
    mean = hessians.mean(0)
    left = np.linalg.matrix_power(np.eye(4) - eta * hessians, num_steps)
    x = np.array([-0.5, 0.5, 0.5, 0.5])
    last = x
    for r in range(1, MAX_ROUNDS + 1):
        if method == "local":
            x = (optima + np.einsum("mij,mj->mi", left, x - optima)).mean(0)
        elif method == "minibatch":
            x = x - eta * mean @ x
        else:  # x is the answer x_ag, last the sequence x
            alpha, gamma = 2 / (r + 1), 4 / eta / (r * (r + 1))
            last = last - alpha / gamma * mean @ ((1 - alpha) * x + alpha * last)
            x = alpha * last + (1 - alpha) * x
        if np.linalg.norm(x) > 1e6:
            break
        if np.linalg.norm(x) <= crossover.TARGET:
            return r
    return MAX_ROUNDS


def best_rounds(method: str, tau: float, num_steps: int) -> int:
    return min(numpy_rounds(method, tau, num_steps, eta) for eta in crossover.STEP_SIZES)


def test_without_noise_the_rounds_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossover, "NOISE", 0.0)
    found = crossover.measure(
        Bench({"num_local_steps": (4,), "taus": (0.0, 1.0, 5.0), "seeds": range(2)}, progress=False)
    )
    for tau, rounds in found.by_tau.items():
        np.testing.assert_array_equal(rounds, [[best_rounds("local", tau, 4)]])
    np.testing.assert_array_equal(found.minibatch, [[best_rounds("minibatch", 0.0, 4)]])
    np.testing.assert_array_equal(found.accelerated, [[best_rounds("accelerated", 0.0, 4)]])
    assert best_rounds("local", 5.0, 4) != best_rounds("local", 5.0, 3)  # a local step less would be seen


def test_claims_of_the_crossover_without_noise() -> None:
    steps = [1, 2, 8, 16, 32, 64]
    rows = lambda method, tau: np.array([[best_rounds(method, tau, k) for k in steps]] * 2, float)  # noqa: E731
    local = {tau: rows("local", tau) for tau in (0.0, 0.5, 1.0, 5.0)}
    rounds = Rounds(steps, local, rows("minibatch", 0.0), rows("accelerated", 0.0))
    found = verdicts(crossover.judge(rounds))
    assert len(found) == 6 and set(found.values()) == {True}, found


def test_only_local_sgd_sees_tau() -> None:
    """The mean objective, the start and the noise are the same for every tau, so the baselines' runs are too."""
    near, far = crossover.world(0.0), crossover.world(5.0)
    assert far.facts.hessian_heterogeneity == pytest.approx(5.0) and near.facts.hessian_heterogeneity == 0
    pulls = []
    for home in (near, far):
        hessians, optima = np.asarray(home.facts.hessians), np.asarray(home.facts.optima)
        np.testing.assert_allclose(hessians.mean(0), np.diag(np.geomspace(1, 25, 4)), atol=1e-12)
        np.testing.assert_allclose(home.facts.x_star, 0, atol=1e-12)
        np.testing.assert_array_equal(home.x0.tree, near.x0.tree)
        np.testing.assert_array_equal(home.clients.objective.noise_root, near.clients.objective.noise_root)  # type: ignore[attr-defined]
        pulls.append(np.einsum("mij,mj->mi", hessians, optima))
        np.testing.assert_allclose(pulls[-1].mean(0), 0, atol=1e-12)
    assert np.abs(pulls[0] - pulls[1]).max() > 0.1  # the clients themselves differ
    assert far.facts.optima_heterogeneity == pytest.approx(near.facts.optima_heterogeneity)


def test_tuning_does_not_see_the_seeds_it_is_judged_on() -> None:
    runs = np.array([[5.0, 5.0, 9.0, 9.0], [6.0, 6.0, 1.0, 1.0]])  # the first step is better on the first half
    np.testing.assert_array_equal(crossover._tuned(runs), [9.0, 9.0])
    np.testing.assert_array_equal(crossover._tuned(runs[:, ::-1]), [6.0, 6.0])


IDEAL = np.array([32.0, 2.0, 1.0])
FLAT = np.array([32.0, 90.0, 92.0])


def made(
    shared: Any = IDEAL, small: Any = IDEAL, apart: Any = FLAT, fast: Any = (13, 13, 13), slow: Any = 32
) -> Rounds:
    jitter = np.array([-0.05, 0.0, 0.05])[:, None]
    full = lambda row: np.broadcast_to(np.asarray(row, float), 3) + jitter  # noqa: E731
    return Rounds([1, 16, 64], {0.0: full(shared), 0.5: full(small), 5.0: full(apart)}, full(slow), full(fast))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("one-over-k", {"shared": [32, 8, 2]}),
        ("one-over-k", {"shared": [32, 1.5, 0.4]}),
        ("small-tau-keeps-it", {"small": [32, 16, 8]}),
        ("large-tau-no-gain", {"apart": [32, 16, 30]}),
        ("rounds-level-off", {"apart": [32, 60, 120]}),
        ("crossover", {"fast": [0.5, 0.5, 0.5]}),
        ("crossover", {"apart": [32, 90, 12]}),
        ("baselines-save-little", {"fast": [13, 10, 5]}),
        ("baselines-save-little", {"slow": [32, 10, 5]}),
    ],
)
def test_each_judge_of_the_crossover_can_say_no(name: str, changed: dict[str, Any]) -> None:
    assert verdicts(crossover.judge(made()))[name] is True
    assert verdicts(crossover.judge(made(**changed)))[name] is False


def test_a_cap_that_was_hit_decides_nothing_about_levelling_off() -> None:
    capped = crossover.judge(made(apart=[32, MAX_ROUNDS, MAX_ROUNDS]))
    assert by_id(capped)["rounds-level-off"].holds is None
