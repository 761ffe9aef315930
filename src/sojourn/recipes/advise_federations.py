"""The federations of the study of advice: one table, read off before anything is run.

Those for development (seeds 0 to 9) may be looked at when rules of advice are set; those held out (seeds from 100 on,
with partitions `classes` and `mixed` that development never sees) are only judged on. Ten clients each. Data sets are
drawn down to a thousand samples or so, so that a grid of methods can be run on every one of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sojourn.config import validate
from sojourn.core.federation import Federation
from sojourn.experiment import build_federation
from sojourn.recipes.controlled_quadratics import controlled_quadratic

Family = Literal["quadratic", "logistic", "network"]
NUM_CLIENTS = 10
FIRST_HELD_OUT_SEED = 100
# Numbers that ten does not divide, one l2 and one batch size for a data set: its federations then share programs.
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "a9a": {"num_train": 1001, "num_test": 500},
    "w8a": {"num_train": 1501, "num_test": 500},
    "mushrooms": {"num_train": 1001, "num_test": 500},
    "mnist": {"num_train": 1001, "num_test": 500},
    "digits": {},
}
_L2 = {"a9a": 1e-2, "w8a": 1e-3, "mushrooms": 3e-3, "digits": 1e-2}


@dataclasses.dataclass(frozen=True)
class Declared:
    """One federation of the study. `options` are those of `controlled_quadratic`, or of a partition."""

    family: Family
    seed: int
    options: Mapping[str, Any]
    data: str = ""
    partition: str = ""
    batch_size: int | None = None
    l2: float = 0.0
    hidden: int = 0
    quick: bool = False  # also at the quick scale

    @property
    def held_out(self) -> bool:
        return self.seed >= FIRST_HELD_OUT_SEED

    @property
    def noisy(self) -> bool:
        return self.batch_size is not None or self.options.get("noise", 0.0) > 0

    @property
    def name(self) -> str:
        if self.family == "quadratic":
            told = [f"{_SHORT[key]} {value:g}" for key, value in self.options.items()]
            return f"quadratic {self.seed}: {', '.join(told)}"
        told = [f"{value:g}" for value in self.options.values()]
        how = f"batches of {self.batch_size}" if self.batch_size else "exact"
        what = f"l2 {self.l2:g}" if self.family == "logistic" else f"{self.hidden} units"
        return f"{self.data} {self.seed}: {' '.join([self.partition, *told])}, {how}, {what}"

    def build(self) -> Federation:
        if self.family == "quadratic":
            return controlled_quadratic(seed=self.seed, num_clients=NUM_CLIENTS, **self.options)
        problem: dict[str, Any] = {"weights": "size"}
        if self.batch_size is not None:
            problem["batch_size"] = self.batch_size
        tables: dict[str, Any] = {
            "data": {"name": self.data, "seed": self.seed, **_SIZES[self.data]},
            "partition": {"name": self.partition, "num_clients": NUM_CLIENTS, "seed": self.seed, **self.options},
            "algorithm": {"name": "fedavg", "step_size": 1.0},
            "run": {"rounds": 1},
        }
        if self.family == "logistic":
            tables["problem"] = {"name": "logistic-regression", "l2": self.l2, **problem}
        else:
            tables["problem"] = {"name": "classification", **problem}
            tables["model"] = {"name": "mlp", "hidden": [self.hidden], "seed": self.seed}
        return build_federation(validate(tables))


_SHORT = {"smoothness": "H", "condition": "kappa", "tau": "tau/H", "zeta_star": "zeta*", "phi_star": "phi*",
          "noise": "sigma"}  # fmt: skip


def _quadratics(*rows: tuple[Any, ...]) -> list[Declared]:
    """seed, H, H/mu, tau/H, zeta_*, phi_* (None: as it comes), sigma, and whether at the quick scale too."""
    found = []
    for seed, smoothness, condition, tau, zeta_star, phi_star, noise, quick in rows:
        values = {"smoothness": smoothness, "condition": condition, "tau": tau, "zeta_star": zeta_star}
        values |= {"phi_star": phi_star} if phi_star is not None else {}
        values |= {"noise": noise} if noise else {}
        found.append(Declared("quadratic", seed, values, quick=quick))
    return found


def _logistic(*rows: tuple[Any, ...]) -> list[Declared]:
    """data, seed, partition, its options, batch size (None: exact), and whether at the quick scale too."""
    return [
        Declared("logistic", seed, options, data, partition, batch_size, _L2[data], quick=quick)
        for data, seed, partition, options, batch_size, quick in rows
    ]


def _networks(*rows: tuple[Any, ...]) -> list[Declared]:
    """data, seed, partition, its options, and whether at the quick scale too."""
    return [
        Declared("network", seed, options, data, partition, batch_size=10, hidden=16, quick=quick)
        for data, seed, partition, options, quick in rows
    ]


FEDERATIONS: Sequence[Declared] = [
    # development, exact gradients; conditioned so badly that no client can settle the matter alone in a round
    *_quadratics(
        (0, 1.0, 50, 0.0, 0.0, None, 0, True),
        (1, 1.0, 50, 0.02, 0.0, None, 0, False),
        (2, 1.0, 50, 0.02, 1.0, None, 0, True),
        (3, 1.0, 50, 0.2, 0.3, None, 0, False),
        (4, 10.0, 50, 0.2, 3.0, None, 0, False),
        (5, 1.0, 50, 0.7, 0.0, None, 0, True),
        (6, 10.0, 50, 0.7, 3.0, None, 0, False),
        (0, 1.0, 300, 0.01, 0.0, None, 0, False),
        (1, 1.0, 300, 0.01, 1.0, None, 0, True),
        (2, 10.0, 300, 0.1, 0.3, None, 0, False),
        (3, 1.0, 300, 0.1, 1.0, 1.5, 0, False),
        (4, 1.0, 300, 0.5, 0.0, None, 0, False),
        (5, 1.0, 300, 0.5, 1.0, 2.0, 0, False),
        (6, 10.0, 300, 0.9, 1.0, None, 0, True),
        (7, 1.0, 2000, 0.01, 0.3, None, 0, False),
        (8, 1.0, 2000, 0.3, 0.3, None, 0, False),
    ),
    # development, noise
    *_quadratics(
        (0, 1.0, 50, 0.0, 0.0, None, 10.0, True),
        (1, 1.0, 50, 0.02, 1.0, None, 3.0, False),
        (2, 1.0, 50, 0.2, 0.3, None, 10.0, True),
        (3, 10.0, 50, 0.7, 1.0, None, 30.0, False),
        (4, 1.0, 300, 0.01, 0.0, None, 10.0, False),
        (5, 10.0, 300, 0.1, 1.0, None, 30.0, False),
        (6, 1.0, 300, 0.5, 0.3, 0.5, 3.0, False),
        (7, 1.0, 300, 0.9, 1.0, None, 3.0, False),
    ),
    # held out, exact gradients
    *_quadratics(
        (100, 1.0, 80, 0.0, 0.5, None, 0, True),
        (101, 3.0, 80, 0.05, 0.0, None, 0, False),
        (102, 1.0, 80, 0.05, 2.0, None, 0, True),
        (103, 3.0, 80, 0.4, 0.5, None, 0, True),
        (104, 1.0, 120, 0.8, 0.0, None, 0, False),
        (105, 1.0, 120, 0.3, 0.1, None, 0, False),
        (106, 3.0, 500, 0.01, 0.5, None, 0, True),
        (107, 1.0, 500, 0.05, 0.0, None, 0, False),
        (108, 1.0, 500, 0.3, 0.5, 1.0, 0, False),
        (109, 3.0, 500, 0.8, 2.0, None, 0, False),
        (110, 1.0, 1500, 0.02, 0.1, None, 0, False),
    ),
    # held out, noise
    *_quadratics(
        (111, 1.0, 80, 0.05, 0.5, None, 6.0, True),
        (112, 3.0, 80, 0.4, 0.0, None, 10.0, False),
        (113, 1.0, 80, 0.8, 2.0, None, 6.0, True),
        (114, 1.0, 500, 0.02, 0.5, None, 3.0, False),
        (115, 3.0, 500, 0.3, 0.5, None, 15.0, False),
    ),
    # development
    *_logistic(
        ("a9a", 0, "iid", {}, None, False),
        ("a9a", 1, "one-class", {}, None, True),
        ("a9a", 2, "dirichlet", {"concentration": 0.1}, 10, False),
        ("a9a", 3, "dirichlet", {"concentration": 0.5}, 10, False),
        ("a9a", 4, "shards", {"shards_per_client": 2}, 10, False),
        ("w8a", 0, "iid", {}, 10, True),
        ("w8a", 1, "dirichlet", {"concentration": 0.5}, 10, False),
        ("w8a", 2, "shards", {"shards_per_client": 2}, 10, False),
        ("mushrooms", 0, "iid", {}, None, False),
        ("mushrooms", 1, "dirichlet", {"concentration": 0.1}, 10, False),
        ("mushrooms", 2, "one-class", {}, 10, True),
        ("digits", 0, "one-class", {}, None, False),
        ("digits", 1, "dirichlet", {"concentration": 0.1}, 10, False),
        ("digits", 2, "q-share", {"own_share": 0.7}, 10, False),
    ),
    # held out
    *_logistic(
        ("a9a", 100, "classes", {"classes_per_client": 1}, 10, False),
        ("a9a", 101, "dirichlet", {"concentration": 0.2}, 10, False),
        ("a9a", 102, "mixed", {"skewed_share": 0.5, "classes_per_client": 1}, None, True),
        ("w8a", 103, "mixed", {"skewed_share": 0.5, "classes_per_client": 1}, 10, True),
        ("w8a", 104, "dirichlet", {"concentration": 0.1}, 10, False),
        ("mushrooms", 105, "shards", {"shards_per_client": 2}, None, False),
        ("mushrooms", 106, "mixed", {"skewed_share": 0.7, "classes_per_client": 1}, 10, True),
        ("digits", 107, "classes", {"classes_per_client": 2}, 10, False),
        ("digits", 108, "mixed", {"skewed_share": 0.7, "classes_per_client": 2}, None, False),
        ("digits", 109, "iid", {}, 10, False),
    ),
    # development
    *_networks(
        ("digits", 0, "iid", {}, False),
        ("digits", 1, "dirichlet", {"concentration": 0.1}, True),
        ("digits", 2, "shards", {"shards_per_client": 2}, False),
        ("digits", 3, "one-class", {}, False),
        ("mnist", 0, "iid", {}, False),
        ("mnist", 1, "dirichlet", {"concentration": 0.1}, False),
    ),
    # held out
    *_networks(
        ("digits", 100, "mixed", {"skewed_share": 0.7, "classes_per_client": 2}, True),
        ("digits", 101, "dirichlet", {"concentration": 0.3}, False),
        ("mnist", 102, "classes", {"classes_per_client": 2}, False),
        ("mnist", 103, "mixed", {"skewed_share": 0.5, "classes_per_client": 2}, False),
    ),
]
