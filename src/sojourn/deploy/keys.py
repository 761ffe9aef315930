"""Keys: a pair for the server and one for every worker, made here, kept in files that only their owner can read.

The server keeps the public halves of its workers and its own secret; a worker's secret is in its credentials file alone,
which `invite` writes once and nobody keeps a copy of. Nothing here is ever printed or logged.
"""

import dataclasses
import json
import os
from pathlib import Path

import nkeys

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically
from sojourn.deploy.broker import names_of, write_secret

RING_FILE = "keys.json"


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


@dataclasses.dataclass(frozen=True)
class Credentials:
    """What a worker needs to join: its name and key, and the authority that vouches for the broker, if there is one."""

    name: str
    seed: str = dataclasses.field(repr=False)
    authority: str | None = None  # a certificate, in PEM

    def save(self, path: Path) -> None:
        if path.exists():
            raise SojournError(f"{path} exists already; credentials are never written over.")
        content = json.dumps({"name": self.name, "seed": self.seed, "authority": self.authority})
        write_atomically(path, lambda beside: write_secret(beside, content))

    @staticmethod
    def load(path: Path) -> "Credentials":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            made = Credentials(found["name"], found["seed"], found["authority"])
        except OSError as error:
            raise SojournError(f"cannot read {path}: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            raise SojournError(f"{path} holds no credentials; `sojourn invite` makes them.") from None
        names_of([made.name])
        return made


class Ring:
    """The server's own key and the public keys of those it has invited, in the run's directory."""

    def __init__(self, place: Path) -> None:
        self._path = place / RING_FILE
        if self._path.exists():
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self.server, self.workers = Pair.of(found["server"]), dict(found["workers"])
        else:
            self.server, self.workers = Pair.new(), {}
            self._save()

    def invite(self, name: str, authority: str | None = None) -> Credentials:
        """Credentials of a new worker; a name that was given away is refused."""
        names_of([name])
        if name in self.workers:
            raise SojournError(f"{name} was invited already; choose another name, or revoke it first.")
        pair = Pair.new()
        self.workers[name] = pair.public
        self._save()
        return Credentials(name, pair.seed, authority)

    def revoke(self, name: str) -> None:
        if name not in self.workers:
            raise SojournError(f"{name} was never invited.")
        del self.workers[name]
        self._save()

    def _save(self) -> None:
        content = json.dumps({"server": self.server.seed, "workers": self.workers})
        write_atomically(self._path, lambda beside: write_secret(beside, content))
