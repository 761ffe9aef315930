"""Sweeps over federations: alike ones run as one program, and every setting gives what its own run gives."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.core.errors import SojournError
from sojourn.core.keys import root_key
from sojourn.data.dataset import Dataset
from sojourn.driver import stack_clients
from sojourn.engine import Compiled, compiled
from sojourn.experiment import sweep_config
from sojourn.models.cnn import cifar_cnn_small
from sojourn.models.mlp import mlp
from sojourn.sweeping import Setting, _blocks, sweep_settings


def quadratics(seed: int, dimension: int = 3, num_clients: int = 4) -> sj.Federation:
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(num_clients, dimension, dimension))
    hessians = roots @ roots.transpose(0, 2, 1) / dimension + np.eye(dimension)
    return sj.problems.quadratic(hessians, rng.normal(size=(num_clients, dimension)), noise=0.3, x0=np.ones(dimension))


STEPS = (0.02, 0.1)


def settings(federations: list[sj.Federation], seeds: tuple[int, ...] = (0, 5)) -> list[Setting]:
    algorithms = [LocalSGD(step_size=step, num_local_steps=3) for step in STEPS]
    return [
        Setting(algorithm, seed, {"world": number, "step": step}, federation)
        for number, federation in enumerate(federations)
        for algorithm, step in zip(algorithms, STEPS, strict=True)
        for seed in seeds
    ]


def test_every_setting_of_a_sweep_over_federations_is_its_own_run() -> None:
    federations = [quadratics(seed) for seed in range(3)]
    asked = settings(federations)
    assert len(_blocks(None, asked, Compiled())) == 1  # one program
    history = sweep_settings(None, asked, 4, eval_every=1, record=("model_norm",))
    assert history.manifest["num_settings"] == len(asked) and history.manifest["facts"] == {}
    for number, setting in enumerate(asked):
        alone = sj.run(setting.federation, setting.algorithm, 4, seed=setting.seed, eval_every=1, record=["model_norm"])
        mine = history.table[history.table["setting"] == number]
        for column in ("loss", "distance", "model_norm", "floats_up", "calls_grad"):
            np.testing.assert_allclose(mine[column], alone.table[column], rtol=2e-5)
        np.testing.assert_allclose(history.params[number], alone.params, rtol=2e-5, atol=1e-6)
    first = history.table[history.table["round"] == 4].groupby("world")["distance"].first()
    assert first.nunique() == 3  # the worlds do differ


def test_federations_of_other_shapes_run_apart_and_keep_their_order() -> None:
    federations = [quadratics(0), quadratics(1, dimension=5), quadratics(2)]
    asked = settings(federations, seeds=(0,))
    assert len(_blocks(None, asked, Compiled())) == 2
    history = sweep_settings(None, asked, 2)
    assert history.params is None  # models of different shapes do not stack
    for number, setting in enumerate(asked):
        alone = sj.run(setting.federation, setting.algorithm, 2)
        mine = history.table[history.table["setting"] == number]
        np.testing.assert_allclose(mine["loss"].iloc[-1], alone.last("loss"), rtol=2e-5)


def test_arrays_that_federations_share_are_held_once() -> None:
    one, other = (sj.problems.quadratic(np.stack([np.eye(2)] * 3), np.full((3, 2), v)).clients for v in (1.0, 2.0))
    _, own = stack_clients([one, other])
    assert any(own) and not all(own)  # the optima differ, the Hessians do not
    assert not any(stack_clients([one, one])[1])


def test_a_setting_needs_a_federation() -> None:
    with pytest.raises(SojournError, match="no federation"):
        sweep_settings(None, [Setting(LocalSGD(step_size=0.1), 0, {})], 1)


def test_a_swept_option_of_the_problem_runs_as_one_program(tmp_path) -> None:
    tables = {
        "problem": {"name": "cap-regression", "num_clients": 4, "dimension": 3},
        "algorithm": {"name": "local-sgd", "step_size": 0.01, "num_local_steps": 2},
        "run": {"rounds": 3},
    }
    axes = ["problem.mean_spread=0.0,2.0,4.0", "algorithm.step_size=0.005,0.01"]
    [history] = sweep_config(tables, axes, tmp_path / "sweep")
    assert len(list((tmp_path / "sweep").glob("block-*"))) == 1
    assert history.manifest["num_settings"] == 6
    alone = {**tables, "problem": {**tables["problem"], "mean_spread": 4.0}}
    [single] = sweep_config(alone, ["algorithm.step_size=0.005,0.01"], tmp_path / "alone")
    last = history.table[(history.table["round"] == 3) & (history.table["problem.mean_spread"] == 4.0)]
    np.testing.assert_allclose(last["loss"], single.table[single.table["round"] == 3]["loss"], rtol=2e-5)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_models_with_an_activation_among_their_leaves_are_joined(engine: str) -> None:
    homes = [_network(seed) for seed in (0, 1)]
    settings = [
        Setting(LocalSGD(0.1, steps), seed, {"steps": steps}, homes[seed]) for steps in (1, 2) for seed in (0, 1)
    ]
    history = sweep_settings(None, settings, 1, engine=engine, progress=False)
    alone = sj.run(homes[1], LocalSGD(0.1, 2), 1, seed=1, engine=engine, progress=False)
    joined, one = (eqx.filter(params, eqx.is_array) for params in (history.params, alone.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[3], b, rtol=1e-5, atol=1e-6), joined, one)
    assert history.params.activation is alone.params.activation


def _network(seed: int) -> sj.Federation:
    data = sj.data.load("digits")
    model = sj.models.mlp((64,), 10, root_key(seed), hidden=[4])
    return sj.problems.classification(data, sj.partition.iid(data.y_train, 3, seed=seed), model, batch_size=4)


# --- models too large to be run side by side ----------------------------------------------------------------------


def network(seed: int) -> sj.Federation:
    rng = np.random.default_rng(seed)
    rows = [(rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32)) for _ in range(4)]
    params = {"in": rng.normal(size=(4, 5)).astype(np.float32), "out": rng.normal(size=5).astype(np.float32)}
    return sj.federation(squared_error, params, rows, batch_size=2)


def squared_error(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(batch[0] @ params["in"]) @ params["out"] - batch[1]) ** 2)


@pytest.mark.parametrize("method", [LocalSGD, Scaffold])
def test_settings_of_large_models_take_turns_in_one_program_and_are_their_own_runs_to_the_bit(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    federations = [network(seed) for seed in range(2)]
    algorithms = [method(step_size=step, num_local_steps=3) for step in STEPS]
    asked = [Setting(a, seed, {}, home) for home in federations for a in algorithms for seed in (0, 5)]
    assert len(_blocks(None, asked, Compiled())) == 1  # so small a model is run side by side
    # a single client fits, and so it is for one run; the rest of this test stands and falls with it
    monkeypatch.setattr(compiled, "_SIDE_BY_SIDE_BYTES", 600)
    assert len(_blocks(None, asked, Compiled())) == len(asked)
    assert len(_blocks(None, asked, Compiled("vmap"))) == 1  # asked for
    before = compiled._advance._cache_size()
    history = sweep_settings(None, asked, 4, participation=2, eval_every=1)
    assert compiled._advance._cache_size() == before + 1
    for number, setting in enumerate(asked):
        alone = sj.run(setting.federation, setting.algorithm, 4, seed=setting.seed, participation=2, eval_every=1)
        mine = history.table[history.table["setting"] == number]
        for column in ("loss", "drift", "calls_grad"):
            np.testing.assert_array_equal(mine[column], alone.table[column])
        jax.tree.map(lambda a, b, n=number: np.testing.assert_array_equal(a[n], b), history.params, alone.params)
    assert history.table[history.table["round"] == 4]["loss"].nunique() == len(asked)  # the settings do differ


def test_a_sweep_in_turns_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_SIDE_BY_SIDE_BYTES", 600)
    fed, make = network(0), lambda step: LocalSGD(step_size=step, num_local_steps=2)
    whole = sj.sweep(fed, make, STEPS, 6, seeds=(0, 1), eval_every=2, progress=False)
    sj.sweep(fed, make, STEPS, 2, seeds=(0, 1), eval_every=2, progress=False, out=tmp_path / "s")
    assert len(list((tmp_path / "s").glob("block-*"))) == 4
    resumed = sj.sweep(fed, make, STEPS, 6, seeds=(0, 1), eval_every=2, progress=False, out=tmp_path / "s", resume=True)
    np.testing.assert_array_equal(resumed.table["drift"], whole.table["drift"])
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


def test_what_a_client_holds_decides_how_many_work_side_by_side() -> None:
    """Weights of a wide layer, or what a convolution makes of a batch: neither alone would see both."""
    key = jax.random.key(0)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 32, 32, 3)).astype(np.float32)
    data = Dataset("images", images, np.arange(40, dtype=np.int32) % 10, images[:2], np.arange(2, dtype=np.int32), 10)

    def width(model: Any, batch_size: int) -> tuple[int, bool]:
        fed = sj.problems.classification(data, list(np.arange(40).reshape(10, 4)), model, batch_size=batch_size)
        return Compiled().width(fed, 10), Compiled().settings_in_turn(fed)

    assert width(mlp((32, 32, 3), 10, key, hidden=[4]), 10) == (10, False)
    assert width(mlp((32, 32, 3), 10, key, hidden=[1000]), 10) == (1, True)
    small = cifar_cnn_small((32, 32, 3), 10, key)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(small) if eqx.is_array(leaf)) < 2**18  # 17 fit by weights alone
    assert width(small, 32) == (1, True)
    assert width(small, 1)[0] > 1
