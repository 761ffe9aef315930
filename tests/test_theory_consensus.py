"""Consensus bounds against exact moments on a thousand federations each; the printed logarithms fail."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from local_sgd_moments import Moments, above, count, families
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory import consensus as theory

ZETA = ("step_size", "smoothness", "gradient_heterogeneity", "noise", "num_clients")
COUPLED = (
    "step_size", "smoothness", "strong_convexity", "hessian_heterogeneity", "optima_heterogeneity", "optima_distance",
    "noise", "num_clients",
)  # fmt: skip
SATURATED = tuple(name for name in COUPLED if name != "hessian_heterogeneity")


def violations(
    family: list[Moments], left: str, bound: Callable[[Moments, dict[str, Any]], np.ndarray], names: tuple[str, ...],
    **other: float | None,
) -> int:  # fmt: skip
    """How often a moment is above its bound, with some constants replaced."""
    # The distance from the mean is a difference of moments of the size of the clients' own.
    size = "client4" if left.endswith("4") else "client_sq"
    return sum(above(getattr(m, left), bound(m, m.of(*names) | other), getattr(m, size).max(-1)) for m in family)


def with_k(function: Callable[..., Any]) -> Callable[[Moments, dict[str, Any]], np.ndarray]:
    return lambda m, numbers: function(num_local_steps=m.num_local_steps, **numbers)


def test_bounds_by_the_difference_of_gradients() -> None:
    """Equal Hessians, and functions whose gradients differ by a bounded amount although their Hessians do too."""
    family = families(0.5, equal_hessians=True)
    assert min(count(families(0.5, True, True)), count(families(0.5, True, False))) >= 1000
    assert any((m.facts["hessian_heterogeneity"] > 0).any() for m in family)
    fourth = (*ZETA, "noise4")
    for left, function, names in (
        ("centred_sq", theory.equation_5_1, ZETA),
        ("consensus_sq", theory.lemma_29, ZETA),
        ("consensus4", theory.lemma_30, fourth),
        ("centred4", theory.lemma_30, fourth),
    ):
        assert violations(family, left, with_k(function), names) == 0, left
        assert violations(family, left, with_k(function), names, gradient_heterogeneity=0.0) > 100, left
        off = {name: 0.0 for name in names if name.startswith("noise")}
        assert violations(family, left, with_k(function), names, **off) > 100, left
        # The number of clients only helps: a client is at no distance from itself.
        assert violations(family, left, with_k(function), names, num_clients=None) == 0, left


def coupled(function: Callable[..., Any], *starts: str) -> Callable[[Moments, dict[str, Any]], np.ndarray]:
    """A bound in the moments at the last communication; the arguments beyond that which the function takes."""

    def bound(m: Moments, numbers: dict[str, Any]) -> np.ndarray:
        given = {name: getattr(m, name)[m.last_communication] for name in starts}
        if function not in (theory.lemma_34_coarse, theory.lemma_35_coarse):
            given["steps_since"] = m.steps_since
        if function not in (theory.lemma_34, theory.lemma_36, theory.lemma_36_fourth):
            given["num_local_steps"] = m.num_local_steps
        return function(**given, **numbers)

    return bound


def printed_34(m: Moments, numbers: dict[str, Any]) -> np.ndarray:
    """Lemma 34 with n ln n."""
    n, eta_sigma = m.steps_since, numbers["step_size"] * numbers["noise"]
    right = coupled(theory.lemma_34, "distance_sq")(m, numbers)
    return right - 2 * eta_sigma**2 * n * (1 - 1 / numbers["num_clients"])


def test_coupled_second_moment() -> None:
    family = families()
    assert min(count(families(quadratic=True)), count(families(quadratic=False))) >= 1000
    for left, function in (
        ("consensus_sq", theory.lemma_34),
        ("consensus_sq", theory.lemma_34_coarse),
        ("centred_sq", theory.lemma_6),
    ):
        bound = coupled(function, "distance_sq")
        assert violations(family, left, bound, COUPLED) == 0, function.__name__
        assert violations(family, left, bound, COUPLED, num_clients=None) == 0, function.__name__
        for off in ("noise", "optima_heterogeneity", "hessian_heterogeneity"):
            assert violations(family, left, bound, COUPLED, **{off: 0.0}) > 50, (function.__name__, off)


def test_the_printed_logarithm_of_lemma_34_fails_after_one_step() -> None:
    family = families()
    assert violations(family, "consensus_sq", printed_34, COUPLED) > 100
    # One step with noise alone: C(1) = 2 eta^2 sigma^2 (1 - 1/M) exactly, where the print says 0.
    numbers = {
        "distance_sq": 0.0, "step_size": 0.1, "smoothness": 1.0, "strong_convexity": 1.0, "hessian_heterogeneity": 0.0,
        "optima_heterogeneity": 0.0, "optima_distance": 0.0, "noise": 3.0, "num_clients": 4,
    }  # fmt: skip
    assert theory.lemma_34(steps_since=1, **numbers) == pytest.approx(2 * 0.01 * 9 * 0.75, rel=1e-12)


def test_the_distance_at_the_last_communication_matters() -> None:
    """Without A(delta) and phi_* the bounds fail."""
    family = families()
    nowhere = coupled(theory.lemma_34)
    assert violations(family, "consensus_sq", nowhere, COUPLED, distance_sq=0.0) > 10
    assert violations(family, "consensus_sq", nowhere, COUPLED, distance_sq=0.0, optima_distance=0.0) > 50


FOURTH = (*COUPLED, "noise4")


def test_coupled_fourth_moment() -> None:
    family = families()
    for function in (theory.lemma_35, theory.lemma_35_coarse):
        bound = coupled(function, "distance_sq", "distance4")
        assert violations(family, "consensus4", bound, FOURTH) == 0
        assert violations(family, "consensus4", bound, FOURTH, num_clients=None) == 0
        assert violations(family, "consensus4", bound, FOURTH, noise=0.0, noise4=0.0) > 100
        assert violations(family, "consensus4", bound, FOURTH, optima_heterogeneity=0.0) > 0
        assert violations(family, "consensus4", bound, FOURTH, hessian_heterogeneity=0.0) > 0


def test_the_lost_factor_of_lemma_35() -> None:
    """The sum that the proof takes to be below 2 has lost a factor j: it grows like ln n, and passes 2 at n = 20."""
    steps = np.arange(1, 2001)
    with_j = np.cumsum((steps - 1) / steps**2)
    assert (with_j <= np.log(steps) + 1e-12).all()
    assert steps[with_j > 2][0] == 20
    assert with_j[-1] > 6


def round_sums(m: Moments, moment: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The start of each round, and sum_j (1 - eta mu)^(Kr-1-j) moment(j)."""
    K, kept = m.num_local_steps, 1 - m.facts["step_size"] * m.facts["strong_convexity"]
    weights = kept ** (K - 1 - np.arange(K))[:, None]
    return [(K * r, (weights * moment[K * r : K * (r + 1)]).sum(0)) for r in range(m.rounds)]


def printed_35_round(m: Moments, start: int) -> np.ndarray:
    """With the last bracket multiplied to the term before it, and the print's logarithms."""
    eta, H, mu, tau, zeta, phi, sigma, _, sigma4 = (m.facts[name] for name in FOURTH)
    K, kept, A, B = m.num_local_steps, 1 - eta * mu, m.distance_sq[start], m.distance4[start]
    bracket = (
        8 * eta**2 * K**3 * (H * zeta) ** 4 / mu**2 + 88 * eta**4 * K**3 * (tau * sigma4) ** 4 / mu**4
        + 160 * eta**3 * K**4 * (sigma * H * zeta) ** 2 / mu + 160 * eta**4 * tau**2 * K**4 * sigma**4 / mu**2
        + 112 * eta**3 * K**3 * sigma4**4 * np.log(K) / mu
    )  # fmt: skip
    first = 128 * eta**4 * K**4 * tau**4 * sigma**2 / mu**2 + 320 * eta**3 * K**3 * (sigma * tau) ** 2 / mu
    second = 64 * eta**3 * K**4 * tau**4 / mu * kept ** (K - 5) * (B + phi**4)
    return (1 - kept**K) * (first * kept ** (K - 3) * (A + phi**2) + second * bracket)


def test_round_sums() -> None:
    wrong = printed = silent = 0
    for m in families():
        K = m.num_local_steps
        for start, total in round_sums(m, m.consensus_sq):
            numbers = m.of(*COUPLED) | {"distance_sq": m.distance_sq[start], "num_local_steps": K}
            wrong += above(total, theory.lemma_34_round(**numbers))
            silent += above(total, theory.lemma_34_round(**(numbers | {"noise": 0.0})))
        for start, total in round_sums(m, m.consensus4):
            numbers = m.of(*FOURTH) | {"distance_sq": m.distance_sq[start], "distance4": m.distance4[start]}
            wrong += above(total, theory.lemma_35_round(num_local_steps=K, **numbers))
            printed += above(total, printed_35_round(m, start))
    assert wrong == 0
    assert silent > 100
    assert printed > 100


def test_consensus_error_saturates() -> None:
    family = families()
    second = coupled(theory.lemma_36, "distance_sq")
    fourth = coupled(theory.lemma_36_fourth, "distance4")
    names4 = (*(name for name in SATURATED if name != "noise"), "noise4")
    assert violations(family, "consensus_sq", second, SATURATED) == 0
    assert violations(family, "consensus4", fourth, names4) == 0
    for off in ({"noise": 0.0}, {"optima_heterogeneity": 0.0, "optima_distance": 0.0}):
        assert violations(family, "consensus_sq", second, SATURATED, **off) > 10, off
    for off in ({"noise4": 0.0}, {"optima_heterogeneity": 0.0, "optima_distance": 0.0}):
        assert violations(family, "consensus4", fourth, names4, **off) > 10, off


def test_saturation_is_what_lemma_36_says_and_lemma_34_does_not() -> None:
    numbers = {
        "distance_sq": 1.0, "step_size": 0.5, "smoothness": 1.0, "strong_convexity": 0.5, "optima_heterogeneity": 0.2,
        "optima_distance": 0.1, "noise": 0.3,
    }  # fmt: skip
    steps = np.array([1e3, 1e4])
    limit = 6 * 0.5 * 0.09 / 0.5 + 3 * 0.04
    np.testing.assert_allclose(theory.lemma_36(steps_since=steps, **numbers), limit, rtol=1e-12)
    growing = theory.lemma_34(steps_since=steps, hessian_heterogeneity=0.1, **numbers)
    assert growing[1] > 50 * growing[0]


def test_clients_that_cannot_part_do_not() -> None:
    """M = 1, K = 1, no time since the last communication, or nothing to drive clients apart: 0, and never NaN."""
    numbers = {
        "step_size": 0.1, "smoothness": 2.0, "strong_convexity": 0.5, "hessian_heterogeneity": 0.3,
        "optima_heterogeneity": 0.7, "optima_distance": 0.4, "noise": 1.0, "noise4": 1.2, "distance_sq": 2.0,
        "distance4": 5.0,
    }  # fmt: skip
    second = {name: value for name, value in numbers.items() if name not in ("noise4", "distance4")}
    zeta = {"step_size": 0.1, "smoothness": 2.0, "gradient_heterogeneity": 0.7, "noise": 1.0}
    assert theory.lemma_34(steps_since=0, **second) == theory.lemma_35(steps_since=0, num_local_steps=4, **numbers) == 0
    assert (
        theory.lemma_34_coarse(num_local_steps=1, **second) == theory.lemma_34_round(num_local_steps=1, **second) == 0
    )
    assert theory.lemma_35_coarse(num_local_steps=1, **numbers) == 0
    assert theory.lemma_35_round(num_local_steps=1, **numbers) == 0
    assert theory.lemma_6(num_local_steps=1, steps_since=0, **second) == 0
    assert theory.lemma_29(num_local_steps=1, **zeta) == theory.equation_5_1(num_local_steps=1, **zeta) == 0
    assert theory.lemma_30(num_local_steps=1, noise4=1.2, **zeta) == 0
    one = {"num_clients": 1, "optima_heterogeneity": 0.0, "optima_distance": 0.0}
    assert theory.lemma_34(steps_since=3, **(second | one)) == 0
    assert theory.lemma_35(steps_since=3, num_local_steps=4, **(numbers | one)) == 0
    assert theory.lemma_29(num_local_steps=4, num_clients=1, **zeta) == 0
    saturated = {name: value for name, value in second.items() if name != "hessian_heterogeneity"}
    assert theory.lemma_36(steps_since=3, **(saturated | one)) == 0
    alike = {"noise": 0.0, "optima_heterogeneity": 0.0, "hessian_heterogeneity": 0.0}
    assert theory.lemma_34(steps_since=3, **(second | alike)) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_size": 0.5}, "Lemma 34 needs step_size < 1 / smoothness; got step_size = 0.5, smoothness = 2"),
        ({"strong_convexity": 0.0}, "Lemma 34 needs strong_convexity > 0"),
        ({"steps_since": -1}, "steps_since = -1 is out of range"),
        ({"num_clients": 0}, "num_clients = 0 is out of range; expected at least 1"),
    ],
)
def test_bad_input(change: dict[str, float], words: str) -> None:
    facts = Facts(
        smoothness=2.0, strong_convexity=0.5, hessian_heterogeneity=0.1, optima_heterogeneity=0.2, optima_distance=0.1,
        noise=1.0, num_clients=3,
    )  # fmt: skip
    numbers: dict[str, Any] = {"step_size": 0.1, "steps_since": 2, "distance_sq": 1.0}
    assert np.isfinite(theory.lemma_34(facts, **numbers))
    with pytest.raises(SojournError, match=words):
        theory.lemma_34(facts, **(numbers | change))


def test_too_large_a_step_or_a_missing_fact() -> None:
    facts = Facts(smoothness=2.0, noise=1.0, num_clients=3)
    with pytest.raises(
        SojournError, match=r"\(D.2\) needs gradient_heterogeneity \(zeta\), which this federation does"
    ):
        theory.lemma_29(facts, step_size=0.1, num_local_steps=4)
    with pytest.raises(SojournError, match=r"needs step_size <= 1 / \(2 \* smoothness\); got step_size = 0.3"):
        theory.lemma_29(facts, step_size=0.3, num_local_steps=4, gradient_heterogeneity=1.0)
