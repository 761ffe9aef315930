"""Keys: a pair for the server and one for every worker, made here, kept in files that only their owner can read.

The server keeps the public halves of its workers and its own secret; a worker's secret is in its credentials file
alone, which `invite` writes once and nobody keeps a copy of. Nothing here is ever printed or logged.
"""

import base64
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nacl.exceptions
import nacl.signing
import nkeys

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically, write_secret
from sojourn.deploy.broker import names_of

RING_FILE = "keys.json"
SEAL = "Sojourn-Seal"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A secret, which signs, and the public half that a broker knows."""

    seed: str = dataclasses.field(repr=False)
    public: str

    @staticmethod
    def new() -> "Pair":
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        return Pair.of(seed.decode())

    @staticmethod
    def of(seed: str) -> "Pair":
        try:
            pair = nkeys.from_seed(bytearray(seed.encode()))
        except Exception:
            raise SojournError("the key cannot be read; ask for new credentials.") from None
        return Pair(seed, pair.public_key.decode())

    def seal(self, subject: str, body: bytes) -> dict[str, str]:
        """The header that shows who wrote a message, and that it is for this subject."""
        signature = _signer(self.seed).sign(_essence(subject, body))
        return {SEAL: base64.b64encode(signature).decode()}


def is_sealed(public: str | None, message: Any) -> bool:
    """Whether a message was written by the owner of a key.

    The broker lets nobody publish in another's name, but its own replies go wherever who asks for them says.
    """
    if public is None:
        return False
    try:
        _verifier(public).verify(
            _essence(message.subject, message.data), base64.b64decode((message.headers or {}).get(SEAL, ""))
        )
    except (nacl.exceptions.CryptoError, ValueError, TypeError):
        return False
    return True


@functools.cache
def _signer(seed: str) -> nkeys.KeyPair:
    """Made once: reading a key takes longer than signing with it."""
    return nkeys.from_seed(bytearray(seed.encode()))


@functools.lru_cache(10_000)
def _verifier(public: str) -> nacl.signing.VerifyKey:
    return nacl.signing.VerifyKey(base64.b32decode(public + "=" * (-len(public) % 8))[1:33])


def _essence(subject: str, body: bytes) -> bytes:
    return f"{subject} ".encode() + hashlib.sha256(body).digest()


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What a worker needs to join: its name and key, and the authority that vouches for the broker, if there is one."""

    name: str
    seed: str = dataclasses.field(repr=False)
    server: str  # its public key: tasks carry its seal
    authority: str | None = None  # a certificate, in PEM

    def save(self, path: Path) -> None:
        if path.exists():
            raise SojournError(f"{path} exists already; credentials are never written over.")
        content = json.dumps(dataclasses.asdict(self))
        write_atomically(path, lambda beside: write_secret(beside, content))

    @staticmethod
    def load(path: Path) -> "Credentials":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            made = Credentials(found["name"], found["seed"], found["server"], found["authority"])
        except OSError as error:
            raise SojournError(f"cannot read {path}: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            raise SojournError(f"{path} holds no credentials; `sojourn invite` makes them.") from None
        names_of([made.name])
        return made


class Ring:
    """The server's own key and the public keys of those it has invited, in the run's directory.

    Clients are numbered in their order; who was revoked stays among them without a key, and can be invited anew.
    """

    def __init__(self, place: Path) -> None:
        self._path = place / RING_FILE
        if self._path.exists():
            self.server, self.places = _kept(self._path)
        else:
            self.server, self.places = Pair.new(), {}
            self._save()

    @property
    def names(self) -> list[str]:
        return list(self.places)

    @property
    def workers(self) -> dict[str, str]:
        """The public keys of those who may come in."""
        return {name: key for name, key in self.places.items() if key is not None}

    @property
    def changed(self) -> float:
        """When it was written last."""
        return self._path.stat().st_mtime

    def invite(
        self, name: str, authority: str | None = None, keep: Callable[[Credentials], None] = lambda made: None
    ) -> Credentials:
        """Credentials of a new worker, or new ones of a worker whose old ones were revoked.

        They count once `keep` has them: an invitation that could not be written would take a place in vain.
        """
        names_of([name])
        if self.places.get(name) is not None:
            raise SojournError(f"{name} was invited already; choose another name, or revoke it first.")
        pair = Pair.new()
        made = Credentials(name, pair.seed, self.server.public, authority)
        keep(made)
        self.places[name] = pair.public
        self._save()
        return made

    def revoke(self, name: str) -> None:
        if self.places.get(name) is None:
            raise SojournError(f"{name} is not among those who were invited: {', '.join(self.workers) or 'nobody'}.")
        self.places[name] = None
        self._save()

    def _save(self) -> None:
        content = json.dumps({"server": self.server.seed, "workers": self.places})
        write_atomically(self._path, lambda beside: write_secret(beside, content))


def _kept(path: Path) -> tuple[Pair, dict[str, str | None]]:
    """The server's key and the places of a ring's file. It is not made anew, as no worker would know the server."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        server, places = Pair.of(found["server"]), dict(found["workers"])
        if not all(key is None or isinstance(key, str) for key in places.values()):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, SojournError):
        raise SojournError(
            f"{path} is damaged; put a copy of it back, or delete it and invite all workers again in the same order."
        ) from None
    return server, places


@contextlib.contextmanager
def ring_of(place: Path) -> Iterator[Ring]:
    """The ring of a run, for a change: one at a time, so that no invitation is lost."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".keys.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Ring(place)
