"""Lines: the waiters of one lock in this process, first come, first served.

Only the first of a line asks the nodes.  A caller that releases the lock hands it on to the first
by an exchange (`handing_on`), which costs one command a node; while other processes wait too, a
limited number of times in a row.

Threads share a line, and no lock is taken: every change is one call of C.  Two threads may both
find that the line needs a first; then two of its waiters ask the nodes, which does no harm.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from quorlock._core.time import NS_PER_MS, PAST
from quorlock._core.votes import HELD, NO_REPLY
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.claims import Claim
    from quorlock._core.member import Member
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer

# While other processes wait, a line has the lock so many times in a row, and for so long, at most.
EXCHANGES_MAX = 8
TURN_MAX: Duration = 50 * NS_PER_MS
# A lease that is held for longer may have ended without a release.  Then the next waiter asks the
# nodes; also if the lease is renewed, so that it has its place in their queues.
STALLED_AFTER: Duration = 500 * NS_PER_MS
# An acquire so soon after another one that had to wait joins the queues without trying before.
_CONTENDED_FOR: Duration = 500 * NS_PER_MS
# After this time the lock may be free, or the nodes away.
_VOTES_LAST: Duration = 1_000 * NS_PER_MS
# Lines that are not in use are removed beyond this number, or twice the number of those in use.
_LINES_MAX = 256


class Line:
    """The waiters of one lock."""

    __slots__ = (
        "_changed_at",
        "_contended_until",
        "_exchanges",
        "_first",
        "_is_held",
        "_members",
        "_others_wait",
        "_turn_began",
        "_votes",
        "_votes_at",
    )

    def __init__(self) -> None:
        # In order, without the first.  There may be thousands, and any of them may leave.
        self._members: OrderedDict[Member, None] = OrderedDict()
        self._first: dict[None, Member] = {}  # at most one: it asks the nodes
        self._is_held = False  # by a caller of this process, as far as known
        self._changed_at: Instant = PAST  # when it got the lock last
        self._contended_until: Instant = PAST
        self._others_wait = False  # in other processes, when this one got the lock
        self._exchanges = 0  # in a row
        self._turn_began: Instant = PAST
        self._votes: Sequence[Answer | None] = ()
        self._votes_at: Instant = PAST

    def note(self, votes: Sequence[Answer | None], at: Instant) -> None:
        """Record the votes of the latest attempt, look or exchange, all by which it is held.

        None: no reply yet. More replies may come into a list.
        """
        self._votes, self._votes_at = votes, at

    def votes(self, at: Instant) -> tuple[Answer, ...]:
        """Return the latest votes, by which the lock is held; () if they are old."""
        if at >= self._votes_at + _VOTES_LAST:
            return ()
        votes = [NO_REPLY if vote is None else vote for vote in self._votes]
        return tuple([HELD if vote.code is VoteCode.GRANTED else vote for vote in votes])

    def is_in_use(self, at: Instant) -> bool:
        """Return whether an acquire has to join: others are before it, or were a moment ago."""
        return self._is_held or self.has_waiters or at < self._contended_until

    @property
    def has_waiters(self) -> bool:
        """Return whether some caller of this process waits."""
        return bool(self._first or self._members)

    def is_idle(self, at: Instant) -> bool:
        """Return whether it can be forgotten."""
        return not self.has_waiters and at >= max(
            self._contended_until, self._changed_at + STALLED_AFTER
        )

    def join(self, member: Member, at: Instant) -> None:
        """Add a waiter at the end; it is promoted if it is the first."""
        self._members[member] = None
        self.advance(at)

    def stay(self, member: Member, at: Instant) -> None:
        """Keep a waiter, also if another caller was interrupted after it had taken it out.

        If that caller is not gone, the waiter is in line twice, which does no harm.
        """
        if self._first.get(None) is not member and member not in self._members:
            self._put_in_front(member)
        self.advance(at)

    def leave(self, member: Member, at: Instant) -> None:
        """Remove a waiter, which takes no lease any more."""
        if self._first.get(None) is member:
            self._first.pop(None, None)
        else:
            self._members.pop(member, None)
        self.advance(at)

    def advance(self, at: Instant) -> None:
        """Promote the next waiter, unless there is a first, or it is soon handed the lock."""
        first = self._first.get(None)
        if first is not None and not first.is_open:
            self._first.pop(None, None)  # it left while another thread promoted it
        while not self._first and not (self._is_held and at < self._changed_at + STALLED_AFTER):
            member = self._next()
            if member is None:
                return
            self.put_back(member)

    def look_at(self, at: Instant) -> Instant:
        """Return when a waiter looks next whether the line has stalled."""
        stalled_at = self._changed_at + STALLED_AFTER
        return stalled_at if self._is_held and stalled_at > at else at + STALLED_AFTER

    def put_back(self, member: Member) -> None:
        """Make a waiter that was taken out the first again; it asks the nodes."""
        is_first = self._first.setdefault(None, member) is member
        if not is_first:
            self._put_in_front(member)
        if member.is_asking:
            member.ask_again()
        elif is_first:
            member.promote()

    def take_next(self, at: Instant) -> Member | None:
        """Take out the waiter that gets the lock next; None if other processes have their turn."""
        if self._others_wait and (
            self._exchanges >= EXCHANGES_MAX or at - self._turn_began >= TURN_MAX
        ):
            return None
        first = self._first.pop(None, None)
        return first if first is not None and first.is_open else self._next()

    def _put_in_front(self, member: Member) -> None:
        self._members[member] = None
        try:
            self._members.move_to_end(member, last=False)
        except KeyError:
            return  # another caller has taken it out

    def _next(self) -> Member | None:
        try:
            while True:
                member, _ = self._members.popitem(last=False)
                if member.is_open:
                    return member
        except KeyError:
            return None

    def on_granted(
        self, member: Member, at: Instant, *, has_waited: bool, others_wait: bool
    ) -> None:
        """Record that the nodes granted the lock to a waiter.

        Args:
            member: The waiter.
            at: The current time.
            has_waited: It had to wait for the lock.
            others_wait: Other processes wait for the lock.
        """
        if self._first.get(None) is member:
            self._first.pop(None, None)
        self._is_held, self._others_wait = True, others_wait
        self._changed_at = self._turn_began = at
        self._exchanges = 0
        if has_waited or others_wait:
            self._contended_until = at + _CONTENDED_FOR

    def on_exchanged(self, at: Instant, *, others_wait: bool) -> None:
        """Record that a caller of this process handed the lock on to a waiter."""
        self._is_held, self._others_wait = True, others_wait
        self._exchanges += 1
        self._changed_at = at
        self._contended_until = at + _CONTENDED_FOR

    def on_released(self, at: Instant) -> None:
        """Record that this process does not hold the lock any more."""
        self._is_held = False
        self.advance(at)


class Lines:
    """The lines of all locks, by their keys.

    Attributes:
        polls_until: Until then nodes are not asked to queue: too many of them cannot.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, Line] = {}
        self._purge_at = _LINES_MAX
        self.polls_until: Instant = PAST
        self.get = self._by_key.get  # called in every acquire and release

    def on_released(self, claim: Claim, at: Instant) -> None:
        """Record that a lease of this process is over; the next in each line asks the nodes."""
        for key in claim.keys:
            line = self.get(key)
            if line is not None:
                line.on_released(at)

    def line(self, key: bytes, at: Instant) -> Line:
        """Return the line of this lock, made if there is none."""
        if len(self._by_key) >= self._purge_at:
            for other, line in list(self._by_key.copy().items()):
                if line.is_idle(at):
                    self._by_key.pop(other, None)
            # Thousands may be in use: they are looked at when they are twice as many.
            self._purge_at = max(_LINES_MAX, 2 * len(self._by_key))
        return self._by_key.setdefault(key, Line())
