"""A broker that dies comes back; one that cannot is spoken of, and not tried for ever."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fieldwork import EXAMPLES, free_port
from sojourn.config import load_config
from sojourn.core.errors import SojournError
from sojourn.deploy import supervision
from sojourn.deploy.broker import Broker
from sojourn.deploy.supervision import supervised
from sojourn.serving import Place, serve
from test_deploy_network import Home
from test_deploy_network import home as home  # a fixture


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LOOK_SECONDS", 0.05), ("_STEADY_SECONDS", 1.0), ("_GIVE_UP_SECONDS", 3.0)):
        monkeypatch.setattr(supervision, name, value)


def killed(broker: Broker) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)


def test_a_server_whose_broker_cannot_come_back_says_so_and_ends(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()

    def spoil() -> None:
        pid = run / "broker" / "broker.pid"
        while not said or not pid.exists():  # the broker listens
            time.sleep(0.05)
        (run / "broker" / "broker.conf").write_text("{ this is no configuration")
        os.kill(int(pid.read_text()), signal.SIGKILL)

    threading.Thread(target=spoil, daemon=True).start()
    with pytest.raises(SojournError, match=r"the broker does not come back; \S*broker.log says why"):
        serve(load_config(EXAMPLES / "digits.toml"), run, Place(f"127.0.0.1:{free_port()}"), say=said.append)
    assert [f"{run / 'broker' / 'broker.log'} says why" in line for line in said] == [False, True]
    starts = (run / "broker" / "broker.log").read_text().count("Parse error")
    assert 3 <= starts <= 12  # ever more rarely


def test_a_broker_that_is_killed_comes_back_without_a_word(home: Home) -> None:
    said: list[str] = []

    async def watched() -> int | None:
        await home.broker.wait_until_up()
        async with supervised(home.broker, home.ring, lambda: None, home.ring.changed, said.append):
            killed(home.broker)
            await asyncio.sleep(0.5)
            await home.broker.wait_until_up()
            return home.broker.pid

    first = home.broker.pid
    assert asyncio.run(watched()) not in (None, first) and said == []


def test_what_goes_wrong_while_watching_ends_the_work_with_its_reason(home: Home) -> None:
    def fails() -> None:
        raise SojournError("the disk is full.")

    async def watched() -> None:
        await home.broker.wait_until_up()
        async with supervised(home.broker, home.ring, fails, home.ring.changed - 1.0, lambda text: None):
            await asyncio.sleep(60.0)

    with pytest.raises(SojournError, match="the disk is full"):
        asyncio.run(watched())


def test_what_goes_wrong_with_the_work_is_told_as_it_is(home: Home) -> None:
    async def watched() -> None:
        async with supervised(home.broker, home.ring, lambda: None, home.ring.changed, lambda text: None):
            raise SojournError("no more.")

    with pytest.raises(SojournError, match=r"no more\."):
        asyncio.run(watched())
