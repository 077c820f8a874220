"""A signal handler runs in the middle of our code: it may call the library, and it may raise.

Systematically: at the k-th line of our own code that the thread comes to, a handler is called that
uses the same Redlock (blocking), or an exception is raised in the event loop's thread (asyncio).
The suite takes every some-th k, beginning at a random one; QUORLOCK_THOROUGH=1 takes every k.  Then
real signals at random instants.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import random
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import quorlock.asyncio as aio
from quorlock import LeaseLost, QuorlockError, Redlock
from tests.exhaustive.test_interrupts import (
    RESOURCE,
    THOROUGH,
    Interrupter,
    Scene,
    in_use,
    maker,
    watchdog,
)
from tests.harness.support.wait import until, until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType

    from quorlock import Lease
    from quorlock.testing.servers import Servers

POINTS_MAX = 20_000
CLEAN_WITHIN = 1.0  # seconds


class SoftLimit(Exception):
    """An exception like that of a task queue's soft time limit."""


# --- a handler that calls the library --------------------------------------------------------


class Handler(Interrupter):
    """Calls a function at the k-th point, in the same thread and on top of its stack."""

    def __init__(self, k: int, call: Callable[[], object]) -> None:
        super().__init__(k, "line")
        self._call = call
        self.outcome = ""

    def _point(self, frame: FrameType) -> None:
        self.seen += 1
        if self.seen == self.k:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            try:
                self.outcome = str(self._call())
            except QuorlockError as error:
                self.outcome = type(error).__name__
            sys.settrace(None)  # no later point counts


def acquires(redlock: Redlock, handler: Handler) -> None:
    lease = redlock.lock(RESOURCE, timeout=2.0)
    with handler:
        held = lease.acquire()
    held.release()


def enters(redlock: Redlock, handler: Handler) -> None:
    lock = redlock.lock(RESOURCE, timeout=2.0)
    with handler, lock:
        pass


def extends(redlock: Redlock, handler: Handler) -> None:
    lease = redlock.lock(RESOURCE, timeout=2.0).acquire()
    with handler:
        lease.extend()
    lease.release()


def releases(redlock: Redlock, handler: Handler) -> None:
    lease = redlock.lock(RESOURCE, timeout=2.0).acquire()
    with handler:
        lease.release()


def hands_over(redlock: Redlock, handler: Handler) -> None:
    lease = redlock.lock(RESOURCE, timeout=2.0).acquire()
    with handler:
        ticket = lease.hand_over()
    nodes = [state.node for state in redlock._session.driver.node_states.all]
    with Redlock(nodes) as other:  # the handler may have closed the giver
        other.adopt(ticket).release()


ACTS = [acquires, enters, extends, releases, hands_over]


def by_a_handler(name: str, redlock: Redlock, other: Lease) -> object:
    """Run the handler's actions; `other` is held by this process."""
    if name == "release":
        return other.release()
    if name == "extend":
        other.extend()
        return None
    if name == "hand_over":
        return redlock.adopt(other.hand_over()).release()
    if name == "acquire":
        return redlock.lock("by-a-handler", timeout=2.0).acquire().release()
    if name == "try":
        return redlock.lock(RESOURCE).try_acquire()  # dropped at once: released as garbage
    if name == "close":
        redlock.close()
    return [node.up for node in redlock.nodes]


@pytest.mark.parametrize(
    "does", ["release", "extend", "hand_over", "acquire", "try", "close", "nodes"]
)
@pytest.mark.parametrize("act", ACTS)
def test_a_handler_calls_the_library(
    nodes: Servers, act: Callable[[Redlock, Handler], None], does: str
) -> None:
    """The handler returns in time, and so does the interrupted call; nothing is left."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    scene.begin(warm=True)
    stride = 1 if THOROUGH else 83
    called = 0
    for k in range(random.randint(1, stride), POINTS_MAX, stride):
        other = scene.redlock.lock("other", timeout=2.0).acquire()
        handler = Handler(k, lambda: by_a_handler(does, scene.redlock, other))  # noqa: B023
        with watchdog(), contextlib.suppress(QuorlockError):
            act(scene.redlock, handler)
        called += bool(handler.where)
        if does == "close" and handler.where:
            scene.begin(warm=False)
        else:
            other.release()
        where = f"{k}: {handler.where}: {handler.outcome}"
        assert scene.clean(), f"{where}: keys left: {scene.values()}"
        if does in ("release", "hand_over", "acquire") and handler.where:
            assert handler.outcome == "True", where
        pool = scene.redlock._session.driver._pool
        assert until(lambda: not in_use(pool), CLEAN_WITHIN), where  # noqa: B023
        if not handler.where:
            break
    else:
        pytest.fail("it never completes")
    scene.redlock.close()
    assert called or stride > 1


def test_a_handler_ends_all_in_a_release(nodes: Servers) -> None:
    """A handler releases the same lease, closes, and exits: the first release must be sent."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    for k in itertools.count(1):
        scene.begin(warm=True)
        lease = scene.redlock.lock(RESOURCE, timeout=2.0).acquire()

        def ends() -> None:
            lease.release()  # noqa: B023
            scene.redlock.close()
            raise SystemExit

        handler = HandlerIn(k, ends, "Lease._release")
        with watchdog(), contextlib.suppress(SystemExit), handler:
            lease.release()
        assert scene.clean(), f"{k}: {handler.where}: keys left: {scene.values()}"
        if not handler.where:
            break
    scene.redlock.close()
    assert k > 5


class HandlerIn(Handler):
    """Calls a function at the k-th line of one function of the library."""

    def __init__(self, k: int, call: Callable[[], object], name: str) -> None:
        super().__init__(k, call)
        self._name = name

    def _point(self, frame: FrameType) -> None:
        if frame.f_code.co_qualname == self._name:
            super()._point(frame)


@pytest.mark.parametrize("within", ["_adopted", "adopt", "Driver._complete"])
@pytest.mark.parametrize("renew", [False, True])
def test_a_handler_closes_while_a_ticket_is_adopted(
    nodes: Servers, within: str, renew: bool
) -> None:
    """No lease of the closed Redlock is held. It is released, or its ticket is good elsewhere."""
    outcomes = set[str]()
    with Redlock(nodes.urls) as other:
        for k in itertools.count(1):
            ticket = other.lock(RESOURCE, timeout=2.0).acquire().hand_over()
            with Redlock(nodes.urls) as redlock:
                assert redlock.lock("first").acquire().release()
                handler, adopted = HandlerIn(k, redlock.close, within), None
                with watchdog(), contextlib.suppress(QuorlockError), handler:
                    adopted = redlock.adopt(ticket, renew=renew)
                held = adopted is not None and adopted.held
                assert held is not bool(handler.where), f"{k}: {handler.where}"
                if not handler.where:
                    break
                assert redlock._session.live == {}, f"{k}: {handler.where}"
            with contextlib.suppress(LeaseLost):
                assert other.adopt(ticket).release()
                outcomes.add("good elsewhere")
            assert not other.lock(RESOURCE).locked()
    assert outcomes == {"good elsewhere"}


def test_asyncio_closes_while_a_ticket_is_adopted(nodes: Servers) -> None:
    """No lease of the closed Redlock is held, at whatever turn of the loop it is closed."""

    async def main() -> None:
        outcomes = set[str]()
        async with aio.Redlock(nodes.urls) as other:
            for turns in itertools.count():
                lease = await other.lock(RESOURCE, timeout=2.0).acquire()
                ticket = await lease.hand_over()
                async with aio.Redlock(nodes.urls) as redlock:
                    assert await (await redlock.lock("first").acquire()).release()
                    adopting = asyncio.create_task(redlock.adopt(ticket, renew=True))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    is_late = adopting.done()
                    await redlock.close()
                    (adopted,) = await asyncio.gather(adopting, return_exceptions=True)
                    assert isinstance(adopted, (aio.Lease, QuorlockError))
                    assert not isinstance(adopted, aio.Lease) or not adopted.held
                    assert redlock._session.live == {}
                outcomes.add("an error" if isinstance(adopted, QuorlockError) else "a lease")
                with contextlib.suppress(LeaseLost):
                    assert await (await other.adopt(ticket)).release()
                    outcomes.add("good elsewhere")
                assert not await other.lock(RESOURCE).locked()
                if is_late:
                    break
        assert outcomes >= {"an error", "good elsewhere"}

    asyncio.run(main())


def test_a_handler_closes_while_connections_are_returned(nodes: Servers) -> None:
    """The release of a lease that is not given any more waits for the replies of a slow node.

    It is on the connection set that the thread returns. The thread or `close` sends it.
    """
    scene = Scene(nodes, list(nodes), maker(nodes))
    for k in itertools.count(1):
        scene.begin(warm=True)
        nodes[4].stop()
        handler = HandlerIn(k, scene.redlock.close, "ConnectionPool.give_back")
        with watchdog(), contextlib.suppress(QuorlockError):
            acquires(scene.redlock, handler)
        nodes[4].cont()
        assert scene.clean(), f"{k}: {handler.where}: keys left: {scene.values()}"
        if not handler.where:
            break
    scene.redlock.close()
    assert k > 5


def test_a_handler_closes_while_replies_are_read(nodes: Servers) -> None:
    """`Redlock.nodes` reads those of a slow node; it closes what `close` finds in use."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    for k in itertools.count(1):
        scene.begin(warm=True)
        nodes[4].stop()
        scene.redlock.lock(RESOURCE).acquire().release()
        handler = HandlerIn(k, scene.redlock.close, "ConnectionPool._visit")
        with watchdog(), handler:
            assert len(scene.redlock.nodes) == 5
        nodes[4].cont()
        assert scene.clean(), f"{k}: {handler.where}: keys left: {scene.values()}"
        if not handler.where:
            break
        assert scene.redlock._session.driver._pool.all() == [], handler.where
    scene.redlock.close()
    assert k > 3


def test_handlers_in_handlers_find_places(nodes: Servers) -> None:
    """Each handler acquires while the one below it has a place that it cannot return."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    scene.begin(warm=True)
    depth = 0

    def nested() -> object:
        nonlocal depth
        depth += 1
        lock = scene.redlock.lock(f"nested-{depth}", timeout=5.0)
        if depth < 12:
            sys.settrace(None)
            with Handler(90, nested):
                return lock.acquire().release()
        return lock.acquire().release()

    with watchdog():
        nested()
    scene.redlock.close()
    assert depth == 12 or not THOROUGH


@pytest.mark.parametrize(
    "within",
    [
        "send_to_each",
        "Connection.receive_grant",
        "Connection._deliver",
        "ConnectionSet.await_grants",
        "ConnectionSet.deliver_counted",
    ],
)
def test_an_interrupt_while_grants_are_counted(nodes: Servers, within: str) -> None:
    """Two nodes refuse, so that the counted grants are delivered, and the flow is made.

    Now and then three grants come first, and some of these functions are not needed.
    """
    scene = Scene(nodes, list(nodes), maker(nodes))
    k, missed = 1, 0
    while missed < 5:
        scene.begin(warm=True)
        for node in nodes[:2]:
            node.execute("SET", RESOURCE, "another")
        at = Interrupter(k, "line", within)
        with watchdog(), contextlib.suppress(KeyboardInterrupt), at:
            scene.redlock.lock(RESOURCE, timeout=5.0).acquire().release()
        gc.collect()
        for node in nodes[:2]:
            node.execute("DEL", RESOURCE)
        assert scene.clean(), f"{k}: {at.where}: keys left: {scene.values()}"
        assert scene.redlock.lock(RESOURCE, timeout=5.0).acquire().release(), at.where
        scene.redlock.close()
        k, missed = (k + 1, 0) if at.where else (k, missed + 1)
    assert k > 2  # a reply that comes alone runs two lines of `_deliver`


# --- an owner that is gone -------------------------------------------------------------------


def deserted(redlock: Redlock, monkeypatch: Any, times: int) -> None:
    """Interrupt this many calls of this thread, and all that follows from it."""
    from quorlock._drivers.sync.flow_runner import FlowRunner

    abandon = FlowRunner.cancel

    def interrupted(turn: FlowRunner[Any]) -> None:
        del turn
        raise KeyboardInterrupt

    for number in range(times):
        monkeypatch.setattr(FlowRunner, "cancel", interrupted)
        at = Interrupter(3, "line", "ConnectionSet.await_grants")
        with pytest.raises(KeyboardInterrupt), at:
            redlock.lock(f"{RESOURCE}-{number}").acquire()
        monkeypatch.setattr(FlowRunner, "cancel", abandon)


def test_the_same_thread_finds_what_it_has_left(nodes: Servers, monkeypatch: Any) -> None:
    """The next call of the thread discards the connection set, and the lock is released."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    scene.begin(warm=True)
    pool = scene.redlock._session.driver._pool
    deserted(scene.redlock, monkeypatch, 1)
    assert in_use(pool) == 1
    assert scene.redlock.lock("next", timeout=2.0).acquire().release()
    assert not in_use(pool)
    assert all_gone(nodes)
    scene.redlock.close()


def test_other_threads_find_what_is_left(nodes: Servers, monkeypatch: Any) -> None:
    """Sets are borrowed by calls that are gone, of a thread that never calls again."""
    scene = Scene(nodes, list(nodes), maker(nodes))
    scene.begin(warm=True)
    pool = scene.redlock._session.driver._pool
    monkeypatch.setattr(pool, "recover_abandoned", lambda *_: None)
    deserted(scene.redlock, monkeypatch, 2)
    monkeypatch.undo()
    assert in_use(pool) == 2
    won: list[bool] = []
    thread = threading.Thread(
        target=lambda: won.append(scene.redlock.lock("next", timeout=5.0).acquire().release())
    )
    thread.start()
    thread.join(10)
    assert won == [True]
    assert not in_use(pool)
    assert all_gone(nodes)
    scene.redlock.close()


def all_gone(nodes: Servers) -> bool:
    return until(lambda: not keys_of(nodes), CLEAN_WITHIN)


# --- asyncio ---------------------------------------------------------------------------------


class Raiser(Interrupter):
    """Raise at the k-th line of the library in this thread, or where it looks for signals there."""

    def __init__(self, k: int, error: type[BaseException], granularity: str = "line") -> None:
        super().__init__(k, granularity)
        self._error = error

    def _point(self, frame: FrameType) -> None:
        if is_garbage_soon(frame, self._outside):
            return
        self.seen += 1
        if self.seen == self.k:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise self._error


def is_garbage_soon(frame: FrameType | None, outside: FrameType | None) -> bool:
    """Return whether only a frame refers to a lease, which is released when that is garbage.

    This is so before a block that is left knows its lease, and after the flow that won has been
    closed (decision 9).
    """
    while frame is not None and frame is not outside:
        name = frame.f_code.co_name
        if name == "run_task":
            return "result" in frame.f_locals
        if name == "acquire" and frame.f_code.co_qualname == "Lock.acquire":
            return "lease" in frame.f_locals
        if name == "__aexit__":
            return "lease" not in frame.f_locals
        frame = frame.f_back
    return False


async def cycle(redlock: aio.Redlock, name: str) -> None:
    async with redlock.lock(name, timeout=2.0) as lease:
        await lease.extend()


async def three_cycles(redlock: aio.Redlock) -> None:
    await asyncio.gather(*(cycle(redlock, f"{RESOURCE}-{n}") for n in range(3)))


async def cycles_in_line(redlock: aio.Redlock) -> None:
    """One of them waits for the lock, and is given it."""
    await asyncio.gather(*(cycle(redlock, RESOURCE) for _ in range(2)))


async def one_cycle(redlock: aio.Redlock) -> None:
    await cycle(redlock, RESOURCE)


async def release_by_token(redlock: aio.Redlock) -> None:
    lease = await redlock.lock(RESOURCE, timeout=2.0).acquire()
    await redlock.release(RESOURCE, lease.token)


# A coroutine that is interrupted as it begins was never awaited.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("granularity", ["line", "signal"])
@pytest.mark.parametrize("error", [SoftLimit, KeyboardInterrupt])
@pytest.mark.parametrize("act", [one_cycle, three_cycles, cycles_in_line, release_by_token])
def test_asyncio_continues(
    nodes: Servers,
    act: Callable[[aio.Redlock], Coroutine[Any, Any, None]],
    error: type[BaseException],
    granularity: str,
    caplog: Any,
) -> None:
    """Acquire at once afterwards in the same loop with the same Redlock: no key stays, no task
    hangs.
    """
    caplog.set_level(logging.CRITICAL, "asyncio")  # it logs what it does not pass on
    stride = 1 if THOROUGH else 61
    with asyncio.Runner() as runner:
        redlock = runner.run(opened(nodes))
        for k in range(random.randint(1, stride), POINTS_MAX, stride):
            at = Raiser(k, error, granularity)
            loop = runner.get_loop()
            task = loop.create_task(act(redlock))
            with contextlib.suppress(error), at:
                loop.run_until_complete(asyncio.wait([task], timeout=20))
            assert at.where or task.done(), f"{k}: it hangs"
            began = time.monotonic()
            run_ready(loop, error)
            while not task.done():  # the exception came out of the loop itself
                task.cancel()
                with contextlib.suppress(error):  # and out of each task that it ended
                    loop.run_until_complete(asyncio.wait([task], timeout=3))
                run_ready(loop, error)
                assert time.monotonic() - began < 2.5, f"{k}: {at.where}: it hangs"
            with contextlib.suppress(error, asyncio.CancelledError, QuorlockError):
                task.result()
            while others := [one for one in asyncio.all_tasks(loop) if is_cycle(one)]:
                # Those that `gather` left: each may bring the exception out of the loop as well.
                with contextlib.suppress(error):
                    loop.run_until_complete(asyncio.wait(others, timeout=3))
                run_ready(loop, error)
                assert time.monotonic() - began < 2.5, f"{k}: {at.where}: it hangs"
            del task
            gc.collect()  # a lease in a cycle with the exception that reports it
            assert time.monotonic() - began < 2.5, f"{k}: {at.where}"
            runner.run(is_clean(nodes, f"{k}: {at.where}"))
            runner.run(cycle(redlock, "afterwards"))
            if not at.where:
                break
        else:
            pytest.fail("it never completes")
        runner.run(redlock.close())


class RaiserBelow(Raiser):
    """Raise at the k-th line of this function and those that it calls."""

    def __init__(self, k: int, error: type[BaseException], name: str) -> None:
        super().__init__(k, error)
        self._name = name

    def _point(self, frame: FrameType) -> None:
        below: FrameType | None = frame
        while below is not None and below is not self._outside:
            if below.f_code.co_qualname == self._name:
                super()._point(frame)
                return
            below = below.f_back


@pytest.mark.parametrize("error", [SoftLimit, KeyboardInterrupt])
def test_asyncio_interrupted_in_a_pending_release(
    nodes: Servers, error: type[BaseException], caplog: Any
) -> None:
    """The task that sends it may be between its request's entry in the queue and its bytes: every
    later reply on this connection would be taken for that of the request before.
    """
    caplog.set_level(logging.CRITICAL, "asyncio")
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        redlock = runner.run(opened(nodes))
        for k in itertools.count(1):
            runner.run(all_up(redlock))
            lease = runner.run(redlock.lock(RESOURCE, timeout=2.0).acquire())
            at = RaiserBelow(k, error, "AsyncConnector._send")
            nodes[4].execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            task = loop.create_task(lease.release())
            with at:
                run_while(
                    loop,
                    error,
                    lambda: not task.done() or (not at.where and is_unconfirmed(redlock)),  # noqa: B023
                )
            check_after(runner, nodes, redlock, error, f"{k}: {at.where}")
            if not at.where:
                break
        assert k > 10
        runner.run(redlock.close())


@pytest.mark.parametrize("error", [SoftLimit, KeyboardInterrupt])
def test_asyncio_interrupted_by_the_release_of_another_loop(
    nodes: Servers, error: type[BaseException], caplog: Any
) -> None:
    """A callback sends the release here too, since its acquire has no reply yet."""
    caplog.set_level(logging.CRITICAL, "asyncio")
    stride = 1 if THOROUGH else 14
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        redlock = runner.run(opened(nodes))
        for k in itertools.count(random.randint(1, stride), stride):
            runner.run(all_up(redlock))
            assert until(lambda: not nodes[4].keys(), 5)
            nodes[4].stop()
            lease = runner.run(redlock.lock(RESOURCE, timeout=2.0).acquire())
            at = RaiserBelow(k, error, "AsyncConnector.follow")
            other = threading.Thread(target=asyncio.run, args=(released(lease),))
            with at:
                other.start()
                run_while(loop, error, other.is_alive)
            other.join()
            nodes[4].cont()
            check_after(runner, nodes, redlock, error, f"{k}: {at.where}")
            if not at.where:
                break
        assert k > 10
        runner.run(redlock.close())


def test_asyncio_interrupted_in_renewal(nodes: Servers, caplog: Any) -> None:
    """The task that renews all leases of a loop ends then, and another one continues."""
    caplog.set_level(logging.CRITICAL)
    stride = 1 if THOROUGH else 151
    interrupted = 0
    for k in range(random.randint(1, stride), POINTS_MAX, stride):
        at = RaiserBelow(k, SoftLimit, "_LoopRenewal._work_on")
        asyncio.run(renewed(nodes, at))
        if not at.where:
            break
        interrupted += 1
    else:
        pytest.fail("it never completes")
    assert interrupted > 3


class RaiserIn(Raiser):
    """Raise at the k-th line of this function."""

    def __init__(self, k: int, error: type[BaseException], name: str) -> None:
        super().__init__(k, error)
        self._name = name

    def _point(self, frame: FrameType) -> None:
        if frame.f_code.co_qualname == self._name:
            super()._point(frame)


def test_asyncio_interrupted_with_leases_that_are_due(nodes: Servers, caplog: Any) -> None:
    """Due leases have left the schedule, and must get back into it."""
    caplog.set_level(logging.CRITICAL)
    for k in range(1, 8):
        at = RaiserIn(k, SoftLimit, "_LoopRenewal._renew")
        asyncio.run(renewed(nodes, at))
        assert at.where


async def reconnected(redlock: aio.Redlock, nodes: Servers) -> None:
    nodes[4].execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await cycle(redlock, RESOURCE)
    await asyncio.sleep(0.5)


async def renewed_once(redlock: aio.Redlock, nodes: Servers) -> None:
    del nodes
    async with redlock.lock(RESOURCE, ttl=0.8, renew=True):
        await asyncio.sleep(0.7)


async def closed(redlock: aio.Redlock, nodes: Servers) -> None:
    del nodes
    await redlock.close()


@pytest.mark.parametrize(
    ("function", "act"),
    [
        ("AsyncConnector._connect", reconnected),
        ("_LoopRenewal._renew", renewed_once),
        ("Shutdown._finish", closed),
    ],
)
def test_asyncio_reports_no_interrupt_twice(
    nodes: Servers, function: str, act: Callable[..., Coroutine[Any, Any, None]], caplog: Any
) -> None:
    """The event loop raises the KeyboardInterrupt; asyncio would log that of a task, too."""
    with asyncio.Runner() as runner:
        redlock = runner.run(opened(nodes))
        task = runner.get_loop().create_task(act(redlock, nodes))
        at = RaiserIn(1, KeyboardInterrupt, function)
        with at, pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(task)
        assert at.where
        runner.run(asyncio.wait([task], timeout=5))
        runner.run(redlock.close())
    del redlock, task, at
    gc.collect()
    assert caplog.records == []


async def renewed(nodes: Servers, at: Raiser) -> None:
    """Keep two leases for longer than their ttl."""
    async with aio.Redlock(nodes.urls, node_timeout=0.05) as redlock:
        locks = [redlock.lock(f"{RESOURCE}-{n}", ttl=0.6, renew=True) for n in range(2)]
        leases = [await lock.acquire() for lock in locks]
        with at:
            await asyncio.sleep(0.4)
        await asyncio.sleep(0.4)
        assert all(lease.held for lease in leases), at.where
        for lease in leases:
            await lease.release()


async def released(lease: aio.Lease) -> bool:
    return await lease.release()


def run_while(
    loop: asyncio.AbstractEventLoop, error: type[BaseException], is_busy: Callable[[], bool]
) -> None:
    """Run the loop, through exceptions that leave it."""
    end = time.monotonic() + 5
    while is_busy():
        with contextlib.suppress(error):
            loop.run_until_complete(asyncio.sleep(0.001))
        run_ready(loop, error)
        assert time.monotonic() < end, "it hangs"


def check_after(
    runner: asyncio.Runner,
    nodes: Servers,
    redlock: aio.Redlock,
    error: type[BaseException],
    where: str,
) -> None:
    """Check the loop and the Redlock: no key is left, and every reply belongs to its request."""
    run_ready(runner.get_loop(), error)
    runner.run(is_clean(nodes, where))
    assert runner.run(until_async(lambda: not is_unconfirmed(redlock))), where
    for _ in range(3):
        runner.run(cycle(redlock, "afterwards"))
    assert not [node.why for node in redlock.nodes if "unexpected" in node.why], where


async def all_up(redlock: aio.Redlock) -> None:
    async def is_so() -> bool:
        await cycle(redlock, "warm")
        return all(node.up for node in redlock.nodes)

    assert await until_async(is_so, 5.0), redlock.nodes


def is_unconfirmed(redlock: aio.Redlock) -> bool:
    states = redlock._session.driver.node_states.all
    return any(state.pending_releases.has_unconfirmed() for state in states)


def run_ready(loop: asyncio.AbstractEventLoop, error: type[BaseException]) -> None:
    """Run the callbacks that are ready. An exception that leaves the loop while the awaited future
    is done leaves asyncio's callback that stops it, which would stop the next run early. So does
    one that leaves this run: it is repeated until it ends of itself.
    """
    while True:
        loop.call_soon(loop.stop)
        try:
            loop.run_forever()
        except error:
            continue
        return


def is_cycle(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == cycle.__name__


async def opened(nodes: Servers) -> aio.Redlock:
    redlock = aio.Redlock(nodes.urls, node_timeout=0.25)
    await cycle(redlock, "warm")
    return redlock


def keys_of(nodes: Servers) -> list[bytes]:
    return [key for node in nodes for key in node.keys() if RESOURCE.encode() in key]  # noqa: SIM118


async def is_clean(nodes: Servers, where: str) -> None:
    clean = await until_async(lambda: not keys_of(nodes), CLEAN_WITHIN)
    assert clean, f"{where}: keys left: {keys_of(nodes)}"


# --- real signals ----------------------------------------------------------------------------

REAL = """
    import faulthandler, os, random, signal, sys, time
    from quorlock import LeaseLost, QuorlockError, Redlock
    from quorlock.testing.servers import Servers

    does, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print("seed", seed)
    chance = random.Random(seed)
    handled, faults = 0, []

    class SoftLimit(TimeoutError if chance.random() < 0.5 else Exception):
        pass

    def handler(*_):
        global handled, other
        handled += 1
        if does == "raise":
            raise SoftLimit
        if does == "release":
            lease, other = other, None
            if lease is not None and not lease.release():
                faults.append(f"{handled}: False")
        elif does == "acquire":
            redlock.lock("by-a-handler", timeout=5.0).acquire().release()
        else:
            redlock.close()

    signal.signal(signal.SIGALRM, handler)
    with Servers(3) as servers:
        redlock, other = Redlock(servers.urls), None
        for number in range(rounds):
            faulthandler.dump_traceback_later(20, exit=True)  # it hangs
            before = handled
            lock = redlock.lock("main", timeout=5.0)
            try:
                if other is None and does == "release":
                    other = redlock.lock("other", timeout=5.0).acquire()
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(20e-6, 3e-3))
                while handled == before:
                    with lock as lease:
                        lease.extend()
            except SoftLimit:
                pass
            except QuorlockError as error:
                if does != "close":
                    faults.append(f"{number}: {error}")
            signal.setitimer(signal.ITIMER_REAL, 0)
            if does == "close":
                redlock = Redlock(servers.urls)
            lock = lease = None
            end = time.monotonic() + 1.0
            left = lambda: [k for server in servers for k in server.keys() if k != b"other"]
            while left() and time.monotonic() < end:
                time.sleep(0.001)
            if left():
                faults.append(f"{number}: keys left {left()}")
                for server in servers:
                    server.flush()
        redlock.close()
    print(handled, "signals")
    for fault in faults:
        print("FAULT", fault)
    sys.exit(bool(faults) or handled < rounds)
"""


@pytest.mark.parametrize("does", ["raise", "release", "acquire", "close"])
def test_real_signals(does: str) -> None:
    """Signals at random microseconds, in a separate process, so that pytest is not hit."""
    rounds, seed = (2_000 if THOROUGH else 60), random.getrandbits(32)
    command = [sys.executable, "-c", textwrap.dedent(REAL), does, str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
