"""Ways to choose a method for a federation without trying all of them, and what each costs before the run begins.

A strategy is told what a user has: the federation, the loss to reach and the most rounds. It answers with an algorithm,
and with the rounds of communication that choosing took; these are reported apart from the run's.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from sojourn.advice import Budget, advise
from sojourn.algorithms import ACSA, FedAvg, Scaffold
from sojourn.algorithms import self_tuned as tuning_itself
from sojourn.algorithms.base import Algorithm
from sojourn.algorithms.self_tuned import FIRST_LOCAL_STEPS
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.recipes.advise_grid import (
    DEFAULT_STEPS,
    LOCAL_STEPS,
    Aim,
    arrival,
    floats_per_round,
    losses_of,
    never,
    swept,
)
from sojourn.tuning import starting_step

ADVICE_SEED = 1000  # of what is measured before the run, whose seeds are others


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a strategy chose, and the rounds that choosing took."""

    algorithm: Algorithm
    label: str
    spent: float = 0.0


Strategy = Callable[[Aim], Choice]


def advice(aim: Aim) -> Choice:
    """`advise` where nothing is known of the problem: all that it uses it measures, or tries."""
    unknown = dataclasses.replace(aim.federation, facts=Facts(num_clients=aim.federation.num_clients))
    budget = Budget(rounds=aim.max_rounds, local_steps=max(LOCAL_STEPS))
    given = advise(unknown, target=("loss", aim.target), budget=budget, seed=ADVICE_SEED)
    if given.best is None:
        raise SojournError(f"{aim.declared.name}: the start meets the target, which a study cannot use.")
    tried = float((given.trial or {}).get("rounds", 0.0))
    return Choice(given.algorithm, given.best.words(), float(given.diagnosis.cost.rounds) + tried)


def fixed(aim: Aim) -> Choice:
    """FedAvg with ten local steps of 1/H (of 1 where H is not known)."""
    return Choice(FedAvg(1 / aim.smoothness, DEFAULT_STEPS), f"FedAvg, K = {DEFAULT_STEPS}, step 1/H")


def accelerated(aim: Aim) -> Choice:
    """AC-SA by the constants: L = H, or 1; with noise, gradients pooled over the grid's largest K."""
    pooled = max(LOCAL_STEPS) if aim.declared.noisy else 1
    return Choice(ACSA(aim.smoothness, 0.0, pooled), f"AC-SA, K = {pooled}, L = H")


def self_tuned(aim: Aim) -> Choice:
    """SCAFFOLD that sets its own step and K, from a step of one over the curvature at the start."""
    return _tuning_itself(aim, Scaffold)


def self_tuned_fedavg(aim: Aim) -> Choice:
    """FedAvg that does the same: on federations for development it did worse, so no claim is about it."""
    return _tuning_itself(aim, FedAvg)


def _tuning_itself(aim: Aim, method: Any) -> Choice:
    start = starting_step(aim.federation, ADVICE_SEED).value
    tuned = tuning_itself(method(start, FIRST_LOCAL_STEPS), max_local_steps=max(LOCAL_STEPS))
    return Choice(tuned, f"{method.__name__}, tuning itself from K = {FIRST_LOCAL_STEPS}, step {start:.3g}", 1.0)


ADVICE, TUNED = "advice", "self-tuned"
STRATEGIES: Mapping[str, Strategy] = {
    ADVICE: advice,
    TUNED: self_tuned,
    "self-tuned FedAvg": self_tuned_fedavg,
    "FedAvg, K = 10, step 1/H": fixed,
    "AC-SA by the constants": accelerated,
}


def follow(aim: Aim, strategy: Strategy) -> dict[str, Any]:
    """What a strategy chose, when that arrived, and what choosing cost, as plain values that can be kept."""
    since = time.perf_counter()
    try:
        chosen = strategy(aim)
    except SojournError as error:  # a refusal is an answer too, and not a good one
        return {**dataclasses.asdict(never(f"refused: {error}")), "spent": 0.0, "seconds": time.perf_counter() - since}
    seconds = time.perf_counter() - since
    iterations = max(1, aim.max_rounds // len(chosen.algorithm.exchanges()))
    history = swept(aim, [chosen.algorithm], iterations)
    losses = losses_of(history, len(aim.seeds), iterations)
    found = arrival(chosen.label, chosen.algorithm, losses, floats_per_round(history)[0], aim)
    return {**dataclasses.asdict(found), "spent": chosen.spent, "seconds": round(seconds, 2)}
