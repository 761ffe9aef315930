"""The recursion calculator against exact moments, and against its two lemmas retyped step by step."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from local_sgd_moments import Moments, above, count, families
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.quadratic_facts import quadratic_facts
from sojourn.theory import recursion as theory
from sojourn.theory.identities import local_sgd_moments
from sojourn.theory.statement import STATEMENTS

NAMES = (
    "step_size", "smoothness", "strong_convexity", "hessian_heterogeneity", "optima_heterogeneity", "optima_distance",
    "noise", "num_clients", "start_distance",
)  # fmt: skip
RUN: dict[str, Any] = {
    "step_size": 0.1, "smoothness": 2.0, "strong_convexity": 0.5, "hessian_heterogeneity": 0.3,
    "optima_heterogeneity": 0.7, "optima_distance": 0.4, "noise": 1.0, "num_clients": 4, "start_distance": 3.0,
    "num_local_steps": 6, "rounds": 5,
}  # fmt: skip


def distance(m: Moments, rounds: int, quadratic: bool, **other: float) -> np.ndarray:
    numbers = m.of(*NAMES) | {"num_local_steps": m.num_local_steps, "rounds": rounds} | other
    return theory.recursion_distance(**numbers, quadratic=quadratic)


def violations(family: list[Moments], quadratic: bool, **other: float) -> int:
    return sum(
        above(m.distance_sq[m.num_local_steps * r], distance(m, r, quadratic, **other))
        for m in family
        for r in range(m.rounds + 1)
    )


def test_distance_stays_below_the_recursion() -> None:
    assert min(count(families(quadratic=True)), count(families(quadratic=False))) >= 1000
    assert violations(families(), quadratic=False) == 0
    assert violations(families(quadratic=True), quadratic=True) == 0
    for m in families(quadratic=True):
        numbers = m.of(*NAMES) | {"num_local_steps": m.num_local_steps, "rounds": m.rounds}
        np.testing.assert_array_equal(theory.recursion_distance_quadratic(**numbers), distance(m, m.rounds, True))
        assert above(distance(m, m.rounds, True), distance(m, m.rounds, False)) == 0


def test_every_term_of_the_recursion_is_needed() -> None:
    quadratic = families(quadratic=True)
    assert violations(quadratic, True, noise=0.0) > 100
    assert violations(quadratic, True, hessian_heterogeneity=0.0) > 50
    assert violations(quadratic, True, start_distance=0.0) > 100
    assert violations(quadratic, True, optima_heterogeneity=0.0, optima_distance=0.0) > 10
    # The quadratic form is not for other functions: their Hessians' change makes a drift of its own.
    alike = [m for m in families(quadratic=False) if m.num_local_steps > 1 and m.facts["num_clients"][0] > 1]
    assert violations(alike, True, hessian_heterogeneity=0.0) > 0


def weighted(m: Moments) -> np.ndarray:
    """The mean of E(t) with the weights of output = "exp"."""
    T = m.num_local_steps * m.rounds
    weights = (1 - m.facts["step_size"] * m.facts["strong_convexity"] / 2) ** (T - 1 - np.arange(T))[:, None]
    return (weights * m.suboptimality[:T]).sum(0) / weights.sum(0)


def value(m: Moments, quadratic: bool, **other: float) -> np.ndarray:
    numbers = m.of(*NAMES) | {"num_local_steps": m.num_local_steps, "rounds": m.rounds} | other
    function = theory.recursion_suboptimality_quadratic if quadratic else theory.recursion_suboptimality
    return function(**numbers)


def test_suboptimality_stays_below_the_recursion() -> None:
    """Even the mean of the suboptimalities; that of the mean iterate is below it, as F is convex."""
    quadratic, slow = families(0.5, quadratic=True), families(0.0999)
    assert min(count(quadratic), count(families(0.0999, quadratic=False))) >= 1000
    assert sum(above(weighted(m), value(m, True)) for m in quadratic) == 0
    assert sum(above(weighted(m), value(m, False)) for m in slow) == 0
    assert sum(above(weighted(m), value(m, True, start_distance=0.0)) for m in quadratic) > 100
    assert sum(above(weighted(m), value(m, False, start_distance=0.0)) for m in slow) > 100
    assert sum(above(weighted(m), value(m, True, noise=0.0)) for m in quadratic) > 50
    assert sum(above(weighted(m), value(m, False, noise=0.0)) for m in slow) > 50


def test_the_curve_holds_at_every_step() -> None:
    family = [m for m in families(quadratic=True) if m.num_local_steps == 5]
    wrong = coarse = 0
    for m in family:
        for i in range(40):
            numbers = {name: m.facts[name][i] for name in NAMES}
            curve = theory.recursion_curve(**numbers, num_local_steps=5, rounds=m.rounds, quadratic=True)
            wrong += above(m.distance_sq[:, i], curve["distance_sq"])
            wrong += above(m.consensus_sq[:, i], curve["consensus_sq"])
            coarse += above(m.consensus_sq[:, i], 0.01 * curve["consensus_sq"])
    assert wrong == 0
    assert coarse > 0


def by_hand(quadratic: bool, **numbers: Any) -> tuple[list[float], list[float]]:
    """Lemma 5, or 7 for quadratics, and Lemma 34, one step after another."""
    eta, H, mu, tau, zeta, phi, sigma, M, B = (numbers[name] for name in NAMES)
    K, A, distances, consensus = numbers["num_local_steps"], B**2, [B**2], []
    start = A
    for t in range(K * numbers["rounds"]):
        n = t % K
        start = A if n == 0 else start
        C = 0.0
        if n > 0:
            noise = 2 * eta**3 * tau**2 * n**2 * sigma**2 / mu + 2 * eta**2 * sigma**2 * n * (1 + math.log(n))
            far = 4 * eta**2 * tau**2 * n**2 * (1 - eta * mu) ** (2 * (n - 1)) * (start + phi**2)
            C = 2 * eta**2 * H**2 * n**2 * zeta**2 + (1 - 1 / M) * (noise + far)
        A = (1 - eta * mu) * A + eta / mu * (tau**2 if quadratic else H**2) * C / 2 + eta**2 * sigma**2 / M
        distances.append(A)
        consensus.append(C)
    return distances, [*consensus, 0.0]


@pytest.mark.parametrize("quadratic", [True, False])
def test_the_recursion_is_its_lemmas_iterated(quadratic: bool) -> None:
    distances, consensus = by_hand(quadratic, **RUN)
    curve = theory.recursion_curve(**RUN, quadratic=quadratic)
    np.testing.assert_allclose(curve["distance_sq"], distances, rtol=1e-12)
    np.testing.assert_allclose(curve["consensus_sq"], consensus, rtol=1e-12)
    np.testing.assert_allclose(curve["round_distance_sq"], distances[::6], rtol=1e-12)
    at_rounds = theory.recursion_distance(**(RUN | {"rounds": np.arange(6)}), quadratic=quadratic)
    np.testing.assert_allclose(at_rounds, distances[::6], rtol=1e-12)


@pytest.mark.parametrize("quadratic", [True, False])
def test_the_weighted_sum_is_its_lemmas_iterated(quadratic: bool) -> None:
    run = RUN | {"step_size": 0.05}
    distances, consensus = by_hand(quadratic, **run)
    eta, H, mu, tau, *_, sigma, M, B = (run[name] for name in NAMES)
    steps = len(distances) - 1
    weights = [(1 - eta * mu / 2) ** (steps - 1 - t) for t in range(steps)]
    each = [
        1.5 * tau**2 / mu * C + eta * sigma**2 / M if quadratic else 2 * H * C + 3 * eta * sigma**2 / M
        for C in consensus
    ]
    total = (1 - eta * mu / 2) ** steps * B**2 / eta + sum(w * e for w, e in zip(weights, each, strict=False))
    function = theory.recursion_suboptimality_quadratic if quadratic else theory.recursion_suboptimality
    assert function(**run) == pytest.approx(total / sum(weights), rel=1e-12)


def test_many_instances_at_once_are_each_alone() -> None:
    """Also with numbers of local steps and rounds of their own."""
    changes = {
        "num_local_steps": np.array([1, 3, 8]),
        "rounds": np.array([7, 0, 2]),
        "noise": np.array([0.0, 1.0, 2.0]),
    }
    for name in ("recursion_distance", "recursion_suboptimality_quadratic"):
        function = getattr(theory, name)
        together = function(**(RUN | changes))
        alone = [function(**(RUN | {key: values[i] for key, values in changes.items()})) for i in range(3)]
        np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_limits() -> None:
    kept = 1 - 0.1 * 0.5
    quiet = RUN | {"noise": 0.0, "num_clients": 1, "optima_heterogeneity": 0.0, "optima_distance": 0.0}
    assert theory.recursion_distance(**quiet) == pytest.approx(9 * kept**30, rel=1e-12)  # one client: plain descent
    assert theory.recursion_distance(**(RUN | {"rounds": 0})) == 9
    assert theory.recursion_suboptimality_quadratic(**(RUN | {"rounds": 0})) == pytest.approx(2.0 * 9 / 2)
    noisy = RUN | {"num_local_steps": 1, "rounds": 100_000}  # K = 1: minibatch SGD, down to eta sigma^2/(mu M)
    assert theory.recursion_distance(**noisy) == pytest.approx(0.1 / (0.5 * 4), rel=1e-9)
    nothing = RUN | {"start_distance": 0.0, "noise": 0.0, "optima_heterogeneity": 0.0, "optima_distance": 0.0}
    assert theory.recursion_distance(**nothing) == theory.recursion_suboptimality_quadratic(**nothing) == 0
    alike = RUN | {"hessian_heterogeneity": 0.0}  # quadratics with equal Hessians: as if they talked at every step
    once = alike | {"num_local_steps": 1, "rounds": 30}
    assert theory.recursion_distance(**alike, quadratic=True) == pytest.approx(
        theory.recursion_distance(**once), rel=1e-12
    )


def test_a_bound_without_limit_is_infinite() -> None:
    wild = RUN | {"hessian_heterogeneity": 2.0, "num_local_steps": 50, "rounds": 2000, "step_size": 0.04}
    for name in ("recursion_distance", "recursion_distance_quadratic", "recursion_suboptimality",
                 "recursion_suboptimality_quadratic"):  # fmt: skip
        assert getattr(theory, name)(**wild) == math.inf
    curve = theory.recursion_curve(**wild)
    assert not any(np.isnan(values).any() for values in curve.values())
    assert curve["distance_sq"][-1] == math.inf and curve["consensus_sq"][-1] == 0
    nowhere = wild | {"start_distance": 0.0, "noise": 0.0, "optima_heterogeneity": 0.0, "optima_distance": 0.0}
    assert theory.recursion_distance(**nowhere) == 0


def test_what_reports_may_draw() -> None:
    for name in ("recursion_distance", "recursion_distance_quadratic"):
        (predicts,) = STATEMENTS[name].predicts
        assert (predicts.method, predicts.column, predicts.squared) == ("LocalSGD", "distance", True)
        assert predicts.options == {"output": "last", "outer_step_size": 1.0}
    assert STATEMENTS["recursion_suboptimality"].predicts[0].options["output"] == "exp"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_size": 0.5}, "needs step_size < 1 / smoothness; got step_size = 0.5, smoothness = 2"),
        ({"strong_convexity": 0.0}, "needs strong_convexity > 0"),
        ({"num_local_steps": 2.5}, "needs num_local_steps % 1 == 0; got num_local_steps = 2.5"),
        ({"num_local_steps": 0}, "num_local_steps = 0 is out of range"),
        ({"rounds": -1}, "rounds = -1 is out of range"),
        ({"start_distance": math.inf}, "start_distance = inf is out of range"),
    ],
)
def test_bad_input(change: dict[str, float], words: str) -> None:
    with pytest.raises(SojournError, match=words):
        theory.recursion_distance(**(RUN | change))


def test_mistakes_have_clear_words() -> None:
    facts = Facts(smoothness=2.0, strong_convexity=0.5, hessian_heterogeneity=0.1, noise=1.0, num_clients=3)
    with pytest.raises(
        SojournError, match=r"needs optima_heterogeneity \(zeta_\*\), which this federation does not know"
    ):
        theory.recursion_distance(facts, step_size=0.1, num_local_steps=4, rounds=3)
    with pytest.raises(SojournError, match="A curve is that of one run"):
        theory.recursion_curve(**(RUN | {"rounds": np.array([1, 2])}))
    with pytest.raises(SojournError, match=r"needs step_size <= 1 / \(10 \* smoothness\)"):
        theory.recursion_suboptimality(**RUN)


def last_consensus(hessians: np.ndarray, optima: np.ndarray, noise: float, eta: float, K: int, R: int) -> np.ndarray:
    """(1/M^2) sum E|y_m - y_n|^2 of the last local iterates in rounds 1 to R, from the exact moments of the server."""
    M, d = optima.shape
    means, covariances = local_sgd_moments(hessians, optima, noise**2 / d, eta, K, R)
    step = np.eye(d) - eta * hessians
    kept = np.stack([np.linalg.matrix_power(one, K) for one in step])
    own = [eta**2 * noise**2 / d * sum(np.sum(np.linalg.matrix_power(one, k) ** 2) for k in range(K)) for one in step]
    found = np.zeros(R)
    for r in range(R):
        ends = optima + np.einsum("mij,mj->mi", kept, means[r] - optima)
        for m in range(M):
            for n in range(M):
                if m != n:
                    gap = kept[m] - kept[n]
                    spread = np.trace(gap @ covariances[r] @ gap.T) + own[m] + own[n]
                    found[r] += (np.sum((ends[m] - ends[n]) ** 2) + spread) / M**2
    return found


def test_consensus_stays_below_the_recursion() -> None:
    """1,000 random federations of near quadratics, exact; without any one source of the error it is exceeded."""
    rng = np.random.default_rng(0)
    broken = dict.fromkeys(("optima_heterogeneity", "noise"), 0)
    for _ in range(1000):
        M, K, R = int(rng.integers(1, 4)), int(rng.integers(1, 7)), 3
        base = np.diag(rng.uniform(0.5, 4.0, 2))
        tilt = rng.normal(size=(M, 2, 2)) * rng.choice([0.0, 0.02, 0.1])
        hessians = base + tilt @ tilt.transpose(0, 2, 1)
        optima = rng.normal(size=2) + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(M, 2))
        noise = float(rng.choice([0.0, 0.5]))
        facts = quadratic_facts(hessians, optima, noise=noise)
        facts = dataclasses.replace(facts, num_clients=M, start_distance=float(np.linalg.norm(facts.x_star)))
        eta = float(rng.uniform(0.01, 0.99)) / facts.smoothness
        exact = last_consensus(hessians, optima, noise, eta, K, R)
        given = {"step_size": eta, "num_local_steps": K, "rounds": np.arange(1.0, R + 1)}
        assert (exact <= theory.recursion_consensus(facts, **given) * (1 + 1e-9) + 1e-12).all()
        for term in broken:
            without = {"optima_distance": 0.0} if term == "optima_heterogeneity" else {}
            bound = theory.recursion_consensus(facts, **given, **{term: 0.0}, **without)
            broken[term] += bool((exact > bound * (1 + 1e-9) + 1e-12).any())
    assert min(broken.values()) > 50
