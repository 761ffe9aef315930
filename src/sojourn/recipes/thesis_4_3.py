"""Thesis, figure 4.3: local steps take the weight from a client with sharp curvature."""

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import level_sets, lines, planar
from sojourn.recipes.fixed_points import Clients, clients_of, distances, falls, path, turned

STEPS = (1, 2, 5, 10, 20, 50, 100)
SHARP = 100.0  # the outlier's curvature, and H
_MANY = 10**4
_NUM_CLIENTS = 5


def _draw(seed: int) -> Clients:
    """Four clients with curvatures 1 and 3 near zero; the last one is far out along its sharp direction."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, np.pi, _NUM_CLIENTS)
    angles[-1] = np.pi / 4
    curvatures = np.tile([1.0, 3.0], (_NUM_CLIENTS, 1))
    curvatures[-1] = SHARP, 1.0
    optima = rng.uniform(-1, 1, (_NUM_CLIENTS, 2))
    optima[-1] = 5.0
    return clients_of(turned(angles, curvatures), optima)


def _constant(steps: float) -> float:
    return 0.9 / SHARP


def _falling(steps: float) -> float:
    return 0.9 / (SHARP * steps)


def _weights(clients: Clients, step_size: Callable[[float], float], steps: Sequence[int]) -> np.ndarray:
    """|C^-1 C_out / M| for every K. It is the fixed point's derivative with respect to the outlier's optimum."""
    columns = []
    for unit in np.eye(2):
        optima = np.zeros_like(clients.optima)
        optima[-1] = unit
        columns.append(path(Clients(clients.hessians, optima, clients.facts), step_size, steps))
    return np.asarray(np.linalg.norm(np.stack(columns, axis=-1), 2, axis=(1, 2)))


def _others(clients: Clients) -> np.ndarray:
    return np.asarray(clients.optima[:-1].mean(axis=0))


def _carry_out(bench: Bench) -> Findings:
    problems = [_draw(seed) for seed in range(bench.scale["problems"])]
    weights = [_weights(c, _constant, STEPS) for c in problems]
    away = [distances(path(c, _constant, STEPS), _others(c)) for c in problems]
    claims = [
        _weight_falls(weights),
        _distance_falls(away, problems),
        _limit(problems),
        _large_enough(problems),
    ]
    return Findings(claims, [_plane(problems[0]), _curves(problems)])


def _weight_falls(weights: list[np.ndarray]) -> Claim:
    good = sum(falls(w, by=1e-9) for w in weights)
    middle = np.median(weights, axis=0)
    shown = ", ".join(f"{w:.3f}" for w in middle)
    return Claim(
        "weight-falls",
        "The weight that the outlier's optimum has in the fixed point falls as local steps grow.",
        good == len(weights),
        f"{good} of {len(weights)} random problems; median {shown} at K = {', '.join(map(str, STEPS))}",
        "|C^-1 C_outlier / M|",
        "falls in every problem from each K to the next",
        len(weights),
    )


def _distance_falls(away: list[np.ndarray], problems: Sequence[Clients]) -> Claim:
    good = sum(falls(d, by=1e-9) for d in away)
    first, last = np.median(away, axis=0)[[0, -1]]
    return Claim(
        "distance-falls",
        "The fixed point moves from the outlier to the mean of the other clients' optima as local steps grow.",
        good == len(problems),
        f"{good} of {len(problems)} random problems; "
        f"median distance {first:.2f} at K = 1, {last:.2f} at K = {STEPS[-1]}",
        "|x_inf(K) - mean of the others' optima|",
        f"falls in every problem from each K to the next, {', '.join(map(str, STEPS))}",
        len(problems),
    )


def _limit(problems: Sequence[Clients]) -> Claim:
    weight = max(abs(_weights(c, _constant, [_MANY])[0] - 1 / _NUM_CLIENTS) for c in problems)
    away = max(float(np.linalg.norm(path(c, _constant, [_MANY])[0] - c.mean_optimum)) for c in problems)
    return Claim(
        "uniform-limit",
        "In the limit all clients count alike: the outlier's weight is 1/M, the fixed point the mean of the optima.",
        weight < 1e-8 and away < 1e-8,
        f"at K = {_MANY}: weight within {weight:.1e} of 1/{_NUM_CLIENTS}, fixed point within {away:.1e} of the mean",
        "|weight - 1/M| and |x_inf - mean x_m*|",
        "below 1e-8",
        len(problems),
    )


def _large_enough(problems: Sequence[Clients]) -> Claim:
    start = [_weights(c, _constant, [1])[0] for c in problems]
    end = [_weights(c, _falling, [_MANY])[0] for c in problems]
    kept = [e / s for e, s in zip(end, start, strict=True)]
    return Claim(
        "large-enough-step",
        "The step size must be large enough: with eta = 0.9/(HK) the outlier keeps most of its weight.",
        min(kept) > 0.5,
        f"weight {min(end):.3f} to {max(end):.3f} at K = {_MANY}, {min(kept):.0%} to {max(kept):.0%} of that at K = 1",
        "weight at large K / weight at K = 1",
        "above 1/2 in every problem",
        len(problems),
        by="check",
    )


def _plane(clients: Clients) -> Figure:
    rings = [
        level_sets(x, a, "other clients", [0.3], of=number)
        for number, (a, x) in enumerate(zip(clients.hessians[:-1], clients.optima[:-1], strict=True))
    ]
    rings.append(level_sets(clients.optima[-1], clients.hessians[-1], "outlier", [0.3, 1.2]))
    steps = (*STEPS, 300, _MANY)
    fixed = path(clients, _constant, steps)
    route = [
        {"x": float(x), "y": float(y), "of": "fixed point, K = 1, 2, 5, …", "at": k, "K": k}
        for k, (x, y) in zip(steps, fixed, strict=True)
    ]
    points = [("other clients", x) for x in clients.optima[:-1]]
    points += [("outlier", clients.optima[-1]), ("x*", clients.x_star), ("mean of optima", clients.mean_optimum)]
    points.append(("mean of the others' optima", _others(clients)))
    note = (
        "Level sets and optima of the clients; the outlier's level sets are narrow, its valley runs across the line "
        "from it to the others. The path starts at x* (K = 1) and ends at the mean of all optima."
    )
    return Figure("A sharp outlier", planar(rings, points, paths=route), note, ("distance-falls",))


def _curves(problems: Sequence[Clients]) -> Figure:
    steps = (*STEPS, 200, 500, 1000)
    rows = []
    for name, step_size in (("0.9/H", _constant), ("0.9/(HK)", _falling)):
        weights = np.array([_weights(c, step_size, steps) for c in problems])
        for k, column in zip(steps, weights.T, strict=True):
            low, middle, high = np.quantile(column, [0, 0.5, 1]).tolist()
            rows.append({"x": k, "y": middle, "lo": low, "hi": high, "line": name})
    rows += [{"x": k, "y": 1 / _NUM_CLIENTS, "line": "1/M"} for k in (steps[0], steps[-1])]
    spec = lines(rows, x="local steps K", y="weight of the outlier", log_x=True, dashed=("1/M",))
    note = "Median and range over the random problems, for a constant step size and for one that falls with K."
    return Figure("The outlier's weight", spec, note, ("weight-falls", "uniform-limit", "large-enough-step"))


RECIPE = Recipe(
    name="thesis-4.3",
    title="Local steps take the weight from a sharp outlier",
    source="thesis, figure 4.3",
    about="Four quadratic clients in the plane with curvatures 1 and 3 and optima in [-1, 1]^2, and an outlier at "
    "(5, 5) with curvature 100 along the diagonal and 1 across; eta = 0.9/100. The thesis gives none of these; claims "
    "are judged over many random problems.",
    scales={"quick": {"problems": 20}, "full": {"problems": 200}},
    carry_out=_carry_out,
)
