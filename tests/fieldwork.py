"""A deployment of real processes for tests: one server, four workers, and somebody who kills them."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from sojourn.config import load_config
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.book import APPLIED, Book, read_log
from sojourn.deploy.invitations import invite
from sojourn.deploy.replay import difference
from sojourn.deploy.rounds import InRounds
from sojourn.experiment import build_federation
from sojourn.parts import build_algorithm

EXAMPLES = Path(__file__).parent.parent / "examples" / "deploy"
NAMES = ("ada", "ben", "cleo", "dot")
COMMAND = (sys.executable, "-c", "from sojourn.cli import main; main()")


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class Fieldwork:
    """The processes of a run, by name; any of them can be killed and started again."""

    def __init__(
        self, place: Path, changes: Sequence[str] = (), config: Path = EXAMPLES / "digits.toml", tls: bool = False
    ) -> None:
        self.url = "tls://127.0.0.1" if tls else "nats://127.0.0.1"
        self.host = "0.0.0.0" if tls else "127.0.0.1"
        self.place, self.run, self.port, self.changes, self.config = place, place / "run", free_port(), changes, config
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, "PYTHONWARNINGS": "default", "JAX_PLATFORMS": "cpu"}
        for name in NAMES:
            invite(name, self.run, place / f"{name}.creds")

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *words],
            cwd=EXAMPLES,
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def start(self, name: str) -> None:
        if name == "server":
            changes = [word for change in self.changes for word in ("--set", change)]
            words = [
                "serve",
                str(self.config),
                "--out",
                str(self.run),
                "--listen",
                f"{self.host}:{self.port}",
                *changes,
            ]
        else:
            creds = str(self.place / f"{name}.creds")
            words = ["join", f"{self.url}:{self.port}", "--creds", creds, "--data", "private_data:load"]
        with open(self.place / f"{name}.txt", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*COMMAND, *words], cwd=EXAMPLES, env=self.environment, stdout=log, stderr=log
            )

    def start_all(self) -> None:
        for name in ("server", *NAMES):
            self.start(name)

    def kill(self, name: str) -> None:
        """At once, without a chance to say anything."""
        if name == "broker":
            try:
                os.kill(int((self.run / "broker" / "broker.pid").read_text()), signal.SIGKILL)
            except (OSError, ValueError):
                return
        else:
            self.processes[name].kill()
            self.processes[name].wait()

    def torment(self, seconds: float, seed: int, told: Any = lambda text: None) -> dict[str, int]:
        """Kills one after another and starts it again (the server starts its broker itself); how often whom.

        Mostly it waits until the run has gone on before the next kill, and sometimes it does not.
        """
        rng, until = random.Random(seed), time.monotonic() + seconds
        killed = dict.fromkeys(("server", "broker", *NAMES), 0)
        while time.monotonic() < until:
            time.sleep(rng.uniform(0.0, 2.0))
            victim = rng.choice(("server", "broker", rng.choice(NAMES)))
            self.kill(victim)
            killed[victim] += 1
            told(f"{victim} killed; {self.status()}")
            time.sleep(rng.choice((0.0, 0.0, 2.0)))
            if victim != "broker":
                self.start(victim)
            if rng.random() < 0.8:
                self.wait_for(self.done() + 1, 120.0)
        return killed

    def status(self) -> str:
        try:
            run = json.loads((self.run / "status.json").read_text())["run"]
        except (OSError, ValueError):
            return "nothing yet"
        return f"{run['done']} of {run['of']} {run['unit']}, {run['phase']}"

    def applied(self) -> dict[str, int]:
        """How many uploads of every worker are in the model."""
        return {
            worker["name"]: worker["applied"]
            for worker in json.loads((self.run / "status.json").read_text())["workers"]
        }

    def wait_for_everyone(self, seconds: float) -> None:
        """Until an upload of every worker has come in anew: nobody waits for what was lost."""
        before, until = self.applied(), time.monotonic() + seconds
        while any(self.applied()[name] <= number for name, number in before.items()):
            if time.monotonic() > until:
                raise AssertionError(f"{before} and then {self.applied()}: {self.status()}\n{self.logs()}")
            time.sleep(0.5)

    def done(self) -> int:
        try:
            return int(json.loads((self.run / "status.json").read_text())["run"]["done"])
        except (OSError, ValueError):
            return 0

    def wait_for(self, done: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.done() < done:
            if time.monotonic() > until or self.processes["server"].poll() is not None:
                raise AssertionError(f"{self.status()}\n{self.logs()}")
            time.sleep(0.2)

    def wait_for_status(self, words: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while words not in self.status():
            if time.monotonic() > until or self.processes["server"].poll() is not None:
                raise AssertionError(f"{self.status()}\n{self.logs()}")
            time.sleep(0.1)

    def end(self, name: str, seconds: float = 60.0) -> int:
        """Asks one to stop, as Ctrl-C does; its exit code."""
        self.processes[name].send_signal(signal.SIGINT)
        return self.processes[name].wait(seconds)

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.place.glob("*.txt")))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.kill("broker")

    # --- the audit -----------------------------------------------------------------------------------------------

    def book(self) -> tuple[Book, Any]:
        """What the server left, and the federation of all clients' data."""
        config = load_config(self.config, self.changes)
        federation, method = build_federation(config), build_algorithm(config.algorithms[0])
        if method.asynchronous:
            return OneByOne(
                federation, method, self.run / "book", config.deploy, of=config.run.uploads or 0, seed=config.run.seed
            ), federation
        book = InRounds(
            federation, method, self.run / "book", config.deploy, of=config.run.rounds, seed=config.run.seed
        )
        return book, federation

    def audit(self) -> tuple[Book, float]:
        """Every upload counted once, and how far the simulator's model is from the server's."""
        with jax.enable_x64(load_config(self.config, self.changes).run.precision == "float64"):
            book, federation = self.book()
            applied = [row["number"] for row in read_log(book.place) if row["event"] == APPLIED]
            assert len(applied) == len(set(applied)) == book.applied, "an upload was lost or counted twice"
            return book, difference(book, federation)
