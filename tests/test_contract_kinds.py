"""The contract carries methods of every kind: small ones, written here and checked against NumPy or a plainer one."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import CELSGD, MBSTORM, FedAsync, LocalSGD, Scaffold
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, Known, ModelState, Who
from sojourn.algorithms.descent import descend
from sojourn.algorithms.recursive_estimate import Two
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.options import positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm
from sojourn.driver import make_job
from sojourn.engine import Compiled
from sojourn.engine.participation import members
from sojourn.engine.rounds import RunState, start
from sojourn.history import History
from test_contract import quick_compilation

# Both sides do the same float64 arithmetic on numbers of order one, in another order, for a few rounds.
ROUNDING = 1e-12

run = functools.partial(sj.run, progress=False)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=ROUNDING)


def far(found: Any, other: Any) -> None:
    assert np.abs(np.asarray(found) - np.asarray(other)).max() > 1e-3


def final_state(federation: Federation, algorithm: Algorithm, rounds: int, participation: int) -> RunState:
    job = make_job(
        federation, algorithm, rounds, engine="compiled", participation=participation, eval_every=rounds, record=()
    )
    state = start(algorithm, federation, root_key(0))
    return job.engine.advance(algorithm, federation.clients, state, job.course(rounds), job.plan)[0]


def asked(who: Who, round: int, federation: Federation, cohort: int, purpose: str = "local") -> list[int]:
    """The clients that an exchange of a round asks, in a run with seed 0."""
    round_key = jax.random.fold_in(root_key(0), round)
    return np.asarray(members(who, round_key, federation.num_clients, cohort, purpose)).tolist()


def gradient_of(federation: Federation) -> Callable[[int, np.ndarray], np.ndarray]:
    hessians, optima = np.asarray(federation.facts.hessians), np.asarray(federation.facts.optima)
    return lambda m, x: hessians[m] @ (x - optima[m])


class TwoPoints(eqx.Module):
    x: Vec
    x_prev: Vec


class FreshSecondSample(CELSGD):
    """Negative control: another sample at the second point."""

    def gradients(self, x: Vec, before: Vec, oracle: Oracle, key: jax.Array) -> Two:
        z, other = (oracle.draw(k, self.num_local_steps) for k in jax.random.split(key))
        return Two(oracle.grad(x, z), oracle.grad(before, other))


def test_the_opening_round_takes_its_own_shape_and_is_counted_as_such(noisy_quadratics: Federation) -> None:
    algorithm = CELSGD(step_size=0.1, num_local_steps=3, first_batches=5, messages="printed")
    table = run(noisy_quadratics, algorithm, 3, engine="reference").frame()
    opening, steady = table.iloc[1], table.iloc[2:]
    assert opening["calls_grad"] == 6 * 5 and opening["local_steps"] == 1
    assert (steady["calls_grad"] == 6 * 2 * 3 + 2 * 2).all()  # three batches at two points; two steps of two points
    assert (steady["local_steps"] == 3).all()
    assert (table["participants"].iloc[1:] == 6 + 1).all()
    assert opening["floats_down"] == 6 * 4 + 8 and opening["floats_up"] == 6 * 4 + 4  # there is no model before
    assert (steady["floats_down"] == 6 * 8 + 8).all() and (steady["floats_up"] == 6 * 8 + 4).all()
    assert {asked(Who.ONE, r, noisy_quadratics, 1, "walk")[0] for r in range(5)} > {0}  # not always the same client


def test_ce_lsgd_with_one_local_step_is_mb_storm(noisy_quadratics: Federation) -> None:
    """Purposes name the randomness: two methods that call their exchange "estimate" draw the same samples in it."""
    last = lambda algorithm: run(noisy_quadratics, algorithm, 4, engine="reference").params  # noqa: E731
    storm = last(MBSTORM(step_size=0.1, num_local_steps=1, first_batches=5))
    close(last(CELSGD(step_size=0.1, num_local_steps=1, first_batches=5)), storm)
    far(last(FreshSecondSample(step_size=0.1, num_local_steps=1, first_batches=5)), storm)


def test_memory_of_a_large_population_changes_only_where_it_was_visited() -> None:
    population = sj.population(_half_distance, jnp.zeros(2), _one_row, 20_000, panel=5)
    state = final_state(population, Scaffold(step_size=0.1, num_local_steps=2), 4, participation=5)
    visited = sorted({m for r in range(4) for m in asked(Who.COHORT, r, population, 5)})
    changed = np.flatnonzero(np.any(np.asarray(state.memory.tree) != 0, axis=1))
    assert state.memory.tree.shape == (20_000, 2)
    assert changed.tolist() == visited and len(visited) > 5


def _one_row(key: jax.Array) -> jax.Array:
    return 1 + jax.random.key_data(key)[None].astype(jnp.float32) / 2.0**32


def _half_distance(x: jax.Array, rows: jax.Array) -> jax.Array:
    return 0.5 * jnp.mean(jnp.sum((x - rows) ** 2, axis=1))


# (client, the server's version when its model was sent), in the order of arrival; the server is at version 0, 1, 2, …
ARRIVALS = [(0, 0), (3, 0), (2, 0), (0, 1), (5, 2), (3, 2), (1, 6), (2, 3)]


def live(federation: Federation, algorithm: FedAsync, arrivals: list[tuple[int, int]]) -> np.ndarray:
    """A plain event loop: tasks start from the version they were sent, and answers are taken one at a time."""
    (exchange,) = algorithm.exchanges()

    @jax.jit
    def work(down: Vec, client: jax.Array, task: jax.Array) -> Vec:
        return exchange.local(down, (), federation.clients.oracle(client), task_key(task, client))[0]

    server = algorithm.init_server(federation.x0)
    sent = [exchange.broadcast(server)]
    for task, (client, version) in enumerate(arrivals):
        up = work(sent[version], jnp.asarray(client), jnp.asarray(task))
        context = Context(jnp.asarray(task), federation.num_clients, staleness=jnp.asarray(task - version))
        server = exchange.aggregate(server, up, context)
        sent.append(exchange.broadcast(server))
    return np.asarray(server.x.tree)


def task_key(task: Any, client: Any) -> jax.Array:
    return purpose_key(jax.random.fold_in(jax.random.fold_in(root_key(0), task), client), "local")


def test_answers_taken_one_at_a_time_with_their_staleness_are_fedasync(quadratics: Federation) -> None:
    def in_numpy(power: float) -> np.ndarray:
        gradient, models = gradient_of(quadratics), [np.zeros(4)]
        for t, (m, version) in enumerate(ARRIVALS):
            y = models[version]
            for _ in range(3):
                y = y - 0.1 * gradient(m, y)
            alpha = 0.6 * (t - version + 1) ** -power
            models.append((1 - alpha) * models[-1] + alpha * y)
        return models[-1]

    found = live(quadratics, FedAsync(0.1, 3, proximal_weight=0.0, staleness_weight="polynomial"), ARRIVALS)
    close(found, in_numpy(0.5))
    far(found, in_numpy(0.0))  # staleness left out


def test_fresh_answers_of_weight_one_from_one_client_are_sgd(x64: None) -> None:
    hessians, optima = random_quadratics(1)
    federation = sj.problems.quadratic(hessians, optima, noise=0.5)
    algorithm = FedAsync(step_size=0.1, num_local_steps=1, mixing=1.0, proximal_weight=0.0)
    x = np.zeros(4)
    for t in range(6):
        step_key = jax.random.fold_in(task_key(t, 0), jnp.uint32(0))
        z = np.asarray(federation.clients.objective.draw(0, step_key, 1, 1))[0]
        x = x - 0.1 * (hessians[0] @ (x - optima[0]) + z)
    close(live(federation, algorithm, [(0, t) for t in range(6)]), x)
    far(live(federation, algorithm, [(0, max(0, t - 1)) for t in range(6)]), x)  # one step stale


class Median(Algorithm):
    """Needs every answer by itself: the coordinate-wise median of the displacements."""

    step_size: Any = positive()

    reduce: ClassVar[str] = "stack"

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return descend(oracle, down, self.step_size, 2, key) - down, memory, {"moved": norm(down)}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        assert context.weights is not None and context.weights.shape == (context.num_answers,)
        return ModelState(server.x + Vec(jax.tree.map(lambda a: jnp.median(a, axis=0), up.tree)))


class SmallGroups(Compiled):
    """Two clients side by side, groups of them one after another."""

    def width(self, *about: Any) -> int:
        return 2


@pytest.fixture
def one_corrupted(x64: None) -> Federation:
    hessians, optima = random_quadratics()
    optima[2] = 1e4
    return sj.problems.quadratic(hessians, optima)


@pytest.mark.parametrize("engine", [Compiled("vmap"), SmallGroups(), Compiled("scan"), "reference"])
def test_the_median_of_all_answers_is_numpys_however_clients_are_placed(one_corrupted: Federation, engine: Any) -> None:
    gradient, x = gradient_of(one_corrupted), np.zeros(4)
    for _ in range(3):
        ends = []
        for m in range(6):
            y = x
            for _ in range(2):
                y = y - 0.1 * gradient(m, y)
            ends.append(y - x)
        x = x + np.median(ends, axis=0)
    history = run(one_corrupted, Median(step_size=0.1), 3, engine=engine)
    # The corrupted client's numbers are of order 1e4 and drop out; what remains is of order one.
    close(history.params, x)
    np.testing.assert_allclose(history.frame()["moved"].iloc[1], 0.0)


def test_one_corrupted_client_spoils_the_mean_but_not_the_median(one_corrupted: Federation) -> None:
    def error(algorithm: Algorithm) -> float:
        honest = np.delete(np.asarray(one_corrupted.facts.optima), 2, axis=0)
        found = run(one_corrupted, algorithm, 10, engine="reference").params
        return float(np.abs(np.asarray(found) - honest.mean(axis=0)).max())

    assert error(Median(step_size=0.1)) < 3  # the honest optima are standard normal
    assert error(LocalSGD(step_size=0.1, num_local_steps=2)) > 100


def test_a_closing_exchange_is_counted_once_and_in_the_last_round(quadratics: Federation) -> None:
    """Clients send the sum of their iterates and its weight, all of them, though three of six take part in a round."""
    algorithm = LocalSGD(step_size=0.1, num_local_steps=2, output="uniform")
    table = run(quadratics, algorithm, 4, participation=3, eval_every=1, engine="reference").frame().iloc[1:]
    assert table["floats_up"].tolist() == [12, 12, 12, 12 + 6 * (4 + 1)]
    assert table["floats_down"].tolist() == [12, 12, 12, 12]
    assert table["bytes_up"].tolist() == [96, 96, 96, 96 + 6 * 8 * 5]


def test_resuming_a_finished_run_does_not_count_its_closing_again(quadratics: Federation, tmp_path: Path) -> None:
    def kept(resume: bool) -> History:
        algorithm = LocalSGD(step_size=0.1, num_local_steps=2, output="uniform")
        return run(quadratics, algorithm, 3, out=tmp_path / "run", resume=resume, engine="reference")

    first = kept(False).frame()
    assert kept(True).frame()["floats_up"].tolist() == first["floats_up"].tolist()


class AskAtTheEnd(Algorithm):
    """Sends nothing in its rounds; in the end asks whom it was told to ask for their gradient."""

    closing_who: Who = eqx.field(static=True)

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def broadcast(self, server: ModelState) -> tuple[()]:
        return ()

    def local(self, down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        return (), memory, {}

    def aggregate(self, server: ModelState, up: Any, context: Context) -> ModelState:
        return server

    def closing(self) -> tuple[Exchange, ...]:
        step = lambda server, up, context: ModelState(server.x - up)  # noqa: E731
        return (Exchange(lambda server: server.x, self._gradient, step, self.closing_who, purpose="closing"),)

    def _gradient(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return oracle.full_grad(down), memory, {}


@pytest.mark.parametrize(("who", "number"), [(Who.ALL, 6), (Who.COHORT, 3), (Who.ONE, 1), (Who.FIRST, 1)])
def test_a_closing_exchange_counts_those_it_asks(quadratics: Federation, who: Who, number: int) -> None:
    table = run(quadratics, AskAtTheEnd(who), 2, participation=3, eval_every=2, engine="reference").frame()
    assert table["floats_up"].tolist() == table["floats_down"].tolist() == [0, 0, 4 * number]


class Reminded(Algorithm):
    """Sends a model and says that clients hold the start already."""

    who: ClassVar[Who] = Who.COHORT

    def init_server(self, x0: Vec) -> TwoPoints:
        return TwoPoints(x0, x0)

    def broadcast(self, server: TwoPoints) -> Any:
        return server.x, Known(server.x_prev)

    def local(self, down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        x, start = down
        return (x - 0.1 * oracle.full_grad(start.content), Known(x)), memory, {}

    def aggregate(self, server: TwoPoints, up: Any, context: Context) -> TwoPoints:
        return TwoPoints(up[0], server.x_prev)


def test_what_a_client_is_known_to_hold_is_not_counted(quadratics: Federation) -> None:
    history = run(quadratics, Reminded(), 3, engine="reference")
    assert (history.frame().iloc[1:][["floats_down", "floats_up"]] == 6 * 4).all(axis=None)
    mean_gradient = np.mean([gradient_of(quadratics)(m, np.zeros(4)) for m in range(6)], axis=0)
    close(history.params, -0.3 * mean_gradient)  # yet it arrives


def test_what_a_client_is_known_to_hold_is_refused_in_a_sampled_cohort(quadratics: Federation) -> None:
    with pytest.raises(SojournError, match="everyone must take part"):
        run(quadratics, Reminded(), 3, participation=5)


class Restless(Algorithm):
    """Walks the longer, the steeper its client is at the server's model."""

    step_size: Any = positive()

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        steepness = norm(oracle.full_grad(down))
        num_steps = jnp.minimum(jnp.ceil(steepness), 7).astype(jnp.int32)
        return descend(oracle, down, self.step_size, num_steps, key) - down, memory, {"planned": num_steps}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(server.x + up)


@pytest.mark.parametrize("engine", [Compiled("vmap"), "reference"])
def test_work_that_depends_on_data_is_counted_as_it_was_done(quadratics: Federation, engine: Any) -> None:
    gradient, x, work = gradient_of(quadratics), np.zeros(4), []
    for _ in range(3):
        ends, steps = [], [min(7, int(np.ceil(np.linalg.norm(gradient(m, x))))) for m in range(6)]
        for m, number in enumerate(steps):
            y = x
            for _ in range(number):
                y = y - 0.05 * gradient(m, y)
            ends.append(y)
        x = np.mean(ends, axis=0)
        work.append(steps)
    history = run(quadratics, Restless(step_size=0.05), 3, engine=engine)
    table = history.frame().iloc[1:]
    close(history.params, x)
    assert len({number for steps in work for number in steps}) > 2  # clients do differ
    assert table["local_steps"].tolist() == [sum(steps) for steps in work]
    assert table["calls_full_grad"].tolist() == [sum(steps) + 6 for steps in work]
    close(table["planned"], [np.mean(steps) for steps in work])


def test_context_tells_the_round_and_who_answered(quadratics: Federation) -> None:
    class Telling(Median):
        def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
            told = jnp.stack([context.round + 1, context.num_clients, context.num_answers, jnp.sum(context.weights)])
            return ModelState(Vec(told.astype(float)))

    history = run(quadratics, Telling(step_size=0.1), 2, participation=3, engine="reference")
    close(history.params, [2, 6, 3, 1])
