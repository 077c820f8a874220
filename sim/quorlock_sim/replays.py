"""Four simulated runs for the first page of the documentation, each with captions.

Each is a plan (`plan.Plan`), which the shipped code runs, and captions that name the events that
they describe. A caption whose event does not happen is an error, so that the page cannot differ
from the code.  `view.player` makes the page's player of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from quorlock._core.time import NS_PER_MS
from quorlock_sim.network import NetworkProfile
from quorlock_sim.plan import Fault, Job, Plan, Settings
from quorlock_sim.runner import run
from quorlock_sim.trace import Trace
from quorlock_sim.view.story import Story

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock_sim.view.story import DrawnMessage, Event
    from quorlock_sim.world import World

LATENCY_MS = 50  # one way; long, so that a message can be seen on its way
TTL_MS = 2_000
_CLIENTS = "AB"


class ReplayError(Exception):
    """A run is not what its captions say."""


@dataclass(frozen=True, slots=True)
class Caption:
    """Words for one event.

    Attributes:
        kind: the kind of the event in the trace, or "write", "quarantine", "over" (the end of
            a validity).
        facts: what the event has in these fields.
        text: the words; `{name}` is a field of the event, `{name_ms}` an instant in milliseconds.
        later: the number of such events before it.
    """

    kind: str
    facts: dict[str, Any]
    text: str
    later: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """One run.

    Attributes:
        name: a short name.
        plan: the plan; the replay ends when it heals all faults.
        captions: in order of their events.
        writes: (client, event before it): it writes to the storage when that event happens.
    """

    name: str
    title: str
    plan: Plan
    captions: tuple[Caption, ...]
    writes: tuple[tuple[int, Caption], ...] = ()


@dataclass(slots=True)
class Lived:
    """A replay that was run: the trace's facts and the events that captions may name."""

    replay: Replay
    story: Story
    events: list[Event] = field(default_factory=list["Event"])


def live(replay: Replay) -> Lived:
    """Run the plan; add what the trace does not have: fences, writes, quarantines."""
    trace = Trace()
    world, _ = run(replay.plan, trace)
    story = Story(trace.lines)
    lived = Lived(replay, story)
    fences = {lease.token.decode(): lease.fence for lease in world.history.leases}
    for event in story.events:
        fence = fences.get(str(event.get("token")), 0)
        lived.events.append(event | {"fence": f"{fence:,}"})
    restarts = (e for e in lived.events if e.get("what") == "restart")
    restarted = {e["node"] for e in restarts if e["at"] < replay.plan.lasts}
    lived.events += _quarantines(world, restarted)
    lived.events += [_over(lease.client, lease.until) for lease in story.leases]
    lived.events += list(_writes(lived, world))
    lived.events = [event for event in lived.events if event["at"] < replay.plan.lasts]
    lived.events.sort(key=lambda event: event["at"])
    return lived


def _over(client: int, at: int) -> Event:
    return {"kind": "over", "at": at, "client": client}


def _quarantines(world: World, restarted: set[int]) -> Iterator[Event]:
    """Yield the quarantines that the last client imposes; its clock is true time."""
    links = [link for ways in world.processes[-1].links for link in ways if link is not None]
    for link in links:
        node, found = link.server.index, link.quarantine
        if found is not None and node in restarted:
            until = int(found.until)
            yield {"kind": "quarantine", "at": found.since, "node": node, "until": until}


def _writes(lived: Lived, world: World) -> Iterator[Event]:
    """Yield the clients' writes. The storage refuses a fence if it has accepted a larger one."""
    seen = 0
    for client, trigger in lived.replay.writes:
        fence = next(lease.fence for lease in world.history.leases if lease.client == client)
        ok, seen = fence >= seen, max(fence, seen)
        sent = find(lived, trigger)["at"]
        at = sent + LATENCY_MS * NS_PER_MS
        facts = {"client": client, "ok": ok, "fence": f"{fence:,}", "seen": f"{seen:,}"}
        yield {"kind": "write", "at": at, "sent": sent, **facts}


def find(lived: Lived, caption: Caption) -> Event:
    """Return the event that a caption describes.

    Raises:
        ReplayError: it does not happen.
    """
    left = caption.later
    for event in lived.events:
        if event["kind"] == caption.kind and caption.facts.items() <= event.items():
            if left == 0:
                return event
            left -= 1
    raise ReplayError(f"{lived.replay.name}: no {caption.kind} {caption.facts} in the run")


# --- the data of a page --------------------------------------------------------------------------


def data(lived: Lived) -> dict[str, Any]:
    """Return what a player needs, as JSON: instants in ms, clients and nodes by number."""
    story, plan = lived.story, lived.replay.plan
    end = plan.lasts
    return {
        "name": lived.replay.name,
        "title": lived.replay.title,
        "clients": story.clients,
        "nodes": story.n,
        "quorum": story.quorum,
        "end": _ms(end),
        "latency": LATENCY_MS,
        "messages": [_message(m) for m in story.messages.values() if m.sent["at"] < end],
        "keys": [
            [key.node, int(key.token[1]), _ms(key.since), _ms(min(key.until or end, end))]
            for key in story.holdings
            if key.since < end
        ],
        "leases": [
            [lease.client, _ms(lease.since), _ms(min(lease.until, end))]
            for lease in story.leases
            if lease.since < end
        ],
        "overlaps": [[_ms(lap.since), _ms(lap.until)] for lap in story.overlaps],
        "states": list(_states(lived)),
        "writes": [
            [e["client"], _ms(e["sent"]), _ms(e["at"]), e["fence"], e["ok"]]
            for e in lived.events
            if e["kind"] == "write"
        ],
        "captions": [[_ms(at), text] for at, text in captions(lived)],
        "verdict": verdict(lived),
    }


def _ms(instant: int) -> int:
    return round(instant / NS_PER_MS)


def _message(message: DrawnMessage) -> list[Any]:
    """Return client, node, command, sent, executed, vote, read; -1: it does not happen."""
    sent, done, read = message.sent, message.executions, message.replies
    return [
        *(sent["client"], sent["node"], sent["command"], _ms(sent["at"])),
        *((_ms(done[0]["at"]), done[0]["vote"] == "granted") if done else (-1, False)),
        _ms(read[0]["at"]) if read else -1,
    ]


def _states(lived: Lived) -> Iterator[list[Any]]:
    """Yield the times in which a client or node is not as usual: place, state, from, to."""
    end = lived.replay.plan.lasts
    words = {"crash": "down", "pause": "paused"}
    for fault in lived.story.faults:
        if fault.what in words and fault.began["at"] < end:
            place = f"c{fault.client}" if fault.node is None else f"n{fault.node}"
            yield [place, words[fault.what], _ms(fault.began["at"]), _ms(min(fault.until, end))]
        elif fault.what == "one_way_to":
            link = f"c{fault.client}n{fault.node}"
            yield [link, "cut", _ms(fault.began["at"]), _ms(min(fault.until, end))]
    for event in lived.events:
        if event["kind"] == "quarantine":
            yield [f"n{event['node']}", "no vote", _ms(event["at"]), _ms(min(event["until"], end))]


def captions(lived: Lived) -> Iterator[tuple[int, str]]:
    """Yield every caption's instant and words, in order.

    Raises:
        ReplayError: an event does not happen, or not in this order.
    """
    last = 0
    for caption in lived.replay.captions:
        event = find(lived, caption)
        if event["at"] < last:
            raise ReplayError(f"{lived.replay.name}: too early in the run: {caption.text}")
        last = event["at"]
        in_ms = {
            f"{name}_ms": f"{value / NS_PER_MS:,.0f} ms"
            for name, value in event.items()
            if isinstance(value, int)
        }
        yield last, caption.text.format_map(event | in_ms)


def verdict(lived: Lived) -> str:
    """Return the oracle's judgement of the run in words."""
    story = lived.story
    why = "; ".join(story.why).removesuffix(" (lost)")
    why = re.sub(r"\bn(\d)", lambda found: f"node {int(found[1]) + 1}", why)
    if story.overlaps:
        lap = story.overlaps[0]
        names = " and ".join(_CLIENTS[lease.client] for lease in (lap.first, lap.second))
        span = f"from {_ms(lap.since):,} ms to {_ms(lap.until):,} ms"
        return f"Oracle: two holders, {names}, {span}. Broken assumption: {why}."
    if story.violations or not story.intact:
        raise ReplayError(f"{lived.replay.name}: {story.violations} {why}")
    return "Oracle: at no instant two holders. All assumptions held."


# --- the runs ------------------------------------------------------------------------------------


def _plan(nodes: int, jobs: tuple[Job, Job], faults: tuple[Fault, ...], lasts: int) -> Plan:
    """Return a plan of two clients with exact clocks; the times in it are in ms."""
    return Plan(
        seed=1,
        scenario="replay",
        settings=Settings(
            n=nodes,
            max_ttl_ms=TTL_MS,
            node_timeout=200 * NS_PER_MS,
            retry_delay=(250 * NS_PER_MS, 300 * NS_PER_MS),
            outage_timeout=5_000 * NS_PER_MS,
        ),
        network_profile=NetworkProfile(
            shortest=LATENCY_MS * NS_PER_MS, spread=0, tail=0, tail_until=0
        ),
        workloads=tuple((job,) for job in jobs),
        connection_sets=(1, 1),
        client_paces=(1_000_000,) * 2,
        node_paces=(1_000_000,) * nodes,
        client_offsets=(0, 0),
        node_offsets=(0,) * nodes,
        faults=faults,
        lasts=lasts * NS_PER_MS,
    )


def _job(after: int, hold: int, *, fencing: bool = False) -> Job:
    return Job(
        after=after * NS_PER_MS,
        resource=0,
        ttl_ms=TTL_MS,
        once=False,
        timeout=5_000 * NS_PER_MS,
        hold=hold * NS_PER_MS,
        fencing=fencing,
    )


def _fault(at: int, kind: str, lasts: int, *, client: int = -1, node: int = -1) -> Fault:
    return Fault(at * NS_PER_MS, kind, client=client, node=node, lasts=lasts * NS_PER_MS)


_BEGIN: dict[str, Any] = {}
_A, _B = {"client": 0}, {"client": 1}
_ASKS = {"command": "acquire"}
_GRANTED = {"outcome": "granted"}


def minority() -> Replay:
    """Crash two of five nodes, one after the other."""
    return Replay(
        "minority",
        "A minority of the nodes dies",
        _plan(
            5,
            (_job(100, 1_200), _job(700, 800)),
            (_fault(400, "crash_kept", 9_000, node=3), _fault(1_000, "crash_kept", 9_000, node=4)),
            2_950,
        ),
        (
            Caption(
                "world",
                _BEGIN,
                "Five nodes, none of which knows the others. A client holds the lock if at least"
                " three of them vote for it.",
            ),
            Caption("send", _A | _ASKS, "Client A asks all five nodes at the same time."),
            Caption(
                "outcome",
                _A | _GRANTED,
                "All five have stored A's key. A holds the lock, at most until {valid_until_ms}.",
            ),
            Caption("fault", {"what": "crash", "node": 3}, "Node 4 crashes. A notices nothing."),
            Caption("send", _B | _ASKS, "Client B wants the same lock and asks the four others."),
            Caption(
                "reply",
                _B | {"vote": "refused"},
                "They refuse, because A's key is there. B queues on each of them, and waits.",
            ),
            Caption(
                "fault",
                {"what": "crash", "node": 4},
                "Node 5 crashes too. Three of five are left: a majority.",
            ),
            Caption(
                "send",
                _A | {"command": "release"},
                "A is done. Every node that it reaches reserves the lock for B, and calls B.",
            ),
            Caption(
                "outcome",
                _B | _GRANTED,
                "Three nodes called, so B asked again. With three votes of five it holds the lock,"
                " and did not wait for the dead nodes.",
            ),
            Caption(
                "send",
                _B | {"command": "release", "token": "c1.2"},
                "B is done. If a third node died, no client would get the lock until one is back.",
            ),
        ),
    )


def paused() -> Replay:
    """Pause a holder beyond the end of its lease; its write comes after that of the next holder."""
    a_wins = Caption(
        "outcome",
        _A | _GRANTED,
        "A holds the lock until {valid_until_ms}. Its fence is {fence}: a number that grows with"
        " every lock.",
    )
    b_wins = Caption(
        "outcome", _B | _GRANTED, "B gets the lock. Its fence is {fence}, which is larger."
    )
    resumes = Caption(
        "fault",
        {"what": "resume"},
        "A continues and sends its write: for A, no time has passed since its check.",
    )
    return Replay(
        "paused",
        "A holder is paused and fenced off",
        _plan(
            3,
            (_job(100, 1_500, fencing=True), _job(600, 1_000, fencing=True)),
            (_fault(500, "pause", 2_300, client=0),),
            3_500,
        ),
        (
            Caption("world", _BEGIN, "Three nodes, and a storage that checks the fence."),
            a_wins,
            Caption(
                "write",
                _A | {"ok": True},
                "A writes and sends its fence along. The storage accepts, and remembers {fence}.",
            ),
            Caption(
                "fault",
                {"what": "pause"},
                "A has checked that it holds the lock. Before its next write it is paused: by"
                " garbage collection, or with its virtual machine.",
            ),
            Caption(
                "reply",
                _B | {"vote": "refused"},
                "B asks for the lock. The nodes refuse, because A's key is there.",
            ),
            Caption(
                "over",
                _A,
                "A's lease is over, and A cannot notice: it is paused. The keys expire a little"
                " later.",
            ),
            b_wins,
            Caption("write", _B | {"ok": True}, "B writes. The storage accepts fence {fence}."),
            resumes,
            Caption(
                "write",
                _A | {"ok": False},
                "The storage has seen {seen} and refuses {fence}. What B wrote is safe.",
            ),
            Caption(
                "outcome",
                _A | {"outcome": "not_released"},
                "A learns that its lock is lost. A lock alone cannot stop a paused holder; a"
                " fence can.",
            ),
        ),
        writes=((0, a_wins), (1, b_wins), (0, resumes)),
    )


_FORGETFUL = _plan(
    3,
    (_job(100, 1_600), _job(900, 500)),
    (
        _fault(0, "one_way_to", 9_000, client=0, node=2),
        _fault(500, "crash_lost", 200, node=0),
    ),
    2_900,
)
_A_WITHOUT_NODE_3 = Caption(
    "outcome",
    _A | _GRANTED,
    "Nodes 1 and 2 have stored A's key: two of three, a majority. A holds the lock.",
)
_NODE_1_FORGETS = Caption(
    "fault",
    {"what": "crash", "node": 0},
    "Node 1 crashes. It had not saved A's key to disk: the key is gone.",
)


def forgets() -> Replay:
    """Restart a node without its keys; the restart guard keeps it from voting."""
    return Replay(
        "forgets",
        "A node forgets, and the guard holds",
        _FORGETFUL,
        (
            Caption("world", _BEGIN, "Three nodes. The network does not let A reach node 3."),
            _A_WITHOUT_NODE_3,
            _NODE_1_FORGETS,
            Caption(
                "fault",
                {"what": "restart", "node": 0},
                "Node 1 is back and empty. If it voted now, B could get the lock that A holds.",
            ),
            Caption(
                "quarantine",
                {"node": 0},
                "The restart guard sees that node 1 has just started. It gets no vote until"
                " {until_ms}: by then every lease from before has ended.",
            ),
            Caption("send", _B | _ASKS, "B wants the lock and asks nodes 2 and 3 only."),
            Caption(
                "reply",
                _B | {"vote": "refused"},
                "Node 3 votes for B, node 2 has A's key and refuses. One vote of three is too"
                " few: B releases and tries again.",
            ),
            Caption("send", _A | {"command": "release"}, "A is done and releases."),
            Caption(
                "outcome",
                _B | _GRANTED,
                "Nodes 2 and 3 vote for B: a majority, without node 1. B holds the lock.",
            ),
        ),
    )


def two_holders() -> Replay:
    """Repeat `forgets` with the restart guard off."""
    off = replace(_FORGETFUL.settings, restart_guard=None)
    return Replay(
        "two-holders",
        "No guard: two holders",
        replace(_FORGETFUL, settings=off),
        (
            Caption(
                "world",
                _BEGIN,
                "The same faults at the same times, but with restart_guard=None. Now the lock"
                " assumes that no node ever forgets a key.",
            ),
            _A_WITHOUT_NODE_3,
            _NODE_1_FORGETS,
            Caption(
                "fault",
                {"what": "restart", "node": 0},
                "The assumption is broken: node 1 is back, empty, and votes at once.",
            ),
            Caption("send", _B | _ASKS, "B wants the lock and asks all three nodes."),
            Caption(
                "outcome",
                _B | _GRANTED,
                "Node 1 forgot A's key, and node 3 never had it: two votes for B. A and B hold"
                " the lock at the same time.",
            ),
            Caption("send", _B | {"command": "release"}, "B is done and releases."),
            Caption(
                "outcome",
                _A | {"outcome": "not_released"},
                "A learns that its lock is lost: too late. This is why the restart guard is on"
                " by default.",
            ),
        ),
    )


ALL = (minority, paused, forgets, two_holders)
