"""Trends of curves that are means over repetitions, judged with bootstrap intervals over those repetitions."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

LEVEL = 0.95
_RESAMPLES = 1000


def spearman(curves: np.ndarray) -> np.ndarray:
    """The rank correlation of the last axis with its own order; 0 where a curve is constant."""
    ranks = stats.rankdata(curves, axis=-1)
    order = np.arange(ranks.shape[-1]) - (ranks.shape[-1] - 1) / 2
    centred = ranks - ranks.mean(axis=-1, keepdims=True)
    size = np.sqrt((centred**2).sum(-1) * (order**2).sum())
    return np.asarray(np.where(size > 0, centred @ order / np.where(size > 0, size, 1.0), 0.0))


def resampled(repetitions: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The statistic of the mean over bootstrap samples of the leading axis; `statistic` takes a stack of means."""
    n = len(repetitions)
    shares = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES) / n
    return np.asarray(statistic(np.tensordot(shares, repetitions, axes=1)))


def interval(
    repetitions: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray] = lambda means: means
) -> tuple[float, float, float]:
    """The statistic of the mean over repetitions, and the ends of its bootstrap interval."""
    ends = np.quantile(resampled(repetitions, statistic), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(statistic(repetitions.mean(axis=0, keepdims=True))[0]), float(ends[0]), float(ends[1])


def bands(repetitions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A mean curve and the pointwise ends of its bootstrap interval; repetitions are (n, points)."""
    low, high = np.quantile(resampled(repetitions, lambda means: means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return repetitions.mean(axis=0), low, high


def log_variance_ratio(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Jackknife pseudo-values of log(variance of `first` / variance of `second`) over paired repetitions (Miller).

    Their mean estimates the log ratio and a t-interval of them is its interval. Repetitions are (n,), or (n, points)
    for the mean of the variances at several points. NaN where there are fewer than three repetitions, or no spread.
    """
    n = len(first)
    if n < 3:
        return np.full(n, np.nan)
    rest = ~np.eye(n, dtype=bool)
    samples = [np.ones(n, dtype=bool), *rest]
    variances = np.array([[np.var(v[s], axis=0, ddof=1).mean() for s in samples] for v in (first, second)])
    if not (variances > 0).all():
        return np.full(n, np.nan)
    ratio = np.log(variances[0] / variances[1])
    return np.asarray(n * ratio[0] - (n - 1) * ratio[1:])


def decide(low: float, high: float, threshold: float) -> bool | None:
    """Above the threshold, below it, or not decided."""
    return True if low > threshold else False if high < threshold else None


def all_hold(*verdicts: bool | None) -> bool | None:
    """The verdict on all together: one that fails decides, else one that is open leaves them open."""
    return False if False in verdicts else None if None in verdicts else True


def all_grow(curves: Mapping[str, np.ndarray], threshold: float) -> tuple[bool | None, str]:
    """Whether the mean of every family of curves (n, points) has a Spearman coefficient above the threshold."""
    found = {name: interval(family, spearman) for name, family in curves.items()}
    verdicts = [decide(low, high, threshold) for _, low, high in found.values()]
    weakest = min(found, key=lambda name: found[name][1])
    value, low, high = found[weakest]
    text = f"Spearman {value:.3f} ({LEVEL:.0%} interval {low:.3f} to {high:.3f}) at {weakest}"
    if len(found) > 1:
        text = f"weakest of {len(found)}: {text}"
    return all_hold(*verdicts), text
