"""The book of an asynchronous run: uploads are applied one by one, in the order in which the broker queued them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm, Context
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, server_key
from sojourn.deploy.book import APPLIED, DUPLICATE, HANDED_OUT, TOO_STALE, Book, Task, reach_and_move
from sojourn.deploy.rules import Rules
from sojourn.traces.trace import ACCEPTED, LOST, STALE, TIMED_OUT, UNFINISHED, Trace

_TRIP = "steady.0"
_KEYS_TOGETHER = 64


class OneByOne(Book):
    """Keeps workers busy; each upload makes a step of the server, or a part of one."""

    unit = "uploads"

    def __init__(
        self, federation: Federation, algorithm: Algorithm, place: Path, rules: Rules, *, of: int, seed: int = 0
    ) -> None:
        if not algorithm.asynchronous:
            raise SojournError(f"{algorithm.title} takes its answers in rounds, not one by one as they come.")
        if rules.ahead and jax.tree.leaves(algorithm.init_client(federation.x0)):
            raise SojournError(
                f"{algorithm.title} remembers its last visit, so its tasks cannot wait; leave ahead out."
            )
        self._per_update = algorithm.uploads_per_update()
        super().__init__(federation, algorithm, place, rules, of=of, seed=seed)
        self._apply = jax.jit(self._applied)
        self._fold = jax.jit(self._folded)
        self._keys = -1, np.zeros(0, np.uint32)  # the first of a block of tasks, and their keys by client

    def _applied(self, algorithm: Algorithm, server: Any, up: Any, root: Any, applied: Any, staleness: Any) -> Any:
        """The next state, how far its model is from zero and from the last, and what the method says of the step.

        One program: an upload costs one call, and no model is made beside the new one.
        """
        key = server_key(jax.random.fold_in(root, applied), self.trips.exchanges[_TRIP].purpose)
        context = Context(
            jnp.asarray(applied), self.num_clients, 1, 1 / self.num_clients, jnp.asarray(staleness), key=key
        )
        after = algorithm.exchanges()[0].aggregate(server, up, context)
        return after, (*reach_and_move(algorithm, server, after), algorithm.told(context))

    def _folded(self, root: jax.Array, first: Any) -> jax.Array:
        """The keys of a block of tasks, whoever they will go to: one call costs as much as a single key."""
        purpose = self.trips.exchanges[_TRIP].purpose
        one = lambda key, client: purpose_key(jax.random.fold_in(key, client), purpose)  # noqa: E731
        tasks = jax.vmap(jax.random.fold_in, (None, 0))(root, first + jnp.arange(_KEYS_TOGETHER))
        keys = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(tasks, jnp.arange(self.num_clients))
        return jax.random.key_data(keys)

    @property
    def done(self) -> int:
        return self.applied

    @property
    def version(self) -> int:
        return self.applied // self._per_update

    @property
    def models_in_use(self) -> int:
        everyone = (1 + self.rules.ahead) * self.num_clients
        return min(everyone, self.rules.concurrency or everyone)

    def assign(self, present: Sequence[int], now: float) -> list[Task]:
        if self.over:
            return []
        each, out = 1 + self.rules.ahead, Counter(task.client for task in self.out.values())
        room = self.models_in_use - len(self.out)
        # those first that have nothing to do
        free = [client for number in range(each) for client in present if out[client] <= number]
        return [self._hand_out(client, _TRIP, 0, now) for client in free[: max(0, room)]]

    def key(self, task: Task) -> np.ndarray:
        first = task.number - task.number % _KEYS_TOGETHER
        if first != self._keys[0]:
            self._keys = first, np.asarray(self._fold(self.root, first))
        return self._keys[1][task.number - first, task.client]

    def unpublished(self) -> list[Task]:
        return [task for task in self.out.values() if task.applied == self.applied]

    def take(self, number: int, client: int, up: Any, size: float = 0.0, worker: str = "") -> str:
        task = self.out.get(number)
        if task is None or task.client != client or self.over:
            return DUPLICATE
        del self.out[number]
        staleness = self.version - task.version
        row = {"number": number, "client": client, "worker": worker, "version": task.version, "staleness": staleness}
        if self.rules.max_staleness is not None and staleness > self.rules.max_staleness:
            self._fresh.append({"event": TOO_STALE, **row, "applied": self.applied})
            return TOO_STALE
        self.server, measured = self._apply(self.algorithm, self.server, up, self.root, self.applied, staleness)
        reach, moved, told = jax.device_get(measured)
        moved = self._moved(reach, moved)
        self.applied += 1
        self.memories[client] = number
        told = {name: float(value) for name, value in told.items()}
        told = {"weight": told.pop("mixing_weight", 1.0), **told}
        done = {"applied": self.applied, "norm": size, "moved": moved, "seconds": round(self.seconds, 3)}
        self._fresh.append({"event": APPLIED, **row, **done, **told})
        return APPLIED


def trace_of(log: Sequence[dict[str, Any]], num_clients: int, uploads_per_update: int) -> Trace:
    """The log as a trace, in which time is the number of events: the simulator can play it again."""
    fates = {APPLIED: ACCEPTED, TOO_STALE: STALE, TIMED_OUT: TIMED_OUT, LOST: LOST}
    tasks: dict[int, dict[str, Any]] = {}
    for time, row in enumerate(log):
        if row["event"] == HANDED_OUT:
            tasks[row["number"]] = {
                "client": row["client"], "dispatched": float(time), "applied": float(len(log)), "fate": UNFINISHED,
            }  # fmt: skip
        elif row["event"] in fates:
            tasks[row["number"]] |= {"applied": float(time), "fate": fates[row["event"]]}
    return Trace(pd.DataFrame([tasks[number] for number in sorted(tasks)]), num_clients, uploads_per_update)
