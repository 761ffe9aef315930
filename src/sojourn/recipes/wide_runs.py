"""Runs of FedAvg with exact gradients on a network with one wide layer, small enough to look inside.

24 samples in 8 dimensions with random targets, layers of 8, 32, 6 and 2 units, four ways to deal the samples.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms.fedavg import FedAvg
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import Vec
from sojourn.models.wide_exchange import WideStart, features_of, smallest_singular_value, wide_pyramid
from sojourn.problems.finite import federation
from sojourn.recipes.base import Bench
from sojourn.sweeping import Setting
from sojourn.theory.wide_layer import (
    wide_corollary_1,
    wide_gradient_ceiling,
    wide_gradient_floor,
    wide_layer_gradient,
    wide_layer_output,
    wide_rate,
)

SAMPLES, INPUTS, WIDTHS, OUTPUTS = 24, 8, (32, 6), 2  # n = (8, 32, 6, 2), n_1 >= N
STEPS, STEP_SIZE, GAMMA, SHARPNESS, ZETA = 5, 0.01, 0.5, 10.0, 2.0
IID = "iid"
ROUNDING = 1e-20  # of the first loss: below it, double precision is at its end


def splits(seed: int) -> dict[str, list[np.ndarray]]:
    """Who holds which samples; `sorted` deals by the first target, as a split by class would."""
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(SAMPLES)
    _, targets = samples(seed)
    return {
        IID: np.split(order, 4),
        "sorted by target": np.split(np.argsort(targets[:, 0]), 4),
        "one sample each": np.split(order, SAMPLES),
        "1, 2, 5 and 16 samples": np.split(order, [1, 3, 8]),
    }


def samples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets without any relation: only memory can fit them."""
    rng = np.random.default_rng([seed, 0])
    return rng.normal(size=(SAMPLES, INPUTS)), rng.normal(size=(SAMPLES, OUTPUTS))


def squared_error(model: Any, batch: Any) -> jax.Array:
    x, y = batch
    return 0.5 * jnp.mean(jnp.sum((jax.vmap(model)(x) - y) ** 2, axis=-1))


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """The data of one seed, its clients, and the start they made."""

    parts: list[tuple[np.ndarray, np.ndarray]]
    start: WideStart

    def home(self) -> Federation:
        return federation(squared_error, self.start.model, self.parts, weights="size", setup=self.start.setup)


def world(seed: int, split: str, zeta: float = ZETA, width: int = WIDTHS[0]) -> World:
    x, y = samples(seed)
    parts = [(x[rows], y[rows]) for rows in splits(seed)[split]]
    start = wide_pyramid(
        (INPUTS,), OUTPUTS, root_key(seed), parts, widths=[width, *WIDTHS[1:]], gamma=GAMMA, sharpness=SHARPNESS,
        identity_scale=zeta,
    )  # fmt: skip
    return World(parts, start)


@dataclasses.dataclass(frozen=True, eq=False)
class Course:
    """Runs of all seeds in one setting: losses (seed, evaluation), and models at a few rounds."""

    worlds: Sequence[World]
    step_size: float
    rounds: np.ndarray  # (evaluation,)
    losses: np.ndarray
    stops: Sequence[int]  # rounds of the models
    models: Sequence[Sequence[Sequence[np.ndarray]]]  # [stop][seed] -> W_1 … W_L

    @property
    def stable(self) -> bool:
        return bool(np.isfinite(self.losses).all())

    def rates(self) -> np.ndarray:
        """How fast the log loss falls per round, over the second half of the rounds, for every seed."""
        return -_fits(self.rounds, self.losses)[0]

    def straightness(self) -> np.ndarray:
        """R^2 of the line through it."""
        return _fits(self.rounds, self.losses)[1]

    def rises(self) -> float:
        """The share of evaluations at which the loss is above the one before: steps too long for a steady descent."""
        return float((np.diff(self.losses, axis=1) > 0).mean())


def _fits(rounds: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and R^2 of lines through the second halves of the log losses, each as far as rounding lets it fall."""
    slopes, squares = [], []
    for row in losses:
        known = max(3, int(np.argmax(row < ROUNDING * row[0])) or len(row))
        at, logs = rounds[:known], np.log(np.maximum(row[:known], 1e-300))
        late = at >= at[-1] / 2
        slopes.append(np.polyfit(at[late], logs[late], 1)[0])
        squares.append(np.corrcoef(at[late], logs[late])[0, 1] ** 2 if np.ptp(logs[late]) > 0 else 0.0)
    return np.array(slopes), np.array(squares)


def follow(bench: Bench, name: str, worlds: Sequence[World], step_size: float, stops: int) -> Course:
    """FedAvg from the worlds' starts, halted at equal distances to look at the models."""
    rounds = bench.scale["rounds"]
    each = rounds // stops
    homes = [one.home() for one in worlds]
    losses, at, models = [], [], [[_matrices(home.x0.tree) for home in homes]]
    for number in range(stops):
        settings = [Setting(FedAvg(step_size=step_size, num_local_steps=STEPS), seed, {}, home)
                    for seed, home in enumerate(homes)]  # fmt: skip
        history = bench.sweep(f"{name}-{number:02d}", settings, each, eval_every=max(1, each // 20))
        table = history.table
        shown = table[table["loss"].notna() & ((table["round"] > 0) | (number == 0))]
        if table["diverged"].any():
            return Course(worlds, step_size, np.arange(2), np.full((len(homes), 2), np.inf), [], [])
        first = shown[shown["setting"] == 0]["round"].to_numpy()
        losses.append(shown["loss"].to_numpy().reshape(len(homes), -1))
        at.append(first + number * each)
        trees = [jax.tree.map(lambda a, i=i: a[i], eqx.filter(history.params, eqx.is_inexact_array))
                 for i in range(len(homes))]  # fmt: skip
        homes = [dataclasses.replace(home, x0=Vec(tree)) for home, tree in zip(homes, trees, strict=True)]
        models.append([_matrices(tree) for tree in trees])
    found = np.concatenate(at), np.concatenate(losses, axis=1)
    return Course(worlds, step_size, *found, [i * each for i in range(stops + 1)], models)


def _matrices(tree: Any) -> list[np.ndarray]:
    return [np.asarray(weight, float) for weight in tree.weights]


# --- looking inside ----------------------------------------------------------------------------------------------


def lemma_4_margins(course: Course) -> dict[str, float]:
    """The largest share of each bound of Lemma 4 that is used up, over stops, seeds, clients and all samples."""
    used: dict[str, float] = {}
    for models in course.models:
        for one, matrices in zip(course.worlds, models, strict=True):
            model = eqx.tree_at(lambda m: m.weights, one.start.model, tuple(jnp.asarray(w) for w in matrices))
            whole = tuple(np.concatenate(both) for both in zip(*one.parts, strict=True))
            for x, y in [whole, *one.parts]:
                gradient, out = _slope(model, x, y)
                norms = [float(np.linalg.norm(np.asarray(g))) for g in gradient.weights]
                features = features_of(x, matrices[0], model.activation)
                for name, share in _shares(matrices, norms, features, np.asarray(out), x, y).items():
                    used[name] = max(used.get(name, 0.0), share)
    return used


@eqx.filter_jit
def _slope(model: Any, x: Any, y: Any) -> tuple[Any, jax.Array]:
    """The gradient of the loss, and the outputs."""
    return jax.grad(squared_error)(model, (x, y)), jax.vmap(model)(x)


def _shares(
    matrices: Sequence[np.ndarray], norms: Sequence[float], features: np.ndarray, out: np.ndarray, x: np.ndarray,
    y: np.ndarray,
) -> dict[str, float]:  # fmt: skip
    """left / right of (27) to (30); at most 1 where they hold."""
    highs = np.array([np.linalg.norm(w, 2) for w in matrices])
    lows = [np.linalg.svd(w, compute_uv=False)[-1] for w in matrices[2:]]
    shared: dict[str, Any] = {"num_samples": len(x), "error": np.linalg.norm(out - y)}
    length, layers = np.linalg.norm(x), len(matrices)
    floor = wide_gradient_floor(
        **shared, floor=smallest_singular_value(features), slope=GAMMA, num_layers=layers, low_product=math.prod(lows)
    )
    others = [np.prod(np.delete(highs, i)) for i in range(layers)]
    each = [wide_layer_gradient(**shared, input_norm=length, other_product=product) for product in others]
    ceiling = wide_gradient_ceiling(**shared, input_norm=length, num_layers=layers, gain=max(others))
    ends = {0: np.linalg.norm(features), layers - 1: np.linalg.norm(out)}
    layer = max(
        size / wide_layer_output(input_norm=length, product=np.prod(highs[: i + 1])) for i, size in ends.items()
    )
    return {
        "(27)": floor / norms[1], "(28)": float(layer), "(29)": max(a / b for a, b in zip(norms, each, strict=True)),
        "(30)": float(np.linalg.norm(norms)) / ceiling,
    }  # fmt: skip


def movement(course: Course) -> np.ndarray:
    """(stop, seed, 4): the largest sigma_max(W_l)/Lam_l, the least sigma_min(W_l)/lam_l, l >= 3, and of sigma_min(F_1)
    and sigma_min(F_1k), over their values at the start. The proof wants at most 3/2, and at least 1/2 thrice."""
    first = [_singular(one, model) for one, model in zip(course.worlds, course.models[0], strict=True)]
    found = []
    for models in course.models:
        row = []
        for one, model, (highs, lows, floor, own) in zip(course.worlds, models, first, strict=True):
            now = _singular(one, model)
            bars = np.concatenate([2 / 3 * (1 + highs[:2]), highs[2:]])
            row.append([np.max(now[0] / bars), np.min(now[1] / lows), now[2] / floor, np.min(now[3] / own)])
        found.append(row)
    return np.array(found)


def _singular(one: World, matrices: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    values = [np.linalg.svd(w, compute_uv=False) for w in matrices]
    parts = [features_of(x, matrices[0], one.start.model.activation) for x, _ in one.parts]
    own = np.array([smallest_singular_value(part) for part in parts])
    highs, lows = np.array([v[0] for v in values]), np.array([v[-1] for v in values[2:]])
    return highs, lows, smallest_singular_value(np.concatenate(parts)), own


def within(moved: np.ndarray) -> bool:
    return bool((moved[..., 0] <= 1.5).all() and (moved[..., 1:] >= 0.5).all())


def pessimism(course: Course, zeta: float) -> tuple[bool, float]:
    """Whether Phi_t <= (1 - mu' eta)^t Phi_0 at all evaluations, and how many times faster the loss really falls."""
    kept, factors = True, []
    for one, losses in zip(course.worlds, course.losses, strict=True):
        rate = wide_rate(num_samples=SAMPLES, num_local_steps=STEPS, slope=GAMMA, num_layers=len(WIDTHS) + 1,
                         low_product=zeta ** (len(WIDTHS) - 1), floor=one.start.floor)  # fmt: skip
        promised = wide_corollary_1(rate=rate, step_size=course.step_size, rounds=course.rounds, loss=losses[0])
        kept = kept and bool((losses <= promised * (1 + 1e-9)).all())
        factors.append(math.log(losses[0] / losses[-1]) / course.rounds[-1] / (rate * course.step_size))
    return kept, float(np.median(factors))
