"""What happens before the first round: a start that server and clients make together sends messages too."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Setup:
    """What was sent, over all clients; a run counts it in round 0 and tells the record in its manifest."""

    floats_down: int
    floats_up: int
    bytes_down: int
    bytes_up: int
    record: Mapping[str, Any]  # plain values
    # what theory says of a start depends on the method: (its class and options, batch size) -> plain values
    check: Callable[[Mapping[str, Any], int | None], Mapping[str, Any]] | None = None

    def sent(self) -> dict[str, int]:
        names = ("floats_down", "floats_up", "bytes_down", "bytes_up")
        return {name: getattr(self, name) for name in names}

    def told(self, algorithm: Mapping[str, Any], batch_size: int | None) -> dict[str, Any]:
        """The entry of a manifest."""
        judged = {} if self.check is None else {"checked": dict(self.check(algorithm, batch_size))}
        return {**self.sent(), **self.record, **judged}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model whose start was made together with the clients. Problems take it in the place of a model."""

    model: Any
    setup: Setup
