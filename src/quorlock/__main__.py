"""`python -m quorlock`, and the script `quorlock`: hands over to `quorlock.cli`, if what that
needs is installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
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
