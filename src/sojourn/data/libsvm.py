"""Three sets of the LIBSVM collection (Chang and Lin), two classes each: a9a, w8a and mushrooms, as dense features.

a9a is the census of Becker and Kohavi and w8a the web pages of Platt, both in Platt's binary features; mushrooms is
Schlimmer's. Only a9a comes with a test file that is used here; the others hold out a share of every class by a seed.
"""

import io
from typing import Annotated

import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError
from sojourn.data.dataset import Dataset
from sojourn.data.digits import stratified
from sojourn.data.mnist import NumTest, NumTrain, Seed
from sojourn.data.remote import Remote
from sojourn.data.source import File, Source, read_files
from sojourn.data.subsets import subset

TestShare = Annotated[float, Field(gt=0, lt=1, description="share of every class kept for the test set")]

_HOME = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"


def libsvm_source(name: str, sha256: tuple[str, ...], home: str = _HOME) -> Source:
    """A set of one file, or of one to train and one, with ".t", to test; a folder "libsvm" may hold several sets."""
    names = (name, f"{name}.t")[: len(sha256)]
    files = tuple(File((part,), digest) for part, digest in zip(names, sha256, strict=True))
    remotes = tuple(
        Remote(part, f"sha256:{digest}", (f"{home}/{part}",)) for part, digest in zip(names, sha256, strict=True)
    )
    return Source(name, files, remotes, folder="libsvm")


A9A = libsvm_source("a9a", ("f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
                            "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"))  # fmt: skip
W8A = libsvm_source("w8a", ("b464b4f6ce6a5d9e181ffc793e19a04751036273722312398ef7673705014902",))
MUSHROOMS = libsvm_source("mushrooms", ("eb26424a54203ca9e8956ff3e5b10e613dfc3587f65d21bdbdbc28020fd995e0",))


def load_a9a(*, num_train: NumTrain = None, num_test: NumTest = None, seed: Seed = 0) -> Dataset:
    """A census, 123 binary features: 32,561 to train, 16,281 to test; class 1 earns above 50,000 dollars."""
    return load_libsvm(A9A, 123, 0.0, num_train, num_test, seed)


def load_w8a(
    *, test_share: TestShare = 0.2, num_train: NumTrain = None, num_test: NumTest = None, seed: Seed = 0
) -> Dataset:
    """Web pages by their words, 300 binary features: 49,749, of which 3 in a hundred belong to class 1."""
    return load_libsvm(W8A, 300, test_share, num_train, num_test, seed)


def load_mushrooms(
    *, test_share: TestShare = 0.2, num_train: NumTrain = None, num_test: NumTest = None, seed: Seed = 0
) -> Dataset:
    """Mushrooms, 112 binary features: 8,124; the file's classes 1 and 2 are 0 and 1."""
    return load_libsvm(MUSHROOMS, 112, test_share, num_train, num_test, seed)


def load_libsvm(
    source: Source, dimension: int, test_share: float, num_train: int | None, num_test: int | None, seed: int
) -> Dataset:
    """The set in one or two files; the share is held out where there is no file to test on."""
    parts = [
        parse_libsvm(content, dimension, f"{source.name}'s {file.names[0]}")
        for content, file in zip(read_files(source), source.files, strict=True)
    ]
    if len(parts) == 1:
        if not 0 < test_share < 1:
            raise SojournError(f"test_share = {test_share} must lie between 0 and 1; try 0.2.")
        x, y = parts[0]
        test = stratified(y, test_share, np.random.default_rng(seed))
        parts = [(x[~test], y[~test]), (x[test], y[test])]
    (x_train, y_train), (x_test, y_test) = parts
    kept = subset(y_train, num_train, 2, "num_train", seed), subset(y_test, num_test, 2, "num_test", seed)
    return Dataset(source.name, x_train[kept[0]], y_train[kept[0]], x_test[kept[1]], y_test[kept[1]], num_classes=2)


def parse_libsvm(content: bytes, dimension: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, dimension) and labels 0 and 1, the smaller of the file's two first."""
    # imported here because it is slow and only these data sets need it
    from sklearn.datasets import load_svmlight_file

    try:
        x, y = load_svmlight_file(io.BytesIO(content), n_features=dimension, zero_based=False, dtype=np.float32)
    except ValueError as error:
        raise SojournError(f"{where} is no LIBSVM text of {dimension} features: {error}.") from error
    values, labels = np.unique(y, return_inverse=True)
    if len(values) != 2:
        raise SojournError(f"{where} holds {len(values)} different labels where two were expected.")
    return x.toarray(), labels.astype(np.int32)
