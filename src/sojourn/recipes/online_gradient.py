"""Theorems 17 and 18: with gradients, working together does not help against a coordinated adversary."""

from typing import Any

import numpy as np

from sojourn.online import OGD, Adaptive, Cone, Drifting, FedOGD, Rademacher, Smooth, Stochastic
from sojourn.recipes.base import Bench, Claim, Findings, Recipe, above
from sojourn.recipes.regret import curves, regrets, slope_claim
from sojourn.recipes.trends import all_hold
from sojourn.theory.online import theorem_17_lower_bound, theorem_18, theorem_18_step_size

DIMENSION, LOCAL_STEPS = 16, 16
ROUNDING = 1e-4  # of regrets in single precision


def _games(scale: Any) -> dict[Any, dict[str, Any]]:
    T, times, machines, seeds = scale["steps"], scale["times"], scale["machines"], scale["seeds"]
    base: dict[str, Any] = {"steps": T, "num_local_steps": LOCAL_STEPS, "seeds": seeds}
    signs = Rademacher(DIMENSION)
    games: dict[Any, dict[str, Any]] = {
        (kind.__name__, M): {"stream": signs, "method": kind(), "num_machines": M, **base}
        for M in machines for kind in (OGD, FedOGD)
    }  # fmt: skip
    torn = Adaptive(DIMENSION, heterogeneity=0.8)
    for name, stream in (
        ("drifting", Drifting(DIMENSION)), ("adaptive", Adaptive(DIMENSION)), ("cone", Cone(DIMENSION)),
        ("heterogeneous", torn),
    ):  # fmt: skip
        # against a direction that stays, plays that leave the ball beat its best point: there is nothing to bound
        inside = OGD(constrained=name == "drifting")
        games["bound", name] = {"stream": stream, "method": inside, "num_machines": 4, **base}
    for kind in (OGD, FedOGD):
        games["alike", kind.__name__] = {
            "stream": Smooth(DIMENSION, noise=1.0), "method": kind(), "num_machines": machines[-1], **base,
        }  # fmt: skip
        games["stochastic", kind.__name__] = {
            "stream": Stochastic(DIMENSION, noise=1.0), "method": kind(), "num_machines": machines[-1], **base,
            "num_local_steps": 1,
        }  # fmt: skip
    for t in times:
        games["signs", t] = {"stream": signs, "method": OGD(), "num_machines": 1, **base, "steps": t}
        for noise in (0.0, 1.0):
            games["smooth", noise, t] = {
                "stream": Smooth(DIMENSION, noise=noise), "method": OGD(), "num_machines": 1, **base, "steps": t,
            }  # fmt: skip
    return games


def judge(found: Any, scale: Any) -> list[Claim]:
    T, times, machines, n = scale["steps"], scale["times"], scale["machines"], len(scale["seeds"])
    bound = 1 / T**0.5  # G = B = 1
    worst = {key[1]: float(found[key].max()) / bound for key in found if key[0] == "bound"}
    worst["random signs"] = max(float(found["OGD", M].max()) for M in machines) / bound
    pairs = [((kind, M) for kind in ("FedOGD", "OGD")) for M in machines]
    pairs.append(("alike", kind) for kind in ("FedOGD", "OGD"))
    same = max(float(np.abs(found[together] - found[alone]).max()) for together, alone in pairs)
    floor = float(theorem_17_lower_bound(steps=T, lipschitz=1.0, radius=1.0))
    over = [above(found[kind, M], floor) for kind in ("OGD", "FedOGD") for M in machines]
    helps, text = above(found["stochastic", "OGD"] - found["stochastic", "FedOGD"], 0.0)
    smooth = max(
        float(found["smooth", noise, t].max()) / _bound_18(noise, t) for noise in (0.0, 1.0) for t in times
    )  # fmt: skip
    return [
        Claim("ogd-bound", "Alone, OGD's regret is at most G B / sqrt T on every path of every stream.",
              all(ratio <= 1 + ROUNDING for ratio in worst.values()),
              "largest regret over G B / sqrt T: " + ", ".join(f"{name} {r:.3f}" for name, r in worst.items()),
              "largest over seeds; drifting costs: constrained plays",
              f"at most 1 + {ROUNDING:g}", n),
        Claim("floor", "On coordinated random signs no number of machines gets below G B / sqrt(2 T), alone or "
              "together.",
              all_hold(*(holds for holds, _ in over)), f"floor {floor:.4g}; OGD with one machine {over[0][1]}",
              "mean over seeds, t-interval", "above the floor for every M", n, "correction"),
        Claim("together-as-alone", "There, and on smooth costs that are alike on all machines, FedOGD plays what OGD "
              "plays: averaging changes nothing, for every M.",
              same < 1e-5, f"largest difference of regret {same:.1e}", "on every seed", "below 1e-5", n, "check"),
        Claim("stochastic-helps", "Against a draw of its own for every machine, averaging does help: the game can show "
              "it.",
              helps, f"OGD less FedOGD {text}", "paired seeds, t-interval", "above 0", n, "check"),
        slope_claim("rate-17", "On random signs the regret falls like T^(-1/2).", times,
                    [found["signs", t] for t in times], -0.55, -0.45, of="T"),
        Claim("bound-18", "On smooth non-negative costs it is below the explicit bound on every path.",
              smooth <= 1 + ROUNDING, f"largest ratio {smooth:.3f}", "largest over seeds and T",
              f"at most 1 + {ROUNDING:g}", n, "correction"),
        slope_claim("rate-18-exact", "With F_* = 0 it falls like 1/T.", times,
                    [found["smooth", 0.0, t] for t in times], -1.1, -0.9, of="T"),
        slope_claim("rate-18-noise", "With F_* > 0 it falls no slower than T^(-1/2).", times,
                    [found["smooth", 1.0, t] for t in times], -1.1, -0.45, of="T"),
    ]  # fmt: skip


def _bound_18(noise: float, steps: int) -> float:
    numbers = {"steps": steps, "smoothness": 1.0, "optimal_value": noise**2 / 2, "radius": 1.0}
    return float(theorem_18(step_size=theorem_18_step_size(**numbers), **numbers))


def _carry_out(bench: Bench) -> Findings:
    scale = bench.scale
    found = regrets(_games(scale))
    claims = judge(found, scale)
    machines, times = scale["machines"], scale["times"]
    level = 1 / scale["steps"] ** 0.5
    figures = [
        curves(
            "Coordinated random signs: machines do not help", "machines M",
            {kind: (machines, [found[kind, M] for M in machines]) for kind in ("OGD", "FedOGD")},
            ("ogd-bound", "floor", "together-as-alone", "stochastic-helps"),
            guides={"G B / sqrt T": (machines, [level] * len(machines)),
                    "G B / sqrt(2 T)": (machines, [level / 2**0.5] * len(machines))},
        ),
        curves(
            "Regret over time", "steps T",
            {"random signs": (times, [found["signs", t] for t in times]),
             "smooth, F_* = 0": (times, [found["smooth", 0.0, t] for t in times]),
             "smooth, F_* = 1/2": (times, [found["smooth", 1.0, t] for t in times])},
            ("rate-17", "bound-18", "rate-18-exact", "rate-18-noise"),
            guides={"T^(-1/2)": (times, [t**-0.5 for t in times])},
        ),
    ]  # fmt: skip
    return Findings(claims, figures)


RECIPE = Recipe(
    name="online-gradient",
    title="With gradients, working together does not help",
    source="thesis, theorems 17 and 18",
    about=f"Online gradient descent on every machine alone and averaged every {LOCAL_STEPS} steps, in {DIMENSION} "
    "dimensions, with G = B = 1 and steps by theory, against random signs that are alike on all machines (the lower "
    "bound's), a drifting and an adaptive stream, one that also tears machines apart (zeta-hat = 0.8 G), a Lipschitz "
    "one, and smooth costs with H = 1.",
    scales={
        "quick": {"steps": 1024, "times": (256, 1024, 4096), "machines": (1, 4, 16), "seeds": range(20)},
        "full": {"steps": 4096, "times": (256, 1024, 4096, 16384), "machines": (1, 2, 4, 8, 16, 32),
                 "seeds": range(50)},
    },
    carry_out=_carry_out,
)  # fmt: skip
