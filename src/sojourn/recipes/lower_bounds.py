"""The instances of theorems 1 and 3 over all step sizes: what no tuning of Local GD can get below."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from scipy.optimize import minimize_scalar

from sojourn.algorithms import LocalSGD
from sojourn.problems.instances import Instance, theorem1, theorem3
from sojourn.problems.quadratic import quadratic
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import lines
from sojourn.sweeping import Setting

SMOOTHNESS = RADIUS = 1.0  # suboptimalities are in units of H B^2
STEPS = np.geomspace(1e-3, 1.99, 60)  # eta, in units of 1/H
OUTER_STEPS = 2.0 ** np.arange(-2, 11, 0.2)  # beta
HIGHEST = 0.02  # in units of H B^2 / R: what the best tuning gets below


def suboptimality(
    instance: Instance, step_size: float, num_local_steps: int, outer_steps: np.ndarray, rounds: int
) -> np.ndarray:
    """F(x_R) - F* of Local GD from zero for every outer step, on clients that share their optimum.

    A round takes the error e to (I - beta C) e with C = mean of I - (I - eta A_m)^K, which is symmetric.
    """
    d = instance.hessians.shape[-1]
    left = np.linalg.matrix_power(np.eye(d) - step_size * instance.hessians, num_local_steps)
    taken, vectors = np.linalg.eigh(np.eye(d) - left.mean(axis=0))
    with np.errstate(over="ignore", invalid="ignore"):
        errors = ((1 - np.multiply.outer(outer_steps, taken)) ** rounds * (vectors.T @ instance.x_star)) @ vectors.T
        values = np.einsum("bi,ij,bj->b", errors, instance.hessians.mean(axis=0), errors) / 2
    return np.asarray(np.where(np.isfinite(values), values, np.inf))


@dataclasses.dataclass(frozen=True)
class Best:
    """The smallest suboptimality on the grid, and where it is taken."""

    value: float
    step_size: float
    outer_step_size: float


def best_on_grid(instance: Instance, num_local_steps: int, rounds: int) -> Best:
    table = np.array([suboptimality(instance, eta, num_local_steps, OUTER_STEPS, rounds) for eta in STEPS / SMOOTHNESS])
    i, j = np.unravel_index(table.argmin(), table.shape)
    return Best(float(table[i, j]), float(STEPS[i] / SMOOTHNESS), float(OUTER_STEPS[j]))


def best_step(instance: Instance, rounds: int) -> float:
    """The smallest suboptimality of GD on the mean objective over every step: Local GD is that, with a step of its own
    for every (eta, beta, K), as both clients' Hessians have rank one in the plane where the error lies."""
    curvatures, vectors = np.linalg.eigh(instance.hessians.mean(axis=0))
    weights = curvatures / 2 * (vectors.T @ instance.x_star) ** 2
    there = weights > 1e-12 * weights.max()  # theorem 3 has an axis along which nothing is wrong
    weights, curvatures = weights[there], curvatures[there] / curvatures[there].max()
    error = lambda s: float(weights @ (1 - s * curvatures) ** (2 * rounds))  # noqa: E731
    coarse = np.linspace(0, 2, 2001)  # beyond 2 the steepest direction grows
    middle = coarse[int(np.argmin([error(s) for s in coarse]))]
    near = (max(0.0, middle - 2e-3), min(2.0, middle + 2e-3))
    return float(minimize_scalar(error, bounds=near, method="bounded", options={"xatol": 1e-12}).fun)


Table = Mapping[tuple[int, int], Best]  # by rounds and local steps


def judge(
    instances: Mapping[int, Instance],
    table: Table,
    exact: Mapping[int, float],
    by_tau: Mapping[tuple[int, float], float],
) -> list[Claim]:
    """`exact` are best values by rounds over every step; `by_tau` those of theorem 3, by rounds and tau."""
    best = {r: min(found.value for (rounds, _), found in table.items() if rounds == r) for r in instances}
    scaled = {r: r * value / (SMOOTHNESS * RADIUS**2) for r, value in best.items()}
    shown = ", ".join(f"{value:.5f} at R = {r}" for r, value in scaled.items())
    floors = {r: float(instance.bound or 0.0) for r, instance in instances.items()}
    tight = min(best[r] / floors[r] for r in best)
    unit = {key: key[0] * value / (key[1] * RADIUS**2) for key, value in by_tau.items()}
    spread = max(np.ptp([u for (r, _), u in unit.items() if r == rounds]) for rounds in {r for r, _ in unit})
    by_steps = [max(f.value for (r, _), f in table.items() if r == rounds) / best[rounds] for rounds in best]
    return [
        Claim(
            "floor-holds", "No (eta, beta, K) gets below H B^2 / (8 (12 R + 1)) on the instance of theorem 1.",
            all(best[r] >= floors[r] for r in best), f"the best is at least {tight:.3f} times the floor",
            "best over the grid", "at every R", by="correction",
        ),
        Claim(
            "flat-line", "The best suboptimality is a constant times H B^2 / R, below 0.02 of it for every R.",
            all(r * floors[r] <= value < HIGHEST for r, value in scaled.items()), f"in units of H B^2 / R: {shown}",
            "best over the grid", f"between the floor and {HIGHEST}", by="check",
        ),
        Claim(
            "printed-floor", "Lemma 1 as printed: the suboptimality is at least H B^2 / (8 R).",
            all(value >= 1 / 8 for value in scaled.values()),
            f"in units of H B^2 / R: {shown}; needed 0.125", "best over the grid", "at every R",
        ),
        Claim(
            "no-number-of-steps-helps", "Local steps do not help: the best over (eta, beta) is the same for every K.",
            max(by_steps) < 1.02, f"worst K over best K: {max(by_steps):.5f}", "best over the grid", "ratio below 1.02",
        ),
        Claim(
            "grid-is-fine", "The grid misses little: its best is that of the best step of GD on the mean objective.",
            all(exact[r] <= best[r] * (1 + 1e-9) and best[r] < 1.02 * exact[r] for r in best),
            f"largest ratio {max(best[r] / exact[r] for r in best):.5f}", "grid over exact", "from 1 to 1.02",
            by="check",
        ),
        Claim(
            "proportional-to-tau", "On the instance of theorem 3 the best suboptimality is proportional to tau.",
            spread < 1e-6, f"R / (tau B^2) times it is {min(unit.values()):.5f} to {max(unit.values()):.5f} over all R "
            f"and tau; at one R it differs by {spread:.1e}", "best over every step", "spread below 1e-6",
        ),
    ]  # fmt: skip


def _engine_agrees(bench: Bench, instances: Mapping[int, Instance], table: Table) -> Claim:
    """The engine's Local SGD without noise against the closed form, at the best settings of the grid."""
    most = bench.scale["engine_rounds"]
    with jax.enable_x64(True):
        homes = {r: quadratic(instances[r].hessians, instances[r].optima) for r in instances if r <= most}
        settings = [
            Setting(LocalSGD(f.step_size, k, f.outer_step_size), 0, {"instance": r, "num_local_steps": k}, homes[r])
            for (r, k), f in table.items()
            if r in homes
        ]
        rows = bench.sweep("local-gd", settings, most, eval_every=1).table
    measured = rows[rows["round"] == rows["instance"]].set_index(["instance", "num_local_steps"])["suboptimality"]
    worst = max(abs(measured[key] / table[key].value - 1) for key in measured.index)
    return Claim(
        "closed-form", "The closed form is what Local GD does.", bool(worst < 1e-9 and len(measured) == len(settings)),
        f"largest relative difference {worst:.1e} over {len(settings)} runs up to R = {max(homes)}",
        "engine over closed form", "below 1e-9", by="check",
    )  # fmt: skip


def _carry_out(bench: Bench) -> Findings:
    rounds, steps = list(bench.scale["rounds"]), list(bench.scale["num_local_steps"])
    shares = list(bench.scale["hessian_heterogeneity"])
    instances = {r: theorem1(2, r, SMOOTHNESS, RADIUS) for r in rounds}
    odd = {r: theorem1(3, r, SMOOTHNESS, RADIUS) for r in rounds}
    table = {(r, k): best_on_grid(instances[r], k, r) for r in rounds for k in steps}
    exact = {r: best_step(instances[r], r) for r in rounds}
    by_tau = {(r, tau): best_step(theorem3(2, r, SMOOTHNESS, tau, RADIUS), r) for r in rounds for tau in shares}
    claims = [*judge(instances, table, exact, by_tau), _engine_agrees(bench, instances, table)]
    figures = [
        _flat(rounds, instances, {"two clients": exact, "three clients": {r: best_step(odd[r], r) for r in rounds}}),
        _steps(rounds, steps, table), _linear(rounds, shares, by_tau),
    ]  # fmt: skip
    return Findings(claims, figures)


def _flat(rounds: Sequence[int], instances: Mapping[int, Instance], best: Mapping[str, Mapping[int, float]]) -> Figure:
    rows = [{"x": r, "y": r * values[r], "line": name} for name, values in best.items() for r in rounds]
    rows += [{"x": r, "y": r * float(instances[r].bound or 0.0), "line": "proven floor"} for r in rounds]
    rows += [{"x": r, "y": 1 / 8, "line": "printed floor"} for r in rounds]
    spec = lines(rows, x="rounds R", y="R (F - F*) / (H B²)", log_x=True, log_y=True,
                 dashed=("proven floor", "printed floor"))  # fmt: skip
    note = "The best over every inner step, outer step and number of local steps, for two and three clients alike."
    return Figure("Theorem 1: what the best tuning leaves", spec, note, ("floor-holds", "flat-line", "printed-floor"))


def _steps(rounds: Sequence[int], steps: Sequence[int], table: Table) -> Figure:
    rows = [
        {"x": k, "y": r * table[r, k].value, "line": f"R = {r}"}
        for r in rounds[:: max(1, len(rounds) // 4)]
        for k in steps
    ]
    spec = lines(rows, x="local steps K", y="R (F - F*) / (H B²)", log_x=True)
    note = "The best over a grid of inner and outer steps, for each number of local steps."
    return Figure("Local steps do not help", spec, note, ("no-number-of-steps-helps", "grid-is-fine", "closed-form"))


def _linear(rounds: Sequence[int], shares: Sequence[float], by_tau: Mapping[tuple[int, float], float]) -> Figure:
    rows = [{"x": tau, "y": r * by_tau[r, tau], "line": f"R = {r}"} for r in (rounds[0], rounds[-1]) for tau in shares]
    rows += [{"x": tau, "y": tau / 96, "line": "tau / 96"} for tau in shares]
    spec = lines(rows, x="tau / H", y="R (F - F*) / (H B²)", log_x=True, log_y=True, dashed=("tau / 96",))
    return Figure("Theorem 3: proportional to tau", spec, "Slope 1 throughout.", ("proportional-to-tau",))


RECIPE = Recipe(
    name="theorem-instances",
    title="What no step size can beat",
    source="thesis, lemma 1 and theorems 1 and 3",
    about="Local GD on the instances of the lower bounds, tuned over inner steps, outer steps and local steps by the "
    "closed form, without noise. H = B = 1.",
    scales={
        "quick": {"rounds": (1, 3, 10, 30, 100, 1000), "num_local_steps": (1, 4, 16, 64),
                  "hessian_heterogeneity": (0.01, 0.1, 0.5, 1.0), "engine_rounds": 30},
        "full": {"rounds": (1, 2, 3, 5, 10, 20, 30, 50, 100, 300, 1000), "num_local_steps": (1, 2, 4, 8, 16, 32, 64),
                 "hessian_heterogeneity": (0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0), "engine_rounds": 100},
    },
    carry_out=_carry_out,
)  # fmt: skip
