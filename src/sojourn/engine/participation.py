"""Who takes part: the round's cohort, drawn without replacement in time that depends on the cohort alone."""

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.base import Who
from sojourn.core.errors import SojournError
from sojourn.core.keys import purpose_key, uniform_index


def cohort_size(participation: int | float | None, num_clients: int) -> int:
    """How many clients a round asks: all for None, a number of clients, or a share of them strictly below one."""
    if participation is None:
        return num_clients
    participation = participation.item() if isinstance(participation, np.generic) else participation
    if isinstance(participation, bool) or not isinstance(participation, (int, float)):
        raise SojournError(f"participation = {participation!r} is not a number; give a count or a share of clients.")
    if isinstance(participation, float):
        if not 0 < participation <= 1:
            raise SojournError(f"participation = {participation:g} is out of range; a share lies between 0 and 1.")
        return max(1, round(participation * num_clients))
    if not 1 <= participation <= num_clients:
        raise SojournError(
            f"participation = {participation} clients per round is out of range; the federation has {num_clients}."
        )
    return participation


def draw_cohort(key: jax.Array, num_clients: int, size: int) -> jax.Array:
    """`size` different clients, uniform over all such sets, sorted, by Floyd's method: `size` draws, no permutation.

    Sorted, so that the order in which answers are summed does not depend on the order of the draw.
    """
    if size == num_clients:
        return jnp.arange(num_clients, dtype=jnp.int32)

    def place(i: jax.Array, chosen: jax.Array) -> jax.Array:
        last = num_clients - size + i
        guess = draws[i]
        return chosen.at[i].set(jnp.where(jnp.any(chosen == guess), last, guess))

    tops = num_clients - size + jnp.arange(size, dtype=jnp.int32) + 1  # draw i is uniform on 0..N-size+i
    if num_clients < 2**16:
        draws = uniform_index(key, (size,), tops)
    else:  # float32 has too few bits for a large population
        draws = jax.random.randint(key, (size,), 0, tops, jnp.int32)
    empty = jnp.full((size,), -1, jnp.int32)
    return jnp.sort(jax.lax.fori_loop(0, size, place, empty))


def number_of_members(who: Who, num_clients: int, cohort: int) -> int:
    """How many take part in an exchange."""
    return {Who.ALL: num_clients, Who.COHORT: cohort, Who.ONE: 1, Who.FIRST: 1}[who]


def members(who: Who, round_key: jax.Array, num_clients: int, cohort: int, purpose: str) -> jax.Array:
    """The ids of those taking part in an exchange. The cohort depends on the round alone; ONE on the purpose too."""
    if who is Who.ALL:
        return jnp.arange(num_clients, dtype=jnp.int32)
    if who is Who.FIRST:
        return jnp.zeros(1, jnp.int32)
    if who is Who.ONE:
        return draw_cohort(purpose_key(purpose_key(round_key, "one"), purpose), num_clients, 1)
    return draw_cohort(purpose_key(round_key, "cohort"), num_clients, cohort)
