"""A deployment as a history: the table and manifest that a simulated run leaves, made from the book and its log."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.book import APPLIED, HANDED_OUT, Book, read_log
from sojourn.engine.accounting import COLUMNS, gradients_of, one_memory, wire_of
from sojourn.history import History, environment


def history_of(book: Book, status: str, about: Mapping[str, Any], config: dict[str, Any] | None = None) -> History:
    """What a run has been so far; a row is a round, or an upload where they are applied one by one."""
    columns = ("done", "seconds", *COLUMNS, "local_steps", "calls_grad", "participants", "staleness")
    rows = {0: dict.fromkeys(columns, 0.0) | {"staleness": np.nan}}
    sizes, steps = _sizes(book)
    waiting = dict.fromkeys(("floats_down", "bytes_down"), 0.0)  # sent since the last row
    for entry in read_log(book.place):
        if entry["event"] == HANDED_OUT:
            wire = sizes[entry["exchange"]]
            waiting = {name: waiting[name] + getattr(wire, name) for name in waiting}
        elif entry["event"] == APPLIED:
            name = entry.get("exchange", "steady.0")
            number = entry["applied"] if isinstance(book, OneByOne) else min(entry["round"] + 1, book.of)
            row = rows.setdefault(number, dict.fromkeys(columns, 0.0))
            row["done"], row["seconds"] = number, entry["seconds"]
            row["participants"] += 1
            row["floats_up"] += sizes[name].floats_up
            row["bytes_up"] += sizes[name].bytes_up
            row["local_steps"] += steps[name]
            row["calls_grad"] += steps[name]
            row["staleness"] = float(entry["staleness"])
            for column, value in waiting.items():
                row[column] += value
            waiting = dict.fromkeys(waiting, 0.0)
    table = pd.DataFrame(list(rows.values()))
    measured = pd.DataFrame(book.metrics or [{"done": 0}]).drop(columns=["seconds"], errors="ignore")
    table = table.merge(measured, on="done", how="left").rename(columns={"done": "round"})
    table["seconds"] = table["seconds"].diff().fillna(0.0).clip(lower=0.0)
    whole = ("round", "participants", "local_steps", "calls_grad", *COLUMNS)
    table = table.astype(dict.fromkeys(whole, np.int64))
    table["diverged"] = (table["round"] == table["round"].max()) & book.diverged
    manifest = {
        **about, **environment(), "status": status, "rounds": int(table["round"].max()), "rounds_asked": book.of,
        "seconds": round(book.seconds, 4), "compile_seconds": 0.0, "federation": book.federation.name,
        "num_clients": book.num_clients, "cohort": getattr(book, "cohort", 1),
        "equal_weights": book.clients.weighs_equally(book.algorithm.weighting), "facts": {},
        "deployment": {"mode": book.unit, "tasks": book.next_task, "given_up": book.given_up, "applied": book.applied},
    }  # fmt: skip
    return History(table, manifest, label=about["label"], config=config)


def _sizes(book: Book) -> tuple[dict[str, Any], dict[str, int]]:
    """What one client's messages hold in every exchange, and how many gradients it computes."""
    server, memory = book.server, one_memory(book.algorithm, book.x0)
    wires, steps = {}, {}
    for name, exchange in book.trips.exchanges.items():
        wires[name] = wire_of(exchange, book.federation.clients, server, memory)
        steps[name] = gradients_of(exchange, book.federation.clients, server, memory) or 0
    return wires, steps
