"""A diagnosis against dense NumPy: every estimate without facts, on quadratics where all is known."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.federation import Federation
from sojourn.diagnosis import Cost, Diagnosis, load_diagnosis, save_diagnosis
from sojourn.diagnosis.asking import Asking
from sojourn.diagnosis.case import Case
from sojourn.diagnosis.slopes import gap_squares
from sojourn.diagnosis.spectra import fourth_mean, lanczos, pair_squares
from sojourn.problems.quadratic import Quadratic

CLIENTS, D = 4, 10


def parts(seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Hessians with spectra from 1 to 6 in bases of their own, and optima."""
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.standard_normal((CLIENTS, D, D)))[0]
    values = rng.uniform(1, 6, (CLIENTS, D))
    hessians = np.einsum("mik,mk,mjk->mij", bases, values, bases)
    return (hessians + hessians.transpose(0, 2, 1)) / 2, spread * rng.standard_normal((CLIENTS, D))


def made(hessians: np.ndarray, optima: np.ndarray, noise: float = 0.5) -> Federation:
    return sj.problems.quadratic(hessians, optima, noise, x0=np.full(D, 2.0))


@functools.cache
def estimated(noise: float = 0.5, scalars_only: bool = False) -> Diagnosis:
    return sj.diagnose(made(*parts(), noise), facts=False, scalars_only=scalars_only, progress=False)


def exact() -> dict[str, float]:
    """Section by section of the definitions, from the matrices."""
    hessians, optima = parts()
    differences = hessians[:, None] - hessians[None]
    x_star = np.linalg.solve(hessians.mean(0), np.einsum("mij,mj->i", hessians, optima) / CLIENTS)
    deviations = hessians - hessians.mean(0)
    values, start = np.linalg.eigvalsh(hessians), np.full(D, 2.0)
    pairs = np.linalg.norm(optima[:, None] - optima[None], axis=-1)
    away = start - optima
    first = np.einsum("mi,mij,mj->", away, hessians, away) / 2 / CLIENTS
    least = np.einsum("mi,mij,mj->", x_star - optima, hessians, x_star - optima) / 2 / CLIENTS
    return {
        "smoothness": values.max(),
        "strong_convexity": values.min(),
        "hessian_heterogeneity": np.abs(np.linalg.eigvalsh(differences)).max(),
        "hessian_heterogeneity_frobenius": np.linalg.norm(differences, axis=(2, 3)).max(),
        "hessian_heterogeneity_rms": np.linalg.eigvalsh(np.mean(deviations @ deviations, axis=0)).max() ** 0.5,
        "optima_heterogeneity": np.mean(pairs**4) ** 0.25,
        "optima_distance": np.mean(np.linalg.norm(x_star - optima, axis=1) ** 4) ** 0.25,
        "optima_heterogeneity_newton": np.mean(pairs**4) ** 0.25,
        "optima_distance_newton": np.mean(np.linalg.norm(x_star - optima, axis=1) ** 4) ** 0.25,
        "mean_optima_distance": np.linalg.norm(away, axis=1).mean(),
        "start_distance": np.linalg.norm(start - x_star),
        "start_gap": first - least,
        "f_star": least,
        "noise": 0.5,
        "noise_mean": 0.5,
        "noise_at_optimum": 0.5,
        "noise4": 0.5 * (1 + 2 / D) ** 0.25,  # isotropic: tr S^2 = (tr S)^2 / d
    }


@pytest.mark.parametrize("name", exact())
def test_an_estimate_is_within_a_tenth_of_the_exact_value(name: str) -> None:
    found, true = estimated()[name], exact()[name]
    assert found.kind != "exact"
    assert found.value == pytest.approx(true, rel=0.1)
    slack = 1e-3 * abs(true)
    if found.kind == "lower bound":
        assert found.value <= true + slack
    if found.kind == "upper bound":
        assert found.value >= true - slack


@pytest.mark.parametrize("name", ["optima_heterogeneity", "optima_distance", "start_distance", "hessian_heterogeneity"])
def test_an_interval_holds_the_exact_value(name: str) -> None:
    found = estimated()[name]
    assert found.low is not None and found.high is not None
    assert found.low * (1 - 1e-5) <= exact()[name] <= found.high


def test_bounds_of_other_measures() -> None:
    found, true = estimated(), exact()
    assert found["optima_distance_proxy"].value <= true["optima_distance"] <= found["optima_distance_proxy"].high
    assert 0.3 * true["hessian_heterogeneity"] < found["hessian_heterogeneity_path"].value
    assert found["hessian_heterogeneity_path"].value <= true["hessian_heterogeneity"] * 1.001
    assert found["third_order_smoothness"].value < 1e-4
    assert found["kurtosis"].value == pytest.approx(1 + 2 / D, rel=0.1)
    assert found.setting == "strongly convex"
    assert found.warnings == ()


def test_gradients_are_compared_at_the_start() -> None:
    hessians, optima = parts()
    slopes = np.einsum("mij,mj->mi", hessians, 2.0 - optima)
    widest = np.linalg.norm(slopes[:, None] - slopes[None], axis=-1).max() / exact()["smoothness"]
    found = estimated()["gradient_heterogeneity"]
    assert found.value >= 0.999 * widest
    assert "Proposition 3" in found.note


def test_what_the_problem_knows_is_exact_and_free() -> None:
    found = sj.diagnose(made(*parts()), num_directions=0, progress=False)
    for name in ("smoothness", "strong_convexity", "hessian_heterogeneity", "optima_distance", "noise"):
        assert found[name].kind == "exact"
        assert found[name].value == pytest.approx(exact()[name], rel=1e-6)
    assert found["hessian_heterogeneity"].cost == Cost()
    assert found["start_gap"].value == pytest.approx(exact()["start_gap"], rel=1e-4)
    assert found.cost.products < estimated().cost.products / 5


def test_identical_clients_do_not_differ() -> None:
    hessians, optima = parts()
    same = made(np.repeat(hessians[:1], CLIENTS, 0), np.repeat(optima[:1], CLIENTS, 0))
    found = sj.diagnose(same, facts=False, num_directions=0, progress=False)
    for name in ("hessian_heterogeneity", "hessian_heterogeneity_rms", "hessian_heterogeneity_frobenius"):
        assert found[name].value < 1e-3 * found["smoothness"].value
        assert estimated()[name].value > 0.2 * estimated()["smoothness"].value  # negative control
    assert found["optima_heterogeneity"].value < 1e-3
    assert found["optima_distance"].value < 0.05 * found["start_distance"].value
    assert found["gradient_gap"].low == 0.0  # noise is there, and is not counted
    assert found["gradient_gap"].value < found["noise"].value / 2


def test_moving_optima_does_not_change_tau_and_rotating_features_does_not_change_zeta_star() -> None:
    hessians, optima = parts()
    quick = functools.partial(sj.diagnose, facts=False, num_directions=0, progress=False)
    moved = quick(made(hessians, 3 * optima + 1.0))
    assert moved["hessian_heterogeneity"].value == pytest.approx(estimated()["hessian_heterogeneity"].value, rel=1e-3)
    assert moved["optima_heterogeneity"].value == pytest.approx(3 * exact()["optima_heterogeneity"], rel=0.1)
    bases = np.linalg.qr(np.random.default_rng(9).standard_normal((CLIENTS, D, D)))[0]
    turned = np.einsum("mik,mkl,mjl->mij", bases, hessians, bases)  # every client's own rotation
    rotated = quick(made((turned + turned.transpose(0, 2, 1)) / 2, optima))
    assert rotated["optima_heterogeneity"].value == pytest.approx(exact()["optima_heterogeneity"], rel=0.05)
    assert rotated["smoothness"].value == pytest.approx(exact()["smoothness"], rel=1e-3)
    change = rotated["hessian_heterogeneity"].value - estimated()["hessian_heterogeneity"].value
    assert abs(change) > 0.02 * exact()["hessian_heterogeneity"]


def test_squared_estimates_are_unbiased() -> None:
    """Over many draws: squares of shared signs, pairs of batches, products of differences; naive squares are not."""
    rng = np.random.default_rng(3)
    hessians, _ = parts()
    signs = rng.choice([-1.0, 1.0], (4000, D))
    squares = np.array([pair_squares(hessians @ v)[0, 1] for v in signs])
    within(squares, np.linalg.norm(hessians[0] - hessians[1]) ** 2)
    means, weights = rng.standard_normal((CLIENTS, D)), np.full(CLIENTS, 1 / CLIENTS)
    true = np.mean(np.sum((means[:, None] - means[None]) ** 2, -1))
    draws = means[:, None, :] + 2.0 * rng.standard_normal((2000, CLIENTS, 4, D))
    found = np.array([gap_squares(draw, weights) for draw in draws])
    within(found[:, 0, 1], true)
    assert abs(found[:, 0, 0].mean() - true) > 20 * found[:, 0, 0].std() / 2000**0.5  # the naive square
    fed = made(*parts())
    noise = [sj_noise(fed, seed) for seed in range(60)]
    within(np.concatenate(noise), 0.25)


def sj_noise(fed: Federation, seed: int) -> np.ndarray:
    asking = Asking(fed, np.arange(CLIENTS), 512, jax.random.key(seed))
    return asking.batches(np.zeros(D), "noise").squares.mean(axis=1)


def within(samples: np.ndarray, true: float) -> None:
    """The mean lies within four standard errors of the true value, and these are small."""
    error = samples.std(ddof=1) / len(samples) ** 0.5
    assert abs(samples.mean() - true) < 4 * error
    assert error < 0.05 * true


def test_lanczos_finds_the_edges_of_dense_matrices() -> None:
    rng = np.random.default_rng(1)
    raw = rng.standard_normal((3, 40, 40))
    matrices = raw + raw.transpose(0, 2, 1)
    multiply = lambda v: np.einsum("bij,bj->bi", matrices, v)  # noqa: E731
    edges = lanczos(multiply, rng.standard_normal((3, 40)), 25)
    true = np.linalg.eigvalsh(matrices)
    np.testing.assert_allclose(edges.largest, true[:, -1], rtol=1e-2)
    np.testing.assert_allclose(edges.smallest, true[:, 0], rtol=1e-2)
    assert (edges.largest <= true[:, -1] + 1e-9).all() and (edges.smallest >= true[:, 0] - 1e-9).all()
    assert (true[:, -1] <= edges.largest + edges.largest_doubt + 1e-9).all()
    few = lanczos(multiply, rng.standard_normal((3, 40)), 4)
    assert (few.largest < true[:, -1] - 1e-2).all() and (few.largest_doubt > 0.1).all()  # unsettled, and it says so
    flat = lanczos(lambda v: 2 * v, rng.standard_normal((1, 40)), 25)  # ends at once
    assert flat.largest == pytest.approx(2) and flat.smallest == pytest.approx(2)


def test_an_iteration_ends_when_the_larger_edge_has_settled() -> None:
    rng, trips = np.random.default_rng(0), []
    turn = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    matrices = np.stack([turn * np.append(np.linspace(-1, 1, 59), edge) @ turn.T for edge in (5.0, -4.0)])

    def multiply(v: np.ndarray) -> np.ndarray:
        trips.append(v)
        return np.einsum("bij,bj->bi", matrices, v)

    edges = lanczos(multiply, rng.standard_normal((2, 60)), 30, settled=1e-3)
    settled = len(trips)
    assert 5 <= settled < 15
    np.testing.assert_allclose(edges.norms, [5.0, 4.0], rtol=1e-3)
    lanczos(multiply, rng.standard_normal((2, 60)), 30)
    assert len(trips) - settled == 30  # without, the budget is spent


def test_what_waits_for_no_answer_goes_on_one_trip() -> None:
    found = sj.diagnose(made(*parts()), facts=False, progress=False)
    assert found["hessian_heterogeneity_frobenius"].cost.rounds == 2  # at the start, and after the warm-up
    assert found["miniature"].cost.rounds == 2  # all directions, then gradients, noise and losses


def test_fourth_power_means() -> None:
    assert fourth_mean(np.array([1.0, 2.0]), np.array([0.5, 0.5])) == pytest.approx(8.5**0.25)
    assert fourth_mean(np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([0.5, 0.5])) == pytest.approx(8**0.25)


class Counted(Quadratic):
    """Tells of every call while it runs, not while it is traced."""

    def full_grad(self, x: jax.Array, view: jax.Array) -> jax.Array:
        jax.debug.callback(lambda _: SEEN.append(1), view)  # one call for each of clients side by side
        return super().full_grad(x, view)


SEEN: list[int] = []


@pytest.mark.parametrize("scalars_only", [False, True])
def test_costs_reported_are_costs_counted(scalars_only: bool) -> None:
    SEEN.clear()
    found = sj.diagnose(counted(made(*parts())), facts=False, scalars_only=scalars_only, progress=False)
    jax.effects_barrier()
    assert found.cost.gradients + found.cost.products == len(SEEN)  # batches call the exact gradient too
    assert found.cost.products > 100


def counted(fed: Federation) -> Federation:
    """The same, with every call of an oracle in SEEN."""
    fields = {f.name: getattr(fed.clients.objective, f.name) for f in dataclasses.fields(fed.clients.objective)}
    return dataclasses.replace(fed, clients=dataclasses.replace(fed.clients, objective=Counted(**fields)))


EVERYWHERE = {"visited models"}
PHASES = {  # of a diagnosis, and what may be booked in each
    "holdings": {"smallest_client", "largest_client", "feature_shift"},
    "curvature at the start": {"smoothness", "strong_convexity"},
    "how they differ at the start": {f"hessian_heterogeneity{way}" for way in ("", "_frobenius", "_rms")},
    "warm-up": {"warm_up"},
    "the best model": {"the best model", "f_star"},
    "kinks": {"kinks"},
    "curvature": {"smoothness", "strong_convexity"},
    "how they differ": {f"hessian_heterogeneity{way}" for way in ("", "_frobenius", "_rms")},
    "along the path": set(),
    "third order": {"third_order_smoothness"},
    "smoothness on the way": set(),
    "noise": {"noise", "gradient_gap", "noise_at_optimum"},
    "distance of optima": {"optima_distance_proxy"},
    "optima": {"optima_distance", "optima_heterogeneity"},
    "Newton steps": {"optima_distance_newton", "optima_heterogeneity_newton"},
    "the start": {"start_gap"},
    "gradients": set(),
}


@pytest.mark.parametrize(("facts", "noise"), [(False, 0.5), (True, 0.0)])
def test_every_entry_carries_what_its_phase_took(facts: bool, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are counted by the oracle and floats by the messages, apart from the bookkeeping."""
    floats: list[int] = []
    sent, attempt = Asking.sent, Case.attempt
    legs = []  # the engine's own messages, in the warm-up

    def sending(self, *, down=0, up=0, rounds=1, by=None):
        floats.append((down + up) * (len(self) if by is None else by))
        sent(self, down=down, up=up, rounds=rounds, by=by)

    def booked(case: Case) -> dict[str, Cost]:
        return {name: measure.cost for name, measure in case.measures.items()} | case.shared

    def phase(self, entry, what, measure):
        before, calls, messages = booked(self), len(SEEN), sum(floats)
        attempt(self, entry, what, measure)
        jax.effects_barrier()
        after = booked(self)
        changed = {name for name, cost in after.items() if cost != before.get(name, Cost())}
        assert changed <= PHASES[entry] | EVERYWHERE, entry
        spent = [getattr(total(after), n) - getattr(total(before), n) for n in FIELDS]
        assert spent[0] + spent[1] == len(SEEN) - calls, entry
        if entry == "warm-up":
            legs.append(spent[2] + spent[3] - (sum(floats) - messages))
        else:
            assert spent[2] + spent[3] == sum(floats) - messages, entry
        assert self.asking.spent == Cost()

    monkeypatch.setattr(Asking, "sent", sending)
    monkeypatch.setattr(Case, "attempt", phase)
    SEEN.clear()
    found = sj.diagnose(counted(made(*parts(), noise)), facts=facts, progress=False)
    jax.effects_barrier()
    assert found.cost.gradients + found.cost.products == len(SEEN)
    assert found.cost.floats_down + found.cost.floats_up == sum(floats) + sum(legs)
    assert sum([*(m.cost for m in found.measures.values()), *found.shared.values()], Cost()) == found.cost
    if facts:
        assert found["noise"].cost == found["hessian_heterogeneity_path"].cost == Cost()  # exact, and asked already
        assert "kinks" not in found.shared
    else:
        assert found.shared["kinks"].products == (3 * 2 + 2 + 1) * CLIENTS  # two on every way, one nearby
        assert found["hessian_heterogeneity_frobenius"].cost.gradients == 0


FIELDS = ("gradients", "products", "floats_down", "floats_up")


def total(costs: dict[str, Cost]) -> Cost:
    return sum(costs.values(), Cost())


def test_one_client_keeps_its_bill() -> None:
    hessians, optima = parts()
    one = counted(made(hessians[:1], optima[:1]))
    SEEN.clear()
    found = sj.diagnose(one, facts=False, num_directions=0, progress=False)
    jax.effects_barrier()
    assert found.cost.gradients + found.cost.products == len(SEEN)


def test_messages_are_counted() -> None:
    """By hand: ten coordinates up, no vector down, from every client; twice, at the start and after the warm-up."""
    found = estimated()
    frobenius = found["hessian_heterogeneity_frobenius"].cost
    assert frobenius.floats_up == 2 * D * D * CLIENTS + 0 and frobenius.products == 2 * D * CLIENTS
    small = found["miniature"].cost
    triangle = sum(k + 1 for k in range(D))
    assert small.floats_up == CLIENTS * (triangle + D + D * (D + 1) // 2 + 1 + 1)
    scalars = estimated(scalars_only=True)
    models = (scalars.cost.floats_up - scalars["warm_up"].cost.floats_up) / CLIENTS
    assert models < 12 * D  # numbers only, and few; the warm-up sends models
    assert found.cost.floats_up > 20 * (scalars.cost.floats_up - scalars["warm_up"].cost.floats_up)


def test_scalars_only_bounds_what_it_cannot_measure() -> None:
    found, true = estimated(scalars_only=True), exact()
    tau = found["hessian_heterogeneity"]
    assert tau.kind == "lower bound" and 0 < tau.value <= true["hessian_heterogeneity"] <= tau.high
    zeta = found["optima_heterogeneity"]
    assert zeta.kind == "upper bound" and zeta.value >= true["optima_heterogeneity"] * 0.9
    assert found["smoothness"].value == pytest.approx(true["smoothness"], rel=1e-3)
    assert found["optima_distance"].value == pytest.approx(true["optima_distance"], rel=0.2)
    absent = ("gradient_heterogeneity", "gradient_gap", "hessian_heterogeneity_frobenius", "hessian_heterogeneity_path")
    assert not set(absent) & set(found.measures)
    assert found.miniature is None
    assert any("Only scalars" in sentence for sentence in found.warnings)


def test_a_diagnosis_survives_its_file(tmp_path) -> None:
    found = estimated()
    save_diagnosis(found, tmp_path / "diagnosis.json")
    again = load_diagnosis(tmp_path / "diagnosis.json")
    assert again.to_json() == found.to_json()
    np.testing.assert_array_equal(again.miniature.hessians, found.miniature.hessians)
    assert again.cost == found.cost
    (tmp_path / "wrong.json").write_text("{}")
    with pytest.raises(sj.SojournError, match="no diagnosis"):
        load_diagnosis(tmp_path / "wrong.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(sj.SojournError, match="not JSON"):
        load_diagnosis(tmp_path / "broken.json")
    with pytest.raises(sj.SojournError, match="cannot read"):
        load_diagnosis(tmp_path / "none.json")


def test_the_seed_decides_everything() -> None:
    again = sj.diagnose(made(*parts()), facts=False, progress=False)
    assert again.to_json() == estimated().to_json()
    other = sj.diagnose(made(*parts()), facts=False, seed=1, num_directions=0, progress=False)
    assert other["noise"].value != again["noise"].value


def test_in_float64_too() -> None:
    with jax.enable_x64(True):
        found = sj.diagnose(made(*parts(), 0.0), facts=False, num_directions=0, progress=False)
        assert jnp.result_type(float) == jnp.float64
    assert found["smoothness"].value == pytest.approx(exact()["smoothness"], rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_random_signs_find_the_widest_pair_within_a_tenth(seed: int) -> None:
    """Where the model has more numbers than there are signs, so that they are drawn."""
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.standard_normal((CLIENTS, 40, 40)))[0]
    hessians = np.einsum("mik,mk,mjk->mij", bases, rng.uniform(1, 6, (CLIENTS, 40)), bases)
    fed = sj.problems.quadratic((hessians + hessians.transpose(0, 2, 1)) / 2, rng.standard_normal((CLIENTS, 40)))
    found = sj.diagnose(fed, facts=False, seed=seed, num_directions=0, progress=False)[
        "hessian_heterogeneity_frobenius"
    ]
    true = np.linalg.norm(hessians[:, None] - hessians[None], axis=(2, 3)).max()
    assert found.value == pytest.approx(true, rel=0.1) and "random signs" in found.how


def test_without_a_search_for_the_optimum_distances_from_it_may_be_none() -> None:
    """Identical clients, scalars only: the end of the warm-up is not their optimum, and what is said allows for it."""
    hessians, optima = (np.repeat(part[:1], CLIENTS, axis=0) for part in parts())
    found = sj.diagnose(made(hessians, optima, 0.0), facts=False, scalars_only=True, rounds=3, progress=False)
    for name in ("optima_distance", "optima_distance_proxy"):
        assert found[name].low == 0 and found[name].kind == "estimate" and "warm-up" in found[name].note
    assert found["optima_distance"].value > 0.01
    whole = sj.diagnose(made(hessians, optima, 0.0), facts=False, rounds=3, progress=False)["optima_distance"]
    assert whole.low == 0.0 and whole.value < 0.05  # the best model found is as far off as its mean gradient says
