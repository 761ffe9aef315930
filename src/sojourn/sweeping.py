"""Sweeps: many step sizes, seeds and federations as one compiled program.

Settings whose algorithms differ only in real numbers form grids of algorithms and worlds that run side by side; a world
is a seed, or a federation and a seed, where federations of the same shapes share a grid. Other differences (a count,
a choice, a shape) make further grids, one program each. A grid that would not fit in memory is cut; one of models so
large that they are faster one after another is cut into single settings, which share a program.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import size
from sojourn.driver import (
    Running,
    engine_of,
    find_landmarks,
    make_job,
    run,
    setup_entry,
    stack_leaves,
    stop_on_signal,
    world_of,
)
from sojourn.engine import Engine
from sojourn.engine.rounds import RunState, start
from sojourn.history import History
from sojourn.progress import Display

_MAX_DESCRIBED = 100  # settings whose algorithms a manifest describes one by one
_BLOCK_BYTES = 2 << 30  # of states that are run side by side


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of a sweep: what is run, and how the table names it."""

    algorithm: Algorithm
    seed: int
    labels: dict[str, Any]
    federation: Federation | None = None  # of its own; None: the sweep's
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for the manifest
    time: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # trace, devices, rounds of its own, as `run` has them


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

    `how` are the options of `run`: engine, participation, eval_every, record, trace, devices, out, resume, progress.
    The history's `params` hold the final models with a leading axis of settings, seeds running fastest.
    """
    seeds = list(seeds)
    made = [(value, make(value)) for value in values]
    time = {name: how.pop(name) for name in ("trace", "devices") if how.get(name) is not None}
    settings = [
        Setting(algorithm, int(seed), {name: _plain(value)}, time=time) for value, algorithm in made for seed in seeds
    ]
    return sweep_settings(federation, settings, rounds, **how)


def _plain(value: Any) -> Any:
    """A label that a table can hold."""
    value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    return value if isinstance(value, (int, float, str, bool)) else str(value)


def sweep_settings(
    federation: Federation | None,
    settings: Sequence[Setting],
    rounds: int,
    *,
    engine: str | Engine = "auto",
    participation: int | float | None = None,
    eval_every: int | None = None,
    record: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    label: str = "sweep",
    config: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> History:
    """Runs settings that may differ in anything but the rounds and how they are played."""
    if not settings:
        raise SojournError("a sweep needs at least one value and one seed.")
    if federation is None and any(setting.federation is None for setting in settings):
        raise SojournError("a setting has no federation; give one to the sweep, or one to every setting.")
    how: dict[str, Any] = {
        "engine": engine, "participation": participation, "eval_every": eval_every, "record": record,
    }  # fmt: skip
    settings = _with_columns_of_one_type(settings)
    directory = None if out is None else Path(out)
    if directory is not None and not resume and any(directory.glob("block-*")):
        raise SojournError(f"{directory} holds a sweep already; use --resume to go on with it, or another --out.")
    parts: list[tuple[list[int], History]] = []
    blocks = _blocks(federation, settings, engine_of(engine))
    with stop_on_signal() as stopped:
        for number, block in enumerate(blocks):
            place = None if directory is None else directory / f"block-{number:03d}"
            numbers = block.numbers
            if not engine_of(engine).sweeps or any(settings[i].time for i in numbers):
                history = _one_by_one(block, [settings[i] for i in numbers], rounds, place, resume, how)
                numbers = numbers[: int(history.table["setting"].max()) + 1]  # fewer, when it was stopped
            else:
                running = _stacked(block, rounds, place, resume, label, how)
                with Display(f"{label} {number + 1}/{len(blocks)}", rounds, progress) as display:
                    history = running.to_the_end(display, stopped)
            parts.append((numbers, history))
            if history.status == "stopped":
                break
    merged = _merge(federation, settings, parts, label, config)
    if directory is not None:
        merged.save(directory)
    return merged


@dataclasses.dataclass(frozen=True)
class Block:
    """A full grid of algorithms and worlds that runs as one program; `numbers` are its settings, worlds fastest."""

    algorithms: list[Algorithm]
    worlds: list[tuple[Federation, int]]  # each with its seed
    numbers: list[int]


def _blocks(federation: Federation | None, settings: Sequence[Setting], engine: Engine) -> list[Block]:
    """The settings as grids: algorithms of one structure that are run in the same worlds, cut to fit in memory."""
    federations: dict[int, Federation] = {}  # by identity
    content_of, shape_of = _by_identity(_content), _by_identity(_shape)
    by_algorithm: dict[
        Any, dict[tuple[int, int], int]
    ] = {}  # the algorithm's content -> world -> number of the setting
    seen: Counter[Any] = Counter()  # equal settings, under different labels, are run as often as they are asked for
    for number, setting in enumerate(settings):
        home = setting.federation or federation
        assert home is not None
        federations[id(home)] = home
        content, world = content_of(setting.algorithm), (id(home), setting.seed)
        repeat = seen[content, world]
        seen[content, world] += 1
        by_algorithm.setdefault((*content, shape_of(home), repeat), {})[world] = number
    grids: dict[Any, list[dict[tuple[int, int], int]]] = {}
    for (structure, _, shape, _), numbers in by_algorithm.items():
        grids.setdefault((structure, shape, tuple(numbers)), []).append(numbers)
    blocks = []
    for (_, _, worlds), members in grids.items():
        room = _settings_that_fit(federations[worlds[0][0]], settings[members[0][worlds[0]]].algorithm, engine)
        for some_worlds in _cut(list(worlds), room):
            for some in _cut(members, max(1, room // len(some_worlds))):
                algorithms = [settings[numbers[worlds[0]]].algorithm for numbers in some]
                places = [(federations[home], seed) for home, seed in some_worlds]
                blocks.append(Block(algorithms, places, [n[world] for n in some for world in some_worlds]))
    return blocks


def _by_identity(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, asked once per object: a sweep of thousands of settings has few algorithms and federations."""
    known: dict[int, Any] = {}

    def ask(item: Any) -> Any:
        if id(item) not in known:
            known[id(item)] = function(item)
        return known[id(item)]

    return ask


def _shape(federation: Federation) -> Any:
    """What federations must share to run as one program."""
    leaves, structure = jax.tree.flatten((federation.clients, federation.x0))
    sent = None if federation.setup is None else tuple(federation.setup.sent().values())
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves), sent


def _content(algorithm: Algorithm) -> tuple[Any, tuple[bytes, ...]]:
    leaves, structure = jax.tree.flatten(algorithm)
    return structure, tuple(np.asarray(leaf).tobytes() for leaf in leaves)


def _cut(items: list[Any], length: int) -> list[list[Any]]:
    return [items[i : i + length] for i in range(0, len(items), length)]


def _settings_that_fit(federation: Federation, algorithm: Algorithm, engine: Engine) -> int:
    if engine.sweeps and engine.settings_in_turn(federation):
        return 1
    server, memory = jax.eval_shape(lambda x0: (algorithm.init_server(x0), algorithm.init_client(x0)), federation.x0)
    each = 8 * (size(server) + federation.num_clients * size(memory)) + 1
    return max(1, _BLOCK_BYTES // each)


def _stacked(block: Block, rounds: int, out: Path | None, resume: bool, label: str, how: dict[str, Any]) -> Running:
    algorithm = jax.tree.map(lambda *leaves: jnp.stack(leaves), *block.algorithms)
    grid = len(block.algorithms), len(block.worlds)
    federations, seeds = [home for home, _ in block.worlds], [seed for _, seed in block.worlds]
    several = federations if len({id(home) for home in federations}) > 1 else []
    job = make_job(federations[0], algorithm, rounds, grid=grid, worlds=several, **how)
    roots = jnp.stack([root_key(seed) for seed in seeds])
    x0 = jax.tree.map(lambda *leaves: stack_leaves(leaves), *[home.x0 for home in federations])
    start_one = lambda a, x, root: start(a, dataclasses.replace(federations[0], x0=x), root)  # noqa: E731
    states = jax.vmap(jax.vmap(start_one, in_axes=(0, None, None)), in_axes=(None, 0, 0))(algorithm, x0, roots)
    state = RunState(states.server, states.memory, jnp.zeros((), jnp.int32), roots)
    about = {"label": label, "seed": sorted(set(seeds)), "algorithm": algorithm.describe()}
    return Running(job, state, about, None, out, resume)


def _one_by_one(
    block: Block, settings: Sequence[Setting], rounds: int, out: Path | None, resume: bool, how: dict[str, Any]
) -> History:
    """For engines that cannot stack, and for virtual time: the same settings, one run each."""
    homes = [home for home, _ in block.worlds] * len(block.algorithms)
    histories = []
    for number, setting in enumerate(settings):
        place = None if out is None else out / f"run-{number:03d}"
        histories.append(
            run(
                homes[number],
                setting.algorithm,
                **{"rounds": rounds, "seed": setting.seed, "out": place, "resume": resume, **how, **setting.time},
            )
        )
        if histories[-1].status == "stopped":
            break
    table = pd.concat([h.table.assign(setting=number) for number, h in enumerate(histories)], ignore_index=True)
    table.insert(0, "setting", table.pop("setting"))
    params = _joined(jnp.stack, [h.params for h in histories])
    spent = {name: sum(h.manifest[name] for h in histories) for name in ("seconds", "compile_seconds")}
    return History(table, {**histories[-1].manifest, **spent}, params=params)


def _joined_params(parts: list[Any], order: np.ndarray) -> Any:
    """The models of all settings, stacked; None where they differ in shape."""
    shapes = {str(jax.tree.map(lambda a: a.shape[1:], eqx.filter(part, eqx.is_array))) for part in parts}
    if len(shapes) > 1:
        return None
    return _joined(lambda leaves: jnp.concatenate(leaves)[order], parts)


def _with_columns_of_one_type(settings: Sequence[Setting]) -> Sequence[Setting]:
    """Labels as they are; of an axis that has words and numbers ("auto", 0.1) all become words."""
    values: dict[str, set[bool]] = {}
    for setting in settings:
        for name, value in setting.labels.items():
            values.setdefault(name, set()).add(isinstance(value, str))
    mixed = {name for name, kinds in values.items() if len(kinds) > 1}
    if not mixed:
        return settings
    words = lambda labels: {name: str(value) if name in mixed else value for name, value in labels.items()}  # noqa: E731
    return [dataclasses.replace(setting, labels=words(setting.labels)) for setting in settings]


def _joined(join: Callable[[Sequence[jax.Array]], jax.Array], models: Sequence[Any]) -> Any:
    """Models as one, array by array; what is not an array (an activation) is the same in all."""
    arrays, rest = zip(*(eqx.partition(model, eqx.is_array) for model in models), strict=True)
    return eqx.combine(jax.tree.map(lambda *leaves: join(leaves), *arrays), rest[0])


def _described(
    federation: Federation | None, settings: Sequence[Setting], cohort: int, rounds: Mapping[int, int]
) -> list[dict[str, Any]]:
    """The settings' algorithms with what theory knows of starts and ends, once for all seeds; `rounds` are those that
    a setting was played, if it was. Of a large sweep only what private methods gave away."""
    distinct: dict[str, list[int]] = {}
    for number, setting in enumerate(settings):
        distinct.setdefault(repr(sorted(setting.labels.items())), []).append(number)
    found = []
    for numbers in distinct.values():
        setting = settings[numbers[0]]
        home, method = setting.federation or federation, setting.algorithm
        assert home is not None
        played = max(rounds.get(number, 0) for number in numbers)  # of the seed that went farthest
        account = method.account(world_of(home, method, cohort), played) if played else {}
        if len(distinct) > _MAX_DESCRIBED:
            found += [{"labels": setting.labels, **account}] if account else []
            continue
        described = method.describe()
        known = {"landmarks": find_landmarks(home, setting.algorithm), **setup_entry(home, described, cohort)}
        found.append({"labels": setting.labels, "algorithm": described, **known, **account, **setting.notes})
    return found


def _merge(
    federation: Federation | None,
    settings: Sequence[Setting],
    parts: list[tuple[list[int], History]],
    label: str,
    config: dict[str, Any] | None,
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
    params = _joined_params([history.params for _, history in parts], order)
    last = table.groupby("setting")["diverged"].last()
    manifest = dict(parts[-1][1].manifest)
    for name in ("setup", "trace", "privacy"):  # every setting has its own
        manifest.pop(name, None)
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
        "algorithm": {"class": settings[0].algorithm.describe()["class"]},
        "settings": _described(
            federation, settings, manifest["cohort"], table.groupby("setting")["round"].max().to_dict()
        ),
    }
    return History(table, manifest, params=params, label=label, config=config)
