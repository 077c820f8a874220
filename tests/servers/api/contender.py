"""One of many processes that compete for one resource; it prints when each of its turns began and
ended.

test_contention runs it as a script: URLS-AS-JSON. It prints "ready", waits for a line on stdin,
takes turns until stdin is closed, then prints [[begin, end], …] in seconds of the monotonic clock.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import quorlock

RETRY_DELAY = (0.002, 0.02)
CRITICAL_SECTION = 0.001


def main() -> None:
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    turns: list[tuple[float, float]] = []
    # Nine busy processes share the machine: each of them waits for its turn.
    settings: dict[str, Any] = {"retry_delay": RETRY_DELAY, "node_timeout": 2.0}
    with quorlock.Redlock(json.loads(sys.argv[1]), **settings) as redlock:
        redlock.inspect("contended")  # connected before the start
        print("ready", flush=True)
        sys.stdin.readline()
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        lock = redlock.lock("contended", timeout=0.5)
        while not over.is_set():
            try:
                lease = lock.acquire()
            except quorlock.AcquireTimeout as error:
                assert len(error.votes) == 5  # noqa: PT017
                continue
            began = time.monotonic()
            time.sleep(CRITICAL_SECTION)
            turns.append((began, time.monotonic()))
            lease.release()
    print(json.dumps(turns))


if __name__ == "__main__":
    main()
