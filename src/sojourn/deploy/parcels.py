"""Messages beyond the broker's limit: they lie in its object store in chunks, and what is sent is where they lie.

Models are put into one bucket, which only the server writes; every worker has a bucket of its own for its uploads,
which nobody but it and the server can read. A bucket's size is limited: who would put more waits until something was
taken away. A reader fetches chunk after chunk by plain requests, so it holds what it has and one chunk, it never gets
more than it is ready for, and it needs no right to create anything.
"""

import asyncio
import base64
import contextlib
import hashlib
import io
from typing import Any

from nats.js.api import ObjectMeta, ObjectMetaOptions, StorageType
from nats.js.errors import APIError, BadObjectMetaError, BucketNotFoundError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import OBJ_CHUNKS_PRE_TEMPLATE

from sojourn.deploy.broker import TROUBLE
from sojourn.deploy.wire import Rejected

INLINE_BYTES = 2 << 20  # larger messages travel as parcels
_CHUNK_BYTES = 1 << 20
_WAIT_SECONDS = 0.5
MODELS = "models"


def uploads_bucket(worker: str) -> str:
    return f"up-{worker}"


async def make_bucket(stream: Any, name: str, max_bytes: int) -> None:
    try:
        await stream.object_store(name)
    except BucketNotFoundError:
        await stream.create_object_store(name, storage=StorageType.FILE, max_bytes=max_bytes)


async def put(stream: Any, bucket: str, name: str, content: bytes) -> None:
    """Puts a parcel; waits while its bucket is full or the broker away."""
    while True:
        try:
            store = await stream.object_store(bucket)
            options = ObjectMetaOptions(max_chunk_size=_CHUNK_BYTES)
            await store.put(name, io.BytesIO(content), ObjectMeta(name=name, options=options))
            return
        except (*TROUBLE, APIError):
            await asyncio.sleep(_WAIT_SECONDS)


async def get(stream: Any, bucket: str, name: str, max_bytes: int) -> bytearray:
    """A parcel of at most so many bytes; rejected if it is larger, incomplete or gone."""
    try:
        store = await stream.object_store(bucket)
        info = await store.get_info(name)
    except (NotFoundError, BucketNotFoundError, ObjectNotFoundError, BadObjectMetaError):
        raise Rejected("its parcel is not there") from None
    if not isinstance(info.size, int) or not 0 <= info.size <= max_bytes:
        raise Rejected("its parcel is larger than was asked for")
    subject, content, place = OBJ_CHUNKS_PRE_TEMPLATE.format(bucket=bucket, obj=info.nuid), bytearray(), 1
    while len(content) < info.size:
        try:
            chunk = await stream.get_msg(f"OBJ_{bucket}", place, subject, direct=True, next=True)
        except NotFoundError:
            raise Rejected("its parcel is not complete") from None
        content += chunk.data or b""
        place = chunk.seq + 1
        if len(content) > info.size or not chunk.data:
            raise Rejected("its parcel is not what it says of itself")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    if info.digest != f"SHA-256={digest}":
        raise Rejected("its parcel is not what it says of itself")
    return content


async def drop(stream: Any, bucket: str, name: str) -> None:
    """Takes a parcel away, if it is there."""
    with contextlib.suppress(*TROUBLE, NotFoundError, APIError):
        await (await stream.object_store(bucket)).delete(name)


async def names(stream: Any, bucket: str) -> list[str]:
    try:
        return [info.name for info in await (await stream.object_store(bucket)).list(ignore_deletes=True)]
    except NotFoundError:
        return []
