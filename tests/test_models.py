"""The networks: shapes, numbers of parameters, initial weights, the activation, dropout, frozen arrays, layers."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.frozen import Frozen, is_frozen
from sojourn.core.layers import layer_groups
from sojourn.core.vec import Vec, inner, size
from sojourn.data.dataset import Dataset
from sojourn.engine import Compiled, Reference
from sojourn.models import (
    MODELS,
    cifar_cnn_small,
    deep_relu,
    mlp,
    mnist_cnn,
    pyramid,
    pyramid_of,
    resnet9,
    resnet18,
)  # fmt: skip
from sojourn.models.layers import Dropout, GroupNorm, has_dropout
from sojourn.models.pyramid import SmoothLeaky
from sojourn.problems import finite
from sojourn.problems.finite import federation
from sojourn.problems.supervised import classification

KEY = jax.random.key(0)
CIFAR, MNIST = (32, 32, 3), (28, 28, 1)
INPUT = {"mlp": MNIST, "deep-relu": MNIST, "pyramid": MNIST, "wide-pyramid": MNIST, "mnist-cnn": MNIST}


def shaped(name: str, input_shape: tuple[int, ...] | None = None, num_classes: int = 10, **options):
    """A model of shapes only: no weights are drawn."""
    shape = input_shape or INPUT.get(name, CIFAR)
    build = getattr(MODELS[name], "outline", MODELS[name])  # of one that asks clients: the same without them
    return eqx.filter_eval_shape(functools.partial(build, shape, num_classes, **options), KEY)


def trained(model):
    """What an algorithm sees of a model."""
    return eqx.partition(model, lambda leaf: hasattr(leaf, "shape"), is_leaf=is_frozen)[0]


def images(shape: tuple[int, ...] = (12, 12, 1), clients: int = 3, rows: int = 20, seed: int = 0):
    """Noisy images of four classes, each class bright in a quarter of its own, and iid clients."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, clients * rows + 20)
    x = 0.3 * rng.normal(size=(len(labels), *shape))
    middle = shape[0] // 2, shape[1] // 2
    for image, label in zip(x, labels, strict=True):
        top, left = (label // 2) * middle[0], (label % 2) * middle[1]
        image[top : top + middle[0], left : left + middle[1]] += 1
    data = Dataset("quarters", x[:-20], labels[:-20], x[-20:], labels[-20:], num_classes=4)
    return data, [np.arange(n * rows, (n + 1) * rows) for n in range(clients)]


# --- shapes and numbers ------------------------------------------------------------------------------------------

# By hand: a k x k convolution from a to b channels has k^2 a b weights and b biases; a linear layer a b and b.
COUNTS = {
    ("mlp", ()): 784 * 64 + 64 + 64 * 10 + 10,
    ("mlp", (("hidden", (200,)),)): 159_010,  # 784-200-10
    ("pyramid", (("widths", (100, 20)),)): 784 * 100 + 100 * 20 + 20 * 10,
    ("wide-pyramid", (("widths", (100, 20)),)): 784 * 100 + 100 * 20 + 20 * 10,
    ("mnist-cnn", ()): (250 + 10) + (5_000 + 20) + (320 * 50 + 50) + (500 + 10),
    ("cifar-cnn-small", ()): 456 + 2_416 + 48_120 + 10_164 + 850,  # LeNet-5 for three channels: 62,006
    ("cifar-cnn-large", ()): 3_584 + 2 * 147_584 + (128 * 2 * 2 * 10 + 10),
    ("cifar-cnn-async", ()): 1_792 + 36_928 + 73_856 + 147_584 + (8_192 * 512 + 512) + 5_130 + 2 * 384,
    ("cifar-cnn-lamb", ()): 896 + 18_496 + 36_928 + (1_024 * 512 + 512) + 5_130,
    ("resnet9", ()): 6_568_640 + 2 * 2_240 + 10,  # convolutions and last matrix, norms, last bias
    ("resnet9", (("width", 4), ("groups", 2))): 26_060 + 2 * 140 + 10,
    ("resnet18", ()): 11_173_962,  # the published count of the variant for 32 x 32 images, BatchNorm's or GroupNorm's
    ("resnet50", ()): 23_520_842,
}


@pytest.mark.parametrize(
    ("model", "count"), COUNTS.items(), ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_numbers_of_parameters(model, count: int) -> None:
    name, options = model
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options}
    assert size(trained(shaped(name, **options))) == count


@pytest.mark.parametrize(("depth", "width", "count"), [(1, 50, 39_700), (5, 100, 119_400)])
def test_the_deep_relu_networks_of_the_figures_have_the_papers_numbers_of_weights(depth, width, count) -> None:
    whole = shaped("deep-relu", depth=depth, width=width, train_top=True)
    assert size(trained(whole)) == count
    assert size(trained(shaped("deep-relu", depth=depth, width=width))) == count - 10 * width  # the top is not trained


def test_resnets_of_thousand_classes_differ_by_the_last_layer_alone() -> None:
    less, more = (size(trained(shaped("resnet18", num_classes=n))) for n in (10, 1000))
    assert more - less == 990 * 513


@pytest.mark.parametrize("name", MODELS)
def test_one_input_gives_one_score_per_class(name: str) -> None:
    shape = INPUT.get(name, CIFAR)
    scores = eqx.filter_eval_shape(
        lambda m, x: m(x), shaped(name, num_classes=7), jax.ShapeDtypeStruct(shape, jnp.float32)
    )
    assert scores.shape == (7,) and scores.dtype == jnp.float32


@pytest.mark.parametrize("name", ["mnist-cnn", "resnet9"])
def test_an_image_without_a_channel_has_one(name: str) -> None:
    plain, one = shaped(name, (28, 28)), shaped(name, (28, 28, 1))
    assert jax.tree.structure(plain) == jax.tree.structure(one)
    sample = jax.ShapeDtypeStruct((28, 28), jnp.float32)
    assert eqx.filter_eval_shape(lambda m, x: m(x), plain, sample).shape == (10,)


@pytest.mark.parametrize("name", MODELS)
def test_weights_take_the_precision_of_the_run(x64: None, name: str) -> None:
    assert {leaf.dtype for leaf in jax.tree.leaves(trained(shaped(name)))} == {jnp.dtype("float64")}


def test_resnet50_of_a_tiny_image_is_finite() -> None:
    shapes, fixed = eqx.partition(shaped("resnet50", (4, 4, 1), 3), lambda leaf: hasattr(leaf, "shape"))
    rng = np.random.default_rng(0)  # not the initial weights: drawing these compiles a program for every shape
    weights = jax.tree.map(lambda leaf: rng.normal(scale=0.05, size=leaf.shape).astype(leaf.dtype), shapes)
    quickly = {"xla_backend_optimization_level": 0}
    run = jax.jit(lambda weights, x: eqx.combine(weights, fixed)(x), compiler_options=quickly)
    scores = run(weights, rng.normal(size=(4, 4)).astype(np.float32))
    assert scores.shape == (3,) and bool(jnp.isfinite(scores).all())


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: mnist_cnn((8, 8), 10, KEY), "5 x 5 convolution and 2 x 2 pooling where only 2 pixels are left"),
        (lambda: cifar_cnn_small((64,), 10, KEY), r"takes images \(height, width, channels\).*\(64,\)"),
        (lambda: resnet9((4, 4, 3), 10, KEY), "4 x 4 pixels are too few, take at least 8 x 8"),
        (lambda: resnet18((32,), 10, KEY), "takes images"),
        (lambda: shaped("resnet9", groups=48), "model.groups = 48 does not divide a layer's 64 channels"),
        (lambda: shaped("pyramid", widths=[100, 20, 30]), "none may be wider than the one before"),
        (lambda: pyramid((4,), 10, KEY, widths=[100, 5]), "none may be wider"),
        (lambda: pyramid_of([np.ones((4, 3)), np.ones((2, 2))]), "each must take what the one before gives"),
        (lambda: pyramid_of([]), "each must take what the one before gives"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(make, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        make()


def test_dropout_with_exact_gradients_is_refused() -> None:
    data, clients = images()
    model = mlp((12, 12, 1), 4, KEY, dropout=0.5)
    with pytest.raises(SojournError, match=r"dropout.*set batch_size"):
        classification(data, clients, model)
    classification(data, clients, mlp((12, 12, 1), 4, KEY, dropout=0.0))


# --- initial weights ---------------------------------------------------------------------------------------------


def test_deep_relu_draws_the_papers_variances() -> None:
    model = deep_relu((300,), 20, KEY, width=200, depth=3)
    for weight in model.weights:  # at least 40,000 draws each: the standard error of a variance is below one percent
        assert float(weight.mean()) == pytest.approx(0, abs=5e-3 * (2 / 200) ** 0.5 * 5)
        assert float(weight.var()) == pytest.approx(2 / 200, rel=0.04)
    assert float(model.top.value.var()) == pytest.approx(1 / 20, rel=0.1)
    assert [weight.shape for weight in model.weights] == [(200, 300), (200, 200), (200, 200)]


def test_a_wide_deep_relu_keeps_the_norm_of_its_input() -> None:
    """He's variance: E|relu(W x)|^2 = |x|^2. With N(0, 1/m) five layers would leave 1/32 of it."""
    model = deep_relu((300,), 10, KEY, width=500, depth=5, train_top=True)
    x = jax.random.normal(KEY, (300,))
    last = x / jnp.linalg.norm(x)
    for weight in model.weights:
        last = jax.nn.relu(weight @ last)
    assert 0.5 < float(jnp.sum(last**2)) < 2
    np.testing.assert_allclose(model(x / jnp.linalg.norm(x)), model.top @ last, rtol=1e-4, atol=1e-5)


def test_the_relu_of_the_deep_network_has_slope_one_at_zero() -> None:
    model = eqx.tree_at(lambda m: m.weights, deep_relu((2,), 1, KEY, width=1), (jnp.zeros((1, 2)),))
    slope = jax.grad(lambda w: eqx.tree_at(lambda m: m.weights, model, (w,))(jnp.ones(2))[0])(jnp.zeros((1, 2)))
    np.testing.assert_allclose(slope, jnp.full((1, 2), model.top.value[0, 0]))


def test_pyramids_draw_variance_one_over_fan_in() -> None:
    model = pyramid((400,), 10, KEY, widths=[300, 200])
    for weight in model.weights[:2]:
        assert float(weight.var()) == pytest.approx(1 / len(weight), rel=0.04)


# --- the smooth activation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "sharpness"), [(0.5, 1.0), (0.1, 4.0), (0.9, 0.3)])
def test_the_activation_keeps_the_theorys_constants(x64: None, gamma: float, sharpness: float) -> None:
    sigma = SmoothLeaky(gamma, sharpness)
    x, h = np.linspace(-60, 60, 24_001), 1e-4
    y = np.asarray(sigma(jnp.asarray(x)))
    assert (np.abs(y) <= np.abs(x) + 1e-12).all()
    slope = np.asarray(sigma(jnp.asarray(x + h)) - sigma(jnp.asarray(x - h))) / (2 * h)
    assert slope.min() >= gamma - 1e-9 and slope.max() <= 1 + 1e-9
    assert slope.min() < gamma + 0.01 and slope.max() > 0.99  # the range is used, so gamma is not just a bound
    bend = np.asarray(sigma(jnp.asarray(x + h)) - 2 * y + sigma(jnp.asarray(x - h))) / h**2
    assert bend.max() == pytest.approx(sigma.beta, rel=1e-3)  # beta is attained, at zero
    assert np.abs(bend).max() <= sigma.beta * (1 + 1e-3)


def test_relu_and_tanh_do_not_keep_them(x64: None) -> None:
    x = jnp.linspace(-5, 5, 1001)
    for activation in (jax.nn.relu, jnp.tanh):
        assert float(jax.vmap(jax.grad(activation))(x).min()) < 0.01


def test_a_pyramid_is_what_the_paper_writes(x64: None) -> None:
    rng = np.random.default_rng(0)
    w1, w2, w3 = rng.normal(size=(4, 8)), rng.normal(size=(8, 5)), rng.normal(size=(5, 2))
    x = rng.normal(size=(3, 4))
    sigma = lambda a: 0.5 * a + 0.5 * (np.log1p(np.exp(a)) - np.log(2))  # noqa: E731
    model = pyramid_of([w1, w2, w3], gamma=0.5, sharpness=1.0)
    np.testing.assert_allclose(jax.vmap(model)(jnp.asarray(x)), sigma(sigma(x @ w1) @ w2) @ w3, atol=1e-12)


# --- normalisation -----------------------------------------------------------------------------------------------


def test_group_norm_is_equinoxs_with_channels_first() -> None:
    ours, theirs = GroupNorm(6, 3), eqx.nn.GroupNorm(3, 6)
    weight, bias = jnp.arange(1.0, 7), jnp.arange(6.0)
    ours = eqx.tree_at(lambda n: (n.weight, n.bias), ours, (weight, bias))
    theirs = eqx.tree_at(lambda n: (n.weight, n.bias), theirs, (weight, bias))
    x = jax.random.normal(KEY, (4, 5, 6))
    np.testing.assert_allclose(ours(x), jnp.moveaxis(theirs(jnp.moveaxis(x, -1, 0)), 0, -1), atol=1e-5)


# --- dropout -----------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_and_drops_whole_channels_if_told() -> None:
    x = jnp.ones((50, 50, 8))
    dropped = Dropout(0.25)(x, KEY)
    assert set(np.unique(dropped).tolist()) == {0.0, np.float32(1 / 0.75)}
    assert float(jnp.mean(dropped)) == pytest.approx(1, abs=0.02)  # 20,000 draws
    channels = np.asarray(Dropout(0.5, whole_channels=True)(x, KEY))
    assert all(len(np.unique(channels[..., c])) == 1 for c in range(8))
    assert len(np.unique(channels)) == 2
    np.testing.assert_array_equal(Dropout(0.25)(x, None), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, KEY), x)


def test_dropping_channels_before_the_pooling_is_dropping_them_after() -> None:
    """The network drops after the pooling, where there is a quarter of the work; the paper drops before."""
    x, drop = jax.random.normal(KEY, (6, 6, 4)), Dropout(0.5, whole_channels=True)
    pool = lambda x: x.reshape(3, 2, 3, 2, 4).max((1, 3))  # noqa: E731
    np.testing.assert_array_equal(pool(drop(x, KEY)), drop(pool(x), KEY))


def test_masks_are_the_same_in_both_precisions() -> None:
    draw = lambda: np.asarray(Dropout(0.5)(jnp.ones(100), KEY)) != 0  # noqa: E731
    single = draw()
    with jax.enable_x64(True):
        np.testing.assert_array_equal(draw(), single)


def test_models_say_whether_they_drop() -> None:
    assert has_dropout(mlp((4,), 2, KEY, dropout=0.1)) and not has_dropout(mlp((4,), 2, KEY))
    assert has_dropout(eqx.nn.Dropout(0.5)) and not has_dropout(eqx.nn.Dropout(0.5, inference=True))
    assert {name for name in MODELS if has_dropout(shaped(name))} == {"mnist-cnn", "cifar-cnn-async"}


def with_dropout(rate: float = 0.5, batch_size: int = 4):
    data, clients = images()
    return classification(data, clients, mlp((12, 12, 1), 4, KEY, hidden=[16], dropout=rate), batch_size=batch_size)


def asked(fed, client: int, question):
    """A question to a client's oracle, compiled: (oracle, starting point) -> answer."""
    answer = jax.jit(lambda clients, x, client: question(clients.oracle(client), x))
    return answer(fed.clients, fed.x0, jnp.asarray(client))


def test_the_same_sample_has_the_same_mask_at_two_points_and_another_sample_another() -> None:
    def question(oracle, x):
        z, other = oracle.draw(KEY), oracle.draw(jax.random.key(1))
        other_mask = eqx.tree_at(lambda s: s.content, z, (z.content[0], other.content[1]))  # on the same rows
        gradient = oracle.grad(x, z)
        numeric = (oracle.value(x + 1e-3 * gradient, z) - oracle.value(x - 1e-3 * gradient, z)) / 2e-3
        return oracle.value(x, z), oracle.value(x, other_mask), numeric, inner(gradient, gradient)

    value, with_other_mask, numeric, square = asked(with_dropout(), 1, question)
    assert float(numeric) == pytest.approx(float(square), rel=0.02)  # only if all three points have one mask
    assert abs(with_other_mask - value) > 1e-3


def test_a_pooled_sample_has_the_mean_of_its_batches_gradients() -> None:
    def question(oracle, x):
        walked = oracle.walk(lambda total, z, k: total + oracle.grad(x, z) / 3, x.zeros(), 3, KEY)
        return oracle.grad(x, oracle.draw(KEY, 3)), walked

    pooled, walked = asked(with_dropout(), 0, question)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), pooled, walked)


def test_evaluation_and_exact_gradients_drop_nothing() -> None:
    exact = lambda oracle, x: (oracle.full_value(x), oracle.full_grad(x))  # noqa: E731
    drawn = lambda oracle, x: oracle.value(x, oracle.draw(KEY))  # noqa: E731
    dropping, keeping = with_dropout(0.5), with_dropout(0.0)
    a, b = asked(dropping, 2, exact), asked(keeping, 2, exact)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(a), jax.tree.leaves(b))
    metrics = jax.jit(lambda clients, x: clients.metrics(x))
    assert metrics(dropping.clients, dropping.x0) == metrics(keeping.clients, keeping.x0)
    assert asked(dropping, 2, drawn) != asked(keeping, 2, drawn)  # the rows are the same, so it is the mask


def test_engines_agree_on_a_network_with_dropout() -> None:
    fed = with_dropout()
    method = sj.algorithms.FedAvg(step_size=0.1, num_local_steps=3)
    engines = [Reference(), Compiled("scan"), Compiled("vmap")]
    losses = [sj.run(fed, method, 2, engine=engine, progress=False).last("loss") for engine in engines]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    other = sj.run(with_dropout(0.0), method, 2, engine=Reference(), progress=False).last("loss")
    assert abs(other - losses[0]) > 1e-3  # without dropout the run is another one


def test_equinoxs_own_dropout_works_too() -> None:
    class Model(eqx.Module):
        linear: eqx.nn.Linear
        dropout: eqx.nn.Dropout

        def __call__(self, x, *, key=None):
            return self.linear(self.dropout(x.reshape(-1), key=key))

    data, clients = images()
    fed = classification(data, clients, Model(eqx.nn.Linear(144, 4, key=KEY), eqx.nn.Dropout(0.5)), batch_size=4)
    value, exact = asked(fed, 0, lambda oracle, x: (oracle.value(x, oracle.draw(KEY)), oracle.full_value(x)))
    plain = Model(eqx.nn.Linear(144, 4, key=KEY), eqx.nn.Dropout(0.5, inference=True))
    kept = classification(data, clients, plain, batch_size=4)
    assert not kept.clients.objective.stochastic
    kept_value, kept_exact = asked(kept, 0, lambda oracle, x: (oracle.value(x, oracle.draw(KEY)), oracle.full_value(x)))
    assert exact == kept_exact and abs(value - kept_value) > 1e-3


def test_a_random_loss_of_ones_own() -> None:
    def loss(x, batch, keys=None):
        noise = 0.0 if keys is None else jax.vmap(jax.random.normal)(keys)
        return jnp.mean((x - batch + noise) ** 2)

    rows = [np.zeros(5), np.ones(5)]
    fed = federation(loss, np.zeros(()), rows, batch_size=2, stochastic=True)
    oracle = fed.clients.oracle(jnp.asarray(0))
    assert oracle.value(fed.x0, oracle.draw(KEY)) > 0 == oracle.full_value(fed.x0)
    with pytest.raises(SojournError, match="the loss fails on a batch of one row"):
        federation(lambda x, batch: jnp.mean(x - batch), np.zeros(()), rows, batch_size=2, stochastic=True)


# --- frozen arrays -----------------------------------------------------------------------------------------------


def test_the_fixed_top_layer_is_not_trained_and_not_sent() -> None:
    data, clients = images()
    model = deep_relu((12, 12, 1), 4, KEY, width=8)
    fed = classification(data, clients, model)
    assert size(fed.x0) == 8 * 144
    history = sj.run(fed, sj.algorithms.FedAvg(step_size=0.1, num_local_steps=2), 2, progress=False)
    np.testing.assert_array_equal(history.params.top.value, model.top.value)
    assert float(jnp.abs(history.params.weights[0] - model.weights[0]).max()) > 1e-4
    whole = classification(data, clients, deep_relu((12, 12, 1), 4, KEY, width=8, train_top=True))
    assert size(whole.x0) == 8 * 144 + 4 * 8
    moved = sj.run(whole, sj.algorithms.FedAvg(step_size=0.1, num_local_steps=2), 2, progress=False).params
    assert float(jnp.abs(moved.top - model.top.value).max()) > 1e-4  # the same top, trained


def test_a_frozen_array_has_no_gradient_even_if_one_is_asked_for() -> None:
    slope = eqx.filter_grad(lambda f, x: jnp.sum(f() * x))(Frozen(jnp.ones(2)), jnp.ones(2))
    np.testing.assert_array_equal(slope.value, jnp.zeros(2))


# --- layers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers"),
    [("mlp", 2), ("deep-relu", 1), ("pyramid", 3), ("mnist-cnn", 4), ("cifar-cnn-small", 5), ("cifar-cnn-large", 4),
     ("cifar-cnn-async", 6), ("cifar-cnn-lamb", 5), ("resnet9", 9), ("resnet18", 21), ("resnet50", 54)],
)  # fmt: skip
def test_layers_are_read_off_every_models_parameters_without_its_normalisations(name: str, layers: int) -> None:
    """ResNet-18: 17 convolutions, 3 shortcuts, the last layer; ResNet-50: 49 and 4 and 1."""
    params = trained(shaped(name))
    found = layer_groups(Vec(params).tree)
    assert len(found) == layers
    leaves = jax.tree.leaves(params)
    inside = sum(leaves[place].size for layer in found for place in layer.leaves)
    norms = [n for n in jax.tree.leaves(params, is_leaf=lambda n: isinstance(n, GroupNorm)) if isinstance(n, GroupNorm)]
    assert inside + size(norms) == size(params)
    assert bool(norms) == (name == "cifar-cnn-async" or name.startswith("resnet"))


# --- training ----------------------------------------------------------------------------------------------------


def test_the_small_cnn_learns_the_quarters_of_an_image_on_every_placement() -> None:
    data, clients = images((16, 16, 3), clients=2, rows=40)
    fed = classification(data, clients, cifar_cnn_small((16, 16, 3), 4, KEY), batch_size=10)
    method = sj.algorithms.FedAvg(step_size=0.1, num_local_steps=5)
    runs = [sj.run(fed, method, 12, engine=Compiled(p), progress=False, eval_every=4) for p in ("scan", "vmap")]
    for history in runs:
        losses = history.table["loss"].dropna()
        assert losses.iloc[-1] < 0.5 * losses.iloc[0]
        assert history.last("test_accuracy") > 0.8
    np.testing.assert_allclose(runs[0].table["loss"], runs[1].table["loss"], rtol=1e-3)


def test_blocks_of_evaluation_shrink_with_what_a_network_makes_of_a_row(monkeypatch) -> None:
    data, clients = images()
    wide = classification(data, clients, mlp((12, 12, 1), 4, KEY, hidden=[2000]), batch_size=4)
    assert wide.clients.objective.evaluation_rows == 512  # many parameters, but little is made of a row

    def loss(x, batch):  # 64 numbers from every row
        return jnp.mean(jnp.sum(jnp.tanh(batch[:, None] * x), 1))

    x, rows = np.linspace(0, 1, 64), np.linspace(0, 1, 300)
    whole = federation(loss, x, [rows, rows + 1])
    monkeypatch.setattr(finite, "_EVALUATION_NUMBERS", 1 << 10)
    monkeypatch.setattr(finite, "_WHOLE_NUMBERS", 1 << 10)
    blocks = federation(loss, x, [rows, rows + 1])
    assert (whole.clients.objective.evaluation_rows, blocks.clients.objective.evaluation_rows) == (512, 16)
    answers = []
    for fed in (whole, blocks):  # the exact answers too are put together from blocks where a client has more rows
        oracle = fed.clients.oracle(jnp.asarray(1))
        answers.append((oracle.full_value(fed.x0), oracle.full_grad(fed.x0).tree, fed.clients.metrics(fed.x0)["loss"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *answers)
    assert float(answers[0][0]) == pytest.approx(np.mean(np.sum(np.tanh(np.outer(rows + 1, x)), 1)), rel=1e-5)
