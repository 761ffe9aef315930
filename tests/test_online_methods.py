"""Every online method against its rule retyped in NumPy, its estimates against their means, and its plays."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.online import costs as cost_kinds
from sojourn.online import protocol
from sojourn.online.method import Game, Known
from sojourn.online.scrible import axis, follow

B, G, ETA, DELTA = 0.7, 1.3, 0.11, 0.4
M, D, T, K = 3, 4, 7, 3  # K does not divide T
BEGIN = np.random.default_rng(9).normal(size=(M, D)) * 0.4  # not zero: SCRiBLE's first axes would be ties of rounding


class Fixed(sj.online.Stream):
    """Linear costs from a table, so that a transcription sees the same."""

    betas: Any = None  # (T, M, d)
    radius: Any = B

    @property
    def size(self) -> int:
        return self.betas.shape[-1]

    def costs(self, memory, step, draws, num_machines):
        return cost_kinds.Linear(self.betas[step])


def transcribe(name: str, betas: np.ndarray, normals: np.ndarray, *, averaging: bool = True) -> tuple[Any, Any]:
    """Algorithms 1, 2, 3 of chapter 7 and SCRiBLE as they are written, step by step: plays (T, M, P, d) and the end."""
    x = BEGIN.copy()
    plays: list[list[Any]] = []
    for t in range(T):
        moved, now = x.copy(), []
        for m in range(M):
            f = lambda q: float(betas[t, m] @ q)  # noqa: B023, E731
            u = normals[t, m][:D] / np.linalg.norm(normals[t, m][:D]) if len(normals[t, m]) >= D else None
            if name in ("ogd", "fedogd"):
                points, g = [x[m]], betas[t, m]
            elif name in ("fedposgd", "one-point-ogd"):
                w = x[m] * min(1.0, B / np.linalg.norm(x[m])) if np.linalg.norm(x[m]) > 0 else x[m]
                points = [w + DELTA * u]
                g = D / DELTA * f(points[0]) * u
            elif name in ("fedosgd", "two-point-ogd"):
                points = [x[m] + DELTA * u, x[m] - DELTA * u]
                g = D * (f(points[0]) - f(points[1])) / (2 * DELTA) * u
            else:
                points, g = scrible(x[m], normals[t, m], f)
            moved[m] = x[m] + g if name == "scrible" else x[m] - ETA * g
            now.append(points)
        if name.startswith("fed") and averaging and ((t + 1) % K == 0 or t == T - 1):
            moved[:] = moved.mean(0)
        x = moved
        plays.append(now)
    return np.array(plays), x


def scrible(
    s: np.ndarray, normals: np.ndarray, f: Callable[[np.ndarray], float]
) -> tuple[list[np.ndarray], np.ndarray]:
    from scipy.stats import norm

    S = np.linalg.norm(s)
    x = -s / S * (np.sqrt(1 + (ETA * S * B) ** 2) - 1) / (ETA * S) if S > 0 else np.zeros(D)
    i, sign = int(norm.cdf(normals[0]) * D), np.sign(normals[1])
    r2 = x @ x
    lam = 2 * (B**2 + r2) / (B**2 - r2) ** 2 if i == 0 else 2 / (B**2 - r2)
    basis = np.eye(D)
    if S > 0:  # the reflection that takes the axis of the largest coordinate to x, that axis put first
        p = int(np.argmax(np.abs(x)))
        v = x / np.sqrt(r2) + np.sign(x[p]) * np.eye(D)[p]
        basis = np.eye(D) - 2 * np.outer(v, v) / (v @ v)
        basis[[0, p]] = basis[[p, 0]]
    e = basis[i] if S > 0 or i > 0 else -basis[i]
    y = x + sign * e / np.sqrt(lam)
    return [y], D * f(y) * sign * np.sqrt(lam) * e


def made(name: str) -> Any:
    kind = sj.online.METHODS[name]
    bandit = name in ("fedposgd", "fedosgd", "one-point-ogd", "two-point-ogd")
    return kind(step_size=ETA, exploration=DELTA) if bandit else kind(step_size=ETA)


class Watching(Fixed):
    """Keeps the plays: the memory of an adversary is what it has seen."""

    def start(self, draws, num_machines):
        points = 2 if self.two else 1
        return jnp.zeros((T, num_machines, points, D)), 0

    two: bool = False

    def watch(self, memory, plays):
        seen, t = memory
        return seen.at[t].set(plays), t + 1


def played(name: str, betas: np.ndarray, normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    method = made(name)
    stream = Watching(jnp.asarray(betas), two=method.feedback == "two values")
    table = protocol._begin(stream, jnp.zeros((1, 0)), M, 1)
    assert not np.asarray(table.x).any()
    table = eqx.tree_at(lambda t: t.x, table, jnp.asarray(BEGIN)[None])
    table, _ = protocol._advance(
        stream, method, table, jnp.asarray(normals)[None], jnp.zeros((1, T, 0)), jnp.asarray(0),
        jnp.zeros(T, int), jnp.asarray(K), jnp.asarray(T), False,
    )  # fmt: skip
    return np.asarray(table.memory[0][0]), np.asarray(table.x[0])


def instance(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    width = sj.online.METHODS[name](step_size=ETA).width(D)
    return rng.normal(size=(T, M, D)), rng.normal(size=(T, M, width))


@pytest.mark.parametrize("name", sj.online.METHODS)
def test_a_method_is_its_rule(name: str, x64: None) -> None:
    for seed in range(3):
        plays, end = played(name, *instance(name, seed))
        want_plays, want_end = transcribe(name, *instance(name, seed))
        np.testing.assert_allclose(plays, want_plays, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(end, want_end, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in sj.online.METHODS if name.startswith("fed")])
def test_without_averaging_the_transcription_would_differ(name: str, x64: None) -> None:
    _, end = played(name, *instance(name))
    assert not np.allclose(end, transcribe(name, *instance(name), averaging=False)[1])


@pytest.mark.parametrize("name", [name for name in sj.online.METHODS if name.startswith("fed")])
def test_machines_agree_after_the_last_step_although_k_does_not_divide_t(name: str, x64: None) -> None:
    _, end = played(name, *instance(name))
    assert T % K and np.ptp(end, axis=0).max() < 1e-12


# --- estimates ---------------------------------------------------------------------------------------------------

N = 40_000


def estimates(method: Any, cost: Any, x: np.ndarray, seed: int = 0) -> np.ndarray:
    normals = jnp.asarray(np.random.default_rng(seed).normal(size=(N, method.width(len(x)))))

    def one(draws: jax.Array) -> jax.Array:
        points, aim = method.query(jnp.asarray(x), jnp.asarray(B), draws)
        return method.estimate(aim, jax.vmap(cost.value)(points))

    return np.asarray(jax.jit(jax.vmap(one))(normals))


def deviates(found: np.ndarray, mean: np.ndarray) -> float:
    """The largest of the coordinates' distances to the stated mean, in standard errors."""
    return float((np.abs(found.mean(0) - mean) / (found.std(0) / len(found) ** 0.5)).max())


WORST = 4.5  # standard errors: one in a hundred thousand, for each of a few dozen coordinates


@pytest.mark.parametrize("name", ["fedposgd", "one-point-ogd", "fedosgd", "two-point-ogd", "scrible"])
def test_estimates_of_linear_costs_are_unbiased(name: str, x64: None) -> None:
    rng = np.random.default_rng(1)
    beta, x = rng.normal(size=D), rng.normal(size=D) * 0.3
    cost = cost_kinds.Linear(jnp.asarray(beta))
    found = estimates(made(name), cost, x)
    assert deviates(found, beta) < WORST
    assert deviates(found, beta * (D - 1) / D) > WORST  # as without the factor d, nearly: the interval is narrow enough


def test_two_values_give_the_gradient_of_the_mean_over_the_ball_not_the_sphere(x64: None) -> None:
    """f = sum x_i^4: grad of E f(x + delta v) is 4 x^3 + 12 delta^2 x E v_i^2, with 1/(d+2) in the ball, 1/d on it."""
    quartic = cost_kinds.Given((), lambda _, x: (x**4).sum())
    x = np.array([0.5, -0.3])
    method = sj.online.FedOSGD(step_size=ETA, exploration=1.0)
    found = estimates(method, quartic, x)
    assert deviates(found, 4 * x**3 + 12 * x / 4) < WORST
    assert deviates(found, 4 * x**3 + 12 * x / 2) > 3 * WORST


# --- plays -------------------------------------------------------------------------------------------------------


def test_scrible_follows_the_leader_and_stays_in_the_ball(x64: None) -> None:
    rng = np.random.default_rng(0)
    for scale in (0.0, 1e-6, 1.0, 1e3, 1e9):
        s = rng.normal(size=D) * scale
        x, room = follow(jnp.asarray(s), ETA, jnp.asarray(B))
        assert float(room) == pytest.approx(B**2 - float(x @ x), abs=1e-12)
        slope = ETA * s + 2 * np.asarray(x) / float(room)  # of eta <s, x> + R(x)
        assert np.linalg.norm(slope) <= 1e-8 * max(1.0, ETA * np.linalg.norm(s))
        basis = np.stack([np.asarray(axis(x, jnp.asarray(i))) for i in range(D)])
        np.testing.assert_allclose(basis @ basis.T, np.eye(D), atol=1e-12)
        if scale:
            assert abs(basis[0] @ np.asarray(x)) == pytest.approx(np.linalg.norm(x))


def test_norms_of_plays_are_reported_and_constrained_ones_stay_inside() -> None:
    stream = sj.online.Drifting(8, radius=2.0, share=1.0)
    how: dict[str, Any] = {"steps": 600, "num_machines": 4, "num_local_steps": 4, "seeds": range(3)}
    free = sj.online.play(stream, sj.online.FedPOSGD(), **how)
    assert 3.0 < free.last("norm_max").max() <= 4.0 * (1 + 1e-6)  # up to 2B, as printed
    assert sj.online.play(stream, sj.online.OGD(), **how).last("norm_max").max() > 2.1
    for name in sj.online.METHODS:
        inside = sj.online.play(stream, sj.online.METHODS[name](constrained=True), **how)
        assert inside.last("norm_max").max() <= 2.0 * (1 + 1e-6), name


def test_the_constrained_rule_retyped(x64: None) -> None:
    x, radius, draws = jnp.asarray([3.0, -4.0]), jnp.asarray(2.0), jnp.asarray([1.0, 0.0])
    one = sj.online.FedPOSGD(step_size=ETA, exploration=0.5, constrained=True).query(x, radius, draws)[0]
    np.testing.assert_allclose(one, [np.array([3.0, -4.0]) / 5 * 1.5 + [0.5, 0.0]])
    two = sj.online.FedOSGD(step_size=ETA, exploration=0.5, constrained=True).query(x, radius, draws)[0]
    np.testing.assert_allclose(two, np.array([[0.9 + 0.5, -1.2], [0.9 - 0.5, -1.2]]))
    np.testing.assert_allclose(sj.online.OGD(step_size=ETA, constrained=True).query(x, radius, draws)[0], [[1.2, -1.6]])


# --- step sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sj.online.METHODS)
def test_steps_by_theory_have_the_right_units(name: str) -> None:
    """eta scales like B/G (SCRiBLE's like 1/(G B)), delta like B."""
    game = lambda b, g: Game(1000, 4, 4, 16, b, Known(g, 0.0, 0.3 * g))  # noqa: E731
    plain, scaled = (sj.online.METHODS[name]().tuned(game(b, g)) for b, g in ((1.0, 1.0), (3.0, 5.0)))
    unit = 1 / 15 if name == "scrible" else 3 / 5
    assert float(scaled.step_size) == pytest.approx(float(plain.step_size) * unit, rel=1e-5)
    if hasattr(plain, "exploration"):
        assert float(scaled.exploration) == pytest.approx(3 * float(plain.exploration), rel=1e-5)


def test_the_step_from_one_value_follows_the_exploration() -> None:
    """eta = B/(G sqrt T) sqrt M/s' with s' = d (B + delta)/delta, which is 2d only for delta = B."""
    game = Game(1000, 1, 4, 16, 2.0, Known(3.0, 0.0, 0.0))
    for how, delta in (({}, 2.0), ({"exploration": 0.5}, 0.5), ({"exploration": 0.5, "constrained": True}, 0.5)):
        want = 2.0 / (3.0 * 1000**0.5) * 2.0 / (16 * (2.0 + delta) / delta)
        assert float(sj.online.FedPOSGD(**how).tuned(game).step_size) == pytest.approx(want)


def test_who_talks_to_nobody_is_tuned_as_if_alone() -> None:
    game = Game(1000, 8, 16, 16, 1.0, Known(1.0, 0.0, 0.5))
    for alone, together in (("one-point-ogd", "fedposgd"), ("two-point-ogd", "fedosgd")):
        apart = sj.online.METHODS[alone]().tuned(game)
        assert float(apart.step_size) == pytest.approx(
            float(sj.online.METHODS[together]().tuned(game.alone()).step_size)
        )
        assert float(apart.step_size) != pytest.approx(float(sj.online.METHODS[together]().tuned(game).step_size))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: sj.online.OGD(step_size=0.0), "step_size = 0 is out of range"),
        (lambda: sj.online.FedPOSGD(exploration=-1.0), "exploration = -1 is out of range"),
        (lambda: sj.online.FedOSGD(constrained="yes"), "constrained = 'yes' does not fit"),
        (
            lambda: sj.online.play(sj.online.Drifting(4), sj.online.FedPOSGD(exploration=1.0, constrained=True), 10),
            "leaves no room",
        ),
        (lambda: sj.online.play(sj.online.Smooth(4), sj.online.FedOSGD(), 10), "needs the stream's lipschitz"),
        (lambda: sj.online.play(sj.online.Drifting(4), sj.online.SCRiBLE(), 1), "give at least 2 steps"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(SojournError, match=message) as told:
        mistake()
    assert "\n" not in str(told.value)
