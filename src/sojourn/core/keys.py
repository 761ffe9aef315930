"""Random keys: one root per run, folded by round, by client and by a named purpose, never by position.

Whatever the engine, the cohort's order or the length of a chunk, the same client in the same round draws the same
numbers; that is why engines agree and a resumed run is the run.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError


def root_key(seed: int) -> jax.Array:
    """The root of a run. Only threefry: other generators draw differently under vmap, so engines would disagree."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise SojournError(f"seed = {seed!r} is out of range; give a whole number from 0 to {2**32 - 1}.")
    return jax.random.key(int(seed), impl="threefry2x32")


def purpose_key(key: jax.Array, purpose: str) -> jax.Array:
    """A key for one named use; the name, not its place in a list, decides the numbers."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def server_key(round_key: jax.Array, purpose: str, number: int = 0) -> jax.Array:
    """The server's key when it takes the answers of an exchange, the round's `number`-th. In virtual time an upload's
    number takes the round's place."""
    return jax.random.fold_in(purpose_key(purpose_key(round_key, "server"), purpose), number)


def uniform_index(key: jax.Array, shape: tuple[int, ...], below: jax.Array | int) -> jax.Array:
    """Indices uniform on 0..below-1. One hash per index; the bias is at most below / 2**23."""
    u = jax.random.uniform(key, shape, jnp.float32)  # float32 in every precision: the same draws
    return jnp.minimum((u * jnp.asarray(below, jnp.float32)).astype(jnp.int32), jnp.asarray(below, jnp.int32) - 1)
