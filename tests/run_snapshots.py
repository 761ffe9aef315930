"""Snapshots of a run as a server gives them, for tests of what is shown of them."""

import math
from typing import Any

NOW = 1_700_000_000.0
HOSTILE = '<img src=x onerror="alert(1)">[red]\x1b[2J\u202e</script>'


def worker(name: str, client: int, state: str = "working", **changed: Any) -> dict[str, Any]:
    usual = {
        "name": name, "client": client, "state": state, "task": 17 + client if state == "working" else None,
        "since": NOW - 12, "seen": NOW - 1, "applied": 31, "rejected": 0, "last": "applied", "staleness": 2,
    }  # fmt: skip
    return usual | changed


def snapshot(done: int = 120, **changed: Any) -> dict[str, Any]:
    """Four workers, each in a state of its own, after `done` of 600 uploads."""
    run = {
        "label": "fedasync", "algorithm": "FedAsync", "mode": "asynchronous", "status": "running", "done": done,
        "of": 600, "unit": "uploads", "version": done, "started": NOW - 300, "now": NOW, "phase": "two are at work",
    }  # fmt: skip
    metrics = [
        {"done": at, "seconds": 2.5 * at, "loss": 0.25 + 2 * math.exp(-at / 35), "test_accuracy": at / 1000}
        for at in range(0, done + 1, 10)
    ]
    workers = [
        worker("ada", 0), worker("ben", 1, "silent", seen=NOW - 240, rejected=1),
        worker("cleo", 2, "quarantined", rejected=3, last="rejected: its task is no number"),
        worker("dot", 3, "expected", since=None, seen=None, applied=0, last="", staleness=None),
    ]  # fmt: skip
    made = {
        "format": 1, "run": run, "metrics": metrics, "workers": workers, "staleness": [[0, 40], [1, 60], [4, 20]],
        "throughput": [[0.0, 0.5], [150.0, 0.4], [300.0, 0.25]], "queue": 3, "rejected": 4, "duplicates": 5,
        "given_up": 6, "privacy": None,
    }  # fmt: skip
    of_run = {key: changed.pop(key) for key in list(changed) if key in run}
    return made | {"run": run | of_run} | changed
