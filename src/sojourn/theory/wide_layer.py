"""Song et al.: FedAvg on a pyramidal network with one wide layer.

Song et al., "FedAvg converges to zero training loss linearly for overparameterized multi-layer neural networks".
Letters are the paper's, see sojourn.models.wide_layer_facts. Arguments: num_samples N (or N_k), input_norm ||X||_F,
error ||f - y||, num_layers L, slope gamma, bend beta, floor a_0, gain prod_l Lam_l / min_l Lam_l, low_product the
product of lam_l over l >= 3, num_local_steps r, batch_size m, loss Phi_0, target_loss epsilon.
"""

import math
from typing import Any

import numpy as np

from sojourn.models.wide_layer_facts import (
    gd_conditions,
    gradient_ratio,
    lift,
    linear_rate,
    proof_constants,
    sgd_conditions,
    step_limits,
)
from sojourn.theory.statement import statement

_TEST = "test_theory_wide_layer.py::"
_NET = ("num_layers >= 2", "num_layers == np.floor(num_layers)", "num_samples >= 1")
_SLOPE = ("slope > 0", "slope <= 1")


@statement(
    "Song et al., Lemma 4, (27)",
    kind="lower bound",
    printed="|g_2| >= (1/N_k) sigma_min(F_1) gamma^(L-2) prod_{p>=3} sigma_min(W_p) |f - y|",
    why="(13) and (20) of the main text have gamma^(L-1), which is weaker and holds too.",
    requires=(*_NET, *_SLOPE),
    test=_TEST + "test_lemma_4_bounds_the_gradient",
)
def wide_gradient_floor(
    *, num_samples: Any, floor: Any, slope: Any, num_layers: Any, low_product: Any, error: Any
) -> Any:  # fmt: skip
    """The norm of the second layer's gradient of 1/(2 N) |f - y|^2, from below: no stationary point but a zero loss."""
    return floor * slope ** (num_layers - 2) * low_product * error / num_samples


@statement(
    "Song et al., Lemma 4, (28)",
    kind="upper bound",
    printed="|F_l|_F <= |X|_F prod_{p<=l} sigma_max(W_p)",
    test=_TEST + "test_lemma_4_bounds_the_layers",
)
def wide_layer_output(*, input_norm: Any, product: Any) -> Any:
    """The norm of a layer's output, by the product of the largest singular values up to it."""
    return input_norm * product


@statement(
    "Song et al., Lemma 4, (29)",
    kind="upper bound",
    printed="|grad_{W_l}| <= (1/N_k) |X_k|_F prod_{p != l} sigma_max(W_p) |f - y|",
    requires=("num_samples >= 1",),
    test=_TEST + "test_lemma_4_bounds_the_gradient",
)
def wide_layer_gradient(*, num_samples: Any, input_norm: Any, other_product: Any, error: Any) -> Any:
    """The norm of one layer's gradient, by the largest singular values of the other layers."""
    return input_norm * other_product * error / num_samples


@statement(
    "Song et al., Lemma 4, (30)",
    kind="upper bound",
    status="corrected",
    printed="|g_k| <= (L |X_k|_F / N) prod_l sigma_max(W_l) / prod_l sigma_max(W_l) … |f - y|",
    corrected="|g_k| <= (L |X_k|_F / N_k) prod_l sigma_max(W_l) / min_l sigma_max(W_l) |f - y|",
    why="The client's gradient is a mean over its own samples, and the second product stands for a minimum; (14) and "
    "(18) of the main text also lack |X|.",
    requires=_NET,
    test=_TEST + "test_lemma_4_bounds_the_gradient",
)
def wide_gradient_ceiling(*, num_samples: Any, input_norm: Any, num_layers: Any, gain: Any, error: Any) -> Any:
    """The norm of the whole gradient."""
    return num_layers * input_norm * gain * error / num_samples


@statement(
    "Song et al., Lemma 4, (31)",
    kind="upper bound",
    printed="|F_L(a) - F_L(b)|_F <= sqrt(L) |X|_F prod_l Lam_l / min_l Lam_l |a - b|",
    requires=("num_layers >= 2",),
    test=_TEST + "test_lemma_4_bounds_how_outputs_and_jacobians_change",
)
def wide_output_lipschitz(*, num_layers: Any, input_norm: Any, gain: Any) -> Any:
    """How fast the outputs change with the weights, where both have singular values of at most Lam_l."""
    return np.sqrt(num_layers) * input_norm * gain


@statement(
    "Song et al., Lemma 4, (32)",
    kind="upper bound",
    printed="|J_l(a) - J_l(b)|_2 <= sqrt(L) |X|_F R (1 + L beta |X|_F R) |a - b|, R = prod_l max(1, Lam_l)",
    requires=("num_layers >= 2",),
    test=_TEST + "test_lemma_4_bounds_how_outputs_and_jacobians_change",
)
def wide_jacobian_lipschitz(*, num_layers: Any, input_norm: Any, spread: Any, bend: Any) -> Any:
    """How fast one layer's Jacobian changes with the weights; `spread` is R."""
    return np.sqrt(num_layers) * input_norm * spread * (1 + num_layers * bend * input_norm * spread)


@statement(
    "Song et al., Lemmas 1 and 7",
    kind="upper bound",
    status="corrected",
    printed="rho = |g~_k| / |g_k| <= L N prod Lam / min Lam / (m gamma^(L-2) prod_{l>=3} lam_l Lam_F)",
    corrected="rho <= L N |X|_F prod Lam / min Lam / (m gamma^(L-2) prod_{l>=3} lam_l Lam_F)",
    why="|X|_F is in the proof (44) and missing in the lemma; (75) swaps m and N. With exact gradients rho = 1.",
    requires=(*_NET, *_SLOPE, "batch_size >= 1", "low_product > 0", "floor > 0"),
    test=_TEST + "test_lemma_7_bounds_a_batch_by_the_whole",
)
def wide_gradient_ratio(
    *, num_samples: Any, batch_size: Any, input_norm: Any, slope: Any, num_layers: Any, gain: Any, low_product: Any,
    floor: Any,
) -> Any:  # fmt: skip
    """How much larger a minibatch's gradient can be than that of all samples."""
    return gradient_ratio(num_samples, batch_size, input_norm, slope, num_layers, gain, low_product, floor)


@statement(
    "Song et al., Theorem 1, mu'",
    kind="identity",
    status="corrected",
    printed="mu' = r / (2N) gamma^(2(L-2)) 4^-(L-1) prod_{l>=3} lam_l^2 a_0^2 (main text); r / (2 N^2) … (66)",
    corrected="mu' = (r / N) gamma^(2(L-2)) 4^-(L-1) prod_{l>=3} lam_l^2 a_0^2, as in (74)",
    why="|g|^2 >= (2/N) c Phi with c = gamma^(2(L-2)) 4^-(L-1) lam^2 a_0^2, so r steps take off 2 (r/N) c eta Phi, of "
    "which a small step leaves half. The main text's half of that holds too.",
    requires=(*_NET, *_SLOPE),
    test=_TEST + "test_corollary_1_holds_on_runs",
)
def wide_rate(
    *, num_samples: Any, num_local_steps: Any, slope: Any, num_layers: Any, low_product: Any, floor: Any
) -> Any:  # fmt: skip
    """The rate of the linear convergence, per unit of step size and round."""
    return linear_rate(num_samples, num_local_steps, slope, num_layers, low_product, floor)


@statement(
    "Song et al., Corollary 1",
    kind="upper bound",
    printed="Phi_t <= (1 - mu' eta)^t Phi_0 for FedAvg with exact gradients",
    why="Under (72) and (73) and the step sizes of its proof, see wide_gd_conditions and wide_step_size.",
    requires=("rate * step_size <= 1",),
    test=_TEST + "test_corollary_1_holds_on_runs",
)
def wide_corollary_1(*, rate: Any, step_size: Any, rounds: Any, loss: Any) -> Any:
    """The loss after so many rounds; `rate` is mu', `loss` the first one."""
    return loss * np.exp(rounds * np.log1p(-np.minimum(rate * step_size, 1 - 1e-16)))


@statement(
    "Song et al., step size of Theorem 1",
    kind="step size",
    status="corrected",
    printed="eta < min{1/(rho max Q_k), 1/(rho C), 1/mu', 1/(3 rho C' U), (6/7)^(L-1)/(Q rho (2^r - 1)), mu'/(2B)}",
    corrected="the same with mu' / (2 N B1), and with the U that the proof leaves open worked out",
    why="B1 is the coefficient of eta^2 |f - y|^2 = 2 N eta^2 Phi, so mu' eta Phi pays for it if eta <= mu'/(2 N B1); "
    "its display is missing in print. Q_k needs |f_0 - y| of all clients: one client's own error may grow.",
    requires=(*_NET[:2], *_SLOPE, "np.min(client_samples) >= 1", "np.min(highs) > 0", "np.min(lows) > 0",
              "np.min(client_norms) > 0", "ratio > 0"),
    test=_TEST + "test_corollary_1_holds_on_runs",
)  # fmt: skip
def wide_step_size(
    *, client_samples: Any, client_norms: Any, highs: Any, lows: Any, num_layers: Any, floor: Any, slope: Any,
    bend: Any, num_local_steps: Any, error: Any, ratio: Any = 1.0,
) -> dict[str, float]:  # fmt: skip
    """The step sizes that the proof allows, reason by reason; the least of them is the limit. `ratio` is rho."""
    sizes: dict[str, Any] = {"client_samples": client_samples, "client_norms": client_norms, "highs": highs}
    found = proof_constants(
        **sizes, num_layers=num_layers, low_product=_product(lows, num_layers), floor=floor, slope=slope, bend=bend,
        num_local_steps=num_local_steps, error=error, ratio=ratio,
    )  # fmt: skip
    return step_limits(found, **sizes, lows=_rest(lows, num_layers), num_layers=num_layers,
                       num_local_steps=num_local_steps, error=error, ratio=ratio)  # fmt: skip


@statement(
    "Song et al., Lemma 6",
    kind="upper bound",
    status="refuted",
    printed="sup_eta S^T <= xi Phi_0 / epsilon with xi = e^(3 rho / (2 mu)), S^2 = 1 + 3 rho C eta",
    why="S^T is (Phi_0/epsilon)^(3 rho / (2 mu)) as eta -> 0: the limit (33) is raised to the power "
    "log(Phi_0/epsilon), not multiplied by Phi_0/epsilon. No xi that depends on rho and mu alone bounds it.",
    requires=("loss > target_loss", "target_loss > 0"),
    test=_TEST + "test_lemma_6_is_refuted",
)
def wide_lemma_6(*, ratio_over_mu: Any, loss: Any, target_loss: Any) -> dict[str, float]:
    """log10 of the growth of the proof's bound on the loss: as printed, and as it is; `ratio_over_mu` is rho/mu."""
    return lift(float(ratio_over_mu), math.log(loss / target_loss))


@statement(
    "Song et al., conditions (22), (23) = (67), (68)",
    kind="remark",
    status="corrected",
    printed="2 N^1.5 / (L |X| 1.5^(L-1) gain) xi Phi_0/epsilon sqrt(2 Phi_0) <= lam_l/2 (l >= 3), 1 (l <= 2); "
    "without |X|: <= min(a_0, a_0k)/2",
    corrected="the same with (Phi_0/epsilon)^(log xi) for xi Phi_0/epsilon",
    why="They inherit Lemma 6. log xi = 3 rho / (2 mu) does not depend on zeta, and is above 1e10 on networks of a few "
    "units, so neither form can be certified by any zeta that a machine can hold.",
    requires=(*_NET[:2], *_SLOPE, "np.min(client_samples) >= 1", "np.min(highs) > 0", "np.min(lows) > 0", "floor > 0",
              "loss > target_loss", "target_loss > 0", "batch_size >= 1", "np.min(client_norms) > 0"),
    test=_TEST + "test_conditions_of_the_start",
)  # fmt: skip
def wide_sgd_conditions(
    *, client_samples: Any, client_norms: Any, highs: Any, lows: Any, num_layers: Any, floor: Any, slope: Any,
    bend: Any, num_local_steps: Any, batch_size: Any, loss: Any, target_loss: Any,
) -> dict[str, bool]:  # fmt: skip
    """Which conditions hold; `floor` is the least of a_0 and all a_0k."""
    total, length = float(np.sum(client_samples)), float(np.linalg.norm(client_norms))
    product, error = _product(lows, num_layers), math.sqrt(2 * total * loss)
    first = proof_constants(
        client_samples=client_samples, client_norms=client_norms, highs=highs, num_layers=num_layers,
        low_product=product, floor=floor, slope=slope, bend=bend, num_local_steps=num_local_steps, error=error,
    )  # fmt: skip
    ratio = 7.0 ** (num_layers - 1) * gradient_ratio(
        total, batch_size, length, slope, num_layers, first["gain"], product, floor
    )
    found = sgd_conditions(first, input_norm=length, num_layers=float(num_layers), lows=_rest(lows, num_layers),
                           floors=[float(floor)], phi=float(loss), log_reduction=math.log(loss / target_loss),
                           ratio=float(ratio))  # fmt: skip
    return {condition.name: condition.holds for condition in found}


@statement(
    "Song et al., conditions (72), (73)",
    kind="remark",
    status="corrected",
    printed="2 N (1.5^(L-1) + 2^(L-1) (r-1)) |X| / (r gamma^(2(L-2)) 4^-(L-1) lam^2 a_0^2) prod_{p != l} Lam_p "
    "<= lam_l/2 (l >= 3), 1 (l <= 2); with |X|^2 and prod_{p >= 2} Lam_p: <= a_0/2",
    corrected="the same with |f_0 - y| for N",
    why="The path of the weights is proportional to |f_0 - y|, and N cancels against that of mu'. The left sides fall "
    "like 1/prod_{l>=3} zeta, so a large zeta certifies them.",
    requires=(*_NET[:2], *_SLOPE, "np.min(client_samples) >= 1", "np.min(highs) > 0", "np.min(lows) > 0", "floor > 0",
              "error > 0", "np.min(client_norms) > 0"),
    test=_TEST + "test_conditions_of_the_start",
)  # fmt: skip
def wide_gd_conditions(
    *, client_samples: Any, client_norms: Any, highs: Any, lows: Any, num_layers: Any, floor: Any, slope: Any,
    bend: Any, num_local_steps: Any, error: Any,
) -> dict[str, bool]:  # fmt: skip
    """Which conditions hold for FedAvg with exact gradients; `error` is |f_0 - y|."""
    found = proof_constants(
        client_samples=client_samples, client_norms=client_norms, highs=highs, num_layers=num_layers,
        low_product=_product(lows, num_layers), floor=floor, slope=slope, bend=bend, num_local_steps=num_local_steps,
        error=error,
    )  # fmt: skip
    held = gd_conditions(found, input_norm=float(np.linalg.norm(client_norms)), num_layers=float(num_layers),
                         highs=highs, lows=_rest(lows, num_layers), floor=float(floor), error=float(error),
                         num_local_steps=float(num_local_steps))  # fmt: skip
    return {condition.name: condition.holds for condition in held}


def _rest(lows: Any, num_layers: Any) -> list[float]:
    """lam_l for l >= 3: those given, or one for all; none where there are two layers."""
    number = int(num_layers) - 2
    return [float(low) for low in np.broadcast_to(np.atleast_1d(lows), (number,))] if number else []


def _product(lows: Any, num_layers: Any) -> float:
    return math.prod(_rest(lows, num_layers))
