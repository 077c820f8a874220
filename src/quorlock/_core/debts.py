"""What is still owed to one node: releases that it may not have carried out (rule 3).

A connection that breaks with acquires in flight leaves them ambiguous: the node may have set
the key, may set it in a moment (bytes of a closed connection can still be delivered), or never.
So their releases are owed, as are those that a node answers with an error: paid on the next
connection, and again at growing intervals, until the node says that it deleted the key, or it is
another process by now, or max_ttl has passed: then once more.  Leaves connections and clocks to
the drivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import Release
from quorlock._core.time import NS_PER_MS, PAST

if TYPE_CHECKING:
    from quorlock._core.time import Duration, Instant

FIRST_PAUSE: Duration = 100 * NS_PER_MS
# So many releases that a node refuses are tried again, those beyond end with the ttl.
REFUSED_MAX = 1_000


class _Debt:
    __slots__ = ("due", "last", "paid", "pause", "release", "run_id", "until")

    def __init__(self, release: Release, until: Instant, run_id: str, due: Instant) -> None:
        self.release = release
        self.until = until
        self.run_id = run_id  # of the process that got, or may get, the acquire
        self.due = due
        self.pause: Duration = FIRST_PAUSE
        self.paid = False  # carried out once, but old bytes may still come
        self.last = False  # sent for the last time


class Debts:
    """Releases owed to one node, by token."""

    def __init__(self, max_ttl: Duration) -> None:
        self._max_ttl = max_ttl
        self._by_token: dict[bytes, _Debt] = {}
        self._forgiven: dict[bytes, Instant] = {}
        self._late: dict[bytes, Instant] = {}  # until when a copy of a release may still arrive

    def __len__(self) -> int:
        return len(self._by_token)

    def owe(self, key: bytes, token: bytes, run_id: str, now: Instant) -> None:
        """Note a release that must reach the node, whose old bytes may come until max_ttl."""
        self._note(_Debt(Release(key, token), now + self._max_ttl, run_id, due=now))
        if token not in self._forgiven:
            self._doubt(token, now)

    def refused(self, key: bytes, token: bytes, run_id: str, now: Instant) -> None:
        """Note a release that the node answered with an error, which may pass: try it again.

        Nobody waits for these when closing: the node has been asked.  Bounded, since a node
        that refuses for good refuses every one.
        """
        if len(self._by_token) < REFUSED_MAX:
            debt = _Debt(Release(key, token), now + self._max_ttl, run_id, now + FIRST_PAUSE)
            debt.paid = True
            self._note(debt)

    def _note(self, debt: _Debt) -> None:
        """The first word about a token counts: its pauses go on and its end stays."""
        if debt.release.token not in self._forgiven:
            self._by_token.setdefault(debt.release.token, debt)

    def forgive(self, token: bytes, now: Instant) -> None:
        """Never release this token from here: its lease goes on in another process.

        That process may count the key for an extension; better an orphan for a ttl than a key
        deleted that a validity rests on.
        """
        for old, until in list(self._forgiven.items()):
            if until <= now:
                self._forgiven.pop(old, None)
        self._forgiven[token] = now + self._max_ttl
        self._by_token.pop(token, None)

    def resume(self, token: bytes) -> None:
        """Its lease has come back: releases of it are owed again."""
        self._forgiven.pop(token, None)

    def __contains__(self, token: bytes) -> bool:
        """The release of this token is still to be carried out, or carried out again."""
        return token in self._by_token

    def owes(self, token: bytes, now: Instant) -> bool:
        """A release of this token may still be carried out.

        Such a node must not count for an extension of the lease, nor get its key back by a
        top-up: the key may be there, counted, and then be deleted by us.  Also when the node has
        said "deleted": another copy may be under way, sent before over a connection that broke
        or is slow, and its bytes can come until max_ttl later (found by the model:
        `debts, a copy under way, topped up`).
        """
        return token in self._by_token or self._late.get(token, PAST) > now

    def _doubt(self, token: bytes, now: Instant) -> None:
        """A release of it leaves now, or may have left."""
        self._late.pop(token, None)
        for old, until in list(self._late.items()):  # in the order in which they end
            if until > now:
                break
            self._late.pop(old, None)
        self._late[token] = now + self._max_ttl

    def due(self, now: Instant) -> list[Release]:
        """What to send now; each is due again after a growing pause, until it is settled."""
        # In place, and over copies: another thread may owe something at this moment.
        debts = [debt for debt in list(self._by_token.values()) if debt.due <= now]
        for debt in debts:
            if debt.last:  # kept until now, so that it counted as owed while that was under way
                self._by_token.pop(debt.release.token, None)
            else:
                _schedule(debt, now)
                self._doubt(debt.release.token, now)
        return [debt.release for debt in debts if debt.release.token in self._by_token]

    def unpaid(self) -> bool:
        """Something has never been carried out."""
        return not all(debt.paid for debt in list(self._by_token.values()))

    def next_due(self) -> Instant | None:
        """When the next one is due; None when nothing is owed."""
        return min((debt.due for debt in list(self._by_token.values())), default=None)

    def answered(self, token: bytes, run_id: str, *, deleted: bool) -> None:
        """The node carried the release out; it may be over with that."""
        debt = self._by_token.get(token)
        # A new process gets nothing that was meant for the old one, so once is enough there.
        if debt is None:
            return
        debt.paid = True
        if deleted or debt.run_id != run_id:
            self._by_token.pop(token, None)


def _schedule(debt: _Debt, now: Instant) -> None:
    """When a debt that is being paid now is due again: once at the end of it, in any case.

    Without that, what came in the last and longest gap would have stayed (found by simulation).
    """
    debt.last = now >= debt.until
    due = now + debt.pause
    debt.due = due if debt.last else min(due, debt.until)
    debt.pause *= 2
