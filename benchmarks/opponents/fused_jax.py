"""The yardstick: the same job written by hand as one JAX program, with nothing general left in it.

Cohort draw, batch draw, gather, forward, backward, local steps, mean and the loop over rounds are one jit.
Variants, all equal up to rounding (`--variant best` takes the fastest of those that walk the local steps):

    vmap-sum        all clients at once; weights (outputs, inputs + 1); backward as one fused multiply-and-sum
    vmap-dot        all clients at once; backward as a batched matrix product
    scan-dot        clients one after another, so that one model stays in cache; local steps unrolled
    scan-late       as scan-dot, with the step size applied to the gradient; XLA compiles the large update better
    vmap-autodiff, scan-autodiff    vmap-dot and scan-dot with jax.grad instead of the gradient by hand
    gram            no local models at all: a client's later pre-activations differ from those of the model it
                    was sent by products of its inputs with each other, so a round is three large matrix products.
                    Exact, but only for plain SGD on this one architecture, hence never the default.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from workloads import WORKLOADS, Workload, arguments, initial_model, make_data, mean_loss, report, timed

VARIANTS = ("vmap-sum", "vmap-dot", "scan-dot", "scan-late", "vmap-autodiff", "scan-autodiff", "gram")
# Measured: small models are dominated by calls, so all clients share each one; larger ones by memory traffic.
FASTEST = {"W1": "vmap-sum", "W2-32": "scan-dot", "W2-200": "scan-late", "W2-1000": "scan-late"}

Layers = tuple[tuple[jax.Array, jax.Array], ...]
Round = Callable[[Layers, jax.Array, jax.Array], Layers]  # model, features and one-hot labels (clients, steps, batch)


def draw_rows(workload: Workload, key: jax.Array) -> jax.Array:
    """Rows of the flat data (clients, steps, batch): fresh cohort and batches from one call of the generator."""
    shape = (workload.cohort_size, workload.num_local_steps, workload.batch_size)
    bits = jax.random.bits(key, (workload.num_clients + int(np.prod(shape)),), jnp.uint32)
    # The largest of independent numbers stand at a uniformly drawn set of places: no replacement, no full sort.
    _, cohort = lax.top_k((bits[: workload.num_clients] >> 1).astype(jnp.int32), workload.cohort_size)
    # 23 bits, so that rounding in float32 can never reach points_per_client itself.
    fractions = (bits[workload.num_clients :] >> 9).astype(jnp.float32) * 2.0**-23
    points = (fractions * workload.points_per_client).astype(jnp.int32).reshape(shape)
    return cohort[:, None, None] * workload.points_per_client + points


def scaled_error(logits: jax.Array, onehot: jax.Array, workload: Workload) -> jax.Array:
    """Step size times the gradient of the mean cross-entropy in the logits."""
    return (jax.nn.softmax(logits) - onehot) * (workload.step_size / workload.batch_size)


def step_by_hand(layers: Layers, x: jax.Array, onehot: jax.Array, workload: Workload, late: bool = False) -> Layers:
    """`late`: the step size multiplies the gradient in the weights (one more product each) and not the error."""
    rate = workload.step_size / workload.batch_size if late else 1.0

    def error(logits: jax.Array) -> jax.Array:
        return jax.nn.softmax(logits) - onehot if late else scaled_error(logits, onehot, workload)

    if len(layers) == 1:
        ((w, b),) = layers
        e = error(x @ w + b)
        return ((w - rate * (x.T @ e), b - rate * e.sum(0)),)
    (w1, b1), (w2, b2) = layers
    h = jnp.maximum(x @ w1 + b1, 0.0)
    e = error(h @ w2 + b2)
    d = jnp.where(h > 0.0, e @ w2.T, 0.0)
    return (w1 - rate * (x.T @ d), b1 - rate * d.sum(0)), (w2 - rate * (h.T @ e), b2 - rate * e.sum(0))


def step_by_autodiff(layers: Layers, x: jax.Array, onehot: jax.Array, workload: Workload) -> Layers:
    def loss(layers: Layers) -> jax.Array:
        h = x
        for w, b in layers[:-1]:
            h = jax.nn.relu(h @ w + b)
        w, b = layers[-1]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(h @ w + b) * onehot, axis=-1))

    return jax.tree.map(lambda p, g: p - workload.step_size * g, layers, jax.grad(loss)(layers))


def stepwise_round(workload: Workload, clients: str, step: Callable[..., Layers]) -> Round:
    def local(layers: Layers, xs: jax.Array, onehots: jax.Array) -> Layers:
        for k in range(workload.num_local_steps):
            layers = step(layers, xs[k], onehots[k], workload)
        return layers

    def vmapped(layers: Layers, xs: jax.Array, onehots: jax.Array) -> Layers:
        return jax.tree.map(lambda t: t.mean(0), jax.vmap(local, (None, 0, 0))(layers, xs, onehots))

    def scanned(layers: Layers, xs: jax.Array, onehots: jax.Array) -> Layers:
        def add(total: Layers, batches: tuple[jax.Array, jax.Array]) -> tuple[Layers, None]:
            return jax.tree.map(jnp.add, total, local(layers, *batches)), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, layers), (xs, onehots))
        return jax.tree.map(lambda t: t / workload.cohort_size, total)

    return vmapped if clients == "vmap" else scanned


def summed_round(workload: Workload) -> Round:
    """Softmax regression only: the contraction over ten points is too short for a matrix product to pay.

    (On the networks the same trick is several times slower than a product.)
    """

    def run(layers: Layers, xs: jax.Array, onehots: jax.Array) -> Layers:
        ((w, b),) = layers
        num_inputs = w.shape[0]
        xs = jnp.concatenate([xs, jnp.ones((*xs.shape[:-1], 1), xs.dtype)], axis=-1)  # the bias is one more weight
        model = jnp.concatenate([w, b[None]]).T
        models = jnp.broadcast_to(model, (workload.cohort_size, *model.shape))  # (clients, outputs, inputs + 1)
        for k in range(workload.num_local_steps):
            x = xs[:, k]
            e = scaled_error(jnp.einsum("cbi,coi->cbo", x, models), onehots[:, k], workload)
            models = models - (e[:, :, :, None] * x[:, :, None, :]).sum(1)
        model = models.mean(0).T
        return ((model[:num_inputs], model[num_inputs]),)

    return run


def gram_round(workload: Workload) -> Round:
    """One hidden layer only. With W_t = W - sum_{s<t} X_s' D_s:  X_t W_t = X_t W - sum_{s<t} (X_t X_s') D_s."""
    batch, steps = workload.batch_size, workload.num_local_steps

    def local(z0: jax.Array, gram: jax.Array, onehots: jax.Array, w2: jax.Array, b2: jax.Array):
        directions: list[jax.Array] = []  # D_s, each (batch, hidden)
        for k in range(steps):
            here = slice(k * batch, (k + 1) * batch)
            z = z0[here] - gram[here, : k * batch] @ jnp.concatenate(directions) if k else z0[here]
            h = jnp.maximum(z, 0.0)
            e = scaled_error(h @ w2 + b2, onehots[k], workload)
            directions.append(jnp.where(h > 0.0, e @ w2.T, 0.0))
            w2, b2 = w2 - h.T @ e, b2 - e.sum(0)
        return jnp.concatenate(directions), w2, b2

    def run(layers: Layers, xs: jax.Array, onehots: jax.Array) -> Layers:
        (w1, b1), (w2, b2) = layers
        rows = xs.reshape(workload.cohort_size, steps * batch, -1)
        flat = rows.reshape(-1, rows.shape[-1])
        z0 = (flat @ w1 + b1).reshape(*rows.shape[:2], -1)
        gram = jnp.einsum("cif,cjf->cij", rows, rows) + 1.0  # + 1: the bias is a weight of a constant input
        d, w2s, b2s = jax.vmap(local, (0, 0, 0, None, None))(z0, gram, onehots, w2, b2)
        mean_d = d.reshape(len(flat), -1) / workload.cohort_size
        return (w1 - flat.T @ mean_d, b1 - mean_d.sum(0)), (w2s.mean(0), b2s.mean(0))

    return run


def build_round(workload: Workload, variant: str) -> Round:
    is_regression = len(workload.layer_sizes) == 2
    if (variant == "vmap-sum" and not is_regression) or (variant == "gram" and is_regression):
        sys.exit(f"variant {variant!r} is not written for {workload.name}; take one of the others")
    if variant == "vmap-sum":
        return summed_round(workload)
    if variant == "gram":
        return gram_round(workload)
    steps = {"dot": step_by_hand, "late": partial(step_by_hand, late=True), "autodiff": step_by_autodiff}
    clients, gradient = variant.split("-")
    return stepwise_round(workload, clients, steps[gradient])


def main() -> None:
    chosen = arguments(__doc__, rounds=100, variants=VARIANTS)
    workload = WORKLOADS[chosen.workload]
    variant = FASTEST[workload.name] if chosen.variant == "best" else chosen.variant
    round_of = build_round(workload, variant)
    features, labels = make_data(workload)

    @jax.jit
    def simulate(x: jax.Array, onehot: jax.Array, layers: Layers, key: jax.Array) -> Layers:
        def one_round(layers: Layers, key: jax.Array) -> tuple[Layers, None]:
            rows = draw_rows(workload, key)
            return round_of(layers, x[rows], onehot[rows]), None

        return lax.scan(one_round, layers, jax.random.split(key, chosen.rounds))[0]

    x = jnp.asarray(features.reshape(-1, features.shape[-1]))
    onehot = jnp.asarray(np.eye(workload.num_classes, dtype=np.float32)[labels.reshape(-1)])
    layers = tuple((jnp.asarray(w), jnp.asarray(b)) for w, b in initial_model(workload))
    final: Layers = layers

    def run_rounds() -> None:
        nonlocal final
        final = jax.block_until_ready(simulate(x, onehot, layers, jax.random.key(0)))

    timings = timed(run_rounds, chosen.rounds, chosen.repeats)
    versions = {"python": platform.python_version(), "jax": jax.__version__, "jaxlib": jax.lib.__version__}
    loss = mean_loss(final, features, labels)
    report(
        "fused_jax",
        workload.name,
        chosen.rounds,
        timings,
        loss,
        versions,
        variant=variant,
        dtype=str(final[0][0].dtype),
    )


if __name__ == "__main__":
    main()
