"""Connects to one node, blocking, with a deadline: socket, TLS, handshake, comparison.

Runs in a keeper's thread, beside everybody's way.  Leaves back-off to `keeper`.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from quorlock._drivers import fork
from quorlock._drivers.clock import now
from quorlock._drivers.connection import Connection
from quorlock._wire.handshake import HANGS_UP, Greeting, Handshake, Unfit

if TYPE_CHECKING:
    from quorlock._core.time import Instant
    from quorlock._drivers.members import Member, Members
    from quorlock._wire.nodes import Node

# A peer that vanished without a word (power, cable) is noticed by the kernel: probes after 5 s
# of silence, three of them 2 s apart.  A hung process keeps its connection: its kernel answers.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


def dial(member: Member, members: Members, give_up: Instant) -> Connection:
    """A connection whose server may vote. Raises OSError, Unfit, ConfigError."""
    username, password = member.node.authority()
    # Unacknowledged bytes keep a connection for as long as a key of ours can live.
    sock, would_block = opened(member.node, give_up, member.max_ttl_ms)
    try:
        began = now()
        talk = Handshake(member.node, username, password, members.agreement, marks=members.marks)
        greeting = _talk(sock, talk, give_up)
        ended = now()
        member.latency = ended - began
        kept = members.admit(member, greeting, ended)
        sock.setblocking(False)
        connection = Connection(sock, member, would_block, password)
        connection.quarantine = kept
        return connection
    except BaseException:
        sock.close()
        raise


def opened(
    node: Node, give_up: Instant, max_silence_ms: int
) -> tuple[socket.socket, tuple[type[Exception], ...]]:
    """A socket to it, encrypted where it says so, and what that raises when it would block.

    Raises OSError, Unfit, ConfigError.
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
    """No Nagle delay; dead peers are noticed. For TCP sockets; a no-op on others."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": max_silence_ms}
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def to_memory(name: str) -> socket.socket:
    """A connection to a node in this process's memory. Raises OSError, Unfit."""
    # The one place that looks up: who asks for such a node wants quorlock.testing to be loaded.
    from quorlock.testing.memory import Elsewhere, connect

    try:
        return connect(name, forked=fork.generation > 0)
    except Elsewhere as error:
        raise Unfit(str(error), lasting=True) from error


def _open(node: Node, give_up: Instant, max_silence_ms: int) -> socket.socket:
    if node.memory is not None:
        return to_memory(node.memory)
    if node.path is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_left(give_up))
            sock.connect(node.path)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((node.host, node.port), _left(give_up))
    tune(sock, max_silence_ms)
    return sock


def _secured(sock: socket.socket, node: Node) -> tuple[socket.socket, tuple[type[Exception], ...]]:
    import ssl  # only where TLS is used: it costs half of our import time

    from quorlock._drivers.tls import context

    assert node.tls is not None
    try:
        secured = context(node.tls).wrap_socket(sock, server_hostname=node.host)
    except ssl.SSLError as error:
        raise Unfit(f"TLS failed: {tls_words(error)}", lasting=True) from error
    return secured, (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


def tls_words(error: Exception) -> str:
    """What went wrong in a TLS handshake, without OpenSSL's source positions."""
    verify = getattr(error, "verify_message", "")
    reason = getattr(error, "reason", None) or type(error).__name__
    return str(verify or reason).replace("_", " ").lower()


def _talk(sock: socket.socket, handshake: Handshake, give_up: Instant) -> Greeting:
    while handshake.greeting is None:
        sock.settimeout(_left(give_up))
        if handshake.to_send:
            # A server may refuse us in one line and hang up before it has read a word of ours:
            # what it said is still there to be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(handshake.to_send)
            handshake.to_send = b""
        try:
            data = sock.recv(16_384)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Unfit(HANGS_UP, lasting=False)
        handshake.hear(data)
    return handshake.greeting


def _left(give_up: Instant) -> float:
    left = give_up - now()
    if left <= 0:
        raise TimeoutError
    return left / 1e9
