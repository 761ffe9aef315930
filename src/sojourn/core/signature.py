"""Keyword options of functions: what their annotations allow, checked with one sentence, in configs and in Python."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, create_model

from sojourn.core.errors import SojournError, unknown_key

_F = TypeVar("_F", bound=Callable[..., Any])


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def shown(value: Any) -> str:
    """A value as a sentence can show it: on one line, and not too long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not write out numbers of thousands of digits
        text = "a value too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def signature_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A function's keyword options as a table. Positional parameters are what it is built from, not options."""
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = inspect.get_annotations(function)
    if isinstance(function, type):  # an engine, a clock: a dataclass whose fields are its options
        own = {field.name: (hints.get(field.name, Any), _default(field)) for field in dataclasses.fields(function)}
        return create_model("Options", __base__=Table, **own)  # type: ignore[call-overload]
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in keywords
    }
    return create_model("Options", __base__=Table, **fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


class FieldsChecked:
    """For dataclasses: their fields are checked by their annotations when one is made."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        given = {name: _plain(getattr(self, name)) for name in signature_model(kind).model_fields}
        checked(kind.__name__, signature_model(kind), given)


def options_checked(function: _F) -> _F:
    """A function whose keyword options are checked also when it is called from Python."""
    allowed = {p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}

    @functools.wraps(function)
    def of_checked(*args: Any, **options: Any) -> Any:
        given = {name: _plain(value) for name, value in options.items() if name in allowed}
        checked(function.__name__, signature_model(function), given)
        return function(*args, **options | given)

    return of_checked  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    """As a config would have it: lists, and Python's numbers."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 else value


def checked(table: str, model: type[BaseModel], given: Mapping[str, Any]) -> Any:
    """The given values as the model has them, or a sentence on what does not fit."""
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        raise SojournError(_sentence(table, model, error)) from None


def _sentence(table: str, model: type[BaseModel], error: pydantic.ValidationError) -> str:
    """One sentence for the first mistake, and how many more there are."""
    problems = error.errors(include_url=False)
    # a misspelt option is also a missing one, and it is the spelling that is wrong
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    names = [str(part) for part in first["loc"] if str(part) in model.model_fields or isinstance(part, int)]
    where = ".".join([table, *names] if table else names) or table
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
        return (
            "one of "
            + ", ".join(f'"{v}"' if isinstance(v, str) else f"{v}" for v in values[:12])
            + (", …" if len(values) > 12 else "")
        )
    kinds = {"integer": "a whole number", "number": "a finite number", "string": "a text", "boolean": "true or false"}
    words = kinds.get(schema.get("type", ""), "a list" if schema.get("type") == "array" else "a value")
    limits = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
    bounds = [f"{phrase} {schema[key]:.15g}" for key, phrase in limits.items() if key in schema]
    least = f" of {schema['minItems']} or more" if schema.get("minItems") else ""
    items = f"{least}, of which each is {_words(schema['items'])}" if "items" in schema else ""
    return " ".join([words, " and ".join(bounds)]).strip() + items
