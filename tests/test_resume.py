"""A run that was killed and resumed is the run: every number, whenever it was killed. Damage is told, never mended."""

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from sojourn import driver
from sojourn.cli import main
from sojourn.config import to_toml, validate
from sojourn.core import files
from sojourn.core.errors import SojournError
from sojourn.engine.checkpoint import fingerprint, load_state, save_state
from sojourn.experiment import run_config, sweep_config
from sojourn.history import CONFIG_FILE, MANIFEST_FILE, STATE_FILE, TABLE_FILE, History, load_history

Tables = dict[str, Any]

SCAFFOLD = {"name": "scaffold", "step_size": 0.01, "num_local_steps": 3}  # clients remember their controls
AVERAGED = {
    "name": "local-sgd",
    "label": "averaged",
    "step_size": 0.01,
    "output": "uniform",
}  # and their sums, sent last
ADAM = {"name": "fedadam", "step_size": 0.01, "num_local_steps": 2}  # the server remembers moments


def tables(algorithm: Any, **run: Any) -> Tables:
    """Noisy quadratics: every round draws from its key, so a key used twice or skipped would show."""
    problem = {"name": "quadratic", "num_clients": 5, "dimension": 3, "noise": 0.5}
    return {"problem": problem, "algorithm": algorithm, "run": {"rounds": 12, "eval_every": 3, **run}}


def assert_same_history(one: History, other: History) -> None:
    """Bit for bit, but for how long it took."""
    pd.testing.assert_frame_equal(
        one.table.drop(columns="seconds"), other.table.drop(columns="seconds"), check_exact=True
    )
    assert one.status == other.status
    if one.params is not None and other.params is not None:
        jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def assert_same_state(one: Path, other: Path) -> None:
    """The last states, with the clients' memories, bit for bit."""
    assert (one / STATE_FILE).read_bytes() == (other / STATE_FILE).read_bytes()


def content(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one round, saved after every one."""
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(driver, "_SAVE_SECONDS", -1.0)


class Killed(BaseException):
    """Ends a run without a word, as a kill does."""


def killed_then_resumed(run: Callable[..., Any], number: int) -> Any:
    """Dies when the file of this number, counted from 0, is written but not yet in its place; then goes on."""
    calls, rename = itertools.count(), os.replace

    def replace(source: Any, target: Any) -> None:
        if next(calls) == number:
            raise Killed
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os, "replace", replace)
        run()
    return run(resume=True)


# --- killed at every place where it can be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (SCAFFOLD, {"participation": 2}),
        (AVERAGED, {"precision": "float64"}),
        (ADAM, {"record": ["model_norm"]}),
    ],
)
def test_a_run_killed_at_any_write_and_resumed_is_the_run(
    algorithm: Tables, settings: Tables, tmp_path: Path, eager: None
) -> None:
    """Writes are: the config, and after every round the table, the manifest and the state; a kill falls before each."""
    config = validate(tables(algorithm, rounds=5, **settings))
    (whole,) = run_config(config, tmp_path / "whole")
    for number in [*range(8), 11, 15, 19]:
        out = tmp_path / f"killed-{number}"
        (history,) = killed_then_resumed(functools.partial(run_config, config, out), number)
        assert_same_history(history, whole)
        assert_same_history(load_history(out), load_history(tmp_path / "whole"))
        assert_same_state(out, tmp_path / "whole")


def test_a_sweep_killed_at_any_write_and_resumed_is_the_sweep(tmp_path: Path, eager: None) -> None:
    """Two programs, since a choice shapes the program, of four settings each."""
    axes = ["algorithm.step_size=0.01,0.02", "run.seed=0:2", "algorithm.control=I,II"]
    given = tables(SCAFFOLD, rounds=3)
    (whole,) = sweep_config(given, axes, tmp_path / "whole")
    for number in (0, 2, 5, 9, 12, 14, 18, 24):
        out = tmp_path / f"killed-{number}"
        (history,) = killed_then_resumed(functools.partial(sweep_config, given, axes, out), number)
        assert_same_history(history, whole)
        assert_same_history(load_history(out), load_history(tmp_path / "whole"))


def test_chunks_of_any_length_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = validate(tables(SCAFFOLD, rounds=50, participation=2))
    (long,) = run_config(config, tmp_path / "long")
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    (short,) = run_config(config, tmp_path / "short")
    assert_same_history(short, long)
    assert_same_state(tmp_path / "short", tmp_path / "long")


def test_rows_that_the_state_does_not_know_are_dropped(tmp_path: Path, eager: None) -> None:
    """A kill between table and state leaves a table that is ahead: here by nine rounds, with other numbers in them."""
    config = validate(tables(SCAFFOLD))
    (whole,) = run_config(config, tmp_path / "whole")
    early = validate(tables(SCAFFOLD, rounds=3))
    run_config(early, tmp_path / "cut")
    ahead = load_history(tmp_path / "whole").table
    ahead.loc[ahead["round"] > 3, "loss"] = 123.0
    ahead.to_parquet(tmp_path / "cut" / TABLE_FILE, index=False)
    (history,) = run_config(config, tmp_path / "cut", resume=True)
    assert_same_history(history, whole)


def test_a_table_that_is_behind_the_state_is_refused(tmp_path: Path) -> None:
    config = validate(tables(SCAFFOLD))
    run_config(config, tmp_path)
    short = load_history(tmp_path).table.head(5)
    short.to_parquet(tmp_path / TABLE_FILE, index=False)
    before = content(tmp_path)
    with pytest.raises(SojournError, match="ends before round 12 of the checkpoint"):
        run_config(config, tmp_path, resume=True)
    assert content(tmp_path) == before


def test_a_resumed_run_depends_on_the_checkpoint(tmp_path: Path) -> None:
    """Negative control: with another model in the state the rest of the run differs."""
    config = validate(tables({"name": "local-sgd", "step_size": 0.01}))
    (whole,) = run_config(config, tmp_path / "whole")
    run_config(validate(tables({"name": "local-sgd", "step_size": 0.01}, rounds=6)), tmp_path / "cut")
    state = tmp_path / "cut" / STATE_FILE
    with np.load(state) as saved:
        arrays = {name: saved[name] for name in saved.files}
    arrays["leaf0"] = arrays["leaf0"] + 1
    np.savez(state, allow_pickle=False, **arrays)
    (history,) = run_config(config, tmp_path / "cut", resume=True)
    with pytest.raises(AssertionError):
        assert_same_history(history, whole)


# --- finished, extended, diverged --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [SCAFFOLD, AVERAGED])
def test_to_resume_a_finished_run_changes_no_bit(algorithm: Tables, tmp_path: Path) -> None:
    config = validate(tables(algorithm))
    (first,) = run_config(config, tmp_path)
    before = content(tmp_path)
    for _ in range(2):
        (again,) = run_config(config, tmp_path, resume=True)
        assert content(tmp_path) == before
        assert_same_history(again, first)
        assert again.manifest == first.manifest


def test_to_resume_a_finished_sweep_changes_no_bit(tmp_path: Path) -> None:
    axes = ["algorithm.step_size=0.01,0.02", "problem.dimension=2,3"]
    (first,) = sweep_config(tables(AVERAGED), axes, tmp_path)
    before = content(tmp_path)
    (again,) = sweep_config(tables(AVERAGED), axes, tmp_path, resume=True)
    assert content(tmp_path) == before
    assert_same_history(again, first)


@pytest.mark.parametrize(("algorithm", "precision"), [(SCAFFOLD, "float64"), (AVERAGED, "float32")])
def test_a_run_that_is_given_more_rounds_goes_on_as_if_it_had_always_had_them(
    algorithm: Tables, precision: str, tmp_path: Path
) -> None:
    config = validate(tables(algorithm, rounds=24, precision=precision))
    (whole,) = run_config(config, tmp_path / "whole")
    run_config(validate(tables(algorithm, rounds=12, precision=precision)), tmp_path / "longer")
    (longer,) = run_config(config, tmp_path / "longer", resume=True)
    assert_same_history(longer, whole)
    assert_same_state(tmp_path / "longer", tmp_path / "whole")
    assert load_history(tmp_path / "longer").config == load_history(tmp_path / "whole").config


def test_a_run_can_be_extended_where_the_number_of_evaluations_is_left_open(tmp_path: Path) -> None:
    """By default a hundredth of the rounds are evaluated; more rounds are evaluated more rarely, and that is all."""
    method = {"name": "local-sgd", "step_size": 0.01}
    open_ended = {"problem": {"name": "quadratic", "num_clients": 2, "dimension": 2}, "algorithm": method}
    run_config(validate({**open_ended, "run": {"rounds": 200}}), tmp_path / "a")
    (longer,) = run_config(validate({**open_ended, "run": {"rounds": 400}}), tmp_path / "a", resume=True)
    (whole,) = run_config(validate({**open_ended, "run": {"rounds": 400}}), tmp_path / "b")
    assert longer.status == "ok"
    jax.tree.map(np.testing.assert_array_equal, longer.params, whole.params)


def test_a_run_cannot_be_resumed_with_fewer_rounds_than_it_has(tmp_path: Path) -> None:
    run_config(validate(tables(AVERAGED)), tmp_path)
    before = content(tmp_path)
    with pytest.raises(SojournError, match="holds 12 rounds already"):
        run_config(validate(tables(AVERAGED, rounds=6)), tmp_path, resume=True)
    assert content(tmp_path) == before


def test_to_resume_a_diverged_run_changes_no_bit(tmp_path: Path) -> None:
    config = validate(tables({"name": "local-sgd", "step_size": 9.0}, rounds=200))
    (first,) = run_config(config, tmp_path)
    assert first.status == "diverged"
    before = content(tmp_path)
    for _ in range(2):
        (again,) = run_config(config, tmp_path, resume=True)
        assert again.status == "diverged"
        assert content(tmp_path) == before


def test_to_resume_where_nothing_was_begun_begins(tmp_path: Path) -> None:
    config = validate(tables(SCAFFOLD))
    (whole,) = run_config(config, tmp_path / "whole")
    (history,) = run_config(config, tmp_path / "new", resume=True)
    assert_same_history(history, whole)
    assert (tmp_path / "new" / CONFIG_FILE).is_file()


# --- damage, and files of other runs -----------------------------------------------------------------------------


def damaged_states(path: Path) -> dict[str, bytes]:
    whole = path.read_bytes()
    middle = len(whole) // 2
    return {
        "empty": b"",
        "one byte": whole[:1],
        "half": whole[:middle],
        "all but one byte": whole[:-1],
        "not a zip": b"this is not a checkpoint" * 100,
        "zeros": bytes(len(whole)),
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
        "an array of its own": b"\x93NUMPY" + whole[6:],
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and its config file, to be copied."""
    place = tmp_path_factory.mktemp("finished")
    (place / "config.toml").write_text(to_toml(tables(SCAFFOLD)))
    run_config(validate(tables(SCAFFOLD)), place / "run")
    return place


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard error of the command line."""
    monkeypatch.setattr(sys, "argv", ["sojourn", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    ["empty", "one byte", "half", "all but one byte", "not a zip", "zeros", "flipped", "an array of its own"],
)
def test_a_damaged_checkpoint_is_told_and_left_as_it_is(
    damage: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(finished / "run", tmp_path / "run")
    (out / STATE_FILE).write_bytes(damaged_states(out / STATE_FILE)[damage])
    before = content(out)
    code, err = command(monkeypatch, capsys, "run", str(finished / "config.toml"), "--out", str(out), "--resume")
    assert code == 2
    assert "is damaged" in err and "left as it is" in err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert content(out) == before


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Each byte in turn: the checkpoint is refused, or what is read is what was saved."""
    state = {"x": np.arange(3.0), "round": np.asarray(7)}
    template = jax.tree.map(jax.numpy.asarray, state)
    path = tmp_path / STATE_FILE
    save_state(path, template, "me")
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            found = load_state(path, template, "me")
        except SojournError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            jax.tree.map(np.testing.assert_array_equal, found, template)
    assert refused > len(whole) / 2
    path.write_bytes(whole)
    jax.tree.map(np.testing.assert_array_equal, load_state(path, template, "me"), template)


@pytest.mark.parametrize(
    "change",
    [
        "run.seed=1",
        "algorithm.step_size=0.011",
        "algorithm.num_local_steps=4",
        "algorithm.name=fedavg",
        "problem.seed=1",
        "problem.noise=0.4",
        "run.participation=2",
        "run.precision=float64",
    ],
)
def test_a_checkpoint_of_another_run_is_told_and_left_as_it_is(
    change: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(finished / "run", tmp_path / "run")
    before = content(out)
    words = ["run", str(finished / "config.toml"), "--out", str(out), "--resume", "--set", change]
    code, err = command(monkeypatch, capsys, *words)
    assert code == 2
    assert "belongs to another run" in err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert content(out) == before  # not even its config


def test_a_sweep_of_other_values_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    sweep_config(tables(SCAFFOLD), ["algorithm.step_size=0.01,0.02"], tmp_path)
    before = content(tmp_path)
    with pytest.raises(SojournError, match="belongs to another run"):
        sweep_config(tables(SCAFFOLD), ["algorithm.step_size=0.01,0.03"], tmp_path, resume=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not a table" * 50, None])
def test_a_damaged_table_is_told_and_left_as_it_is(damage: bytes | None, finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished / "run", tmp_path / "run")
    if damage is None:
        (out / TABLE_FILE).unlink()
    else:
        (out / TABLE_FILE).write_bytes(damage)
    before = content(out)
    with pytest.raises(SojournError, match="cannot be read"):
        run_config(validate(tables(SCAFFOLD)), out, resume=True)
    with pytest.raises(SojournError, match="cannot be read") as caught:
        load_history(out)
    assert "\n" not in str(caught.value)
    assert content(out) == before


def test_a_table_of_something_else_is_refused(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished / "run", tmp_path / "run")
    pd.DataFrame({"a": [1, 2]}).to_parquet(out / TABLE_FILE)
    with pytest.raises(SojournError, match="is not that of a run"):
        run_config(validate(tables(SCAFFOLD)), out, resume=True)
    with pytest.raises(SojournError, match="not those of a run"):
        load_history(out)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"a": 1}', "\x00"])
def test_a_damaged_manifest_is_told_by_a_report_and_written_anew_by_the_run(
    damage: str, finished: Path, tmp_path: Path
) -> None:
    """The manifest holds nothing that a run needs in order to go on."""
    out = shutil.copytree(finished / "run", tmp_path / "run")
    (out / MANIFEST_FILE).write_text(damage)
    with pytest.raises(SojournError, match="cannot be read") as caught:
        load_history(out)
    assert "\n" not in str(caught.value)
    run_config(validate(tables(SCAFFOLD)), out, resume=True)
    assert load_history(out).status == "ok"


# --- one file, whole or not at all -------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), ValueError("boom"), Killed()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(trouble: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomically(path, lambda beside: beside.write_text("old"))

    def write(beside: Path) -> None:
        beside.write_text("half of the n")
        assert path.read_text() == "old"
        raise trouble

    expected = SojournError if isinstance(trouble, OSError) else type(trouble)
    with pytest.raises(expected):
        files.write_atomically(path, write)
    assert content(tmp_path) == {"file": b"old"}


def test_a_write_where_there_can_be_no_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    for place in (tmp_path / "file" / "x" / "y", tmp_path / ("x" * 300), Path("/proc/nowhere/x")):
        with pytest.raises(SojournError, match="cannot write"):
            files.write_atomically(place, lambda beside: beside.write_text("new"))


def test_what_a_kill_leaves_beside_the_files_is_ignored(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished / "run", tmp_path / "run")
    for name in (STATE_FILE, TABLE_FILE, MANIFEST_FILE):
        (out / f".{name}.4711.new").write_bytes(b"half a file")
    (history,) = run_config(validate(tables(SCAFFOLD)), out, resume=True)
    assert_same_history(history, load_history(finished / "run"))
    assert_same_history(load_history(out), history)


def test_a_fingerprint_is_of_content_and_not_of_addresses() -> None:
    def parts(width: int) -> tuple[Any, ...]:
        return jax.numpy.arange(3.0), driver.Plan(4, width), jax.random.key(0), "text", None

    assert fingerprint(*parts(2)) == fingerprint(*parts(2))
    assert fingerprint(*parts(2)) != fingerprint(*parts(3))
    assert fingerprint(jax.numpy.arange(3.0)) != fingerprint(jax.numpy.arange(3))
    assert fingerprint("a") != fingerprint("b")


# --- real processes, real signals --------------------------------------------------------------------------------

# Saves after every round rather than once a second, so that a run of a few rounds is killed in the midst of much.
HASTY = (
    "import sojourn.driver as driver; driver._CHUNK_SECONDS, driver._SAVE_SECONDS = 0.0, -1.0; "
    "from sojourn.cli import main; main()"
)


def start(words: list[str], cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "SOJOURN_COMPILATION_CACHE": str(cache)}
    command = [sys.executable, "-c", HASTY, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end_amid(process: subprocess.Popen[str], out: Path, how: int, saves: int, delay: float) -> tuple[int, str]:
    """Waits for some saves, a little longer, and sends the signal; returns the exit code and standard error."""
    seen: set[tuple[str, int]] = set()
    known = {(str(path), path.stat().st_mtime_ns) for path in out.rglob(STATE_FILE)}
    while len(seen) < saves and process.poll() is None:
        for path in out.rglob(STATE_FILE):
            try:
                seen |= {(str(path), path.stat().st_mtime_ns)} - known
            except FileNotFoundError:
                continue
        time.sleep(0.002)
    assert process.poll() is None, f"the run ended before it was killed: {process.communicate()}"
    time.sleep(delay)
    process.send_signal(how)
    err = process.communicate(timeout=120)[1]
    return process.returncode, err


def test_a_process_killed_again_and_again_leaves_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    """Two methods with memories, one with a closing exchange, in float64; kill -9, and once a polite request."""
    given = tables([SCAFFOLD, AVERAGED], rounds=60, precision="float64")
    (tmp_path / "given.toml").write_text(to_toml(given))
    out, rng = tmp_path / "killed", np.random.default_rng(0)
    words = ["run", str(tmp_path / "given.toml"), "--out", str(out), "--resume"]
    rounds = []
    for how, expected in [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 130),
        (signal.SIGKILL, -signal.SIGKILL),
    ]:
        process = start(words, tmp_path / "cache")
        code, err = end_amid(process, out, how, saves=int(rng.integers(5, 12)), delay=float(rng.uniform(0, 0.02)))
        assert code == expected, err
        assert "Traceback" not in err
        rounds.append(sum(int(load_history(path.parent).table["round"].max()) for path in out.rglob(MANIFEST_FILE)))
    assert rounds == sorted(set(rounds))  # every process went on where the last one was
    assert rounds[-1] < 2 * 60
    resumed = run_config(validate(given), out, resume=True)
    whole = run_config(validate(given), tmp_path / "whole")
    for one, other, part in zip(resumed, whole, validate(given).algorithms, strict=True):
        assert_same_history(one, other)
        assert_same_history(load_history(out / part.label), other)
        assert_same_state(out / part.label, tmp_path / "whole" / part.label)


def test_a_sweep_killed_in_its_own_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    given = tables(SCAFFOLD, rounds=30)
    axes = ["algorithm.step_size=0.01,0.02", "run.seed=0:2", "algorithm.control=I,II"]
    (tmp_path / "given.toml").write_text(to_toml(given))
    out = tmp_path / "killed"
    words = ["sweep", str(tmp_path / "given.toml"), *axes, "--out", str(out), "--resume"]
    for saves in (8, 20):
        code, err = end_amid(start(words, tmp_path / "cache"), out, signal.SIGKILL, saves, delay=0.01)
        assert code == -signal.SIGKILL, err
    (resumed,) = sweep_config(given, axes, out, resume=True)
    (whole,) = sweep_config(given, axes, tmp_path / "whole")
    assert_same_history(resumed, whole)
    assert json.loads((out / MANIFEST_FILE).read_text())["status"] == "ok"
