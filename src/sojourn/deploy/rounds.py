"""The book of a run in rounds: an exchange is handed to those who are there, and closed when enough have answered.

Who is asked is drawn as in the simulator; those of the draw who are absent are replaced by others who are there, and
`over_selection` asks a few more than are needed. An exchange closes with the first `cohort` answers, or, after its
deadline, with `min_reports` of them; late ones are not used. Answers are added up as they come, so a mean never holds
more than two models, and they stay with the broker until the model that contains them is on disk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Who, World
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key
from sojourn.deploy.book import AGAIN, APPLIED, DUPLICATE, HELD, Book, Task, Trips, reach_and_move
from sojourn.deploy.rules import Rules
from sojourn.engine.participation import cohort_size, members
from sojourn.engine.rounds import context_of, phase, shares

_BLOCK = 1 << 16
NOT_NEEDED, CLOSED = "not needed", "closed"


class InRounds(Book):
    """Cohorts, minimum reports, deadlines."""

    unit = "rounds"
    kept = (*Book.kept, "round", "position", "began", "earlier")

    def __init__(
        self, federation: Federation, algorithm: Algorithm, place: Path, rules: Rules, *, of: int, seed: int = 0,
        participation: int | float | None = None,
    ) -> None:  # fmt: skip
        if algorithm.asynchronous:
            raise SojournError(f"{algorithm.title} takes its answers one by one as they come, not in rounds.")
        self.cohort = cohort_size(participation, federation.num_clients)
        self._check(algorithm, rules, federation.num_clients)
        self.round, self.position, self.began = 0, 0, 0.0
        self.earlier: list[int] = []  # who answered the last exchange of this round that went to its cohort
        super().__init__(federation, algorithm, place, rules, of=of, seed=seed)
        self._aggregate = jax.jit(
            lambda a, name, server, up, context: Trips.of(a)[name].aggregate(server, up, context), static_argnums=1
        )
        self._clear()

    def _check(self, algorithm: Algorithm, rules: Rules, num_clients: int) -> None:
        name = algorithm.title
        algorithm.check(World(num_clients, rules.min_reports or self.cohort))  # a median of too few is none
        if algorithm.needs_everyone() and (self.cohort < num_clients or rules.min_reports is not None):
            raise SojournError(
                f"{name} is only right when everyone takes part; leave participation and deploy.min_reports out."
            )
        if rules.min_reports is not None and rules.min_reports > self.cohort:
            raise SojournError(
                f"deploy.min_reports = {rules.min_reports} is out of range; a round asks {self.cohort} clients."
            )
        if rules.min_reports is not None and rules.deadline is None:
            raise SojournError("deploy.min_reports only counts after a deadline; give deploy.deadline too.")
        if self.cohort + rules.over_selection > num_clients:
            raise SojournError(
                f"deploy.over_selection = {rules.over_selection} is out of range; beyond the {self.cohort} of a round "
                f"there are {num_clients - self.cohort} clients."
            )

    def _settled(self) -> Any:
        return self.cohort

    def _clear(self) -> None:
        self._reports: dict[int, int] = {}  # client -> task, in the order of arrival
        self._sizes: dict[int, tuple[float, str]] = {}
        self._total: Any = None  # of a mean: the weighted sum so far
        self._stack: dict[int, Any] = {}  # of a stack: the answers

    # --- how far it is -------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        return self.round if not self._closing or self.position >= len(self.trips.phase("closing")) else self.of - 1

    @property
    def _closing(self) -> bool:
        return self.round >= self.of and bool(self.trips.phase("closing"))

    @property
    def version(self) -> int:
        return self.round

    @property
    def holding(self) -> bool:
        return bool(self._reports)

    @property
    def exchange(self) -> str:
        """The exchange that is under way or comes next."""
        if self._closing:
            return f"closing.{self.position}"
        opening, _ = phase(self.algorithm, self.round)
        return f"{'opening' if opening else 'steady'}.{self.position}"

    @property
    def reported(self) -> int:
        return len(self._reports)

    @property
    def wanted(self) -> int:
        """How many answers close the exchange."""
        return self._wanted()[2]

    def has_answered(self, client: int) -> bool:
        return client in self._reports

    # --- tasks ---------------------------------------------------------------------------------------------------

    def assign(self, present: Sequence[int], now: float) -> list[Task]:
        if self.over:
            return []
        pool, quota, _ = self._wanted()
        asked = self.busy() | set(self._reports)
        there = set(present)
        chosen = [client for client in pool if client in there and client not in asked][: max(0, quota - len(asked))]
        if chosen and not asked:
            self.began = now
        return [self._hand_out(client, self.exchange, self.round, now) for client in chosen]

    def _wanted(self) -> tuple[list[int], int, int]:
        """Of the exchange: whom it may ask, in order; how many at a time; how many answers close it."""
        who = self.trips.exchanges[self.exchange].who
        everyone = [client for client in range(self.num_clients) if client not in self.excluded]
        if who is Who.ALL:
            return everyone, len(everyone), len(everyone)
        if who is Who.FIRST:
            return [0], 1, 1
        if who is Who.COHORT and self.earlier:
            left = [client for client in self.earlier if client not in self.excluded]
            return left, len(left), len(left)
        drawn = self._drawn(who)
        order = drawn + [client for client in self._shuffled() if client not in drawn]
        pool = [client for client in order if client not in self.excluded]
        if who is Who.ONE:
            return pool, 1, 1
        return pool, min(len(pool), self.cohort + self.rules.over_selection), min(len(pool), self.cohort)

    def _round_key(self) -> jax.Array:
        return jax.random.fold_in(self.root, self.round)

    def _drawn(self, who: Who) -> list[int]:
        purpose = self.trips.exchanges[self.exchange].purpose
        return np.asarray(members(who, self._round_key(), self.num_clients, self.cohort, purpose)).tolist()

    def _shuffled(self) -> list[int]:
        """In what order those stand in who were not drawn."""
        key = purpose_key(self._round_key(), "stand-ins")
        return np.asarray(jax.random.permutation(key, self.num_clients)).tolist()

    def key(self, task: Task) -> np.ndarray:
        key = jax.random.fold_in(jax.random.fold_in(self.root, task.round), task.client)
        return np.asarray(jax.random.key_data(purpose_key(key, self.trips.exchanges[task.exchange].purpose)))

    def unpublished(self) -> list[Task]:
        return list(self.out.values())

    def exclude(self, client: int) -> None:
        first = any(exchange.who is Who.FIRST for exchange in self.trips.exchanges.values())
        if self.algorithm.needs_everyone() or (first and client == 0):
            raise SojournError(
                f"{self.algorithm.title} cannot do without client {client}, which takes part no more; the run ends."
            )
        left = self.num_clients - len(self.excluded | {client})
        self.algorithm.check(World(self.num_clients, min(self.cohort, left)))
        super().exclude(client)

    # --- uploads -------------------------------------------------------------------------------------------------

    def take(self, number: int, client: int, up: Any, size: float = 0.0, worker: str = "") -> str:
        task = self.out.get(number)
        if task is None or task.client != client or self.over:
            return DUPLICATE
        if client in self._reports:
            return AGAIN
        up = jax.tree.map(np.asarray, up)
        if self.trips.exchanges[self.exchange].reduce == "stack":
            self._stack[client] = up
        else:
            if self._total is None:
                self._total = jax.tree.map(np.zeros_like, up)
            jax.tree.map(lambda total, a: add_scaled(total, a, self._weight(client)), self._total, up)
        self._reports[client] = number
        self._sizes[client] = (size, worker)
        return HELD

    def _weight(self, client: int) -> float:
        """By samples where they were told: shares of all would change whenever somebody new tells its own."""
        given = self.clients.counted(self.algorithm.weighting)
        if given is not None and any(number is not None for number in self.samples):
            given = self.clients.sizes
        return 1.0 if given is None else float(given[client])

    def close(self, now: float) -> bool:
        _, _, enough = self._wanted() if not self.over else ([], 0, 0)
        rules, reports = self.rules, len(self._reports)
        late = rules.deadline is not None and now - self.began > rules.deadline
        fewer = min(rules.min_reports or enough, enough)
        if not reports or not (reports >= enough or (late and reports >= fewer)):
            return False
        self._make_model()
        return True

    def _make_model(self) -> None:
        name, exchange = self.exchange, self.trips.exchanges[self.exchange]
        ids = sorted(self._reports)
        weights = shares(self.algorithm, self.clients, jnp.asarray(ids, jnp.int32))
        if exchange.reduce == "stack":
            up = jax.tree.map(lambda *a: np.stack(a), *(self._stack[client] for client in ids))
        else:
            total = sum(self._weight(client) for client in ids)
            up = jax.tree.map(lambda a: np.divide(a, total, out=a, casting="unsafe"), self._total)
        context = context_of(
            self.algorithm, exchange, self.clients, jnp.asarray(ids, jnp.int32), weights, jnp.asarray(self.round),
            self._round_key(), self.position,
        )  # fmt: skip
        server = self._aggregate(self.algorithm, name, self.server, up, context)
        moved, self.server = self._moved(*reach_and_move(self.algorithm, self.server, server)), server
        self._write_down(name, dict(zip(ids, np.asarray(weights).tolist(), strict=True)), moved)
        self._advance(exchange.who, ids)

    def _write_down(self, name: str, weights: dict[int, float], moved: float) -> None:
        for client, number in self._reports.items():
            task, (size, worker) = self.out.pop(number), self._sizes[client]
            self.applied += 1
            self.memories[client] = number
            self._fresh.append({
                "event": APPLIED, "number": number, "client": client, "worker": worker, "round": self.round,
                "exchange": name, "version": task.version, "staleness": 0, "weight": weights[client], "norm": size,
                "applied": self.applied, "seconds": round(self.seconds, 3),
            })  # fmt: skip
        for number in list(self.out):
            self.give_up(number, NOT_NEEDED)
        clients = list(self._reports)
        self._fresh.append({"event": CLOSED, "round": self.round, "exchange": name, "clients": clients, "moved": moved})

    def _advance(self, who: Who, ids: list[int]) -> None:
        if who is Who.COHORT:
            self.earlier = ids
        self.position += 1
        if not self._closing and self.position >= len(self.trips.phase(self.exchange.split(".")[0])):
            self.round, self.position, self.earlier = self.round + 1, 0, []
        self._clear()


def add_scaled(total: np.ndarray, a: np.ndarray, weight: float) -> None:
    """Adds to a sum in place, block by block: no third array of a model's size."""
    into, of = total.reshape(-1), a.reshape(-1)
    for first in range(0, into.size, _BLOCK):
        into[first : first + _BLOCK] += (weight * of[first : first + _BLOCK]).astype(into.dtype)


def attendance(log: Sequence[dict[str, Any]]) -> list[tuple[int, str, list[int]]]:
    """Who took part in what, from the log: (round, exchange, clients)."""
    return [(row["round"], row["exchange"], sorted(row["clients"])) for row in log if row["event"] == CLOSED]
