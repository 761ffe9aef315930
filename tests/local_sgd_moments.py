"""Exact moments of Local SGD on a thousand random federations at once, for the tests of theory.

Quadratics with Gaussian noise keep a Gaussian law: mean and covariance of all clients together say everything.
Functions with a third derivative get noise of two values, and all its outcomes are enumerated. Neither is sampled.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

GAUSSIAN = [(M, K, 2) for M in (1, 2, 3, 4) for K in (1, 2, 5, 8)]  # clients, local steps, rounds
TWO_VALUED = [(1, 3, 3), (2, 2, 2), (2, 4, 1), (2, 5, 1), (3, 3, 1), (4, 2, 1)]  # at most 10 draws of 2 values in all
SECH_TANH = 2 / (3 * np.sqrt(3))  # the largest value of sech(u)^2 tanh(u)


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of N federations with the same numbers of clients and steps. Moments are (T + 1, N), constants (N,)."""

    facts: dict[str, Any]
    num_local_steps: int
    rounds: int
    quadratic: bool
    distance_sq: np.ndarray  # A(t)
    distance4: np.ndarray  # B(t)
    consensus_sq: np.ndarray  # C(t)
    consensus4: np.ndarray  # D(t)
    centred_sq: np.ndarray
    centred4: np.ndarray
    suboptimality: np.ndarray  # E(t)
    client_sq: np.ndarray  # (T + 1, N, M) E|x_t^m - x_m*|^2
    client4: np.ndarray
    client_to_star_sq: np.ndarray  # E|x_t^m - x*|^2
    client_to_star4: np.ndarray

    @property
    def steps_since(self) -> np.ndarray:
        return (np.arange(len(self.distance_sq)) % self.num_local_steps)[:, None]

    @property
    def last_communication(self) -> np.ndarray:
        steps = np.arange(len(self.distance_sq))
        return steps - steps % self.num_local_steps

    def in_units(self, scale: float) -> "Moments":
        """The same runs where all functions are `scale` times as large, and step sizes as much smaller."""
        grown = ("smoothness", "strong_convexity", "third_order_smoothness", "hessian_heterogeneity", "noise", "noise4")
        facts = {name: value * scale if name in grown else value for name, value in self.facts.items()}
        return dataclasses.replace(self, facts=facts | {"step_size": self.facts["step_size"] / scale})

    def of(self, *names: str) -> dict[str, Any]:
        return {name: self.facts[name] for name in names}


def powers(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E|y|^2 and E|y|^4 of Gaussians."""
    second = (mean**2).sum(-1) + np.trace(covariance, axis1=-2, axis2=-1)
    squared = (covariance**2).sum((-2, -1))
    along = np.einsum("...i,...ij,...j->...", mean, covariance, mean)
    return second, second**2 + 2 * squared + 4 * along


def _sometimes(rng: np.random.Generator, low: float, high: float, size: int, never: float) -> np.ndarray:
    """Powers of ten, and zeros with a probability."""
    return np.where(rng.random(size) < never, 0.0, 10 ** rng.uniform(low, high, size))


def random_psd(rng: np.random.Generator, kappa: np.ndarray, *shape: int) -> np.ndarray:
    """Eigenvalues between 1/kappa and 1."""
    q, _ = np.linalg.qr(rng.normal(size=shape))
    values = kappa.reshape(-1, *[1] * (len(shape) - 2)) ** -rng.random(shape[:-1])
    return np.einsum("...ij,...j,...kj->...ik", q, values, q)


def _step_sizes(rng: np.random.Generator, largest: float, H: np.ndarray) -> np.ndarray:
    return np.where(rng.random(len(H)) < 0.3, 1.0, 10 ** rng.uniform(-2, 0, len(H))) * largest / H


def pairs_mean(values: np.ndarray, power: int) -> np.ndarray:
    """(mean over all pairs of the power of |v_m - v_n|)^(1/power), the values (N, M, d)."""
    apart = np.linalg.norm(values[:, :, None] - values[:, None], axis=-1)
    return (apart**power).mean((1, 2)) ** (1 / power)


def quadratics(seed: int, N: int, M: int, K: int, largest: float, equal_hessians: bool) -> dict[str, Any]:
    """N random federations of quadratics. In a quarter x0 = x*, and noise, tau or zeta_* are often 0."""
    rng = np.random.default_rng([seed, M, K])
    d = int(rng.integers(2, 4))
    unit, kappa = 10 ** rng.uniform(-1, 1, N), 10 ** rng.uniform(0, 1.5, N)
    apart = np.zeros(N) if equal_hessians else np.minimum(_sometimes(rng, -2.5, 0.3, N, 0.2), 1.0)
    blend = apart[:, None, None, None]
    hessians = (1 - blend) * random_psd(rng, kappa, N, d, d)[:, None] + blend * random_psd(rng, kappa, N, M, d, d)
    hessians *= unit[:, None, None, None]
    optima = rng.normal(size=(N, 1, d)) + _sometimes(rng, -2, 1, N, 0.3)[:, None, None] * rng.normal(size=(N, M, d))
    mean = hessians.mean(1)
    x_star = np.linalg.solve(mean, np.einsum("nmij,nmj->ni", hessians, optima)[..., None] / M)[..., 0]
    x0 = x_star + _sometimes(rng, -2, 1, N, 0.3)[:, None] * rng.normal(size=(N, d))
    values = np.linalg.eigvalsh(hessians)
    H, mu = values.max((1, 2)), values.min((1, 2))
    differences = hessians[:, :, None] - hessians[:, None]
    gradients = np.einsum("nmij,nmj->nmi", hessians, optima)
    noise = unit * _sometimes(rng, -2, 1, N, 0.3)
    facts = {
        "smoothness": H, "strong_convexity": mu, "third_order_smoothness": np.zeros(N), "noise": noise,
        "hessian_heterogeneity": np.linalg.norm(differences, 2, axis=(-2, -1)).max((1, 2)),
        "optima_heterogeneity": pairs_mean(optima, 4), "noise4": noise * (1 + 2 / d) ** 0.25,
        "optima_distance": (np.linalg.norm(optima - x_star[:, None], axis=-1) ** 4).mean(1) ** 0.25,
        "num_clients": np.full(N, float(M)), "start_distance": np.linalg.norm(x0 - x_star, axis=-1),
        "step_size": _step_sizes(rng, largest, H),
    }  # fmt: skip
    if equal_hessians:
        apart_by = np.linalg.norm(gradients[:, :, None] - gradients[:, None], axis=-1)
        facts["gradient_heterogeneity"] = apart_by.max((1, 2)) / H
    return {"facts": facts, "hessians": hessians, "optima": optima, "x_star": x_star, "x0": x0}


def gaussian_moments(given: dict[str, Any], K: int, R: int) -> Moments:
    """By propagation of the mean (N, M, d) and the covariance (N, M, d, M, d) of all clients."""
    hessians, optima, x_star, x0 = (given[name] for name in ("hessians", "optima", "x_star", "x0"))
    N, M, d = optima.shape
    eta, noise = given["facts"]["step_size"], given["facts"]["noise"]
    step = np.eye(d) - eta[:, None, None, None] * hessians
    added = np.einsum("n,mk,ij->nmikj", (eta * noise) ** 2 / d, np.eye(M), np.eye(d))
    mean, cov = np.repeat(x0[:, None], M, 1), np.zeros((N, M, d, M, d))
    rows = []
    for t in range(K * R + 1):
        rows.append(_gaussian_row(mean, cov, hessians, optima, x_star))
        mean = optima + np.einsum("nmij,nmj->nmi", step, mean - optima)
        cov = np.einsum("nmia,nmakb,nkjb->nmikj", step, cov, step, optimize=True) + added
        if (t + 1) % K == 0:
            mean = np.repeat(mean.mean(1, keepdims=True), M, 1)
            cov = np.broadcast_to(cov.mean((1, 3), keepdims=True), cov.shape)
    # Rounding may leave a variance of 0 below it.
    stacked = {name: np.maximum(np.array([row[name] for row in rows]), 0.0) for name in rows[0]}
    return Moments(given["facts"], K, R, True, **stacked)


def _gaussian_row(
    mean: np.ndarray, cov: np.ndarray, hessians: np.ndarray, optima: np.ndarray, x_star: np.ndarray
) -> dict[str, np.ndarray]:
    average, spread = mean.mean(1), cov.mean((1, 3))
    own = np.einsum("nmimj->nmij", cov)
    apart = own[:, :, None] + own[:, None] - np.einsum("nmikj->nmkij", cov) - np.einsum("nkimj->nmkij", cov)
    with_mean = np.einsum("nmikj->nmij", cov) / mean.shape[1]
    centred = own + spread[:, None] - with_mean - np.swapaxes(with_mean, -1, -2)
    row = dict(zip(("distance_sq", "distance4"), powers(average - x_star, spread), strict=True))
    second, fourth = powers(mean[:, :, None] - mean[:, None], apart)
    row |= {"consensus_sq": second.mean((1, 2)), "consensus4": fourth.mean((1, 2))}
    second, fourth = powers(mean - average[:, None], centred)
    row |= {"centred_sq": second.mean(1), "centred4": fourth.mean(1)}
    row["client_sq"], row["client4"] = powers(mean - optima, own)
    row["client_to_star_sq"], row["client_to_star4"] = powers(mean - x_star[:, None], own)
    away, hessian = average - x_star, hessians.mean(1)
    row["suboptimality"] = (np.einsum("ni,nij,nj->n", away, hessian, away) + (hessian * spread).sum((1, 2))) / 2
    return row


def _log_cosh(u: np.ndarray) -> np.ndarray:
    return np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)


@dataclasses.dataclass(frozen=True)
class Smooth:
    """F_m(x) = a_m x^2/2 + c_m s^2 ln cosh((x - e)/s) - l_m x on the line: curvature from a_m to a_m + c_m."""

    a: np.ndarray  # (N, M), c and l too; s and e are (N, 1)
    c: np.ndarray
    linear: np.ndarray
    s: np.ndarray
    e: np.ndarray

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Of all clients, each at its own point: x is (..., N, M)."""
        return self.a * x + self.c * self.s * np.tanh((x - self.e) / self.s) - self.linear

    def gap(self, x: np.ndarray, x_star: np.ndarray) -> np.ndarray:
        """F(x) - F(x*) for x of shape (..., N), without the rounding of two values near each other."""
        moved, v = (x - x_star)[..., None], (x_star[:, None] - self.e) / self.s
        w = moved / self.s
        near = np.clip(w, -1, 1)
        log_near = np.log1p(2 * np.sinh(near / 2) ** 2 + np.tanh(v) * np.sinh(near))
        log_far = _log_cosh(v + w) - _log_cosh(v)
        straight = moved * (self.a * (x + x_star)[..., None] / 2 - self.linear)
        return (straight + self.c * self.s**2 * np.where(np.abs(w) < 1, log_near, log_far)).mean(-1)

    def zero(self, joint: bool) -> np.ndarray:
        """The optima of the clients (N, M), or that of their mean in all M places; by bisection."""
        low = np.full(self.a.shape, -1e4)
        high = -low
        for _ in range(200):
            middle = (low + high) / 2
            slope = self.gradient(middle)
            slope = np.broadcast_to(slope.mean(1, keepdims=True), slope.shape) if joint else slope
            low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
        return (low + high) / 2


def two_valued_moments(seed: int, N: int, M: int, K: int, R: int, largest: float, equal_hessians: bool) -> Moments:
    """Over all outcomes of noise that is u with probability p and -u p/(1-p) otherwise."""
    rng = np.random.default_rng([seed, M, K, R])
    unit, kappa = 10 ** rng.uniform(-1, 1, N), 10 ** rng.uniform(0.3, 1.5, N)
    blend = np.minimum(_sometimes(rng, -2.5, 0.3, N, 0.2), 1.0)[:, None]
    a = (unit / kappa)[:, None] * (1 + (0 if equal_hessians else 1) * blend * rng.random((N, M)))
    c = unit[:, None] * ((1 - blend) * rng.random((N, 1)) + blend * rng.random((N, M)))
    linear = unit[:, None] * (
        rng.normal(size=(N, 1)) + _sometimes(rng, -2, 1, N, 0.3)[:, None] * rng.normal(size=(N, M))
    )
    problem = Smooth(a, c, linear, 10 ** rng.uniform(-1.5, 0.5, (N, 1)), rng.normal(size=(N, 1)))
    optima, x_star = problem.zero(False), problem.zero(True)[:, 0]
    x0 = x_star + _sometimes(rng, -2, 1, N, 0.3) * rng.normal(size=N)
    p, u = rng.uniform(0.5, 0.95, N), unit * _sometimes(rng, -2, 1, N, 0.3)
    down = u * p / (1 - p)
    apart_a, apart_c = a[:, :, None] - a[:, None], c[:, :, None] - c[:, None]
    H = (a + c).max(1)
    facts = {
        "smoothness": H, "strong_convexity": a.min(1), "num_clients": np.full(N, float(M)),
        "third_order_smoothness": 2 * SECH_TANH * c.max(1) / problem.s[:, 0],
        "hessian_heterogeneity": np.maximum(np.abs(apart_a), np.abs(apart_a + apart_c)).max((1, 2)),
        "optima_heterogeneity": pairs_mean(optima[..., None], 4),
        "optima_distance": (np.abs(optima - x_star[:, None]) ** 4).mean(1) ** 0.25,
        "noise": np.sqrt(p * u**2 + (1 - p) * down**2), "noise4": (p * u**4 + (1 - p) * down**4) ** 0.25,
        "start_distance": np.abs(x0 - x_star), "step_size": _step_sizes(rng, largest, H),
    }  # fmt: skip
    if equal_hessians:  # only the linear parts' slopes stay apart far out; tanh is at most 1
        by = np.abs(apart_c) * problem.s[..., None] + np.abs(linear[:, :, None] - linear[:, None])
        facts["gradient_heterogeneity"] = by.max((1, 2)) / H
    return _enumerated(problem, facts, optima, x_star, x0, (p, u, down), K, R)


def _enumerated(
    problem: Smooth, facts: dict[str, Any], optima: np.ndarray, x_star: np.ndarray, x0: np.ndarray, noise: Any, K: int,
    R: int,
) -> Moments:  # fmt: skip
    N, M = optima.shape
    p, u, down = noise
    draws = K * R * M
    bits = (np.arange(2**draws)[:, None] >> np.arange(draws)) & 1  # 1: the value u
    weights = np.prod(np.where(bits[:, None, :] == 1, p[:, None], 1 - p[:, None]), axis=-1)  # (S, N)
    value = np.where(bits.reshape(-1, K * R, 1, M) == 1, u[:, None], -down[:, None])  # (S, T, N, M)
    x = np.broadcast_to(x0[:, None], (2**draws, N, M))
    rows = []
    for t in range(K * R + 1):
        mean = x.mean(-1)
        apart, centred = x[..., :, None] - x[..., None, :], x - mean[..., None]
        table = {
            "distance_sq": (mean - x_star) ** 2, "distance4": (mean - x_star) ** 4,
            "consensus_sq": (apart**2).mean((-2, -1)), "consensus4": (apart**4).mean((-2, -1)),
            "centred_sq": (centred**2).mean(-1), "centred4": (centred**4).mean(-1),
            "suboptimality": problem.gap(mean, x_star),
        }  # fmt: skip
        row = {name: (weights * values).sum(0) for name, values in table.items()}
        for name, target in (("client", optima), ("client_to_star", x_star[:, None])):
            row[name + "_sq"] = (weights[..., None] * (x - target) ** 2).sum(0)
            row[name + "4"] = (weights[..., None] * (x - target) ** 4).sum(0)
        rows.append(row)
        if t < K * R:
            x = x - facts["step_size"][:, None] * (problem.gradient(x) + value[:, t])
            x = np.repeat(x.mean(-1, keepdims=True), M, -1) if (t + 1) % K == 0 else x
    stacked = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Moments(facts, K, R, False, **stacked)


@functools.cache
def families(largest: float = 0.999, equal_hessians: bool = False, quadratic: bool | None = None) -> list[Moments]:
    """Over a thousand federations of each kind, with eta H at most `largest`; quadratic = None: both kinds.

    With equal Hessians' quadratic parts the gradients of clients differ by no more than H zeta anywhere.
    """
    if quadratic is None:
        return families(largest, equal_hessians, True) + families(largest, equal_hessians, False)
    if quadratic:
        return [gaussian_moments(quadratics(1, 70, M, K, largest, equal_hessians), K, R) for M, K, R in GAUSSIAN]
    return [two_valued_moments(2, 180, M, K, R, largest, equal_hessians) for M, K, R in TWO_VALUED]


def count(family: list[Moments]) -> int:
    return sum(m.distance_sq.shape[1] for m in family)


def above(left: Any, right: Any, scale: Any = 0.0) -> int:
    """How many entries of the left side are above the right, beyond rounding of numbers of the scale."""
    right = np.asarray(right)
    assert not np.isnan(right).any()
    rounding = 1e-9 * np.maximum(np.abs(left), np.abs(right)) + 1e-11 * np.asarray(scale) + 1e-20
    return int((np.asarray(left) > right + rounding).sum())
