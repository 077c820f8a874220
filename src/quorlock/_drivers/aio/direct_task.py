"""A call whose first round may decide it: it runs without a flow until one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from quorlock._core.commands import Release
from quorlock._core.time import FOR_EVER
from quorlock._core.usual import NO_FLOW
from quorlock._drivers.aio.flow_end import EndingFlow
from quorlock._drivers.aio.flow_state import DONE, RECEIVING, RUNNING
from quorlock._drivers.aio.flow_task import FlowTask
from quorlock._drivers.node_state import CROWDED

if TYPE_CHECKING:
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant
    from quorlock._core.usual import UsualCase
    from quorlock._drivers.aio.flow_task import Waiting
    from quorlock._drivers.aio.loop_driver import LoopDriver

T = TypeVar("T")


class DirectTask(FlowTask[T]):
    """A call that has no flow as long as everything is as usual.

    Its round goes to all nodes, or to those that may be asked, and a quorum of plain grants decides
    it.  At any other event the flow is made, goes to its wait for replies to that round, and takes
    the event.
    """

    __slots__ = ("_sent_round", "_usual")

    def __init__(self, loop_driver: LoopDriver, usual: UsualCase[T]) -> None:
        # `super` takes 1 % of a cycle.
        EndingFlow.__init__(self, loop_driver, NO_FLOW)  # pyright: ignore[reportUnknownMemberType]
        # None once the flow has begun.  Until then the task itself releases when it is cancelled;
        # after an interrupt in between, both do.
        self._usual: UsualCase[T] | None = usual
        self._sent_round: SentRound | None = None

    def begin(self) -> None:
        loop_driver, usual = self._loop_driver, self._usual
        loop_driver.tasks.add(self)
        try:
            assert usual is not None
            if type(usual.command) is not Release:
                if loop_driver.shutdown.begun:
                    self._run_flow()
                    return
                self._has_caller_waiting = True
                self._has_slot = loop_driver.admission.try_enter()
                if not self._has_slot:
                    self._wait_for_slot(usual.send)
                    return
            self._send_round(usual)
        except BaseException as error:
            loop_driver.interrupted(error)
            raise

    def _send_round(self, usual: UsualCase[T]) -> None:
        """Send the round if a quorum gets it in the usual way; else begin the flow.

        The replies in the name of nodes that were not asked stay in the inbox, for the outcome or
        the flow.
        """
        loop_driver = self._loop_driver
        self._sent_round = sent_round = loop_driver.send_first(usual, self)
        if sent_round is None:
            if not (loop_driver.shared_pipeline.is_complete or self._may_leave_out_some(usual)):
                self._run_flow()
                return
            self._sent_round = sent_round = loop_driver.send(usual.send, self)
            if self.inbox and self.shared_number < 0:
                self._run_flow()
                return
        self.state = RECEIVING
        deadlines = loop_driver.deadlines
        if loop_driver.shared_pipeline.outgoing.rounds:
            deadlines.unsent.append(self)
        else:
            self.reply_deadline = until = sent_round.sent_at + deadlines.node_timeout
            deadlines.check_at(until)

    def _may_leave_out_some(self, usual: UsualCase[T]) -> bool:
        """Return whether a flow would send the round now, to a quorum in the usual way."""
        loop_driver = self._loop_driver
        if not (loop_driver.shared_pipeline.has_quorum and loop_driver.readiness.is_ready()):
            return False
        return type(usual.command) is Release or not loop_driver.node_states.config_error

    def _send(self, effect: Waiting) -> None:
        if self._usual is None:
            super()._send(effect)
        else:
            self.state, self.reply_deadline = RUNNING, FOR_EVER
            self._send_round(self._usual)

    def _run_flow(self) -> None:
        """Make the flow, and run it to its wait for replies to the round, or from its beginning."""
        if self._usual is not None:
            self._flow = self._usual.flow(self._sent_round)
            if self.state is RECEIVING and self._sent_round is not None:
                sent_at = self._sent_round.sent_at
                self.replies_until = sent_at + self._loop_driver.deadlines.node_timeout
            if self.state is not RUNNING:
                self.state = RUNNING
            self._run(None)
            self._usual = None

    def deliver_quorum(self, nodes: int, last: int, at: Instant) -> None:
        usual, sent_round = self._usual, self._sent_round
        if usual is not None and sent_round is not None:
            if self.state is RUNNING:
                self._run_flow()  # reads the replies, which `fall_back` has delivered
                return
            outcome = usual.outcome(nodes, sent_round, at, self.inbox)
            if outcome is not None:
                self.state = DONE
                if self._has_slot:
                    self._has_slot = False
                    self._loop_driver.admission.leave()
                else:
                    self._usual = None  # a release, of which nothing is left to release
                if not self.future.done():
                    self.future.set_result(outcome)
                return
            self._run_flow()
        super().deliver_quorum(nodes, last, at)

    def deliver(self, reply: NodeReply) -> None:
        if self.state is RECEIVING:
            self._run_flow()
        super().deliver(reply)

    def on_deadline(self, until: Instant) -> None:
        if self.state is RECEIVING:
            self._run_flow()
        super().on_deadline(until)

    def _skip_round(self) -> None:
        if self._usual is None:
            super()._skip_round()
            return
        # The flow continues after it. From its beginning it might wait in line instead.
        self._sent_round = self._loop_driver.skip_round(self, CROWDED)
        self._run_flow()

    def cancel(self) -> None:
        super().cancel()
        # As in `_finish_sends`: without a round there is no key.
        if self._usual is not None and (self.round or not self._has_caller_waiting):
            self._loop_driver.send(self._usual.cancelled(self._sent_round), self)
        self._usual = None

    def end(self) -> None:
        self._loop_driver.tasks.discard(self)
        self._usual = None
        self._flow.close()
        # Its request refers to it until all nodes have replied. Without these, a hundred tasks have
        # half the garbage collections.
        self._sent_round = None
        del self.future
