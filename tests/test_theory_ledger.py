"""The ledger cannot drift: it is written from the statements, whose tests exist."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory import ROOMS, STATEMENTS
from sojourn.theory.ledger import ledger
from sojourn.theory.statement import missing_facts, stated, statement

HERE = Path(__file__).parent


def test_the_page_is_what_the_code_says() -> None:
    page = (HERE.parent / "docs" / "theory-ledger.md").read_text(encoding="utf-8")
    assert page == ledger(), "run `make ledger`"
    for found in STATEMENTS.values():
        assert f".{found.name}`" in page


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_names_a_test_that_exists_and_uses_it(name: str) -> None:
    file, _, function = STATEMENTS[name].test.partition("::")
    assert function in functions_of(HERE / file)
    assert name in (HERE / file).read_text(), f"{file} never mentions {name}"


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_that_is_not_as_printed_says_why(name: str) -> None:
    found = STATEMENTS[name]
    assert found.printed and found.source and found.function.__doc__
    if found.status == "corrected":
        assert found.corrected and found.why
    if found.status == "refuted":
        assert found.why
    if found.kind == "scaling law":
        assert found.status == "scaling only"


def test_every_room_is_in_the_ledger() -> None:
    written = {path.stem for path in (Path(sj.theory.__file__).parent).glob("*.py")}
    with_statements = {s.function.__module__.rpartition(".")[2] for s in STATEMENTS.values()}
    assert with_statements <= set(ROOMS) <= written


@pytest.mark.parametrize("name", STATEMENTS)
def test_facts_that_know_nothing_are_missed_by_name(name: str) -> None:
    """Every statement, called with facts that know nothing, says what is missing instead of failing."""
    needed = missing_facts(name, Facts(), {})
    if needed:
        with pytest.raises(SojournError, match=rf"needs {needed[0]}\b"):
            stated(name, Facts())


def test_statements_are_attributes_of_the_room() -> None:
    assert sj.theory.lemma_2(
        step_size=0.1, num_local_steps=1, rounds=0, smoothness=1, strong_convexity=1, noise=0, num_clients=1,
        fixed_point_distance=3.0,
    ) == pytest.approx(9.0)  # fmt: skip
    with pytest.raises(AttributeError):
        _ = sj.theory.lemma_0


@pytest.fixture
def doubled() -> object:
    @statement("Test", kind="upper bound", printed="2 eta", requires=("step_size < 1 / smoothness",), test="x::y")
    def doubled(*, step_size: float, smoothness: float, rounds: float = 1.0) -> float:
        """Twice the step."""
        return 2 * step_size * rounds

    yield doubled
    del STATEMENTS["doubled"]


def test_a_statement_fills_in_checks_and_vectorises(doubled) -> None:
    assert doubled(step_size=0.25, smoothness=1) == 0.5
    assert doubled(Facts(smoothness=2.0), step_size=0.25) == 0.5
    assert doubled(Facts(smoothness=2.0), step_size=0.25, smoothness=3.0) == 0.5  # numbers go before facts
    np.testing.assert_array_equal(doubled(step_size=np.array([0.1, 0.2]), smoothness=1), [0.2, 0.4])
    for numbers, message in (
        ({"step_size": 0.5}, r"Test needs step_size < 1 / smoothness; got step_size = 0.5, smoothness = 2"),
        ({"step_size": -1.0}, "out of range"),
        ({"step_size": float("nan")}, "out of range"),
        ({"step_size": 0.1, "momentum": 1}, "has no momentum"),
        ({}, r"needs step_size \(eta\)"),
    ):
        with pytest.raises(SojournError, match=message):
            doubled(Facts(smoothness=2.0), **numbers)


EDGES = {
    "num_local_steps": (1, 2, 1000), "num_clients": (1, 2, 100), "rounds": (1, 2, 10_000), "noise": (0.0, 1.0, 1e6),
    "noise4": (0.0, 1.5, 1e7), "hessian_heterogeneity": (0.0, 0.1, 10.0), "optima_heterogeneity": (0.0, 1.0),
    "optima_distance": (0.0, 1.0), "gradient_heterogeneity": (0.0, 1.0), "strong_convexity": (0.0, 1e-9, 1.0),
    "smoothness": (1.0, 1e3), "step_size": (1e-12, 1e-3, 0.05, 0.5, 1.0, 50.0), "third_order_smoothness": (0.0, 1.0),
    "start_distance": (0.0, 1.0, 1e3), "mean_optima_distance": (0.0, 1.0), "outer_step_size": (0.5, 1.0, 3.0),
}  # fmt: skip
ARRAYS = {"hessians", "optima", "x_star", "x0", "x", "noise_covariance", "weights"}


@pytest.mark.parametrize("name", STATEMENTS)
def test_at_the_edges_a_statement_refuses_or_answers_but_never_with_nan(name: str) -> None:
    """One client, one step, no noise, no curvature, steps too long: a sentence or a number."""
    found = STATEMENTS[name]
    if ARRAYS & set(found.arguments):
        return  # closed forms of matrices have tests of their own for singular ones
    rng = np.random.default_rng(0)
    answered = 0
    for _ in range(300):
        given = {key: rng.choice(EDGES.get(key, (0.0, 0.5, 1.0, 20.0))) for key in found.arguments}
        try:
            result = stated(name, **given)
        except SojournError as error:
            assert str(error).endswith(".") and "\n" not in str(error)
            continue
        answered += 1
        values = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result]
        for value in values:
            if not isinstance(value, str | bool):
                assert not np.isnan(np.asarray(value, float)).any(), given
    assert answered > 0, "every edge was refused"


QUADRATIC = [name for name, found in STATEMENTS.items() if "third_order_smoothness == 0" in found.requires]


@pytest.mark.parametrize("name", QUADRATIC)
def test_a_statement_about_quadratics_refuses_other_facts(name: str) -> None:
    arrays = ("x_star", "optima", "hessians")
    facts = Facts(**{field.name: 1.0 for field in dataclasses.fields(Facts) if field.name not in arrays})
    numbers = {key: 1.0 for key in STATEMENTS[name].arguments if not hasattr(facts, key)}
    with pytest.raises(SojournError, match="third_order_smoothness == 0"):
        stated(name, facts, **{key: 0.1 if key == "step_size" else value for key, value in numbers.items()})


def test_the_theorems_about_quadratics_are_among_them() -> None:
    assert {"theorem_4", "theorem_7", "theorem_8", "theorem_7_step_size", "rate_theorem_7", "lemma_2"} <= set(QUADRATIC)
    assert "theorem_5" not in QUADRATIC


def test_statements_can_be_called_in_order_and_with_a_federation() -> None:
    hessians, optima = np.stack([np.diag([1.0, 2.0])] * 3), np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(sj.theory.local_sgd_fixed_point(hessians, optima, 0.1, 3), optima.mean(0))
    federation = sj.problems.quadratic(hessians, optima)
    numbers = {"step_size": 0.1, "num_local_steps": 2, "rounds": 3}
    assert sj.theory.theorem_5(federation, **numbers) == sj.theory.theorem_5(federation.facts, **numbers)
    assert "rho1" in sj.theory.theorem_5.__doc__ and "Requires" in sj.theory.theorem_5.__doc__
    for mistake, message in (
        ({"step_size": "a"}, "is not a number"),
        ({"step_size": None}, "needs step_size"),
        ({"step_size": [0.1, 0.2], "num_local_steps": [1, 2, 3]}, "do not go together"),
    ):
        with pytest.raises(SojournError, match=message):
            sj.theory.theorem_5(federation, **{**numbers, **mistake})
    with pytest.raises(SojournError, match="give each once"):
        sj.theory.local_sgd_fixed_point(hessians, optima, 0.1, 3, step_size=0.1)
