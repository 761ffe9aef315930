"""Figure 3 of Xie et al.: FedAsync on a language model, by perplexity."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.config import validate
from sojourn.core.federation import Federation
from sojourn.experiment import build_federation
from sojourn.recipes.base import Recipe
from sojourn.recipes.fedasync import Kind, carry_out


def languages(scale: Mapping[str, Any]) -> Sequence[Kind]:
    return [Kind("", functools.partial(_language, scale), "test_perplexity")]


def _language(scale: Mapping[str, Any], devices: int, seed: int) -> Federation:
    """The text is dealt as it stands, so a seed only draws the start."""
    tables = {
        "problem": {"name": "language-model", **scale["problem"]},
        "data": scale["data"],
        "partition": {"name": "contiguous", "num_clients": devices},
        "model": {"name": "lstm", **scale["model"], "seed": seed},
        "algorithm": {"name": "fedavg", "step_size": 1.0},
        "run": {"rounds": 1},
    }
    return build_federation(validate(tables))


_COMMON: dict[str, Any] = {
    "num_local_steps": 10, "step_size": 20.0, "proximal_weight": 1e-4, "threshold": 2.0, "staleness": (4, 16),
    "mixings": (0.6, 0.9),
}  # fmt: skip
RECIPE = Recipe(
    name="fedasync-3",
    title="FedAsync on a language model",
    source="Xie et al., figure 3",
    about="An LSTM language model on contiguous stretches of text, one a device, batches of 20 windows of 35 tokens, "
    "gradients clipped to 0.25, step 20, rho = 1e-4, Hinge with a = 10 and b = 2; uploads start from models that are 0 "
    "to S versions old, uniformly. Filled in: 2 layers of 200 units, dropout 0.2, alpha = 0.6 and 0.9, 10 local steps, "
    "windows at random offsets with a fresh state. Differences are in log perplexity. Quick: 40,000 characters of "
    "tinyshakespeare on 20 devices, one layer of 48 units, batches of 10, 600 gradients, six seeds. Full: WikiText-2 "
    "on 100 devices; at a quarter of a second and more a gradient two cores need weeks, and it was not run.",
    scales={
        "quick": {
            **_COMMON, "problem": {"batch_size": 10, "bptt": 35, "clip": 0.25},
            "data": {"name": "tinyshakespeare", "num_train": 40_000, "num_test": 8000},
            "model": {"units": 48, "embedding": 48, "layers": 1}, "devices": 20, "gradients": 600, "evaluations": 10,
            "seeds": range(6),
            "scaled": "characters of tinyshakespeare on 20 devices and a small LSTM in place of WikiText-2 on 100",
        },
        "full": {
            **_COMMON, "problem": {"batch_size": 20, "bptt": 35, "clip": 0.25}, "data": {"name": "wikitext-2"},
            "model": {"units": 200, "embedding": 200, "layers": 2, "dropout": 0.2}, "devices": 100,
            "gradients": 20_000, "evaluations": 50, "seeds": range(10),
        },
    },
    carry_out=functools.partial(carry_out, languages),
)  # fmt: skip
