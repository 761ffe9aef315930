"""Functions of the user's own, named as MODULE:FUNCTION."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.core.errors import SojournError


def function_named(name: str) -> Callable[..., Any]:
    """The function; its module is looked for where Python looks, and in the current directory."""
    module_name, sign, attribute = name.partition(":")
    if not sign or not module_name or not attribute:
        raise SojournError(f"{name!r} names no function; write MODULE:FUNCTION, as in my_data:load.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise SojournError(f"the module of {name!r} cannot be imported: {error}.") from None
    except Exception as error:  # whatever a user's module does when it is imported
        raise SojournError(f"the module of {name!r} fails: {type(error).__name__}: {error}.") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SojournError(f"{module_name} has no function {attribute}; {name!r} names none.")
    return found


def called(name: str, *arguments: Any) -> Any:
    """What the function returns; its own mistakes become a sentence."""
    function = function_named(name)
    try:
        return function(*arguments)
    except SojournError:
        raise
    except Exception as error:
        raise SojournError(f"{name} fails: {type(error).__name__}: {error}.") from error
