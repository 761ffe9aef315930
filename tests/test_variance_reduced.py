"""The variance-reduced methods against their rules retyped in NumPy, their reductions and their messages."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import BVRLSGD, CELGD, CELSGD, MBSARAH, MBSTORM, STEM, MimeLite, MimeMVR, MinibatchSGD, Scaffold
from sojourn.algorithms.base import Algorithm
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.oracle import Objective
from sojourn.problems.quadratic import Quadratic
from test_contract import quick_compilation
from test_local_sgd import Retyped, client_key, close, far, local_sgd, run, uneven_quadratics

ETA, K, R, BETA = 0.05, 4, 7, 0.3


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@functools.partial(jax.jit, static_argnames="batch_size")
def _eight_batches(objective: Objective, client: jax.Array, key: jax.Array, batch_size: int) -> Any:
    return objective.draw(objective.open(client), jax.random.fold_in(key, 0), 8, batch_size)


@jax.jit
def _grad(objective: Objective, client: jax.Array, z: Any, x: jax.Array) -> jax.Array:
    return objective.grad(x, objective.open(client), z)


class World(Retyped):
    """Adds gradients on the very samples that the engine draws, whatever the problem."""

    def __init__(self, federation: Federation) -> None:
        if isinstance(federation.clients.objective, Quadratic):
            super().__init__(federation)
        else:
            self.objective, self.seed, self.num_clients = federation.clients.objective, 0, federation.num_clients
            self.weights = np.full(self.num_clients, 1 / self.num_clients)
            self.x0, self.noisy = np.asarray(federation.x0.tree), True
        self.batch_size = federation.clients.batch_size

    def on(self, r: int, m: int, purpose: str, which: slice, x: np.ndarray) -> np.ndarray:
        """The client's gradient at x on the mean of some of the batches of its visit."""
        if not self.noisy:
            return self.grad(m, x)
        zs = _eight_batches(self.objective, m, client_key(0, r, m, purpose), self.batch_size)
        leaves, tree = jax.tree.flatten(zs)
        picked = [tree.unflatten([leaf[k] for leaf in leaves]) for k in range(8)[which]]
        return np.mean([_grad(self.objective, m, z, x) for z in picked], axis=0)

    def mean(self, of_client: Callable[[int], np.ndarray]) -> np.ndarray:
        return self.weights @ np.array([of_client(m) for m in range(self.num_clients)])


def pooled(world: World, r: int, m: int, batches: int, x: np.ndarray) -> np.ndarray:
    """A client's gradient on the sample of its estimate, which pools several batches."""
    return world.on(r, m, "estimate", slice(batches), x)


def ce_lsgd(
    world: World, Q: int = K, beta: float = BETA, first: int = K, stage: int = 0, heavy: int | None = None,
    same_sample: bool = True, corrected: bool = True, averaged: bool = False,
) -> np.ndarray:  # fmt: skip
    """Thesis Algorithm 1; with `stage`, BVR-L-SGD. The switches are for negative controls."""
    x = x_prev = world.x0
    v = np.zeros_like(x)

    def walk(r: int, j: int, steps: int, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        w_prev, w, u = x, x, v
        for k in range(steps):
            if k > 0 and corrected:  # the first step asks for no sample, so the second has the first one
                sample, other = slice(k - 1, k), slice(k - 1, k) if same_sample else slice(k, k + 1)
                u = u + world.on(r, j, "walk", sample, w) - world.on(r, j, "walk", other, w_prev)
            w_prev, w = w, w - ETA * u
        return w

    def estimate(r: int, batches: int | None, x: np.ndarray) -> np.ndarray:
        return world.mean(lambda m: world.grad(m, x) if batches is None else pooled(world, r, m, batches, x))

    for r in range(R):
        begins = r == 0 or (stage > 0 and r % stage == 0)
        if begins:
            v = estimate(r, heavy if stage else first, x)
        else:
            v = estimate(r, K, x) + (1 - beta) * (v - estimate(r, K, x_prev))
        steps = 1 if r == 0 and not stage else Q
        drawn = range(world.num_clients) if averaged else [world.one(r, "walk")]
        x, x_prev = np.mean([walk(r, j, steps, x, v) for j in drawn], axis=0), x
    return x


@pytest.fixture
def least_squares(x64: None) -> Federation:
    """Samples that are rows of data, so that two points on one sample do not differ by the exact gradients."""
    rng = np.random.default_rng(5)
    clients = [{"a": rng.normal(size=(12, 3)), "b": rng.normal(size=12)} for _ in range(4)]
    return sj.federation(_square, np.zeros(3), clients, batch_size=2)


def _square(x: jax.Array, batch: Any) -> jax.Array:
    return jnp.mean((batch["a"] @ x - batch["b"]) ** 2)


def test_samples_of_data_are_the_same_at_both_points(least_squares: Federation) -> None:
    world = World(least_squares)
    found = run(least_squares, CELSGD(step_size=ETA, num_local_steps=K, momentum=BETA), R).params
    close(found, ce_lsgd(world))
    far(found, ce_lsgd(world, same_sample=False))
    close(run(least_squares, STEM(step_size=ETA, num_local_steps=K, momentum=BETA), R).params, stem(world))
    storm = MBSTORM(step_size=ETA, num_local_steps=K, momentum=BETA)
    close(run(least_squares, storm, R).params, mb(world, BETA, K))


@pytest.mark.parametrize("messages", ["lean", "printed"])
def test_ce_lsgd_is_algorithm_1_of_the_thesis(noisy_quadratics: Federation, messages: str) -> None:
    algorithm = CELSGD(step_size=ETA, num_local_steps=K, momentum=BETA, messages=messages)
    found = run(noisy_quadratics, algorithm, R).params
    world = World(noisy_quadratics)
    close(found, ce_lsgd(world))
    far(found, ce_lsgd(world, beta=1.0))  # without the momentum
    far(found, ce_lsgd(world, same_sample=False))  # with other samples at the two points
    far(found, ce_lsgd(world, corrected=False))  # without the local correction
    far(found, ce_lsgd(world, averaged=True))  # with the mean of all ends


def test_ce_lsgd_with_weights_and_a_first_batch_of_its_own(x64: None) -> None:
    federation = uneven_quadratics()
    found = run(federation, CELSGD(step_size=ETA, num_local_steps=K, momentum=BETA, first_batches=8), R).params
    close(found, ce_lsgd(World(federation), first=8))
    far(found, ce_lsgd(World(federation), first=K))


def test_ce_lgd_is_ce_lsgd_with_exact_gradients(noisy_quadratics: Federation, quadratics: Federation) -> None:
    found = run(noisy_quadratics, CELGD(step_size=ETA, num_local_steps=K), R).params
    exact = World(quadratics)
    close(found, ce_lsgd(exact, beta=1.0))
    close(found, run(quadratics, CELSGD(step_size=ETA, num_local_steps=K, momentum=1.0), R).params)
    far(found, ce_lsgd(World(noisy_quadratics), beta=1.0))


@pytest.mark.parametrize("heavy", [None, 8])
def test_bvr_l_sgd_begins_every_stage_anew(noisy_quadratics: Federation, heavy: int | None) -> None:
    algorithm = BVRLSGD(step_size=ETA, num_local_steps=K, stage_length=3, heavy_batches=heavy)
    history = run(noisy_quadratics, algorithm, R)
    world = World(noisy_quadratics)
    close(history.params, ce_lsgd(world, beta=0.0, stage=3, heavy=heavy))
    far(history.params, ce_lsgd(world, beta=BETA, stage=3, heavy=heavy))
    if heavy is not None:  # an exact start stays exact where noise is additive, so that more of them change nothing
        far(history.params, ce_lsgd(world, beta=0.0, stage=100, heavy=heavy))
    table = history.frame().iloc[1:]
    exact = [6 if r % 3 == 0 and heavy is None else 0 for r in range(R)]
    assert table["calls_full_grad"].tolist() == exact
    batches = [6 * (heavy or 0) if r % 3 == 0 else 6 * 2 * K for r in range(R)]
    assert table["calls_grad"].tolist() == [b + 2 * (K - 1) for b in batches]


def mb(world: World, beta: float, first: int | None, restart: int = 100) -> np.ndarray:
    """Minibatch STORM, and SARAH with beta = 0 and restarts."""

    def of(r: int, batches: int | None, x: np.ndarray) -> np.ndarray:
        return world.mean(lambda m: world.grad(m, x) if batches is None else pooled(world, r, m, batches, x))

    x = x_prev = world.x0
    v = np.zeros_like(x)
    for r in range(R):
        v = of(r, first, x) if r % restart == 0 else of(r, K, x) + (1 - beta) * (v - of(r, K, x_prev))
        x, x_prev = x - ETA * v, x
    return x


@pytest.mark.parametrize("messages", ["lean", "printed"])
def test_mb_storm_is_its_rule_and_ce_lsgd_with_one_step(noisy_quadratics: Federation, messages: str) -> None:
    storm = MBSTORM(step_size=ETA, num_local_steps=K, momentum=BETA, messages=messages)
    found = run(noisy_quadratics, storm, R).params
    world = World(noisy_quadratics)
    close(found, mb(world, BETA, K))
    far(found, mb(world, 1.0, K))
    close(ce_lsgd(world, Q=1), found)  # one local step takes v as it is: the two are one method
    one = run(noisy_quadratics, CELSGD(step_size=ETA, num_local_steps=1, momentum=BETA), R).params
    close(one, run(noisy_quadratics, MBSTORM(step_size=ETA, num_local_steps=1, momentum=BETA), R).params)


@pytest.mark.parametrize("heavy", [None, 8])
def test_mb_sarah_is_its_rule(noisy_quadratics: Federation, heavy: int | None) -> None:
    world = World(noisy_quadratics)
    sarah = MBSARAH(step_size=ETA, num_local_steps=K, restart_every=3, heavy_batches=heavy)
    found = run(noisy_quadratics, sarah, R).params
    close(found, mb(world, 0.0, heavy, 3))
    far(found, mb(world, BETA, heavy, 3))
    if heavy is not None:
        far(found, mb(world, 0.0, heavy))
        never = MBSARAH(step_size=ETA, num_local_steps=K, restart_every=None, heavy_batches=heavy)
        close(run(noisy_quadratics, never, R).params, mb(world, 0.0, heavy))


def test_without_momentum_mb_storm_is_minibatch_sgd(quadratics: Federation) -> None:
    storm = MBSTORM(step_size=ETA, num_local_steps=K, momentum=1.0)
    close(run(quadratics, storm, R).params, run(quadratics, MinibatchSGD(step_size=ETA, num_local_steps=K), R).params)


def test_ce_lsgd_with_one_exact_step_and_no_memory_is_gradient_descent(quadratics: Federation) -> None:
    found = run(quadratics, CELSGD(step_size=ETA, num_local_steps=1, momentum=1.0), R).params
    close(found, local_sgd(World(quadratics), ETA, 1, R)[0])


def test_identical_clients_walk_alike_whoever_is_drawn(x64: None) -> None:
    alike = sj.problems.quadratic(np.stack([np.diag([1.0, 4.0])] * 5), np.ones((5, 2)))
    one = sj.problems.quadratic(np.diag([1.0, 4.0])[None], np.ones((1, 2)))
    algorithm = CELSGD(step_size=ETA, num_local_steps=K, momentum=BETA)
    found = [run(alike, algorithm, R, seed=seed).params for seed in (0, 1)]
    close(found[0], found[1])
    close(found[0], run(one, algorithm, R).params)
    # exact and alike: after the first step all local steps are plain gradient descent
    close(found[0], local_sgd(World(one), ETA, 1 + K * (R - 1), 1)[0])


def stem(world: World, a: float = BETA, average_d: bool = True) -> np.ndarray:
    clients = range(world.num_clients)
    x, d = world.x0, world.mean(lambda m: pooled(world, 0, m, K, world.x0))
    for r in range(R):
        ys, ds = [x] * len(clients), [d] * len(clients)
        for m in clients:
            for k in range(K):
                z = slice(k, k + 1)
                before, ys[m] = ys[m], ys[m] - ETA * ds[m]
                ds[m] = world.on(r, m, "local", z, ys[m]) + (1 - a) * (ds[m] - world.on(r, m, "local", z, before))
        x, d = world.weights @ np.array(ys), (world.weights @ np.array(ds) if average_d else ds[0])
    return x - ETA * d


def test_stem_averages_models_and_estimates(noisy_quadratics: Federation) -> None:
    world = World(noisy_quadratics)
    found = run(noisy_quadratics, STEM(step_size=ETA, num_local_steps=K, momentum=BETA), R).params
    close(found, stem(world))
    far(found, stem(world, a=1.0))
    far(found, stem(world, average_d=False))


def mime(world: World, lite: bool, a: float = BETA, corrected: bool = True) -> np.ndarray:
    mean = lambda x: world.weights @ np.array([world.grad(m, x) for m in range(6)])  # noqa: E731
    x = x_prev = world.x0
    m_ = mean(x)
    for r in range(R):
        c, c_prev = mean(x), mean(x_prev)
        ys = []
        for m in range(6):
            y = x
            for z in world.noise(r, m, K):
                g = world.grad(m, y) + z
                first = g if lite else g - world.grad(m, x) - z + c
                second = m_ + g - world.grad(m, x_prev) - z if corrected else m_
                y = y - ETA * (a * first + (1 - a) * second)
            ys.append(y)
        m_ = c + (1 - a) * (m_ - c_prev)
        x, x_prev = world.weights @ np.array(ys), x
    return x


@pytest.mark.parametrize(("cls", "lite"), [(MimeLite, True), (MimeMVR, False)])
def test_mime_mimics_centralized_variance_reduction(noisy_quadratics: Federation, cls: Any, lite: bool) -> None:
    world = World(noisy_quadratics)
    found = run(noisy_quadratics, cls(step_size=ETA, num_local_steps=K, momentum=BETA), R).params
    close(found, mime(world, lite))
    far(found, mime(world, not lite))
    far(found, mime(world, lite, corrected=False))


def test_mime_mvr_of_one_exact_step_is_gradient_descent(quadratics: Federation) -> None:
    found = run(quadratics, MimeMVR(step_size=ETA, num_local_steps=1, momentum=BETA), R).params
    close(found, local_sgd(World(quadratics), ETA, 1, R)[0])


def sent(federation: Federation, algorithm: Algorithm, **how: Any) -> list[tuple[int, int]]:
    table = run(federation, algorithm, 3, **how).frame().iloc[1:]
    return list(zip(table["floats_down"].astype(int), table["floats_up"].astype(int), strict=True))


@pytest.mark.parametrize(
    ("algorithm", "first", "later"),
    [
        (CELSGD(ETA, messages="printed"), (6 * 4 + 8, 6 * 4 + 4), (6 * 8 + 8, 6 * 8 + 4)),  # 4 M d + 3 d
        (CELSGD(ETA, messages="lean"), (6 * 4 + 4, 6 * 4 + 4), (6 * 4 + 4, 6 * 4 + 4)),  # 2 M d + 2 d
        (CELSGD(ETA, output="uniform"), (28, 28 + 5), (28, 28 + 5)),  # one vector and one number more
        (CELGD(ETA), (28, 28), (28, 28)),
        (BVRLSGD(ETA, messages="printed"), (32, 28), (56, 52)),
        (BVRLSGD(ETA), (28, 28), (28, 28)),
        (MBSTORM(ETA, messages="printed"), (24, 24), (48, 48)),
        (MBSTORM(ETA), (24, 24), (24, 24)),
        (MBSARAH(ETA), (24, 24), (24, 24)),
        (STEM(ETA), (24 + 48, 24 + 48), (48, 48)),
        (MimeMVR(ETA), (24 + 48, 24 + 24), (48 + 48, 48 + 24)),
        (MimeLite(ETA), (24 + 72, 24 + 72), (72, 72)),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.messages}" if hasattr(value, "messages") else None,
)
def test_what_travels(
    quadratics: Federation, algorithm: Algorithm, first: tuple[int, int], later: tuple[int, int]
) -> None:
    assert sent(quadratics, algorithm) == [first, later, later]


@pytest.mark.parametrize(("messages", "number"), [("lean", 4), ("printed", 0)])
def test_lean_clients_keep_one_model(quadratics: Federation, messages: str, number: int) -> None:
    assert run(quadratics, CELSGD(ETA, messages=messages), 2).manifest["floats_kept_by_a_client"] == number
    assert run(quadratics, Scaffold(ETA), 2).manifest["floats_kept_by_a_client"] == 4  # its control variate


@pytest.mark.parametrize("method", [CELSGD, BVRLSGD, MBSTORM, MBSARAH])
def test_lean_messages_need_everyone_and_printed_ones_do_not(quadratics: Federation, method: Any) -> None:
    with pytest.raises(SojournError, match=r'relies on what clients remember.*messages = "printed"'):
        run(quadratics, method(ETA), 3, participation=3)
    assert sent(quadratics, method(ETA, messages="printed"), participation=3)[1][0] in (3 * 8 + 8, 3 * 8)


def test_mime_sends_its_models_once_per_round_to_a_sampled_cohort(quadratics: Federation) -> None:
    assert sent(quadratics, MimeMVR(ETA), participation=3)[1] == (3 * 16, 3 * 12)


def test_the_uniform_output_is_uniform_over_all_local_iterates(x64: None) -> None:
    """On one client with a linear path every iterate can be told from the answer: f(x) = -x has w_k = k eta."""
    steep = sj.problems.quadratic(np.full((1, 1, 1), 1e-9), np.full((1, 1), 1e9))  # a gradient of -1 everywhere near 0
    rounds, steps = 4, 3
    algorithm = CELSGD(step_size=1.0, num_local_steps=steps, momentum=1.0, output="uniform")
    history = sj.sweep(steep, lambda _: algorithm, [0], rounds, seeds=range(2000), progress=False)
    places = np.rint(np.asarray(history.params)).astype(int).ravel()
    number = 1 + steps * (rounds - 1)
    counts = np.bincount(places, minlength=number)
    assert len(counts) == number  # w = 0, 1, ..., number - 1, each before its step
    expected = len(places) / number
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # the 0.1 % point of chi-square with 9 degrees


def test_a_first_batch_of_any_size_is_counted_and_fits_in_memory(x64: None) -> None:
    """Drawn in blocks: the mean of so much noise is small, and exactly that many gradients are counted."""
    federation = sj.problems.quadratic(np.eye(4)[None], np.zeros((1, 4)), noise=1.0)
    batches = 700_001
    history = run(federation, CELSGD(step_size=1.0, first_batches=batches, num_local_steps=2), 1)
    assert history.frame()["calls_grad"].iloc[-1] == batches
    spread = np.abs(np.asarray(history.params)).max()
    assert 1e-5 < spread < 5 / np.sqrt(batches)


@pytest.mark.parametrize("output", ["last", "uniform"])
@pytest.mark.parametrize("steps", [1, 5])
def test_probes_see_the_whole_walk(quadratics: Federation, steps: int, output: str) -> None:
    """The last step takes no sample, and is a step all the same."""
    algorithm = CELSGD(step_size=ETA, num_local_steps=steps, output=output)
    table = run(quadratics, algorithm, 3, record=["client_drift", "consensus_inside"]).frame().iloc[1:]
    moved = table[[name for name in table if name.startswith("client_drift")]].max(axis=1)
    np.testing.assert_allclose(moved, table["drift"], rtol=1e-12)
    assert (table["drift"] > 0).all() and table["local_steps"].tolist() == [1, steps, steps]


def test_an_exact_start_costs_virtual_time_by_its_samples(least_squares: Federation) -> None:
    """Twelve samples in batches of two: an exact gradient takes as long as six."""
    devices = sj.traces.Devices(sj.traces.Constant(1.0))
    exact = BVRLSGD(step_size=ETA, num_local_steps=2, stage_length=3)
    heavy = BVRLSGD(step_size=ETA, num_local_steps=2, stage_length=3, heavy_batches=6)
    times = [run(least_squares, method, 4, devices=devices).frame()["virtual_seconds"] for method in (exact, heavy)]
    np.testing.assert_allclose(times[0], times[1])
    assert np.diff(times[0])[0] == 6 + 2 and np.diff(times[0])[1] == 4 + 2  # and 2 (K - 1) for the walk


def test_an_exact_first_estimate(noisy_quadratics: Federation) -> None:
    found = run(noisy_quadratics, CELSGD(step_size=ETA, num_local_steps=K, momentum=BETA, first="exact"), 1)
    world = World(noisy_quadratics)
    close(found.params, world.x0 - ETA * world.mean(lambda m: world.grad(m, world.x0)))
    assert found.frame()["calls_full_grad"].iloc[-1] == 6 and found.frame()["calls_grad"].iloc[-1] == 0


def test_more_samples_than_can_be_counted_are_refused(noisy_quadratics: Federation) -> None:
    with pytest.raises(SojournError, match="more samples than can be counted"):
        run(noisy_quadratics, CELSGD(ETA, first_batches=3_000_000_000), 2)


@pytest.mark.parametrize("make", [BVRLSGD, MBSARAH])
def test_restarts_do_not_depend_on_where_chunks_end(noisy_quadratics: Federation, make: Any, tmp_path: Path) -> None:
    algorithm = make(ETA, **{"stage_length" if make is BVRLSGD else "restart_every": 3})
    whole = run(noisy_quadratics, algorithm, 8)
    run(noisy_quadratics, algorithm, 4, out=tmp_path / "run", eval_every=1)
    resumed = run(noisy_quadratics, algorithm, 8, out=tmp_path / "run", resume=True, eval_every=1)
    np.testing.assert_array_equal(np.asarray(whole.params), np.asarray(resumed.params))
    reference = run(noisy_quadratics, algorithm, 8, engine="reference")
    close(reference.params, whole.params)
