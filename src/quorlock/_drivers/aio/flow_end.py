"""The end of a running flow: with an outcome, with an error, or because its caller is gone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from quorlock._core.effects import FlowCancelled, Send
from quorlock._core.rounds import SentRound
from quorlock._core.time import FOR_EVER, PAST
from quorlock._drivers.aio.flow_state import DONE, RUNNING, FlowState
from quorlock._drivers.aio.loop_driver import LoopDriver, is_passed_on
from quorlock._drivers.node_state import CLOSED_MEANWHILE
from quorlock.errors import QuorlockError

if TYPE_CHECKING:
    import asyncio

    from quorlock._core.effects import Effect, Flow
    from quorlock._core.rounds import NodeReply
    from quorlock._core.time import Instant
    from quorlock._drivers.aio.abc import RunningFlow

T = TypeVar("T")
_NOT_SENT = SentRound(0, PAST, PAST)


class EndingFlow(Generic[T]):
    """A flow and its caller's future. `FlowTask` runs it."""

    __slots__ = (
        "_effect",
        "_flow",
        "_has_caller_waiting",
        "_has_slot",
        "_loop_driver",
        "_places",
        "_timer",
        "future",
        "inbox",
        "last_sent_at",
        "replies_until",
        "reply_deadline",
        "round",
        "shared_number",
        "state",
    )

    _effect: Any  # that it waits with, see `flow_state`

    def __init__(self, loop_driver: LoopDriver, flow: Flow[T]) -> None:
        self.state: FlowState = RUNNING
        self.round = 0
        self.last_sent_at: Instant = 0  # the last send that the flow knows of
        # The deadline of its nodes' replies, or of its wait for a slot.
        self.reply_deadline: Instant = FOR_EVER
        # The end of its wait for replies, as the flow has it; 0 in any other wait.
        self.replies_until: Instant = 0
        self.shared_number = -1  # of its last round in the shared pipeline
        self.inbox: tuple[NodeReply, ...] = ()
        self.future: asyncio.Future[T] = loop_driver.loop.create_future()
        self._loop_driver = loop_driver
        self._flow = flow
        self._has_caller_waiting = False  # it wants a lock or a reply; it is no mere release
        self._has_slot = False  # it may acquire now
        self._places: tuple[bytes, ...] = ()  # whose calls it gets
        self._timer: asyncio.TimerHandle | None = None  # of a wait that `Deadlines` does not end

    @property
    def over(self) -> bool:
        """Return whether it reads no more replies."""
        return self.state is DONE

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
        self._loop_driver.tasks.discard(self)
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

    def end(self) -> None:
        """End the flow, whose caller has the outcome: closing need not wait for it."""
        self._loop_driver.tasks.discard(self)
        self._flow.close()

    def run_detached(self, flow: Flow[None]) -> None:
        """Send the flow's commands without waiting for replies."""
        self.state = DONE
        with contextlib.suppress(StopIteration):
            self._finish_sends(flow, next(flow))

    def _finish_sends(self, flow: Flow[Any], effect: Effect) -> None:
        task = cast("RunningFlow", self)  # which `FlowTask` makes of it
        while type(effect) is Send:
            # If no byte of an acquire was sent, there is no key to release.  But it may have been
            # given a lease, whose release follows the round of another flow.
            is_needed = self.round or not self._has_caller_waiting or effect.behind is not None
            sent = self._loop_driver.send(effect, task) if is_needed else _NOT_SENT
            effect = flow.send(sent)  # to its end: it may have to leave a line
        flow.close()

    def _succeed(self, outcome: Any) -> None:
        self._finish()
        if not self.future.done():
            self.future.set_result(outcome)

    def _fail(self, error: BaseException) -> None:
        self._finish()
        with contextlib.suppress(StopIteration, FlowCancelled):  # ended already, as a rule
            self._finish_sends(self._flow, self._flow.throw(FlowCancelled()))
        if not self.future.done():
            self.future.set_exception(error)

    def _finish(self) -> None:
        self.state = DONE
        if self._has_slot:
            self._has_slot = False
            self._loop_driver.admission.leave()
        if self._timer is not None:
            self._stop_timer()
        if self._places:
            self._loop_driver.places.remove(self._places)
            self._places = ()

    def _leave_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._loop_driver.admission.leave()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
