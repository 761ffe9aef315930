"""Configs: names and numbers only, validated in one place, with sentences for what is wrong. Nothing is built here.

A run is described by tables: [problem], where it takes data also [data], [partition] and [model], one [algorithm] or
several [[algorithm]], [run], [engine]. What a table may hold is read off the registries: the options of a method are
its fields, those of a problem, partition, model or data set its keyword arguments.
"""

import copy
import dataclasses
import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, create_model

from sojourn.algorithms import ALGORITHMS, Algorithm
from sojourn.core.errors import SojournError, unknown_key, unknown_name
from sojourn.core.options import REQUIRED, Option, options_of
from sojourn.data import DATASETS, TEXTS
from sojourn.diagnostics.probes import PROBES
from sojourn.engine import ENGINES
from sojourn.models import MODELS
from sojourn.partition import PARTITIONS, Redeal
from sojourn.problems import PROBLEMS
from sojourn.theory.step_sizes import TUNED_METHODS

THEORY: Literal["theory"] = "theory"  # as a step size: the one that theory recommends for the federation's facts
_SMALLEST, _LARGEST = 1e-30, 1e12  # of a problem's real numbers: their fourth powers are still numbers


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class RunTable(_Table):
    """How long, how often, with whom."""

    rounds: Annotated[int, Field(ge=1, le=100_000_000, description="rounds of communication")] = 100
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the run's random numbers")] = 0
    participation: Annotated[
        Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0)] | None,
        Field(description="clients per round: a number, or a share below 1; all if left out"),
    ] = None
    eval_every: Annotated[int | None, Field(ge=1, description="rounds between evaluations; a hundredth of all")] = None
    record: Annotated[list[str], Field(description="probes to record besides the metrics")] = []
    precision: Annotated[Literal["float32", "float64"], Field(description="of all arithmetic")] = "float32"


@dataclasses.dataclass(frozen=True)
class Part:
    """A named component with its options, all of them."""

    name: str
    options: Mapping[str, Any]
    label: str = ""


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
    known = ("problem", "data", "partition", "model", "algorithm", "run", "engine")
    for name in tables:
        if name not in known:
            raise unknown_name("table", name, known)
    problem = _part("problem", tables, PROBLEMS, lambda entry: _signature_model(entry.build), required=True)
    assert problem is not None
    entry = PROBLEMS[problem.name]
    for table, taken in {"data": entry.takes_data, "partition": entry.takes_data, "model": entry.takes_model}.items():
        if table in tables and not taken:
            raise SojournError(f'[{table}] has no meaning with problem.name = "{problem.name}"; take it out.')
    run: RunTable = _checked("run", RunTable, tables.get("run", {}))
    config = Config(
        problem=problem,
        data=_part("data", tables, DATASETS, _signature_model, "digits") if entry.takes_data else None,
        partition=_part("partition", tables, PARTITIONS, _partition_model, "iid") if entry.takes_data else None,
        model=_part("model", tables, MODELS, _model_model, "mlp") if entry.takes_model else None,
        algorithms=_algorithms(tables.get("algorithm"), run),
        run=run,
        engine=_part("engine", tables, ENGINES, _signature_model, "compiled") or Part("compiled", {}),
        tables={},
    )
    _check_together(config)
    return dataclasses.replace(config, tables=_tables(config))


def options_table(room: str, name: str) -> list[str]:
    """The options of a registry's entry with their defaults, as text."""
    models: dict[str, Callable[[], type[BaseModel]]] = {
        "algorithms": lambda: _algorithm_model(name),
        "problems": lambda: _signature_model(PROBLEMS[name].build),
        "partitions": lambda: _partition_model(PARTITIONS[name]),
        "models": lambda: _model_model(MODELS[name]),
        "datasets": lambda: _signature_model(DATASETS[name]),
        "texts": lambda: _signature_model(TEXTS[name]),
        "engines": lambda: _signature_model(ENGINES[name]),
        "probes": lambda: _Table,  # a name in run.record, without options
    }
    fields = models[room]().model_fields
    return [key if field.is_required() else f"{key} ({field.default})" for key, field in fields.items()]


def to_toml(tables: Mapping[str, Any]) -> str:
    return tomli_w.dumps(tables)


def _part(
    table: str, tables: Mapping[str, Any], registry: Mapping[str, Any], model_of: Callable[[Any], type[BaseModel]],
    default: str | None = None, required: bool = False,
) -> Part | None:  # fmt: skip
    """A table that names an entry of a registry and gives its options."""
    if required and table not in tables:
        raise SojournError(f"the table [{table}] is missing; start with [{table}] and name = one of {_some(registry)}.")
    given = _dict(table, tables.get(table, {}))
    name = given.pop("name", default)
    if name is None:
        raise SojournError(f"{table}.name is missing; give one of {_some(registry)}.")
    if not isinstance(name, str):
        raise SojournError(f"{table}.name = {shown(name)} is not a name; give one of {_some(registry)}.")
    if name not in registry:
        raise unknown_name(f"{table}.name", name, registry)
    options = _checked(table, model_of(registry[name]), given).model_dump()
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
    for option, value in ALGORITHMS[name].settled.items():
        if option in given:
            raise SojournError(f'algorithm.{option} is settled by "{name}" ({value}); take it out.')
    part = Part(name, _checked("algorithm", _algorithm_model(name), given).model_dump(), label)
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


def tuned_option(method: str) -> str:
    """The option that may be "theory": the step size, or the smoothness from which accelerated methods take theirs."""
    return "step_size" if "step_size" in options_of(ALGORITHMS[method].cls) else "smoothness"


def asks_theory(part: Part) -> bool:
    """Whether a method's step is left to theory: it is known once the federation is."""
    return part.options.get(tuned_option(part.name)) == THEORY


def build_algorithm(part: Part) -> Algorithm:
    """The method that a config names, with its numbers."""
    method = ALGORITHMS[part.name]
    return method.cls(**{**part.options, **method.settled})


def _check_together(config: Config) -> None:
    """What no table can know alone."""
    for name in config.run.record:
        if name not in PROBES:
            raise unknown_name("run.record", name, PROBES)
    for part in config.algorithms:
        limit = ALGORITHMS[part.name].max_rounds
        if limit is not None and config.run.rounds > limit:
            raise SojournError(f'"{part.name}" communicates {limit} time(s); set run.rounds = {limit}.')
    number = num_clients(config)
    share = config.run.participation
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
    for name in ("problem", "data", "partition", "model", "engine"):
        part = getattr(config, name)
        if part is not None:
            tables[name] = {"name": part.name, **_without_none(part.options)}
    entries = [{"name": p.name, "label": p.label, **_without_none(p.options)} for p in config.algorithms]
    tables["algorithm"] = entries if len(entries) > 1 else entries[0]
    tables["run"] = _without_none(config.run.model_dump())
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


def shown(value: Any) -> str:
    """A value as a sentence can show it: on one line, and not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not write out numbers of thousands of digits
        text = "a value too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


def _some(registry: Mapping[str, Any]) -> str:
    return ", ".join(sorted(registry))


@functools.cache
def _signature_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A function's keyword options as a table. Positional parameters are what it is built from, not options."""
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if isinstance(function, type):  # an engine: a dataclass whose fields are its options
        keywords = list(inspect.signature(function).parameters.values())
    hints = inspect.get_annotations(function)
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in keywords
    }
    return create_model("Options", __base__=_Table, **fields)


@functools.cache
def _partition_model(function: Callable[..., Any]) -> type[BaseModel]:
    number = Annotated[int, Field(ge=1, le=1_000_000, description="clients that the data are dealt to")]
    seed = Annotated[int, Field(ge=0, lt=2**32, description="of the dealing")]
    redeal = Annotated[Redeal, Field(description="whether samples change hands in every round, and among which")]
    return create_model(
        "Options", __base__=_signature_model(function), num_clients=(number, 10), seed=(seed, 0),
        redeal=(redeal, "never"),
    )  # fmt: skip


@functools.cache
def _model_model(function: Callable[..., Any]) -> type[BaseModel]:
    seed = Annotated[int, Field(ge=0, lt=2**32, description="of the initial weights")]
    return create_model("Options", __base__=_signature_model(function), seed=(seed, 0))


@functools.cache
def _algorithm_model(name: str) -> type[BaseModel]:
    method = ALGORITHMS[name]
    fields: dict[str, Any] = {}
    for option_name, (option, default) in options_of(method.cls).items():
        if option_name not in method.settled:
            kind = _annotation(option)
            kind = kind | Literal[THEORY] if option_name == tuned_option(name) else kind
            fields[option_name] = (kind, ... if default is REQUIRED else default)
    return create_model("Options", __base__=_Table, **fields)


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


def _checked(table: str, model: type[BaseModel], given: Any) -> Any:
    try:
        return model.model_validate(_dict(table, given))
    except pydantic.ValidationError as error:
        raise SojournError(_sentence(table, model, error)) from None


def _sentence(table: str, model: type[BaseModel], error: pydantic.ValidationError) -> str:
    """One sentence for the first mistake, and how many more there are."""
    problems = error.errors(include_url=False)
    # a misspelt option is also a missing one, and it is the spelling that is wrong
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    names = [str(part) for part in first["loc"] if str(part) in model.model_fields or isinstance(part, int)]
    where = ".".join([table, *names]) if names else table
    more = len({tuple(p["loc"][:1]) for p in problems}) - 1
    tail = f" (and {more} more mistake{'s' if more > 1 else ''})" if more else ""
    if first["type"] == "extra_forbidden":
        return str(unknown_key(table, str(first["loc"][-1]), model.model_fields)) + tail
    if first["type"] == "missing":
        return f"{where} is missing; give {_expectation(model, str(first['loc'][0]))}.{tail}"
    return (
        f"{where} = {shown(first['input'])} does not fit; expected {_expectation(model, str(first['loc'][0]))}.{tail}"
    )


def _expectation(model: type[BaseModel], name: str) -> str:
    """What a field takes, in words, from its JSON schema."""
    schema = model.model_json_schema()["properties"][name]
    text = " or ".join(dict.fromkeys(_words(s) for s in schema.get("anyOf", [schema]) if s.get("type") != "null"))
    meaning = schema.get("description")
    return f"{text} ({meaning})" if meaning else text


def _words(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return "one of " + ", ".join(f'"{v}"' for v in values[:12]) + (", …" if len(values) > 12 else "")
    kinds = {"integer": "a whole number", "number": "a finite number", "string": "a text", "boolean": "true or false"}
    words = kinds.get(schema.get("type", ""), "a list" if schema.get("type") == "array" else "a value")
    limits = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
    bounds = [f"{phrase} {schema[key]:.15g}" for key, phrase in limits.items() if key in schema]
    items = f" of which each is {_words(schema['items'])}" if "items" in schema else ""
    return " ".join([words, " and ".join(bounds)]).strip() + items
