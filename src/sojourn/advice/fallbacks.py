"""What to run when the choice fails, and when nothing can be predicted: methods that need little to be true."""

import dataclasses
import math

import numpy as np

from sojourn.advice.answer import GUESS, REHEARSED, Contender
from sojourn.advice.asked import Budget, Target
from sojourn.advice.bounds import SAFETY
from sojourn.advice.contest import Scene, play, priced
from sojourn.advice.rehearsal import Grid
from sojourn.advice.start import gradient_at_start
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import norm
from sojourn.diagnosis.findings import Diagnosis

_CAUTION = 0.1  # of Polyak's step, which would be there at once if the loss were straight


def safe_choice(diagnosis: Diagnosis, budget: Budget, scene: Scene | None, best: Contender) -> Contender | None:
    """Minibatch SGD with half the longest step that the curvature allows; None where no curvature is known."""
    found = diagnosis.measures.get("smoothness")
    H = scene.smoothness if found is None and scene is not None else None if found is None else found.value
    if not H or not math.isfinite(H):
        return None
    weak = found is not None and found.kind == "lower bound"
    step, K = 1 / (2 * H * (SAFETY if weak else 1.0)), best.num_local_steps
    note = f"step 1/(2H), H doubled, as {H:.3g} is a lower bound" if weak else f"step 1/(2H), H = {H:.3g}"
    if best.name == "minibatch-sgd" and best.options["step_size"] / 2 < step:
        step, note = best.options["step_size"] / 2, f"half of the choice's; the curvature would allow {2 * step:.3g}"
    rounded = float(f"{step:.6g}")
    made = Contender(
        "minibatch-sgd", {"step_size": rounded, "num_local_steps": K}, math.inf, 0.0, 0.0, GUESS, True, note=note
    )
    if scene is not None:
        played = play(scene, Grid("minibatch-sgd", np.array([rounded]), np.array([K]), np.ones(1)), scene.max_rounds)
        rounds = float(played.rounds[0])
        made = dataclasses.replace(made, rounds=rounds if math.isfinite(rounds) else math.inf, basis=REHEARSED)
    return priced(made, budget, diagnosis.num_clients, diagnosis.dimension)


def guarded_guess(federation: Federation | None, diagnosis: Diagnosis, target: Target, budget: Budget) -> Contender:
    """Where nothing can be predicted: SGD with a tenth of the step that a straight loss would call for."""
    nothing = "nothing can be predicted: the diagnosis has no miniature, and too few constants are known for a bound"
    if federation is None:
        raise SojournError(f"{nothing}.")
    length = float(norm(gradient_at_start(federation)))
    if not 0 < length < math.inf:
        raise SojournError(
            f"{nothing}; and the gradient at the start has the norm {length:g}, so that no step leads away from there: "
            "start elsewhere."
        )
    loss = float(federation.clients.metrics(federation.x0)["loss"])
    gap = loss - target.value if target.kind == "loss" else diagnosis.value("start_gap") or abs(loss)
    step = _CAUTION * (gap if gap > 0 else 1.0) / length**2
    options = {"step_size": float(f"{step:.6g}"), "num_local_steps": 1}
    note = "a tenth of Polyak's step from the start; halve it where the loss comes to a stand"
    made = Contender("minibatch-sgd", options, math.inf, 0.0, 0.0, GUESS, True, note=note)
    return priced(made, budget, diagnosis.num_clients, diagnosis.dimension)
