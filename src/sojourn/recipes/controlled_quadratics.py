"""Quadratic federations with given H, mu, tau, zeta_*, phi_* and sigma, all at once; the rest is drawn by a seed.

The clients share one spectrum, from mu to H in equal ratios, and differ in its frame: turning the frames apart raises
tau and leaves H and mu alone. The optima spread around one point; an overall factor sets zeta_*. Leaning them along
(A_m - A) u, with A the mean Hessian, couples optima to curvatures and moves x_* away from all of them: that sets phi_*
(zeta_* <= 2 phi_*; without the lean, phi_* is about 0.7 zeta_*). Both dials are found by bisection.
"""

from collections.abc import Callable

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.problems.quadratic import quadratic
from sojourn.problems.quadratic_facts import hessian_gap, quadratic_facts

_HALVINGS = 40


def controlled_quadratic(
    *,
    seed: int,
    smoothness: float = 1.0,
    condition: float = 10.0,
    tau: float = 0.0,
    zeta_star: float = 0.0,
    phi_star: float | None = None,
    noise: float = 0.0,
    num_clients: int = 10,
    dimension: int = 20,
) -> Federation:
    """tau in units of `smoothness`; phi_star None: what optima that do not lean have."""
    rng = np.random.default_rng(seed)
    spectrum = np.geomspace(smoothness / condition, smoothness, dimension)
    turns = rng.normal(size=(num_clients, dimension, dimension))
    spread = rng.normal(size=(num_clients, dimension))

    def hessians(rotation: float) -> np.ndarray:
        frames, _ = np.linalg.qr((1 - rotation) * np.eye(dimension) + rotation * turns)
        found = (frames * spectrum) @ np.swapaxes(frames, 1, 2)
        return np.asarray((found + np.swapaxes(found, 1, 2)) / 2)

    turned = _dial(lambda r: hessian_gap(hessians(r)), tau * smoothness, "tau") if tau else 0.0
    a = hessians(turned)
    centre = np.ones(dimension)
    if not zeta_star:
        return quadratic(a, np.tile(centre, (num_clients, 1)), noise)
    mean = a.mean(axis=0)
    away = (a - mean) @ np.linalg.eigh(mean)[1][:, 0]  # u: where the mean objective is flattest
    away /= max(np.linalg.norm(away, axis=1).mean(), 1e-300)

    def optima(lean: float) -> np.ndarray:
        around = (1 - lean) * spread / np.sqrt(dimension) + lean * away
        unit = quadratic_facts(a, around).optima_heterogeneity
        assert unit is not None
        return np.asarray(centre + around * zeta_star / unit)

    def distance(lean: float) -> float:
        return float(quadratic_facts(a, optima(lean)).optima_distance or 0.0)

    lean = 0.0 if phi_star is None else _dial(distance, phi_star, "phi_star")
    return quadratic(a, optima(lean), noise)


def _dial(measure: Callable[[float], float], wanted: float, name: str) -> float:
    """The place on a dial from 0 to 1 where a measure that grows along it has the wanted value."""
    low, high = 0.0, 1.0
    if not measure(low) <= wanted <= measure(high):
        raise SojournError(f"{name} = {wanted:g} is out of reach; give {measure(low):.3g} to {measure(high):.3g}.")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle) < wanted else (low, middle)
    return (low + high) / 2
