"""The findings of a diagnosis: numbers that say how they were come by, and the federation in miniature."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically

DIAGNOSIS_FILE = "diagnosis.json"
KINDS = ("exact", "unbiased estimate", "estimate", "lower bound", "upper bound")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a measurement took, over all clients together."""

    gradients: int = 0  # of one batch, or exact ones
    samples: int = 0  # that those and the products looked at
    products: int = 0  # of a client's Hessian with a vector
    floats_down: int = 0
    floats_up: int = 0
    rounds: int = 0  # trips of messages

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclasses.dataclass(frozen=True)
class Measure:
    """One number. Where `facts` has the same constant, `name` is its name there."""

    name: str
    symbol: str  # as the thesis writes it: "tau"
    value: float
    kind: str  # one of KINDS
    at: str  # where it was measured: "the start", "after 12 rounds", "everywhere"
    how: str  # in a phrase
    cost: Cost = Cost()
    low: float | None = None  # with `high`: an interval that holds it with 95 % confidence, or surely
    high: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Miniature:
    """The federation near a point, seen in a few directions: quadratic clients that a sweep can rehearse on.

    Client m's loss at `centre + basis @ y` is about losses[m] + gradients[m] . y + y . hessians[m] . y / 2. The basis
    is orthonormal and stays with the clients; only what is here was sent.
    """

    hessians: np.ndarray  # (M', k, k), symmetric
    gradients: np.ndarray  # (M', k) at the centre
    losses: np.ndarray  # (M',) at the centre
    weights: np.ndarray  # (M',) of the clients, summing to one
    start: np.ndarray  # (k,) where training begins, in these directions
    noise: np.ndarray  # (k, k) covariance of one call's gradient noise in these directions, mean over clients
    noise_outside: float  # the trace of the rest of that covariance
    missed: float  # share of the mean gradient's squared length at the start that lies outside these directions


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """All findings of one federation."""

    name: str  # of the federation
    num_clients: int
    dimension: int  # numbers in a model
    batch_size: int | None
    setting: str  # "strongly convex", "convex" or "non-convex"
    measures: Mapping[str, Measure]
    miniature: Miniature | None  # None in the mode that sends no vectors, or where products are not finite
    warnings: tuple[str, ...] = ()  # sentences on what is unusual, and what was done about it
    seed: int = 0
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # plain values for reports: sizes, histograms
    shared: Mapping[str, Cost] = dataclasses.field(default_factory=dict)  # work that belongs to no single measure

    def __getitem__(self, name: str) -> Measure:
        return self.measures[name]

    def value(self, name: str, default: float | None = None) -> float | None:
        """The number of a measure, or the default where it was not measured."""
        found = self.measures.get(name)
        return default if found is None else found.value

    @property
    def cost(self) -> Cost:
        """Of all measures, and of the work that several share."""
        return sum([*(measure.cost for measure in self.measures.values()), *self.shared.values()], Cost())

    def to_json(self) -> dict[str, Any]:
        """Plain values that a JSON file can hold."""
        plain = dataclasses.asdict(dataclasses.replace(self, measures={}, miniature=None))
        plain["warnings"] = list(self.warnings)
        plain["measures"] = {name: dataclasses.asdict(measure) for name, measure in self.measures.items()}
        if self.miniature is not None:
            fields = dataclasses.asdict(self.miniature)
            plain["miniature"] = {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in fields.items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Diagnosis":
        """What `to_json` made, back."""
        try:
            measures = {n: Measure(**{**m, "cost": Cost(**m["cost"])}) for n, m in plain["measures"].items()}
            small = plain["miniature"]
            if small is not None:
                arrays: dict[str, Any] = {
                    n: np.asarray(v, float) if isinstance(v, list) else v for n, v in small.items()
                }
                small = Miniature(**arrays)
            shared = {name: Cost(**cost) for name, cost in plain.get("shared", {}).items()}
            rest = {**plain, "measures": measures, "miniature": small, "warnings": tuple(plain["warnings"])}
            return cls(**{**rest, "shared": shared})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SojournError(f"this is no diagnosis, or one of another version: {error!r}.") from error


def save_diagnosis(found: Diagnosis, path: Path) -> None:
    """Writes it as JSON, whole or not at all."""
    text = json.dumps(found.to_json(), indent=1, allow_nan=False)
    write_atomically(Path(path), lambda place: place.write_text(text + "\n", encoding="utf-8"))


def load_diagnosis(path: Path) -> Diagnosis:
    """Reads what `save_diagnosis` wrote."""
    try:
        plain = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SojournError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise SojournError(f"{path} is not JSON: {error}.") from error
    return Diagnosis.from_json(plain)
