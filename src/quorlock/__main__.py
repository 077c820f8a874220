"""`python -m quorlock`, and the script `quorlock`: hands over to `quorlock.cli`, if what that
needs is installed.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # see quorlock/__init__.py
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # Until a command takes signals itself, Ctrl-C is an end without a word, not a traceback of
    # whatever was being loaded.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from quorlock.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("quorlock: click is not installed; run: pip install 'quorlock[cli]'\n")
        return 69  # EX_UNAVAILABLE of quorlock.cli.exits, which cannot be asked here
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
