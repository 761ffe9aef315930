"""Where a data set's standard files are found: $SOJOURN_DATA, then the user's cache, else fetched into the cache.

A file is known by the checksum of what it holds once unpacked, so it may lie there plain, as .gz or as .xz.
"""

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sojourn.core.errors import SojournError
from sojourn.data.remote import Remote

VARIABLE = "SOJOURN_DATA"
_PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


@dataclass(frozen=True)
class File:
    """One standard file: the names that it goes by, without .gz or .xz, and the checksum of its content."""

    names: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Source:
    """A data set's files, and where to get them."""

    name: str
    files: tuple[File, ...]
    remotes: tuple[Remote, ...]
    folder: str = ""  # that the official archive unpacks to
    archive: str = ""  # a tar file that holds all files

    def needed(self, missing: Sequence[File]) -> list[Remote]:
        """What to fetch so that these files are there."""
        return [r for r in self.remotes if r.name == self.archive or any(_stem(r.name) in f.names for f in missing)]


@dataclass(frozen=True)
class Place:
    """A directory to look in. In a set's own folder a file with a wrong checksum is damaged; elsewhere, another's."""

    path: Path
    own: bool


def read_files(source: Source) -> list[bytes]:
    """The contents of all files of a data set, in order; what is not on this machine is fetched."""
    found: dict[File, bytes] = {}
    strangers: list[Path] = []
    for place in _places(source):
        _collect(source, place, found, strangers)
    if len(found) < len(source.files):
        _fetch_missing(source, found, strangers)
    return [found[file] for file in source.files]


def cache_directory(source: Source) -> Path:
    return Path(platformdirs.user_cache_dir("sojourn")) / "data" / source.name


def _places(source: Source) -> Iterator[Place]:
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        root = Path(entry).expanduser()
        if not root.is_dir():
            raise SojournError(f"{VARIABLE} names {root}, which is not a directory; make it or unset the variable.")
        yield from _with_folder(root / source.name, source, own=True)
        yield from _with_folder(root, source, own=False)
    yield from _with_folder(cache_directory(source), source, own=True)


def _with_folder(path: Path, source: Source, own: bool) -> Iterator[Place]:
    yield Place(path, own)
    if source.folder:
        yield Place(path / source.folder, own=True)


def _collect(source: Source, place: Place, found: dict[File, bytes], strangers: list[Path]) -> None:
    """Adds to `found` what the place holds of the files that are still missing."""
    for file in source.files:
        if file in found:
            continue
        for path in (place.path / (name + suffix) for name in file.names for suffix in _PACKED):
            if not os.path.isfile(path):  # also false where one may not look
                continue
            content = _unpacked(path, place.own)
            if content is not None and hashlib.sha256(content).hexdigest() == file.sha256:
                found[file] = content
                break
            if place.own:
                raise SojournError(
                    f'{path} is not the standard file of data "{source.name}" (its checksum differs): it is damaged or '
                    "another's; replace it, or remove it to have it fetched."
                )
            strangers.append(path)
    archive = place.path / source.archive
    if source.archive and len(found) < len(source.files) and os.path.isfile(archive):
        found |= read_archive(source, archive)


def _unpacked(path: Path, own: bool) -> bytes | None:
    try:
        return _PACKED[path.suffix if path.suffix in _PACKED else ""](path.read_bytes())
    except _DAMAGE as error:
        if not own:
            return None
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SojournError(f"{path} cannot be read ({reason}); replace it, or remove it to have it fetched.") from error


def read_archive(source: Source, path: Path) -> dict[File, bytes]:
    """All files out of the official archive; nothing is unpacked to disk."""
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                file = next((file for file in source.files if name in file.names), None)
                stream = archive.extractfile(member) if file is not None else None
                if file is not None and stream is not None:
                    found[file] = stream.read()
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SojournError(f"{path} cannot be read ({reason}); replace it, or remove it to have it fetched.") from error
    for file in source.files:
        if file not in found or hashlib.sha256(found[file]).hexdigest() != file.sha256:
            raise SojournError(
                f'{path} does not hold the standard {file.names[0]} of data "{source.name}"; replace it, or remove it '
                "to have it fetched."
            )
    return found


def _fetch_missing(source: Source, found: dict[File, bytes], strangers: list[Path]) -> None:
    from sojourn.data.fetch import fetch  # with its libraries, which only a download needs

    missing = [file for file in source.files if file not in found]
    wanted = source.needed(missing)
    cache = cache_directory(source)
    reason = fetch(wanted, cache)
    if reason:
        roots = [
            Path(root).expanduser() / source.name for root in os.environ.get(VARIABLE, "").split(os.pathsep) if root
        ]
        names = ", ".join(remote.name for remote in wanted)
        parts = f" (or its {', '.join(file.names[0] for file in missing)})" if source.archive else ""
        other = f"; {strangers[0]} is another file, as its checksum differs" if strangers else ""
        raise SojournError(
            f'data "{source.name}" is not on this machine and could not be fetched ({reason}): put {names}{parts} into '
            f"{[*roots, cache][0]}, or set {VARIABLE} to a directory with a folder {source.name}{other}."
        )
    _collect(source, Place(cache, own=True), found, strangers)


def _stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".xz")
