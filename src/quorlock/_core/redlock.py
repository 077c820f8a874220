"""THE ALGORITHM: acquire, extend, release over N independent masters, as flows.

Source: "Distributed Locks with Redis", the *Redlock page*
(https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), section
"The Redlock algorithm"; the step numbers below are those of the page.  Safety rules beyond the
page are in docs/contributing/how-it-works.md (rules 1-15).  Drivers have the sockets, clocks and
waiting: every `yield` is an effect (see `effects`), and its result is all that a flow knows of the
world.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from quorlock._core import fence as fencing
from quorlock._core.commands import JOIN, LEAVE, Inspect, Release
from quorlock._core.effects import Commit, Receive, Send, Sleep, Timeout, to_receive, to_send
from quorlock._core.owner import readers_in
from quorlock._core.results import (
    Acquired,
    AttemptFailed,
    Extended,
    ExtendFailed,
    FailureReason,
    LossReason,
    ReleaseResult,
    acquired,
)
from quorlock._core.rounds import Target
from quorlock._core.tally import LOST, PENDING, WON, Tally, all_granted, granted_by
from quorlock._core.time import FOR_EVER, PAST, to_seconds
from quorlock._core.votes import Answer, node_votes
from quorlock.errors import NodeError, QuorumUnreachable, VoteCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.claims import BaseClaim, Claim
    from quorlock._core.commands import AnyAcquire
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.releases_in_doubt import InDoubt
    from quorlock._core.request import AcquireRequest, BaseRequest
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant


class Turn(Protocol):
    """The caller's place in the queues of the nodes, as an attempt needs it (`Waiter`)."""

    place: bytes
    ticket: int
    queued: int  # the nodes (bit i: node i) that may have the place

    def tally(self, n: int, round_: int) -> Tally:
        """Return the tally of the round, which also takes calls that come during the round."""
        ...

    def on_won(self, tally: Tally, at: Instant) -> Acquired | None:
        """Record that the attempt has won; return a lease that the caller was given during it."""
        ...

    def on_asked(self, round_: int, at: Instant) -> None:
        """Record that a release has queued the place again."""
        ...

    def record(self, reply: NodeReply) -> bool:
        """Record a call, or a reply to the latest request; return whether it changed anything."""
        ...


# --- acquire ---------------------------------------------------------------------------------


def attempt(
    request: AcquireRequest,
    policy: Policy,
    entropy: Entropy,
    turn: Turn | None = None,
    begun: tuple[bytes, SentRound] | None = None,
) -> Flow[Acquired | AttemptFailed]:
    """Run one acquire round and, if it did not win, its release on all nodes.

    Args:
        request: The lock.
        policy: The settings.
        entropy: The source of tokens.
        turn: The caller's place in the queues of the nodes: where a key is reserved for it, it is
            granted, and a release queues it again.
        begun: The token and the round, if it was sent already (`usual`).
    """
    # Fresh for every attempt: a late release of an older one must not delete a newer key (rule 2).
    token, sent = begun or (entropy.token(), None)
    try:
        # Steps 1 and 2: read the time, then ask all nodes at once; each has little time to reply.
        place = turn.place if turn else b""
        sent_round: SentRound = sent or (yield acquire_round(request, policy, token, place))
        sent = sent_round
        tally = (turn.tally if turn else Tally)(policy.n, sent_round.round)
        until = sent_round.sent_at + policy.node_timeout
        decided_at = yield from collect_until_decided(tally, until)
        won = yield from lease_won(request, token, tally, sent_round, decided_at, policy)
        if won:
            if turn:
                yield from _end_turn(turn, request.claim, tally, sent_round, decided_at)
            yield Commit(won)
            return won
        if turn and key_in_the_way(request.claim, tally.answers) != request.key:
            turn.ticket = LEAVE  # it waits in the queue of that key, and in one queue at a time
        # Step 5: unlock all nodes, also those that refused or did not reply (rule 5).
        back = request.claim.release(token, place, turn.ticket if turn else JOIN)
        return (yield from release_failed_attempt(request, back, tally, sent_round, policy, turn))
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled or interrupted anywhere above: release, wait for nothing, end.
        yield Send(request.claim.release(token), sent.target if sent else None)
        raise


def acquire_round(
    request: AcquireRequest, policy: Policy, token: bytes, place: bytes = b""
) -> Send:
    """Return the round of an attempt. place: the caller's, in the queues of the nodes."""
    _, claim, ttl_ms, _, _, fencing, _ = request
    command = claim.acquire(token, ttl_ms, policy, fenced=fencing, place=place)
    return send_acquire(command, request, policy)


def send_acquire(command: AnyAcquire, request: AcquireRequest, policy: Policy) -> Send:
    """Return the round of this command."""
    # Queue in this process for the caller's own time, or for connect_timeout if that is longer.
    _, _, _, asked_at, wait, _, stop = request
    by = FOR_EVER if wait is None else asked_at + max(wait, policy.connect_timeout)
    return to_send((command, None, by, FOR_EVER, None, stop))


def lease_won(
    request: AcquireRequest,
    token: bytes,
    tally: Tally,
    sent_round: SentRound,
    decided_at: Instant,
    policy: Policy,
) -> Flow[Acquired | None]:
    """Return the lease if the round has won it in time, with a fence where one is wanted."""
    valid_until = _valid_until(request, tally.granted, sent_round, decided_at, policy)
    if valid_until is None:
        return None
    claim, fence = request.claim, 0
    if request.fencing:
        fence = yield from fencing.agree_on_fence(
            tally, claim, token, sent_round, valid_until, policy
        )
        if not fence:
            return None
    answers = tally.final_answers()
    return Acquired(claim, token, request.ttl_ms, valid_until, answers, sent_round, fence)


def _valid_until(
    request: AcquireRequest, granted: int, sent_round: SentRound, at: Instant, policy: Policy
) -> Instant | None:
    """Return the end of the validity if a round with so many grants has won in time."""
    # Step 3: a majority, in less than the validity; step 4: what is left of it.
    valid_until = policy.valid_until(sent_round.started_at, request.ttl_ms)
    return valid_until if granted >= policy.quorum and at < valid_until else None


def lease_by_grants(
    request: AcquireRequest,
    token: bytes,
    nodes: int,
    sent_round: SentRound,
    at: Instant,
    policy: Policy,
    not_asked: Sequence[NodeReply],
) -> Acquired | None:
    """Return the lease that plain grants of these nodes (bit i: node i) have won in time."""
    valid_until = _valid_until(request, nodes.bit_count(), sent_round, at, policy)
    if valid_until is None:
        return None
    n = policy.n
    answers = granted_by(n, nodes, not_asked) if not_asked else all_granted(n, nodes)
    _, claim, ttl_ms, _, _, _, _ = request
    return acquired((claim, token, ttl_ms, valid_until, answers, sent_round, 0))


def _end_turn(
    turn: Turn, claim: Claim, tally: Tally, sent_round: SentRound, at: Instant
) -> Flow[None]:
    """Free what is left of a wait that an attempt has won."""
    surplus = turn.on_won(tally, at)
    if surplus:
        yield Send(surplus.release, surplus.sent_round.target)
    # A node that refused another of several keys may still reserve the first one for the place.
    target = sent_round.target
    left = tally.granted_mask if claim.keys[1:] else target.nodes
    yield from _leave_others(turn, claim.key, target, left)


def _leave_others(turn: Turn, key: bytes, asked: Target, left: int) -> Flow[None]:
    """Leave the queues of the nodes where an attempt has not done so. left: where it has, as bits.

    They have the place, and may have reserved the lock for it.
    """
    others = turn.queued & ~left
    if others:
        yield Send(Release(key, b"", turn.place, LEAVE), Target(others, asked.path))


def release_without_waiting(claim: Claim, token: bytes, target: Target | None) -> Flow[None]:
    """Release on all nodes without waiting: for a lost lock, or one whose caller is gone."""
    yield Send(claim.release(token), target, connect_until=PAST)


def release_failed_attempt(
    request: BaseRequest,
    release: Release,
    tally: Tally,
    sent_round: SentRound,
    policy: Policy,
    turn: Turn | None,
) -> Flow[AttemptFailed]:
    """Release on all nodes; collect enough replies to classify the failure."""
    target = sent_round.target
    if turn and turn.ticket == LEAVE:
        yield from _leave_others(turn, request.key, target, target.nodes)
    elif turn:
        turn.queued |= target.nodes
    back = yield Send(release, target, stop=request.stop)
    if turn:
        turn.on_asked(back.round, back.sent_at)
    backs = Tally(policy.n, back.round)
    until = back.sent_at + policy.node_timeout
    ended = back.sent_at
    while _needs_more_answers(tally, backs):
        event = yield Receive(until)
        ended = event.at
        if isinstance(event, Timeout):
            tally.mark_timed_out()
            break
        # Stragglers of the acquire round still count for the report.  The verdict stands: "lost"
        # means that not even all of them could have won.
        tally.count(event)
        backs.count(event)
        if turn:
            turn.record(event)
    answers = tuple(map(_merge_answers, tally.final_answers(), backs.final_answers()))
    kind = failure_reason(answers, tally)
    key = key_in_the_way(request.claim, answers)
    return AttemptFailed(kind, answers, sent_round.started_at, ended, key)


def _needs_more_answers(tally: Tally, backs: Tally) -> bool:
    """Return whether fewer than a quorum replied about the lock, and more may."""
    told = awaited = 0
    for first, second in zip(tally.answers, backs.answers, strict=True):
        if first is None or (second is None and first.is_lock_answer):
            awaited += 1
        elif first.is_lock_answer and second is not None:
            told += second.code is not VoteCode.WRONG_TYPE
    return awaited > 0 and told < tally.quorum


def _merge_answers(first: Answer, back: Answer) -> Answer:
    """Return the acquire's answer, with what the release found at the key if it was held."""
    if first.is_held and (back.is_held or back.code is VoteCode.WRONG_TYPE):
        return back
    return first


def key_in_the_way(claim: BaseClaim, answers: Sequence[Answer | None]) -> bytes:
    """Return the key that most nodes found held; the first if none did."""
    found = sorted([answer.before for answer in answers if answer is not None and answer.is_held])
    return claim.keys[max(found, key=found.count, default=0)]


def failure_reason(answers: tuple[Answer, ...], tally: Tally) -> FailureReason:
    """Return why a round did not win."""
    n, needed = tally.n, tally.quorum
    if tally.granted >= needed:
        return FailureReason.LATE
    if n - sum(answer.is_lasting for answer in answers) < needed:
        return FailureReason.FORBIDDEN
    about_the_lock = sum(answer.is_lock_answer for answer in answers)
    if about_the_lock >= needed:
        unfenced = sum(answer.code is VoteCode.FENCE_MISMATCH for answer in answers)
        return FailureReason.UNFENCED if tally.granted + unfenced >= needed else FailureReason.HELD
    if about_the_lock + sum(answer.quarantine is not None for answer in answers) >= needed:
        return FailureReason.QUARANTINED
    if about_the_lock + sum(answer.is_fault for answer in answers) >= needed:
        return FailureReason.FAULTY
    return FailureReason.UNREACHABLE


def is_faulty(answers: tuple[Answer, ...], policy: Policy) -> bool:
    """Return whether so many nodes replied with errors that no quorum is left without them."""
    return policy.n - sum(answer.is_fault for answer in answers) < policy.quorum


def raise_no_quorum(
    answers: tuple[Answer, ...], ended: Instant, request: BaseRequest, policy: Policy
) -> NoReturn:
    """Raise the error of a round in which no quorum replied about the lock."""
    votes = node_votes(policy.addresses, answers)
    told = sum(answer.is_lock_answer for answer in answers)
    faulty = told < policy.quorum <= told + sum(answer.is_fault for answer in answers)
    error = NodeError if faulty else QuorumUnreachable
    raise error(request.resource, votes, 1, to_seconds(ended - request.asked_at))


def time_until_free_ms(answers: tuple[Answer, ...], needed: int) -> int | None:
    """Return when the keys of a quorum expire: the quorum-th shortest of the ttls left."""
    lives = sorted(
        life
        for answer in answers
        if answer.is_lock_answer and (life := _ttl_left_ms(answer)) is not None
    )
    return lives[needed - 1] if len(lives) >= needed else None


def common_owner(answers: tuple[Answer, ...], needed: int) -> bytes:
    """Return the encoded owner that a quorum names; b"" if none does."""
    owners = [answer.owner for answer in answers if answer.owner]
    return next((owner for owner in owners if owners.count(owner) >= needed), b"")


def common_readers(answers: tuple[Answer, ...], needed: int) -> tuple[int, list[bytes]]:
    """Return how many share the lock, by the nodes of a quorum, and owners that it names.

    0 if no quorum says that it is shared.
    """
    reports = [readers_in(answer.owner) for answer in answers]
    counts = sorted([count for count, _ in reports], reverse=True)
    owners = [owner for _, named in reports for owner in dict.fromkeys(named)]
    named = [owner for owner in dict.fromkeys(owners) if owners.count(owner) >= needed]
    return counts[needed - 1], named


def _ttl_left_ms(answer: Answer) -> int | None:
    """Return the milliseconds until the node's key expires; None: never, or not in the reply."""
    if not answer.is_held:
        return 0
    left = answer.ttl_left_ms
    return left if left is not None and left >= 0 else None


# --- extend ----------------------------------------------------------------------------------


class LeaseFacts(NamedTuple):
    """The facts of a lease that is to be extended."""

    resource: str
    claim: Claim
    token: bytes
    valid_until: Instant
    target: Target | None  # of the round that set the keys; None if another process sent it
    in_doubt: InDoubt | None = None  # where a release of that other process may be in flight


def extend(
    facts: LeaseFacts, ttl_ms: int, now: Instant, policy: Policy, entropy: Entropy
) -> Flow[Extended | ExtendFailed]:
    """Extend a lease that is still valid, trying again while validity remains.

    Redlock page, "Making the algorithm more reliable: Extending the lock": a compare-and-expire on
    a majority, within the validity that is being extended.  A round that ends later does not count
    (rule 6): another client may have held the lock in between.

    Raises:
        NodeError: so many nodes refuse for good that trying again cannot help; the lease stays
            valid until it ends.
    """
    began = now
    answers: tuple[Answer, ...] = ()
    loss = LossReason.EXPIRED
    while now < facts.valid_until:
        outcome, now = yield from _extension(facts, ttl_ms, policy)
        if isinstance(outcome, Extended) or outcome.reason is not LossReason.UNREACHABLE:
            return outcome
        answers, loss = outcome.answers, outcome.reason
        raise_if_permanent(answers, facts.resource, to_seconds(now - began), policy)
        now = yield Sleep(min(now + entropy.between(*policy.retry_delay), facts.valid_until))
    return ExtendFailed(loss, answers)


def extend_by_token(request: AcquireRequest, token: bytes, policy: Policy) -> Flow[bool]:
    """Extend by bare token, in one round: True if a quorum did, False if it is gone or taken.

    A quorum that holds the token now excludes every other client from now on.  It does not prove
    that no other client held the lock in between, if the lease had expired before.  A SET that
    arrived late may have restored the token on a node (found by simulation, see
    docs/contributing/track-record.md). Raises QuorumUnreachable, NodeError.
    """
    facts = LeaseFacts(request.resource, request.claim, token, FOR_EVER, None)
    outcome, now = yield from _extension(facts, request.ttl_ms, policy)
    if isinstance(outcome, Extended):
        return True
    if outcome.reason is not LossReason.UNREACHABLE:
        return False
    raise_no_quorum(outcome.answers, now, request, policy)


def adopt(
    request: AcquireRequest,
    token: bytes,
    policy: Policy,
    entropy: Entropy,
    in_doubt: InDoubt | None = None,
) -> Flow[Extended | ExtendFailed]:
    """Take over a lease from another process: it is held once an extension has won."""
    # The keys live max_ttl at most: after that there is nothing left to adopt.
    give_up = request.asked_at + policy.max_ttl
    facts = LeaseFacts(request.resource, request.claim, token, FOR_EVER, None, in_doubt)
    while True:
        outcome, now = yield from _extension(facts, request.ttl_ms, policy)
        wake = now + entropy.between(*policy.retry_delay)
        if isinstance(outcome, Extended):
            return outcome
        if outcome.reason is not LossReason.UNREACHABLE:
            yield from release_without_waiting(request.claim, token, None)
            return outcome
        raise_if_permanent(
            outcome.answers, request.resource, to_seconds(now - request.asked_at), policy
        )
        if wake >= give_up:
            return outcome
        yield Sleep(wake)


def _extension(
    facts: LeaseFacts, ttl_ms: int, policy: Policy
) -> Flow[tuple[Extended | ExtendFailed, Instant]]:
    """Run one extension round: a full re-vote that must end within the old validity (rule 4)."""
    extend = facts.claim.extend(facts.token, ttl_ms)
    sent_round = yield Send(extend, facts.target, FOR_EVER, facts.valid_until, facts.in_doubt)
    tally = Tally(policy.n, sent_round.round)
    until = _extension_until(sent_round.sent_at, facts, policy)
    decided_at = yield from collect_until_decided(tally, until)
    valid_until = policy.valid_until(sent_round.started_at, ttl_ms)
    if tally.verdict is WON and decided_at < min(facts.valid_until, valid_until):
        return Extended(valid_until, tally.final_answers()), decided_at
    ended = yield from collect_while(is_loss_ambiguous, tally, until, decided_at)
    return classify_loss(tally, facts), ended


def _extension_until(sent: Instant, facts: LeaseFacts, policy: Policy) -> Instant:
    if facts.valid_until == FOR_EVER:  # not known: there is no validity to wait for
        return sent + policy.node_timeout
    return min(policy.extension_until(sent, facts.valid_until), facts.valid_until)


def classify_loss(tally: Tally, facts: LeaseFacts) -> ExtendFailed:
    """Return the failure that an extension round which did not win means for the lease."""
    answers = tally.final_answers()
    # Without a known validity, a missing key cannot be called early.
    gone = LossReason.EXPIRED if facts.valid_until == FOR_EVER else LossReason.EVICTED
    return ExtendFailed(_loss(answers, tally.quorum, gone) or LossReason.UNREACHABLE, answers)


def raise_if_permanent(
    answers: tuple[Answer, ...], resource: str, elapsed: float, policy: Policy
) -> None:
    """Raise NodeError if so many nodes refuse for good that no quorum is left."""
    if policy.n - sum(answer.is_lasting for answer in answers) < policy.quorum:
        raise NodeError(resource, node_votes(policy.addresses, answers), 1, elapsed)


def _loss(
    answers: tuple[Answer, ...], needed: int, gone: LossReason = LossReason.EXPIRED
) -> LossReason | None:
    """Return why the lease is lost for good; None while the silent nodes could still save it."""
    if len(answers) - sum(answer.denies_ownership for answer in answers) >= needed:
        return None
    taken = any(answer.is_held or answer.code is VoteCode.WRONG_TYPE for answer in answers)
    return LossReason.TAKEN if taken else gone


# --- release ---------------------------------------------------------------------------------


def release(
    claim: Claim,
    token: bytes,
    target: Target | None,
    policy: Policy,
    sent: SentRound | None = None,
) -> Flow[ReleaseResult]:
    """Compare-and-delete on all nodes that were asked; a quorum of them decides.

    sent: its round, if it was sent already (`usual`).
    """
    try:
        back: SentRound = sent or (yield send_release(claim.release(token), target))
        tally = Tally(policy.n, back.round)
        until = back.sent_at + policy.node_timeout
        decided_at = yield from collect_until_decided(tally, until)
        ended = yield from collect_while(is_loss_ambiguous, tally, until, decided_at)
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted, perhaps before all nodes were asked: a release is idempotent.
        yield Send(claim.release(token), target)
        raise
    answers = tally.final_answers()
    if tally.verdict is WON:
        return ReleaseResult(deleted=True, gone=None, answers=answers, ended=PAST)
    gone = _loss(answers, policy.quorum)
    return ReleaseResult(deleted=False, gone=gone, answers=answers, ended=ended)


def send_release(command: Release, target: Target | None) -> Send:
    """Return the round of a release."""
    return to_send((command, target, FOR_EVER, FOR_EVER, None, None))


@functools.lru_cache
def release_by_grants(nodes: int, n: int, quorum: int) -> ReleaseResult | None:
    """Return the result if these nodes (bit i: node i) have deleted the key; None: too few."""
    if nodes.bit_count() < quorum:
        return None
    return ReleaseResult(deleted=True, gone=None, answers=all_granted(n, nodes), ended=PAST)


def release_by_token(
    request: AcquireRequest, token: bytes, policy: Policy, target: Target | None = None
) -> Flow[bool]:
    """Release by bare token: True if a quorum deleted it, False if it was gone or another's.

    target: of the acquire if this process sent it, so that the release does not overtake an
    acquire that is still unanswered (rule 3).  Raises QuorumUnreachable, NodeError.
    """
    released = yield from release(request.claim, token, target, policy)
    if released.deleted or released.gone is not None:
        return released.deleted
    raise_no_quorum(released.answers, released.ended, request, policy)


# --- inspect ---------------------------------------------------------------------------------


def inspect(key: bytes, policy: Policy) -> Flow[tuple[Answer, ...]]:
    """Ask every node for the key's holder and wait for all of them: a report, not a vote."""
    sent_round = yield Send(Inspect(key))
    tally = Tally(policy.n, sent_round.round)
    until = sent_round.sent_at + policy.node_timeout
    yield from collect_while(lambda tally: tally.pending > 0, tally, until, sent_round.sent_at)
    return tally.final_answers()


# --- shared by the flows ---------------------------------------------------------------------


def collect_until_decided(tally: Tally, until: Instant) -> Flow[Instant]:
    """Count replies until the verdict or the deadline; return the instant of either.

    The verdict falls as soon as it is decided, for or against: a slow node that cannot change it is
    not waited for (rule 8).  The driver drains its reply later.
    """
    wish = to_receive((until, tally))
    while True:
        event: NodeReply | Timeout = yield wish
        if isinstance(event, Timeout):
            tally.mark_timed_out()
            return event.at
        if tally.count(event) is not PENDING:
            return event.at


def collect_while(
    is_open: Callable[[Tally], bool], tally: Tally, until: Instant, now: Instant
) -> Flow[Instant]:
    """Count replies while a question is open, until the deadline; return the latest instant."""
    while is_open(tally):
        event: NodeReply | Timeout = yield Receive(until)
        now = event.at
        if isinstance(event, Timeout):
            tally.mark_timed_out()
            break
        tally.count(event)
    return now


def is_loss_ambiguous(tally: Tally) -> bool:
    """Return whether a lost round's missing replies could still show that the key is not ours.

    They distinguish a lost key from unreachable nodes.  The verdict may fall before: dead nodes
    count against at once.
    """
    if tally.verdict is not LOST:
        return False
    against = sum(answer is not None and answer.denies_ownership for answer in tally.answers)
    enough = tally.n - tally.quorum + 1
    return against < enough <= against + tally.pending
