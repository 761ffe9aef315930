"""The problems that a config can name. Options, their ranges and their meaning stand in the signatures."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.plug import called
from sojourn.core.signature import options_checked
from sojourn.problems import instances, nonconvex, nonconvex_chains
from sojourn.problems.caps import cap_regression_parameters
from sojourn.problems.gaussian_regression import gaussian_regression
from sojourn.problems.instances import Instance
from sojourn.problems.language import language_model
from sojourn.problems.population import population
from sojourn.problems.quadratic import quadratic
from sojourn.problems.supervised import BatchSize, classification, least_squares, logistic_regression

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Noise = Annotated[float, Field(ge=0, allow_inf_nan=False, description="root mean squared norm of the gradient noise")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="of the problem's own random numbers")]


@options_checked
def random_quadratic(
    *,
    num_clients: Annotated[int, Field(ge=1, le=10_000)] = 10,
    dimension: Annotated[int, Field(ge=1, le=2_000)] = 10,
    smoothness: Annotated[float, Field(gt=0, allow_inf_nan=False, description="H, the largest eigenvalue")] = 10.0,
    strong_convexity: Annotated[float, Field(ge=0, allow_inf_nan=False, description="mu, the smallest one")] = 1.0,
    rotation: Annotated[float, Field(ge=0, le=1, description="0: equal Hessians; 1: each turned at random")] = 1.0,
    optima_spread: Annotated[NotNegative, Field(description="standard deviation of the optima's coordinates")] = 1.0,
    noise: Noise = 0.0,
    seed: Seed = 0,
) -> Federation:
    """Random quadratics with given extreme eigenvalues; dials for Hessian and optimum heterogeneity."""
    _check_extent(num_clients, dimension)
    if strong_convexity > smoothness:
        raise SojournError(f"problem.strong_convexity = {strong_convexity:g} exceeds smoothness = {smoothness:g}.")
    rng = np.random.default_rng(seed)
    spectrum = np.geomspace(max(strong_convexity, 1e-12 * smoothness), smoothness, dimension)
    spectrum[0] = strong_convexity if dimension > 1 else smoothness
    turns = rng.normal(size=(num_clients, dimension, dimension))
    frames, _ = np.linalg.qr((1 - rotation) * np.eye(dimension) + rotation * turns)
    hessians = (frames * spectrum) @ np.swapaxes(frames, 1, 2)
    optima = 1.0 + optima_spread * rng.normal(size=(num_clients, dimension))
    return quadratic((hessians + np.swapaxes(hessians, 1, 2)) / 2, optima, noise)


@options_checked
def cap_regression(
    *,
    num_clients: Annotated[int, Field(ge=1, le=10_000)] = 20,
    dimension: Annotated[int, Field(ge=2, le=2_000)] = 5,
    optima_spread: Annotated[float, Field(ge=0, le=2, description="zeta_*: concept shift, a cap's chord")] = 1.0,
    mean_spread: Annotated[float, Field(ge=0, le=10, description="label of the covariate shift, a cap's chord")] = 2.0,
    noise_std: Annotated[NotNegative, Field(description="of the targets")] = 0.1,
    batch_size: Annotated[int, Field(ge=1, description="fresh samples per gradient")] = 1,
    seed: Seed = 0,
) -> Federation:
    """Gaussian linear regression with spherical-cap control of concept and covariate shift (thesis, figure 5.1)."""
    _check_extent(num_clients, dimension)
    rng = np.random.default_rng(seed)
    optima, means = cap_regression_parameters(num_clients, dimension, optima_spread, mean_spread, rng=rng)
    return gaussian_regression(optima, means, noise_std, batch_size=batch_size, name="cap-regression")


@options_checked
def own(*, function: Annotated[str, Field(description="MODULE:FUNCTION that returns a federation")]) -> Federation:
    """A federation of your own: what a function of yours returns, such as sojourn.federation(…)."""
    made = called(function)
    if not isinstance(made, Federation):
        raise SojournError(f"{function} returns a {type(made).__name__}; expected a sojourn federation.")
    return made


_LARGEST_EXTENT = 10**10


def _check_extent(num_clients: int, dimension: int) -> None:
    """The exact facts compare every pair of Hessians; refuse what would take hours or all memory."""
    if num_clients**2 * dimension**3 > _LARGEST_EXTENT:
        raise SojournError(
            f"problem.num_clients = {num_clients} with problem.dimension = {dimension} is too large for exact facts; "
            f"keep clients^2 * dimension^3 within {_LARGEST_EXTENT:g}, or take generated-regression."
        )


@options_checked
def two_coordinates(*, smoothness: Positive = 1.0, radius: Positive = 1.0, noise: Noise = 0.0) -> Federation:
    """Two clients that each see one coordinate (equation 3.8): equal optima, opposite Hessians."""
    return _instance(instances.two_coordinates(smoothness, np.full(2, radius / np.sqrt(2))), noise, "two-coordinates")


@options_checked
def three_coordinates(
    *, smoothness: Positive = 1.0, hessian_heterogeneity: Positive = 0.1, radius: Positive = 1.0, noise: Noise = 0.0
) -> Federation:
    """Two clients in three dimensions (equation 3.10): tau on the coordinates they split, H on the shared one."""
    point = np.full(3, radius / np.sqrt(3))
    instance = instances.three_coordinates(smoothness, hessian_heterogeneity, point)
    return _instance(instance, noise, "three-coordinates")


@options_checked
def theorem1(
    *, num_clients: Annotated[int, Field(ge=2, le=10_000)] = 2, rounds: Count = 10, smoothness: Positive = 1.0,
    radius: Positive = 1.0, noise: Noise = 0.0,
) -> Federation:  # fmt: skip
    """Theorem 1's lower-bound instance: no step sizes and no number of local steps beat 1/R."""
    return _instance(instances.theorem1(num_clients, rounds, smoothness, radius), noise, "theorem1")


@options_checked
def theorem2(
    *, num_clients: Annotated[int, Field(ge=2, le=100)] = 2, rounds: Annotated[int, Field(ge=2, le=200)] = 10,
    smoothness: Positive = 1.0, radius: Positive = 1.0, noise: Noise = 0.0,
) -> Federation:  # fmt: skip
    """Theorem 2's chain: a round reveals at most one coordinate, to any method."""
    instance = instances.theorem2(rounds, smoothness, radius, num_clients=num_clients)
    return _instance(instance, noise, "theorem2")


@options_checked
def theorem3(
    *, num_clients: Annotated[int, Field(ge=2, le=10_000)] = 2, rounds: Count = 10, smoothness: Positive = 1.0,
    hessian_heterogeneity: Positive = 0.1, radius: Positive = 1.0, noise: Noise = 0.0,
) -> Federation:  # fmt: skip
    """Theorem 3's instance: Theorem 1's at scale tau, beside one coordinate of curvature H."""
    instance = instances.theorem3(num_clients, rounds, smoothness, hessian_heterogeneity, radius)
    return _instance(instance, noise, "theorem3")


@options_checked
def proposition1(
    *, num_clients: Annotated[int, Field(ge=2, le=1_000)] = 4, offset: Positive = 1.0, noise: Noise = 0.0
) -> Federation:
    """Proposition 1 (corrected): client optima of norm b, a joint optimum of norm sqrt(M) b/3."""
    return _instance(instances.proposition1(num_clients, offset), noise, "proposition1")


@options_checked
def cosines(
    *,
    num_clients: Annotated[int, Field(ge=1, le=10_000)] = 10,
    dimension: Annotated[int, Field(ge=1, le=10_000)] = 20,
    hessian_heterogeneity: Annotated[NotNegative, Field(description="tau, exact; the mean objective keeps")] = 0.1,
    mean_smoothness: Annotated[Positive, Field(description="largest curvature of the mean objective")] = 1.0,
    condition: Annotated[float, Field(ge=1, allow_inf_nan=False, description="largest curvature over least")] = 10.0,
    gradient_spread: Annotated[NotNegative, Field(description="difference of clients' gradients at 0")] = 1.0,
    noise: Annotated[NotNegative, Field(description="sigma of one sample where it is largest")] = 1.0,
    batch_size: Annotated[int, Field(ge=1, le=100_000, description="samples per gradient")] = 1,
    start: Annotated[float, Field(gt=0, lt=np.pi, description="every coordinate of x0; concave beyond pi/2")] = 2.0,
) -> Federation:
    """Non-convex cosines with exact dials for tau, sigma and Delta; the mean objective does not depend on tau."""
    return nonconvex.cosines(
        num_clients, dimension, hessian_heterogeneity, mean_smoothness=mean_smoothness, condition=condition,
        gradient_spread=gradient_spread, noise=noise, batch_size=batch_size, start=start,
    )  # fmt: skip


Target = Annotated[Positive, Field(description="of the squared gradient norm, which stays above it on the way")]
Gap = Annotated[Positive, Field(description="Delta, an upper bound on F(x0) - F*")]
Pairs = Annotated[int, Field(ge=2, le=1_000, description="an even number of clients")]


@options_checked
def theorem13(
    *, num_clients: Annotated[int, Field(ge=1, le=1_000)] = 2, smoothness: Positive = 1.0, start_gap: Gap = 1.0,
    target: Target = 1e-4,
) -> Federation:  # fmt: skip
    """Theorem 13's chain, the same on every client: one coordinate per round of gradients at one point."""
    return nonconvex_chains.whole_chain(num_clients, smoothness, start_gap, target)


@options_checked
def theorem15(
    *, num_clients: Pairs = 2, smoothness: Positive = 1.0, hessian_heterogeneity: Positive = 0.5,
    gradient_heterogeneity: Annotated[Positive, Field(description="zeta, an upper bound")] = 1.0, start_gap: Gap = 1.0,
    target: Target = 1e-5,
) -> Federation:  # fmt: skip
    """Theorem 15's chain, split between clients that are close in Hessians and gradients: one coordinate per round."""
    return nonconvex_chains.split_chain(
        num_clients, smoothness, hessian_heterogeneity, start_gap, target, gradient_heterogeneity=gradient_heterogeneity
    )


@options_checked
def theorem22(
    *, num_clients: Pairs = 2, smoothness: Positive = 1.0, hessian_heterogeneity: Positive = 0.5, start_gap: Gap = 1.0,
    target: Target = 1e-5,
) -> Federation:  # fmt: skip
    """Theorem 22's chain, split between clients whose Hessians differ by at most tau: one coordinate per round."""
    return nonconvex_chains.split_chain(
        num_clients, smoothness, hessian_heterogeneity, start_gap, target, name="theorem22"
    )


@options_checked
def theorem23(
    *, num_clients: Pairs = 2, smoothness: Positive = 1.0,
    gradient_heterogeneity: Annotated[Positive, Field(description="zeta, an upper bound")] = 1.0, start_gap: Gap = 1.0,
    target: Target = 1e-5,
) -> Federation:  # fmt: skip
    """Theorem 23's chain, split between clients whose gradients differ by at most H zeta: one coordinate per round."""
    return nonconvex_chains.split_chain(
        num_clients, smoothness, smoothness, start_gap, target, gradient_heterogeneity=gradient_heterogeneity,
        name="theorem23",
    )  # fmt: skip


@options_checked
def generated_regression(
    *,
    num_clients: Annotated[int, Field(ge=1, le=100_000_000)] = 1_000_000,
    dimension: Annotated[int, Field(ge=1, le=10_000)] = 20,
    client_size: Annotated[int, Field(ge=1, le=100_000, description="samples of each client")] = 50,
    optima_spread: Annotated[NotNegative, Field(description="standard deviation of the optima's coordinates")] = 0.1,
    batch_size: BatchSize = 10,
    seed: Seed = 0,
) -> Federation:
    """Least squares over a population whose clients are generated when they are visited."""
    make = _RegressionClient(client_size, dimension, optima_spread)
    start = jnp.zeros(dimension, jnp.result_type(float))
    return population(
        _half_squared_error, start, make, num_clients, batch_size=batch_size, seed=seed,
        name="generated-regression",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _RegressionClient:
    size: int
    dimension: int
    optima_spread: float

    def __call__(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        optimum_key, feature_key = jax.random.split(key)
        optimum = 1 + self.optima_spread * jax.random.normal(optimum_key, (self.dimension,))
        features = jax.random.normal(feature_key, (self.size, self.dimension))
        return features, features @ optimum


def _half_squared_error(x: jax.Array, batch: Any) -> jax.Array:
    features, targets = batch
    return 0.5 * jnp.mean((targets - features @ x) ** 2)


def _instance(instance: Instance, noise: float, name: str) -> Federation:
    return quadratic(instance.hessians, instance.optima, noise, name=name)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem's builder and what it is built from besides its options."""

    build: Callable[..., Federation]
    takes_data: bool = False
    takes_model: bool = False
    takes_text: bool = False  # its data are a text

    def describe(self) -> str:
        return (self.build.__doc__ or "").split("\n")[0]


PROBLEMS: dict[str, Problem] = {
    "classification": Problem(classification, takes_data=True, takes_model=True),
    "logistic-regression": Problem(logistic_regression, takes_data=True),
    "least-squares": Problem(least_squares, takes_data=True),
    "language-model": Problem(language_model, takes_data=True, takes_model=True, takes_text=True),
    "quadratic": Problem(random_quadratic),
    "cap-regression": Problem(cap_regression),
    "two-coordinates": Problem(two_coordinates),
    "three-coordinates": Problem(three_coordinates),
    "theorem1": Problem(theorem1),
    "theorem2": Problem(theorem2),
    "theorem3": Problem(theorem3),
    "proposition1": Problem(proposition1),
    "generated-regression": Problem(generated_regression),
    "cosines": Problem(cosines),
    "theorem13": Problem(theorem13),
    "theorem15": Problem(theorem15),
    "theorem22": Problem(theorem22),
    "theorem23": Problem(theorem23),
    "own": Problem(own),
}
