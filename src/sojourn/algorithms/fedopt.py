"""FedOpt: local SGD, and at the server any Optax optimizer on the mean displacement taken as a gradient.

Reddi et al., ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi); Hsu et al. 2019 (FedAvgM).
Paper to code: eta_l -> step_size, eta -> server_step_size, beta_1 -> momentum, beta_2 -> second_moment, tau -> epsilon.
Departures: Optax's Adam and Yogi correct the bias of their moments, which the paper's server does not; Adagrad's sum
starts at tau^2 as in the paper, Adam's and Yogi's second moments where Optax starts them; Optax's Adagrad has
sqrt(v + tau) where the paper has sqrt(v) + tau.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import optax

from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.algorithms.descent import descend
from sojourn.core.options import choice, count, positive, real
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


def _takes_a_step_size(name: str) -> bool:
    function = getattr(optax, name)
    if not inspect.isfunction(function) or name.startswith("_"):
        return False
    parameters = inspect.signature(function).parameters
    others = [p for p in parameters.values() if p.name != "learning_rate"]
    return "learning_rate" in parameters and all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in others)


# Cannot stand at a server: those that need more than gradients (a loss to search on, a random key), and a retired one.
_UNFIT = ("lbfgs", "noisy_sgd", "optimistic_adam", "polyak_sgd")
OPTIMIZERS = tuple(
    name for name in dir(optax) if _takes_a_step_size(name) and name not in _UNFIT and not name.startswith("scale_by")
)


class ServerState(eqx.Module):
    x: Vec
    optimizer: Any  # Optax's state


class FedOpt(Algorithm):
    """Local SGD with an Optax optimizer at the server."""

    step_size: Any = positive(symbol="eta_l")
    num_local_steps: int = count(10, symbol="K")
    optimizer: str | Callable[[Any], optax.GradientTransformation] = choice("adam", OPTIMIZERS, or_function=True)
    server_step_size: Any = positive(0.1, symbol="eta")
    momentum: Any = real(0.9, symbol="beta_1", low=0.0, high=1.0)
    second_moment: Any = real(0.99, symbol="beta_2", low=0.0, high=1.0)
    epsilon: Any = positive(1e-3, symbol="tau")

    tunable: ClassVar[bool] = True

    def init_server(self, x0: Vec) -> ServerState:
        return ServerState(x0, self._transformation().init(x0.tree))

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend(oracle, down, self.step_size, self.num_local_steps, key)
        return y - down, memory, {"drift": norm(y - down)}

    def aggregate(self, server: ServerState, up: Vec, context: Context) -> ServerState:
        pseudo_gradient = -up
        change, state = self._transformation().update(pseudo_gradient.tree, server.optimizer, server.x.tree)
        moved = ServerState(server.x + Vec(change), state)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), moved, server)  # Optax promotes narrow models

    def _transformation(self) -> optax.GradientTransformation:
        if callable(self.optimizer):
            return self.optimizer(self.server_step_size)
        function = getattr(optax, self.optimizer)
        offers = {
            "learning_rate": self.server_step_size,
            "momentum": self.momentum,
            "b1": self.momentum,
            "b2": self.second_moment,
            "eps": self.epsilon,
            "initial_accumulator_value": self.epsilon**2,
        }
        wanted = inspect.signature(function).parameters
        return function(**{name: value for name, value in offers.items() if name in wanted})
