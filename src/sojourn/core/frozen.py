"""Arrays of a model that are not trained."""

import equinox as eqx
import jax


class Frozen(eqx.Module):
    """Holds an array that belongs to a model and stays as it is: no gradient, no message and no server sees it."""

    value: jax.Array

    def __call__(self) -> jax.Array:
        return jax.lax.stop_gradient(self.value)


def is_frozen(node: object) -> bool:
    return isinstance(node, Frozen)
