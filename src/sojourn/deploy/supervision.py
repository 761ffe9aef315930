"""Watching over a server's own broker: it is told of new invitations and started again when it dies.

One that does not come back (its disk is full, its port was taken, its storage is damaged) is not tried for ever in
silence: after a few starts this is said, the tries become rare, and after a while the run ends. It goes on with the
same command once the reason is gone.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from sojourn.core.errors import SojournError
from sojourn.deploy.broker import Broker
from sojourn.deploy.keys import Ring

_LOOK_SECONDS = 0.5
_STEADY_SECONDS = 5.0  # who runs for so long has come back
_TOLD_AFTER = 3  # starts in vain
_LONGEST_WAIT = 8.0  # seconds between two starts
_GIVE_UP_SECONDS = 60.0


@contextlib.asynccontextmanager
async def supervised(
    broker: Broker, ring: Ring, write: Callable[[], None], known: float, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """While the broker is watched; what goes wrong with it ends what is done meanwhile.

    `write` makes its configuration of the ring, which was written last at the time `known`.
    """
    try:
        async with asyncio.TaskGroup() as both:
            watching = both.create_task(_watch(broker, ring, write, known, say))
            yield
            watching.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


async def _watch(
    broker: Broker, ring: Ring, write: Callable[[], None], known: float, say: Callable[[str], None]
) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if not broker.running:
            await _bring_back(broker, say)
        elif ring.changed != known:
            known = ring.changed
            write()


async def _bring_back(broker: Broker, say: Callable[[str], None]) -> None:
    starts, wait, until = 0, _LOOK_SECONDS, time.monotonic() + _GIVE_UP_SECONDS
    while True:
        broker.start()
        starts += 1
        if await _stays(broker):
            return
        why = f"the broker does not come back; {broker.log} says why"
        if time.monotonic() > until:
            raise SojournError(f"{why}, and the same command goes on once that is mended.")
        if starts == _TOLD_AFTER:
            say(f"{why}; it is tried again for {_GIVE_UP_SECONDS:.0f} s")
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


async def _stays(broker: Broker) -> bool:
    until = time.monotonic() + _STEADY_SECONDS
    while broker.running and time.monotonic() < until:
        await asyncio.sleep(0.1)
    return broker.running
