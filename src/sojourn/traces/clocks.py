"""How long things take, in virtual seconds: laws for a local step, and for a message on its way.

Every law has a `client_spread`: clients are faster or slower for good by a lognormal factor with this sigma.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
import pandas as pd
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import FieldsChecked

Draw = Callable[[int], float]  # client -> seconds, another each time
Seconds = Annotated[float, Field(gt=0, description="virtual seconds")]
Share = Annotated[float, Field(gt=0)]
Spread = Annotated[float, Field(ge=0, le=10, description="sigma of the clients' own lognormal factors; 0: all alike")]


class Clock(Protocol):
    """A law of durations."""

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw: ...


@dataclasses.dataclass(frozen=True)
class Constant(FieldsChecked):
    """Always the same."""

    seconds: Annotated[float, Field(ge=0, description="virtual seconds")] = 1.0
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        return _by_client(self, num_clients, rng, lambda: self.seconds)


@dataclasses.dataclass(frozen=True)
class Uniform(FieldsChecked):
    """Uniform between two numbers."""

    low: Annotated[float, Field(ge=0, description="virtual seconds at least")] = 0.5
    high: Seconds = 1.5
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        if self.low > self.high:
            raise SojournError(f"a uniform clock from {self.low:g} to {self.high:g} runs backwards; swap low and high.")
        return _by_client(self, num_clients, rng, lambda: rng.uniform(self.low, self.high))


@dataclasses.dataclass(frozen=True)
class Lognormal(FieldsChecked):
    """Lognormal: mostly near the median, now and then much longer."""

    median: Seconds = 1.0
    sigma: Annotated[float, Field(ge=0, le=10, description="of the logarithm; 1: one in forty takes seven times")] = 0.5
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        return _by_client(self, num_clients, rng, lambda: self.median * math.exp(self.sigma * rng.standard_normal()))


@dataclasses.dataclass(frozen=True)
class Exponential(FieldsChecked):
    """Exponential: what has taken long takes as long again."""

    mean: Seconds = 1.0
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        return _by_client(self, num_clients, rng, lambda: self.mean * rng.standard_exponential())


@dataclasses.dataclass(frozen=True)
class Pareto(FieldsChecked):
    """Pareto: a heavy tail, P(longer than t) = (minimum / t)^tail."""

    minimum: Seconds = 1.0
    tail: Annotated[float, Field(gt=0, le=100, description="at most 1: the mean is infinite; 2: the variance")] = 1.5
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        return _by_client(self, num_clients, rng, lambda: self.minimum * (1 + rng.pareto(self.tail)))


@dataclasses.dataclass(frozen=True)
class SpeedClasses(FieldsChecked):
    """Every client belongs to a class for good, and always takes as long as its class does."""

    seconds: Annotated[list[Seconds], Field(min_length=1, description="virtual seconds of each class")] = (
        dataclasses.field(default_factory=lambda: [1.0, 2.0, 10.0])
    )
    shares: Annotated[list[Share], Field(min_length=1, description="of the clients in each class, up to scale")] = (
        dataclasses.field(default_factory=lambda: [0.5, 0.3, 0.2])
    )
    client_spread: Spread = 0.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        if len(self.seconds) != len(self.shares):
            raise SojournError(
                f"the clock has {len(self.seconds)} classes' seconds and {len(self.shares)} shares; give one for each."
            )
        ends = np.rint(np.cumsum(self.shares) / np.sum(self.shares) * num_clients)
        kinds = rng.permutation(np.searchsorted(ends, np.arange(num_clients), side="right"))
        return _with_factors(self.client_spread, num_clients, rng, lambda client: self.seconds[kinds[client]])


@dataclasses.dataclass(frozen=True)
class FromFile(FieldsChecked):
    """Durations that were measured: a CSV file with the columns client and seconds, taken in order, over and over."""

    path: Annotated[str, Field(description="of the file")]

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Draw:
        table = read_table(self.path, ("client", "seconds"), num_clients)
        if (table["seconds"] < 0).any() or not np.isfinite(table["seconds"]).all():
            raise SojournError(f"{self.path} holds a duration that is negative or no number; take it out.")
        own = {int(client): rows["seconds"].to_numpy() for client, rows in table.groupby("client")}
        silent = next((client for client in range(num_clients) if client not in own), None)
        if silent is not None:
            raise SojournError(f"{self.path} says nothing of client {silent}; give every client at least one duration.")
        taken = np.zeros(num_clients, int)

        def draw(client: int) -> float:
            taken[client] += 1
            return float(own[client][(taken[client] - 1) % len(own[client])])

        return draw


def _by_client(clock: "Clock", num_clients: int, rng: np.random.Generator, draw: Callable[[], float]) -> Draw:
    return _with_factors(clock.client_spread, num_clients, rng, lambda client: draw())  # type: ignore[attr-defined]


def _with_factors(spread: float, num_clients: int, rng: np.random.Generator, draw: Draw) -> Draw:
    factors = np.exp(spread * rng.standard_normal(num_clients))
    return lambda client: float(factors[client] * draw(client))


def read_table(path: str, columns: tuple[str, ...], num_clients: int) -> pd.DataFrame:
    """A CSV file about clients, checked: its columns are there, and so are its clients."""
    try:
        table = pd.read_csv(Path(path).expanduser())
    except FileNotFoundError:
        raise SojournError(f"{path} does not exist; give a CSV file with the columns {', '.join(columns)}.") from None
    except (OSError, ValueError) as error:
        raise SojournError(f"{path} cannot be read as CSV ({type(error).__name__}).") from error
    missing = [name for name in columns if name not in table]
    if missing or not len(table):
        raise SojournError(
            f"{path} has {'no rows' if not missing else f'no column {missing[0]}'}; it needs {', '.join(columns)}."
        )
    for name in columns:
        if name != "fate" and not pd.api.types.is_numeric_dtype(table[name]):
            raise SojournError(f"{path}: the column {name} holds what is no number.")
    check_clients(path, table["client"].to_numpy(float), num_clients)
    return table.astype({"client": int})


def check_clients(where: str, clients: np.ndarray, num_clients: int) -> None:
    known = np.isfinite(clients) & (clients >= 0) & (clients < num_clients)
    odd = np.flatnonzero(~known | (np.floor(np.where(known, clients, 0)) != np.where(known, clients, 0)))
    if odd.size:
        raise SojournError(f"{where} names client {clients[odd[0]]:g}; there are clients 0 to {num_clients - 1}.")


CLOCKS = {
    "constant": Constant, "uniform": Uniform, "lognormal": Lognormal, "exponential": Exponential, "pareto": Pareto,
    "classes": SpeedClasses, "file": FromFile,
}  # fmt: skip
