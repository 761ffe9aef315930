"""Where a server is found: its broker's address and certificate, and its page's. What is given is used, or refused."""

import dataclasses
from pathlib import Path

from sojourn.core.errors import SojournError
from sojourn.deploy.broker import Tls, check_url
from sojourn.deploy.certificates import given_certificates, is_loopback

LISTEN, PAGE = "127.0.0.1:4222", "127.0.0.1:8080"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the broker listens, and where the page, if there is one."""

    listen: str | None = None
    broker: str | None = None  # one that runs elsewhere
    page: str | None = None
    hosts: tuple[str, ...] = ()  # further names by which workers reach the broker
    tls: Tls | None = None  # the user's own certificate
    authority: Path | None = None  # of a broker that runs elsewhere

    @property
    def listens_on(self) -> tuple[str, int]:
        return host_and_port(self.listen or LISTEN, "--listen")

    def check(self) -> None:
        """Mistakes are told before anything starts."""
        if self.page is not None:
            host_and_port(self.page, "--ui-listen")
        if self.broker is not None:
            check_url(self.broker)
            self._check_elsewhere()
        else:
            self._check_here()

    def _check_elsewhere(self) -> None:
        given = {"--listen": self.listen, "--host": self.hosts, "--certificate": self.tls}
        for option, value in given.items():
            if value:
                raise SojournError(f"{option} is for a broker that is started here; with --broker leave it out.")

    def _check_here(self) -> None:
        host, _ = self.listens_on
        if self.authority is not None and self.tls is None:
            raise SojournError(
                "--authority vouches for a --broker that runs elsewhere, or for your own --certificate; give one of "
                "these too."
            )
        if self.hosts and self.tls is not None:
            raise SojournError("--host is for a certificate that is made here; yours has its names already.")
        if self.hosts and is_loopback(host):
            raise SojournError(
                f"--host is for workers elsewhere, and a broker on {host} is reached from this machine alone; give "
                "--listen 0.0.0.0:4222 too."
            )


def host_and_port(text: str, option: str) -> tuple[str, int]:
    host, sign, port = text.rpartition(":")
    if not sign or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SojournError(f"{option} {text!r} is not HOST:PORT, as in {LISTEN}.")
    return host.strip("[]"), int(port)


def tls_files(certificate: Path | None, key: Path | None, authority: Path | None) -> Tls | None:
    """The user's own certificate, all of it or nothing."""
    if certificate is None and key is None:
        return None  # an authority alone is of a broker that runs elsewhere
    if certificate is None or key is None or authority is None:
        raise SojournError("your own certificate needs all three: --certificate, --key and --authority.")
    return given_certificates(certificate, key, authority)
