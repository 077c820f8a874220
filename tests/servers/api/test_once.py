"""Once in both APIs: done at most once per interval, and what becomes of a holder that fails."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import (
    AcquireTimeout,
    ConfigError,
    LeaseLost,
    NodeError,
    QuorlockError,
    QuorumUnreachable,
)
from quorlock._api.lease import LeaseBase
from quorlock._api.lease_state import Released
from quorlock._core.owner import owner_in
from quorlock._core.rounds import Target
from quorlock.testing.memory import MemoryNodes
from quorlock.testing.servers import Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import (
    Face,
    holders,
    keys_on,
    left_over,
    raises,
    real,
    steal,
    until_over,
    wipe,
)

SETTINGS: dict[str, Any] = {"node_timeout": 0.25, "retry_delay": (0.002, 0.01)}
EVERY = 3_600.0


async def run(once: aio.Once, work: Any) -> Any:
    """Call `run` with a function that works without waiting, in either face."""
    if isinstance(real(once), quorlock.Once):
        return real(once).run(work)

    async def work_here(lease: aio.Lease) -> Any:
        return work(lease)

    return await once.run(work_here)


async def test_it_is_done_once(face: Face, nodes: Servers) -> None:
    """Also by other clients, for the whole interval; the keys outlive every ttl of a lease."""
    async with face.redlock(nodes.urls, **SETTINGS) as one, face.redlock(nodes.urls) as two:
        done: list[str] = []

        def send(_: object) -> str:
            done.append("x")
            return "sent"

        found = [await run(r.once("mail:42", every=EVERY), send) for r in (one, two, one)]
        assert (found, done) == (["sent", None, None], ["x"])
        assert await two.once("mail:42", every=EVERY).try_acquire() is None
        with pytest.raises(
            AcquireTimeout, match=r"^'mail:42' was done by .*counts as done"
        ) as info:
            await two.lock("mail:42", timeout=0).acquire()
        error = pickle.loads(pickle.dumps(info.value))
        assert error.done
        assert EVERY - 10 < (error.holder_ttl or 0) <= EVERY
        assert await until_async(
            lambda: all(
                EVERY - 10 < node.execute("PTTL", "mail:42") / 1000 <= EVERY for node in nodes
            )
        )


async def test_after_the_interval_it_is_done_again(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        once = redlock.once("a", every=0.3)
        assert await run(once, lambda _: 1) == 1
        assert await run(once, lambda _: 1) is None
        assert await until_async(lambda: not keys_on(nodes))
        assert await run(once, lambda _: 2) == 2


async def test_while_it_is_being_done_others_do_nothing(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as one, face.redlock(nodes.urls) as two:
        lease = await one.once("a", every=EVERY).try_acquire()
        assert lease is not None
        async with lease:
            assert await two.once("a", every=EVERY).try_acquire() is None
            assert not (await two.inspect("a")).done
        assert not lease.held
        assert (await two.inspect("a")).done
        assert await two.once("a", every=EVERY).try_acquire() is None


async def test_an_exception_releases_it(face: Face, nodes: Servers) -> None:
    """Another client may do it at once; the exception comes out unchanged."""
    async with face.redlock(nodes.urls, **SETTINGS) as one, face.redlock(nodes.urls) as two:
        error = await raises(ZeroDivisionError, run(one.once("a", every=EVERY), lambda _: 1 // 0))
        assert not hasattr(error, "__notes__")
        assert keys_on(nodes) == {}
        assert await run(two.once("a", every=EVERY), lambda _: 1) == 1


async def test_a_release_by_the_work_means_not_done(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.once("a", every=EVERY).try_acquire()
        assert lease is not None
        async with lease:
            assert await lease.release()
        assert keys_on(nodes) == {}


async def test_work_during_which_its_redlock_was_closed_is_not_done(
    face: Face, nodes: Servers
) -> None:
    """`close` has released the lease, and the work may be done again. The caller gets an error."""
    redlock = face.redlock(nodes.urls, **SETTINGS)
    lease = await redlock.once("a", every=EVERY).try_acquire()
    assert lease is not None

    async def work() -> None:
        async with lease:
            await redlock.close()

    error = await raises(LeaseLost, work())
    assert error.reason == "released"
    assert keys_on(nodes) == {}


async def test_a_cancelled_keep_of_an_adopted_lease_releases_it(mortal_nodes: Servers) -> None:
    """Also if it was cancelled before a connection was there to send anything over."""
    async with aio.Redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        connectors = redlock._session.driver.loop_driver().connectors
        lease = await redlock.lock("a").acquire()
        # Where the acquire is not answered by then, a hand-over suppresses releases of the token,
        # and the key stays until its ttl.
        assert await until_async(
            lambda: not any(one.connection and one.connection.open_requests for one in connectors)
        )
        lease = await redlock.adopt(await lease.hand_over())
        for node in mortal_nodes:
            node.execute("CLIENT", "KILL", "TYPE", "normal")
            node.stop()
        assert await until_async(lambda: not any(one.connection for one in connectors))
        keeping = asyncio.create_task(lease.keep(60.0))
        await asyncio.sleep(0)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        assert not lease.held
        for node in mortal_nodes:
            node.cont()
        assert await until_async(lambda: not keys_on(mortal_nodes))


async def test_a_node_that_missed_the_mark_is_free_again(face: Face, mortal_nodes: Servers) -> None:
    """A quorum has the mark. The token is released where it stayed, once the node is back."""
    async with face.redlock(mortal_nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        missed = mortal_nodes[4]
        missed.execute("CLIENT", "KILL", "TYPE", "normal")
        missed.stop()
        await lease.keep(60.0)
        missed.cont()
        assert await until_async(lambda: not missed.keys())


async def test_a_lease_that_is_kept_by_another_call_is_not_released(
    face: Face, nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call at the same time sends nothing, since the first one needs the token."""
    keepable = LeaseBase._keepable

    def while_another_call_ends_it(lease: LeaseBase[Any], seconds: float) -> Any:
        facts = keepable(lease, seconds)
        assert lease._session.end(lease._state, Released.KEPT)
        return facts

    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        monkeypatch.setattr(LeaseBase, "_keepable", while_another_call_ends_it)
        error = await raises(LeaseLost, lease.keep(60.0))
        assert error.reason == "kept"
    assert [node.execute("GET", "a") is not None for node in nodes] == [True] * 5


def test_a_killed_worker_frees_it_after_its_ttl(nodes: Servers) -> None:
    """A crash is no success."""
    program = (
        "import quorlock, sys, time\n"
        "redlock = quorlock.Redlock(sys.argv[1:], node_timeout=0.25)\n"
        "lease = redlock.once('a', every=3600, ttl=1.0).try_acquire()\n"
        "print(lease.held, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, *nodes.urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "True\n"
        os.kill(worker.pid, signal.SIGKILL)
    with quorlock.Redlock(nodes.urls, **SETTINGS) as redlock:
        once = redlock.once("a", every=EVERY)
        assert until(lambda: once.run(lambda _: "done"), 5) == "done"


async def test_it_shows_who_has_done_it_and_no_secret(face: Face, nodes: Servers) -> None:
    """Inspections and errors do; the mark names the owner, and releases nothing else."""
    async with face.redlock(nodes.urls, **SETTINGS, owner="web 3") as redlock:
        lease = await redlock.once("a", every=EVERY).try_acquire()
        assert lease is not None
        token = lease.token
        await lease.keep(EVERY)
        found = await redlock.inspect("a")
        assert (found.verdict, found.done, found.owner) == ("held", True, "web 3")
        assert EVERY - 10 < (found.ttl_left or 0) <= EVERY
        assert all(view.done and view.owner == "web 3" for view in found.nodes if view.holder)
        error = await raises(AcquireTimeout, redlock.lock("a", timeout=0).acquire())
        assert error.holder == "web 3"
        assert token[:32] not in str(error) + repr(found)
        assert await redlock.lock("a").locked()
        assert await redlock.election("a").leader() is None
        assert not await redlock.release("a", token)
        assert not await redlock.extend("a", token)
        assert (await redlock.inspect("a")).done
        holder = found.nodes[0].holder
        assert holder is not None
        assert await redlock.break_lease("a", holder)
        assert keys_on(nodes) == {}


async def test_a_nameless_client_leaves_a_mark_too(face: Face, nodes: Servers) -> None:
    """Also an owner of the greatest length."""
    for owner in (None, "x" * 128):
        async with face.redlock(nodes.urls, **SETTINGS, owner=owner) as redlock:
            assert await run(redlock.once("a", every=EVERY), lambda _: 1) == 1
            found = await redlock.inspect("a")
            assert found.done
            assert found.owner == (owner and owner[:127])
            await raises(AcquireTimeout, redlock.lock("a", timeout=0).acquire())
            wipe(nodes, "a")


async def test_keeping_ends_the_lease(face: Face, nodes: Servers) -> None:
    """Over, but not lost; the verbs of the lease say what has become of it."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        event = lease.lost
        await lease.keep(EVERY)
        assert not lease.held
        assert not event.is_set()
        for verb in (lease.extend, lease.hand_over, lambda: lease.keep(1)):
            error = await raises(LeaseLost, verb())
            assert error.reason == "kept"
            assert "was kept as done by this process" in str(error)
        assert await lease.release() is False
        assert (await redlock.inspect("a")).done


async def test_in_a_block_of_a_lock_it_stays_kept(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        async with redlock.lock("a") as lease:
            await lease.keep(EVERY)
        assert (await redlock.inspect("a")).done


async def test_a_renewed_lease_is_kept(face: Face, nodes: Servers) -> None:
    """Renewal ends before: no extension follows, and nothing reports a loss."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.once("a", every=EVERY, ttl=1.0, renew=True).try_acquire()
        assert lease is not None
        event, first = lease.lost, lease.valid_until
        async with lease:
            await until_async(lambda: lease.valid_until > first)
        await asyncio.sleep(1.1)
        assert not event.is_set()
        assert (await redlock.inspect("a")).done


async def test_nothing_of_its_renewal_follows_the_mark(face: Face, nodes: Servers) -> None:
    """A pass that is under way is waited for, as far as one can, and none begins after it."""
    with Proxy(nodes[0].url) as slow:
        urls = [slow.url, nodes[1].url, nodes[2].url]
        async with face.redlock(urls, node_timeout=0.2, ttl=2.0) as redlock:
            lease = await redlock.once("a", every=EVERY, renew=True).try_acquire()
            assert lease is not None
            renewal: Any = lease._state.renewal
            slow.hold()
            assert await until_async(lambda: renewal.in_flight)
            await lease.keep(EVERY)
            assert lease._state.renewal is None
            assert face.name == "asyncio" or not renewal.in_flight
            slow.resume()
            assert await until_async(lambda: not renewal.in_flight)
            assert (await redlock.inspect("a")).done


async def test_the_mark_follows_the_keys_that_renewal_restored(face: Face, nodes: Servers) -> None:
    """Restored keys may be in flight on other connections until renewal has been stopped."""
    async with face.redlock(nodes.urls[:3], **SETTINGS) as redlock:
        lease = real(await redlock.lock("a").acquire())
        facts, kept_ms = lease._keepable(EVERY)
        lease._state.add_release_target(Target(0b111, object()))
        keep = next(lease._keeping(facts, kept_ms))
        assert keep.behind == lease._state.target != facts.target


async def test_a_fence_belongs_to_the_work(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        fences: list[int] = []
        for name in "ab":
            once = redlock.once(name, every=EVERY, fencing=True)
            await run(once, lambda lease: fences.append(lease.fence))
        await redlock.break_lease("a", (await redlock.inspect("a")).nodes[0].holder or "")
        await run(
            redlock.once("a", every=1, fencing=True), lambda lease: fences.append(lease.fence)
        )
        assert fences[0] < fences[2]


async def test_a_lost_lease_is_not_kept(face: Face, nodes: Servers) -> None:
    """LeaseLost: another may do the work again, or does it; its key is left alone."""
    async with face.redlock(nodes.urls, node_timeout=0.05) as redlock:
        lease = await redlock.once("a", every=EVERY, ttl=0.3).try_acquire()
        assert lease is not None
        await until_over(lease)
        assert (await raises(LeaseLost, lease.keep(1))).reason == "expired"
        late = await redlock.once("b", every=EVERY, ttl=0.3).try_acquire()
        assert late is not None
        with pytest.raises(LeaseLost):
            async with late:
                await until_over(late)
        assert await until_async(lambda: not keys_on(nodes))


@pytest.mark.parametrize("how", ["taken", "evicted"])
async def test_a_lease_whose_keys_are_gone_is_not_kept(
    face: Face, nodes: Servers, how: str
) -> None:
    """A quorum must have had the token until it took the mark."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[:3], "a")
        if how == "taken":
            steal(nodes[:3], "a")
        error = await raises(LeaseLost, lease.keep(EVERY))
        assert error.reason == how
        assert error.lease is real(lease)
        assert not lease.held
        if how == "taken":
            assert await until_async(lambda: holders(nodes[:3], "a") == [b"theirs"] * 3)


async def test_a_minority_that_lacks_the_key_does_not_matter(face: Face, nodes: Servers) -> None:
    """The mark is on the nodes that had the token."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        wipe(nodes[:2], "a")
        await lease.keep(EVERY)
        assert holders(nodes[:2], "a") == [None, None]
        assert await until_async(
            lambda: all(
                owner_in(value or b"").startswith(b"~") for value in holders(nodes[2:], "a")
            )
        )
        assert (await redlock.inspect("a")).done


async def test_a_minority_that_hangs_gets_the_mark_later(face: Face, mortal_nodes: Servers) -> None:
    """Keeping does not wait for it, and it has the mark when it resumes."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        for node in nodes[:2]:
            node.stop()
        await lease.keep(EVERY)
        for node in nodes[:2]:
            node.cont()
        marks = holders(nodes[2:], "a")
        assert await until_async(lambda: holders(nodes[:2], "a") == marks[:2])


async def test_without_a_quorum_it_is_tried_until_the_lease_ends(
    face: Face, mortal_nodes: Servers
) -> None:
    """Then LeaseLost: the work was done, but no quorum has confirmed that."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, node_timeout=0.05) as redlock:
        lease = await redlock.lock("a", ttl=0.8).acquire()
        until = lease.valid_until
        for node in nodes[:3]:
            node.stop()
        assert (await raises(LeaseLost, lease.keep(EVERY))).reason == "unreachable"
        assert until - 0.1 < quorlock.now() < until + 1.0


async def test_a_quorum_that_comes_back_in_time_keeps_it(face: Face, mortal_nodes: Servers) -> None:
    """The request is repeated, and what a node did twice counts once."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, node_timeout=0.05) as redlock:
        lease = await redlock.lock("a", ttl=10.0).acquire()
        for node in nodes[:3]:
            node.stop()

        def resume() -> None:
            for node in nodes[:3]:
                node.cont()

        timer = threading.Timer(0.7, resume)
        timer.start()
        await lease.keep(EVERY)
        timer.join()
        assert (await redlock.inspect("a")).done


async def test_a_node_that_restarted_does_not_count(face: Face, mortal_nodes: Servers) -> None:
    """Three of five forget the lock: the lease is lost, whatever they say."""
    nodes = mortal_nodes
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        lease = await redlock.lock("a", ttl=2.0).acquire()
        for node in nodes[:3]:
            node.kill()
            node.restart()
        assert (await raises(LeaseLost, lease.keep(EVERY))).reason in ("evicted", "unreachable")


async def test_nodes_that_refuse_for_good(face: Face, nodes: Servers) -> None:
    """NodeError, and no lease is left."""
    with Servers(3, tcp=True) as own:
        for server in own:
            server.execute("ACL", "SETUSER", "me", "reset", "on", ">pw", "~*", "&*", "+@all")
        urls = [url.replace("unix://", "unix://me:pw@") for url in own.urls]
        async with face.redlock(urls, **SETTINGS, restart_guard=None) as redlock:
            lease = await redlock.lock("a").acquire()
            for server in own:
                server.execute("ACL", "SETUSER", "me", "-set")
            await raises(NodeError, lease.keep(EVERY))
            assert not lease.held


async def test_nodes_that_do_not_answer_are_an_error(face: Face, mortal_nodes: Servers) -> None:
    """None would mean that the work is being done, or done."""
    async with face.redlock(mortal_nodes.urls, node_timeout=0.05) as redlock:
        for node in mortal_nodes[:3]:
            node.stop()
        await raises(QuorumUnreachable, redlock.once("a", every=EVERY).try_acquire())


async def test_many_workers_do_it_once(face: Face, nodes: Servers) -> None:
    """Threads (tasks) of one client, and of many."""
    async with face.redlock(nodes.urls, max_ttl=10.0, ttl=8.0) as redlock:
        done: list[int] = []

        async def work(number: int) -> None:
            for name in "abcdefgh":
                lease = await redlock.once(name, every=EVERY).try_acquire()
                if lease is not None:
                    async with lease:
                        done.append(number)

        assert await face.crowd(8, work) == [None] * 8
        assert len(done) <= 8
        for name in "abcdefgh":  # two that tried at once may have refused each other
            await run(redlock.once(name, every=EVERY), lambda _: done.append(0))
        assert len(done) == 8


async def test_as_a_decorator(face: Face, nodes: Servers) -> None:
    """A call does the work, or returns None."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        once: Any = real(redlock.once("a", every=EVERY))
        if face.name == "asyncio":

            @once  # type: ignore[untyped-decorator]
            async def send_later(number: int) -> int:
                return number

            assert (await send_later(5), await send_later(6)) == (5, None)
        else:

            @once  # type: ignore[untyped-decorator]
            def send(number: int) -> int:
                return number

            assert (send(5), send(6)) == (5, None)


async def test_a_cancelled_worker_releases(nodes: Servers) -> None:
    """asyncio: a cancellation is no success."""
    async with aio.Redlock(nodes.urls, **SETTINGS) as redlock:
        began = asyncio.Event()

        async def work(_: aio.Lease) -> None:
            began.set()
            await asyncio.sleep(30)

        task = asyncio.create_task(redlock.once("a", every=EVERY).run(work))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until_async(lambda: not keys_on(nodes))


async def test_a_lost_lease_cancels_the_work(nodes: Servers) -> None:
    """asyncio: as in any block of a lease."""
    async with aio.Redlock(nodes.urls, node_timeout=0.05) as redlock:

        async def work(_: aio.Lease) -> None:
            await asyncio.sleep(30)

        with pytest.raises(LeaseLost):
            await redlock.once("a", every=EVERY, ttl=0.3).run(work)


def test_a_forked_child_keeps_nothing(nodes: Servers) -> None:
    """Blocking: the lease is the parent's, who keeps it."""
    with quorlock.Redlock(nodes.urls, node_timeout=2.0, ttl=20.0) as redlock:
        lease = redlock.once("a", every=EVERY).try_acquire()
        assert lease is not None
        pid = os.fork()
        if not pid:
            status = 1
            try:
                with pytest.raises(LeaseLost, match="belongs to the parent"):
                    lease.keep(EVERY)
                assert redlock.once("a", every=EVERY).try_acquire() is None
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        with lease:
            pass
        assert redlock.inspect("a").done


async def test_on_memory_nodes(face: Face) -> None:
    """Fake nodes are enough, also if a minority hangs."""
    with MemoryNodes(3) as memory:
        async with face.redlock(memory.urls, node_timeout=0.25) as redlock:
            memory[0].hang()
            once = redlock.once("a", every=EVERY)
            assert (await run(once, lambda _: 1), await run(once, lambda _: 1)) == (1, None)
            assert (await redlock.inspect("a")).done
            memory.start()


async def test_what_cannot_work_is_refused(face: Face, nodes: Servers) -> None:
    """Each argument with its value and what to do, before anything is sent."""
    async with face.redlock(nodes.urls, **SETTINGS) as redlock:
        wrong: Any
        for wrong in (0, -1, float("inf"), float("nan"), "1h", True, None, 1e12):
            with pytest.raises(ConfigError, match="every="):
                redlock.once("a", every=wrong)
        with pytest.raises(ConfigError, match=r"every=0\.0001: give at least 0\.001"):
            redlock.once("a", every=0.0001)
        for wrong in ({"ttl": 0}, {"ttl": 60}, {"renew": 2}, {"fencing": 1}, {"max_hold": 0}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                redlock.once("a", every=1, **wrong)
        lease = await redlock.lock("a").acquire()
        for wrong in (0, -1, "1h", 0.0001):
            assert str(await raises(ConfigError, lease.keep(wrong))).startswith("seconds=")
        assert lease.held
        assert await lease.release()
        once: Any = redlock.once("a", every=1)
        with pytest.raises(ConfigError, match="work=5: give a"):
            await once.run(5)
    assert left_over(nodes) == {}


async def test_it_says_what_it_is(face: Face, nodes: Servers) -> None:
    async with face.redlock(nodes.urls) as redlock:
        once: Any = real(redlock.once("a", every=EVERY, ttl=5))
        assert repr(once) == "<Once 'a', every 3600.0 s>"
        assert (once.resource, once.ttl, once.every) == ("a", 5.0, EVERY)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy.copy(once)
        with pytest.raises(AttributeError, match="it does not wait"):
            _ = once.acquire


class Witness:
    """Threads of several clients that do the same work, while one node at a time is away.

    done: How often each job was done.
    kept: How often each was done by a call that reported no loss, so that it counts as done.
    """

    def __init__(self, nodes: Servers) -> None:
        self.nodes = nodes
        self.done: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.again: list[str] = []  # done after they were kept
        self._is_over = threading.Event()

    def trouble(self, faults: int) -> None:
        """Stop or kill one node at a time; those that were killed return empty."""
        for turn in range(faults):
            node = self.nodes[turn % len(self.nodes)]
            if turn % 2:
                node.stop()
                until(lambda: False, 0.15)
                node.cont()
            else:
                node.kill()
                until(lambda: False, 0.05)
                node.restart()
            until(lambda: False, 1.1)  # a node that was emptied votes again after max_ttl

    def work(self, do: Any) -> None:
        """Do one job after the other, as fast as a few clients can."""
        number = 0
        settings: dict[str, Any] = {"ttl": 1.0, "max_ttl": 1.0, "outage_timeout": 0.2}
        with quorlock.Redlock(self.nodes.urls, node_timeout=0.1, **settings) as redlock:
            while not self._is_over.is_set():
                name = f"job:{number // 3}"
                number += 1
                with contextlib.suppress(QuorlockError):  # not kept: it may be done again
                    if do(redlock, name, lambda name=name: self.note(name)):
                        self.kept[name] += 1

    def note(self, name: str) -> bool:
        if self.kept[name]:
            self.again.append(name)
        self.done[name] += 1  # under the lock of this name
        return True

    def watch(self, do: Any, faults: int, jobs: int) -> None:
        """Have the work done until there were so many faults and jobs."""
        threads = [threading.Thread(target=self.work, args=(do,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            self.trouble(faults)
            assert until(lambda: len(self.done) > jobs, 30)
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()


def by_once(redlock: quorlock.Redlock, name: str, note: Callable[[], bool]) -> bool | None:
    return redlock.once(name, every=60.0).run(lambda _: note())


def by_a_lock(redlock: quorlock.Redlock, name: str, note: Callable[[], bool]) -> bool:
    if lease := redlock.lock(name).try_acquire():
        with lease:
            return note()
    return False


def test_a_witness_sees_no_work_done_twice(mortal_nodes: Servers) -> None:
    """Nodes are stopped and killed; the control, a plain lock, does nearly all work twice."""
    witness = Witness(mortal_nodes)
    witness.watch(by_once, faults=3, jobs=20)
    assert (max(witness.kept.values()), witness.again) == (1, [])
    for node in mortal_nodes:
        node.flush()
    control = Witness(mortal_nodes)
    control.watch(by_a_lock, faults=0, jobs=20)
    assert len(set(control.again)) > 10
