"""What crosses the network: arrays and a few words, in the safetensors format, checked before anything is believed.

A message is eight bytes that give the length of a JSON header, the header, and the arrays' bytes. The header names
every array with its type, shape and place, and holds words under `__metadata__`; ours are `sojourn` (the format's
version), `kind`, and what the kind needs. Nothing in a message is ever executed: no pickle, no names of classes or
functions. `decode` compares all that a message says of itself with what is expected, and only then reads the numbers.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

FORMAT = "1"
_MAX_HEADER = 1 << 20
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "U32": "uint32",
          "U8": "uint8", "BOOL": "bool"}  # fmt: skip
_BLOCK = 1 << 13  # numbers at a time: they stay in the cache, and BLAS starts no threads for so few
Buffer = bytes | bytearray | memoryview
_NAMES = {name: short for short, name in _TYPES.items()}


class Rejected(Exception):  # noqa: N818 - a verdict on a message, not a fault of ours
    """A message that is not what it should be; its words say why, and quote nothing of it."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The arrays that a message must hold, in the order of the tree's leaves."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # (type, shape)

    @staticmethod
    def of(tree: Any) -> "Schema":
        """Of a tree of arrays or of their shapes."""
        return Schema(tuple((np.dtype(leaf.dtype).name, tuple(leaf.shape)) for leaf in jax.tree.leaves(tree)))

    @property
    def num_bytes(self) -> int:
        return sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in self.shapes)


def pieces(kind: str, words: Mapping[str, str], tree: Any = ()) -> list[Buffer]:
    """A message of a kind, words and the arrays of a tree, in pieces to be put together: nothing is copied."""
    header: dict[str, Any] = {"__metadata__": {"sojourn": FORMAT, "kind": kind, **words}}
    arrays, end = [np.asarray(leaf, order="C") for leaf in jax.tree.leaves(tree)], 0
    for i, array in enumerate(arrays):
        place = [end, end := end + array.nbytes]
        header[_name(i)] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *(array.reshape(-1).view(np.uint8).data for array in arrays)]


def encode(kind: str, words: Mapping[str, str], tree: Any = ()) -> bytes:
    """The same in one piece."""
    return b"".join(pieces(kind, words, tree))


def decode(
    payload: Buffer, kind: str, words: frozenset[str], schema: Schema
) -> tuple[dict[str, str], list[np.ndarray]]:
    """The words and the arrays of a message that has exactly these and no others; anything else is rejected."""
    header, start = _header(payload)
    found = _words(header.pop("__metadata__", None), kind, words)
    if header.keys() != {_name(i) for i in range(len(schema.shapes))}:
        raise Rejected("it does not hold the arrays that were asked for")
    arrays, end = [], 0
    for i, (dtype, shape) in enumerate(schema.shapes):
        entry, size = header[_name(i)], np.dtype(dtype).itemsize * int(np.prod(shape))
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise Rejected("an array is not described as the format says")
        if entry["dtype"] != _NAMES[dtype] or entry["shape"] != list(shape):
            raise Rejected("an array has another type or shape than was asked for")
        if not _is_place(entry["data_offsets"], size, len(payload) - start):
            raise Rejected("an array does not lie within the message")
        first = start + entry["data_offsets"][0]
        arrays.append(np.frombuffer(payload, dtype, int(np.prod(shape)), first).reshape(shape))
        end += size
    if start + end != len(payload):
        raise Rejected("it holds more than was asked for")
    return found, arrays


def words_of(payload: Buffer, kind: str, words: frozenset[str]) -> dict[str, str]:
    """The words alone, where they decide which arrays must follow."""
    header, _ = _header(payload)
    return _words(header.pop("__metadata__", None), kind, words)


def whole(words: Mapping[str, str], name: str) -> int:
    """A word that is a whole number of at most 18 digits; -1 for none."""
    text = words[name]
    if text != "-1" and not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Rejected(f"its {name} is no number")
    return int(text)


def check_numbers(arrays: list[np.ndarray], max_norm: float | None = None) -> float:
    """The norm of all floats together; numbers that are not finite, or a norm beyond the bound, are rejected."""
    floats = [a.reshape(-1) for a in arrays if np.issubdtype(a.dtype, np.floating)]
    square = sum(_square(a[first : first + _BLOCK]) for a in floats for first in range(0, a.size, _BLOCK))
    if not math.isfinite(square) and not all(np.isfinite(a).all() for a in floats):
        raise Rejected("it holds numbers that are not finite")
    norm = math.sqrt(square)
    if max_norm is not None and norm > max_norm:
        raise Rejected("its norm is beyond the bound")
    return norm


def _square(block: np.ndarray) -> float:
    wide = block.astype(np.float64)
    return float(wide @ wide)


def _name(number: int) -> str:
    return f"{number:05d}"


def _header(payload: Buffer) -> tuple[dict[str, Any], int]:
    if len(payload) < 8:
        raise Rejected("it is too short")
    length = int.from_bytes(payload[:8], "little")
    if length > _MAX_HEADER or 8 + length > len(payload):
        raise Rejected("its header is longer than it may be")
    try:
        header = json.loads(bytes(payload[8 : 8 + length]), object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError):
        raise Rejected("its header cannot be read") from None
    if not isinstance(header, dict):
        raise Rejected("its header is not a table")
    return header, 8 + length


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _words(found: Any, kind: str, expected: frozenset[str]) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Rejected("it has no words, or some that are not")
    if found.get("sojourn") != FORMAT:
        raise Rejected(f"it is not in version {FORMAT} of the format")
    if found.get("kind") != kind:
        raise Rejected("it is of another kind")
    if found.keys() != expected | {"sojourn", "kind"}:
        raise Rejected("it does not say what was asked for")
    return {name: value for name, value in found.items() if name in expected}


def _is_place(offsets: Any, size: int, room: int) -> bool:
    whole = isinstance(offsets, list) and len(offsets) == 2 and all(type(x) is int for x in offsets)
    return whole and 0 <= offsets[0] <= offsets[1] <= room and offsets[1] - offsets[0] == size
