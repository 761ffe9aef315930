"""The contenders: what each needs, what it costs per round, and the settings that are tried.

Costs are not typed in: messages and gradients are those of the engine's own accounting, on a federation of two clients
and three numbers, per client and number.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.advice.asked import Budget
from sojourn.advice.rehearsal import Grid
from sojourn.algorithms import ALGORITHMS, Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.driver import make_job
from sojourn.engine.accounting import check_messages, gradients_of, kept, message_shapes, one_memory, wire_of
from sojourn.problems import quadratic

TITLES = {
    "minibatch-sgd": "minibatch SGD", "ac-sa": "AC-SA", "local-sgd": "local SGD", "scaffold": "SCAFFOLD",
    "fedac": "FedAc", "ce-lsgd": "CE-LSGD", "mb-storm": "minibatch STORM", "fedasync": "FedAsync",
    "fedbuff": "FedBuff", "single-machine-sgd": "SGD on one machine", "one-shot-averaging": "one-shot averaging",
    "fed-lamb": "Fed-LAMB", "fedavgm": "FedAvg with server momentum", "fedadam": "FedAdam",
}  # fmt: skip
REHEARSED = ("minibatch-sgd", "ac-sa", "local-sgd", "scaffold", "fedac", "ce-lsgd")
_STEPS = 2.0 ** np.arange(-11.0, 2.25, 0.5)  # times 1/H
_FEW_STEPS = 2.0 ** np.arange(-10.0, 2.0)


def title(name: str) -> str:
    return TITLES.get(name, name)


@dataclasses.dataclass(frozen=True)
class Price:
    """Of one iteration, per client that takes part and per number of the model."""

    vectors: float  # sent, both ways
    gradients: float  # of one batch
    kept: float  # models that a client holds between rounds


@functools.cache
def _tiny() -> Federation:
    return quadratic(np.stack([np.eye(3), 2 * np.eye(3)]), np.ones((2, 3)), noise=0.1)


def price(name: str, options: Mapping[str, Any], num_clients: int) -> Price:
    """Of a steady round with everyone; real numbers do not matter, counts and choices do."""
    return _price(name, _shape(options), num_clients)


def _shape(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Options that shape the program, and stand-ins for the real numbers."""
    return tuple(sorted((key, 0.01 if isinstance(value, float) else value) for key, value in options.items()))


@functools.cache
def _price(name: str, options: tuple[tuple[str, Any], ...], num_clients: int) -> Price:
    method, fed = build(name, dict(options)), _tiny()
    server, memory = method.init_server(fed.x0), one_memory(method, fed.x0)
    vectors = gradients = 0.0
    first = None
    for exchange in method.exchanges():
        share = exchange.who.number(num_clients, num_clients) / num_clients
        wire = wire_of(exchange, fed.clients, server, memory)
        vectors += share * (wire.floats_down + wire.floats_up) / 3
        gradients += share * (gradients_of(exchange, fed.clients, server, memory) or 0)
        first = first or message_shapes(exchange, fed.clients, server, memory)
    return Price(vectors, gradients, kept(memory, [first] if first else []) / 3)


def build(name: str, options: Mapping[str, Any]) -> Algorithm:
    method = ALGORITHMS[name]
    return method.cls(**{**options, **method.settled})


def trips(name: str, options: Mapping[str, Any]) -> int:
    """Of messages in an iteration, which is a round of a history: CE-LSGD's has two."""
    return _trips(name, _shape(options))


@functools.cache
def _trips(name: str, options: tuple[tuple[str, Any], ...]) -> int:
    return max(1, len(build(name, dict(options)).exchanges()))


def refusal(name: str, options: Mapping[str, Any], budget: Budget, num_clients: int) -> str:
    """Why a method does not fit the limits; "" where it does."""
    cost = price(name, options, num_clients)
    if budget.client_vectors is not None and cost.kept > budget.client_vectors:
        return f"a client would keep {cost.kept:g} models between rounds, and may keep {budget.client_vectors}"
    if budget.cohort(num_clients) < num_clients:
        why = _needs_everyone(name, _shape(options))
        if why:
            return why
    return ""


@functools.cache
def _needs_everyone(name: str, options: tuple[tuple[str, Any], ...]) -> str:
    """Asked of the engine: a round of one of two clients."""
    try:
        method = build(name, dict(options))
        make_job(_tiny(), method, 1, engine="compiled", participation=1, eval_every=1, record=())
        server, memory = method.init_server(_tiny().x0), one_memory(method, _tiny().x0)
        for exchange in method.exchanges():
            messages = message_shapes(exchange, _tiny().clients, server, memory)
            check_messages(method, exchange, messages, False)
    except SojournError:
        return "it is only right when everyone takes part"
    return ""


def options_of_setting(grid: Grid, number: int) -> dict[str, Any]:
    """A setting of a grid as the options of its method."""
    step, K, outer = float(grid.steps[number]), int(grid.local_steps[number]), float(grid.outer[number])
    rounded = float(f"{step:.6g}")
    if grid.name == "ac-sa":
        return {"smoothness": float(f"{1 / step:.6g}"), "strong_convexity": outer, "num_local_steps": K}
    second = {"fedac": "strong_convexity", "ce-lsgd": "momentum", "mb-storm": "momentum"}
    extra = {} if grid.name == "minibatch-sgd" else {second.get(grid.name, "outer_step_size"): outer}
    return {"step_size": rounded, "num_local_steps": K, **extra}


def first_grid(name: str, smoothness: float, mu: float, steps: tuple[int, ...], noisy: bool, few: bool = False) -> Grid:
    """The settings that are tried first: step sizes around 1/H for every K."""
    sizes = (_FEW_STEPS if few else _STEPS) / smoothness
    if name in ("minibatch-sgd", "ac-sa") and not noisy:
        steps = (1,)  # K exact gradients at one model are one
    outers = {"ac-sa": (0.0, mu, 4 * mu) if mu else (0.0,), "fedac": (mu or 1e-3 * smoothness,)}
    outers["ce-lsgd"] = (0.1, 0.5, 1.0) if noisy else (1.0,)
    return _product(name, sizes, steps, outers.get(name, (1.0,)))


def second_grid(best: Grid) -> Grid | None:
    """Around the best settings of the first: outer steps, or another strength of acceleration."""
    if best.name in ("local-sgd", "scaffold"):
        factors: tuple[float, ...] = (0.7, 1.3, 1.6, 2.0)
    elif best.name == "fedac":
        factors = (0.0625, 0.25, 0.5, 2.0, 4.0, 16.0)
    else:
        return None
    grids = [(s, K, o * f) for s, K, o in zip(best.steps, best.local_steps, best.outer, strict=True) for f in factors]
    made = Grid(best.name, *(np.array(column) for column in zip(*grids, strict=True)))
    return _allowed(made)


def _product(name: str, sizes: np.ndarray, steps: tuple[int, ...], outers: tuple[float, ...]) -> Grid:
    points = [(size, K, outer) for K in steps for outer in outers for size in sizes]
    return _allowed(Grid(name, *(np.array(column) for column in zip(*points, strict=True))))


def _allowed(grid: Grid) -> Grid:
    """Without settings that FedAc refuses (alpha <= 1)."""
    if grid.name != "fedac":
        return grid
    gamma = np.maximum(np.sqrt(grid.steps / (grid.outer * grid.local_steps)), grid.steps)
    fits = gamma * grid.outer < 0.999
    return Grid(grid.name, grid.steps[fits], grid.local_steps[fits], grid.outer[fits])
