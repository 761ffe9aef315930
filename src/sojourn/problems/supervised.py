"""Supervised learning on a partitioned data set: a neural classifier, logistic regression, least squares.

Each takes the data set and the clients' lists of row numbers, and returns a federation with a test set.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.facts import Facts
from sojourn.core.federation import Federation
from sojourn.core.setup import Prepared, Setup, fingerprint
from sojourn.data.dataset import Dataset, Pixels
from sojourn.models.layers import has_dropout
from sojourn.partition import Redealt, label_counts
from sojourn.problems.finite import federation_of_rows
from sojourn.problems.logistic_facts import logistic_facts, with_ones
from sojourn.problems.quadratic_facts import hessian_gap

BatchSize = Annotated[int | None, Field(ge=1, description="samples per gradient; leave it out for exact gradients")]
Weights = Annotated[Literal["equal", "size"], Field(description="the clients' shares of the objective")]
Loss = Annotated[
    Literal["cross-entropy", "squared"],
    Field(description="of the scores; squared: half the squared distance to the one-hot labels"),
]
Regularization = Annotated[float, Field(ge=0, description="adds (l2/2) ||params||^2")]


def classification(
    data: Dataset,
    clients: Sequence[np.ndarray],
    model: Any,
    *,
    loss: Loss = "cross-entropy",
    batch_size: BatchSize = None,
    weights: Weights = "equal",
) -> Federation:
    """Cross-entropy, or squared error, of any Equinox model; the model maps one input to class scores.

    A model with dropout (a `sojourn.models.layers.Dropout` or an `eqx.nn.Dropout` in it) also takes `key=…`, and is
    given one in training only. One that was made together with the clients (`Prepared`) brings its setup.
    """
    setup = None
    if isinstance(model, Prepared):
        setup = _bound(model.setup, data, clients, loss, weights)
        model = model.model
    _check_model(model, data)
    if loss not in _LOSSES:
        raise unknown_name("problem.loss", loss, _LOSSES)
    return _supervised(
        data, clients, _OfScores(_LOSSES[loss]), model, _accuracy, batch_size, weights, "classification",
        stochastic=has_dropout(model), setup=setup,
    )  # fmt: skip


def _check_model(model: Any, data: Dataset) -> None:
    if not callable(model):
        raise SojournError(f"the model is a {type(model).__name__}; expected one that maps an input to class scores.")
    shape = data.x_train.shape[1:]
    try:
        scores = jax.eval_shape(eqx.nn.inference_mode(model), jax.ShapeDtypeStruct(shape, jnp.result_type(float)))
    except SojournError:
        raise
    except Exception as error:  # whatever a user's model does with an input that it was not made for
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SojournError(f"the model does not take an input of shape {shape}, as the data have: {why}") from error
    found = getattr(scores, "shape", type(scores).__name__)
    if found != (data.num_classes,):
        raise SojournError(f"the model gives scores of shape {found}; the data have {data.num_classes} classes.")


def _bound(setup: Setup, data: Dataset, clients: Sequence[np.ndarray], loss: str, weights: str) -> Setup:
    """The setup of a model that was made together with these clients, and no others."""
    if isinstance(clients, Redealt):
        raise SojournError("a model that was made together with its clients needs data that stay; leave redeal out.")
    if setup.clients not in (None, fingerprint(_parts(data, clients))):
        raise SojournError("the model was made together with other clients; make it with these, or deal as then.")
    return dataclasses.replace(setup, problem={"loss": loss, "weights": weights})


def logistic_regression(
    data: Dataset,
    clients: Sequence[np.ndarray],
    *,
    l2: Regularization = 1e-3,
    batch_size: BatchSize = None,
    weights: Weights = "equal",
) -> Federation:
    """Multiclass logistic regression, started at zero; strongly convex when l2 is positive, and then solved exactly."""
    params = {"weight": _zeros(data.num_classes, data.x_train[0].size), "bias": _zeros(data.num_classes)}
    facts = None
    if not isinstance(clients, Redealt):  # facts are about functions that stay the same
        parts = _parts(data, clients)
        shares = _shares(parts, weights)
        facts = logistic_facts([x for x, _ in parts], [y for _, y in parts], data.num_classes, l2, shares)
    loss = _WithL2(_linear_cross_entropy, l2)
    return _supervised(
        data, clients, loss, params, _linear_accuracy, batch_size, weights, "logistic-regression", facts=facts,
        gradient=_SoftmaxGradient(l2),
    )  # fmt: skip


def least_squares(
    data: Dataset,
    clients: Sequence[np.ndarray],
    *,
    l2: Regularization = 0.0,
    batch_size: BatchSize = None,
    weights: Weights = "equal",
) -> Federation:
    """Linear least squares on the one-hot labels, 1/2 ||y - W a||^2; quadratic, so its facts are exact."""
    params = {"weight": _zeros(data.num_classes, data.x_train[0].size), "bias": _zeros(data.num_classes)}
    facts = None
    if not isinstance(clients, Redealt):
        parts = _parts(data, clients)
        facts = _least_squares_facts(parts, data.num_classes, l2, _shares(parts, weights))
    return _supervised(
        data, clients, _WithL2(_squared_error, l2), params, _linear_accuracy, batch_size, weights, "least-squares",
        facts=facts,
    )  # fmt: skip


def _supervised(
    data: Dataset, clients: Sequence[np.ndarray], loss: Any, params: Any, metrics: Any, batch_size: int | None,
    weights: str, name: str, facts: Facts | None = None, gradient: Any = None, stochastic: bool = False,
    setup: Setup | None = None,
) -> Federation:  # fmt: skip
    sizes = _sizes(data, clients)
    rows = np.concatenate(list(clients))  # gathered once: large data are held twice at most, and once in the end
    groups = clients.groups[rows] if isinstance(clients, Redealt) else None
    if data.pixels is not None:
        loss, metrics = _OnBytes(loss, data.pixels), _OnBytes(metrics, data.pixels)
        gradient = None if gradient is None else _OnBytes(gradient, data.pixels)
    return federation_of_rows(
        loss, params, (data.x_train[rows], data.y_train[rows]), sizes, batch_size=batch_size, metrics=metrics,
        facts=facts, gradient=gradient, groups=groups, stochastic=stochastic, name=name,
        weights="size" if weights == "size" else None, test=(data.x_test, data.y_test),
        label_counts=_fixed_labels(data, clients), setup=setup,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _OnBytes:
    """A function of a batch of images that are stored as bytes; compared by content."""

    function: Any
    pixels: Pixels

    def __call__(self, params: Any, batch: Any, *keys: Any) -> Any:
        return self.function(params, (self.pixels(batch[0], jnp.result_type(float)), batch[1]), *keys)


def _fixed_labels(data: Dataset, clients: Sequence[np.ndarray]) -> np.ndarray | None:
    """Labels per client, unless a client's labels change from round to round."""
    if isinstance(clients, Redealt) and not clients.keeps_labels:
        return None
    return label_counts(data.y_train, clients, data.num_classes)


def _sizes(data: Dataset, clients: Sequence[np.ndarray]) -> np.ndarray:
    """How many samples every client holds, by row numbers that exist; one sample may be held by several."""
    for number, rows in enumerate(clients):
        rows, most = np.asarray(rows), len(data.y_train)
        if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
            raise SojournError(f"client {number} is given as {rows.dtype} of shape {rows.shape}; expected row numbers.")
        if rows.size and (rows.min() < 0 or rows.max() >= most):
            raise SojournError(
                f"client {number} holds the rows {rows.min()} to {rows.max()}; the data have 0 to {most - 1}."
            )
    sizes = np.array([len(part) for part in clients])
    if len(sizes) == 0 or sizes.min() == 0:
        which = f"client {int(sizes.argmin())} holds no sample" if len(sizes) else "there are no clients"
        raise SojournError(f"{which}; give every client at least one.")
    return sizes


def _parts(data: Dataset, clients: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    _sizes(data, clients)
    return [(data.read(data.x_train[rows]), data.y_train[rows]) for rows in clients]


def _shares(parts: Sequence[tuple[np.ndarray, np.ndarray]], weights: str) -> np.ndarray:
    sizes = np.array([len(y) if weights == "size" else 1 for _, y in parts], float)
    return sizes / sizes.sum()


def _zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.result_type(float))


@dataclasses.dataclass(frozen=True)
class _OfScores:
    """The loss of a model, by that of its scores; with keys, dropout is on."""

    loss: Callable[[jax.Array, jax.Array], jax.Array]

    def __call__(self, model: Any, batch: Any, keys: jax.Array | None = None) -> jax.Array:
        x, y = batch
        if keys is None:
            return self.loss(_scores(model, x), y)
        return self.loss(jax.vmap(lambda row, key: model(row, key=key))(x, keys), y)


def _scores(model: Any, x: jax.Array) -> jax.Array:
    return jax.vmap(eqx.nn.inference_mode(model))(x)


def _accuracy(model: Any, batch: Any) -> dict[str, jax.Array]:
    x, y = batch
    return {"accuracy": jnp.mean(jnp.argmax(_scores(model, x), -1) == y)}


def _mean_cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    # log-sum-exp less the label's score, by a one-hot product: gathers have slow gradients on CPU
    chosen = jnp.sum(scores * jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype), -1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - chosen)


def _mean_squared_error(scores: jax.Array, labels: jax.Array) -> jax.Array:
    error = scores - jax.nn.one_hot(labels, scores.shape[-1], dtype=scores.dtype)
    return 0.5 * jnp.mean(jnp.sum(error**2, -1))


_LOSSES = {"cross-entropy": _mean_cross_entropy, "squared": _mean_squared_error}


def _linear_scores(params: Any, x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1) @ params["weight"].T + params["bias"]


def _linear_cross_entropy(params: Any, batch: Any) -> jax.Array:
    return _mean_cross_entropy(_linear_scores(params, batch[0]), batch[1])


def _squared_error(params: Any, batch: Any) -> jax.Array:
    return _mean_squared_error(_linear_scores(params, batch[0]), batch[1])


def _linear_accuracy(params: Any, batch: Any) -> dict[str, jax.Array]:
    return {"accuracy": jnp.mean(jnp.argmax(_linear_scores(params, batch[0]), -1) == batch[1])}


@dataclasses.dataclass(frozen=True)
class _WithL2:
    """A loss plus (l2/2) ||params||^2; compared by content, so that equal problems share a program."""

    loss: Any
    l2: float

    def __call__(self, params: Any, batch: Any) -> jax.Array:
        value = self.loss(params, batch)
        if self.l2 == 0:
            return value
        return value + 0.5 * self.l2 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


@dataclasses.dataclass(frozen=True)
class _SoftmaxGradient:
    """The gradient of `_WithL2(_linear_cross_entropy, l2)`, by hand.

    Contracting over a batch's few rows as one fused multiply and sum is faster on CPU than the small matrix products
    that differentiation makes of it, above all when many clients are stacked.
    """

    l2: float

    def __call__(self, params: Any, batch: Any) -> Any:
        x, y = batch[0].reshape(len(batch[0]), -1), batch[1]
        scores = _linear_scores(params, x)
        error = (jax.nn.softmax(scores) - jax.nn.one_hot(y, scores.shape[-1], dtype=scores.dtype)) / len(x)
        gradient = {"weight": jnp.sum(error[:, :, None] * x[:, None, :], 0), "bias": jnp.sum(error, 0)}
        return gradient if self.l2 == 0 else jax.tree.map(lambda g, p: g + self.l2 * p, gradient, params)


def _least_squares_facts(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], num_classes: int, l2: float, shares: np.ndarray
) -> Facts:
    """Every class has the Hessian A_m = mean of a a^T + l2; the optima are those of the classes side by side."""
    rows = [with_ones(x) for x, _ in parts]
    targets = [np.eye(num_classes)[y] for _, y in parts]
    hessians = np.stack([a.T @ a / len(a) + l2 * np.eye(a.shape[1]) for a in rows])
    linear = np.stack([a.T @ t / len(a) for a, t in zip(rows, targets, strict=True)])  # (M, d, classes)
    mean_hessian, mean_linear = np.tensordot(shares, hessians, 1), np.tensordot(shares, linear, 1)
    x_star = np.linalg.pinv(mean_hessian, hermitian=True) @ mean_linear
    constant = 0.5 * float(shares @ [np.mean(np.sum(t**2, 1)) for t in targets])
    spectra = np.linalg.eigvalsh(hessians)
    facts = Facts(
        smoothness=float(spectra.max()),
        strong_convexity=max(0.0, float(spectra.min())),
        third_order_smoothness=0.0,
        hessian_heterogeneity=float(hessian_gap(hessians)),
        x_star={"weight": x_star[:-1].T, "bias": x_star[-1]},
        f_star=constant - 0.5 * float(np.sum(x_star * mean_linear)),
    )
    if spectra.min() <= 1e-9 * spectra.max():
        return facts  # some client has many optima: their distances are left unknown
    optima = np.linalg.solve(hessians, linear).reshape(len(rows), -1)
    between = np.linalg.norm(optima[:, None] - optima[None], axis=-1)
    beyond = np.linalg.norm(optima - x_star.reshape(-1), axis=-1)
    return dataclasses.replace(
        facts,
        optima_heterogeneity=float(np.einsum("m,n,mn->", shares, shares, between**4) ** 0.25),
        optima_distance=float((shares @ beyond**4) ** 0.25),
    )
