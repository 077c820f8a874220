"""An inspection as text, as JSON, and as the digests that `break` takes.

The nodes are asked once, at slightly different times. A verdict says what their replies allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from quorlock import Inspection, NodeView

# docs/reference/cli.md explains each verdict.
HELD, FREE, SPLIT, LEFTOVER, UNREACHABLE = "held", "free", "split", "leftover", "unreachable"
PASSING = "passing"
_UNLESS = ", if nothing is extended"


def verdict(inspection: Inspection) -> str:
    """Return the verdict, or "leftover" for a free resource whose key a minority still has.

    `Inspection.verdict` calls a resource free as soon as it can be acquired. A key on a minority of
    nodes holds no lock.
    """
    return LEFTOVER if inspection.verdict == FREE and holders(inspection) else inspection.verdict


def holders(inspection: Inspection) -> list[tuple[str, int]]:
    """Return the tokens' digests and their number of nodes, the most common first."""
    alone = [view.holder for view in inspection.nodes if view.holder is not None]
    return Counter([*alone, *_readers(inspection)]).most_common()


def _readers(inspection: Inspection) -> list[str]:
    """Return the digest of every reader on every node."""
    return [reader.holder for view in inspection.nodes for reader in view.readers]


def digests(inspection: Inspection) -> list[str]:
    """Return the digests that `break_lease` takes."""
    return [holder for holder, _ in holders(inspection)]


def named(inspection: Inspection, holder: str) -> str | None:
    """Return the owner of the holder with this digest; None if its token has none."""
    views = inspection.nodes
    owners = [view.owner for view in views if view.holder == holder]
    owners += [one.owner for view in views for one in view.readers if one.holder == holder]
    return next(iter(owners), None)


def as_facts(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as `#/$defs/resource` of docs/reference/cli.schema.json."""
    return {
        "resource": inspection.resource,
        "verdict": verdict(inspection),
        "owner": inspection.owner,
        "ttl_left": inspection.ttl_left,
        "waiters": inspection.waiters,
        "done": inspection.done,
        "readers": [reader._asdict() for reader in inspection.readers],
        "nodes": [_node_facts(view) for view in inspection.nodes],
    }


def _node_facts(view: NodeView) -> dict[str, Any]:
    readers = [reader._asdict() for reader in view.readers]
    return view._asdict() | {"error": view.error or None, "readers": readers}


def as_text(inspection: Inspection, paint: Callable[[str], str] = str) -> str:
    """Return the inspection as one line, and one more for each node.

    Args:
        inspection: The resource.
        paint: Returns the verdict in its colour.
    """
    width = max(len(view.node) for view in inspection.nodes)
    lines = [f"  {view.node:{width}}  {_state(view)}" for view in inspection.nodes]
    found, sentence = verdict(inspection), _sentence(inspection)
    # Each sentence begins with its verdict.
    head = f"{inspection.resource!r}: {paint(found)}{sentence.removeprefix(found)}"
    return "\n".join([head, *lines])


def as_line(inspection: Inspection) -> str:
    """Return the inspection as one short line, for a screen with few lines."""
    return f"{inspection.resource!r}: {_sentence(inspection)}".removesuffix(_UNLESS)


def _sentence(inspection: Inspection) -> str:
    found, n = verdict(inspection), len(inspection.nodes)
    there = ", ".join(
        f"{shown_holder(inspection, holder)} on {count} of {n} nodes"
        for holder, count in holders(inspection)
    )
    if found == FREE:
        return "free"
    if found == HELD:
        return f"{_held(inspection)} {there}{waiting(inspection)}{_end(inspection)}"
    if found == PASSING:
        reserved = sum(view.reserved for view in inspection.nodes)
        left = f", and there is a key of {there}" * bool(there)
        calls = f"{reserved} of {n} nodes have called the next waiter"
        return f"passing: {calls}{left}{waiting(inspection)}"
    if found == LEFTOVER:
        return f"leftover: it is not held, but there is a key of {there}"
    if found == SPLIT:
        contenders = f"{there}{waiting(inspection)}{_end(inspection)}"
        return f"split: no holder has a quorum, nor is one free; {contenders}"
    silent = sum(bool(view.error) for view in inspection.nodes)
    return f"unreachable: {silent} of {n} nodes did not reply{'; ' * bool(there)}{there}"


def _held(inspection: Inspection) -> str:
    if inspection.shared:
        many = len(inspection.readers)
        return f"held, shared by {many}:" if many > 1 else "held, shared by"
    return "held: the work was done by" if inspection.done else "held by"


def shown_holder(inspection: Inspection, holder: str) -> str:
    """Return the owner of this digest, if it is known, and the digest."""
    owner = named(inspection, holder)
    return holder if owner is None else f"{owner} ({holder})"


def waiting(inspection: Inspection) -> str:
    """Return how many wait, after a comma; "" if none are known to."""
    waiters = inspection.waiters
    return f", {waiters:,} {'wait' if waiters > 1 else 'waits'}" if waiters else ""


def _end(inspection: Inspection) -> str:
    if inspection.ttl_left is None:
        return ""
    if inspection.done:
        return f"; it counts as done for {inspection.ttl_left:.1f} s more"
    return f"; a quorum is free in {inspection.ttl_left:.1f} s{_UNLESS}"


def _state(view: NodeView) -> str:
    if view.error:
        return view.error
    if view.holder is None and not (view.reserved or view.readers):
        return "free"
    left = "without end" if view.ttl_left is None else f"{view.ttl_left:.1f} s left"
    if view.readers:
        many = len(view.readers)
        return f"{many} {'readers' if many > 1 else 'reader'}, {left}"
    done = "done, " * view.done
    return f"{done}{view.holder or 'kept for the waiter that it has called'}, {left}"
