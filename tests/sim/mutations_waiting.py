"""Waiting, broken on purpose in one way at a time; see `mutations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorlock._core import handing_on, redlock
from quorlock._core.claims import Claim, Keys
from quorlock._core.commands import LEAVE, Release, ScriptedAcquire
from quorlock._core.line import Line
from quorlock._core.places import RESERVED
from quorlock._core.time import FOR_EVER
from quorlock._core.waiter import Waiter
from quorlock.testing.fake_keys import with_place
from quorlock.testing.fake_node import Entry, FakeNode, Reply
from quorlock.testing.fake_queue import FakeQueue
from quorlock_sim.client_waiting import Waiting
from quorlock_sim.server import SimServer
from quorlock_sim.workload import SimWorker
from tests.sim.mutation import Mutation

if TYPE_CHECKING:
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy, Flow
    from quorlock._core.results import ReleaseResult
    from quorlock._core.rounds import Target
    from quorlock._core.time import Instant

# --- variants of the core ----------------------------------------------------------------------


def never_looks(self: Waiter) -> int:
    """A waiter only waits for calls."""
    return FOR_EVER if self.replies.is_complete else _next_look(self)


def only_the_first_looks(self: Waiter) -> int:
    """A waiter behind others only waits for calls."""
    return FOR_EVER if self.replies.ahead else _next_look(self)


_next_look = Waiter._next_look


def never_stalls(self: Line, at: int) -> None:
    """No waiter of a line asks the nodes while its process seems to hold the lock."""
    if not self._is_held:
        _advance(self, at)


_advance = Line.advance


def releases_without_place(
    self: Keys, token: bytes, place: bytes = b"", ticket: int = 0
) -> Release:
    """A lost round gives the token back, and does not queue again."""
    return Release(self.key, token)


def keeps_the_old_token(
    claim: Claim,
    token: bytes,
    target: Target | None,
    policy: Policy,
    entropy: Entropy,
    line: Line,
    at: Instant,
) -> Flow[ReleaseResult]:
    """The old token is not released after an exchange that did not win."""
    is_won = False
    try:
        member = None if target is None else line.take_next(at)
        if member is None or target is None:
            return (yield from redlock.release(claim, token, target, policy))
        is_won, tally, until, ended = yield from handing_on._hand_on(
            member, token, target, policy, entropy, line
        )
        return (yield from handing_on._result(tally, until, ended))
    finally:
        if not is_won:
            line.on_released(at)


# --- variants of the driver --------------------------------------------------------------------


def ignores_stray_calls(self: Waiting, link: Any, place: bytes, key: bytes) -> None:
    """A call for a place that is gone is not answered."""
    if place in self._flows:
        _on_call(self, link, place, key)


_on_call = Waiting.on_call


def ends_after_the_exchange(self: SimWorker, lease: Any) -> Any:
    """The lease is over locally only when its lock has been handed on."""
    yield from self._stop_renewal()
    flow, allowed = self._releases(lease)
    world, end = self.world, self.world.end
    from quorlock_sim.workload import CallRequest

    released = yield CallRequest("release", flow, lease.resource, lease.token, allowed)
    del released, world
    end(lease, "released")


# --- variants of the node ----------------------------------------------------------------------


def grants_to_any_place(self: FakeNode, command: ScriptedAcquire, at: int) -> Reply:
    """A waiter that is called gets the lock from any holder."""
    if command.place:
        self.keys.pop(command.key, None)
    return _acquire(self, command, at)


def takes_what_is_reserved(self: FakeNode, key: bytes, value: bytes, ttl_ms: int, at: int) -> Reply:
    """A reservation keeps no other caller out."""
    entry = self.alive(key, at)
    if entry is not None and (entry.value or b"").startswith(RESERVED):
        self.keys.pop(key)
    return _set_nx_px(self, key, value, ttl_ms, at)


_set_nx_px = FakeNode.set_nx_px


_acquire = FakeNode.acquire
_act = FakeQueue.act


def never_leaves(self: FakeQueue, place: bytes, action: int) -> int:
    """A waiter that leaves stays in the queue."""
    return 0 if action == LEAVE else _act(self, place, action)


def corrects_by_adding(self: FakeQueue, place: bytes, action: int) -> int:
    """A correction queues a place that has been called or removed since."""
    if action < LEAVE and self._takes_places():
        self._write(with_place(self.places, -action, place))
    return 0 if action < LEAVE else _act(self, place, action)


_pass_on = FakeQueue.pass_on


def reserves_for_ever(
    self: FakeQueue, own: bytes, *, is_read: bool, to_readers: bool
) -> tuple[bool, bool]:
    """A reservation does not expire."""
    passed = _pass_on(self, own, is_read=is_read, to_readers=to_readers)
    if passed[0]:
        entry = self._node.keys[self._lock_key]
        self._node.keys[self._lock_key] = Entry(entry.value, None)
    return passed


_call = SimServer.call


def calls_the_dead(self: SimServer, channel: bytes, text: bytes) -> int:
    """A place without a listener is not skipped."""
    return _call(self, channel, text) or 1


MUTATIONS = (
    Mutation("no looks", "idle", ((Waiter, "_next_look", never_looks),), "queues"),
    Mutation(
        "only the first looks",
        "idle",
        ((Waiter, "_next_look", only_the_first_looks),),
        "queues",
    ),
    Mutation("a line never stalls", "idle", ((Line, "advance", never_stalls),), "queues"),
    Mutation(
        "lost round does not queue again",
        "passes",
        ((Keys, "release", releases_without_place),),
        "queues",
    ),
    Mutation(
        "stray call not answered", "orphan", ((Waiting, "on_call", ignores_stray_calls),), "queues"
    ),
    Mutation(
        "exchange before the end of the lease",
        "overlap",
        ((SimWorker, "_release", ends_after_the_exchange),),
        "queues",
    ),
    Mutation(
        "a called waiter ignores the holder",
        "overlap",
        ((FakeNode, "acquire", grants_to_any_place),),
        "queues",
    ),
    Mutation(
        "reservation keeps no other out",
        "passes",
        ((FakeNode, "set_nx_px", takes_what_is_reserved),),
        "queues",
    ),
    Mutation(
        "correction adds a place", "orphan", ((FakeQueue, "act", corrects_by_adding),), "queues"
    ),
    Mutation(
        "old token kept after a lost exchange",
        "leftover",
        ((handing_on, "_release_in_line", keeps_the_old_token),),
        "queues",
    ),
    Mutation("place not removed", "orphan", ((FakeQueue, "act", never_leaves),), "queues"),
    Mutation(
        "reservation without expiry",
        "idle",
        ((FakeQueue, "pass_on", reserves_for_ever),),
        "queues",
    ),
    Mutation("dead place not skipped", "orphan", ((SimServer, "call", calls_the_dead),), "queues"),
)
