"""A process that leads an election until it is killed: URLS-AS-JSON; prints its term."""

from __future__ import annotations

import json
import sys
import time

import quorlock


def main() -> None:
    with quorlock.Redlock(json.loads(sys.argv[1]), node_timeout=0.25, owner="first") as redlock:

        def lead(lease: quorlock.Lease) -> None:
            print("ready", flush=True)
            sys.stdin.readline()
            print(lease.fence, flush=True)
            time.sleep(60)

        redlock.election("job", ttl=1.5).run(lead)


if __name__ == "__main__":
    main()
