"""A ttl counts from the instant at which a node carries the command out.

A lease counts from before its first byte was sent.  If a node counted from an earlier instant, such
as the one at which it looked at its sockets, keys would expire before the validity ends.
"""

from __future__ import annotations

import socket
import time

import pytest

from quorlock._core.commands import Acquire, Command, Extend, ScriptedAcquire
from quorlock._protocol.encoding import encode, encode_command, encode_eval
from quorlock.testing.servers import Servers

KEY, OLD, NEW, TTL_MS = b"resource", b"old", b"new", 60_000
_BUSY = encode_command(b"EVAL", b"local n = 0 while n < 3e6 do n = n + 1 end return 1", b"0")


def connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


@pytest.mark.parametrize(
    ("before", "command"),
    [
        (None, Acquire(KEY, NEW, TTL_MS)),
        (OLD, ScriptedAcquire(KEY, NEW, TTL_MS, instead=OLD)),
        (NEW, Extend(KEY, NEW, TTL_MS)),
    ],
    ids=["acquire", "exchange", "extend"],
)
def test_a_busy_node_counts_from_when_it_acts(
    before: bytes | None, command: Command, mortal_nodes: Servers
) -> None:
    """Another client's script is running when the rest of the command comes."""
    node = mortal_nodes[0]
    if before is not None:
        node.execute("SET", KEY, before, "PX", 1_000)
    data = encode(command) if type(command) is Acquire else encode_eval(command)
    with connect(node.path) as other, connect(node.path) as ours:
        node.stop()
        other.sendall(_BUSY)  # read in the same pass, and before ours
        ours.sendall(data[:5])
        node.cont()
        time.sleep(0.005)  # the script runs some 50 ms
        sent = time.time() * 1000
        ours.sendall(data[5:])
        ours.recv(100)
        other.recv(100)
    left = node.execute("PTTL", KEY)
    assert node.execute("GET", KEY) == NEW
    assert time.time() * 1000 + left >= sent + TTL_MS - 1  # the resolution
