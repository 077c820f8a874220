"""The child: measures one contestant at one work, in a process of its own.

    python -m bench.one CONTESTANT WORK PARAMS_JSON URL,URL,...

Prints one JSON object as its last line of stdout. Lines before it that begin with `@` are words to
the parent (`tell`), which answers each with a line on stdin once it has done what the word means.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from typing import Any


def tell(word: str) -> None:
    """Say a word to the parent, and wait until it has arranged what follows from it."""
    print(f"@{word}", flush=True)
    if not sys.stdin.readline():
        raise EOFError(f"nobody answered @{word}: the parent is gone")


def measure(contestant: str, work: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Run the work; what went wrong is a result too."""
    try:
        result: dict[str, Any] = import_module(f"bench.works.{work}").run(contestant, params, urls)
    except Exception as error:  # noqa: BLE001 (the row says so, the other rows go on)
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return result


def main() -> None:
    """Read the command line, measure, print."""
    contestant, work, params, urls = sys.argv[1:]
    given = json.loads(params)
    # A contestant that hangs ends, even if the parent was killed and nobody waits for it.
    signal.alarm(int(given.get("deadline", 60)) + 5)
    result = measure(contestant, work, given, urls.split(","))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
