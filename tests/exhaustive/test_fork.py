"""A forked child holds nothing, does not affect its parent, and can acquire locks.

The child's checks run between `in_child` and its `os._exit`; their exceptions come back as text.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import select
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
import quorlock.asyncio as quorlock_asyncio
from quorlock import LeaseLost, Node, QuorlockError, Redlock
from quorlock._core.time import FOR_EVER
from quorlock._drivers.sync import connect
from quorlock._drivers.threads import BackgroundThread
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import TlsFront
from tests.harness.support.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorlock.testing.servers import Server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

CHILD_TIMEOUT = 30.0
KEY = b"parents"
# All threads of a large process stand still while it forks, on a busy machine for more than 50 ms.
PATIENT: dict[str, Any] = {"node_timeout": 2.0}


def start_child(work: Callable[[], None]) -> tuple[int, int]:
    """Fork; the child works, writes what went wrong into a pipe and ends without cleaning up."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    try:
        signal.alarm(int(CHILD_TIMEOUT))
        os.close(read_end)
        try:
            work()
        except BaseException:  # noqa: BLE001
            os.write(write_end, traceback.format_exc().encode()[-8000:])
    finally:
        os._exit(0)


def join_child(child: tuple[int, int]) -> None:
    pid, read_end = child
    text = b""
    end = time.monotonic() + CHILD_TIMEOUT + 5
    while select.select([read_end], [], [], max(0.0, end - time.monotonic()))[0]:
        data = os.read(read_end, 65536)
        if not data:
            break
        text += data
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    assert not text, text.decode()
    assert status == 0, f"the child ended with {status}"


def in_child(work: Callable[[], None]) -> None:
    join_child(start_child(work))


def holders(nodes: Servers) -> list[bytes | None]:
    return [server.execute("GET", KEY) for server in nodes]


def connections(server: Server) -> set[bytes]:
    """The ids of our connections to it."""
    clients: bytes = server.execute("CLIENT", "LIST")
    fields = [dict(f.partition(b"=")[::2] for f in line.split()) for line in clients.splitlines()]
    return {client[b"id"] for client in fields if client[b"name"] == b"quorlock"}


def all_connections(nodes: Servers) -> list[set[bytes]]:
    return [connections(server) for server in nodes]


def cycle(redlock: Redlock, resource: str, rounds: int) -> None:
    lock = redlock.lock(resource, timeout=5.0)
    for _ in range(rounds):
        lease = lock.acquire()
        assert lease.held
        assert lease.release()


def await_all_up(redlock: Redlock, nodes: Servers) -> None:
    """Every node is connected, so that what comes next opens nothing by the way."""
    end = time.monotonic() + 5
    while not all(connections(server) for server in nodes):
        assert time.monotonic() < end, redlock.nodes
        cycle(redlock, "warm", 1)


def test_the_childs_copy_of_a_lease(nodes: Servers) -> None:
    """The copy is not held, and cannot be released, extended or handed over; the parent's keys
    stay.
    """
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        lease = redlock.lock("parents").acquire()
        token = lease.token.encode()

        def work() -> None:
            assert not lease.held
            assert lease.valid_until == 0.0
            assert lease.validity < 0
            assert lease.release() is False
            with pytest.raises(LeaseLost):
                lease.ensure()
            with pytest.raises(LeaseLost):
                lease.extend()
            with pytest.raises(LeaseLost):
                lease.hand_over()
            assert lease.lost.is_set()
            assert not lease.held
            assert holders(nodes) == [token] * 5

        in_child(work)
        assert holders(nodes) == [token] * 5
        assert lease.held
        lease.extend()
        assert lease.release()


def test_the_childs_copy_of_a_shared_lease(nodes: Servers) -> None:
    """The child may read beside its parent, and neither ends the other's lease."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        lease = redlock.lock("parents", shared=True).acquire()

        def work() -> None:
            assert not lease.held
            assert lease.release() is False
            with redlock.lock("parents", shared=True) as own:
                assert own.held
                assert len(redlock.inspect("parents").readers) == 2
            del own
            gc.collect()

        in_child(work)
        assert lease.held
        assert len(redlock.inspect("parents").readers) == 1
        lease.extend()
        assert lease.release()
        assert redlock.inspect("parents").verdict == "free"


def test_a_child_is_the_owner_of_its_locks(nodes: Servers) -> None:
    """The child has its own pid in the owner, and the parent keeps its own."""
    with Redlock(nodes.urls, owner="job {pid}", **PATIENT) as redlock:

        def work() -> None:
            with redlock.lock("a"):
                assert redlock.inspect("a").owner == f"job {os.getpid()}"

        in_child(work)
        with redlock.lock("a"):
            assert redlock.inspect("a").owner == f"job {os.getpid()}"


def test_a_renewed_lease_is_renewed_by_the_parent_alone(nodes: Servers) -> None:
    """The child's copy is over and nothing renews it there; its own locks are renewed as ever."""
    with Redlock(nodes.urls, ttl=1.0) as redlock:
        await_all_up(redlock, nodes)
        lease = redlock.lock(KEY, renew=True).acquire()

        def work() -> None:
            assert not lease.held
            assert not any(t.name == "quorlock renewal" for t in threading.enumerate())
            assert lease.release() is False
            with redlock.lock(b"childs", renew=True) as own:
                first = own.valid_until
                while quorlock.now() < first + 0.2:
                    time.sleep(0.02)
                assert own.held
                assert not lease.held

        in_child(work)
        assert lease.held
        assert holders(nodes) == [lease.token.encode()] * len(nodes)
        assert lease.release() is True


def test_block_left_in_the_child(nodes: Servers) -> None:
    """A child that leaves the parent's `with` block releases nothing."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        lock = redlock.lock("parents")
        lease = lock.__enter__()

        def work() -> None:
            with pytest.raises(LeaseLost):
                lock.__exit__(None, None, None)
            assert None not in holders(nodes)

        in_child(work)
        assert None not in holders(nodes)
        assert lease.held
        lock.__exit__(None, None, None)
        assert holders(nodes) == [None] * 5


@pytest.mark.parametrize("end", ["garbage", "close", "own lock and close"])
def test_end_of_the_childs_redlock(nodes: Servers, end: str) -> None:
    """The child releases no lease of the parent's, and closes none of its connections."""
    redlock = Redlock(nodes.urls, **PATIENT)
    await_all_up(redlock, nodes)
    lease = redlock.lock("parents").acquire()
    cycle(redlock, "other", 1)
    before = all_connections(nodes)

    def work() -> None:
        nonlocal redlock, lease
        if end == "own lock and close":
            cycle(redlock, "childs", 3)
        if end != "garbage":
            redlock.close()
        del redlock, lease
        gc.collect()

    in_child(work)
    assert None not in holders(nodes)
    assert all(old <= new for old, new in zip(before, all_connections(nodes), strict=True))
    cycle(redlock, "other", 20)
    assert all_connections(nodes) == before, "the parent had to connect again"
    assert lease.held
    assert lease.release()
    redlock.close()


def test_the_childs_own_lock(nodes: Servers) -> None:
    """The child uses new connections, and is refused locks that the parent holds."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        lease = redlock.lock("parents").acquire()
        before = all_connections(nodes)

        def has_own_connections() -> bool:
            return all(old < new for old, new in zip(before, all_connections(nodes), strict=True))

        def work() -> None:
            assert redlock.lock("parents").try_acquire() is None
            assert redlock.lock("parents").locked()
            with redlock.lock("childs", timeout=2.0) as own:
                assert own.held
                assert until(has_own_connections)  # of those that were not needed, a little later
            redlock.close()

        in_child(work)
        assert lease.held
        assert None not in holders(nodes)
        assert lease.release()


@pytest.mark.parametrize("children", [1, 4])
def test_parent_and_children_at_once(nodes: Servers, children: int) -> None:
    """Each runs 200 cycles on a separate resource: every release is True, and no process
    reconnects.
    """
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        cycle(redlock, "warm", 1)
        before = all_connections(nodes)
        started = [
            start_child(lambda n=n: cycle(redlock, f"child-{n}", 200))  # type: ignore[misc]
            for n in range(children)
        ]
        cycle(redlock, "parent", 200)
        for child in started:
            join_child(child)
        assert all(old <= new for old, new in zip(before, all_connections(nodes), strict=True))


def test_exclusion_between_parent_and_children(nodes: Servers) -> None:
    """All use one resource: each writes and reads one file that only the lock protects; nothing
    overlaps.
    """
    read_end, write_end = os.pipe()  # as an unprotected box: one number is in it
    os.write(write_end, b"%8d" % 0)
    with Redlock(nodes.urls, retry_delay=(0.001, 0.004), **PATIENT) as redlock:
        redlock.lock("shared").acquire().release()

        def work() -> None:
            for _ in range(25):
                with redlock.lock("shared", timeout=20.0):
                    assert select.select([read_end], [], [], 0)[0], "another is inside"
                    number = int(os.read(read_end, 8))
                    os.write(write_end, b"%8d" % (number + 1))

        started = [start_child(work) for _ in range(3)]
        try:
            work()
        finally:
            for child in started:
                join_child(child)
    assert int(os.read(read_end, 8)) == 100
    os.close(read_end)
    os.close(write_end)


def test_fork_while_other_threads_acquire(nodes: Servers) -> None:
    """Other threads may hold any mutex at that moment: the child can acquire, and they continue."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        stop = threading.Event()
        faults: list[BaseException] = []

        def acquire_for_ever(number: int) -> None:
            try:
                while not stop.is_set():
                    cycle(redlock, f"thread-{number}", 1)
            except BaseException as error:  # noqa: BLE001
                faults.append(error)

        threads = [threading.Thread(target=acquire_for_ever, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(25):
                in_child(lambda: cycle(redlock, "child", 2))
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
        assert not faults
        assert not any(thread.is_alive() for thread in threads)
    assert [server.keys() for server in nodes] == [[]] * 5


class Local:
    """A thread's local whose finalizer waits in a new child, so that other threads run there."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._parent = os.getpid()
        self._wait = wait

    def __del__(self) -> None:
        if os.getpid() != self._parent:
            self._wait()


@pytest.mark.parametrize("redlock_is_local", [False, True])
def test_fork_while_another_thread_holds_a_reentrant_lock(
    nodes: Servers, *, redlock_is_local: bool
) -> None:
    """The child deletes the locals of that thread, with the lease, and releases nothing."""
    held, leave = threading.Event(), threading.Event()
    local, later = threading.local(), threading.local()
    released: list[bool] = []

    def work(redlock: Redlock | None) -> None:
        local.redlock = redlock or Redlock(nodes.urls, **PATIENT)
        local.redlock.rlock("parents").acquire()
        before = holders(nodes)
        later.slow = Local(lambda: until(lambda: holders(nodes) != before, 0.3))
        held.set()
        leave.wait()
        released.append(local.redlock.rlock("parents").release())

    with Redlock(nodes.urls, **PATIENT) as redlock:
        thread = threading.Thread(target=work, args=(None if redlock_is_local else redlock,))
        thread.start()
        held.wait()
        before = holders(nodes)
        in_child(lambda: None)
        assert holders(nodes) == before
        leave.set()
        thread.join()
    assert released == [True]


def test_fork_while_a_task_in_another_thread_holds_a_reentrant_lock(nodes: Servers) -> None:
    """Asyncio: the same."""
    held, leave = threading.Event(), threading.Event()
    later = threading.local()
    released: list[bool] = []

    async def work() -> None:
        async with quorlock_asyncio.Redlock(nodes.urls, **PATIENT) as redlock:
            await redlock.rlock("parents").acquire()
            before = holders(nodes)
            later.slow = Local(lambda: until(lambda: holders(nodes) != before, 0.3))
            held.set()
            await asyncio.to_thread(leave.wait)
            released.append(await redlock.rlock("parents").release())

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    held.wait()
    before = holders(nodes)
    in_child(lambda: None)
    assert holders(nodes) == before
    leave.set()
    thread.join()
    assert released == [True]


def test_fork_while_it_connects(nodes: Servers) -> None:
    """Connectors run in the parent; the child has none of them, and starts its own."""
    for _ in range(10):
        redlock = Redlock(nodes.urls, **PATIENT)
        thread = threading.Thread(target=cycle, args=(redlock, "thread", 1))
        thread.start()
        in_child(lambda r=redlock: cycle(r, "child", 1))  # type: ignore[misc]
        thread.join(10)
        cycle(redlock, "parent", 1)
        redlock.close()


def test_sockets_of_threads_that_connect(
    mortal_nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has none of these threads, and closes its copies of their sockets."""
    for server in mortal_nodes:
        server.stop()
    dialled, handshake = list[Any](), connect._handshake

    def noting(sock: Any, *rest: Any) -> Any:
        dialled.append(sock)
        return handshake(sock, *rest)

    monkeypatch.setattr(connect, "_handshake", noting)
    with Redlock(mortal_nodes.urls, connect_timeout=10.0) as redlock:
        thread = threading.Thread(target=cycle, args=(redlock, "thread", 1))
        thread.start()
        assert until(lambda: len(dialled) == len(mortal_nodes))

        def work() -> None:
            assert [sock.fileno() for sock in dialled] == [-1] * len(mortal_nodes)

        in_child(work)
        for server in mortal_nodes:
            server.cont()
        thread.join(10)
        assert not thread.is_alive()
        assert [server.keys() for server in mortal_nodes] == [[]] * 5


def test_sockets_with_tls(nodes: Servers) -> None:
    """The child closes the sockets that TLS has made of the connected ones."""
    with TlsFront(nodes[0].url) as front:
        node = Node("localhost", front.port, tls=front.client_context())
        redlock = Redlock([node], **PATIENT)
        assert redlock.lock("a", timeout=5.0).acquire().release()
        (connection_set,) = redlock._session.driver._pool.all()
        (connection,) = connection_set.connections
        assert connection is not None

        def work() -> None:
            assert connection.fileno() == -1

        in_child(work)
        redlock.close()


def test_fork_in_a_background_thread() -> None:
    """The child's copy of the thread ends with its step, though there is more work."""
    pids: list[int] = []

    def step() -> None:
        if not pids:
            thread.wake()
            pids.append(os.fork())

    thread = BackgroundThread("forks", step)
    thread.wake()
    assert until(lambda: bool(pids))

    def has_ended() -> bool:
        return os.waitpid(pids[0], os.WNOHANG) == (pids[0], 0)

    ended = until(has_ended)
    if not ended:
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)
    thread.close(FOR_EVER)
    assert ended


def test_grandchild(nodes: Servers) -> None:
    """Each generation holds its own and nothing else."""
    with Redlock(nodes.urls, **PATIENT) as redlock:
        lease = redlock.lock("parents").acquire()

        def child() -> None:
            own = redlock.lock("childs", timeout=2.0).acquire()
            assert not lease.held

            def grandchild() -> None:
                assert not lease.held
                assert not own.held
                assert own.release() is False
                cycle(redlock, "grandchilds", 5)
                assert redlock.lock("childs").try_acquire() is None

            in_child(grandchild)
            assert own.held
            assert own.release()

        in_child(child)
        assert lease.held
        assert lease.release()


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
def test_what_the_parent_keeps_out(api: str) -> None:
    """The parent knows that the node lost its keys as a replica, and so does the child."""
    settings: dict[str, Any] = {"ttl": 8.0, "max_ttl": 8.0, "outage_timeout": 0.3}
    kind: Any = Redlock if api == "blocking" else quorlock_asyncio.Redlock

    async def ask(redlock: Any, awaited: str) -> str:
        """Ask the node until it votes, or until an error matches; return the lease or error."""
        while True:
            try:
                lease = redlock.lock("x").try_acquire()
                return str(lease if api == "blocking" else await lease)
            except QuorlockError as error:
                if re.search(awaited, str(error)):
                    return str(error)
                await asyncio.sleep(0.01)

    with Servers(2, tcp=True) as (node, other):
        redlock = kind([node.tcp_url], **settings)
        assert "held for" in asyncio.run(ask(redlock, "was"))
        node.execute("REPLICAOF", "127.0.0.1", other.port)
        assert "held for" not in asyncio.run(ask(redlock, "READONLY|replica|not a master"))
        node.execute("REPLICAOF", "NO", "ONE")
        assert "was a replica" in asyncio.run(ask(redlock, "was a replica"))

        def work() -> None:
            assert "was a replica" in asyncio.run(ask(redlock, "was a replica"))

        in_child(work)
        if api == "blocking":
            redlock.close()


def test_asyncio(nodes: Servers) -> None:
    """Forked in a running loop: the child's new loop acquires, and the parent's continues."""

    async def cycles(redlock: quorlock_asyncio.Redlock, resource: str, rounds: int) -> None:
        for _ in range(rounds):
            async with redlock.lock(resource, timeout=5.0) as lease:
                assert lease.held

    async def main() -> None:
        redlock = quorlock_asyncio.Redlock(nodes.urls, **PATIENT)
        lease = await redlock.lock("parents").acquire()
        while not all(all_connections(nodes)):
            await cycles(redlock, "warm", 1)
        before = all_connections(nodes)

        async def childs_main() -> None:
            assert not lease.held
            assert await lease.release() is False
            with pytest.raises(LeaseLost):
                await lease.extend()
            assert await redlock.lock("parents").try_acquire() is None
            await cycles(redlock, "childs", 200)
            await redlock.close()

        def work() -> None:
            # As multiprocessing does it: the loop of the parent is not running here.
            asyncio.events._set_running_loop(None)
            asyncio.run(childs_main())

        child = start_child(work)
        await cycles(redlock, "parent", 200)
        await asyncio.to_thread(join_child, child)
        assert all_connections(nodes) == before
        assert lease.held
        assert await lease.release()
        await redlock.close()

    asyncio.run(main())


def process(urls: list[str], redlock: Redlock, results: Any) -> None:
    """Use the inherited Redlock in a multiprocessing child."""
    cycle(redlock, "child", 50)
    kept = redlock.lock("kept by child").acquire()
    results.put((quorlock.now() > 0, kept.held))
    # The end of multiprocessing's children: their own atexit, os._exit.


def test_multiprocessing(nodes: Servers) -> None:
    """The fork method, with processes that end in their own way."""
    context = multiprocessing.get_context("fork")
    with Redlock(nodes.urls, **PATIENT) as redlock:
        await_all_up(redlock, nodes)
        lease = redlock.lock("parents").acquire()
        results: Any = context.SimpleQueue()
        children = [
            context.Process(target=process, args=(nodes.urls, redlock, results)) for _ in range(1)
        ]
        for child in children:
            child.start()
        cycle(redlock, "parent", 100)
        for child in children:
            child.join(CHILD_TIMEOUT)
            assert child.exitcode == 0
            child.close()
        assert results.get() == (True, True)
        results.close()
        assert lease.held
        assert None not in holders(nodes)
        assert lease.release()
    # The child's own lease: multiprocessing ends its children without an interpreter's exit, so
    # it may live on until its ttl; nothing is promised but that it is not the parent's business.
    for server in nodes:
        assert set(server.keys()) <= {b"kept by child"}
