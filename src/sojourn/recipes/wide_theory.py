"""The theory of Song et al.: what the proof says of FedAvg on a network with one wide layer, beside what happens."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, Table, above
from sojourn.recipes.charts import banded, lines
from sojourn.recipes.trends import all_hold
from sojourn.recipes.wide_runs import (
    GAMMA,
    IID,
    INPUTS,
    OUTPUTS,
    SAMPLES,
    STEP_SIZE,
    STEPS,
    WIDTHS,
    ZETA,
    Course,
    World,
    follow,
    lemma_4_margins,
    movement,
    pessimism,
    splits,
    within,
    world,
)

ZETAS = (1.0, 2.0, 5.0, 10.0)
POWERS = range(17)  # of ten: the zetas among which one is sought that meets the conditions
NARROW = 12  # n_1 of the control
STRAIGHT = 0.9  # R^2 of the line through the log loss
_FEDAVG = {"class": "FedAvg", "num_local_steps": STEPS}
_SHARES = ("largest sigma_max(W_l) / Lam_l", "least sigma_min(W_3)", "least sigma_min(F_1)", "least sigma_min(F_1k)")
_NARROW_LINE = f"n_1 = {NARROW} < N"


def judge_decay(by_split: Mapping[str, Course]) -> list[Claim]:
    """Linear convergence under every split."""
    straight = {name: _straight(course.straightness()) for name, course in by_split.items()}
    fast = {name: above(course.rates(), 0.0) for name, course in by_split.items()}
    ends = ", ".join(f"{np.median(c.losses[:, -1] / c.losses[:, 0]):.2g} ({name})" for name, c in by_split.items())
    told = lambda found: "; ".join(f"{name}: {text}" for name, (_, text) in found.items())  # noqa: E731
    number = len(next(iter(by_split.values())).worlds)
    return [
        Claim(
            "linear", "With n_1 >= N the log loss falls along a line, whatever the split.", _of(straight),
            f"{told(straight)}. {_rises(by_split)}",
            "R^2 of the line through log Phi over the second half of the rounds, t-interval of log(1 - R^2) over seeds",
            f"above {STRAIGHT} on every split", number,
        ),
        Claim(
            "rate", "Its rate is bounded away from zero on every split.", _of(fast),
            f"{told(fast)}. Median of the last loss over the first: {ends}",
            "decrease of log Phi per round over the second half, t-interval over seeds", "above 0 on every split",
            number,
        ),
    ]  # fmt: skip


def judge_inside(margins: Mapping[str, float], moved: Mapping[str, np.ndarray], number: int) -> list[Claim]:
    """Lemma 4 along the runs, and the range of the singular values."""
    ends = {name: [found[..., 0].max(), *found[..., 1:].min(axis=(0, 1))] for name, found in moved.items()}
    words = "; ".join(f"{name}: {', '.join(f'{share:.3g}' for share in shares)}" for name, shares in ends.items())
    return [
        Claim(
            "lemma-4", "Lemma 4's bounds (27) to (30) hold at every stop of every run, of clients and of all samples.",
            all(share <= 1 + 1e-9 for share in margins.values()),
            ", ".join(f"{name} uses {share:.3g} of its bound at most" for name, share in margins.items()),
            "largest left / right", "at most 1", number, "correction",
        ),
        Claim(
            "range", f"From zeta = {ZETA:g} sigma_max(W_l) stays below 3/2 Lam_l, and sigma_min of W_3, of F_1 and of "
            "every F_1k above half of what it was.", all(within(found) for found in moved.values()),
            f"{', '.join(_SHARES)}: {words}", "extremes over stops and seeds; (72) "
            "and (73) do not hold here, so nothing was promised",
            "at most 1.5, at least 0.5", number, "check",
        ),
    ]  # fmt: skip


def judge_zeta(by_zeta: Mapping[float, Course], number: int) -> Claim:
    """Larger zeta is faster, as long as the run is stable."""
    stable = [zeta for zeta, course in by_zeta.items() if course.stable]
    logs = {zeta: np.log(by_zeta[zeta].losses[:, -1]) for zeta in stable}
    gains = {f"{a:g} to {b:g}": above(logs[a] - logs[b], 0.0) for a, b in itertools.pairwise(stable)}
    lost = ", ".join(f"{zeta:g}" for zeta in by_zeta if zeta not in stable) or "none"
    ends = ", ".join(f"{np.exp(logs[zeta].mean()):.3g} at {zeta:g}" for zeta in stable)
    detail = "; ".join(f"{name}: {text}" for name, (_, text) in gains.items())
    return Claim(
        "zeta", f"At one step size, {STEP_SIZE:g}, a larger zeta is faster until the run is unstable.",
        _of(gains) if gains else None,
        f"geometric means of the last loss: {ends}; diverged: {lost}. Log loss gained from {detail}. "
        f"{_rises({f'zeta = {zeta:g}': by_zeta[zeta] for zeta in stable})}",
        "paired differences of the last log loss, t-interval over seeds", "above 0 from each stable zeta to the next",
        number, "check",
    )  # fmt: skip


def judge_guarantee(by_split: Mapping[str, Course], certified: Course | None, zeta: float | None) -> list[Claim]:
    """The promised rate, on runs that do not keep the proof's conditions and on those that do."""
    kept = {name: pessimism(course, ZETA) for name, course in by_split.items()}
    first = next(iter(by_split.values())).worlds
    allowed = _checked(first[0], None)["largest_step_size"]
    faster = ", ".join(f"{times:.3g} ({name})" for name, (_, times) in kept.items())
    claims = [
        Claim(
            "guarantee", "Phi_t <= (1 - mu' eta)^t Phi_0 along every run.", all(found for found, _ in kept.values()),
            f"the loss falls so many times faster than promised (median): {faster}. Of the step sizes that the proof "
            f"allows the largest is {allowed:.2g}, {STEP_SIZE / allowed:.1g} times smaller than the one used",
            "all evaluations; (72) and (73) do not hold here, so nothing was promised", "below the bound", len(first),
            "check",
        )
    ]  # fmt: skip
    if certified is not None and zeta is not None:
        moved, (held, times) = movement(certified), pessimism(certified, zeta)
        claims.append(
            Claim(
                "certified", "From a zeta at which (72) and (73) hold, the singular values stay in the proof's range "
                "and the loss below its bound.", within(moved) and held,
                f"zeta = {zeta:g}: sigma_max(W_l) / Lam_l at most {moved[..., 0].max():.3g}, shares of sigma_min at "
                f"least {moved[..., 1:].min():.3g}; the loss falls {times:.3g} times faster than promised",
                "extremes over stops and seeds", "range and bound of the proof", len(certified.worlds), "correction",
            )
        )  # fmt: skip
    return claims


def judge_conditions(by_power: Mapping[int, Sequence[World]]) -> list[Claim]:
    """What the conditions of the start say at this size, for zeta = 10^power."""
    exact = {power: [_checked(one, None) for one in worlds] for power, worlds in by_power.items()}
    batch = {power: [_checked(one, 1) for one in worlds] for power, worlds in by_power.items()}
    met = first_certified(by_power)
    low, high = min(by_power), max(by_power)
    at = lambda power, corrected: f"10^{_excess(batch[power], corrected):.3g} at zeta = 1e{power}"  # noqa: E731
    number = len(by_power[low])
    return [
        Claim(
            "conditions-22-23", f"Some zeta up to 1e{high} meets (22) and (23), written out as (67) and (68), for "
            "batches of one sample.", any(all(_met(found, False) for found in worlds) for worlds in batch.values()),
            f"as printed a left side exceeds its right by {at(low, False)} and {at(high, False)}; with the true S^T by "
            f"{at(low, True)} and {at(high, True)}", "conditions, evaluated", "all hold on every seed", number,
        ),
        Claim(
            "conditions-72-73", f"Some zeta up to 1e{high} meets (72) and (73) with |f_0 - y| for N, for exact "
            "gradients.", met is not None,
            f"short by 10^{_excess(exact[low], True):.3g} at zeta = 1e{low}; "
            + ("never met" if met is None else f"met from zeta = 1e{met}"),
            "conditions, evaluated", "all hold on every seed", number, "correction",
        ),
    ]  # fmt: skip


def judge_narrow(narrow: Course) -> Claim:
    """The control: the theory is silent where the wide layer is not wide."""
    floors = [one.start.floor for one in narrow.worlds]
    what = "unstable"
    if narrow.stable:
        left = np.median(narrow.losses[:, -1] / narrow.losses[:, 0])
        what = f"rate {above(narrow.rates(), 0.0)[1]}, R^2 {narrow.straightness().mean():.3f}, loss left {left:.2g}"
    return Claim(
        "narrow", f"Nothing is promised for n_1 = {NARROW} < N: a_0 is 0, and with it mu'.", max(floors) == 0,
        f"a_0 at most {max(floors):g}. What happens all the same: {what}", "a_0, evaluated", "0", len(floors), "check",
    )  # fmt: skip


def first_certified(by_power: Mapping[int, Sequence[World]]) -> int | None:
    """The least power of ten that meets the corrected (72) and (73) on every seed."""
    return next((p for p, worlds in by_power.items() if all(_met(_checked(w, None), True) for w in worlds)), None)


def _checked(one: World, batch_size: int | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = one.start.setup.told(_FEDAVG, batch_size)["checked"]
    return found


def _met(checked: Mapping[str, Any], corrected: bool) -> bool:
    """Whether all conditions hold, as printed or corrected; where a_0 is 0 there are none, and they do not."""
    found = [c["holds"] for c in checked.get("conditions", ()) if c["corrected"] == corrected]
    return bool(found) and all(found)


def _excess(several: Sequence[Mapping[str, Any]], corrected: bool) -> float:
    """The largest log10 of left over right among the conditions, as printed or corrected."""
    return max(
        c["left_log10"] - c["right_log10"]
        for found in several
        for c in found["conditions"]
        if c["corrected"] == corrected
    )


def _straight(squares: np.ndarray) -> tuple[bool | None, str]:
    """Whether R^2 is above what is asked; an interval of log(1 - R^2), as one of R^2 would reach beyond 1."""
    left = np.log(np.maximum(1 - squares, 1e-16))
    holds, _ = above(-left, -math.log(1 - STRAIGHT))
    return holds, f"R^2 {1 - math.exp(left.mean()):.4f} (least {squares.min():.4f}, n = {len(squares)})"


def _rises(courses: Mapping[str, Course]) -> str:
    shares = ", ".join(f"{course.rises():.0%} ({name})" for name, course in courses.items())
    return f"Evaluations at which the loss had risen: {shares}"


def _of(found: Mapping[str, tuple[bool | None, str]]) -> bool | None:
    return all_hold(*(verdict for verdict, _ in found.values()))


def _carry_out(bench: Bench) -> Findings:
    with jax.enable_x64(True):
        return _in_double(bench)


def _in_double(bench: Bench) -> Findings:
    seeds, stops = range(bench.scale["seeds"]), bench.scale["stops"]

    def runs(name: str, step_size: float, stops: int, **kind: Any) -> Course:
        return follow(bench, name, [world(seed, **kind) for seed in seeds], step_size, stops)

    by_split = {name: runs(name, STEP_SIZE, stops, split=name) for name in splits(0)}
    by_zeta = {
        zeta: by_split[IID] if zeta == ZETA else runs(f"zeta {zeta:g}", STEP_SIZE, 1, split=IID, zeta=zeta)
        for zeta in ZETAS
    }
    narrow = runs("narrow", STEP_SIZE, 1, split=IID, width=NARROW)
    by_power = {power: [world(seed, IID, 10.0**power) for seed in seeds] for power in POWERS}
    power = first_certified(by_power)
    zeta = None if power is None else 10.0**power
    certified = None
    if zeta is not None:  # the loss curves like zeta^2 in W_2, so the step shrinks with it
        certified = runs("certified", STEP_SIZE * (ZETA / zeta) ** 2, stops, split=IID, zeta=zeta)
    margins: dict[str, float] = {}
    for course in by_split.values():
        for name, share in lemma_4_margins(course).items():
            margins[name] = max(share, margins.get(name, 0.0))
    moved = {name: movement(course) for name, course in by_split.items()}
    claims = [
        *judge_decay(by_split), *judge_inside(margins, moved, len(seeds)), judge_zeta(by_zeta, len(seeds)),
        *judge_guarantee(by_split, certified, zeta), *judge_conditions(by_power), judge_narrow(narrow),
    ]  # fmt: skip
    return Findings(claims, _figures(by_split, by_zeta, narrow, moved), tables=[_sent(by_split)])


def _figures(
    by_split: Mapping[str, Course], by_zeta: Mapping[float, Course], narrow: Course, moved: Mapping[str, np.ndarray]
) -> list[Figure]:
    rows = [row for name, course in by_split.items() for row in _curve(name, course)] + _curve(_NARROW_LINE, narrow)
    decay = lines(rows, x="round", y="training loss", log_y=True, points=False, dashed=(_NARROW_LINE,))
    values = []
    for name, table in moved.items():
        for number, word in enumerate(_SHARES):
            extreme = (np.max if number == 0 else np.min)(table[..., number], axis=1)
            values += [
                {"x": stop, "y": float(share), "line": f"{word}, {name}", "of": word}
                for stop, share in zip(by_split[name].stops, extreme, strict=True)
            ]
    singular = lines(values, x="round", y="over its value at the start")
    speeds = [row for zeta, course in by_zeta.items() for row in _curve(f"zeta = {zeta:g}", course)]
    speed = lines(speeds, x="round", y="training loss", log_y=True, points=False)
    note = "Means over seeds with 95% bootstrap intervals."
    return [
        Figure("Loss by split", decay, note, ("linear", "rate", "guarantee", "narrow")),
        Figure("Singular values", singular, "Extremes over seeds, one line for each split.", ("lemma-4", "range")),
        Figure("Loss by zeta", speed, f"{note} What is unstable is left out.", ("zeta",)),
    ]


def _curve(name: str, course: Course) -> list[dict[str, Any]]:
    if not course.stable:
        return []
    return banded(name, course.rounds, course.losses)


def _sent(by_split: Mapping[str, Course]) -> Table:
    """What the start took, beside what a round takes."""
    weights = sum(a * b for a, b in itertools.pairwise((INPUTS, *WIDTHS, OUTPUTS)))
    rows = []
    for name, course in by_split.items():
        one = course.worlds[0]
        clients, sent = len(one.parts), one.start.setup.sent()
        features = SAMPLES * WIDTHS[0] + 2 * clients
        counts = (sent["floats_down"], sent["floats_up"], features, 2 * weights * clients)
        floors = (f"{one.start.floor:.3g}", f"{one.start.client_floors.min():.3g}")
        rows.append((name, str(clients), *(f"{count:,}" for count in counts), *floors))
    columns = ("split", "clients", "down", "up: Gram matrices", "up: features", "one round", "a_0", "least a_0k")
    return Table("Numbers sent to make the start, beside those of a round (seed 0)", columns, rows)


RECIPE = Recipe(
    name="wide-theory",
    title="FedAvg on a network with one wide layer: what the proof says, and what happens",
    source="Song et al., Lemma 4, Theorem 1, Corollary 1 and appendix B.2",
    about=f"N = {SAMPLES} samples with random targets, layers of {INPUTS}, {WIDTHS[0]}, {WIDTHS[1]} and {OUTPUTS} "
    f"units, squared loss, {STEPS} local steps of exact gradients with step {STEP_SIZE:g}, weights by size, double "
    f"precision; zeta = {ZETA:g} where it is not varied. The paper has no such run: sizes, step and the activation "
    f"(smooth, slopes in [{GAMMA:g}, 1]) are ours. The full scale has twice the seeds and more rounds.",
    scales={
        "quick": {"seeds": 5, "rounds": 4000, "stops": 8},
        "full": {"seeds": 10, "rounds": 5000, "stops": 10},
    },
    carry_out=_carry_out,
)
