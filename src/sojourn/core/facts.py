"""What is known exactly about a federation: the constants of theory, None where unknown, never guessed."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Facts:
    """Constants of the objective (thesis, assumptions 1 to 13). Arrays are NumPy, in float64."""

    smoothness: float | None = None  # H: every client's Hessian is at most H
    strong_convexity: float | None = None  # mu: and at least mu
    third_order_smoothness: float | None = None  # Q: Lipschitz constant of the Hessians, operator norm
    hessian_heterogeneity: float | None = None  # tau: largest spectral norm of a difference of client Hessians
    optima_heterogeneity: float | None = None  # zeta_star: fourth-power mean distance between clients' optima
    optima_distance: float | None = None  # phi_star: fourth-power mean distance from x_star to clients' optima
    gradient_heterogeneity: float | None = None  # zeta: largest difference of client gradients at any x, over H
    noise: float | None = None  # sigma_2: root of the mean squared norm of the gradient noise of one call, at any x
    noise4: float | None = None  # sigma_4: the same with the fourth moment
    noise_at_optimum: float | None = None  # the same as `noise` at x_star alone, where it grows with the distance
    num_clients: int | None = None  # M
    start_distance: float | None = None  # B: from x0 to x_star
    mean_optima_distance: float | None = None  # B-bar: mean distance from x0 to the clients' optima
    start_gap: float | None = None  # Delta: F(x0) - F*, given where theory of non-convex objectives is to be used
    x_star: Any = None  # the minimiser of the average objective, nearest to x0 when there are many; a pytree as x0
    f_star: float | None = None  # its value
    optima: np.ndarray | None = None  # (M, d) the clients' own minimisers
    hessians: np.ndarray | None = None  # (M, d, d) where constant

    def known(self) -> dict[str, float]:
        """The scalar facts that are known, for manifests and tables."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: float(v) for name, v in values.items() if isinstance(v, (int, float))}
