"""Waiting in the blocking driver: places, calls, news, and what ends a wait."""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorlock import QuorlockError, Redlock
from quorlock._core.claims import Keys
from quorlock._core.effects import CALL, Enlist, Timeout, Wait
from quorlock._core.member import PROMOTED, Member
from quorlock._core.places import QUEUE, RESERVED, channel_of
from quorlock._core.request import AcquireRequest
from quorlock._core.rounds import NodeReply
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import CLOSED_MEANWHILE
from quorlock._drivers.sync.flow_runner import ENLISTED_MAX
from tests.harness.support.every_reply import EVERY
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorlock._core.effects import Flow
    from quorlock._drivers.sync.driver import Driver
    from quorlock.testing.servers import Servers

KEY = b"waited-for"
MS = 1_000_000
LONG = 60_000 * MS
DESCRIPTORS = Path("/proc/self/fd")


def a_member() -> Member:
    return Member(AcquireRequest("waited-for", Keys(KEY), 1000, now(), None))


class Waiter:
    """A thread that waits, and its outcome; `place` is set once it waits."""

    def __init__(self, driver: Driver, *, enlists: bool = True, lasts: int = LONG) -> None:
        self.member = a_member()
        self.place = b""
        self.events: list[Any] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.is_waiting = threading.Event()
        self._enlists = enlists
        self._lasts = lasts
        self._driver = driver
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Waiter:
        self._thread.start()
        assert self.is_waiting.wait(5)
        return self

    def join(self) -> list[Any]:
        self._thread.join(5)
        assert not self._thread.is_alive()
        return self.events

    def _run(self) -> None:
        try:
            self._driver.run(self._flow())
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _flow(self) -> Flow[None]:
        if self._enlists:
            self.place = yield Enlist()
        self.is_waiting.set()
        end = now() + self._lasts
        while not (self.events and isinstance(self.events[-1], Timeout)):
            self.events.append((yield Wait(end, self.stop, self.member, EVERY)))


def call(nodes: Servers, place: bytes) -> list[int]:
    """Have every node call a place, as a release does; return how many clients each has called."""
    channel = channel_of(place.partition(b":")[0])
    return [server.execute("PUBLISH", channel, place + b" " + KEY) for server in nodes]


def owners(redlock: Redlock) -> int:
    return len(driver_of(redlock)._pool._owners)


def driver_of(redlock: Redlock) -> Driver:
    return redlock._session.driver


@pytest.fixture
def redlock(nodes: Servers) -> Iterator[Redlock]:
    with Redlock(nodes.urls) as made:
        made.lock("warm").acquire().release()
        yield made


def test_calls_are_replies(nodes: Servers, redlock: Redlock) -> None:
    """Each node's call comes to the flow that has the place, and to no other."""
    one, other = (Waiter(driver_of(redlock)).start() for _ in range(2))
    assert one.place != other.place
    assert until(lambda: call(nodes, one.place) == [1] * 5)
    assert until(lambda: {event.node for event in one.events} == set(range(5)))
    assert all(isinstance(event, NodeReply) and event.round == CALL for event in one.events)
    assert other.events == []
    for waiter in (one, other):
        waiter.stop.set()
        assert isinstance(waiter.join()[-1], Timeout)
    assert owners(redlock) == 0


@pytest.mark.parametrize("enlists", [True, False])
def test_news_wake_a_waiter(redlock: Redlock, *, enlists: bool) -> None:
    """News come at once, also if they were there before the wait."""
    waiter = Waiter(driver_of(redlock), enlists=enlists)
    waiter.member.promote()
    waiter.start()
    assert until(lambda: waiter.events == [PROMOTED])
    waiter.member.promote()
    assert until(lambda: waiter.events == [PROMOTED] * 2)
    assert owners(redlock) == enlists, "without a place it keeps no connection set"
    waiter.stop.set()
    waiter.join()


@pytest.mark.parametrize("enlists", [True, False])
def test_the_end_of_a_wait(redlock: Redlock, *, enlists: bool) -> None:
    """A wait ends at its deadline."""
    began = now()
    events = Waiter(driver_of(redlock), enlists=enlists, lasts=30 * MS).start().join()
    assert [type(event) for event in events] == [Timeout]
    assert 30 * MS <= events[0].at - began < 1_000 * MS


@pytest.mark.parametrize("enlists", [True, False])
def test_closing_ends_a_wait(nodes: Servers, *, enlists: bool) -> None:
    """A long wait ends with an error when the driver is closed, and closing takes no time."""
    redlock = Redlock(nodes.urls)
    waiter = Waiter(driver_of(redlock), enlists=enlists).start()
    began = time.monotonic()
    redlock.close()
    waiter.join()
    assert time.monotonic() - began < 1
    assert isinstance(waiter.error, QuorlockError)
    assert str(waiter.error) == CLOSED_MEANWHILE


def test_waiters_need_no_slot(redlock: Redlock) -> None:
    """A few flows may wait in the queues; all others acquire and release."""
    driver = driver_of(redlock)
    waiters = [Waiter(driver).start() for _ in range(ENLISTED_MAX + 1)]
    assert [bool(waiter.place) for waiter in waiters] == [True] * ENLISTED_MAX + [False]
    began = time.monotonic()
    for number in range(20):
        redlock.lock(f"other-{number}").acquire().release()
    assert time.monotonic() - began < 1
    for waiter in waiters:
        waiter.stop.set()
        waiter.join()
    assert Waiter(driver, lasts=0).start().place, "there is room again"


def test_stray_calls(nodes: Servers, redlock: Redlock) -> None:
    """A call for a place that no flow has any more: the node calls the next one at once."""
    waiter = Waiter(driver_of(redlock)).start()
    assert until(lambda: call(nodes, waiter.place) == [1] * 5)
    gone = waiter.place.replace(b":1:", b":77:")
    for server in nodes:
        server.execute("SET", KEY, RESERVED + gone, "PX", "10000")
        server.execute("ZADD", QUEUE + KEY, "2", gone)
        server.execute("ZADD", QUEUE + KEY, "3", waiter.place)
    call(nodes, gone)
    passed_on = [RESERVED + waiter.place] * 5
    assert until(lambda: [server.execute("GET", KEY) for server in nodes] == passed_on)
    waiter.stop.set()
    waiter.join()


def test_new_connections_listen(nodes: Servers, redlock: Redlock) -> None:
    """Connections that are lost during a wait are replaced, and nodes can call over these."""
    waiter = Waiter(driver_of(redlock)).start()
    for server in nodes:
        server.execute("CLIENT", "KILL", "TYPE", "pubsub")
    waiter.events.clear()
    assert until(lambda: call(nodes, waiter.place) == [1] * 5)
    assert until(lambda: len(waiter.events) >= 5)
    waiter.stop.set()
    waiter.join()


def test_too_few_nodes_listen(nodes: Servers, redlock: Redlock) -> None:
    """Fewer than a quorum of connections give no place."""
    for server in list(nodes)[:3]:
        server.kill()
    assert until(
        lambda: sum(node.up for node in redlock.nodes) == 2 or redlock.lock("a").try_acquire
    )
    waiter = Waiter(driver_of(redlock)).start()
    assert waiter.place == b""
    waiter.stop.set()
    waiter.join()


def test_releases_of_others_are_sent(nodes: Servers, redlock: Redlock) -> None:
    """A waiter sends what other threads leave on its connections (rule 3)."""
    hung = nodes[4]
    hung.stop()
    lease = redlock.lock(KEY).acquire()  # unanswered there, over the only connection set
    waiter = Waiter(driver_of(redlock)).start()
    hung.cont()
    assert lease.release()
    assert until(lambda: [server.execute("GET", KEY) for server in nodes] == [None] * 5)
    waiter.stop.set()
    waiter.join()


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 1, before[1]))
    fillers = []
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for filler in fillers:
            os.close(filler)


def open_descriptors() -> list[int]:
    return [int(link.name) for link in DESCRIPTORS.iterdir()]


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="counts descriptors in /proc")
def test_without_descriptors(nodes: Servers, redlock: Redlock) -> None:
    """The waiter looks for news now and then."""
    with no_more_descriptors():
        waiter = Waiter(driver_of(redlock)).start()
        waiter.member.promote()
        assert until(lambda: waiter.events == [PROMOTED])
    assert until(lambda: call(nodes, waiter.place) == [1] * 5)
    assert until(lambda: len(waiter.events) >= 6)
    waiter.stop.set()
    waiter.join()


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="counts descriptors in /proc")
def test_many_waiters(redlock: Redlock) -> None:
    """Hundreds of threads wait without more descriptors, and all are woken."""
    driver = driver_of(redlock)
    before = len(open_descriptors())
    waiters = [Waiter(driver, enlists=False).start() for _ in range(200)]
    assert len(open_descriptors()) <= before
    for waiter in waiters:
        waiter.member.promote()
        waiter.stop.set()
    assert all(PROMOTED in waiter.join() for waiter in waiters)
    for _ in range(20):
        Waiter(driver, lasts=0).start().join()
    assert len(open_descriptors()) <= before + 2, "one pipe of one connection set"


def test_a_forked_child(nodes: Servers, redlock: Redlock) -> None:
    """The child has no waiters, and sends nothing over the connections of its parent."""
    driver = driver_of(redlock)
    waiter = Waiter(driver).start()
    lines = driver.lines
    pid = os.fork()
    if not pid:
        status = 1
        try:
            assert driver.lines is not lines
            assert not driver._waiting_flows.enlisted
            redlock.lock("childs").acquire().release()
            redlock.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    waiter.events.clear()
    assert until(lambda: call(nodes, waiter.place) == [1] * 5)
    assert until(lambda: len(waiter.events) >= 5)
    waiter.stop.set()
    waiter.join()
