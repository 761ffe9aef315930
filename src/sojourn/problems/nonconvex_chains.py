"""The chain of Carmon et al., whole or split between clients: what no zero-respecting method gets through faster.

Thesis, theorems 13, 15, 22 and 23 (equations E.1 to E.4). With psi(t) = exp(1 - 1/(2t-1)^2) for t > 1/2, else 0, and
phi(t) = sqrt(e) int_{-inf}^t exp(-u^2/2) du the links are L(s, t) = psi(-s) phi(-t) - psi(s) phi(t), and
f(x) = sum_{i=1..d} L(x_{i-1}, x_i) with x_0 = 1. A gradient at a point supported on the first k coordinates is
supported on k + 1, and there, for k < d, |grad f| > 1. F_1 holds the odd links, which reveal odd coordinates, F_2 the
even ones, so that split clients reveal one coordinate per round, whatever their number of local steps.

Scaled: a w^2 f(x_{1:d}/w) + (H/2) x_{d+1}^2 with w = sqrt(eps)/a, hence |grad F|^2 > eps before coordinate d is
reached. Symbols: eps -> target, Delta -> start_gap, tau -> hessian_heterogeneity, zeta -> gradient_heterogeneity.

Constants (Carmon et al., lemma 3): f(0) - inf f <= 12 d, exactly sqrt(2 pi e) (1/2 + e (d - 1)); every partial
derivative is at most 23; f, F_1, F_2 and F_1 - F_2 are l_1 = 152-smooth, by their rows' sums.

Differences to the text: the first link is psi(1) phi(x_1), where E.2 prints psi(x). Lemma 47 is about F_1 + F_2, and
E.1 halves it, so that it reads |grad F| >= 1/2; here both clients hold twice their links. The Hessians' difference is
at most 2 a l_1, so a = tau/(2 l_1), where tau/(4 l_1) is printed, and the chain is twice as long. The last coordinate
has H/2, not H/4: it makes H exact. Theorem 23's zeta is met by the length: two clients' gradients differ by at most
2 * 23 sqrt(eps d); its printed d = H^2 zeta^2/(12 l_1 eps) is too long for doubled links, and its scale H^2 zeta^2/
Delta is H-smooth only where H zeta^2 <= Delta. One family then has both limits, which theorem 15 needs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation, build
from sojourn.core.oracle import Objective
from sojourn.problems.chain_facts import SLOPE, SMOOTHNESS, split_length, whole_length

LONGEST = 10_000  # coordinates that an instance may have
_HIGHEST = math.sqrt(2 * math.pi * math.e)  # of phi


class Chain(Objective):
    """Exact answers only: additive noise would reveal every coordinate at once."""

    links: jax.Array  # (M, d): how often a client holds each link
    scale: jax.Array  # a
    width: jax.Array  # w
    curvature: jax.Array  # H, of the last coordinate
    lowest: jax.Array  # inf F

    def draw(self, view: jax.Array, key: jax.Array, num_batches: int, batch_size: int) -> jax.Array:
        return jnp.zeros((num_batches, 0), self.links.dtype)

    def value(self, x: jax.Array, view: jax.Array, z: jax.Array) -> jax.Array:
        return self.full_value(x, view)

    def full_value(self, x: jax.Array, view: jax.Array) -> jax.Array:
        return self._weighed(x, self.links[view])

    def metrics(self, x: jax.Array, weights: jax.Array | None) -> dict[str, jax.Array]:
        shares = jnp.full(len(self.links), 1 / len(self.links), x.dtype) if weights is None else weights
        loss, gradient = jax.value_and_grad(self._weighed)(x, shares @ self.links)
        return {"loss": loss, "suboptimality": loss - self.lowest, "grad_norm": jnp.linalg.norm(gradient)}

    def _weighed(self, x: jax.Array, links: jax.Array) -> jax.Array:
        t = x[:-1] / self.width
        s = jnp.concatenate([jnp.ones(1, t.dtype), t[:-1]])
        chain = links @ (_psi(-s) * _phi(-t) - _psi(s) * _phi(t))
        return self.scale * self.width**2 * chain + self.curvature / 2 * x[-1] ** 2


def _psi(t: jax.Array) -> jax.Array:
    rise = 2 * t - 1
    there = rise > 0.04  # below, psi < 1e-270, and its derivative would be 0 times infinity
    return jnp.where(there, jnp.exp(1 - 1 / jnp.where(there, rise, 1.0) ** 2), 0.0)


def _phi(t: jax.Array) -> jax.Array:
    return _HIGHEST * ndtr(t)


def whole_chain(num_clients: int, smoothness: float, start_gap: float, target: float) -> Federation:
    """Theorems 13 and 25: every client holds the whole chain, so tau = zeta = 0, and a round with gradients at one
    point reveals one coordinate. K sequential steps reveal K, the term Delta H/(K R) of theorem 15."""
    d = _checked(whole_length(smoothness, start_gap, target), target)
    links = np.ones((num_clients, d))
    return _scaled(links, smoothness / SMOOTHNESS, smoothness, target, tau=0.0, zeta=0.0, name="theorem13")


def split_chain(
    num_clients: int,
    smoothness: float,
    hessian_heterogeneity: float,
    start_gap: float,
    target: float,
    *,
    gradient_heterogeneity: float | None = None,
    name: str = "theorem15",
) -> Federation:
    """Theorems 22 (no bound on zeta), 23 (tau = H) and the first term of 15: odd links on clients 1, 3, ..., even on
    the others. As facts, tau and zeta are upper bounds here; H and Delta are exact."""
    if num_clients < 2 or num_clients % 2:
        raise SojournError(f"num_clients = {num_clients} must be even for this instance; use {num_clients + 1}.")
    if hessian_heterogeneity > smoothness:
        raise SojournError(
            f"hessian_heterogeneity = {hessian_heterogeneity:g} must be at most smoothness = {smoothness:g} in this "
            "instance."
        )
    zeta = math.inf if gradient_heterogeneity is None else gradient_heterogeneity
    d = _checked(split_length(smoothness, hessian_heterogeneity, zeta, start_gap, target), target)
    odd = np.arange(d) % 2 == 0  # links are numbered from 1 in the text
    links = np.tile(2.0 * np.stack([odd, ~odd]), (num_clients // 2, 1))
    zeta = 2 * SLOPE * (target * d) ** 0.5 / smoothness
    scale = hessian_heterogeneity / (2 * SMOOTHNESS)
    return _scaled(links, scale, smoothness, target, tau=hessian_heterogeneity, zeta=zeta, name=name)


def _checked(length: float, target: float) -> int:
    if length < 1:
        raise SojournError(f"target = {target:g} leaves no chain for these constants; give a smaller one.")
    if length > LONGEST:
        raise SojournError(
            f"target = {target:g} makes a chain of {length:g} coordinates; give a larger one, for at most {LONGEST}."
        )
    return int(length)


def _scaled(
    links: np.ndarray, scale: float, smoothness: float, target: float, *, tau: float, zeta: float, name: str
) -> Federation:
    d = links.shape[1]
    width = target**0.5 / scale
    height = scale * width**2
    lowest = -height * _HIGHEST * (1 + math.e * (d - 1))
    facts = Facts(  # no x* and no value of it: the infimum is approached far away
        smoothness=smoothness, hessian_heterogeneity=tau, gradient_heterogeneity=zeta,
        start_gap=height * _HIGHEST * (0.5 + math.e * (d - 1)),
    )  # fmt: skip
    real = jnp.result_type(float)
    numbers = {"scale": scale, "width": width, "curvature": smoothness, "lowest": lowest}
    objective = Chain(jnp.asarray(links, real), **{key: jnp.asarray(value, real) for key, value in numbers.items()})
    return build(objective, jnp.zeros(d + 1, real), len(links), facts=facts, name=name)
