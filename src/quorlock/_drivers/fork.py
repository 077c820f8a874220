"""What a forked child must forget: connections, threads, and that it holds anything.

The child shares the parent's sockets; one byte of it there would end up in the parent's
conversation.  So drivers start afresh in the child, and leases are over there (rule 6).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    """Something that starts afresh in a forked child."""

    def forget(self) -> None: ...


# How many forks this process is away from the first; a lease remembers the one it was made in.
generation: int = 0

_forgetful: weakref.WeakSet[Forgets] = weakref.WeakSet()


def register(thing: Forgets) -> None:
    """Let `forget` be called in every child, before its first own instruction."""
    _forgetful.add(thing)


def _in_child() -> None:
    global generation  # noqa: PLW0603 (the process is what it counts)
    generation += 1
    for thing in list(_forgetful):
        thing.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
