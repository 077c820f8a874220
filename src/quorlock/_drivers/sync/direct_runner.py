"""A call whose first round may decide it: it runs without a flow until one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from quorlock._core.commands import Release
from quorlock._core.usual import NO_FLOW
from quorlock._core.votes import GRANTED
from quorlock._drivers.clock import now
from quorlock._drivers.sync.flow_runner import FlowRunner

if TYPE_CHECKING:
    from quorlock._core.effects import Effect
    from quorlock._core.rounds import SentRound
    from quorlock._core.time import Instant
    from quorlock._core.usual import UsualCase
    from quorlock._drivers.node_states import NodeStates
    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock._drivers.sync.flow_runner import WaitingFlows
    from quorlock._drivers.sync.pool import ConnectionPool

T = TypeVar("T")


class DirectRunner(FlowRunner[T]):
    """A call that has no flow as long as everything is as usual.

    The first replies to its round, a quorum of plain grants, decide it.  Otherwise the flow is
    made, goes to its wait for replies to that round, and reads them.
    """

    __slots__ = ("_sent_round", "_usual")
    counts_grants = True

    def __init__(
        self,
        pool: ConnectionPool,
        node_states: NodeStates,
        waiting_flows: WaitingFlows,
        usual: UsualCase[T],
    ) -> None:
        super().__init__(pool, node_states, waiting_flows, NO_FLOW)
        # None once the flow has begun.  Until then the runner itself releases when it is cancelled.
        self._usual: UsualCase[T] | None = usual
        self._sent_round: SentRound | None = None

    def run(self) -> T:
        usual = self._usual
        assert usual is not None
        self._sent_round = sent_round = self._send(usual.send)
        connection_set = self._connection_set
        if connection_set is not None and connection_set.counts_for(self):
            outcome = self._counted_outcome(connection_set, usual, sent_round)
        else:
            outcome = self._outcome(usual, sent_round)
        if outcome is None:
            self._flow = flow = usual.flow(sent_round)
            effect = next(flow)
            self._usual = None
            return self._run_from(effect)
        if type(usual.command) is Release:
            self._usual = None  # nothing is left to release
        else:
            self._on_won()
        return outcome

    def _counted_outcome(
        self, connection_set: ConnectionSet, usual: UsualCase[T], sent_round: SentRound
    ) -> T | None:
        """Return the outcome if a quorum of plain grants comes first, and in time."""
        policy, not_asked = self._node_states.policy, self.inbox
        refused, nodes, outcome = len(not_asked), 0, None
        if refused <= policy.n - policy.quorum:
            nodes = connection_set.await_grants(self, sent_round.sent_at + policy.node_timeout)
        if nodes.bit_count() >= policy.quorum:
            outcome = usual.outcome(nodes, sent_round, now(), not_asked)
        if outcome is None:
            connection_set.deliver_counted(self, refused)
        return outcome

    def _outcome(self, usual: UsualCase[T], sent_round: SentRound) -> T | None:
        """Return the outcome if the first replies are a quorum of plain grants."""
        policy, inbox = self._node_states.policy, self.inbox
        until = sent_round.sent_at + policy.node_timeout
        nodes, at = 0, sent_round.sent_at
        # By index: another thread may add replies.
        for number in range(policy.quorum):
            if number == len(inbox):
                self._await_replies(number + 1, until)
                if number == len(inbox):
                    return None
            _, node, answer, at = inbox[number]
            if answer is not GRANTED:
                return None
            nodes |= 1 << node
        return usual.outcome(nodes, sent_round, at)

    def _await_replies(self, count: int, until: Instant) -> None:
        """Return when so many replies are in the inbox, or at `until`."""
        connection_set = self._connection_set
        while connection_set is not None and len(self.inbox) < count and now() < until:
            following = self._following
            if following is None or self._try_to_lead(connection_set):
                connection_set.await_replies(self, count, until)
            else:
                following.wait(until, count - 1)

    def _cancel_flow(self) -> Effect:
        usual = self._usual
        if usual is None:
            return super()._cancel_flow()
        self._flow = NO_FLOW  # also if one was about to begin
        return usual.cancelled(self._sent_round)

    def cancel(self) -> None:
        super().cancel()
        self._usual = None

    def end(self) -> None:
        self._usual = None
        super().end()
