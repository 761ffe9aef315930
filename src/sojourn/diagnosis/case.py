"""A diagnosis under way: whom to ask, where, how much, and what has been found so far."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from sojourn.core.facts import Facts
from sojourn.core.federation import Federation
from sojourn.diagnosis.asking import Asking, NotFiniteError, flat
from sojourn.diagnosis.findings import Cost, Measure

SYMBOLS = {
    "smoothness": "H", "strong_convexity": "mu", "weak_convexity": "-mu", "third_order_smoothness": "Q",
    "hessian_heterogeneity": "tau", "hessian_heterogeneity_frobenius": "tau_F", "hessian_heterogeneity_rms": "tau_rms",
    "hessian_heterogeneity_path": "tau_path", "optima_heterogeneity": "zeta_*", "optima_distance": "phi_*",
    "optima_heterogeneity_newton": "zeta_*", "optima_distance_newton": "phi_*", "optima_distance_proxy": "phi_*",
    "gradient_heterogeneity": "zeta", "gradient_gap": "gap", "noise": "sigma_2", "noise4": "sigma_4",
    "noise_mean": "sigma_2", "noise_at_optimum": "sigma_*", "kurtosis": "kurt", "start_distance": "B",
    "mean_optima_distance": "B-bar", "start_gap": "Delta", "f_star": "F*", "label_shift": "TV",
    "feature_shift": "shift", "smallest_client": "n_min", "largest_client": "n_max", "warm_up": "R", "miniature": "k",
}  # fmt: skip

VISITED = "visited models"  # sending them, and the exact gradients there


@dataclasses.dataclass
class Case:
    """Filled from the top down as the diagnosis goes on."""

    federation: Federation
    asking: Asking
    facts: Facts  # those that may be used: none, where estimates are to be compared with them
    scalars_only: bool
    seed: int
    num_products: int  # of one look at a spectrum
    num_evaluations: int  # of one minimisation
    start: np.ndarray
    here: np.ndarray = dataclasses.field(init=False)  # after the warm-up
    best: np.ndarray = dataclasses.field(init=False)  # the best model known
    here_name: str = "the start"
    best_name: str = "the start"
    path: list[np.ndarray] = dataclasses.field(default_factory=list)
    gradients: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # (M, d), by the name of the point
    tops: np.ndarray | None = None  # (M, d): directions of largest curvature
    optima: np.ndarray | None = None  # (M, d): where the clients went alone
    edge: tuple[float, float] | None = None  # smallest curvature met, and its doubt
    taus: dict[str, float] = dataclasses.field(default_factory=dict)  # by the name of the point
    measures: dict[str, Measure] = dataclasses.field(default_factory=dict)
    shared: dict[str, Cost] = dataclasses.field(default_factory=dict)  # of what serves several measures, by its name
    warnings: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)  # as answers were not finite

    def __post_init__(self) -> None:
        self.here = self.best = self.start
        self.path = [self.start]

    def value(self, name: str) -> float | None:
        found = self.measures.get(name)
        return None if found is None else found.value

    def tell(
        self, name: str, value: float, kind: str, at: str, how: str, *, low: float | None = None,
        high: float | None = None, note: str = "", cost: Cost | None = None,
    ) -> None:  # fmt: skip
        """Keeps a measure, with all that was spent since the last one; one that is not finite is left out."""
        if not math.isfinite(value):
            return self.warn(f"{name} came out as {value:g}, which says nothing, so it is left out.")
        spent = self.asking.take() if cost is None else cost
        clean = lambda number: None if number is None or not math.isfinite(number) else float(number)  # noqa: E731
        before = self.measures.get(name)
        spent = spent if before is None else before.cost + spent
        self.measures[name] = Measure(
            name, SYMBOLS[name], float(value), kind, at, how, spent, clean(low), clean(high), note
        )

    def tell_largest(self, name: str, value: float, kind: str, at: str, how: str, **more: Any) -> None:
        """Tells it, unless more was met before; that is then kept, and carries what this look took."""
        before = self.measures.get(name)
        if before is None or value > before.value:
            return self.tell(name, value, kind, at, how, **more)
        self.measures[name] = dataclasses.replace(before, cost=before.cost + self.asking.take())

    def book(self, entry: str) -> None:
        """What was spent and belongs to no single measure goes to an entry of its own."""
        spent = self.asking.take()
        if spent != Cost():
            self.shared[entry] = self.shared.get(entry, Cost()) + spent

    @contextlib.contextmanager
    def booked(self, entry: str) -> Iterator[None]:
        """What is spent inside goes to an entry of its own, even if it was in vain."""
        before = self.asking.take()
        try:
            yield
        finally:
            self.book(entry)
            self.asking.spent += before

    def known(self, *names: str) -> bool:
        """Tells what the facts know of these; whether that is all."""
        found = {name: getattr(self.facts, name, None) for name in names}
        for name, value in found.items():
            if value is not None and name not in self.measures:
                self.tell(name, value, "exact", "everywhere", "known to the problem", cost=Cost())
        return all(value is not None for value in found.values())

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def attempt(self, entry: str, what: str, measure: Callable[["Case"], None]) -> None:
        """Measures; what is not finite is left out and the rest goes on. What no measure took is booked at the end."""
        try:
            measure(self)
        except NotFiniteError:
            self.left_out.append(what)
        self.book(entry)

    def visit(self, point: np.ndarray) -> None:
        """Clients are told of a model once, for all that is asked there."""
        with self.booked(VISITED):
            self.asking.visit(point)

    def at(self, point: np.ndarray, name: str) -> np.ndarray:
        """Every client's gradient at a named point, asked for once."""
        if name not in self.gradients:
            with self.booked(VISITED):
                self.asking.visit(point)
                self.gradients[name] = self.asking.gradients(point)
                if not self.scalars_only:
                    self.asking.sent(up=self.asking.dimension)
        return self.gradients[name]

    def rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])


def vector_of(tree: object) -> np.ndarray:
    return np.asarray(flat(jax.tree.map(jax.numpy.asarray, tree)), float)
