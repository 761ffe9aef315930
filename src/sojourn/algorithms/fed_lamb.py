"""Fed-LAMB: Fed-AMS whose local steps move each layer in proportion to its norm.

The Fed-LAMB paper, Algorithm 1; after LAMB (You et al., ICLR 2020). For every layer l of a client, with
p = m / (sqrt(vhat) + eps):
    u = p + lambda theta,   theta^l = theta^l - alpha phi(||theta^l||) u^l / ||u^l||.
Paper to code: as in Fed-AMS, whose module says what print leaves open for both; lambda -> weight_decay; phi -> the
identity, cut off at min_scale and max_scale where they are given (the theory wants bounds, the experiments have none).
A step moves layer l by exactly alpha phi(||theta^l||); with lambda = 0 the gradient's scale does not matter at all.

Also left open, or different here:
- layers: "layer" keeps weight and bias of a layer together and leaves normalisation out; "leaf" takes every array for a
  layer of its own (Optax's lamb does).
- Normalisation, and a layer whose phi is 0 (zero weights would never move), take the plain AMSGrad step of ratio one,
  without weight decay, over the larger of vhat and the client's own v (over vhat_0 = 1e-8 alone it would be 1e4 alpha
  m). A layer whose u is 0 stays.
- bias_correction: "updates". For layers it only matters when lambda is not 0.
- initial_second_moment: 1e-8. A layer's step does not feel its size: round one is normalised momentum.
- lambda is weight decay (the text: a scale of the gradients) and may be 0, as in the paper's own grid.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sojourn.algorithms.amsgrad import (
    ModelAndMoment,
    Moments,
    check_decays,
    combine,
    maximum,
    ratio,
    start_server,
    walk_with_moments,
    warm_start,
)
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info
from sojourn.core.errors import SojournError
from sojourn.core.layers import Layer, layer_groups, single_leaves
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class FedLAMB(Algorithm):
    """Local AMSGrad with steps in proportion to the layers' norms."""

    step_size: Any = positive(symbol="alpha")
    num_local_steps: int = count(10, symbol="T")
    weight_decay: Any = real(0.0, symbol="lambda", low=0.0)
    min_scale: Any = real(0.0, symbol="phi_m", low=0.0)
    max_scale: Any = positive(None, symbol="phi_M", optional=True)
    layers: str = choice("layer", ("layer", "leaf"))
    momentum: Any = real(0.9, symbol="beta_1", low=0.0, high=1.0)
    second_moment: Any = real(0.999, symbol="beta_2", low=0.0, high=1.0)
    epsilon: Any = positive(1e-8, symbol="epsilon")
    initial_second_moment: Any = positive(1e-8, symbol="vhat_0")
    warm_start: str = choice("none", ("none", "gradients"))
    moments: str = choice("carry", ("carry", "reset"))
    bias_correction: str = choice("updates", ("none", "updates"))
    gradients: str = choice("fresh", ("fresh", "once"))
    step_decay: str = choice("none", ("none", "sqrt"))

    layerwise: ClassVar[bool] = True

    def __check_init__(self) -> None:
        check_decays(self)
        low, high = self.min_scale, self.max_scale
        known = all(isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer) for a in (low, high))
        if known and bool(jnp.any(low > high)):
            raise SojournError(f"min_scale = {low} is above max_scale = {high}; phi is kept between them.")

    def init_server(self, x0: Vec) -> ModelAndMoment:
        return start_server(self, x0)

    def init_client(self, x0: Vec) -> Any:
        return Moments.empty(x0) if self.moments == "carry" else ()

    def opening(self) -> tuple[Exchange, ...]:
        return warm_start(self)

    def broadcast(self, server: ModelAndMoment) -> ModelAndMoment:
        return server

    def local(
        self, down: ModelAndMoment, memory: Any, oracle: Oracle, key: jax.Array
    ) -> tuple[ModelAndMoment, Any, Info]:
        alpha = self.step_size if down.step_size is None else down.step_size
        layers = (layer_groups if self.layers == "layer" else single_leaves)(down.x.tree)

        def move(y: Vec, m: Vec, v: Vec) -> Vec:
            plain = ratio(m, maximum(down.v, v), self.epsilon)
            return y - alpha * self._scaled(layers, y, ratio(m, down.v, self.epsilon), plain)

        y, v, memory = walk_with_moments(self, move, oracle, down.x, memory, key)
        return ModelAndMoment(y - down.x, v), memory, {"drift": norm(y - down.x)}

    def aggregate(self, server: ModelAndMoment, up: ModelAndMoment, context: Context) -> ModelAndMoment:
        return combine(self, server, up, context)

    def _scaled(self, layers: list[Layer], y: Vec, p: Vec, plain: Vec) -> Vec:
        """phi(||y^l||) u^l / ||u^l|| layer by layer; `plain` elsewhere and where phi is 0."""
        (ys, structure), ps, direction = jax.tree.flatten(y), jax.tree.leaves(p), jax.tree.leaves(plain)
        for _, places in layers:
            theta = Vec([ys[i] for i in places])
            u = Vec([ps[i] for i in places]) + self.weight_decay * theta
            phi, length = self._phi(norm(theta)), norm(u)
            scaled = u * (phi / jnp.where(length == 0, 1, length))
            for i, leaf in zip(places, scaled.tree, strict=True):
                direction[i] = jnp.where(phi == 0, direction[i], leaf)
        return jax.tree.unflatten(structure, direction)

    def _phi(self, length: jax.Array) -> jax.Array:
        scale = jnp.maximum(length, self.min_scale)
        return scale if self.max_scale is None else jnp.minimum(scale, self.max_scale)
