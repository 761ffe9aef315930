"""Thesis, figure 5.1: Local SGD on linear regression with dials for concept shift and covariate shift.

Twenty clients in five dimensions, one fresh sample per step, ten local steps; the step size is tuned per trial. The
clients' optima are drawn once; trials have fresh feature means and samples, the same ones in every cell. The spreads
on the axes are labels (see `problems.caps`), so the true Hessian gap, the tau of assumption 11, is shown beside them.

Appendix D.7.4 measures the error to x-bar*, in the thesis the mean of the clients' optima. What Local SGD should find
is the minimiser x* of the mean objective. Both are measured.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sojourn.algorithms import LocalSGD
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from sojourn.history import History
from sojourn.problems.caps import cap_regression_parameters
from sojourn.problems.gaussian_regression import gaussian_regression
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, above
from sojourn.recipes.charts import banded, heat_map, lines
from sojourn.recipes.trends import all_grow, all_hold, interval, resampled
from sojourn.sweeping import Setting

NUM_CLIENTS, DIMENSION, MEAN_NORM, NOISE_STD, NUM_LOCAL_STEPS = 20, 5, 5.0, 0.1, 10
ROUNDS, MAX_ROUNDS, TARGET, FIXED_SPREAD = 5, 100, 0.04, 1.0
STEP_SIZES = tuple(float(eta) for eta in np.logspace(-3, -1, 10))
GROWS = 0.8  # a Spearman coefficient above this is called growth
_BOOTSTRAP = "Spearman coefficient of the mean over trials, bootstrap over trials"
_ABOVE = f"interval above {GROWS}"


def world(optima_spread: float, mean_spread: float, trial: int, draw: int = 0) -> Federation:
    """A cell of the grid in one trial. `draw` numbers the draws of the axis and of the clients' optima."""
    optima, means = cap_regression_parameters(
        NUM_CLIENTS, DIMENSION, optima_spread, mean_spread, mean_norm=MEAN_NORM,
        rng=np.random.default_rng([0, draw]), mean_rng=np.random.default_rng([1, trial]),
    )  # fmt: skip
    return gaussian_regression(optima, means, NOISE_STD)


def towards_mean_optimum(federation: Federation) -> Federation:
    """The same world, whose recorded distance is that to the mean of the clients' optima."""
    middle = Vec(jnp.asarray(np.mean(federation.facts.optima, axis=0), federation.x0.tree.dtype))  # type: ignore[arg-type]
    return dataclasses.replace(federation, clients=dataclasses.replace(federation.clients, x_star=middle))


def _methods() -> list[tuple[float, LocalSGD]]:
    return [(eta, LocalSGD(step_size=eta, num_local_steps=NUM_LOCAL_STEPS)) for eta in STEP_SIZES]


@dataclasses.dataclass(frozen=True)
class Cells:
    """Figure 5.1a: final errors (trial, optima_spread, mean_spread) with the best step size of each trial."""

    optima_spreads: Sequence[float]
    mean_spreads: Sequence[float]
    to_optimum: np.ndarray
    to_mean_optimum: np.ndarray
    hessian_gaps: np.ndarray  # (trial, mean_spread): the true ones
    mean_distances: np.ndarray  # (trial, mean_spread): the largest distance of two feature means
    optima_distances: np.ndarray  # (optima_spread,): of two optima

    @property
    def num_trials(self) -> int:
        return len(self.to_optimum)


def measure_cells(bench: Bench) -> Cells:
    """One sweep over step sizes, cells and trials."""
    zetas, taus, trials = (list(bench.scale[name]) for name in ("optima_spreads", "mean_spreads", "trials"))
    shape = (len(trials), len(zetas), len(taus))
    worlds = {(t, z, s): world(zetas[z], taus[s], trials[t]) for t, z, s in np.ndindex(shape)}
    methods = _methods()
    settings = [
        Setting(method, trials[t], {"optima_spread": zetas[z], "mean_spread": taus[s], "step_size": eta}, home)
        for (t, z, s), home in worlds.items()
        for eta, method in methods
    ]
    history = bench.sweep("local-sgd", settings, ROUNDS, eval_every=ROUNDS)
    facts = np.array([home.facts for home in worlds.values()], dtype=object).reshape(shape)
    means = np.array([home.clients.objective.means for home in worlds.values()])  # type: ignore[attr-defined]
    optima = np.array([f.optima for f in facts.flat])
    return Cells(
        zetas, taus,
        to_optimum=_best_error(history, np.array([f.x_star for f in facts.flat])).reshape(shape),
        to_mean_optimum=_best_error(history, optima.mean(axis=1)).reshape(shape),
        hessian_gaps=np.array([[f.hessian_heterogeneity for f in row] for row in facts[:, 0]]),
        mean_distances=_farthest(means).reshape(shape)[:, 0],
        optima_distances=_farthest(optima).reshape(shape)[0, :, 0],
    )  # fmt: skip


def _best_error(history: History, centres: np.ndarray) -> np.ndarray:
    """Every world's final distance to its centre with its best step size; a run that diverged is infinitely far."""
    models = np.asarray(history.params, float).reshape(len(centres), len(STEP_SIZES), -1)
    lost = history.table.groupby("setting")["diverged"].last().to_numpy().reshape(models.shape[:2])
    away = np.linalg.norm(models - centres[:, None], axis=-1)
    return np.asarray(np.where(lost | ~np.isfinite(away), np.inf, away).min(axis=1))


def _farthest(points: np.ndarray) -> np.ndarray:
    """The largest distance of two of the points (..., M, d)."""
    return np.asarray(np.linalg.norm(points[..., :, None, :] - points[..., None, :, :], axis=-1).max(axis=(-2, -1)))


def judge_cells(cells: Cells) -> list[Claim]:
    return [
        _smallest_in_corner(cells),
        _either_hurts(cells),
        _grows_with_tau(cells),
        _grows_with_zeta(cells),
        _feed_each_other(cells),
        *_as_printed(cells),
        _labels_are_distances(cells),
    ]


def _smallest_in_corner(cells: Cells) -> Claim:
    small = np.outer(np.array(cells.optima_spreads) <= 0.25, np.array(cells.mean_spreads) <= 1).ravel()
    flat = cells.to_optimum.reshape(cells.num_trials, -1)
    share = float(resampled(flat, lambda means: small[means.argmin(axis=-1)]).mean())
    mean = cells.to_optimum.mean(axis=0)
    z, s = np.unravel_index(mean.argmin(), mean.shape)
    return Claim(
        "smallest-where-both-are-small",
        "The error is smallest where both labels are small (zeta_* at most 0.25, tau at most 1).",
        True if share > 0.975 else False if share < 0.025 else None,
        f"mean error {mean.min():.4f} at zeta_* = {cells.optima_spreads[z]:g}, tau = {cells.mean_spreads[s]:g}, "
        f"{mean.max():.4f} at worst; the smallest cell is there in {share:.1%} of resamples",
        "share of bootstrap resamples of trials whose smallest mean lies there", "above 97.5 %", cells.num_trials,
    )  # fmt: skip


def _either_hurts(cells: Cells) -> Claim:
    e = cells.to_optimum
    start, tau, zeta = e[:, 0, 0], e[:, 0, -1], e[:, -1, 0]
    by_tau, by_zeta = above(tau - start, 0.0), above(zeta - start, 0.0)
    return Claim(
        "only-when-both-are-small",
        "Local SGD does well only when both kinds are small: raising either label alone from 0 to its end raises the "
        "error.",
        all_hold(by_tau[0], by_zeta[0]),
        f"tau alone: by {by_tau[1]}, {tau.mean() / start.mean():.2f} times; "
        f"zeta_* alone: by {by_zeta[1]}, {zeta.mean() / start.mean():.2f} times",
        "paired differences over trials, t-interval", "both intervals above 0", cells.num_trials,
    )  # fmt: skip


def _grows_with_tau(cells: Cells) -> Claim:
    curves = {f"zeta_* = {z:g}": cells.to_optimum[:, i] for i, z in enumerate(cells.optima_spreads) if z >= 0.5}
    holds, text = all_grow(curves, GROWS)
    return Claim(
        "grows-with-tau", "At every zeta_* of at least 0.5 the error grows with tau.",
        holds, text, _BOOTSTRAP, _ABOVE + " for every row", cells.num_trials,
    )  # fmt: skip


def _grows_with_zeta(cells: Cells) -> Claim:
    curves = {f"tau = {s:g}": cells.to_optimum[:, :, j] for j, s in enumerate(cells.mean_spreads)}
    holds, text = all_grow(curves, GROWS)
    return Claim(
        "grows-with-zeta", "At every tau the error grows with zeta_*.",
        holds, text, _BOOTSTRAP, _ABOVE + " for every column", cells.num_trials,
    )  # fmt: skip


def _feed_each_other(cells: Cells) -> Claim:
    rise = cells.to_optimum[:, :, -1] - cells.to_optimum[:, :, 0]
    holds, text = above(rise[:, -1] - rise[:, 0], 0.0)
    return Claim(
        "feed-each-other", "tau costs more where zeta_* is large: with a shared optimum the row is nearly flat.",
        holds, f"the rise along tau is larger at the largest zeta_* by {text}; it is {rise[:, 0].mean():.4f} at "
        f"zeta_* = {cells.optima_spreads[0]:g} and {rise[:, -1].mean():.4f} at {cells.optima_spreads[-1]:g}",
        "paired differences over trials, t-interval", "interval above 0", cells.num_trials, "check",
    )  # fmt: skip


def _as_printed(cells: Cells) -> list[Claim]:
    e = cells.to_mean_optimum
    along_tau = {f"zeta_* = {z:g}": e[:, i] for i, z in enumerate(cells.optima_spreads) if z >= 0.5}
    along_zeta = {f"tau = {s:g}": e[:, :, j] for j, s in enumerate(cells.mean_spreads)}
    (by_tau, tau_text), (by_zeta, zeta_text) = all_grow(along_tau, GROWS), all_grow(along_zeta, GROWS)
    times = [a[:, -1, -1].mean() / a[:, -1, 0].mean() for a in (e, cells.to_optimum)]
    rise = above(e[:, -1, -1] - e[:, -1, 0], 0.0)[1]
    return [
        Claim(
            "mean-of-optima-tau",
            "Measured to the mean of optima, as D.7.4 prints, the error grows with tau at every zeta_* from 0.5 on.",
            by_tau, f"{tau_text}; at the largest zeta_* it rises by {rise}, {times[0]:.2f} times, where the error to "
            f"x* rises {times[1]:.2f} times", _BOOTSTRAP, _ABOVE + " for every row", cells.num_trials,
        ),
        Claim(
            "mean-of-optima-zeta", "Measured to the mean of optima the error grows with zeta_* at every tau.",
            by_zeta, zeta_text, _BOOTSTRAP, _ABOVE + " for every column", cells.num_trials,
        ),
    ]  # fmt: skip


def _labels_are_distances(cells: Cells) -> Claim:
    """D.7.2 and D.7.3 say that the caps ensure it; a cap only bounds it."""
    taus, zetas = np.array(cells.mean_spreads, float), np.array(cells.optima_spreads, float)
    miss = float(np.abs(cells.mean_distances - taus).max()), float(np.abs(cells.optima_distances - zetas).max())
    last = cells.mean_distances[:, -1]
    return Claim(
        "labels-are-distances",
        "The largest distance of two feature means is tau, of two optima zeta_* (D.7.2, D.7.3).",
        max(miss) < 1e-6,
        f"at tau = {taus[-1]:g} it is {last.min():.2f} to {last.max():.2f}, at zeta_* = {zetas[-1]:g} it is "
        f"{cells.optima_distances[-1]:.2f}; the true Hessian gap at tau = {taus[-1]:g} is "
        f"{cells.hessian_gaps[:, -1].mean():.1f}",
        threshold="equal to 1e-6 in every cell",
    )  # fmt: skip


def _heat(cells: Cells, errors: np.ndarray, title: str, note: str, claims: tuple[str, ...]) -> Figure:
    gaps = cells.hessian_gaps.mean(axis=0)
    mean = errors.mean(axis=0)
    rows = [
        {"x": f"{s:g} · {gap:.1f}", "y": z, "value": round(float(mean[i, j]), 5)}
        for i, z in enumerate(cells.optima_spreads)
        for j, (s, gap) in enumerate(zip(cells.mean_spreads, gaps, strict=True))
    ]
    spec = heat_map(rows, x="label tau · true Hessian gap", y="label zeta_*", value="error", log=True)
    return Figure(title, spec, note, claims)


def _carry_out_a(bench: Bench) -> Findings:
    cells = measure_cells(bench)
    claims = judge_cells(cells)
    n = cells.num_trials
    optimum = ("smallest-where-both-are-small", "only-when-both-are-small", "grows-with-tau", "grows-with-zeta",
               "feed-each-other")  # fmt: skip
    note = f"Mean over {n} trials of the final error with the trial's best step size, after {ROUNDS} rounds."
    figures = [
        _heat(cells, cells.to_optimum, "Error to the optimum x*", note, optimum),
        _heat(cells, cells.to_mean_optimum, "Error to the mean of the clients' optima", note,
              ("mean-of-optima-tau", "mean-of-optima-zeta", "labels-are-distances")),
    ]  # fmt: skip
    return Findings(claims, figures)


_SHARED = (
    "20 clients in 5 dimensions, unit optima and feature means of norm 5 on spherical caps around one axis, target "
    "noise 0.1, one sample per step, 10 local steps, 10 step sizes from 0.001 to 0.1 tuned per trial (one that "
    "diverges loses). Optima are drawn once, means and samples anew in each trial and alike in all cells."
)
_TAUS = tuple(range(8))
_ZETAS = tuple(i / 4 for i in range(7))
RECIPE_A = Recipe(
    name="thesis-5.1a",
    title="Local SGD does well when both kinds of heterogeneity are small",
    source="thesis, figure 5.1a and appendix D.7",
    about=f"{_SHARED} The grid of the axes and the number of step sizes are filled in.",
    scales={
        "quick": {"optima_spreads": (0, 0.25, 0.5, 1.0, 1.5), "mean_spreads": (0, 1, 3, 5, 7), "trials": range(20)},
        "full": {"optima_spreads": _ZETAS, "mean_spreads": _TAUS, "trials": range(20)},
    },
    carry_out=_carry_out_a,
)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Figure 5.1b: rounds to the target (trial, mean_spread) with the best step size of each trial."""

    mean_spreads: Sequence[float]
    to_optimum: np.ndarray
    to_mean_optimum: np.ndarray
    other_draws: np.ndarray  # (draw, trial, mean_spread): to x*, with other optima of the clients
    hessian_gaps: np.ndarray  # (trial, mean_spread)
    conditions: np.ndarray  # (trial, mean_spread): condition numbers of the mean objective
    client_error: float  # how far any client is from condition number 1 + 25 and an optimum of norm 1

    @property
    def num_trials(self) -> int:
        return len(self.to_optimum)

    def labels(self, low: float, high: float) -> np.ndarray:
        spreads = np.array(self.mean_spreads)
        return np.flatnonzero((spreads >= low) & (spreads <= high))


def measure_rounds(bench: Bench) -> Rounds:
    """One sweep over step sizes, labels, trials and draws; on the first draw also the distance to the mean optimum."""
    taus, trials, draws = (list(bench.scale[name]) for name in ("mean_spreads", "trials", "draws"))
    shape = (len(draws), len(trials), len(taus))
    homes = [world(FIXED_SPREAD, taus[s], trials[t], draws[d]) for d, t, s in np.ndindex(shape)]
    first = homes[: len(trials) * len(taus)]
    methods = _methods()
    labels = [(draws[d], trials[t], taus[s], "optimum") for d, t, s in np.ndindex(shape)]
    labels += [(draws[0], trials[t], taus[s], "mean optimum") for t, s in np.ndindex(shape[1:])]
    settings = [
        Setting(method, trial, {"draw": draw, "mean_spread": tau, "distance_to": to, "step_size": eta}, home)
        for (draw, trial, tau, to), home in zip(labels, [*homes, *map(towards_mean_optimum, first)], strict=True)
        for eta, method in methods
    ]
    history = bench.sweep("local-sgd", settings, MAX_ROUNDS, eval_every=1)
    found = _rounds_to_target(history, len(settings)).reshape(-1, *shape[1:])
    hessians = np.array([home.facts.hessians for home in first])  # (worlds, M, d, d)
    spectra, mean = np.linalg.eigvalsh(hessians), np.linalg.eigvalsh(hessians.mean(axis=1))
    norms = np.linalg.norm(np.array([home.facts.optima for home in first]), axis=-1)
    off = max(abs(spectra[..., -1] / spectra[..., 0] - 1 - MEAN_NORM**2).max(), abs(norms - 1).max())
    return Rounds(
        taus, found[0], found[-1], found[1:-1],
        np.array([home.facts.hessian_heterogeneity for home in first]).reshape(shape[1:]),
        (mean[:, -1] / mean[:, 0]).reshape(shape[1:]), float(off),
    )  # fmt: skip


def _rounds_to_target(history: History, num_settings: int) -> np.ndarray:
    """The first round at the target with the best step size; the cap where no step size gets there."""
    there = history.table[history.table["distance"] <= TARGET].groupby("setting")["round"].min()
    first = np.full(num_settings, float(MAX_ROUNDS))
    first[there.index] = there
    return np.asarray(first.reshape(-1, len(STEP_SIZES)).min(axis=1))


def judge_rounds(rounds: Rounds) -> list[Claim]:
    claims = [
        _grows_to_6(rounds),
        _saturates(rounds),
        _monotone(rounds, "monotone-to-the-optimum", "the optimum x*", rounds.to_optimum),
        _monotone(rounds, "monotone-as-printed", "the mean of optima, as D.7.4 prints", rounds.to_mean_optimum),
        _clients_stay(rounds),
        _conditioning_stays(rounds),
    ]
    return [*claims, _other_draws(rounds)] if len(rounds.other_draws) else claims


def _grows_to_6(rounds: Rounds) -> Claim:
    there = rounds.labels(0, 6)
    holds, text = all_grow({"labels 0 to 6": rounds.to_optimum[:, there]}, GROWS)
    return Claim(
        "grows-to-6", "The rounds that reach the target grow with tau on the labels 0 to 6, measured to x*.",
        holds, f"{_means(rounds.to_optimum[:, there])}; {text}", _BOOTSTRAP, _ABOVE, rounds.num_trials, "correction",
    )  # fmt: skip


def _saturates(rounds: Rounds) -> Claim:
    """Flat needs a margin: a fifth of what the rounds grow by on the labels 0 to 6."""
    at = lambda low, high: rounds.to_optimum[:, rounds.labels(low, high)].mean(axis=1)  # noqa: E731
    excess = 0.2 * (at(6, 6) - at(0, 0)) - (at(8, 10) - at(7, 7))
    value, low, high = interval(excess)
    gaps = rounds.hessian_gaps.mean(axis=0)
    shown = ", ".join(f"{rounds.mean_spreads[i]:g}: {gaps[i]:.1f}" for i in range(len(gaps)))
    return Claim(
        "flat-beyond-7", "From label 7 on, where the true Hessian gap saturates at 25, the rounds are flat or fall.",
        True if low > 0 else False if high < 0 else None,
        f"{_means(rounds.to_optimum[:, rounds.labels(7, 10)])} on the labels from 7; margin {value:.2f} (95% interval "
        f"{low:.2f} to {high:.2f}); Hessian gap by label {shown}",
        "mean rise from label 7 to 8..10, less a fifth of the rise from 0 to 6, bootstrap over trials",
        "rise below the margin", rounds.num_trials, "check",
    )  # fmt: skip


def _monotone(rounds: Rounds, name: str, to: str, found: np.ndarray) -> Claim:
    whole = f"labels {rounds.mean_spreads[0]:g} to {rounds.mean_spreads[-1]:g}"
    holds, text = all_grow({whole: found}, GROWS)
    late = int((found >= MAX_ROUNDS).sum())
    return Claim(
        name, f"The rounds that reach the target grow with tau over the whole axis, measured to {to}.",
        holds, f"{_means(found)}; {text}" + f"; not reached in {late} of {found.size} cases" * (late > 0),
        _BOOTSTRAP, _ABOVE, rounds.num_trials,
    )  # fmt: skip


def _clients_stay(rounds: Rounds) -> Claim:
    return Claim(
        "clients-stay-as-hard", "Every client keeps the condition number 26 and an optimum of norm 1 (D.7.5).",
        rounds.client_error < 1e-9, f"largest deviation {rounds.client_error:.1e}", threshold="below 1e-9",
    )  # fmt: skip


def _conditioning_stays(rounds: Rounds) -> Claim:
    """D.7.5 attributes every change to heterogeneity and none to conditioning."""
    mean = rounds.conditions.mean(axis=0)
    return Claim(
        "conditioning-stays",
        "The conditioning of the problem does not change with tau (D.7.5), taken of the mean objective.",
        bool(np.ptp(rounds.conditions) < 1e-6),
        f"its condition number is {_means(rounds.conditions)} by label: it falls {mean[0] / mean[-1]:.1f} times",
        threshold="spread below 1e-6", seeds=rounds.num_trials,
    )  # fmt: skip


def _other_draws(rounds: Rounds) -> Claim:
    """The paper has one draw of the optima; its trials say nothing about others."""
    there = rounds.labels(0, 6)
    names = {f"draw {i + 1}": found[:, there] for i, found in enumerate(rounds.other_draws)}
    holds, text = all_grow(names, GROWS)
    return Claim(
        "grows-to-6-on-other-draws", "With other draws of the axis and the clients' optima they grow on 0 to 6 too.",
        holds, f"{'; '.join(_means(found) for found in names.values())}; {text}", _BOOTSTRAP, _ABOVE + " on every draw",
        rounds.num_trials, "check",
    )  # fmt: skip


def _means(found: np.ndarray) -> str:
    return ", ".join(f"{value:.1f}" for value in found.mean(axis=0))


def _carry_out_b(bench: Bench) -> Findings:
    rounds = measure_rounds(bench)
    families = {"to x*": rounds.to_optimum, "to the mean of optima": rounds.to_mean_optimum}
    rows = _rows(families, np.array(rounds.mean_spreads, float))
    by_gap = _rows({"to x*": rounds.to_optimum}, rounds.hessian_gaps.mean(axis=0))
    hard = _rows({"mean objective": rounds.conditions}, np.array(rounds.mean_spreads, float))
    hard += [{"x": x, "y": 1 + MEAN_NORM**2, "line": "every client"} for x in rounds.mean_spreads]
    note = f"Mean over {rounds.num_trials} trials with the trial's best step size; bands are 95% bootstrap intervals."
    claims = judge_rounds(rounds)
    other = tuple(claim.id for claim in claims if claim.id == "grows-to-6-on-other-draws")
    figures = [
        Figure(f"Rounds until the error is {TARGET}", lines(rows, x="label tau", y="rounds"), note,
               ("grows-to-6", "monotone-to-the-optimum", "monotone-as-printed", *other)),
        Figure("The same against the true Hessian gap", lines(by_gap, x="true Hessian gap", y="rounds"),
               "The labels from 7 on crowd at the right end: the gap does not grow any more.", ("flat-beyond-7",)),
        Figure("Conditioning", lines(hard, x="label tau", y="condition number"),
               "Means that spread out make the mean objective rounder, which may be why the rounds fall before the gap "
               "saturates.",
               ("clients-stay-as-hard", "conditioning-stays")),
    ]  # fmt: skip
    return Findings(claims, figures)


def _rows(families: dict[str, np.ndarray], x: np.ndarray) -> list[dict[str, Any]]:
    return [row for name, found in families.items() for row in banded(name, x, found)]


RECIPE_B = Recipe(
    name="thesis-5.1b",
    title="Rounds to a target first grow with covariate shift, then no more",
    source="thesis, figure 5.1b and appendix D.7",
    about=f"{_SHARED} zeta_* is 1, the target 0.04, the cap 100 rounds. The labels go on to 10, where the paper's "
    "may end earlier, and at full scale further draws of the optima are added.",
    scales={
        "quick": {"mean_spreads": range(11), "trials": range(20), "draws": range(1)},
        "full": {"mean_spreads": range(11), "trials": range(20), "draws": range(3)},
    },
    carry_out=_carry_out_b,
)
