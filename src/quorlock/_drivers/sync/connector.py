"""Background threads, one for each node: connect, reconnect and send pending releases.

This work stays off the callers' path. The thread exists only while there is some; with healthy
nodes there is none. Connection sets run the rounds.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER
from quorlock._drivers.clock import now, sleep_ms
from quorlock._drivers.node_state import Reachability
from quorlock._drivers.release_waiters import ReleaseWaiters
from quorlock._drivers.sync.connect import connect
from quorlock._drivers.sync.connection import Connection, Inbox
from quorlock._drivers.threads import BackgroundThread
from quorlock._drivers.wait import WaitQueue
from quorlock._protocol.encoding import encode
from quorlock._protocol.handshake import NodeRejected
from quorlock._protocol.pipeline import PendingRequest
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.config import Policy
    from quorlock._core.releases_in_doubt import ReleaseCopy
    from quorlock._core.time import Instant
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.node_states import NodeStates

_RELEASES_AT_ONCE = 32


class Connectors:
    """The connectors of all nodes. `changed`: a connection has come, or a node is down."""

    def __init__(self, node_states: NodeStates, policy: Policy) -> None:
        self.policy = policy
        self.changed = WaitQueue()
        self.all = tuple(
            Connector(node_state, node_states, policy, self.changed)
            for node_state in node_states.all
        )
        self.node_mask = (1 << len(self.all)) - 1

    def may_connect(self, connections: Sequence[Connection | None]) -> bool:
        """Return whether some node is not connected and no attempt has failed yet."""
        is_closing = self.all[0].closing  # the first one is closed first
        return not is_closing and any(
            connection is None and connector.node_state.reachability is not Reachability.DOWN
            for connection, connector in zip(connections, self.all, strict=True)
        )


class Connector:
    """The connections of one node: opened for connection sets, and one for its pending releases."""

    def __init__(
        self, node_state: NodeState, node_states: NodeStates, policy: Policy, changed: WaitQueue
    ) -> None:
        self.node_state = node_state
        self.closing = False
        self._node_states = node_states
        self._policy = policy
        self._changed = changed
        self._requests: dict[Callable[[Connection], None], None] = {}
        self._awaited = ReleaseWaiters(node_state)
        self._own: Connection | None = None  # for pending releases
        self._until: Instant = FOR_EVER  # no work is done after this
        name = f"quorlock connector of {node_state.node.address}"
        self._thread = BackgroundThread(name, self._step, finish=self._close_own)
        node_state.on_pending_release = self._wake

    # --- called from any thread --------------------------------------------------------------

    def request_connection(self, receive: Callable[[Connection], None]) -> None:
        """Request a connection to the node. `receive` gets it, in the connector's thread."""
        if receive not in self._requests or not self._thread.runner:
            self._requests[receive] = None
            self._wake()

    def withdraw(self, receive: Callable[[Connection], None]) -> None:
        """Forget a request: `receive` may get a connection now, and no more later."""
        self._requests.pop(receive, None)

    def release_later(self, request: PendingRequest) -> bool:
        """Register a pending release; return whether its receiver will get the reply."""
        return self._awaited.add(request, closing=self.closing)

    def close(self, until: Instant) -> None:
        """Send pending releases until `until`, and end the thread."""
        self.closing = True
        # A second close, such as that of the finalizer, gives a node that failed no more time.
        self._until = min(self._until, until)
        if self._next_task(now())[1] is not None:
            self._wake()
        self._thread.close(until)
        self._close_own()

    def _wake(self) -> None:
        try:
            self._thread.wake()
        except RuntimeError as error:
            self._fail(NodeRejected(f"not connected: {error}", VoteCode.NOT_CONNECTED))

    # --- the thread --------------------------------------------------------------------------

    def _step(self) -> Instant | None:
        while True:
            due, job = self._next_task(now())
            if job is None:
                return None
            if due > now():
                return due
            job()

    def _next_task(self, at: Instant) -> tuple[Instant, Callable[[], None] | None]:
        """Return the next task and the time at which it is due."""
        if at >= self._until or (
            self.closing and not self.node_state.pending_releases.has_unconfirmed()
        ):
            return at, None
        reachable_at = at if self._own is not None else self.node_state.reconnect.retry_at
        release_at = self.node_state.pending_releases.next_due()
        is_requested = bool(self._requests) and not self.closing
        if release_at is not None and (not is_requested or release_at <= at):
            # Pending releases are sent before any connection set gets its connection (rule 3).
            return max(release_at, reachable_at), self._send_due
        if is_requested:
            return self.node_state.reconnect.retry_at, self._connect
        return at, None

    def _connect(self) -> None:
        connection = self._dial()
        if connection is None:
            return
        receive = next(iter(list(self._requests)), None)  # a copy: other threads add to it
        if receive is None:
            connection.close()
            return
        # First: a set that is neither waiting nor served would request it twice.
        receive(connection)
        self._requests.pop(receive, None)

    def _send_due(self) -> None:
        is_new = self._own is None or self._own.lost
        if is_new:
            self._close_own()
            self._own = self._dial()
        own, pending_releases = self._own, self.node_state.pending_releases
        if own is None:
            if self.closing:
                self._until = now()  # the node is unreachable, and closing does not wait for it
            return
        copies = pending_releases.due(now(), own.run_id)
        all_replied = False
        try:
            all_replied = all(
                self._send_some_due(own, copies[start:][:_RELEASES_AT_ONCE])
                for start in range(0, len(copies), _RELEASES_AT_ONCE)
            )
        finally:
            if not all_replied:
                self._close_own()  # first: requests without a reply are lost with it
            for copy in copies:
                pending_releases.on_connection_lost(copy, now())
        if self.closing and is_new and not all_replied:
            self._until = now()  # the node connects, and does not answer

    def _send_some_due(self, connection: Connection, copies: list[ReleaseCopy]) -> bool:
        """Send these releases and read the replies; return whether all replies came."""
        receiver, pending_releases = Inbox(), self.node_state.pending_releases
        at = now()
        # Skip tokens whose lease was handed over since the copies were taken.
        releases = [copy.release for copy in copies if copy.release.token in pending_releases]
        for number, release in enumerate(releases):
            connection.send(encode(release), PendingRequest(release, receiver, number, at))
        _receive(connection, receiver, len(releases), self._deadline())
        receiver.over = True
        for reply in receiver.inbox:
            release = releases[reply.round]
            pending_releases.on_reply(release, connection.run_id, reply.answer)
            self._awaited.answer(release.token, reply.answer, reply.at)
        return not connection.lost and len(receiver.inbox) == len(releases)

    def _dial(self) -> Connection | None:
        try:
            return connect(self.node_state, self._node_states, self._deadline())
        except Exception as error:  # noqa: BLE001 (after any error this node does not vote)
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        at = now()
        self.node_state.on_connect_failed(error, at)
        self._awaited.answer_all(at)
        self._changed.wake_all()

    def _deadline(self) -> Instant:
        return min(now() + self._policy.connect_timeout, self._until)

    def _close_own(self) -> None:
        connection, self._own = self._own, None
        if connection is not None:
            connection.close()


def _receive(connection: Connection, receiver: Inbox, count: int, until: Instant) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while len(receiver.inbox) < count and not connection.lost and now() < until:
        connection.flush()
        poll.poll(sleep_ms(until))
        connection.receive()
