"""The child process: measure one contestant at one work.

    python -m bench.one CONTESTANT WORK PARAMS_JSON URL,URL,...

The last line of stdout is a JSON object. Earlier lines that begin with `@` are words to the parent
(`notify_parent`), which answers each with a line on stdin once it has acted on it.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from typing import Any


def notify_parent(word: str) -> None:
    """Send a word to the parent and wait until the parent has acted on it."""
    print(f"@{word}", flush=True)
    if not sys.stdin.readline():
        raise EOFError(f"no answer to @{word}: the parent has ended")


def measure(contestant: str, work: str, params: dict[str, Any], urls: list[str]) -> dict[str, Any]:
    """Run the work and return its result; an error is a result, too."""
    try:
        result: dict[str, Any] = import_module(f"bench.works.{work}").run(contestant, params, urls)
    except Exception as error:  # noqa: BLE001 (it is noted in the row; other rows continue)
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return result


def main() -> None:
    """Read the command line, measure, and print the result."""
    contestant, work, params, urls = sys.argv[1:]
    given = json.loads(params)
    # End a contestant that hangs, even if the parent was killed.
    signal.alarm(int(given.get("deadline", 60)) + 5)
    result = measure(contestant, work, given, urls.split(","))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
