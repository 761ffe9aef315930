"""Linear regression on fresh Gaussian samples, with dials for concept shift and covariate shift (thesis, figure 5.1).

Client m draws a ~ N(mean_m, I) and y = <x_m, a> + noise; the loss of a sample is 1/2 (y - <x, a>)^2. Every call sees
new samples; the exact loss is a quadratic, so everything about it is known.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.federation import Federation, build
from sojourn.core.oracle import Block, Objective, entries
from sojourn.problems.caps import regression_facts, regression_hessians
from sojourn.problems.quadratic import Quadratic


class GaussianRegression(Objective):
    """A sample z is (features (b, d), targets (b,))."""

    means: jax.Array  # (M, d)
    exact: Quadratic  # the expected loss, less the noise's half variance
    noise_std: jax.Array

    def cut(self, firsts: Sequence[int], size: int) -> Sequence[Objective]:
        return [Block(self._part(first, size), np.int32(first)) for first in firsts]

    def _part(self, first: int, size: int) -> "GaussianRegression":
        means = entries(self.means, first, size)
        return dataclasses.replace(self, means=means, exact=self.exact.part(first, size))

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> tuple[jax.Array, jax.Array]:
        normal = jax.random.normal(key, (num_batches, batch_size, self.means.shape[1] + 1), self.means.dtype)
        features = self.means[view] + normal[..., :-1]
        return features, features @ self.exact.optima[view] + self.noise_std * normal[..., -1]

    def value(self, x: jax.Array, view: Any, z: Any) -> jax.Array:
        features, targets = z
        return 0.5 * jnp.mean((targets - features @ x) ** 2)

    def full_value(self, x: jax.Array, view: Any) -> jax.Array:
        return self.exact.full_value(x, view) + self.noise_std**2 / 2

    def full_grad(self, x: jax.Array, view: Any) -> jax.Array:
        return self.exact.full_grad(x, view)

    def metrics(self, x: jax.Array, weights: jax.Array | None) -> dict[str, jax.Array]:
        return self.exact.metrics(x, weights)  # its f_star includes the noise's half variance


def gaussian_regression(
    optima: Any, means: Any, noise_std: float = 0.1, *, batch_size: int = 1, name: str = "gaussian-regression"
) -> Federation:
    """Clients from their optima (M, d) and feature means (M, d). Facts give the gradient noise at the optimum."""
    x_m, mu = np.asarray(optima, float), np.asarray(means, float)
    facts = regression_facts(x_m, mu, noise_std=noise_std, batch_size=max(1, batch_size))
    real = jnp.result_type(float)
    exact = Quadratic(
        hessians=jnp.asarray(regression_hessians(mu), real),
        optima=jnp.asarray(x_m, real),
        noise_root=None,
        x_star=jnp.asarray(facts.x_star, real),
        f_star=jnp.asarray(facts.f_star, real),
    )
    objective = GaussianRegression(jnp.asarray(mu, real), exact, jnp.asarray(noise_std, real))
    start = jnp.zeros(x_m.shape[1], real)
    return build(objective, start, len(x_m), batch_size=batch_size, facts=facts, name=name)
