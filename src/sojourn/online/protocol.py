"""The game: machines play, costs are revealed, every K steps those who collaborate average; regret at the plays.

Average regret after t steps is the mean cost of all plays so far, over machines and over the points of a step, less the
least mean cost of one point of the ball for the same costs (thesis, equation 7.1 and section 7.2.5). Time is a scan,
machines and seeds are side by side: one program per shape, and other radii, step sizes, K or scales do not compile
again. If K does not divide T, machines average once more after the last step.

Random numbers are drawn on the host and handed to the program chunk by chunk: hashing keys inside it would take most of
the time to compile. The adversary's generator and the machines' are told apart by name, and the adversary's functions
are handed its own numbers only.
"""

import dataclasses
import functools
import inspect
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.core.errors import SojournError
from sojourn.core.keys import root_key
from sojourn.online.comparator import comparators, one_step
from sojourn.online.costs import Cost, ExactCost, Linear
from sojourn.online.method import Game, Method
from sojourn.online.stream import Stream

_MAX_KEPT = 1 << 28  # numbers of costs that are kept for a solver
# Small programs, many shapes: compiling takes longer than running. These save a third of it and cost no speed.
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_llvm_disable_expensive_passes": True}
_ONCE = {**_QUICK, "xla_backend_optimization_level": 0}  # runs once per game
_CHUNK = 1 << 23  # random numbers that are drawn at a time


@dataclasses.dataclass(frozen=True)
class Play:
    """What came of it: one row per seed and recorded step; counts and means are from the start up to that step.

    Columns: seed, step, regret, cost (mean, of all plays), comparator (the best point's mean cost), comparator_gap (by
    how much a solver's comparator may be too high if costs are convex, 0 where it is exact), norm_mean and norm_max of
    the plays, floats_up and floats_down.
    """

    table: pd.DataFrame
    method: Method  # with the numbers it was played with
    game: Game

    def frame(self) -> pd.DataFrame:
        return self.table.copy()

    def last(self, column: str = "regret") -> np.ndarray:
        """The column after the last step, one number per seed."""
        return self.table[self.table["step"] == self.game.steps][column].to_numpy()

    @property
    def regret(self) -> np.ndarray:
        """The average regret after the last step, one number per seed."""
        return self.last("regret")


def play(
    stream: Stream, method: Method, steps: int, *, num_machines: int = 1, num_local_steps: int = 1,
    seeds: Iterable[int] = (0,), records: int = 1,
) -> Play:  # fmt: skip
    """Plays a method against a stream of costs for T steps on M machines that may communicate every K.

    records: at how many steps regret is recorded, evenly spread up to the last. One seed decides the adversary's draws
    and the machines' own; the same seeds give the same costs to every method, if the adversary does not react.
    """
    _check(steps, num_machines, num_local_steps, records)
    if not isinstance(stream, Stream) or not isinstance(method, Method):
        raise SojournError(
            "play takes a stream and a method of sojourn.online, in this order, and the number of steps."
        )
    stream.check(num_machines, steps)
    chosen = _checked_seeds(seeds)
    game = Game(steps, num_local_steps, num_machines, stream.size, float(stream.radius), stream.known())
    kind = one_step(stream, num_machines)
    _check_linear(method, kind, game)
    ready = method.tuned(game)
    times = np.unique(np.ceil(steps * np.arange(1, records + 1) / records).astype(int))
    solve = not isinstance(kind, ExactCost) and stream.least_value() is None
    if solve:
        _check_size(kind, steps, len(chosen) if stream.random else 1)
    # costs that are alike for all seeds and plays need not be kept: the stream can tell them again
    courses, totals, kept = _compete(stream, ready, game, times, chosen, solve and stream.random)
    _check_finite(courses, game.radius, steps)
    least, gap = comparators(stream, kind, totals, kept, times, len(chosen), num_machines)
    return Play(_table(chosen, times, courses, least, gap, game, ready.collaborative), ready, game)


def study(games: Iterable[Mapping[str, Any]]) -> list[Play]:
    """Many games, as many side by side as there are cores; each is what `play` takes, by name."""
    precise = jnp.result_type(float) == jnp.float64  # a setting of the thread

    def one(game: Mapping[str, Any]) -> Play:
        try:
            inspect.signature(play).bind(**game)
        except TypeError as error:
            raise SojournError(f"a game of a study does not fit `play`, whose arguments it names: {error}.") from error
        with jax.enable_x64(precise):
            return play(**game)

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(one, games))


class Table(eqx.Module):
    """What goes from chunk to chunk, for one seed."""

    x: jax.Array  # (machines, d)
    memory: Any  # the adversary's
    total: Any  # sum of the costs' summaries, each a mean over machines, and what rounding added to it
    shots: Any  # the same at the recorded steps


def _compete(
    stream: Stream, method: Method, game: Game, times: np.ndarray, seeds: list[int], keep_costs: bool
) -> tuple[np.ndarray, Any, Any]:
    """Per seed: (cost, mean norm, largest norm) of every step, sums of summaries at the recorded steps, kept costs."""
    M, T = game.num_machines, game.steps
    of_machine = method.width(game.dimension)
    at_start, of_step = stream.widths(M)
    per_step = len(seeds) * (M * of_machine + of_step + 1)
    num_chunks = -(-T * per_step // _CHUNK)
    length = -(-T // num_chunks)
    machines = [_generator(seed, "machines") for seed in seeds]
    adversary = [_generator(seed, "adversary") for seed in seeds]
    table = _begin(stream, _drawn(adversary, (at_start,)), M, len(times))
    numbers = (jnp.asarray(game.num_local_steps), jnp.asarray(T))
    slots = np.minimum(np.searchsorted(times, np.arange(num_chunks * length), side="right"), len(times) - 1)
    told, kept = [], []
    for chunk in range(num_chunks):
        mine, theirs = _drawn(machines, (length, M, of_machine)), _drawn(adversary, (length, of_step))
        here = jnp.asarray(slots[chunk * length :][:length])
        table, (course, costs) = _advance(
            stream, method, table, mine, theirs, jnp.asarray(chunk * length), here, *numbers, keep_costs
        )  # fmt: skip
        told.append(course)
        kept.append(costs)
    courses, costs, shots = jax.device_get((told, kept, table.shots))
    join = lambda *parts: np.concatenate(parts, axis=1)[:, :T]  # noqa: E731
    sums = jax.tree.map(lambda total, over: np.asarray(total, float) - np.asarray(over, float), *shots)
    return join(*courses), sums, jax.tree.map(join, *costs)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def _drawn(generators: list[np.random.Generator], shape: tuple[int, ...]) -> jax.Array:
    """Standard normal numbers, (seeds, ...)."""
    kind: Any = np.dtype(jnp.result_type(float))
    found = np.empty((len(generators), *shape), kind)
    for generator, row in zip(generators, found, strict=True):
        generator.standard_normal(out=row, dtype=kind)
    return jnp.asarray(found)


def _compiled(options: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`eqx.filter_jit` with options for the compiler: what is not an array is static."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def combined(arrays: Any, rest: Any) -> Any:
            return function(*eqx.combine(arrays, rest))

        program = jax.jit(combined, static_argnums=1, compiler_options=dict(options))

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return program(*eqx.partition(arguments, eqx.is_array))

        call.program = program  # type: ignore[attr-defined]
        return call

    return wrap


@_compiled(_ONCE)
def _begin(stream: Stream, draws: jax.Array, num_machines: int, num_records: int) -> Table:
    def one_seed(mine: jax.Array) -> Table:
        memory = stream.start(mine, num_machines)
        _, of_step = stream.widths(num_machines)
        costs = jax.eval_shape(lambda: stream.costs(memory, jnp.asarray(0), jnp.zeros(of_step), num_machines))
        summary = jax.eval_shape(jax.vmap(lambda cost: cost.summary()), costs)
        zeros = jax.tree.map(lambda part: jnp.zeros(part.shape[1:], part.dtype), summary)
        total = (zeros, zeros)
        shots = jax.tree.map(lambda part: jnp.zeros((num_records, *part.shape), part.dtype), total)
        return Table(jnp.zeros((num_machines, stream.size)), memory, total, shots)

    return jax.vmap(one_seed)(draws)


@_compiled(_QUICK)
def _advance(
    stream: Stream, method: Method, table: Table, mine: jax.Array, theirs: jax.Array, since: jax.Array,
    slots: jax.Array, period: jax.Array, steps: jax.Array, keep_costs: bool,
) -> Any:  # fmt: skip
    """The game from step `since` on, for as many steps as there are numbers; beyond the last step nothing changes."""
    num_machines = table.x.shape[1]

    def step(now: Table, given: Any) -> Any:
        t, slot, mine, theirs = given
        costs = stream.costs(now.memory, t, theirs, num_machines)
        points, aim = jax.vmap(method.query, (0, None, 0))(now.x, stream.radius, mine)
        values = jax.vmap(lambda cost, at: jax.vmap(cost.value)(at))(costs, points)  # (machines, points)
        answer = values if method.feedback != "gradient" else jax.vmap(_gradient)(costs, points[:, 0])
        x = jax.vmap(method.move)(now.x, jax.vmap(method.estimate)(aim, answer))
        if method.collaborative:
            together = ((t + 1) % period == 0) | (t == steps - 1)
            x = jnp.where(together, x.mean(0), x)
        added = jax.tree.map(lambda part: part.mean(0), jax.vmap(lambda cost: cost.summary())(costs))
        total = _summed(now.total, jax.tree.map(lambda new: jnp.where(t < steps, new, 0.0), added))
        shots = jax.tree.map(lambda shot, sum_: shot.at[slot].set(sum_), now.shots, total)
        norms = jnp.linalg.norm(points, axis=-1)
        told = jnp.stack([values.mean(), norms.mean(), norms.max()])
        return Table(x, stream.watch(now.memory, points), total, shots), (told, costs if keep_costs else ())

    def one_seed(now: Table, mine: jax.Array, theirs: jax.Array) -> Any:
        return jax.lax.scan(step, now, (since + jnp.arange(mine.shape[0]), slots, mine, theirs))

    return jax.vmap(one_seed)(table, mine, theirs)


def _summed(total: Any, new: Any) -> Any:
    """Kahan's sum: in single precision, too, the comparator of a long game is exact to far below its regret."""
    less = jax.tree.map(jnp.subtract, new, total[1])
    after = jax.tree.map(jnp.add, total[0], less)
    return after, jax.tree.map(lambda now, old, part: (now - old) - part, after, total[0], less)


def _gradient(cost: Cost, x: jax.Array) -> jax.Array:
    return cost.gradient(x)


def _table(
    seeds: list[int], times: np.ndarray, courses: np.ndarray, least: np.ndarray, gap: np.ndarray, game: Game,
    collaborative: bool,
) -> pd.DataFrame:  # fmt: skip
    at = times - 1
    so_far = courses.astype(float).cumsum(axis=1)[:, at] / times[:, None]  # (seeds, records, 3)
    averaged = times // game.num_local_steps + ((times == game.steps) & (game.steps % game.num_local_steps > 0))
    floats = np.where(collaborative, averaged * game.num_machines * game.dimension, 0)
    grid = lambda row: np.broadcast_to(row, least.shape)  # noqa: E731
    columns = {
        "seed": np.broadcast_to(np.array(seeds)[:, None], least.shape), "step": grid(times),
        "regret": so_far[..., 0] - least, "cost": so_far[..., 0], "comparator": least, "comparator_gap": gap,
        "norm_mean": so_far[..., 1], "norm_max": np.maximum.accumulate(courses[..., 2], axis=1)[:, at],
        "floats_up": grid(floats), "floats_down": grid(floats),
    }  # fmt: skip
    return pd.DataFrame({name: np.asarray(value).reshape(-1) for name, value in columns.items()})


def _check(steps: Any, num_machines: Any, num_local_steps: Any, records: Any) -> None:
    counts = {"steps": steps, "num_machines": num_machines, "num_local_steps": num_local_steps, "records": records}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise SojournError(f"{name} = {value!r} does not fit; expected a whole number of at least 1.")


def _checked_seeds(seeds: Any) -> list[int]:
    if not isinstance(seeds, Iterable) or isinstance(seeds, (str, bytes)):
        raise SojournError(f"seeds = {seeds!r} does not fit; expected whole numbers in a list, or range(n).")
    chosen = list(seeds)
    for seed in chosen:
        root_key(seed)  # says what a seed may be
    if not chosen:
        raise SojournError("seeds is empty; give at least one.")
    return chosen


def _check_linear(method: Method, kind: Cost, game: Game) -> None:
    if method.linear_costs and method.step_size is None and not isinstance(kind, Linear) and game.known.smoothness != 0:
        raise SojournError(
            f"{type(method).__name__}'s step size by theory is for linear costs, and these are not known to be; give "
            "step_size, or smoothness = 0 of the stream if they are."
        )


def _check_size(kind: Cost, steps: int, seeds: int) -> None:
    numbers = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(kind)) * steps * seeds
    if numbers > _MAX_KEPT:
        raise SojournError(
            f"these costs have no closed-form comparator, and the {numbers:.1e} numbers that a solver needs do not "
            "fit; give fewer steps or seeds."
        )


def _check_finite(courses: np.ndarray, radius: float, steps: int) -> None:
    """Costs that are not defined where a method plays show here."""
    bad = ~np.isfinite(courses[..., 0])
    if not bad.any():
        return
    seed, step = np.argwhere(bad)[0]
    norms = courses[seed, : step + 1, 2]
    reached = float(norms[np.isfinite(norms)].max(initial=0.0))  # a gradient that is not finite shows a step later
    if reached <= radius * (1 + 1e-5):
        raise SojournError(
            f"a cost is not finite in step {step + 1} of {steps}, although all plays were in the ball of radius "
            f"{radius:.3g}; the cost, its gradient or its data are not finite there."
        )
    raise SojournError(
        f"a cost is not finite in step {step + 1} of {steps} (plays of norm up to {reached:.3g}, the ball has radius "
        f"{radius:.3g}); use constrained=True, or a smaller step_size."
    )
