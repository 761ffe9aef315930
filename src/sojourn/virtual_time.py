"""The virtual time of a run: columns of its table that say when things happened on the clients' own clocks."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm, Exchange
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.diagnostics.round_probes import ROUND_PROBES
from sojourn.engine.accounting import gradients_of, one_memory
from sojourn.engine.participation import members
from sojourn.engine.rounds import phase
from sojourn.traces import Devices, RoundClock, Trace

SECONDS = "virtual_seconds"
_TOGETHER = 256  # rounds whose members are drawn at once


def gradients_per_visit(federation: Federation, algorithm: Algorithm, opening: bool = False) -> list[int]:
    """The local steps that clocks count, for every exchange of a round: its gradients, at least one.

    Where visits differ in length, that of the longest: a schedule does not know what a client will draw.
    """
    server, memory = jax.eval_shape(algorithm.init_server, federation.x0), one_memory(algorithm, federation.x0)
    exchanges = algorithm.opening() if opening else algorithm.exchanges()
    found = [gradients_of(exchange, federation.clients, server, memory) for exchange in exchanges]
    usual = int(getattr(algorithm.plain(), "num_local_steps", 1))
    return [max(1, usual if number is None else number) for number in found]


def check_time(
    federation: Federation, algorithm: Algorithm, rounds: int, participation: Any, record: Sequence[str],
    trace: Trace | None, devices: Devices | None,
) -> None:  # fmt: skip
    """Whether method, trace and devices fit each other; a sentence if not."""
    name = algorithm.title
    if not isinstance(trace, Trace | None) or not isinstance(devices, Devices | None):
        raise SojournError("a trace is made by sojourn.traces.busy or read_trace, devices by sojourn.traces.Devices.")
    if trace is None:
        if algorithm.asynchronous:
            raise SojournError(
                f"{name} takes uploads one by one, as they come, and needs to know when they do: "
                "give a trace, such as sojourn.traces.busy(num_clients, uploads)."
            )
        return
    if not algorithm.asynchronous:
        raise SojournError(
            f"{name} works in rounds and follows no trace; give devices for virtual time, or a method such as FedAsync."
        )
    if participation is not None:
        raise SojournError("with a trace its schedule says who takes part; leave participation out.")
    if devices is not None:
        raise SojournError("the trace was made with devices already; leave devices out.")
    if trace.num_clients != federation.num_clients:
        raise SojournError(f"the trace is of {trace.num_clients} clients, the federation has {federation.num_clients}.")
    if trace.uploads_per_update != algorithm.uploads_per_update():
        raise SojournError(
            f"{name} makes a version of every {algorithm.uploads_per_update()} uploads, the trace of every "
            f"{trace.uploads_per_update}; make it with the right Work(uploads_per_update=…)."
        )
    if rounds > len(trace):
        raise SojournError(f"the trace has {len(trace)} uploads, fewer than the {rounds} asked for; make it longer.")
    about_rounds = next((probe for probe in record if probe in ROUND_PROBES), None)
    if about_rounds is not None:
        raise SojournError(f'record = "{about_rounds}" compares the clients of a round; with a trace there are none.')
    if federation.clients.objective.in_round(jax.random.key(0)) is not federation.clients.objective:
        raise SojournError("samples that are dealt anew in every round need rounds; leave redeal out.")
    (steps,) = gradients_per_visit(federation, algorithm)
    if trace.about.get("steps", steps) != steps:
        raise SojournError(
            f"{name} computes {steps} gradients in a task, and the trace was made for tasks of {trace.about['steps']}; "
            f"make it with Work(steps={steps})."
        )


class VirtualTime:
    """Adds the columns of virtual time to a run's rows, chunk by chunk; nothing where no time is asked for."""

    def __init__(
        self, federation: Federation, algorithm: Algorithm, cohort: int, root: Any, trace: Trace | None,
        devices: Devices | None,
    ) -> None:  # fmt: skip
        self._algorithm, self._num_clients, self._cohort = algorithm, federation.num_clients, cohort
        self._root = np.asarray(jax.random.key_data(root))  # a copy: the run's own is used up
        self._trace, self._told = trace, 0
        self._clock: RoundClock | None = None
        self._opening: tuple[Any, list[int]] | None = None
        if devices is not None:
            seed = int(self._root.ravel()[-1])
            self._clock = RoundClock(devices, federation.num_clients, seed)
            self._steps = gradients_per_visit(federation, algorithm)
            self._asked = self._asks(algorithm.exchanges())
            if algorithm.opening():
                self._opening = (
                    self._asks(algorithm.opening()),
                    gradients_per_visit(federation, algorithm, opening=True),
                )

    def at_start(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The row of round 0."""
        if self._trace is not None:
            return rows.assign(**{SECONDS: 0.0, "staleness": np.nan, "client": -1, "queue": 0, "dropped": 0, "lost": 0})
        return rows if self._clock is None else rows.assign(**{SECONDS: 0.0})

    def tell(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of rounds that follow each other; those before them were told, or are fast-forwarded."""
        if self._trace is not None:
            return self._of_uploads(rows)
        if self._clock is None or not len(rows):
            return rows
        first, last = int(rows["round"].iloc[0]), int(rows["round"].iloc[-1])
        times = {}
        while self._told < last:
            asked, steps, number = self._asked, self._steps, min(_TOGETHER, last - self._told)
            opening, alike = phase(self._algorithm, self._told)
            if opening and self._opening is not None:
                asked, steps = self._opening
            number = int(min(number, alike))
            ids = [
                np.asarray(of_all) for of_all in asked(np.arange(self._told, self._told + _TOGETHER, dtype=np.int32))
            ]
            for i in range(number):
                self._told += 1
                times[self._told] = self._clock.play([of_all[i] for of_all in ids], steps)
        return rows.assign(**{SECONDS: [times[number] for number in range(first, last + 1)]})

    def _asks(self, exchanges: Sequence[Exchange]) -> Any:
        """Whom every exchange asks, for a block of rounds of a fixed length."""

        def of_round(round: jax.Array) -> list[jax.Array]:
            key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(self._root)), round)
            return [members(e.who, key, self._num_clients, self._cohort, e.purpose) for e in exchanges]

        return jax.jit(jax.vmap(of_round))

    def _of_uploads(self, rows: pd.DataFrame) -> pd.DataFrame:
        assert self._trace is not None
        at, found = rows["round"].to_numpy() - 1, self._trace.uploads
        sent = {
            name: rows[name] * (found.handed_out[at] if "down" in name else 1 + found.dropped[at])
            for name in ("floats_down", "floats_up", "bytes_down", "bytes_up")
        }
        return rows.assign(
            **sent, **{SECONDS: found.time[at]}, staleness=found.staleness[at].astype(float), client=found.client[at],
            queue=found.queue[at], dropped=found.dropped[at], lost=found.lost[at],
        )  # fmt: skip


def trace_entry(trace: Trace | None, uploads: int) -> Mapping[str, Any]:
    """What the manifest says of the trace, up to the last upload that was applied."""
    if trace is None:
        return {}
    found = trace.uploads
    number = max(1, uploads)
    seconds = float(found.time[number - 1])
    summary = {
        "uploads_per_virtual_second": round(uploads / seconds, 6) if seconds else None,
        "updates_per_virtual_second": round(uploads // trace.uploads_per_update / seconds, 6) if seconds else None,
        "virtual_seconds": seconds if uploads else 0.0,
        "mean_staleness": round(float(found.staleness[:number].mean()), 4),
        "largest_staleness": int(found.staleness[:number].max()),
        "dropped": int(found.dropped[:number].sum()),
        "lost": int(found.lost[:number].sum()),
        "models_kept": trace.num_slots,
    }
    return {"trace": {**trace.about, **summary}}
