"""What happens before the first round: a start that server and clients make together sends messages too."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Use:
    """How a start is used, as far as theory asks; None is not known."""

    algorithm: Mapping[str, Any]  # its class and options
    batch_size: int | None = None  # None: exact gradients
    everyone: bool = True  # takes part in every round
    loss: str | None = None
    weights: str | None = None  # "equal" or "size"


@dataclasses.dataclass(frozen=True)
class Setup:
    """What was sent, over all clients; a run counts it in round 0 and tells the record in its manifest."""

    floats_down: int
    floats_up: int
    bytes_down: int
    bytes_up: int
    record: Mapping[str, Any]  # plain values
    check: Callable[[Use], Mapping[str, Any]] | None = None  # what theory says of the start, for a use: plain values
    clients: str | None = None  # the fingerprint of the data that the start was made with
    problem: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # loss and weights, once they are known

    def sent(self) -> dict[str, int]:
        names = ("floats_down", "floats_up", "bytes_down", "bytes_up")
        return {name: getattr(self, name) for name in names}

    def told(self, algorithm: Mapping[str, Any], batch_size: int | None, everyone: bool = True) -> dict[str, Any]:
        """The entry of a manifest."""
        use = Use(algorithm, batch_size, everyone, **self.problem)
        judged = {} if self.check is None else {"checked": dict(self.check(use))}
        return {**self.sent(), **self.record, **judged}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model whose start was made together with the clients. Problems take it in the place of a model."""

    model: Any
    setup: Setup


def fingerprint(clients: Iterable[tuple[Any, Any]]) -> str:
    """Of all clients' inputs and labels, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for arrays in clients:
        for array in arrays:
            array = np.ascontiguousarray(array)
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
