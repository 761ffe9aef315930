"""Thesis, figure 4.2: where the fixed point of local GD goes as the number of local steps grows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import lines
from sojourn.recipes.fixed_points import SMOOTHNESS, Clients, distances, draw_clients, falls, path
from sojourn.theory.identities import fixed_point_limit
from sojourn.theory.quadratics import lemma_4, lemma_4_rigorous

# Step sizes: share / (H K^power). The first three have eta K -> infinity, the last three eta K -> 0.
SCHEDULES = {
    "0.5/H": (0.5, 0.0), "0.9/(HK^0.5)": (0.9, 0.5), "0.9/(HK^0.75)": (0.9, 0.75), "0.9/(HK)": (0.9, 1.0),
    "0.9/(HK^1.25)": (0.9, 1.25), "0.9/(HK^1.5)": (0.9, 1.5), "0.9/(HK^2)": (0.9, 2.0),
}  # fmt: skip
LONG, BETWEEN, SHORT = list(SCHEDULES)[:3], list(SCHEDULES)[3], list(SCHEDULES)[4:]
_MANY = 10**12  # local steps, where the slowest schedule is within 1e-3 of its limit


def _carry_out(bench: Bench) -> Findings:
    problems = [draw_clients(seed) for seed in range(bench.scale["problems"])]
    last = bench.scale["last"]
    steps = sorted({*range(1, 11), *np.geomspace(10, last, bench.scale["points"]).round().astype(int).tolist()})
    paths = {name: [path(c, _step_size(name), steps) for c in problems] for name in SCHEDULES}
    ends = {name: [path(c, _step_size(name), [_MANY])[0] for c in problems] for name in SCHEDULES}
    claims = [
        _to_the_mean(paths, ends, problems, steps),
        _to_the_optimum(paths, ends, problems, steps),
        _between(ends, problems),
        _threshold(problems),
        *_lemma(paths, problems, steps),
        *_remark(problems),
    ]
    return Findings(claims, [_to_hundred(problems[0]), _bounds(paths, problems[0], steps)])


def _step_size(name: str) -> Any:
    share, power = SCHEDULES[name]
    return lambda steps: share / SMOOTHNESS * steps**-power


def _to_the_mean(paths: Any, ends: Any, problems: Sequence[Clients], steps: list[int]) -> Claim:
    good = [
        all(
            falls(distances(paths[name][i], c.mean_optimum)) and falls(-distances(paths[name][i], c.x_star))
            for name in LONG
        )
        for i, c in enumerate(problems)
    ]
    left = max(_share(ends[name][i], c.mean_optimum, c) for name in LONG for i, c in enumerate(problems))
    at_last = max(_share(paths[LONG[-1]][i][-1], c.mean_optimum, c) for i, c in enumerate(problems))
    return Claim(
        "to-the-mean",
        "Step sizes above 1/(HK) with eta K -> infinity: the fixed point goes to the mean of the optima, and its "
        "distance from x* rises to |x* - mean x_m*|.",
        all(good) and left < 1e-3,
        f"monotone to K = {steps[-1]} in {sum(good)} of {len(problems)} problems for all of {', '.join(LONG)}; "
        f"{left:.1e} of the way left at K = 1e12 ({at_last:.0%} at K = {steps[-1]} for the slowest)",
        "distances to x* and to the mean of optima",
        f"monotone over {len(steps)} values of K in every problem, below 1e-3 of the way at K = 1e12",
        len(problems),
    )


def _to_the_optimum(paths: Any, ends: Any, problems: Sequence[Clients], steps: list[int]) -> Claim:
    late = steps.index(5)
    away = {name: [distances(p, c.x_star) for p, c in zip(paths[name], problems, strict=True)] for name in SHORT}
    good = [all(falls(away[name][i][late:]) for name in SHORT) for i in range(len(problems))]
    left = max(_share(ends[name][i], c.x_star, c) for name in SHORT for i, c in enumerate(problems))
    turn = max(steps[int(a.argmax())] for all_ in away.values() for a in all_)
    return Claim(
        "to-the-optimum",
        "Step sizes below 1/(HK) with eta K -> 0: the fixed point gets ever closer to x*, from K = 5 on; as K = 1 "
        "gives x* itself, it leaves x* first.",
        all(good) and left < 1e-3,
        f"falls from K = 5 to {steps[-1]} in {sum(good)} of {len(problems)} problems for all of {', '.join(SHORT)}; "
        f"farthest away at K = {turn} at the latest; {left:.1e} of |x* - mean x_m*| left at K = 1e12",
        "distance to x*",
        f"falls over {len(steps) - late} values of K in every problem, below 1e-3 of |x* - mean x_m*| at K = 1e12",
        len(problems),
    )


def _between(ends: Any, problems: Sequence[Clients]) -> Claim:
    c = SCHEDULES[BETWEEN][0] / SMOOTHNESS
    limits = [fixed_point_limit(hessians=p.hessians, optima=p.optima, c=c) for p in problems]
    error = max(float(np.linalg.norm(x - end)) for x, end in zip(limits, ends[BETWEEN], strict=True))
    away = [_share(x, p.x_star, p) for x, p in zip(ends[BETWEEN], problems, strict=True)]
    left = [_share(x, p.mean_optimum, p) for x, p in zip(ends[BETWEEN], problems, strict=True)]
    return Claim(
        "between",
        "With eta = 0.9/(HK) the fixed point goes to a point that is neither x* nor the mean of the optima, that of "
        "C_m = I - exp(-0.9 A_m / H).",
        error < 1e-8 and min(away) > 0.02 and min(left) > 0.02,
        f"{min(away):.2f} to {max(away):.2f} of |x* - mean x_m*| away from x*, {min(left):.2f} to {max(left):.2f} from "
        f"the mean; {error:.1e} from the stated limit at K = 1e12",
        "distances to x*, to the mean of optima and to the limit",
        "above 0.02 of |x* - mean x_m*|, above 0.02 of it, below 1e-8",
        len(problems),
        by="check",
    )


def _threshold(problems: Sequence[Clients]) -> Claim:
    """The caption word for word: constants on both sides of 1/(HK), at so many local steps that nothing moves."""
    share = lambda c, to: [  # noqa: E731
        _share(path(p, lambda steps: c / (SMOOTHNESS * steps), [_MANY])[0], getattr(p, to), p) for p in problems
    ]
    above, below = share(1.1, "mean_optimum"), share(0.9, "x_star")
    return Claim(
        "threshold",
        "The caption: for eta > 1/(HK) the fixed point goes to the mean of the optima, for eta < 1/(HK) it gets "
        "progressively closer to x*.",
        max(above) < 1e-3 and max(below) < 1e-3,
        f"at K = 1e12 eta = 1.1/(HK) still has {min(above):.0%} to {max(above):.0%} of the way to the mean left, and "
        f"0.9/(HK) stays {min(below):.0%} to {max(below):.0%} of it away from x*: what counts is whether eta K tends "
        "to infinity or 0, not the side of 1/(HK)",
        "distance to the stated limit as a share of |x* - mean x_m*|, at eta = 1.1/(HK) and 0.9/(HK)",
        "below 1e-3 in every problem",
        len(problems),
    )


def _lemma(paths: Any, problems: Sequence[Clients], steps: list[int]) -> list[Claim]:
    claims = []
    for key, bound, words in (
        ("lemma-4", lemma_4, "Lemma 4, as printed, is never below the distance from x* to the fixed point."),
        ("lemma-4-proven", lemma_4_rigorous, "Nor is the form of Lemma 4 that has a proof."),
    ):
        ratios = [
            distances(paths[name][i], c.x_star)[1:] / _bound(bound, name, c, steps)[1:]
            for name in SCHEDULES
            for i, c in enumerate(problems)
        ]
        start = max(float(_bound(bound, name, c, [1])[0]) for name in SCHEDULES for c in problems)
        top = float(np.max(ratios))
        loose = float(np.min([r[-1] for r in ratios]))
        claims.append(
            Claim(
                key,
                words,
                top <= 1 + 1e-9,
                f"distance / bound is at most {top:.3g} over {len(SCHEDULES)} schedules and K = 2 to {steps[-1]}, down "
                f"to {loose:.1e} at K = {steps[-1]}; at K = 1 both are 0 (bound {start:.0e})",
                "distance / bound",
                "at most 1",
                len(problems),
                by="paper" if key == "lemma-4" else "correction",
            )
        )
    return claims


def _remark(problems: Sequence[Clients]) -> list[Claim]:
    """The bound in units of tau zeta_* / mu, as K grows."""
    last = {
        name: max((float(_bound(lemma_4, name, c, [_MANY])[0]) / _unit(c) for c in problems), key=lambda b: abs(b - 2))
        for name in [*LONG, BETWEEN]
    }
    y = SCHEDULES[BETWEEN][0] / SMOOTHNESS  # eta mu K, mu = 1
    right = {**dict.fromkeys(LONG, 1.0), BETWEEN: 1 + y / np.expm1(y)}
    error = max(abs(last[name] - right[name]) for name in last)
    shown = ", ".join(f"{value:.4f} for {name}" for name, value in last.items())
    return [
        Claim(
            "remark-22",
            "Remark 22: when eta falls no faster than 1/K, the bound of Lemma 4 tends to 2 tau zeta_* / mu.",
            all(abs(value - 2) < 1e-3 for value in last.values()),
            f"in units of tau zeta_* / mu, at K = 1e12: {shown}",
            "bound / (tau zeta_* / mu)",
            "2, up to 1e-3",
            len(problems),
        ),
        Claim(
            "remark-22-corrected",
            "It tends to tau zeta_* / mu where eta K -> infinity; where eta K -> c it stays below 2 tau zeta_* / mu, "
            "at most 1 + c mu / (exp(c mu) - 1) times tau zeta_* / mu, which is its limit here.",
            error < 1e-6,
            f"largest error {error:.1e} at K = 1e12, where 0.9/(HK) has {right[BETWEEN]:.4f}",
            "bound / (tau zeta_* / mu)",
            "error below 1e-6",
            len(problems),
            by="correction",
        ),
    ]


def _share(x: np.ndarray, to: np.ndarray, clients: Clients) -> float:
    return float(np.linalg.norm(x - to)) / clients.gap


def _unit(c: Clients) -> float:
    tau, spread, mu = c.facts.hessian_heterogeneity, c.facts.optima_heterogeneity, c.facts.strong_convexity
    assert tau is not None and spread is not None and mu is not None  # quadratics know all of them
    return tau * spread / mu


def _bound(bound: Any, name: str, clients: Clients, steps: Sequence[int]) -> np.ndarray:
    k = np.asarray(steps, float)
    return np.asarray(bound(clients.facts, step_size=_step_size(name)(k), num_local_steps=k))


def _to_hundred(clients: Clients) -> Figure:
    steps = sorted({*range(2, 21), *range(22, 101, 3), 100})
    rows = [
        {"x": k, "y": float(y), "line": name}
        for name in SCHEDULES
        for k, y in zip(steps, distances(path(clients, _step_size(name), steps), clients.x_star), strict=True)
    ]
    guide = "|x* - mean x_m*|"
    rows += [{"x": k, "y": clients.gap, "line": guide} for k in (2, 100)]
    spec = lines(rows, x="local steps K", y="|x_inf - x*|", log_y=True, dashed=(guide,), points=False)
    note = "One problem. K = 1 is left out, where the distance is 0. The dashed line is how far the mean of optima is."
    return Figure("From x* to the fixed point", spec, note, ("to-the-mean", "to-the-optimum", "between", "threshold"))


def _bounds(paths: Any, clients: Clients, steps: list[int]) -> Figure:
    rows, dashed = [], []
    for name in SCHEDULES:
        away, bound = distances(paths[name][0], clients.x_star), _bound(lemma_4, name, clients, steps)
        above = f"Lemma 4, {name}"
        dashed.append(above)
        for k, y, b in list(zip(steps, away, bound, strict=True))[1:]:
            rows += [
                {"x": k, "y": float(y), "line": name, "of": name},
                {"x": k, "y": float(b), "line": above, "of": name},
            ]
    spec = lines(
        rows, x="local steps K", y="|x_inf - x*|", log_x=True, log_y=True, dashed=dashed, points=False
    )  # fmt: skip
    note = "The same problem to larger K (solid), and the bound of Lemma 4 for the same step sizes (dashed)."
    ids = ("lemma-4", "lemma-4-proven", "remark-22", "remark-22-corrected")
    return Figure("Against the bound", spec, note, ids)


RECIPE = Recipe(
    name="thesis-4.2",
    title="Where the fixed point goes as local steps grow",
    source="thesis, figure 4.2",
    about="The random problems of figure 4.1, with curvatures 6 and 1 for every client. The thesis does not give its 7 "
    "step sizes: 1/(2H), and 0.9/H times K to the powers -0.5, -0.75, -1, -1.25, -1.5 and -2. The fixed points are "
    "exact; claims are judged over many problems.",
    scales={
        "quick": {"problems": 20, "last": 1000, "points": 15},
        "full": {"problems": 200, "last": 10_000, "points": 25},
    },
    carry_out=_carry_out,
)
