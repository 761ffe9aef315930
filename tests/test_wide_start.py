"""The wide start: its weights' law, and the exchange between server and clients that makes it."""

import jax
import numpy as np
import pytest

from sojourn.core.errors import SojournError
from sojourn.models import mlp

KEY = jax.random.key(0)


def test_an_mlp_can_start_wide() -> None:
    model = mlp((40, 10), 5, KEY, hidden=[600, 8, 6], start="wide", second_variance=1e-6, identity_scale=3.0)
    w1, w2, w3, w4 = (np.asarray(layer.weight) for layer in model.layers)
    assert w1.std() == pytest.approx(1 / 400, rel=0.01) and abs(w1.mean()) < 2e-5
    assert w2.std() == pytest.approx(1e-3, rel=0.05)
    np.testing.assert_array_equal(w3.T, 3 * np.eye(8, 6))
    np.testing.assert_array_equal(w4.T, 3 * np.eye(6, 5))
    assert all(not np.any(np.asarray(layer.bias)) for layer in model.layers)
    plain = mlp((40, 10), 5, KEY, hidden=[600, 8, 6])
    assert np.asarray(plain.layers[0].weight).std() > 10 * w1.std(), "the default start is PyTorch's"
    assert not np.array_equal(
        mlp((4,), 2, jax.random.key(1), start="wide").layers[0].weight, mlp((4,), 2, KEY, start="wide").layers[0].weight
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"second_variance": 1e-3}, 'set start = "wide"'),
        ({"start": "wide", "hidden": []}, "needs a hidden layer"),
        ({"start": "wide", "hidden": [64, 4, 8]}, "do not grow after the second"),
    ],
)
def test_a_wide_start_that_cannot_be_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        mlp((6,), 3, KEY, **options)
