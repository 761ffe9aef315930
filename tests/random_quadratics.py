"""Random quadratic federations side by side, their constants, and local SGD on them, all typed out in plain NumPy.

Arrays lead with the axis of instances: hessians (n, M, d, d), optima (n, M, d), points (n, d), numbers (n,).
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

CELLS = [  # clients, dimension, local steps, rounds
    (1, 1, 1, 1), (1, 3, 5, 3), (1, 2, 40, 2), (2, 1, 1, 4), (2, 1, 7, 2), (2, 2, 1, 1), (2, 2, 2, 20), (2, 2, 25, 3),
    (2, 4, 100, 1), (3, 1, 3, 3), (3, 2, 1, 20), (3, 2, 10, 5), (3, 5, 2, 2), (3, 3, 60, 2), (5, 2, 1, 50),
    (5, 2, 4, 4), (5, 6, 15, 2), (8, 1, 2, 8), (8, 3, 1, 3), (8, 4, 8, 8), (8, 2, 200, 1), (12, 3, 3, 12),
]  # fmt: skip
PER_CELL = 50  # 22 cells: 1100 instances


@dataclasses.dataclass
class Batch:
    hessians: np.ndarray
    optima: np.ndarray
    x0: np.ndarray
    step_size: np.ndarray
    noise: np.ndarray
    num_local_steps: int
    rounds: int

    def __post_init__(self) -> None:
        values = np.linalg.eigvalsh(self.hessians)
        self.smoothness, self.strong_convexity = values.max(axis=(1, 2)), np.maximum(values.min(axis=(1, 2)), 0.0)
        differences = self.hessians[:, :, None] - self.hessians[:, None]
        self.hessian_heterogeneity = np.abs(np.linalg.eigvalsh(differences)).max(axis=(1, 2, 3))
        pairs = np.linalg.norm(self.optima[:, :, None] - self.optima[:, None], axis=-1)
        self.optima_heterogeneity = (pairs**4).mean(axis=(1, 2)) ** 0.25
        self.mean_optima_distance = np.linalg.norm(self.optima - self.x0[:, None], axis=-1).mean(axis=1)
        self.x_star = balance(self.hessians, self.optima)
        gaps = np.linalg.norm(self.optima - self.x_star[:, None], axis=-1)
        self.optima_distance = (gaps**4).mean(axis=1) ** 0.25

    def numbers(self, *names: str) -> dict:
        return {name: getattr(self, name) for name in names}

    @property
    def num_clients(self) -> int:
        return self.optima.shape[1]

    def local_matrix(self) -> np.ndarray:
        """I - eta A_m."""
        return np.eye(self.optima.shape[2]) - self.step_size[:, None, None, None] * self.hessians

    def round_matrices(self) -> np.ndarray:
        """C_m as eta A_m (I + (I - eta A_m) + ... ), which does not cancel."""
        total = np.zeros_like(self.hessians)
        for _ in range(self.num_local_steps):
            total = np.eye(self.optima.shape[2]) + self.local_matrix() @ total
        return self.step_size[:, None, None, None] * self.hessians @ total

    def fixed_point(self) -> np.ndarray:
        return balance(self.round_matrices(), self.optima)

    def error(self, point: np.ndarray, beta: np.ndarray | float = 1.0) -> np.ndarray:
        """E|x_R - point|^2 from x0 with isotropic noise of variance noise^2: mean and covariance, step by step."""
        beta, d = np.broadcast_to(beta, self.step_size.shape), self.optima.shape[2]
        x, cov, local = self.x0, np.zeros((len(self.x0), d, d)), self.local_matrix()
        fresh = (self.step_size * self.noise) ** 2 / d
        for _ in range(self.rounds):
            y, grown, kept = np.repeat(x[:, None], self.num_clients, axis=1), np.zeros_like(self.hessians), np.eye(d)
            for _ in range(self.num_local_steps):
                y = self.optima + np.einsum("nmij,nmj->nmi", local, y - self.optima)
                grown = local @ grown @ local + fresh[:, None, None, None] * np.eye(d)
                kept = local @ kept
            x = x + beta[:, None] * (y.mean(axis=1) - x)
            keep = np.eye(d) + beta[:, None, None] * (kept.mean(axis=1) - np.eye(d))
            cov = (
                keep @ cov @ np.swapaxes(keep, 1, 2) + beta[:, None, None] ** 2 * grown.mean(axis=1) / self.num_clients
            )
        return np.sum((x - point) ** 2, axis=1) + np.trace(cov, axis1=1, axis2=2)


def balance(matrices: np.ndarray, optima: np.ndarray) -> np.ndarray:
    """The x with mean C_m (x - x_m) = 0."""
    pull = np.einsum("nmij,nmj->ni", matrices, optima) / optima.shape[1]
    return np.linalg.solve(matrices.mean(axis=1), pull[..., None])[..., 0]


def batches(seed: int) -> Iterator[Batch]:
    """At least 1000 strongly convex instances: conditioning from 1 to 1e4, eta H from 1e-4 to 1 - 1e-9."""
    rng = np.random.default_rng(seed)
    for num_clients, d, num_local_steps, rounds in CELLS:
        n = PER_CELL
        hessians = random_hessians(rng, n, num_clients, d)
        optima = rng.normal(size=(n, num_clients, d)) * 10 ** rng.uniform(-2, 1, size=(n, num_clients, 1))
        x0 = rng.normal(size=(n, d)) * rng.choice([0.0, 1.0, 5.0], size=(n, 1))
        top = np.linalg.eigvalsh(hessians).max(axis=(1, 2))
        share = np.where(rng.random(n) < 0.5, 10 ** rng.uniform(-4, -0.01, n), rng.uniform(0.3, 1, n))
        share[:3] = 1 - 1e-9, 1 - 1e-3, 1e-4
        noise = rng.choice([0.0, 0.1, 3.0], size=n)
        yield Batch(hessians, optima, x0, share / top, noise, num_local_steps, rounds)


def random_hessians(rng: np.random.Generator, n: int, num_clients: int, d: int) -> np.ndarray:
    """Mixtures of one shared and one own matrix per client, so that tau goes from 0 to the order of H."""
    own = _matrices(rng, (n, num_clients), d)
    shared = _matrices(rng, (n, 1), d)
    mix = rng.choice([0.0, 0.01, 0.3, 1.0], size=(n, 1, 1, 1))
    return (mix * own + (1 - mix) * shared) * 10 ** rng.uniform(-2, 2, size=(n, 1, 1, 1))


def _matrices(rng: np.random.Generator, shape: tuple[int, int], d: int) -> np.ndarray:
    rotations = np.linalg.qr(rng.normal(size=(*shape, d, d)))[0]
    spread = rng.choice([0.0, 1.0, 4.0], size=(shape[0], 1, 1))
    values = 10 ** (-spread * rng.random((*shape, d)))
    return rotations * values[..., None, :] @ np.swapaxes(rotations, -1, -2)


def within(measured: np.ndarray, bound: np.ndarray, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """measured <= bound, up to rounding relative to the bound and to the scale of the numbers it came from."""
    return measured <= bound * (1 + 1e-9) + 1e-10 * np.asarray(scale)
