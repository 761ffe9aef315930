"""Statements of Song et al. on random pyramids: exactly what they say, and that weaker forms of them are noticed."""

import functools
import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.models.pyramid import SmoothLeaky, pyramid_of
from sojourn.models.wide_layer_facts import proof_constants
from sojourn.theory.wide_layer import (
    wide_corollary_1,
    wide_gd_conditions,
    wide_gradient_ceiling,
    wide_gradient_floor,
    wide_gradient_ratio,
    wide_jacobian_lipschitz,
    wide_layer_gradient,
    wide_layer_output,
    wide_lemma_6,
    wide_output_lipschitz,
    wide_rate,
    wide_sgd_conditions,
    wide_step_size,
)

INSTANCES, SAMPLES, SIZES = 1000, 6, (4, 9, 5, 3, 2)  # n_1 >= N, four layers
LAYERS = len(SIZES) - 1
GAMMA, SHARPNESS = 0.3, 4.0


def outputs(weights, x):
    """All layers' outputs."""
    activation, found = SmoothLeaky(GAMMA, SHARPNESS), [x]
    for number, weight in enumerate(weights):
        inside = found[-1] @ weight
        found.append(activation(inside) if number < len(weights) - 1 else inside)
    return found


def loss(weights, x, y):
    return jnp.sum((outputs(weights, x)[-1] - y) ** 2) / (2 * len(x))


@pytest.fixture(scope="module")
def nets() -> Iterator[dict]:
    """A thousand random networks of many scales with data, their gradients and singular values."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        scale = np.exp(rng.normal(0, 0.7, (INSTANCES, LAYERS, 1, 1)))
        weights = [
            jnp.asarray(scale[:, i] * rng.normal(size=(INSTANCES, a, b)) / math.sqrt(a))
            for i, (a, b) in enumerate(itertools.pairwise(SIZES))
        ]
        x, y = (jnp.asarray(rng.normal(size=(INSTANCES, SAMPLES, n))) for n in (SIZES[0], SIZES[-1]))
        every = jax.jit(jax.vmap(outputs))(weights, x)
        gradients = jax.jit(jax.vmap(jax.grad(loss)))(weights, x, y)
        singular = [np.linalg.svd(np.asarray(w), compute_uv=False) for w in weights]
        yield {
            "weights": weights, "x": x, "y": y, "outputs": [np.asarray(a) for a in every],
            "gradients": [np.asarray(g) for g in gradients],
            "low": np.stack([s[:, -1] for s in singular], 1), "high": np.stack([s[:, 0] for s in singular], 1),
            "norm": np.linalg.norm(x, axis=(1, 2)), "error": np.linalg.norm(every[-1] - y, axis=(1, 2)),
            "floor": np.linalg.svd(np.asarray(every[1]), compute_uv=False)[:, -1],
        }  # fmt: skip


def gain(high):
    return high.prod(axis=1) / high.min(axis=1)


def test_lemma_4_bounds_the_gradient(nets) -> None:
    norms = np.stack([np.linalg.norm(g, axis=(1, 2)) for g in nets["gradients"]], 1)
    shared = {"num_samples": SAMPLES, "error": nets["error"]}
    floor = functools.partial(wide_gradient_floor, **shared, slope=GAMMA, num_layers=LAYERS)
    low, high = nets["low"], nets["high"]
    assert (norms[:, 1] >= floor(floor=nets["floor"], low_product=low[:, 2:].prod(axis=1)) * (1 - 1e-9)).all()
    largest = np.linalg.norm(nets["outputs"][1], 2, axis=(1, 2))
    assert not (norms[:, 1] >= floor(floor=largest, low_product=high[:, 2:].prod(axis=1))).all()
    for layer in range(LAYERS):
        bound = functools.partial(wide_layer_gradient, **shared, input_norm=nets["norm"])
        assert (norms[:, layer] <= bound(other_product=np.delete(high, layer, axis=1).prod(axis=1)) * (1 + 1e-9)).all()
        assert not (norms[:, layer] <= bound(other_product=np.delete(low, layer, axis=1).prod(axis=1))).all()
    whole = np.linalg.norm(norms, axis=1)
    ceiling = functools.partial(wide_gradient_ceiling, error=nets["error"], input_norm=nets["norm"], num_layers=LAYERS)
    assert (whole <= ceiling(num_samples=SAMPLES, gain=gain(high)) * (1 + 1e-9)).all()
    assert not (whole <= ceiling(num_samples=SAMPLES, gain=1.0)).all(), "the print has a product over itself"
    clients = 1000  # of which this is one: the print divides by the samples of all
    assert not (whole <= ceiling(num_samples=clients * SAMPLES, gain=gain(high))).all()


def test_lemma_4_bounds_the_layers(nets) -> None:
    for layer in range(1, LAYERS + 1):
        found = np.linalg.norm(nets["outputs"][layer], axis=(1, 2))
        high, low = (nets[name][:, :layer].prod(axis=1) for name in ("high", "low"))
        assert (found <= wide_layer_output(input_norm=nets["norm"], product=high) * (1 + 1e-9)).all()
        assert not (found <= wide_layer_output(input_norm=nets["norm"], product=low)).all()


def test_lemma_4_bounds_how_outputs_and_jacobians_change(nets) -> None:
    rng = np.random.default_rng(1)
    some, beta = 200, SmoothLeaky(GAMMA, SHARPNESS).beta
    a, x = [w[:some] for w in nets["weights"]], nets["x"][:some]
    size = 10.0 ** rng.uniform(-4, 0, (some, 1, 1))
    b = [w + size * rng.normal(size=w.shape) for w in a]
    apart = np.sqrt(sum(np.sum((np.asarray(v) - w) ** 2, axis=(1, 2)) for v, w in zip(a, b, strict=True)))
    top = lambda weights: np.stack([np.linalg.norm(np.asarray(w), 2, axis=(1, 2)) for w in weights], 1)  # noqa: E731
    tops, norm = np.maximum(top(a), top(b)), nets["norm"][:some]
    last = jax.vmap(lambda w, x: outputs(w, x)[-1])
    moved = np.linalg.norm(np.asarray(last(a, x) - last(b, x)), axis=(1, 2))
    lipschitz = functools.partial(wide_output_lipschitz, num_layers=LAYERS, input_norm=norm)
    assert (moved <= lipschitz(gain=gain(tops)) * apart * (1 + 1e-6)).all()
    assert not (moved <= lipschitz(gain=gain(nets["low"][:some])) * apart).all()
    jacobian = jax.jit(jax.vmap(jax.jacobian(lambda w, x: outputs(w, x)[-1].reshape(-1))))
    flat = lambda j: np.asarray(j).reshape(some, SAMPLES * SIZES[-1], -1)  # noqa: E731
    before, after = jacobian(a, x), jacobian(b, x)
    changes = [np.linalg.norm(flat(p) - flat(q), 2, axis=(1, 2)) for p, q in zip(before, after, strict=True)]
    bound = functools.partial(wide_jacobian_lipschitz, num_layers=LAYERS, input_norm=norm)
    spread = np.maximum(1, tops).prod(axis=1)
    for change in changes:
        assert (change <= bound(spread=spread, bend=beta) * apart * (1 + 1e-6)).all()
    # control: by the smallest singular values, and as if the activation were linear
    assert not (changes[0] <= bound(spread=nets["low"][:some].prod(axis=1), bend=0.0) * apart).all()


def test_lemma_7_bounds_a_batch_by_the_whole(nets) -> None:
    """rho for batches of two rows."""
    gradient = jax.jit(jax.vmap(jax.grad(loss)))
    norm = lambda tree: np.sqrt(sum(np.sum(np.asarray(g) ** 2, axis=(1, 2)) for g in tree))  # noqa: E731
    found = norm(gradient(nets["weights"], nets["x"][:, :2], nets["y"][:, :2])) / norm(nets["gradients"])
    bound = wide_gradient_ratio(
        num_samples=SAMPLES, batch_size=2, slope=GAMMA, num_layers=LAYERS, gain=gain(nets["high"]),
        low_product=nets["low"][:, 2:].prod(axis=1), floor=nets["floor"], input_norm=nets["norm"],
    )  # fmt: skip
    assert (found <= bound).all() and (found > 1).any()


def test_the_print_of_lemma_7_fails_without_the_norm_of_the_inputs(x64: None) -> None:
    """Two layers of which only one unit is read: errors orthogonal to its inputs leave W_1 without a gradient, but no
    batch's are, and large inputs make the batch's gradient as large as one likes."""
    rng = np.random.default_rng(3)
    size, unit = 1e6, 0.5
    x, first = rng.normal(size=(6, 2)), rng.normal(size=(2, 9))
    second = np.zeros((9, 1))
    second[0] = unit
    slopes = np.diag(jax.vmap(jax.grad(SmoothLeaky(GAMMA, SHARPNESS)))(jnp.asarray(x @ first)[:, 0]))
    error = np.linalg.svd((slopes @ x).T)[2][-1][:, None]  # slopes and inputs send it to zero
    weights = [jnp.asarray(first / size), jnp.asarray(second)]
    y = np.asarray(outputs(weights, size * x)[-1]) - error
    norm = lambda rows: np.sqrt(sum(np.sum(g**2) for g in jax.grad(loss)(weights, size * x[rows], y[rows])))  # noqa: E731
    features = np.asarray(outputs(weights, size * x)[1])
    shared = {"num_samples": 6, "batch_size": 2, "slope": GAMMA, "num_layers": 2, "gain": unit, "low_product": 1.0,
              "floor": np.linalg.svd(features, compute_uv=False)[-1]}  # fmt: skip
    found = norm(slice(0, 2)) / norm(slice(0, 6))
    assert found > wide_gradient_ratio(input_norm=1.0, **shared), "as printed"
    assert found <= wide_gradient_ratio(input_norm=size * np.linalg.norm(x), **shared)


@functools.partial(jax.jit, static_argnames=("sizes", "steps", "rounds"))
def fedavg(weights, x, y, step_size, sizes, steps, rounds):
    """Losses of FedAvg with exact gradients and weights by size, in plain JAX."""
    cuts = np.cumsum([0, *sizes])
    parts = [(x[i:j], y[i:j], (j - i) / sum(sizes)) for i, j in itertools.pairwise(cuts)]

    def one_round(w, _):
        def stepped(part):
            descend = lambda _, v: jax.tree.map(lambda a, g: a - step_size * g, v, jax.grad(loss)(v, *part[:2]))  # noqa: E731
            return jax.tree.map(lambda a: part[2] * a, jax.lax.fori_loop(0, steps, descend, w))

        return jax.tree.map(lambda *a: sum(a), *map(stepped, parts)), loss(w, x, y)

    return jax.lax.scan(one_round, weights, None, rounds)[1]


def started(zeta: float, seed: int = 0, split=(3, 9, 12)):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 8)), rng.normal(size=(24, 2))
    cuts = np.cumsum(split)[:-1]
    parts = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    options = {"widths": [32, 6], "identity_scale": zeta, "gamma": GAMMA, "sharpness": SHARPNESS}
    start = sj.models.wide_pyramid((8,), 2, jax.random.key(seed), parts, **options)
    tops = [np.linalg.norm(w, 2) for w in start.model.weights]
    numbers = {
        "client_samples": np.array(split), "client_norms": np.array([np.linalg.norm(x) for x, _ in parts]),
        "highs": [2 / 3 * (1 + tops[0]), 2 / 3 * (1 + tops[1]), tops[2]], "lows": zeta, "num_layers": 3,
        "floor": start.floor, "slope": GAMMA, "bend": SmoothLeaky(GAMMA, SHARPNESS).beta, "num_local_steps": 5,
    }  # fmt: skip
    return start, parts, numbers


@pytest.mark.parametrize("zeta", [1.0, 5.0])
def test_corollary_1_holds_on_runs(x64: None, zeta: float) -> None:
    start, parts, numbers = started(zeta)
    x, y = (jnp.asarray(np.concatenate(both)) for both in zip(*parts, strict=True))
    limits = wide_step_size(**numbers, error=start.start_error)
    rate = wide_rate(num_samples=24, num_local_steps=5, slope=GAMMA, num_layers=3, low_product=zeta, floor=start.floor)
    rounds, sizes = np.arange(300), tuple(len(part[0]) for part in parts)
    for step_size in (min(limits.values()), limits["smoothness"], 0.02 / zeta):
        losses = np.asarray(fedavg(list(start.model.weights), x, y, step_size, sizes, 5, 300))
        promised = wide_corollary_1(rate=rate, step_size=step_size, rounds=rounds, loss=losses[0])
        assert (losses <= promised * (1 + 1e-12)).all()
    gone = -np.log(losses[-1] / losses[0]) / 299
    faster = wide_corollary_1(rate=1.1 * gone / step_size, step_size=step_size, rounds=rounds, loss=losses[0])
    assert losses[-1] > faster[-1] and gone > 1000 * rate * step_size, "the promise is kept by far"
    assert limits["descent"] == min(limits.values()) > 0
    with pytest.raises(SojournError, match="rate \\* step_size <= 1"):
        wide_corollary_1(rate=2.0, step_size=1.0, rounds=1, loss=1.0)


def test_the_descent_limit_pays_for_the_second_order(x64: None) -> None:
    """At eta = mu'/(2 N B1) the terms in eta^2 take half of the decrease; at the printed mu'/(2 B1) they take N/2."""
    start, _, numbers = started(1.0)
    numbers = {**numbers, "error": start.start_error}
    product = {key: value for key, value in numbers.items() if key != "lows"}
    found = proof_constants(**product, low_product=1.0)
    rate, samples, b1 = found["rate"], found["num_samples"], found["B1"]
    change = lambda eta: -2 * rate * eta + 2 * samples * eta**2 * b1  # noqa: E731  # of Phi, relative, at most
    eta = wide_step_size(**numbers)["descent"]
    assert change(eta) / (rate * eta) == pytest.approx(-1.0)
    printed = rate / (2 * b1)
    assert change(printed) / (rate * printed) == pytest.approx(samples - 2), "no decrease at all"


def test_lemma_6_is_refuted() -> None:
    """The true S^T by its definition, at a small step, against both forms."""
    rho, mu, constant, reduction = 1.0, 0.1, 2.0, 1e3
    eta = 1e-7
    rounds = math.floor(math.log(reduction) / -math.log1p(-mu * constant * eta) + 1)
    found = rounds * 0.5 * math.log1p(3 * rho * constant * eta) / math.log(10)
    said = wide_lemma_6(ratio_over_mu=rho / mu, loss=reduction, target_loss=1.0)
    assert found == pytest.approx(said["true"], rel=1e-5)
    assert found > said["printed"] + 10, "ten orders of magnitude above the print"
    larger = math.floor(math.log(reduction) / -math.log1p(-mu * constant * 0.3) + 1)
    assert larger * 0.5 * math.log1p(3 * rho * constant * 0.3) / math.log(10) < said["true"], "the sup is at eta = 0"


def test_conditions_of_the_start(x64: None) -> None:
    start, _, numbers = started(1.0)
    small = {**numbers, "error": start.start_error}
    held = wide_gd_conditions(**small)
    assert len(held) == 6 and not any(held.values())
    zeta = 1e16
    large = {**small, "highs": [*numbers["highs"][:2], zeta], "lows": zeta}
    assert all(wide_gd_conditions(**large).values()), "a large zeta certifies exact gradients"
    loss_bound = start.start_error**2 / 48
    target = {"batch_size": 4, "loss": loss_bound, "target_loss": loss_bound / 100}
    for at in (numbers, {**numbers, "highs": large["highs"], "lows": zeta}):
        assert not any(wide_sgd_conditions(**at, **target).values()), "no zeta certifies batches"
    easy = {
        **numbers,
        "floor": 1e9,
        "client_norms": 1e-3,
        "client_samples": 1,
        "slope": 1.0,
        "lows": 1e9,
        "highs": [1, 1, 1e9],
    }
    target = {"batch_size": 1, "loss": 1e-9, "target_loss": 0.99e-9}
    assert any(wide_sgd_conditions(**easy, **target).values()), "they can come out the other way"


def test_two_layers_have_no_identities(x64: None) -> None:
    numbers = {"client_samples": [3, 4], "client_norms": [1.0, 2.0], "highs": [1.0, 0.8], "lows": 1.0, "num_layers": 2,
               "floor": 0.1, "slope": 0.5, "bend": 0.5, "num_local_steps": 2, "error": 1.0}  # fmt: skip
    assert len(wide_gd_conditions(**numbers)) == 4
    assert all(value > 0 for value in wide_step_size(**numbers).values())


def test_the_statements_net_is_the_models(x64: None, nets) -> None:
    model = pyramid_of([w[0] for w in nets["weights"]], GAMMA, SHARPNESS)
    np.testing.assert_allclose(jax.vmap(model)(nets["x"][0]), nets["outputs"][-1][0], rtol=1e-12)
