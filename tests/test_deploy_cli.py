"""The commands of a deployment: one sentence for a mistake, secrets that stay secret, exit codes that are true."""

import fcntl
import json
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import sojourn as sj
from fieldwork import EXAMPLES, NAMES, Fieldwork, free_port
from sojourn import serving
from sojourn.cli import deployment
from sojourn.config import load_config, simulated, to_toml, validate
from sojourn.core.errors import SojournError
from sojourn.deploy.asynchronous import OneByOne
from sojourn.deploy.broker import Tls
from sojourn.deploy.keys import Credentials, Ring
from sojourn.deploy.place import Place
from sojourn.deploy.record import history_of
from sojourn.deploy.rules import Rules
from sojourn.deploy.server import Server
from test_cli import Command, command  # noqa: F401 - a fixture

METHOD = {"name": "fedasync", "step_size": 0.1, "mixing": 0.5}


def written(path: Path, **tables: Any) -> Path:
    whole = {"problem": {"name": "logistic-regression", "batch_size": 5}, "algorithm": METHOD, **tables}
    path.write_text(to_toml(whole))
    return path


def test_a_run_of_processes_ends_with_true_codes_and_secrets_stay_where_they_are(tmp_path: Path) -> None:
    """Beyond loopback, so all of it is encrypted, with certificates that were made for it."""
    work = Fieldwork(tmp_path, ["run.rounds=6"], EXAMPLES / "scaffold.toml", tls=True)
    try:
        work.start_all()
        codes = {name: process.wait(180) for name, process in work.processes.items()}
    finally:
        work.close()
    assert codes == dict.fromkeys(["server", *NAMES], 0), work.logs()
    history = sj.load_history(work.run)
    assert history.status == "ok" and history.last("round") == 6 and history.last("test_accuracy") > 0.5
    assert list(history.table["participants"]) == [0, 4, 4, 4, 4, 4, 4]
    assert "eof_received" not in work.logs()
    assert (work.run / "report.html").exists() and work.audit()[1] < 1e-5
    seeds = [Credentials.load(tmp_path / f"{name}.creds").seed for name in NAMES] + [Ring(work.run).server.seed]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        if path.suffix in (".creds", ".key") or path.name in ("keys.json", "broker.conf"):
            secret = path.suffix == ".creds" or path.name == "keys.json"
            assert secret or not any(seed in path.read_text() for seed in seeds)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        else:
            assert not any(seed.encode() in path.read_bytes() for seed in seeds), path
    told = work.command("status", str(work.run)).stdout
    assert "The run is over" in told and all(name in told for name in NAMES)
    before = (work.run / "status.json").read_bytes()
    try:
        work.start("server")
        assert work.processes["server"].wait(60) == 0, work.logs()
    finally:
        work.close()
    assert (work.run / "status.json").read_bytes() == before  # of a run that is over nothing new is to be told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_stopped_before_anybody_came_goes_on_with_the_same_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    work = Fieldwork(tmp_path)
    try:
        work.start("server")
        work.wait_for_status("waiting for workers", 60.0)
        work.processes["server"].send_signal(number)
        assert work.processes["server"].wait(60.0) == 130, work.logs()
    finally:
        work.close()
    assert "stopped; go on with the same command" in work.logs()
    assert sj.load_history(work.run).status == "stopped"


def test_a_server_that_never_reached_its_broker_leaves_a_history_without_metrics(tmp_path: Path) -> None:
    book = OneByOne(
        sj.problems.quadratic([[[1.0]]], [[0.0]]), sj.algorithms.FedAsync(0.1, 1, mixing=0.5), tmp_path, Rules(), of=2
    )
    assert list(history_of(book, "stopped", {"label": "a"}).table["round"]) == [0]


def test_invitations(command: Command, tmp_path: Path) -> None:  # noqa: F811
    assert "no deployment" in command.refused("invite", "ada")
    run, creds = tmp_path / "run", tmp_path / "ada.creds"
    answer = command("invite", "ada", "--run", run, "--out", creds)
    assert answer.code == 0 and Credentials.load(creds).seed not in answer.out + answer.err
    assert "was invited already" in command.refused("invite", "ada", "--run", run, "--out", tmp_path / "b.creds")
    assert "never written over" in command.refused("invite", "ben", "--run", run, "--out", creds)
    for name in ("a.b", "server", "", "ä"):
        assert "no name for a worker" in command.refused("invite", name, "--run", run)
    assert command("invite", "ada", "--revoke", "--run", run).code == 0
    assert Ring(run).workers == {} and Ring(run).names == ["ada"]  # its place is kept
    users = tmp_path / "users.conf"
    assert command("invite", "ada", "--run", run, "--out", tmp_path / "c.creds", "--users", users).code == 0
    (server, worker) = json.loads(users.read_text())["authorization"]["users"]
    assert "permissions" not in server and "sojourn.upload.ada" in worker["permissions"]["publish"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"server": "x", "workers": {}}', b"\xff"])
def test_keys_that_are_damaged_are_one_sentence(
    content: str | bytes, command: Command, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    run = tmp_path / "run"
    command("invite", "ada", "--run", run)
    (run / "keys.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    why = "keys.json is damaged; put a copy of it back, or delete it"
    assert why in command.refused("invite", "ben", "--run", run)
    if content == "{":
        assert why in command.refused("serve", written(tmp_path / "a.toml"), "--out", run)


SAMPLES, LABELS = [[0.5] * 64, [1.0] * 64], [0, 9]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (([[0.5] * 64, [1.0] * 63], LABELS), "features that are no array of numbers"),
        ((SAMPLES, [[0], [1, 2]]), "labels that are no array of numbers"),
        (([["a"] * 64] * 2, LABELS), "features that are no array of numbers"),
        ((SAMPLES, [None, 1]), "labels that are no array of numbers"),
        ([SAMPLES], "expected features and labels"),
        ((SAMPLES, [0]), "one label each"),
    ],
)
def test_data_that_are_none_are_one_sentence(
    given: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(EXAMPLES / "digits.toml")
    welcome = serving._welcome(config, *serving._prepared(config)[:2])
    monkeypatch.setattr(sys.modules[__name__], "mine", lambda: given, raising=False)
    with pytest.raises(SojournError, match=why):
        serving._client(welcome, "ada", f"{__name__}:mine", tmp_path)


def test_features_and_labels_may_come_in_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(EXAMPLES / "digits.toml")
    welcome = serving._welcome(config, *serving._prepared(config)[:2])
    monkeypatch.setattr(sys.modules[__name__], "mine", lambda: [SAMPLES, LABELS], raising=False)
    assert serving._samples(serving._client(welcome, "ada", f"{__name__}:mine", tmp_path)) == 2


def test_joining(command: Command, tmp_path: Path) -> None:  # noqa: F811
    creds, nowhere = tmp_path / "ada.creds", "nats://127.0.0.1:1"
    assert "cannot read" in command.refused("join", nowhere, "--creds", creds, "--data", "json:loads")
    creds.write_text("{}")
    assert "holds no credentials" in command.refused("join", nowhere, "--creds", creds, "--data", "json:loads")
    creds.unlink()
    command("invite", "ada", "--run", tmp_path / "run", "--out", creds)
    for data in ("json", "no_such_module:f", "json:nothing"):
        assert data in command.refused("join", nowhere, "--creds", creds, "--data", data)
    rest = ("--creds", creds, "--data", "json:loads")
    for address in (
        "127.0.0.1", "http://a:1", "nats://", "nats://127.0.0.1:abc", "nats://127.0.0.1:99999", "nats://127.0.0.1:0",
        "nats://none:4222", "tls://[::1", "TLS://127.0.0.1:1",
    ):  # fmt: skip
        assert "is no broker's address" in command.refused("join", address, *rest)
    for seconds in ("0", "-1", "nan"):
        assert "positive number of seconds" in command.refused("join", nowhere, *rest, "--patience", seconds)
    calm = ("--patience", "1")
    assert "no broker answers" in command.refused("join", nowhere, "--creds", creds, "--data", "json:loads", *calm)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"algorithm": [METHOD, {**METHOD, "label": "b"}]}, "one method"),
        ({"deploy": {"mode": "rounds"}}, "one by one"),
        ({"deploy": {"min_reports": 2, "deadline": 1.0}}, "is for rounds"),
        ({"deploy": {"max_stale": 2}}, 'did you mean "max_staleness"'),
        ({"deploy": {"timeout": 0}}, "does not fit"),
        ({"deploy": {"min_workers": 11}}, "out of range"),
        ({"partition": {"name": "iid", "redeal": "all"}}, "redeal"),
        ({"problem": {"name": "own", "function": "json:loads"}}, "fails"),
        ({"engine": {"name": "ray"}}, "[engine] says how a run is simulated"),
        ({"delay": {"seconds": 0.5}}, "[delay] says how a run is simulated"),
        ({"schedule": {"max_staleness": 3}}, "[schedule] says"),
        ({"run": {"record": ["model_norm"]}}, "run.record says"),
        ({"algorithm": {"name": "fedavg", "step_size": 0.1}, "deploy": {"concurrency": 2}}, "as they come"),
        ({"algorithm": {"name": "fedavg", "step_size": 0.1}, "deploy": {"over_selection": 2}}, "out of range"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    tables: dict[str, Any], why: str, command: Command, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    assert why in command.refused("serve", written(tmp_path / "a.toml", **tables), "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "keys.json").exists()


def test_one_server_one_config_one_port(command: Command, tmp_path: Path) -> None:  # noqa: F811
    file, run = written(tmp_path / "a.toml"), tmp_path / "run"
    assert "HOST:PORT" in command.refused("serve", file, "--out", run, "--listen", "4222")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "cannot listen" in command.refused("serve", file, "--out", run, "--listen", where)
    assert "another config" in command.refused("serve", file, "--out", run, "--set", "run.seed=1")
    with open(run / ".serve.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "at work" in command.refused("serve", file, "--out", run)
    assert "no broker's address" in command.refused("serve", file, "--out", run, "--broker", "nats://127.0.0.1:port")
    assert "all three" in command.refused("serve", file, "--out", run, "--key", "k.pem")


def test_a_server_that_could_not_start_tells_nothing_and_one_that_failed_that_it_has_stopped(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    file, run = written(tmp_path / "a.toml"), tmp_path / "run"
    listen = ("--out", run, "--listen", f"127.0.0.1:{free_port()}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        page = ("--ui-listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert command("serve", file, *listen, *page).code == 2
    assert "no run of a server" in command.refused("status", run)

    async def fails(server: Server, *about: Any) -> None:
        server.ready = True
        raise SojournError("the disk is full.")

    monkeypatch.setattr(Server, "run", fails)
    answer = command("serve", file, *listen)
    assert answer.code == 2 and "the disk is full." in answer.err
    assert "The run was stopped" in command("status", run).out


def test_a_start_that_is_refused_leaves_the_config_of_the_run(command: Command, tmp_path: Path) -> None:  # noqa: F811
    """The next start is with that file, which must not hold what was refused."""
    file = written(tmp_path / "a.toml", algorithm={"name": "fedavg", "step_size": 0.1}, deploy={"deadline": 5.0})
    run = tmp_path / "run"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = ("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert "cannot listen" in command.refused("serve", file, "--out", run, *where)
        before = (run / "config.toml").read_text()
        assert "out of range" in command.refused("serve", file, "--out", run, "--set", "deploy.over_selection=2")
        assert (run / "config.toml").read_text() == before
        assert "cannot listen" in command.refused("serve", run / "config.toml", "--out", run, *where)


ELSEWHERE = ("--broker", "nats://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--authority", "ca.pem"), "--authority vouches for a --broker"),
        (("--host", "fed.example.org"), "is reached from this machine alone"),
        ((*ELSEWHERE, "--listen", "127.0.0.1:4222"), "--listen is for a broker that is started here"),
        ((*ELSEWHERE, "--host", "fed.example.org"), "--host is for a broker that is started here"),
        (("--ui-listen", "8080"), "--ui-listen '8080' is not HOST:PORT"),
    ],
)
def test_an_option_that_would_not_be_heeded_is_refused(
    options: tuple[str, ...], why: str, command: Command, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    assert why in command.refused("serve", written(tmp_path / "a.toml"), "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_your_own_certificate_has_its_names_and_is_for_a_broker_that_is_started_here() -> None:
    tls = Tls(Path("a.pem"), Path("a.key"), Path("ca.pem"))
    with pytest.raises(SojournError, match="yours has its names already"):
        Place("0.0.0.0:4222", hosts=("fed.example.org",), tls=tls, authority=tls.authority).check()
    with pytest.raises(SojournError, match="--certificate is for a broker that is started here"):
        Place(broker="tls://fed.example.org:4222", tls=tls, authority=tls.authority).check()
    Place("0.0.0.0:4222", hosts=("fed.example.org",)).check()
    Place(broker="tls://fed.example.org:4222", authority=tls.authority).check()


@pytest.mark.parametrize("config", ["digits.toml", "scaffold.toml"])
def test_what_was_written_beside_a_run_says_nothing_that_only_a_simulation_heeds(config: str) -> None:
    whole = load_config(EXAMPLES / config)
    assert simulated(whole) == simulated(validate(whole.tables)) == []
    assert "run.record" in simulated(load_config(EXAMPLES / config, ["run.record=['model_norm']"]))


def test_a_status_of_nothing_and_packages_that_are_missing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    assert "no run of a server" in command.refused("status", tmp_path)
    monkeypatch.setattr(deployment, "find_spec", lambda name: None)
    for words in (["status"], ["invite", "ada"], ["serve", "a.toml"], ["join", "u", "--creds", "c", "--data", "d:e"]):
        assert "pip install 'sojourn[deploy]'" in command.refused(*words)
