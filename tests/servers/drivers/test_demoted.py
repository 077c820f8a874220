"""A node that was a replica for a while does not vote, over any connection.

The one that was used in that time got READONLY; the others were idle and know nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import quorlock
from quorlock._core.acquiring import try_acquire
from quorlock._core.commands import Acquire
from quorlock._core.redlock import inspect
from quorlock._drivers.aio.connection import AsyncConnection
from quorlock._drivers.clock import now
from quorlock._drivers.node_state import NodeState
from quorlock._drivers.sync.connection import Connection, Inbox
from quorlock._protocol.encoding import encode
from quorlock._protocol.pipeline import NO_RECEIVER, PendingRequest
from quorlock.asyncio import Redlock
from quorlock.errors import NodeError, QuorlockError, VoteCode
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until, until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from quorlock._core.votes import Answer

T = TypeVar("T")
SETTINGS: dict[str, Any] = {"ttl": 8.0, "max_ttl": 8.0, "outage_timeout": 0.3}


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    at_once = ("--repl-diskless-sync-delay", "0")
    with Servers(2, tcp=True, options=at_once) as (node, other):
        yield node, other


class Interrupt(Exception):
    """The exception of a signal handler."""


def interrupted_once(
    monkeypatch: pytest.MonkeyPatch, kind: type[Connection] | type[AsyncConnection]
) -> None:
    """Interrupt the first call that closes a connection since its server was a replica."""
    supersede: Any = kind.supersede
    calls: list[str] = []

    def interrupted(self: Any, text: str) -> None:
        calls.append(text)
        if len(calls) == 1:
            raise Interrupt
        supersede(self, text)

    monkeypatch.setattr(kind, "supersede", interrupted)


def demote_for_a_while(node: Server, other: Server, ask: Callable[[], object]) -> None:
    """Make the node a replica of the other, which has no keys; ask it then, and promote it."""
    node.execute("REPLICAOF", "127.0.0.1", other.port)
    assert until(lambda: node.keys() == [])
    with pytest.raises((NodeError, Interrupt), match=r"READONLY|is not a master|^$"):
        ask()
    node.execute("REPLICAOF", "NO", "ONE")


# How the client notices it: by a reply, by the handshake of a new connection, or by a reply whose
# handling is interrupted.
NOTICED = pytest.mark.parametrize("how", ["by a reply", "as it connects", "interrupted"])


@NOTICED
def test_tracked_connections(pair: tuple[Server, Server], how: str, monkeypatch: Any) -> None:
    """The connections of renewal were idle in that time."""
    with quorlock.Redlock([pair[0].tcp_url], **SETTINGS) as redlock:
        session = redlock._session
        policy, entropy, driver = session.policy, session.entropy, session.driver
        watch = driver.watch()
        driver.run(inspect(b"x", policy), watch)  # now they are connected
        lease = redlock.lock("x").acquire()
        ask: Callable[[], object] = redlock.lock("y").try_acquire
        if how == "as it connects":
            other = driver.watch()
            ask = partial(driver.run, try_acquire(session.request_for("y"), policy, entropy), other)
        elif how == "interrupted":
            interrupted_once(monkeypatch, Connection)
        demote_for_a_while(*pair, ask)
        with pytest.raises(QuorlockError):
            driver.run(try_acquire(session.request_for("x"), policy, entropy), watch)
        assert lease.held
        for each in list(driver._watches):
            each.close(0)


def test_an_extension_of_a_key_that_is_gone(pair: tuple[Server, Server]) -> None:
    """Nothing is to be written, and the node says all the same that it is a replica."""
    node, other = pair
    with quorlock.Redlock([node.tcp_url], **SETTINGS) as redlock:
        lease = redlock.lock("x").acquire()
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        assert until(lambda: node.keys() == [])
        with pytest.raises(QuorlockError, match="replica"):
            lease.extend()
        node.execute("REPLICAOF", "NO", "ONE")
        with pytest.raises(QuorlockError, match="was a replica"):
            redlock.lock("y", timeout=0.5).acquire()


def test_a_release_of_a_key_that_is_gone(pair: tuple[Server, Server]) -> None:
    """Nothing is to be deleted, and the node says all the same that it is a replica."""
    node, other = pair
    with quorlock.Redlock([node.tcp_url], **SETTINGS) as redlock:
        assert redlock.lock("x").acquire().release()
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        assert until(lambda: node.keys() == [])
        with pytest.raises(NodeError, match="READONLY"):
            redlock.release("x", "0" * 32)
        node.execute("REPLICAOF", "NO", "ONE")
        with pytest.raises(QuorlockError, match="was a replica"):
            redlock.lock("y", timeout=0.5).acquire()


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="a loop of the test")
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@NOTICED
def test_another_event_loop(pair: tuple[Server, Server], how: str, monkeypatch: Any) -> None:
    loops = [_Loop(), _Loop()]
    redlock = Redlock([pair[0].tcp_url], **SETTINGS)

    async def take(name: str, limit: float) -> Any:
        return await redlock.lock(name).acquire(timeout=limit)

    try:
        for loop in loops[how == "as it connects" :]:
            loop.run(loop.run(take("warm", 5.0)).release())
        lease = loops[1].run(take("x", 5.0))
        if how == "interrupted":
            interrupted_once(monkeypatch, AsyncConnection)
        demote_for_a_while(*pair, lambda: loops[0].run(take("y", 0)))
        with pytest.raises(QuorlockError):
            loops[1].run(take("x", 0))
        assert lease.held
    finally:
        for loop in loops:
            loop.run(redlock.close())
            loop.close()


OTHER = Acquire(b"y", b"t" * 32, 8_000)
ASKED = PendingRequest(OTHER, NO_RECEIVER, 0, 0)


def grant_is_there(sock: socket.socket) -> bool:
    try:
        return b"+OK" in sock.recv(1_000, socket.MSG_PEEK)
    except BlockingIOError:  # nothing has come yet
        return False


def test_a_grant_behind_the_refusal(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are there when they are read: the process was paused, or had much else to do."""
    node, other = pair
    with quorlock.Redlock([node.tcp_url], **SETTINGS) as redlock:
        lease = redlock.lock("x").acquire()
        (connection_set,) = redlock._session.driver._pool.all()
        (connection,) = connection_set.connections
        assert connection is not None
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        assert until(lambda: node.keys() == [])
        connection.send(encode(OTHER), ASKED)
        assert until(lambda: select.select([connection], [], [], 0)[0])
        node.execute("REPLICAOF", "NO", "ONE")
        receive = Connection.receive_grant

        def receive_late(self: Connection, awaited: PendingRequest, grant: bytes) -> bool:
            assert until(lambda: grant_is_there(connection.sock))
            return receive(self, awaited, grant)

        monkeypatch.setattr(Connection, "receive_grant", receive_late)
        connection_set.membership.used_at = now()  # no idle time: nothing is read before it sends
        with pytest.raises(QuorlockError):
            redlock.lock("x").try_acquire()
        assert lease.held
        monkeypatch.undo()


def test_a_grant_that_is_unread_as_its_connection_is_given_up(nodes: Servers) -> None:
    with quorlock.Redlock(nodes.urls[:1], restart_guard=None) as redlock:
        assert redlock.lock("x").acquire().release()
        (connection,) = redlock._session.driver._pool.all()[0].connections
        assert connection is not None
        inbox = Inbox()
        connection.send(encode(OTHER), ASKED._replace(receiver=inbox))
        assert until(lambda: grant_is_there(connection.sock))
        connection.supersede("connection given up: it is a replica now")
        assert [reply.answer.code for reply in inbox.inbox] == [VoteCode.CONNECTION_LOST]
        assert until(lambda: nodes[0].execute("EXISTS", "y") == 0)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_grant_behind_the_refusal_in_a_loop(
    pair: tuple[Server, Server], is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of that node alone are among them, so that the replies are parsed.

    The granted key is released, also if a signal handler raises as the connection is given up.
    """
    if is_interrupted:
        lose = NodeState.on_connection_lost

        def interrupted(self: NodeState, answer: Answer) -> None:
            monkeypatch.setattr(NodeState, "on_connection_lost", lose)
            raise Interrupt

        monkeypatch.setattr(NodeState, "on_connection_lost", interrupted)
    asyncio.run(_ask_late_in_a_loop(*pair))


async def _ask_late_in_a_loop(node: Server, other: Server) -> None:
    async with Redlock([node.tcp_url], **SETTINGS) as redlock:
        lease = await redlock.lock("x").acquire()
        connection = redlock._session.driver.loop_driver().connectors[0].connection
        assert connection is not None
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        assert until(lambda: node.keys() == [])
        sock: Any = connection._socket
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            connection.send(encode(OTHER), ASKED)
            assert until(lambda: select.select([copy], [], [], 0)[0])
            node.execute("REPLICAOF", "NO", "ONE")
            second = asyncio.ensure_future(redlock.lock("x").try_acquire())
            # In this order in the loop: the acquire is sent, it waits, and the replies are read.
            asyncio.get_running_loop().call_soon(lambda: until(lambda: grant_is_there(copy)))
            with pytest.raises((QuorlockError, Interrupt)):
                await second
        assert lease.held
        assert await until_async(lambda: node.execute("EXISTS", "x") == 0)


def test_a_connection_that_is_added_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may add one at any time; a set cannot be read then."""

    class Busy(list[str]):
        reads = 0

        def __iter__(self) -> Iterator[str]:
            self.reads += 1
            if self.reads == 1:
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    state: Any = NodeState.__new__(NodeState)
    monkeypatch.setattr(state, "_connections", Busy(["one"]), raising=False)
    assert state._snapshot() == ["one"]
