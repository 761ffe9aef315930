"""Certificates of the broker: made here with an authority of the run's own, or the user's, checked before use.

The authority is made once and stays, as every worker carries it in its credentials; the broker's certificate is kept
while it covers the hosts by which workers reach the broker and is far from its end, and is made anew otherwise. Whether
one serves is not guessed from its fields: a handshake is carried out in memory, as every worker will do it.
"""

import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically, write_secret
from sojourn.deploy.broker import Tls

AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
CERTIFICATE, KEY = "broker.pem", "broker.key"
AT_HOME = ("localhost", "127.0.0.1", "::1")  # the server speaks to its own broker
_AUTHORITY_DAYS, _DAYS, _RENEW_DAYS = 3650, 397, 30
_SLACK = datetime.timedelta(hours=1)  # clocks of workers that are late
_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's numbers of what is wrong


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    bare = host.strip().removeprefix("[").removesuffix("]").lower()
    if bare in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def client_context(authority_pem: str | None) -> ssl.SSLContext:
    """What a worker trusts: this authority alone, or without one those of its system."""
    if authority_pem is None:
        return ssl.create_default_context()
    try:
        if not authority_pem.strip():  # an empty one would mean the system's authorities
            raise ValueError
        return ssl.create_default_context(cadata=authority_pem)
    except (ssl.SSLError, ValueError, TypeError):
        raise SojournError("the authority in the credentials is no certificate; ask for new credentials.") from None


def authority_pem(tls: Tls) -> str:
    """What workers need to trust the broker, for their credentials: the certificates of the file and nothing else."""
    return "".join(_pem(certificate) for certificate in _certificates(tls.authority))


# --- the run's own ---------------------------------------------------------------------------------------------------


def own_certificates(place: Path, hosts: Sequence[str], now: datetime.datetime | None = None) -> Tls:
    """The files in `place`, made or renewed as needed, for these hosts and for this machine itself."""
    now = now or datetime.datetime.now(datetime.UTC)
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *AT_HOME])]
    tls = Tls(place / CERTIFICATE, place / KEY, place / AUTHORITY)
    if not tls.authority.exists():
        _make_authority(place, now)
    authority = _authority(tls.authority, now)
    if not _serves(tls, authority, names, now):
        _make_certificate(place, authority, names, now)
    return tls


def _make_authority(place: Path, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    # a number in the name, so that a worker of two runs never takes one authority for the other
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"sojourn {x509.random_serial_number():x}"[:60])])
    builder = _builder(name, name, key.public_key(), now, now + datetime.timedelta(days=_AUTHORITY_DAYS))
    made = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(place / AUTHORITY_KEY, key)  # first: a certificate whose key was lost in between could never sign
    _write(place / AUTHORITY, made)


def _authority(path: Path, now: datetime.datetime) -> x509.Certificate:
    """It is never made anew behind the workers' back."""
    found = _certificate(path)
    if found.not_valid_after_utc <= now:
        raise SojournError(f"{path} ended on {_day(found)}; delete {path.parent} and invite the workers again.")
    return found


def _make_certificate(
    place: Path, authority: x509.Certificate, names: Sequence[x509.GeneralName], now: datetime.datetime
) -> None:
    signer = _private_key(place / AUTHORITY_KEY)
    if signer.public_key() != authority.public_key():
        raise SojournError(f"{place / AUTHORITY_KEY} is not the key of {place / AUTHORITY}.")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sojourn broker")])
    end = min(now + datetime.timedelta(days=_DAYS), authority.not_valid_after_utc)
    from_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _builder(name, authority.subject, key.public_key(), now, end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(from_signer, critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write_key(place / KEY, key)
    _write(place / CERTIFICATE, made)


def _serves(
    tls: Tls, authority: x509.Certificate, names: Iterable[x509.GeneralName], now: datetime.datetime
) -> bool:  # fmt: skip
    """Whether the certificate can stay: ours to replace where it cannot, whatever the reason."""
    try:
        found, key = _certificate(tls.certificate), _private_key(tls.key)
        found.verify_directly_issued_by(authority)
        covered = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (SojournError, ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature):
        return False
    renew_at = found.not_valid_after_utc - datetime.timedelta(days=_RENEW_DAYS)
    in_time = found.not_valid_before_utc <= now < min(renew_at, authority.not_valid_after_utc)
    return in_time and key.public_key() == found.public_key() and set(names) <= set(covered)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: wanted.get(name, False) for name in names})


def _general_name(host: str) -> x509.GeneralName:
    bare = host.strip().removeprefix("[").removesuffix("]")
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(bare)
        if address.is_unspecified:
            raise SojournError(f"{host} is every address of this machine; name the one by which workers reach it.")
        return x509.IPAddress(address)
    try:
        ascii_name = bare.rstrip(".").encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    if not ascii_name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise SojournError(f"{host!r} is no name of a host; give a name such as broker.example or an address.")
    return x509.DNSName(ascii_name.lower())


# --- the user's ------------------------------------------------------------------------------------------------------


def given_certificates(certificate: Path, key: Path, authority: Path, hosts: Sequence[str] = ()) -> Tls:
    """The user's files, as they are: readable, made for each other, valid today, and for these hosts."""
    tls = Tls(certificate, key, authority)
    trusting = client_context(authority_pem(tls))
    if _private_key(key).public_key() != _certificate(certificate).public_key():
        raise SojournError(f"{key} is not the key of {certificate}.")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        serving.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise SojournError(f"{certificate} cannot be used: {error.reason or error}.") from None
    trusting.check_hostname = False
    _check_handshake(serving, trusting, tls, None)
    trusting.check_hostname = True
    for host in hosts:
        _check_handshake(serving, trusting, tls, host)
    return tls


def _check_handshake(serving: ssl.SSLContext, trusting: ssl.SSLContext, tls: Tls, host: str | None) -> None:
    """What every worker will do, in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    waiting: list[Any] = [client, server]
    while client in waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise SojournError(_sentence(error, tls, host)) from None
            except ssl.SSLError as error:
                raise SojournError(f"{tls.certificate} cannot be used: {error.reason or error}.") from None


def _sentence(error: ssl.SSLCertVerificationError, tls: Tls, host: str | None) -> str:
    found, authority = _certificate(tls.certificate), _certificate(tls.authority)
    if error.verify_code == _EXPIRED:
        pairs = ((tls.certificate, found), (tls.authority, authority))
        path, ended = min(pairs, key=lambda pair: pair[1].not_valid_after_utc)
        return f"{path} ended on {_day(ended)}; renew it."
    if error.verify_code == _NOT_YET:
        return f"{tls.certificate} or {tls.authority} is not valid yet; is this machine's clock right?"
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return f"{tls.certificate} is not for {host}; use one that names it, or another host."
    return f"{tls.certificate} is not vouched for by {tls.authority}: {error.verify_message}."


# --- files -----------------------------------------------------------------------------------------------------------


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
    write_atomically(path, lambda beside: write_secret(beside, pem))


def _write(path: Path, certificate: x509.Certificate) -> None:
    write_atomically(path, lambda beside: beside.write_text(_pem(certificate)))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SojournError(f"cannot read {path}: {error.strerror}.") from None


def _certificate(path: Path) -> x509.Certificate:
    """The first of the file; others may follow that lead to an authority."""
    return _certificates(path)[0]


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise SojournError(f"{path} holds no certificate in PEM.") from None


def _private_key(path: Path) -> Any:
    try:
        return serialization.load_pem_private_key(_read(path), password=None)
    except TypeError:
        raise SojournError(f"{path} is locked by a password; the broker needs a key without one.") from None
    except ValueError:
        raise SojournError(f"{path} holds no key in PEM.") from None


def _day(certificate: x509.Certificate) -> str:
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")
