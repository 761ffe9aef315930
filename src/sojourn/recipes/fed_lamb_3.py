"""Figures 3 and 4 of the Fed-LAMB paper: CIFAR-10, a CNN and ResNet-9, many clients and few, 1 and 3 local epochs."""

from collections.abc import Sequence

from sojourn.recipes.base import Bench, Claim, Findings, Recipe, above, within
from sojourn.recipes.fed_lamb import (
    AMS,
    IID,
    LAMB,
    ONE_CLASS,
    SGD,
    Panel,
    Played,
    Tournament,
    ends,
    equal_floats,
    figures,
    leads,
    shown,
)
from sojourn.recipes.trends import all_hold

CNN, RESNET = "CNN", "ResNet"
SIMILAR, CLOSE, SLACK = 0.02, 0.03, 0.01  # of test accuracy: what "similar", "close" and "at least" are taken to mean
_ENDS = "test accuracy over the last fifth of the rounds, differences of paired seeds, t-interval"
_BEGINNINGS = "mean test accuracy over the first fifth of the rounds, differences of paired seeds, t-interval"


def fastest(panels: Sequence[Played]) -> Claim:
    holds, text = leads(panels, LAMB, (SGD, AMS), Played.beginning)
    return Claim("fastest", "Fed-LAMB is the fastest of the three in the first rounds, in every panel.", holds, text,
                 _BEGINNINGS, "above 0 in all panels", panels[0].num_seeds)  # fmt: skip


def at_least_ams(panels: Sequence[Played]) -> Claim:
    verdicts = [above(p.end(LAMB) - p.end(AMS), -SLACK)[0] for p in panels]
    return Claim("not-below-ams", "Fed-LAMB ends at least as high as Fed-AMS, in every panel.", all_hold(*verdicts),
                 "; ".join(shown(p) + p.edges for p in panels), _ENDS, f"above -{SLACK} in all panels",
                 panels[0].num_seeds)  # fmt: skip


def alike(panels: Sequence[Played], one: str, other: str, most: float) -> tuple[bool | None, str]:
    """Whether two methods end within so much of each other in every panel."""
    found = [within(p.end(one) - p.end(other), most)[0] for p in panels]
    return all_hold(*found), "; ".join(shown(p) + p.edges for p in panels)


def sgd_close(panels: Sequence[Played]) -> Claim:
    holds, text = alike(panels, SGD, AMS, CLOSE)
    return Claim("resnet-sgd-close", "On the ResNet Fed-SGD ends close to Fed-AMS.", holds, text, _ENDS,
                 f"less than {CLOSE} apart in all panels", panels[0].num_seeds)  # fmt: skip


def above_ams(panels: Sequence[Played]) -> Claim:
    holds, text = leads(panels, LAMB, (AMS,))
    return Claim("resnet-above-ams", "On the ResNet Fed-LAMB ends above Fed-AMS, in every panel.", holds, text, _ENDS,
                 "above 0 in all panels", panels[0].num_seeds)  # fmt: skip


def similar_later(panels: Sequence[Played]) -> Claim:
    holds, text = alike(panels, LAMB, AMS, SIMILAR)
    return Claim("cnn-similar-with-more-epochs", "On the CNN with 3 local epochs Fed-LAMB and Fed-AMS end with similar "
                 "accuracy.", holds, text, _ENDS, f"less than {SIMILAR} apart in all panels",
                 panels[0].num_seeds)  # fmt: skip


def strongest(panels: Sequence[Played], champion: Played) -> Claim:
    lead = lambda p: p.beginning(LAMB) - p.beginning(AMS)  # noqa: E731
    rest = [p for p in panels if p is not champion]
    found = [above(lead(champion) - lead(p), 0.0) for p in rest]
    leads_text = ", ".join(f"{p.name} {lead(p).mean():.3f}" for p in panels)
    return Claim("strongest-acceleration", f"Fed-LAMB's early lead over Fed-AMS is largest in the panel {champion.name}"
                 ".", all_hold(*(holds for holds, _ in found)), leads_text, _BEGINNINGS,
                 "above 0 against every other panel", champion.num_seeds)  # fmt: skip


def judge_3(panels: Sequence[Played]) -> list[Claim]:
    """Of the panels of both networks; the first of the ResNet's is the one with many clients, iid, and one epoch."""
    cnn, resnet = ([p for p in panels if p.network == name] for name in (CNN, RESNET))
    below, text = leads(cnn, AMS, (SGD,))
    both = all_hold(below, leads(cnn, LAMB, (SGD,))[0])
    clear, once = leads([p for p in cnn if p.epochs == 1], LAMB, (AMS,))
    n = panels[0].num_seeds
    return [
        fastest(panels),
        at_least_ams(panels),
        Claim("cnn-above-ams-at-one-epoch", "On the CNN with 1 local epoch Fed-LAMB ends clearly above Fed-AMS.", clear,
              once, _ENDS, "above 0 in all panels", n),
        similar_later([p for p in cnn if p.epochs > 1]),
        Claim("cnn-sgd-below-both", "On the CNN Fed-SGD ends below Fed-AMS and Fed-LAMB.", both, text, _ENDS,
              "above 0 in all panels", n),
        above_ams(resnet),
        sgd_close(resnet),
        strongest(panels, resnet[0]),
        equal_floats(panels),
    ]  # fmt: skip


def judge_4(panels: Sequence[Played]) -> list[Claim]:
    return [fastest(panels), at_least_ams(panels), above_ams(panels), sgd_close(panels), equal_floats(panels)]


def _carry_out_3(bench: Bench) -> Findings:
    played = [Tournament(bench).play(panel) for panel in bench.scale["panels"]]
    return _findings(played, judge_3(played))


def _carry_out_4(bench: Bench) -> Findings:
    played = [Tournament(bench).play(panel) for panel in bench.scale["panels"]]
    return _findings(played, judge_4(played))


def _findings(played: Sequence[Played], claims: Sequence[Claim]) -> Findings:
    charts = [figure for p in played for figure in figures(p)]
    return Findings(claims, charts, tables=[ends(p) for p in played])


def _panel(network: str, clients: int, epochs: int, *, one_class: bool = False, full: bool = False) -> Panel:
    kind = ONE_CLASS if one_class else IID
    few, many = {"name": "digits", "images": True, "test_share": 0.5}, {"name": "cifar10", "normalise": True}
    narrow = {"name": "resnet9", "width": 4, "groups": 2}
    model = {"name": "cifar-cnn-lamb"} if network == CNN else {"name": "resnet9"} if full else narrow
    name = f"{network}, {clients} clients, {kind['name']}, {epochs} local epoch{'s' * (epochs > 1)}"
    rounds = 200 if full else 20
    decays = (0.0, 0.01, 0.1) if full else (0.0,)
    data = many if full else few
    return Panel(name, network, data, model, kind, clients, epochs, rounds, None, decays, one_by_one=True)


_ABOUT = (
    "Fed-SGD, Fed-AMS and Fed-LAMB with half of the clients per round, batches of 32 and samples dealt anew in every "
    "round. Every step size is the best of seven, a factor of three apart, by the training loss of a run as long on a "
    "seed of its own. The paper is silent about rounds (200 at the full scale), the CNN's sizes and how images are "
    "split where clients differ (one class each, as for MNIST). GroupNorm stands in for BatchNorm. A local epoch has "
    "the paper's number of steps, n / (32 * active clients), drawn with replacement. Quick, as two cores cannot run "
    "CIFAR: half of scikit-learn's digits as 8 x 8 images, the paper's CNN and a ResNet-9 of a sixteenth of the width, "
    "20 rounds, lambda = 0"
)
_SCALED = "8 x 8 digits in place of CIFAR-10, ResNet-9 of a sixteenth of the width, 20 rounds"
_COST = (
    "Full: CIFAR-10; a round of one local epoch is 1563 batches, which take two cores about two minutes for the CNN; "
    "ResNet-9 has fifty times its multiplications. Not run here."
)

RECIPE_3 = Recipe(
    name="fedlamb-3",
    title="Fed-LAMB on CIFAR-10, a CNN and a residual network",
    source="Fed-LAMB paper, figure 3",
    about=f"{_ABOUT}; 10 and 20 clients where the paper has 10 and 50, and five of the eight panels. {_COST}",
    scales={
        "quick": {
            "scaled": f"{_SCALED}, 20 clients in place of 50",
            "seeds": range(3),
            "panels": [
                _panel(CNN, 10, 1), _panel(CNN, 20, 1), _panel(CNN, 20, 3),
                _panel(RESNET, 20, 1), _panel(RESNET, 20, 1, one_class=True),
            ],
        },
        "full": {
            "seeds": range(3),
            "panels": [
                *(_panel(CNN, clients, epochs, full=True) for clients in (10, 50) for epochs in (1, 3)),
                *(_panel(RESNET, 50, epochs, one_class=one, full=True) for one in (False, True) for epochs in (1, 3)),
            ],
        },
    },
    carry_out=_carry_out_3,
)  # fmt: skip

RECIPE_4 = Recipe(
    name="fedlamb-4",
    title="Fed-LAMB on CIFAR-10, a residual network and few clients",
    source="Fed-LAMB paper, figure 4",
    about=f"{_ABOUT}. {_COST}",
    scales={
        "quick": {
            "scaled": _SCALED, "seeds": range(3), "panels": [_panel(RESNET, 10, epochs) for epochs in (1, 3)],
        },
        "full": {"seeds": range(3), "panels": [_panel(RESNET, 10, epochs, full=True) for epochs in (1, 3)]},
    },
    carry_out=_carry_out_4,
)  # fmt: skip
