"""Makes one virtual environment per opponent, so that their pins never meet.

`python benchmarks/environments.py` makes all of them; `... fedjax_sim` only that one.
An opponent that needs no environment of its own has no requirements file and runs in the caller's.
A failure is a value with its reason: a benchmark without one opponent is still a benchmark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPPONENTS = HERE / "opponents"
ENVIRONMENTS = HERE / ".envs"
STAMP = "requirements.sha256"
# Tried in this order after the running interpreter: the older opponents have no wheels for the newest Pythons.
FALLBACKS = ("python3.11", "python3.12", "python3.10")


@dataclass(frozen=True)
class Environment:
    """Where an opponent runs. `python` is None exactly when `reason` says why there is none."""

    name: str
    python: Path | None
    reason: str | None = None


def opponents() -> list[str]:
    return sorted(path.stem for path in OPPONENTS.glob("*.py"))


def ensure(name: str) -> Environment:
    """The environment of one opponent, made if it is missing or its requirements have changed."""
    if not (OPPONENTS / f"{name}.py").exists():
        return Environment(name, None, f"no opponent named {name!r}; known: {', '.join(opponents())}")
    requirements = OPPONENTS / f"{name}.txt"
    if not requirements.exists():
        return Environment(name, Path(sys.executable))
    folder = ENVIRONMENTS / name
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted and _python_of(folder).exists():
        return Environment(name, _python_of(folder))
    reasons = []
    for interpreter in _interpreters():
        reason = _build(folder, interpreter, requirements)
        if reason is None:
            stamp.write_text(wanted)
            return Environment(name, _python_of(folder))
        reasons.append(f"{Path(interpreter).name}: {reason}")
    shutil.rmtree(folder, ignore_errors=True)
    return Environment(name, None, " | ".join(reasons))


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _interpreters() -> list[str]:
    running = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [shutil.which(name) for name in FALLBACKS if name != running]
    return [sys.executable, *(path for path in found if path)]


def _build(folder: Path, interpreter: str, requirements: Path) -> str | None:
    """None when the environment stands, else the reason why not."""
    make = _run([interpreter, "-m", "venv", "--clear", str(folder)])
    if make is not None:
        return f"venv failed: {make}"
    install = _run([str(_python_of(folder)), "-m", "pip", "install", "--quiet", "-r", str(requirements)])
    return None if install is None else f"pip failed: {install}"


def _run(command: list[str], seconds: float = 1800.0) -> str | None:
    """None on success, else the last lines of what the command complained about."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    complaints = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    return " ".join(complaints[-3:]) or f"exit code {done.returncode}"


def main() -> None:
    for name in sys.argv[1:] or opponents():
        environment = ensure(name)
        print(f"{name}: {environment.python or 'NOT AVAILABLE: ' + str(environment.reason)}", flush=True)


if __name__ == "__main__":
    main()
