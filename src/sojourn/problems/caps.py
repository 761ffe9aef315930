"""Points on spherical caps, and the linear regression of figure 5.1 that they parametrise (thesis, D.7).

Client m draws a ~ N(mean_m, I), y = <x_m, a> + N(0, noise_std^2), and pays 1/2 (y - <x, a>)^2, so that
F_m(x) = 1/2 (x - x_m)^T (I + mean_m mean_m^T)(x - x_m) + noise_std^2 / 2. Optima x_m have norm 1 and means norm 5;
both are spread around the same random direction. Text to code: zeta_* -> optima_spread, tau -> mean_spread,
mu_0 -> mean_norm.

The two spreads are labels of an axis, not the constants of the same letter: a spread is the largest possible chord of
the cap, which a finite sample does not reach, and mean_spread is a distance of means. The Hessians differ in norm by
mean_norm^2 sin(angle of the means) exactly, at most mean_spread * mean_norm * cos(half-angle) up to half-angle 45
degrees, and no more than mean_norm^2 beyond.
"""

import dataclasses
import math

import numpy as np
from scipy.special import betainc, betaincinv

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.quadratic_facts import quadratic_facts


def sample_cap(axis: np.ndarray, half_angle: float, num_points: int, rng: np.random.Generator) -> np.ndarray:
    """Points (num_points, d) uniform on the unit sphere within half_angle (radians) of the unit vector axis.

    The angle to the axis has density proportional to sin^(d-2) and is drawn by inverting its distribution, the
    direction around the axis is uniform. The generator is used alike for every half_angle: with one seed, caps of
    different angles give the same points moved along their great circles through the axis.
    """
    axis = np.asarray(axis, dtype=np.float64)
    _check_cap(axis, half_angle, num_points)
    angles = _cap_angles(rng.random(num_points), half_angle, len(axis))[:, None]
    around = rng.standard_normal((num_points, len(axis)))
    around -= np.outer(around @ axis, axis)
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return np.asarray(np.cos(angles) * axis + np.sin(angles) * around)


def cap_regression_parameters(
    num_clients: int,
    dimension: int,
    optima_spread: float,
    mean_spread: float,
    *,
    rng: np.random.Generator,
    mean_rng: np.random.Generator | None = None,
    mean_norm: float = 5.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The clients' optima (M, d) and feature means (M, d) of figure 5.1.

    Half-angles are arcsin(optima_spread / 2) and arcsin(mean_spread / (2 mean_norm)). The axis and the optima come
    from rng; give mean_rng for fresh means with the same optima, as the trials of the figure have.
    """
    if not (math.isfinite(mean_norm) and mean_norm > 0):
        raise SojournError(f"mean_norm = {mean_norm} must be positive and finite.")
    if dimension < 2:
        raise SojournError(f"dimension = {dimension} must be at least 2, or there is no angle to vary.")
    axis = rng.standard_normal(dimension)
    axis /= np.linalg.norm(axis)
    optima = sample_cap(axis, _half_angle("optima_spread", optima_spread, 1.0), num_clients, rng)
    tilt = _half_angle("mean_spread", mean_spread, mean_norm)
    return optima, mean_norm * sample_cap(axis, tilt, num_clients, rng if mean_rng is None else mean_rng)


def regression_hessians(means: np.ndarray) -> np.ndarray:
    """A_m = I + mean_m mean_m^T, (M, d, d)."""
    means = np.asarray(means, dtype=np.float64)
    return np.asarray(np.eye(means.shape[1]) + means[:, :, None] * means[:, None, :])


def regression_noise(x: np.ndarray, optima: np.ndarray, means: np.ndarray, noise_std: float) -> np.ndarray:
    """Every client's sigma_2 at x (M,): the root mean squared norm of the noise of a one-sample gradient.

    With gap = x - x_m the noise is (a a^T - A) gap - eps a. For a ~ N(mean, I) (Isserlis' theorem)
    E a a^T a a^T = 2 A^2 + tr(A) A - 2 |mean|^2 mean mean^T, so
    sigma_2^2 = gap^T [A^2 + tr(A) A - 2 |mean|^2 mean mean^T] gap + noise_std^2 tr A.
    It grows with the gap: assumption 7 (one sigma for all x) holds on bounded sets only.
    """
    hessians = regression_hessians(means)
    gaps = np.asarray(x) - optima
    traces = np.trace(hessians, axis1=1, axis2=2)
    pulled = np.einsum("mij,mj->mi", hessians, gaps)
    along = np.sum(means * gaps, axis=1)
    spread = np.sum(pulled**2, axis=1) + traces * np.sum(gaps * pulled, axis=1)
    spread -= 2 * np.sum(np.square(means), axis=1) * along**2
    return np.asarray(np.sqrt(spread + noise_std**2 * traces))


def regression_facts(optima: np.ndarray, means: np.ndarray, *, noise_std: float, batch_size: int = 1) -> Facts:
    """The exact facts of the regression. The noise has no finite supremum, so `noise` is None; `noise_at_optimum` is
    that of the noisiest client at x_star."""
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise SojournError(f"noise_std = {noise_std} must be finite and not negative.")
    facts = quadratic_facts(regression_hessians(means), optima)
    there = float(regression_noise(facts.x_star, optima, means, noise_std).max()) / math.sqrt(batch_size)
    assert facts.f_star is not None  # quadratic_facts knows it
    f_star = facts.f_star + noise_std**2 / 2
    return dataclasses.replace(facts, f_star=f_star, noise=None, noise4=None, noise_at_optimum=there)


def _cap_angles(uniforms: np.ndarray, half_angle: float, d: int) -> np.ndarray:
    """Quantiles of the angle. Up to a right angle the sphere's mass is 1/2 I(sin^2 angle; (d-1)/2, 1/2)."""
    shape = ((d - 1) / 2, 0.5)
    mass = betainc(*shape, math.sin(half_angle) ** 2) / 2
    mass = mass if half_angle <= math.pi / 2 else 1 - mass
    if mass < 1e-250:  # so small a cap that its mass underflows is flat: the angle is distributed as angle^(d-1)
        return np.asarray(half_angle * uniforms ** (1 / (d - 1)))
    level = mass * uniforms
    near = np.arcsin(np.sqrt(betaincinv(*shape, 2 * np.minimum(level, 1 - level))))
    return np.asarray(np.where(level <= 0.5, near, math.pi - near))


def _half_angle(name: str, spread: float, norm: float) -> float:
    if not 0 <= spread <= 2 * norm:
        raise SojournError(f"{name} = {spread} must lie between 0 and {2 * norm}, the diameter of the sphere.")
    return math.asin(spread / (2 * norm))


def _check_cap(axis: np.ndarray, half_angle: float, num_points: int) -> None:
    if axis.ndim != 1 or len(axis) < 2 or not abs(np.linalg.norm(axis) - 1) < 1e-9:
        raise SojournError(
            f"axis = {axis} must be a vector of length 1 in at least two dimensions; divide by its norm."
        )
    if not 0 <= half_angle <= math.pi:
        raise SojournError(f"half_angle = {half_angle} must lie between 0 and pi.")
    if num_points < 1:
        raise SojournError(f"the number of points or clients is {num_points}; expected at least 1.")
