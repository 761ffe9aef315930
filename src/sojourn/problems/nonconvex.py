"""Cosines with jittered phase: smooth and non-convex, with H, tau, Delta and sigma known in closed form.

The mean objective is F(x) = sum_i a_i (1 - cos x_i), a_i from a down to a / condition. Client m adds
s_m [(tau/4) x^T S x + (spread/2) <e_d, x>] with signs s_m that cancel and the reflection S = I - 2 u u^T, u orthogonal
to e_1. So any two clients of opposite signs have Hessians that differ by exactly tau at every x, and F, its minimum
and the start are the same for every tau: what only sees the mean cannot feel tau.

A sample z is a Gaussian jitter of the phase: g_m(x; z) has the entries A_i sin(x_i + z_i) for a_i sin x_i, with
A_i = a_i exp(s^2/2) for jitter of variance s^2, which makes it unbiased. Its variance is largest where sin x = 0 and
there it is |a|^2 sinh(s^2), so that s^2 = arsinh(sigma^2/|a|^2) gives any sigma. The same sample at two points does not
cancel, unlike additive noise, and |g_m(x; z) - g_m(y; z)| <= H |x - y| with H = a exp(s^2/2) + tau/2: the mean
smoothness of definition 4. Without noise this H is the largest curvature of a client, taken at x = 0.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation, build
from sojourn.core.oracle import Objective


class Cosines(Objective):
    """A sample is a block of phase jitters (points, d); gradients and values are means over it."""

    curvatures: jax.Array  # (d,): a_i
    jitter: jax.Array  # s
    signs: jax.Array  # (M,), adding to zero
    tilt: jax.Array  # tau / 2
    axis: jax.Array  # (d,): u
    pull: jax.Array  # (d,): half the difference of two clients' gradients at zero

    def draw(self, view: jax.Array, key: jax.Array, num_batches: int, batch_size: int) -> jax.Array:
        shape = (num_batches, batch_size, *self.curvatures.shape)
        return self.jitter * jax.random.normal(key, shape, self.curvatures.dtype)

    def value(self, x: jax.Array, view: jax.Array, z: jax.Array) -> jax.Array:
        waves = jnp.mean(self._amplified() * jnp.cos(x + z), axis=0)
        return jnp.sum(self.curvatures - waves) + self._own_value(x, view)

    def grad(self, x: jax.Array, view: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.mean(self._amplified() * jnp.sin(x + z), axis=0) + self._own_grad(x, view)

    def full_value(self, x: jax.Array, view: jax.Array) -> jax.Array:
        return self._mean_value(x) + self._own_value(x, view)

    def full_grad(self, x: jax.Array, view: jax.Array) -> jax.Array:
        return self.curvatures * jnp.sin(x) + self._own_grad(x, view)

    def metrics(self, x: jax.Array, weights: jax.Array | None) -> dict[str, jax.Array]:
        gap = self._mean_value(x)
        gradient = self.curvatures * jnp.sin(x)
        return {"loss": gap, "suboptimality": gap, "grad_norm": jnp.linalg.norm(gradient)}

    def _amplified(self) -> jax.Array:
        return self.curvatures * jnp.exp(self.jitter**2 / 2)

    def _mean_value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(2 * self.curvatures * jnp.sin(x / 2) ** 2)  # 1 - cos x, exact near 0

    def _own_value(self, x: jax.Array, view: jax.Array) -> jax.Array:
        reflected = x - 2 * self.axis * (self.axis @ x)
        return self.signs[view] * (self.tilt / 2 * x @ reflected + self.pull @ x)

    def _own_grad(self, x: jax.Array, view: jax.Array) -> jax.Array:
        return self.signs[view] * (self.tilt * (x - 2 * self.axis * (self.axis @ x)) + self.pull)


def cosines(
    num_clients: int,
    dimension: int,
    hessian_heterogeneity: float = 0.0,
    *,
    mean_smoothness: float = 1.0,
    condition: float = 1.0,
    gradient_spread: float = 0.0,
    noise: float = 0.0,
    batch_size: int = 1,
    start: float = 2.0,
) -> Federation:
    """Clients around F(x) = sum_i a_i (1 - cos x_i) whose Hessians differ by exactly `hessian_heterogeneity` (tau).

    `noise` is sigma, of one sample at its largest over x; facts hold that of one call, sigma / sqrt(batch_size).
    `start` is every coordinate of x0; beyond pi/2 the objective is concave there. An odd last client has F itself.
    """
    if num_clients == 1 and (hessian_heterogeneity or gradient_spread):
        raise SojournError("a single client differs from nobody: give two clients, or no heterogeneity.")
    if not 0 < start < np.pi:
        raise SojournError(
            f"start = {start:g} is out of range; give a coordinate between 0 and pi, where 0 is nearest."
        )
    a = np.geomspace(mean_smoothness, mean_smoothness / condition, dimension)
    jitter2 = float(np.arcsinh(noise**2 / np.sum(a**2)))
    signs = np.resize([1.0, -1.0], num_clients)
    signs[num_clients - num_clients % 2 :] = 0.0
    pull = np.zeros(dimension)
    pull[-1] = gradient_spread / 2
    smoothness = mean_smoothness * float(np.exp(jitter2 / 2)) + hessian_heterogeneity / 2
    facts = Facts(
        smoothness=smoothness,
        third_order_smoothness=mean_smoothness,
        hessian_heterogeneity=hessian_heterogeneity,
        gradient_heterogeneity=gradient_spread / smoothness if hessian_heterogeneity == 0 else None,
        noise=noise / batch_size**0.5,
        start_gap=float(np.sum(a) * (1 - np.cos(start))),
        x_star=np.zeros(dimension),
        f_star=0.0,
    )
    real = jnp.result_type(float)
    objective = Cosines(
        curvatures=jnp.asarray(a, real),
        jitter=jnp.asarray(jitter2**0.5, real),
        signs=jnp.asarray(signs, real),
        tilt=jnp.asarray(hessian_heterogeneity / 2, real),
        axis=jnp.asarray(_axis(dimension), real),
        pull=jnp.asarray(pull, real),
    )
    x0 = jnp.full(dimension, start, real)
    return build(
        objective, x0, num_clients, batch_size=batch_size if noise > 0 else None, facts=facts, name="cosines"
    )  # fmt: skip


def _axis(dimension: int) -> np.ndarray:
    """The unit vector that S turns round: all coordinates but the first alike, so that S mixes them."""
    axis = np.ones(dimension)
    axis[0] = 0.0
    return axis / max(1.0, (dimension - 1) ** 0.5)
