"""The figures of Xie et al.: FedAsync against FedAvg and SGD at equal numbers of gradients, by staleness.

Uploads start from models whose age is uniform on 0 … S, as in the paper. All methods take the paper's one step size.
Paper: FedAvg asks ten devices in a round, SGD is one machine that holds all data.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.algorithms import FedAsync, FedAvg, LocalSGD
from sojourn.algorithms.base import Algorithm
from sojourn.core.federation import Federation
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, above, within
from sojourn.recipes.charts import banded, lines
from sojourn.recipes.contest import Contender, Contest, Curves, Metric, chart, results, world
from sojourn.recipes.trends import all_hold
from sojourn.traces import Work, uniform_staleness

SGD, AVG = "SGD", "FedAvg"
CONST, POLY, HINGE = "Const", "Poly", "Hinge"
WEIGHTINGS: dict[str, dict[str, Any]] = {
    CONST: {"staleness_weight": "constant"},
    POLY: {"staleness_weight": "polynomial", "exponent": 0.5},
    HINGE: {"staleness_weight": "hinge", "slope": 10.0},
}
SLACK, CLOSE, MODEST = 0.01, 0.03, 0.1  # of accuracy: what "at least", "close" and "modest" are taken to mean
SAME = 1e-4  # relative difference of losses that rounding may make
PER_ROUND = 10  # devices that FedAvg asks
Score = Callable[[Curves], np.ndarray]  # of every seed, larger is better


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of federation, and the metric that speaks for it."""

    name: str
    home: Callable[[int, int], Federation]  # (devices, seed)
    metric: Metric = "test_accuracy"

    def score(self, course: Curves) -> np.ndarray:
        """The end of a run, the mean over the last tenth: accuracy, or less the logarithm of the perplexity."""
        last = course.metrics[self.metric][:, -max(1, len(course.rounds) // 10) :]
        return np.asarray((-np.log(last) if self.metric == "test_perplexity" else last).mean(axis=1))

    def speed(self, course: Curves) -> np.ndarray:
        """The mean over the first half: how fast it gets there."""
        early = course.metrics[self.metric][:, 1 : len(course.rounds) // 2]
        return np.asarray((-np.log(early) if self.metric == "test_perplexity" else early).mean(axis=1))

    def drawdown(self, course: Curves) -> np.ndarray:
        """The largest fall from an earlier height, in the second half of the run."""
        late = course.metrics[self.metric][:, len(course.rounds) // 2 :]
        late = -np.log(late) if self.metric == "test_perplexity" else late
        return np.asarray((np.maximum.accumulate(late, axis=1) - late).max(axis=1))


def play_async(bench: Bench, kind: Kind, weighting: str, staleness: int, mixing: float) -> Curves:
    """FedAsync with uniform staleness, in the numbers of the scale."""
    scale = bench.scale
    uploads = scale["gradients"] // scale["num_local_steps"]
    options = {**WEIGHTINGS[weighting], "threshold": scale["threshold"], "proximal_weight": scale["proximal_weight"]}
    make = lambda step: FedAsync(step, scale["num_local_steps"], mixing=mixing, **options)  # noqa: E731

    def time(seed: int, method: Algorithm) -> Mapping[str, Any]:
        trace = uniform_staleness(scale["devices"], uploads, work=Work(), max_staleness=staleness, seed=seed)
        return {"trace": trace, "participation": None}

    label = f"{kind.name}{weighting}, S = {staleness}, alpha = {mixing:g}"
    home = functools.partial(kind.home, scale["devices"])
    contender = Contender(label, make, home, (scale["step_size"],), uploads, time)
    return dataclasses.replace(_contest(bench).play(contender), label=f"{weighting}, S = {staleness}")


def play_rivals(bench: Bench, kind: Kind) -> dict[str, Curves]:
    """FedAvg and SGD, for as many gradients."""
    scale = bench.scale
    steps, number = scale["num_local_steps"], scale["gradients"]
    avg = lambda step: FedAvg(step, steps)  # noqa: E731
    sgd = lambda step: LocalSGD(step, steps)  # noqa: E731
    grid, devices = (scale["step_size"],), scale["devices"]
    of = lambda name, make, home, rounds: Contender(f"{kind.name}{name}", make, home, grid, rounds)  # noqa: E731
    rounds = number // steps
    courses = {
        AVG: _contest(bench, PER_ROUND).play(of(AVG, avg, functools.partial(kind.home, devices), rounds // PER_ROUND)),
        SGD: _contest(bench).play(of(SGD, sgd, functools.partial(kind.home, 1), rounds)),
    }
    return {name: dataclasses.replace(course, label=name) for name, course in courses.items()}


def _contest(bench: Bench, participation: int | None = None) -> Contest:
    return Contest(bench, bench.scale["seeds"], participation, bench.scale["evaluations"])


# --- figures 2 and 3 ---------------------------------------------------------------------------------------------


def judge(
    kind: Kind, rivals: Mapping[str, Curves], found: Mapping[tuple[str, int, float], Curves], threshold: float
) -> list[Claim]:
    """The claims of figures 2 and 3 on one kind of federation."""
    few, many = min(s for _, s, _ in found), max(s for _, s, _ in found)
    low, high = min(a for *_, a in found), max(a for *_, a in found)
    n = len(kind.score(rivals[AVG]))
    ends = "mean over the last tenth of the evaluations, differences of paired seeds, t-interval"
    of = lambda w, s, a=low: kind.score(found[w, s, a])  # noqa: E731
    avg, sgd = kind.score(rivals[AVG]), kind.score(rivals[SGD])
    prefix, where = (f"{kind.name.strip(' ,').lower()}-", f" ({kind.name.strip(' ,')})") if kind.name else ("", "")
    unit = "log perplexity" if kind.metric == "test_perplexity" else "test accuracy"

    def all_of(differences: Mapping[str, np.ndarray], threshold: float) -> tuple[bool | None, str]:
        verdicts = {name: above(values, threshold) for name, values in differences.items()}
        return all_hold(*(v for v, _ in verdicts.values())), "; ".join(f"{w}: {t}" for w, (_, t) in verdicts.items())

    not_below, text = all_of({w: of(w, few) - avg for w in WEIGHTINGS}, -SLACK)
    near = {w: within(of(w, few) - sgd, CLOSE) for w in WEIGHTINGS}
    slower, slow_text = all_of(
        {w: kind.speed(found[w, few, low]) - kind.speed(found[w, many, low]) for w in WEIGHTINGS}, 0.0
    )
    behind, behind_text = all_of({w: of(w, many) - avg for w in WEIGHTINGS}, -CLOSE)
    calm = {w: kind.drawdown(found[CONST, many, high]) - kind.drawdown(found[w, many, high]) for w in (POLY, HINGE)}
    calmer, calm_text = all_of(calm, 0.0)
    apart = {s: _apart(found[CONST, s, low], found[HINGE, s, low]) for s in (few, many)}
    return [
        Claim(f"{prefix}not-below-fedavg", f"With staleness up to {few} FedAsync ends at least as well as FedAvg, with "
              f"every weighting{where}.", not_below, f"FedAsync less FedAvg in {unit}: {text}", ends,
              f"above -{SLACK} for all", n),
        Claim(f"{prefix}close-to-sgd", f"With staleness up to {few} FedAsync ends close to SGD{where}.",
              all_hold(*(v for v, _ in near.values())), "; ".join(f"{w}: {t}" for w, (_, t) in near.items()), ends,
              f"within {CLOSE} for all", n),
        *([] if few > threshold else [
        Claim(f"{prefix}const-is-hinge", f"With staleness up to {few} Const and Hinge give the same curve{where}.",
              apart[few] < SAME < apart[many], f"losses differ by {apart[few]:.1e} at most at S = {few}, by "
              f"{apart[many]:.1e} at S = {many}", "largest relative difference of all losses; the two rules are two "
              "programs, which may round differently", f"below {SAME:g}, and above it where the rules differ", n)]),
        Claim(f"{prefix}slower-when-stale", f"With staleness up to {many} FedAsync is slower than up to {few}{where}.",
              slower, slow_text, f"{unit}, mean over the first half, differences of paired seeds, t-interval",
              "above 0 for all", n),
        Claim(f"{prefix}stale-not-far-below-fedavg", f"With staleness up to {many} FedAsync is not much worse "
              f"than FedAvg{where}.", behind, behind_text, ends, f"above -{CLOSE} for all", n),
        Claim(f"{prefix}adaptive-is-steadier", f"With alpha = {high:g} and staleness up to {many} Poly and Hinge are "
              f"steadier than Const{where}.", calmer, calm_text, f"largest fall of {unit} in the second half, Const "
              "less the other, paired seeds, t-interval", "above 0 for both", n),
    ]  # fmt: skip


def _apart(one: Curves, other: Curves) -> float:
    a, b = one.metrics["loss"], other.metrics["loss"]
    return float(np.max(np.abs(a - b) / np.abs(a)))


def carry_out(kinds: Callable[[Mapping[str, Any]], Sequence[Kind]], bench: Bench) -> Findings:
    claims: list[Claim] = []
    figures: list[Figure] = []
    tables = []
    for kind in kinds(bench.scale):
        rivals = play_rivals(bench, kind)
        found = {
            (w, s, a): play_async(bench, kind, w, s, a)
            for a in bench.scale["mixings"] for s in bench.scale["staleness"] for w in WEIGHTINGS
        }  # fmt: skip
        judged = judge(kind, rivals, found, bench.scale["threshold"])
        claims += judged
        for a in bench.scale["mixings"]:
            shown = [*rivals.values(), *(course for (_, _, alpha), course in found.items() if alpha == a)]
            title = f"{kind.name}alpha = {a:g}"
            ids = [claim.id for claim in judged] if a == bench.scale["mixings"][0] else []
            word = "perplexity" if kind.metric == "test_perplexity" else "accuracy"
            log_y = kind.metric == "test_perplexity"
            figures.append(
                chart(f"{title}: test {word} by gradients", shown, kind.metric, "gradients", claims=ids, log_y=log_y)
            )
            figures.append(chart(f"{title}: test {word} by numbers sent", shown, kind.metric, "floats", log_y=log_y))
            figures.append(chart(f"{title}: training loss by gradients", shown, "loss", "gradients", log_y=True))
            tables.append(results(f"Ends of the runs, {title}", shown))
    return Findings(claims, figures, tables=tables)


# --- figure 4 ----------------------------------------------------------------------------------------------------


def judge_staleness(found: Mapping[tuple[str, int], np.ndarray]) -> list[Claim]:
    """Final accuracies (seed,) by weighting and largest staleness."""
    ages = sorted({s for _, s in found})
    n, text = len(next(iter(found.values()))), "paired seeds, t-interval"
    falls = {w: within_chain([found[w, s] for s in ages]) for w in WEIGHTINGS}
    lost = {w: above(MODEST - (found[w, ages[0]] - found[w, ages[-1]]), 0.0) for w in WEIGHTINGS}
    better = {f"{w} at {s}": above(found[w, s] - found[CONST, s], -SLACK) for w in (POLY, HINGE) for s in ages}
    gap = {
        w: above((found[w, ages[-1]] - found[CONST, ages[-1]]) - (found[w, ages[0]] - found[CONST, ages[0]]), 0.0)
        for w in (POLY, HINGE)
    }
    alike = {str(s): within(found[HINGE, s] - found[POLY, s], CLOSE) for s in ages}
    means = "; ".join(f"{w}: " + ", ".join(f"{found[w, s].mean():.3f} at {s}" for s in ages) for w in WEIGHTINGS)
    told = lambda verdicts: "; ".join(f"{name}: {words}" for name, (_, words) in verdicts.items())  # noqa: E731
    all_of = lambda verdicts: all_hold(*(holds for holds, _ in verdicts.values()))  # noqa: E731
    return [
        Claim("falls-with-staleness", "Final accuracy does not rise with the largest staleness.", all_of(falls), means,
              f"each difference of neighbours, {text}", f"below {SLACK} for all", n),
        Claim("modest-loss", f"From S = {ages[0]} to {ages[-1]} the loss of accuracy is modest.", all_of(lost),
              told(lost), f"what is left of {MODEST}, {text}", "above 0 for all", n),
        Claim("adaptive-not-below", "Poly and Hinge end at least as high as Const at every staleness.", all_of(better),
              means, text, f"above -{SLACK} for all", n),
        Claim("gap-widens", "Their lead over Const grows with staleness.", all_of(gap), told(gap), text,
              "above 0 for both", n),
        Claim("hinge-is-poly", "Hinge and Poly end alike.", all_of(alike), told(alike), text, f"within {CLOSE}", n),
    ]  # fmt: skip


def within_chain(ends: Sequence[np.ndarray]) -> tuple[bool | None, str]:
    """Whether no step up is larger than the slack."""
    steps = [above(SLACK - (b - a), 0.0)[0] for a, b in itertools.pairwise(ends)]
    return all_hold(*steps), ""


def _carry_out_staleness(bench: Bench) -> Findings:
    (kind,) = classifiers({**bench.scale, "splits": bench.scale["splits"][:1]})
    (mixing,) = bench.scale["mixings"]
    courses = {(w, s): play_async(bench, kind, w, s, mixing) for w in WEIGHTINGS for s in bench.scale["staleness"]}
    claims = judge_staleness({key: kind.score(course) for key, course in courses.items()})
    rows = [course for course in courses.values()]
    ages = bench.scale["staleness"]
    ends = {w: np.stack([kind.score(courses[w, s]) for s in ages], axis=1) for w in WEIGHTINGS}
    figures = [profile("Final test accuracy by the largest staleness", "largest staleness", ages, ends,
                       [claim.id for claim in claims])]  # fmt: skip
    figures += [
        chart(f"{w}: test accuracy by gradients", [c for (name, _), c in courses.items() if name == w],
              "test_accuracy", "gradients")
        for w in WEIGHTINGS
    ]  # fmt: skip
    return Findings(claims, figures, tables=[results("Ends of the runs", rows)])


def profile(
    title: str, x: str, at: Sequence[float], ends: Mapping[str, np.ndarray], claims: Sequence[str] = ()
) -> Figure:
    """Final accuracies (seed, point) of every weighting against what was varied."""
    rows = [row for weighting, table in ends.items() for row in banded(weighting, at, table)]
    note = "Means over seeds with 95 % bootstrap intervals."
    return Figure(title, lines(rows, x=x, y="final test accuracy"), note, tuple(claims))


# --- federations -------------------------------------------------------------------------------------------------


def classifiers(scale: Mapping[str, Any]) -> list[Kind]:
    return [
        Kind("" if len(scale["splits"]) == 1 else f"{name}, ", functools.partial(_classifier, scale, split))
        for name, split in scale["splits"]
    ]


def _classifier(scale: Mapping[str, Any], split: Mapping[str, Any], devices: int, seed: int) -> Federation:
    partition = {**split, "num_clients": devices} if devices > 1 else {"name": "iid", "num_clients": 1}
    return world(seed, scale["data"], partition, scale["model"], batch_size=scale["batch_size"])


SPLITS = (("iid", {"name": "iid"}), ("non-iid", {"name": "classes", "classes_per_client": 2}))
_COMMON: dict[str, Any] = {
    "num_local_steps": 10, "step_size": 0.1, "proximal_weight": 0.005, "threshold": 4.0, "staleness": (4, 16),
    "mixings": (0.6, 0.9), "splits": SPLITS,
}  # fmt: skip
_QUICK: dict[str, Any] = {
    **_COMMON, "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}, "devices": 50, "batch_size": 10,
    "gradients": 6000, "evaluations": 30, "seeds": range(10),
    "scaled": "a perceptron on 8 x 8 digits, 50 devices, 6000 gradients, in place of the CNN on CIFAR-10, 100 devices",
}  # fmt: skip
_FULL: dict[str, Any] = {
    **_COMMON, "data": {"name": "cifar10", "normalise": True}, "model": {"name": "cifar-cnn-async"}, "devices": 100,
    "batch_size": 50, "gradients": 20_000, "evaluations": 50, "seeds": range(10),
}  # fmt: skip
_ABOUT = (
    "Xie et al.'s simulation: each upload comes from a random device, trained from a model that is 0 to S versions "
    "old, uniformly. 10 local steps, step 0.1 for all, Poly with a = 0.5, Hinge with a = 10 and b = 4. Filled in, as "
    "the paper is silent: alpha = 0.6 and 0.9, the budget of gradients, equal devices, and a second split with two "
    "classes a device, as the text speaks of non-iid data. FedAvg asks 10 devices a round; SGD holds all data. "
    "GroupNorm stands in for BatchNorm. "
)
_COST = "Full: the paper's CNN takes about a second a gradient on two cores, which makes weeks; it was not run."
FIGURE_2 = Recipe(
    name="fedasync-2",
    title="FedAsync, FedAvg and SGD at equal numbers of gradients",
    source="Xie et al., figure 2",
    about=f"{_ABOUT}rho = 0.005. {_COST}",
    scales={"quick": _QUICK, "full": _FULL},
    carry_out=functools.partial(carry_out, classifiers),
)
FIGURE_4 = Recipe(
    name="fedasync-4",
    title="FedAsync and the largest staleness",
    source="Xie et al., figure 4",
    about=f"{_ABOUT}rho = 0.01, alpha = 0.9, iid. {_COST}",
    scales={
        name: {**scale, "proximal_weight": 0.01, "mixings": (0.9,), "staleness": (4, 8, 12, 16, 20)}
        for name, scale in (("quick", _QUICK), ("full", _FULL))
    },
    carry_out=_carry_out_staleness,
)
