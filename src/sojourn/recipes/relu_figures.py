"""Deng and Mahdavi's three figures: Local SGD on deep ReLU networks, by width m, synchronisation gap tau and depth L.

The paper gives neither loss, batch, step nor budget. Filled in: cross-entropy (the squared loss of its theory beside
it), 50 samples a step, one step size per loss, L and m (the best of a declared grid at tau = 5 on identically
distributed clients) that is kept for every tau and split, and equal local iterations for all that is compared.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sojourn.algorithms import LocalSGD
from sojourn.core.federation import Federation
from sojourn.models.deep_relu import deep_relu
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Maker, Recipe, above, within
from sojourn.recipes.contest import Contender, Contest, Curves, Metric, caveats, chart, results, world
from sojourn.recipes.trends import all_hold

CROSS_ENTROPY, SQUARED = "cross-entropy", "squared"
IID, NON_IID = "IID", "non-IID"
SPLITS: dict[str, dict[str, Any]] = {IID: {"name": "iid"}, NON_IID: {"name": "shards", "shards_per_client": 2}}
# The squared loss has curvature up to m |x|^2 / (2 d), where |x|^2 is about 100 on MNIST and 12 on digits.
STEP_SIZES = {CROSS_ENTROPY: (0.01, 0.03, 0.1, 0.3), SQUARED: (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)}
BATCH_SIZE, TUNING_TAU = 50, 5
FAR, NEAR = 0.02, 0.02  # accuracy: "clearly worse" and "the same", declared before any run


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained, and on which split."""

    loss: str
    split: str
    depth: int = 1
    width: int = 50
    tau: int = 10


@dataclasses.dataclass(frozen=True)
class Results:
    """The courses of all cases of a figure, and what was named on the way."""

    curves: Mapping[Case, Curves]
    data: str  # the data set and the number of clients, in words

    def of(self, loss: str) -> list[Case]:
        return [case for case in self.curves if case.loss == loss]

    def final(self, case: Case, metric: Metric) -> np.ndarray:
        return self.curves[case].final(metric)


def play(bench: Bench, cases: Sequence[Case], name: Callable[[Case], str]) -> Results:
    """Tunes every (loss, L, m) once, at tau = 5 on the IID split, and plays all cases with what was found."""
    scale = bench.scale
    iterations, tuning = int(scale["iterations"]), int(scale["tuning_iterations"])
    tuner = Contest(bench, (), evaluations=1)
    tuned: dict[tuple[str, int, int], tuple[float, str]] = {}
    curves: dict[Case, Curves] = {}
    for case in cases:
        key = case.loss, case.depth, case.width
        if key not in tuned:
            there = dataclasses.replace(case, split=IID, tau=TUNING_TAU)
            tuned[key] = tuner.tune(_contender(scale, there, tuning, f"L {case.depth} m {case.width} {case.loss}"))
        step_size, caveat = tuned[key]
        every = _every(iterations // case.tau, scale["evaluations"], iterations // max(c.tau for c in cases))
        contest = Contest(bench, scale["seeds"], eval_every=every)
        label = f"{name(case)}, {case.split}"
        course = contest.play(_contender(scale, case, iterations, f"{label} {case.loss}"), step_size)
        curves[case] = dataclasses.replace(course, label=label, caveat=caveat)
    return Results(curves, f"{scale['data']['name']}, {scale['num_clients']} clients")


def _contender(scale: Mapping[str, Any], case: Case, iterations: int, label: str) -> Contender:
    home = functools.partial(_home, scale, case)
    make = lambda step: LocalSGD(step_size=step, num_local_steps=case.tau)  # noqa: E731
    return Contender(label, make, home, STEP_SIZES[case.loss], iterations // case.tau)


def _home(scale: Mapping[str, Any], case: Case, seed: int) -> Federation:
    model = {"name": "deep-relu", "width": case.width, "depth": case.depth, "train_top": True}
    partition = {**SPLITS[case.split], "num_clients": scale["num_clients"]}
    return world(seed, scale["data"], partition, model, loss=case.loss, batch_size=BATCH_SIZE)


def _every(rounds: int, evaluations: int, shortest: int) -> int:
    """Rounds between evaluations: about as many as asked for, and one of them at the end of the shortest run."""
    return max(d for d in range(1, shortest + 1) if shortest % d == 0 and d <= max(1, rounds // evaluations))


def _chain(found: Sequence[tuple[str, np.ndarray]], sign: float) -> tuple[bool | None, str]:
    """Whether each is below (sign 1) or above (sign -1) the next on paired seeds; the evidence lists all means."""
    steps = list(itertools.pairwise(found))
    verdicts = [above(sign * (b - a), 0.0)[0] for (_, a), (_, b) in steps]
    doubtful = [f"{a} to {b}" for ((a, _), (b, _)), held in zip(steps, verdicts, strict=True) if held is not True]
    text = ", ".join(f"{values.mean():.4g} at {name}" for name, values in found)
    return all_hold(*verdicts), text + (f"; not shown from {', '.join(doubtful)}" if doubtful else "")


def _edges(results: Results, cases: Sequence[Case]) -> str:
    """What is to be known of the choices of step sizes, one for every L and m; for the evidence."""
    shared = {f"L = {c.depth}, m = {c.width}, step {results.curves[c].step_size:g}": results.curves[c] for c in cases}
    return caveats(dataclasses.replace(course, label=label) for label, course in shared.items())


def _with_loss(loss: str, data: str) -> tuple[str, Maker, str]:
    """Ending of the id, whose claim it is, and what the text adds; the paper's own loss is unknown."""
    squared = loss == SQUARED
    return "-squared" if squared else "", "check" if squared else "paper", f" ({data}{', squared loss' * squared})"


# --- figure 1: width ---------------------------------------------------------------------------------------------


def judge_width(results: Results) -> list[Claim]:
    claims = []
    for loss in dict.fromkeys(case.loss for case in results.curves):
        ending, by, where = _with_loss(loss, results.data)
        cases = results.of(loss)
        edges, n = _edges(results, cases), len(results.final(cases[0], "loss"))
        by_split = {split: sorted((c for c in cases if c.split == split), key=lambda c: c.width) for split in SPLITS}
        for split, some in by_split.items():
            for metric, word, sign in (
                ("loss", "training loss falls", -1.0),
                ("test_accuracy", "test accuracy rises", 1.0),
            ):
                found = [(f"m = {c.width}", results.final(c, metric)) for c in some]  # type: ignore[arg-type]
                holds, text = _chain(found, sign)
                claims.append(Claim(
                    f"{'loss' if metric == 'loss' else 'accuracy'}-{split.lower()}{ending}",
                    f"After the same budget {word} from each width to the next, {split}{where}.", holds, text + edges,
                    "difference of neighbouring widths on paired seeds, t-interval", "all of one sign", n, by,
                ))  # fmt: skip
        gain = {
            s: results.final(v[-1], "test_accuracy") - results.final(v[0], "test_accuracy") for s, v in by_split.items()
        }
        holds, text = above(gain[NON_IID] - gain[IID], 0.0)
        low, high = by_split[IID][0].width, by_split[IID][-1].width
        claims.append(Claim(
            f"more-in-non-iid{ending}", f"The gain in test accuracy from m = {low} to m = {high} is larger for non-IID "
            f"clients{where}.",
            holds, f"{gain[NON_IID].mean():.4g} non-IID, {gain[IID].mean():.4g} IID; difference {text}{edges}",
            "difference of gains on paired seeds, t-interval", "above 0", n, by,
        ))  # fmt: skip
    return claims


def _carry_out_width(bench: Bench) -> Findings:
    widths = {CROSS_ENTROPY: bench.scale["widths"], SQUARED: bench.scale.get("squared_widths", ())}
    cases = [Case(loss, split, width=m) for loss in widths for m in widths[loss] for split in SPLITS]
    found = play(bench, cases, lambda case: f"m = {case.width}")
    return _findings(found, judge_width(found), ("rounds", "floats"))


# --- figure 2: synchronisation gap -------------------------------------------------------------------------------


def judge_gap(results: Results) -> list[Claim]:
    claims = []
    for loss in dict.fromkeys(case.loss for case in results.curves):
        ending, by, where = _with_loss(loss, results.data)
        cases = results.of(loss)
        edges, n = _edges(results, cases), len(results.final(cases[0], "loss"))
        ratios, early = {}, {}
        for split in SPLITS:
            some = sorted((c for c in cases if c.split == split), key=lambda c: c.tau)
            holds, text = _chain([(f"tau = {c.tau}", results.final(c, "loss")) for c in some], 1.0)
            claims.append(Claim(
                f"slower-{split.lower()}{ending}", "At equal iterations the training loss rises from each tau to the "
                f"next, {split}{where}.",
                holds, text + edges, "difference of neighbouring tau on paired seeds, t-interval", "all above 0", n, by,
            ))  # fmt: skip
            few, many = results.curves[some[0]], results.curves[some[-1]]
            ratios[split] = np.log(many.final("loss") / few.final("loss"))
            early[split] = few.metrics["loss"][:, few.rounds == many.rounds[-1]][:, 0] - many.final("loss")
        low, high = min(c.tau for c in cases), max(c.tau for c in cases)
        holds, text = above(ratios[NON_IID] - ratios[IID], 0.0)
        claims.append(Claim(
            f"slowdown-larger-in-non-iid{ending}", f"The slowdown, loss at tau = {high} over loss at tau = {low} after "
            f"equal iterations, is larger for non-IID clients{where}.",
            holds, f"factor {np.exp(ratios[NON_IID].mean()):.4g} non-IID, {np.exp(ratios[IID].mean()):.4g} IID; "
            f"difference of logarithms {text}{edges}",
            "difference of log ratios on paired seeds, t-interval", "above 0", n, by,
        ))  # fmt: skip
        verdicts = {split: above(values, 0.0) for split, values in early.items()}
        claims.append(Claim(
            f"faster-per-round{ending}", f"Per round it is the other way round: after as many rounds as tau = {high} "
            f"takes, its training loss is below that of tau = {low}, in both splits{where}.",
            all_hold(*(holds for holds, _ in verdicts.values())),
            "loss saved " + "; ".join(f"{split} {text}" for split, (_, text) in verdicts.items()) + edges,
            "difference on paired seeds, t-interval", "above 0", n, "check",
        ))  # fmt: skip
    return claims


def _carry_out_gap(bench: Bench) -> Findings:
    taus = {CROSS_ENTROPY: bench.scale["taus"], SQUARED: bench.scale.get("squared_taus", ())}
    cases = [Case(loss, split, tau=tau) for loss in taus for tau in taus[loss] for split in SPLITS]
    found = play(bench, cases, lambda case: f"tau = {case.tau}")
    return _findings(found, judge_gap(found), ("steps", "rounds", "floats"))


# --- figure 3: depth ---------------------------------------------------------------------------------------------


def judge_depth(results: Results) -> list[Claim]:
    claims = [_counts()]
    for loss in dict.fromkeys(case.loss for case in results.curves):
        ending, by, where = _with_loss(loss, results.data)
        for split in SPLITS:
            cases = [c for c in results.of(loss) if c.split == split]
            shallow = next(c for c in cases if c.depth == 1)
            deep = sorted((c for c in cases if c.depth > 1), key=lambda c: c.width)
            accuracy = {c: results.final(c, "test_accuracy") for c in cases}
            edges, n, depth = _edges(results, cases), len(accuracy[shallow]), deep[0].depth
            one = f"L = 1, m = {shallow.width}"
            holds, text = above(accuracy[shallow] - accuracy[deep[0]], FAR)
            claims.append(Claim(
                f"as-many-neurons-{split.lower()}{ending}", f"With as many neurons in all, L = {depth} and "
                f"m = {deep[0].width} is clearly worse than {one}, {split}{where}.",
                holds, f"accuracy lost: {text}{edges}", "difference on paired seeds, t-interval", f"above {FAR}", n, by,
            ))  # fmt: skip
            holds, text = _chain([(f"m = {c.width}", accuracy[c]) for c in deep], 1.0)
            claims.append(Claim(
                f"width-helps-{split.lower()}{ending}", f"At L = {depth} test accuracy rises from each width to the "
                f"next, {split}{where}.",
                holds, text + edges, "difference of neighbouring widths on paired seeds, t-interval", "all above 0", n,
                by,
            ))  # fmt: skip
            gap = accuracy[deep[-1]] - accuracy[shallow]
            inside = within(gap, NEAR)[0]
            claims.append(Claim(
                f"wide-is-equal-{split.lower()}{ending}", f"L = {depth}, m = {deep[-1].width} performs as {one} does, "
                f"{split}{where}.",
                inside, f"accuracy gained: {above(gap, 0.0)[1]}{edges}", "difference on paired seeds, t-interval",
                f"within {NEAR}", n, by,
            ))  # fmt: skip
    return claims


def num_weights(width: int, depth: int, input_shape: tuple[int, ...] = (28, 28), num_classes: int = 10) -> int:
    shapes = jax.eval_shape(
        lambda key: deep_relu(input_shape, num_classes, key, width=width, depth=depth, train_top=True),
        jax.random.key(0),
    )
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def _counts() -> Claim:
    large, small = num_weights(100, 5), num_weights(50, 1)
    return Claim(
        "parameter-counts", "On MNIST L = 5, m = 100 has 10 times the neurons of L = 1, m = 50 and more than 3 "
        "times the weights.",
        5 * 100 == 10 * 50 and large > 3 * small, f"{large} weights against {small}, {large / small:.4f} times",
        "count, the top layer included", "above 3",
    )  # fmt: skip


def _carry_out_depth(bench: Bench) -> Findings:
    shapes = [(1, bench.scale["shallow"]), *((bench.scale["depth"], m) for m in bench.scale["widths"])]
    cases = [Case(x, s, depth, m) for x in bench.scale["losses"] for depth, m in shapes for s in SPLITS]
    found = play(bench, cases, lambda case: f"L = {case.depth}, m = {case.width}")
    return _findings(found, judge_depth(found), ("rounds", "floats"))


# --- what they share ---------------------------------------------------------------------------------------------


def _findings(results_: Results, claims: Sequence[Claim], axes: Sequence[Any]) -> Findings:
    """Loss and accuracy of each split against every axis; claims stand beside the first figure of their split."""
    figures: list[Figure] = []
    tables = []
    shown: set[str] = set()
    for loss in dict.fromkeys(case.loss for case in results_.curves):
        for split in SPLITS:
            curves = [results_.curves[case] for case in results_.of(loss) if case.split == split]
            for axis in axes:
                metrics: tuple[Metric, ...] = ("loss", "test_accuracy")
                for metric in metrics:
                    ids = [c.id for c in claims if _belongs(c.id, split, loss) and c.id not in shown]
                    shown.update(ids)
                    word = "training loss" if metric == "loss" else "test accuracy"
                    title = f"{split}, {loss}: {word} by {'iterations' if axis == 'steps' else axis}"
                    figures.append(chart(title, curves, metric, axis, claims=ids, log_y=metric == "loss"))
        every = [results_.curves[case] for case in results_.of(loss)]
        tables.append(results(f"After the last round, {loss}", every))
    return Findings(claims, figures, tables=tables)


def _belongs(claim: str, split: str, loss: str) -> bool:
    stem = claim.removesuffix("-squared")
    if (stem != claim) != (loss == SQUARED):
        return False
    both = stem in {"more-in-non-iid", "slowdown-larger-in-non-iid", "faster-per-round", "parameter-counts"}
    return split == NON_IID if both else stem.endswith("non-iid") == (split == NON_IID)


_FILLED = (
    "All layers are trained and everyone takes part; batches of 50. The step size is the best of "
    "{0.01, 0.03, 0.1, 0.3} (squared loss: six values from 0.0003 to 0.1) at tau = 5 on IID clients, one for each "
    "L and m, by the training loss on a seed that is not judged. Non-IID: the samples sorted by label, two shards a "
    "client; a few shards hold the border of two labels. The squared loss is half the squared distance to one-hot "
    "labels. Quick: digits (8 x 8) on 10 clients instead of MNIST on 50, five seeds instead of four. "
)
_QUICK: dict[str, Any] = {
    "data": {"name": "digits", "test_share": 0.199},  # 1440 to train: equal clients in both splits, so one program
    "num_clients": 10, "iterations": 200, "tuning_iterations": 100, "evaluations": 10,
    "seeds": range(5), "scaled": "digits (8 x 8) on 10 clients in place of MNIST on 50",
}  # fmt: skip
_FULL: dict[str, Any] = {
    **_QUICK, "data": {"name": "mnist"}, "num_clients": 50, "seeds": range(4), "losses": (CROSS_ENTROPY,), "scaled": "",
}  # fmt: skip

WIDTH = Recipe(
    name="relu-1",
    title="Wider ReLU networks and Local SGD",
    source="Deng and Mahdavi, figure 1",
    about=_FILLED + "L = 1 and tau = 10. Full: 150 iterations (6 passes over MNIST), chosen so that m = 1000 can be "
    "afforded, three seeds, without the squared loss; it took ten minutes.",
    scales={
        "quick": {**_QUICK, "widths": (50, 200, 500, 1000), "squared_widths": (50, 200)},
        "full": {**_FULL, "iterations": 150, "tuning_iterations": 75, "evaluations": 5, "seeds": range(3),
                 "widths": (50, 200, 500, 1000)},
    },
    carry_out=_carry_out_width,
)  # fmt: skip
GAP = Recipe(
    name="relu-2",
    title="The synchronisation gap and Local SGD",
    source="Deng and Mahdavi, figure 2",
    about=_FILLED + "L = 1 and m = 50. All gaps make the same number of local iterations (full: 1000), hence rounds "
    "and floats in proportion to 1 / tau. Full took fourteen minutes on one core.",
    scales={
        "quick": {**_QUICK, "iterations": 400, "tuning_iterations": 200, "taus": (1, 5, 10, 20, 50),
                  "squared_taus": (1, 10, 50)},
        "full": {**_FULL, "iterations": 1000, "tuning_iterations": 250, "evaluations": 20, "taus": (1, 5, 10, 20, 50)},
    },
    carry_out=_carry_out_gap,
)  # fmt: skip
DEPTH = Recipe(
    name="relu-3",
    title="Deeper ReLU networks need width",
    source="Deng and Mahdavi, figure 3",
    about=_FILLED + f"tau = 10. The same number of neurons means in all: 5 x 10 = 50. Clearly worse: by {FAR} of "
    f"accuracy; the same: within {NEAR}. Full took thirteen minutes on one core.",
    scales={
        "quick": {**_QUICK, "losses": (CROSS_ENTROPY, SQUARED), "depth": 5, "shallow": 50, "widths": (10, 50, 100)},
        "full": {**_FULL, "iterations": 500, "tuning_iterations": 250, "depth": 5, "shallow": 50,
                 "widths": (10, 50, 100)},
    },
    carry_out=_carry_out_depth,
)  # fmt: skip
