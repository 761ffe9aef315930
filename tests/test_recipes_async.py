"""The recipes on asynchrony: every claim can come out either way, and tiny versions are carried out."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from sojourn.recipes import RECIPES, fedasync, stragglers
from sojourn.recipes.base import Bench
from sojourn.recipes.contest import Curves
from sojourn.recipes.fedasync import AVG, CONST, HINGE, POLY, SGD, WEIGHTINGS, Kind

SEEDS = 6
KIND = Kind("", lambda devices, seed: None)  # type: ignore[arg-type,return-value]


def course(level: float, start: float = 0.1, fall: float = 0.0, seed: int = 0, times: Any = None) -> Curves:
    """A curve that rises to a level, with a fall in its second half, and a little noise that pairs with its seed."""
    noise = np.random.default_rng(seed).normal(0, 1e-3, (SEEDS, 1))
    rise = np.linspace(start, level, 20)[None] + noise
    rise[:, 15] -= fall
    at = np.arange(20)
    return Curves("x", 0.1, "", at, at * 1.0, at * 1.0, {"test_accuracy": rise, "loss": 1 - rise}, at * 10.0,
                  np.tile(at * 1.0, (SEEDS, 1)) if times is None else times)  # fmt: skip


def panel(**changes: float) -> dict[str, bool | None]:
    """Verdicts on curves in which all claims hold, but for the changes."""
    level = {"avg": 0.80, "sgd": 0.82, "fresh": 0.82, "stale": 0.80, "stale_start": 0.0, "fall": 0.05, **changes}
    rivals = {AVG: course(level["avg"]), SGD: course(level["sgd"], seed=1)}
    found = {}
    for mixing in (0.6, 0.9):
        for number, weighting in enumerate(WEIGHTINGS):
            found[weighting, 4, mixing] = course(level["fresh"], seed=0 if weighting != POLY else 2)
            fall = level["fall"] if weighting == CONST else 0.0
            found[weighting, 16, mixing] = course(level["stale"], level["stale_start"], fall, seed=3 + number)
    if changes.get("differ"):
        found[HINGE, 4, 0.6] = course(level["fresh"], seed=9)
    return {claim.id: claim.holds for claim in fedasync.judge(KIND, rivals, found, 4.0)}


def test_all_claims_of_a_panel_can_hold() -> None:
    assert all(panel().values()), panel()


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"fresh": 0.70}, "not-below-fedavg"),
        ({"sgd": 0.95}, "close-to-sgd"),
        ({"differ": 1}, "const-is-hinge"),
        ({"stale_start": 0.5}, "slower-when-stale"),
        ({"stale": 0.60}, "stale-not-far-below-fedavg"),
        ({"fall": 0.0}, "adaptive-is-steadier"),
    ],
)
def test_each_claim_of_a_panel_can_fail(change: dict[str, float], claim: str) -> None:
    found = panel(**change)
    assert found[claim] is not True and sum(verdict is not True for verdict in found.values()) <= 2


def test_a_claim_that_the_numbers_rule_out_is_not_made() -> None:
    """Const and Hinge only coincide where no staleness exceeds the threshold."""
    rivals = {AVG: course(0.8), SGD: course(0.8)}
    found = {(w, s, 0.6): course(0.8) for w in WEIGHTINGS for s in (4, 16)}
    assert "const-is-hinge" not in {claim.id for claim in fedasync.judge(KIND, rivals, found, 2.0)}


def ends(value: float, seed: int = 0) -> np.ndarray:
    return value + np.random.default_rng(seed).normal(0, 1e-3, SEEDS)


def test_staleness_is_judged_in_both_directions() -> None:
    level = {CONST: lambda s: 0.9 - 0.004 * s, POLY: lambda s: 0.9 - 0.002 * s, HINGE: lambda s: 0.9 - 0.0021 * s}
    good = {(w, s): ends(level[w](s), s) for w in WEIGHTINGS for s in (4, 12, 20)}
    assert all(claim.holds for claim in fedasync.judge_staleness(good))
    for wrong, claim in (
        ({(CONST, 20): ends(0.95, 20)}, "falls-with-staleness"),
        ({(CONST, 20): ends(0.6, 20)}, "modest-loss"),
        ({(POLY, 12): ends(0.7, 12)}, "adaptive-not-below"),
        ({(w, 20): good[CONST, 20] for w in (POLY, HINGE)}, "gap-widens"),
        ({(HINGE, 4): ends(0.8, 4)}, "hinge-is-poly"),
    ):
        verdicts = {c.id: c.holds for c in fedasync.judge_staleness({**good, **wrong})}
        assert verdicts[claim] is not True, claim


def test_tails_are_judged_in_both_directions() -> None:
    there = lambda value, reached=True: (ends(value), np.full(SEEDS, reached))  # noqa: E731
    times = {
        5.0: {"FedAvg": there(100.0), "FedAsync": there(80.0), "FedBuff": there(90.0)},
        1.2: {"FedAvg": there(400.0), "FedAsync": there(100.0), "FedBuff": there(110.0)},
    }
    assert all(claim.holds for claim in stragglers.judge(times, 0.8))
    slow = {**times, 1.2: {**times[1.2], "FedAsync": there(500.0)}}
    verdicts = {claim.id: claim.holds for claim in stragglers.judge(slow, 0.8)}
    assert verdicts["fedasync-sooner"] is False and verdicts["fedasync-gains-with-the-tail"] is False
    assert verdicts["fedbuff-sooner"]
    never = {**times, 1.2: {**times[1.2], "FedAvg": there(400.0, False)}}
    assert all(c.holds for c in stragglers.judge(never, 0.8)), "FedAvg takes longer still"
    lost = {**times, 1.2: {**times[1.2], "FedBuff": there(110.0, False)}}
    assert {c.holds for c in stragglers.judge(lost, 0.8) if "fedbuff" in c.id} == {None}, "not decided"


def test_the_time_to_an_accuracy_is_the_first_evaluation_that_has_it() -> None:
    curve = course(0.9, 0.0)
    found, reached = stragglers.time_to(curve, 0.5)
    first = np.argmax(curve.metrics["test_accuracy"] >= 0.5, axis=1)
    np.testing.assert_array_equal(found, curve.times[0][first])
    whole, never = stragglers.time_to(curve, 0.99)
    assert reached.all() and not never.any() and (whole == curve.times[:, -1]).all()


def test_mixing_is_judged_in_both_directions() -> None:
    def table(const: Any) -> dict[tuple[str, int, float], np.ndarray]:
        made = {}
        for a in (0.2, 0.6, 1.0):
            for s in (4, 32):
                made[CONST, s, a] = ends(const(s, a), int(10 * a) + s)
                for w in (POLY, HINGE):
                    made[w, s, a] = ends(0.8 + 0.01 * a, int(10 * a) + s + 1)
        return made

    good = table(lambda s, a: 0.8 + (0.1 * a if s == 4 else -0.2 * a))
    assert all(claim.holds for claim in stragglers.judge_mixing(good))
    assert not any(claim.holds for claim in stragglers.judge_mixing(table(lambda s, a: 0.85)))


TINY = {
    "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [8]}, "devices": 12, "batch_size": 5,
    "num_local_steps": 2, "seeds": range(2), "evaluations": 4, "gradients": 240, "staleness": (2, 6), "step_size": 0.1,
    "proximal_weight": 0.01, "threshold": 2.0, "mixings": (0.5,),
}  # fmt: skip


def test_a_tiny_figure_2_is_carried_out() -> None:
    scale = {**TINY, "splits": fedasync.SPLITS[:1]}
    findings = RECIPES["fedasync-2"].carry_out(Bench(scale, progress=False))
    exact = next(claim for claim in findings.claims if claim.id == "const-is-hinge")
    assert exact.holds, exact.evidence
    (table, *_) = findings.tables
    assert len(table.rows) == 8 and len({row[-1] for row in table.rows}) >= 2


def test_tiny_tails_and_alphas_are_carried_out() -> None:
    scale = {
        **TINY, "concentration": 1.0, "cohort": 4, "buffer_size": 4, "accuracy": 0.2, "step_sizes": (0.1,),
        "tuning_seeds": (1000,), "tails": (3.0, 1.3), "rounds": 10,
    }  # fmt: skip
    tails = RECIPES["straggler-tails"].carry_out(Bench(scale, progress=False))
    assert len(tails.claims) == 4 and len(tails.figures) == 2
    alphas = RECIPES["fedasync-alpha"].carry_out(Bench({**scale, "mixings": (0.3, 0.9)}, progress=False))
    assert len(alphas.claims) == 3


def test_scores_of_perplexities_are_logarithms() -> None:
    kind = Kind("", lambda devices, seed: None, "test_perplexity")  # type: ignore[arg-type,return-value]
    made = dataclasses.replace(course(0.9), metrics={"test_perplexity": np.full((SEEDS, 20), np.e)})
    np.testing.assert_allclose(kind.score(made), -1.0)
    np.testing.assert_allclose(kind.drawdown(made), 0.0)
