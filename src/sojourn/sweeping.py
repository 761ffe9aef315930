"""Sweeps: many step sizes and seeds as one compiled program.

Settings whose algorithms differ only in real numbers form grids of algorithms and seeds that run side by side; other
differences (a count, a choice) make further grids, one program each. A grid that would not fit in memory is cut.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import size
from sojourn.driver import Running, describe, make_job, run, stop_on_signal
from sojourn.engine import ENGINES, Engine
from sojourn.engine.rounds import RunState, start
from sojourn.history import History
from sojourn.progress import Display

_BLOCK_BYTES = 2 << 30  # of states that are run side by side


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of a sweep: what is run, and how the table names it."""

    algorithm: Algorithm
    seed: int
    labels: dict[str, Any]


def sweep(
    federation: Federation,
    make: Callable[[Any], Algorithm],
    values: Iterable[Any],
    rounds: int,
    *,
    seeds: Iterable[int] = (0,),
    name: str = "value",
    **how: Any,
) -> History:
    """Runs `make(value)` for every value and every seed, together; the table has the columns `name` and `seed`.

    `how` are the options of `run`: engine, participation, eval_every, record, out, resume, progress.
    The history's `params` hold the final models with a leading axis of settings, seeds running fastest.
    """
    seeds = list(seeds)
    made = [(value, make(value)) for value in values]
    settings = [Setting(algorithm, int(seed), {name: _plain(value)}) for value, algorithm in made for seed in seeds]
    return sweep_settings(federation, settings, rounds, **how)


def _plain(value: Any) -> Any:
    """A label that a table can hold."""
    value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def sweep_settings(
    federation: Federation,
    settings: Sequence[Setting],
    rounds: int,
    *,
    engine: str | Engine = "compiled",
    participation: int | float | None = None,
    eval_every: int | None = None,
    record: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    label: str = "sweep",
    config: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> History:
    """Runs settings that may differ in anything but the federation and the rounds."""
    if not settings:
        raise SojournError("a sweep needs at least one value and one seed.")
    how: dict[str, Any] = {
        "engine": engine, "participation": participation, "eval_every": eval_every, "record": record,
    }  # fmt: skip
    directory = None if out is None else Path(out)
    if directory is not None and not resume and any(directory.glob("block-*")):
        raise SojournError(f"{directory} holds a sweep already; use --resume to go on with it, or another --out.")
    parts: list[tuple[list[int], History]] = []
    blocks = _blocks(federation, settings)
    with stop_on_signal() as stopped:
        for number, block in enumerate(blocks):
            place = None if directory is None else directory / f"block-{number:03d}"
            numbers = block.numbers
            if not _sweeps(engine):
                history = _one_by_one(federation, [settings[i] for i in numbers], rounds, place, resume, how)
                numbers = numbers[: int(history.table["setting"].max()) + 1]  # fewer, when it was stopped
            else:
                running = _stacked(federation, block, rounds, place, resume, label, how)
                with Display(f"{label} {number + 1}/{len(blocks)}", rounds, progress) as display:
                    history = running.to_the_end(display, stopped)
            parts.append((numbers, history))
            if history.status == "stopped":
                break
    merged = _merge(settings, parts, label, config)
    if directory is not None:
        merged.save(directory)
    return merged


def _sweeps(engine: str | Engine) -> bool:
    return ENGINES[engine].sweeps if isinstance(engine, str) and engine in ENGINES else getattr(engine, "sweeps", True)


@dataclasses.dataclass(frozen=True)
class Block:
    """A full grid of algorithms and seeds that runs as one program; `numbers` are its settings, seeds fastest."""

    algorithms: list[Algorithm]
    seeds: list[int]
    numbers: list[int]


def _blocks(federation: Federation, settings: Sequence[Setting]) -> list[Block]:
    """The settings as grids: algorithms of one structure that are run with the same seeds, cut to fit in memory."""
    by_algorithm: dict[Any, dict[int, int]] = {}  # the algorithm's content -> seed -> number of the setting
    seen: Counter[Any] = Counter()  # equal settings, under different labels, are run as often as they are asked for
    for number, setting in enumerate(settings):
        content = _content(setting.algorithm)
        repeat = seen[content, setting.seed]
        seen[content, setting.seed] += 1
        by_algorithm.setdefault((*content, repeat), {})[setting.seed] = number
    grids: dict[Any, list[dict[int, int]]] = {}
    for (structure, *_), numbers in by_algorithm.items():
        grids.setdefault((structure, tuple(numbers)), []).append(numbers)
    blocks = []
    for (_, seeds), members in grids.items():
        room = _settings_that_fit(federation, settings[members[0][seeds[0]]].algorithm)
        for some_seeds in _cut(list(seeds), room):
            for some in _cut(members, max(1, room // len(some_seeds))):
                algorithms = [settings[numbers[seeds[0]]].algorithm for numbers in some]
                blocks.append(Block(algorithms, some_seeds, [n[seed] for n in some for seed in some_seeds]))
    return blocks


def _content(algorithm: Algorithm) -> tuple[Any, tuple[bytes, ...]]:
    leaves, structure = jax.tree.flatten(algorithm)
    return structure, tuple(np.asarray(leaf).tobytes() for leaf in leaves)


def _cut(items: list[Any], length: int) -> list[list[Any]]:
    return [items[i : i + length] for i in range(0, len(items), length)]


def _settings_that_fit(federation: Federation, algorithm: Algorithm) -> int:
    server, memory = jax.eval_shape(lambda x0: (algorithm.init_server(x0), algorithm.init_client(x0)), federation.x0)
    each = 8 * (size(server) + federation.num_clients * size(memory)) + 1
    return max(1, _BLOCK_BYTES // each)


def _stacked(
    federation: Federation, block: Block, rounds: int, out: Path | None, resume: bool, label: str, how: dict[str, Any]
) -> Running:
    algorithm = jax.tree.map(lambda *leaves: jnp.stack(leaves), *block.algorithms)
    grid = len(block.algorithms), len(block.seeds)
    job = make_job(federation, algorithm, rounds, grid=grid, **how)
    roots = jnp.stack([root_key(seed) for seed in block.seeds])
    start_all = jax.vmap(jax.vmap(lambda a, root: start(a, federation, root), in_axes=(0, None)), in_axes=(None, 0))
    states = start_all(algorithm, roots)
    state = RunState(states.server, states.memory, jnp.zeros((), jnp.int32), roots)
    about = {"label": label, "seed": block.seeds, "algorithm": describe(algorithm)}
    return Running(job, state, about, None, out, resume)


def _one_by_one(
    federation: Federation,
    settings: Sequence[Setting],
    rounds: int,
    out: Path | None,
    resume: bool,
    how: dict[str, Any],
) -> History:
    """For engines that cannot stack: the same settings, one run each."""
    histories = []
    for number, setting in enumerate(settings):
        place = None if out is None else out / f"run-{number:03d}"
        histories.append(run(federation, setting.algorithm, rounds, seed=setting.seed, out=place, resume=resume, **how))
        if histories[-1].status == "stopped":
            break
    table = pd.concat([h.table.assign(setting=number) for number, h in enumerate(histories)], ignore_index=True)
    table.insert(0, "setting", table.pop("setting"))
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[h.params for h in histories])
    spent = {name: sum(h.manifest[name] for h in histories) for name in ("seconds", "compile_seconds")}
    return History(table, {**histories[-1].manifest, **spent}, params=params)


def _merge(
    settings: Sequence[Setting], parts: list[tuple[list[int], History]], label: str, config: dict[str, Any] | None
) -> History:
    tables = []
    for block, history in parts:
        table = history.table.copy()
        table["setting"] = np.asarray(block)[table["setting"]]
        tables.append(table)
    table = pd.concat(tables, ignore_index=True).sort_values(["setting", "round"], kind="stable", ignore_index=True)
    labels = pd.DataFrame([{**setting.labels, "seed": setting.seed} for setting in settings])
    table = pd.concat([labels.loc[table["setting"]].reset_index(drop=True), table], axis=1)
    order = np.argsort(np.concatenate([block for block, _ in parts]))
    params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *[history.params for _, history in parts])
    last = table.groupby("setting")["diverged"].last()
    manifest = dict(parts[-1][1].manifest)
    stopped = any(history.status == "stopped" for _, history in parts)
    manifest |= {
        "label": label,
        "status": "stopped" if stopped else "diverged" if last.all() else "ok",
        "seconds": round(sum(history.manifest["seconds"] for _, history in parts), 4),
        "compile_seconds": round(sum(history.manifest["compile_seconds"] for _, history in parts), 4),
        "num_settings": len(settings),
        "num_diverged": int(last.sum()),
        "seed": sorted({setting.seed for setting in settings}),
        "axes": {
            name: list(dict.fromkeys(setting.labels[name] for setting in settings)) for name in settings[0].labels
        },
        "algorithm": {"class": type(settings[0].algorithm).__name__},
    }
    return History(table, manifest, params=params, label=label, config=config)
