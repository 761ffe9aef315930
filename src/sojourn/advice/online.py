"""Advice for streams of costs (thesis, chapter 7): which feedback calls for which method, and whether to communicate.

Paper to code: d -> dimension, M -> num_clients, K -> num_local_steps, G -> lipschitz, zeta-hat -> cost_heterogeneity.
"""

import dataclasses
import math
from typing import Annotated, Literal

from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.signature import options_checked
from sojourn.theory.statement import stated

Count = Annotated[int, Field(ge=1)]


@dataclasses.dataclass(frozen=True)
class OnlineAdvice:
    """What to play."""

    method: str  # in sojourn.online.METHODS
    num_local_steps: int
    communicate: bool
    sentences: tuple[str, ...]


@options_checked
def advise_online(
    *,
    dimension: Count,
    num_clients: Count,
    feedback: Literal["gradient", "one-point", "two-point"],
    num_local_steps: Count = 1,
    lipschitz: Annotated[float, Field(gt=0)] = 1.0,
    cost_heterogeneity: Annotated[float | None, Field(ge=0)] = None,
    costs: Literal["linear", "smooth", "lipschitz"] = "lipschitz",
) -> OnlineAdvice:
    """The method for a kind of feedback: full gradients, one value of a cost per step, or two."""
    d, M, K = dimension, num_clients, num_local_steps
    if cost_heterogeneity is not None and cost_heterogeneity > 2 * lipschitz:
        raise SojournError(
            f"cost_heterogeneity = {cost_heterogeneity:g} is more than twice lipschitz = {lipschitz:g}, which is the "
            "most that gradients can differ."
        )
    if feedback == "gradient":
        return OnlineAdvice("ogd", K, False, (
            "Every machine plays online gradient descent alone: with full gradients no method that communicates has "
            "less regret in the worst case (Theorem 17).",
        ))  # fmt: skip
    if feedback == "one-point":
        return _one_point(d, M, K, costs)
    return _two_point(d, M, K, lipschitz, cost_heterogeneity, costs)


def _one_point(d: int, M: int, K: int, costs: str) -> OnlineAdvice:
    said = ["If a cost can be asked for at two points, do that: FedOSGD has far less regret."]
    if costs != "linear":
        said.append("The promise for one value per step is for linear costs only (Theorem 19).")
    if d < math.sqrt(K):
        longest = max(1, d**2)
        said.append(
            f"With d = {d} below sqrt(K) = {math.sqrt(K):.3g} communicating does not pay; it would with K of at most "
            f"d^2 = {longest}."
        )
        return OnlineAdvice("one-point-ogd", K, False, tuple(said))
    gain = (
        "the full factor sqrt(M) is to be had" if d >= M * math.sqrt(K) else "less than a factor sqrt(M) is to be had"
    )
    return OnlineAdvice("fedposgd", K, True, (f"FedPOSGD: d is at least sqrt(K), and {gain}.", *said))


def _two_point(d: int, M: int, K: int, G: float, zeta: float | None, costs: str) -> OnlineAdvice:
    if costs == "lipschitz" or zeta is None:
        longest = max(1, math.isqrt(d))
        rule = f"d >= K^2, so K of at most {longest} (Theorem 20)"
    elif zeta == 0:
        longest, rule = K, "without heterogeneity local steps cost nothing (Corollary 1)"
    else:
        free = stated("corollary_1_local_steps", num_clients=M, dimension=d, lipschitz=G, cost_heterogeneity=zeta)
        longest = max(1, int(min(free, 1e9)))
        rule = f"K of at most {longest} keeps the best rate (Corollary 1)"
    chosen = min(K, longest)
    said = f"FedOSGD with K = {chosen}: {rule}."
    more = "" if chosen == K else f" The K = {K} asked for is more than that."
    return OnlineAdvice("fedosgd", chosen, M > 1, (said + more,))
