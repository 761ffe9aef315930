"""Certificates: a real broker shows them, workers trust them or do not, and what is wrong with one is said."""

import asyncio
import datetime
import json
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sojourn.core.errors import SojournError
from sojourn.deploy import certificates
from sojourn.deploy.broker import Broker, Tls, configuration
from sojourn.deploy.certificates import authority_pem, client_context, given_certificates, is_loopback, own_certificates
from sojourn.deploy.keys import Ring

HOSTS = ["broker.example", "10.1.2.3"]
NOW = datetime.datetime.now(datetime.UTC)


def days(number: float) -> datetime.timedelta:
    return datetime.timedelta(days=number)


def contents(tls: Tls) -> tuple[str, str]:
    """Of the certificate and of the authority."""
    return tls.certificate.read_text(), tls.authority.read_text()


# --- a real broker ---------------------------------------------------------------------------------------------------


class Home:
    """A broker on the loopback that speaks TLS alone."""

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.ring, self.tls = Ring(place), own_certificates(place / "tls", HOSTS)
        self.broker = Broker(place / "broker", "127.0.0.1", self.port)
        known = (self.ring.server.public, self.ring.workers, self.tls, 1 << 20)
        self.broker.configure(configuration("127.0.0.1", self.port, place / "store", *known))
        self.broker.start()

    async def join(self, context: ssl.SSLContext, name: str | None = None) -> bool:
        connection = await nats.connect(
            f"nats://127.0.0.1:{self.port}", nkeys_seed_str=self.ring.server.seed, tls=context, tls_hostname=name,
            allow_reconnect=False, connect_timeout=20, error_cb=_quiet,
        )  # fmt: skip
        try:
            await connection.flush()
            return connection.is_connected
        finally:
            await connection.close()


async def _quiet(error: Exception) -> None:
    """Errors are raised as well."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("home"))
    asyncio.run(made.broker.wait_until_up())
    yield made
    made.broker.stop()


def trusting(home: Home) -> ssl.SSLContext:
    return client_context(authority_pem(home.tls))


@pytest.mark.parametrize("name", [None, "localhost", "broker.example", "10.1.2.3"])
def test_a_worker_with_the_authority_joins_under_every_name_of_the_broker(home: Home, name: str | None) -> None:
    assert asyncio.run(home.join(trusting(home), name))


@pytest.mark.parametrize("authority", ["none", "another"])
def test_without_the_authority_a_worker_does_not_speak_to_the_broker(
    home: Home, authority: str, tmp_path: Path
) -> None:
    other = own_certificates(tmp_path, HOSTS)
    context = client_context(None if authority == "none" else authority_pem(other))
    with pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(home.join(context))


@pytest.mark.parametrize("name", ["elsewhere.example", "127.0.0.2"])
def test_a_broker_under_another_name_is_not_believed(home: Home, name: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=rf"mismatch.*{name}"):
        asyncio.run(home.join(trusting(home), name))


def test_the_broker_takes_no_plain_text(home: Home) -> None:
    async def speak() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", home.port)
        try:
            greeting = json.loads((await reader.readline()).removeprefix(b"INFO "))
            assert greeting["tls_required"]
            writer.write(b'CONNECT {"verbose": true}\r\nPING\r\n')
            await writer.drain()
            return await reader.read()  # until the broker hangs up
        finally:
            writer.close()

    async def patiently() -> bytes:
        async with asyncio.timeout(60):
            return await speak()

    answer = asyncio.run(patiently())
    assert b"PONG" not in answer and b"+OK" not in answer


def test_the_command_of_openssl_accepts_them_for_a_server(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path, HOSTS)
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(tls.authority)]
    try:
        asked = [*command, "-verify_hostname", "broker.example", str(tls.certificate)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl command is installed")
    assert done.returncode == 0, done.stderr


# --- our own ---------------------------------------------------------------------------------------------------------


def test_keys_are_for_their_owner_alone_and_a_certificate_cannot_sign(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path / "made" / "for it", HOSTS)
    for key in (tls.key, tls.key.with_name(certificates.AUTHORITY_KEY)):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    leaf, authority = (x509.load_pem_x509_certificate(text.encode()) for text in contents(tls))
    for certificate, signs in ((leaf, False), (authority, True)):
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is signs
        assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is signs
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1", "::1"]


def test_what_still_serves_is_kept(tmp_path: Path) -> None:
    first = contents(own_certificates(tmp_path, HOSTS, NOW))
    assert contents(own_certificates(tmp_path, HOSTS, NOW + days(300))) == first
    assert contents(own_certificates(tmp_path, HOSTS[:1], NOW)) == first  # it covers more than is asked


def spoil(what: str) -> Callable[[Tls], object]:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "nothing": lambda tls: None,
        "no certificate": lambda tls: tls.certificate.unlink(),
        "no key": lambda tls: tls.key.unlink(),
        "damaged": lambda tls: tls.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA"),
        "another key": lambda tls: tls.key.write_bytes(other),
        "self-made": lambda tls: tls.certificate.write_bytes(tls.authority.read_bytes()),
        "of another authority": lambda tls: _exchange(tls, own_certificates(tls.key.parent / "elsewhere", HOSTS)),
    }[what]


def _exchange(tls: Tls, other: Tls) -> None:
    tls.certificate.write_bytes(other.certificate.read_bytes())
    tls.key.write_bytes(other.key.read_bytes())


@pytest.mark.parametrize(
    ("what", "hosts", "later"),
    [("nothing", HOSTS, 380), ("nothing", HOSTS, 500), ("nothing", ["new.example"], 0), ("no certificate", HOSTS, 0),
     ("no key", HOSTS, 0), ("damaged", HOSTS, 0), ("another key", HOSTS, 0), ("self-made", HOSTS, 0),
     ("of another authority", HOSTS, 0)],
)  # fmt: skip
def test_what_no_longer_serves_is_renewed_and_workers_need_nothing_new(
    what: str, hosts: list[str], later: float, tmp_path: Path
) -> None:
    begun = NOW - days(later)  # so that what is renewed is good today
    first = own_certificates(tmp_path, HOSTS, begun)
    authority = first.authority.read_text()
    spoil(what)(first)
    old = first.certificate.read_text() if first.certificate.exists() else ""
    renewed = own_certificates(tmp_path, hosts, NOW)
    assert contents(renewed)[0] != old and contents(renewed)[1] == authority
    given_certificates(renewed.certificate, renewed.key, first.authority, hosts)  # by a handshake


def test_an_authority_is_never_made_anew_behind_the_workers_back(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path, HOSTS, NOW)
    with pytest.raises(SojournError, match=r"authority\.pem ended on .*invite the workers again\.$"):
        own_certificates(tmp_path, HOSTS, NOW + days(3651))
    almost = own_certificates(tmp_path, HOSTS, NOW + days(3600))  # no certificate outlives it
    ends = [x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc for text in contents(almost)]
    assert ends[0] == ends[1]
    tls.authority.write_text("garbage")
    with pytest.raises(SojournError, match=r"authority\.pem holds no certificate in PEM\.$"):
        own_certificates(tmp_path, HOSTS, NOW)


def test_without_the_key_of_the_authority_a_good_certificate_serves_and_no_new_one_is_made(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path, HOSTS)
    key = tmp_path / certificates.AUTHORITY_KEY
    key.unlink()
    assert own_certificates(tmp_path, HOSTS) == tls
    with pytest.raises(SojournError, match=r"^cannot read .*authority\.key: No such file"):
        own_certificates(tmp_path, ["new.example"])
    key.write_bytes(tls.key.read_bytes())
    with pytest.raises(SojournError, match=r"authority\.key is not the key of .*authority\.pem\.$"):
        own_certificates(tmp_path, ["new.example"])


@pytest.mark.parametrize("host", ["", "a b", "0.0.0.0", "::", "x/y", "*", "a..b", "n" * 70, "nats://broker"])
def test_what_is_no_host_is_one_sentence(host: str, tmp_path: Path) -> None:
    with pytest.raises(SojournError, match=r"is no name of a host; give|is every address of this machine; name"):
        own_certificates(tmp_path, [host])
    assert not list(tmp_path.iterdir())


def test_a_name_in_another_script_is_encoded(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path, ["Bücher.example"])
    given_certificates(tls.certificate, tls.key, tls.authority, ["xn--bcher-kva.example", "bücher.example"])


# --- the user's ------------------------------------------------------------------------------------------------------


def test_the_users_files_are_taken_as_they_are(tmp_path: Path) -> None:
    tls = own_certificates(tmp_path, HOSTS)
    assert given_certificates(tls.certificate, tls.key, tls.authority, [*HOSTS, "localhost"]) == tls


def test_what_else_is_written_in_the_file_of_an_authority_does_not_reach_the_workers(tmp_path: Path) -> None:
    tls, other = own_certificates(tmp_path / "a", HOSTS), own_certificates(tmp_path / "b", HOSTS)
    both = tls.authority.read_text() + other.authority.read_text()
    tls.authority.write_text(f"Zertifikate für alle\n{both}", encoding="utf-8")
    assert authority_pem(tls) == both
    given_certificates(tls.certificate, tls.key, tls.authority, HOSTS)
    given_certificates(other.certificate, other.key, tls.authority, HOSTS)


def test_what_is_wrong_with_the_users_files_is_said(tmp_path: Path) -> None:
    good, other = own_certificates(tmp_path / "good", HOSTS), own_certificates(tmp_path / "other", HOSTS)
    old = own_certificates(tmp_path / "old", HOSTS, NOW - days(500))
    ended = own_certificates(tmp_path / "ended", HOSTS, NOW - days(4000))
    early = own_certificates(tmp_path / "early", HOSTS, NOW + days(2))
    garbage, locked = tmp_path / "garbage.pem", tmp_path / "locked.key"
    garbage.write_text("garbage")
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    wrong: list[tuple[tuple[Path, Path, Path], str]] = [
        ((tmp_path / "none.pem", good.key, good.authority), r"^cannot read .*none\.pem: No such file or directory\.$"),
        ((tmp_path, good.key, good.authority), r"^cannot read .*: Is a directory\.$"),
        ((garbage, good.key, good.authority), r"garbage\.pem holds no certificate in PEM\.$"),
        ((good.certificate, garbage, good.authority), r"garbage\.pem holds no key in PEM\.$"),
        ((good.certificate, good.key, garbage), r"garbage\.pem holds no certificate in PEM\.$"),
        ((good.certificate, locked, good.authority), r"locked\.key is locked by a password; the broker needs"),
        ((good.certificate, other.key, good.authority), r"broker\.key is not the key of .*broker\.pem\.$"),
        ((good.certificate, good.key, other.authority), r"is not vouched for by .*authority\.pem: .*\.$"),
        ((old.certificate, old.key, old.authority), r"old/broker\.pem ended on \d{4}-\d\d-\d\d; renew it\.$"),
        ((ended.certificate, ended.key, ended.authority), r" ended on \d{4}-\d\d-\d\d; renew it\.$"),
        ((early.certificate, early.key, early.authority), r"is not valid yet; is this machine's clock right\?$"),
    ]
    for files, sentence in wrong:
        with pytest.raises(SojournError, match=sentence):
            given_certificates(*files)
    with pytest.raises(SojournError, match=r"broker\.pem is not for elsewhere\.example; use one that names it"):
        given_certificates(good.certificate, good.key, good.authority, ["broker.example", "elsewhere.example"])
    with pytest.raises(SojournError, match=r"broker\.pem is not for 10\.9\.9\.9; use one that names it"):
        given_certificates(good.certificate, good.key, good.authority, ["10.9.9.9"])


def test_what_is_no_authority_is_one_sentence() -> None:
    for pem in ("garbage", "", " \n", "é", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(SojournError, match=r"^the authority in the credentials is no certificate; ask for new"):
            client_context(pem)


def test_a_context_checks_names_and_is_of_today() -> None:
    context = client_context(None)
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("host", "near"),
    [("localhost", True), ("LOCALHOST", True), ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("", False), ("broker.example", False), ("localhost.example", False),
     ("10.0.0.1", False), ("127.0.0.1.example", False)],
)  # fmt: skip
def test_the_loopback_is_known(host: str, near: bool) -> None:
    assert is_loopback(host) is near
