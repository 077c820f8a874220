"""Regressions of the simulator: seeds that find planted breaks, plans that found our own defects.

A seed means another world whenever the planner changes. SEEDS has to be regenerated then:

    python -m tests.sim.mutations            searches, and ends with this table

Our own defects are kept as plans, which mean the same for as long as worlds work the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorlock._core.pending_releases import PendingReleases
from tests.sim.small import MS, fault, job, plan

if TYPE_CHECKING:
    from quorlock._core.releases_in_doubt import ReleaseCopy
    from quorlock_sim.plan import Plan

# By the name of the break: the first seed, searched from 0 on, in whose world it is seen. So that
# many worlds and one more it took to find it.
SEEDS = {
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
    "guarded nodes counted in extensions": 0,
    "acquires do not look at the marker": 688,
    "marker of the process before is good": 1,
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
    "no looks": 7,
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


def never_tried_again(
    self: PendingReleases, key: bytes, token: bytes, run_id: str, now: int
) -> None:
    """A release that a node answers with an error is done with."""


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
