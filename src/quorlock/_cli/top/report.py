"""The facts as lines for people, fitted to a width and a height, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from quorlock._cli.inspection_view import HELD, PASSING, digests, holders, named, verdict
from quorlock._cli.text_layout import wrapped
from quorlock._cli.timestamps import timestamp
from quorlock._cli.top.facts import DOWN, HUNG, KEPT_OUT, UP, LockFacts, NodeColumns, TopNodeFacts

Styled = tuple[str, str]

_STYLES = {UP: "", DOWN: "red", HUNG: "yellow", KEPT_OUT: "cyan"}
_GAP = "  "
_WHOLE_MS = 10


class _Column(NamedTuple):
    """A column. Width 0: the rest of the line. Numbers are aligned to the right.

    drop: In a narrow line the columns with the largest number are dropped first; 0: never.
    """

    name: str
    width: int
    drop: int = 0
    right: bool = True


_NODES = (
    _Column("node", 0, right=False),
    _Column("state", 8, right=False),
    _Column("p50 ms", 6, 1),
    _Column("max ms", 6, 2),
    _Column("conns", 5, 4),
    _Column("keys", 6, 5),
    _Column("ops/s", 6, 3),
)
_LOCKS = (
    _Column("resource", 0, right=False),
    _Column("verdict", 11, 2, right=False),
    _Column("holder", 14, 3, right=False),
    _Column("nodes", 5, 5),
    _Column("left", 6, 1),
    _Column("seen", 7, 4),
    _Column("wait", 4, 2),
    _Column("changes", 7, 6),
)
_TRIED = _Column("tried", 5, 3)


def as_facts(facts: NodeColumns) -> dict[str, Any]:
    """Return the facts as `#/$defs/top` of docs/reference/cli.schema.json."""
    return {
        "time": timestamp(facts.at),
        "nodes": [
            node._asdict() | {"why": node.why or None, "lacks": list(node.lacks)}
            for node in facts.nodes
        ],
        "locks": [_lock_facts(lock) for lock in facts.locks],
        "more": facts.more,
        "notes": list(facts.notes),
    }


def _lock_facts(lock: LockFacts) -> dict[str, Any]:
    inspection = lock.inspection
    return {
        "resource": inspection.resource,
        "verdict": verdict(inspection),
        "holders": digests(inspection),
        "owner": inspection.owner,
        "ttl_left": inspection.ttl_left,
        "seen_for": round(lock.seen_for, 3),
        "changes": lock.changes,
        "waiters": inspection.waiters,
        "done": inspection.done,
        "tried": lock.tried,
    }


def as_lines(facts: NodeColumns, width: int, height: int | None) -> list[Styled]:
    """Return the facts as styled lines; height None: any number of lines."""
    lines = [(_head(facts), "bold"), ("", ""), *_nodes(facts.nodes, width), ("", "")]
    tail = [(line, "yellow") for note in _notes(facts) for line in wrapped(note, width)]
    columns = _LOCKS if all(lock.tried is None for lock in facts.locks) else (*_LOCKS, _TRIED)
    rows = [(_lock(lock, columns, width), _style(lock)) for lock in facts.locks]
    header = [(_header(columns, width), "dim")] if rows else [("nothing is held", "dim")]
    room = len(rows) if height is None else height - len(lines) - len(header) - len(tail)
    if room < len(rows):
        shown = max(0, room - 1)
        rows[shown:] = [(f"and {len(rows) - shown:,} more", "dim")]
    lines += [*header, *rows, *tail]
    return [(line[:width], style) for line, style in lines][:height]


def _head(facts: NodeColumns) -> str:
    n, up = len(facts.nodes), sum(node.state == UP for node in facts.nodes)
    held = sum(verdict(lock.inspection) == HELD for lock in facts.locks)
    quorum = f"{n} nodes, {up} up, quorum {n // 2 + 1}"
    return f"quorlock top   {facts.at:%H:%M:%S}   {quorum}   {held:,}{'+' * bool(facts.more)} held"


def _notes(facts: NodeColumns) -> Iterable[str]:
    lacks = dict.fromkeys(right for node in facts.nodes for right in node.lacks)
    if lacks:
        yield f"a dash: unknown without {' '.join(lacks)} (docs/how-to/acl.md)"
    if facts.more:
        yield f"{facts.more:,} more match and are not shown; narrow --match"
    yield from facts.notes


def _nodes(nodes: Sequence[TopNodeFacts], width: int) -> Iterable[Styled]:
    yield _header(_NODES, width), "dim"
    for node in nodes:
        cells = (
            node.state,
            *map(_ms, (node.latency_p50, node.latency_max)),
            *map(_short, (node.connections, node.keys, node.ops)),
        )
        yield _row(_NODES, (node.node, *cells), width, tail=True), _STYLES[node.state]
        if node.why:
            yield f"  {node.why}", _STYLES[node.state]


def _lock(lock: LockFacts, columns: Sequence[_Column], width: int) -> str:
    inspection = lock.inspection
    holder, count = next(iter(holders(inspection)), ("-", 0))
    readers = len(inspection.readers)
    shown = named(inspection, holder) or holder
    cells = (
        repr(inspection.resource)[1:-1],
        "done" if inspection.done else verdict(inspection),
        f"{shown} and {readers - 1} more" if readers > 1 else shown,
        f"{count}/{len(inspection.nodes)}",
        "-" if inspection.ttl_left is None else _age(inspection.ttl_left, ".1f"),
        _age(lock.seen_for, ".0f"),
        str(inspection.waiters),
        str(lock.changes),
        *([str(lock.tried)] if _TRIED in columns else []),
    )
    return _row(columns, cells, width)


def _style(lock: LockFacts) -> str:
    return "" if verdict(lock.inspection) in (HELD, PASSING) else "yellow"


def _header(columns: Sequence[_Column], width: int) -> str:
    return _row(columns, [column.name for column in columns], width)


def _row(
    columns: Sequence[_Column], cells: Sequence[str], width: int, *, tail: bool = False
) -> str:
    shown = _that_fit(columns, width)
    texts: list[str] = []
    for column, cell in zip(columns, cells, strict=True):
        if column not in shown:
            continue
        room = column.width or max(_NAME_MIN, width - _fixed(shown))
        text = _cut(cell, room, tail=tail)
        texts.append(text.rjust(room) if column.right else text.ljust(room))
    return _GAP.join(texts).rstrip()


_NAME_MIN = 8


def _that_fit(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Return the columns without those for which the line is too narrow."""
    shown = list(columns)
    while _fixed(shown) + _NAME_MIN > width and (last := max(shown, key=_drop)).drop:
        shown.remove(last)
    return shown


def _drop(column: _Column) -> int:
    return column.drop


def _fixed(columns: Sequence[_Column]) -> int:
    """Return the width of all columns but the first, with the gaps."""
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _cut(text: str, room: int, *, tail: bool) -> str:
    """Shorten a long text to its end (an address), or to both its ends."""
    if len(text) <= room:
        return text
    begin = 0 if tail else (room - 2) // 2
    return f"{text[:begin]}..{text[begin + 2 - room :]}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    ms = seconds * 1_000
    return f"{ms:.2f}" if ms < _WHOLE_MS else f"{ms:.0f}"


def _short(number: int | None) -> str:
    """Format a number in at most six characters."""
    if number is None:
        return "-"
    value, units = float(number), ["", "k", "M", "G"]
    most = 100_000
    while value >= most and len(units) > 1:
        value /= 1_000
        units.pop(0)
        most = 10_000
    return f"{value:,.0f}{units[0]}"


def _age(seconds: float, form: str) -> str:
    if seconds < 60:  # noqa: PLR2004 (seconds in a minute)
        return f"{seconds:{form}} s"
    if seconds < 3_600:  # noqa: PLR2004
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:  # noqa: PLR2004 (two days)
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.0f} d"
