"""The rules by which a self-tuned method sets its step size and its number of local steps, one decision per round.

Thesis section 5.4 asks for steps tuned jointly with the amount of local work and for diagnostics of the consensus
error; the rules here make that operational. All are functions of numbers that a server has after a round.
Paper to code: eta -> step, K -> steps, C -> consensus (twice the mean squared distance of the members' last iterates to
their mean), sigma_2^2 -> noise (of one batch), M -> num_answers.

Of a round that began at x_r, in the order in which they are asked (the first that holds decides):

    failed     a client's walk left the numbers, or was ten times longer than gradients allow: it is not taken
    loss       F(x_r) is above the loss of the last good start, beyond three sampling errors: back to that start (after
               an extrapolated step only to where it began), undo the last doubling, or else halve eta
    rising     the loss rose three rounds in a row, beyond two errors in all, or C doubled three times: halve eta
    saturated  C(k) no longer grows inside the round (slope below 0.5), Dr is not small, and the round before gained
               less than one step along the mean gradient promises, eta/2 |grad F|^2: halve K
    drift      Dr = max(0, C - 2 eta^2 sigma_2^2 K) / |x_{r+1} - x_r|^2 above 1 with K > 1, and as little was gained:
               halve K
    bias       the loss stagnates over a window and the mean gradient is above its sampling error: halve K
    undone     a step was halved at a floor, and the next window is no better: double eta again, and wait
    floor      the loss stagnates and the mean gradient is not, or there is noise and three rounds in a row pointed
               back (Pflug's test, on rounds): halve eta
    noise      C(k) grows like noise (slope between 0.5 and 1.5) for `patience` rounds: double K
    calm       Dr below 0.1 for `patience` rounds: double K; with K at its limit, eta

Where K is given, eta is halved for it: what counts is the length of a walk, eta K.

Departures. Noise is only subtracted from C where C exceeds it by half: below that the difference is an error of the
estimate; and Dr is in units of twice the noise where that is more than the displacement: at a plateau rounds go
nowhere, and every difference would be large. Drift alone takes nothing back: SCAFFOLD's first rounds and the far
start of any method drift and gain all the same. At K = 1 there is no drift, whatever C says. A value that was left
because it was bad becomes a ceiling, which is lifted (doubled) after some quiet rounds, so that rules do not undo each
other. After a round that gained too little extrapolation begins anew before K is blamed. Until a number was ever taken
back, one good round is enough to double K.
"""

import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

_SMALL_DRIFT, _LARGE_DRIFT = 0.1, 1.0
_SATURATED, _DRIFTING = 0.5, 1.5  # slopes between which C grows like noise
_CLEAR = 3.0  # sampling errors that a rise of the loss must exceed to be one
_RISES = 3
_TURNED = -0.2  # cosine of displacements; -1/2 where every round forgets where it began
_WINDOW = 8  # rounds over which the loss is compared for stagnation
_HEALING, _HEALING_STEPS = 40, 20  # rounds until a ceiling is lifted: of eta, of K
_ROUNDING = 1e-6  # of single precision, times a few operations


class Reason(enum.IntEnum):
    """Why a round is played with its numbers."""

    KEPT = 0
    FAILED = 1
    LOSS = 2
    RISING = 3
    DRIFT = 4
    SATURATED = 5
    BIAS = 6
    FLOOR = 7
    NOISE = 8
    CALM = 9
    RESTART = 10
    UNDONE = 11


WORDS = {
    Reason.FAILED: "a client's local steps blew up",
    Reason.LOSS: "the loss went up, back to the last good model",
    Reason.RISING: "the loss or the consensus error kept rising",
    Reason.DRIFT: "the clients drift apart (drift ratio {drift})",
    Reason.SATURATED: "the consensus error is saturated (slope {slope}), local work is wasted",
    Reason.BIAS: "the loss stagnates where the mean gradient is not zero",
    Reason.FLOOR: "the loss stagnates at the level of the noise",
    Reason.NOISE: "the consensus error grows like noise (slope {slope})",
    Reason.CALM: "the clients stay together (drift ratio {drift})",
    Reason.UNDONE: "a smaller step did not lower the loss",
    Reason.RESTART: "the loss went up after an extrapolated step, which is taken back",
}


class Statistics(eqx.Module):
    """What the server learns from a round; real numbers all."""

    loss: Any  # at the model that the round began with
    loss_error: Any  # its sampling error
    consensus: Any  # C at the end of the round
    slope: Any  # of log C(k) against log k; not a number where there is none
    move: Any  # squared length of the mean displacement
    noise: Any  # variance of a batch gradient, the mean over clients
    gradient: Any  # squared length of the mean gradient, unbiased
    gradient_error: Any  # what noise would make of it
    cosine: Any  # between this round's mean displacement and the one before
    failed: Any  # whether the round cannot be taken


class Tuner(eqx.Module):
    """What the rules remember. Counts are real numbers too, so that one type travels."""

    step: Any  # eta
    steps: Any  # K, a whole number
    step_ceiling: Any
    steps_ceiling: Any
    quiet: Any  # rounds since the ceiling of the step was lowered or lifted
    quiet_steps: Any  # and since that of the steps was
    calm: Any  # rounds in a row in which clients stayed together
    noisy: Any  # rounds in a row in which C grew like noise
    rises: Any  # of the loss, in a row
    rise_from: Any  # the loss before them
    turns: Any  # rounds in a row that point back
    growths: Any  # doublings of C, in a row
    consensus: Any  # of the round before
    grew: Any  # what was doubled last: 0 nothing, 1 steps, 2 step
    promised: Any  # what one step along the mean gradient would have gained in the round before
    reference: Any  # loss of the last good start
    reference_error: Any
    last_loss: Any
    window: Any  # rounds in the current window
    window_loss: Any  # sums over it
    window_error: Any
    before_loss: Any  # means of the window before
    before_error: Any
    floored: Any  # 1: the step was halved at a floor; 2: that did not help, and is not tried again for a while
    troubled: Any  # whether a number was ever taken back
    reason: Any
    slope: Any
    drift: Any
    poor: Any  # whether the round before gained less than was promised: extrapolation then begins anew

    @staticmethod
    def start(step: Any, steps: int, max_steps: int) -> "Tuner":
        real = jnp.result_type(float)
        zero, inf = jnp.zeros((), real), jnp.full((), jnp.inf, real)
        return Tuner(
            step=jnp.asarray(step, real), steps=jnp.asarray(steps, jnp.int32), step_ceiling=inf,
            steps_ceiling=jnp.asarray(max_steps, real), quiet=zero, quiet_steps=zero, calm=zero, noisy=zero,
            rises=zero, rise_from=inf, turns=zero, growths=zero, consensus=inf, grew=zero, promised=zero, reference=inf,
            reference_error=zero,
            last_loss=inf, window=zero, window_loss=zero, window_error=zero, before_loss=inf, before_error=zero,
            floored=zero, troubled=zero, reason=zero, slope=zero, drift=zero, poor=zero,
        )  # fmt: skip


class Limits(eqx.Module):
    """What may be tuned, and how far."""

    max_steps: int = eqx.field(static=True)
    patience: int = eqx.field(static=True)
    tunes_step: bool = eqx.field(static=True)
    tunes_steps: bool = eqx.field(static=True)


def drift_ratio(tuner: Tuner, seen: Statistics) -> Any:
    """Dr: what of the consensus error is not noise, in units of the round's progress."""
    steps = tuner.steps.astype(tuner.step.dtype)
    noise = 2 * tuner.step**2 * seen.noise * steps
    excess = jnp.where(seen.consensus > 1.5 * noise, seen.consensus - noise, 0)
    excess = jnp.where(excess > _ROUNDING * seen.move, excess, 0)
    scale = jnp.maximum(seen.move, 2 * noise)
    ratio = excess / jnp.maximum(scale, jnp.finfo(tuner.step.dtype).tiny)
    return jnp.where(tuner.steps > 1, jnp.minimum(ratio, 1e6), 0)


class _Signs(eqx.Module):
    """What is the case after a round: the counters as they now stand, and what follows from them."""

    bad: Any  # the loss is above that of the last good start
    rises: Any
    rise_from: Any
    growths: Any
    turns: Any
    calm: Any
    noisy: Any
    rising: Any
    poor: Any  # the round before gained less than was promised
    apart: Any
    saturated: Any
    full: Any  # the window
    mean: Any  # of the loss over it
    mean_error: Any
    stagnates: Any
    biased: Any
    lower: Any  # the loss is clearly below that of the round before


def _signs(tuner: Tuner, seen: Statistics, drift: Any, slope: Any) -> _Signs:
    error = jnp.sqrt(seen.loss_error**2 + tuner.reference_error**2)
    tolerance = _CLEAR * error + _ROUNDING * jnp.abs(tuner.reference)
    bad = ~(seen.loss <= jnp.where(jnp.isfinite(tuner.reference), tuner.reference + tolerance, jnp.inf))
    up = seen.loss > tuner.last_loss
    rises = jnp.where(up, tuner.rises + 1, 0)
    rise_from = jnp.where(up & (tuner.rises == 0), tuner.last_loss, tuner.rise_from)
    rose = (rises >= _RISES) & (seen.loss > rise_from + 2 * seen.loss_error)
    growths = jnp.where((seen.consensus > 2 * tuner.consensus) & (tuner.grew == 0), tuner.growths + 1, 0)
    turns = jnp.where((seen.cosine < _TURNED) & (seen.noise > 0), tuner.turns + 1, 0)
    fell = seen.loss < tuner.last_loss + seen.loss_error  # only then is more of it better
    like_noise = (slope >= _SATURATED) & (slope <= _DRIFTING) & (drift <= _LARGE_DRIFT / 2)
    window = tuner.window + 1
    mean = (tuner.window_loss + seen.loss) / window
    mean_error = (tuner.window_error + seen.loss_error**2) / window**2
    gained = tuner.before_loss - mean > 2 * jnp.sqrt(mean_error + tuner.before_error) + 1e-5 * jnp.abs(mean)
    full = window >= _WINDOW
    return _Signs(
        bad=bad, rises=rises, rise_from=rise_from, growths=growths, turns=turns,
        calm=jnp.where((drift < _SMALL_DRIFT) & fell, tuner.calm + 1, 0),
        noisy=jnp.where(like_noise & fell, tuner.noisy + 1, 0), rising=rose | (growths >= _RISES),
        poor=seen.loss > tuner.last_loss - tuner.promised + seen.loss_error,
        apart=drift > _LARGE_DRIFT, saturated=(slope < _SATURATED) & (drift >= _SMALL_DRIFT) & (tuner.steps >= 4),
        full=full, mean=mean, mean_error=mean_error, stagnates=full & ~gained,
        biased=seen.gradient > 4 * seen.gradient_error, lower=seen.loss < tuner.last_loss - seen.loss_error,
    )  # fmt: skip


def _room(tuner: Tuner, now: _Signs, limits: Limits) -> tuple[Any, Any, Any]:
    """Whether K can be halved, whether it can be doubled, and whether instead eta can."""
    steps = tuner.steps.astype(tuner.step.dtype)
    halve = (tuner.steps > 1) & limits.tunes_steps
    double = (2 * steps <= tuner.steps_ceiling) & limits.tunes_steps
    at_limit = (2 * steps > limits.max_steps) | (tuner.steps == 1) | (not limits.tunes_steps)
    longer = now.lower & (now.calm >= limits.patience) & (2 * tuner.step <= tuner.step_ceiling)
    return halve, double, longer & at_limit & limits.tunes_step


def _why(tuner: Tuner, seen: Statistics, now: _Signs, extrapolated: Any, limits: Limits) -> Any:
    """The first reason that holds."""
    halve, double, longer = _room(tuner, now, limits)
    shorter = halve if limits.tunes_steps else tuner.steps > 1  # a walk: by its steps, or by their size
    poor = now.poor & ~extrapolated & shorter  # an extrapolated step may have gained little by itself
    floor = (now.stagnates & (tuner.floored == 0)) | (now.turns >= _RISES)
    # until something was ever taken back, one good round is enough: a start that is far too careful costs rounds too
    patience = jnp.where(tuner.troubled > 0, limits.patience, 1)
    told = (
        (Reason.FAILED, seen.failed),
        (Reason.RESTART, now.bad & extrapolated),
        (Reason.LOSS, now.bad),
        (Reason.RISING, now.rising),
        (Reason.SATURATED, now.saturated & poor),
        (Reason.DRIFT, now.apart & poor),
        (Reason.BIAS, now.stagnates & now.biased & shorter),
        (Reason.UNDONE, now.stagnates & (tuner.floored == 1) & limits.tunes_step),
        (Reason.FLOOR, floor & ~now.biased & limits.tunes_step),
        (Reason.NOISE, (now.noisy >= patience) & double),
        (Reason.CALM, (now.calm >= patience) & (double | longer)),
    )
    return jnp.select([case for _, case in told], [jnp.asarray(float(code)) for code, _ in told], 0.0)


def decide(tuner: Tuner, seen: Statistics, extrapolated: Any, limits: Limits) -> tuple[Tuner, Any]:
    """The tuner for the next round, and whether the round's start was bad, so that the model goes back."""
    drift = drift_ratio(tuner, seen)
    slope = jnp.where(seen.consensus > _ROUNDING * seen.move, seen.slope, jnp.nan)
    now = _signs(tuner, seen, drift, slope)
    reason = _why(tuner, seen, now, extrapolated, limits)
    is_ = lambda *codes: jnp.any(jnp.stack([reason == code for code in codes]), axis=0)  # noqa: E731
    halve, double, _ = _room(tuner, now, limits)
    blamed = is_(Reason.FAILED, Reason.LOSS, Reason.RISING)
    too_far = is_(Reason.DRIFT, Reason.SATURATED, Reason.BIAS)
    fewer = too_far & limits.tunes_steps
    # what was doubled last is to blame, and where the step is given, only the steps can be
    fewer = fewer | (blamed & halve & ((tuner.grew == 1) | (not limits.tunes_step)))
    smaller = (((blamed | too_far) & ~fewer) | is_(Reason.FLOOR)) & limits.tunes_step
    more = is_(Reason.NOISE, Reason.CALM) & double
    larger = (is_(Reason.CALM) & ~double) | is_(Reason.UNDONE)
    steps = jnp.where(fewer, jnp.maximum(1, tuner.steps // 2), jnp.where(more, 2 * tuner.steps, tuner.steps))
    step = jnp.where(smaller, tuner.step / 2, jnp.where(larger, 2 * tuner.step, tuner.step))
    lower, higher = fewer | smaller, more | larger
    back = is_(Reason.RESTART, Reason.LOSS) | (is_(Reason.FAILED) & now.bad)
    fresh = lower | higher | back  # counters of one kind of round do not speak of another
    lift, lift_steps = tuner.quiet + 1 >= _HEALING, tuner.quiet_steps + 1 >= _HEALING_STEPS
    healed = jnp.minimum(jnp.where(lift_steps, 2, 1) * tuner.steps_ceiling, limits.max_steps)
    floored = jnp.where(now.full & ~now.stagnates & (tuner.floored == 1), 0, tuner.floored)
    floored = jnp.where(is_(Reason.FLOOR) & now.stagnates, 1, jnp.where(is_(Reason.UNDONE), 2, floored))
    ended, clear = now.full & ~fresh, now.full | fresh
    unless = lambda case, value: jnp.where(case, 0, value)  # noqa: E731
    new = Tuner(
        step=step, steps=steps, step_ceiling=jnp.where(smaller, step, jnp.where(lift, 2, 1) * tuner.step_ceiling),
        steps_ceiling=jnp.where(fewer, steps, healed),
        quiet=unless(smaller | lift, tuner.quiet + 1),
        quiet_steps=unless(fewer | lift_steps, tuner.quiet_steps + 1), calm=unless(fresh, now.calm),
        noisy=unless(fresh, now.noisy),
        rises=unless(fresh, now.rises), rise_from=now.rise_from, turns=unless(fresh, now.turns),
        growths=unless(fresh, now.growths), consensus=jnp.where(fresh, jnp.inf, seen.consensus),
        grew=jnp.where(more, 1, jnp.where(larger, 2, unless(lower, tuner.grew))),
        promised=unless(fresh | seen.failed, tuner.step * jnp.maximum(seen.gradient, 0) / 2),
        reference=jnp.where(now.bad, tuner.reference, seen.loss),
        reference_error=jnp.where(now.bad, tuner.reference_error, seen.loss_error),
        last_loss=jnp.where(back, tuner.reference, seen.loss), window=unless(clear, tuner.window + 1),
        window_loss=unless(clear, tuner.window_loss + seen.loss),
        window_error=unless(clear, tuner.window_error + seen.loss_error**2),
        before_loss=jnp.where(ended, now.mean, jnp.where(lower & (floored != 1), jnp.inf, tuner.before_loss)),
        before_error=jnp.where(ended, now.mean_error, tuner.before_error), floored=unless(lift, floored),
        troubled=jnp.where(lower, 1, tuner.troubled), reason=reason, slope=slope, drift=drift,
        poor=now.poor,
    )  # fmt: skip
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, tuner), back


def in_words(round: int, before: tuple[float, float], now: tuple[float, float], reason: int, slope: float,
             drift: float) -> str:  # fmt: skip
    """A decision as a sentence; steps and numbers of local steps of the round before and of this one."""
    changes = []
    if before[1] != now[1]:
        changes.append(f"K {before[1]:.0f} -> {now[1]:.0f}")
    if before[0] != now[0]:
        changes.append(f"eta {before[0]:.4g} -> {now[0]:.4g}")
    why = WORDS[Reason(reason)].format(slope=f"{slope:.2g}", drift=f"{drift:.2g}")
    return f"round {round}: {', '.join(changes) or 'nothing changes'}, {why}"
