"""One running flow in an event loop: a state, and one method for each event.

A flow advances in the callbacks that deliver its replies. There is one future for each flow, and
none for a node or a round. `flow_state` lists the states and their transitions.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorlock._core.commands import ACQUIRES, Release
from quorlock._core.effects import Commit, FlowCancelled, Receive, Send, SendBatch, Sleep, Timeout
from quorlock._core.rounds import replied
from quorlock._core.tally import PENDING
from quorlock._core.time import FOR_EVER
from quorlock._core.votes import GRANTED
from quorlock._drivers.aio.flow_state import (
    CONNECTING,
    DONE,
    QUEUED,
    RECEIVING,
    RUNNING,
    SLEEPING,
    FlowState,
)
from quorlock._drivers.aio.loop_driver import LoopDriver, is_passed_on
from quorlock._drivers.clock import now, sleep_seconds
from quorlock._drivers.node_state import CLOSED, CLOSED_MEANWHILE, CROWDED
from quorlock._drivers.wait import is_stopped, next_look
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    import asyncio

    from quorlock._core.effects import Effect, Flow, StopEvent
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant

T = TypeVar("T")


class FlowTask(Generic[T]):
    """One running flow: its inbox, and its caller's future."""

    __slots__ = (
        "_flow",
        "_has_caller_waiting",
        "_has_slot",
        "_loop_driver",
        "_stop",
        "_tally",
        "_timer",
        "_timer_until",
        "_unsent",
        "future",
        "inbox",
        "last_sent_at",
        "reply_deadline",
        "round",
        "shared_number",
        "state",
    )

    _stop: StopEvent | None  # ends the wait of the timer; not set before the first timer

    def __init__(self, loop_driver: LoopDriver, flow: Flow[T]) -> None:
        self.state = RUNNING
        self.round = 0
        self.last_sent_at: Instant = 0  # the last send that the flow knows of
        self.reply_deadline: Instant = FOR_EVER  # the deadline of its nodes' replies
        self.shared_number = -1  # of its last round in the shared pipeline
        self.inbox: list[NodeReply] = []
        self.future: asyncio.Future[T] = loop_driver.loop.create_future()
        self._loop_driver = loop_driver
        self._flow = flow
        self._has_caller_waiting = False  # it wants a lock or a reply; it is no mere release
        self._has_slot = False  # it may acquire now
        self._unsent: Any = None  # QUEUED, CONNECTING: the Send or SendBatch that waits
        self._tally: Any = None  # a Tally, or (renewal) several: counts replies that do not decide
        self._timer: asyncio.TimerHandle | None = None
        self._timer_until: Instant = 0

    @property
    def over(self) -> bool:
        """Return whether it reads no more replies."""
        return self.state is DONE

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
        if self.state is not RECEIVING:
            self.inbox.append(reply)
        elif self._tally is None or self._tally.count(reply) is not PENDING:
            self.state = RUNNING
            self._run(reply)

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        """Receive a quorum from the shared pipeline: these nodes granted the flow's last round."""
        tally = self._tally
        if self.state is RECEIVING and tally is not None:
            self.state = RUNNING
            tally.count_grants(self.round, nodes)
            self._run(replied((self.round, last, GRANTED, at)))

    def fail_closed(self) -> None:
        """End a waiting acquire with an error as the loop driver ends; a release continues."""
        if self._has_caller_waiting and not self.future.done():
            self.cancel()
            self.future.set_exception(QuorlockError(CLOSED_MEANWHILE))

    def cancel(self) -> None:
        """Cancel the flow, so that it releases the lock: the caller is gone, or gets an error.

        This holds also if there is an outcome already: the caller did not get it.
        """
        self._finish()
        self.detach()
        with contextlib.suppress(StopIteration, FlowCancelled):
            self._finish_sends(self._flow, self._flow.throw(FlowCancelled()))

    def interrupt(self, error: BaseException) -> None:
        """Cancel the flow, and end it with an exception that was raised in our own code.

        If there is an outcome, nothing changes: its caller is about to have the lease.
        """
        if self.future.done():
            return
        self.cancel()
        if is_passed_on(error):
            self.future.set_exception(error)
            self.future.exception()  # marked as retrieved: its caller may be gone
        else:
            self.future.cancel()

    def detach(self) -> None:
        """Deregister the flow, whose caller has the outcome: closing need not wait for it."""
        self._loop_driver.tasks.discard(self)

    def run_detached(self, flow: Flow[None]) -> None:
        """Send the flow's commands without waiting for replies."""
        self.state = DONE
        with contextlib.suppress(StopIteration):
            self._finish_sends(flow, next(flow))

    def _finish_sends(self, flow: Flow[Any], effect: Effect) -> None:
        # If no byte of an acquire was sent, there is no key to release.
        while type(effect) is Send and (self.round or not self._has_caller_waiting):
            effect = flow.send(self._loop_driver.send(effect, self))
        flow.close()

    def _run(self, value: Any) -> None:
        """Perform the flow's effects until it has to wait or ends."""
        try:
            while True:
                effect = self._flow.send(value)
                if isinstance(effect, Receive):
                    if not self.inbox:
                        self._wait_for_reply(effect)
                        return
                    value = self.inbox.pop(0)
                elif isinstance(effect, Send):
                    value = self._ask(effect)
                    if value is None:
                        return
                elif not isinstance(effect, SendBatch) or not (value := self._ask_all(effect)):
                    self._suspend(effect)
                    return
        except StopIteration as stop:
            self._succeed(stop.value)
        except QuorlockError as error:
            self._fail(error)

    def _suspend(self, effect: Effect) -> None:
        """Handle an effect after which the flow waits for a callback, or ends."""
        if isinstance(effect, Sleep):
            self._leave_slot()
            self.state = SLEEPING
            self.set_timer(*effect)
        elif isinstance(effect, Commit):
            self._succeed(effect.granted)

    def _ask(self, effect: Send) -> SentRound | None:
        """Send a round; return None if it has to wait, and a callback will continue the flow."""
        loop_driver, kind = self._loop_driver, type(effect.command)
        if kind is not Release:
            if loop_driver.ending:
                raise QuorlockError(CLOSED)
            self._has_caller_waiting = True
            if kind in ACQUIRES and not self._has_slot:
                self._has_slot = loop_driver.admission.try_enter()
                if not self._has_slot:
                    loop_driver.admission.queue.append(self)
                    self._hold(QUEUED, effect, effect.queue_until, effect.stop)
                    return None
        if not loop_driver.readiness.is_ready():
            self._connect(effect, effect.connect_until, effect.stop)
            return None
        if kind is not Release:
            loop_driver.node_states.raise_config_errors()
        return loop_driver.send(effect, self)

    def _ask_all(self, effect: SendBatch) -> tuple[SentRound, ...] | None:
        """Send a batch of renewal, which never queues behind acquires."""
        if self._loop_driver.ending:
            raise QuorlockError(CLOSED)
        self._has_caller_waiting = True
        if self._loop_driver.readiness.is_ready():
            return self._loop_driver.send_all(effect, self)
        self._connect(effect, min([send.connect_until for send in effect.sends]))
        return None

    def _hold(
        self,
        state: FlowState,
        effect: Send | SendBatch,
        until: Instant,
        stop: StopEvent | None = None,
    ) -> None:
        """Wait with a send, at most until this instant."""
        self._stop_timer()
        self.state, self._unsent = state, effect
        if until < FOR_EVER or stop is not None:
            self.set_timer(until, stop)

    def _connect(
        self, effect: Send | SendBatch, until: Instant, stop: StopEvent | None = None
    ) -> None:
        """Send once: when connections are ready, none is expected, or at `until`."""
        self._hold(CONNECTING, effect, until, stop)
        self._loop_driver.readiness.when_ready(partial(self._connected, effect))

    def _connected(self, effect: Send | SendBatch) -> None:
        if self.state is CONNECTING and self._unsent is effect:
            self._send(effect)

    def _send(self, effect: Send | SendBatch) -> None:
        """Send after a wait, whether or not there are connections."""
        self._stop_timer()
        self.state = RUNNING
        loop_driver = self._loop_driver
        if isinstance(effect, SendBatch):
            self._run(loop_driver.send_all(effect, self))
            return
        try:
            if type(effect.command) is not Release:
                loop_driver.node_states.raise_config_errors()
        except QuorlockError as error:
            self._fail(error)
        else:
            self._run(loop_driver.send(effect, self))

    def admitted(self) -> bool:
        """Take a slot and send the queued acquire; return false if it is no longer wanted."""
        if self.state is not QUEUED:
            return False
        effect = self._unsent
        self._has_slot = True
        if self._loop_driver.readiness.is_ready():
            self._send(effect)
        else:
            self._connect(effect, FOR_EVER, effect.stop)
        return True

    def _leave_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._loop_driver.admission.leave()

    def _succeed(self, outcome: Any) -> None:
        self._finish()
        if not self.future.done():
            self.future.set_result(outcome)

    def _fail(self, error: BaseException) -> None:
        self._finish()
        self._flow.close()
        if not self.future.done():
            self.future.set_exception(error)

    def _finish(self) -> None:
        self.state = DONE
        self._leave_slot()
        if self._timer is not None:
            self._stop_timer()

    def _wait_for_reply(self, wish: Receive) -> None:
        until, self._tally = wish
        self.state = RECEIVING
        if self._tally is None:
            self._loop_driver.shared_pipeline.fall_back(self.shared_number)
        if self._timer_until != until:
            self._timer_until = until
            self._loop_driver.deadlines.wait_until(until, self)

    def on_deadline(self, until: Instant) -> None:
        """Return `Timeout` to the flow if its wait for a reply has reached the deadline."""
        if self.state is RECEIVING and self.reply_deadline <= until:
            self._loop_driver.shared_pipeline.fall_back(self.shared_number)
            self.state = RUNNING
            self._run(Timeout(now()))

    def set_timer(self, until: Instant, stop: StopEvent | None = None) -> None:
        """Continue at `until`, or soon after `stop` is set, by a timer for this flow alone."""
        self._stop_timer()
        self._timer_until, self._stop = until, stop
        loop_driver = self._loop_driver
        self._timer = loop_driver.loop.call_later(
            sleep_seconds(next_look(until, stop)), loop_driver.guarded, self._on_timer
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        at = now()
        if at < self._timer_until and not is_stopped(self._stop):
            # To look at `stop` again, or because the loop's clock differs from ours, see `clock`.
            self.set_timer(self._timer_until, self._stop)
        elif self.state is RECEIVING:
            self.reply_deadline = self._timer_until
            self._loop_driver.deadlines.final_read_then_timeout([self], at)
        elif self.state is CONNECTING:
            self._send(self._unsent)
        elif self.state is QUEUED:
            self.state = RUNNING
            self._run(self._loop_driver.skip_round(self, CROWDED))
        elif self.state is SLEEPING:
            self.state = RUNNING
            self._run(at)
