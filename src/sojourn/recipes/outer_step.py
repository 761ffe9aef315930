"""The outer step size: on two clients with crossed coordinates a step of 2 solves the problem, elsewhere none helps."""

from collections.abc import Mapping

import jax
import numpy as np

from sojourn.algorithms import LocalSGD
from sojourn.problems.instances import Instance, theorem1, two_coordinates
from sojourn.problems.quadratic import quadratic
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import lines
from sojourn.recipes.lower_bounds import RADIUS, SMOOTHNESS, STEPS, suboptimality
from sojourn.sweeping import Setting

CROSSED, ROTATED = "equation 3.8", "theorem 1"
_TINY = 1e-25  # of H B^2: zero up to rounding in float64


def judge(
    betas: np.ndarray, rounds: int, instances: Mapping[str, Instance], measured: Mapping[str, np.ndarray],
    anywhere: float,
) -> list[Claim]:  # fmt: skip
    """`measured` are suboptimalities (beta, round from 0) of the engine at eta = 1/H; `anywhere` is the best of theorem
    1's instance over inner steps and numbers of local steps too."""
    crossed, rotated = measured[CROSSED], measured[ROTATED][:, rounds]
    two, one = int(np.abs(betas - 2).argmin()), int(np.abs(betas - 1).argmin())
    x_star = instances[CROSSED].x_star
    power = (1 - np.multiply.outer(betas, np.ones(rounds + 1)) / 2) ** np.arange(
        rounds + 1
    )  # equation 2.7 at eta = 1/H
    written = SMOOTHNESS / 4 * float(x_star @ x_star) * power**2
    off = float(np.abs((crossed - written) / np.maximum(written, 1)).max())
    form = [suboptimality(instances[ROTATED], 1 / SMOOTHNESS, 1, betas, r) for r in range(rounds + 1)]
    ended = np.isfinite(measured[ROTATED])
    off_rotated = float(np.abs(measured[ROTATED][ended] / np.stack(form, axis=1)[ended] - 1).max())
    floor = float(instances[ROTATED].bound or 0.0)
    best = int(rotated.argmin())
    return [
        Claim(
            "two-solves-it", "On equation 3.8 an outer step of 2 with inner steps of 1/H ends after a single round.",
            bool(betas[two] == 2 and crossed[two, 1] < _TINY),
            f"F - F* is {crossed[two, 1]:.1e} after one round, from {crossed[two, 0]:.2f}; with beta = 1 it is "
            f"{crossed[one, 1]:.3f}", threshold=f"below {_TINY:g} H B^2",
        ),
        Claim(
            "equation-2.7", "The iterates are those of equation 2.7 for every outer step and round.",
            off < 1e-12, f"largest difference of F - F* {off:.1e}", "engine against formula", "below 1e-12",
        ),
        Claim(
            "no-outer-step-helps", "On the instance of theorem 1 no outer step gets below H B^2 / (8 (12 R + 1)), with "
            "any inner step and number of local steps.", bool(min(rotated.min(), anywhere) >= floor),
            f"{min(rotated.min(), anywhere) / floor:.3f} times the floor at best", "best over the grid",
            "at least the floor", by="correction",
        ),
        Claim(
            "little-to-gain", "There the best outer step leaves more than four fifths of what the outer step 1 leaves.",
            bool(min(rotated.min(), anywhere) > 0.8 * rotated[one]),
            f"beta = {betas[best]:.2f} leaves {rotated[best] / rotated[one]:.3f} of it, the best of all inner steps "
            f"too {anywhere / rotated[one]:.3f}; on equation 3.8 beta = 1.9 leaves "
            f"{(0.05 / 0.5) ** (2 * rounds):.0e} of it", "ratio of F - F*", "above 0.8", by="check",
        ),
        Claim(
            "closed-form", "The engine does on the instance of theorem 1 what the closed form says.",
            off_rotated < 1e-9, f"largest relative difference of F - F* {off_rotated:.1e}", "engine over formula",
            "below 1e-9", by="check",
        ),
    ]  # fmt: skip


def _carry_out(bench: Bench) -> Findings:
    rounds, betas = int(bench.scale["rounds"]), np.round(np.arange(0.1, 2.401, bench.scale["spacing"]), 6)
    instances = {
        CROSSED: two_coordinates(SMOOTHNESS, RADIUS * np.array([0.6, 0.8])),
        ROTATED: theorem1(2, rounds, SMOOTHNESS, RADIUS),
    }
    with jax.enable_x64(True):
        homes = {name: quadratic(given.hessians, given.optima) for name, given in instances.items()}
        methods = [LocalSGD(1 / SMOOTHNESS, 1, float(beta)) for beta in betas]
        settings = [
            Setting(method, 0, {"instance": name, "outer_step_size": float(beta)}, home)
            for name, home in homes.items()
            for beta, method in zip(betas, methods, strict=True)
        ]
        history = bench.sweep("local-gd", settings, rounds, eval_every=1)
    table = np.full((len(settings), rounds + 1), np.inf)  # a run that diverged has no further rows
    table[history.table["setting"], history.table["round"]] = history.table["suboptimality"]
    measured = dict(zip(homes, table.reshape(2, len(betas), rounds + 1), strict=True))
    anywhere = min(
        float(suboptimality(instances[ROTATED], eta, k, np.geomspace(0.1, 1000, 400), rounds).min())
        for eta in STEPS / SMOOTHNESS
        for k in bench.scale["num_local_steps"]
    )
    claims = judge(betas, rounds, instances, measured, anywhere)
    rows = [
        {"x": float(beta), "y": max(float(value), 1e-30), "line": name}
        for name, values in measured.items()
        for beta, value in zip(betas, values[:, rounds], strict=True)
        if value < 1e3
    ]
    floor = float(instances[ROTATED].bound or 0.0)
    rows += [{"x": float(beta), "y": floor, "line": "floor of theorem 1"} for beta in betas]
    spec = lines(rows, x="outer step beta", y="(F - F*) / (H B²)", log_y=True, dashed=("floor of theorem 1",),
                 points=False)  # fmt: skip
    one = int(np.abs(betas - 1).argmin())
    over = [
        {"x": r, "y": float(measured[ROTATED][i, r] / measured[ROTATED][0, 0]), "line": f"beta = {betas[i]:g}"}
        for i in sorted({one, int(measured[ROTATED][:, rounds].argmin()), int(np.abs(betas - 2).argmin())})
        for r in range(rounds + 1)
    ]
    picture = lines(over, x="round", y="(F - F*) / (F(0) - F*)", log_y=True)
    note = f"After {rounds} rounds of Local GD with inner step 1/H; 1e-30 stands for zero."
    figures = [
        Figure("Suboptimality by outer step", spec, note, ("two-solves-it", "equation-2.7", "no-outer-step-helps")),
        Figure("On the instance of theorem 1", picture,
               "What is left lies in the flat direction, which no step reaches.", ("little-to-gain", "closed-form")),
    ]  # fmt: skip
    return Findings(claims, figures)


RECIPE = Recipe(
    name="outer-step",
    title="An outer step solves one example and helps little on another",
    source="thesis, equations 2.7 and 3.8 and theorem 1",
    about="Local GD with inner step 1/H, where K does not matter, over outer steps from 0.1 to 2.4. H = B = 1.",
    scales={
        "quick": {"rounds": 20, "spacing": 0.1, "num_local_steps": (1, 4, 16, 64)},
        "full": {"rounds": 20, "spacing": 0.02, "num_local_steps": (1, 2, 4, 8, 16, 32, 64)},
    },
    carry_out=_carry_out,
)
