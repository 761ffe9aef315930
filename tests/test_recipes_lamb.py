"""Fed-LAMB's figures: the contests measure what they say, and every judge can say yes, no and undecided."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from sojourn.algorithms import FedAMS, FedLAMB
from sojourn.recipes import RECIPES, Bench, Claim
from sojourn.recipes import fed_lamb_2 as second
from sojourn.recipes import fed_lamb_3 as third
from sojourn.recipes.contest import Curves
from sojourn.recipes.fed_lamb import (
    AMS,
    IID,
    LAMB,
    METHODS,
    ONE_CLASS,
    SGD,
    Panel,
    Played,
    Tournament,
    equal_floats,
    highest,
)

GRID = {SGD: (0.1,), AMS: (0.001, 0.003), LAMB: (0.01,)}
ROUNDS = 10


def panel(name: str, network: str = "CNN", epochs: int = 1, partition: Any = ONE_CLASS, **options: Any) -> Panel:
    """The same shapes everywhere: one program per method."""
    model = {"name": "mlp", "hidden": [8]}
    return Panel(
        name,
        network,
        {"name": "digits"},
        model,
        partition,
        10,
        epochs,
        ROUNDS,
        2,
        grids=GRID,
        one_by_one=True,
        **options,
    )


def by_id(claims: Any) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


# --- made-up results ---------------------------------------------------------------------------------------------


def course(label: str, accuracy: np.ndarray, vectors: int) -> Curves:
    rounds = np.arange(0, 41, 2)
    metrics = {"test_accuracy": accuracy, "loss": 1 - accuracy}
    return Curves(label, 0.1, "", rounds, 1000.0 * vectors * rounds, rounds, metrics)


def played(
    sgd: float, ams: float, lamb: float, *, name: str = "panel", fast: float = 0.0, noise: float = 1e-3,
    network: str = "CNN", epochs: int = 1, seeds: int = 3,
) -> Played:  # fmt: skip
    """Curves that rise to their ends; `fast` is Fed-LAMB's lead in the first fifth."""
    time = np.arange(21) / 20
    rng = np.random.default_rng(0)

    def rising(end: float, early: float) -> np.ndarray:
        curve = end * np.minimum(1, time / 0.5) + np.where(time <= 0.2, early, 0)
        return curve + noise * rng.normal(size=(seeds, 1))

    ends = {SGD: sgd, AMS: ams, LAMB: lamb}
    curves = {n: course(n, rising(ends[n], fast * (n == LAMB)), 1 if n == SGD else 2) for n in METHODS}
    return Played(name, curves, network=network, epochs=epochs)


def test_the_highest_method_is_told_and_noise_leaves_it_open() -> None:
    assert highest(played(0.5, 0.6, 0.8)).holds is True
    assert highest(played(0.9, 0.6, 0.8)).holds is False  # one of the others is above
    assert highest(played(0.5, 0.6, 0.61, noise=0.3)).holds is None
    assert highest(played(0.5, 0.6, 0.8, seeds=1)).holds is None


def test_ends_are_means_over_the_last_fifth_and_beginnings_over_the_first() -> None:
    p = played(0.5, 0.6, 0.8, noise=0.0, fast=0.1)
    np.testing.assert_allclose(p.end(LAMB), 0.8)
    rising = 0.8 * np.array([0.1, 0.2, 0.3, 0.4]) + 0.1
    np.testing.assert_allclose(p.beginning(LAMB), rising.mean())


def test_at_equal_floats_methods_of_two_vectors_are_halfway() -> None:
    p = played(0.8, 0.8, 0.8, noise=0.0)
    np.testing.assert_allclose(p.end_for_equal_floats(SGD), 0.8)
    # rounds 17 to 20 of 40: evaluations at 18 and 20
    np.testing.assert_allclose(p.end_for_equal_floats(LAMB), 0.8 * np.mean([0.9, 1.0]))
    assert equal_floats([p]).holds is not True
    assert equal_floats([played(0.3, 0.5, 0.8)]).holds is True
    assert equal_floats([played(0.3, 0.5, 0.8), played(0.9, 0.5, 0.8)]).holds is False


def four(mlp: Any, cnn_1: Any, cnn_5: Any) -> dict[str, Claim]:
    return by_id(second.judge([mlp("a"), mlp("b"), cnn_1, cnn_5]))


def test_figure_2_can_come_out_as_printed_and_otherwise() -> None:
    printed = four(
        lambda n: played(0.85, 0.84, 0.9, name=n),
        played(0.4, 0.8, 0.9, name="c", fast=0.1),
        played(0.7, 0.8, 0.85, name="d", fast=0.1),
    )
    assert all(claim.holds is True for claim in printed.values()), [c for c in printed.values() if not c.holds]
    reverse = four(
        lambda n: played(0.8, 0.9, 0.7, name=n),
        played(0.9, 0.8, 0.7, name="c", fast=-0.1),
        played(0.9, 0.8, 0.75, name="d", fast=-0.1),
    )
    assert all(claim.holds is False for claim in reverse.values()), [
        c for c in reverse.values() if c.holds is not False
    ]


def test_readings_that_fall_on_both_sides_of_the_rival_are_told() -> None:
    rival, spread = np.full(3, 0.8), np.array([0.0, 0.001, 0.002])
    under, over = 0.7 + spread, 0.9 + spread
    assert second.readings_claim("p", rival, {"a": under, "b": under - 0.1}).holds is True
    assert second.readings_claim("p", rival, {"a": under, "b": over}).holds is False
    assert second.readings_claim("p", rival, {"a": under, "b": rival + 100 * (spread - 0.001)}).holds is None


def eight(lead: float, fast: float, sgd: float, resnet_sgd: float, later: float) -> dict[str, Claim]:
    cnn = [played(sgd, 0.6, 0.6 + (later if e > 1 else lead), name=f"cnn {c} {e}", fast=fast, epochs=e)
           for c in (10, 50) for e in (1, 3)]  # fmt: skip
    resnet = [played(resnet_sgd, 0.7, 0.7 + lead, name=f"resnet {k} {e}", network="ResNet",
                     fast=fast * (2 if (k, e) == ("iid", 1) else 1), epochs=e)
              for k in ("iid", "one") for e in (1, 3)]  # fmt: skip
    return by_id(third.judge_3([*cnn, *resnet]))


def test_figure_3_can_come_out_as_printed_and_otherwise() -> None:
    printed = eight(lead=0.05, fast=0.1, sgd=0.4, resnet_sgd=0.69, later=0.01)
    undone = {name for name, claim in printed.items() if claim.holds is not True}
    assert undone <= {"equal-floats"}, undone
    reverse = eight(lead=-0.2, fast=-0.1, sgd=0.9, resnet_sgd=0.5, later=0.1)
    kept = {name for name, claim in reverse.items() if claim.holds is not False}
    assert not kept, kept


def test_figure_4_can_come_out_as_printed_and_otherwise() -> None:
    made = lambda *ends, **how: by_id(third.judge_4([played(*ends, name=n, **how) for n in "ab"]))  # noqa: E731
    printed, reverse = made(0.69, 0.7, 0.9, fast=0.1), made(0.9, 0.7, 0.6, fast=-0.1)
    assert all(claim.holds is True for name, claim in printed.items() if name != "equal-floats")
    assert all(claim.holds is False for claim in reverse.values())


# --- what is measured --------------------------------------------------------------------------------------------


def test_a_local_epoch_passes_over_what_the_active_clients_would_share() -> None:
    one, five = panel("one"), panel("five", epochs=5)
    home = one.home(0)
    assert home.clients.sizes is not None and int(home.clients.sizes.sum()) == 1438
    assert one.num_local_steps(home) == round(1438 / 5 / 32) == 9
    assert five.num_local_steps(home) == 45


def test_no_client_gets_further_than_its_steps_and_fed_ams_is_not_bound_so() -> None:
    home = panel("p").home(0)
    many, one = (second.reaches(home, FedLAMB(0.02, t), 3, 0) for t in (6, 1))
    claim = second.reach_claim(many, one, 6)
    assert claim.holds is True and many[0].shape == (3, 5)
    moved, _, term = many
    assert (term < moved).all()  # one term is not enough for six steps
    assert second.reach_claim((moved, term, term), one, 6).holds is False
    other: Any = FedAMS(0.02, 1)  # negative control: its steps know no such length
    assert second.reach_claim(many, second.reaches(home, other, 3, 0), 6).holds is False


SCALE = {
    "seeds": range(2),
    "evaluations": 10,
    "measured_rounds": 2,
    "readings": ("as declared", "moments reset in every round"),
}


def test_figure_2_from_end_to_end() -> None:
    panels = [panel(f"{net} {e}", net, 1, weight_decays=(0.0, 0.1) if net == "MLP" and e == 1 else (0.0,))
              for net in ("MLP", "CNN") for e in (1, 5)]  # fmt: skip
    found = RECIPES["fedlamb-2"].carry_out(Bench({**SCALE, "panels": panels}, progress=False))
    claims = by_id(found.claims)
    assert {"highest-mlp-1", "mlp-sgd-above-ams", "equal-floats", "readings-agree", "stays-within-its-steps"} <= set(
        claims
    )
    assert claims["stays-within-its-steps"].holds is True
    assert len(found.figures) == 16 and len(found.tables) == 5


def test_figures_3_and_4_from_end_to_end(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("CNN", 1), ("CNN", 3), ("ResNet", 1)]
    panels = [dataclasses.replace(panel(f"{net} {e}", net), rounds=5, tuning_rounds=1) for net, e in kinds]
    play = Tournament.play

    def played_as(self: Tournament, one: Panel) -> Played:  # few epochs under the names of many: one program
        return dataclasses.replace(play(self, one), epochs=int(one.name[-1]))

    monkeypatch.setattr(Tournament, "play", played_as)
    third_found = RECIPES["fedlamb-3"].carry_out(Bench({**SCALE, "panels": panels}, progress=False))
    assert {"fastest", "cnn-sgd-below-both", "strongest-acceleration"} <= set(by_id(third_found.claims))
    found = RECIPES["fedlamb-4"].carry_out(Bench({**SCALE, "panels": panels[2:]}, tmp_path, progress=False))
    assert {"fastest", "resnet-above-ams", "equal-floats"} <= set(by_id(found.claims))
    assert len(found.figures) == 4 and [p.name for p in tmp_path.iterdir()] == ["ResNet-1"]  # a folder per panel


@pytest.mark.parametrize("name", ["fedlamb-2", "fedlamb-3", "fedlamb-4"])
def test_scales_are_whole(name: str) -> None:
    """Every scale has the panels that its claims compare."""
    for scale in RECIPES[name].scales.values():
        panels = scale["panels"]
        assert len({p.name for p in panels}) == len(panels)
        if name == "fedlamb-2":
            assert [p.network for p in panels] == ["MLP", "MLP", "CNN", "CNN"]
            assert [p.epochs for p in panels] == [1, 5, 1, 5]
        if name == "fedlamb-3":
            resnet = [p for p in panels if p.network == "ResNet"]
            assert (resnet[0].epochs, resnet[0].partition) == (1, IID)
            assert {p.epochs for p in panels if p.network == "CNN"} == {1, 3}
