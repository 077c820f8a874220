"""The shared pipeline of an event loop: rounds that go to all nodes, and each node's position.

Fast path: if every node gets the same command and replies with the expected bytes, a round is one
entry for all nodes. Its bytes are joined once, and each reply only advances its node's position.
The round is won when a quorum of positions has passed it. Any other round is *spelled out*: from
then on its replies are parsed and delivered one by one, as on a connection's private pipeline. With
N = 5 and many tasks, this leaves a third of a cycle's instructions
(docs/explanation/performance.md). The connections own the sockets and parse the replies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import ACQUIRES, Command
from quorlock._core.rounds import replied
from quorlock._core.votes import GRANTED
from quorlock._drivers.aio.outgoing import Group, Outgoing
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import UNCOUNTED_MAX, exceed_unread_max, requested
from quorlock._protocol.replies import PLAIN_GRANT_SIZE, PLAIN_GRANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.commands import Release
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.abc import SharedConnection, SharedReceiver
    from quorlock._protocol.pipeline import PendingRequest

# Plain grants are counted without being parsed.
_EXPECTED, _SIZE = PLAIN_GRANTS, PLAIN_GRANT_SIZE
_NONE = b"\0" * _SIZE  # no server sends that
_NO_GRANT = b"*>"  # how the replies to other rounds, and the calls of waiters, begin
# A node that is so many times as far behind as a quorum is late: its unread bytes count.  The nodes
# of one machine take turns, so one often has two rounds of each task open, where a quorum has one.
_TIMES_BEHIND = 3


class SharedPipeline:
    """The rounds that go to all connected nodes of an event loop, in order.

    links: The connections of its nodes. Only `set_members` changes them, and it spells out
    every open round. So each round has been sent to all of them.
    """

    def __init__(self, quorum: int, flush: Callable[[], None]) -> None:
        self.connections: Sequence[SharedConnection] = ()
        self.node_mask = 0  # bit i: node i is in it
        self.has_scripts_of: set[type[Command]] = set()  # all of its nodes have these scripts
        self.outgoing = Outgoing()
        self.flush = flush  # sends everything that is unsent
        self.is_complete = False  # all nodes are in it
        self._quorum = quorum
        self._first = 0  # the number of the first round below
        self._rounds: list[PendingRequest] = []
        self._receivers: list[SharedReceiver | None] = []  # None: spelled out
        self._expected = bytearray()
        self._bits: list[int] = []  # of each connection in `node_mask`
        self._marks: list[int] = []  # position of each connection: its replies so far
        self._decided = 0  # rounds with replies from a quorum
        self._quorum_lag = 0  # the rounds that a quorum was behind lately; falls at each send

    @property
    def has_quorum(self) -> bool:
        """Return whether a quorum of the nodes is in it."""
        return len(self.connections) >= self._quorum

    # --- sending -----------------------------------------------------------------------------

    def append(self, request: PendingRequest, receiver: SharedReceiver, data: bytes) -> None:
        """Append a round for all nodes; its bytes are sent by the next `send`."""
        outgoing, rounds = self.outgoing, self._rounds
        if outgoing.last_release is not None:
            outgoing.close_group()
        receiver.shared_number = self._first + len(rounds)
        expected = _EXPECTED.get(type(request.command))
        rounds.append(request)
        self._receivers.append(receiver if expected else None)
        self._expected += expected or _NONE
        outgoing.data.append(data)
        outgoing.rounds += 1

    def append_release(
        self, release: Release, request: PendingRequest, receiver: SharedReceiver
    ) -> None:
        """Append the release of one lock; one command for several that follow each other."""
        outgoing = self.outgoing
        first = outgoing.last_release
        if first is None or self._receivers[-1] is None or request.asked_at < outgoing.groups_from:
            self.append(request, receiver, encode(release))
            outgoing.last_release = request
            return
        group = outgoing.group
        if group is None:
            number = self._first + len(self._rounds) - 1
            outgoing.group = group = Group(outgoing, number, first)
            self._rounds[-1] = requested((first.command, group, 0, first.asked_at, False))
            self._receivers[-1] = group
        if group.has_room_for(release):
            # The request first: after an interrupt it is known to be in flight.
            group.requests.append(request)
            receiver.shared_number = group.shared_number
            outgoing.rounds += 1
        else:
            outgoing.close_group()
            self.append_release(release, request, receiver)

    def send(self, at: Instant) -> bool:
        """Send the appended rounds; return whether some node is backlogged."""
        data = self.outgoing.take()
        is_much = len(self._rounds) >= UNCOUNTED_MAX
        for connection in self.connections:
            connection.write(data)
            if connection.pipeline.pending:
                is_much = True  # perhaps: what preceded a request to this node alone is there
        return is_much and self._exclude_backlogged(at)

    def _exclude_backlogged(self, at: Instant) -> bool:
        """Exclude nodes whose unread bytes exceed UNREAD_MAX; return whether there is one.

        Many tasks may send as much at once.  So it counts only if a node is silent, or late.
        """
        rounds, found = self._rounds, False
        unread = [
            len(rounds) - mark + len(connection.pipeline.pending)
            for connection, mark in zip(self.connections, self._marks, strict=True)
        ]
        # Not only now: most tasks may have ended, or may be at work.
        lag = max(sorted(unread)[: self._quorum][-1], self._quorum_lag * 7 // 8)
        self._quorum_lag = lag
        for connection, mark, behind in zip(self.connections, self._marks, unread, strict=True):
            pipeline = connection.pipeline
            if behind < UNCOUNTED_MAX or connection.is_private:
                continue
            is_late = behind >= _TIMES_BEHIND * lag or connection.silence(at) > pipeline.max_silence
            if is_late and exceed_unread_max([*pipeline.pending, *rounds[mark:]]):
                connection.is_private = found = True
        return found

    # --- receiving ---------------------------------------------------------------------------

    def match(self, connection: SharedConnection, data: bytes, at: Instant) -> int:
        """Count the expected replies at the beginning of `data`; return their length in bytes."""
        seat, size = connection.shared_index, len(data)
        mark = self._marks[seat]
        if size % _SIZE or not self._expected.startswith(data, _SIZE * mark):
            # A reply of that size alone is not the expected one, nor is an array or a push.
            is_other = size <= _SIZE or data[0] in _NO_GRANT
            size = 0 if is_other else self._matches_expected(data, _SIZE * mark)
            if not size:
                return 0
        self._marks[seat] = mark = mark + size // _SIZE
        connection.alive_at = asked_at = self._rounds[mark - 1].asked_at
        connection.node_state.latency = at - asked_at
        self._advance(connection, at)
        return size

    def _matches_expected(self, data: bytes, start: int) -> int:
        size = 0
        while size + _SIZE <= len(data) and self._expected.startswith(
            data[size : size + _SIZE], start + size
        ):
            size += _SIZE
        return size

    def _advance(self, connection: SharedConnection, at: Instant) -> None:
        """Deliver the rounds that are won since a connection's position has advanced."""
        marks = self._marks
        if len(marks) >= self._quorum:
            won = sorted(marks)[-self._quorum]
            if won > self._decided:
                # All of these rounds have the same nodes. Each of them lacked one reply until now,
                # so the other nodes had replied to all of them, and no further node had.
                nodes = sum(
                    [bit for bit, mark in zip(self._bits, marks, strict=True) if mark >= won]
                )
                receivers = self._receivers[self._decided : won]
                self._decided = won
                for receiver in receivers:
                    if receiver is not None:
                        receiver.deliver_quorum(nodes, connection.node_state.index, at)
        self._drop_answered()

    def _drop_answered(self) -> None:
        answered = min(self._marks)
        if answered:
            self._drop(answered)

    def _drop(self, count: int) -> None:
        """Drop the first rounds, which have all their replies."""
        decided = max(0, self._decided - count)
        marks = [mark - count for mark in self._marks]
        # No call and no loop from here on, so no signal handler runs: positions always fit the
        # rounds.
        self._first += count
        self._decided, self._marks = decided, marks
        del self._rounds[:count], self._receivers[:count], self._expected[: _SIZE * count]

    # --- unexpected replies, changes ---------------------------------------------------------

    def next_for(self, connection: SharedConnection) -> PendingRequest:
        """Return the connection's oldest unanswered round, spelled out, or raise IndexError."""
        index = self._marks[connection.shared_index]
        request = self._rounds[index]
        if self._receivers[index] is not None:
            self.fall_back(self._first + index)
        self._marks[connection.shared_index] = index + 1
        self._drop_answered()
        return request

    def fall_back(self, number: int) -> None:
        """Deliver the replies to this round one by one, beginning with those that have arrived.

        The latter decide nothing: else the round would be won.  If it has just been won, and its
        flow is still to get the quorum, that does not continue in here, where requests are moved.
        """
        index = number - self._first
        if index < 0 or (receiver := self._receivers[index]) is None:
            return
        self._receivers[index] = None
        self._expected[_SIZE * index : _SIZE * (index + 1)] = _NONE
        if receiver.over:
            return
        if index < self._decided:
            receiver.expect_quorum()
        round_ = self._rounds[index].round
        for connection, mark in zip(self.connections, self._marks, strict=True):
            if mark > index:
                at = connection.pipeline.replied_at
                receiver.deliver(replied((round_, connection.node_state.index, GRANTED, at)))

    def awaits(self, connection: SharedConnection, kind: type[Command]) -> bool:
        """Return whether the connection's oldest unanswered round is of this kind."""
        mark = self._marks[connection.shared_index]
        return mark < len(self._rounds) and type(self._rounds[mark].command) is kind

    def open_rounds(self, connection: SharedConnection) -> int:
        """Return how many rounds the connection has no reply to."""
        return len(self._rounds) - self._marks[connection.shared_index]

    def oldest_asked_at(self, connection: SharedConnection, at: Instant) -> Instant:
        """Return when the connection's oldest open round was sent, or `at`; safe in any thread."""
        try:
            return self._rounds[self._marks[connection.shared_index]].asked_at
        except IndexError:
            return at

    def has_pending_acquire(self, connection: SharedConnection, token: bytes) -> bool:
        """Return whether the connection's reply to this acquire is pending; safe in any thread."""
        commands = (
            request.command for request in self._rounds[self._marks[connection.shared_index] :]
        )
        return any(isinstance(c, ACQUIRES) and c.token == token for c in commands)

    def flush_to_private(self, connection: SharedConnection) -> None:
        """Move the connection's pending requests to its private queue, before one to it alone."""
        index, end = self._marks[connection.shared_index], len(self._rounds)
        for number in range(self._first + index, self._first + end):
            self.fall_back(number)
        # In this order, for `has_pending_acquire`: another thread finds a request in one of them.
        connection.pipeline.pending.extend(self._rounds[index:end])
        self._marks[connection.shared_index] = end
        self._drop_answered()  # also the rounds that all connections have in their own queues now

    def set_members(self, connections: Sequence[SharedConnection], *, is_complete: bool) -> None:
        """Replace the connections. The caller has sent everything that was unsent."""
        for connection in self.connections:
            self.flush_to_private(connection)
            connection.shared_index = -1
        self._drop(len(self._rounds))
        self.connections = connections
        self._bits = [1 << connection.node_state.index for connection in connections]
        self._marks = [0] * len(connections)
        self._decided = 0
        self.node_mask = sum(self._bits)
        for seat, connection in enumerate(connections):
            connection.shared_index = seat
        self.is_complete = is_complete
        self.outgoing.is_script_known = False
        self.refresh_scripts()

    def disband(self) -> None:
        """Move pending requests to each connection's queue and drop all rounds.

        Called after an interrupt in here. Only the positions are trusted: they advance before a
        reply is delivered.
        """
        for connection, mark in zip(self.connections, self._marks, strict=False):
            connection.pipeline.pending.extend(self._rounds[mark:])
            connection.shared_index = -1
        self.connections = ()
        self.node_mask = self._decided = 0
        self.is_complete = False
        # Receivers keep the numbers of their rounds, also one that was being added.
        self._first += len(self._rounds) + 1
        self.outgoing.take()
        self._rounds, self._receivers, self._expected, self._marks = [], [], bytearray(), []
        self.refresh_scripts()

    def refresh_scripts(self) -> None:
        """Record which scripts all nodes have."""
        kinds = [connection.pipeline.sent_scripts.all_kinds() for connection in self.connections]
        self.has_scripts_of = kinds[0].intersection(*kinds) if kinds else set()
