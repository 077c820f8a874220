"""A plain quorum means the same with a flow and without one."""

from __future__ import annotations

import pytest

from quorlock._core.acquiring import acquire
from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire
from quorlock._core.config import Policy
from quorlock._core.effects import Commit, Flow, FlowCancelled, Receive, Send, Timeout
from quorlock._core.line import Line, Lines
from quorlock._core.member import Member
from quorlock._core.redlock import release
from quorlock._core.results import Acquired, ReleaseResult
from quorlock._core.rounds import NodeReply, SentRound, Target
from quorlock._core.usual import usual_acquire, usual_release
from quorlock._core.votes import BACKLOG, GRANTED
from tests.harness.support.script import SIZES, START, Dice, ms, policy_of, request_of

CLAIM = Keys(b"resource")


class Stop:
    """An event that is never set."""

    def is_set(self) -> bool:
        return False


def after_grants(
    flow: Flow[Acquired] | Flow[ReleaseResult], sent_round: SentRound, nodes: int, at: int
) -> Acquired | ReleaseResult | None:
    """Return the outcome of a flow after these nodes have granted its round; None: it waits."""
    try:
        assert isinstance(next(flow), Send)
        effect = flow.send(sent_round)
        for node in range(nodes.bit_length()):
            if nodes >> node & 1:
                assert isinstance(effect, Receive)
                effect = flow.send(NodeReply(sent_round.round, node, GRANTED, at))
    except StopIteration as stop:
        outcome: ReleaseResult = stop.value
        return outcome
    return effect.granted if isinstance(effect, Commit) else None


@pytest.mark.parametrize("n", SIZES)
def test_of_an_acquire(n: int) -> None:
    """Each set of nodes that decides with its last one, in time and too late."""
    policy = policy_of(n)
    request = request_of(policy)
    sent_round = SentRound(1, START, START + ms(1), Target((1 << n) - 1, "path"))
    end = policy.valid_until(START, request.ttl_ms)
    usual = usual_acquire(request, policy, Dice(), None)
    assert usual is not None
    flow = acquire(request, policy, Dice(), None)
    assert usual.send == next(flow)
    for nodes in range(1 << n):
        if nodes.bit_count() <= policy.quorum:
            for at in (START + ms(2), end - 1, end, end + ms(1)):
                expected = after_grants(
                    acquire(request, policy, Dice(), None), sent_round, nodes, at
                )
                assert usual.outcome(nodes, sent_round, at) == expected
                assert (expected is not None) == (nodes.bit_count() == policy.quorum and at < end)


@pytest.mark.parametrize("n", SIZES)
def test_of_a_release(n: int) -> None:
    policy, target = policy_of(n), Target((1 << n) - 1, "path")
    sent_round = SentRound(1, START, START + ms(1), target)
    usual = usual_release(CLAIM, b"token", target, policy, None)
    assert usual is not None
    assert usual.send == next(release(CLAIM, b"token", target, policy))
    for nodes in range(1 << n):
        if nodes.bit_count() <= policy.quorum:
            flow = release(CLAIM, b"token", target, policy)
            expected = after_grants(flow, sent_round, nodes, START + ms(2))
            assert usual.outcome(nodes, sent_round, START + ms(2)) == expected


@pytest.mark.parametrize("n", SIZES)
def test_with_nodes_that_were_not_asked(n: int) -> None:
    """The outcome has their votes, as that of a flow, which gets them first."""
    policy = policy_of(n)
    request, asked, at = request_of(policy), (1 << policy.quorum) - 1, START + ms(2)
    sent_round = SentRound(1, START, START + ms(1), Target(asked, "path"))
    not_asked = [NodeReply(1, node, BACKLOG, START) for node in range(policy.quorum, n)]
    granted = [NodeReply(1, node, GRANTED, at) for node in range(policy.quorum)]
    usual = usual_acquire(request, policy, Dice(), None)
    back = usual_release(CLAIM, b"token", sent_round.target, policy, None)
    assert usual is not None
    assert back is not None
    flows = (
        (usual, acquire(request, policy, Dice(), None)),
        (back, release(CLAIM, b"token", sent_round.target, policy)),
    )
    for call, flow in flows:
        next(flow)
        effect: object = flow.send(sent_round)
        try:
            for reply in not_asked + granted:
                assert isinstance(effect, Receive)
                effect = flow.send(reply)
        except StopIteration as stop:
            effect = Commit(stop.value)
        assert isinstance(effect, Commit)
        outcome = call.outcome(asked, sent_round, at, not_asked)
        assert outcome == effect.granted
        assert outcome is not None
        assert outcome.answers[policy.quorum :] == (BACKLOG,) * len(not_asked)


@pytest.mark.parametrize("n", SIZES)
def test_the_flow_goes_on_from_the_round(n: int) -> None:
    """The flow has the token of the round, and asks no node again."""
    policy = policy_of(n)
    request = request_of(policy)
    sent_round = SentRound(1, START, START + ms(1), Target((1 << n) - 1, "path"))
    usual = usual_acquire(request, policy, Dice(), None)
    assert usual is not None
    command = usual.send.command
    assert isinstance(command, Acquire)
    flow = usual.flow(sent_round)
    assert isinstance(next(flow), Receive)
    cancelled = usual.cancelled(sent_round)
    assert cancelled == Send(request.claim.release(command.token), sent_round.target)
    back = usual_release(CLAIM, b"token", sent_round.target, policy, None)
    assert back is not None
    assert isinstance(next(back.flow(sent_round)), Receive)
    assert back.cancelled(sent_round) == back.send


def test_what_is_not_usual() -> None:
    """A call that may begin with another round, or with a wait."""
    policy, lines = policy_of(3), Lines()
    request = request_of(policy)
    assert usual_acquire(request, policy, Dice(), lines)
    assert not usual_acquire(request._replace(fencing=True), policy, Dice(), lines)
    assert not usual_acquire(request._replace(stop=Stop()), policy, Dice(), lines)
    several = request._replace(claim=Keys(b"a", (b"b",)))
    assert not usual_acquire(several, policy, Dice(), lines)
    marked = policy._replace(restart_guard="marker")
    assert not usual_acquire(request, marked, Dice(), lines)
    lines.line(request.key, START).join(Member(request), START)
    assert not usual_acquire(request, policy, Dice(), lines)
    assert not usual_release(request.claim, b"token", None, policy, lines)
    assert usual_release(CLAIM._replace(key=b"another"), b"token", None, policy, lines)


def line_held(policy: Policy) -> tuple[Lines, Line]:
    """Return a line whose lock is held by this process, and no other call waits."""
    lines, member = Lines(), Member(request_of(policy))
    line = lines.line(CLAIM.key, START)
    line.join(member, START)
    line.on_granted(member, START, has_waited=True, others_wait=True)
    return lines, line


@pytest.mark.parametrize("end", ["granted", "flow", "flow cancelled", "cancelled"])
def test_the_next_in_line_is_promoted_however_a_release_ends(end: str) -> None:
    """One that joins during the release: the lock is not handed on to it."""
    policy = policy_of(3)
    target = Target(0b111, "path")
    lines, line = line_held(policy)
    usual = usual_release(CLAIM, b"token", target, policy, lines)
    assert usual is not None
    late = Member(request_of(policy))
    line.join(late, START)
    assert not late.is_asking
    sent_round = SentRound(1, START, START + ms(1), target)
    if end == "granted":
        assert usual.outcome(0b001, sent_round, START + ms(2)) is None
        assert not late.news
        assert usual.outcome(0b011, sent_round, START + ms(2)) is not None
    elif end == "cancelled":
        assert usual.cancelled(sent_round) == usual.send
    else:
        flow = usual.flow(sent_round)
        assert isinstance(next(flow), Receive)
        assert not late.news
        if end == "flow":
            with pytest.raises(StopIteration):
                flow.send(Timeout(START + ms(60)))
        else:
            assert flow.throw(FlowCancelled()) == usual.send
            flow.close()
    assert late.news
