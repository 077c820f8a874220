"""The restart guard's reckoning: how long a node keeps out, whatever its clock says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorlock._core.commands import Acquire
from quorlock._core.config import RestartGuard
from quorlock._core.restart_guard import (
    Guard,
    Quarantine,
    over_limit,
    quarantine_answer,
    quarantine_by_marker,
    quarantine_by_uptime,
)
from quorlock._core.time import NS_PER_MS, NS_PER_S, drift
from quorlock._core.votes import Vote
from quorlock.errors import VoteCode
from tests.harness.support.script import policy_of

NOW = 1_000 * NS_PER_S
MAX_TTL = 30 * NS_PER_S
WHOLE = MAX_TTL + drift(MAX_TTL, 0.01)  # 30.302 s


def until(uptime_s: int | None, *, factor: float = 0.01) -> float | None:
    """Seconds from now on."""
    kept = quarantine_by_uptime(uptime_s, NOW, MAX_TTL, factor)
    return None if kept is None else (kept.until - NOW) / NS_PER_S


@pytest.mark.parametrize(
    ("uptime_s", "left"),
    [(0, 30.302), (1, 30.302), (2, 29.302), (30, 1.302), (31, 0.302), (32, None), (10**6, None)],
)
def test_a_second_less_than_it_says_counts(uptime_s: int, left: float | None) -> None:
    """Servers subtract whole seconds of the wall clock."""
    assert until(uptime_s) == left


@pytest.mark.parametrize("uptime_s", [-1, -3_600, None, 10 * 365 * 86_400, 56 * 365 * 86_400])
def test_a_node_of_unknown_uptime_may_have_started_just_now(uptime_s: int | None) -> None:
    """A clock that was set back, or from 1970 on; a server that says nothing of it."""
    assert until(uptime_s) == 30.302
    kept = quarantine_by_uptime(uptime_s, NOW, MAX_TTL, 0.01)
    assert kept is not None
    assert kept.since is None
    answer = quarantine_answer(kept, NOW)
    assert answer is not None
    assert answer.text == "does not report its uptime, votes in 31 s"
    assert answer.quarantine == ("does not report its uptime", None, 30.302)


def test_without_drift_the_resolution_of_expiry_remains() -> None:
    assert until(0, factor=0.0) == 30.002


@given(
    born=st.integers(0, 10**12),
    age=st.integers(0, 60 * NS_PER_S),
    late=st.integers(0, NS_PER_S),
    slow=st.floats(0.0, 0.05),
    fast=st.floats(0.0, 0.05),
)
def test_never_before_the_last_lease_is_over(
    born: int, age: int, late: int, slow: float, fast: float
) -> None:
    """Whatever the second in which the server came up, however late its answer, and with our clock
    as fast against the nodes as the holder's is slow: the lease that was granted as it crashed is
    over.
    """
    factor = max(slow, fast)
    reported = (born + age) // NS_PER_S - born // NS_PER_S
    kept = quarantine_by_uptime(reported, NOW, MAX_TTL, factor)
    # True time, from when the process came up: the crash was before that.
    votes = age + late + (0 if kept is None else int((kept.until - NOW) / (1 + fast)))
    lease_over = (MAX_TTL - drift(MAX_TTL, factor)) / (1 - slow)
    assert votes >= lease_over - 1


def test_the_words() -> None:
    kept = quarantine_by_uptime(3, NOW, MAX_TTL, 0.01)
    assert kept is not None
    answer = quarantine_answer(kept, NOW)
    assert answer is not None
    assert (answer.vote, answer.code) == (Vote.UNKNOWN, VoteCode.QUARANTINED)
    assert answer.reason == "started 3 s ago, votes in 29 s"
    assert answer.quarantine == ("started", 3.0, 28.302)
    kinds = (answer.is_lock_answer, answer.is_fault, answer.is_lasting, answer.is_done)
    assert kinds == (False,) * 4
    later = quarantine_answer(kept, NOW + 5 * NS_PER_S)
    assert later is not None
    assert later.text == "started 8 s ago, votes in 24 s"


def test_it_ends_at_the_instant() -> None:
    kept = Quarantine(NOW, NOW + 5)
    assert quarantine_answer(kept, NOW + 4) is not None
    assert quarantine_answer(kept, NOW + 5) is None
    last = quarantine_answer(kept, NOW + 5 - NS_PER_MS)
    assert last is not None
    assert last.text.endswith("votes in 1 s")


# --- the processes behind one address ----------------------------------------------------------


def guard(restart_guard: RestartGuard = "uptime") -> Guard:
    return Guard(policy_of(1, restart_guard=restart_guard))


def test_a_restart_is_called_so_only_if_this_client_saw_it() -> None:
    """Also over later connections to the new process."""
    known = guard()
    first = known.on_connect("one", 3, NOW)
    assert first is not None
    assert first.what == "started"
    for at in (NOW + 9 * NS_PER_S, NOW + 10 * NS_PER_S):
        second = known.on_connect("two", 1, at)
        assert second is not None
        assert second.what == "restarted"


LATER = NOW + 100 * NS_PER_S


@pytest.mark.parametrize("reports", [(1, 2), (2, 1)])
def test_the_best_of_the_uptimes_that_a_process_reported_counts(reports: tuple[int, int]) -> None:
    """Each is up to a second too long, and a second less counts."""
    known = guard()
    for uptime_s in reports:
        known.on_connect("one", uptime_s, NOW)
    assert known.quarantine is not None
    assert known.quarantine.until == NOW + WHOLE - NS_PER_S


def test_a_process_that_votes_goes_on_voting() -> None:
    """Also if its clock was set back since, and it reports a shorter uptime."""
    known = guard()
    assert known.on_connect("one", 1_000, NOW) is None
    assert known.on_connect("one", 1, LATER) is None


class Connection:
    """A connection to this server process, and the reason for which it was closed."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.closed_for = ""

    def supersede(self, text: str) -> None:
        self.closed_for = text


GUARDS: list[RestartGuard] = ["uptime", "marker", None]


@pytest.mark.parametrize("restart_guard", GUARDS)
def test_an_address_that_moves_to_an_older_process_keeps_out(restart_guard: RestartGuard) -> None:
    """The process was up while the previous one still replied: no restart, but another server."""
    known = guard(restart_guard)
    known.on_connect("one", 1_000, NOW, marked_ms=10**6)
    known.on_alive("one", LATER - 50 * NS_PER_S)
    kept = known.on_connect("other", 60, LATER, marked_ms=10**6, exempt=True)
    assert kept is not None
    assert kept.is_lasting
    assert kept.until == LATER + WHOLE
    reported = quarantine_answer(kept, LATER)
    assert reported is not None
    assert "leads to run_id other…, and led to one…" in reported.reason
    assert reported.reason.endswith("; list independent masters, each by its own address")
    assert reported.quarantine is None, "it may begin again at any time"


def test_a_replica_that_is_a_master_again_votes_at_a_known_time() -> None:
    known = guard()
    known.on_connect("one", 1_000, NOW)
    known.on_demoted("one", (), "a replica", but=None)
    kept = known.on_connect("one", 1_000, LATER)
    assert kept is not None
    reported = quarantine_answer(kept, LATER)
    assert reported is not None
    assert (
        reported.reason
        == "was a replica, or loaded data: all its keys were replaced, votes in 31 s"
    )
    assert reported.quarantine is not None
    assert reported.quarantine.votes_in == 30.302


def test_a_process_that_was_a_replica_keeps_out_for_longer_than_a_young_one() -> None:
    known = guard()
    known.on_demoted("one", (), "a replica")
    kept = known.on_connect("one", 20, LATER)
    assert kept is not None
    assert (kept.is_lasting, kept.until) == (True, LATER + WHOLE)


def test_all_connections_to_a_replica_are_closed() -> None:
    """The owner closes the one that got the reply; those to another process stay open."""
    known = guard()
    known.on_connect("one", 1_000, NOW)
    shown_by, idle, other = Connection("one"), Connection("one"), Connection("two")
    known.on_demoted("one", (shown_by, idle, other), "a replica", but=shown_by)
    assert [one.closed_for for one in (shown_by, idle, other)] == ["", "a replica", ""]


@pytest.mark.parametrize("restart_guard", GUARDS)
@pytest.mark.parametrize("before", ["", "another"])
def test_a_process_that_was_a_replica_before_it_was_connected_keeps_out(
    restart_guard: RestartGuard, before: str
) -> None:
    """Also one to which its address leads since: that may be a failover."""
    known = guard(restart_guard)
    if before:
        known.on_connect(before, 10_000, NOW, marked_ms=10**6)
    known.on_demoted("one", (), "a replica")
    kept = known.on_connect("one", 1_000, LATER, marked_ms=10**6, exempt=True)
    assert kept is not None
    assert kept.is_lasting
    assert kept.until == LATER + WHOLE
    assert known.on_connect("one", 1_000, LATER + WHOLE, marked_ms=10**6, exempt=True) is None


def test_few_replicas_are_remembered() -> None:
    known = guard()
    for number in range(100):
        known.on_demoted(f"{number}", (), "a replica")
    assert len(known._replicas) == 16
    assert known.on_connect("99", 1_000, LATER) is not None


def test_a_process_that_began_after_the_last_reply_is_a_restart() -> None:
    known = guard()
    known.on_connect("one", 1_000, NOW)
    known.on_alive("one", LATER - 50 * NS_PER_S)
    assert known.on_connect("two", 49, LATER) is None


def test_only_replies_of_the_present_process_count() -> None:
    known = guard()
    known.on_connect("one", 1_000, NOW)
    known.on_alive("another", LATER)
    assert known.on_connect("two", 60, LATER) is None


@pytest.mark.parametrize("restart_guard", GUARDS)
def test_open_connections_to_another_process_keep_it_out(restart_guard: RestartGuard) -> None:
    """Also one that has come up just now, or was born empty: the other may be alive."""
    known = guard(restart_guard)
    known.on_connect("one", None, NOW, marked_ms=10**6, exempt=True)
    kept = known.on_connect("two", None, LATER, marked_ms=10**6, exempt=True, open_rivals=True)
    assert kept is not None
    assert kept.until == LATER + WHOLE


def test_a_process_that_comes_back_has_lived_beside_its_successor() -> None:
    known = guard(None)
    assert known.on_connect("one", 0, NOW) is None
    assert known.on_connect("two", 0, NOW + 1) is None
    kept = known.on_connect("one", 0, NOW + 2)
    assert kept is not None
    assert kept.is_lasting
    again = known.on_connect("two", 0, LATER)
    assert again is not None
    assert again.until == LATER + WHOLE, "as long as they take turns, none votes"


@pytest.mark.parametrize("restart_guard", GUARDS)
def test_a_restart_does_not_end_the_quarantine_of_a_move(restart_guard: RestartGuard) -> None:
    """The keys of the previous server are still at risk; another connection does not end it
    either.
    """
    known = guard(restart_guard)
    known.on_connect("one", 1_000, NOW, marked_ms=10**6)
    moved = known.on_connect("other", 1_000, NOW, open_rivals=True)
    assert known.on_connect("other", 1_000, NOW + 1, marked_ms=10**6) == moved
    assert known.on_connect("restarted", 1_000, NOW + 2, marked_ms=10**6, exempt=True) == moved
    assert known.on_connect("restarted", 1_000, LATER, marked_ms=10**6, exempt=True) is None


def test_a_restart_may_outlast_the_quarantine_of_a_move() -> None:
    """The later end counts, whichever it is."""
    known = guard()
    known.on_connect("one", 1_000, NOW)
    moved = known.on_connect("other", 1_000, NOW, open_rivals=True)
    restarted = known.on_connect("restarted", 0, NOW + 20 * NS_PER_S)
    assert moved is not None
    assert restarted is not None
    assert (moved.until, restarted.until) == (NOW + WHOLE, NOW + 20 * NS_PER_S + WHOLE)


def test_a_marker_that_is_gone_ends_the_vote_of_a_process_that_had_one() -> None:
    """The better of two uptimes counts, and the later of two markers."""
    known = guard("marker")
    assert known.on_connect("one", 1_000, NOW, marked_ms=10**6) is None
    emptied = known.on_connect("one", 1_000, LATER, marked_ms=0)
    assert emptied is not None
    assert emptied.until == LATER + WHOLE


def test_a_node_votes_when_its_marker_is_as_old_as_a_lease_may_be() -> None:
    whole_ms = WHOLE // NS_PER_MS
    young = quarantine_by_marker(whole_ms - 1, NOW, MAX_TTL, 0.01)
    assert young is not None
    assert (young.since, young.until) == (NOW - WHOLE + NS_PER_MS, NOW + NS_PER_MS)
    assert quarantine_by_marker(whole_ms, NOW, MAX_TTL, 0.01) is None


@pytest.mark.parametrize(("limit", "fits"), [(0, True), (1_000, True), (999, False)])
def test_a_ttl_above_the_limit_is_refused(limit: int, fits: bool) -> None:
    """0 is no limit."""
    assert (over_limit(Acquire(b"k", b"t", 1_000), limit) is None) is fits
