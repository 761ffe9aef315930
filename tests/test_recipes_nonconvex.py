"""The recipes of chapter 6: every claim can come out either way, and a tiny version is carried out."""

import numpy as np
import pytest

from sojourn.recipes import RECIPES, Bench, nonconvex_tau, thesis_6_1
from sojourn.recipes.base import carry_out
from sojourn.recipes.nonconvex_tau import LOCAL, MINIBATCH, STEP_SIZES, STORM, Rounds

# --- thesis-6.1 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def points():
    return thesis_6_1.tabulate(np.geomspace(*thesis_6_1.TAU, 13), np.geomspace(*thesis_6_1.EPS, 13))


def verdicts(claims):
    return {claim.id: claim.holds for claim in claims}


def test_all_regimes_are_on_the_map_and_every_claim_holds(points):
    assert set(points["regime"]) == {"green", "orange", "red"}
    assert set(verdicts(thesis_6_1.judge(points)).values()) == {True}


@pytest.mark.parametrize(
    ("claim", "changed"),
    [
        ("green-is-optimal-in-samples", {"samples": 4.0}),
        ("fewer-rounds", {"rounds": 3.0}),
        ("orange-pays-in-samples", {"samples": 0.5}),
        ("red-has-one-round", {"rounds": 2.0}),
        ("terms-are-at-most-eps", {"num_local_steps": 0.5}),
        ("constants", {"first_batch": 0.01}),
        ("rounding-is-cheap", {"samples_spent": 10.0}),
    ],
)
def test_other_numbers_refute(points, claim, changed):
    if "first_batch" in changed:  # far fewer samples at first, and far fewer steps
        changed = {**changed, "num_local_steps": 0.01}
    moved = {key: np.maximum(value * changed[key], 1.0) if key in changed else value for key, value in points.items()}
    assert verdicts(thesis_6_1.judge(moved))[claim] is False


def test_the_least_samples_solve_the_lower_bound():
    for eps in (1e-6, 1e-2):
        n = thesis_6_1.least_samples(eps)
        assert 1 / n + (1 / n) ** (2 / 3) == pytest.approx(eps)


def test_the_map_is_drawn_with_its_formulas():
    done = carry_out(RECIPES["thesis-6.1"], "quick")
    (figure,) = done.findings.figures
    cells, texts = (layer["data"]["values"] for layer in figure.spec["layer"])
    assert len(cells) == 41**2 and len(texts) == 3
    for text in texts:  # each is written where its regime is
        here = [cell for cell in cells if cell["x"] <= text["x"] <= cell["x2"] and cell["y"] <= text["y"] <= cell["y2"]]
        assert {cell["of"] for cell in here} == {next(k for k, v in thesis_6_1.SHOWN.items() if v[0] == text["x"])}
    assert len(done.findings.tables[0].rows[0]) == len(done.findings.tables[0].columns)


# --- nonconvex-tau -----------------------------------------------------------------------------------------------

TAUS = [0.0, 0.5, 1.0, 2.0]


def made(local, storm=(20.0,) * 4, minibatch=(25.0,) * 4, jitter=0.5, steps=0.5):
    """Rounds of six seeds around these means; only CE-LSGD's jitter, as the others' are the same at every tau."""
    noise = np.random.default_rng(0).normal(size=(6, 4)) * jitter
    spread = np.arange(6.0)[:, None]
    found = {LOCAL: np.array(local) + noise, STORM: np.array(storm) + spread, MINIBATCH: np.array(minibatch) + spread}
    return Rounds(TAUS, found, {LOCAL: np.array([1.0, steps])}, 100)


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        ("local-rounds-grow", {"local": (6, 9, 14, 40)}, {"local": (40, 14, 9, 6)}),
        ("local-rounds-multiply", {"local": (6, 9, 14, 40)}, {"local": (30, 30, 30, 31)}),
        ("minibatch-rounds-do-not", {"local": (6, 9, 14, 40)}, {"local": (6, 9, 14, 40), "storm": (20, 20, 20, 21)}),
        ("local-steps-win-when-alike", {"local": (6, 9, 14, 40)}, {"local": (30, 30, 30, 40)}),
        ("local-steps-lose-when-not", {"local": (6, 9, 14, 40)}, {"local": (6, 6, 6, 7)}),
        ("steps-inside-the-grid", {"local": (6, 9, 14, 40)}, {"local": (6, 9, 14, 40), "steps": STEP_SIZES[-1]}),
    ],
)
def test_claims_about_tau_hold_and_fail(claim, good, bad):
    assert verdicts(nonconvex_tau.judge(made(**good)))[claim] is True
    assert verdicts(nonconvex_tau.judge(made(**bad)))[claim] is False
    if claim == "local-steps-lose-when-not":
        assert verdicts(nonconvex_tau.judge(made(local=(6, 9, 14, 27), jitter=9.0)))[claim] is None


def test_a_tiny_sweep_tunes_on_one_half_and_judges_the_other(monkeypatch):
    monkeypatch.setattr(nonconvex_tau, "STEP_SIZES", (1.0, 0.25))
    scale = {"taus": (0.0, 2.0), "seeds": range(4), "max_iterations": 30}
    rounds = nonconvex_tau.measure(Bench(scale, progress=False))
    assert all(found.shape == (2, 2) for found in rounds.by_method.values()) and rounds.num_seeds == 2
    for name in (STORM, MINIBATCH):  # what sees the mean alone cannot feel tau
        np.testing.assert_array_equal(rounds.by_method[name][:, 0], rounds.by_method[name][:, 1])
    assert (rounds.by_method[LOCAL] % 2 == 0).all()  # two rounds in an iteration
    assert rounds.by_method[LOCAL][:, 0].mean() < rounds.by_method[LOCAL][:, 1].mean()


def test_tuning_takes_the_best_step_of_the_first_half():
    runs = np.array([[5.0, 5.0, 9.0, 9.0], [6.0, 6.0, 1.0, 1.0]])
    best, found = nonconvex_tau._tuned(runs)
    assert best == 0 and found.tolist() == [9.0, 9.0]
