"""The contest on the miniature: every method at its best setting, chosen so that it does not stand on an edge."""

import dataclasses
import math

import numpy as np

from sojourn.advice.answer import REHEARSED as BASIS
from sojourn.advice.answer import Contender
from sojourn.advice.asked import Budget, Target
from sojourn.advice.methods import REHEARSED, first_grid, options_of_setting, price, refusal, second_grid, trips
from sojourn.advice.rehearsal import Grid, Picture, Rehearsed, picture_of, rehearse
from sojourn.advice.stragglers import waiting
from sojourn.diagnosis.findings import Diagnosis

MAX_ROUNDS = 3000
_SEEDS = 8
_EDGE = 4.0  # how much worse a setting counts whose step's neighbour, 1.4 times longer, does not get there
_FAR = 4.0  # times the best so far: who takes longer is not needed exactly
_NEAR = 0.01  # of the floor: closer is no difference
_PATIENCE, _LONG_PATIENCE = 2.2, 24.0  # times the first arrival: how long others are waited for
_OVER, _NEVER = 1e9, 1e12  # scores of settings beyond the budget, and of those that do not get there
_KEPT = 3  # settings of the first grid that the second varies


@dataclasses.dataclass(frozen=True)
class Scene:
    """What is rehearsed: the picture, what is to be reached on it, and within what."""

    picture: Picture
    kind: str
    target: float  # on the picture
    smoothness: float  # that step sizes are measured by
    mu: float
    exact: bool  # the picture is the federation itself: the edge is where it seems to be
    budget: Budget
    num_clients: int
    dimension: int
    seed: int = 0

    @property
    def cohort(self) -> int:
        """Of the picture's clients."""
        share = self.budget.cohort(self.num_clients) / self.num_clients
        return max(1, round(share * len(self.picture.weights)))

    @property
    def num_seeds(self) -> int:
        random = self.picture.noisy or self.cohort < len(self.picture.weights)
        return _SEEDS if random else 1

    @property
    def work_counts(self) -> bool:
        """Whether more rounds of less local work may be better."""
        return self.budget.gradients is not None or self.budget.slowest is not None

    @property
    def max_rounds(self) -> int:
        return min(self.budget.rounds or MAX_ROUNDS, MAX_ROUNDS)


def scene_of(
    diagnosis: Diagnosis, target: Target, budget: Budget, seed: int = 0, noise_scale: float = 1.0
) -> Scene | None:
    """The rehearsal's, where there is a miniature."""
    if diagnosis.miniature is None:
        return None
    exact = is_exact(diagnosis)
    picture = picture_of(diagnosis.miniature, diagnosis.num_clients, convexify=True, noise_scale=noise_scale)
    mean = np.linalg.eigvalsh(picture.hessian)
    top = picture.smoothness if exact else max(picture.smoothness, diagnosis.value("smoothness", 0.0) or 0.0)
    if not top > 0:
        return None  # flat in all directions: nothing to rehearse
    mu = float(mean[0]) if mean[0] > 1e-9 * top else 0.0
    wanted = target_on(picture, target, diagnosis, exact)
    return Scene(picture, target.kind, wanted, top, mu, exact, budget, diagnosis.num_clients, diagnosis.dimension, seed)


def contest(scene: Scene, *, few: bool = False, max_rounds: float = math.inf) -> list[Contender]:
    """Every method's best, unranked. `few`: fewer settings, to see what a change of the picture would change."""
    found, most = [], int(min(scene.max_rounds, max_rounds))
    for name in REHEARSED:
        rehearsed = _rehearsed(scene, name, most, few)
        if rehearsed is None:
            continue
        contender = _contender(scene, rehearsed)
        if contender.reaches and contender.fits and not scene.work_counts:
            most = min(most, max(20, math.ceil(_FAR * contender.rounds)))
        elif not contender.reaches and most < scene.max_rounds:
            contender = dataclasses.replace(contender, note=f"more than {most} rounds")
        found.append(contender)
    return found


def _rehearsed(scene: Scene, name: str, max_rounds: int, few: bool) -> Rehearsed | None:
    steps = scene.budget.steps_to_try()
    steps = tuple(K for number, K in enumerate(steps) if number % 2 == 0 or steps[-1] == K) if few else steps
    grid = first_grid(name, scene.smoothness, scene.mu, steps, scene.picture.noisy, few)
    if len(grid.steps) == 0:
        return None
    first = play(scene, grid, max_rounds)
    best = np.argsort(_preference(scene, first), kind="stable")[:_KEPT]
    around = second_grid(Grid(name, grid.steps[best], grid.local_steps[best], grid.outer[best]))
    if around is None or few or len(around.steps) == 0:
        return first
    return _joined(first, play(scene, around, max_rounds))


def play(scene: Scene, grid: Grid, max_rounds: int) -> Rehearsed:
    """Rounds are trips of messages, here and in all that is made of it: an iteration may have several."""
    seeds = scene.num_seeds if grid.name != "ce-lsgd" else _SEEDS  # whose walker is drawn
    each = trips(grid.name, options_of_setting(grid, 0))
    found = rehearse(
        scene.picture, grid, scene.kind, scene.target, max(1, max_rounds // each), num_seeds=seeds, cohort=scene.cohort,
        seed=scene.seed, patience=_LONG_PATIENCE if scene.work_counts else _PATIENCE,
    )  # fmt: skip
    return dataclasses.replace(found, rounds=each * found.rounds, settled=each * found.settled)


def _joined(one: Rehearsed, other: Rehearsed) -> Rehearsed:
    both = lambda name: np.concatenate([getattr(one.grid, name), getattr(other.grid, name)])  # noqa: E731
    grid = Grid(one.grid.name, both("steps"), both("local_steps"), both("outer"))
    found = [np.concatenate([getattr(one, n), getattr(other, n)]) for n in ("rounds", "best_value", "settled")]
    return Rehearsed(grid, *found)


def scores(rehearsed: Rehearsed, exact: bool) -> np.ndarray:
    """Rounds, multiplied where a slightly longer step would fail; settings that do not get there come last, by how
    far they came."""
    grid, rounds = rehearsed.grid, rehearsed.rounds
    counted = np.where(np.isnan(rounds), np.inf, rounds)
    score = counted.copy()
    if not exact:
        for number in range(len(counted)):
            same = (grid.local_steps == grid.local_steps[number]) & (grid.outer == grid.outer[number])
            longer = same & (grid.steps > grid.steps[number] * 1.3) & (grid.steps < grid.steps[number] * 2.1)
            if longer.any() and not (counted[longer] <= 2 * counted[number]).all():
                score[number] *= _EDGE
    scale = np.nanmax(np.abs(rehearsed.best_value), initial=1e-300)
    return np.where(np.isfinite(score), score, _NEVER * (1 + 0.1 * rehearsed.best_value / scale))


def _preference(scene: Scene, rehearsed: Rehearsed) -> np.ndarray:
    """Scores; where machines were said to be slow, of time instead of rounds; settings beyond the budget later."""
    score, grid, budget = scores(rehearsed, scene.exact), rehearsed.grid, scene.budget
    options = [options_of_setting(grid, number) for number in range(len(score))]
    costs = [price(grid.name, chosen, scene.num_clients) for chosen in options]
    gradients, vectors = (np.array([getattr(cost, name) for cost in costs]) for name in ("gradients", "vectors"))
    reached = np.isfinite(rehearsed.rounds)
    if budget.slowest is not None:
        score = np.where(reached, score * gradients, score)
    iterations = rehearsed.rounds / trips(grid.name, options[0])
    cohort = budget.cohort(scene.num_clients)
    with np.errstate(invalid="ignore"):
        over = iterations * gradients * cohort / scene.num_clients > (budget.gradients or math.inf)
        over |= iterations * vectors * scene.dimension * cohort > (budget.floats or math.inf)
    return np.where(reached & over, _OVER + score, score)


def _contender(scene: Scene, rehearsed: Rehearsed) -> Contender:
    """The method at its lowest score; among settings as good to 2 %, the one with the least local work."""
    name, score = rehearsed.grid.name, _preference(scene, rehearsed)
    options = [options_of_setting(rehearsed.grid, number) for number in range(len(score))]
    allowed = np.flatnonzero(score <= 1.02 * score.min())
    work = [price(name, options[number], scene.num_clients).gradients for number in allowed]
    chosen = int(min(zip(work, score[allowed], allowed, strict=True))[2])
    rounds = float(rehearsed.rounds[chosen])
    rounds = rounds if np.isfinite(rounds) else np.inf
    lowest, settled = float(rehearsed.best_value[chosen]), float(rehearsed.settled[chosen])
    made = Contender(name, options[chosen], rounds, 0.0, 0.0, BASIS, True, lowest=lowest, settled=settled)
    return priced(made, scene.budget, scene.num_clients, scene.dimension)


def priced(contender: Contender, budget: Budget, num_clients: int, dimension: int) -> Contender:
    """With what its rounds cost, and whether that fits the budget."""
    cost = price(contender.name, contender.options, num_clients)
    floats = contender.iterations * cost.vectors * dimension * budget.cohort(num_clients)
    gradients = contender.iterations * cost.gradients * budget.cohort(num_clients) / num_clients
    why = contender.why_not if contender.ruled_out else refusal(contender.name, contender.options, budget, num_clients)
    if not why and contender.reaches:
        if budget.rounds is not None and contender.rounds > budget.rounds:
            why = f"it would take {contender.rounds:.3g} rounds, and {budget.rounds} are allowed"
        elif budget.floats is not None and floats > budget.floats:
            why = f"it would send {floats:.3g} floats, and {budget.floats:.3g} are allowed"
        elif budget.gradients is not None and gradients > budget.gradients:
            why = f"a client would compute {gradients:.3g} gradients, and {budget.gradients:.3g} are allowed"
    seconds = None if budget.slowest is None else contender.iterations * cost.gradients * waiting(budget, num_clients)
    return dataclasses.replace(
        contender, floats=floats, gradients=gradients, seconds=seconds, fits=not why, why_not=why
    )


def cost_of(contender: Contender) -> float:
    """What contenders are compared by: virtual time where that is known, or rounds."""
    return contender.rounds if contender.seconds is None else contender.seconds


def replayed(scene: Scene, chosen: Contender, max_rounds: int) -> Contender:
    """A contender with its own setting on another scene."""
    options = chosen.options
    step = 1 / options["smoothness"] if chosen.name == "ac-sa" else options["step_size"]
    second = next((options[name] for name in ("outer_step_size", "strong_convexity", "momentum") if name in options), 1)
    grid = Grid(chosen.name, np.array([step]), np.array([chosen.num_local_steps]), np.array([float(second)]))
    rounds = float(play(scene, grid, max_rounds).rounds[0])
    again = dataclasses.replace(chosen, rounds=rounds if math.isfinite(rounds) else math.inf)
    return priced(again, scene.budget, scene.num_clients, scene.dimension)


def ranked(contenders: list[Contender]) -> list[Contender]:
    """Those that fit first, then by virtual time, where that is known, or by rounds; ties by floats, then by local
    work; then those that do not get there.

    Of these, who comes within 1 % of the lowest is as near as that, and the quickest of them is first.
    """
    floor = min((c.lowest for c in contenders if c.fits and c.lowest is not None), default=math.inf)

    def key(c: Contender) -> tuple[float, ...]:
        if c.reaches:
            return (not c.fits, cost_of(c), c.rounds, c.floats, c.gradients)
        low = math.inf if c.lowest is None else c.lowest
        near = low <= floor + _NEAR * abs(floor)
        return (not c.fits, math.inf, floor if near else low, c.settled or 0.0)

    return sorted(contenders, key=key)


def quickest(scene: Scene, name: str, max_rounds: int, *, least_steps: int = 1) -> float:
    """The fewest rounds of a method over a small grid of settings with so many local steps; inf: not within those."""
    steps = tuple(K for K in scene.budget.steps_to_try() if least_steps <= K)
    if not steps:
        return math.inf
    played = play(scene, first_grid(name, scene.smoothness, scene.mu, steps, scene.picture.noisy, True), max_rounds)
    return float(np.min(played.rounds[np.isfinite(played.rounds)], initial=math.inf))


def target_on(picture: Picture, target: Target, diagnosis: Diagnosis, exact: bool) -> float:
    """The target as the picture has it.

    Where the picture is not the federation, its minimum and its optimum are not the federation's: a loss becomes the
    same share of the way down, a distance the same share of the way. Where those are unknown, the value itself is taken
    as far as the picture reaches it, and beyond that a hundredth of the way.
    """
    if exact or target.kind == "grad":
        return target.value
    start = float(picture.metric(target.kind, picture.start))
    if target.kind == "distance":
        reach = diagnosis.value("start_distance")
        return target.value * start / reach if reach else target.value
    least, gap = diagnosis.value("f_star"), diagnosis.value("start_gap")
    if least is not None and gap and target.value > least:
        return picture.least + (target.value - least) / gap * (start - picture.least)
    return target.value if target.value > picture.least else picture.least + 0.01 * (start - picture.least)


def is_exact(diagnosis: Diagnosis) -> bool:
    """Whether the miniature is the federation: all its directions, all its clients, curvature that stays."""
    mini = diagnosis.miniature
    if mini is None:
        return False
    whole = mini.hessians.shape[1] >= diagnosis.dimension and len(mini.weights) >= diagnosis.num_clients
    whole = whole and bool(diagnosis.details.get("whole", True))
    return whole and diagnosis.value("third_order_smoothness", 1.0) == 0
