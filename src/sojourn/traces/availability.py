"""When clients are there: windows in virtual time in which they take work. Work that a window's end cuts is lost."""

import bisect
import dataclasses
import math
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import FieldsChecked
from sojourn.traces.clocks import read_table


class Presence(Protocol):
    """Who is there when, once drawn."""

    def opens(self, clients: np.ndarray, now: float) -> np.ndarray:
        """When each of the clients is there, from now on: now, if it is."""

    def closes(self, client: int, now: float) -> float:
        """When the window that is open now ends."""


class Availability(Protocol):
    def prepare(self, num_clients: int, rng: np.random.Generator) -> Presence: ...


@dataclasses.dataclass(frozen=True)
class Always(FieldsChecked):
    """Everyone is always there."""

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Presence:
        return self

    def opens(self, clients: np.ndarray, now: float) -> np.ndarray:
        return np.full(len(clients), now)

    def closes(self, client: int, now: float) -> float:
        return math.inf


@dataclasses.dataclass(frozen=True)
class DayNight(FieldsChecked):
    """Every client is there for a share of each period; when its day begins is drawn once."""

    period: Annotated[float, Field(gt=0, description="virtual seconds of a day and a night")] = 100.0
    share: Annotated[float, Field(gt=0, le=1, description="of the period in which a client is there")] = 0.5
    spread: Annotated[
        float, Field(ge=0, le=1, description="share of the period over which the days begin; 0: all at once")
    ] = 1.0

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Presence:
        return _Cycle(self.period, self.share * self.period, self.spread * self.period * rng.random(num_clients))


@dataclasses.dataclass(frozen=True)
class _Cycle:
    period: float
    length: float
    begins: np.ndarray  # (clients,)

    def opens(self, clients: np.ndarray, now: float) -> np.ndarray:
        dawn = self._dawn(clients, now)
        return np.where(now < dawn + self.length, now, dawn + self.period)

    def closes(self, client: int, now: float) -> float:
        if self.length >= self.period:
            return math.inf
        return float(self._dawn(client, now) + self.length)

    def _dawn(self, clients: Any, now: float) -> Any:
        """When the period began that is now; a day that begins by rounding a little later has begun."""
        return self.begins[clients] + self.period * np.floor((now - self.begins[clients]) / self.period + 1e-9)


@dataclasses.dataclass(frozen=True)
class WindowsFromFile(FieldsChecked):
    """Windows that were observed: a CSV file with the columns client, start and end, in virtual seconds."""

    path: Annotated[str, Field(description="of the file")]

    def prepare(self, num_clients: int, rng: np.random.Generator) -> Presence:
        table = read_table(self.path, ("client", "start", "end"), num_clients)
        if not (table["end"] > table["start"]).all():
            raise SojournError(f"{self.path} holds a window that ends before it starts; time must not go backwards.")
        windows: list[list[tuple[float, float]]] = [[] for _ in range(num_clients)]
        for client, start, end in table[["client", "start", "end"]].sort_values("start").itertuples(index=False):
            if windows[client] and windows[client][-1][1] >= start:  # windows that touch are one
                windows[client][-1] = (windows[client][-1][0], max(end, windows[client][-1][1]))
            else:
                windows[client].append((float(start), float(end)))
        return _Windows(windows)


@dataclasses.dataclass(frozen=True)
class _Windows:
    windows: list[list[tuple[float, float]]]  # of each client, in order and apart

    def opens(self, clients: np.ndarray, now: float) -> np.ndarray:
        return np.array([self._opens(int(client), now) for client in clients])

    def _opens(self, client: int, now: float) -> float:
        own = self.windows[client]
        place = bisect.bisect_right(own, (now, math.inf)) - 1
        if place >= 0 and now < own[place][1]:
            return now
        return own[place + 1][0] if place + 1 < len(own) else math.inf

    def closes(self, client: int, now: float) -> float:
        own = self.windows[client]
        return own[bisect.bisect_right(own, (now, math.inf)) - 1][1]


AVAILABILITIES = {"always": Always, "day-night": DayNight, "file": WindowsFromFile}
