"""The constants of theory, exactly, for quadratic clients F_m(x) = 1/2 (x - x_m)^T A_m (x - x_m).

Thesis, assumptions 2 to 11. Paper to code: A_m -> hessians, x_m* -> optima, H -> smoothness, mu -> strong_convexity,
tau -> hessian_heterogeneity, zeta_* -> optima_heterogeneity, phi_* -> optima_distance, sigma -> noise.

A Hessian may be singular. A client then has an affine set of optima S_m = x_m + ker A_m, and distances are taken
between sets, as assumptions 9 and 10 ask. With E_m the projection onto range A_m (the complement of the kernel):
dist(x, S_m) = |E_m (x - x_m)|, and dist(S_m, S_n) = |E (x_m - x_n)| with E onto the intersection of the two ranges.
"""

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts

_ZERO = 1e-12  # an eigenvalue below this share of the largest one of its matrix counts as zero


def quadratic_facts(
    hessians: np.ndarray,
    optima: np.ndarray,
    *,
    x0: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    noise: float = 0.0,
    noise_covariance: np.ndarray | None = None,
) -> Facts:
    """Every fact of the federation with Hessians (M, d, d), optima (M, d) and mean objective sum_m weights_m F_m.

    weights: positive, scaled to sum 1; equal when left out. zeta_* and phi_* are means under these weights.
    noise: sigma_2 of isotropic Gaussian gradient noise, that is of covariance (noise^2 / d) I; or instead
    noise_covariance: its covariance, (d, d) or one per client (M, d, d), of which the noisiest client counts.
    """
    hessians, optima = _checked(hessians, optima)
    num_clients, d = optima.shape
    w = _normalised(weights, num_clients)
    values, kernels = _spectra("hessians", hessians)
    x_star = mean_minimiser(hessians, optima, w, np.zeros(d) if x0 is None else _point(x0, d))
    gaps = x_star - optima
    smoothness, tau = float(values.max()), hessian_gap(hessians)
    sigma2, sigma4 = _gaussian_moments(_covariances(noise, noise_covariance, num_clients, d))
    return Facts(
        smoothness=smoothness,
        strong_convexity=float(values.min()),
        third_order_smoothness=0.0,
        hessian_heterogeneity=tau,
        optima_heterogeneity=float((w @ _set_distances(kernels, optima) ** 4 @ w) ** 0.25),
        optima_distance=float((w @ _distances_to_sets(kernels, gaps) ** 4) ** 0.25),
        gradient_heterogeneity=_gradient_gap(hessians[0], optima, smoothness) if tau <= _ZERO * smoothness else None,
        noise=sigma2,
        noise4=sigma4,
        x_star=x_star,
        f_star=float(w @ np.einsum("mi,mij,mj->m", gaps, hessians, gaps) / 2),
        optima=optima,
        hessians=hessians,
    )


def hessian_gap(hessians: np.ndarray) -> float:
    """tau: the largest spectral norm of A_m - A_n over all pairs (assumption 11)."""
    rows = (hessians[m] - hessians[m + 1 :] for m in range(len(hessians) - 1))  # row by row, to bound memory
    return max((float(np.abs(np.linalg.eigvalsh(row)).max()) for row in rows), default=0.0)


def _gradient_gap(hessian: np.ndarray, optima: np.ndarray, smoothness: float) -> float:
    """zeta (assumption 12), finite only where all Hessians are equal (proposition 2): max |A (x_m - x_n)| / H."""
    pulled = optima @ hessian
    rows = (float(np.linalg.norm(pulled[m] - pulled[m:], axis=1).max()) for m in range(len(pulled)))
    return max(rows) / smoothness if smoothness > 0 else 0.0


def optima_distances(hessians: np.ndarray, optima: np.ndarray) -> np.ndarray:
    """zeta_{*,mn}: the (M, M) distances between the clients' sets of optima (assumption 9)."""
    hessians, optima = _checked(hessians, optima)
    return _set_distances(_spectra("hessians", hessians)[1], optima)


def _spectra(name: str, matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (M, d), those that count as zero set to 0.0, and the projections (M, d, d) onto the kernels."""
    values, vectors = np.linalg.eigh(matrices)
    cutoff = _ZERO * np.abs(values).max(axis=1, keepdims=True)
    if (values < -cutoff).any():
        m, _ = np.argwhere(values < -cutoff)[0]
        raise SojournError(
            f"{name}[{m}] has the negative eigenvalue {values[m].min():.3g}; give positive semi-definite matrices."
        )
    zero = values <= cutoff
    basis = vectors * zero[:, None, :]
    return np.where(zero, 0.0, values), basis @ basis.transpose(0, 2, 1)


def mean_minimiser(hessians: np.ndarray, optima: np.ndarray, weights: np.ndarray, x0: np.ndarray) -> np.ndarray:
    """The minimiser of sum_m weights_m F_m nearest to x0: x0 + A^+ b, A = mean A_m and b = mean A_m (x_m - x0)."""
    mean = np.einsum("m,mij->ij", weights, hessians)
    pull = np.einsum("m,mij,mj->i", weights, hessians, optima - x0)
    return np.asarray(x0 + np.linalg.pinv(mean, rcond=_ZERO, hermitian=True) @ pull)


def _distances_to_sets(kernels: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """|E_m gap_m| for every client, E_m = I - kernel projection."""
    return np.asarray(np.linalg.norm(gaps - np.einsum("mij,mj->mi", kernels, gaps), axis=1))


def _set_distances(kernels: np.ndarray, optima: np.ndarray) -> np.ndarray:
    """Distances of all pairs of affine sets; plain distances where both Hessians are regular."""
    gaps = optima[:, None] - optima[None, :]
    distances = np.linalg.norm(gaps, axis=2)
    singular = kernels.any(axis=(1, 2))
    for m in np.flatnonzero(singular):
        others = np.flatnonzero(~singular | (np.arange(len(optima)) > m))  # each pair once
        values, vectors = np.linalg.eigh(kernels[m])  # 0 on the range, 1 on the kernel
        few = np.count_nonzero(values > 0.5) <= len(values) / 2
        basis = vectors[:, (values > 0.5) == few]  # of the smaller one of the two spaces
        shared = (_outside_kernels if few else _inside_ranges)(basis, kernels[others], gaps[m, others])
        distances[m, others] = distances[others, m] = np.linalg.norm(shared, axis=1)
    return np.asarray(distances)


def _outside_kernels(basis: np.ndarray, kernels: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """What is left of gap_n outside ker A_m + ker A_n, for every n; basis (d, k) spans ker A_m.

    First the part along ker A_n goes, then that along the rest B of ker A_m. B^T B has the eigenvalues sin^2(angle)
    for the angles between the kernels: 1e-12 tells angles above 1e-6 from zero, and is above rounding.
    """
    rest = basis - kernels @ basis
    gaps = gaps - np.einsum("nij,nj->ni", kernels, gaps)
    values, vectors = np.linalg.eigh(rest.transpose(0, 2, 1) @ rest)
    inverse = np.where(values > _ZERO, 1 / np.maximum(values, _ZERO), 0.0)
    directions = rest @ vectors  # orthogonal, of squared length values
    return np.asarray(gaps - np.einsum("nik,nk,njk,nj->ni", directions, inverse, directions, gaps, optimize=True))


def _inside_ranges(basis: np.ndarray, kernels: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The same vector as components along range A_m intersected with range A_n; basis (d, r) spans range A_m.

    A direction of range A_m lies in range A_n if the kernel of A_n takes nothing of it, sin^2(angle) < 1e-12.
    """
    values, vectors = np.linalg.eigh(basis.T @ kernels @ basis)
    return np.asarray(np.einsum("nik,ni->nk", vectors, gaps @ basis) * (values < _ZERO))


def _gaussian_moments(covariances: np.ndarray) -> tuple[float, float]:
    """sigma_2 and sigma_4 of the noisiest client: E|z|^2 = tr S and E|z|^4 = (tr S)^2 + 2 tr S^2 for z ~ N(0, S)."""
    second = np.trace(covariances, axis1=1, axis2=2)
    fourth = second**2 + 2 * np.sum(covariances**2, axis=(1, 2))
    return float(second.max() ** 0.5), float(fourth.max() ** 0.25)


def _covariances(noise: float, covariance: np.ndarray | None, num_clients: int, d: int) -> np.ndarray:
    if not (np.isfinite(noise) and noise >= 0):
        raise SojournError(f"noise = {noise} must be finite and not negative; it is a root mean squared norm.")
    if covariance is None:
        return np.asarray(noise**2 / d * np.eye(d))[None]
    if noise:
        raise SojournError(f"noise = {noise} and noise_covariance are both given; give one of them.")
    covariance = np.asarray(covariance, dtype=np.float64)
    if covariance.shape not in ((d, d), (num_clients, d, d)):
        raise SojournError(
            f"noise_covariance has shape {covariance.shape}; expected ({d}, {d}) or ({num_clients}, {d}, {d})."
        )
    stacked = covariance.reshape(-1, d, d)
    _spectra("noise_covariance", _symmetric("noise_covariance", stacked))
    return stacked


def _checked(hessians: np.ndarray, optima: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hessians, optima = np.asarray(hessians, dtype=np.float64), np.asarray(optima, dtype=np.float64)
    if optima.ndim != 2 or optima.size == 0 or hessians.shape != (*optima.shape, optima.shape[1]):
        shapes = f"{hessians.shape} and {optima.shape}"
        raise SojournError(f"hessians and optima have shapes {shapes}; expected (clients, d, d) and (clients, d).")
    if not np.isfinite(optima).all():
        raise SojournError("optima hold values that are not finite; give every client a finite optimum.")
    return _symmetric("hessians", hessians), optima


def _symmetric(name: str, matrices: np.ndarray) -> np.ndarray:
    if not np.isfinite(matrices).all():
        raise SojournError(f"{name} hold values that are not finite; give finite matrices.")
    flipped = matrices.transpose(0, 2, 1)
    skew = np.abs(matrices - flipped).max(axis=(1, 2)) > 1e-10 * np.abs(matrices).max(axis=(1, 2))
    if skew.any():
        raise SojournError(f"{name}[{int(skew.argmax())}] is not symmetric; give (A + A^T) / 2.")
    return np.asarray((matrices + flipped) / 2)


def _normalised(weights: np.ndarray | None, num_clients: int) -> np.ndarray:
    w = np.ones(num_clients) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (num_clients,) or not np.isfinite(w).all() or not (w > 0).all():
        raise SojournError(f"weights = {weights} must be {num_clients} positive numbers, one per client.")
    return np.asarray(w / w.sum())


def _point(x0: np.ndarray, d: int) -> np.ndarray:
    x0 = np.asarray(x0, dtype=np.float64)
    if x0.shape != (d,) or not np.isfinite(x0).all():
        raise SojournError(f"x0 has shape {x0.shape}; expected {d} finite numbers.")
    return x0
