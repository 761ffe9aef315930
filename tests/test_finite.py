"""Clients with finite data against NumPy: samples, gradients, losses, metrics, and what is refused."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key, uniform_index
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec
from sojourn.problems import finite
from test_contract import quick_compilation

EQUAL, RAGGED = [6, 6, 6], [3, 300, 40]  # sizes that differ a hundredfold; 300 rows are more than two blocks of 128

# Sums of some hundred float64 numbers of order one, in another order.
ROUNDING = 1e-12


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def squared_error(x: Any, batch: Any) -> jax.Array:
    inputs, targets = batch
    return 0.5 * jnp.mean((inputs @ x["weight"] + x["bias"] - targets) ** 2)


def measure(x: Any, batch: Any) -> dict[str, jax.Array]:
    inputs, targets = batch
    error = inputs @ x["weight"] + x["bias"] - targets
    return {"absolute": jnp.mean(jnp.abs(error)), "above": jnp.mean(error > 0, dtype=error.dtype)}


START = {"weight": np.array([0.5, -1.0]), "bias": np.array(0.25)}


def data(sizes: list[int], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 2)) + m, rng.normal(size=n) - m) for m, n in enumerate(sizes)]


def make(sizes: list[int], **rest: Any) -> Federation:
    return sj.federation(squared_error, START, data(sizes), **rest)


def errors(rows: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return rows[0] @ START["weight"] + START["bias"] - rows[1]


def gradient(rows: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return {"weight": errors(rows) @ rows[0] / len(rows[1]), "bias": errors(rows).mean()}


def loss(rows: tuple[np.ndarray, np.ndarray]) -> float:
    return float(0.5 * np.mean(errors(rows) ** 2))


def ask(federation: Federation, client: int, question: Any) -> Any:
    """What `question(oracle, start)` answers for a client whose number the program does not know beforehand."""
    visit = jax.jit(lambda m: question(federation.clients.oracle(m), federation.x0))
    return jax.tree.map(np.asarray, visit(jnp.asarray(client)))


def close(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED])
@pytest.mark.parametrize("client", [0, 1, 2])
def test_exact_gradients_and_values_are_means_over_the_clients_own_rows(
    sizes: list[int], client: int, x64: None
) -> None:
    rows = data(sizes)[client]
    found = ask(make(sizes), client, lambda oracle, x: (oracle.full_grad(x), oracle.full_value(x)))
    close(found, (gradient(rows), loss(rows)))
    other = gradient(data(sizes)[(client + 1) % 3])
    assert abs(found[0].tree["bias"] - other["bias"]) > 0.1  # clients do differ


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED])
def test_a_batch_holds_rows_of_the_client_and_its_gradient_is_theirs(sizes: list[int], x64: None) -> None:
    def question(oracle: Oracle, x: Vec) -> Any:
        z = oracle.draw(root_key(0), 4)
        return z.content, oracle.grad(x, z), oracle.value(x, z)

    (inputs, targets), found, value = ask(make(sizes, batch_size=5), 2, question)
    assert inputs.shape == (4 * 5, 2) and targets.shape == (4 * 5,)
    mine = {tuple(row) for row in np.column_stack(data(sizes)[2]).tolist()}
    assert {tuple(row) for row in np.column_stack((inputs, targets)).tolist()} <= mine
    close(found, gradient((inputs, targets)))
    close(value, loss((inputs, targets)))


def test_batches_are_uniform_over_a_ragged_clients_rows(x64: None) -> None:
    """And so their gradients are unbiased. Pearson's test; a right law fails it with probability 1e-3."""
    federation = make(RAGGED, batch_size=4000)
    drawn = ask(federation, 2, lambda oracle, x: oracle.draw(root_key(1)).content[1])
    counts = np.array([(drawn == target).sum() for target in data(RAGGED)[2][1]])
    assert counts.sum() == 4000 and stats.chisquare(counts).pvalue > 1e-3


def test_the_first_samples_do_not_depend_on_how_many_are_drawn(x64: None) -> None:
    few, many = (
        ask(make(RAGGED, batch_size=3), 1, lambda oracle, x, n=n: oracle.draw(root_key(0), n).content) for n in (2, 5)
    )
    close(jax.tree.map(lambda a: a[: 2 * 3], many), few)


def test_a_walk_takes_the_samples_that_a_draw_pools(x64: None) -> None:
    def walked(oracle: Oracle, x: Vec) -> Any:
        return oracle.walk(lambda seen, z, k: seen.at[k].set(z.content[1]), jnp.zeros((4, 3)), 4, root_key(0))

    federation = make(RAGGED, batch_size=3)
    pooled = ask(federation, 1, lambda oracle, x: oracle.draw(root_key(0), 4).content[1])
    close(ask(federation, 1, walked).reshape(-1), pooled)


def test_a_walk_of_unknown_length_takes_the_same_samples(x64: None) -> None:
    """And so does one that draws its samples in several blocks: then every block has a key of its own."""

    def walked(num_steps: Any, oracle: Oracle, x: Vec) -> Any:
        start = jnp.zeros((8, 3))
        return oracle.walk(lambda seen, z, k: seen.at[k].set(z.content[1]), start, num_steps, root_key(0), 6)

    federation = make(RAGGED, batch_size=3)
    known = ask(federation, 1, functools.partial(walked, 4))
    close(ask(federation, 1, functools.partial(walked, jnp.asarray(4, jnp.int32))), known)
    assert (known[:4] != 0).all() and (known[4:] == 0).all()


def test_a_walk_in_blocks_counts_and_numbers_its_steps_and_never_repeats_a_sample(
    x64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sojourn.core.oracle._DRAW_TOGETHER", 20)  # a step draws nine numbers: two steps per block

    def walked(num_steps: Any, oracle: Oracle, x: Vec) -> Any:
        def step(state: Any, z: Any, k: jax.Array) -> Any:
            seen, ks = state
            oracle.grad(x, z)
            return seen.at[k].set(z.content[1]), ks.at[k].add(k + 1)

        seen, ks = oracle.walk(step, (jnp.zeros((7, 3)), jnp.zeros(7, jnp.int32)), num_steps, root_key(0))
        return seen, ks, oracle.ledger.totals()

    federation = make(RAGGED, batch_size=3)
    for num_steps in (5, jnp.asarray(5, jnp.int32)):
        seen, ks, totals = ask(federation, 1, functools.partial(walked, num_steps))
        assert ks.tolist() == [1, 2, 3, 4, 5, 0, 0]
        assert totals.tolist() == [5, 0, 0, 0, 15, 5]
        # Fifteen of 300 rows: a repeat is possible, two equal steps are not.
        assert len({tuple(row) for row in seen[:5].tolist()}) == 5


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED])
@pytest.mark.parametrize("weights", [None, "size", [1, 2, 5]])
def test_the_global_loss_weighs_clients_as_asked(sizes: list[int], weights: Any, x64: None) -> None:
    federation = make(sizes, weights=weights)
    shares = {"None": np.ones(3), "size": np.array(sizes)}.get(str(weights), np.array([1, 2, 5]))
    found = float(federation.clients.metrics(federation.x0)["loss"])
    losses = np.array([loss(rows) for rows in data(sizes)])
    close(found, shares @ losses / shares.sum())
    if sizes != EQUAL and weights is not None:  # negative control: weights given to the wrong clients
        assert abs(found - losses[::-1] @ shares / shares.sum()) > 1e-3


def test_metrics_are_means_over_all_rows_and_over_the_test_rows(x64: None) -> None:
    test = data([11], seed=5)[0]
    federation = make(RAGGED, test=test, metrics=measure)
    found = {name: float(value) for name, value in federation.clients.metrics(federation.x0).items()}
    everything = tuple(np.concatenate(part) for part in zip(*data(RAGGED), strict=True))
    expected = {"test_loss": loss(test)}
    for prefix, rows in {"": everything, "test_": test}.items():
        expected[f"{prefix}absolute"] = np.abs(errors(rows)).mean()
        expected[f"{prefix}above"] = np.mean(errors(rows) > 0)
    assert found.keys() == expected.keys() | {"loss"}
    for name, value in expected.items():
        close(found[name], value)


def test_many_rows_are_evaluated_in_blocks_with_the_same_result(x64: None) -> None:
    """Also when the last block is not full, and when there is none."""
    federation = make(RAGGED, weights=[1, 2, 5], metrics=measure)
    objective, weights, x = federation.clients.objective, federation.clients.weights, federation.x0.tree
    whole = objective.metrics(x, weights)
    for rows in (100, sum(RAGGED), 1):
        found = dataclasses.replace(objective, evaluation_rows=rows).metrics(x, weights)
        for name, value in whole.items():
            close(float(found[name]), float(value))


def test_one_forward_pass_serves_the_loss_and_all_metrics() -> None:
    """Products in the compiled loops over training and test rows; a metric that asks at another point needs its own."""
    rows = [(np.ones((4, 3)), np.ones(4))] * 2

    def half_squared(x: Any, batch: Any) -> jax.Array:
        return 0.5 * jnp.mean((batch[0] @ x - batch[1]) ** 2)

    def products(metrics: Any) -> int:
        made = sj.federation(half_squared, np.ones(3), rows, test=rows[0], metrics=metrics)
        objective = dataclasses.replace(made.clients.objective, evaluation_rows=2)
        program = jax.jit(lambda o, x: o.metrics(x, None)).lower(objective, made.x0.tree).compile()
        return program.as_text().count(" dot(")

    assert products(lambda x, batch: {"absolute": jnp.mean(jnp.abs(batch[0] @ x - batch[1]))}) == 2
    assert products(lambda x, batch: {"absolute": jnp.mean(jnp.abs(batch[0] @ (2 * x) - batch[1]))}) == 4


def test_more_rows_than_a_block_of_the_real_size(x64: None) -> None:
    sizes = [finite._EVALUATION_ROWS, 10]
    federation = make(sizes)
    close(float(federation.clients.metrics(federation.x0)["loss"]), np.mean([loss(rows) for rows in data(sizes)]))


VISITED: list[int] = []


def watched_error(x: Any, batch: Any) -> jax.Array:
    jax.debug.callback(lambda row: VISITED.append(1), batch[1])
    return squared_error(x, batch)


@pytest.mark.parametrize("kind", ["full_grad", "full_value"])
def test_an_exact_answer_visits_a_ragged_clients_own_blocks_and_no_others(kind: str) -> None:
    """Rows are visited in blocks of 128, so a client of three rows costs 128 and not the 300 of the largest."""
    federation = sj.federation(watched_error, START, data(RAGGED))
    visit = jax.jit(lambda m: getattr(federation.clients.oracle(m), kind)(federation.x0))
    visited = []
    for client in range(3):
        VISITED.clear()
        visit(jnp.asarray(client))
        jax.effects_barrier()
        visited.append(len(VISITED))
    assert visited == [128, 384, 128]


def test_clients_of_equal_size_are_visited_without_any_padding() -> None:
    federation = sj.federation(watched_error, START, data(EQUAL))
    VISITED.clear()
    ask(federation, 1, lambda oracle, x: oracle.full_grad(x))
    jax.effects_barrier()
    assert len(VISITED) == 1  # one batch of its six rows


def test_a_gradient_of_the_users_own_is_taken_for_batches(x64: None) -> None:
    by_hand = lambda x, batch: jax.tree.map(lambda a: a + 7.0, x)  # noqa: E731
    federation = make(EQUAL, batch_size=2, gradient=by_hand)
    found = ask(federation, 0, lambda oracle, x: oracle.grad(x, oracle.draw(root_key(0))))
    close(found, {"weight": START["weight"] + 7, "bias": START["bias"] + 7})


def test_data_come_in_the_precision_of_the_session_and_labels_stay_whole() -> None:
    rows = [(np.ones((2, 1)), np.array([0, 1]))]
    for precise, expected in ((False, jnp.float32), (True, jnp.float64)):
        with jax.enable_x64(precise):
            stored = sj.federation(lambda x, batch: x[0], np.ones(1), rows).clients.objective.rows
            assert stored[0].dtype == expected and jnp.issubdtype(stored[1].dtype, jnp.integer)


def _broken(client: int, change: Any) -> list[Any]:
    rows = data(EQUAL)
    rows[client] = change(*rows[client])
    return rows


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "the list of clients is empty"),
        (_broken(1, lambda x, y: (x[:0], y[:0])), "client 1 is empty"),
        (_broken(2, lambda x, y: (x[:3], y)), "client 2 is empty or its arrays differ in length"),
        (_broken(1, lambda x, y: (x[:, :1], y)), "client 1's rows differ in shape or type from client 0's"),
        (_broken(2, lambda x, y: (x.astype(np.float32), y)), "client 2's rows differ in shape or type"),
        (_broken(1, lambda x, y: (x, {"y": y})), "client 1's rows differ in shape or type"),
        (_broken(1, lambda x, y: (x * np.nan, y)), "client 1's data hold values that are not finite"),
        (_broken(0, lambda x, y: (x, np.full_like(y, np.inf))), "client 0's data hold values"),
        ([(np.float64(1.0), np.ones(3))], "client 0 is empty or its arrays differ in length"),
    ],
)
def test_impossible_clients_are_refused_with_their_reason(clients: list[Any], message: str) -> None:
    with pytest.raises(SojournError, match=message):
        sj.federation(squared_error, START, clients)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0 is out of range"),
        ({"weights": [1, 2]}, "weights must be 3 numbers"),
        ({"weights": [1, -2, 3]}, "not negative"),
        ({"weights": [0, 0, 0]}, "not all zero"),
        ({"weights": [1, np.nan, 3]}, "weights must be 3 numbers"),
        ({"weights": "sizes"}, "weights = 'sizes' is not known"),
    ],
)
def test_impossible_options_are_refused_with_their_reason(rest: dict[str, Any], message: str) -> None:
    with pytest.raises(SojournError, match=message):
        make(EQUAL, **rest)


def test_a_start_that_is_not_finite_is_refused() -> None:
    with pytest.raises(SojournError, match="not finite"):
        sj.federation(squared_error, START | {"bias": np.array(np.nan)}, data(EQUAL))


@pytest.mark.parametrize("below", [1, 2, 7, 1000])
def test_indices_are_in_range_and_uniform(below: int) -> None:
    drawn = np.asarray(uniform_index(root_key(3), (50, 200), below))
    assert drawn.shape == (50, 200) and drawn.min() >= 0 and drawn.max() == below - 1
    if below > 1:  # a right law fails with probability 1e-3
        assert stats.chisquare(np.bincount(drawn.reshape(-1), minlength=below)).pvalue > 1e-3


def test_indices_are_the_same_in_every_precision() -> None:
    with jax.enable_x64(False):
        single = np.asarray(uniform_index(root_key(3), (100,), 1000))
    with jax.enable_x64(True):
        double = np.asarray(uniform_index(root_key(3), (100,), 1000))
    assert single.tolist() == double.tolist()
