"""Regressions of the simulator: seeds that find planted breaks, plans that found our own defects.

A seed means another world whenever the planner changes. SEEDS has to be regenerated then:

    python -m tests.sim.mutations            searches, and ends with this table

Our own defects are kept as plans, which mean the same for as long as worlds work the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quorlock._core.commands import Release
from quorlock._core.line import Line
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.places import RESERVED
from quorlock._protocol.peer import Peer
from quorlock.testing.fake_node import FakeNode
from tests.sim.small import MS, fault, job, plan

if TYPE_CHECKING:
    from quorlock._core.member import Member
    from quorlock._core.releases_in_doubt import ReleaseCopy
    from quorlock._core.votes import Answer
    from quorlock.testing.fake_node import Reply
    from quorlock_sim.plan import Plan

# By the name of the break: the first seed, searched from 0 on, in whose world it is seen. So that
# many worlds and one more it took to find it.
SEEDS = {
    "permits are counted": 64,
    "permits that others gave are not released": 64,
    "a pending release of several keys is narrowed": 1_768,
    "replies not tied to rounds": 15,
    "token reused between attempts": 5,
    "quorum of N/2": 3,
    "elapsed time not subtracted": 101,
    "drift left out": 1_669,
    "validity measured from the reply": 173,
    "validity measured from after the sending": 2_467,
    "release by plain DEL": 1,
    "give-back only on nodes that said yes": 5,
    "release overtaking acquire": 1_666,
    "release forgotten where nothing can be sent": 350,
    "extended though a release is pending": 9,
    "pending releases not sent after a reconnect": 56,
    "no pending release for a lost connection": 56,
    "a lost connection leaves the keys of its open requests": 56,
    "open requests answered before their pending releases": 3_982,
    "a refused release is not retried": 1_572,
    "handed over without its doubts": 9,
    "doubts of others are not handed on": 9,
    "doubt counted from the taking": 9,
    "suppressed for max_ttl only": 0,
    "extend that re-creates": 207,
    "extend counted after the old validity": 7,
    "extension that may shorten": 34,
    "restarted empty inside the ttl, votes at once": 13,
    "even-N tie waits for ever": 8,
    "wall clock in place of elapsed time": 118,
    "SET without NX": 0,
    "quarantine shorter than the ttl": 227,
    "uptime taken at its word": 10_878,
    "quarantine counted as an outage": 6,
    "votes of nodes in quarantine counted": 1,
    "guarded nodes counted in extensions": 7,
    "acquires do not look at the marker": 688,
    "marker of the process before is good": 0,
    "other connections to a replica stay open": 2,
    "a replica votes at once when it is a master": 23,
    "renewal without a cap": 1,
    "repaired nodes counted for continuity": 13,
    "repair after a round that was not won": 13,
    "renewed validity measured from the reply": 3,
    "renewal that outlives its lease": 13,
    "release overtaking a restored key": 3_265,
    "loss reported by renewal alone": 1,
    "loss reported at the end": 1,
    "alarm counted from the reply": 1,
    "lost lease released before its end": 1,
    "loss seen in a renewal, released at once": 967,
    "loss seen in an extension, released at once": 11_357,
    "fence = max without write-back": 4,
    "fence = the quorum-th largest": 1,
    "fence = max + 1, written blindly": 335,
    "blind write-back": 929,
    "fence counter from 0": 2,
    "old fence counter goes on": 1_239,
    "no looks": 17,
    "only the first looks": 58,
    "a line never stalls": 1,
    "lost round does not queue again": 37,
    "stray call not answered": 1,
    "exchange before the end of the lease": 3,
    "a called waiter ignores the holder": 5,
    "reservation keeps no other out": 702,
    "correction adds a place": 1,
    "old token kept after a lost exchange": 5,
    "place not removed": 41,
    "reservation without expiry": 59,
    "dead place not skipped": 53,
    "kept without comparing": 1,
    "kept without a quorum": 1_180,
    "mark expires early": 1,
    "without a flow: cancelled and not released": 142,
    "without a flow: the flow begins again": 5,
    "several keys: a grant sets the first only": 0,
    "several keys: a node grants in part": 0,
    "several keys: released at the first only": 5,
    "several keys: pending release narrowed": 19,
    "several keys: fence above one counter": 231,
    "several keys: queues exchanged without a pause": 16,
    "several keys: a pause shorter than an attempt": 125,
    "shared: readers are counted": 2,
    "shared: a release deletes all readers": 8,
    "shared: readers beside a holder": 1,
    "shared: the set ends with the first": 18,
    "shared: extension makes a reader": 1_123,
    "shared: restored as a holder": 131,
}


@dataclass(frozen=True)
class Kept:
    """A defect that we had: the small world that shows it, and the code as it was.

    old: what to put in place of what, to have the defect again.
    """

    name: str
    rule: str
    plan: Plan
    old: tuple[tuple[Any, str, Any], ...]


def due_as_it_was(self: PendingReleases, now: int, run_id: str) -> list[ReleaseCopy]:
    """Pending releases end when max_ttl is over: a key that arrived after the last send before that
    stayed.
    """
    for token, pending_release in list(self._by_token.items()):
        if pending_release.until <= now:
            self._by_token.pop(token, None)
    pending_list = [
        pending_release for pending_release in self._by_token.values() if pending_release.due <= now
    ]
    for pending_release in pending_list:
        pending_release.due = now + pending_release.pause
        pending_release.pause *= 2
    return [self.take_due(pending_release.release, run_id, now) for pending_release in pending_list]


def lost_copies_are_forgotten(
    self: PendingReleases, release: Release, run_id: str, now: int
) -> None:
    """A connection that breaks before the reply to the last copy changes nothing."""
    known = self._by_token.get(release.token)
    if known is None or not known.last:
        _add(self, release, run_id, now)


_add = PendingReleases.add


def never_tried_again(self: PendingReleases, release: Release, run_id: str, now: int) -> None:
    """A release that a node answers with an error is done with."""


def never_queued_again(self: Line, member: Member) -> None:
    """A waiter whose place an exchange has removed finds out when it looks."""
    if self._first.setdefault(None, member) is not member:
        self._put_in_front(member)
    elif not member.is_asking:
        member.promote()


def alive_when_read(self: Peer, answer: Answer, at: int, *, blame: bool = True) -> None:
    """A server counts as alive when something from it is read."""
    self.alive_at = self.replied_at - (self.node_state.latency or 0)
    _register_loss(self, answer, at, blame=blame)


_register_loss = Peer.register_loss


def gives_its_turn_away(
    self: FakeNode,
    key: bytes,
    token: bytes | None,
    at: int,
    place: bytes = b"",
    action: int = 0,
    also: tuple[bytes, ...] = (),
) -> Reply:
    """A look at a place that has just been called passes the lock on."""
    entry = self.alive(key, at)
    is_called = bool(place) and entry is not None and entry.value == RESERVED + place
    passed = entry.value if entry and is_called and action > 0 and not token else token
    return _release(self, key, passed, at, place, action, also)


_release = FakeNode.release

_SECOND_CALLER = job(after=200 * MS, timeout=5_000 * MS)
_WAITERS = plan(
    [job(hold=1_500 * MS)],
    [job(after=100 * MS, timeout=5_000 * MS, hold=520 * MS, extensions=((400 * MS, 1_000),))],
    *[[job(after=1_502 * MS, timeout=5_000 * MS)]] * 3,
    lasts=5_000 * MS,
)

DEFECTS = (
    # The SET of c0.1 is in flight to n2 when the connection breaks. c0 sends its pending release
    # 50, 150, 350 and 750 ms later; the bytes of the old connection arrive at 890 ms, and the key
    # would stay for its ttl. The release at 1,000 ms finds it.
    Kept(
        "a debt was paid for the last time before the last late bytes came",
        "leftover",
        plan(
            [job(hold=2 * MS)],
            [],
            faults=[fault("break", MS // 20, client=0, node=2, amount=1000, lasts=890 * MS)],
            lasts=100 * MS,
        ),
        ((PendingReleases, "due", due_as_it_was),),
    ),
    # The connection to n2 breaks before the release of c0.1 arrives, and c0's clock jumps by 15 s.
    # So the pending release that it sends at 52.45 ms is the last one. That connection breaks too.
    Kept(
        "the last copy of a pending release was lost with its connection",
        "leftover",
        plan(
            [job(hold=2 * MS, ttl_ms=10_000)],
            [],
            faults=[
                fault("break", 2 * MS + MS // 4, client=0, node=2, amount=0, lasts=MS),
                fault("client_step", 3 * MS, client=0, amount=15_000 * MS),
                fault("break", 52 * MS + MS // 2, client=0, node=2, amount=0, lasts=MS),
            ],
            lasts=150 * MS,
            max_ttl_ms=10_000,
        ),
        ((PendingReleases, "add", lost_copies_are_forgotten),),
    ),
    # n2 is a replica for a moment when c0 releases, and says so. It is a master again 5 ms later,
    # and keeps the key for the ttl, unless it is asked once more.
    Kept(
        "a release that was answered by an error was never tried again",
        "leftover",
        plan(
            [job(after=8 * MS, hold=2 * MS, ttl_ms=10_000)],
            [],
            faults=[fault("read_only", 9 * MS, node=2, lasts=5 * MS)],
            lasts=20 * MS,
            max_ttl_ms=10_000,
        ),
        ((PendingReleases, "add_refused", never_tried_again),),
    ),
    # c0 holds the lock for longer than its ttl, and a second caller of it waits. c1 has the lock
    # when c0 releases: the exchange for that caller does not win, and has removed its place. The
    # next callers come then, and c1 releases at 1,520 ms.
    Kept(
        "an exchange that did not win left its waiter out of the queues",
        "passes",
        replace(_WAITERS, workloads=(*_WAITERS.workloads, (_SECOND_CALLER,)), hosts=(0,)),
        ((Line, "put_back", never_queued_again),),
    ),
    # c1 is queued with the number 2, and looks at 202.4 ms. The look crosses its call, and c3 has
    # just joined the empty queue with the number 1; c4 does so while c1 loses its attempt.
    Kept(
        "a look that crossed its call gave the turn away",
        "passes",
        plan(
            [job(hold=202 * MS + MS // 10)],
            [job(after=2 * MS, timeout=5_000 * MS)],
            [job(after=MS, timeout=5 * MS)],
            [job(after=201 * MS + 95 * MS // 100, timeout=5_000 * MS)],
            [job(after=202 * MS + MS // 5, timeout=5_000 * MS)],
            n=1,
            lasts=300 * MS,
        ),
        ((FakeNode, "release", gives_its_turn_away),),
    ),
    # c0 is paused when it is called, and n2 is restarted then. At 3 s c0 reads the call of the
    # former process. n1 is down, so n2 has to vote, and c0 took it for another server until 4 s.
    Kept(
        "a call that was read after a pause showed that its server was alive",
        "patience",
        plan(
            [job(after=5 * MS, timeout=5_000 * MS)],
            [job(hold=20 * MS)],
            faults=[
                fault("pause", 10 * MS, client=0, lasts=3_000 * MS),
                fault("crash_lost", 50 * MS, node=2, lasts=100 * MS),
                fault("crash_kept", 2_000 * MS, node=1, lasts=2_500 * MS),
            ],
            lasts=5_000 * MS,
        ),
        ((Peer, "register_loss", alive_when_read),),
    ),
)

# Not a defect, but a documented limit: True of `extend(resource, token)` does not mean that no
# other client held the lock in between. n0 is slow, so that its key of c0.1 lives 19 ms longer; a
# partition delays the SET for n2. When c0.1 has expired, n1 and n2 grant the lock to c1, which
# releases it. Then the old SET arrives, and n0 and n2 are a majority for the token of c0.1 again.
NOT_CONTINUOUS = plan(
    [job(hold=991 * MS, ending="by_token")],
    [job(after=1_002 * MS, hold=2 * MS, once=True)],
    faults=[
        fault("slow", 0, node=0, amount=19 * MS, lasts=5 * MS),
        fault("one_way_to", 0, client=0, node=2, lasts=1_007 * MS),
    ],
    lasts=1_100 * MS,
)
