"""What was found once and is looked for ever since: seeds for breaks, plans for our own defects.

A seed means another world whenever the planner changes, so SEEDS is made anew then:

    python -m tests.simulation.mutations            searches, and ends with this table

Our own defects are kept as plans, which mean the same for as long as worlds work the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorlock._core.debts import Debts
from tests.simulation.small import MS, fault, job, plan

if TYPE_CHECKING:
    from quorlock._core.commands import Release
    from quorlock.testing.plan import Plan

# By the name of the break: the first seed, searched from 0 on, in whose world it is seen. So that
# many worlds and one more it took to find it.
SEEDS = {
    "replies not tied to rounds": 15,
    "token reused between attempts": 5,
    "quorum of N/2": 0,
    "elapsed time not subtracted": 101,
    "drift left out": 1_669,
    "validity measured from the reply": 3_895,
    "validity measured from after the sending": 2_467,
    "release by plain DEL": 1,
    "give-back only on nodes that said yes": 5,
    "release overtaking acquire": 699,
    "debt not paid after a reconnect": 56,
    "no debt for a lost connection": 56,
    "extend that re-creates": 296,
    "extend counted after the old validity": 7,
    "extension that may shorten": 34,
    "restarted empty inside the ttl, votes at once": 13,
    "even-N tie waits for ever": 7,
    "wall clock in place of elapsed time": 194,
    "SET without NX": 0,
    "quarantine shorter than the ttl": 4_527,
    "uptime taken at its word": 10_878,
    "guarded nodes counted in extensions": 0,
    "acquires do not look at the marker": 688,
    "marker of the process before is good": 1,
    "renewal without a cap": 1,
    "repaired nodes counted for continuity": 37,
    "repair after a round that was not won": 37,
    "renewed validity measured from the reply": 5,
    "renewal that outlives its lease": 26,
    "release overtaking a top-up": 3_265,
    "loss told by renewal alone": 31,
    "loss told at the end": 1,
    "alarm counted from the reply": 1,
    "fence = max without write-back": 4,
    "fence = the quorum-th largest": 3,
    "fence = max + 1, written blindly": 335,
    "blind write-back": 929,
    "fence counter from 0": 2,
    "old fence counter goes on": 1_239,
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


def due_as_it_was(self: Debts, now: int) -> list[Release]:
    """Debts end when max_ttl is over: what came after the last payment before that stayed."""
    for token, debt in list(self._by_token.items()):
        if debt.until <= now:
            self._by_token.pop(token, None)
    owed = [debt for debt in self._by_token.values() if debt.due <= now]
    for debt in owed:
        debt.due = now + debt.pause
        debt.pause *= 2
    return [debt.release for debt in owed]


def never_tried_again(self: Debts, key: bytes, token: bytes, run_id: str, now: int) -> None:
    """A release that a node answers with an error is done with."""


DEFECTS = (
    # The SET of c0.1 is on its way to n2 when the connection breaks. c0 pays its debt 50, 150, 350
    # and 750 ms after; the bytes of the old connection come at 890 ms, and the key would stay for
    # its ttl. The payment at 1,000 ms finds it.
    Kept(
        "a debt was paid for the last time before the last late bytes came",
        "leftover",
        plan(
            [job(hold=2 * MS)],
            [],
            faults=[fault("break", MS // 20, client=0, node=2, amount=1000, lasts=890 * MS)],
            lasts=100 * MS,
        ),
        ((Debts, "due", due_as_it_was),),
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
        ((Debts, "refused", never_tried_again),),
    ),
)

# Not a defect, but a limit that the docs state: True of `extend(resource, token)` does not tell
# that nobody held in between. n0 is slow, so that its key of c0.1 lives 19 ms longer; the SET for
# n2 is held back by a partition. When c0.1 has run out, c1 is granted the lock by n1 and n2, and
# lets it go. Then the old SET arrives, and n0 and n2 are a majority for the token of c0.1 again.
NOT_CONTINUOUS = plan(
    [job(hold=991 * MS, ending="by_token")],
    [job(after=1_002 * MS, hold=2 * MS, once=True)],
    faults=[
        fault("slow", 0, node=0, amount=19 * MS, lasts=5 * MS),
        fault("one_way_to", 0, client=0, node=2, lasts=1_007 * MS),
    ],
    lasts=1_100 * MS,
)
