"""MNIST (LeCun, Cortes and Burges) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 28 x 28 grey, ten classes."""

import struct
from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.dataset import Dataset, Pixels
from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, read_files
from sojourn.data.subsets import subset

NumTrain = Annotated[int | None, Field(ge=1, description="training samples to draw, by class; all if left out")]
NumTest = Annotated[int | None, Field(ge=1, description="test samples to draw, by class; all if left out")]
Normalise = Annotated[bool, Field(description="subtract the training set's mean and divide by its deviation")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="of the samples drawn")]

_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_source(name: str, contents: tuple[str, ...], packed: tuple[str, ...], mirrors: tuple[str, ...]) -> Source:
    """A set of four idx files: checksums of their contents and of the .gz files that mirrors carry."""
    names = [(part, part.replace("-idx", ".idx")) for part in _PARTS]  # both spellings are about
    files = tuple(File(both, sha256) for both, sha256 in zip(names, contents, strict=True))
    remotes = tuple(
        Remote(f"{part}.gz", f"sha256:{sha256}", tuple(f"{mirror}/{part}.gz" for mirror in mirrors))
        for part, sha256 in zip(_PARTS, packed, strict=True)
    )
    return Source(name, files, remotes)


MNIST = idx_source(
    "mnist",
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
)
FASHION_MNIST = idx_source(
    "fashion-mnist",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
)


def load_mnist(
    *, num_train: NumTrain = None, num_test: NumTest = None, normalise: Normalise = False, seed: Seed = 0
) -> Dataset:
    """Handwritten digits, 28 x 28: 60,000 to train, 10,000 to test; pixels in [0, 1] unless normalised."""
    return load_idx(MNIST, Pixels((0.1307,), (0.3081,)) if normalise else Pixels(), num_train, num_test, seed)


def load_fashion_mnist(
    *, num_train: NumTrain = None, num_test: NumTest = None, normalise: Normalise = False, seed: Seed = 0
) -> Dataset:
    """Pieces of clothing, 28 x 28: 60,000 to train, 10,000 to test; pixels in [0, 1] unless normalised."""
    return load_idx(FASHION_MNIST, Pixels((0.2860,), (0.3530,)) if normalise else Pixels(), num_train, num_test, seed)


def load_idx(source: Source, pixels: Pixels, num_train: int | None, num_test: int | None, seed: int) -> Dataset:
    """The data set in four idx files: images and labels to train, then to test."""
    contents = read_files(source)
    x_train, y_train, x_test, y_test = (
        parse_idx(content, 3 if part.startswith("images", part.index("-") + 1) else 1, f"{source.name}'s {part}")
        for content, part in zip(contents, _PARTS, strict=True)
    )
    kept = subset(y_train, num_train, 10, "num_train", seed), subset(y_test, num_test, 10, "num_test", seed)
    return Dataset(
        source.name, x_train[kept[0]][..., None], y_train[kept[0]], x_test[kept[1]][..., None], y_test[kept[1]],
        num_classes=10, pixels=pixels,
    )  # fmt: skip


def parse_idx(content: bytes, num_axes: int, where: str) -> np.ndarray:
    """An array of bytes in the idx format: 0, 0, 8 (bytes), the number of axes, their lengths, the values."""
    start = 4 + 4 * num_axes
    magic = bytes((0, 0, 8, num_axes))
    if content[:4] != magic:
        raise SojournError(
            f"{where} begins with {content[:4].hex(' ')}, not {magic.hex(' ')}: it is no idx file of {num_axes} axes."
        )
    shape = struct.unpack(f">{num_axes}I", content[4:start]) if len(content) >= start else (0,)
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected or len(content) < start:
        raise SojournError(f"{where} has {len(content)} bytes where its head promises {expected}; it is truncated.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
