"""Model probes: numbers read off the model in rounds that are evaluated.

A probe is made from the federation's facts before the run and is an argument of the compiled program, not a constant in
it. The fixed point of local steps depends on the step size, which is traced, so it is computed where it is read.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.vec import Vec, norm, size

Metrics = dict[str, jax.Array]

_ZERO = 1e-10  # an eigenvalue below this share of the largest is taken for zero


class ModelProbe(eqx.Module):
    """A number that is read off the model."""

    facts: ClassVar[tuple[str, ...]] = ()  # that must be known
    options: ClassVar[tuple[str, ...]] = ()  # that the method must have

    @classmethod
    def prepare(cls, federation: Federation) -> "ModelProbe":
        """The probe for a federation whose facts are known."""
        return cls()

    @abc.abstractmethod
    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        """The number at the model x; `metrics` are those of the objective there."""


class GradNorm(ModelProbe):
    """Norm of the objective's exact gradient at the model."""

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        loss = lambda tree: clients.objective.metrics(tree, clients.weights)["loss"]  # noqa: E731
        return norm(Vec(jax.grad(loss)(x.tree)))


class ModelNorm(ModelProbe):
    """Norm of the model."""

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        return norm(x)


class Suboptimality(ModelProbe):
    """How far the loss is above its minimum."""

    facts: ClassVar[tuple[str, ...]] = ("f_star",)
    f_star: jax.Array

    @classmethod
    def prepare(cls, federation: Federation) -> "Suboptimality":
        return cls(_real(federation.facts.f_star))

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        return metrics["loss"] - self.f_star


class Distance(ModelProbe):
    """Distance from the model to the minimiser of the objective."""

    facts: ClassVar[tuple[str, ...]] = ("x_star",)

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        assert clients.x_star is not None  # or the fact would be missing
        return norm(x - clients.x_star)


class DistanceToMeanOptimum(ModelProbe):
    """Distance from the model to the weighted mean of the clients' own optima."""

    facts: ClassVar[tuple[str, ...]] = ("optima",)
    mean: jax.Array  # (d,)

    @classmethod
    def prepare(cls, federation: Federation) -> "DistanceToMeanOptimum":
        optima = _optima(federation, "distance_to_mean_optimum")
        weights = federation.clients.weights
        return cls(_real(np.average(optima, axis=0, weights=None if weights is None else np.asarray(weights, float))))

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        return jnp.linalg.norm(_flat(x) - self.mean)


class DistanceToFixedPoint(ModelProbe):
    """Distance from the model to where local gradient descent with the method's step size and steps ends.

    With C_m = I - (I - eta A_m)^K and C their weighted mean: x_inf = x0 + C^+ mean C_m (x_m - x0), the fixed point that
    is reached from x0 (thesis, equation 3.10; where the Hessians share a kernel, x0's part in it never moves).
    """

    facts: ClassVar[tuple[str, ...]] = ("hessians", "optima")
    options: ClassVar[tuple[str, ...]] = ("step_size", "num_local_steps")
    values: jax.Array  # (M, d) eigenvalues of A_m
    vectors: jax.Array  # (M, d, d) its eigenvectors, as columns
    gaps: jax.Array  # (M, d) x_m - x0 in the coordinates of these
    kernel: jax.Array  # (d, d) the projection on what all A_m send to zero
    x0: jax.Array  # (d,)

    @classmethod
    def prepare(cls, federation: Federation) -> "DistanceToFixedPoint":
        optima = _optima(federation, "distance_to_fixed_point")
        hessians, x0 = np.asarray(federation.facts.hessians, float), np.asarray(_flat(federation.x0), float)
        values, vectors = np.linalg.eigh(hessians)
        common, directions = np.linalg.eigh(hessians.mean(axis=0))
        still = directions[:, common <= _ZERO * max(common.max(), np.finfo(float).tiny)]
        gaps = np.einsum("mji,mj->mi", vectors, optima - x0)
        return cls(*map(_real, (np.maximum(values, 0), vectors, gaps, still @ still.T, x0)))

    def __call__(self, algorithm: Algorithm, clients: Clients, x: Vec, metrics: Metrics) -> jax.Array:
        given: Any = algorithm
        pulls = _pull(given.step_size * self.values, given.num_local_steps) * _shares(algorithm, clients)[:, None]
        mean = jnp.einsum("mik,mjk->ij", self.vectors * pulls[:, None, :], self.vectors)
        target = jnp.einsum("mik,mk->i", self.vectors, pulls * self.gaps)
        return jnp.linalg.norm(_flat(x) - self.x0 - jnp.linalg.solve(mean + self.kernel, target))


MODEL_PROBES: dict[str, type[ModelProbe]] = {
    "grad_norm": GradNorm,
    "model_norm": ModelNorm,
    "suboptimality": Suboptimality,
    "distance": Distance,
    "distance_to_mean_optimum": DistanceToMeanOptimum,
    "distance_to_fixed_point": DistanceToFixedPoint,
}


def _pull(t: jax.Array, num_steps: int) -> jax.Array:
    """1 - (1 - t)^K, without cancellation where t is small."""
    small = t < 0.5
    near = -jnp.expm1(num_steps * jnp.log1p(-jnp.where(small, t, 0)))
    return jnp.where(small, near, 1 - (1 - t) ** num_steps)


def _shares(algorithm: Algorithm, clients: Clients) -> jax.Array:
    """The weights of the clients' answers when all take part."""
    given = clients.counted(algorithm.weighting)
    if given is None:
        return jnp.full(clients.num_clients, 1 / clients.num_clients, jnp.result_type(float))
    return given / jnp.sum(given)


def _optima(federation: Federation, name: str) -> np.ndarray:
    optima = np.asarray(federation.facts.optima, float)
    if optima.shape != (federation.num_clients, size(federation.x0)):
        raise SojournError(
            f'record = "{name}" needs one optimum of {size(federation.x0)} numbers per client; '
            f"facts.optima has shape {optima.shape}."
        )
    return optima


def _real(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.result_type(float))


def _flat(x: Vec) -> jax.Array:
    """All numbers of a model in one row, as facts have them."""
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.result_type(float)) for leaf in jax.tree.leaves(x)])
