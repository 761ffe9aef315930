"""Thesis, figure 6.1: which rounds and samples CE-LSGD needs to an accuracy, by tau and eps, from formulas alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq

from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Table
from sojourn.theory.nonconvex import ce_lsgd_gradient, ce_lsgd_step_size
from sojourn.theory.nonconvex_rates import heavy_batches, rate_equation_e18, rate_theorem_13, regime

KNOWN: dict[str, float] = {"smoothness": 1.0, "noise": 1.0, "start_gap": 1.0, "num_clients": 10}  # H, sigma, Delta, M
TAU, EPS = (1e-3, 1.0), (1e-8, 1.0)
COLORS = {"green": "#009E73", "orange": "#E69F00", "red": "#D55E00"}
SHOWN = {"green": (0.2, 1e-7), "orange": (0.01, 1e-4), "red": (0.004, 0.05)}  # (tau, eps) where numbers are written
WORST = 8 * (4 + 13 + 9 + 19) + np.e * (96 + 24)  # of the bound with constants over eps: its terms, each at most eps

Map = Mapping[str, np.ndarray]  # by name, over the points


def tabulate(taus: np.ndarray, targets: np.ndarray) -> Map:
    """The regime at every pair of a tau and an eps, flat, with the two beside it."""
    tau, eps = (grid.ravel() for grid in np.meshgrid(taus, targets, indexing="ij"))
    return {**regime(**KNOWN, hessian_heterogeneity=tau, target=eps), "tau": tau, "eps": eps}


def least_samples(eps: float) -> float:
    """Those of the centralized lower bound, given any number of rounds: sigma^2/n + (sigma Delta H/n)^(2/3) = eps."""

    def above(log_n: float) -> float:
        numbers = {**KNOWN, "num_clients": 1, "num_local_steps": 1}
        terms = rate_theorem_13(**numbers, rounds=np.exp(log_n))
        return float(np.log((terms["noise"] + terms["oracle"]) / eps))

    return float(np.exp(brentq(above, 0.0, 60.0)))


def promised(points: Map) -> np.ndarray:
    """The bound with its constants, with one iteration more than R as the first makes one step."""
    chosen = {"num_local_steps": points["num_local_steps"], "momentum": points["momentum"]}
    tau = {"hessian_heterogeneity": points["tau"]}
    step = ce_lsgd_step_size(
        **chosen, **tau, smoothness=KNOWN["smoothness"], num_clients=KNOWN["num_clients"]
    )  # fmt: skip
    more = {"rounds": points["rounds"] + 1, "first_batches": points["first_batch"]}
    return np.asarray(ce_lsgd_gradient(**KNOWN, **tau, **chosen, **more, step_size=step))


def judge(points: Map) -> list[Claim]:
    eps, tau, name = points["eps"], points["tau"], points["regime"]
    green, orange, red = (name == which for which in COLORS)
    levels, place = np.unique(eps, return_inverse=True)
    least = np.array([least_samples(float(level)) for level in levels])[place]
    share = points["samples"] / least
    central = KNOWN["start_gap"] * KNOWN["smoothness"] / eps  # rounds of the centralized optimum
    fewer = points["rounds"] / np.ceil(central)
    keys = ("rounds", "num_local_steps", "momentum", "first_batch")
    terms = rate_equation_e18(**KNOWN, hessian_heterogeneity=tau, **{key: points[key] for key in keys})
    worst = np.max([terms[key] / eps for key in terms if key != "sum"], axis=0)
    spent, bound = points["samples_spent"] / points["samples"], promised(points) / eps
    heavy = heavy_batches(**{k: v for k, v in KNOWN.items() if k != "num_clients"}, hessian_heterogeneity=tau[green],
                          target=eps[green])  # fmt: skip
    lighter, count = heavy["ce_lsgd"] / heavy["bvr_l_sgd"], f"{len(eps)} points of the map"
    return [
        Claim(
            "green-is-optimal-in-samples", "In green N is the optimum of centralized methods: what their lower bound "
            "asks for with any number of rounds, up to a factor of 3.",
            bool((share[green] <= 1).all() and (share[green] >= 1 / 3).all()),
            f"N over the least number of samples is {share[green].min():.3f} to {share[green].max():.3f}",
            f"every one of {count} that is green", "from 1/3 to 1",
        ),
        Claim(
            "fewer-rounds", "In green and orange R = Delta tau/eps, tau/H of the rounds Delta H/eps that centralized "
            "methods need.",
            bool((fewer[~red] <= tau[~red] / KNOWN["smoothness"] + 1 / central[~red]).all()),
            f"R over theirs is {fewer[~red].min():.2g} to {fewer[~red].max():.2g}, tau/H and the rounding of R",
            "every point that is not red", "at most tau/H, and a round",
        ),
        Claim(
            "orange-pays-in-samples", "In orange N exceeds the optimum by H M sqrt(eps)/(sigma tau), at least 1.",
            bool((points["samples"][orange] >= eps[orange] ** -1.5 * (1 - 1e-9)).all()),
            f"N eps^(3/2)/(Delta H sigma) is {(points['samples'] * eps**1.5)[orange].min():.3f} to "
            f"{(points['samples'] * eps**1.5)[orange].max():.3g}", "every point that is orange", "at least 1",
        ),
        Claim(
            "red-has-one-round", "In red one round is enough.", bool((points["rounds"][red] == 1).all()),
            f"{int(red.sum())} points", "every point that is red", "R = 1",
        ),
        Claim(
            "lighter-batches", "In green CE-LSGD's one heavy batch is lighter than each of BVR-L-SGD's.",
            bool((lighter <= 1).all()), f"b_0/b_max is {lighter.min():.2g} to {lighter.max():.2g}; BVR-L-SGD needs one "
            f"in {heavy['bvr_l_sgd_rounds'].min():.3g} to {heavy['bvr_l_sgd_rounds'].max():.3g} rounds",
            "every point that is green", "at most 1",
        ),
        Claim(
            "terms-are-at-most-eps", "With the regime's R, K, b_0 and beta, rounded, no term of E.18 exceeds eps.",
            bool((worst <= 1 + 1e-9).all()), f"the largest term is {worst.min():.3f} to {worst.max():.3f} eps",
            f"every one of {count}", "at most 1", by="check",
        ),
        Claim(
            "constants", "So E.17 with its constants promises a multiple of eps, the same all over the map.",
            bool((bound <= WORST).all()), f"{bound.min():.0f} to {bound.max():.0f} eps", f"every one of {count}",
            f"at most {WORST:.0f}, which its constants add to", by="check",
        ),
        Claim(
            "rounding-is-cheap", "Rounding R, K and b_0 up, the samples spent, M K R + K + M b_0, are at most six "
            "times N.",
            bool((spent <= 6).all()), f"{spent.min():.3f} to {spent.max():.3f} times", f"every one of {count}",
            "at most 6", by="check",
        ),
    ]  # fmt: skip


def _map(taus: Sequence[float], targets: Sequence[float]) -> dict[str, Any]:
    """Cells around every point, coloured by regime, with R, N and K written into each region."""
    half_x, half_y = (np.sqrt(values[1] / values[0]) for values in (taus, targets))
    points = tabulate(np.asarray(taus), np.asarray(targets))
    cells = [
        {
            "x": float(x / half_x),
            "x2": float(x * half_x),
            "y": float(y / half_y),
            "y2": float(y * half_y),
            "of": str(of),
        }
        for x, y, of in zip(points["tau"], points["eps"], points["regime"], strict=True)
    ]
    formulas = {
        "green": "R = Δτ/ε, N = ΔHσ/ε^1.5, K = σH/(Mτ√ε)", "orange": "R = Δτ/ε, N = MH²Δ/(τε), K = H²/τ²",
        "red": "R = 1, N = MH²Δ²/ε², K = (HΔ/ε)²",
    }  # fmt: skip
    texts = [{"x": x, "y": y, "text": formulas[of]} for of, (x, y) in SHOWN.items()]
    scale = {"type": "log", "nice": False}
    axis = lambda field, title: {"field": field, "type": "quantitative", "title": title, "scale": scale}  # noqa: E731
    color = {"field": "of", "type": "nominal", "title": None,
             "scale": {"domain": list(COLORS), "range": list(COLORS.values())}}  # fmt: skip
    return {
        "width": "container", "height": 400,
        "layer": [
            {"data": {"values": cells}, "mark": {"type": "rect", "opacity": 0.55},
             "encoding": {"x": axis("x", "τ"), "x2": {"field": "x2"}, "y": axis("y", "ε"), "y2": {"field": "y2"},
                          "color": color}},
            {"data": {"values": texts}, "mark": {"type": "text", "fontSize": 11},
             "encoding": {"x": axis("x", "τ"), "y": axis("y", "ε"), "text": {"field": "text"}}},
        ],
    }  # fmt: skip


def _rows() -> list[list[str]]:
    rows = []
    for tau, eps in ((0.01, 1e-8), (0.1, 1e-6), (1.0, 1e-6), (0.01, 1e-4), (0.1, 1e-2), (0.001, 0.01), (0.1, 0.5)):
        told = regime(**KNOWN, hessian_heterogeneity=tau, target=eps)
        numbers = [told[key] for key in ("rounds", "samples", "num_local_steps", "first_batch", "momentum")]
        rows.append([f"{tau:g}", f"{eps:g}", told["regime"], *(f"{value:.3g}" for value in numbers), f"{1 / eps:.3g}",
                     f"{least_samples(eps):.3g}"])  # fmt: skip
    return rows


def _carry_out(bench: Bench) -> Findings:
    n = bench.scale["points"]
    taus, targets = np.geomspace(*TAU, n), np.geomspace(*EPS, n)
    claims = judge(tabulate(taus, targets))
    note = "H = Δ = σ = 1, M = 10, b = 1; formulas without their constants."
    figure = Figure("Regimes of CE-LSGD", _map(taus.tolist(), targets.tolist()), note, tuple(c.id for c in claims))
    columns = ("tau", "eps", "regime", "R", "N", "K", "b_0", "beta", "centralized R", "least N")
    return Findings(claims, [figure], tables=[Table("Numbers at some points", columns, _rows())])


RECIPE = Recipe(
    name="thesis-6.1",
    title="What an accuracy costs in rounds and samples",
    source="thesis, figure 6.1, table 6.1 and theorem 26",
    about="The regimes of CE-LSGD by tau and eps, a target on E|grad F|^2, from formulas; nothing is run. The figure "
    "of the thesis has no numbers: H = Delta = sigma = 1 and M = 10 are filled in.",
    scales={"quick": {"points": 41}, "full": {"points": 101}},
    carry_out=_carry_out,
)
