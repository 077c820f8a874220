"""Calls into event loops that may run in other threads. The owners of tasks handle the rest."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run `call` in this loop: now if it is the running one, else soon; safe from any thread.

    If the loop is closed, nothing is called.
    """
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs in this thread
        is_here = False
    if is_here:
        call()
    else:
        with contextlib.suppress(RuntimeError):  # closed, perhaps just now
            loop.call_soon_threadsafe(call)
