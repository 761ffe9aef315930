"""Fed-LAMB against its rule retyped in NumPy on a network, every option of it, Optax's LAMB, and how far steps go."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sojourn as sj
from sojourn.algorithms import FedAMS, FedLAMB
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.vec import Vec
from test_local_sgd import close, cohort_of, far, play, run

ALPHA, T, R = 0.05, 3, 5
B1, B2, EPS = 0.9, 0.99, 1e-8
SIZES = (4, 6, 9)
SHARES = np.array(SIZES) / sum(SIZES)


class ScaleNorm(eqx.Module):
    """Scale and shift of a normalisation that normalises nothing, so that its gradient is a line of NumPy."""

    weight: jax.Array
    bias: jax.Array


class Network(eqx.Module):
    first: eqx.nn.Linear
    norm: ScaleNorm
    last: eqx.nn.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jnp.tanh(self.first(x)) * self.norm.weight + self.norm.bias)


LAYERS, LEAVES = [(0, 1), (4, 5)], [(i,) for i in range(6)]  # of weight, bias; scale, shift; weight, bias


def half_squared_distance(model: Any, batch: Any) -> jax.Array:
    inputs, targets = batch
    return jnp.mean(jnp.sum((jax.vmap(model)(inputs) - targets) ** 2, -1)) / 2


class World:
    """Clients of different sizes that share a network of two layers; gradients by hand."""

    def __init__(self, participation: int | None = None, clients: int = 3) -> None:
        rng = np.random.default_rng(0)
        self.data = [(rng.normal(size=(n, 3)), 2 * rng.normal(size=(n, 2)) + 1) for n in SIZES[:clients]]
        self.participation = participation
        shapes = [(4, 3), (4,), (4,), (4,), (2, 4), (2,)]
        self.start = [rng.normal(size=s) * 0.7 for s in shapes]

    def federation(self, start: list[np.ndarray] | None = None) -> Federation:
        w1, b1, scale, shift, w2, b2 = (jnp.asarray(a) for a in (start or self.start))
        model = Network(
            eqx.nn.Linear(3, 4, key=jax.random.key(0)),
            ScaleNorm(scale, shift),
            eqx.nn.Linear(4, 2, key=jax.random.key(0)),
        )
        where = lambda m: (m.first.weight, m.first.bias, m.last.weight, m.last.bias)  # noqa: E731
        model = eqx.tree_at(where, model, (w1, b1, w2, b2))
        return sj.federation(half_squared_distance, model, self.data, weights="size")

    def grad(self, client: int, leaves: list[np.ndarray]) -> list[np.ndarray]:
        (inputs, targets), (w1, b1, scale, shift, w2, b2) = self.data[client], leaves
        h = np.tanh(inputs @ w1.T + b1)
        s = h * scale + shift
        error = (s @ w2.T + b2 - targets) / len(inputs)
        back = error @ w2
        inner = back * scale * (1 - h**2)
        return [inner.T @ inputs, inner.sum(0), (back * h).sum(0), back.sum(0), error.T @ s, error.sum(0)]

    def cohort(self, round: int) -> list[int]:
        return cohort_of(0, round, len(self.data), self.participation)


def length(parts: list[np.ndarray]) -> float:
    return float(np.sqrt(sum((a**2).sum() for a in parts)))


def layerwise(
    theta: list[np.ndarray], m: list[np.ndarray], v: list[np.ndarray], vhat: list[np.ndarray], alpha: float,
    lam: float, layers: list[tuple[int, ...]], scale: tuple[float, float],
) -> list[np.ndarray]:  # fmt: skip
    """One step of line 11 of Algorithm 1; what is in no layer, or in one of phi = 0, takes the plain AMSGrad step."""
    largest = [np.maximum(a, b) for a, b in zip(vhat, v, strict=True)]
    new = [x - alpha * a / (np.sqrt(b) + EPS) for x, a, b in zip(theta, m, largest, strict=True)]
    for layer in layers:
        phi = np.clip(length([theta[i] for i in layer]), *scale)
        if phi == 0:
            continue
        u = {i: m[i] / (np.sqrt(vhat[i]) + EPS) + lam * theta[i] for i in layer}
        for i in layer:
            new[i] = theta[i] - alpha * phi * u[i] / length(list(u.values()))
    return new


def fed_lamb(
    world: World, *, alpha: float = ALPHA, steps: int = T, rounds: int = R, lam: float = 0.0, vhat0: float = 1e-8,
    layers: list[tuple[int, ...]] = LAYERS, moments: str = "carry", correction: str = "updates",
    gradients: str = "fresh", decay: str = "none", scale: tuple[float, float] = (0.0, np.inf), warm: bool = False,
    per_answer: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Algorithm 1 with the readings of spec 4.3; with per_answer=False the means are 1/n, as printed."""
    zeros = [np.zeros_like(a) for a in world.start]
    theta, vhat = world.start, [np.full_like(a, vhat0) for a in world.start]
    memory = {i: (zeros, zeros, 0) for i in range(len(world.data))}
    each = lambda f, *trees: [f(*leaves) for leaves in zip(*trees, strict=True)]  # noqa: E731

    def mean(ids: list[int], trees: list[list[np.ndarray]]) -> list[np.ndarray]:
        total = SHARES[ids].sum() if per_answer else 1.0
        return each(lambda *leaves: sum(SHARES[i] / total * a for i, a in zip(ids, leaves, strict=True)), *trees)

    if warm:
        ids = world.cohort(0)
        vhat = each(np.maximum, vhat, mean(ids, [each(np.square, world.grad(i, theta)) for i in ids]))
    for r in range(rounds):
        ids, ends, sent = world.cohort(r), [], []
        for i in ids:
            m, v, t = memory[i] if moments == "carry" else (zeros, zeros, 0)
            y = theta
            for _ in range(steps):
                g, t = world.grad(i, theta if gradients == "once" else y), t + 1
                m = each(lambda a, b: B1 * a + (1 - B1) * b, m, g)
                v = each(lambda a, b: B2 * a + (1 - B2) * b**2, v, g)
                c1, c2 = (1, 1) if correction == "none" else (1 - B1**t, 1 - B2**t)
                m_used, v_used = [a / c1 for a in m], [a / c2 for a in v]
                step = alpha if decay == "none" else alpha / np.sqrt(r + 1)
                y = layerwise(y, m_used, v_used, vhat, step, lam, layers, scale)
            memory[i] = m, v, t
            ends.append(y)
            sent.append(v_used)
        theta, vhat = mean(ids, ends), each(np.maximum, vhat, mean(ids, sent))
    return {"x": theta, "vhat": vhat, "memory": memory}


def method(**options: Any) -> FedLAMB:
    return FedLAMB(**{"step_size": ALPHA, "num_local_steps": T, "second_moment": B2} | options)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))])


def found(world: World, rounds: int = R, **options: Any) -> np.ndarray:
    return flat(run(world.federation(), method(**options), rounds, participation=world.participation).params)


def test_the_gradients_by_hand_are_those_of_the_network(x64: None) -> None:
    world = World()
    federation = world.federation()
    for i in range(3):
        close(
            flat(federation.clients.oracle(jnp.asarray(i)).full_grad(federation.x0)), flat(world.grad(i, world.start))
        )


def test_a_network_on_clients_of_different_sizes_in_sampled_cohorts_follows_the_rule(x64: None) -> None:
    world = World(participation=2)
    state, expected = play(world.federation(), method(), R, participation=2), fed_lamb(world)
    close(flat(state.server.x), flat(expected["x"]))
    close(flat(state.server.v), flat(expected["vhat"]))
    memory = expected["memory"]
    assert len({memory[i][2] for i in range(3)}) > 1  # clients came a different number of times
    for i in range(3):
        mine = jax.tree.map(lambda a, i=i: a[i], state.memory)
        close(flat(mine.m), flat(memory[i][0]))
        close(flat(mine.v), flat(memory[i][1]))
        assert int(mine.num_updates) == memory[i][2]
    far(flat(state.server.x), flat(fed_lamb(world, per_answer=False)["x"]))
    normalised_too = [(0, 1), (2, 3), (4, 5)]
    far(flat(state.server.x), flat(fed_lamb(world, layers=normalised_too)["x"]))


OPTIONS = [  # each of the method's, and its name in the retyped rule
    ({"weight_decay": 0.5}, {"lam": 0.5}),
    ({"layers": "leaf"}, {"layers": LEAVES}),
    ({"min_scale": 3.0}, {"scale": (3.0, np.inf)}),
    ({"max_scale": 1.5}, {"scale": (0.0, 1.5)}),
    ({"moments": "reset"}, {"moments": "reset"}),
    ({"bias_correction": "none"}, {"correction": "none"}),
    ({"bias_correction": "none", "moments": "reset"}, {"correction": "none", "moments": "reset"}),
    ({"gradients": "once"}, {"gradients": "once"}),
    ({"step_decay": "sqrt"}, {"decay": "sqrt"}),
    ({"warm_start": "gradients"}, {"warm": True}),
    ({"initial_second_moment": 0.1}, {"vhat0": 0.1}),
]


@pytest.mark.parametrize(("chosen", "rule"), OPTIONS, ids=lambda d: ", ".join(map(str, d.values())))
def test_every_option_is_its_rule_and_changes_the_result(x64: None, chosen: Any, rule: Any) -> None:
    world = World(participation=2)
    close(found(world, **chosen), flat(fed_lamb(world, **rule)["x"]))
    far(flat(fed_lamb(world, **rule)["x"]), flat(fed_lamb(world)["x"]))


def test_model_and_second_moment_travel_both_ways(x64: None) -> None:
    world = World(participation=2)
    size = 12 + 4 + 4 + 4 + 8 + 2
    table = run(world.federation(), method(), 2, participation=2).frame().iloc[1:]
    assert (table[["floats_down", "floats_up"]] == 2 * 2 * size).all(axis=None)
    table = run(world.federation(), method(warm_start="gradients"), 2, participation=2).frame().iloc[1:]
    assert table["floats_down"].tolist() == table["floats_up"].tolist() == [2 * 3 * size, 2 * 2 * size]


def test_a_scale_that_is_not_positive_is_refused() -> None:
    for wrong in ({"max_scale": 0.0}, {"min_scale": -1.0}, {"weight_decay": -0.1}, {"momentum": 1.0}):
        with pytest.raises(SojournError, match=next(iter(wrong))):
            method(**wrong)


# How far a step goes.


def path_of(world: World, client: int, algorithm: Any, steps: int) -> list[list[np.ndarray]]:
    """A client's iterates in round one, by the code: where it is after 0, 1, ..., `steps` steps."""
    federation, path = world.federation(), [world.start]
    for number in range(1, steps + 1):
        a = algorithm(num_local_steps=number)
        down, memory, key = a.init_server(federation.x0), a.init_client(federation.x0), jax.random.key(0)
        moved = a.local(down, memory, federation.clients.oracle(jnp.asarray(client)), key)[0].x
        path.append([x + np.asarray(d) for x, d in zip(world.start, jax.tree.leaves(moved), strict=True)])
    return path


def moved(path: list[list[np.ndarray]], t: int, layer: tuple[int, ...]) -> tuple[float, float]:
    """The length of a layer's step t, and the layer's norm before it."""
    before, after = path[t], path[t + 1]
    return length([after[i] - before[i] for i in layer]), length([before[i] for i in layer])


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize(("cut", "phi"), [({}, lambda a: a), ({"max_scale": 1.5}, lambda a: min(a, 1.5))])
def test_every_local_step_moves_a_layer_by_exactly_alpha_phi_of_its_norm(
    x64: None, lam: float, cut: Any, phi: Any
) -> None:
    """For any lambda: the direction is a unit vector. Normalisation, and Fed-AMS, do not step so."""
    path = path_of(World(), 1, lambda **k: method(weight_decay=lam, **cut, **k), 4)
    for t in range(4):
        for layer in LAYERS:
            step, norm = moved(path, t, layer)
            close(step, ALPHA * phi(norm))
    step, norm = moved(path, 0, (2, 3))
    far(step, ALPHA * phi(norm))
    plain = path_of(World(), 1, lambda **k: FedAMS(step_size=ALPHA, **k), 1)
    step, norm = moved(plain, 0, LAYERS[0])
    far(step, ALPHA * norm)


def test_a_client_stays_within_the_sum_of_its_steps(x64: None) -> None:
    """Theory T10: ||theta_i - theta|| <= alpha sum_t sqrt(sum_l phi(||theta^l||)^2), an equality for one step."""
    for client in range(3):
        path = path_of(World(), client, lambda **k: method(layers="leaf", **k), 5)
        reach = ALPHA * np.cumsum([length(theta) for theta in path[:-1]])  # phi = identity: the norm of all layers
        away = [length([a - b for a, b in zip(theta, path[0], strict=True)]) for theta in path[1:]]
        close(away[0], reach[0])
        assert all(a < b for a, b in zip(away[1:], reach[1:], strict=True))  # five steps do not go straight
        assert away[4] > reach[0]  # negative control: one term is not enough for five steps


def test_the_drift_of_one_step_is_reported_as_alpha_times_the_norm_of_the_model(x64: None) -> None:
    world = World()
    table = run(world.federation(), method(layers="leaf", num_local_steps=1), 3, record=("model_norm",)).frame()
    close(table["drift"].iloc[1:], ALPHA * table["model_norm"].iloc[:-1])


def test_without_weight_decay_the_scale_of_the_gradients_does_not_matter(x64: None) -> None:
    """In round one, while all denominators are equal; then vhat_0 and eps could be felt."""

    def end(factor: float, **options: Any) -> np.ndarray:
        loss = functools.partial(scaled_loss, factor)
        federation = sj.federation(loss, {"a": np.array([1.0, 2.0]), "b": np.array([[3.0]])}, [np.ones((2, 2))])
        return flat(run(federation, method(**options), 1).params)

    close(end(1.0), end(1000.0))
    close(end(1.0, bias_correction="none"), end(1.0))  # which for the first moment is a matter of scale
    far(end(1.0, weight_decay=1e4), end(1000.0, weight_decay=1e4))
    far(end(1.0, weight_decay=1e4, bias_correction="none"), end(1.0, weight_decay=1e4))


def scaled_loss(factor: float, params: Any, rows: Any) -> jax.Array:
    return factor * jnp.mean((rows @ params["a"] - 1) ** 2 + jnp.sin(params["b"][0, 0]) * jnp.sum(params["a"]))


# Zeros.


def lopsided(params: Any, rows: Any) -> jax.Array:
    """Does not depend on `idle`."""
    return jnp.mean((rows @ params["w"] - 1) ** 2) + 0.0 * jnp.sum(params["idle"])


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"bias_correction": "none"}, {"layers": "leaf"}])
def test_zero_layers_start_to_move_and_zero_gradients_move_nothing(options: Any) -> None:
    """In float32, from zero weights, with an array that has no gradient, in a layer of its own or zero itself."""
    for idle in (np.ones(2), np.zeros(2)):
        federation = sj.federation(lopsided, {"w": np.zeros(3), "idle": idle}, [np.eye(3)])
        state = play(federation, method(step_size=0.01, **options), 3)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((state.server, state.memory)))
        w, rest = np.asarray(state.server.x.tree["w"]), np.asarray(state.server.x.tree["idle"])
        assert (w > 0).all()
        decays = options.get("weight_decay", 0) > 0
        assert (rest < idle).all() if decays and idle.any() else (rest == idle).all()


def test_the_first_step_from_zero_is_of_the_size_of_alpha(x64: None) -> None:
    """Not alpha m / sqrt(vhat_0), which would be ten thousand times the gradient."""
    federation = sj.federation(lopsided, {"w": np.zeros(3), "idle": np.ones(2)}, [np.eye(3)])
    x = play(federation, method(step_size=0.01, num_local_steps=1), 1).server.x.tree["w"]
    gradient = 2 / 3
    close(x, np.full(3, 0.01 * gradient / (gradient + EPS)))  # corrected: m = g and v = g^2
    assert 0.01 * gradient / np.sqrt(1e-8) > 50


# Optax.


def optax_steps(parts: Any, x: Any, gradient: Any, steps: int, vhat0: float | None) -> Any:
    """Optax's steps; with vhat0, from a second moment that is this and stays."""
    transformation = optax.chain(*parts)
    state = transformation.init(x)
    if vhat0 is not None:
        fixed = jax.tree.map(lambda a: jnp.full_like(a, vhat0), x)
        state = (state[0]._replace(nu=fixed, nu_max=fixed), *state[1:])
    for _ in range(steps):
        update, state = transformation.update(gradient(x), state, x)
        x = optax.apply_updates(x, update)
    return x


def bowl(params: Any, rows: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(rows @ params["w"].T) @ params["b"] - 1) ** 2) + jnp.sum((params["c"] - 1) ** 2)


def test_inside_a_round_it_is_optax_lamb_with_its_denominators_held_fixed(x64: None) -> None:
    """Every array a layer, one of them zero at first; b2 = 1 keeps Optax's second moment at what it is given."""
    rng = np.random.default_rng(1)
    start = {"w": rng.normal(size=(2, 3)), "b": rng.normal(size=2), "c": np.zeros(2)}
    rows = rng.normal(size=(5, 3))
    federation = sj.federation(bowl, start, [rows])
    gradient = jax.grad(lambda x: bowl(x, jnp.asarray(rows)))
    x0 = jax.tree.map(jnp.asarray, start)
    rest = optax.add_decayed_weights(0.1), optax.scale_by_trust_ratio(), optax.scale_by_learning_rate(0.05)
    fixed = optax.scale_by_amsgrad(b2=1.0, bias_correction_nu=False)

    options = {"num_local_steps": 6, "weight_decay": 0.1, "layers": "leaf"}
    result = flat(run(federation, method(**options, initial_second_moment=9.0), 1).params)
    close(result, flat(optax_steps((fixed, *rest), x0, gradient, 6, 9.0)))
    far(result, flat(optax_steps((fixed, *rest[::2]), x0, gradient, 6, 9.0)))  # without the trust ratio
    far(result, flat(optax_steps((fixed, *rest[1:]), x0, gradient, 6, 9.0)))  # without the decay
    # Optax's lamb divides by its own moments, which follow every gradient: the server's stand still for a round.
    far(result, flat(optax_steps((optax.scale_by_adam(eps=EPS), *rest), x0, gradient, 6, None)))

    # From zero Optax steps by m / sqrt(vhat_0) at a small vhat_0; here the client's own moment then counts too.
    mine = run(federation, method(**options), 1).params["c"]
    theirs = optax_steps((fixed, *rest), x0, gradient, 6, 1e-8)["c"]
    assert np.abs(mine).max() < 1 < 100 < np.abs(theirs).max()


def test_layers_of_a_weight_and_a_bias_are_optax_lamb_on_the_two_as_one_array(x64: None) -> None:
    world = World(clients=1)
    federation = world.federation()
    fixed = optax.scale_by_amsgrad(b2=1.0, bias_correction_nu=False)
    rest = optax.scale_by_trust_ratio(), optax.scale_by_learning_rate(ALPHA)
    scaled, shifted = (jnp.asarray(a) for a in world.start[2:4])

    def joined(leaves: Any) -> Any:
        return {"first": flat([leaves[0], leaves[1]]), "last": flat([leaves[4], leaves[5]])}

    def apart(x: Any) -> list[np.ndarray]:
        first, last = np.asarray(x["first"]), np.asarray(x["last"])
        return [
            first[:12].reshape(4, 3),
            first[12:],
            np.asarray(scaled),
            np.asarray(shifted),
            last[:8].reshape(2, 4),
            last[8:],
        ]

    # One step: in the next, the network's scale and shift, which are in no layer, would have moved too.
    end = optax_steps((fixed, *rest), joined(world.start), lambda x: joined(world.grad(0, apart(x))), 1, 1e-8)
    state = play(federation, method(num_local_steps=1), 1)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.server.x)]
    close(flat(joined(leaves)), flat(end))
    leafwise = play(federation, method(num_local_steps=1, layers="leaf"), 1).server.x
    far(flat(joined(jax.tree.leaves(leafwise))), flat(end))


def test_a_vec_keeps_its_form(x64: None) -> None:
    federation = World().federation()
    server = play(federation, method(), 1).server
    assert isinstance(server.x, Vec)
    assert jax.tree.structure(server.x) == jax.tree.structure(server.v) == jax.tree.structure(federation.x0)
