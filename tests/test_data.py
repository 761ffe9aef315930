"""Data sets: what is refused, and that the bundled digits are what they claim to be."""

import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.data import Dataset, Pixels, load, load_digits


def small(**changes):
    fields = dict(
        name="small",
        x_train=np.arange(8.0).reshape(4, 2),
        y_train=np.array([0, 1, 2, 0]),
        x_test=np.ones((2, 2)),
        y_test=np.array([1, 2]),
        num_classes=3,
    )
    return Dataset(**(fields | changes))


def test_features_are_stored_as_float32_and_labels_as_int32():
    data = small()
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert (data.x_test.dtype, data.y_test.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(data.x_train, np.arange(8.0).reshape(4, 2))


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(x_train=np.array([[np.nan, 0], [0, 0], [0, 0], [0, 0]])), "x_train holds 1 values that are not finite"),
        (dict(x_test=np.full((2, 2), np.inf)), "x_test holds 4 values that are not finite"),
        (dict(x_train=np.full((4, 2), 1e300)), "x_train holds 8 values that are not finite"),  # too large for float32
        (dict(y_train=np.array([0, 1, 3, 0])), "label 3; expected 0 to 2"),
        (dict(y_test=np.array([-1, 0])), "label -1; expected 0 to 2"),
        (dict(y_train=np.array([0, 1, 2])), "4 samples but y_train has 3 labels"),
        (dict(y_train=np.array([0.0, 1.0, 2.0, 0.0])), "expected one integer per sample"),
        (dict(y_train=np.zeros((4, 1), int)), "expected one integer per sample"),
        (dict(x_test=np.ones((2, 3))), r"shapes \(2,\) and \(3,\)"),
        (dict(x_train=np.ones(4)), "expected \\(samples, features"),
        (dict(x_train=np.ones((0, 2)), y_train=np.zeros(0, int)), "no training samples"),
        (dict(num_classes=0), "num_classes = 0 must be at least 1"),
    ],
)
def test_bad_data_is_refused_with_its_reason(changes, message):
    with pytest.raises(SojournError, match=message):
        small(**changes)


def test_digits_are_all_there_scaled_and_stratified():
    data = load("digits")
    assert data.x_train.shape[1] == 64 and data.num_classes == 10
    assert len(data.y_train) + len(data.y_test) == 1797
    assert data.x_train.min() == 0.0 and data.x_train.max() == 1.0
    train, test = np.bincount(data.y_train), np.bincount(data.y_test)
    np.testing.assert_array_equal(test, np.rint(0.2 * (train + test)))


def test_digits_split_depends_on_the_seed_alone():
    first, again, other = load_digits(seed=0), load_digits(seed=0), load_digits(seed=1)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_digits_as_images_are_the_same_numbers_by_rows():
    flat, images = load_digits(), load_digits(images=True)
    assert images.x_train.shape[1:] == images.x_test.shape[1:] == (8, 8, 1)
    assert (images.x_train[:, 3, 5, 0] == flat.x_train[:, 8 * 3 + 5]).all()
    assert (images.y_train == flat.y_train).all()


def test_digits_refuse_an_impossible_share():
    with pytest.raises(SojournError, match=r"test_share = 1\.5"):
        load_digits(test_share=1.5)


def test_unknown_data_set_names_the_nearest():
    with pytest.raises(SojournError, match='did you mean "digits"'):
        load("digit")


def images(**changes):
    fields = dict(
        x_train=np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3),
        x_test=np.full((2, 2, 2, 3), 255, np.uint8),
        pixels=Pixels((0.5, 0.25, 0.0), (0.5, 0.25, 2.0)),
    )
    return small(**(fields | changes))


def test_images_stay_bytes_until_they_are_read():
    data = images()
    assert data.x_train.dtype == np.uint8
    numbers = data.read(data.x_test)
    assert numbers.dtype == np.float32
    # (255/255 - mean) / std by channel
    np.testing.assert_allclose(numbers[0, 0, 0], [1.0, 3.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(images(pixels=Pixels()).read(data.x_train), data.x_train / 255, atol=1e-7)
    assert small().read(small().x_train).tolist() == small().x_train.tolist()  # floats are what they are


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(x_train=np.zeros((4, 2, 2, 3))), r"type float64; with pixels, expected bytes"),
        (dict(x_test=np.zeros(2, np.uint8)), r"shape \(2,\) and type uint8"),
        (dict(pixels=Pixels((0.0, 0.0), (1.0, 1.0))), "does not fit 3 channels"),
        (dict(pixels=Pixels((0.0,), (0.0,))), "positive std"),
        (dict(x_test=np.zeros((2, 3, 3, 3), np.uint8)), "training and test samples have shapes"),
    ],
)
def test_bad_images_are_refused_with_their_reason(changes, message):
    with pytest.raises(SojournError, match=message):
        images(**changes)
