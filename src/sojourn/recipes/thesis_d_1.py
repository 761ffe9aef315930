"""Thesis, figure D.1: directions drawn uniformly from a spherical cap, which set the heterogeneity of figure 5.1."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import integrate, stats

from sojourn.problems.caps import sample_cap
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe
from sojourn.recipes.charts import PALETTE, Spec

DIMENSIONS = (3, 5, 20)
SPREADS = (0.25, 1.0, 1.5, 2.0)  # zeta_*, the chord of the cap
_REFUTED, _FITS = 0.001, 0.05  # combined p-values: below the first the law is refuted, between them nothing is decided
_CONFIDENCE = 0.99


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """Points on one cap, as angles to the axis and a coordinate across it."""

    dimension: int
    half_angle: float
    points: np.ndarray  # (n, d)
    angles: np.ndarray  # (n,)
    across: np.ndarray  # (n,) the unit direction across the axis, along one fixed direction


def _draw(dimension: int, half_angle: float, num_points: int, seed: int) -> Drawn:
    setup = np.random.default_rng([seed, dimension, round(1e6 * half_angle)])
    axis, aside = _pair(setup, dimension)
    points = sample_cap(axis, half_angle, num_points, setup)
    along = points @ axis
    rest = points - np.outer(along, axis)
    size = np.linalg.norm(rest, axis=1)  # arctan2 is accurate for small angles, the arc cosine is not
    return Drawn(dimension, half_angle, points, np.arctan2(size, along), rest @ aside / size)


def _pair(rng: np.random.Generator, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """A random axis and a random direction across it."""
    axis, aside = np.linalg.qr(rng.standard_normal((dimension, 2)))[0].T
    return axis, aside


def _angle_law(half_angle: float, dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    """The distribution with density proportional to sin^(d-2) on [0, half_angle], by quadrature."""
    grid = np.linspace(0, half_angle, 8001)
    mass = integrate.cumulative_simpson(np.sin(grid) ** (dimension - 2), x=grid, initial=0)
    return lambda angle: np.interp(angle, grid, mass / mass[-1])


def _across_law(dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    """The distribution of a coordinate of a uniform point on the unit sphere of the d - 1 dimensions across."""
    half = (dimension - 2) / 2
    return lambda t: np.asarray(stats.beta.cdf((1 + t) / 2, half, half))


def _carry_out(bench: Bench) -> Findings:
    seeds = range(bench.scale["seeds"])
    caps = [(d, float(np.arcsin(spread / 2))) for d in DIMENSIONS for spread in SPREADS]
    drawn = [_draw(d, angle, bench.scale["points"], seed) for d, angle in caps for seed in seeds]
    claims = [
        _inside(drawn, len(seeds)),
        _fits(
            "angle-density",
            "The angle to the axis has a density proportional to sin^(d-2).",
            [(x.angles, _angle_law(x.half_angle, x.dimension), (x.dimension, x.half_angle)) for x in drawn],
            len(seeds),
        ),
        _fits(
            "around-the-axis",
            "The direction around the axis is uniform.",
            [(x.across, _across_law(x.dimension), (x.dimension, x.half_angle)) for x in drawn],
            len(seeds),
        ),
        *_largest_distance(bench.scale["clients"], bench.scale["drawings"]),
    ]
    half_angle = float(np.arcsin(0.5))
    return Findings(claims, [_side(half_angle), _front(half_angle), _histogram(drawn, half_angle)])


def _inside(drawn: Sequence[Drawn], seeds: int) -> Claim:
    over = max(float((x.angles - x.half_angle).max()) for x in drawn)
    norm = max(float(np.abs(np.linalg.norm(x.points, axis=1) - 1).max()) for x in drawn)
    count = sum(len(x.points) for x in drawn)
    return Claim(
        "inside-the-cap",
        "Every point has norm 1 and lies within the half-angle arcsin(zeta_*/2) of the axis.",
        over < 1e-9 and norm < 1e-12,
        f"{count} points in d = {', '.join(map(str, DIMENSIONS))}: largest angle minus half-angle {over:.1e}, "
        f"norms within {norm:.1e} of 1",
        "largest angle to the axis minus the half-angle; | |v| - 1 |",
        "below 1e-9; below 1e-12",
        seeds,
    )


def _fits(key: str, text: str, samples: Sequence[tuple[np.ndarray, Callable, tuple]], seeds: int) -> Claim:
    """One Kolmogorov-Smirnov test per drawing, their p-values combined; and how far off the law can be at all."""
    p = np.array([stats.kstest(values, law).pvalue for values, law, _ in samples])
    combined = float(stats.combine_pvalues(np.maximum(p, 1e-300), method="fisher").pvalue)
    caps: dict[tuple, list[np.ndarray]] = {}
    for values, law, cap in samples:
        caps.setdefault(cap, []).append(np.asarray(law(values)))
    off = max(_largest_deviation(np.concatenate(levels), len(caps)) for levels in caps.values())
    fits = combined >= _FITS and off < 0.05
    return Claim(
        key,
        text,
        False if combined < _REFUTED else True if fits else None,
        f"combined p = {combined:.3g} over {len(p)} independent tests (smallest {p.min():.2g}, "
        f"expected {1 / (len(p) + 1):.2g}); "
        f"with {_CONFIDENCE:.0%} confidence no cap's distribution function is off by more than {off:.3f}",
        "Kolmogorov-Smirnov test per cap and seed, p-values combined by Fisher's method; band of Dvoretzky, Kiefer and "
        "Wolfowitz",
        f"p at least {_FITS} and band below 0.05; fails if p is below {_REFUTED}",
        seeds,
    )


def _largest_deviation(levels: np.ndarray, num_caps: int) -> float:
    """A simultaneous confidence bound, over the caps, on how far the distribution is from the stated one."""
    seen = float(stats.kstest(levels, "uniform").statistic)
    return seen + float(np.sqrt(np.log(2 * num_caps / (1 - _CONFIDENCE)) / (2 * len(levels))))


def _largest_distance(clients: Sequence[int], drawings: int) -> list[Claim]:
    """The largest distance of M directions in d = 5 as figure 5.1 draws them, over zeta_* = 1."""
    half_angle = float(np.arcsin(0.5))
    found = {
        m: np.array([_diameter(_draw(5, half_angle, m, seed).points) for seed in range(drawings)]) for m in clients
    }
    first = clients[0]
    shown = ", ".join(
        f"{found[m].mean():.3f} for M = {m} ({found[m].min():.3f} to {found[m].max():.3f})" for m in clients
    )
    means = [float(found[m].mean()) for m in clients]
    top = max(float(v.max()) for v in found.values())
    return [
        Claim(
            "largest-distance",
            f"As printed: the largest distance of two clients' optima is zeta_* (M = {first}, d = 5, zeta_* = 1).",
            bool(np.abs(found[first] - 1).max() < 1e-6),
            f"largest distance {found[first].mean():.3f} on average, {found[first].min():.3f} to "
            f"{found[first].max():.3f} in {drawings} drawings",
            "max |x_m* - x_n*| / zeta_*",
            "1, up to 1e-6, in every drawing",
            drawings,
        ),
        Claim(
            "distance-at-most",
            "It is at most zeta_*, which it approaches as the number of clients grows.",
            top <= 1 + 1e-9 and bool((np.diff(means) > 0).all()),
            f"on average {shown}",
            "max |x_m* - x_n*| / zeta_*",
            "never above 1, and its mean grows with M",
            drawings,
            by="correction",
        ),
    ]


def _diameter(points: np.ndarray) -> float:
    """The largest distance of two points on the unit sphere."""
    return float(np.sqrt(max(0.0, 2 - 2 * (points @ points.T).min())))


def _side(half_angle: float) -> Figure:
    points = sample_cap(np.array([0.0, 0.0, 1.0]), half_angle, 400, np.random.default_rng(0))
    rows = [{"x": float(x), "y": float(z)} for x, _, z in points]
    arc = np.linspace(-half_angle, half_angle, 41)
    rim = {"x": float(np.sin(half_angle)), "y": float(np.cos(half_angle))}
    sketch = [
        _curve(_circle(1.0), "#999", 1),
        _curve([{"x": float(np.sin(a)), "y": float(np.cos(a))} for a in arc], PALETTE[0], 3),
        _curve([{"x": 0.0, "y": 0.0}, {"x": 0.0, "y": 1.15}], PALETTE[1], 2),
        _curve([{"x": -rim["x"], "y": rim["y"]}, {"x": 0.0, "y": 0.0}, rim], "#999", 1, [4, 3]),
        _dots(rows),
        _words([{"x": 0.06, "y": 1.16, "text": "v0"}, {"x": 0.09, "y": 0.42, "text": "φ"}]),
    ]
    note = (
        "400 directions in three dimensions with zeta_* = 1, seen from the side: half-angle φ = 30 degrees around v0."
    )
    return Figure("The cap from the side", _square(sketch, 1.25), note, ("inside-the-cap",))


def _front(half_angle: float) -> Figure:
    points = sample_cap(np.array([0.0, 0.0, 1.0]), half_angle, 400, np.random.default_rng(0))
    rows = [{"x": float(x), "y": float(y)} for x, y, _ in points]
    sketch = [
        _curve(_circle(1.0), "#999", 1),
        _curve(_circle(float(np.sin(half_angle))), PALETTE[0], 2),
        _dots(rows),
        _dots([{"x": 0.0, "y": 0.0}], PALETTE[1], 90),
    ]
    note = "The same directions, seen along v0."
    ids = ("around-the-axis", "largest-distance", "distance-at-most")
    return Figure("The cap along its axis", _square(sketch, 1.25), note, ids)


def _histogram(drawn: Sequence[Drawn], half_angle: float) -> Figure:
    measured, stated = [], []
    for d in DIMENSIONS:
        name = f"d = {d}"
        angles = np.concatenate([x.angles for x in drawn if x.dimension == d and x.half_angle == half_angle])
        heights, edges = np.histogram(np.degrees(angles), bins=30, range=(0, np.degrees(half_angle)), density=True)
        measured += [
            {"x": float(a), "x2": float(b), "y": float(h), "of": name}
            for a, b, h in zip(edges[:-1], edges[1:], heights, strict=True)
        ]
        grid = np.linspace(0, half_angle, 121)
        density = np.sin(grid) ** (d - 2)
        density /= integrate.simpson(density, x=np.degrees(grid))
        stated += [{"x": float(np.degrees(a)), "y": float(y), "of": name} for a, y in zip(grid, density, strict=True)]
    names = [f"d = {d}" for d in DIMENSIONS]
    color = {
        "field": "of", "type": "nominal", "title": None, "legend": {"orient": "top", "symbolOpacity": 1},
        "scale": {"domain": names, "range": list(PALETTE[: len(names)])},
    }  # fmt: skip
    x = {"field": "x", "type": "quantitative", "title": "angle to the axis (degrees)", "axis": {"grid": False},
         "scale": {"nice": False}}  # fmt: skip
    y = {"field": "y", "type": "quantitative", "title": "density"}
    bars = {"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"datum": 0}, "color": color}
    spec: Spec = {
        "layer": [
            {"data": {"values": measured}, "mark": {"type": "rect", "opacity": 0.3, "tooltip": True}, "encoding": bars},
            {"data": {"values": stated}, "mark": {"type": "line", "strokeWidth": 2},
             "encoding": {"x": x, "y": y, "color": color}},
        ],
        "width": "container",
        "height": 320,
    }  # fmt: skip
    note = "Drawn angles (bars) and the density proportional to sin^(d-2) (lines), zeta_* = 1."
    return Figure("Angles to the axis", spec, note, ("angle-density",))


def _circle(radius: float) -> list[Spec]:
    angles = np.linspace(0, 2 * np.pi, 121)
    return [{"x": float(radius * np.cos(a)), "y": float(radius * np.sin(a))} for a in angles]


def _curve(rows: list[Spec], color: str, width: float, dash: Sequence[int] = (1, 0)) -> Spec:
    placed = [{**row, "at": i} for i, row in enumerate(rows)]
    mark = {"type": "line", "color": color, "strokeWidth": width, "strokeDash": list(dash)}
    return {"data": {"values": placed}, "mark": mark, "encoding": {"order": {"field": "at"}}}


def _dots(rows: list[Spec], color: str = PALETTE[0], size: int = 14) -> Spec:
    return {"data": {"values": rows}, "mark": {"type": "point", "filled": True, "size": size, "color": color}}


def _words(rows: list[Spec]) -> Spec:
    mark = {"type": "text", "fontSize": 14, "align": "left"}
    return {"data": {"values": rows}, "mark": mark, "encoding": {"text": {"field": "text"}}}


def _square(layers: list[Spec], reach: float) -> Spec:
    """Layers in a square around zero with equal units."""
    scale = {"domain": [-reach, reach], "nice": False}
    axes = {
        axis: {"field": axis, "type": "quantitative", "title": None, "scale": scale, "axis": {"grid": False}}
        for axis in ("x", "y")
    }
    return {"layer": layers, "encoding": axes, "width": 400, "height": 400}


RECIPE = Recipe(
    name="thesis-d.1",
    title="Directions from a spherical cap",
    source="thesis, figure D.1 and appendix D.7.2",
    about="Unit vectors drawn uniformly from caps with half-angle arcsin(zeta_*/2), for several dimensions and spreads "
    "zeta_*, against the law of a uniform direction; and how far apart the clients of figure 5.1 really are.",
    scales={
        "quick": {"seeds": 5, "points": 4000, "clients": (20, 200, 2000), "drawings": 20},
        "full": {"seeds": 20, "points": 20_000, "clients": (20, 200, 2000), "drawings": 100},
    },
    carry_out=_carry_out,
)
