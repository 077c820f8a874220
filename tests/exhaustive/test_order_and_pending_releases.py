"""Rule 3 on real servers: a release follows its acquire, even if the connection is lost.

Both APIs are tested if both can fail. An asyncio Redlock runs in a loop in a thread, so that the
same test uses either.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import random
import textwrap
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pytest

import quorlock
import quorlock.asyncio
from quorlock import QuorlockError, QuorumUnreachable
from quorlock._core.time import NS_PER_S
from quorlock._drivers.clock import now
from quorlock._drivers.sync.pool import Borrower
from quorlock.errors import VoteCode
from tests.harness.support.impostors import Proxy
from tests.harness.support.program import Program
from tests.harness.support.wait import until
from tests.servers.api.faces import holders, keys_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock._drivers.sync.pool import ConnectionPool
    from quorlock.testing.servers import Server, Servers

THOROUGH = os.environ.get("QUORLOCK_THOROUGH") == "1"
CLEAN_WITHIN = 4.0  # seconds: a back-off of one second may have to pass first
ROUNDS = 10 if THOROUGH else 1


class Face(Protocol):
    """One Redlock of either kind, to be called from the test's thread."""

    def acquire(self, resource: str, timeout: float = 0.0) -> Any: ...
    def try_acquire(self, resource: str) -> Any: ...
    def release(self, lease: Any) -> bool: ...
    def nodes(self) -> tuple[quorlock.NodeStatus, ...]: ...
    def pending_count(self) -> int: ...
    def is_unconfirmed(self) -> bool: ...

    redlock: Any

    def retry_at(self, index: int) -> int: ...
    def awaits_replies(self) -> bool: ...
    def close(self) -> None: ...


class Blocking:
    def __init__(self, urls: Iterable[str], **settings: Any) -> None:
        self.redlock = quorlock.Redlock(urls, **settings)

    def acquire(self, resource: str, timeout: float = 0.0) -> quorlock.Lease:
        return self.redlock.lock(resource, timeout=timeout).acquire()

    def try_acquire(self, resource: str) -> quorlock.Lease | None:
        return self.redlock.lock(resource).try_acquire()

    def release(self, lease: quorlock.Lease) -> bool:
        return lease.release()

    def nodes(self) -> tuple[quorlock.NodeStatus, ...]:
        return self.redlock.nodes

    def pending_count(self) -> int:
        return sum(
            len(node_state.pending_releases)
            for node_state in self.redlock._session.driver.node_states.all
        )

    def is_unconfirmed(self) -> bool:
        return any(
            m.pending_releases.has_unconfirmed()
            for m in self.redlock._session.driver.node_states.all
        )

    def retry_at(self, index: int) -> int:
        return self.redlock._session.driver.node_states.all[index].reconnect.retry_at

    def awaits_replies(self) -> bool:
        return awaits_replies(self.redlock)

    def close(self) -> None:
        self.redlock.close()


class Asyncio:
    def __init__(self, urls: Iterable[str], **settings: Any) -> None:
        self.redlock = quorlock.asyncio.Redlock(urls, **settings)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="the face's loop")
        self.thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def acquire(self, resource: str, timeout: float = 0.0) -> quorlock.asyncio.Lease:
        lease: quorlock.asyncio.Lease = self.call(
            self.redlock.lock(resource, timeout=timeout).acquire()
        )
        return lease

    def try_acquire(self, resource: str) -> quorlock.asyncio.Lease | None:
        lease: quorlock.asyncio.Lease | None = self.call(self.redlock.lock(resource).try_acquire())
        return lease

    def release(self, lease: quorlock.asyncio.Lease) -> bool:
        return bool(self.call(lease.release()))

    def nodes(self) -> tuple[quorlock.NodeStatus, ...]:
        return self.redlock.nodes

    def pending_count(self) -> int:
        return sum(
            len(node_state.pending_releases)
            for node_state in self.redlock._session.driver.node_states.all
        )

    def is_unconfirmed(self) -> bool:
        return any(
            m.pending_releases.has_unconfirmed()
            for m in self.redlock._session.driver.node_states.all
        )

    def retry_at(self, index: int) -> int:
        return self.redlock._session.driver.node_states.all[index].reconnect.retry_at

    def awaits_replies(self) -> bool:
        async def look() -> bool:
            connectors = self.redlock._session.driver._loop_drivers[self.loop].connectors
            return any(c.connection is not None and c.connection.open_requests for c in connectors)

        return bool(self.call(look()))

    def close(self) -> None:
        if not self.loop.is_closed():
            try:
                self.call(self.redlock.close())
            finally:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.thread.join(10)
                self.loop.close()


@pytest.fixture(params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """Makes faces, and closes them."""
    made: list[Face] = []

    def make(urls: Iterable[str], **settings: Any) -> Face:
        # A healthy node may take this long to answer: a release that is not says False.
        patient = {"retry_delay": (0.005, 0.015), "node_timeout": 0.25}
        made.append(request.param(urls, **patient | settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def clean(nodes: Iterable[Server]) -> None:
    """No key is left on any of them, within a bounded time."""
    assert until(lambda: not keys_on(nodes), CLEAN_WITHIN), f"ghosts: {keys_on(nodes)}"


def stays_clean(nodes: Iterable[Server], seconds: float) -> None:
    """No key is left, and none appears later."""
    kept = list(nodes)
    clean(kept)
    time.sleep(seconds)
    assert [server.keys() for server in kept] == [[]] * len(kept)


def awaits_replies(redlock: quorlock.Redlock) -> bool:
    return any(one.has_pending for one in redlock._session.driver._pool.all())


def arrives(node: Server, resource: str, token: str, within: float = 5.0) -> None:
    """A lock is won without waiting for every node: this one's SET may still be on its way."""
    assert until(lambda: node.execute("GET", resource) == token.encode(), within), node


def cycle(redlock: Face, resource: str = "warm", timeout: float = 2.0) -> None:
    assert redlock.release(redlock.acquire(resource, timeout))


def all_up(redlock: Face, within: float = 5.0) -> None:
    def is_so() -> bool:
        if all(node.up for node in redlock.nodes()):
            return True
        with suppress(QuorlockError):  # on a busy machine a short node_timeout may be too short
            redlock.release(redlock.acquire("warm", 2.0))
        return False

    assert until(is_so, within), redlock.nodes()


def await_confirmed(redlock: Face, within: float = 5.0) -> None:
    """Wait until every pending release has been executed once."""
    assert until(lambda: not redlock.is_unconfirmed(), within)


def in_front(nodes: Servers, stack: ExitStack, *indices: int) -> tuple[list[str], list[Proxy]]:
    """The nodes' URLs, with proxies in front of some; and those."""
    urls, proxies = nodes.urls, []
    for index in indices:
        proxies.append(stack.enter_context(Proxy(urls[index])))
        urls[index] = proxies[-1].url
    return urls, proxies


# --- a connection is lost --------------------------------------------------------------------


@pytest.mark.parametrize("held", ["requests", "replies"])
@pytest.mark.parametrize("released", ["before the cut", "after the cut", "garbage"])
def test_cut_with_acquires_in_flight(
    nodes: Servers, face: Callable[..., Face], held: str, released: str
) -> None:
    """The node may have set the keys or not; after the reconnect they are gone in any case."""
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            urls, (proxy,) = in_front(nodes, stack, 4)
            redlock = face(urls)
            all_up(redlock)
            proxy.hold(requests=held == "requests", replies=True)
            leases = [redlock.acquire(f"r{number}") for number in range(10)]
            if released == "before the cut":
                assert all(redlock.release(lease) for lease in leases)
            proxy.cut()
            proxy.resume()
            if released == "after the cut":
                assert all(redlock.release(lease) for lease in leases)
            leases.clear()
            stays_clean(nodes, 0.05)
            all_up(redlock)
            redlock.close()


def test_cut_between_calls(nodes: Servers, face: Callable[..., Face]) -> None:
    """The release is sent in the background, independently of the next caller."""
    with ExitStack() as stack:
        urls, (proxy,) = in_front(nodes, stack, 4)
        redlock = face(urls)
        all_up(redlock)
        proxy.hold(requests=False)
        cycle(redlock, "r")
        proxy.cut()
        # The blocking driver has no thread that watches idle connections: one call of any kind.
        cycle(redlock, "other")
        proxy.resume()
        stays_clean(nodes, 0.05)


def test_cut_and_no_way_back_for_a_while(nodes: Servers, face: Callable[..., Face]) -> None:
    """Refused for half a second: the releases wait, and are sent then."""
    with ExitStack() as stack:
        urls, (proxy,) = in_front(nodes, stack, 4)
        redlock = face(urls)
        all_up(redlock)
        proxy.hold(requests=False)
        lease = redlock.acquire("r")
        arrives(nodes[4], "r", lease.token)
        proxy.refuse()
        proxy.cut()
        proxy.resume()
        assert redlock.release(lease)
        cycle(redlock)
        time.sleep(0.5)
        assert nodes[4].execute("GET", "r") == lease.token.encode()
        proxy.accept_again()
        stays_clean(nodes, 0.05)
        all_up(redlock)


def test_cut_again_while_a_pending_release_is_due_much_later(
    nodes: Servers, face: Callable[..., Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending release that is due much later must not delay the reconnect of a lost
    connection.
    """
    with ExitStack() as stack:
        urls, (proxy,) = in_front(nodes, stack, 4)
        redlock = face(urls)
        all_up(redlock)
        proxy.hold(requests=True)  # the SET never reaches the node: no release will delete it
        lease = redlock.acquire("r")
        with monkeypatch.context() as patch:
            patch.setattr("quorlock._core.pending_releases.FIRST_PAUSE", 30 * NS_PER_S)
            proxy.cut()
            proxy.resume()
            assert redlock.release(lease)
            cycle(redlock)
            all_up(redlock)
            await_confirmed(redlock)
        # On a busy machine there may be others, of the cycles.
        pending = redlock.redlock._session.driver.node_states.all[4].pending_releases
        assert lease.token.encode() in pending, "sent at once, and again in half a minute"
        proxy.cut()
        cycle(redlock)
        all_up(redlock)  # within seconds


def test_a_release_that_a_node_refuses_is_tried_again(
    nodes: Servers, face: Callable[..., Face]
) -> None:
    """Busy, loading, a permission that is missing for a moment: it must not keep the key."""
    redlock = face(nodes.urls)
    all_up(redlock)
    lease = redlock.acquire("r")
    arrives(nodes[4], "r", lease.token)
    nodes[4].execute("ACL", "SETUSER", "default", "-eval", "-evalsha")
    try:
        assert redlock.release(lease)
        time.sleep(0.05)
        assert nodes[4].execute("GET", "r") == lease.token.encode()
    finally:
        nodes[4].execute("ACL", "SETUSER", "default", "+eval", "+evalsha")
    assert until(lambda: nodes[4].execute("GET", "r") is None, 2), "the key is left"


@pytest.mark.parametrize("released", [True, False])
def test_stopped_with_sets_unanswered_and_cut(
    nodes: Servers, face: Callable[..., Face], released: bool
) -> None:
    """The bytes are in the stopped server's socket: it sets the keys when it resumes."""
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            urls, (proxy,) = in_front(nodes, stack, 4)
            redlock = face(urls, connect_timeout=0.3)
            all_up(redlock)
            nodes[4].stop()
            leases = [redlock.acquire(f"r{number}") for number in range(10)]
            tokens = {lease.token.encode() for lease in leases}
            # Through the proxy, into the socket of the stopped one.
            assert until(lambda: tokens <= {word for c in proxy.requests for word in c})  # noqa: B023
            if released:
                assert all(redlock.release(lease) for lease in leases)
            proxy.cut()
            cycle(redlock)
            time.sleep(random.uniform(0, 0.2))
            nodes[4].cont()
            if not released:
                assert all(redlock.release(lease) for lease in leases)
            stays_clean(nodes, 0.3)
            all_up(redlock)
            redlock.close()


def test_cut_at_random_under_load(nodes: Servers, face: Callable[..., Face]) -> None:
    """Four threads cycle, all connections to a random minority break again and again."""
    with ExitStack() as stack:
        urls, proxies = in_front(nodes, stack, 0, 1, 2, 3, 4)
        redlock = face(urls)
        all_up(redlock)
        stop = threading.Event()
        failures: list[BaseException] = []

        def work(number: int) -> None:
            while not stop.is_set():
                try:
                    lease = redlock.acquire(f"r{number}", 0.2)
                    redlock.release(lease)
                except QuorlockError:
                    pass  # two cuts soon after one another can leave no quorum for a moment
                except BaseException as error:  # noqa: BLE001
                    failures.append(error)
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + (20.0 if THOROUGH else 1.5)
        while time.monotonic() < end:
            for proxy in random.sample(proxies, 2):
                proxy.delay = random.choice([0.0, 0.001, 0.03])
                proxy.cut()
            time.sleep(random.uniform(0.0, 0.1))
        stop.set()
        for thread in threads:
            thread.join(20)
        for proxy in proxies:
            proxy.delay = 0.0
        assert not failures
        assert not any(thread.is_alive() for thread in threads)
        stays_clean(nodes, 0.2)
        all_up(redlock)


# --- order between connections ---------------------------------------------------------------


class SlowLinks(Proxy):
    """Carries the requests of every connection in order, but each connection at its own pace."""

    slowest = 0.02

    async def forward(self, data: bytes) -> bytes:
        if b"SET" in data or b"EVAL" in data:
            await asyncio.sleep(random.uniform(0.0, self.slowest))
        return data


class Urgent(Borrower):
    """We borrow a connection set, so that the next caller must take another."""

    is_urgent = True


def borrowed(pool: ConnectionPool, path: object) -> ConnectionSet:
    """Borrow this set, which the pool itself may have for a moment, to read late replies."""
    while True:
        used = pool.borrow(Urgent(), path=path)
        assert used is not None
        if used is path:
            return used
        pool.give_back(used)


@pytest.mark.parametrize("by", ["lease", "token"])
def test_release_from_another_connection_set(nodes: Servers, by: str) -> None:
    """pottery's bug: the release of another thread overtakes the acquire, and a ghost remains."""
    with ExitStack() as stack:
        link = stack.enter_context(SlowLinks(nodes[4].url))
        redlock = quorlock.Redlock([*nodes.urls[:4], link.url])
        stack.callback(redlock.close)
        pool = redlock._session.driver._pool

        def has_two_whole_sets() -> bool:
            first, second = pool.borrow(Urgent()), pool.borrow(Urgent())
            assert first is not None
            assert second is not None
            for connection_set in (first, second):
                connection_set.prepare()
                pool.give_back(connection_set)
            return None not in (*first.connections, *second.connections)

        assert until(has_two_whole_sets, 1)
        for number in range(1_000 if THOROUGH else 150):
            lease = redlock.lock(f"r{number}").acquire()
            assert lease._state.target is not None
            used = borrowed(pool, lease._state.target.path)
            outcome: list[bool] = []
            release = lease.release
            if by == "token":
                release = partial(redlock.release, lease.resource, lease.token)
            thread = threading.Thread(target=lambda: outcome.append(release()))  # noqa: B023
            thread.start()
            thread.join(10)
            pool.give_back(used)
            assert outcome == [True]
        # The last release may wait for the drainer while its SET is still on the slow link.
        assert until(lambda: not awaits_replies(redlock), CLEAN_WITHIN)
        stays_clean(nodes, 3 * link.slowest)


def test_releases_from_many_threads(nodes: Servers) -> None:
    """Leases made by four threads are released by four others, at once."""
    with ExitStack() as stack:
        links = [stack.enter_context(SlowLinks(nodes[index].url)) for index in (3, 4)]
        urls = [*nodes.urls[:3], *(link.url for link in links)]
        redlock = quorlock.Redlock(urls, node_timeout=1.0)  # eight threads wait for each other
        stack.callback(redlock.close)
        redlock.lock("warm").acquire().release()
        handed: queue.SimpleQueue[quorlock.Lease | None] = queue.SimpleQueue()
        rounds = 1_000 if THOROUGH else 100
        outcomes: list[bool] = []
        failures: list[BaseException] = []

        def make(number: int) -> None:
            try:
                for index in range(rounds):
                    handed.put(redlock.lock(f"r{number}-{index}").acquire())
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
            finally:
                handed.put(None)

        def release() -> None:
            try:
                while (lease := handed.get()) is not None:
                    outcomes.append(lease.release())
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
        threads += [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert outcomes.count(True) == 4 * rounds
        assert until(lambda: not awaits_replies(redlock), CLEAN_WITHIN)
        stays_clean(nodes, 3 * SlowLinks.slowest)


def test_garbage_while_the_acquire_is_unanswered(nodes: Servers, face: Callable[..., Face]) -> None:
    """A lease that is dropped at once is released behind its acquire."""
    with ExitStack() as stack:
        link = stack.enter_context(SlowLinks(nodes[4].url))
        redlock = face([*nodes.urls[:4], link.url])
        all_up(redlock)
        for number in range(50 * ROUNDS):
            redlock.acquire(f"r{number}")
        clean(nodes[:4])  # the finalizers have released all of them
        assert until(lambda: not redlock.awaits_replies(), CLEAN_WITHIN)
        stays_clean(nodes, 3 * link.slowest)


def test_scripts_forgotten_by_the_nodes(nodes: Servers, face: Callable[..., Face]) -> None:
    """SCRIPT FLUSH between acquire and release: True, and nothing left; also on a slow node."""
    with ExitStack() as stack:
        urls, proxies = in_front(nodes, stack, 3, 4)
        redlock = face(urls)
        all_up(redlock)
        for number in range(20 * ROUNDS):
            for proxy in proxies:
                proxy.delay = random.choice([0.0, 0.002])
            lease = redlock.acquire(f"r{number}", 1.0)
            for server in nodes:
                server.execute("SCRIPT", "FLUSH")
            assert redlock.release(lease)
        stays_clean(nodes, 0.02)


# --- answers that come late ------------------------------------------------------------------


def test_late_answers_are_not_counted_in_the_next_round(
    nodes: Servers, face: Callable[..., Face]
) -> None:
    """Three grants of a round that is over come while the next one is under way, which another's
    keys must refuse."""
    with ExitStack() as stack:
        urls, proxies = in_front(nodes, stack, 2, 3, 4)
        redlock = face(urls, node_timeout=0.03, outage_timeout=0.2, ttl=5.0)
        all_up(redlock)
        for number in range(10 * ROUNDS):
            resource = f"r{number}"
            for proxy in proxies:
                proxy.hold(requests=False)
            with pytest.raises(QuorumUnreachable):
                redlock.try_acquire(resource)
            assert until(lambda: not any(holders(nodes, resource)), 2)  # noqa: B023
            for server in nodes[2:]:
                server.execute("SET", resource, "another")
            late = [threading.Timer(random.uniform(0.0, 0.03), p.resume) for p in proxies]
            for timer in late:
                timer.start()
            with suppress(QuorumUnreachable):
                assert redlock.try_acquire(resource) is None
            for timer in late:
                timer.join()
            for server in nodes[2:]:
                assert server.execute("GETDEL", resource) == b"another"
            all_up(redlock)
        stays_clean(nodes, 0.05)


# --- a node that does not read ---------------------------------------------------------------


def has_too_many_pending(redlock: Face, number: int) -> bool:
    """Run one more cycle; return True if the node was not asked, because of its backlog."""
    lease = redlock.acquire(f"until{number}", 2.0)
    assert redlock.release(lease)
    return bool(lease.votes[4].code is VoteCode.BACKLOG)


def test_backlog_is_bounded(nodes: Servers, face: Callable[..., Face]) -> None:
    """A hung node gets SETs until too many bytes are unread, then none; and behind every SET its
    release.
    """
    with ExitStack() as stack:
        urls, (proxy,) = in_front(nodes, stack, 4)
        redlock = face(urls)
        all_up(redlock)
        lease = redlock.acquire("before")
        arrives(nodes[4], "before", lease.token)
        proxy.hold(requests=False)  # so that the proxy reads on, and records
        started = len(proxy.requests)
        for number in range(150):
            cycle(redlock, f"a{number}")
        end = time.monotonic() + 10.0
        for number in itertools.count():
            if has_too_many_pending(redlock, number):
                break
            assert time.monotonic() < end, "the backlog grows"
        for number in range(150):
            cycle(redlock, f"b{number}")
        # This one goes to the node despite its backlog: nothing is in flight behind it.
        assert redlock.release(lease)
        token = lease.token.encode()
        assert until(lambda: any(token in words for words in proxy.requests[started:]), 10)
        asked = proxy.requests[started:]
        sets = [command for command in asked if command[0] == b"SET"]
        assert not [command for command in sets if command[1].startswith(b"b")]
        releases = [c for c in asked if c[0].startswith(b"EVAL")]
        for command in sets:
            key, token = command[1], command[2]
            behind = [r for r in releases if key in r and token in r]
            assert behind, f"no release of {key!r}"
            assert asked.index(behind[0]) > asked.index(command)
        proxy.resume()
        stays_clean(nodes, 0.05)
        all_up(redlock)


def test_partial_writes(nodes: Servers, face: Callable[..., Face]) -> None:
    """More releases than a socket holds, to a node that does not read; then it reads them all."""
    redlock = face(nodes.urls, node_timeout=0.5)  # a busy machine answers 1,200 rounds in time
    all_up(redlock)
    connected = connections(nodes[4])
    for _ in range(ROUNDS):
        # Some 600 bytes a release: the socket is full after some 400, in the middle of a command.
        leases = []
        for number in range(600):
            leases.append(redlock.acquire(f"{number}-" + "x" * 490, 2.0))
            if number % 5 == 4:  # a node that has not read ten of them gets no more
                for node in nodes:
                    arrives(node, leases[-1].resource, leases[-1].token)
        nodes[4].stop()
        assert [redlock.release(lease) for lease in leases] == [True] * len(leases)
        nodes[4].cont()
        stays_clean(nodes, 0.05)
        all_up(redlock)
        cycle(redlock)
        clean(nodes)
    assert connections(nodes[4]) == connected, "it reconnected: bytes were lost or mixed"


def connections(server: Server) -> set[bytes]:
    """The ids of our connections to it."""
    clients: bytes = server.execute("CLIENT", "LIST")
    return {line.split()[0] for line in clients.splitlines() if b"name=quorlock" in line}


def test_partial_writes_and_cut(nodes: Servers, face: Callable[..., Face]) -> None:
    """The connection breaks with half a command in it: pending releases are sent on the next
    one.
    """
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            urls, (proxy,) = in_front(nodes, stack, 4)
            redlock = face(urls, node_timeout=0.5, connect_timeout=0.5)
            all_up(redlock)
            proxy.hold(requests=True)
            for number in range(600):
                cycle(redlock, f"{number}-" + "x" * 490)
            proxy.cut()
            proxy.resume()
            cycle(redlock)
            stays_clean(nodes, 0.1)
            all_up(redlock)
            redlock.close()


# --- a node dies and comes back --------------------------------------------------------------


def test_node_restarts(nodes: Servers, face: Callable[..., Face]) -> None:
    """Killed -9 and started empty: it is connected again within the back-off, and votes."""
    redlock = face(nodes.urls, restart_guard=None)
    all_up(redlock)
    for down in (0.0, 0.4):
        lease = redlock.acquire("r")
        nodes[4].kill()
        for _ in range(5):
            cycle(redlock)
        time.sleep(down)
        nodes[4].restart()
        assert redlock.retry_at(4) <= now() + NS_PER_S, "it is tried again within a second"
        all_up(redlock, within=20.0)
        assert redlock.release(lease)
        # Its vote is needed now.
        for server in nodes[:2]:
            server.stop()
        cycle(redlock, "needed", 2.0)
        for server in nodes[:2]:
            server.cont()
        clean(nodes)
    assert until(lambda: not redlock.pending_count(), 3), (
        "a new process has pending releases of the old one"
    )


def test_all_nodes_restart(nodes: Servers, face: Callable[..., Face]) -> None:
    """Nothing is left of the old connections; the Redlock works as before."""
    redlock = face(nodes.urls, outage_timeout=5.0, restart_guard=None)
    all_up(redlock)
    for server in nodes:
        server.kill()
    with pytest.raises(QuorumUnreachable):
        redlock.try_acquire("r")
    for server in nodes:
        server.restart()
    cycle(redlock, "r", 5.0)
    all_up(redlock)
    clean(nodes)


# --- the end comes right after ---------------------------------------------------------------


@pytest.mark.parametrize("state", ["hung", "slow", "contended", "late"])
def test_close_right_after_a_failed_acquire(
    nodes: Servers, face: Callable[..., Face], state: str
) -> None:
    """No key is left, also on the hung nodes when they resume."""
    for _ in range(ROUNDS):
        with ExitStack() as stack:
            urls, proxies = in_front(nodes, stack, 2, 3, 4)
            redlock = face(urls, node_timeout=0.02, outage_timeout=0.1)
            all_up(redlock)
            impair(state, nodes[2:], proxies)
            with pytest.raises(QuorlockError):
                redlock.acquire("r", 0.05)
            redlock.close()
            repair(state, nodes[2:], proxies)
            stays_clean(nodes, 0.1)


def impair(state: str, some: list[Server], proxies: list[Proxy]) -> None:
    for server, proxy in zip(some, proxies, strict=True):
        if state == "hung":
            server.stop()
        elif state == "slow":
            proxy.delay = 0.6  # a busy machine stands still for 0.2 s, and then counts no such wait
        elif state == "late":
            proxy.hold(requests=True)
        else:
            server.execute("SET", "r", "another")


def repair(state: str, some: list[Server], proxies: list[Proxy]) -> None:
    for server, proxy in zip(some, proxies, strict=True):
        if state == "hung":
            server.cont()
        elif state == "contended":
            assert server.execute("GETDEL", "r") == b"another"
        proxy.resume()


EXIT = """
    import sys
    from quorlock import QuorlockError, Redlock

    redlock = Redlock(sys.argv[1:], node_timeout=0.02)
    redlock.lock("warm").acquire().release()
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        redlock.lock("r", timeout=0.05).acquire()
    except QuorlockError as error:
        print(type(error).__name__, flush=True)
"""
EXIT_ASYNCIO = """
    import asyncio, logging, sys
    from quorlock import QuorlockError
    from quorlock.asyncio import Redlock

    # That a callback took 100 ms is no noise of ours: on a busy machine any may.
    logging.getLogger("asyncio").addFilter(lambda s: not s.msg.startswith("Executing %s took"))

    async def main(urls):
        redlock = Redlock(urls, node_timeout=0.02)
        await (await redlock.lock("warm").acquire()).release()
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            await redlock.lock("r", timeout=0.05).acquire()
        except QuorlockError as error:
            print(type(error).__name__, flush=True)

    asyncio.run(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("script", [EXIT, EXIT_ASYNCIO], ids=["blocking", "asyncio"])
def test_exit_right_after_a_failed_acquire(nodes: Servers, script: str) -> None:
    """The process is gone when the hung majority resumes: it finds every SET with its release."""
    command = ["-X", "dev", "-W", "error", "-c", textwrap.dedent(script), *nodes.urls]
    with Program(*command, timeout=20) as program:
        for server in nodes[2:]:
            server.stop()
        ended = program.go_on()
    for server in nodes[2:]:
        server.cont()
    assert ended.output == "QuorumUnreachable\n"
    assert ended.noise == ""
    assert ended.seconds < 4, ended
    stays_clean(nodes, 0.1)


UNREAD = """
    import sys
    from quorlock import Redlock

    redlock = Redlock(sys.argv[1:], owner="o" * 40)
    with redlock.lock("warm"):
        print("ready", flush=True)
        sys.stdin.readline()
    leases = [redlock.lock(f"{number}-" + "x" * 100).acquire() for number in range(60)]
    print(sum(lease.release() for lease in leases))
"""

UNREAD_ASYNCIO = """
    import asyncio
    import sys
    from quorlock.asyncio import Redlock

    async def main(urls):
        redlock = Redlock(urls, owner="o" * 40)
        async with redlock.lock("warm"):
            print("ready", flush=True)
            sys.stdin.readline()
        leases = [await redlock.lock(f"{number}-" + "x" * 100).acquire() for number in range(60)]
        print(sum([await lease.release() for lease in leases]))

    asyncio.run(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("script", [UNREAD, UNREAD_ASYNCIO], ids=["blocking", "asyncio"])
def test_exit_with_more_unread_than_a_server_reads_at_once(nodes: Servers, script: str) -> None:
    """A server that resumes reads 16 KiB of the client that is gone, and drops the rest.

    Without a bound in bytes, these SETs alone are 14 KB, and most of their releases are dropped.
    """
    with Program("-c", textwrap.dedent(script), *nodes.urls, timeout=20) as program:
        assert until(lambda: nodes[4].keys() == [b"warm"], 5)
        nodes[4].stop()
        ended = program.go_on()
    nodes[4].cont()
    assert (ended.output, ended.noise) == ("60\n", "")
    stays_clean(nodes, 0.1)
