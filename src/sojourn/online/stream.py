"""What a stream of costs is, and how a user puts in one of their own.

An adversary chooses the costs of a step from random numbers of its own and from what it has seen: the plays of earlier
steps. It is never given the numbers that the machines play by, nor the plays of the step that it is choosing for.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.options import options_of, positive
from sojourn.online.costs import Cost, Given


@dataclasses.dataclass(frozen=True)
class Known:
    """What theory may use of a stream; None is unknown, never guessed."""

    lipschitz: float | None = None  # G, everywhere
    smoothness: float | None = None  # H; 0 for linear costs
    heterogeneity: float | None = None  # zeta-hat
    optimal_value: float | None = None  # F_*, of non-negative costs


class Stream(eqx.Module):
    """Costs over time on every machine. Subclasses draw them; the defaults are those of an adversary that sees nothing.

    Real numbers are traced, so that other radii and scales do not compile again.
    """

    if TYPE_CHECKING:  # a field of every stream

        @property
        def radius(self) -> Any:
            """B of the comparator's ball."""

    def __check_init__(self) -> None:
        for name, (option, _) in options_of(type(self)).items():
            option.check(name, getattr(self, name))

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """d."""

    def known(self) -> Known:
        return Known()

    def check(self, num_machines: int, steps: int) -> None:
        """Raises a sentence if it cannot serve so many machines and steps."""

    def widths(self, num_machines: int) -> tuple[int, int]:
        """How many independent standard normal numbers `start` gets, and `costs` in every step."""
        return 0, 0

    def start(self, draws: jax.Array, num_machines: int) -> Any:
        """The adversary's memory before the first step."""
        return ()

    @abc.abstractmethod
    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        """The costs of a step, stacked over machines."""

    def watch(self, memory: Any, plays: jax.Array) -> Any:
        """The memory after a step; plays are (machines, points, d)."""
        return memory

    @property
    def random(self) -> bool:
        """Whether costs differ from seed to seed, or with what is played."""
        return True

    def least_value(self) -> float | None:
        """The least mean cost of the ball after every number of steps, where it is known beforehand."""
        return None


class Recorded(Stream):
    """Costs that were written down: data[t, m] of step t and machine m."""

    radius: float = positive(symbol="B")
    data: Any = None  # pytree, every leaf (steps, machines, ...)
    function: Callable[[Any, jax.Array], jax.Array] | None = eqx.field(static=True, default=None)
    dimension: int = eqx.field(static=True, default=1)
    facts: Known = eqx.field(static=True, default=Known())

    @property
    def size(self) -> int:
        return self.dimension

    @property
    def random(self) -> bool:
        return False

    def known(self) -> Known:
        return self.facts

    def check(self, num_machines: int, steps: int) -> None:
        have, machines = np.shape(jax.tree.leaves(self.data)[0])[:2]
        if machines != num_machines:
            raise SojournError(f"num_machines = {num_machines} does not fit; this stream was made for {machines}.")
        if steps > have:
            raise SojournError(f"steps = {steps} is out of range; this stream has the costs of {have} steps.")

    def costs(self, memory: Any, step: jax.Array, draws: jax.Array, num_machines: int) -> Cost:
        assert self.function is not None
        return Given(jax.tree.map(lambda leaf: leaf[step], self.data), self.function)


def stream(
    function: Callable[[Any, jax.Array], jax.Array], data: Any, *, radius: float, dimension: int,
    lipschitz: float | None = None, smoothness: float | None = None, heterogeneity: float | None = None,
    optimal_value: float | None = None,
) -> Recorded:  # fmt: skip
    """A stream of your own: `function(data_t_m, x)` is the cost of step t on machine m at a point x of R^d.

    It must be convex in x on the ball, as regret against the best point and its certificate need; this is checked at a
    few hundred pairs of points, which finds gross mistakes and proves nothing.

    data: a pytree of arrays that lead with steps and machines. What is known of the costs (G, H, zeta-hat, F_*) is used
    for step sizes by theory; leave out what you do not know and give step sizes instead. smoothness = 0: linear costs.
    """
    leaves = [np.shape(_numbers(leaf)) for leaf in jax.tree.leaves(data)]
    if not leaves or any(len(shape) < 2 for shape in leaves) or len({shape[:2] for shape in leaves}) > 1:
        shown = ", ".join(map(str, leaves)) or "nothing"
        raise SojournError(f"data must be arrays that lead with (steps, machines), alike in all; got {shown}.")
    if isinstance(dimension, bool) or not isinstance(dimension, (int, np.integer)) or dimension < 1:
        raise SojournError(f"dimension = {dimension!r} does not fit; expected a whole number of at least 1.")
    known = Known(lipschitz, smoothness, heterogeneity, optimal_value)
    for name, value in dataclasses.asdict(known).items():
        if value is not None and not (isinstance(value, (int, float, np.number)) and 0 <= float(value) < np.inf):
            raise SojournError(f"{name} = {value!r} is out of range; expected a finite number of at least 0, or None.")
    check_heterogeneity(heterogeneity, lipschitz)
    arrays = jax.tree.map(_array, data)
    made = Recorded(radius, arrays, function, int(dimension), known)
    first = jax.tree.map(lambda leaf: leaf[0, 0], arrays)
    try:
        shape = jax.eval_shape(function, first, jnp.zeros(int(dimension))).shape
    except Exception as error:  # whatever a user's function may raise
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise SojournError(f"function(data, x) fails at a point of dimension {dimension}: {reason}") from error
    if shape != ():
        raise SojournError(f"function(data, x) gives an array of shape {shape}; a cost is a single number.")
    _check_convex(made)
    return made


def _check_convex(made: Recorded, pairs: int = 256) -> None:
    """Refuses costs that are above the mean of two points of the ball in their middle; NaN is left to the game."""
    rng = np.random.default_rng(0)
    steps, machines = np.shape(jax.tree.leaves(made.data)[0])[:2]
    t, m = rng.integers(steps, size=pairs), rng.integers(machines, size=pairs)
    points = rng.normal(size=(2, pairs, made.dimension))
    points *= float(made.radius) * rng.random((2, pairs, 1)) / np.linalg.norm(points, axis=-1, keepdims=True)
    assert made.function is not None
    ask = jax.jit(jax.vmap(made.function))
    some = jax.tree.map(lambda leaf: leaf[t, m], made.data)
    first, second, middle = (
        np.asarray(ask(some, jnp.asarray(at, jnp.result_type(float))), float) for at in (*points, points.mean(0))
    )
    mean = (first + second) / 2
    with np.errstate(invalid="ignore"):
        over = middle - mean > 1e-4 * (np.abs(first) + np.abs(second) + np.abs(middle))  # rounding, generously
    if over.any():
        i = int(np.flatnonzero(over)[0])
        raise SojournError(
            f"function(data, x) is not convex: between two points of the ball where it is {mean[i]:.4g} on average it "
            f"is {middle[i]:.4g} (step {t[i] + 1}, machine {m[i] + 1}); regret is against the best point of convex "
            "costs."
        )


def _numbers(leaf: Any) -> Any:
    try:
        if np.asarray(leaf).dtype.kind in "biuf" or jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
    except (TypeError, ValueError, AttributeError):
        pass
    raise SojournError(f"data must be arrays of numbers; got {type(leaf).__name__} {str(leaf)[:40]!r}.")


def _array(leaf: Any) -> jax.Array:
    found = jnp.asarray(leaf)
    return found.astype(jnp.result_type(float)) if jnp.issubdtype(found.dtype, jnp.floating) else found


def check_heterogeneity(heterogeneity: Any, lipschitz: Any) -> None:
    """zeta-hat bounds the distance between gradients of norm at most G (thesis, assumption 18), at most 2G."""
    if heterogeneity is None or lipschitz is None:
        return
    if isinstance(heterogeneity, jax.core.Tracer) or isinstance(lipschitz, jax.core.Tracer):
        return
    if float(heterogeneity) > 2 * float(lipschitz) * (1 + 1e-6):
        raise SojournError(
            f"heterogeneity = {float(heterogeneity):g} is more than twice lipschitz = {float(lipschitz):g}, which no "
            "costs reach; give at most that."
        )
