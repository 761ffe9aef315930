"""A deployment under load: workers that do nothing but answer what they were sent, so that only the way is measured.

The server is the true one with FedAsync (and FedAvg in rounds for the memory), its broker syncs every write, and an
upload is acknowledged once the model that contains it is on disk. Workers are true connections in up to four processes
of their own; their local work is left out. Counted are uploads that were applied in a window after the warm-up, the
processor time of server and broker in it, and the peak memory of the server beyond that with a model of one number.
Flower does the same echo in its deployment mode (`opponents/flower_load.py`). Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import environments
import sojourn as sj
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.broker import Broker, configuration
from sojourn.deploy.keys import Credentials, Ring
from sojourn.deploy.rounds import InRounds
from sojourn.deploy.rules import Rules
from sojourn.deploy.server import Server
from sojourn.deploy.worker import Client, Post, work

SIZES = {"10 kB": 10_000, "1 MB": 1_000_000, "50 MB": 50_000_000}
WORKERS, SECONDS, MAX_PROCESSES = (3, 20, 100), 6.0, 4
LARGE, FEW_AND_MANY = 200_000_000, (2, 6)
_PAYLOAD = 1 << 22
METHODS = {"fedasync": sj.algorithms.FedAsync(0.1, 1), "fedavg": sj.algorithms.FedAvg(0.1, 1)}


def federation(num_bytes: int, num_clients: int) -> sj.Federation:
    """A model of a size on as good as no data."""
    loss = lambda x, batch: jnp.mean(batch[0]) * jnp.sum(x**2)  # noqa: E731
    one = (np.ones((1, 1), np.float32), np.zeros(1, np.float32))
    return sj.federation(loss, np.ones(max(1, num_bytes // 4), np.float32), [one] * num_clients, batch_size=1)


class Idle(Client):
    """Answers at once with what it got."""

    def do(self, task: int, name: str, memory: int, key: np.ndarray, leaves: list[np.ndarray]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.trips.shapes[name][1]), leaves)


# --- the server's process --------------------------------------------------------------------------------------------


async def serve(place: Path, port: int, names: list[str], chosen: argparse.Namespace) -> dict[str, float]:
    method, ring = METHODS[chosen.method], Ring(place)
    kind = OneByOne if method.asynchronous else InRounds
    book = kind(federation(chosen.bytes, len(names)), method, place / "book", Rules(ahead=chosen.ahead), of=10**9)
    broker = Broker(place / "broker", "127.0.0.1", port)
    broker.configure(
        configuration("127.0.0.1", port, place / "store", ring.server.public, ring.workers, None, _PAYLOAD)
    )
    broker.start()
    try:
        await broker.wait_until_up()
        server = Server(book, ring.places, {})
        running = asyncio.create_task(server.run(f"nats://127.0.0.1:{port}", ring.server.seed))
        measuring = asyncio.create_task(measured(server, broker, chosen))
        await asyncio.wait([running, measuring], return_when=asyncio.FIRST_COMPLETED)
        server.stopping.set()
        await running
        return await measuring
    finally:
        broker.stop()


async def measured(server: Server, broker: Broker, chosen: argparse.Namespace) -> dict[str, float]:
    book, since = server.book, time.monotonic()
    while book.applied < 2 * book.num_clients or time.monotonic() - since < chosen.warm:
        await asyncio.sleep(0.05)
    applied, since, own, other = book.applied, time.monotonic(), time.process_time(), processor_time(broker.pid)
    while time.monotonic() - since < chosen.seconds or book.applied - applied < chosen.least:
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - since
    return {
        "updates_per_second": (book.applied - applied) / seconds,
        "server_cpu": (time.process_time() - own) / seconds,
        "broker_cpu": (processor_time(broker.pid) - other) / seconds,
        "peak": peak_memory(),
        "silent": sum(not worker.present(time.time()) for worker in server.workers.values()),
        "given_up": book.given_up,
    }


def processor_time(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


# --- the workers' processes ------------------------------------------------------------------------------------------


async def answer(place: Path, port: int, names: list[str], chosen: argparse.Namespace) -> None:
    alone = federation(chosen.bytes, 1)

    async def one(name: str) -> None:
        client = Idle(alone, METHODS[chosen.method], place / name)
        async with Post(f"nats://127.0.0.1:{port}", Credentials.load(place / f"{name}.creds"), None, 60.0) as post:
            await post.hello(samples=1)
            await work(post, client)

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*map(one, names))


# --- the whole -------------------------------------------------------------------------------------------------------


def play(num_bytes: int, workers: int, method: str = "fedasync", **more: float) -> dict[str, Any]:
    """One deployment in processes of its own; what its server measured, or the reason why there is nothing."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place, port, ring = Path(folder), free.getsockname()[1], Ring(Path(folder))
        free.close()
        names = [f"worker-{number}" for number in range(workers)]
        for name in names:
            ring.invite(name).save(place / f"{name}.creds")
        options = [f"--{name}={value}" for name, value in {"bytes": num_bytes, "method": method, **more}.items()]
        start = [sys.executable, __file__, "--place", folder, "--port", str(port), *options]
        server = subprocess.Popen(
            [*start, "--serve", *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes = min(workers, MAX_PROCESSES)
        helpers = [
            subprocess.Popen([*start, "--work", *names[first::processes]], stderr=subprocess.DEVNULL)
            for first in range(processes)
        ]
        try:
            out, complaint = server.communicate(timeout=420)
            return json.loads(out) if server.returncode == 0 else {"reason": complaint[-300:]}
        except subprocess.TimeoutExpired:
            return {"reason": "no answer within 7 minutes"}
        finally:
            for process in (server, *helpers):
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs="+", metavar="NAME", help="be the server of these workers")
    parser.add_argument("--work", nargs="+", metavar="NAME", help="be these workers")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--method", choices=METHODS, default="fedasync")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before the window")
    parser.add_argument("--ahead", type=int, default=0, help="tasks that wait with a worker")
    parser.add_argument("--least", type=int, default=4, help="uploads in the window")
    parser.add_argument(
        "--try", dest="trial", nargs=2, type=int, metavar=("BYTES", "WORKERS"), help="one deployment alone"
    )
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, help="these alone, and no memory; all if left out")
    chosen = parser.parse_args()
    if chosen.serve:
        print(json.dumps(asyncio.run(serve(chosen.place, chosen.port, chosen.serve, chosen))))
    elif chosen.work:
        asyncio.run(answer(chosen.place, chosen.port, chosen.work, chosen))
    elif chosen.trial:
        print(json.dumps(play(*chosen.trial, chosen.method, seconds=chosen.seconds, ahead=chosen.ahead)))
    else:
        found = {"rates": rates(chosen.passes, chosen.sizes or tuple(SIZES))}
        print(json.dumps(found if chosen.sizes else found | {"memory": memory()}))


def rates(passes: int, sizes: Iterable[str]) -> list[dict[str, Any]]:
    """Every size with every number of workers, ours and Flower's in turn; medians over the passes."""
    jobs = [(size, workers) for size in sizes for workers in WORKERS]
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for _ in range(passes):
        for size, workers in jobs:
            for who, measure in CONTENDERS.items():
                runs.setdefault((size, workers, who), []).append(measure(SIZES[size], workers))
    return [{"size": s, "workers": w, "who": who, **median(answers)} for (s, w, who), answers in runs.items()]


def median(answers: list[dict[str, Any]]) -> dict[str, Any]:
    good = [answer for answer in answers if "reason" not in answer]
    if not good:
        return answers[-1]
    load = os.getloadavg()[1]  # others on the machine, and ourselves
    return {name: statistics.median(answer[name] for answer in good) for name in good[0]} | {"load": load}


def flower(num_bytes: int, workers: int) -> dict[str, Any]:
    """The same echo by Flower; a node is three Python processes, so not more are asked for than two cores can start."""
    if workers > WORKERS[1]:
        return {"reason": f"not tried, as {workers} nodes are {3 * workers} Python processes"}
    environment = environments.ensure("flower_load")
    if environment.python is None:
        return {"reason": environment.reason}
    script = environments.OPPONENTS / "flower_load.py"
    seconds = 60 if workers <= WORKERS[0] else 150  # all nodes have to start, one after the other
    command = [str(environment.python), str(script), "--bytes", str(num_bytes), "--workers", str(workers)]
    command += ["--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"reason": done.stderr.strip()[-200:]}


CONTENDERS = {
    "sojourn": play,
    "sojourn, a task ahead": functools.partial(play, ahead=1),  # one waits with every worker while another is done
    "Flower 1.41": flower,
}


def memory() -> dict[str, dict[str, float]]:
    """The server's peak beyond that of a model of one number, in models of 200 MB, by method and number of workers."""
    toy = play(4, FEW_AND_MANY[0], seconds=1)["peak"]
    found = {
        method: {str(n): play(LARGE, n, method, seconds=1) for n in FEW_AND_MANY} for method in METHODS
    }  # fmt: skip
    return {m: {n: (of["peak"] - toy) / LARGE for n, of in by.items() if "peak" in of} for m, by in found.items()}


if __name__ == "__main__":
    main()
