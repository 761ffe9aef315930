"""What an online method is: where it plays, what it makes of the answer, and how its iterate moves.

A machine holds one vector x. In every step it plays `query(x)`, is told gradients or values at exactly those points and
nothing else, makes an estimate of the gradient from them and moves. Those that collaborate are set to their mean every
K steps by the protocol; K belongs to the protocol, not to the method.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.core.errors import SojournError
from sojourn.core.options import options_of
from sojourn.online.stream import Known

Feedback = Literal["gradient", "one value", "two values"]


@dataclasses.dataclass(frozen=True)
class Game:
    """The numbers that theory tunes by."""

    steps: int  # T
    num_local_steps: int  # K
    num_machines: int  # M
    dimension: int  # d
    radius: float  # B
    known: Known

    def alone(self) -> "Game":
        """As a machine sees it that talks to nobody."""
        return dataclasses.replace(self, num_local_steps=1, num_machines=1)

    def numbers(self) -> dict[str, Any]:
        """T, K, M, d, B and G, as statements of theory name them."""
        return {
            "steps": self.steps, "num_local_steps": self.num_local_steps, "num_clients": self.num_machines,
            "dimension": self.dimension, "radius": self.radius, "lipschitz": self.known.lipschitz,
        }  # fmt: skip


class Method(eqx.Module):
    """A frozen set of numbers; `None` for a step size, or an exploration, means the one that theory gives."""

    feedback: ClassVar[Feedback]
    collaborative: ClassVar[bool]
    linear_costs: ClassVar[bool] = False  # whether its guarantee is for linear costs alone

    if TYPE_CHECKING:  # fields of every method

        @property
        def step_size(self) -> Any: ...

        @property
        def constrained(self) -> Any: ...

    def __check_init__(self) -> None:
        for name, (option, _) in options_of(type(self)).items():
            option.check(name, getattr(self, name))
        if not isinstance(self.constrained, bool):
            raise SojournError(f"constrained = {self.constrained!r} does not fit; expected true or false.")

    @abc.abstractmethod
    def tuned(self, game: Game) -> Self:
        """Itself with every number filled in by theory."""

    def width(self, dimension: int) -> int:
        """How many independent standard normal numbers a machine gets for its play, in every step."""
        return 0

    @abc.abstractmethod
    def query(self, x: jax.Array, radius: jax.Array, draws: jax.Array) -> tuple[jax.Array, Any]:
        """The points to play (points, d), and what `estimate` needs to know of them."""

    @abc.abstractmethod
    def estimate(self, aim: Any, answer: jax.Array) -> jax.Array:
        """A gradient from the answer: the gradient itself (d,), or the values (points,)."""

    def move(self, x: jax.Array, estimate: jax.Array) -> jax.Array:
        return x - self.step_size * estimate


def constrained_field() -> Any:
    """Whether plays stay in the comparator's ball."""
    return eqx.field(static=True, default=False)


def filled(method: Any, **numbers: Any) -> Any:
    """The method with the numbers that it leaves open."""
    mine = {name: value for name, value in numbers.items() if getattr(method, name) is None}
    return dataclasses.replace(method, **mine)


def need(method: Method, game: Game, name: str) -> float:
    """A fact of the stream that a step size by theory needs."""
    value = getattr(game.known, name)
    if value is None:
        raise SojournError(
            f"{type(method).__name__} needs the stream's {name} for its step size, which is not known; give step_size."
        )
    return float(value)


def onto_ball(x: jax.Array, radius: Any) -> jax.Array:
    """The nearest point of the ball."""
    length = jnp.linalg.norm(x)
    return x * jnp.minimum(1.0, radius / jnp.where(length > 0, length, 1.0))


def on_sphere(draws: jax.Array) -> jax.Array:
    """A uniform unit vector from normal numbers."""
    return draws / jnp.linalg.norm(draws)
