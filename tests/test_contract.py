"""What every registered method owes its engines. The tests read the registry and name no method.

`make`, `variants` and the functions after them serve the other files that walk through the registry too.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import ALGORITHMS
from sojourn.algorithms.base import Algorithm, Context, Info, ModelState, Who
from sojourn.core.federation import Federation, build
from sojourn.core.keys import root_key
from sojourn.core.options import REQUIRED, options_of
from sojourn.core.oracle import Objective, Oracle
from sojourn.core.vec import Vec
from sojourn.driver import make_job
from sojourn.engine import compiled
from sojourn.engine.checkpoint import load_state, save_state
from sojourn.engine.rounds import Plan, RunState, play_exchanges, play_round, start
from sojourn.models.mlp import mlp
from sojourn.problems.quadratic import Quadratic


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Half the compile time: what these tests claim does not depend on how well XLA optimizes."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


METHODS = pytest.mark.parametrize("name", ALGORITHMS)
# those that are played in rounds; what the others owe the engines of virtual time is in test_virtual_time.py
IN_ROUNDS = pytest.mark.parametrize("name", [name for name, m in ALGORITHMS.items() if not m.cls.asynchronous])

# Two orders of the same float64 sums, on numbers of order one, over a few rounds of a contraction.
ROUNDING = 1e-12


def make(name: str, scale: float = 1.0, **chosen: Any) -> Algorithm:
    """A registered method: few local steps, and for every number that is asked for one that suits small quadratics."""
    method = ALGORITHMS[name]
    given: dict[str, Any] = {}
    for option, (kind, default) in options_of(method.cls).items():
        if default is REQUIRED:
            # Eigenvalues of the tests' Hessians lie between 1 and 7: twenty bounds them, 0.05 is a stable step.
            number = 20.0 if option == "smoothness" else 0.05
            given[option] = 3 if kind.kind == "int" else scale * number
        elif option == "num_local_steps":
            given[option] = 3
        elif option == "strong_convexity":
            given[option] = scale * 0.05  # some choices need one
    return method.cls(**given | dict(method.settled) | chosen)


def variants(name: str) -> list[Algorithm]:
    """The method with each value of each of its short lists of choices, one at a time."""
    method, found = ALGORITHMS[name], [make(name)]
    for option, (kind, default) in options_of(method.cls).items():
        if kind.kind == "choice" and len(kind.choices) <= 5 and option not in method.settled:
            found += [make(name, **{option: value}) for value in kind.choices if value != default]
    return found


WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


def uneven(order: list[int] | None = None) -> Federation:
    """Four noiseless quadratics with unequal weights, numbered in the given order; all of them share one program."""
    hessians, optima = random_quadratics(4, 3)
    ids = order or [0, 1, 2, 3]
    return sj.problems.quadratic(hessians[ids], optima[ids], weights=WEIGHTS[ids], x0=[1.0, -1.0, 2.0])


def play(federation: Federation, algorithm: Algorithm, rounds: int, state: RunState | None = None) -> RunState:
    """The state after some more rounds of everyone, by the compiled engine; the given state is used up."""
    job = make_job(federation, algorithm, 100, engine="compiled", participation=None, eval_every=100, record=())
    state = start(algorithm, federation, root_key(0)) if state is None else state
    for plan in phases(algorithm, job.plan, rounds if int(state.round) == 0 else 0):
        length = 1 if plan.opening else rounds
        state = job.engine.advance(algorithm, federation.clients, state, job.course(length), plan)[0]
        rounds -= length if plan.opening else 0
    return state


def phases(algorithm: Algorithm, plan: Plan, fresh: int = 1) -> list[Plan]:
    """The programs of a run: the opening's, where there is one, and the steady one."""
    opens = [dataclasses.replace(plan, opening=True)] if fresh and algorithm.opening() else []
    return [*opens, plan]


def bits(tree: Any) -> list[bytes]:
    plain = lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a  # noqa: E731
    return [np.asarray(plain(leaf)).tobytes() for leaf in jax.tree.leaves(tree)]


def signature(tree: Any) -> Any:
    """Structure, shapes, dtypes and strength of types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype, bool(getattr(leaf, "weak_type", False))) for leaf in leaves]


def assert_rounds_keep_the_state(federation: Federation, algorithm: Algorithm) -> None:
    """Traces a round, and the closing exchanges, without compiling anything."""
    state = start(algorithm, federation, root_key(0))
    for plan in phases(algorithm, Plan(cohort=2, width=2)):
        after = jax.eval_shape(
            lambda a, s, plan=plan: play_round(a, federation.clients, plan, s, jnp.inf)[0], algorithm, state
        )
        assert signature(after) == signature(state)
    if algorithm.closing():
        closing = lambda a, s: play_exchanges(a, a.closing(), federation.clients, plan, s)[0]  # noqa: E731
        assert signature(jax.eval_shape(closing, algorithm, state)) == signature(state.server)


@METHODS
@pytest.mark.parametrize("precise", [False, True])
def test_every_leaf_is_a_strong_float_array(name: str, precise: bool) -> None:
    """Then no new value compiles again, however it was written down."""
    with jax.enable_x64(precise):
        real = jnp.result_type(float)
        for algorithm in (make(name), make(name, scale=1), make(name, scale=np.float32(1)), make(name, jnp.asarray(1))):
            leaves = jax.tree.leaves(algorithm)
            assert all(isinstance(leaf, jax.Array) and leaf.dtype == real and leaf.shape == () for leaf in leaves)
            assert not any(leaf.weak_type for leaf in leaves)


@METHODS
def test_rounds_keep_structure_shapes_and_types_of_the_state(name: str, x64: None) -> None:
    for algorithm in variants(name):
        assert_rounds_keep_the_state(uneven(), algorithm)


class Narrowing(Algorithm):
    """Breaks the contract: its server forgets half of the bits."""

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return down, memory, {}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return jax.tree.map(lambda a: a.astype(jnp.float32), server)


def test_the_check_of_the_state_sees_another_type(x64: None) -> None:
    with pytest.raises(AssertionError):
        assert_rounds_keep_the_state(uneven(), Narrowing())


@IN_ROUNDS
def test_a_second_chunk_and_other_numbers_do_not_compile(name: str, x64: None) -> None:
    federation = uneven()
    state = play(federation, make(name), 1)
    programs = compiled._advance._cache_size()
    state = play(federation, make(name), 2, state)
    play(federation, make(name, scale=np.float32(0.9)), 1, state)
    play(uneven([1, 0, 3, 2]), make(name, scale=0.8), 3)
    assert compiled._advance._cache_size() == programs


def test_the_count_of_programs_sees_another_program(x64: None) -> None:
    name = next(iter(ALGORITHMS))
    play(uneven(), make(name), 1)
    programs = compiled._advance._cache_size()
    play(uneven(), make(name, num_local_steps=4), 1)
    assert compiled._advance._cache_size() == programs + 1


@IN_ROUNDS
def test_a_state_survives_save_and_load_bit_for_bit(name: str, x64: None, tmp_path: Path) -> None:
    federation, algorithm = uneven(), make(name)
    state = play(federation, algorithm, 2)
    save_state(tmp_path / "state.npz", state, "run")
    loaded = load_state(tmp_path / "state.npz", start(algorithm, federation, root_key(7)), "run")
    assert signature(loaded) == signature(state)
    assert bits(loaded) == bits(state)
    assert bits(play(federation, algorithm, 2, loaded)) == bits(play(federation, algorithm, 2, state))


def test_a_state_in_bfloat16_survives_save_and_load(tmp_path: Path) -> None:
    state = {"a": jnp.asarray([1.5, -2.25, 3e30], jnp.bfloat16), "b": jnp.zeros((), jnp.int32)}
    save_state(tmp_path / "state.npz", state, "run")
    loaded = load_state(tmp_path / "state.npz", jax.tree.map(jnp.zeros_like, state), "run")
    assert signature(loaded) == signature(state)
    assert bits(loaded) == bits(state)


@IN_ROUNDS
def test_the_same_call_twice_gives_the_same_bits_and_leaves_its_inputs_alive(name: str, x64: None) -> None:
    """A state is donated to the engine; the federation, the start and the algorithm, device arrays all, are not."""
    federation, algorithm = uneven(), make(name)
    first, second = play(federation, algorithm, 2), play(federation, algorithm, 2)
    assert bits(first) == bits(second)
    inputs = jax.tree.leaves((algorithm, federation.clients, federation.x0))
    assert not any(leaf.is_deleted() for leaf in inputs)
    np.testing.assert_array_equal(np.asarray(federation.x0.tree), [1.0, -1.0, 2.0])


@IN_ROUNDS
def test_renumbering_the_clients_changes_nothing(name: str, x64: None) -> None:
    algorithm = make(name)
    asked = {exchange.who for exchange in (*algorithm.exchanges(), *algorithm.opening())}
    if Who.ONE in asked:
        pytest.skip("one client is drawn by its number: another numbering draws another client")
    works_alone = Who.FIRST in asked
    order = [0, 3, 1, 2] if works_alone else [2, 3, 1, 0]
    plain, renumbered = play(uneven(), algorithm, 3), play(uneven(order), algorithm, 3)
    close(renumbered.server, plain.server)
    close(renumbered.memory, jax.tree.map(lambda a: a[np.array(order)], plain.memory))


def test_renumbering_the_weights_alone_does_change_results(x64: None) -> None:
    """Negative control: the check above would see clients that got each other's weights."""
    name = next(iter(ALGORITHMS))
    mixed = sj.problems.quadratic(*random_quadratics(4, 3), weights=WEIGHTS[::-1], x0=[1.0, -1.0, 2.0])
    with pytest.raises(AssertionError):
        close(play(mixed, make(name), 3).server, play(uneven(), make(name), 3).server)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=ROUNDING)


class OnParts(Objective):
    """A quadratic of the numbers of a dict: two arrays of different shapes, one of them nested."""

    whole: Quadratic

    @staticmethod
    def join(x: Any) -> jax.Array:
        return jnp.concatenate([x["a"], x["b"]["c"].reshape(-1)])

    @staticmethod
    def split(x: jax.Array) -> Any:
        return {"a": x[:1], "b": {"c": x[1:].reshape(1, 2)}}

    def draw(self, view: Any, key: jax.Array, num_batches: int, batch_size: int) -> jax.Array:
        return self.whole.draw(view, key, num_batches, batch_size)

    def value(self, x: Any, view: Any, z: jax.Array) -> jax.Array:
        return self.whole.value(self.join(x), view, z)

    def full_value(self, x: Any, view: Any) -> jax.Array:
        return self.whole.full_value(self.join(x), view)

    def metrics(self, x: Any, weights: jax.Array | None) -> dict[str, jax.Array]:
        return self.whole.metrics(self.join(x), weights)


@IN_ROUNDS
def test_a_model_may_be_a_dict_of_arrays_of_different_shapes(name: str, x64: None) -> None:
    federation, algorithm = uneven(), make(name)
    objective = OnParts(federation.clients.objective)
    parts = build(objective, OnParts.split(federation.x0.tree), 4, weights=WEIGHTS)
    found = algorithm.model(play(parts, algorithm, 2).server).tree
    assert jax.tree.structure(found) == jax.tree.structure(parts.x0.tree)
    if algorithm.layerwise:
        assert np.isfinite(OnParts.join(found)).all()
        return
    close(OnParts.join(found), algorithm.model(play(federation, algorithm, 2).server))


def _distance_to_targets(model: Any, batch: Any) -> jax.Array:
    inputs, targets = batch
    return jnp.mean((jax.vmap(model)(inputs) - targets) ** 2)


def network_federation(dtype: str | None = None) -> Federation:
    """Two clients of a network whose activation, a function, is one of its leaves."""
    rng = np.random.default_rng(0)
    model = mlp((3,), 2, jax.random.key(0), hidden=[4], activation="tanh")
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    arrays = jax.tree.map(lambda a: a.astype(dtype or jnp.result_type(float)), arrays)
    clients = [(rng.normal(size=(5, 3)), rng.normal(size=(5, 2))) for _ in range(2)]
    return sj.federation(_distance_to_targets, eqx.combine(arrays, rest), clients, batch_size=2)


@METHODS
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_an_equinox_network_keeps_its_structure_and_precision(name: str, dtype: str, x64: None) -> None:
    """In a session of float64 numbers: a step size must not lift a model that was given in fewer bits."""
    federation, algorithm = network_federation(dtype), make(name)
    model = algorithm.model(algorithm.init_server(federation.x0))
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype(dtype)}
    assert_rounds_keep_the_state(federation, algorithm)


def test_float32_is_the_default_and_stays() -> None:
    for name in ALGORITHMS:
        state = start(make(name), federation := uneven(), root_key(0))
        wide = [leaf for leaf in jax.tree.leaves((state.server, state.memory)) if leaf.dtype == jnp.float64]
        assert not wide and federation.x0.tree.dtype == jnp.float32
        assert_rounds_keep_the_state(federation, make(name))


def test_a_network_is_trained_and_handed_back_in_the_users_form() -> None:
    name = next(iter(ALGORITHMS))
    federation = network_federation()
    history = sj.run(federation, make(name), 20, progress=False)
    assert history.last("loss") < history.frame()["loss"][0]
    model = history.params
    assert model.activation is jnp.tanh
    assert model(jnp.ones(3)).shape == (2,)
