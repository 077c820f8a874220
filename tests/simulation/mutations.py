"""The lock, broken on purpose, in one way at a time: what "no violation" is worth.

Each break is a variant of a flow, of the driver or of the node, put in place of the right one
while a world runs.  `search` counts the worlds that it takes until a promise is seen to be broken;
the seed that it stops at is kept in corpus.py, and replayed by the tests.

    python -m tests.simulation.mutations            search for all of them, and print the table
    python -m tests.simulation.mutations overtak    for those that have this in their names
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from quorlock._core import fencing, guard, policy, quorum, redlock, renewal
from quorlock._core.commands import ACQUIRES, Acquire, Extend, Raise, Release
from quorlock._core.debts import Debts
from quorlock._core.effects import Elapsed, Flow, Keep, Receipt, Receive, Replied, Send
from quorlock._core.outcomes import (
    SILENT,
    Cause,
    Extended,
    Granted,
    Loss,
    Lost,
    Refused,
    Vote,
)
from quorlock._core.policy import Policy
from quorlock._core.quorum import Tally, Verdict
from quorlock._core.redlock import Holding, Request
from quorlock._core.renewal import Renewal
from quorlock._core.time import FOR_EVER, NS_PER_MS, notice
from quorlock._wire.packing import COUNTER
from quorlock.testing import process, renewing
from quorlock.testing.checker import judge
from quorlock.testing.history import Violation
from quorlock.testing.node import Entry, Node, Reply
from quorlock.testing.process import Dicey, Process
from quorlock.testing.renewing import Kept, Renewer
from quorlock.testing.scenario import plan_of
from quorlock.testing.world import World

WORLDS_MAX = 20_000


@contextlib.contextmanager
def applied(pieces: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    """Put something in place of something, and the old back in the end."""
    before = [getattr(where, name) for where, name, _ in pieces]
    try:
        for where, name, variant in pieces:
            setattr(where, name, variant)
        yield
    finally:
        for (where, name, _), old in zip(pieces, before, strict=True):
            setattr(where, name, old)


@dataclass(frozen=True)
class Mutation:
    """One break.

    rule: the promise that is seen to be broken by it. scenario: where to look. pieces: what is
    put in place of what.
    """

    name: str
    rule: str
    pieces: tuple[tuple[Any, str, Any], ...]
    scenario: str = "sound"

    def applied(self) -> contextlib.AbstractContextManager[None]:
        """While this lasts, it is in place."""
        return applied(self.pieces)

    def violations(self, seed: int) -> tuple[Violation, ...]:
        """What is wrong with that world under this break."""
        with self.applied():
            world = World(plan_of(self.scenario, seed))
            world.run()
            return judge(world).violations


def search(mutation: Mutation, first: int = 0, most: int = WORLDS_MAX) -> int | None:
    """The first seed whose world breaks the mutation's promise."""
    for seed in range(first, first + most):
        if any(found.rule == mutation.rule for found in mutation.violations(seed)):
            return seed
    return None


# --- variants of the core ----------------------------------------------------------------------


class AnyRound(Tally):
    """Counts a reply whatever round it names."""

    def count(self, reply: Any) -> Verdict:
        return super().count(reply._replace(round=self.round))


def half(n: int) -> int:
    """N/2 will do."""
    return max(1, n // 2)


def valid_without_drift(self: Policy, started: int, ttl_ms: int) -> int:
    until: int = started + ttl_ms * NS_PER_MS
    return until


def _attempt(
    request: Request, policy: Policy, chance: Any, began: Callable[[Receipt, int], int]
) -> Flow[Granted | Refused]:
    """An attempt whose validity counts from another instant."""
    token = chance.token()
    behind: Receipt | None = None
    try:
        receipt: Receipt = yield Send(Acquire(request.key, token, request.ttl_ms))
        behind = receipt
        tally = Tally(policy.n, receipt.round)
        decided_at = yield from redlock._decide(tally, receipt.sent + policy.node_timeout)
        valid_until = policy.valid_until(began(receipt, decided_at), request.ttl_ms)
        if tally.verdict is Verdict.WON and decided_at < valid_until:
            answers = tally.closed()
            won = Granted(request.key, token, request.ttl_ms, valid_until, answers, receipt)
            yield Keep(won)
            return won
        return (yield from redlock._give_back(request.key, token, tally, receipt, policy))
    except GeneratorExit:
        raise
    except BaseException:
        yield Send(Release(request.key, token), behind)
        raise


def elapsed_not_subtracted(request: Request, policy: Policy, chance: Any) -> Any:
    return _attempt(request, policy, chance, lambda _receipt, decided_at: decided_at)


def started_after_sending(request: Request, policy: Policy, chance: Any) -> Any:
    return _attempt(request, policy, chance, lambda receipt, _decided_at: receipt.sent)


def give_back_to_granters(
    key: bytes, token: bytes, tally: Tally, receipt: Receipt, policy: Policy
) -> Flow[Refused]:
    """Only those that said yes are asked to release."""
    granted = sum(
        1 << node
        for node, answer in enumerate(tally.answers)
        if answer is not None and answer.vote is Vote.GRANTED
    )
    return (yield from _give_back(key, token, tally, receipt._replace(asked=granted), policy))


_give_back = redlock._give_back


def _extension(
    holding: Holding, ttl_ms: int, policy: Policy, *, bounded: bool, from_reply: bool
) -> Flow[tuple[Extended | Lost, int]]:
    receipt = yield Send(Extend(holding.key, holding.token, ttl_ms), holding.receipt)
    tally = Tally(policy.n, receipt.round)
    until = receipt.sent + policy.node_timeout
    decided_at = yield from redlock._decide(tally, until)
    valid_until = policy.valid_until(decided_at if from_reply else receipt.started, ttl_ms)
    limit = min(holding.valid_until, valid_until) if bounded else valid_until
    if tally.verdict is Verdict.WON and decided_at < limit:
        return Extended(valid_until, tally.closed()), decided_at
    ended = yield from redlock._hear_why(tally, until, decided_at)
    answers = tally.closed()
    return Lost(redlock._loss(answers, policy.quorum) or Loss.UNREACHABLE, answers), ended


def extension_after_the_end(holding: Holding, ttl_ms: int, policy: Policy) -> Any:
    return _extension(holding, ttl_ms, policy, bounded=False, from_reply=False)


def extension_from_the_reply(holding: Holding, ttl_ms: int, policy: Policy) -> Any:
    return _extension(holding, ttl_ms, policy, bounded=True, from_reply=True)


def wait_on_a_tie(tally: Tally, until: int) -> Flow[int]:
    """Neither a majority for nor one against: so wait for more, which never comes."""
    while True:
        event: Elapsed | Replied = yield Receive(until)
        if isinstance(event, Elapsed):
            if 2 * tally.granted == tally.n:
                until = event.at + 10 * NS_PER_MS
                continue
            tally.silence()
            return event.at
        if tally.count(event) is not Verdict.PENDING and 2 * tally.granted != tally.n:
            return event.at


# --- variants of fencing -----------------------------------------------------------------------


def _issued(tally: Tally) -> list[int]:
    """By those that have granted the lock so far, the largest first."""
    return sorted((answer.fence for answer in tally.answers if answer is not None), reverse=True)


def largest_issued(tally: Tally, *_: Any) -> Flow[int]:
    """The naive rule: the largest of what a quorum issued, which nobody else is told of."""
    yield from ()
    return _issued(tally)[0]


def quorum_th_largest(tally: Tally, *_: Any) -> Flow[int]:
    """A quorum has issued as much, or more."""
    yield from ()
    return _issued(tally)[tally.quorum - 1]


def one_above_all(
    tally: Tally, key: bytes, token: bytes, receipt: Receipt, valid_until: int, policy: Policy
) -> Flow[int]:
    """One more than the largest, written to the others whatever they hold."""
    fence = _issued(tally)[0] + 1
    raised = yield Send(Raise(key, token, fence, fencing.ahead_ms(policy)), behind=receipt)
    raises = Tally(policy.n, raised.round)
    decided_at = yield from redlock._decide(raises, raised.sent + policy.node_timeout)
    if raises.verdict is Verdict.WON and decided_at < valid_until:
        return fence
    tally.overrule([SILENT] * policy.n)
    return 0


# --- variants of renewal -----------------------------------------------------------------------


def without_a_cap(self: Renewal, at: int) -> int:
    """Extends by its ttl for ever."""
    return self._ttl_ms


_won = Renewal.won


def won_without_a_cap(self: Renewal, valid_until: int, ttl_ms: int, at: int, chance: Any) -> None:
    """Nor does the limit cut off what was won."""
    limit, self.holding.hold_until = self.holding.hold_until, FOR_EVER
    _won(self, valid_until, ttl_ms, at, chance)
    self.holding.hold_until = limit


def _settle(
    round_: renewal._Round, at: int, policy: Policy, chance: Any, *, repairs: bool, from_reply: bool
) -> None:
    tally, facts = round_.tally, round_.facts
    decided_at = at if round_.decided_at is None else round_.decided_at
    began = decided_at if from_reply else round_.receipt.started
    valid_until = policy.valid_until(began, round_.ttl_ms)
    absent = sum(answer is not None and answer.cause is Cause.ABSENT for answer in tally.answers)
    granted = tally.granted + (absent if repairs else 0)
    round_.won = granted >= tally.quorum and decided_at < min(facts.valid_until, valid_until)
    if round_.won:
        round_.renewal.won(valid_until, round_.ttl_ms, at, chance)
    else:
        pause = chance.between(*policy.retry_delay)
        round_.renewal.failed(redlock.lost_by(tally, facts), at, pause)
    round_.renewal.done()


def repaired_nodes_count(round_: renewal._Round, at: int, policy: Policy, chance: Any) -> None:
    """A node that gets the key back in this round counts as if it had had it."""
    _settle(round_, at, policy, chance, repairs=True, from_reply=False)


def renewed_from_the_reply(round_: renewal._Round, at: int, policy: Policy, chance: Any) -> None:
    """The new validity begins when the verdict falls."""
    _settle(round_, at, policy, chance, repairs=False, from_reply=True)


_wait_for_all = renewal._Votes.wait_for_all


def repairs_what_was_not_won(self: renewal._Votes) -> bool:
    """Tops up after every round."""
    won = {number: round_.won for number, round_ in self.rounds.items()}
    for round_ in self.rounds.values():
        round_.won = True
    missing = _wait_for_all(self)
    for number, round_ in self.rounds.items():
        round_.won = won[number]
    return missing


def begins_in_any_case(self: Renewal, at: int) -> Holding:
    """Whoever is under renewal is renewed, whatever became of the lease."""
    self.in_flight = True
    return self.holding.facts()


def follows_nothing(self: Kept, receipt: Receipt) -> None:
    """A release does not know of top-ups."""


def rings_nowhere(self: Renewer, kept: Kept) -> None:
    """A loss is told by what renews, and by nothing else."""


def no_notice(ttl_ms: int) -> int:
    """Who is told has no time left to stop."""
    return 0


def counted_from_the_reply(self: Kept) -> int:
    """The alarm goes off a ttl after the extension was heard of, whatever the lease is good for."""
    since, _ = self.lease.promises[-1]
    heard = self._process.clock.read_back(since)
    return heard + self.lease.ttl_ms * NS_PER_MS - notice(self.lease.ttl_ms)


# --- variants of the driver --------------------------------------------------------------------


def one_token(self: Dicey) -> bytes:
    """The same token for every attempt of a client."""
    return f"{self._name}.1".encode()


def nowhere_behind(self: Process, index: int, command: Any, behind: Receipt) -> None:
    """Releases take whatever connection there is."""


def pays_nothing(self: Process, index: int) -> None:
    """What is owed stays owed."""


def owes_nothing(self: Debts, token: bytes) -> bool:
    """A node that is owed a release of the token counts for an extension."""
    return False


def keeps_nothing(self: Debts, key: bytes, token: bytes, run_id: str, now: int) -> None:
    """A lost connection leaves no debt."""


_process = Process.__init__


def by_the_wall_clock(self: Process, *facts: Any) -> None:
    """The client goes by its wall clock."""
    _process(self, *facts)
    self.clock = self.wall


# --- variants of the node ----------------------------------------------------------------------


def plain_del(self: Node, key: bytes, token: bytes, at: int) -> Reply:
    """Deletes whatever is there."""
    if self.alive(key, at) is None:
        return -2
    del self.keys[key]
    return -3


_extend = Node.extend


def creates_again(self: Node, key: bytes, token: bytes, ttl_ms: int, at: int) -> Reply:
    """Sets a key that is gone."""
    if self.alive(key, at) is None:
        self.keys[key] = Entry(token, at + ttl_ms)
        return 1
    return _extend(self, key, token, ttl_ms, at)


def may_shorten(self: Node, key: bytes, token: bytes, ttl_ms: int, at: int) -> Reply:
    """A plain PEXPIRE."""
    entry = self.alive(key, at)
    if entry is not None and entry.value == token:
        self.keys[key] = Entry(token, at + ttl_ms)
        return 1
    return -1 if entry is None else 0


def steals(self: Node, key: bytes, value: bytes, ttl_ms: int, at: int) -> Reply:
    """SET without NX (Perl's Redis::DistLock had SET XX)."""
    self.keys[key] = Entry(value, at + ttl_ms)
    return b"OK"


def raises_blindly(self: Node, command: Raise, at: int) -> Reply:
    """Sets the counter, whatever it holds, and whosever the lock is."""
    self.keys[COUNTER + command.key] = Entry(b"%d" % command.fence, None)
    return [1, at * 1_000, command.fence]


def begins_at_zero(self: Node, key: bytes, grid_ms: int, at: int) -> Reply:
    """An absent counter is none."""
    entry = self.alive(COUNTER + key, at)
    return 1 if entry is None or entry.value is None else int(entry.value) + 1


_next_fence = Node._next_fence


def goes_on_from_an_old_one(self: Node, key: bytes, grid_ms: int, at: int) -> Reply:
    """By the clock if it is absent, else one more: also if it is an old one from the disk."""
    absent = self.alive(COUNTER + key, at) is None
    return (_next_fence if absent else begins_at_zero)(self, key, grid_ms, at)


# --- variants of the guard ---------------------------------------------------------------------

_quarantine = guard.quarantine


def lets_all_vote(kept: guard.Quarantine, now: int) -> None:
    """Whoever comes up votes."""


def half_as_long(uptime_s: int | None, told_at: int, max_ttl: int, factor: float) -> Any:
    """Until half of the leases are over."""
    return _quarantine(uptime_s, told_at, max_ttl // 2, factor)


def sees_no_marker(self: Node, marker_ms: int, at: int) -> None:
    """The acquire script does not look whether it is there."""


_guard = Node.guard


def anybodys_marker(self: Node, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
    """An old marker that came back from the disk is as good as a new one."""
    worth = worth if worth == b"all" else b"the same"
    return _guard(self, key, run_id, worth, at)


MUTATIONS = (
    Mutation("replies not tied to rounds", "overlap", ((redlock, "Tally", AnyRound),)),
    Mutation("token reused between attempts", "overlap", ((Dicey, "token", one_token),)),
    Mutation(
        "quorum of N/2",
        "overlap",
        ((quorum, "quorum", half), (policy, "quorum", half)),
    ),
    Mutation(
        "elapsed time not subtracted", "overlap", ((redlock, "attempt", elapsed_not_subtracted),)
    ),
    Mutation("drift left out", "overlap", ((Policy, "valid_until", valid_without_drift),)),
    Mutation(
        "validity measured from the reply",
        "overlap",
        ((redlock, "_extension", extension_from_the_reply),),
    ),
    Mutation(
        "validity measured from after the sending",
        "overlap",
        ((redlock, "attempt", started_after_sending),),
    ),
    Mutation("release by plain DEL", "overlap", ((Node, "release", plain_del),)),
    Mutation(
        "give-back only on nodes that said yes",
        "leftover",
        ((redlock, "_give_back", give_back_to_granters),),
    ),
    Mutation("release overtaking acquire", "leftover", ((Process, "_behind", nowhere_behind),)),
    Mutation("debt not paid after a reconnect", "leftover", ((Process, "pay", pays_nothing),)),
    Mutation("no debt for a lost connection", "leftover", ((Debts, "owe", keeps_nothing),)),
    Mutation("extend that re-creates", "leftover", ((Node, "extend", creates_again),)),
    Mutation(
        "extend counted after the old validity",
        "resurrection",
        ((redlock, "_extension", extension_after_the_end),),
    ),
    Mutation("extension that may shorten", "overlap", ((Node, "extend", may_shorten),)),
    Mutation(
        "restarted empty inside the ttl, votes at once",
        "overlap",
        ((process, "kept_out", lets_all_vote),),
        "restarts",
    ),
    Mutation("even-N tie waits for ever", "deadline", ((redlock, "_decide", wait_on_a_tie),)),
    Mutation(
        "wall clock in place of elapsed time",
        "overlap",
        ((Process, "__init__", by_the_wall_clock),),
        "clients",
    ),
    Mutation("SET without NX", "overlap", ((Node, "set_nx_px", steals),)),
    Mutation(
        "quarantine shorter than the ttl",
        "overlap",
        ((guard, "quarantine", half_as_long),),
        "restarts",
    ),
    Mutation(
        "uptime taken at its word",
        "overlap",
        ((guard, "UPTIME_RESOLUTION", 0),),
        "restarts",
    ),
    # 20,000 random worlds did not need the 15 steps that this takes: they are written down there.
    Mutation(
        "guarded nodes counted in extensions",
        "overlap",
        ((process, "VOTES", (*ACQUIRES, Raise)),),
        "comebacks",
    ),
    Mutation(
        "acquires do not look at the marker",
        "overlap",
        ((Node, "_kept_out", sees_no_marker),),
        "restarts",
    ),
    Mutation(
        "marker of the process before is good",
        "overlap",
        ((Node, "guard", anybodys_marker),),
        "comebacks",
    ),
    Mutation(
        "renewal without a cap",
        "limit",
        ((Renewal, "ttl_ms", without_a_cap), (Renewal, "won", won_without_a_cap)),
        "renewal",
    ),
    Mutation(
        "repaired nodes counted for continuity",
        "verdict",
        ((renewal, "_settle", repaired_nodes_count),),
        "renewal",
    ),
    Mutation(
        "repair after a round that was not won",
        "verdict",
        ((renewal._Votes, "wait_for_all", repairs_what_was_not_won),),
        "renewal",
    ),
    Mutation(
        "renewed validity measured from the reply",
        "cover",
        ((renewal, "_settle", renewed_from_the_reply),),
        "renewal",
    ),
    Mutation(
        "renewal that outlives its lease",
        "afterlife",
        ((Renewal, "begin", begins_in_any_case),),
        "renewal",
    ),
    Mutation(
        "release overtaking a top-up", "leftover", ((Kept, "follow", follows_nothing),), "renewal"
    ),
    Mutation(
        "loss told by renewal alone", "silence", ((Renewer, "_watch", rings_nowhere),), "renewal"
    ),
    Mutation("loss told at the end", "silence", ((renewing, "notice", no_notice),), "renewal"),
    Mutation(
        "alarm counted from the reply",
        "silence",
        ((Kept, "deadline", property(counted_from_the_reply)),),
        "renewal",
    ),
    # Fences: each of these rules has been somebody's.
    Mutation(
        "fence = max without write-back",
        "fence",
        ((fencing, "agree", largest_issued),),
        "fences",
    ),
    Mutation(
        "fence = the quorum-th largest",
        "fence",
        ((fencing, "agree", quorum_th_largest),),
        "fences",
    ),
    Mutation(
        "fence = max + 1, written blindly",
        "fence",
        ((fencing, "agree", one_above_all), (Node, "raise_fence", raises_blindly)),
        "fences",
    ),
    Mutation("blind write-back", "fence", ((Node, "raise_fence", raises_blindly),), "fences"),
    Mutation("fence counter from 0", "fence", ((Node, "_next_fence", begins_at_zero),), "fences"),
    Mutation(
        "old fence counter goes on",
        "fence",
        ((Node, "_next_fence", goes_on_from_an_old_one),),
        "fences",
    ),
)


def table(seeds: dict[str, int]) -> str:
    """As it is kept in corpus.py."""
    lines = (f'    "{name}": {seed:_},' for name, seed in seeds.items())
    return "\n".join(["SEEDS = {", *lines, "}"])


def main() -> int:
    gc.set_threshold(50_000, 20, 100)
    seeds: dict[str, int] = {}
    chosen = [m for m in MUTATIONS if not sys.argv[1:] or sys.argv[1] in m.name]
    for mutation in chosen:
        began = time.monotonic()
        seed = search(mutation)
        seconds = time.monotonic() - began
        if seed is not None:
            seeds[mutation.name] = seed
        found = f"found after {seed + 1:,} worlds" if seed is not None else "NOT FOUND"
        print(f"{mutation.name:<46} {mutation.rule:<13} {found} ({seconds:.1f} s)", flush=True)
    print(f"\n{table(seeds)}")
    return 0 if chosen and len(seeds) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
