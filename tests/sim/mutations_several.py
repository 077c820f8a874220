"""Breaks of claims on several keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core import acquiring
from quorlock._core.claims import Keys
from quorlock._core.commands import Release
from quorlock._core.pending_releases import PendingReleases
from quorlock._core.queueing import end_of
from quorlock._core.time import NS_PER_MS
from quorlock.testing.fake_node import FakeNode
from tests.sim.mutation import Mutation

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy
    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import AttemptFailed
    from quorlock._core.time import Instant
    from quorlock.testing.fake_keys import Reply

_missing = FakeNode._missing
_add = PendingReleases.add


def sets_the_first_only(
    self: FakeNode, keys: tuple[bytes, ...], token: bytes, ours: set[bytes], at: int
) -> Any:
    """A node looks at all keys and sets one."""
    missing = _missing(self, keys, token, ours, at)
    return dict.fromkeys([*missing][:1]) if isinstance(missing, dict) else missing


def grants_in_part(
    self: FakeNode, keys: tuple[bytes, ...], token: bytes, ours: set[bytes], at: int
) -> Any:
    """A node sets those that are free, and grants if it is one at least."""
    free = {key: None for key in keys if self.alive(key, at) is None}
    return free or _missing(self, keys, token, ours, at)


def releases_the_first_only(
    self: Keys, token: bytes, place: bytes = b"", ticket: int = 0
) -> Release:
    return Release(self.key, token, place, ticket)


def narrows(self: PendingReleases, release: Release, run_id: str, now: int) -> None:
    """A pending release keeps one key."""
    _add(self, release._replace(also=()), run_id, now)


def issues_to_the_first_only(
    self: FakeNode, keys: tuple[bytes, ...], grid_ms: int, at: int
) -> Reply:
    """The fence is above one counter."""
    return _next_fence(self, keys[:1], grid_ms, at)


_next_fence = FakeNode._next_fence


def never_pauses(*_: object) -> None:
    """A waiter joins the next queue at once."""


def pauses_as_on_a_fast_network(
    request: AcquireRequest, failed: AttemptFailed, policy: Policy, entropy: Entropy, attempts: int
) -> Instant | None:
    """A waiter pauses for up to 32 ms, however long its attempts take."""
    del policy
    if not request.claim.keys[1:] or attempts < 3:
        return None
    pause = entropy.between(0, 4 * NS_PER_MS << min(attempts - 3, 3))
    return min(end_of(request), failed.ended + pause)


MUTATIONS = (
    Mutation(
        "several keys: a grant sets the first only",
        "overlap",
        ((FakeNode, "_missing", sets_the_first_only),),
        "several",
    ),
    Mutation(
        "several keys: a node grants in part",
        "overlap",
        ((FakeNode, "_missing", grants_in_part),),
        "several",
    ),
    Mutation(
        "several keys: released at the first only",
        "leftover",
        ((Keys, "release", releases_the_first_only),),
        "several",
    ),
    Mutation(
        "several keys: pending release narrowed",
        "leftover",
        ((PendingReleases, "add", narrows),),
        "several",
    ),
    Mutation(
        "several keys: fence above one counter",
        "fence",
        ((FakeNode, "_next_fence", issues_to_the_first_only),),
        "several",
    ),
    Mutation(
        "several keys: queues exchanged without a pause",
        "idle",
        ((acquiring, "_rejoin_at", never_pauses),),
        "loops",
    ),
    Mutation(
        "several keys: a pause shorter than an attempt",
        "idle",
        ((acquiring, "_rejoin_at", pauses_as_on_a_fast_network),),
        "loops",
    ),
)
