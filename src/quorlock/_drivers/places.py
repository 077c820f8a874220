"""The places of waiters in the queues of the nodes, and the calls for them.

All waiters that share connections share one inbox. Every one of these connections subscribes to it
once a waiter needs it.
"""

from __future__ import annotations

import binascii
import os
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Protocol

from quorlock._core.commands import LEAVE, Release
from quorlock._core.effects import CALL, CHANGED
from quorlock._core.places import INBOX_DIGITS, channel_of, enlisted_place, place_of
from quorlock._core.rounds import replied
from quorlock._core.votes import GRANTED, NO_REPLY
from quorlock._protocol.encoding import encode, encode_message
from quorlock._protocol.pipeline import NO_RECEIVER, PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorlock._core.config import Policy
    from quorlock._core.time import Instant
    from quorlock._protocol.peer import PeerNode
    from quorlock._protocol.pipeline import ReplyReceiver


# The latest places whose flows have ended are left again on each new connection.
_ENDED_MAX = 256


class CallingConnection(Protocol):
    """A connection over which a node calls waiters."""

    node_state: PeerNode

    @property
    def replied_at(self) -> Instant:
        """The time of the latest reply from its server."""
        ...

    def listen(self, inbox: bytes) -> bool:
        """Have the node call this inbox; return whether it can, as far as known."""
        ...

    def send(self, data: bytes, request: PendingRequest) -> bool:
        """Send a request to this node alone; return false if the connection is lost."""
        ...


class Places:
    """The places of the waiters that share connections, by name.

    Attributes:
        expected: The calls of these places, as bytes that need not be parsed, and the receiver of
            each.
    """

    def __init__(self, policy: Policy) -> None:
        self.expected: dict[bytes, ReplyReceiver] = {}
        self._policy = policy
        self._inbox = b""
        self._serials = count(1)
        self._receivers: dict[bytes, ReplyReceiver] = {}
        self._keys: dict[bytes, tuple[bytes, bytes]] = {}  # of each place, and its call in bytes
        self._by_key: dict[bytes, dict[bytes, None]] = {}  # the places for each lock, in order
        self._ended: deque[tuple[bytes, bytes]] = deque(maxlen=_ENDED_MAX)  # and their lock keys

    @property
    def in_use(self) -> bool:
        """Return whether a flow has a place."""
        return bool(self._receivers)

    def enlist(
        self, receiver: ReplyReceiver, key: bytes, connections: Iterable[CallingConnection]
    ) -> bytes:
        """Return a new place for a lock, whose calls the receiver gets, and changes of its key.

        b"" if too few nodes can call.
        """
        if not self._inbox:
            # As for tokens: importing `secrets` is slow.
            self._inbox = binascii.hexlify(os.urandom(INBOX_DIGITS // 2))
        # All of them, not only a quorum.
        if sum([each.listen(self._inbox) for each in connections]) < self._policy.quorum:
            return b""
        place = place_of(self._inbox, next(self._serials), 2 * self._policy.node_timeout)
        self._receivers[place] = receiver
        call = encode_message(channel_of(self._inbox), b"%b %b" % (place, key))
        self._keys[place] = key, call
        self._by_key.setdefault(key, {})[place] = None
        self.expected[call] = receiver
        return place

    def remove(self, places: Iterable[bytes]) -> None:
        """Forget the places of a flow that has ended."""
        for place in places:
            self._receivers.pop(place, None)
            key, call = self._keys.pop(place, (b"", b""))
            if call:
                self._ended.append((place, key))
            self.expected.pop(call, None)
            same_lock = self._by_key.get(key, {})
            same_lock.pop(place, None)
            if not same_lock:
                self._by_key.pop(key, None)

    def on_connected(self, connection: CallingConnection) -> None:
        """Subscribe on a new connection, for the flows that wait already.

        Flows that have ended may have left their queues in vain, over the lost connection. As this
        process listens again, the node would count them as waiters: a writer keeps readers out.
        """
        for place, key in list(self._ended):
            self._leave(connection, place, key)
        if self.in_use:
            connection.listen(self._inbox)

    def on_call(self, connection: CallingConnection, place: bytes, key: bytes) -> None:
        """Deliver a call to the flow; if that has ended, let the node call the next waiter.

        Without a place it is a change of the key, and without a key perhaps of all keys.
        """
        at = connection.replied_at
        if not place:
            for changed in [key] if key else list(self._by_key):
                self._on_change(connection.node_state.index, changed, at)
            return
        receiver = self._receivers.get(enlisted_place(place))
        if receiver is not None and not receiver.over:
            receiver.deliver(replied((CALL, connection.node_state.index, GRANTED, at)))
        else:
            self._leave(connection, place, key)

    def _leave(self, connection: CallingConnection, place: bytes, key: bytes) -> None:
        leave = Release(key, b"", place, LEAVE)
        request = PendingRequest(leave, NO_RECEIVER, 0, connection.replied_at)
        connection.send(encode(leave), request)

    def _on_change(self, node: int, key: bytes, at: Instant) -> None:
        """Deliver it to the first waiter: the first of a queue looks, and later ones do not."""
        for place in self._by_key.get(key, ()):
            receiver = self._receivers.get(place)
            if receiver is not None and not receiver.over:
                receiver.deliver(replied((CHANGED, node, NO_REPLY, at)))
                return
