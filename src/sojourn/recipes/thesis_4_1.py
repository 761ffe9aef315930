"""Thesis, figure 4.1: where local GD ends, from the optimum of the mean (K = 1) to the mean of the optima."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sojourn.algorithms.local_sgd import LocalSGD
from sojourn.history import History
from sojourn.problems.quadratic import quadratic
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import Spec, level_sets, lines, planar
from sojourn.recipes.fixed_points import SMOOTHNESS, Clients, distances, draw_clients, falls, path
from sojourn.sweeping import Setting

SHARES = (0.9, 0.25, 0.05)  # of 1/H: the step sizes
STEPS = range(1, 11)
_MANY = 10**5  # local steps, as good as infinitely many


def _carry_out(bench: Bench) -> Findings:
    shared = [draw_clients(seed) for seed in range(bench.scale["problems"])]
    own = [draw_clients(seed, own_spectra=True) for seed in range(bench.scale["problems"])]
    history, ends = _simulate(bench, shared)
    paths = {share: [path(clients, _constant(share), STEPS) for clients in shared] for share in SHARES}
    own_paths = [path(clients, _constant(SHARES[0]), STEPS) for clients in own]
    claims = [
        _one_step(paths, shared),
        _closed_form(ends, paths),
        _outer_step(ends),
        _monotone(paths[SHARES[0]], shared),
        _own_spectra(own_paths, own),
        _one_curve(paths, shared),
        _limits(shared),
    ]
    odd = next((i for i, clients in enumerate(own) if not _runs_to_mean(own_paths[i], clients)), 0)
    figures = [
        _overview(shared[0]),
        _zoom(shared[0]),
        _pace(shared[0]),
        _own(own[odd], odd, _runs_to_mean(own_paths[odd], own[odd])),
    ]
    return Findings(claims, figures, [history])


def _length(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))


def _constant(share: float) -> Any:
    return lambda steps: share / SMOOTHNESS


def _falling(power: float) -> Any:
    return lambda steps: SHARES[0] / SMOOTHNESS * steps**-power


def _simulate(bench: Bench, shared: Sequence[Clients]) -> tuple[History, list[dict[str, Any]]]:
    """Local GD itself, in float64: where it is after many rounds, with what it was run."""
    with jax.enable_x64(True):
        homes = [quadratic(c.hessians, c.optima) for c in shared[: bench.scale["simulated"]]]
        settings = [
            Setting(
                LocalSGD(step_size=share / SMOOTHNESS, num_local_steps=k, outer_step_size=outer), 0,
                {"problem": number, "step size times H": share, "num_local_steps": k, "outer_step_size": outer}, home,
            )
            for k in bench.scale["steps"] for number, home in enumerate(homes)
            for share in SHARES for outer in bench.scale["outer"]
        ]  # fmt: skip
        rounds = bench.scale["rounds"]
        history = bench.sweep("local-gd", settings, rounds, eval_every=max(1, rounds // 20))
        models = np.asarray(history.params, np.float64)
    rows = []
    for setting, model in zip(settings, models, strict=True):
        problem, share, k, outer = setting.labels.values()
        rows.append({"problem": problem, "share": share, "steps": k, "outer": outer, "model": model})
    return history, rows


def _one_step(paths: dict[float, list[np.ndarray]], shared: Sequence[Clients]) -> Claim:
    error = max(_length(p[0] - c.x_star) for all_ in paths.values() for p, c in zip(all_, shared, strict=True))
    return Claim(
        "one-step",
        "With one local step the fixed point is x*, for every step size.",
        error < 1e-10,
        f"largest distance {error:.1e} over {len(shared)} problems and {len(SHARES)} step sizes",
        "|x_inf(1, eta) - x*|",
        "below 1e-10",
        len(shared),
    )


def _closed_form(ends: list[dict[str, Any]], paths: dict[float, list[np.ndarray]]) -> Claim:
    errors = [_length(row["model"] - paths[row["share"]][row["problem"]][row["steps"] - 1]) for row in ends]
    worst = ends[int(np.argmax(errors))]
    return Claim(
        "closed-form",
        "Local GD ends at C^-1 mean C_m x_m*, C_m = I - (I - eta A_m)^K.",
        max(errors) < 1e-8,
        f"largest distance {max(errors):.1e} over {len(ends)} runs "
        f"(at eta = {worst['share']:g}/H, K = {worst['steps']}, outer step {worst['outer']:g})",
        "|simulated - closed form|",
        "below 1e-8",
        len({row["problem"] for row in ends}),
    )


def _outer_step(ends: list[dict[str, Any]]) -> Claim:
    groups: dict[Any, list[np.ndarray]] = {}
    for row in ends:
        groups.setdefault((row["problem"], row["share"], row["steps"]), []).append(row["model"])
    spread = max(float(np.ptp(models, axis=0).max()) for models in groups.values())
    outers = sorted({row["outer"] for row in ends})
    return Claim(
        "any-outer-step",
        "The fixed point does not depend on the outer step size.",
        spread < 1e-8 and len(outers) > 1,
        f"largest difference of simulated ends {spread:.1e} over outer steps {', '.join(f'{o:g}' for o in outers)}",
        "spread of the simulated ends over outer step sizes",
        "below 1e-8",
        len({row["problem"] for row in ends}),
    )


def _runs_to_mean(points: np.ndarray, clients: Clients) -> bool:
    """Every further local step leads away from x* and towards the mean of the optima."""
    away = distances(points, clients.x_star)
    return falls(distances(points, clients.mean_optimum), by=1e-9) and falls(-away, by=1e-9)


def _monotone(points: list[np.ndarray], shared: Sequence[Clients]) -> Claim:
    good = sum(_runs_to_mean(p, c) for p, c in zip(points, shared, strict=True))
    left = [distances(p, c.mean_optimum)[-1] / c.gap for p, c in zip(points, shared, strict=True)]
    return Claim(
        "towards-the-mean",
        "With the largest step size the fixed point goes from x* to the mean of the optima, farther with every local "
        "step, where all clients have the curvatures 6 and 1.",
        good == len(shared),
        f"{good} of {len(shared)} random problems; at K = {STEPS[-1]} between {min(left):.0%} and {max(left):.0%} of "
        "the way are left",
        f"distances to x* and to the mean of optima over K = 1 to {STEPS[-1]}",
        "monotone in every problem",
        len(shared),
    )


def _own_spectra(points: list[np.ndarray], own: Sequence[Clients]) -> Claim:
    good = sum(_runs_to_mean(p, c) for p, c in zip(points, own, strict=True))
    return Claim(
        "own-spectra",
        "That is not so for all clients with curvatures between 1 and 6: with spectra of their own some paths turn "
        "back on the way.",
        good < len(own),
        f"{good} of {len(own)} random problems are monotone",
        f"distances to x* and to the mean of optima over K = 1 to {STEPS[-1]}",
        "a problem that is not monotone",
        len(own),
        by="check",
    )


def _one_curve(paths: dict[float, list[np.ndarray]], shared: Sequence[Clients]) -> Claim:
    """C_m is affine in A_m when there are two curvatures: C_m = b (A_m + s I)."""
    worst = 0.0
    for share in SHARES:
        eta = share / SMOOTHNESS
        for points, clients in zip(paths[share], shared, strict=True):
            mean, pull = clients.hessians.mean(axis=0), clients.hessians.mean(axis=0) @ clients.x_star
            for k, x in zip(STEPS, points, strict=True):
                low, high = 1 - (1 - eta) ** k, 1 - (1 - eta * SMOOTHNESS) ** k
                slope = (high - low) / (SMOOTHNESS - 1)
                s = low / slope - 1
                on_curve = np.linalg.solve(mean + s * np.eye(2), pull + s * clients.mean_optimum)
                worst = max(worst, float(np.linalg.norm(on_curve - x)))
    return Claim(
        "one-curve",
        "Where all clients have the same two curvatures, every step size leads along the one curve "
        "(A + s I)^-1 (A x* + s mean x_m*), 0 <= s, and only the pace differs.",
        worst < 1e-9,
        f"largest distance from the curve {worst:.1e}",
        "|x_inf(K, eta) - curve|",
        "below 1e-9",
        len(shared),
        by="check",
    )


def _limits(shared: Sequence[Clients]) -> Claim:
    """Relative to the way from x* to the mean of optima."""
    ends = {share: [path(c, _constant(share), [_MANY])[0] for c in shared] for share in SHARES}
    far = max(_length(x - c.mean_optimum) / c.gap for all_ in ends.values() for x, c in zip(all_, shared, strict=True))
    between = [_length(path(c, _falling(1), [_MANY])[0] - c.x_star) / c.gap for c in shared]
    near = max(_length(path(c, _falling(2), [_MANY])[0] - c.x_star) / c.gap for c in shared)
    return Claim(
        "limits",
        "As K grows every constant step size ends at the mean of the optima. The three trends of the caption need step "
        "sizes that fall with K: 0.9/H leads to the mean, 0.9/(HK) to a point between, 0.9/(HK^2) back to x*.",
        far < 1e-6 and near < 1e-4 and min(between) > 0.02 and max(between) < 0.98,
        f"at K = {_MANY}: constant steps within {far:.1e} of the mean, 0.9/(HK) at {min(between):.2f} to "
        f"{max(between):.2f} of the way from x*, 0.9/(HK^2) at {near:.1e}",
        "distance as a share of |x* - mean x_m*|",
        "below 1e-6, between 0.02 and 0.98, below 1e-4",
        len(shared),
        by="correction",
    )


def _overview(clients: Clients) -> Figure:
    rings = [
        level_sets(x, a, "clients", [0.5, 2], of=number)
        for number, (a, x) in enumerate(zip(clients.hessians, clients.optima, strict=True))
    ]
    rings.append(level_sets(clients.x_star, clients.hessians.mean(axis=0), "mean objective", [0.5, 2, 4.5]))
    points = [("clients", x) for x in clients.optima]
    points += [("mean objective", clients.x_star), ("mean of optima", clients.mean_optimum)]
    note = "Level sets and minimisers of five clients and of their mean, and the mean of the clients' optima."
    return Figure("Five clients", planar(rings, points), note)


def _paths_of(clients: Clients, schedules: dict[str, Any]) -> list[Spec]:
    return [
        {"x": float(x), "y": float(y), "of": name, "at": k, "K": k}
        for name, step_size in schedules.items()
        for k, (x, y) in zip(STEPS, path(clients, step_size, STEPS), strict=True)
    ]


def _schedules() -> dict[str, Any]:
    constant = {f"{share:g}/H": _constant(share) for share in SHARES}
    return {**constant, "0.9/(HK)": _falling(1)}


def _plane(clients: Clients) -> Spec:
    paths = _paths_of(clients, _schedules())
    ends = np.array([clients.x_star, clients.mean_optimum, *[[p["x"], p["y"]] for p in paths]])
    low, high = ends.min(axis=0), ends.max(axis=0)
    middle, half = (low + high) / 2, 0.6 * max(np.ptp(ends, axis=0).max(), 1e-9)
    domain = tuple((float(m - half), float(m + half)) for m in middle)
    rings = [level_sets(clients.x_star, clients.hessians.mean(axis=0), "mean objective", _levels(clients))]
    points = [("x*", clients.x_star), ("mean of optima", clients.mean_optimum)]
    return planar(rings, points, paths=paths, domain=(domain[0], domain[1]))


def _levels(clients: Clients) -> list[float]:
    away = clients.mean_optimum - clients.x_star
    top = float(away @ clients.hessians.mean(axis=0) @ away / 2)
    return [round(top * share, 6) for share in (0.05, 0.2, 0.45, 0.8, 1.25)]


def _zoom(clients: Clients) -> Figure:
    note = f"Fixed points for K = 1 to {STEPS[-1]}. All of them lie on one curve, so the paths cover each other."
    ids = ("one-step", "closed-form", "any-outer-step", "towards-the-mean", "one-curve")
    return Figure("From the optimum towards the mean of optima", _plane(clients), note, ids)


def _pace(clients: Clients) -> Figure:
    rows = []
    for name, step_size in _schedules().items():
        away = distances(path(clients, step_size, STEPS), clients.mean_optimum) / clients.gap
        rows += [{"x": k, "y": float(y), "line": name} for k, y in zip(STEPS, away, strict=True)]
    spec = lines(rows, x="local steps K", y="share of the way left")
    return Figure("How far along", spec, "Distance to the mean of optima, 1 at x*.", ("limits",))


def _own(clients: Clients, number: int, monotone: bool) -> Figure:
    kind = "runs straight to the mean of optima" if monotone else "turns back on the way"
    note = f"Problem {number} of those with curvatures of their own: the path of the largest step size {kind}."
    return Figure("Clients with spectra of their own", _plane(clients), note, ("own-spectra",))


RECIPE = Recipe(
    name="thesis-4.1",
    title="Where local gradient descent ends",
    source="thesis, figure 4.1",
    about="Five quadratic clients in the plane with curvatures from mu = 1 to H = 6. The thesis gives no matrices, "
    "optima or step sizes: directions are random, optima uniform in [-2, 2]^2, step sizes 0.9/H, 0.25/H and 0.05/H, "
    "and every claim is judged over many such problems. The closed form is compared with local GD itself.",
    scales={
        "quick": {"problems": 20, "simulated": 3, "steps": (1, 3, 10), "outer": (1.0, 1.9), "rounds": 2000},
        "full": {"problems": 200, "simulated": 5, "steps": STEPS, "outer": (1.0, 1.5, 1.9), "rounds": 2000},
    },
    carry_out=_carry_out,
)
