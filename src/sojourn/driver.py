"""Running: `run` takes one algorithm through its rounds, `sweep` takes many settings through them at once.

Both are the same loop over chunks: play, record, save, show. Between chunks a run can be stopped, resumed or killed;
what it computes does not depend on where the chunks end.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm, World
from sojourn.core.compilation import use_compilation_cache
from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.federation import Clients, Federation
from sojourn.core.keys import root_key
from sojourn.diagnostics.probes import check_probes, with_probes
from sojourn.engine import ENGINES, Auto, Compiled, Engine, OneByOne, Replay, engine_entry, in_virtual_time
from sojourn.engine.accounting import COLUMNS as WIRE_COLUMNS
from sojourn.engine.accounting import Wire, check_messages, kept, message_shapes, one_memory, wire_of
from sojourn.engine.checkpoint import check_same_engine, fingerprint, load_state, save_state
from sojourn.engine.compiled import final_answer
from sojourn.engine.participation import cohort_size
from sojourn.engine.rounds import (
    Course,
    Plan,
    RunState,
    divergence_limit,
    may_know,
    phase,
    start,
    vector_size,
)
from sojourn.engine.sharded import Sharded
from sojourn.history import (
    MANIFEST_FILE,
    STATE_FILE,
    TABLE_FILE,
    History,
    all_diverged,
    environment,
    first_rows,
    labels_entry,
    read_manifest,
    read_table,
    table_of,
    until_divergence,
)
from sojourn.progress import Display
from sojourn.theory.forecast import landmarks
from sojourn.traces import Devices, Trace
from sojourn.virtual_time import VirtualTime, check_time, trace_entry

_CHUNK_SECONDS = 0.5  # how long a chunk should take: often enough to show, save and stop, rarely enough to cost nothing
_SAVE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Job:
    """What is run: an algorithm, or a sweep's stack of them, on a federation, or on several alike."""

    federation: Federation  # of several the first: they share shapes, not numbers
    clients: Clients  # of several, stacked where `plan.stacked` says so
    algorithm: Algorithm
    rounds: int
    engine: Engine
    plan: Plan
    eval_every: int
    trace: Trace | None = None  # of an asynchronous method
    devices: Devices | None = None  # whose time synchronous rounds take, if it is asked for
    why: str = "asked for"  # this engine
    spare: Engine | None = None  # to take where the chosen one does not start

    def course(self, num_rounds: int) -> Course:
        whole = lambda number: jnp.asarray(number, jnp.int32)  # noqa: E731
        limit = divergence_limit(self.federation.x0)
        return Course(whole(num_rounds), whole(self.rounds), whole(self.eval_every), limit)


def make_job(
    federation: Federation, algorithm: Algorithm, rounds: int, *,
    engine: str | Engine, participation: int | float | None, eval_every: int | None, record: Sequence[str],
    grid: tuple[int, int] | None = None, worlds: Sequence[Federation] = (), trace: Trace | None = None,
    devices: Devices | None = None, kept: Mapping[str, Any] | None = None,
) -> Job:  # fmt: skip
    """A job, checked before anything runs. `kept` is the manifest's entry on the engine of a run that goes on."""
    use_compilation_cache()
    machine = engine_of(engine)
    if not isinstance(federation, Federation) or not isinstance(algorithm, Algorithm):
        raise SojournError("run takes a federation, then an algorithm (an object, as in LocalSGD(step_size=0.1)).")
    if jax.numpy.result_type(float) != jnp.float64 and any(
        a.dtype == jnp.float64 for a in jax.tree.leaves(federation.x0)
    ):
        raise SojournError("the federation was made in float64; run it inside jax.enable_x64(True) too.")
    for name, value in {"rounds": rounds, "eval_every": eval_every}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise SojournError(f"{name} = {value!r} is not a whole number.")
    record = (record,) if isinstance(record, str) else record
    if rounds < 1:
        raise SojournError(f"rounds = {rounds} is out of range; give at least 1.")
    if eval_every is not None and eval_every < 1:
        raise SojournError(f"eval_every = {eval_every} is out of range; give at least 1.")
    record = tuple(dict.fromkeys(record))
    check_probes(record)
    check_time(federation, algorithm, rounds, participation, record, trace, devices)
    federation = with_probes(federation, algorithm, record)
    cohort = cohort_size(participation, federation.num_clients)
    if trace is not None:
        machine, cohort = in_virtual_time(machine, trace), 1
    if trace is None and cohort < federation.num_clients and algorithm.needs_everyone():
        raise SojournError(f"{algorithm.title} is only right when everyone takes part; leave participation out.")
    for home in worlds or [federation]:
        algorithm.check(world_of(home, algorithm, cohort))
    why = "asked for"
    if isinstance(machine, Auto):
        machine, why = (
            machine.chosen(federation, algorithm, rounds, Plan(cohort, 1, record), kept)
            if grid is None
            else (Compiled(machine.placement), "a sweep is one program")
        )
    spare = Compiled() if why != "asked for" and isinstance(machine, Sharded) and kept is None else None
    num_settings = 1 if grid is None else grid[0] * grid[1]
    width = machine.width(federation, cohort, num_settings)
    several = [with_probes(world, algorithm, record).clients for world in worlds]
    clients, stacked = stack_clients(several) if several else (federation.clients, ())
    plan = Plan(cohort, width, record, grid, stacked)
    plan = dataclasses.replace(plan, row_size=0 if trace else vector_size(algorithm, federation, plan))
    every = eval_every or max(1, rounds // 100)
    return Job(federation, clients, algorithm, rounds, machine, plan, every, trace, devices, why, spare)


def world_of(federation: Federation, algorithm: Algorithm, cohort: int, *, drawn: bool = True) -> World:
    """The federation as a method may know it; `drawn`: cohorts are, at random."""
    clients = federation.clients
    redealt = clients.in_round(jax.random.key(0)) is not clients
    alike = clients.counts_alike(algorithm.weighting)
    return World(clients.num_clients, cohort, alike, federation.setup is not None, redealt, drawn)


def stack_clients(several: Sequence[Clients]) -> tuple[Clients, tuple[bool, ...]]:
    """Clients of one structure as one tree: arrays that differ get a leading axis, those that do not are shared."""
    columns = list(zip(*(jax.tree.leaves(clients) for clients in several), strict=True))
    own = tuple(not all(_same(leaf, column[0]) for leaf in column) for column in columns)
    leaves = [stack_leaves(column) if differs else column[0] for column, differs in zip(columns, own, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(several[0]), leaves), own


def stack_leaves(leaves: Sequence[jax.Array]) -> jax.Array:
    """A stack of many small arrays: on the host, where it costs a tenth."""
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]))


def _same(one: jax.Array, other: jax.Array) -> bool:
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return one is other or np.array_equal(one, other)


def engine_of(engine: str | Engine) -> Engine:
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    made: Engine = ENGINES[engine]()
    return made


def run(
    federation: Federation,
    algorithm: Algorithm,
    rounds: int,
    *,
    seed: int = 0,
    engine: str | Engine = "auto",
    participation: int | float | None = None,
    eval_every: int | None = None,
    record: Sequence[str] = (),
    trace: Trace | None = None,
    devices: Devices | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    label: str = "",
    config: dict[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> History:
    """Runs an algorithm on a federation and returns its history.

    participation: clients per round, as a number (int) or a share (float); None for all.
    eval_every: rounds between evaluations; by default a hundred over the run.
    record: probes, more numbers to keep, see `sojourn list probes`.
    trace: for asynchronous methods, who works when (`sojourn.traces`); a round is then one upload.
    devices: for synchronous methods, whose virtual time every round takes.
    out: a directory to keep the run in; with `resume`, a run kept there goes on where it was.
    notes: further entries for the manifest.
    progress: True or False to force the progress line on or off; by default only on a terminal.
    Ctrl-C ends the run after the chunk in flight, with status "stopped".
    """
    goes_on = resume and out is not None and (Path(out) / STATE_FILE).exists()
    job = make_job(
        federation, algorithm, rounds,
        engine=engine, participation=participation, eval_every=eval_every, record=record, trace=trace, devices=devices,
        kept=read_manifest(Path(out) / MANIFEST_FILE).get("engine", {}) if goes_on and out is not None else None,
    )  # fmt: skip
    label = label or algorithm.title
    state = start(algorithm, federation, root_key(seed))
    if isinstance(job.engine, (Replay, OneByOne)):
        state = job.engine.begin(algorithm, state)
    about = {"label": label, "seed": int(seed), "algorithm": algorithm.describe(), **(notes or {})}
    about["landmarks"] = find_landmarks(federation, algorithm)
    running = Running(job, state, about, config, None if out is None else Path(out), resume)
    with Display(label, rounds, progress) as display, stop_on_signal() as stopped:
        return running.to_the_end(display, stopped)


def find_landmarks(federation: Federation, algorithm: Algorithm) -> dict[str, float]:
    """Where theory says that the run will end, for its report; nothing where clients count unequally."""
    if not federation.clients.weighs_equally(algorithm.weighting):
        return {}
    start_at = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(federation.x0)])
    return landmarks(federation.facts, algorithm.describe(), start_at.astype(float))


class Running:
    """A run, or a sweep's block of settings, under way."""

    def __init__(
        self,
        job: Job,
        state: RunState,
        about: dict[str, Any],
        config: dict[str, Any] | None,
        out: Path | None,
        resume: bool,
    ) -> None:
        self.job, self.about, self.config, self.out = job, about, config, out
        self.state, self.tables = state, list[pd.DataFrame]()
        self.seconds = self.compile_seconds = 0.0
        self.status = "running"
        one = jax.tree.map(lambda leaf: leaf[0], job.algorithm) if job.plan.grid else job.algorithm
        self._wires = self._measure_wires(one)
        self._time = VirtualTime(job.federation, one, job.plan.cohort, state.root, job.trace, job.devices)
        self._identity, self._found = "", dict[str, Any]()  # the manifest of the run that goes on
        if out is not None:
            self._identity = self._fingerprint()
            self._open_directory(out, resume)

    def _fingerprint(self) -> str:
        job, state = self.job, self.state
        made = f"{job.trace.identity}, {job.trace.num_slots} slots" if job.trace else ""
        made = job.devices.identity() if job.devices else made
        # with another number of workers groups are of another size, and a run may go on
        plan = dataclasses.replace(job.plan, width=0) if isinstance(job.engine, Sharded) else job.plan
        return fingerprint(job.algorithm, job.clients, state.server, state.root, (plan, made))

    def _measure_wires(self, algorithm: Algorithm) -> dict[str, list[Wire]]:
        fed, cohort = self.job.federation, self.job.plan.cohort
        server = jax.eval_shape(algorithm.init_server, fed.x0)
        memory = one_memory(algorithm, fed.x0)
        phases = {"opening": algorithm.opening(), "steady": algorithm.exchanges(), "closing": algorithm.closing()}
        sent = []
        for exchanges in phases.values():
            for number, exchange in enumerate(exchanges):
                messages = message_shapes(exchange, fed.clients, server, memory)
                check_messages(algorithm, exchange, messages, may_know(exchanges, number, fed.num_clients, cohort))
                sent += [messages] if number == 0 else []
        self._kept = kept(memory, sent)
        return {name: [wire_of(e, fed.clients, server, memory) for e in several] for name, several in phases.items()}

    def _open_directory(self, out: Path, resume: bool) -> None:
        if resume and (out / STATE_FILE).exists():  # killed before the first save: there is nothing to lose
            self._found = read_manifest(out / MANIFEST_FILE)
            before, now = self._found.get("engine", {}), engine_entry(self.job.engine, self.job.why)
            check_same_engine(out, before.get("name"), now["name"])
            self.state = load_state(out / STATE_FILE, self.state, self._identity)
            done = int(self.state.round)
            if done > self.job.rounds:
                raise SojournError(f"{out} holds {done} rounds already; ask for at least as many, or another --out.")
            kept = read_table(out / TABLE_FILE, done)
            self.tables = [self._without_closing(kept)]
            self.seconds = float(kept["seconds"].sum()) / max(1, self._num_settings() or 1)
            self.status = "diverged" if all_diverged(kept) else "running"
        elif not resume and ((out / MANIFEST_FILE).exists() or (out / STATE_FILE).exists()):
            raise SojournError(f"{out} holds a run already; use --resume to go on with it, or another --out.")

    def _num_settings(self) -> int | None:
        grid = self.job.plan.grid
        return None if grid is None else grid[0] * grid[1]

    def _by_setting(self, array: Any, axis: int) -> Any:
        """A grid's two axes (seeds, algorithms), which begin at `axis`, as one axis of settings; seeds run fastest."""
        if self.job.plan.grid is None:
            return array
        array = array.swapaxes(axis, axis + 1)
        return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])

    def to_the_end(self, display: Display, stopped: threading.Event) -> History:
        if not self.tables:
            self._evaluate_start()
        try:
            self._play(display, stopped)
        finally:
            self.job.engine.close()
        return self._finish()

    def _evaluate_start(self) -> None:
        job, since = self.job, time.perf_counter()
        metrics = job.engine.measure(job.algorithm, job.clients, self.state, job.plan)
        metrics = jax.tree.map(lambda a: self._by_setting(np.asarray(a), 0), metrics)
        self.compile_seconds += time.perf_counter() - since
        settings = self._num_settings()
        setup = job.federation.setup  # federations of a sweep share shapes, so they sent alike
        sent = None if setup is None else setup.sent()
        first = first_rows(metrics, () if settings is None else (settings,), sent)
        self.tables.append(self._time.at_start(first))

    def _play(self, display: Display, stopped: threading.Event) -> None:
        job = self.job
        saved_at, pace, warm = time.monotonic(), 1, set[bool]()
        while (done := int(self.state.round)) < job.rounds and self.status == "running" and not stopped.is_set():
            opening, alike = phase(job.algorithm, done)
            if opening not in warm:
                self._warm_up(opening)
                warm.add(opening)
            length = int(min(job.rounds - done, alike, pace, self.job.engine.capacity(self.job.plan)))
            seconds, diverged = self._chunk(length, opening)
            pace = max(1, min(8 * pace, int(length * _CHUNK_SECONDS / max(seconds, 1e-9))))
            display.update(int(self.state.round), self._latest())
            if diverged:
                self.status = "diverged"
            elif self.out is not None and time.monotonic() - saved_at > _SAVE_SECONDS:
                self._save()
                saved_at = time.monotonic()

    def _warm_up(self, opening: bool) -> None:
        job, since = self.job, time.perf_counter()
        plan = dataclasses.replace(job.plan, opening=opening)
        try:
            self.state = job.engine.warm_up(job.algorithm, job.clients, self.state, job.course(0), plan)
        except SojournError as error:
            if job.spare is None or int(self.state.round):
                raise
            width, why = job.spare.width(job.federation, plan.cohort), f"worker processes do not start: {error}"
            whole = dataclasses.replace(job.plan, width=width)
            self.job = dataclasses.replace(job, engine=job.spare, plan=whole, why=why, spare=None)
            self._identity = "" if self.out is None else self._fingerprint()
            return self._warm_up(opening)
        jax.block_until_ready(self.state)
        self.compile_seconds += time.perf_counter() - since

    def _chunk(self, length: int, opening: bool) -> tuple[float, bool]:
        job, first = self.job, int(self.state.round) + 1
        plan = dataclasses.replace(job.plan, opening=opening)
        since = time.perf_counter()
        self.state, rows, done = job.engine.advance(job.algorithm, job.clients, self.state, job.course(length), plan)
        played = int(done)
        rows = jax.tree.map(lambda a: self._by_setting(np.asarray(a)[:played], 1), rows)
        seconds = time.perf_counter() - since
        wires = self._wires["opening" if opening else "steady"]
        self.tables.append(self._time.tell(table_of(rows, wires, first, seconds)))
        self.seconds += seconds
        return seconds, bool(np.all(rows.row.diverged[-1])) if played else False

    def _latest(self) -> dict[str, float]:
        known = self.tables[-1].select_dtypes("number").ffill().iloc[-1]
        return {name: float(value) for name, value in known.items() if np.isfinite(value)}

    def _table(self) -> pd.DataFrame:
        self.tables = [pd.concat(self.tables, ignore_index=True)]
        return until_divergence(self.tables[0])

    def _save(self) -> None:
        """The table first: a kill in between leaves rows that the state does not know, and resuming drops them."""
        assert self.out is not None
        self._history(self._table()).save(self.out)
        save_state(self.out / STATE_FILE, self.state, self._identity)

    def _trace_so_far(self) -> pd.DataFrame | None:
        done = int(self.state.round)
        return self.job.trace.until(done).tasks if self.job.trace is not None and done else None

    def _finish(self) -> History:
        job, table = self.job, self._table()
        finished = int(self.state.round) >= job.rounds
        if self.status == "running":
            self.status = "ok" if finished else "stopped"
        if finished and self._wires["closing"]:
            table = self._count_closing(table)
            self.tables = [table]
        history = self._history(table)
        answer = final_answer(job.algorithm, job.clients, self.state, plan=job.plan)
        tree = jax.tree.map(lambda a: self._by_setting(a, 0), answer.tree)
        history.params = job.federation.rebuild(tree)  # of a sweep: every leaf with a leading axis of settings
        ends = ("status", "rounds", "rounds_asked")
        if self._found and all(self._found.get(name) == history.manifest[name] for name in ends):
            history.manifest = self._found  # nothing was left to do, so nothing is written
        elif self.out is not None:
            history.save(self.out)
            save_state(self.out / STATE_FILE, self.state, self._identity)
        return history

    def _count_closing(self, table: pd.DataFrame) -> pd.DataFrame:
        """What the closing exchanges send belongs to the last round."""
        last = table["round"] == self.job.rounds
        for name, number in self._sent("closing").items():
            table.loc[last, name] += number
        return table

    def _without_closing(self, table: pd.DataFrame) -> pd.DataFrame:
        """A finished run's last round as it was before the closing: it is counted again, perhaps in a later round."""
        done = int(self.state.round)
        if self._wires["closing"] and done > 0:
            opened, _ = phase(self.job.algorithm, done - 1)
            for name, number in self._sent("opening" if opened else "steady").items():
                table.loc[table["round"] == done, name] = number
        return table

    def _sent(self, part: str) -> dict[str, int]:
        """What the exchanges of an opening, a steady round or the closing send in all, by column."""
        algorithm = self.job.algorithm
        exchanges = {"opening": algorithm.opening, "steady": algorithm.exchanges, "closing": algorithm.closing}[part]()
        numbers = [e.who.number(self.job.federation.num_clients, self.job.plan.cohort) for e in exchanges]
        pairs = list(zip(numbers, self._wires[part], strict=True))
        return {name: sum(number * getattr(wire, name) for number, wire in pairs) for name in WIRE_COLUMNS}

    def _history(self, table: pd.DataFrame) -> History:
        manifest = {
            **self.about,
            **environment(),
            "status": self.status,
            "rounds": int(self.state.round),
            "rounds_asked": self.job.rounds,
            "seconds": round(self.seconds, 4),
            "compile_seconds": round(self.compile_seconds, 4),
            "federation": self.job.federation.name,
            "num_clients": self.job.federation.num_clients,
            "cohort": self.job.plan.cohort,
            "equal_weights": self.job.federation.clients.weighs_equally(self.job.algorithm.weighting),
            "engine": engine_entry(self.job.engine, self.job.why),
            "clients_side_by_side": self.job.plan.width,
            "floats_kept_by_a_client": self._kept,
            "facts": {} if self.job.plan.stacked else self.job.federation.facts.known(),
            **labels_entry(None if self.job.plan.stacked else self.job.federation.label_counts),
            **self._setup_entry(),
            **trace_entry(self.job.trace, int(self.state.round)),
            **self._account(),
        }
        return History(table, manifest, label=self.about["label"], config=self.config, trace=self._trace_so_far())

    def _account(self) -> dict[str, Any]:
        if self.job.plan.grid is not None:
            return {}  # of several settings: every one tells its own
        world = world_of(self.job.federation, self.job.algorithm, self.job.plan.cohort)
        return self.job.algorithm.account(world, int(self.state.round))

    def _setup_entry(self) -> dict[str, Any]:
        if self.job.plan.stacked:
            return {}  # of several federations: every setting tells its own
        return setup_entry(self.job.federation, self.about["algorithm"], self.job.plan.cohort)


def setup_entry(federation: Federation, algorithm: Mapping[str, Any], cohort: int) -> dict[str, Any]:
    """What server and clients did before the first round, for a manifest; nothing where they did nothing."""
    if federation.setup is None:
        return {}
    everyone = cohort == federation.num_clients
    return {"setup": federation.setup.told(algorithm, federation.clients.batch_size, everyone)}


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Ctrl-C and termination end a run after the chunk in flight; a second Ctrl-C ends it at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
