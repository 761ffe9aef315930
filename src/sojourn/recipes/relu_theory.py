"""What Deng and Mahdavi prove of Local GD on deep ReLU networks, measured: lemmas 2, 4, 5, 6 and theorem 1.

Their constants are unknown, so statements O(g) are checked by their form: the measured quantity over g stays within a
band while m doubles. Setting: squared loss, one-hot targets, inputs of norm 1 that lie at least phi apart, the top
layer fixed, exact gradients, clients with two classes each.

Step sizes: the theorem prints eta = O(d n^2 / (m phi tau)); its proof needs eta <= d / (2 C'' L^2 m tau). The corrected
step here is d / (m tau L^2).
Paper to code: m -> width, L -> depth, K -> NUM_CLIENTS, d -> NUM_CLASSES, n -> the clients' samples.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.frozen import Frozen
from sojourn.data.digits import load_digits
from sojourn.models.deep_relu import DeepReLU, deep_relu
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Table
from sojourn.recipes.charts import lines

NUM_CLIENTS, NUM_CLASSES, CLOSEST = 5, 10, 0.4
BAND = 3.0  # largest over smallest value for which a quantity counts as unchanged while m doubles
SAME_SLOPE = 1.5  # the same for the rate, "nearly independent of m"
STRAIGHT = 0.7  # slope of the last quarter over that of the second; a power law has ln(4/3) / ln 2 = 0.415
OMEGAS = (0.001, 0.01, 0.1)
CORRECTED, PRINTED = "corrected", "printed"


@dataclasses.dataclass(frozen=True)
class Samples:
    """The clients' inputs (K, n, inputs) of norm 1 and one-hot targets (K, n, classes)."""

    x: np.ndarray
    y: np.ndarray

    @property
    def num_each(self) -> int:
        return int(self.x.shape[1])

    @property
    def separation(self) -> float:
        """phi: the smallest distance between two inputs."""
        x = self.x.reshape(-1, self.x.shape[-1])
        between = np.linalg.norm(x[:, None] - x[None], axis=-1)
        return float(between[~np.eye(len(x), dtype=bool)].min())


def samples(num_each: int, seed: int) -> Samples:
    """Random digits, those closer than CLOSEST to an earlier one left out; client i holds the classes 2 i, 2 i + 1."""
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.y_train))
    room = {label: num_each // 2 + (num_each % 2) * (label % 2 == 0) for label in range(NUM_CLASSES)}
    kept: list[np.ndarray] = []
    parts: dict[int, list[tuple[np.ndarray, int]]] = {i: [] for i in range(NUM_CLIENTS)}
    for row in order:
        x, label = data.x_train[row].astype(float).reshape(-1), int(data.y_train[row])
        x = x / np.linalg.norm(x)
        if room[label] and all(np.linalg.norm(x - other) >= CLOSEST for other in kept):
            kept.append(x)
            parts[label // 2].append((x, label))
            room[label] -= 1
    if any(room.values()):
        raise SojournError(f"there are not {num_each} digits per client at distance {CLOSEST}; ask for fewer.")
    one_hot = np.eye(NUM_CLASSES)
    return Samples(
        np.array([[x for x, _ in part] for part in parts.values()], np.float32),
        np.array([[one_hot[label] for _, label in part] for part in parts.values()], np.float32),
    )


def step_size(kind: str, width: int, depth: int, tau: int, given: Samples) -> float:
    """The printed step with the constant 1, or the corrected one."""
    if kind == CORRECTED:
        return NUM_CLASSES / (width * tau * depth**2)
    return NUM_CLASSES * given.num_each**2 / (width * given.separation * tau)


def network(width: int, depth: int, seed: int) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The paper's start: trained weights and the fixed top layer."""
    model = deep_relu((64,), NUM_CLASSES, jax.random.key(seed), width=width, depth=depth)
    return model.weights, model.top()


def loss(weights: Any, top: jax.Array, x: Any, y: Any) -> jax.Array:
    """L_i: half the squared distance to the targets, the mean over a client's samples."""
    scores = jax.vmap(DeepReLU(weights, Frozen(top)))(x)
    return 0.5 * jnp.mean(jnp.sum((scores - y) ** 2, -1))


def _square(tree: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def _less(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.subtract, a, b)


@functools.partial(jax.jit, static_argnames=("tau", "rounds"))
def local_gd(weights: Any, top: jax.Array, x: jax.Array, y: jax.Array, eta: Any, *, tau: int, rounds: int) -> Any:
    """Local GD with what happens inside the rounds.

    Per round: L and ||grad L||^2 at the server's model; per client as well, the local losses (tau + 1 of them), the
    squared local gradients (tau) and the squared distances from the server's model after each step (tau).
    """

    def walk(start: Any, inputs: jax.Array, targets: jax.Array) -> Any:
        def step(here: Any, _: None) -> Any:
            value, grad = jax.value_and_grad(loss)(here, top, inputs, targets)
            there = jax.tree.map(lambda w, g: w - eta * g, here, grad)
            return there, (value, _square(grad), _square(_less(there, start)))

        end, (values, grads, moved) = jax.lax.scan(step, start, None, length=tau)
        return end, (jnp.append(values, loss(end, top, inputs, targets)), grads, moved)

    def one_round(server: Any, _: None) -> Any:
        whole = lambda w: jnp.mean(jax.vmap(loss, (None, None, 0, 0))(w, top, x, y))  # noqa: E731
        value, grad = jax.value_and_grad(whole)(server)
        ends, (values, grads, moved) = jax.vmap(walk, (None, 0, 0))(server, x, y)
        found = {"loss": value, "grad": _square(grad), "losses": values, "grads": grads, "moved": moved}
        return jax.tree.map(lambda w: jnp.mean(w, 0), ends), found

    return jax.lax.scan(one_round, weights, None, length=rounds)


@dataclasses.dataclass(frozen=True)
class Course:
    """A run of Local GD in the units of the lemmas, one number or row per round."""

    width: int
    depth: int
    tau: int
    eta: float
    num_each: int
    separation: float
    loss: np.ndarray  # (rounds,)
    gradient: np.ndarray  # ||grad L||^2 d / (m L)
    losses: np.ndarray  # (rounds, clients, tau + 1), inside the rounds
    local_gradient: np.ndarray  # (rounds, clients, tau): ||grad L_i||^2 d / (m L_i)
    deviation: np.ndarray  # (rounds, clients, tau): ||W_i - W(t_c)||^2 / (eta^2 tau^2 (m / d) L_i(W(t_c)))

    def slope(self, start: float, end: float) -> float:
        """The mean decrease of log L per round between two shares of the run."""
        first, last = (round(share * (len(self.loss) - 1)) for share in (start, end))
        return float(np.log(self.loss[first] / self.loss[last]) / (last - first))

    @property
    def largest_rise(self) -> float:
        """Of a local loss in one local step, relative to it."""
        return float(np.max(self.losses[..., 1:] / self.losses[..., :-1] - 1))


def course(width: int, depth: int, tau: int, rounds: int, given: Samples, seed: int, kind: str = CORRECTED) -> Course:
    weights, top = network(width, depth, seed)
    eta = step_size(kind, width, depth, tau, given)
    _, raw = local_gd(weights, top, given.x, given.y, eta, tau=tau, rounds=rounds)
    found = {name: np.asarray(values, float) for name, values in raw.items()}
    per_unit = width / NUM_CLASSES
    with np.errstate(all="ignore"):  # a diverging run is a finding
        return Course(
            width, depth, tau, eta, given.num_each, given.separation, found["loss"],
            found["grad"] / (per_unit * found["loss"]), found["losses"],
            found["grads"] / (per_unit * found["losses"][..., :-1]),
            found["moved"] / (eta**2 * tau**2 * per_unit * found["losses"][..., :1]),
        )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("depth",))
def _gradient_change(
    weights: Any, top: jax.Array, x: jax.Array, y: jax.Array, key: jax.Array, omega: Any, depth: int
) -> Any:
    directions = [jax.random.normal(k, w.shape) for k, w in zip(jax.random.split(key, depth), weights, strict=True)]
    # a Gaussian matrix has spectral norm sqrt(rows) + sqrt(columns), nearly
    moved = tuple(
        w + omega * v / sum(math.sqrt(side) for side in v.shape) for w, v in zip(weights, directions, strict=True)
    )
    grads = jax.vmap(jax.grad(loss), (None, None, 0, 0))
    change = _square(_less(grads(moved, top, x, y), grads(weights, top, x, y))) / len(x)
    return change, jnp.mean(jax.vmap(loss, (None, None, 0, 0))(weights, top, x, y))


def gradient_change(width: int, depth: int, omega: float, given: Samples, seed: int) -> tuple[float, float]:
    """Lemma 5 for a random step of spectral norm omega in every layer: the change of the gradients over the whole
    bound, and over its Lipschitz part alone."""
    weights, top = network(width, depth, seed)
    change, value = _gradient_change(weights, top, given.x, given.y, jax.random.key(seed + 1), omega, depth)
    per_unit = width / NUM_CLASSES
    lipschitz = per_unit * depth**4 * omega**2
    offset = (omega ** (2 / 3) * depth**5 + omega**2 * depth**6) * per_unit * math.log(width) * float(value)
    return float(change) / (lipschitz + offset), float(change) / lipschitz


def curvature(width: int, depth: int, given: Samples, seed: int) -> float:
    """C'': what the loss has beyond its linear part a corrected step (tau = 1) down the gradient, over L^2 m / d and
    the step's square; the semi-smoothness constant is at least about this."""
    weights, top = network(width, depth, seed)
    whole = lambda w: jnp.mean(jax.vmap(loss, (None, None, 0, 0))(w, top, given.x, given.y))  # noqa: E731
    value, grad = jax.value_and_grad(whole)(weights)
    eta, square = step_size(CORRECTED, width, depth, 1, given), float(_square(grad))
    there = float(whole(jax.tree.map(lambda w, g: w - eta * g, weights, grad)))
    return (there - float(value) + eta * square) / (eta**2 * square * depth**2 * width / NUM_CLASSES)


# --- verdicts ----------------------------------------------------------------------------------------------------

By = Mapping[int, Sequence[Course]]  # the courses of all seeds, by width


def spread(by_width: Mapping[int, Sequence[float]]) -> float:
    """The largest over the smallest of the widths' means; infinite where one is not a positive number."""
    means = np.array([np.mean(values) for values in by_width.values()])
    return float(means.max() / means.min()) if np.isfinite(means).all() and means.min() > 0 else math.inf


def _shown(by_width: Mapping[int, Sequence[float]]) -> str:
    return ", ".join(f"{np.mean(values):.3g} at m = {m}" for m, values in by_width.items())


def _band(id: str, text: str, quantity: Mapping[int, Sequence[float]], statistic: str, by: Any = "paper",
          limit: float = BAND) -> Claim:  # fmt: skip
    found, n = spread(quantity), min(len(values) for values in quantity.values())
    evidence = f"{_shown(quantity)}; largest over smallest {found:.3g}"
    return Claim(id, text, found <= limit, evidence, statistic, f"largest over smallest at most {limit:g}", n, by)


def judge_monotone(depth: int, corrected: By, printed: Sequence[Course]) -> list[Claim]:
    runs = [run for some in corrected.values() for run in some]
    rise, steps = max(run.largest_rise for run in runs), sum(run.losses[..., 1:].size for run in runs)
    tall = min(run.largest_rise for run in printed)
    return [
        Claim(
            f"monotone-l{depth}", "Lemma 6 with the corrected step: no local loss rises in any local step, "
            f"L = {depth}.",
            rise <= 0, f"largest relative rise {rise:.3g} in {steps} steps", "largest over clients, rounds and steps",
            "at most 0", len(runs), "correction",
        ),
        Claim(
            f"not-with-the-printed-step-l{depth}", "With the printed step (constant 1) local losses rise inside "
            f"rounds, L = {depth}: lemma 6 does not hold for theorem 1's step.",
            not tall <= 0, f"largest relative rise at least {tall:.3g} on every seed, eta = {printed[0].eta:.3g} "
            f"against {printed[0].eta / _excess(printed[0]):.3g}",
            "largest over clients, rounds and steps", "above 0", len(printed), "correction",
        ),
    ]  # fmt: skip


def _excess(run: Course) -> float:
    """The printed step over the corrected one: n^2 L^2 / phi."""
    return run.num_each**2 * run.depth**2 / run.separation


def judge_gradient(depth: int, at_start: Mapping[int, Sequence[float]], corrected: By) -> list[Claim]:
    high = {m: [run.gradient.max() for run in some] for m, some in corrected.items()}
    low = {
        m: [(run.gradient * run.num_each**2 / run.separation).min() for run in some] for m, some in corrected.items()
    }
    return [
        _band(f"gradient-start-l{depth}", f"At the start ||grad L||^2 is of the order of m L / d, L = {depth}.",
              at_start, "||grad L||^2 d / (m L), mean over seeds"),
        _band(f"gradient-upper-l{depth}", "Lemma 2, upper side: the constant of ||grad L||^2 <= O(m L / d) along the "
              f"run does not move with m, L = {depth}.", high,
              "largest ||grad L||^2 d / (m L) of a run, mean over seeds"),
        _band(f"gradient-lower-l{depth}", "Lemma 2, lower side: nor does that of ||grad L||^2 >= Omega(m phi L / "
              f"(d n^2)), which stays above 0, L = {depth}.", low,
              "smallest ||grad L||^2 d n^2 / (m phi L) of a run, mean over seeds"),
    ]  # fmt: skip


def judge_deviation(depth: int, corrected: By, by_tau: Mapping[int, Sequence[Course]], by_n: By) -> list[Claim]:
    largest = lambda runs: [float(run.deviation.max()) for run in runs]  # noqa: E731
    claims = [
        _band(f"deviation-width-l{depth}", "Lemma 4: ||W_i - W(t_c)||^2 over eta^2 tau^2 (m / d) L_i(W(t_c)) does not "
              f"move with m, L = {depth}.", {m: largest(some) for m, some in corrected.items()},
              "largest over clients, rounds and steps, mean over seeds"),
    ]  # fmt: skip
    taus = {tau: largest(runs) for tau, runs in by_tau.items()}
    found = max(np.mean(v) for v in taus.values()) / np.mean(taus[min(taus)])
    text = ", ".join(f"{np.mean(values):.3g} at tau = {tau}" for tau, values in taus.items())
    claims.append(Claim(
        f"deviation-tau-l{depth}", f"Nor does it grow with tau, L = {depth}.", bool(found <= BAND), text,
        "largest over clients, rounds and steps, mean over seeds; over that at the smallest tau", f"at most {BAND:g}",
        len(taus[min(taus)]),
    ))  # fmt: skip
    runs = [run for some in (*corrected.values(), *by_n.values()) for run in some]
    over = max(float(run.deviation.max() / run.local_gradient.max()) for run in runs)
    sizes = {n: largest(some) for n, some in by_n.items()}
    text = ", ".join(f"{np.mean(values):.3g} at n = {n}" for n, values in sizes.items())
    claims.append(Claim(
        f"deviation-free-of-n-l{depth}", "Lemma 4 needs no factor n: the deviation is at most that with lemma 2's "
        f"constant in its place, L = {depth}.",
        over <= 1 + 1e-4, f"deviation over the largest ||grad L_i||^2 d / (m L_i): at most {over:.3g}; alone {text}",
        "largest over runs of both sides' ratio", "at most 1", len(runs), "correction",
    ))  # fmt: skip
    return claims


def judge_rate(depth: int, corrected: By, by_n: By) -> list[Claim]:
    late = {m: [run.slope(0.5, 1) for run in some] for m, some in corrected.items()}
    wide = corrected[max(corrected)]
    straight = [run.slope(0.75, 1) / run.slope(0.25, 0.5) for run in wide]
    falls = min(float(-np.diff(np.log(run.loss)).max()) for some in corrected.values() for run in some)
    by_size = {n: float(np.mean([run.slope(0.5, 1) for run in some])) for n, some in by_n.items()}
    few, many = min(by_size), max(by_size)
    return [
        Claim(
            f"every-round-l{depth}", f"The loss falls in every round at every width, L = {depth}.", falls > 0,
            f"smallest fall of log L in a round {falls:.3g}", "smallest over rounds, widths and seeds", "above 0",
            len(wide), "correction",
        ),
        Claim(
            f"linear-l{depth}", f"At m = {max(corrected)} log L falls linearly in the rounds, not like a power of "
            f"them, L = {depth}.",
            min(straight) >= STRAIGHT, f"ratios {', '.join(f'{ratio:.3g}' for ratio in straight)}; "
            "below 1 while fast modes still fade",
            "slope over the last quarter of the rounds over that of the second", f"at least {STRAIGHT} on every seed "
            "(a power law has 0.415)", len(wide), "correction",
        ),
        _band(f"rate-free-of-m-l{depth}", "With the corrected step the rate per round is nearly independent of m, "
              f"L = {depth}.", late, "slope of log L over the second half of the rounds, mean over seeds",
              "correction", SAME_SLOPE),
        Claim(
            f"rate-depends-on-n-l{depth}", f"It is not free of n, as theorem 1's e^(-Omega(R)) would be, L = {depth}.",
            by_size[few] >= SAME_SLOPE * by_size[many],
            f"slopes {by_size[few]:.3g} at n = {few}, {by_size[many]:.3g} at n = {many}",
            "slope over the second half of the rounds, mean over seeds", f"at least {SAME_SLOPE} times larger at the "
            "smaller n", len(by_n[few]), "correction",
        ),
    ]  # fmt: skip


def judge_lipschitz(depth: int, changes: Mapping[tuple[int, float], Sequence[tuple[float, float]]]) -> list[Claim]:
    """Of (width, omega) -> the ratios of `gradient_change` for every seed."""
    means = {key: np.mean(pairs, axis=0) for key, pairs in changes.items()}
    widths = sorted({m for m, _ in means})
    worst = {m: [max(float(pair[0]) for (width, _), pair in means.items() if width == m)] for m in widths}
    growth = max(value for (value,) in worst.values()) / worst[widths[0]][0]
    low, high, wide = min(OMEGAS), max(OMEGAS), widths[-1]
    alone = float(means[wide, low][1] / means[wide, high][1])
    n = len(changes[wide, low])
    return [
        Claim(
            f"semi-lipschitz-l{depth}", "Lemma 5: the change of the gradients over its bound does not grow with m, "
            f"L = {depth}.",
            growth <= BAND, f"{_shown(worst)}; largest over that at the smallest m {growth:.3g}",
            f"mean over seeds, largest over random steps of spectral norm {OMEGAS}", f"at most {BAND:g}", n,
        ),
        Claim(
            f"not-lipschitz-l{depth}", "The offset in lemma 5 is needed: over the Lipschitz part alone the change "
            f"grows as the step shrinks, at m = {wide}, where small steps still switch units; L = {depth}.",
            alone >= BAND, f"{alone:.3g} times larger at {low} than at {high}",
            "mean over seeds at the smallest step over that at the largest", f"at least {BAND:g}", n,
        ),
    ]  # fmt: skip


def judge_start(depth: int, values: Mapping[int, Sequence[float]]) -> Claim:
    """The bound n log^2 m on L(W(0)); the print has log L(W(0)) at the end of B.2, which would allow exp of that."""
    widths = sorted(values)
    per = {m: float(np.mean(values[m])) / math.log(m) ** 2 for m in widths}
    growth = max(per.values()) / per[widths[0]]
    return Claim(
        f"start-l{depth}", f"L(W(0)), not its logarithm, grows at most like n log^2 m (a slip in B.2), L = {depth}.",
        growth <= 1, f"L(W(0)) is {_shown(values)}", "largest L(W(0)) / log^2 m over that at the smallest m",
        "at most 1", len(values[widths[0]]), "correction",
    )  # fmt: skip


def judge_step(rows: Mapping[tuple[int, int], tuple[float, float]]) -> Claim:
    """Of (depth, n) -> the printed step over what the proof allows, and phi."""
    text = "; ".join(f"L = {depth}, n = {n}: {ratio:.3g} (phi {phi:.3g})" for (depth, n), (ratio, phi) in rows.items())
    return Claim(
        "printed-step", "Theorem 1's step violates its proof's condition eta <= d / (2 C'' L^2 m tau): the ratio is "
        "2 C'' L^2 n^2 / phi, which no constant makes at most 1 for all n.",
        min(ratio for ratio, _ in rows.values()) > 1, text, "printed step (constant 1) over the largest allowed, "
        "C'' as measured down the gradient at the start", "above 1", by="correction",
    )  # fmt: skip


# --- the recipe --------------------------------------------------------------------------------------------------


def _carry_out(bench: Bench) -> Findings:
    claims: list[Claim] = []
    figures: list[Figure] = []
    rows: list[tuple[str, ...]] = []
    steps: dict[tuple[int, int], tuple[float, float]] = {}
    for depth, scale in bench.scale["depths"].items():
        some, figure, table = _at_depth(depth, scale, bench.scale, steps)
        claims += some
        figures.append(figure)
        rows += table
    claims.append(judge_step(steps))
    columns = ("L", "m", "L(W(0))", "||grad L||^2 d / (m L) at the start", "loss at the end", "slope of log L")
    return Findings(claims, figures, tables=[Table("By width, means over seeds", columns, rows)])


def _at_depth(
    depth: int, scale: Mapping[str, Any], shared: Mapping[str, Any], steps: dict[tuple[int, int], tuple[float, float]]
) -> tuple[list[Claim], Figure, list[tuple[str, ...]]]:
    seeds, n, tau, rounds = (shared[name] for name in ("seeds", "num_each", "tau", "rounds"))
    few, middle = scale["widths"][0], scale["widths"][len(scale["widths"]) // 2]
    given = {seed: samples(n, seed) for seed in seeds}
    more = {seed: samples(shared["num_more"], seed) for seed in seeds}
    runs = {m: [course(m, depth, tau, rounds, given[s], s) for s in seeds] for m in scale["widths"]}
    starts = {m: [course(m, depth, 1, 1, given[s], s) for s in seeds] for m in scale["start_widths"]}
    by_tau = {t: [course(middle, depth, t, 20, given[s], s) for s in seeds] for t in shared["taus"]}
    by_n = {n: runs[middle], shared["num_more"]: [course(middle, depth, tau, rounds, more[s], s) for s in seeds]}
    printed = [course(middle, depth, tau, 2, given[s], s, PRINTED) for s in seeds]
    changes = {
        (m, w): [gradient_change(m, depth, w, given[s], s) for s in seeds]
        for m in scale["start_widths"]
        for w in OMEGAS
    }
    for some in (given[seeds[0]], more[seeds[0]]):
        excess = 2 * curvature(few, depth, some, seeds[0]) * depth**2 * some.num_each**2 / some.separation
        steps[depth, some.num_each] = excess, some.separation
    values = {m: [float(run.loss[0]) for run in every] for m, every in starts.items()}
    at_start = {m: [float(run.gradient[0]) for run in every] for m, every in starts.items()}
    claims = [
        *judge_monotone(depth, runs, printed), *judge_gradient(depth, at_start, runs),
        *judge_deviation(depth, runs, by_tau, by_n), *judge_lipschitz(depth, changes),
        *judge_rate(depth, runs, by_n), judge_start(depth, values),
    ]  # fmt: skip
    every = max(1, rounds // 100)
    points = [
        {"x": r, "y": float(np.exp(np.mean([np.log(run.loss[r]) for run in some]))), "line": f"m = {m}"}
        for m, some in runs.items() for r in range(0, rounds, every)
    ]  # fmt: skip
    spec = lines(points, x="round", y="training loss", log_y=True, points=False)
    figure = Figure(f"Local GD, L = {depth}", spec, "Geometric means over seeds.", tuple(claim.id for claim in claims))
    rows: list[tuple[str, ...]] = [
        (str(depth), str(m), f"{np.mean(values[m]):.4g}", f"{np.mean(at_start[m]):.4g}", *_ends(runs.get(m)))
        for m in scale["start_widths"]
    ]
    return claims, figure, rows


def _ends(runs: Sequence[Course] | None) -> tuple[str, str]:
    if runs is None:
        return "", ""
    return f"{np.mean([run.loss[-1] for run in runs]):.4g}", f"{np.mean([run.slope(0.5, 1) for run in runs]):.4g}"


_SHARED: dict[str, Any] = {"num_each": 4, "num_more": 12, "tau": 5, "taus": (1, 5, 20)}
RECIPE = Recipe(
    name="relu-theory",
    title="Local GD on deep ReLU networks: the lemmas, measured",
    source="Deng and Mahdavi, lemmas 2, 4, 5, 6 and theorem 1",
    about=f"Digits scaled to norm 1, none closer than {CLOSEST} to another, {NUM_CLIENTS} clients with two classes "
    "each; squared loss, the top layer fixed, exact gradients. Widths are far below the theorem's n^16, so the "
    f"lemmas' forms are checked, not its premise. Declared beforehand: a quantity is unchanged within a factor of "
    f"{BAND:g} over all widths, a rate within {SAME_SLOPE}.",
    scales={
        "quick": {**_SHARED, "seeds": (0, 1, 2), "rounds": 400, "depths": {
            1: {"widths": (128, 256, 512, 1024), "start_widths": (128, 256, 512, 1024, 2048, 4096)},
            3: {"widths": (64, 128, 256), "start_widths": (64, 128, 256, 512, 1024)},
        }},
        "full": {**_SHARED, "seeds": (0, 1, 2, 3, 4), "rounds": 1000, "depths": {
            1: {"widths": (128, 256, 512, 1024, 2048, 4096), "start_widths": (128, 256, 512, 1024, 2048, 4096)},
            3: {"widths": (128, 256, 512, 1024), "start_widths": (128, 256, 512, 1024, 2048, 4096)},
        }},
    },
    carry_out=_carry_out,
)  # fmt: skip
