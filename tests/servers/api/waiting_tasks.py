"""One of many processes whose tasks wait for one lock; it prints when its turns began and ended.

test_waiting_tasks runs it as a script: URLS-AS-JSON TASKS.  It prints "ready", waits for a line on
stdin, takes turns until stdin is closed, then prints {resource: [[begin, end], …]}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from threading import Event, Thread

from quorlock.asyncio import Redlock


async def main() -> None:
    """Take turns in all tasks."""
    over = Event()
    turns: list[tuple[float, float]] = []

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    async with Redlock(json.loads(sys.argv[1]), node_timeout=0.2) as redlock:
        await redlock.inspect("contended")  # connected before the start
        print("ready", flush=True)
        sys.stdin.readline()
        Thread(target=wait_for_the_end, daemon=True).start()

        async def take_turns() -> None:
            while not over.is_set():
                async with redlock.lock("contended"):
                    began = time.monotonic()
                    await asyncio.sleep(0.001)
                    turns.append((began, time.monotonic()))

        await asyncio.gather(*[take_turns() for _ in range(int(sys.argv[2]))])
    print(json.dumps({"contended": turns}))


if __name__ == "__main__":
    asyncio.run(main())
