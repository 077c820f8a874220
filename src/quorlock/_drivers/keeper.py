"""Keeps the way to one node open, beside everybody's way: connects it, and pays what is owed.

One thread for a node, alive only while there is something to do: in good times there is none.
Leaves talking about locks to the bundles.
"""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING

from quorlock._core.outcomes import Vote
from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._drivers.awaited import Awaited
from quorlock._drivers.clock import now
from quorlock._drivers.connection import Connection, Exchange
from quorlock._drivers.dial import dial
from quorlock._drivers.waiting import Waiters
from quorlock._wire.conversation import Question
from quorlock._wire.handshake import Unfit
from quorlock._wire.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.commands import Release
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant
    from quorlock._drivers.bundle import Bundle
    from quorlock._drivers.members import Member, Members

# A keeper without work ends after this; starting one takes some 0.1 ms.
_IDLE = 200 * NS_PER_MS
_FLUSH_EVERY = 5 * NS_PER_MS
_DEBTS_AT_ONCE = 32


class Keeper:
    """See the module."""

    def __init__(self, member: Member, members: Members, policy: Policy, changed: Waiters) -> None:
        self.member = member
        self.closing = False
        self._members = members
        self._policy = policy
        self._changed = changed  # told when a node turns out to be down
        self._lock = threading.Lock()
        self._sleeping = Waiters()
        self._ended = Waiters()
        self._ident = 0
        self._woken = False
        self._wanting: dict[Bundle, None] = {}
        self._unsent: dict[Connection, None] = {}
        self._awaited = Awaited(member)
        self._own: Connection | None = None  # the one on which debts are paid
        self._until: Instant = FOR_EVER  # when nothing more is to be done
        self._thread: threading.Thread | None = None
        member.on_debt = self._wake
        member.on_unsent = self.has_unsent

    # --- called from any thread --------------------------------------------------------------

    def want(self, bundle: Bundle) -> None:
        """Connect this bundle to the node as soon as may be."""
        if bundle not in self._wanting or self._thread is None:
            self._wanting[bundle] = None
            self._wake()

    def owe(self, question: Question) -> bool:
        """Release that as soon as may be; True: the asker hears what comes of it."""
        return self._awaited.owe(question, closing=self.closing)

    def has_unsent(self, connection: Connection) -> None:
        """Send what this connection could not, when it can."""
        self._unsent[connection] = None
        self._wake()

    def close(self, until: Instant) -> None:
        """Pay what can be paid until then, and end."""
        self.closing = True
        self._until = until
        self._wake()
        # Not Thread.join: it makes a dummy of a thread that threading does not know (ours that
        # give back what is garbage), and keeps it.
        while self._thread is not None and self._ident != threading.get_ident():
            if (left := until - now()) <= 0:
                break
            self._ended.wait(lambda: self._thread is None, left / 1e9)
        self._hang_up()

    def _wake(self) -> None:
        self._woken = True
        self._sleeping.wake_all()
        with self._lock:
            alive = self._thread is not None
        if not alive:
            name = f"quorlock keeper of {self.member.address}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError as error:
                # There are too many, or the interpreter ends. Whoever needs us next tries again.
                self._fail(Unfit(f"not connected: {error}", lasting=False))

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        with self._lock:
            # Taken by the thread itself: whoever started it may have been interrupted, and
            # somebody else have started another.
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
            self._ident = threading.get_ident()
        try:
            while (job := self._next_job()) is not None:
                job()
        except BaseException:
            self._thread = None  # whoever needs a keeper next starts another
            raise

    def _next_job(self) -> Callable[[], None] | None:
        idle_until = now() + _IDLE
        while True:
            self._woken = False
            at = now()
            due, job = self._first(at)
            if job is not None and due <= at:
                return job
            if job is None and (self.closing or at >= idle_until):
                if self._may_end():
                    return None
                continue
            seconds = ((due if job else idle_until) - at) / 1e9
            self._sleeping.wait(lambda: self._woken, seconds)

    def _may_end(self) -> bool:
        """End, unless somebody who saw us alive has left something to do meanwhile."""
        with self._lock:
            if self._first(now())[1] is not None:
                return False
            self._hang_up()
            self._thread = None
        self._ended.wake_all()
        return True

    def _first(self, at: Instant) -> tuple[Instant, Callable[[], None] | None]:
        """What is to be done first, and when."""
        if at >= self._until or (self.closing and not self.member.debts.unpaid()):
            return at, None
        if self._unsent:
            return at, self._flush
        reachable_at = at if self._own is not None else self.member.retry_at
        owed_at = self.member.debts.next_due()
        wanted = bool(self._wanting) and not self.closing
        if owed_at is not None and (not wanted or owed_at <= at):
            # Before any bundle gets its connection: a debt is paid first thing (rule 3).
            return max(owed_at, reachable_at), self._pay
        if wanted:
            return self.member.retry_at, self._connect
        return at, None

    def _flush(self) -> None:
        for connection in list(self._unsent):
            connection.flush()
            if connection.lost or not connection.unsent:
                self._unsent.pop(connection, None)
        if self._unsent:
            self._sleeping.wait(lambda: self.closing, _FLUSH_EVERY / 1e9)
            if self.closing:
                self._unsent.clear()

    def _connect(self) -> None:
        connection = self._dial()
        if connection is None:
            return
        wanting = list(self._wanting)  # at once: others add to it meanwhile
        if not wanting:
            connection.close()
            return
        bundle = wanting[0]
        bundle.arrive(connection)  # first: what is wanted and not there would be wanted twice
        self._wanting.pop(bundle, None)

    def _pay(self) -> None:
        if self._own is None or self._own.lost:
            self._hang_up()
            self._own = self._dial()
            if self._own is None and self.closing:
                self._until = now()  # it is not to be reached, and nobody wants to wait for it
        owed = self.member.debts.due(now()) if self._own is not None else []
        for start in range(0, len(owed), _DEBTS_AT_ONCE):
            if self._own is None or not self._pay_some(self._own, owed[start:][:_DEBTS_AT_ONCE]):
                self._hang_up()
                return

    def _pay_some(self, connection: Connection, owed: list[Release]) -> bool:
        """Send these and hear the answers; False if not all came."""
        exchange = Exchange()
        at = now()
        for number, release in enumerate(owed):
            connection.ask(pack(release), Question(release, exchange, number, at))
        _hear(connection, exchange, len(owed), self._patience())
        exchange.over = True
        for reply in exchange.mail:
            token = owed[reply.round].token
            if reply.answer.is_done:
                deleted = reply.answer.vote is Vote.GRANTED
                self.member.debts.answered(token, connection.run_id, deleted=deleted)
            self._awaited.answer(token, reply.answer, reply.at)
        return not connection.lost and len(exchange.mail) == len(owed)

    def _dial(self) -> Connection | None:
        try:
            return dial(self.member, self._members, self._patience())
        except Exception as error:  # noqa: BLE001 (whatever it is, this node does not vote)
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        at = now()
        self.member.failed(error, at)
        self._awaited.give_up(at)
        self._changed.wake_all()

    def _patience(self) -> Instant:
        return min(now() + self._policy.connect_timeout, self._until)

    def _hang_up(self) -> None:
        connection, self._own = self._own, None
        if connection is not None:
            connection.close()


def _hear(connection: Connection, exchange: Exchange, count: int, until: Instant) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while len(exchange.mail) < count and not connection.lost and (left := until - now()) > 0:
        connection.flush()
        poll.poll(-(-left // NS_PER_MS))
        connection.receive()
