"""`python -m quorlock` and the script `quorlock`: run `quorlock._cli` if click is installed."""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # see quorlock/__init__.py
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    # Until a command handles signals itself, Ctrl-C ends the process silently: a traceback of the
    # modules being loaded would help no user.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from quorlock._cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("quorlock: click is not installed; run: pip install 'quorlock[cli]'\n")
        return 69  # EX_UNAVAILABLE as in quorlock._cli.exit_status, which may not be loadable
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
