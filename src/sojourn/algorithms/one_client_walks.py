"""Local steps on one client drawn at random, from the server's estimate of the gradient: CE-LSGD's and BVR-L-SGD's.

The client starts from the server's model x and estimate v and takes K steps w <- w - eta u, correcting u by differences
of its own gradients, u <- u + g_j(w; z) - g_j(w before; z); its end is the server's new model, and no models are
averaged. The first step takes v as it is, so it costs no gradient. Lean messages send v alone: x, everyone was sent in
the round's first exchange.

`output` "uniform" is the theorems': one of all local iterates, drawn uniformly. The client sends a candidate of its own
along, and the number that decides whether it is taken (one vector and one number more). "last" is the practical one.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.base import Context, Exchange, Info, Known, Who
from sojourn.algorithms.recursive_estimate import RecursiveEstimate, Tracked, Two, recursion
from sojourn.core.keys import purpose_key
from sojourn.core.options import choice
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, norm


class Candidate(eqx.Module):
    """A local iterate, drawn uniformly from a client's, and a lot, uniform on [0, 1]."""

    x: Vec
    lot: jax.Array


class Choosing(Tracked):
    """The state of a server that also keeps one of all local iterates."""

    chosen: Vec
    num_seen: jax.Array


class OneClientWalks(RecursiveEstimate):
    """What the methods share whose clients take turns."""

    output: str = choice("last", ("last", "uniform"))

    def init_server(self, x0: Vec) -> Tracked:
        if self.output == "last":
            return Tracked(x0, x0, x0.zeros())
        return Choosing(x0, x0, x0.zeros(), x0, jnp.zeros((), jnp.result_type(float)))

    def answer(self, server: Any) -> Vec:
        return server.x if self.output == "last" else server.chosen

    def local_grad(self, oracle: Oracle, x: Vec, z: Any) -> Vec:
        return oracle.grad(x, z)

    def walk(self, num_steps: int) -> Exchange:
        """One client takes the steps."""
        lean = self.messages == "lean"

        def broadcast(server: Tracked) -> Two:
            return Two(server.v, Known(server.x) if lean else server.x)

        def local(down: Two, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
            x = down.before.content if lean else down.before
            step = recursion(lambda y, z: self.local_grad(oracle, y, z), self.step_size)
            last = lambda w, u: (w - self.step_size * u, u)  # noqa: E731
            if self.output == "last":
                (end, _), candidate = (
                    oracle.walk(step, (x, down.now), num_steps - 1, key, finish=lambda s: last(*s)),
                    None,
                )
            else:
                end, candidate = _walk_and_choose(step, last, (x, down.now), num_steps, oracle, key)
            return (end, candidate), memory, {"drift": norm(end - x)}

        def aggregate(server: Any, up: tuple[Vec, Candidate | None], context: Context) -> Any:
            end, candidate = up
            server = dataclasses.replace(server, x=end, x_before=server.x)
            return server if candidate is None else _choose(server, candidate, num_steps)

        def origin(down: Two) -> tuple[Vec, None]:
            return (down.before.content if lean else down.before), None

        # a candidate comes with a lot that decides over it: no length could bound that
        bounded = origin if self.output == "last" else "unknown"
        return Exchange(broadcast, local, aggregate, Who.ONE, "walk", origin=bounded)


def _walk_and_choose(
    step: Any, last: Any, start: tuple[Vec, Vec], num_steps: int, oracle: Oracle, key: jax.Array
) -> tuple[Vec, Candidate]:  # fmt: skip
    """The end of the walk, and one of its iterates before a step, each with the same chance."""
    place, lot = jax.random.split(purpose_key(key, "choice"))
    wanted = jax.random.randint(place, (), 0, num_steps)

    def step_and_keep(state: Any, z: Any, k: jax.Array) -> Any:
        (w, u), kept = state
        moved = step((w, u), z, k)
        return moved, _either(k + 1 == wanted, moved[0], kept)

    finish = lambda state: (last(*state[0]), state[1])  # noqa: E731
    (walked, kept) = oracle.walk(step_and_keep, (start, start[0]), num_steps - 1, key, finish=finish)
    return walked[0], Candidate(kept, jax.random.uniform(lot, dtype=jnp.result_type(float)))


def _choose(server: Choosing, candidate: Candidate, num_steps: int) -> Choosing:
    """Takes the candidate with the share that its walk has of all steps so far, so that all weigh the same."""
    seen = server.num_seen + num_steps
    chosen = _either(candidate.lot * seen < num_steps, candidate.x, server.chosen)
    return dataclasses.replace(server, chosen=chosen, num_seen=seen)


def _either(condition: jax.Array, one: Vec, other: Vec) -> Vec:
    return Vec(jax.tree.map(lambda a, b: jnp.where(condition, a, b), one.tree, other.tree))
