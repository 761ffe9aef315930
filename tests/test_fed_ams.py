"""Fed-AMS against its rule retyped in NumPy, every option of it, and Optax's AMSGrad where the two coincide."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sojourn as sj
from conftest import random_quadratics
from sojourn.algorithms import FedAMS
from sojourn.core.errors import SojournError
from sojourn.core.federation import Federation
from sojourn.core.keys import purpose_key, root_key
from sojourn.core.vec import Vec
from test_local_sgd import Retyped, _noise_of_eight_steps, close, far, play, run, uneven_quadratics

ALPHA, T, R = 0.05, 3, 5
B1, B2, EPS = 0.9, 0.99, 1e-8  # a quicker second moment than the default: more of it shows in a few rounds


def first_gradient(world: Retyped, client: int, x: np.ndarray) -> np.ndarray:
    """The gradient of the exchange before round one, which draws under its own name."""
    key = purpose_key(jax.random.fold_in(jax.random.fold_in(root_key(world.seed), 0), client), "warm start")
    noise = np.asarray(_noise_of_eight_steps(world.objective, client, key))[0] if world.noisy else 0
    return world.grad(client, x) + noise


def fed_ams(
    world: Retyped, *, alpha: float = ALPHA, vhat0: float = 1e-4, moments: str = "carry", correction: str = "none",
    gradients: str = "fresh", decay: str = "none", warm: bool = False, per_answer: bool = True, keep_max: bool = True,
    own_v: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Spec 4.2. The last three are for negative controls: 1/n means, no maximum, the client's own denominators."""
    n, d = world.num_clients, len(world.x0)
    x, vhat = world.x0, np.full(d, vhat0)
    m_i, v_i, count = np.zeros((n, d)), np.zeros((n, d)), np.zeros(n, int)
    if warm:
        ids = world.cohort(0)
        vhat = np.maximum(vhat, world.shares(ids) @ np.array([first_gradient(world, i, x) ** 2 for i in ids]))
    for r in range(R):
        ids, ends, sent = world.cohort(r), [], []
        for i in ids:
            m, v, t = (m_i[i], v_i[i], count[i]) if moments == "carry" else (np.zeros(d), np.zeros(d), 0)
            y, at_start = x, world.grad(i, x) + world.noise(r, i, T)[0]
            for z in world.noise(r, i, T):
                g = at_start if gradients == "once" else world.grad(i, y) + z
                t += 1
                m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
                m_used, v_used = (m, v) if correction == "none" else (m / (1 - B1**t), v / (1 - B2**t))
                step = alpha if decay == "none" else alpha / np.sqrt(r + 1)
                y = y - step * m_used / (np.sqrt(v_used if own_v else vhat) + EPS)
            m_i[i], v_i[i], count[i] = m, v, t
            ends.append(y)
            sent.append(v_used)
        shares = world.shares(ids) * (1 if per_answer else len(ids) / n)
        x, mean_v = shares @ np.array(ends), shares @ np.array(sent)
        vhat = np.maximum(vhat, mean_v) if keep_max else mean_v
    return {"x": x, "vhat": vhat, "m": m_i, "v": v_i, "count": count}


def method(**options: Any) -> FedAMS:
    return FedAMS(step_size=ALPHA, num_local_steps=T, second_moment=B2, **options)


def found(federation: Federation, **options: Any) -> np.ndarray:
    return np.asarray(run(federation, method(**options), R, participation=3).params)


def test_noisy_clients_of_unequal_weights_in_sampled_cohorts_follow_the_rule(x64: None) -> None:
    federation = uneven_quadratics()
    world = Retyped(federation, participation=3)
    state, expected = play(federation, method(), R, participation=3), fed_ams(world)
    close(state.server.x.tree, expected["x"])
    close(state.server.v.tree, expected["vhat"])
    close(state.memory.m.tree, expected["m"])
    close(state.memory.v.tree, expected["v"])
    assert state.memory.num_updates.tolist() == expected["count"].tolist()
    assert len(set(expected["count"].tolist())) > 1  # clients came a different number of times
    for wrong in ({"per_answer": False}, {"keep_max": False}, {"own_v": True}):
        far(state.server.x.tree, fed_ams(world, **wrong)["x"])


OPTIONS = [  # each of the method's, and its name in the retyped rule
    ({"moments": "reset"}, {"moments": "reset"}),
    ({"bias_correction": "updates"}, {"correction": "updates"}),
    ({"bias_correction": "updates", "moments": "reset"}, {"correction": "updates", "moments": "reset"}),
    ({"gradients": "once"}, {"gradients": "once"}),
    ({"step_decay": "sqrt"}, {"decay": "sqrt"}),
    ({"warm_start": "gradients"}, {"warm": True}),
    ({"initial_second_moment": 0.1}, {"vhat0": 0.1}),
]


@pytest.mark.parametrize(("chosen", "rule"), OPTIONS, ids=lambda d: ", ".join(map(str, d.values())))
def test_every_option_is_its_rule_and_changes_the_result(x64: None, chosen: Any, rule: Any) -> None:
    federation = uneven_quadratics()
    world = Retyped(federation, participation=3)
    close(found(federation, **chosen), fed_ams(world, **rule)["x"])
    far(fed_ams(world, **rule)["x"], fed_ams(world)["x"])


def test_clients_whose_moments_are_reset_remember_nothing() -> None:
    x = Vec(jnp.ones(3))
    assert method(moments="reset").init_client(x) == ()
    assert len(jax.tree.leaves(method().init_client(x))) == 3


def test_model_and_second_moment_travel_both_ways(noisy_quadratics: Federation) -> None:
    def floats(**options: Any) -> list[tuple[int, int]]:
        table = run(noisy_quadratics, method(**options), 3, participation=2).frame().iloc[1:]
        return list(zip(table["floats_down"], table["floats_up"], strict=True))

    assert floats() == [(2 * 2 * 4, 2 * 2 * 4)] * 3
    assert floats(step_decay="sqrt") == [(2 * (2 * 4 + 1), 2 * 2 * 4)] * 3  # and the round's step
    assert floats(warm_start="gradients") == [(2 * 3 * 4, 2 * 3 * 4)] + [(2 * 2 * 4, 2 * 2 * 4)] * 2


def test_the_same_gradient_for_all_steps_is_asked_for_once(noisy_quadratics: Federation) -> None:
    calls = lambda **o: run(noisy_quadratics, method(**o), 2).frame()["calls_grad"].iloc[1:].tolist()  # noqa: E731
    assert calls() == [6 * T] * 2
    assert calls(gradients="once") == [6] * 2
    assert calls(warm_start="gradients") == [6 * T + 6, 6 * T]


@pytest.mark.parametrize("name", ["momentum", "second_moment"])
def test_a_moment_that_forgets_nothing_is_refused(name: str) -> None:
    with pytest.raises(SojournError, match=f"{name} = 1 "):
        FedAMS(step_size=0.1, **{name: 1.0})


# Optax.


def alone() -> tuple[Federation, np.ndarray, np.ndarray]:
    """One exact quadratic, with its Hessian and optimum."""
    hessians, optima = random_quadratics(num_clients=1)
    return sj.problems.quadratic(hessians, optima, x0=[1.0, -2.0, 0.5, 3.0]), hessians[0], optima[0]


def test_inside_a_round_it_is_optax_amsgrad_with_its_largest_moment_held_fixed(x64: None) -> None:
    """b2 = 1 freezes Optax's second moment at the value that it is given, here the server's."""
    federation, hessian, optimum = alone()
    vhat0 = 0.3
    algorithm = FedAMS(step_size=0.1, num_local_steps=6, initial_second_moment=vhat0, bias_correction="updates")

    def optax_steps(transformation: optax.GradientTransformation, frozen: bool) -> np.ndarray:
        x = jnp.asarray(federation.x0.tree)
        state = transformation.init(x)
        if frozen:
            state = state._replace(nu=jnp.full(4, vhat0), nu_max=jnp.full(4, vhat0))
        for _ in range(6):
            update, state = transformation.update(hessian @ (x - optimum), state, x)
            x = x - 0.1 * update
        return np.asarray(x)

    result = run(federation, algorithm, 1).params
    close(result, optax_steps(optax.scale_by_amsgrad(b2=1.0, bias_correction_nu=False), frozen=True))
    far(result, optax_steps(optax.scale_by_amsgrad(), frozen=False))  # Optax's own moves with every step


def test_with_one_step_per_round_its_denominator_is_optaxs_of_the_step_before(x64: None) -> None:
    """The server learns of a gradient's square only after the step with that gradient."""
    federation, hessian, optimum = alone()
    vhat0 = 1e-2
    algorithm = FedAMS(step_size=0.1, num_local_steps=1, initial_second_moment=vhat0, bias_correction="updates")
    optimizer = optax.scale_by_amsgrad()
    x = np.asarray(federation.x0.tree)
    state = optimizer.init(jnp.asarray(x))
    for _ in range(6):
        before = np.maximum(vhat0, np.asarray(state.nu_max))
        _, state = optimizer.update(jnp.asarray(hessian @ (x - optimum)), state)
        corrected = np.asarray(state.mu) / (1 - 0.9 ** int(state.count))
        x = x - 0.1 * corrected / (np.sqrt(before) + 1e-8)
    end = play(federation, algorithm, 6)
    close(end.server.x.tree, x)
    close(end.server.v.tree, np.maximum(vhat0, state.nu_max))
    close(end.memory.m.tree[0], state.mu)
    close(end.memory.v.tree[0], state.nu)

    optimizer = optax.amsgrad(0.1)
    y = jnp.asarray(federation.x0.tree)
    state = optimizer.init(y)
    for _ in range(6):
        update, state = optimizer.update(hessian @ (y - optimum), state)
        y = y + update
    far(x, y)  # Optax's own rule includes the present gradient
