"""A call as the drivers run it if one round may decide it: without a flow until one is needed.

`DirectTask` and `DirectRunner` do the same.  What decides is the code that ships: the usual case,
and the flow that continues after its round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from quorlock._core.commands import Release
from quorlock._core.effects import Commit, FlowCancelled, Receive, Timeout
from quorlock._core.rounds import NodeReply
from quorlock._core.votes import GRANTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.rounds import SentRound
    from quorlock._core.usual import UsualCase

T = TypeVar("T")


def directly(usual: UsualCase[T], policy: Policy) -> Flow[T]:
    """Send the round; return what the first replies decide, or the outcome of the flow."""
    sent_round: SentRound | None = None
    replies: list[NodeReply | Timeout] = []
    try:
        sent: SentRound = yield usual.send
        sent_round = sent
        outcome = yield from _decided(usual, policy, sent, replies)
        if outcome is not None:
            if type(usual.command) is not Release:
                yield Commit(outcome)  # type: ignore[arg-type] # of an acquire
            return outcome
    except FlowCancelled:
        yield usual.cancelled(sent_round)
        raise
    return (yield from _continued(usual.flow(sent_round), replies))


def _decided(
    usual: UsualCase[T], policy: Policy, sent_round: SentRound, replies: list[NodeReply | Timeout]
) -> Flow[T | None]:
    """Return the outcome if the first replies are a quorum of plain grants; note what came.

    Replies in the name of nodes that were not asked do not count.
    """
    nodes, asked, not_asked = 0, sent_round.target.nodes, list[NodeReply]()
    while True:
        event: NodeReply | Timeout = yield Receive(sent_round.sent_at + policy.node_timeout)
        replies.append(event)
        if isinstance(event, Timeout):
            return None
        if event.answer is GRANTED:
            nodes |= 1 << event.node
            if nodes.bit_count() == policy.quorum:
                return usual.outcome(nodes, sent_round, event.at, not_asked)
        elif asked >> event.node & 1 or len(not_asked) == policy.n - policy.quorum:
            return None
        else:
            not_asked.append(event)


def _continued(flow: Flow[T], replies: Sequence[NodeReply | Timeout]) -> Flow[T]:
    """Run the flow, which first gets these replies to its round."""
    value: Any
    try:
        effect = next(flow)
        for reply in replies:
            effect = flow.send(reply)
        while True:
            try:
                value = yield effect
            except BaseException as error:  # noqa: BLE001 (it is the flow's)
                effect = flow.throw(error)
            else:
                effect = flow.send(value)
    except StopIteration as stop:
        outcome: T = stop.value
        return outcome
