"""Pending releases are sent at once, then at doubling pauses, until confirmed or pointless (rule
3).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quorlock._core.commands import Acquire, Extend, Release, ScriptedAcquire
from quorlock._core.effects import Send
from quorlock._core.pending_releases import FIRST_PAUSE, REFUSED_MAX, PendingReleases
from quorlock._core.releases_in_doubt import ReleaseCopy
from quorlock._core.rounds import Target
from quorlock._core.time import FOR_EVER, NS_PER_MS
from quorlock._core.votes import ABSENT, GRANTED
from tests.harness.support.script import LOADING

MAX_TTL = 30_000 * NS_PER_MS
RUN = "run"


def nowhere(token: bytes) -> bool:
    """No connection has an unanswered acquire of this token."""
    return False


TOKENS = st.sampled_from([b"t1", b"t2", b"t3", b"t4"])
RUN_IDS = st.sampled_from(["one", "two", ""])


@dataclass
class Expected:
    """A simple model of a pending release: when and by which connection it was added, when it was
    sent, and when the last copy was lost.
    """

    since: int
    run_id: str
    payments: list[int]
    lost_at: int | None = None

    @property
    def over(self) -> bool:
        """Return whether it was sent when no old bytes could arrive any more."""
        is_last = bool(self.payments) and self.payments[-1] >= self.since + MAX_TTL
        return is_last and self.lost_at is None

    @property
    def due(self) -> int:
        """Return the next time: at once; then 100, 200, 400, ... ms after the previous one; and at
        the end.
        """
        if not self.payments:
            return self.since
        if self.lost_at is not None:
            return self.lost_at
        due = self.payments[-1] + (FIRST_PAUSE << len(self.payments) - 1)
        return due if self.over else min(due, self.since + MAX_TTL)


class PendingReleasesMachine(RuleBasedStateMachine):
    """Add, send and confirm in any order; a plain list of expectations is the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.pending_releases = PendingReleases(MAX_TTL)
        self.expected: dict[bytes, Expected] = {}
        self.now = 1_000 * NS_PER_MS
        self.forgets_at = 0

    def forget_the_expired(self) -> None:
        """Remove entries whose keys have expired; this is done once per MAX_TTL."""
        if self.now >= self.forgets_at:
            self.forgets_at = self.now + MAX_TTL
            for token, pending_release in list(self.expected.items()):
                if pending_release.since + 2 * MAX_TTL <= self.now:
                    del self.expected[token]

    def forget_the_old(self) -> None:
        """Remove an entry one pause after its last send."""
        for token, pending_release in list(self.expected.items()):
            if pending_release.over and pending_release.due <= self.now:
                del self.expected[token]

    @rule(token=TOKENS, run_id=RUN_IDS)
    def add_release(self, token: bytes, run_id: str) -> None:
        self.forget_the_expired()
        self.pending_releases.add(Release(b"key of " + token, token), run_id, self.now)
        known = self.expected.setdefault(token, Expected(self.now, run_id, []))
        known.run_id = known.run_id or run_id
        if known.over:
            known.lost_at = self.now

    @rule(step=st.sampled_from([0, 1, FIRST_PAUSE - 1, FIRST_PAUSE, 3 * FIRST_PAUSE, MAX_TTL // 2]))
    def wait(self, step: int) -> None:
        self.now += step

    @rule()
    def wait_for_the_next(self) -> None:
        self.now = max(self.now, self.pending_releases.next_due() or 0)

    @rule()
    def take_due_releases(self) -> None:
        self.forget_the_old()
        due = [
            token
            for token, pending_release in self.expected.items()
            if pending_release.due <= self.now
        ]
        copies = self.pending_releases.due(self.now, "one")
        assert sorted(copies, key=lambda copy: copy.release.token) == [
            ReleaseCopy(Release(b"key of " + token, token), "one") for token in sorted(due)
        ]
        for token in due:
            self.expected[token].payments.append(self.now)
            self.expected[token].lost_at = None
        assert self.pending_releases.due(self.now, "one") == [], (
            "once sent it is not due at the same instant"
        )

    @rule(token=TOKENS, run_id=RUN_IDS, deleted=st.booleans())
    def answered(self, token: bytes, run_id: str, deleted: bool) -> None:
        self.pending_releases.on_reply(
            Release(b"key of " + token, token), run_id, GRANTED if deleted else ABSENT
        )
        pending_release = self.expected.get(token)
        if pending_release is not None and (deleted or pending_release.run_id != run_id):
            del self.expected[token]

    @invariant()
    def next_due_is_the_earliest(self) -> None:
        assert len(self.pending_releases) == len(self.expected)
        dues = [pending_release.due for pending_release in self.expected.values()]
        assert self.pending_releases.next_due() == min(dues, default=None)


TestPendingReleases = PendingReleasesMachine.TestCase
TestPendingReleases.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_the_life_of_a_pending_release() -> None:
    """Due at once, after 100 ms, 200 ms, 400 ms, ..., and when max_ttl has passed; then gone."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 5)
    assert (len(pending_releases), pending_releases.next_due()) == (1, 5)
    sent_at = []
    while pending_releases.next_due() is not None:
        now = pending_releases.next_due()
        assert now is not None
        sent_at += [now] * len(pending_releases.due(now, RUN))
    pauses = [round((b - a) / NS_PER_MS) for a, b in pairwise(sent_at)]
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 4_500]
    assert len(pending_releases) == 0


def test_the_last_attempt_counts_as_pending_until_it_has_arrived() -> None:
    """A node whose key we are about to delete must not count for an extension."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    assert len(pending_releases.due(MAX_TTL, RUN)) == 1
    assert b"t" in pending_releases
    assert pending_releases.due(MAX_TTL + FIRST_PAUSE, RUN) == []
    assert b"t" not in pending_releases


def test_the_last_attempt_is_repeated_if_its_connection_is_lost() -> None:
    """A clock that jumped ahead may have made it the last one while the key was still there."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    for now in (0, MAX_TTL, MAX_TTL + 1, MAX_TTL + 2):
        assert len(pending_releases.due(now, RUN)) == 1
        assert pending_releases.due(now, RUN) == []
        pending_releases.add(Release(b"k", b"t"), "run", now + 1)
    pending_releases.due(MAX_TTL + 3, RUN)
    assert pending_releases.due(2 * MAX_TTL, RUN) == []
    assert b"t" not in pending_releases


def test_a_node_that_deleted_the_key_may_get_another_copy_of_the_release() -> None:
    """Sent before, over a connection that broke or is slow: until max_ttl after the last one ended
    the key is not restored there and does not count, or a key that was counted would be deleted.
    """
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    for now in (0, FIRST_PAUSE):
        for copy in pending_releases.due(now, "run"):
            pending_releases.on_connection_lost(copy, now + 1)
    pending_releases.on_reply(Release(b"k", b"t"), "run", GRANTED)
    assert b"t" not in pending_releases
    assert pending_releases.may_still_release(b"t", FIRST_PAUSE + MAX_TTL)
    assert not pending_releases.may_still_release(b"t", FIRST_PAUSE + MAX_TTL + 1)


# --- hand-over ----------------------------------------------------------------------------------


def test_a_release_that_was_pending_is_not_sent_after_a_hand_over() -> None:
    """The adopter may count the key.  And that the node never confirmed it goes along."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 5)
    assert pending_releases.suppress(b"t", 7, nowhere) == {"run": 7 + MAX_TTL}
    assert (
        pending_releases.due(10**18, RUN),
        pending_releases.next_due(),
        len(pending_releases),
    ) == ([], None, 0)
    pending_releases.add(Release(b"k", b"t"), "run", 8)
    pending_releases.add_refused(Release(b"k", b"t"), "run", 8)
    assert (
        pending_releases.due(10**18, RUN),
        pending_releases.has_unconfirmed(),
        len(pending_releases),
    ) == ([], False, 0)


def test_nothing_is_in_doubt_of_a_lease_without_pending_releases() -> None:
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"other"), "run", 0)
    pending_releases.due(0, "run")
    assert pending_releases.suppress(b"t", 1, nowhere) == {}


def test_a_release_that_is_under_way_is_in_doubt_without_an_end() -> None:
    """The process that handed the lease over cannot recall the copy, nor know when it is
    answered.
    """
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    pending_releases.due(0, "run")
    assert pending_releases.suppress(b"t", 10 * MAX_TTL, nowhere) == {"run": FOR_EVER}


def test_the_time_of_a_doubt_begins_when_the_copy_ends() -> None:
    """The thread that took the copy may have been delayed before sending it."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    (copy,) = pending_releases.due(0, "run")
    late = 3 * MAX_TTL
    pending_releases.on_connection_lost(copy, late)
    pending_releases.on_reply(Release(b"k", b"t"), "run", GRANTED)
    assert pending_releases.may_still_release(b"t", late + MAX_TTL - 1)
    assert not pending_releases.may_still_release(b"t", late + MAX_TTL)
    assert pending_releases.suppress(b"t", late + 1, nowhere) == {"run": late + MAX_TTL}


def test_a_doubt_names_the_process_that_each_copy_was_sent_to() -> None:
    """One copy to the server before its restart, over a connection that broke; one to the next."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "before", 0)
    (copy,) = pending_releases.due(1, "after")
    pending_releases.on_connection_lost(copy, 2)
    pending_releases.on_reply(Release(b"k", b"t"), "after", ABSENT)
    assert pending_releases.suppress(b"t", 3, nowhere) == {"before": MAX_TTL, "after": 2 + MAX_TTL}


def test_a_hand_over_between_the_taking_and_the_sending() -> None:
    """A release that is taken after the hand-over is not sent; one taken before is in the
    ticket.
    """

    class Interrupted(PendingReleases):
        def hand_over_meanwhile(self, copy: ReleaseCopy, now: int) -> None:
            doubtful.update(self.suppress(copy.release.token, now, nowhere))

    doubtful: dict[str, int] = {}
    pending_releases = Interrupted(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    sent = pending_releases._doubts.sent

    def sent_and_handed_over(copy: ReleaseCopy, now: int) -> None:
        sent(copy, now)
        pending_releases.hand_over_meanwhile(copy, now)

    pending_releases._doubts.sent = sent_and_handed_over  # type: ignore[method-assign]
    assert pending_releases.due(0, "run") == []
    assert doubtful == {"run": FOR_EVER}, "nobody can know, at that instant"
    assert not pending_releases._doubts.is_under_way(b"t")


def test_a_suppression_lasts_as_long_as_anything_is_carried() -> None:
    """A connection may lose an unanswered acquire long after max_ttl, and only then leave a release
    pending.
    """
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.suppress(b"t", 0, nowhere)
    hung = {b"t"}
    for turn in range(1, 5):
        pending_releases.suppress(b"another %d" % turn, turn * 2 * MAX_TTL, hung.__contains__)
    pending_releases.add(Release(b"k", b"t"), "run", 8 * MAX_TTL)
    assert pending_releases.due(10**18, RUN) == []
    hung.clear()
    pending_releases.suppress(b"soon", 9 * MAX_TTL - 1, hung.__contains__)
    pending_releases.add(Release(b"k", b"t"), "run", 9 * MAX_TTL - 1)
    assert pending_releases.due(10**18, RUN) == [], "for max_ttl after the last check"
    pending_releases.suppress(b"last but one", 10 * MAX_TTL, hung.__contains__)
    pending_releases.suppress(b"last", 12 * MAX_TTL, hung.__contains__)
    assert list(pending_releases._suppressed) == [b"last"], "and what is over is forgotten"


def test_a_suppression_lasts_as_long_as_a_release_is_under_way() -> None:
    """No release becomes pending when that connection is lost: these copies would be unknown."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    (copy,) = pending_releases.due(0, "run")
    pending_releases.suppress(b"t", 1, nowhere)
    pending_releases.suppress(b"another", 5 * MAX_TTL, nowhere)
    pending_releases.add(Release(b"k", b"t"), "run", 5 * MAX_TTL)
    pending_releases.on_connection_lost(copy, 5 * MAX_TTL)
    assert pending_releases.due(10**18, RUN) == []


def test_a_lease_that_has_come_back_is_released_again() -> None:
    """But nothing that was carried when it went is: it may have been counted since."""
    pending_releases = PendingReleases(MAX_TTL)
    for carried, releases in ((nowhere, 1), ({b"t"}.__contains__, 0)):
        pending_releases.suppress(b"t", 0, nowhere)
        pending_releases.unsuppress(b"t", carried)
        pending_releases.add(Release(b"k", b"t"), "run", 1)
        assert len(pending_releases.due(1, RUN)) == releases
        pending_releases.on_reply(Release(b"k", b"t"), "run", GRANTED)


def test_a_check_ends_no_suppression_before_its_time() -> None:
    """A hand-over looks at those before it once in MAX_TTL: some are as old, some have begun."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.suppress(b"old", 0, nowhere)
    pending_releases.suppress(b"t", MAX_TTL - 1, nowhere)
    pending_releases.suppress(b"another", MAX_TTL, nowhere)
    for token in (b"old", b"t"):
        pending_releases.add(Release(b"k", token), "run", MAX_TTL)
    assert [copy.release.token for copy in pending_releases.due(MAX_TTL, RUN)] == [b"old"]


def test_thousands_go_and_come_without_a_look_at_all_for_each() -> None:
    """10,000 leases that were handed over and adopted stopped an event loop for half a minute."""

    class Suppressed(dict[bytes, int]):
        looks = 0

        def copy(self) -> dict[bytes, int]:
            self.looks += 1
            return super().copy()

    def carried(token: bytes) -> bool:
        asked.append(token)
        return True

    pending_releases, asked = PendingReleases(MAX_TTL), list[bytes]()
    pending_releases._suppressed = suppressed = Suppressed()
    for number in range(1_000):
        pending_releases.suppress(b"%d" % number, number, nowhere)
        # Adopted from another process: whether its acquire is under way here takes long to find.
        pending_releases.unsuppress(b"other %d" % number, carried)
    assert suppressed.looks == 1
    assert not asked
    assert len(suppressed) == 1_000


# --- what relies on a key -----------------------------------------------------------------------

LACKING = Target(0b100, None)


def test_what_relies_on_a_key_that_may_be_deleted_is_forbidden() -> None:
    """Extensions and restored keys are forbidden, by an own release or by one of the giver."""
    pending_releases = PendingReleases(MAX_TTL)
    extend, release = Extend(b"k", b"t", 1), Release(b"k", b"t")
    acquires = (Acquire(b"k", b"t", 1), ScriptedAcquire(b"k", b"t", 1))
    theirs = {"run": 100, "hung": FOR_EVER}
    for send in (Send(extend), *(Send(a, LACKING) for a in acquires)):
        assert not pending_releases.forbid(send, "run", 0)
        doubtful = send._replace(in_doubt=theirs)
        assert pending_releases.forbid(doubtful, "run", 99)
        assert pending_releases.forbid(doubtful, "hung", 10**18)
        assert not pending_releases.forbid(doubtful, "run", 100)
        assert not pending_releases.forbid(doubtful, "another", 0)
        assert not pending_releases.forbid(doubtful, "", 0)
    for send in (Send(release, in_doubt=theirs), *(Send(a, in_doubt=theirs) for a in acquires)):
        assert not pending_releases.forbid(send, "run", 0)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    assert pending_releases.forbid(Send(extend), "run", 0)
    assert all(pending_releases.forbid(Send(a, LACKING), "whichever", 0) for a in acquires)
    assert not pending_releases.forbid(Send(release), "run", 0)
    assert not pending_releases.forbid(Send(Extend(b"k", b"other", 1)), "run", 0)


def test_a_refused_release_is_tried_again_after_a_pause() -> None:
    """Closing does not wait for it, existing pending releases stay, and their number is bounded."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add_refused(Release(b"k", b"t"), "run", 0)
    assert (
        pending_releases.due(0, RUN),
        pending_releases.next_due(),
        pending_releases.has_unconfirmed(),
    ) == ([], FIRST_PAUSE, False)
    assert pending_releases.due(FIRST_PAUSE, RUN) == [ReleaseCopy(Release(b"k", b"t"), RUN)]
    pending_releases.add(Release(b"k", b"owed"), "run", 0)
    pending_releases.add_refused(Release(b"k", b"owed"), "run", 0)
    assert pending_releases.has_unconfirmed(), "never carried out, whatever a later error says"
    pending_releases.suppress(b"gone", 0, nowhere)
    pending_releases.add_refused(Release(b"k", b"gone"), "run", 0)
    assert not pending_releases.may_still_release(b"gone", FIRST_PAUSE)
    for number in range(2 * REFUSED_MAX):
        pending_releases.add_refused(Release(b"k", b"%d" % number), "run", 0)
    assert len(pending_releases) == REFUSED_MAX


def test_a_pending_release_ends_when_the_node_deleted_the_key() -> None:
    """ "Absent" does not end it: the SET may still be in flight to the same process."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    pending_releases.on_reply(Release(b"k", b"other"), "run", GRANTED)
    pending_releases.on_reply(Release(b"k", b"t"), "run", ABSENT)
    assert len(pending_releases) == 1
    pending_releases.on_reply(Release(b"k", b"t"), "run", GRANTED)
    assert (
        len(pending_releases),
        pending_releases.next_due(),
        pending_releases.due(10**18, RUN),
    ) == (0, None, [])


def test_a_node_that_is_down_for_days_has_few_pending_releases() -> None:
    """Old bytes arrive within MAX_TTL, and a key that they set expires within another MAX_TTL."""
    pending_releases = PendingReleases(MAX_TTL)
    pause, most = MAX_TTL // 10, 0
    for number in range(1_000):
        now = number * pause
        pending_releases.add(Release(b"key", b"%d" % number), RUN, now)
        most = max(most, len(pending_releases))
        for young in range(max(0, number - 19), number + 1):
            assert b"%d" % young in pending_releases
    assert most <= 30


def test_a_pending_release_ends_when_the_node_is_another_process() -> None:
    """Nothing that was sent to the old process can reach the new one."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    pending_releases.on_reply(Release(b"k", b"t"), "another run", ABSENT)
    assert len(pending_releases) == 0


def test_a_release_that_was_refused_is_not_done() -> None:
    """A new process that replies with an error may have kept the key, on its disk."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    pending_releases.on_reply(Release(b"k", b"t"), "another run", LOADING.answer)
    assert b"t" in pending_releases
    assert pending_releases.has_unconfirmed()


def test_a_process_that_may_still_get_the_acquire_is_named_late() -> None:
    """The release was added before the loss of the connection that carries the acquire was seen.

    The old process has replied once, and the acquire may still arrive there.
    """
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "", 0)
    pending_releases.add(Release(b"k", b"t"), RUN, 1)
    pending_releases.on_reply(Release(b"k", b"t"), RUN, ABSENT)
    assert len(pending_releases) == 1
    pending_releases.on_reply(Release(b"k", b"t"), "another run", ABSENT)
    assert len(pending_releases) == 0


def test_adding_twice_is_one_pending_release() -> None:
    """The existing entry stays, with its back-off and its end."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"k", b"t"), "run", 0)
    assert len(pending_releases.due(0, RUN)) == 1
    pending_releases.add(Release(b"k", b"t"), "", 1)
    assert (len(pending_releases), pending_releases.due(1, RUN), pending_releases.next_due()) == (
        1,
        [],
        FIRST_PAUSE,
    )


# --- several keys -----------------------------------------------------------------------------


def test_it_is_released_at_every_key_that_was_named() -> None:
    """A token may be released at some of its keys, and then at all: the widest set stays."""
    pending_releases = PendingReleases(MAX_TTL)
    pending_releases.add(Release(b"b", b"t"), "run", 0)
    pending_releases.add(Release(b"a", b"t", also=(b"b", b"c")), "run", 0)
    pending_releases.add_refused(Release(b"c", b"t"), "run", 0)
    (copy,) = pending_releases.due(0, "run")
    assert copy.release.token == b"t"
    assert sorted(copy.release.keys) == [b"a", b"b", b"c"]


def test_only_a_release_of_all_its_keys_settles_it() -> None:
    """The reply to a release that was sent before the others were named says nothing about them."""
    pending_releases = PendingReleases(MAX_TTL)
    narrow, wide = Release(b"b", b"t"), Release(b"a", b"t", also=(b"b",))
    pending_releases.add(wide, "run", 0)
    pending_releases.on_reply(narrow, "run", GRANTED)
    assert b"t" in pending_releases
    pending_releases.on_reply(wide, "run", GRANTED)
    assert b"t" not in pending_releases
