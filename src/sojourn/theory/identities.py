"""Closed forms of local SGD on quadratics F_m(x) = 1/2 (x - x_m)^T A_m (x - x_m) (thesis, chapters 2 to 4).

Paper to code: A_m -> hessians (M, d, d), x_m* -> optima (M, d), C_m = I - (I - eta A_m)^K, C = mean of the C_m.
A Hessian may be singular; then there are many fixed points, and the one nearest to x0 is where local GD goes.
Clients count equally unless weights are given.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.theory.contraction import lost
from sojourn.theory.statement import statement

_ZERO = 1e-12  # as in quadratic_facts: the share of the largest eigenvalue below which one counts as zero
_TEST = "test_theory_identities.py::"
_WHOLE_ROUNDS = "rounds == np.floor(rounds)"
_WHOLE_STEPS = "(step_size * smoothness < 1) | (num_local_steps == np.floor(num_local_steps))"


@statement(
    "Equation 2.7",
    kind="identity",
    printed="x_R = x* (1 - (1 - beta/2 (1 - (1 - eta H)^K))^R)",
    requires=(_WHOLE_ROUNDS, _WHOLE_STEPS),
    test=_TEST + "test_equation_2_7",
)
def equation_2_7(
    *, x_star: Any, smoothness: Any, step_size: Any, num_local_steps: Any, rounds: Any, outer_step_size: Any = 1.0
) -> Any:
    """Local GD from zero on two clients that each see one of two coordinates; the last axis holds the coordinates."""
    factor = _half_round(step_size * smoothness, num_local_steps, outer_step_size)
    return _times(_sized(x_star, 2), 1 - (factor**rounds)[..., None])


@statement(
    "Equation 3.10, the iterate",
    kind="identity",
    printed="x* - x_R = (x1* a^R, x2* a^R, x3* b^R) with a = 1 - beta/2 (1 - (1 - eta tau)^K) "
    "and b = 1 - beta (1 - (1 - eta H)^K)",
    requires=(_WHOLE_ROUNDS, _WHOLE_STEPS, "hessian_heterogeneity <= smoothness"),
    test=_TEST + "test_equation_3_10",
)
def equation_3_10(
    *, x_star: Any, smoothness: Any, hessian_heterogeneity: Any, step_size: Any, num_local_steps: Any, rounds: Any,
    outer_step_size: Any = 1.0,
) -> Any:  # fmt: skip
    """Local GD from zero on two clients that differ by tau along two coordinates and agree on H along the third."""
    own = _half_round(step_size * hessian_heterogeneity, num_local_steps, outer_step_size)
    shared = 1 - outer_step_size * lost(step_size * smoothness, num_local_steps)
    own, shared = np.broadcast_arrays(own**rounds, shared**rounds)
    return _times(_sized(x_star, 3), 1 - np.stack([own, own, shared], axis=-1))


@statement(
    "Equation 3.10, the error",
    kind="identity",
    printed="F(x_R) - F* = tau/4 (x1*^2 + x2*^2) a^(2R) + H/2 x3*^2 b^(2R)",
    requires=(_WHOLE_ROUNDS, _WHOLE_STEPS, "hessian_heterogeneity <= smoothness"),
    test=_TEST + "test_equation_3_10",
)
def equation_3_10_suboptimality(
    *, x_star: Any, smoothness: Any, hessian_heterogeneity: Any, step_size: Any, num_local_steps: Any, rounds: Any,
    outer_step_size: Any = 1.0,
) -> Any:  # fmt: skip
    """F(x_R) - F* of the same run."""
    x_star = _sized(x_star, 3)
    own = _half_round(step_size * hessian_heterogeneity, num_local_steps, outer_step_size) ** (2 * rounds)
    shared = (1 - outer_step_size * lost(step_size * smoothness, num_local_steps)) ** (2 * rounds)
    scale = hessian_heterogeneity / 4 * (x_star[0] ** 2 + x_star[1] ** 2)
    return _times(scale, own) + _times(smoothness / 2 * x_star[2] ** 2, shared)


@statement(
    "Section 4.1.1 and Proposition 5",
    kind="identity",
    printed="eta < 1/H: x_inf = C^-1 mean C_m x_m*; if mu = 0 the minimiser of mean |x - x_m*|^2_(C_m) of least norm",
    test=_TEST + "test_local_sgd_fixed_point",
)
def local_sgd_fixed_point(
    *, hessians: Any, optima: Any, step_size: Any, num_local_steps: Any, x0: Any = None, weights: Any = None
) -> Any:
    """Where local GD from x0 (zero when left out) ends, for every outer step; K may be any real number from 1 on."""
    values, vectors = _spectra(hessians, optima)
    gains = _gains(values, step_size, num_local_steps)
    return _balance(gains, vectors, values > 0, optima, x0, weights)


def _infinity_as_word(function: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers of statements are finite, and c may not be: it is passed on as a word."""

    @functools.wraps(function)
    def worded(*facts: Any, **numbers: Any) -> Any:
        if isinstance(numbers.get("c"), float) and numbers["c"] == np.inf:
            numbers["c"] = "infinity"
        return function(*facts, **numbers)

    return worded


@_infinity_as_word
@statement(
    "Figure 4.2",
    kind="identity",
    printed="x_inf -> x* as eta K -> 0, -> mean x_m* as eta K -> infinity",
    test=_TEST + "test_fixed_point_limit",
)
def fixed_point_limit(*, hessians: Any, optima: Any, c: Any, x0: Any = None, weights: Any = None) -> Any:
    """The limit of the fixed point as eta -> 0 and eta K -> c, from 0 to infinity (math.inf).

    Between the ends C_m -> I - exp(-c A_m). For singular Hessians the end c = infinity is that of C_m -> A_m^+ A_m.
    """
    values, vectors = _spectra(hessians, optima)
    if isinstance(c, str) and c != "infinity":
        raise SojournError(f'c = "{c}" is not a number; give one, or math.inf.')
    if isinstance(c, str) or c == np.inf:
        gains = (values > 0).astype(float)
    else:
        gains = values if c == 0 else -np.expm1(-c * values)
    return _balance(gains, vectors, values > 0, optima, x0, weights)


@statement(
    "Proposition 5, second branch",
    kind="identity",
    status="refuted",
    printed="If c = mean C_m x_m* is not 0 and not in im(C), the iterates do not converge",
    why="C v = 0 implies C_m v = 0 for every m, as the C_m are positive semi-definite, so c is always in im(C).",
    test=_TEST + "test_proposition_5_always_converges",
)
def proposition_5_divergence(*, hessians: Any, optima: Any, step_size: Any, num_local_steps: Any) -> Any:
    """The share of c that lies outside im(C), which is 0 up to rounding."""
    values, vectors = _spectra(hessians, optima)
    gains = _gains(values, step_size, num_local_steps)
    gains = gains / (gains.max() or 1.0)
    pull = np.einsum("mik,mk,mjk,mj->i", vectors, gains, vectors, optima, optimize=True) / len(optima)
    basis = _shared_range(vectors, values > 0)
    size = np.linalg.norm(pull)
    return np.linalg.norm(pull - basis @ (basis.T @ pull)) / size if size > 0 else 0.0


@statement(
    "Section 4.1.2, mean and covariance",
    kind="identity",
    status="corrected",
    printed="x_R - x_inf = (I - beta C)^R (x_0 - x_inf) "
    "+ sum_r (I - beta C)^(R-1-r) eta beta sum_k (I - eta A_m)^(K-1-k) mean_m xi_(r,k)^m",
    corrected="mean_r = mean_(r-1) - beta mean_m C_m (mean_(r-1) - x_m*); Cov_r = (I - beta C) Cov_(r-1) (I - beta C) "
    "+ (eta beta / M)^2 sum_m sum_k (I - eta A_m)^k S_m (I - eta A_m)^k",
    why="The client index of I - eta A_m is lost when the noise is averaged over clients.",
    requires=(_WHOLE_ROUNDS, "num_local_steps == np.floor(num_local_steps)"),
    test=_TEST + "test_local_sgd_moments",
)
def local_sgd_moments(
    *, hessians: Any, optima: Any, noise_covariance: Any, step_size: Any, num_local_steps: Any, rounds: Any,
    x0: Any = None, outer_step_size: Any = 1.0, weights: Any = None,
) -> Any:  # fmt: skip
    """The mean (R + 1, d) and covariance (R + 1, d, d) of the server model at rounds 0 to R, for any step sizes.

    noise_covariance S_m: of the noise of one gradient, the same at every point: (d, d), or (M, d, d) one per client,
    or a number s for s I; 0 for none.
    """
    values, vectors = _spectra(hessians, optima)
    num_clients, d = optima.shape
    w, start = _shares(weights, num_clients), _start(x0, d)
    back = vectors.transpose(0, 2, 1)
    c_m = vectors * lost(step_size * values, num_local_steps)[:, None, :] @ back
    keep = np.eye(d) - outer_step_size * np.einsum("m,mij->ij", w, c_m)
    pull = outer_step_size * np.einsum("m,mij,mj->i", w, c_m, optima)
    noise = back @ _noise(noise_covariance, num_clients, d) @ vectors * _geometric(step_size * values, num_local_steps)
    fresh = (step_size * outer_step_size) ** 2 * np.einsum("m,mij->ij", w**2, vectors @ noise @ back)
    means, covariances = [start], [np.zeros((d, d))]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(int(rounds)):
            means.append(keep @ means[-1] + pull)
            covariances.append(keep @ covariances[-1] @ keep + fresh)
    return tuple(np.nan_to_num(np.stack(x), nan=np.inf, posinf=np.inf, neginf=-np.inf) for x in (means, covariances))


@statement(
    "Section 4.1.2, expected squared distance",
    kind="identity",
    printed="E|x_r - x|^2 = |mean_r - x|^2 + tr Cov_r",
    requires=(_WHOLE_ROUNDS, "num_local_steps == np.floor(num_local_steps)"),
    test=_TEST + "test_expected_squared_distance",
)
def expected_squared_distance(
    *, x: Any, hessians: Any, optima: Any, noise_covariance: Any, step_size: Any, num_local_steps: Any, rounds: Any,
    x0: Any = None, outer_step_size: Any = 1.0, weights: Any = None,
) -> Any:  # fmt: skip
    """E|x_r - x|^2 at rounds r = 0 to R, for any point x and under additive noise."""
    means, covariances = local_sgd_moments(
        hessians=hessians, optima=optima, noise_covariance=noise_covariance, step_size=step_size,
        num_local_steps=num_local_steps, rounds=rounds, x0=x0, outer_step_size=outer_step_size, weights=weights,
    )  # fmt: skip
    return np.sum((means - _start(x, optima.shape[1])) ** 2, axis=1) + np.trace(covariances, axis1=1, axis2=2)


@statement(
    "Proposition 2",
    kind="identity",
    printed="If sup_x |grad F_m - grad F_n| <= H zeta < infinity for quadratics, then A_m = A_n",
    test=_TEST + "test_proposition_2",
)
def proposition_2(*, hessians: Any, optima: Any) -> Any:
    """The smallest zeta of assumption 12: infinite unless all Hessians are equal, else max |A (x_m - x_n)| / H."""
    smoothness = _spectra(hessians, optima)[0].max()
    gaps = [np.linalg.norm(hessian - hessians[0], 2) for hessian in hessians]
    if max(gaps) > _ZERO * smoothness:
        return np.inf
    pulled = optima @ hessians[0]
    widest = max(np.linalg.norm(pulled - one, axis=1).max() for one in pulled)
    return widest / smoothness if smoothness > 0 else 0.0


def _half_round(x: Any, num_local_steps: Any, outer_step_size: Any) -> Any:
    """The contraction of a round along a coordinate that one of two clients sees."""
    return 1 - outer_step_size / 2 * lost(x, num_local_steps)


def _times(x: Any, factor: Any) -> Any:
    """x factor, where zero times infinity is zero: a coordinate that starts solved stays solved."""
    x, factor = np.broadcast_arrays(x, factor)
    return np.multiply(x, factor, where=x != 0, out=np.zeros(x.shape))


def _sized(x: np.ndarray, d: int) -> np.ndarray:
    if np.shape(x) != (d,):
        raise SojournError(f"x_star has shape {np.shape(x)}; this example has {d} coordinates.")
    return x


def _start(x0: Any, d: int) -> np.ndarray:
    start = np.zeros(d) if x0 is None else np.asarray(x0, float)
    if start.shape != (d,):
        raise SojournError(f"A point of shape {start.shape} was given to clients in {d} dimensions; give ({d},).")
    return start


def _shares(weights: Any, num_clients: int) -> np.ndarray:
    w = np.ones(num_clients) if weights is None else np.asarray(weights, float)
    if w.shape != (num_clients,) or not w.sum() > 0:
        raise SojournError(f"weights must be {num_clients} numbers that are not all zero, one per client.")
    return np.asarray(w / w.sum())


def _noise(covariance: Any, num_clients: int, d: int) -> np.ndarray:
    given = np.asarray(covariance, float)
    if given.ndim == 0:
        given = given * np.eye(d)
    if given.shape not in ((d, d), (num_clients, d, d)):
        raise SojournError(
            f"noise_covariance has shape {given.shape}; expected ({d}, {d}) or ({num_clients}, {d}, {d})."
        )
    if np.linalg.eigvalsh(given).min() < -_ZERO * np.abs(given).max():
        raise SojournError("noise_covariance has a negative eigenvalue; give positive semi-definite matrices.")
    return np.broadcast_to(given, (num_clients, d, d))


def _spectra(hessians: Any, optima: Any) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (M, d), exactly zero where they count as zero, and eigenvectors in columns (M, d, d)."""
    if np.ndim(optima) != 2 or np.shape(hessians) != (*np.shape(optima), np.shape(optima)[-1]):
        shapes = f"{np.shape(hessians)} and {np.shape(optima)}"
        raise SojournError(f"hessians and optima have shapes {shapes}; expected (clients, d, d) and (clients, d).")
    if not np.allclose(hessians, np.swapaxes(hessians, 1, 2), rtol=1e-10, atol=1e-10 * np.abs(hessians).max()):
        raise SojournError("hessians are not symmetric; give (A + A^T) / 2.")
    values, vectors = np.linalg.eigh(hessians)
    cutoff = _ZERO * np.abs(values).max(axis=1, keepdims=True)
    if (values < -cutoff).any():
        raise SojournError(
            f"hessians have the negative eigenvalue {values.min():.3g}; give positive semi-definite ones."
        )
    return np.where(values <= cutoff, 0.0, values), vectors


def _gains(values: np.ndarray, step_size: Any, num_local_steps: Any) -> np.ndarray:
    """The eigenvalues of the C_m."""
    if step_size * values.max() >= 1:
        raise SojournError(
            f"The fixed point needs step_size * H < 1; step_size = {step_size:g} and H = {values.max():g} were given."
        )
    return np.asarray(lost(step_size * values, num_local_steps))


def _shared_range(vectors: np.ndarray, curved: np.ndarray) -> np.ndarray:
    """A basis (d, r) of the sum of the ranges; what is left out is flat for every client."""
    projection = ((vectors * curved[:, None, :]) @ vectors.swapaxes(1, 2)).sum(axis=0)
    values, basis = np.linalg.eigh(projection)
    return np.asarray(basis[:, values > _ZERO * len(vectors)])


def _balance(
    gains: np.ndarray, vectors: np.ndarray, curved: np.ndarray, optima: np.ndarray, x0: Any, weights: Any
) -> np.ndarray:
    """The solution of mean C_m (x - x_m) = 0 nearest to x0, C_m having eigenvalues gains.

    Solved on the sum of the ranges, not by a pseudo-inverse, which would take a small curvature for none.
    """
    start, w = _start(x0, optima.shape[1]), _shares(weights, len(optima))
    gains = gains / (gains.max() or 1.0)  # only ratios count; tiny steps must not underflow
    basis = _shared_range(vectors, curved & (w > 0)[:, None])
    inside = basis.T @ vectors  # (M, r, d)
    weighed = w[:, None, None] * inside * gains[:, None, :]
    matrix = (weighed @ inside.swapaxes(1, 2)).sum(axis=0)
    pull = np.einsum("mrk,mik,mi->r", weighed, vectors, optima - start)
    return np.asarray(start + basis @ np.linalg.solve(matrix, pull))


def _geometric(x: np.ndarray, steps: Any) -> np.ndarray:
    """Sum over k < K of ((1 - x_i)(1 - x_j))^k for all pairs of eigenvalues: (M, d, d)."""
    taken = x[:, :, None] + x[:, None, :] - x[:, :, None] * x[:, None, :]
    return np.where(taken == 0, steps, lost(taken, steps) / np.where(taken == 0, 1.0, taken))
