"""The part of an election that both APIs share: who leads, and which errors end a term.

An election is a lock that is renewed without limit and has a fence, the term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, NoReturn, TypeVar

from quorlock._api.lock import LockBase
from quorlock._api.misuse import HintedNames
from quorlock._api.session import Session
from quorlock._core.request import StopEvent
from quorlock._core.time import NS_PER_S, from_seconds
from quorlock._drivers.clock import now
from quorlock._drivers.log import log_trouble
from quorlock.errors import ConfigError, LeaseLost

if TYPE_CHECKING:
    from quorlock._api.lease import LeaseBase
    from quorlock._core.request import AcquireRequest
    from quorlock._core.time import Instant
    from quorlock._core.votes import Answer
    from quorlock.errors import QuorumUnreachable

K = TypeVar("K", bound=LockBase[Any, Any])

# How long an observer sleeps between two looks at an election without a leader: this share of the
# ttl, within these bounds.
_IDLE_SHARE: Final = 10
_LOOK_MIN: Final = NS_PER_S // 20
_LOOK_MAX: Final = 5 * NS_PER_S


class Leader(NamedTuple):
    """The leader of an election, as a quorum of nodes shows it.

    Attributes:
        name: who it is, as it says itself: the `owner` of its `Redlock`; None if it says nothing.
        ttl_left: seconds until its lease ends, unless it extends the lease; None if it never ends.
        holder: a digest of its token: another one means another term.
    """

    name: str | None
    ttl_left: float | None
    holder: str


class ElectionBase(HintedNames, Generic[K]):
    """A role that one process has at a time, in both APIs."""

    __slots__ = ("_lock", "_make", "_session", "_stop")

    _HINTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("resign", "release"), "use `release` of the lease, in the leader"),
        **dict.fromkeys(("acquire", "lead"), "use `campaign` or `run`"),
        "term": "see `fence` of the lease",
    }

    def __init__(
        self,
        session: Session[Any],
        make: Callable[[Any, StopEvent | None], K],
        stop: StopEvent | None,
    ) -> None:
        if session.policy.restart_guard is None:
            fix = "an election needs 'uptime' or 'marker': its terms are fences"
            raise ConfigError("restart_guard", None, fix)
        self._session = session
        self._make = make
        self._stop = stop
        self._lock = make(None, stop)

    @property
    def resource(self) -> str:
        """The name of the election."""
        return self._lock.resource

    @property
    def ttl(self) -> float:
        """The lease time in seconds: how long there may be no leader after a crash."""
        return self._lock.ttl

    def _leader(self, request: AcquireRequest, answers: tuple[Answer, ...]) -> Leader | None:
        """Return the leader in a round of Inspect. Raises QuorumUnreachable, NodeError."""
        if not self._session.locked(request, answers):
            return None
        report = self._session.inspection(request, answers)
        if report.done or report.shared:  # those that share a lock do not lead
            return None
        holders = Counter(view.holder for view in report.nodes if view.holder is not None)
        ((holder, _),) = holders.most_common(1)
        return Leader(report.owner, report.ttl_left, holder)

    def _next_look(self, leader: Leader | None) -> Instant:
        """Return when an observer looks again: when the lease could end, within bounds."""
        if leader is None or leader.ttl_left is None:
            pause = from_seconds(self.ttl) // _IDLE_SHARE
        else:
            pause = from_seconds(leader.ttl_left)
        return now() + min(max(pause, _LOOK_MIN), _LOOK_MAX)

    def _log_outage(self, error: QuorumUnreachable) -> Instant:
        """Report that no quorum could be reached; return when to campaign again."""
        log_trouble(f"no campaign for {self.resource!r}: it will be tried again", error)
        policy = self._session.policy
        return now() + self._session.entropy.between(*policy.retry_delay)

    def __repr__(self) -> str:
        return f"<Election {self.resource!r}, ttl {self.ttl:g} s>"

    def __reduce__(self) -> NoReturn:
        message = "an election cannot be copied or pickled: make one in each process"
        raise TypeError(message)


def ends_term(error: BaseException, lease: LeaseBase[Any] | None) -> bool:
    """Return whether the error says that this lease was lost, and nothing else."""

    def is_loss(error: BaseException) -> bool:
        if not isinstance(error, LeaseLost) or error.lease is not lease:
            return False
        return error.reason not in ("released", "handed_over", "kept", "forked")

    if lease is None:
        return False
    if isinstance(error, BaseExceptionGroup):  # of a TaskGroup in the leader
        return _without(error, is_loss) is None
    return is_loss(error)


def _without(group: Any, is_loss: Callable[[BaseException], bool]) -> Any:
    """Return what is left of an exception group; None: nothing."""
    return group.split(is_loss)[1]


def is_same(another: Leader | None, before: Leader | None) -> bool:
    """Return whether the leader, or that there is none, is the same as before."""
    return (another and another.holder) == (before and before.holder)
