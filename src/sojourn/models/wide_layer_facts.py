"""Constants of the proof of Song et al., "FedAvg converges to zero training loss linearly …": plain formulas.

Letters of the paper: N samples, N_k of client k, X and y the inputs and targets, L layers, r local steps, m the batch,
gamma the smallest slope of the activation, beta the Lipschitz constant of its derivative; at the start lam_l and Lam_l
bound the singular values of W_l from below and above (Lam_l = 2/3 (1 + sigma_max) for l = 1, 2), and a0, a0k are the
smallest singular values of the first layer's features of all samples and of client k's. `gain` is
prod_l Lam_l / min_l Lam_l, `low_product` is prod of lam_l over l >= 3, 1 where there is none.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Constants = dict[str, Any]


def per_layer(highs: Any, num_layers: Any) -> np.ndarray:
    """One number for every layer: those given, or one for all."""
    return np.broadcast_to(np.atleast_1d(np.asarray(highs, float)), (int(num_layers),))


def gain_of(highs: np.ndarray) -> Any:
    return np.prod(np.delete(highs, np.argmin(highs)))  # NumPy's number: its powers overflow to inf, not to an error


def linear_rate(num_samples: Any, num_local_steps: Any, slope: Any, num_layers: Any, low_product: Any, floor: Any,
                slack: float = 1.0) -> Any:  # fmt: skip
    """mu' = (r/N) gamma^(2(L-2)) 4^-(L-1) low_product^2 a0^2; the main text has r/(2N), slack 1/2."""
    shrunk = slope ** (2 * (num_layers - 2)) * 0.25 ** (num_layers - 1)
    return slack * num_local_steps / num_samples * shrunk * low_product**2 * floor**2


def gradient_ratio(num_samples: Any, batch_size: Any, input_norm: Any, slope: Any, num_layers: Any, gain: Any,
                   low_product: Any, floor: Any) -> Any:  # fmt: skip
    """rho of Lemmas 1 and 7: how much larger a minibatch's gradient can be than the client's own."""
    below = batch_size * slope ** (num_layers - 2) * low_product * floor
    return num_layers * num_samples * input_norm * gain / below


def proof_constants(
    *, client_samples: Any, client_norms: Any, highs: Any, num_layers: Any, low_product: Any, floor: Any, slope: Any,
    bend: Any, num_local_steps: Any, error: Any, ratio: Any = 1.0,
) -> Constants:  # fmt: skip
    """P, C, Q, Q_k, B1 and mu' of appendix B, with ||f_0 - y|| = `error` for every client's own (it is no smaller)."""
    highs, sizes, norms = per_layer(highs, num_layers), np.atleast_1d(client_samples), np.atleast_1d(client_norms)
    total, length, gain = np.sum(sizes, dtype=float), np.linalg.norm(norms), gain_of(highs)
    layers, steps = np.float64(num_layers), np.float64(num_local_steps)
    grown = lambda share: share ** (layers - 1)  # noqa: E731
    doubled = 2.0**steps - 1
    smooth = lambda x, n, s: (  # noqa: E731
        layers**1.5 / n * x * (grown(s) ** 2 * x * gain**2 + _bent(highs, s, bend, x, layers) * error)
    )
    q_k, q = smooth(norms, sizes, 7 / 4), smooth(length, total, 3 / 2)
    p = layers * length / total * grown(7 / 4) * doubled
    c = p * layers * length * grown(3 / 2) * gain**2
    drift = ratio * layers * doubled / total * grown(7 / 4) * gain * np.linalg.norm(q_k * norms)
    b1 = layers * length / total * grown(3 / 2) * gain * drift + q / 2 * (ratio * p * gain) ** 2
    rate = linear_rate(total, steps, slope, layers, low_product, floor)
    found = {"P": p, "C": c, "Q": q, "B1": b1, "rate": rate, "gain": gain, "num_samples": total}
    return {**{name: np.float64(value) for name, value in found.items()}, "Q_k": q_k}


def _bent(highs: np.ndarray, share: float, bend: Any, norm: Any, layers: Any) -> Any:
    spread = np.prod(np.maximum(1.0, share * highs))
    return (1 + layers * bend * norm * spread) * spread


def step_limits(constants: Constants, *, client_samples: Any, client_norms: Any, highs: Any, lows: Any,
                num_layers: Any, num_local_steps: Any, error: Any, ratio: Any = 1.0) -> dict[str, float]:  # fmt: skip
    """The bounds on the step size that the proof needs, by what each is for.

    "movement" stands for 1/(3 rho C' U) with its unnamed U: local steps move W_l by at most lam_l/4, or 1/6 for l <= 2.
    "descent" is mu' / (2 N B1): the printed mu' / (2 B) mixes a coefficient of ||f - y||^2 with one of Phi.
    """
    highs, sizes, norms = per_layer(highs, num_layers), np.atleast_1d(client_samples), np.atleast_1d(client_norms)
    layers, rate = np.float64(num_layers), constants["rate"]
    room = np.concatenate([[1 / 6, 1 / 6], np.atleast_1d(lows)[: int(layers) - 2] / 4])
    others = np.array([np.prod(np.delete(highs, i)) for i in range(int(layers))])
    pull = ratio * num_local_steps * float(np.max(norms / sizes)) * (7 / 4) ** (layers - 1) * others * error
    doubled = 2.0 ** np.float64(num_local_steps) - 1
    safe = lambda a, b: float(a / b) if b > 0 else math.inf  # noqa: E731
    return {
        "smoothness": safe(1.0, ratio * float(np.max(constants["Q_k"]))),
        "growth": safe(1.0, ratio * constants["C"]),
        "rate": safe(1.0, rate),
        "movement": safe(1.0, float(np.max(pull / room))),
        "curvature": safe((6 / 7) ** (layers - 1), constants["Q"] * ratio * doubled),
        "descent": safe(rate, 2 * constants["num_samples"] * constants["B1"]),
    }


@dataclasses.dataclass(frozen=True)
class Condition:
    """left <= right, both as decimal logarithms, since some lefts have millions of digits."""

    name: str
    left_log10: float
    right_log10: float
    corrected: bool = False  # not as the paper prints it

    @property
    def holds(self) -> bool:
        return bool(self.left_log10 <= self.right_log10)

    def told(self) -> dict[str, Any]:
        """Plain values for a manifest; what is no number there is None."""
        number = lambda x: round(x, 3) if math.isfinite(x) else None  # noqa: E731
        return {"condition": self.name, "corrected": self.corrected, "left_log10": number(self.left_log10),
                "right_log10": number(self.right_log10), "holds": self.holds}  # fmt: skip


def lift(ratio_over_mu: float, log_reduction: float) -> dict[str, float]:
    """log10 of S^T at the worst step size, S^2 = 1 + 3 rho C eta: as Lemma 6 prints it, and as it is.

    The exponent log S / log(1/(1 - mu C eta)) falls in eta from c = 3 rho / (2 mu), so sup S^T = (Phi_0/eps)^c up to
    the one round that T is rounded by; the lemma prints e^c Phi_0/eps.
    """
    c = 1.5 * ratio_over_mu
    return {"printed": (c + log_reduction) / math.log(10), "true": c * log_reduction / math.log(10)}


def sgd_conditions(
    constants: Constants, *, input_norm: float, num_layers: float, lows: Sequence[float], floors: Sequence[float],
    phi: float, log_reduction: float, ratio: float,
) -> list[Condition]:  # fmt: skip
    """(67) and (68), which are (22) and (23) with their constants, with S^T as printed and as it is."""
    mu = constants["rate"] / constants["C"]
    lifts = lift(ratio / mu if mu > 0 else math.inf, log_reduction)
    total, gain = constants["num_samples"], constants["gain"]
    base = 2 * total**1.5 / (num_layers * 1.5 ** (num_layers - 1) * gain) * math.sqrt(2 * phi)
    found = []
    for form, factor in lifts.items():
        left = _log10(base) + factor
        moved = left - _log10(input_norm)
        corrected = form == "true"
        words = ", with the true S^T" if corrected else ""
        found.append(Condition(f"(67), layers 1 and 2{words}", moved, 0.0, corrected))
        if len(lows):
            found.append(Condition(f"(67), later layers{words}", moved, _log10(min(lows) / 2), corrected))
        found.append(Condition(f"(68), features{words}", left, _log10(min(floors) / 2), corrected))
    return found


def gd_conditions(constants: Constants, *, input_norm: float, num_layers: float, highs: Any, lows: Sequence[float],
                  floor: float, error: float, num_local_steps: float) -> list[Condition]:  # fmt: skip
    """(72) and (73) for exact gradients, as printed and with ||f_0 - y|| where the print has N.

    W_l travels at most (… ||X|| prod_{p != l} Lam_p / N) ||f_0 - y|| * 2 / mu' in all rounds together, and mu' carries
    r/N, so no N is left and ||f_0 - y|| is; the print has it the other way round.
    """
    highs, total = per_layer(highs, num_layers), constants["num_samples"]
    steps = 1.5 ** (num_layers - 1) + 2 ** (num_layers - 1) * (num_local_steps - 1)
    rate = constants["rate"]
    found = []
    for corrected, factor in ((False, total), (True, error)):
        form = ", with |f_0 - y| for N" if corrected else ""
        path = _log10(2 * factor * steps * input_norm / total) - _log10(rate)
        others = [_log10(np.prod(np.delete(highs, i))) for i in range(len(highs))]
        found.append(Condition(f"(72), layers 1 and 2{form}", path + max(others[:2]), 0.0, corrected))
        if len(lows):
            later = path + max(others[2:])
            found.append(Condition(f"(72), later layers{form}", later, _log10(min(lows) / 2), corrected))
        features = path + others[0] + _log10(input_norm)
        found.append(Condition(f"(73), features{form}", features, _log10(floor / 2), corrected))
    return found


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else -math.inf
