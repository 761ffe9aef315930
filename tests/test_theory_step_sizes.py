"""The rules behind step_size = "theory": which statement is used, with what, and what is said where there is none."""

import dataclasses

import numpy as np
import pytest

from sojourn.algorithms import ALGORITHMS
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.theory import baselines, convergence, convergence_zeta
from sojourn.theory.step_sizes import step_size_rule

FACTS = Facts(
    smoothness=1.0, strong_convexity=0.1, third_order_smoothness=0.5, hessian_heterogeneity=0.01,
    optima_heterogeneity=0.1, optima_distance=0.2, gradient_heterogeneity=0.3, noise=0.5, noise4=0.7, num_clients=4,
    start_distance=2.0, start_gap=3.0,
)  # fmt: skip
STAR = {"smoothness": 1.0, "strong_convexity": 0.1, "hessian_heterogeneity": 0.01, "optima_heterogeneity": 0.1,
        "optima_distance": 0.2, "noise": 0.5, "start_distance": 2.0, "num_clients": 4}  # fmt: skip
ZETA = {"smoothness": 1.0, "third_order_smoothness": 0.5, "hessian_heterogeneity": 0.01, "gradient_heterogeneity": 0.3,
        "noise": 0.5, "noise4": 0.7, "start_distance": 2.0, "num_clients": 4}  # fmt: skip
RUN = {"num_local_steps": 5, "rounds": 100}
LOCAL = {"num_local_steps": 5, "outer_step_size": 1.0, "output": "last"}


def facts(**changed):
    return dataclasses.replace(FACTS, **changed)


def rule(method="local-sgd", known=FACTS, options=None, rounds=100, **setting):
    return step_size_rule(method, known, LOCAL if options is None else options, rounds, **setting)


def test_local_sgd_takes_the_theorem_that_fits():
    five = rule()
    assert five.rule == "Theorem 5, tuned" and five.used == STAR
    assert five.value == convergence.theorem_5_step_size(**STAR, **RUN)
    seven = rule(known=facts(hessians=np.ones((4, 1, 1))))
    assert seven.rule == "Theorem 7, tuned" and seven.value == convergence.theorem_7_step_size(**STAR, **RUN)
    six = rule(options=LOCAL | {"output": "coupled"})
    assert six.rule == "Theorem 6, tuned" and six.value == convergence.theorem_6_step_size(**STAR, **RUN)
    eleven = rule(options=LOCAL | {"output": "exp"})
    assert eleven.rule == "Theorem 11, tuned"
    assert eleven.value == convergence_zeta.theorem_11_step_size(**ZETA, **RUN, strong_convexity=0.1)
    ten = rule(known=facts(optima_distance=None))
    assert ten.rule == "Theorem 10, tuned"
    assert ten.value == convergence_zeta.theorem_10_step_size(**ZETA, **RUN, strong_convexity=0.1)
    assert len({r.value for r in (five, six, seven, eleven, ten)}) == 5
    fedavg = rule("fedavg", options={"num_local_steps": 5})
    assert fedavg == five


def test_convex_clients_take_theorem_12():
    twelve = rule(known=facts(strong_convexity=0.0))
    assert twelve.value == convergence_zeta.theorem_12_step_size(**ZETA, **RUN) and "heuristic" in twelve.rule
    assert not twelve.companions
    regularized = rule("regularized-local-sgd", known=facts(strong_convexity=None), options={"num_local_steps": 5})
    assert regularized.value == twelve.value and "heuristic" not in regularized.rule
    strength = convergence_zeta.theorem_12_regularization(**ZETA, **RUN, step_size=twelve.value)
    assert regularized.companions == {"regularization": strength}
    assert len(regularized.conditions) == 2
    with pytest.raises(SojournError, match=r"gradient_heterogeneity \(zeta\)"):
        rule(known=facts(strong_convexity=0.0, gradient_heterogeneity=None))
    with pytest.raises(SojournError, match="more rounds"):
        rule("regularized-local-sgd", options={"num_local_steps": 2}, rounds=1)


def test_special_cases_of_local_sgd():
    dense = rule("synchronous-sgd", options={"output": "last"})
    start = {key: STAR[key] for key in ("smoothness", "strong_convexity", "noise", "start_distance", "num_clients")}
    assert dense.value == baselines.minibatch_sgd_step_size(**start, num_local_steps=1, rounds=100)
    assert rule(options=LOCAL | {"num_local_steps": 1}).value == dense.value
    assert dense.value != rule().value
    mean = rule("synchronous-sgd", options={"output": "uniform"})
    del start["strong_convexity"]
    assert mean.value == baselines.minibatch_sgd_convex_step_size(**start, num_local_steps=1, rounds=100)
    once = rule("one-shot-averaging", options={"num_local_steps": 500}, rounds=1)
    assert once.value == convergence.theorem_5_step_size(**STAR, num_local_steps=500, rounds=1)
    assert once.conditions[0][1] is False
    with pytest.raises(SojournError, match="one round"):
        rule("one-shot-averaging", options={"num_local_steps": 500}, rounds=2)
    lonely = rule(known=facts(num_clients=1))
    assert lonely.value == baselines.minibatch_sgd_step_size(
        smoothness=1.0,
        strong_convexity=0.1,
        noise=0.5,
        start_distance=2.0,
        num_clients=1,
        num_local_steps=1,
        rounds=500,
    )


def test_baselines():
    start = {"smoothness": 1.0, "noise": 0.5, "start_distance": 2.0}
    options = {"num_local_steps": 5}
    found = rule("minibatch-sgd", options=options)
    assert found.value == baselines.minibatch_sgd_step_size(**start, **RUN, strong_convexity=0.1, num_clients=4)
    found = rule("minibatch-sgd", facts(strong_convexity=0.0), options)
    assert found.value == baselines.minibatch_sgd_convex_step_size(**start, **RUN, num_clients=4)
    one = {"num_clients": 1, "num_local_steps": 1, "rounds": 500}
    found = rule("single-machine-sgd", options=options)
    assert found.value == baselines.minibatch_sgd_step_size(**start, **one, strong_convexity=0.1)
    assert found.conditions == [("the client's optimum is that of all", False)]
    found = rule("single-machine-sgd", facts(strong_convexity=0.0), options)
    assert found.value == baselines.minibatch_sgd_convex_step_size(**start, **one)
    found = rule("ac-sa", options=options | {"strong_convexity": 0.0})
    assert found.option == "smoothness" and found.value > 1.0
    assert found.value == baselines.ac_sa_step_smoothness(**start, **RUN, num_clients=4)
    assert rule("ac-sa", options=options | {"strong_convexity": 0.1}).value == 1.0
    local = rule("local-ac-sa", options=options | {"strong_convexity": 0.0})
    assert local.value == baselines.ac_sa_step_smoothness(**start, num_clients=4, num_local_steps=1, rounds=500)
    assert local.conditions == [("the clients are identical quadratics", False)]


def test_rules_of_other_papers():
    found = rule("fedac", options={"num_local_steps": 5, "version": "I"})
    T, gain = 500, min(0.1 * 4 * 500, 0.1**2 * 500**3 / 5**2) * 4 / 0.25
    assert found.value == pytest.approx(min(1, 5 / (0.1 * T**2) * np.log(np.e + gain) ** 2))
    assert found.companions == {"strong_convexity": 0.1} and ("gamma mu < 1", True) in found.conditions
    assert "heuristic" in rule("fedac", options={"num_local_steps": 5, "version": "II"}).rule
    assert rule("fedac", facts(noise=0.0), {"num_local_steps": 5}).value == 1.0
    with pytest.raises(SojournError, match="strongly convex"):
        rule("fedac", facts(strong_convexity=0.0), {"num_local_steps": 5})
    found = rule("scaffold", options={"num_local_steps": 5, "outer_step_size": 2.0})
    assert found.value == pytest.approx(1 / (81 * 5 * 2))
    assert rule("scaffold", facts(strong_convexity=0.0), {"num_local_steps": 5}).value == pytest.approx(1 / (81 * 5))


def test_conditions_say_whether_they_hold():
    text, holds = rule(rounds=1000).conditions[0]
    assert holds and text.endswith("(here 1000)")
    assert not rule(known=facts(hessian_heterogeneity=1.0), rounds=3).conditions[0][1]


def test_the_noise_at_the_optimum_is_used_and_said():
    found = rule(known=facts(noise=None, noise_at_optimum=0.5))
    assert found.value == rule().value and "noise at the optimum" in found.rule and found.used["noise"] == 0.5
    assert "noise at the optimum" not in rule().rule
    known = facts(third_order_smoothness=0.0, noise4=None)
    other = facts(third_order_smoothness=0.0, noise4=9.0)
    exp = LOCAL | {"output": "exp"}
    assert rule(known=known, options=exp).value == rule(known=other, options=exp).value  # sigma_4 stands beside Q only
    with pytest.raises(SojournError, match=r"noise4 \(sigma_4\)"):
        rule(known=facts(noise4=None), options=exp)


def test_missing_facts_are_all_named():
    with pytest.raises(SojournError) as error:
        rule(known=facts(noise=None, start_distance=None, optima_distance=None))
    message = str(error.value)
    assert "Theorem 5" in message and "give step_size as a number" in message
    assert "optima_distance (phi_*), noise (sigma_2) and start_distance (B)" in message
    with pytest.raises(SojournError, match=r"strong_convexity \(mu\)"):
        rule(known=Facts())
    with pytest.raises(SojournError, match="num_local_steps"):
        rule(options={})


def test_what_theory_does_not_cover_is_refused():
    with pytest.raises(SojournError, match="outer_step_size = 1; got 2"):
        rule(options=LOCAL | {"outer_step_size": 2.0})
    with pytest.raises(SojournError, match="takes part in every round"):
        rule(everyone=False)
    with pytest.raises(SojournError, match="count equally"):
        rule("fedavg", equal_weights=False)
    with pytest.raises(SojournError, match="at least one round"):
        rule(rounds=0)
    with pytest.raises(SojournError, match="uniform"):
        rule(options=LOCAL | {"output": "uniform"})
    with pytest.raises(SojournError, match="strongly convex"):
        rule(known=facts(strong_convexity=0.0), options=LOCAL | {"output": "coupled"})


WITHOUT_A_RULE = {"bvr-l-sgd", "mb-sarah", "mime-lite", "mime-mvr", "stem"}  # of the synchronous ones, not fed-...


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_every_method_has_a_rule_or_says_that_it_has_none(method):
    """With everything known; and with nothing known no rule invents a number."""
    options = {"num_local_steps": 5}
    federated = method.startswith("fed") and method not in ("fedavg", "fedac")
    if ALGORITHMS[method].cls.asynchronous or federated or method in WITHOUT_A_RULE:
        with pytest.raises(SojournError, match=f'no theory for the step size of "{method}"'):
            rule(method, options=options)
        return
    rounds = 1 if method == "one-shot-averaging" else 50
    found = rule(method, options=options, rounds=rounds)
    assert 0 < found.value < np.inf and found.option in ("step_size", "smoothness")
    assert all(isinstance(holds, bool | np.bool_) for _, holds in found.conditions)
    with pytest.raises(SojournError, match="does not know"):
        rule(method, known=Facts(), options=options, rounds=rounds)
