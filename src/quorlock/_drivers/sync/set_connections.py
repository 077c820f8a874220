"""The connections of one set: they come, are lost, and are made again."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from quorlock._drivers.clock import now
from quorlock._drivers.wait import is_stopped, next_look

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock._core.request import StopEvent
    from quorlock._core.time import Instant
    from quorlock._drivers.places import Places
    from quorlock._drivers.sync.connection import Connection, ConnectionOwner
    from quorlock._drivers.sync.connector import Connectors
    from quorlock._drivers.sync.polling import Poll
    from quorlock._protocol.pipeline import InvalidationCallback


class SetConnections:
    """One connection to each node, for one connection set. The connectors open them.

    Attributes:
        all: The connection to each node; None: none now.
        arrivals: New connections, until the owner of the set adopts them.
        is_incomplete: Some node has no connection here.
        have_script: All of them are known to have the script of releases.
        has_limits: Some node must not vote yet, or has a shorter limit for leases.
        used_at: When a round was sent over them last.
    """

    def __init__(
        self,
        connectors: Connectors,
        polled: Poll,
        places: Places,
        on_invalidation: InvalidationCallback | None,
    ) -> None:
        self.all: list[Connection | None] = [None] * len(connectors.all)
        self.arrivals: deque[Connection] = deque()
        self.is_incomplete = True
        self.have_script = False
        self.has_limits = False
        self.used_at = now()
        self._connectors = connectors
        self._polled = polled
        self._places = places
        self._on_invalidation = on_invalidation
        self._is_fresh = True  # the wait for connections of all nodes is still to come

    def check(self, receive: Callable[[], None]) -> None:
        """Find the connections that were closed while the set was idle.

        These are mostly back soon. As at first, a short wait is worth it: a lease on a bare
        majority needs each of its nodes to release it.
        """
        was_missing = self.is_incomplete
        receive()
        self._is_fresh |= self.is_incomplete and not was_missing

    def adopt(self, owner: ConnectionOwner) -> None:
        """Take the new connections, and request those that are missing."""
        while self.arrivals:
            arrival = self.arrivals[0]  # removed when it has its place: see `ConnectionSet.discard`
            index = arrival.node_state.index
            if self.all[index] not in (None, arrival):
                self.drop(index)
            self.all[index] = arrival
            self.have_script = False
            self.has_limits |= arrival.quarantine is not None or arrival.ttl_ms_max > 0
            arrival.owner, arrival.places = owner, self._places
            if self._on_invalidation is not None:
                arrival.pipeline.on_invalidation(self._on_invalidation)
            self._polled.add(arrival)
            self._places.on_connected(arrival)
            self.arrivals.popleft()
        self.is_incomplete = False
        for index, connection in enumerate(self.all):
            if connection is None or connection.lost:
                self.drop(index)
                self._connectors.all[index].request_connection(owner.add)

    def drop(self, index: int) -> None:
        """Close the connection to this node, if there is one."""
        self.is_incomplete = True
        connection = self.all[index]
        if connection is not None:
            self._polled.remove(connection)
            connection.close()
            self.all[index] = None

    def await_quorum(
        self, owner: ConnectionOwner, began: Instant, by: Instant, stop: StopEvent | None
    ) -> None:
        """Wait for a quorum while one may connect; for the remaining nodes once, a short while."""
        connectors, policy = self._connectors, self._connectors.policy
        # A little longer than the connect timeout, so that the reason of a failure is known.
        until = min(by, began + policy.connect_timeout + policy.node_timeout)
        has_quorum = False
        while connectors.may_connect(self.all):
            if not has_quorum and self._connected() >= policy.quorum:
                if not self._is_fresh:
                    break
                has_quorum, until = True, min(until, now() + policy.node_timeout)
            if now() >= until or is_stopped(stop):
                break
            connectors.changed.wait(
                lambda: self.arrivals or not connectors.may_connect(self.all),
                next_look(until, stop),
            )
            self.adopt(owner)
        self._is_fresh = False

    def _connected(self) -> int:
        return sum(connection is not None for connection in self.all)

    def check_script(self) -> bool:
        """Return whether all connections have the script of releases."""
        there = [connection for connection in self.all if connection is not None]
        self.have_script = all(one.pipeline.sent_scripts.has_release for one in there)
        return self.have_script

    def find_limits(self) -> None:
        """Look for limits again: a node may vote from now on."""
        there = [connection for connection in self.all if connection is not None]
        self.has_limits = any(one.quarantine or one.ttl_ms_max for one in there)

    def close(self) -> None:
        """Close all connections."""
        for index in range(len(self.all)):
            self.drop(index)

    def withdraw_requests(self, owner: ConnectionOwner) -> None:
        """Withdraw the requests of an owner that is closed: a node that is down keeps them."""
        for connector in self._connectors.all:
            connector.withdraw(owner.add)
        self.close_arrivals()

    def close_arrivals(self) -> None:
        """Close the connections that no owner adopts any more."""
        with contextlib.suppress(IndexError):
            while True:
                self.arrivals.popleft().close()
