"""The contract between a driver and the flows that it runs.

1. `Send`: The driver reads the clock before the first byte is sent and after the last. It sends
   to every node that can be sent to, without waiting for any of them. It replies in the name of
   each node that cannot be sent to (DOWN, BACKLOG) or that has no key to act on (NOT_SET,
   RELEASING); `_core.routing` decides. The reply to a release that is pending on a reachable node
   may come when that release is confirmed. Only acquires may queue; one that cannot begin by
   `Send.queue_until` is given up.
2. `Receive`: The driver returns the replies to any round of this flow, in order of arrival, each
   with its round. At the deadline it reads the sockets once more and returns `Timeout`. If the
   process was stalled past the deadline, the driver may extend it by the length of the stall, by
   `node_timeout` at most. Replies that do not decide may be counted in the `tally` of `Receive`.
3. Commands to one node keep their order (rule 3). A release follows its acquire on the same
   connection, or becomes a pending release (`_core.pending_releases`) if that connection is lost.
4. No vote comes from a connection whose server was not compared with the others (rule 14).
5. If the caller is cancelled or interrupted, the driver ends its flow by `FlowCancelled` and
   carries out the sends that the flow still asks for. The exception is raised in any case.
6. `Commit`: The flow stays there until the caller has its lease, and is closed then. If the caller
   is cancelled or interrupted before that, the flow is cancelled and releases the lock.
7. Replies that arrive after their flow has finished are read and dropped. No other flow gets them.
8. `Enlist`: The driver has every connection that the flow uses, and every one that replaces it,
   subscribe to the calls for one inbox. A call for the place is a reply to the round CALL, and
   a report that another client has changed the key is one to the round CHANGED, until the flow
   ends or enlists again. If a node calls a place that no flow has, the driver removes it from the
   queue there at once, so that the node calls the next one. An acquire that hands a lease on
   (`ScriptedAcquire.instead`) is treated as a release: it never queues, and may be sent while the
   driver closes.
9. `Wait`: The driver installs `member.wake` before it looks for news. A waiting flow has no slot
   of the admission, and without a place also no connection set. It ends at once when the driver is
   closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from quorlock._core.claims import Claim
    from quorlock._core.results import NodeStatus
    from quorlock._drivers.node_states import NodeStates


class AnyDriver(Protocol):
    """The part of a driver that both APIs use."""

    node_states: NodeStates

    @property
    def closed(self) -> bool: ...

    def statuses(self) -> tuple[NodeStatus, ...]: ...

    def on_lease_over(self, claim: Claim) -> None: ...
