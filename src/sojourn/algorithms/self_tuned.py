"""A method that sets its own step size and number of local steps between rounds, from what its clients send back.

It is a method itself, around one that walks `num_local_steps` steps of `step_size` in its only exchange. The server
sends the two numbers with the model; a client walks with them and adds to its answer what the rules of `tuner` need:

    - the squared length of its displacement;
    - a sketch (Charikar, Chen and Farach-Colton 2002: at most 64 sums of its coordinates under random signs that all
      share) of its displacement after a quarter of its steps, and the squared lengths of that sketch and of the last
      one's. Sketches are linear, so the server knows that of the mean, and the consensus error C(k) at two times;
    - on two fresh batches at the model it was sent: sketches of both gradients, their squared distance, the
      losses' mean, its square and their squared difference. Where gradients are exact, one serves for both.

This costs every client two gradients and two losses a round (one of each where they are exact), and three sketches and
eight numbers on the wire; all of it is counted. The server keeps three models more.

`momentum = "restarted"`: the server's next start is its new model extrapolated by t/(t+3) times the last change of it,
after t steps; t begins anew when the step just taken points back (O'Donoghue and Candès 2015, their gradient scheme)
and is kept at 0 where noise hides the mean gradient. The fixed points are those of the method inside.

Samples are those of the method inside for the first 16 steps of a visit; beyond, they are drawn in blocks of 16, so
that few steps do not pay for the draws of many.
"""

import dataclasses
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from sojourn.algorithms.around import Around
from sojourn.algorithms.base import Algorithm, Context, Info
from sojourn.algorithms.tuner import Limits, Reason, Statistics, Tuner, decide
from sojourn.core.errors import SojournError
from sojourn.core.keys import purpose_key
from sojourn.core.options import choice, count
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec, inner, norm, size, vecs

TUNABLE = ("step_size", "num_local_steps")
FIRST_LOCAL_STEPS = 8  # where nothing else is said
_SKETCH = 64  # numbers of a sketch: lengths to a fifth, and shared errors cancel in ratios
_DRAWN_TOGETHER = 16  # steps
_BLOWN_UP = 10.0  # times the length that so many steps along the first gradient would have


class ServerState(eqx.Module):
    inner: Any  # of the method inside; its model is where the next round begins
    tuner: Tuner
    x: Vec  # the model, before it is extrapolated
    moved: Vec  # the mean displacement of the last round
    anchor: Any  # what is gone back to: the last good start
    momentum: jax.Array  # steps since extrapolation began anew


class Down(eqx.Module):
    inner: Any
    step: jax.Array
    steps: jax.Array
    told: jax.Array  # (3,) reason, slope, drift ratio: for the reader, who sees what clients report


class Observed(eqx.Module):
    """A client's contribution to the statistics; the server gets the mean."""

    early: jax.Array  # sketch of the displacement after a quarter of the steps
    early_square: jax.Array
    late_square: jax.Array  # of the sketch of the whole displacement
    square: jax.Array  # of the displacement itself
    gradients: jax.Array  # (2, sketch) on two batches
    noise: jax.Array  # half the squared distance of the two
    loss: jax.Array
    loss_square: jax.Array
    loss_noise: jax.Array  # half the squared difference of two batches
    failed: jax.Array


class Up(eqx.Module):
    inner: Any
    observed: Observed


def sketch(x: Vec, salt: jax.Array) -> jax.Array:
    """Sums of x's coordinates under random signs; <sketch(x), sketch(y)> is <x, y> on average. Linear in x."""
    width = min(_SKETCH, size(x.tree))
    total = jnp.zeros(width, jnp.result_type(float))
    first = 0
    for leaf in jax.tree.leaves(x.tree):
        flat = leaf.reshape(-1).astype(total.dtype)
        flat = flat * _signs(first + jnp.arange(flat.size, dtype=jnp.uint32), salt)
        flat = jnp.pad(flat, (first % width, -(first + flat.size) % width))
        total = total + jnp.sum(flat.reshape(-1, width), axis=0)
        first += leaf.size
    return total


def _length(x: Vec) -> jax.Array:
    return norm(x).astype(jnp.result_type(float))


def _signs(index: jax.Array, salt: jax.Array) -> jax.Array:
    """Signs by a hash (Murmur3's finalizer): no array of them is stored, and no message is needed to share them."""
    h = index * jnp.uint32(0x9E3779B1) ^ (salt.astype(jnp.uint32) * jnp.uint32(0x85EBCA77))
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.where((h ^ (h >> 16)) & 1, 1.0, -1.0)


class _Watched(Oracle):
    """An oracle whose walks are of a traced length, and which sketches where they are after a quarter of it."""

    def __init__(self, oracle: Oracle, max_steps: int, steps: jax.Array) -> None:
        self.__dict__.update(oracle.__dict__)  # the same client, ledger and tape
        self._most, self._steps = max_steps, steps
        self.early: jax.Array | None = None
        self.first: jax.Array | None = None  # length of the first step
        self.displacement: Vec | None = None

    def walk(self, step: Any, start: Any, num_steps: Any, key: jax.Array, max_steps: Any = None, iterate: Any = None,
             finish: Any = None) -> Any:  # fmt: skip
        read = iterate or (lambda state: vecs(state)[0])
        origin = read(start)
        quarter = (self._steps + 3) // 4

        def marked(state: Any, z: Any, k: jax.Array) -> Any:
            after = step(state[0], z, k)
            here = lambda: sketch(read(after) - origin, self._steps)  # noqa: E731
            early = jax.lax.cond(k + 1 == quarter, here, lambda: state[1])
            return after, early, jax.lax.cond(k == 0, lambda: _length(read(after) - origin), lambda: state[2])

        marks = jax.eval_shape(lambda: sketch(origin, self._steps))
        end, self.early, self.first = super().walk(
            marked, (start, jnp.zeros(marks.shape, marks.dtype), jnp.zeros((), marks.dtype)), num_steps, key,
            self._most, lambda state: read(state[0]),
            None if finish is None else lambda state: (finish(state[0]), *state[1:]),
        )  # fmt: skip
        self.displacement = read(end) - origin
        return end

    def _block_length(self, key: jax.Array) -> int:
        return min(_DRAWN_TOGETHER, super()._block_length(key))


class SelfTuned(Around):
    """A method that tunes its own step size and number of local steps; `self_tuned` makes one."""

    tuned: tuple[str, ...] = eqx.field(default=TUNABLE, static=True)
    max_local_steps: int = count(64, symbol="K_max")
    patience: int = count(3)
    momentum: str = choice("restarted", ("restarted", "none"))

    def __check_init__(self) -> None:
        if isinstance(self.inner, SelfTuned):
            raise SojournError("the method tunes itself already; give all that it is to tune at once.")
        if not isinstance(self.inner, Algorithm) or not self.inner.tunable:
            name = self.inner.title if isinstance(self.inner, Algorithm) else repr(self.inner)
            raise SojournError(
                f"{name} cannot be self-tuned: only methods can that walk num_local_steps steps of step_size in one "
                "exchange, such as LocalSGD, FedAvg, FedProx, Scaffold and FedOpt."
            )
        if self.inner.closing():
            raise SojournError(f"{self.inner.title} with an averaged output cannot be self-tuned; take the last model.")
        if getattr(self.inner, "min_local_steps", None) is not None:
            raise SojournError(f"{self.inner.title} draws its numbers of local steps; leave min_local_steps out.")
        unknown = [name for name in self.tuned if name not in TUNABLE]
        if unknown or len(set(self.tuned)) != len(self.tuned):
            raise SojournError(f"tuned = {self.tuned!r} does not fit; give one or both of {', '.join(TUNABLE)}.")
        given = self._inner().num_local_steps
        if given > self.max_local_steps:
            raise SojournError(f"num_local_steps = {given} is more than max_local_steps = {self.max_local_steps}.")

    # --- what it is to engines and reports -----------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"{self.inner.title} (self-tuned)"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "tuned": list(self.tuned)}

    # --- a round -------------------------------------------------------------------------------------------------

    def init_server(self, x0: Vec) -> ServerState:
        state = self.inner.init_server(x0)
        tuner = Tuner.start(self._inner().step_size, self._inner().num_local_steps, self.max_local_steps)
        return ServerState(state, tuner, x0, x0.zeros(), self._kept(state), jnp.zeros((), jnp.result_type(float)))

    def broadcast(self, server: ServerState) -> Down:
        tuner = server.tuner
        told = jnp.stack([tuner.reason, tuner.slope, tuner.drift])
        return Down(self._with(tuner.step, tuner.steps).broadcast(server.inner), tuner.step, tuner.steps, told)

    def local(self, down: Down, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Up, Any, Info]:
        start = vecs(down.inner)[0]
        watched = _Watched(oracle, self.max_local_steps, down.steps)
        up, after, info = self._with(down.step, down.steps).local(down.inner, memory, watched, key)
        observed = self._observe(start, watched, down.step, down.steps, purpose_key(key, "self-tuning"))
        # a walk that blew up or left the numbers changes nothing; the server is told
        walked = observed.early, observed.early_square, observed.late_square, observed.square
        numbers = jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((up, after, walked))])
        good = jnp.all(numbers) & (observed.failed == 0)
        up = jax.tree.map(lambda a: jnp.where(good, a, 0), up)
        after = jax.tree.map(lambda a, b: jnp.where(good, a, b), after, memory)
        early, *squares = (jnp.where(good, a, 0) for a in walked)
        names = ("early_square", "late_square", "square")
        told = dict(zip(names, squares, strict=True))
        observed = dataclasses.replace(observed, early=early, failed=1 - good.astype(early.dtype), **told)
        reason, slope, drift = down.told
        chosen = {"tuned_step_size": down.step, "tuned_local_steps": down.steps, "tuning_reason": reason}
        return Up(up, observed), after, {**info, **chosen, "consensus_slope": slope, "drift_ratio": drift}

    def aggregate(self, server: ServerState, up: Up, context: Context) -> ServerState:
        method, begun = self._with(server.tuner.step, server.tuner.steps), self.inner.model(server.inner)
        arrived = method.aggregate(server.inner, up.inner, context)
        seen = self._statistics(server, up, context)
        if not self.tuned:
            return dataclasses.replace(server, inner=arrived, x=method.model(arrived))
        extrapolated = server.momentum > 1
        tuner, back = decide(server.tuner, seen, extrapolated, self._limits())
        real = server.momentum.dtype
        stay = seen.failed & ~back
        new_x = method.model(arrived)
        # t/(t+3) of the last change, unless the new one points back or drowns in noise
        change = new_x - server.x
        forward = inner(new_x - begun, change) >= 0
        heard = server.tuner.steps * seen.gradient > 4 * seen.noise / (context.evenness * context.num_answers)
        on = forward & heard & ~back & ~stay & (tuner.poor == 0) & (self.momentum == "restarted")
        t = jnp.where(on, server.momentum + 1, 0).astype(real)
        far = jnp.where(on, (t - 1) / (t + 2), 0)
        ahead = new_x + far * change
        next_ = self._moved(arrived, _where(on, ahead, new_x))
        # where to go back to: after an extrapolated step to where it began, otherwise to the last good start
        restarted = tuner.reason == Reason.RESTART
        good = self._restored(server.inner, arrived, server.anchor)
        good = jax.tree.map(lambda a, b: jnp.where(restarted, a, b), self._moved(good, server.x), good)
        held = self._restored(server.inner, arrived, self._kept(server.inner))
        chosen = _where(back, good, _where(stay, held, next_))
        x = _where(back | stay, self.inner.model(chosen), new_x)
        anchor = _where(back, server.anchor, self._kept(server.inner))
        return ServerState(chosen, tuner, x, vecs(up.inner)[0], anchor, t)

    def model(self, server: ServerState) -> Vec:
        return server.x

    # --- parts ---------------------------------------------------------------------------------------------------

    def _observe(self, start: Vec, watched: _Watched, step: Any, steps: jax.Array, key: jax.Array) -> Observed:
        assert watched.early is not None and watched.first is not None and watched.displacement is not None
        z = [watched.draw(purpose_key(key, name)) for name in ("first", "second")]
        exact = z[0] is None
        gradients = [watched.grad(start, z[0])]
        losses = [watched.value(start, z[0])]
        gradients.append(gradients[0] if exact else watched.grad(start, z[1]))
        losses.append(losses[0] if exact else watched.value(start, z[1]))
        late = sketch(watched.displacement, steps)
        # ten times farther than all its steps along the longest gradient seen: no walk that descends goes there
        longest = jnp.maximum(watched.first / step, jnp.maximum(_length(gradients[0]), _length(gradients[1])))
        failed = ~(_length(watched.displacement) <= _BLOWN_UP * step * steps * longest)
        apart, loss = gradients[0] - gradients[1], (losses[0] + losses[1]) / 2
        found = Observed(
            early=watched.early, early_square=watched.early @ watched.early, late_square=late @ late,
            square=inner(watched.displacement, watched.displacement),
            gradients=jnp.stack([sketch(g, steps) for g in gradients]),
            noise=inner(apart, apart) / 2, loss=loss, loss_square=loss**2,
            loss_noise=(losses[0] - losses[1]) ** 2 / 2, failed=failed,
        )  # fmt: skip
        return jax.tree.map(lambda a: a.astype(jnp.result_type(float)), found)

    def _statistics(self, server: ServerState, up: Up, context: Context) -> Statistics:
        tuner, seen, moved = server.tuner, up.observed, vecs(up.inner)[0]
        number = context.evenness * context.num_answers  # as many equal ones would be as noisy
        late = sketch(moved, tuner.steps)
        move = inner(moved, moved).astype(seen.square.dtype)
        early_error = 2 * jnp.maximum(seen.early_square - seen.early @ seen.early, 0)
        late_error = 2 * jnp.maximum(seen.late_square - late @ late, 0)
        quarter = ((tuner.steps + 3) // 4).astype(move.dtype)
        slope = jnp.log(late_error / early_error) / jnp.log(tuner.steps / quarter)
        # of the mean of two batches of every client; and of clients, where not all take part
        among = jnp.maximum(seen.loss_square - seen.loss**2, 0) * (1 - jnp.minimum(context.share, 1))
        loss_error = jnp.sqrt((seen.loss_noise / 2 + among) / number)
        return Statistics(
            loss=seen.loss, loss_error=loss_error, consensus=2 * jnp.maximum(seen.square - move, 0),
            slope=jnp.where(jnp.isfinite(slope), slope, jnp.nan), move=move, noise=seen.noise,
            gradient=seen.gradients[0] @ seen.gradients[1], gradient_error=seen.noise / number,
            cosine=inner(moved, server.moved) / jnp.maximum(norm(moved) * norm(server.moved), 1e-30),
            failed=seen.failed > 0,
        )  # fmt: skip

    def _limits(self) -> Limits:
        return Limits(self.max_local_steps, self.patience, *(name in self.tuned for name in TUNABLE))

    def _inner(self) -> Any:
        return cast(Any, self.inner)  # tunable methods have step_size and num_local_steps

    def _with(self, step: Any, steps: Any) -> Any:
        """The method inside with these numbers, which may be traced; its own checks were made when it was built."""
        made = object.__new__(type(self.inner))
        for field in dataclasses.fields(self.inner):
            object.__setattr__(made, field.name, getattr(self.inner, field.name))
        object.__setattr__(made, "step_size", step)
        object.__setattr__(made, "num_local_steps", steps)
        return made

    def _moved(self, state: Any, x: Vec) -> Any:
        return eqx.tree_at(lambda s: s.x, state, x)

    def _stateless(self, x: Vec) -> bool:
        return not jax.tree.leaves(jax.eval_shape(self.inner.init_client, x))

    def _kept(self, state: Any) -> Any:
        """What of a state can be gone back to. What the server knows of its clients' memories (SCAFFOLD's control) must
        stay true, so with such only the model."""
        return state if self._stateless(self.inner.model(state)) else self.inner.model(state)

    def _restored(self, begun: Any, arrived: Any, kept: Any) -> Any:
        return kept if self._stateless(self.inner.model(begun)) else self._moved(arrived, kept)


def _where(case: Any, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(case, x, y), a, b)


def self_tuned(
    algorithm: Algorithm, *, tuned: tuple[str, ...] | list[str] | str = TUNABLE, max_local_steps: int | None = None,
    patience: int = 3, momentum: str = "restarted",
) -> SelfTuned:  # fmt: skip
    """The method, setting its own step size and number of local steps; those it was made with are the first.

    tuned: "step_size", "num_local_steps" or both (nothing: the numbers stay, only statistics are gathered).
    max_local_steps: of a client in a round; 64, or what the method begins with where that is more.
    patience: good rounds before a number is doubled, once one was halved.
    momentum: "restarted" extrapolates the server's model while that helps, or "none".
    """
    names = (tuned,) if isinstance(tuned, str) else tuple(tuned)
    most = max(64, int(getattr(algorithm, "num_local_steps", 1))) if max_local_steps is None else max_local_steps
    return SelfTuned(algorithm, names, most, patience, momentum)
