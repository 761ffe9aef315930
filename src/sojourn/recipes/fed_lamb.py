"""The panels of the Fed-LAMB paper: Fed-SGD, Fed-AMS and Fed-LAMB on one federation, each with its best step size.

Of every round half of the clients take part, and all samples are dealt anew among those of a class, or among all. The
paper deals them to the active clients alone: n / 25 samples each, which an epoch passes over once in batches of 32.
Here all 50 hold n / 50 at a time, and a local epoch is as many steps as in the paper, n / (25 * 32), with batches that
are drawn with replacement.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sojourn.algorithms import FedAMS, FedLAMB, LocalSGD
from sojourn.core.federation import Federation
from sojourn.recipes.base import Bench, Claim, Figure, Table, above
from sojourn.recipes.contest import Contender, Contest, Curves, caveat_of, caveats, chart, results, world
from sojourn.recipes.trends import all_hold

SGD, AMS, LAMB = "Fed-SGD", "Fed-AMS", "Fed-LAMB"
METHODS = (SGD, AMS, LAMB)
PARTICIPATION, BATCH_SIZE = 0.5, 32
ONE_CLASS = {"name": "one-class", "redeal": "class"}
IID = {"name": "iid", "redeal": "all"}
LAST, EARLY = 0.2, 0.2  # shares of the rounds (or of what is sent) that ends and beginnings are means over
_SEVEN = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
GRIDS = {
    SGD: tuple(0.01 * a for a in _SEVEN),
    AMS: tuple(1e-4 * a for a in _SEVEN),
    LAMB: tuple(1e-3 * a for a in _SEVEN),
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of a figure: data, network and federation, by the tables of a config."""

    name: str
    network: str  # which of the figure's networks stands here
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    partition: Mapping[str, Any]
    num_clients: int
    epochs: int
    rounds: int
    tuning_rounds: int | None = None  # None: all; steps that do not shrink by themselves are right for one horizon only
    weight_decays: Sequence[float] = (0.0,)  # lambda, for Fed-LAMB
    one_by_one: bool = False  # for networks that take long to compile
    grids: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=lambda: GRIDS)

    def home(self, seed: int) -> Federation:
        partition = {**self.partition, "num_clients": self.num_clients}
        return world(seed, self.data, partition, self.model, batch_size=BATCH_SIZE)

    def num_local_steps(self, home: Federation) -> int:
        """Steps of a local phase, when all samples are shared by the active clients; at least one."""
        assert home.clients.sizes is not None
        share = float(home.clients.sizes.sum()) / (PARTICIPATION * self.num_clients)
        return self.epochs * max(1, round(share / BATCH_SIZE))


@dataclasses.dataclass(frozen=True)
class Played:
    """A panel's curves by method, with the lambda that Fed-LAMB was given."""

    name: str
    curves: Mapping[str, Curves]
    weight_decay: float = 0.0
    network: str = ""
    epochs: int = 1
    weight_decays: int = 1  # among how many Fed-LAMB chose

    @property
    def choice(self) -> str:
        """Where Fed-LAMB had more to choose from than the others, for evidence."""
        return f"; Fed-LAMB chose among {self.weight_decays} lambdas for every step size" * (self.weight_decays > 1)

    @property
    def num_seeds(self) -> int:
        return len(self.curves[LAMB].metrics["test_accuracy"])

    def end(self, method: str) -> np.ndarray:
        """Test accuracy over the last fifth of the rounds, for every seed."""
        rounds = self.curves[method].rounds
        return self.curves[method].final("test_accuracy", int((rounds > (1 - LAST) * rounds[-1]).sum()))

    def beginning(self, method: str) -> np.ndarray:
        """Test accuracy over the first fifth of the rounds, the start left out."""
        return self.curves[method].area("test_accuracy", EARLY)

    def end_for_equal_floats(self, method: str) -> np.ndarray:
        """Test accuracy when as many numbers have been sent as the thriftiest method sends in all."""
        budget = min(float(course.floats[-1]) for course in self.curves.values())
        floats = self.curves[method].floats
        near = (floats > (1 - LAST) * budget) & (floats <= budget)
        near = near if near.any() else floats == floats[floats <= budget].max()
        return np.asarray(self.curves[method].metrics["test_accuracy"][:, near].mean(axis=1))

    @property
    def edges(self) -> str:
        """What is to be known of the choice of step sizes, for evidence."""
        return caveats(self.curves.values())


class Tournament:
    """Plays panels: every method is tuned on its grid, then run on the same seeds."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._homes: dict[tuple[str, int], Federation] = {}

    def contest(self, panel: Panel) -> Contest:
        bench, seeds = self.bench.inside(panel.name), tuple(self.bench.scale["seeds"])
        evaluations = bench.scale.get("evaluations", 20)
        return Contest(
            bench, seeds, PARTICIPATION, evaluations, tuning_rounds=panel.tuning_rounds, one_by_one=panel.one_by_one
        )

    def contender(self, panel: Panel, method: str, label: str = "", **options: Any) -> Contender:
        steps = panel.num_local_steps(self.home(panel, 0))
        kind: Any = {SGD: LocalSGD, AMS: FedAMS, LAMB: FedLAMB}[method]
        make = lambda step: kind(step_size=step, num_local_steps=steps, **options)  # noqa: E731
        home = lambda seed: self.home(panel, seed)  # noqa: E731
        return Contender(label or method, make, home, tuple(panel.grids[method]), panel.rounds)

    def home(self, panel: Panel, seed: int) -> Federation:
        """Kept, so that methods share one copy."""
        if (panel.name, seed) not in self._homes:
            self._homes[panel.name, seed] = panel.home(seed)
        return self._homes[panel.name, seed]

    def play(self, panel: Panel) -> Played:
        contest = self.contest(panel)
        curves = {method: contest.play(self.contender(panel, method)) for method in (SGD, AMS)}
        curves[LAMB], weight_decay = self._fed_lamb(panel, contest)
        self._homes.clear()
        return Played(panel.name, curves, weight_decay, panel.network, panel.epochs, len(panel.weight_decays))

    def _fed_lamb(self, panel: Panel, contest: Contest) -> tuple[Curves, float]:
        """With the best pair of step size and lambda."""
        decays = list(panel.weight_decays)
        if len(decays) == 1:
            return contest.play(self.contender(panel, LAMB, weight_decay=decays[0])), decays[0]
        each = [self.contender(panel, LAMB, f"{LAMB}, lambda = {decay:g}", weight_decay=decay) for decay in decays]
        losses = np.array([contest.losses(contender) for contender in each])
        which, step = divmod(int(losses.argmin()), losses.shape[1])
        chosen = self.contender(panel, LAMB, weight_decay=decays[which])
        course = contest.play(chosen, chosen.step_sizes[step])
        return dataclasses.replace(course, caveat=caveat_of(losses[which])), decays[which]


# --- claims ------------------------------------------------------------------------------------------------------


def shown(played: Played, of: Any = None) -> str:
    """The methods' means in a panel, at the end unless another measure is given."""
    measure = of or Played.end
    return f"{played.name}: " + ", ".join(f"{name} {measure(played, name).mean():.3f}" for name in METHODS)


def leads(panels: Sequence[Played], method: str, others: Sequence[str], of: Any = None) -> tuple[bool | None, str]:
    """Whether a method is above others in every panel, by differences of paired seeds; all means as evidence."""
    measure = of or Played.end
    verdicts = [above(measure(p, method) - measure(p, other), 0.0)[0] for p in panels for other in others]
    return all_hold(*verdicts), "; ".join(shown(p, of) + p.edges for p in panels)


def highest(played: Played, what: str = "test accuracy") -> Claim:
    """The paper's claim of a panel: Fed-LAMB ends highest."""
    found = {rival: above(played.end(LAMB) - played.end(rival), 0.0) for rival in (SGD, AMS)}
    text = ", ".join(f"{rival} by {by}" for rival, (_, by) in found.items())
    return Claim(
        f"highest-{slug(played.name)}", f"{played.name}: Fed-LAMB ends with the highest {what}.",
        all_hold(*(holds for holds, _ in found.values())),
        f"above {text}; {shown(played)}{played.edges}{played.choice}",
        "test accuracy over the last fifth of the rounds, differences of paired seeds, t-interval",
        "above 0 against both", played.num_seeds,
    )  # fmt: skip


def equal_floats(panels: Sequence[Played]) -> Claim:
    """A check of ours: the adaptive methods send two vectors where Fed-SGD sends one."""
    holds, text = leads(panels, LAMB, (SGD, AMS), Played.end_for_equal_floats)
    return Claim(
        "equal-floats", "Fed-LAMB leads in every panel also when as many numbers have been sent: it and Fed-AMS send "
        "two vectors each way, Fed-SGD one.",
        holds, text, "test accuracy over the last fifth of what Fed-SGD sends in all, differences of paired seeds, "
        "t-interval", "above 0 in all panels", panels[0].num_seeds, "check",
    )  # fmt: skip


def slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


# --- figures -----------------------------------------------------------------------------------------------------


def figures(played: Played, claims: Sequence[str] = ()) -> list[Figure]:
    """A panel: accuracy against rounds and against numbers sent, and the training loss."""
    curves = [played.curves[name] for name in METHODS]
    return [
        chart(played.name, curves, "test_accuracy", claims=claims),
        chart(f"{played.name}, by numbers sent", curves, "test_accuracy", "floats"),
        chart(f"{played.name}, training loss", curves, "loss", log_y=True),
        chart(f"{played.name}, training loss by numbers sent", curves, "loss", "floats", log_y=True),
    ]


def ends(played: Played) -> Table:
    chosen = f" (lambda = {played.weight_decay:g})"
    return results(f"{played.name}{chosen}", [played.curves[name] for name in METHODS])
