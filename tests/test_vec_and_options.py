"""Vectors that are pytrees, and options that know their range."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.options import REQUIRED, choice, count, options_of, positive, real
from sojourn.core.vec import Vec, inner, norm, size


def vector(*numbers: float, dtype: Any = jnp.float32) -> Vec:
    return Vec({"a": jnp.asarray(numbers[:1], dtype), "b": jnp.asarray(numbers[1:], dtype).reshape(-1, 1)})


def numbers(v: Vec) -> list[float]:
    return np.concatenate([np.asarray(leaf, float).reshape(-1) for leaf in jax.tree.leaves(v)]).tolist()


def test_vectors_add_subtract_and_scale_leaf_by_leaf() -> None:
    a, b = vector(1, 2, 3), vector(10, 20, 30)
    assert numbers(a + b) == [11, 22, 33]
    assert numbers(b - a) == [9, 18, 27]
    assert numbers(-a) == [-1, -2, -3]
    assert numbers(2 * a) == numbers(a * 2) == [2, 4, 6]
    assert numbers(b / 4) == [2.5, 5, 7.5]
    assert numbers(a.zeros()) == [0, 0, 0]


@pytest.mark.parametrize("scalar", [2, 2.0, np.float64(2), np.float32(2), np.int64(2), jnp.float32(2), jnp.asarray(2)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_any_scalar_from_either_side_keeps_the_type_of_the_leaves(scalar: Any, dtype: Any) -> None:
    v = vector(1, 2, 3, dtype=dtype)
    for found in (scalar * v, v * scalar):
        assert isinstance(found, Vec) and numbers(found) == [2, 4, 6]
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
    assert {leaf.dtype for leaf in jax.tree.leaves(v / scalar)} == {jnp.dtype(dtype)}


def test_a_float64_scalar_does_not_lift_a_float32_model(x64: None) -> None:
    step = jnp.asarray(0.1, jnp.float64)
    assert {leaf.dtype for leaf in jax.tree.leaves(step * vector(1, 2))} == {jnp.dtype(jnp.float32)}
    assert (step * jnp.ones(2, jnp.float32)).dtype == jnp.float64  # negative control: a bare array is lifted


def test_mixed_precision_is_kept_leaf_by_leaf() -> None:
    v = Vec((jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float32)))
    assert [leaf.dtype for leaf in (0.5 * v + v).tree] == [jnp.bfloat16, jnp.float32]


def test_inner_norm_and_size_see_every_leaf() -> None:
    a, b = vector(1, 2, 3), vector(4, 5, 6)
    assert float(inner(a, b)) == 32
    assert float(norm(vector(2, 3, 6))) == 7
    assert size(a) == 3 and size((a, jnp.zeros((2, 5)))) == 13 and size(()) == 0


def test_a_vector_is_a_pytree() -> None:
    doubled = jax.jit(lambda v: 2 * v)(vector(1, 2, 3))
    assert isinstance(doubled, Vec) and numbers(doubled) == [2, 4, 6]
    assert numbers(jax.grad(lambda v: inner(v, v))(vector(1, 2, 3))) == [2, 4, 6]


def test_keys_follow_from_names_and_not_from_places() -> None:
    data = lambda key: np.asarray(jax.random.key_data(key)).tolist()  # noqa: E731
    root = root_key(5)
    assert data(purpose_key(root, "a")) == data(purpose_key(root_key(5), "a")) != data(purpose_key(root, "b"))
    assert data(purpose_key(root, "a")) != data(purpose_key(root_key(6), "a"))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(SojournError, match=f"seed = {seed} is out of range; give a whole number from 0 to 4294967295"):
        root_key(seed)


class Optioned(Algorithm):
    step: Any = positive(symbol="eta")
    mix: Any = real(0.5, low=0.0, high=1.0)
    steps: int = count(10, symbol="K")
    fewer: int | None = count(None, optional=True)
    shift: Any = real(None, optional=True)
    output: str = choice("last", ("last", "uniform"))
    rule: Any = choice("adam", ("adam", "sgd"), or_function=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": 0}, "step = 0 is out of range; expected a finite number above 0."),
        ({"step": -0.5}, "step = -0.5 is out of range; expected a finite number above 0."),
        ({"step": float("nan")}, "step = nan is out of range"),
        ({"step": float("inf")}, "step = inf is out of range"),
        ({"step": "fast"}, "step = 'fast' is not a number; expected a finite number above 0."),
        ({"step": None}, "step = None is not a number"),
        ({"mix": 1.5}, "mix = 1.5 is out of range; expected a finite number of at least 0 and at most 1."),
        ({"mix": -1e-3}, "mix = -0.001 is out of range"),
        ({"steps": 0}, "steps = 0 is out of range; expected a whole number of at least 1."),
        ({"steps": 2.5}, "steps = 2.5 is not a whole number; expected a whole number of at least 1."),
        ({"steps": "three"}, "steps = 'three' is not a whole number"),
        ({"steps": None}, "steps = None is not a whole number"),
        ({"fewer": 0}, "fewer = 0 is out of range"),
        ({"output": "unifrom"}, "output = 'unifrom' is not known; did you mean \"uniform\"?"),
        ({"output": 3}, "output = 3 is not known; known: last, uniform."),
        ({"output": len}, "is not known"),
        ({"rule": "adma"}, 'did you mean "adam"?'),
    ],
)
def test_values_outside_their_range_are_refused_with_a_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SojournError) as error:
        Optioned(**{"step": 0.1} | given)
    assert message in str(error.value)


def test_values_at_the_edge_of_their_range_are_taken() -> None:
    made = Optioned(step=1e-30, mix=1.0, steps=1, fewer=1, shift=-2, rule=abs)
    assert float(made.mix) == 1 and made.fewer == 1 and float(made.shift) == -2 and made.rule is abs
    assert Optioned(step=0.1, mix=0, steps=np.int64(3)).steps == 3


def test_real_options_are_traced_and_counts_and_choices_are_static() -> None:
    made = Optioned(step=0.1)
    assert len(jax.tree.leaves(made)) == 2
    same = jax.tree.structure(made) == jax.tree.structure(Optioned(step=7, mix=0.1))
    assert same and jax.tree.structure(made) != jax.tree.structure(Optioned(step=0.1, steps=3))
    assert jax.tree.structure(made) != jax.tree.structure(Optioned(step=0.1, output="uniform"))


def test_options_know_their_default_and_symbol() -> None:
    options = options_of(Optioned)
    assert options["step"][1] is REQUIRED and options["steps"][1] == 10
    assert (options["step"][0].symbol, options["steps"][0].symbol) == ("eta", "K")


def test_stacked_and_traced_values_pass_for_a_sweep() -> None:
    stacked = Optioned(step=jnp.asarray([0.1, 0.2]))
    doubled = jax.jit(jax.vmap(lambda a: Optioned(step=2 * a.step, mix=a.mix), in_axes=(_axes(stacked),)))(stacked)
    np.testing.assert_allclose(doubled.step, [0.2, 0.4], rtol=1e-6)


def _axes(algorithm: Any) -> Any:
    return jax.tree.map(lambda leaf: 0 if leaf.ndim else None, algorithm)
