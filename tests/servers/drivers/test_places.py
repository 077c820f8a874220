"""The places of waiters: which of them gets a call, or the report of a changed key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quorlock._core.commands import LEAVE, Release
from quorlock._core.effects import CALL, CHANGED
from quorlock._core.rounds import NodeReply
from quorlock._drivers.places import Places
from quorlock._protocol.pipeline import PendingRequest
from tests.harness.support.script import policy_of


class Connection:
    """A connection whose node can call; what is sent over it."""

    replied_at = 5

    def __init__(self, index: int) -> None:
        self.node_state: Any = SimpleNamespace(index=index)
        self.sent: list[PendingRequest] = []

    def listen(self, inbox: bytes) -> bool:
        return bool(inbox)

    def send(self, data: bytes, request: PendingRequest) -> bool:
        self.sent.append(request)
        return bool(data)


class Receiver:
    """A flow that waits, and what it got: rounds and nodes."""

    over = False
    round = 0

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []

    def deliver(self, reply: NodeReply) -> None:
        self.got.append((reply.round, reply.node))


def test_calls_and_changes_find_their_waiters() -> None:
    """A call goes to its place, a change to the waiter of that lock, FLUSHALL to all."""
    places, nodes = Places(policy_of(3)), [Connection(index) for index in range(3)]
    one, other = Receiver(), Receiver()
    place = places.enlist(one, b"a", nodes)
    places.enlist(other, b"b", nodes)
    places.on_call(nodes[1], place, b"a")
    places.on_call(nodes[2], b"", b"a")
    places.on_call(nodes[2], b"", b"c")
    places.on_call(nodes[0], b"", b"")
    assert one.got == [(CALL, 1), (CHANGED, 2), (CHANGED, 0)]
    assert other.got == [(CHANGED, 0)]


def test_a_change_goes_to_the_first_of_many_waiters_for_a_lock() -> None:
    """The first of them in the queue looks. Once it has ended, the next one does."""
    places, node = Places(policy_of(1)), Connection(0)
    first, second, third = Receiver(), Receiver(), Receiver()
    waiting = [places.enlist(receiver, b"a", [node]) for receiver in (first, second, third)]
    places.on_call(node, b"", b"a")
    places.remove([waiting[0]])
    second.over = True
    places.on_call(node, b"", b"")
    assert (first.got, second.got, third.got) == ([(CHANGED, 0)], [], [(CHANGED, 0)])


def test_ended_waiters_leave_again_on_a_new_connection() -> None:
    """The request may be lost with the old one. Only the latest places are kept."""
    places, node, last = Places(policy_of(1)), Connection(0), b""
    for _ in range(300):
        last = places.enlist(Receiver(), b"a", [node])
        places.remove([last, last])
    waiting = places.enlist(Receiver(), b"a", [node])
    new = Connection(0)
    places.on_connected(new)
    left = [request.command for request in new.sent]
    assert left[-1] == Release(b"a", b"", last, LEAVE)
    assert (len(left), len(set(left))) == (256, 256)
    assert Release(b"a", b"", waiting, LEAVE) not in left


def test_nothing_is_kept_of_a_flow_that_has_ended() -> None:
    """Calls for it are answered, changes ignored; a later place of that lock gets both."""
    places, nodes = Places(policy_of(3)), [Connection(index) for index in range(3)]
    early, late = Receiver(), Receiver()
    first, second = places.enlist(early, b"a", nodes), places.enlist(late, b"a", nodes)
    places.remove([first])
    places.on_call(nodes[0], first, b"a")
    places.on_call(nodes[0], b"", b"a")
    assert (early.got, late.got) == ([], [(CHANGED, 0)])
    assert [request.command for request in nodes[0].sent] == [Release(b"a", b"", first, LEAVE)]
    late.over = True
    places.on_call(nodes[1], b"", b"a")
    places.remove([second])
    places.on_call(nodes[1], b"", b"")
    assert late.got == [(CHANGED, 0)]
    assert not places.in_use
    inner: Any = places
    assert (inner._keys, inner._by_key) == ({}, {})
