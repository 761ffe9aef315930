"""Recipes of online optimization: their verdicts follow the data, on made-up regrets; the pages show real ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sojourn.recipes import RECIPES, online_gradient, online_one_point, online_two_point
from sojourn.recipes.base import Bench, Claim
from sojourn.recipes.regret import crossing, near_to, slope, slope_claim

RNG = np.random.default_rng(0)


def noisy(value: float, n: int = 20, size: float = 0.01) -> np.ndarray:
    return value * np.exp(size * RNG.normal(size=n))


def test_slopes_and_their_intervals() -> None:
    x = (1, 2, 4, 8)
    value, low, high = slope(x, [noisy(3 * m**-0.5) for m in x])
    assert low < value < high and value == pytest.approx(-0.5, abs=0.01) and high - low < 0.03
    as_said = slope_claim("a", "b", x, [noisy(m**-0.5) for m in x], -0.6, -0.4)
    flat = slope_claim("a", "b", x, [noisy(1.0) for _ in x], -0.6, -0.4)
    wild = slope_claim("a", "b", x, [np.array([m**-0.1, m**-1.0] * 5) for m in x], -0.6, -0.4)
    assert (as_said.holds, flat.holds, wild.holds) == (True, False, None)
    assert "at M = 8" in as_said.evidence and as_said.seeds == 20


def test_where_curves_cross() -> None:
    dims = (2, 4, 8, 32)
    together, alone = [noisy(d**0.5) for d in dims], [noisy(d / 5**0.5) for d in dims]  # equal at d = 5
    value, low, high = crossing(dims, together, alone)
    assert low < 5 < high and value == pytest.approx(5, rel=0.05)
    assert crossing(dims, alone, [2 * a for a in alone])[0] == pytest.approx(2)  # always better
    assert crossing(dims, alone, [a / 2 for a in alone])[0] == pytest.approx(32)  # never
    assert (near_to(8, 5, 15), near_to(8, 17, 20), near_to(8, 1, 3), near_to(8, 3, 5)) == (True, False, False, None)


def carried_out(monkeypatch: pytest.MonkeyPatch, module: Any, answer: Callable[[Any, Any], float]) -> dict[str, Claim]:
    """The recipe's claims when game `key` has regrets around answer(key, game); games are made, not played."""

    def made_up(games: Any, column: str = "regret") -> dict[Any, np.ndarray]:
        return {key: noisy(answer(key, game), len(game["seeds"])) for key, game in games.items()}

    monkeypatch.setattr(module, "regrets", made_up)
    for recipe in RECIPES.values():
        if recipe.carry_out is module._carry_out:
            findings = module._carry_out(Bench(recipe.scales["quick"]))
            shown = {i for figure in findings.figures for i in figure.claims}
            assert shown <= {claim.id for claim in findings.claims}
            return {claim.id: claim for claim in findings.claims}
    raise AssertionError


def test_claims_about_gradients_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_theory(key: Any, game: Any) -> float:
        if key[0] == "smooth":
            return 0.1 / game["steps"] ** (1.0 if key[1] == 0 else 0.5)
        if key[0] == "stochastic":
            return 0.01 if key[1] == "OGD" else 0.005
        return 0.9 / game["steps"] ** 0.5

    claims = carried_out(monkeypatch, online_gradient, as_theory)
    assert claims.pop("together-as-alone").holds is False  # made-up noise differs; the real games agree exactly
    assert all(claim.holds for claim in claims.values()), [c.id for c in claims.values() if not c.holds]
    with_gain = carried_out(
        monkeypatch, online_gradient, lambda key, game: as_theory(key, game) * game["num_machines"] ** -0.5
    )
    assert with_gain["floor"].holds is False  # machines that help would be seen
    worse = carried_out(monkeypatch, online_gradient, lambda key, game: 3 * as_theory(key, game))
    assert worse["ogd-bound"].holds is False
    slow = carried_out(monkeypatch, online_gradient, lambda key, game: 0.01)
    assert slow["rate-17"].holds is slow["rate-18-exact"].holds is slow["rate-18-noise"].holds is False


def test_claims_about_one_value_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_theory(key: Any, game: Any) -> float:
        d, M, K = game["stream"].dimension, game["num_machines"], game.get("num_local_steps", 1)
        if isinstance(key, tuple) and key[0] in ("drifting", "adaptive"):
            return M**-0.5
        name = type(game["method"]).__name__
        together = max(2 * d / M**0.5, (2 * d) ** 0.5 * K**0.25)
        return {"FedPOSGD": together, "OnePointOGD": 2 * d, "SCRiBLE": 4 * d}[name] / 100

    claims = carried_out(monkeypatch, online_one_point, as_theory)
    assert {i for i, c in claims.items() if c.holds is False} >= {"gain-in-low-dimensions", "units"}
    for name in ("root-of-machines-drifting", "gain-in-high-dimensions", "crossover", "tuned-gain", "scrible"):
        assert claims[name].holds, name
    flat = carried_out(monkeypatch, online_one_point, lambda key, game: 0.1)
    assert flat["root-of-machines-adaptive"].holds is False and not flat["gain-in-high-dimensions"].holds
    assert flat["scrible"].holds is not True


def test_claims_about_two_values_follow_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_theory(key: Any, game: Any) -> float:
        d, M, K = game["stream"].dimension, game["num_machines"], game.get("num_local_steps", 1)
        if key[0] == "linear":
            return (0.5 * d**0.5 if key[1] == online_two_point.TWO else d) / 100
        if key[0] == "machines":
            return M**-0.5
        if key[0] == "cross":
            steps = {online_two_point.TWO: (d * K) ** 0.25, online_two_point.PRINTED: K**0.5 * d**0.25}
            return max(steps.get(key[1], d**0.5), (d / M) ** 0.5)
        _, zeta, steps_ = key
        return 1 + zeta**2 * steps_ / 16

    claims = carried_out(monkeypatch, online_two_point, as_theory)
    for name, where in (("crossover-k-squared", 64), ("crossover-k", 8)):
        assert float(claims[name].evidence.split("d = ")[1].split()[0]) == pytest.approx(where, rel=0.05)
    assert all(claim.holds for claim in claims.values()), [c.id for c in claims.values() if not c.holds]
    swapped = {online_two_point.TWO: online_two_point.PRINTED, online_two_point.PRINTED: online_two_point.TWO}
    renamed = lambda key: (key[0], swapped.get(key[1], key[1]), *key[2:]) if key[0] == "cross" else key  # noqa: E731
    other = carried_out(monkeypatch, online_two_point, lambda key, game: as_theory(renamed(key), game))
    assert other["crossover-k-squared"].holds is False and other["crossover-k"].holds is False
    assert other["sharper-step"].holds is False
    flat = carried_out(monkeypatch, online_two_point, lambda key, game: 0.1)
    for name in ("dimension-two", "dimension-one", "root-of-machines", "not-free-with"):
        assert flat[name].holds is False, name
    assert flat["crossover-k-squared"].holds is not True and flat["crossover-k"].holds is not True
    assert flat["gain-earlier"].holds is not True
    upside_down = carried_out(monkeypatch, online_two_point, lambda key, game: 1 / as_theory(key, game))
    assert upside_down["smaller-heterogeneity"].holds is upside_down["two-beat-one"].holds is False
