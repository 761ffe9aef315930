"""The wide start as an exchange between a server and its clients (Song et al., appendix B.2).

The server draws W_1 and sends it. A client answers with a summary of its first-layer features F_1k = sigma(X_k W_1)
and the norms of X_k and y_k. The server reads off the smallest singular values, draws W_2 so small that
||f_0|| <= ||y||, sets W_l = zeta [I; 0], l >= 3, and checks the conditions of the convergence theorem.

The paper's clients send F_1k itself. A sum of Gram matrices is enough: the N-th largest eigenvalue of
sum_k F_1k^T F_1k = F_1^T F_1 is sigma_min(F_1)^2, and a client knows its own sigma_min(F_1k). See docs/wide-start.md
for what each reveals.

Paper to code: W_1 -> first, a_0 -> floor, a_0k -> client_floors, N -> the samples of all clients.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from sojourn.core.errors import SojournError, unknown_name
from sojourn.core.gaussian_mechanism import epsilon_of, of_several
from sojourn.core.keys import purpose_key
from sojourn.core.setup import Prepared, Setup, Use, fingerprint
from sojourn.core.signature import options_checked
from sojourn.models.mlp import Width
from sojourn.models.pyramid import SmoothLeaky, pyramid, pyramid_of
from sojourn.models.wide_layer_facts import (
    gain_of,
    gd_conditions,
    gradient_ratio,
    proof_constants,
    sgd_conditions,
    step_limits,
)
from sojourn.models.wide_start import (
    IDENTITY_SCALE,
    SECOND_VARIANCE,
    IdentityScale,
    SecondVariance,
    first_matrix,
    later_matrices,
)

Summary = Literal["gram", "features"]
ClientData = tuple[np.ndarray, np.ndarray]  # inputs (n, …) and labels (n,) or targets (n, outputs)
_LABEL_CLIP = 1.0  # a one-hot row has norm 1


@dataclasses.dataclass(frozen=True)
class Protection:
    """Clipping and Gaussian noise on what a client shares; the noise is `noise_multiplier` times the sensitivity.

    Sensitivities are for one sample of one client being replaced by another, its number of samples being known.
    """

    feature_clip: float  # largest norm of a sample's features
    input_clip: float  # largest norm of a sample, where norms are summed
    noise_multiplier: float
    delta: float

    def sensitivities(self, summary: Summary) -> dict[str, float]:
        """Of each quantity sent: |F - F'|_F, |G - G'|_F, |a - a'| (both lie between 0 and the shortest row's length, c
        at most), and of the sums of squared norms."""
        c = self.feature_clip
        shared = {"inputs": self.input_clip**2, "labels": _LABEL_CLIP**2}
        own = {"features": 2 * c} if summary == "features" else {"gram": math.sqrt(2) * c**2, "floor": c}
        return {**own, **shared}

    def epsilon(self, summary: Summary) -> float | None:
        """Of a client's whole answer, at `delta`; None without noise."""
        if self.noise_multiplier == 0:
            return None
        return epsilon_of(of_several(self.noise_multiplier, len(self.sensitivities(summary))), self.delta)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one client sends. `features` or `gram` (its upper triangle) with `floor`; sums of squares with noise."""

    num_samples: np.ndarray
    inputs: np.ndarray  # ||X_k||_F^2
    labels: np.ndarray  # ||y_k||^2
    features: np.ndarray | None = None  # (N_k, n_1)
    gram: np.ndarray | None = None  # (n_1 (n_1 + 1) / 2,)
    floor: np.ndarray | None = None  # sigma_min(F_1k)

    def parts(self) -> list[np.ndarray]:
        return [value for value in vars(self).values() if value is not None]


@dataclasses.dataclass(frozen=True)
class WideStart(Prepared):
    """The model, what was sent, and what the server learned."""

    floor: float  # a_0 as the server sees it
    client_floors: np.ndarray  # (K,)
    exact_floor: float  # a_0 itself, which the server of a protected exchange does not see
    input_norm: float
    label_norm: float
    start_error: float  # an upper bound on ||f_0 - y||


def smallest_singular_value(matrix: np.ndarray) -> float:
    """The N-th of an (N, n) matrix: zero where n < N, as its rows are then dependent."""
    rows, columns = matrix.shape
    return float(np.linalg.svd(matrix, compute_uv=False)[-1]) if rows <= columns else 0.0


def features_of(x: np.ndarray, first: np.ndarray, activation: SmoothLeaky) -> np.ndarray:
    """sigma(X W_1), in double precision."""
    inside = np.asarray(x, float).reshape(len(x), -1) @ np.asarray(first, float)
    bend = (np.logaddexp(0, activation.sharpness * inside) - math.log(2)) / activation.sharpness
    return np.asarray(activation.gamma * inside + (1 - activation.gamma) * bend)


def answer(
    first: np.ndarray, x: np.ndarray, targets: np.ndarray, activation: SmoothLeaky, summary: Summary,
    protection: Protection | None, key: jax.Array,
) -> Answer:  # fmt: skip
    """A client's side of the exchange; `first` is all that it was sent."""
    rows = np.asarray(x, float).reshape(len(x), -1)
    clip = (math.inf,) * 3 if protection is None else (protection.feature_clip, protection.input_clip, _LABEL_CLIP)
    features = _clipped(features_of(x, first, activation), clip[0])
    found: dict[str, np.ndarray] = {
        "inputs": np.asarray(np.sum(_clipped(rows, clip[1]) ** 2)),
        "labels": np.asarray(np.sum(_clipped(np.asarray(targets, float), clip[2]) ** 2)),
    }
    if summary == "features":
        found["features"] = features
    else:
        found["gram"] = (features.T @ features)[np.triu_indices(features.shape[1])]
        found["floor"] = np.asarray(smallest_singular_value(features))
    if protection is not None and protection.noise_multiplier > 0:
        for name, sensitivity in protection.sensitivities(summary).items():
            draw = np.asarray(jax.random.normal(purpose_key(key, name), found[name].shape), float)
            found[name] = found[name] + protection.noise_multiplier * sensitivity * draw
    return Answer(np.asarray(len(rows)), **found)


def floors_of(answers: Sequence[Answer], width: int) -> tuple[float, np.ndarray]:
    """a_0 and all a_0k from what was sent. Of a Gram matrix, what its rounding hides is taken for zero."""
    if answers[0].features is not None:
        every = [found.features for found in answers if found.features is not None]
        return smallest_singular_value(np.concatenate(every)), np.array([smallest_singular_value(f) for f in every])
    upper = np.sum([found.gram for found in answers if found.gram is not None], axis=0)
    gram = np.zeros((width, width))
    gram[np.triu_indices(width)] = upper
    values = np.linalg.eigvalsh(gram + np.triu(gram, 1).T)[::-1]
    number = sum(int(found.num_samples) for found in answers)
    smallest = float(values[number - 1]) if number <= width else 0.0
    hidden = width * np.finfo(float).eps * max(float(values[0]), 0.0)
    own = np.array([max(float(found.floor), 0.0) for found in answers if found.floor is not None])
    return (math.sqrt(smallest) if smallest > hidden else 0.0), own


def _clipped(rows: np.ndarray, most: float) -> np.ndarray:
    if math.isinf(most):
        return rows
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, most / np.maximum(lengths, np.finfo(float).tiny))


def _outline(input_shape: tuple[int, ...], num_classes: int, key: jax.Array, **options: Any) -> Any:
    """A model of the same shapes, for which no client is asked."""
    shared = {name: options[name] for name in ("widths", "gamma", "sharpness") if name in options}
    return pyramid(input_shape, num_classes, key, **shared)


@options_checked
def wide_pyramid(
    input_shape: tuple[int, ...],
    num_classes: int,
    key: jax.Array,
    clients: Sequence[ClientData],
    *,
    widths: Annotated[list[Width], Field(min_length=1, description="units of each hidden layer, the first wide")] = [  # noqa: B006
        256,
        32,
    ],
    gamma: Annotated[float, Field(gt=0, lt=1, description="smallest slope of the activation")] = 0.5,
    sharpness: Annotated[float, Field(gt=0, le=1e6, description="of the activation's bend")] = 1.0,
    second_variance: SecondVariance = None,
    identity_scale: IdentityScale = None,
    summary: Annotated[
        Summary, Field(description="what clients tell of their features: a sum of products, or (the paper) all of them")
    ] = "gram",
    noise_multiplier: Annotated[
        float | None, Field(ge=0, le=1e6, description="of the noise on what clients share; needs both clips")
    ] = None,
    feature_clip: Annotated[float | None, Field(gt=0, description="largest norm of a sample's features")] = None,
    input_clip: Annotated[float | None, Field(gt=0, description="largest norm of a sample, in the norms sent")] = None,
    delta: Annotated[float, Field(gt=0, lt=1, description="for which the privacy of an answer is stated")] = 1e-5,
    target_share: Annotated[
        float, Field(gt=0, lt=1, description="of the first loss: the target for which conditions are checked")
    ] = 0.01,
) -> WideStart:
    """The pyramid, started by an exchange: clients answer W_1, the server sets the rest and checks the conditions.

    `clients` are pairs of inputs and labels, or of inputs and targets of `num_classes` numbers. With
    second_variance = None the server takes the largest variance up to 1e-4 that keeps ||f_0|| <= ||y||.
    """
    if summary not in get_args(Summary):
        raise unknown_name("summary", summary, get_args(Summary))
    protection = _protection(noise_multiplier, feature_clip, input_clip, delta)
    sizes = [int(np.prod(input_shape)), *widths, num_classes]
    data = [_checked(number, *client, sizes[0], num_classes) for number, client in enumerate(clients)]
    if not data:
        raise SojournError("the wide start asks the clients, and there are none; give at least one.")
    activation = SmoothLeaky(gamma, sharpness)
    draws, noise = purpose_key(key, "weights"), purpose_key(key, "answers")
    first_key, rest_key = jax.random.split(draws)
    first = np.asarray(first_matrix(sizes[0], sizes[1], first_key))
    answers = [
        answer(first, x, y, activation, summary, protection, jax.random.fold_in(noise, number))
        for number, (x, y) in enumerate(data)
    ]
    input_norm, label_norm = (_root(sum(float(getattr(a, name)) for a in answers)) for name in ("inputs", "labels"))
    if second_variance is None:
        unit = later_matrices(sizes, rest_key, 1.0, identity_scale)
        second_variance = _tiny(first, unit, input_norm, label_norm)
    weights = [first, *map(np.asarray, later_matrices(sizes, rest_key, second_variance, identity_scale))]
    known = _known(
        weights, answers, activation, input_norm, label_norm, -math.log(target_share), protection is not None
    )
    exact = smallest_singular_value(np.concatenate([features_of(x, first, activation) for x, _ in data]))
    record = {
        "start": "wide", "summary": summary, **_counted(first, answers), "width": sizes[1],
        "samples": int(known.samples.sum()), "smallest_singular_value": known.floor,
        "smallest_singular_value_of_a_client": float(known.client_floors.min()),
        "input_norm": input_norm, "label_norm": label_norm, "loss_bound": known.phi,
        "second_variance": second_variance,
        "identity_scale": IDENTITY_SCALE if identity_scale is None else identity_scale,
        **_told(protection, summary, exact),
    }  # fmt: skip
    sent: dict[str, Any] = {name: int(sum(numbers)) for name, numbers in _wire(first, answers).items()}
    setup = Setup(**sent, record=record, check=known.check, clients=fingerprint(clients))
    model = pyramid_of([jnp.asarray(weight) for weight in weights], gamma, sharpness)
    return WideStart(
        model, setup, known.floor, known.client_floors, exact, input_norm, label_norm, known.error
    )  # fmt: skip


wide_pyramid.outline = _outline  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class _Known:
    """What the server knows, to judge the conditions for a method."""

    samples: np.ndarray
    norms: np.ndarray
    highs: np.ndarray
    lows: list[float]
    floor: float
    client_floors: np.ndarray
    activation: SmoothLeaky
    error: float
    log_reduction: float
    protected: bool
    width: int  # n_1

    @property
    def phi(self) -> float:
        """A bound on the first loss, at most 2 ||y||^2 / N where W_2 is as small as the server makes it."""
        return float(self.error**2 / (2 * self.samples.sum()))

    @staticmethod
    def _for_this_step(step_size: Any, largest: float) -> str:
        """Conditions that hold say something of steps that the proof allows, and of what the theorem is about."""
        if not isinstance(step_size, float) or step_size > largest:
            return f"not certified: the conditions hold, but only for step sizes up to {largest:.2g}"
        return "certified"

    def _outside(self, use: Use) -> str | None:
        """Why the theorem says nothing of this use, whatever the conditions."""
        if use.algorithm.get("class") != "FedAvg":
            return "about FedAvg"
        if use.loss not in (None, "squared"):
            return f'about the squared loss, not {use.loss}; set problem.loss = "squared"'
        if not use.everyone:
            return "about rounds in which all clients take part"
        if use.weights == "equal" and np.ptp(self.samples) > 0:
            return 'about clients that weigh as many samples as they hold; set problem.weights = "size"'
        return None

    def _no_floor(self) -> str:
        """Why a_0 or an a_0k is zero."""
        number, most = int(self.samples.sum()), int(self.samples.max())
        if self.width < number:
            return f"the wide layer has {self.width} units for {number} samples ({most} at one client); a_0 is then 0"
        why = "clipping or noise hides a" if self.protected else "features that depend on each other leave no"
        return f"{why} positive a_0 or a_0k"

    def check(self, use: Use) -> dict[str, Any]:
        """The conditions for this use: exact gradients have (72) and (73), batches have (67) and (68)."""
        outside = self._outside(use)
        if outside is not None:
            return {"verdict": f"nothing was checked: the theorem is {outside}"}
        algorithm, batch_size = use.algorithm, use.batch_size
        steps, layers = int(algorithm["num_local_steps"]), len(self.highs)
        if self.floor == 0 or (batch_size is not None and self.client_floors.min() == 0):
            return {"verdict": f"not certified: {self._no_floor()}"}
        length, product = float(np.linalg.norm(self.norms)), float(np.prod(self.lows))
        floors = [self.floor, float(self.client_floors.min())]
        ratio = 1.0
        if batch_size is not None:
            ratio = 7.0 ** (layers - 1) * float(gradient_ratio(
                self.samples.sum(), batch_size, length, self.activation.gamma, layers, gain_of(self.highs), product,
                min(floors),
            ))  # fmt: skip
        sizes: dict[str, Any] = {"client_samples": self.samples, "client_norms": self.norms, "highs": self.highs}
        found = proof_constants(
            **sizes, num_layers=layers, low_product=product, floor=self.floor, slope=self.activation.gamma,
            bend=self.activation.beta, num_local_steps=steps, error=self.error, ratio=ratio,
        )  # fmt: skip
        if batch_size is None:
            conditions = gd_conditions(found, input_norm=length, num_layers=layers, highs=self.highs, lows=self.lows,
                                       floor=self.floor, error=self.error, num_local_steps=steps)  # fmt: skip
        else:
            conditions = sgd_conditions(found, input_norm=length, num_layers=layers, lows=self.lows, floors=floors,
                                        phi=self.phi, log_reduction=self.log_reduction, ratio=ratio)  # fmt: skip
        limits = step_limits(found, **sizes, lows=self.lows, num_layers=layers, num_local_steps=steps,
                             error=self.error, ratio=ratio)  # fmt: skip
        proven = [c for c in conditions if c.corrected]
        verdict = "not certified"
        if all(c.holds for c in proven):
            verdict = self._for_this_step(algorithm.get("step_size"), min(limits.values()))
        if self.protected:
            verdict = "not certified: the numbers behind the conditions were clipped, or have noise in them"
        return {
            "verdict": verdict, "conditions": [c.told() for c in conditions], "local_steps": steps,
            "batch_size": batch_size or "all", "gradient_ratio": ratio, "rate": float(found["rate"]),
            "largest_step_size": min(limits.values()),
            "features_against_gain": float(found["gain"] / (product * self.floor)),  # M_3 of (23)
        }  # fmt: skip


def _known(
    weights: Sequence[np.ndarray], answers: Sequence[Answer], activation: SmoothLeaky, input_norm: float,
    label_norm: float, log_reduction: float, protected: bool,
) -> _Known:  # fmt: skip
    """What the server reads off the answers and its own matrices."""
    floor, own = floors_of(answers, weights[0].shape[1])
    singular = [np.linalg.svd(weight.astype(float), compute_uv=False) for weight in weights]
    tops = np.array([values[0] for values in singular])
    return _Known(
        samples=np.array([int(a.num_samples) for a in answers], float),
        norms=np.sqrt([max(float(a.inputs), 0.0) for a in answers]),
        highs=np.concatenate([2 / 3 * (1 + tops[:2]), tops[2:]]),
        lows=[float(values[-1]) for values in singular[2:]],
        floor=floor, client_floors=own, activation=activation,
        error=label_norm + float(np.prod(tops)) * input_norm, log_reduction=log_reduction,
        protected=protected, width=weights[0].shape[1],
    )  # fmt: skip


def _protection(
    noise_multiplier: float | None, feature_clip: float | None, input_clip: float | None, delta: float
) -> Protection | None:
    given = [noise_multiplier, feature_clip, input_clip]
    if all(value is None for value in given):
        return None
    if feature_clip is None or input_clip is None:
        raise SojournError(
            "clipping and noise need feature_clip and input_clip, both chosen without looking at the data; give them, "
            "or leave noise_multiplier out."
        )
    return Protection(feature_clip, input_clip, noise_multiplier or 0.0, delta)


def _checked(number: int, x: Any, y: Any, inputs: int, outputs: int) -> ClientData:
    """A client's inputs and targets; labels become one-hot rows."""
    x, y = np.asarray(x), np.asarray(y)
    if len(x) == 0 or len(x) != len(y) or x[0].size != inputs:
        raise SojournError(
            f"client {number} of the wide start has inputs of shape {x.shape} and targets of shape {y.shape}; expected "
            f"at least one row of {inputs} numbers, and as many targets."
        )
    if y.ndim == 1 and np.issubdtype(y.dtype, np.integer):
        if y.min() < 0 or y.max() >= outputs:
            raise SojournError(
                f"client {number} of the wide start has labels from {y.min()} to {y.max()}; "
                f"expected 0 to {outputs - 1}."
            )
        y = np.eye(outputs)[y]
    if y.shape != (len(x), outputs) or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise SojournError(
            f"client {number} of the wide start has targets of shape {y.shape}; expected labels, or finite rows of "
            f"{outputs} numbers, and finite inputs."
        )
    return x, y


def _tiny(first: np.ndarray, unit: Sequence[jax.Array], input_norm: float, label_norm: float) -> float:
    """The largest variance of W_2, up to the usual, for which prod_l sigma_max(W_l) ||X|| <= ||y||."""
    reach = input_norm * math.prod(float(np.linalg.norm(np.asarray(w, float), 2)) for w in [first, *unit])
    return SECOND_VARIANCE if reach == 0 else min(SECOND_VARIANCE, (label_norm / reach) ** 2)


def _wire(first: np.ndarray, answers: Sequence[Answer]) -> dict[str, list[int]]:
    """Floats and bytes, down and up, client by client."""
    floats = [sum(a.size for a in found.parts() if a.dtype.kind == "f") for found in answers]
    return {
        "floats_down": [first.size] * len(answers), "floats_up": floats, "bytes_down": [first.nbytes] * len(answers),
        "bytes_up": [sum(a.nbytes for a in found.parts()) for found in answers],
    }  # fmt: skip


def _counted(first: np.ndarray, answers: Sequence[Answer]) -> dict[str, int]:
    """The most that one client received and sent."""
    wire = _wire(first, answers)
    return {f"{name}_of_a_client": max(found) for name, found in wire.items()}


def _told(protection: Protection | None, summary: Summary, exact: float) -> dict[str, Any]:
    if protection is None:
        return {}
    return {
        # for whoever simulates: no server of a real exchange sees it, so take it out of a manifest that is shared
        "exact_smallest_singular_value": exact,
        "protection": {
            **dataclasses.asdict(protection), "sensitivities": protection.sensitivities(summary),
            "epsilon": protection.epsilon(summary), "for": "one sample replaced, at every client",
        }
    }  # fmt: skip


def _root(value: float) -> float:
    return math.sqrt(max(value, 0.0))
