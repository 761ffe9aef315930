"""The flow goes one way: a room imports only rooms above it. Read off the source, nothing is imported here."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "sojourn"

# From the ground up. A new room needs a place here.
ROOMS = (
    "core", "data", "partition", "models", "problems", "theory", "algorithms", "diagnostics", "traces", "engine",
    "history", "progress", "virtual_time", "driver", "sweeping", "diagnosis", "looks", "advice", "online", "deploy",
    "parts", "config", "tuning", "experiment", "advising", "report", "serving", "recipes", "catalogue", "cli",
)  # fmt: skip

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without "sojourn."; a package is its __init__."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(source: str, known: set[str]) -> set[str]:
    """The package's own modules that a source imports, anywhere in it, also for types only."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "sojourn":
                found.add(rest if rest in known else rest.rpartition(".")[0])
    return found - {""}


def room_of(module: str) -> str:
    return module.partition(".")[0]


def upward(module: str, imported: set[str]) -> list[str]:
    """What a module imports from rooms that do not stand above its own."""
    mine = ROOMS.index(room_of(module))
    return sorted(other for other in imported if ROOMS.index(room_of(other)) > mine)


def graph() -> dict[str, set[str]]:
    known = set(modules())
    return {name: imports(path.read_text(encoding="utf-8"), known) for name, path in modules().items()}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Names and lengths in lines of all functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_every_room_has_a_place_in_the_order() -> None:
    assert {room_of(name) for name in modules()} <= set(ROOMS)


def test_a_room_imports_only_from_rooms_above_it() -> None:
    wrong = {name: upward(name, imported) for name, imported in graph().items()}
    assert {name: others for name, others in wrong.items() if others} == {}


def test_no_module_imports_itself_through_others() -> None:
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a cycle: {' -> '.join(error.args[1])}")


def test_algorithms_see_oracles_and_never_data() -> None:
    hidden = ("data", "partition", "models", "problems", "core.federation")
    for name, imported in graph().items():
        if room_of(name) in ("algorithms", "theory"):
            seen = {other for other in imported if other.startswith(hidden)}
            formulas = {
                "problems.quadratic_facts",
                "problems.chain_facts",
                "problems.instances",
                "models.wide_layer_facts",
            }
            formulas = formulas if room_of(name) == "theory" else set()
            assert not seen - formulas, name


def test_engines_know_the_contract_and_no_method() -> None:
    for name, imported in graph().items():
        if room_of(name) == "engine":
            methods = {other for other in imported if room_of(other) == "algorithms"}
            assert methods <= {"algorithms.base"}, name
            assert not {other for other in imported if room_of(other) in ("problems", "data")}, name


def test_only_recipes_and_the_command_line_use_reports_and_nothing_uses_the_command_line() -> None:
    users = {name for name, imported in graph().items() if any(room_of(other) == "report" for other in imported)}
    assert {room_of(name) for name in users} <= {"report", "recipes", "cli"}
    assert not [name for name, imported in graph().items() if "cli" in imported]


def test_importing_the_package_imports_none_of_its_rooms() -> None:
    """`sojourn --help` does not wait for JAX: at the top of the package everything is fetched when first used."""
    body = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8")).body
    eager = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports(ast.unparse(ast.Module(eager, [])), set(modules())) == set()


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert not [name for name in modules() if drawers & set(name.split("."))]


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_page() -> None:
    long = {
        f"{name}.{function}": length
        for name, path in modules().items()
        for function, length in functions(path.read_text(encoding="utf-8"))
        if length > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_the_reader_of_imports_would_see_a_wrong_one() -> None:
    """Negative controls: the checks above are not empty."""
    known = {"cli", "core", "core.errors", "report", "report.figure", "problems"}
    inside = "def f():\n    from sojourn.report import figure, render\n    import sojourn.cli\n"
    assert imports(inside, known) == {"report", "report.figure", "cli"}
    assert imports("import os\nfrom sojournal import x\n", known) == set()
    assert upward("core.errors", {"cli", "core"}) == ["cli"]
    assert upward("cli", {"core.errors"}) == []
    assert dict(functions("def f():\n    a = 1\n    return a\n")) == {"f": 3}
    assert len(modules()) > 50
    assert graph()["driver"] >= {"algorithms.base", "engine.checkpoint", "history"}
