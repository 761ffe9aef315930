"""The recipes of figures 4.1, 4.2, 4.3 and D.1: their verdicts, and that each claim can come out the other way."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sojourn.algorithms.local_sgd import LocalSGD
from sojourn.problems import caps
from sojourn.recipes import fixed_points, thesis_4_1, thesis_4_2, thesis_4_3, thesis_d_1
from sojourn.recipes.base import Bench, Claim, Recipe
from sojourn.recipes.fixed_points import draw_clients, falls, path

SCALES: dict[str, dict[str, Any]] = {
    "thesis-4.1": {"problems": 5, "simulated": 2, "steps": (1, 3), "outer": (1.0, 1.9), "rounds": 2000},
    "thesis-4.2": {"problems": 3, "last": 200, "points": 6},
    "thesis-4.3": {"problems": 4},
    "thesis-d.1": {"seeds": 3, "points": 2000, "clients": (20, 200, 1000), "drawings": 6},
}
Patch = pytest.MonkeyPatch


def judge(recipe: Recipe) -> dict[str, Claim]:
    """The claims at a scale that is small, by id."""
    findings = recipe.carry_out(Bench(SCALES[recipe.name], progress=False))
    shown = {i for figure in findings.figures for i in figure.claims}
    assert shown <= {claim.id for claim in findings.claims}
    return {claim.id: claim for claim in findings.claims}


# --- random clients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_spectra", [False, True])
def test_clients_are_as_the_caption_says(own_spectra: bool) -> None:
    for seed in range(5):
        clients = draw_clients(seed, own_spectra=own_spectra)
        values = np.linalg.eigvalsh(clients.hessians)
        assert values.shape == (5, 2)
        np.testing.assert_allclose([values.min(), values.max()], [1, 6], rtol=1e-12)
        assert (np.ptp(values, axis=0).max() > 0.1) == own_spectra
        assert np.abs(clients.optima).max() <= 2
    same, other = draw_clients(3, own_spectra=own_spectra), draw_clients(4, own_spectra=own_spectra)
    np.testing.assert_array_equal(same.optima, draw_clients(3, own_spectra=own_spectra).optima)
    assert not np.allclose(same.optima, other.optima)


def test_a_path_is_where_rounds_of_local_steps_end() -> None:
    clients = draw_clients(0)
    ends = path(clients, lambda steps: 0.3 / (6 * steps), (2, 7))
    for end, k in zip(ends, (2, 7), strict=True):
        x = np.zeros(2)
        for _ in range(2000):
            y = np.tile(x, (5, 1))
            for _ in range(k):
                y = y - 0.3 / (6 * k) * np.einsum("mij,mj->mi", clients.hessians, y - clients.optima)
            x = y.mean(axis=0)
        np.testing.assert_allclose(x, end, atol=1e-10)


def test_falling_is_by_at_least_so_much() -> None:
    still = np.ones(3)
    assert falls(still) and not falls(still, by=1e-9)
    assert falls(np.array([3.0, 2.0, 1.0]), by=0.9) and not falls(np.array([3.0, 2.0, 2.5]))


# --- figure 4.1 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated() -> Any:
    scale = SCALES["thesis-4.1"]
    return thesis_4_1._simulate(
        Bench(scale, progress=False), [draw_clients(seed) for seed in range(scale["simulated"])]
    )


@pytest.fixture
def fast(monkeypatch: Patch, simulated: Any) -> Iterator[None]:
    """The simulation as it was carried out once."""
    monkeypatch.setattr(thesis_4_1, "_simulate", lambda *_: simulated)
    yield


def test_figure_4_1(fast: None) -> None:
    claims = judge(thesis_4_1.RECIPE)
    assert {i: c.holds for i, c in claims.items()} == dict.fromkeys(
        ["one-step", "closed-form", "any-outer-step", "towards-the-mean", "own-spectra", "one-curve", "limits"], True
    )
    assert "of 5 random problems are monotone" in claims["own-spectra"].evidence
    assert claims["own-spectra"].by == claims["one-curve"].by == "check"
    assert claims["limits"].by == "correction"


def one_step_more(**numbers: Any) -> Any:
    return TRUE_FIXED_POINT(**{**numbers, "num_local_steps": numbers["num_local_steps"] + 1})


def only_the_optimum(**numbers: Any) -> Any:
    return TRUE_FIXED_POINT(**{**numbers, "num_local_steps": 1})


TRUE_FIXED_POINT = fixed_points.local_sgd_fixed_point


@pytest.mark.parametrize(
    ("wrong", "refuted"),
    [
        (one_step_more, {"one-step", "closed-form", "one-curve"}),
        (only_the_optimum, {"closed-form", "towards-the-mean", "one-curve", "limits"}),
    ],
)
def test_figure_4_1_tells_a_wrong_fixed_point(
    wrong: Callable[..., Any], refuted: set[str], fast: None, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(fixed_points, "local_sgd_fixed_point", wrong)
    assert {i for i, claim in judge(thesis_4_1.RECIPE).items() if claim.holds is False} == refuted


def test_figure_4_1_tells_clients_of_one_kind_from_the_other(fast: None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(thesis_4_1, "draw_clients", lambda seed, own_spectra=False: draw_clients(seed))
    assert judge(thesis_4_1.RECIPE)["own-spectra"].holds is False
    monkeypatch.setattr(
        thesis_4_1, "draw_clients", lambda seed, own_spectra=False: draw_clients(seed, own_spectra=True)
    )
    claims = judge(thesis_4_1.RECIPE)
    assert claims["towards-the-mean"].holds is False and claims["one-curve"].holds is False


def test_figure_4_1_tells_a_limit_that_is_not_reached(fast: None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(thesis_4_1, "_MANY", 20)
    assert judge(thesis_4_1.RECIPE)["limits"].holds is False


def test_figure_4_1_tells_ends_that_depend_on_the_outer_step(monkeypatch: Patch) -> None:
    def drifting(step_size: float, num_local_steps: int, outer_step_size: float) -> LocalSGD:
        return LocalSGD(
            step_size=step_size / outer_step_size, num_local_steps=num_local_steps, outer_step_size=outer_step_size
        )

    monkeypatch.setattr(thesis_4_1, "LocalSGD", drifting)
    bench = Bench({**SCALES["thesis-4.1"], "simulated": 1, "steps": (3,)}, progress=False)
    _, ends = thesis_4_1._simulate(bench, [draw_clients(0)])
    assert thesis_4_1._outer_step(ends).holds is False
    assert thesis_4_1._outer_step([row for row in ends if row["outer"] == 1.0]).holds is False  # nothing to compare


# --- figure 4.2 --------------------------------------------------------------------------------------------------


def test_figure_4_2() -> None:
    claims = judge(thesis_4_2.RECIPE)
    assert [i for i, claim in claims.items() if claim.holds is not True] == ["threshold", "remark-22"]
    assert {i for i, claim in claims.items() if claim.by == "correction"} == {"lemma-4-proven", "remark-22-corrected"}
    assert "1.9269 for 0.9/(HK)" in claims["remark-22"].evidence


@pytest.mark.parametrize(
    ("name", "schedule", "refuted"),
    [
        ("0.9/(HK^0.75)", (0.9, 1.0), {"to-the-mean", "remark-22-corrected"}),
        ("0.9/(HK^1.25)", (0.9, 1.0), {"to-the-optimum"}),
        ("0.9/(HK)", (0.9, 0.9), {"between", "remark-22-corrected"}),
        ("0.9/(HK)", (0.9, 1.1), {"between", "remark-22-corrected"}),
    ],
)
def test_figure_4_2_tells_another_schedule(
    name: str, schedule: tuple[float, float], refuted: set[str], monkeypatch: Patch
) -> None:
    monkeypatch.setitem(thesis_4_2.SCHEDULES, name, schedule)
    failed = {i for i, claim in judge(thesis_4_2.RECIPE).items() if claim.holds is False}
    assert failed - {"threshold", "remark-22"} == refuted


def test_figure_4_2_tells_a_bound_that_is_too_low_or_another_limit(monkeypatch: Patch) -> None:
    low = lambda bound: lambda *facts, **numbers: 0.01 * bound(*facts, **numbers)  # noqa: E731
    monkeypatch.setattr(thesis_4_2, "lemma_4_rigorous", low(thesis_4_2.lemma_4_rigorous))
    assert [c.holds for c in _bounds()] == [True, False]
    monkeypatch.setattr(thesis_4_2, "lemma_4", low(thesis_4_2.lemma_4))
    assert [c.holds for c in _bounds()] == [False, False]
    monkeypatch.setattr(thesis_4_2, "lemma_4", lambda facts, **_: 2 * facts.hessian_heterogeneity * np.ones(1))
    monkeypatch.setattr(thesis_4_2, "_unit", lambda clients: clients.facts.hessian_heterogeneity)
    assert [c.holds for c in thesis_4_2._remark([draw_clients(0)])] == [True, False]  # as the remark would have it


def _bounds() -> list[Claim]:
    steps, problems = [1, 2, 10, 100], [draw_clients(0)]
    paths = {name: [path(problems[0], thesis_4_2._step_size(name), steps)] for name in thesis_4_2.SCHEDULES}
    return thesis_4_2._lemma(paths, problems, steps)


def test_the_threshold_would_hold_if_the_fixed_points_were_where_the_caption_says(monkeypatch: Patch) -> None:
    def captioned(clients: Any, step_size: Callable[[float], float], steps: Any) -> np.ndarray:
        [k] = steps
        return np.array([clients.mean_optimum if step_size(k) > 1 / (6 * k) else clients.x_star])

    assert thesis_4_2._threshold([draw_clients(0)]).holds is False
    monkeypatch.setattr(thesis_4_2, "path", captioned)
    assert thesis_4_2._threshold([draw_clients(0)]).holds is True


# --- figure 4.3 --------------------------------------------------------------------------------------------------


def test_figure_4_3() -> None:
    claims = judge(thesis_4_3.RECIPE)
    assert {i: c.holds for i, c in claims.items()} == dict.fromkeys(
        ["weight-falls", "distance-falls", "uniform-limit", "large-enough-step"], True
    )


def test_the_weight_is_that_of_the_outlier_in_the_fixed_point() -> None:
    """Against the matrices C^-1 C_m / M, built step by step."""
    clients, eta = thesis_4_3._draw(0), 0.009
    for k in (1, 10):
        c = np.eye(2) - np.stack([np.linalg.matrix_power(np.eye(2) - eta * a, k) for a in clients.hessians])
        expected = np.linalg.norm(np.linalg.solve(c.mean(axis=0), c[-1] / 5), 2)
        np.testing.assert_allclose(thesis_4_3._weights(clients, lambda _: eta, [k]), [expected], rtol=1e-9)


def test_figure_4_3_tells_a_step_that_is_too_small_and_one_that_is_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(thesis_4_3, "_falling", thesis_4_3._constant)
    assert judge(thesis_4_3.RECIPE)["large-enough-step"].holds is False
    monkeypatch.setattr(thesis_4_3, "_constant", lambda steps: 0.9 / (100 * steps**2))
    claims = judge(thesis_4_3.RECIPE)
    assert {i for i, c in claims.items() if c.holds is False} >= {"weight-falls", "distance-falls", "uniform-limit"}


# --- figure D.1 --------------------------------------------------------------------------------------------------


def test_figure_d_1() -> None:
    claims = judge(thesis_d_1.RECIPE)
    assert [i for i, claim in claims.items() if claim.holds is not True] == ["largest-distance"]
    assert claims["largest-distance"].holds is False and claims["distance-at-most"].by == "correction"


def uniform_angles(axis: np.ndarray, half_angle: float, num_points: int, rng: np.random.Generator) -> np.ndarray:
    """Too many points near the axis."""
    points = caps.sample_cap(axis, half_angle, num_points, rng)
    across = points - np.outer(points @ axis, axis)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    angles = rng.uniform(0, half_angle, num_points)[:, None]
    return np.asarray(np.cos(angles) * axis + np.sin(angles) * across)


def wider(axis: np.ndarray, half_angle: float, num_points: int, rng: np.random.Generator) -> np.ndarray:
    return caps.sample_cap(axis, min(1.2 * half_angle, np.pi), num_points, rng)


def on_one_side(axis: np.ndarray, half_angle: float, num_points: int, rng: np.random.Generator) -> np.ndarray:
    points = caps.sample_cap(axis, half_angle, num_points, rng)
    along = np.outer(points @ axis, axis)
    return np.asarray(along + np.where(points[:, :1] < along[:, :1], -1, 1) * (points - along))


def with_two_at_the_rim(axis: np.ndarray, half_angle: float, num_points: int, rng: np.random.Generator) -> np.ndarray:
    points = caps.sample_cap(axis, half_angle, num_points, rng)
    across = points[0] - (points[0] @ axis) * axis
    across /= np.linalg.norm(across)
    points[0], points[1] = (np.cos(half_angle) * axis + s * np.sin(half_angle) * across for s in (1, -1))
    return points


@pytest.mark.parametrize(
    ("wrong", "claim", "verdict"),
    [
        (uniform_angles, "angle-density", False),
        (wider, "inside-the-cap", False),
        (wider, "distance-at-most", False),
        (on_one_side, "around-the-axis", False),
        (on_one_side, "angle-density", True),
        (with_two_at_the_rim, "largest-distance", True),
        (with_two_at_the_rim, "distance-at-most", False),
    ],
)
def test_figure_d_1_tells_another_sampler(
    wrong: Callable[..., np.ndarray], claim: str, verdict: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(thesis_d_1, "sample_cap", wrong)
    assert judge(thesis_d_1.RECIPE)[claim].holds is verdict


def test_a_test_that_is_close_or_has_few_points_decides_nothing(monkeypatch: Patch) -> None:
    drawn = [thesis_d_1._draw(5, 0.5, 30, seed) for seed in range(3)]
    samples = [(x.angles, thesis_d_1._angle_law(0.5, 5), (5, 0.5)) for x in drawn]
    assert thesis_d_1._fits("a", "b", samples, 3).holds is None  # thirty points do not bound the deviation
    many = [(thesis_d_1._draw(5, 0.5, 4000, s).angles, thesis_d_1._angle_law(0.5, 5), (5, 0.5)) for s in range(3)]
    assert thesis_d_1._fits("a", "b", many, 3).holds is True
    monkeypatch.setattr(thesis_d_1, "_FITS", 1.0)
    assert thesis_d_1._fits("a", "b", many, 3).holds is None
