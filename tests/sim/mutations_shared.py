"""Breaks of locks that are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorlock._core.claims import Shared
from quorlock._core.commands import Acquire, Share
from quorlock.testing.fake_node import FakeNode
from quorlock.testing.fake_readers import FakeReaders
from tests.sim.mutation import Mutation

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock.testing.fake_keys import Reply

_release = FakeNode.release
_extend = FakeNode.extend


def releases_one_of_them(
    self: FakeNode,
    key: bytes,
    token: bytes | None,
    at: int,
    place: bytes = b"",
    action: int = 0,
    also: tuple[bytes, ...] = (),
) -> Reply:
    """A node counts readers: a release takes one away, also where its attempt was refused."""
    ends = FakeReaders(self, key, at).ends
    known = token if token in ends or not ends or not token else next(iter(ends))
    return _release(self, key, known, at, place, action, also)


def releases_all(
    self: FakeNode,
    key: bytes,
    token: bytes | None,
    at: int,
    place: bytes = b"",
    action: int = 0,
    also: tuple[bytes, ...] = (),
) -> Reply:
    """The release of one reader deletes the key."""
    if token in FakeReaders(self, key, at).ends:
        self.evict(key)
        return -3
    return _release(self, key, token, at, place, action, also)


def grants_beside_a_holder(self: FakeNode, command: Share, at: int) -> Reply:
    """A reader does not look for a holder that has the lock alone."""
    entry = self.alive(command.key, at)
    if entry is not None and entry.value is not None:
        return [1, at * 1_000, 0]
    return _share(self, command, at)


_share = FakeNode.share


def acquires_by_a_string(
    self: Shared,
    token: bytes,
    ttl_ms: int,
    policy: Policy,
    *,
    fenced: bool = False,
    place: bytes = b"",
    instead: bytes = b"",
) -> Share | Acquire:
    """Restore by SET NX, which makes the reader a holder that has the lock alone."""
    del fenced, instead
    if place:
        return Share(self.key, token, ttl_ms, 0, place)
    return Acquire(self.key, token, ttl_ms)


def extends_what_is_gone(
    self: FakeNode,
    key: bytes,
    token: bytes | None,
    ttl_ms: int,
    at: int,
    also: tuple[bytes, ...] = (),
    shared: bool = False,
) -> Reply:
    """The extension of a reader that a node has lost makes it again, and counts."""
    entry = self.alive(key, at)
    if shared and token and (entry is None or entry.places):
        FakeReaders(self, key, at).add(token, ttl_ms)
        return 1
    return _extend(self, key, token, ttl_ms, at, also, shared)


def ends_with_the_first(self: FakeReaders) -> bool:
    """End the key with the reader that ends first, after a release."""
    ends, entry = self.ends, self._node.alive(self._key, self._at)
    if not ends or entry is None:
        return False
    self._node.expire_at(self._key, entry, int(min(ends.values())), self._at)
    return True


def _mutation(name: str, rule: str, owner: type, attribute: str, broken: object) -> Mutation:
    return Mutation(f"shared: {name}", rule, ((owner, attribute, broken),), "shared")


MUTATIONS = (
    _mutation("readers are counted", "overlap", FakeNode, "release", releases_one_of_them),
    _mutation("a release deletes all readers", "overlap", FakeNode, "release", releases_all),
    _mutation("readers beside a holder", "overlap", FakeNode, "share", grants_beside_a_holder),
    _mutation(
        "the set ends with the first", "overlap", FakeReaders, "end_with_last", ends_with_the_first
    ),
    _mutation("extension makes a reader", "overlap", FakeNode, "extend", extends_what_is_gone),
    _mutation("restored as a holder", "overlap", Shared, "acquire", acquires_by_a_string),
)
