"""The judge is right: made-up histories, and what it says of them. Every rule fails somewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._core.claims import Keys
from quorlock._core.commands import Acquire, Extend, Release
from quorlock._core.effects import Commit, Receive, Send
from quorlock._core.results import Acquired, Extended, ReleaseResult
from quorlock._core.tally import Tally
from quorlock._core.votes import Vote
from quorlock.errors import QuorlockError
from quorlock.testing.fake_node import Entry
from quorlock_sim import world as world_module
from quorlock_sim.client_renewal import SimRenewedLease
from quorlock_sim.history import CallRecord, LeaseRecord
from quorlock_sim.oracle import RULES, judge
from quorlock_sim.oracle_fences import Issue, Loss
from quorlock_sim.scenarios import plan_of
from quorlock_sim.world import World
from tests.sim.mutations import MUTATIONS
from tests.sim.small import MS, fault, job, plan, see

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.config import RestartGuard
    from quorlock._core.effects import Flow
    from quorlock_sim.client import Process
    from quorlock_sim.oracle import Judgement

FAR = 1 << 40


def nothing_happened(clients: int = 3, n: int = 3, **facts: Any) -> World:
    """Return a world in which nothing happens, before it begins."""
    return World(plan(*[[]] * clients, n=n, **facts))


def lease(
    world: World,
    client: int,
    since: int,
    valid_until: int,
    *,
    resource: str = "r0",
    ended: int | None = None,
) -> LeaseRecord:
    """Add a lease to the artificial history."""
    leases = world.history.leases
    token = b"c%d.%d" % (client, len(leases))
    promises = [(since, valid_until)]
    one = LeaseRecord(
        client, token, resource, Keys(resource.encode()), 1000, since, None, promises, ended
    )
    leases.append(one)
    return one


def overlaps(world: World, **facts: Any) -> list[tuple[int, int]]:
    """Return the intervals of the overlaps that count."""
    found = [one for one in judge(world, **facts).violations if one.rule == "overlap"]
    return [(one.facts["from"], one.facts["until"]) for one in found]


# --- mutual exclusion -------------------------------------------------------------------------


def test_leases_one_after_the_other_are_fine() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 20)
    lease(world, 1, 30, 40)
    assert judge(world).violations == ()


def test_intervals_that_touch_are_fine() -> None:
    """A lease is valid up to its end and not at its end."""
    world = nothing_happened()
    lease(world, 0, 10, 20)
    lease(world, 1, 20, 30)
    assert overlaps(world) == []


def test_one_ns_of_overlap_is_found() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 21)
    lease(world, 1, 20, 30)
    assert overlaps(world) == [(20, 21)]


def test_an_overlap_names_who_when_and_what() -> None:
    world = nothing_happened()
    lease(world, 0, 10 * MS, 30 * MS)
    lease(world, 2, 20 * MS, 40 * MS)
    (violation,) = judge(world).violations
    assert violation.rule == "overlap"
    assert violation.at == 20 * MS
    assert violation.facts == {"tokens": ["c0.0", "c2.1"], "from": 20 * MS, "until": 30 * MS}
    assert violation.text == (
        "two valid leases on r0 from 20.000 ms to 30.000 ms: c0.0 of c0 and c2.1 of c2"
    )


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ((10, 20), (10, 20), (10, 20)),
        ((10, 40), (20, 30), (20, 30)),
        ((20, 30), (10, 40), (20, 30)),
        ((10, 30), (10, 20), (10, 20)),
        ((10, 30), (20, 40), (20, 30)),
    ],
    ids=["the same", "inside", "around", "from the same instant", "one after the other"],
)
def test_overlaps_of_every_shape(
    first: tuple[int, int], second: tuple[int, int], shared: tuple[int, int]
) -> None:
    world = nothing_happened()
    lease(world, 0, *first)
    lease(world, 1, *second)
    assert overlaps(world) == [shared]


def test_three_at_once() -> None:
    """The long one is compared with both, also after the short one is over."""
    world = nothing_happened()
    lease(world, 0, 10, 100)
    lease(world, 1, 20, 30)
    lease(world, 2, 40, 50)
    assert overlaps(world) == [(20, 30), (40, 50)]


def test_two_leases_of_one_client_overlap_as_well() -> None:
    """Two threads of the client would be inside at once."""
    world = nothing_happened()
    lease(world, 1, 10, 30)
    lease(world, 1, 20, 40)
    assert overlaps(world) == [(20, 30)]


def test_two_resources_have_nothing_to_do_with_each_other() -> None:
    world = nothing_happened(resources=2)
    lease(world, 0, 10, 30, resource="r0")
    lease(world, 1, 10, 30, resource="r1")
    lease(world, 2, 20, 40, resource="r1")
    assert overlaps(world) == [(20, 30)]


def test_a_lease_that_was_over_before_it_began_overlaps_with_nothing() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 100)
    lease(world, 1, 20, 20)
    lease(world, 2, 30, 15)
    assert overlaps(world) == []


def test_the_local_end_ends_it_early() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 100, ended=20)
    lease(world, 1, 20, 30)
    assert overlaps(world) == []


def test_a_local_end_after_the_validity_changes_nothing() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 20, ended=100)
    lease(world, 1, 20, 30)
    assert overlaps(world) == []
    assert [i.until for i in judge(world).intervals] == [20, 30]


def test_an_extension_lengthens_it() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 20).promises.append((15, 60))
    lease(world, 1, 50, 70)
    assert overlaps(world) == [(50, 60)]


# --- assumptions ------------------------------------------------------------------------------


def slow_by(ppm: int) -> World:
    """Client 0's clock is so much slower than true time and than the nodes'."""
    world = nothing_happened(client_paces=(1_000_000 - ppm, 1_000_000, 1_000_000))
    lease(world, 0, 0, 990)
    lease(world, 1, 995, 2000)
    return world


def test_a_slow_clock_lets_a_lease_last() -> None:
    """The guarantee also holds at the exact bound of the drift, in true time."""
    judgement = judge(slow_by(10_000))
    assert judgement.assumptions.intact
    assert judgement.intervals[0].until == 1000
    assert [violation.facts["until"] for violation in judgement.violations] == [1000]


def test_one_ppm_beyond_the_bound_is_excused() -> None:
    judgement = judge(slow_by(10_001))
    assert judgement.violations == ()
    assert judgement.excused == 1
    assert not judgement.assumptions.intact
    assert judgement.assumptions.clocks == (
        "clocks drift beyond the bound: node 1000000 against client 989999 ppm",
    )


def test_a_fast_node_counts_as_a_slow_client() -> None:
    at_the_bound = nothing_happened(node_paces=(1_000_000, 1_010_101, 1_000_000))
    assert judge(at_the_bound).assumptions.intact
    beyond = nothing_happened(node_paces=(1_000_000, 1_010_102, 1_000_000))
    assert not judge(beyond).assumptions.intact


def test_fast_clients_and_slow_nodes_break_nothing() -> None:
    """The lease ends early and the key late, which costs time but not safety."""
    world = nothing_happened(client_paces=(1_500_000,) * 3, node_paces=(500_000,) * 3)
    assert judge(world).assumptions.intact


def test_a_pace_counts_from_when_it_was_taken_up_to_the_end() -> None:
    world = nothing_happened()
    world.processes[1].elapsed.run_at(900_000, 50)
    world.processes[1].elapsed.run_at(1_000_000, 60)
    assert len(judge(world).assumptions.clocks) == 1


@pytest.mark.parametrize(
    ("whose", "by", "intact"),
    [
        ("client", -MS, False),
        ("client", MS, True),
        ("node", MS, False),
        ("node", -MS, True),
        ("wall", -MS, True),
        ("wall", MS, True),
    ],
)
def test_jumps_that_matter_and_jumps_that_do_not(whose: str, by: int, intact: bool) -> None:
    """A client that jumps back holds for too long, a node that jumps forward drops keys."""
    world = nothing_happened()
    process, server = world.processes[0], world.servers[0]
    clock = {"client": process.elapsed, "node": server.wall, "wall": process.wall}[whose]
    clock.step(by, 50)
    lease(world, 1, 100, 300)
    lease(world, 2, 200, 400)
    judgement = judge(world)
    assert judgement.assumptions.intact is intact
    assert judgement.excused == (not intact)
    assert len(judgement.violations) == intact


def test_no_jump_is_too_small_to_be_seen() -> None:
    world = nothing_happened()
    world.servers[0].wall.step(1, 50)
    assert not judge(world).assumptions.intact


@pytest.mark.parametrize(
    ("kept", "forgotten"),
    [
        (Entry(b"c0.0", 500), False),
        (Entry(b"c0.0", 501), False),
        (Entry(b"c0.0", None), False),
        (Entry(b"c0.0", 499), True),
        (Entry(b"c1.0", 500), True),
        (None, True),
    ],
    ids=["kept", "longer", "for ever", "shorter", "another's", "gone"],
)
def test_memory_lost_shortened_and_kept(kept: Entry | None, forgotten: bool) -> None:
    """A key of that value must exist for at least the given time."""
    world = nothing_happened()
    server = world.servers[1]
    before = {b"r0": Entry(b"c0.0", 500)}
    server.node.keys = {} if kept is None else {b"r0": kept}
    world.forgot(server, before, "flush")
    assert judge(world).assumptions.memory == (("n1 lost keys by flush",) if forgotten else ())


def test_what_had_expired_was_not_lost() -> None:
    world = nothing_happened()
    world.now = 600 * MS
    world.forgot(world.servers[0], {b"r0": Entry(b"c0.0", 599)}, "flush")
    assert judge(world).assumptions.intact
    world.forgot(world.servers[0], {b"r0": Entry(b"c0.0", 600)}, "flush")
    assert not judge(world).assumptions.intact


def test_a_loss_of_memory_excuses_overlaps_unless_it_is_what_is_judged() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 30)
    lease(world, 1, 20, 40)
    world.history.forgotten.append((5, 0, "flush"))
    assert overlaps(world) == []
    assert judge(world).excused == 1
    assert overlaps(world, excuse_memory=False) == [(20, 30)]


@pytest.mark.parametrize(
    ("guard", "excused"),
    [
        ("uptime", {"flush", "eviction", "unseen failover"}),
        ("marker", {"eviction"}),
        (None, {"flush", "eviction", "restart (lost)", "failover", "unseen failover"}),
    ],
)
def test_what_the_guard_catches_is_no_excuse(guard: RestartGuard, excused: set[str]) -> None:
    for how in ("flush", "eviction", "restart (lost)", "failover", "unseen failover"):
        world = nothing_happened()
        world.policy = world.policy._replace(restart_guard=guard)
        lease(world, 0, 10, 30)
        lease(world, 1, 20, 40)
        world.history.forgotten.append((5, 0, how))
        assert judge(world).excused == (how in excused), how
        assert len(judge(world).violations) == (how not in excused)


@pytest.mark.parametrize(
    ("break_", "intact"),
    [
        (lambda process: process.elapsed.step(1, 50), False),
        (lambda process: process.elapsed.run_at(1_020_203, 50), False),
        (lambda process: process.elapsed.run_at(1_020_202, 50), True),
    ],
    ids=["jumps", "is too fast", "is as fast as may be"],
)
def test_who_waits_for_a_node_that_forgot_has_a_clock_as_well(
    break_: Callable[[Process], None], intact: bool
) -> None:
    """A client that is early costs only liveness, if no node forgot."""
    world = nothing_happened()
    break_(world.processes[0])
    assert judge(world).assumptions.intact
    world.history.forgotten.append((5, 0, "restart (lost)"))
    assert judge(world).assumptions.intact is intact


def test_nothing_but_overlaps_is_excused() -> None:
    world = nothing_happened()
    world.history.forgotten.append((5, 0, "flush"))
    world.processes[0].elapsed.step(-MS, 5)
    world.violated("verdict", "somebody miscounted")
    world.history.calls.append(call("contest", outcome="AcquireTimeout"))
    assert [one.rule for one in judge(world).violations] == ["verdict", "liveness"]


def test_what_the_report_counts() -> None:
    world = nothing_happened()
    lease(world, 0, 10, 20)
    lease(world, 0, 30, 40)
    judgement = judge(world)
    assert (judgement.winners, judgement.disturbed, judgement.excused) == (1, False, 0)
    lease(world, 2, 50, 60)
    world.history.faults_during_an_attempt = 1
    judgement = judge(world)
    assert (judgement.winners, judgement.disturbed) == (2, True)


# --- deadlines --------------------------------------------------------------------------------


def call(
    what: str = "acquire",
    *,
    client: int = 0,
    ended: int | None = 50,
    late_by: int = 0,
    outcome: str = "granted",
) -> CallRecord:
    """A call from 10 on."""
    return CallRecord(0, client, what, "r0", b"", 10, 10, 30, ended, outcome, late_by)


def late(world: World, one: CallRecord) -> bool:
    world.history.calls.append(one)
    return any(violation.rule == "deadline" for violation in judge(world).violations)


def test_a_call_in_time_is_fine() -> None:
    assert not late(nothing_happened(), call(late_by=0))
    assert not late(nothing_happened(), call(late_by=-5))


def test_a_call_that_ends_late_is_a_violation() -> None:
    """One ns is the rounding of its clock."""
    assert not late(nothing_happened(), call(late_by=1))
    assert late(nothing_happened(), call(late_by=2))


def test_a_call_that_never_ends_is_a_violation() -> None:
    assert late(nothing_happened(), call(ended=None))


def paused(since: int, until: int) -> World:
    world = nothing_happened()
    process = world.processes[0]
    world.now = since
    process.stop()
    world.now = until
    process.go_on()
    return world


def test_who_stands_still_cannot_be_in_time() -> None:
    """But for as long as it stood still during the call, and no longer."""
    assert not late(paused(20, 40), call(late_by=20))
    assert not late(paused(20, 40), call(late_by=21))
    assert late(paused(20, 40), call(late_by=22))
    assert not late(paused(0, 30), call(late_by=21))
    assert late(paused(0, 30), call(late_by=22))
    assert late(paused(50, 90), call(late_by=2))


def test_another_clients_pause_is_no_excuse() -> None:
    assert late(paused(20, 40), call(client=1, late_by=20))


def test_deadlines_on_a_clock_that_jumped_are_not_judged() -> None:
    world = nothing_happened()
    world.processes[0].elapsed.step(100, 20)
    assert not late(world, call(late_by=100))
    assert late(world, call(client=1, late_by=100))


# --- liveness ---------------------------------------------------------------------------------


def test_the_last_contest_must_have_a_winner() -> None:
    world = nothing_happened()
    world.history.calls.append(call("contest", outcome="AcquireTimeout"))
    world.history.calls.append(call("contest", client=1, outcome="QuorumUnreachable"))
    (violation,) = judge(world).violations
    assert violation.rule == "liveness"
    assert "c0: AcquireTimeout, c1: QuorumUnreachable" in violation.text
    world.history.calls.append(call("contest", client=2))
    assert judge(world).violations == ()


def test_a_contest_without_clients_shows_nothing() -> None:
    """All of them had crashed."""
    world = nothing_happened()
    world.history.calls.append(call("acquire", outcome="AcquireTimeout"))
    assert judge(world).violations == ()


def test_a_lock_that_no_client_can_get_is_found_dead() -> None:
    """A majority has a key without a ttl, which quorlock would never set."""
    world = nothing_happened(clients=2)
    for server in world.servers[:2]:
        server.node.keys[b"r0"] = Entry(None, None, (b"a list",))
    world.run()
    assert {violation.rule for violation in judge(world).violations} == {"liveness"}


# --- what the world sees on the spot ------------------------------------------------------------


def judged(world: World) -> Judgement:
    world.run()
    return judge(world)


def said(flow: Callable[[World], Flow[Any]], check: str, **facts: Any) -> set[str]:
    """Return the rules that a lying flow breaks."""
    world = nothing_happened(clients=1, **facts)
    process = world.processes[0]

    def done(outcome: Any) -> None:
        if check == "granted":
            world.check_granted(turn, outcome)
        elif check == "released":
            world.check_released(turn, b"c0.1", outcome)
        elif check == "extended":
            world.check_extended(turn, lease(world, 0, 0, 990 * MS), 0)

    turn: Any = None

    def begin(_: object) -> None:
        nonlocal turn
        turn = world.call(process, "acquire", flow(world), done, resource="r0", allowed=FAR)

    world.schedule(0, begin, None)
    return {violation.rule for violation in judged(world).violations}


def ask_all(world: World, command: Any, votes: int) -> Any:
    """Send, and receive this many replies; return the sent round and the replies."""
    sent_round = yield Send(command)
    tally = Tally(world.policy.n, sent_round.round)
    for _ in range(votes):
        tally.count((yield Receive(world.processes[0].now() + 50 * MS)))
    return sent_round, tally.final_answers()


def grants_after(votes: int) -> Callable[[World], Flow[Any]]:
    def flow(world: World) -> Any:
        sent_round, answers = yield from ask_all(world, Acquire(b"r0", b"c0.1", 900), votes)
        yield Commit(Acquired(Keys(b"r0"), b"c0.1", 900, 100, answers, sent_round))

    return flow


def test_verdict_a_lock_is_counted_without_a_majority() -> None:
    assert said(grants_after(1), "granted") == {"verdict"}
    assert said(grants_after(2), "granted") == set()


def test_verdict_a_lock_of_another_token_than_was_set() -> None:
    def flow(world: World) -> Any:
        sent_round, answers = yield from ask_all(world, Acquire(b"r0", b"c0.1", 900), 3)
        yield Commit(Acquired(Keys(b"r0"), b"c0.7", 900, 100, answers, sent_round))

    assert "verdict" in said(flow, "granted")


def test_verdict_a_lock_that_was_won_is_released() -> None:
    """A round that a majority granted in time, and then another round."""

    def flow(votes: int) -> Callable[[World], Flow[Any]]:
        def won_and_gave_back(world: World) -> Any:
            yield from ask_all(world, Acquire(b"r0", b"c0.1", 900), votes)
            yield from ask_all(world, Release(b"r0", b"c0.1"), 3)

        return won_and_gave_back

    assert said(flow(3), "") == {"verdict"}
    assert said(flow(1), "") == set()


def test_verdict_a_release_says_what_a_majority_did_not() -> None:
    def flow(deleted: bool) -> Callable[[World], Flow[Any]]:
        def release(world: World) -> Any:
            _, answers = yield from ask_all(world, Release(b"r0", b"c0.1"), 3)
            return ReleaseResult(deleted=deleted, gone=None, answers=answers, ended=0)

        return release

    assert said(flow(deleted=True), "released") == {"verdict"}
    assert said(flow(deleted=False), "released") == set()


@pytest.mark.parametrize(("nodes", "found"), [(0, {"verdict"}), (1, {"verdict"}), (2, set())])
def test_verdict_a_lease_is_extended_without_a_majority(nodes: int, found: set[str]) -> None:
    def flow(world: World) -> Any:
        for server in world.servers[:nodes]:
            server.node.keys[b"r0"] = Entry(b"c0.0", 500)
        _, answers = yield from ask_all(world, Extend(b"r0", b"c0.0", 900), 3)
        return Extended(500 * MS, answers)

    assert said(flow, "extended") == found


def test_resurrection_a_lease_that_was_over_comes_back() -> None:
    """An extension by a majority does not revive it after its end."""
    world = nothing_happened(clients=1)
    one = lease(world, 0, 0, 10 * MS)

    def flow() -> Any:
        yield Receive(FAR)

    turn = world.call(world.processes[0], "extend", flow(), lambda _: None, resource="r0")
    turn.votes = dict.fromkeys(range(3), Vote.GRANTED)
    world.extended_at = {(one.token, index): 0 for index in range(3)}
    world.now = 10 * MS - 1
    world.check_extended(turn, one, 0)
    assert world.history.found == []
    world.now = 10 * MS
    world.check_extended(turn, one, 0)
    assert [violation.rule for violation in world.history.found] == ["resurrection"]


def test_endless_a_client_goes_round_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "EVENTS_MAX", 500)
    assert judged(nothing_happened()).violations == ()
    world = nothing_happened()

    def again(_: object) -> None:
        world.schedule(world.now, again, None)

    world.schedule(0, again, None)
    assert [violation.rule for violation in judged(world).violations] == ["endless"]


def test_exception_an_unexpected_error_comes_out() -> None:
    """An internal error in a world is a violation of that world, with its seed, and does not end
    the run.
    """

    def fail(_: object) -> None:
        raise LookupError("nobody is there")

    world = nothing_happened()
    world.schedule(MS, fail, None)
    (violation,) = judged(world).violations
    assert violation.rule == "exception"
    assert violation.text.startswith("LookupError: nobody is there (fail, line ")
    assert violation.at == MS


@pytest.mark.parametrize(
    ("error", "rules"), [(LookupError("nobody"), ["exception"]), (QuorlockError("closed"), [])]
)
def test_exception_a_call_ends_with_one_that_is_not_documented(
    error: Exception, rules: list[str]
) -> None:
    def flow() -> Any:
        yield from ()
        raise error

    def call(_: object) -> None:
        world.call(world.processes[0], "acquire", flow(), done.append, resource="r0")

    world = nothing_happened()
    done: list[Any] = []
    world.schedule(MS, call, None)
    assert [violation.rule for violation in judged(world).violations] == rules
    assert done == [error]


# --- leftovers --------------------------------------------------------------------------------


def left(token: bytes, until_ms: int = FAR) -> World:
    """A key that is still on node 1 at the very end."""
    world = nothing_happened(clients=2)
    world.servers[1].node.keys[b"r0"] = Entry(token, until_ms)
    return world


def test_a_key_of_an_attempt_that_is_over_is_a_leftover() -> None:
    (violation,) = judged(left(b"c1.4")).violations
    assert violation.rule == "leftover"
    assert violation.facts == {"client": 1, "node": 1, "token": b"c1.4"}


def test_a_key_that_has_run_out_is_not() -> None:
    assert judged(left(b"c1.4", until_ms=1000)).violations == ()


def test_a_key_of_a_client_that_crashed_may_stay_for_its_ttl() -> None:
    world = left(b"c1.4")
    world.processes[1].dead = True
    assert judged(world).violations == ()


def test_a_key_that_was_handed_over_or_has_no_pending_release_may_stay() -> None:
    world = left(b"c1.4")
    world.handed_over.add(b"c1.4")
    assert judged(world).violations == ()
    world = left(b"c1.4")
    world.unowed.add((b"c1.4", 1))
    assert judged(world).violations == ()
    world = left(b"c1.4")
    world.unowed.add((b"c1.4", 2))
    assert judged(world).violations != ()


@pytest.mark.parametrize(("why", "fine"), [("", True), ("abandoned", True), ("released", False)])
def test_a_lease_that_is_left_to_run_out_may_stay(why: str, fine: bool) -> None:
    world = left(b"c1.0")
    one = lease(world, 1, 0, 10, ended=20 if why else None)
    world.history.leases[0] = one
    one.why, one.token = why, b"c1.0"
    world.leases[b"c1.0"] = one
    assert (judged(world).violations == ()) is fine


def release_later(what: tuple[World, Release]) -> None:
    """Register a pending release of client 1 at node 1."""
    world, release = what
    process = world.processes[1]
    process.nodes[1].release_later(release, "n1.0", process.now())


def test_a_key_with_a_pending_release_is_deleted_by_then() -> None:
    world = left(b"c1.4")
    world.schedule(10 * MS, release_later, (world, Release(b"r0", b"c1.4")))
    assert judged(world).violations == ()
    assert world.servers[1].node.keys == {}


def test_a_pending_release_with_an_attempt_left_may_still_be_open() -> None:
    """Old bytes may arrive until max_ttl has passed, and the release is sent once more then."""
    release = Release(b"r0", b"c1.4")

    def leave(world: World) -> None:
        world.servers[1].node.keys[b"r0"] = Entry(release.token, FAR)

    world = nothing_happened(clients=2)
    world.schedule(1_550 * MS, release_later, (world, release))
    world.schedule(1_590 * MS, leave, world)  # just before the judge looks, at 1,600 ms
    assert judged(world).violations == ()


@pytest.mark.parametrize("another", [True, False], ids=["another is owed", "nothing else is owed"])
def test_a_pending_release_after_its_last_attempt_excuses_nothing(another: bool) -> None:
    """The entry is kept for a while; other pending releases of the node do not matter."""
    world = nothing_happened(clients=2)
    server = world.servers[1]
    world.schedule(10 * MS, release_later, (world, Release(b"r0", b"c1.4")))
    if another:
        world.schedule(1_550 * MS, release_later, (world, Release(b"r0", b"c1.5")))
    world.schedule(
        1_590 * MS, lambda _: server.node.keys.update({b"r0": Entry(b"c1.4", FAR)}), None
    )
    (violation,) = judged(world).violations
    assert (violation.rule, violation.facts["token"]) == ("leftover", b"c1.4")


@pytest.mark.parametrize(
    ("late", "jump", "fine"), [(True, 1, True), (True, -1, False), (False, 1, False)]
)
def test_what_came_late_is_excused_by_a_clock_that_jumped_ahead(
    late: bool, jump: int, fine: bool
) -> None:
    """Pending releases are timed by that clock; other leftovers do not depend on clocks."""
    world = left(b"c1.4")
    if late:
        world.set_late.add((b"c1.4", 1))
    world.processes[1].elapsed.step(jump * MS, 0)
    assert ("leftover" not in {one.rule for one in judged(world).violations}) is fine


@pytest.mark.parametrize("renewed", [True, False])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_renewed_lease_that_was_just_lost_is_released_a_little_later(
    renewed: bool, deleted: bool
) -> None:
    """Renewal releases it at its next check, so the oracle checks later, too."""
    world = left(b"c1.0")
    one = lease(world, 1, 0, 1_598 * MS, ended=1_597 * MS)  # the judge looks at 1,600 ms
    one.why, one.token, one.renewed, one.told = "lost", b"c1.0", renewed, one.ended
    world.leases[b"c1.0"] = one
    if deleted:
        world.schedule(1_605 * MS, lambda _: world.servers[1].node.keys.clear(), None)
    fine = renewed and deleted
    assert {one.rule for one in judged(world).violations} == (set() if fine else {"leftover"})


@pytest.mark.parametrize(("why", "told"), [("", True), ("abandoned", False)])
def test_the_loss_of_a_released_lease_is_not_reported(why: str, told: bool) -> None:
    """A pass that was under way for it ends later, and finds that it is over."""
    world = nothing_happened()
    one = lease(world, 0, 0, 100)
    one.why, one.renewed = why, True
    SimRenewedLease(world, world.processes[0], one, None).end()
    assert (one.told is not None, one.ended is not None) == (told, told)
    assert one.why == ("lost" if told else "abandoned")


# --- keys that cover a promise ------------------------------------------------------------------


def covered(guard: RestartGuard, *forgot: tuple[int, int, str], promise: int = 1_000 * MS) -> bool:
    """Return the cover of a lease that two of three nodes extended at 10 and one has lost since."""
    world = nothing_happened()
    world.policy = world.policy._replace(restart_guard=guard)
    one = lease(world, 0, 0, 1_000 * MS)
    for node in (0, 1):
        world.extended_at[one.token, node] = 10
        world.servers[node].node.keys[one.claim.key] = Entry(one.token, FAR)
    del world.servers[1].node.keys[one.claim.key]
    world.history.forgotten += forgot
    world.check_covered(one, promise)
    return world.history.uncovered == []


def test_a_node_that_forgot_covers_what_the_guard_keeps_it_out_for() -> None:
    """The node grants no vote for max_ttl from the loss on, which is longer than the lease is
    valid.
    """
    assert covered("marker", (20, 1, "flush"))
    assert covered("marker", (20, 1, "restart (lost)"))
    assert covered("uptime", (20, 1, "restart (saved)"))


def test_a_node_that_forgot_covers_nothing_else() -> None:
    """No guard, a loss that it does not see, another node's, one before the extension."""
    assert not covered("marker")
    assert not covered(None, (20, 1, "restart (lost)"))
    assert not covered("uptime", (20, 1, "flush"))
    assert not covered("marker", (20, 1, "eviction"))
    assert not covered("marker", (20, 2, "flush"))
    assert not covered("marker", (10, 1, "flush"))


def test_a_node_that_forgot_is_kept_out_for_max_ttl_and_no_longer() -> None:
    for promise, fine in ((1_000 * MS + 20, True), (1_000 * MS + 21, False)):
        assert covered("marker", (20, 1, "flush"), promise=promise) is fine


# --- fences -------------------------------------------------------------------------------------


def fenced(*leases: tuple[int, int, int]) -> World:
    """Leases with a fence each: when their attempt began, when they were won, the fence."""
    world = nothing_happened(clients=4)
    for client, (asked_at, since, fence) in enumerate(leases):
        one = lease(world, client, since, since + MS)
        one.fence, one.asked_at = fence, asked_at
        world.history.issues += [Issue(since, n, one.claim.key, one.token, fence) for n in (0, 1)]
    return world


def of_fences(world: World) -> list[str]:
    return [one.rule for one in judge(world).violations if one.rule in ("fence", "verdict")]


def test_fences_rise_in_the_order_of_asking() -> None:
    assert of_fences(fenced((0, 10, 5), (20, 30, 6), (40, 50, 60))) == []


def test_two_with_the_same_fence() -> None:
    """Whatever overlaps."""
    assert of_fences(fenced((0, 10, 5), (5, 30, 5))) == ["fence"]


def test_who_asks_after_another_was_granted_needs_the_larger_one() -> None:
    assert of_fences(fenced((0, 10, 6), (11, 30, 5))) == ["fence"]
    assert of_fences(fenced((0, 10, 6), (20, 30, 7), (31, 40, 5), (50, 60, 8))) == ["fence"]


def test_attempts_that_overlap_may_get_theirs_either_way_round() -> None:
    assert of_fences(fenced((0, 10, 6), (9, 30, 5))) == []


def test_fences_of_two_resources_have_nothing_to_do_with_each_other() -> None:
    world = fenced((0, 10, 6), (20, 30, 5))
    world.history.leases[1].claim = Keys(b"r1")
    assert of_fences(world) == []


def test_leases_without_a_fence_are_left_out() -> None:
    assert of_fences(fenced((0, 10, 6), (20, 30, 0))) == []


def test_a_fence_that_no_majority_issued() -> None:
    """Only that token and that value count."""
    for facts in ({"node": 0}, {"fence": 7}, {"token": b"c9.9"}):
        world = fenced((0, 10, 6))
        world.history.issues[1] = world.history.issues[1]._replace(**facts)
        assert of_fences(world) == ["verdict"]


def test_nodes_that_forget_and_go_on_at_once_are_an_excuse() -> None:
    """No excuse if they are in quarantine for max_ttl, nor for the counter of another lock."""
    broken = (0, 10, 6), (1_100 * MS, 1_200 * MS, 5)
    assert of_fences(fenced(*broken)) == ["fence"]
    for at, key, excused in ((300 * MS, b"r0", True), (150 * MS, b"r0", False), (MS, b"r9", False)):
        world = fenced(*broken)
        world.history.losses.append(Loss(at, 0, key))
        assert of_fences(world) == ([] if excused else ["fence"])


def test_so_is_a_clock_that_is_set_back_on_a_node_that_forgot() -> None:
    for by, forgot, excused in ((-600, True, True), (-400, True, False), (-600, False, False)):
        world = fenced((0, 10, 6), (1_100 * MS, 1_200 * MS, 5))
        world.servers[0].wall.step(by * MS, 0)
        if forgot:
            world.history.losses.append(Loss(20, 0, b"r0"))
        assert of_fences(world) == ([] if excused else ["fence"])


def test_the_world_notes_what_nodes_issue_and_lose() -> None:
    """A restart without memory, and one with an old one, which is a lower counter."""
    for memory in ("crash_lost", "crash_saved"):
        faults = [fault("save", 2 * MS, node=0), fault(memory, 12 * MS, node=0, lasts=MS)]
        work = [job(fencing=True), job(after=5 * MS, fencing=True)]
        seen = see(replace(plan(work, [], faults=faults), node_offsets=(3_600_000 * MS,) * 3))
        history = seen.world.history
        assert seen.rules == set()
        first, second, *_ = (one for one in history.leases if one.fence)
        assert first.fence < second.fence
        for one in (first, second):
            issuers = {
                i.node for i in history.issues if (i.token, i.fence) == (one.token, one.fence)
            }
            assert issuers == {0, 1, 2}
            assert 0 < one.asked_at < one.since or one is first
        assert history.losses == [Loss(12 * MS, 0, b"r0")]


# --- every rule ---------------------------------------------------------------------------------


def test_every_rule_is_seen_to_fail_in_this_file_or_by_a_break() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    broken = {mutation.rule for mutation in MUTATIONS}
    assert [rule for rule in RULES if f'"{rule}"' not in text and rule not in broken] == []


def test_a_calm_world_breaks_nothing() -> None:
    """And what is judged above is not nothing: leases, calls, a contest."""
    seen = see(plan([job(hold=5 * MS)], [job(after=MS, timeout=50 * MS)]))
    assert seen.rules == set()
    assert seen.judgement.winners == 2
    assert seen.judgement.assumptions.intact
    assert any(call.what == "contest" for call in seen.world.history.calls)
    assert {"acquire", "release", "contest"} <= {one.what for one in seen.world.history.calls}


def test_a_key_whose_release_is_in_flight_is_not_left_over() -> None:
    """The keys are counted in the millisecond between a release and its execution."""
    assert see(plan_of("sound", 705_047_899)).rules == set()


def test_a_node_whose_clock_stands_still_keeps_its_key() -> None:
    """n2's reply is lost, so its key is released: the lease has the keys of n0 and n1."""
    faults = [
        fault("wall_drift", MS // 20, node=1, amount=0, lasts=80 * MS),
        fault("break", 3 * MS // 20, client=0, node=2),
    ]
    seen = see(plan([job(hold=90 * MS)], [], faults=faults))
    early = [
        line
        for line in seen.all("execute", node=2, command="release", token="c0.1")
        if line["at"] < 90 * MS
    ]
    assert early
    assert seen.rules == set()


def test_a_fault_in_an_attempt_disturbs_it() -> None:
    quiet = see(plan([job(hold=5 * MS)], faults=[fault("script_flush", 2 * MS, node=0)]))
    assert not quiet.judgement.disturbed
    at_work = see(plan([job(hold=5 * MS)], faults=[fault("script_flush", MS // 10, node=0)]))
    assert at_work.judgement.disturbed
