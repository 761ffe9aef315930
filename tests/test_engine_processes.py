"""Worker processes give the numbers of the compiled engine, survive a kill, and leave nothing behind."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.engine import Auto, Compiled, Processes, choice, processes
from sojourn.engine.rounds import Plan
from test_contract import IN_ROUNDS, make, quick_compilation
from test_parity import GUARDS, assert_like_compiled, assert_same_state, assert_same_table, noisy, play

run = functools.partial(sj.run, progress=False)
TWO = Processes(workers=2)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module", autouse=True)
def workers_go() -> Iterator[None]:
    yield
    TWO.close()
    processes.dismiss_idle()


def crew() -> list[int]:
    """The process numbers of the workers of the run under way, or of those that wait."""
    session = TWO._kept.get("session")
    workers = processes._idle if session is None else session.team._crew  # type: ignore[attr-defined]
    return [worker.process.pid for worker in workers]


def assert_same_run(found: sj.History, expected: sj.History) -> None:
    assert_same_table(found.frame(), expected.frame())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), found.params, expected.params)


@IN_ROUNDS
def test_worker_processes_give_the_numbers_of_the_compiled_engine(name: str, x64: None) -> None:
    """Noise, unequal weights, and a cohort of three for two workers where the method allows one."""
    algorithm = make(name)
    assert_like_compiled(TWO, algorithm, 5, None if algorithm.needs_everyone() else 3)


@GUARDS
def test_worker_processes_give_the_numbers_of_guarded_runs(guard: dict[str, Any], x64: None) -> None:
    """Stacks of unequal length, and the server's noise."""
    algorithm = sj.guarded(Scaffold(step_size=0.05, num_local_steps=2), **guard)
    assert_like_compiled(TWO, algorithm, 11, 7)


def test_the_comparison_sees_a_worker_that_does_the_wrong_shard(x64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: two members visited twice and two not at all."""
    expected, _ = play(noisy(4), LocalSGD(step_size=0.05), "compiled")
    monkeypatch.setattr(processes.Everyone, "bounds", lambda self, total: [(0, 2), (0, 2)])
    found, _ = play(noisy(4), LocalSGD(step_size=0.05), TWO)
    with pytest.raises(AssertionError):
        assert_same_state(found, expected)


def _mean_square(params: Any, batch: Any) -> jax.Array:
    features, targets = batch
    return jax.numpy.mean((features @ params - targets) ** 2)


@pytest.mark.parametrize("redeal", [False, True])
def test_ragged_data_that_change_hands_and_probes_of_what_clients_do(redeal: bool, x64: None) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (20, 3, 7, 11, 2)]
    federation = sj.federation(_mean_square, np.zeros(3), clients, batch_size=2, weights="size", redeal=redeal)
    record = ("consensus4", "consensus_inside", "client_drift", "cosine")
    how: dict[str, Any] = {"participation": 3, "record": record, "eval_every": 2}
    histories = [
        run(federation, Scaffold(step_size=0.05, num_local_steps=3), 5, engine=engine, **how)
        for engine in (TWO, "compiled")
    ]
    assert_same_run(*histories)


class Worst(LocalSGD):
    """Keeps the whole stack of answers, and takes the one that is largest in its first number."""

    reduce = "stack"

    def aggregate(self, server: Any, up: Any, context: Any) -> Any:
        mean = jax.tree.map(lambda a: a[jax.numpy.argmax(jax.tree.leaves(up)[0][:, 0])], up)
        return super().aggregate(server, mean, context)


def test_stacked_answers_come_in_the_order_of_the_clients(x64: None) -> None:
    expected, table = play(noisy(), Worst(step_size=0.05, num_local_steps=2), "compiled")
    found, found_table = play(noisy(), Worst(step_size=0.05, num_local_steps=2), TWO)
    assert_same_state(found, expected)
    assert_same_table(found_table, table)


def slow_run(engine: Any, rounds: int = 400) -> sj.History:
    """Stateful clients; long enough for a kill to fall into it."""
    return run(noisy(), Scaffold(step_size=0.01, num_local_steps=2), rounds, participation=3, engine=engine)


def test_a_worker_that_is_killed_is_replaced_and_the_result_is_the_same(x64: None) -> None:
    undisturbed = slow_run(TWO)
    before = set(crew())
    deaths: list[int] = []
    chunk = processes.Crew.play

    def play_and_die(self: processes.Crew, *letter: Any) -> Any:
        deaths.append(1)
        if len(deaths) in (50, 51, 200):
            os.kill(self._crew[len(deaths) % 2].process.pid, signal.SIGKILL)
        return chunk(self, *letter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.Crew, "play", play_and_die)
        disturbed = slow_run(TWO)
    assert len(deaths) == 400 and set(crew()) != before
    pd.testing.assert_frame_equal(
        disturbed.frame().drop(columns="seconds"), undisturbed.frame().drop(columns="seconds"), check_exact=True
    )


def test_a_run_after_an_interrupted_one_hears_its_own_answers(x64: None) -> None:
    """Interrupted while a worker owes an answer: the next run would take that for its own."""
    expected, heard, count = slow_run("compiled", 6), processes.Crew._heard, [0]

    def interrupted(self: processes.Crew, number: int, order: tuple[Any, ...]) -> None:
        count[0] += bool(order) and order[0] == "play"
        if count[0] == 7:
            raise KeyboardInterrupt
        heard(self, number, order)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(processes.Crew, "_heard", interrupted)
        slow_run(TWO, 6)
    for _ in range(2):
        assert_same_run(slow_run(TWO, 6), expected)


def test_a_worker_that_dies_again_and_again_is_told_in_a_sentence(x64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run(noisy(), LocalSGD(step_size=0.01), 2, engine=TWO)
    monkeypatch.setattr(processes.worker, "__file__", os.devnull)
    processes.dismiss_idle()
    with pytest.raises(SojournError, match="died 4 times"):
        run(noisy(), LocalSGD(step_size=0.01), 2, engine=TWO)


def test_a_stopped_run_goes_on_to_the_same_bits(x64: None, tmp_path: Path) -> None:
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    how: dict[str, Any] = {"participation": 3, "eval_every": 3, "engine": TWO}
    whole = run(noisy(), algorithm, 12, **how)
    run(noisy(), algorithm, 7, out=tmp_path, **how)
    resumed = run(noisy(), algorithm, 12, out=tmp_path, resume=True, **how)
    columns = ["round", "participants", "drift"]
    pd.testing.assert_frame_equal(resumed.frame()[columns], whole.frame()[columns], check_exact=True)
    np.testing.assert_array_equal(resumed.params, whole.params)
    assert resumed.manifest["engine"] == {"name": "processes", "workers": 2, "why": "asked for"}


SCRIPT = """
    import os, sys, numpy as np, jax.numpy as jnp, sojourn as sj
    scale = 2.0
    class Mine(sj.algorithms.LocalSGD):  # of a script without a guard, with a loss that is a closure
        pass
    fed = sj.federation(lambda x, rows: scale * jnp.mean((rows @ x) ** 2), np.ones(3),
                        [np.eye(3) * (1 + i) for i in range(4)])
    print("ready", flush=True)
    out = sj.run(fed, Mine(step_size=0.01), int(sys.argv[1]), engine=sj.engine.Processes(workers=2), progress=False)
    print(out.status, out.manifest["rounds"], flush=True)
"""


def script(rounds: int, path: Path) -> subprocess.Popen[str]:
    (path / "mine.py").write_text(textwrap.dedent(SCRIPT).replace("sj.engine.", "__import__('sojourn.engine').engine."))
    return subprocess.Popen(
        [sys.executable, "mine.py", str(rounds)], cwd=path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, process_group=0,
    )  # fmt: skip


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in found.split()]


def wait_until(true: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, "terminal", None])
def test_nothing_is_left_behind_however_a_script_ends(how: int | str | None, tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to all processes of the group, also to workers that are just starting."""
    before = set(os.listdir("/dev/shm"))
    process = script(20 if how is None else 10_000_000, tmp_path)
    wait_until(lambda: len(children(process.pid)) >= 2 or process.poll() is not None)
    workers = children(process.pid)
    assert len(workers) == 2
    if how == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    elif isinstance(how, int):
        time.sleep(1.0)
        process.send_signal(how)
    said, complaints = process.communicate(timeout=120)
    assert complaints == ""
    if how is None:
        assert process.returncode == 0 and said.splitlines()[-1] == "ok 20"
    wait_until(lambda: not any(alive(pid) for pid in workers))
    assert not {name for name in set(os.listdir("/dev/shm")) - before if not name.startswith("plasma")}


def test_what_calls_back_into_python_is_refused_with_a_sentence() -> None:
    def loss(x: Any, rows: Any) -> jax.Array:
        seen = jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((), x.dtype), jax.numpy.zeros((), x.dtype))
        return jax.numpy.mean((rows @ x) ** 2) + jax.lax.stop_gradient(seen)

    federation = sj.federation(loss, np.ones(3), [np.eye(3)] * 3)
    with pytest.raises(SojournError, match=r'cannot be sent to another process .*use engine "compiled"'):
        run(federation, LocalSGD(step_size=0.01), 2, engine=TWO)


def test_bad_options_and_what_processes_cannot_do() -> None:
    with pytest.raises(SojournError, match="workers = 0 does not fit"):
        Processes(workers=0)
    trace = sj.traces.busy(3, 5, sj.traces.Devices(sj.traces.Constant()), sj.traces.Work(1), concurrency=2)
    with pytest.raises(SojournError, match='"processes" plays rounds'):
        run(noisy(3), sj.algorithms.FedAsync(step_size=0.1, num_local_steps=1), 5, trace=trace, engine=TWO)
    swept = sj.sweep(noisy(3), LocalSGD, [0.01, 0.02], 2, engine=TWO, progress=False)  # one after another
    assert swept.manifest["num_settings"] == 2


def large(num_rows: int = 40) -> Federation:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(num_rows, 400)).astype(np.float32) for _ in range(8)]

    def loss(params: Any, batch: Any) -> jax.Array:
        return jax.numpy.mean(jax.nn.relu(batch @ params["a"]) @ params["b"])

    params = {"a": np.zeros((400, 300), np.float32), "b": np.zeros(300, np.float32)}
    return sj.federation(loss, params, rows, batch_size=20)


def chosen(rounds: int, federation: Federation, kept: Any = None, **how: Any) -> tuple[Any, str]:
    algorithm = LocalSGD(step_size=0.01, num_local_steps=10)
    return Auto(**how).chosen(federation, algorithm, rounds, Plan(8, 1), kept)


def test_an_engine_is_chosen_by_work_and_never_by_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 rows through 400 x 300: about 2 * 20 * 120,000 operations forward and twice that back, 80 times a round."""
    monkeypatch.setattr(choice, "cores", lambda: 2)
    monkeypatch.setattr(choice, "_OPERATIONS_OF_AN_EXCHANGE", 2e8)
    work = choice.operations(large(), LocalSGD(step_size=0.01, num_local_steps=10), 0, 8)
    assert 0.6 < work / (80 * 2 * 2 * 20 * 120_000) < 1.7
    enough = int(choice._OPERATIONS_OF_A_RUN / work) + 1
    assert chosen(enough, large()) == (Processes(workers=2), "2 cores, and enough work for all of them")
    assert chosen(enough // 2, large()) == (Compiled(), "too little work to divide")
    assert chosen(10**8, noisy()) == (Compiled(), "too little work to divide")
    assert chosen(enough, large(), placement="scan") == (Compiled("scan"), "a placement was asked for")
    assert chosen(3, noisy(), {"name": "processes", "workers": 5})[0] == Processes(workers=5)
    assert chosen(enough, large(), {"name": "compiled"})[0] == Compiled()
    monkeypatch.setattr(choice, "cores", lambda: 1)
    assert chosen(enough, large()) == (Compiled(), "there is one core")


def test_a_resumed_run_goes_on_with_the_engine_it_had(x64: None, tmp_path: Path) -> None:
    algorithm = LocalSGD(step_size=0.01, num_local_steps=2)
    run(noisy(), algorithm, 3, out=tmp_path, engine=TWO)
    resumed = run(noisy(), algorithm, 5, out=tmp_path, resume=True)  # "auto" would take the compiled one
    assert resumed.manifest["engine"] == {"name": "processes", "workers": 2, "why": "the run began with it"}
    assert run(noisy(), algorithm, 3).manifest["engine"]["why"] == "too little work to divide"


def test_a_run_goes_on_with_another_number_of_workers_and_not_with_another_engine(x64: None, tmp_path: Path) -> None:
    algorithm = Scaffold(step_size=0.01, num_local_steps=2)
    run(noisy(8), algorithm, 3, out=tmp_path, engine=Processes(workers=1))
    with pytest.raises(SojournError, match='holds a run of engine "processes", and this is engine "compiled"'):
        run(noisy(8), algorithm, 6, out=tmp_path, resume=True, engine="compiled")
    assert_same_run(run(noisy(8), algorithm, 6, out=tmp_path, resume=True, engine=TWO), run(noisy(8), algorithm, 6))


def test_where_processes_do_not_start_auto_goes_on_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(choice, "cores", lambda: 100)
    monkeypatch.setattr(Auto, "_against_processes", lambda *a: "")
    assert chosen(5, large())[0] == Processes(workers=8)
    assert Auto().chosen(large(), make("local-sgd"), 5, Plan(64, 1), None)[0] == Processes(workers=16)
    processes.dismiss_idle()
    monkeypatch.setattr(processes.Worker, "__init__", refuse)
    algorithm = LocalSGD(step_size=0.01)
    found = run(noisy(), algorithm, 3, out=tmp_path)
    assert found.manifest["engine"]["name"] == "compiled"
    assert "worker processes do not start" in (why := found.manifest["engine"]["why"]) and "no more processes" in why
    assert_same_run(
        run(noisy(), algorithm, 5, out=tmp_path, resume=True), run(noisy(), algorithm, 5, engine="compiled")
    )
    with pytest.raises(SojournError, match="does not start"):
        run(noisy(), algorithm, 3, engine=TWO)


def test_in_virtual_time_the_manifest_names_the_engine() -> None:
    trace = sj.traces.busy(3, 5, sj.traces.Devices(sj.traces.Constant()), sj.traces.Work(1), concurrency=2)
    told = run(noisy(3), sj.algorithms.FedAsync(step_size=0.1, num_local_steps=1), 5, trace=trace).manifest["engine"]
    assert told["name"] == "compiled"
