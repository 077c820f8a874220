"""One of several processes that take fences of one resource, for test_fencing.

Run as a script: URLS-AS-JSON COUNT. Says "ready", waits for a line on stdin, and prints as JSON
[[before it asked, when it had the lease, fence], …], by the monotonic clock that processes share.
"""

from __future__ import annotations

import json
import sys
import time

import quorlock


def main() -> None:
    with quorlock.Redlock(json.loads(sys.argv[1]), retry_delay=(0.001, 0.01)) as redlock:
        redlock.inspect("fenced")  # connected before the start
        print("ready", flush=True)
        sys.stdin.readline()
        lock = redlock.lock("fenced", timeout=30, fencing=True)
        turns: list[tuple[float, float, int | None]] = []
        for _ in range(int(sys.argv[2])):
            asked_at = time.monotonic()
            lease = lock.acquire()
            turns.append((asked_at, time.monotonic(), lease.fence))
            lease.release()
    print(json.dumps(turns))


if __name__ == "__main__":
    main()
