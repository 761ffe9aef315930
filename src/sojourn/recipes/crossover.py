"""When local steps save rounds: rounds to a target against K, for Hessians that differ by multiples of mu.

The clients are quadratics A + (tau/2) s_m P with signs s_m that cancel, so that the mean objective, the start and the
noise are the same for every tau: minibatch SGD and AC-SA, which see only the mean, are run once. P couples the flattest
direction with the steepest, along which the optima differ: this attains the term tau H zeta_* / mu^2 of rate 5.3. mu
and H are those of the mean; with tau = 5 mu a client's own mu is 0.74 times that. The fixed point of Local SGD lies on
the start's side of x*, so that no run passes x* on its way elsewhere.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn.algorithms import ACSA, LocalSGD, MinibatchSGD
from sojourn.core.federation import Federation
from sojourn.problems.quadratic import quadratic
from sojourn.recipes.base import Bench, Claim, Figure, Findings, Recipe, above
from sojourn.recipes.charts import banded, lines
from sojourn.recipes.trends import all_hold
from sojourn.sweeping import Setting

MU, SMOOTHNESS, SPREAD, NOISE, TARGET = 1.0, 25.0, 0.3, 0.25, 0.1
NUM_CLIENTS, MAX_ROUNDS = 4, 150
STEP_SIZES = tuple(float(2 / SMOOTHNESS * 2 ** (0.5 - j / 2)) for j in range(20))  # one grid for all methods
LOCAL, MINIBATCH, ACCELERATED = "Local SGD", "minibatch SGD", "AC-SA"


def world(tau: float) -> Federation:
    """Clients whose Hessians differ by tau; x* = 0, the start is at distance 1."""
    mean = np.diag(np.geomspace(MU, SMOOTHNESS, 4))
    coupling = np.zeros((4, 4))
    coupling[0, -1] = coupling[-1, 0] = 1.0
    signs = np.resize([1.0, -1.0], NUM_CLIENTS)
    hessians = mean + tau / 2 * signs[:, None, None] * coupling
    optima = SPREAD / 2 * np.outer(signs, [0.0, 0.0, 0.0, 1.0])
    optima = optima - np.linalg.solve(mean, np.einsum("mij,mj->i", hessians, optima) / NUM_CLIENTS)  # puts x* at zero
    return quadratic(hessians, optima, NOISE, x0=np.array([-0.5, 0.5, 0.5, 0.5]))


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Rounds to the target on seeds that took no part in tuning, (seed, K) for every method; the cap where missed."""

    num_local_steps: list[int]
    by_tau: Mapping[float, np.ndarray]  # Local SGD, by tau / mu
    minibatch: np.ndarray
    accelerated: np.ndarray

    @property
    def num_seeds(self) -> int:
        return len(self.minibatch)


def measure(bench: Bench) -> Rounds:
    """Every method with the same step sizes, seeds and oracle calls per round; the step of the lowest mean on the
    first half of the seeds is judged on the second half."""
    steps, taus, seeds = (list(bench.scale[name]) for name in ("num_local_steps", "taus", "seeds"))
    homes = {tau: world(tau * MU) for tau in taus}
    found: dict[str, list[np.ndarray]] = {}
    for k in steps:
        families: dict[str, tuple[Federation, list[Any]]] = {
            f"{tau:g}": (home, [LocalSGD(eta, k) for eta in STEP_SIZES]) for tau, home in homes.items()
        }
        families[MINIBATCH] = homes[taus[0]], [MinibatchSGD(eta, k) for eta in STEP_SIZES]
        families[ACCELERATED] = homes[taus[0]], [ACSA(1 / eta, num_local_steps=k) for eta in STEP_SIZES]
        settings = [
            Setting(method, seed, {"family": name, "step_size": eta, "num_local_steps": k}, home)
            for name, (home, methods) in families.items()
            for eta, method in zip(STEP_SIZES, methods, strict=True)
            for seed in seeds
        ]
        table = bench.sweep(f"local-steps-{k}", settings, MAX_ROUNDS, eval_every=1).table
        there = table[table["distance"] <= TARGET].groupby("setting")["round"].min()
        first = np.full(len(settings), float(MAX_ROUNDS))
        first[there.index] = there
        for name, runs in zip(families, first.reshape(-1, len(STEP_SIZES), len(seeds)), strict=True):
            found.setdefault(name, []).append(_tuned(runs))
    stacked = {name: np.stack(columns, axis=1) for name, columns in found.items()}
    local = {tau: stacked[f"{tau:g}"] for tau in taus}
    return Rounds(steps, local, stacked[MINIBATCH], stacked[ACCELERATED])


def _tuned(runs: np.ndarray) -> np.ndarray:
    """Of rounds (step size, seed): those of the second half of the seeds, with the step that is best on the first."""
    half = runs.shape[1] // 2
    return np.asarray(runs[runs[:, :half].mean(axis=1).argmin(), half:])


def judge(rounds: Rounds) -> list[Claim]:
    steps, n = np.array(rounds.num_local_steps), rounds.num_seeds
    taus = sorted(rounds.by_tau)
    shared, apart = rounds.by_tau[taus[0]], rounds.by_tau[taus[-1]]
    ideal = shared[:, :1] / steps  # what K local steps save if they count as rounds
    within = [above(1.15 * ideal[:, i] + 1 - shared[:, i], 0.0)[0] for i in range(1, len(steps))]
    within += [above(shared[:, i] - ideal[:, i] / 1.15, 0.0)[0] for i in range(1, len(steps))]
    small = rounds.by_tau[taus[1]]
    last, rest = f"K = {steps[-1]}", apart[:, 1:]
    return [
        Claim(
            "one-over-k", "With tau = 0 local steps count as rounds: R(K) = R(1) / K down to a single round.",
            all_hold(*within), _shown(steps, shared),
            "R(K) less R(1) / K on paired seeds, t-interval", "within 15 %, and a round more", n,
        ),
        Claim(
            "small-tau-keeps-it", f"With tau = {taus[1]:g} mu they still save nine rounds of ten at {last}.",
            above(0.1 - small[:, -1] / small[:, 0], 0.0)[0], _shown(steps, small), f"R({steps[-1]}) / R(1), t-interval",
            "below 0.1", n, "check",
        ),
        Claim(
            "large-tau-no-gain", f"With tau = {taus[-1]:g} mu local steps do not save rounds at any K.",
            above(rest.min(axis=1) - apart[:, 0], 0.0)[0], _shown(steps, apart),
            "the smallest R(K) over K > 1 less R(1), t-interval", "above 0", n,
        ),
        Claim(
            "rounds-level-off", f"There the rounds stop depending on K, as rate 5.3 says for large K: R({steps[-1]}) "
            f"is R({steps[-2]}) up to a fifth.",
            above(0.2 - np.abs(apart[:, -1] / apart[:, -2] - 1), 0.0)[0] if (apart < MAX_ROUNDS).all() else None,
            _shown(steps[-2:], apart[:, -2:]), "relative difference, t-interval", "below 0.2", n,
        ),
        _crossover(rounds, shared, apart),
        Claim(
            "baselines-save-little", f"From K = 1 to {last} minibatch SGD and AC-SA save less than a quarter of their "
            "rounds: to them K only means less noise.",
            all_hold(*(above(r[:, -1] / r[:, 0], 0.75)[0] for r in (rounds.minibatch, rounds.accelerated))),
            f"minibatch SGD {_shown(steps, rounds.minibatch)}; AC-SA {_shown(steps, rounds.accelerated)}",
            f"R({steps[-1]}) / R(1) on paired seeds, t-interval", "above 0.75", n, "check",
        ),
    ]  # fmt: skip


def _crossover(rounds: Rounds, shared: np.ndarray, apart: np.ndarray) -> Claim:
    steps = rounds.num_local_steps
    wins = above(rounds.accelerated[:, -1] - shared[:, -1], 0.0)
    loses = above(apart.min(axis=1) - rounds.accelerated.max(axis=1), 0.0)
    from_k = next((k for i, k in enumerate(steps) if (shared[:, i] < rounds.accelerated[:, i]).all()), None)
    return Claim(
        "crossover", f"Local SGD at K = {steps[-1]} needs fewer rounds than AC-SA when tau = 0, and more at every K "
        f"when tau = {max(rounds.by_tau):g} mu.",
        all_hold(wins[0], loses[0]), f"rounds saved at tau = 0: {wins[1]}, on every seed from K = {from_k}; lost at "
        f"the largest tau with the best K: {loses[1]}",
        "paired differences over seeds, t-interval", "both above 0", rounds.num_seeds, "check",
    )  # fmt: skip


def _shown(steps: Any, found: np.ndarray) -> str:
    return ", ".join(f"{mean:.1f} at K = {k}" for k, mean in zip(steps, found.mean(axis=0), strict=True))


def _carry_out(bench: Bench) -> Findings:
    rounds = measure(bench)
    claims = judge(rounds)
    curves = {f"{LOCAL}, tau = {tau:g} mu": found for tau, found in rounds.by_tau.items()}
    curves |= {MINIBATCH: rounds.minibatch, ACCELERATED: rounds.accelerated}
    rows = [row for name, found in curves.items() for row in banded(name, rounds.num_local_steps, found)]
    spec = lines(rows, x="local steps K", y=f"rounds until |x - x*| = {TARGET}", log_x=True, log_y=True,
                 dashed=(MINIBATCH, ACCELERATED))  # fmt: skip
    note = (
        f"Mean over {rounds.num_seeds} seeds that took no part in tuning; bands are 95% bootstrap intervals. Every "
        f"method makes K oracle calls per client and round. {MAX_ROUNDS} is the cap."
    )
    return Findings(claims, [Figure("Rounds to the target", spec, note, tuple(claim.id for claim in claims))])


RECIPE = Recipe(
    name="local-steps-crossover",
    title="Local steps save rounds while the Hessians are close",
    source="thesis, rates 3.4 and 5.3",
    about=f"Four quadratics in four dimensions with H / mu = {SMOOTHNESS:g}, optima {SPREAD} apart, gradient noise "
    f"{NOISE}, started at distance 1; the target is {TARGET}. Each method's step size is tuned on the same "
    f"{len(STEP_SIZES)} values, a factor of root two apart.",
    scales={
        "quick": {"num_local_steps": (1, 16, 64), "taus": (0.0, 0.5, 1.0, 5.0), "seeds": range(8)},
        "full": {"num_local_steps": (1, 2, 4, 8, 16, 32, 64), "taus": (0.0, 0.5, 1.0, 2.0, 5.0), "seeds": range(12)},
    },
    carry_out=_carry_out,
)
