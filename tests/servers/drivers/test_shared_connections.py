"""Threads that share one connection set, on real nodes that hang, are far away, or are left."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from quorlock import AcquireError, QuorlockError, Redlock
from quorlock._core.commands import Acquire, Release, ScriptedAcquire
from quorlock._core.effects import Send
from quorlock._core.restart_guard import Quarantine
from quorlock._core.time import FOR_EVER, PAST
from quorlock._core.votes import Vote
from quorlock._drivers.clock import now
from quorlock._drivers.node_states import NodeStates
from quorlock._drivers.sync.connection import Connection, Inbox
from quorlock._drivers.sync.pool import Borrower
from quorlock._nodes.node import Node
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import PendingRequest
from quorlock.errors import VoteCode
from tests.harness.support.impostors import Proxy, TlsFront
from tests.harness.support.script import policy_of
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock._drivers.sync.connection_set import ConnectionSet
    from quorlock.testing.servers import Servers
    from tests.harness.support.ownership import Check

pytestmark = pytest.mark.usefixtures("owned_connections")

THREADS = 32
READ_AT_ONCE = 16 * 1024  # bytes that a server reads before it finds a connection closed


class Caller(Borrower):
    """We borrow a connection set."""

    is_urgent = True


class Crowd:
    """Threads that acquire and release, each another lock, until the block ends."""

    def __init__(self, redlock: Redlock, timeout: float = 5.0) -> None:
        self.over = threading.Event()
        self.cycles = [0] * THREADS
        self.errors: list[BaseException] = []
        self._redlock = redlock
        self._timeout = timeout
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(THREADS)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def until_all_have(self, more: int) -> None:
        """Wait until each thread has made some more cycles."""
        wanted = [cycles + more for cycles in self.cycles]

        def have_or_cannot() -> bool:
            return bool(self.errors) or all(map(int.__ge__, self.cycles, wanted))

        assert until(have_or_cannot, 20), self.cycles
        assert self.errors == []

    def _work(self, number: int) -> None:
        try:
            while not self.over.is_set():
                with self._redlock.lock(f"crowd {number}", timeout=self._timeout):
                    self.cycles[number] += 1
        except BaseException as error:  # noqa: BLE001 (checked by the tests)
            self.errors.append(error)


@contextmanager
def borrowed(redlock: Redlock) -> Iterator[ConnectionSet]:
    """Have a connection set that is connected to all nodes."""
    assert redlock.lock("first").acquire().release()
    pool = redlock._session.driver._pool
    connection_set = pool.borrow(Caller())
    assert connection_set is not None
    assert None not in connection_set.connections
    yield connection_set
    pool.give_back(connection_set)


def keys(nodes: Servers) -> list[bytes]:
    return [key for node in nodes for key in node.execute("KEYS", "crowd*")]


def most_unread(redlock: Redlock, index: int) -> int:
    """Return the most bytes that were sent over one connection to a node without a reply."""
    connections = [one.connections[index] for one in redlock._session.driver._pool.all()]
    return max(
        sum([len(encode(request.command)) for request in tuple(one.pending)])
        for one in connections
        if one is not None
    )


def test_the_check_of_borrowers_finds_who_has_not_borrowed(
    nodes: Servers, owned_connections: Check
) -> None:
    """The other tests of this file would fail with that."""
    with Redlock(nodes.urls) as redlock:
        assert redlock.lock("first").acquire().release()
        assert owned_connections.looks
        assert owned_connections.found == []
        pool = redlock._session.driver._pool
        pool.all()[0].drain()
        with borrowed(redlock) as connection_set:
            vars(pool._owners[connection_set])["thread"] = threading.get_ident()
            leaver = threading.Thread(target=pool._owners.pop, args=(connection_set,))
            leaver.start()
            leaver.join()
    found = [what.partition(" (")[0] for what in owned_connections.found]
    owned_connections.found.clear()
    assert "ConnectionSet.drain without the set" in found
    assert found[-1] == "another thread returns its set"


def test_a_node_that_hangs_delays_no_thread(mortal_nodes: Servers) -> None:
    """The node gets no more than it reads at once: all releases are among that, also if we die."""
    with Redlock(mortal_nodes.urls, node_timeout=0.5) as redlock:
        assert redlock.lock("first").acquire().release()
        with Crowd(redlock) as crowd:
            crowd.until_all_have(2)
            mortal_nodes[4].stop()
            crowd.until_all_have(10)
            assert most_unread(redlock, 4) < READ_AT_ONCE
        assert crowd.errors == []
        mortal_nodes[4].cont()
        assert until(lambda: not keys(mortal_nodes))


def test_a_node_that_hangs_when_one_thread_is_left(mortal_nodes: Servers) -> None:
    """Unread bytes of the node count at once again, not after node_timeout."""
    with Redlock(mortal_nodes.urls, node_timeout=5.0) as redlock:
        with Crowd(redlock) as crowd:
            crowd.until_all_have(2)
        mortal_nodes[4].stop()
        for _ in range(300):
            assert redlock.lock("crowd").acquire().release()
        assert most_unread(redlock, 4) < READ_AT_ONCE
        mortal_nodes[4].cont()
        assert until(lambda: not keys(mortal_nodes))


def test_a_backlog_counts_at_once_for_the_last_follower_who_leads(nodes: Servers) -> None:
    """The thread is no follower any more when it sends the round that it left as one."""
    with Redlock(nodes.urls, node_timeout=5.0) as redlock, borrowed(redlock) as connection_set:
        follower, inbox = Caller(), Inbox()
        connection_set.followers[follower] = None
        connection_set.submit(Send(Release(b"crowd", b"token")), inbox)
        connection_set.remove_follower(follower)
        assert until(lambda: drained(connection_set, [inbox]))
        there = [one for one in connection_set.connections if one is not None]
        assert [one.pipeline.max_silence for one in there] == [0] * len(nodes)


def test_a_majority_that_hangs(mortal_nodes: Servers) -> None:
    """Each thread fails in its own time, and all get their locks when the nodes are back."""
    with Redlock(mortal_nodes.urls, node_timeout=0.1) as redlock:
        assert redlock.lock("first").acquire().release()
        for node in mortal_nodes[:3]:
            node.stop()
        with Crowd(redlock, timeout=0) as crowd:
            assert until(lambda: len(crowd.errors) == THREADS, 10)
        assert all(isinstance(error, AcquireError) for error in crowd.errors)
        for node in mortal_nodes[:3]:
            node.cont()
        with Crowd(redlock) as crowd:
            crowd.until_all_have(1)
        assert crowd.errors == []
        assert until(lambda: not keys(mortal_nodes))


def test_a_follower_sleeps_until_enough_nodes_have_replied(
    mortal_nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some replies are there, and more are awaited: it does not look all the time."""
    from quorlock._drivers.sync.flow_runner import _Following

    wait, waits = _Following.wait, list[object]()

    def counted(self: _Following, *args: int) -> None:
        waits.append(self)
        wait(self, *args)

    with Redlock(mortal_nodes.urls, node_timeout=1.0) as redlock:
        assert redlock.lock("first").acquire().release()
        for node in mortal_nodes[:3]:
            node.stop()
        monkeypatch.setattr(_Following, "wait", counted)
        with Crowd(redlock, timeout=0) as crowd:
            assert until(lambda: len(crowd.errors) == THREADS, 20)
        for node in mortal_nodes[:3]:
            node.cont()
        assert 0 < len(waits) < 100 * THREADS
        assert until(lambda: not keys(mortal_nodes))


def test_replies_that_a_stalled_leader_has_not_read_count(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 threads on a slow machine failed now and then: a leader waits for the interpreter lock.

    Here it stalls until a follower whose round was sent, and whose deadline is over, looks whether
    it has read.
    """
    from quorlock._drivers.sync.connection import Connection
    from quorlock._drivers.sync.flow_runner import _Following

    receive, wait = Connection.receive_grant, _Following.wait
    looked = threading.Event()

    def stalling(self: Connection, awaited: PendingRequest, grant: bytes) -> bool:
        # Where the two latest rounds lack the replies of three nodes, one is a follower's.
        there = connection_set.connections
        if not looked.is_set() and sum(c is not None and len(c.pending) > 1 for c in there) >= 3:
            looked.wait(5.0)
        return receive(self, awaited, grant)

    def looking(self: _Following, deadline: int, seen: int = 0) -> None:
        if PAST < self.sent_at <= now() - 550_000_000:
            looked.set()
        wait(self, deadline, seen)

    with Redlock(nodes.urls, node_timeout=0.5) as redlock:
        assert redlock.lock("first").acquire().release()
        (connection_set,) = redlock._session.driver._pool.all()
        monkeypatch.setattr(Connection, "receive_grant", stalling)
        monkeypatch.setattr(_Following, "wait", looking)
        with Crowd(redlock, timeout=0) as crowd:
            assert until(lambda: looked.is_set() or crowd.errors, 10)
            crowd.until_all_have(2)
        assert crowd.errors == []


def test_threads_do_not_wait_for_each_others_replies(nodes: Servers) -> None:
    """Over a slow network they send while the replies to others are on their way."""
    with ExitStack() as stack:
        links = [stack.enter_context(Proxy(url)) for url in nodes.urls]
        with Redlock([link.url for link in links], node_timeout=2.0) as redlock:
            assert redlock.lock("first").acquire().release()
            for link in links:
                link.delay = 0.02
            began = time.monotonic()
            with Crowd(redlock) as crowd:
                crowd.until_all_have(3)
            lasted = time.monotonic() - began
            assert crowd.errors == []
    one_by_one = THREADS * 3 * 2 * 0.02
    assert lasted < one_by_one


def test_no_release_overtakes_an_acquire_that_is_still_to_be_sent(nodes: Servers) -> None:
    """A thread that followed leads by the time of its release."""
    with Redlock(nodes.urls) as redlock, borrowed(redlock) as connection_set:
        acquire, release = Inbox(), Inbox()
        connection_set.submit(Send(Acquire(b"crowd", b"token", 10_000)), acquire)
        connection_set.send(Send(Release(b"crowd", b"token")), release)
        while len(release.inbox) < len(nodes):
            connection_set.drain()
        assert [reply.answer.vote for reply in acquire.inbox] == [Vote.GRANTED] * len(nodes)
        assert not keys(nodes)


def test_a_node_that_must_not_vote_gets_no_round_of_a_follower(nodes: Servers) -> None:
    """Nor while all the others get many rounds in one step. It gets the releases."""
    with Redlock(nodes.urls) as redlock, borrowed(redlock) as connection_set:
        connection = connection_set.connections[2]
        assert connection is not None
        connection.quarantine = Quarantine(None, FOR_EVER)
        connection_set.membership.find_limits()
        acquires, releases = [Inbox() for _ in range(3)], [Inbox() for _ in range(3)]
        for number, inbox in enumerate(acquires):
            connection_set.submit(Send(Acquire(b"crowd %d" % number, b"token", 10_000)), inbox)
        assert until(lambda: drained(connection_set, acquires))
        for inbox in acquires:
            votes = {reply.node: reply.answer.quarantine is None for reply in inbox.inbox}
            assert votes == {0: True, 1: True, 2: False, 3: True, 4: True}
        assert nodes[2].execute("KEYS", "crowd*") == []
        assert len(keys(nodes)) == 3 * 4
        for number, inbox in enumerate(releases):
            connection_set.submit(Send(Release(b"crowd %d" % number, b"token")), inbox)
        assert until(lambda: drained(connection_set, releases))
        assert not keys(nodes)


def test_the_limit_of_the_nodes_outlives_a_quarantine(nodes: Servers) -> None:
    """A round to a node whose quarantine has ended looks for the limits again."""
    with Redlock(nodes.urls) as redlock, borrowed(redlock) as connection_set:
        for connection in connection_set.connections:
            assert connection is not None
            connection.ttl_ms_max = 10_000
        last = connection_set.connections[-1]
        assert last is not None
        last.quarantine = Quarantine(None, now())
        connection_set.membership.find_limits()
        short, long = Inbox(), Inbox()
        connection_set.send(Send(Acquire(b"crowd short", b"token", 10_000)), short)
        assert until(lambda: drained(connection_set, [short]))
        quarantines = [one and one.quarantine for one in connection_set.connections]
        assert quarantines == [None] * len(nodes)
        connection_set.send(Send(Acquire(b"crowd long", b"token", 10_001)), long)
        codes = [reply.answer.code for reply in long.inbox]
        assert codes == [VoteCode.PERMANENT_ERROR] * len(nodes)
        assert keys(nodes) == [b"crowd short"] * len(nodes)


def test_rounds_of_followers_keep_their_order(nodes: Servers) -> None:
    """Plain rounds go in one step, with others between them: each acquire before its release."""
    with Redlock(nodes.urls) as redlock, borrowed(redlock) as connection_set:
        inboxes: list[Inbox] = []
        for number in range(9):
            key, granted, left = b"crowd %d" % number, Inbox(), Inbox()
            inboxes += granted, left
            plain = Acquire(key, b"token", 10_000)
            scripted = ScriptedAcquire(key, b"token", 10_000, grid_ms=1)
            connection_set.submit(Send(scripted if number % 3 == 1 else plain), granted)
            release = Release(key, b"token")
            if number % 3:
                connection_set.submit(Send(release), left)
                continue
            request = PendingRequest(release, left, left.round, now())
            for node in range(len(nodes)):  # as a thread with another set leaves them
                connection_set.send_later(node, encode(release), request, Send(release))
        assert until(lambda: drained(connection_set, inboxes))
        for inbox in inboxes:
            assert {reply.answer.vote for reply in inbox.inbox} == {Vote.GRANTED}
        assert not keys(nodes)


def drained(connection_set: ConnectionSet, inboxes: list[Inbox]) -> bool:
    connection_set.drain()
    return all(len(inbox.inbox) == len(connection_set.connections) for inbox in inboxes)


def test_nodes_that_restart(mortal_nodes: Servers) -> None:
    """One after the other, with threads that share connections: no error, and no key is left."""
    with Redlock(mortal_nodes.urls, node_timeout=0.5, restart_guard=None) as redlock:
        with Crowd(redlock) as crowd:
            for node in mortal_nodes:
                crowd.until_all_have(2)
                node.restart()
            crowd.until_all_have(2)
        assert crowd.errors == []
        assert until(lambda: not keys(mortal_nodes))


def test_over_tls(nodes: Servers) -> None:
    """Replies to many rounds come in records, whose bytes the socket does not report."""
    with ExitStack() as stack:
        fronts = [stack.enter_context(TlsFront(server.url)) for server in nodes]
        urls = [f"rediss://127.0.0.1:{one.port}?ssl_ca_certs={one.ca_file}" for one in fronts]
        redlock = stack.enter_context(Redlock(urls, node_timeout=1.0, connect_timeout=5.0))
        assert redlock.lock("first").acquire().release()
        with Crowd(redlock) as crowd:
            crowd.until_all_have(10)
        assert crowd.errors == []
        assert len(redlock._session.driver._pool.all()) == 1
        assert until(lambda: not keys(nodes))


@pytest.mark.parametrize("act", ["closed", "interrupted"])
def test_the_end_of_the_main_thread(nodes: Servers, act: str) -> None:
    """Closing ends all calls, and no key is left. An exception in the main thread ends none."""
    with Redlock(nodes.urls, node_timeout=0.5) as redlock, Crowd(redlock) as crowd:
        crowd.until_all_have(1)
        if act == "closed":
            redlock.close()
            assert until(lambda: len(crowd.errors) == THREADS, 10)
            assert all(isinstance(error, QuorlockError) for error in crowd.errors)
        else:
            in_main_thread(redlock)
            crowd.until_all_have(2)
            assert crowd.errors == []
    assert until(lambda: not keys(nodes))


def in_main_thread(redlock: Redlock) -> None:
    """Interrupt some calls of the main thread while they wait for replies."""
    from quorlock._drivers.sync.connection_set import ConnectionSet

    await_some: Callable[..., object] = ConnectionSet._await_some
    main = threading.current_thread()

    def interrupted(self: ConnectionSet, *args: object) -> object:
        if threading.current_thread() is main:
            self.is_busy = True
            raise KeyboardInterrupt
        return await_some(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectionSet, "_await_some", interrupted)
        for number in range(5):
            with pytest.raises(KeyboardInterrupt):
                redlock.lock(f"crowd main {number}").acquire()


@contextmanager
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """Yield a connection and the socket of its server."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        node_state = NodeStates((Node("a"),), policy_of(1)).all[0]
        connection = Connection(ours, node_state, (BlockingIOError,), None, "run")
        yield connection, theirs
        connection.close()


def test_bytes_for_a_hung_node_are_not_copied_for_each_command() -> None:
    """Thousands of extensions may wait there, and each of them copied all that were before it."""
    with pair() as (connection, theirs):
        sent = b""

        def send(number: int) -> None:
            nonlocal sent
            command = Acquire(b"k", b"%0900d" % number, 1_000)
            assert connection.send(encode(command), PendingRequest(command, Inbox(), 1, 0))
            sent += encode(command)

        while not connection.unsent:
            send(0)
        unsent = connection.unsent
        for number in range(100):
            connection.holds_back = number >= 50
            send(number)
        assert connection.unsent is unsent
        received = b""
        while len(received) < len(sent):
            received += theirs.recv(2**20)
            connection.flush()
        assert received == sent
        connection.pending.clear()


def test_a_node_that_sends_without_an_end_leaves_time_for_the_others() -> None:
    """A read of one connection ends, however much more there is."""
    with pair() as (connection, theirs):
        push = b">1\r\n$3\r\nfoo\r\n"
        theirs.sendall(push * 1_000)
        parse, parsed = connection.parse, 0

        def parse_while_more_comes(data: bytes, at: int) -> None:
            nonlocal parsed
            parse(data, at)
            theirs.sendall((push * 100)[parsed % len(push) :][: len(data)])
            parsed += len(data)
            assert parsed < 1 << 20

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "parse", parse_while_more_comes)
            connection.receive()
        assert not connection.lost
