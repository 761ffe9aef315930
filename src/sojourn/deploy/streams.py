"""The broker's two queues, tasks and uploads, and those who deliver from them."""

import contextlib
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from sojourn.deploy.broker import SERVER, TASKS, UPLOADS, inbox, task_subject, tasks_inbox
from sojourn.deploy.worker import IN_HAND

UPLOADS_INBOX = f"{inbox(SERVER)}.{UPLOADS}"
BATCH = 64  # uploads that are taken before the book is written
_AGAIN_AFTER = 10.0  # seconds until the broker delivers again what was not acknowledged
_UPLOADS_WAITING, _TASKS_WAITING = 8, 64  # messages of one worker


async def make_streams(stream: Any) -> None:
    kept: dict[str, Any] = {"retention": RetentionPolicy.WORK_QUEUE, "storage": StorageType.FILE}
    tasks = StreamConfig(
        name=TASKS, subjects=["sojourn.task.*"], max_msgs_per_subject=_TASKS_WAITING, discard=DiscardPolicy.OLD, **kept
    )
    uploads = StreamConfig(  # a worker cannot fill the disk
        name=UPLOADS, subjects=["sojourn.upload.*"], max_msgs_per_subject=_UPLOADS_WAITING,
        discard=DiscardPolicy.NEW, discard_new_per_subject=True, **kept,
    )  # fmt: skip
    for config in (tasks, uploads):
        try:
            await stream.stream_info(config.name)
        except NotFoundError:
            await stream.add_stream(config)


async def deliver_uploads(stream: Any, num_clients: int) -> None:
    await _deliver(stream, UPLOADS, SERVER, None, UPLOADS_INBOX, max(2 * BATCH, 4 * num_clients))


async def deliver_tasks(stream: Any, worker: str) -> None:
    await _deliver(stream, TASKS, worker, task_subject(worker), tasks_inbox(worker), IN_HAND)


async def _deliver(stream: Any, name: str, durable: str, subject: str | None, inbox: str, in_hand: int) -> None:
    """A consumer that is made anew, each time that a server starts or a broker was away.

    A broker that was killed may come back with messages that had been acknowledged, and number new ones as if it had
    never had the last few; a consumer that remembers later numbers would deliver neither, for ever. A new one delivers
    all that is there, and what is old is known by its task.
    """
    config = ConsumerConfig(
        durable_name=durable, filter_subject=subject, ack_policy=AckPolicy.EXPLICIT, ack_wait=_AGAIN_AFTER,
        max_ack_pending=in_hand, deliver_subject=inbox,
    )  # fmt: skip
    with contextlib.suppress(NotFoundError):
        await stream.delete_consumer(name, durable)
    await stream.add_consumer(name, config)
