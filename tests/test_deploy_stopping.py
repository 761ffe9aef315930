"""A signal is obeyed at once, whatever is going on; what the process was doing is lost as by a kill, and no more."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldwork import COMMAND, Fieldwork
from sojourn.core.threads import aside, unless
from test_deploy_network import Home, together
from test_deploy_network import home as home  # a fixture

SLEEPY = """
import time
from pathlib import Path

def load():
    Path("loading").touch()
    time.sleep(300)
"""
LONG_TASKS = ["algorithm.num_local_steps=3000000", "deploy.min_workers=1"]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Fieldwork]:
    made = Fieldwork(tmp_path, LONG_TASKS)
    yield made
    made.close()


def waited_for(true: Callable[[], bool], work: Fieldwork, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, work.logs()
        time.sleep(0.1)


def handed_out(work: Fieldwork) -> bool:
    log = work.run / "book" / "applied.jsonl"
    return log.exists() and '"handed out"' in log.read_text()


def test_a_worker_that_loads_and_one_that_trains_leave_when_they_are_told(work: Fieldwork, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = ["join", f"{work.url}:{work.port}", "--creds", str(tmp_path / "ben.creds"), "--data", "sleepy:load"]
    work.start("server")
    work.start("ada")
    with open(tmp_path / "ben.txt", "ab") as log:
        work.processes["ben"] = subprocess.Popen(
            [*COMMAND, *words], cwd=tmp_path, env=work.environment, stdout=log, stderr=log
        )
    waited_for(lambda: (tmp_path / "loading").exists(), work)
    assert work.end("ben", 10.0) == 130, work.logs()
    waited_for(lambda: handed_out(work), work)
    time.sleep(3.0)  # it compiles, and trains for minutes
    assert work.processes["ada"].poll() is None, work.logs()
    assert work.end("ada", 10.0) == 130, work.logs()
    for name in ("ada", "ben"):
        assert f"sojourn: {name} left; the same command joins again\n" in (tmp_path / f"{name}.txt").read_text()
    assert work.end("server", 30.0) == 130, work.logs()


@pytest.fixture
def enough() -> Iterator[threading.Event]:
    """Ends what a test leaves behind: a command of another one would end this process."""
    made = threading.Event()
    yield made
    made.set()
    time.sleep(0.1)


def test_a_server_that_measures_for_long_stops_and_the_next_one_measures(home: Home, enough: threading.Event) -> None:
    def measure(server: Any) -> dict[str, float]:
        enough.wait(300.0)
        return {"loss": 1.0}

    server = home.server(3)
    server._evaluate = measure

    async def stopped() -> None:
        await home.broker.wait_until_up()
        asyncio.get_running_loop().call_later(1.0, server.stopping.set)
        await server.run(home.url, home.ring.server.seed)

    since = time.monotonic()
    asyncio.run(stopped())
    assert time.monotonic() - since < 10.0 and server.status == "stopped" and server.book.metrics == []
    enough.set()
    again = home.server(3)
    again._evaluate = measure
    asyncio.run(together(home, again, [home.worker(number) for number in range(4)]))
    measured = [row["done"] for row in again.book.metrics]
    assert again.status == "over" and measured[0] == 0 and measured[-1] == 3


def test_a_server_that_is_stopped_before_its_last_model_is_measured_is_not_over(
    home: Home, enough: threading.Event
) -> None:
    server = home.server(3)
    server.book.applied, server._evaluate = 3, lambda model: {"loss": float(enough.wait(300.0))}
    server.stopping.set()
    assert server.book.over and server.status == "over"
    asyncio.run(server._measure())
    assert server.status == "stopped"


def test_a_second_signal_ends_the_grace() -> None:
    async def ended() -> Any:
        first, second = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, first.set)
        asyncio.get_running_loop().call_later(0.2, second.set)
        return await unless(first, asyncio.sleep(300.0, "done"), 200.0, second)

    since = time.monotonic()
    assert asyncio.run(ended()) is None and time.monotonic() - since < 5.0


def test_work_aside_returns_what_it_found_and_raises_what_it_met() -> None:
    async def both() -> int:
        with pytest.raises(ZeroDivisionError):
            await aside(lambda: 1 // 0)
        return int(await aside(max, 1, 2))

    assert asyncio.run(both()) == 2
