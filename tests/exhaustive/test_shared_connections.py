"""An exception anywhere in a thread that shares a connection set with others.

Only the main thread gets Ctrl-C, and it shares none. But other code may raise an exception in any
thread (`PyThreadState_SetAsyncExc`). Then no key is left, and the other threads continue: the
followers of an interrupted leader have lost its connections, and try again.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import Redlock
from quorlock._core.commands import Acquire
from quorlock._core.effects import Send
from quorlock._core.time import NS_PER_S
from quorlock._core.votes import Vote
from quorlock._drivers.sync import pool as pool_module
from quorlock._drivers.sync.connection import Connection, Inbox
from quorlock._drivers.sync.connection_set import ConnectionSet
from quorlock._drivers.sync.connector import Connector
from quorlock._drivers.sync.pool import Borrower, ConnectionPool
from tests.exhaustive.test_interrupts import CLEAN_WITHIN, POINTS_MAX, THOROUGH, Interrupter
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorlock._core.routing import Route
    from quorlock._core.time import Instant
    from quorlock.testing.servers import Server, Servers

pytestmark = pytest.mark.usefixtures("owned_connections")

OTHERS = 3
# A busy machine may start all threads late.
PATIENT: dict[str, Any] = {"node_timeout": 2.0, "connect_timeout": 10.0, "outage_timeout": 30.0}


class Leader(Borrower):
    """A borrower that sends and receives for others, as long as a test wants it."""

    is_urgent = shares = True

    def __init__(self) -> None:
        self.follows = False

    def follow(self, pool: ConnectionPool) -> None:
        del pool
        self.follows = True


def lead(pool: ConnectionPool) -> ConnectionSet:
    """Borrow a set as a leader: the release of an earlier victim may have it for a moment."""
    while True:
        leader = Leader()
        connection_set: ConnectionSet | None = pool.borrow(leader)
        assert connection_set is not None
        if not leader.follows:
            return connection_set
        pool.leave(leader, connection_set)


def lead_all(pool: ConnectionPool) -> ConnectionSet:
    """Borrow the only set: a thread that reads late replies may have the first one for a moment."""
    while True:
        connection_set = lead(pool)
        if pool.all() == [connection_set]:
            return connection_set
        connection_set.discard()
        pool.give_back(connection_set)


def lead_connected(redlock: Redlock) -> tuple[ConnectionPool, ConnectionSet]:
    """Borrow the only set, with connections to all nodes."""
    assert redlock.lock("first").acquire().release()
    pool = redlock._session.driver._pool
    connection_set = lead_all(pool)
    connection_set.prepare()
    return pool, connection_set


class Victim(threading.Thread):
    """A thread that acquires and releases, and is interrupted at its k-th line."""

    def __init__(
        self, redlock: Redlock, k: int, resource: str = "shared victim", timeout: float = 5.0
    ) -> None:
        super().__init__()
        self.outcome = ""
        self.at = Interrupter(k, "line")
        self._lock = redlock.lock(resource, timeout=timeout)

    def run(self) -> None:
        try:
            with self.at:
                assert self._lock.acquire().release()
        except KeyboardInterrupt:
            self.outcome = "interrupted"
        else:
            self.outcome = "complete"


def faults(redlock: Redlock, nodes: Sequence[Server]) -> list[str]:
    """Return what is left."""
    pool: ConnectionPool = redlock._session.driver._pool
    left: dict[str, list[Any]] = {}

    def is_clean() -> bool:
        left.update(
            borrowed=list(pool._owners.values()),
            followers=[one.followers for one in pool.all() if one.followers],
            queued=list(pool._queue),
            keys=[key for node in nodes for key in node.execute("KEYS", "shared *")],
        )
        return not any(left.values())

    return [] if until(is_clean, CLEAN_WITHIN) else [f"{left}"]


def every_line(run: Callable[[int], tuple[Interrupter, list[str]]], stride: int) -> None:
    """Interrupt at every line, until the call completes."""
    found: list[str] = []
    first = 1 if THOROUGH else random.randint(1, stride)
    for k in range(first, POINTS_MAX, 1 if THOROUGH else stride):
        at, left = run(k)
        if not at.where:
            break
        found += [f"{k}: {at.where}: {what}" for what in left]
    else:
        pytest.fail("it never completed")
    assert not found, "\n".join(found)


def test_a_follower(nodes: Servers) -> None:
    """Another thread sends and receives for it all the time."""
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        assert redlock.lock("first").acquire().release()
        pool = redlock._session.driver._pool

        def run(k: int) -> tuple[Interrupter, list[str]]:
            connection_set = lead(pool)
            connection_set.prepare()
            connection_set.takes_rounds = True
            victim = Victim(redlock, k)
            victim.start()
            while victim.is_alive():
                connection_set.drain()
            pool.give_back(connection_set)
            return victim.at, faults(redlock, nodes)

        every_line(run, 17)


def test_followers_of_an_interrupted_leader(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them leads its closed set, which requests no connection. They get their locks."""
    lead_set, request = ConnectionPool.lead, Connector.request_connection
    led, requested = list[ConnectionSet](), list[ConnectionSet]()

    def noting_lead(self: ConnectionPool, follower: Borrower, one: ConnectionSet) -> bool:
        is_leader = lead_set(self, follower, one)
        led.extend([one] * is_leader)
        return is_leader

    def noting_request(self: Connector, receive: Any) -> None:
        requested.append(receive.__self__)
        request(self, receive)

    monkeypatch.setattr(ConnectionPool, "lead", noting_lead)
    monkeypatch.setattr(Connector, "request_connection", noting_request)
    with Redlock(nodes.urls, **PATIENT) as redlock:
        assert redlock.lock("first").acquire().release()
        pool = redlock._session.driver._pool
        for is_sent in (False, True):
            led.clear()
            requested.clear()
            connection_set = lead_all(pool)
            connection_set.prepare()
            connection_set.takes_rounds = True
            names = [f"shared {number}" for number in range(OTHERS)]
            followers = [Victim(redlock, 0, name) for name in names]
            for follower in followers:
                follower.start()
            assert until(lambda: len(connection_set._submissions) == OTHERS)  # noqa: B023
            if is_sent:
                connection_set._send_submissions()
            connection_set.discard()
            pool.give_back(connection_set)
            for follower in followers:
                follower.join(30)
                assert follower.outcome == "complete"
            assert connection_set not in led
            assert connection_set not in requested
            assert faults(redlock, nodes) == []


def test_a_closed_set_takes_no_follower(nodes: Servers) -> None:
    """An acquire that comes before its interrupted leader has returned it waits. There it would
    lose its only attempt.
    """
    with Redlock(nodes.urls, **PATIENT) as redlock:
        pool, connection_set = lead_connected(redlock)
        connection_set.takes_rounds = True
        connection_set.discard()
        other = Victim(redlock, 0, "shared", timeout=0)
        other.start()
        assert until(lambda: bool(pool._queue))
        pool.give_back(connection_set)
        other.join(30)
        assert other.outcome == "complete"
        assert faults(redlock, nodes) == []


def test_a_closed_set_is_visited_as_a_follower_submits(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visit drops a connection between the routing of a round and its sending."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        pool, connection_set = lead_connected(redlock)
        connection_set.takes_rounds = True
        follower, route = Victim(redlock, 0), connection_set._route
        follower.start()
        assert until(lambda: bool(connection_set._submissions))

        def visited_route(index: int, effect: Send, at: Instant) -> Route:
            found = route(index, effect, at)
            connection_set.membership.drop(index)
            return found

        monkeypatch.setattr(connection_set, "_route", visited_route)
        connection_set.discard()
        pool.give_back(connection_set)
        follower.join(30)
        assert follower.outcome == "complete"
        assert faults(redlock, nodes) == []


@pytest.mark.parametrize("how", ["discard", "close"])
def test_a_round_is_left_while_a_set_is_closed(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The thread that leaves it uses no connection beside the one that closes the set."""
    left, inbox = list[bool](), Inbox()
    with Redlock(nodes.urls, **PATIENT) as redlock:
        pool, connection_set = lead_connected(redlock)
        mark_lost = Connection._mark_lost

        def beside(self: Connection, *text: Any, **blame: Any) -> None:
            if not left:
                connection_set.submit(Send(Acquire(b"shared beside", b"token", 9_000)), inbox)
                left.append(connection_set.has_submissions)
            mark_lost(self, *text, **blame)

        monkeypatch.setattr(Connection, "_mark_lost", beside)
        getattr(connection_set, how)()
        pool.give_back(connection_set)
        assert left == [True]
        assert [reply.answer.vote for reply in inbox.inbox] == [Vote.UNKNOWN] * 5
        assert faults(redlock, nodes) == []


def test_releases_wait_for_a_set_that_is_being_connected(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many threads that have lost a set do not each open another one."""
    monkeypatch.setattr(pool_module, "_CONNECTING_WAITS", 20 * NS_PER_S)
    with Redlock(nodes.urls, **PATIENT) as redlock:
        leases = [redlock.lock(f"shared {number}").acquire() for number in range(OTHERS)]
        pool = redlock._session.driver._pool
        lost = lead_all(pool)
        lost.discard()
        pool.give_back(lost)
        connection_set = lead_all(pool)
        assert not connection_set.takes_rounds
        threads = [threading.Thread(target=lease.release) for lease in leases]
        for thread in threads:
            thread.start()
        assert until(lambda: len(pool._queue) == OTHERS)
        connection_set.prepare()
        while any(thread.is_alive() for thread in threads):
            connection_set.drain()
        assert pool.all() == [connection_set]
        pool.give_back(connection_set)
        assert faults(redlock, nodes) == []


def test_one_of_many(nodes: Servers) -> None:
    """The thread leads and follows by turns. The others get their locks, and release them."""
    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        assert redlock.lock("first").acquire().release()

        def run(k: int) -> tuple[Interrupter, list[str]]:
            victim, failed = Victim(redlock, k), []

            def work(number: int) -> None:
                try:
                    while victim.is_alive():
                        redlock.lock(f"shared {number}", timeout=5.0).acquire().release()
                except BaseException as error:  # noqa: BLE001 (reported)
                    failed.append(f"another thread has {error!r}")

            others = [threading.Thread(target=work, args=(number,)) for number in range(OTHERS)]
            victim.start()
            for thread in others:
                thread.start()
            for thread in (victim, *others):
                thread.join(30)
                assert not thread.is_alive()
            return victim.at, failed + faults(redlock, nodes)

        every_line(run, 37)


class SoftLimit(Exception):
    """The exception of some other code for a thread that takes too long."""


def test_exceptions_of_other_code(nodes: Servers) -> None:
    """Leaders and followers get them between any two instructions. The other calls succeed."""
    over, cycles = threading.Event(), [0] * 16
    failed: list[str] = []

    def work(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(SoftLimit):
                try:
                    with redlock.lock(f"shared {number}", timeout=5.0):
                        cycles[number] += 1
                except SoftLimit:
                    raise
                except BaseException as error:  # noqa: BLE001 (reported)
                    failed.append(f"{error!r}")

    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for _ in range(1_000 if THOROUGH else 60):
            limited, wanted = random.choice(threads), sum(cycles) + 5
            assert until(lambda: sum(cycles) > wanted, 10)  # noqa: B023 (called at once)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(limited.ident or 0), ctypes.py_object(SoftLimit)
            )
        over.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert failed == []
        assert faults(redlock, nodes) == []


def test_a_visitor(mortal_nodes: Servers) -> None:
    """`redlock.nodes` reads late replies of an idle set in the main thread, which gets Ctrl-C. Then
    another thread uses the set.
    """
    mortal_nodes[4].stop()  # requests are pending there
    with Redlock(mortal_nodes.urls, node_timeout=0.05) as redlock:

        def run(k: int) -> tuple[Interrupter, list[str]]:
            assert redlock.lock("shared first", timeout=5.0).acquire().release()
            at = Interrupter(k, "line")
            with contextlib.suppress(KeyboardInterrupt), at:
                assert len(redlock.nodes) == 5
            other = Victim(redlock, POINTS_MAX)
            other.start()
            other.join(10)
            assert other.outcome == "complete"
            return at, faults(redlock, mortal_nodes[:4])

        every_line(run, 7)
