"""What the recipes of the fixed point of local GD share: random clients in the plane, and paths of the fixed point."""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from sojourn.core.facts import Facts
from sojourn.problems.quadratic_facts import quadratic_facts
from sojourn.theory.identities import local_sgd_fixed_point

SMOOTHNESS, STRONG_CONVEXITY = 6.0, 1.0  # of figures 4.1 and 4.2


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
    """Quadratic clients in the plane; `facts` is what is known of them."""

    hessians: np.ndarray  # (M, 2, 2)
    optima: np.ndarray  # (M, 2)
    facts: Facts

    @property
    def x_star(self) -> np.ndarray:
        return np.asarray(self.facts.x_star)

    @property
    def mean_optimum(self) -> np.ndarray:
        return np.asarray(self.optima.mean(axis=0))

    @property
    def gap(self) -> float:
        """From x* to the mean of the optima."""
        return float(np.linalg.norm(self.x_star - self.mean_optimum))


def turned(angles: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
    """Hessians (M, 2, 2) with curvatures (M, 2), the first along the angle, the second across."""
    cos, sin = np.cos(angles), np.sin(angles)
    axes = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=-2)
    hessians = np.einsum("mik,mk,mjk->mij", axes, curvatures, axes)
    return np.asarray((hessians + np.swapaxes(hessians, 1, 2)) / 2)


def clients_of(hessians: np.ndarray, optima: np.ndarray) -> Clients:
    return Clients(hessians, optima, quadratic_facts(hessians, optima))


def draw_clients(seed: int, *, own_spectra: bool = False, num_clients: int = 5) -> Clients:
    """The clients of figures 4.1 and 4.2, of which the thesis says M = 5, mu = 1 and H = 6.

    Directions and optima (in [-2, 2]^2) are uniform. Curvatures are 6 and 1 for every client, or with own_spectra
    uniform between them, where 6 and 1 are still reached.
    """
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, np.pi, num_clients)
    optima = rng.uniform(-2, 2, (num_clients, 2))
    curvatures = np.tile([SMOOTHNESS, STRONG_CONVEXITY], (num_clients, 1))
    if own_spectra:
        curvatures = rng.uniform(STRONG_CONVEXITY, SMOOTHNESS, (num_clients, 2))
        curvatures[0, 0], curvatures[-1, 1] = SMOOTHNESS, STRONG_CONVEXITY
    return clients_of(turned(angles, curvatures), optima)


def path(clients: Clients, step_size: Callable[[float], float], steps: Iterable[int]) -> np.ndarray:
    """The fixed points (number of K, 2) for the numbers of local steps K, with a step size that may depend on K."""
    return np.stack([
        local_sgd_fixed_point(
            hessians=clients.hessians, optima=clients.optima, step_size=step_size(float(k)), num_local_steps=k
        )
        for k in steps
    ])  # fmt: skip


def falls(values: np.ndarray, by: float = -1e-12) -> bool:
    """Whether a sequence falls at every step by at least so much; as it is, whether it never rises up to rounding."""
    return bool((np.diff(values) <= -by).all())


def distances(points: np.ndarray, to: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(points - to, axis=-1))
