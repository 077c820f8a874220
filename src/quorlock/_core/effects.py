"""What a flow asks of its driver, and what comes back.

A *flow* is a generator: it yields one of the effects below and is sent what it asked for.

    receipt = yield Send(command)          # to all nodes at once; Receipt
    event = yield Receive(until=instant)   # Replied or Elapsed
    now = yield Sleep(until=instant)       # the instant at which it went on
    yield Keep(granted)                    # won; nothing comes back

What a driver owes is written in `_drivers/contract.py`.  Named tuples here, not dataclasses:
one is made for every reply, and a frozen dataclass costs three times as much to make.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from quorlock._core.commands import Command
from quorlock._core.outcomes import Answer, Granted
from quorlock._core.time import FOR_EVER, Duration, Instant

if TYPE_CHECKING:
    from quorlock._core.quorum import Verdict

T = TypeVar("T")


class Receipt(NamedTuple):
    """What was sent, and when.

    started: read before the first byte left: validity counts from here.
    sent: read after the last byte left: the nodes' time to answer counts from here.
    asked: bit i is set if anything was sent to node i.
    path: the driver's own note of the way the bytes took (see `Send.behind`); a tuple of such
    notes where keys were set over several (`joined`).
    """

    round: int
    started: Instant
    sent: Instant
    asked: int
    path: object = None

    @property
    def paths(self) -> tuple[object, ...]:
        """One, or all that are joined in it."""
        path = self.path
        return cast("tuple[object, ...]", path) if isinstance(path, tuple) else (path,)


def joined(first: Receipt | None, later: Receipt, everywhere: int) -> Receipt:
    """What must be followed by whoever releases keys that were set by both.

    first: None where another process has set them, on nobody knows which nodes.
    """
    if first is None:
        return later._replace(asked=everywhere)
    if later.path not in first.paths:
        first = first._replace(path=(*first.paths, later.path))
    return first._replace(asked=first.asked | later.asked)


class Send(NamedTuple):
    """Ask all nodes at once; a round begins. The driver answers with a Receipt.

    behind: the receipt of the acquire that this command must follow on every node that was
    asked (rule 3): same connection while the acquire is unanswered there, a debt where the
    connection is gone; nodes that were never asked are left alone.  None: all nodes.
    by: an acquire that has to queue for longer than that, since too many are under way, is not
    sent at all: every node's answer is CROWDED then.  Of anything else: how long to wait for
    connections that are being made; it is sent over those that are there then.
    """

    command: Command
    behind: Receipt | None = None
    by: Instant = FOR_EVER


class SendAll(NamedTuple):
    """Ask for several things in one go, in one packet to each node; each is a round of its own.

    The driver answers with a tuple of Receipts, in the same order.
    """

    sends: tuple[Send, ...]


class Counts(Protocol):
    """A tally, or several of them."""

    def count(self, reply: "Replied", /) -> "Verdict":
        """Count one reply: pending while the flow has nothing to do but wait for more."""
        ...


class Receive(NamedTuple):
    """Wait for the next reply to any of this flow's rounds, until the instant at the most.

    tally: the flow does nothing with a reply but count it here until the verdict falls.  A driver
    may do that for it, and come back with the reply that decides (or the end of the time).
    """

    until: Instant
    tally: "Counts | None" = None


class Sleep(NamedTuple):
    """Wait until the instant; the driver answers with the instant at which it woke."""

    until: Instant


class Keep(NamedTuple):
    """The lock is won: the caller gets it. The last wish of a flow.

    The driver leaves the flow here until the caller has its lease, and closes it then.  A flow
    that is abandoned instead gives the lock back, so there is no instant at which an interrupted
    caller leaves a lock that nobody knows of.
    """

    granted: Granted


class Replied(NamedTuple):
    """One node's answer. A reply names its round."""

    round: int
    node: int
    answer: Answer
    at: Instant


# As `Replied(...)`, without the call in Python that a named tuple makes of it: a third of the time.
_new = getattr(tuple, "__new__")  # noqa: B009 (as an attribute its type is half unknown)
replied: Callable[[tuple[int, int, Answer, Instant]], Replied] = partial(_new, Replied)
receipt_of: Callable[[tuple[int, Instant, Instant, int, object]], Receipt] = partial(_new, Receipt)


class Elapsed(NamedTuple):
    """Nothing (more) came by then."""

    at: Instant


Effect: TypeAlias = Send | SendAll | Receive | Sleep | Keep
Flow: TypeAlias = Generator[Effect, Any, T]


class Abandoned(BaseException):
    """Thrown into a flow whose caller is gone: give back, wait for nothing, come out.

    After it a flow may yield `Send` only.
    """


class Chance(Protocol):
    """Where tokens and random pauses come from."""

    def token(self) -> bytes:
        """A fresh proof of ownership: at least 128 random bits, plain ASCII (rule 2)."""
        ...

    def between(self, shortest: Duration, longest: Duration) -> Duration:
        """A random duration, both ends included."""
        ...
