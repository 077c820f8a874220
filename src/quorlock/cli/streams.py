"""The three streams, as they may be given to us: closed, full, or without a reader. Owns what is
done about that, and the one way in which a sentence comes to stderr. Leaves what is said to others.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_STREAMS = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_RDONLY))
_STDERR = 2


def hold_places() -> None:
    """Put something in the place of streams that are closed, for us and for what we start.

    Else a connection to a node would get such a number, and with it what others print. They are
    opened the wrong way round, so that to read or to write fails as on a closed one.
    """
    for number, (name, way) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)  # gets the lowest number: this one
        if getattr(sys, name) is None:  # as Python has it, if it was closed
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 (to our end)
            setattr(sys, name, stream)


def say(text: str) -> None:
    """On stderr. What cannot be written there is lost, and nothing else is: a full disk under a log
    is no reason to leave a command, or to end in another way.
    """
    with suppress(OSError):
        # Past the stream: what it could not write it would try again at our end, and change our
        # status.
        os.write(_STDERR, text.encode(sys.stderr.encoding, "backslashreplace"))
