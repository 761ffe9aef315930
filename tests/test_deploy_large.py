"""Large models and many workers: memory, back-pressure, and writers that are cut off in the middle of a parcel."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import FedAsync, FedAvg, Scaffold
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.deploy import parcels, streams
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.book import APPLIED, read_log
from sojourn.deploy.broker import connected
from sojourn.deploy.keys import Ring
from sojourn.deploy.replay import difference
from sojourn.deploy.rounds import InRounds
from sojourn.deploy.rules import Rules
from sojourn.deploy.server import Server
from sojourn.deploy.wire import FORMAT, Rejected
from sojourn.deploy.worker import Client
from test_deploy_network import NAMES, Home, data, together

SIX = [f"worker-{number}" for number in range(6)]
METHODS = {"fedasync": FedAsync(0.1, 1, mixing=0.5), "fedavg": FedAvg(0.1, 1)}


def flat(num_floats: int, num_clients: int) -> Federation:
    """A model of a size on as good as no data."""
    one = (np.ones((1, 1), "f"), np.ones(1, "f"))
    return sj.federation(lambda x, b: jnp.mean(b[0]) * jnp.sum(x**2), np.ones(num_floats, "f"), [one] * num_clients)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.broker.stop()


class Echo(Client):
    """Answers at once: what is looked at is the way."""

    def do(self, task: int, name: str, memory: int, key: np.ndarray, leaves: list[np.ndarray]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.trips.shapes[name][1]), leaves)


# --- memory ----------------------------------------------------------------------------------------------------------


def serve(place: Path, url: str, method: str, num_floats: int, of: int, num_workers: int) -> int:
    """The server in this process; by how much running made its peak grow, in bytes."""
    kind = OneByOne if METHODS[method].asynchronous else InRounds
    book = kind(flat(num_floats, num_workers), METHODS[method], place / "book", Rules(), of=of)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: building is not what is asked for
    before = _kilobytes("VmRSS")
    print("ready", flush=True)
    asyncio.run(
        Server(book, dict(list(Ring(place).places.items())[:num_workers]), {}).run(url, Ring(place).server.seed)
    )
    return 1024 * (_kilobytes("VmHWM") - before)


def _kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1])


async def _answers(home: Home, method: str, num_floats: int, num_workers: int, seconds: float) -> None:
    alone = flat(num_floats, 1)

    def one(number: int) -> Any:
        return home.worker(number, METHODS[method], alone, Echo)

    await asyncio.wait_for(asyncio.gather(*map(one, range(num_workers))), seconds)


def models_held(home: Home, method: str, num_floats: int, of: int, num_workers: int, seconds: float = 120.0) -> float:
    """The server's memory beyond what it began with, in models."""
    asyncio.run(home.broker.wait_until_up())
    told = [str(home.place), home.url, method, str(num_floats), str(of), str(num_workers)]
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, __file__, *told], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        asyncio.run(_answers(home, method, num_floats, num_workers, seconds))
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return float(json.loads(out)) / (4 * num_floats)


SMALL = 10_000_000  # floats, 40 MB: allocators give blocks of more than 32 MiB back at once


@pytest.mark.parametrize(("method", "of"), [("fedavg", 1), pytest.param("fedasync", 1, marks=pytest.mark.slow)])
def test_the_servers_memory_does_not_grow_with_its_workers(tmp_path: Path, method: str, of: int) -> None:
    few, many = _few_and_many(tmp_path, method, SMALL, of, 120.0)
    assert few < 8 and many < few + 2  # holding the uploads of four more workers would take four models more


@pytest.mark.slow
@pytest.mark.parametrize(("method", "of"), [("fedasync", 3), ("fedavg", 2)])
def test_a_model_of_200_megabytes(tmp_path: Path, method: str, of: int) -> None:
    few, many = _few_and_many(tmp_path, method, 50_000_000, of, 550.0)
    print(f"{method}: {few:.2f} models with 2 workers, {many:.2f} with 6")
    assert few < 6 and many < few + 1


def _few_and_many(place: Path, method: str, num_floats: int, of: int, seconds: float) -> list[float]:
    found = []
    for num_workers in (2, 6):
        home = Home(place / str(num_workers), SIX[:num_workers])
        try:
            uploads = of * num_workers if METHODS[method].asynchronous else of
            found.append(models_held(home, method, num_floats, uploads, num_workers, seconds))
        finally:
            home.broker.stop()
    return found


# --- back-pressure and writers that are cut off ----------------------------------------------------------------------


async def _at_the_broker(home: Home) -> Any:
    await home.broker.wait_until_up()
    return await connected(home.url, "server", home.ring.server.seed, None, 10.0)


def test_who_would_put_into_a_full_bucket_waits_until_something_was_taken_away(home: Home) -> None:
    mebibyte = bytes(1 << 20)

    async def told() -> tuple[bool, bytes, list[str]]:
        connection = await _at_the_broker(home)
        stream = connection.jetstream()
        await parcels.make_bucket(stream, "narrow", 5 << 20)
        await parcels.put(stream, "narrow", "first", [mebibyte, mebibyte])
        content = [b"x" * 7, mebibyte, mebibyte]
        second = asyncio.create_task(parcels.put(stream, "narrow", "second", content, ["first"]))
        done, _ = await asyncio.wait([second], timeout=1.5)
        await parcels.drop(stream, "narrow", "first")
        await asyncio.wait_for(second, 10.0)
        with pytest.raises(Rejected, match="not what it says"):
            await parcels.get(stream, "narrow", "second", 1 << 22, parcels.digest_of([mebibyte]))
        digest = parcels.digest_of(content)
        found = (
            bytes(await parcels.get(stream, "narrow", "second", 1 << 22, digest)),
            await parcels.names(stream, "narrow"),
        )
        await connection.close()
        return bool(done), *found

    waited_not, content, names = asyncio.run(told())
    assert not waited_not and content == b"x" * 7 + 2 * mebibyte and names == ["second"]


def test_a_bucket_holds_nothing_but_what_is_wanted(home: Home) -> None:
    """Thousands of uploads later a bucket must not be full of what is left of them."""

    async def told() -> tuple[int, int]:
        connection = await _at_the_broker(home)
        stream = connection.jetstream()
        await parcels.make_bucket(stream, "used", 5 << 20)
        for number in range(5):
            await parcels.put(stream, "used", f"task-{number}", [bytes(1000)])
            await parcels.drop(stream, "used", f"task-{number}")
        after = (await stream.stream_info("OBJ_used")).state.messages
        await stream.publish("$O.used.C.task-9-cutoff", bytes(1000))
        await parcels.put(stream, "used", "task-9", [bytes(1000)])
        messages = (await stream.stream_info("OBJ_used")).state.messages
        await connection.close()
        return after, messages

    assert asyncio.run(told()) == (0, 2)  # a chunk and its description


WIDE = 2000


def wide(*clients: int) -> Federation:
    rows = [(np.tile(data(client)[0], (1, WIDE)), data(client)[1]) for client in clients]
    return sj.federation(
        lambda x, batch: jnp.mean((batch[0] @ x - batch[1]) ** 2), np.zeros(3 * WIDE, "f"), rows, batch_size=4
    )


def test_parcels_of_tasks_that_wait_leave_each_other_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with several tasks has several parcels at the broker: none is taken for the rest of another."""
    for name, value in (("INLINE_BYTES", 1 << 10), ("_CHUNK_BYTES", 1 << 12)):
        monkeypatch.setattr(parcels, name, value)
    method, get = FedAsync(1e-5, 2, mixing=0.5), parcels.get

    async def late(stream: Any, bucket: str, *about: Any) -> Any:
        if bucket.startswith("up-"):
            await asyncio.sleep(0.05)  # so that the worker's next parcels are there before this one is read
        return await get(stream, bucket, *about)

    monkeypatch.setattr(parcels, "get", late)
    serving = home.server(60, method, wide(*range(4)), ahead=3)
    asyncio.run(together(home, serving, [home.worker(number, method, wide(number)) for number in range(4)]))
    assert serving.rejected == serving.book.given_up == 0 and serving.book.applied == 60


def test_parcels_that_no_message_speaks_of_are_taken_away_and_no_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of workers that were killed before they could send one, and found their task given up when they came back."""
    monkeypatch.setattr(parcels, "INLINE_BYTES", 1 << 10)
    serving, bucket = home.server(10, METHODS["fedasync"], wide(*range(4))), parcels.uploads_bucket("ada")
    (task,) = serving.book.assign([0], 0.0)
    wanted = parcels.upload_name(task.number)

    async def left(comes_anew: bool) -> list[str]:
        connection = await _at_the_broker(home)
        serving.stream = connection.jetstream()
        await streams.make_streams(serving.stream)
        await parcels.make_bucket(serving.stream, bucket, 5 << 20)
        for name in (wanted, "task-7", "task-8"):
            await parcels.put(serving.stream, bucket, name, [bytes(1000)])
        await serving.stream.publish(f"$O.{bucket}.C.{wanted}-begun", b"x")  # a writer is at work on it
        await serving.stream.publish(f"$O.{bucket}.M.x", b"x")  # no name that anybody could read
        if comes_anew:
            assert serving._greet(serving.workers["ada"], b'{"format": "%s", "samples": 20}' % FORMAT.encode()) == {}
            await serving._look_around()
        else:
            await serving._make_consumers()
        found = sorted(await parcels._subjects(serving.stream, bucket))
        await connection.close()
        return [subject.removeprefix(f"$O.{bucket}.") for subject in found]

    for comes_anew in (False, True):  # when a server starts, and when a worker comes anew
        *chunks, about = asyncio.run(left(comes_anew))
        assert len(chunks) == 2 and all(chunk.startswith(f"C.{wanted}-") for chunk in chunks)
        assert f"C.{wanted}-begun" in chunks
        assert parcels._names_among([f"$O.{bucket}.{about}"], bucket) == {wanted}


@pytest.mark.parametrize("grows", [True, False], ids=["a bucket that grows", "a bucket that stays small"])
def test_tasks_that_start_from_many_models_never_wait_for_each_other(
    home: Home, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:  # fmt: skip
    """The server that waits for room in the bucket is the one that makes it: it would wait for ever."""
    for name, value in (("INLINE_BYTES", 1 << 10), ("_CHUNK_BYTES", 1 << 12)):
        monkeypatch.setattr(parcels, name, value)
    method, size, make, made = FedAsync(1e-5, 2, mixing=0.5), 12 * WIDE, parcels.make_bucket, list[int]()

    async def small() -> None:
        connection = await _at_the_broker(home)
        await make(connection.jetstream(), parcels.MODELS, 3 * parcels.room_for(size))
        await connection.close()

    class Slow(Client):
        """So slow that the uploads come one by one, and each makes a model of its own."""

        def do(self, *task: Any) -> Any:
            time.sleep(0.05)
            return super().do(*task)

    async def kept(stream: Any, name: str, max_bytes: int) -> int:
        has = await make(stream, name, 1 if name == parcels.MODELS and not grows else max_bytes)
        made.extend([has] if name == parcels.MODELS else [])
        return has

    asyncio.run(small())
    monkeypatch.setattr(parcels, "make_bucket", kept)
    serving = home.server(60, method, wide(*range(4)), ahead=7)
    asyncio.run(together(home, serving, [home.worker(number, method, wide(number), Slow) for number in range(4)], 30.0))
    assert serving.book.applied == 60 and serving.rejected == serving.book.given_up == 0
    assert made == [(34 if grows else 3) * parcels.room_for(size)]  # of 8 tasks each, and two beside them


def test_a_first_task_that_is_too_large_by_what_its_memory_starts_from_travels_apart(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SCAFFOLD sends down is two models, which fit; with the start of a first task they are three."""
    monkeypatch.setattr(parcels, "INLINE_BYTES", 30 * WIDE)
    method, together_too_large = Scaffold(1e-5, 2), wide(*range(4))
    serving = home.server(2, method, together_too_large)
    asyncio.run(together(home, serving, [home.worker(number, method, wide(number)) for number in range(4)], 60.0))
    assert serving.book.done == 2 and difference(serving.book, together_too_large) < 1e-5


def test_a_broker_without_room_for_the_models_says_so(home: Home) -> None:
    async def ask() -> None:
        connection = await _at_the_broker(home)
        try:
            await parcels.make_bucket(connection.jetstream(), parcels.MODELS, 1 << 60)
        finally:
            await connection.close()

    with pytest.raises(SojournError, match=r"no 1152921504\.6 GB left .* lower deploy\.ahead"):
        asyncio.run(ask())


class KilledError(Exception):
    """A worker's process that ends here."""


@pytest.mark.parametrize("killed", ["worker", "broker"])
def test_a_kill_in_the_middle_of_a_parcel_costs_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:  # fmt: skip
    for name, value in (("INLINE_BYTES", 1 << 10), ("_CHUNK_BYTES", 1 << 12)):
        monkeypatch.setattr(parcels, name, value)
    monkeypatch.setattr(streams, "_AGAIN_AFTER", 2.0)
    cuts, write, method = list[str](), parcels._write, FedAsync(1e-5, 2, mixing=0.5)

    async def cut_once(stream: Any, bucket: str, name: str, content: Any) -> None:
        if bucket.startswith("up-") and len(cuts) == 0:
            cuts.append(bucket)
            for chunk in islice(parcels._chunks(content), 2):
                await stream.publish(f"$O.{bucket}.C.{name}-cutoff", chunk)
            if killed == "worker":
                raise KilledError
            assert home.broker.pid is not None
            os.kill(home.broker.pid, signal.SIGKILL)
            asyncio.get_running_loop().call_later(0.5, lambda: home.broker.running or home.broker.start())
        await write(stream, bucket, name, content)

    async def worker(number: int) -> int:
        try:
            return await home.worker(number, method, wide(number))
        except KilledError:
            return await home.worker(number, method, wide(number))

    async def left() -> list[int]:
        connection = await _at_the_broker(home)
        infos = [await connection.jetstream().stream_info(f"OBJ_up-{name}") for name in NAMES]
        await connection.close()
        return [info.state.messages for info in infos]

    monkeypatch.setattr(parcels, "_write", cut_once)
    serving = home.server(40, method, wide(*range(4)))
    asyncio.run(together(home, serving, [worker(number) for number in range(4)]))
    numbers = [row["number"] for row in read_log(serving.book.place) if row["event"] == APPLIED]
    assert cuts and len(numbers) == len(set(numbers)) == 40
    assert serving.rejected == serving.book.given_up == 0
    assert difference(serving.book, wide(*range(4))) < 1e-5
    assert max(asyncio.run(left())) <= 7  # one parcel that came too late: six chunks and what describes them


# --- many workers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_workers_stay_connected(tmp_path: Path, number: int) -> None:
    home = Home(tmp_path, [f"worker-{n}" for n in range(number)])
    alone, method = flat(10, 1), METHODS["fedasync"]
    try:
        serving = home.server(10 * number, method, flat(10, number))
        done = asyncio.run(
            together(home, serving, [home.worker(n, method, alone, Echo) for n in range(number)], seconds=240.0)
        )
    finally:
        home.broker.stop()
    assert serving.book.done == 10 * number and min(done) > 0
    assert serving.book.given_up == serving.rejected == 0
    assert serving.tally.duplicates < number  # at most one answer of each that came after the last one that counted


if __name__ == "__main__":
    where, broker, name, *numbers = sys.argv[1:]
    print(json.dumps(serve(Path(where), broker, name, *map(int, numbers))))
