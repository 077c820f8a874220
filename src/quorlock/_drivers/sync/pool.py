"""The connection sets of a driver, and the number of threads that acquire together.

A thread claims a connection set with `dict.setdefault(set, borrower)`. That is atomic: one of
several threads wins, without a lock. The first free set is taken, so that one thread always uses
the same connections. Acquires queue for a slot, in order of arrival; a later one cannot overtake.
Extensions and releases need no slot, since a holder must not queue behind waiters. If all sets are
borrowed, a holder gets the next one that is returned, before all queued acquires, or a new one.

There is no lock (see `wait`). The table of borrowers and the queues are the whole state, and each
changes in one step. A thread that returns a set wakes the first waiter, which takes it. Two threads
that check at the same time may exceed the slots by one, which costs only some speed. If its owner
was interrupted inside a set (`ConnectionSet.is_busy`), the set is discarded on return. If an
interrupt prevented the return as well, a waiting thread recovers the set: no call of the owner's
thread has it (`_is_abandoned`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST
from quorlock._drivers.clock import now
from quorlock._drivers.wait import WaitQueue, is_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.request import StopEvent
    from quorlock._core.rounds import SentRound
    from quorlock._core.time import Instant
    from quorlock._drivers.sync.connection_set import ConnectionSet


# A waiter also checks at this interval: the thread that should have passed a set to it may have
# been interrupted.
_LOOK_AGAIN = 0.1  # seconds
# Connection sets per slot: releases need some as well, and connecting again costs more than keeping
# them.
_SETS_PER_SLOT = 2
# An urgent borrower waits this long for a set when there are enough. Connecting takes longer: with
# 64 threads, new sets for most releases halved the rate.
_URGENT_WAITS = 5 * NS_PER_MS
# Two are always useful: one sends while the other's replies are on their way.
_SLOTS_MIN = 2
# A round keeps the interpreter busy for about this many times its sending time.
_BUSY_PER_SENDING = 4
# The number of slots follows the mean of about this many rounds.
_ROUNDS_REMEMBERED = 16


class Borrower:
    """A borrower of connection sets.

    is_urgent: It needs no slot. over: It needs no set any more.
    thread: The thread whose call borrows; 0 if an interrupt cannot end that call.
    stop: Ends its wait for a set.
    """

    __slots__ = ()

    is_urgent: bool
    over = False
    thread = 0
    stop: StopEvent | None = None

    @property
    def is_enlisted(self) -> bool:
        """Return whether it waits in the queues of the nodes; its set stays borrowed."""
        return False

    def recover(self, pool: ConnectionPool) -> None:
        """End the call after an interrupt has cut its own cleanup short."""
        pool.give_back_all(self)


class _SelfBorrower(Borrower):
    """The pool itself as a borrower."""

    __slots__ = ()

    is_urgent = True


class _Waiter:
    """A queued borrower. `called` is a raw lock, released when there may be a set (see `wait`)."""

    __slots__ = ("called", "owner")

    def __init__(self, owner: Borrower) -> None:
        self.owner = owner
        self.called = threading.Lock()
        self.called.acquire()

    def call(self) -> None:
        """Wake the waiter."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self.called.release()


class _Slots:
    """The number of threads that may acquire together (`count`), adapted to their rounds."""

    __slots__ = ("_cap", "_lasting", "_sending", "count")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.count = min(cap, _SLOTS_MIN)
        self._sending = self._lasting = 0  # ns, summed over the last rounds

    def adapt(self, round_: SentRound) -> None:
        """Adapt the slots, such that the interpreter is just busy while replies are pending.

        With more threads, these take the interpreter lock from each other at every system call.
        With 8 slots and nearby nodes a cycle took 1.8 times the CPU of one thread, with 2 or 3
        slots 1.3 times. On a slow network there is more waiting to fill. Sending and waiting for
        the lock both grow with too many threads, so their ratio stays bounded.
        """
        sending, lasting = self._sending, self._lasting
        self._sending += round_.sent_at - round_.started_at - sending // _ROUNDS_REMEMBERED
        self._lasting += now() - round_.started_at - lasting // _ROUNDS_REMEMBERED
        wanted = 1 + self._lasting // (_BUSY_PER_SENDING * self._sending + 1)
        self.count = min(max(wanted, _SLOTS_MIN), self._cap)


class ConnectionPool:
    """The connection sets of a driver, lent to one thread at a time."""

    def __init__(
        self,
        make: Callable[[], ConnectionSet],
        cap: int,
        look_after: Callable[[ConnectionSet], None],
    ) -> None:
        self._make = make
        self._look_after = look_after  # called when a set is returned: replies may be pending on it
        self._kept = _SETS_PER_SLOT * cap
        self._slots = _Slots(cap)
        self._connection_sets: list[ConnectionSet] = []
        self._owners: dict[ConnectionSet, Borrower] = {}  # of the borrowed sets
        self._queue: deque[_Waiter] = deque()
        self._urgent: deque[_Waiter] = deque()  # served first; they wait only briefly
        self._recovering: dict[Borrower, object] = {}
        self.closing = False
        self._drain_until: Instant = PAST  # for sets that are closed
        self._returned = WaitQueue()

    def borrow(
        self, owner: Borrower, by: Instant = FOR_EVER, path: object = None
    ) -> ConnectionSet | None:
        """Borrow `path` if it is free, else any free set or a new one.

        Wait for a slot first, unless the borrower is urgent. Return None if there was no slot by
        `by`.
        """
        if not self._owners and not self._queue:  # no borrowers to count
            try:
                connection_set = self._connection_sets[0]
            except IndexError:  # no set, or a signal handler has just closed it
                pass
            else:
                if self._owners.setdefault(connection_set, owner) is owner:
                    if not connection_set.closed:
                        return connection_set
                    self._owners.pop(connection_set, None)
        self._recover_abandoned(owner.thread)
        if owner.is_urgent:
            return self._take_now(owner, path)
        if not self._queue and (taken := self._take_slot(owner)) is not None:
            return taken
        return self._wait(owner, self._queue, self._take_slot, by)

    def _take_slot(self, owner: Borrower) -> ConnectionSet | None:
        """Return a set if one more may acquire."""
        if _first(self._urgent) is not None or not self._has_slot(owner.thread):
            return None
        return self._free(owner) or (None if self._is_visited() else self._new(owner))

    def _take_now(self, owner: Borrower, path: object) -> ConnectionSet:
        def look(owner: Borrower) -> ConnectionSet | None:
            return self._free(owner, path)

        found = look(owner)
        kept = sum(other.is_enlisted for _, other in self._borrowed())  # not returned soon
        many = len(self._connection_sets) - kept >= _SETS_PER_SLOT * self._slots.count
        if found is None and (many or self._is_visited()):
            found = self._wait(owner, self._urgent, look, now() + _URGENT_WAITS) or look(owner)
        return found or self._new(owner)

    def _free(self, owner: Borrower, path: object = None) -> ConnectionSet | None:
        # The sort is stable: `path` comes first, then the others in their order.
        for connection_set in sorted(self.all(), key=lambda one: one is not path):
            if self._owners.setdefault(connection_set, owner) is owner:
                if not connection_set.closed:
                    return connection_set
                self._owners.pop(connection_set, None)
        return None

    def _new(self, owner: Borrower) -> ConnectionSet:
        connection_set = self._make()
        connection_set.visit = partial(self._visit, connection_set)
        self._owners[connection_set] = owner
        self._connection_sets.append(connection_set)
        return connection_set

    def _wait(
        self,
        owner: Borrower,
        queue: deque[_Waiter],
        look: Callable[[Borrower], ConnectionSet | None],
        by: Instant,
    ) -> ConnectionSet | None:
        """Queue until this borrower is first and there is a set.

        After a long wait, check regardless of earlier waiters. These may be gone, or their calls
        may be interrupted by ours, in the stack of this thread.
        """
        waiter = _Waiter(owner)
        queue.append(waiter)
        try:
            is_first = _first(queue) is waiter
            while True:
                if is_first and (connection_set := look(owner)) is not None:
                    return connection_set
                if (left := by - now()) <= 0 or is_stopped(owner.stop):
                    return None
                called = waiter.called.acquire(timeout=min(left / 1e9, _LOOK_AGAIN))
                is_first = not called or _first(queue) is waiter
                if not called:
                    self._recover_abandoned()
        finally:
            with contextlib.suppress(ValueError):
                queue.remove(waiter)
            self._wake_first()  # there may be more than one set, or we take none

    def give_back(self, connection_set: ConnectionSet, round_: SentRound | None = None) -> None:
        """Return a set, or close it if it is surplus, and wake the first waiter.

        round_: The latest round that was sent over it.
        """
        self._look_after(connection_set)
        # Usually the queue is empty, and there is no surplus.
        if connection_set.closed or self._queue or len(self._connection_sets) > self._kept:
            if round_ is not None and self._queue:
                self._slots.adapt(round_)
            idle = len(self._connection_sets) - len(self._owners)
            is_surplus = idle >= self._kept and not connection_set.has_pending
            if connection_set.closed or is_surplus:
                self._end(connection_set)
        self._owners.pop(connection_set, None)
        if self.closing:  # checked last: a signal handler above may have called `close`
            self._end_if_free(connection_set)
        if self._urgent or self._queue:
            self._wake_first()
        if self._returned.waiting:
            self._returned.wake_all()

    def on_slot_left(self) -> None:
        """Let another thread acquire: a borrower keeps its set, and needs no slot any more."""
        self._wake_first()

    def _wake_first(self) -> None:
        """Wake the first waiter that may have a set now."""
        first = _first(self._urgent)
        if first is None and self._queue and self._has_slot():
            first = _first(self._queue)
        if first is not None:
            first.call()

    def give_back_all(self, owner: Borrower) -> None:
        """Return all sets of a borrower, after an interrupt."""
        for connection_set, other in self._borrowed():
            if other is owner:
                if connection_set.is_busy:
                    connection_set.discard()
                self.give_back(connection_set)

    def _recover_abandoned(self, thread: int = 0) -> None:
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

    def wait_until_idle(self, until: Instant) -> None:
        """Wait until all other threads have returned their sets, until `until` at most.

        Sets of this thread do not count: a signal handler, which called us, has interrupted their
        calls.
        """
        while now() < until and self._others_borrow():
            self._returned.wait(lambda: not self._others_borrow(), until)

    def _others_borrow(self) -> bool:
        thread = threading.get_ident()
        return any(owner.thread != thread for _, owner in self._borrowed())

    def close(self, until: Instant) -> None:
        """Close all idle sets, after draining each until `until`; borrowed ones on their return."""
        self._drain_until = until
        self.closing = True
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

    def _visit(self, connection_set: ConnectionSet, visitor: Borrower | None = None) -> None:
        """Send and receive without waiting, if the set is not borrowed."""
        visitor = visitor or _SelfBorrower()
        if self._owners.setdefault(connection_set, visitor) is visitor:
            connection_set.drain()
            self._owners.pop(connection_set, None)
            if self.closing:  # as in `give_back`
                self._end_if_free(connection_set)
            self._wake_first()

    def _is_visited(self) -> bool:
        """Return whether the pool itself has a set: it is free sooner than a new connection."""
        return any(isinstance(owner, _SelfBorrower) for _, owner in self._borrowed())

    def all(self) -> list[ConnectionSet]:
        """Return all sets, borrowed or not."""
        return list(self._connection_sets)

    def _borrowed(self) -> list[tuple[ConnectionSet, Borrower]]:
        # A copy: other threads borrow and return at any time. Made by `copy`: CPython 3.11 may
        # collect garbage between two pairs of `items`, and finalizers would change the dict.
        return list(self._owners.copy().items())

    def _end_if_free(self, connection_set: ConnectionSet) -> None:
        closer = _SelfBorrower()
        if self._owners.setdefault(connection_set, closer) is closer:
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

    def _has_slot(self, thread: int = 0) -> bool:
        """Return whether one more may acquire. thread: Its own calls do not count.

        The caller is a signal handler that has interrupted them: they end after it.
        """
        acquiring = sum(
            not o.is_urgent and (not thread or o.thread != thread) for _, o in self._borrowed()
        )
        return acquiring < self._slots.count


def _is_abandoned(owner: Borrower) -> bool:
    """Return whether no call of the owner's thread uses it: an interrupt cut its cleanup short.

    A thread that is unknown here (it has ended, or is a greenlet) never counts as gone.
    """
    # There is no public API for this.
    frame = sys._current_frames().get(owner.thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    is_known = frame is not None
    while frame is not None:
        if frame.f_code.co_name == "run_and_claim" and frame.f_locals.get("runner") is owner:
            return False
        frame = frame.f_back
    return is_known


def _first(queue: deque[_Waiter]) -> _Waiter | None:
    """Return the waiter that has waited longest and still waits."""
    with contextlib.suppress(IndexError, ValueError):
        while queue[0].owner.over:
            queue.remove(queue[0])
        return queue[0]
    return None
