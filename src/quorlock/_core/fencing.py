"""Gives an attempt its fence: a number that a quorum of nodes issued to this very attempt.

A node issues every number at most once, and ever larger ones.  Two quorums share a node; so no
number is given twice, and who asks after another was granted gets a larger one, whatever clocks,
pauses and lost messages do (docs/decisions/0014-fences.md has the proof and what it needs).  Leaves
the acquire round, its time and its give-back to `redlock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.commands import Acquire, AcquireByScript, Raise
from quorlock._core.effects import Elapsed, Receive, Send
from quorlock._core.outcomes import SILENT, Answer, Cause, Vote
from quorlock._core.quorum import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.commands import AnyAcquire
    from quorlock._core.effects import Flow, Receipt, Replied
    from quorlock._core.policy import Policy
    from quorlock._core.time import Instant

# A node issues at least the next multiple of that on its clock, so that nodes whose clocks agree
# issue alike, also where a counter was lost; nearly always one round trip does.
_GRID_MS_MAX = 1_000


def grid_ms(policy: Policy) -> int:
    """What fences are rounded up to on a node's clock; less far ahead of it than `ahead_ms`."""
    return max(1, min(_GRID_MS_MAX, policy.max_ttl_ms // 4))


def ahead_ms(policy: Policy) -> int:
    """How far ahead of its own clock a node issues what others have issued.

    A node that forgot what it issued goes on above its clock, but not before it was kept out for
    max_ttl.  Half of that is for clocks that differ, half for those that are set back meanwhile.
    """
    return policy.max_ttl_ms // 2


def asking_for(
    key: bytes, token: bytes, ttl_ms: int, policy: Policy, *, fenced: bool = False
) -> AnyAcquire:
    """A plain SET where that will do: it costs the least, and other libraries do the same."""
    marker_ms = policy.max_ttl_ms if policy.restart_guard == "marker" else 0
    if not marker_ms and not fenced:
        return Acquire(key, token, ttl_ms)
    return AcquireByScript(key, token, ttl_ms, grid_ms(policy) if fenced else 0, marker_ms)


def agree(
    tally: Tally, key: bytes, token: bytes, receipt: Receipt, valid_until: Instant, policy: Policy
) -> Flow[int]:
    """The fence of an attempt that a quorum has granted in time; 0 if it gets none.

    tally: of its acquire round, in which stragglers are still counted.  Without a fence it is lost,
    with the reasons; unless it is only that the validity is over.
    """
    issued = [answer.fence for answer in tally.answers if answer is not None and answer.fence]
    if issued and issued.count(issued[0]) >= tally.quorum:
        return issued[0]  # nearly always
    until = min(receipt.sent + policy.node_timeout, valid_until)
    fence, at = yield from _highest(tally, until, policy)
    sought, raises = 0, Tally(policy.n, 0)
    if fence and not _is_quorum(_issuers(tally.answers, fence), tally):
        # By compare-and-set, and only while the key is ours.  A blind write, or a number above all
        # others (max + 1), gives the same one to two (found by a model checker).
        sought = fence
        raised = yield Send(Raise(key, token, fence, ahead_ms(policy)), behind=receipt)
        raises.round = raised.round
        until = min(raised.sent + policy.node_timeout, valid_until)
        fence, at = yield from _raised(tally, raises, fence, until)
    if at >= valid_until:
        return 0
    if not fence:
        tally.overrule([_vote(i, tally, raises, sought, policy) for i in range(policy.n)])
    return fence


def _highest(tally: Tally, until: Instant, policy: Policy) -> Flow[tuple[int, Instant]]:
    """The value that a quorum has issued, or the highest that one would; 0: there is none.

    The answers that granted the lock tell, unless clocks are far apart: then those may for which
    its verdict did not wait.
    """
    at: Instant = 0
    while True:
        grants = _grants(tally)
        values = sorted({answer.fence for answer in grants if answer.fence}, reverse=True)
        for value in values:
            if _is_quorum(_issuers(tally.answers, value), tally):
                return value, at
        for value in values:
            if sum(_would_issue(grant, value, policy) for grant in grants) >= tally.quorum:
                return value, at
        if not tally.pending:
            return 0, at
        event: Replied | Elapsed = yield Receive(until)
        at = event.at
        if isinstance(event, Elapsed):
            return 0, at
        tally.count(event)


def _raised(tally: Tally, raises: Tally, fence: int, until: Instant) -> Flow[tuple[int, Instant]]:
    """Hear until a quorum has issued the fence, or another value by stragglers; 0: none has."""
    at: Instant = 0
    while True:
        values = {fence, *(answer.fence for answer in _grants(tally) if answer.fence)}
        unheard, silent = _silent(tally.answers), _silent(raises.answers)
        hope = False
        for value in values:
            issuers = _issuers(tally.answers, value) | _issuers(raises.answers, value)
            if _is_quorum(issuers, tally):
                return value, at
            may_follow = silent if value == fence else unheard
            hope = hope or _is_quorum(issuers | may_follow, tally)
        if not hope:
            return 0, at
        event: Replied | Elapsed = yield Receive(until)
        at = event.at
        if isinstance(event, Elapsed):
            return 0, at
        tally.count(event)
        raises.count(event)


def _grants(tally: Tally) -> list[Answer]:
    return [answer for answer in tally.answers if answer is not None and answer.cause is Cause.YES]


def _issuers(answers: Sequence[Answer | None], fence: int) -> int:
    """Bit i: node i has issued it to us."""
    return sum(1 << node for node, a in enumerate(answers) if a is not None and a.fence == fence)


def _silent(answers: Sequence[Answer | None]) -> int:
    """Bit i: node i has not answered yet."""
    return sum(1 << node for node, answer in enumerate(answers) if answer is None)


def _is_quorum(nodes: int, tally: Tally) -> bool:
    return nodes.bit_count() >= tally.quorum


def _would_issue(grant: Answer, fence: int, policy: Policy) -> bool:
    """As raise.lua decides; its clock has only gone on since it told."""
    may_issue_to = (grant.clock_us // 1_000 + ahead_ms(policy)) * 1_000
    return grant.fence == fence or grant.fence < fence <= may_issue_to


# --- why not ---------------------------------------------------------------------------------


def _vote(node: int, tally: Tally, raises: Tally, sought: int, policy: Policy) -> Answer:
    """What a node's answers come to, when no quorum has issued the fence that was sought."""
    first, second = tally.answers[node], raises.answers[node]
    if first is None:
        return SILENT
    if first.cause is not Cause.YES or (sought and first.fence == sought):
        return first
    if second is None and sought:
        return SILENT
    if second is None or second.cause is Cause.SKEWED or first.fence > sought:
        return Answer(Vote.REFUSED, Cause.SKEWED, _how_skewed(first, tally, policy))
    return second


def _how_skewed(grant: Answer, tally: Tally, policy: Policy) -> str:
    may = f"with fences {ahead_ms(policy) / 1_000:g} s may be"
    clocks = {i: a.clock_us for i, a in enumerate(tally.answers) if a and a.cause is Cause.YES}
    other = max(clocks, key=lambda i: abs(clocks[i] - grant.clock_us))
    apart_us = grant.clock_us - clocks[other]
    if abs(apart_us) > ahead_ms(policy) * 1_000:
        which = "ahead of" if apart_us > 0 else "behind"
        apart = f"{abs(apart_us) / 1_000_000:.1f} s {which} that of {policy.addresses[other]}"
        return f"its clock is {apart}; {may}"
    ahead = (grant.fence - grant.clock_us) / 1_000_000
    return f"its fence counter is {ahead:.1f} s ahead of its clock; {may}"
