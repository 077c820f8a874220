"""The pause of a waiter for several resources before it joins the next queue: what ends it.

Each test brings a waiter into that pause, which lasts for a minute here, and ends it there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
from quorlock import AcquireStopped, AcquireTimeout, QuorlockError
from quorlock._core import acquiring
from quorlock._core.queueing import end_of
from quorlock._core.time import NS_PER_S
from quorlock._drivers.node_state import CLOSED_MEANWHILE
from tests.harness.support.wait import until, until_async
from tests.servers.api.faces import BlockingFace, Face, left_over, raises, real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import quorlock.asyncio as aio
    from quorlock._core.config import Policy
    from quorlock._core.effects import Entropy
    from quorlock._core.request import AcquireRequest
    from quorlock._core.results import AttemptFailed
    from quorlock.testing.servers import Server, Servers

LONG = 60
SOON = 10.0  # seconds; far less than the pause, far more than a busy machine takes
SETTINGS: dict[str, Any] = {"node_timeout": 1.0, "retry_delay": (30.0, 40.0)}


class Pauses:
    """Has waiters pause for long after their second attempt; `begun` is set by the first.

    Attributes:
        counts: how many have begun.
        after: the attempts before the latest; one more than two on a busy machine.
    """

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.counts = 0
        self.after = 0

    def rejoin_at(
        self,
        request: AcquireRequest,
        failed: AttemptFailed,
        policy: Policy,
        entropy: Entropy,
        attempts: int,
    ) -> int | None:
        """Return when the pause is over; None for no pause."""
        del policy, entropy
        if not request.claim.keys[1:] or attempts < 2:
            return None
        self.counts += 1
        self.after = attempts
        self.begun.set()
        return min(end_of(request), failed.ended + LONG * NS_PER_S)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pauses]:
    found = Pauses()
    monkeypatch.setattr(acquiring, "_rejoin_at", found.rejoin_at)
    yield found
    assert found.counts == 1, "it paused once"


def queues_on(nodes: Sequence[Server]) -> list[bytes]:
    """Return the queues with places in them."""
    return [key for node in nodes for key in node.execute("KEYS", "quorlock:queue:*")]


async def reach_the_pause(nodes: Servers, pauses: Pauses, first: aio.Lease) -> None:
    """Let a waiter for "a" and "b", which others hold, get its turn for "a"."""
    assert await until_async(lambda: queues_on(nodes).count(b"quorlock:queue:a") >= 3)
    assert await first.release()
    assert await until_async(pauses.begun.is_set)
    assert await until_async(lambda: not queues_on(nodes)), "it pauses in no queue"


async def paused(
    face: Face,
    nodes: Servers,
    pauses: Pauses,
    ends: Callable[[aio.Redlock], Any],
    **call: Any,
) -> tuple[BaseException, float]:
    """Return the error of a waiter in the pause, which `ends` ends, and the time that it took.

    The resource that it was called for is free at once, and nothing of it is left.
    """
    began = 0.0

    async with face.redlock(nodes.urls, **SETTINGS) as theirs:
        first, second = await theirs.lock("a").acquire(), await theirs.lock("b").acquire()
        async with face.redlock(nodes.urls, **SETTINGS) as redlock:

            async def work(index: int) -> BaseException | None:
                nonlocal began
                if index:
                    await reach_the_pause(nodes, pauses, first)
                    began = time.monotonic()
                    result = ends(redlock)
                    if asyncio.iscoroutine(result):
                        await result
                    return None
                return await raises(QuorlockError, redlock.lock("a", "b").acquire(**call))

            error, none = await face.crowd(2, work)
            took = time.monotonic() - began
            assert none is None, none
            assert isinstance(error, BaseException)
        await assert_it_is_gone(nodes, theirs, second)
    assert left_over(nodes) == {}
    return error, took


async def assert_it_is_gone(nodes: Servers, theirs: aio.Redlock, second: aio.Lease) -> None:
    """The waiter is in no queue, with nothing reserved: others get both resources at once."""
    assert not queues_on(nodes)
    lease = await theirs.lock("a").try_acquire()
    assert lease is not None
    assert await lease.release()
    assert await second.release()


async def test_the_event_ends_it(face: Face, nodes: Servers, pauses: Pauses) -> None:
    stop = threading.Event()
    error, took = await paused(face, nodes, pauses, lambda _: stop.set(), stop=stop)
    assert isinstance(error, AcquireStopped)
    assert (error.resource, error.attempts) == ("a + b", pauses.after)
    assert took < SOON


async def test_the_timeout_ends_it(face: Face, nodes: Servers, pauses: Pauses) -> None:
    """One more attempt follows; the error names the resource that was in the way."""
    began = time.monotonic()
    error, _ = await paused(face, nodes, pauses, lambda _: None, timeout=1.5)
    assert isinstance(error, AcquireTimeout)
    assert (error.in_the_way, error.attempts) == ("b", pauses.after + 1)
    assert 1.5 <= error.elapsed < SOON
    assert time.monotonic() - began < LONG / 2


async def test_close_ends_it(face: Face, nodes: Servers, pauses: Pauses) -> None:
    """The Redlock is closed in another thread, or in another task."""
    error, took = await paused(face, nodes, pauses, lambda redlock: redlock.close())
    assert type(error) is QuorlockError
    assert str(error) == CLOSED_MEANWHILE
    assert took < SOON


async def test_a_cancelled_task_is_gone(nodes: Servers, pauses: Pauses) -> None:
    async with (
        quorlock.asyncio.Redlock(nodes.urls, **SETTINGS) as theirs,
        quorlock.asyncio.Redlock(nodes.urls, **SETTINGS) as redlock,
    ):
        first, second = await theirs.lock("a").acquire(), await theirs.lock("b").acquire()
        await (await redlock.lock("c").acquire()).release()
        before = asyncio.all_tasks()
        task = asyncio.create_task(redlock.lock("a", "b").acquire())
        await reach_the_pause(nodes, pauses, first)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        await assert_it_is_gone(nodes, theirs, second)
        assert await until_async(lambda: asyncio.all_tasks() <= before)
    assert left_over(nodes) == {}


async def test_a_deadline_of_asyncio_ends_it(nodes: Servers, pauses: Pauses) -> None:
    async with (
        quorlock.asyncio.Redlock(nodes.urls, **SETTINGS) as theirs,
        quorlock.asyncio.Redlock(nodes.urls, **SETTINGS) as redlock,
    ):
        first, second = await theirs.lock("a").acquire(), await theirs.lock("b").acquire()
        waiter = asyncio.wait_for(redlock.lock("a", "b").acquire(), 1.5)
        ended, _ = await asyncio.gather(
            waiter, reach_the_pause(nodes, pauses, first), return_exceptions=True
        )
        assert isinstance(ended, TimeoutError)
        await assert_it_is_gone(nodes, theirs, second)
    assert left_over(nodes) == {}


async def test_ctrl_c_ends_it(nodes: Servers, pauses: Pauses) -> None:
    """The Redlock can be used after that, and its resources are free for others."""
    face = BlockingFace()
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    problems: list[BaseException] = []
    try:
        async with (
            face.redlock(nodes.urls, **SETTINGS) as theirs,
            face.redlock(nodes.urls, **SETTINGS) as redlock,
        ):
            first, second = await theirs.lock("a").acquire(), await theirs.lock("b").acquire()

            def interrupt() -> None:
                try:
                    asyncio.run(reach_the_pause(nodes, pauses, first))
                except BaseException as error:  # noqa: BLE001 (the test reports it)
                    problems.append(error)
                signal.pthread_kill(main, signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                real(redlock).lock("a", "b").acquire()
            assert time.monotonic() - began < LONG / 2
            thread.join()
            assert problems == []
            await assert_it_is_gone(nodes, theirs, second)
            async with redlock.lock("a", "b") as lease:
                assert lease.held
    finally:
        signal.signal(signal.SIGINT, before)
    assert left_over(nodes) == {}


def test_a_forked_child_does_not_wait(nodes: Servers, pauses: Pauses) -> None:
    """The child has no waiter and uses the Redlock; the parent's waiter waits until stopped."""
    outcomes: list[object] = []
    stop = threading.Event()
    with (
        quorlock.Redlock(nodes.urls, **SETTINGS) as theirs,
        quorlock.Redlock(nodes.urls, **SETTINGS) as redlock,
    ):
        first, second = theirs.lock("a").acquire(), theirs.lock("b").acquire()

        def wait() -> None:
            try:
                redlock.lock("a", "b").acquire(stop=stop)
            except QuorlockError as error:
                outcomes.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert until(lambda: queues_on(nodes).count(b"quorlock:queue:a") >= 3)
        assert first.release()
        assert until(pauses.begun.is_set)
        assert until(lambda: not queues_on(nodes))
        pid = os.fork()
        if not pid:
            status = 1
            try:
                assert threading.active_count() == 1
                assert redlock.lock("a", "c").acquire(timeout=10).release()
                redlock.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert thread.is_alive()
        stop.set()
        thread.join(SOON)
        assert not thread.is_alive()
        assert [type(outcome) for outcome in outcomes] == [AcquireStopped]
        assert not queues_on(nodes)
        assert second.release()
    assert left_over(nodes) == {}
