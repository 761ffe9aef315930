"""A guard around any method: bounded answers, aggregators that bear wrong ones, and client-level privacy.

It is a method itself. Its exchanges are those of the method inside, except that a client clips what it sends (`clip`,
the distance to the answer that changes nothing, see `Exchange.origin`), and that the server gets all answers instead of
their mean, clips them again (a client may not have done it), combines them, and hands the result to the method inside
as if it were the mean. Holding a cohort's answers at once is what a guard costs; nothing more is sent.

Private (McMahan et al., "Learning differentially private recurrent language models", ICLR 2018, with a fixed cohort
and equal weights): in every exchange the mean of the n clipped answers is given Gaussian noise, of deviation
noise_multiplier * clip / n in every coordinate; `privacy` adds up what that promises. Paper to code: S -> clip, z ->
noise_multiplier. Departure: cohorts of fixed size, drawn without replacement, and clients that are replaced, not added.

Where answers are taken one by one there is nothing to combine, and noise for one answer would have to hide all of it:
only clipping is offered. A client then measures from the model it was sent, the server from the one it has.
"""

import dataclasses
import functools
import importlib.metadata
from typing import Annotated, Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, Field, create_model

from sojourn.algorithms.aggregators import AGGREGATORS, Aggregator
from sojourn.algorithms.around import Around
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, World
from sojourn.algorithms.clipping import check_floats, clipped, noise_like
from sojourn.algorithms.privacy import COVERS, accounting, epsilon_spent, releases
from sojourn.algorithms.self_tuned import SelfTuned
from sojourn.core.errors import SojournError
from sojourn.core.keys import purpose_key
from sojourn.core.options import choice, positive
from sojourn.core.oracle import Oracle
from sojourn.core.signature import Table, checked, signature_model
from sojourn.core.vec import Vec

Weights = Literal["method", "equal"]


class PrivacyTable(Table):
    """Client-level differential privacy, as a config asks for it."""

    clip: Annotated[float, Field(gt=0, description="largest length of an answer")]
    noise_multiplier: Annotated[
        float | None, Field(gt=0, description="deviation of the noise in a sum of answers, over clip")
    ] = None
    epsilon: Annotated[float | None, Field(gt=0, le=1e4, description="of the whole run; finds the multiplier")] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="well below one over the number of clients")]


@functools.cache
def aggregation_model(aggregator: Aggregator) -> type[BaseModel]:
    """What a config may say of an aggregator: its own options, and those that all share."""
    clip = Annotated[float | None, Field(gt=0, description="largest length of an answer")]
    weights = Annotated[Weights, Field(description="equal: all count alike, whatever a method says")]
    return create_model(
        "Options", __base__=signature_model(aggregator.combine), clip=(clip, None), weights=(weights, "method")
    )


class Guarded(Around):
    """A method whose answers are clipped, combined robustly, or made private; `guarded` makes one."""

    aggregator: str = choice("mean", tuple(AGGREGATORS))
    options: tuple[tuple[str, Any], ...] = eqx.field(default=(), static=True)  # of the aggregator
    clip: Any = positive(None, symbol="S", optional=True)
    weights: str = choice("method", get_args(Weights))
    noise_multiplier: Any = positive(None, symbol="z", optional=True)
    delta: float | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.inner, Algorithm) or isinstance(self.inner, Guarded):
            raise SojournError("a guard stands around a method, and around it alone; give all its options at once.")
        if isinstance(self.inner, SelfTuned):
            raise SojournError(
                "what a self-tuned method rests on no guard covers; guard the method with fixed numbers."
            )
        robust = self.aggregator != "mean"
        if self.inner.asynchronous and (robust or self.private):
            what = f'"{self.aggregator}" needs several answers at once' if robust else "noise must hide one among many"
            raise SojournError(f"{self.inner.title} takes answers one by one, and {what}; only clip them.")
        if not self.private:
            return
        if self.clip is None:
            raise SojournError("noise is in proportion to the length of an answer, which nothing bounds; give clip.")
        if robust:
            raise SojournError(
                f'the noise is that of a mean, and nothing is known for "{self.aggregator}"; choose one.'
            )
        if not isinstance(self.delta, float) or not 0 < self.delta < 1:
            raise SojournError(f"delta = {self.delta!r} is out of range; give a number between 0 and 1, such as 1e-5.")

    @property
    def private(self) -> bool:  # type: ignore[override]
        return self.noise_multiplier is not None

    # --- what it is to engines and reports -----------------------------------------------------------------------

    @property
    def title(self) -> str:
        kind = self.aggregator if self.aggregator != "mean" else "private" if self.private else "clipped"
        return f"{self.inner.title} ({kind})"

    @property
    def weighting(self) -> str:  # type: ignore[override]
        return "equal" if self.weights == "equal" else super().weighting

    def describe(self) -> dict[str, Any]:
        guard = {name: value for name, value in super().describe().items() if value is not None}
        given = {} if self.delta is None else {"delta": self.delta}
        return {**guard, **dict(self.options), **given}

    def check(self, world: World) -> None:
        super().check(world)
        rule = AGGREGATORS[self.aggregator]
        if self.private and self.weighting == "size":
            raise SojournError(
                f"{self.inner.title} weighs clients by their samples, so weights tell of data what no noise hides, "
                'however equal they are; set aggregation.weights = "equal", in Python weights="equal".'
            )
        if not world.counts_alike and (self.private or not rule.weighted):
            what = "noise is worked out for clients that" if self.private else f'"{self.aggregator}" has clients that'
            raise SojournError(
                f'{what} count alike, and here {self.inner.title} weighs them differently; set weights = "equal".'
            )
        for exchange in (*self.inner.opening(), *self.inner.exchanges(), *self.inner.closing()):
            self._check_exchange(exchange, exchange.who.number(world.num_clients, world.cohort))
        if self.private:
            self._check_privacy(world)

    def _check_exchange(self, exchange: Exchange, answers: int) -> None:
        if self.clip is not None and exchange.origin == "unknown":
            raise SojournError(
                f'{self.inner.title} has answers of no bounded length (in its "{exchange.purpose}" exchange); choose '
                "another output, or leave clip out."
            )
        if exchange.reduce == "stack" and (self.private or self.aggregator != "mean"):
            raise SojournError(f"{self.inner.title} combines its answers by a rule of its own; only clip them.")
        AGGREGATORS[self.aggregator].check(answers, **dict(self.options))

    def _check_privacy(self, world: World) -> None:
        accounting()
        if world.made_together:
            raise SojournError("the start was made of what clients sent, which is not accounted; take another model.")
        if world.redealt:
            raise SojournError(
                "samples that change hands belong to no one client whom privacy could protect; leave redeal out."
            )

    def account(self, world: World, rounds: int) -> dict[str, Any]:
        if not self.private:
            return {}
        assert self.delta is not None
        looks = releases(self, world.num_clients, world.cohort, rounds, drawn=world.drawn)
        z = float(self.noise_multiplier)
        draws = dict.fromkeys(f"{size} of {population}" for size, population, _ in looks if size < population)
        return {
            "privacy": {
                "epsilon": epsilon_spent(looks, z, self.delta),
                "delta": self.delta,
                "clip": float(self.clip),
                "noise_multiplier": z,
                "releases": sum(number * times for (_, _, number), times in looks.items()),
                "neighbours": "one client replaced by another, which moves a clipped sum by up to twice the clip",
                "sampling": f"{' and '.join(draws)}, without replacement" if draws else "none",
                "accountant": f"Rényi divergences, dp-accounting {importlib.metadata.version('dp-accounting')}",
                "covers": COVERS,
            }
        }

    # --- the method inside ---------------------------------------------------------------------------------------

    def uploads_per_update(self) -> int:
        return self.inner.uploads_per_update()

    def told(self, context: Context) -> Info:
        return self.inner.told(context)

    def init_server(self, x0: Vec) -> Any:
        return self.inner.init_server(x0)

    def model(self, server: Any) -> Vec:
        return self.inner.model(server)

    def answer(self, server: Any) -> Vec:
        return self.inner.answer(server)

    def reopens_every(self) -> int:
        return self.inner.reopens_every()

    def exchanges(self) -> tuple[Exchange, ...]:
        return self._guarded(self.inner.exchanges())

    def opening(self) -> tuple[Exchange, ...]:
        return self._guarded(self.inner.opening())

    def closing(self) -> tuple[Exchange, ...]:
        return self._guarded(self.inner.closing())

    # --- the guard -----------------------------------------------------------------------------------------------

    def _guarded(self, exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
        return tuple(self._guard(e, self._column(exchanges, place)) for place, e in enumerate(exchanges))

    def _guard(self, exchange: Exchange, column: str) -> Exchange:
        def local(down: Any, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
            up, memory, info = exchange.local(down, memory, oracle, key)
            check_floats(self.inner.title, up)
            if self.clip is None:
                return up, memory, info
            up, over = clipped(up, _origin(exchange, down, up), self.clip)
            return up, memory, {**info, column: over}

        def aggregate(server: Any, ups: Any, context: Context) -> Any:
            if self.clip is not None:
                down = exchange.broadcast(server)  # as it was sent: in rounds the server waits for its answers
                again = lambda up: clipped(up, _origin(exchange, down, up), self.clip)[0]  # noqa: E731
                ups = again(ups) if self.inner.asynchronous else jax.vmap(again)(ups)
            if self.inner.asynchronous or exchange.reduce == "stack":
                return exchange.aggregate(server, ups, context)
            up = self._combined(ups, context)
            return exchange.aggregate(server, up, dataclasses.replace(context, weights=None))

        reduce = exchange.reduce if self.inner.asynchronous else "stack"
        return dataclasses.replace(exchange, local=local, aggregate=aggregate, reduce=reduce)

    def _combined(self, ups: Any, context: Context) -> Any:
        number = len(jax.tree.leaves(ups)[0])
        up = AGGREGATORS[self.aggregator].combine(ups, context.weights, **dict(self.options))
        if not self.private:
            return up
        if context.key is None:
            raise SojournError("the server was given no randomness to draw its noise from (context.key).")
        noise = noise_like(self._noise_key(context.key), up, self.noise_multiplier * self.clip / number)
        return jax.tree.map(jnp.add, up, noise)

    def _noise_key(self, key: jax.Array) -> jax.Array:
        """Of the guard alone, and of these numbers: noise that two runs shared would cancel in their difference."""
        key = purpose_key(key, "guard")
        for number in (self.noise_multiplier, self.clip):
            for bits in jnp.ravel(jax.lax.bitcast_convert_type(jnp.asarray(number), jnp.uint32)):
                key = jax.random.fold_in(key, bits)
        return key

    def _column(self, exchanges: tuple[Exchange, ...], place: int) -> str:
        """Where the share of answers that had to be clipped is told; by exchange where a method has several."""
        phases = self.inner.opening(), self.inner.exchanges()
        if max(map(len, phases)) == 1 and len({e.purpose for phase in phases for e in phase}) == 1:
            return "clipped"
        purpose = exchanges[place].purpose
        alike = [number for number, other in enumerate(exchanges) if other.purpose == purpose]
        which = f"_{alike.index(place) + 1}" if len(alike) > 1 else ""
        return f"clipped_{purpose.replace(' ', '_')}{which}"


def _origin(exchange: Exchange, down: Any, up: Any) -> Any:
    return exchange.origin(down) if callable(exchange.origin) else jax.tree.map(jnp.zeros_like, up)


def guarded(
    algorithm: Algorithm, aggregator: str = "mean", *, clip: Any = None, weights: str = "method",
    noise_multiplier: Any = None, delta: float | None = None, **options: Any,
) -> Algorithm:  # fmt: skip
    """The method with a guard around it; as it is where nothing is asked for.

    aggregator: "mean", "median", "trimmed-mean" (option trim) or "krum" (options attackers, keep).
    clip: the largest length of an answer. weights: "equal" counts all answers alike, whatever the method says.
    noise_multiplier, delta: client-level privacy; `privacy.noise_for` finds the multiplier for an epsilon.
    """
    if aggregator in AGGREGATORS:
        model = signature_model(AGGREGATORS[aggregator].combine)
        options = checked(aggregator, model, options).model_dump()
    if delta is not None and noise_multiplier is None:
        raise SojournError("delta is a matter of privacy; give noise_multiplier too.")
    if (aggregator, clip, weights, noise_multiplier) == ("mean", None, "method", None):
        return algorithm
    plain = tuple(sorted((name, v.item() if isinstance(v, np.generic) else v) for name, v in options.items()))
    return Guarded(algorithm, aggregator, plain, clip, weights, noise_multiplier, delta)
