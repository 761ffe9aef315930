"""FedAvg on small and large networks (Song et al., figures 1, 2 and 4): which is better, and which is steadier.

The paper gives neither step sizes nor rounds. "Averaged over 10 iterations" is read as ten independent runs, of which a
box plot shows the final accuracies. The two networks share seeds: the deal of the data, the clients of every round and
their samples are the same for both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from sojourn.algorithms import FedAvg
from sojourn.core.federation import Federation
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, above
from sojourn.recipes.charts import boxes
from sojourn.recipes.contest import Contender, Contest, Curves, caveats, chart, results, world
from sojourn.recipes.trends import all_hold, log_variance_ratio

SMALL, LARGE = "small", "large"
IID, MIXED = "iid", "non-iid"
STEP_SIZES = (0.01, 0.05, 0.1, 0.3, 1.0)
Cell = tuple[str, str]  # model, split


def measure(bench: Bench, data: Mapping[str, Any]) -> dict[Cell, Curves]:
    """The course of every model on every split of one data set."""
    scale = bench.scale
    contest = Contest(bench, range(scale["repeats"]), scale["cohort"], scale["evaluations"],
                      tuning_rounds=scale["tuning_rounds"])  # fmt: skip
    name = f"{data['name']} " if len(scale["data"]) > 1 else ""
    return {
        (kind, split): contest.play(_contender(f"{name}{kind}, {split}", scale, data, model, split))
        for kind, model in scale["models"].items()
        for split in (IID, MIXED)
    }


def _contender(
    label: str, scale: Mapping[str, Any], data: Mapping[str, Any], model: Mapping[str, Any], split: str
) -> Contender:
    """FedAvg on a network and a split, by the numbers of a scale."""
    shares = {"name": "iid"} if split == IID else {"name": "mixed", "skewed_share": scale["skewed_share"]}

    def home(seed: int) -> Federation:
        partition = {**shares, "num_clients": scale["num_clients"]}
        return world(seed, data, partition, model, batch_size=scale["batch_size"], weights="size")

    make = lambda step: FedAvg(step, scale["num_local_steps"])  # noqa: E731
    return Contender(label, make, home, scale["step_sizes"], scale["rounds"])


def judge(curves: Mapping[Cell, Curves], data: str) -> list[Claim]:
    """The paper's claims on one data set."""
    n = len(curves[SMALL, IID].final("loss"))
    where = f" ({data})"
    note = caveats(curves.values())
    paired, spread = "paired differences over seeds, t-interval", "log ratio of variances over runs, jackknife"

    lower = {s: above(curves[SMALL, s].final("loss") - curves[LARGE, s].final("loss"), 0.0) for s in (IID, MIXED)}
    higher = {
        s: above(curves[LARGE, s].final("test_accuracy") - curves[SMALL, s].final("test_accuracy"), 0.0)
        for s in (IID, MIXED)
    }
    calmer = {size: steadier(_late(curves[size, IID]), _late(curves[size, MIXED])) for size in (SMALL, LARGE)}
    boxes_ = steadier(*(curves[size, MIXED].final("test_accuracy") for size in (LARGE, SMALL)))
    return [
        Claim(
            f"{data}-lower-loss", f"The larger network has the lower training loss at the end, on both splits{where}.",
            _all(lower), _shown(lower) + note, f"small less large, {paired}", "above 0 on both splits", n,
        ),
        Claim(
            f"{data}-higher-accuracy", f"The larger network has the higher test accuracy, on both splits{where}.",
            _all(higher), _shown(higher) + note, f"large less small, {paired}", "above 0 on both splits", n,
        ),
        Claim(
            f"{data}-iid-steadier", f"Test accuracy varies less between runs when the data are iid, with either "
            f"network{where}.",
            _all(calmer), _shown(calmer) + note, f"{spread}; the variance is the mean over the evaluations of the "
            "second half", "iid below non-iid with both networks", n,
        ),
        Claim(
            f"{data}-large-steadier", f"On non-iid data the final test accuracy of the larger network varies less "
            f"between runs{where}.",
            boxes_[0], boxes_[1] + note, spread, "large below small", n,
        ),
    ]  # fmt: skip


def _late(course: Curves) -> np.ndarray:
    """Test accuracies (run, evaluation) in the second half of the rounds."""
    return course.metrics["test_accuracy"][:, 2 * course.rounds >= course.rounds[-1]]


def steadier(first: np.ndarray, second: np.ndarray) -> tuple[bool | None, str]:
    """Whether the first varies less over repetitions than the second; both (n,) or (n, points)."""
    verdict, text = above(-log_variance_ratio(first, second), 0.0)
    deviations = [float(np.sqrt(np.var(values, axis=0, ddof=1).mean())) for values in (first, second)]
    found = f"deviations {deviations[0]:.2g} and {deviations[1]:.2g}, log of the second variance over the first {text}"
    if np.ndim(first) == 1 and min(deviations) > 0:
        found += f"; Brown-Forsythe p = {stats.levene(first, second, center='median').pvalue:.2g}"
    return verdict, found


def _all(verdicts: Mapping[str, tuple[bool | None, str]]) -> bool | None:
    return all_hold(*(holds for holds, _ in verdicts.values()))


def _shown(verdicts: Mapping[str, tuple[bool | None, str]]) -> str:
    return "; ".join(f"{name}: {text}" for name, (_, text) in verdicts.items())


def figures(curves: Mapping[Cell, Curves], data: str, claims: Sequence[str]) -> list[Figure]:
    courses = list(curves.values())
    rows = [
        {"x": split, "y": float(accuracy), "of": size}
        for (size, split), course in curves.items()
        for accuracy in course.final("test_accuracy")
        if np.isfinite(accuracy)
    ]
    lower, higher, calmer, boxed = claims
    note = f"Every point is one of {len(courses[0].final('loss'))} runs; whiskers reach the extremes."
    return [
        chart(f"Training loss, {data}", courses, "loss", log_y=True, claims=(lower,)),
        chart(f"Test accuracy, {data}", courses, "test_accuracy", claims=(higher, calmer)),
        Figure(f"Final test accuracy of all runs, {data}", boxes(rows, x="split", y="test accuracy"), note, (boxed,)),
        chart(f"Training loss by what was sent, {data}", courses, "loss", "floats", log_x=True, log_y=True),
        chart(f"Test accuracy by what was sent, {data}", courses, "test_accuracy", "floats", log_x=True),
    ]


def carry_out(bench: Bench) -> Findings:
    claims: list[Claim] = []
    shown: list[Figure] = []
    tables = []
    for data in bench.scale["data"]:
        curves = measure(bench, data)
        judged = judge(curves, data["name"])
        claims += judged
        shown += figures(curves, data["name"], [claim.id for claim in judged])
        tables.append(results(f"Ends of the runs, {data['name']}", list(curves.values())))
    return Findings(claims, shown, tables=tables)


_PAPER = {"num_clients": 100, "cohort": 10, "step_sizes": STEP_SIZES, "repeats": 10}
_SKEW = "the others hold random samples"
MLP_FULL = {
    **_PAPER, "data": ({"name": "mnist"},), "skewed_share": 0.7, "batch_size": 10, "num_local_steps": 10,
    "rounds": 200, "tuning_rounds": 50, "evaluations": 5,
}  # fmt: skip
MLP_QUICK = {
    **MLP_FULL, "data": ({"name": "digits"},), "num_clients": 20, "cohort": 4, "tuning_rounds": 100, "evaluations": 20,
    "scaled": "8 x 8 digits in place of MNIST, 20 clients of which 4 take part, 200 rounds",
}  # fmt: skip
CIFAR_FULL = {
    **_PAPER, "data": ({"name": "cifar10"},), "skewed_share": 0.2, "batch_size": 32, "num_local_steps": 5,
    "rounds": 1000, "tuning_rounds": 300, "evaluations": 20,
}  # fmt: skip
# 1001 samples: sizes of clients then differ on both splits, which therefore share one compiled program
CIFAR_QUICK = {**CIFAR_FULL, "num_clients": 10, "cohort": 2, "repeats": 5, "evaluations": 4}
_MLPS = {SMALL: {"name": "mlp", "hidden": [32]}, LARGE: {"name": "mlp", "hidden": [1000]}}

WIDE_1 = Recipe(
    name="wide-1",
    title="FedAvg on a small and a large CNN",
    source="FedAvg on networks with one wide layer, figure 1",
    about="CIFAR-10 over 100 clients, 10 sampled per round, batches of 32, 5 local steps; on the non-iid split a fifth "
    f"of the clients hold two labels each, {_SKEW}. Filled in: steps tuned on {STEP_SIZES} by the training loss on a "
    "seed of its own, 1000 rounds, ten runs, no momentum. Quick: 1001 samples, 10 clients of which 2 take part, 60 "
    "rounds, a quarter of all channels and units (the networks' ratio of parameters stays 4.9), five runs. Full costs "
    "about 8 s a round of the large network on two cores: two days.",
    scales={
        "quick": {
            **CIFAR_QUICK, "data": ({"name": "cifar10", "num_train": 1001, "num_test": 500},), "rounds": 60,
            "tuning_rounds": 20,
            "models": {s: {"name": f"cifar-cnn-{s}", "width_share": 0.25} for s in (SMALL, LARGE)},
            "scaled": "1001 samples, 10 clients of which 2 take part, 60 rounds, a quarter of the width",
        },
        "full": {**CIFAR_FULL, "models": {s: {"name": f"cifar-cnn-{s}"} for s in (SMALL, LARGE)}},
    },
    carry_out=carry_out,
)  # fmt: skip

WIDE_2 = Recipe(
    name="wide-2",
    title="FedAvg on ResNet-18 and ResNet-50",
    source="FedAvg on networks with one wide layer, figure 2",
    about="As wide-1, with ResNets for small images whose normalisation is GroupNorm (the paper does not say which it "
    "uses, nor how clients' statistics would be averaged). Quick: 1001 images shrunk to 8 x 8 pixels, 10 clients of "
    "which 2 take part, 24 rounds, 8 channels in the first stage in place of 64, steps tuned on three values in 8 "
    "rounds, four runs: it shows the first rounds of learning only. By its operations (not timed) full costs minutes a "
    "round on two cores, which makes months.",
    scales={
        "quick": {
            **CIFAR_QUICK, "data": ({"name": "cifar10", "num_train": 1001, "num_test": 500, "shrink": 4},),
            "rounds": 24, "tuning_rounds": 8, "step_sizes": (0.03, 0.1, 0.3), "repeats": 4,
            "models": {
                SMALL: {"name": "resnet18", "width": 8, "groups": 4},
                LARGE: {"name": "resnet50", "width": 8, "groups": 4},
            },
            "scaled": "1001 images of 8 x 8 pixels, 10 clients of which 2 take part, 24 rounds, an eighth "
            "of the width",
        },
        "full": {**CIFAR_FULL, "models": {SMALL: {"name": "resnet18"}, LARGE: {"name": "resnet50"}}},
    },
    carry_out=carry_out,
)  # fmt: skip

WIDE_4 = Recipe(
    name="wide-4",
    title="FedAvg on a narrow and a wide MLP",
    source="FedAvg on networks with one wide layer, figure 4",
    about="MNIST over 100 clients, 10 sampled per round; ReLU networks of 32 and 1000 hidden units, batches of 10, 10 "
    f"local steps; on the non-iid split seven clients of ten hold two labels each, {_SKEW}. Filled in: steps tuned on "
    f"{STEP_SIZES} by the training loss after 50 rounds on a seed of its own, 200 rounds, ten runs, no momentum. "
    "Quick: the 8 x 8 digits over 20 clients of which 4 take part, 200 rounds. Full took twenty minutes on "
    "one core.",
    scales={"quick": {**MLP_QUICK, "models": _MLPS}, "full": {**MLP_FULL, "models": _MLPS}},
    carry_out=carry_out,
)
