"""A trace as a sequence diagram in plain ASCII, which survives terminals, logs and copying.

Each client and each node has a lifeline, and time runs downwards. An undisturbed round takes one
line. `story` reconstructs the facts from the events, and `sentences` has the words.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from quorlock._core.time import NS_PER_MS
from quorlock_sim.clock import NEVER
from quorlock_sim.view.sentences import pace_words, place, reply_words, sentence
from quorlock_sim.view.story import Story, ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from quorlock_sim.view.story import DrawnMessage, Event, Overlap, Round

WIDTH = 120
_TIME = 11  # columns for the time
_GAP = 6  # from one lifeline to the next
_RESOURCES_MAX = 3  # columns of one lifeline
_BARS = 64  # the longest bar under a violation
_SIGNS = (
    "# this client holds a lease   0..9 the client whose key the node has   : down or paused",
    "-->| a message arrives   --x | it is lost   | none of these",
)


_LONG_NAME = re.compile(r"(?<=\w)\w{100,}")


def _shortened(trace: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, with `~` for most of a long name: no line has room for one."""
    has_long_names = False
    for event in trace:
        has_long_names |= any(len(name) > WIDTH for name in event.get("resources", ()))
        yield json.loads(_LONG_NAME.sub("~", json.dumps(event))) if has_long_names else event


def diagram(trace: Iterable[Event]) -> str:
    """Return the whole trace as text: the events, then the violations."""
    story = Story(_shortened(trace))
    rows = _Rows(story)
    picture = _Picture(story)
    body = [line for row in rows.all() for line in picture.draw(row)]
    return "\n".join([*_head(story), "", picture.titles(), *body, "", *_verdict(story)]) + "\n"


def _head(story: Story) -> list[str]:
    """Return the lines with the settings and the legend."""
    world = story.world
    settings = (
        f"seed {world.get('seed')}, scenario {world.get('scenario')}: {story.n} nodes,"
        f" quorum {story.quorum}, {story.clients} clients, ttl {world.get('ttl_ms', 0):,} ms,"
        f" node timeout {ms(world.get('node_timeout', 0))} ms, drift {ms(story.drift)} ms"
    )
    names = story.world.get("resources", [])
    lines = f"; lifelines have one column each for {', '.join(names[:_RESOURCES_MAX])}"
    signs = [_SIGNS[0], _SIGNS[1] + (lines if len(names) > 1 else "")]
    clocks = ", ".join(f"{lane} {pace_words(pace)}" for lane, pace in story.paces.items())
    drifts = wrap(f"clocks against true time: {clocks}", WIDTH) if clocks else []
    return [*wrap(settings, WIDTH), *drifts, *signs]


# --- the rows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arrow:
    """An arrow between two lifelines; `arrives` is False if the message is lost."""

    source: str
    target: str
    arrives: bool = True


@dataclass(slots=True)
class _Row:
    """One line of the diagram: the instant, the arrows, the words, and the events that it shows.

    Attributes:
        attempt: of a refused attempt, the words except its token; equal rows in sequence become
            one.
        times: the number of attempts that the row stands for.
        of: the client whose complete round the row shows, or -1.
    """

    at: int
    text: str
    arrows: list[_Arrow] = field(default_factory=list[_Arrow])
    changes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    attempt: str = ""
    times: int = 1
    of: int = -1


class _Rows:
    """The rows of a story: one for each undisturbed round, one for each event of all others."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._timeout = int(story.world.get("node_timeout", 0))
        self._plain = _plain_rounds(story, self._timeout)
        self._told: set[int] = set()  # events that a row shows already
        self._rows: list[_Row] = []
        self._first = {round_.first: round_ for round_ in story.rounds}
        self._round_of = {
            message.sent["message"]: round_
            for round_ in story.rounds
            for message in round_.messages
        }
        self._leases = {lease.token for lease in story.leases}
        self._backs = {
            round_.token: round_
            for round_ in story.rounds
            if id(round_) in self._plain and self._is_give_back(round_)
        }

    def all(self) -> list[_Row]:
        """Return every row, in order."""
        for event in self._story.events:
            if event["index"] not in self._told and event["kind"] not in _SILENT:
                self._tell(event)
        return _condensed(self._rows)

    def _tell(self, event: Event) -> None:
        round_ = self._first.get(event["index"])
        tell = {
            "send": self._tell_sending,
            "execute": self._tell_execution,
            "reply": self._tell_reply,
            "lose": self._tell_loss,
        }.get(event["kind"], self._tell_other)
        if round_ is not None and id(round_) in self._plain:
            self._tell_round(round_)
        else:
            tell(event)

    def _add(self, event: Event, text: str, arrows: Sequence[_Arrow] = ()) -> _Row:
        row = _Row(event["at"], text, list(arrows), [event])
        self._told.add(event["index"])
        self._rows.append(row)
        return row

    # --- one row for a round -----------------------------------------------------------------

    def _tell_round(self, round_: Round) -> None:
        first = self._story.events[round_.first]
        arrows = [
            _Arrow(f"c{round_.client}", f"n{message.sent['node']}", bool(message.executions))
            for message in round_.messages
        ]
        name = "releases attempt" if self._is_give_back(round_) else round_.command
        answers = _together(round_.messages)
        row = self._add(first, f"c{round_.client} {name} {round_.token}: {answers}", arrows)
        self._cover(row, round_)
        row.of = round_.client
        back = self._backs.get(round_.token)
        if round_.command == "acquire" and back is not None and self._follows(round_, back):
            row.text += "; releases"
            row.attempt = f"{round_.client} {round_.key} {answers}"
            self._cover(row, back)

    def _cover(self, row: _Row, round_: Round) -> None:
        row.changes += round_.events
        self._told.update(event["index"] for event in round_.events)

    def _is_give_back(self, round_: Round) -> bool:
        return round_.command == "release" and round_.token not in self._leases

    def _follows(self, round_: Round, back: Round) -> bool:
        """Return whether no event between the two rounds needs a row."""
        ours = {event["index"] for event in (*round_.events, *back.events)}
        between = self._story.events[round_.first : back.first]
        return all(e["index"] in ours or e["kind"] in _SILENT for e in between)

    # --- one row for an event ----------------------------------------------------------------

    def _tell_sending(self, event: Event) -> None:
        together = [
            message.sent
            for message in self._round_of[event["message"]].messages
            if _same_sending(message.sent, event)
        ]
        arrows = [_Arrow(f"c{event['client']}", f"n{sent['node']}") for sent in together]
        pending_release = " (a pending release)" if event["round"] == 0 else ""
        text = f"c{event['client']} sends {event['command']} {event['token']}{pending_release}"
        self._add(event, text, arrows)
        self._told.update(sent["index"] for sent in together)

    def _tell_execution(self, event: Event) -> None:
        message = self._story.messages.get(event["message"])
        again = message is not None and message.executions[0] is not event
        text = sentence(event) + (" (a duplicate)" if again else "")
        row = self._add(event, text)
        reply = self._next(event["index"])
        if reply is not None and _answers(reply, event):
            row.text += "" if reply.get("heard", True) else ", " + self._unheard(reply)
            row.arrows = [_Arrow(f"n{event['node']}", f"c{event['client']}")]
            row.changes.append(reply)
            self._told.add(reply["index"])

    def _tell_reply(self, event: Event) -> None:
        if event.get("heard", True) or self._unheard(event) == _TOO_LATE:
            arrow = _Arrow(f"n{event['node']}", f"c{event['client']}")
            self._add(event, sentence(event), [arrow])

    def _unheard(self, reply: Event) -> str:
        """Return the reason that no flow reads the reply: it is late, or follows the verdict."""
        sent = self._story.messages[reply["message"]].sent
        in_time = reply["at"] <= sent["at"] + self._timeout
        return "after the verdict" if in_time else _TOO_LATE

    def _tell_loss(self, event: Event) -> None:
        arrows = []
        if "client" in event:
            client, node = f"c{event['client']}", f"n{event['node']}"
            source, target = (node, client) if event["what"] == "reply" else (client, node)
            arrows = [_Arrow(source, target, arrives=False)]
        self._add(event, sentence(event), arrows)

    def _tell_other(self, event: Event) -> None:
        if event["kind"] in ("call", "end") and self._is_said_by_sending(event):
            return
        if self._is_plain(event):
            return
        text = sentence(event)
        if event["kind"] == "outcome" and self._rows and self._rows[-1].of == event["client"]:
            if event["outcome"] == "released":
                self._rows[-1].changes.append(event)
                return
            text = text.partition(" (")[0]  # the line above shows the votes
        row = self._add(event, text)
        if event["kind"] == "disconnect":
            row.attempt = text  # a client has several connections to one node

    def _is_plain(self, event: Event) -> bool:
        """Return whether the event needs no row: the row above shows it, or no caller waits."""
        above = self._rows[-1].changes[-1] if self._rows else event
        if event["kind"] == "end" and event["why"] == "lost" and above.get("outcome") == "lost":
            self._rows[-1].changes.append(event)
            return True
        return bool(event["kind"] == "outcome" and event["what"] == "give_back")

    def _is_said_by_sending(self, event: Event) -> bool:
        """Return whether the same client sends at the same instant, which implies the event."""
        following = self._next(event["index"])
        return (
            following is not None
            and following["kind"] in ("send", "end", "call")
            and (following["at"], following["client"]) == (event["at"], event["client"])
            and (event["kind"] == "call" or event["why"] == "released")
        )

    def _next(self, index: int) -> Event | None:
        """Return the next event that needs a row and has none yet."""
        events = self._story.events
        later = (events[i] for i in range(index + 1, len(events)) if i not in self._told)
        return next((event for event in later if event["kind"] not in _SILENT), None)


_TOO_LATE = "received too late"

# Other rows show these, or the end of the diagram.
_SILENT = frozenset({"world", "lease", "violation", "elapsed", "connect"})


def _together(messages: Iterable[DrawnMessage]) -> str:
    """Return the nodes' replies, grouped by equal replies."""
    nodes: dict[str, list[str]] = {}
    for message in sorted(messages, key=lambda message: message.sent["node"]):
        if message.forgotten:
            continue  # asked again, in the same round
        nodes.setdefault(_answer(message), []).append(f"n{message.sent['node']}")
    return ", ".join(f"{' '.join(names)} {answer}" for answer, names in nodes.items())


def _answer(message: DrawnMessage) -> str:
    if not message.executions:
        return "request lost" if message.losses else "never executes it"
    words = reply_words(message.executions[0])
    if message.replies:
        return words
    return f"{words} (reply lost)" if message.losses else f"{words} (reply never read)"


def _same_sending(sent: Event, event: Event) -> bool:
    names = ("client", "round", "at", "command", "token")
    return all(sent[name] == event[name] for name in names)


def _answers(reply: Event, execution: Event) -> bool:
    return bool(reply["kind"] == "reply" and reply["message"] == execution["message"])


def _condensed(rows: list[_Row]) -> list[_Row]:
    """Merge attempts in sequence that are refused in the same way into one row."""
    kept: list[_Row] = []
    for row in rows:
        before = kept[-1] if kept else None
        if before and row.attempt and before.attempt == row.attempt:
            before.times += 1
            before.changes += row.changes
        else:
            kept.append(row)
    for row in kept:
        if row.times > 1:
            row.text += f"; {row.times - 1} more such until {ms(row.changes[-1]['at'])} ms"
    return kept


# --- undisturbed rounds ------------------------------------------------------------------------


def _plain_rounds(story: Story, timeout: int) -> set[int]:
    """Return the rounds that fit in one row: no fault, no duplicate, none late or overtaken."""
    breaks = [e["index"] for e in story.events if e["kind"] in ("fault", "disconnect")]
    overtaken = _overtaken(story)
    return {
        id(round_)
        for round_ in story.rounds
        if id(round_) not in overtaken
        and _is_calm(round_, timeout)
        and bisect(breaks, round_.first) == bisect(breaks, round_.last)
    }


def _is_calm(round_: Round, timeout: int) -> bool:
    return all(
        len(message.executions) <= 1
        and len(message.replies) <= 1
        and all(e["at"] <= message.sent["at"] + timeout for e in message.events)
        and not (message.forgotten and message is round_.messages[-1])
        for message in round_.messages
    )


def _overtaken(story: Story) -> set[int]:
    """Return the rounds that a node executed in another order than they were sent in."""
    done: dict[tuple[int, str], list[tuple[Event, Round]]] = {}
    for round_ in story.rounds:
        for message in round_.messages:
            for execution in message.executions:
                done.setdefault((execution["node"], round_.key), []).append((execution, round_))
    found: set[int] = set()
    for order in done.values():
        order.sort(key=lambda pair: pair[0]["index"])
        found |= _out_of_order(order)
    return found


def _out_of_order(order: list[tuple[Event, Round]]) -> set[int]:
    """Return the rounds that overtook another, given a node's executions in order.

    Two executions that both change nothing may come in any order.
    """
    rounds = [round_ for _, round_ in order]
    changing = [execution["vote"] == "granted" for execution, _ in order]
    sent = [round_.first for round_ in rounds]
    any_of_them = _around(sent, sent)
    strong = list(zip(sent, changing, strict=True))
    changers = _around(
        [at if changes else -1 for at, changes in strong],
        [at if changes else NEVER for at, changes in strong],
    )
    both = zip(rounds, changing, any_of_them, changers, strict=True)
    return {
        id(round_)
        for round_, changes, (before, after), (changer_before, changer_after) in both
        if not changer_before <= round_.first <= changer_after
        or (changes and not before <= round_.first <= after)
    }


def _around(high: Sequence[int], low: Sequence[int]) -> list[tuple[int, int]]:
    """Return for each index the maximum up to it and the minimum from it on."""
    highest = list(accumulate(high, max))
    lowest = list(accumulate(reversed(low), min))[::-1]
    return list(zip(highest, lowest, strict=True))


# --- the drawing -------------------------------------------------------------------------------


class _Picture:
    """The drawing of the rows, with the state of every lifeline."""

    def __init__(self, story: Story) -> None:
        names = [f"c{i}" for i in range(story.clients)] + [f"n{i}" for i in range(story.n)]
        self._story = story
        self._columns = {name: 2 + _GAP * i for i, name in enumerate(names)}
        resources = story.world.get("resources", ["r0"])[:_RESOURCES_MAX]
        self._rows = {name: row for row, name in enumerate(resources)}
        self._words_at = _TIME + _GAP * len(names)

    def titles(self) -> str:
        """Return the line with the names of the lifelines."""
        cells = "".join(name.ljust(_GAP) for name in self._columns)
        return f"{'ms':>{_TIME - 1}}   {cells}".rstrip()

    def draw(self, row: _Row) -> list[str]:
        """Return the lines of a row; long words are wrapped."""
        at = max(event["at"] for event in row.changes)
        index = max(event["index"] for event in row.changes)
        lifelines = self._lifelines(at, index)
        lines = self._arrows(lifelines, row.arrows)
        words = wrap(row.text, WIDTH - self._words_at, subsequent_indent="  ")
        time = f"{row.at / NS_PER_MS:,.3f}"
        drawn = [f"{time:>{_TIME - 1}} {lines}".ljust(self._words_at) + words[0]]
        drawn += [
            " " * _TIME + lifelines.ljust(self._words_at - _TIME) + more for more in words[1:]
        ]
        return [line.rstrip() for line in drawn]

    def _lifelines(self, at: int, index: int) -> str:
        line = [" "] * (_GAP * len(self._columns))
        for column in self._columns.values():
            for row in self._rows.values():
                line[column + row] = "|"
        for lease in self._story.leases:
            if lease.since <= at < lease.until and lease.event <= index:
                self._mark(line, f"c{lease.client}", lease.resource, "#")
        for held in self._story.holdings:
            if held.since <= at < (held.until or 0) and held.event <= index:
                self._mark(line, f"n{held.node}", held.key, held.token[1:2])
        for fault in self._story.faults:
            if fault.began["at"] <= at < fault.until and fault.what in _DOWN:
                for resource in self._rows:
                    self._mark(line, place(fault.began), resource, ":")
        return "".join(line)

    def _mark(self, line: list[str], lane: str, resource: str, sign: str) -> None:
        if resource in self._rows:
            line[self._columns[lane] + self._rows[resource]] = sign

    def _arrows(self, lifelines: str, arrows: Sequence[_Arrow]) -> str:
        line = list(lifelines)
        for arrow in arrows:
            source, target = self._columns[arrow.source], self._columns[arrow.target]
            self._shaft(line, source, target)
        for arrow in arrows:
            source, target = self._columns[arrow.source], self._columns[arrow.target]
            step = 1 if target > source else -1
            line[target - step] = (">" if step > 0 else "<") if arrow.arrives else "x"
        return "".join(line)

    def _shaft(self, line: list[str], source: int, target: int) -> None:
        low, high = min(source, target), max(source, target)
        for column in range(low + 1, high):
            if line[column] == " ":
                line[column] = "-"


_DOWN = frozenset({"crash", "pause", "client_crash", "hang"})


# --- the verdict -------------------------------------------------------------------------------


def _verdict(story: Story) -> list[str]:
    """Return the oracle's violations, and every overlap as bars."""
    lines = [line for e in story.violations for line in wrap(sentence(e), WIDTH)]
    for overlap in story.overlaps:
        lines += ["", *_overlap(overlap)]
    if not story.violations:
        lines.append("no violation")
    return [*lines, *wrap(_assumptions(story), WIDTH)]


def _assumptions(story: Story) -> str:
    if story.intact is None:
        return "the trace breaks off before its end"
    why = "; ".join(story.why)
    kept = "assumptions intact" if story.intact else "assumptions broken"
    return kept + (f": {why}" if why else "")


def _overlap(overlap: Overlap) -> list[str]:
    first, second = overlap.first, overlap.second
    since, until = min(first.asked, second.asked), max(first.until, second.until)

    def bar(begin: int, end: int, mark: str) -> str:
        scale = _BARS / max(1, until - since)
        left, right = round((begin - since) * scale), round((end - since) * scale)
        return (" " * left + mark * max(1, right - left)).ljust(_BARS)

    def line(name: str, begin: int, end: int, mark: str) -> str:
        span = f"{ms(begin):>11} to {ms(end):>11} ms"
        return f"  {name:<8}{span}  |{bar(begin, end, mark)}|"

    return [
        overlap.text + ("" if overlap.judged else " (not counted as a violation)"),
        line(first.token, first.since, first.until, "="),
        line(second.token, second.since, second.until, "="),
        line("both", overlap.since, overlap.until, "!"),
    ]
