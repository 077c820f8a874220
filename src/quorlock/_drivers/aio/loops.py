"""Callbacks of event loops, which may run in other threads. The owners of tasks handle the rest."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

# `guarded` with its first argument.
Guard: TypeAlias = "Callable[..., Callable[[], object]]"


def guarded(
    on_interrupt: Callable[[BaseException], bool], call: Callable[..., object], *args: Any
) -> Callable[[], object]:
    """Return a callback that passes every exception to `on_interrupt`, also one before the call.

    A signal handler can raise as a function begins, before its first `try`. asyncio logs that and
    continues, and what the function should do is never done. A generator is in its `try` already
    when the event loop resumes it, by a function that is written in C.

    on_interrupt: Returns false if the event loop should get the exception as well.
    """
    is_made: list[bool] = []
    generator = _guarded(on_interrupt, call, args, is_made)
    next(generator)
    is_made.append(True)
    return partial(next, generator, None)


def _guarded(
    on_interrupt: Callable[[BaseException], bool],
    call: Callable[..., object],
    args: Any,
    is_made: list[bool],
) -> Iterator[None]:
    try:
        yield
        call(*args)
    except GeneratorExit:
        raise  # the callback was cancelled
    except BaseException as error:
        # One that comes earlier is our caller's.
        if not is_made or not on_interrupt(error):
            raise


def background_task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Return a task of the running loop that no caller awaits.

    The loop can be closed while it is pending, without a warning: no state is lost by that.
    """
    # Not by `create_task`: an eager task would run before its owner has it.
    task = asyncio.Task(work, name=name)
    # asyncio does so for its own tasks; there is no public API.
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    task.add_done_callback(_mark_retrieved)
    return task


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging an exception that the loop has raised as well."""
    if not task.cancelled() and isinstance(task._exception, (KeyboardInterrupt, SystemExit)):  # noqa: SLF001
        task.exception()


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
