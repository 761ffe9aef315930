"""Is the advice good? Rounds to a target as advised, against the best of a grid that tried everything.

Regret is rounds by a strategy over rounds by the best of the grid, on one federation; infinite where the strategy never
arrives. Claims are about federations that no rule was set by. The default is FedAvg with K = 10 and the best of the
grid's steps: more than a user has, who must find that step first.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.recipes.advise_federations import FEDERATIONS, Declared
from sojourn.recipes.advise_grid import LOCAL_STEPS, Aim, Limits, aim_at, oracle, question
from sojourn.recipes.advise_strategies import ADVICE, STRATEGIES, TUNED, follow
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Table
from sojourn.recipes.charts import dots
from sojourn.recipes.kept import kept

MEDIAN_LIMIT, BAD, BAD_SHARE = 2.0, 5.0, 0.05
DEFAULT = "FedAvg, K = 10, tuned step"
NUM_WORST = 10
_TOGETHER = 4  # federations whose programs are held at once
UNITS = ("rounds", "floats")


@dataclasses.dataclass(frozen=True)
class Case:
    """One federation's outcome: plain values as they are kept."""

    declared: Declared
    grid: Mapping[str, Any]  # best, fewest_floats and default: label, rounds, floats
    by_strategy: Mapping[str, Mapping[str, Any]]

    @property
    def solved(self) -> bool:
        """Whether the grid reaches the target at all: without a best there is no regret."""
        return bool(np.isfinite(self.best["rounds"]))

    @property
    def best(self) -> Mapping[str, Any]:
        return min(self.grid["best"], self.grid["default"], key=lambda one: float(one["rounds"]))

    def regret(self, strategy: str, unit: str = "rounds") -> float:
        """How many times the best's rounds, or floats, a strategy took; the tuned default counts among the best."""
        least = min(self.grid["best" if unit == "rounds" else "fewest_floats"][unit], self.grid["default"][unit])
        taken = self.grid["default"] if strategy == DEFAULT else self.by_strategy[strategy]
        return float(taken[unit] / least)

    def against_default(self, strategy: str) -> float:
        """A strategy's rounds over the tuned default's; 1 where neither arrives."""
        mine, its = self.by_strategy[strategy]["rounds"], self.grid["default"]["rounds"]
        if not np.isfinite(its):
            return 0.0 if np.isfinite(mine) else 1.0
        return float(mine / its)


# --- running -----------------------------------------------------------------------------------------------------


def study(bench: Bench, declared: Sequence[Declared]) -> tuple[list[Case], list[str]]:
    """All cases, and sentences on federations whose data cannot be had."""
    cases, missing = [], []
    for number, one in enumerate(declared):
        if number % _TOGETHER == 0:
            jax.clear_caches()  # programs take pieces of memory, of which a process can have 65,530 on Linux
        try:
            cases.append(_case(bench, one))
        except SojournError as error:
            if "could not be fetched" not in str(error):
                raise
            missing.append(f"{one.name} is left out: {error}")
    return cases, missing


def _case(bench: Bench, declared: Declared) -> Case:
    limits = Limits(bench.scale["rounds"])
    local_steps = bench.scale.get("local_steps", LOCAL_STEPS)
    made = functools.cache(lambda: aim_at(declared, limits))  # built once, and only if something is to be run

    def aim() -> Aim:
        return made()

    asked = question(declared, limits, local_steps)
    grid = kept(bench, "grid", declared.name, asked, lambda: oracle(aim(), limits, local_steps))
    found = {}
    for name in bench.scale["strategies"]:
        found[name] = kept(bench, f"strategy-{name}", declared.name, asked, lambda s=name: follow(aim(), STRATEGIES[s]))  # type: ignore[misc]
    return Case(declared, grid, found)


# --- judging -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Summary:
    """Regrets of one strategy over some federations."""

    number: int
    median: float
    ninth: float  # of ten: the 90th percentile
    bad: float  # share above BAD, with those that never arrive
    beats: float  # share with fewer rounds than the default
    never: int
    versus: float  # median of rounds over the default's


def summarise(cases: Sequence[Case], strategy: str, unit: str = "rounds") -> Summary:
    regrets = np.array([case.regret(strategy, unit) for case in cases])
    own = strategy == DEFAULT
    ratios = np.array([1.0 if own else case.against_default(strategy) for case in cases])
    return Summary(
        len(cases), _quantile(regrets, 0.5), _quantile(regrets, 0.9), _share(regrets > BAD), _share(ratios < 1),
        int(np.sum(~np.isfinite(regrets))), _quantile(ratios, 0.5),
    )  # fmt: skip


def _quantile(values: np.ndarray, share: float) -> float:
    """The value that this share of them does not exceed: one of the values, so that some may be infinite."""
    if len(values) == 0:
        return float("nan")
    ordered = np.sort(values)
    return float(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])


def _share(holds: np.ndarray) -> float:
    return float(np.mean(holds)) if len(holds) else float("nan")


def judge(cases: Sequence[Case], strategies: Sequence[str] = (ADVICE, TUNED)) -> list[Claim]:
    """Three claims for each strategy, on the federations held out."""
    cases = [case for case in cases if case.declared.held_out and case.solved]
    claims = []
    for name in strategies:
        found, stem = summarise(cases, name), name.replace(" ", "-")
        said = f"the {name} run" if name == TUNED else name
        told = f"median {found.median:.3g}, 90th percentile {found.ninth:.3g} over {found.number} federations"
        worse = f"{found.bad:.1%} of {found.number} federations; on {found.never} it never arrives"
        claims += [
            Claim(f"{stem}-median", f"On federations held out, {said} takes at most twice the rounds of the best of "
                  "the grid, in the median.", _at_most(found.median, MEDIAN_LIMIT), told, "median regret in rounds",
                  f"at most {MEDIAN_LIMIT:g}", by="check"),
            Claim(f"{stem}-seldom-bad", "It takes more than five times as many on at most one in twenty.",
                  _at_most(found.bad, BAD_SHARE), worse, "share of regrets above 5, never counts as above",
                  f"at most {BAD_SHARE:.0%}", by="check"),
            Claim(f"{stem}-beats-default", "It takes fewer rounds than FedAvg with K = 10 and a tuned step, in the "
                  "median.", None if np.isnan(found.versus) else found.versus < 1,
                  f"median ratio {found.versus:.3g}; fewer rounds on {found.beats:.0%}",
                  "median of rounds over the default's", "below 1", by="check"),
        ]  # fmt: skip
    return claims


def _at_most(value: float, limit: float) -> bool | None:
    return None if np.isnan(value) else value <= limit


# --- showing -----------------------------------------------------------------------------------------------------


def _groups(cases: Sequence[Case]) -> dict[str, list[Case]]:
    found = {}
    for held_out, part in ((True, "held out"), (False, "development")):
        chosen = [case for case in cases if case.declared.held_out == held_out]
        found[f"all, {part}"] = chosen
        for family in dict.fromkeys(case.declared.family for case in chosen):
            found[f"{family}, {part}"] = [case for case in chosen if case.declared.family == family]
    return found


def regret_table(cases: Sequence[Case], strategies: Sequence[str], unit: str) -> Table:
    columns = ("federations", "strategy", "number", "median", "90th percentile", "worse than 5x", "beats the default",
               "never there")  # fmt: skip
    rows = []
    for group, chosen in _groups([case for case in cases if case.solved]).items():
        for name in [*strategies, DEFAULT]:
            s = summarise(chosen, name, unit)
            beats = "" if name == DEFAULT else f"{s.beats:.0%}"
            rows.append(
                (group, name, str(s.number), f"{s.median:.3g}", f"{s.ninth:.3g}", f"{s.bad:.0%}", beats, str(s.never))
            )
    return Table(f"Regret in {unit}", columns, rows)


def cost_table(cases: Sequence[Case], strategies: Sequence[str]) -> Table:
    """What choosing took, which regret leaves out."""
    rows = []
    for name in strategies:
        spent = np.array([case.by_strategy[name]["spent"] for case in cases])
        least = np.array([case.best["rounds"] for case in cases])
        taken = np.array([case.by_strategy[name]["rounds"] for case in cases])
        rows.append((
            name, f"{_quantile(spent, 0.5):.3g}", f"{spent.max(initial=0):.3g}",
            f"{_quantile((spent + taken) / least, 0.5):.3g}",
        ))  # fmt: skip
    columns = ("strategy", "rounds spent on choosing, median", "at most", "median regret with them")
    return Table("What choosing costs", columns, rows)


def worst_table(cases: Sequence[Case], strategy: str) -> Table:
    """Where a strategy does worst, with what it did and what would have been best."""
    ordered = sorted(cases, key=lambda case: (-case.regret(strategy), case.declared.name))[:NUM_WORST]
    rows = [
        (
            case.declared.name, "held out" if case.declared.held_out else "development", f"{case.regret(strategy):.3g}",
            f"{case.by_strategy[strategy]['label']}: {case.by_strategy[strategy]['rounds']:g}",
            f"{case.best['label']}: {case.best['rounds']:g}", f"{case.grid['default']['rounds']:g}",
        )
        for case in ordered
    ]  # fmt: skip
    columns = ("federation", "part", "regret", f"{strategy}: rounds", "best of the grid: rounds", "tuned default")
    return Table(f"The ten worst of: {strategy}", columns, rows)


def chart(cases: Sequence[Case], strategies: Sequence[str], claims: Sequence[str]) -> Figure:
    most = max([BAD, *(r for c in cases for s in strategies if np.isfinite(r := c.regret(s)))])
    rows = [
        {
            "x": name, "y": min(case.regret(name), 2 * most), "of": case.declared.family, "what": case.declared.name,
            "hollow": not case.declared.held_out,
        }
        for case in cases
        for name in [*strategies, DEFAULT]
    ]  # fmt: skip
    spec = dots(rows, x="", y="rounds over the best of the grid's", guides=(1.0, MEDIAN_LIMIT, BAD), log_y=True)
    note = (
        f"One dot per federation, filled where it was held out. At {2 * most:.3g}, the top: never there. Lines at 1, "
        f"{MEDIAN_LIMIT:g} and {BAD:g}."
    )
    return Figure("Regret by strategy and family", spec, note, tuple(claims))


def unsolved_note(cases: Sequence[Case], missing: Sequence[str]) -> list[Table]:
    rows = [
        (case.declared.name, "no method of the grid reaches the target in time") for case in cases if not case.solved
    ]
    rows += [(sentence.partition(" is left out")[0], sentence.partition(": ")[2]) for sentence in missing]
    return [Table("Left out", ("federation", "why"), rows)] if rows else []


def _carry_out(bench: Bench) -> Findings:
    chosen = [one for one in FEDERATIONS if one.quick or not bench.scale["quick_only"]]
    every, missing = study(bench, chosen)
    cases = [case for case in every if case.solved]
    strategies = list(bench.scale["strategies"])
    claims = judge(cases, [name for name in (ADVICE, TUNED) if name in strategies])
    tables = [regret_table(cases, strategies, unit) for unit in UNITS]
    tables += [
        cost_table(cases, strategies),
        *(worst_table(cases, name) for name in (ADVICE, TUNED) if name in strategies),
    ]
    tables += unsolved_note(every, missing)
    return Findings(claims, [chart(cases, strategies, [claim.id for claim in claims])], tables=tables)


_ROUNDS = {"quadratic": 300, "logistic": 300, "network": 150}
RECIPE = Recipe(
    name="advise-study",
    title="Is the advice good? Rounds to a target against the best of a grid",
    source="a question of ours",
    about=f"{len(FEDERATIONS)} federations of ten clients (quadratics with given tau, zeta_*, phi_*, noise and "
    "conditioning; logistic regression on a9a, w8a, mushrooms and digits; small networks on digits and MNIST), of "
    f"which {sum(one.held_out for one in FEDERATIONS)} are held out: other seeds, and partitions that no rule was set "
    "by. The target is 1e-4 of the first gap with exact gradients, 1e-2 with noise, for networks the loss of minibatch "
    "SGD with its best step after 60 rounds. The grid: minibatch SGD, AC-SA, FedAvg, SCAFFOLD, FedAc (CE-LSGD for "
    "networks), K from 1 to 64, six step sizes each. Advice measures all it uses; what that costs is reported apart. "
    "Quick: every third or fourth federation.",
    scales={
        name: {"rounds": _ROUNDS, "quick_only": name == "quick", "strategies": tuple(STRATEGIES)}
        for name in ("quick", "full")
    },
    carry_out=_carry_out,
)
