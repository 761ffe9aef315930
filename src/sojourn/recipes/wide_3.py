"""The special start against a random one (Song et al., figure 3).

With one hidden layer the paper's start has no scaled identities: W_1 ~ N(0, 1/d_in^2) and W_2 ~ N(0, kappa) with small
kappa, both in place of PyTorch's uniform weights. The paper does not name kappa.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.recipes.base import Bench, Claim, Findings, Recipe, within
from sojourn.recipes.contest import Curves, caveats, chart, results
from sojourn.recipes.trends import all_hold
from sojourn.recipes.wide import IID, MIXED, MLP_FULL, MLP_QUICK, Cell, measure

RANDOM, PROPOSED = "random start", "proposed start"
MARGIN = 0.01
_WIDE = {"name": "mlp", "hidden": [1000]}
_MODELS = {RANDOM: _WIDE, PROPOSED: {**_WIDE, "start": "wide"}}


def judge(curves: Mapping[Cell, Curves], data: str) -> Claim:
    ends = {cell: course.final("test_accuracy") for cell, course in curves.items()}
    found = {split: within(ends[PROPOSED, split] - ends[RANDOM, split], MARGIN) for split in (IID, MIXED)}
    verdicts = [holds for holds, _ in found.values()]
    return Claim(
        f"{data}-starts-equal", f"The final test accuracies of the two starts differ by less than a point, on both "
        f"splits ({data}).",
        all_hold(*verdicts),
        "; ".join(f"{split}: {text}" for split, (_, text) in found.items()) + caveats(curves.values()),
        "proposed less random, paired differences over seeds, t-interval", f"within {MARGIN} on both sides",
        len(ends[RANDOM, IID]),
    )  # fmt: skip


def _carry_out(bench: Bench) -> Findings:
    claims, figures, tables = [], [], []
    for data in bench.scale["data"]:
        curves, name = measure(bench, data), data["name"]
        claims.append(judge(curves, name))
        figures += _figures(list(curves.values()), name, claims[-1].id)
        tables.append(results(f"Ends of the runs, {name}", list(curves.values())))
    return Findings(claims, figures, tables=tables)


def _figures(courses: Sequence[Curves], data: str, claim: str) -> list[Any]:
    note = "Both starts send the same numbers, so that rounds and numbers sent tell the same story."
    return [
        chart(f"Test accuracy, {data}", courses, "test_accuracy", claims=(claim,)),
        chart(f"Training loss, {data}", courses, "loss", log_y=True),
        chart(f"Test accuracy by what was sent, {data}", courses, "test_accuracy", "floats", note=note),
        chart(f"Training loss by what was sent, {data}", courses, "loss", "floats", log_y=True, note=note),
    ]


RECIPE = Recipe(
    name="wide-3",
    title="The proposed start of FedAvg against a random one",
    source="FedAvg on networks with one wide layer, figure 3",
    about="The setting of wide-4 with 1000 hidden units, on MNIST and Fashion-MNIST. The proposed start draws W_1 from "
    "N(0, 1/d_in^2) and W_2 from N(0, 1e-4) (kappa is ours; the paper only says small), with biases at zero; the "
    "random one is PyTorch's, uniform within 1/sqrt(fan in). Each tunes its own step. Conditions (22) and (23) are not "
    "checked here: they ask for a hidden layer as wide as there are samples. Quick: the 8 x 8 digits over 20 clients "
    "of which 4 take part, 200 rounds, ten runs. Full: three runs of each; it took half an hour.",
    scales={
        "quick": {**MLP_QUICK, "models": _MODELS},
        "full": {
            **MLP_FULL, "models": _MODELS, "data": ({"name": "mnist"}, {"name": "fashion-mnist"}), "repeats": 3,
            "rounds": 150, "evaluations": 3,
        },
    },
    carry_out=_carry_out,
)  # fmt: skip
