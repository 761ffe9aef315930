"""Objectives with oracles and, where they are known, facts. Functions return a Federation; configs name PROBLEMS."""

from sojourn.problems.catalogue import PROBLEMS, Problem
from sojourn.problems.finite import federation
from sojourn.problems.gaussian_regression import gaussian_regression
from sojourn.problems.population import population
from sojourn.problems.quadratic import quadratic
from sojourn.problems.supervised import classification, least_squares, logistic_regression

__all__ = [
    "PROBLEMS", "Problem", "classification", "federation", "gaussian_regression", "least_squares",
    "logistic_regression", "population", "quadratic",
]  # fmt: skip
