"""Aggregators against NumPy and SciPy, and runs in which some clients send garbage."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import trim_mean

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.algorithms.aggregators import AGGREGATORS
from sojourn.algorithms.base import Algorithm, Exchange, Info
from sojourn.core.errors import SojournError
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec


def stack(number: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(number, 3)), "b": Vec(rng.normal(size=(number, 2, 2)))}


def combine(name: str, ups: Any, **options: Any) -> np.ndarray:
    number = len(jax.tree.leaves(ups)[0])
    return flat_one(AGGREGATORS[name].combine(jax.tree.map(jnp.asarray, ups), jnp.full(number, 1 / number), **options))


def flat(ups: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(ups)], axis=1)


def flat_one(up: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(up)])


@pytest.mark.parametrize("number", [3, 4, 9, 10])
def test_the_median_is_numpys(number: int, x64: None) -> None:
    ups = stack(number)
    np.testing.assert_allclose(combine("median", ups), np.median(flat(ups), axis=0), rtol=1e-15)


@pytest.mark.parametrize(("number", "trim"), [(5, 0.2), (10, 0.1), (10, 0.3), (11, 0.25), (100, 0.29)])
def test_the_trimmed_mean_is_scipys(number: int, trim: float, x64: None) -> None:
    ups = stack(number)
    told = round(trim * number, 9) // 1 / number + 1e-9  # SciPy takes the whole part of a product that may fall short
    np.testing.assert_allclose(combine("trimmed-mean", ups, trim=trim), trim_mean(flat(ups), told, axis=0), rtol=1e-12)


def krum_in_numpy(rows: np.ndarray, attackers: int, keep: int) -> np.ndarray:
    scores = []
    for i in range(len(rows)):
        apart = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(len(rows)) if j != i)
        scores.append(sum(apart[: len(rows) - attackers - 2]))
    best = sorted(range(len(rows)), key=lambda i: scores[i])[:keep]
    return rows[best].mean(axis=0)


@pytest.mark.parametrize(("attackers", "keep"), [(1, 1), (2, 1), (3, 1), (2, 4)])
def test_krum_is_the_papers_rule(attackers: int, keep: int, x64: None) -> None:
    for seed in range(5):
        ups = stack(9, seed)
        found = combine("krum", ups, attackers=attackers, keep=keep)
        np.testing.assert_allclose(found, krum_in_numpy(flat(ups), attackers, keep), rtol=1e-12)


def test_krum_counts_as_many_neighbours_as_the_paper_says(x64: None) -> None:
    """Negative control of the rule's n - f - 2: among these points another number chooses another one."""
    rows = np.array([[0.0], [0.1], [0.2], [0.3], [1.0], [5.0], [9.0]])
    assert not np.allclose(krum_in_numpy(rows, 1, 1), krum_in_numpy(rows, 2, 1))
    for attackers in (1, 2):
        found = combine("krum", {"a": rows}, attackers=attackers)
        np.testing.assert_allclose(found, krum_in_numpy(rows, attackers, 1))


def test_the_mean_is_weighted_and_the_others_are_not(x64: None) -> None:
    ups, weights = stack(5), np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    found = AGGREGATORS["mean"].combine(jax.tree.map(jnp.asarray, ups), jnp.asarray(weights))
    np.testing.assert_allclose(flat_one(found), weights @ flat(ups), rtol=1e-12)
    for name in ("median", "trimmed-mean", "krum"):
        rule = AGGREGATORS[name].combine
        one, other = (rule(jax.tree.map(jnp.asarray, ups), jnp.asarray(w)) for w in (weights, weights[::-1]))
        assert np.array_equal(flat_one(one), flat_one(other)) and not AGGREGATORS[name].weighted


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30, -1e30])
@pytest.mark.parametrize(
    ("name", "options"), [("median", {}), ("trimmed-mean", {"trim": 0.3}), ("krum", {"attackers": 2})]
)
def test_what_is_no_number_is_borne_like_any_wrong_answer(name: str, options: Any, garbage: float) -> None:
    ups = stack(7)
    ups["a"][:2] = garbage
    found = combine(name, ups, **options)
    assert np.isfinite(found).all() and np.abs(found).max() < 5  # the honest ones are standard normal
    assert not np.abs(combine("mean", ups)).max() < 1e3


@pytest.mark.parametrize(
    ("name", "options", "number", "words"),
    [
        ("median", {}, 2, "fewer than 3"),
        ("trimmed-mean", {"trim": 0.1}, 9, "less than one at each end"),
        ("krum", {"attackers": 2}, 6, r"2 \* attackers \+ 3 = 7"),
        ("krum", {"attackers": 2, "keep": 4}, 7, "more than the 3"),
    ],
)
def test_too_few_answers_are_refused(name: str, options: Any, number: int, words: str) -> None:
    with pytest.raises(SojournError, match=words):
        AGGREGATORS[name].check(number, **options)
    AGGREGATORS[name].check(number + 1, **options)


# --- clients that lie ------------------------------------------------------------------------------------------------


class Attacked(Algorithm):
    """A method, guarded or not, in which the first three clients answer with something else.

    A liar stands outside of all guards: what it sends is what arrives.
    """

    inner: Algorithm
    lie: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def init_server(self, x0: Vec) -> Any:
        return self.inner.init_server(x0)

    def init_client(self, x0: Vec) -> Any:
        return self.inner.init_client(x0)

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(map(self._attack, self.inner.exchanges()))

    def _attack(self, exchange: Exchange) -> Exchange:
        def local(down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
            up, memory, info = exchange.local(down, memory, oracle, key)
            lies = oracle._view < 3  # a quadratic sees its client by its number
            return jax.tree.map(lambda a: jnp.where(lies, self.lie(a), a), up), memory, info

        return Exchange(
            exchange.broadcast,
            local,
            exchange.aggregate,
            exchange.who,
            exchange.purpose,
            exchange.reduce,
            exchange.origin,
        )


LIES = {
    "far away": lambda a: jnp.full_like(a, 1e4),
    "no number": lambda a: jnp.full_like(a, jnp.nan),
    "backwards": lambda a: -20 * a,
}
GUARDS: list[dict[str, Any]] = [
    {"aggregator": "median"},
    {"aggregator": "trimmed-mean", "trim": 0.3},
    {"aggregator": "krum", "attackers": 3, "keep": 4},
    {"aggregator": "median", "clip": 0.5},
]


@pytest.mark.parametrize("lie", LIES)
def test_three_of_twelve_liars_spoil_the_mean_and_no_guard(lie: str) -> None:
    hessians, optima = random_quadratics(12, 4)
    optima = 1 + 0.1 * optima  # honest clients agree roughly: no robust rule can do without
    federation = sj.problems.quadratic(hessians, optima)
    method = LocalSGD(step_size=0.05, num_local_steps=4)

    def distance(algorithm: Algorithm) -> float:
        return sj.run(federation, Attacked(algorithm, LIES[lie]), 40, progress=False).last("distance")

    assert not distance(method) < 1.5  # it starts at a distance of two
    for options in GUARDS:
        assert distance(sj.guarded(method, **options)) < 0.2, options


def test_clipping_bounds_what_liars_can_do_in_a_round() -> None:
    hessians, optima = random_quadratics(12, 4)
    federation = sj.problems.quadratic(hessians, optima)
    method = sj.guarded(LocalSGD(step_size=0.05, num_local_steps=4), clip=0.1)
    run = lambda algorithm: sj.run(federation, Attacked(algorithm, LIES["far away"]), 5, progress=False)  # noqa: E731
    assert np.linalg.norm(np.asarray(run(method).params)) <= 5 * 0.1 * (1 + 1e-5)
    assert not np.linalg.norm(np.asarray(run(method.plain()).params)) < 100


def test_a_method_with_memory_and_two_part_answers_is_guarded_too(x64: None) -> None:
    federation = sj.problems.quadratic(*random_quadratics(12, 4))
    attacked = Attacked(sj.guarded(Scaffold(step_size=0.05), "median"), LIES["far away"])
    assert sj.run(federation, attacked, 20, progress=False).last("distance") < 2
    attacked = Attacked(Scaffold(step_size=0.05), LIES["far away"])
    assert not sj.run(federation, attacked, 20, progress=False).last("distance") < 100
