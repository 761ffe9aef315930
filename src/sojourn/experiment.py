"""From a config to histories on disk: build the federation, run or sweep its methods, keep all in a directory."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd

from sojourn.algorithms import Algorithm
from sojourn.config import (
    GUARDS,
    Config,
    Part,
    parse_value,
    set_value,
    shown,
    to_toml,
    validate,
)
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.files import write_atomically
from sojourn.core.keys import root_key
from sojourn.core.vec import size
from sojourn.data import DATASETS, TEXTS, Dataset
from sojourn.driver import make_job, run
from sojourn.engine import ENGINES
from sojourn.engine.participation import cohort_size
from sojourn.history import (
    CONFIG_FILE,
    LABELS,
    MANIFEST_FILE,
    STATE_FILE,
    TABLE_FILE,
    TRACE_FILE,
    History,
    load_history,
)
from sojourn.models import LANGUAGE_MODELS, MODELS
from sojourn.partition import PARTITIONS, TEXT_PARTITIONS, Redealt, redealt
from sojourn.problems import PROBLEMS
from sojourn.sweeping import Setting, sweep_settings
from sojourn.traces import AVAILABILITIES, CLOCKS, SCHEDULES, Devices, Work
from sojourn.tuning import method_of
from sojourn.virtual_time import gradients_per_visit

RECIPE_FILE = "recipe.txt"  # names the recipe whose result a directory holds
# The files of a run, the figures of its report, and what a kill may leave of a file that was being written.
_OF_A_RUN = re.compile(
    "|".join(
        map(
            re.escape,
            (
                CONFIG_FILE,
                MANIFEST_FILE,
                TABLE_FILE,
                STATE_FILE,
                RECIPE_FILE,
                "claims.json",
                "environment.json",
                "seconds.txt",
                "report.html",
                TRACE_FILE,
            ),
        )
    )
    + r"|figure-.*\.(png|svg|pdf)|.*\.kept\.json|\..*\.new"
)
_MAX_SETTINGS = 100_000
_MAX_FEDERATION_BYTES = 1 << 30  # of federations that a sweep holds at once
_MAX_PARAMETERS = 1 << 28  # of a model: a gibibyte of float32, of which a run holds several


def build_federation(config: Config) -> Federation:
    """Data, partition, model and problem, put together."""
    parts: list[Any] = []
    try:
        if PROBLEMS[config.problem.name].takes_text:
            parts = _text_parts(config)
        elif config.data is not None and config.partition is not None:
            data = load_data(config)
            return federation_on(config, data, _deal(config.partition, data))
        return PROBLEMS[config.problem.name].build(*parts, **config.problem.options)
    except MemoryError:
        raise SojournError(f'problem "{config.problem.name}" does not fit into memory; make it smaller.') from None


def load_data(config: Config) -> Dataset:
    """The data set that a config names."""
    assert config.data is not None
    data = DATASETS[config.data.name](**config.data.options)
    if len(data.y_test) == 0:
        raise SojournError(f'data "{data.name}" is left without test samples; raise data.test_share.')
    return data


def federation_on(config: Config, data: Dataset, dealt: Sequence[np.ndarray]) -> Federation:
    """The config's problem and model on given data, dealt to clients by their rows."""
    model = [] if config.model is None else [_model(config.model, data, dealt)]
    return PROBLEMS[config.problem.name].build(data, dealt, *model, **config.problem.options)


def _text_parts(config: Config) -> list[Any]:
    """A text, the clients' stretches of it, and a model of its tokens."""
    assert config.data is not None and config.partition is not None and config.model is not None
    text = TEXTS[config.data.name](**config.data.options)
    dealt = TEXT_PARTITIONS[config.partition.name](text.train, **config.partition.options)
    options = dict(config.model.options)
    key = root_key(options.pop("seed"))
    build = functools.partial(LANGUAGE_MODELS[config.model.name], len(text.vocabulary), key, **options)
    _check_number(config.model.name, build)
    return [text, dealt, build()]


def _deal(part: Part, data: Dataset) -> Sequence[np.ndarray]:
    options = dict(part.options)
    redeal = options.pop("redeal")
    return redealt(PARTITIONS[part.name](data.y_train, **options), data.y_train, redeal)


def _model(part: Part, data: Dataset, dealt: Sequence[np.ndarray]) -> Any:
    options = dict(part.options)
    key = root_key(options.pop("seed"))
    build = MODELS[part.name]
    shape = data.x_train.shape[1:], data.num_classes
    outline = getattr(build, "outline", build)
    _check_number(part.name, functools.partial(outline, *shape, key, **options))
    if outline is build:
        return build(*shape, key, **options)
    if isinstance(dealt, Redealt):
        raise SojournError(f'model "{part.name}" asks clients about their data, which must stay; leave redeal out.')
    clients = [(data.read(data.x_train[rows]), data.y_train[rows]) for rows in dealt]
    return build(*shape, key, clients, **options)


def _check_number(name: str, build: Callable[[], Any]) -> None:
    """Of a model's parameters, before any is made."""
    number = size(eqx.filter(eqx.filter_eval_shape(build), lambda leaf: hasattr(leaf, "shape")))
    if number > _MAX_PARAMETERS:
        raise SojournError(
            f'model "{name}" would have {number:.3g} parameters; at most {_MAX_PARAMETERS:.3g} are taken.'
        )


@contextlib.contextmanager
def precision(config: Config) -> Iterator[None]:
    with jax.enable_x64(config.run.precision == "float64"):
        yield


def check_config(config: Config) -> Federation:
    """Builds what a config names and asks every method whether it can run on it; nothing is run."""
    with precision(config):
        return _prepared(config)[0]


def _prepared(config: Config) -> tuple[Federation, list[dict[str, Any]]]:
    """The federation and, for every method, what `run` is to be given; each has been asked whether it can run."""
    federation, calls = build_federation(config), []
    for part in config.algorithms:
        method, notes = method_of(part, federation, config)
        rounds, how = _played(config, federation, method)
        make_job(federation, method, rounds, **how)
        calls.append({"algorithm": method, "rounds": rounds, "notes": notes, **how})
    return federation, calls


def run_config(config: Config, out: Path, *, resume: bool = False, progress: bool | None = None) -> list[History]:
    """Runs every method of a config; several methods get a folder each."""
    _claim(out, resume)
    histories = []
    with precision(config):
        federation, calls = _prepared(config)
        _write_config(out, config.tables, resume)  # only now: what is refused leaves no trace
        for part, call in zip(config.algorithms, calls, strict=True):
            place = out if len(config.algorithms) == 1 else out / part.label
            tables = {**config.tables, "algorithm": _entry(config, part)}
            _write_config(place, tables, resume)
            history = run(
                federation, **call, seed=config.run.seed, out=place, resume=resume, label=part.label, config=tables,
                progress=progress,
            )  # fmt: skip
            histories.append(history)
            _write_config(place, tables)
            if history.status == "stopped":
                break
    _write_config(out, config.tables)
    return histories


def _how(config: Config) -> dict[str, Any]:
    return {
        "engine": ENGINES[config.engine.name](**config.engine.options),
        "participation": config.run.participation,
        "eval_every": config.run.eval_every,
        "record": tuple(config.run.record),
    }


def _played(config: Config, federation: Federation, method: Algorithm) -> tuple[int, dict[str, Any]]:
    """For how many rounds, or uploads, a method is run, and how: with virtual time where the config has it.

    An asynchronous method gets as many uploads as the rounds of a synchronous one would bring, so that both compute as
    many gradients, and is evaluated as often.
    """
    how, rounds = _how(config), config.run.rounds
    devices = devices_of(config)
    if not method.asynchronous:
        return rounds, how | ({} if devices is None else {"devices": devices})
    assert config.schedule is not None
    cohort = cohort_size(config.run.participation, federation.num_clients)
    uploads = config.run.uploads or rounds * cohort
    weights = federation.clients.weights if federation.clients.sizes is None else federation.clients.sizes
    share = np.ones(federation.num_clients) if weights is None else np.asarray(weights, float)
    (steps,) = gradients_per_visit(federation, method)
    trace = SCHEDULES[config.schedule.name](
        federation.num_clients, uploads, devices, Work(steps, method.uploads_per_update(), share),
        **config.schedule.options, **({} if config.schedule.name == "file" else {"seed": config.run.seed}),
    )  # fmt: skip
    every = how["eval_every"] and how["eval_every"] * cohort
    return uploads, how | {"trace": trace, "participation": None, "eval_every": every}


def devices_of(config: Config) -> Devices | None:
    """The clients' machines, where the config has virtual time."""
    if config.clock is None or config.delay is None or config.availability is None:
        return None
    clock, delay = (CLOCKS[part.name](**part.options) for part in (config.clock, config.delay))
    return Devices(clock, delay, AVAILABILITIES[config.availability.name](**config.availability.options))


def _entry(config: Config, part: Part) -> dict[str, Any]:
    entries = config.tables["algorithm"]
    return next(e for e in (entries if isinstance(entries, list) else [entries]) if e["label"] == part.label)


def _claim(out: Path, resume: bool) -> None:
    """The directory must be new, or hold the run that is to go on. Nothing is ever overwritten by accident."""
    if not str(out).isprintable():
        raise SojournError(f"the path {shown(str(out))} is not text; give another --out.")
    if out.exists() and not out.is_dir():
        raise SojournError(f"{out} is a file; give a directory as --out.")
    if not resume and out.is_dir() and any(out.iterdir()):
        raise SojournError(
            f"{out} is not empty; use --resume to go on with its run, --force to replace it, or another --out."
        )


def _write_config(out: Path, tables: Mapping[str, Any], resume: bool = False) -> None:
    """The config beside a run. To resume must not replace it before the checkpoint is known to be that run's."""
    if resume and (out / CONFIG_FILE).exists():
        return
    write_atomically(out / CONFIG_FILE, lambda path: path.write_text(to_toml(tables), encoding="utf-8"))


def claim_for_recipe(out: Path, recipe: str, resume: bool) -> None:
    """The directory must be new, or hold the same recipe at the same scale: its earlier result gives way, or goes on
    with `resume`."""
    mark = out / RECIPE_FILE
    if mark.is_file() and mark.read_text(encoding="utf-8").strip() == recipe:
        if not resume:
            discard(out, RECIPE_FILE)
    else:
        if out.exists() and not out.is_dir():
            raise SojournError(f"{out} is a file; give a directory as --out.")
        if out.is_dir() and any(out.iterdir()):
            raise SojournError(f"{out} is not empty and holds no result of {recipe}; give another --out.")
    write_atomically(mark, lambda path: path.write_text(f"{recipe}\n", encoding="utf-8"))


def discard(out: Path, mark: str = CONFIG_FILE) -> None:
    """Removes an earlier run, and only what looks like one: its mark is there, and no file that no run writes."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / mark).is_file():
        raise SojournError(
            f"{out} does not look like a run of sojourn, so --force leaves it alone; remove it yourself."
        )
    for path in out.rglob("*"):
        if path.is_symlink() or (path.is_file() and not _OF_A_RUN.fullmatch(path.name)):
            raise SojournError(
                f"{out} holds {path.relative_to(out)}, which no run writes, so --force leaves it alone; remove it "
                "yourself."
            )
    shutil.rmtree(out)


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """An axis of a sweep: "algorithm.step_size=0.01,0.1,1", or whole numbers as a range, "run.seed=0:20"."""
    key, sign, values = text.partition("=")
    key = key.strip()
    if not sign or len(key.split(".")) not in (2, 3) or not all(key.split(".")) or not values.strip():
        raise SojournError(f"the axis {shown(text)} is not of the form table.key=value,value,… or table.key=from:to.")
    if key in ("algorithm.name", "algorithm.label"):
        raise SojournError(f"{key} cannot be an axis; write one [[algorithm]] for each method instead.")
    found: list[Any]
    if re.fullmatch(r"\s*-?\d{1,18}\s*(:\s*-?\d{1,18}\s*){1,2}", values):
        bounds = [int(piece) for piece in values.split(":")]
        if bounds[2:] == [0] or len(range(*bounds)) > _MAX_SETTINGS:
            raise SojournError(f"the axis {shown(text)} is not a range of at most {_MAX_SETTINGS} whole numbers.")
        found = list(range(*bounds))
    else:
        parsed = parse_value(f"[{values}]")
        found = parsed if isinstance(parsed, list) else [parse_value(piece) for piece in values.split(",")]
    if not found:
        raise SojournError(f"the axis {shown(text)} holds no values.")
    if len({value if isinstance(value, (int, float, str)) else repr(value) for value in found}) != len(found):
        raise SojournError(f"the axis {shown(text)} names a value twice.")
    return key, found


def sweep_config(
    tables: dict[str, Any], axes: Sequence[str], out: Path, *, resume: bool = False, progress: bool | None = None
) -> list[History]:
    """Sweeps every method of a config over the axes; each combination is validated before anything runs."""
    parsed = dict(parse_axis(axis) for axis in axes)
    if len(parsed) != len(axes):
        raise SojournError("an axis is given twice; write its values in one list.")
    number = math.prod(len(values) for values in parsed.values())
    if number > _MAX_SETTINGS:
        raise SojournError(f"the axes make {number} settings; a sweep takes at most {_MAX_SETTINGS}.")
    points = [dict(zip(parsed, values, strict=True)) for values in itertools.product(*parsed.values())]
    configs = [_at(tables, point) for point in points]
    resolved = {**configs[0].tables, "sweep": parsed}
    _claim(out, resume)
    _write_config(out, resolved, resume)
    labels = [part.label for part in configs[0].algorithms]
    histories = []
    for label in labels:
        place = out if len(labels) == 1 else out / label
        histories.append(_sweep_method(label, points, configs, place, resume, progress))
        _write_config(place, resolved)
        if histories[-1].status == "stopped":
            break
    _write_config(out, resolved)
    return histories


def _at(tables: dict[str, Any], point: dict[str, Any]) -> Config:
    moved = copy.deepcopy(tables)
    for key, value in point.items():
        set_value(moved, key, value)
    return validate(moved)


def _is_federation(key: str) -> bool:
    """Whether an axis moves the federation itself."""
    return key.split(".")[0] in ("problem", "data", "partition", "model")


def _is_inner(key: str) -> bool:
    """Whether an axis can vary inside one program: a method's option, the seed or, when all fit, the federation."""
    return key.split(".")[0] in ("algorithm", *GUARDS) or key == "run.seed"


def _sweep_method(
    label: str, points: list[dict[str, Any]], configs: list[Config], out: Path, resume: bool, progress: bool | None
) -> History:
    """One method over all points: points that share how they are run are run together, on one federation or many."""
    homes = [repr({key: value for key, value in point.items() if _is_federation(key)}) for point in points]
    together = _fit_together(configs[0], len(set(homes)))
    groups: dict[str, list[int]] = {}
    for number, point in enumerate(points):
        outer = {k: v for k, v in point.items() if not _is_inner(k) and not (together and _is_federation(k))}
        groups.setdefault(repr(outer), []).append(number)
    parts = []
    for number, members in enumerate(groups.values()):
        config = configs[members[0]]
        with precision(config):
            federations = {homes[i]: configs[i] for i in reversed(members)}
            built = {home: build_federation(found) for home, found in reversed(federations.items())}
            settings = [_setting(label, points[i], configs[i], built[homes[i]]) for i in members]
            place = out if len(groups) == 1 else out / f"part-{number:03d}"
            parts.append(
                sweep_settings(
                    None,
                    settings,
                    _played(config, built[homes[members[0]]], settings[0].algorithm)[0],
                    out=place,
                    resume=resume,
                    label=label,
                    progress=progress,
                    **_how(config),
                )
            )
        if parts[-1].status == "stopped":
            break
    history = parts[0] if len(parts) == 1 and len(groups) == 1 else _joined(parts)
    history = dataclasses.replace(history, label=label, config=configs[0].tables)
    history.save(out)
    return history


def _fit_together(config: Config, number: int) -> bool:
    """Whether that many federations like this one can be held at once."""
    if number == 1:
        return True
    with precision(config):
        leaves = jax.tree.leaves(build_federation(config).clients)
    return number * sum(leaf.nbytes for leaf in leaves) <= _MAX_FEDERATION_BYTES


def _setting(label: str, point: dict[str, Any], config: Config, federation: Federation) -> Setting:
    part = next(p for p in config.algorithms if p.label == label)
    labels = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in point.items()}
    labels.pop("run.seed", None)
    method, notes = method_of(part, federation, config)
    rounds, how = _played(config, federation, method)
    timed = "trace" in how or "devices" in how
    told = ("trace", "devices", "participation", "eval_every")
    time: dict[str, Any] = {"rounds": rounds, **{name: how[name] for name in told if name in how}} if timed else {}
    return Setting(method, config.run.seed, labels, federation, notes, time)


def _joined(parts: list[History]) -> History:
    """Sweeps on different federations, as one table; their models do not stack."""
    tables, first = [], 0
    for part in parts:
        tables.append(part.table.assign(setting=part.table["setting"] + first))
        first += part.manifest["num_settings"]
    statuses = [part.status for part in parts]
    manifest = dict(parts[0].manifest)
    if any(part.manifest.get(LABELS) != manifest.get(LABELS) for part in parts):
        manifest.pop(LABELS, None)
    # theory's words are of the first part's federation; what others gave away is told all the same
    private = [e for part in parts[1:] for e in part.manifest.get("settings", []) if "privacy" in e]
    manifest |= {
        "settings": [*manifest.get("settings", []), *({key: e[key] for key in ("labels", "privacy")} for e in private)],
        "status": "stopped" if "stopped" in statuses else "ok" if "ok" in statuses else "diverged",
        "num_settings": first,
        "num_diverged": sum(part.manifest["num_diverged"] for part in parts),
        "seconds": round(sum(part.manifest["seconds"] for part in parts), 4),
        "compile_seconds": round(sum(part.manifest["compile_seconds"] for part in parts), 4),
        "axes": {
            key: list(dict.fromkeys(v for p in parts for v in p.manifest["axes"][key])) for key in manifest["axes"]
        },
    }
    return History(pd.concat(tables, ignore_index=True), manifest)


def find_runs(directory: Path) -> list[History]:
    """The runs of a directory: its own, or those of its folders."""
    if not directory.is_dir():
        raise SojournError(f"there is no directory {directory}; give one made by sojourn run or sojourn sweep.")
    if (directory / MANIFEST_FILE).is_file():
        return [load_history(directory)]
    found = [load_history(place.parent) for place in sorted(directory.glob(f"*/{MANIFEST_FILE}"))]
    if not found:
        raise SojournError(f"{directory} holds no run; give a directory made by sojourn run or sojourn sweep.")
    return found
