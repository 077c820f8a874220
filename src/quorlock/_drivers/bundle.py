"""N connections, one to each node, in the hands of one thread at a time.

A flow takes a bundle when it first sends, and gives it back when it ends or sleeps (`pool`).
Connecting is the keepers' work: a bundle says what it wants and goes on without it.
"""

from __future__ import annotations

import contextlib
import select
from collections import deque
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import ACQUIRES, SPARED, Extend, Release
from quorlock._core.effects import Elapsed, Receipt, replied
from quorlock._core.guard import VOTES, kept_out
from quorlock._core.outcomes import ABSENT, Answer
from quorlock._core.quorum import PENDING
from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._drivers.clock import now
from quorlock._drivers.members import BACKLOG, Standing
from quorlock._wire.conversation import ANSWERS_OWED_MAX, Question
from quorlock._wire.packing import pack

if TYPE_CHECKING:
    from quorlock._core.effects import Receive, Replied, Send, SendAll
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.connection import Connection, Exchange
    from quorlock._drivers.keeper import Keeper
    from quorlock._drivers.waiting import Waiters
    from quorlock._wire.conversation import Hint

_POLL_IN = select.POLLIN
# How long a bundle may lie idle before we look whether its nodes have hung up meanwhile.
_STALE_AFTER = 1_000 * NS_PER_MS
# A question of ours on another bundle's or a keeper's connection is answered outside of our poll.
_FOREIGN_POLL = 1 * NS_PER_MS


class Bundle:
    """See the module."""

    def __init__(
        self,
        keepers: tuple[Keeper, ...],
        policy: Policy,
        changed: Waiters,
        on_hint: Hint | None = None,
    ) -> None:
        self.connections: list[Connection | None] = [None] * len(keepers)
        self._keepers = keepers
        self._policy = policy
        self._changed = changed
        self._on_hint = on_hint
        self._arrivals: deque[Connection] = deque()
        self._everywhere = (1 << len(keepers)) - 1  # what `Receipt.asked` is when all were asked
        self._by_fd: dict[int, Connection] = {}
        self._poll = select.poll()
        self._fresh = True
        self._foreign: list[Connection] = []  # others' connections that carry our questions
        self._awaits_keeper = False  # and what keepers do for us
        self._closed = False
        self._used_at = now()
        self.missing = True  # some node has no connection here
        self._guarded = False  # some node restarted lately, and must not vote yet

    # --- connections come and go -------------------------------------------------------------

    def arrive(self, connection: Connection) -> None:
        """A keeper brings a connection; called from its thread."""
        self._arrivals.append(connection)
        if self._closed:
            self._turn_away()
        self._changed.wake_all()

    def refresh(self, by: Instant = FOR_EVER) -> None:
        """Before sending: take in what arrived, drop what broke, wait where there is hope."""
        at = now()
        if at - self._used_at > _STALE_AFTER:
            was_missing = self.missing
            self._look(0)
            # Those that hung up while it lay idle are mostly there again at once: worth a short
            # while, as at first. A lease on a bare majority needs each of its nodes to release it.
            self._fresh |= self.missing and not was_missing
        self._used_at = at
        if self._arrivals or self.missing:
            self._take_in()
            if self.missing:
                self._await_quorum(at, by)
                self._fresh = False

    def _take_in(self) -> None:
        while self._arrivals:
            arrival = self._arrivals[0]  # taken out when it has its place: we may be interrupted
            index = arrival.member.index
            if self.connections[index] not in (None, arrival):
                self._drop(index)
            self.connections[index] = arrival
            self._guarded |= arrival.quarantine is not None
            if self._on_hint is not None:
                arrival.conversation.watch(self._on_hint)
            self._by_fd[arrival.fileno()] = arrival
            self._poll.register(arrival.fileno(), _POLL_IN)
            self._arrivals.popleft()
        self.missing = False
        for index, connection in enumerate(self.connections):
            if connection is None or connection.lost:
                self._drop(index)
                self._keepers[index].want(self)

    def _drop(self, index: int) -> None:
        self.missing = True
        connection = self.connections[index]
        if connection is not None:
            if connection.fileno() in self._by_fd:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(connection.fileno())
                self._by_fd.pop(connection.fileno(), None)
            connection.close()
            self.connections[index] = None

    def _await_quorum(self, began: Instant, by: Instant) -> None:
        """Wait while a quorum is not connected and may be; for the rest, once, a short while."""
        # A little longer than connecting may take, so as to learn why it failed.
        give_up = min(by, began + self._policy.connect_timeout + self._policy.node_timeout)
        grace: Instant | None = None
        while self._hopeful():
            if self._connected() >= self._policy.quorum:
                if not self._fresh:
                    return
                grace = grace or now() + self._policy.node_timeout
            left = min(grace or give_up, give_up) - now()
            if left <= 0:
                return
            self._changed.wait(lambda: self._arrivals or not self._hopeful(), left / 1e9)
            self._take_in()

    def _connected(self) -> int:
        return sum(connection is not None for connection in self.connections)

    def _hopeful(self) -> bool:
        """Some node is not connected, and nobody has failed to connect to it yet."""
        return not self._keepers[0].closing and any(
            connection is None and keeper.member.standing is not Standing.DOWN
            for connection, keeper in zip(self.connections, self._keepers, strict=True)
        )

    # --- a round -----------------------------------------------------------------------------

    def send(self, effect: Send, exchange: Exchange) -> Receipt:
        """Ask all nodes at once, waiting for none."""
        if self._foreign:
            self._foreign = []
        self._awaits_keeper = False
        command, behind, _ = effect
        data = pack(command)
        exchange.round = round_ = exchange.round + 1
        started = now()
        question = Question(command, exchange, round_, started)
        # Nearly always there is nothing to look into, and every connection just gets the bytes.
        is_spared = type(command) in SPARED
        is_plain = (
            type(command) is not Extend
            and (behind is None or (behind.path is self and behind.asked == self._everywhere))
            and not self._guarded
        )
        asked = index = 0
        for connection in self.connections:
            if (
                is_plain
                and connection is not None
                and (not is_spared or len(connection.questions) < ANSWERS_OWED_MAX)
                and connection.ask(data, question)
            ) or self._ask(index, data, question, behind):
                asked |= 1 << index
            index += 1  # noqa: SIM113 (enumerate makes a tuple for each)
        return Receipt(round_, started, now(), asked, self)

    def send_all(self, effect: SendAll, exchange: Exchange) -> tuple[Receipt, ...]:
        """Several rounds, in one packet to each node."""
        corked = [connection for connection in self.connections if connection is not None]
        try:
            for connection in corked:
                connection.corked = True
            receipts: list[Receipt] = []
            foreign: list[Connection] = []
            for send in effect.sends:
                receipts.append(self.send(send, exchange))
                foreign += self._foreign
            self._foreign = foreign
        finally:
            for connection in corked:
                connection.uncork()
        sent = now()
        return tuple([receipt._replace(sent=sent) for receipt in receipts])

    def _ask(self, index: int, data: bytes, question: Question, behind: Receipt | None) -> bool:
        """Ask one node; if it can't be asked, answer in its name."""
        refusal = self._try_ask(index, data, question, behind)
        if refusal is None:
            return True
        exchange: Any = question.asker
        exchange.mail.append(replied((question.round, index, refusal, question.asked_at)))
        return False

    def _try_ask(
        self, index: int, data: bytes, question: Question, behind: Receipt | None
    ) -> Answer | None:
        connection = self.connections[index]
        command = question.command
        member = self._keepers[index].member
        is_kept = type(command) is Extend or (type(command) in ACQUIRES and behind is not None)
        if is_kept and member.debts.owes(getattr(command, "token", b""), question.asked_at):
            return ABSENT  # what may be there of ours is about to be deleted
        if behind is not None:
            if not behind.asked >> index & 1:
                return ABSENT  # it never had our key
            if behind.path is not self:
                connection = self._behind(index, command, behind) or connection
        if connection is not None:
            if isinstance(command, VOTES) and (kept := self._kept_out(connection, question)):
                return kept
            if type(command) in SPARED and self._backlogged(connection, question.asked_at):
                return BACKLOG
            if connection.ask(data, question):
                # An answer that the loss of the connection gave is in the mail already.
                return None
        return None if self._left_to_keeper(index, question) else member.absence

    def _left_to_keeper(self, index: int, question: Question) -> bool:
        """A release that we can't send is owed; True: its asker hears what comes of it."""
        self.missing = True
        if type(question.command) is not Release or not self._keepers[index].owe(question):
            return False
        self._awaits_keeper = True
        return True

    def _kept_out(self, connection: Connection, question: Question) -> Answer | None:
        """The answer in the name of a node that must not vote yet."""
        kept = connection.quarantine
        if kept is None:
            return None
        answer = kept_out(kept, question.asked_at)
        if answer is None:
            connection.quarantine = None
            self._guarded = any(c is not None and c.quarantine for c in self.connections)
        return answer

    def _backlogged(self, connection: Connection, at: Instant) -> bool:
        conversation = connection.conversation
        if conversation.backlogged(at):
            connection.receive()  # unless it is only that nobody has looked
        return conversation.backlogged(at)

    def _behind(self, index: int, command: object, behind: Receipt) -> Connection | None:
        """The other bundle's connection on which the acquire is still unanswered (rule 3)."""
        token: bytes = getattr(command, "token", b"")
        for other in behind.paths:
            assert isinstance(other, Bundle)
            connection = other.connections[index]
            if (
                connection is not None
                and connection.questions
                and connection.conversation.awaits_acquire(token)
            ):
                if other is not self:
                    self._foreign.append(connection)
                return connection
        return None

    def receive(self, exchange: Exchange, wish: Receive) -> Replied | Elapsed:
        """The next letter for this flow that it has to see."""
        mail, (until, tally) = exchange.mail, wish
        is_last_look = False
        while True:
            while mail:
                reply = mail.popleft()
                if tally is None or tally.count(reply) is not PENDING:
                    return reply
            at = now()
            left = until - at
            if left <= 0:
                if is_last_look:
                    return Elapsed(at)
                # An answer that is there counts.  And if we come late (stopped, or without the
                # interpreter lock), nodes on this machine may have been kept from answering as
                # well: they get as much again, up to their whole time.
                left = min(-left, self._policy.node_timeout) // NS_PER_MS * NS_PER_MS
                until, is_last_look = at + left, True
            if self._foreign or self._awaits_keeper:
                left = min(left, _FOREIGN_POLL)
            # Rounded up: a poll that ends early would look, find nothing and poll again.
            self._look(-(-left // NS_PER_MS))

    def _look(self, timeout_ms: int) -> None:
        for fd, _ in self._poll.poll(timeout_ms):
            connection = self._by_fd[fd]
            connection.receive()
            if connection.lost:
                self._drop(connection.member.index)
        for connection in self._foreign:
            connection.receive()  # its owner may be asleep

    def listen(self, bell: int, timeout_ms: int) -> None:
        """Read what comes unasked; return when something does, or on that descriptor, or then."""
        self._poll.register(bell, _POLL_IN)
        try:
            self._poll.poll(timeout_ms)
        finally:
            self._poll.unregister(bell)
        self._look(0)

    # --- the end -----------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Some live node has not answered, or not been sent, everything."""
        for connection in self.connections:  # asked at every giving back: no generator, no call
            if (
                connection is not None
                and (connection.questions or connection.unsent)
                and not connection.lost
            ):
                return True
        return False

    def look_in(self) -> None:
        """Read what has come, for somebody who does not have it in hand."""
        for connection in self.connections:
            if connection is not None:
                connection.receive()

    def _drain(self, until: Instant) -> None:
        """Read what is still to come, so that closing cuts nothing off."""
        while self.owes and (left := until - now()) > 0:
            self._look(min(-(-left // NS_PER_MS), 5))
            for connection in self.connections:
                if connection is not None:
                    connection.flush()

    def close(self, until: Instant = 0) -> None:
        """Close all sockets, also those that are still to arrive; drain them until then."""
        self._drain(until)
        self._closed = True
        self._turn_away()
        for index in range(len(self.connections)):
            self._drop(index)

    def _turn_away(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._arrivals.popleft().close()
