"""How much an old upload counts: the functions s(staleness) of Xie et al., all with s(0) = 1 and decreasing.

Constant: 1. Polynomial: (staleness + 1)^-a. Hinge: 1 up to b, then 1 / (a (staleness - b) + 1).
Paper to code: polynomial's a -> exponent; hinge's a -> slope, b -> threshold.
"""

from typing import Any

import jax
import jax.numpy as jnp

KINDS = ("constant", "polynomial", "hinge")


def staleness_weight(kind: str, staleness: Any, exponent: Any, slope: Any, threshold: Any) -> jax.Array:
    age = jnp.asarray(staleness, jnp.result_type(float))
    if kind == "polynomial":
        return (age + 1) ** -exponent
    if kind == "hinge":
        return jnp.where(age <= threshold, 1.0, 1 / (slope * jnp.maximum(age - threshold, 0) + 1))
    return jnp.ones_like(age)
