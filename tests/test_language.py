"""The language model: its cell retyped in NumPy, windows, clipping, perplexity, and the way from a config to a run."""

import dataclasses
import functools
import hashlib
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.config import to_toml, validate
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import root_key
from sojourn.core.vec import Vec, norm, size
from sojourn.data import Text
from sojourn.data.shortened import shortened, tinyshakespeare_text
from sojourn.data.source import File, Source
from sojourn.experiment import build_federation, run_config
from sojourn.models.lstm import LSTM
from sojourn.problems.language import Stretches
from test_contract import quick_compilation
from test_parity import assert_same_state, assert_same_table
from test_parity import play as play_rounds

# Both sides do the same float64 arithmetic on numbers of order one, in another order.
ROUNDING = 1e-12

Tables = dict[str, Any]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def text_of(num_train: int = 130, num_test: int = 40, vocabulary: int = 7, seed: int = 0) -> Text:
    rng = np.random.default_rng(seed)
    draw = lambda number: rng.integers(0, vocabulary, number)  # noqa: E731
    words = tuple(f"w{k}" for k in range(vocabulary))
    return Text("drawn", draw(num_train), draw(5), draw(num_test), words)


def model_of(vocabulary: int = 7, **options: Any) -> LSTM:
    return _model(jax.config.jax_enable_x64, vocabulary, **{"units": 5, **options})


@functools.cache  # drawing the first weights compiles a program for every shape
def _model(x64: bool, vocabulary: int, **options: Any) -> LSTM:
    return sj.models.lstm(vocabulary, root_key(0), **options)


def federation_of(text: Text, num_clients: int = 3, bptt: int = 6, **options: Any) -> Federation:
    model = options.pop("model", None) or model_of(len(text.vocabulary), layers=1)
    clients = sj.partition.contiguous(text.train, num_clients)
    return sj.problems.language_model(text, clients, model, bptt=bptt, **options)


def objective_of(federation: Federation) -> Stretches:
    objective = federation.clients.objective
    assert isinstance(objective, Stretches)
    return objective


# --- the model ---------------------------------------------------------------------------------------------------


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_in_numpy(model: LSTM, tokens: np.ndarray, order: str = "ifgo") -> np.ndarray:
    """The rule, a step and a gate at a time. `order` says which quarter of a layer's columns is which gate."""
    x = np.asarray(model.embedding.weight)[tokens]
    for layer in model.layers:
        weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
        units = len(bias) // 4
        column = {gate: slice(k * units, (k + 1) * units) for k, gate in enumerate(order)}
        h, c, outputs = np.zeros(units), np.zeros(units), []
        for one in x:
            both = np.concatenate([one, h])
            i, f, g, o = (both @ weight[:, column[gate]] + bias[column[gate]] for gate in "ifgo")
            c = logistic(f) * c + logistic(i) * np.tanh(g)
            h = logistic(o) * np.tanh(c)
            outputs.append(h)
        x = np.stack(outputs)
    matrix = model.embedding.weight if model.decoder.weight is None else model.decoder.weight
    return x @ np.asarray(matrix).T + np.asarray(model.decoder.bias)


def losses_in_numpy(model: LSTM, window: np.ndarray) -> np.ndarray:
    scores = lstm_in_numpy(model, window[:-1])
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(len(scores)), window[1:]]


@pytest.mark.parametrize("options", [{"layers": 1, "embedding": 3}, {"layers": 3, "tied": True}])
def test_the_scores_are_those_of_the_rule(options: dict[str, Any], x64: None) -> None:
    model = model_of(**options)
    model = eqx.tree_at(lambda m: m.decoder.bias, model, jnp.arange(7.0))  # it begins at zero
    tokens = np.array([3, 0, 6, 6, 1])
    found = np.asarray(eqx.filter_jit(model)(jnp.asarray(tokens)))
    assert found.shape == (5, 7)
    np.testing.assert_allclose(found, lstm_in_numpy(model, tokens), rtol=0, atol=ROUNDING)
    for other in ("figo", "ifog"):  # gates in other places are another model
        assert np.abs(found - lstm_in_numpy(model, tokens, other)).max() > 1e-4


def test_a_score_knows_the_past_and_not_the_future(x64: None) -> None:
    one, other = jax.jit(jax.vmap(model_of(layers=1)))(jnp.array([[1, 2, 3, 4], [1, 2, 5, 4]]))
    np.testing.assert_array_equal(one[:2], other[:2])
    assert (np.abs(one[2:] - other[2:]).max(1) > 1e-6).all()


@pytest.mark.parametrize(
    ("vocabulary", "units", "layers", "embedding", "tied"),
    [(7, 5, 2, None, False), (7, 5, 1, 3, False), (11, 4, 3, None, True), (10_000, 200, 2, None, False)],
)
def test_the_number_of_weights(vocabulary: int, units: int, layers: int, embedding: int | None, tied: bool) -> None:
    options = {"units": units, "layers": layers, "embedding": embedding, "tied": tied}
    made = eqx.filter_eval_shape(lambda: sj.models.lstm(vocabulary, root_key(0), **options))
    width = embedding or units
    in_layers = 4 * units * (width + units + 1) + (layers - 1) * 4 * units * (2 * units + 1)
    expected = vocabulary * width + in_layers + vocabulary + (0 if tied else vocabulary * units)
    assert size(eqx.filter(made, lambda leaf: hasattr(leaf, "shape"))) == expected


def test_the_first_weights_fill_their_ranges() -> None:
    model = sj.models.lstm(40, root_key(1), units=25)
    for weight, edge in [
        (model.embedding.weight, 0.1),
        (model.decoder.weight, 0.1),
        (model.layers[0].weight, 0.2),
        (model.layers[1].bias, 0.2),
    ]:
        numbers = np.asarray(weight).ravel()
        assert np.abs(numbers).max() <= edge
        # of n uniform numbers the largest is below 0.9 of the edge with probability 0.9^n < 3e-5 here
        assert len(numbers) >= 100 and np.abs(numbers).max() > 0.9 * edge
        assert abs(numbers.mean()) < 4 * edge / math.sqrt(3 * len(numbers))
    assert not np.asarray(model.decoder.bias).any()
    assert not np.array_equal(model.layers[0].weight, model.layers[1].weight)


def test_dropout_needs_a_key_and_zeroes_what_it_drops(x64: None) -> None:
    tokens, keys = jnp.array([1, 2, 3]), [root_key(1), root_key(2)]
    plain, model = model_of(layers=1), model_of(layers=1, dropout=0.5)
    # with everything before the scores dropped, only their bias is left
    all_gone = eqx.tree_at(lambda m: m.decoder.bias, model_of(layers=1, dropout=1 - 1e-12), jnp.arange(7.0))

    @jax.jit
    def scores() -> Any:
        dropped = [model(tokens, key=key) for key in keys]
        return plain(tokens), model(tokens), *dropped, all_gone(tokens, key=keys[0])

    undropped, evaluated, one, other, nothing = map(np.asarray, scores())
    np.testing.assert_array_equal(evaluated, undropped)
    assert np.abs(one - undropped).max() > 1e-3 and np.abs(one - other).max() > 1e-3
    np.testing.assert_array_equal(nothing, np.tile(np.arange(7.0), (3, 1)))


def products_in_loops(jaxpr: Any, inside: bool = False) -> list[Any]:
    """The matrix products of a program that stand inside a loop over time."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and inside:
            found.append(equation)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += products_in_loops(inner, inside or equation.primitive.name == "scan")
    return found


def test_a_batch_is_one_product_per_step() -> None:
    arrays, rest = eqx.partition(model_of(), eqx.is_inexact_array)
    tokens = jnp.zeros((9, 6), jnp.int32)

    def loss(arrays: Any) -> jax.Array:
        return jnp.sum(jax.vmap(eqx.combine(arrays, rest))(tokens))

    forward, backward = (products_in_loops(jax.make_jaxpr(f)(arrays).jaxpr) for f in (loss, jax.grad(loss)))
    assert [equation.outvars[0].aval.shape for equation in forward] == [(9, 20)] * 2  # one for each of two layers
    # backward too: the state's and the matrix's gradient, which sums over the batch at once
    assert len(backward) == 3 * 2
    for equation in forward + backward:
        _, (left, right) = equation.params["dimension_numbers"]
        assert left == right == (), "a batch dimension would be a product for each member"


# --- windows -----------------------------------------------------------------------------------------------------


def numbered(length: int, num_test: int = 20) -> Text:
    """A text whose every token is another, so that a token tells its place."""
    words = tuple(str(k) for k in range(length))
    return Text("numbered", np.arange(length), np.arange(5), np.arange(num_test), words)


def test_stretches_share_no_token_and_follow_one_another() -> None:
    dealt = sj.partition.contiguous(np.zeros(50, int), 4)
    np.testing.assert_array_equal(np.concatenate(dealt), np.arange(48))  # the two that do not go up are left out
    assert {len(part) for part in dealt} == {12}


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    """(3 clients, 1000, 2, 7) windows drawn from stretches of 20 tokens whose numbers are their places."""
    objective = federation_of(numbered(62), batch_size=2, model=model_of(62, units=2, layers=1)).clients.objective
    draw = lambda m: objective.draw(objective.open(m), jax.random.fold_in(root_key(0), m), 1000, 2)  # noqa: E731
    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(3)))


def assert_windows_of(windows: np.ndarray, first: int, last: int) -> None:
    """All windows that fit into a client's stretch, and no others."""
    windows = windows.reshape(-1, windows.shape[-1])
    np.testing.assert_array_equal(np.diff(windows), 1)
    assert set(windows[:, 0]) == set(range(first, last - windows.shape[1] + 2))


def test_windows_lie_anywhere_in_the_client_s_own_stretch_and_nowhere_else(windows: np.ndarray) -> None:
    assert windows.shape == (3, 1000, 2, 7)
    for client in range(3):
        assert_windows_of(windows[client], 20 * client, 20 * client + 19)
    # the check sees windows of a neighbour, windows that are missing, and windows that run over the edge
    with pytest.raises(AssertionError):
        assert_windows_of(windows[1], 0, 19)
    with pytest.raises(AssertionError):
        assert_windows_of(windows[1][windows[1][:, :, 0].max(1) < 33], 20, 39)
    with pytest.raises(AssertionError):
        assert_windows_of(windows[1] + 1, 20, 39)


def test_starts_are_uniform(windows: np.ndarray) -> None:
    starts = windows[1, :, :, 0].ravel() - 20
    counts = np.bincount(starts, minlength=14)
    expected = len(starts) / 14
    # chi-squared with 13 degrees of freedom is above 41 with probability 1e-4
    assert ((counts - expected) ** 2 / expected).sum() < 41
    squeezed = np.bincount(starts * starts // 14, minlength=14)  # the check sees other laws
    assert ((squeezed - expected) ** 2 / expected).sum() > 41


def test_the_first_draws_do_not_depend_on_how_many_there_are(windows: np.ndarray) -> None:
    objective = federation_of(numbered(62), batch_size=2, model=model_of(62, units=2, layers=1)).clients.objective
    key = jax.random.fold_in(root_key(0), 2)
    few = jax.jit(lambda m: objective.draw(objective.open(m), key, 3, 2))(2)
    np.testing.assert_array_equal(few, windows[2, :3])


def test_exact_answers_guess_every_token_once() -> None:
    objective = objective_of(federation_of(numbered(62), bptt=6, model=model_of(62, units=2, layers=1)))
    rows = np.asarray(objective.rows)
    assert rows.shape == (3 * 3, 7)
    for client in range(3):
        mine = rows[3 * client : 3 * client + 3]
        np.testing.assert_array_equal(mine[:, 1:].ravel(), 20 * client + np.arange(1, 19))  # the last is left out
    assert objective.num_samples(objective.open(jnp.asarray(0))) == 3


# --- values and gradients ----------------------------------------------------------------------------------------


def windows_in_numpy(stretch: np.ndarray, bptt: int) -> list[np.ndarray]:
    return [stretch[k : k + bptt + 1] for k in range(0, len(stretch) - bptt, bptt)]


def test_loss_perplexity_and_accuracy_are_those_of_numpy(x64: None) -> None:
    text, bptt = text_of(), 6
    federation = federation_of(text, bptt=bptt)
    found = jax.jit(lambda x: federation.clients.metrics(x))(federation.x0)
    model = federation.rebuild(federation.x0.tree)
    stretches = [text.train[part] for part in sj.partition.contiguous(text.train, 3)]
    for prefix, parts in (("", stretches), ("test_", [text.test])):
        windows = [window for part in parts for window in windows_in_numpy(part, bptt)]
        losses = np.stack([losses_in_numpy(model, window) for window in windows])
        best = np.stack([lstm_in_numpy(model, window[:-1]).argmax(1) for window in windows])
        hits = np.mean(best == np.stack([window[1:] for window in windows]))
        np.testing.assert_allclose(found[f"{prefix}loss"], losses.mean(), rtol=0, atol=ROUNDING)
        np.testing.assert_allclose(found[f"{prefix}perplexity"], np.exp(losses.mean()), rtol=0, atol=10 * ROUNDING)
        np.testing.assert_allclose(found[f"{prefix}accuracy"], hits, rtol=0, atol=ROUNDING)
        assert abs(found[f"{prefix}perplexity"] - np.exp(losses).mean()) > 1e-4  # not the mean of exponentials
    # what a memory carried over the windows would give is another number: it begins empty in each
    carried = losses_in_numpy(model, text.test[:37])
    assert abs(carried.mean() - float(found["test_loss"])) > 1e-7


def test_blocks_of_windows_give_what_all_at_once_give(x64: None) -> None:
    federation = federation_of(text_of(), clip=0.0)
    whole = objective_of(federation)
    x, view = federation.x0.tree, whole.open(jnp.asarray(1))
    assert whole.equal_size == 7 <= whole.whole_rows
    cut = dataclasses.replace(whole, whole_rows=3, evaluation_rows=2)  # 7 = 3 + 3 + 1

    @jax.jit
    def answers(x: Any) -> Any:
        return [(o.full_value(x, view), o.full_grad(x, view), o.metrics(x, None)) for o in (cut, whole)]

    found, expected = answers(x)
    assert set(found[2]) == {f"{p}{n}" for p in ("", "test_") for n in ("loss", "perplexity", "accuracy")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=10 * ROUNDING), found, expected)


def test_a_large_vocabulary_is_looked_at_in_small_blocks() -> None:
    text = text_of(num_train=3000, vocabulary=4)
    few = objective_of(federation_of(text, 2, bptt=35))
    words = tuple(str(k) for k in range(20_000))
    many = objective_of(
        federation_of(
            dataclasses.replace(text, vocabulary=words), 2, bptt=35, model=model_of(20_000, units=2, layers=1)
        )
    )
    assert few.evaluation_rows == few.whole_rows == 64
    assert many.evaluation_rows * 35 * 20_000 <= 1 << 23 and many.whole_rows == many.evaluation_rows
    assert many.largest_array(None) == many.whole_rows * 35 * 20_000


def test_the_gradient_is_that_of_finite_differences(x64: None) -> None:
    federation = federation_of(text_of(), batch_size=2, clip=0.0)
    objective, x = federation.clients.objective, federation.x0
    view = objective.open(jnp.asarray(1))
    z = jax.tree.map(lambda a: a[0], objective.draw(view, root_key(3), 1, 2))
    sampled, exact = jax.jit(lambda x: (objective.grad(x, view, z), objective.full_grad(x, view)))(x.tree)
    values = jax.jit(lambda x: jnp.stack([objective.value(x, view, z), objective.full_value(x, view)]))
    rng, step = np.random.default_rng(0), 1e-5  # error: step^2 from the third derivative, 1e-16/step from rounding
    for _ in range(3):
        way = Vec(jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), x.tree))
        found = np.asarray(values((x + step * way).tree) - values((x - step * way).tree)) / (2 * step)
        expected = [inner(Vec(gradient), way) for gradient in (sampled, exact)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
        assert abs(expected[0] - expected[1]) > 1e-3  # another sample is another gradient


def inner(a: Vec, b: Vec) -> float:
    return float(sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


def test_a_long_gradient_is_shortened_and_a_short_one_kept(x64: None) -> None:
    federation = federation_of(text_of(), batch_size=2, clip=0.05)
    unclipped = federation_of(text_of(), batch_size=2, clip=0.0).clients.objective
    clipping, x = objective_of(federation), federation.x0.tree
    assert float(clipping.clip) == 0.05

    @jax.jit
    def gradients(x: Any) -> Any:
        view = clipping.open(jnp.asarray(1))
        z = jax.tree.map(lambda a: a[0], clipping.draw(view, root_key(3), 1, 2))
        loose = dataclasses.replace(clipping, clip=jnp.asarray(1e6))
        return [(o.grad(x, view, z), o.full_grad(x, view)) for o in (unclipped, clipping, loose)]

    for plain, short, loose in zip(*gradients(x), strict=True):  # of a sample, then exact
        length = float(norm(Vec(plain)))
        assert length > 0.1, "or there is nothing to clip"
        np.testing.assert_allclose(float(norm(Vec(short))), 0.05, rtol=ROUNDING)
        for a, b, c in zip(*(jax.tree.leaves(g) for g in (plain, short, loose)), strict=True):
            np.testing.assert_allclose(b, np.asarray(a) * 0.05 / length, rtol=0, atol=ROUNDING)
            np.testing.assert_allclose(c, a, rtol=0, atol=ROUNDING)


def test_dropout_is_drawn_with_the_sample(x64: None) -> None:
    dropping, plain = (
        federation_of(text_of(), batch_size=2, model=model_of(layers=1, dropout=rate)) for rate in (0.5, 0.0)
    )

    @jax.jit
    def values() -> Any:
        oracle = dropping.clients.oracle(jnp.asarray(0))
        z = oracle.draw(root_key(5))
        undropped = plain.clients.objective.value(plain.x0.tree, None, z.content[0])
        losses = [federation.clients.metrics(federation.x0)["loss"] for federation in (dropping, plain)]
        return oracle.value(dropping.x0, z), oracle.value(dropping.x0, z), undropped, losses

    one, again, undropped, losses = values()
    assert float(one) == float(again) and abs(float(one) - float(undropped)) > 1e-6
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=ROUNDING)  # evaluation drops nothing


# --- texts made shorter ------------------------------------------------------------------------------------------


def test_the_commonest_words_stay_and_the_others_are_unknown() -> None:
    words = ("a", "b", "<unk>", "c", "d")
    text = Text("t", np.array([0, 3, 3, 4, 1, 4, 3, 0, 0]), np.array([1, 2]), np.array([4, 0, 3]), words)
    short = shortened(text, None, 2, 3)
    assert short.vocabulary == ("a", "<unk>", "c")
    assert short.decode(short.train) == "a c c <unk> <unk> <unk> c a a"
    assert short.decode(short.test) == "<unk> a" and short.decode(short.valid) == "<unk> <unk>"
    assert shortened(text, 6, None, 3).vocabulary == ("<unk>", "c", "d")  # counted in what is left
    assert shortened(text, None, None, 5).vocabulary == words
    without = dataclasses.replace(text, vocabulary=("a", "b", "e", "c", "d"))
    assert shortened(without, None, None, 2).vocabulary == ("a", "<unk>")
    with pytest.raises(SojournError, match="more than the 9 tokens"):
        shortened(text, 10, None)


# --- from a config to a run --------------------------------------------------------------------------------------

PLAY = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 12


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny Shakespeare that is tiny."""
    content = PLAY.encode()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "input.txt").write_bytes(content)
    monkeypatch.setenv("SOJOURN_DATA", str(tmp_path / "texts"))
    source = Source("tinyshakespeare", (File(("input.txt",), hashlib.sha256(content).hexdigest()),), ())
    monkeypatch.setattr("sojourn.data.tinyshakespeare.TINYSHAKESPEARE", source)


def tables(**changes: Any) -> Tables:
    return {
        "problem": {"name": "language-model", "batch_size": 4, "bptt": 8},
        "data": {"name": "tinyshakespeare", "test_share": 0.1},
        "partition": {"name": "contiguous", "num_clients": 4},
        "model": {"name": "lstm", "units": 8, "layers": 1, "dropout": 0.1},
        "algorithm": {"name": "fedavg", "step_size": 4.0, "num_local_steps": 5},
        "run": {"rounds": 8, "participation": 2, "eval_every": 4},
    } | changes


def test_a_config_trains_a_language_model_and_a_resumed_run_is_the_run(play: None, tmp_path: Path) -> None:
    def history(out: str, rounds: int = 8, resume: bool = False, step_size: float = 4.0) -> Any:
        algorithm = {"name": "fedavg", "step_size": step_size, "num_local_steps": 5}
        config = validate(tables(algorithm=algorithm, run={"rounds": rounds, "participation": 2, "eval_every": 4}))
        return run_config(config, tmp_path / out, resume=resume, progress=False)[0]

    trained = history("trained")
    frame = trained.frame()
    assert trained.status == "ok"
    falls = {name: float(frame[name].iloc[0] - frame[name].iloc[-1]) for name in ("loss", "test_loss")}
    assert min(falls.values()) > 0.3, falls
    last = frame.iloc[-1]
    np.testing.assert_allclose(last["test_perplexity"], np.exp(last["test_loss"]), rtol=1e-5)
    # uniform guesses have the perplexity of the vocabulary; a start within 0.1 of zero scores is near them
    np.testing.assert_allclose(frame["perplexity"].iloc[0], len(set(PLAY)), rtol=0.05)
    assert trained.table["calls_grad"].sum() == 8 * 2 * 5 and trained.table["samples"].sum() == 8 * 2 * 5 * 4
    # a run that does not move does not learn: the fall is the training's
    assert np.ptp(history("still", step_size=1e-9).frame()["loss"].dropna()) < 1e-3

    history("resumed", rounds=4)
    resumed = history("resumed", resume=True)
    drop = lambda h: h.table.drop(columns="seconds")  # noqa: E731
    pd.testing.assert_frame_equal(drop(resumed), drop(trained), check_exact=True)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, trained.params)


def test_engines_agree(x64: None) -> None:
    federation = federation_of(text_of(), 2, batch_size=2)
    method = sj.algorithms.FedAvg(step_size=1.0, num_local_steps=2)
    compiled, plain = (play_rounds(federation, method, e, rounds=1) for e in (sj.engine.Compiled("vmap"), "reference"))
    assert_same_table(compiled[1], plain[1])
    assert_same_state(compiled[0], plain[0])
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), plain[0].server.x, federation.x0)
    assert max(jax.tree.leaves(moved)) > 1e-3  # something happened


def test_a_config_s_defaults_are_written_out_and_read_again() -> None:
    config = validate({"problem": {"name": "language-model"}, "algorithm": {"name": "fedavg", "step_size": 1.0}})
    assert config.tables["problem"] == {"name": "language-model", "bptt": 35, "clip": 0.25}
    assert [config.tables[t]["name"] for t in ("data", "partition", "model")] == [
        "tinyshakespeare",
        "contiguous",
        "lstm",
    ]
    assert validate(tomllib.loads(to_toml(config.tables))) == config


def test_a_text_of_a_config_can_be_cut(play: None) -> None:
    text = tinyshakespeare_text(num_train=100, num_test=20)
    assert (len(text.train), len(text.test)) == (100, 20)
    federation = build_federation(validate(tables(data={"name": "tinyshakespeare", "num_train": 100, "num_test": 50})))
    assert objective_of(federation).tokens.shape == (4, 25)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"name": "mlp"}}, 'model.name = "mlp" does not fit problem "language-model"; give one of lstm'),
        ({"data": {"name": "mnist"}}, 'data.name = "mnist" does not fit problem "language-model"; give one of tiny'),
        ({"partition": {"name": "iid"}}, 'partition.name = "iid" does not fit .* give one of contiguous'),
        ({"problem": {"name": "classification"}}, 'data.name = "tinyshakespeare" does not fit problem "classif'),
        ({"model": {"name": "lstn"}}, 'did you mean "lstm"'),
        ({"data": {"name": "tinyshakespear"}}, 'did you mean "tinyshakespeare"'),
        ({"partition": {"name": "contiguos"}}, 'did you mean "contiguous"'),
        ({"partition": {"num_clients": 4, "redeal": "all"}}, "partition.redeal is not known"),
        ({"problem": {"name": "language-model", "clip": -1.0}}, "problem.clip = -1.0 does not fit"),
        ({"problem": {"name": "language-model", "bptt": 0}}, "problem.bptt = 0 does not fit"),
        ({"model": {"units": 0}}, "model.units = 0 does not fit"),
    ],
)
def test_a_mistake_in_a_config_is_one_sentence(changes: Tables, expected: str) -> None:
    with pytest.raises(SojournError, match=expected) as caught:
        validate(tables(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"partition": {"num_clients": 1000}}, "partition.num_clients = 1000 is too many for a text of"),
        ({"partition": {"num_clients": 120}}, "a window takes 9; take fewer clients"),
        ({"problem": {"name": "language-model", "bptt": 8}}, "has dropout"),
        ({"data": {"name": "tinyshakespeare", "num_train": 10**6}}, "data.num_train = 1000000 is more than"),
        ({"data": {"name": "tinyshakespeare", "num_test": 8}}, "8 tokens to test on; a window takes 9"),
        ({"model": {"name": "lstm", "embedding": 3, "tied": True}}, "make them equal, or set tied = false"),
        ({"model": {"name": "lstm", "units": 10_000}}, "parameters; at most"),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_one_sentence(changes: Tables, expected: str, play: None) -> None:
    config = validate(tables(**changes))
    with pytest.raises(SojournError, match=expected) as caught:
        build_federation(config)
    assert "\n" not in str(caught.value)


def test_mistakes_from_python_are_told() -> None:
    text, model = text_of(), model_of()
    dealt = sj.partition.contiguous(text.train, 3)
    make = functools.partial(sj.problems.language_model, text, model=model, bptt=6)
    for clients, expected in [
        ([dealt[0], dealt[1][:-1]], "equally long"),
        ([dealt[0][::-1]], "follow one another"),
        ([np.arange(len(text.train) - 10, len(text.train) + 10)], "from 0 to 129"),
        ([], "at least one"),
        ([np.ones(20)], "lists of places"),
    ]:
        with pytest.raises(SojournError, match=expected):
            make(clients)
    for wrong, expected in [
        (model_of(8), "the text has 7 different ones"),
        (sj.models.mlp((6,), 7, root_key(0)), "the model"),
        ("lstm", "is a str"),
    ]:
        with pytest.raises(SojournError, match=expected):
            sj.problems.language_model(text, dealt, wrong, bptt=6)
    with pytest.raises(SojournError, match="not on a ndarray"):
        sj.problems.language_model(text.train, dealt, model)  # type: ignore[arg-type]
    with pytest.raises(SojournError, match="units"):
        model_of(units=0)
