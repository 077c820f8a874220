"""`quorlock doctor --wait`: wait until a quorum of the nodes votes."""

from __future__ import annotations

import secrets
import shutil
import sys
import time

from quorlock import ConfigError
from quorlock._cli.config import FileSettings
from quorlock._cli.stdio import say
from quorlock.errors import AcquireError, NodeError

_PAUSE = 0.5  # seconds between attempts
_CLEAR = "\r\x1b[K"


def await_quorum(settings: FileSettings, seconds: float) -> bool:
    """Return True as soon as a lock can be acquired, False when the time is over.

    A terminal on stderr shows why not yet.
    """
    until = time.monotonic() + seconds
    is_shown = sys.stderr.isatty()
    try:
        while why := _refusal(settings):
            left = until - time.monotonic()
            if left <= 0:
                return False
            if is_shown:
                line = f"waiting, {left:.0f} s left: {why}"
                say(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
            time.sleep(min(_PAUSE, left))
    except ConfigError:  # waiting does not help; the report says why
        return False
    finally:
        if is_shown:
            say(_CLEAR)
    return True


def _refusal(settings: FileSettings) -> str:
    """Return why no quorum votes, "" if one does.

    Each attempt has its own connections: nodes that restarted, or were marked as new, are seen.
    """
    with settings.redlock() as redlock:
        try:
            redlock.lock(f"quorlock-doctor:{secrets.token_hex(8)}").acquire(timeout=0).release()
        except (AcquireError, NodeError) as error:
            return str(error).partition(": ")[2]
    return ""
