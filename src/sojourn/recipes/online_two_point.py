"""Theorems 20 and 21 and corollary 1: two values per step beat one, and local steps are free where machines agree."""

from typing import Any

import numpy as np

from sojourn.online import Adaptive, Cone, FedOSGD, FedPOSGD, TwoPointOGD
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, above, within
from sojourn.recipes.regret import crossing, curves, near_to, regrets, slope_claim
from sojourn.recipes.trends import all_hold
from sojourn.theory.online import corollary_1_local_steps, theorem_20_step_size, two_point_step_size

TWO, ONE, ALONE, PRINTED = "FedOSGD", "FedPOSGD", "two-point OGD alone", "FedOSGD, printed step"
LINEAR = {"dimension": 16, "num_machines": 4}  # of the games about heterogeneity
PULL = 0.6  # of G, is the same for all zeta-hat up to 0.8 G
NEAR = 1e-3  # delta / B where its cost should not count


def _games(scale: Any) -> dict[Any, dict[str, Any]]:
    T, seeds, K, M = scale["steps"], scale["seeds"], scale["num_local_steps"], scale["many"]
    base: dict[str, Any] = {"steps": T, "seeds": seeds}
    games: dict[Any, dict[str, Any]] = {}
    for d in scale["dimensions"]:
        for name, kind in ((TWO, FedOSGD), (ONE, FedPOSGD)):
            games["linear", name, d] = {
                "stream": Adaptive(d, memory=20.0, target=1.0), "method": kind(), "num_machines": 4,
                "num_local_steps": 4, **base,
            }  # fmt: skip
    for machines in scale["machines"]:
        games["machines", machines] = {
            "stream": Cone(64, target=1.0), "method": FedOSGD(exploration=NEAR), "num_machines": machines, **base,
        }  # fmt: skip
    for d in scale["crossing"]:
        numbers = {"num_local_steps": K, "steps": T, "num_clients": M, "dimension": d, "lipschitz": 1.0, "radius": 1.0}
        cone: dict[str, Any] = {"stream": Cone(d, target=1.0), "num_machines": M, "num_local_steps": K, **base}
        for name, step in ((TWO, two_point_step_size), (PRINTED, theorem_20_step_size)):
            games["cross", name, d] = {**cone, "method": FedOSGD(step_size=step(**numbers), exploration=NEAR)}
        games["cross", ALONE, d] = {**cone, "method": TwoPointOGD(exploration=NEAR)}
    for zeta in scale["heterogeneities"]:
        for steps in {1, *scale["local_steps"]}:
            games["apart", zeta, steps] = {
                "stream": Adaptive(LINEAR["dimension"], heterogeneity=zeta, target=1.0, pull=PULL), "method": FedOSGD(),
                "num_machines": LINEAR["num_machines"], "num_local_steps": steps, **base,
            }  # fmt: skip
    return games


def judge(found: Any, scale: Any) -> list[Claim]:
    dims, cross, K, n = scale["dimensions"], scale["crossing"], scale["num_local_steps"], len(scale["seeds"])
    better = {d: above(np.log(found["linear", ONE, d] / found["linear", TWO, d]), 0.0) for d in dims}
    gain = lambda name, d: above(np.log(found["cross", ALONE, d] / found["cross", name, d]), 0.0)  # noqa: E731
    sharper = lambda d: np.log(found["cross", PRINTED, d] / found["cross", TWO, d])  # noqa: E731
    square = max(cross)  # at least K^2
    crossed = {
        name: crossing(cross, [found["cross", name, d] for d in cross], [found["cross", ALONE, d] for d in cross])
        for name in (PRINTED, TWO)
    }
    said = {name: f"d = {d:.2f} (95% interval {low:.2f} to {high:.2f})" for name, (d, low, high) in crossed.items()}
    early = min(d for d in cross if d >= 4 * K)
    rule = "log ratio of regrets, paired seeds, t-interval"
    return [
        Claim("two-beat-one", "Two values beat one at every dimension.",
              all_hold(*(holds for holds, _ in better.values())),
              "; ".join(f"d = {d}: {text}" for d, (_, text) in better.items()), rule, "above 0", n),
        slope_claim("dimension-two", "With two values regret grows like sqrt d.", dims,
                    [found["linear", TWO, d] for d in dims], 0.35, 0.65, of="d"),
        slope_claim("dimension-one", "With one value it grows like d.", dims,
                    [found["linear", ONE, d] for d in dims], 0.75, 1.1, of="d"),
        slope_claim("root-of-machines", "With K = 1 and d = 64 FedOSGD's regret falls like M^(-1/2).",
                    scale["machines"], [found["machines", M] for M in scale["machines"]], -0.6, -0.4),
        Claim("gain-from-k-squared", f"From d = K^2 on FedOSGD with theorem 20's step beats the baseline alone (K = "
              f"{K}, d = {square}).", gain(PRINTED, square)[0], gain(PRINTED, square)[1], rule, "above 0", n),
        Claim("crossover-k-squared", f"They cross near d = K^2 = {K * K}, where theorem 20's rate is the baseline's.",
              near_to(K * K, *crossed[PRINTED][1:]), f"with the printed step {said[PRINTED]}",
              "interpolated crossing, bootstrap interval", "within a factor of 2", n),
        Claim("crossover-k", f"With the sharpened step they cross near d = K = {K}.", near_to(K, *crossed[TWO][1:]),
              f"with the sharpened step {said[TWO]}", "interpolated crossing, bootstrap interval",
              "within a factor of 2", n, "correction"),
        Claim("gain-earlier", f"The sharpened bound: with its step it does from d = c K on, here at d = {early} < K^2 "
              f"= {K * K}, and does not at d = {cross[0]}.",
              all_hold(gain(TWO, early)[0], _reversed(gain(TWO, cross[0])[0])),
              f"d = {early}: {gain(TWO, early)[1]}; d = {cross[0]}: {gain(TWO, cross[0])[1]}", rule,
              "above 0, and below 0", n, "correction"),
        Claim("sharper-step", "At every dimension the sharpened step is at least as good as the printed one.",
              all_hold(*(above(sharper(d), -0.02)[0] for d in cross)),
              "; ".join(f"d = {d}: {above(sharper(d), 0.0)[1]}" for d in cross),
              rule, "above -0.02", n, "check"),
        *_judge_heterogeneity(found, scale),
    ]  # fmt: skip


def _reversed(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


def _judge_heterogeneity(found: Any, scale: Any) -> list[Claim]:
    zetas, steps, n = scale["heterogeneities"], max(scale["local_steps"]), len(scale["seeds"])
    none, small, most = zetas[0], scale["small"], zetas[-1]
    more = lambda zeta: above(found["apart", zeta, steps] - found["apart", none, steps], 0.0)  # noqa: E731
    grows, text = more(most)
    means = ", ".join(f"{found['apart', z, steps].mean():.4g} at {z:g} G" for z in zetas)
    ratio = lambda zeta: np.log(found["apart", zeta, steps] / found["apart", zeta, 1])  # noqa: E731
    free, costs = within(ratio(none), 0.1), above(ratio(most), 0.1)
    number = {"num_clients": LINEAR["num_machines"], "dimension": LINEAR["dimension"], "lipschitz": 1.0}
    allowed = float(corollary_1_local_steps(**number, cost_heterogeneity=small))
    candidates = 1 / LINEAR["dimension"], LINEAR["dimension"] / LINEAR["num_machines"] ** 2
    printed = allowed * min(candidates) / max(candidates)  # the print has the one, the correction the other
    nearly = above(0.25 - ratio(small), 0.0)
    rule = f"log of regret at K = {steps} over regret at K = 1, paired seeds"
    return [
        Claim("smaller-heterogeneity", f"Regret with {steps} local steps is less at zeta-hat = 0 than at {most:g} G.",
              grows, f"difference {text}; at {small:g} G {more(small)[1]}; {means}",
              "difference, paired seeds, t-interval", "above 0", n),
        Claim("free-without", f"With zeta-hat = 0 {steps} local steps cost nothing.", free[0],
              free[1], rule + ", t-interval", "within 0.1", n),
        Claim("not-free-with", f"With zeta-hat = {most:g} G they do.", costs[0], costs[1], rule + ", t-interval",
              "above 0.1", n),
        Claim("free-up-to", f"With zeta-hat = {small:g} G they are nearly free up to K = {allowed:g}, the corrected "
              f"number (printed: {printed:g}).", nearly[0] if steps <= allowed else None, above(ratio(small), 0.0)[1],
              rule + ", t-interval", "below 0.25", n, "correction"),
    ]  # fmt: skip


def _carry_out(bench: Bench) -> Findings:
    scale = bench.scale
    found = regrets(_games(scale))
    claims = judge(found, scale)
    dims, cross, machines, zetas = (scale[k] for k in ("dimensions", "crossing", "machines", "heterogeneities"))
    first = found["machines", machines[0]].mean()
    shown = [z if z > 0 else min(zetas[1:]) / 4 for z in zetas]  # a logarithmic axis has no 0
    figures = [
        curves(
            "One value or two, adaptive linear costs, M = K = 4", "dimension d",
            {name: (dims, [found["linear", name, d] for d in dims]) for name in (TWO, ONE)},
            ("two-beat-one", "dimension-two", "dimension-one"),
        ),
        curves(
            "Machines, d = 64, K = 1, costs G |x - c|", "machines M",
            {TWO: (machines, [found["machines", M] for M in machines])}, ("root-of-machines",),
            guides={"M^(-1/2)": (machines, [first * M**-0.5 for M in machines])},
        ),
        curves(
            f"Together or alone, M = {scale['many']}, K = {scale['num_local_steps']}, costs G |x - c|", "dimension d",
            {name: (cross, [found["cross", name, d] for d in cross]) for name in (TWO, PRINTED, ALONE)},
            ("gain-from-k-squared", "crossover-k-squared", "crossover-k", "gain-earlier", "sharper-step"),
        ),
        curves(
            "Heterogeneity and local steps, linear costs, d = 16, M = 4", "zeta-hat / G",
            {f"K = {k}": (shown, [found["apart", z, k] for z in zetas]) for k in sorted({1, *scale["local_steps"]})},
            ("smaller-heterogeneity", "free-without", "not-free-with", "free-up-to"),
            note="The leftmost point is zeta-hat = 0.",
        ),
    ]  # fmt: skip
    return Findings(claims, figures)


RECIPE = Recipe(
    name="online-two-point",
    title="Two values per step: better than one, and local steps for free",
    source="thesis, theorems 20 and 21 and corollary 1",
    about="FedOSGD with steps by theory, G = B = 1. Linear costs are an adaptive adversary's, which pushes away from a "
    "point at distance B (with 0.6 G where machines differ) and punishes how machines drifted apart; Lipschitz ones "
    "are G |x - c| with |c| = B, on which noise never stops to cost. The thesis has noise drift like K between "
    "averagings; it drifts like sqrt K (theory ledger), so that the step may be longer and the crossover with the "
    "baseline alone lies at d of the order of K.",
    scales={
        "quick": {"steps": 4096, "dimensions": (4, 8, 16, 32), "machines": (1, 2, 4, 8, 16), "crossing":
                  (2, 8, 32, 128), "many": 16, "num_local_steps": 8, "heterogeneities": (0.0, 0.125, 0.25, 0.4, 0.8),
                  "small": 0.125, "local_steps": (64,), "seeds": range(32)},
        "full": {"steps": 16384, "dimensions": (4, 8, 16, 32, 64), "machines": (1, 2, 4, 8, 16), "crossing":
                 (2, 4, 8, 16, 32, 64, 128), "many": 16, "num_local_steps": 8, "heterogeneities":
                 (0.0, 0.0625, 0.125, 0.25, 0.5, 0.8), "small": 0.125, "local_steps": (8, 64), "seeds": range(40)},
    },
    carry_out=_carry_out,
)  # fmt: skip
