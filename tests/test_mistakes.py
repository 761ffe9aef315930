"""Mistakes made from Python end in a sentence, before anything runs; what looks right and is not is caught too."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import sojourn as sj
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.report import rich_table

ROWS = [(np.ones((4, 2)), np.ones(4)), (np.ones((9, 2)), np.zeros(9))]


def squared(params: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return jnp.mean((batch[0] @ params - batch[1]) ** 2)


def absolute(params: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return jnp.mean(jnp.abs(batch[0] @ params - batch[1]))


def method() -> sj.algorithms.LocalSGD:
    return sj.algorithms.LocalSGD(step_size=0.01, num_local_steps=2)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(SojournError, match="mean over the rows"):
        sj.federation(lambda w, batch: (batch[0] @ w - batch[1]) ** 2, np.zeros(2), ROWS)


def test_a_loss_that_fails_is_told_in_one_line() -> None:
    with pytest.raises(SojournError, match="the loss fails") as caught:
        sj.federation(squared, np.zeros(3), ROWS)
    assert "\n" not in str(caught.value)


def test_only_arrays_of_a_model_are_trained() -> None:
    class Scaled(eqx.Module):
        weight: jax.Array
        scale: float = 2.0

    def loss(model: Scaled, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return squared(model.weight * model.scale, batch)

    trained = sj.run(sj.federation(loss, Scaled(jnp.zeros(2)), ROWS), method(), rounds=2).params
    assert trained.scale == 2.0
    assert float(jnp.abs(trained.weight).sum()) > 0


def test_parameters_without_a_float_array_are_refused() -> None:
    with pytest.raises(SojournError, match="nothing to train"):
        sj.federation(squared, np.zeros(2, int), ROWS)


def test_a_loss_that_is_not_a_number_has_diverged_though_the_model_is_finite() -> None:
    def loss(params: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        # past 0.05 the value is NaN and the gradient is not
        gone = jax.lax.stop_gradient(jnp.where(jnp.abs(params).max() > 0.05, jnp.nan, 0.0))
        return squared(params, batch) + gone

    federation = sj.federation(loss, np.zeros(2), ROWS)
    for engine in ("compiled", "reference"):
        history = sj.run(federation, method(), rounds=50, engine=engine, eval_every=1)
        assert history.status == "diverged"
        assert np.isfinite(np.asarray(history.params)).all()


def test_another_loss_is_another_run(tmp_path: Path) -> None:
    params = np.zeros(2)
    sj.run(sj.federation(squared, params, ROWS), method(), rounds=3, out=tmp_path)
    with pytest.raises(SojournError, match="another run"):
        sj.run(sj.federation(absolute, params, ROWS), method(), rounds=6, out=tmp_path, resume=True)
    assert sj.run(sj.federation(squared, params, ROWS), method(), rounds=6, out=tmp_path, resume=True).status == "ok"


@pytest.mark.parametrize(
    "wrong", [{"rounds": 1.5}, {"rounds": "10"}, {"seed": 1.7}, {"seed": "a"}, {"eval_every": 0.5}]
)
def test_numbers_that_are_not_whole_are_refused(quadratics: Federation, wrong: dict[str, object]) -> None:
    with pytest.raises(SojournError):
        sj.run(quadratics, method(), **{"rounds": 2, **wrong})  # type: ignore[arg-type]


def test_swapped_arguments_and_a_class_for_an_object_are_told(quadratics: Federation) -> None:
    for arguments in ((method(), quadratics), (quadratics, sj.algorithms.LocalSGD)):
        with pytest.raises(SojournError, match="a federation, then an algorithm"):
            sj.run(*arguments, rounds=2)  # type: ignore[arg-type]


def test_a_float64_federation_does_not_run_in_float32() -> None:
    with jax.enable_x64(True):
        federation = sj.problems.two_coordinates()
    with pytest.raises(SojournError, match="enable_x64"):
        sj.run(federation, method(), rounds=2)


def test_one_probe_may_be_named_alone(quadratics: Federation) -> None:
    assert "model_norm" in sj.run(quadratics, method(), rounds=2, record="model_norm").frame()


def test_noise_is_given_once_and_is_a_number() -> None:
    with pytest.raises(SojournError, match="give one"):
        sj.problems.quadratic(np.eye(2)[None], np.ones((1, 2)), noise=1.0, noise_covariance=np.eye(2))
    with pytest.raises(SojournError, match="noise"):
        sj.problems.quadratic(np.eye(2)[None], np.ones((1, 2)), noise=float("nan"))


def test_the_public_names_are_listed() -> None:
    assert {"run", "sweep", "federation", "problems", "algorithms", "models"} <= set(dir(sj))
    assert sj.__version__


def test_a_narrow_terminal_shows_every_number_whole(quadratics: Federation) -> None:
    methods = {"minibatch-sgd": 1e-5, "regularized": 0.01}
    histories = [
        sj.run(quadratics, sj.algorithms.LocalSGD(step_size=step), rounds=3, label=label)
        for label, step in methods.items()
    ]
    console = Console(width=80, record=True)
    console.print(rich_table(histories, 80))
    shown = console.export_text()
    assert "…" not in shown
    assert all(label in shown for label in methods)


def test_test_data_are_checked_like_the_clients() -> None:
    with pytest.raises(SojournError, match="no rows"):
        sj.federation(squared, np.zeros(2), ROWS, test=(np.ones((0, 2)), np.ones(0)))
    with pytest.raises(SojournError, match="not finite"):
        sj.federation(squared, np.zeros(2), ROWS, test=(np.full((1, 2), np.nan), np.ones(1)))


# --- what is given from Python to a classifier --------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> sj.data.Dataset:
    return sj.data.load("digits")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([-1, 2], "client 1 holds the rows -1 to 2; the data have 0 to"),
        ([0, 10**6], "client 1 holds the rows 0 to 1000000"),
        ([0.5, 1.0], "client 1 is given as float64 of shape"),
        ([[0, 1]], r"of shape \(1, 2\); expected row numbers"),
        ([], "client 1 holds no sample"),
    ],
)
def test_row_numbers_that_do_not_exist_are_named(digits: sj.data.Dataset, rows: Any, sentence: str) -> None:
    model = sj.models.mlp((64,), 10, jax.random.key(0))
    with pytest.raises(SojournError, match=sentence):
        sj.problems.classification(digits, [np.arange(5), np.asarray(rows)], model)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (3, "the model is a int"),
        (lambda: sj.models.mlp((5,), 10, jax.random.key(0)), r"does not take an input of shape \(64,\)"),
        (lambda: sj.models.mlp((64,), 9, jax.random.key(0)), r"scores of shape \(9,\); the data have 10 classes"),
        (lambda: lambda x: [x], "scores of shape list"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_named(digits: sj.data.Dataset, model: Any, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence) as caught:
        sj.problems.classification(digits, [np.arange(5)], model() if callable(model) else model)
    assert "\n" not in str(caught.value)


def test_a_class_without_a_training_sample_is_named() -> None:
    x, y = np.zeros((4, 2)), np.array([0, 1, 3, 3])
    with pytest.raises(SojournError, match="class 2 is missing from the training samples"):
        sj.data.Dataset("mine", x, y, x, y, num_classes=4)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda key: sj.models.deep_relu((4,), 2, key, width=0), "deep_relu.width = 0 does not fit"),
        (lambda key: sj.models.mlp((4,), 2, key, hidden=[4, 0]), "mlp.hidden"),
        (lambda key: sj.models.resnet9((8, 8, 3), 10, key, width=6, groups=4), "channels; take 2, or another"),
        (lambda key: sj.algorithms.FedLAMB(0.1, min_scale=2.0, max_scale=1.0), "min_scale = 2.0 is above max_scale"),
    ],
)
def test_numbers_out_of_range_are_named_in_python_too(build: Any, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        build(jax.random.key(0))
