"""THE ALGORITHM: acquire, extend, release over N independent masters, as flows.

Source: "Distributed Locks with Redis", the *Redlock page*
(https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), section
"The Redlock algorithm"; the step numbers below are its own.  Safety facts that go beyond the
page are in docs/ (rules 1-15).  This module leaves sockets, clocks and waiting to drivers:
every `yield` is a wish (see `effects`), and what comes back is all that it knows of the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

from quorlock._core import fencing
from quorlock._core.commands import Extend, Inspect, Release
from quorlock._core.effects import Elapsed, Keep, Receipt, Receive, Send, Sleep
from quorlock._core.outcomes import (
    Answer,
    Cause,
    Extended,
    Granted,
    Loss,
    Lost,
    Refusal,
    Refused,
    Released,
    node_votes,
)
from quorlock._core.quorum import LOST, PENDING, WON, Tally
from quorlock._core.time import FOR_EVER, PAST, to_seconds
from quorlock.errors import AcquireTimeout, NodeError, QuorumUnreachable

if TYPE_CHECKING:
    from quorlock._core.effects import Chance, Flow, Replied
    from quorlock._core.policy import Policy
    from quorlock._core.time import Duration, Instant


class Request(NamedTuple):
    """One call to acquire: what, for how long, and how long the caller will wait for it."""

    resource: str
    key: bytes
    ttl_ms: int
    asked_at: Instant
    timeout: Duration | None  # None: for ever; 0: one attempt
    fencing: bool = False


# --- acquire ---------------------------------------------------------------------------------

# Enough nodes told about the lock: whoever asks may get it soon.
_CONTENDED = (Refusal.HELD, Refusal.LATE, Refusal.UNFENCED)


def acquire(request: Request, policy: Policy, chance: Chance) -> Flow[Granted]:
    """Attempt until granted, or until waiting longer makes no sense.

    Raises AcquireTimeout (held to the end), QuorumUnreachable (no quorum answered for
    `outage_timeout`), NodeError (too many nodes answer with errors).
    """
    attempts = 0
    outage_since: Instant | None = None
    while True:
        outcome = yield from attempt(request, policy, chance)
        if isinstance(outcome, Granted):
            return outcome
        attempts += 1
        if outcome.refusal in _CONTENDED:
            outage_since = None
        elif outage_since is None:
            # Connecting came before the first attempt began, and counts.
            outage_since = request.asked_at if attempts == 1 else outcome.started
        wake = _next_attempt(outcome, request, policy, chance, outage_since)
        if wake is None:
            _fail(outcome, request, policy, attempts)
        yield Sleep(wake)


def try_acquire(request: Request, policy: Policy, chance: Chance) -> Flow[Granted | None]:
    """One attempt; None when somebody else holds it. Raises QuorumUnreachable, NodeError."""
    outcome = yield from attempt(request, policy, chance)
    if isinstance(outcome, Granted):
        return outcome
    if outcome.refusal in _CONTENDED:
        return None
    _fail(outcome, request, policy, attempts=1)


def attempt(request: Request, policy: Policy, chance: Chance) -> Flow[Granted | Refused]:
    """One acquire round and, if it did not win, its give-back on all nodes."""
    # A fresh token for every attempt: a late release of an older attempt must not be able to
    # delete the key of a newer one (rule 2).
    token = chance.token()
    behind: Receipt | None = None
    try:
        # Steps 1 and 2: the time first, then all nodes at once; each has little time to answer.
        acquire = fencing.asking_for(
            request.key, token, request.ttl_ms, policy, fenced=request.fencing
        )
        receipt: Receipt = yield Send(acquire, None, _begin_by(request, policy))
        behind = receipt
        tally = Tally(policy.n, receipt.round)
        decided_at = yield from _decide(tally, receipt.sent + policy.node_timeout)
        # Step 3: a majority, in less than the validity; step 4: what is left of it.
        valid_until = policy.valid_until(receipt.started, request.ttl_ms)
        if tally.verdict is WON and decided_at < valid_until:
            fence = 0
            if request.fencing:
                fence = yield from fencing.agree(
                    tally, request.key, token, receipt, valid_until, policy
                )
            if fence or not request.fencing:
                answers = tally.closed()
                won = Granted(
                    request.key, token, request.ttl_ms, valid_until, answers, receipt, fence
                )
                yield Keep(won)
                return won
        # Step 5: unlock all nodes, also those that refused or did not answer (rule 5).
        return (yield from _give_back(request.key, token, tally, receipt, policy))
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled or interrupted anywhere above: give back, wait for nothing, come out.
        yield Send(Release(request.key, token), behind)
        raise


def rounds(request: Request) -> int:
    """How many rounds an attempt may take: acquire and give-back, and raising a fence between."""
    return 3 if request.fencing else 2


def _begin_by(request: Request, policy: Policy) -> Instant:
    """How long it may queue in its own process: as its caller waits, or as connecting takes."""
    if request.timeout is None:
        return FOR_EVER
    return request.asked_at + max(request.timeout, policy.connect_timeout)


def give_back(key: bytes, token: bytes, receipt: Receipt | None) -> Flow[None]:
    """Release on all nodes, waiting for nothing: for a lock whose caller is gone, or a lost one."""
    yield Send(Release(key, token), receipt, PAST)


def _give_back(
    key: bytes, token: bytes, tally: Tally, receipt: Receipt, policy: Policy
) -> Flow[Refused]:
    """Release on all nodes; hear enough to tell held from unreachable, and for how long held."""
    back = yield Send(Release(key, token), behind=receipt)
    backs = Tally(policy.n, back.round)
    until = back.sent + policy.node_timeout
    ended = back.sent
    while _worth_hearing(tally, backs):
        event = yield Receive(until)
        ended = event.at
        if isinstance(event, Elapsed):
            tally.silence()
            break
        # Stragglers of the acquire round still count for the report; the verdict stands, since
        # "lost" means that not even all of them could have turned it.
        tally.count(event)
        backs.count(event)
    answers = tuple(map(_refined, tally.closed(), backs.closed()))
    kind = _refusal(answers, tally)
    return Refused(kind, answers, receipt.started, ended)


def _worth_hearing(tally: Tally, backs: Tally) -> bool:
    """Fewer than a quorum have told about the lock, and more may."""
    told = awaited = 0
    for first, second in zip(tally.answers, backs.answers, strict=True):
        if first is None or (second is None and first.is_lock_answer):
            awaited += 1
        elif first.is_lock_answer and second is not None:
            told += second.cause is not Cause.WRONG_TYPE
    return awaited > 0 and told < tally.quorum


def _refined(first: Answer, back: Answer) -> Answer:
    """The acquire's answer, with what the give-back told of the key that was in the way."""
    if first.cause is Cause.HELD and back.cause in (Cause.HELD, Cause.WRONG_TYPE):
        return back
    return first


def _refusal(answers: tuple[Answer, ...], tally: Tally) -> Refusal:
    n, needed = tally.n, tally.quorum
    if tally.granted >= needed:
        return Refusal.LATE
    if n - sum(answer.is_lasting for answer in answers) < needed:
        return Refusal.FORBIDDEN
    about_the_lock = sum(answer.is_lock_answer for answer in answers)
    if about_the_lock >= needed:
        unfenced = sum(answer.cause is Cause.UNFENCED for answer in answers)
        return Refusal.UNFENCED if tally.granted + unfenced >= needed else Refusal.HELD
    if about_the_lock + sum(answer.is_fault for answer in answers) >= needed:
        return Refusal.FAULTY
    return Refusal.UNREACHABLE


def _next_attempt(
    last: Refused,
    request: Request,
    policy: Policy,
    chance: Chance,
    outage_since: Instant | None,
) -> Instant | None:
    """When to try again; None when the time is up (rules 10 and 11)."""
    if last.refusal is Refusal.FORBIDDEN:
        return None
    # Redlock page, "Retry on failure": a random delay, greater than the time a round takes, so
    # that contenders who split the votes do not meet again.
    shortest, longest = policy.retry_delay
    shortest = max(shortest, last.ended - last.started)
    wake = last.ended + chance.between(shortest, max(longest, 2 * shortest))
    give_up = [] if request.timeout is None else [request.asked_at + request.timeout]
    if outage_since is not None:
        # The last attempt must *end* within the outage, and each of its rounds may take
        # node_timeout.
        longest_attempt = rounds(request) * policy.node_timeout
        give_up.append(outage_since + policy.outage_timeout - longest_attempt)
    if not give_up:
        return wake
    # The last sleep is clamped, so that one attempt is made when the time is up, none after.
    last_chance = min(give_up)
    return None if last_chance <= last.ended else min(wake, last_chance)


def _fail(last: Refused, request: Request, policy: Policy, attempts: int) -> NoReturn:
    votes = node_votes(policy.addresses, last.answers)
    elapsed = to_seconds(last.ended - request.asked_at)
    if last.refusal in _CONTENDED:
        left = holder_ttl_ms(last.answers, policy.quorum)
        holder_ttl = None if left is None else left / 1000
        raise AcquireTimeout(request.resource, votes, attempts, elapsed, holder_ttl)
    error = QuorumUnreachable if last.refusal is Refusal.UNREACHABLE else NodeError
    raise error(request.resource, votes, attempts, elapsed)


def is_faulty(answers: tuple[Answer, ...], policy: Policy) -> bool:
    """So many nodes answered with errors that no quorum is left without them."""
    return policy.n - sum(answer.is_fault for answer in answers) < policy.quorum


def fail_unanswered(
    answers: tuple[Answer, ...], ended: Instant, request: Request, policy: Policy
) -> NoReturn:
    """A round in which no quorum said anything about the lock, as `_refusal` has it."""
    votes = node_votes(policy.addresses, answers)
    told = sum(answer.is_lock_answer for answer in answers)
    faulty = told < policy.quorum <= told + sum(answer.is_fault for answer in answers)
    error = NodeError if faulty else QuorumUnreachable
    raise error(request.resource, votes, 1, to_seconds(ended - request.asked_at))


def holder_ttl_ms(answers: tuple[Answer, ...], needed: int) -> int | None:
    """Until a quorum of nodes is free by itself: the quorum-th shortest of the lives left."""
    lives = sorted(
        life for answer in answers if answer.is_lock_answer and (life := _life(answer)) is not None
    )
    return lives[needed - 1] if len(lives) >= needed else None


def _life(answer: Answer) -> int | None:
    """Milliseconds until the node is free by itself; None: never, or it did not tell."""
    if answer.cause is not Cause.HELD:
        return 0
    left = answer.ttl_left_ms
    return left if left is not None and left >= 0 else None


# --- extend ----------------------------------------------------------------------------------


class Holding(NamedTuple):
    """What is known of a lease that is to be extended."""

    resource: str
    key: bytes
    token: bytes
    valid_until: Instant
    receipt: Receipt | None  # of the round that set the keys; None when another process sent it


def extend(
    holding: Holding, ttl_ms: int, now: Instant, policy: Policy, chance: Chance
) -> Flow[Extended | Lost]:
    """Extend a lease that is still valid, trying again while validity remains.

    Redlock page, "Making the algorithm more reliable: Extending the lock": a compare-and-expire
    on a majority, within the validity that is being extended.  What ends later does not count
    (rule 6): somebody else may have held the lock in between.  Raises NodeError when so many
    nodes refuse for good that trying again cannot help; the lease goes on until it ends.
    """
    began = now
    answers: tuple[Answer, ...] = ()
    loss = Loss.EXPIRED
    while now < holding.valid_until:
        outcome, now = yield from _extension(holding, ttl_ms, policy)
        if isinstance(outcome, Extended) or outcome.loss is not Loss.UNREACHABLE:
            return outcome
        answers, loss = outcome.answers, outcome.loss
        _stop_if_forbidden(answers, holding.resource, to_seconds(now - began), policy)
        now = yield Sleep(min(now + chance.between(*policy.retry_delay), holding.valid_until))
    return Lost(loss, answers)


def extend_by_token(request: Request, token: bytes, policy: Policy) -> Flow[bool]:
    """Extend by bare token, in one round: True if a quorum did, False if it is gone or taken.

    A quorum that holds the token now excludes everybody else from now on; it does not tell
    that nobody held in between, if the lease had run out before: a SET that arrived late may
    have brought the token back on a node (found by simulation, see docs/track-record.md).
    Raises QuorumUnreachable, NodeError.
    """
    holding = Holding(request.resource, request.key, token, FOR_EVER, None)
    outcome, now = yield from _extension(holding, request.ttl_ms, policy)
    if isinstance(outcome, Extended):
        return True
    if outcome.loss is not Loss.UNREACHABLE:
        return False
    fail_unanswered(outcome.answers, now, request, policy)


def adopt(request: Request, token: bytes, policy: Policy, chance: Chance) -> Flow[Extended | Lost]:
    """Take over a lease that another process handed over: held once an extension has won."""
    # The keys live max_ttl at the most: beyond that there is nothing left to adopt.
    give_up = request.asked_at + policy.max_ttl
    holding = Holding(request.resource, request.key, token, FOR_EVER, None)
    while True:
        outcome, now = yield from _extension(holding, request.ttl_ms, policy)
        wake = now + chance.between(*policy.retry_delay)
        if isinstance(outcome, Extended):
            return outcome
        if outcome.loss is not Loss.UNREACHABLE:
            yield from give_back(request.key, token, None)
            return outcome
        _stop_if_forbidden(
            outcome.answers, request.resource, to_seconds(now - request.asked_at), policy
        )
        if wake >= give_up:
            return outcome
        yield Sleep(wake)


def _extension(
    holding: Holding, ttl_ms: int, policy: Policy
) -> Flow[tuple[Extended | Lost, Instant]]:
    """One extension round: a full re-vote that must end before the old validity does (rule 4)."""
    extend = Extend(holding.key, holding.token, ttl_ms)
    receipt = yield Send(extend, holding.receipt, holding.valid_until)
    tally = Tally(policy.n, receipt.round)
    until = min(receipt.sent + policy.node_timeout, holding.valid_until)
    decided_at = yield from _decide(tally, until)
    valid_until = policy.valid_until(receipt.started, ttl_ms)
    if tally.verdict is WON and decided_at < min(holding.valid_until, valid_until):
        return Extended(valid_until, tally.closed()), decided_at
    ended = yield from _hear_why(tally, until, decided_at)
    return lost_by(tally, holding), ended


def lost_by(tally: Tally, holding: Holding) -> Lost:
    """What an extension round that was not won says of the lease."""
    answers = tally.closed()
    # Who does not know until when it was valid cannot say that the keys went before their time.
    gone = Loss.EXPIRED if holding.valid_until == FOR_EVER else Loss.EVICTED
    return Lost(_loss(answers, tally.quorum, gone) or Loss.UNREACHABLE, answers)


def _stop_if_forbidden(
    answers: tuple[Answer, ...], resource: str, elapsed: float, policy: Policy
) -> None:
    if policy.n - sum(answer.is_lasting for answer in answers) < policy.quorum:
        raise NodeError(resource, node_votes(policy.addresses, answers), 1, elapsed)


def _loss(answers: tuple[Answer, ...], needed: int, gone: Loss = Loss.EXPIRED) -> Loss | None:
    """Why the lease is lost for good, or None while the silent nodes could still save it."""
    if len(answers) - sum(map(_is_against, answers)) >= needed:
        return None
    taken = any(answer.cause in (Cause.HELD, Cause.WRONG_TYPE) for answer in answers)
    return Loss.TAKEN if taken else gone


def _is_against(answer: Answer) -> bool:
    """The node told that the key there is not ours."""
    return answer.cause in (Cause.HELD, Cause.ABSENT, Cause.WRONG_TYPE)


# --- release ---------------------------------------------------------------------------------


def release(key: bytes, token: bytes, receipt: Receipt | None, policy: Policy) -> Flow[Released]:
    """Compare-and-delete on all nodes that were asked; decided by a quorum of them."""
    try:
        back = yield Send(Release(key, token), behind=receipt)
        tally = Tally(policy.n, back.round)
        until = back.sent + policy.node_timeout
        ended = yield from _decide(tally, until)
        if tally.verdict is LOST:
            ended = yield from _hear_why(tally, until, ended)
    except GeneratorExit:
        raise
    except BaseException:
        # Interrupted, perhaps before all nodes were asked: asking twice does no harm.
        yield Send(Release(key, token), behind=receipt)
        raise
    answers = tally.closed()
    if tally.verdict is WON:
        return Released(deleted=True, gone=None, answers=answers, ended=ended)
    gone = _loss(answers, policy.quorum)
    return Released(deleted=False, gone=gone, answers=answers, ended=ended)


def release_by_token(
    request: Request, token: bytes, policy: Policy, receipt: Receipt | None = None
) -> Flow[bool]:
    """Release by bare token: True if a quorum deleted it, False if it was gone or another's.

    receipt: where this very process has acquired it, so that the release does not overtake an
    acquire that is still unanswered (rule 3).  Raises QuorumUnreachable, NodeError.
    """
    released = yield from release(request.key, token, receipt, policy)
    if released.deleted or released.gone is not None:
        return released.deleted
    fail_unanswered(released.answers, released.ended, request, policy)


# --- inspect ---------------------------------------------------------------------------------


def inspect(key: bytes, policy: Policy) -> Flow[tuple[Answer, ...]]:
    """Ask every node who holds the key, and wait for all of them: a report, not a vote."""
    receipt = yield Send(Inspect(key))
    tally = Tally(policy.n, receipt.round)
    until = receipt.sent + policy.node_timeout
    while tally.pending:
        event = yield Receive(until)
        if isinstance(event, Elapsed):
            tally.silence()
        else:
            tally.count(event)
    return tally.closed()


# --- what they share -------------------------------------------------------------------------


def _decide(tally: Tally, until: Instant) -> Flow[Instant]:
    """Count replies until the verdict falls or the time is up; the instant of either.

    The verdict falls as soon as it is decided, for or against: nobody waits for a slow node
    that can change nothing (rule 8).  The driver drains its reply later.
    """
    wish = Receive(until, tally)
    while True:
        event: Replied | Elapsed = yield wish
        if isinstance(event, Elapsed):
            tally.silence()
            return event.at
        if tally.count(event) is not PENDING:
            return event.at


def _hear_why(tally: Tally, until: Instant, now: Instant) -> Flow[Instant]:
    """After a lost round about a key of ours: is it gone, or can the nodes not be reached?

    Lost may be decided while that is still open: dead nodes count against at once.  So go on
    hearing while the nodes that have not answered could still tell that it is gone.
    """
    while why_is_open(tally):
        event: Replied | Elapsed = yield Receive(until)
        now = event.at
        if isinstance(event, Elapsed):
            tally.silence()
            break
        tally.count(event)
    return now


def why_is_open(tally: Tally) -> bool:
    """Lost, and nodes that have not answered could still tell that the key is not ours."""
    if tally.verdict is not LOST:
        return False
    against = sum(answer is not None and _is_against(answer) for answer in tally.answers)
    enough = tally.n - tally.quorum + 1
    return against < enough <= against + tally.pending
