"""CIFAR-10 (Krizhevsky, 2009): 32 x 32 colour photographs in ten classes, from the binary version's six batches."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.dataset import Dataset, Pixels
from sojourn.data.mnist import Normalise, NumTest, NumTrain, Seed
from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, read_files
from sojourn.data.subsets import subset

_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes

CIFAR10 = Source(
    "cifar10",
    (
        File(("data_batch_1.bin",), "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        File(("data_batch_2.bin",), "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        File(("data_batch_3.bin",), "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        File(("data_batch_4.bin",), "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        File(("data_batch_5.bin",), "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        File(("test_batch.bin",), "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    (
        Remote(
            "cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",  # as its authors' page gives it
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
    ),
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
)


Shrink = Annotated[
    Literal[1, 2, 4], Field(description="side of the squares of pixels that become one, their mean; 2: 16 x 16 images")
]


def load_cifar10(
    *,
    num_train: NumTrain = None,
    num_test: NumTest = None,
    normalise: Normalise = False,
    seed: Seed = 0,
    shrink: Shrink = 1,
) -> Dataset:
    """Colour photographs, 32 x 32: 50,000 to train, 10,000 to test; pixels in [0, 1] unless normalised."""
    pixels = Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)) if normalise else Pixels()
    return load_batches(CIFAR10, pixels, num_train, num_test, seed, shrink)


def load_batches(
    source: Source, pixels: Pixels, num_train: int | None, num_test: int | None, seed: int, shrink: int = 1
) -> Dataset:
    """The data set in binary batches, of which the last is to test; images become channels-last."""
    contents = read_files(source)
    batches = [parse_batch(contents.pop(0), f"{source.name}'s {file.names[0]}") for file in source.files]
    y_train, y_test = np.concatenate([labels for labels, _ in batches[:-1]]), batches[-1][0]
    train, test = subset(y_train, num_train, 10, "num_train", seed), subset(y_test, num_test, 10, "num_test", seed)
    x_train = shrunk(np.concatenate([images for _, images in batches[:-1]])[train], shrink)
    x_test = shrunk(batches[-1][1][test], shrink)
    return Dataset(source.name, x_train, y_train[train], x_test, y_test[test], num_classes=10, pixels=pixels)


def shrunk(images: np.ndarray, side: int) -> np.ndarray:
    """Means over squares of side x side pixels, rounded to bytes."""
    if side == 1:
        return images
    number, height, width, channels = images.shape
    squares = images.reshape(number, height // side, side, width // side, side, channels)
    return np.asarray(np.rint(squares.mean(axis=(2, 4), dtype=np.float32)), np.uint8)


def parse_batch(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels and images (n, 32, 32, 3) of a batch."""
    if not content or len(content) % _RECORD:
        raise SojournError(f"{where} has {len(content)} bytes, which are no whole records of {_RECORD}; replace it.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise SojournError(f"{where} holds the label {records[:, 0].max()}, but CIFAR-10 has 0 to 9; replace it.")
    images = np.empty((len(records), 1024, 3), np.uint8)
    for channel in range(3):  # plane by plane: fifteen times as fast as one transposition
        images[:, :, channel] = records[:, 1 + 1024 * channel : 1 + 1024 * (channel + 1)]
    return records[:, 0].copy(), images.reshape(-1, 32, 32, 3)
