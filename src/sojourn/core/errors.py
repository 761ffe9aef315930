"""The one kind of error a user sees: a sentence that says what is wrong and what to do."""

import difflib
from collections.abc import Iterable


class SojournError(Exception):
    """Something the user can mend. The message is one sentence; the command line prints it without a traceback."""


def unknown_name(where: str, name: object, known: Iterable[str]) -> SojournError:
    """An error for a name that is not among the known ones, with the nearest of them."""
    shown = repr(name)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return SojournError(f"{where} = {shown} is not known; {_advice(str(name), known)}")


def unknown_key(table: str, key: str, known: Iterable[str]) -> SojournError:
    """An error for a key that a table does not have."""
    return SojournError(f"{table}.{key[:60]} is not known; {_advice(key, known)}")


def _advice(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names) or 'none'}."
