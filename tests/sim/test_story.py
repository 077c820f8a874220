"""A story says of a trace what the world itself knows: keys, leases, rounds and faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from quorlock._core.time import NS_PER_MS
from quorlock_sim.oracle import judge
from quorlock_sim.scenarios import SCENARIOS
from quorlock_sim.trace import Trace
from quorlock_sim.view.diagram import diagram
from quorlock_sim.view.page import page
from quorlock_sim.view.sentences import sentence
from quorlock_sim.view.story import Holding, Story
from quorlock_sim.world import World
from tests.sim import sketches

SEEDS = range(6)


def lived(scenario: str, seed: int) -> list[dict[str, Any]]:
    """Return the trace of a simulated world, judged without mercy for memories that were lost.

    Several tests read the same traces, and change none.
    """
    return list(_lived(scenario, seed))


@cache
def _lived(scenario: str, seed: int) -> tuple[dict[str, Any], ...]:
    trace = Trace()
    world = World(SCENARIOS[scenario].plan(seed), trace)
    world.run()
    trace.finish(judge(world, excuse_memory=False))
    return tuple(trace.lines)


def held(story: Story, event: dict[str, Any]) -> list[Holding]:
    """Return the node's key before the event, to the millisecond in which keys expire."""
    at = event["at"]
    return [
        key
        for key in story.holdings
        if (key.node, key.key) == (event["node"], event["key"])
        if key.since < at <= (key.until or 0)
    ]


def traces_without_strangers(scenario: str) -> Iterator[list[dict[str, Any]]]:
    """Yield traces in which all keys are set by commands of clients."""
    for seed in SEEDS:
        trace = lived(scenario, seed)
        if not any(event.get("what") == "foreign" for event in trace):
            yield trace


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_keys_explain_every_reply_of_every_node(scenario: str) -> None:
    """The owner of the key follows from executed commands and clocks, never from refusals."""
    judged = 0
    for trace in traces_without_strangers(scenario):
        story = Story(trace)
        # Events at one key and one instant have an order that instants do not show.
        instants = [(e["at"], e.get("node"), e.get("key")) for e in trace if e["kind"] == "execute"]
        crowded = {place for place, count in Counter(instants).items() if count > 1}
        for event in trace:
            if event["kind"] != "execute":
                continue
            if (event["at"], event["node"], event["key"]) in crowded:
                continue
            if event.get("found") == "reserved":
                continue  # for a waiter, by the node itself
            keys = held(story, event)
            replay = f"{scenario}, seed {trace[0]['seed']}: {event} but {keys}"
            judged += 1
            if event["command"] == "acquire" and event["reply"] == "OK":
                assert not [key for key in keys if (key.until or 0) > event["at"]], replay
            if event["command"] == "acquire" and event["reply"] is None:
                assert keys, replay
            if event["command"] == "release" and event["reply"] == -3:
                tokens = [key.token for key in keys]
                assert event["token"] in tokens, replay
                assert len(tokens) == 1 or all(key.shared for key in keys), replay
            if event["command"] == "release" and event["reply"] == -2:
                late = event["at"] + NS_PER_MS
                assert not [key for key in keys if (key.until or 0) > late], replay
    assert judged > 50


def test_overlaps_are_those_of_the_checker() -> None:
    found = 0
    for seed in range(120):
        trace = lived("memory", seed)
        story = Story(trace)
        violations = [event for event in trace if event["kind"] == "violation"]
        judged = {frozenset(e["tokens"]) for e in violations if e["rule"] == "overlap"}
        seen = {frozenset((o.first.token, o.second.token)) for o in story.overlaps if o.judged}
        # The checker names each new lease once; three that overlap make more than two pairs.
        assert judged <= seen, f"memory, seed {seed}"
        assert bool(judged) == bool(story.overlaps), f"memory, seed {seed}"
        found += len(judged)
    assert found > 0, "no overlap in 40 worlds that lose their memory: nothing was compared"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_round_is_one_command_that_asks_every_node_once(scenario: str) -> None:
    for seed in SEEDS:
        story = Story(lived(scenario, seed))
        sent = [event for event in story.events if event["kind"] == "send"]
        assert sum(len(round_.messages) for round_ in story.rounds) == len(sent)
        for round_ in story.rounds:
            asked: dict[int, list[Any]] = defaultdict(list)
            for message in round_.messages:
                asked[message.sent["node"]].append(message)
                same = (message.sent["client"], message.sent["command"], message.sent["token"])
                assert same == (round_.client, round_.command, round_.token)
            again = [ms[:-1] for ms in asked.values() if len(ms) > 1]
            assert all(m.forgotten for ms in again for m in ms), f"{scenario}, seed {seed}"


@pytest.mark.parametrize("scenario", ["nodes", "mixed", "memory"])
def test_a_node_that_is_down_or_hangs_does_nothing_meanwhile(scenario: str) -> None:
    spans = 0
    for seed in SEEDS:
        story = Story(lived(scenario, seed))
        done = [event for event in story.events if event["kind"] == "execute"]
        down = [fault for fault in story.faults if fault.what in ("crash", "hang")]
        spans += len(down)
        for fault in down:
            instants = [e["at"] for e in done if e["node"] == fault.node]
            within = [at for at in instants if fault.began["at"] < at < fault.until]
            assert not within, f"{scenario}, seed {seed}: {fault}"
    assert spans, "nothing was compared"


@pytest.mark.parametrize("scenario", ["clients", "sound"])
def test_a_client_that_is_paused_sends_nothing_meanwhile(scenario: str) -> None:
    spans = 0
    for seed in SEEDS:
        story = Story(lived(scenario, seed))
        sent = [event for event in story.events if event["kind"] == "send"]
        still = [fault for fault in story.faults if fault.what in ("pause", "client_crash")]
        spans += len(still)
        for fault in still:
            instants = [e["at"] for e in sent if e["client"] == fault.client]
            within = [at for at in instants if fault.began["at"] < at < fault.until]
            assert not within, f"{scenario}, seed {seed}: {fault}"
    assert spans, "nothing was compared"


def test_a_crash_lasts_until_the_restart_and_takes_the_keys_with_it() -> None:
    story = Story(sketches.bad())
    crash = next(fault for fault in story.faults if fault.what == "crash")
    assert (crash.began["at"], crash.until) == (180 * NS_PER_MS, 260 * NS_PER_MS)
    gone = next(key for key in story.holdings if (key.node, key.token) == (1, "c0.0"))
    assert (gone.until, gone.why) == (180 * NS_PER_MS, "forgotten in the crash")


def test_a_restart_with_memory_takes_nothing() -> None:
    story = Story(sketches.good())
    assert {key.why for key in story.holdings} == {"released"}
    crash = next(fault for fault in story.faults if fault.what == "crash")
    assert crash.ended is not None
    assert crash.ended["what"] == "restart"


def test_a_trace_may_break_off_anywhere() -> None:
    trace = lived("mixed", 5)
    for length in range(0, len(trace), max(1, len(trace) // 25)):
        part = trace[:length]
        assert diagram(part).endswith("the trace breaks off before its end\n")
        assert "the trace breaks off" in page(part)


def test_a_kind_of_event_that_is_new_is_shown_as_it_is() -> None:
    trace = sketches.good()
    trace.insert(40, {"kind": "eclipse", "at": trace[40]["at"], "sun": "dark"})
    assert "kind=eclipse sun=dark" in diagram(trace)
    assert "kind=eclipse sun=dark" in page(trace)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_event_has_a_sentence_in_words(scenario: str) -> None:
    for seed in SEEDS:
        for event in lived(scenario, seed):
            said = sentence(event)
            assert said
            assert "{" not in said, said
            assert "kind=" not in said, said
            assert "None" not in said.replace("restart_guard=None", ""), said
