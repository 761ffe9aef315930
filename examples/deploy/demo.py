"""A deployment on this machine, for real: one server and four workers as processes, a page, and two kills on the way.

Run by `make demo-deploy`. At the end the server's model is as good as the simulator's, and playing the server's log
again in the simulator gives the same model.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import rich
from private_data import CONFIG, NAMES

import sojourn as sj
from sojourn.config import build_algorithm, load_config
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.replay import difference
from sojourn.deploy.status import read_status, status_renderable
from sojourn.experiment import build_federation, run_config

HERE = Path(__file__).parent
SOJOURN = (sys.executable, "-c", "from sojourn.cli import main; main()")


def start(log: Path, *words: str) -> "subprocess.Popen[bytes]":
    with open(log, "ab") as stream:
        return subprocess.Popen([*SOJOURN, *words], cwd=HERE, stdout=stream, stderr=stream)


def wait_until(run: Path, done: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        with contextlib.suppress(OSError, ValueError, sj.SojournError):
            if read_status(run)["run"]["done"] >= done:
                return
        time.sleep(0.2)
    sys.exit(f"the server ended early with exit code {server.returncode}; see {run.parent}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-deploy"), help="a directory that is replaced")
    parser.add_argument("--port", type=int, default=4222, help="of the broker")
    parser.add_argument("--page-port", type=int, default=8080, help="of the status page")
    given = parser.parse_args()
    place = given.out.absolute()
    if place.exists() and not (place / "run" / "keys.json").exists():
        parser.error(f"{place} exists and is no deployment; give another --out")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    run = place / "run"
    serving = ["serve", str(CONFIG), "--out", str(run), "--listen", f"127.0.0.1:{given.port}", "--ui", "--ui-listen",
               f"127.0.0.1:{given.page_port}"]  # fmt: skip
    joining = lambda name: ["join", f"nats://127.0.0.1:{given.port}", "--creds", str(place / f"{name}.creds"),  # noqa: E731
                            "--data", "private_data:load"]  # fmt: skip
    for name in NAMES:
        subprocess.run([*SOJOURN, "invite", name, "--run", run, "--out", place / f"{name}.creds"], check=True, cwd=HERE)
    server = start(place / "server.txt", *serving)
    workers = {name: start(place / f"{name}.txt", *joining(name)) for name in NAMES}
    try:
        print(f"one server, four workers; the page: http://127.0.0.1:{given.page_port}/")
        wait_until(run, 60, server)
        rich.print(status_renderable(read_status(run)))
        print("killing dot …")
        workers["dot"].kill()
        wait_until(run, 200, server)
        print("killing the server …")
        server.kill()
        server.wait()
        print("starting both again …")
        server = start(place / "server.txt", *serving)
        workers["dot"] = start(place / "dot.txt", *joining("dot"))
        wait_until(run, 400, server)
        rich.print(status_renderable(read_status(run)))
        codes = {"server": server.wait(), **{name: worker.wait(60) for name, worker in workers.items()}}
        rich.print(status_renderable(read_status(run)))
    finally:
        for process in (server, *workers.values()):
            process.kill()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((run / "broker" / "broker.pid").read_text()), signal.SIGKILL)
    return judge(run, place, codes)


def judge(run: Path, place: Path, codes: dict[str, int]) -> int:
    """The deployment beside the simulator, and its log played again."""
    config = load_config(CONFIG)
    (simulated,) = run_config(config, place / "simulated", progress=False)
    deployed = json.loads((run / "manifest.json").read_text())
    accuracy = sj.load_history(run).last("test_accuracy")
    federation, method = build_federation(config), build_algorithm(config.algorithms[0])
    assert config.run.uploads is not None
    book = OneByOne(federation, method, run / "book", config.deploy, of=config.run.uploads, seed=config.run.seed)
    apart = difference(book, federation)
    print(f"test accuracy: deployed {accuracy:.1%}, simulated {simulated.last('test_accuracy'):.1%}")
    print(f"{book.applied} uploads, each applied once; {book.given_up} tasks given up; the log, played again by the")
    print(f"simulator, gives the same model: largest relative difference {apart:.1e}")
    print(f"exit codes: {codes}; report: {run / 'report.html'}")
    fine = deployed["status"] == "ok" and apart < 1e-4 and not any(codes.values())
    return 0 if fine and abs(accuracy - simulated.last("test_accuracy")) < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
