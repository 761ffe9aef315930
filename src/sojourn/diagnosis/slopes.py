"""Gradients: how noisy they are, and how far apart the clients' are.

Noise is that of one call, a batch of the federation's size, as in `Facts.noise`. Squared, it is the mean over all pairs
of batches of half the squared distance of their gradients, which is unbiased whatever the exact gradient is. The gap
between clients is a product of differences of independent batches, unbiased too: the plain square would count noise.
"""

import numpy as np
from scipy.stats import t as student

from sojourn.diagnosis.asking import PARTS
from sojourn.diagnosis.case import Case
from sojourn.diagnosis.spectra import pair_squares
from sojourn.theory.heterogeneity import proposition_3


def noise(case: Case) -> None:
    """sigma_2 and sigma_4 at the start and after the warm-up, the largest kept; the gap between clients there."""
    asking = case.asking
    if asking.clients.batch_size is None:
        for name in ("noise", "noise4", "noise_mean", "noise_at_optimum"):
            case.tell(name, 0.0, "exact", "everywhere", "gradients are exact")
        return _gap_of_exact(case)
    looks = {case.here_name: case.here}
    if not case.known("noise", "noise4"):
        looks["the start"] = case.start
    for number, (name, point) in enumerate(looks.items()):
        case.visit(point)
        found = asking.batches(point, f"noise {number}")
        asking.sent(up=2)
        _largest_noise(case, found.squares, name)
        if number == 0:
            _mean_noise(case, found.squares, name)
        if number == 0 and not case.scalars_only:
            asking.sent(up=PARTS * asking.dimension)
            _gap(case, found.parts)
    if not case.known("noise_at_optimum"):
        found = asking.batches(case.best, "noise at the best")
        asking.sent(up=1)
        _, value, low, high = _root_mean(found.squares)
        how = f"{asking.num_batches} batches a client, all pairs; the noisiest client"
        case.tell("noise_at_optimum", value, "estimate", case.best_name, how, low=low, high=high)


def _largest_noise(case: Case, squares: np.ndarray, at: str) -> None:
    """sigma_2 and sigma_4 of the noisiest client, at the noisier of the points looked at."""
    worst, value, low, high = _root_mean(squares)
    how = f"{squares.shape[1]} batches a client, all pairs; the noisiest client"
    if case.facts.noise is None:
        case.tell_largest("noise", value, "estimate", at, how, low=low, high=high)
    if case.facts.noise4 is None:
        fourth = float((squares[worst] ** 2).mean() ** 0.25)
        how = f"{squares.shape[1]} batches, centred on their mean; the noisiest client"
        case.tell_largest("noise4", fourth, "estimate", at, how)


def _mean_noise(case: Case, squares: np.ndarray, at: str) -> None:
    """Of one point, whatever the noise elsewhere: the larger of two would not be unbiased."""
    number, weights = squares.shape[1], case.asking.weights
    means = squares.mean(axis=1)
    spread = 2 * float(np.sqrt(np.sum(weights**2 * squares.var(axis=1, ddof=1) / number)))
    mean = float(weights @ means)
    low, high = (max(0.0, mean + sign * spread) ** 0.5 for sign in (-1, 1))
    how, note = f"{number} batches a client, all pairs; mean over clients", "its square is unbiased"
    case.tell("noise_mean", mean**0.5, "unbiased estimate", at, how, low=low, high=high, note=note)
    if mean > 0:
        ratio = float(weights @ (squares**2).mean(axis=1)) / float(weights @ means**2)
        note = "far above 1: heavy tails, or few directions"
        case.tell("kurtosis", ratio, "estimate", at, "sigma_4^4 / sigma_2^4, means over clients", note=note)


def _root_mean(squares: np.ndarray) -> tuple[int, float, float, float]:
    """The noisiest client, the root of its mean square, and an interval."""
    means = squares.mean(axis=1)
    worst = int(np.argmax(means))
    spread = 2 * float(squares[worst].std(ddof=1)) / squares.shape[1] ** 0.5
    low, high = (max(0.0, float(means[worst]) + sign * spread) ** 0.5 for sign in (-1, 1))
    return worst, float(means[worst]) ** 0.5, low, high


def gap_squares(parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(P, P): for every two parts of the batches, the mean over pairs of clients of <a_m - a_n, b_m - b_n>."""
    away = parts - np.einsum("m,mpd->pd", weights, parts)
    return 2 * np.einsum("m,mpd,mqd->pq", weights, away, away, optimize=True)


def _gap(case: Case, parts: np.ndarray) -> None:
    products = gap_squares(parts, case.asking.weights)
    pairs = products[np.triu_indices(PARTS, 1)]
    value = float(pairs.mean())
    # leaving out one part at a time: the jackknife of the mean over pairs of parts
    without = [np.delete(np.delete(products, p, 0), p, 1) for p in range(PARTS)]
    means = [float(m[np.triu_indices(PARTS - 1, 1)].mean()) for m in without]
    spread = float(student.ppf(0.975, PARTS - 1)) * float(np.sqrt((PARTS - 1) * np.var(means)))
    low, high = (max(0.0, value + sign * spread) ** 0.5 for sign in (-1, 1))
    how, note = f"products of differences over {PARTS} independent parts of the batches", "its square is unbiased"
    root = max(0.0, value) ** 0.5
    case.tell("gradient_gap", root, "unbiased estimate", case.here_name, how, low=low, high=high, note=note)


def _gap_of_exact(case: Case) -> None:
    if case.scalars_only:
        return
    squares = pair_squares(case.at(case.here, case.here_name))
    weights = case.asking.weights
    value = float(weights @ squares @ weights) ** 0.5
    kind = "exact" if case.asking.whole else "estimate"
    case.tell("gradient_gap", value, kind, case.here_name, "exact gradients, root mean square over pairs")


def heterogeneity(case: Case) -> None:
    """zeta on the path: the widest gap of two clients' gradients at a visited model, over H."""
    top = case.value("smoothness")
    if case.known("gradient_heterogeneity") or not top:
        return
    widest = {name: float(np.sqrt(pair_squares(slopes).max())) for name, slopes in case.gradients.items()}
    at = max(widest, key=lambda name: widest[name])
    value = widest[at] / top
    how = f"widest gap of exact gradients over H, at {len(widest)} models"
    note = _prediction(case, top)
    case.tell("gradient_heterogeneity", value, "lower bound", at, how, low=value, note=note)


def _prediction(case: Case, top: float) -> str:
    """Proposition 3 on the ball that was visited."""
    optima = case.facts.optima if case.optima is None else case.optima
    bottom, tau = case.value("strong_convexity"), case.value("hessian_heterogeneity")
    far = case.value("mean_optima_distance")
    if not bottom or optima is None or tau is None or far is None:
        return "grows with the ball that is visited"
    radius = max(float(np.linalg.norm(point - case.start)) for point in [*case.path, case.best])
    bound = proposition_3(
        optima=optima, radius=radius, smoothness=top, strong_convexity=bottom, hessian_heterogeneity=tau,
        mean_optima_distance=far,
    )  # fmt: skip
    return f"Proposition 3 allows {float(np.max(bound)) / top:.3g} within {radius:.3g} of the start"
