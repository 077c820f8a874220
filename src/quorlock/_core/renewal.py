"""Renewal: leases that extend themselves, many in one go, and the repair of nodes that lost a key.

Owns when a lease is due, by how much it may be extended, what a round says of each, and which nodes
are topped up.  Leaves clocks, threads and tasks to the faces: they lead `renew` over what
`Agenda.take` gives them, and end what `Agenda.settle` finds to be over.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from quorlock._core.commands import Extend
from quorlock._core.effects import Elapsed, Receipt, Receive, Send, SendAll
from quorlock._core.fencing import asking_for
from quorlock._core.outcomes import Cause, Loss
from quorlock._core.quorum import PENDING, WON, Tally
from quorlock._core.redlock import lost_by, why_is_open
from quorlock._core.time import NS_PER_MS, PAST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quorlock._core.effects import Chance, Flow, Replied
    from quorlock._core.outcomes import Answer, Lost
    from quorlock._core.policy import Policy
    from quorlock._core.quorum import Verdict
    from quorlock._core.redlock import Holding
    from quorlock._core.time import Duration, Instant

# Per cent of the ttl that are left when a lease is due: a third of it is over then, so that two
# thirds remain for trying again.  By chance, so that leases that began together part.
DUE_LEFT = (63, 70)
# Whoever is due within such a part of its ttl is taken along: fewer packets.
ALONG = 15
# At least so long between two tries for one lease, whatever the shares come to: no hot loop.
PAUSE_MIN: Duration = 5 * NS_PER_MS
# Hints make a lease be looked at again within such a part of its ttl, not sooner: however many come
# and however false they are, they cost a node some twenty times what renewal costs.
HINTED = 50
# Where nodes give hints, the first look is when a tenth of the ttl is over: it makes them watch.
FIRST_LOOK = 10
# Of what is left, such a part passes between a try that failed and the next one, at the most.
RETRIES = 4
# A warning, if renewal fails and less than half of the validity is left.
WARNING_LEFT = 2
# So many leases in one packet: some 13 KB, a third of a millisecond of a node's time.
CHUNK = 128


class Held(Protocol):
    """A lease, as far as renewal is concerned.

    deadline: when its loss is told, a little before `valid_until`; in the past once it is over.
    hold_until: no extension may pass this instant.
    trouble, against: why the last round failed, and who said what in it.
    """

    hold_until: Instant
    trouble: Loss | None
    against: tuple[Answer, ...]

    @property
    def valid_until(self) -> Instant: ...

    @property
    def deadline(self) -> Instant: ...

    def facts(self) -> Holding:
        """As the flows take it."""
        ...

    def prolong(self, valid_until: Instant, ttl_ms: int) -> bool:
        """An extension has won; False: it is over meanwhile."""
        ...

    def end(self, loss: Loss | None = None) -> None:
        """It is over, for good."""
        ...

    def follow(self, receipt: Receipt) -> None:
        """A key was set by a top-up: whoever releases it goes behind that as well."""
        ...


class Renewal:
    """One lease that extends itself.

    due: when it is to be extended, or looked at, next.
    in_flight: something may be sent for it at this moment; whoever gives it back waits.
    place: which of its entries in the agenda counts; 0: none does.
    """

    __slots__ = (
        "_is_hinted",
        "_is_last",
        "_looked_at",
        "_ttl_ms",
        "_warned",
        "due",
        "holding",
        "in_flight",
        "key",
        "place",
    )

    def __init__(self, holding: Held, ttl_ms: int, at: Instant, chance: Chance) -> None:
        self.holding = holding
        self.key = holding.facts().key
        self.in_flight = False
        self.place = 0
        self._looked_at = at  # when something was sent for it last
        self._is_hinted = False  # since then
        self._ttl_ms = ttl_ms
        self._is_last = False  # what is left of max_hold has been taken
        self._warned = False
        self.due = self._next_due(at, chance)

    @property
    def taken_at(self) -> Instant:
        """From when on it may be taken along with others."""
        # A hint has an instant: of many that are hinted, each would take the others along sooner.
        return self.due if self._is_hinted else self.due - self._ttl_ms * NS_PER_MS // ALONG

    def begin(self, at: Instant) -> Holding | None:
        """Something is about to be sent for it; None: nothing may be any more."""
        self.in_flight = True
        self._looked_at, self._is_hinted = at, False
        if at < self.holding.deadline:
            return self.holding.facts()
        self.in_flight = False
        return None

    def done(self) -> None:
        """Nothing is being sent for it."""
        self.in_flight = False

    def hint(self, at: Instant) -> bool:
        """Look at it, as soon as hints may make us; True: that is sooner than it was due."""
        pause = max(PAUSE_MIN, self._ttl_ms * NS_PER_MS // HINTED)
        due = max(at, self._looked_at + pause)
        if due >= self.due or self._is_last:  # nothing is sent for it any more, so none tells
            return False
        self.due, self._is_hinted = due, True
        return True

    def look_first(self) -> None:
        """Its nodes may give hints, from the first extension on: have that early."""
        self.due = min(self.due, self._looked_at + self._ttl_ms * NS_PER_MS // FIRST_LOOK)

    def ttl_ms(self, at: Instant) -> int:
        """By how much to extend it now; 0: no more.

        Redlock page, "Extending the lock": the number of re-acquisitions must be limited, or
        nobody else ever gets the lock.  So the last one is as long as `max_hold` leaves room for.
        """
        if self._is_last:
            return 0
        return max(0, min(self._ttl_ms, (self.holding.hold_until - at) // NS_PER_MS))

    def won(self, valid_until: Instant, ttl_ms: int, at: Instant, chance: Chance) -> None:
        """A quorum has extended it, in time."""
        holding = self.holding
        if holding.prolong(min(valid_until, holding.hold_until), ttl_ms):
            holding.trouble, holding.against = None, ()
            self._warned = False
            self._is_last = ttl_ms < self._ttl_ms
            self.due = self._next_due(at, chance)

    def failed(self, lost: Lost, at: Instant, pause: Duration) -> None:
        """A round was not won: over for good if it is gone, else tried again while it is valid."""
        holding = self.holding
        holding.against = lost.answers
        if lost.loss is not Loss.UNREACHABLE:
            holding.end(lost.loss)
            return
        holding.trouble = lost.loss
        self.due = at + min(pause, (holding.deadline - at) // RETRIES)

    def put_off(self) -> None:
        """There is nothing to extend now: look again when there is, or when it is over."""
        if self._is_last and not self._warned:
            self.due = self.holding.valid_until - self._ttl_ms * NS_PER_MS // WARNING_LEFT
        elif self._is_last:
            self.due = self.holding.deadline

    def warns(self, at: Instant) -> bool:
        """Its holder is to be warned now; once in every decline."""
        failing = self._is_last or self.holding.trouble is not None
        left = self.holding.valid_until - at
        if self._warned or not failing or left * WARNING_LEFT > self._ttl_ms * NS_PER_MS:
            return False
        self._warned = True
        return True

    def _next_due(self, at: Instant, chance: Chance) -> Instant:
        ttl = self._ttl_ms * NS_PER_MS
        least, most = DUE_LEFT
        left = chance.between(ttl * least // 100, ttl * most // 100)
        return max(self.holding.valid_until - left, at + PAUSE_MIN)


class Agenda:
    """All leases of one engine that extend themselves, by when they are due."""

    __slots__ = ("_by_key", "_heap", "_live", "_serial")

    def __init__(self) -> None:
        self._live: set[Renewal] = set()
        self._by_key: dict[bytes, Renewal] = {}  # the last of each: one before it is lost
        self._heap: list[tuple[Instant, int, Renewal]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, renewal: Renewal) -> None:
        """A new one."""
        self._live.add(renewal)
        self._by_key[renewal.key] = renewal
        self._push(renewal)

    def drop(self, renewal: Renewal) -> None:
        """It is over. Its place goes when it would have been due, or when many have."""
        self._forget(renewal)
        if len(self._heap) > 2 * len(self._live) + CHUNK:
            self._heap = [e for e in self._heap if e[1] == e[2].place and e[2] in self._live]
            heapq.heapify(self._heap)

    def next_due(self) -> Instant | None:
        """When there is something to do; None: there is nothing."""
        head = self._head()
        return head[0] if head is not None and self._live else None

    def take(self, at: Instant) -> list[Renewal]:
        """Those that are due, and those that soon will be; nobody, if none is due."""
        taken: list[Renewal] = []
        head = self._head()
        if head is not None and head[0] <= at:
            while head is not None and head[2].taken_at <= at:
                renewal = heapq.heappop(self._heap)[2]
                if renewal in self._live:
                    renewal.place = 0
                    taken.append(renewal)
                head = self._head()
        return taken

    def knows(self, keys: Iterable[bytes] | None) -> bool:
        """Any of these (None: any at all) is the key of one of them."""
        return bool(self._live) if keys is None else not self._by_key.keys().isdisjoint(keys)

    def hint(self, keys: Iterable[bytes] | None, at: Instant) -> None:
        """A node says that these keys were changed, by somebody else; None: all may have been.

        Their leases are due now, or as soon as hints may make them.  It is no more than that: what
        is said of a lease that is not ours, or is over, or is being renewed at this moment, by a
        node that is late or wrong, costs a round at the most.
        """
        known = self._by_key
        named = known.values() if keys is None else (known[key] for key in keys if key in known)
        for renewal in named:
            if renewal.place and renewal.hint(at):
                self._push(renewal)

    def settle(self, taken: Sequence[Renewal], at: Instant) -> tuple[list[Renewal], list[Renewal]]:
        """Put back what goes on; those that are over, and those whose holders are to be warned."""
        over: list[Renewal] = []
        warned: list[Renewal] = []
        for renewal in taken:
            if at >= renewal.holding.deadline:
                over.append(renewal)
                self._forget(renewal)
                continue
            if renewal.warns(at):
                warned.append(renewal)
            if renewal.due <= at:
                renewal.put_off()
            renewal.due = max(renewal.due, at + PAUSE_MIN)
            self._push(renewal)
        return over, warned

    def _push(self, renewal: Renewal) -> None:
        self._serial += 1
        renewal.place = self._serial
        heapq.heappush(self._heap, (renewal.due, self._serial, renewal))

    def _forget(self, renewal: Renewal) -> None:
        self._live.discard(renewal)
        if self._by_key.get(renewal.key) is renewal:
            del self._by_key[renewal.key]

    def _head(self) -> tuple[Instant, int, Renewal] | None:
        """The entry that comes first, of those that count."""
        heap = self._heap
        while heap and heap[0][1] != heap[0][2].place:
            heapq.heappop(heap)  # it was due sooner, by a hint
        return heap[0] if heap else None


# --- the flow --------------------------------------------------------------------------------


class _Round:
    """One lease's share of a pass: its own start, deadline and tally."""

    __slots__ = ("decided_at", "facts", "receipt", "renewal", "tally", "ttl_ms", "won")

    def __init__(
        self, renewal: Renewal, facts: Holding, ttl_ms: int, receipt: Receipt, n: int
    ) -> None:
        self.renewal = renewal
        self.facts = facts
        self.ttl_ms = ttl_ms
        self.receipt = receipt
        self.tally = Tally(n, receipt.round)
        self.decided_at: Instant | None = None
        self.won = False


class _Votes:
    """The rounds of a pass. To a driver they are one tally: pending while any of them is."""

    def __init__(self) -> None:
        self.rounds: dict[int, _Round] = {}
        self._open = 0
        self._missing = 0  # answers of nodes that no verdict waits for

    def add(self, round_: _Round) -> None:
        self.rounds[round_.receipt.round] = round_
        self._open += 1

    def count(self, reply: Replied) -> Verdict:
        """Count it in its own round (rule 1)."""
        round_ = self.rounds.get(reply.round)
        if round_ is not None and round_.tally.answers[reply.node] is None:
            verdict = round_.tally.count(reply)
            if round_.decided_at is not None:
                self._missing -= 1
            elif verdict is not PENDING and not why_is_open(round_.tally):
                round_.decided_at = reply.at
                self._open -= 1
        return PENDING if self._open or self._missing > 0 else WON

    def silence(self, at: Instant) -> None:
        """The time is up for those that are open."""
        for round_ in self.rounds.values():
            if round_.decided_at is None:
                round_.tally.silence()
                round_.decided_at = at
        self._open = 0

    def wait_for_all(self) -> bool:
        """From now on every answer in a round that was won is waited for; whether any is missing.

        They tell which nodes lack the key.
        """
        self._missing = sum(r.tally.pending for r in self.rounds.values() if r.won)
        self.rounds = {number: r for number, r in self.rounds.items() if r.won}
        return self._missing > 0


def renew(renewals: Sequence[Renewal], at: Instant, policy: Policy, chance: Chance) -> Flow[None]:
    """Extend all of these, in chunks; then top up the nodes that lack a key of theirs.

    What came of it is in the renewals and their holdings.
    """
    votes = _Votes()
    for start in range(0, len(renewals), CHUNK):
        at = yield from _extend(renewals[start : start + CHUNK], votes, at, policy, chance)
    if votes.wait_for_all():
        # All at once and for all chunks: a node that hangs costs its time once, not per chunk.
        last = max(round_.receipt.sent for round_ in votes.rounds.values())
        at = yield from _hear(votes, last + policy.node_timeout)
    lacking = [round_ for round_ in votes.rounds.values() if _lacks(round_.tally)]
    for start in range(0, len(lacking), CHUNK):
        at = yield from _top_up(lacking[start : start + CHUNK], at, policy)


def _extend(
    chunk: Sequence[Renewal], votes: _Votes, at: Instant, policy: Policy, chance: Chance
) -> Flow[Instant]:
    """One chunk: a round for each lease, which counts by the same rules as `redlock.extend`'s."""
    asked: list[tuple[Renewal, Holding, int]] = []
    for renewal in chunk:
        ttl_ms = renewal.ttl_ms(at)
        facts = renewal.begin(at) if ttl_ms else None
        if facts is not None:
            asked.append((renewal, facts, ttl_ms))
    if not asked:
        return at
    receipts: tuple[Receipt, ...] = yield SendAll(
        tuple(
            [
                Send(Extend(facts.key, facts.token, ttl_ms), facts.receipt, facts.valid_until)
                for _, facts, ttl_ms in asked
            ]
        )
    )
    rounds: list[_Round] = []
    for (renewal, facts, ttl_ms), receipt in zip(asked, receipts, strict=True):
        rounds.append(_Round(renewal, facts, ttl_ms, receipt, policy.n))
        votes.add(rounds[-1])
    at = yield from _hear(votes, receipts[-1].sent + policy.node_timeout)
    votes.silence(at)
    for round_ in rounds:
        _settle(round_, at, policy, chance)
    return at


def _settle(round_: _Round, at: Instant, policy: Policy, chance: Chance) -> None:
    """The verdict on one lease: won within the validity that it extends (rules 4 and 6)."""
    facts, tally, renewal = round_.facts, round_.tally, round_.renewal
    valid_until = policy.valid_until(round_.receipt.started, round_.ttl_ms)
    decided_at = at if round_.decided_at is None else round_.decided_at
    round_.won = tally.verdict is WON and decided_at < min(facts.valid_until, valid_until)
    if round_.won:
        renewal.won(valid_until, round_.ttl_ms, at, chance)
    else:
        pause = chance.between(*policy.retry_delay)
        renewal.failed(lost_by(tally, facts), at, pause)
    renewal.done()


def _lacks(tally: Tally) -> int:
    """The nodes that have told that the key is not there, as bits."""
    return sum(
        1 << node
        for node, answer in enumerate(tally.answers)
        if answer is not None and answer.cause is Cause.ABSENT
    )


def _top_up(rounds: Sequence[_Round], at: Instant, policy: Policy) -> Flow[Instant]:
    """Set the key anew, for what is left of the ttl, on nodes that lack it.

    In a second step, and after rounds that were won without those nodes: a key that we have just
    set says nothing about whether the lease went on (redsync#149; RedLock.net re-creates and
    counts).  From the next round on it counts like any other.
    """
    asked: list[tuple[Renewal, Send]] = []
    for round_ in rounds:
        spent_ms = -(-(at - round_.receipt.started) // NS_PER_MS)
        facts = round_.renewal.begin(at) if spent_ms < round_.ttl_ms else None
        if facts is not None:
            left_ms = round_.ttl_ms - spent_ms
            acquire = asking_for(facts.key, facts.token, left_ms, policy)
            lacking = Receipt(0, PAST, PAST, _lacks(round_.tally), round_.receipt.path)
            asked.append((round_.renewal, Send(acquire, lacking, facts.valid_until)))
    if not asked:
        return at
    receipts: tuple[Receipt, ...] = yield SendAll(tuple([send for _, send in asked]))
    for (renewal, _), receipt in zip(asked, receipts, strict=True):
        if receipt.asked:
            renewal.holding.follow(receipt)
        renewal.done()
    return (yield from _hear_echoes(receipts, policy))


def _hear(votes: _Votes, until: Instant) -> Flow[Instant]:
    """Count replies until nothing more is waited for or the time is up; the instant of either."""
    wish = Receive(until, votes)
    while True:
        event: Replied | Elapsed = yield wish
        if isinstance(event, Elapsed) or votes.count(event) is not PENDING:
            return event.at


def _hear_echoes(receipts: tuple[Receipt, ...], policy: Policy) -> Flow[Instant]:
    """Hear what the nodes say to top-ups: it changes nothing, but is not to lie about unread."""
    missing, until = policy.n * len(receipts), receipts[-1].sent + policy.node_timeout
    at = receipts[-1].sent
    while missing:
        event: Replied | Elapsed = yield Receive(until)
        at = event.at
        if isinstance(event, Elapsed):
            break
        missing -= event.round >= receipts[0].round
    return at
