"""The connection sets of a driver, lent to one thread at a time, and the threads that share one.

A thread claims a connection set with `dict.setdefault(set, borrower)`. That is atomic: one of
several threads wins, without a lock. The first free set is taken, so that one thread always uses
the same connections.

Threads share a set (*flat combining*: Hendler and others, SPAA 2010). If a set is borrowed, its
borrower leads, and other threads follow: they leave their rounds for it to send, and sleep until
it has read the replies. It sends all of them in one packet to each node. When its own round is
decided it returns the set, and a follower leads. So many threads make as many system calls as a
few, and seldom take the interpreter lock from each other. The main thread does neither: a signal
handler may interrupt it anywhere, and then its set is discarded with all rounds on it.

There is no lock (see `wait`). The table of borrowers, the followers of each set and the queue are
the whole state, and each changes in one step. A thread that follows tries to lead before it sleeps,
and a thread that returns a set calls a follower after that: so one of both sees the other. If its
owner was interrupted inside a set (`ConnectionSet.is_busy`), the set is discarded on return. If an
interrupt prevented the return as well, a waiting thread recovers the set: no call of the owner's
thread has it (`_is_abandoned`).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import deque
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, cast

from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._drivers.clock import now
from quorlock._drivers.wait import WaitQueue, Wakeup, is_stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant
    from quorlock._drivers.sync.connection_set import ConnectionSet


# A thread that waits also checks at this interval: the thread that should have passed a set to it
# may have been interrupted.
LOOK_AGAIN = 100 * NS_PER_MS
# An urgent borrower waits this long for a set that is free soon. Connecting takes longer.
_URGENT_WAITS = 5 * NS_PER_MS
# But for one that is being connected: another one would be connected after it.
_CONNECTING_WAITS = 100 * NS_PER_MS
# The functions that borrow, each with the name of its local variable for the borrower.
_BORROWING = {"_complete": "runner", "_visit": "visitor", "_end_if_free": "visitor"}
# The flags of the code of generators and coroutines (`inspect.CO_GENERATOR` and others).
_YIELDS = 0x20 | 0x80 | 0x200
# More acquires than these queue. A round with all of them has to end well within node_timeout.
FOLLOWERS_MAX = 64


class Borrower:
    """A borrower of connection sets.

    is_urgent: It does not queue. over: It needs no set any more.
    shares: It may follow now, and be followed, in any thread but the main one.
    thread: The thread whose call borrows; 0 if an interrupt cannot end that call.
    """

    __slots__ = ()

    is_urgent: bool
    over = False
    shares = False
    thread = 0

    def follow(self, pool: ConnectionPool) -> None:
        """Leave rounds for the borrower of a set from now on."""

    def call(self) -> None:
        """Wake the thread, which follows: it may lead now."""

    def recover(self, pool: ConnectionPool) -> None:
        """End the call after an interrupt has cut its own cleanup short."""
        pool.give_back_all(self)


class _Visitor(Borrower):
    """The pool itself as a borrower, in some thread."""

    __slots__ = ("thread",)

    is_urgent = True

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class _Waiter(Wakeup):
    """A queued borrower."""

    __slots__ = ("owner",)

    def __init__(self, owner: Borrower) -> None:
        super().__init__()
        self.owner = owner


class ConnectionPool:
    """The connection sets of a driver, lent to one thread at a time."""

    def __init__(
        self,
        make: Callable[[], ConnectionSet],
        kept: int,
        look_after: Callable[[ConnectionSet], None],
    ) -> None:
        self._make = make
        self._look_after = look_after  # called when a set is returned: replies may be pending on it
        self._kept = kept
        self._connection_sets: list[ConnectionSet] = []
        self._owners: dict[ConnectionSet, Borrower] = {}  # of the borrowed sets
        self._queue: deque[_Waiter] = deque()
        self._recovering: dict[Borrower, object] = {}
        self._recovers_at: Instant = PAST
        self._main_thread = threading.main_thread().ident
        self.closing = False
        self._drain_until: Instant = PAST  # for sets that are closed
        self._returned = WaitQueue()

    def borrow(
        self,
        owner: Borrower,
        by: Instant = FOR_EVER,
        path: object = None,
        stop: StopEvent | None = None,
    ) -> ConnectionSet | None:
        """Borrow `path` if it is free, else any free set or a new one; or follow its borrower.

        Return None if an acquire could do neither by `by`, or until `stop` was set.
        """
        if not self._owners and not self._queue:
            try:
                connection_set = self._connection_sets[0]
            except IndexError:  # no set, or a signal handler has just closed it
                pass
            else:
                if self._owners.setdefault(connection_set, owner) is owner:
                    if not (connection_set.closed or connection_set.followers):
                        return connection_set
                    self._let_go(connection_set)
        self.recover_abandoned(owner.thread)
        if owner.is_urgent:
            waits = _CONNECTING_WAITS if self._may_follow_soon(owner) else _URGENT_WAITS
            by = min(by, now() + waits)
            taken = self._take(owner, path) or self._wait(owner, by, path, stop)
            return taken or self._new(owner)
        if not self._must_queue(owner) and (taken := self._take(owner, path)) is not None:
            return taken
        return self._wait(owner, by, path, stop)

    def _must_queue(self, owner: Borrower) -> bool:
        """Return whether this borrower could take the place of one that queues.

        Those that may all follow leave the queue one by one, each when it gets the interpreter
        lock. If new ones queued behind them, the queue would never be empty.
        """
        waiting = [waiter.owner for waiter in list(self._queue)]
        if not waiting:
            return False
        room = [FOLLOWERS_MAX - len(one.followers) for one in self.all() if one.takes_rounds]
        may_follow = all(map(self._shares, (owner, *waiting)))
        return not may_follow or max(room, default=0) <= len(waiting)

    def _take(self, owner: Borrower, path: object) -> ConnectionSet | None:
        """Return a set that is free, or whose borrower is followed, or a new one.

        None: one is free soon or full, or there are many sets. The main thread need not wait: the
        calls that have them may be its own, which a signal handler has interrupted.
        """
        must_wait = len(self._connection_sets) >= self._kept and owner.thread != self._main_thread
        shares = self._shares(owner)
        # The sort is stable: `path` comes first, then the others in their order.
        for connection_set in sorted(self.all(), key=lambda one: one is not path):
            borrower = self._owners.setdefault(connection_set, owner)
            if borrower is owner:
                if not connection_set.closed and (shares or not connection_set.followers):
                    return connection_set
                self._let_go(connection_set)
            elif shares and self._may_lead(borrower, owner):
                if self._follow(owner, connection_set, path):
                    return connection_set
                must_wait = True
            elif isinstance(borrower, _Visitor):
                must_wait |= borrower.thread != owner.thread
        if must_wait:
            return None
        self.recover_abandoned()  # sets that are not missed in any other way
        return self._new(owner)

    def _may_follow_soon(self, owner: Borrower) -> bool:
        """Return whether a set that this borrower may follow is about to be connected."""
        return self._shares(owner) and any(
            self._may_lead(borrower, owner) and not connection_set.takes_rounds
            for connection_set, borrower in self._borrowed()
        )

    def _shares(self, borrower: Borrower) -> bool:
        return borrower.shares and borrower.thread != self._main_thread

    def _may_lead(self, borrower: Borrower, follower: Borrower) -> bool:
        """Return whether this borrower can send for a follower.

        Not in the same thread: there the follower's call (of a finalizer) has interrupted the
        borrower's, and both would wait for each other.
        """
        return self._shares(borrower) and borrower.thread != follower.thread

    def _follow(self, owner: Borrower, connection_set: ConnectionSet, path: object) -> bool:
        """Have the borrower of this set send and receive for another one, if it can now."""
        is_full = len(connection_set.followers) >= FOLLOWERS_MAX and not owner.is_urgent
        # What must come after an acquire on another set is not left to a leader. A set that is
        # closed has none in flight.
        is_behind = path not in (None, connection_set) and not getattr(path, "closed", False)
        if is_full or is_behind or not connection_set.takes_rounds:
            return False
        connection_set.followers[owner] = None
        # Read after that: the main thread looks for followers after it has borrowed a set.
        borrower = self._owners.get(connection_set)
        if borrower is not None and not self._shares(borrower):
            connection_set.remove_follower(owner)
            return False
        owner.follow(self)
        return True

    def _let_go(self, connection_set: ConnectionSet) -> None:
        """Return a set that was borrowed only for a moment."""
        self._owners.pop(connection_set, None)
        if connection_set.followers:
            self._call_follower(connection_set)

    def _new(self, owner: Borrower) -> ConnectionSet:
        connection_set = self._make()
        connection_set.visit = partial(self._visit, connection_set)
        connection_set.on_ready = self.on_change
        self._owners[connection_set] = owner
        self._connection_sets.append(connection_set)
        return connection_set

    def _wait(
        self, owner: Borrower, by: Instant, path: object, stop: StopEvent | None
    ) -> ConnectionSet | None:
        """Queue until this borrower is first and there is a set.

        After a long wait, check regardless of earlier waiters. These may be gone, or their calls
        may be interrupted by ours, in the stack of this thread.
        """
        waiter = _Waiter(owner)
        if owner.is_urgent:
            self._queue.appendleft(waiter)
        else:
            self._queue.append(waiter)
        try:
            look_at = now() + LOOK_AGAIN
            while True:
                is_late = now() >= look_at
                if is_late:
                    self.recover_for_all()
                    look_at = now() + LOOK_AGAIN
                if (is_late or self._first() is waiter) and (
                    connection_set := self._take(owner, path)
                ) is not None:
                    return connection_set
                if now() >= by or is_stopped(stop):
                    return None
                waiter.wait(min(by, look_at))
        finally:
            with contextlib.suppress(ValueError):
                self._queue.remove(waiter)
            self._wake_first()  # there may be more than one set, or we take none

    def give_back(self, connection_set: ConnectionSet) -> None:
        """Return a set, or close it if it is surplus, and call a follower, or the first waiter."""
        self._look_after(connection_set)
        # Usually there is no surplus.
        if connection_set.closed or len(self._connection_sets) > self._kept:
            idle = len(self._connection_sets) - len(self._owners)
            is_surplus = idle >= self._kept and not connection_set.has_pending
            if connection_set.closed or (is_surplus and not connection_set.followers):
                self._end(connection_set)
        self._owners.pop(connection_set, None)
        if connection_set.followers:
            self._call_follower(connection_set)
        if self.closing:  # checked last: a signal handler above may have called `close`
            self._end_if_free(connection_set)
        if self._queue or self._returned.waiting:
            self.on_change()

    def on_change(self) -> None:
        """Wake the first waiter: it may have a set or follow."""
        if self._queue:
            self._wake_first()
        if self._returned.waiting:
            self._returned.wake_all()

    def lead(self, follower: Borrower, connection_set: ConnectionSet) -> bool:
        """Have a follower borrow its set, if it is free; return whether it has it.

        A closed set, whose leader was interrupted, has no leader: all replies are there, and it
        would only request connections that it closes again.
        """
        if self._owners.setdefault(connection_set, follower) is not follower:
            return False
        if connection_set.closed:
            self._owners.pop(connection_set, None)
            return False
        connection_set.remove_follower(follower)
        return True

    def leave(self, follower: Borrower, connection_set: ConnectionSet) -> None:
        """Let a follower go; another one leads if it was called to."""
        connection_set.remove_follower(follower)
        if connection_set not in self._owners:
            if connection_set.followers:
                self._call_follower(connection_set)
            else:
                if connection_set.has_submissions:
                    self._visit(connection_set)
                self._look_after(connection_set)
        self.on_change()

    @staticmethod
    def _call_follower(connection_set: ConnectionSet) -> None:
        """Call the latest follower: it leads longest, until its own round is decided."""
        for follower in reversed(connection_set.followers.copy()):
            if not follower.over:
                follower.call()
                return
            connection_set.remove_follower(follower)

    def _wake_first(self) -> None:
        first = self._first()
        if first is not None:
            first.wake()

    def _first(self) -> _Waiter | None:
        """Return the waiter that has waited longest and still waits."""
        queue = self._queue
        with contextlib.suppress(IndexError, ValueError):
            while queue[0].owner.over:
                queue.remove(queue[0])
            return queue[0]
        return None

    def give_back_all(self, owner: Borrower) -> None:
        """Return all sets of a borrower, after an interrupt."""
        for connection_set, other in self._borrowed():
            if other is owner:
                if connection_set.is_busy:
                    connection_set.discard()
                self.give_back(connection_set)

    def recover_abandoned(self, thread: int = 0) -> None:
        """End the calls of owners that are gone. thread: Check only this thread's."""
        for connection_set, owner in self._borrowed():
            if (not thread or owner.thread == thread) and _is_abandoned(owner):
                claim = object()
                if self._recovering.setdefault(owner, claim) is not claim:
                    continue
                try:
                    if self._owners.get(connection_set) is owner:  # its call has not ended yet
                        owner.recover(self)
                finally:
                    self._recovering.pop(owner, None)

    def recover_for_all(self) -> None:
        """Do so, unless a thread has just done it: hundreds may wait, and read all frames each."""
        at = now()
        if at >= self._recovers_at:
            self._recovers_at = at + LOOK_AGAIN
            self.recover_abandoned()

    def wait_until_idle(self, until: Instant) -> None:
        """Wait until all other threads have returned their sets, until `until` at most.

        Sets of this thread do not count: a signal handler, which called us, has interrupted their
        calls.
        """
        while now() < until and self._others_borrow():
            self._returned.wait(lambda: not self._others_borrow(), until)

    def _others_borrow(self) -> bool:
        thread = threading.get_ident()
        borrowers = [owner for _, owner in self._borrowed()]
        for connection_set in self.all():
            borrowers += [one for one in connection_set.followers.copy() if not one.over]
        return any(borrower.thread != thread for borrower in borrowers)

    def close(self, until: Instant) -> None:
        """Close all idle sets, after draining each until `until`; borrowed ones on their return."""
        self._drain_until = until
        self.closing = True
        self.recover_abandoned()  # an earlier `close` may have been interrupted
        for connection_set in self.all():
            self._end_if_free(connection_set)

    def drain_idle(self) -> bool:
        """Receive pending replies of idle sets; return whether any were pending.

        Borrowed sets are left alone: their owner sleeps until bytes arrive, and a read by another
        thread would not wake it.
        """
        pending = [connection_set for connection_set in self.all() if connection_set.has_pending]
        for connection_set in pending:
            self._visit(connection_set)
        return bool(pending)

    def _visit(self, connection_set: ConnectionSet) -> None:
        """Send and receive without waiting, if the set is not borrowed.

        If it has followers, one of them does that.
        """
        if connection_set.followers:
            if connection_set not in self._owners:
                self._call_follower(connection_set)
            return
        visitor = _Visitor()  # always a new one: a caller that has borrowed the set keeps it
        if self._owners.setdefault(connection_set, visitor) is visitor:
            try:
                connection_set.drain()
            except BaseException:  # an interrupt, perhaps of the main thread
                self.give_back_all(visitor)
                raise
            self._let_go(connection_set)
            if self.closing:  # as in `give_back`
                self._end_if_free(connection_set)
            self.on_change()

    def all(self) -> list[ConnectionSet]:
        """Return all sets, borrowed or not."""
        return list(self._connection_sets)

    def _borrowed(self) -> list[tuple[ConnectionSet, Borrower]]:
        # A copy: other threads borrow and return at any time. Made by `copy`: CPython 3.11 may
        # collect garbage between two pairs of `items`, and finalizers would change the dict.
        return list(self._owners.copy().items())

    def _end_if_free(self, connection_set: ConnectionSet) -> None:
        visitor = _Visitor()
        if self._owners.setdefault(connection_set, visitor) is visitor:
            self._end(connection_set)

    def _end(self, connection_set: ConnectionSet) -> None:
        # The claim is removed last: after an interrupt before it, the next return repeats this.
        if connection_set.closed:
            connection_set.discard()
        else:
            connection_set.close(self._drain_until)
        with contextlib.suppress(ValueError):
            self._connection_sets.remove(connection_set)
        self._owners.pop(connection_set, None)


def _is_abandoned(owner: Borrower) -> bool:
    """Return whether no call of the owner's thread uses it: an interrupt cut its cleanup short.

    A thread that is unknown here (it has ended, or is a greenlet) never counts as gone.  The thread
    may be running: a generator that has yielded since then does not refer to its caller any more.
    """
    frame, is_known = _frame_of(owner.thread), False
    while frame is not None:
        name = _BORROWING.get(frame.f_code.co_name)
        if name is not None and frame.f_locals.get(name) is owner:
            return False
        is_known = not frame.f_code.co_flags & _YIELDS
        frame = frame.f_back
    return is_known


def _frame_of(thread: int) -> FrameType | None:
    """Return the frame of a thread, without a garbage collection in between.

    Up to CPython 3.11.8, one that finds a `threading.local` there stops the whole process for ever
    (gh-106883). `list` calls all three in C, so no other thread runs in between. The frames of all
    threads are in no variable here, nor is ours: a cycle would keep the leases in them.
    """
    # There is no public API for this.
    frames: Any = sys._current_frames  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    collects = gc.isenabled()
    steps: Any = (gc.disable, frames, gc.enable) if collects else (frames,)
    try:
        return cast("FrameType | None", list[Any](map(call, steps))[len(steps) // 2].get(thread))
    except BaseException:
        if collects:  # no memory, or an audit hook has refused
            gc.enable()
        raise
