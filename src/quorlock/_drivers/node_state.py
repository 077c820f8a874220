"""The state of one node in a driver: up or down and why, and which server it is.

Both drivers share this module; it opens no sockets.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from quorlock._core.commands import release_of
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.restart_guard import Guard, quarantine_answer
from quorlock._core.results import NodeStatus
from quorlock._core.time import FOR_EVER, NS_PER_MS, to_seconds
from quorlock._core.votes import Answer, Vote
from quorlock._drivers.tls_errors import is_end, tls_reason
from quorlock._protocol.handshake import CLOSED_IMMEDIATELY, NodeRejected, ServerInfo
from quorlock._protocol.pipeline import Demoted
from quorlock.errors import ConfigError, VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorlock._core.agreement import Reading
    from quorlock._core.commands import AnyAcquire, Command, Release
    from quorlock._core.config import Policy
    from quorlock._core.restart_guard import Quarantine
    from quorlock._core.time import Duration, Instant
    from quorlock._nodes.node import Node
    from quorlock._protocol.peer import Peer
    from quorlock._protocol.pipeline import PendingRequest
    from quorlock._protocol.reader import ProtocolError

BACK_OFF_MIN: Duration = 50 * NS_PER_MS
BACK_OFF_MAX: Duration = 1_000 * NS_PER_MS
# The stored settings of a disconnected node count for this long: the time until all nodes of a new
# set were tried again.
_READING_LASTS: Duration = 2 * BACK_OFF_MAX

CROWDED = Answer(Vote.UNKNOWN, VoteCode.LOCAL_QUEUE_TIMEOUT)
# Replies that mean that the node did not do what it was sent, and may not the next time.
_TROUBLES = (VoteCode.ACCESS_DENIED, VoteCode.PERMANENT_ERROR, VoteCode.TRANSIENT_ERROR)

CLOSED = "this Redlock is closed"
CLOSED_MEANWHILE = "this Redlock was closed while a call waited for a lock"


class Reachability(Enum):
    """The result of the latest attempts to connect to a node."""

    UNTRIED = "untried"  # no attempt has failed since the node was last up
    UP = "up"
    DOWN = "down"  # the last attempt to connect failed


_UP = Reachability.UP  # read for every reply (see _core/tally.py)


class ServerConnection(Protocol):
    """A connection to the server process `run_id`, in either driver and any event loop."""

    run_id: str
    lost: bool
    quarantine: Quarantine | None
    ttl_ms_max: int  # for requests over it; 0: only the client's limit
    alive_at: Instant  # its server process was alive then

    @property
    def listen_error(self) -> str:
        """The reason why its server does not send calls; "" if it does, or was not asked."""
        ...

    def is_closed_by_peer(self) -> bool:
        """Return whether the server has closed the connection. Safe from any thread."""
        ...

    def has_pending_acquire(self, token: bytes) -> bool:
        """Return whether the acquire with this token has no reply yet. Safe from any thread."""
        ...

    def supersede(self, text: str) -> None:
        """Close it: its address leads to another server now. Safe from any thread."""
        ...


class Reconnect:
    """The back-off of one node, and its vote until it is connected.

    has_moved: Its address led to another node's server last.
    """

    def __init__(self) -> None:
        self.retry_at: Instant = 0
        self.has_moved = False
        self._back_off = BACK_OFF_MIN
        self.answer = _down("not connected yet")

    def wait_longer(self, at: Instant) -> None:
        """Set the next attempt; the back-off after it is twice as long."""
        self.retry_at = at + self._back_off
        self._back_off = min(2 * self._back_off, BACK_OFF_MAX)

    def reset(self) -> None:
        """Record a successful attempt: a lost connection is replaced at once."""
        self.retry_at = 0
        self._back_off = BACK_OFF_MIN

    def on_failed(self, error: Exception, node: Node, at: Instant) -> None:
        """Record a failed attempt to connect."""
        self.wait_longer(at)
        if isinstance(error, ConfigError):
            self.answer = Answer(Vote.UNKNOWN, VoteCode.PERMANENT_ERROR, str(error))
        elif isinstance(error, NodeRejected):
            self.answer = Answer(Vote.UNKNOWN, error.code, error.text)
        elif is_end(error):
            self.answer = _down(CLOSED_IMMEDIATELY)
        elif reason := tls_reason(error):
            self.answer = Answer(Vote.UNKNOWN, VoteCode.PERMANENT_ERROR, f"TLS failed: {reason}")
        elif isinstance(error, TimeoutError) and node.tls is not None:
            text = "no answer to connecting by TLS (a port without TLS?)"
            self.answer = Answer(Vote.UNKNOWN, VoteCode.CONNECT_TIMED_OUT, text)
        else:
            self.answer = _os_answer(error)


class LastReading:
    """The stored settings of one node, as its last handshake read them."""

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self.read_at: Instant = -FOR_EVER
        self.is_considered = False  # a connection waits for its admission

    def consider(self, reading: Reading, at: Instant) -> None:
        """Record the settings that a handshake has read, for the decision about its connection."""
        self.reading, self.read_at, self.is_considered = reading, at, True

    def known(self, at: Instant, *, is_connected: bool) -> Reading | None:
        """Return the settings as far as they are known."""
        is_current = self.is_considered or is_connected
        if self.reading is None or not (is_current or self.read_at >= at - _READING_LASTS):
            return None
        return self.reading._replace(is_current=is_current)


class NodeState:
    """The state of one node of the set."""

    def __init__(self, index: int, node: Node, policy: Policy) -> None:
        self.index = index
        self.node = node
        self.policy = policy
        self.reachability = Reachability.UNTRIED
        self.server_info: ServerInfo | None = None
        # Healthy: a plain grant carries no information except its latency. Else a reply may show
        # that a problem is over.
        self.is_healthy = False
        self.guard = Guard(policy)
        self.latency: Duration | None = None
        self.misconfigured: ConfigError | None = None
        self.pending_releases = PendingReleases(policy.max_ttl)
        # Wakes the connector, which sends pending releases.
        self.on_pending_release: Callable[[], None] = lambda: None
        self.reconnect = Reconnect()
        self.settings = LastReading()
        # All open connections, of every connection set and event loop.
        self._connections: weakref.WeakSet[ServerConnection] = weakref.WeakSet()
        # The latest error for each kind of command; None: it violated the protocol.
        self._troubles: dict[type[Command] | None, Answer] = {}

    def has_in_flight(self, token: bytes) -> bool:
        """Return whether some connection has sent the acquire with this token and awaits its reply.

        A lost connection counts too: its owner has yet to register the pending release.
        """
        return any(connection.has_pending_acquire(token) for connection in self._connections)

    def is_connected(self) -> bool:
        """Return whether some connection to the node may vote. The caller has the lock."""
        return any(not c.lost and not c.is_closed_by_peer() for c in self._connections)

    def known(self, at: Instant) -> Reading | None:
        """Return the node's stored settings as far as they are known. The caller has the lock."""
        return self.settings.known(at, is_connected=self.is_connected())

    def on_protocol_error(self, error: ProtocolError, peer: Peer) -> None:
        """Record that a reply showed that the server process of this peer must not vote."""
        if isinstance(error, Demoted):
            self.guard.on_demoted(peer.run_id, self._snapshot(), str(error), but=peer)

    def _snapshot(self) -> list[ServerConnection]:
        """Return the open connections. Safe from any thread."""
        while True:
            with contextlib.suppress(RuntimeError):  # another thread has just added a connection
                return list(self._connections)

    def on_alive(self, run_id: str, at: Instant) -> None:
        """Record that the server of a lost connection was alive at this instant."""
        self.guard.on_alive(run_id, at)

    def is_settled(self, answer: Answer, at: Instant) -> bool:
        """Return whether the node was sent a request, or has just failed to connect."""
        if self.reachability is Reachability.DOWN:
            return self.reconnect.retry_at > at
        return self.reachability is Reachability.UP and answer.code is not VoteCode.NOT_CONNECTED

    @property
    def run_id(self) -> str:
        """The process of the latest handshake; "" before the first."""
        return self.server_info.run_id if self.server_info else ""

    @property
    def listen_error(self) -> str:
        """The reason why the node cannot call waiters, as far as known; "" if it can."""
        if self.server_info is not None and not self.server_info.resp3:
            return "it does not speak RESP3"
        try:
            errors = [connection.listen_error for connection in self._connections]
        except RuntimeError:  # another thread has just added a connection
            return ""
        return next(filter(None, errors), "")

    @property
    def max_silence(self) -> Duration:
        """The time for which a node with pending requests may keep silent."""
        return 2 * self.policy.node_timeout

    @property
    def unavailable_answer(self) -> Answer:
        """The vote of a node to which nothing can be sent."""
        return self.reconnect.answer

    def on_connected(
        self, server_info: ServerInfo, at: Instant, connection: ServerConnection
    ) -> None:
        """Record a successful connect, and set how long the server is in quarantine."""
        open_rivals = self._close_rivals(server_info.run_id)
        exempt = self.node.durable or server_info.born_empty == server_info.run_id.encode()
        kept = self.guard.on_connect(
            server_info.run_id,
            server_info.uptime_s,
            at,
            exempt=exempt,
            marked_ms=server_info.marked_ms,
            open_rivals=open_rivals,
        )
        connection.quarantine = kept
        self._connections.add(connection)
        self.settings.is_considered = False
        # In this order: other threads compare their nodes with `run_id` unless it has moved.
        self.reconnect.has_moved = False
        self.server_info = server_info
        self.misconfigured = None
        self.reachability = Reachability.UP
        self.is_healthy = not self._troubles
        if kept is not None and kept.is_lasting:
            # Two servers that share an address would replace each other's connections for ever.
            self.reconnect.wait_longer(at)
        else:
            self.reconnect.reset()

    def on_moved(self, run_id: str) -> None:
        """Record that the address leads to this process, which is another node's server."""
        self.reconnect.has_moved = True
        self._close_rivals(run_id)

    def _close_rivals(self, run_id: str) -> bool:
        """Close the connections to other processes; return whether one of these may be alive."""
        rivals = [c for c in self._connections if c.run_id != run_id and not c.lost]
        are_open = [not rival.is_closed_by_peer() for rival in rivals]
        self.close_connections("connection given up: the address leads to another process", rivals)
        return any(are_open)

    def close_connections(
        self, why: str, connections: Iterable[ServerConnection] | None = None
    ) -> None:
        """Close these connections (None: all), which must not vote. The caller has the lock."""
        for connection in list(self._connections if connections is None else connections):
            self.on_alive(connection.run_id, connection.alive_at)
            connection.supersede(why)

    def on_connection_lost(self, answer: Answer) -> None:
        """Record that a connection was lost; the node may well be reachable."""
        self.is_healthy = False
        if self.reachability is Reachability.UP:
            self.reachability = Reachability.UNTRIED
        self.reconnect.answer = _down(answer.text)
        if answer.code is VoteCode.PROTOCOL_ERROR:
            self._troubles[None] = answer  # a new connection does not prove it fixed

    def on_answer(self, request: PendingRequest, answer: Answer, at: Instant) -> None:
        """Record a reply that a connection received."""
        self.latency = at - request.asked_at
        self.reachability = _UP  # perhaps over another connection than the lost one
        if answer.code in _TROUBLES or self._troubles:
            self._note(request.command, answer)
        self.is_healthy = not self._troubles

    def _note(self, command: Command, answer: Answer) -> None:
        if answer.code in _TROUBLES:
            if not answer.text.startswith("NOSCRIPT"):
                self._troubles[type(command)] = answer
        elif self._troubles:
            # An error of a command is over only when the same command is granted.
            self._troubles.pop(type(command), None)
            self._troubles.pop(None, None)

    def on_release_refused(self, release: Release, run_id: str, at: Instant) -> None:
        """Retry a release that the server answered with an error."""
        self.pending_releases.add_refused(release, run_id, at)
        self.on_pending_release()

    def on_connect_failed(self, error: Exception, now: Instant) -> None:
        """Record a failed connect; the next back-off is twice as long."""
        self.reachability = Reachability.DOWN
        self.is_healthy = False
        self.settings.is_considered = False
        if not isinstance(error, NodeRejected):
            self.settings.read_at = -FOR_EVER  # the node is not reachable
        if isinstance(error, NodeRejected) and error.replica:
            why = f"connection given up: it {error.text}"
            self.guard.on_demoted(error.replica, self._snapshot(), why)
        if isinstance(error, ConfigError):
            name = f"nodes[{self.index}].{error.argument}"
            self.misconfigured = ConfigError(name, error.value, error.fix)
        self.reconnect.on_failed(error, self.node, now)

    def release_later(self, command: AnyAcquire | Release, run_id: str, at: Instant) -> None:
        """Register a pending release, to be sent over another connection (rule 3)."""
        self.pending_releases.add(release_of(command), run_id, at)
        self.on_pending_release()

    def status(self, silent_for: Duration, at: Instant) -> NodeStatus:
        """Return the status for the user. silent_for: the age of the oldest pending request."""
        answer = next(iter(self._troubles.values()), None)
        if (kept := self.guard.quarantine) is not None:
            answer = quarantine_answer(kept, at) or answer
        if self.reachability is not Reachability.UP:
            answer = self.reconnect.answer
        elif silent_for > self.max_silence:
            text = f"no answer for {to_seconds(silent_for):.1f} s"
            answer = Answer(Vote.UNKNOWN, VoteCode.TIMED_OUT, text)
        return NodeStatus(
            address=self.node.address,
            up=answer is None,
            why=answer.reason if answer else "",
            latency=None if self.latency is None else to_seconds(self.latency),
            version=self.server_info.version if self.server_info else "",
            code=answer.code if answer else None,
            queues=not (listen_error := self.listen_error),
            queues_why=listen_error,
        )


def _down(text: str) -> Answer:
    return Answer(Vote.UNKNOWN, VoteCode.NOT_CONNECTED, text)


def _os_answer(error: Exception) -> Answer:
    """Return the operating system's text alone: exception texts may quote a whole address."""
    number = getattr(error, "errno", None)
    if number is not None and number > 0:
        return _down(os.strerror(number).lower())
    if isinstance(error, TimeoutError):
        return Answer(Vote.UNKNOWN, VoteCode.CONNECT_TIMED_OUT)
    return _down(str(getattr(error, "strerror", None) or type(error).__name__).lower())
