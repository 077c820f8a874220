"""What a driver owes the flows that it runs.

1. `Send`: reads the clock before the first byte and after the last; sends to every node that
   can be sent to, at once, without waiting for any; delivers an answer in the node's name
   for each that can not (DOWN, BACKLOG) or was never asked (ABSENT, see `Send.behind`).  A release
   that is owed to a node which may be there may be answered when it is paid.  It may let acquires
   queue, never anything else, and gives up those that cannot begin by `Send.by`.
2. `Receive`: gives the replies to any round of this flow, in the order of their coming, each
   with its round; `Elapsed` at the deadline, after one last look at the sockets.  A driver that
   comes late to it may go on for as long as it is late, by node_timeout at the most.  Replies
   that do not decide may be counted in its `tally` instead.
3. Commands to one node keep their order (rule 3); a release goes behind its acquire on the
   same connection, or is owed (`_core.debts`) where that connection is gone.
4. No vote comes from a connection whose server was not compared with the others (rule 14).
5. A caller that goes away (cancelled, interrupted) ends its flow by `Abandoned`; sends that the
   flow still asks for are carried out; the exception comes out in any case.
6. `Keep`: the flow stays there until the caller has its lease, and is closed then; a caller that
   goes away before that abandons it, and it gives the lock back.
7. What a finished flow was still to hear is read and dropped, never given to another flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorlock._core.effects import Flow
    from quorlock._drivers.members import Members

T = TypeVar("T")
R = TypeVar("R")


class BlockingDriver(Protocol):
    """Runs flows in threads."""

    members: Members

    def run(self, flow: Flow[T]) -> T: ...

    def win(self, flow: Flow[T], claim: Callable[[T], R]) -> R: ...

    def close(self) -> None: ...


class AsyncioDriver(Protocol):
    """Runs flows in tasks of an event loop."""

    members: Members

    def run(self, flow: Flow[T]) -> Awaitable[T]: ...

    def win(self, flow: Flow[T], claim: Callable[[T], R]) -> Awaitable[R]: ...

    def close(self) -> Awaitable[None]: ...
