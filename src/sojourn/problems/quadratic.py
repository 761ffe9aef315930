"""Quadratics F_m(x) = 1/2 (x - x_m)^T A_m (x - x_m), with additive gradient noise: everything about them is known."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation, build
from sojourn.core.oracle import Block, Objective, entries
from sojourn.problems.quadratic_facts import quadratic_facts


class Quadratic(Objective):
    """A sample z is a noise vector; the sampled loss adds <z, x>, so that its gradient is A_m (x - x_m) + z."""

    hessians: jax.Array  # (M, d, d)
    optima: jax.Array  # (M, d)
    noise_root: jax.Array | None  # (M, d, d) or (d, d): z = root @ standard normal
    x_star: jax.Array
    f_star: jax.Array

    def cut(self, firsts: Sequence[int], size: int) -> Sequence[Objective]:
        return [Block(self.part(first, size), np.int32(first)) for first in firsts]

    def part(self, first: int, size: int) -> "Quadratic":
        root = self.noise_root
        root = root if root is None or root.ndim == 2 else entries(root, first, size)
        hessians, optima = entries(self.hessians, first, size), entries(self.optima, first, size)
        return dataclasses.replace(self, hessians=hessians, optima=optima, noise_root=root)

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> jax.Array:
        dimension = self.optima.shape[1]
        if self.noise_root is None:
            return jnp.zeros((num_batches, dimension), self.optima.dtype)
        root = self.noise_root if self.noise_root.ndim == 2 else self.noise_root[view]
        normal = jax.random.normal(key, (num_batches, batch_size, dimension), self.optima.dtype)
        return jnp.mean(normal, axis=1) @ root  # the root is symmetric

    def pool(self, zs: jax.Array) -> jax.Array:
        return jnp.mean(zs, axis=0)

    def value(self, x: jax.Array, view: Any, z: jax.Array) -> jax.Array:
        return self.full_value(x, view) + z @ x

    def grad(self, x: jax.Array, view: Any, z: jax.Array) -> jax.Array:
        return self.full_grad(x, view) + z

    def full_value(self, x: jax.Array, view: Any) -> jax.Array:
        away = x - self.optima[view]
        return 0.5 * away @ self.hessians[view] @ away

    def full_grad(self, x: jax.Array, view: Any) -> jax.Array:
        return self.hessians[view] @ (x - self.optima[view])

    def metrics(self, x: jax.Array, weights: jax.Array | None) -> dict[str, jax.Array]:
        # F - F* = 1/2 (x - x*)^T mean(A_m) (x - x*): no cancellation near the optimum.
        shares = jnp.full(len(self.optima), 1 / len(self.optima), x.dtype) if weights is None else weights
        away = x - self.x_star
        gradient = jnp.einsum("m,mij,j->i", shares, self.hessians, away)
        gap = 0.5 * away @ gradient
        return {"loss": gap + self.f_star, "suboptimality": gap, "grad_norm": jnp.linalg.norm(gradient)}


def quadratic(
    hessians: Any,
    optima: Any,
    noise: float = 0.0,
    *,
    noise_covariance: Any = None,
    x0: Any = None,
    weights: Any = None,
    name: str = "quadratic",
) -> Federation:
    """Quadratic clients from their Hessians (M, d, d) and optima (M, d).

    `noise` is sigma: the root of the mean squared norm of the gradient noise, spread evenly over coordinates.
    `noise_covariance`, (d, d) or (M, d, d), gives any other Gaussian noise instead. Hessians may be singular.
    """
    a, b = np.asarray(hessians, float), np.asarray(optima, float)
    _check(a, b, noise)
    num_clients, dimension = b.shape
    if noise_covariance is not None and noise > 0:
        raise SojournError("both noise and noise_covariance are given; give one of them.")
    if noise_covariance is None and noise > 0:
        noise_covariance = np.eye(dimension) * noise**2 / dimension
    start = np.zeros(dimension) if x0 is None else np.asarray(x0, float)
    facts = quadratic_facts(a, b, x0=start, weights=weights, noise_covariance=noise_covariance)
    real = jnp.result_type(float)
    objective = Quadratic(
        hessians=jnp.asarray(a, real),
        optima=jnp.asarray(b, real),
        noise_root=None if noise_covariance is None else jnp.asarray(_root(np.asarray(noise_covariance, float)), real),
        x_star=jnp.asarray(facts.x_star, real),
        f_star=jnp.asarray(facts.f_star, real),
    )
    batch_size = None if noise_covariance is None else 1
    return build(
        objective, jnp.asarray(start, real), num_clients, weights=weights, batch_size=batch_size, facts=facts, name=name
    )


def _check(hessians: np.ndarray, optima: np.ndarray, noise: float) -> None:
    if optima.ndim != 2 or hessians.shape != (*optima.shape, optima.shape[1]):
        raise SojournError(
            f"hessians of shape {hessians.shape} and optima of shape {optima.shape} do not fit; "
            "give (clients, d, d) and (clients, d)."
        )
    if not (np.isfinite(hessians).all() and np.isfinite(optima).all()):
        raise SojournError("hessians and optima must be finite; they hold NaN or infinity.")
    if not np.allclose(hessians, np.swapaxes(hessians, 1, 2)):
        raise SojournError("hessians must be symmetric; give (A + A^T) / 2 if you mean the quadratic form of A.")
    if not 0 <= noise < np.inf:
        raise SojournError(f"noise = {noise:g} does not fit; give the root of the mean squared norm of the noise.")


def _root(covariance: np.ndarray) -> np.ndarray:
    """A symmetric square root; covariances may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    if values.min() < -1e-9 * max(1.0, abs(values).max()):
        raise SojournError("noise_covariance must be positive semi-definite.")
    return np.einsum("...ik,...k,...jk->...ij", vectors, np.sqrt(np.maximum(values, 0)), vectors)
