"""What is reported is what happened: oracle calls as a runtime counter sees them, messages as the arrays sent."""

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import ALGORITHMS, FedProx, LocalSGD
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Known, ModelState, Who
from sojourn.core.federation import Federation, build
from sojourn.core.keys import root_key
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec
from sojourn.engine import Compiled
from sojourn.engine.accounting import one_memory, wire_of
from sojourn.engine.participation import members
from sojourn.problems.quadratic import Quadratic
from test_contract import IN_ROUNDS, make, quick_compilation, variants
from test_parity import play

run = functools.partial(sj.run, progress=False)

ONE_AFTER_ANOTHER = Compiled("scan")  # side by side, a lane that has ended still runs while others go on


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


SEEN: Counter[str] = Counter()


def _see(kind: str, client: Any, number: Any) -> None:
    SEEN[kind] += int(number)


class Watched(Quadratic):
    """Counts on the host, while the program runs, what is asked of it. A sample carries how many batches it pools."""

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> Any:
        return jnp.zeros((num_batches, self.optima.shape[1])), jnp.ones(num_batches, jnp.int32)

    def pool(self, zs: Any) -> Any:
        return jnp.mean(zs[0], axis=0), jnp.sum(zs[1])

    def grad(self, x: Any, view: Any, z: Any) -> Any:
        self._tell("grad", view, z[1])
        return super().full_grad(x, view) + z[0]

    def value(self, x: Any, view: Any, z: Any) -> Any:
        self._tell("value", view, z[1])
        return super().full_value(x, view)

    def full_grad(self, x: Any, view: Any) -> Any:
        self._tell("full_grad", view, 1)
        return super().full_grad(x, view)

    def full_value(self, x: Any, view: Any) -> Any:
        self._tell("full_value", view, 1)
        return super().full_value(x, view)

    def num_samples(self, view: Any) -> jax.Array:
        return view + 1  # a formula, but let clients differ

    @staticmethod
    def _tell(kind: str, view: Any, number: Any) -> None:
        jax.debug.callback(functools.partial(_see, kind), view, number)
        if kind.startswith("full"):
            jax.debug.callback(functools.partial(_see, "exact samples"), view, view + 1)


def watched(batch_size: int | None = 2) -> Federation:
    plain = sj.problems.quadratic(*random_quadratics(3, 2))
    objective = plain.clients.objective
    parts = (objective.hessians, objective.optima, objective.noise_root, objective.x_star, objective.f_star)
    return build(Watched(*parts), plain.x0.tree, 3, batch_size=batch_size)


def assert_reported_is_seen(algorithm: Algorithm, engine: Any, batch_size: int | None = 2, rounds: int = 2) -> None:
    jax.effects_barrier()
    SEEN.clear()
    table = play(watched(batch_size), algorithm, engine, rounds)[1]
    jax.effects_barrier()
    reported = {kind: table[f"calls_{kind}"].sum() for kind in ("grad", "value", "full_grad", "full_value")}
    assert reported == {kind: SEEN[kind] for kind in reported}
    batches = (batch_size or 0) * (SEEN["grad"] + SEEN["value"])
    assert table["samples"].sum() == batches + SEEN["exact samples"]
    assert sum(reported.values()) > 0


@IN_ROUNDS
def test_reported_calls_are_the_calls_that_a_runtime_counter_sees(name: str) -> None:
    assert_reported_is_seen(make(name), ONE_AFTER_ANOTHER)


@IN_ROUNDS
def test_the_reference_engine_reports_what_the_counter_sees_for_every_choice(name: str) -> None:
    for algorithm in variants(name):
        assert_reported_is_seen(algorithm, "reference", rounds=1)


@IN_ROUNDS
def test_without_a_batch_size_every_gradient_is_exact_and_counted_as_such(name: str) -> None:
    assert_reported_is_seen(make(name), "reference", batch_size=None, rounds=1)
    assert SEEN["grad"] == 0 < SEEN["full_grad"]


class Plain(Algorithm):
    """A server that takes the mean of whatever its clients answer."""

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(up)


class LoopsOnItsOwn(Plain):
    """Breaks the rule that local loops go through `oracle.walk`."""

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        z = oracle.draw(key)
        return jax.lax.fori_loop(0, 4, lambda k, y: y - 0.1 * oracle.grad(y, z), down), memory, {}


def test_a_local_loop_outside_the_walk_is_caught_by_the_counter() -> None:
    """Negative control: one call is traced and reported, four are made."""
    with pytest.raises(AssertionError):
        assert_reported_is_seen(LoopsOnItsOwn(), "reference")
    assert SEEN["grad"] == 2 * 3 * 4


class AsksEverything(Plain):
    """Walks within walks, and all four questions."""

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        def inner(y: Vec, z: Any, k: jax.Array) -> Vec:
            return y - 0.01 * oracle.value(y, z) * oracle.grad(y, z)

        def outer(y: Vec, z: Any, k: jax.Array) -> Vec:
            y = oracle.walk(inner, y, 3, jax.random.fold_in(key, k))
            return y - 0.01 * oracle.full_value(y) * oracle.full_grad(y)

        return oracle.walk(outer, down, 2, key), memory, {}


@pytest.mark.parametrize("engine", [ONE_AFTER_ANOTHER, "reference"])
def test_walks_within_walks_are_counted_as_often_as_they_run(engine: Any) -> None:
    assert_reported_is_seen(AsksEverything(), engine)
    per_visit = {"grad": 6, "value": 6, "full_grad": 2, "full_value": 2}
    assert {kind: SEEN[kind] for kind in per_visit} == {kind: 2 * 3 * number for kind, number in per_visit.items()}


def test_uneven_amounts_of_work_are_counted_one_client_at_a_time_and_side_by_side() -> None:
    algorithm = FedProx(step_size=0.05, num_local_steps=5, min_local_steps=1)
    assert_reported_is_seen(algorithm, ONE_AFTER_ANOTHER)
    table = play(watched(), algorithm, ONE_AFTER_ANOTHER, 2)[1]
    beside = play(watched(), algorithm, Compiled("vmap"), 2)[1]
    assert table["local_steps"].tolist() == beside["local_steps"].tolist() == table["calls_grad"].tolist()
    assert table["local_steps"].sum() < 2 * 3 * 5  # somebody was slow


def test_exact_gradients_of_ragged_clients_count_their_own_rows(x64: None) -> None:
    """Three local steps of each member of the cohort, over all of its rows."""
    sizes = [1, 30, 7, 200]
    rows = [np.ones((n, 2)) for n in sizes]
    ragged = sj.federation(lambda x, batch: 0.5 * jnp.mean((x - batch) ** 2), np.zeros(2), rows)
    table = play(ragged, LocalSGD(step_size=0.1, num_local_steps=3), "reference", 3, participation=2)[1]
    for round, seen in enumerate(table["samples"]):
        ids = np.asarray(members(Who.COHORT, jax.random.fold_in(root_key(0), round), 4, 2, "local"))
        assert seen == 3 * sum(sizes[m] for m in ids)


def sent(message: Any) -> list[np.ndarray]:
    """The arrays of a message that really was made, without those that its receiver holds."""
    nodes = jax.tree.leaves(message, is_leaf=lambda node: isinstance(node, Known))
    return [np.asarray(node) for node in nodes if not isinstance(node, Known)]


def assert_sizes_are_those_of_the_messages(algorithm: Algorithm, exchange: Exchange, federation: Federation) -> None:
    server, memory = algorithm.init_server(federation.x0), algorithm.init_client(federation.x0)

    @jax.jit
    def trip(server: Any, memory: Any) -> Any:
        down = exchange.broadcast(server)
        return down, exchange.local(down, memory, federation.clients.oracle(jnp.asarray(1)), root_key(0))[0]

    wire = wire_of(exchange, federation.clients, server, one_memory(algorithm, federation.x0))
    down, up = (sent(message) for message in trip(server, memory))
    floats = lambda arrays: sum(a.size for a in arrays if jnp.issubdtype(a.dtype, jnp.floating))  # noqa: E731
    assert (wire.bytes_down, wire.bytes_up) == (sum(a.nbytes for a in down), sum(a.nbytes for a in up))
    assert (wire.floats_down, wire.floats_up) == (floats(down), floats(up))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_floats_and_bytes_are_those_of_the_arrays_that_are_sent(name: str) -> None:
    """Of a model with one half-precision leaf, so that floats and bytes are not in a fixed ratio."""
    start = {"a": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(5, jnp.bfloat16)}
    loss = lambda x, rows: 0.5 * jnp.sum(x["a"] ** 2) + jnp.sum(x["b"]) * jnp.mean(rows)  # noqa: E731
    federation = sj.federation(loss, start, [np.ones((2, 1), np.float32)] * 2)
    for algorithm in variants(name):
        for exchange in (*algorithm.exchanges(), *algorithm.opening(), *algorithm.closing()):
            assert_sizes_are_those_of_the_messages(algorithm, exchange, federation)


def test_a_round_sends_one_message_each_way_to_everyone_it_asks(quadratics: Federation) -> None:
    table = play(quadratics, LocalSGD(step_size=0.05, num_local_steps=1), "reference", 1, participation=4)[1]
    assert table[["participants", "floats_down", "floats_up", "bytes_down", "bytes_up"]].iloc[0].tolist() == [
        4, 4 * 4, 4 * 4, 4 * 4 * 8, 4 * 4 * 8,
    ]  # fmt: skip


def test_nothing_is_counted_before_the_first_round(quadratics: Federation) -> None:
    first = run(quadratics, LocalSGD(step_size=0.05), 1, engine="reference").frame().iloc[0]
    counts = [name for name in first.index if name.startswith(("calls", "floats", "bytes"))]
    assert (first[[*counts, "participants", "samples", "local_steps"]] == 0).all() and len(counts) == 8
