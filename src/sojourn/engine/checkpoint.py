"""Saving and loading a run's state: one file, written whole or not at all, and never mistaken for another run's."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically

_FORMAT = 1


def fingerprint(*parts: Any) -> str:
    """A number that differs when any array or any static part of a run differs."""
    total = 0
    for part in parts:
        leaves, structure = jax.tree.flatten(part)
        total = zlib.crc32(_stable(structure).encode(), total)
        for leaf in leaves:
            array = np.asarray(_plain(leaf))
            if array.dtype.kind not in "biufcV":  # no numbers: an object's bytes would be its address in memory
                array = np.frombuffer(_stable(repr(leaf)).encode(), np.uint8)
            total = zlib.crc32(f"{array.shape}{array.dtype}".encode(), total)
            total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"


def _stable(structure: Any) -> str:
    """An object's text without memory addresses of functions, which change from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(structure))


def _plain(leaf: Any) -> Any:
    """Keys as their numbers; everything else as it is."""
    is_key = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def arrays_of(state: Any) -> list[np.ndarray]:
    """A state's numbers, in the order of its leaves."""
    return [np.asarray(_plain(leaf)) for leaf in jax.tree.leaves(state)]


def state_of(arrays: list[np.ndarray], template: Any) -> Any:
    """The state with these numbers, shaped like `template`."""
    leaves, structure = jax.tree.flatten(template)
    return jax.tree.unflatten(structure, [_restore(a, leaf) for a, leaf in zip(arrays, leaves, strict=True)])


def damage(path: Path, how: str) -> SojournError:
    return SojournError(
        f"the checkpoint {path} is damaged ({how}); it was left as it is: restore it from a copy, or start again in "
        "another --out."
    )


def another_run(path: Path) -> SojournError:
    return SojournError(
        f"the checkpoint {path} belongs to another run (other data, loss, method, seed or placement); it was left: "
        "resume with the configuration it was made with, or choose another --out."
    )


def save_state(path: Path, state: Any, identity: str) -> None:
    leaves = arrays_of(state)
    meta = json.dumps({"format": _FORMAT, "identity": identity, "leaves": len(leaves)})

    def write(beside: Path) -> None:
        with open(beside, "wb") as stream:
            arrays: dict[str, Any] = {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}
            np.savez(stream, allow_pickle=False, meta=np.array(meta), **arrays)

    write_atomically(path, write)


def load_state(path: Path, template: Any, identity: str) -> Any:
    """The saved state, shaped like `template`. Damage and other runs' files are told apart, and left as they are."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as saved:  # NumPy leaves a bad file open
            meta = json.loads(str(saved["meta"]))
            arrays = [saved[f"leaf{i}"] for i in range(meta["leaves"])]
    except Exception as error:  # a flipped byte can make zip and NumPy raise almost anything
        raise damage(path, type(error).__name__) from error
    if (
        meta.get("format") != _FORMAT
        or meta.get("identity") != identity
        or len(arrays) != len(jax.tree.leaves(template))
    ):
        raise another_run(path)
    return state_of(arrays, template)


def check_same_engine(out: Path, before: str | None, now: str) -> None:
    """Engines add up in different orders, so a run ends with the one that it began with."""
    if before is not None and {"auto": "compiled"}.get(before, before) != now:
        raise SojournError(
            f'{out} holds a run of engine "{before}", and this is engine "{now}"; resume it with the engine it had, or '
            "choose another --out."
        )


def _restore(array: np.ndarray, leaf: jax.Array) -> jax.Array:
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl="threefry2x32")
    if array.dtype.kind == "V":  # NumPy stores types of JAX's own, such as bfloat16, as plain bytes
        array = array.view(leaf.dtype)
    return jax.numpy.asarray(array, leaf.dtype)
