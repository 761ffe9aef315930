"""A labelled data set in memory, checked once when it is built so that nothing later has to."""

import dataclasses
from typing import Any

import numpy as np

from sojourn.core.errors import SojournError


@dataclasses.dataclass(frozen=True)
class Pixels:
    """How stored bytes become a model's numbers: (byte / 255 - mean) / std, by channel, the last axis."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, x: Any, dtype: Any = np.float32) -> Any:
        """NumPy's and JAX's arrays alike."""
        std = np.array(self.std)
        return x.astype(dtype) * (1 / (255 * std)).astype(dtype) - (np.array(self.mean) / std).astype(dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Features and class labels, split into training and test samples.

    Features have any shape per sample (images: height, width, channels) and are stored as float32, or with `pixels` as
    the bytes they came in, a quarter of the memory; `read` makes numbers of them. Labels are int32 in
    0 .. num_classes - 1.
    """

    name: str
    x_train: np.ndarray  # (n, ...)
    y_train: np.ndarray  # (n,)
    x_test: np.ndarray  # (n_test, ...)
    y_test: np.ndarray  # (n_test,)
    num_classes: int
    pixels: Pixels | None = None
    complete: bool = True  # whether every class must occur; not in the part that one client holds

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise SojournError(f"data set {self.name!r}: num_classes = {self.num_classes} must be at least 1.")
        for part in ("train", "test"):
            given = getattr(self, f"x_{part}")
            x = _features(self.name, part, given) if self.pixels is None else _bytes(self.name, part, given)
            y = _labels(self.name, part, getattr(self, f"y_{part}"), self.num_classes)
            _check_lengths(self.name, part, x, y)
            object.__setattr__(self, f"x_{part}", x)  # the class is frozen; this is its constructor
            object.__setattr__(self, f"y_{part}", y)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            shapes = f"{self.x_train.shape[1:]} and {self.x_test.shape[1:]}"
            raise SojournError(
                f"data set {self.name!r}: training and test samples have shapes {shapes}; make them equal."
            )
        if len(self.y_train) == 0:
            raise SojournError(f"data set {self.name!r} has no training samples; at least one is needed.")
        absent = np.setdiff1d(np.arange(self.num_classes), self.y_train)
        if absent.size and self.complete:
            raise SojournError(
                f"data set {self.name!r}: class {absent[0]} is missing from the training samples; take more of "
                "them, or renumber the labels."
            )
        if self.pixels is not None:
            channels = self.x_train.shape[-1]
            if not {len(self.pixels.mean), len(self.pixels.std)} <= {1, channels} or min(self.pixels.std) <= 0:
                raise SojournError(
                    f"data set {self.name!r}: {self.pixels} does not fit {channels} channels; "
                    "give one mean and one positive std for each, or for all."
                )

    def read(self, x: np.ndarray) -> np.ndarray:
        """Stored samples as the float32 numbers that a model sees."""
        return x if self.pixels is None else self.pixels(x)


def _features(name: str, part: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf and is refused below
        x = np.asarray(x, dtype=np.float32)
    if x.ndim < 2:
        raise SojournError(f"data set {name!r}: x_{part} has shape {x.shape}; expected (samples, features ...).")
    bad = int(np.size(x) - np.count_nonzero(np.isfinite(x)))
    if bad:
        raise SojournError(
            f"data set {name!r}: x_{part} holds {bad} values that are not finite; remove or fill them in."
        )
    return x


def _bytes(name: str, part: str, x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim < 2 or x.dtype != np.uint8:
        raise SojournError(
            f"data set {name!r}: x_{part} has shape {x.shape} and type {x.dtype}; with pixels, expected bytes (uint8) "
            "of shape (samples, ..., channels)."
        )
    return x


def _labels(name: str, part: str, y: np.ndarray, num_classes: int) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise SojournError(
            f"data set {name!r}: y_{part} has shape {y.shape} and type {y.dtype}; expected one integer per sample."
        )
    outside = y[(y < 0) | (y >= num_classes)]
    if outside.size:
        raise SojournError(
            f"data set {name!r}: y_{part} holds the label {outside[0]}; expected 0 to {num_classes - 1}, "
            "so renumber the labels or raise num_classes."
        )
    return y.astype(np.int32)


def _check_lengths(name: str, part: str, x: np.ndarray, y: np.ndarray) -> None:
    if len(x) != len(y):
        raise SojournError(
            f"data set {name!r}: x_{part} has {len(x)} samples but y_{part} has {len(y)} labels; give one label each."
        )
