"""The online game: regret, comparators, what is counted, what an adversary can see, and what is refused."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.online import comparator, protocol
from sojourn.online.adversaries import circle
from sojourn.online.costs import Linear, SquaredResidual, least_by_solver, least_quadratic
from sojourn.online.method import Game

SMALL: dict[str, Any] = {"steps": 40, "num_machines": 3, "num_local_steps": 7, "seeds": (0, 5)}


def kept(stream: Any, method: Any, steps: int = 40, num_machines: int = 3, seeds: tuple[int, ...] = (0, 5)) -> Any:
    """All costs, as the game handed them out: leaves (seeds, steps, machines, ...)."""
    game = Game(steps, 7, num_machines, stream.size, float(stream.radius), stream.known())
    return protocol._compete(stream, method.tuned(game), game, np.array([steps]), list(seeds), True)[2]


# --- regret ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rademacher", "drifting", "heterogeneous", "adaptive"])
def test_regret_of_linear_costs_retyped(name: str, x64: None) -> None:
    stream, method = sj.online.STREAMS[name](5, radius=1.7), sj.online.OGD(step_size=0.1)  # type: ignore[call-arg]
    betas = np.asarray(kept(stream, method).beta)  # (seeds, T, M, d)
    found = sj.online.play(stream, method, **SMALL, records=3).frame()
    for i, seed in enumerate((0, 5)):
        x, total = np.zeros((3, 5)), 0.0
        for t, beta in enumerate(betas[i], 1):
            total += (beta * x).sum()
            x = x - 0.1 * beta
            row = found[(found["seed"] == seed) & (found["step"] == t)]
            if len(row):
                best = -1.7 * np.linalg.norm(betas[i][:t].sum((0, 1))) / (3 * t)
                assert row["comparator"].item() == pytest.approx(best, rel=1e-9)
                assert row["regret"].item() == pytest.approx(total / (3 * t) - best, rel=1e-9)
    assert sorted(set(found["step"])) == [14, 27, 40]


def test_regret_of_two_values_is_at_both_plays(x64: None) -> None:
    """A quadratic bowl: the mean of f(x + delta u) and f(x - delta u) is f(x) + H delta^2 <a, u>^2/2."""
    data = (np.ones((6, 2, 3)) / 3**0.5, np.zeros((6, 2)))
    bowl = sj.online.stream(lambda z, x: (z[0] @ x - z[1]) ** 2 / 2, data, radius=1.0, dimension=3)
    method = sj.online.FedOSGD(step_size=1e-9, exploration=0.5)  # hardly moves from 0
    costs = sj.online.play(bowl, method, 6, num_machines=2, seeds=range(300)).last("cost")
    assert costs.mean() == pytest.approx(0.5**2 / 3 / 2, rel=0.1)  # E <a, u>^2 = 1/3


def test_comparators_exact_against_the_solver(x64: None) -> None:
    rng = np.random.default_rng(0)
    for trial in range(40):
        d = int(rng.integers(1, 6))
        rank = int(rng.integers(1, d + 1))
        root = rng.normal(size=(d, rank))
        A, radius = root @ root.T, float(rng.uniform(0.1, 3))
        b = A @ rng.normal(size=d) * rng.choice([0.1, 3.0]) + (trial % 3 == 0) * rng.normal(size=d)
        value = lambda x, A=A, b=b: (x @ A @ x / 2 - b @ x, A @ x - b)  # noqa: E731
        solved, gap = least_by_solver(value, d, radius)
        exact = least_quadratic(A, b, radius)
        assert exact <= solved + 1e-9 and solved - exact <= gap + 1e-9  # the certificate holds
        assert solved == pytest.approx(exact, abs=1e-5 * (1 + abs(exact)))
    beta = rng.normal(size=4)
    assert Linear.least(beta, 2.0) == pytest.approx(least_by_solver(lambda x: (beta @ x, beta), 4, 2.0)[0], abs=1e-6)
    assert least_quadratic(np.eye(2), np.array([3.0, 0.0]), 1.0) == pytest.approx(0.5 - 3)
    assert least_quadratic(np.zeros((2, 2)), np.zeros(2), 1.0) == 0.0


def test_the_same_costs_written_down_have_the_same_regret(x64: None) -> None:
    """Exact comparator of squared residuals against the solver, through the whole game."""
    stream, method = sj.online.Stochastic(4, noise=0.5), sj.online.FedOGD(step_size=0.2)
    costs = kept(stream, method, seeds=(3,))
    data = (np.asarray(costs.a)[0], np.asarray(costs.y)[0])
    given = sj.online.stream(lambda z, x: 0.5 * (z[0] @ x - z[1]) ** 2, data, radius=1.0, dimension=4)
    exact = sj.online.play(stream, method, **{**SMALL, "seeds": (3,)}, records=4).frame()
    solved = sj.online.play(given, method, **{**SMALL, "seeds": (3,)}, records=4).frame()
    np.testing.assert_allclose(solved["cost"], exact["cost"], rtol=1e-9)
    np.testing.assert_allclose(solved["regret"], exact["regret"], atol=1e-6)
    assert (solved["comparator_gap"] < 1e-4).all() and (exact["comparator_gap"] == 0).all()


def test_the_solver_finds_the_best_point_though_zero_has_no_gradient() -> None:
    """|x| - 3 x_0 is least at (1, 0, 0), where it is -2; a solver that starts at zero is told NaN and stays."""
    kinked = own(lambda z, x: z * jnp.linalg.norm(x) - 3 * x[0], np.ones((9, 2)))
    method = sj.online.TwoPointOGD(step_size=0.1, exploration=0.1)
    found = sj.online.play(kinked, method, 9, num_machines=2)
    assert found.last("comparator")[0] == pytest.approx(-2) and found.last("comparator_gap")[0] < 1e-5
    with pytest.raises(SojournError, match=r"no best point .* not finite"):
        least_by_solver(lambda x: (x @ x, x * np.nan), 3, 1.0)
    with pytest.raises(SojournError, match=r"no best point .* not finite"):
        least_by_solver(lambda x: (np.nan, x), 3, 1.0)


def test_a_written_stream_is_solved_once_and_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    true = comparator.least_by_solver
    monkeypatch.setattr(comparator, "least_by_solver", lambda *how: asked.append(how) or true(*how))
    cone = lambda z, x: jnp.sqrt(1 + (x - z) @ (x - z))  # noqa: E731
    given = [own(cone, np.random.default_rng(i).normal(size=(9, 2, 3)), lipschitz=1.0) for i in (0, 1)]
    first = sj.online.play(given[0], sj.online.OGD(), 9, num_machines=2, seeds=range(3), records=2).frame()
    programs = comparator._mean_cost._cached._cache_size()
    again = sj.online.play(given[0], sj.online.FedOGD(), 9, num_machines=2, num_local_steps=4, records=2).frame()
    assert len(asked) == 2  # two records, and nothing for another method, K or seed
    np.testing.assert_array_equal(first["comparator"], np.tile(again["comparator"], 3))
    other = sj.online.play(given[1], sj.online.OGD(), 9, num_machines=2).frame()
    assert len(asked) == 3 and comparator._mean_cost._cached._cache_size() == programs
    assert other["comparator"][0] != again["comparator"][1]
    known = len(comparator._FOUND)
    del given, asked[:]
    gc.collect()
    assert len(comparator._FOUND) <= known - 2  # forgotten with its stream


def test_costs_that_are_alike_for_all_seeds_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_ = []
    true = protocol._compete
    monkeypatch.setattr(protocol, "_compete", lambda *how: kept_.append(how[-1]) or true(*how))
    monkeypatch.setattr(protocol, "_MAX_KEPT", 20)  # 9 * 2 numbers, whatever the number of seeds
    square = own(lambda z, x: z * (x @ x + jnp.abs(x[0] - 1)))
    found = sj.online.play(square, sj.online.OGD(step_size=0.1), 9, num_machines=2, seeds=range(5))
    assert kept_ == [False] and np.isfinite(found.regret).all()
    monkeypatch.setattr(protocol, "_MAX_KEPT", 17)
    with pytest.raises(SojournError, match="give fewer steps or seeds"):
        sj.online.play(square, sj.online.OGD(step_size=0.1), 9, num_machines=2)


def test_long_sums_are_exact_in_single_precision() -> None:
    """Without noise the best point's cost is exactly 0; a plain sum of 20,000 single numbers is off by far more."""
    found = sj.online.play(sj.online.Smooth(4, noise=0.0), sj.online.OGD(), 20_000, seeds=range(3))
    assert np.abs(found.last("comparator")).max() < 2e-8


@pytest.mark.parametrize("name", sj.online.METHODS)
def test_regret_in_units_of_g_b_does_not_depend_on_them(name: str, x64: None) -> None:
    method = sj.online.METHODS[name]()  # type: ignore[call-arg]
    plain, scaled = (
        sj.online.play(sj.online.Heterogeneous(6, radius=b, lipschitz=g, heterogeneity=0.4 * g), method, **SMALL).regret
        / (g * b)
        for b, g in ((1.0, 1.0), (7.0, 0.02))
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-5)


def test_the_printed_step_of_theorem_19_is_not_free_of_units(x64: None) -> None:
    """Negative control: with B inside the candidates, as printed, regret/(G B) changes with B."""
    found = []
    for b in (1.0, 7.0):
        printed = b / 40**0.5 * min(1.0, 3**0.5 / (6 * b), 1 / ((6 * b) ** 0.5 * 7**0.25))
        stream = sj.online.Drifting(6, radius=b)
        found.append(sj.online.play(stream, sj.online.FedPOSGD(step_size=printed), **SMALL).regret / b)
    assert np.abs(found[0] - found[1]).max() > 0.05


# --- what is counted ---------------------------------------------------------------------------------------------


def test_floats_are_counted_and_k_need_not_divide_t() -> None:
    stream = sj.online.Rademacher(5)
    found = sj.online.play(stream, sj.online.FedOGD(), **SMALL, records=40).frame()
    one = found[found["seed"] == 0].set_index("step")
    assert one["floats_up"][6] == 0 and one["floats_up"][7] == 15 and one["floats_up"][39] == 5 * 15
    assert one["floats_up"][40] == one["floats_down"][40] == 6 * 15  # 40 = 5 * 7 + 5: averaged once more at the end
    assert sj.online.play(stream, sj.online.FedOGD(), **{**SMALL, "steps": 42}).last("floats_up")[0] == 6 * 15
    assert sj.online.play(stream, sj.online.OGD(), **SMALL).last("floats_up").max() == 0


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sj.online.play(sj.online.Drifting(6), sj.online.FedPOSGD(), **SMALL, records=5).frame()
    monkeypatch.setattr(protocol, "_CHUNK", 300)
    pieces = sj.online.play(sj.online.Drifting(6), sj.online.FedPOSGD(), **SMALL, records=5).frame()
    np.testing.assert_allclose(pieces, whole, rtol=2e-5, atol=1e-6)


def test_other_numbers_do_not_compile_again() -> None:
    with jax.log_compiles(False):
        for b, k, eta in ((1.0, 2, 0.1), (2.0, 5, 0.2), (3.0, 7, 0.4)):
            sj.online.play(
                sj.online.Drifting(7, radius=b, share=0.1 * k), sj.online.FedPOSGD(step_size=eta), 30, num_machines=2,
                num_local_steps=k,
            )  # fmt: skip
            if b == 1.0:
                before = protocol._advance.program._cache_size()
        assert protocol._advance.program._cache_size() == before


def test_a_study_is_its_games() -> None:
    games = [{"stream": sj.online.Drifting(d), "method": sj.online.FedOSGD(), **SMALL} for d in (3, 4)]
    for found, game in zip(sj.online.study(games), games, strict=True):
        np.testing.assert_array_equal(found.regret, sj.online.play(**game).regret)


# --- adversaries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rademacher", "drifting", "heterogeneous", "adaptive"])
@pytest.mark.parametrize("num_machines", [1, 2, 5])
def test_gradients_have_norm_g_and_differ_by_zeta_hat(name: str, num_machines: int, x64: None) -> None:
    options: dict[str, Any] = {"lipschitz": 2.0}
    if name in ("heterogeneous", "adaptive"):
        options["heterogeneity"] = 1.1 if num_machines > 1 else 0.0
    stream = sj.online.STREAMS[name](6, **options)  # type: ignore[call-arg]
    betas = np.asarray(kept(stream, sj.online.OGD(), num_machines=num_machines).beta)
    np.testing.assert_allclose(np.linalg.norm(betas, axis=-1), 2.0, rtol=1e-9)
    apart = ((betas - betas.mean(2, keepdims=True)) ** 2).sum(-1).mean(2) ** 0.5
    np.testing.assert_allclose(apart, options.get("heterogeneity", 0.0), atol=1e-9)
    np.testing.assert_allclose(circle(num_machines).sum(0), 0.0, atol=1e-12)


@pytest.mark.parametrize("name", sj.online.STREAMS)
def test_an_adversary_sees_past_plays_and_never_the_machines_random_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch, x64: None
) -> None:
    """Other random numbers of the machines from step 20 on: costs up to that step saw earlier plays, and are equal."""
    stream = sj.online.STREAMS[name](5)  # type: ignore[call-arg]
    method = sj.online.FedOSGD(step_size=0.1, exploration=0.1)
    before = kept(stream, method)
    true = protocol._drawn

    def changed(generators: Any, shape: tuple[int, ...]) -> jax.Array:
        drawn = true(generators, shape)
        return drawn.at[:, 20:].multiply(-1.7).at[:, 20:, :, 0].add(0.3) if len(shape) == 3 else drawn

    monkeypatch.setattr(protocol, "_drawn", changed)
    after = kept(stream, method)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[:, :21], new[:, :21])
    reacts = any((old != new).any() for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    assert reacts == (name == "adaptive")


def test_methods_of_one_seed_meet_the_same_costs(x64: None) -> None:
    first, second = (kept(sj.online.Drifting(5), method) for method in (sj.online.OGD(), sj.online.FedPOSGD()))
    np.testing.assert_array_equal(first.beta, second.beta)
    assert not np.array_equal(first.beta[0], first.beta[1])  # seeds differ


def test_the_adaptive_adversary_retyped(x64: None) -> None:
    stream = sj.online.Adaptive(4, radius=2.0, lipschitz=3.0, target=0.5, memory=3.0)
    centre, seen = np.array([1.0, 0, 0, 0]), np.array([0.5, 0.5, 0, 0])
    nowhere = jnp.zeros((2, 4))
    memory = (jnp.asarray(centre), jnp.asarray(seen), nowhere, nowhere, jnp.ones(()))
    beta = np.asarray(stream.costs(memory, jnp.asarray(0), jnp.zeros(0), 2).beta)
    np.testing.assert_allclose(beta[1], 3 * (seen - centre) / np.linalg.norm(seen - centre))
    own = jnp.asarray([[0, 0, 1.0, 0], [0, 0, -1.0, 0]])
    apart = sj.online.Adaptive(4, lipschitz=3.0, heterogeneity=1.0).costs(
        (*memory[:2], jnp.eye(4)[2:], own, -jnp.ones(())), jnp.asarray(0), jnp.zeros(0), 2
    )
    want = 8**0.5 * (seen - centre) / np.linalg.norm(seen - centre) + np.array([0, 0, 1.0, 0])  # sign -1, machine 1
    np.testing.assert_allclose(apart.beta[1], want)
    plays = np.random.default_rng(0).normal(size=(2, 2, 4))
    np.testing.assert_allclose(stream.watch(memory, jnp.asarray(plays))[1], 0.75 * seen + 0.25 * plays.mean((0, 1)))


def test_smooth_costs_are_non_negative_and_as_smooth_as_stated(x64: None) -> None:
    costs = kept(sj.online.Smooth(5, smoothness=3.0, noise=0.2), sj.online.OGD())
    assert np.allclose(np.linalg.norm(costs.a, axis=-1), 1) and (costs.a == costs.a[:, :, :1]).all()
    one = SquaredResidual(jnp.asarray(costs.a[0, 0, 0]), jnp.asarray(costs.y[0, 0, 0]), jnp.asarray(3.0))
    x = jnp.arange(5.0)
    np.testing.assert_allclose(one.gradient(x), jax.grad(one.value)(x), rtol=1e-9)
    apart = kept(sj.online.Stochastic(5), sj.online.OGD())
    assert (apart.a[:, :, 0] != apart.a[:, :, 1]).any()


def test_digits_arrive_in_changing_order() -> None:
    stream = sj.online.digits(num_machines=2, steps=300, radius=3.0)
    features, labels = (np.asarray(part) for part in stream.data)
    assert features.shape == (300, 2, 64) and np.allclose(np.linalg.norm(features, axis=-1), 1, atol=1e-5)
    halves = labels.reshape(2, 150, 2).mean((1, 2))  # the small digits are frequent first, then the large ones
    assert halves[1] > halves[0] + 0.5
    still = np.asarray(sj.online.digits(num_machines=2, steps=300, order="shuffled").data[1])
    assert np.ptp(still.reshape(2, 150, 2).mean((1, 2))) < 0.3
    regret = sj.online.play(stream, sj.online.FedOGD(), 300, num_machines=2, num_local_steps=10)
    assert regret.last("comparator_gap")[0] < 1e-3 and abs(regret.regret[0]) < 3.0 / 300**0.5  # theorem 17


# --- what is refused ---------------------------------------------------------------------------------------------


def own(function: Any = lambda z, x: z * x.sum(), data: Any = np.ones((9, 2)), **options: Any) -> Any:  # noqa: B008
    return sj.online.stream(function, data, **{"radius": 1.0, "dimension": 3, **options})


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: sj.online.Drifting(8, radius=0.0), "radius = 0 is out of range"),
        (lambda: own(radius=0.0), "radius = 0 is out of range"),
        (lambda: sj.online.Heterogeneous(8, heterogeneity=2.5), "more than twice lipschitz = 1"),
        (lambda: sj.online.Heterogeneous(8, heterogeneity=1.5), "is above lipschitz = 1"),
        (lambda: own(lipschitz=1.0, heterogeneity=2.1), "more than twice lipschitz"),
        (lambda: own(lipschitz=-1.0), "lipschitz = -1.0 is out of range"),
        (lambda: own(data=np.ones(9)), r"lead with \(steps, machines\)"),
        (lambda: own(dimension=0), "dimension = 0 does not fit"),
        (lambda: own(lambda z, x: x), "a cost is a single number"),
        (lambda: own(lambda z, x: z @ x), "fails at a point of dimension 3"),
        (lambda: own(lambda z, x: z["b"] @ x, {"a": np.ones((9, 2))}), "dimension 3: KeyError: 'b'"),
        (lambda: own(data=np.full((9, 2), "word")), "arrays of numbers; got ndarray"),
        (lambda: own(lambda z, x: z * jnp.cos(9 * x[0])), r"is not convex: .* on average"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.OGD(), 5, seeds=3), "seeds = 3 does not fit"),  # type: ignore[arg-type]
        (lambda: sj.online.study([{"stream": sj.online.Cone(3)}]), "missing a required argument: 'method'"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.FedPOSGD(), 5), "FedPOSGD's step size by theory is for"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.SCRiBLE(), 5), "SCRiBLE's step size by theory is for"),
        (lambda: sj.online.Drifting(1), "too small for Drifting"),
        (lambda: sj.online.digits(order="backwards"), "order = 'backwards' does not fit"),
        (lambda: sj.online.play(sj.online.Heterogeneous(8), sj.online.OGD(), 10), "one machine cannot differ"),
        (lambda: sj.online.play(own(), sj.online.OGD(step_size=0.1), 9), "made for 2"),
        (lambda: sj.online.play(own(), sj.online.OGD(step_size=0.1), 10, num_machines=2), "the costs of 9 steps"),
        (lambda: sj.online.play(own(), sj.online.OGD(), 9, num_machines=2), "needs the stream's lipschitz"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.OGD(), 10, num_local_steps=0), "num_local_steps = 0"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.OGD(), 0), "steps = 0"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.OGD(), 5, seeds=()), "seeds is empty"),
        (lambda: sj.online.play(sj.online.Cone(3), sj.online.OGD(), 5, seeds=(-1,)), "seed = -1 is out of range"),
        (lambda: sj.online.play(sj.online.OGD(), sj.online.Cone(3), 5), "in this order"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(mistake: Any, message: str) -> None:
    with pytest.raises(SojournError, match=message) as told:
        mistake()
    assert "\n" not in str(told.value)


def test_costs_that_are_undefined_outside_the_ball_are_told_and_constrained_plays_mend_it() -> None:
    data = np.ones((30, 2))
    log = own(lambda z, x: -z * jnp.log(1.2 - x @ x) - 3 * x[0], data, lipschitz=3.0)  # NaN from |x|^2 = 1.2 on
    with pytest.raises(SojournError, match=r"a cost is not finite in step .* radius 1.*constrained=True"):
        sj.online.play(log, sj.online.OGD(step_size=0.3), 30, num_machines=2)
    inside = sj.online.play(log, sj.online.OGD(step_size=0.05, constrained=True), 30, num_machines=2)
    assert np.isfinite(inside.regret).all()
    holes = own(data=np.where(np.arange(18).reshape(9, 2) == 7, np.nan, 1.0), radius=9.0)
    for method in (sj.online.OGD(step_size=0.1), sj.online.TwoPointOGD(step_size=0.1, constrained=True)):
        with pytest.raises(SojournError, match=r"step 4 of 9, although all plays were in the ball.*not finite there"):
            sj.online.play(holes, method, 9, num_machines=2)


def test_methods_for_linear_costs_take_other_costs_with_a_step_and_linear_ones_without() -> None:
    assert sj.online.play(sj.online.Cone(3), sj.online.FedPOSGD(step_size=0.01), 5).regret > 0
    linear = own(smoothness=0.0, lipschitz=3**0.5, heterogeneity=0.0)
    assert np.isfinite(sj.online.play(linear, sj.online.FedPOSGD(), 9, num_machines=2).regret).all()
