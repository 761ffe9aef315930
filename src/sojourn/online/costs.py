"""Costs that a machine may meet, and the least mean cost of a ball: exact where the family allows it.

A cost is a small module with `value(x)` and `gradient(x)`. An `ExactCost` has a closed-form comparator, and also says
what must be added up over time for it: `summary()`, and `least(mean, radius)` of the mean summary.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq, minimize

from sojourn.core.errors import SojournError


class Cost(eqx.Module):
    """f_t^m. Arrays lead with the axis of machines when a stream hands them out."""

    @abc.abstractmethod
    def value(self, x: jax.Array) -> jax.Array:
        """The cost of a play."""

    def gradient(self, x: jax.Array) -> jax.Array:
        return jax.grad(self.value)(x)

    def summary(self) -> Any:
        return ()


class ExactCost(Cost):
    """A cost of whose sums the best point is known."""

    @abc.abstractmethod
    def summary(self) -> Any:
        """What is added up."""

    @staticmethod
    @abc.abstractmethod
    def least(mean: Any, radius: float) -> float:
        """The least mean cost of the ball, from the mean of the summaries."""


class Linear(ExactCost):
    """<beta, x>; the best point of the ball is -B beta/|beta| for the sum of all."""

    beta: jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        return self.beta @ x

    def gradient(self, x: jax.Array) -> jax.Array:
        return self.beta

    def summary(self) -> jax.Array:
        return self.beta

    @staticmethod
    def least(mean: Any, radius: float) -> float:
        return -radius * float(np.linalg.norm(mean))


class SquaredResidual(ExactCost):
    """(H/2) (<a, x> - y)^2 with a unit vector a: convex, non-negative, H-smooth."""

    a: jax.Array
    y: jax.Array
    smoothness: jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        return self.smoothness / 2 * (self.a @ x - self.y) ** 2

    def gradient(self, x: jax.Array) -> jax.Array:
        return self.smoothness * (self.a @ x - self.y) * self.a

    def summary(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        H, a, y = self.smoothness, self.a, self.y
        return H * jnp.outer(a, a), H * y * a, H / 2 * y**2

    @staticmethod
    def least(mean: Any, radius: float) -> float:
        hessian, slope, constant = (np.asarray(part, float) for part in mean)
        return least_quadratic(hessian, slope, radius) + float(constant)


class Distance(Cost):
    """G |x - c|: convex, G-Lipschitz, with a kink where it is least."""

    centre: jax.Array
    lipschitz: jax.Array

    def value(self, x: jax.Array) -> jax.Array:
        return self.lipschitz * jnp.linalg.norm(x - self.centre)

    def gradient(self, x: jax.Array) -> jax.Array:
        away = x - self.centre
        return self.lipschitz * away / jnp.maximum(jnp.linalg.norm(away), jnp.finfo(away.dtype).tiny)


class Given(Cost):
    """A user's cost: a function of the data of one step and machine, and of a point."""

    data: Any
    function: Callable[[Any, jax.Array], jax.Array] = eqx.field(static=True)

    def value(self, x: jax.Array) -> jax.Array:
        return self.function(self.data, x)


def least_quadratic(hessian: np.ndarray, slope: np.ndarray, radius: float) -> float:
    """min of x^T A x/2 - <b, x> over the ball, A positive semidefinite: the trust-region problem by its eigenvalues."""
    values, vectors = np.linalg.eigh(hessian)
    values = np.maximum(values, 0.0)
    along = vectors.T @ slope
    seen = values > 1e-12 * max(float(values.max(initial=0.0)), 1e-300)  # b has no part where A has none, but rounding
    inside = np.where(seen, along / np.where(seen, values, 1.0), 0.0)
    flat = float(np.linalg.norm(along[~seen])) > 1e-6 * float(np.linalg.norm(along))
    if not flat and np.linalg.norm(inside) <= radius:
        at = inside
    else:
        # |(A + l)^-1 b| falls in l, from above the radius to below it
        too_long = lambda shift: float(np.linalg.norm(along / (values + shift))) - radius  # noqa: E731
        high = float(np.linalg.norm(along)) / radius
        low = high
        while too_long(low) < 0:
            low /= 2
        at = along / (values + brentq(too_long, low, high * (1 + 1e-12), xtol=1e-300, rtol=1e-14))
    return float(at @ (values * at) / 2 - along @ at)


def least_by_solver(
    mean_and_gradient: Callable[[np.ndarray], Any], dimension: int, radius: float
) -> tuple[float, float]:
    """The least value of a convex function over the ball, and by how much the value found may be above it.

    The second number is a certificate: by convexity min F >= F(x) - <grad F(x), x> - B |grad F(x)|. Two starts, neither
    at zero, where users' costs like to have no gradient.
    """
    at = lambda x: (lambda v, g: (float(v), np.asarray(g, float)))(*mean_and_gradient(x))  # noqa: E731
    ball = {"type": "ineq", "fun": lambda x: 1 - x @ x / radius**2, "jac": lambda x: -2 * x / radius**2}
    aside = np.cos(1.0 + np.arange(dimension))  # any direction that no coordinate system prefers
    aside /= np.linalg.norm(aside)
    values, floors = [], []
    for start in (0.1 * radius * aside, -0.5 * radius * aside):
        with np.errstate(invalid="ignore"):
            found = minimize(
                at, start, jac=True, method="SLSQP", constraints=[ball], options={"ftol": 1e-14, "maxiter": 500}
            )  # fmt: skip
            x = found.x * min(1.0, radius / max(float(np.linalg.norm(found.x)), 1e-300))
            value, gradient = at(x)
            floor = value - float(gradient @ x + radius * np.linalg.norm(gradient))
        if np.isfinite(floor):  # then the value and the gradient are
            values.append(value)
            floors.append(floor)
    if not values:
        raise SojournError(
            f"no best point of the ball of radius {radius:g} was found: the mean cost or its gradient is not finite "
            "where the solver looked; costs must be finite, convex and differentiable almost everywhere in the ball."
        )
    return min(values), max(min(values) - max(floors), 0.0)
