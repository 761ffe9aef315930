"""The adversaries of chapter 7 and of its proofs, by name in the room's registry.

All linear costs have gradients of norm exactly G, so that bounds in G can be tight.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.options import count, positive, real
from sojourn.online.costs import Cost, Distance, Linear, SquaredResidual
from sojourn.online.stream import Known, Stream, check_heterogeneity


class Drawn(Stream):
    """An adversary in R^d."""

    dimension: int = count(symbol="d")
    radius: float = positive(1.0, symbol="B")

    @property
    def size(self) -> int:
        return self.dimension


class Rademacher(Drawn):
    """Coordinated random signs, beta_t = G/sqrt(d) {-1, 1}^d, alike on all machines: the lower bound of theorem 17."""

    lipschitz: float = positive(1.0, symbol="G")

    def known(self) -> Known:
        return Known(float(self.lipschitz), 0.0, 0.0)

    def widths(self, num_machines: int) -> tuple[int, int]:
        return 0, self.dimension

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        return Linear(everywhere(self.lipschitz / self.dimension**0.5 * jnp.sign(draws), num_machines))


class Drifting(Drawn):
    """A direction that stays, or turns slowly, with noise across it: beta_t = G (c v_t + sqrt(1 - c^2) n_t).

    v_t is a unit vector drawn once, turning in a plane once in `period` steps (0: never), n_t a fresh unit vector
    orthogonal to it, c is `share`. Alike on all machines.
    """

    lipschitz: float = positive(1.0, symbol="G")
    share: float = real(0.5, symbol="c", low=0.0, high=1.0)
    period: float = real(0.0, low=0.0)

    def __check_init__(self) -> None:
        _at_least(self, 2)

    def known(self) -> Known:
        return Known(float(self.lipschitz), 0.0, 0.0)

    def widths(self, num_machines: int) -> tuple[int, int]:
        return 2 * self.dimension, self.dimension

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        return plane(draws)

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        angle = jnp.where(self.period > 0, 2 * jnp.pi * step / jnp.where(self.period > 0, self.period, 1.0), 0.0)
        direction = jnp.cos(angle) * memory[0] + jnp.sin(angle) * memory[1]
        across = unit(draws, orthogonal_to=direction)
        beta = self.lipschitz * (self.share * direction + jnp.sqrt(1 - self.share**2) * across)
        return Linear(everywhere(beta, num_machines))


class Heterogeneous(Drawn):
    """Machines that differ by zeta-hat at every step, for good: beta_t^m = b_t + zeta-hat e^m.

    |b_t|^2 = G^2 - zeta-hat^2. The e^m are unit vectors with mean 0: pairs of opposite ones, and of an odd number three
    at 120 degrees. b_t is as in the drifting adversary, in the orthogonal complement of the e^m.
    """

    heterogeneity: float = real(0.5, symbol="zeta-hat", low=0.0)
    lipschitz: float = positive(1.0, symbol="G")
    share: float = real(0.5, symbol="c", low=0.0, high=1.0)

    def __check_init__(self) -> None:
        _at_least(self, 4)
        _can_differ(self)

    def known(self) -> Known:
        return Known(float(self.lipschitz), 0.0, float(self.heterogeneity))

    def check(self, num_machines: int, steps: int) -> None:
        _not_alone(self.heterogeneity, num_machines)

    def widths(self, num_machines: int) -> tuple[int, int]:
        return 3 * self.dimension, self.dimension

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        across = plane(draws[self.dimension :])
        own = jnp.asarray(circle(num_machines), across.dtype) @ across
        return across, own, _outside(draws[: self.dimension], across)

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        across, own, direction = memory
        noise = _outside(draws, jnp.concatenate([across, direction[None]]))
        shared = self.share * direction + jnp.sqrt(1 - self.share**2) * noise
        size = jnp.sqrt(jnp.maximum(self.lipschitz**2 - self.heterogeneity**2, 0.0))
        return Linear(size * shared + self.heterogeneity * own)


class Adaptive(Drawn):
    """Linear costs that push away from where machines have been seen: beta_t = G (q - c)/|q - c|.

    q is the mean play of the past, each step counting 1/(1 + memory) of what is known then (0: only the last), c a
    point at distance `target` B from zero. The best answer would be to stand at c; noise is punished. With
    `heterogeneity`, beta_t^m = G' (q - c)/|q - c| + zeta-hat s_t e^m, the first in the complement of the plane of the
    e^m, which are those of the heterogeneous adversary; the sign s_t punishes how machines drifted apart. G' is `pull`
    G, or the sqrt(G^2 - zeta-hat^2) that is left of G if that is less.
    """

    lipschitz: float = positive(1.0, symbol="G")
    target: float = real(0.5, low=0.0, high=1.0)
    memory: float = real(0.0, low=0.0)
    heterogeneity: float = real(0.0, symbol="zeta-hat", low=0.0)
    pull: float = real(1.0, low=0.0, high=1.0)

    def __check_init__(self) -> None:
        _can_differ(self)
        if not isinstance(self.heterogeneity, jax.core.Tracer) and self.heterogeneity > 0:
            _at_least(self, 4)

    def known(self) -> Known:
        return Known(float(self.lipschitz), 0.0, float(self.heterogeneity))

    def check(self, num_machines: int, steps: int) -> None:
        _not_alone(self.heterogeneity, num_machines)

    def widths(self, num_machines: int) -> tuple[int, int]:
        return 3 * self.dimension, 0

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        across = jnp.where(self.heterogeneity > 0, plane(draws[self.dimension :]), 0.0)
        own = jnp.asarray(circle(num_machines), across.dtype) @ across
        centre = self.target * self.radius * _outside(draws[: self.dimension], across)
        return centre, jnp.zeros_like(centre), across, own, jnp.ones(())

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        centre, seen, across, own, sign = memory
        left = jnp.sqrt(jnp.maximum(self.lipschitz**2 - self.heterogeneity**2, 0.0))
        shared = jnp.minimum(self.pull * self.lipschitz, left) * _outside(seen - centre, across)
        return Linear(shared + self.heterogeneity * sign * own)

    def watch(self, memory: Any, plays: jax.Array) -> Any:
        centre, seen, across, own, _ = memory
        apart = (own * plays.mean(1)).sum()
        seen = seen + (plays.mean((0, 1)) - seen) / (1 + self.memory)
        return centre, seen, across, own, jnp.where(apart < 0, -1.0, 1.0)


class Smooth(Drawn):
    """Smooth non-negative costs, alike on all machines: (H/2) (<a_t, x - x*> - noise z_t)^2, a_t a random unit vector.

    x* lies on the ball's sphere, z_t is a random sign, so that F_* is at most H noise^2/2.
    """

    smoothness: float = positive(1.0, symbol="H")
    noise: float = real(0.1, low=0.0)

    def known(self) -> Known:
        return Known(None, float(self.smoothness), 0.0, float(self.smoothness * self.noise**2 / 2))

    def widths(self, num_machines: int) -> tuple[int, int]:
        return self.dimension, self.dimension + 1

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        return self.radius * unit(draws)

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        a, y = self.sample(memory, draws)
        return SquaredResidual(
            everywhere(a, num_machines), everywhere(y, num_machines), everywhere(self.smoothness, num_machines)
        )

    def sample(self, best: jax.Array, draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        a = unit(draws[1:])
        return a, a @ best + self.noise * jnp.sign(draws[0])


class Stochastic(Smooth):
    """The same with a draw of its own for every machine: a fixed distribution, where working together does help."""

    def known(self) -> Known:
        return Known(None, float(self.smoothness), None, float(self.smoothness * self.noise**2 / 2))

    def widths(self, num_machines: int) -> tuple[int, int]:
        return self.dimension, num_machines * (self.dimension + 1)

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        a, y = jax.vmap(self.sample, (None, 0))(memory, draws.reshape(num_machines, -1))
        return SquaredResidual(a, y, everywhere(self.smoothness, num_machines))


class Cone(Drawn):
    """G |x - c| at every step, |c| = `target` B: the simplest Lipschitz cost on which noise never stops to cost."""

    lipschitz: float = positive(1.0, symbol="G")
    target: float = real(0.5, low=0.0, high=1.0)

    def known(self) -> Known:
        return Known(float(self.lipschitz), None, 0.0)

    def least_value(self) -> float:
        return 0.0

    def widths(self, num_machines: int) -> tuple[int, int]:
        return self.dimension, 0

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        return self.target * self.radius * unit(draws)

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        return Distance(everywhere(memory, num_machines), everywhere(self.lipschitz, num_machines))


def everywhere(value: Any, num_machines: int) -> jax.Array:
    return jnp.broadcast_to(value, (num_machines, *jnp.shape(value)))


def unit(x: jax.Array, orthogonal_to: jax.Array | None = None) -> jax.Array:
    """x at length 1; zero stays zero. `orthogonal_to` is a unit vector."""
    x = x if orthogonal_to is None else x - (x @ orthogonal_to) * orthogonal_to
    length = jnp.linalg.norm(x)
    return x / jnp.where(length > 0, length, 1.0)


def plane(draws: jax.Array) -> jax.Array:
    """Two orthogonal unit vectors in a random plane."""
    first, second = draws.reshape(2, -1)
    first = unit(first)
    return jnp.stack([first, unit(second, orthogonal_to=first)])


def circle(num_machines: int) -> np.ndarray:
    """Unit vectors of the plane with mean zero (one machine: zero): opposite pairs, and three at 120 degrees if odd."""
    if num_machines == 1:
        return np.zeros((1, 2))
    three = 3 if num_machines % 2 else 0
    pairs = np.pi * np.arange((num_machines - three) // 2) / max(1, (num_machines - three) // 2)
    angles = np.concatenate([pairs, pairs + np.pi, 2 * np.pi * np.arange(three) / 3])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _outside(x: jax.Array, axes: jax.Array) -> jax.Array:
    return unit(x - (axes @ x) @ axes)


def _at_least(stream: Drawn, least: int) -> None:
    if stream.dimension < least:
        name = type(stream).__name__
        raise SojournError(f"dimension = {stream.dimension} is too small for {name}; give at least {least}.")


def _not_alone(heterogeneity: Any, num_machines: int) -> None:
    if num_machines == 1 and float(heterogeneity) > 0:
        raise SojournError("one machine cannot differ from the mean; give heterogeneity = 0 or more machines.")


def _can_differ(stream: Any) -> None:
    check_heterogeneity(stream.heterogeneity, stream.lipschitz)
    if not isinstance(stream.heterogeneity, jax.core.Tracer) and stream.heterogeneity > stream.lipschitz:
        raise SojournError(
            f"heterogeneity = {float(stream.heterogeneity):g} is above lipschitz = {float(stream.lipschitz):g}; "
            "gradients of that norm differ from their mean by no more, so give at most that."
        )
