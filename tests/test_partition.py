"""Partitions: the promises that all schemes make, then what is particular to each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.core.errors import SojournError
from sojourn.partition import (
    PARTITIONS,
    Redealt,
    classes,
    dirichlet,
    iid,
    label_counts,
    mixed,
    one_class,
    q_share,
    redealt,
    shards,
)

every_scheme = pytest.mark.parametrize("scheme", PARTITIONS.values(), ids=PARTITIONS.keys())


def tenfold(num_samples=500, seed=0):
    return np.random.default_rng(seed).integers(0, 10, num_samples)


@every_scheme
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    sizes=st.lists(st.integers(30, 60), min_size=2, max_size=6), num_clients=st.integers(1, 12), seed=st.integers(0, 9)
)
def test_every_sample_is_dealt_exactly_once_and_no_client_is_empty(scheme, sizes, num_clients, seed):
    if scheme is q_share:  # which cuts classes to the size of the smallest
        sizes = [sizes[0]] * len(sizes)
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    clients = scheme(labels, max(num_clients, len(sizes)), seed=seed)  # enough clients for every class to have a holder
    assert len(clients) == max(num_clients, len(sizes))
    assert min(len(part) for part in clients) > 0
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(len(labels)))


@every_scheme
def test_the_seed_decides_everything(scheme):
    labels = tenfold()
    first, again, other = (scheme(labels, 12, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@every_scheme
def test_one_client_gets_all(scheme):
    labels = np.zeros(20, dtype=int)
    options = {"classes_per_client": 1} if scheme in (classes, mixed) else {}
    np.testing.assert_array_equal(scheme(labels, 1, **options)[0], np.arange(20))


@every_scheme
@pytest.mark.parametrize(
    "labels, num_clients, message",
    [
        (tenfold(30), 31, "there are 30; use at most 30 clients"),
        (tenfold(30), 0, "num_clients = 0 must be at least 1"),
        (np.zeros((4, 2), int), 2, "one per sample"),
        (np.zeros(0, int), 2, "non-empty"),
        (np.linspace(0, 1, 5), 2, "list of integers"),
    ],
)
def test_impossible_requests_are_refused(scheme, labels, num_clients, message):
    with pytest.raises(SojournError, match=message):
        scheme(labels, num_clients)


def test_iid_clients_differ_by_at_most_one_sample():
    assert {len(part) for part in iid(tenfold(503), 10)} == {50, 51}


def test_iid_clients_have_nearly_the_labels_of_the_whole():
    labels = np.repeat(np.arange(10), 1000)
    counts = label_counts(labels, iid(labels, 10), 10)
    # hypergeometric, mean 100, standard deviation below 9.1; five deviations for 100 cells
    assert np.abs(counts - 100).max() < 45


def test_shards_of_equal_classes_bound_the_labels_of_a_client():
    labels = np.repeat(np.arange(10), 60)  # 20 shards of 30: no shard crosses a class
    counts = label_counts(labels, shards(labels, 10, shards_per_client=2), 10)
    assert (counts > 0).sum(axis=1).max() <= 2
    np.testing.assert_array_equal(counts.sum(axis=1), 60)


def test_more_shards_than_samples_are_refused():
    with pytest.raises(SojournError, match="needs 40 samples but there are 30; use at most 3 shards"):
        shards(tenfold(30), 10, shards_per_client=4)


@pytest.mark.parametrize("num_clients, per_client", [(10, 2), (7, 3), (20, 1), (5, 10), (13, 4)])
def test_classes_give_every_client_exactly_its_number_of_labels(num_clients, per_client):
    labels = tenfold(1000)
    counts = label_counts(labels, classes(labels, num_clients, classes_per_client=per_client, seed=1), 10)
    np.testing.assert_array_equal((counts > 0).sum(axis=1), per_client)


def test_classes_of_equal_size_have_equally_many_holders():
    labels = np.repeat(np.arange(10), 60)
    for num_clients in (10, 13, 17):
        holders = (label_counts(labels, classes(labels, num_clients), 10) > 0).sum(axis=0)
        assert holders.max() - holders.min() <= 1


def test_larger_classes_get_more_holders():
    labels = np.repeat(np.arange(3), (400, 100, 100))
    holders = (label_counts(labels, classes(labels, 12, classes_per_client=1), 3) > 0).sum(axis=0)
    np.testing.assert_array_equal(holders, (8, 2, 2))


def test_classes_without_a_holder_are_left_out_and_the_rest_is_complete():
    labels = tenfold()
    clients = classes(labels, 3, classes_per_client=2)
    used = np.concatenate(clients)
    held = np.unique(labels[used])
    assert len(held) == 6
    assert len(used) == np.isin(labels, held).sum()


def test_impossible_classes_are_refused():
    with pytest.raises(SojournError, match="classes_per_client = 11 is more than the 10 classes"):
        classes(tenfold(), 5, classes_per_client=11)
    with pytest.raises(SojournError, match="classes_per_client = 0 must be at least 1"):
        classes(tenfold(), 5, classes_per_client=0)
    with pytest.raises(SojournError, match="class 1 has 2 samples for the 10 clients"):
        classes(np.repeat([0, 1], (98, 2)), 10, classes_per_client=2)


def test_small_concentration_skews_and_large_concentration_evens_out():
    labels = np.repeat(np.arange(10), 200)

    def largest_share(concentration):
        counts = label_counts(labels, dirichlet(labels, 10, concentration=concentration), 10)
        return float((counts.max(axis=0) / 200).mean())

    # the largest of ten Dirichlet(a) shares has mean 0.1 as a grows and 1 as a vanishes; at a = 1e4 a share has
    # standard deviation 0.001 and its rounding is at most 0.005
    assert largest_share(1e4) < 0.12
    assert largest_share(1e-2) > 0.85


def test_dirichlet_shares_have_the_variance_of_their_law():
    labels = np.repeat(np.arange(300), 100)
    shares = label_counts(labels, dirichlet(labels, 4, concentration=0.5), 300) / 100
    # variance of a symmetric Dirichlet share: (1/n)(1 - 1/n) / (n a + 1) = 0.0625; 1200 shares give it within 10 %
    assert abs(shares.var() / 0.0625 - 1) < 0.1


@pytest.mark.parametrize("concentration", [1e-3, 0.05])
def test_dirichlet_repairs_clients_that_would_have_too_few(concentration):
    labels = tenfold(200)
    clients = dirichlet(labels, 20, concentration=concentration, min_samples=7)
    assert min(len(part) for part in clients) >= 7
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(200))


def test_impossible_dirichlet_requests_are_refused():
    with pytest.raises(SojournError, match="use at most 28 clients"):
        dirichlet(tenfold(200), 29, min_samples=7)
    for bad in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(SojournError, match=r"concentration = .* must be positive and finite"):
            dirichlet(tenfold(), 5, concentration=bad)


def test_label_counts_count_by_hand():
    labels = np.array([0, 1, 1, 2, 0])
    table = label_counts(labels, [np.array([0, 1, 2]), np.array([3, 4])], 4)
    np.testing.assert_array_equal(table, [[1, 2, 0, 0], [1, 0, 1, 0]])


def test_mixed_skews_its_share_of_clients_and_no_other():
    labels = np.repeat(np.arange(10), 600)
    counts = label_counts(labels, mixed(labels, 100, skewed_share=0.7, classes_per_client=2), 10)
    held = (counts > 0).sum(axis=1)
    np.testing.assert_array_equal(held[:70], 2)
    assert held[70:].min() >= 9  # 60 random samples of ten classes miss a given one once in 550 clients
    np.testing.assert_array_equal(counts[70:].sum(axis=1), 60)
    assert np.abs(counts[:70].sum(axis=1) - 60).max() <= 10  # classes divide what chance left of each
    for share, expected in ((0.0, 0), (1.0, 100)):
        counts = label_counts(labels, mixed(labels, 100, skewed_share=share), 10)
        assert ((counts > 0).sum(axis=1) == 2).sum() == expected


def test_impossible_mixtures_are_refused():
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(SojournError, match=r"skewed_share = .* must lie between 0 and 1"):
            mixed(tenfold(), 5, skewed_share=bad)
    with pytest.raises(SojournError, match="classes_per_client = 11 is more than the 10 classes"):
        mixed(tenfold(), 5, classes_per_client=11)


@pytest.mark.parametrize("own_share", [0.0, 0.1, 0.35, 0.6, 0.85, 1.0])
def test_q_share_gives_an_owner_its_fraction_and_the_others_the_rest_evenly(own_share):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 180))
    counts = label_counts(labels, q_share(labels, 10, own_share=own_share), 10)
    own = round(180 * own_share)
    np.testing.assert_array_equal(np.diag(counts), own)
    others = counts[~np.eye(10, dtype=bool)]
    assert others.min() == (180 - own) // 9 and others.max() == -(-(180 - own) // 9)


def test_q_share_cuts_classes_to_the_smallest():
    labels = np.repeat(np.arange(3), (50, 40, 90))
    clients = q_share(labels, 3, own_share=0.5)
    counts = label_counts(labels, clients, 3)
    np.testing.assert_array_equal(counts.sum(axis=0), 40)
    assert len(np.unique(np.concatenate(clients))) == 120


def test_q_share_with_more_or_fewer_clients_than_classes():
    labels = np.repeat(np.arange(4), 120)
    counts = label_counts(labels, q_share(labels, 8, own_share=0.5), 4)
    np.testing.assert_array_equal(counts[np.arange(8), np.arange(8) % 4], 30)  # two owners halve the half
    np.testing.assert_array_equal(counts.sum(axis=0), 120)
    counts = label_counts(labels, q_share(labels, 2, own_share=0.75), 4)
    np.testing.assert_array_equal(counts, [[90, 30, 60, 60], [30, 90, 60, 60]])


def test_impossible_q_shares_are_refused():
    for bad in (-0.1, 1.1, np.nan):
        with pytest.raises(SojournError, match=r"own_share = .* must lie between 0 and 1"):
            q_share(tenfold(), 10, own_share=bad)
    with pytest.raises(SojournError, match=r"leaves client \d without samples"):
        q_share(np.repeat([0, 1], (98, 2)), 10)  # four samples are left for ten clients


def test_one_class_deals_class_i_mod_c_to_client_i():
    labels = tenfold(1000)
    clients = one_class(labels, 23)
    counts = label_counts(labels, clients, 10)
    np.testing.assert_array_equal(counts.argmax(axis=1), np.arange(23) % 10)
    np.testing.assert_array_equal((counts > 0).sum(axis=1), 1)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(labels))
    for name in range(10):
        held = counts[name::10, name]
        assert held.max() - held.min() <= 1


def test_one_class_with_fewer_clients_than_classes_is_refused():
    with pytest.raises(SojournError, match="leaves 6 of 10 classes to nobody"):
        one_class(tenfold(), 4)


@pytest.mark.parametrize("scheme", [one_class, q_share])
def test_a_class_missing_from_the_data_is_refused(scheme):
    with pytest.raises(SojournError, match="class 1 is missing from the data"):
        scheme(np.repeat([0, 2], 30), 3)
    with pytest.raises(SojournError, match="classes are numbered from 0"):
        scheme(np.repeat([-1, 0], 30), 2)


def test_one_class_refuses_more_holders_than_samples():
    with pytest.raises(SojournError, match="class 1 has 2 samples for the 5 clients"):
        one_class(np.repeat([0, 1], (98, 2)), 10)


def test_redealt_clients_are_those_of_the_partition():
    labels = tenfold()
    clients = iid(labels, 5)
    assert redealt(clients, labels, "never") is clients
    by_class, all_round = redealt(clients, labels, "class"), redealt(clients, labels, "all")
    assert isinstance(by_class, Redealt) and len(by_class) == 5
    assert all(np.array_equal(a, b) for a, b in zip(by_class, clients, strict=True))
    np.testing.assert_array_equal(by_class.groups, labels)
    assert by_class.keeps_labels and not all_round.keeps_labels and set(all_round.groups) == {0}
    with pytest.raises(SojournError, match='did you mean "class"'):
        redealt(clients, labels, "classes")
