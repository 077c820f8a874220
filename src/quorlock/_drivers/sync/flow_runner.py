"""One running flow of the blocking driver: it performs the flow's effects in the calling thread."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import ACQUIRES, Acquire, Release, ends_lease, may_be_submitted
from quorlock._core.effects import (
    Commit,
    Enlist,
    FlowCancelled,
    Receive,
    Send,
    SendBatch,
    Sleep,
    Timeout,
    Wait,
)
from quorlock._core.rounds import NodeReply, SentRound
from quorlock._core.tally import PENDING
from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._core.votes import NOT_SET
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED, CLOSED_MEANWHILE, CROWDED
from quorlock._drivers.sync.connection import Inbox
from quorlock._drivers.sync.pool import LOOK_AGAIN, Borrower
from quorlock._drivers.wait import OneShotEvent, Wakeup, is_stopped, next_look
from quorlock._protocol.replies import PLAIN_GRANTS
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Effect, Flow, ReplyObserver
    from quorlock._core.member import Member, News
    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer
    from quorlock._drivers.node_states import NodeStates
    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock._drivers.sync.pool import ConnectionPool
    from quorlock._drivers.sync.tracking import TrackedConnections

T = TypeVar("T")

# This many flows wait in the queues of the nodes at most: each keeps a connection set. The others
# poll. Threads that share a set took twice the CPU, and more sets use up the descriptors: see
# docs/contributing/decisions/0037-connections-of-waiting-threads.md.
ENLISTED_MAX = 8
# A leader that waits for the interpreter lock, which it needs again after every system call, sends
# and reads late. A follower gives it so many times `node_timeout`, and looks at this interval.
_LEADER_LATE_MAX = 20
_READ_SOON = 2 * NS_PER_MS


class WaitingFlows:
    """The flows of one driver that wait.

    Attributes:
        closed: The driver is closed.
        enlisted: The flows with a place in the queues of the nodes.
    """

    def __init__(self) -> None:
        self.closed = OneShotEvent()
        self.enlisted: dict[object, None] = {}
        self._wakes: dict[object, Callable[[], None]] = {}

    def add(self, flow: object, wake: Callable[[], None]) -> None:
        """Add a flow that waits; `wake` is safe from any thread."""
        self._wakes[flow] = wake

    def remove(self, flow: object) -> None:
        """Remove a flow that waits no longer."""
        self._wakes.pop(flow, None)

    def close(self) -> None:
        """End all waits: the driver is closed."""
        self.closed.set()
        for wake in list(self._wakes.copy().values()):
            wake()


class _Following:
    """The wait of a flow while another thread, the leader, sends and receives for it (see `pool`).

    pool: The pool of the leader's connection set.
    sent_at: When the leader had sent the round; FOR_EVER before that.
    """

    __slots__ = ("_arrived", "_awaited", "_inbox", "_round", "_wakeup", "pool", "sent_at")

    def __init__(self, pool: ConnectionPool, inbox: deque[NodeReply]) -> None:
        self.pool = pool
        self._inbox = inbox
        self._wakeup = Wakeup()
        self._round = self._arrived = self._awaited = 0
        self.sent_at: Instant = PAST

    def begin(self, round_: int, awaited: int) -> None:
        """Have the thread called when so many nodes have replied to this round."""
        self._round, self._arrived, self._awaited = round_, 0, awaited
        self.sent_at = FOR_EVER

    def on_sent(self, round_: int, at: Instant) -> None:
        """Note that the leader has sent this round: the nodes' time to reply begins."""
        if round_ == self._round:
            self.sent_at = at

    def deliver(self, reply: NodeReply) -> None:
        """Add a reply, and call the thread if it waits for no more; called by the leader."""
        self._inbox.append(reply)
        if reply.round == self._round:
            self._arrived += 1
            if self._arrived == self._awaited:
                self._wakeup.wake()

    def call(self) -> None:
        """Wake the thread; safe from any thread."""
        self._wakeup.wake()

    def wait(self, until: Instant, seen: int = 0) -> None:
        """Wait for a call, which one more reply makes; return at `until`, or earlier.

        seen: so many replies are in the inbox, and do not suffice.
        """
        at = now()
        self._awaited = max(self._awaited, self._arrived + 1)
        if len(self._inbox) <= seen:  # read after that: a reply before it makes no call
            self._wakeup.wait(min(until, at + LOOK_AGAIN))
            if now() >= at + LOOK_AGAIN:
                self.pool.recover_for_all()


class FlowRunner(Inbox, Borrower, Generic[T]):
    """One running flow: its inbox, and the connection set that it has borrowed."""

    __slots__ = (
        "_connection_set",
        "_flow",
        "_following",
        "_node_states",
        "_place",
        "_pool",
        "_waiting_flows",
        "has_won",
        "is_urgent",
        "shares",
        "thread",
    )

    def __init__(
        self,
        pool: ConnectionPool | TrackedConnections,
        node_states: NodeStates,
        waiting_flows: WaitingFlows,
        flow: Flow[T],
    ) -> None:
        self._pool = pool
        self._node_states = node_states
        self._waiting_flows = waiting_flows
        self._connection_set: ConnectionSet | None = None
        self._following: _Following | None = None
        self._place = b""  # in the queues of the nodes, while it has one
        self._flow = flow
        self.thread = threading.get_ident()
        self.shares = False  # as the command allows that a set was borrowed for
        self.has_won = False
        self.is_urgent = False
        self.inbox = deque()  # as `Inbox` begins, without another call
        self.deliver = self.inbox.append
        self.over = False
        self.round = 0

    def run(self) -> T:
        """Perform the flow's effects until it has an outcome."""
        return self._run_from(None)

    def _run_from(self, effect: Effect | None) -> T:
        """Perform this effect and the flow's next ones; None: the flow has not begun."""
        step = self._flow.send
        value: Any
        try:
            effect = effect or step(None)
            while True:
                if isinstance(effect, Receive):
                    connection_set = self._connection_set
                    if connection_set is not None and self._following is None:
                        value = connection_set.receive(self, effect)
                    else:
                        value = self._receive_from_others(connection_set, effect)
                elif isinstance(effect, Send):
                    value = self._send(effect)
                elif isinstance(effect, Commit):
                    self._on_won()
                    return effect.granted  # type: ignore[return-value] # T is Granted then
                elif isinstance(effect, Wait):
                    value = self._wait(*effect)
                else:
                    value = self._perform(effect)
                effect = step(value)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome

    def _on_won(self) -> None:
        if self._waiting_flows.closed.up:
            raise QuorlockError(CLOSED_MEANWHILE)
        self.has_won = True

    def end(self) -> None:
        """End a flow whose outcome the caller has."""
        self._flow.close()

    def _perform(self, effect: Sleep | Enlist | SendBatch) -> object:
        if isinstance(effect, Sleep):
            return self._sleep(*effect)
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        return self._send_all(effect)

    def cancel(self) -> None:
        """Cancel the flow, so that it releases the lock, and return its connection set.

        A set whose owner was interrupted inside is discarded. The releases that the flow would send
        over it become pending releases on every node of the round. The place in the queues is
        removed over another set: nodes that have called reserve the lock for it.
        """
        self.over = True
        connection_set = self._connection_set
        if connection_set is not None and connection_set.is_busy and self._following is None:
            connection_set.discard()
        try:
            with contextlib.suppress(StopIteration, FlowCancelled):
                self._finish_sends(self._cancel_flow())
        finally:
            self._leave_queues()
            self._waiting_flows.remove(self)
            if self._following is not None:
                self.return_connections()
            self._connection_set = None
            self._pool.give_back_all(self)

    def _cancel_flow(self) -> Effect:
        """Cancel the flow, and return what it still sends."""
        return self._flow.throw(FlowCancelled())

    def recover(self, pool: ConnectionPool) -> None:
        """Cancel the flow."""
        del pool
        self.cancel()

    def _finish_sends(self, effect: Effect) -> None:
        flow = self._flow
        while type(effect) is Send:
            # If no byte of an acquire was sent, there is no key to release. But it may have been
            # given a lease, whose release follows the round of another flow.
            is_needed = self.round or self.is_urgent or effect.behind is not None
            connection_set = (self._connection_set or self._borrow(effect)) if is_needed else None
            if connection_set is not None and connection_set.closed and _only_leaves(effect):
                connection_set = self._replace(effect)
            # To its end in any case: it may have to leave a line.
            if connection_set is None:
                effect = flow.send(self._skip_round(NOT_SET))
            elif (following := self._following) is None or self._try_to_lead(connection_set):
                effect = flow.send(connection_set.send(effect, self))
            else:
                effect = flow.send(self._submit(connection_set, effect, following))
        flow.close()

    def _replace(self, effect: Send) -> ConnectionSet | None:
        """Return the discarded set, and borrow one that is open."""
        self.return_connections()
        borrowed = self._borrow(effect)
        if borrowed is not None and self._try_to_lead(borrowed):
            borrowed.prepare(now() + self._node_states.policy.node_timeout)
        return borrowed

    def _send(self, effect: Send) -> SentRound:
        if self._waiting_flows.closed.up and (self._pool.closing or not ends_lease(effect.command)):
            raise QuorlockError(CLOSED)
        connection_set = self._connection_set or self._borrow(effect)
        if connection_set is None:
            return self._skip_round(NOT_SET if effect.behind else CROWDED)
        following = self._following
        if following is not None and not self._try_to_lead(connection_set):
            if may_be_submitted(effect.command):
                return self._submit(connection_set, effect, following)
            self.return_connections()
            return self._send(effect)
        connection_set.prepare(effect.connect_until, effect.stop)
        if connection_set.membership.is_incomplete and not ends_lease(effect.command):
            self._node_states.raise_config_errors()
        return connection_set.send(effect, self)

    # --- one connection set for many threads ---------------------------------------------------

    def follow(self, pool: ConnectionPool) -> None:
        """Leave rounds for the borrower of a set from now on."""
        following = _Following(pool, self.inbox)
        self.deliver = following.deliver
        self._following = following

    def on_sent(self, round_: int, at: Instant) -> None:
        """Note that this round was sent; called by the leader."""
        following = self._following
        if following is not None:
            following.on_sent(round_, at)

    def call(self) -> None:
        """Wake the thread, which follows: it may lead now."""
        following = self._following
        if following is not None:  # else it is about to follow, and then tries to lead
            following.call()

    def _try_to_lead(self, connection_set: ConnectionSet) -> bool:
        """Take the set if this thread follows and it is free; return whether this thread has it."""
        following = self._following
        if following is not None and following.pool.lead(self, connection_set):
            self._following = None
            self.deliver = self.inbox.append
        return self._following is None

    def _submit(
        self, connection_set: ConnectionSet, effect: Send, following: _Following
    ) -> SentRound:
        policy = self._node_states.policy
        # Fewer replies can neither win nor refuse a round.
        following.begin(self.round + 1, min(policy.quorum, policy.n - policy.quorum + 1))
        if connection_set.membership.is_incomplete and not ends_lease(effect.command):
            self._node_states.raise_config_errors()
        return connection_set.submit(effect, self)

    def _receive_from_others(
        self, connection_set: ConnectionSet | None, effect: Receive
    ) -> NodeReply | Timeout:
        """Return the next reply that the flow has to see, as `ConnectionSet.receive` does.

        Sleeps until the leader has read replies that may decide the round, or leads itself. There
        is no set if nothing was sent: then all replies are there.
        """
        if connection_set is None:
            return self.inbox.popleft()
        replies, (until, tally) = self.inbox, effect
        node_timeout = self._node_states.policy.node_timeout
        last: Instant | None = None
        while True:
            while replies:
                reply = replies.popleft()
                if tally is None or tally.count(reply) is not PENDING:
                    return reply
            following = self._following
            if following is None or self._try_to_lead(connection_set):
                return connection_set.receive(self, effect)
            at = now()
            if at >= until and last is None:
                # As in `ConnectionSet.receive`: the deadline moves by the length of a stall.
                until = at + min(at - until, node_timeout)
                last = until + _LEADER_LATE_MAX * node_timeout
            if last is None or at < until:
                following.wait(until)
                continue
            due = max(until, following.sent_at + node_timeout)
            if at < last and connection_set.read_at < due and connection_set.takes_rounds:
                # The leader waits for the interpreter lock: a reply that is there may be unread.
                following.wait(min(last, at + _READ_SOON))
            else:
                following.pool.recover_for_all()
                return Timeout(at)

    def _send_all(self, effect: SendBatch) -> tuple[SentRound, ...]:
        """Send a batch of renewal, which never queues behind acquires."""
        if self._waiting_flows.closed.up:
            raise QuorlockError(CLOSED)
        self.is_urgent = True
        connection_set = self._connection_set = self._connection_set or self._pool.borrow(self)
        assert connection_set is not None, "who is urgent gets one"
        connection_set.prepare(min([send.connect_until for send in effect.sends]))
        return connection_set.send_all(effect, self)

    def _borrow(self, effect: Send) -> ConnectionSet | None:
        """Borrow a connection set; None if nothing can or should be sent."""
        behind, path = effect.behind, None
        if behind is not None:
            if not behind.nodes:
                return None
            path = behind.path
        command = effect.command
        self.shares = type(command) in PLAIN_GRANTS or may_be_submitted(command)
        self.is_urgent = type(command) is not Acquire and (
            type(command) not in ACQUIRES or ends_lease(command)
        )
        return self._borrow_by(effect.queue_until, effect.stop, path)

    def _borrow_by(
        self, until: Instant, stop: StopEvent | None, path: object
    ) -> ConnectionSet | None:
        self._connection_set = self._pool.borrow(self, until, path, stop)
        if self._waiting_flows.closed.up and not self.is_urgent:
            raise QuorlockError(CLOSED_MEANWHILE)  # closed while it queued
        return self._connection_set

    def _skip_round(self, answer: Answer) -> SentRound:
        self.round += 1
        at = now()
        for node_state in self._node_states.all:
            self.inbox.append(NodeReply(self.round, node_state.index, answer, at))
        return SentRound(self.round, at, at)

    def return_connections(self) -> None:
        """Return the borrowed connection set, if there is one."""
        if self._place:
            self._leave_queues()
        connection_set, self._connection_set = self._connection_set, None
        if connection_set is None:
            return
        if self._following is None:
            self._pool.give_back(connection_set)
        else:
            pool, self._following = self._following.pool, None
            self.deliver = self.inbox.append
            pool.leave(self, connection_set)

    def _sleep(self, until: Instant, stop: StopEvent | None) -> Instant:
        self.return_connections()
        while now() < until and not is_stopped(stop):
            if self._waiting_flows.closed.wait(next_look(until, stop)):
                raise QuorlockError(CLOSED_MEANWHILE)
        return now()

    # --- waiting -----------------------------------------------------------------------------

    def _enlist(self, effect: Enlist) -> bytes:
        if self._waiting_flows.closed.up:
            raise QuorlockError(CLOSED)
        if self._place:
            self._leave_queues()
        if len(self._waiting_flows.enlisted) >= ENLISTED_MAX:
            return b""
        if self._following is not None:
            self.return_connections()
        self.shares = False  # it keeps its set for long
        connection_set = self._connection_set
        if connection_set is None:
            self.is_urgent = False
            connection_set = self._borrow_by(effect.queue_until, effect.stop, None)
        if connection_set is None:
            return b""
        connection_set.prepare(stop=effect.stop)
        if connection_set.membership.is_incomplete:
            self._node_states.raise_config_errors()
        self._waiting_flows.enlisted[self] = None
        self._place = connection_set.enlist(self, effect.key)
        if self._place:
            self.is_urgent = True
        else:
            self._leave_queues()
        return self._place

    def _leave_queues(self) -> None:
        """Forget the place: calls for it are answered without this flow from now on."""
        if self._place and self._connection_set is not None:
            self._connection_set.remove(self._place)
        self._place = b""
        self._waiting_flows.enlisted.pop(self, None)

    def _wait(
        self, until: Instant, stop: StopEvent | None, member: Member, observer: ReplyObserver | None
    ) -> News | NodeReply | Timeout:
        """Wait for news, replies or calls; without a place, also without a connection set."""
        if not self._place:
            self.return_connections()
        wakeup = self._connection_set or Wakeup()
        member.wake = wakeup.wake
        self._waiting_flows.add(self, wakeup.wake)
        try:
            is_last_look = False
            while True:
                if member.news:
                    return member.news.popleft()
                while self.inbox:
                    reply = self.inbox.popleft()
                    if observer is not None and observer.on_reply(reply):
                        return reply
                if self._waiting_flows.closed.up:
                    raise QuorlockError(CLOSED_MEANWHILE)
                at = now()
                if is_last_look:
                    return Timeout(at)
                # What has come by then counts: so it looks once more at the end.
                is_last_look = at >= until or is_stopped(stop)
                wakeup.wait(at if is_last_look else next_look(until, stop))
        finally:
            self._waiting_flows.remove(self)


def _only_leaves(effect: Send) -> bool:
    """Return whether a release has no token: it follows no acquire, and removes a place."""
    return type(effect.command) is Release and not effect.command.token
