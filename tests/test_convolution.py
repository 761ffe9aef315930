"""Convolutions as matrix products give what XLA's own convolution gives, values and gradients; pooling likewise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sojourn.models import convolution
from sojourn.models.convolution import Conv2d, max_pool, mean_pool, pooled_size

KEY = jax.random.key(0)

# (form, side, inputs, outputs, kernel, stride, padding)
CASES = [
    ("places", 9, 3, 5, 3, 1, 0),
    ("places", 9, 3, 5, 3, 2, 1),
    ("places", 8, 4, 6, 1, 2, 0),
    ("patches", 9, 3, 5, 3, 1, 1),
    ("patches", 10, 3, 5, 5, 2, 2),
    ("patches", 8, 3, 5, 3, 2, 1),
    ("cells", 12, 3, 5, 5, 1, 0),
    ("cells", 9, 2, 3, 3, 1, 0),  # an odd number of outputs: the last cells are half empty
    ("cells", 10, 2, 3, 4, 1, 0),
    ("cells", 9, 2, 3, 2, 1, 1),
    ("cells", 7, 2, 3, 3, 1, 1),
]


def reference(conv: Conv2d, x: jax.Array) -> jax.Array:
    """XLA's convolution of one image."""
    sides = [(conv.padding, conv.padding)] * 2
    y = jax.lax.conv_general_dilated(
        x[None], conv.weight, (conv.stride, conv.stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    return y if conv.bias is None else y + conv.bias


def made(form: str | None, side: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> Conv2d:
    return Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, key=KEY, form=form)


def outcome(function, conv: Conv2d, x: jax.Array):
    """The values, and gradients in weight, bias and image of a sum that weighs every output differently."""

    def value(conv: Conv2d, x: jax.Array):
        y = function(conv, x)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

    gradients, y = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))(conv, x)
    return y, gradients


def assert_same(a, b, tolerance: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance), a, b)


@pytest.mark.parametrize("case", CASES)
def test_every_form_is_the_convolution_with_its_gradients(x64: None, case) -> None:
    conv, x = made(*case), jax.random.normal(KEY, (case[1], case[1] + 2, case[2]))
    assert_same(outcome(Conv2d.__call__, conv, x), outcome(reference, conv, x), 1e-11)


@pytest.mark.parametrize("case", [*CASES[6:8], CASES[-1], ("places", 9, 3, 5, 3, 1, 1)])
def test_pooling_within_a_convolution_is_pooling_after_it(x64: None, case) -> None:
    conv, x = made(*case), jax.random.normal(KEY, (case[1], case[1] + 2, case[2]))
    pooled = lambda conv, x: max_pool(reference(conv, x))  # noqa: E731
    assert_same(outcome(Conv2d.max_pool, conv, x), outcome(pooled, conv, x), 1e-11)


def test_a_kernel_turned_round_would_be_noticed(x64: None) -> None:
    conv, x = made("cells", 9, 2, 3, 3, 1, 0), jax.random.normal(KEY, (9, 9, 2))
    turned = jax.tree.map(lambda w: w[::-1] if w.ndim == 4 else w, conv)
    assert float(jnp.abs(turned(x) - reference(conv, x)).max()) > 0.1


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "form"),
    [(3, 6, 5, 1, "cells"), (3, 64, 3, 1, "patches"), (128, 128, 3, 1, "places"), (3, 6, 5, 2, "patches"),
     (8, 8, 1, 1, "patches")],
)  # fmt: skip
def test_the_form_is_chosen_by_channels_on_cpu_and_left_to_xla_elsewhere(
    monkeypatch, inputs: int, outputs: int, kernel: int, stride: int, form: str
) -> None:
    conv = made(None, 0, inputs, outputs, kernel, stride, 0)
    x = jax.random.normal(KEY, (9, 9, inputs))
    assert conv._form() == form
    expected = jax.jit(lambda conv, x: conv(x))(conv, x)
    monkeypatch.setattr(convolution.jax, "default_backend", lambda: "gpu")
    assert conv._form() == "native"
    np.testing.assert_allclose(conv(x), expected, atol=1e-4)


def test_batches_of_images_and_of_kernels_agree_with_one_at_a_time(x64: None) -> None:
    convs = [Conv2d(2, 3, 3, key=key) for key in jax.random.split(KEY, 3)]
    images = jax.random.normal(KEY, (3, 4, 8, 8, 2))  # three clients, four images each
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *convs)
    together = jax.jit(jax.vmap(lambda conv, x: jax.vmap(conv.max_pool)(x)))(stacked, images)
    _, one_by_one = jax.lax.scan(
        lambda _, pair: (None, jax.lax.map(pair[0].max_pool, pair[1])), None, (stacked, images)
    )
    apart = jnp.stack([jnp.stack([conv.max_pool(x) for x in mine]) for conv, mine in zip(convs, images, strict=True)])
    np.testing.assert_allclose(together, apart, atol=1e-12)
    np.testing.assert_allclose(one_by_one, apart, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_max_pooling_is_that_of_a_moving_window(x64: None, size: int) -> None:
    x = jax.random.normal(KEY, (7, 8, 3))
    window = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (size, size, 1), (size, size, 1), "VALID")
    np.testing.assert_array_equal(max_pool(x, size), window)


def test_mean_pooling_is_the_mean_of_every_channel() -> None:
    x = jax.random.normal(KEY, (4, 5, 3))
    np.testing.assert_allclose(mean_pool(x), np.asarray(x).reshape(20, 3).mean(0), atol=1e-6)


def test_sizes_after_pooling() -> None:
    assert pooled_size(32, 5, name="m") == 14
    assert pooled_size(32, 3, padding=1, name="m") == 16
    assert pooled_size(32, 3, padding=1, pool=1, name="m") == 32


def test_initial_weights_are_pytorchs_or_hes() -> None:
    uniform = Conv2d(8, 64, 5, key=KEY)  # fan in 200
    assert float(jnp.abs(uniform.weight).max()) <= 200**-0.5
    assert uniform.bias is not None and float(jnp.abs(uniform.bias).max()) <= 200**-0.5
    assert float(uniform.weight.std()) == pytest.approx(200**-0.5 / 3**0.5, rel=0.02)  # 12,800 draws
    normal = Conv2d(8, 64, 5, key=KEY, bias=False, init="he")
    assert normal.bias is None
    assert float(normal.weight.std()) == pytest.approx((2 / (25 * 64)) ** 0.5, rel=0.03)
