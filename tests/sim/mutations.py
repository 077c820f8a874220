"""The lock, broken on purpose, in one way at a time: what "no violation" is worth.

Each break is a variant of a flow, of the driver or of the node, put in place of the right one
while a world runs.  `search` counts the worlds that it takes until a promise is seen to be broken;
the seed that it stops at is kept in corpus.py, and replayed by the tests.

    python -m tests.sim.mutations            search for all of them, and print the table
    python -m tests.sim.mutations overtak    for those that have this in their names
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import replace
from typing import Any

from quorlock._core import acquiring, any_of, redlock, renewal, routing
from quorlock._core import config as policy
from quorlock._core import fence as fencing
from quorlock._core import restart_guard as guard
from quorlock._core import tally as quorum
from quorlock._core.claims import Claim
from quorlock._core.commands import ACQUIRES, Extend, IssueFence, Release
from quorlock._core.config import Policy
from quorlock._core.effects import Flow, Receive, Send, Timeout
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.redlock import LeaseFacts
from quorlock._core.releases_in_doubt import ReleaseCopy, ReleasesInDoubt, Remaining
from quorlock._core.renewal_schedule import RenewalEntry
from quorlock._core.request import AcquireRequest
from quorlock._core.results import AttemptFailed, Extended, ExtendFailed, LossReason
from quorlock._core.rounds import NodeReply, SentRound
from quorlock._core.routing import Unsent
from quorlock._core.tally import Tally, Verdict
from quorlock._core.time import FOR_EVER, NS_PER_MS, PAST, notice
from quorlock._core.votes import GRANTED, TIMED_OUT, Answer, Vote
from quorlock._protocol import pipeline
from quorlock._protocol.encoding import COUNTER
from quorlock._protocol.peer import Peer
from quorlock.testing.fake_node import Entry, FakeNode, Reply
from quorlock_sim import client, client_renewal
from quorlock_sim.client import Process, SeededEntropy
from quorlock_sim.client_renewal import Renewer, SimRenewedLease
from quorlock_sim.history import LeaseRecord
from quorlock_sim.network import Link
from quorlock_sim.workload import CallRequest, SimWorker
from tests.sim import (
    mutations_keeping,
    mutations_several,
    mutations_shared,
    mutations_usual,
    mutations_waiting,
)
from tests.sim.mutation import Mutation, applied, search

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


def elapsed_not_subtracted(
    request: AcquireRequest, granted: int, sent_round: SentRound, at: int, policy: Policy
) -> int | None:
    """Count the validity from the verdict."""
    del sent_round
    return policy.valid_until(at, request.ttl_ms) if granted >= policy.quorum else None


def started_after_sending(
    request: AcquireRequest, granted: int, sent_round: SentRound, at: int, policy: Policy
) -> int | None:
    """Count it from the last byte."""
    late = sent_round._replace(started_at=sent_round.sent_at)
    return _valid_until(request, granted, late, at, policy)


def give_back_to_granters(
    request: AcquireRequest,
    back: Release,
    tally: Tally,
    sent_round: SentRound,
    policy: Policy,
    turn: Any,
) -> Flow[AttemptFailed]:
    """Only those that said yes are asked to release."""
    granted = sum(
        1 << node
        for node, answer in enumerate(tally.answers)
        if answer is not None and answer.vote is Vote.GRANTED
    )
    target = sent_round.target._replace(nodes=granted)
    sent_round = sent_round._replace(target=target)
    return (yield from _give_back(request, back, tally, sent_round, policy, turn))


_give_back = redlock.release_failed_attempt
_valid_until = redlock._valid_until


def _extension(
    facts: LeaseFacts, ttl_ms: int, policy: Policy, *, bounded: bool, from_reply: bool
) -> Flow[tuple[Extended | ExtendFailed, int]]:
    sent_round = yield Send(Extend(facts.claim.key, facts.token, ttl_ms), facts.target)
    tally = Tally(policy.n, sent_round.round)
    until = sent_round.sent_at + policy.node_timeout
    decided_at = yield from redlock.collect_until_decided(tally, until)
    valid_until = policy.valid_until(decided_at if from_reply else sent_round.started_at, ttl_ms)
    limit = min(facts.valid_until, valid_until) if bounded else valid_until
    if tally.verdict is Verdict.WON and decided_at < limit:
        return Extended(valid_until, tally.final_answers()), decided_at
    ended = yield from redlock.collect_while(redlock.is_loss_ambiguous, tally, until, decided_at)
    answers = tally.final_answers()
    return ExtendFailed(
        redlock._loss(answers, policy.quorum) or LossReason.UNREACHABLE, answers
    ), ended


def extension_after_the_end(facts: LeaseFacts, ttl_ms: int, policy: Policy) -> Any:
    return _extension(facts, ttl_ms, policy, bounded=False, from_reply=False)


def extension_from_the_reply(facts: LeaseFacts, ttl_ms: int, policy: Policy) -> Any:
    return _extension(facts, ttl_ms, policy, bounded=True, from_reply=True)


def wait_on_a_tie(tally: Tally, until: int) -> Flow[int]:
    """Neither a majority for nor one against: so wait for more, which never comes."""
    while True:
        event: Timeout | NodeReply = yield Receive(until)
        if isinstance(event, Timeout):
            if 2 * tally.granted == tally.n:
                until = event.at + 10 * NS_PER_MS
                continue
            tally.mark_timed_out()
            return event.at
        if tally.count(event) is not Verdict.PENDING and 2 * tally.granted != tally.n:
            return event.at


# --- variants of fencing -----------------------------------------------------------------------


def _issued(tally: Tally) -> list[int]:
    """Return the numbers of the nodes that have granted so far, the largest first."""
    return sorted((answer.fence for answer in tally.answers if answer is not None), reverse=True)


def largest_issued(tally: Tally, *_: Any) -> Flow[int]:
    """Use the naive rule: the largest number that a quorum issued, without informing the others."""
    yield from ()
    return _issued(tally)[0]


def quorum_th_largest(tally: Tally, *_: Any) -> Flow[int]:
    """A quorum has issued as much, or more."""
    yield from ()
    return _issued(tally)[tally.quorum - 1]


def one_above_all(
    tally: Tally,
    claim: Claim,
    token: bytes,
    sent_round: SentRound,
    valid_until: int,
    policy: Policy,
) -> Flow[int]:
    """One more than the largest, written to the others whatever they hold."""
    fence = _issued(tally)[0] + 1
    raised = yield Send(
        claim.issue_fence(token, fence, fencing.ahead_ms(policy)), behind=sent_round.target
    )
    raises = Tally(policy.n, raised.round)
    decided_at = yield from redlock.collect_until_decided(
        raises, raised.sent_at + policy.node_timeout
    )
    if raises.verdict is Verdict.WON and decided_at < valid_until:
        return fence
    tally.override([TIMED_OUT] * policy.n)
    return 0


# --- variants of renewal -----------------------------------------------------------------------


def without_a_cap(self: RenewalEntry, at: int) -> int:
    """Extends by its ttl for ever."""
    return self._ttl_ms


_won = RenewalEntry.on_extended


def won_without_a_cap(
    self: RenewalEntry, valid_until: int, ttl_ms: int, at: int, entropy: Any
) -> None:
    """Nor does the limit cut off what was won."""
    lease: Any = self.lease
    limit, lease.hold_until = lease.hold_until, FOR_EVER
    _won(self, valid_until, ttl_ms, at, entropy)
    lease.hold_until = limit


def _settle(
    round_: renewal._LeaseRound,
    at: int,
    policy: Policy,
    entropy: Any,
    *,
    repairs: bool,
    from_reply: bool,
) -> None:
    tally, facts = round_.tally, round_.facts
    decided_at = at if round_.decided_at is None else round_.decided_at
    began = decided_at if from_reply else round_.sent_round.started_at
    valid_until = policy.valid_until(began, round_.ttl_ms)
    absent = sum(answer is not None and answer.lacks_key for answer in tally.answers)
    granted = tally.granted + (absent if repairs else 0)
    round_.is_extended = granted >= tally.quorum and decided_at < min(
        facts.valid_until, valid_until
    )
    if round_.is_extended:
        round_.entry.on_extended(valid_until, round_.ttl_ms, at, entropy)
    else:
        pause = entropy.between(*policy.retry_delay)
        round_.entry.on_failed(redlock.classify_loss(tally, facts), at, pause)
    round_.entry.clear_in_flight()


def repaired_nodes_count(
    round_: renewal._LeaseRound, at: int, policy: Policy, entropy: Any
) -> None:
    """A node that gets the key back in this round counts as if it had had it."""
    _settle(round_, at, policy, entropy, repairs=True, from_reply=False)


def renewed_from_the_reply(
    round_: renewal._LeaseRound, at: int, policy: Policy, entropy: Any
) -> None:
    """The new validity begins when the verdict falls."""
    _settle(round_, at, policy, entropy, repairs=False, from_reply=True)


_wait_for_all = renewal._BatchTally.await_stragglers


def repairs_what_was_not_won(self: renewal._BatchTally) -> bool:
    """Tops up after every round."""
    won = {number: round_.is_extended for number, round_ in self.rounds.items()}
    for round_ in self.rounds.values():
        round_.is_extended = True
    missing = _wait_for_all(self)
    for number, round_ in self.rounds.items():
        round_.is_extended = won[number]
    return missing


def begins_in_any_case(self: RenewalEntry, at: int) -> LeaseFacts:
    """Renew every registered lease, even if it is over."""
    self.in_flight = True
    return self.lease.facts()


def follows_nothing(self: SimRenewedLease, sent_round: SentRound) -> None:
    """A release does not know of restored keys."""


def reports_no_loss(self: Renewer, kept: SimRenewedLease) -> None:
    """Report losses only by renewal."""


def no_lead(ttl_ms: int) -> int:
    """Leave no notice: the holder has no time to stop."""
    return 0


def counted_from_the_reply(self: SimRenewedLease) -> int:
    """Count the ttl from the reply to the extension, not from the validity."""
    since, _ = self.lease.promises[-1]
    heard = self._process.clock.read_back(since)
    return heard + self.lease.ttl_ms * NS_PER_MS - notice(self.lease.ttl_ms)


# --- variants of the driver --------------------------------------------------------------------


def one_token(self: SeededEntropy) -> bytes:
    """Use the same token for every attempt of a client."""
    return f"{self._name}.1".encode()


def on_its_own_path(*facts: Any) -> object:
    """Send a release over the caller's connection, wherever its acquire is."""
    return facts[3]


def forgets_releases(command: Any) -> Unsent:
    """Leave no pending release where there is no connection."""
    return Unsent(is_release=False)


def past_pending_releases(send: Send, *facts: Any) -> Any:
    """Extend keys and set them again though a release may delete them."""
    with applied(((PendingReleases, "forbid", lambda *_: False),)):
        return routing.route(send, *facts)


def confirms_nothing(self: Process, index: int) -> None:
    """Never send pending releases."""


def adds_no_pending_release(self: PendingReleases, token: bytes) -> bool:
    """Count nodes with a pending release of the token for an extension."""
    return False


_hand_over = Process.suppress_releases


def no_doubts(self: Process, lease: LeaseRecord) -> Remaining:
    """A lease goes to another process, and nothing is said of releases under way."""
    _hand_over(self, lease)
    return {}


def inherits_nothing(self: Process, lease: LeaseRecord) -> Remaining:
    """Report only the process's own doubts, and not those of the ticket."""
    return _hand_over(self, replace(lease, in_doubt=None))


def doubts_from_the_taking(self: ReleasesInDoubt, copy: ReleaseCopy, now: int) -> None:
    """A copy is in doubt for max_ttl after it was taken to be sent, and no longer."""
    self.note(copy.release.token, copy.run_id, now)


def suppresses_for_max_ttl(self: PendingReleases, token: bytes, carried: Any) -> bool:
    """Ignore commands that a connection still carries."""
    return False


def keeps_nothing(self: PendingReleases, release: Release, run_id: str, now: int) -> None:
    """Register no pending release for a lost connection."""


def loses_without_releases(self: Peer, answer: Answer, at: int, *, blame: bool = True) -> None:
    """Record a lost connection, and leave the keys of its open requests."""
    self.lost = True


_answer_open_requests = Peer.answer_open_requests


def answers_before_releases(self: Peer, answer: Answer, at: int) -> None:
    """Reply to the open requests of a lost connection, and register their releases after that."""
    in_doubt = list(self.pipeline.keys_in_doubt())
    _answer_open_requests(self, answer, at)
    for command in in_doubt:
        self.node_state.release_later(command, self.run_id, at)


def notes_no_process_late(self: PendingReleases, pending_release: Any) -> None:
    """Leave an entry without the process that may still get the acquire, if it began so."""
    token = pending_release.token
    if token not in self._suppressed:
        self._by_token.setdefault(token, pending_release).keys.update(pending_release.keys)


def gives_up_refused_releases(self: Peer, release: Release, at: int) -> None:
    """Never retry a release that the server answered with an error."""


_process = Process.__init__


def by_the_wall_clock(self: Process, *facts: Any, **more: Any) -> None:
    """The client goes by its wall clock."""
    _process(self, *facts, **more)
    self.clock = self.wall


# --- variants of the node ----------------------------------------------------------------------


_release = FakeNode.release


def plain_del(
    self: FakeNode,
    key: bytes,
    token: bytes,
    at: int,
    place: bytes = b"",
    action: int = 0,
    also: tuple[bytes, ...] = (),
) -> Reply:
    """Deletes whatever is there."""
    if place or not token:
        return _release(self, key, token, at, place, action, also)
    if self.alive(key, at) is None:
        return -2
    del self.keys[key]
    return -3


_extend = FakeNode.extend


def creates_again(
    self: FakeNode,
    key: bytes,
    token: bytes,
    ttl_ms: int,
    at: int,
    also: tuple[bytes, ...] = (),
    shared: bool = False,
) -> Reply:
    """Sets a key that is gone."""
    if self.alive(key, at) is None:
        self.keys[key] = Entry(token, at + ttl_ms)
        return 1
    return _extend(self, key, token, ttl_ms, at, also, shared)


def may_shorten(
    self: FakeNode,
    key: bytes,
    token: bytes,
    ttl_ms: int,
    at: int,
    also: tuple[bytes, ...] = (),
    shared: bool = False,
) -> Reply:
    """A plain PEXPIRE."""
    entry = self.alive(key, at)
    if entry is not None and entry.value == token:
        self.keys[key] = Entry(token, at + ttl_ms)
        return 1
    return -1 if entry is None else 0


def steals(self: FakeNode, key: bytes, value: bytes, ttl_ms: int, at: int) -> Reply:
    """SET without NX (Perl's Redis::DistLock had SET XX)."""
    self.keys[key] = Entry(value, at + ttl_ms)
    return b"OK"


def raises_blindly(self: FakeNode, command: IssueFence, at: int) -> Reply:
    """Sets the counter, whatever it holds, and whosever the lock is."""
    self.keys[COUNTER + command.key] = Entry(b"%d" % command.fence, None)
    return [1, at * 1_000, command.fence]


def begins_at_zero(self: FakeNode, keys: tuple[bytes, ...], grid_ms: int, at: int) -> Reply:
    """An absent counter is none."""
    entry = self.alive(COUNTER + keys[0], at)
    return 1 if entry is None or entry.value is None else int(entry.value) + 1


_next_fence = FakeNode._next_fence


def continues_from_an_old_one(
    self: FakeNode, keys: tuple[bytes, ...], grid_ms: int, at: int
) -> Reply:
    """Issue the clock if the counter is absent, and otherwise one more: also after an old
    snapshot.
    """
    absent = self.alive(COUNTER + keys[0], at) is None
    return (_next_fence if absent else begins_at_zero)(self, keys, grid_ms, at)


# --- variants of the guard ---------------------------------------------------------------------

_quarantine = guard.quarantine_by_uptime


def lets_all_vote(kept: guard.Quarantine, now: int) -> None:
    """Let every restarted node vote."""


def counts_its_vote(kept: guard.Quarantine, now: int) -> Answer | None:
    """Count a grant of a node that was not asked."""
    return GRANTED if now < kept.until else None


def half_as_long(uptime_s: int | None, told_at: int, max_ttl: int, factor: float) -> Any:
    """Wait until half of the leases are over."""
    return _quarantine(uptime_s, told_at, max_ttl // 2, factor)


def sees_no_marker(self: FakeNode, *facts: Any) -> None:
    """The acquire script does not look whether it is there."""


_guard = FakeNode.guard


def anybodys_marker(self: FakeNode, key: bytes, run_id: bytes, worth: bytes, at: int) -> Reply:
    """An old marker that came back from the disk is as good as a new one."""
    worth = worth if worth == b"all" else b"the same"
    return _guard(self, key, run_id, worth, at)


_on_demoted = guard.Guard.on_demoted


def closes_no_other(
    self: guard.Guard, run_id: str, connections: list[Link], why: str, *, but: object
) -> None:
    """The other connections to the replica stay open."""
    del connections
    _on_demoted(self, run_id, (), why, but=but)


def demands_no_quarantine(
    self: guard.Guard, run_id: str, connections: list[Link], why: str, *, but: object
) -> None:
    """A replica votes as soon as it is a master again, over new connections."""
    _on_demoted(self, run_id, connections, why, but=but)
    self._replicas.clear()


# --- variants of what becomes of a lost lease ---------------------------------------------------


def released_when_reported(self: SimRenewedLease) -> int:
    """Release the keys of a lost lease as soon as its loss is reported."""
    return PAST


def released_when_seen(self: SimRenewedLease) -> int:
    """Do the same for a lease whose loss a round has shown, but not for an expired one."""
    until, ended = self.lease.promises[-1][1], self.lease.ended
    deadline = until - notice(self.lease.ttl_ms)
    return PAST if ended and self._process.clock.read_back(ended) < deadline else until


def slips_at_once(self: SimWorker, lease: LeaseRecord) -> Any:
    """A loss that an extension by hand has shown releases the keys at once."""
    self.world.end(lease, "lost")
    flow = redlock.release_without_waiting(lease.claim, lease.token, lease.target)
    yield CallRequest("give_back", flow, lease.resource, lease.token)


# --- variants of a claim on any of several -----------------------------------------------------


class CountsGrants(any_of.PlaceTally):
    """Counts a grant of any lock: a quorum of nodes has given one, not the same one."""

    def count(self, reply: NodeReply) -> Verdict:
        verdict = Tally.count(self, reply)
        if reply.round == self.round and reply.answer.vote is Vote.GRANTED:
            self.place = reply.answer.before
        return verdict


def releases_no_strays(*_: object) -> Any:
    """Keep what other nodes have given, until its ttl ends."""
    yield from ()


def narrowed(command: Any) -> Release:
    """Release the first key only."""
    return Release(command.key, command.token)


MUTATIONS = (
    Mutation("permits are counted", "permits", ((any_of, "PlaceTally", CountsGrants),), "permits"),
    Mutation(
        "permits that others gave are not released",
        "leftover",
        ((any_of, "_release_strays", releases_no_strays),),
        "permits",
    ),
    Mutation(
        "a pending release of several keys is narrowed",
        "leftover",
        ((pipeline, "release_of", narrowed), (client, "release_of", narrowed)),
        "permits",
    ),
    Mutation("replies not tied to rounds", "overlap", ((redlock, "Tally", AnyRound),)),
    Mutation("token reused between attempts", "overlap", ((SeededEntropy, "token", one_token),)),
    Mutation(
        "quorum of N/2",
        "overlap",
        ((quorum, "quorum", half), (policy, "quorum", half)),
    ),
    Mutation(
        "elapsed time not subtracted",
        "overlap",
        ((redlock, "_valid_until", elapsed_not_subtracted),),
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
        ((redlock, "_valid_until", started_after_sending),),
    ),
    Mutation("release by plain DEL", "overlap", ((FakeNode, "release", plain_del),)),
    Mutation(
        "give-back only on nodes that said yes",
        "leftover",
        ((redlock, "release_failed_attempt", give_back_to_granters),),
    ),
    Mutation("release overtaking acquire", "leftover", ((routing, "_carrier", on_its_own_path),)),
    Mutation(
        "release forgotten where nothing can be sent",
        "leftover",
        ((routing, "unsent", forgets_releases),),
    ),
    Mutation(
        "extended though a release is pending",
        "overlap",
        ((client, "route", past_pending_releases),),
        "handovers",
    ),
    Mutation(
        "pending releases not sent after a reconnect",
        "leftover",
        ((Process, "send_due", confirms_nothing),),
    ),
    Mutation(
        "no pending release for a lost connection",
        "leftover",
        ((PendingReleases, "add", keeps_nothing),),
    ),
    Mutation(
        "a lost connection leaves the keys of its open requests",
        "leftover",
        ((Peer, "register_loss", loses_without_releases),),
    ),
    Mutation(
        "open requests answered before their pending releases",
        "leftover",
        (
            (Peer, "register_loss", loses_without_releases),
            (Peer, "answer_open_requests", answers_before_releases),
            (PendingReleases, "_note", notes_no_process_late),
        ),
    ),
    Mutation(
        "a refused release is not retried",
        "leftover",
        ((Peer, "on_release_refused", gives_up_refused_releases),),
    ),
    Mutation(
        "handed over without its doubts",
        "overlap",
        ((Process, "suppress_releases", no_doubts),),
        "handovers",
    ),
    Mutation(
        "doubts of others are not handed on",
        "overlap",
        ((Process, "suppress_releases", inherits_nothing),),
        "handovers",
    ),
    Mutation(
        "doubt counted from the taking",
        "deletion",
        ((ReleasesInDoubt, "sent", doubts_from_the_taking),),
        "handovers",
    ),
    Mutation(
        "suppressed for max_ttl only",
        "overlap",
        ((PendingReleases, "_is_carried", suppresses_for_max_ttl),),
        "handovers",
    ),
    Mutation("extend that re-creates", "leftover", ((FakeNode, "extend", creates_again),)),
    Mutation(
        "extend counted after the old validity",
        "resurrection",
        ((redlock, "_extension", extension_after_the_end),),
    ),
    Mutation("extension that may shorten", "overlap", ((FakeNode, "extend", may_shorten),)),
    Mutation(
        "restarted empty inside the ttl, votes at once",
        "overlap",
        ((routing, "quarantine_answer", lets_all_vote),),
        "restarts",
    ),
    Mutation(
        "even-N tie waits for ever",
        "deadline",
        ((redlock, "collect_until_decided", wait_on_a_tie),),
    ),
    Mutation(
        "wall clock in place of elapsed time",
        "overlap",
        ((Process, "__init__", by_the_wall_clock),),
        "clients",
    ),
    Mutation("SET without NX", "overlap", ((FakeNode, "set_nx_px", steals),)),
    Mutation(
        "quarantine shorter than the ttl",
        "overlap",
        ((guard, "quarantine_by_uptime", half_as_long),),
        "restarts",
    ),
    Mutation(
        "uptime taken at its word",
        "overlap",
        ((guard, "UPTIME_RESOLUTION", 0),),
        "restarts",
    ),
    Mutation(
        "quarantine counted as an outage",
        "patience",
        ((acquiring, "_NO_OUTAGE", acquiring.WORTH_RETRYING),),
        "restarts",
    ),
    Mutation(
        "votes of nodes in quarantine counted",
        "verdict",
        ((routing, "quarantine_answer", counts_its_vote),),
        "restarts",
    ),
    # 20,000 random worlds did not need the 15 steps that this takes: they are written down there.
    Mutation(
        "guarded nodes counted in extensions",
        "overlap",
        ((routing, "VOTES", (*ACQUIRES, IssueFence)),),
        "comebacks",
    ),
    Mutation(
        "acquires do not look at the marker",
        "overlap",
        ((FakeNode, "_kept_out", sees_no_marker),),
        "restarts",
    ),
    Mutation(
        "marker of the process before is good",
        "overlap",
        ((FakeNode, "guard", anybodys_marker),),
        "comebacks",
    ),
    Mutation(
        "other connections to a replica stay open",
        "overlap",
        ((guard.Guard, "on_demoted", closes_no_other),),
        "comebacks",
    ),
    Mutation(
        "a replica votes at once when it is a master",
        "overlap",
        ((guard.Guard, "on_demoted", demands_no_quarantine),),
        "comebacks",
    ),
    Mutation(
        "renewal without a cap",
        "limit",
        ((RenewalEntry, "ttl_ms", without_a_cap), (RenewalEntry, "on_extended", won_without_a_cap)),
        "renewal",
    ),
    Mutation(
        "repaired nodes counted for continuity",
        "verdict",
        ((renewal, "_conclude", repaired_nodes_count),),
        "renewal",
    ),
    Mutation(
        "repair after a round that was not won",
        "verdict",
        ((renewal._BatchTally, "await_stragglers", repairs_what_was_not_won),),
        "renewal",
    ),
    Mutation(
        "renewed validity measured from the reply",
        "cover",
        ((renewal, "_conclude", renewed_from_the_reply),),
        "renewal",
    ),
    Mutation(
        "renewal that outlives its lease",
        "afterlife",
        ((RenewalEntry, "mark_in_flight", begins_in_any_case),),
        "renewal",
    ),
    Mutation(
        "release overtaking a restored key",
        "leftover",
        ((SimRenewedLease, "add_release_target", follows_nothing),),
        "renewal",
    ),
    Mutation(
        "loss reported by renewal alone",
        "silence",
        ((Renewer, "_watch", reports_no_loss),),
        "renewal",
    ),
    Mutation(
        "lost lease released before its end",
        "told",
        ((SimRenewedLease, "reported_until", property(released_when_reported)),),
        "renewal",
    ),
    Mutation(
        "loss seen in a renewal, released at once",
        "told",
        ((SimRenewedLease, "reported_until", property(released_when_seen)),),
        "restarts",
    ),
    Mutation(
        "loss seen in an extension, released at once",
        "told",
        ((SimWorker, "_slip", slips_at_once),),
        "restarts",
    ),
    Mutation(
        "loss reported at the end",
        "silence",
        ((client_renewal, "notice", no_lead),),
        "renewal",
    ),
    Mutation(
        "alarm counted from the reply",
        "silence",
        ((SimRenewedLease, "deadline", property(counted_from_the_reply)),),
        "renewal",
    ),
    # Fences: real designs have used each of these rules.
    Mutation(
        "fence = max without write-back",
        "fence",
        ((fencing, "agree_on_fence", largest_issued),),
        "fences",
    ),
    Mutation(
        "fence = the quorum-th largest",
        "fence",
        ((fencing, "agree_on_fence", quorum_th_largest),),
        "fences",
    ),
    Mutation(
        "fence = max + 1, written blindly",
        "fence",
        ((fencing, "agree_on_fence", one_above_all), (FakeNode, "raise_fence", raises_blindly)),
        "fences",
    ),
    Mutation("blind write-back", "fence", ((FakeNode, "raise_fence", raises_blindly),), "fences"),
    Mutation(
        "fence counter from 0", "fence", ((FakeNode, "_next_fence", begins_at_zero),), "fences"
    ),
    Mutation(
        "old fence counter goes on",
        "fence",
        ((FakeNode, "_next_fence", continues_from_an_old_one),),
        "fences",
    ),
    *mutations_waiting.MUTATIONS,
    *mutations_keeping.MUTATIONS,
    *mutations_usual.MUTATIONS,
    *mutations_several.MUTATIONS,
    *mutations_shared.MUTATIONS,
)


def table(seeds: dict[str, int]) -> str:
    """Print the table as in corpus.py."""
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
