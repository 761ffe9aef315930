"""A chunk as a loop in Python: for engines whose rounds are not one program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.engine.rounds import Course, Row, Rows, RunState, lost


def round_by_round(
    state: RunState,
    course: Course,
    play: Callable[[RunState], tuple[RunState, Row]],
    measure: Callable[[RunState], dict[str, jax.Array]],
    measured_shapes: dict[str, jax.ShapeDtypeStruct],
) -> tuple[RunState, Rows, jax.Array]:
    """Plays up to `course.num_rounds` rounds, fewer if the run diverges, and measures in those that ask for it."""
    course = jax.tree.map(np.asarray, course)
    unseen: Any = {name: np.full(shape.shape, np.nan, shape.dtype) for name, shape in measured_shapes.items()}
    rows: list[Rows] = []
    while len(rows) < int(course.num_rounds):
        state, row = play(state)
        evaluated = bool(course.evaluates(int(state.round)))
        measured = jax.tree.map(np.asarray, measure(state)) if evaluated else unseen
        diverged: Any = np.asarray(row.diverged) | np.asarray(lost(measured, evaluated))
        row = dataclasses.replace(row, diverged=diverged)
        rows.append(Rows(row, measured))
        if bool(row.diverged):
            break
    return state, jax.tree.map(lambda *a: np.stack(a), *rows), jnp.asarray(len(rows))
