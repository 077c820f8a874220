"""Blocking connects to one node, with a deadline: socket, TLS, handshake, admission.

Runs in the thread of a `connector`, which also handles the back-off.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.resolve import addresses
from quorlock._drivers.sync.connection import Connection
from quorlock._nodes.node import current_credentials
from quorlock._protocol.handshake import CLOSED_IMMEDIATELY, Handshake, NodeRejected, ServerInfo
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorlock._core.time import Instant
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.node_states import NodeStates
    from quorlock._nodes.node import Node

# The interval at which a new connection checks for the other nodes' settings.
LOOK_AGAIN = 0.001  # seconds
NO_ADDRESS = "its name has no address"
# The kernel detects a peer that vanished (power, cable): probes after 5 s of silence, three of them
# 2 s apart. A hung process keeps its connection, since its kernel replies.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
# The same for a connection with unacknowledged bytes. TCP repeats them after 0.2, 0.6, 1.4, 3 s …,
# so it stays silent for as long again as the network was lost; a new connection does not.
_UNACKNOWLEDGED_MAX_MS = 10_000


def connect(node_state: NodeState, node_states: NodeStates, give_up: Instant) -> Connection:
    """Return a connection whose server may vote. Raises OSError, NodeRejected, ConfigError."""
    username, password = current_credentials(node_state.node)
    # Bytes that arrive later than a key can live are covered by no pending release.
    sock, would_block = open_socket(node_state.node, give_up, node_state.policy.max_ttl_ms)
    try:
        began = now()
        admission = node_states.admission(node_state)
        consider = admission.consider
        talk = Handshake(
            node_state.node, username, password, consider, marks=node_states.uses_markers
        )
        server_info = _handshake(sock, talk, give_up)
        ended = now()
        node_state.latency = ended - began
        sock.setblocking(False)
        connection = Connection(sock, node_state, would_block, password, server_info.run_id)
        connection.alive_at, connection.pipeline.replied_at = began, ended
        connection.resp3 = server_info.resp3
        connection.pipeline.tracking.is_able = server_info.tracks
        admission.admit(server_info, ended, connection)
        return connection
    except BaseException:
        sock.close()
        raise


def open_socket(
    node: Node, give_up: Instant, max_silence_ms: int
) -> tuple[socket.socket, tuple[type[Exception], ...]]:
    """Return a connected socket, with TLS if the node asks for it, and its would-block exceptions.

    Raises OSError, NodeRejected, ConfigError.
    """
    sock = _open(node, give_up, max_silence_ms)
    if node.tls is None:
        return sock, (BlockingIOError,)
    try:
        return _secured(sock, node)
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket, max_silence_ms: int) -> None:
    """Disable Nagle's delay and detect dead peers, on TCP sockets only."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": min(max_silence_ms, _UNACKNOWLEDGED_MAX_MS)}
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@contextlib.contextmanager
def attempt(info: tuple[Any, ...], max_silence_ms: int) -> Generator[socket.socket]:
    """Yield a socket for one address, to be connected in the block. It is closed if that raises."""
    family, kind, protocol, *_ = info
    sock = socket.socket(family, kind, protocol)
    try:
        tune(sock, max_silence_ms)
        yield sock
    except BaseException:
        sock.close()
        raise


def connect_memory(name: str) -> socket.socket:
    """Return a connection to a node in this process's memory. Raises OSError, NodeRejected."""
    # The library's one import of quorlock.testing: only a memory node needs it.
    from quorlock.testing.memory import Elsewhere, connect

    try:
        return connect(name, forked=fork.generation > 0)
    except Elsewhere as error:
        raise NodeRejected(str(error), VoteCode.PERMANENT_ERROR) from error


def _open(node: Node, give_up: Instant, max_silence_ms: int) -> socket.socket:
    """Return a connection to the first address of the node that accepts one."""
    if node.memory is not None:
        fork.close_in_child(sock := connect_memory(node.memory))
        return sock
    if node.path is not None:
        found: list[Any] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", node.path)]
    else:
        found = addresses(node.host, node.port, give_up)
    failure: OSError | None = None
    for index, info in enumerate(found):
        left = len(found) - index
        try:
            with attempt(info, max_silence_ms) as sock:
                fork.close_in_child(sock)
                # Each gets a share of the time, so that a silent one leaves some to the others.
                sock.settimeout(_left(give_up) / left)
                sock.connect(info[4])
                return sock
        except OSError as error:
            # The first: resolvers put addresses that this machine cannot reach at the end.
            failure = failure or error
    try:
        raise failure or OSError(0, NO_ADDRESS)
    finally:
        failure = None  # it refers to this frame


def _secured(sock: socket.socket, node: Node) -> tuple[socket.socket, tuple[type[Exception], ...]]:
    import ssl  # imported only for TLS: half of our import time

    from quorlock._drivers.ssl_context import context

    assert node.tls is not None
    secured = context(node.tls).wrap_socket(sock, server_hostname=node.host)
    fork.close_in_child(secured)  # `sock` has no descriptor any more
    return secured, (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


def _handshake(sock: socket.socket, handshake: Handshake, give_up: Instant) -> ServerInfo:
    while handshake.server_info is None:
        sock.settimeout(_left(give_up))
        if handshake.is_waiting:
            time.sleep(LOOK_AGAIN)
            handshake.go_on()
            continue
        if handshake.to_send:
            send(sock, handshake.to_send)
            handshake.to_send = b""
        try:
            data = sock.recv(16_384)
        except ConnectionResetError:
            data = b""
        if not data:
            raise NodeRejected(CLOSED_IMMEDIATELY, VoteCode.NOT_CONNECTED)
        handshake.feed(data)
    return handshake.server_info


def send(sock: socket.socket, data: bytes) -> None:
    """Send data to a server that may have refused already; raises TimeoutError.

    It may refuse in one line, or in an alert of TLS, and close the connection before it has read
    anything. The next `recv` returns that line, or raises the reason.
    """
    try:
        sock.sendall(data)
    except TimeoutError:
        raise
    except OSError:
        pass


def _left(give_up: Instant) -> float:
    left = give_up - now()
    if left <= 0:
        raise TimeoutError
    return left / 1e9
