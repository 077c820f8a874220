"""The fence of an attempt: a number that a quorum of nodes issued to this very attempt.

A node issues every number at most once, and in rising order.  Two quorums share a node.  So no
number is given twice, and a later request gets a larger number, whatever clocks, pauses and lost
messages do (docs/contributing/decisions/0014-fences.md has the proof and its assumptions).
`redlock` has the acquire round, its deadline and its release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.effects import Receive, Send, Timeout
from quorlock._core.tally import Tally
from quorlock._core.votes import TIMED_OUT, Answer, Vote
from quorlock.errors import VoteCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorlock._core.claims import Claim
    from quorlock._core.config import Policy
    from quorlock._core.effects import Flow
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant


def ahead_ms(policy: Policy) -> int:
    """Return how far ahead of its clock a node issues what other nodes have issued.

    A node that lost its counter continues above its clock, but only after a quarantine of max_ttl.
    Half of that is for clocks that differ, half for clocks that are set back in between.
    """
    return policy.max_ttl_ms // 2


def agree_on_fence(
    tally: Tally,
    claim: Claim,
    token: bytes,
    sent_round: SentRound,
    valid_until: Instant,
    policy: Policy,
) -> Flow[int]:
    """Return the fence of an attempt that a quorum has granted in time; 0 if it gets none.

    tally: the tally of its acquire round, in which stragglers are still counted.  An attempt
    without a fence is lost: the tally gets the reasons, unless only the validity is over.
    """
    issued = [answer.fence for answer in tally.answers if answer is not None and answer.fence]
    if issued and issued.count(issued[0]) >= tally.quorum:
        return issued[0]  # nearly always
    until = min(sent_round.sent_at + policy.node_timeout, valid_until)
    fence, at = yield from _highest_issuable(tally, until, policy)
    sought, raises = 0, Tally(policy.n, 0)
    if fence and not _is_quorum(_issuers(tally.answers, fence), tally):
        # By compare-and-set, and only while the key is ours.  A blind write, or a number above all
        # others (max + 1), gives the same fence to two attempts (found by a model checker).
        sought = fence
        raised = yield Send(claim.issue_fence(token, fence, ahead_ms(policy)), sent_round.target)
        raises.round = raised.round
        until = min(raised.sent_at + policy.node_timeout, valid_until)
        fence, at = yield from _collect_issues(tally, raises, fence, until)
    if at >= valid_until:
        return 0
    if not fence:
        tally.override([_vote(i, tally, raises, sought, policy) for i in range(policy.n)])
    return fence


def _highest_issuable(tally: Tally, until: Instant, policy: Policy) -> Flow[tuple[int, Instant]]:
    """Return the value that a quorum has issued, or the highest that one would issue; 0: none.

    The granting answers suffice, unless clocks are far apart: then the answers that the verdict did
    not wait for may decide.
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
        event: NodeReply | Timeout = yield Receive(until)
        at = event.at
        if isinstance(event, Timeout):
            return 0, at
        tally.count(event)


def _collect_issues(
    tally: Tally, raises: Tally, fence: int, until: Instant
) -> Flow[tuple[int, Instant]]:
    """Collect replies until a quorum has issued the fence, or another value; 0: none has."""
    at: Instant = 0
    while True:
        values = {fence, *(answer.fence for answer in _grants(tally) if answer.fence)}
        unheard, silent = _timed_out(tally.answers), _timed_out(raises.answers)
        hope = False
        for value in values:
            issuers = _issuers(tally.answers, value) | _issuers(raises.answers, value)
            if _is_quorum(issuers, tally):
                return value, at
            may_follow = silent if value == fence else unheard
            hope = hope or _is_quorum(issuers | may_follow, tally)
        if not hope:
            return 0, at
        event: NodeReply | Timeout = yield Receive(until)
        at = event.at
        if isinstance(event, Timeout):
            return 0, at
        tally.count(event)
        raises.count(event)


def _grants(tally: Tally) -> list[Answer]:
    return [
        answer for answer in tally.answers if answer is not None and answer.code is VoteCode.GRANTED
    ]


def _issuers(answers: Sequence[Answer | None], fence: int) -> int:
    """Return the nodes that issued the fence to us, as bits."""
    return sum(1 << node for node, a in enumerate(answers) if a is not None and a.fence == fence)


def _timed_out(answers: Sequence[Answer | None]) -> int:
    """Return the nodes that have not replied yet, as bits."""
    return sum(1 << node for node, answer in enumerate(answers) if answer is None)


def _is_quorum(nodes: int, tally: Tally) -> bool:
    return nodes.bit_count() >= tally.quorum


def _would_issue(grant: Answer, fence: int, policy: Policy) -> bool:
    """Return whether the node would issue the fence, as raise.lua decides.

    Its clock has only advanced since it replied.
    """
    may_issue_to = (grant.clock_us // 1_000 + ahead_ms(policy)) * 1_000
    return grant.fence == fence or grant.fence < fence <= may_issue_to


# --- why not ---------------------------------------------------------------------------------


def _vote(node: int, tally: Tally, raises: Tally, sought: int, policy: Policy) -> Answer:
    """Return a node's final answer, when no quorum has issued the fence that was sought."""
    first, second = tally.answers[node], raises.answers[node]
    if first is None:
        return TIMED_OUT
    if first.code is not VoteCode.GRANTED or (sought and first.fence == sought):
        return first
    if second is None and sought:
        return TIMED_OUT
    if second is None or second.code is VoteCode.CLOCK_SKEW or first.fence > sought:
        return Answer(Vote.REFUSED, VoteCode.CLOCK_SKEW, _how_skewed(first, tally, policy))
    return second


def _how_skewed(grant: Answer, tally: Tally, policy: Policy) -> str:
    may = f"with fences {ahead_ms(policy) / 1_000:g} s may be"
    clocks = {
        i: a.clock_us for i, a in enumerate(tally.answers) if a and a.code is VoteCode.GRANTED
    }
    other = max(clocks, key=lambda i: abs(clocks[i] - grant.clock_us))
    apart_us = grant.clock_us - clocks[other]
    if abs(apart_us) > ahead_ms(policy) * 1_000:
        which = "ahead of" if apart_us > 0 else "behind"
        apart = f"{abs(apart_us) / 1_000_000:.1f} s {which} that of {policy.addresses[other]}"
        return f"its clock is {apart}; {may}"
    ahead = (grant.fence - grant.clock_us) / 1_000_000
    return f"its fence counter is {ahead:.1f} s ahead of its clock; {may}"
