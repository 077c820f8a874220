"""What an inspection comes to, for people, for programs and for `break`.

The nodes are asked once, in no common instant: a verdict says what their answers leave possible.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorlock import Inspection, NodeView

# What each verdict means is told in docs/cli.md.
HELD, FREE, SPLIT, LEFTOVER, UNREACHABLE = "held", "free", "split", "leftover", "unreachable"
_UNLESS = ", if nothing is extended"


def verdict(told: Inspection) -> str:
    """`Inspection.verdict`, which calls a resource free as soon as it can be acquired; here it is
    "leftover" then if a minority of nodes still has a key: nobody can hold it by that.
    """
    return LEFTOVER if told.verdict == FREE and holders(told) else told.verdict


def holders(told: Inspection) -> list[tuple[str, int]]:
    """Digests of the tokens that are there, and on how many nodes; the most common first."""
    return Counter(view.holder for view in told.nodes if view.holder is not None).most_common()


def digests(told: Inspection) -> list[str]:
    """Those that `break_lease` takes."""
    return [holder for holder, _ in holders(told)]


def as_facts(told: Inspection) -> dict[str, Any]:
    """It, as `#/$defs/resource` of docs/cli.schema.json."""
    return {
        "resource": told.resource,
        "verdict": verdict(told),
        "ttl_left": told.ttl_left,
        "nodes": [view._asdict() | {"error": view.error or None} for view in told.nodes],
    }


def as_text(told: Inspection) -> str:
    """It, in a line and one more for each node."""
    width = max(len(view.node) for view in told.nodes)
    lines = [f"  {view.node:{width}}  {_state(view)}" for view in told.nodes]
    return "\n".join([f"{told.resource!r}: {_sentence(told)}", *lines])


def as_line(told: Inspection) -> str:
    """It, in one short line, where there is no room for more."""
    return f"{told.resource!r}: {_sentence(told)}".removesuffix(_UNLESS)


def _sentence(told: Inspection) -> str:
    found, n = verdict(told), len(told.nodes)
    there = ", ".join(f"{holder} on {count} of {n} nodes" for holder, count in holders(told))
    if found == FREE:
        return "free"
    if found == HELD:
        return f"held by {there}{_end(told)}"
    if found == LEFTOVER:
        return f"leftover: nobody holds it, but there is a key of {there}"
    if found == SPLIT:
        return f"split: nobody is seen to hold a quorum, nor is one free; {there}{_end(told)}"
    silent = sum(bool(view.error) for view in told.nodes)
    return f"unreachable: {silent} of {n} nodes did not say{'; ' * bool(there)}{there}"


def _end(told: Inspection) -> str:
    if told.ttl_left is None:
        return ""
    return f"; a quorum is free in {told.ttl_left:.1f} s{_UNLESS}"


def _state(view: NodeView) -> str:
    if view.error:
        return view.error
    if view.holder is None:
        return "free"
    left = "without end" if view.ttl_left is None else f"{view.ttl_left:.1f} s left"
    return f"{view.holder}, {left}"
