"""The rule `idle`: what it judges, what explains a wait, and how long a wait may last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from quorlock._core.waiter import Waiter
from quorlock_sim import idle
from quorlock_sim.idle import (
    LOOK,
    PATIENCE,
    PAUSE_AWAY,
    ROUNDS,
    ROUNDS_AWAY,
    IdleWatch,
)
from tests.sim.mutation import applied
from tests.sim.mutations_waiting import never_looks
from tests.sim.small import MS, Seen, fault, job, plan, see

if TYPE_CHECKING:
    from quorlock_sim.plan import Plan

LONG = 20_000 * MS
NODE_TIMEOUT = 20 * MS


def waits(after: int = 5 * MS, **facts: Any) -> list[Any]:
    return [job(after=after, timeout=LONG, **facts)]


def judged(seen: Seen) -> tuple[float, float]:
    """Return the ms of waiting, and those of them that were judged."""
    watch = seen.world.idle_watch
    return watch.waited / MS, watch.judged / MS


# --- what is judged ----------------------------------------------------------------------------


def test_a_wait_without_faults_is_judged() -> None:
    seen = see(plan([job(hold=100 * MS)], waits()))
    waited, of_it = judged(seen)
    assert of_it == waited == pytest.approx(95, abs=5)


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [((0,), 0), ((0, 1), 40), ((0, 1, 2), 40)],
    ids=["a minority", "a majority", "all"],
)
def test_a_client_that_reaches_no_quorum_is_not_judged(nodes: tuple[int, ...], lost: int) -> None:
    cut = [fault("partition", 20 * MS, client=1, node=node, lasts=40 * MS) for node in nodes]
    waited, of_it = judged(see(plan([job(hold=100 * MS)], waits(), faults=cut)))
    assert waited - of_it == pytest.approx(lost, abs=5)


def test_one_client_that_reaches_a_quorum_is_enough() -> None:
    pause = [fault("pause", 20 * MS, client=1, lasts=40 * MS)]
    waited, of_it = judged(see(plan([job(hold=100 * MS)], waits(), waits(), faults=pause)))
    assert of_it == waited


@pytest.mark.parametrize(("kind", "at"), [("pause", 10 * MS), ("stall", MS)])
def test_a_client_that_does_not_run_is_not_judged(kind: str, at: int) -> None:
    pause = [fault(kind, at, client=1, lasts=60 * MS)]
    waited, of_it = judged(see(plan([job(hold=150 * MS)], waits(), faults=pause)))
    assert waited - of_it == pytest.approx(60, abs=6)


def test_a_late_network_is_not_judged() -> None:
    calm = plan([job(hold=100 * MS)], waits(), lasts=200 * MS)
    slow = replace(calm.network_profile, spread=NODE_TIMEOUT // 2)
    waited, of_it = judged(see(replace(calm, network_profile=slow)))
    assert waited > 90
    assert of_it == 0


@pytest.mark.parametrize(
    "kind",
    [
        *("hang", "crash_kept", "crash_lost", "read_only", "full", "mute", "lose_calls"),
        *("delay_calls", "slow"),
    ],
)
def test_a_node_that_does_not_serve_counts_as_away(kind: str) -> None:
    """Two of three: no quorum is left. A restarted node is in quarantine until the end."""
    hits = [fault(kind, 20 * MS, node=node, lasts=60 * MS, amount=1000) for node in (0, 1)]
    waited, of_it = judged(see(plan([job(hold=100 * MS)], waits(), faults=hits)))
    assert waited - of_it >= 55


# --- what explains a wait ----------------------------------------------------------------------


def late(wanted: Plan) -> Plan:
    """Return the plan with nodes whose clocks can be set back."""
    return replace(wanted, node_offsets=(10**15,) * 3)


EXPLAINED = {
    "the key of a lease whose client was killed": plan(
        [job(hold=LONG, ttl_ms=3_000)],
        waits(),
        faults=[fault("client_crash", 50 * MS, client=0)],
        max_ttl_ms=3_000,
    ),
    # Its seed: steps, 3034233. The old token is replaced at 50.1 ms.
    "the key of an exchange whose client was killed": replace(
        plan(
            [job(hold=50 * MS, ttl_ms=3_000)],
            waits(),
            waits(),
            faults=[fault("client_crash", 50 * MS + MS // 6, client=0)],
            max_ttl_ms=3_000,
        ),
        client_paces=(1_000_000,) * 2,
        client_offsets=(0,) * 2,
        connection_sets=(1,) * 2,
        hosts=(0,),
    ),
    # Its seed: steps, 3084179. Some nodes carry the extension out, and the client never counts it.
    "keys of an extension whose client was killed": plan(
        [job(hold=LONG, ttl_ms=3_000, extensions=((2_900 * MS, 3_000),))],
        waits(),
        faults=[fault("client_crash", 2_900 * MS + MS // 3, client=0)],
        lasts=3_000 * MS,
        max_ttl_ms=3_000,
    ),
    # Its seed: clocks, 3074983.
    "a key on nodes whose clocks were set back": late(
        plan(
            [job(hold=LONG)],
            waits(),
            faults=[
                *[fault("wall_step", 20 * MS, node=node, amount=-3_000 * MS) for node in (0, 1)],
                fault("client_crash", 50 * MS, client=0),
            ],
        )
    ),
    "a reservation on nodes whose clocks were set back": late(
        plan(
            [job(hold=50 * MS)],
            waits(),
            waits(after=20 * MS),
            faults=[
                fault("pause", 40 * MS, client=1, lasts=3_000 * MS),
                *[fault("wall_step", 60 * MS, node=node, amount=-3_000 * MS) for node in (0, 1)],
            ],
            lasts=3_100 * MS,
        )
    ),
    "the key of another library": plan(
        waits(),
        faults=[fault("foreign", 2 * MS, lasts=3_000 * MS)],
        lasts=3_100 * MS,
        max_ttl_ms=4_000,
    ),
    "a lease that was handed over": plan(
        [job(hold=20 * MS, ttl_ms=3_000, ending="hand_over", successor_holds=LONG)],
        waits(),
        max_ttl_ms=3_000,
    ),
    # Its seed: network, 11036430. The acquire reaches n1 after the new owner has released there,
    # and the old one need not release.
    "the late key of a lease that was handed over": plan(
        [job(hold=20 * MS, ttl_ms=3_000, ending="hand_over", successor_holds=40 * MS)],
        [],
        waits(after=90 * MS),
        faults=[
            fault("one_way_to", client=0, node=1, lasts=80 * MS),
            fault("partition", 80 * MS, client=2, node=2, lasts=3_100 * MS),
        ],
        lasts=3_200 * MS,
        max_ttl_ms=3_000,
    ),
}


@pytest.mark.parametrize("what", EXPLAINED)
def test_a_key_in_the_way_explains_a_wait(what: str) -> None:
    assert see(EXPLAINED[what]).rules == set()


@pytest.mark.parametrize("what", EXPLAINED)
def test_without_that_key_the_wait_would_be_a_violation(what: str) -> None:
    with applied(((IdleWatch, "_freed_at", lambda *_: 0),)):
        assert see(EXPLAINED[what]).rules == {"idle"}


def test_a_node_whose_marker_is_new_has_no_vote() -> None:
    emptied = [fault("flush", 2 * MS, node=node) for node in (0, 1)]
    wanted = late(plan(waits(), faults=emptied, max_ttl_ms=3_000))
    wanted = replace(wanted, settings=replace(wanted.settings, restart_guard="marker"))
    assert see(wanted).rules == set()
    with applied(((IdleWatch, "_is_new", lambda *_: False),)):
        assert see(wanted).rules == {"idle"}


# --- how long a wait may last ------------------------------------------------------------------

# All nodes lose their calls of c1 at 100 ms, so that it finds the lock free when it looks.
LOST_CALLS = plan(
    [job(hold=100 * MS)],
    waits(),
    faults=[fault("lose_calls", 90 * MS, node=node, lasts=20 * MS) for node in (0, 1, 2)],
    lasts=120 * MS,
)


def test_a_waiter_that_does_not_look_is_found() -> None:
    assert see(LOST_CALLS).rules == set()
    with applied(((Waiter, "_next_look", never_looks),)):
        (found, *_) = see(LOST_CALLS).judgement.violations
    assert found.rule == "idle"
    assert found.facts["client"] == 1
    longest = LOOK + PATIENCE + ROUNDS * NODE_TIMEOUT
    assert f"c1 waited, for more than {longest / MS:.3f} ms" in found.text
    assert found.facts["from"] == pytest.approx(110 * MS, abs=5 * MS), "when calls arrive again"


def test_a_lost_call_costs_a_look() -> None:
    """The span is longer than a bound without the look, and shorter than the bound."""
    with applied(((idle, "LOOK", 0), (idle, "PATIENCE", 0), (idle, "ROUNDS", 1))):
        assert see(LOST_CALLS).rules == {"idle"}


def paused(count: int) -> Plan:
    """Return a world in which so many clients are called, one after the other, while paused."""
    faults = [fault("pause", 60 * MS, client=1 + index, lasts=5_000 * MS) for index in range(count)]
    others = [waits(after=(5 + 5 * index) * MS) for index in range(count)]
    return plan([job(hold=100 * MS)], *others, waits(after=50 * MS), faults=faults, lasts=LONG)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_process_that_does_not_answer_its_call_costs_time(count: int) -> None:
    assert see(paused(count)).rules == set()
    with applied(((idle, "LOOK", 0), (idle, "PATIENCE", 0), (idle, "ROUNDS", 0))):
        found = see(paused(count)).judgement.violations
    longest = count * (ROUNDS_AWAY * NODE_TIMEOUT + PAUSE_AWAY)
    assert any(
        f"c{count + 1} waited, for more than {longest / MS:.3f} ms" in each.text for each in found
    )
