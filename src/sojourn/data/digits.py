"""The 8 x 8 handwritten digits that come with scikit-learn: 1797 samples, ten classes, no download."""

from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.dataset import Dataset


def load_digits(
    *,
    test_share: Annotated[float, Field(gt=0, lt=1, description="share of every class kept for the test set")] = 0.2,
    images: Annotated[bool, Field(description="samples of shape (8, 8, 1), as convolutions take them")] = False,
    seed: Annotated[int, Field(ge=0, lt=2**32, description="of the split")] = 0,
) -> Dataset:
    """Pixels scaled to [0, 1]; the split takes the same share of every class and depends on the seed alone."""
    # imported here because it is slow and only this data set needs it
    from sklearn.datasets import load_digits as bundled

    if not 0 < test_share < 1:
        raise SojournError(f"test_share = {test_share} must lie between 0 and 1; try 0.2.")
    pixels, labels = bundled(return_X_y=True)
    test = stratified(labels, test_share, np.random.default_rng(seed))
    x = pixels / 16.0  # the grey values are 0 .. 16
    x = x.reshape(-1, 8, 8, 1) if images else x
    return Dataset("digits", x[~test], labels[~test], x[test], labels[test], num_classes=10)


def stratified(labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A mask that holds round(share * size) random members of every class."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        mask[members[: round(share * len(members))]] = True
    return mask
