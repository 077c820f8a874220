"""The errors in a history. Every finding is a sentence; a good run has none.

The central rule is `overlaps`: no two stays at one resource at the same time. A stay lasts from the
return of the call that granted it to the instant at which its holder stops trusting it, at the
latest `valid_until` (also for a holder that was paused or killed). `broken_words` requires more: no
stay begins before the last instant that another holder was given, even if that holder lost its
lease before; unless it gave the lease up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

from tests.harness.validate.history import Call, History, Stay

Pair = tuple[Stay, Stay]

# When two nodes say yes, one says no and two are away, no quorum says either: these raise
# QuorumUnreachable then, although three have answered.
_BY_TOKEN = ("extend by token", "release by token")

# `until` is translated from another clock of the same machine: so exact is the translation.
CLOCK_NS = 1_000


def overlaps(stays: Iterable[Stay]) -> list[Pair]:
    """Stays that began while another at the same resource had not ended. O(n log n).

    Touching is fine; a stay that was over when it began is none.
    """
    return _clashes(stays, lambda stay: stay.end)


def broken_words(stays: Iterable[Stay]) -> list[Pair]:
    """Return stays that began before an instant that another holder was given and did not give up.

    Stays that overlap are not included.
    """
    clashes = _clashes(stays, lambda stay: stay.reported_until - CLOCK_NS)
    return [(one, other) for one, other in clashes if other.began >= one.end]


def _clashes(stays: Iterable[Stay], end: Callable[[Stay], int]) -> list[Pair]:
    found: list[Pair] = []
    latest: dict[str, Stay] = {}  # of each resource: the one that lasts longest so far
    for stay in sorted(stays, key=lambda stay: stay.began):
        if end(stay) <= stay.began:
            continue
        before = latest.get(stay.resource)
        if before is not None and stay.began < end(before):
            found.append((before, stay))
        if before is None or end(stay) > end(before):
            latest[stay.resource] = stay
    return found


@dataclass
class Judgement:
    """The result of judging a history.

    Attributes:
        overlaps: two held one resource at the same time.
        wrongs: everything else that should not be, in sentences.
        turns: stays of each worker that is known to have had one, by process.
    """

    overlaps: list[Pair]
    wrongs: list[str]
    turns: dict[int, int] = field(default_factory=dict)

    @property
    def content(self) -> bool:
        """Nothing is wrong."""
        return not self.overlaps and not self.wrongs

    def __str__(self) -> str:
        lines = [f"OVERLAP of {describe(pair)}" for pair in self.overlaps]
        return "\n".join([*lines, *self.wrongs]) or "nothing is wrong"


def judge(history: History, killed: Set[int] = frozenset(), *, over: bool = True) -> Judgement:
    """All that is wrong. killed: processes that were killed on purpose.

    over: the run has ended, so that every call and every stay of a process that lived must have.
    """
    stays, calls = list(history.stays.values()), list(history.calls.values())
    wrongs = [
        *history.defects,
        *(f"unreadable record: {line}" for line in history.unreadable),
        *_untrue(stays),
        *(_describe_broken(pair) for pair in broken_words(stays)),
        *_copied(stays),
        *_foreign(history),
        *_misnamed(calls),
        *(f"late by {call.late / 1e9:.3f} s: {call}" for call in calls if call.late),
    ]
    if over:
        wrongs += _unfinished(history, killed)
    turns: dict[int, int] = defaultdict(int)
    for stay in stays:
        turns[stay.pid] += 1
    return Judgement(overlaps(stays), wrongs, dict(turns))


def describe(pair: Pair) -> str:
    """Two stays, and for how long they met."""
    one, other = pair
    both = (min(one.end, other.end) - other.began) / 1e6
    return f"{both:.3f} ms:\n  {one}\n  {other}"


def _describe_broken(pair: Pair) -> str:
    one, other = pair
    early = (one.reported_until - other.began) / 1e6
    return (
        f"granted {early:.3f} ms before the end of what another was promised:\n  {one}\n  {other}"
    )


def around(history: History, pair: Pair) -> list[str]:
    """Return the other events at that resource then, in order."""
    one, other = pair
    since, until = one.began, max(one.end, other.end)
    near = [s for s in history.stays.values() if s.resource == one.resource]
    calls = [c for c in history.calls.values() if {c.pid} & {one.pid, other.pid}]
    events = [(s.began, str(s)) for s in near if s.began < until and s.end > since]
    events += [(c.asked, str(c)) for c in calls if since <= c.asked < until]
    return [text for _, text in sorted(events)]


def _untrue(stays: Iterable[Stay]) -> Iterable[str]:
    """`held` said yes after `valid_until`, or an extension took something away."""
    for stay in stays:
        if stay.last_still > stay.until + CLOCK_NS:
            beyond = (stay.last_still - stay.until) / 1e6
            yield f"`held` was true {beyond:.3f} ms after its validity ended: {stay}"
        if stay.shortened and not stay.slept_within:
            yield f"an extension shortened its validity: {stay}"
        if stay.ended is not None and stay.ended < stay.began:
            yield f"ended before it began: {stay}"


def _copied(stays: Iterable[Stay]) -> Iterable[str]:
    """A token serves one stay, and another only after it was handed over."""
    by_token: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_token[stay.token].append(stay)
    for chain in by_token.values():
        chain.sort(key=lambda stay: stay.began)
        for stay in chain[:-1]:
            if stay.how != "handed over":
                yield f"its token was used again without being handed over: {stay}"


def _foreign(history: History) -> Iterable[str]:
    """Return writes of others while it held the lock, by the file itself and not by a clock.

    A holder may be descheduled between its last check of the lease and its write: if it recorded
    that it was late, or was killed before it could record anything, the lock is not to blame.
    """
    for at, stay, found in history.meetings:
        pid, _, turn = found.partition(".")
        other = history.stays.get((int(pid), int(turn))) if turn.isdecimal() else None
        if other is None or other.wrote:
            yield f"at {at} it found {found!r} in the file of what it held: {stay}; {other}"


def _misnamed(calls: Iterable[Call]) -> Iterable[str]:
    """An error that its own votes contradict."""
    for call in calls:
        votes = call.facts
        if not votes.get("nodes") or call.verb in _BY_TOKEN:
            continue
        needed = votes["nodes"] // 2 + 1
        # A quarantine ends: these nodes are waited for, whatever errors the others reply.
        voted = votes["answered"] - votes["unfit"]
        is_waiting = voted < needed <= voted + votes["quarantined"]
        wrong = {
            "AcquireTimeout": votes["answered"] < needed,
            "QuorumUnreachable": votes["answered"] >= needed and not is_waiting,
            "NodeError": votes["unfit"] == 0,
        }
        if wrong.get(call.outcome):
            yield f"its votes say otherwise: {call}"


def _unfinished(history: History, killed: Set[int]) -> Iterable[str]:
    for process in history.processes.values():
        if process.left is None and process.pid not in killed:
            yield f"process {process.pid} never said bye"
    for call in history.calls.values():
        if call.returned is None and call.pid not in killed:
            yield f"never ended: {call}"
    for stay in history.stays.values():
        if stay.ended is None and stay.pid not in killed:
            yield f"its holder never said that it ended: {stay}"
    for pid, rest in history.cut.items():
        if pid not in killed:
            yield f"process {pid}: its last line is cut: {rest[:80]!r}"
