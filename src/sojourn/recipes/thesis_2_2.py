"""Thesis, figure 2.2: two quadratics whose mean is minimised outside the segment that joins their own minimisers."""

from typing import Any

import numpy as np

from sojourn.problems.instances import proposition1
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import level_sets, lines, planar


def _carry_out(bench: Bench) -> Findings:
    pair = proposition1(2)
    numbers = list(bench.scale["num_clients"])
    fixed = {m: proposition1(m) for m in numbers}
    printed = {m: proposition1(m, regulariser=1.0) for m in numbers}
    reach = {m: float(np.linalg.norm(instance.x_star)) for m, instance in fixed.items()}
    reach_printed = {m: float(np.linalg.norm(instance.x_star)) for m, instance in printed.items()}
    claims = [_outside(pair), _grows(fixed, reach), _as_printed(reach_printed)]
    return Findings(claims, [_plane(pair), _growth(numbers, reach, reach_printed)])


def _outside(pair: Any) -> Claim:
    error = float(np.abs(pair.x_star - [-1 / 3, 1 / 3]).max())
    return Claim(
        "outside-the-segment",
        "The minimiser of (f + g)/2 is (-1/3, 1/3), off the segment from (-1, 0) to (1, 0).",
        error < 1e-12 and abs(pair.x_star[1]) > 0.3,
        f"x* = ({pair.x_star[0]:.12f}, {pair.x_star[1]:.12f}), error {error:.1e}",
        threshold="error below 1e-12",
    )


def _grows(fixed: dict[int, Any], reach: dict[int, float]) -> Claim:
    error = max(abs(reach[m] - np.sqrt(m) / 3) for m in fixed)
    own = max(abs(np.linalg.norm(instance.optima, axis=1) - 1).max() for instance in fixed.values())
    return Claim(
        "grows-with-clients",
        "Without the regularisers |x*| = sqrt(M)/3 while every |x_m*| = 1.",
        error < 1e-9 and own < 1e-12,
        f"largest error {error:.1e} over M = {', '.join(map(str, fixed))}",
        threshold="error below 1e-9",
        by="correction",
    )


def _as_printed(reach: dict[int, float]) -> Claim:
    shown = ", ".join(f"{value:.3f} (needs {np.sqrt(m) / 3:.3f}) at M = {m}" for m, value in reach.items())
    return Claim(
        "as-printed",
        "Proposition 1 as printed, with the regularisers: |x*| >= sqrt(M)/3.",
        all(value >= np.sqrt(m) / 3 - 1e-9 for m, value in reach.items()),
        f"|x*| = {shown}",
        threshold="at every M",
    )


def _plane(pair: Any) -> Figure:
    mean = pair.hessians.mean(axis=0)
    layers = [
        level_sets(pair.optima[0], pair.hessians[0], "f", [0.1, 0.5, 1.5, 3]),
        level_sets(pair.optima[1], pair.hessians[1], "g", [0.1, 0.5, 1.5, 3]),
        level_sets(pair.x_star, mean, "(f + g)/2", [0.1, 0.5, 1.5, 3]),
    ]
    points = [("f", pair.optima[0]), ("g", pair.optima[1]), ("(f + g)/2", pair.x_star)]
    spec = planar(layers, points, segment=(pair.optima[0], pair.optima[1]))
    note = "Level sets and minimisers. The dashed segment joins the minimisers of f and g."
    return Figure("Two clients and their mean", spec, note, ("outside-the-segment",))


def _growth(numbers: list[int], reach: dict[int, float], printed: dict[int, float]) -> Figure:
    rows = [{"x": m, "y": reach[m], "line": "corrected"} for m in numbers]
    rows += [{"x": m, "y": printed[m], "line": "as printed"} for m in numbers]
    rows += [{"x": m, "y": float(np.sqrt(m) / 3), "line": "sqrt(M)/3"} for m in numbers]
    spec = lines(rows, x="number of clients M", y="|x*|", log_x=True, log_y=True, dashed=("sqrt(M)/3",))
    note = "Every client's own optimum has norm 1."
    return Figure("How far the joint optimum lies out", spec, note, ("grows-with-clients", "as-printed"))


RECIPE = Recipe(
    name="thesis-2.2",
    title="The optimum of the mean can lie far outside the clients' optima",
    source="thesis, figure 2.2 and proposition 1",
    about="Two quadratics on a plane with b = 1, then the construction for M clients, solved exactly.",
    scales={"quick": {"num_clients": (2, 4, 8, 16, 64)}, "full": {"num_clients": (2, 4, 8, 16, 64, 256)}},
    carry_out=_carry_out,
)
