"""Judges the fences of a world: unique, and larger than every one that was given before.

They must be, also where two hold the lock at once: what that takes for granted are not the clients'
clocks, but that a node's issued values rise over its life.  So a node may not forget them without
keeping out for max_ttl, and its clock may not be set back by half of that; whether it was so is
read off the losses and the clocks.  Leaves all other promises to `checker`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.quorum import quorum
from quorlock._core.time import NS_PER_MS
from quorlock._wire.packing import COUNTER
from quorlock.testing.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from quorlock.testing.history import Lease
    from quorlock.testing.node import Entry, Node
    from quorlock.testing.world import World


class Issue(NamedTuple):
    """A value that a node issued: when, which node, of which lock, to whom."""

    at: int
    node: int
    key: bytes
    token: bytes
    fence: int


class Loss(NamedTuple):
    """A node holds a lower counter than it did, or none: since when, which node, of which lock."""

    at: int
    node: int
    key: bytes


def losses(at: int, index: int, node: Node, before: Mapping[bytes, Entry]) -> Iterator[Loss]:
    """Which counters are lower than they were."""
    for key, entry in before.items():
        if key.startswith(COUNTER) and entry.value is not None:
            after = node.keys.get(key)
            if after is None or after.value is None or int(after.value) < int(entry.value):
                yield Loss(at, index, key.removeprefix(COUNTER))


def violations(world: World) -> Iterator[Violation]:
    """What is wrong with the fences of a world."""
    fenced = [lease for lease in world.history.leases if lease.fence]
    for lease in fenced:
        yield from _given_by_too_few(lease, world)
    if any(_beyond(world)):
        return
    by_resource: dict[str, list[Lease]] = {}
    for lease in fenced:
        by_resource.setdefault(lease.resource, []).append(lease)
    for leases in by_resource.values():
        yield from _twice(leases)
        yield from _falling(leases)


def _given_by_too_few(lease: Lease, world: World) -> Iterator[Violation]:
    """A majority must have issued this very value to this very token."""
    issued = {
        i.node for i in world.history.issues if (i.token, i.fence) == (lease.token, lease.fence)
    }
    if len(issued) < quorum(world.policy.n):
        text = f"{_named(lease)}, which {len(issued)} of {world.policy.n} nodes have issued to it"
        yield Violation("verdict", text, lease.since, {"token": lease.token})


def _twice(leases: Iterable[Lease]) -> Iterator[Violation]:
    """Two leases with the same fence."""
    for one, other in pairwise(sorted(leases, key=lambda lease: lease.fence)):
        if one.fence == other.fence:
            text = f"{_named(one)}, and so has {other.token.decode()} of c{other.client}"
            yield Violation("fence", text, max(one.since, other.since), {"fence": one.fence})


def _falling(leases: Iterable[Lease]) -> Iterator[Violation]:
    """Who began to ask after another was granted must have the larger one."""
    highest: Lease | None = None
    granted = sorted(leases, key=lambda lease: lease.since)
    begun = sorted(leases, key=lambda lease: lease.asked_at)
    for lease in begun:
        while granted and granted[0].since < lease.asked_at:
            before = granted.pop(0)
            highest = before if highest is None or before.fence > highest.fence else highest
        if highest is not None and lease.fence < highest.fence:
            text = f"{_named(lease)}, though {_named(highest)} before it asked"
            yield Violation("fence", text, lease.since, {"fence": lease.fence})


def _named(lease: Lease) -> str:
    return f"{lease.token.decode()} of c{lease.client} has the fence {lease.fence}"


def _beyond(world: World) -> Iterator[str]:
    """What no fence can stand, in words."""
    limit = world.policy.max_ttl
    for server in world.servers:
        if -server.wall.steps()[0] >= limit // 2 and any(
            loss.node == server.index for loss in world.history.losses
        ):
            yield f"n{server.index} forgot counters, and its clock was set back"
    for loss in world.history.losses:
        if any(_too_early(issue, loss, limit) for issue in world.history.issues):
            yield f"n{loss.node} forgot counters at {loss.at / NS_PER_MS:.3f} ms, and went on"


def _too_early(issue: Issue, loss: Loss, limit: int) -> bool:
    same = (issue.node, issue.key) == (loss.node, loss.key)
    return same and loss.at <= issue.at < loss.at + limit
