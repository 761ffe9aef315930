"""Worker processes give the numbers of the compiled engine, survive a kill, and leave nothing behind."""

import functools
import os

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import LocalSGD, Scaffold
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation

from sojourn.engine import Auto, Compiled, Processes, choice, processes
from sojourn.engine.rounds import Plan
from test_contract import IN_ROUNDS, make, quick_compilation
from test_parity import assert_same_state, assert_same_table, play

run = functools.partial(sj.run, progress=False)
TWO = Processes(workers=2)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module", autouse=True)
def workers_go() -> Iterator[None]:
    yield
    TWO.close()
    while processes._idle:
        processes._idle.pop().dismiss()


def crew() -> list[int]:
    """The process numbers of the workers of the run under way, or of those that wait."""
    session = TWO._kept.get("session")
    workers = processes._idle if session is None else session.team._crew  # type: ignore[attr-defined]
    return [worker.process.pid for worker in workers]


def noisy(num_clients: int = 5) -> Federation:
    weights = np.arange(1, num_clients + 1)
    return sj.problems.quadratic(*random_quadratics(num_clients, 3), noise=0.5, weights=weights)


def assert_same_run(found: sj.History, expected: sj.History) -> None:
    assert_same_table(found.frame(), expected.frame())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), found.params, expected.params)


@IN_ROUNDS
def test_worker_processes_give_the_numbers_of_the_compiled_engine(name: str, x64: None) -> None:
    """Noise, unequal weights, and a cohort of three for two workers where the method allows one."""
    federation, algorithm = noisy(), make(name)
    participation = None if algorithm.needs_everyone() else 3
    expected, expected_table = play(federation, algorithm, "compiled", participation=participation)
    found, found_table = play(federation, algorithm, TWO, participation=participation)
    assert_same_state(found, expected)
    assert_same_table(found_table, expected_table)
