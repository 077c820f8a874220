"""Pending releases of one node: releases that it may not have carried out (rule 3).

A connection that breaks with acquires in flight leaves them ambiguous.  The node may have set the
key, may set it in a moment (bytes of a closed connection can still be delivered), or never.  So
their releases become pending, as do releases that a node answers with an error.

A pending release is sent on the next connection, and again at growing intervals.  It ends when the
node confirms that it deleted the key, or when another process has replied at the address.  After
max_ttl it is sent once more, for the last time, and again if the connection breaks before the
reply.  One that could not be sent for twice that time is forgotten: what it would delete has
expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import ACQUIRES, Extend, Release, replaced_token
from quorlock._core.releases_in_doubt import ReleaseCopy, ReleasesInDoubt
from quorlock._core.time import NS_PER_MS, PAST
from quorlock._core.votes import Vote

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.effects import Send
    from quorlock._core.time import Duration, Instant
    from quorlock._core.votes import Answer

FIRST_PAUSE: Duration = 100 * NS_PER_MS
# The most refused releases that are retried; the keys of further ones expire with their ttl.
REFUSED_MAX = 1_000


class _PendingRelease:
    __slots__ = ("due", "keys", "last", "pause", "run_id", "sent", "token", "until")

    def __init__(self, release: Release, until: Instant, run_id: str, due: Instant) -> None:
        self.token = release.token
        self.keys = dict.fromkeys(release.keys)  # in order; another thread may add keys
        self.until = until
        self.run_id = run_id  # of the process that got, or may get, the acquire
        self.due = due
        self.pause: Duration = FIRST_PAUSE
        self.sent = False  # carried out once, but old bytes may still arrive
        self.last = False  # sent for the last time

    @property
    def release(self) -> Release:
        """The command, for all of the keys."""
        key, *also = self.keys.copy()
        return Release(key, self.token, also=tuple(also))


class PendingReleases:
    """The pending releases of one node, by token."""

    def __init__(self, max_ttl: Duration) -> None:
        self._max_ttl = max_ttl
        self._by_token: dict[bytes, _PendingRelease] = {}
        self._suppressed: dict[bytes, Instant] = {}  # tokens; when to check them again
        self._doubts = ReleasesInDoubt(max_ttl)
        self._forgets_at: Instant = PAST
        self._checks_at: Instant = PAST

    def __len__(self) -> int:
        return len(self._by_token)

    def add(self, release: Release, run_id: str, now: Instant) -> None:
        """Add a release that must reach the node; old bytes may arrive until max_ttl."""
        self._forget_expired(now)
        known = self._by_token.get(release.token)
        if known is not None and known.last:
            known.last, known.due = False, now  # the last copy may be lost with its connection
        self._note(_PendingRelease(release, now + self._max_ttl, run_id, due=now))
        if run_id and release.token not in self._suppressed:
            self._doubts.note(release.token, run_id, now)

    def add_refused(self, release: Release, run_id: str, now: Instant) -> None:
        """Add a release that the node answered with an error which may pass: retry it.

        `close` does not wait for these: the node has been asked.  Bounded, since a node that always
        refuses refuses every release.
        """
        if len(self._by_token) < REFUSED_MAX:
            pending_release = _PendingRelease(
                release, now + self._max_ttl, run_id, now + FIRST_PAUSE
            )
            pending_release.sent = True
            self._note(pending_release)

    def _forget_expired(self, now: Instant) -> None:
        """Forget the releases whose keys have expired: a node may be down for days.

        The last bytes arrive at `until`, and a key that they set is there for max_ttl.
        """
        if now >= self._forgets_at:  # seldom: there may be many
            self._forgets_at = now + self._max_ttl
            for old in list(self._by_token.copy().values()):
                if old.until + self._max_ttl <= now:
                    self._by_token.pop(old.token, None)

    def _note(self, pending_release: _PendingRelease) -> None:
        """Keep an existing entry for the token, with its back-off and expiry; add its keys.

        A token may be released at some of its keys only, and then at all of them.
        """
        token = pending_release.token
        if token not in self._suppressed:
            kept = self._by_token.setdefault(token, pending_release)
            kept.keys.update(pending_release.keys)
            # A release may be added before the acquire that may still arrive at this process.
            kept.run_id = kept.run_id or pending_release.run_id

    def suppress(
        self, token: bytes, now: Instant, carried: Callable[[bytes], bool]
    ) -> dict[str, Instant]:
        """Never release this token from here; return which releases of it are in doubt.

        Its lease continues in another process, which may count the key.  An orphaned key for one
        ttl is better than deleting a key that a validity rests on.  The token is suppressed while a
        living connection has not answered its acquire (`carried`), or while a release of it is in
        flight.  It stays suppressed for max_ttl after the last check that found either, and until a
        check: there is one in max_ttl, at a hand-over.
        """
        if now >= self._checks_at:  # seldom: there may be thousands
            self._checks_at = now + self._max_ttl
            for old, until in list(self._suppressed.copy().items()):
                if until <= now:
                    if self._is_carried(old, carried):
                        self._suppressed[old] = now + self._max_ttl
                    else:
                        self._suppressed.pop(old, None)
        # First of all: a release that `due` takes from now on is not sent.
        self._suppressed[token] = now + self._max_ttl
        pending_release = self._by_token.pop(token, None)
        in_doubt = self._doubts.still_in_doubt(token, now)
        # Not confirmed: it may have been sent.
        if pending_release is not None and pending_release.run_id:
            end = now + self._max_ttl
            in_doubt[pending_release.run_id] = max(end, in_doubt.get(pending_release.run_id, PAST))
        return in_doubt

    def unsuppress(self, token: bytes, carried: Callable[[bytes], bool]) -> None:
        """Allow releases of this token again: its lease has come back.

        Releases sent before it went stay in doubt: an extension may have been counted in between.
        """
        if token in self._suppressed and not self._is_carried(token, carried):
            self._suppressed.pop(token, None)

    def _is_carried(self, token: bytes, carried: Callable[[bytes], bool]) -> bool:
        return self._doubts.is_under_way(token) or carried(token)

    def __contains__(self, token: bytes) -> bool:
        """Return whether a release of this token is still to be sent, or sent again."""
        return token in self._by_token

    def may_still_release(self, token: bytes, now: Instant) -> bool:
        """Return whether a release of this token may still be carried out.

        Such a node must not count for an extension of the lease, nor get its key restored.  The key
        may be there, be counted, and then be deleted by us.  This also holds after the node has
        replied "deleted".  Another copy may be in flight, sent before over a connection that broke
        or is slow. Its bytes can arrive until max_ttl later (found by the model: `pending, a
        copy under way, restored`).
        """
        return token in self._by_token or self._doubts.are_about(token, now)

    def forbid(self, send: Send, run_id: str, at: Instant) -> bool:
        """Return whether this command must not be sent to that server process.

        An extension or a restored key relies on our key, which a release may still delete: a
        release of this process, or of an earlier holder of the lease.
        """
        command, _, _, _, in_doubt, _ = send
        if not relies_on_key(send):
            return False
        if in_doubt is not None and in_doubt.get(run_id, PAST) > at:
            return True
        return self.may_still_release(getattr(command, "token", b""), at)

    def due(self, now: Instant, run_id: str) -> list[ReleaseCopy]:
        """Return the releases to send now to that server process.

        `on_connection_lost` must follow each. Each is due again after a growing pause, until it is
        settled.
        """
        copies: list[ReleaseCopy] = []
        # In place, and over copies: another thread may add a release at this moment.
        for pending_release in [
            pending_release
            for pending_release in list(self._by_token.copy().values())
            if pending_release.due <= now
        ]:
            if (
                pending_release.last
            ):  # kept until now, so that it counted as pending while in flight
                self._by_token.pop(pending_release.token, None)
                continue
            _schedule(pending_release, now)
            copy = self.take_due(pending_release.release, run_id, now)
            if pending_release.token in self._by_token:
                copies.append(copy)
            else:  # handed over at this moment
                self._doubts.on_connection_lost(copy, now)
        return copies

    def take_due(self, release: Release, run_id: str, now: Instant) -> ReleaseCopy:
        """Note a copy of a release that is sent now; `on_connection_lost` must follow."""
        copy = ReleaseCopy(release, run_id)
        self._doubts.sent(copy, now)
        return copy

    def on_connection_lost(self, copy: ReleaseCopy, now: Instant) -> None:
        """Note that a copy was answered, or its connection is lost, or it was not sent at all."""
        self._doubts.on_connection_lost(copy, now)

    def has_unconfirmed(self) -> bool:
        """Return whether any pending release has never been carried out."""
        return not all(
            pending_release.sent for pending_release in list(self._by_token.copy().values())
        )

    def next_due(self) -> Instant | None:
        """Return when the next release is due; None if none is pending."""
        return min(
            (pending_release.due for pending_release in list(self._by_token.copy().values())),
            default=None,
        )

    def on_reply(self, release: Release, run_id: str, answer: Answer) -> None:
        """Note the reply to a release, and remove the release if that settles it."""
        token = release.token
        pending_release = self._by_token.get(token)
        if pending_release is None or not answer.is_done:
            return
        if not pending_release.keys.keys() <= {*release.keys}:
            return  # keys were added since it was sent
        pending_release.sent = True
        # Bytes meant for the old process never reach a new one, so once is enough there.
        if answer.vote is Vote.GRANTED or pending_release.run_id != run_id:
            self._by_token.pop(token, None)


def relies_on_key(send: Send) -> bool:
    """Return whether the command extends a key, or restores one behind the round that set it.

    An exchange is behind a round too, and relies on no key: its token is fresh, so no release of it
    is pending.  A release of the token that it replaces finds either that token, before the
    exchange, which then sets an absent key, or the fresh one, and changes nothing.
    """
    command, behind, _, _, _, _ = send
    return type(command) is Extend or (
        behind is not None and type(command) in ACQUIRES and not replaced_token(command)
    )


def _schedule(pending_release: _PendingRelease, now: Instant) -> None:
    """Set when a release that is sent now is due again: in any case once at its end.

    Without that, bytes that arrive in the last and longest gap would leave a key (found by
    simulation).
    """
    pending_release.last = now >= pending_release.until
    due = now + pending_release.pause
    pending_release.due = due if pending_release.last else min(due, pending_release.until)
    pending_release.pause *= 2
