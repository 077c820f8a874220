"""The text diagram: one line for a plain round, every line for an odd one, nothing left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quorlock_sim.scenarios import SCENARIOS
from quorlock_sim.view.diagram import WIDTH, diagram
from tests.sim import sketches
from tests.sim.test_story import lived

Trace = list[dict[str, Any]]

DATA = Path(__file__).parent / "data"


def rows(trace: Trace) -> list[str]:
    """The words behind the lifelines, a row each."""
    story = dict(enumerate(diagram(trace).splitlines()))
    start = next(number for number, line in story.items() if line.lstrip().startswith("ms "))
    words_at = story[start].rindex("n") + 4
    lines = [story[number][:11] + story[number][words_at:] for number in story if number > start]
    return [line for line in lines if line[:10].strip()]


def one(trace: Trace, **facts: Any) -> dict[str, Any]:
    """The only event that has these facts."""
    (found,) = [e for e in trace if all(e.get(name) == fact for name, fact in facts.items())]
    return found


def test_a_world_gone_wrong_is_understood_in_a_minute() -> None:
    """Read data/overlap.txt: that is how it looks."""
    assert diagram(sketches.bad()) == (DATA / "overlap.txt").read_text(encoding="utf-8")


def test_a_plain_round_is_one_line() -> None:
    trace = sketches.bad()
    shown = [line for line in diagram(trace).splitlines() if "c1 acquire c1.0" in line]
    assert len(shown) == 1
    assert shown[0].endswith("c1 acquire c1.0: n0 refused, n1 n2 granted")


def test_rounds_that_overtake_each_other_are_shown_in_full() -> None:
    """c0 was first at n0 and n1, c1 at n2: the order of the executions is the story."""
    shown = "\n".join(rows(sketches.good()))
    order = ["n0 does acquire c0.0: granted", "n0 does acquire c1.0: refused"]
    order += ["n2 does acquire c1.0: granted", "n2 does acquire c0.0: refused"]
    places = [shown.index(line) for line in order]
    assert places == sorted(places)


def test_refused_attempts_that_follow_each_other_are_one_line() -> None:
    shown = [line for line in rows(sketches.good()) if "c1 acquire c1.1" in line]
    assert len(shown) == 1
    assert "n0 n1 refused, n2 granted; releases; 2 more such" in shown[0]


def test_a_lost_reply_is_an_arrow_that_does_not_arrive() -> None:
    (line,) = [
        line for line in diagram(sketches.good()).splitlines() if "the reply is lost" in line
    ]
    assert line.startswith("    11.660   #x----|-----0-----0-----1   n2 to c0")


def late(trace: Trace, message: int, by: int) -> Trace:
    """Return the trace with that request executed later."""
    moved = one(trace, kind="execute", message=message)
    moved["at"] += by
    return sorted(trace, key=lambda event: event["at"])


def test_a_request_that_comes_late_has_a_line_of_its_own() -> None:
    trace = sketches.bad()
    sent = one(trace, kind="send", client=1, node=2, command="acquire")
    shown = rows(late(trace, sent["message"], 70 * sketches.MS))
    assert any("n2 does acquire c1.0: granted" in line for line in shown)


def test_a_request_that_comes_twice_is_called_a_duplicate() -> None:
    trace = sketches.bad()
    sent = one(trace, kind="send", client=1, node=0, command="acquire")
    done = one(trace, kind="execute", message=sent["message"])
    trace.insert(trace.index(done) + 1, done | {"copy": True})
    shown = [line for line in rows(trace) if "n0 does acquire c1.0" in line]
    assert len(shown) == 2
    assert "(a duplicate)" in shown[1]


def test_a_reply_after_the_deadline_is_said_to_be_late() -> None:
    trace = sketches.bad()
    sent = one(trace, kind="send", client=1, node=0, command="acquire")
    reply = one(trace, kind="reply", message=sent["message"])
    reply["at"] += 80 * sketches.MS
    reply["heard"] = False
    shown = rows(sorted(trace, key=lambda event: event["at"]))
    assert any(
        "n0 to c1: refused (acquire c1.0), too late: no flow waits for it" in line for line in shown
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_line_fits_and_every_event_is_shown(scenario: str) -> None:
    for seed in range(6):
        trace = lived(scenario, seed)
        drawn = diagram(trace)
        replay = f"{scenario}, seed {seed}"
        assert drawn.isascii(), replay
        assert max(map(len, drawn.splitlines())) <= WIDTH, replay
        assert drawn == diagram(trace), replay
        counts = Counter(e["kind"] for e in trace)
        begun = [e for e in trace if e["kind"] == "fault" and e["what"] not in ENDINGS]
        assert drawn.count("FAULT: ") == len(begun), replay
        assert drawn.count("VIOLATION (") == counts["violation"], replay
        granted = [e for e in trace if e["kind"] == "outcome" and e["outcome"] == "granted"]
        for event in granted:
            assert f"c{event['client']} gets: granted {event['token']}" in drawn, replay


ENDINGS = ("restart", "resume", "go_on", "rejoin")


def test_a_world_without_a_fault_says_so() -> None:
    last = diagram(sketches.good()).splitlines()[-2:]
    assert last == ["no violation", "assumptions intact"]


def test_overlaps_that_do_not_count_are_shown_and_excused() -> None:
    trace = [event for event in sketches.bad() if event["kind"] != "violation"]
    drawn = diagram(trace)
    assert "c0.0 and c1.0 (not counted as a violation)" in drawn
    assert "\nno violation\nassumptions broken: n1 lost its memory" in drawn


def test_lifelines_have_a_column_for_each_resource() -> None:
    seeds = (lived("calm", seed) for seed in range(40))
    trace = next(trace for trace in seeds if trace[0]["resources"] == ["r0", "r1"])
    drawn = diagram(trace)
    assert "one column each for r0, r1" in drawn
    assert "   ||    ||" in drawn
