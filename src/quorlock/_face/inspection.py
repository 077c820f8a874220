"""Who holds a resource, node by node, and what that comes to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.outcomes import Cause
from quorlock._core.quorum import quorum

if TYPE_CHECKING:
    from quorlock._core.outcomes import Answer


class NodeView(NamedTuple):
    """What one node says of a resource.

    Attributes:
        node: its address.
        holder: a digest of the token there (tokens are secrets); None if there is none.
        ttl_left: seconds until the key expires; None if absent or if it never does.
        error: why the node could not say; "" if it could.
    """

    node: str
    holder: str | None
    ttl_left: float | None
    error: str


class Inspection(NamedTuple):
    """What all nodes say of a resource.

    Attributes:
        resource: its name.
        verdict: "held" (one holder on a quorum), "free" (a quorum has no key), "split" (neither:
            leftovers or contenders), "unreachable" (fewer than a quorum could say).
        ttl_left: seconds until a quorum of nodes is free by itself; None if free or never.
        nodes: the single views.
    """

    resource: str
    verdict: str
    ttl_left: float | None
    nodes: tuple[NodeView, ...]


def inspection(
    resource: str, addresses: tuple[str, ...], answers: tuple[Answer, ...], ttl_left_ms: int | None
) -> Inspection:
    """Make the report of a round of Inspect."""
    views = tuple(map(_view, addresses, answers))
    verdict = _verdict(views)
    left = ttl_left_ms / 1000 if ttl_left_ms and verdict != "free" else None
    return Inspection(resource, verdict, left, views)


def token_of(holder: str, answers: tuple[Answer, ...]) -> bytes | None:
    """The token among these answers that is shown as this digest."""
    tokens = {answer.holder for answer in answers if answer.holder is not None}
    return next((token for token in tokens if digest(token) == holder), None)


def digest(token: bytes) -> str:
    """Tells tokens apart without giving them away."""
    from hashlib import sha256  # here: most programs never look, and it loads all of OpenSSL

    return sha256(token).hexdigest()[:12]


def _view(address: str, answer: Answer) -> NodeView:
    left = answer.ttl_left_ms
    return NodeView(
        node=address,
        holder=digest(answer.holder) if answer.holder is not None else None,
        ttl_left=left / 1000 if left is not None and left >= 0 else None,
        error="" if answer.cause in (Cause.HELD, Cause.ABSENT) else answer.reason,
    )


def _verdict(views: tuple[NodeView, ...]) -> str:
    needed = quorum(len(views))
    told = [view for view in views if not view.error]
    if len(told) < needed:
        return "unreachable"
    holders = Counter(view.holder for view in told)
    if holders[None] >= needed:
        return "free"
    del holders[None]
    return "held" if holders and max(holders.values()) >= needed else "split"
