"""Virtual time of synchronous rounds: the server waits for the slowest of those it asked."""

from collections.abc import Sequence

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.traces.schedules import Devices, Machines

_ATTEMPTS = 1000  # visits that a window's end cuts, before the client is given up


class RoundClock:
    """Tells when every round ends. Rounds must be told in order; the same seed gives the same times.

    A client that is away is waited for, and work that the end of its window cuts is done again: nobody is left out, so
    a method computes what it computes without clocks.
    """

    def __init__(self, devices: Devices, num_clients: int, seed: int) -> None:
        self._machines: Machines = devices.prepare(num_clients, seed)
        self.now = 0.0

    def play(self, members: Sequence[np.ndarray], steps: Sequence[int]) -> float:
        """The time after a round whose exchanges ask these clients for so many steps, one exchange after another."""
        for ids, number in zip(members, steps, strict=True):
            self.now = max((self._back(int(client), number) for client in ids), default=self.now)
        return self.now

    def _back(self, client: int, steps: int) -> float:
        now = self.now
        for _ in range(_ATTEMPTS):
            begins = float(self._machines.presence.opens(np.array([client]), now)[0])
            if not np.isfinite(begins):
                break
            done, arrives = self._machines.visit(client, steps)
            closes = self._machines.presence.closes(client, begins)
            if begins + done <= closes:
                return begins + arrives
            now = closes
        raise SojournError(
            f"from {self.now:g} virtual seconds on client {client} is never there long enough for its {steps} steps; "
            "give longer windows or a faster clock."
        )
