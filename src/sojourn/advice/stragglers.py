"""Stragglers as a user states them, in the words of virtual time: a clock, and a schedule of uploads.

`slowest` is the slowest client's time over the median's: a tenth of the clients, one at least, takes so much longer for
a gradient, for good. `staleness` is how late an answer may be: staler ones are thrown away. Staleness alone says
nothing of machines: then ages are drawn, as by Xie et al., and one upload comes after the other.
"""

from typing import Any

from sojourn.advice.asked import Budget
from sojourn.traces import Constant, Devices, SpeedClasses, Trace, Work, busy, uniform_staleness

_SLOW_SHARE = 10  # one client in so many is slow


def num_slow(num_clients: int) -> int:
    return max(1, num_clients // _SLOW_SHARE)


def time_tables(budget: Budget, num_clients: int) -> dict[str, Any]:
    """[clock] and [schedule] of a config."""
    if budget.slowest is None:
        return {"schedule": {"name": "uniform-staleness", "max_staleness": budget.staleness or 0}}
    schedule: dict[str, Any] = {"name": "busy"}
    if budget.staleness is not None:
        schedule["max_staleness"] = budget.staleness
    return {"clock": {"name": "classes", **_classes(budget.slowest, num_clients)}, "schedule": schedule}


def trace_of(budget: Budget, num_clients: int, uploads: int, seed: int) -> Trace:
    """The same as a trace, of visits that take the median client a second."""
    if budget.slowest is None:
        return uniform_staleness(num_clients, uploads, max_staleness=budget.staleness or 0, seed=seed)
    devices = Devices(SpeedClasses(**_classes(budget.slowest, num_clients)), Constant(0.0))
    return busy(num_clients, uploads, devices, Work(steps=1), max_staleness=budget.staleness, seed=seed)


def waiting(budget: Budget, num_clients: int) -> float:
    """How much longer a round lasts for who waits for all of a cohort, in the median client's time."""
    if budget.slowest is None:
        return 1.0
    quick = 1 - num_slow(num_clients) / num_clients
    met = 1.0 if budget.cohort(num_clients) == num_clients else 1 - quick ** budget.cohort(num_clients)
    return 1 + met * (budget.slowest - 1)


def _classes(slowest: float, num_clients: int) -> dict[str, Any]:
    slow = num_slow(num_clients)
    return {"seconds": [1.0, float(slowest)], "shares": [float(num_clients - slow), float(slow)]}
