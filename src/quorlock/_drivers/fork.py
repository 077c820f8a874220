"""State that a forked child resets: connections, threads, and leases.

The child shares the parent's sockets, and one byte sent there by the child would corrupt the
parent's pipeline. So drivers start again in the child, and leases are over there (rule 6).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """A socket."""

    def close(self) -> None: ...


class ForkAware(Protocol):
    """An object that starts again in a forked child."""

    def reset_after_fork(self) -> None: ...


# The process that this module's state is of.
_pid = os.getpid()
# The number of forks between the first process and this one. A lease stores its own.
generation: int = 0

_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_sockets: weakref.WeakSet[Closable] = weakref.WeakSet()


def register(thing: ForkAware) -> None:
    """Have `reset_after_fork` called in every child before the child's first own instruction."""
    _registered.add(thing)


def close_in_child(sock: Closable) -> None:
    """Have a socket's copy closed in every child, silently; the parent's stays open.

    Also one that some thread has just opened: the child has no code that would close it.
    """
    _sockets.add(sock)


def is_new_child() -> bool:
    """Return whether this is a forked child that has not been reset yet.

    Only finalizers run in it.  CPython deletes the locals of the parent's other threads there,
    before it calls the functions of `register_at_fork` (PyOS_AfterFork_Child).
    """
    return os.getpid() != _pid


def _in_child() -> None:
    global generation, _pid  # noqa: PLW0603 (the process is what it counts)
    generation += 1
    for sock in list(_sockets):
        sock.close()
    for thing in list(_registered):
        thing.reset_after_fork()
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
