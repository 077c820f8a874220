"""A closed Redlock connects to no node again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quorlock import Redlock
from quorlock.testing.servers import Servers


def test_a_second_close_does_not_connect() -> None:
    """A release is pending, its node is down at the first close, and comes back after it."""
    with Servers(1) as nodes, socket.socket(socket.AF_UNIX) as successor:
        redlock = Redlock(nodes.urls, ttl=20.0)
        lease = redlock.lock("a").acquire()
        nodes[0].kill()
        assert lease.release() is False
        redlock.close()
        path = nodes[0].path
        Path(path).unlink(missing_ok=True)
        successor.bind(path)
        successor.listen()
        redlock.close()
        successor.settimeout(1.0)
        with pytest.raises(TimeoutError):
            successor.accept()
