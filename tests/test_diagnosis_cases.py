"""Diagnoses of federations that are unusual in some way, and of data; and the command."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.diagnosis import Diagnosis, load_diagnosis, save_diagnosis
from sojourn.diagnosis.asking import NotFiniteError
from sojourn.diagnosis.holdings import feature_shift, label_shift
from test_cli import Command, command  # noqa: F401 - a fixture

QUICK = {"facts": False, "num_directions": 0, "rounds": 3, "progress": False}


def regression(loss, num_clients: int = 3, rows: int = 20, seed: int = 0, **how):
    """Clients with rows (x, y) of their own, y linear in x with noise, and a model of three numbers."""
    rng = np.random.default_rng(seed)
    xs = rng.standard_normal((num_clients, rows, 3)) * rng.uniform(0.5, 1.5, (num_clients, 1, 3))
    ys = xs @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal((num_clients, rows))
    return sj.federation(loss, jnp.zeros(3), [(x, y) for x, y in zip(xs, ys, strict=True)], **how), xs, ys


def squared(w, batch):
    return 0.5 * jnp.mean((batch[0] @ w - batch[1]) ** 2)


def absolute(w, batch):
    return jnp.mean(jnp.abs(batch[0] @ w - batch[1]))


def rooted(w, batch):
    """A loss with finite gradients whose second derivative at zero is not: x sqrt(x)."""
    return jnp.mean((batch[0] @ w - batch[1]) ** 2) + jnp.sum(jnp.abs(w) ** 1.5)


def test_one_client_differs_from_nobody() -> None:
    fed, _, _ = regression(squared, num_clients=1)
    found = sj.diagnose(fed, **QUICK)
    for name in ("hessian_heterogeneity", "optima_heterogeneity", "gradient_heterogeneity", "optima_distance"):
        assert found[name].value == 0 and found[name].kind == "exact"
    assert any("one client" in sentence for sentence in found.warnings)
    assert found["smoothness"].value > 0


def test_least_squares_of_data_as_numpy_has_them() -> None:
    fed, xs, ys = regression(squared, batch_size=4)
    found = sj.diagnose(fed, facts=False, rounds=3, progress=False)
    hessians = np.einsum("mni,mnj->mij", xs, xs) / xs.shape[1]
    optima = np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(xs, ys, strict=True)])
    pairs = np.linalg.norm(optima[:, None] - optima[None], axis=-1)
    tau = np.abs(np.linalg.eigvalsh(hessians[:, None] - hessians[None])).max()
    assert found["smoothness"].value == pytest.approx(np.linalg.eigvalsh(hessians).max(), rel=1e-3)
    assert found["strong_convexity"].value == pytest.approx(np.linalg.eigvalsh(hessians).min(), rel=1e-2)
    assert found["hessian_heterogeneity"].value == pytest.approx(tau, rel=1e-3)
    assert found["optima_heterogeneity"].value == pytest.approx(np.mean(pairs**4) ** 0.25, rel=0.1)
    slopes = -(ys - xs @ np.zeros(3))[..., None] * xs  # of every row, at the start
    noise = (slopes.var(axis=1).sum(axis=-1) / 4).max() ** 0.5
    assert found["noise"].value == pytest.approx(noise, rel=0.3) and found["noise"].low < noise < found["noise"].high
    means, squares = xs.mean(axis=1), (xs**2).mean(axis=1)
    assert found["feature_shift"].value == pytest.approx(feature_shift(np.full(3, 20.0), means, squares), rel=1e-4)
    assert found["smallest_client"].value == found["largest_client"].value == 20
    assert "label_shift" not in found.measures
    with pytest.raises(KeyError):
        found["label_shift"]


def test_kinks_are_seen_by_differences_of_gradients() -> None:
    fed, _, _ = regression(absolute, rows=200)
    found = sj.diagnose(fed, **QUICK)
    assert any("kinks" in sentence for sentence in found.warnings)
    assert found["smoothness"].value > 0.1  # products alone see none at all
    smooth, _, _ = regression(squared, rows=200)
    assert not sj.diagnose(smooth, **QUICK).warnings


def test_products_that_are_not_finite_are_left_out_and_the_rest_goes_on() -> None:
    fed, _, _ = regression(rooted)
    found = sj.diagnose(fed, **{**QUICK, "num_directions": 3})
    assert any("not finite" in sentence for sentence in found.warnings)
    assert "noise" in found.measures and "start_gap" in found.measures
    json.dumps(found.to_json(), allow_nan=False)


def test_the_setting_is_told_from_the_spectrum() -> None:
    assert (
        sj.diagnose(sj.problems.cosines(num_clients=2, dimension=4, hessian_heterogeneity=0.5), **QUICK).setting
        == "non-convex"
    )
    wide = np.zeros((2, 6, 6))
    wide[:, 0, 0], wide[:, 1, 1] = 1.0, 2.0
    flat = sj.problems.quadratic(wide, np.ones((2, 6)), x0=np.zeros(6))
    assert sj.diagnose(flat, **QUICK).setting == "convex"
    assert sj.diagnose(flat, progress=False).setting == "convex"


def test_of_many_clients_some_are_asked_and_of_many_points_some_are_looked_at() -> None:
    fed, xs, _ = regression(squared, num_clients=9, rows=300)
    found = sj.diagnose(fed, **QUICK, max_clients=4, rows=100)
    assert found.details["clients_asked"] == sorted(set(found.details["clients_asked"])) and len(
        found.details["clients_asked"]
    ) == 4  # fmt: skip
    assert any("4 of 9 clients" in s for s in found.warnings) and any("100 of them" in s for s in found.warnings)
    top = np.linalg.eigvalsh(np.einsum("mni,mnj->mij", xs, xs) / 300).max(axis=1)
    assert found["smoothness"].value == pytest.approx(top[found.details["clients_asked"]].max(), rel=0.3)


def test_a_given_model_takes_the_place_of_the_warm_up() -> None:
    fed, _, _ = regression(squared)
    found = sj.diagnose(fed, jnp.ones(3), **QUICK)
    assert "warm_up" not in found.measures
    assert found["gradient_gap"].at == "the given model"
    with pytest.raises(sj.SojournError, match="shapes"):
        sj.diagnose(fed, jnp.ones(4), **QUICK)
    with pytest.raises(sj.SojournError, match="not finite"):
        sj.diagnose(fed, jnp.full(3, jnp.nan), **QUICK)


@pytest.mark.parametrize(
    ("how", "words"),
    [({"rows": 0}, "rows = 0"), ({"max_clients": 1.5}, "max_clients"), ({"num_directions": -1}, "num_directions"),
     ({"seed": -1}, "seed"), ({"rounds": True}, "rounds")],
)  # fmt: skip
def test_a_mistake_is_one_sentence(how: dict, words: str) -> None:
    fed, _, _ = regression(squared)
    with pytest.raises(sj.SojournError, match=words):
        sj.diagnose(fed, **how)


def test_something_else_than_a_federation_is_refused() -> None:
    with pytest.raises(sj.SojournError, match="takes a federation"):
        sj.diagnose([1, 2])


def test_shifts_of_labels_and_features() -> None:
    assert label_shift(np.array([[10.0, 0.0], [0.0, 10.0]])) == pytest.approx(0.5)
    assert label_shift(np.array([[5.0, 5.0], [1.0, 1.0]])) == 0
    means, squares = np.array([[1.0], [-1.0]]), np.array([[1.0 + 4.0], [1.0 + 4.0]])
    assert feature_shift(np.ones(2), means, squares) == pytest.approx(1 / 2)  # means 1 off, deviation 2
    assert feature_shift(np.ones(2), 0 * means, squares) == 0


def test_weights_count() -> None:
    hessians, optima = np.stack([np.eye(2)] * 3), np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    fed = sj.problems.quadratic(hessians, optima, weights=[6.0, 1.0, 1.0], x0=np.ones(2))
    found, w = sj.diagnose(fed, **QUICK), np.array([0.75, 0.125, 0.125])
    away = np.linalg.norm(optima - w @ optima, axis=1)
    assert found["optima_distance"].value == pytest.approx((w @ away**4) ** 0.25, rel=0.05)
    assert found["optima_distance"].value != pytest.approx((np.mean(away**4)) ** 0.25, rel=0.05)


CONFIG = """
[problem]
name = "quadratic"
num_clients = 4
dimension = 5
noise = 0.1

[algorithm]
name = "local-sgd"
step_size = 0.1

[run]
rounds = 3
"""


def test_the_command_shows_and_keeps_a_diagnosis(command: Command, tmp_path: Path) -> None:  # noqa: F811
    config = tmp_path / "my.toml"
    config.write_text(CONFIG)
    shown = command("diagnose", config, "--out", tmp_path / "out")
    assert shown.code == 0, shown.err
    assert "tau" in shown.out and "in all:" in shown.out
    kept = Diagnosis.from_json(json.loads((tmp_path / "out" / "diagnosis.json").read_text()))
    assert kept.num_clients == 4 and kept["smoothness"].kind == "exact"
    plain = command("diagnose", config, "--out", tmp_path / "more", "--json", "--scalars-only", "--seed", "3")
    assert json.loads(plain.out)["seed"] == 3 and json.loads(plain.out)["miniature"] is None
    wrong = command("diagnose", config, "--seed", "-2")
    assert wrong.code == 2 and "seed" in wrong.err


def test_one_program_serves_all_points() -> None:
    """A second diagnosis of the same shapes compiles nothing of ours."""
    from sojourn.diagnosis import asking

    fed, _, _ = regression(squared, batch_size=4)
    sj.diagnose(fed, **QUICK)
    before = asking._products._cache_size()
    other, _, _ = regression(squared, batch_size=4, seed=1)
    sj.diagnose(other, **QUICK)
    assert asking._products._cache_size() == before
    assert jax.config.jax_enable_x64 is False


def test_an_answer_that_is_not_finite_on_the_way_to_the_best_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: object) -> None:
        raise NotFiniteError

    monkeypatch.setattr("sojourn.diagnosis.path._descend_together", fails)
    fed = sj.problems.quadratic(np.stack([np.eye(2), 2 * np.eye(2)]), [[0.0, 1.0], [1.0, 0.0]])
    found = sj.diagnose(fed, facts=False, progress=False)
    assert "start_gap" not in found.measures and any("the best model" in text for text in found.warnings)
    assert "hessian_heterogeneity" in found.measures


def test_one_client_of_several_says_nothing_of_how_they_differ() -> None:
    fed = sj.problems.quadratic(np.stack([np.eye(2), 2 * np.eye(2)]), [[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(sj.SojournError, match="how clients differ"):
        sj.diagnose(fed, max_clients=1, progress=False)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_kinks_that_only_the_path_shows_are_seen(seed: int) -> None:
    """Products are zero everywhere and no kink is near the last model; gradients on the way still change."""
    _, xs, ys = regression(absolute, seed=seed)
    fed = sj.federation(absolute, jnp.full(3, 2.0), [*zip(xs, ys, strict=True)], batch_size=5)
    found = sj.diagnose(fed, facts=False, progress=False)
    assert any("kinks" in sentence for sentence in found.warnings)
    assert "third_order_smoothness" not in found.measures
    taus = [found.value(f"hessian_heterogeneity{way}") for way in ("", "_rms", "_path")]
    assert 0 < max(taus) <= 2 * found["smoothness"].value * (1 + 1e-9)
    assert found["smoothness"].low == found["smoothness"].value > 0
    assert found.setting == "convex" and "weak_convexity" not in found.measures  # no iteration invents a bend


def test_smoothness_is_at_least_what_gradients_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where products tell nothing at all and kinks are not looked for."""
    monkeypatch.setattr("sojourn.diagnosis.curvature.find_kinks", lambda case: None)
    _, xs, ys = regression(absolute, seed=1)
    fed = sj.federation(absolute, jnp.full(3, 2.0), [*zip(xs, ys, strict=True)])
    found = sj.diagnose(fed, **QUICK)
    assert found["smoothness"].value >= found["hessian_heterogeneity_path"].value / 2 > 0
    assert "over their distance" in found["smoothness"].how


def network(activation):
    rng = np.random.default_rng(7)
    start = {"a": rng.standard_normal((3, 16)) / 1.7, "b": rng.standard_normal(16) / 4}
    _, xs, ys = regression(squared)
    loss = lambda p, batch: jnp.mean((activation(batch[0] @ p["a"]) @ p["b"] - batch[1]) ** 2)  # noqa: E731
    return sj.federation(loss, start, [*zip(xs, ys, strict=True)], batch_size=5)


def test_kinks_of_a_network_are_told_and_a_smooth_one_has_none() -> None:
    how = {**QUICK, "rounds": 12}
    assert any("kinks" in sentence for sentence in sj.diagnose(network(jax.nn.relu), **how).warnings)
    assert not any("kinks" in sentence for sentence in sj.diagnose(network(jnp.tanh), **how).warnings)


def logarithm(w, batch):
    return jnp.mean(jnp.log(batch[0] @ w))


def edged(w, batch):
    return squared(w, batch) + jnp.sum(jnp.sqrt(jnp.abs(w)))


@pytest.mark.parametrize("loss", [logarithm, edged])
def test_where_nothing_is_finite_only_what_is_known_is_told(loss, tmp_path: Path) -> None:
    fed, _, _ = regression(loss, batch_size=5)
    found = sj.diagnose(fed, facts=False, progress=False)
    save_diagnosis(found, tmp_path / "diagnosis.json")
    assert load_diagnosis(tmp_path / "diagnosis.json").cost == found.cost
    assert not found.measures.keys() & {"start_distance", "start_gap", "f_star", "smoothness", "noise"}
    assert found.value("warm_up", 0.0) == 0
    assert any("start_distance and start_gap" in sentence for sentence in found.warnings)
    assert sum("not finite" in sentence for sentence in found.warnings) == 1


def test_a_measure_that_is_not_finite_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.diagnosis.optima.fourth_mean", lambda *_: float("nan"))
    fed, _, _ = regression(squared)
    found = sj.diagnose(fed, **QUICK)
    assert "optima_distance" not in found.measures and "mean_optima_distance" in found.measures
    assert any(sentence.startswith("optima_distance came out as nan") for sentence in found.warnings)
    assert all(np.isfinite(measure.value) for measure in found.measures.values())


def test_mean_noise_is_of_one_point_wherever_the_largest_is() -> None:
    fed, _, _ = regression(squared, batch_size=4)
    found = sj.diagnose(fed, facts=False, num_directions=0, progress=False)
    assert found["noise"].at == "the start"  # far from the optimum residuals are large
    assert found["noise_mean"].at == found["kurtosis"].at == "after 12 rounds"
    assert found["noise_mean"].value < found["noise"].value


def test_noise_that_the_miniature_leaves_out_is_told() -> None:
    told = []
    for d in (60, 6):
        fed = sj.problems.quadratic(np.stack([np.eye(d)] * 2), np.ones((2, d)), 0.3, x0=np.zeros(d))
        told.append(any("outside the miniature" in sentence for sentence in sj.diagnose(fed, progress=False).warnings))
    assert told == [True, False]
