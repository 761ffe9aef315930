"""Nothing goes out in the clear where TLS was asked for: not at first, not when a connection comes back."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldwork import free_port
from sojourn.core.errors import SojournError
from sojourn.deploy.broker import connected, lasting
from sojourn.deploy.certificates import authority_pem, client_context
from sojourn.deploy.keys import Pair
from test_cli import Command, command  # noqa: F401 - a fixture
from test_deploy_certificates import Home as Guarded
from test_deploy_network import Home
from test_deploy_network import home as home  # a fixture

REFUSED = "does not offer TLS, and nothing is sent in the clear"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A broker that speaks TLS alone."""
    made = Guarded(tmp_path)
    yield made
    made.broker.stop()


@contextlib.asynccontextmanager
async def somebody(port: int, **told: Any) -> AsyncIterator[bytearray]:
    """Who answers like a broker, in the clear; all that was said to them."""
    heard = bytearray()
    info = {"server_id": "x", "version": "2.11.0", "max_payload": 1 << 20, "auth_required": True, "nonce": "n", **told}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            heard.extend(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", port)
    try:
        yield heard
    finally:
        server.close()


def test_a_plain_broker_hears_nothing_from_who_wants_tls() -> None:
    async def knock() -> bytes:
        port = free_port()
        async with somebody(port) as heard:
            with pytest.raises(SojournError, match=REFUSED):
                await connected(f"tls://127.0.0.1:{port}", "ada", Pair.new().seed, client_context(None), 20.0)
            return bytes(heard)

    assert asyncio.run(knock()) == b""


@pytest.mark.parametrize("words", [("join", "tls://127.0.0.1"), ("join", "nats://localhost.localdomain")])
def test_joining_a_plain_broker_by_tls_is_refused(
    home: Home, command: Command, tmp_path: Path, words: tuple[str, str], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """Also by a name that is not known to be of this machine, whatever it resolves to."""
    look_up = asyncio.BaseEventLoop.getaddrinfo

    async def here(loop: Any, host: str, *rest: Any, **named: Any) -> Any:
        return await look_up(loop, "127.0.0.1", *rest, **named)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", here)
    asyncio.run(home.broker.wait_until_up())
    home.creds["ada"].save(tmp_path / "ada.creds")
    rest = ("--creds", tmp_path / "ada.creds", "--data", "json:loads", "--patience", "5")
    assert REFUSED in command.refused(words[0], f"{words[1]}:{home.port}", *rest)


async def cut_off(guarded: Guarded) -> Any:
    """A connection whose broker was killed, with something to say when it comes back."""
    await guarded.broker.wait_until_up()
    url, context = f"tls://127.0.0.1:{guarded.port}", client_context(authority_pem(guarded.tls))
    connection = await connected(url, "server", guarded.ring.server.seed, context, 20.0)
    assert guarded.broker.pid is not None
    os.kill(guarded.broker.pid, signal.SIGKILL)
    while connection.is_connected:
        await asyncio.sleep(0.02)
    await connection.publish("sojourn.upload.ada", b"what nobody else may read")
    return connection


def test_a_connection_that_comes_back_without_tls_is_ended_and_what_waited_is_not_sent(guarded: Guarded) -> None:
    async def told() -> tuple[bytes, str]:
        connection = await cut_off(guarded)
        async with somebody(guarded.port) as heard:
            async with asyncio.timeout(20.0):
                with pytest.raises(SojournError) as why:
                    while True:
                        await lasting(connection.publish, "sojourn.alive.ada", b"")
                        await asyncio.sleep(0.05)
                while not connection.is_closed:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            await connection.close()
            return bytes(heard), str(why.value)

    heard, why = asyncio.run(told())
    assert heard == b"" and REFUSED in why


def test_a_broker_that_is_left_while_it_keeps_silent_is_told_nothing(guarded: Guarded) -> None:
    """Between connecting and its first line nobody knows whether it will encrypt."""

    async def told() -> bytes:
        heard, called, connection = bytearray(), asyncio.Event(), await cut_off(guarded)

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            called.set()
            heard.extend(await reader.read())
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", guarded.port)
        async with asyncio.timeout(20.0):
            await called.wait()
        await asyncio.sleep(0.2)
        await connection.close()
        await asyncio.sleep(0.2)
        server.close()
        return bytes(heard)

    assert asyncio.run(told()) == b""


def test_other_brokers_that_a_first_line_names_are_not_called() -> None:
    async def known() -> list[Any]:
        port = free_port()
        async with somebody(port, connect_urls=["10.1.2.3:4222", "broker.example:4222"]):
            connection = await connected(f"nats://127.0.0.1:{port}", "ada", Pair.new().seed, None, 20.0)
            found = connection.discovered_servers
            await connection.close()
            return list(found)

    assert asyncio.run(known()) == []
