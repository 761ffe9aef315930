"""The models that tasks start from, where they are too large for a message: one bucket at the broker.

Every task that is out may start from a model of its own, so the bucket has room for as many as there can be tasks, and
no task is handed out whose model would find no room: the server must not wait for room, as it is the one that makes it,
by taking uploads.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from sojourn.deploy import parcels
from sojourn.deploy.book import Book, Task
from sojourn.deploy.wire import Schema, pieces
from sojourn.deploy.worker import START

_BESIDE = 2  # the starting point, and the model that is written while all others are in use


class Models:
    """What lies in the bucket, and what is still of use there."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._digests: dict[str, str] = {}  # of the models that this server put there
        self._places = _BESIDE + book.models_in_use

    @property
    def travel_apart(self) -> bool:
        """Whether some task is too large for a message."""
        return self._largest + self._start > parcels.INLINE_BYTES

    @property
    def _largest(self) -> int:
        return max(Schema.of(down).num_bytes for down, *_ in self._book.trips.shapes.values())

    @property
    def _start(self) -> int:
        return Schema.of(self._book.x0).num_bytes if self._book.trips.remembers else 0

    async def make_bucket(self, stream: Any) -> None:
        if self.travel_apart:
            each = parcels.room_for(max(self._largest, self._start))
            has = await parcels.make_bucket(stream, parcels.MODELS, each * (_BESIDE + self._book.models_in_use))
            self._places = has // each
            await parcels.sweep(stream, parcels.MODELS, self._wanted())

    @property
    def have_room(self) -> bool:
        """Whether a task that starts from a new model can be handed out."""
        return not self.travel_apart or len(self._wanted()) < self._places

    def _wanted(self) -> set[str]:
        """The parcels that tasks which are out start from; all else in the bucket is of no use."""
        return {START, *map(_name, self._book.out.values())}

    async def put(self, stream: Any, task: Task, down: Any, start: tuple[Any, ...]) -> Mapping[str, str]:
        """Puts what a task starts from, unless it is there; returns the words by which its worker finds it."""
        words = {"parcel": _name(task)}
        for word, parcel, tree in [("digest", words["parcel"], down), *(("start", START, tree) for tree in start)]:
            if parcel not in self._digests:
                content, wanted = pieces("model", {}, tree), self._wanted()
                self._digests = {name: known for name, known in self._digests.items() if name in wanted}
                self._digests[parcel] = parcels.digest_of(content)
                await parcels.put(stream, parcels.MODELS, parcel, content, wanted | {parcel})
            words[word] = self._digests[parcel]
        return words


def start_of(book: Book, task: Task) -> tuple[Any, ...]:
    """What a client's memory begins with, for its first task."""
    return (jax.tree.map(np.asarray, book.x0),) if book.trips.remembers and task.memory < 0 else ()


def _name(task: Task) -> str:
    """By what a task starts from: a name that the next server of the run finds again."""
    return f"{task.exchange}-{task.round}-{task.applied}".replace(".", "-")
