"""Probes against loops in NumPy over the clients' own iterates; what is not recorded is not computed."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import FedAc, FedAvg, FedProx, LocalACSA, LocalSGD, MinibatchSGD, Scaffold, SingleMachineSGD
from sojourn.algorithms.base import Algorithm, Exchange, Info, ModelState, Who
from sojourn.algorithms.descent import descend
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation, build
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec
from sojourn.diagnostics import round_probes
from sojourn.diagnostics.probes import PROBES, vector_of
from sojourn.diagnostics.round_probes import ROUND_PROBES, Seen, Trail
from sojourn.driver import make_job
from sojourn.engine import Compiled
from sojourn.engine.rounds import play_round, start
from test_contract import WEIGHTS, OnParts, make, quick_compilation
from test_contract import uneven as four_quadratics
from test_fedac import numbers
from test_fedprox import amount_of_work
from test_local_sgd import Retyped, close, far, fixed_point, local_iterates, run, uneven_quadratics

ETA, K, R = 0.1, 3, 4
ROUND = list(ROUND_PROBES)
Round = tuple[list[int], np.ndarray]  # who took part, and their iterates (members, steps + 1, d)


@dataclasses.dataclass(frozen=True)
class Pairs(Compiled):
    """Two clients side by side."""

    def width(self, *about: Any) -> int:
        return 2


ENGINES = pytest.mark.parametrize("engine", ["reference", Compiled("vmap"), Compiled("scan"), Pairs()], ids=str)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


# What the probes should say, written as their definitions.


def moment(points: np.ndarray, power: int) -> float:
    """1/n^2 of the sum over all pairs of |y_m - y_k|^power."""
    return float(np.mean([np.linalg.norm(a - b) ** power for a in points for b in points]))


def cosines(updates: np.ndarray) -> list[float]:
    angle = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    return [angle(a, b) for a, b in itertools.combinations(updates, 2)]


def expected(played: list[Round], num_clients: int) -> pd.DataFrame:
    rows = []
    for ids, paths in played:
        ends, steps = paths[:, -1], range(1, paths.shape[1])
        between = cosines(ends - paths[:, 0])
        row = {"consensus": moment(ends, 2), "consensus4": moment(ends, 4)}
        row |= {f"consensus_inside.{k}": moment(paths[:, k], 2) for k in steps}
        row |= {f"consensus4_inside.{k}": moment(paths[:, k], 4) for k in steps}
        row |= {f"client_drift.{m}": np.nan for m in range(num_clients)}
        row |= {f"client_drift.{m}": np.linalg.norm(p[-1] - p[0]) for m, p in zip(ids, paths, strict=True)}
        rows.append(row | {"cosine": np.mean(between), "cosine_min": min(between)})
    return pd.DataFrame(rows)


def assert_recorded(history: sj.History, played: list[Round], num_clients: int = 6) -> None:
    table, wanted = history.frame().iloc[1:].reset_index(drop=True), expected(played, num_clients)
    recorded = {name for name in table if name in ROUND_PROBES or vector_of(name)}
    assert recorded == set(wanted)
    pd.testing.assert_frame_equal(table[wanted.columns], wanted, check_exact=False, rtol=0, atol=1e-12)


# The methods' iterates, retyped.


def local_sgd(world: Retyped, beta: float = 1.0) -> list[Round]:
    x, played = world.x0, []
    for r in range(R):
        ids = world.cohort(r)
        paths = np.array([local_iterates(world, r, m, x, ETA, K) for m in ids])
        x = x + beta * world.shares(ids) @ (paths[:, -1] - x)
        played.append((ids, paths))
    return played


def scaffold(world: Retyped, corrected: bool = True) -> list[Round]:
    x, c, c_i, played = world.x0, np.zeros_like(world.x0), np.zeros_like(world.optima), []
    for r in range(R):
        ids, paths, changes = world.cohort(r), [], []
        for m in ids:
            path = [x]
            for z in world.noise(r, m, K):
                path.append(path[-1] - ETA * (world.grad(m, path[-1]) + z + corrected * (c - c_i[m])))
            new = c_i[m] - c + (x - path[-1]) / (K * ETA)
            changes.append(new - c_i[m])
            c_i[m] = new
            paths.append(path)
        played.append((ids, np.array(paths)))
        x = world.shares(ids) @ played[-1][1][:, -1]
        c = c + world.weights[ids] @ np.array(changes)
    return played


def fedprox(world: Retyped, least: int) -> list[Round]:
    """A client that stops early stays where it stopped."""
    x, played = world.x0, []
    for r in range(R):
        ids, paths = world.cohort(r), []
        for m in ids:
            path, amount = [x], amount_of_work(world, r, m, least, K)
            for k, z in enumerate(world.noise(r, m, K)):
                step = ETA * (world.grad(m, path[-1]) + z + 0.5 * (path[-1] - x)) if k < amount else 0.0
                path.append(path[-1] - step)
            paths.append(path)
        played.append((ids, np.array(paths)))
        x = world.shares(ids) @ played[-1][1][:, -1]
    return played


def fedac(world: Retyped, of_the_answer: bool = True) -> list[Round]:
    """The iterates of w_ag, which is the method's model; for a negative control those of w."""
    alpha, beta, gamma = numbers("I", ETA, 0.5, K)
    w = w_ag = world.x0
    played = []
    for r in range(R):
        ids, paths, ends = world.cohort(r), [], []
        for m in ids:
            v, v_ag, path = w, w_ag, [w_ag if of_the_answer else w]
            for z in world.noise(r, m, K):
                v_md = v / beta + (1 - 1 / beta) * v_ag
                g = world.grad(m, v_md) + z
                v, v_ag = (1 - 1 / alpha) * v + v_md / alpha - gamma * g, v_md - ETA * g
                path.append(v_ag if of_the_answer else v)
            paths.append(path)
            ends.append((v, v_ag))
        played.append((ids, np.array(paths)))
        w, w_ag = np.tensordot(world.shares(ids), np.array(ends), axes=1)
    return played


STEPS: dict[str, Any] = {"step_size": ETA, "num_local_steps": K}
Iterates = Callable[[Retyped], list[Round]]
CASES: dict[str, tuple[Callable[[], Algorithm], Iterates, Iterates]] = {
    # the method, its iterates, and iterates that are not its own
    "local-sgd": (lambda: LocalSGD(**STEPS), local_sgd, lambda world: local_sgd(world, 0.5)),
    "output": (lambda: LocalSGD(**STEPS, output="uniform"), local_sgd, scaffold),
    "scaffold": (lambda: Scaffold(**STEPS), scaffold, lambda world: scaffold(world, False)),
    "fedprox": (
        lambda: FedProx(**STEPS, proximal_weight=0.5, min_local_steps=1),
        lambda world: fedprox(world, 1),
        lambda world: fedprox(world, K),
    ),
    "fedac": (lambda: FedAc(**STEPS, strong_convexity=0.5), fedac, lambda world: fedac(world, False)),
}


@pytest.mark.parametrize("name", CASES)
def test_round_probes_are_their_definitions_on_the_methods_own_iterates(name: str, x64: None) -> None:
    """With noise, unequal weights, and four of six clients in a round, on the reference engine."""
    build_one, iterates, others = CASES[name]
    federation = uneven_quadratics()
    world = Retyped(federation, participation=4)
    history = run(federation, build_one(), R, participation=4, record=ROUND, engine="reference")
    assert_recorded(history, iterates(world))
    with pytest.raises(AssertionError):
        assert_recorded(history, others(world))


@ENGINES
def test_all_engines_and_placements_record_the_same(engine: Any, noisy_quadratics: Federation) -> None:
    algorithm = LocalSGD(**STEPS)
    history = run(noisy_quadratics, algorithm, R, participation=4, record=ROUND, engine=engine)
    assert_recorded(history, local_sgd(Retyped(noisy_quadratics, participation=4)))
    with pytest.raises(AssertionError):
        assert_recorded(history, local_sgd(Retyped(noisy_quadratics, participation=4, seed=1)))


@pytest.mark.parametrize("engine", ["reference", Compiled("vmap"), Compiled("scan")], ids=str)
def test_uneven_work_is_recorded_alike_by_all_engines(engine: Any, noisy_quadratics: Federation) -> None:
    """Here the number of steps is traced, so the path is kept by the walk in blocks."""
    algorithm = FedProx(step_size=ETA, num_local_steps=K, proximal_weight=0.5, min_local_steps=1)
    history = run(noisy_quadratics, algorithm, R, record=ROUND, engine=engine)
    assert_recorded(history, fedprox(Retyped(noisy_quadratics), 1))
    with pytest.raises(AssertionError):
        assert_recorded(history, fedprox(Retyped(noisy_quadratics), K))


def test_a_path_is_kept_when_samples_are_drawn_in_blocks(
    quadratics: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps per block of seven; without noise, as every block draws with a key of its own."""
    monkeypatch.setattr("sojourn.core.oracle._DRAW_TOGETHER", 3)
    algorithm, world = LocalSGD(step_size=ETA, num_local_steps=7), Retyped(quadratics)
    row = run(quadratics, algorithm, 1, record=["consensus_inside"], engine="reference").frame().iloc[1]
    found = [row[f"consensus_inside.{k}"] for k in range(1, 8)]
    paths = np.array([local_iterates(world, 0, m, world.x0, ETA, 7) for m in range(6)])
    close(found, [moment(paths[:, k], 2) for k in range(1, 8)])
    far(found, [moment(paths[:, k], 2) for k in range(7)])  # one step earlier


def test_consensus_is_twice_the_mean_squared_distance_to_the_mean(noisy_quadratics: Federation) -> None:
    history = run(noisy_quadratics, LocalSGD(**STEPS), R, record=["consensus"])
    ends = [paths[:, -1] for _, paths in local_sgd(Retyped(noisy_quadratics))]
    centred = np.array([np.mean(np.sum((y - y.mean(axis=0)) ** 2, axis=1)) for y in ends])
    found = history.frame()["consensus"].iloc[1:]
    close(found, 2 * centred)
    far(found, centred)  # the factor is not one


def test_clients_close_together_and_far_from_zero_do_not_cancel() -> None:
    """In float32, with |y| = 2000 and distances of 1e-2: products of uncentred points are right to 0.5 at best."""
    rng = np.random.default_rng(0)
    points = (1000 + 1e-2 * rng.normal(size=(5, 1, 4))).astype(np.float32)
    seen = Seen(Trail(None, Vec(jnp.asarray(points)), None), jnp.arange(5), 5)
    exact = points.astype(float)[:, 0]
    np.testing.assert_allclose(float(round_probes.consensus(seen)), moment(exact, 2), rtol=1e-5)
    np.testing.assert_allclose(float(round_probes.consensus4(seen)), moment(exact, 4), rtol=1e-5)
    flat = points[:, 0]
    naive = 2 * np.mean(np.sum(flat**2, axis=1)) - 2 * np.mean(flat @ flat.T)
    assert abs(naive / moment(exact, 2) - 1) > 0.1


def test_a_model_of_several_arrays_is_read_as_one_vector(x64: None) -> None:
    whole = four_quadratics()
    parts = build(OnParts(whole.clients.objective), OnParts.split(whole.x0.tree), 4, weights=WEIGHTS)
    tables = [run(fed, LocalSGD(**STEPS), 3, record=ROUND).frame() for fed in (whole, parts)]
    columns = [name for name in tables[0] if name in ROUND_PROBES or vector_of(name)]
    assert len(columns) == 4 + 2 * K + 4
    close(tables[1][columns].iloc[1:], tables[0][columns].iloc[1:])
    far(tables[0]["consensus"].iloc[1:], 0)


def test_clients_that_do_not_move_agree_and_their_gradients_have_angles(noisy_quadratics: Federation) -> None:
    table = run(noisy_quadratics, MinibatchSGD(step_size=ETA, num_local_steps=1), 2, record=ROUND).frame().iloc[1:]
    assert (table[["consensus", "consensus4", *(f"client_drift.{m}" for m in range(6))]] == 0).all(axis=None)
    assert not [name for name in table if name.startswith("consensus_inside")]
    world = Retyped(noisy_quadratics)
    gradients = np.array([world.grad(m, world.x0) + world.noise(0, m, 1)[0] for m in range(6)])
    close(table["cosine"].iloc[0], np.mean(cosines(gradients)))
    close(table["cosine_min"].iloc[0], min(cosines(gradients)))
    far(table["cosine"].iloc[0], np.mean(cosines(np.array([world.grad(m, world.x0) for m in range(6)]))))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_one_client_alone_has_no_angle_and_agrees_with_itself(engine: str, quadratics: Federation) -> None:
    table = run(quadratics, SingleMachineSGD(step_size=ETA), 2, record=ROUND, engine=engine).frame().iloc[1:]
    assert table[["cosine", "cosine_min", "client_drift.1"]].isna().all(axis=None)
    assert (table["consensus"] == 0).all() and (table["client_drift.0"] > 0).all()


def test_a_client_that_stands_still_is_left_out_of_the_angles(x64: None) -> None:
    """Client 0 is at its optimum: of three pairs one has an angle, and it is a right one."""
    optima = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    federation = sj.problems.quadratic(np.stack([np.eye(2)] * 3), optima)
    row = run(federation, LocalSGD(step_size=ETA), 1, record=["cosine", "cosine_min"]).frame().iloc[1]
    close([row["cosine"], row["cosine_min"]], [0.0, 0.0])


# Methods with more than one exchange, or more than one walk.


class Twice(Algorithm):
    """Walks in two exchanges, or in one and then only asks; the second walk is of one step."""

    second_walks: bool = eqx.field(default=True, static=True)

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def long(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        def step(y: Vec, z: Any, k: jax.Array) -> Vec:
            inner = descend(oracle, y, ETA, 1, key)  # a walk in a walk: part of its step
            return inner - ETA * oracle.grad(inner, z)

        descend(oracle, down, 10 * ETA, 5, key)  # the last walk of a visit counts
        return oracle.walk(step, down, 2, key), memory, {}

    def short(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return (descend(oracle, down, ETA, 1, key) if self.second_walks else oracle.full_grad(down)), memory, {}

    def exchanges(self) -> tuple[Exchange, ...]:
        first = Exchange(self.broadcast, self.long, lambda server, up, context: ModelState(up))
        keep = lambda server, up, context: server  # noqa: E731
        return (first, Exchange(self.broadcast, self.short, keep, Who.ALL, purpose="second"))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_the_last_exchange_with_local_steps_is_the_one_recorded(engine: str, quadratics: Federation) -> None:
    world = Retyped(quadratics)
    table = run(quadratics, Twice(second_walks=False), 1, record=ROUND, engine=engine).frame()
    paths = np.array([local_iterates(world, 0, m, world.x0, ETA, 4) for m in range(6)])
    close([table[f"consensus_inside.{k}"][1] for k in (1, 2)], [moment(paths[:, 2 * k], 2) for k in (1, 2)])
    close(table["client_drift.2"][1], np.linalg.norm(paths[2, 4] - paths[2, 0]))
    x = paths[:, -1].mean(axis=0)
    steps = np.array([x - ETA * world.grad(m, x) for m in range(6)])
    both = run(quadratics, Twice(), 1, record=ROUND, engine=engine).frame()
    close(both["consensus"][1], moment(steps, 2))
    far(both["consensus"][1], table["consensus"][1])
    assert "consensus_inside.2" not in both


# Probes of the model.


def test_distances_to_the_mean_of_optima_and_to_the_fixed_point(x64: None) -> None:
    federation = uneven_quadratics(noise=0)
    names = ["distance_to_mean_optimum", "distance_to_fixed_point", "distance"]
    history = run(federation, LocalSGD(step_size=0.2, num_local_steps=3), 5, record=names, eval_every=5)
    world, last = Retyped(federation), history.frame().iloc[-1]
    x = np.asarray(history.params)
    close(last["distance_to_mean_optimum"], np.linalg.norm(x - world.weights @ world.optima))
    close(last["distance_to_fixed_point"], np.linalg.norm(x - fixed_point(world, 0.2, 3)))
    close(last["distance"], np.linalg.norm(x - federation.facts.x_star))
    far(last["distance_to_mean_optimum"], np.linalg.norm(x - world.optima.mean(axis=0)))  # without the weights
    far(last["distance_to_fixed_point"], np.linalg.norm(x - fixed_point(world, 0.2, 2)))
    assert history.frame()["distance_to_fixed_point"].iloc[1:-1].isna().all()  # rounds that are not evaluated


@pytest.mark.parametrize("outer_step_size", [0.7, 1.0])
def test_local_gd_on_singular_hessians_ends_at_the_recorded_fixed_point(x64: None, outer_step_size: float) -> None:
    """The last coordinate is in every kernel: it stays where it began, and the fixed point has it there."""
    hessians, optima = random_quadratics()
    hessians[:, 3, :] = hessians[:, :, 3] = 0
    federation = sj.problems.quadratic(hessians, optima, x0=[1.0, 2.0, -1.0, 5.0])
    algorithm = LocalSGD(step_size=0.2, num_local_steps=3, outer_step_size=outer_step_size)
    record = ["distance_to_fixed_point", "distance"]
    last = run(federation, algorithm, 100, record=record).frame().iloc[-1]
    close(last["distance_to_fixed_point"], 0)
    far(last["distance"], 0)
    minibatch = run(federation, MinibatchSGD(step_size=0.2, num_local_steps=3), 100, record=record).frame().iloc[-1]
    close(minibatch["distance"], 0)
    assert "distance_to_fixed_point" not in minibatch  # its fixed point is x*: the column would mislead


def test_the_fixed_point_of_small_steps_is_right_in_float32() -> None:
    """1 - (1 - eta lambda)^K with eta lambda = 1e-5 keeps five digits, where the plain form keeps two."""
    federation = sj.problems.quadratic(*random_quadratics())
    algorithm = LocalSGD(step_size=1e-5, num_local_steps=2)
    found = run(federation, algorithm, 1, record=["distance_to_fixed_point"]).frame()["distance_to_fixed_point"][0]
    with jax.enable_x64(True):
        world = Retyped(sj.problems.quadratic(*random_quadratics()))
    exact = np.linalg.norm(world.x0 - fixed_point(world, 1e-5, 2))
    assert abs(found / exact - 1) < 1e-5
    factor = np.float32(1) - (np.float32(1) - np.float32(1e-5)) ** 2
    assert abs(factor / (1 - (1 - 1e-5) ** 2) - 1) > 1e-3


def test_methods_that_weigh_by_size_have_their_own_fixed_point(x64: None) -> None:
    plain = sj.problems.quadratic(*random_quadratics())
    sizes = np.array([1.0, 2, 3, 4, 5, 6])
    federation = dataclasses.replace(plain, clients=dataclasses.replace(plain.clients, sizes=jnp.asarray(sizes)))
    last = run(federation, FedAvg(step_size=0.2, num_local_steps=3), 100, record=["distance_to_fixed_point"]).frame()
    close(last["distance_to_fixed_point"].iloc[-1], 0)
    even = run(plain, FedAvg(step_size=0.2, num_local_steps=3), 100, record=["distance_to_fixed_point"])
    assert np.linalg.norm(np.asarray(even.params) - fixed_point(Retyped(plain), 0.2, 3)) < 1e-9
    far(last["distance"].iloc[-1], even.frame()["distance"].iloc[-1])


def _squares(x: jax.Array, rows: jax.Array) -> jax.Array:
    return 0.5 * jnp.mean(jnp.sum((x - rows) ** 2, axis=1))


def test_suboptimality_and_gradient_of_a_problem_that_does_not_give_them(x64: None) -> None:
    rows = [np.arange(6.0).reshape(3, 2), np.ones((2, 2))]
    means = np.array([r.mean(axis=0) for r in rows])
    x_star = means.mean(axis=0)
    least = np.mean([np.mean(np.sum((x_star - r) ** 2, axis=1)) / 2 for r in rows])
    federation = sj.federation(_squares, np.zeros(2), rows, facts=Facts(f_star=float(least), x_star=x_star))
    table = run(federation, LocalSGD(step_size=ETA), 1, record=["suboptimality", "grad_norm", "model_norm"]).frame()
    close(table["suboptimality"][0], np.sum(x_star**2) / 2)
    close(table["grad_norm"][0], np.linalg.norm(x_star))
    far(table["suboptimality"][0], table["loss"][0])
    assert "suboptimality" not in run(federation, LocalSGD(step_size=ETA), 1).frame()


def test_what_the_metrics_say_already_is_not_computed_again(quadratics: Federation) -> None:
    names = ("suboptimality", "grad_norm", "distance", "model_norm")
    how: dict[str, Any] = {"engine": "compiled", "participation": None, "eval_every": 1}
    job = make_job(quadratics, LocalSGD(step_size=ETA), 1, record=names, **how)
    assert set(job.federation.clients.probes) == {"model_norm"}


# Recording only reads, and costs nothing when off.


@pytest.mark.parametrize("placement", ["vmap", "scan"])
@pytest.mark.parametrize("name", ["scaffold", "fedprox", "minibatch-sgd"])
def test_recording_changes_no_bit_of_the_rest(name: str, placement: Any, noisy_quadratics: Federation) -> None:
    how: dict[str, Any] = {"participation": 4, "eval_every": 2, "engine": Compiled(placement)}
    plain = run(noisy_quadratics, make(name), 5, **how)
    recorded = run(noisy_quadratics, make(name), 5, record=list(PROBES), **how)
    other = run(noisy_quadratics, make(name), 5, seed=1, **how)
    columns = [column for column in plain.frame() if column != "seconds"]
    assert len(recorded.frame().columns) > len(columns) + 5
    pd.testing.assert_frame_equal(recorded.frame()[columns], plain.frame()[columns], check_exact=True)
    assert np.array_equal(recorded.params, plain.params)
    with pytest.raises(AssertionError):
        pd.testing.assert_frame_equal(other.frame()[columns], plain.frame()[columns], check_exact=True)


def traced(federation: Federation, algorithm: Algorithm, record: tuple[str, ...]) -> Any:
    how: dict[str, Any] = {"engine": "compiled", "participation": None, "eval_every": 1}
    job = make_job(federation, algorithm, 1, record=record, **how)
    state = start(algorithm, federation, jax.random.key(0))
    return jax.make_jaxpr(lambda a, c, s: play_round(a, c, job.plan, s, 1.0))(algorithm, job.federation.clients, state)


def test_without_record_a_round_has_no_tape_and_no_further_output(
    noisy_quadratics: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = Scaffold(**STEPS)
    off, on = traced(noisy_quadratics, algorithm, ()), traced(noisy_quadratics, algorithm, ("consensus",))
    assert len(on.out_avals) == len(off.out_avals) + 1
    assert len(on.eqns) > len(off.eqns)
    assert str(traced(noisy_quadratics, algorithm, ("model_norm",))) == str(off)  # a probe of the model, not of rounds

    def refuse(**about: Any) -> None:
        raise RuntimeError("a tape was made")

    monkeypatch.setattr(round_probes, "Tape", refuse)
    assert str(traced(noisy_quadratics, algorithm, ())) == str(off)
    with pytest.raises(RuntimeError, match="a tape was made"):
        traced(noisy_quadratics, algorithm, ("consensus",))


def test_the_iterates_of_all_steps_are_kept_only_for_probes_that_read_them(quadratics: Federation) -> None:
    algorithm = LocalSGD(step_size=ETA, num_local_steps=97)
    kept = "6,97,4]"  # (clients, steps, d), or steps first while they are taken
    assert kept not in (last := str(traced(quadratics, algorithm, ("consensus", "client_drift", "cosine"))))
    assert "97,6,4]" not in last
    assert kept in str(traced(quadratics, algorithm, ("consensus_inside",)))


# Sweeps, kept runs, configs.


def test_a_sweep_records_what_its_runs_record(noisy_quadratics: Federation) -> None:
    record = [*ROUND, "distance_to_fixed_point", "distance_to_mean_optimum"]
    build_one = lambda eta: LocalSGD(step_size=eta, num_local_steps=K)  # noqa: E731
    how: dict[str, Any] = {"record": record, "participation": 4, "eval_every": 2, "progress": False}
    swept = sj.sweep(noisy_quadratics, build_one, [0.05, ETA], R, seeds=[0, 3], **how).frame()
    for eta, seed in itertools.product([0.05, ETA], [0, 3]):
        alone = sj.run(noisy_quadratics, build_one(eta), R, seed=seed, **how).frame().drop(columns="seconds")
        rows = swept[(swept["value"] == eta) & (swept["seed"] == seed)].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows[alone.columns], alone, check_exact=False, rtol=0, atol=1e-12)
    assert swept.groupby(["value", "seed"])["consensus"].last().nunique() == 4
    assert swept.groupby(["value", "seed"])["distance_to_fixed_point"].first().nunique() == 2  # by step size


def test_a_resumed_run_keeps_its_vectors(noisy_quadratics: Federation, tmp_path: Path) -> None:
    algorithm = Scaffold(**STEPS)
    how: dict[str, Any] = {"record": ["consensus_inside", "client_drift"], "participation": 4, "eval_every": 2}
    whole = run(noisy_quadratics, algorithm, 6, **how).frame().drop(columns="seconds")
    run(noisy_quadratics, algorithm, 2, out=tmp_path, **how)
    resumed = run(noisy_quadratics, algorithm, 6, out=tmp_path, resume=True, **how).frame()
    pd.testing.assert_frame_equal(resumed[whole.columns], whole, check_exact=True)


def test_long_vectors_make_short_chunks(quadratics: Federation) -> None:
    how: dict[str, Any] = {"engine": "compiled", "participation": None, "eval_every": 1}
    algorithm = LocalSGD(step_size=ETA, num_local_steps=900)
    plans = [make_job(quadratics, algorithm, 9, record=r, grid=None, **how).plan for r in ((), ("consensus_inside",))]
    assert [plan.row_size for plan in plans] == [0, 900]
    several = [dataclasses.replace(plan, grid=(10, 10)) for plan in plans]
    capacities = [Compiled().capacity(plan) for plan in several]
    assert capacities[1] * 100 * 900 < 2**20 < capacities[0] * 100 * 900


# Mistakes.


class NoVector(LocalSGD):
    """Its walk holds bare arrays."""

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        step = lambda y, z, k: y - self.step_size * oracle.grad(Vec(y), z).tree  # noqa: E731
        return Vec(oracle.walk(step, down.tree, 2, key)) - down, memory, {}


class Told(NoVector):
    """The same, and says where its model is."""

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        step = lambda y, z, k: y - self.step_size * oracle.grad(Vec(y), z).tree  # noqa: E731
        return Vec(oracle.walk(step, down.tree, 2, key, iterate=Vec)) - down, memory, {}


class Endless(LocalSGD):
    """Does not say how many steps there are at most."""

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        y = descend(oracle, down, self.step_size, jnp.asarray(2, jnp.int32), key)
        return y - down, memory, {}


def unknown_federation(num_clients: int = 2) -> Federation:
    return sj.federation(_squares, np.zeros(2), [np.ones((1, 2))] * num_clients, name="mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("suboptimality", r"needs the minimum of the objective \(facts.f_star\), which is not known"),
        ("distance", r'facts.x_star\), which is not known of the federation "mine"'),
        ("distance_to_mean_optimum", r"the clients' own optima \(facts.optima\)"),
        ("distance_to_fixed_point", r"the clients' constant Hessians \(facts.hessians\)"),
        ("concensus", 'did you mean "consensus"'),
    ],
)
def test_a_missing_fact_is_a_sentence_before_anything_runs(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SojournError, match=message):
        run(unknown_federation(), LocalSGD(step_size=ETA), 2, record=[name], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_probes_that_cannot_be_recorded_are_refused(quadratics: Federation) -> None:
    many = unknown_federation(1001)
    cases: list[tuple[Federation, Algorithm, str, str]] = [
        (many, LocalSGD(**STEPS), "client_drift", "at most 1,000 clients"),
        (quadratics, LocalSGD(step_size=ETA, num_local_steps=1001), "consensus_inside", "1,001 columns"),
        (quadratics, NoVector(**STEPS), "consensus", "holds no Vec; give walk its iterate"),
        (quadratics, Endless(**STEPS), "consensus_inside", "give walk its max_steps"),
    ]
    for federation, algorithm, name, message in cases:
        with pytest.raises(SojournError, match=message):
            run(federation, algorithm, 1, record=[name], participation=2)
    accelerated = run(quadratics, make("ac-sa"), 1, record=["distance_to_fixed_point"])
    assert "distance_to_fixed_point" not in accelerated.frame()  # it has no such fixed point
    # what is next to each of them is taken
    assert run(quadratics, Told(**STEPS), 1, record=["consensus"]).last("consensus") > 0
    assert run(quadratics, Endless(**STEPS), 1, record=["consensus"]).last("consensus") > 0
    assert (
        "consensus_inside.1000"
        in run(quadratics, LocalSGD(step_size=1e-3, num_local_steps=1000), 1, record=["consensus_inside"]).frame()
    )
    assert run(quadratics, LocalACSA(smoothness=20.0), 1, record=["consensus"]).last("consensus") > 0


def test_optima_that_do_not_fit_the_model_are_refused(quadratics: Federation) -> None:
    facts = dataclasses.replace(quadratics.facts, optima=np.zeros((6, 3)))
    with pytest.raises(SojournError, match=r"one optimum of 4 numbers per client; facts.optima has shape \(6, 3\)"):
        run(dataclasses.replace(quadratics, facts=facts), LocalSGD(step_size=ETA), 1, record="distance_to_mean_optimum")
