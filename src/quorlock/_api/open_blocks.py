"""The leases of the `with` blocks that a shared Lock was entered with.

Many threads (tasks) may enter a Lock at the same time.  One of them may enter it twice: a block
whose lease has expired is still open when the next one is entered.  A generator may leave its block
at any time, in any thread or task.  So a block is identified by the frame of its `with` statement.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

L = TypeVar("L")
Block: TypeAlias = "tuple[int, CodeType]"
# The lease of each block, with the block and the thread (task) that entered it.  Every change is a
# single operation on the dict: threads enter and leave at the same time.
OpenBlocks: TypeAlias = "dict[L, tuple[Block, object]]"


def block_of_caller() -> Block:
    """Return the identity of the caller's caller: a frame with a `with` statement.

    A frame lives as long as its `with` block.  An entry by other means (ExitStack) has a frame that
    ends.  A later frame may get its number, but not with the same code: the leaving code is
    different.
    """
    # The only access to the frame; PyPy has it too.
    frame = sys._getframe(2)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return id(frame), frame.f_code


def take_lease(
    entered: OpenBlocks[L], block: Block, owner: Callable[[], object], is_over: Callable[[L], bool]
) -> L:
    """Remove and return the lease of the block that is being left.

    If the block was not entered by a `with` statement in this frame (ExitStack), take a lease of
    the same owner, and of several one that is over: another block may still run under one that is
    valid.  Of a semaphore, or of a shared lock, all may be valid.  So those that were entered from
    the file of the exit come first: an ExitStack enters and leaves in `contextlib`, and `with`
    statements are elsewhere.
    """
    others = entered.copy()
    lease, entry = others.popitem()
    if entry[0] != block:
        blocks = [*others.items(), (lease, entry)]
        same = [lease for lease, entry in blocks if entry[0] == block]
        if same:
            lease = same[-1]
        else:
            me, file = owner(), block[1].co_filename
            likely = [
                (lease, by) for lease, ((_, code), by) in blocks if code.co_filename == file
            ] or [(lease, by) for lease, (_, by) in blocks]
            own = [lease for lease, by in likely if by == me]
            open_ = own or [lease for lease, _ in likely]
            lease = next(filter(is_over, open_), open_[-1])
    del entered[lease]
    return lease
