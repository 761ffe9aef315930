"""Who takes part: cohorts are uniform over all sets, cheap for any population, and follow from the round alone."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from scipy import stats

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms.base import Algorithm, Who
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key, uniform_index
from sojourn.engine.participation import cohort_size, draw_cohort, members
from sojourn.engine.rounds import divisor_at_most, shares

# A statistic of a right law leaves this band with probability 1e-3 (seeds are fixed, so it does not flicker); the
# negative controls leave it by many orders of magnitude.
LEAST_PROBABILITY = 5e-4


@functools.partial(jax.jit, static_argnames=("number", "num_clients", "size"))
def _draws(number: int, num_clients: int, size: int) -> jax.Array:
    return jax.vmap(lambda key: draw_cohort(key, num_clients, size))(jax.random.split(root_key(0), number))


@functools.cache
def draws(number: int, num_clients: int, size: int) -> np.ndarray:
    return np.asarray(_draws(number, num_clients, size))


def assert_uniform_over_sets(cohorts: np.ndarray, num_clients: int) -> None:
    """Pearson's test over all sets of that size: implies uniform inclusion of clients and of pairs."""
    sets = list(itertools.combinations(range(num_clients), cohorts.shape[1]))
    index = {ids: number for number, ids in enumerate(sets)}
    seen = np.bincount([index[tuple(sorted(ids))] for ids in cohorts.tolist()], minlength=len(sets))
    probability = stats.chisquare(seen).pvalue
    assert LEAST_PROBABILITY < probability < 1 - LEAST_PROBABILITY


SMALL, NARROW, MIDDLE, LARGE, HUGE = (
    (20_000, 7, 3),
    (20_000, 5, 4),
    (4000, 50, 10),
    (4000, 70_000, 100),
    (50, 2**26, 100),
)


@pytest.mark.parametrize(("number", "num_clients", "size"), [SMALL, NARROW, MIDDLE, LARGE, HUGE])
def test_members_are_different_sorted_and_in_range(number: int, num_clients: int, size: int) -> None:
    cohorts = draws(number, num_clients, size)
    assert cohorts.shape == (number, size)
    assert (np.diff(cohorts, axis=1) > 0).all()
    assert cohorts.min() >= 0 and cohorts.max() < num_clients


def test_every_set_of_clients_is_equally_likely() -> None:
    assert_uniform_over_sets(draws(*SMALL), 7)
    assert_uniform_over_sets(draws(*NARROW), 5)


def test_the_uniformity_test_sees_a_slight_preference() -> None:
    """Negative control: repeats mended by taking the next free client, as a careless Floyd would."""
    rng = np.random.default_rng(0)
    cohorts = rng.integers(0, 7, size=(20_000, 3))
    for ids in cohorts:
        for i in (1, 2):
            while ids[i] in ids[:i]:
                ids[i] = (ids[i] + 1) % 7
    with pytest.raises(AssertionError):
        assert_uniform_over_sets(cohorts, 7)


@pytest.mark.parametrize(("number", "num_clients", "size"), [MIDDLE, LARGE])
def test_clients_are_included_equally_often(number: int, num_clients: int, size: int) -> None:
    """Counts of T cohorts have covariance T p (1 - p) N / (N - 1) (I - 1 1^T / N): a chi-square with N - 1 degrees."""
    groups = 50  # of clients with consecutive numbers: of a large population no single client is seen often
    cohorts = draws(number, num_clients, size)
    seen = np.bincount((cohorts * groups // num_clients).reshape(-1), minlength=groups)
    p = size / num_clients
    each = num_clients // groups
    variance = number * each * p * (1 - p) * (num_clients - each) / (num_clients - 1) * groups / (groups - 1)
    statistic = np.sum((seen - number * size / groups) ** 2) / variance
    assert LEAST_PROBABILITY < stats.chi2(groups - 1).sf(statistic) < 1 - LEAST_PROBABILITY


def test_large_populations_are_drawn_with_all_their_bits() -> None:
    """A float32 in [0, 1) has 23 bits: times 2^26 it would only ever reach every eighth client."""
    odd = np.mean(draws(*HUGE) % 2)
    assert abs(odd - 0.5) < 5 * 0.5 / np.sqrt(50 * 100)  # five standard deviations of a fair coin
    coarse = uniform_index(root_key(0), (5000,), 2**26)
    assert np.mean(np.asarray(coarse) % 2) == 0  # negative control: what the cheaper draw would give


def test_drawing_a_cohort_holds_nothing_of_the_size_of_the_population() -> None:
    def largest(num_clients: int) -> int:
        traced = jax.make_jaxpr(lambda key: draw_cohort(key, num_clients, 100))(root_key(0))
        return max(_sizes(traced.jaxpr))

    assert largest(1_000_000) == largest(100_000) <= 10 * 100
    assert max(_sizes(jax.make_jaxpr(lambda key: jax.random.permutation(key, 1000))(root_key(0)).jaxpr)) >= 1000


def _sizes(jaxpr: Any) -> list[int]:
    """The sizes of all arrays of a program, those of its inner programs too."""
    found = [0]
    for equation in jaxpr.eqns:
        found += [int(np.prod(v.aval.shape)) for v in equation.outvars if hasattr(v.aval, "shape")]
        for inner in jaxprs_in_params(equation.params):
            found += _sizes(inner)
    return found


def test_the_cohort_follows_from_the_round_and_one_from_the_purpose_too() -> None:
    key = lambda round: jax.random.fold_in(root_key(3), round)  # noqa: E731
    draw = jax.jit(members, static_argnums=(0, 2, 3, 4))
    ask = lambda who, round, purpose: np.asarray(draw(who, key(round), 1000, 5, purpose)).tolist()  # noqa: E731
    assert ask(Who.COHORT, 0, "a") == ask(Who.COHORT, 0, "b")  # shared by the exchanges of a round
    assert ask(Who.COHORT, 0, "a") != ask(Who.COHORT, 1, "a")
    assert ask(Who.ONE, 0, "a") == ask(Who.ONE, 0, "a") != ask(Who.ONE, 0, "b")
    assert ask(Who.ONE, 0, "a") != ask(Who.ONE, 1, "a")


def test_all_first_and_one_are_as_many_as_they_say() -> None:
    assert np.asarray(members(Who.ALL, root_key(0), 4, 2, "")).tolist() == [0, 1, 2, 3]
    assert np.asarray(members(Who.FIRST, root_key(0), 4, 2, "")).tolist() == [0]
    assert members(Who.ONE, root_key(0), 4, 2, "").shape == (1,)
    assert np.asarray(draw_cohort(root_key(0), 4, 4)).tolist() == [0, 1, 2, 3]


def test_one_is_uniform_over_the_clients() -> None:
    keys = jax.random.split(root_key(1), 6000)
    ones = jax.jit(jax.vmap(lambda key: members(Who.ONE, key, 6, 2, "walk")[0]))(keys)
    probability = stats.chisquare(np.bincount(np.asarray(ones), minlength=6)).pvalue
    assert LEAST_PROBABILITY < probability < 1 - LEAST_PROBABILITY


@pytest.mark.parametrize(
    ("participation", "expected"),
    [(None, 40), (1, 1), (40, 40), (0.25, 10), (1.0, 40), (1e-9, 1), (np.int64(3), 3), (np.float32(0.5), 20)],
)
def test_participation_is_a_number_or_a_share_of_clients(participation: Any, expected: int) -> None:
    assert cohort_size(participation, 40) == expected


@pytest.mark.parametrize(
    ("participation", "message"),
    [
        (0, "participation = 0 clients per round is out of range; the federation has 40"),
        (41, "participation = 41 clients per round is out of range"),
        (-3, "participation = -3 clients per round is out of range"),
        (0.0, "a share lies between 0 and 1"),
        (1.5, "a share lies between 0 and 1"),
        (float("nan"), "a share lies between 0 and 1"),
        (True, "participation = True is not a number"),
        ("half", "participation = 'half' is not a number"),
    ],
)
def test_impossible_participation_is_refused_with_its_reason(participation: Any, message: str) -> None:
    with pytest.raises(SojournError, match=message):
        cohort_size(participation, 40)


class BySize(Algorithm):
    weighting = "size"


def shares_of(federation: Federation, algorithm: Algorithm, ids: list[int]) -> list[float]:
    return np.asarray(shares(algorithm, federation.clients, jnp.asarray(ids))).tolist()


def test_shares_of_a_cohort_are_its_weights_and_sum_to_one(x64: None) -> None:
    plain = sj.problems.quadratic(*random_quadratics())
    weighted = sj.problems.quadratic(*random_quadratics(), weights=[1, 2, 3, 4, 5, 6])
    assert shares_of(plain, Algorithm(), [1, 4]) == [0.5, 0.5]
    np.testing.assert_allclose(shares_of(weighted, Algorithm(), [0, 2, 5]), [0.1, 0.3, 0.6], rtol=1e-15)
    assert shares_of(weighted, Algorithm(), [3]) == [1.0]  # one alone stands for all


def test_shares_by_size_are_the_numbers_of_rows(x64: None) -> None:
    rows = [np.ones((n, 1)) for n in (10, 20, 70)]
    ragged = sj.federation(lambda x, batch: jnp.mean(batch) * x[0], np.ones(1), rows, weights=[1, 1, 2])
    np.testing.assert_allclose(shares_of(ragged, BySize(), [0, 1, 2]), [0.1, 0.2, 0.7], rtol=1e-15)
    np.testing.assert_allclose(shares_of(ragged, Algorithm(), [0, 1, 2]), [0.25, 0.25, 0.5], rtol=1e-15)
    equal = sj.federation(lambda x, batch: jnp.mean(batch) * x[0], np.ones(1), rows[:1] * 3, weights=[1, 1, 2])
    np.testing.assert_allclose(shares_of(equal, BySize(), [1, 2]), [0.5, 0.5], rtol=1e-15)


@pytest.mark.parametrize(("number", "limit", "width"), [(6, 4, 3), (6, 6, 6), (6, 100, 6), (7, 6, 1), (1, 0, 1)])
def test_groups_are_as_wide_as_a_divisor_allows(number: int, limit: int, width: int) -> None:
    assert divisor_at_most(number, limit) == width
