"""A deployment played again by the simulator, from its log: the same model, or something was lost or counted twice."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from sojourn.deploy.asynchronous import OneByOne, trace_of
from sojourn.deploy.book import Book, read_log
from sojourn.deploy.rounds import InRounds, attendance
from sojourn.driver import run
from sojourn.engine.compiled import final_answer
from sojourn.engine.reference import play_one
from sojourn.engine.rounds import Plan, divergence_limit, phase, start


def replayed(book: Book, federation: Federation) -> Vec:
    """The answer that the simulator comes to, with the clients' data, when all happens in the order of the log."""
    if isinstance(book, OneByOne):
        return _one_by_one(book, federation)
    assert isinstance(book, InRounds)
    return _in_rounds(book, federation)


def difference(book: Book, federation: Federation) -> float:
    """The largest difference between the deployment's answer and the simulator's, over the largest number in it."""
    one, other = _flat(book.algorithm.answer(book.server)), _flat(replayed(book, federation))
    return float(np.abs(one - other).max() / max(np.abs(other).max(), np.finfo(other.dtype).tiny))


def _flat(x: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(x)])


def _one_by_one(book: OneByOne, federation: Federation) -> Vec:
    trace = trace_of(read_log(book.place), book.num_clients, book.algorithm.uploads_per_update())
    if len(trace) != book.applied:
        raise SojournError(f"the log has {len(trace)} uploads and the book {book.applied}.")
    history = run(federation, book.algorithm, book.applied, trace=trace, seed=book.seed, progress=False)
    return Vec(eqx.filter(history.params, eqx.is_inexact_array))


def _in_rounds(book: InRounds, federation: Federation) -> Vec:
    asked = {(number, name): ids for number, name, ids in attendance(read_log(book.place))}
    plan, state = Plan(book.cohort, 1), start(book.algorithm, federation, book.root)
    for number in range(book.round):
        opening, _ = phase(book.algorithm, number)
        kind = "opening" if opening else "steady"
        present = lambda place, n=number, k=kind: jnp.asarray(asked[n, f"{k}.{place}"], jnp.int32)  # noqa: E731
        here = dataclasses.replace(plan, opening=opening)
        limit = divergence_limit(federation.x0)
        state, _ = play_one(book.algorithm, federation.clients, here, state, limit, present)
    everyone = list(range(book.num_clients))
    if any(name.startswith("closing") and ids != everyone for (_, name), ids in asked.items()):
        raise SojournError("not everyone took part in the closing exchange; the simulator always asks all.")
    return final_answer(book.algorithm, federation.clients, state, plan=plan)
