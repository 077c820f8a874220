"""Health checks: connect to every node now, and report which of them would vote."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.effects import Sleep
from quorlock._core.redlock import inspect
from quorlock._core.results import NodeStatus
from quorlock._drivers.clock import now

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.votes import Answer
    from quorlock._drivers.node_state import NodeState

# No lock has this name, and the rights of a quorlock user cover it (docs: Redis ACL).
_KEY = b"quorlock:check"


class Health(NamedTuple):
    """The state of all nodes, as `Redlock.check` found it.  False as a condition unless `ready`.

    Attributes:
        ready: whether a quorum would vote now.
        quorum: the votes that an acquire needs.
        nodes: the state of each node.
    """

    ready: bool
    quorum: int
    nodes: tuple[NodeStatus, ...]

    def __bool__(self) -> bool:
        return self.ready


def check(policy: Policy, node_states: tuple[NodeState, ...]) -> Flow[tuple[Answer, ...]]:
    """Ask every node; repeat while some node is being connected, for a bounded time."""
    at = now()
    until = at + policy.connect_timeout + 2 * policy.node_timeout
    while True:
        answers = yield from inspect(policy.prefix + _KEY, policy)
        at = now()
        if at >= until or all(
            node_state.is_settled(answer, at)
            for node_state, answer in zip(node_states, answers, strict=True)
        ):
            return answers
        yield Sleep(min(at + policy.node_timeout // 5, until))


def health(statuses: tuple[NodeStatus, ...], answers: tuple[Answer, ...], policy: Policy) -> Health:
    """Return the report of a check."""
    nodes = tuple(map(_status, statuses, answers))
    return Health(sum(node.up for node in nodes) >= policy.quorum, policy.quorum, nodes)


def _status(status: NodeStatus, answer: Answer) -> NodeStatus:
    """Return the status of a node; a node that did not answer the check is not up."""
    if not status.up or answer.is_lock_answer:
        return status
    return status._replace(up=False, why=answer.reason, code=answer.code)
