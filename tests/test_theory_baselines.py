"""Bounds for minibatch SGD, SGD on one machine and AC-SA, against exact moments on quadratics with Gaussian noise."""

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.theory import baselines

N = 1200


def quadratics(rng, n=N, dim=3, least=-2.0, isotropic=False, singular=False):
    eigen = 10 ** rng.uniform(least, 0, (n, dim))
    if isotropic:
        eigen[:] = eigen[:, :1]
    if singular:
        eigen[:, 0] = 0
    turn = np.linalg.qr(rng.standard_normal((n, dim, dim)))[0]
    root = rng.standard_normal((n, dim, dim))
    covariance = root @ root.swapaxes(-1, -2)
    covariance /= np.trace(covariance, axis1=-2, axis2=-1)[:, None, None]
    start = rng.standard_normal((n, dim)) * 10 ** rng.uniform(-1, 1, (n, 1))
    if singular:  # x* is the nearest minimiser: nothing along the flat direction
        start -= turn[:, :, 0] * (start * turn[:, :, 0]).sum(-1, keepdims=True)
    return {
        "hessian": np.einsum("nij,nj,nkj->nik", turn, eigen, turn), "covariance": covariance, "start": start,
        "smoothness": eigen.max(1), "strong_convexity": eigen.min(1), "noise": 10 ** rng.uniform(-2, 1, n),
        "start_distance": np.linalg.norm(start, axis=-1),
    }  # fmt: skip


def second_moments(problem, step, steps, variance):
    """E (x - x*)(x - x*)^T of SGD with a noise of covariance `variance` times the problem's; (steps + 1, n, d, d)."""
    dim = problem["hessian"].shape[-1]
    move = np.eye(dim) - step[:, None, None] * problem["hessian"]
    shake = (step**2 * variance)[:, None, None] * problem["covariance"]
    moments = [problem["start"][:, :, None] * problem["start"][:, None, :]]
    for _ in range(steps):
        moments.append(move @ moments[-1] @ move.swapaxes(-1, -2) + shake)
    return np.array(moments)


def squares(moments):
    return np.trace(moments, axis1=-2, axis2=-1)


def gaps(problem, moments):
    return np.einsum("nij,...nij->...n", problem["hessian"] / 2, moments)


def pick(values, *names, **changed):
    return {name: changed.get(name, values[name]) for name in names}


STRONG = ("smoothness", "strong_convexity", "noise", "start_distance")


def test_minibatch_sgd_distance():
    rng = np.random.default_rng(0)
    problem = quadratics(rng)
    H, mu = problem["smoothness"], problem["strong_convexity"]
    step = 2 / (H + mu) * rng.uniform(0.01, 1, N)
    moments = squares(second_moments(problem, step, 12, problem["noise"] ** 2 / (4 * 5)))
    run = {"num_clients": 4, "num_local_steps": 5, "step_size": step}
    for rounds in (0, 1, 5, 12):
        bound = baselines.minibatch_sgd_distance(**pick(problem, *STRONG), **run, rounds=rounds)
        assert (moments[rounds] <= bound * (1 + 1e-9)).all()
    for off in ("noise", "start_distance"):
        bound = baselines.minibatch_sgd_distance(**pick(problem, *STRONG, **{off: 0.0}), **run, rounds=12)
        assert (moments[12] > bound).any()


def test_minibatch_sgd_distance_is_attained():
    problem = quadratics(np.random.default_rng(1), isotropic=True)
    step = 0.7 / problem["smoothness"]
    truth = squares(second_moments(problem, step, 9, problem["noise"] ** 2 / 6))[9]
    run = {"num_clients": 2, "num_local_steps": 3, "step_size": step, "rounds": 9}
    given = pick(problem, *STRONG, strong_convexity=problem["smoothness"])
    assert np.allclose(truth, baselines.minibatch_sgd_distance(**given, **run), rtol=1e-9)
    assert (truth > 1.01 * baselines.minibatch_sgd_distance(**given | {"noise": 0.9 * given["noise"]}, **run)).any()


def test_minibatch_sgd_suboptimality():
    rng = np.random.default_rng(2)
    problem = quadratics(rng, singular=True)
    step = 0.98 / problem["smoothness"] * 10 ** rng.uniform(-2, 0, N)
    moments = gaps(problem, second_moments(problem, step, 15, problem["noise"] ** 2 / 12))
    truth = moments[:15].mean(0)  # above the gap of the mean model
    given = pick(problem, "smoothness", "noise", "start_distance")
    run = {"num_clients": 3, "num_local_steps": 4, "step_size": step, "rounds": 15}
    assert (truth <= baselines.minibatch_sgd_suboptimality(**given, **run) * (1 + 1e-9)).all()
    for off in ("noise", "start_distance"):
        assert (truth > baselines.minibatch_sgd_suboptimality(**given | {off: 0.0}, **run)).any()
    alone = {"num_local_steps": 12 * 15, "rounds": 1, "step_size": step}  # one machine: as one client, K R steps
    same = baselines.minibatch_sgd_suboptimality(**given, num_clients=1, num_local_steps=1, rounds=180, step_size=step)
    assert np.allclose(baselines.single_machine_sgd_suboptimality(**given, **alone), same)
    half = {"step_size": 0.5, "smoothness": 1.0, "noise": 3.0, "start_distance": 2.0, "rounds": 10}
    at_half = baselines.minibatch_sgd_suboptimality(**half, num_clients=2, num_local_steps=5)
    assert at_half == pytest.approx(2.0**2 / (0.5 * 10) + 0.5 * 3.0**2 / 10)


def test_single_machine_sgd_distance():
    rng = np.random.default_rng(3)
    problem = quadratics(rng)
    step = 2 / (problem["smoothness"] + problem["strong_convexity"]) * rng.uniform(0.01, 1, N)
    moments = second_moments(problem, step, 20, problem["noise"] ** 2)  # around the client's own optimum
    off = rng.standard_normal((N, 3)) * 10 ** rng.uniform(-2, 1, (N, 1))  # from x* to the client's optimum
    mean = problem["start"]
    for _ in range(20):
        mean = mean - step[:, None] * np.einsum("nij,nj->ni", problem["hessian"], mean)
    truth = squares(moments[20]) + 2 * (mean * off).sum(-1) + (off**2).sum(-1)
    phi = np.linalg.norm(off, axis=-1) / 5**0.25  # the other four clients have their optimum at x*
    given = pick(problem, *STRONG, start_distance=np.linalg.norm(problem["start"] + off, axis=-1))
    run = {"num_clients": 5, "num_local_steps": 4, "rounds": 5, "step_size": step, "optima_distance": phi}
    assert (truth <= baselines.single_machine_sgd_distance(**given, **run) * (1 + 1e-9)).all()
    assert (truth > baselines.single_machine_sgd_distance(**given, **run | {"optima_distance": 0.0})).any()
    assert (truth > baselines.single_machine_sgd_distance(**given | {"noise": 0.0}, **run)).any()


def ac_sa_gaps(problem, L, m, rounds, variance):
    """E F(x_ag) - F* of AC-SA, from the joint moments of (x, x_ag): its steps are linear on quadratics."""
    n, dim, _ = problem["hessian"].shape
    eye = np.broadcast_to(np.eye(dim), (n, dim, dim))
    start = np.concatenate([problem["start"]] * 2, -1)
    moments, L, m = start[:, :, None] * start[:, None, :], L[:, None, None], m[:, None, None]
    for t in range(1, rounds + 1):
        a, c = 2 / (t + 1), 4 * L / (t * (t + 1))
        whole = c + (1 - a**2) * m
        middle = np.concatenate([a * ((1 - a) * m + c) / whole * eye, (1 - a) * (m + c) / whole * eye], -1)
        x = np.concatenate([((1 - a) * m + c) / (m + c) * eye, 0 * eye], -1)
        x = x + a / (m + c) * (m * middle - problem["hessian"] @ middle)
        ag = a * x + (1 - a) * np.concatenate([0 * eye, eye], -1)
        move = np.concatenate([x, ag], -2)
        push = np.concatenate([a / (m + c) * eye, a**2 / (m + c) * eye], -2)
        shake = push @ (variance[:, None, None] * problem["covariance"]) @ push.swapaxes(-1, -2)
        moments = move @ moments @ move.swapaxes(-1, -2) + shake
    return gaps(problem, moments[:, dim:, dim:])


@pytest.mark.parametrize("strong", (False, True))
@pytest.mark.parametrize("rounds", (1, 4, 25))
def test_ac_sa_suboptimality(strong, rounds):
    rng = np.random.default_rng(4)
    problem = quadratics(rng, singular=not strong)
    L = problem["smoothness"] * 10 ** rng.uniform(0, 1.5, N)
    m = problem["strong_convexity"] * rng.uniform(0, 1, N) if strong else np.zeros(N)
    truth = ac_sa_gaps(problem, L, m, rounds, problem["noise"] ** 2 / 6)
    given = pick(problem, "smoothness", "noise", "start_distance")
    run = {"num_clients": 2, "num_local_steps": 3, "rounds": rounds, "step_smoothness": L, "step_strong_convexity": m}
    assert (truth <= baselines.ac_sa_suboptimality(**given, **run) * (1 + 1e-9)).all()
    for off in ("noise", "start_distance"):
        assert (truth > baselines.ac_sa_suboptimality(**given | {off: 0.0}, **run)).any()


def test_ac_sa_moments_are_those_of_the_algorithm():
    """The recursion of the test against the method itself, without noise."""
    import jax
    import jax.numpy as jnp

    from sojourn.algorithms import ACSA
    from sojourn.algorithms.base import Context
    from sojourn.core.vec import Vec

    problem = quadratics(np.random.default_rng(5), n=1, dim=2)
    L, m = 1.5 * problem["smoothness"], 0.5 * problem["strong_convexity"]
    method = ACSA(smoothness=float(L[0]), strong_convexity=float(m[0]), num_local_steps=1)
    with jax.enable_x64(True):
        server = method.init_server(Vec(jnp.asarray(problem["start"][0])))
        for r in range(6):
            gradient = Vec(jnp.asarray(problem["hessian"][0]) @ method.broadcast(server).tree)
            server = method.aggregate(server, gradient, Context(jnp.asarray(r), 1))
        x = np.asarray(method.answer(server).tree)
    found = x @ problem["hessian"][0] @ x / 2
    assert found == pytest.approx(ac_sa_gaps(problem, L, m, 6, np.zeros(1))[0], rel=1e-6)


def test_tuned_steps_are_near_the_best():
    """Against a fine grid: within a logarithm where the objective is strongly convex, within 2 elsewhere."""
    rng, n = np.random.default_rng(6), 300
    p = {
        "smoothness": np.ones(n), "noise": 10 ** rng.uniform(-4, 2, n), "start_distance": 10 ** rng.uniform(-1, 1, n),
        "num_clients": rng.integers(1, 30, n), "num_local_steps": rng.integers(1, 100, n),
        "rounds": np.ceil(10 ** rng.uniform(0, 4, n)),
    }  # fmt: skip
    mu = {"strong_convexity": 10 ** rng.uniform(-3, 0, n)}
    grid = [np.full(n, s) for s in 10 ** np.linspace(-7, 0, 400)]
    best = np.min([baselines.minibatch_sgd_distance(**p, **mu, step_size=s) for s in grid], axis=0)
    step = baselines.minibatch_sgd_step_size(**p, **mu)
    found = baselines.minibatch_sgd_distance(**p, **mu, step_size=step)
    log = np.maximum(2 * step * mu["strong_convexity"] * p["rounds"], 1)
    decided = best < p["start_distance"] ** 2 / 4  # where a run is worth its noise at all
    assert decided.sum() > 100 and (found <= 6 * log * best)[decided].all()
    assert (baselines.minibatch_sgd_distance(**p, **mu, step_size=step / 30) > 6 * log * best)[decided].any()
    best = np.min([baselines.minibatch_sgd_suboptimality(**p, step_size=s) for s in grid if s[0] < 0.5], axis=0)
    step = baselines.minibatch_sgd_convex_step_size(**p)
    assert (baselines.minibatch_sgd_suboptimality(**p, step_size=step) <= 2 * best).all()
    L = baselines.ac_sa_step_smoothness(**p)
    run = {"step_strong_convexity": 0.0}
    best = np.min([baselines.ac_sa_suboptimality(**p, **run, step_smoothness=1 + s * 1e7) for s in grid], axis=0)
    assert (baselines.ac_sa_suboptimality(**p, **run, step_smoothness=L) <= 2 * best).all()
    assert (baselines.ac_sa_suboptimality(**p, **run, step_smoothness=30 * L) > 2 * best).any()


def test_limits_and_bad_input():
    quiet = {"smoothness": 2.0, "noise": 0.0, "start_distance": 1.0, "num_clients": 1, "num_local_steps": 1}
    assert baselines.minibatch_sgd_step_size(**quiet, strong_convexity=0.1, rounds=5) == 0.5
    assert baselines.minibatch_sgd_convex_step_size(**quiet, rounds=5) == 0.25
    assert baselines.ac_sa_step_smoothness(**quiet, rounds=5) == 2.0
    assert baselines.ac_sa_step_smoothness(**quiet | {"noise": 1.0}, rounds=5, step_strong_convexity=0.1) == 2.0
    run = {"step_size": 0.1}
    curve = baselines.minibatch_sgd_distance(**quiet, **run, strong_convexity=0.1, rounds=np.arange(9))
    assert np.allclose(curve, 0.99 ** (2 * np.arange(9)))
    assert baselines.minibatch_sgd_suboptimality(**quiet, **run, rounds=0) == np.inf
    start = {"step_smoothness": 2.0, "step_strong_convexity": 0.0}
    assert baselines.ac_sa_suboptimality(**quiet, **start, rounds=0) == np.inf
    with pytest.raises(SojournError, match="strong_convexity > 0"):
        baselines.minibatch_sgd_distance(**quiet, **run, strong_convexity=0.0, rounds=3)
    with pytest.raises(SojournError, match="<= 2"):
        baselines.minibatch_sgd_distance(**quiet, step_size=1.0, strong_convexity=0.1, rounds=3)
    with pytest.raises(SojournError, match="step_smoothness >= smoothness"):
        baselines.ac_sa_suboptimality(**quiet, **start | {"step_smoothness": 1.0}, rounds=3)
