"""From a diagnosis to advice: two predictors side by side, a choice, and what would change it.

The bounds of theory are always evaluated and always orders of magnitude. Where the diagnosis has a miniature, the
contenders are also rehearsed on it, and the rehearsal decides. Where a federation is given and a quadratic picture is
not to be trusted, a short trial on the federation itself decides among those that the rehearsal found best. Rounds are
trips of messages throughout.
"""

import dataclasses
import math
from typing import Any

from sojourn.advice.answer import BOUND, Advice, Change, Contender
from sojourn.advice.asked import Budget, Target
from sojourn.advice.asynchrony import with_stragglers
from sojourn.advice.bounds import RULES, Bound, best_bound, constants_of, error_asked, surely_alike, unmet
from sojourn.advice.contest import Scene, contest, cost_of, priced, ranked, replayed, scene_of
from sojourn.advice.fallbacks import guarded_guess, safe_choice
from sojourn.advice.sentences import bill, falsifier, sentences_of
from sojourn.advice.start import Floor, check_start, floor_of, met_at_start, precision_warning
from sojourn.advice.trial import Trial, race
from sojourn.advice.variations import VARIATIONS, Variation, varied
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation
from sojourn.diagnosis import Diagnosis, diagnose
from sojourn.theory.step_sizes import TUNED_METHODS, step_size_rule

_CLEAR = 0.9  # of the choice's rounds, or time: another leads only by taking less


def advise(
    subject: Diagnosis | Federation,
    *,
    target: Target | tuple[str, float],
    budget: Budget | None = None,
    trial_rounds: int | None = None,
    seed: int = 0,
    diagnosis: Diagnosis | None = None,
) -> Advice:
    """What to run on a federation to reach a target within a budget.

    subject: what `sojourn.diagnose` found, or a federation, which is then diagnosed first.
    target: a `Target`, or its kind and value: ("loss", 0.1), ("grad", 1e-3), ("distance", 0.01).
    trial_rounds: rounds of a trial on the federation itself; None: a trial only where the objective is not convex,
    0: none. Only with a federation.
    diagnosis: what `sojourn.diagnose` found of the federation, where that was done already.
    """
    federation = subject if isinstance(subject, Federation) else None
    if federation is not None:
        check_start(federation)
    diagnosis = diagnosis or _diagnosed(subject, seed)
    wanted = target if isinstance(target, Target) else Target(*_pair(target))
    limits = budget or Budget()
    limits.check_against(diagnosis.num_clients, diagnosis.dimension)
    _check_trial(trial_rounds, federation)
    scene = scene_of(diagnosis, wanted, limits, seed)
    said = met_at_start(federation, diagnosis, scene, wanted)
    if said is not None:
        return Advice(diagnosis, diagnosis.setting, wanted, limits, (), None, None, sentences=(said, *bill(diagnosis)))
    floor = floor_of(diagnosis, wanted)
    if floor is not None and floor.stand_in is not None:
        scene = scene_of(diagnosis, floor.stand_in, limits, seed)
    played = wanted if floor is None or floor.stand_in is None else floor.stand_in
    found = _contenders(diagnosis, played, limits, scene)
    if not found:
        found = [guarded_guess(federation, diagnosis, wanted, limits)]
    trial = _trial(federation, diagnosis, played, limits, found, trial_rounds, seed)
    if trial is not None:
        found = trial.merged(found, limits, diagnosis)
    found = with_stragglers(found, limits, diagnosis, scene, trial is not None)
    return _answer(
        Asked(diagnosis, wanted, played, limits, scene, floor), found, trial,
        precision_warning(federation, diagnosis, wanted),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Asked:
    """What an answer is about."""

    diagnosis: Diagnosis
    target: Target
    played: Target  # what the contenders were played for: the target, or what stands in for one below the floor
    budget: Budget
    scene: Scene | None
    floor: Floor | None


def _diagnosed(subject: Any, seed: int) -> Diagnosis:
    if isinstance(subject, Diagnosis):
        return subject
    if not isinstance(subject, Federation):
        raise SojournError(
            f"advise takes a federation or what diagnose found of one, and got a {type(subject).__name__}."
        )
    return diagnose(subject, seed=seed)


def _pair(target: Any) -> tuple[Any, Any]:
    if not isinstance(target, tuple) or len(target) != 2:
        raise SojournError(f'target = {target!r} is not understood; give Target("loss", 0.1) or ("loss", 0.1).')
    return target


def _check_trial(trial_rounds: Any, federation: Federation | None) -> None:
    if trial_rounds is None:
        return
    if isinstance(trial_rounds, bool) or not isinstance(trial_rounds, int) or trial_rounds < 0:
        raise SojournError(f"trial_rounds = {trial_rounds!r} does not fit; give a whole number of at least 0.")
    if trial_rounds and federation is None:
        raise SojournError("a trial needs the federation itself; give it instead of its diagnosis, or trial_rounds=0.")


def _contenders(diagnosis: Diagnosis, target: Target, budget: Budget, scene: Scene | None) -> list[Contender]:
    """The best setting of every method, with both predictions, ranked; none where nothing can be predicted."""
    facts = constants_of(diagnosis)
    error = error_asked(diagnosis.setting, target.kind, target.value, facts)
    steps, same = budget.steps_to_try(), surely_alike(diagnosis)
    found = contest(scene) if scene is not None else []
    known = {
        name: best_bound(name, diagnosis.setting, facts, steps, error, identical=same)
        for name in RULES[diagnosis.setting]
    }
    if not found and not any(pair is not None and pair[1].met for pair in known.values()):
        return []
    rehearsed = []
    for contender in found:
        K, said = known.pop(contender.name, None) or (None, None)
        rehearsed.append(dataclasses.replace(contender, bound=said, bound_steps=K))
    by_bound = [
        _by_bound(name, pair[0], pair[1], facts, budget, diagnosis) for name, pair in known.items() if pair is not None
    ]
    if scene is not None:  # an order of magnitude does not compete with a rehearsal
        by_bound = [dataclasses.replace(c, note="not rehearsed") for c in by_bound]
    return ranked(rehearsed) + ranked(by_bound)


def _by_bound(name: str, K: int, said: Bound, facts: Facts, budget: Budget, diagnosis: Diagnosis) -> Contender:
    """With theory's options; ruled out where the bound's assumption does not hold."""
    iterations = said.rounds / RULES[diagnosis.setting][name].trips
    options = _by_theory(name, facts, K, iterations, diagnosis.num_clients)
    why = "" if said.met else unmet(said.assumption)
    made = Contender(
        name, options, said.rounds, 0.0, 0.0, BOUND, said.met, why, bound=said, bound_steps=K, ruled_out=not said.met
    )
    return priced(made, budget, diagnosis.num_clients, diagnosis.dimension)


def _by_theory(name: str, facts: Facts, K: int, rounds: float, num_clients: int) -> dict[str, Any]:
    """The options that theory recommends; half of 1/H where it has no rule for these facts."""
    H = facts.smoothness or 1.0
    options: dict[str, Any] = {"num_local_steps": K}
    if name == "fedac":
        options["strong_convexity"] = facts.strong_convexity or 1e-3 * H
    if name == "ac-sa":
        return {**options, "smoothness": H, "strong_convexity": facts.strong_convexity or 0.0}
    if name in TUNED_METHODS and math.isfinite(rounds):
        try:
            rule = step_size_rule(
                name, facts, {"output": "last", "outer_step_size": 1.0, **options}, max(1, math.ceil(rounds)),
                everyone=True, equal_weights=True,
            )  # fmt: skip
            return {**options, rule.option: float(rule.value)}
        except (SojournError, KeyError):
            pass  # facts that the rule asks for are not known
    return {**options, "step_size": 1 / (2 * H)}


def _trial(
    federation: Federation | None, diagnosis: Diagnosis, target: Target, budget: Budget, found: list[Contender],
    rounds: int | None, seed: int,
) -> Trial | None:  # fmt: skip
    if federation is None or rounds == 0:
        return None
    if rounds is None:
        if diagnosis.setting != "non-convex":
            return None
        rounds = 24 if budget.rounds is None else min(24, budget.rounds // 4)
    return race(federation, target, budget, found, rounds, seed) if rounds > 0 else None


def _answer(asked: Asked, found: list[Contender], trial: Trial | None, warning: str | None) -> Advice:
    diagnosis, budget, scene = asked.diagnosis, asked.budget, asked.scene
    chosen = next((c for c in found if c.fits), found[0])
    examined = _changes(asked, chosen) if scene is not None and trial is None else None
    found = [_for_one_client(c, diagnosis) for c in found]
    best = _for_one_client(chosen, diagnosis)
    advice = Advice(
        diagnosis, diagnosis.setting, asked.target, budget, tuple(found), best,
        safe_choice(diagnosis, budget, scene, best), () if examined is None else examined[0],
        falsifier(best, diagnosis),
        reachable=best.reaches and best.fits and asked.floor is None,
        trial=None if trial is None else trial.told(),
        details={
            "examined": None if examined is None else examined[1],
            "floor": None if asked.floor is None else asked.floor.words(),
            "played": asked.played, "precision": warning,
            **({} if scene is None else {"exact": scene.exact, "convexified": scene.picture.convexified}),
        },
    )  # fmt: skip
    return dataclasses.replace(advice, sentences=sentences_of(advice))


def _for_one_client(best: Contender, diagnosis: Diagnosis) -> Contender:
    """One client needs no server."""
    if diagnosis.num_clients > 1 or best.name != "local-sgd":
        return best
    step = best.options["step_size"] * best.options.get("outer_step_size", 1.0)
    if best.options.get("outer_step_size", 1.0) != 1.0:
        return best
    options = {"step_size": step, "num_local_steps": best.num_local_steps}
    return dataclasses.replace(best, name="single-machine-sgd", options=options, floats=0.0)


def _changes(asked: Asked, best: Contender) -> tuple[tuple[Change, ...], tuple[str, ...]] | None:
    """Other leaders, were a measure four times larger or smaller, and the measures of which that was asked.

    It is the contest again, of fewer settings and the one that was chosen, on the picture so changed; None where that
    would say nothing of the choice.
    """
    scene = asked.scene
    if scene is None or not best.reaches or best.name == "fedasync":
        return None
    longest = max(40.0, 4 * best.rounds)
    found, examined = [], []
    for variation in VARIATIONS:
        for factor in (4.0, 0.25):
            changed = _changed(asked, scene, variation, factor)
            if changed is None:
                continue
            examined.append(variation.symbol)
            leader = _other_leader(changed, best, longest)
            if leader is not None:
                found.append(Change(variation.name, variation.symbol, factor, leader))
    return tuple(found), tuple(dict.fromkeys(examined))


def _changed(asked: Asked, scene: Scene, variation: Variation, factor: float) -> Scene | None:
    """The scene with a measure that much larger; None where nothing would change, or be left to do."""
    other = varied(asked.diagnosis, variation, factor)
    if other is None:
        return None
    changed = scene_of(other[0], asked.played, asked.budget, scene.seed, noise_scale=other[1])
    done = changed is None or changed.picture.metric(scene.kind, changed.picture.start) <= changed.target
    return None if done else changed


def _other_leader(scene: Scene, best: Contender, longest: float) -> Contender | None:
    """Who clearly leads on a scene instead of the choice: another method, or the same with far more or fewer steps."""
    leader = ranked(contest(scene, few=True, max_rounds=longest))[0]
    if not (leader.reaches and leader.fits) or (leader.name == best.name and _alike(leader, best)):
        return None
    again = replayed(scene, best, int(longest))
    return leader if not again.reaches or cost_of(leader) < _CLEAR * cost_of(again) else None


def _alike(one: Contender, other: Contender) -> bool:
    return 0.25 < one.num_local_steps / other.num_local_steps < 4
