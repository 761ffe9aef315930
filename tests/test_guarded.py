"""Guards: the contract around every method, bounded answers, noise of the stated size, what privacy adds up to."""

import builtins
import dataclasses
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2, norm

import sojourn as sj
from conftest import random_quadratics
from sojourn import sweeping
from sojourn.algorithms import (
    ALGORITHMS,
    CELSGD,
    FedAc,
    FedAsync,
    FedAvg,
    FedBuff,
    LocalSGD,
    Scaffold,
    SingleMachineSGD,
    guarded,
)
from sojourn.algorithms.base import Algorithm, Context, Exchange, Info, ModelState, Who, World
from sojourn.algorithms.clipping import clipped, noise_like
from sojourn.algorithms.privacy import epsilon_spent, noise_for, releases
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.gaussian_mechanism import epsilon_of, of_several
from sojourn.core.keys import root_key, server_key
from sojourn.core.options import positive
from sojourn.core.oracle import Oracle
from sojourn.core.vec import Vec
from sojourn.engine.rounds import Plan, play_exchanges, start
from sojourn.report.guards import guards_html, guards_note
from sojourn.report.runs import split
from sojourn.report.table import rich_table
from sojourn.sweeping import Setting
from test_contract import assert_rounds_keep_the_state, make, network_federation, quick_compilation

LOCAL = LocalSGD(step_size=0.05, num_local_steps=3)
PRIVATE: dict[str, Any] = {"clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-3}
IN_ROUNDS = [name for name, method in ALGORITHMS.items() if not method.cls.asynchronous]


@pytest.fixture(autouse=True)
def quick() -> Any:
    with quick_compilation():
        yield


def run(federation: Federation, algorithm: Algorithm, rounds: int, **how: Any) -> Any:
    return sj.run(federation, algorithm, rounds, progress=False, **how)


# --- clipping ---------------------------------------------------------------------------------------------------------

wild = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (4, 3), elements=wild), arrays(np.float32, 3, elements=wild), st.floats(1e-3, 1e3))
def test_replacing_one_answer_moves_the_sum_of_clipped_ones_by_at_most_twice_the_clip(
    answers: np.ndarray, other: np.ndarray, clip: float
) -> None:
    """Whatever is sent, infinities and what is no number included."""
    bound = jnp.float32(clip)
    cut = lambda up: np.asarray(clipped(Vec(jnp.asarray(up)), Vec(jnp.zeros(3)), bound)[0].tree, np.float64)  # noqa: E731
    pieces = [cut(up) for up in answers]
    assert all(np.linalg.norm(piece) <= clip * (1 + 1e-6) for piece in pieces)
    moved = sum(pieces) - sum([cut(other), *pieces[1:]])
    assert np.linalg.norm(moved) <= 2 * clip * (1 + 1e-6)


def test_opposite_answers_reach_the_bound_of_twice_the_clip() -> None:
    """Negative control: a sensitivity of once the clip would be wrong."""
    cut = lambda up: np.asarray(clipped(jnp.asarray(up), jnp.zeros(2), 1.0)[0])  # noqa: E731
    assert np.linalg.norm(cut([30.0, 40.0]) - cut([-30.0, -40.0])) == pytest.approx(2)


@pytest.mark.parametrize("size", [1e-42, 1e-38, 8.5e37, 3.4e38])
def test_answers_at_the_ends_of_the_numbers_are_clipped(size: float) -> None:
    """One over 8.5e37 is too small for a normal number; a product with it would say that the answer has no length."""
    found, over = jax.jit(clipped)(jnp.float32([size, 0.0]), jnp.zeros(2, jnp.float32), jnp.float32(2.0))
    assert bool(over) == (size > 2) and float(jnp.linalg.norm(found)) <= 2.0 * (1 + 1e-6)


def test_clipping_is_the_textbooks_and_leaves_short_answers_alone(x64: None) -> None:
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 30.0, 1e200):
        up, origin = rng.normal(size=5) * scale, rng.normal(size=5)
        found, over = clipped(jnp.asarray(up), jnp.asarray(origin), 2.0)
        length = np.linalg.norm((up - origin) / scale) * scale  # squares of 1e200 are no numbers
        expected = up if length <= 2 else origin + (up - origin) * (2 / length)
        np.testing.assert_allclose(found, expected, rtol=1e-13)
        assert bool(over) == (length > 2)
    assert np.array_equal(clipped(jnp.asarray([0.1, 0.2]), jnp.asarray([0.3, 0.7]), 9.0)[0], [0.1, 0.2])


def test_an_answer_is_measured_from_the_one_that_changes_nothing(x64: None) -> None:
    """Every registered method: clients that are clipped to almost nothing leave the server's model where it was."""
    hessians, optima = random_quadratics(4, 3)
    federation = sj.problems.quadratic(hessians, optima, x0=[100.0, -50.0, 20.0])
    for name in IN_ROUNDS:
        algorithm = make(name)
        if getattr(algorithm, "optimizer", "sgd") != "sgd":
            continue  # a server that normalises makes long steps of the shortest answers
        state, guard = start(algorithm, federation, root_key(0)), guarded(algorithm, clip=1e-9)
        exchanges = guard.opening() or guard.exchanges()
        server = play_exchanges(guard, exchanges, federation.clients, Plan(4, 4), state)[0]
        np.testing.assert_allclose(guard.model(server).tree, federation.x0.tree, atol=1e-6, err_msg=name)


def test_from_zero_models_would_be_clipped_to_nothing(x64: None) -> None:
    """Negative control: without its origin, a method whose clients send models would lose them."""

    class Forgetful(FedAc):
        sends_models: ClassVar[bool] = False

    federation = sj.problems.quadratic(*random_quadratics(4, 3), x0=[100.0, -50.0, 20.0])
    for cls, length in ((FedAc, np.linalg.norm([100, 50, 20])), (Forgetful, 0.0)):
        history = run(federation, guarded(cls(step_size=0.05, strong_convexity=0.5), clip=1e-9), 1)
        assert np.linalg.norm(np.asarray(history.params)) == pytest.approx(length, abs=1e-6)


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_a_guarded_method_keeps_the_contract(name: str) -> None:
    everyone = sj.problems.quadratic(*random_quadratics(4, 3))
    for federation in (everyone, network_federation("bfloat16")):
        for guard in (guarded(make(name), clip=0.1), guarded(make(name), **PRIVATE), guarded(make(name), "median")):
            assert_rounds_keep_the_state(federation, guard)
            assert all(isinstance(leaf, jax.Array) and leaf.shape == () for leaf in jax.tree.leaves(guard))


OPTIONS: list[dict[str, Any]] = [
    {"aggregator": "median"},
    {"aggregator": "krum", "attackers": 1, "keep": 2},
    {"clip": 0.3},
    PRIVATE,
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o.get("aggregator", "private" if "delta" in o else "clip"))
def test_engines_agree_on_guarded_runs(options: dict[str, Any], noisy_quadratics: Federation) -> None:
    method = LOCAL if len(options) == 1 else Scaffold(step_size=0.05, num_local_steps=2)
    one, other = (
        run(noisy_quadratics, guarded(method, **options), 3, participation=5, engine=engine)
        for engine in ("compiled", "reference")
    )
    np.testing.assert_allclose(one.params, other.params, rtol=0, atol=1e-12)
    columns = [name for name in one.frame() if name.startswith(("floats", "clipped", "drift"))]
    np.testing.assert_allclose(one.frame()[columns].iloc[1:], other.frame()[columns].iloc[1:], atol=1e-12)
    plain = run(noisy_quadratics, method, 3, participation=5)
    assert one.frame()["floats_up"].tolist() == plain.frame()["floats_up"].tolist()  # nothing more is sent
    assert np.abs(np.asarray(one.params) - np.asarray(plain.params)).max() > 1e-4


def test_a_guard_that_never_acts_is_the_method(noisy_quadratics: Federation) -> None:
    for method in (LOCAL, CELSGD(step_size=0.05, num_local_steps=2)):
        plain = run(noisy_quadratics, method, 4).params
        np.testing.assert_allclose(run(noisy_quadratics, guarded(method, clip=1e6), 4).params, plain, atol=1e-12)
    assert guarded(LOCAL) is LOCAL


def test_a_sweep_over_the_clip_is_its_runs_and_one_program(noisy_quadratics: Federation) -> None:
    many = sj.sweep(noisy_quadratics, lambda c: guarded(LOCAL, clip=c), [0.05, 0.5], 5, seeds=(0, 1), progress=False)
    for clip in (0.05, 0.5):
        one = run(noisy_quadratics, guarded(LOCAL, clip=clip), 5, seed=1).frame()
        rows = many.frame().query("value == @clip and seed == 1")
        np.testing.assert_allclose(rows["distance"], one["distance"], atol=1e-12)
        np.testing.assert_allclose(rows["clipped"], one["clipped"], atol=1e-12)


def test_a_private_run_goes_on_to_the_same_bits(noisy_quadratics: Federation, tmp_path: Path) -> None:
    algorithm = guarded(LOCAL, **PRIVATE)
    whole = run(noisy_quadratics, algorithm, 6, participation=3, out=tmp_path / "a")
    run(noisy_quadratics, algorithm, 3, participation=3, out=tmp_path / "b")
    resumed = run(noisy_quadratics, algorithm, 6, participation=3, out=tmp_path / "b", resume=True)
    assert np.array_equal(whole.params, resumed.params)
    assert resumed.manifest["privacy"] == whole.manifest["privacy"]
    other = guarded(LOCAL, **PRIVATE | {"noise_multiplier": 2.5})
    with pytest.raises(SojournError, match="another run"):
        run(noisy_quadratics, other, 7, participation=3, out=tmp_path / "b", resume=True)


@pytest.mark.parametrize("method", [FedAsync(0.05, 3), FedBuff(0.05, 3, buffer_size=2)], ids=["fedasync", "fedbuff"])
def test_answers_that_come_one_by_one_are_clipped_in_both_engines(method: Any, x64: None) -> None:
    hessians, optima = random_quadratics()
    federation = sj.problems.quadratic(hessians, 10 + optima, noise=0.5)  # far from the start
    work = sj.traces.Work(3, method.uploads_per_update(), np.ones(6))
    trace = sj.traces.busy(6, 12, None, work)
    algorithm = guarded(method, clip=0.05)
    one, other = (run(federation, algorithm, 12, trace=trace, engine=e) for e in ("compiled", "reference"))
    np.testing.assert_allclose(one.params, other.params, rtol=0, atol=1e-12)
    assert np.linalg.norm(np.asarray(one.params)) <= 12 * 0.05
    assert np.linalg.norm(np.asarray(run(federation, method, 12, trace=trace).params)) > 12 * 0.05
    assert one.frame()["clipped"].iloc[1:].mean() > 0.5


def test_a_guarded_run_has_no_theory_of_the_plain_one(quadratics: Federation) -> None:
    assert run(quadratics, LOCAL, 2).manifest["landmarks"]
    assert run(quadratics, guarded(LOCAL, clip=0.1), 2).manifest["landmarks"] == {}
    recorded = run(quadratics, guarded(LOCAL, clip=0.1), 2, record=["distance_to_fixed_point"])
    assert "distance_to_fixed_point" not in recorded.frame()


# --- the server's randomness ------------------------------------------------------------------------------------------


class Tossing(Algorithm):
    """Adds what its server draws, in two exchanges of one purpose."""

    scale: Any = positive(1.0)

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return down.zeros(), memory, {}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        assert context.key is not None
        return ModelState(server.x + self.scale * noise_like(context.key, server.x, 1.0))

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.broadcast, self.local, self.aggregate),) * 2


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_a_servers_key_is_folded_by_round_purpose_and_place(engine: str, quadratics: Federation) -> None:
    expected = np.zeros(4)
    for round in range(3):
        for place in range(2):
            key = server_key(jax.random.fold_in(root_key(0), round), "local", place)
            expected = expected + np.asarray(jax.random.normal(jax.random.split(key, 1)[0], (4,)))
    np.testing.assert_allclose(run(quadratics, Tossing(), 3, engine=engine).params, expected, atol=1e-12)


class TossingAlone(Tossing):
    """The same, upload by upload."""

    asynchronous: ClassVar[bool] = True

    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange(self.broadcast, self.local, self.aggregate),)


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_in_virtual_time_a_servers_key_is_folded_by_the_upload(engine: str, quadratics: Federation) -> None:
    expected = np.zeros(4)
    for upload in range(5):
        key = server_key(jax.random.fold_in(root_key(0), upload), "local")
        expected = expected + np.asarray(jax.random.normal(jax.random.split(key, 1)[0], (4,)))
    trace = sj.traces.busy(6, 5, None, sj.traces.Work(1, 1, np.ones(6)))
    np.testing.assert_allclose(
        run(quadratics, TossingAlone(), 5, engine=engine, trace=trace).params, expected, atol=1e-12
    )


# --- privacy ----------------------------------------------------------------------------------------------------------


class Silent(Algorithm):
    """Clients answer zeros: all that moves the server is noise."""

    def init_server(self, x0: Vec) -> ModelState:
        return ModelState(x0)

    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Vec, Any, Info]:
        return down.zeros(), memory, {}

    def aggregate(self, server: ModelState, up: Vec, context: Context) -> ModelState:
        return ModelState(up)


def in_band(numbers: np.ndarray, deviation: float) -> bool:
    """Whether the variance is that one: a two-sided test of level 1e-6."""
    low, high = chi2.ppf([5e-7, 1 - 5e-7], numbers.size) * deviation**2
    return bool(low <= np.sum(numbers**2) <= high)


def test_the_noise_has_the_stated_deviation_and_is_independent_over_rounds_and_coordinates(x64: None) -> None:
    algorithm = guarded(Silent(), clip=0.5, noise_multiplier=3.0, delta=1e-3)
    (exchange,), nothing = algorithm.exchanges(), Vec(jnp.zeros((4, 500)))

    def moved(round: jax.Array) -> jax.Array:
        key = server_key(jax.random.fold_in(root_key(1), round), exchange.purpose)
        context = Context(round, 4, 4, weights=jnp.full(4, 0.25), key=key)
        return exchange.aggregate(ModelState(Vec(jnp.zeros(500))), nothing, context).x.tree

    noise = np.asarray(jax.vmap(moved)(jnp.arange(8)))
    assert in_band(noise, 3.0 * 0.5 / 4)
    assert not in_band(noise, 3.0 * 0.5 / 4 * 1.1) and not in_band(noise, 3.0 * 0.5)  # negative controls
    apart = np.abs(np.corrcoef(noise)[np.triu_indices(8, 1)])
    assert apart.max() < norm.ppf(1 - 1e-6) / math.sqrt(500)


def test_runs_of_one_seed_with_other_numbers_share_no_noise(x64: None) -> None:
    """Noise that is shared cancels in a difference of two runs; nor is the inner method's randomness the guard's."""

    def noise(inner: Algorithm = Silent(), **changes: Any) -> np.ndarray:  # noqa: B008
        algorithm = guarded(inner, **PRIVATE | changes)
        (exchange, *_), key = algorithm.exchanges(), server_key(root_key(1), "local")
        context = Context(jnp.zeros((), int), 4, 4, weights=jnp.full(4, 0.25), key=key)
        return np.asarray(exchange.aggregate(ModelState(Vec(jnp.zeros(500))), Vec(jnp.zeros((4, 500))), context).x.tree)

    several = [noise(), noise(noise_multiplier=2.0 + 1e-12), noise(clip=0.6), noise(Tossing())]
    assert np.array_equal(several[0], noise())
    apart = np.abs(np.corrcoef(several)[np.triu_indices(4, 1)])
    assert apart.max() < norm.ppf(1 - 1e-6) / math.sqrt(500)


def test_exchanges_of_one_purpose_tell_of_their_clipping_apart(quadratics: Federation) -> None:
    columns = [name for name in run(quadratics, guarded(Tossing(), clip=1.0), 1).frame() if "clipped" in name]
    assert columns == ["clipped_local_1", "clipped_local_2"]


def test_the_epsilon_of_one_round_with_everyone_lies_just_above_the_exact_one() -> None:
    looks = releases(LOCAL, 10, 10, 1)
    assert looks == {(10, 10, 1): 1}
    for z in (1.0, 4.0, 12.0):
        exact, found = epsilon_of(z / 2, 1e-5), epsilon_spent(looks, z, 1e-5)
        assert exact <= found <= 1.2 * exact
        assert not found <= 1.2 * epsilon_of(z, 1e-5)  # as if a replaced client moved the sum by one clip only


def test_rounds_and_exchanges_add_up() -> None:
    """T looks at everyone are as one with z / sqrt(T), exactly, and so are the exchanges of a round on one cohort."""
    spent = lambda looks: epsilon_spent(looks, 8.0, 1e-5)  # noqa: E731
    whole = spent(releases(LOCAL, 10, 10, 16))
    assert whole == pytest.approx(epsilon_spent(releases(LOCAL, 10, 10, 1), of_several(8.0, 16), 1e-5))
    assert epsilon_of(of_several(4.0, 16), 1e-5) <= whole <= 1.2 * epsilon_of(of_several(4.0, 16), 1e-5)
    assert whole == pytest.approx(spent(releases(Tossing(), 10, 10, 8)))
    assert releases(Tossing(), 100, 10, 8) == {(10, 100, 2): 8}  # two looks at one cohort, not two cohorts


def test_a_sampled_cohort_is_more_private_and_never_less_than_everyone() -> None:
    everyone = epsilon_spent(releases(LOCAL, 100, 100, 50), 4.0, 1e-5)
    few, most = (epsilon_spent(releases(LOCAL, 100, n, 50), 4.0, 1e-5) for n in (5, 99))
    assert few < everyone / 3 and most <= everyone


def test_what_is_released_is_counted_for_every_kind_of_method() -> None:
    estimate = CELSGD(step_size=0.1, num_local_steps=2)
    assert releases(estimate, 50, 10, 5) == {(10, 50, 1): 5, (1, 50, 1): 5}
    assert releases(SingleMachineSGD(step_size=0.1), 50, 50, 5) == {(1, 1, 1): 5}
    again = make("mb-sarah", restart_every=3)
    assert releases(again, 50, 50, 7) == {(50, 50, 1): 7}
    lamb = make("fed-lamb", warm_start="gradients")
    assert releases(lamb, 50, 50, 4) == {(50, 50, 2): 1, (50, 50, 1): 3}


def test_where_nobody_is_drawn_nothing_is_gained() -> None:
    estimate = CELSGD(step_size=0.1)
    assert releases(estimate, 50, 10, 5, drawn=False) == {(10, 10, 1): 5, (1, 1, 1): 5}
    z = {drawn: noise_for(LOCAL, 2.0, 1e-5, num_clients=50, rounds=5, cohort=5, drawn=drawn) for drawn in (True, False)}
    assert z[False] == noise_for(LOCAL, 2.0, 1e-5, num_clients=5, rounds=5) > 1.5 * z[True]
    private, world = guarded(estimate, **PRIVATE), World(50, 10)
    told = [private.account(w, 5)["privacy"] for w in (world, dataclasses.replace(world, drawn=False), World(50, 50))]
    assert [one["sampling"] for one in told] == [
        "10 of 50 and 1 of 50, without replacement", "none", "1 of 50, without replacement"
    ]  # fmt: skip
    assert told[1]["epsilon"] > told[0]["epsilon"]


def test_the_multiplier_for_an_epsilon_is_the_least() -> None:
    z = noise_for(LOCAL, 2.0, 1e-5, num_clients=100, rounds=10, cohort=20)
    looks = releases(LOCAL, 100, 20, 10)
    assert epsilon_spent(looks, z, 1e-5) <= 2.0 < epsilon_spent(looks, 0.995 * z, 1e-5)


def test_the_manifest_and_the_report_say_what_was_given_away(quadratics: Federation) -> None:
    private = run(quadratics, guarded(LOCAL, **PRIVATE), 5, participation=4)
    told = private.manifest["privacy"]
    assert told["epsilon"] == epsilon_spent(releases(LOCAL, 6, 4, 5), 2.0, 1e-3)
    assert told["delta"] == 1e-3 and told["releases"] == 5 and told["sampling"] == "4 of 6, without replacement"
    assert private.manifest["algorithm"]["method"]["class"] == "LocalSGD"
    json.dumps(private.manifest["algorithm"] | told)
    runs = split([private, run(quadratics, LOCAL, 5), run(quadratics, guarded(LOCAL, "median"), 5)])
    page = guards_html(runs)
    assert f"{told['epsilon']:.4g} at 0.001" in page and "median" in page and page.count("<tr>") == 3
    assert "twice the clip" in guards_note(runs) and guards_html(runs[1:2]) == ""
    share = 100 * private.frame()["clipped"].iloc[1:].mean()
    assert f"{share:.3g} %" in page
    headings = [str(column.header) for column in rich_table([private]).columns]
    assert "epsilon\nat delta" in headings
    assert "epsilon\nat delta" not in [str(column.header) for column in rich_table([run(quadratics, LOCAL, 2)]).columns]


def test_every_setting_of_a_sweep_tells_its_own_epsilon(quadratics: Federation) -> None:
    make_one = lambda z: guarded(LOCAL, **PRIVATE | {"noise_multiplier": z})  # noqa: E731
    history = sj.sweep(quadratics, make_one, [2.0, 4.0], 5, progress=False)
    found = [entry["privacy"]["epsilon"] for entry in history.manifest["settings"]]
    assert found == [epsilon_spent(releases(LOCAL, 6, 6, 5), z, 1e-3) for z in (2.0, 4.0)]
    assert "privacy" not in history.manifest


def test_an_epsilon_of_a_sweep_is_of_the_rounds_that_its_setting_was_played(
    quadratics: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that diverged gave less away; of a sweep too large to be described every epsilon is kept all the same."""
    make_one = lambda clip: guarded(LOCAL, **PRIVATE | {"clip": clip})  # noqa: E731 -- and noise in proportion
    spent = lambda rounds: epsilon_spent(releases(LOCAL, 6, 6, rounds), 2.0, 1e-3)  # noqa: E731
    for most in (100, 1):
        monkeypatch.setattr(sweeping, "_MAX_DESCRIBED", most)
        history = sj.sweep(quadratics, make_one, [0.5, 1e30], 5, progress=False)
        ends = history.frame().groupby("value")["round"].max()
        assert ends[1e30] < ends[0.5] == 5
        entries = history.manifest["settings"]
        assert [entry["labels"]["value"] for entry in entries] == [0.5, 1e30]
        assert [entry["privacy"]["epsilon"] for entry in entries] == [spent(5), spent(int(ends[1e30]))]


def test_a_setting_that_never_ran_gave_nothing_away(quadratics: Federation) -> None:
    settings = [Setting(guarded(LOCAL, **PRIVATE), 0, {"value": value}) for value in (0, 1)]
    first, second = sweeping._described(quadratics, settings, 6, {0: 3})
    assert first["privacy"]["epsilon"] == epsilon_spent(releases(LOCAL, 6, 6, 3), 2.0, 1e-3)
    assert "privacy" not in second


def test_without_the_accountant_a_private_run_says_what_to_install(
    quadratics: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SojournError, match=r"pip install 'sojourn\[privacy\]'"):
        run(quadratics, guarded(LOCAL, **PRIVATE), 2)
    run(quadratics, guarded(LOCAL, clip=0.5), 2)


# --- what is refused --------------------------------------------------------------------------------------------------


class Counting(Silent):
    def local(self, down: Vec, memory: Any, oracle: Oracle, key: jax.Array) -> tuple[Any, Any, Info]:
        return jnp.zeros(3, jnp.int32), memory, {}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: guarded(LOCAL, "mode"), "is not known"),
        (lambda: guarded(LOCAL, "median", trim=0.1), "trim is not known"),
        (lambda: guarded(LOCAL, "trimmed-mean", trim=0.5), "below 0.5"),
        (lambda: guarded(LOCAL, "krum", attackers=0), "at least 1"),
        (lambda: guarded(LOCAL, clip=-1.0), "above 0"),
        (lambda: guarded(guarded(LOCAL, clip=1.0), "median"), "all its options at once"),
        (lambda: guarded(FedAsync(0.1), "median"), "needs several answers at once"),
        (lambda: guarded(FedBuff(0.1), **PRIVATE), "hide one among many"),
        (lambda: guarded(LOCAL, noise_multiplier=1.0, delta=1e-5), "give clip"),
        (lambda: guarded(LOCAL, clip=1.0, noise_multiplier=1.0), "delta = None"),
        (lambda: guarded(LOCAL, clip=1.0, delta=1e-5), "give noise_multiplier too"),
        (lambda: guarded(LOCAL, "median", **PRIVATE), "the noise is that of a mean"),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, words: str) -> None:
    with pytest.raises(SojournError, match=words):
        build()


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (guarded(LOCAL, "krum", attackers=2), "7"),
        (guarded(CELSGD(step_size=0.1), "median"), "1 answer at a time"),
        (guarded(LocalSGD(step_size=0.1, output="uniform"), clip=1.0), "no bounded length"),
        (guarded(CELSGD(step_size=0.1, output="uniform"), clip=1.0), "no bounded length"),
        (guarded(Counting(), clip=1.0), "whole numbers"),
    ],
    ids=["krum", "one", "closing", "candidate", "whole"],
)
def test_what_does_not_fit_the_federation_is_refused(algorithm: Algorithm, words: str, quadratics: Federation) -> None:
    with pytest.raises(SojournError, match=words):
        run(quadratics, algorithm, 2)


def test_unequal_weights_are_refused_until_they_are_given_up(x64: None) -> None:
    hessians, optima = random_quadratics(4, 3)
    uneven = sj.problems.quadratic(hessians, optima, weights=[1, 2, 3, 4])
    for options in ({"aggregator": "median"}, PRIVATE):
        with pytest.raises(SojournError, match='weights = "equal"'):
            run(uneven, guarded(LOCAL, **options), 2)
        found = run(uneven, guarded(LOCAL, weights="equal", **options), 2).params
        even = sj.problems.quadratic(hessians, optima)
        np.testing.assert_allclose(found, run(even, guarded(LOCAL, **options), 2).params, atol=1e-12)


def test_privacy_refuses_weights_that_are_data_however_equal(quadratics: Federation) -> None:
    average = FedAvg(step_size=0.05)
    with pytest.raises(SojournError, match=r'set aggregation.weights = "equal", in Python weights="equal"'):
        run(quadratics, guarded(average, **PRIVATE), 1)
    run(quadratics, guarded(average, weights="equal", **PRIVATE), 1)
    run(quadratics, guarded(average, clip=0.5), 1)


def test_privacy_refuses_a_world_that_gives_more_away() -> None:
    private = guarded(LOCAL, **PRIVATE)
    private.check(World(10, 5))
    with pytest.raises(SojournError, match="the start was made of what clients sent"):
        private.check(World(10, 5, made_together=True))
    with pytest.raises(SojournError, match="change hands"):
        private.check(World(10, 5, redealt=True))
    assert Who.ONE.number(10, 5) == Who.FIRST.number(10, 5) == 1
