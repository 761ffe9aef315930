"""The rule behind `step_size = "theory"`: which statement tunes which method, and with what.

A rule takes the constants that a federation knows for certain and says which it used, and whether the conditions of its
statement hold; a step is given also where they do not, as they are sufficient and far from necessary. Where a constant
is missing there is no rule, and the error names it. Methods are named as in the registry of algorithms.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory import baselines, convergence, convergence_zeta, nonconvex
from sojourn.theory.statement import LETTERS

_CURVATURE = ("smoothness", "strong_convexity")
_START = ("noise", "start_distance", "num_clients")
_STAR = (*_CURVATURE, "hessian_heterogeneity", "optima_heterogeneity", "optima_distance", *_START)
_ZETA = ("smoothness", "third_order_smoothness", "hessian_heterogeneity", "gradient_heterogeneity", "noise4", *_START)
_NONCONVEX = ("smoothness", "noise", "start_gap", "num_clients")


@dataclasses.dataclass(frozen=True)
class StepRule:
    """A step size with its reasons."""

    value: float
    rule: str  # the statement, and what is heuristic about using it here
    used: dict[str, float]  # the facts that went in
    conditions: list[tuple[str, bool]]  # of the statement, and whether they hold
    option: str = "step_size"  # that the value is for
    companions: dict[str, float] = dataclasses.field(default_factory=dict)  # other options that the statement settles


def step_size_rule(
    method: str, facts: Facts, options: Mapping[str, Any], rounds: int, *, everyone: bool = True,
    equal_weights: bool = True,
) -> StepRule:  # fmt: skip
    """The tuned step of a method for a run of so many rounds; `options` are the method's, with defaults filled in."""
    if method not in _RULES:
        raise SojournError(
            f'There is no theory for the step size of "{method}"; give a number, or tune it by a sweep. '
            f"There is for {', '.join(sorted(_RULES))}."
        )
    if rounds < 1:
        raise SojournError(f'step_size = "theory" needs at least one round; got {rounds}.')
    if not everyone:
        raise SojournError(
            'step_size = "theory" holds where every client takes part in every round; give a number, or let all take '
            "part."
        )
    if not equal_weights:
        raise SojournError(
            'step_size = "theory" holds where all clients count equally; give a number, or use equal weights.'
        )
    return _RULES[method](_Case(method, facts, options, rounds))


@dataclasses.dataclass(frozen=True)
class _Case:
    method: str
    facts: Facts
    options: Mapping[str, Any]
    rounds: int

    @property
    def local_steps(self) -> int:
        if self.method == "synchronous-sgd":
            return 1
        if self.options.get("num_local_steps") is None:
            raise SojournError(f'step_size = "theory" for "{self.method}" needs num_local_steps; give it.')
        return int(self.options["num_local_steps"])

    @property
    def strong_convexity(self) -> float:
        """mu, an error where unknown: 0 is a fact like another."""
        return float(self.known("The choice of a rule", ("strong_convexity",))["strong_convexity"])

    def known(self, rule: str, names: tuple[str, ...]) -> dict[str, float]:
        """The facts of these names; an error that names all that are missing."""
        found = {name: self._fact(name) for name in names}
        missing = [f"{name} ({LETTERS[name]})" for name, value in found.items() if value is None]
        if missing:
            raise SojournError(
                f'{rule} for step_size = "theory" needs {_listed(missing)}, which this federation does not know; give '
                "step_size as a number."
            )
        return {name: float(value) for name, value in found.items() if value is not None}

    def knows(self, names: tuple[str, ...]) -> bool:
        return all(self._fact(name) is not None for name in names)

    def heuristics(self, rule: str, names: tuple[str, ...]) -> str:
        """The rule's name, with a word on the noise where it is known at the optimum only."""
        if "noise" in names and self.facts.noise is None:
            return f"{rule}, with the noise at the optimum for the noise everywhere (a heuristic)"
        return rule

    def _fact(self, name: str) -> float | None:
        value = getattr(self.facts, name)
        if name == "noise" and value is None:
            return self.facts.noise_at_optimum
        if name == "noise4" and value is None and self.facts.third_order_smoothness == 0:
            return self._fact("noise")  # it stands beside Q only, so any number does
        return value


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _local_sgd(case: _Case) -> StepRule:
    outer = case.options.get("outer_step_size", 1.0)
    if outer != 1.0:
        raise SojournError(
            f'step_size = "theory" holds for outer_step_size = 1; got {outer:g}. Give a number, or leave it at 1.'
        )
    if case.method == "one-shot-averaging" and case.rounds != 1:
        raise SojournError(f'"one-shot-averaging" has one round; got {case.rounds}.')
    output, mu = case.options.get("output", "last"), case.strong_convexity
    if output in ("exp", "coupled") and mu == 0:
        raise SojournError(f'output = "{output}" needs a strongly convex objective; strong_convexity (mu) is 0 here.')
    if output == "exp":
        return _theorem_11(case)
    if output == "coupled":
        return _theorem_6(case)
    if case.local_steps == 1 or case.facts.num_clients == 1:
        return _dense(case, convex=mu == 0 or output == "uniform")
    if mu == 0:
        return _theorem_12(case)
    if output == "uniform":
        raise SojournError(
            'No theorem tunes the step for output = "uniform" with several local steps on a strongly convex objective; '
            'give a number, or take output = "last", "exp" or "coupled".'
        )
    if case.facts.hessians is not None:
        return _star(case, "Theorem 7", convergence.theorem_7_step_size, convergence.theorem_7_needs_rounds)
    if not case.knows(_STAR) and case.knows((*_CURVATURE, *_ZETA)):
        return _theorem_10(case)
    return _star(case, "Theorem 5", convergence.theorem_5_step_size, convergence.theorem_5_needs_rounds)


def _star(case: _Case, name: str, tuned: Callable[..., float], needed: Callable[..., float]) -> StepRule:
    facts = case.known(name, _STAR)
    run = {"num_local_steps": case.local_steps, "rounds": case.rounds}
    eta = tuned(**facts, **run)
    shared = ("smoothness", "strong_convexity", "hessian_heterogeneity", "num_clients")
    needs = needed(step_size=eta, **run, **{key: facts[key] for key in shared})
    return StepRule(eta, case.heuristics(f"{name}, tuned", _STAR), facts, [_enough_rounds(case, needs)])


def _theorem_6(case: _Case) -> StepRule:
    return _star(case, "Theorem 6", convergence.theorem_6_step_size, convergence.theorem_6_needs_rounds)


def _theorem_10(case: _Case) -> StepRule:
    names = (*_CURVATURE, *_ZETA)
    facts = case.known("Theorem 10", names)
    eta = convergence_zeta.theorem_10_step_size(**facts, num_local_steps=case.local_steps, rounds=case.rounds)
    return StepRule(eta, case.heuristics("Theorem 10, tuned", names), facts, [])


def _theorem_11(case: _Case) -> StepRule:
    names = (*_CURVATURE, *_ZETA)
    facts = case.known("Theorem 11", names)
    run = {"num_local_steps": case.local_steps, "rounds": case.rounds}
    eta = convergence_zeta.theorem_11_step_size(**facts, **run)
    needs = convergence_zeta.theorem_11_needs_rounds(
        step_size=eta, num_local_steps=case.local_steps, **{key: facts[key] for key in _CURVATURE}
    )
    return StepRule(eta, case.heuristics("Theorem 11, tuned", names), facts, [_enough_rounds(case, needs)])


def _theorem_12(case: _Case) -> StepRule:
    """Also for plain local SGD on a convex objective, of which no theorem of the thesis speaks."""
    regularized = case.method == "regularized-local-sgd"
    facts = case.known("Theorem 12", _ZETA)
    run = {"num_local_steps": case.local_steps, "rounds": case.rounds}
    eta = convergence_zeta.theorem_12_step_size(**facts, **run)
    needs = convergence_zeta.theorem_12_needs_rounds(**facts, num_local_steps=case.local_steps)
    rule = case.heuristics("Theorem 12, tuned, halved", _ZETA)
    conditions = [_enough_rounds(case, needs)]
    if not regularized:
        return StepRule(eta, f"{rule}; it is for the regularized method (a heuristic)", facts, conditions)
    if eta * facts["smoothness"] * case.local_steps * case.rounds < 2:
        raise SojournError(
            f"Theorem 12 has no regularizer for so few rounds: it needs {needs:.3g}, and there are {case.rounds}; give "
            "step_size and regularization as numbers, or run more rounds."
        )
    strength = convergence_zeta.theorem_12_regularization(**facts, **run, step_size=eta)
    room = 2 * eta * (facts["smoothness"] + strength)
    conditions.append((f"2 eta (H + mu_reg) <= 1 (here {room:.3g})", room <= 1 + 1e-12))
    return StepRule(eta, rule, facts, conditions, companions={"regularization": strength})


def _dense(case: _Case, convex: bool) -> StepRule:
    """One step per round, or one client: local SGD is then SGD with M gradients per step."""
    names = ("smoothness", *_START) if convex else (*_CURVATURE, *_START)
    kind = "convex" if convex else "strongly convex"
    facts = case.known("The step of SGD", names)
    run = {"num_local_steps": 1, "rounds": case.local_steps * case.rounds}
    rule = baselines.minibatch_sgd_convex_step_size if convex else baselines.minibatch_sgd_step_size
    return StepRule(rule(**facts, **run), case.heuristics(f"SGD with M gradients a step, {kind}", names), facts, [])


def _minibatch_sgd(case: _Case) -> StepRule:
    convex = case.strong_convexity == 0
    names = ("smoothness", *_START) if convex else (*_CURVATURE, *_START)
    facts = case.known("The step of minibatch SGD", names)
    run = {"num_local_steps": case.local_steps, "rounds": case.rounds}
    if convex:
        eta = baselines.minibatch_sgd_convex_step_size(**facts, **run)
        rule = "Minibatch SGD, convex; it is for the mean model (a heuristic for the last)"
        return StepRule(eta, case.heuristics(rule, names), facts, [])
    eta = baselines.minibatch_sgd_step_size(**facts, **run)
    return StepRule(eta, case.heuristics("Minibatch SGD, strongly convex", names), facts, [])


def _single_machine_sgd(case: _Case) -> StepRule:
    convex = case.strong_convexity == 0
    names = ("smoothness", "noise", "start_distance") if convex else (*_CURVATURE, "noise", "start_distance")
    facts = case.known("The step of SGD", names)
    run = {"num_clients": 1, "num_local_steps": 1, "rounds": case.local_steps * case.rounds}
    if convex:
        eta = baselines.minibatch_sgd_convex_step_size(**facts, **run)
        rule = "SGD on one machine, convex; it is for the mean model (a heuristic for the last)"
    else:
        eta, rule = baselines.minibatch_sgd_step_size(**facts, **run), "SGD on one machine, strongly convex"
    alike = case.facts.optima_distance
    conditions = [] if alike is None else [("the client's optimum is that of all", alike == 0)]
    return StepRule(eta, case.heuristics(rule, names), facts, conditions)


def _ac_sa(case: _Case) -> StepRule:
    """The method has no step but a constant L in its place."""
    names = ("smoothness", *_START)
    facts = case.known("AC-SA", names)
    run = {"num_local_steps": case.local_steps, "rounds": case.rounds}
    rule, conditions = "AC-SA, derived bound", []
    if case.method == "local-ac-sa":
        run = {"num_local_steps": 1, "rounds": case.local_steps * case.rounds}
        rule = "AC-SA with M gradients a step (as local AC-SA is on identical quadratics)"
        spread = (case.facts.hessian_heterogeneity, case.facts.optima_heterogeneity)
        conditions = [("the clients are identical quadratics", case.facts.hessians is not None and spread == (0, 0))]
    strength = float(case.options.get("strong_convexity", 0.0) or 0.0)
    value = baselines.ac_sa_step_smoothness(**facts, **run, step_strong_convexity=strength)
    return StepRule(value, case.heuristics(rule, names), facts, conditions, option="smoothness")


def _fedac(case: _Case) -> StepRule:
    """Yuan and Ma, NeurIPS 2020, FedAc-I on strongly convex objectives (constants of the logarithm from memory)."""
    names = (*_CURVATURE, *_START)
    facts = case.known("FedAc", names)
    H, mu, sigma, B, M = (facts[name] for name in names)
    if mu == 0:
        raise SojournError(
            'FedAc needs a strongly convex objective for step_size = "theory"; strong_convexity (mu) is 0 here. Give '
            "step_size as a number."
        )
    K, T = case.local_steps, case.local_steps * case.rounds
    gain = math.inf if sigma == 0 else min(mu * M * T, mu**2 * T**3 / (H * K**2)) * B**2 / sigma**2
    eta = 1 / H if math.isinf(gain) else min(1 / H, K / (mu * T**2) * math.log(math.e + gain) ** 2)
    rule = "FedAc-I, Yuan and Ma 2020"
    if case.options.get("version", "I") != "I":
        rule += " (its step for version I, a heuristic for II)"
    gamma = max((eta / (mu * K)) ** 0.5, eta)
    conditions = [("gamma mu < 1", gamma * mu < 1)]
    if case.facts.optima_distance is not None:
        conditions.append(("the clients are identical", case.facts.optima_distance == 0))
    return StepRule(eta, case.heuristics(rule, names), facts, conditions, companions={"strong_convexity": mu})


def _scaffold(case: _Case) -> StepRule:
    """Karimireddy et al., ICML 2020, all clients taking part: the longest step of the theorem (from memory)."""
    facts = case.known("SCAFFOLD", _CURVATURE)
    longest = 1 / (81 * facts["smoothness"])
    if facts["strong_convexity"] > 0:
        longest = min(longest, 1 / (15 * facts["strong_convexity"]))
    outer = float(case.options.get("outer_step_size", 1.0))
    rule = "SCAFFOLD, the longest step of Karimireddy et al. 2020, whatever the noise"
    return StepRule(longest / (case.local_steps * outer), rule, facts, [])


def _ce_lgd(case: _Case) -> StepRule:
    facts = case.known("Theorem 26 (b)", ("smoothness", "hessian_heterogeneity"))
    eta = nonconvex.theorem_26_exact_step_size(**facts, num_local_steps=case.local_steps)
    return StepRule(eta, _drawn(case, "Theorem 26 (b)"), facts, [])


def _ce_lsgd(case: _Case) -> StepRule:
    """Settles momentum and first batch too, where they are left as they are; the step is for those."""
    names = (*_NONCONVEX, "hessian_heterogeneity")
    facts = case.known("Theorem 26", names)
    if facts["noise"] == 0:
        return dataclasses.replace(_ce_lgd(case), companions={"momentum": 1.0})
    beta, condition = _momentum(case, facts)
    own = {name: facts[name] for name in ("smoothness", "hessian_heterogeneity", "num_clients")}
    eta = nonconvex.ce_lsgd_step_size(**own, num_local_steps=case.local_steps, momentum=beta)
    first = int(nonconvex.theorem_26_first_batches(num_local_steps=case.local_steps, rounds=case.rounds))
    rule = _drawn(case, "Theorem 26, with the longest steps that its proof allows")
    companions = {"momentum": beta, "first_batches": first}
    return StepRule(eta, case.heuristics(rule, names), facts, [condition], companions=companions)


def _mb_storm(case: _Case) -> StepRule:
    facts = case.known("Theorem 27", _NONCONVEX)
    beta, condition = _momentum(case, facts)
    run = {"num_local_steps": case.local_steps, "momentum": beta}
    eta = nonconvex.theorem_27_step_size(**run, smoothness=facts["smoothness"], num_clients=facts["num_clients"])
    first = int(nonconvex.theorem_27_first_batches(**run, rounds=case.rounds))
    companions = {"momentum": beta, "first_batches": first}
    rule = case.heuristics(_drawn(case, "Theorem 27"), _NONCONVEX)
    return StepRule(eta, rule, facts, [condition], companions=companions)


def _momentum(case: _Case, facts: Mapping[str, float]) -> tuple[float, tuple[str, bool]]:
    known = {name: facts[name] for name in _NONCONVEX}
    beta = nonconvex.theorem_26_momentum(**known, num_local_steps=case.local_steps, rounds=case.rounds)
    return beta, ("Delta H/R <= sigma^2/sqrt(M K)", beta < 1)


def _drawn(case: _Case, rule: str) -> str:
    last = case.options.get("output", "last") == "last"
    return f"{rule}; it is for an iterate drawn uniformly (a heuristic for the last)" if last else rule


def _enough_rounds(case: _Case, needs: float) -> tuple[str, bool]:
    return f"R >= {needs:.4g} (here {case.rounds})", case.rounds >= needs


_RULES: dict[str, Callable[[_Case], StepRule]] = {
    "local-sgd": _local_sgd,
    "fedavg": _local_sgd,
    "synchronous-sgd": _local_sgd,
    "one-shot-averaging": _local_sgd,
    "minibatch-sgd": _minibatch_sgd,
    "single-machine-sgd": _single_machine_sgd,
    "regularized-local-sgd": _theorem_12,
    "ac-sa": _ac_sa,
    "local-ac-sa": _ac_sa,
    "fedac": _fedac,
    "scaffold": _scaffold,
    "ce-lsgd": _ce_lsgd,
    "ce-lgd": _ce_lgd,
    "mb-storm": _mb_storm,
}

TUNED_METHODS = dict.fromkeys(_RULES)  # the methods that have a rule
