"""What no step size can beat (thesis, chapter 3): floors with their constants, and the full forms as scaling laws.

A lower bound says that a federation exists on which a method errs at least so much; it says nothing about a given one.
The federations are in `sojourn.problems.instances`, each with the same floor as `bound`. Paper to code:
H -> smoothness, B -> start_distance, tau -> hessian_heterogeneity, R -> rounds, phi_* -> optima_distance.
"""

from typing import Any

import numpy as np

from sojourn.theory.contraction import left
from sojourn.theory.statement import statement

_TEST = "test_theory_lower_bounds.py::"
_ROUNDS = ("rounds >= 1",)


@statement(
    "Proposition 1",
    kind="lower bound",
    status="corrected",
    printed="There are clients with B >= sqrt(M B-bar) / 3",
    corrected="There are clients with B = sqrt(M) B-bar / 3",
    why="The root should end at M, and the printed regularisers pull x* towards zero for more than two clients.",
    requires=("num_clients % 2 == 0",),
    test=_TEST + "test_proposition_1",
)
def proposition_1(*, num_clients: Any, mean_optima_distance: Any) -> Any:
    """|x*| on `instances.proposition1`, whose clients all have optima of norm B-bar."""
    return np.sqrt(num_clients) * mean_optima_distance / 3


@statement(
    "Lemma 1",
    kind="lower bound",
    status="corrected",
    printed="F(x_R) - F* >= H B^2 / (8 R)",
    corrected="F(x_R) - F* >= H B^2 / (96 R)",
    why="The proof replaces H / kappa by H / R with kappa = 12 R; the best step gives 0.0150 to 0.0175 H B^2 / R.",
    requires=_ROUNDS,
    test=_TEST + "test_lemma_1",
)
def lemma_1(*, rounds: Any, smoothness: Any, start_distance: Any) -> Any:
    """A floor under R steps of GD of any length, on a quadratic in two dimensions with condition number 12 R."""
    return smoothness * start_distance**2 / (96 * rounds)


@statement(
    "Lemma 1, the error itself",
    kind="identity",
    printed="F(x_R) - F* = (B^2 / 4) (H (1 - eta H)^(2R) + (H / kappa) (1 - eta H / kappa)^(2R)), kappa = 12 R",
    requires=(*_ROUNDS, "rounds == np.floor(rounds)"),
    test=_TEST + "test_lemma_1",
)
def lemma_1_error(*, step_size: Any, rounds: Any, smoothness: Any, start_distance: Any) -> Any:
    """F(x_R) - F* of GD from zero with x* = -(B / sqrt 2)(v_1 + v_2) for the eigenvectors of the Hessian."""
    flat = smoothness / (12 * rounds)
    steep_part = smoothness * left(step_size * smoothness, 2 * rounds)
    error = steep_part + flat * left(step_size * flat, 2 * rounds)
    return start_distance**2 / 4 * np.where(start_distance == 0, 0.0, error)  # at the optimum, however long the step


@statement(
    "Theorem 1, first term",
    kind="lower bound",
    status="corrected",
    printed="F(x_R) - F* >= c H B^2 / R, with c = 1/8 from Lemma 1",
    corrected="F(x_R) - F* >= H B^2 / (8 (12 R + 1))",
    why="Lemma 1 with its right constant, and the mean Hessian has the largest eigenvalue 12 R H / (12 R + 1), not H.",
    requires=_ROUNDS,
    test=_TEST + "test_theorem_1_floor",
)
def theorem_1_floor(*, rounds: Any, smoothness: Any, start_distance: Any) -> Any:
    """A floor under local GD on `instances.theorem1`, whatever the inner step, the outer step and K."""
    return lemma_1(rounds=rounds, smoothness=_steepest(smoothness, rounds), start_distance=start_distance)


@statement(
    "Theorem 2, first term",
    kind="lower bound",
    status="corrected",
    printed="F(x) - F* >= c H B^2 / R^2",
    corrected="F(x) - F* >= H B^2 (q^(2R) - q^(2d)) / (4 (1 + q^2) R^2 (1 - q^(2d))), q = 1 - 1/R, d the dimension",
    why="The print gives no constant; its mean objective lacks a factor 1/2 and its clients are (1 + q^2) H-smooth.",
    requires=("rounds >= 2", "dimension is None or np.all(dimension >= rounds + 1)"),
    test=_TEST + "test_theorem_2_floor",
)
def theorem_2_floor(*, rounds: Any, smoothness: Any, start_distance: Any, dimension: Any = None) -> Any:
    """A floor under every zero-respecting method on `instances.theorem2`, of dimension 5 R unless given."""
    q2 = (1 - 1 / rounds) ** 2
    d = 5 * rounds if dimension is None else dimension
    tail = (q2**rounds - q2**d) / (1 - q2**d)
    return smoothness / (4 * (1 + q2)) * (start_distance / rounds) ** 2 * tail


@statement(
    "Theorem 3, first term",
    kind="lower bound",
    status="corrected",
    printed="F(x_R) - F* >= c tau B^2 / R",
    corrected="F(x_R) - F* >= tau B^2 / (8 (12 R + 1))",
    why="The print gives no constant; Lemma 1 with its right one gives this.",
    requires=(*_ROUNDS, "hessian_heterogeneity <= smoothness"),
    test=_TEST + "test_theorem_3_floor",
)
def theorem_3_floor(*, rounds: Any, smoothness: Any, hessian_heterogeneity: Any, start_distance: Any) -> Any:
    """A floor under local GD on `instances.theorem3`, whatever the inner step, the outer step and K.

    tau is the scale of the two clients there. The largest difference of their Hessians is smaller, so the floor holds
    with that in place of tau as well.
    """
    return lemma_1(rounds=rounds, smoothness=_steepest(hessian_heterogeneity, rounds), start_distance=start_distance)


@statement(
    "Theorem 1",
    kind="scaling law",
    status="scaling only",
    printed="E F(x_R) - F* >= c (H B^2 / R + (H sigma^2 B^4)^(1/3) / (K^(1/3) R^(2/3)) + sigma B / sqrt(M K R) "
    "+ (H phi_*^2 B^4)^(1/3) / R^(2/3))",
    corrected="the last term is H (phi_*^2 B^4)^(1/3) / R^(2/3)",
    why="The printed last term has the wrong dimension: phi_* is a distance, its source has a gradient norm, H phi_*.",
    requires=_ROUNDS,
    test=_TEST + "test_scaling_laws",
)
def theorem_1(
    *, rounds: Any, num_local_steps: Any, num_clients: Any, smoothness: Any, start_distance: Any, noise: Any,
    optima_distance: Any,
) -> Any:  # fmt: skip
    """Local SGD with any steps, up to a constant."""
    first = smoothness * start_distance**2 / rounds
    drift = smoothness * np.cbrt(optima_distance**2 * start_distance**4) / np.cbrt(rounds) ** 2
    noises = _local_noise(smoothness, noise, start_distance, num_local_steps, rounds)
    return first + noises + _mean_noise(noise, start_distance, num_clients, num_local_steps, rounds) + drift


@statement(
    "Theorem 2",
    kind="scaling law",
    status="scaling only",
    printed="E F(x) - F* >= c (H B^2 / R^2 + sigma B / sqrt(M K R))",
    requires=_ROUNDS,
    test=_TEST + "test_scaling_laws",
)
def theorem_2(
    *, rounds: Any, num_local_steps: Any, num_clients: Any, smoothness: Any, start_distance: Any, noise: Any
) -> Any:
    """Any distributed zero-respecting method, up to a constant."""
    first = smoothness * (start_distance / rounds) ** 2
    return first + _mean_noise(noise, start_distance, num_clients, num_local_steps, rounds)


@statement(
    "Theorem 3",
    kind="scaling law",
    status="scaling only",
    printed="E F(x_R) - F* >= c (tau B^2 / R + H B^2 / (K R) + sigma B / sqrt(M K R) "
    "+ min{sigma B / sqrt(K R), (H sigma^2 B^4)^(1/3) / (K^(1/3) R^(2/3))} "
    "+ tau min{phi_*^2, phi_*^(2/3) B^(4/3) / R^(2/3)})",
    requires=_ROUNDS,
    test=_TEST + "test_scaling_laws",
)
def theorem_3(
    *, rounds: Any, num_local_steps: Any, num_clients: Any, smoothness: Any, hessian_heterogeneity: Any,
    start_distance: Any, noise: Any, optima_distance: Any,
) -> Any:  # fmt: skip
    """Local SGD with any steps on clients whose Hessians differ by at most tau, up to a constant."""
    shape = start_distance, num_local_steps, rounds
    alone = np.minimum(
        noise * start_distance / np.sqrt(num_local_steps * rounds), _local_noise(smoothness, noise, *shape)
    )
    drift = np.minimum(optima_distance**2, np.cbrt(optima_distance**2 * start_distance**4) / np.cbrt(rounds) ** 2)
    curved = start_distance**2 / rounds * (hessian_heterogeneity + smoothness / num_local_steps)
    mean_noise = _mean_noise(noise, start_distance, num_clients, num_local_steps, rounds)
    return curved + mean_noise + alone + hessian_heterogeneity * drift


def _steepest(scale: Any, rounds: Any) -> Any:
    """The largest eigenvalue of the mean of the two rank-one Hessians, whose eigenvalues add to the scale."""
    return scale * 12 * rounds / (12 * rounds + 1)


def _local_noise(smoothness: Any, noise: Any, start_distance: Any, num_local_steps: Any, rounds: Any) -> Any:
    """(H sigma^2 B^4)^(1/3) / (K^(1/3) R^(2/3))."""
    return np.cbrt(smoothness * noise**2 * start_distance**4 / num_local_steps) / np.cbrt(rounds) ** 2


def _mean_noise(noise: Any, start_distance: Any, num_clients: Any, num_local_steps: Any, rounds: Any) -> Any:
    """sigma B / sqrt(M K R)."""
    return noise * start_distance / np.sqrt(num_clients * num_local_steps * rounds)
