"""A trace as one self-contained HTML file: it needs no network, no server and no library.

This module computes the bars, lines and marks on the lanes of clients and nodes, each with its
words. They are data for page.html, which shows them: positions, zoom, hover, the list of events.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorlock_sim.clock import NEVER
from quorlock_sim.view.diagram import diagram
from quorlock_sim.view.sentences import facts, pace_words, place, reply_words, sentence, votes
from quorlock_sim.view.story import Story, ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorlock_sim.view.story import (
        DrawnCall,
        DrawnFault,
        DrawnLease,
        DrawnMessage,
        Event,
        Holding,
        Overlap,
    )

_SLOT = re.compile(r"<!--slot:(\w+)-->")


def page(trace: Iterable[Event]) -> str:
    """Return the whole file as text, for any current browser, also from file://."""
    events = list(trace)
    story = Story(events)
    slots = {
        "title": escape(_title(story)),
        "facts": escape(_settings(story)),
        "verdict": _verdict(story),
        "quorum": escape(f"{story.quorum} of {story.n}"),
        "text": escape(diagram(events)),
        "data": embedded(_data(story)),
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return _SLOT.sub(lambda slot: slots[slot[1]], template)


def embedded(data: Any) -> str:
    """Return the data as JSON that is safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII only: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- the head ----------------------------------------------------------------------------------


def _title(story: Story) -> str:
    return f"seed {story.world.get('seed')}, scenario {story.world.get('scenario')}"


def _settings(story: Story) -> str:
    world = story.world
    names = ", ".join(world.get("resources", []))
    return (
        f"{_count(story.n, 'node')} (quorum {story.quorum}), {_count(story.clients, 'client')},"
        f" on {names};"
        f" ttl {world.get('ttl_ms', 0):,} ms, drift allowance {ms(story.drift)} ms,"
        f" node timeout {ms(world.get('node_timeout', 0))} ms;"
        f" {len(story.events):,} events in {ms(story.end)} ms"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _verdict(story: Story) -> str:
    lines = [_paragraph(text) for text in _banner(story)]
    tone = "bad" if story.violations else "excused" if story.overlaps else "good"
    role = "alert" if story.violations else "status"
    return f'<div id="verdict" class="{tone}" role="{role}">{"".join(lines)}</div>'


def _banner(story: Story) -> Iterator[str]:
    bad = [f"Violation: {overlap.text}" for overlap in story.overlaps if overlap.judged]
    bad += [sentence(event) for event in story.violations if event["rule"] != "overlap"]
    yield from bad[:_BANNER_MAX]
    if len(bad) > _BANNER_MAX:
        yield f"and {len(bad) - _BANNER_MAX} more, at the end of the events"
    kept = {True: "yes", False: "no", None: "unknown, the trace breaks off"}[story.intact]
    why = f" ({'; '.join(story.why)})" if story.why else ""
    yield f"{'Assumptions' if bad else 'No violation; assumptions'} intact: {kept}{why}."
    for overlap in story.overlaps:
        if not overlap.judged:
            yield f"Not counted, since the assumptions were broken: {overlap.text}."


_BANNER_MAX = 4


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


# --- the items ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Item:
    """One item of the picture.

    Attributes:
        look: the CSS classes for its form and colour.
        lane: the lane that it is on; for a line, its start.
        to: the lane at the end of a line.
        row: the index of the resource.
        token: the token of its attempt.
    """

    look: str
    lane: str
    since: int
    until: int
    event: int
    words: list[str]
    token: str = ""
    label: str = ""
    row: int = 0
    to: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the item for JSON, without empty values."""
        names = {"look": "k", "lane": "l", "since": "a", "until": "b", "event": "e"}
        names |= {"words": "w", "token": "t", "label": "n", "row": "r", "to": "m"}
        values = ((short, getattr(self, name)) for name, short in names.items())
        return {short: value for short, value in values if value not in ("", [])}


@dataclass(slots=True)
class _Scene:
    """All items of the picture, by layers."""

    bars: list[_Item] = field(default_factory=list[_Item])
    lines: list[_Item] = field(default_factory=list[_Item])
    marks: list[_Item] = field(default_factory=list[_Item])


def _data(story: Story) -> dict[str, Any]:
    rows = {name: row for row, name in enumerate(story.world.get("resources", []))}
    scene = _Scene()
    for fault in story.faults:
        _draw_fault(scene, fault, story.clients)
    for held in story.holdings:
        scene.bars.append(_key(held, rows))
    for call in story.calls:
        _draw_call(scene, call, story.end)
    for lease, room in _with_room(story.leases):
        _draw_lease(scene, lease, rows, story.drift, room)
    for message in story.messages.values():
        _draw_message(scene, message)
    for violation in story.violations:
        if violation["rule"] != "overlap":
            scene.marks.append(_violation_mark(violation))
    return {
        "end": story.end,
        "opening": _opening(story),
        "timeout": story.world.get("node_timeout", 0),
        "paces": {lane: pace_words(pace) for lane, pace in story.paces.items()},
        "rows": list(rows),
        "clients": story.clients,
        "nodes": story.n,
        "bars": [item.as_data() for item in scene.bars],
        "lines": [item.as_data() for item in scene.lines],
        "marks": [item.as_data() for item in scene.marks],
        "overlaps": [_overlap(overlap, rows) for overlap in story.overlaps],
        "events": [
            [event["at"], _GROUPS.get(str(event["kind"]), "other"), place(event), sentence(event)]
            for event in story.events
        ],
    }


def _opening(story: Story) -> tuple[int, int]:
    """Return the span to show first: all, or the part before or after a long silence."""
    end = story.end
    length, before, after = max(_silences(story), default=(0, end, end))
    if length * _LONG_SILENCE < end:
        return 0, end
    bad = [overlap.since for overlap in story.overlaps if overlap.judged]
    return (0, before) if not bad or min(bad) <= before else (after, end)


def _silences(story: Story) -> Iterator[tuple[int, int, int]]:
    """Yield the spans without event, fault and lease: their length, start and end."""
    spans = [(event["at"], event["at"]) for event in story.events]
    spans += [(lease.since, lease.until) for lease in story.leases]
    spans += [(fault.began["at"], fault.until) for fault in story.faults]
    last = 0
    for since, until in sorted(spans):
        if since > last:
            yield since - last, last, since
        last = max(last, until)


_LONG_SILENCE = 4  # a long silence takes at least this fraction (1/4) of the world's time

# The filters of the list of events.
_GROUPS = {
    **dict.fromkeys(("call", "outcome", "end", "lease"), "calls"),
    **dict.fromkeys(("send", "execute", "reply", "lose", "elapsed"), "messages"),
    "fault": "faults",
    **dict.fromkeys(("connect", "disconnect"), "connections"),
    **dict.fromkeys(("violation", "world", "end_of_world"), "verdict"),
}


def _span(since: int, until: int) -> str:
    return f"{ms(since)} to {ms(until)} ms ({ms(until - since)} ms)"


def _with_room(leases: list[DrawnLease]) -> Iterator[tuple[DrawnLease, int]]:
    """Yield each lease with the instant of its client's next acquire of that resource."""
    for lease in leases:
        place_of = (lease.client, lease.resource)
        later = (
            other.asked
            for other in leases
            if (other.client, other.resource) == place_of and other.since > lease.since
        )
        yield lease, min(later, default=NEVER)


def _draw_lease(
    scene: _Scene, lease: DrawnLease, rows: dict[str, int], drift: int, room: int
) -> None:
    """Draw a lease, with the rest of its validity up to `room`, where the next one begins."""
    lane, row, owner = f"c{lease.client}", rows.get(lease.resource, 0), f"o{lease.client % 6}"
    took = ms(lease.since - lease.asked)
    words = [
        f"lease {lease.token} on {lease.resource}",
        f"requested at {ms(lease.asked)} ms; a quorum had granted it {took} ms later",
        f"trusted: {_span(lease.since, lease.until)}",
        f"could be trusted until {ms(lease.valid_until)} ms; ended because it was {_why(lease)}",
    ]
    rest = min(lease.valid_until, room)
    parts = [
        ("asking", lease.asked, lease.since, ""),
        ("held", lease.since, lease.until, lease.token),
        ("rest", lease.until, rest, ""),
        ("drift", rest, min(lease.valid_until + drift, room), ""),
    ]
    for part, since, until, label in parts:
        if until > since:
            look = f"lease {part} {owner}"
            item = _Item(look, lane, since, until, lease.event, words, lease.token, label, row)
            scene.bars.append(item)
    for event in lease.extensions:
        said = [sentence(event).partition(" (")[0], votes(event)]
        item = _Item("extended", lane, event["at"], event["at"], event["index"], said, lease.token)
        item.row = row
        scene.marks.append(item)


def _why(lease: DrawnLease) -> str:
    return "not extended in time" if lease.why == "ran out" else lease.why


def _key(held: Holding, rows: dict[str, int]) -> _Item:
    until = held.until if held.until is not None else held.since
    client = _client_of(held.token)
    words = [
        f"n{held.node} has {held.key} = {held.token}",
        f"{_span(held.since, until)}, then {held.why}",
    ]
    look = f"key o{client % 6}" + (" gone" if held.why not in ("released", "expired") else "")
    lane, row = f"n{held.node}", rows.get(held.key, 0)
    return _Item(look, lane, held.since, until, held.event, words, held.token, held.token, row)


def _client_of(token: str) -> int:
    """Return the client of a token such as "c0.3", the third attempt of client 0."""
    found = re.match(r"c(\d+)", token)
    return int(found[1]) if found else 0


def _draw_call(scene: _Scene, call: DrawnCall, end: int) -> None:
    began, ended = call.began, call.ended
    until = ended["at"] if ended else end
    outcome = ended["outcome"] if ended else "unfinished"
    words = [sentence(began), sentence(ended) if ended else "it never returned"]
    words.append(f"took {ms(until - began['at'])} ms")
    lane, token = f"c{began['client']}", began.get("token", "")
    look = f"call {outcome.replace(' ', '-')}"
    scene.bars.append(_Item(look, lane, began["at"], until, began["index"], words, token))
    if ended and outcome not in ("granted", "extended", "released", "yes"):
        said = [sentence(ended)]
        scene.marks.append(_Item("no", lane, until, until, ended["index"], said, token))


def _draw_fault(scene: _Scene, fault: DrawnFault, clients: int) -> None:
    event, index, at = fault.began, fault.began["index"], fault.began["at"]
    what = fault.what.replace("_", " ")
    words = [sentence(event), *([sentence(fault.ended)] if fault.ended else [])]
    lanes = _lanes(fault, clients)
    if fault.momentary:
        label = f"{what} {facts(event)}".strip()
        scene.marks += [_Item("fault", lane, at, at, index, words, "", label) for lane in lanes]
        return
    words.append(f"lasts {_span(at, fault.until)}")
    look = f"band {fault.what}"
    bars = (_Item(look, lane, at, fault.until, index, words, "", what) for lane in lanes)
    scene.bars += bars


def _lanes(fault: DrawnFault, clients: int) -> list[str]:
    if fault.client is None:
        nodes = [fault.node] if fault.node is not None else fault.began["nodes"]
        return [f"n{node}" for node in nodes]
    ends = [f"c{fault.client}"] if fault.client >= 0 else [f"c{i}" for i in range(clients)]
    return ends if fault.node is None else [*ends, f"n{fault.node}"]


def _draw_message(scene: _Scene, message: DrawnMessage) -> None:
    sent = message.sent
    client, node, token = f"c{sent['client']}", f"n{sent['node']}", sent["token"]
    about = f"message {sent['message']}, round {sent['round']}, {sent['command']} {token}"
    base = f"{sent['command']} o{sent['client'] % 6}"
    for copy, done in enumerate(message.executions):
        twice = " copy" if copy else ""
        words = [sentence(sent), sentence(done) + (" (a duplicate)" if copy else "")]
        words += [f"{ms(done['at'] - sent['at'])} ms in transit", about]
        look = f"request {base}{twice}"
        item = _Item(look, client, sent["at"], done["at"], sent["index"], words, token, to=node)
        scene.lines.append(item)
        look = f"done {done['vote']} {sent['command']}"
        words = [sentence(done), about]
        at = done["at"]
        scene.marks.append(_Item(look, node, at, at, done["index"], words, token))
    _draw_replies(scene, message, about)
    for lost in message.losses:
        gone = lost["what"] == "reply"
        source, target = (node, client) if gone else (client, node)
        begun = message.executions[-1] if gone and message.executions else sent
        words = [sentence(sent), sentence(lost), about]
        look = f"lost {'reply' if gone else 'request'} {base}"
        until = max(lost["at"], begun["at"])
        item = _Item(look, source, begun["at"], until, lost["index"], words, token, to=target)
        scene.lines.append(item)


def _draw_replies(scene: _Scene, message: DrawnMessage, about: str) -> None:
    sent = message.sent
    client, node, token = f"c{sent['client']}", f"n{sent['node']}", sent["token"]
    for reply, done in zip(message.replies, message.executions, strict=False):
        late = "" if reply.get("heard", True) else " late"
        words = [sentence(reply), f"n{sent['node']} replied: {reply_words(done)}"]
        words += [f"{ms(reply['at'] - sent['at'])} ms after it was sent", about]
        look = f"reply {reply['vote']} {sent['command']}{late}"
        at, index = reply["at"], reply["index"]
        item = _Item(look, node, done["at"], at, index, words, token, to=client)
        scene.lines.append(item)
        look = f"vote {reply['vote']} {sent['command']}{late}"
        scene.marks.append(_Item(look, client, at, at, index, words, token))


def _overlap(overlap: Overlap, rows: dict[str, int]) -> dict[str, Any]:
    first, second = overlap.first, overlap.second
    return {
        "lanes": [f"c{first.client}", f"c{second.client}"],
        "tokens": [first.token, second.token],
        "row": rows.get(first.resource, 0),
        "a": overlap.since,
        "b": overlap.until,
        "judged": overlap.judged,
        "text": overlap.text,
        "e": second.event,
    }


def _violation_mark(event: Event) -> _Item:
    """Return the mark at the place that the oracle names; overlaps are drawn separately."""
    names = ((letter, event.get(name)) for letter, name in (("n", "node"), ("c", "client")))
    lane = next((f"{letter}{number}" for letter, number in names if number is not None), "c0")
    at = int(event["instant"])
    return _Item("violation", lane, at, at, event["index"], [sentence(event)], "", event["rule"])
