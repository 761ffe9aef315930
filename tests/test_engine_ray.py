"""Actors of a Ray cluster give the numbers of the compiled engine, also when one is lost; two nodes on this machine."""

import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.config import to_toml, validate
from sojourn.core.errors import SojournError
from sojourn.engine import Ray, ray_cluster
from sojourn.experiment import run_config
from sojourn.problems.quadratic import Quadratic
from test_contract import IN_ROUNDS, make, quick_compilation
from test_parity import GUARDS, assert_like_compiled, assert_same_state, assert_same_table, noisy, play

run = functools.partial(sj.run, progress=False)
ENGINE = Ray(actors=2)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
TABLES = {"problem": {"name": "quadratic"}, "algorithm": {"name": "local-sgd", "step_size": 0.1}}

pytestmark = [
    pytest.mark.cluster,
]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one processor each, over loopback."""
    ray = ray_cluster._ray()
    with ray_cluster._ray_warnings():
        from ray.cluster_utils import Cluster

        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        found.add_node(num_cpus=1)
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ENGINE.close()
    ray_cluster._idle.clear()
    with ray_cluster._ray_warnings():
        ray.shutdown()
        found.shutdown()


@IN_ROUNDS
def test_actors_give_the_numbers_of_the_compiled_engine(name: str, cluster: Any, x64: None) -> None:
    """Five clients in blocks of three and two, and a cohort of three, however it falls, where the method allows one."""
    algorithm = make(name)
    assert_like_compiled(ENGINE, algorithm, 5, None if algorithm.needs_everyone() else 3)


@GUARDS
def test_actors_give_the_numbers_of_guarded_runs(guard: dict[str, Any], cluster: Any, x64: None) -> None:
    """Stacks of unequal length, and the server's noise."""
    algorithm = sj.guarded(Scaffold(step_size=0.05, num_local_steps=2), **guard)
    assert_like_compiled(ENGINE, algorithm, 11, 7)


def test_the_comparison_sees_clients_with_each_others_data(cluster: Any, x64: None, monkeypatch: Any) -> None:
    """Negative control: blocks whose data are those of other clients."""
    expected, _ = play(noisy(4), LocalSGD(step_size=0.05), "compiled")
    cut = Quadratic.cut
    monkeypatch.setattr(Quadratic, "cut", lambda self, firsts, size: cut(self, firsts, size)[::-1])
    with pytest.raises(AssertionError):
        assert_same_state(play(noisy(4), LocalSGD(step_size=0.05), ENGINE)[0], expected)


def _mean_square(params: Any, batch: Any) -> jax.Array:
    features, targets = batch
    return jax.numpy.mean((features @ params - targets) ** 2)


@pytest.mark.parametrize("redeal", [False, True])
def test_ragged_blocks_and_probes_of_what_clients_do(redeal: bool, cluster: Any, x64: None) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (20, 3, 7, 11, 2)]
    federation = sj.federation(_mean_square, np.zeros(3), clients, batch_size=2, weights="size", redeal=redeal)
    how: dict[str, Any] = {"participation": 3, "record": ("consensus4", "client_drift", "cosine"), "eval_every": 2}
    algorithm = Scaffold(step_size=0.05, num_local_steps=3)
    found, expected = (run(federation, algorithm, 5, engine=engine, **how) for engine in (ENGINE, "compiled"))
    assert_same_table(found.frame(), expected.frame())
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-12)


def test_an_actor_holds_the_data_of_its_own_clients_alone() -> None:
    rng = np.random.default_rng(0)
    sizes = (20, 3, 7, 11, 2)
    clients = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in sizes]
    ragged = sj.federation(_mean_square, np.zeros(3), clients, batch_size=2).clients.objective
    blocks = ray_cluster.Owned(5, 3)
    assert blocks.firsts == [0, 2] and blocks.bounds(np.array([0, 2, 3, 4])) == [(0, 2), (2, 4)]
    parts = ragged.cut(blocks.firsts, blocks.size)
    assert {len(jax.tree.leaves(part.inside.rows)[0]) for part in parts} == {30}  # of 43: the larger block's
    for part, own in zip(parts, [(0, 1, 2), (2, 3, 4)], strict=True):
        for client in own:
            first, length = part.open(client)
            np.testing.assert_allclose(part.inside.rows[0][int(first) : int(first + length)], clients[client][0], 1e-6)


def test_the_actors_of_two_nodes_work_together(cluster: Any, x64: None) -> None:
    run(noisy(), LocalSGD(step_size=0.05), 2, engine=ENGINE)
    (waiting,) = ray_cluster._idle.values()
    places = {node for _, node in cluster.get([actor.where.remote() for actor in waiting])}
    assert len(places) == 2


def test_an_actor_that_is_lost_is_made_anew_and_the_result_is_the_same(
    cluster: Any, x64: None, monkeypatch: Any
) -> None:
    """Stateful clients, killed in the middle of chunks: memories and broadcasts of the chunk bring a new one there."""
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    how: dict[str, Any] = {"participation": 3, "engine": ENGINE}
    undisturbed = run(noisy(), algorithm, 40, **how)
    played: list[int] = []
    whole = ray_cluster.Cast.play

    def play_and_die(self: ray_cluster.Cast, *letter: Any) -> Any:
        played.append(1)
        if len(played) == 23:
            pid, _ = cluster.get(self.actors[0].where.remote())
            os.kill(pid, signal.SIGKILL)
        return whole(self, *letter)

    monkeypatch.setattr(ray_cluster.Cast, "play", play_and_die)
    disturbed = run(noisy(), algorithm, 40, **how)
    assert len(played) == 40
    pd.testing.assert_frame_equal(
        disturbed.frame().drop(columns="seconds"), undisturbed.frame().drop(columns="seconds"), check_exact=True
    )
    np.testing.assert_array_equal(disturbed.params, undisturbed.params)


@pytest.mark.parametrize("error", ["ObjectLostError", "NodeDiedError", "ActorUnavailableError"])
def test_an_answer_that_is_lost_is_asked_for_again_of_a_new_actor(
    error: str, cluster: Any, x64: None, monkeypatch: Any
) -> None:
    """The old actor has done the work, so that its memories would be a round ahead if it did it again."""
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    expected = run(noisy(), algorithm, 6, participation=3)
    get, asked, revived = cluster.get, [0], []
    made = {"ObjectLostError": ("00" * 28, None, ""), "NodeDiedError": ("",), "ActorUnavailableError": ("", b"0" * 16)}

    def lose_one(waiting: Any, **how: Any) -> Any:
        found = get(waiting, **how)
        asked[0] += 1
        if asked[0] == 14:
            raise getattr(cluster.exceptions, error)(*made[error])
        return found

    revive = ray_cluster.Cast._revive
    monkeypatch.setattr(ray_cluster.Cast, "_revive", lambda self, *a: (revived.append(a), revive(self, *a)))
    monkeypatch.setattr(cluster, "get", lose_one)
    found = run(noisy(), algorithm, 6, participation=3, engine=ENGINE)
    assert len(revived) == 1
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-12)


def test_an_actor_that_finds_no_place_again_is_told_in_a_sentence(cluster: Any, monkeypatch: Any) -> None:
    """A lost node: its actors cannot be made anew, and nobody waits for ever."""
    whole = ray_cluster.Cast.play

    def play_and_die(self: ray_cluster.Cast, *letter: Any) -> Any:
        monkeypatch.setattr(ray_cluster, "_SECONDS_TO_START", 0.5)
        monkeypatch.setattr(ray_cluster, "_hired", nowhere)
        self._ray.kill(self.actors[0])
        return whole(self, *letter)

    def nowhere(ray: Any) -> Any:
        kind = ray.remote(num_cpus=1000)(ray_cluster.worker.Actor)
        return kind.remote()

    monkeypatch.setattr(ray_cluster.Cast, "play", play_and_die)
    with pytest.raises(SojournError, match=r"has not started in 0\.5 s"):
        run(noisy(), LocalSGD(step_size=0.05), 2, engine=ENGINE)
    monkeypatch.undo()
    run(noisy(), LocalSGD(step_size=0.05), 2, engine=ENGINE)  # does not wait for those that will never begin


def test_what_goes_wrong_in_an_actor_is_told_in_a_sentence(cluster: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray_cluster.Cast, "_task", lambda self, number: (self._baggage.settings, {}, [], 0))
    with pytest.raises(SojournError, match=r"actor 0 of the Ray cluster failed \(.*KeyError"):
        run(noisy(), LocalSGD(step_size=0.05), 2, engine=ENGINE)


def test_a_long_chunk_fetches_memories_instead_of_keeping_all_broadcasts(
    cluster: Any, x64: None, monkeypatch: Any
) -> None:
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    expected = run(noisy(), algorithm, 8, participation=3)
    monkeypatch.setattr(ray_cluster, "_LOG_BYTES", 100)
    found = run(noisy(), algorithm, 8, participation=3, engine=ENGINE)
    np.testing.assert_allclose(found.params, expected.params, rtol=0, atol=1e-12)


def test_a_stopped_run_goes_on_to_the_same_bits(cluster: Any, x64: None, tmp_path: Path) -> None:
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    how: dict[str, Any] = {"participation": 3, "engine": ENGINE}
    whole = run(noisy(), algorithm, 12, **how)
    run(noisy(), algorithm, 7, out=tmp_path, **how)
    resumed = run(noisy(), algorithm, 12, out=tmp_path, resume=True, **how)
    np.testing.assert_array_equal(resumed.params, whole.params)
    assert resumed.manifest["engine"] == {"name": "ray", "address": None, "actors": 2, "why": "asked for"}


def test_what_the_cluster_cannot_do_is_told_in_a_sentence(cluster: Any) -> None:
    with pytest.raises(SojournError, match="3 actors need as many processors, and the cluster has 2"):
        run(noisy(), LocalSGD(step_size=0.05), 2, engine=Ray(actors=3))
    with pytest.raises(
        SojournError, match=r'connected to the Ray cluster at .* and address = "10.0.0.1:6379" is another'
    ):
        run(noisy(), LocalSGD(step_size=0.05), 2, engine=Ray(address="10.0.0.1:6379", actors=2))
    with pytest.raises(SojournError, match="actors = 0 does not fit"):
        Ray(actors=0)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_an_address_without_a_cluster_is_told_in_a_sentence(address: str) -> None:
    """In a process that is connected to none, which is what this one is not."""
    program = (
        "from sojourn.engine import Ray\nfrom sojourn.core.errors import SojournError\n"
        f"try:\n    Ray(address={address!r}).blocks(3)\nexcept SojournError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    assert f'there is no Ray cluster at address = "{address}"' in said.stdout and said.stderr == ""


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: Any, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ray" else find(name, *a))
    with pytest.raises(SojournError, match=re.escape('pip install "sojourn[ray]"')):
        Ray()
    with pytest.raises(SojournError, match="install"):
        run_config(validate({**TABLES, "engine": {"name": "ray"}}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_local_cluster_comes_and_goes_with_the_command(tmp_path: Path) -> None:
    """In a process of its own, as a user runs it, with nothing on the screen that is not ours."""
    config = tmp_path / "a.toml"
    config.write_text(to_toml(TABLES))
    program = "from sojourn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", str(config), "--out", str(tmp_path / "out"), "--set", "engine.name=ray",
         "--set", "engine.actors=1", "--set", "run.rounds=3"],
        capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
