"""The three standard streams, which may be closed, full, or without a reader.

All messages on stderr are written here.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

_STREAMS = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_RDONLY))
_STDERR = 2


def hold_places() -> None:
    """Open /dev/null in place of each closed stream, for this process and its children.

    Else the socket of a node could get that descriptor, and with it the output of other code. They
    are opened in the wrong mode, so that reading or writing fails as on a closed stream.
    """
    for number, (name, way) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)  # gets the lowest number: this one
        if getattr(sys, name) is None:  # as Python sets it for a closed stream
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 (to our end)
            setattr(sys, name, stream)


def escape_what_cannot_be_shown() -> None:
    """Let stdout escape the letters that its encoding lacks, as stderr does.

    A resource may have any name, also one that is not UTF-8.
    """
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a program that calls `main` may have replaced stdout
        reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Write to stderr, and ignore errors: a full disk must neither end nor change a command."""
    with suppress(OSError):
        # Not through the stream object: at exit it would retry what it could not write, and change
        # the exit status.
        os.write(_STDERR, text.encode(sys.stderr.encoding, "backslashreplace"))
