"""A function told by what it does, not by where it lies in memory."""

import re
import types
from typing import Any


def code_of(function: Any) -> str:
    """A user's function by what it does: its code, constants and defaults, and those of the functions inside it."""
    inner = getattr(function, "__wrapped__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return _without_addresses(function)
    return f"{function.__qualname__} {_code_text(code)} {_without_addresses(inner.__defaults__)}"


def _code_text(code: types.CodeType) -> str:
    constants = [_code_text(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _without_addresses(thing: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
