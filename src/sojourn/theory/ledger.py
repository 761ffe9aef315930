"""The ledger of statements as a document, written from their own metadata: `python -m sojourn.theory.ledger`."""

import importlib
from collections import Counter

from sojourn.theory import ROOMS, STATEMENTS, Statement

_HEAD = """\
# The ledger of theory

Every statement that `sojourn.theory` can compute: what is printed, how far it is true, what holds instead, and the test
that checks it. Letters are the thesis's; B and B-bar are distances from the start. `make ledger` writes this page from
the metadata of the functions.

Status: **holds** as printed; **corrected**: the printed form fails, the function computes the corrected one;
**scaling only**: right in its dependence on the constants, with unknown factors; **refuted**: false; a form that holds,
if there is one, has a row of its own. Statements marked *derived* are ours, with their proof in the docstring.
"""


def ledger() -> str:
    """The whole page."""
    counts = Counter(statement.status for statement in STATEMENTS.values())
    total = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    parts = [_HEAD, f"{len(STATEMENTS)} statements: {total}.\n"]
    for room in ROOMS:
        module = importlib.import_module(f"sojourn.theory.{room}")
        mine = [s for s in STATEMENTS.values() if s.function.__module__ == module.__name__]
        if mine:
            title = (module.__doc__ or room).split("\n")[0].rstrip(".")
            parts.append(f"## {title}\n")
            parts.append("| statement | status | printed | what holds, and why | requires | function, test |")
            parts.append("|---|---|---|---|---|---|")
            parts += [_row(statement) for statement in mine]
            parts.append("")
    return "\n".join(parts)


def _row(statement: Statement) -> str:
    instead = ". ".join(part.rstrip(".") for part in (_code(statement.corrected), _bars(statement.why)) if part)
    cells = [
        f"{statement.source} ({statement.kind})",
        f"**{statement.status}**" if statement.status != "holds" else "holds",
        _code(statement.printed),
        instead,
        ", ".join(_code(text) for text in statement.requires),
        f"`{statement.function.__module__.removeprefix('sojourn.')}.{statement.name}`, `{statement.test}`",
    ]
    return "| " + " | ".join(cell.replace("\n", " ") for cell in cells) + " |"


def _code(text: str) -> str:
    return _bars(f"`{text}`") if text else ""


def _bars(text: str) -> str:
    """A bar would end the cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(ledger(), end="")
