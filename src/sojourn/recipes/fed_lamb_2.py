"""Figure 2 of the Fed-LAMB paper: MNIST, one digit per client, a perceptron and a small CNN, 1 and 5 local epochs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.algorithms import FedLAMB
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.engine.participation import cohort_size, members
from sojourn.engine.rounds import RunState, context_of, shares, start, visit_all, visitor
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, Table, above
from sojourn.recipes.contest import Curves, step_shown
from sojourn.recipes.fed_lamb import (
    AMS,
    LAMB,
    ONE_CLASS,
    PARTICIPATION,
    SGD,
    Panel,
    Played,
    Tournament,
    ends,
    equal_floats,
    figures,
    highest,
    leads,
    shown,
)
from sojourn.recipes.trends import all_hold

READINGS: dict[str, dict[str, Any]] = {  # of Algorithm 1, where print leaves it open; the first is the default
    "as declared": {},
    "moments reset in every round": {"moments": "reset"},
    "denominators from first gradients": {"warm_start": "gradients"},
    "vhat_0 as in Fed-AMS": {"initial_second_moment": 1e-4},
    "every array a layer": {"layers": "leaf"},
    "one gradient per round": {"gradients": "once"},
}
_MLP = {"name": "mlp", "hidden": [200], "dropout": 0.5}
_CNN = {"name": "mnist-cnn", "dropout": 0.5}
_LAMBDAS = (0.0, 0.01, 0.1)


# --- how far clients go ------------------------------------------------------------------------------------------


def reaches(home: Federation, algorithm: FedLAMB, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of (rounds, members): the distance to the round's start, its bound alpha sum_t |theta_t|, and the bound's
    first term. For networks without normalisation all parameters are in layers, so that with phi = identity the root
    of sum_l phi(|theta^l|)^2 is |theta|."""
    (exchange,) = algorithm.exchanges()
    cohort = cohort_size(PARTICIPATION, home.num_clients)

    @jax.jit
    def play(state: RunState) -> tuple[RunState, jax.Array, jax.Array, jax.Array]:
        round_key = jax.random.fold_in(state.root, state.round)
        clients = home.clients.in_round(round_key)
        ids = members(exchange.who, round_key, clients.num_clients, cohort, exchange.purpose)
        visit = visitor(exchange, clients, exchange.broadcast(state.server), round_key, ("consensus_inside",))
        weights = shares(algorithm, clients, ids)
        up, memory, *_, trail = visit_all(visit, exchange, state.memory, ids, weights, cohort)
        assert trail is not None
        first = [a[:, None] for a in jax.tree.leaves(trail.start)]
        after = jax.tree.leaves(trail.points)  # (members, steps, ...)
        lengths = _lengths([jnp.concatenate([a, b[:, :-1]], 1) for a, b in zip(first, after, strict=True)])
        moved = _lengths([b[:, -1:] - a for a, b in zip(first, after, strict=True)])[:, 0]
        context = context_of(algorithm, exchange, clients, ids, weights, state.round, round_key)
        server = exchange.aggregate(state.server, up, context)
        alpha = algorithm.step_size
        return (
            RunState(server, memory, state.round + 1, state.root),
            moved,
            alpha * lengths.sum(1),
            alpha * lengths[:, 0],
        )

    state, found = start(algorithm, home, root_key(seed)), []
    for _ in range(rounds):
        state, *numbers = play(state)
        found.append([np.asarray(a, float) for a in numbers])
    moved, bound, term = (np.stack(parts) for parts in zip(*found, strict=True))
    return moved, bound, term


def _lengths(leaves: Sequence[jax.Array]) -> jax.Array:
    """(members, steps): the norms of models that are given by their arrays."""
    return jnp.sqrt(sum((jnp.sum(a**2, tuple(range(2, a.ndim))) for a in leaves), jnp.zeros(leaves[0].shape[:2])))


def reach_claim(many: tuple[np.ndarray, ...], one: tuple[np.ndarray, ...], num_local_steps: int) -> Claim:
    """What holds instead of Lemma 1, whose constants (bounds of gradients and of phi) the experiments lack."""
    (moved, bound, _), (single, exact, _) = many, one
    slack, error = float((moved / bound).max()), float(np.abs(single / exact - 1).max())
    return Claim(
        "stays-within-its-steps", "With lambda = 0 no client gets further from the round's start than alpha times the "
        "sum over its local steps of the root of sum_l phi(|theta^l|)^2; with one local step it gets exactly there.",
        slack <= 1 + 1e-5 and error < 1e-4,
        f"T = {num_local_steps}: at most {slack:.3f} of the bound, {float((moved / bound).mean()):.3f} in the mean, "
        f"over {moved.size} visits; T = 1: equal up to {error:.1e} over {single.size} visits",
        "distance over bound for every client and round", "at most 1, up to the rounding of float32", 1, "correction",
    )  # fmt: skip


# --- claims ------------------------------------------------------------------------------------------------------


def judge(panels: Sequence[Played]) -> list[Claim]:
    """Of four panels: the perceptron's with 1 and 5 epochs, the CNN's with 1 and 5."""
    mlp, cnn, n = panels[:2], panels[2:], panels[0].num_seeds
    ends_text = "test accuracy over the last fifth of the rounds, differences of paired seeds, t-interval"
    sgd_over_ams = np.mean([p.end(SGD) - p.end(AMS) for p in mlp], axis=0)
    holds, text = above(sgd_over_ams, 0.0)
    gaps = [p.end(LAMB) - p.end(AMS) for p in cnn]
    wider, by = above(gaps[0] - gaps[1], 0.0)
    poor, below = above(cnn[0].end(AMS) - cnn[0].end(SGD), 0.0)
    early, begun = leads(cnn, LAMB, (AMS,), Played.beginning)
    over, table = leads(cnn, LAMB, (AMS,))
    return [
        *(highest(played) for played in panels),
        Claim("mlp-sgd-above-ams", "On the perceptron Fed-SGD ends slightly above Fed-AMS.", holds,
              f"{text}; {shown(mlp[0])}{mlp[0].edges}; {shown(mlp[1])}{mlp[1].edges}",
              f"{ends_text}, mean of the two panels", "above 0", n),
        Claim("cnn-above-ams", "On the CNN Fed-LAMB ends above Fed-AMS, with 1 and with 5 local epochs.", over, table,
              ends_text, "above 0 in both", n),
        Claim("cnn-gap-at-one-epoch", "On the CNN Fed-LAMB's lead over Fed-AMS is larger with 1 local epoch than "
              "with 5.", wider, f"leads {gaps[0].mean():.3f} and {gaps[1].mean():.3f}; difference {by}", ends_text,
              "above 0", n),
        Claim("cnn-sgd-poor", "On the CNN with 1 local epoch Fed-SGD does worse than the adaptive Fed-AMS.", poor,
              f"Fed-AMS less Fed-SGD: {below}{cnn[0].edges}", ends_text, "above 0", n),
        Claim("cnn-faster-early", "On the CNN Fed-LAMB is faster than Fed-AMS in the first rounds.", early, begun,
              "mean test accuracy over the first fifth of the rounds, differences of paired seeds, t-interval",
              "above 0 in both", n),
        equal_floats(panels),
    ]  # fmt: skip


def readings_claim(name: str, rival: np.ndarray, found: dict[str, np.ndarray]) -> Claim:
    """Whether Fed-LAMB's place relative to Fed-AMS hangs on how Algorithm 1 is read."""
    sides = {reading: above(end - rival, 0.0)[0] for reading, end in found.items()}
    declared = next(iter(sides.values()))
    same = [None if declared is None or side is None else side == declared for side in sides.values()]
    text = ", ".join(f"{reading} {end.mean():.3f}" for reading, end in found.items())
    return Claim(
        "readings-agree", f"{name}: Fed-LAMB is on the same side of Fed-AMS however the open points of Algorithm 1 "
        "are read (moments, first denominators, layers, gradients).",
        all_hold(*same), f"Fed-AMS {rival.mean():.3f}; Fed-LAMB {text}",
        "test accuracy over the last fifth of the rounds, differences of paired seeds, t-interval",
        "the same sign for all readings", len(rival), "check",
    )  # fmt: skip


def _readings(tournament: Tournament, panel: Panel, played: Played) -> tuple[Claim, Table]:
    contest, curves = tournament.contest(panel), {}
    for reading in tournament.bench.scale.get("readings", READINGS):
        contender = tournament.contender(panel, LAMB, f"{LAMB}, {reading}", **READINGS[reading])
        curves[reading] = contest.play(contender)
    ends_of = {name: Played(name, {LAMB: course}).end(LAMB) for name, course in curves.items()}
    claim = readings_claim(f"{panel.name}, lambda = 0", played.end(AMS), ends_of)
    rows = [(name, step_shown(c), f"{c.final('loss').mean():.4g}",
             f"{ends_of[name].mean():.4f}") for name, c in curves.items()]  # fmt: skip
    columns = "reading", "step size", "training loss", "test accuracy, last fifth"
    return claim, Table(f"Readings of Algorithm 1 ({panel.name})", columns, rows)


def _carry_out(bench: Bench) -> Findings:
    tournament = Tournament(bench)
    panels: Sequence[Panel] = bench.scale["panels"]
    played = [tournament.play(panel) for panel in panels]
    claims = judge(played)
    claim, table = _readings(tournament, panels[0], played[0])
    claims += [claim, _reach(bench, panels[1], played[1].curves[LAMB])]
    charts = [figure for p in played for figure in figures(p, [highest(p).id])]
    return Findings(claims, charts, tables=[*(ends(p) for p in played), table])


def _reach(bench: Bench, panel: Panel, course: Curves) -> Claim:
    seed = bench.scale["seeds"][0]
    home = panel.home(seed)
    steps = panel.num_local_steps(home)
    found = [reaches(home, FedLAMB(course.step_size, t), bench.scale["measured_rounds"], seed) for t in (steps, 1)]
    return reach_claim(found[0], found[1], steps)


def _panels(mlp: Panel, cnn: Panel) -> list[Panel]:
    return [dataclasses.replace(panel, name=f"{panel.name}, {epochs} local epoch{'s' * (epochs > 1)}", epochs=epochs)
            for panel in (mlp, cnn) for epochs in (1, 5)]  # fmt: skip


_DIGITS = Panel("MLP on digits", "MLP", {"name": "digits"}, _MLP, ONE_CLASS, 50, 1, 40, None, _LAMBDAS)
_FEW = {"name": "mnist", "num_train": 640, "num_test": 1000}
_MNIST = Panel("MLP on MNIST", "MLP", {"name": "mnist"}, _MLP, ONE_CLASS, 50, 1, 100, None, _LAMBDAS)

RECIPE = Recipe(
    name="fedlamb-2",
    title="Fed-LAMB on MNIST, one digit per client",
    source="Fed-LAMB paper, figure 2",
    about="Fed-SGD, Fed-AMS and Fed-LAMB with half of the clients per round, batches of 32 and samples dealt anew in "
    "every round inside each client's digit. Every step size is the best of seven, a factor of three apart, by "
    "the training loss of a run as long on a seed of its own; lambda is the best of 0, 0.01 and 0.1. The "
    "paper is silent about rounds (100 at the full scale), dropout (0.5) and Algorithm 1's open points (the methods' "
    "defaults). A local epoch has the paper's number of steps, n / (32 * active clients), drawn with replacement. "
    "Quick: the perceptron 64-200-10 on scikit-learn's digits, 50 clients, 40 rounds; the CNN on 640 images of MNIST, "
    "20 clients, 20 rounds, lambda = 0. Full: MNIST, 50 clients; about 2 s a round for the perceptron and 10 s for the "
    "CNN with one local epoch on two cores, five times that with five: with tuning, fifteen hours and three days.",
    scales={
        "quick": {
            "scaled": "perceptron on digits, 40 rounds; CNN on 640 images of MNIST, 20 clients, 20 rounds",
            "seeds": range(3),
            "measured_rounds": 10,
            "panels": _panels(_DIGITS, Panel("CNN on MNIST", "CNN", _FEW, _CNN, ONE_CLASS, 20, 1, 20, one_by_one=True)),
        },
        "full": {
            "seeds": range(3),
            "measured_rounds": 10,
            "panels": _panels(
                _MNIST, dataclasses.replace(_MNIST, name="CNN on MNIST", network="CNN", model=_CNN, one_by_one=True)
            ),
        },
    },
    carry_out=_carry_out,
)
