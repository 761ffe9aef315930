"""A reproduction as Markdown with figures, for a repository: a folder each, and an index of all that lie together."""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sojourn.core.files import write_atomically
from sojourn.history import environment
from sojourn.looks.charts import CONFIG
from sojourn.recipes.base import CLAIMS_FILE, Claim, Figure, Reproduction, Table, summary
from sojourn.report.figure import static

PAGE_FILE = INDEX_FILE = "README.md"
_WIDTH = 640  # of a figure that fills its page in the browser
_HEAD = """# Reproductions

Written by `sojourn reproduce RECIPE --publish DIR`; nothing here is typed in. Seconds depend on what else the machine
had to do.

"""


def publish(done: Reproduction, folder: Path) -> Path:
    """Writes the page, its figures and its claims, then the index; returns the page."""
    place = folder / f"{done.recipe.name}-{done.scale}"
    for number, figure in enumerate(done.findings.figures, 1):
        _write(place / _figure_file(number), static(_alone(figure), "svg"))
    for old in place.glob("figure-*.svg"):
        if old.name not in {_figure_file(n) for n in range(1, len(done.findings.figures) + 1)}:
            old.unlink()  # of an earlier version of the recipe
    _write(place / PAGE_FILE, _page(done).encode())
    about = {**done.as_dict(), "title": done.recipe.title, "source": done.recipe.source}
    _write(place / CLAIMS_FILE, (json.dumps(about, indent=2) + "\n").encode())
    _write(folder / INDEX_FILE, _index(folder).encode())
    return place / PAGE_FILE


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, functools.partial(Path.write_bytes, data=content))


def _figure_file(number: int) -> str:
    return f"figure-{number}.svg"


def _alone(figure: Figure) -> dict[str, Any]:
    """The chart outside a page: a width of its own, on white."""
    spec = {**figure.spec, "config": {**CONFIG, "background": "white", **figure.spec.get("config", {})}}
    return {**spec, "width": _WIDTH} if spec.get("width") == "container" else spec


def _page(done: Reproduction) -> str:
    recipe, here = done.recipe, environment()
    where = f"{here['device']}, {os.cpu_count()} cores, jax {here['versions']['jax']}"
    parts = [
        f"# {recipe.title}",
        f"{recipe.source[0].upper()}{recipe.source[1:]}, {done.scale} scale. {recipe.about}",
        f"**{summary(done.claims)}** {done.seconds:.3g} s on {where}: "
        f"`sojourn reproduce {recipe.name} --scale {done.scale}`.",
        _claims(done.claims),
    ]
    for number, figure in enumerate(done.findings.figures, 1):
        parts += [f"## {figure.title}", f"![{figure.title}]({_figure_file(number)})"]
        parts += [figure.note] * bool(figure.note)
    for table in done.findings.tables:
        parts += [f"## {table.title}", _table(table)]
    return "\n\n".join(parts) + "\n"


def _claims(claims: Sequence[Claim]) -> str:
    rows = []
    for claim in claims:
        rows.append((f"**{claim.verdict}**", claim.text, claim.evidence, "; ".join(claim.rule()), claim.by))
    return _table(Table("", ("verdict", "claim", "evidence", "judged by", "made by"), rows))


def _table(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _index(folder: Path) -> str:
    rows = []
    for path in sorted(folder.glob(f"*/{CLAIMS_FILE}")):
        told = json.loads(path.read_text(encoding="utf-8"))
        if not {"recipe", "scale", "title", "source", "claims", "seconds"} <= set(told):
            continue  # not written here
        verdicts = [claim["verdict"] for claim in told["claims"]]
        refuted = [c["id"] for c in told["claims"] if c["verdict"] == "fails"]
        name = f"[{told['recipe']}, {told['scale']}]({path.parent.name}/{PAGE_FILE})"
        held = f"{verdicts.count('holds')} of {len(verdicts)}"
        rows.append((name, told["title"], told["source"], held, ", ".join(refuted) or "none", f"{told['seconds']:.3g}"))
    return (
        _HEAD + _table(Table("", ("recipe", "title", "source", "claims that hold", "refuted", "seconds"), rows)) + "\n"
    )
