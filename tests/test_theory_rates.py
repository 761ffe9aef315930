"""Rates: each function is the formula that its ledger entry prints, and has the dimension of what it speaks of."""

import inspect
import re

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.theory import rates
from sojourn.theory.statement import STATEMENTS

NAMES = {
    "zeta_*": "zs", "phi_*": "ps", "sigma_2": "s", "sigma_4": "s4", "sigma": "s", "kappa": "kp", "zeta": "z",
    "tau": "tau", "mu": "mu", "eps": "eps", "sqrt": "sqrt", "ln": "ln",
}  # fmt: skip
LETTERS = {
    "smoothness": "H", "strong_convexity": "mu", "third_order_smoothness": "Q", "hessian_heterogeneity": "tau",
    "optima_heterogeneity": "zs", "optima_distance": "ps", "gradient_heterogeneity": "z", "noise": "s", "noise4": "s4",
    "start_distance": "B", "num_clients": "M", "num_local_steps": "K", "rounds": "R", "target": "eps",
}  # fmt: skip
GAPS = ("rate_3_1", "rate_3_2_minibatch", "rate_3_2_single_machine", "rate_3_3", "rate_3_4_minibatch",
        "rate_3_4_single_machine", "rate_3_5", "rate_3_6", "rate_3_7", "rate_theorem_6", "rate_theorem_8",
        "rate_theorem_11", "rate_theorem_12")  # fmt: skip
DISTANCES = ("rate_minibatch", "rate_local", "rate_single_machine", "rate_theorem_5", "rate_theorem_7",
             "rate_theorem_9", "rate_theorem_10")  # fmt: skip
ROUNDS = ("rounds_5_2", "rounds_5_3", "rounds_remark_30")


def point(seed=0, **changed):
    rng = np.random.default_rng(seed)
    mu = rng.uniform(0.1, 0.5)
    values = {
        "smoothness": mu * rng.uniform(1, 5), "strong_convexity": mu, "third_order_smoothness": rng.uniform(0.1, 2),
        "hessian_heterogeneity": rng.uniform(0.1, 1), "optima_heterogeneity": rng.uniform(0.1, 2),
        "optima_distance": rng.uniform(0.1, 2), "gradient_heterogeneity": rng.uniform(0.1, 2),
        "noise": rng.uniform(0.1, 3), "start_distance": rng.uniform(0.1, 3), "num_clients": rng.integers(2, 9),
        "num_local_steps": rng.integers(2, 9), "rounds": rng.integers(2, 9), "target": rng.uniform(0.01, 1),
    }  # fmt: skip
    return values | {"noise4": 1.3 * values["noise"]} | changed


def call(name, values):
    function = getattr(rates, name)
    return function(**{key: values[key] for key in inspect.signature(STATEMENTS[name].function).parameters})


def read(text, values):
    """The number that a printed formula says."""
    text = re.sub(r"^[^:]*: |^R\(eps\) ~ ", "", text.split("  (")[0].split(",")[0])
    for name, letter in NAMES.items():
        text = re.sub(rf"(?<![a-z]){re.escape(name)}(?![a-z_])", letter, text)
    text = text.replace("[", "(").replace("]", ")").replace("^", "**")
    text = re.sub(r"(?<![a-z\d])(\d+)([A-Z])", r"\1*\2", text)  # 2H
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text)
    scope = {LETTERS[key]: float(value) for key, value in values.items()}
    scope |= {"e": np.e, "sqrt": np.sqrt, "ln": np.log, "kp": values["smoothness"] / values["strong_convexity"]}
    return eval(text, {"__builtins__": {}}, scope)


@pytest.mark.parametrize("name", [
    n for n in (*GAPS, *DISTANCES, *ROUNDS)
    if not STATEMENTS[n].corrected.startswith(("e^", "sqrt")) and n not in ("rate_theorem_9", "rate_theorem_11")
])  # fmt: skip
def test_a_rate_is_the_formula_it_prints(name):
    for seed in range(20):
        values = point(seed)
        terms = call(name, values)
        assert terms["sum"] == pytest.approx(sum(term for key, term in terms.items() if key != "sum"))
        assert terms["sum"] == pytest.approx(read(STATEMENTS[name].printed, values), rel=1e-12)
    other = values | {"smoothness": 1.1 * values["smoothness"]}
    assert terms["sum"] != pytest.approx(read(STATEMENTS[name].printed, other), rel=1e-6)


def test_the_formulas_that_are_corrected_or_said_in_words():
    v = point(3)
    H, mu, B, K, R = (v[k] for k in ("smoothness", "strong_convexity", "start_distance", "num_local_steps", "rounds"))
    for name, slow in (("rate_theorem_6", 10), ("rate_theorem_8", 4)):
        printed, first = read(STATEMENTS[name].printed, v), mu * B**2 * np.exp(-mu * K * R / (2 * H))
        expected = printed - first + mu * B**2 * np.exp(-mu * K * R / (slow * H))
        assert call(name, v)["sum"] == pytest.approx(expected)
    ten, eleven = call("rate_theorem_10", v), call("rate_theorem_11", v)
    for key in ten.keys() - {"sum", "optimization"}:
        assert eleven[key] == pytest.approx(mu * ten[key])
    assert eleven["optimization"] == pytest.approx(mu * B**2 * np.exp(-mu * K * R / (4 * H)))
    remark = call("rounds_remark_30", v)
    second = v["third_order_smoothness"] * v["gradient_heterogeneity"] ** 2 / (H * B)
    printed = read(STATEMENTS["rounds_remark_30"].printed, v)
    assert remark["sum"] == pytest.approx(printed - second + second**0.5)
    assert remark["least_curvature"] != pytest.approx(second)


def test_theorem_9():
    """Retyped from the print, with 1 + ln K for ln K."""
    for seed in range(10):
        v = point(seed)
        H, mu, Q, t, z, p, s, s4, B, M, K, R = (v[k] for k in (
            "smoothness", "strong_convexity", "third_order_smoothness", "hessian_heterogeneity", "optima_heterogeneity",
            "optima_distance", "noise", "noise4", "start_distance", "num_clients", "num_local_steps", "rounds",
        ))  # fmt: skip
        log, stiff = 1 + np.log(K), 2 + 4 * Q**2 * B**2 / mu**2 + 6 * H**4 / mu**4
        one = np.exp(-K * R * mu / H) * B**2 + s**2 / (mu**2 * M * K * R) + s4**4 / (mu**4 * K**3 * R**3 * M**2 * B**2)
        two = t**2 * p**2 / (mu**2 * R**2) + t**4 * s4**2 * p**2 / (mu**6 * K * R**5 * B**2)
        two += s**2 * t**2 * p**2 / (mu**4 * K * R**4 * B**2) + t**4 * p**4 / (mu**4 * B**2 * R**4)
        two += H**2 * z**2 / (mu**2 * R**2) + t**2 * s**2 / (mu**4 * K * R**3)
        two += s**2 * log / (mu**2 * K * R**2) + H**4 * z**4 / (mu**4 * R**3 * B**2)
        two += t**4 * s4**4 / (mu**8 * K**2 * R**5 * B**2) + s**2 * H**2 * z**2 / (mu**4 * B**2 * R**4)
        two += t**2 * s**4 / (mu**6 * K * R**5 * B**2) + s4**4 * log / (mu**4 * K * B**2 * R**4)
        assert call("rate_theorem_9", v)["sum"] == pytest.approx(one + stiff * two)


def rescaled(v, length, size):
    """The same problem in other units of x and of F."""
    powers = {  # (of length, of F)
        "smoothness": (-2, 1), "strong_convexity": (-2, 1), "hessian_heterogeneity": (-2, 1),
        "third_order_smoothness": (-3, 1), "noise": (-1, 1), "noise4": (-1, 1), "start_distance": (1, 0),
        "optima_heterogeneity": (1, 0), "optima_distance": (1, 0), "gradient_heterogeneity": (1, 0),
    }  # fmt: skip
    return v | {key: v[key] * length**a * size**b for key, (a, b) in powers.items()}


def assert_dimension(name, unit, target=1.0):
    v = point(1)
    other = rescaled(v, 3.0, 7.0) | {"target": v["target"] * target}
    before, after = call(name, v), call(name, other)
    for key in before:
        assert after[key] == pytest.approx(unit * before[key], rel=1e-9)


@pytest.mark.parametrize("name", GAPS)
def test_gaps_have_the_unit_of_the_objective(name):
    assert_dimension(name, 7.0)
    with pytest.raises(AssertionError):
        assert_dimension(name, 9.0)


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_have_the_unit_of_a_squared_length(name):
    assert_dimension(name, 9.0)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_have_no_unit(name):
    assert_dimension(name, 1.0, target=7.0 if name == "rounds_remark_30" else 9.0)


def test_rates_of_chapter_3():
    """The order of methods in chapter 3, and the third term of (3.7), whose print has the wrong unit."""
    v = point(0, num_local_steps=50, rounds=20)
    assert call("rate_3_3", v)["sum"] < call("rate_3_1", v)["sum"] < call("rate_3_2_minibatch", v)["sum"]
    assert call("rate_3_4_minibatch", v)["sum"] < call("rate_3_2_minibatch", v)["sum"]
    flat = point(0, third_order_smoothness=0.0)
    assert call("rate_3_5", flat)["curvature"] == 0 == call("rate_3_7", flat)["communication"]
    small = point(0, third_order_smoothness=1e-9)
    Q, s, B, K, R = (
        small[k] for k in ("third_order_smoothness", "noise", "start_distance", "num_local_steps", "rounds")
    )
    assert call("rate_3_7", small)["communication"] == pytest.approx((Q * s) ** 0.5 * B**2 / (K**0.25 * R**2))
    printed = [x["third_order_smoothness"] ** 0.5 * x["noise"] * x["start_distance"] ** 2
               for x in (small, rescaled(small, 3.0, 7.0))]  # fmt: skip
    assert printed[1] != pytest.approx(7 * printed[0])
    lonely = point(0, num_clients=1)
    assert call("rate_3_4_single_machine", lonely)["sum"] == pytest.approx(call("rate_3_3", lonely)["sum"])


def test_strongly_convex_rates():
    v = point(0, num_local_steps=50, rounds=20)
    local, minibatch, alone = (call(n, v) for n in ("rate_local", "rate_minibatch", "rate_single_machine"))
    assert local["noise"] == minibatch["noise"] < alone["noise"]
    assert local["optimization"] == alone["optimization"] < minibatch["optimization"]
    same = v | dict.fromkeys(("hessian_heterogeneity",), 0.0)
    assert call("rate_theorem_7", same)["sum"] == pytest.approx(local["sum"])


def test_rates_of_theorems_5_to_8():
    v = point(0)
    quiet = v | {"noise": 0.0}
    for n in (5, 6, 7, 8):
        terms = call(f"rate_theorem_{n}", quiet)
        assert terms["noise"] == terms["local_noise"] == terms["hessian_noise"] == 0 < terms["optima_heterogeneity"]
        dense = call(f"rate_theorem_{n}", v | {"num_local_steps": 1})
        assert dense["optima_heterogeneity"] == dense["local_noise"] == 0
    far = v | {"optima_heterogeneity": 1e4}
    assert rates.dominant(call("rate_theorem_5", far)) == "optima_heterogeneity"
    assert rates.dominant(call("rate_theorem_5", v | {"noise": 1e6, "num_local_steps": 1})) == "noise"


def test_rates_with_zeta():
    v = point(0)
    homogeneous = v | dict.fromkeys(("hessian_heterogeneity", "third_order_smoothness", "gradient_heterogeneity"), 0.0)
    for n in (10, 11, 12):
        terms = call(f"rate_theorem_{n}", homogeneous)
        assert terms["sum"] == pytest.approx(terms["optimization"] + terms["noise"])
        assert call(f"rate_theorem_{n}", v)["sum"] > terms["sum"]


def test_rounds_to_a_target():
    """(5.3) is (5.2) with tau for H; at the rounds they give, the rates of Theorems 5 and 7 are about the target."""
    v = point(0)
    equal = v | {"hessian_heterogeneity": v["smoothness"]}
    assert call("rounds_5_2", equal)["sum"] == pytest.approx(call("rounds_5_3", equal)["sum"])
    for name, rate in (("rounds_5_2", "rate_theorem_5"), ("rounds_5_3", "rate_theorem_7")):
        rounds = call(name, v)["sum"]
        reached = call(rate, v | {"rounds": rounds, "num_local_steps": 10**9})["sum"]
        assert v["target"] / 4 < reached <= 1.01 * v["target"]
        assert call(rate, v | {"rounds": rounds / 4, "num_local_steps": 10**9})["sum"] > 2 * v["target"]


def test_arrays_and_bad_input():
    v = point(0, rounds=np.arange(1, 6))
    terms = call("rate_theorem_5", v)
    assert all(np.shape(term) in ((5,), ()) for term in terms.values()) and terms["sum"].shape == (5,)
    with pytest.raises(SojournError, match="rounds > 0"):
        call("rate_3_1", point(0, rounds=0))
    with pytest.raises(SojournError, match="strong_convexity > 0"):
        call("rate_theorem_5", point(0, strong_convexity=0.0))
    with pytest.raises(SojournError, match="target > 0"):
        call("rounds_5_2", point(0, target=0.0))
