"""Objectives with oracles and, where they are known, facts. Functions return a Federation; configs name PROBLEMS."""

from sojourn.problems.catalogue import (
    PROBLEMS,
    Problem,
    cap_regression,
    cosines,
    generated_regression,
    proposition1,
    random_quadratic,
    theorem1,
    theorem2,
    theorem3,
    theorem13,
    theorem15,
    theorem22,
    theorem23,
    three_coordinates,
    two_coordinates,
)
from sojourn.problems.finite import federation
from sojourn.problems.gaussian_regression import gaussian_regression
from sojourn.problems.language import language_model
from sojourn.problems.population import population
from sojourn.problems.quadratic import quadratic
from sojourn.problems.supervised import classification, least_squares, logistic_regression

__all__ = [
    "PROBLEMS", "Problem", "cap_regression", "classification", "cosines", "federation", "gaussian_regression",
    "generated_regression", "language_model", "least_squares", "logistic_regression", "population", "proposition1",
    "quadratic", "random_quadratic", "theorem1", "theorem2", "theorem3", "theorem13", "theorem15", "theorem22",
    "theorem23", "three_coordinates", "two_coordinates",
]  # fmt: skip
