"""The weights' law of Song et al., "FedAvg converges to zero training loss linearly …", appendix B.2.

W_1 has entries N(0, 1/d_in^2), W_2 entries N(0, kappa) with a tiny kappa, and W_l = zeta [I; 0] for l >= 3, so that
all singular values of W_l equal zeta. The paper names neither kappa nor zeta. Matrices are (inputs, outputs).
Paper to code: kappa -> second_variance, zeta -> identity_scale.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import Field

from sojourn.core.errors import SojournError

SECOND_VARIANCE = 1e-4  # entries of about a hundredth
IDENTITY_SCALE = 1.0

SecondVariance = Annotated[
    float | None, Field(ge=0, le=1, description=f"variance of W_2's entries with the wide start ({SECOND_VARIANCE:g})")
]
IdentityScale = Annotated[
    float | None, Field(gt=0, description=f"zeta of W_l = zeta [I; 0], l >= 3 ({IDENTITY_SCALE:g})")
]


def first_matrix(inputs: int, width: int, key: jax.Array) -> jax.Array:
    """W_1: all that the server must draw before it hears from the clients."""
    return jax.random.normal(key, (inputs, width), jnp.result_type(float)) / inputs


def later_matrices(
    sizes: Sequence[int], key: jax.Array, second_variance: float | None = None, identity_scale: float | None = None
) -> list[jax.Array]:
    """W_2 … W_L for layers of these sizes (inputs and outputs included)."""
    variance = SECOND_VARIANCE if second_variance is None else second_variance
    scale = IDENTITY_SCALE if identity_scale is None else identity_scale
    if any(a < b for a, b in itertools.pairwise(sizes[2:])):
        raise SojournError(
            f"the wide start makes W_3 and later zeta [I; 0], and needs layers that do not grow after the second; "
            f"these have {list(sizes[1:])} units, outputs included."
        )
    second = variance**0.5 * jax.random.normal(key, (sizes[1], sizes[2]), jnp.result_type(float))
    return [second, *(scale * jnp.eye(a, b, dtype=second.dtype) for a, b in itertools.pairwise(sizes[2:]))]


def wide_matrices(
    sizes: Sequence[int], key: jax.Array, second_variance: float | None = None, identity_scale: float | None = None
) -> list[jax.Array]:
    """W_1 … W_L at once, for a start that asks nothing of the clients."""
    first, rest = jax.random.split(key)
    return [first_matrix(sizes[0], sizes[1], first), *later_matrices(sizes, rest, second_variance, identity_scale)]
