"""A child that is forked while its parent holds a lock: it holds nothing and gives nothing back.

What it did is its exit status: 0, or one of CRIMES.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from quorlock import AcquireError, NodeError

HELD, RELEASED, ACQUIRED, RAISED = 101, 102, 103, 104
SECONDS = 20
CRIMES = {
    HELD: "held its parent's lease",
    RELEASED: "released its parent's lease",
    ACQUIRED: "acquired what its parent held",
    RAISED: "met an error that was not promised",
}


def bear(lease: Any, redlock: Any, *, blocks: bool) -> int:
    """Fork, wait for the child, return its exit status."""
    pid = os.fork()
    if pid == 0:
        _live(lease, redlock, blocks=blocks)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _live(lease: Any, redlock: Any, *, blocks: bool) -> NoReturn:
    """Look, try to acquire the same (there is no event loop for that here in asyncio), and end."""
    signal.alarm(SECONDS)
    code = RAISED
    try:
        code = HELD if lease.held else 0
        if not code and blocks:
            code = _try(lease, redlock)
    except (AcquireError, NodeError):
        code = 0  # the nodes are away
    finally:
        os._exit(code)


def _try(lease: Any, redlock: Any) -> int:
    if lease.release():
        return RELEASED
    other = redlock.lock(lease.resource).try_acquire()
    if other is None:
        return 0
    other.release()
    return ACQUIRED
