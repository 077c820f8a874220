"""The work of clients: all ways to end, extend, move or give up a lease."""

from __future__ import annotations

import pytest

from quorlock_sim.workload import CANCELLED
from quorlock_sim.world import ROUNDS_MAX
from tests.sim.small import MS, TRIP, Seen, fault, job, plan, see


def calls(seen: Seen, client: int = 0) -> list[tuple[str, str]]:
    """Return the calls of that client with their results, before the last contest."""
    history = seen.world.history.calls
    contest = next((call.number for call in history if call.what == "contest"), len(history))
    return [(call.what, call.outcome) for call in history[:contest] if call.client == client]


def lease(seen: Seen, number: int = 0) -> tuple[int, int, str]:
    interval = seen.judgement.intervals[number]
    return interval.since, interval.until, interval.lease.why


# --- one job ----------------------------------------------------------------------------------


def test_acquire_hold_release() -> None:
    seen = see(plan([job(after=3 * MS, hold=5 * MS)]))
    assert calls(seen) == [("acquire", "granted"), ("release", "released")]
    assert lease(seen) == (3 * MS + 2 * TRIP, 8 * MS + 2 * TRIP, "released")
    assert [server.node.keys for server in seen.world.servers] == [{}, {}, {}]


def test_a_lease_ends_here_before_a_byte_is_sent() -> None:
    """Rule 6: the local end comes before the release."""
    seen = see(plan([job(hold=5 * MS)]))
    kinds = [line["kind"] for line in seen.lines]
    end = kinds.index("end")
    assert "release" not in [line.get("command") for line in seen.lines[:end]]
    assert seen.lines[end + 2]["command"] == "release"


def test_jobs_come_one_after_the_other_with_a_rest_between() -> None:
    seen = see(plan([job(hold=2 * MS), job(after=10 * MS), job(after=10 * MS)]))
    granted = [line["at"] for line in seen.before(100 * MS, "outcome", outcome="granted")]
    rest = 10 * MS + 4 * TRIP  # and the release before it
    assert granted == [2 * TRIP, 2 * TRIP + 2 * MS + rest, 2 * TRIP + 2 * MS + 2 * rest]


def test_one_attempt_and_no_more() -> None:
    seen = see(plan([job(hold=50 * MS)], [job(after=MS, once=True, timeout=90 * MS)]))
    assert calls(seen, 1) == [("try_acquire", "none")]


def test_who_waits_gets_it_when_it_is_free() -> None:
    seen = see(plan([job(hold=30 * MS)], [job(after=MS, timeout=90 * MS, hold=MS)]))
    assert calls(seen, 1)[0] == ("acquire", "granted")
    assert seen.judgement.intervals[1].since > 30 * MS


def test_a_client_that_waits_in_vain_learns_it_in_time() -> None:
    seen = see(plan([job(hold=90 * MS)], [job(after=MS, timeout=30 * MS)]))
    (call,) = [call for call in seen.world.history.calls if call.client == 1][:1]
    assert call.outcome == "AcquireTimeout"
    assert call.ended is not None
    assert 30 * MS <= call.ended - call.began <= 30 * MS + 40 * MS


def test_other_resources_block_no_client() -> None:
    seen = see(plan([job(hold=50 * MS)], [job(after=MS, resource=1, hold=50 * MS)], resources=2))
    assert seen.judgement.winners == 2
    first, second = seen.judgement.intervals[:2]
    assert second.since < first.until
    assert seen.rules == set()


# --- extensions -------------------------------------------------------------------------------


def test_an_extension_lengthens_the_promise() -> None:
    seen = see(plan([job(hold=900 * MS, extensions=((600 * MS, 1000),))], lasts=2_000 * MS))
    assert calls(seen) == [
        ("acquire", "granted"),
        ("extend", "extended"),
        ("release", "released"),
    ]
    promises = [until for _, until in seen.world.history.leases[0].promises]
    assert promises[1] - promises[0] == pytest.approx(600 * MS, abs=MS)


def test_a_shorter_extension_shortens_nothing() -> None:
    """`extend` means at least so long (rule 4): neither the promise nor the keys are cut."""
    seen = see(plan([job(hold=20 * MS, extensions=((10 * MS, 100),), ending="abandon")]))
    promises = [until for _, until in seen.world.history.leases[0].promises]
    assert promises[1] == promises[0]
    extended = seen.one("outcome", what="extend")
    assert extended["outcome"] == "extended"
    # The node keeps what it has: the next one gets the lock when the first ttl is over.
    assert seen.all("execute", command="extend", vote="granted")
    contest = seen.all("outcome", what="contest", outcome="granted")[0]
    assert contest["at"] > 1_000 * MS


def test_an_extension_that_comes_too_late_is_not_even_asked_for() -> None:
    seen = see(plan([job(hold=1_200 * MS, extensions=((1_100 * MS, 1000),))], lasts=2_000 * MS))
    assert "extend" not in [what for what, _ in calls(seen)]


def test_a_lease_that_is_lost_ends_and_is_released() -> None:
    """A majority has forgotten it, and says so."""
    flushes = [fault("flush", 5 * MS, node=node) for node in (0, 1)]
    work = job(hold=50 * MS, extensions=((10 * MS, 1000),))
    seen = see(plan([work], faults=flushes))
    released = ("release", "not_released")  # by its holder, who continues until then
    assert [call for call in calls(seen) if call[0] != "renew"] == [
        ("acquire", "granted"),
        ("extend", "lost"),
        released,
    ]
    assert lease(seen)[2] == "lost"
    assert lease(seen)[1] < 11 * MS
    assert [server.node.keys for server in seen.world.servers] == [{}, {}, {}]


def test_the_keys_of_a_lost_lease_stay_while_its_promised_validity_lasts() -> None:
    """The keys are released afterwards, without an action of the holder."""
    flushes = [fault("flush", 5 * MS, node=node) for node in (0, 1)]
    work = job(hold=1_500 * MS, extensions=((10 * MS, 1000),))
    seen = see(plan([work], faults=flushes, lasts=2_000 * MS))
    (back,) = seen.all("call", what="give_back")
    assert 980 * MS < back["at"] < 1_000 * MS
    assert calls(seen)[-1] == ("give_back", "none")


def test_an_extension_is_tried_again_while_there_is_validity() -> None:
    """Two nodes hang for longer than a round; the lease is extended when they are back."""
    hung = [fault("hang", 5 * MS, node=node, lasts=300 * MS) for node in (0, 1)]
    work = job(hold=500 * MS, extensions=((10 * MS, 1000),))
    seen = see(plan([work], faults=hung, lasts=2_000 * MS))
    assert ("extend", "extended") in calls(seen)
    assert seen.one("outcome", what="extend")["at"] > 305 * MS


# --- how it ends ------------------------------------------------------------------------------


def test_an_abandoned_lease_runs_out() -> None:
    seen = see(plan([job(hold=5 * MS, ending="abandon")], lasts=1_500 * MS))
    assert calls(seen) == [("acquire", "granted")]
    since, until, why = lease(seen)
    assert why == "abandoned"
    assert until == 988 * MS
    assert since < until
    assert not seen.before(1_500 * MS, "send", command="release")


def test_a_lease_that_another_process_releases_by_its_token() -> None:
    seen = see(plan([job(hold=5 * MS, ending="by_token")]))
    assert calls(seen) == [
        ("acquire", "granted"),
        ("extend_by_token", "yes"),
        ("release_by_token", "yes"),
    ]
    first, again = seen.judgement.intervals[:2]
    assert first.lease.token == again.lease.token
    assert first.until <= again.since
    assert again.until - again.since == 20 * MS, "a node_timeout"


def test_a_token_that_has_run_out_is_not_brought_back() -> None:
    seen = see(plan([job(hold=1_200 * MS, ending="by_token")], lasts=1_500 * MS))
    assert calls(seen)[1:] == [("extend_by_token", "no"), ("release_by_token", "no")]
    assert len(seen.all("lease", token="c0.1")) == 1


def test_a_lease_that_is_handed_over_continues_in_another_process() -> None:
    seen = see(plan([job(hold=5 * MS, ending="hand_over")], []))
    assert calls(seen) == [("acquire", "granted")]
    assert calls(seen, 1) == [("adopt", "extended"), ("release", "released")]
    given, adopted = seen.judgement.intervals[:2]
    assert (given.lease.client, adopted.lease.client) == (0, 1)
    assert given.lease.token == adopted.lease.token
    assert given.until < adopted.since
    assert seen.rules == set()


def test_what_is_handed_over_too_late_is_released() -> None:
    seen = see(plan([job(hold=1_200 * MS, ending="hand_over")], [], lasts=1_500 * MS))
    assert calls(seen)[1][0] == "release"
    assert calls(seen, 1) == []


def test_without_an_heir_it_runs_out() -> None:
    seen = see(plan([job(hold=5 * MS, ending="hand_over")]))
    assert calls(seen) == [("acquire", "granted")]
    assert seen.rules == set()


# --- cut short --------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_after_a_while() -> None:
    """The call waits for another holder; the client continues with its next job."""
    waiting = job(after=MS, timeout=80 * MS, cancel_after=20 * MS)
    seen = see(plan([job(hold=50 * MS)], [waiting, job(after=60 * MS)]))
    assert calls(seen, 1)[0] == ("acquire", CANCELLED)
    assert calls(seen, 1)[1] == ("acquire", "granted")
    cancelled = seen.all("outcome", client=1)[0]
    assert cancelled["at"] == 21 * MS


def test_a_canceller_that_comes_after_the_call_cancels_nothing() -> None:
    seen = see(plan([job(hold=5 * MS, cancel_after=2 * MS)]))
    assert calls(seen) == [("acquire", "granted"), ("release", "released")]


def test_a_client_that_crashes_ends_its_leases() -> None:
    crash = fault("client_crash", 5 * MS, client=0)
    seen = see(plan([job(hold=50 * MS)], [], faults=[crash]))
    assert lease(seen)[1:] == (5 * MS, "crashed")
    assert seen.world.workers[0].phase == "gone"


# --- phases and the last contest ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "phase"),
    [
        (MS, "idle"),
        (3 * MS + TRIP, "acquiring"),
        (6 * MS, "holding"),
        (13 * MS + 3 * TRIP, "extending"),
        (23 * MS + 5 * TRIP, "releasing"),
        (60 * MS, "idle"),
    ],
)
def test_what_a_client_is_about(at: int, phase: str) -> None:
    """The table of coverage uses this: a harmless fault counts for the phase in which it occurs."""
    work = job(after=3 * MS, hold=20 * MS, extensions=((10 * MS, 1000),))
    struck = fault("client_wall_step", at, client=0, amount=MS)
    seen = see(plan([work], faults=[struck]))
    assert seen.world.history.phases == {("client_wall_step", phase): 1}


@pytest.mark.parametrize(("at", "phase"), [(MS + TRIP, "acquiring"), (10 * MS, "waiting")])
def test_what_a_client_is_about_that_does_not_get_the_lock(at: int, phase: str) -> None:
    struck = fault("client_wall_step", at, client=1, amount=MS)
    seen = see(plan([job(hold=50 * MS)], [job(after=MS, timeout=90 * MS)], faults=[struck]))
    assert seen.world.history.phases == {("client_wall_step", phase): 1}


def test_releasing_is_a_phase_and_a_pending_release_is_one() -> None:
    back = fault("client_wall_step", MS + 3 * TRIP, client=1, amount=MS)
    seen = see(plan([job(hold=50 * MS)], [job(after=MS)], faults=[back]))
    assert seen.world.history.phases == {("client_wall_step", "cleaning up"): 1}
    torn = fault("break", MS // 20, client=0, node=1, amount=1000)
    later = fault("client_wall_step", 20 * MS, client=0, amount=MS)
    seen = see(plan([job(hold=MS)], faults=[torn, later]))
    assert seen.world.history.phases["client_wall_step", "pending"] == 1


def test_in_the_end_those_who_are_left_compete_and_one_wins() -> None:
    crash = fault("client_crash", MS, client=0)
    seen = see(plan([], [], [], [], [], faults=[crash]))
    contest = [call for call in seen.world.history.calls if call.what == "contest"]
    assert [call.client for call in contest] == [1, 2, 3], "three of those that live"
    assert any(call.outcome == "granted" for call in contest)
    assert seen.rules == set()


def test_a_contest_takes_no_more_attempts_than_it_may() -> None:
    seen = see(plan([], [], []))
    policy = seen.world.policy
    patience = ROUNDS_MAX * (policy.retry_delay[1] + 2 * policy.node_timeout)
    for call in seen.world.history.calls:
        if call.what == "contest":
            assert call.ended is not None
            assert call.ended - call.began <= patience + 2 * policy.node_timeout


def test_no_job_starts_when_all_is_healed() -> None:
    """A holder continues to its end, and no other job starts."""
    seen = see(plan([job(hold=150 * MS), job()], lasts=100 * MS))
    assert calls(seen) == [("acquire", "granted"), ("release", "released")]


# --- nodes that have just started ---------------------------------------------------------------


@pytest.mark.parametrize("started", [2, 3])
def test_an_acquire_waits_for_nodes_that_have_just_started(started: int) -> None:
    """Longer than outage_timeout, which is 500 ms here, and as long as its timeout allows."""
    faults = [fault("crash_lost", node=node, lasts=MS) for node in range(started)]
    patient, hasty = job(after=2 * MS, timeout=5_000 * MS), job(after=2 * MS, timeout=900 * MS)
    seen = see(plan([patient], [hasty], faults=faults, lasts=6_000 * MS))
    assert seen.rules == set()
    calls = [one for one in seen.world.history.calls if one.what == "acquire"]
    waited, gave_up = calls
    assert (waited.outcome, gave_up.outcome) == ("granted", "QuorumUnreachable")
    assert waited.ended is not None
    assert gave_up.ended is not None
    votes_at = 1_010 * MS  # max_ttl and the drift, after the start
    assert votes_at < waited.ended - MS
    assert 0 <= gave_up.ended - 902 * MS < 2 * 20 * MS


def test_nodes_that_start_again_and_again_do_not_make_an_acquire_endless() -> None:
    """The timeout of the acquire ends it, with every rule kept."""
    faults = [
        fault("crash_lost", at * 400 * MS, node=node, lasts=100 * MS)
        for at in range(8)
        for node in (0, 1)
    ]
    seen = see(plan([job(after=MS, timeout=3_000 * MS)], faults=faults, lasts=4_000 * MS))
    assert seen.rules == set()
    (call,) = (one for one in seen.world.history.calls if one.what == "acquire")
    assert call.outcome == "QuorumUnreachable"


def test_one_attempt_is_not_impatient_if_its_clock_was_set_back() -> None:
    """The call ends before its deadline, by that clock.

    Its seed: fences, 970033234.
    """
    faults = [fault("crash_lost", node=node, lasts=MS) for node in range(2)]
    back = fault("client_step", 200 * MS + TRIP, client=0, amount=-3_000 * MS)
    seen = see(plan([job(after=200 * MS, once=True)], faults=[*faults, back], lasts=300 * MS))
    calls = [(call.what, call.outcome) for call in seen.world.history.calls]
    assert calls[0] == ("try_acquire", "QuorumUnreachable")
    assert seen.rules == set()
