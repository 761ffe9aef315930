"""The wide start: its weights' law, and the exchange between server and clients that makes it."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import sojourn as sj
from sojourn.cli.console import setups
from sojourn.config import validate
from sojourn.core.errors import SojournError
from sojourn.core.gaussian_mechanism import delta_of, epsilon_of
from sojourn.data.digits import load_digits
from sojourn.experiment import build_federation, run_config, sweep_config
from sojourn.history import load_history
from sojourn.models import mlp, wide_pyramid
from sojourn.models.pyramid import SmoothLeaky
from sojourn.models.wide_exchange import Protection, answer, features_of
from sojourn.models.wide_start import wide_matrices
from sojourn.report import render

KEY = jax.random.key(0)


def test_an_mlp_can_start_wide() -> None:
    model = mlp((40, 10), 5, KEY, hidden=[600, 8, 6], start="wide", second_variance=1e-6, identity_scale=3.0)
    w1, w2, w3, w4 = (np.asarray(layer.weight) for layer in model.layers)
    assert w1.std() == pytest.approx(1 / 400, rel=0.01) and abs(w1.mean()) < 2e-5
    assert w2.std() == pytest.approx(1e-3, rel=0.05)
    np.testing.assert_array_equal(w3.T, 3 * np.eye(8, 6))
    np.testing.assert_array_equal(w4.T, 3 * np.eye(6, 5))
    assert all(not np.any(np.asarray(layer.bias)) for layer in model.layers)
    plain = mlp((40, 10), 5, KEY, hidden=[600, 8, 6])
    assert np.asarray(plain.layers[0].weight).std() > 10 * w1.std(), "the default start is PyTorch's"
    one, other = (wide_matrices([4, 5, 2], jax.random.key(seed))[0] for seed in (0, 1))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"second_variance": 1e-3}, 'set start = "wide"'),
        ({"start": "wide", "hidden": []}, "needs a hidden layer"),
        ({"start": "wide", "hidden": [64, 4, 8]}, "do not grow after the second"),
    ],
)
def test_a_wide_start_that_cannot_be_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        mlp((6,), 3, KEY, **options)


# --- the exchange ------------------------------------------------------------------------------------------------


def split(sizes=(3, 9, 12), inputs=8, outputs=2, seed=0):
    """Clients of random inputs and targets."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, inputs)), rng.normal(size=(n, outputs))) for n in sizes]


def asked(clients=None, **options):
    return wide_pyramid((8,), 2, KEY, clients or split(), **{"widths": [32, 6], **options})


def all_features(start, clients):
    return features_of(np.concatenate([x for x, _ in clients]), start.model.weights[0], start.model.activation)


@pytest.mark.parametrize("summary", ["gram", "features"])
def test_the_server_learns_the_smallest_singular_values(summary: str) -> None:
    clients = split()
    start = asked(clients, summary=summary)
    every = all_features(start, clients)
    values = np.linalg.svd(every, compute_uv=False)
    assert len(values) == 24 and values[-1] > 0
    assert start.floor == pytest.approx(values[-1], rel=1e-6)
    own = [np.linalg.svd(part, compute_uv=False)[-1] for part in np.split(every, [3, 12])]
    np.testing.assert_allclose(start.client_floors, own, rtol=1e-6)
    assert start.floor < min(own), "the smallest of all samples is not that of a client"
    assert start.input_norm == pytest.approx(np.linalg.norm(np.concatenate([x for x, _ in clients])))
    assert start.label_norm == pytest.approx(np.linalg.norm(np.concatenate([y for _, y in clients])))


@pytest.mark.parametrize("summary", ["gram", "features"])
def test_a_layer_that_is_too_narrow_has_no_floor(summary: str) -> None:
    start = asked(widths=[23, 6], summary=summary)
    assert start.floor == 0 and start.exact_floor == 0
    verdict = start.setup.told({"class": "FedAvg", "num_local_steps": 5}, None)["checked"]["verdict"]
    assert "not certified" in verdict and "23 units for 24 samples" in verdict
    same = np.ones((2, 8))
    twice = asked([(same, np.zeros((2, 2)))], summary=summary)
    assert twice.floor == pytest.approx(0, abs=1e-7), "equal samples have equal features"


def test_the_start_is_as_the_paper_says() -> None:
    start = asked(identity_scale=3.0, second_variance=1e-6)
    w1, w2, w3 = (np.asarray(w) for w in start.model.weights)
    assert w1.std() == pytest.approx(1 / 8, rel=0.15) and w2.std() == pytest.approx(1e-3, rel=0.15)
    np.testing.assert_array_equal(w3, 3 * np.eye(6, 2))
    assert start.setup.record["second_variance"] == 1e-6
    two = asked(widths=[40])  # one hidden layer
    assert [np.shape(w) for w in two.model.weights] == [(8, 40), (40, 2)]
    checked = two.setup.told({"class": "FedAvg", "num_local_steps": 5}, None)["checked"]
    assert [c["condition"][:4] for c in checked["conditions"]] == ["(72)", "(73)"] * 2


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e6])
def test_the_server_makes_the_second_layer_small_enough(scale: float) -> None:
    """||f_0|| <= ||y||, so Phi_0 <= 2 ||y||^2 / N, whatever zeta is; a fixed variance does not do that."""
    clients = split()
    start = asked(clients, identity_scale=scale)
    x, y = (np.concatenate(both) for both in zip(*clients, strict=True))
    first = np.asarray(jax.vmap(start.model)(x))
    assert np.linalg.norm(first) <= np.linalg.norm(y) * (1 + 1e-5)
    assert np.linalg.norm(first - y) <= start.start_error <= 2 * np.linalg.norm(y) * (1 + 1e-5)
    fixed = asked(clients, identity_scale=1e6, second_variance=1e-4)
    assert np.linalg.norm(np.asarray(jax.vmap(fixed.model)(x))) > np.linalg.norm(y)


def test_what_is_sent_is_counted() -> None:
    paper, sums = asked(summary="features").setup, asked(summary="gram").setup
    assert paper.sent()["floats_down"] == sums.sent()["floats_down"] == 3 * 8 * 32
    assert paper.sent()["floats_up"] == 24 * 32 + 3 * 2
    assert sums.sent()["floats_up"] == 3 * (32 * 33 // 2 + 1 + 2)
    assert paper.sent()["bytes_down"] == 4 * 3 * 8 * 32 and paper.sent()["bytes_up"] == 8 * (24 * 32 + 3 * 3)
    assert paper.record["floats_up_of_a_client"] == 12 * 32 + 2
    assert sums.record["floats_up_of_a_client"] == 32 * 33 // 2 + 3


def test_features_reveal_the_inputs_exactly(x64: None) -> None:
    """The activation is invertible and W_1 has a right inverse when n_1 >= d_in: X = sigma^-1(F) W_1^+."""
    ((x, y),) = split((5,))
    first, activation = np.random.default_rng(1).normal(size=(8, 32)) / 8, SmoothLeaky(0.5, 1.0)
    sent = answer(first, x, y, activation, "features", None, KEY).features
    before = lambda f: brentq(lambda t: 0.5 * t + 0.5 * (np.logaddexp(0, t) - math.log(2)) - f, -50, 50, xtol=1e-13)  # noqa: E731
    inside = np.vectorize(before)(sent)
    np.testing.assert_allclose(inside @ np.linalg.pinv(first), x, atol=1e-9)
    clipped = answer(first, x, y, activation, "features", Protection(10.0, 10.0, 0.5, 1e-5), KEY).features
    assert np.linalg.norm(clipped - sent) > 1, "with noise the inputs are no longer in it"


def test_a_gram_matrix_of_one_sample_reveals_it_and_of_several_their_second_moments(x64: None) -> None:
    first, activation = np.random.default_rng(1).normal(size=(8, 32)) / 8, SmoothLeaky(0.5, 1.0)
    ((x, _),) = split((1,))

    def gram_of(x):
        upper = np.zeros((32, 32))
        upper[np.triu_indices(32)] = answer(first, x, np.zeros((len(x), 2)), activation, "gram", None, KEY).gram
        return upper + np.triu(upper, 1).T

    values, vectors = np.linalg.eigh(gram_of(x))
    found = np.sqrt(values[-1]) * vectors[:, -1]
    features = features_of(x, first, activation)[0]
    assert min(np.abs(found - features).max(), np.abs(found + features).max()) < 1e-9
    ((x, _),) = split((6,))
    turned = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0] @ features_of(x, first, activation)
    np.testing.assert_allclose(turned.T @ turned, gram_of(x), atol=1e-12)  # other features, the same sum


# --- clipping and noise ------------------------------------------------------------------------------------------


def test_one_sample_moves_an_answer_by_at_most_the_sensitivity(x64: None) -> None:
    """Over random neighbours, extreme ones among them; half of every sensitivity is exceeded."""
    rng = np.random.default_rng(0)
    quiet = Protection(feature_clip=0.7, input_clip=2.0, noise_multiplier=0.0, delta=1e-5)
    activation = SmoothLeaky(0.5, 1.0)
    most: dict[str, float] = {}
    for trial in range(300):
        first = rng.normal(size=(8, 12))
        x, y = 5 * rng.normal(size=(1 + trial % 4, 8)), np.eye(2)[rng.integers(0, 2, 1 + trial % 4)]
        other, label = x.copy(), y.copy()
        other[0] = -x[0] if trial % 3 == 0 else 0 * x[0] if trial % 3 == 1 else 5 * rng.normal(size=8)
        label[0] = label[0, ::-1] * (trial % 2)
        for summary in ("gram", "features"):
            one, two = (answer(first, *data, activation, summary, quiet, KEY) for data in ((x, y), (other, label)))
            for name in quiet.sensitivities(summary):
                moved = float(np.linalg.norm(getattr(one, name) - getattr(two, name)))
                most[name] = max(most.get(name, 0.0), moved)
    allowed = {**quiet.sensitivities("gram"), **quiet.sensitivities("features")}
    assert set(most) == set(allowed)
    for name, moved in most.items():
        assert moved <= allowed[name] * (1 + 1e-9), name
        if name != "floor":  # that it moves by 2c needs rows that cancel; what is shown is that c/2 would be too little
            assert moved > allowed[name] / 2, name
    assert most["floor"] > allowed["floor"] / 4


def test_noise_has_the_size_that_is_stated(x64: None) -> None:
    ((x, y),) = split((6,))
    first, activation = np.random.default_rng(1).normal(size=(8, 200)) / 8, SmoothLeaky(0.5, 1.0)
    loud, quiet = (Protection(1.5, 2.0, z, 1e-5) for z in (3.0, 0.0))
    for summary, name in (("gram", "gram"), ("features", "features")):
        noise = getattr(answer(first, x, y, activation, summary, loud, KEY), name)
        noise = noise - getattr(answer(first, x, y, activation, summary, quiet, KEY), name)
        assert noise.std() == pytest.approx(3.0 * loud.sensitivities(summary)[name], rel=0.1)
    other = answer(first, x, y, activation, "gram", loud, jax.random.key(1)).gram
    assert not np.array_equal(other, answer(first, x, y, activation, "gram", loud, KEY).gram)


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    """delta by integrating the hockey-stick divergence of N(1, z^2) from N(0, z^2)."""
    grid = np.linspace(-60, 60, 2_000_001)
    for z in (0.5, 1.0, 4.0):
        for epsilon in (0.1, 1.0, 3.0):
            p, q = norm.pdf(grid, 1, z), norm.pdf(grid, 0, z)
            direct = np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * (grid[1] - grid[0])
            assert delta_of(epsilon, z) == pytest.approx(direct, rel=1e-4, abs=1e-12)
        found = epsilon_of(z, 1e-5)
        assert delta_of(found, z) == pytest.approx(1e-5, rel=1e-6)
    classic = lambda z: math.sqrt(2 * math.log(1.25 / 1e-5)) / z  # noqa: E731
    assert epsilon_of(8.0, 1e-5) < classic(8.0) < 1, "where the classical formula is proven, it is looser"
    assert epsilon_of(0.5, 1e-5) > classic(0.5), "and it is false above 1"
    assert epsilon_of(1e7, 0.1) == 0
    protection = Protection(1.0, 1.0, 2.0, 1e-5)
    assert protection.epsilon("features") == pytest.approx(epsilon_of(2 / math.sqrt(3), 1e-5))
    assert protection.epsilon("gram") == pytest.approx(epsilon_of(1.0, 1e-5)), "four quantities"
    assert Protection(1.0, 1.0, 0.0, 1e-5).epsilon("gram") is None


def test_protection_is_told_with_what_it_does_to_the_estimate() -> None:
    plain, noisy = asked(), asked(noise_multiplier=1.0, feature_clip=2.0, input_clip=4.0)
    told = noisy.setup.record
    assert told["protection"]["sensitivities"]["gram"] == pytest.approx(math.sqrt(2) * 4)
    assert told["protection"]["epsilon"] > 0
    assert told["exact_smallest_singular_value"] == plain.exact_floor == pytest.approx(plain.floor, rel=1e-6)
    assert noisy.floor == 0, "such noise makes the sum of Gram matrices indefinite"
    judged = noisy.setup.told({"class": "FedAvg", "num_local_steps": 5}, None)["checked"]["verdict"]
    assert "not certified" in judged and "noise" in judged
    upward = asked(noise_multiplier=1.0, feature_clip=2.0, input_clip=4.0, summary="features", identity_scale=1e16)
    assert upward.floor > 10 * plain.floor, "noise on features raises their smallest singular value"
    judged = upward.setup.told({"class": "FedAvg", "num_local_steps": 5}, None)["checked"]
    assert all(c["holds"] for c in judged["conditions"]) and "not certified" in judged["verdict"]
    faint = asked(noise_multiplier=1e-12, feature_clip=10.0, input_clip=10.0)
    assert faint.floor == pytest.approx(plain.floor, rel=1e-3)
    cut = asked(feature_clip=0.01, input_clip=4.0)
    assert cut.floor < plain.floor and cut.setup.record["protection"]["epsilon"] is None


# --- through the house -------------------------------------------------------------------------------------------

TABLES = {
    "problem": {"name": "classification", "loss": "squared", "weights": "size"},
    "data": {"name": "digits", "test_share": 0.97},
    "partition": {"name": "iid", "num_clients": 4},
    "model": {"name": "wide-pyramid", "widths": [64, 12]},
    "algorithm": {"name": "fedavg", "step_size": 0.1, "num_local_steps": 2},
    "run": {"rounds": 2},
}


def test_a_config_reaches_the_clients_and_the_run_counts_and_tells_it(tmp_path) -> None:
    (history,) = run_config(validate(TABLES), tmp_path / "run", progress=False)
    table, setup = history.frame(), load_history(tmp_path / "run").manifest["setup"]
    assert setup["floats_down"] == table["floats_down"][0] == 4 * 64 * 64
    assert setup["floats_up"] == table["floats_up"][0] == 4 * (64 * 65 // 2 + 3)
    assert (table["floats_up"][1:] == 4 * (64 * 64 + 64 * 12 + 12 * 10)).all()
    assert setup["checked"]["local_steps"] == 2 and setup["checked"]["verdict"] == "not certified"
    assert setup["smallest_singular_value"] > 0
    json.dumps(setup, allow_nan=False)
    assert setups("fedavg", [{"setup": setup}]) == [
        "fedavg: before round 1 the start took 16,384 numbers down and 8,332 up; its conditions: not certified"
    ]
    page = render([history], tmp_path / "page").read_text()
    assert "The start, made with the clients" in page and "8,332" in page and "(72), layers 1 and 2" in page
    resumed = run_config(validate({**TABLES, "run": {"rounds": 4}}), tmp_path / "run", resume=True, progress=False)
    assert resumed[0].frame()["floats_up"][0] == setup["floats_up"], "counted once"
    plain = {**TABLES, "model": {"name": "pyramid", "widths": [64, 12]}}
    assert build_federation(validate(plain)).setup is None


def test_other_methods_and_batches_are_judged_for_what_they_are() -> None:
    start = asked()
    assert "about FedAvg" in start.setup.told({"class": "Scaffold"}, None)["checked"]["verdict"]
    exact, batch = (start.setup.told({"class": "FedAvg", "num_local_steps": 5}, m)["checked"] for m in (None, 4))
    assert exact["gradient_ratio"] == 1 < batch["gradient_ratio"]
    assert {c["condition"][:4] for c in exact["conditions"]} == {"(72)", "(73)"}
    assert {c["condition"][:4] for c in batch["conditions"]} == {"(67)", "(68)"}
    assert all(c["left_log10"] > 1e6 for c in batch["conditions"]), "numbers of millions of digits"


def test_the_theorem_is_silent_beyond_its_setting() -> None:
    """Of the loss, of who takes part and of the weights; each alone, where conditions would hold."""
    start = asked(identity_scale=1e16)
    fedavg = {"class": "FedAvg", "num_local_steps": 5, "step_size": 0.0}

    def verdict(everyone: bool = True, **problem: str) -> str:
        setup = dataclasses.replace(start.setup, problem={"loss": "squared", "weights": "size", **problem})
        return setup.told(fedavg, None, everyone)["checked"]["verdict"]

    assert verdict() == "certified"
    assert "about the squared loss" in verdict(loss="cross-entropy")
    assert "all clients take part" in verdict(everyone=False)
    assert 'problem.weights = "size"' in verdict(weights="equal")
    even = wide_pyramid((8,), 2, KEY, split((8, 8)), widths=[32, 6], identity_scale=1e16).setup
    even = dataclasses.replace(even, problem={"loss": "squared", "weights": "equal"})
    assert even.told(fedavg, None)["checked"]["verdict"] == "certified", "clients of one size weigh alike"


def test_a_run_tells_how_it_uses_its_start(tmp_path) -> None:
    tables = {**TABLES, "problem": {"name": "classification"}, "run": {"rounds": 1}}
    (history,) = run_config(validate(tables), tmp_path / "entropy", progress=False)
    assert "not cross-entropy" in history.manifest["setup"]["checked"]["verdict"]
    tables = {**TABLES, "run": {"rounds": 1, "participation": 2}}
    (history,) = run_config(validate(tables), tmp_path / "cohort", progress=False)
    assert "all clients take part" in history.manifest["setup"]["checked"]["verdict"]


def test_a_start_made_with_other_clients_is_refused() -> None:
    data = load_digits(test_share=0.97)
    mine, others = (sj.partition.iid(data.y_train, 4, seed=seed) for seed in (0, 1))
    start = wide_pyramid((64,), 10, KEY, [(data.x_train[r], data.y_train[r]) for r in mine], widths=[64, 12])
    assert sj.problems.classification(data, mine, start).setup.problem["loss"] == "cross-entropy"
    with pytest.raises(SojournError, match="made together with other clients"):
        sj.problems.classification(data, others, start)
    with pytest.raises(SojournError, match="leave redeal out"):
        sj.problems.classification(data, sj.partition.redealt(mine, data.y_train, "all"), start)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": 2.0}, "wide_pyramid.gamma = 2.0 does not fit; expected a finite number above 0 and below 1"),
        ({"target_share": 2.0}, "target_share = 2.0"),
        ({"feature_clip": 0.0, "input_clip": 1.0}, "feature_clip = 0.0"),
        ({"feature_clip": math.nan, "input_clip": 1.0}, "feature_clip = nan"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"widths": []}, "widths"),
        ({"widths": (0, 4)}, "widths"),
    ],
)
def test_options_from_python_are_checked_as_those_of_a_config(options: dict, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        asked(**options)
    assert asked(widths=(np.int64(32), 6), gamma=np.float64(0.5)).floor > 0, "NumPy's numbers are numbers"


def test_a_start_certifies_only_steps_that_the_proof_allows() -> None:
    setup = asked(identity_scale=1e16).setup  # exact gradients, and a zeta that is large enough
    told = lambda step: setup.told({"class": "FedAvg", "num_local_steps": 5, "step_size": step}, None)["checked"]  # noqa: E731
    largest = told(1.0)["largest_step_size"]
    assert told(0.9 * largest)["verdict"] == "certified"
    assert told(1.1 * largest)["verdict"].startswith("not certified: the conditions hold, but only for step sizes up")


def test_a_sweep_over_summaries_counts_each(tmp_path) -> None:
    history = sweep_config(TABLES, ["model.summary=gram,features"], tmp_path / "sweep", progress=False)[0]
    first = history.frame().query("round == 0").set_index("model.summary")["floats_up"]
    rows = int(build_federation(validate(TABLES)).label_counts.sum())
    assert first["gram"] == 4 * (64 * 65 // 2 + 3) and first["features"] == rows * 64 + 8
    told = [entry["setup"] for entry in history.manifest["settings"]]
    assert [setup["summary"] for setup in told] == ["gram", "features"] and "setup" not in history.manifest
    assert all(setup["checked"]["verdict"] == "not certified" for setup in told)
    lines = setups("sweep", history.manifest["settings"])
    assert len(lines) == 2 and "model.summary = features" in lines[1] and f"{rows * 64 + 8:,} up" in lines[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": {"name": "wide-pyramid", "noise_multiplier": 1.0}}, "need feature_clip and input_clip"),
        ({"partition": {"name": "iid", "num_clients": 4, "redeal": "all"}}, "leave redeal out"),
        ({"model": {"name": "wide-pyramid", "widths": [64, 4]}}, "none may be wider"),
    ],
)
def test_a_config_whose_start_cannot_be_made_is_refused(change: dict, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        build_federation(validate({**TABLES, **change}))


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "there are none"),
        ([(np.ones((2, 7)), np.ones((2, 2)))], r"client 0 .* row of 8 numbers"),
        ([(np.ones((0, 8)), np.ones((0, 2)))], "at least one row"),
        ([(np.ones((2, 8)), np.ones((2, 3)))], "rows of 2 numbers"),
        ([(np.full((2, 8), np.nan), np.ones((2, 2)))], "finite inputs"),
    ],
)
def test_clients_that_cannot_answer_are_named(clients: list, sentence: str) -> None:
    with pytest.raises(SojournError, match=sentence):
        wide_pyramid((8,), 2, KEY, clients, widths=[32, 6])


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_outside_the_classes_are_named(label: int) -> None:
    clients = [(np.ones((2, 8)), np.array([0, label]))]
    with pytest.raises(SojournError, match=r"labels from .* expected 0 to 1"):
        asked(clients)


def test_an_unknown_summary_is_named() -> None:
    with pytest.raises(SojournError, match='expected one of "gram", "features"'):
        asked(summary="gramm")
