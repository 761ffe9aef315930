"""Engines whose clients are visited elsewhere: in processes beside this one, or on other machines.

The server's side of an exchange (broadcast, aggregate, evaluation) runs here, round by round; a *shard* of the members
is visited by each of a team's workers. Weights are shares of the whole exchange, so partial sums just add up, and a key
depends on round and client alone, so it does not matter who visits whom: a worker that is lost is replaced, and its
shard done again, with the same result.

What a shard does is traced here and sent as a program (see `worker`); the programs take and give flat lists of arrays.
"""

import abc
import dataclasses
import functools
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Algorithm, Exchange, Info
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.oracle import KINDS
from sojourn.core.vec import norm
from sojourn.diagnostics.round_probes import Seen, Trail, measure_round
from sojourn.engine.compiled import Compiled
from sojourn.engine.participation import members
from sojourn.engine.round_by_round import round_by_round
from sojourn.engine.rounds import (
    Course,
    Plan,
    Row,
    Rows,
    RunState,
    context_of,
    divisor_at_most,
    evaluate,
    shares,
    visit_some,
    visitor,
)
from sojourn.engine.worker import Program, Which

_SETTINGS = ("jax_enable_x64", "jax_disable_most_optimizations", "jax_compilation_cache_dir",
             "jax_persistent_cache_min_compile_time_secs")  # fmt: skip
_ROUNDS_OF_A_CHUNK = 256


class Form:
    """The shape of a tree: how it becomes a list of plain arrays and a tree again. Keys travel as their numbers."""

    def __init__(self, tree: Any) -> None:
        leaves, self.structure = jax.tree.flatten(tree)
        self._keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        self.shapes: list[jax.ShapeDtypeStruct] = jax.eval_shape(self._plain, leaves)

    def pack(self, tree: Any) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in self._plain(jax.tree.leaves(tree))]

    def plain(self, tree: Any) -> list[jax.Array]:
        return self._plain(jax.tree.leaves(tree))

    def unpack(self, leaves: Sequence[Any]) -> Any:
        wrap = functools.partial(jax.random.wrap_key_data, impl="threefry2x32")
        return jax.tree.unflatten(
            self.structure, [wrap(a) if key else a for a, key in zip(leaves, self._keys, strict=True)]
        )

    def _plain(self, leaves: Sequence[Any]) -> list[Any]:
        return [jax.random.key_data(a) if key else a for a, key in zip(leaves, self._keys, strict=True)]


@dataclasses.dataclass(frozen=True)
class Visiting:
    """An exchange as its shards see it."""

    program: Program
    letter: list[jax.ShapeDtypeStruct]  # key, ids, weights, then the Down
    answer: list[jax.ShapeDtypeStruct]  # memories, then the rest
    rest: Form  # (Up, info, calls, trails)
    down: Form


@dataclasses.dataclass(frozen=True)
class Baggage:
    """What a team takes along on a run."""

    visits: dict[Which, Visiting]
    constants: list[list[np.ndarray]]  # of every block: the method's numbers and the block's data
    memory: Form
    settings: dict[str, Any]

    def programs(self) -> dict[Which, Program]:
        return {which: visit.program for which, visit in self.visits.items()}


class Team(Protocol):
    """Workers that visit shards; a shard is a run of an exchange's ids, which are sorted."""

    def prepare(self, which: Which) -> None: ...
    def remember(self, memory: list[np.ndarray]) -> None:
        """What all clients remember at the start of a chunk."""
        ...

    def memory(self) -> list[np.ndarray]: ...
    def play(
        self, which: Which, key: np.ndarray, ids: np.ndarray, weights: np.ndarray, down: list[np.ndarray]
    ) -> list[tuple[int, list[np.ndarray]]]:
        """How many members each shard had and what it found, without their memories, in the order of the ids."""
        ...

    def close(self) -> None: ...


class Blocks(Protocol):
    """How a federation is divided among workers."""

    @property
    def firsts(self) -> Sequence[int]:
        """The first client of every block of data; one block where all workers see all data."""
        ...

    @property
    def size(self) -> int: ...
    def capacity(self, total: int) -> int:
        """The most members of an exchange of `total` that one shard can have."""
        ...

    def typical(self, total: int) -> int:
        """How many it has on average, rounded up."""
        ...


@dataclasses.dataclass
class _Session:
    """A run under way: whose it is, the team, and the memory that the team has."""

    algorithm: Algorithm
    clients: Clients
    plan: Plan
    baggage: Baggage
    team: Team
    memory: Any = None  # as it was handed out last, or taken in

    def fits(self, algorithm: Algorithm, clients: Clients, plan: Plan) -> bool:
        same = self.algorithm is algorithm and self.clients is clients and self.plan == plan
        return same and self.baggage.settings == _settings()


class Sharded(abc.ABC):
    """An engine with a team. Options are the fields of its subclasses."""

    sweeps: ClassVar[bool] = False
    name: ClassVar[str]

    @abc.abstractmethod
    def blocks(self, num_clients: int) -> Blocks: ...
    @abc.abstractmethod
    def team(self, baggage: Baggage, blocks: Blocks, num_clients: int) -> Team: ...

    def width(self, federation: Federation, cohort: int, num_settings: int = 1) -> int:
        shard = self.blocks(federation.num_clients).typical(cohort)
        return divisor_at_most(shard, Compiled().side_by_side(federation, shard))

    def settings_in_turn(self, federation: Federation) -> bool:
        return True

    def capacity(self, plan: Plan) -> int:
        return _ROUNDS_OF_A_CHUNK

    def advance(
        self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        try:
            session = self._session(algorithm, clients, state, plan)
            return self._advance(session, state, course, plan)
        except BaseException:  # workers may be in the middle of anything
            self.close()
            raise

    def warm_up(self, algorithm: Algorithm, clients: Clients, state: RunState, course: Course, plan: Plan) -> RunState:
        try:
            session = self._session(algorithm, clients, state, plan)
            for number, _ in enumerate(plan.exchanges(algorithm)):
                session.team.prepare((plan.opening, number))
        except BaseException:
            self.close()
            raise
        return state

    def measure(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> dict[str, jax.Array]:
        return _evaluate(algorithm, clients, state, plan=dataclasses.replace(plan, opening=False))

    def close(self) -> None:
        """Ends the run's team; the next chunk would start another."""
        session: _Session | None = self._kept.pop("session", None)
        if session is not None:
            session.team.close()

    @functools.cached_property
    def _kept(self) -> dict[str, _Session]:
        return {}

    def _session(self, algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan) -> _Session:
        if plan.grid is not None:
            raise SojournError(f'engine "{self.name}" runs one setting at a time; use engine "compiled" for a sweep.')
        plan = dataclasses.replace(plan, opening=False)
        session = self._kept.get("session")
        if session is None or not session.fits(algorithm, clients, plan):
            self.close()
            blocks = self.blocks(clients.num_clients)
            baggage = pack(algorithm, clients, state, plan, blocks)
            session = _Session(algorithm, clients, plan, baggage, self.team(baggage, blocks, clients.num_clients))
            self._kept["session"] = session
        if session.memory is not state.memory:
            session.team.remember(session.baggage.memory.pack(state.memory))
            session.memory = state.memory
        return session

    def _advance(
        self, session: _Session, state: RunState, course: Course, plan: Plan
    ) -> tuple[RunState, Rows, jax.Array]:
        algorithm, clients, steady = session.algorithm, session.clients, session.plan
        no_data: Any = None
        server_side = dataclasses.replace(clients, objective=no_data, x_star=None, probes={})

        def complete(state: RunState) -> RunState:
            if not jax.tree.leaves(state.memory):
                return state
            memory = session.baggage.memory.unpack([jnp.array(a) for a in session.team.memory()])
            return dataclasses.replace(state, memory=memory)

        def measure(state: RunState) -> dict[str, jax.Array]:
            return _evaluate(algorithm, clients, complete(state) if algorithm.closing() else state, plan=steady)

        shapes = _evaluate.eval_shape(algorithm, clients, state, plan=steady)
        play = functools.partial(_play, session, server_side, plan, course.limit)
        state, rows, done = round_by_round(state, course, play, measure, shapes)
        state = complete(state)
        session.memory = state.memory
        return state, rows, done


def _play(session: _Session, clients: Clients, plan: Plan, limit: Any, state: RunState) -> tuple[RunState, Row]:
    """One round; what clients remember stays with the team."""
    algorithm, server = session.algorithm, state.server
    answers: list[int] = []
    info: dict[str, Any] = {}
    calls = np.zeros(len(KINDS), np.int32)
    seen: list[Seen] = []
    diverged = np.zeros((), bool)
    for number, exchange in enumerate(plan.exchanges(algorithm)):
        visiting = session.baggage.visits[plan.opening, number]
        key, ids, weights, down = _call(algorithm, clients, server, state.round, state.root, plan=plan, number=number)
        found = session.team.play(
            (plan.opening, number), np.asarray(key), np.asarray(ids), np.asarray(weights), visiting.down.pack(down)
        )
        up, news, used, trail = _joined(exchange, [(count, visiting.rest.unpack(rest)) for count, rest in found])
        server, diverged = _take(algorithm, clients, server, up, ids, weights, state.round, state.root, limit,
                                 plan=plan, number=number)  # fmt: skip
        calls, info = calls + used, {**info, **news}
        answers.append(len(ids))
        seen += [] if trail is None else [Seen(trail, ids, clients.num_clients)]
    info |= jax.tree.map(np.asarray, measure_round(plan.record, seen))
    row = Row(np.asarray(answers, np.int32), calls, info, diverged)  # type: ignore[arg-type]
    return dataclasses.replace(state, server=server, round=state.round + 1), row


def _joined(exchange: Exchange, parts: Sequence[tuple[int, Any]]) -> tuple[Any, Info, np.ndarray, Trail | None]:
    """The shards' partial sums added, their stacks laid end to end; always in the order of the shards."""
    ups, infos, calls, trails = zip(*(rest for _, rest in parts), strict=True)
    counts = [count for count, _ in parts]
    add = lambda *a: functools.reduce(np.add, a[1:], np.array(a[0]))  # noqa: E731
    lay = lambda *a: np.concatenate([one[:count] for one, count in zip(a, counts, strict=True)])  # noqa: E731
    up = jax.tree.map(lay if exchange.reduce == "stack" else add, *ups)
    return up, jax.tree.map(add, *infos), add(*calls), jax.tree.map(lay, *trails)


@functools.partial(jax.jit, static_argnames=("plan", "number"))
def _call(
    algorithm: Algorithm, clients: Clients, server: Any, round: jax.Array, root: jax.Array, *, plan: Plan, number: int
) -> Any:
    """Whom an exchange asks, with which weights, and what it sends."""
    exchange = plan.exchanges(algorithm)[number]
    key = jax.random.fold_in(root, round)
    ids = members(exchange.who, key, clients.num_clients, plan.cohort, exchange.purpose)
    return jax.random.key_data(key), ids, shares(algorithm, clients, ids), exchange.broadcast(server)


@functools.partial(jax.jit, static_argnames=("plan", "number"))
def _take(
    algorithm: Algorithm, clients: Clients, server: Any, up: Any, ids: jax.Array, weights: jax.Array, round: jax.Array,
    root: jax.Array, limit: Any, *, plan: Plan, number: int,
) -> tuple[Any, jax.Array]:  # fmt: skip
    """The server with the answers, and whether it has diverged."""
    exchange = plan.exchanges(algorithm)[number]
    round_key = jax.random.fold_in(root, round)
    context = context_of(algorithm, exchange, clients, ids, weights, round, round_key, number)
    server = exchange.aggregate(server, up, context)
    return server, ~(norm(algorithm.model(server)) <= limit)


@functools.partial(jax.jit, static_argnames="plan")
def _evaluate(algorithm: Algorithm, clients: Clients, state: RunState, *, plan: Plan) -> dict[str, jax.Array]:
    return evaluate(algorithm, clients, plan, state)


def pack(algorithm: Algorithm, clients: Clients, state: RunState, plan: Plan, blocks: Blocks) -> Baggage:
    """What a team needs for a run: a program for every exchange, and every block's data."""
    parts = [
        dataclasses.replace(clients, objective=objective, weights=None, sizes=None, x_star=None, probes={})
        for objective in clients.objective.cut(blocks.firsts, blocks.size)
    ]
    constants = Form((algorithm, parts[0]))
    memory = Form(jax.eval_shape(lambda m: m, state.memory))
    visits = {}
    for opening in [True, False] if algorithm.opening() else [False]:
        phase = dataclasses.replace(plan, opening=opening)
        for number, exchange in enumerate(phase.exchanges(algorithm)):
            total = exchange.who.number(clients.num_clients, plan.cohort)
            width = min(plan.width, blocks.typical(total))
            capacity = -(-blocks.capacity(total) // width) * width  # whole groups
            own = dataclasses.replace(phase, width=width)
            visits[opening, number] = _traced(constants, memory, state.server, own, number, exchange, total, capacity)
    return Baggage(visits, [constants.pack((algorithm, part)) for part in parts], memory, _settings())


def _traced(
    constants: Form, memory: Form, server: Any, plan: Plan, number: int, exchange: Exchange, total: int, capacity: int
) -> Visiting:
    """The program of a shard's visits in one exchange."""
    down = Form(jax.eval_shape(exchange.broadcast, server))
    outputs: list[Any] = []

    def program(*leaves: jax.Array) -> list[jax.Array]:
        ends = np.cumsum([len(constants.shapes), len(down.shapes), len(memory.shapes)])
        fixed, sent, mine, (ids, weights, count, key) = (list(leaves[a:b]) for a, b in zip([0, *ends], [*ends, None],
                                                                                          strict=True))  # fmt: skip
        method, clients = constants.unpack(fixed)
        round_key = jax.random.wrap_key_data(key, impl="threefry2x32")
        own = plan.exchanges(method)[number]
        visit = visitor(own, clients.in_round(round_key), down.unpack(sent), round_key, plan.record)
        up, after, info, calls, trails = visit_some(
            visit, own, memory.unpack(mine), ids, weights, plan.width, count, total
        )
        rest = Form((up, info, calls, trails))
        stacked = len(jax.tree.leaves(up)) * [own.reduce == "stack"]
        sums, kept = len(jax.tree.leaves((info, calls))) * [False], len(jax.tree.leaves(trails)) * [True]
        outputs[:] = [rest, [*(True for _ in memory.shapes), *stacked, *sums, *kept]]
        return [*memory.plain(after), *rest.plain((up, info, calls, trails))]

    shape = lambda dims, dtype: jax.ShapeDtypeStruct(dims, dtype)  # noqa: E731
    real = jnp.result_type(float)
    ids, key, count = shape((capacity,), jnp.int32), shape((2,), jnp.uint32), shape((), jnp.int32)
    mine = [shape((capacity, *a.shape[1:]), a.dtype) for a in memory.shapes]
    inputs = [*constants.shapes, *down.shapes, *mine, ids, shape((capacity,), real), count, key]
    try:
        exported = jax.export.export(jax.jit(program, keep_unused=True), platforms=["cpu"])(*inputs)
    except (ValueError, NotImplementedError, TypeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SojournError(
            f'what a client does here cannot be sent to another process ({why}); use engine "compiled".'
        ) from error
    # As Python's own bytes: JAX's would need one more package, and only serve other versions of JAX.
    code = pickle.dumps(dataclasses.replace(exported, _get_vjp=None))
    letter = [key, shape((total,), jnp.int32), shape((total,), real), *down.shapes]
    answer = [shape(a.shape, a.dtype) for a in exported.out_avals]
    rest, by_member = outputs
    return Visiting((code, capacity, by_member), letter, answer, rest, down)


def _settings() -> dict[str, Any]:
    """The settings of JAX that a program's arithmetic and compilation depend on."""
    return {name: jax.config.values[name] for name in _SETTINGS}
