"""Shared by all tests: float64 on request, and small federations made of real arithmetic, no mocks."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.federation import Federation


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def programs_are_dropped() -> Iterator[None]:
    """A process can map so many pieces of memory (65,530 on Linux), and every compiled program takes some of them."""
    yield
    jax.clear_caches()


def random_quadratics(num_clients: int = 6, dimension: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Hessians with eigenvalues of at least one, and optima: strongly convex, heterogeneous in both."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(num_clients, dimension, dimension))
    hessians = factors @ np.swapaxes(factors, 1, 2) / dimension + np.eye(dimension)
    return hessians, rng.normal(size=(num_clients, dimension))


@pytest.fixture
def quadratics(x64: None) -> Federation:
    """Six noiseless quadratics in four dimensions, in float64."""
    return sj.problems.quadratic(*random_quadratics())


@pytest.fixture
def noisy_quadratics(x64: None) -> Federation:
    """The same with gradient noise of standard deviation 0.5."""
    return sj.problems.quadratic(*random_quadratics(), noise=0.5)
