"""A population too large to hold: a million generated clients cost what a thousand cost."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.algorithms.base import Algorithm, Who
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import size
from sojourn.driver import make_job
from sojourn.engine import compiled
from sojourn.engine.participation import members
from sojourn.engine.rounds import RunState, start
from test_contract import quick_compilation

COHORT = 100


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def half_squared_error(x: jax.Array, batch: Any) -> jax.Array:
    inputs, targets = batch
    return 0.5 * jnp.mean((inputs @ x - targets) ** 2)


def make_client(key: jax.Array) -> Any:
    inputs = jax.random.normal(key, (6, 3))
    return inputs, inputs @ jnp.ones(3)


def people(num_clients: int) -> Federation:
    return sj.population(half_squared_error, jnp.zeros(3), make_client, num_clients, batch_size=2, panel=10)


def program(num_clients: int) -> tuple[Any, Any]:
    """The engine's program for so many clients, and what it is called with."""
    federation, algorithm = people(num_clients), LocalSGD(step_size=0.1, num_local_steps=2)
    job = make_job(federation, algorithm, 5, engine="compiled", participation=COHORT, eval_every=5, record=())
    state = start(algorithm, federation, root_key(0))
    arguments = (algorithm, federation.clients, state, job.course(5))
    return compiled._advance.lower(*arguments, plan=job.plan, capacity=8).compile(), arguments


def state_size(num_clients: int, algorithm: Algorithm) -> int:
    federation = people(num_clients)
    return size(jax.eval_shape(lambda: start(algorithm, federation, root_key(0))).memory)


def test_a_million_clients_run_in_the_memory_of_a_thousand() -> None:
    small, large = program(1_000)[0], program(1_000_000)
    before, after = small.memory_analysis(), large[0].memory_analysis()
    held = [m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes for m in (before, after)]
    # Both hold some hundred kilobytes for the cohort; one byte per client would already be a million. The slack is for
    # the wider random numbers of a large population: some words per member of the cohort.
    assert held[1] < held[0] + 64 * COHORT
    state, rows, done = large[0](*large[1])
    assert int(done) == 5 and np.isfinite(np.asarray(state.server.x.tree)).all()
    assert float(rows.metrics["loss"][4]) < 0.5 * 3 / 2  # from about 3/2, as the optimum is (1, 1, 1)


def test_a_method_with_client_memory_does_grow_with_the_population() -> None:
    """Negative control: what the test above would see if anything were kept for each client."""
    stateful, stateless = Scaffold(step_size=0.1), LocalSGD(step_size=0.1)
    assert state_size(1_000_000, stateful) == 3 * 1_000_000
    assert state_size(1_000_000, stateless) == 0


def test_a_clients_data_are_the_same_on_each_visit_and_others_differ() -> None:
    objective = people(1_000_000).clients.objective
    again = people(1_000_000).clients.objective
    visit = jax.jit(lambda m: objective.open(m)[0])
    first = np.asarray(visit(jnp.asarray(777_777)))
    assert np.array_equal(first, np.asarray(visit(jnp.asarray(777_777))))
    assert np.array_equal(first, np.asarray(again.open(jnp.asarray(777_777))[0]))
    assert not np.array_equal(first, np.asarray(visit(jnp.asarray(777_778))))
    # Side by side with others too: the cohort's order and width do not matter.
    together = jax.vmap(visit)(jnp.asarray([5, 777_777, 999_999]))
    assert np.array_equal(first, np.asarray(together[1]))


def test_another_seed_is_another_population() -> None:
    def rows(seed: int) -> np.ndarray:
        federation = sj.population(half_squared_error, jnp.zeros(3), make_client, 200, seed=seed)
        return np.asarray(federation.clients.objective.open(jnp.asarray(3))[0])

    assert np.array_equal(rows(1), rows(1)) and not np.array_equal(rows(1), rows(2))


def test_a_round_of_a_population_is_the_round_of_its_members_held_in_memory(x64: None) -> None:
    """Twenty generated clients, and the same twenty as a list of arrays."""
    generated = sj.population(half_squared_error, jnp.zeros(3), make_client, 20, panel=20)
    held = [jax.tree.map(np.asarray, generated.clients.objective.open(jnp.asarray(m))) for m in range(20)]
    listed = sj.federation(half_squared_error, jnp.zeros(3), held)
    algorithm = LocalSGD(step_size=0.1, num_local_steps=2)
    histories = [
        sj.run(federation, algorithm, 2, participation=4, engine="reference", progress=False)
        for federation in (generated, listed)
    ]
    np.testing.assert_allclose(histories[0].params, histories[1].params, rtol=0, atol=1e-12)
    np.testing.assert_allclose(histories[0].frame()["loss"], histories[1].frame()["loss"], rtol=0, atol=1e-12)
    asked = np.asarray(members(Who.COHORT, jax.random.fold_in(root_key(0), 0), 20, 4, "local"))
    assert asked.max() > 3  # not simply the first four


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"panel": 0}, "panel = 0 is out of range; give from 1 to the 50 clients"),
        ({"panel": 51}, "panel = 51 is out of range"),
        ({"make_client": lambda key: jnp.zeros((0, 2))}, "hold at least one row"),
        ({"make_client": lambda key: (jnp.zeros((3, 2)), jnp.zeros(4))}, "share their leading axis"),
        ({"num_clients": 0}, "from 1 to the 0 clients"),
    ],
)
def test_impossible_populations_are_refused_with_their_reason(change: dict[str, Any], message: str) -> None:
    given = {"make_client": make_client, "num_clients": 50, "panel": 10} | change
    with pytest.raises(SojournError, match=message):
        sj.population(half_squared_error, jnp.zeros(3), **given)


def test_a_state_of_a_population_holds_only_its_server(x64: None) -> None:
    state: RunState = start(LocalSGD(step_size=0.1), people(1_000_000), root_key(0))
    assert size((state.server, state.memory)) == 3
