"""One running flow in an event loop: a state, and one method for each event.

A flow advances in the callbacks that deliver its replies. There is one future for each flow, and
none for a node or a round. `flow_state` lists the states and their transitions, and `flow_end` has
what ends a flow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from quorlock._core.commands import ACQUIRES, Inspect, Release, ScriptedAcquire, ends_lease
from quorlock._core.effects import (
    Commit,
    Enlist,
    Receive,
    Send,
    SendBatch,
    Sleep,
    Timeout,
    Wait,
)
from quorlock._core.rounds import replied
from quorlock._core.tally import PENDING
from quorlock._core.time import FOR_EVER
from quorlock._core.votes import GRANTED
from quorlock._drivers.aio.flow_end import EndingFlow
from quorlock._drivers.aio.flow_state import (
    CONNECTING,
    QUEUED,
    RECEIVING,
    RUNNING,
    SLEEPING,
    WAITING,
    FlowState,
)
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.node_state import CLOSED, CROWDED
from quorlock._drivers.wait import is_stopped, next_look
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    from quorlock._core.effects import Effect
    from quorlock._core.request import StopEvent
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant

T = TypeVar("T")
Waiting: TypeAlias = "Send | SendBatch | Enlist"  # the effects that wait for connections


class FlowTask(EndingFlow[T]):
    """One running flow: its inbox, and its caller's future."""

    __slots__ = ()

    def begin(self) -> None:
        """Run the flow to its first wait."""
        self._loop_driver.tasks.add(self)
        try:
            self._run(None)
        except BaseException as error:
            self._loop_driver.interrupted(error)
            raise

    def deliver(self, reply: NodeReply) -> None:
        """Receive one reply from a connection."""
        if self.state is RECEIVING:
            tally = self._effect.tally
            if tally is None or tally.count(reply) is not PENDING:
                self.state = RUNNING
                self._run(reply)
        elif self.state is not WAITING:
            self.inbox += (reply,)
        elif (observer := self._effect.observer) is not None and observer.on_reply(reply):
            self._end_wait(reply)

    def expect_quorum(self) -> None:
        """Continue at `deliver_quorum`, which is about to come, and not at a reply before it."""
        if self.state is RECEIVING:
            self.state = RUNNING

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        """Receive a quorum from the shared pipeline: these nodes granted the flow's last round."""
        if self.state is RECEIVING and (tally := self._effect.tally) is not None:
            self.state = RUNNING
            tally.count_grants(self.round, nodes)
            self._run(replied((self.round, last, GRANTED, at)))
        elif self.state is RUNNING:  # `fall_back` has delivered the replies
            self._run(self._next_reply())

    def _run(self, value: Any) -> None:
        """Perform the flow's effects until it has to wait or ends."""
        try:
            while True:
                effect = self._flow.send(value)
                if isinstance(effect, Receive):
                    if not self.inbox:
                        self._wait_for_reply(effect)
                        return
                    value = self._next_reply()
                elif isinstance(effect, Send):
                    value = self._ask(effect)
                    if value is None:
                        return
                else:
                    value = self._perform(effect)
                    if value is None:
                        return
        except StopIteration as stop:
            self._succeed(stop.value)
        except QuorlockError as error:
            self._fail(error)

    def _next_reply(self) -> NodeReply:
        reply, *rest = self.inbox
        self.inbox = tuple(rest)
        return reply

    def _perform(self, effect: Effect) -> Any:
        """Perform a less frequent effect; return None if the flow waits for a callback, or ends."""
        if isinstance(effect, Commit):
            self._succeed(effect.granted)
        elif isinstance(effect, Sleep):
            self._leave_slot()
            self._begin_wait(SLEEPING, effect, *effect)
        elif isinstance(effect, Wait):
            return self._wait(effect)
        elif isinstance(effect, Enlist):
            return self._enlist(effect)
        elif isinstance(effect, SendBatch):
            return self._ask_all(effect)
        return None

    def _ask(self, effect: Send) -> SentRound | None:
        """Send a round; return None if it has to wait, and a callback will continue the flow."""
        loop_driver, kind = self._loop_driver, type(effect.command)
        # As `ends_lease`, without its call in every round.
        is_release = kind is Release or (kind is ScriptedAcquire and ends_lease(effect.command))
        if not is_release:
            if loop_driver.shutdown.begun:
                raise QuorlockError(CLOSED)
            self._has_caller_waiting = True
            if (kind in ACQUIRES or kind is Inspect) and not self._has_slot:
                self._has_slot = loop_driver.admission.try_enter()
                if not self._has_slot:
                    self._wait_for_slot(effect)
                    return None
        if not loop_driver.readiness.is_ready():
            self._connect(effect, effect.connect_until, effect.stop)
            return None
        if not is_release:
            loop_driver.node_states.raise_config_errors()
        return loop_driver.send(effect, self)

    def _ask_all(self, effect: SendBatch) -> tuple[SentRound, ...] | None:
        """Send a batch of renewal, which never queues behind acquires."""
        if self._loop_driver.shutdown.begun:
            raise QuorlockError(CLOSED)
        self._has_caller_waiting = True
        if self._loop_driver.readiness.is_ready():
            return self._loop_driver.send_all(effect, self)
        self._connect(effect, min([send.connect_until for send in effect.sends]))
        return None

    def _enlist(self, effect: Enlist) -> bytes | None:
        """Return a place in the queues; None if connections have to be made before."""
        loop_driver = self._loop_driver
        if loop_driver.shutdown.begun:
            raise QuorlockError(CLOSED)
        self._has_caller_waiting = True
        if loop_driver.readiness.is_ready():
            return self._take_place(effect)
        self._connect(effect, effect.queue_until, effect.stop)
        return None

    def _take_place(self, effect: Enlist) -> bytes:
        loop_driver = self._loop_driver
        loop_driver.places.remove(self._places)  # it has left those queues
        place = loop_driver.enlist(self, effect.key)
        self._places = (place,) if place else ()
        return place

    def _wait(self, effect: Wait) -> Any:
        """Return news, or a reply that the flow acts on, if there is one; else wait: None."""
        until, stop, member, observer = effect
        if self._loop_driver.shutdown.begun:
            raise QuorlockError(CLOSED)
        self._has_caller_waiting = True
        member.wake = self._on_wake  # before looking, as others may do it in any thread
        if member.news:
            return member.news.popleft()
        self._loop_driver.shared_pipeline.fall_back(self.shared_number)
        while self.inbox:  # replies that have come before
            reply = self._next_reply()
            if observer is not None and observer.on_reply(reply):
                return reply
        self._leave_slot()
        self._begin_wait(WAITING, effect, until, stop)
        return None

    def _on_wake(self) -> None:
        """Read the news soon: another flow has just added them, and is in the middle of a step."""
        loop_driver = self._loop_driver
        loop_driver.loop.call_soon(loop_driver.guarded(self._read))

    def _read(self) -> None:
        if self.state is WAITING and (news := self._effect.member.news):
            self._end_wait(news.popleft())

    def _begin_wait(
        self, state: FlowState, effect: Effect, until: Instant, stop: StopEvent | None = None
    ) -> None:
        """Wait for anything but replies to a round, at most until this instant."""
        self._stop_timer()
        self.state, self._effect = state, effect
        # The next wait for replies registers its own deadline.
        self.reply_deadline, self.replies_until = FOR_EVER, 0
        if until < FOR_EVER or stop is not None:
            self.set_timer(until, stop)

    def _end_wait(self, event: Any) -> None:
        self._stop_timer()
        self.state = RUNNING
        self._run(event)

    def _wait_for_slot(self, effect: Send) -> None:
        """Wait in the queue for slots, at most until the send's deadline."""
        loop_driver, until = self._loop_driver, effect.queue_until
        loop_driver.admission.queue.append(self)
        if effect.stop is not None:
            self._begin_wait(QUEUED, effect, until, effect.stop)
            return
        self._begin_wait(QUEUED, effect, FOR_EVER)
        if until < FOR_EVER:
            self.reply_deadline = until
            loop_driver.deadlines.check_at(until)  # one timer for all: there may be thousands

    def _connect(self, effect: Waiting, until: Instant, stop: StopEvent | None = None) -> None:
        """Send once: when connections are ready, none is expected, or at `until`."""
        self._begin_wait(CONNECTING, effect, until, stop)
        self._loop_driver.readiness.when_ready(partial(self._connected, effect))

    def _connected(self, effect: Waiting) -> None:
        if self.state is CONNECTING and self._effect is effect:
            self._send(effect)

    def _send(self, effect: Waiting) -> None:
        """Send after a wait, whether or not there are connections."""
        self._stop_timer()
        self.state = RUNNING
        loop_driver = self._loop_driver
        if isinstance(effect, SendBatch):
            self._run(loop_driver.send_all(effect, self))
            return
        try:
            if isinstance(effect, Enlist) or not ends_lease(effect.command):
                loop_driver.node_states.raise_config_errors()
        except QuorlockError as error:
            self._fail(error)
        else:
            self._run(
                self._take_place(effect)
                if isinstance(effect, Enlist)
                else loop_driver.send(effect, self)
            )

    def admitted(self) -> bool:
        """Take a slot and send the queued round; return false if it is no longer wanted."""
        if self.state is not QUEUED:
            return False
        effect = self._effect
        self._has_slot = True
        if self._loop_driver.readiness.is_ready():
            self._send(effect)
        else:
            self._connect(effect, FOR_EVER, effect.stop)
        return True

    def _wait_for_reply(self, wish: Receive) -> None:
        until, tally = wish
        self.state, self._effect = RECEIVING, wish
        if tally is None:
            self._loop_driver.shared_pipeline.fall_back(self.shared_number)
        if self.replies_until != until:
            self._stop_timer()
            self.replies_until = until
            self._loop_driver.deadlines.wait_until(until, self)

    def on_deadline(self, until: Instant) -> None:
        """End the flow's wait for a reply or for a slot, if it has reached the deadline."""
        if self.reply_deadline > until:
            return
        if self.state is RECEIVING:
            self._loop_driver.shared_pipeline.fall_back(self.shared_number)
            self.state = RUNNING
            self._run(Timeout(now()))
        elif self.state is QUEUED:
            self._skip_round()

    def set_timer(self, until: Instant, stop: StopEvent | None = None) -> None:
        """Continue at `until`, or soon after `stop` is set, by a timer for this flow alone."""
        self._stop_timer()
        loop_driver = self._loop_driver
        self._timer = loop_driver.loop.call_later(
            sleep_seconds(next_look(until, stop)), loop_driver.guarded(self._on_timer, until, stop)
        )

    def _on_timer(self, until: Instant, stop: StopEvent | None) -> None:
        self._timer = None
        at = now()
        if at < until and not is_stopped(stop):
            # To look at `stop` again, or because the loop's clock differs from ours, see `clock`.
            self.set_timer(until, stop)
        elif self.state is RECEIVING:
            self.reply_deadline = until
            self._loop_driver.deadlines.final_read_then_timeout([self], at)
        elif self.state is WAITING:
            self._end_wait(Timeout(at))
        elif self.state is CONNECTING:
            self._send(self._effect)
        elif self.state is QUEUED:
            self._skip_round()
        elif self.state is SLEEPING:
            self.state = RUNNING
            self._run(at)

    def _skip_round(self) -> None:
        """Continue the flow without a slot, and without a round."""
        self.state = RUNNING
        self._run(self._loop_driver.skip_round(self, CROWDED))
