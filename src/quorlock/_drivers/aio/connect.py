"""Connections of one event loop to one node: socket, TLS, handshake, admission, without a thread.

Compare `sync.connect`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_S
from quorlock._drivers.aio.connection import AsyncConnection, AsyncHandshake
from quorlock._drivers.clock import now
from quorlock._drivers.resolve import lookup, numeric
from quorlock._drivers.sync.connect import NO_ADDRESS, attempt, connect_memory
from quorlock._nodes.node import current_credentials
from quorlock._protocol.handshake import CLOSED_IMMEDIATELY, Handshake, NodeRejected
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    import socket
    import ssl

    from quorlock._core.time import Instant
    from quorlock._drivers.aio.batching import SharedPipeline
    from quorlock._drivers.aio.connection import ConnectionOwner
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.node_states import NodeStates
    from quorlock._drivers.resolve import Addresses
    from quorlock._protocol.pipeline import InvalidationCallback


class NodeConnections:
    """The connections to one node that have a socket, or are about to get one.

    The connector uses one of them. Another may be in its handshake, or send its last bytes.
    """

    def __init__(
        self, node_state: NodeState, node_states: NodeStates, shared_pipeline: SharedPipeline
    ) -> None:
        self._node_state = node_state
        self._node_states = node_states
        self._shared_pipeline = shared_pipeline
        self._connect_timeout = node_state.policy.connect_timeout / 1e9
        self._all: set[AsyncConnection] = set()
        self._on_invalidation: InvalidationCallback | None = None

    def watch(self, callback: InvalidationCallback) -> None:
        """Report invalidations, from the next extension on."""
        self._on_invalidation = callback
        for connection in self._all:
            connection.pipeline.on_invalidation(callback)

    async def open(self, owner: ConnectionOwner) -> AsyncConnection:
        """Return a connection whose server may vote, within `connect_timeout`."""
        node, node_states = self._node_state.node, self._node_states
        username, password = current_credentials(node)
        admission = node_states.admission(self._node_state)
        consider = admission.consider
        handshake = AsyncHandshake(
            Handshake(node, username, password, consider, marks=node_states.uses_markers)
        )
        connection = AsyncConnection(
            self._node_state, handshake, password, owner, self._shared_pipeline
        )
        if self._on_invalidation is not None:
            connection.pipeline.on_invalidation(self._on_invalidation)
        self._all.add(connection)
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection.alive_at = now()  # or later: when it sends the first request
                await self._open_connection(connection)
                began = now()
                server_info = await handshake.server_info
                ended = now()
                self._node_state.latency = ended - began
                admission.admit(server_info, ended, connection)
        except BaseException:
            handshake.server_info.cancel()
            connection.abort()
            if not connection.is_closing:
                self._all.discard(connection)  # no `connection_lost` follows
            raise
        if connection.lost:
            raise NodeRejected(CLOSED_IMMEDIATELY, VoteCode.NOT_CONNECTED)
        connection.admitted = True
        return connection

    async def _open_connection(self, connection: AsyncConnection) -> None:
        """Give the connection a socket to its node."""
        node, loop = self._node_state.node, asyncio.get_running_loop()
        if node.memory is not None:
            sock = connect_memory(node.memory)
            await loop.create_unix_connection(lambda: connection, sock=sock)
        elif node.path is not None:
            await loop.create_unix_connection(lambda: connection, node.path)
        else:
            tls = self._tls()
            give_up = now() + round(self._connect_timeout * NS_PER_S)
            sock = await open_socket(
                node.host, node.port, give_up, self._node_state.policy.max_ttl_ms
            )
            name = node.host if tls is not None else None
            await loop.create_connection(
                lambda: connection, sock=sock, ssl=tls, server_hostname=name
            )

    def _tls(self) -> ssl.SSLContext | None:
        if self._node_state.node.tls is None:
            return None
        from quorlock._drivers.ssl_context import context  # imports ssl: only if TLS is used

        return context(self._node_state.node.tls)

    def discard(self) -> None:
        """Close all connections now, notifying no receiver."""
        for connection in list(self._all):
            connection.discard()

    def remove(self, connection: AsyncConnection) -> None:
        """Forget a connection whose transport has ended."""
        self._all.discard(connection)

    async def close(self, give_up: float) -> None:
        """Close all connections, after sending the written bytes."""
        waiting = [connection.closed for connection in self._all]
        for connection in self._all:
            connection.close()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=max(0.0, give_up - now() / 1e9))
            if late:
                for connection in self._all:
                    connection.abort()
                await asyncio.wait(late, timeout=1.0)
        self._all.clear()


async def open_socket(host: str, port: int, give_up: Instant, max_silence_ms: int) -> socket.socket:
    """Return a socket that is connected to the first address that accepts. Raises OSError."""
    found = await _addresses(host, port, give_up)
    failure: OSError | None = None
    for index, info in enumerate(found):
        left = len(found) - index
        try:
            with attempt(info, max_silence_ms) as sock:
                sock.setblocking(False)
                # Each gets a share of the time, so that a silent one leaves some to the others.
                async with asyncio.timeout((give_up - now()) / left / 1e9):
                    await asyncio.get_running_loop().sock_connect(sock, info[4])
                return sock
        except OSError as error:
            failure = failure or error  # compare `sync.connect`
    try:
        raise failure or OSError(0, NO_ADDRESS)
    finally:
        failure = None  # it refers to this frame


async def _addresses(host: str, port: int, give_up: Instant) -> Addresses:
    """Return the addresses of a name or IP literal, as `resolve.addresses` does."""
    if (literal := numeric(host, port)) is not None:
        return literal
    wanted = lookup(host)
    until = wanted.until(give_up, (give_up - now()) // 4)
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(news.set)

    wanted.listeners.add(tell)  # before the check, so that no end is missed
    try:
        if not wanted.done:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, until - now()) / 1e9):
                    await news.wait()
    finally:
        wanted.listeners.discard(tell)
    return wanted.result(port)
