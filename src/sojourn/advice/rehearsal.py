"""Rehearsals: the contenders on a federation in miniature, thousands of rounds in a second.

On a quadratic client a walk of K gradient steps has a closed form in the eigenvectors of its Hessian, so that K costs
nothing: from x, K steps of size eta along A x + g end at x + phi(A) (A x + g) + e with
phi(a) = -(1 - (1 - eta a)^K)/a and e Gaussian of variance eta^2 s^2 (1 - r^(2K))/(1 - r^2), r = 1 - eta a.
All settings of a method run side by side, whatever their K. The tests hold every method against the engine's own run.

Noise is additive here, and independent in the directions of a client's eigenvectors; where fewer clients stand in the
miniature than take part, theirs is scaled so that the mean's is right. Shapes: k directions, M clients, S settings,
n seeds; a model is (k, S, n), a client's (M, k, S, n).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.diagnosis.findings import Miniature

State = dict[str, np.ndarray]
_LIMIT = 1e6  # a value so many times as far up as the start's has diverged


@dataclasses.dataclass(frozen=True)
class Picture:
    """A miniature made ready: every client in its own eigenvectors."""

    values: np.ndarray  # (M, k) eigenvalues
    vectors: np.ndarray  # (M, k, k)
    gradients: np.ndarray  # (M, k), standard directions, at y = 0
    weights: np.ndarray  # (M,)
    start: np.ndarray  # (k,)
    loss: float  # mean, at y = 0
    spread: np.ndarray  # (M, k) standard deviations of a client's noise along its eigenvectors
    mean_root: np.ndarray  # (k, k) root of the covariance of everyone's mean noise for one call each
    convexified: bool = False

    @functools.cached_property
    def hessian(self) -> np.ndarray:
        return np.einsum("m,mik,mk,mjk->ij", self.weights, self.vectors, self.values, self.vectors)

    @functools.cached_property
    def gradient(self) -> np.ndarray:
        return self.weights @ self.gradients

    @property
    def smoothness(self) -> float:
        return float(self.values.max())

    @functools.cached_property
    def optimum(self) -> np.ndarray:
        return np.asarray(-np.linalg.pinv(self.hessian, rcond=1e-9, hermitian=True) @ self.gradient)

    @functools.cached_property
    def least(self) -> float:
        """The mean loss at its minimum."""
        return float(self.loss + self.gradient @ self.optimum / 2)

    @functools.cached_property
    def noisy(self) -> bool:
        return bool(self.spread.any())

    def metric(self, kind: str, x: np.ndarray) -> np.ndarray:
        """Of models (k, ...): the loss, the gradient's norm or the distance to the optimum."""
        if kind == "distance":
            return np.asarray(np.linalg.norm((x.T - self.optimum).T, axis=0))
        pulled = np.tensordot(self.hessian, x, 1)
        if kind == "grad":
            return np.asarray(np.linalg.norm((pulled.T + self.gradient).T, axis=0))
        return np.asarray(self.loss + np.tensordot(self.gradient, x, 1) + (x * pulled).sum(0) / 2)


def picture_of(miniature: Miniature, num_clients: int, *, convexify: bool = False, noise_scale: float = 1.0) -> Picture:
    """The miniature in eigenvectors; negative curvature is folded up where it is to be convex (saddle-free)."""
    values, vectors = np.linalg.eigh(miniature.hessians)
    folded = convexify and bool((values < 0).any())
    values = np.abs(values) if folded else values
    weights = miniature.weights / miniature.weights.sum()
    # where fewer clients stand in the picture than take part, they are as much less noisy as there are more of those
    share = noise_scale**2 * len(weights) / num_clients
    covariance = np.asarray(miniature.noise + miniature.noise.T, float) / 2 * share
    along = np.einsum("mik,ij,mjk->mk", vectors, covariance, vectors)
    own, basis = np.linalg.eigh(covariance * float((weights**2).sum()))
    return Picture(
        values=values, vectors=vectors, gradients=miniature.gradients, weights=weights, start=miniature.start,
        loss=float(weights @ miniature.losses), spread=np.sqrt(np.maximum(along, 0)),
        mean_root=basis * np.sqrt(np.maximum(own, 0)) @ basis.T, convexified=folded,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Grid:
    """The settings of one method, side by side."""

    name: str  # in ALGORITHMS
    steps: np.ndarray  # (S,) step sizes; for AC-SA the inverse of its smoothness
    local_steps: np.ndarray  # (S,) K
    outer: np.ndarray  # (S,) outer steps; for FedAc its mu, for AC-SA its mu


class Stage:
    """A picture with the randomness of a rehearsal, and what the methods share."""

    def __init__(self, picture: Picture, grid: Grid, num_seeds: int, cohort: int, seed: int = 0):
        self.picture, self.grid, self.cohort = picture, grid, cohort
        self.rng = np.random.default_rng(seed)
        self.num_seeds = num_seeds
        self.inward = np.swapaxes(picture.vectors, 1, 2)  # into a client's eigenvectors
        self.drift, self.jitter = self.walk(picture.values)
        self.pull = np.einsum("mkj,mj->mk", self.inward, picture.gradients)[:, :, None, None]
        self.curvature = picture.values[:, :, None, None]

    def walk(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """phi, and the standard deviation of the walk's end, (M, k, S, 1)."""
        a, eta, K = values[:, :, None, None], self.grid.steps[:, None], self.grid.local_steps[:, None]
        kept = 1 - eta * a
        flat = np.abs(eta * a) * K < 1e-9
        phi = -np.where(flat, eta * K, (1 - kept**K) / np.where(a == 0, 1, a))
        grown = np.where(np.abs(1 - kept**2) * K < 1e-9, K, (1 - kept ** (2 * K)) / np.where(flat, 1, 1 - kept**2))
        return phi, eta * np.sqrt(np.abs(grown)) * self.picture.spread[:, :, None, None]

    def models(self) -> np.ndarray:
        shape = (len(self.picture.start), len(self.grid.steps), self.num_seeds)
        return np.broadcast_to(self.picture.start[:, None, None], shape).copy()

    def inside(self, x: np.ndarray) -> np.ndarray:
        """A model (k, S, n) as every client sees it, (M, k, S, n)."""
        return np.tensordot(self.inward, x, 1)

    def members(self) -> np.ndarray:
        """Weights of a round's cohort, (M,); the same for all settings, so that they meet the same fate."""
        w = self.picture.weights
        if self.cohort >= len(w):
            return w
        drawn = np.zeros(len(w))
        drawn[self.rng.choice(len(w), self.cohort, replace=False)] = 1
        return np.asarray(drawn * w / (drawn @ w))

    def mean(self, answers: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The mean of answers (M, k, S, n), in standard directions."""
        return np.tensordot(self.picture.vectors * weights[:, None, None], answers, ((0, 2), (0, 1)))

    def noise(self) -> np.ndarray:
        """Of every client and seed, the same for all settings: standard normal, (M, k, 1, n)."""
        shape = (*self.picture.values.shape, 1, self.num_seeds)
        return self.rng.standard_normal(shape) if self.picture.noisy else np.zeros(shape)

    def gradient(self, x: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """The mean gradient at x, K calls of every client."""
        p = self.picture
        K = self.grid.local_steps[:, None]
        if self.cohort >= len(p.weights):
            exact = np.tensordot(p.hessian, x, 1) + p.gradient[:, None, None]
            if not p.noisy:
                return exact
            normal = self.rng.standard_normal((len(p.start), 1, self.num_seeds))
            return exact + np.tensordot(p.mean_root, normal, 1) / np.sqrt(K)
        own = self.curvature * self.inside(x) + self.pull
        own = own + p.spread[:, :, None, None] * self.noise() / np.sqrt(K)
        return self.mean(own, self.members() if weights is None else weights)


def _minibatch_sgd(stage: Stage) -> Iterator[np.ndarray]:
    x, step = stage.models(), stage.grid.steps[:, None]
    while True:
        x = x - step * stage.gradient(x)
        yield x


def _ac_sa(stage: Stage) -> Iterator[np.ndarray]:
    """As algorithms/ac_sa.py, whose smoothness L is 1/step and whose mu is `outer`."""
    x = x_ag = stage.models()
    L, mu = 1 / stage.grid.steps[:, None], stage.grid.outer[:, None]
    t = 0
    while True:
        t += 1
        alpha, gamma = 2 / (t + 1), 4 * L / (t * (t + 1))
        x_md = (1 - alpha) * (mu + gamma) * x_ag + alpha * ((1 - alpha) * mu + gamma) * x
        x_md = x_md / (gamma + (1 - alpha**2) * mu)
        x = (alpha * mu * x_md + ((1 - alpha) * mu + gamma) * x - alpha * stage.gradient(x_md)) / (mu + gamma)
        x_ag = alpha * x + (1 - alpha) * x_ag
        yield x_ag


def _local_sgd(stage: Stage) -> Iterator[np.ndarray]:
    x, outer = stage.models(), stage.grid.outer[:, None]
    while True:
        moved = stage.drift * (stage.curvature * stage.inside(x) + stage.pull) + stage.jitter * stage.noise()
        x = x + outer * stage.mean(moved, stage.members())
        yield x


def _scaffold(stage: Stage) -> Iterator[np.ndarray]:
    """Option II; controls are kept in the clients' eigenvectors."""
    x, outer = stage.models(), stage.grid.outer[:, None]
    length = (stage.grid.local_steps * stage.grid.steps)[:, None]
    own = np.zeros_like(stage.inside(x))
    common = np.zeros_like(x)
    while True:
        weights = stage.members()
        correction = stage.inside(common) - own
        moved = stage.drift * (stage.curvature * stage.inside(x) + stage.pull + correction)
        moved = moved + stage.jitter * stage.noise()
        here = (weights > 0)[:, None, None, None]
        new = np.where(here, -moved / length - correction, own)
        x = x + outer * stage.mean(moved, weights)
        common = common + stage.mean(new - own, stage.picture.weights)
        own = new
        yield x


def _fedac(stage: Stage) -> Iterator[np.ndarray]:
    """Version I; a step is linear in (w, w_ag, 1) along every eigenvector."""
    end, jitter = fedac_walk(stage)
    w = w_ag = stage.models()
    while True:
        weights, normal = stage.members(), [stage.noise(), stage.noise()]
        a, b = stage.inside(w), stage.inside(w_ag)
        pair = [
            end[..., i, 0] * a + end[..., i, 1] * b + end[..., i, 2] * stage.pull
            + sum(jitter[..., i, j] * normal[j] for j in range(2))
            for i in range(2)
        ]  # fmt: skip
        w, w_ag = (stage.mean(part, weights) for part in pair)
        yield w_ag


def fedac_walk(stage: Stage) -> tuple[np.ndarray, np.ndarray]:
    """K steps as a matrix (M, k, S, 1, 2, 3) on (w, w_ag, gradient at 0), and the root of their noise's covariance."""
    eta, mu, K = stage.grid.steps, stage.grid.outer, stage.grid.local_steps
    gamma = np.maximum(np.sqrt(eta / (mu * K)), eta)
    alpha = np.maximum(1 / (gamma * mu), 1 + 1e-9)
    beta = alpha + 1
    a = stage.picture.values[:, :, None]
    step = np.zeros((*stage.picture.values.shape, len(eta), 3, 3))
    middle = np.stack([1 / beta, 1 - 1 / beta], -1)  # w_md in terms of (w, w_ag)
    step[..., 0, :2] = middle / alpha[:, None] - (gamma * a)[..., None] * middle
    step[..., 0, 0] += 1 - 1 / alpha
    step[..., 1, :2] = middle - (eta * a)[..., None] * middle
    step[..., 0, 2], step[..., 1, 2], step[..., 2, 2] = -gamma, -eta, 1.0
    end, covariance = np.zeros_like(step) + np.eye(3), np.zeros((*step.shape[:3], 2, 2))
    fresh = step[..., :2, 2:] * np.swapaxes(step[..., :2, 2:], -1, -2)
    linear = step[..., :2, :2]
    for k in range(int(K.max())):
        going = (k < K)[:, None, None]
        end = np.where(going, step @ end, end)
        grown = linear @ covariance @ np.swapaxes(linear, -1, -2) + fresh
        covariance = np.where(going, grown, covariance)
    own, vectors = np.linalg.eigh(np.nan_to_num(covariance, posinf=1e300, neginf=-1e300))
    root = vectors * np.sqrt(np.maximum(own, 0))[..., None, :]
    root = root * stage.picture.spread[:, :, None, None, None]
    return end[:, :, :, None, :2, :], root[:, :, :, None]


def _ce_lsgd(stage: Stage) -> Iterator[np.ndarray]:
    """With additive noise the same samples at two models differ by the Hessian alone; `outer` is the momentum."""
    momentum, K = stage.grid.outer[:, None], stage.grid.local_steps[:, None]
    p, x = stage.picture, stage.models()
    before, v, first = x, np.zeros_like(x), True
    flat = lambda y: np.tensordot(p.hessian, y, 1) + p.gradient[:, None, None]  # noqa: E731
    while True:
        noise = np.zeros_like(x)
        if p.noisy:
            normal = stage.rng.standard_normal((len(p.start), 1, stage.num_seeds))
            noise = np.tensordot(p.mean_root, normal, 1) / np.sqrt(K)
        v = flat(x) + noise if first else flat(x) + momentum * noise + (1 - momentum) * (v - flat(before))
        before = x
        if first:
            x = x - stage.grid.steps[:, None] * v
        else:
            walked = [_one_walks(stage, client, v[..., n]) for n, client in enumerate(_drawn(stage))]
            x = x + np.stack(walked, -1)
        first = False
        yield x


def _drawn(stage: Stage) -> Any:
    return stage.rng.integers(len(stage.picture.weights), size=stage.num_seeds)


def _one_walks(stage: Stage, client: int, v: np.ndarray) -> np.ndarray:
    return np.asarray(stage.picture.vectors[client] @ (stage.drift[client, :, :, 0] * (stage.inward[client] @ v)))


PLAYS: dict[str, Callable[[Stage], Iterator[np.ndarray]]] = {
    "minibatch-sgd": _minibatch_sgd,
    "ac-sa": _ac_sa,
    "local-sgd": _local_sgd,
    "scaffold": _scaffold,
    "fedac": _fedac,
    "ce-lsgd": _ce_lsgd,
}


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """When every setting reached the target, its spread over seeds too; inf where it did not, nan where it diverged."""

    grid: Grid
    rounds: np.ndarray  # (S,)
    best_value: np.ndarray  # (S,) the lowest value of the target's metric on the way
    settled: np.ndarray  # (S,) the round from which that fell by less than a hundredth


def rehearse(
    picture: Picture, grid: Grid, kind: str, target: float, max_rounds: int, *, num_seeds: int = 1,
    cohort: int | None = None, patience: float = 2.2, seed: int = 0,
) -> Rehearsed:  # fmt: skip
    """Plays all settings until they reached the target, and not longer than `patience` times the first of them."""
    clients = len(picture.weights)
    with np.errstate(all="ignore"):  # long steps overflow: they diverge
        stage = Stage(picture, grid, num_seeds, clients if cohort is None else cohort, seed)
    rounds = np.full(len(grid.steps), np.inf)
    low = np.broadcast_to(picture.metric(kind, stage.models()).mean(-1), rounds.shape).copy()
    base = picture.least if kind == "loss" else 0.0
    limit = base + _LIMIT * max(float(low[0]) - base, 1e-300)
    last, gone = max_rounds, _beyond_its_curvature(picture, grid)
    anchor, settled = low.copy(), np.zeros(len(rounds))
    # products this small are done before threads have met: on a busy machine those take thirty times as long
    with np.errstate(all="ignore"), threadpool_limits(1, "blas"):
        for number, x in enumerate(PLAYS[grid.name](stage), 1):
            value = _likely(picture.metric(kind, x))
            gone |= ~(value <= limit)
            low = np.where(gone, low, np.fmin(low, value))
            fell = low - base < 0.99 * (anchor - base)
            anchor, settled = np.where(fell, low, anchor), np.where(fell, number, settled)
            rounds = np.where(~gone & np.isinf(rounds) & (value <= target), number, rounds)
            if number == 1 or np.isfinite(rounds).any():
                last = min(last, int(patience * np.min(rounds[np.isfinite(rounds)], initial=max_rounds)) + 5)
            if number >= last or not (np.isinf(rounds) & ~gone).any():
                break
    return Rehearsed(grid, np.where(gone & np.isinf(rounds), np.nan, rounds), low, settled)


def _likely(values: np.ndarray) -> np.ndarray:
    """What a run stays below with odds of about five to one: mean and standard deviation over seeds, (S, n) to (S,).

    By the mean alone a contest of many settings is won by those that touch the target by luck.
    """
    mean = values.mean(-1)
    return np.asarray(mean if values.shape[-1] == 1 else mean + values.std(-1, ddof=1))


def _beyond_its_curvature(picture: Picture, grid: Grid) -> np.ndarray:
    """Settings of AC-SA whose L is below the mean curvature: they may begin well, and diverge in the end."""
    if grid.name != "ac-sa":
        return np.zeros(len(grid.steps), bool)
    return np.asarray(grid.steps * np.linalg.eigvalsh(picture.hessian)[-1] > 1 + 1e-6)
