"""Configs: names and numbers only, validated in one place, with sentences for what is wrong. Nothing is built here.

A run is described by tables: [problem], where it takes data also [data], [partition] and [model], one [algorithm] or
several [[algorithm]], what stands around all of them ([aggregation], [privacy]), [run], [engine], on real machines
[deploy]. What a table may hold is read off the registries: the options of a method are its fields, those of a problem,
partition, model or data set its keyword arguments.
"""

import copy
import dataclasses
import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tomli_w
from pydantic import BaseModel, Field, create_model

from sojourn.algorithms import ALGORITHMS, Algorithm, guarded
from sojourn.algorithms.aggregators import AGGREGATORS
from sojourn.algorithms.guarded import PrivacyTable, aggregation_model
from sojourn.algorithms.self_tuned import TUNABLE
from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.options import REQUIRED, Option, options_of
from sojourn.core.signature import Table, checked, shown, signature_model
from sojourn.data import DATASETS, TEXTS
from sojourn.deploy.rules import Rules
from sojourn.diagnostics.probes import PROBES
from sojourn.engine import ENGINES
from sojourn.models import LANGUAGE_MODELS, MODELS
from sojourn.partition import PARTITIONS, TEXT_PARTITIONS, Redeal
from sojourn.parts import AUTO, THEORY, Part, asks_auto, asks_theory, build_algorithm, tuned_option
from sojourn.problems import PROBLEMS, Problem
from sojourn.theory.step_sizes import TUNED_METHODS
from sojourn.traces import AVAILABILITIES, CLOCKS, SCHEDULES

TIME = ("clock", "delay", "availability", "schedule")  # the tables of virtual time
GUARDS = ("aggregation", "privacy")  # the tables of what stands around every method
_SMALLEST, _LARGEST = 1e-30, 1e12  # of a problem's real numbers: their fourth powers are still numbers


class RunTable(Table):
    """How long, how often, with whom."""

    rounds: Annotated[int, Field(ge=1, le=100_000_000, description="rounds of communication")] = 100
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the run's random numbers")] = 0
    participation: Annotated[
        Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0)] | None,
        Field(description="clients per round: a number, or a share below 1; all if left out"),
    ] = None
    uploads: Annotated[
        int | None, Field(ge=1, le=100_000_000, description="of asynchronous methods; as many as rounds would bring")
    ] = None
    eval_every: Annotated[int | None, Field(ge=1, description="rounds between evaluations; a hundredth of all")] = None
    record: Annotated[list[str], Field(description="probes to record besides the metrics")] = []  # noqa: RUF012
    precision: Annotated[Literal["float32", "float64"], Field(description="of all arithmetic")] = "float32"


@dataclasses.dataclass(frozen=True)
class Config:
    """A validated config. `tables` is the whole of it, defaults written out, as it is saved beside a run."""

    problem: Part
    data: Part | None
    partition: Part | None
    model: Part | None
    algorithms: tuple[Part, ...]
    run: RunTable
    engine: Part
    tables: dict[str, Any]
    # virtual time; None where it is not asked for
    clock: Part | None = None
    delay: Part | None = None
    availability: Part | None = None
    schedule: Part | None = None  # of asynchronous methods
    deploy: Rules = dataclasses.field(default_factory=Rules)  # on real machines
    # guards around every method; None where they are not asked for
    aggregation: Part | None = None
    privacy: PrivacyTable | None = None


def load_config(path: Path | str, changes: Sequence[str] = ()) -> Config:
    """Reads a TOML file, applies changes such as "run.rounds=50", validates."""
    return validate(with_changes(read_tables(path), changes))


def read_tables(path: Path | str) -> dict[str, Any]:
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SojournError(f"there is no file {path}; give the path of a TOML config.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SojournError(f"cannot read {path}: {reason}.") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, lists nested as deeply
        raise SojournError(f"{path} is not valid TOML: {error}.") from None


def with_changes(tables: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The tables with `table.key=value` changes; `algorithm.key` changes all methods, `algorithm.label.key` one."""
    tables = copy.deepcopy(tables)
    for change in changes:
        key, sign, text = change.partition("=")
        parts = key.strip().split(".")
        if not sign or len(parts) not in (2, 3) or not all(parts):
            raise SojournError(f"the change {change!r} is not of the form table.key=value, as in run.rounds=50.")
        set_value(tables, key.strip(), parse_value(text))
    return tables


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        return text.strip()


def set_value(tables: dict[str, Any], key: str, value: Any) -> None:
    table, *middle, last = key.split(".")
    target = tables.setdefault(table, {})
    entries = target if isinstance(target, list) else [target]
    if middle:
        entries = [e for e in entries if isinstance(e, dict) and middle[0] in (e.get("label"), e.get("name"))]
        if not entries:
            raise SojournError(f"the key {key!r} names no {table}; there is none with label or name {middle[0]!r}.")
    for entry in entries:
        if not isinstance(entry, dict):
            raise SojournError(f"{table} = {shown(entry)} is not a table; write [{table}] and its keys below.")
        entry[last] = value


def validate(tables: Mapping[str, Any]) -> Config:
    """The one place where configs are checked."""
    if not isinstance(tables, Mapping):
        raise SojournError(f"a config is made of tables such as [problem] and [algorithm], not {shown(tables)}.")
    known = ("problem", "data", "partition", "model", "algorithm", "run", "engine", *TIME, *GUARDS, "deploy")
    for name in tables:
        if name not in known:
            raise unknown_name("table", name, known)
    problem = _part("problem", tables, PROBLEMS, lambda entry: signature_model(entry.build), required=True)
    assert problem is not None
    entry = PROBLEMS[problem.name]
    for table, taken in {"data": entry.takes_data, "partition": entry.takes_data, "model": entry.takes_model}.items():
        if table in tables and not taken:
            raise SojournError(f'[{table}] has no meaning with problem.name = "{problem.name}"; take it out.')
    run: RunTable = checked("run", RunTable, _dict("run", tables.get("run", {})))
    data, partition, model = _data_parts(tables, entry)
    algorithms = _algorithms(tables.get("algorithm"), run)
    config = Config(
        problem=problem,
        data=data,
        partition=partition,
        model=model,
        algorithms=algorithms,
        run=run,
        engine=_part("engine", tables, ENGINES, signature_model, "auto") or Part("auto", {}),
        tables={},
        deploy=checked("deploy", Rules, _dict("deploy", tables.get("deploy", {}))),
        **_time_parts(tables, any(ALGORITHMS[part.name].cls.asynchronous for part in algorithms)),
        aggregation=_part("aggregation", tables, AGGREGATORS, aggregation_model, "mean")
        if GUARDS[0] in tables
        else None,
        privacy=checked("privacy", PrivacyTable, _dict("privacy", tables["privacy"])) if GUARDS[1] in tables else None,
    )
    _check_together(config)
    return dataclasses.replace(config, tables=_tables(config))


def _data_parts(tables: Mapping[str, Any], entry: Problem) -> tuple[Part | None, Part | None, Part | None]:
    """Data, partition and model, each of the kind that the problem takes."""
    if entry.takes_text:
        return (
            _part("data", tables, TEXTS, signature_model, "tinyshakespeare", DATASETS),
            _part("partition", tables, TEXT_PARTITIONS, _text_partition_model, "contiguous", PARTITIONS),
            _part("model", tables, LANGUAGE_MODELS, _model_model, "lstm", MODELS),
        )
    data = partition = model = None
    if entry.takes_data:
        data = _part("data", tables, DATASETS, signature_model, "digits", TEXTS)
        partition = _part("partition", tables, PARTITIONS, _partition_model, "iid", TEXT_PARTITIONS)
    if entry.takes_model:
        model = _part("model", tables, MODELS, _model_model, "mlp", LANGUAGE_MODELS)
    return data, partition, model


def _time_parts(tables: Mapping[str, Any], asynchronous: bool) -> dict[str, Part | None]:
    """What virtual time is made of: all of it where one table asks for it, or a method that cannot do without."""
    if "schedule" in tables and not asynchronous:
        raise SojournError(
            "[schedule] is for methods that take uploads as they come, such as fedasync; take it out, or name one."
        )
    if not asynchronous and not any(name in tables for name in TIME):
        return {}
    schedule = tables.get("schedule")
    if isinstance(schedule, dict) and schedule.get("name", "busy") in set(SCHEDULES) - {"busy"}:
        given = next((name for name in TIME[:3] if name in tables), None)
        if given is not None:
            raise SojournError(
                f"[{given}] has no meaning with schedule.name = {shown(schedule['name'])}, which has times of its own; "
                "take it out."
            )
    return {
        "clock": _part("clock", tables, CLOCKS, signature_model, "constant"),
        "delay": _part("delay", tables if "delay" in tables else {"delay": {"seconds": 0.0}}, CLOCKS, signature_model,
                       "constant"),
        "availability": _part("availability", tables, AVAILABILITIES, signature_model, "always"),
        "schedule": _part("schedule", tables, SCHEDULES, _schedule_model, "busy") if asynchronous else None,
    }  # fmt: skip


def simulated(config: Config) -> list[str]:
    """What a config says, beyond what it would say by itself, that only a simulation heeds."""
    usual = {"engine": _part("engine", {}, ENGINES, signature_model, "auto"), **_time_parts({}, asynchronous=True)}
    tables = [f"[{name}]" for name, part in usual.items() if getattr(config, name) not in (None, part)]
    return tables + ["run.record"] * bool(config.run.record)


def options_table(room: str, name: str) -> list[str]:
    """The options of a registry's entry with their defaults, as text."""
    models: dict[str, Callable[[], type[BaseModel]]] = {
        "algorithms": lambda: _algorithm_model(name),
        "problems": lambda: signature_model(PROBLEMS[name].build),
        "partitions": lambda: (
            _partition_model(PARTITIONS[name]) if name in PARTITIONS else _text_partition_model(TEXT_PARTITIONS[name])
        ),
        "models": lambda: _model_model({**MODELS, **LANGUAGE_MODELS}[name]),
        "datasets": lambda: signature_model(DATASETS[name]),
        "texts": lambda: signature_model(TEXTS[name]),
        "engines": lambda: signature_model(ENGINES[name]),
        "clocks": lambda: signature_model(CLOCKS[name]),
        "availabilities": lambda: signature_model(AVAILABILITIES[name]),
        "schedules": lambda: _schedule_model(SCHEDULES[name]),
        "aggregators": lambda: aggregation_model(AGGREGATORS[name]),
        "probes": lambda: Table,  # a name in run.record, without options
    }
    fields = models[room]().model_fields
    return [key if field.is_required() else f"{key} ({field.default})" for key, field in fields.items()]


def to_toml(tables: Mapping[str, Any]) -> str:
    return tomli_w.dumps(tables)


def _part(
    table: str, tables: Mapping[str, Any], registry: Mapping[str, Any], model_of: Callable[[Any], type[BaseModel]],
    default: str | None = None, misfits: Mapping[str, Any] | None = None, required: bool = False,
) -> Part | None:  # fmt: skip
    """A table that names an entry of a registry and gives its options. Misfits are for other kinds of problems."""
    if required and table not in tables:
        raise SojournError(f"the table [{table}] is missing; start with [{table}] and name = one of {_some(registry)}.")
    given = _dict(table, tables.get(table, {}))
    name = given.pop("name", default)
    if name is None:
        raise SojournError(f"{table}.name is missing; give one of {_some(registry)}.")
    if not isinstance(name, str):
        raise SojournError(f"{table}.name = {shown(name)} is not a name; give one of {_some(registry)}.")
    if misfits is not None and name in misfits:
        problem = tables["problem"]["name"]
        raise SojournError(f'{table}.name = "{name}" does not fit problem "{problem}"; give one of {_some(registry)}.')
    if name not in registry:
        raise unknown_name(f"{table}.name", name, registry)
    options = checked(table, model_of(registry[name]), given).model_dump()
    for key, value in options.items():
        _check_size(f"{table}.{key}", value)
    return Part(name, options)


def _check_size(where: str, value: Any) -> None:
    """Numbers whose squares and products would overflow, or would fill any memory, are refused here."""
    if isinstance(value, list):
        for entry in value:
            _check_size(where, entry)
    elif isinstance(value, float) and value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise SojournError(f"{where} = {value:g} is out of range; keep it between {_SMALLEST:g} and {_LARGEST:g}.")
    elif isinstance(value, int) and abs(value) >= 2**32:
        raise SojournError(f"{where} = {shown(value)} is out of range; a whole number is below {2**32}.")


def _algorithms(given: Any, run: RunTable) -> tuple[Part, ...]:
    if given is None or given == []:
        raise SojournError(f"the table [algorithm] is missing; name one of {_some(ALGORITHMS)}.")
    entries = given if isinstance(given, list) else [given]
    with jax.enable_x64(run.precision == "float64"), np.errstate(over="ignore"):  # as the run will hold the numbers
        parts = [_algorithm(_dict("algorithm", entry)) for entry in entries]
    labels = [part.label for part in parts]
    for label in labels:
        if labels.count(label) > 1:
            raise SojournError(f'two algorithms are called "{label}"; give each a label of its own.')
    return tuple(parts)


def _algorithm(given: dict[str, Any]) -> Part:
    name = given.pop("name", None)
    if name is None:
        raise SojournError(f"algorithm.name is missing; give one of {_some(ALGORITHMS)}.")
    if not isinstance(name, str):
        raise SojournError(f"algorithm.name = {shown(name)} is not a name; give one of {_some(ALGORITHMS)}.")
    if name not in ALGORITHMS:
        raise unknown_name("algorithm.name", name, ALGORITHMS)
    label = given.pop("label", name)
    if not _can_be_a_folder(label):
        raise SojournError(f"algorithm.label = {shown(label)} must be a name that can be a folder's.")
    if given.get("step_size") == THEORY and tuned_option(name) != "step_size":
        raise SojournError(f'"{name}" has no step_size; write {tuned_option(name)} = "{THEORY}" instead.')
    if not ALGORITHMS[name].cls.tunable and AUTO in [given.get(option) for option in TUNABLE]:
        able = _some({other: None for other, method in ALGORITHMS.items() if method.cls.tunable})
        raise SojournError(f'"{name}" cannot tune itself ("{AUTO}"); give numbers, or take one of {able}.')
    for option, value in ALGORITHMS[name].settled.items():
        if option in given:
            raise SojournError(f'algorithm.{option} is settled by "{name}" ({value}); take it out.')
    part = Part(name, checked("algorithm", _algorithm_model(name), given).model_dump(), label)
    if asks_auto(part) and asks_theory(part):
        raise SojournError(f'theory gives a step for a known number of local steps; write step_size = "{AUTO}" too.')
    if not asks_theory(part):
        build_algorithm(part)  # numbers that only make sense together are refused by the method itself
    elif name not in TUNED_METHODS:
        raise SojournError(
            f'algorithm.{tuned_option(name)} = "{THEORY}": there is no rule for "{name}"; give a number, or tune it by '
            f"a sweep. There are rules for {_some(TUNED_METHODS)}."
        )
    return part


def _can_be_a_folder(label: Any) -> bool:
    if not isinstance(label, str) or not label.strip() or not label.isprintable() or len(label.encode()) > 100:
        return False
    return not any(c in label for c in '/\\"') and not label.startswith(".")


def guard(config: Config, algorithm: Algorithm, noise_multiplier: float | None) -> Algorithm:
    """The method with the guards that the config puts around all of them."""
    aggregation = {} if config.aggregation is None else dict(config.aggregation.options)
    name = "mean" if config.aggregation is None else config.aggregation.name
    if config.privacy is None:
        return guarded(algorithm, name, **aggregation)
    private = {"clip": config.privacy.clip, "noise_multiplier": noise_multiplier, "delta": config.privacy.delta}
    return guarded(algorithm, name, **{**aggregation, **private})


def _check_guards(config: Config) -> None:
    """Whether every method can stand behind the guards, as far as that shows without the federation."""
    if config.aggregation is None and config.privacy is None:
        return
    private, aggregation = config.privacy, config.aggregation
    if private is not None and (private.noise_multiplier is None) == (private.epsilon is None):
        raise SojournError("[privacy] takes noise_multiplier, or epsilon to find it from: give one of them.")
    if private is not None and aggregation is not None and aggregation.options["clip"] is not None:
        raise SojournError("privacy.clip clips already; take aggregation.clip out.")
    for key, value in ({} if private is None else private.model_dump()).items():
        _check_size(f"privacy.{key}", value)
    for part in config.algorithms:
        if asks_auto(part):
            raise SojournError(
                f'"{AUTO}" rests on what clients send beside their answers, which no guard covers; give numbers, or '
                "leave [aggregation] and [privacy] out."
            )
        if asks_theory(part):
            raise SojournError(
                f'algorithm.{tuned_option(part.name)} = "{THEORY}": theory speaks of "{part.name}" without '
                "[aggregation] and [privacy]; give a number."
            )
        with jax.enable_x64(config.run.precision == "float64"), np.errstate(over="ignore", under="ignore"):
            guard(config, build_algorithm(part), 1.0)  # of any size: only whether there is some matters here


def _check_together(config: Config) -> None:
    """What no table can know alone."""
    _check_guards(config)
    for name in config.run.record:
        if name not in PROBES:
            raise unknown_name("run.record", name, PROBES)
    for part in config.algorithms:
        limit = ALGORITHMS[part.name].max_rounds
        if limit is not None and config.run.rounds > limit:
            raise SojournError(f'"{part.name}" communicates {limit} time(s); set run.rounds = {limit}.')
    number = num_clients(config)
    share = config.run.participation
    if config.run.uploads is not None and config.schedule is None:
        raise SojournError("run.uploads is for methods that take uploads as they come; set run.rounds instead.")
    if isinstance(share, float) and share > 1:
        raise SojournError(f"run.participation = {share:g} is out of range; a share is at most 1, a number is whole.")
    if isinstance(share, int) and share > number:
        raise SojournError(
            f"run.participation = {shown(share)} clients per round, but the federation has only {number}."
        )


def num_clients(config: Config) -> int:
    given = config.partition.options if config.partition else config.problem.options
    return int(given.get("num_clients", 2))  # the examples without that option have two


def _tables(config: Config) -> dict[str, Any]:
    """The whole config as plain tables, for TOML, which has no null."""
    tables: dict[str, Any] = {}
    for name in ("problem", "data", "partition", "model", "engine", *TIME, "aggregation"):
        part = getattr(config, name)
        if part is not None:
            tables[name] = {"name": part.name, **_without_none(part.options)}
    entries = [{"name": p.name, "label": p.label, **_without_none(p.options)} for p in config.algorithms]
    tables["algorithm"] = entries if len(entries) > 1 else entries[0]
    if config.privacy is not None:
        tables["privacy"] = _without_none(config.privacy.model_dump())
    tables["run"] = _without_none(config.run.model_dump())
    if config.deploy != Rules():
        tables["deploy"] = _without_none(config.deploy.model_dump())
    return tables


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _dict(table: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SojournError(f"{table} = {shown(value)} is not a table; write [{table}] and its keys below.")
    for key in value:
        if not isinstance(key, str) or not key.isprintable():
            raise SojournError(f"[{table}] has the key {shown(key)}, which is not a word; take it out.")
    return dict(value)


def _some(registry: Mapping[str, Any]) -> str:
    return ", ".join(sorted(registry))


_NumClients = Annotated[int, Field(ge=1, le=1_000_000, description="clients that the data are dealt to")]


@functools.cache
def _partition_model(function: Callable[..., Any]) -> type[BaseModel]:
    seed = Annotated[int, Field(ge=0, lt=2**32, description="of the dealing")]
    redeal = Annotated[Redeal, Field(description="whether samples change hands in every round, and among which")]
    return create_model(
        "Options", __base__=signature_model(function), num_clients=(_NumClients, 10), seed=(seed, 0),
        redeal=(redeal, "never"),
    )  # fmt: skip


@functools.cache
def _text_partition_model(function: Callable[..., Any]) -> type[BaseModel]:
    return create_model("Options", __base__=signature_model(function), num_clients=(_NumClients, 10))


@functools.cache
def _model_model(function: Callable[..., Any]) -> type[BaseModel]:
    seed = Annotated[int, Field(ge=0, lt=2**32, description="of the initial weights")]
    return create_model("Options", __base__=signature_model(function), seed=(seed, 0))


@functools.cache
def _schedule_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A schedule's own options; it is drawn with the seed of the run."""
    whole = signature_model(function).model_fields
    fields: dict[str, Any] = {
        name: (field.rebuild_annotation(), field) for name, field in whole.items() if name != "seed"
    }
    return create_model("Options", __base__=Table, **fields)


@functools.cache
def _algorithm_model(name: str) -> type[BaseModel]:
    method = ALGORITHMS[name]
    fields: dict[str, Any] = {}
    for option_name, (option, default) in options_of(method.cls).items():
        if option_name not in method.settled:
            kind = _annotation(option)
            kind = kind | Literal[THEORY] if option_name == tuned_option(name) else kind
            kind = kind | Literal[AUTO] if method.cls.tunable and option_name in TUNABLE else kind
            fields[option_name] = (kind, ... if default is REQUIRED else default)
    return create_model("Options", __base__=Table, **fields)


def _annotation(option: Option) -> Any:
    """The pydantic type of an algorithm's option."""
    if option.kind == "choice":
        return Literal[option.choices]
    limits: dict[str, Any] = {"le": option.high} if option.high is not None else {}
    if option.low is not None:
        limits["gt" if option.open_low else "ge"] = option.low
    if option.kind == "int":
        limits["le"] = 10**9
    kind: Any = int if option.kind == "int" else float
    return Annotated[kind | None if option.optional else kind, Field(description=option.symbol or None, **limits)]
