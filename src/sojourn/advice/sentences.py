"""What the advice says in words."""

import math

from sojourn.advice.answer import BOUND, GUESS, MOST_BY_BOUND, REHEARSED, TRIED, Advice, Contender
from sojourn.advice.bounds import ROUNDING, WORSE_WHEN_LARGE, constants_of, thumb
from sojourn.diagnosis.findings import Cost, Diagnosis

_THUMB = {  # whether local steps pay against minibatch SGD, and against AC-SA
    (True, True): "local steps should pay even against acceleration",
    (True, False): "local steps should pay against minibatch SGD, and not against AC-SA",
    (False, False): "there are federations with this tau on which local steps do not pay",
}


def sentences_of(advice: Advice) -> tuple[str, ...]:
    """In the order in which they should be read: what to do, why, what it rests on, what would change it."""
    best = advice.best
    assert best is not None
    found = [_choice(advice, best), *_why(advice, best), *_compared(advice, best), *_special(advice, best)]
    if advice.fallback is not None:
        found.append(_safety(advice.fallback, advice.diagnosis.num_clients))
    found += [change.words() for change in advice.changes]
    found += _steadiness(advice, best)
    found += [f"Watch: {advice.falsified_by}"] if advice.falsified_by else []
    found += [*_nature(advice), *bill(advice.diagnosis)]
    return tuple(found)


def _choice(advice: Advice, best: Contender) -> str:
    if not best.fits:
        return f"No contender fits the budget: the nearest is {best.words()}, but {best.why_not}."
    floor, played = advice.details.get("floor"), advice.details.get("played", advice.target)
    if best.basis == GUESS:
        why = f"{floor} " if floor else ""
        return (
            f"{why}Nothing can be predicted here: no curvature was measured that a step could rest on. Begin with "
            f"{best.words()}, {best.note}."
        )
    if floor:
        near = f", which comes to {played.value:.4g} in {_how(best)}" if best.reaches else ""
        return f"{floor} The nearest is {best.words()}{near}."
    if not best.reaches:
        lowest = "" if best.lowest is None else f" It comes down to about {best.lowest:.4g}."
        return (
            f"{advice.target.words().capitalize()} was not reached by any contender: noise, bias or too few rounds "
            f"stand in the way. The nearest is {best.words()}.{lowest}"
        )
    return f"Take {best.words()}: {advice.target.words()} in {_how(best)}."


def _how(best: Contender) -> str:
    """The rounds that are predicted, and by what."""
    rounds = "1 round" if best.rounds <= 1 else f"{math.ceil(best.rounds):,} rounds"
    if best.basis == BOUND:
        return f"{_magnitude(best.rounds)} rounds, as an order of magnitude"
    if best.name == "fedasync":
        rounds = f"the uploads of {rounds}"
    elif best.rounds != best.iterations:
        rounds += f" of messages, in {math.ceil(best.iterations):,} iterations"
    if best.seconds is not None:
        rounds += f" ({best.seconds:.3g} virtual seconds)"
    return {
        REHEARSED: "{}, as rehearsed on the federation in miniature",
        TRIED: "about {}, as a trial on the federation suggests",
    }[best.basis].format(rounds)


def _safety(fallback: Contender, num_clients: int) -> str:
    """What to fall back on, and why that is safe."""
    unbiased = "without local walks clients that differ leave no bias, and " if num_clients > 1 else ""
    return (
        f"Should it fail: {fallback.words()}. It is safe, as {unbiased}the step is at most half of what the curvature "
        f"allows ({fallback.note})."
    )


def _steadiness(advice: Advice, best: Contender) -> list[str]:
    """Whether other measures would have changed the choice; nothing is claimed of what was not asked."""
    examined = advice.details.get("examined")
    if examined is None:
        return [f"What would change the choice was not examined: {_unexamined(advice, best)}."]
    kept = [symbol for symbol in examined if symbol not in {change.symbol for change in advice.changes}]
    if not kept:
        return []
    listed = kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} or {kept[-1]}"
    return [f"The choice stays the same with {listed} four times larger or smaller."]


def _unexamined(advice: Advice, best: Contender) -> str:
    if advice.trial is not None:
        return "a trial decided it, and was made once"
    if best.basis != REHEARSED:
        return "there is no miniature to rehearse on"
    return "the target is not reached" if not best.reaches else "stragglers decide it"


def bill(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What it cost to know this."""
    cost = diagnosis.cost
    if cost == Cost():
        return ()
    return (
        f"The diagnosis took {cost.rounds:,} trips of messages, {cost.floats_down + cost.floats_up:,} floats, "
        f"{cost.gradients:,} gradients and {cost.products:,} products with Hessians, over all clients.",
    )


def _why(advice: Advice, best: Contender) -> list[str]:
    """The term that decides, and the rule of thumb for local steps."""
    found = [_theory(best, advice.diagnosis)] if best.basis != GUESS else []
    rule = thumb(constants_of(advice.diagnosis)) if advice.setting == "strongly convex" else None
    if rule is not None and advice.diagnosis.num_clients > 1:
        text = _THUMB.get((rule["minibatch-sgd"], rule["ac-sa"]))
        found += [f"By the rule of thumb on tau, {text}."] if text else []
    return found


def _theory(best: Contender, diagnosis: Diagnosis) -> str:
    """What a bound says of the choice, or that none does."""
    bound = best.bound
    if bound is None:
        return f"No statement of theory speaks of {best.title} in this setting: no bound stands behind it."
    if not bound.met:
        return f"Theory's bound for {best.title} ({bound.source}) says nothing here: {bound.words()}."
    carried = f"; it rests on {bound.assumption}" if diagnosis.num_clients > 1 else ""
    return (
        f"Theory's order of magnitude for {best.title} is {_magnitude(bound.rounds)} rounds, decided by "
        f"{bound.words()}{carried}."
    )


def _compared(advice: Advice, best: Contender) -> list[str]:
    same = (c for c in advice.contenders if c.name != best.name and c.basis == best.basis)
    timed = best.seconds is not None
    others = [c for c in same if c.reaches and c.fits and (timed or c.name != "fedasync")]
    if not others or not best.reaches:
        return []
    shown = _magnitude if best.basis == BOUND else _rounds
    listed = ", ".join(f"{c.title} {shown((c.seconds if timed else None) or c.rounds)}" for c in others[:4])
    return [f"The others would take, in {'virtual seconds' if timed else 'rounds'}: {listed}."]


def _special(advice: Advice, best: Contender) -> list[str]:
    """One client, clients that are alike, a picture that had to be bent."""
    diagnosis, found = advice.diagnosis, []
    if diagnosis.num_clients == 1:
        found.append("There is one client, so nothing needs to be sent: it is SGD on one machine.")
    elif alike(diagnosis):
        found.append(
            "The clients are alike as far as was measured: long local walks cost nothing, and averaging once, at the "
            "end, is worth a try where a client can take so many steps."
        )
    if advice.details.get("convexified") and advice.setting == "non-convex":
        found.append(
            "The objective is not convex: the rehearsal folded negative curvature up, which is good for step sizes and "
            "stability and not for where training ends."
        )
    if advice.trial is not None:
        took = f"{advice.trial['rounds']} trips of messages and {advice.trial['floats']:.3g} floats in all"
        found.append(f"The trial took {took}, over {advice.trial['settings']} settings.")
    elif advice.setting == "non-convex" or best.basis == BOUND:
        found.append("A short trial on the federation itself (--trial, trial_rounds) would be more to the point.")
    if best.basis == BOUND and advice.rounds == MOST_BY_BOUND:
        found.append(
            f"As bounds are far too careful, the config asks for {MOST_BY_BOUND:,} rounds only: look at the curve."
        )
    if advice.setting == "non-convex" and diagnosis.num_clients > 1:
        found.append(
            "If the model is a network: a wider first layer makes it mind less that clients differ, and where many "
            "layers have weights of very different norms and batches are small, Fed-LAMB is worth a run, at twice the "
            "messages."
        )
    if best.name == "fedasync":
        found.append(f"Nobody waits for the slowest: {best.note}.")
    if advice.details.get("precision"):
        found.append(advice.details["precision"])
    return found


def alike(diagnosis: Diagnosis) -> bool:
    """No heterogeneity, as far as was measured."""
    H, B = diagnosis.value("smoothness", 0.0) or 0.0, diagnosis.value("start_distance", 1.0) or 1.0
    tau, zeta = diagnosis.value("hessian_heterogeneity"), diagnosis.value("optima_heterogeneity")
    return tau is not None and zeta is not None and tau <= ROUNDING * H and zeta <= ROUNDING * B


def falsifier(best: Contender, diagnosis: Diagnosis) -> str:
    """The diagnostic that would show the choice to be wrong (thesis, section 5.4)."""
    if best.name in ("minibatch-sgd", "ac-sa") or diagnosis.num_clients == 1:
        return "a loss that rises for three rounds: the curvature is larger than was measured; halve the step."
    if best.name in ("ce-lsgd", "mb-storm"):
        return "a gradient norm that stops falling while the model moves: tau is larger than was measured; halve K."
    if best.num_local_steps == 1:
        return "a loss that rises for three rounds; halve the step."
    if best.name == "scaffold":
        return "a consensus error that grows from round to round: halve the step, keeping K."
    return (
        "a model that stands still while the mean gradient at it does not vanish: the fixed point is biased; shrink "
        "the step or K, end with rounds of K = 1, or change to SCAFFOLD."
    )


def _nature(advice: Advice) -> list[str]:
    """What bounds are worth; nothing where there are none."""
    if not any(c.bound is not None and c.bound.met for c in advice.contenders):
        return []
    diagnosis = advice.diagnosis
    weak = [m.symbol for name, m in diagnosis.measures.items() if m.kind == "lower bound" and name in WORSE_WHEN_LARGE]
    text = "Bounds are orders of magnitude, with constants one"
    if len(weak) == 1:
        text += f"; {weak[0]} is a lower bound of the true constant and was doubled for them"
    elif weak:
        listed = f"{', '.join(weak[:-1])} and {weak[-1]}"
        text += f"; {listed} are lower bounds of the true constants and were doubled for them"
    cohort = advice.budget.cohort(diagnosis.num_clients)
    some = f"They are for rounds in which everyone takes part; here {cohort} of {diagnosis.num_clients} clients do"
    return [f"{text}.", *([f"{some}, which bounds do not count."] if cohort < diagnosis.num_clients else [])]


def _rounds(rounds: float) -> str:
    if not math.isfinite(rounds):
        return "no number of"
    return f"{math.ceil(rounds):,}" if rounds < 1e5 else f"{rounds:.0e}"


def _magnitude(rounds: float) -> str:
    """One digit of it, as there is no more in an order of magnitude."""
    return _rounds(float(f"{max(rounds, 1.0):.0e}"))
