"""The layers of a model, read off its tree of parameters.

A layer is the `weight` and the `bias` that stand next to each other (attributes of one module, or entries of one dict);
any other array is a layer of its own. Parameters of normalisation belong to no layer: their size says nothing about how
far they may move. They are known by the module that holds them, whose class has a name that ends in "Norm", or, in
other containers, by a weight that is a vector beside a bias of the same length.
"""

from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, keystr


class Layer(NamedTuple):
    """Some leaves of a tree, by their places in `jax.tree.leaves`."""

    name: str
    leaves: tuple[int, ...]


def layer_groups(tree: Any) -> list[Layer]:
    """The layers in the order of their first leaves. Normalisation is in none of them."""
    parents: dict[str, dict[str, int]] = {}
    found: dict[str, tuple[int, ...]] = {}
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    for place, (path, _) in enumerate(paths):
        parent, own = _text(path[:-1]), _name(path[-1]) if path else ""
        if own in ("weight", "bias"):
            parents.setdefault(parent, {})[own] = place
            found[parent] = tuple(parents[parent].values())
        else:
            found[_text(path)] = (place,)
    return [Layer(name, places) for name, places in found.items() if not _normalises(tree, paths, places)]


def single_leaves(tree: Any) -> list[Layer]:
    """Every array, normalisation too, as a layer of its own."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [Layer(_text(path), (place,)) for place, (path, _) in enumerate(paths)]


def _normalises(tree: Any, paths: list[tuple[Any, Any]], places: tuple[int, ...]) -> bool:
    holder = tree
    for key in paths[places[0]][0][:-1]:
        holder = _child(holder, key)
    if type(holder).__name__.endswith("Norm"):
        return True
    shapes = {paths[place][1].shape for place in places}
    return len(places) == 2 and len(shapes) == 1 and len(shapes.pop()) == 1


def _text(path: Any) -> str:
    return keystr(path, simple=True, separator=".")


def _name(key: Any) -> str:
    return str(key.key if isinstance(key, DictKey) else key.name if isinstance(key, GetAttrKey) else "")


def _child(node: Any, key: Any) -> Any:
    match key:
        case GetAttrKey():
            return getattr(node, key.name)
        case DictKey():
            return node[key.key]
        case SequenceKey():
            return node[key.idx]
    return None  # a container that does not say how to reach its parts
