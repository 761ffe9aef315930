"""A file that can be fetched."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """What is fetched: a file under its local name, with the checksum of the bytes that travel, from any mirror."""

    name: str
    checksum: str  # "sha256:..." or "md5:..."
    mirrors: tuple[str, ...]  # full addresses
