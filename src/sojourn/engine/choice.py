"""Which engine runs, when nobody says: the compiled one, or worker processes where these surely pay.

The rule looks at what is to be computed and at the machine, never at a clock: the same call on the same machine gives
the same bits.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Algorithm, Who
from sojourn.core.errors import SojournError
from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import root_key
from sojourn.engine.accounting import gradients_of, one_memory
from sojourn.engine.compiled import Compiled
from sojourn.engine.processes import Processes, available, cores
from sojourn.engine.rounds import Plan, start
from sojourn.engine.sharded import pack

# Measured on two free cores (benchmarks/README.md): a small convolutional network, 0.2 s per exchange, gains 1.2 times;
# dense ones gain nothing, as their products keep both cores busy by themselves. So only large exchanges are divided;
# starting and compiling workers takes some 5 s, so a run should last at least 40 s.
_OPERATIONS_OF_AN_EXCHANGE = 3e9
_OPERATIONS_OF_A_RUN = 1e12
_MOST_WORKERS = 16  # each holds JAX, some hundred MB, and the server's side of a round is one core's work


@dataclasses.dataclass(frozen=True)
class Auto(Compiled):
    """The compiled engine, or worker processes where these are faster (the default)."""

    def chosen(
        self, federation: Federation, algorithm: Algorithm, rounds: int, plan: Plan, kept: Mapping[str, Any] | None
    ) -> tuple[Compiled | Processes, str]:
        """The engine, and why. `kept` is the entry of a run that goes on, which stays with the engine that it had."""
        compiled = Compiled(self.placement)
        if kept is not None:
            if kept.get("name") == Processes.name:
                return Processes(workers=kept.get("workers")), "the run began with it"
            return compiled, "the run began with it"
        why = self._against_processes(federation, algorithm, rounds, plan)
        if why:
            return compiled, why
        workers = min(cores(), plan.cohort, _MOST_WORKERS)
        return Processes(workers=workers), f"{workers} cores, and enough work for all of them"

    def _against_processes(self, federation: Federation, algorithm: Algorithm, rounds: int, plan: Plan) -> str:
        """Why worker processes would not pay; nothing if they would."""
        if self.placement != "auto":
            return "a placement was asked for"
        if jax.default_backend() != "cpu":
            return "the work is done by an accelerator"
        if not available() or cores() < 2:
            return "there is one core"
        if plan.cohort < 2 or any(exchange.who in (Who.ONE, Who.FIRST) for exchange in algorithm.exchanges()):
            return "clients are asked one at a time"
        try:
            work = [operations(federation, algorithm, number, plan.cohort) for number in _numbers(algorithm)]
            if min(work) < _OPERATIONS_OF_AN_EXCHANGE or rounds * sum(work) < _OPERATIONS_OF_A_RUN:
                return "too little work to divide"
            _check_can_travel(federation, algorithm, plan)
        except SojournError:
            return "the work cannot be sent to another process"
        return ""


def _numbers(algorithm: Algorithm) -> range:
    return range(len(algorithm.exchanges()))


def operations(federation: Federation, algorithm: Algorithm, number: int, cohort: int) -> float:
    """Operations on numbers in one exchange, by XLA's count for one gradient; 0 where clients do unlike work."""
    exchange, clients = algorithm.exchanges()[number], federation.clients
    server = jax.eval_shape(algorithm.init_server, federation.x0)
    gradients = gradients_of(exchange, clients, server, one_memory(algorithm, federation.x0))
    if gradients is None:
        return 0.0
    answers = clients.num_clients if exchange.who is Who.ALL else cohort
    return answers * gradients * _operations_of_a_gradient(federation, clients)


def _operations_of_a_gradient(federation: Federation, clients: Clients) -> float:
    def gradient(clients: Clients, x: Any, client: jax.Array, key: jax.Array) -> Any:
        oracle = clients.oracle(client)
        return oracle.grad(x, oracle.draw(key))

    lowered = jax.jit(gradient).lower(clients, federation.x0, jnp.zeros((), jnp.int32), root_key(0))
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))


def _check_can_travel(federation: Federation, algorithm: Algorithm, plan: Plan) -> None:
    """Refused is what calls back into Python."""
    state = jax.eval_shape(lambda root: start(algorithm, federation, root), root_key(0))
    pack(algorithm, federation.clients, state, plan, Processes(workers=2).blocks(federation.num_clients))
