"""Flower's deployment mode under load: a SuperLink, SuperNodes and an app that echoes, without encryption, on loopback.

The app is in `flower_echo`; the state is in a database file, as what sojourn counts is durable too. A message takes as
long as Flower takes to start a process for it. As many answers as there are nodes are the warm-up. Counted as the
server's are SuperLink and all that it starts, the ServerApp among them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def tree_seconds(root: int) -> float:
    """The processor time of a process and all below it."""
    parents, seconds = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            seconds[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below, before = {root}, 0
    while len(below) > before:
        before = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return sum(seconds.get(pid, 0.0) for pid in below)


def play(place: Path, num_bytes: int, workers: int, seconds: float) -> dict[str, float]:
    address, out = f"127.0.0.1:{free_port()}", place / "echo.json"
    (place / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "{address}"\ninsecure = true\n'
    )
    environment = {**os.environ, "FLWR_HOME": str(place), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"

    def start(*command: str) -> subprocess.Popen[bytes]:
        with open(place / f"{command[0]}.log", "ab") as log:
            return subprocess.Popen(
                [str(BIN / command[0]), *command[1:]], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    host, port = address.split(":")
    link = ["--host", host, "--port", port, "--database", str(place / "state.db")]
    processes = [start("flower-superlink", "--insecure", *link, "--disable-runtime-dependency-installation")]
    try:
        wait_for(host, int(port))
        processes += [
            start("flower-supernode", "--insecure", "--superlink", address, "--host", host, "--port", str(free_port()))
            for _ in range(workers)
        ]
        config = f'bytes={num_bytes} workers={workers} seconds={seconds} out="{out}"'
        run = ["flwr", "run", str(HERE / "flower_echo"), "bench", "--run-config", config]
        processes.append(start(*run))
        return measured(processes[0].pid, out, workers, seconds)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measured(server: int, out: Path, workers: int, seconds: float) -> dict[str, float]:
    """From the moment when as many answers are there as there are nodes."""
    until, since, cpu = time.monotonic() + seconds + 120, 0.0, 0.0
    while not out.with_suffix(".done").exists() and time.monotonic() < until:
        if not since and len(arrivals(out)) >= workers:
            since, cpu = time.monotonic(), tree_seconds(server)
        time.sleep(0.1)
    found = arrivals(out)
    if not since or len(found) <= workers:
        raise SystemExit(f"{len(found)} answers of {workers} nodes within {seconds:.0f} s of the ServerApp")
    window = time.monotonic() - since
    return {
        "updates_per_second": (len(found) - workers) / (found[-1] - found[workers - 1]),
        "server_cpu": max(0.0, tree_seconds(server) - cpu) / window,
    }


def arrivals(out: Path) -> list[float]:
    try:
        return list(json.loads(out.read_text()))
    except (OSError, ValueError):
        return []


def wait_for(host: str, port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.2)
    raise SystemExit("SuperLink did not come up within a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        print(json.dumps(play(Path(place), chosen.bytes, chosen.workers, chosen.seconds)))


if __name__ == "__main__":
    main()
