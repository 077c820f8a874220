"""Every kind of fault does what its docstring says: alone in a small world, seen in its trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorlock_sim import faults
from quorlock_sim.scenarios import SCENARIOS
from tests.sim.small import MS, TRIP, Seen, fault, job, plan, see

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock_sim.plan import Fault, Job, Plan

HEAL = 400 * MS
# One client works alone at 0, 50 and 100 ms, and a second one at 60 ms.
WORK = (job(hold=2 * MS), job(after=48 * MS, hold=2 * MS), job(after=48 * MS, hold=2 * MS))
OTHER = (job(after=60 * MS, hold=2 * MS),)


def world(
    *struck: Fault,
    workloads: Sequence[Sequence[Job]] = (WORK, OTHER),
    connection_sets: int = 1,
    n: int = 3,
) -> Plan:
    """Run a world without a restart guard: the effect of a fault shows when the node votes again at
    once.
    """
    made = plan(*workloads, n=n, faults=struck, lasts=HEAL, connection_sets=connection_sets)
    return replace(made, settings=replace(made.settings, restart_guard=None))


def executed(seen: Seen, since: int, until: int, **facts: object) -> list[int]:
    """Return when nodes executed such commands, between these instants."""
    lines = seen.all("execute", **facts)
    return [line["at"] for line in lines if since <= line["at"] < until]


def granted(seen: Seen, client: int = 0) -> list[int]:
    """Return when that client won its locks, before everything was healed."""
    lines = seen.before(HEAL, "outcome", client=client, outcome="granted")
    return [line["at"] for line in lines]


# --- clients ----------------------------------------------------------------------------------


def a_pause(seen: Seen) -> None:
    """The client does not run for 30 ms; the replies wait, and are read when it resumes."""
    assert seen.one("fault", what="pause")["client"] == 0
    assert seen.one("fault", what="resume")["at"] == TRIP + 30 * MS
    replies = [line["at"] for line in seen.all("reply", client=0, message=1)]
    assert replies == [TRIP + 30 * MS]
    assert executed(seen, 0, 50 * MS, client=0)[:3] == [TRIP] * 3, "sent before"


def a_stall(seen: Seen) -> None:
    """Two nodes are asked at once, the third one 30 ms later, and time counts from the start."""
    sent = executed(seen, 40 * MS, 100 * MS, client=0, command="acquire")
    assert [at - sent[0] for at in sent] == [0, 30 * MS, 30 * MS]
    ends = seen.all("outcome", client=0, what="acquire")[1]
    assert ends["outcome"] == "granted"
    assert ends["valid_until"] < sent[0] + 990 * MS


def a_client_crash(seen: Seen) -> None:
    """The client sends nothing more, its keys stay, and its lease ends."""
    assert seen.one("outcome", client=0, outcome="crashed")
    assert executed(seen, MS, 2**60, client=0) == []
    assert granted(seen, 1) == []
    assert len(seen.all("call", client=0)) == 1


def a_cancel(seen: Seen) -> None:
    """The call is over at once, its commands are released, and the client continues."""
    assert seen.all("outcome", client=0)[0]["outcome"] == "cancelled"
    assert seen.all("outcome", client=0)[0]["at"] == TRIP
    assert len(executed(seen, 0, 10 * MS, command="release", vote="granted")) == 3
    assert len(granted(seen)) == 2


def a_vanish(seen: Seen) -> None:
    """The lock was won without a receiver, and is released."""
    first = seen.all("outcome", client=0)[0]
    assert (first["outcome"], first["at"]) == ("cancelled", 2 * TRIP)
    assert len(executed(seen, 0, 10 * MS, command="release", vote="granted")) == 3
    assert len(granted(seen)) == 2


def a_client_step(seen: Seen) -> None:
    """The lease is over 500 ms earlier by the client's clock, which the oracle also knows."""
    assert seen.one("fault", what="step", client=0)["by"] == 500 * MS
    clock = seen.world.processes[0].elapsed
    assert clock.steps() == (0, 500 * MS)
    first, second, _ = seen.judgement.intervals[:3]
    assert first.lease.client == second.lease.client == 0
    assert seen.judgement.assumptions.intact, "forward is only a loss of time"


def a_client_drift(seen: Seen) -> None:
    assert seen.one("fault", what="drift", client=0)["pace"] == 900_000
    assert seen.world.processes[0].elapsed.paces() == (900_000, 1_000_000)
    assert not seen.judgement.assumptions.intact


def a_client_wall_step(seen: Seen) -> None:
    """Nothing whatever comes of it."""
    assert seen.one("fault", what="wall_step", client=0)["by"] == 500 * MS
    assert seen.world.processes[0].wall.steps() == (0, 500 * MS)
    assert seen.world.processes[0].elapsed.steps() == (0, 0)
    calm = see(world())
    assert [line for line in seen.lines[1:] if line["kind"] != "fault"] == calm.lines[1:]


# --- nodes ------------------------------------------------------------------------------------


def down(seen: Seen, node: int = 1) -> None:
    """The node is down from 1 ms to 41 ms: connections break and come back later."""
    assert seen.one("fault", what="crash")["node"] == node
    assert seen.one("fault", what="restart")["at"] == 41 * MS
    assert executed(seen, MS, 41 * MS, node=node) == []
    assert len(seen.all("disconnect", node=node)) == 2
    assert len(seen.all("connect", node=node)) == 4
    assert executed(seen, 100 * MS, HEAL, node=node) != []


def memory_kept(seen: Seen) -> None:
    down(seen)
    assert seen.judgement.assumptions.intact
    # The release of the first lease was pending, and finds its key there.
    assert seen.all("execute", node=1, token="c0.1", command="release", vote="granted")


def memory_lost(seen: Seen) -> None:
    down(seen)
    assert seen.judgement.assumptions.memory == ("n1 lost keys by restart (lost)",)
    assert not seen.all("execute", node=1, token="c0.1", command="release", vote="granted")


def memory_saved(seen: Seen) -> None:
    """Keys from before the save are there, later ones are not."""
    down(seen)
    assert seen.judgement.assumptions.memory == ("n1 lost keys by restart (saved)",)


def a_save(seen: Seen) -> None:
    """A restart from disk after a save has lost nothing."""
    down(seen)
    assert seen.one("fault", what="save")["node"] == 1
    assert seen.judgement.assumptions.intact
    assert seen.all("execute", node=1, token="c0.1", command="release", vote="granted")


def a_hang(seen: Seen) -> None:
    """The node is silent, keeps its connections, and then executes all commands in order."""
    assert seen.one("fault", what="hang")["node"] == 1
    assert seen.one("fault", what="go_on")["at"] == 41 * MS
    assert executed(seen, MS, 41 * MS, node=1) == []
    late = [line for line in seen.all("execute", node=1) if line["at"] == 41 * MS]
    assert [line["command"] for line in late] == ["release"]
    assert seen.all("disconnect") == []


def slowness(seen: Seen) -> None:
    """Requests take 5 ms longer to get there; the replies do not."""
    assert seen.one("fault", what="slow")["by"] == 5 * MS
    first, second = seen.all("execute", node=1, command="release", client=0)[:2]
    sent, sent_later = seen.all("send", node=1, command="release", client=0)[:2]
    assert first["at"] - sent["at"] == TRIP + 5 * MS
    assert second["at"] - sent_later["at"] == TRIP, "it has ended"
    (reply,) = seen.all("reply", message=first["message"])
    assert reply["at"] - first["at"] == TRIP


def a_read_only_node(seen: Seen) -> None:
    """The node keeps its keys, refuses writes, and is a master again later."""
    replies = {line["reply"] for line in seen.all("execute", node=1, vote="refused", client=0)}
    assert any("READONLY" in str(reply) for reply in replies)
    assert seen.judgement.assumptions.intact
    # The release that it refused is tried again, and found the key.
    released = seen.all("execute", node=1, token="c0.1", command="release")
    assert [line["vote"] for line in released] == ["refused", "granted"]


def a_failover(seen: Seen) -> None:
    """The node loses its keys and refuses writes; both clients see it before it ends."""
    assert seen.one("fault", what="failover")["node"] == 1
    refused, *_, release = seen.all("execute", node=1, token="c0.1", command="release")
    assert "READONLY" in refused["reply"], "though the key is gone"
    assert release["reply"] == -2
    acquire = seen.all("execute", node=1, client=1, command="acquire")[0]
    assert "READONLY" in acquire["reply"]
    assert granted(seen, 0)[-1] > 100 * MS
    assert {how for _, _, how in seen.world.history.forgotten} == {"failover"}


def an_unseen_failover(seen: Seen) -> None:
    """The failover ends before the second client asks the node for anything."""
    assert {how for _, _, how in seen.world.history.forgotten} == {"failover", "unseen failover"}


def a_full_node(seen: Seen) -> None:
    """The node refuses new keys and still deletes."""
    (refused,) = seen.before(HEAL, "execute", node=1, vote="refused", client=0, command="acquire")
    assert "OOM" in refused["reply"]
    assert seen.all("execute", node=1, token="c0.1", command="release", vote="granted")
    assert seen.all("execute", node=1, token="c0.3", command="acquire", vote="granted")


def a_flush(seen: Seen) -> None:
    assert seen.one("fault", what="flush")["node"] == 1
    (release,) = seen.all("execute", node=1, token="c0.1", command="release")
    assert release["reply"] == -2
    assert seen.judgement.assumptions.memory == ("n1 lost keys by flush",)


def an_eviction(seen: Seen) -> None:
    assert seen.one("fault", what="evict")["key"] == "r0"
    (release,) = seen.all("execute", node=1, token="c0.1", command="release")
    assert release["reply"] == -2
    assert seen.judgement.assumptions.memory == ("n1 lost keys by eviction",)


def an_unlock(seen: Seen) -> None:
    """The lock is gone from every node; its holder learns that when it gives it back."""
    assert [line["node"] for line in seen.all("fault", what="evict")] == [0, 1, 2]
    releases = seen.all("execute", token="c0.1", command="release")
    assert [line["reply"] for line in releases] == [-2] * 3
    assert not seen.judgement.assumptions.intact


def a_script_flush(seen: Seen) -> None:
    """Known by both connections, forgotten, and sent again in full."""
    assert seen.one("fault", what="script_flush")["node"] == 1
    unknown = [
        line for line in seen.all("execute", node=1, client=0) if "NOSCRIPT" in str(line["reply"])
    ]
    assert unknown
    assert unknown[-1]["at"] > 20 * MS
    assert seen.rules == set()


def a_mute_node(seen: Seen) -> None:
    """A node that may not call deletes the key that it cannot pass on; the others call."""
    assert seen.one("fault", what="mute")["node"] == 1
    calls = {line["node"] for line in seen.before(HEAL, "push", client=1)}
    assert calls == {0, 2}
    assert granted(seen, 1)


def an_echo(seen: Seen) -> None:
    """A call comes a second time, when its place is gone: it is answered, and granted nothing."""
    calls = [line["node"] for line in seen.before(HEAL, "push", client=1)]
    assert sorted(calls) == [0, 1, 1, 2]
    assert len(granted(seen, 1)) == 1
    assert seen.all("send", client=1, node=1, ticket=-1, token="")


def calls_lost(seen: Seen) -> None:
    """The waiter reads the calls of the other nodes."""
    assert seen.one("fault", what="lose_calls")["node"] == 1
    assert {line["node"] for line in seen.before(HEAL, "push", client=1)} == {0, 2}
    assert granted(seen, 1)


def calls_late(seen: Seen) -> None:
    """The call of one node comes after the others'."""
    by = seen.one("fault", what="delay_calls")["by"]
    calls = {line["node"]: line["at"] for line in seen.before(HEAL, "push", client=1)}
    assert calls[1] >= min(calls.values()) + by - MS
    assert len(granted(seen, 1)) == 1


def a_foreign_holder(seen: Seen) -> None:
    """Another library holds the lock for 10 ms, and our clients get it after that."""
    assert seen.one("fault", what="foreign")["nodes"] == [0, 1, 2]
    assert not [at for at in granted(seen) if 20 * MS <= at < 30 * MS]
    assert len(granted(seen)) == 3


WAITERS = ((job(hold=10 * MS),), (job(after=5 * MS, hold=2 * MS, timeout=900 * MS),))


def a_wall_step(seen: Seen) -> None:
    """The key that was good for a second is gone."""
    assert seen.one("fault", what="step")["by"] == 1500 * MS
    (release,) = seen.all("execute", node=1, token="c0.1", command="release")
    assert release["reply"] == -2
    assert not seen.judgement.assumptions.intact


def a_wall_drift(seen: Seen) -> None:
    assert seen.one("fault", what="drift", node=1)["pace"] == 1_100_000
    walls = [line["wall_ms"] for line in seen.all("execute", node=1) if line["at"] < HEAL]
    assert walls[-1] > seen.all("execute", node=1)[len(walls) - 1]["at"] // MS
    assert not seen.judgement.assumptions.intact


# --- the way between --------------------------------------------------------------------------


def a_break(seen: Seen) -> None:
    """Bytes in flight arrive later, as far as they survive; then the connection is new."""
    assert seen.one("fault", what="break")["late_by"] == 30 * MS
    gone = seen.one("disconnect")
    assert (gone["client"], gone["node"], gone["at"]) == (0, 1, MS // 20)
    (acquire,) = seen.all("execute", node=1, token="c0.1", command="acquire")
    assert acquire["at"] == MS // 20 + 30 * MS
    assert not seen.all("reply", message=acquire["message"])
    # The release was pending: sent over the new connection, until it found the key.
    release_lines = seen.all("execute", node=1, token="c0.1", command="release")
    assert [line["vote"] for line in release_lines][-1] == "granted"
    assert seen.rules == set()


def a_break_that_loses_all(seen: Seen) -> None:
    assert seen.one("fault", what="break")["late_by"] == 0
    assert not seen.all("execute", node=1, token="c0.1", command="acquire")
    assert seen.one("lose", what="request")


def lost_requests(seen: Seen) -> None:
    """Nothing from client 0 reaches node 1 after 1 ms, and at 31 ms the connection breaks."""
    assert executed(seen, MS, 31 * MS, client=0, node=1) == []
    assert len(executed(seen, MS, 31 * MS, client=0, node=2)) == 1
    assert seen.one("disconnect")["at"] == 31 * MS
    assert len(seen.all("lose", what="request")) == 1
    assert seen.all("execute", node=1, token="c0.1", command="release", vote="granted")


def lost_replies(seen: Seen) -> None:
    """The request is executed, and the client gets no reply."""
    assert len(executed(seen, MS, 31 * MS, client=0, node=1)) == 1
    assert seen.one("disconnect")["at"] == 31 * MS
    assert len(seen.all("lose", what="reply")) == 1


def a_duplicate(seen: Seen) -> None:
    """The release arrives twice, 3 ms apart, and one reply is read."""
    copies = seen.all("execute", copy=True)
    (copy,) = copies
    first = seen.all("execute", message=copy["message"], copy=False)[0]
    assert (copy["node"], copy["client"], copy["command"]) == (1, 0, "release")
    assert copy["at"] - first["at"] == 3 * MS
    assert len(seen.all("reply", message=copy["message"])) == 1


def a_partition(seen: Seen) -> None:
    """Requests wait for its end, and are then done; connections stay."""
    assert seen.one("fault", what="partition")
    assert seen.one("fault", what="rejoin")["at"] == 31 * MS
    late = [line for line in seen.all("execute", client=0, node=1) if MS < line["at"] < 50 * MS]
    assert [line["at"] for line in late] == [31 * MS + TRIP]
    assert seen.all("disconnect") == []
    assert seen.all("lose") == []


def requests_held(seen: Seen) -> None:
    assert seen.one("fault", what="one_way_to")
    assert executed(seen, MS, 50 * MS, client=0, node=1) == [31 * MS + TRIP]


def replies_held(seen: Seen) -> None:
    """The request is executed at once, and its reply arrives at the end."""
    assert seen.one("fault", what="one_way_from")
    (at,) = executed(seen, MS, 50 * MS, client=0, node=1)
    assert at < 3 * MS
    release = seen.all("send", client=0, node=1, command="release")[0]["message"]
    assert seen.one("reply", message=release)["at"] == 31 * MS + TRIP


def flapping(seen: Seen) -> None:
    """Three partitions of 5 ms, 10 ms apart."""
    assert [line["at"] for line in seen.all("fault", what="partition")] == [
        MS,
        11 * MS,
        21 * MS,
    ]
    rejoined = [line["at"] for line in seen.all("fault", what="rejoin")]
    assert rejoined == [6 * MS, 16 * MS, 26 * MS]


# In the table: the fault alone (or with what it needs), and what must be seen.
EFFECTS: dict[str, tuple[Callable[[Seen], None], tuple[Fault, ...]]] = {
    "pause": (a_pause, (fault("pause", TRIP, client=0, lasts=30 * MS),)),
    "stall": (a_stall, (fault("stall", 20 * MS, client=0, node=1, lasts=30 * MS),)),
    "client_crash": (a_client_crash, (fault("client_crash", TRIP, client=0, amount=1000),)),
    "cancel": (a_cancel, (fault("cancel", TRIP, client=0),)),
    "vanish": (a_vanish, (fault("vanish", 0, client=0),)),
    "client_step": (a_client_step, (fault("client_step", MS, client=0, amount=500 * MS),)),
    "client_drift": (a_client_drift, (fault("client_drift", MS, client=0, amount=900_000),)),
    "client_wall_step": (
        a_client_wall_step,
        (fault("client_wall_step", MS, client=0, amount=500 * MS),),
    ),
    "crash_kept": (memory_kept, (fault("crash_kept", MS, node=1, lasts=40 * MS),)),
    "crash_saved": (memory_saved, (fault("crash_saved", MS, node=1, lasts=40 * MS),)),
    "crash_lost": (memory_lost, (fault("crash_lost", MS, node=1, lasts=40 * MS),)),
    "save": (
        a_save,
        (fault("save", MS // 2, node=1), fault("crash_saved", MS, node=1, lasts=40 * MS)),
    ),
    "hang": (a_hang, (fault("hang", MS, node=1, lasts=40 * MS),)),
    "slow": (slowness, (fault("slow", MS, node=1, amount=5 * MS, lasts=40 * MS),)),
    "read_only": (a_read_only_node, (fault("read_only", MS, node=1, lasts=60 * MS),)),
    "failover": (a_failover, (fault("failover", MS, node=1, lasts=70 * MS),)),
    "failover, unseen": (an_unseen_failover, (fault("failover", MS, node=1, lasts=30 * MS),)),
    "full": (a_full_node, (fault("full", MS, node=1, lasts=60 * MS),)),
    "flush": (a_flush, (fault("flush", MS, node=1),)),
    "evict": (an_eviction, (fault("evict", MS, node=1, amount=5),)),
    "unlock": (an_unlock, (fault("unlock", MS),)),
    "script_flush": (a_script_flush, (fault("script_flush", 20 * MS, node=1),)),
    "mute": (a_mute_node, (fault("mute", MS, node=1, lasts=60 * MS),)),
    "echo": (an_echo, (fault("echo", 30 * MS, node=1, lasts=10 * MS),)),
    "lose_calls": (calls_lost, (fault("lose_calls", MS, node=1, lasts=60 * MS),)),
    "delay_calls": (calls_late, (fault("delay_calls", MS, node=1, amount=500, lasts=60 * MS),)),
    "foreign": (a_foreign_holder, (fault("foreign", 20 * MS, lasts=10 * MS),)),
    "wall_step": (a_wall_step, (fault("wall_step", MS, node=1, amount=1500 * MS),)),
    "wall_drift": (a_wall_drift, (fault("wall_drift", MS, node=1, amount=1_100_000),)),
    "break": (
        a_break,
        (fault("break", MS // 20, client=0, node=1, amount=1000, lasts=30 * MS),),
    ),
    "break, all lost": (
        a_break_that_loses_all,
        (fault("break", MS // 20, client=0, node=1, amount=0),),
    ),
    "lose_requests": (
        lost_requests,
        (fault("lose_requests", MS, client=0, node=1, lasts=30 * MS),),
    ),
    "lose_replies": (lost_replies, (fault("lose_replies", MS, client=0, node=1, lasts=30 * MS),)),
    "duplicate": (a_duplicate, (fault("duplicate", MS, client=0, node=1, lasts=3 * MS),)),
    "partition": (a_partition, (fault("partition", MS, client=0, node=1, lasts=30 * MS),)),
    "one_way_to": (requests_held, (fault("one_way_to", MS, client=0, node=1, lasts=30 * MS),)),
    "one_way_from": (
        replies_held,
        (fault("one_way_from", MS, client=0, node=1, lasts=30 * MS),),
    ),
    "flap": (flapping, (fault("flap", MS, client=0, node=1, amount=3, lasts=30 * MS),)),
}


@pytest.mark.parametrize("kind", EFFECTS)
def test_a_fault_does_what_it_says(kind: str) -> None:
    check, struck = EFFECTS[kind]
    calls = ("mute", "echo", "lose_calls", "delay_calls")
    workloads = WAITERS if kind in calls else (WORK, OTHER)
    seen = see(world(*struck, workloads=workloads))
    check(seen)
    assert seen.rules == set(), "whatever it is, it is no violation"


def test_every_kind_is_in_the_table() -> None:
    assert {name.partition(",")[0] for name in EFFECTS} == set(faults.KINDS)


def test_every_kind_is_dealt_out_by_a_scenario() -> None:
    dealt = {kind for scenario in SCENARIOS.values() for kind in scenario.weights}
    assert dealt == set(faults.KINDS)


def test_what_is_sound_by_name_leaves_the_assumptions_as_they_are() -> None:
    """The scenario claims this; the oracle decides, and must agree."""
    harmless = set(SCENARIOS["sound"].weights)
    for kind, (_, struck) in EFFECTS.items():
        if kind in harmless:
            assert see(world(*struck)).judgement.assumptions.intact, kind


# --- corners ----------------------------------------------------------------------------------


def test_nothing_strikes_what_is_not_there() -> None:
    """A client that is dead, a node that is down, a key that is not there: and none is counted."""
    seen = see(
        world(
            fault("client_crash", MS, client=1),
            fault("pause", 2 * MS, client=1, lasts=MS),
            fault("crash_kept", 3 * MS, node=0, lasts=50 * MS),
            fault("crash_lost", 4 * MS, node=0, lasts=MS),
            fault("hang", 5 * MS, node=0, lasts=MS),
            fault("evict", 30 * MS, node=2),
            fault("cancel", 31 * MS, client=0),
            fault("pause", 32 * MS, client=0, lasts=10 * MS),
            fault("pause", 33 * MS, client=0, lasts=10 * MS),
            fault("cancel", 34 * MS, client=0),
        )
    )
    struck = [line["what"] for line in seen.all("fault")]
    assert struck == ["client_crash", "crash", "pause", "resume", "restart"]
    counted = {kind for kind, _ in seen.world.history.phases}
    assert counted == {"client_crash", "crash_kept", "pause"}


def test_a_fault_on_everybody_strikes_everybody() -> None:
    seen = see(world(fault("break", MS, client=-1, node=1), connection_sets=2))
    assert [line["client"] for line in seen.all("disconnect")] == [0, 0, 1, 1]


def test_every_fault_ends_when_the_world_heals() -> None:
    """Whatever lasts beyond that instant ends there."""
    late = HEAL - MS
    everything = [
        fault(kind, late, client=0, node=node, lasts=10_000 * MS, amount=amount)
        for node, (kind, amount) in enumerate(
            [("hang", 0), ("slow", 9 * MS), ("read_only", 0), ("full", 0), ("crash_kept", 0)]
        )
    ]
    everything += [
        fault("partition", late, client=1, node=1, lasts=10_000 * MS),
        fault("lose_replies", late, client=1, node=2, lasts=10_000 * MS),
        fault("client_drift", late, client=0, amount=0),
        fault("wall_drift", late, node=2, amount=0),
        fault("pause", late, client=0, lasts=10_000 * MS),
    ]
    seen = see(world(*everything, n=5))
    assert seen.rules == set()
    for server in seen.world.servers:
        assert (server.up, server.hung, server.slow_by) == (True, False, 0)
        assert (server.node.read_only, server.node.full) == (False, False)
        assert server.wall.pace > 0
    for process in seen.world.processes:
        assert not process.paused
        assert process.elapsed.pace > 0
        assert process.cut_off == [0] * 5
    assert any(call.outcome == "granted" for call in seen.world.history.calls[-3:])


def test_nothing_strikes_after_that() -> None:
    seen = see(world(fault("crash_lost", HEAL + MS, node=0, lasts=MS)))
    assert seen.all("fault") == []
