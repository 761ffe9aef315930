"""Quadratic federations on which a claim of the thesis can be checked to the last digit.

Clients are F_m(x) = 1/2 (x - x_m)^T A_m (x - x_m), methods start at zero. Symbols: H -> smoothness,
tau -> hessian_heterogeneity, B -> radius (the distance from the start to x_star), R -> rounds, M -> num_clients.
Where a printed constant or construction does not hold, the builder's docstring says what was changed.
"""

import dataclasses
import math

import numpy as np

from sojourn.core.errors import SojournError
from sojourn.core.facts import Facts
from sojourn.problems.quadratic_facts import mean_minimiser, quadratic_facts


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """Quadratic clients, the minimiser of their mean, and a proven floor on the error where there is one."""

    hessians: np.ndarray  # (M, d, d)
    optima: np.ndarray  # (M, d)
    x_star: np.ndarray  # (d,)
    bound: float | None = None  # F(x_R) - F* is at least this for every method the theorem speaks of

    def suboptimality(self, x: np.ndarray) -> float:
        """F(x) - F*, exact because F is a quadratic minimised at x_star."""
        gap = np.asarray(x) - self.x_star
        return float(gap @ self.hessians.mean(axis=0) @ gap / 2)

    def facts(self) -> Facts:
        return quadratic_facts(self.hessians, self.optima)


def two_coordinates(smoothness: float, x_star: np.ndarray) -> Instance:
    """Equations 2.7 and 3.8: client i curves along coordinate i only, and both share the optimum x_star.

    Local GD from zero: x_R = x_star (1 - (1 - beta/2 (1 - (1 - eta H)^K))^R), so an outer step of 2 solves it.
    """
    _positive(smoothness=smoothness)
    x_star = _vector(x_star, 2)
    return _shared_optimum(smoothness * np.stack([np.diag([1.0, 0.0]), np.diag([0.0, 1.0])]), x_star)


def three_coordinates(smoothness: float, hessian_heterogeneity: float, x_star: np.ndarray) -> Instance:
    """Equation 3.10: clients differ by tau along coordinates 1 and 2 and agree on curvature H along coordinate 3.

    Local GD from zero leaves the errors x_star[0:2] a^R and x_star[2] b^R with a = 1 - beta/2 (1 - (1 - eta tau)^K)
    and b = 1 - beta (1 - (1 - eta H)^K), hence F - F* = tau/4 (x1^2 + x2^2) a^(2R) + H/2 x3^2 b^(2R).
    """
    _tau_at_most_h(hessian_heterogeneity, smoothness)
    x_star = _vector(x_star, 3)
    tau = hessian_heterogeneity
    return _shared_optimum(np.stack([np.diag([tau, 0, smoothness]), np.diag([0, tau, smoothness])]), x_star)


def theorem1(num_clients: int, rounds: int, smoothness: float, radius: float) -> Instance:
    """Theorem 1, first term: no step sizes and no number of local steps make local GD faster than H B^2 / R.

    Clients 2, 4, ... curve along the first axis, clients 1, 3, ... along v = (alpha, sqrt(1 - alpha^2)), with alpha
    such that the mean Hessian has condition number 12 R. As both have rank one, a round of local GD is one step of GD
    on F. The thesis concludes with H B^2 / (8 R) (lemma 1), which does not hold: its last step replaces H / kappa by
    H / R, losing a factor 12. What the argument gives is bound = lam H B^2 / (96 R), lam = 12 R / (12 R + 1) being
    the largest eigenvalue of the mean of the rank-one matrices.
    """
    _positive(smoothness=smoothness, radius=radius)
    _at_least(2, num_clients=num_clients)
    _at_least(1, rounds=rounds)
    hessians = smoothness * _rank_one_pair(num_clients, rounds)
    x_star = _between_eigenvectors(hessians.mean(axis=0), radius)
    return _shared_optimum(hessians, x_star, bound=smoothness * radius**2 / (8 * (12 * rounds + 1)))


def theorem3(num_clients: int, rounds: int, smoothness: float, hessian_heterogeneity: float, radius: float) -> Instance:
    """Theorem 3, first term (lemma 10): the rank-one pair of theorem 1 scaled by tau, and a shared third axis with H.

    bound = lam tau B^2 / (96 R), lam = 12 R / (12 R + 1), for every step size and number of local steps. tau is the
    scale of the pair; the actual largest Hessian difference is smaller, tau sqrt(1 - alpha^2), for an even number of
    clients tau sqrt(48 R) / (12 R + 1). x_star has no component along the third axis, where any radius would do.
    """
    _positive(radius=radius)
    _tau_at_most_h(hessian_heterogeneity, smoothness)
    _at_least(2, num_clients=num_clients)
    _at_least(1, rounds=rounds)
    hessians = np.zeros((num_clients, 3, 3))
    hessians[:, :2, :2] = hessian_heterogeneity * _rank_one_pair(num_clients, rounds)
    hessians[:, 2, 2] = smoothness
    x_star = np.append(_between_eigenvectors(hessians[:, :2, :2].mean(axis=0), radius), 0.0)
    return _shared_optimum(hessians, x_star, bound=hessian_heterogeneity * radius**2 / (8 * (12 * rounds + 1)))


def theorem2(
    rounds: int, smoothness: float, radius: float = 1.0, *, dimension: int | None = None, num_clients: int = 2
) -> Instance:
    """Theorem 2 (equations B.1, B.2): a chain of coordinates of which a round reveals at most one.

    With q = 1 - 1/R and x_star proportional to (q, q^2, ...): clients 2, 4, ... hold the links (1 + q^2)(x_star_1 -
    x_1)^2 and (q x_2i - x_2i+1)^2, clients 1, 3, ... the links (q x_2i-1 - x_2i)^2. x_star minimises every client.
    After R rounds from zero a zero-respecting method has x_i = 0 for i > R, and then F - F* >= bound, which is the
    strong convexity (H' / 2)(1 - q)^2 of F times half the squared norm of the tail of x_star.

    Differences to the text: links are scaled by H' = H / (1 + q^2), as otherwise clients are (1 + q^2) H-smooth; the
    mean has the factor 1/2 that B.3 leaves out; its Hessian is not Toeplitz (corner entries 1 + 2 q^2 and 1) but still
    at least (1 - q)^2; the start is zero and x_star is scaled to the radius, where the proof shifts the start.
    """
    _positive(smoothness=smoothness, radius=radius)
    _at_least(2, rounds=rounds, num_clients=num_clients)
    d = 5 * rounds if dimension is None else dimension
    _at_least(rounds + 1, dimension=d)
    _even(num_clients)
    q = 1 - 1 / rounds
    scale = smoothness / (1 + q**2)
    pair = scale * np.stack([_chain(d, q, first=0), _chain(d, q, first=1)])
    pair[1, 0, 0] = scale * (1 + q**2)
    direction = q ** np.arange(1, d + 1)
    x_star = radius * direction / np.linalg.norm(direction)
    bound = scale / 4 * (1 - q) ** 2 * float(np.sum(x_star[rounds:] ** 2))
    return _shared_optimum(np.tile(pair, (num_clients // 2, 1, 1)), x_star, bound=bound)


def proposition1(num_clients: int, offset: float = 1.0, *, regulariser: float = 0.0) -> Instance:
    """Proposition 1: clients with optima of norm b = offset whose mean is minimised at distance sqrt(M) b / 3.

    Clients 2i-1 and 2i act on the coordinates (x, y) = (x_2i-1, x_2i) by 2 (x + b)^2 + (x + y + b)^2 and
    (x - b)^2 + (x + y - b)^2, whose mean is minimised at (-b/3, b/3). The thesis adds regulariser/2 |others|^2 with
    regulariser = 1 to every client; for M > 2 this pulls x_star towards zero and the claim fails, so it is 0 here and
    the clients are convex with affine sets of optima. Remark 9 (phi_* of order sqrt(M) b) then does not apply, since
    the sets are near: phi_* = (157/81)^(1/4) b for every M. A small weight such as 1e-3 / M gives unique optima, that
    remark, and almost the same x_star.
    """
    _positive(offset=offset)
    _at_least(2, num_clients=num_clients)
    _even(num_clients)
    if not (math.isfinite(regulariser) and regulariser >= 0):
        raise SojournError(f"regulariser = {regulariser} must be finite and not negative; the proposition needs 0.")
    hessians = np.tile(regulariser * np.eye(num_clients), (num_clients, 1, 1))
    optima = np.zeros((num_clients, num_clients))
    for m in range(num_clients):
        pair = slice(m - m % 2, m - m % 2 + 2)
        hessians[m, pair, pair] = [[4.0, 2.0], [2.0, 2.0]] if m % 2 else [[6.0, 2.0], [2.0, 2.0]]
        optima[m, pair.start] = offset if m % 2 else -offset
    equal = np.full(num_clients, 1 / num_clients)
    return Instance(hessians, optima, mean_minimiser(hessians, optima, equal, np.zeros(num_clients)))


def _rank_one_pair(num_clients: int, rounds: int) -> np.ndarray:
    """A_2 = v v^T on clients 1, 3, ... and A_1 = e_1 e_1^T on the others; the mean has eigenvalue ratio 12 R.

    With a the share of A_2 the eigenvalues add to 1 and multiply to (a - a^2)(1 - alpha^2), which gives alpha.
    """
    odd = np.arange(num_clients) % 2 == 0  # clients are numbered from 1 in the text
    share = odd.mean()
    sine2 = 12 * rounds / (12 * rounds + 1) ** 2 / (share - share**2)
    v = np.array([np.sqrt(1 - sine2), np.sqrt(sine2)])
    return np.where(odd[:, None, None], np.outer(v, v), np.diag([1.0, 0.0]))


def _between_eigenvectors(matrix: np.ndarray, radius: float) -> np.ndarray:
    """-(B / sqrt 2)(v_1 + v_2) for the eigenvectors of a 2 x 2 matrix (lemma 1)."""
    return np.asarray(-radius / np.sqrt(2) * np.linalg.eigh(matrix)[1].sum(axis=1))


def _chain(d: int, q: float, first: int) -> np.ndarray:
    """The Hessian of 1/2 sum (q x_i - x_i+1)^2 over i = first, first + 2, ... (from zero)."""
    links = np.arange(first, d - 1, 2)
    rows = np.zeros((len(links), d))
    rows[np.arange(len(links)), links] = q
    rows[np.arange(len(links)), links + 1] = -1.0
    return rows.T @ rows


def _shared_optimum(hessians: np.ndarray, x_star: np.ndarray, bound: float | None = None) -> Instance:
    return Instance(hessians, np.tile(x_star, (len(hessians), 1)), x_star, bound)


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise SojournError(f"{name} = {value} must be positive and finite.")


def _at_least(low: int, **counts: int) -> None:
    for name, value in counts.items():
        if value < low:
            raise SojournError(f"{name} = {value} must be at least {low} for this instance.")


def _even(num_clients: int) -> None:
    if num_clients % 2:
        raise SojournError(f"num_clients = {num_clients} must be even for this instance; use {num_clients + 1}.")


def _tau_at_most_h(tau: float, smoothness: float) -> None:
    _positive(smoothness=smoothness, hessian_heterogeneity=tau)
    if tau > smoothness:
        raise SojournError(f"hessian_heterogeneity = {tau} must be at most smoothness = {smoothness} in this instance.")


def _vector(x: np.ndarray, d: int) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.shape != (d,) or not np.isfinite(x).all():
        raise SojournError(f"x_star has shape {x.shape}; expected {d} finite numbers.")
    return x
