"""The oracle's checks of fences: they are unique, and each is larger than all earlier ones.

This holds even if two clients hold the lock at the same time. It does not assume the clients'
clocks, but that the values which a node issues rise over its life.  So a node that forgets them
must be quarantined for max_ttl, and its clock may not be set back by half of that. Both are derived
from the losses and the clocks.  All other promises are in `oracle`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from quorlock._core.tally import quorum
from quorlock._core.time import NS_PER_MS
from quorlock._protocol.encoding import COUNTER
from quorlock_sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from quorlock.testing.fake_node import Entry, FakeNode
    from quorlock_sim.history import LeaseRecord
    from quorlock_sim.world import World


class Issue(NamedTuple):
    """A fence that a node issued, with the instant, the lock's key and the token."""

    at: int
    node: int
    key: bytes
    token: bytes
    fence: int


class Loss(NamedTuple):
    """The loss of a node's counter: from this instant on it is lower than before, or gone."""

    at: int
    node: int
    key: bytes


def losses(at: int, index: int, node: FakeNode, before: Mapping[bytes, Entry]) -> Iterator[Loss]:
    """Yield the counters that are lower than before."""
    for key, entry in before.items():
        if key.startswith(COUNTER) and entry.value is not None:
            after = node.keys.get(key)
            if after is None or after.value is None or int(after.value) < int(entry.value):
                yield Loss(at, index, key.removeprefix(COUNTER))


def violations(world: World) -> Iterator[Violation]:
    """Yield the violations of the promises about fences."""
    fenced = [lease for lease in world.history.leases if lease.fence]
    for lease in fenced:
        yield from _given_by_too_few(lease, world)
    if any(_beyond(world)):
        return
    by_key: dict[bytes, list[LeaseRecord]] = {}
    for lease in fenced:
        for key in lease.claim.keys:
            by_key.setdefault(key, []).append(lease)
    for leases in by_key.values():
        yield from _twice(leases)
        yield from _falling(leases)


def _given_by_too_few(lease: LeaseRecord, world: World) -> Iterator[Violation]:
    """Yield the lease if fewer than a quorum issued this fence to this token."""
    issued = {
        i.node for i in world.history.issues if (i.token, i.fence) == (lease.token, lease.fence)
    }
    if len(issued) < quorum(world.policy.n):
        text = f"{_named(lease)}, which {len(issued)} of {world.policy.n} nodes have issued to it"
        yield Violation("verdict", text, lease.since, {"token": lease.token})


def _twice(leases: Iterable[LeaseRecord]) -> Iterator[Violation]:
    """Yield the leases that share a fence."""
    for one, other in pairwise(sorted(leases, key=lambda lease: lease.fence)):
        if one.fence == other.fence:
            text = f"{_named(one)}, and so has {other.token.decode()} of c{other.client}"
            yield Violation("fence", text, max(one.since, other.since), {"fence": one.fence})


def _falling(leases: Iterable[LeaseRecord]) -> Iterator[Violation]:
    """Yield the leases whose fence is smaller than one granted before their attempt began."""
    highest: LeaseRecord | None = None
    granted = sorted(leases, key=lambda lease: lease.since)
    begun = sorted(leases, key=lambda lease: lease.asked_at)
    for lease in begun:
        while granted and granted[0].since < lease.asked_at:
            before = granted.pop(0)
            highest = before if highest is None or before.fence > highest.fence else highest
        if highest is not None and lease.fence < highest.fence:
            text = f"{_named(lease)}, though {_named(highest)} before it asked"
            yield Violation("fence", text, lease.since, {"fence": lease.fence})


def _named(lease: LeaseRecord) -> str:
    return f"{lease.token.decode()} of c{lease.client} has the fence {lease.fence}"


def _beyond(world: World) -> Iterator[str]:
    """Yield the faults that break the assumptions of fences, in words."""
    limit = world.policy.max_ttl
    for server in world.servers:
        if -server.wall.steps()[0] >= limit // 2 and any(
            loss.node == server.index for loss in world.history.losses
        ):
            yield f"n{server.index} forgot counters, and its clock was set back"
    for loss in world.history.losses:
        if any(_too_early(issue, loss, limit) for issue in world.history.issues):
            yield f"n{loss.node} forgot counters at {loss.at / NS_PER_MS:.3f} ms, and issued more"


def _too_early(issue: Issue, loss: Loss, limit: int) -> bool:
    same = (issue.node, issue.key) == (loss.node, loss.key)
    return same and loss.at <= issue.at < loss.at + limit
