"""Poll a condition until it holds, where there is no event to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

_EVERY = 0.002  # seconds from look to look


def until(condition: Callable[[], T], within: float = 5.0) -> T:
    """Return the condition's value as soon as it is true, or its last one after `within` seconds:
    `assert until(lambda: ...)`.
    """
    deadline = time.monotonic() + within
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(_EVERY)
    return value


@overload
async def until_async(condition: Callable[[], Awaitable[T]], within: float = 5.0) -> T: ...
@overload
async def until_async(condition: Callable[[], T], within: float = 5.0) -> T: ...
async def until_async(condition: Callable[[], T | Awaitable[T]], within: float = 5.0) -> T:
    """Wait likewise in an event loop, where the condition may be a coroutine function."""

    async def look() -> T:
        value = condition()
        return await value if isinstance(value, Awaitable) else value

    deadline = time.monotonic() + within
    while not (value := await look()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_EVERY)
    return value
