"""Sets of N connections, one to each node, used by one thread at a time.

A flow borrows a set when it first sends, and returns it when it ends or sleeps (`pool`). The
connectors open connections; a set requests the missing ones and continues without them.

No lock is taken here: only the owner of a set uses its connections. The rounds of followers
(`submit`), and another thread's release that must come after an acquire on one connection
(`send_later`), are left for the owner, which sends them before anything else. A set without an
owner at that moment is visited by the pool (`visit`). `is_busy` is set while the owner is inside.
If the owner is gone and left it set, it was interrupted, and the set is discarded.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from quorlock._core.commands import ACQUIRES, Acquire, Release
from quorlock._core.effects import Timeout
from quorlock._core.rounds import Target, replied, round_sent
from quorlock._core.routing import HERE, Over, plain_nodes, route, unsent
from quorlock._core.tally import PENDING
from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._core.votes import BACKLOG, GRANTED, TIMED_OUT, Answer
from quorlock._drivers.clock import now, sleep_ms
from quorlock._drivers.places import Places
from quorlock._drivers.sync.connection import NO_REQUEST, send_to_each
from quorlock._drivers.sync.polling import Poll, WakeupPipe
from quorlock._drivers.sync.set_connections import SetConnections
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import UNCOUNTED_MAX, requested
from quorlock._protocol.replies import PLAIN_GRANTS
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Command
    from quorlock._core.effects import Receive, Send, SendBatch
    from quorlock._core.request import StopEvent
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.routing import Route
    from quorlock._core.time import Duration, Instant
    from quorlock._drivers.node_state import NodeState
    from quorlock._drivers.sync.connection import Connection, Inbox
    from quorlock._drivers.sync.connector import Connectors
    from quorlock._drivers.sync.polling import Polled
    from quorlock._protocol.pipeline import InvalidationCallback, PendingRequest

# After this idle time a set checks whether its nodes have closed connections.
_STALE_AFTER = 1_000 * NS_PER_MS
# Replies to requests on another set's or a connector's connection do not wake our poll.
_FOREIGN_POLL = 1 * NS_PER_MS
# Neither do rounds that other threads leave here; replies mostly wake it sooner.
_SHARED_POLL = 5 * NS_PER_MS
# The interval at which bytes that a full socket did not take are sent again.
_FLUSH_EVERY_MS = 5
# A waiting owner looks for news at this interval if there is no descriptor left for a pipe.
_LOOK_EVERY_MS = 20
# A node that is so many times as far behind as a quorum, or as many rounds as are sent at once, is
# late: its backlog counts.
_TIMES_BEHIND = 2
# Refusals that unread bytes on the connection, or its end, may change.
_MAY_CHANGE = (VoteCode.BACKLOG, VoteCode.PERMANENT_ERROR, VoteCode.QUARANTINED)


class _Submission(NamedTuple):
    """A request of another thread: for one node, or (None) for all of these nodes, as bits.

    follower: Whose round it is, if it is for all nodes.
    """

    node: int | None
    nodes: int
    data: bytes
    request: PendingRequest
    effect: Send
    follower: Inbox | None = None


class ConnectionSet:
    """One connection per node, used by one thread at a time."""

    may_send_later = True  # see `routing.Paths`

    def __init__(
        self, connectors: Connectors, on_invalidation: InvalidationCallback | None = None
    ) -> None:
        self._connectors = connectors
        self._everywhere = Target(connectors.node_mask, self)  # of nearly all leases
        self._polled = Poll()
        self._places = Places(connectors.policy)
        self.membership = SetConnections(connectors, self._polled, self._places, on_invalidation)
        self.connections = self.membership.all
        self._wakeup: WakeupPipe | None = None  # of an owner that waits; made when first needed
        # The visits of the other sets that carry requests of this round (connectors need none).
        self._carriers: list[Callable[[], None]] = []
        # Requests of other threads for our connections.
        self._submissions: dict[object, _Submission] = {}
        self.followers: dict[Any, None] = {}  # the borrowers whose rounds our owner sends (`pool`)
        self.takes_rounds = False  # of followers: its owner waits for replies, not for connections
        self.visit: Callable[[], None] = _ignore
        self.on_ready: Callable[[], None] = _ignore  # called when it takes rounds of followers
        self.read_at: Instant = PAST  # for followers: what had come by then is read
        self.is_busy = False  # its owner is inside
        # The plain round whose grants are counted here, in place of the owner's inbox.
        self._counted: PendingRequest = NO_REQUEST
        self._counted_grant = b""
        self.granted = 0  # the nodes that have granted that round, as bits
        self.has_unsent = False  # some connection may have bytes that are not sent
        self.closed = False

    # --- connections come and go -------------------------------------------------------------

    def add(self, connection: Connection) -> None:
        """Queue a new connection for the owner; called from a connector's thread."""
        self.membership.arrivals.append(connection)
        if self.closed:
            self.membership.close_arrivals()
        self._connectors.changed.wake_all()
        self.wake()

    def prepare(self, by: Instant = FOR_EVER, stop: StopEvent | None = None) -> None:
        """Adopt new connections, drop lost ones, and wait for those that may still come."""
        self.is_busy = True
        at, membership = now(), self.membership
        if at - membership.used_at > _STALE_AFTER:
            membership.check(self._receive_now)
        membership.used_at = at
        if membership.arrivals or membership.is_incomplete:
            membership.adopt(self)
            if membership.is_incomplete:
                self.takes_rounds = False
                membership.await_quorum(self, at, by, stop)
                self.takes_rounds = True
                self.on_ready()
        self.is_busy = False

    # --- a round -----------------------------------------------------------------------------

    def send(self, effect: Send, receiver: Inbox) -> SentRound:
        """Send to all nodes without waiting for any of them."""
        self.is_busy = True
        if self._carriers:
            self._carriers = []
        if self._submissions:
            self._send_submissions()  # an acquire of this thread may be among it
        command = effect.command
        data = encode(command)
        receiver.round = round_ = receiver.round + 1
        started = now()
        request = requested((command, receiver, round_, started, False))
        self._counted = NO_REQUEST
        if round_ == 1 and receiver.counts_grants:
            self._counted, self._counted_grant = request, PLAIN_GRANTS[type(command)]
            self.granted = 0
        asked = self._send_to_all(effect, data, request, UNCOUNTED_MAX)
        self.is_busy = False
        return round_sent((round_, started, now(), self._target(asked)))

    def _send_to_all(
        self, effect: Send, data: bytes, request: PendingRequest, uncounted: int
    ) -> int:
        """Send to each node, or reply in its name; return the nodes that it was sent to, as bits.

        uncounted: Fewer pending requests are no backlog.
        """
        # In nearly every round no node is a special case, and every connection gets the bytes.
        command = effect.command
        is_urgent = type(command) is Release and command.token
        asked = everywhere = self._connectors.node_mask
        plain = 0 if self.membership.has_limits else plain_nodes(effect, everywhere, self)
        done = 0  # so many connections have got them
        if plain == everywhere and self._may_send_to_each(command):
            most = sys.maxsize if is_urgent else uncounted
            done = send_to_each(self.connections, data, request, most)
        for index in range(done, len(self.connections)):
            connection = self.connections[index]
            if not (
                connection is not None
                and plain >> index & 1
                and (is_urgent or len(connection.pending) < uncounted)
                and connection.send(data, request)
            ) and not self._ask(index, data, request, effect):
                asked &= ~(1 << index)
        return asked

    def _may_send_to_each(self, command: Command) -> bool:
        """Return whether neither a script nor unsent bytes have to precede this command."""
        if self.has_unsent:
            return False
        if type(command) is Release:
            return self.membership.have_script or self.membership.check_script()
        return type(command) is Acquire

    def submit(self, effect: Send, receiver: Inbox) -> SentRound:
        """Leave a round for the owner to send; safe from any thread.

        Its validity counts from now, before the first byte, and the nodes' time to reply from when
        it is sent (`Inbox.on_sent`). An acquire counts as sent to the nodes that are there now,
        without a backlog. If one of them is not when it is sent, it gets a reply in its name.
        """
        receiver.round = round_ = receiver.round + 1
        at, data, nodes = now(), encode(effect.command), self._connectors.node_mask
        if isinstance(effect.command, ACQUIRES):
            nodes = self._open_nodes(at)
        request = requested((effect.command, receiver, round_, at, False))
        self._add(_Submission(None, nodes, data, request, effect, receiver))
        return round_sent((round_, at, at, self._target(nodes)))

    def _target(self, nodes: int) -> Target:
        return self._everywhere if nodes == self._everywhere.nodes else Target(nodes, self)

    def remove_follower(self, follower: object) -> None:
        """Remove a follower; without any, a node's backlog counts at once again."""
        self.followers.pop(follower, None)
        self._check_tolerance()

    def _check_tolerance(self) -> None:
        """Count backlogs at once without followers; called after each change of either."""
        if not self.followers:
            for connection in self.connections:
                if connection is not None:
                    connection.pipeline.max_silence = 0

    def _open_nodes(self, at: Instant) -> int:
        nodes = 0
        for index, connection in enumerate(self.connections):
            if connection is not None and not (connection.lost or connection.is_backlogged(at)):
                nodes |= 1 << index
        return nodes

    def _send_to_some(self, effect: Send, data: bytes, request: PendingRequest, nodes: int) -> None:
        """Send to these nodes, as bits, and reply in the name of the others."""
        for index, connection in enumerate(self.connections):
            if connection is None or nodes >> index & 1:
                self._ask(index, data, request, effect)
            else:
                self._refuse(BACKLOG, index, request)

    def send_all(self, effect: SendBatch, receiver: Inbox) -> tuple[SentRound, ...]:
        """Send several rounds, in one packet to each node."""
        corked = [connection for connection in self.connections if connection is not None]
        self.has_unsent = True
        for connection in corked:
            connection.holds_back = True
        sent_rounds: list[SentRound] = []
        carriers: list[Callable[[], None]] = []
        for send in effect.sends:
            sent_rounds.append(self.send(send, receiver))
            carriers += self._carriers
        self.is_busy = True
        self._carriers = carriers
        for connection in corked:
            connection.flush()
        self.is_busy = False
        sent = now()
        return tuple([sent_round._replace(sent_at=sent) for sent_round in sent_rounds])

    def _ask(self, index: int, data: bytes, request: PendingRequest, effect: Send) -> bool:
        """Send to one node, or reply in its name; return whether it was sent."""
        refusal = self._try_ask(index, data, request, effect)
        if refusal is None:
            return True
        self._refuse(refusal, index, request)
        return False

    @staticmethod
    def _refuse(refusal: Answer, index: int, request: PendingRequest) -> None:
        request.receiver.deliver(replied((request.round, index, refusal, request.asked_at)))

    def _try_ask(
        self, index: int, data: bytes, request: PendingRequest, effect: Send
    ) -> Answer | None:
        found, connection = self._route(index, effect, request.asked_at), self.connections[index]
        if found is TIMED_OUT and effect.behind is not None:
            # The reply that it waits for may be there, and unread.
            for other in effect.behind.paths:
                if isinstance(other, ConnectionSet):
                    other.visit()
            found = self._route(index, effect, request.asked_at)
        if isinstance(found, Answer):
            return found
        if found is HERE:
            # None: a visit of a closed set has dropped it since.
            if connection is not None and connection.send(data, request):
                # If the connection was lost just now, its reply is already in the inbox.
                return None
            found = unsent(request.command)
        if isinstance(found, Over):
            assert isinstance(found.paths, ConnectionSet)
            self._carriers.append(found.paths.visit)
            found.paths.send_later(index, data, request, effect)
            return None
        self.membership.is_incomplete = True
        connector = self._connectors.all[index]
        if found.is_release and connector.release_later(request):
            self._carriers.append(_ignore)  # its thread sends it, and our receiver gets the reply
            return None
        return connector.node_state.unavailable_answer

    def _route(self, index: int, effect: Send, at: Instant) -> Route:
        """Apply the rule, and once more after a receive that may change a refusal."""
        connection = self.connections[index]
        found = route(effect, index, self, at, self)
        if connection is None:
            return found
        if isinstance(found, Answer) and found.code in _MAY_CHANGE:
            connection.receive()  # unread replies, or its end: then the limit is read again
            found = HERE if connection.lost else route(effect, index, self, at, self)
        elif connection.quarantine is not None and at >= connection.quarantine.until:
            connection.quarantine = None
            self.membership.find_limits()
        return found

    def node(self, index: int) -> NodeState:
        """Return the state of a node, for `route`."""
        return self._connectors.all[index].node_state

    def connection(self, path: object, index: int) -> Connection | None:
        """Return the connection of this set to a node, for `route`."""
        return path.connections[index] if isinstance(path, ConnectionSet) else None

    def send_later(self, index: int, data: bytes, request: PendingRequest, effect: Send) -> None:
        """Leave a request for the owner to send; safe from any thread."""
        self._add(_Submission(index, 0, data, request, effect))
        self.visit()

    def _add(self, submission: _Submission) -> None:
        self._submissions[object()] = submission
        if self.closed:
            self._send_submissions()
        self.wake()

    def _send_submissions(self) -> None:
        """Send what other threads have left, in one packet to each node."""
        if (self.membership.arrivals or self.membership.is_incomplete) and not self.closed:
            self.membership.adopt(self)
        corked = [connection for connection in self.connections if connection is not None]
        submissions = list(self._submissions.copy().items())
        policy = self._connectors.policy
        # A node that is as far behind as a quorum, or by what is sent at once, is not late.
        behind = sorted([len(connection.pending) for connection in corked])[: policy.quorum]
        tolerated = _TIMES_BEHIND * max([len(submissions), *behind])
        self.has_unsent = True
        for connection in corked:
            connection.holds_back = True
            is_late = len(connection.pending) >= tolerated
            connection.pipeline.max_silence = 0 if is_late else policy.node_timeout
        self._check_tolerance()  # the last follower may lead now, with a round here
        uncounted = max(UNCOUNTED_MAX, tolerated + len(submissions))
        batch: list[tuple[object, _Submission]] = []
        for key, submission in submissions:
            if self._is_for_batch(submission):
                batch.append((key, submission))
                continue
            self._send_batch(batch, uncounted)
            batch = []
            node, nodes, data, request, effect, _ = submission
            if node is not None:
                self._ask(node, data, request, effect)
            elif nodes == self._connectors.node_mask:
                self._send_to_all(effect, data, request, uncounted)
            else:
                self._send_to_some(effect, data, request, nodes)
            # Last: after an interrupt before it, `discard` sends it again.
            self._submissions.pop(key, None)
        self._send_batch(batch, uncounted)
        for connection in corked:
            connection.flush()
        sent = now()
        for _, submission in submissions:
            if submission.follower is not None:
                submission.follower.on_sent(submission.request.round, sent)

    def _is_for_batch(self, submission: _Submission) -> bool:
        """Return whether it is a plain round that all nodes are to get, as it nearly always is."""
        effect, everywhere = submission.effect, self._connectors.node_mask
        return (
            submission.nodes == everywhere
            and type(effect.command) in PLAIN_GRANTS
            and not self.membership.has_limits
            and plain_nodes(effect, everywhere, self) == everywhere
        )

    def _send_batch(self, batch: list[tuple[object, _Submission]], uncounted: int) -> None:
        """Send these rounds to all nodes: each connection gets them in one step, if it can."""
        requests = [submission.request for _, submission in batch]
        data = b"".join([submission.data for _, submission in batch])
        for index, connection in enumerate(self.connections):
            if connection is None or not connection.send_batch(data, requests, uncounted):
                for _, submission in batch:
                    self._ask(index, submission.data, submission.request, submission.effect)
        for key, _ in batch:
            self._submissions.pop(key, None)

    def receive(self, receiver: Inbox, effect: Receive) -> NodeReply | Timeout:
        """Return the next reply that the flow has to see, or `Timeout`."""
        self.is_busy = True
        replies, (until, tally) = receiver.inbox, effect
        is_last_poll = False
        while True:
            while replies:
                reply = replies.popleft()
                if tally is None or tally.count(reply) is not PENDING:
                    self.is_busy = False
                    return reply
            at = now()
            left = until - at
            if left <= 0:
                if is_last_poll:
                    self.is_busy = False
                    return Timeout(at)
                # A reply that has arrived counts. If this process was stalled (stopped, or without
                # the interpreter lock), nodes on this machine may have been stalled too. So the
                # deadline moves by the length of the stall, by `node_timeout` at most.
                node_timeout = self._connectors.policy.node_timeout
                left = min(-left, node_timeout) // NS_PER_MS * NS_PER_MS
                until, is_last_poll = at + left, True
            self._await_some(left)

    def await_replies(self, receiver: Inbox, count: int, until: Instant) -> None:
        """Return when so many replies are in the inbox, or at `until`."""
        self.is_busy = True
        inbox = receiver.inbox
        while len(inbox) < count and (left := until - now()) > 0:
            self._await_some(left)
        self.is_busy = False

    def counts_for(self, receiver: Inbox) -> bool:
        """Return whether the grants of this receiver's round are counted."""
        return self._counted.receiver is receiver

    def await_grants(self, receiver: Inbox, until: Instant) -> int:
        """Return the nodes that have granted the counted round, as bits.

        Waits for a quorum of them, for any other reply, or until `until`. After another reply it
        returns 0.
        """
        self.is_busy = True
        inbox, quorum = receiver.inbox, self._connectors.policy.quorum
        not_asked = len(inbox)
        while self.granted.bit_count() < quorum and (left := until - now()) > 0:
            self._await_some(left)
            if len(inbox) > not_asked:
                self.is_busy = False
                return 0
        self.is_busy = False
        return self.granted

    def deliver_counted(self, receiver: Inbox, position: int) -> None:
        """Put the counted grants into the inbox, before what has come since; count no more.

        position: So many replies were there when the wait for grants began.
        """
        round_, at = self._counted.round, now()
        self._counted = NO_REQUEST
        for index in reversed(range(len(self.connections))):
            if self.granted >> index & 1:
                receiver.inbox.insert(position, replied((round_, index, GRANTED, at)))

    def _await_some(self, left: Duration) -> None:
        """Wait for replies, for so long at most, and read them."""
        most = _FOREIGN_POLL if self._carriers else _SHARED_POLL
        if left > most:  # noqa: PLR1730 (for every reply: `min` is a call)
            left = most
        # Rounded up: a poll that ends early would find nothing and poll again.
        self._poll_replies(-(-left // NS_PER_MS))
        for visit in self._carriers:
            visit()

    def _receive_now(self) -> None:
        self._poll_replies(0)

    def _poll_replies(self, timeout_ms: int) -> None:
        if self._submissions:
            self._send_submissions()
        if self.has_unsent:
            timeout_ms = self._flush(timeout_ms)
        self._read(self._polled.poll(timeout_ms))

    def _read(self, ready: list[tuple[int, int]]) -> None:
        """Read from the descriptors that a poll has returned."""
        connection: Polled | None
        at = now() if self.followers else PAST
        by_fd, counted, grant = self._polled.by_fd, self._counted, self._counted_grant
        for fd, _ in ready:
            connection = by_fd[fd]
            if connection.receive_grant(counted, grant):
                self.granted |= connection.bit
            if connection.lost:
                self.membership.drop(connection.node_state.index)
        self.read_at = at
        connection = None  # a traceback may keep this frame: it keeps no pipe open

    def _flush(self, timeout_ms: int) -> int:
        """Send bytes that full sockets did not take; return the longest wait before a retry."""
        self.has_unsent = False
        for connection in self.connections:
            if connection is not None:
                connection.flush()
        return min(timeout_ms, _FLUSH_EVERY_MS) if self.has_unsent else timeout_ms

    def wait_for_push(self, wakeup_fd: int, timeout_ms: int) -> None:
        """Wait for a push message, for `wakeup_fd`, or for the timeout; then read."""
        self.is_busy = True
        if self.has_unsent or self._submissions:
            timeout_ms = min(timeout_ms, _FLUSH_EVERY_MS)
        self._polled.poll_with(wakeup_fd, timeout_ms)
        self._poll_replies(0)
        self.is_busy = False

    # --- a place in the queues of the nodes --------------------------------------------------

    def enlist(self, receiver: Inbox, key: bytes) -> bytes:
        """Return a new place, whose calls the receiver gets; b"" if too few nodes can call."""
        self.is_busy = True
        there = [connection for connection in self.connections if connection is not None]
        place = self._places.enlist(receiver, key, there)
        if place and self._wakeup is None:
            # No descriptor left: then it looks for news now and then.
            with contextlib.suppress(OSError):
                self._wakeup = WakeupPipe()
                self._polled.add(self._wakeup)
        self.is_busy = False
        return place

    def remove(self, place: bytes) -> None:
        """Forget a place: its calls are answered in its stead from now on."""
        self._places.remove((place,))

    def wake(self) -> None:
        """Wake the owner if it waits; safe from any thread."""
        wakeup = self._wakeup  # a local reference: it stays valid if the attribute is reset
        if wakeup is not None:
            wakeup.wake()

    def wait(self, until: Instant) -> None:
        """Return at `until`, after a wake-up, or earlier; then all replies and calls are read."""
        timeout_ms = sleep_ms(until)
        if self.has_unsent or self._submissions:
            timeout_ms = min(timeout_ms, _FLUSH_EVERY_MS)
        if self._wakeup is None:
            timeout_ms = min(timeout_ms, _LOOK_EVERY_MS)
        # Not busy: an interrupt here leaves the set as it is.
        ready = self._polled.poll(timeout_ms)
        self.is_busy = True
        if self.has_unsent or self._submissions:
            self._poll_replies(0)
        else:
            self._read(ready)
        if self.membership.arrivals or self.membership.is_incomplete:
            self.membership.adopt(self)
        self.is_busy = False

    # --- the end -----------------------------------------------------------------------------

    @property
    def has_submissions(self) -> bool:
        """Return whether requests of other threads are still to be sent."""
        return bool(self._submissions)

    @property
    def has_pending(self) -> bool:
        """Return whether some request has no reply yet, or was not sent completely."""
        if self._submissions or self.has_unsent:
            return True
        # Called at every return to the pool: no generator, no call.
        for connection in self.connections:  # noqa: SIM110
            if connection is not None and connection.pending:
                return True
        return False

    def drain(self) -> None:
        """Send and receive what is possible without waiting, for an owner that awaits no reply."""
        self.is_busy = True
        self._poll_replies(0)
        self.is_busy = False

    def close(self, until: Instant = 0) -> None:
        """Drain until `until`, then close all sockets, including those that still arrive."""
        self.is_busy = True
        while self.has_pending and now() < until:
            self._poll_replies(min(sleep_ms(until), _FLUSH_EVERY_MS))
        self.membership.close()
        self._end()
        self.is_busy = False

    def discard(self) -> None:
        """Close all sockets after an interrupt of the owner left them in any state.

        Each request without a reply becomes a pending release on its node.
        """
        self.takes_rounds = False
        for connection in self.connections:
            if connection is not None:
                connection.discard()
        self._end()

    def _end(self) -> None:
        # Not before its connections are lost: from then on other threads send what they leave here.
        self.closed = True
        self.membership.withdraw_requests(self)
        self._send_submissions()
        self._close_wakeup()

    def reset_after_fork(self) -> None:
        """Close our copy of the pipe, in a forked child; `fork` closes those of the sockets."""
        self._close_wakeup()

    def _close_wakeup(self) -> None:
        # Its descriptors close with the last reference: another thread may be about to write.
        if self._wakeup is not None:
            self._polled.remove(self._wakeup)
            self._wakeup = None


def _ignore() -> None:
    pass
