"""Effects: what a flow asks of its driver, and what the driver sends back.

A *flow* is a generator: it yields one of the effects below and is sent the result.

    sent_round = yield Send(command)       # to all nodes at once; a SentRound
    event = yield Receive(until=instant)   # a NodeReply or a Timeout
    now = yield Sleep(until=instant)       # the instant at which it continued
    place = yield Enlist()                 # a place in the nodes' queues, for waiters
    event = yield Wait(until, stop, member)  # news, NodeReplies (also calls) or a Timeout
    yield Commit(granted)                  # won; nothing comes back

`_drivers/abc.py` states the duties of a driver.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from quorlock._core.commands import Command
from quorlock._core.member import Member
from quorlock._core.releases_in_doubt import InDoubt
from quorlock._core.request import StopEvent
from quorlock._core.results import Acquired
from quorlock._core.rounds import NodeReply, Target
from quorlock._core.tally import Verdict
from quorlock._core.time import FOR_EVER, Duration, Instant

T = TypeVar("T")


class Send(NamedTuple):
    """Send a command to all nodes at once; a round begins. The result is a SentRound.

    behind: what the acquire was sent to, which this command must follow there (rule 3).  The
    command uses the same connection while the acquire is unanswered, and becomes a pending release
    if that connection is lost.  Other nodes get nothing.  None: all nodes.
    queue_until: the deadline of an acquire in the admission queue; after it nothing is sent, and
    every node's answer is LOCAL_QUEUE_TIMEOUT.
    connect_until: how long to wait for connections that are being opened; the command is sent over
    those that are open then.  Connecting has its own limit.
    in_doubt: server processes that a release of this token by another process may still reach:
    commands that rely on the key are not sent to them (`PendingReleases.forbid`).
    stop: ends the waits before sending, as their deadlines would; the flow decides what follows.
    """

    command: Command
    behind: Target | None = None
    queue_until: Instant = FOR_EVER
    connect_until: Instant = FOR_EVER
    in_doubt: InDoubt | None = None
    stop: StopEvent | None = None


# As `Send(...)`, without the Python call of a named tuple; see `replied` in rounds.py.
to_send: Callable[
    [tuple[Command, Target | None, Instant, Instant, InDoubt | None, StopEvent | None]], Send
] = partial(getattr(tuple, "__new__"), Send)  # noqa: B009


class SendBatch(NamedTuple):
    """Send several commands in one packet to each node; each is a separate round.

    The result is a tuple of SentRounds, in the same order.
    """

    sends: tuple[Send, ...]


class VoteCounter(Protocol):
    """A tally, or several of them."""

    def count(self, reply: NodeReply, /) -> Verdict:
        """Count one reply; pending means that the flow only waits for more."""
        ...


class Receive(NamedTuple):
    """Wait for the next reply to any round of this flow, at most until the instant.

    tally: where the flow counts replies until the verdict, and does nothing else with them.  A
    driver may count them itself, and return with the deciding reply or at the deadline.
    """

    until: Instant
    tally: VoteCounter | None = None


# As `Receive(...)`; see `to_send`.
to_receive: Callable[[tuple[Instant, VoteCounter | None]], Receive] = partial(
    getattr(tuple, "__new__"),  # noqa: B009
    Receive,
)


class Sleep(NamedTuple):
    """Wait until the instant, or until soon after `stop` is set.

    The result is the instant at which the flow continued.
    """

    until: Instant
    stop: StopEvent | None = None


class Enlist(NamedTuple):
    """Name a place in the queues of the nodes, and subscribe to its calls; the result is the place.

    key: of the lock.  A flow with a place also gets reports of changes of it, in the round CHANGED.

    The driver subscribes to the calls on all connections that a `Send` would use, and on those that
    replace them.  From then on a call for the place is a reply to the round CALL; until the flow
    ends.  The result is b"" if fewer than a quorum of nodes can call, or if too many flows wait.
    """

    queue_until: Instant = FOR_EVER
    stop: StopEvent | None = None
    key: bytes = b""


class ReplyObserver(Protocol):
    """The state of a flow that waits, as far as replies change it."""

    def on_reply(self, reply: NodeReply, /) -> bool:
        """Record one reply; return whether the flow has something to do, or an earlier deadline."""
        ...


class Wait(NamedTuple):
    """Wait for news of the member, for a reply that the flow acts on, or until the instant.

    The result is the news, that reply, or a Timeout; a Timeout also soon after `stop` is set.  The
    driver passes each reply and each call to the observer, once, which says whether the flow acts
    on it; without an observer it drops them.  A wait may last for minutes.  The driver installs
    `member.wake` before it looks for news.
    """

    until: Instant
    stop: StopEvent | None
    member: Member
    observer: ReplyObserver | None = None


# The rounds of a call, and of a change of a tracked key: no request has these numbers.
CALL = 0
CHANGED = -1


class Commit(NamedTuple):
    """Give the won lock to the caller: the last effect of a flow.

    The driver leaves the flow suspended here until the caller has its lease, then closes it.  A
    flow that is cancelled instead releases the lock.  So an interrupted caller never leaves a lock
    behind.
    """

    granted: Acquired


class Timeout(NamedTuple):
    """The deadline passed, and no further reply came before it."""

    at: Instant


Effect: TypeAlias = Send | SendBatch | Receive | Sleep | Enlist | Wait | Commit
Flow: TypeAlias = Generator[Effect, Any, T]


class FlowCancelled(BaseException):
    """Thrown into a flow whose caller is gone: release, wait for nothing, end.

    After it a flow may yield `Send` only.
    """


class Entropy(Protocol):
    """The source of tokens and of random pauses."""

    def token(self) -> bytes:
        """Return a fresh proof of ownership: at least 128 random bits, plain ASCII (rule 2)."""
        ...

    def between(self, shortest: Duration, longest: Duration) -> Duration:
        """Return a random duration, both ends included."""
        ...
