"""Chapter 6: bounds on gradients with their constants, against runs retyped in NumPy; regimes, rates, lower bounds."""

import dataclasses
import math

import numpy as np
import pytest

import sojourn as sj
from sojourn.algorithms import CELGD, CELSGD
from sojourn.config import load_config
from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.experiment import run_config
from sojourn.problems.nonconvex import cosines
from sojourn.problems.nonconvex_chains import split_chain, whole_chain
from sojourn.theory import nonconvex, nonconvex_rates
from sojourn.theory.step_sizes import step_size_rule

# --- the methods, retyped ----------------------------------------------------------------------------------------


class World:
    """The cosines of `problems.nonconvex`, in NumPy for many trials at once: x is (trials, d)."""

    def __init__(self, federation, seed=0):
        of = federation.clients.objective
        self.a, self.jitter, self.u = np.asarray(of.curvatures, float), float(of.jitter), np.asarray(of.axis, float)
        self.signs, self.tilt = np.asarray(of.signs, float), float(of.tilt)
        self.pull = np.asarray(of.pull, float)
        self.x0, self.facts = np.asarray(federation.x0.tree, float), federation.facts
        self.rng = np.random.default_rng(seed)

    def mean_grad(self, x):
        return self.a * np.sin(x)

    def own(self, x, sign):
        return sign[:, None] * (self.tilt * (x - 2 * np.outer(x @ self.u, self.u)) + self.pull)

    def draw(self, trials, points):
        return self.jitter * self.rng.normal(size=(trials, points, len(self.a)))

    def grad(self, x, z, sign):
        """At x on the phases z (trials, points, d), of clients of these signs."""
        return (self.a * math.exp(self.jitter**2 / 2) * np.sin(x[:, None] + z)).mean(axis=1) + self.own(x, sign)

    def estimates(self, points, x, before):
        """Means over the clients at two points, each client with so many samples of its own."""
        now, then = 0.0, 0.0
        for sign in self.signs:
            z, s = self.draw(len(x), points), np.full(len(x), sign)
            now, then = now + self.grad(x, z, s), then + self.grad(before, z, s)
        return now / len(self.signs), then / len(self.signs)


def ce_lsgd(world, trials, step_size, num_local_steps, rounds, momentum, first_batches):
    """Algorithm 1 of chapter 6, b = 1: the mean of |grad F|^2 over all local iterates, of every trial."""
    x = before = np.tile(world.x0, (trials, 1))
    v, squares = np.zeros_like(x), []
    for r in range(rounds):
        rho, Q, points = (1.0, 1, first_batches) if r == 0 else (momentum, num_local_steps, num_local_steps)
        now, then = world.estimates(points, x, before)
        v = now + (1 - rho) * (v - then)
        sign = world.rng.choice(world.signs, size=trials)
        w, w_before, u = x, x, v
        for _ in range(Q):
            z = world.draw(trials, 1)
            u = u + world.grad(w, z, sign) - world.grad(w_before, z, sign)
            squares.append((world.mean_grad(w) ** 2).sum(axis=1))
            w, w_before = w - step_size * u, w
        before, x = x, w
    return np.mean(squares, axis=0)


def mb_storm(world, trials, step_size, num_local_steps, rounds, momentum, first_batches):
    x = before = np.tile(world.x0, (trials, 1))
    v, squares = np.zeros_like(x), []
    for r in range(rounds):
        rho, points = (1.0, first_batches) if r == 0 else (momentum, num_local_steps)
        now, then = world.estimates(points, x, before)
        v = now + (1 - rho) * (v - then)
        squares.append((world.mean_grad(x) ** 2).sum(axis=1))
        before, x = x, x - step_size * v
    return np.mean(squares, axis=0)


def random_world(rng, noise=None):
    noise = 10.0 ** rng.uniform(-1, 0.7) if noise is None else noise
    federation = cosines(
        int(rng.integers(2, 6)), int(rng.integers(2, 6)), float(rng.choice([0.0, 0.1, 0.5, 1.5])), noise=noise,
        condition=float(rng.uniform(1, 5)), gradient_spread=float(rng.uniform(0, 2)), start=float(rng.uniform(0.1, 3)),
    )  # fmt: skip
    return World(federation, int(rng.integers(1 << 30)))


def random_run(rng, world, step):
    """A run of random size with the longest permitted step, or a shorter one."""
    K = int(rng.integers(1, 12))
    run = {"num_local_steps": K, "rounds": int(rng.integers(3, 25)), "momentum": float(rng.uniform(0.05, 1)),
           "first_batches": int(rng.integers(1, 30))}  # fmt: skip
    known = {"smoothness": world.facts.smoothness, "num_clients": world.facts.num_clients}
    if step is not nonconvex.theorem_27_step_size:
        known["hessian_heterogeneity"] = world.facts.hessian_heterogeneity
    longest = step(num_local_steps=K, momentum=run["momentum"], **known)
    return {"step_size": longest * float(rng.choice([1.0, 0.3])), **run}


def low(found):
    """Four standard errors below the mean."""
    return found.mean() - 4 * found.std() / len(found) ** 0.5


def test_e17_stands_above_ce_lsgd(x64):
    rng = np.random.default_rng(0)
    for _ in range(8):
        world = random_world(rng)
        run = random_run(rng, world, nonconvex.theorem_26_step_size)
        assert low(ce_lsgd(world, 100, **run)) <= nonconvex.theorem_26(world.facts, **run)
        run = random_run(rng, world, nonconvex.ce_lsgd_step_size)
        assert low(ce_lsgd(world, 100, **run)) <= nonconvex.ce_lsgd_gradient(world.facts, **run)


def test_no_term_of_e17_can_be_dropped(x64):
    """Negative controls: without the term of the start, or those of the noise, the bound fails."""
    far = World(cosines(4, 3, 0.2, noise=0.05, start=1.5))
    run = {"num_local_steps": 4, "rounds": 20, "momentum": 0.5, "first_batches": 4}
    step = nonconvex.ce_lsgd_step_size(far.facts, num_local_steps=4, momentum=0.5)
    without_start = dataclasses.replace(far.facts, start_gap=0.0)
    assert low(ce_lsgd(far, 50, step, **run)) > nonconvex.ce_lsgd_gradient(without_start, step_size=step, **run)
    near = World(cosines(4, 3, 0.2, noise=3.0, start=0.001))
    step = nonconvex.ce_lsgd_step_size(near.facts, num_local_steps=4, momentum=0.5)
    quiet = dataclasses.replace(near.facts, noise=1e-9)
    assert low(ce_lsgd(near, 50, step, **run)) > nonconvex.ce_lsgd_gradient(quiet, step_size=step, **run)


def test_steps_beyond_the_permitted_break_the_bound(x64):
    """The formula goes down with the step, the gradients do not: what is required is required."""
    world = World(cosines(4, 3, 1.9, start=1.5, gradient_spread=1.0))
    facts, run = world.facts, {"num_local_steps": 40, "rounds": 20}
    long = 1 / (4 * facts.smoothness)  # permitted by H, far beyond 1/(9 K tau)
    with pytest.raises(SojournError, match="num_local_steps \\* hessian_heterogeneity"):
        nonconvex.theorem_26_exact(facts, step_size=long, **run)
    ignoring = dataclasses.replace(facts, hessian_heterogeneity=0.0)
    found = ce_lsgd(world, 20, long, momentum=1.0, first_batches=1, **run)
    assert found.min() > nonconvex.theorem_26_exact(ignoring, step_size=long, **run)


def test_the_exact_bound_stands_above_ce_lgd(x64):
    """Not in the mean only: for every choice of clients."""
    rng = np.random.default_rng(1)
    tightest = np.inf
    for _ in range(20):
        world = random_world(rng, noise=0.0)
        run = {"num_local_steps": int(rng.integers(1, 30)), "rounds": int(rng.integers(1, 25))}
        step = nonconvex.theorem_26_exact_step_size(world.facts, num_local_steps=run["num_local_steps"])
        found = ce_lsgd(world, 10, step, momentum=1.0, first_batches=1, **run).max()
        bound = nonconvex.theorem_26_exact(world.facts, step_size=step, **run)
        assert found <= bound
        tightest = min(tightest, bound / found)
    assert tightest < 10  # not a bound of anything


def test_the_first_round_has_one_step_so_one_round_is_the_start(x64):
    """E.17 as printed, with R K iterates, is refuted at R = 1: the output is x_0 whatever K."""
    world = World(cosines(2, 5, 0.0, noise=1e-6, start=math.pi / 2))
    run = {"num_local_steps": 5000, "rounds": 1, "momentum": 1.0, "first_batches": 10**12}
    b = run["num_local_steps"]  # batches as large as the walk is long
    step = nonconvex.theorem_26_step_size(world.facts, num_local_steps=b, momentum=1.0, batch_size=b)
    printed = 8 * world.facts.start_gap / (b * step)
    assert np.sum(world.mean_grad(world.x0) ** 2) > printed
    with pytest.raises(SojournError, match="rounds >= 3"):
        nonconvex.theorem_26(world.facts, step_size=step, batch_size=b, **run)
    assert np.sum(world.mean_grad(world.x0) ** 2) <= nonconvex.ce_lsgd_gradient(
        world.facts, step_size=step, batch_size=b, **run
    )


def test_theorem_27_stands_above_minibatch_storm(x64):
    rng = np.random.default_rng(2)
    for _ in range(8):
        world = random_world(rng)
        run = random_run(rng, world, nonconvex.theorem_27_step_size)
        assert low(mb_storm(world, 100, **run)) <= nonconvex.theorem_27(world.facts, **run)
    quiet = dataclasses.replace(world.facts, start_gap=0.0, noise=0.0)
    assert low(mb_storm(world, 100, **run)) > nonconvex.theorem_27(quiet, **run)


def test_the_engines_method_is_the_one_that_is_bounded(x64):
    """CE-LSGD with uniform output in the engine against the mean over iterates retyped; both below the bound."""
    federation = cosines(4, 3, 0.5, noise=1.0, start=1.5)
    run = {"num_local_steps": 3, "rounds": 6, "momentum": 0.4, "first_batches": 5}
    step = nonconvex.ce_lsgd_step_size(federation.facts, num_local_steps=3, momentum=0.4)
    method = CELSGD(step, num_local_steps=3, momentum=0.4, first_batches=5, output="uniform")
    table = sj.sweep(federation, lambda _: method, [0], 6, seeds=range(300), eval_every=6, progress=False).table
    found = table[table["round"] == 6]["grad_norm"].to_numpy() ** 2
    retyped = ce_lsgd(World(federation), 300, step, **run)
    error = (found.var() / len(found) + retyped.var() / len(retyped)) ** 0.5
    assert abs(found.mean() - retyped.mean()) < 4 * error
    assert low(found) <= nonconvex.ce_lsgd_gradient(federation.facts, step_size=step, **run)


# --- parameters --------------------------------------------------------------------------------------------------


def test_steps_are_the_longest_permitted(x64):
    rng = np.random.default_rng(3)
    for _ in range(20):
        facts = random_world(rng).facts
        run = {"num_local_steps": int(rng.integers(1, 40)), "momentum": float(rng.uniform(0.01, 1))}
        more = {"rounds": 5, "first_batches": 3}
        for step, bound in (
            (nonconvex.theorem_26_step_size, nonconvex.theorem_26),
            (nonconvex.ce_lsgd_step_size, nonconvex.ce_lsgd_gradient),
            (nonconvex.theorem_27_step_size, nonconvex.theorem_27),
        ):
            eta = step(facts, **run)
            assert bound(facts, step_size=eta, **run, **more) > 0
            with pytest.raises(SojournError, match="needs"):
                bound(facts, step_size=1.001 * eta, **run, **more)
        eta = nonconvex.theorem_26_exact_step_size(facts, num_local_steps=7)
        assert nonconvex.theorem_26_exact(facts, step_size=eta, num_local_steps=7, rounds=3) > 0
        with pytest.raises(SojournError, match="needs"):
            nonconvex.theorem_26_exact(facts, step_size=1.001 * eta, num_local_steps=7, rounds=3)
    assert nonconvex.theorem_26_exact_step_size(smoothness=2, hessian_heterogeneity=0, num_local_steps=9) == 1 / 8
    numbers = {"smoothness": 2.0, "hessian_heterogeneity": 0.3, "num_clients": 4, "num_local_steps": 9}
    assert nonconvex.theorem_26_step_size(**numbers, momentum=0.2, batch_size=5.0) == pytest.approx(
        min(1 / 8, 1 / (25 * 9 * 0.3), 5**0.5 / (9 * 3 * 2), (0.2 * 4 * 9 * 5) ** 0.5 / (103 * 2 * 9))
    )


def test_momentum_and_first_batch_balance_the_bound():
    """With the theorem's choices every term of E.18 is one of the tuned rate, up to a factor of two."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        known = {"smoothness": 10 ** rng.uniform(-1, 1), "noise": 10 ** rng.uniform(0, 2),
                 "start_gap": 10 ** rng.uniform(-1, 1), "num_clients": int(rng.integers(1, 50))}  # fmt: skip
        run = {"num_local_steps": int(rng.integers(1, 50)), "rounds": int(rng.integers(10, 10_000))}
        b = float(rng.integers(1, 20))
        beta = nonconvex.theorem_26_momentum(**known, **run, batch_size=b)
        H, sigma, Delta, M, K, R = (*known.values(), *run.values())
        assert beta == pytest.approx(
            min(1, max(1 / R, (Delta * H) ** (2 / 3) * (M * K * b) ** (1 / 3) / (sigma ** (4 / 3) * R ** (2 / 3))))
        )
        assert (beta == 1) == (Delta * H / R >= sigma**2 / (M * K * b) ** 0.5)
        if beta == 1:
            continue
        first = nonconvex.theorem_26_first_batches(**run) * b
        terms = nonconvex_rates.rate_equation_e18(
            **known, **run, hessian_heterogeneity=0.1, momentum=beta, first_batch=first, batch_size=b
        )
        tuned = nonconvex_rates.rate_theorem_26(**known, **run, hessian_heterogeneity=0.1, batch_size=b)
        assert terms["noise"] + terms["first"] + terms["estimate"] <= 4 * (tuned["noise"] + tuned["oracle"])
        alone = nonconvex.theorem_26_momentum(**known, **run)
        storm = nonconvex.theorem_27_first_batches(**run, momentum=alone)
        one = sigma ** (4 / 3) * (R * K) ** (2 / 3) / ((Delta * H) ** (2 / 3) * M ** (1 / 3))
        two = sigma ** (8 / 3) * (K * R) ** (1 / 3) / ((Delta * H) ** (4 / 3) * M ** (2 / 3))
        if 1 / R < alone < 1:
            assert storm == pytest.approx(math.ceil(min(one, two) - 1e-6), abs=1.01)
            last = sigma**2 / (alone * R * M * storm)
            assert last <= sigma**2 / (M * K * R) + alone * sigma**2 / (M * K)
    assert nonconvex.theorem_26_momentum(**{**known, "noise": 0.0}, **run) == 1


def test_regimes_reach_the_target_up_to_a_constant():
    """With the regime's K, b_0 and beta every term of E.18 is at most eps, and the samples are those of the figure."""
    rng = np.random.default_rng(5)
    seen = {"green": 0, "orange": 0, "red": 0}
    for _ in range(500):
        known = {"smoothness": 10 ** rng.uniform(-1, 1), "noise": 10 ** rng.uniform(-1, 2),
                 "start_gap": 10 ** rng.uniform(-1, 1), "num_clients": int(rng.integers(1, 100))}  # fmt: skip
        known["hessian_heterogeneity"] = known["smoothness"] * 10 ** rng.uniform(-3, 0)
        target = 10 ** rng.uniform(-8, 0)
        if target * known["noise"] ** 2 > (known["start_gap"] * known["smoothness"]) ** 2:
            with pytest.raises(SojournError, match="needs target"):
                nonconvex_rates.regime(**known, target=target)
            continue
        told = nonconvex_rates.regime(**known, target=target)
        seen[told["regime"]] += 1
        chosen = {key: told[key] for key in ("rounds", "num_local_steps", "momentum", "first_batch")}
        terms = nonconvex_rates.rate_equation_e18(**known, **chosen)
        assert max(terms[name] for name in terms if name != "sum") <= target * (1 + 1e-6)
        H, sigma, Delta, M, tau = known.values()
        assert 1 / told["rounds"] <= told["momentum"] <= 1 and told["num_local_steps"] >= 1
        if told["rounds"] > 1:
            assert told["rounds"] == math.ceil(Delta * tau / target - 1e-6)
        # rounded up, each factor less than doubles; b_0 costs at most N, or one sample of each client
        assert told["samples_spent"] <= 7 * told["samples"] + 6 * M + 1 or told["num_local_steps"] == 1
        if told["regime"] == "green":
            assert told["samples"] == pytest.approx(Delta * H * sigma / target**1.5)
            assert M * target**0.5 <= sigma * (1 + 1e-9)  # which the theorem lists apart
        else:
            assert told["samples"] >= 0.999 * Delta * H * sigma / target**1.5 or told["regime"] == "red"
    assert min(seen.values()) > 30, seen


def test_regimes_meet_at_their_borders():
    H, sigma, Delta, M, tau = 2.0, 3.0, 1.5, 8, 0.4
    known = {"smoothness": H, "noise": sigma, "start_gap": Delta, "num_clients": M, "hessian_heterogeneity": tau}
    border = (sigma * tau / (H * M)) ** 2
    green, orange = (nonconvex_rates.regime(**known, target=border * f) for f in (1 - 1e-9, 1 + 1e-9))
    assert (green["regime"], orange["regime"]) == ("green", "orange")
    assert green["samples"] == pytest.approx(orange["samples"], rel=1e-6)
    assert green["momentum"] == pytest.approx(orange["momentum"], rel=1e-6)
    orange, red = (nonconvex_rates.regime(**known, target=Delta * tau * f) for f in (1 - 1e-9, 1 + 1e-9))
    assert (orange["regime"], red["regime"]) == ("orange", "red")
    assert orange["samples"] == pytest.approx(red["samples"], rel=1e-6)
    assert (red["rounds"], red["momentum"]) == (1, 1)
    alike = nonconvex_rates.regime(**{**known, "hessian_heterogeneity": 0.0}, target=1e-3)
    assert (alike["regime"], alike["rounds"]) == ("red", 1)
    grid = nonconvex_rates.regime(**known, target=np.array([border / 2, border * 2, 1.5 * Delta * tau]))
    assert list(grid["regime"]) == ["green", "orange", "red"]


def test_heavy_batches_are_fewer_and_lighter():
    known = {"smoothness": 2.0, "noise": 3.0, "start_gap": 1.5, "hessian_heterogeneity": 0.4}
    found = nonconvex_rates.heavy_batches(**known, target=1e-4)
    told = nonconvex_rates.regime(**known, num_clients=4, target=1e-4)
    assert told["regime"] == "green"
    assert found["ce_lsgd"] == pytest.approx(told["first_batch"] / told["num_local_steps"], rel=0.1)  # of rounding
    assert found["ce_lsgd"] / found["bvr_l_sgd"] == pytest.approx(3 * 1e-2 / (2 * 1.5))
    assert found["bvr_l_sgd_rounds"] == pytest.approx(2 * 1.5 / (3 * 1e-2))


# --- rates and lower bounds --------------------------------------------------------------------------------------


def test_rates_of_table_6_1():
    known = {"smoothness": 2.0, "noise": 3.0, "start_gap": 1.5, "num_clients": 4, "num_local_steps": 10, "rounds": 50}
    tau, zeta, n = {"hessian_heterogeneity": 0.4}, {"gradient_heterogeneity": 0.7}, 4 * 10 * 50
    oracle, noise = (3 * 1.5 * 2 / n) ** (2 / 3), 9 / n
    thirteen = nonconvex_rates.rate_theorem_13(**known)
    assert thirteen["sum"] == pytest.approx(3 / 50 + noise + oracle)
    fifteen = nonconvex_rates.rate_theorem_15(**known, **tau, **zeta)
    assert fifteen["sum"] == pytest.approx(min(0.6, 1.96) / 50 + 3 / 500 + noise + oracle)
    local = nonconvex_rates.rate_theorem_26(**known, **tau)
    assert local["sum"] == pytest.approx(0.6 / 50 + 3 / 500 + 3 / (50 * 10**0.5) + noise + oracle)
    wide = nonconvex_rates.rate_theorem_26(**known, **tau, batch_size=10.0)
    assert wide["local_noise"] == pytest.approx(wide["optimization"])  # b = K closes the gap to the lower bound
    still = {k: v for k, v in known.items() if k not in ("noise", "num_clients")}
    exact = nonconvex_rates.rate_theorem_26_exact(**still, **tau)
    assert exact["sum"] == pytest.approx(fifteen["heterogeneity"] + fifteen["optimization"])
    plain = nonconvex_rates.rate_minibatch_sgd_nonconvex(**known)
    assert plain["sum"] == pytest.approx(3 / 50 + (9 * 3 / n) ** 0.5) and plain["sum"] > thirteen["sum"]
    stem = nonconvex_rates.rate_stem(**known, **zeta)
    assert stem["sum"] == pytest.approx((3 + 9 + 1.96) * (1 / 50 + n ** (-2 / 3)))


def test_rounds_of_lower_bounds_are_lengths_of_chains(x64):
    length = lambda federation: federation.x0.tree.size - 1  # noqa: E731
    for target in (1.1e-5, 3e-5, 1e-4):
        gap = {"start_gap": 2.0, "target": target}
        assert nonconvex.theorem_22(hessian_heterogeneity=0.7, **gap) == length(split_chain(2, 1.0, 0.7, 2.0, target))
        first = split_chain(2, 1.0, 1.0, 2.0, target, gradient_heterogeneity=0.5)
        assert nonconvex.theorem_23(smoothness=1.0, gradient_heterogeneity=0.5, **gap) == length(first)
        assert nonconvex.theorem_25_floor(smoothness=1.0, **gap) == length(whole_chain(2, 1.0, 2.0, target))


def test_no_method_passes_a_chain_before_its_rounds(x64):
    """Theorem 22 on runs: CE-LGD with many local steps keeps |grad F|^2 > eps for d - 1 rounds."""
    target = 3e-5
    federation = split_chain(2, 1.0, 0.7, 1.0, target)
    rounds = int(nonconvex.theorem_22(hessian_heterogeneity=0.7, start_gap=1.0, target=target))
    assert rounds >= 5
    history = sj.run(federation, CELGD(5.0, num_local_steps=100), rounds - 1, eval_every=1, progress=False)
    assert (history.frame()["grad_norm"] ** 2 > target).all()


# --- step_size = "theory" ----------------------------------------------------------------------------------------

FACTS = Facts(smoothness=1.5, hessian_heterogeneity=0.2, noise=2.0, start_gap=3.0, num_clients=4)


def test_the_rules_settle_step_momentum_and_first_batch():
    options = {"num_local_steps": 5, "output": "uniform"}
    found = step_size_rule("ce-lsgd", FACTS, options, 200)
    beta = nonconvex.theorem_26_momentum(FACTS, num_local_steps=5, rounds=200)
    assert found.companions == {"momentum": beta, "first_batches": 1000} and found.conditions[0][1]
    assert found.value == nonconvex.ce_lsgd_step_size(FACTS, num_local_steps=5, momentum=beta)
    assert "heuristic" not in found.rule
    assert "heuristic" in step_size_rule("ce-lsgd", FACTS, {**options, "output": "last"}, 200).rule
    short = step_size_rule("ce-lsgd", FACTS, options, 2)
    assert short.companions["momentum"] == 1 and not short.conditions[0][1]
    exact = step_size_rule("ce-lsgd", dataclasses.replace(FACTS, noise=0.0), options, 200)
    lgd = step_size_rule("ce-lgd", Facts(smoothness=1.5, hessian_heterogeneity=0.2), options, 200)
    assert exact.value == lgd.value == nonconvex.theorem_26_exact_step_size(FACTS, num_local_steps=5)
    assert exact.companions == {"momentum": 1.0}
    storm = step_size_rule("mb-storm", dataclasses.replace(FACTS, hessian_heterogeneity=None), options, 200)
    assert storm.value == nonconvex.theorem_27_step_size(FACTS, num_local_steps=5, momentum=beta) > found.value
    with pytest.raises(SojournError, match=r"Theorem 26 .*needs start_gap \(Delta\)"):
        step_size_rule("ce-lsgd", dataclasses.replace(FACTS, start_gap=None), options, 200)


@pytest.mark.parametrize("name", ["ce-lsgd", "ce-lgd", "mb-storm"])
def test_a_config_may_leave_it_to_theory(name, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"""
[problem]
name = "cosines"
dimension = 3
[algorithm]
name = "{name}"
step_size = "theory"
num_local_steps = 3
[run]
rounds = 4
""")
    (history,) = run_config(load_config(path), tmp_path / "out", progress=False)
    assert history.status == "ok" and history.manifest["step_rule"]["value"] > 0
    if name != "ce-lgd":
        settled = history.manifest["step_rule"]["companions"]
        assert {key: history.manifest["algorithm"][key] for key in settled} == settled
