"""Who may take part: invitations made, taken back, and told to a broker that runs elsewhere."""

import json
from pathlib import Path

from sojourn.core.errors import SojournError
from sojourn.core.files import write_atomically, write_secret
from sojourn.deploy.broker import MAX_PAYLOAD, configuration
from sojourn.deploy.certificates import own_certificates
from sojourn.deploy.keys import Ring, ring_of


def invite(name: str, run: Path, out: Path, authority: Path | None = None) -> None:
    """Writes a new worker's credentials; a server at work lets it in within a second."""
    if out.exists():
        raise SojournError(f"{out} exists already; credentials are never written over.")
    with ring_of(run) as ring:
        pem = authority.read_text() if authority is not None else None
        if pem is None:
            pem = own_certificates(run / "certificates", []).authority.read_text()
        ring.invite(name, pem, keep=lambda made: made.save(out))


def revoke(name: str, run: Path) -> None:
    with ring_of(run) as ring:
        ring.revoke(name)


def users_of(run: Path) -> str:
    """The users of a broker that is run elsewhere, for its configuration."""
    ring = Ring(run)
    whole = json.loads(configuration("", 0, run, ring.server.public, ring.workers, None, MAX_PAYLOAD))
    return json.dumps({"authorization": whole["authorization"], "max_payload": MAX_PAYLOAD}, indent=1)


def write_users(run: Path, out: Path) -> None:
    write_atomically(out, lambda beside: write_secret(beside, users_of(run)))


def find_run(given: Path | None) -> Path:
    """The deployment that is meant: the one given, or the only one there is under runs/."""
    if given is not None:
        return given
    found = sorted(path.parent for path in Path("runs").glob("*/keys.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise SojournError("there is no deployment under runs/; start one with sojourn serve, or name its directory.")
    raise SojournError(
        f"there are {len(found)} deployments under runs/; name the directory of one, such as {found[-1]}."
    )
