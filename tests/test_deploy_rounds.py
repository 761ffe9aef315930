"""The book of rounds: the same model as the simulator's, whoever is killed, late or absent."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import ALGORITHMS, CELSGD, FedAsync, FedAvg, LocalSGD, Scaffold
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.deploy.book import AGAIN, DUPLICATE, HELD, Trips, read_log
from sojourn.deploy.replay import difference
from sojourn.deploy.rounds import InRounds, attendance
from sojourn.deploy.rules import Rules
from test_contract import IN_ROUNDS, make, quick  # noqa: F401 - `quick` is for all tests here

CLIENTS, ROUNDS = 5, 4


def problem() -> Federation:
    return sj.problems.random_quadratic(num_clients=CLIENTS, dimension=4, noise=0.3)


class Workers:
    """All clients, without a network: what a worker does with a task, memories by the number of the task."""

    def __init__(self, federation: Federation, method: Any) -> None:
        self.federation, self.method, self.kept = federation, method, dict[int, Any]()
        self._visit = jax.jit(self._work, static_argnames="name")

    def _work(self, method: Any, client: Any, down: Any, memory: Any, key: Any, *, name: str) -> Any:
        oracle = self.federation.clients.oracle(client)
        return Trips.of(method)[name].local(down, memory, oracle, jax.random.wrap_key_data(key))[:2]

    def do(self, book: InRounds, task: Any, down: Any) -> Any:
        memory = self.kept[task.memory] if task.memory >= 0 else self.method.init_client(self.federation.x0)
        up, after = self._visit(self.method, task.client, down, memory, book.key(task), name=task.exchange)
        self.kept[task.number] = after
        return up


def played(
    make: Callable[[], InRounds], workers: Workers, present: Callable[[int], list[int]], killed: float
) -> InRounds:
    """Until the end; answers come in any order, and the server is killed now and then, in the middle of a round too."""
    rng, book, now = np.random.default_rng(1), make(), 0.0
    while not book.over:
        now += 1.0
        book.assign(present(book.round), now)
        book.commit()
        waiting = [task for task in book.out.values() if not book.has_answered(task.client)]
        if waiting:
            task = waiting[rng.integers(len(waiting))]
            up = workers.do(book, task, book.down(task.exchange))
            assert book.take(task.number, task.client, up) == HELD
            assert book.take(task.number, task.client, up) == AGAIN
        if book.close(now):
            book.commit()
            if waiting:
                assert book.take(task.number, task.client, up) == DUPLICATE
        if rng.random() < killed:
            book = make()
    return book


def answer_of(book: InRounds) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(book.algorithm.answer(book.server))])


@IN_ROUNDS
def test_every_method_comes_to_the_simulators_answer(name: str, x64: None, tmp_path: Path) -> None:
    federation, method, everyone = problem(), make(name), list(range(CLIENTS))
    rounds = ALGORITHMS[name].max_rounds or ROUNDS
    book_of = lambda: InRounds(federation, method, tmp_path, Rules(), of=rounds, seed=3)  # noqa: E731
    book = played(book_of, Workers(federation, method), lambda round: everyone, killed=0.15)
    history = sj.run(federation, method, rounds, seed=3, progress=False)
    np.testing.assert_allclose(answer_of(book), np.ravel(history.params), rtol=1e-9)
    assert difference(book, federation) < 1e-12
    answered = [row for row in read_log(tmp_path) if row["event"] == "applied"]
    assert len(answered) == book.applied == len({row["number"] for row in answered})


@pytest.mark.parametrize("method", [FedAvg(0.02, 3), Scaffold(0.02, 3)], ids=["fedavg", "scaffold"])
def test_a_sampled_cohort_is_the_simulators(method: Any, x64: None, tmp_path: Path) -> None:
    federation, everyone = problem(), list(range(CLIENTS))
    book_of = lambda: InRounds(federation, method, tmp_path, Rules(), of=6, seed=3, participation=2)  # noqa: E731
    book = played(book_of, Workers(federation, method), lambda round: everyone, killed=0.1)
    history = sj.run(federation, method, 6, seed=3, participation=2, progress=False)
    np.testing.assert_allclose(answer_of(book), np.ravel(history.params), rtol=1e-9)


def test_a_guard_is_the_simulators(x64: None, tmp_path: Path) -> None:
    federation, everyone, method = problem(), list(range(CLIENTS)), sj.guarded(FedAvg(0.02, 3), "median")
    book_of = lambda: InRounds(federation, method, tmp_path, Rules(), of=ROUNDS, seed=3)  # noqa: E731
    book = played(book_of, Workers(federation, method), lambda round: everyone, killed=0.1)
    history = sj.run(federation, method, ROUNDS, seed=3, progress=False)
    np.testing.assert_allclose(answer_of(book), np.ravel(history.params), rtol=1e-9)
    plain = sj.run(federation, FedAvg(0.02, 3), ROUNDS, seed=3, progress=False)
    assert np.abs(answer_of(book) - np.ravel(plain.params)).max() > 1e-6


def test_the_noise_of_a_private_run_is_nobodys_to_know(x64: None, tmp_path: Path) -> None:
    """Two runs of one seed differ; each replays with the secret that its server kept, also after kills."""
    federation, everyone, found = problem(), list(range(CLIENTS)), []
    method = sj.guarded(FedAvg(0.02, 3), clip=0.1, noise_multiplier=0.5, delta=1e-3, weights="equal")
    for place in (tmp_path / "a", tmp_path / "b"):
        book_of = lambda place=place: InRounds(federation, method, place, Rules(), of=ROUNDS, seed=3)  # noqa: E731
        book = played(book_of, Workers(federation, method), lambda round: everyone, killed=0.2)
        assert difference(book, federation) < 1e-12
        assert stat.S_IMODE((place / "root.secret").stat().st_mode) == 0o600
        found.append(answer_of(book))
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_a_guard_is_asked_about_the_fewest_answers_that_can_close_a_round(x64: None, tmp_path: Path) -> None:
    federation, method = problem(), sj.guarded(FedAvg(0.02, 3), "krum", attackers=1)
    InRounds(federation, method, tmp_path / "a", Rules(), of=1)
    with pytest.raises(SojournError, match="krum"):
        InRounds(federation, method, tmp_path / "b", Rules(min_reports=2, deadline=1.0), of=1)
    book = InRounds(federation, method, tmp_path / "c", Rules(), of=1)
    with pytest.raises(SojournError, match="krum"):
        book.exclude(1)


def test_a_number_of_samples_is_told_once(x64: None, tmp_path: Path) -> None:
    federation = problem()
    book = InRounds(federation, sj.guarded(FedAvg(0.02, 3), "median"), tmp_path, Rules(), of=1)
    book.told_samples(0, 20)
    with pytest.raises(SojournError, match="before"):
        book.told_samples(0, 2**31)
    with pytest.raises(SojournError):
        book.told_samples(1, 30)  # a median does not weigh
    book.told_samples(1, 20)
    book.commit()
    again = InRounds(federation, sj.guarded(FedAvg(0.02, 3), "median"), tmp_path, Rules(), of=1)
    assert again.samples == [20, 20, None, None, None]


def test_who_is_absent_is_replaced_and_the_log_still_replays(x64: None, tmp_path: Path) -> None:
    federation, method = problem(), CELSGD(0.01, 3, messages="printed")
    book_of = lambda: InRounds(federation, method, tmp_path, Rules(), of=6, seed=3, participation=3)  # noqa: E731
    present = lambda round: [client for client in range(CLIENTS) if client != round % CLIENTS]  # noqa: E731
    book = played(book_of, Workers(federation, method), present, killed=0.0)
    took_part = attendance(read_log(tmp_path))
    assert all(number % CLIENTS not in clients for number, _, clients in took_part)
    assert difference(book, federation) < 1e-12
    history = sj.run(federation, method, 6, seed=3, participation=3, progress=False)
    assert np.abs(answer_of(book) - np.ravel(history.params)).max() > 1e-4  # others took part, so it must differ


def test_a_round_closes_with_the_first_answers_or_after_its_deadline(x64: None, tmp_path: Path) -> None:
    federation, method = problem(), FedAvg(0.02, 3)
    rules = Rules(over_selection=1, min_reports=2, deadline=10.0)
    book = InRounds(federation, method, tmp_path, rules, of=3, seed=3, participation=3)
    workers = Workers(federation, method)
    tasks = book.assign(list(range(CLIENTS)), 0.0)
    assert len(tasks) == 4
    for task in tasks[:3]:
        assert not book.close(1.0)
        book.take(task.number, task.client, workers.do(book, task, book.down(task.exchange)))
    assert book.close(1.0) and book.done == 1
    late = tasks[3]
    assert book.take(late.number, late.client, workers.do(book, late, book.down(late.exchange))) == DUPLICATE
    tasks = book.assign(list(range(CLIENTS)), 20.0)
    for task in tasks[:2]:
        book.take(task.number, task.client, workers.do(book, task, book.down(task.exchange)))
    assert not book.close(29.0) and book.close(31.0) and book.done == 2
    book.commit()
    assert difference(book, federation) < 1e-12


def test_a_lost_task_goes_to_another_and_an_untrusted_client_is_not_waited_for(x64: None, tmp_path: Path) -> None:
    federation, method = problem(), FedAvg(0.02, 3)
    book = InRounds(federation, method, tmp_path, Rules(), of=3, seed=3, participation=2)
    first, second = book.assign(list(range(CLIENTS)), 0.0)
    book.give_up(first.number, "lost")
    (other,) = book.assign([client for client in range(CLIENTS) if client != first.client], 1.0)
    assert other.client not in (first.client, second.client)
    whole = InRounds(federation, method, tmp_path / "whole", Rules(), of=3, seed=3)
    whole.exclude(2)
    assert {task.client for task in whole.assign(list(range(CLIENTS)), 0.0)} == {0, 1, 3, 4} and whole.wanted == 4


def test_what_cannot_be_is_refused(x64: None, tmp_path: Path) -> None:
    federation = problem()
    refused = lambda method, rules=None, **rest: InRounds(  # noqa: E731
        federation, method, tmp_path, rules or Rules(), of=3, **rest
    )
    with pytest.raises(SojournError, match="one by one"):
        refused(FedAsync(0.05, 3, mixing=0.5))
    with pytest.raises(SojournError, match="min_reports = 4"):
        refused(FedAvg(0.02), Rules(min_reports=4, deadline=1.0), participation=3)
    with pytest.raises(SojournError, match="deadline"):
        refused(FedAvg(0.02), Rules(min_reports=2))
    with pytest.raises(SojournError, match="over_selection"):
        refused(FedAvg(0.02), Rules(over_selection=1))
    with pytest.raises(SojournError, match="everyone"):
        refused(LocalSGD(0.02, output="exp", strong_convexity=1.0), participation=3)


def test_weights_are_by_the_samples_that_workers_tell(x64: None, tmp_path: Path) -> None:
    federation, method = problem(), FedAvg(0.02, 1)
    book = InRounds(federation, method, tmp_path, Rules(), of=1, seed=3)
    for client in range(CLIENTS):
        book.told_samples(client, 10 * (client + 1))
    tasks, workers = book.assign(list(range(CLIENTS)), 0.0), Workers(federation, method)
    ups = [workers.do(book, task, book.down(task.exchange)) for task in tasks]
    for task, up in zip(tasks, ups, strict=True):
        book.take(task.number, task.client, up)
    book.close(0.0)
    expected = np.average([np.ravel(jax.tree.leaves(up)[0]) for up in ups], axis=0, weights=[1, 2, 3, 4, 5])
    np.testing.assert_allclose(answer_of(book), np.ravel(federation.x0.tree) + expected, rtol=1e-12)


def test_who_tells_its_samples_in_the_middle_of_a_round_leaves_the_mean_a_mean(x64: None, tmp_path: Path) -> None:
    points = [(np.full((2, 1), 1.0), np.full(2, target)) for target in (2.0, 1.0, 5.0)]
    loss = lambda x, batch: ((batch[0] @ x - batch[1]) ** 2).mean()  # noqa: E731
    federation = sj.federation(loss, np.zeros(1), points, weights=[0.2, 0.3, 0.5])
    book = InRounds(federation, LocalSGD(0.05, 1), tmp_path, Rules(), of=1, seed=3, participation=2)
    workers = Workers(federation, book.algorithm)
    book.told_samples(0, 10)
    book.told_samples(1, 30)
    first, second = sorted(book.assign([0, 1], 0.0), key=lambda task: task.client)
    ups = [workers.do(book, task, book.down(task.exchange)) for task in (first, second)]
    book.take(first.number, 0, ups[0])
    book.told_samples(2, 1000)
    book.take(second.number, 1, ups[1])
    assert book.close(0.0)
    expected = np.average([np.ravel(jax.tree.leaves(up)[0]) for up in ups], axis=0, weights=[10, 30])
    np.testing.assert_allclose(answer_of(book), expected, rtol=1e-12)
