"""Layers read off trees of parameters: modules, dicts, bare arrays, with normalisation left out."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sojourn as sj
from sojourn.core.layers import Layer, layer_groups, single_leaves
from sojourn.models.mlp import mlp


def trained(model: Any) -> Any:
    """The parameters as an algorithm sees them: static parts are None."""
    return eqx.filter(model, eqx.is_inexact_array)


def key() -> jax.Array:
    return jax.random.key(0)


def test_weight_and_bias_of_a_module_are_one_layer() -> None:
    tree = trained(mlp((3,), 2, key(), hidden=[4]))
    assert layer_groups(tree) == [Layer("layers.0", (0, 1)), Layer("layers.1", (2, 3))]
    assert [leaf.shape for leaf in jax.tree.leaves(tree)] == [(4, 3), (4,), (2, 4), (2,)]


def test_what_an_algorithm_sees_inside_a_program_has_the_same_layers() -> None:
    clients = [(np.ones((5, 3)), np.ones((5, 2)))]
    loss = lambda model, batch: jnp.mean((jax.vmap(model)(batch[0]) - batch[1]) ** 2)  # noqa: E731
    x0 = sj.federation(loss, mlp((3,), 2, key(), hidden=[4]), clients).x0
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(layer_groups(x.tree))
        return x

    jax.jit(look)(x0)
    assert [layer.leaves for layer in seen[0]] == [(0, 1), (2, 3)]


class ConvNorm(eqx.Module):
    """A module that has a normalisation in it, and is none in spite of its name."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm


class Affine(eqx.Module):
    """A normalisation under another name."""

    weight: jax.Array
    bias: jax.Array


class Network(eqx.Module):
    blocks: tuple[ConvNorm, ...]
    norms: list[Any]
    last: eqx.nn.Linear
    slope: jax.Array


def network() -> Network:
    blocks = tuple(
        ConvNorm(eqx.nn.Conv2d(1, 4, 3, key=key(), use_bias=b), eqx.nn.GroupNorm(2, 4)) for b in (True, False)
    )
    norms = [eqx.nn.LayerNorm((2, 4)), eqx.nn.RMSNorm(4), Affine(jnp.ones(4), jnp.zeros(4))]
    return Network(blocks, norms, eqx.nn.Linear(4, 2, key=key()), jnp.ones(()))


def test_normalisation_is_in_no_layer_and_what_surrounds_it_is() -> None:
    tree = trained(network())
    found = layer_groups(tree)
    assert [layer.name for layer in found] == ["blocks.0.conv", "blocks.1.conv", "last", "slope"]
    leaves = jax.tree.leaves(tree)
    shapes = [[leaves[i].shape for i in layer.leaves] for layer in found]
    assert shapes == [[(4, 1, 3, 3), (4, 1, 1)], [(4, 1, 3, 3)], [(2, 4), (2,)], [()]]
    assert len(leaves) == 6 + 5 * 2  # five normalisations, a scale and a shift each


def test_a_vector_of_weights_beside_a_single_bias_is_a_layer() -> None:
    """Linear regression with one output; only beside a bias of its own length is a vector taken for a scale."""
    assert layer_groups({"weight": jnp.ones(3), "bias": jnp.ones(())}) == [Layer("", (0, 1))]
    assert layer_groups({"weight": jnp.ones(3)}) == [Layer("", (0,))]
    assert layer_groups({"weight": jnp.ones(3), "bias": jnp.ones(3)}) == []


def test_other_arrays_are_layers_of_their_own() -> None:
    assert layer_groups(jnp.ones(3)) == [Layer("", (0,))]
    tree = {"a": jnp.ones(3), "b": {"c": jnp.ones((1, 2)), "d": None}, "e": [jnp.ones(3), jnp.ones(3)]}
    assert layer_groups(tree) == [Layer("a", (0,)), Layer("b.c", (1,)), Layer("e.0", (2,)), Layer("e.1", (3,))]
    assert layer_groups({}) == []


def test_single_leaves_are_all_of_them() -> None:
    tree = trained(network())
    assert [layer.leaves for layer in single_leaves(tree)] == [(i,) for i in range(len(jax.tree.leaves(tree)))]
