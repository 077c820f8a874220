"""Processes of one slice, forked by its child, and one coroutine for both APIs.

A blocking library's methods become coroutines that never suspend. So a work is written once: in a
thread `finished` runs it, and in an event loop it is a task.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bench import contestants
from bench.contestants import CONTESTANTS, TTL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from multiprocessing.connection import Connection

    from bench.contestants import Blocking

    Part = Callable[[], Coroutine[Any, Any, None]]

T = TypeVar("T")

_FORK = multiprocessing.get_context("fork")  # fast, and the child has no thread yet


class Lock(Protocol):
    """The methods of `contestants.Asyncio` that a work with waiters uses."""

    async def wait(self, resource: str) -> Any:
        """Wait without a limit."""

    async def release(self, handle: Any) -> None:
        """Release the lock."""


@dataclass(frozen=True)
class Api:
    """A contestant's lock, opened, and what a work needs in its thread or its event loop.

    `apart` calls a function that blocks. `together` runs parts at the same time for at most so many
    seconds, and returns how many have not ended.
    """

    lock: Lock
    sleep: Callable[[float], Awaitable[None]]
    apart: Callable[[Callable[[], Any]], Awaitable[Any]]
    together: Callable[[Sequence[Part], float], Awaitable[int]]


def with_api(
    contestant: str,
    urls: Sequence[str],
    work: Callable[[Api], Coroutine[Any, Any, T]],
    ttl: float = TTL,
) -> T:
    """Run a work with a contestant, in this thread or in an event loop."""
    who = CONTESTANTS[contestant]
    if who.api == "blocking":
        lock = _Awaited(contestants.blocking(contestant, urls, ttl))
        return finished(work(Api(lock, _sleep, _call, _in_threads)))
    return who.run(_in_a_loop(contestant, urls, work, ttl))


async def _in_a_loop(
    contestant: str,
    urls: Sequence[str],
    work: Callable[[Api], Coroutine[Any, Any, T]],
    ttl: float,
) -> T:
    lock = contestants.asyncio(contestant, urls, ttl)
    await lock.open()
    return await work(Api(lock, asyncio.sleep, asyncio.to_thread, _in_tasks))


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        outcome: T = stop.value
        return outcome
    raise AssertionError("the coroutine has suspended")


class _Awaited:
    """A blocking lock whose methods are coroutines that never suspend."""

    def __init__(self, lock: Blocking) -> None:
        self._lock = lock

    async def wait(self, resource: str) -> Any:
        return self._lock.wait(resource)

    async def release(self, handle: Any) -> None:
        self._lock.release(handle)


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 (there is no loop)


async def _call(function: Callable[[], Any]) -> Any:
    return function()


async def _in_threads(parts: Sequence[Part], seconds: float) -> int:
    until = time.monotonic() + seconds
    # Daemons: a thread that waits for longer does not prevent the process from ending.
    threads = [threading.Thread(target=_finish, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


def _finish(part: Part) -> None:
    finished(part())


async def _in_tasks(parts: Sequence[Part], seconds: float) -> int:
    tasks = [asyncio.create_task(part()) for part in parts]
    _, left = await asyncio.wait(tasks, timeout=seconds)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return len(left)


class Member:
    """A forked process that runs `target(pipe, *args)`, and our end of its pipe."""

    def __init__(self, seconds: float, target: Callable[..., None], *args: Any) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_run, args=(theirs, seconds, partial(target, theirs, *args)), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, *words: Any) -> None:
        """Send words to the process."""
        self._pipe.send(words)

    def answer(self, seconds: float | None = None) -> Any:
        """Return its next answer, or None if there is none within `seconds`.

        Raises:
            RuntimeError: the process failed.
            EOFError: the process ended.
        """
        if not self._pipe.poll(seconds):
            return None
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def freeze(self) -> None:
        """Send SIGSTOP."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End the process by SIGKILL; a second time is no error."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(pipe: Connection, seconds: float, target: Callable[[], None]) -> None:
    signal.alarm(int(seconds) + 1)  # fork has cleared the alarm of the child
    try:
        target()
    except Exception as error:  # noqa: BLE001 (the answer to the child, which reports it)
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"[:300]))
