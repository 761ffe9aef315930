"""Bounds of chapter 7 against random games typed out in NumPy, side by side over repetitions."""

from typing import Any

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.theory import online as theory

REPEATS = 400


def regret_of_gradients(betas: np.ndarray, eta: float, B: float) -> float:
    """OGD on each machine, linear costs (T, M, d)."""
    x = -eta * np.concatenate([np.zeros_like(betas[:1]), betas.cumsum(0)[:-1]])
    return float((betas * x).sum(-1).mean() + B * np.linalg.norm(betas.mean((0, 1))))


def test_theorem_17_holds_on_every_path() -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        T, M, d = rng.integers(1, 30), rng.integers(1, 4), rng.integers(1, 5)
        B, G = 10 ** rng.uniform(-1, 1, 2)
        betas = rng.normal(size=(T, M, d)) + rng.normal(size=d) * rng.choice([0, 1, 5])
        betas *= G / np.linalg.norm(betas, axis=-1, keepdims=True)
        eta = float(theory.theorem_17_step_size(steps=T, lipschitz=G, radius=B)) * 10 ** rng.uniform(-1, 1)
        bound = theory.theorem_17(step_size=eta, steps=T, lipschitz=G, radius=B)
        assert regret_of_gradients(betas, eta, B) <= bound * (1 + 1e-9)
    same = np.full((20, 1, 1), 2.0)  # B = eta G T: the bound is attained, so that neither term can be dropped
    assert regret_of_gradients(same, 0.1, 4.0) == pytest.approx(
        theory.theorem_17(step_size=0.1, steps=20, lipschitz=2.0, radius=4.0)
    )
    tuned = theory.theorem_17_step_size(steps=9, lipschitz=2.0, radius=3.0)
    assert theory.theorem_17(step_size=tuned, steps=9, lipschitz=2.0, radius=3.0) == pytest.approx(2 * 3 / 3)


def test_every_method_has_the_regret_of_rademacher_costs() -> None:
    """E regret = (B/T) E|sum beta| whatever is played, between G B/sqrt(2T) and G B/sqrt T; below the first: never."""
    rng = np.random.default_rng(1)
    for T, d in ((1, 1), (4, 1), (25, 1), (25, 3), (25, 40)):
        betas = rng.choice([-1.0, 1.0], size=(20_000, T, d)) * 2.0 / d**0.5
        norms = np.linalg.norm(betas.sum(1), axis=-1) * 3.0 / T
        played = -0.1 * np.concatenate([np.zeros_like(betas[:, :1]), betas.cumsum(1)[:, :-1]], axis=1)
        gained = (betas * played).sum(-1).mean(1)
        error = norms.std() / len(norms) ** 0.5
        low = theory.theorem_17_lower_bound(steps=T, lipschitz=2.0, radius=3.0)
        assert low - 4 * error <= norms.mean() <= 2.0 * 3.0 / T**0.5 + 4 * error
        assert abs(gained.mean()) <= 5 * gained.std() / len(gained) ** 0.5 + 1e-12
    pairs = np.abs(rng.choice([-1.0, 1.0], size=(50_000, 2)).sum(1)).mean() / 2
    assert pairs == pytest.approx(1 / 4**0.5, rel=0.02)  # Szarek's constant is attained at T = 2: 1/sqrt(2 * 2)


def test_theorem_18_holds_on_every_path() -> None:
    rng = np.random.default_rng(2)
    broken = 0
    for _ in range(300):
        T, M, d = rng.integers(1, 40), rng.integers(1, 3), rng.integers(1, 4)
        H, B = 10 ** rng.uniform(-1, 1, 2)
        a = rng.normal(size=(T, M, d))
        a /= np.linalg.norm(a, axis=-1, keepdims=True)
        best = rng.normal(size=d)
        best *= B / np.linalg.norm(best)
        y = a @ best + rng.normal(size=(T, M)) * rng.choice([0.0, 0.3, 3.0]) * B
        star = float((H / 2 * (a @ best - y) ** 2).mean())
        eta = theory.theorem_18_step_size(steps=T, smoothness=H, optimal_value=star, radius=B) * rng.uniform(0.2, 1.9)
        eta = min(float(eta), 0.95 / H)
        x, total = np.zeros((M, d)), 0.0
        for t in range(T):
            residual = (a[t] * x).sum(-1) - y[t]
            total += (H / 2 * residual**2).mean()
            x = x - eta * H * residual[:, None] * a[t]
        numbers: dict[str, Any] = {"step_size": eta, "steps": T, "smoothness": H, "radius": B}
        assert total / T - star <= theory.theorem_18(**numbers, optimal_value=star) * (1 + 1e-9)
        broken += total / T - star > theory.theorem_18(**numbers, optimal_value=0.0)
    assert broken > 0  # without F_* it fails
    tuned = theory.theorem_18_step_size(steps=50, smoothness=2.0, optimal_value=0.7, radius=3.0)
    bound = theory.theorem_18(step_size=tuned, steps=50, smoothness=2.0, optimal_value=0.7, radius=3.0)
    assert bound <= 2 * 2 * 9 / 50 + 2 * (2 * 2 * 0.7) ** 0.5 * 3 / 50**0.5


def sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    u = rng.normal(size=shape)
    return u / np.linalg.norm(u, axis=-1, keepdims=True)


def test_second_moments_of_the_estimates() -> None:
    rng = np.random.default_rng(3)
    for d in (1, 2, 3, 10):
        u = sphere(rng, 200_000, d)
        beta, w, delta = rng.normal(size=d), rng.normal(size=d), 0.6
        one = (d / delta * ((w + delta * u) @ beta)) ** 2
        exact = theory.one_point_second_moment(
            cost=abs(beta @ w), lipschitz=np.linalg.norm(beta), dimension=d, exploration=delta
        )
        assert one.mean() == pytest.approx(exact, abs=5 * one.std() / len(u) ** 0.5 + 1e-9)
        variance = exact - beta @ beta
        size: dict[str, Any] = {"lipschitz": np.linalg.norm(beta), "dimension": d}
        bound = theory.equation_7_4(**size, exploration=delta, point_norm=np.linalg.norm(w))
        printed = (d * np.linalg.norm(beta) * (np.linalg.norm(w) + delta) / delta) ** 2
        assert variance <= bound * (1 + 1e-9) and bound <= printed
        for centre in (np.zeros(d), w):  # the kink of |x - c| at, and beside, the point
            for f in (
                lambda x, b=beta: x @ b,
                lambda x, c=centre, g=size["lipschitz"]: np.linalg.norm(x - c, axis=-1) * g,
            ):
                two = (d * (f(w + delta * u) - f(w - delta * u)) / (2 * delta)) ** 2
                assert two.mean() <= theory.two_point_second_moment(**size) + 5 * two.std() / len(u) ** 0.5
        linear = (d * (u @ beta)) ** 2
        assert linear.mean() == pytest.approx(d * beta @ beta, abs=5 * linear.std() / len(u) ** 0.5 + 1e-9)
    # at d = 1 the print d G^2 and ours agree; in high dimensions ours is d G^2 (1 + 1/(d - 1))
    assert theory.two_point_second_moment(lipschitz=1.0, dimension=100) == pytest.approx(100 * 100 / 99)


def test_machines_drift_apart_as_slowly_as_stated() -> None:
    rng = np.random.default_rng(4)
    numbers: dict[str, Any] = {"step_size": 0.1, "num_local_steps": 6, "num_clients": 2, "lipschitz": 3.0}
    # opposite gradients for K - 1 steps attain the drift; noise alone attains its part up to sqrt(1 - 1/M)
    assert pytest.approx(theory.consensus_distance(**numbers, noise=0.0, cost_heterogeneity=2.0)) == 0.1 * 5 * 2.0
    noise = 0.1 * rng.normal(size=(100_000, 5, 2)).sum(1)
    apart = np.sqrt(((noise - noise.mean(1, keepdims=True)) ** 2).mean())
    bound = theory.consensus_distance(**numbers, noise=1.0, cost_heterogeneity=0.0)
    assert apart == pytest.approx(bound * 0.5**0.5, rel=0.02)
    assert bound < 2 * (1.0 + 3.0) * 6 * 0.1  # the print, (F.6)
    assert theory.consensus_distance(**{**numbers, "num_local_steps": 1}, noise=1.0, cost_heterogeneity=1.0) == 0
    # smooth costs (H/2)|x - c_m|^2 that differ by zeta-hat, with noise: the recursion of the docstring
    for eta in (0.1, 0.7, 1.0):
        centres = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]) * 2.0
        zeta = np.sqrt(((2.0 * centres) ** 2).sum(1).mean())
        x = np.zeros((5000, 3, 2))
        for j in range(1, 8):
            x = x - eta * (2.0 * (x - centres) + rng.normal(size=x.shape) / 2**0.5)
            found = np.sqrt(((x - x.mean(1, keepdims=True)) ** 2).sum(-1).mean())
            how = {"step_size": eta, "num_local_steps": j + 1, "num_clients": 3, "lipschitz": 100.0}
            assert found <= 1.02 * theory.consensus_distance(**how, noise=1.0, cost_heterogeneity=zeta)


# --- bandits -----------------------------------------------------------------------------------------------------


def linear_game(rng: np.random.Generator, reacts: bool, points: int, **n: Any) -> tuple[float, float]:
    """The mean regret of FedPOSGD (points = 1) or FedOSGD over repetitions, and its standard error."""
    T, K, M, d, B, G, zeta, eta, delta = (n[k] for k in ("T", "K", "M", "d", "B", "G", "zeta", "eta", "delta"))
    x, total = np.zeros((REPEATS, M, d)), np.zeros(REPEATS)
    summed = np.zeros((REPEATS, d))
    own = np.zeros((M, d))
    own[:, :2] = np.stack([np.cos(2 * np.pi * np.arange(M) / M), np.sin(2 * np.pi * np.arange(M) / M)], 1)
    direction = np.concatenate([np.zeros(2), sphere(rng, d - 2)])
    target = 0.5 * B * direction
    base = np.sqrt(G**2 - zeta**2)
    for t in range(T):
        if reacts:  # pushes away from the mean iterate, across the plane in which machines differ
            away = x.mean(1) - target
            away[:, :2] = 0
            shared = away / np.linalg.norm(away, axis=-1, keepdims=True)
        else:
            sign = 1.0 if t < T // 3 or rng.random() < 0.5 else -1.0
            shared = np.broadcast_to(sign * direction, (REPEATS, d))
        beta = base * shared[:, None] + zeta * own * (1 if M > 1 else 0)
        u = sphere(rng, REPEATS, M, d)
        if points == 1:
            length = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300)
            q = x * np.minimum(1, B / length) + delta * u
            cost = (beta * q).sum(-1)
            g = d / delta * cost[..., None] * u
        else:
            cost = (beta * x).sum(-1)  # the mean of both plays
            g = d * (beta * u).sum(-1, keepdims=True) * u
        total, summed = total + cost.mean(1), summed + beta.mean(1)
        x = x - eta * g
        if (t + 1) % K == 0:
            x[:] = x.mean(1, keepdims=True)
    regret = (total + B * np.linalg.norm(summed, axis=-1)) / T
    return float(regret.mean()), float(regret.std() / REPEATS**0.5)


def random_linear(rng: np.random.Generator) -> dict[str, Any]:
    M = int(rng.choice([1, 2, 4]))
    B, G = 10 ** rng.uniform(-0.5, 0.5, 2)
    zeta = 0.0 if M == 1 else G * rng.choice([0.0, 0.3, 0.9])
    return {
        "T": 60,
        "K": int(rng.choice([1, 5, 20])),
        "M": M,
        "d": int(rng.choice([3, 8])),
        "B": B,
        "G": G,
        "zeta": zeta,
    }


def named(n: dict[str, Any]) -> dict[str, Any]:
    return {
        "steps": n["T"], "num_local_steps": n["K"], "num_clients": n["M"], "dimension": n["d"], "radius": n["B"],
        "lipschitz": n["G"], "cost_heterogeneity": n["zeta"],
    }  # fmt: skip


def test_theorem_19_holds() -> None:
    rng = np.random.default_rng(5)
    closest = 0.0
    for trial in range(40):
        n = random_linear(rng)
        n["eta"] = float(theory.theorem_19_step_size(**named(n))) * 10 ** rng.uniform(-0.5, 1.0)
        found, error = linear_game(rng, trial % 2 == 0, 1, **n, delta=n["B"])
        bound = theory.theorem_19(step_size=n["eta"], **named(n))
        if trial % 2 == 0:
            s = n["G"] * (n["d"] ** 2 + n["d"] - 1) ** 0.5
            bound += theory.adaptive_comparator(steps=n["T"], num_clients=n["M"], radius=n["B"], noise=s)
        assert found - 4 * error <= bound
        s, apart = 2 * n["d"] * n["G"], (n["K"] > 1) * (n["M"] > 1)
        printed = n["eta"] * (
            n["G"] ** 2 + s**2 / n["M"] + apart * 2 * n["G"] * (s * n["K"] ** 0.5 + n["zeta"] * n["K"])
        )
        printed += n["B"] ** 2 / (2 * n["eta"] * n["T"])
        assert theory.theorem_19(step_size=n["eta"], **named(n)) <= printed * (1 + 1e-9)
        closest = max(closest, found / bound)
    assert closest > 0.3  # not empty: a third of it is reached
    with pytest.raises(SojournError, match="cost_heterogeneity <= 2"):
        theory.theorem_19(step_size=0.1, **{**named(n), "cost_heterogeneity": 2.1 * n["G"]})


def test_corollary_1_holds() -> None:
    rng = np.random.default_rng(6)
    broken = 0
    for trial in range(40):
        n = random_linear(rng)
        n["eta"] = float(theory.corollary_1_step_size(**named(n))) * 10 ** rng.uniform(-0.5, 1.0)
        found, error = linear_game(rng, trial % 2 == 0, 2, **n, delta=0.1)
        bound = theory.corollary_1(step_size=n["eta"], **named(n))
        s = n["G"] * n["d"] ** 0.5
        extra = theory.adaptive_comparator(steps=n["T"], num_clients=n["M"], radius=n["B"], noise=s)
        assert found - 4 * error <= bound + (trial % 2 == 0) * extra
        quiet = n["B"] ** 2 / (2 * n["eta"] * n["T"]) + n["eta"] * n["G"] ** 2 / 2
        broken += found - 4 * error > quiet  # as if estimates had no noise
    assert broken > 0


def cone_game(rng: np.random.Generator, smooth: float, **n: Any) -> tuple[float, float]:
    """FedOSGD on G sqrt(|x - c|^2 + smooth^2), which is G/smooth-smooth; smooth = 0 is the kink."""
    T, K, M, d, B, G, eta, delta = (n[k] for k in ("T", "K", "M", "d", "B", "G", "eta", "delta"))
    centre = B * sphere(rng, d)
    f = lambda x: G * np.sqrt(((x - centre) ** 2).sum(-1) + smooth**2)  # noqa: E731
    x, total = np.zeros((REPEATS, M, d)), np.zeros(REPEATS)
    for t in range(T):
        u = sphere(rng, REPEATS, M, d)
        plus, minus = f(x + delta * u), f(x - delta * u)
        total += (plus + minus).mean(1) / 2
        x = x - eta * d * ((plus - minus) / (2 * delta))[..., None] * u
        if (t + 1) % K == 0:
            x[:] = x.mean(1, keepdims=True)
    regret = total / T - G * smooth
    return float(regret.mean()), float(regret.std() / REPEATS**0.5)


def random_cone(rng: np.random.Generator) -> dict[str, Any]:
    n = {**random_linear(rng), "zeta": 0.0, "delta": float(rng.choice([0.01, 0.3]))}
    n["eta"] = n["B"] / (n["G"] * n["T"] ** 0.5) * 10 ** rng.uniform(-1.0, 0.5)
    return n


def test_theorem_20_holds() -> None:
    rng = np.random.default_rng(7)
    broken = drifted = 0
    for _ in range(30):
        n = random_cone(rng)
        found, error = cone_game(rng, 0.0, **n)
        numbers = {key: value for key, value in named(n).items() if key != "cost_heterogeneity"}
        bound = theory.theorem_20(step_size=n["eta"], **numbers, exploration=n["delta"])
        assert found - 4 * error <= bound
        s, apart = n["G"] * n["d"] ** 0.5 * (n["d"] / (n["d"] - 1)) ** 0.5, (n["K"] > 1) * (n["M"] > 1)
        own = n["B"] ** 2 / (2 * n["eta"] * n["T"]) + n["eta"] / 2 * (n["G"] ** 2 + s**2 / n["M"])
        printed = own + apart * 2 * n["G"] * (s + n["G"]) * n["K"] * n["eta"] + 2 * n["G"] * n["delta"]
        assert bound <= printed * (1 + 1e-9)
        quiet = n["B"] ** 2 / (2 * n["eta"] * n["T"]) + n["eta"] * n["G"] ** 2 / 2 + n["G"] * n["delta"]
        broken += found - 4 * error > quiet  # as if estimates had no noise
    # far from the bias, machines that drift: the consensus term cannot be dropped
    n = {"T": 400, "K": 100, "M": 40, "d": 8, "B": 0.01, "G": 1.0, "zeta": 0.0, "eta": 0.05, "delta": 1e-3}
    found, error = cone_game(rng, 0.0, **n)
    s = (64 / 7) ** 0.5
    together = n["B"] ** 2 / (2 * n["eta"] * n["T"]) + n["eta"] / 2 * (1 + s**2 / n["M"]) + n["delta"]
    drifted += found - 4 * error > together
    assert broken > 0 and drifted == 1


def test_lemma_49_holds() -> None:
    rng = np.random.default_rng(8)
    sharper = 0
    for _ in range(30):
        n = random_cone(rng)
        smooth = float(rng.choice([0.3, 3.0])) * n["B"]
        H = n["G"] / smooth
        n["eta"] = min(n["eta"], 2 / H)
        found, error = cone_game(rng, smooth, **n)
        bound = theory.lemma_49(step_size=n["eta"], **named(n), smoothness=H, exploration=n["delta"])
        assert found - 4 * error <= bound
        numbers = {key: value for key, value in named(n).items() if key != "cost_heterogeneity"}
        sharper += bound < theory.theorem_20(step_size=n["eta"], **numbers, exploration=n["delta"]) * 0.99
    assert sharper > 0  # smoothness helps
    with pytest.raises(SojournError, match="step_size"):
        theory.lemma_49(step_size=3.0, **named(n), smoothness=1.0, exploration=0.1)


def numbers_by_letter(rng: np.random.Generator) -> dict[str, Any]:
    """T, K, M, d, B, G, zeta-hat, eta, H and delta, of sizes at which no term of a bound is lost beside the others."""
    G = 10 ** rng.uniform(-1, 1)
    return {
        "T": int(rng.integers(20, 60)), "K": int(rng.integers(2, 9)), "M": int(rng.integers(2, 6)),
        "d": int(rng.integers(2, 9)), "B": 10 ** rng.uniform(-1, 1), "G": G, "zeta": G * rng.uniform(0.2, 0.9),
        "eta": 10 ** rng.uniform(-2, 0), "H": 10 ** rng.uniform(-2, 0), "delta": 10 ** rng.uniform(-2, 0),
    }  # fmt: skip


def test_every_term_of_a_bound_counts() -> None:
    """The bounds typed out term by term; with any one term left out, or at another size, none of them agrees."""
    rng = np.random.default_rng(10)
    for _ in range(50):
        n = numbers_by_letter(rng)
        T, K, M, d, B, G, zeta, eta, H, delta = n.values()
        start = B**2 / (2 * eta * T)
        drift = lambda s, apart: eta * s * (K - 1) ** 0.5 + eta * apart * (K - 1)  # noqa: B023, E731
        one, two, linear = G * (d**2 + d - 1) ** 0.5, G * d / (d - 1) ** 0.5, G * d**0.5
        a = drift(two, zeta)
        how = named(n)
        lipschitz = {key: value for key, value in how.items() if key != "cost_heterogeneity"}
        pairs = {
            "19": (theory.theorem_19(step_size=eta, **how),
                   [start, eta * G**2, eta * one**2 / M, G * eta * one * (K - 1) ** 0.5, G * eta * zeta * (K - 1)]),
            "20": (theory.theorem_20(step_size=eta, **lipschitz, exploration=delta),
                   [start, eta / 2 * G**2, eta / 2 * two**2 / M, G * eta * two * (K - 1) ** 0.5, G * eta * G * (K - 1),
                    G * delta]),
            "49": (theory.lemma_49(step_size=eta, **how, smoothness=H, exploration=delta),
                   [start, eta / 2 * G**2, eta / 2 * two**2 / M, G * delta,
                    *([G * a] if H * a + zeta >= G else [H * a**2, zeta * eta * two * (K - 1) ** 0.5,
                                                         zeta * eta * zeta * (K - 1)])]),
            "1": (theory.corollary_1(step_size=eta, **how),
                  [start, eta / 2 * G**2, eta / 2 * linear**2 / M, zeta * eta * linear * (K - 1) ** 0.5,
                   zeta * eta * zeta * (K - 1)]),
        }  # fmt: skip
        for name, (bound, terms) in pairs.items():
            assert bound == pytest.approx(sum(terms), rel=1e-9), name
            assert all(term > 1e-7 * sum(terms) for term in terms), name  # none too small to be missed


def torn_game(rng: np.random.Generator, points: int, **n: Any) -> tuple[float, float]:
    """Linear costs that punish each machine for where noise drove it from the mean; against x* = 0, which costs 0."""
    T, K, M, d, B, G, eta = (n[k] for k in ("T", "K", "M", "d", "B", "G", "eta"))
    repeats = 50
    x, total = np.zeros((repeats, M, d)), np.zeros(repeats)
    for t in range(T):
        away = x - x.mean(1, keepdims=True) + (1e-9 if t % K else 1.0)
        beta = G * away / np.linalg.norm(away, axis=-1, keepdims=True)
        u = sphere(rng, repeats, M, d)
        length = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300)
        middle = x * np.minimum(1, B / length) if points == 1 else x
        cost = (beta * (middle + (B * u if points == 1 else 0.0))).sum(-1)
        total += cost.mean(1)
        x = x - eta * d * u * ((cost / B)[..., None] if points == 1 else (beta * u).sum(-1, keepdims=True))
        if (t + 1) % K == 0:
            x[:] = x.mean(1, keepdims=True)
    return float(total.mean() / T), float(total.std() / T / repeats**0.5)


def test_what_drives_machines_apart_cannot_be_left_out() -> None:
    """Bounds hold on machines that are torn apart; what they are with the drift, or with zeta-hat, dropped does not."""
    n: dict[str, Any] = {"T": 128, "K": 32, "M": 64, "d": 4, "B": 2.0, "G": 3.0, "zeta": 3.0}
    n["eta"] = n["B"] / (8 * n["G"])
    for points in (1, 2):
        found, error = torn_game(np.random.default_rng(11), points, **n)
        together, alike = {**named(n), "num_local_steps": 1}, {**named(n), "cost_heterogeneity": 0.0}
        if points == 1:
            assert found - 4 * error > theory.theorem_19(step_size=n["eta"], **together)
            assert found + 4 * error < theory.theorem_19(step_size=n["eta"], **named(n))
            continue
        lemma = {"step_size": n["eta"], "smoothness": 1e-3, "exploration": 1e-3}  # linear costs are smooth with any H
        for bound, how in ((theory.corollary_1, {"step_size": n["eta"]}), (theory.lemma_49, lemma)):
            assert found + 4 * error < bound(**how, **named(n))
            assert found - 4 * error > bound(**how, **together)
            assert found - 4 * error > bound(**how, **alike)


# --- tuning ------------------------------------------------------------------------------------------------------


def test_tuned_steps_are_near_the_best() -> None:
    """Where a bound is A/eta + eta sum_i b_i, the least candidate sqrt(A/b_i) is within the number of terms of best.

    Five terms, with constants of up to 2 left out of their candidates: 8 is what can be asked. Negative control: a
    hundred times longer, every step is further off than that somewhere.
    """
    rng = np.random.default_rng(9)
    scale = np.geomspace(1e-3, 1e3, 400)
    worst: dict[str, list[float]] = {}
    wild: dict[str, list[float]] = {}
    for _ in range(200):
        M, K = int(rng.choice([1, 3, 30])), int(rng.choice([1, 4, 100]))
        base: dict[str, Any] = {
            "steps": 10_000, "num_local_steps": K, "num_clients": M, "dimension": int(rng.choice([1, 5, 300])),
            "radius": 10 ** rng.uniform(-1, 1), "lipschitz": 10 ** rng.uniform(-1, 1),
        }  # fmt: skip
        zeta = {"cost_heterogeneity": base["lipschitz"] * rng.choice([0.0, 0.01, 0.3, 1.0])}
        H = {"smoothness": base["lipschitz"] / base["radius"] * 10 ** rng.uniform(-2, 2)}
        first = {key: base[key] for key in ("steps", "lipschitz", "radius")}
        smooth = {"steps": 10_000, "radius": base["radius"], **H, "optimal_value": rng.choice([0.0, 1.0])}
        pairs = {
            "17": (
                theory.theorem_17_step_size(**first),
                lambda e, f=first: theory.theorem_17(step_size=e, **f),
                np.inf,
            ),
            "18": (
                theory.theorem_18_step_size(**smooth),
                lambda e, f=smooth: theory.theorem_18(step_size=e, **f),
                0.99 / H["smoothness"],
            ),
            "19": (
                theory.theorem_19_step_size(**base, **zeta),
                lambda e, f={**base, **zeta}: theory.theorem_19(step_size=e, **f),
                np.inf,
            ),
            "20": (
                theory.two_point_step_size(**base),
                lambda e, f=base: theory.theorem_20(step_size=e, **f, exploration=0.0),
                np.inf,
            ),
            "20 printed": (theory.theorem_20_step_size(**base), lambda e, f=base: printed_20(e, f), np.inf),
            "21": (
                theory.theorem_21_step_size(**base, **zeta, **H),
                lambda e, f={**base, **zeta, **H}: theory.lemma_49(step_size=e, **f, exploration=0.0),
                2 / H["smoothness"],
            ),
            "1": (
                theory.corollary_1_step_size(**base, **zeta),
                lambda e, f={**base, **zeta}: theory.corollary_1(step_size=e, **f),
                np.inf,
            ),
        }
        for name, (tuned, bound, most) in pairs.items():
            steps = tuned * scale
            best = bound(steps[steps <= most]).min()
            worst.setdefault(name, []).append(float(bound(tuned) / best))
            if 100 * tuned <= most:
                wild.setdefault(name, []).append(float(bound(100 * tuned) / best))
    for name, ratios in worst.items():
        assert max(ratios) < 8 and max(wild.get(name, [9.0])) > 8, name
    assert max(worst["17"]) < 1.001


def printed_20(eta: Any, n: dict[str, Any]) -> Any:
    s, apart = n["lipschitz"] * n["dimension"] ** 0.5, (n["num_local_steps"] > 1) * (n["num_clients"] > 1)
    own = n["radius"] ** 2 / (2 * eta * n["steps"]) + eta / 2 * (n["lipschitz"] ** 2 + s**2 / n["num_clients"])
    return own + apart * 2 * n["lipschitz"] * (s + n["lipschitz"]) * n["num_local_steps"] * eta


def test_the_rates_cross_where_they_should() -> None:
    how = {"steps": 1e8, "lipschitz": 1.0, "radius": 1.0, "cost_heterogeneity": 0.0}
    gain = lambda d, K, M: (  # noqa: E731
        theory.rate_theorem_19(**how, num_local_steps=1, num_clients=1, dimension=d)
        / theory.rate_theorem_19(**how, num_local_steps=K, num_clients=M, dimension=d)
    )
    assert gain(10, 10_000, 1e4) < 0.5  # d = sqrt(K)/10: worse, where the text promises better
    assert gain(1000, 10_000, 1e4) > 2.5  # d = 10 sqrt(K)
    assert gain(1e7, 100, 25) == pytest.approx(5, rel=0.05)  # d >> M sqrt(K): faster by sqrt M


def test_exploration_costs_no_more_than_the_rest() -> None:
    for M, K, d in ((1, 1, 50), (4, 1, 50), (4, 100, 3), (100, 10, 1)):
        how: dict[str, Any] = {"steps": 1000, "num_clients": M, "dimension": d, "radius": 2.0}
        delta = theory.theorem_20_exploration(**how, num_local_steps=K)
        assert 3.0 * delta <= theory.two_point_lower_bound(**how, lipschitz=3.0) * (1 + 1e-9)
    printed = 2.0 * 50**0.25 / 1000**0.5 * (1 + 50**0.25 / 4**0.5)  # K = 1, M = 4: more than the bound has
    assert 3.0 * printed > theory.two_point_lower_bound(
        steps=1000, num_clients=4, dimension=50, radius=2.0, lipschitz=3.0
    )


def test_local_steps_are_free_up_to_the_stated_number() -> None:
    """At the corrected K the bound is of the order of (F.15); a hundred times that K, it is not."""
    for M, d in ((4, 100), (100, 4), (10, 10)):
        how: dict[str, Any] = {"steps": 1e9, "num_clients": M, "dimension": d, "radius": 1.0, "lipschitz": 1.0}
        zeta = 1e-3
        K = theory.corollary_1_local_steps(num_clients=M, dimension=d, lipschitz=1.0, cost_heterogeneity=zeta)
        assert (1 / zeta**2) * min(1 / d, d / M**2) <= K  # at least the printed number

        def ratio(steps: float, how: dict[str, Any] = how, zeta: float = zeta) -> float:
            tuned = theory.corollary_1_step_size(**how, num_local_steps=steps, cost_heterogeneity=zeta)
            bound = theory.corollary_1(step_size=tuned, **how, num_local_steps=steps, cost_heterogeneity=zeta)
            return bound / theory.two_point_lower_bound(**how)

        assert ratio(K) < 3 and ratio(1e4 * K) > 3 * ratio(1)
