"""Fewer samples than a data set has, with the classes in the proportions of the whole."""

import numpy as np

from sojourn.core.errors import SojournError


def subset(labels: np.ndarray, number: int | None, num_classes: int, option: str, seed: int) -> np.ndarray | slice:
    """Sorted indices of `number` samples, drawn by the seed; all of them where number is None.

    A class gets its share of the places, the last ones by the largest remainders, and at least one.
    """
    if number is None or number == len(labels):
        return slice(None)
    counts = np.bincount(labels, minlength=num_classes)
    if number > len(labels):
        raise SojournError(f"{option} = {number} is more than the {len(labels)} samples there are; give fewer.")
    if number < np.count_nonzero(counts):
        raise SojournError(f"{option} = {number} leaves a class without samples; give at least {num_classes}.")
    places = _apportion(counts, number)
    rng = np.random.default_rng([seed, len(labels)])  # training and test samples are drawn apart
    drawn = [rng.permutation(np.flatnonzero(labels == k))[: places[k]] for k in range(num_classes)]
    return np.sort(np.concatenate(drawn))


def _apportion(counts: np.ndarray, number: int) -> np.ndarray:
    quota = counts * (number / counts.sum())
    places = np.where(counts > 0, np.maximum(1, np.floor(quota)), 0).astype(np.int64)
    while places.sum() != number:  # few steps: each class is off by less than one
        up = places.sum() < number
        movable = places < counts if up else places > 1
        gap = np.where(movable, quota - places if up else places - quota, -np.inf)
        places[int(np.argmax(gap))] += 1 if up else -1
    return places
