"""Results of a recipe that are kept one by one, so that a long study goes on where it was."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.core.files import write_atomically
from sojourn.recipes.base import Bench


def kept(bench: Bench, folder: str, name: str, asked: Any, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `find` finds, or what it found before for the same question; kept where the reproduction is.

    `asked` says what the result depends on, in plain values: a result of another question is found anew.
    """
    if bench.out is None:
        return find()
    plain = ["".join(letter if letter.isalnum() else "-" for letter in word) for word in (folder, name)]
    path = bench.out / plain[0] / f"{plain[1]}.kept.json"
    question = json.loads(json.dumps(asked))
    if bench.resume and path.is_file():
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["asked"] == question:
            return dict(told["found"])
    found = find()
    text = json.dumps({"asked": question, "found": found}, indent=2) + "\n"
    write_atomically(path, functools.partial(Path.write_text, data=text, encoding="utf-8"))
    bench.clock.note()
    return found
