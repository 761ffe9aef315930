"""Long work beside an event loop, in threads that nobody has to wait for when it is called off.

The threads of `asyncio.to_thread` are waited for at the end of the loop and again at the end of the process: a signal
would be obeyed when the work is done, which may be an hour later.
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

_left_behind: list[threading.Thread] = []


async def aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns; whoever is cancelled while waiting for it leaves it behind."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    result = loop.create_future()

    def settle(error: BaseException | None, found: Any = None) -> None:
        if result.done():  # nobody waits any more
            return
        if error is None:
            result.set_result(found)
        else:
            result.set_exception(error)

    def work() -> None:
        outcome: tuple[BaseException | None, Any]
        try:
            outcome = (None, context.run(function, *arguments))
        except BaseException as error:
            outcome = (error, None)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        return await result
    except asyncio.CancelledError:
        _left_behind.append(thread)
        raise


async def unless(
    event: asyncio.Event, work: Awaitable[Any], grace: float = 0.0, hurry: asyncio.Event | None = None
) -> Any:
    """The work's result, or None if the event comes first and the work does not end by itself within the grace.

    A second event ends the grace.
    """
    working, called_off = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    hurrying = asyncio.ensure_future((hurry or asyncio.Event()).wait())
    try:
        await asyncio.wait([working, called_off], return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and grace:
            await asyncio.wait([working, hurrying], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, called_off, hurrying):
            task.cancel()
        await asyncio.gather(working, called_off, hurrying, return_exceptions=True)


def end_process(code: int) -> None:
    """Ends the process at once if work was left behind; returns otherwise.

    Python would end under the feet of such a thread, which crashes in the libraries it may be in; what it had begun is
    lost as by a kill, which everything here survives.
    """
    if any(thread.is_alive() for thread in _left_behind):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
