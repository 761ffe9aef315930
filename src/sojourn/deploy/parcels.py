"""Messages beyond the broker's limit: they lie in its object store in chunks, and what is sent is where they lie.

Models are put into one bucket, which only the server writes; every worker has a bucket of its own for its uploads,
which nobody but it and the server can read. A bucket's size is limited: who would put more waits until something was
taken away. A writer waits for the broker's disk after every few chunks, and copies no more than these. A reader
fetches chunk after chunk by plain requests, so it holds what it has and one chunk, it never gets more than it is
ready for, and it needs no right to create anything.

A parcel is there once its description is, which is written last; chunks without one are of a writer that was cut off,
and are taken away before the next parcel is written, as they would fill the bucket for good: a bucket has one writer,
which writes one parcel at a time. A parcel that is there is not put again: who does a task twice has the same to say.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from nats.js.api import Header, ObjectInfo, ObjectMetaOptions, StorageType
from nats.js.errors import APIError, BadObjectMetaError, BucketNotFoundError, NotFoundError, ObjectNotFoundError
from nats.js.kv import MSG_ROLLUP_SUBJECT

from sojourn.core.errors import SojournError
from sojourn.deploy.broker import TROUBLE
from sojourn.deploy.wire import Buffer, Rejected

INLINE_BYTES = 2 << 20  # larger messages travel as parcels
_CHUNK_BYTES = 1 << 20
_AT_ONCE = 4  # chunks on their way to the broker's disk
_WAIT_SECONDS = 0.5
_SOME = 100  # subjects that are purged in a row
_NO_STORAGE = 10047  # the broker's number for a disk that is too small for what is asked
MODELS = "models"
_NOT_THERE = (NotFoundError, BucketNotFoundError, ObjectNotFoundError, BadObjectMetaError)


def uploads_bucket(worker: str) -> str:
    return f"up-{worker}"


def upload_name(task: int) -> str:
    return f"task-{task}"


def room_for(size: int) -> int:
    """Bytes of a bucket that a parcel takes at most, with all that the broker keeps of its chunks."""
    return size + size // 4 + 2 * _CHUNK_BYTES


async def make_bucket(stream: Any, name: str, max_bytes: int) -> int:
    """Makes a bucket, or lets it grow: a run may go on with more tasks at a time. Returns how much it holds."""
    try:
        return await _bucket(stream, name, max_bytes)
    except APIError as error:
        if error.err_code != _NO_STORAGE:
            raise
        raise SojournError(
            f"the broker has no {max_bytes / 1e9:.1f} GB left for the parcels of this run; give it a larger disk, or "
            "lower deploy.ahead and deploy.concurrency."
        ) from None


async def _bucket(stream: Any, name: str, max_bytes: int) -> int:
    try:
        config = (await stream.stream_info(f"OBJ_{name}")).config
    except NotFoundError:
        await stream.create_object_store(name, storage=StorageType.FILE, max_bytes=max_bytes)
        return max_bytes
    if config.max_bytes < max_bytes:
        await stream.update_stream(config.evolve(max_bytes=max_bytes))
    return max(max_bytes, int(config.max_bytes))


async def put(
    stream: Any, bucket: str, name: str, content: Sequence[Buffer], keep: Collection[str] | None = None
) -> None:
    """Puts a parcel; waits while its bucket is full or the broker away.

    Parcels that are not to be kept are taken away first: none if nothing is said.
    """
    while True:
        try:
            if name in await sweep(stream, bucket, None if keep is None else {name, *keep}):
                return
            if await _has_room(stream, bucket, sum(map(len, content))):
                await _write(stream, bucket, name, content)
                return
        except (*TROUBLE, APIError):
            pass
        await asyncio.sleep(_WAIT_SECONDS)


async def _has_room(stream: Any, bucket: str, size: int) -> bool:
    info = await stream.stream_info(f"OBJ_{bucket}")
    return (
        info.state.bytes + size + _CHUNK_BYTES <= info.config.max_bytes
    )  # a chunk is more than all that is around them


async def _write(stream: Any, bucket: str, name: str, content: Sequence[Buffer]) -> None:
    token, digest, chunks = f"{name}-{secrets.token_hex(8)}", hashlib.sha256(), 0
    under_way: deque[asyncio.Task[Any]] = deque()
    try:
        for chunk in _chunks(content):
            digest.update(chunk)
            chunks += 1
            under_way.append(asyncio.create_task(stream.publish(_chunk_subject(bucket, token), chunk)))
            if len(under_way) >= _AT_ONCE:
                await under_way.popleft()
        while under_way:
            await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    about = ObjectInfo(
        name=name, bucket=bucket, nuid=token, size=sum(map(len, content)), chunks=chunks, digest=_told(digest),
        options=ObjectMetaOptions(max_chunk_size=_CHUNK_BYTES), mtime="",
    )  # fmt: skip
    body, headers = json.dumps(about.as_dict()).encode(), {Header.ROLLUP: MSG_ROLLUP_SUBJECT}
    await stream.publish(_about_subject(bucket, name), body, headers=headers)


def _chunks(content: Sequence[Buffer]) -> Iterator[bytes]:
    """The pieces one after another, cut anew."""
    rest = bytearray()
    for piece in content:
        view, first = memoryview(piece), 0
        while first < len(view):
            taken = view[first : first + _CHUNK_BYTES - len(rest)]
            rest += taken
            first += len(taken)
            if len(rest) == _CHUNK_BYTES:
                yield bytes(rest)
                rest.clear()
    if rest:
        yield bytes(rest)


def digest_of(content: Sequence[Buffer]) -> str:
    """By which a reader knows that a parcel is the one that was meant."""
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


class Gone(Rejected):
    """A parcel that was taken away."""


async def get(stream: Any, bucket: str, name: str, max_bytes: int, expected: str) -> bytearray:
    """A parcel of at most so many bytes; rejected if it is larger, incomplete, not the expected one or gone."""
    try:
        store = await stream.object_store(bucket)
        info = await store.get_info(name)
    except _NOT_THERE:
        raise Gone("its parcel is not there") from None
    if type(info.size) is not int or not 0 <= info.size <= max_bytes:
        raise Rejected("its parcel is larger than was asked for")
    subject, content, end, place = _chunk_subject(bucket, str(info.nuid)), bytearray(info.size), 0, 1
    digest = hashlib.sha256()
    while end < info.size:
        try:
            chunk = await stream.get_msg(f"OBJ_{bucket}", place, subject, direct=True, next=True)
        except APIError:  # also what a writer makes look like one
            raise Rejected("its parcel is not complete") from None
        whole = min(_CHUNK_BYTES, info.size - end)  # smaller ones would keep a reader busy for ever
        if chunk.data is None or len(chunk.data) != whole:
            raise Rejected("its parcel is not what it says of itself")
        content[end : end + len(chunk.data)] = chunk.data
        digest.update(chunk.data)
        end, place = end + len(chunk.data), chunk.seq + 1
    if digest.hexdigest() != expected:
        raise Rejected("its parcel is not what it says of itself")
    return content


async def drop(stream: Any, bucket: str, name: str) -> None:
    """Takes a parcel away, if it is there, and leaves nothing of it: not even that it was there.

    Its description goes last: whoever is cut off between the two finds it again.
    """
    with contextlib.suppress(*_NOT_THERE):
        info = await (await stream.object_store(bucket)).get_info(name)
        for subject in (_chunk_subject(bucket, str(info.nuid)), _about_subject(bucket, name)):
            await stream.purge_stream(f"OBJ_{bucket}", subject=subject)


async def sweep(stream: Any, bucket: str, keep: Collection[str] | None = None) -> set[str]:
    """Takes away chunks that belong to no parcel, and all parcels but those to keep; returns those that are there."""
    there = await _subjects(stream, bucket)
    left = _names_among(there, bucket)
    left = left if keep is None else left & set(keep)
    await _purge(stream, bucket, _others(there, bucket, left))
    return left


async def tidy(stream: Any, bucket: str, keep: Collection[str]) -> None:
    """Takes away all but these parcels from a bucket of another, who may be writing one of them right now.

    Some at a time: it may have filled the bucket with a million of them.
    """
    with contextlib.suppress(NotFoundError):
        others = _others(await _subjects(stream, bucket), bucket, keep)
        await _purge(stream, bucket, others[:_SOME])


def _others(subjects: Collection[str], bucket: str, names: Collection[str]) -> list[str]:
    """Subjects that are neither the description nor a chunk of these parcels."""
    about, tokens = ({subject(bucket, name) for name in names} for subject in (_about_subject, _chunk_subject))
    return [one for one in subjects if one not in about and one.rpartition("-")[0] not in tokens]


async def _purge(stream: Any, bucket: str, subjects: Sequence[str]) -> None:
    for subject in subjects:
        await stream.purge_stream(f"OBJ_{bucket}", subject=subject)


async def _subjects(stream: Any, bucket: str) -> set[str]:
    info = await stream.stream_info(f"OBJ_{bucket}", subjects_filter=f"$O.{bucket}.>")
    return set(info.state.subjects or {})


def _chunk_subject(bucket: str, token: str) -> str:
    return f"$O.{bucket}.C.{token}"


def _about_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _told(digest: Any) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(digest.digest()).decode()}"


async def names(stream: Any, bucket: str) -> list[str]:
    """The parcels that are in a bucket; none if there is no bucket."""
    try:
        return sorted(_names_among(await _subjects(stream, bucket), bucket))
    except NotFoundError:
        return []


def _names_among(subjects: Collection[str], bucket: str) -> set[str]:
    about = _about_subject(bucket, "")
    found = (subject.removeprefix(about) for subject in subjects if subject.startswith(about))
    return {base64.urlsafe_b64decode(name).decode(errors="replace") for name in found}
