"""Data that change hands in every round: who holds what, one deal for all engines, what the loss means."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import Vec
from sojourn.engine.compiled import Compiled

SIZES = (7, 20, 12, 9)


def mean_value(params: jax.Array, batch: Any) -> jax.Array:
    """Its gradient is the mean of the rows' numbers: full_grad says what a client holds."""
    return jnp.mean(batch[0]) * params[0]


def squared(params: jax.Array, batch: Any) -> jax.Array:
    return jnp.mean((batch[0] - params[0]) ** 2)


def clients_of(sizes: tuple[int, ...]) -> list[Any]:
    """Every row is its own number; its class is that number modulo three."""
    rows = np.split(np.arange(float(sum(sizes))), np.cumsum(sizes)[:-1])
    return [(x, (x % 3).astype(int)) for x in rows]


def dealt(redeal: Any = True, sizes: tuple[int, ...] = SIZES, loss: Any = squared, **options: Any) -> Federation:
    clients = clients_of(sizes)
    if redeal == "class":
        redeal = [y for _, y in clients]
    return sj.federation(loss, np.zeros(1), clients, redeal=redeal, **options)


def hands(federation: Federation, key: jax.Array, number: int = 4) -> list[np.ndarray]:
    """Which rows every client holds in a round, read off many draws through its oracle."""
    clients = federation.clients.in_round(key)
    found = []
    for client in range(number):
        oracle = clients.oracle(jnp.asarray(client))
        found.append(np.unique(np.asarray(oracle.draw(root_key(1), 600).content[0])).astype(int))
    return found


@pytest.mark.parametrize("sizes", [SIZES, (12, 12, 12, 12)], ids=["ragged", "equal"])
@pytest.mark.parametrize("redeal", [True, "class"])
def test_a_round_deals_every_row_to_one_client_and_keeps_sizes(redeal: Any, sizes: tuple[int, ...]) -> None:
    federation = dealt(redeal, sizes, batch_size=1)
    first, again, other = (hands(federation, root_key(k)) for k in (0, 0, 1))
    assert [len(hand) for hand in first] == list(sizes)
    np.testing.assert_array_equal(np.sort(np.concatenate(first)), np.arange(sum(sizes)))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    classes = lambda parts: [np.bincount(part % 3, minlength=3).tolist() for part in parts]  # noqa: E731
    at_home = classes([x.astype(int) for x, _ in clients_of(sizes)])
    assert (classes(first) == at_home and classes(other) == at_home) == (redeal == "class")


def test_without_redealing_every_round_is_the_same() -> None:
    """Negative control: the test above would see it."""
    federation = dealt(False, batch_size=1)
    assert federation.clients.in_round(root_key(0)) is federation.clients
    home = [x.astype(int) for x, _ in clients_of(SIZES)]
    assert all(np.array_equal(a, b) for a, b in zip(hands(federation, root_key(0)), home, strict=True))


def test_a_deal_is_uniform() -> None:
    """Row 0 comes to every place equally often, and alone among its class where classes stay apart."""
    federation = dealt(True, (12, 12, 12, 12))
    orders = jax.vmap(federation.clients.objective.redeal.draw)(jax.random.split(root_key(3), 4800))
    places = np.asarray(jnp.argmax(orders == 0, axis=1))
    expected = 4800 / 48
    # chi-squared with 47 degrees of freedom: below 47 + 5 sqrt(94) but once in a million
    assert (((np.bincount(places, minlength=48) - expected) ** 2) / expected).sum() < 47 + 5 * np.sqrt(94)
    by_class = dealt("class", (12, 12, 12, 12)).clients.objective.redeal.draw(root_key(3))
    np.testing.assert_array_equal(np.asarray(by_class) % 3, np.arange(48) % 3)


@pytest.mark.parametrize("sizes", [SIZES, (12, 12, 12, 12)], ids=["ragged", "equal"])
def test_exact_answers_are_about_the_rounds_hand(sizes: tuple[int, ...]) -> None:
    federation = dealt(True, sizes, loss=mean_value)
    drawn = hands(dealt(True, sizes, batch_size=1), root_key(5))
    clients = federation.clients.in_round(root_key(5))
    for client, hand in enumerate(drawn):
        oracle = clients.oracle(jnp.asarray(client))
        at = Vec(jnp.ones(1))
        assert float(oracle.full_grad(at).tree[0]) == pytest.approx(hand.mean(), rel=1e-5)
        assert float(oracle.full_value(at)) == pytest.approx(hand.mean(), rel=1e-5)


@pytest.mark.parametrize("weights", [None, "size", (0.1, 0.2, 0.3, 0.4)])
@pytest.mark.parametrize("redeal", [True, "class"])
def test_the_loss_is_the_mean_over_deals(redeal: Any, weights: Any) -> None:
    federation = dealt(redeal, weights=weights)
    clients, x = federation.clients, Vec(jnp.asarray([20.0]))
    given = np.full(4, 0.25) if clients.weights is None else np.asarray(clients.weights)

    def one(key: jax.Array) -> jax.Array:
        dealt_clients = clients.in_round(key)
        return jnp.stack([dealt_clients.oracle(jnp.asarray(m)).full_value(x) for m in range(4)])

    rounds = np.asarray(jax.vmap(one)(jax.random.split(root_key(0), 4000))) @ given
    spread = rounds.std() / np.sqrt(len(rounds))
    loss = float(clients.metrics(x)["loss"])
    # four standard errors; for weights by size every deal has the same loss, up to rounding
    assert abs(loss - rounds.mean()) < 4 * spread + 1e-4 * loss
    if weights is None:
        fixed = float(dealt(False).clients.metrics(x)["loss"])  # negative control: the home deal has another loss
        assert abs(fixed - rounds.mean()) > 10 * spread


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("redeal", [True, "class"])
def test_all_engines_and_placements_see_the_same_deals(redeal: Any, batch_size: int | None, x64: None) -> None:
    federation = dealt(redeal, batch_size=batch_size)
    method = sj.algorithms.LocalSGD(step_size=0.02, num_local_steps=3)
    options: dict[str, Any] = {"rounds": 5, "participation": 3, "seed": 4}
    tables = [
        sj.run(federation, method, engine=engine, **options).table
        for engine in ("reference", Compiled("vmap"), Compiled("scan"))
    ]
    for table in tables[1:]:
        np.testing.assert_allclose(table["loss"], tables[0]["loss"], rtol=1e-12)
    fixed = sj.run(dealt(False, batch_size=batch_size), method, **options).table
    assert abs(fixed["loss"] / tables[0]["loss"] - 1).max() > 1e-3  # negative control: dealing matters


def test_a_sweep_deals_as_its_runs_do_and_a_resumed_run_goes_on(tmp_path: Path, x64: None) -> None:
    federation = dealt(True, batch_size=2)
    make = lambda lr: sj.algorithms.LocalSGD(step_size=lr, num_local_steps=2)  # noqa: E731
    steps = np.array([0.01, 0.05])
    swept = sj.sweep(federation, make, steps, rounds=4, seeds=range(2)).frame()
    for seed in range(2):
        for step in steps:
            alone = sj.run(federation, make(step), rounds=4, seed=seed).frame()
            mine = swept[(swept["value"] == step) & (swept["seed"] == seed)]
            np.testing.assert_allclose(mine["loss"], alone["loss"], rtol=1e-12)
    whole = sj.run(federation, make(0.05), rounds=6, eval_every=1)
    sj.run(federation, make(0.05), rounds=3, eval_every=1, out=tmp_path)
    resumed = sj.run(federation, make(0.05), rounds=6, eval_every=1, out=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.table["loss"], whole.table["loss"])


def test_another_deal_is_another_run(tmp_path: Path) -> None:
    method = sj.algorithms.LocalSGD(step_size=0.05, num_local_steps=2)
    sj.run(dealt(True), method, rounds=2, out=tmp_path)
    with pytest.raises(SojournError, match="belongs to another run"):
        sj.run(dealt("class"), method, rounds=4, out=tmp_path, resume=True)


def test_redealt_problems_claim_no_facts_of_a_deal_and_labels_only_where_they_stay() -> None:
    data = sj.data.load("digits")
    clients = sj.partition.one_class(data.y_train, 10)
    by_class, all_round = (sj.partition.redealt(clients, data.y_train, way) for way in ("class", "all"))
    for build in (sj.problems.logistic_regression, sj.problems.least_squares):
        federation = build(data, by_class, batch_size=5)
        assert federation.facts.x_star is None and federation.facts.smoothness is None
        np.testing.assert_array_equal((federation.label_counts > 0).sum(axis=1), 1)
        assert build(data, all_round, batch_size=5).label_counts is None
    assert sj.problems.least_squares(data, clients).facts.x_star is not None


def test_groups_that_do_not_fit_are_refused() -> None:
    groups = [y for _, y in clients_of(SIZES)]
    for wrong in (groups[:-1], [g[:-1] for g in groups], "all", 3):
        with pytest.raises(SojournError, match="redeal must be True, False, or one list of whole numbers per client"):
            dealt(wrong)
    with pytest.raises(SojournError, match="a row's group is a whole number"):
        dealt([g.astype(float) for g in groups])
