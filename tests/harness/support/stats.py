"""Counters of a real server."""

from __future__ import annotations

import re

from quorlock.testing.servers import Server


def scripts_asked(server: Server) -> int:
    """Return the number of requested scripts, without the two of every handshake."""
    info: str = server.execute("INFO", "commandstats").decode()
    calls = dict(re.findall(r"cmdstat_(\w+):calls=(\d+)", info))
    asked = int(calls.get("eval", 0)) + int(calls.get("evalsha", 0))
    return asked - 2 * int(calls.get("hello", 0))
