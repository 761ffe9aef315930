"""Configs: every mistake is one sentence, what is valid is kept whole, and what validates can be built."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sojourn.algorithms import ALGORITHMS
from sojourn.catalogue import ROOMS, entries, recipe_files
from sojourn.config import (
    build_algorithm,
    load_config,
    options_table,
    parse_value,
    read_tables,
    to_toml,
    validate,
    with_changes,
)
from sojourn.core.errors import SojournError
from sojourn.core.options import REQUIRED, options_of
from sojourn.data import DATASETS
from sojourn.engine import ENGINES
from sojourn.experiment import build_federation, precision
from sojourn.models import MODELS
from sojourn.partition import PARTITIONS
from sojourn.problems import PROBLEMS

Tables = dict[str, Any]


def quadratic(**changes: Any) -> Tables:
    """A small valid config; a change replaces a whole table."""
    tables: Tables = {
        "problem": {"name": "quadratic", "num_clients": 4, "dimension": 3},
        "algorithm": {"name": "local-sgd", "step_size": 0.05},
        "run": {"rounds": 5},
    }
    return {**tables, **changes}


def classification(**changes: Any) -> Tables:
    tables: Tables = {
        "problem": {"name": "classification", "batch_size": 5},
        "data": {"name": "digits"},
        "partition": {"name": "classes", "num_clients": 5, "classes_per_client": 2},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": [
            {"name": "fedprox", "step_size": 0.1, "num_local_steps": 5, "min_local_steps": 2},
            {"name": "fedopt", "label": "adam", "step_size": 0.1, "optimizer": "adam"},
        ],
        "run": {"rounds": 5, "participation": 3, "record": ["grad_norm"], "eval_every": 2},
        "engine": {"name": "compiled", "placement": "scan"},
    }
    return {**tables, **changes}


def double_precision() -> Tables:
    return {
        "problem": {"name": "cap-regression", "num_clients": 3},
        "algorithm": [
            {"name": "fedac", "step_size": 0.01, "strong_convexity": 0.1},
            {"name": "scaffold", "step_size": 0.1, "control": "I"},
        ],
        "run": {"participation": 0.5, "precision": "float64", "seed": 3},
    }


def dirichlet() -> Tables:
    return {
        "problem": {"name": "least-squares", "l2": 0.1, "weights": "size"},
        "partition": {"name": "dirichlet", "concentration": 0.3, "num_clients": 6},
        "algorithm": {"name": "ac-sa", "smoothness": 3.0},
    }


VALID = (quadratic(), classification(), double_precision(), dirichlet())


def sentence(tables: Any) -> str:
    with pytest.raises(SojournError) as caught:
        validate(tables)
    message = str(caught.value)
    assert_one_sentence(message)
    return message


def assert_one_sentence(message: str) -> None:
    longest_list = len(", ".join(ALGORITHMS))  # a sentence may list all that is known
    assert message.strip()
    assert message.isprintable(), message  # no line break, no control character, no half of a surrogate pair
    assert len(message) < 400 + longest_list, message
    assert message[-1] in ".?)", message


# --- one mistake, one sentence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            quadratic(problem={"name": "quadratci"}),
            "problem.name = 'quadratci' is not known; did you mean \"quadratic\"?",
        ),
        (quadratic(algorithm={"name": "scafold", "step_size": 1.0}), 'did you mean "scaffold"?'),
        (
            quadratic(algorithm={"name": "local-sgd", "stepsize": 1.0}),
            'algorithm.stepsize is not known; did you mean "st',
        ),
        (quadratic(problem={"name": "quadratic", "dimensions": 3}), 'did you mean "dimension"?'),
        (quadratic(run={"round": 3}), 'run.round is not known; did you mean "rounds"?'),
        (quadratic(runs={}), "table = 'runs' is not known; did you mean \"run\"?"),
        (quadratic(run={"record": ["gradnorm"]}), "run.record = 'gradnorm' is not known; did you mean \"grad_norm\"?"),
        (quadratic(engine={"name": "compield"}), 'did you mean "compiled"?'),
        (quadratic(algorithm={"name": "scaffold", "step_size": 1.0, "control": "III"}), 'one of "I", "II"'),
        (classification(partition={"name": "class"}), 'did you mean "classes"?'),
        (classification(data={"name": "digit"}), 'did you mean "digits"?'),
        (classification(model={"name": "mpl"}), 'did you mean "mlp"?'),
        (quadratic(problem={"name": "zzzzzz"}), "known: "),
    ],
)
def test_an_unknown_name_or_key_is_answered_with_the_nearest_known_one(tables: Tables, expected: str) -> None:
    assert expected in sentence(tables)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (quadratic(run={"rounds": "many"}), "run.rounds = 'many' does not fit; expected a whole number"),
        (quadratic(run={"rounds": 2.5}), "run.rounds = 2.5 does not fit"),
        (quadratic(run={"rounds": True}), "run.rounds = True does not fit"),
        (quadratic(run={"seed": "0"}), "run.seed = '0' does not fit"),
        (quadratic(run={"record": "grad_norm"}), "run.record = 'grad_norm' does not fit; expected a list"),
        (quadratic(run={"precision": "float16"}), 'expected one of "float32", "float64"'),
        (quadratic(algorithm={"name": "local-sgd", "step_size": "0.1"}), "algorithm.step_size = '0.1' does not fit"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": [0.1]}), "algorithm.step_size = [0.1] does not fit"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": 1.0, "num_local_steps": 2.0}), "a whole number"),
        (quadratic(problem="quadratic"), "problem = 'quadratic' is not a table; write [problem]"),
        (quadratic(algorithm="fedavg"), "algorithm = 'fedavg' is not a table"),
        (quadratic(algorithm=["fedavg"]), "algorithm = 'fedavg' is not a table"),
        (quadratic(problem=[{"name": "quadratic"}]), "is not a table"),
        (quadratic(problem={"name": 3}), "problem.name = 3 is not a name"),
        (quadratic(algorithm={"name": ["fedavg"]}), "algorithm.name = ['fedavg'] is not a name"),
        (classification(model={"name": "mlp", "hidden": 64}), "model.hidden = 64 does not fit; expected a list"),
        (["problem"], "a config is made of tables"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_was_expected(tables: Any, expected: str) -> None:
    assert expected in sentence(tables)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            quadratic(algorithm={"name": "local-sgd", "step_size": -0.1}),
            "step_size = -0.1 does not fit; expected a finite",
        ),
        (quadratic(algorithm={"name": "local-sgd", "step_size": 0.0}), "above 0"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": float("nan")}), "a finite number"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": float("inf")}), "a finite number"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": 1e300}), "step_size = inf is out of range"),
        (quadratic(algorithm={"name": "local-sgd", "step_size": 0.1, "num_local_steps": 0}), "at least 1"),
        (quadratic(algorithm={"name": "fedadam", "step_size": 0.1, "momentum": 1.5}), "at most 1"),
        (quadratic(run={"rounds": 0}), "run.rounds = 0 does not fit; expected a whole number at least 1"),
        (quadratic(run={"rounds": 10**12}), "at most 100000000"),
        (quadratic(run={"seed": -1}), "at least 0"),
        (quadratic(run={"eval_every": 0}), "at least 1"),
        (quadratic(run={"participation": 0}), "above 0"),
        (quadratic(run={"participation": 1.5}), "a share is at most 1"),
        (quadratic(problem={"name": "quadratic", "dimension": 0}), "at least 1"),
        (quadratic(problem={"name": "quadratic", "smoothness": 1e200}), "keep it between 1e-30 and 1e+12"),
        (quadratic(problem={"name": "quadratic", "smoothness": 1e-200}), "keep it between 1e-30 and 1e+12"),
        (classification(partition={"name": "iid", "seed": -1}), "partition.seed = -1 does not fit"),
        (classification(model={"name": "mlp", "hidden": [0]}), "model.hidden.0 = 0 does not fit"),
        (classification(model={"name": "mlp", "hidden": [10**30]}), "a whole number is below"),
        (classification(problem={"name": "classification", "batch_size": 2**40}), "a whole number is below"),
        (classification(data={"name": "digits", "test_share": 1.0}), "below 1"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(tables: Tables, expected: str) -> None:
    assert expected in sentence(tables)


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    assert "5 clients per round, but the federation has only 4" in sentence(quadratic(run={"participation": 5}))
    assert "6 clients per round, but the federation has only 5" in sentence(classification(run={"participation": 6}))
    two = {"name": "two-coordinates"}
    assert "has only 2" in sentence(quadratic(problem=two, run={"participation": 3}))
    validate(quadratic(run={"participation": 4}))


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("problem", "the table [problem] is missing"), ("algorithm", "the table [algorithm] is missing; name one of")],
)
def test_a_missing_table_is_asked_for(missing: str, expected: str) -> None:
    tables = quadratic()
    del tables[missing]
    assert expected in sentence(tables)


def test_a_missing_name_or_required_option_is_asked_for() -> None:
    assert "problem.name is missing; give one of" in sentence(quadratic(problem={}))
    assert "algorithm.name is missing; give one of" in sentence(quadratic(algorithm={"step_size": 0.1}))
    assert "algorithm.step_size is missing; give a finite number" in sentence(quadratic(algorithm={"name": "fedavg"}))
    assert "the table [algorithm] is missing" in sentence(quadratic(algorithm=[]))


def test_a_table_that_the_problem_does_not_take_is_refused() -> None:
    assert '[data] has no meaning with problem.name = "quadratic"' in sentence(quadratic(data={"name": "digits"}))
    linear = {**classification(), "problem": {"name": "least-squares"}}
    assert '[model] has no meaning with problem.name = "least-squares"' in sentence(linear)


def test_two_algorithms_of_one_label_are_refused_and_labels_tell_them_apart() -> None:
    method = {"name": "fedavg", "step_size": 0.1}
    assert 'two algorithms are called "fedavg"' in sentence(quadratic(algorithm=[method, method]))
    config = validate(quadratic(algorithm=[method, {**method, "label": "again"}]))
    assert [part.label for part in config.algorithms] == ["fedavg", "again"]


@pytest.mark.parametrize(
    "label", ["", " ", ".", "..", ".hidden", "a/b", "a\\b", 'a"b', "a\nb", "a\0b", "x" * 101, 3, None]
)
def test_a_label_that_cannot_be_a_folder_is_refused(label: Any) -> None:
    assert "algorithm.label" in sentence(quadratic(algorithm={"name": "fedavg", "step_size": 0.1, "label": label}))


def test_options_that_a_name_settles_cannot_be_given() -> None:
    settled = {"name": "synchronous-sgd", "step_size": 0.1, "num_local_steps": 4}
    assert 'algorithm.num_local_steps is settled by "synchronous-sgd" (1)' in sentence(quadratic(algorithm=settled))
    assert "is settled" in sentence(quadratic(algorithm={"name": "fedadam", "step_size": 0.1, "optimizer": "sgd"}))


def test_one_shot_averaging_takes_one_round() -> None:
    once = {"name": "one-shot-averaging", "step_size": 0.1}
    assert "set run.rounds = 1" in sentence(quadratic(algorithm=once))
    validate(quadratic(algorithm=once, run={"rounds": 1}))


def test_numbers_that_only_make_sense_together_are_refused_by_the_method() -> None:
    backwards = {"name": "fedprox", "step_size": 0.1, "num_local_steps": 2, "min_local_steps": 3}
    assert "min_local_steps = 3 is more than" in sentence(quadratic(algorithm=backwards))
    assert "alpha > 1" in sentence(quadratic(algorithm={"name": "fedac", "step_size": 1.0, "strong_convexity": 5.0}))


def test_a_number_is_judged_in_the_precision_of_the_run() -> None:
    tiny = {"name": "local-sgd", "step_size": 1e-60}
    assert "step_size = 0 is out of range" in sentence(quadratic(algorithm=tiny))  # float32 cannot hold it
    validate(quadratic(algorithm=tiny, run={"precision": "float64"}))


def test_a_number_too_long_to_write_down_is_still_one_sentence() -> None:
    """Python refuses to turn whole numbers of more than 4300 digits into text; as hexadecimals TOML can hold them."""
    huge = 16**5000
    for tables in (
        quadratic(run={"rounds": huge}),
        quadratic(run={"participation": huge}),
        quadratic(algorithm={"name": "local-sgd", "step_size": huge}),
        quadratic(algorithm=[huge]),
        quadratic(problem={"name": huge}),
        classification(problem={"name": "classification", "batch_size": huge}),
    ):
        assert "too large to show" in sentence(tables)


def test_further_mistakes_of_a_table_are_counted() -> None:
    message = sentence(quadratic(run={"rounds": 0, "seed": -1, "eval_every": 0}))
    assert message.endswith("(and 2 more mistakes)")


# --- files and changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[problem\n", "is not valid TOML"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"a = 1\na = 2\n", "is not valid TOML"),
        (b"a = " + b"9" * 5000, "is not valid TOML"),  # more digits than Python converts
        (b"a = " + b"[" * 5000 + b"]" * 5000, "is not valid TOML"),  # deeper than Python recurses
        (b"", "the table [problem] is missing"),
    ],
)
def test_a_file_that_is_no_config_is_one_sentence(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(SojournError) as caught:
        load_config(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SojournError, match="there is no file"):
        read_tables(tmp_path / "none.toml")
    with pytest.raises(SojournError, match="Is a directory"):
        read_tables(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"a b"', "a b"),
        ("iid", "iid"),
        ("", ""),
    ],
)
def test_a_change_is_a_toml_value_and_a_bare_word_a_text(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_change_of_an_algorithm_is_for_all_methods_or_for_the_labelled_one() -> None:
    tables = classification()
    everyone = with_changes(tables, ["algorithm.step_size=0.7"])["algorithm"]
    assert [entry["step_size"] for entry in everyone] == [0.7, 0.7]
    by_label = with_changes(tables, ["algorithm.adam.step_size=0.7"])["algorithm"]
    assert [entry["step_size"] for entry in by_label] == [0.1, 0.7]
    by_name = with_changes(tables, ["algorithm.fedprox.step_size=0.7"])["algorithm"]
    assert [entry["step_size"] for entry in by_name] == [0.7, 0.1]
    assert tables == classification()  # the given tables are left alone


def test_changes_apply_in_order_and_may_start_a_table() -> None:
    changed = with_changes(quadratic(), ["run.rounds=7", "run.rounds = 8", "engine.name=reference"])
    assert changed["run"]["rounds"] == 8
    assert changed["engine"] == {"name": "reference"}
    assert validate(changed).engine.name == "reference"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("run.rounds", "is not of the form table.key=value"),
        ("rounds=5", "is not of the form table.key=value"),
        ("a.b.c.d=5", "is not of the form table.key=value"),
        ("run.=5", "is not of the form table.key=value"),
        ("=5", "is not of the form table.key=value"),
        ("algorithm.nobody.step_size=1", "names no algorithm"),
        ("run.x.y=1", "names no run"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_sentence(change: str, expected: str) -> None:
    with pytest.raises(SojournError) as caught:
        with_changes(quadratic(), [change])
    assert expected in str(caught.value)
    assert_one_sentence(str(caught.value))


def test_a_change_inside_something_that_is_no_table_is_one_sentence() -> None:
    with pytest.raises(SojournError, match="is not a table"):
        with_changes({"run": 5}, ["run.rounds=5"])


# --- the resolved config -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tables", VALID)
def test_a_resolved_config_survives_toml_and_validates_to_itself(tables: Tables) -> None:
    config = validate(tables)
    again = validate(tomllib.loads(to_toml(config.tables)))
    assert again == config
    assert validate(config.tables) == config


def test_a_resolved_config_writes_out_every_default() -> None:
    config = validate(quadratic())
    assert config.tables["run"]["precision"] == "float32"
    assert config.tables["engine"] == {"name": "auto", "placement": "auto"}
    assert config.tables["algorithm"]["num_local_steps"] == 10
    assert config.tables["problem"]["smoothness"] == 10.0


def test_validation_leaves_what_it_was_given_alone() -> None:
    for tables in VALID:
        before = copy.deepcopy(tables)
        validate(tables)
        assert tables == before


def required_options(name: str) -> dict[str, float]:
    """Values for the options of a method that have no default; small, so that every method takes them."""
    method = ALGORITHMS[name]
    options = options_of(method.cls).items()
    needed = [key for key, (_, default) in options if default is REQUIRED and key not in method.settled]
    return dict.fromkeys(needed, 0.01)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_validates_with_its_defaults_and_is_built(name: str) -> None:
    rounds = ALGORITHMS[name].max_rounds or 5
    config = validate(quadratic(algorithm={"name": name, **required_options(name)}, run={"rounds": rounds}))
    algorithm = build_algorithm(config.algorithms[0])
    assert type(algorithm) is ALGORITHMS[name].cls
    for key, value in ALGORITHMS[name].settled.items():
        assert getattr(algorithm, key) == value


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_validates_with_its_defaults(name: str) -> None:
    asked = {"function": "json:loads"} if name == "own" else {}  # there is none of everybody's own
    config = validate(quadratic(problem={"name": name, **asked}))
    assert (config.data is not None) == PROBLEMS[name].takes_data
    assert (config.model is not None) == PROBLEMS[name].takes_model


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *(("data", name) for name in DATASETS),
        *(("partition", name) for name in PARTITIONS),
        *(("model", name) for name in MODELS),
        *(("engine", name) for name in ENGINES),
    ],
)
def test_every_other_entry_validates_with_its_defaults(table: str, name: str) -> None:
    config = validate(classification(**{table: {"name": name}}))
    assert getattr(config, table).name == name


def test_every_recipe_validates() -> None:
    assert recipe_files()
    for path in recipe_files().values():
        load_config(path)


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "recipes"])
def test_the_catalogue_says_of_every_entry_what_it_is_and_what_it_takes(room: str) -> None:
    for entry in entries(room):
        assert entry.summary, entry.name
        assert entry.options == options_table(room, entry.name)


# --- mangled configs ---------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    ["", " ", "\n", "a\nb", "\0", "é", "名前", "\u2028", "\ud800", "none", "null", "quadratic", "x" * 3000]
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400]),
    st.integers(-5, 100),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, -0.5, 5e-324, 1e-300, 1e-46, 1e39, 1e155, 1.7e308, -1e308]),
    st.floats(),
)
JUNK = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.none(), st.booleans(), st.just(b"bytes"), st.just((1, 2))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(0, 3), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that a tree of dicts and lists holds."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [path for key in keys for path in [(*here, key), *places(value[key], (*here, key))]]


def misspelt(draw: Any, word: str) -> str:
    at = draw(st.integers(0, len(word)))
    letter = draw(st.sampled_from("aZ_-. é\n"))
    return draw(st.sampled_from([word[:at] + letter + word[at:], word[:at] + word[at + 1 :], word.upper(), word[::-1]]))


@st.composite
def mangled(draw: Any) -> Any:
    """A valid config with one to three things wrong, or perhaps still right."""
    tables = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        spots = places(tables)
        if not spots:
            return draw(JUNK)
        *path, key = draw(st.sampled_from(spots))
        holder = tables
        for step in path:
            holder = holder[step]
        what = draw(st.sampled_from(["replace", "number", "delete", "misspell", "add", "wrap", "move"]))
        if what == "delete":
            del holder[key]
        elif what == "misspell" and isinstance(key, str):
            holder[misspelt(draw, key)] = holder.pop(key)
        elif what == "add" and isinstance(holder, dict):
            holder[draw(TEXTS | st.sampled_from(["seed", "label", "name", "num_clients"]))] = draw(JUNK)
        elif what == "wrap":
            holder[key] = draw(st.sampled_from([[holder[key]], {"name": holder[key]}, {key: holder[key]}]))
        elif what == "move":
            tables[draw(st.sampled_from(["run", "data", "algorithm", "problem"]))] = copy.deepcopy(holder[key])
        elif what == "number":
            holder[key] = draw(NUMBERS)
        else:
            holder[key] = draw(JUNK)
    return tables


@settings(max_examples=2500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(mangled())
def test_a_mangled_config_validates_or_is_refused_in_one_sentence(tables: Any) -> None:
    try:
        config = validate(tables)
    except SojournError as error:
        assert_one_sentence(str(error))
    else:
        assert validate(tomllib.loads(to_toml(config.tables))) == config


NUMBERS_TO_TRY = (
    -1, 0, 1, 2, 3, 7, 11, 50, 2**31, 2**64, 0.0, 0.5, 1.0, 2.0, 9.9, 1e-9, 1e-30, 1e-46, 1e-300, 5e-324, 1e3, 1e12,
    1e39, 1e155, 1e308,
)  # fmt: skip


def scattered(rng: np.random.Generator) -> Tables:
    """A problem of the catalogue with one or two of its numbers replaced."""
    quick = [
        name for name in PROBLEMS if name not in ("logistic-regression", "own")
    ]  # the first solves itself for some seconds
    name = str(rng.choice(quick))
    tables: Tables = {"problem": {"name": name}, "algorithm": {"name": "fedavg", "step_size": 0.1}}
    tables["run"] = {"precision": str(rng.choice(["float32", "float64"]))}
    spots = [("problem", option.split(" ")[0]) for option in options_table("problems", name)]
    if PROBLEMS[name].takes_data:
        scheme = str(rng.choice(list(PARTITIONS)))
        tables["partition"] = {"name": scheme}
        spots += [("partition", option.split(" ")[0]) for option in options_table("partitions", scheme)]
        spots += [("data", "test_share"), ("data", "seed")]
    if PROBLEMS[name].takes_model:
        spots += [("model", "hidden"), ("model", "seed")]
    for _ in range(int(rng.integers(1, 3))):
        table, key = spots[int(rng.integers(len(spots)))]
        number = NUMBERS_TO_TRY[int(rng.integers(len(NUMBERS_TO_TRY)))]
        tables.setdefault(table, {"name": {"data": "digits", "model": "mlp"}.get(table)})
        tables[table][key] = [number] if key == "hidden" else number
    return tables


def test_what_validates_can_be_built_or_is_refused_in_one_sentence() -> None:
    rng = np.random.default_rng(0)
    built = refused = 0
    while built + refused < 45:
        tables = scattered(rng)
        try:
            config = validate(tables)
        except SojournError:
            continue
        try:
            with precision(config):
                federation = build_federation(config)
            built += 1
            assert federation.num_clients >= 1
        except SojournError as error:
            assert_one_sentence(str(error))
            refused += 1
    assert built >= 30


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (classification(partition={"name": "classes", "classes_per_client": 11}), "more than the 10 classes"),
        (classification(partition={"name": "iid", "num_clients": 5000}), "use at most"),
        (
            classification(partition={"name": "shards", "num_clients": 100, "shards_per_client": 100}),
            "needs 10000 samples",
        ),
        (classification(partition={"name": "dirichlet", "num_clients": 100, "min_samples": 100}), "needs 10000"),
        (
            classification(partition={"name": "classes", "num_clients": 1000, "classes_per_client": 9}),
            "clients that would",
        ),
        (classification(data={"name": "digits", "test_share": 0.9999}), "no training samples"),
        (classification(data={"name": "digits", "test_share": 0.0001}), "without test samples"),
        (classification(model={"name": "mlp", "hidden": [10**6, 10**6]}), "parameters; at most"),
        (quadratic(problem={"name": "theorem2", "num_clients": 3}), "must be even"),
        (quadratic(problem={"name": "three-coordinates", "hessian_heterogeneity": 2.0}), "must be at most smoothness"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_when_they_are_built(tables: Tables, expected: str) -> None:
    config = validate(tables)
    with pytest.raises(SojournError) as caught:
        build_federation(config)
    assert expected in str(caught.value)
    assert_one_sentence(str(caught.value))
