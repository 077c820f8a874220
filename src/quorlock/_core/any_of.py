"""Acquire any one of several locks: a permit of a semaphore, or one of a pool of named things.

A node gives the first lock that is free there, in an order that is drawn for each attempt.  The
attempt is won if a quorum gives *the same one*: so it is a lock like any other, and two holders of
it would need two quorums.  To count how many locks a node has given would not do (rule 15).

A lease that is won is a plain lease on one lock.  Whatever else nodes have given, or may still
give, is released before the caller gets its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from quorlock._core.acquiring import WORTH_RETRYING, Failures, next_attempt_at, raise_failure
from quorlock._core.claims import AnyOf, Keys
from quorlock._core.effects import Commit, Send, Sleep, to_send
from quorlock._core.redlock import (
    collect_until_decided,
    key_in_the_way,
    lease_won,
    release_failed_attempt,
    time_until_free_ms,
)
from quorlock._core.resources import KEYS_BYTES_MAX
from quorlock._core.results import Acquired, FailureReason
from quorlock._core.rounds import Target
from quorlock._core.tally import LOST, WON, Tally, Verdict
from quorlock._core.time import FOR_EVER, to_seconds
from quorlock._core.votes import NO_REPLY, Answer, Vote, node_votes
from quorlock.errors import AcquireTimeout, VoteCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.request import AnyRequest
    from quorlock._core.results import AttemptFailed
    from quorlock._core.rounds import NodeReply, SentRound
    from quorlock._core.time import Instant

# So many locks are asked for at once, if their keys have no more than KEYS_BYTES_MAX.
WINDOW = 16


class PlaceTally(Tally):
    """The votes of a round in which each node may give one of several locks, by their places.

    The place of a lock is the number of those before it in the command.  Attributes:
        place: the one that most nodes have given; `granted` and `granted_mask` are about it.
    """

    __slots__ = ("_masks", "place")

    def __init__(self, n: int, round_: int) -> None:
        super().__init__(n, round_)
        self.place = 0
        self._masks: dict[int, int] = {}

    def count(self, reply: NodeReply) -> Verdict:
        """Count one reply; won if a quorum gave the same lock, lost if none can be the one."""
        round_, node, answer, _ = reply
        if round_ != self.round or self.answers[node] is not None:
            return self.verdict
        self.answers[node] = answer
        self.pending -= 1
        if answer.vote is Vote.GRANTED:
            mask = self._masks.get(answer.before, 0) | 1 << node
            self._masks[answer.before] = mask
            if mask.bit_count() > self.granted:
                self.granted, self.granted_mask = mask.bit_count(), mask
                self.place = answer.before
        if self.granted >= self.quorum:
            self.verdict = WON
        elif self.granted + self.pending < self.quorum:
            self.verdict = LOST
        return self.verdict

    def final_answers(self) -> tuple[Answer, ...]:
        """Return all answers; a node that gave another lock is against this one."""
        return tuple([self._about_place(node, answer) for node, answer in enumerate(self.answers)])

    def _about_place(self, node: int, answer: Answer | None) -> Answer:
        if answer is None:
            return NO_REPLY
        if answer.vote is Vote.GRANTED and not self.granted_mask >> node & 1:
            return _GAVE_ANOTHER._replace(before=answer.before)
        return answer


_GAVE_ANOTHER = Answer(Vote.REFUSED, VoteCode.HELD, "granted another of them")


def acquire(request: AnyRequest, policy: Policy, entropy: Entropy) -> Flow[Acquired]:
    """Attempt until granted, until `stop` is set, or until waiting longer makes no sense.

    As `acquiring.acquire` does where it tries again after random pauses; with the same errors.
    """
    failures, stop = Failures(request, policy), request.stop
    while stop is None or not stop.is_set():
        is_first = not failures.count and request.timeout != 0
        outcome = yield from attempt(request, policy, entropy, is_first=is_first)
        if isinstance(outcome, Acquired):
            return outcome
        outcome = failures.add(outcome, None)
        wake = next_attempt_at(outcome, request, policy, entropy, failures.outage_since)
        if wake is not None:
            yield Sleep(wake, stop)
        elif stop is None or not stop.is_set():
            _raise_failure(outcome, request, policy, failures.count)
    raise failures.stopped(policy)


def try_acquire(request: AnyRequest, policy: Policy, entropy: Entropy) -> Flow[Acquired | None]:
    """Make one attempt; None if all are held. Raises QuorumUnreachable, NodeError."""
    outcome = yield from attempt(request, policy, entropy)
    if isinstance(outcome, Acquired):
        return outcome
    if outcome.reason in WORTH_RETRYING:
        return None
    raise_failure(outcome, request, policy, attempts=1)


def _raise_failure(
    last: AttemptFailed, request: AnyRequest, policy: Policy, attempts: int
) -> NoReturn:
    if last.reason not in WORTH_RETRYING:
        raise_failure(last, request, policy, attempts)
    left = time_until_first_free_ms(last.answers, policy.quorum)
    raise AcquireTimeout(
        request.resource,
        node_votes(policy.addresses, last.answers),
        attempts,
        to_seconds(last.ended - request.asked_at),
        holder_ttl=None if left is None else left / 1000,
        permits=len(request.claim.keys),
    )


def attempt(
    request: AnyRequest, policy: Policy, entropy: Entropy, *, is_first: bool = False
) -> Flow[Acquired | AttemptFailed]:
    """Ask for the locks in an order that is drawn here, `WINDOW` at a time, until one is won.

    Args:
        request: The locks, of which any one will do.
        policy: The settings.
        entropy: The source of tokens and of the order.
        is_first: The call has made no attempt yet, and may pause and make others.  A first attempt
            ends where nodes have given different locks: that is mostly a collision with other
            clients, which a pause is more likely to end.
    """
    found: list[AttemptFailed] = []  # in each window
    for keys in windows(request.claim.keys, entropy):
        if found and not _is_next_window_worth(request, found[-1]):
            break
        window = request.on(AnyOf(keys))
        outcome: Acquired | AttemptFailed = yield from _attempt_window(
            window, policy, entropy, is_first=is_first
        )
        if isinstance(outcome, Acquired):
            return outcome
        found.append(outcome)
        if is_first and _first_held(outcome.answers, len(keys), policy.quorum) < len(keys):
            break
    failed = found[-1]  # there is a first window
    if failed.reason is FailureReason.HELD:
        # Of all windows, the one of the lock that is free first: for the report.
        first = min(found, key=lambda window: _free_after(window, policy))
        failed = failed._replace(answers=first.answers, key=first.key)
    return failed._replace(attempts=sum([window.attempts for window in found]))


def _free_after(failed: AttemptFailed, policy: Policy) -> int:
    left = time_until_first_free_ms(failed.answers, policy.quorum)
    return FOR_EVER if left is None else left


def _is_next_window_worth(request: AnyRequest, last: AttemptFailed) -> bool:
    """Return whether a quorum has replied about the last window, and there is time left.

    A single attempt, which has no time to lose, asks for every lock.  But no attempt waits for
    silent nodes again and again.
    """
    is_late = bool(request.timeout) and last.ended >= request.asked_at + (request.timeout or 0)
    return not is_late and _is_next_round_worth(request, last)


def _is_next_round_worth(request: AnyRequest, last: AttemptFailed) -> bool:
    stop, answers = request.stop, last.answers
    if last.reason is not FailureReason.HELD or (stop is not None and stop.is_set()):
        return False
    return not any(answer.code is VoteCode.TIMED_OUT for answer in answers)


def _attempt_window(
    request: AnyRequest, policy: Policy, entropy: Entropy, *, is_first: bool
) -> Flow[Acquired | AttemptFailed]:
    """Ask for the locks until one is won; after each round without those that it found held.

    So a lock that a quorum has free is found also where each node gives another one.  It takes no
    longer than one round and its release may take.
    """
    keys, rounds = request.claim.keys, 0
    failed: AttemptFailed | None = None
    until = FOR_EVER
    while True:
        asked = request.on(AnyOf(keys))
        outcome: Acquired | AttemptFailed = yield from _attempt_round(asked, policy, entropy, until)
        if isinstance(outcome, Acquired):
            return outcome
        rounds += 1
        is_worth = not is_first and _is_next_round_worth(request, outcome)
        if failed is None:
            failed, until = outcome, outcome.started + policy.node_timeout
        elif is_worth:
            failed = outcome  # else the one before says more about the locks
        keys = keys[_first_held(outcome.answers, len(keys), policy.quorum) :]
        if not (keys and is_worth and outcome.ended < until):
            return failed._replace(attempts=rounds, ended=outcome.ended)


def _first_held(answers: tuple[Answer, ...], count: int, needed: int) -> int:
    """Return how many locks, the first of those asked for, no quorum has free: at least one.

    A node that gives a lock has found those before it held.  A node that the round did not wait for
    has said nothing.
    """
    return sorted([_found_held(answer, count) for answer in answers])[needed - 1]


def _found_held(answer: Answer, count: int) -> int:
    if answer.vote is Vote.GRANTED or (answer.is_held and answer.ttl_left_ms is None):
        return answer.before  # it has given this one
    return 0 if answer.code is VoteCode.NOT_AWAITED else count


def windows(keys: Sequence[bytes], entropy: Entropy) -> Iterator[tuple[bytes, ...]]:
    """Yield all keys in a random order, so many at a time as one command may name."""
    left, size = list(keys), window_of(keys)
    while left:
        drawn: list[bytes] = []
        while left and len(drawn) < size:
            index = entropy.between(0, len(left) - 1)
            left[index], left[-1] = left[-1], left[index]
            drawn.append(left.pop())
        yield tuple(drawn)


def window_of(keys: Sequence[bytes]) -> int:
    """Return how many of these keys one command asks for."""
    return max(1, min(WINDOW, KEYS_BYTES_MAX // max(map(len, keys))))


def _attempt_round(
    request: AnyRequest, policy: Policy, entropy: Entropy, latest: Instant
) -> Flow[Acquired | AttemptFailed]:
    """Run one acquire round and, if it did not win, its release; as `redlock.attempt` does.

    latest: The end of the nodes' time to reply, if that is earlier than usual.
    """
    token, claim = entropy.token(), request.claim
    sent: SentRound | None = None
    try:
        wait = request.timeout
        by = FOR_EVER if wait is None else request.asked_at + max(wait, policy.connect_timeout)
        by = min(by, latest)
        acquire = claim.acquire(token, request.ttl_ms, policy)
        sent_round: SentRound = yield to_send((acquire, None, by, FOR_EVER, None, request.stop))
        sent = sent_round
        tally = PlaceTally(policy.n, sent_round.round)
        until = min(latest, sent_round.sent_at + policy.node_timeout)
        decided_at = yield from collect_until_decided(tally, until)
        won_request = request.on(Keys(claim.keys[tally.place]))
        won = yield from lease_won(won_request, token, tally, sent_round, decided_at, policy)
        if won:
            yield from _release_strays(claim.keys, won, tally)
            yield Commit(won)
            return won
        back = claim.release(token)
        failed: AttemptFailed = yield from release_failed_attempt(
            request, back, tally, sent_round, policy, None
        )
        # Of the acquire: the release does not say which lock expires first.
        answers = tally.final_answers()
        return failed._replace(answers=answers, key=key_in_the_way(claim, answers))
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled or interrupted anywhere above: release, wait for nothing, end.
        yield Send(claim.release(token), sent.target if sent else None)
        raise


def _release_strays(keys: tuple[bytes, ...], won: Acquired, tally: PlaceTally) -> Flow[None]:
    """Release the other locks on nodes that gave one of them, or may still do so.

    Without waiting: the release follows the acquire on the same connection.  A node that has
    refused has set nothing.
    """
    settled = tally.granted_mask
    for node, answer in enumerate(tally.answers):
        if answer is not None and answer.is_held:
            settled |= 1 << node
    others = tuple([key for key in keys if key != won.claim.key])
    doubtful = won.sent_round.target.nodes & ~settled
    if others and doubtful:
        yield Send(AnyOf(others).release(won.token), Target(doubtful, won.sent_round.target.path))


def time_until_first_free_ms(answers: tuple[Answer, ...], needed: int) -> int | None:
    """Return when one of the locks expires on a quorum; None if no quorum names the same one.

    Each node names the one that expires first there.
    """
    named = [answer.before for answer in answers if answer.is_held]
    first = max(named, key=named.count, default=0)
    about_it = tuple([answer for answer in answers if answer.is_held and answer.before == first])
    return time_until_free_ms(about_it, needed)
