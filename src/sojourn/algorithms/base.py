"""The contract of an algorithm: server state, client memory, and the exchanges of a round.

An exchange is one trip of messages: the server *broadcasts* a `Down`, each member does *local* work with its oracle and
answers an `Up`, the server *aggregates* the answers. `Down` and `Up` are the wire: nothing else crosses, and their
sizes are what is counted. An algorithm sees oracles, never data, and does not know which engine runs it.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np

from sojourn.core.options import options_of
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec

Info = dict[str, jax.Array]  # numbers for the reader, averaged over those taking part


class Who(enum.Enum):
    """Who takes part in an exchange."""

    ALL = "all"
    COHORT = "cohort"  # the round's cohort: one draw per round, shared by all its COHORT exchanges
    ONE = "one"  # one client, drawn uniformly
    FIRST = "first"  # always client 0: methods that work on one machine

    def number(self, num_clients: int, cohort: int) -> int:
        """How many take part."""
        return {Who.ALL: num_clients, Who.COHORT: cohort}.get(self, 1)


class Known(eqx.Module):
    """A part of a message that need not travel, because the receiver holds it already; it is not counted.

    Only true where the same clients take part every round, or where an exchange before it in the same round went to
    all who now take part; an engine refuses it elsewhere.
    """

    content: Any


class Context(eqx.Module):
    """What the server knows when answers arrive."""

    round: jax.Array  # rounds finished before this one
    num_clients: int = eqx.field(static=True)
    num_answers: jax.Array | int = 1
    share: jax.Array | float = 1.0  # of the objective's weight that those who answered hold
    staleness: jax.Array | int = 0  # server updates since the answer's model was sent; 0 in synchronous rounds
    weights: jax.Array | None = None  # of the stacked answers, summing to one; only with reduce="stack"
    key: jax.Array | None = None  # the server's own randomness for these answers, see `core.keys.server_key`
    evenness: jax.Array | float = 1.0  # 1 / (n sum w^2): the mean of n answers is as noisy as of evenness n equal ones


@dataclasses.dataclass(frozen=True)
class World:
    """What a method is told of where it is to run, so that it can refuse what it cannot do there."""

    num_clients: int
    cohort: int
    counts_alike: bool = True  # whether all answers weigh the same
    made_together: bool = False  # whether the first model was made of what clients sent
    redealt: bool = False  # whether samples change hands in every round
    drawn: bool = True  # whether cohorts are drawn at random; a deployment asks those who are there


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One trip of messages. `purpose` names its randomness: exchanges that should draw alike share it."""

    broadcast: Callable[[Any], Any]  # server -> Down
    local: Callable[[Any, Any, Oracle, jax.Array], tuple[Any, Any, Info]]  # Down, memory, oracle, key
    aggregate: Callable[[Any, Any, Context], Any]  # server, Up, context -> server
    who: Who = Who.COHORT
    purpose: str = "local"
    reduce: str = "mean"  # "mean": aggregate gets the weighted mean of the answers; "stack": all of them
    # The Up that changes nothing, from which an answer's length is measured: "zero" for differences and gradients, a
    # function of Down where clients send models, "unknown" where there is none.
    origin: Callable[[Any], Any] | str = "zero"


class Algorithm(eqx.Module):
    """A method: a frozen set of numbers with a few pure functions.

    Methods with one exchange define `broadcast`, `local` and `aggregate`. Others override `exchanges`; `opening`
    replaces it in the very first round, and again every `reopens_every` rounds; `closing` is run once after the last.
    """

    # how answers are weighed: "objective": by the federation's weights; "size": by number of samples; "equal": alike
    weighting: ClassVar[str] = "objective"
    who: ClassVar[Who] = Who.COHORT
    reduce: ClassVar[str] = "mean"
    layerwise: ClassVar[bool] = False  # whether it matters how a model's numbers are divided into arrays
    asynchronous: ClassVar[bool] = False  # answers are taken one by one, as they come: needs a trace
    sends_models: ClassVar[bool] = False  # clients answer with models, not with changes: `unchanged` is an Up
    private: ClassVar[bool] = False  # whether what leaves the server is meant to hide who took part
    tunable: ClassVar[bool] = False  # one exchange walks num_local_steps steps of step_size, which may be traced
    plain_descent: ClassVar[bool] = False  # clients take plain gradient steps: its fixed point has a closed form

    def __check_init__(self) -> None:
        for name, (option, _) in options_of(type(self)).items():
            option.check(name, getattr(self, name))

    @property
    def title(self) -> str:
        """What sentences and legends call it."""
        return type(self).__name__

    def plain(self) -> "Algorithm":
        """The method itself, without what may be wrapped around it."""
        return self

    def describe(self) -> dict[str, Any]:
        """The class and its options, for the manifest; arrays of a sweep as lists."""
        values = {name: getattr(self, name) for name in options_of(type(self))}
        plain = {name: np.asarray(v).tolist() if isinstance(v, jax.Array) else v for name, v in values.items()}
        plain = {name: v if isinstance(v, (str, int, float, list, type(None))) else str(v) for name, v in plain.items()}
        return {"class": type(self).__name__, **plain}

    def check(self, world: World) -> None:
        """Raises a sentence where the method cannot do in this world what it promises."""

    def account(self, world: World, rounds: int) -> dict[str, Any]:
        """What a manifest says of so many rounds in this world, beyond the options: a private method's epsilon."""
        return {}

    def needs_everyone(self) -> bool:
        """Whether the method is only right when all clients take part in every round."""
        return False

    def uploads_per_update(self) -> int:
        """How many answers an asynchronous method takes to make a new version of its model."""
        return 1

    def told(self, context: Context) -> Info:
        """Numbers for the reader about an answer that an asynchronous method takes."""
        return {}

    def init_server(self, x0: Vec) -> Any:
        raise NotImplementedError

    def init_client(self, x0: Vec) -> Any:
        """What a client keeps between its visits; () for nothing."""
        return ()

    def broadcast(self, server: Any) -> Any:
        """What the server sends; by default its model."""
        return self.model(server)

    def local(self, down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        raise NotImplementedError

    def unchanged(self, down: Any) -> Any:
        """The Up of a client that did nothing, where clients send models; by default what they were sent."""
        return down

    def aggregate(self, server: Any, up: Any, context: Context) -> Any:
        raise NotImplementedError

    def exchanges(self) -> tuple[Exchange, ...]:
        origin = self.unchanged if self.sends_models else "zero"
        return (Exchange(self.broadcast, self.local, self.aggregate, self.who, reduce=self.reduce, origin=origin),)

    def opening(self) -> tuple[Exchange, ...]:
        """The first round's exchanges, where they differ in shape from the others; () when they do not."""
        return ()

    def reopens_every(self) -> int:
        """Rounds from one opening to the next, of methods that begin anew now and then; 0: only the first opens."""
        return 0

    def closing(self) -> tuple[Exchange, ...]:
        return ()

    def model(self, server: Any) -> Vec:
        """The server's current model."""
        return server.x

    def answer(self, server: Any) -> Vec:
        """What the method returns, after the closing exchanges; by default its model."""
        return self.model(server)


class ModelState(eqx.Module):
    """The state of a server that keeps nothing but its model."""

    x: Vec
