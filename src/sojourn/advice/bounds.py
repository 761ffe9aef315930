"""What the theorems predict: rounds to a target, in orders of magnitude, and the term that decides.

Every number comes from a statement of `sojourn.theory`, constants one, logarithms as there: the rounds are the least
at which the statement's terms add up to no more than the error asked for. Estimates that are lower bounds of the true
constants are doubled first.

What an error is depends on the setting: a squared distance to x* (strongly convex), a suboptimality (convex), a squared
gradient norm (non-convex). A target of another kind is translated by smoothness and strong convexity.
Two readings of ours: accelerated minibatch SGD for a strongly convex objective is equation 3.4 in stages, each of which
halves the squared distance; and of SCAFFOLD no more is claimed than table 6.1 does, the rate of minibatch SGD.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.diagnosis.findings import Diagnosis
from sojourn.theory.rates import dominant
from sojourn.theory.statement import STATEMENTS, missing_facts, stated

SAFETY = 2.0
ROUNDING = 1e-5  # of a constant's scale: less is zero
_ROUNDS = np.geomspace(1.0, 1e12, 6001)  # 0.5 % apart
WORSE_WHEN_LARGE = (
    "smoothness", "third_order_smoothness", "hessian_heterogeneity", "optima_heterogeneity", "optima_distance",
    "gradient_heterogeneity", "noise", "noise4",
)  # fmt: skip
TERMS = {
    "optimization": "the way from the start",
    "noise": "the gradients' noise",
    "oracle": "the gradients' noise",
    "local_noise": "noise that local steps gather",
    "hessian_noise": "noise that differing curvature (tau) spreads",
    "optima_distance": "the clients' optima away from x* (phi_*)",
    "optima_heterogeneity": "the clients' optima away from each other (zeta_*)",
    "hessian_heterogeneity": "differing curvature (tau)",
    "heterogeneity": "differing curvature (tau)",
    "least": "differing curvature (tau)",
    "curvature": "curvature that changes (Q)",
    "curvature_noise": "curvature that changes (Q), and noise",
    "drift": "noise that local steps gather",
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A prediction: an order of magnitude."""

    rounds: float  # inf where the statement never promises the target
    term: str  # that dominates, by its name in the statement
    statement: str  # the function in sojourn.theory
    source: str  # "Theorem 7, rate"
    assumption: str  # that carries it
    met: bool = True  # the assumption, by the measures; if not, this is no prediction

    def words(self) -> str:
        if not self.met:
            return unmet(self.assumption)
        return f"{TERMS.get(self.term, self.term)} ({self.source})"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which statement speaks of a method in a setting."""

    statement: str
    assumption: str
    also: str = ""  # a statement whose "least" is a lower limit of the rounds
    trips: int = 1  # of messages in an iteration, which is what the statement counts
    alike: bool = False  # only where clients do not differ


def unmet(assumption: str) -> str:
    return f"its assumption, {assumption}, is not met"


_STAR = "client optima and curvature as far apart everywhere as they were measured (assumptions 9 to 11)"
RULES: dict[str, dict[str, Rule]] = {
    "strongly convex": {
        "minibatch-sgd": Rule("rate_minibatch", "strong convexity; clients may differ as they like"),
        "ac-sa": Rule("rate_3_4_minibatch", "strong convexity; clients may differ as they like"),
        "local-sgd": Rule("rate_theorem_5", _STAR, "rounds_5_2"),
        "scaffold": Rule("rate_minibatch", "strong convexity; local steps are not credited"),
        "fedac": Rule("rate_3_6", "identical clients", alike=True),
        "ce-lsgd": Rule("rate_theorem_26", "smoothness and curvature (tau) as measured, not convexity", trips=2),
    },
    "convex": {
        "minibatch-sgd": Rule("rate_3_2_minibatch", "convexity; clients may differ as they like"),
        "ac-sa": Rule("rate_3_4_minibatch", "convexity; clients may differ as they like"),
        "local-sgd": Rule("rate_theorem_12", "gradients that differ by H zeta at most, on the way (assumption 12)"),
        "scaffold": Rule("rate_3_2_minibatch", "convexity; local steps are not credited"),
        "fedac": Rule("rate_3_6", "identical clients", alike=True),
        "ce-lsgd": Rule("rate_theorem_26", "smoothness and curvature (tau) as measured, not convexity", trips=2),
    },
    "non-convex": {
        "minibatch-sgd": Rule("rate_minibatch_sgd_nonconvex", "smoothness"),
        "mb-storm": Rule("rate_theorem_13", "smoothness, and the same samples at two models"),
        "scaffold": Rule("rate_minibatch_sgd_nonconvex", "smoothness; local steps are not credited"),
        "ce-lsgd": Rule("rate_theorem_26", "curvature (tau) as measured, and the same samples at two models", trips=2),
    },
}  # fmt: skip


def constants_of(diagnosis: Diagnosis, safe: bool = True) -> Facts:
    """The measures as theory takes them: lower bounds doubled, and what follows from them filled in."""
    names = {field.name for field in dataclasses.fields(Facts)}
    found: dict[str, Any] = {}
    for name, measure in diagnosis.measures.items():
        if name in names and np.isfinite(measure.value):
            doubled = safe and measure.kind == "lower bound" and name in WORSE_WHEN_LARGE
            found[name] = SAFETY * measure.value if doubled else measure.value
    found["num_clients"] = diagnosis.num_clients
    found.setdefault("noise", 0.0)
    found.setdefault("noise4", found["noise"])
    found.setdefault("third_order_smoothness", 0.0)
    facts = Facts(**{name: value for name, value in found.items() if not name.startswith("x_")})
    if facts.hessian_heterogeneity is not None and facts.smoothness is not None:
        tau = min(facts.hessian_heterogeneity, 2 * facts.smoothness)  # it cannot be more
        facts = dataclasses.replace(facts, hessian_heterogeneity=tau)
    if facts.start_gap is None and None not in (facts.smoothness, facts.start_distance):
        assert facts.smoothness is not None and facts.start_distance is not None
        facts = dataclasses.replace(facts, start_gap=facts.smoothness * facts.start_distance**2 / 2)
    return dataclasses.replace(facts, gradient_heterogeneity=_zeta_on_the_way(facts))


def _zeta_on_the_way(facts: Facts) -> float | None:
    """zeta where the run goes, a ball of B around x* (proposition 3 divided by H), where it was not measured."""
    known = (facts.smoothness, facts.hessian_heterogeneity, facts.optima_distance, facts.start_distance)
    if facts.gradient_heterogeneity is not None or any(value is None for value in known) or not facts.smoothness:
        return facts.gradient_heterogeneity
    smoothness, tau, phi, reach = (float(value or 0) for value in known)
    return 2 * phi + tau / smoothness * (reach + phi)


def error_asked(setting: str, kind: str, value: float, facts: Facts) -> float:
    """The error that the setting's statements bound, for a target; not positive where it cannot be reached."""
    H, mu, B = facts.smoothness or 1.0, facts.strong_convexity or 0.0, facts.start_distance or 1.0
    gap = value - (facts.f_star or 0.0)
    if setting == "strongly convex":
        return {"distance": value**2, "loss": 2 * gap / H, "grad": (value / H) ** 2}[kind]
    if setting == "convex":
        return {"distance": H * value**2 / 2, "loss": gap, "grad": value * B if mu == 0 else value**2 / (2 * mu)}[kind]
    return {"distance": (H * value) ** 2, "loss": 2 * H * gap, "grad": value**2}[kind]


def bound(name: str, setting: str, facts: Facts, num_local_steps: int, error: float) -> Bound | None:
    """Rounds of a method with K local steps to an error; None where no statement speaks, or its facts are unknown."""
    rule = RULES[setting].get(name)
    if rule is None or not error > 0 or facts.smoothness == 0:
        return None  # where no curvature shows, statements about smooth losses would promise all in a round
    chosen, also = rule.statement, rule.also
    if chosen == "rate_theorem_5" and _quadratic_like(facts):
        chosen, also = "rate_theorem_7", "rounds_5_3"
        facts = dataclasses.replace(facts, third_order_smoothness=0.0)
    if rule.statement == "rate_theorem_26":
        error = _squared_gradient(setting, error, facts)
    numbers = {"num_local_steps": num_local_steps}
    own = {key: value for key, value in numbers.items() if key in STATEMENTS[chosen].arguments}
    if missing_facts(chosen, facts, {**own, "rounds": 1}):
        return None
    try:
        if name == "ac-sa" and setting == "strongly convex":
            rounds, terms = _in_stages(chosen, facts, own, error)
        else:
            rounds, terms = _least_rounds(functools.partial(_rate, chosen, facts, own), error)
        if also and num_local_steps > 1 and not missing_facts(also, facts, {"target": error}):
            least = stated(also, facts, target=error)["least"]
            rounds, terms = (least, {"least": least}) if least > rounds else (rounds, terms)
    except SojournError:
        return None  # a constant lies outside what the statement requires
    return Bound(rule.trips * rounds, dominant(terms), chosen, STATEMENTS[chosen].source, rule.assumption)


def _rate(name: str, facts: Facts, own: Mapping[str, Any], rounds: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = stated(name, facts, rounds=rounds, **own)
    return found


def _least_rounds(rate: Callable[[Any], Mapping[str, Any]], error: float) -> tuple[float, dict[str, float]]:
    """The first of many rounds at which the terms add up to the error, and the terms there."""
    terms = rate(_ROUNDS)
    below = np.flatnonzero(np.asarray(terms["sum"]) <= error)
    place = below[0] if len(below) else -1
    at = {key: float(np.broadcast_to(value, _ROUNDS.shape)[place]) for key, value in terms.items()}
    before = {key: float(np.broadcast_to(value, _ROUNDS.shape)[max(place - 1, 0)]) for key, value in terms.items()}
    return (float(_ROUNDS[place]), before) if len(below) else (np.inf, at)


def _in_stages(name: str, facts: Facts, own: Mapping[str, Any], error: float) -> tuple[float, dict[str, float]]:
    """Each stage ends where the gap is mu B^2/4, so that the squared distance is half of its start's."""
    assert facts.start_distance is not None and facts.strong_convexity is not None
    mu, squared, total = facts.strong_convexity, facts.start_distance**2, 0.0
    terms: dict[str, float] = {"optimization": 1.0}
    while squared > error:
        stage = dataclasses.replace(facts, start_distance=squared**0.5)
        rounds, terms = _least_rounds(functools.partial(_rate, name, stage, own), mu * squared / 4)
        total, squared = total + rounds, squared / 2
    return max(total, 1.0), terms


def _quadratic_like(facts: Facts) -> bool:
    """Whether curvature changes less on the way than it differs between clients: Q B < tau."""
    Q, B, tau = facts.third_order_smoothness or 0.0, facts.start_distance or 0.0, facts.hessian_heterogeneity or 0.0
    return tau > Q * B or Q == 0


def _squared_gradient(setting: str, error: float, facts: Facts) -> float:
    """A squared gradient norm that implies the setting's error."""
    if setting == "strongly convex":
        return (facts.strong_convexity or 0.0) ** 2 * error
    if setting == "convex":
        return (error / (facts.start_distance or 1.0)) ** 2
    return error


def best_bound(
    name: str, setting: str, facts: Facts, steps: tuple[int, ...], error: float, *, identical: bool = True
) -> tuple[int, Bound] | None:
    """The fewest rounds over K, and the least K within 5 % of them: more is useless.

    identical: whether clients are surely alike; a statement about such clients alone promises nothing of others.
    """
    if RULES[setting][name].alike and not identical:
        rule = RULES[setting][name]
        source = STATEMENTS[rule.statement].source
        return steps[0], Bound(np.inf, "", rule.statement, source, rule.assumption, met=False)
    found = [(K, bound(name, setting, facts, K, error)) for K in steps]
    known = [(K, b) for K, b in found if b is not None]
    if not known:
        return None
    least = min(b.rounds for _, b in known)
    return next((K, b) for K, b in known if b.rounds <= 1.05 * least)


def surely_alike(diagnosis: Diagnosis) -> bool:
    """Whether tau and zeta_* are zero up to rounding, even at the upper ends of what was measured."""
    if diagnosis.num_clients == 1:
        return True
    H, B = diagnosis.value("smoothness", 0.0) or 0.0, diagnosis.value("start_distance", 1.0) or 1.0
    tau, zeta = (upper_end(diagnosis, name) for name in ("hessian_heterogeneity", "optima_heterogeneity"))
    return tau <= ROUNDING * H and zeta <= ROUNDING * B


def upper_end(diagnosis: Diagnosis, name: str) -> float:
    """What a measure can be at most; infinite where only a lower bound is known, or nothing."""
    found = diagnosis.measures.get(name)
    if found is None or (found.high is None and found.kind == "lower bound"):
        return float(np.inf)
    return found.value if found.high is None else max(found.value, found.high)


def thumb(facts: Facts) -> dict[str, bool] | None:
    """Rules of thumb from equations 5.2 and 5.3: whether tau is small enough for local steps to pay.

    Against minibatch SGD: tau < mu, on quadratics tau < sqrt(H mu); against its accelerated form: tau < mu/sqrt(kappa),
    on quadratics tau < mu kappa^(1/4).
    """
    H, mu, tau = facts.smoothness, facts.strong_convexity, facts.hessian_heterogeneity
    if H is None or not mu or tau is None:
        return None
    kappa = H / mu
    if _quadratic_like(facts):
        return {"minibatch-sgd": tau < (H * mu) ** 0.5, "ac-sa": tau < mu * kappa**0.25}
    return {"minibatch-sgd": tau < mu, "ac-sa": tau < mu / kappa**0.5}
